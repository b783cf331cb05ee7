//! `RL.LEASE`: units that are held until they are released, or until a time to live (ttl) passes.
//!
//! ```text
//! RL.LEASE key limit ttl ID id [COST n] [RENEW] [BLOCK d]
//! ```
//!
//! Replies with five integers: the units that the id holds, limit, remaining, wait_ms, reset_ms. With BLOCK the reply may come
//! later. A call with an id that holds a lease renews the lease.

use super::{grammar, help, now, record_outcome, reply, row, waiting};
use super::{Args, CommandName, Cursor, Error, Outcome, Rule, Target};
use crate::limiter::{Decision, Kind, Wait};
use crate::queue::Waiters;
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
        match run(call) {
            // The client is blocked. `waiting` replies to it later.
            Ok(None) => {}
            Ok(Some(decision)) => reply(call, Ok(decision), |decision| call.reply_integers(&row(&decision))),
            Err(error) => reply(call, Err(*error), |()| {}),
        }
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

fn run(call: &Call<'_>) -> Result<Option<Decision>, Box<Error>> {
    let rule = parse(call)?;
    let mut key = WriteKey::open(call, 1).ok_or(Error::InUse)?;
    let (target, now) = (Target::only(Kind::Lease), now(call));
    let held = target.held(&key, &rule, now)?;
    // A renewal can't restore an earlier value, so the lines need not be told of it.
    let waiters = if held.is_none() { waiting::waiters(call, 1) } else { Waiters::None };
    let decided = match held {
        // A renewal does not wait for other clients.
        Some(held) => {
            rule.check_cost(held)?;
            target.charge(&mut key, &rule, now, |_, _, _| true)?
        }
        None if rule.renew => {
            let present = target.peek(&key, &rule, now)?;
            Some((Decision { granted: 0, wait: Wait::Never, ..present }, false))
        }
        None if rule.policy.limit() > 0 && call.is_out_of_memory() => return Err(Box::new(Error::OutOfMemory)),
        None if waiters == Waiters::InLine => None,
        None => target.charge(&mut key, &rule, now, |_, _, decision| decision.granted > 0 || rule.block.is_none())?,
    };
    let Some((decision, changed)) = waiting::decided_or_blocked(call, &key, &rule, now, decided)? else { return Ok(None) };
    drop(key);
    if waiters != Waiters::None && changed {
        waiting::changed(call, 1);
    }
    record_outcome(call, || call.key(1), Kind::Lease, Outcome::of(rule.request.amount, &decision, changed), now);
    Ok(Some(decision))
}
