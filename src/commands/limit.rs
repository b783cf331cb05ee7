//! `RL.FIXED`, `RL.SLIDE`, `RL.GCRA` and `RL.BUCKET`, which share their code.
//!
//! ```text
//! RL.<algorithm> key limit period [algorithm options] [COST n | UPTO n | FORCE n | REFUND n] [ID id] [RESERVE d | BLOCK d]
//! ```
//!
//! Replies with five integers: granted, limit, remaining, wait_ms, reset_ms. With BLOCK the reply may come later.

use std::ffi::CStr;

use super::{grammar, help, now, record_outcome, repeated, reply, row, waiting};
use super::{Args, CommandName, Cursor, Error, Outcome, Rule, Target};
use crate::limiter::{Decision, Kind, LastingDenial, View};
use crate::queue::Waiters;
use crate::server::{run_command, Argument, Call, Command, CommandHandler, KeySpec, WriteKey};

pub(super) const FIXED: Command = command::<{ Kind::Fixed as usize }>(
    c"rl.fixed",
    "RL.FIXED user:42 100 1h",
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
    "RL.BUCKET user:42 10 1s CAPACITY 100 UPTO 50",
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
        match run::<KIND>(call) {
            // The client is blocked. `waiting` replies to it later.
            Ok(None) => {}
            Ok(Some(decision)) => reply(call, Ok(decision), |decision| call.reply_integers(&row(&decision))),
            Err(error) => reply(call, Err(*error), |()| {}),
        }
    }
}

#[inline(always)]
fn run<const KIND: usize>(call: &Call<'_>) -> Result<Option<Decision>, Box<Error>> {
    let kind = Kind::ALL[KIND];
    match repeated::plain(call, kind, |rule, denial| decide(call, kind, rule, Some(denial))) {
        Some(decided) => decided,
        None => run_with_options::<KIND>(call),
    }
}

/// One function for each algorithm, as each of them decides by code of its own.
#[inline(never)]
fn run_with_options<const KIND: usize>(call: &Call<'_>) -> Result<Option<Decision>, Box<Error>> {
    let kind = Kind::ALL[KIND];
    match parse(kind, call) {
        // The rule is used in its place, because a copy takes as long as a part of the decision.
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

/// Decides `rule`, whose algorithm is `kind`, for the key that argument 1 names; `None` if the client was blocked. `last_denial` is the
/// place of the last denial of this rule, if the rule has no options.
#[inline(always)]
pub(super) fn decide(
    call: &Call<'_>,
    kind: Kind,
    rule: &Rule<'_>,
    last_denial: Option<&mut Option<LastingDenial>>,
) -> Result<Option<Decision>, Box<Error>> {
    let mut key = WriteKey::open(call, 1).ok_or(Error::InUse)?;
    let target = Target::only(kind);
    let amount = rule.request.amount;
    let now = now(call);
    let waiters = waiting::waiters(call, 1);
    let repeated = match &last_denial {
        Some(Some(denial)) if waiters != Waiters::InLine => {
            target.stored(&key)?.and_then(|record| denial.repeated(record, now))
        }
        _ => None,
    };
    let decided = if let Some(denial) = repeated {
        Some((denial, false))
    } else if waiters == Waiters::InLine && amount.takes_free_units() && target.held(&key, rule, now)?.is_none() {
        None
    } else {
        let mut lasting = None;
        let accept = |view: &View<'_>, record: Option<&[u8]>, decision: &Decision| {
            if last_denial.is_some() {
                lasting = record.and_then(|record| view.lasting_denial(record, decision));
            }
            decision.granted > 0 || rule.block.is_none()
        };
        let charged = target.charge(&mut key, rule, now, accept)?;
        // A denial that does not hold any more does no harm: see `LastingDenial::repeated`.
        if let (Some(last_denial), Some(lasting)) = (last_denial, lasting) {
            *last_denial = Some(lasting);
        }
        charged
    };
    let Some((decision, changed)) = waiting::decided_or_blocked(call, &key, rule, now, decided)? else { return Ok(None) };
    drop(key);
    if waiters != Waiters::None && changed {
        waiting::changed(call, 1);
    }
    record_outcome(call, || call.key(1), kind, Outcome::of(amount, &decision, changed), now);
    Ok(Some(decision))
}
