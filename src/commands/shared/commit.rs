//! Decides a command's rule on its only key, and carries out the decision, or lets the client of the call wait.

use std::slice;

use super::error::Error;
use super::grammar::{Rule, KEY};
use super::outcome::{record_outcome, Outcome};
use super::reply::Answered;
use super::target::Decided;
use super::waiting::{self, Begun};
use crate::limiter::{Decision, Instant, Kind, Span, View, Wait};
use crate::queue::{denied, Waiters};
use crate::server::{Call, WriteKey};

/// Decides a rule on the state of a command's only key, and changes nothing. `waiters` says whether calls wait for the key. It
/// becomes [`Waiters::None`] if the waiting calls do not concern this call.
///
/// # Errors
/// If a lease can't be renewed with this cost, if the server has no memory for a new lease, or if the next state would not fit a
/// record.
pub fn decide(call: &Call<'_>, rule: &Rule<'_>, view: &View<'_>, waiters: &mut Waiters) -> Result<Decided, Box<Error>> {
    let request = rule.request;
    if let Some(held) = request.id.and_then(|id| view.held(id)) {
        rule.check_cost(held)?;
        // A retry or a renewal does not wait for other clients. It frees no units either, so no line need be served after it.
        *waiters = Waiters::None;
    } else if rule.renew {
        let present = view.peek(request)?;
        return Ok(Decided::unchanged(Decision { granted: 0, wait: Wait::Never, ..present }));
    } else if rule.policy.kind().spec().holds && rule.policy.limit() > 0 && call.is_out_of_memory() {
        return Err(Box::new(Error::OutOfMemory));
    } else if *waiters == Waiters::InLine && request.amount.takes_free_units() {
        return Ok(Decided::behind_line(view, request)?);
    }
    Ok(Decided::of(view, request)?)
}

/// Changes the key as `decided` says. If the call is refused and has the option BLOCK, blocks its client instead. `kind` is the
/// algorithm of the rule, and `waiters` says whether calls wait for the key.
///
/// # Errors
/// If the new value would be too long for the server, or if as many clients wait as `rl.max-waiters` allows.
#[inline(always)]
pub fn commit_or_wait(
    call: &Call<'_>,
    mut key: WriteKey<'_>,
    kind: Kind,
    rule: &Rule<'_>,
    decided: &Decided,
    waiters: Waiters,
    now: Instant,
) -> Result<Answered<Decision>, Box<Error>> {
    let (decision, changed) = if decided.is_behind_line || (rule.block.is_some() && decided.is_refused()) {
        match wait(call, &key, rule, decided.decision, now)? {
            Answered::Now(denial) => (denial, false),
            Answered::Later => return Ok(Answered::Later),
        }
    } else {
        decided.commit(&mut key)?;
        (decided.decision, decided.changes())
    };
    drop(key);
    finish(call, kind, rule, &decision, changed, waiters, now);
    Ok(Answered::Now(decision))
}

/// Counts and publishes the decision on a command's only key, which must be closed. `changed` is whether the key changed.
#[inline(always)]
pub fn finish(
    call: &Call<'_>,
    kind: Kind,
    rule: &Rule<'_>,
    decision: &Decision,
    changed: bool,
    waiters: Waiters,
    now: Instant,
) {
    if waiters != Waiters::None && changed {
        waiting::changed(call, KEY);
    }
    let name = || (call.db(), call.argument(KEY).unwrap_or_default());
    record_outcome(call, name, kind, Outcome::of(rule.request.amount, decision, changed), now);
}

/// Blocks the client of a call that was refused by `decision`. Returns the denial instead if the call has no option BLOCK, or if
/// [`waiting::begin`] denies the call.
///
/// # Errors
/// Those of [`waiting::begin`].
#[inline(never)]
pub fn wait(
    call: &Call<'_>,
    key: &WriteKey<'_>,
    rule: &Rule<'_>,
    decision: Decision,
    now: Instant,
) -> Result<Answered<Decision>, Box<Error>> {
    let waited = match rule.block {
        None => Span::ZERO,
        Some(timeout) => {
            let (keys, rules) = (slice::from_ref(key), slice::from_ref(rule));
            match waiting::begin(call, KEY, keys, rules, [decision].into_iter(), timeout, now)? {
                Begun::Waits => return Ok(Answered::Later),
                Begun::Denied(waited) => waited,
            }
        }
    };
    Ok(Answered::Now(denied(decision, waited)))
}
