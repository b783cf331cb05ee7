//! Denials that are repeated in the process for a moment.

use std::future::Future;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::local::bounded;
use crate::{Decision, Error, Source};

/// The last denial of each key of a limit.
pub(crate) struct Repeats {
    /// How long each is repeated at most.
    longest: Duration,
    denials: Mutex<LruCache<Vec<u8>, Denied>>,
    /// When something was forgotten last: what was asked before is not remembered.
    forgotten: Mutex<Option<Instant>>,
}

struct Denied {
    cost: u64,
    asked: Instant,
    until: Instant,
    decision: Decision,
}

impl Repeats {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, denials: Mutex::new(bounded()), forgotten: Mutex::default() }
    }

    /// The denial of a call with this cost, if it is still to be repeated; or else what `ask` finds, which is remembered.
    pub(crate) async fn find_or(
        &self,
        key: &[u8],
        cost: u64,
        ask: impl Future<Output = Result<Decision, Error>>,
    ) -> Result<Decision, Error> {
        if let Some(denied) = self.find(key, cost) {
            return Ok(denied);
        }
        let asked = Instant::now();
        let decision = ask.await?;
        self.remember(key, cost, asked, &decision);
        Ok(decision)
    }

    /// Remembers a denial by the server, which was asked at this moment.
    fn remember(&self, key: &[u8], cost: u64, asked: Instant, decision: &Decision) {
        if self.longest.is_zero() || decision.allowed() || decision.source != Source::Server {
            return;
        }
        let Some(until) = decision.wait().and_then(|wait| asked.checked_add(wait.min(self.longest))) else { return };
        let mut denials = self.denials.lock();
        if self.forgotten.lock().is_none_or(|forgotten| asked > forgotten) {
            denials.put(key.to_vec(), Denied { cost, asked, until, decision: decision.clone() });
        }
    }

    /// The denial of a call with this cost, if it is still to be repeated. A higher cost would be denied, too, but for longer.
    fn find(&self, key: &[u8], cost: u64) -> Option<Decision> {
        if self.longest.is_zero() {
            return None;
        }
        let mut denials = self.denials.lock();
        let now = Instant::now();
        let denied = denials.get(key).filter(|denied| denied.cost == cost && now < denied.until)?;
        let passed = u64::try_from(now.duration_since(denied.asked).as_millis()).unwrap_or(u64::MAX);
        let left = |ms: u64| ms.saturating_sub(passed).max(1);
        let Decision { wait_ms, reset_ms, .. } = denied.decision;
        let (wait_ms, reset_ms) = (wait_ms.map(left), left(reset_ms));
        Some(Decision { wait_ms, reset_ms, source: Source::Repeated, ..denied.decision.clone() })
    }

    /// Units of this key were given back, or its state has changed otherwise.
    pub(crate) fn forget(&self, key: &[u8]) {
        let mut denials = self.denials.lock();
        denials.pop(key);
        *self.forgotten.lock() = Some(Instant::now());
    }
}
