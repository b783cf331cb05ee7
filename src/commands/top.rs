//! `RL.TOP`: the keys that were denied most often recently, and those that the most clients wait for.
//!
//! ```text
//! RL.TOP [n | RESET | WAITING]
//! ```
//!
//! Replies with the `n` keys (10 by default) that have the highest counts of recent denials, each as a map: key, db, denials,
//! overcount. RESET removes all keys from the table. WAITING replies with the 100 keys that the most clients wait for, each as a
//! map: key, db, waiting, longest_ms.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use super::parameters::{MAX_TOP_KEYS, TOP_HALF_LIFE, TOP_KEYS};
use super::{count, grammar, integer, now, reply, waiting, Args, CommandName, Error};
use crate::limiter::{Instant, Span};
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec, MainThread, Server};
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
/// If there are too many, or one is malformed.
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

/// The table of denials; `None` while the module is not loaded.
static DENIALS: MainThread<Option<Sketch>> = MainThread::new(None);

/// Calls `work` with the table of denials. If its configured size or half-life has changed, it is replaced by an empty one before.
#[inline(always)]
fn with_denials(server: &Server<'_>, now: Instant, work: impl FnOnce(&mut Sketch)) {
    let most = usize::try_from(TOP_KEYS.get()).unwrap_or(0);
    let half_life = Span::from_us(u64::try_from(TOP_HALF_LIFE.get()).unwrap_or(1).saturating_mul(1_000_000));
    DENIALS.with(server, |table| match table {
        Some(sketch) if sketch.is_for(most, half_life) => work(sketch),
        _ => work(table.insert(empty_for(most, half_life, now))),
    });
}

/// A table without denials.
#[cold]
fn empty_for(most: usize, half_life: Span, now: Instant) -> Sketch {
    // The seed is random, so that no caller can choose names that collide.
    let seed = [0, 1].map(|number| RandomState::new().hash_one(number));
    Sketch::new(most, half_life, seed, now)
}

/// Makes an empty table, when the module is loaded.
pub(super) fn start(server: &Server<'_>) {
    free(server);
    with_denials(server, now(server), |_| ());
}

/// Frees the table, when the module is unloaded.
pub(super) fn free(server: &Server<'_>) {
    DENIALS.with(server, |table| *table = None);
}

/// Counts a denial.
pub(super) fn count_denial(server: &Server<'_>, db: i32, name: &[u8], now: Instant) {
    with_denials(server, now, |sketch| sketch.count(db, name, now));
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
