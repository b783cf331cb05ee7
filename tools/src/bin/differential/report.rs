//! Compares replies, and prints commands and differences.

use crate::calls::Words;
use crate::resp::{self, readable};
use crate::servers::NAMES;

/// A command as a line to read.
pub fn show(words: &Words) -> String {
    let shown: Vec<_> =
        words.iter().take(400).map(|word| if word.is_empty() { "\"\"".into() } else { readable(word, 120) }).collect();
    shown.join(" ")
}

/// Describes the first difference between two replies.
pub fn differ(one: &[u8], other: &[u8]) -> String {
    let at = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    let from = at.saturating_sub(600);
    let part = |bytes: &[u8]| readable(&bytes[from.min(bytes.len())..], 1_200);
    format!(
        "from byte {at} on the replies differ; from byte {from} on they are:\n{:>4}: {}\n{:>4}: {}",
        NAMES[0],
        part(one),
        NAMES[1],
        part(other)
    )
}

/// Describes the first difference between two lists of events or commands.
pub fn first_difference(one: &[Vec<u8>], other: &[Vec<u8>]) -> String {
    let at = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    let part = |list: &[Vec<u8>]| {
        let lines: Vec<_> = list.iter().skip(at.saturating_sub(2)).take(5).map(|bytes| readable(bytes, 600)).collect();
        lines.join("\n      ")
    };
    format!("{:>4}: {}\n{:>4}: {}", NAMES[0], part(one), NAMES[1], part(other))
}

/// Splits a part of a replication stream or of an append-only file into its commands.
pub fn commands(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut commands = Vec::new();
    while let Some(length) = resp::length(bytes) {
        commands.push(bytes[..length].to_vec());
        bytes = &bytes[length..];
    }
    commands.push(bytes.to_vec());
    commands
}

/// Whether two replies are the same, but for the module's version.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    one == other || has_version(one) && has_version(other) && without_version(one) == without_version(other)
}

const VERSION: &[u8] = b"rl_version:";

fn has_version(reply: &[u8]) -> bool {
    reply.windows(VERSION.len()).any(|window| window == VERSION)
}

/// A reply without the lines that contain the version or the length of a text.
fn without_version(reply: &[u8]) -> Vec<&[u8]> {
    reply
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.starts_with(VERSION) && !line.starts_with(b"$") && !line.starts_with(b"="))
        .collect()
}
