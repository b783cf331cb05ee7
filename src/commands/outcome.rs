//! What follows a decision: the reply, the statistics, and keyspace notifications.

use super::error::Error;
use super::{stats, top};
use crate::limiter::{Amount, Decision, Instant, Kind, Wait};
use crate::server::{Call, Server};

/// Updates the statistics, `RL.TOP` and keyspace notifications after a call that asked a limiter of this `kind` for an `amount`.
/// The key must be closed: subscribers may modify it.
///
/// `key` returns the database and the name; it is called only if they are needed.
#[inline(always)]
pub(super) fn record_outcome<'k>(
    server: &Server<'_>,
    key: impl FnOnce() -> (i32, &'k [u8]),
    kind: Kind,
    amount: Amount,
    changed: bool,
    now: Instant,
) {
    // A grant changes the key. A refund may find nothing to give back, but that is no denial.
    let denied = !changed && !matches!(amount, Amount::Refund(_));
    stats::count_call(kind, denied);
    let notifies = server.notifications_enabled();
    if denied || notifies {
        let (db, name) = key();
        if denied {
            top::count_denial(db, name, now);
        }
        if notifies && (denied || changed) {
            let event = if denied { "rl.denied".into() } else { format!("rl.{}", kind.name().to_lowercase()) };
            server.notify(db, name, &event);
        }
    }
}

/// The time of a call: it is read once for all that the call decides.
pub(super) fn now(server: &Server<'_>) -> Instant {
    Instant::from_us(server.now_us())
}

/// A count as a reply's integer.
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

/// Milliseconds, rounded up; -1 for never.
pub(super) fn wait_ms(wait: Wait) -> i64 {
    match wait {
        Wait::For(span) => integer(span.as_ms_ceil()),
        Wait::Never => -1,
    }
}

/// Replies the result of a command: a value by `success`, an error by its text.
pub(super) fn reply<T>(call: &Call<'_>, result: Result<T, Error>, success: impl FnOnce(T)) {
    match result {
        Ok(value) => success(value),
        Err(error) => call.reply_error(&error.to_string()),
    }
}
