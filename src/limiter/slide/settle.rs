//! Settles a charge of SLIDE: gives units back in the tick of the charge, or takes more of them now.

use super::ids::Rewritten;
use super::log::{ENTRY, LOG_HEADER};
use super::write::Plan;
use super::View;
use crate::limiter::ledger::{Edit, Inner, Remembered, Slot, LOWER};
use crate::limiter::{Amount, Bytes, Change, Decision, Id, Kind, Overflow, Request, Settlement, Span, Wait};

impl View<'_> {
    /// Ends the id of a charge, which becomes `units`: see [`crate::limiter::settle`].
    pub(in crate::limiter) fn settle(
        &self,
        id: Id<'_>,
        units: u64,
        bytes: &mut Bytes,
    ) -> Result<Option<Settlement>, Overflow> {
        let Some(Remembered { index, slot, .. }) = self.find(id) else { return Ok(None) };
        let mut edit = Edit::new(Kind::Slide, self.ledger());
        edit.kill(index);
        let (decision, change) = match units.checked_sub(slot.units).filter(|&more| more > 0) {
            Some(more) => {
                let (decision, next) = self.decide(Request::now(Amount::Force(more)))?;
                let crate::limiter::Next::Slide(next) = next else {
                    debug_assert!(false, "forced units are always granted");
                    return Err(Overflow);
                };
                (decision, self.put(edit, &next, None, bytes))
            }
            None => self.give_back(edit, index, slot, slot.units - units, bytes),
        };
        debug_assert_eq!(self.fault_after(None, &change, bytes), None);
        let decision = Decision { granted: units, wait: Wait::NONE, ..decision };
        Ok(Some(Settlement { kind: Kind::Slide, decision, change }))
    }

    /// Gives back `less` units of the charge in slot `index`, or as many as are still there.
    fn give_back(&self, mut edit: Edit<'_>, index: usize, slot: Slot, less: u64, bytes: &mut Bytes) -> (Decision, Change) {
        let tick = slot.when;
        let start = self.slots_of(tick).start;
        let entry = self.entry_of(tick).filter(|_| !slot.emptied).map(|entry| (entry, self.level(entry)));
        let level = entry.map_or(0, |(_, level)| level);
        let given_back = u128::from(less).min(self.layers(start.min(index)..index + 1)).min(level.into());
        edit.take(start.min(index)..index + 1, given_back, LOWER);
        let used = self.used().wrapping_sub(given_back as u32);

        // Entries without units at the end of the log are removed, so that a later grant may have an earlier tick than theirs.
        let ends = entry.is_some_and(|(entry, level)| entry + 1 == self.len() && u128::from(level) == given_back);
        let mut len = self.len();
        if ends {
            len = if used == 0 { 0 } else { (self.index_reaching(used) + 1).min(len) };
            self.cut(&mut edit, if len == 0 { i64::MIN } else { self.raw_tick(len - 1) });
        } else if let Some(slot) = edit.slot(index) {
            edit.set(index, Slot { weight: slot.weight.wrapping_add(given_back << 64), ..slot });
        }
        let reset = if used == 0 { Span::ZERO } else { self.until_gone(len - 1) };
        let limit = self.limit;
        let decision = Decision {
            granted: 0,
            limit,
            remaining: limit.saturating_sub(used.into()),
            wait: Wait::NONE,
            reset,
            retried: false,
        };

        if used == 0 && edit.is_empty(&|tick| self.is_past(tick)) {
            return (decision, Change::Remove);
        }
        let plan = Plan { grid: self.log.grid, shared: self.log.shared() };
        let expires = self.now.saturating_add(reset);
        let inner_len = LOG_HEADER + ENTRY * len;
        if edit.fits(inner_len) && !self.strips(&mut edit, inner_len) {
            let change = self.finish(edit, &plan, Inner { head: &[], offset: inner_len, tail: &[] }, None, expires, bytes);
            return (decision, change);
        }
        let inner = self.net_log(&edit, len);
        let cut = if len == 0 { i64::MIN } else { self.raw_tick(len - 1) };
        let rewritten = Rewritten { grid: self.log.grid, shift: 0, last: i64::MAX.into(), cut };
        (decision, self.finish(edit, &plan, Inner::whole(&inner), Some(rewritten), expires, bytes))
    }
}
