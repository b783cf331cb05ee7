//! What holds for each log that is written. Debug builds check it after each change, as they do for
//! [ledgers](crate::limiter::ledger): a change of a sound log leaves a sound one.

use super::log::{count, offset, Log};
use super::write::{LogUpdate, Next};
use super::View;
use crate::limiter::ledger::{Ledger, WithIds, LOWER};
use crate::limiter::{Bytes, Change};

/// Of the changes of a log with n entries, one in about (n / EACH + 1) is checked, so that the checks of a long log do not
/// take too long.
const EACH: usize = 64;

/// Logs are sound within this many microseconds, 146 thousand years, of the Unix epoch. If the clock steps by more than 2^63
/// us, the entries of a log can't be placed by it any more.
const NEAR_US: u128 = 1 << 62;

/// A fault in a log; `None` if the log is sound. `ledger` is the ledger of the same record.
fn fault(log: &Log<'_>, ledger: Option<Ledger<'_>>) -> Option<String> {
    let unordered = log.entries.windows(2).position(|pair| offset(&pair[0]) >= offset(&pair[1]));
    if let Some(index) = unordered {
        return Some(format!("the tick of entry {} is not after that of the one before", index + 1));
    }
    let counts: Vec<u32> = log.entries.iter().map(|entry| count(entry).wrapping_sub(log.before_first)).collect();
    if !counts.is_sorted() {
        return Some("the counts descend, or wrap around".into());
    }
    // The units of each entry that were given back are a part of them.
    let mut slots = ledger.iter().flat_map(Ledger::slots).filter(|(_, slot)| !slot.emptied).peekable();
    let mut before = 0;
    for (entry, count) in log.entries.iter().zip(counts) {
        let tick = log.base.saturating_add(offset(entry).into());
        let mut given_back = 0_u128;
        while let Some((_, slot)) = slots.next_if(|(_, slot)| slot.when <= tick) {
            given_back += slot.weight >> 64;
        }
        if given_back > (count - before).into() {
            return Some(format!("{given_back} units of {} in tick {tick} were given back", count - before));
        }
        before = count;
    }
    slots
        .find(|(_, slot)| slot.weight > LOWER)
        .map(|(index, _)| format!("units in slot {index} were given back of no entry"))
}

impl View<'_> {
    /// A fault in the record that `change` makes of this view's record; `None` if there is none, or if there was one
    /// already. `next` is the state that is stored; `None` if a charge was settled.
    pub(super) fn fault_after(&self, next: Option<&Next>, change: &Change, bytes: &Bytes) -> Option<String> {
        let last = self.log.entries.last().map_or(0, count) as usize;
        let log_us = i128::from(self.log.base) * i128::from(self.log.grid.tick_us);
        let is_near = log_us.unsigned_abs() < NEAR_US && u128::from(self.now.as_us().unsigned_abs()) < NEAR_US;
        if !is_near || !(self.len() + last).is_multiple_of(self.len() / EACH + 1) {
            return None;
        }
        let mut value = match self.ids {
            Some(ids) => Some(ids.bytes().to_vec()),
            None => (self.len() > 0).then(|| [&self.log.header()[..], self.log.entries.as_flattened()].concat()),
        };
        change.apply(bytes, &mut value);
        let value = value?;
        let fault = match Log::decode_any(&value) {
            Ok((log, ids)) => fault(&log, ids.map(WithIds::ledger)).or_else(|| fault_of_grant(&log, ids, next)),
            Err(error) => Some(format!("the log can't be read: {error:?}")),
        };
        fault.filter(|_| (self.len() == 0 && self.ids.is_none()) || self.fault().is_none())
    }

    /// A fault in the record, of its log or of its ledger.
    fn fault(&self) -> Option<String> {
        fault(&self.log, self.ledger()).or_else(|| self.ledger()?.fault(super::Kind::Slide))
    }
}

/// After a grant, what can be given back of its tick is at most what was granted in it.
fn fault_of_grant(log: &Log<'_>, ids: Option<WithIds<'_>>, next: Option<&Next>) -> Option<String> {
    let _grant = next.filter(|next| matches!(next.update, LogUpdate::Grant { .. }))?;
    let view = View { ids, ..View::new(*log, log.limit.into(), log.grid, super::Instant::MAX) };
    let last = view.len().checked_sub(1)?;
    let (level, layers) = (view.level(last), view.layers(view.slots_of(view.raw_tick(last))));
    (layers > level.into()).then(|| format!("{layers} units of {level} in the last tick can be given back"))
}
