//! The meter behind FIXED, GCRA and BUCKET: a level of used units that drains with time.
//!
//! The record of each algorithm holds how much is used, and as of when. The algorithms differ in how usage drains. GCRA is
//! usually described by its theoretical arrival time (TAT). A meter that drains one unit per emission interval T is the same
//! algorithm in another form: TAT = now + used × T (ATM Forum, Traffic Management 4.1, 1999, section 4.4.2: virtual
//! scheduling and continuous-state leaky bucket). This module uses the level because it is exact in integers for every rate,
//! and because it can be carried over when the policy changes.
//!
//! Usage is counted in *grains*. Where usage drains continuously, a unit consists of as many grains as the period has
//! microseconds. So exactly `limit` grains drain per microsecond, and no division leaves a remainder.
//!
//! With [`Drain::Steps`] all usage is whole units. So the number of grains in the record also has room for the time of the write:
//! [`Meter::written`] subtracts from the usage one grain for each microsecond from the last step to the write. [`Meter::read`]
//! rounds the usage up to whole units again, so the subtraction affects no decision under [`Drain::Steps`]. The time of the write
//! is needed when the policy changes from steps to a continuous flow: tokens then flow from that time on.

mod alignment;
mod denial;
mod ids;
mod migrate;
mod record;

use alignment::Alignment;
pub use denial::LastingDenial;

use super::inspection::common_facts;
use super::ledger::WithIds;
use super::record::tat_ns;
use super::{
    Amount, Bytes, Change, Decision, Inspection, Instant, Kind, Overflow, PolicyOption, Quota, RecordError, Request,
    Snapshot, Span, Wait,
};

/// How usage drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Continuously, `limit` units per period.
    Smooth,
    /// `limit` units at once at the end of each period.
    Steps,
    /// As [`Self::Steps`], but each period is a window. A window runs even if nothing is used in it. Its end also ends the usage in
    /// it, except debt.
    Windows,
}

impl Drain {
    const ALL: [Self; 3] = [Self::Smooth, Self::Steps, Self::Windows];

    /// Whether the algorithm has a policy that drains this way.
    const fn is_of(self, kind: Kind) -> bool {
        match kind {
            Kind::Fixed => matches!(self, Self::Windows),
            Kind::Gcra => matches!(self, Self::Smooth),
            Kind::Bucket => matches!(self, Self::Smooth | Self::Steps),
            Kind::Slide | Kind::Lease => false,
        }
    }
}

/// A policy of one of the algorithms that use the meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    pub(super) kind: Kind,
    /// Units that drain per period.
    pub(super) limit: u64,
    pub(super) period_us: u64,
    /// Units that may be in use.
    pub(super) capacity: u64,
    pub(super) drain: Drain,
    pub(super) alignment: Alignment,
    /// See [`PolicyOption::CarriesOver`].
    pub(super) carries_over: bool,
}

/// A level of usage, and its date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    /// The date: with [`Drain::Smooth`] the moment as of which `used` holds, with [`Drain::Steps`] the last step, with
    /// [`Drain::Windows`] the window's start (with [`Alignment::Until`]: a period before the window's end).
    at: Instant,
    /// Usage in grains. What exceeds the capacity is debt.
    used: u128,
}

impl Meter {
    pub(super) const fn new(kind: Kind, quota: Quota, drain: Drain) -> Self {
        let limit = quota.limit();
        let (period_us, alignment) = (quota.period().as_us(), Alignment::FirstCall);
        Self { kind, limit, period_us, capacity: limit, drain, alignment, carries_over: false }
    }

    pub(super) const fn set(&mut self, option: PolicyOption) {
        match (self.kind, option) {
            (Kind::Fixed, PolicyOption::Align(offset_us)) => self.alignment = Alignment::Align(offset_us),
            (Kind::Fixed, PolicyOption::Until(time)) => self.alignment = Alignment::Until(time),
            (Kind::Gcra, PolicyOption::Burst(units)) | (Kind::Bucket, PolicyOption::Capacity(units)) => {
                self.capacity = units
            }
            (Kind::Bucket, PolicyOption::Step) => self.drain = Drain::Steps,
            (_, PolicyOption::CarriesOver) => self.carries_over = true,
            _ => {}
        }
    }

    /// Whether the same usage drains in the same way under both policies.
    fn drains_as(&self, other: &Self) -> bool {
        (self.limit, self.period_us, self.capacity, self.drain)
            == (other.limit, other.period_us, other.capacity, other.drain)
    }

    fn grains_per_unit(&self) -> u64 {
        if self.drain == Drain::Windows {
            1
        } else {
            self.period_us
        }
    }

    fn grains(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.grains_per_unit())
    }

    /// The level at `now`: subtracts the usage that has drained since the level's date. A date in the future counts as `now`.
    #[inline]
    fn advance(&self, level: Level, now: Instant) -> Level {
        let since_us = now.since(level.at).as_us();
        if self.drain == Drain::Smooth {
            return Level { at: now, used: level.used.saturating_sub(u128::from(since_us) * u128::from(self.limit)) };
        }
        let at = level.at.min(now);
        if since_us < self.period_us {
            // A window runs even if nothing is used in it. Steps begin with usage, so without usage the date is `now`.
            let idle = level.used == 0 && self.drain == Drain::Steps;
            return Level { at: if idle { now } else { at }, used: level.used };
        }
        let drained = u128::from(since_us / self.period_us).saturating_mul(self.grains(self.limit));
        match level.used.saturating_sub(drained) {
            0 => Level { at: self.start(now), used: 0 },
            // The last step, or the window's start: less than a period, so less than ten years, before `now`.
            used => Level { at: Instant::saturating(i128::from(now.as_us()) - i128::from(since_us % self.period_us)), used },
        }
    }

    /// Returns the level in a record, and the time at which the record was written. With [`Drain::Steps`] this undoes
    /// [`Self::written`]; otherwise the time is the level's date.
    #[inline]
    fn read(&self, level: Level) -> (Level, Instant) {
        if self.drain != Drain::Steps {
            return (level, level.at);
        }
        let unit = u128::from(self.grains_per_unit());
        let used = level.used.div_ceil(unit).saturating_mul(unit);
        (Level { at: level.at, used }, level.at.saturating_add(Span::saturating(used - level.used)))
    }

    /// The level that a record written at `now` holds. With [`Drain::Steps`] it includes the time of the write: see
    /// [the module](self).
    #[inline]
    fn written(&self, level: Level, now: Instant) -> Level {
        if self.drain != Drain::Steps {
            return level;
        }
        let since_step_us = now.since(level.at).as_us().min(self.period_us - 1);
        Level { at: level.at, used: level.used.saturating_sub(since_step_us.into()) }
    }

    /// How long until `grains` of the level's usage have drained, rounded up. `grains` must be at least 1.
    #[inline]
    fn until(&self, level: Level, now: Instant, grains: u128) -> Span {
        if self.drain == Drain::Smooth {
            return Span::saturating(div_ceil(grains, self.limit.into()));
        }
        let step = self.grains(self.limit);
        let steps = if grains <= step { 1 } else { grains.div_ceil(step) };
        // The date is less than a period before `now`. It lies after `now` if a window ends more than one period ahead: see
        // `alignment`.
        let since_us = i128::from(now.as_us()) - i128::from(level.at.as_us());
        Span::saturating(steps.saturating_mul(self.period_us.into()).saturating_add_signed(-since_us).max(1))
    }

    /// The number of whole units in `grains`.
    #[inline]
    fn whole_units(&self, grains: u128) -> u64 {
        let unit = self.grains_per_unit().into();
        if grains < unit {
            0
        } else {
            div(grains, unit) as u64
        }
    }

    /// `over`, the grains that must drain before a booking fits, rounded up to what whole windows drain.
    fn skips_to(&self, over: u128) -> u128 {
        let step = self.grains(self.limit);
        over.div_ceil(step).saturating_mul(step)
    }

    /// How long until nothing is used any more, rounded up.
    #[inline]
    fn reset(&self, level: Level, now: Instant) -> Span {
        if level.used == 0 {
            Span::ZERO
        } else {
            self.until(level, now, level.used)
        }
    }
}

/// A decoded record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    /// The policy that the record was written under, without the [`Alignment`], which records do not hold.
    pub(super) meter: Meter,
    /// The level as [`Meter::written`] made it, to be read with [`Meter::read`].
    level: Level,
    /// The ids.
    ids: Option<WithIds<'a>>,
}

/// A key's level under a policy, at a moment.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(super) meter: &'a Meter,
    now: Instant,
    /// The level at `now`.
    level: Level,
    /// The date of the level that [`Meter::read`] returned for the record; without a record, the date of `level`. With
    /// [`Alignment::Until`], the date of the level without the time that the call states.
    recorded_at: Instant,
    /// See [`super::View::matches_policy`].
    pub(super) matches_policy: bool,
    /// The value of the key, if it is a record without ids, and may be of another policy.
    stored: &'a [u8],
    /// The ids in the record.
    ids: Option<WithIds<'a>>,
}

/// The level that a decision leads to.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    /// The level as [`Meter::written`] makes it for the record.
    level: Level,
    /// From this moment on the record affects no decision.
    expires: Instant,
}

impl<'a> View<'a> {
    /// Computes the level of a key that holds `stored`.
    #[inline(always)]
    pub(super) fn load(meter: &'a Meter, stored: Option<&'a [u8]>, now: Instant) -> Result<super::View<'a>, RecordError> {
        let record = match stored.map(|bytes| Record::decode(bytes, meter.kind)) {
            None => None,
            Some(Ok(record)) => Some(record),
            // Any other value (with ids, or of redis-cell) is loaded elsewhere, so that this function copies no view.
            Some(Err(error)) => return Self::load_other(meter, stored.unwrap_or_default(), now, error).map(Self::opened),
        };
        Ok(Self { stored: stored.unwrap_or_default(), ..Self::of(meter, record, now) }.opened())
    }

    /// The view of a record without ids; `None`: the key does not exist.
    #[inline(always)]
    fn of(meter: &'a Meter, record: Option<Record<'_>>, now: Instant) -> Self {
        let (level, recorded_at, matches_policy) = match record {
            None => {
                let at = meter.start(now);
                (Level { at, used: 0 }, at, true)
            }
            Some(Record { meter: old, level, .. }) => {
                let (recorded, written) = old.read(level);
                let same = meter.drains_as(&old);
                let level =
                    if same { meter.advance_aligned(recorded, now) } else { meter.migrate(&old, (recorded, written), now) };
                if let Alignment::Until(time) = meter.alignment {
                    return Self::of_until(meter, time, level, same, now);
                }
                (level, recorded.at, same && meter.start(recorded.at) == recorded.at)
            }
        };
        Self { meter, now, level, recorded_at, matches_policy, stored: &[], ids: None }
    }

    #[inline(always)]
    const fn opened(self) -> super::View<'a> {
        if self.meter.limit == 0 {
            super::View::Closed
        } else {
            super::View::Meter(self)
        }
    }

    /// Computes the level of a key that holds a theoretical arrival time of redis-cell. The value does not hold the policy that it
    /// was written under, so the view assumes `meter`, as redis-cell assumes the policy of the call. Rounding up costs the caller
    /// less than one grain.
    #[cold]
    fn load_redis_cell(meter: &'a Meter, bytes: &[u8], now: Instant) -> Option<Self> {
        let tat_ns = if meter.kind == Kind::Gcra { tat_ns(bytes)? } else { return None };
        let left_ns = (i128::from(tat_ns) - i128::from(now.as_us()) * 1_000).max(0).unsigned_abs();
        let level = Level { at: now, used: (left_ns * u128::from(meter.limit)).div_ceil(1_000) };
        Some(Self { meter, now, level, recorded_at: now, matches_policy: true, stored: &[], ids: None })
    }

    /// Computes the level of a record under the policy that it was written under.
    pub(super) fn of_record(Record { meter, level, ids }: &'a Record<'a>, now: Instant) -> Self {
        let (recorded, _) = meter.read(*level);
        let level = meter.advance(recorded, now);
        Self { meter, now, level, recorded_at: recorded.at, matches_policy: true, stored: &[], ids: *ids }
    }

    #[inline]
    pub(super) fn snapshot(&self) -> Snapshot {
        let meter = self.meter;
        Snapshot {
            remaining: meter.whole_units(meter.grains(meter.capacity).saturating_sub(self.level.used)),
            reset: if self.matches_policy { meter.reset(self.level, self.now) } else { self.kept_reset() },
        }
    }

    #[inline(always)]
    pub(super) fn decide(
        &self,
        Request { amount, ahead, .. }: Request<'_>,
    ) -> Result<(Decision, super::Next<'static>), Overflow> {
        let Self { meter, now, level, .. } = *self;
        let capacity = meter.grains(meter.capacity);
        let free = capacity.saturating_sub(level.used);

        let (granted, mut used) = match amount {
            Amount::Cost(n) | Amount::Force(n) => (n, level.used.saturating_add(meter.grains(n))),
            Amount::UpTo(n) => {
                let granted = n.min(meter.whole_units(free));
                // If no unit is free, the denial shows the wait for one unit.
                (granted, level.used.saturating_add(meter.grains(granted.max(1))))
            }
            Amount::Refund(n) => {
                let whole = level.used / u128::from(meter.grains_per_unit());
                (n.min(u64::try_from(whole).unwrap_or(u64::MAX)), level.used.saturating_sub(meter.grains(n)))
            }
        };

        let mut wait = Span::ZERO;
        if used > capacity && amount.takes_free_units() {
            let denied = |wait, ahead| {
                let (limit, remaining) = (meter.capacity, meter.whole_units(free));
                let (wait, reset) = match meter.alignment {
                    Alignment::Until(time) => self.denied_until(time, used - capacity, ahead, wait),
                    _ => (wait, meter.reset(level, now)),
                };
                let (wait, reset) =
                    if self.matches_policy { (wait, reset) } else { self.kept(wait, reset, used - capacity, ahead) };
                Ok((Decision { granted: 0, limit, remaining, wait, reset, retried: false }, super::Next::Keep))
            };
            let ahead = match amount {
                Amount::Cost(n) if n > meter.capacity => return denied(Wait::Never, Span::ZERO),
                Amount::Cost(_) => ahead,
                _ => Span::ZERO,
            };
            wait = meter.until(level, now, used - capacity);
            if wait > ahead {
                return denied(Wait::For(wait.saturating_sub(ahead)), ahead);
            }
            if meter.drain != Drain::Smooth {
                // All units of a booking count in one window, so the booking uses up what is left of the windows before it.
                // With steps, the level falls no further than to zero before the booking acts: a full bucket takes no more
                // tokens.
                used = level.used.max(meter.skips_to(used - capacity)).saturating_add(meter.grains(granted));
            }
        }

        let reset = meter.reset(Level { at: level.at, used }, now);
        let decision = Decision {
            granted,
            limit: meter.capacity,
            remaining: meter.whole_units(capacity.saturating_sub(used)),
            wait: Wait::For(wait),
            reset,
            retried: false,
        };
        let next = if matches!(amount, Amount::Refund(_)) && used == level.used {
            super::Next::Keep
        } else if used == 0 && meter.drain != Drain::Windows {
            super::Next::Remove
        } else {
            super::Next::Meter(self.next(used, reset)?)
        };
        Ok((decision, next))
    }

    /// The next state with `used` grains. `reset` is how long until these have drained.
    #[inline(always)]
    fn next(&self, used: u128, reset: Span) -> Result<Next, Overflow> {
        let Self { meter, now, level, .. } = *self;
        let left = if used == 0 { meter.until(level, now, 1) } else { reset };
        let expires = now.checked_add(left).ok_or(Overflow)?;
        let level = meter.written(Level { at: self.dated(), used }, now);
        if !record::holds(level.used) {
            return Err(Overflow);
        }
        Ok(Next { level, expires })
    }

    #[inline(always)]
    pub(super) fn store(&self, next: &Next, bytes: &mut Bytes) -> Change {
        if next.level.at > self.now {
            return self.store_lengthened(next, bytes);
        }
        record::encode(self.meter, next.level, bytes);
        // All grants in a window expire with the window. With the slack, the key keeps a deadline that is right already.
        let slack = if self.meter.drain == Drain::Windows { Span::from_us(1_000) } else { Span::ZERO };
        Change::Write { offset: 0, head: 0, expires: next.expires, slack }
    }

    /// Used units, rounded up.
    pub(super) fn used_units(&self) -> u128 {
        self.level.used.div_ceil(self.meter.grains_per_unit().into())
    }

    /// The start and the end of the step or window in force; `None` if usage drains continuously, or if nothing is used.
    pub(super) fn step(&self) -> Option<(Instant, Instant)> {
        let Self { meter, level, recorded_at, .. } = self;
        // A level with usage always has a step or window in force. A window without usage is in force if it is the window in the
        // record: a window that has ended was replaced by a window with another date.
        let over = level.used == 0 && (meter.drain != Drain::Windows || level.at != *recorded_at);
        let end = level.at.saturating_add(Span::from_us(meter.period_us));
        (meter.drain != Drain::Smooth && !over).then_some((level.at, end))
    }

    /// The facts that these algorithms share.
    pub(super) fn inspect(&self) -> Inspection {
        let (meter, used) = (self.meter, self.used_units());
        let debt = used.saturating_sub(meter.capacity.into());
        common_facts(meter.kind, meter.limit, meter.period_us, used, self.snapshot(), debt)
    }
}

/// Division, by one instruction if both numbers fit 64 bits, which is the usual case.
fn div(a: u128, b: u128) -> u128 {
    match (u64::try_from(a), u64::try_from(b)) {
        (Ok(a), Ok(b)) => (a / b).into(),
        _ => a / b,
    }
}

/// [`div`], rounded up.
fn div_ceil(a: u128, b: u128) -> u128 {
    match (u64::try_from(a), u64::try_from(b)) {
        (Ok(a), Ok(b)) => a.div_ceil(b).into(),
        _ => a.div_ceil(b),
    }
}
