//! SLIDE: any window (t - period, t] contains at most `limit` granted units.
//!
//! The state is one packed log of grants, which is searched in place. Time is divided into ticks, counted from the Unix
//! epoch. An entry consists of a tick in which units were granted, and of the number of units granted up to the end of that
//! tick. So the number of units in a window is the difference of two entries, and a binary search finds the entries. An
//! entry counts until its whole tick has left the window: at most one tick longer than an exact log would count it, and
//! never shorter.
//!
//! Callers with different periods or ticks share one log. The log has its own [`Grid`], and each caller's window is measured
//! in the ticks of that grid. A call rewrites the log only if its policy has a longer period or a finer tick than the grid
//! ([`Grid::covering`]). If for a whole period of the log only one caller was granted units, the next grant to that caller
//! rewrites the log on the caller's own grid ([`View::plan`]). So the end of an entry is rounded up at most once per caller
//! and period, and no entry moves past the current tick.
//!
//! A record begins with the three bytes that [`record`](super::record) describes, and a byte that is 0. These fields follow:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | limit, units |
//! | 8 | period, microseconds |
//! | 8 | tick, microseconds |
//! | 8 | base: the tick from which the entries' ticks are counted, signed |
//! | 4 | units granted before the first entry, modulo 2^32 |
//! | 4 | mark: entries before this tick, from the base, may lie in the future; 0: no entry does; 2^32 - 1: entries may lie any time in the future; from 2^31 on: a [`Shared`](log::Shared) |
//! | 4 + 4 each | entries: a tick, from the base, and the units granted up to its end, modulo 2^32; ticks ascend |
//!
//! Counts wrap around at 2^32. Their differences are right all the same, because no window holds 2^32 units.

mod ids;
mod log;
mod search;
mod settle;
mod sound;
mod write;

use super::inspection::{common_facts, ids_facts};
use super::ledger::WithIds;
use super::{
    Amount, Decision, Fact, Inspection, Instant, Kind, OptionSpec, OptionValue, Overflow, PolicyOption, Quota, RecordError,
    Request, Snapshot, Span, Spec, Wait, MIN_RECORD,
};
use log::{booking_horizon, count, offset, Grid, Log, MAX_SEGMENTS};
use search::first_reaching;
pub use write::Next;

pub(super) const SPEC: Spec = Spec {
    name: "SLIDE",
    tag: 2,
    // The highest count that an entry can hold.
    max_limit: u32::MAX as u64,
    options: &[OptionSpec {
        keyword: "SEGMENTS",
        value: OptionValue::Count { min: 1, max: MAX_SEGMENTS, option: PolicyOption::Segments },
    }],
    options_exclude: false,
    min_len: MIN_RECORD,
    // The limit holds for windows of the actual times of the grants.
    charges_when_due: false,
    period: "period",
    holds: false,
    takes_moment: false,
};

/// Sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slide {
    pub(super) quota: Quota,
    /// Ticks in a period.
    segments: u64,
    /// See [`PolicyOption::CarriesOver`].
    pub(super) carries_over: bool,
}

impl Slide {
    pub(super) const fn new(quota: Quota) -> Self {
        Self { quota, segments: MAX_SEGMENTS, carries_over: false }
    }

    pub(super) const fn set(&mut self, option: PolicyOption) {
        match option {
            PolicyOption::Segments(segments) => self.segments = segments,
            PolicyOption::CarriesOver => self.carries_over = true,
            _ => {}
        }
    }

    const fn grid(&self) -> Grid {
        let period_us = self.quota.period().as_us();
        Grid { tick_us: period_us.div_ceil(self.segments), period_us }
    }
}

/// The state of a log at a moment, under a policy that may differ from the one it was written under.
#[derive(Clone, Copy)]
pub struct View<'a> {
    log: Log<'a>,
    /// The policy's limit, in units.
    limit: u64,
    /// The policy's grid.
    grid: Grid,
    now: Instant,
    /// If the clock stepped back, entries count as if they were this many of the log's ticks earlier; otherwise 0.
    shift: i64,
    /// The index of the first entry that counts for the policy.
    live: usize,
    /// The index of the first entry that counts for the policy or for the log's own period. The entries before it are dead.
    kept: usize,
    /// The ids in the record.
    ids: Option<WithIds<'a>>,
}

impl<'a> View<'a> {
    /// Decodes the log of a key that holds `stored`, and computes its state.
    #[inline(always)]
    pub(super) fn load(slide: &Slide, stored: Option<&'a [u8]>, now: Instant) -> Result<super::View<'a>, RecordError> {
        let grid = slide.grid();
        let log = match stored {
            Some(bytes) => match Log::decode(bytes) {
                Ok(log) => log,
                Err(error) => return Self::load_with_ids(slide, bytes, now, error).map(Self::opened),
            },
            None => Log { limit: 0, grid, base: 0, before_first: 0, mark: 0, entries: &[] },
        };
        Ok(Self::new(log, slide.quota.limit(), grid, now).opened())
    }

    #[inline(always)]
    const fn opened(self) -> super::View<'a> {
        if self.limit == 0 {
            super::View::Closed
        } else {
            super::View::Slide(self)
        }
    }

    /// Decodes a log, and computes its state under the policy in its header.
    pub(super) fn of_record(bytes: &'a [u8], now: Instant) -> Result<Self, RecordError> {
        let (log, ids) = Log::decode_any(bytes)?;
        Ok(Self { ids, ..Self::new(log, log.limit.into(), log.grid, now) })
    }

    #[inline(always)]
    fn new(log: Log<'a>, limit: u64, grid: Grid, now: Instant) -> Self {
        let mut view = Self { log, limit, grid, now, shift: 0, live: 0, kept: 0, ids: None };
        let Some(last) = log.entries.len().checked_sub(1) else { return view };
        // The furthest moment at which the last entry can lie: now, or if the mark says that it may lie in the future, the
        // booking horizon or any moment. If the entry lies later, the clock has stepped back.
        let furthest = match log.ahead_bound() {
            None => Instant::MAX,
            Some(bound) if u64::from(log.offset(last)) < bound => booking_horizon(now, log.grid),
            Some(_) => now,
        };
        let latest = furthest.as_us().div_euclid(log.grid.tick_us as i64);
        view.shift = log.base.saturating_add(log.offset(last).into()).saturating_sub(latest).max(0);
        view.live = view.first_within(grid.period_us);
        view.kept = if grid.period_us < log.grid.period_us { view.first_within(log.grid.period_us) } else { view.live };
        view
    }

    /// The index of the first entry that counts for a period.
    #[inline]
    fn first_within(&self, period_us: u64) -> usize {
        // An entry counts until the last microsecond of its tick is a period ago. `oldest` is the first tick that counts.
        let log = &self.log;
        let oldest = self.now.as_us().saturating_sub(period_us as i64).saturating_add(1).div_euclid(log.grid.tick_us as i64);
        let oldest = i128::from(oldest) + i128::from(self.shift) - i128::from(log.base);
        let oldest = oldest.clamp(0, 1 << 32) as u64;
        first_reaching(log.entries, oldest, |entry| offset(entry).into())
    }

    /// The units granted up to the end of entry `index`, modulo 2^32, without those that were given back.
    #[inline(always)]
    fn count(&self, index: usize) -> u32 {
        self.log.count(index).wrapping_sub(self.given_back(index))
    }

    /// The units granted before entry `index`, modulo 2^32, without those that were given back.
    #[inline(always)]
    fn count_before(&self, index: usize) -> u32 {
        if index == 0 {
            self.log.before_first
        } else {
            self.count(index - 1)
        }
    }

    fn len(&self) -> usize {
        self.log.entries.len()
    }

    /// The tick of entry `index`, counted from the Unix epoch.
    fn tick(&self, index: usize) -> i128 {
        i128::from(self.log.base) - i128::from(self.shift) + i128::from(self.log.offset(index))
    }

    /// The log's tick at `now`.
    fn current_tick(&self) -> i128 {
        self.log.grid.tick_at(self.now)
    }

    /// The index of the first entry at whose end at least `units` of the units that count were granted.
    fn index_reaching(&self, units: u32) -> usize {
        let before = self.count_before(self.live);
        if self.has_given_back() {
            return self.net_index_reaching(before, units);
        }
        self.live
            + first_reaching(&self.log.entries[self.live..], units.into(), |entry| count(entry).wrapping_sub(before).into())
    }

    /// How long until `units` of the units that count have left the window.
    fn until(&self, units: u32) -> Span {
        // A damaged log may have no entry that reaches `units`.
        self.until_gone(self.index_reaching(units).min(self.len() - 1))
    }

    /// How long until entry `index` has left the window.
    fn until_gone(&self, index: usize) -> Span {
        let grid = Grid { tick_us: self.log.grid.tick_us, period_us: self.grid.period_us };
        let left_us = grid.expiry_us(self.tick(index)) - i128::from(self.now.as_us());
        Span::saturating(left_us.max(1).unsigned_abs())
    }

    /// The units that count.
    #[inline(always)]
    pub(super) fn used(&self) -> u32 {
        match self.len().checked_sub(1) {
            Some(last) if self.live <= last => self.count(last).wrapping_sub(self.count_before(self.live)),
            _ => 0,
        }
    }

    /// The limit, in units.
    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    /// The end of the last tick in which units were granted; `None` if the log has no entry.
    pub(super) fn last_write(&self) -> Option<Instant> {
        let last = self.len().checked_sub(1)?;
        Some(Instant::saturating((self.tick(last) + 1) * i128::from(self.log.grid.tick_us)))
    }

    /// When at most [`Self::limit`] units are used, if they leave the window only; now if they are no more than that.
    pub(super) fn debt_paid_at(&self) -> Instant {
        let debt = u64::from(self.used()).saturating_sub(self.limit);
        u32::try_from(debt).ok().filter(|&debt| debt > 0).map_or(self.now, |debt| self.now.saturating_add(self.until(debt)))
    }

    /// The units that are booked: those that count and lie in the future.
    fn booked(&self) -> u32 {
        let before = self.count_before(self.live);
        let current = self.current_tick();
        let past = (self.live..self.len()).rev().find(|&index| self.tick(index) <= current);
        self.used().wrapping_sub(past.map_or(0, |index| self.count(index).wrapping_sub(before)))
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.snapshot_of(self.used())
    }

    /// The snapshot if `used` units count.
    #[inline(always)]
    fn snapshot_of(&self, used: u32) -> Snapshot {
        Snapshot {
            remaining: self.limit.saturating_sub(used.into()),
            // The last entry leaves the window last.
            reset: if used == 0 { Span::ZERO } else { self.until_gone(self.len() - 1) },
        }
    }

    pub(super) fn decide(
        &self,
        Request { amount, ahead, .. }: Request<'_>,
    ) -> Result<(Decision, super::Next<'static>), Overflow> {
        let limit = self.limit;
        let counting = self.used();
        let used = u64::from(counting);
        let Snapshot { remaining: free, reset } = self.snapshot_of(counting);
        let denied =
            |wait| Ok((Decision { granted: 0, limit, remaining: free, wait, reset, retried: false }, super::Next::Keep));

        let plan = self.plan();
        let mut acts = self.now;
        let granted = match amount {
            Amount::Cost(n) if n > limit => return denied(Wait::Never),
            Amount::Cost(n) if n > free => {
                // At most `used` units must leave the window, since `n` is at most `limit`.
                let wait = self.until((used + n - limit) as u32);
                let horizon = booking_horizon(self.now, Grid { tick_us: plan.grid.tick_us, ..self.grid });
                let ahead = ahead.min(horizon.since(self.now));
                if wait > ahead {
                    return denied(Wait::For(wait.saturating_sub(ahead)));
                }
                acts = self.now.checked_add(wait).ok_or(Overflow)?;
                n
            }
            Amount::UpTo(_) if free == 0 => return denied(Wait::For(self.until((used + 1 - limit) as u32))),
            Amount::UpTo(n) => n.min(free),
            Amount::Cost(n) | Amount::Force(n) => n,
            Amount::Refund(n) => return Ok(self.refund(n.min(used) as u32, reset, &plan)),
        };
        let units = u32::try_from(granted).map_err(|_| Overflow)?;
        let after = counting.checked_add(units).ok_or(Overflow)?;
        // The counts must not wrap around within the entries that the log keeps, some of which count only for callers with a
        // longer period.
        let count = self.count_before(self.live).wrapping_add(after);
        count.wrapping_sub(units).wrapping_sub(self.units_dropped(&plan)).checked_add(units).ok_or(Overflow)?;

        let tick = plan.grid.tick_at(acts);
        // Ticks must ascend. So if the last entry lies in the future, it also holds the units that are granted before its
        // tick. They count for longer than they had to.
        let tick = if self.kept == self.len() { tick } else { tick.max(self.placed(self.len() - 1, plan.grid)) };
        let expires_us = plan.grid.expiry_us(tick);
        if expires_us > i64::MAX.into() {
            return Err(Overflow);
        }
        let used_until_us = Grid { period_us: self.grid.period_us, ..plan.grid }.expiry_us(tick);
        let decision = Decision {
            granted,
            limit,
            remaining: limit.saturating_sub(u64::from(after) + self.units_revived(&plan)),
            wait: Wait::For(acts.since(self.now)),
            reset: Span::saturating((used_until_us - i128::from(self.now.as_us())).unsigned_abs()),
            retried: false,
        };
        Ok((decision, super::Next::Slide(Next::grant(units, acts > self.now, tick, count, Instant::saturating(expires_us)))))
    }

    /// Gives back the newest `units`, which must be at most [`Self::used`].
    fn refund(&self, units: u32, reset: Span, plan: &write::Plan) -> (Decision, super::Next<'static>) {
        let limit = self.limit;
        let used = self.used() - units;
        let decision = |used: u64, reset| Decision {
            granted: units.into(),
            limit,
            remaining: limit.saturating_sub(used),
            wait: Wait::NONE,
            reset,
            retried: false,
        };
        if units == 0 {
            return (decision(used.into(), reset), super::Next::Keep);
        }
        let left = u64::from(used) + self.units_revived(plan);
        if used == 0 && self.first_kept(plan) == self.live {
            return (decision(left, Span::ZERO), super::Next::Remove);
        }
        // If nothing is used in this caller's window any more, the entries before the window stay, because they count for
        // other callers.
        let index = if used == 0 { self.live - 1 } else { self.index_reaching(used).min(self.len() - 1) };
        let count = self.count_before(self.live).wrapping_add(used);
        let tick = self.placed(index, plan.grid);
        let now_us = i128::from(self.now.as_us());
        let reset = match left {
            0 => Span::ZERO,
            _ => {
                let used_until_us = Grid { period_us: self.grid.period_us, ..plan.grid }.expiry_us(tick);
                Span::saturating((used_until_us - now_us).max(1).unsigned_abs())
            }
        };
        let expires = Instant::saturating(plan.grid.expiry_us(tick).max(now_us + 1));
        (decision(left, reset), super::Next::Slide(Next::refund(index, tick, count, expires)))
    }

    pub(super) fn inspect(&self) -> Inspection {
        let log = &self.log;
        let used = self.used();
        let counting = self.len() - self.live;
        let moment = |index: usize| {
            if counting == 0 {
                Fact::Nothing
            } else {
                let us = self.tick(index) * i128::from(log.grid.tick_us);
                Fact::Number(Instant::saturating(us).as_ms_floor())
            }
        };
        let debt = used.saturating_sub(log.limit);
        let mut inspection =
            common_facts(Kind::Slide, log.limit.into(), log.grid.period_us, used.into(), self.snapshot(), debt.into());
        inspection.extend([
            ("bookings", Fact::count(self.booked())),
            ("tick_us", Fact::count(log.grid.tick_us)),
            ("entries", Fact::count(counting)),
            ("entries_stored", Fact::count(self.len())),
            ("oldest_ms", moment(self.live)),
            ("newest_ms", moment(self.len().saturating_sub(1))),
        ]);
        inspection.extend(ids_facts(self.count_ids()));
        inspection
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::log::{entry, ENTRY};
    use super::*;
    use crate::limiter::{Bytes, Policy, MAX_PERIOD, MAX_UNITS, MIN_PERIOD};

    prop_compose! {
        fn header()(
            limit in 1..=u32::MAX,
            period_us in MIN_PERIOD.as_us()..=MAX_PERIOD.as_us(),
            segments in 1..=MAX_SEGMENTS,
            base in any::<i64>(),
            before_first in any::<u32>(),
            mark in any::<u32>(),
        ) -> Log<'static> {
            let grid = Grid { tick_us: period_us.div_ceil(segments), period_us };
            Log { limit, grid, base, before_first, mark, entries: &[] }
        }
    }

    proptest! {
        #[test]
        fn an_encoded_record_decodes_to_the_same(log in header(), entries in prop::collection::vec(any::<(u32, u32)>(), 1..20)) {
            let mut bytes = log.header().to_vec();
            entries.iter().for_each(|&(offset, count)| bytes.extend(entry(offset, count)));
            let decoded = Log::decode(&bytes).expect("a record");
            prop_assert_eq!(format!("{:?}", Log { entries: &[], ..decoded }), format!("{log:?}"));
            let read: Vec<_> = (0..decoded.entries.len()).map(|index| (decoded.offset(index), decoded.count(index))).collect();
            prop_assert_eq!(read, entries);
        }

        #[test]
        fn arbitrary_entries_never_panic(
            log in header(),
            entries in prop::collection::vec(any::<[u8; ENTRY]>(), 1..20),
            now in any::<i64>(),
            limit in 1..=u32::MAX,
            n in 1..=MAX_UNITS,
            ahead in prop_oneof![Just(0), any::<u64>()],
            period_us in MIN_PERIOD.as_us()..=MAX_PERIOD.as_us(),
        ) {
            let mut bytes = log.header().to_vec();
            bytes.extend(entries.as_flattened());
            let quota = Quota::new(limit.into(), Span::from_us(period_us)).expect("in range");
            let policy = Policy::Slide(Slide::new(quota));
            let view = policy.view(Some(&bytes), Instant::from_us(now)).expect("a record");
            for amount in [Amount::Cost(n), Amount::UpTo(n), Amount::Force(n), Amount::Refund(n)] {
                if let Ok((_, next)) = view.decide(Request { ahead: Span::from_us(ahead), ..Request::now(amount) }) {
                    view.store(&next, || 0, &mut Bytes::default());
                }
            }
            crate::limiter::inspect(&bytes, Instant::from_us(now)).expect("a record");
        }
    }
}
