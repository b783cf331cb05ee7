//! Charges with an id, of SLIDE.
//!
//! Each tick has its own level: the units that were granted in it and not given back. So a charge is given back in the tick in
//! which it was granted, without any effect on other ticks. The slots of a ledger are in the order of their ticks.
//!
//! The counts of the log's entries are cumulative, so to take units out of an entry in the middle would change all entries
//! after it. Instead the slot of the settled id counts these units, in the upper half of its weight, and [`View::count`]
//! subtracts them. When the log is rewritten, they are taken out of the log itself.

use super::log::{entry, Grid, Log, ENTRY, LOG_HEADER};
use super::search::first_reaching;
use super::write::{self, InPlace, Next, Plan};
use super::{Slide, View};
use crate::limiter::ledger::{Edit, Finish, Inner, Ledger, RandomSeed, Remembered, Slot, WithIds, LOWER};
use crate::limiter::{Bytes, Change, Charge, Decision, Id, Instant, Kind, Overflow, RecordError, Request};

/// When no id is left, a log of up to this many bytes is at once rewritten to a record without ids. A longer log keeps its
/// empty ledger until the next write: if that adds an id, the log need not be rewritten twice.
const STRIP: usize = 1024;

/// A rewritten log, as far as the slots move with it.
#[derive(Clone, Copy)]
pub(super) struct Rewritten {
    /// The grid of the rewritten log.
    pub(super) grid: Grid,
    /// The entries become this many ticks earlier, in ticks of the present log: see [`View::shift`].
    pub(super) shift: i64,
    /// The tick of the last entry, on the new grid.
    pub(super) last: i128,
    /// The rewritten log does not contain the entries after this tick of the present log.
    pub(super) cut: i64,
}

impl<'a> View<'a> {
    /// [`Self::load`] of a value that is not a record without ids: `error` says why not.
    #[cold]
    #[inline(never)]
    pub(super) fn load_with_ids(
        slide: &Slide,
        bytes: &'a [u8],
        now: Instant,
        error: RecordError,
    ) -> Result<Self, RecordError> {
        let Ok((log, ids)) = Log::decode_any(bytes) else { return Err(error) };
        Ok(Self { ids, ..Self::new(log, slide.quota.limit(), slide.grid(), now) })
    }

    /// The ledger in the record; `None` if the record has no ids.
    pub(super) fn ledger(&self) -> Option<Ledger<'a>> {
        self.ids.map(WithIds::ledger)
    }

    /// Whether the record has ids.
    pub(in crate::limiter) const fn has_ids(&self) -> bool {
        self.ids.is_some()
    }

    /// Whether the counts of the log still include units that were given back.
    #[inline(always)]
    pub(super) fn has_given_back(&self) -> bool {
        self.ids.is_some_and(|ids| ids.weights() > LOWER)
    }

    /// How many of the units that the log counts up to the end of entry `index` were given back, modulo 2^32.
    #[inline(always)]
    pub(super) fn given_back(&self, index: usize) -> u32 {
        if self.has_given_back() {
            self.given_back_up_to(self.raw_tick(index))
        } else {
            0
        }
    }

    /// [`Self::given_back`] for the entries up to `tick`.
    #[cold]
    fn given_back_up_to(&self, tick: i64) -> u32 {
        self.ledger().map_or(0, |ledger| (ledger.prefix(ledger.slots_before(tick.saturating_add(1))) >> 64) as u32)
    }

    /// [`Self::index_reaching`] if units were given back. `before` is the count before the first entry in the window.
    #[cold]
    pub(super) fn net_index_reaching(&self, before: u32, units: u32) -> usize {
        let (mut start, mut end) = (self.live, self.len());
        while start < end {
            let middle = start + (end - start) / 2;
            if self.count(middle).wrapping_sub(before) < units {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        start
    }

    /// The tick of entry `index` as the record stores it, without the [shift](View::shift) after a step back of the clock.
    pub(super) fn raw_tick(&self, index: usize) -> i64 {
        self.log.base.saturating_add(self.log.offset(index).into())
    }

    /// The index of the entry at a tick, as the record stores it.
    pub(super) fn entry_of(&self, tick: i64) -> Option<usize> {
        // Before the base there is no entry.
        let offset = u64::try_from(i128::from(tick) - i128::from(self.log.base)).ok()?;
        let index = first_reaching(self.log.entries, offset, |entry| super::offset(entry).into());
        (index < self.len() && self.raw_tick(index) == tick).then_some(index)
    }

    /// The units that were granted in entry `index` and not given back.
    pub(super) fn level(&self, index: usize) -> u32 {
        self.count(index).wrapping_sub(self.count_before(index))
    }

    /// Whether a charge is past, so that its id is forgotten: its tick, which is its [`Slot::when`], has left the window.
    pub(super) fn is_past(&self, tick: i64) -> bool {
        let period_us = self.grid.period_us.max(self.log.grid.period_us);
        let grid = Grid { period_us, ..self.log.grid };
        grid.expiry_us(i128::from(tick) - i128::from(self.shift)) <= self.now.as_us().into()
    }

    /// The charge that is remembered under this id.
    pub(super) fn find(&self, id: Id<'_>) -> Option<Remembered<'a>> {
        self.ids?.ledger().remembered(id, |tick| self.is_past(tick))
    }

    /// See [`crate::limiter::View::held`].
    pub(in crate::limiter) fn held(&self, id: Id<'_>) -> Option<u64> {
        self.find(id).map(|charge| charge.slot.units)
    }

    /// The ids that are remembered, and their units.
    pub(super) fn count_ids(&self) -> (u64, u128) {
        self.ledger().map_or((0, 0), |ledger| ledger.count(&|tick| self.is_past(tick)))
    }

    /// [`Self::decide`] for a request with an id, or a record with ids.
    #[cold]
    #[inline(never)]
    pub(in crate::limiter) fn decide_with_ids<'r>(
        self,
        request: Request<'r>,
    ) -> Result<(Decision, crate::limiter::Next<'r>), Overflow> {
        if let Some(Remembered { slot, .. }) = request.id.and_then(|id| self.find(id)) {
            return Ok((slot.retry(self.limit, self.snapshot(), self.now), crate::limiter::Next::Keep));
        }
        let (decision, next) = self.decide(request)?;
        let Decision { granted, wait, .. } = decision;
        let charge = Charge { id: request.id, units: granted, wait };
        let next = match next {
            crate::limiter::Next::Slide(next) => next,
            // No unit is in use any more, but the key must still remember its ids, so it is not deleted.
            crate::limiter::Next::Remove if !Edit::new(Kind::Slide, self.ledger()).is_empty(&|tick| self.is_past(tick)) => {
                Next::clear(self.now)
            }
            next => return Ok((decision, next)),
        };
        Ok((decision, crate::limiter::Next::SlideWithIds(Box::new((next, charge)))))
    }

    /// Encodes the next state of [`Self::decide_with_ids`].
    #[cold]
    #[inline(never)]
    pub(in crate::limiter) fn store_with_ids(
        self,
        next: &Next,
        charge: &Charge<'_>,
        random: RandomSeed,
        bytes: &mut Bytes,
    ) -> Change {
        let mut edit = Edit::new(Kind::Slide, self.ledger());
        // A past charge may have had the same id.
        let same_id = self.ledger().zip(charge.id).and_then(|(ledger, id)| ledger.find(id));
        same_id.into_iter().for_each(|index| edit.kill(index));
        let change = self.put(edit, next, Some((charge, random)), bytes);
        debug_assert_eq!(self.fault_after(Some(next), &change, bytes), None);
        change
    }

    /// Encodes the next state, after the changes in `edit`. `added` is the charge that is to be remembered, if it has an id.
    pub(super) fn put<'r>(
        &self,
        mut edit: Edit<'r>,
        next: &Next,
        added: Option<(&Charge<'r>, RandomSeed)>,
        bytes: &mut Bytes,
    ) -> Change
    where
        'a: 'r,
    {
        let plan = self.plan();
        let in_place = match next.update {
            write::LogUpdate::Grant { units, booked } => self.append(&plan, next, units, booked),
            write::LogUpdate::Refund(index) => {
                self.header(&plan, None).map(|header| InPlace { header, index, offset: self.log.offset(index) })
            }
            write::LogUpdate::Clear => None,
        };
        let moves = plan.grid.tick_us != self.log.grid.tick_us || self.shift != 0;
        let mut sum = 0;
        if moves {
            sum = self.trim_all(&mut edit, &plan, next.tick);
        }
        if let write::LogUpdate::Grant { units, .. } = next.update {
            if !moves {
                sum = self.trim_tick(&mut edit, next.tick);
            }
            if let Some((id, charge, random)) = added.and_then(|(charge, random)| Some((charge.id?, charge, random))) {
                let tick = i64::try_from(next.tick).unwrap_or(i64::MAX);
                let level = u128::from(self.level_of_planned(&plan, next.tick).wrapping_add(units));
                let slot = Slot { weight: level.saturating_sub(sum), ..charge.slot(tick, self.now) };
                edit.append(id, slot, random);
            }
        }

        let inner_len = |last: &InPlace| LOG_HEADER + ENTRY * (last.index + 1);
        let in_place = in_place.filter(|last| edit.fits(inner_len(last)) && !self.strips(&mut edit, inner_len(last)));
        let Some(InPlace { header, index, offset }) = in_place else {
            let inner = match next.update {
                write::LogUpdate::Clear => self.empty_log(&plan),
                write::LogUpdate::Grant { .. } => self.rewrite(&plan, self.len(), next),
                write::LogUpdate::Refund(index) => self.rewrite(&plan, index, next),
            };
            let cut = match next.update {
                write::LogUpdate::Clear => i64::MIN,
                write::LogUpdate::Refund(index) => self.raw_tick(index),
                write::LogUpdate::Grant { .. } => i64::MAX,
            };
            let rewritten = Rewritten { grid: plan.grid, shift: self.shift, last: next.tick, cut };
            return self.finish(edit, &plan, Inner::whole(inner.as_slice()), Some(rewritten), next.expires, bytes);
        };
        // The counts of the log include units that were given back: see the module.
        let tick = self.log.base.saturating_add(offset.into());
        if let write::LogUpdate::Refund(_) = next.update {
            self.cut(&mut edit, tick);
        }
        let last =
            entry(offset, next.count.wrapping_add(if self.has_given_back() { self.given_back_up_to(tick) } else { 0 }));
        let head = header.as_ref().map_or(&[][..], |header| header);
        let inner = Inner { head, offset: LOG_HEADER + ENTRY * index, tail: &last };
        self.finish(edit, &plan, inner, None, next.expires, bytes)
    }

    /// Whether no id is left, so that the log, of `inner_len` bytes, is rewritten to a record without ids.
    pub(super) fn strips(&self, edit: &mut Edit<'_>, inner_len: usize) -> bool {
        let is_past = |tick| self.is_past(tick);
        edit.is_empty(&is_past) && (inner_len <= STRIP || edit.was_empty(&is_past))
    }

    /// Finishes a change whose new inner record is `inner`. If the log is rewritten, `rewritten` says how the slots move with it.
    pub(super) fn finish(
        &self,
        mut edit: Edit<'_>,
        plan: &Plan,
        inner: Inner<'_>,
        rewritten: Option<Rewritten>,
        expires: Instant,
        bytes: &mut Bytes,
    ) -> Change {
        let moved = |slot: Slot| {
            let Some(Rewritten { grid, shift, last, cut }) = rewritten else { return slot };
            let placed = self.place_slot(slot.when, shift, grid);
            let shift_us = i128::from(shift) * i128::from(self.log.grid.tick_us);
            let emptied = slot.emptied || placed > last || slot.when > cut;
            Slot {
                when: i64::try_from(placed).unwrap_or(i64::MAX),
                acts_at: Instant::saturating(i128::from(slot.acts_at.as_us()) - shift_us),
                weight: if emptied { 0 } else { slot.weight & LOWER },
                emptied,
                ..slot
            }
        };
        let finish = Finish {
            inner,
            rewritten: rewritten.is_some(),
            // Room for as many entries as the log gets before it is rewritten for another reason.
            room: inner.len() + ENTRY * (4 + self.len()),
            is_past: &|tick| self.is_past(tick),
            moved: &moved,
            one_level: false,
            expires: expires.max(self.last_id_ends(&mut edit, plan.grid.period_us)),
            slack: plan.slack(),
        };
        edit.finish(&finish, 0, bytes)
    }

    /// When the last id is forgotten, if the log's period is `period_us`.
    fn last_id_ends(&self, edit: &mut Edit<'_>, period_us: u64) -> Instant {
        let Some(tick) = edit.last_when() else { return Instant::MIN };
        let end_us = (i128::from(tick) - i128::from(self.shift) + 1) * i128::from(self.log.grid.tick_us) - 1;
        Instant::saturating(end_us + i128::from(period_us))
    }

    /// When the last entry has left the window, and no id is remembered any more.
    pub(in crate::limiter) fn ends(&self) -> Instant {
        let last = self.len().checked_sub(1).filter(|last| self.live <= *last);
        let emptied = last.map_or(self.now, |last| self.now.saturating_add(self.until_gone(last)));
        emptied.max(self.last_id_ends(&mut Edit::new(Kind::Slide, self.ledger()), self.log.grid.period_us))
    }

    /// The tick of a slot on another grid, `shift` ticks earlier.
    fn place_slot(&self, when: i64, shift: i64, grid: Grid) -> i128 {
        self.place(i128::from(when) - i128::from(shift), i128::from(when) - i128::from(self.log.base), grid)
    }

    /// The range of the slots of a tick.
    pub(super) fn slots_of(&self, tick: i64) -> std::ops::Range<usize> {
        self.ledger().map_or(0..0, |ledger| ledger.slots_before(tick)..ledger.slots_before(tick.saturating_add(1)))
    }

    /// The sum of the layers of some slots.
    pub(super) fn layers(&self, slots: std::ops::Range<usize>) -> u128 {
        let Some(ledger) = self.ledger() else { return 0 };
        ledger.prefix(slots.end).wrapping_sub(ledger.prefix(slots.start)) & LOWER
    }

    /// Prepares a grant at `tick`, on the present grid. The layers of the tick's slots are trimmed to its level. Slots of
    /// later ticks, whose units were all given back, are marked as [emptied](Slot::emptied), because the new slot comes after
    /// them. Returns the sum of the layers of this tick.
    fn trim_tick(&self, edit: &mut Edit<'_>, tick: i128) -> u128 {
        let tick = i64::try_from(tick).unwrap_or(i64::MAX);
        let slots = self.slots_of(tick);
        for index in slots.end..edit.old_len() {
            if let Some(slot) = edit.slot(index).filter(|slot| !slot.emptied) {
                edit.set(index, Slot { emptied: true, weight: 0, ..slot });
            }
        }
        let level = self.entry_of(tick).map_or(0, |index| self.level(index));
        let sum = self.layers(slots.clone());
        edit.trim(slots, sum, level.into(), LOWER)
    }

    /// [`Self::trim_tick`] of all ticks, if the log is rewritten on another grid. Returns the sum of the layers of the slots
    /// that come to lie in `tick`.
    fn trim_all(&self, edit: &mut Edit<'_>, plan: &Plan, tick: i128) -> u128 {
        let mut start = 0;
        let mut sum_of_tick = 0;
        while let Some(first) = edit.slot(start) {
            if first.emptied {
                start += 1;
                continue;
            }
            let slots = start..self.slots_of(first.when).end.max(start + 1);
            let level = self.entry_of(first.when).map_or(0, |index| self.level(index));
            let sum = edit.trim(slots.clone(), self.layers(slots.clone()), level.into(), LOWER);
            if self.place_slot(first.when, self.shift, plan.grid) == tick {
                sum_of_tick += sum;
            }
            start = slots.end;
        }
        sum_of_tick
    }

    /// The units of the entries that come to lie in `tick` on the planned grid.
    fn level_of_planned(&self, plan: &Plan, tick: i128) -> u32 {
        let same = |&index: &usize| self.placed(index, plan.grid) == tick;
        let first = (self.first_kept(plan)..self.len()).rev().take_while(same).last();
        first.map_or(0, |first| self.count(self.len() - 1).wrapping_sub(self.count_before(first)))
    }

    /// Prepares the removal of the entries after `tick` from the log. The slots then no longer count the units that were given
    /// back of these entries.
    pub(super) fn cut(&self, edit: &mut Edit<'_>, tick: i64) {
        if self.has_given_back() {
            let start = self.slots_of(tick).end;
            let given_back = self.ledger().map_or(0, |ledger| {
                let all = ledger.prefix(ledger.len());
                all.wrapping_sub(ledger.prefix(start)) & !LOWER
            });
            edit.take(start..edit.old_len(), given_back, !LOWER);
        }
    }

    /// A log without entries. Its ids are still remembered.
    fn empty_log(&self, plan: &Plan) -> Bytes {
        let limit = u32::try_from(self.limit).unwrap_or(u32::MAX).max(1);
        let mut bytes = Bytes::default();
        let base = i64::try_from(plan.grid.tick_at(self.now)).unwrap_or(0);
        bytes.extend(&Log { limit, grid: plan.grid, base, before_first: 0, mark: 0, entries: &[] }.header());
        bytes
    }

    /// The log up to entry `end`, on its present grid, with counts that do not include the units that were given back.
    pub(super) fn net_log(&self, edit: &Edit<'_>, end: usize) -> Vec<u8> {
        let mut bytes = self.log.header().to_vec();
        let mut before = self.log.before_first;
        let mut slots = (0..edit.old_len()).filter_map(|index| edit.slot(index)).peekable();
        let mut given_back = 0_u32;
        for index in 0..end {
            while let Some(slot) = slots.next_if(|slot| slot.emptied || slot.when <= self.raw_tick(index)) {
                given_back = given_back.wrapping_add((slot.weight >> 64) as u32);
            }
            let count = self.log.count(index).wrapping_sub(given_back);
            if count != before {
                bytes.extend(entry(self.log.offset(index), count));
                before = count;
            }
        }
        bytes
    }
}
