//! `RL.PAUSE`: a key grants nothing for a while, because a third party has said stop.
//!
//! ```text
//! RL.PAUSE key duration
//! ```
//!
//! Replies with an integer: the milliseconds until the pause in force ends.

use super::shared::clock::now;
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args, KEY};
use super::shared::numbers;
use super::shared::reply::{integer, reply};
use super::shared::stats::PAUSES;
use super::shared::target::Target;
use super::shared::waiting;
use crate::limiter::Span;
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec, WriteKey};

/// The command has no flag `deny-oom`, because to stop calls must work when the server is out of memory. In that case the handler itself
/// refuses to create a key.
pub(super) const COMMAND: Command = Command {
    name: c"rl.pause",
    callback: run_command::<Pause>,
    arity: 3,
    flags: c"write fast",
    keys: KeySpec::ReadWrite(1),
    summary: c"Stops grants of free units from a key for a while, whatever its limiter is.",
    complexity: c"O(N) with N the length of the value",
    arguments,
    reply: &["Replies with the milliseconds until the pause in force ends; 0 if there is none. The later end wins; 0 ends a pause."],
    example: "RL.PAUSE partner 30s",
};

fn arguments() -> Vec<Argument> {
    vec![grammar::key_argument(), Argument::new("duration", ArgumentKind::Text)]
}

/// Parses the length of the pause; zero ends one.
///
/// # Errors
/// If it is missing, malformed or out of range.
pub fn parse<A: Args + ?Sized>(args: &A) -> Result<Span, Error> {
    numbers::pause(args.arg(2).ok_or(Error::Arity(CommandName::Pause))?)
}

struct Pause;

impl CommandHandler for Pause {
    fn run(call: &Call<'_>) {
        reply(call, run(call), |rest| call.reply_integer(integer(rest.as_ms_ceil())));
    }
}

fn run(call: &Call<'_>) -> Result<Span, Error> {
    let length = parse(call)?;
    let mut key = WriteKey::open(call, KEY).ok_or(Error::InUse)?;
    let target = Target::ANY;
    if length > Span::ZERO && call.is_out_of_memory() && target.stored(&key)?.is_none() {
        return Err(Error::OutOfMemory);
    }
    let (rest, changed) = target.pause(&mut key, length, now(call))?;
    drop(key);
    if changed {
        waiting::changed(call, KEY);
        if length > Span::ZERO {
            PAUSES.increment();
        }
        if call.notifications_enabled() {
            call.notify(call.db(), call.argument(KEY).unwrap_or_default(), "rl.pause");
        }
    }
    Ok(rest)
}
