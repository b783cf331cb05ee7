//! `RL.LEASE`: units that are held until they are released, or until a time to live (ttl) passes.
//!
//! ```text
//! RL.LEASE key limit ttl ID id [COST n] [RENEW] [BLOCK d]
//! ```
//!
//! Replies with five integers: the units that the id holds, limit, remaining, wait_ms, reset_ms. With BLOCK the reply may come
//! later. A call with an id that holds a lease renews the lease.

use super::help;
use super::shared::clock::now;
use super::shared::commit::{commit_or_wait, decide};
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args, Cursor, Rule, KEY};
use super::shared::reply::{reply_decision, reply_now_or_later, Answered};
use super::shared::target::Target;
use super::shared::waiting;
use crate::limiter::{Decision, Kind};
use crate::server::{run_command, Argument, Call, Command, CommandHandler, KeySpec, WriteKey};

/// The command has no flag `deny-oom`, because a renewal must work when the server is out of memory. In that case the handler
/// itself refuses new leases.
pub(super) const COMMAND: Command = Command {
    name: c"rl.lease",
    callback: run_command::<Lease>,
    arity: -6,
    flags: c"write fast",
    keys: KeySpec::ReadWrite(1),
    summary: c"Takes or renews a lease: units that are held until they are released, or until a time to live passes.",
    complexity: c"O(N/64) with N the leases, amortized; O(N) for a denied call that lacks many units; with BLOCK, plus O(log(M)) with M the waiting clients",
    arguments,
    reply: help::FIVE_INTEGERS,
    example: "RL.LEASE jobs 4 30s ID worker-1",
};

const NAME: CommandName = CommandName::Limit(Kind::Lease);

fn arguments() -> Vec<Argument> {
    [grammar::key_argument()].into_iter().chain(grammar::rule_arguments(Kind::Lease, NAME)).collect()
}

struct Lease;

impl CommandHandler for Lease {
    fn run(call: &Call<'_>) {
        reply_now_or_later(call, run(call), |decision| reply_decision(call, &decision));
    }
}

/// Parses the arguments.
///
/// # Errors
/// If an argument is malformed, or the id is missing.
pub fn parse<A: Args + ?Sized>(args: &A) -> Result<Rule<'_>, Box<Error>> {
    let rule = grammar::rule(Kind::Lease, NAME, &mut Cursor::new(args, 2))?;
    rule.request.id.map(|_| rule).ok_or_else(|| Box::new(Error::NoId))
}

fn run(call: &Call<'_>) -> Result<Answered<Decision>, Box<Error>> {
    let rule = parse(call)?;
    let key = WriteKey::open(call, KEY).ok_or(Error::InUse)?;
    let now = now(call);
    let mut waiters = waiting::waiters(call, KEY);
    let target = Target::only(Kind::Lease);
    let decided = target.view(&key, &rule.policy, now, |view, _| decide(call, &rule, view, &mut waiters))?;
    commit_or_wait(call, key, Kind::Lease, &rule, &decided, waiters, now)
}
