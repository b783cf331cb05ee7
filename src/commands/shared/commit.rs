//! Carries out the decision on a command's only key, or lets the client of the call wait.

use super::error::Error;
use super::grammar::{Rule, KEY};
use super::outcome::{record_outcome, Outcome};
use super::reply::Answered;
use super::target::Decided;
use super::waiting::{self, Begun};
use crate::limiter::{Decision, Instant, Kind, Span};
use crate::queue::{denied, Waiters};
use crate::server::{Call, WriteKey};

/// Changes the key as it was decided. If the call is refused and has the option BLOCK, blocks its client instead. `kind` is the
/// algorithm of the rule, and `waiters` is what the waiting calls mean for the key.
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
        match wait(call, &key, rule, decided, now)? {
            Answered::Now(denial) => (denial, false),
            Answered::Later => return Ok(Answered::Later),
        }
    } else {
        decided.commit(&mut key)?;
        (decided.decision, decided.changes())
    };
    drop(key);
    if waiters != Waiters::None && changed {
        waiting::changed(call, KEY);
    }
    let name = || (call.db(), call.argument(KEY).unwrap_or_default());
    record_outcome(call, name, kind, Outcome::of(rule.request.amount, &decision, changed), now);
    Ok(Answered::Now(decision))
}

/// Blocks the client of a refused call. Returns the denial instead if the call has no option BLOCK, or as [`waiting::begin`] says.
#[inline(never)]
fn wait(
    call: &Call<'_>,
    key: &WriteKey<'_>,
    rule: &Rule<'_>,
    decided: &Decided,
    now: Instant,
) -> Result<Answered<Decision>, Box<Error>> {
    let waited = match rule.block {
        None => Span::ZERO,
        Some(timeout) => {
            let (keys, rules, decided) =
                (std::slice::from_ref(key), std::slice::from_ref(rule), std::slice::from_ref(decided));
            match waiting::begin(call, KEY, keys, rules, decided, timeout, now)? {
                Begun::Waits => return Ok(Answered::Later),
                Begun::Denied(waited) => waited,
            }
        }
    };
    Ok(Answered::Now(denied(decided.decision, waited)))
}
