//! The counters that `INFO rl` shows. Only the server's main thread changes them. Any thread may read them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limiter::Kind;

/// A counter.
pub struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds one. Because only one thread changes the counters, this needs no atomic addition, which takes longer.
    #[inline]
    pub fn increment(&self) {
        self.0.store(self.get().wrapping_add(1), Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The calls of an algorithm.
pub struct Calls {
    /// Those that were neither denied nor retries, also if they changed nothing.
    pub granted: Count,
    /// Those that were denied.
    pub denied: Count,
    /// Those of the denied that were answered as grants, because their policy is only tried.
    pub shadowed: Count,
    /// Those that were retries.
    pub retried: Count,
}

/// The calls of each algorithm, in the order of [`Kind::ALL`].
static CALLS: [Calls; Kind::ALL.len()] = [const { Calls::new() }; Kind::ALL.len()];

impl Calls {
    const fn new() -> Self {
        Self { granted: Count::new(), denied: Count::new(), shadowed: Count::new(), retried: Count::new() }
    }

    /// Granted, denied, shadowed and retried.
    pub fn all(&self) -> [&Count; 4] {
        [&self.granted, &self.denied, &self.shadowed, &self.retried]
    }
}

/// The calls of an algorithm.
#[inline(always)]
pub fn calls(kind: Kind) -> Option<&'static Calls> {
    CALLS.get(kind as usize)
}

/// The waits that have begun.
pub static WAITS: Count = Count::new();
/// The waits that ended with a denial: the deadline had passed, or `CLIENT UNBLOCK` ended the wait.
pub static TIMEOUTS: Count = Count::new();

/// The charges that `RL.SETTLE` has settled, and the leases that it has ended.
pub static SETTLED: Count = Count::new();
/// The charges and leases that `RL.RELEASE` has released.
pub static RELEASED: Count = Count::new();

/// The pauses that `RL.PAUSE` has set or lengthened.
pub static PAUSES: Count = Count::new();

/// The waits that ended without a decision: the client disconnected, or got an error, for example because the key had moved.
pub static ABANDONED: Count = Count::new();

/// Resets all counters: the module is being loaded.
pub fn reset() {
    let calls = CALLS.iter().flat_map(Calls::all);
    calls.chain([&SETTLED, &RELEASED, &PAUSES, &WAITS, &TIMEOUTS, &ABANDONED]).for_each(Count::reset);
}
