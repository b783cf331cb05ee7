//! Limits in the process, for the time in which a server is down: GCRA in exact integers.

use std::num::NonZeroUsize;
use std::time::Instant;

use lru::LruCache;

use crate::amount::Amount;
use crate::{Decision, Gcra, Policy, Source};

/// How many keys are remembered.
const KEYS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// A map of keys, which grows to [`KEYS`]. The one that was not used for longest goes first.
pub(crate) fn bounded<T>() -> LruCache<Vec<u8>, T> {
    let mut map = LruCache::unbounded();
    map.resize(KEYS);
    map
}

/// The keys of an [`OnDown::Local`](crate::OnDown::Local).
pub(crate) struct Local {
    epoch: Instant,
    gcra: Policy,
    /// The theoretical arrival time of each key.
    arrivals: LruCache<Vec<u8>, u128>,
}

impl Local {
    pub(crate) fn new(gcra: Gcra) -> Self {
        Self { epoch: Instant::now(), gcra: gcra.into(), arrivals: bounded() }
    }

    /// Decides a call, in place of a decision that lets it through. If it does not take, it only looks.
    pub(crate) fn decide(&mut self, key: &[u8], amount: Amount, takes: bool, open: Decision) -> Decision {
        let rate = self.gcra.rate();
        let (limit, period) = (u128::from(rate.limit), u128::from(rate.period.as_micros()));
        // Times are microseconds times the limit: then a unit is one period, and nothing is rounded.
        let now = self.epoch.elapsed().as_micros() * limit;
        let before = self.arrivals.get(key).map_or(now, |arrival| now.max(*arrival));
        let (used, whole) = (before - now, u128::from(self.gcra.capacity()) * period);
        let fit = whole.saturating_sub(used).checked_div(period).unwrap_or_default();
        let cost = match amount {
            Amount::Cost(cost) => u128::from(cost),
            Amount::UpTo(units) => u128::from(units).min(fit).max(1),
            Amount::Force(_) | Amount::Refund(_) => return open,
        };
        let ms = |time: u128| time.checked_div(limit).map(|us| narrow(us.div_ceil(1_000)));
        let granted = if cost <= fit { cost } else { 0 };
        let taken = if takes { granted } else { 0 };
        if taken > 0 {
            self.arrivals.put(key.to_vec(), before + taken * period);
        }
        let wait_ms = match () {
            () if granted > 0 => Some(0),
            () if cost * period > whole => None,
            () => ms(used + cost * period - whole).map(|ms| ms.max(1)),
        };
        Decision {
            granted: narrow(granted),
            limit: self.gcra.capacity(),
            remaining: narrow(fit - taken),
            wait_ms,
            reset_ms: ms(used + taken * period).unwrap_or_default(),
            source: Source::Down,
            ..open
        }
    }
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "../tests/unit/local.rs"]
mod tests;
