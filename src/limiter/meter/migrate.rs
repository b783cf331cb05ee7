//! A change of policy on a live key: usage is carried over in units, not in time.

use super::{Alignment, Drain, Level, Meter, Record, View};
use crate::limiter::ledger::WithIds;
use crate::limiter::{Instant, Span, Wait};

impl Meter {
    /// Converts `used` grains under the policy `old` to grains under this policy, rounded up. Usage is carried over in units:
    /// raising the capacity frees the difference at once, lowering it frees nothing, and debt above the old capacity is
    /// carried over in full.
    #[cold]
    fn carry(&self, old: &Self, used: u128) -> u128 {
        // Rounding up costs the caller less than one grain: less than what drains in a microsecond.
        let used = convert_up(used, old.grains_per_unit(), self.grains_per_unit());
        let capacity = self.grains(old.capacity);
        let used = used.min(capacity).min(self.grains(self.capacity)).saturating_add(used.saturating_sub(capacity));
        if self.drain == Drain::Steps {
            // Usage is whole units, because no step drains a fraction of one.
            let unit = u128::from(self.grains_per_unit());
            used.div_ceil(unit).saturating_mul(unit)
        } else {
            used
        }
    }

    /// The level of a record of this policy, when it was written, and when its debt is paid: see [`Migration`]. `level` and `written` are
    /// what [`Self::read`] returned for it.
    fn moments(&self, (level, written): (Level, Instant), now: Instant) -> (Level, Instant, Instant) {
        let level = Level { at: level.at.min(now), used: level.used };
        let debt = level.used.saturating_sub(self.grains(self.capacity));
        let written = written.min(now);
        let paid = if debt == 0 { written } else { level.at.saturating_add(self.until(level, level.at, debt)) };
        (level, written, paid)
    }

    /// The level at `now` of a record of the policy `old`. `record` is what [`Meter::read`] returned for it.
    #[cold]
    pub(super) fn migrate(&self, old: &Self, record: (Level, Instant), now: Instant) -> Level {
        Migration::new(self, old, record, now).level(now)
    }
}

/// A record, and a policy under which it was not written.
///
/// Usage drains at the old rate until the policy changes, and at the new rate afterwards. The record does not show when
/// the policy changed: this call may be the first one under the new policy, or it repeats an earlier call that was denied
/// under it, since a denied call writes nothing. So the level is computed for a change at each of three moments: now,
/// right after the record was written, and when the debt in the record was paid. The result is the lowest of the three
/// levels, so that no caller waits longer than the new policy demands.
struct Migration<'m> {
    new: &'m Meter,
    old: &'m Meter,
    /// The level in the record. A date in the future counts as the present time.
    level: Level,
    written: Instant,
    /// When the debt in the record is paid at the old rate; without debt, the moment of the write.
    paid: Instant,
}

impl<'m> Migration<'m> {
    fn new(new: &'m Meter, old: &'m Meter, record: (Level, Instant), now: Instant) -> Self {
        let (level, written, paid) = old.moments(record, now);
        Self { new, old, level, written, paid }
    }

    /// The level at `now`, if the policy changed at `moment`, which is not after `now`.
    fn changed_at(&self, moment: Instant, now: Instant) -> Level {
        let Self { new, old, .. } = *self;
        let Level { at, used } = old.advance(self.level, moment);
        if matches!(new.alignment, Alignment::Until(_)) && used == 0 && moment.since(self.level.at).as_us() >= old.period_us
        {
            // No window is in force, so a new one begins.
            return Level { at: new.start(now), used: 0 };
        }
        // When steps change to a continuous flow, tokens flow from the change on, not from the last step.
        let steps_end = old.drain == Drain::Steps && new.drain == Drain::Smooth;
        let at = if steps_end { moment } else { new.with_end_of(old, at, moment) };
        let level = Level { at, used: new.carry(old, used) };
        if at > now {
            // A window that ends more than one period ahead: see `alignment`.
            level
        } else {
            new.advance_aligned(level, now)
        }
    }

    fn level(&self, now: Instant) -> Level {
        // Of two equal levels, the one that drains sooner counts.
        let least = |least: Level, other: Level| if (other.used, other.at) < (least.used, least.at) { other } else { least };
        let changed_at = |moment: Instant| self.changed_at(moment.min(now), now);
        least(least(changed_at(now), changed_at(self.written)), changed_at(self.paid))
    }

    /// How long until at most `rest` grains are used, and stay so if no call takes any; `rest` must be whole units, and
    /// fewer than the capacity.
    ///
    /// Each look at the record computes the level anew. The level for a change at the write, or when the debt is paid,
    /// drains as it did at the look before. That for a change now does not: it drains at the old rate from look to look.
    fn until_rest(&self, rest: u128, now: Instant) -> Span {
        let Self { new, old, .. } = *self;
        let until = |meter: &Meter, level: Level, from: Instant, rest: u128| match level.used.saturating_sub(rest) {
            0 => from.since(now),
            over => {
                Span::saturating(u128::from(from.since(now).as_us()) + u128::from(meter.until(level, from, over).as_us()))
            }
        };
        // Fewer units than the capacity are used after a change of policy if and only if they were used before it.
        let old_rest = rest / u128::from(new.grains_per_unit()) * u128::from(old.grains_per_unit());
        let by_old_rate = until(old, old.advance(self.level, now), now, old_rest);
        [self.written, self.paid].into_iter().fold(by_old_rate, |sooner, moment| {
            let from = moment.max(now);
            sooner.min(until(new, self.changed_at(moment, from), from, rest))
        })
    }
}

impl Record<'_> {
    /// When the record was written, and when its debt is paid: see [`Migration`].
    pub(in crate::limiter) fn written_and_paid(&self, now: Instant) -> [Instant; 2] {
        let (_, written, paid) = self.meter.moments(self.meter.read(self.level), now);
        [written, paid]
    }

    /// The units that are used at `moment`, which is not after `now`, under the policy of the record, rounded up.
    pub(in crate::limiter) fn used_units_at(&self, moment: Instant, now: Instant) -> u128 {
        let (level, ..) = self.meter.moments(self.meter.read(self.level), now);
        self.meter.advance(level, moment).used.div_ceil(self.meter.grains_per_unit().into())
    }
}

impl View<'_> {
    /// Used grains.
    pub(in crate::limiter) const fn used_grains(&self) -> u128 {
        self.level.used
    }

    /// The record, without its ids, if it was not written under the view's policy.
    pub(super) fn other_record(&self) -> Option<Record<'static>> {
        let record = self.ids.map(WithIds::ledger).map_or(self.stored, |ledger| ledger.inner());
        Record::decode(record, self.meter.kind).ok().filter(|record| !self.meter.drains_as(&record.meter))
    }

    /// The wait and the reset of a denied call that fits when `over` grains have drained, if the record may be of another
    /// policy. `wait` and `reset` are those under the level of the view. The next look may find another level: see
    /// [`Migration::until_rest`].
    #[cold]
    pub(super) fn kept(&self, wait: Wait, reset: Span, over: u128, ahead: Span) -> (Wait, Span) {
        let Self { meter, now, level, .. } = *self;
        let Some(record) = self.other_record() else { return (wait, reset) };
        let migration = Migration::new(meter, &record.meter, record.meter.read(record.level), now);
        let reset = if level.used == 0 { Span::ZERO } else { reset.max(migration.until_rest(0, now)) };
        let Wait::For(wait) = wait else { return (wait, reset) };
        let rest = level.used.saturating_sub(over);
        let free = migration.until_rest(rest, now);
        // A booking is made earlier, if the level at that moment allows it. A reply rounds the wait up to milliseconds.
        let books_after = |wait: Span| {
            let at = now.saturating_add(wait);
            let View { level, .. } = View::of(meter, Some(record), at);
            level.used <= rest || meter.until(level, at, level.used - rest) <= ahead
        };
        let is_kept = |&wait: &Span| {
            wait >= free
                || (ahead > Span::ZERO && wait > Span::ZERO)
                    && [wait, Span::from_us(wait.as_ms_ceil().saturating_mul(1_000))].into_iter().all(books_after)
        };
        let kept = [wait, free.saturating_sub(ahead)].into_iter().find(is_kept);
        (Wait::For(kept.unwrap_or(free)), reset)
    }

    /// How long until nothing is used any more, if the record may be of another policy.
    #[cold]
    pub(super) fn kept_reset(&self) -> Span {
        let reset = self.meter.reset(self.level, self.now);
        if matches!(self.meter.alignment, Alignment::Until(_)) {
            return reset;
        }
        self.kept(Wait::Never, reset, 0, Span::ZERO).1
    }
}

/// Converts grains, `from` of which are a unit, to grains, `to` of which are a unit. Rounds down.
pub(super) fn convert_down(grains: u128, from: u64, to: u64) -> u128 {
    let (from, to) = (u128::from(from.max(1)), u128::from(to));
    (grains / from).saturating_mul(to).saturating_add(grains % from * to / from)
}

/// [`convert_down`], but rounded up.
pub(super) fn convert_up(grains: u128, from: u64, to: u64) -> u128 {
    let (from, to) = (u128::from(from.max(1)), u128::from(to));
    (grains / from).saturating_mul(to).saturating_add((grains % from * to).div_ceil(from))
}
