//! The protocol of the server: enough of it to separate replies from each other, to count their results, and to show where two differ.

use crate::calls::Words;

/// The names of the servers in messages.
pub const NAMES: [&str; 2] = ["base", "new"];

/// Appends a command as clients send it.
pub fn encode<W: AsRef<[u8]>>(request: &mut Vec<u8>, words: &[W]) {
    request.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        let word = word.as_ref();
        request.extend(format!("${}\r\n", word.len()).bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
}

/// The length of the first reply in `bytes`, of either version of the protocol; `None` if it is not complete.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut left = 1_usize;
    while left > 0 {
        let (kind, line, next) = line(bytes, at)?;
        at = next;
        left -= 1;
        let count = usize::try_from(number(line)).ok();
        match (kind, count) {
            (b'$' | b'!' | b'=', Some(count)) => {
                at += count + 2;
                if at > bytes.len() {
                    return None;
                }
            }
            (b'*' | b'~' | b'>', Some(count)) => left += count,
            (b'%', Some(count)) => left += 2 * count,
            (b'|', Some(count)) => left += 2 * count + 1,
            _ => {}
        }
    }
    Some(at)
}

/// The type, the rest and the end of the line that begins at `at`.
fn line(bytes: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|&byte| byte == b'\r').filter(|&end| end > 0 && end + 1 < rest.len())?;
    Some((rest[0], &rest[1..end], at + end + 2))
}

fn number(line: &[u8]) -> i64 {
    std::str::from_utf8(line).ok().and_then(|line| line.parse().ok()).unwrap_or(-1)
}

/// A decoded reply. It distinguishes only the types that this tool uses.
#[derive(Debug)]
pub enum Reply<'b> {
    /// A number.
    Integer(i64),
    /// An error, with its text.
    Error(&'b [u8]),
    /// An array, or anything else with elements.
    Array(Vec<Reply<'b>>),
    /// A string, of any bytes.
    Bulk(&'b [u8]),
    /// Anything else.
    Other,
}

impl<'b> Reply<'b> {
    /// The first reply in `bytes`, which must be complete.
    pub fn read(bytes: &'b [u8]) -> Self {
        Self::read_at(bytes, &mut 0)
    }

    fn read_at(bytes: &'b [u8], at: &mut usize) -> Self {
        let Some((kind, text, next)) = line(bytes, *at) else { return Self::Other };
        *at = next;
        let count = usize::try_from(number(text)).ok();
        match (kind, count) {
            (b':', _) => Self::Integer(number(text)),
            (b'-', _) => Self::Error(text),
            (b'$' | b'!' | b'=', Some(count)) => {
                let string = bytes.get(*at..*at + count).unwrap_or_default();
                *at += count + 2;
                Self::Bulk(string)
            }
            (b'*' | b'~' | b'>', Some(count)) => Self::Array((0..count).map(|_| Self::read_at(bytes, at)).collect()),
            (b'%', Some(count)) => Self::Array((0..2 * count).map(|_| Self::read_at(bytes, at)).collect()),
            _ => Self::Other,
        }
    }

    /// The reply's numbers, if it is an array of five.
    pub fn five(&self) -> Option<[i64; 5]> {
        let Self::Array(items) = self else { return None };
        let numbers: Option<Vec<i64>> =
            items.iter().map(|item| if let Self::Integer(number) = item { Some(*number) } else { None }).collect();
        numbers?.try_into().ok()
    }
}

/// Bytes in printable form, cut off after `most` of them.
pub fn readable(bytes: &[u8], most: usize) -> String {
    let more = if bytes.len() > most { format!("... ({} bytes)", bytes.len()) } else { String::new() };
    format!("{}{more}", bytes[..bytes.len().min(most)].escape_ascii())
}

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
    while let Some(length) = length(bytes) {
        commands.push(bytes[..length].to_vec());
        bytes = &bytes[length..];
    }
    commands.push(bytes.to_vec());
    commands
}

/// Whether two replies are the same, but for the module's version, and for facts that only the module at hand tells: a field of INFO,
/// and of RL.INSPECT that the key is not paused.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    one == other || [VERSION, PAUSED].iter().any(|part| contains(other, part)) && facts(one, one) == facts(other, one)
}

const VERSION: &[u8] = b"rl_version:";
const PAUSED: &[u8] = b"paused_ms\r\n:0";

fn contains(reply: &[u8], part: &[u8]) -> bool {
    reply.windows(part.len()).any(|window| window == part)
}

/// The lines of a reply without the module's version, without the lengths of its parts, and without fields that the base does not have.
fn facts<'r>(reply: &'r [u8], base: &[u8]) -> Vec<&'r [u8]> {
    let name = |line: &[u8]| line.iter().position(|&byte| byte == b':').map(|colon| line[..=colon].to_vec());
    let known: std::collections::HashSet<_> = base.split(|&byte| byte == b'\n').filter_map(name).collect();
    let paused = contains(base, b"paused_ms");
    let mut lines = reply.split(|&byte| byte == b'\n');
    let mut facts = Vec::new();
    while let Some(line) = lines.next() {
        if line == b"paused_ms\r" && !paused {
            lines.next();
        } else if !line.starts_with(VERSION)
            && !matches!(line.first(), Some(b'$' | b'=' | b'*' | b'%'))
            && name(line).is_none_or(|name| known.contains(&name))
        {
            facts.push(line);
        }
    }
    // In a script, the order of a map's fields depends on how many there are.
    facts.sort_unstable();
    facts
}

/// Whether both replies, to GET or DUMP, show records with ids, whose versions are 2 and 3.
pub fn have_ids(one: &[u8], other: &[u8]) -> bool {
    let has = |reply: &[u8]| reply.windows(2).any(|pair| matches!(pair, [0xfa, 2 | 3]));
    has(one) && has(other)
}
