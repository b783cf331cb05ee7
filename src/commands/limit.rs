//! `RL.FIXED`, `RL.SLIDE`, `RL.GCRA` and `RL.BUCKET`, which share their code.
//!
//! ```text
//! RL.<algorithm> key limit period [algorithm options] [COST n | UPTO n | FORCE n | REFUND n] [ID id] [RESERVE d | BLOCK d]
//! ```
//!
//! Replies with five integers: granted, limit, remaining, wait_ms, reset_ms. With BLOCK the reply may come later.

use std::ffi::CStr;

use super::help;
use super::shared::clock::now;
use super::shared::commit::{finish, wait};
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args, Cursor, Rule, KEY};
use super::shared::repeated::{self, LastDenial};
use super::shared::reply::{reply_decision, reply_now_or_later, Answered};
use super::shared::target::{commit, Target};
use super::shared::waiting;
use crate::limiter::{Bytes, Change, Decision, Kind};
use crate::queue::Waiters;
use crate::server::{random_seed, run_command, Argument, Call, Command, CommandHandler, KeySpec, WriteKey};

pub(super) const FIXED: Command = command::<{ Kind::Fixed as usize }>(
    c"rl.fixed",
    "RL.FIXED downloads:42 100 1h",
    c"Takes units from a fixed window.",
    c"O(1); with BLOCK, O(log(N)) with N the waiting clients",
);
pub(super) const SLIDE: Command = command::<{ Kind::Slide as usize }>(
    c"rl.slide",
    "RL.SLIDE tokens:42 100000 1m COST 1200 BLOCK 90",
    c"Takes units from a sliding window.",
    c"O(log(N)) with N the grants in the window, amortized; O(N) for a grant that changes the log's period or tick; with BLOCK, N also counts the waiting clients",
);
pub(super) const GCRA: Command = command::<{ Kind::Gcra as usize }>(
    c"rl.gcra",
    "RL.GCRA user:42 10 60 BURST 20",
    c"Takes units by the generic cell rate algorithm: evenly spaced, after a burst.",
    c"O(1); with BLOCK, O(log(N)) with N the waiting clients",
);
pub(super) const BUCKET: Command = command::<{ Kind::Bucket as usize }>(
    c"rl.bucket",
    "RL.BUCKET uploads:42 10 1s CAPACITY 100 UPTO 50",
    c"Takes tokens from a bucket that refills with time.",
    c"O(1); with BLOCK, O(log(N)) with N the waiting clients",
);

const fn command<const KIND: usize>(
    name: &'static CStr,
    example: &'static str,
    summary: &'static CStr,
    complexity: &'static CStr,
) -> Command {
    Command {
        name,
        callback: run_command::<Limit<KIND>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: KeySpec::ReadWrite(1),
        summary,
        complexity,
        arguments: || arguments(Kind::ALL[KIND]),
        reply: help::FIVE_INTEGERS,
        example,
    }
}

fn arguments(kind: Kind) -> Vec<Argument> {
    let rule = grammar::rule_arguments(kind, CommandName::Limit(kind));
    [grammar::key_argument()].into_iter().chain(rule).collect()
}

/// The handler for `Kind::ALL[KIND]`. Each algorithm needs its own callback, because the server passes no data to callbacks.
struct Limit<const KIND: usize>;

impl<const KIND: usize> CommandHandler for Limit<KIND> {
    fn run(call: &Call<'_>) {
        reply_now_or_later(call, run::<KIND>(call), |decision| reply_decision(call, &decision));
    }
}

#[inline(always)]
fn run<const KIND: usize>(call: &Call<'_>) -> Result<Answered<Decision>, Box<Error>> {
    let kind = Kind::ALL[KIND];
    let plain = repeated::plain(call, kind, |last| {
        let (rule, last_denial) = last?;
        decide(call, kind, rule, Some(last_denial))
    });
    match plain {
        Some(decided) => decided,
        None => run_with_options::<KIND>(call),
    }
}

/// There is one function for each algorithm, because each algorithm decides by its own code.
#[inline(never)]
fn run_with_options<const KIND: usize>(call: &Call<'_>) -> Result<Answered<Decision>, Box<Error>> {
    let kind = Kind::ALL[KIND];
    match parse(kind, call) {
        // The rule is borrowed, because copying it would take a good part of the time that a decision takes.
        Ok(ref rule) => decide(call, kind, rule, None),
        Err(error) => Err(error),
    }
}

/// Parses the arguments.
///
/// # Errors
/// If an argument is malformed. The error is about the first such argument.
#[inline(always)]
pub fn parse<A: Args + ?Sized>(kind: Kind, args: &A) -> Result<Rule<'_>, Box<Error>> {
    grammar::rule(kind, CommandName::Limit(kind), &mut Cursor::new(args, 2))
}

/// Decides `rule`, whose algorithm is `kind`, for the key that argument 1 names. `last_denial` is the last denial of this rule, if
/// the rule has no options.
#[inline(always)]
pub(super) fn decide(
    call: &Call<'_>,
    kind: Kind,
    rule: &Rule<'_>,
    last_denial: Option<&mut LastDenial>,
) -> Result<Answered<Decision>, Box<Error>> {
    let mut key = WriteKey::open(call, KEY).ok_or(Error::InUse)?;
    let target = Target::only(kind);
    let now = now(call);
    let waiters = waiting::waiters(call, KEY);
    let in_line = waiters == Waiters::InLine;
    let repeated = match last_denial.as_ref().and_then(|last| last.get()) {
        Some(denial) if !in_line => target.stored(&key)?.and_then(|record| denial.repeated(record, now)),
        _ => None,
    };
    // Most calls take this path. It does the same as `Target::view` and `commit_or_wait`, which RL.LEASE uses. But these two
    // functions copy the decision, and a copy takes a good part of the time that a decision takes.
    let (decision, changed) = if let Some(denial) = repeated {
        (denial, false)
    } else {
        let record = target.stored(&key)?;
        let view = rule.policy.view(record, now);
        let view = target.loaded(&view, &rule.policy, now)?;
        let request = rule.request;
        // A call that repeats a charge takes nothing, so it need not wait for its turn.
        let is_retry = || request.id.is_some_and(|id| view.held(id).is_some());
        if in_line && request.amount.takes_free_units() && !is_retry() {
            let present = view.peek(request)?;
            match wait(call, &key, rule, present, now)? {
                Answered::Now(denial) => (denial, false),
                Answered::Later => return Ok(Answered::Later),
            }
        } else {
            let (decision, next) = view.decide(request)?;
            if let Some(last) = last_denial {
                last.note(view, record, &decision);
            }
            if rule.block.is_some() && decision.granted == 0 {
                match wait(call, &key, rule, decision, now)? {
                    Answered::Now(denial) => (denial, false),
                    Answered::Later => return Ok(Answered::Later),
                }
            } else {
                let mut bytes = Bytes::default();
                let change = view.store(&next, random_seed, &mut bytes);
                commit(&mut key, &change, &bytes)?;
                (decision, change != Change::Keep)
            }
        }
    };
    drop(key);
    finish(call, kind, rule, &decision, changed, waiters, now);
    Ok(Answered::Now(decision))
}
