//! The counters that `INFO rl` shows. Only the server's main thread changes them. Any thread may read them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::waiting::waiting_clients;
use super::Outcome;
use crate::limiter::Kind;
use crate::server::shortcuts_are_in_use;

/// A counter.
pub(super) struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds one. Because only one thread changes the counters, this needs no atomic addition, which takes longer.
    #[inline]
    pub(super) fn increment(&self) {
        self.0.store(self.get().wrapping_add(1), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The granted, the denied and the retried calls of each algorithm, in the order of [`Kind::ALL`].
static CALLS: [[Count; 3]; Kind::ALL.len()] = [const { [Count::new(), Count::new(), Count::new()] }; Kind::ALL.len()];

/// The waits that have begun.
pub(super) static WAITS: Count = Count::new();
/// The waits that ended with a denial: the deadline had passed, or `CLIENT UNBLOCK` ended the wait.
pub(super) static TIMEOUTS: Count = Count::new();

/// The charges that `RL.SETTLE` has settled.
pub(super) static SETTLED: Count = Count::new();
/// The charges and leases that `RL.RELEASE` has released.
pub(super) static RELEASED: Count = Count::new();

/// The waits that ended without a decision: the client disconnected, or got an error, for example because the key had moved.
pub(super) static ABANDONED: Count = Count::new();

/// Resets all counters: the module is being loaded.
pub(super) fn reset() {
    CALLS.as_flattened().iter().chain([&SETTLED, &RELEASED, &WAITS, &TIMEOUTS, &ABANDONED]).for_each(Count::reset);
}

/// Counts a call of an algorithm. A call that changed nothing, but was not denied, counts as granted.
#[inline]
pub(super) fn count_call(kind: Kind, outcome: Outcome) {
    if let Some([granted, denied, retried]) = CALLS.get(kind as usize) {
        let count = match outcome {
            Outcome::Changed | Outcome::Kept => granted,
            Outcome::Denied => denied,
            Outcome::Retried => retried,
        };
        count.increment();
    }
}

/// The fields of `INFO rl`, by name.
pub(crate) fn info_fields() -> Vec<(String, u64)> {
    let mut fields = Vec::new();
    let mut all_retried = 0_u64;
    for (kind, [granted, denied, retried]) in Kind::ALL.iter().zip(&CALLS) {
        let (name, granted, denied, retried) = (kind.name().to_lowercase(), granted.get(), denied.get(), retried.get());
        all_retried = all_retried.wrapping_add(retried);
        let calls = granted.wrapping_add(denied).wrapping_add(retried);
        let counts = [("calls", calls), ("granted", granted), ("denied", denied)];
        fields.extend(counts.map(|(what, count)| (format!("{name}_{what}"), count)));
    }
    let totals = [
        ("settled", SETTLED.get()),
        ("released", RELEASED.get()),
        ("retried", all_retried),
        ("waiting_clients", waiting_clients()),
        ("waits", WAITS.get()),
        ("wait_timeouts", TIMEOUTS.get()),
        ("waits_abandoned", ABANDONED.get()),
        ("shortcuts", shortcuts_are_in_use().into()),
    ];
    fields.extend(totals.map(|(what, count)| (what.into(), count)));
    fields
}
