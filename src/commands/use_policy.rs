//! `RL.USE`: a limiter whose rule stands in a policy key.
//!
//! ```text
//! RL.USE key numpolicies policy [policy ...] [COST n | UPTO n | FORCE n | REFUND n] [ID id] [RENEW] [RESERVE d | BLOCK d]
//! ```
//!
//! Replies as the command of the policy's algorithm does: with five integers, with BLOCK perhaps later.

use super::help;
use super::limit;
use super::shared::clock::now;
use super::shared::commit::{commit_or_wait, decide};
use super::shared::error::{Error, Holds};
use super::shared::grammar::{self, Args, Cursor, Rule, KEY};
use super::shared::numbers::count;
use super::shared::outcome::{record_outcome, Outcome};
use super::shared::policies::with_policy;
use super::shared::repeated::LastDenial;
use super::shared::reply::{reply_decision, reply_now_or_later, Answered};
use super::shared::target::Target;
use super::shared::waiting;
use crate::limiter::{Amount, Decision, Kind, RecordError, Wait};
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec, WriteKey};

/// The command has no flag `deny-oom`, because a lease can be renewed when the server is out of memory. In that case the handler
/// itself refuses all that the command of the policy's algorithm would refuse.
pub(super) const COMMAND: Command = Command {
    name: c"rl.use",
    callback: run_command::<Use>,
    arity: -4,
    flags: c"write fast getkeys-api",
    keys: KeySpec::ReadWriteAndCountedReadOnly(KEY as i32, NUMBER as i32),
    summary: c"Takes units by the rule in the first of these policy keys that exists.",
    complexity: c"O(N) with N the policy keys, plus the complexity of the command of the policy's algorithm",
    arguments,
    reply: help::FIVE_INTEGERS,
    example: "RL.USE api:user:42 2 policy:user:42 policy:api",
};

/// The index of the number of policy keys.
const NUMBER: usize = 2;
/// The index of the first policy key.
const FIRST_POLICY: usize = 3;
/// The most policy keys.
const MAX_POLICIES: u64 = 16;

fn arguments() -> Vec<Argument> {
    let mut arguments = vec![
        grammar::key_argument(),
        Argument::new("numpolicies", ArgumentKind::Integer),
        Argument::new("policy", ArgumentKind::Key).multiple(),
    ];
    arguments.extend(grammar::use_arguments());
    arguments
}

/// Parses the number of policy keys.
///
/// # Errors
/// If the number is missing or out of range, or if fewer arguments follow than the number says.
pub fn parse_numpolicies<A: Args + ?Sized>(args: &A) -> Result<usize, Error> {
    let number = count(args.arg(NUMBER).unwrap_or_default(), "numpolicies", 1, MAX_POLICIES)?;
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    args.arg(FIRST_POLICY + number - 1).map(|_| number).ok_or(Error::FewPolicies)
}

/// Parses what follows the policy keys, of which there are `policies`. `named` is the rule that the policy states.
///
/// # Errors
/// If an argument is malformed, if the algorithm does not take an argument, or if a lease has no id.
pub fn parse<'a, A: Args + ?Sized>(args: &'a A, policies: usize, named: &Rule<'_>) -> Result<Rule<'a>, Box<Error>> {
    let rule = grammar::use_of(named, &mut Cursor::new(args, FIRST_POLICY + policies))?;
    if rule.policy.kind().spec().holds && rule.request.id.is_none() {
        return Err(Box::new(Error::NoId));
    }
    Ok(rule)
}

struct Use;

impl CommandHandler for Use {
    fn run(call: &Call<'_>) {
        if call.asks_for_keys() {
            // A malformed number of keys counts as none here. The call itself will reply with the error.
            let policies = parse_numpolicies(call).unwrap_or(0);
            call.key_at(KEY, false);
            return (FIRST_POLICY..FIRST_POLICY + policies).for_each(|index| call.key_at(index, true));
        }
        reply_now_or_later(call, run(call), |decision| reply_decision(call, &decision));
    }
}

fn run(call: &Call<'_>) -> Result<Answered<Decision>, Box<Error>> {
    let policies = parse_numpolicies(call)?;
    let words = FIRST_POLICY + policies;
    with_policy(call, FIRST_POLICY..words, |named, last_denial| {
        let kind = named.policy.kind();
        if !kind.spec().holds && call.is_out_of_memory() {
            return Err(Box::new(Error::OutOfMemory));
        }
        if call.count() == words && !kind.spec().holds {
            return take(call, kind, named, Some(last_denial));
        }
        take(call, kind, &parse(call, policies, named)?, None)
    })
}

/// Takes units by a rule, whose algorithm is `kind`. `last_denial` is the last denial of this rule, if the call states nothing but
/// the policy.
#[inline(always)]
fn take(
    call: &Call<'_>,
    kind: Kind,
    rule: &Rule<'_>,
    last_denial: Option<&mut LastDenial>,
) -> Result<Answered<Decision>, Box<Error>> {
    if kind.spec().holds || rule.shadow {
        return take_any(call, kind, rule);
    }
    match limit::decide(call, kind, rule, last_denial) {
        Err(error) if holds_other_algorithm(&error) => take_any(call, kind, rule),
        answered => answered,
    }
}

fn holds_other_algorithm(error: &Error) -> bool {
    matches!(error, Error::WrongType { holds: Holds::String(RecordError::OtherAlgorithm(_)), .. })
}

/// As [`take`], also for a lease, under SHADOW, and if the key holds the record of another algorithm.
#[inline(never)]
fn take_any(call: &Call<'_>, kind: Kind, rule: &Rule<'_>) -> Result<Answered<Decision>, Box<Error>> {
    // Nobody waits under SHADOW.
    let rule = &Rule { block: rule.block.filter(|_| !rule.shadow), ..*rule };
    let key = WriteKey::open(call, KEY).ok_or(Error::InUse)?;
    let now = now(call);
    let mut waiters = waiting::waiters(call, KEY);
    let target = Target::only(kind);
    let stored = target.stored(&key)?;
    let carried = rule.policy.carried(stored, now);
    let view = rule.policy.view(carried.value(), now);
    let view = target.loaded(&view, &rule.policy, now)?;
    let decided = decide(call, rule, view, &mut waiters)?.carried(&rule.policy, rule.request, stored, &carried, now);
    let amount = rule.request.amount;
    if rule.shadow && decided.is_refused() && !matches!(amount, Amount::Refund(_)) {
        drop(key);
        let name = || (call.db(), call.argument(KEY).unwrap_or_default());
        record_outcome(call, name, kind, Outcome::Shadowed, now);
        return Ok(Answered::Now(shadowed(decided.decision, amount)));
    }
    Ok(match commit_or_wait(call, key, kind, rule, &decided, waiters, now)? {
        Answered::Now(decision) if rule.shadow => Answered::Now(shadowed(decision, amount)),
        answered => answered,
    })
}

/// The answer to a caller that must not notice the policy, which is only tried.
fn shadowed(decision: Decision, amount: Amount) -> Decision {
    let granted = match amount {
        Amount::Cost(units) | Amount::UpTo(units) | Amount::Force(units) => decision.granted.max(units),
        Amount::Refund(_) => decision.granted,
    };
    Decision { granted, wait: Wait::NONE, ..decision }
}
