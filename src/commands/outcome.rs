//! The reply to a call, the statistics, and keyspace notifications.

use super::{stats, top, Error};
use crate::limiter::{Amount, Decision, Instant, Kind, Wait};
use crate::queue::Rules;
use crate::server::{Call, Server};

/// What a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It changed the key.
    Changed,
    /// It was not denied, but had nothing to change: for example, a refund when nothing is in use.
    Kept,
    /// It was denied.
    Denied,
    /// It was a retry: the key remembers a charge with its id, so nothing was charged.
    Retried,
}

impl Outcome {
    /// The outcome of a request for `amount`. `changed` is whether the request changed the key.
    #[inline(always)]
    pub(super) const fn of(amount: Amount, decision: &Decision, changed: bool) -> Self {
        if changed {
            Self::Changed
        } else if decision.retried {
            Self::Retried
        } else if decision.granted > 0 || matches!(amount, Amount::Refund(_)) {
            Self::Kept
        } else {
            Self::Denied
        }
    }
}

/// Updates the statistics and `RL.TOP`, and publishes a keyspace notification, after a limiter of this `kind` has decided a
/// request. The key must be closed, because subscribers may modify it.
///
/// `key` returns the database and the name of the key. It is called only if they are needed.
#[inline(always)]
pub(super) fn record_outcome<'k>(
    server: &Server<'_>,
    key: impl FnOnce() -> (i32, &'k [u8]),
    kind: Kind,
    outcome: Outcome,
    now: Instant,
) {
    stats::count_call(kind, outcome);
    let denied = outcome == Outcome::Denied;
    let notifies = server.notifications_enabled();
    if denied || notifies {
        let (db, name) = key();
        if denied {
            top::count_denial(server, db, name, now);
        }
        if notifies && (denied || outcome == Outcome::Changed) {
            notify(server, db, name, kind, denied);
        }
    }
}

/// Counts the decisions of a call that has waited, and publishes them.
pub(super) fn record_answer(server: &Server<'_>, db: i32, rules: &Rules, rows: &[Decision], now: Instant) {
    let granted = rows.iter().all(|row| row.granted > 0);
    if !granted {
        stats::TIMEOUTS.increment();
    }
    for (rule, row) in rules.iter().zip(rows) {
        // In a denied call, a rule that would have granted counts neither as granted nor as denied.
        if granted || row.granted == 0 {
            let outcome = Outcome::of(rule.amount, row, granted && !row.retried);
            record_outcome(server, || (db, &rule.key), rule.policy.kind(), outcome, now);
        }
    }
}

/// Publishes the keyspace notification for a change of a limiter's key, or for a denial.
pub(super) fn notify(server: &Server<'_>, db: i32, name: &[u8], kind: Kind, denied: bool) {
    let event = if denied { "rl.denied".into() } else { format!("rl.{}", kind.name().to_lowercase()) };
    server.notify(db, name, &event);
}

/// Reads the clock. A call does so once, and uses the result for all its decisions.
pub(super) fn now(server: &Server<'_>) -> Instant {
    Instant::from_us(server.now_us())
}

/// Converts a count to an integer of a reply.
pub(super) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The five integers of a decision: granted, limit, remaining, wait_ms, reset_ms.
pub(super) fn row(decision: &Decision) -> [i64; 5] {
    [
        integer(decision.granted),
        integer(decision.limit),
        integer(decision.remaining),
        wait_ms(decision.wait),
        integer(decision.reset.as_ms_ceil()),
    ]
}

/// A wait in milliseconds, rounded up; -1 for [`Wait::Never`].
pub(super) fn wait_ms(wait: Wait) -> i64 {
    match wait {
        Wait::For(span) => integer(span.as_ms_ceil()),
        Wait::Never => -1,
    }
}

/// Replies with the result of a command: calls `success` with a value, or replies with the text of an error.
pub(super) fn reply<T>(call: &Call<'_>, result: Result<T, Error>, success: impl FnOnce(T)) {
    match result {
        Ok(value) => success(value),
        Err(error) => call.reply_error(&error.to_string()),
    }
}
