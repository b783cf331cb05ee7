//! Remembers that a server is down, so that calls need not find out one by one.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Error;

/// How long after a failure the server is asked again; twice as long after each further one.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Opens when a call finds no connection, or gets no reply in time. While it is open, one call at a time asks the server. The first
/// success closes it.
#[derive(Default)]
pub(crate) struct Breaker(Mutex<State>);

#[derive(Default)]
struct State {
    /// How many calls were answered.
    answered: u64,
    down: Option<Down>,
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

impl Down {
    /// The last failure, and when a call may be made again.
    fn why(&self) -> (Error, Duration) {
        (self.error.clone().with_sent(false), self.until.saturating_duration_since(Instant::now()).max(FIRST / 10))
    }
}

/// A call that may be made. Unless it says how it ended, it says nothing about the server.
pub(crate) struct Attempt<'a> {
    breaker: &'a Breaker,
    /// The calls that were answered before.
    answered: u64,
    /// The server was down before.
    pub(crate) was_down: bool,
    /// It is the only one.
    probe: bool,
}

impl Breaker {
    /// The last failure, and when a call may be made again.
    pub(crate) fn down(&self) -> Option<(Error, Duration)> {
        self.0.lock().down.as_ref().map(Down::why)
    }

    /// Whether a call may be made; if not, why, and when one may be made. A call that is forced is always made.
    pub(crate) fn attempt(&self, forced: bool) -> Result<Attempt<'_>, (Error, Duration)> {
        let mut state = self.0.lock();
        let (answered, was_down, mut probe) = (state.answered, state.down.is_some(), false);
        if let Some(down) = state.down.as_mut().filter(|_| !forced) {
            if down.probed || Instant::now() < down.until {
                return Err(down.why());
            }
            (down.probed, probe) = (true, true);
        }
        Ok(Attempt { breaker: self, answered, was_down, probe })
    }
}

impl Attempt<'_> {
    /// The server has answered.
    pub(crate) fn up(self) {
        let mut state = self.breaker.0.lock();
        *state = State { answered: state.answered + 1, down: None };
    }

    /// There is no connection, or no reply came in time.
    pub(crate) fn down(self, error: &Error) {
        let mut state = self.breaker.0.lock();
        let (error, now) = (error.clone(), Instant::now());
        state.down = match state.down.take() {
            // Another call was answered meanwhile: this one has met something else.
            down if state.answered != self.answered => down,
            None => Some(Down { error, pause: FIRST * 2, until: now + jittered(FIRST), probed: false }),
            Some(Down { pause, .. }) if self.probe => {
                Some(Down { error, pause: (pause * 2).min(LONGEST), until: now + jittered(pause), probed: false })
            }
            down => down,
        };
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(down) = self.breaker.0.lock().down.as_mut().filter(|_| self.probe) {
            down.probed = false;
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
