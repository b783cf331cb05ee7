//! The meter behind FIXED, GCRA and BUCKET: a level of used units that drains with time.
//!
//! All three keep how much is used and as of when; they differ in how usage drains. GCRA is usually told by its theoretical
//! arrival time; a meter that drains at one unit per emission interval T is the same algorithm, seen from the other side
//! (ATM Forum, Traffic Management 4.1, 1999, section 4.4.2: virtual scheduling and continuous-state leaky bucket):
//! TAT = now + used × T. The level is what is exact in integers for every rate, and what a changing policy carries over.
//!
//! Used units are counted in *grains*. Where usage drains continuously a unit is as many grains as the period has
//! microseconds, so that `limit` grains drain per microsecond: no rate has a remainder.
//!
//! With [`Drain::Steps`] all usage is whole units, so a record has room for when it was written, beside its last step: as many
//! grains as microseconds have passed since that are missing from the last unit. To nobody who counts whole units is that a
//! difference, but where steps give way to a continuous flow, it flows from the last write on.

use super::record::{self, fits, take};
use super::{
    Amount, Change, Decision, Fact, Foreign, Instant, Kind, Quota, Refusal, Report, Request, Room, Span, Standing, Verdict,
    Wait, MAX_PERIOD, MAX_UNITS, MIN_PERIOD,
};

/// How usage drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Continuously, `limit` units per period.
    Smooth,
    /// `limit` units at once at the end of each period.
    Steps,
    /// As [`Self::Steps`], but a period ends what was used in it, and with nothing used there is still a period.
    Windows,
}

impl Drain {
    const ALL: [Self; 3] = [Self::Smooth, Self::Steps, Self::Windows];
}

/// What the three algorithms make of their policies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    /// Units that drain per period, at least 1.
    pub limit: u64,
    /// Microseconds.
    pub period: u64,
    /// Units that may be in use, at least 1.
    pub capacity: u64,
    pub drain: Drain,
    /// [`Drain::Windows`]: whether they begin at each multiple of the period, shifted by so many microseconds.
    pub align: Option<i64>,
}

/// The records of an algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub kind: Kind,
    /// The ways in which their levels may drain.
    pub drains: &'static [Drain],
}

/// What is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    /// As of when; where usage drains in steps, the last step or the window's start.
    at: Instant,
    /// Grains. Above the capacity: debt.
    used: u128,
}

impl Meter {
    pub(super) fn new(quota: Quota, capacity: u64, drain: Drain) -> Self {
        Self { limit: quota.limit(), period: quota.period().as_us(), capacity, drain, align: None }
    }

    /// Whether the same usage drains alike under both.
    fn same(&self, other: &Self) -> bool {
        (self.limit, self.period, self.capacity, self.drain) == (other.limit, other.period, other.capacity, other.drain)
    }

    /// Grains in a unit.
    fn unit(&self) -> u64 {
        if self.drain == Drain::Windows {
            1
        } else {
            self.period
        }
    }

    fn grains(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.unit())
    }

    /// When a level that begins now is dated.
    #[inline]
    fn start(&self, now: Instant) -> Instant {
        let Some(offset) = self.align else { return now };
        let period = self.period as i64;
        // Both terms are less than a period in size, so one correction brings their difference back into 0 .. period.
        let into = match now.as_us().rem_euclid(period) - offset {
            into if into < 0 => into + period,
            into if into >= period => into - period,
            into => into,
        };
        Instant::from_us(now.as_us().saturating_sub(into))
    }

    /// The level at `now`: what has drained since is gone. A level dated in the future is taken as dated now.
    #[inline]
    fn advance(&self, level: Level, now: Instant) -> Level {
        let since = now.since(level.at).as_us();
        if self.drain == Drain::Smooth {
            return Level { at: now, used: level.used.saturating_sub(u128::from(since) * u128::from(self.limit)) };
        }
        let at = level.at.min(now);
        if since < self.period {
            let over = level.used == 0 && self.drain == Drain::Steps;
            return Level { at: if over { now } else { at }, used: level.used };
        }
        let drained = u128::from(since / self.period).saturating_mul(self.grains(self.limit));
        match level.used.saturating_sub(drained) {
            0 => Level { at: self.start(now), used: 0 },
            // The remainder is below ten years.
            used => Level { at: Instant::saturating(i128::from(now.as_us()) - i128::from(since % self.period)), used },
        }
    }

    /// What is used under this policy of what was `used` under `old`. Usage is carried in units: raising the capacity frees
    /// the difference at once, lowering it frees nothing, and what was owed above the old capacity is owed in whole.
    #[cold]
    fn carry(&self, old: &Self, used: u128) -> u128 {
        // Rounded up, against the caller, by less than one grain: less than a microsecond's worth.
        let (from, to) = (u128::from(old.unit()), u128::from(self.unit()));
        let used = (used / from).saturating_mul(to).saturating_add((used % from * to).div_ceil(from));
        let capacity = self.grains(old.capacity);
        let used = used.min(capacity).min(self.grains(self.capacity)).saturating_add(used.saturating_sub(capacity));
        if self.drain == Drain::Steps {
            // In whole units: no step brings a fraction.
            used.div_ceil(to).saturating_mul(to)
        } else {
            used
        }
    }

    /// A level as a record has it, in whole units where usage drains in steps; and when it was written.
    #[inline]
    fn read(&self, level: Level) -> (Level, Instant) {
        if self.drain != Drain::Steps {
            return (level, level.at);
        }
        let unit = u128::from(self.unit());
        let used = level.used.div_ceil(unit).saturating_mul(unit);
        (Level { at: level.at, used }, level.at.saturating_add(Span::saturating(used - level.used)))
    }

    /// A level as a record has it that is written at `now`: the opposite of [`Self::read`].
    #[inline]
    fn written(&self, level: Level, now: Instant) -> Level {
        if self.drain != Drain::Steps {
            return level;
        }
        let late = now.since(level.at).as_us().min(self.period - 1);
        Level { at: level.at, used: level.used.saturating_sub(late.into()) }
    }

    /// The level at `now` that was `written` as `level` under `old`.
    ///
    /// Usage drains at the old rate up to the change of policy, which is now. But a denied call writes nothing, so the record
    /// can't tell whether this is the change or a retry long after it, for which the old rate would be wrong. So it is never
    /// worse than as if the change had come right after the record was written, or when its debt was paid: nobody waits for
    /// longer than the new policy says.
    #[cold]
    fn changed(&self, old: &Self, (level, written): (Level, Instant), now: Instant) -> Level {
        let level = Level { at: level.at.min(now), used: level.used };
        let debt = level.used.saturating_sub(old.grains(old.capacity));
        let paid = if debt == 0 { written } else { level.at.checked_add(old.until(level, level.at, debt)).unwrap_or(now) };
        let since = |change: Instant| {
            let Level { at, used } = old.advance(level, change);
            // What came in steps flows from the change on, not from the last step.
            let at = if old.drain == Drain::Steps && self.drain == Drain::Smooth { change } else { at };
            self.aligned(Level { at, used: self.carry(old, used) }, now)
        };
        let literal = since(now);
        let others = [since(written.min(now)), since(paid.min(now))];
        others.into_iter().fold(literal, |least, other| if other.used < least.used { other } else { least })
    }

    /// [`Self::advance`], with every window on the grid: the one that holds the level's date.
    #[inline]
    fn aligned(&self, level: Level, now: Instant) -> Level {
        let at = if self.align.is_some() { self.start(level.at.min(now)) } else { level.at };
        self.advance(Level { at, used: level.used }, now)
    }

    /// How long until `grains`, at least 1 of those in use, have drained; rounded up.
    #[inline]
    fn until(&self, level: Level, now: Instant, grains: u128) -> Span {
        if self.drain == Drain::Smooth {
            return Span::saturating(div_ceil(grains, self.limit.into()));
        }
        let step = self.grains(self.limit);
        let steps = if grains <= step { 1 } else { grains.div_ceil(step) };
        Span::saturating(steps.saturating_mul(self.period.into()).saturating_sub(now.since(level.at).as_us().into()).max(1))
    }

    /// The level at `now` of a key that holds `stored`, a record of `form`; and the earliest date that it may be written
    /// with. A record's date never goes back, or two grids in turn would each move a window to before the other's.
    #[inline(always)]
    fn level(&self, form: Form, stored: Option<&[u8]>, now: Instant) -> Result<(Level, Instant), Foreign> {
        let Some(bytes) = stored else {
            let at = self.start(now);
            return Ok((Level { at, used: 0 }, at));
        };
        let (old, level) = match decode(bytes, form) {
            Ok(decoded) => decoded,
            Err(foreign) => return self.arrival(form, bytes, now).map(|level| (level, now)).ok_or(foreign),
        };
        let (level, written) = old.read(level);
        let earliest = level.at.min(now);
        let level = if self.same(&old) { self.aligned(level, now) } else { self.changed(&old, (level, written), now) };
        Ok((level, earliest))
    }

    /// The level at `now` of a key that redis-cell left: a theoretical arrival time. It does not say under which policy, and
    /// counts as this one's, as in redis-cell. Rounded up, against the caller, by less than one grain.
    #[cold]
    fn arrival(&self, form: Form, bytes: &[u8], now: Instant) -> Option<Level> {
        let tat_ns = if form.kind == Kind::Gcra { record::tat_ns(bytes)? } else { return None };
        let left_ns = (i128::from(tat_ns) - i128::from(now.as_us()) * 1_000).max(0).unsigned_abs();
        Some(Level { at: now, used: (left_ns * u128::from(self.limit)).div_ceil(1_000) })
    }

    /// Decides for a key that holds `stored`, a record of `form`.
    #[inline(always)]
    pub(super) fn decide(
        &self,
        form: Form,
        stored: Option<&[u8]>,
        now: Instant,
        request: Request,
        into: Room<'_>,
    ) -> Result<Verdict, Refusal> {
        let (level, earliest) = self.level(form, stored, now)?;
        self.charge(form, (level, earliest), now, request, into)
    }

    /// Whether `stored`, a record of `form`, drains as this policy says, on its grid.
    pub(super) fn wrote(&self, form: Form, stored: &[u8]) -> bool {
        match decode(stored, form) {
            Ok((old, level)) => self.same(&old) && self.start(level.at) == level.at,
            Err(_) => self.arrival(form, stored, Instant::MAX).is_some(),
        }
    }

    /// How a key that holds `stored`, a record of `form`, stands.
    pub(super) fn standing(&self, form: Form, stored: Option<&[u8]>, now: Instant) -> Result<Standing, Foreign> {
        Ok(self.stands(self.level(form, stored, now)?.0, now))
    }

    #[inline]
    fn stands(&self, level: Level, now: Instant) -> Standing {
        Standing {
            remaining: self.whole(self.grains(self.capacity).saturating_sub(level.used)),
            reset: self.reset(level, now),
        }
    }

    /// Whole units in so many grains.
    #[inline]
    fn whole(&self, grains: u128) -> u64 {
        let unit = self.unit().into();
        if grains < unit {
            0
        } else {
            div(grains, unit) as u64
        }
    }

    /// How long until nothing is used any more.
    #[inline]
    fn reset(&self, level: Level, now: Instant) -> Span {
        if level.used == 0 {
            Span::ZERO
        } else {
            self.until(level, now, level.used)
        }
    }

    #[inline(always)]
    fn charge(
        &self,
        form: Form,
        (level, earliest): (Level, Instant),
        now: Instant,
        Request { amount, ahead }: Request,
        into: Room<'_>,
    ) -> Result<Verdict, Refusal> {
        let unit = self.unit();
        let capacity = self.grains(self.capacity);
        let free = capacity.saturating_sub(level.used);

        let (granted, mut used) = match amount {
            Amount::Cost(n) => (n, level.used.saturating_add(self.grains(n))),
            Amount::UpTo(n) => {
                let granted = n.min(self.whole(free));
                // None fits: what is denied is the first one.
                (granted, level.used.saturating_add(self.grains(granted.max(1))))
            }
            Amount::Force(n) => (n, level.used.saturating_add(self.grains(n))),
            Amount::Refund(n) => {
                let used = level.used.saturating_sub(self.grains(n));
                (n.min(u64::try_from(level.used / u128::from(unit)).unwrap_or(u64::MAX)), used)
            }
        };

        let mut wait = Span::ZERO;
        if used > capacity && matches!(amount, Amount::Cost(_) | Amount::UpTo(_)) {
            let denied = |wait| {
                let (limit, remaining, reset) = (self.capacity, self.whole(free), self.reset(level, now));
                Ok((Decision { granted: 0, limit, remaining, wait, reset }, Change::Keep))
            };
            let ahead = match amount {
                Amount::Cost(n) if n > self.capacity => return denied(Wait::Never),
                Amount::Cost(_) => ahead,
                _ => Span::ZERO,
            };
            wait = self.until(level, now, used - capacity);
            if wait > ahead {
                return denied(Wait::For(wait.saturating_sub(ahead)));
            }
            if self.drain != Drain::Smooth {
                // A booking acts wholly in one window: what is left of those before it is used up. So with steps: what a full
                // bucket can't take in is lost.
                let step = self.grains(self.limit);
                let steps = (used - capacity).div_ceil(step);
                used = level.used.max(steps.saturating_mul(step)).saturating_add(self.grains(granted));
            }
        }

        let after = Level { at: level.at, used };
        let reset = self.reset(after, now);
        let decision = Decision {
            granted,
            limit: self.capacity,
            remaining: self.whole(capacity.saturating_sub(used)),
            wait: Wait::For(wait),
            reset,
        };
        let change = if matches!(amount, Amount::Refund(_)) && used == level.used {
            Change::Keep
        } else if used == 0 && self.drain != Drain::Windows {
            Change::Remove
        } else {
            let left = if used == 0 { self.until(level, now, 1) } else { reset };
            let expires = now.checked_add(left).ok_or(Refusal::Overflow)?;
            if !encode(self, self.written(Level { at: level.at.max(earliest), used }, now), form, into) {
                return Err(Refusal::Overflow);
            }
            Change::Write { offset: 0, head: 0, bytes: (), expires, slack: Span::ZERO }
        };
        Ok((decision, change))
    }
}

/// Division that is one instruction in the usual case.
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

/// The widths in bytes of a record's fields, in their order.
///
/// The first three bytes (see [`record`]) are followed by these. A shape is chosen by what has to fit; most limiters fit 28
/// bytes, with which a key is as small as one that holds a decimal timestamp.
struct Shape {
    /// Units per period.
    limit: usize,
    /// Units; of no width where it is the limit.
    capacity: usize,
    period: usize,
    /// Microseconds in the period's unit.
    period_unit: u64,
    /// Microseconds since the Unix epoch; signed if of eight bytes.
    at: usize,
    /// Grains.
    used: usize,
}

impl Shape {
    const COMMON: Self = Self { limit: 4, capacity: 0, period: 6, period_unit: 1, at: 7, used: 8 };
    const BURST: Self = Self { limit: 4, capacity: 4, period: 4, period_unit: 1_000, at: 7, used: 6 };
    const WIDE: Self = Self { limit: 5, capacity: 5, period: 7, period_unit: 1, at: 8, used: 13 };

    const fn len(&self) -> usize {
        self.limit + self.capacity + self.period + self.at + self.used
    }

    #[inline(always)]
    fn decode(&self, mut fields: &[u8], drain: Drain) -> Option<(Meter, Level)> {
        if fields.len() != self.len() {
            return None;
        }
        let limit = take(&mut fields, self.limit) as u64;
        let capacity = if self.capacity == 0 { limit } else { take(&mut fields, self.capacity) as u64 };
        let period = take(&mut fields, self.period) as u64 * self.period_unit;
        let at = Instant::from_us(take(&mut fields, self.at) as u64 as i64);
        let used = take(&mut fields, self.used);
        let valid = (1..=MAX_UNITS).contains(&limit)
            && (1..=MAX_UNITS).contains(&capacity)
            && (MIN_PERIOD..=MAX_PERIOD).contains(&Span::from_us(period));
        valid.then_some((Meter { limit, period, capacity, drain, align: None }, Level { at, used }))
    }

    /// Writes the record, if everything fits this shape: tells whether it does.
    #[inline(always)]
    fn encode(&self, meter: &Meter, level: Level, head: u8, into: Room<'_>) -> bool {
        let implied = self.capacity == 0;
        let at = level.at.as_us();
        if implied && meter.capacity != meter.limit
            || !meter.period.is_multiple_of(self.period_unit)
            || self.at < 8 && at < 0
        {
            return false;
        }
        let at = at as u64;
        let fits = fits(meter.limit.into(), self.limit)
            && (implied || fits(meter.capacity.into(), self.capacity))
            && fits((meter.period / self.period_unit).into(), self.period)
            && fits(at.into(), self.at)
            && fits(level.used, self.used);
        let Some(bytes) = into.filter(|_| fits) else { return fits };
        let bytes = bytes.room(3 + self.len());
        bytes[..3].copy_from_slice(&[record::MAGIC, record::VERSION, head]);
        let mut end = 3;
        // All of a number in one store: what is too much of it is zero, and written over.
        let mut put = |number: u128, width: usize| {
            bytes[end..end + size_of::<u128>()].copy_from_slice(&number.to_le_bytes());
            end += width;
        };
        put(meter.limit.into(), self.limit);
        put(if implied { 0 } else { meter.capacity.into() }, self.capacity);
        put((meter.period / self.period_unit).into(), self.period);
        put(at.into(), self.at);
        put(level.used, self.used);
        true
    }
}

/// Where the third byte keeps the [`Drain`], and above it the [`Shape`].
const DRAIN_SHIFT: u32 = 3;
const SHAPE_SHIFT: u32 = 5;

#[inline(always)]
fn decode(bytes: &[u8], form: Form) -> Result<(Meter, Level), Foreign> {
    let (head, fields) = record::open(bytes, form.kind)?;
    let drain = Drain::ALL.get(usize::from(head >> DRAIN_SHIFT & 0b11)).filter(|drain| form.drains.contains(drain));
    let &drain = drain.ok_or(Foreign::Unknown)?;
    // A shape at a time, so that each is compiled with its widths known.
    let decoded = match head >> SHAPE_SHIFT {
        0 => Shape::COMMON.decode(fields, drain),
        1 => Shape::BURST.decode(fields, drain),
        2 => Shape::WIDE.decode(fields, drain),
        _ => None,
    };
    decoded.ok_or(Foreign::Unknown)
}

/// Writes the record; `false` if even the widest can't hold it.
#[inline]
fn encode(meter: &Meter, level: Level, form: Form, mut into: Room<'_>) -> bool {
    let head = form.kind.tag() | (meter.drain as u8) << DRAIN_SHIFT;
    Shape::COMMON.encode(meter, level, head, into.as_deref_mut())
        || Shape::BURST.encode(meter, level, head | 1 << SHAPE_SHIFT, into.as_deref_mut())
        || Shape::WIDE.encode(meter, level, head | 2 << SHAPE_SHIFT, into)
}

/// A record as it stands under its own policy.
pub(super) struct Sight {
    /// The policy that it was written under.
    pub meter: Meter,
    /// As of when it was written; where usage drains in steps, the last step or the window's start.
    pub at: Instant,
    /// When the level as it was written is all drained.
    pub drained: Instant,
    /// When the step or window in force ends; `None` if usage drains continuously, or nothing is used.
    pub step: Option<Instant>,
    /// Units in use, rounded up.
    pub used: u128,
    pub standing: Standing,
}

/// What `bytes` say at `now`.
pub(super) fn sight(bytes: &[u8], form: Form, now: Instant) -> Result<Sight, Foreign> {
    let (meter, level) = decode(bytes, form)?;
    let (written, _) = meter.read(level);
    let level = meter.advance(written, now);
    let after = |at: Instant, span: Span| at.checked_add(span).unwrap_or(Instant::MAX);
    // A new level is dated now, and so is a step that just fell; but that one leaves something in use.
    let over = level.used == 0 && (meter.drain != Drain::Windows || level.at != written.at);
    Ok(Sight {
        meter,
        at: level.at,
        drained: after(written.at, meter.reset(written, written.at)),
        step: (meter.drain != Drain::Smooth && !over).then(|| after(level.at, Span::from_us(meter.period))),
        used: level.used.div_ceil(meter.unit().into()),
        standing: meter.stands(level, now),
    })
}

impl Sight {
    /// The facts that every algorithm tells, and how much is used above the capacity.
    pub(super) fn report(&self, form: Form) -> Report {
        let mut report = super::report(form.kind, (self.meter.limit, self.meter.period), self.used, self.standing);
        report.push(("debt", Fact::units(self.used.saturating_sub(self.meter.capacity.into()))));
        report
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limiter::Bytes;

    const ANY: Form = Form { kind: Kind::Bucket, drains: &Drain::ALL };

    fn units() -> impl Strategy<Value = u64> {
        prop_oneof![1..1_000_u64, 1..=MAX_UNITS, Just(u64::from(u32::MAX)), Just(u64::from(u32::MAX) + 1)]
    }

    prop_compose! {
        fn state()(
            limit in units(),
            capacity in prop::option::of(units()),
            period in prop_oneof![
                MIN_PERIOD.as_us()..=MAX_PERIOD.as_us(),
                (1..=MAX_PERIOD.as_us() / 1_000).prop_map(|ms| ms * 1_000),
            ],
            drain in prop::sample::select(&Drain::ALL[..]),
            at in prop_oneof![any::<i64>(), 0..1_i64 << 56, Just(0), Just(i64::MAX), Just(i64::MIN)],
            used in prop_oneof![any::<u64>().prop_map(u128::from), 0..1_u128 << 104],
        ) -> (Meter, Level) {
            let meter = Meter { limit, period, capacity: capacity.unwrap_or(limit), drain, align: None };
            (meter, Level { at: Instant::from_us(at), used })
        }
    }

    fn encoded(meter: &Meter, level: Level) -> Option<Bytes> {
        let mut bytes = Bytes::new();
        assert_eq!(encode(meter, level, ANY, None), encode(meter, level, ANY, Some(&mut bytes)));
        encode(meter, level, ANY, Some(&mut bytes)).then_some(bytes)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn what_is_encoded_decodes_to_the_same((meter, level) in state()) {
            let bytes = encoded(&meter, level).expect("it fits the widest shape");
            prop_assert!((crate::limiter::MIN_RECORD..=64).contains(&bytes.as_slice().len()));
            let (decoded, at) = decode(bytes.as_slice(), ANY).expect("a record");
            prop_assert!(decoded.same(&meter));
            prop_assert_eq!(at, level);
        }

        #[test]
        fn what_decodes_is_encoded_in_no_more_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), 28..=41),
            head in any::<u8>(),
        ) {
            bytes[..3].copy_from_slice(&[record::MAGIC, record::VERSION, head & !record::TAG_BITS | Kind::Bucket.tag()]);
            if let Ok((meter, level)) = decode(&bytes, ANY) {
                let again = encoded(&meter, level).expect("it fits the shape that it came from");
                prop_assert!(again.as_slice().len() <= bytes.len());
                let (decoded, at) = decode(again.as_slice(), ANY).expect("a record");
                prop_assert!(decoded.same(&meter) && at == level);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), now in any::<i64>()) {
            let _ = sight(&bytes, ANY, Instant::from_us(now));
        }
    }

    #[test]
    fn more_than_the_widest_shape_holds_is_no_record() {
        let meter = Meter { limit: 1, period: 1_000, capacity: 1, drain: Drain::Smooth, align: None };
        assert!(encoded(&meter, Level { at: Instant::from_us(0), used: 1 << 104 }).is_none());
    }
}
