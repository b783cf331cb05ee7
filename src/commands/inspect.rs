//! `RL.INSPECT`: the state of the limiter in a key, for a person at redis-cli.
//!
//! ```text
//! RL.INSPECT key
//! ```
//!
//! Replies with a map of names and values, or with nil if the key does not exist.

use super::shared::clock::now;
use super::shared::error::Error;
use super::shared::grammar::{self, KEY};
use super::shared::reply::{integer, reply};
use super::shared::target::Target;
use super::shared::waiting;
use crate::limiter::{self, Fact, Holder, Inspection, Span};
use crate::server::{run_command, Argument, Call, Command, CommandHandler, KeySpec, ReadKey};

pub(super) const COMMAND: Command = Command {
    name: c"rl.inspect",
    callback: run_command::<Inspect>,
    arity: 2,
    flags: c"readonly fast",
    keys: KeySpec::ReadOnly(1),
    summary: c"Returns the state of the limiter that a key holds.",
    complexity: c"O(log(N)) with N the grants in the window for SLIDE; O(N*log(N)) with N the leases for LEASE; O(1) for the others, plus O(N) with N the ids",
    arguments,
    reply: &["Replies with a map: algorithm, remaining, reset_ms and more; nil if there is no such key."],
    example: "RL.INSPECT user:42",
};

fn arguments() -> Vec<Argument> {
    vec![grammar::key_argument()]
}

struct Inspect;

impl CommandHandler for Inspect {
    fn run(call: &Call<'_>) {
        reply(call, run(call), |inspection| match inspection {
            None => call.reply_nil(),
            Some(inspection) => {
                call.reply_map(inspection.len());
                for (name, fact) in inspection {
                    call.reply_string(name);
                    match fact {
                        Fact::Nothing => call.reply_nil(),
                        Fact::Word(word) => call.reply_string(word),
                        Fact::Number(number) => call.reply_integer(number),
                        Fact::Milliseconds(span) => reply_milliseconds(call, span),
                        Fact::Holders(holders) => reply_holders(call, &holders),
                    }
                }
            }
        });
    }
}

/// Replies with an array of leases, each a map.
fn reply_holders(call: &Call<'_>, holders: &[Holder]) {
    call.reply_array(holders.len());
    for Holder { id, units, left } in holders {
        call.reply_map(3);
        call.reply_string("id");
        call.reply_bytes(id);
        for (name, number) in [("units", *units), ("left_ms", left.as_ms_ceil())] {
            call.reply_string(name);
            call.reply_integer(integer(number));
        }
    }
}

/// Replies with an integer, or with a decimal number if the span is not a whole number of milliseconds.
fn reply_milliseconds(call: &Call<'_>, span: Span) {
    let (whole, us) = (span.as_us() / 1_000, span.as_us() % 1_000);
    if us == 0 {
        call.reply_integer(integer(whole));
    } else {
        call.reply_string(format!("{whole}.{us:03}").trim_end_matches('0'));
    }
}

fn run(call: &Call<'_>) -> Result<Option<Inspection>, Error> {
    let key = ReadKey::open(call, KEY).ok_or(Error::InUse)?;
    let target = Target::ANY;
    let Some(bytes) = target.stored(&key)? else { return Ok(None) };
    let mut inspection = limiter::inspect(bytes, now(call)).map_err(|error| target.record_error(error))?;
    inspection.push(("waiting", Fact::Number(integer(waiting::count_waiters(call, KEY) as u64))));
    Ok(Some(inspection))
}
