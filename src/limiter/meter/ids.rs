//! Charges with an id, of FIXED, GCRA and BUCKET.
//!
//! All charges of a key share its one level, so their slots form one stack of layers. `ledger/layers.rs` explains the layers,
//! and how much of each charge can be given back.

use super::migrate::{convert_down, convert_up};
use super::{record, Alignment, Drain, Level, Meter, Next, Record, View};
use crate::limiter::ledger::{Edit, Finish, Inner, Ledger, RandomSeed, Remembered, Slot, WithIds};
use crate::limiter::record::RecordError;
use crate::limiter::{Bytes, Change, Charge, Decision, Id, Instant, Kind, Overflow, Request, Settlement, Span, Wait};

/// The bytes that are reserved for the inner record: more than the longest one has.
const ROOM: usize = 48;
/// The bits of a weight that hold the layer: all of them.
const PART: u128 = u128::MAX;

impl<'a> Record<'a> {
    /// Reads a record of `kind`, with or without ids.
    pub(in crate::limiter) fn decode_any(bytes: &'a [u8], kind: Kind) -> Result<Self, RecordError> {
        Record::decode(bytes, kind).or_else(|_| {
            let ledger = Ledger::open(bytes, kind)?;
            let mut record = Record { ids: Some(ledger.record()), ..Record::decode(ledger.inner(), kind)? };
            if ledger.header.is_aligned {
                // The record does not hold ALIGN or UNTIL, but a date on their alignment, from which the windows follow each
                // other.
                record.meter.alignment = Alignment::Align(record.level.at.as_us().rem_euclid(record.meter.period_us as i64));
            }
            Ok(record)
        })
    }
}

impl<'a> View<'a> {
    /// [`Self::load`] of a value that is not a record without ids: `error` says why not.
    #[cold]
    #[inline(never)]
    pub(super) fn load_other(
        meter: &'a Meter,
        bytes: &'a [u8],
        now: Instant,
        error: RecordError,
    ) -> Result<Self, RecordError> {
        if let Some(view) = Self::load_redis_cell(meter, bytes, now) {
            return Ok(view);
        }
        let Ok(ledger) = Ledger::open(bytes, meter.kind) else { return Err(error) };
        let record = Record::decode(ledger.inner(), meter.kind)?;
        Ok(Self { ids: Some(ledger.record()), ..Self::of(meter, Some(record), now) })
    }

    /// The ledger in the record; `None` if the record has no ids.
    fn ledger(&self) -> Option<Ledger<'a>> {
        self.ids.map(WithIds::ledger)
    }

    /// FIXED: the number of the window in force, as [`Header::window`](crate::limiter::ledger) counts.
    fn window(&self) -> u64 {
        let ledger = self.ledger();
        let inner = ledger.filter(|_| matches!(self.meter.alignment, Alignment::Until(_))).map(|ledger| ledger.inner());
        let start = match inner.map(|inner| Record::decode(inner, self.meter.kind)) {
            Some(Ok(old)) => self.meter.with_end_of(&old.meter, old.level.at.min(self.now), self.now),
            _ => self.recorded_at.min(self.now),
        };
        let windows = self.level.at.since(start).as_us().div_ceil(self.meter.period_us);
        ledger.map_or(0, |ledger| ledger.header.window).wrapping_add(windows)
    }

    /// Whether all charges are past, also those booked for later. GCRA and BUCKET: nothing is used. FIXED: the window in the record
    /// has ended with nothing owed. The next one begins with a call, and is none of those that were to follow.
    fn all_past(&self) -> bool {
        self.level.used == 0
            && match self.meter.drain {
                Drain::Windows => self.meter.alignment == Alignment::FirstCall && self.level.at > self.recorded_at,
                Drain::Smooth | Drain::Steps => true,
            }
    }

    /// Whether a charge is past, by its [`Slot::when`], so that its id is forgotten.
    fn is_past(&self) -> impl Fn(i64) -> bool {
        let all_past = self.all_past();
        let window = if self.meter.drain == Drain::Windows { Some(self.window() as i64) } else { None };
        move |when| all_past || window.is_some_and(|window| when < window)
    }

    /// The charge that is remembered under this id.
    fn find(&self, id: Id<'_>) -> Option<Remembered<'a>> {
        self.ids?.ledger().remembered(id, self.is_past())
    }

    /// See [`super::super::View::held`].
    pub(in crate::limiter) fn held(&self, id: Id<'_>) -> Option<u64> {
        self.find(id).map(|charge| charge.slot.units)
    }

    /// Whether the record has ids.
    pub(in crate::limiter) const fn has_ids(&self) -> bool {
        self.ids.is_some()
    }

    /// [`Self::decide`] for a request with an id, or a record with ids.
    #[cold]
    #[inline(never)]
    pub(in crate::limiter) fn decide_with_ids<'r>(
        self,
        request: Request<'r>,
    ) -> Result<(Decision, crate::limiter::Next<'r>), Overflow> {
        if let Some(Remembered { slot, .. }) = request.id.and_then(|id| self.find(id)) {
            return Ok((slot.retry(self.meter.capacity, self.snapshot(), self.now), crate::limiter::Next::Keep));
        }
        let (decision, next) = self.decide(request)?;
        let crate::limiter::Next::Meter(next) = next else { return Ok((decision, next)) };
        let Decision { granted, wait, .. } = decision;
        let charge = Charge { id: request.id, units: granted, wait };
        Ok((decision, crate::limiter::Next::MeterWithIds(Box::new((next, charge)))))
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
        let meter = self.meter;
        let before = self.level.used;
        let (Level { used: after, .. }, _) = meter.read(next.level);
        let mut edit = self.edit();
        edit.header.is_aligned = meter.alignment != Alignment::FirstCall;
        let weights = |edit: &Edit<'_>, grains| convert_down(grains, meter.grains_per_unit(), edit.header.grains_per_unit);
        let window = self.window();
        let mut when = window;
        if after >= before {
            let mut level = before;
            if charge.wait != Wait::NONE && meter.drain != Drain::Smooth {
                let over = before.saturating_add(meter.grains(charge.units)).saturating_sub(meter.grains(meter.capacity));
                let skipped = meter.skips_to(over);
                // A booking that skips windows uses up what is left of them. That cannot be given back.
                level = before.saturating_sub(skipped);
                when = window.wrapping_add((skipped / meter.grains(meter.limit)) as u64);
            }
            let (sum, level) = (edit.header.aggregate.weights, weights(&edit, level));
            let sum = edit.trim(0..edit.old_len(), sum, level, PART);
            if let Some(id) = charge.id {
                // A past charge may have had the same id.
                self.ledger().and_then(|ledger| ledger.find(id)).into_iter().for_each(|index| edit.kill(index));
                let weight = weights(&edit, after).saturating_sub(sum);
                edit.append(id, Slot { weight, ..charge.slot(when as i64, self.now) }, random);
            }
        }
        self.finish(edit, next, bytes)
    }

    /// The ledger, prepared for a change under the view's policy.
    fn edit<'r>(&self) -> Edit<'r>
    where
        'a: 'r,
    {
        let meter = self.meter;
        let ledger = self.ledger().filter(|_| !self.all_past());
        let mut edit = Edit::new(meter.kind, ledger);
        let old = ledger.and_then(|ledger| Record::decode(ledger.inner(), meter.kind).ok());
        if edit.header.grains_per_unit == 0 {
            // The ledger is new, or of version 2.
            edit.header.grains_per_unit = old.as_ref().map_or(meter, |old| &old.meter).grains_per_unit();
        }
        if let Some(Record { meter: old, .. }) = old {
            let weights = |units: u64| u128::from(units) * u128::from(edit.header.grains_per_unit);
            let (low, high) = (weights(meter.capacity), weights(old.capacity));
            edit.take_between(low, high);
        }
        edit.header.window = self.window();
        edit
    }

    fn finish(&self, mut edit: Edit<'_>, next: &Next, bytes: &mut Bytes) -> Change {
        let mut inner = Bytes::default();
        record::encode(self.meter, next.level, &mut inner);
        let (all_past, is_past) = (self.all_past(), self.is_past());
        let finish = Finish {
            inner: Inner::whole(inner.as_slice()),
            rewritten: false,
            room: ROOM,
            // If all charges were past before this change, the ledger is new.
            is_past: &|when| !all_past && is_past(when),
            moved: &|slot| slot,
            one_level: true,
            expires: next.expires.max(self.last_window_end(&mut edit)),
            slack: Span::ZERO,
        };
        edit.finish(&finish, ROOM, bytes)
    }

    /// FIXED: the end of the last window for which an id is remembered. The level usually lasts as long, but not after a
    /// refund.
    fn last_window_end(&self, edit: &mut Edit<'_>) -> Instant {
        if self.meter.drain != Drain::Windows {
            return self.now;
        }
        let Some(last) = edit.last_when() else { return self.now };
        let ahead = last.saturating_sub(self.window() as i64).saturating_add(1);
        if ahead <= 0 {
            return self.now;
        }
        let start = self.dated().as_us();
        Instant::saturating(i128::from(start) + i128::from(ahead) * i128::from(self.meter.period_us))
    }

    /// When the last of the usage has drained, and no id is remembered any more.
    pub(in crate::limiter) fn ends(&self) -> Instant {
        let drained = self.now.saturating_add(self.snapshot().reset);
        // A window runs even if nothing is used in it.
        let step_ends = self.step().map_or(drained, |(_, end)| end.max(drained));
        step_ends.max(self.last_window_end(&mut self.edit()))
    }

    /// Ends the id of a charge, which becomes `units`: see [`crate::limiter::settle`].
    pub(in crate::limiter) fn settle(
        &self,
        id: Id<'_>,
        units: u64,
        bytes: &mut Bytes,
    ) -> Result<Option<Settlement>, Overflow> {
        let Some(Remembered { ledger, index, slot }) = self.find(id) else { return Ok(None) };
        let Self { meter, level, .. } = *self;
        let (charged, settled) = (meter.grains(slot.units), meter.grains(units));
        let mut edit = self.edit();
        let (unit, weight_unit) = (meter.grains_per_unit(), edit.header.grains_per_unit);
        let sum = edit.header.aggregate.weights;
        edit.trim(0..edit.old_len(), sum, convert_down(level.used, unit, weight_unit), PART);
        let used = match charged.checked_sub(settled) {
            Some(less) => {
                let mut given_back = less.min(convert_down(ledger.prefix(index + 1), weight_unit, unit)).min(level.used);
                if meter.drain == Drain::Steps {
                    // Usage is whole units.
                    given_back -= given_back % u128::from(unit);
                }
                edit.take(0..index + 1, convert_up(given_back, unit, weight_unit), PART);
                level.used - given_back
            }
            None => level.used.saturating_add(settled - charged),
        };
        edit.kill(index);
        let after = Self { level: Level { used, ..level }, ..*self };
        let snapshot = after.snapshot();
        let decision = Decision {
            granted: units,
            limit: meter.capacity,
            remaining: snapshot.remaining,
            wait: Wait::NONE,
            reset: snapshot.reset,
            retried: false,
        };
        let change = if used == 0 && meter.drain != Drain::Windows {
            Change::Remove
        } else {
            let next = after.next(used, snapshot.reset)?;
            after.finish(edit, &next, bytes)
        };
        Ok(Some(Settlement { kind: meter.kind, decision, change }))
    }

    /// The ids that are remembered, and their units.
    pub(in crate::limiter) fn count_ids(&self) -> (u64, u128) {
        self.ledger().map_or((0, 0), |ledger| ledger.count(&self.is_past()))
    }
}
