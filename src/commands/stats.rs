//! What the commands have come to, for `INFO rl`. Only the server's main thread counts; anyone may read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limiter::Kind;

/// A number that goes up.
pub(super) struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// One more. Nobody else counts meanwhile, which saves a locked instruction in each call.
    #[inline]
    pub(super) fn up(&self) {
        self.0.store(self.get().wrapping_add(1), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The calls of an algorithm, by what became of them.
struct Calls {
    granted: Count,
    denied: Count,
}

/// In the order of [`Kind::ALL`].
static CALLS: [Calls; Kind::ALL.len()] = [const { Calls { granted: Count::new(), denied: Count::new() } }; Kind::ALL.len()];

/// The clients that have waited.
pub(super) static WAITS: Count = Count::new();
/// Those of them whose time was over before their turn came.
pub(super) static TIMEOUTS: Count = Count::new();

/// Those of them whose wait ended without a decision: the client has gone, or is sent elsewhere.
pub(super) static ABANDONED: Count = Count::new();

/// Begins anew, as the module is loaded.
pub(super) fn start() {
    CALLS
        .iter()
        .flat_map(|calls| [&calls.granted, &calls.denied])
        .chain([&WAITS, &TIMEOUTS, &ABANDONED])
        .for_each(Count::reset);
}

/// Counts a call.
#[inline]
pub(super) fn call(kind: Kind, denied: bool) {
    if let Some(calls) = CALLS.get(kind as usize) {
        if denied { &calls.denied } else { &calls.granted }.up();
    }
}

/// All there is to tell, with `waiting` the clients that wait now.
pub(super) fn facts(waiting: u64) -> Vec<(String, u64)> {
    let mut facts = Vec::new();
    for (kind, calls) in Kind::ALL.iter().zip(&CALLS) {
        let (name, granted, denied) = (kind.name().to_lowercase(), calls.granted.get(), calls.denied.get());
        let counts = [("calls", granted.wrapping_add(denied)), ("granted", granted), ("denied", denied)];
        facts.extend(counts.map(|(what, count)| (format!("{name}_{what}"), count)));
    }
    let waits = [
        ("waiting_clients", waiting),
        ("waits", WAITS.get()),
        ("wait_timeouts", TIMEOUTS.get()),
        ("waits_abandoned", ABANDONED.get()),
    ];
    facts.extend(waits.map(|(what, count)| (what.into(), count)));
    facts
}
