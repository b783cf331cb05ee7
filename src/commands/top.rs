//! `RL.TOP`: the keys that were denied most often recently, or the keys that the most clients wait for.
//!
//! ```text
//! RL.TOP [n | RESET | WAITING]
//! ```
//!
//! Replies with the `n` keys (10 by default) that have the highest counts of recent denials, each as a map: key, db, denials,
//! overcount. RESET removes all keys from the table. WAITING replies with the 100 keys that the most clients wait for, each as a
//! map: key, db, waiting, longest_ms.

use super::shared::clock::now;
use super::shared::denials::with_denials;
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args};
use super::shared::numbers::count;
use super::shared::parameters::MAX_TOP_KEYS;
use super::shared::reply::{integer, reply};
use super::shared::waiting;
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec};
use crate::sketch::Sketch;

pub(super) const COMMAND: Command = Command {
    name: c"rl.top",
    callback: run_command::<Top>,
    arity: -1,
    flags: c"admin allow-loading allow-stale",
    keys: KeySpec::None,
    summary: c"Lists the keys that were denied most often recently, or those that the most clients wait for.",
    complexity: c"O(N*log(N)) with N the number of keys that are counted, at most 1024; with WAITING, N is the number of keys that clients wait for",
    arguments,
    reply: &[
        "Replies with a map for each key: key, db, denials, and overcount, by which denials may be too high.",
        "WAITING: key, db, waiting (clients), and longest_ms, how long the first of them has waited. RESET: OK.",
    ],
    example: "RL.TOP 10",
};

fn arguments() -> Vec<Argument> {
    let n = Argument::new("n", ArgumentKind::Integer);
    let reset = Argument::new("reset", ArgumentKind::Token).token("RESET");
    let waiting = Argument::new("waiting", ArgumentKind::Token).token("WAITING");
    grammar::one_of("what", vec![n, reset, waiting]).map(Argument::optional).into_iter().collect()
}

/// The parsed arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopArgs {
    /// List this many keys.
    List(usize),
    /// Remove all keys from the table.
    Reset,
    /// List the keys that the most clients wait for.
    Waiting,
}

/// Parses the arguments.
///
/// # Errors
/// If there are too many arguments, or the argument is malformed.
pub fn parse<A: Args + ?Sized>(args: &A) -> Result<TopArgs, Error> {
    const DEFAULT: usize = 10;
    if args.arg(2).is_some() {
        return Err(Error::Arity(CommandName::Top));
    }
    match args.arg(1) {
        None => Ok(TopArgs::List(DEFAULT)),
        Some(word) if word.eq_ignore_ascii_case(b"RESET") => Ok(TopArgs::Reset),
        Some(word) if word.eq_ignore_ascii_case(b"WAITING") => Ok(TopArgs::Waiting),
        Some(word) => {
            let most = count(word, "n", 1, MAX_TOP_KEYS).map_err(|_| Error::NotTop(MAX_TOP_KEYS))?;
            Ok(TopArgs::List(usize::try_from(most).unwrap_or(DEFAULT)))
        }
    }
}

struct Top;

impl CommandHandler for Top {
    fn run(call: &Call<'_>) {
        /// The most keys that WAITING lists.
        const MOST_LINES: usize = 100;
        reply(call, parse(call), |args| match args {
            TopArgs::Reset => {
                with_denials(call, now(call), Sketch::reset);
                call.reply_status(c"OK");
            }
            TopArgs::List(most) => {
                let now = now(call);
                with_denials(call, now, |sketch| {
                    let rows = sketch.top(most, now);
                    call.reply_array(rows.len());
                    for row in rows {
                        reply_row(call, row.name, row.db, [("denials", row.count), ("overcount", row.over)]);
                    }
                });
            }
            TopArgs::Waiting => waiting::longest_lines(call, MOST_LINES, |lines, now| {
                call.reply_array(lines.len());
                for line in lines {
                    let longest_ms = now.since(line.since).as_ms_ceil();
                    reply_row(call, line.key, line.db, [("waiting", line.clients as u64), ("longest_ms", longest_ms)]);
                }
            }),
        });
    }
}

/// Replies with the map for a key.
fn reply_row(call: &Call<'_>, key: &[u8], db: i32, numbers: [(&str, u64); 2]) {
    call.reply_map(4);
    call.reply_string("key");
    call.reply_bytes(key);
    call.reply_string("db");
    call.reply_integer(db.into());
    for (name, number) in numbers {
        call.reply_string(name);
        call.reply_integer(integer(number));
    }
}
