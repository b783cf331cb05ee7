//! `RL.SETTLE` sets the charge with an id to its real cost. `RL.RELEASE` gives back the charge with an id, or ends the lease with
//! an id.
//!
//! ```text
//! RL.SETTLE key id units
//! RL.RELEASE key id
//! ```
//!
//! Both reply with five integers (units, limit, remaining, 0, reset_ms), or with nil if the key does not remember the id.

use super::shared::clock::now;
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args, KEY};
use super::shared::numbers::count;
use super::shared::outcome::{notify, Outcome};
use super::shared::reply::{reply, reply_decision};
use super::shared::stats::{RELEASED, SETTLED};
use super::shared::target::Target;
use super::shared::waiting;
use crate::limiter::{Id, Settlement, MAX_UNITS};
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec, WriteKey};

/// Neither command has the flag `deny-oom`, because giving back must work when the server is out of memory.
const FLAGS: &std::ffi::CStr = c"write fast";

const COMPLEXITY: &std::ffi::CStr =
    c"O(N/64) with N the ids that the key remembers, amortized; for SLIDE, plus O(log(M)) with M the grants in the window";

pub(super) const SETTLE: Command = Command {
    name: c"rl.settle",
    callback: run_command::<Settle>,
    arity: 4,
    flags: FLAGS,
    keys: KeySpec::ReadWrite(1),
    summary: c"Sets a charge that was made with an ID to what it really cost.",
    complexity: COMPLEXITY,
    arguments: || {
        let units = Argument::new("units", ArgumentKind::Integer);
        arguments().into_iter().chain([units]).collect()
    },
    reply: &["Replies with five integers: the units that the charge is now, limit, remaining, 0, reset_ms.", NIL],
    example: "RL.SETTLE tokens:42 request-1 1500",
};

pub(super) const RELEASE: Command = Command {
    name: c"rl.release",
    callback: run_command::<Release>,
    arity: 3,
    flags: FLAGS,
    keys: KeySpec::ReadWrite(1),
    summary: c"Gives back what an ID holds: a lease, or a charge.",
    complexity: COMPLEXITY,
    arguments,
    reply: &["Replies with five integers: 0, limit, remaining, 0, reset_ms.", NIL],
    example: "RL.RELEASE jobs worker-1",
};

const NIL: &str = "Replies with nil if there is no such key, or it does not remember the id, and nothing has changed.";

fn arguments() -> Vec<Argument> {
    vec![grammar::key_argument(), Argument::new("id", ArgumentKind::Text)]
}

/// The parsed arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleArgs<'a> {
    /// The id.
    pub id: Id<'a>,
    /// The units that the charge is set to.
    pub units: u64,
}

/// Parses the arguments of `RL.SETTLE`.
///
/// # Errors
/// If an argument is malformed. The error is about the first such argument.
pub fn parse_settle<A: Args + ?Sized>(args: &A) -> Result<SettleArgs<'_>, Error> {
    let id = id(args, CommandName::Settle)?;
    let units = count(args.arg(3).ok_or(Error::Arity(CommandName::Settle))?, "units", 0, MAX_UNITS)?;
    Ok(SettleArgs { id, units })
}

/// Parses the arguments of `RL.RELEASE`.
///
/// # Errors
/// If the id is missing or malformed.
pub fn parse_release<A: Args + ?Sized>(args: &A) -> Result<SettleArgs<'_>, Error> {
    Ok(SettleArgs { id: id(args, CommandName::Release)?, units: 0 })
}

fn id<A: Args + ?Sized>(args: &A, command: CommandName) -> Result<Id<'_>, Error> {
    grammar::id(args.arg(2).ok_or(Error::Arity(command))?, "id")
}

struct Settle;

impl CommandHandler for Settle {
    fn run(call: &Call<'_>) {
        run(call, CommandName::Settle, parse_settle(call));
    }
}

struct Release;

impl CommandHandler for Release {
    fn run(call: &Call<'_>) {
        run(call, CommandName::Release, parse_release(call));
    }
}

fn run(call: &Call<'_>, command: CommandName, args: Result<SettleArgs<'_>, Error>) {
    reply(call, args.and_then(|args| Ok(settle(call, command, args)?)), |settlement| match settlement {
        None => call.reply_nil(),
        Some(settlement) => reply_decision(call, &settlement.decision),
    });
}

fn settle(call: &Call<'_>, command: CommandName, args: SettleArgs<'_>) -> Result<Option<Settlement>, Box<Error>> {
    let mut key = WriteKey::open(call, KEY).ok_or(Error::InUse)?;
    let settled = Target::ANY.settle(&mut key, args.id, args.units, now(call))?;
    drop(key);
    if let Some(settlement) = settled {
        waiting::changed(call, KEY);
        if command == CommandName::Release { &RELEASED } else { &SETTLED }.increment();
        if call.notifications_enabled() {
            notify(call, call.db(), call.argument(KEY).unwrap_or_default(), settlement.kind, Outcome::Changed);
        }
    }
    Ok(settled)
}
