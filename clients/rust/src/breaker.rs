//! Remembers that a server is down, so that calls need not find out one by one.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Error;

/// How long after a failure the server is asked again; twice as long after each further one.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Opens when a call finds no connection, or gets no reply in time. While it is open, one call at a time asks the server. The first
/// success closes it.
#[derive(Default)]
pub(crate) struct Breaker {
    /// Whether `state` has a failure.
    open: AtomicBool,
    /// How many calls were answered.
    successes: AtomicU64,
    state: Mutex<Option<Down>>,
}

/// What is known of a server that is down.
struct Down {
    error: Error,
    /// The pause after the next failure.
    pause: Duration,
    /// When the server is asked again.
    until: Instant,
    /// A call asks it now.
    probed: bool,
}

/// A call that may be made. Unless it says how it ended, it says nothing about the server.
pub(crate) struct Attempt<'a> {
    breaker: &'a Breaker,
    /// The calls that were answered before.
    successes: u64,
    /// It is the only one.
    probe: bool,
}

impl Breaker {
    fn state(&self) -> MutexGuard<'_, Option<Down>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The last failure, and when a call may be made again.
    pub(crate) fn down(&self) -> Option<(Error, Duration)> {
        let state = self.state();
        let down = state.as_ref()?;
        Some((down.error.clone(), down.until.saturating_duration_since(Instant::now()).max(FIRST / 10)))
    }

    /// Whether a call may be made; if not, why, and when one may be made. A call that is forced is always made.
    pub(crate) fn attempt(&self, forced: bool) -> Result<Attempt<'_>, (Error, Duration)> {
        let mut attempt = Attempt { breaker: self, successes: self.successes.load(Ordering::Acquire), probe: false };
        if self.is_open() && !forced {
            if let Some(down) = &mut *self.state() {
                let now = Instant::now();
                if down.probed || now < down.until {
                    return Err((down.error.clone(), down.until.saturating_duration_since(now).max(FIRST / 10)));
                }
                down.probed = true;
                attempt.probe = true;
            }
        }
        Ok(attempt)
    }
}

impl Attempt<'_> {
    /// The server has answered.
    pub(crate) fn up(self) {
        self.breaker.successes.fetch_add(1, Ordering::AcqRel);
        if self.breaker.is_open() {
            *self.breaker.state() = None;
            self.breaker.open.store(false, Ordering::Release);
        }
    }

    /// There is no connection, or no reply came in time.
    pub(crate) fn down(self, error: &Error) {
        let mut state = self.breaker.state();
        // Another call was answered meanwhile: this one has met something else.
        if self.breaker.successes.load(Ordering::Acquire) != self.successes {
            return;
        }
        let now = Instant::now();
        match &mut *state {
            Some(down) if self.probe => {
                down.until = now + jittered(down.pause);
                down.pause = (down.pause * 2).min(LONGEST);
                down.error = error.clone();
            }
            Some(_) => {}
            None => {
                let until = now + jittered(FIRST);
                *state = Some(Down { error: error.clone(), pause: FIRST * 2, until, probed: false });
                self.breaker.open.store(true, Ordering::Release);
            }
        }
        drop(state);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.probe {
            if let Some(down) = &mut *self.breaker.state() {
                down.probed = false;
            }
        }
    }
}

/// Three quarters of a pause up to all of it, so that processes do not ask at the same moment.
fn jittered(pause: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or_default();
    pause.mul_f64(0.75 + 0.25 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
#[path = "../tests/unit/breaker.rs"]
mod tests;
