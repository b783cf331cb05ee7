//! `CL.THROTTLE`: `RL.GCRA` with the arguments and the reply of redis-cell.
//!
//! ```text
//! CL.THROTTLE key max_burst count_per_period period [quantity]
//! ```
//!
//! `max_burst` is the burst less one unit, so `CL.THROTTLE key 4 10 60` and `RL.GCRA key 10 60 BURST 5` have the same policy
//! and can share a key. A negative quantity gives units back. A quantity of 0 takes none, as `RL.PEEK`. Replies with five
//! integers: limited (0 or 1), limit, remaining, retry_after, reset_after; the last two are in seconds.

use super::limit;
use super::shared::clock::now;
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args, Rule, KEY};
use super::shared::numbers::{bad_period, count, digits};
use super::shared::reply::{integer, reply, Answered};
use super::shared::target::Target;
use crate::limiter::{Amount, Decision, Kind, Policy, PolicyOption, Quota, Request, Span, Wait, MAX_PERIOD, MAX_UNITS};
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec, ReadKey};

pub(super) const COMMAND: Command = Command {
    name: c"cl.throttle",
    callback: run_command::<ClThrottle>,
    arity: -5,
    flags: c"write deny-oom fast",
    keys: KeySpec::ReadWrite(1),
    summary: c"Takes units by the generic cell rate algorithm, as redis-cell does.",
    complexity: c"O(1)",
    arguments,
    reply: REPLY,
    example: "CL.THROTTLE user:43 15 30 60",
};

/// What `CL.THROTTLE` and `GCRA` reply.
pub(super) const REPLY: &[&str] = &[
    "Replies with five integers: limited (1 = denied), limit, remaining, retry_after (-1 = granted, or never), reset_after.",
    "Both times are in seconds: after which to call again, and until no unit is in use.",
];

fn arguments() -> Vec<Argument> {
    let numbers = ["max_burst", "count_per_period", "period"].map(|name| Argument::new(name, ArgumentKind::Integer));
    let quantity = Argument::new("quantity", ArgumentKind::Integer).optional();
    [grammar::key_argument()].into_iter().chain(numbers).chain([quantity]).collect()
}

/// The parsed arguments of `CL.THROTTLE` or `GCRA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleArgs {
    /// The policy.
    pub policy: Policy,
    /// How many units to take or give back; `None`: only report the state.
    pub amount: Option<Amount>,
}

/// Parses the arguments.
///
/// # Errors
/// If an argument is malformed. The error is about the first such argument.
pub fn parse<A: Args + ?Sized>(args: &A) -> Result<ThrottleArgs, Error> {
    const MAX_SECONDS: u64 = MAX_PERIOD.as_us() / 1_000_000;
    let word = |index| args.arg(index).ok_or(Error::Arity(CommandName::ClThrottle));
    let capacity = count(word(2)?, "max_burst", 0, MAX_UNITS - 1)? + 1;
    let limit = count(word(3)?, "count_per_period", 1, MAX_UNITS)?;
    let period = Span::from_us(count(word(4)?, "period", 1, MAX_SECONDS)? * 1_000_000);
    let amount = args.arg(5).map_or(Ok(Some(Amount::Cost(1))), quantity)?;
    if args.arg(6).is_some() {
        return Err(Error::Arity(CommandName::ClThrottle));
    }
    Ok(ThrottleArgs { policy: policy(limit, period, capacity)?, amount })
}

fn quantity(word: &[u8]) -> Result<Option<Amount>, Error> {
    let (negative, size) = word.strip_prefix(b"-").map_or((false, word), |size| (true, size));
    let size = digits(size).filter(|&size| size <= MAX_UNITS);
    let size = size.ok_or(Error::Signed { name: "quantity", max: MAX_UNITS })?;
    let amount = if negative { Amount::Refund } else { Amount::Cost };
    Ok((size > 0).then(|| amount(size)))
}

/// The policy of `limit` units per `period` with a burst of `capacity` units.
pub(super) fn policy(limit: u64, period: Span, capacity: u64) -> Result<Policy, Error> {
    let policy =
        Quota::new(limit, period).and_then(|quota| Kind::Gcra.policy(quota)).ok_or_else(|| bad_period(Kind::Gcra))?;
    Ok(policy.with(PolicyOption::Burst(capacity)))
}

struct ClThrottle;

impl CommandHandler for ClThrottle {
    fn run(call: &Call<'_>) {
        run(call, parse(call));
    }
}

/// Executes a call of `CL.THROTTLE` or `GCRA`, and replies to it.
pub(super) fn run(call: &Call<'_>, args: Result<ThrottleArgs, Error>) {
    reply(call, args.and_then(|args| decide(call, args)), |row| call.reply_integers(&row));
}

fn decide(call: &Call<'_>, ThrottleArgs { policy, amount }: ThrottleArgs) -> Result<[i64; 5], Error> {
    let request = Request::now(amount.unwrap_or(Amount::Cost(1)));
    let Some(amount) = amount else {
        let key = ReadKey::open(call, KEY).ok_or(Error::InUse)?;
        return Ok(row(true, &Target::only(Kind::Gcra).peek(&key, &policy, request, now(call))?));
    };
    let Answered::Now(decision) = limit::decide(call, Kind::Gcra, &Rule::new(policy, request), None)? else {
        // A call without BLOCK never waits.
        return Err(Error::Unblocked);
    };
    // A refund is never a denial, even if there is nothing to give back.
    Ok(row(decision.granted > 0 || matches!(amount, Amount::Refund(_)), &decision))
}

/// The integers with which redis-cell replies to a call with this decision. Seconds are rounded up, so that a caller that waits for
/// them has waited long enough.
fn row(allowed: bool, decision: &Decision) -> [i64; 5] {
    let seconds = |span: Span| integer(span.as_us().div_ceil(1_000_000));
    let retry_after = match decision.wait {
        Wait::For(span) if !allowed => seconds(span),
        _ => -1,
    };
    [i64::from(!allowed), integer(decision.limit), integer(decision.remaining), retry_after, seconds(decision.reset)]
}
