//! What holds for each ledger that [`Edit`](super::Edit) writes. Debug builds check it after each edit.
//!
//! Clients can write to the keys, so a ledger that is read may be damaged, and nothing is asserted of it. If an edit leaves
//! a fault, this is an error of the module only if the ledger had no fault before: an edit of a sound ledger leaves a sound
//! one.

use super::{Aggregate, Id, Ledger, BLOCK, LOWER};
use crate::limiter::record::{self, take};
use crate::limiter::{Bytes, Change, Kind};

/// The weights of a ledger add up to less than this. A weight that was lowered below zero has wrapped around, and is more than
/// this.
const MOST_WEIGHT: u128 = 1 << 127;
/// The same for the layers of a SLIDE ledger, which are the lower halves of the weights.
const MOST_LAYERS: u128 = 1 << 63;
/// A ledger of n slots is checked at every (n / EACH + 1)th revision. So, per edit, the checks of a long ledger take about as much
/// time as the checks of a ledger with `EACH` slots.
const EACH: usize = 32;

/// A fault in the ledger that `change` makes of `old`; `None` if there is none, or if `old` had one already.
pub(super) fn fault_after(kind: Kind, old: Option<Ledger<'_>>, change: &Change, bytes: &Bytes) -> Option<String> {
    if old.is_some_and(|old| !(old.header.revision as usize).is_multiple_of(old.len() / EACH + 1)) {
        return None;
    }
    let mut value = old.map(|old| old.bytes.to_vec());
    change.apply(bytes, &mut value);
    let value = value?;
    let fault = match Ledger::open(&value, kind) {
        Ok(new) => new.fault(kind),
        // The record has no ids any more.
        Err(_) if value.get(1) == Some(&record::VERSION) => None,
        Err(error) => Some(format!("the ledger can't be read: {error:?}")),
    };
    fault.filter(|_| old.is_none_or(|old| old.fault(kind).is_none()))
}

impl Ledger<'_> {
    /// The first fault that is found; `None` if the ledger is sound.
    pub(in crate::limiter) fn fault(&self, kind: Kind) -> Option<String> {
        self.fault_of_slots(kind).or_else(|| self.fault_of_aggregates(kind)).or_else(|| match kind {
            Kind::Lease => self.fault_of_leases(),
            Kind::Slide => self.fault_of_ticks(),
            Kind::Fixed | Kind::Gcra | Kind::Bucket => None,
        })
    }

    fn fault_of_slots(&self, kind: Kind) -> Option<String> {
        let live = self.slots().filter(|(_, slot)| slot.is_live()).count();
        if live != self.header.live {
            return Some(format!("{live} live slots, and not {}", self.header.live));
        }
        let mut total = 0_u128;
        for (index, slot) in self.slots() {
            let mask = if kind == Kind::Slide { LOWER } else { u128::MAX };
            total = total.saturating_add(slot.weight & mask);
            let found = || Id::new(self.id(index)).and_then(|id| self.find(id));
            let fault = if slot.is_live() && index < self.header.first {
                "is live, and lies before the first live one"
            } else if slot.is_live() && found() != Some(index) {
                "is not the one that its id leads to"
            } else if kind == Kind::Lease && slot.weight != 0 {
                "is a lease with a weight"
            } else if slot.emptied && (slot.weight != 0 || kind != Kind::Slide) {
                "is emptied, and has a weight"
            } else {
                continue;
            };
            return Some(format!("slot {index} {fault}: {slot:?}"));
        }
        let most = if kind == Kind::Slide { MOST_LAYERS } else { MOST_WEIGHT };
        (total >= most).then(|| format!("the weights add up to {total}"))
    }

    /// A record of version 2 is not checked: it has other aggregates, and is never written.
    fn fault_of_aggregates(&self, kind: Kind) -> Option<String> {
        let mut all = Aggregate::NONE;
        for block in (0..self.blocks()).filter(|_| !self.header.is_version_2) {
            let slots = self.block_slots(block).map(|(_, slot)| Aggregate::of(&slot, kind));
            let (aggregate, expected) = (self.block(block), slots.fold(Aggregate::NONE, Aggregate::join));
            if aggregate != expected {
                return Some(format!("block {block} of {BLOCK} slots has {aggregate:?}, and not {expected:?}"));
            }
            all = all.join(aggregate);
        }
        let aggregate = self.header.aggregate;
        (!self.header.is_version_2 && aggregate != all)
            .then(|| format!("the blocks have {all:?} in total, and not {aggregate:?}"))
    }

    /// LEASE: the inner record holds the sum of the units of all leases.
    fn fault_of_leases(&self) -> Option<String> {
        let mut fields = self.inner().get(16..)?;
        let (held, (_, units)) = (take(&mut fields, 8), self.count(&|_| false));
        (held != units).then(|| format!("the leases hold {units} units, and not {held}"))
    }

    /// SLIDE: slots are in the order of their ticks.
    fn fault_of_ticks(&self) -> Option<String> {
        let mut ticks = self.slots().filter(|(_, slot)| !slot.emptied).map(|(_, slot)| slot.when);
        let mut last = ticks.next()?;
        ticks.find_map(|tick| {
            let fault = (tick < last).then(|| format!("a slot of tick {tick} comes after one of tick {last}"));
            last = tick;
            fault
        })
    }
}
