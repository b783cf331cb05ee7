//! What a call did: counts it in the statistics and in the table of `RL.TOP`, and publishes it as a keyspace notification.

use super::{denials, stats};
use crate::limiter::{Amount, Decision, Instant, Kind};
use crate::server::Server;

/// What a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It changed the key.
    Changed,
    /// It was not denied, but had nothing to change: for example, a refund when nothing is in use.
    Kept,
    /// It was denied.
    Denied,
    /// It was denied, but its policy is only tried, so it was answered as a grant.
    Shadowed,
    /// It was a retry: the key remembers a charge with its id, so nothing was charged.
    Retried,
}

impl Outcome {
    /// The outcome of a request for `amount`. `changed` is whether the request changed the key.
    #[inline(always)]
    pub const fn of(amount: Amount, decision: &Decision, changed: bool) -> Self {
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
pub fn record_outcome<'k>(
    server: &Server<'_>,
    key: impl FnOnce() -> (i32, &'k [u8]),
    kind: Kind,
    outcome: Outcome,
    now: Instant,
) {
    if let Some(calls) = stats::calls(kind) {
        let count = match outcome {
            Outcome::Changed | Outcome::Kept => &calls.granted,
            Outcome::Denied => &calls.denied,
            Outcome::Shadowed => {
                calls.shadowed.increment();
                &calls.denied
            }
            Outcome::Retried => &calls.retried,
        };
        count.increment();
    }
    let denied = matches!(outcome, Outcome::Denied | Outcome::Shadowed);
    let notifies = server.notifications_enabled();
    if denied || notifies {
        let (db, name) = key();
        if denied {
            denials::count_denial(server, db, name, now);
        }
        if notifies && (denied || outcome == Outcome::Changed) {
            notify(server, db, name, kind, outcome);
        }
    }
}

/// Publishes the keyspace notification for a change of a limiter's key, or for a denial.
pub fn notify(server: &Server<'_>, db: i32, name: &[u8], kind: Kind, outcome: Outcome) {
    let event = match outcome {
        Outcome::Denied => "rl.denied".into(),
        Outcome::Shadowed => "rl.shadow".into(),
        _ => format!("rl.{}", kind.name().to_lowercase()),
    };
    server.notify(db, name, &event);
}
