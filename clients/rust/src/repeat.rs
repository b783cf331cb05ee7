//! Denials that are repeated in the process for a moment.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Decision, Source};

/// How many keys are remembered.
const KEYS: usize = 10_000;

/// The last denial of each key of a limit.
#[derive(Default)]
pub(crate) struct Repeats(Mutex<Denials>);

#[derive(Default)]
struct Denials {
    keys: HashMap<Vec<u8>, Denied>,
    /// When something was forgotten last: what was asked before is not remembered.
    forgotten: Option<Instant>,
}

struct Denied {
    cost: u64,
    asked: Instant,
    until: Instant,
    decision: Decision,
}

impl Repeats {
    /// Remembers a denial by the server, which was asked at this moment.
    pub(crate) fn remember(&self, key: &[u8], cost: u64, asked: Instant, longest: Duration, decision: &Decision) {
        let wait = decision.wait().filter(|_| !decision.allowed() && decision.source == Source::Server);
        let Some(until) = wait.and_then(|wait| asked.checked_add(wait.min(longest))) else { return };
        let Denials { keys, forgotten } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if forgotten.is_some_and(|forgotten| asked <= forgotten) {
            return;
        }
        if keys.len() >= KEYS {
            let now = Instant::now();
            keys.retain(|_, denied| denied.until > now);
        }
        if keys.len() < KEYS {
            keys.insert(key.to_vec(), Denied { cost, asked, until, decision: decision.clone() });
        }
    }

    /// The denial of a call with this cost, if it is still to be repeated.
    pub(crate) fn find(&self, key: &[u8], cost: u64) -> Option<Decision> {
        let denials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let denied = denials.keys.get(key).filter(|denied| denied.cost <= cost && now < denied.until)?;
        let passed = u64::try_from(now.duration_since(denied.asked).as_millis()).unwrap_or(u64::MAX);
        let left = |ms: u64| ms.saturating_sub(passed).max(1);
        let wait_ms = denied.decision.wait_ms.map(left);
        Some(Decision {
            wait_ms,
            reset_ms: left(denied.decision.reset_ms),
            source: Source::Repeated,
            ..denied.decision.clone()
        })
    }

    /// Units of this key were given back, or its state has changed otherwise.
    pub(crate) fn forget(&self, key: &[u8]) {
        let mut denials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        denials.keys.remove(key);
        denials.forgotten = Some(Instant::now());
    }
}
