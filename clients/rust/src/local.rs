//! Limits in the process, for the time in which a server is down: GCRA in exact integers.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use crate::{Decision, Gcra, Policy, Source};

/// How many keys are remembered.
const KEYS: usize = 10_000;

/// The keys of an [`OnDown::Local`](crate::OnDown::Local). The one that was not used for longest goes first.
pub(crate) struct Local {
    epoch: Instant,
    gcra: Policy,
    /// The theoretical arrival time of each key, and its place in the order of use.
    keys: HashMap<Vec<u8>, (u128, u64)>,
    order: BTreeMap<u64, Vec<u8>>,
    uses: u64,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Take(u64),
    UpTo(u64),
    Peek(u64),
}

impl Local {
    pub(crate) fn new(gcra: Gcra) -> Self {
        Self { epoch: Instant::now(), gcra: gcra.into(), keys: HashMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// Decides a call, in place of a decision that lets it through.
    pub(crate) fn decide(&mut self, key: &[u8], ask: Ask, open: Decision) -> Decision {
        let (limit, period) = (u128::from(self.gcra.rate().limit), u128::from(self.gcra.rate().period.as_micros()));
        // Times are microseconds times the limit: then a unit is one period, and nothing is rounded.
        let now = self.epoch.elapsed().as_micros() * limit;
        let before = self.keys.get(key).map_or(now, |(arrival, _)| (*arrival).max(now));
        let (used, whole) = (before - now, u128::from(self.gcra.capacity()) * period);
        let fit = whole.saturating_sub(used).checked_div(period).unwrap_or_default();
        let cost = match ask {
            Ask::Take(cost) | Ask::Peek(cost) => u128::from(cost),
            Ask::UpTo(units) => u128::from(units).min(fit).max(1),
        };
        let ms = |time: u128| time.checked_div(limit).map(|us| narrow(us.div_ceil(1_000)));
        let granted = if cost <= fit { cost } else { 0 };
        let taken = if matches!(ask, Ask::Peek(_)) { 0 } else { granted };
        if !matches!(ask, Ask::Peek(_)) {
            self.set(key, before + taken * period);
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

    fn set(&mut self, key: &[u8], arrival: u128) {
        self.uses += 1;
        if let Some((_, place)) = self.keys.insert(key.to_vec(), (arrival, self.uses)) {
            self.order.remove(&place);
        }
        self.order.insert(self.uses, key.to_vec());
        if self.keys.len() > KEYS {
            if let Some((_, oldest)) = self.order.pop_first() {
                self.keys.remove(&oldest);
            }
        }
    }
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "../tests/unit/local.rs"]
mod tests;
