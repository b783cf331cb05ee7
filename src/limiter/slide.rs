//! SLIDE: in no window (t - period, t] are more than `limit` units granted.
//!
//! The state is one packed log of what was granted, searched where it lies. Time is cut into ticks, counted from the Unix
//! epoch; an entry is a tick in which units were granted and the number of units granted up to its end. So the units in a
//! window are the difference of two entries, and every question is a binary search. An entry counts until its whole tick
//! has left the window: at most one tick longer than the exact log would count it, never shorter.
//!
//! After the first three bytes (see [`record`]) and one that is 0:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | limit, units |
//! | 8 | period, microseconds |
//! | 8 | tick, microseconds |
//! | 8 | base: the tick from which the entries' ticks are counted, signed |
//! | 4 | units granted before the first entry, modulo 2^32 |
//! | 4 | ahead: entries before this tick, from the base, may lie in the future; 0 if none does, 2^32 - 1 if however far |
//! | 4 + 4 each | entries: a tick, from the base, and the units granted up to its end, modulo 2^32; ticks ascend |
//!
//! Counts wrap around at 2^32, which their differences don't notice: no window holds as many.

use super::record::{self, take};
use super::{
    Algorithm, Amount, Bytes, Change, Decision, Fact, Foreign, Instant, Kind, Quota, Refusal, Report, Request, Room,
    Setting, SettingValue, Span, Standing, Verdict, Wait, MAX_PERIOD, MIN_PERIOD,
};

/// The most ticks in a period.
const MAX_SEGMENTS: u64 = 65_536;

/// Sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slide {
    quota: Quota,
    /// Ticks in a period.
    segments: u64,
}

impl Algorithm for Slide {
    const KIND: Kind = Kind::Slide;
    const NAME: &'static str = "SLIDE";
    const TAG: u8 = 2;
    /// What an entry can count.
    const MAX_LIMIT: u64 = u32::MAX as u64;
    const SETTINGS: &'static [Setting] = &[Setting { keyword: "SEGMENTS", value: SettingValue::Count(1, MAX_SEGMENTS) }];
    /// Its promise is about the moments of the grants themselves.
    const CHARGED_WHEN_DUE: bool = false;

    fn new(quota: Quota) -> Self {
        Self { quota, segments: MAX_SEGMENTS }
    }

    fn set(&mut self, _: usize, value: i64) {
        self.segments = value.unsigned_abs();
    }

    fn quota(&self) -> Quota {
        self.quota
    }

    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request, into: Room<'_>) -> Result<Verdict, Refusal> {
        self.view(stored, now)?.decide(self.quota.limit(), request, into)
    }

    fn wrote(&self, _: &[u8]) -> bool {
        // The entries are what was granted when, under whatever policy.
        true
    }

    fn standing(&self, stored: Option<&[u8]>, now: Instant) -> Result<Standing, Foreign> {
        Ok(self.view(stored, now)?.standing(self.quota.limit()))
    }

    fn inspect(stored: &[u8], now: Instant) -> Result<Report, Foreign> {
        let log = Log::decode(stored)?;
        let view = View::new(log, Grid { tick: log.tick, period: log.period }, now);
        let mut report =
            super::report(Kind::Slide, (log.limit.into(), log.period), view.used().into(), view.standing(log.limit.into()));
        let counting = view.len() - view.live;
        let moment = |index: usize| {
            let us = view.tick(index) * i128::from(log.tick);
            if counting == 0 {
                Fact::Nothing
            } else {
                Fact::Number(Instant::saturating(us).as_ms_floor())
            }
        };
        report.push(("debt", Fact::units(u64::from(view.used()).saturating_sub(log.limit.into()))));
        report.push(("bookings", Fact::units(view.booked())));
        report.push(("tick_us", Fact::units(log.tick)));
        report.push(("entries", Fact::units(counting)));
        report.push(("entries_stored", Fact::units(view.len())));
        report.push(("oldest_ms", moment(view.live.min(view.len() - 1))));
        report.push(("newest_ms", moment(view.len() - 1)));
        Ok(report)
    }
}

impl Slide {
    fn view<'a>(&self, stored: Option<&'a [u8]>, now: Instant) -> Result<View<'a>, Foreign> {
        let period = self.quota.period().as_us();
        let tick = period.div_ceil(self.segments);
        let log = match stored {
            Some(bytes) => Log::decode(bytes)?,
            None => Log { limit: 0, period: 0, tick, base: 0, before: 0, ahead: 0, entries: &[] },
        };
        Ok(View::new(log, Grid { tick, period }, now))
    }
}

/// The ticks of a policy, and how long what was granted in one counts.
#[derive(Clone, Copy, Debug)]
struct Grid {
    /// Microseconds.
    tick: u64,
    /// Microseconds.
    period: u64,
}

/// An `ahead` that is no tick: what a former policy left may lie in the future however far.
const ANYWHERE: u32 = u32::MAX;

impl Grid {
    /// Ticks in a period and a tick.
    fn segments(self) -> u32 {
        u32::try_from(self.period.div_ceil(self.tick)).unwrap_or(u32::MAX).saturating_add(1)
    }
}

/// How far ahead of `now` a booking may lie: a period and a tick.
fn reach(now: Instant, period: u64, tick: u64) -> Instant {
    now.checked_add(Span::from_us(period + tick)).unwrap_or(Instant::MAX)
}

/// A record, in place.
#[derive(Clone, Copy, Debug)]
struct Log<'a> {
    limit: u32,
    period: u64,
    tick: u64,
    base: i64,
    before: u32,
    ahead: u32,
    entries: &'a [Entry],
}

const ENTRY: usize = 8;
type Entry = [u8; ENTRY];
const HEADER: usize = 40;

impl<'a> Log<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, Foreign> {
        let (head, mut fields) = record::open(bytes, Kind::Slide)?;
        let spare = take(&mut fields, 1);
        let limit = take(&mut fields, 4) as u32;
        let period = take(&mut fields, 8) as u64;
        let tick = take(&mut fields, 8) as u64;
        let base = take(&mut fields, 8) as u64 as i64;
        let before = take(&mut fields, 4) as u32;
        let ahead = take(&mut fields, 4) as u32;
        let (entries, rest) = fields.as_chunks::<ENTRY>();
        let valid = head == 0
            && spare == 0
            && limit > 0
            && (MIN_PERIOD..=MAX_PERIOD).contains(&Span::from_us(period))
            && (1..=period).contains(&tick)
            && !entries.is_empty()
            && rest.is_empty();
        let log = Self { limit, period, tick, base, before, ahead, entries };
        valid.then_some(log).ok_or(Foreign::Unknown)
    }

    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..3].copy_from_slice(&[record::MAGIC, record::VERSION, Slide::TAG]);
        header[4..8].copy_from_slice(&self.limit.to_le_bytes());
        header[8..16].copy_from_slice(&self.period.to_le_bytes());
        header[16..24].copy_from_slice(&self.tick.to_le_bytes());
        header[24..32].copy_from_slice(&self.base.to_le_bytes());
        header[32..36].copy_from_slice(&self.before.to_le_bytes());
        header[36..40].copy_from_slice(&self.ahead.to_le_bytes());
        header
    }

    /// The tick of entry `index`, from the base.
    fn offset(&self, index: usize) -> u32 {
        offset(&self.entries[index])
    }

    /// The units granted up to and with entry `index`, modulo 2^32.
    fn count(&self, index: usize) -> u32 {
        count(&self.entries[index])
    }

    /// The units granted before entry `index`, modulo 2^32.
    fn before(&self, index: usize) -> u32 {
        if index == 0 {
            self.before
        } else {
            self.count(index - 1)
        }
    }
}

fn entry(offset: u32, count: u32) -> Entry {
    let ([a, b, c, d], [e, f, g, h]) = (offset.to_le_bytes(), count.to_le_bytes());
    [a, b, c, d, e, f, g, h]
}

fn offset(&[a, b, c, d, ..]: &Entry) -> u32 {
    u32::from_le_bytes([a, b, c, d])
}

fn count(&[.., a, b, c, d]: &Entry) -> u32 {
    u32::from_le_bytes([a, b, c, d])
}

/// A log as it counts now, under a policy that need not be the one it was written under.
struct View<'a> {
    log: Log<'a>,
    grid: Grid,
    now: Instant,
    /// The clock stepped back: entries count as if so many of the log's ticks earlier.
    shift: i64,
    /// The index of the first entry that counts.
    live: usize,
}

impl<'a> View<'a> {
    fn new(log: Log<'a>, grid: Grid, now: Instant) -> Self {
        let mut view = Self { log, grid, now, shift: 0, live: 0 };
        let Some(last) = log.entries.len().checked_sub(1) else { return view };
        // A log is dated by its last entry, unless it says that this one lies ahead: as far as a booking may, which is a period
        // and a tick, or further.
        let furthest = match log.ahead {
            ANYWHERE => Instant::MAX,
            ahead if log.offset(last) < ahead => reach(now, log.period, log.tick),
            _ => now,
        };
        let latest = furthest.as_us().div_euclid(log.tick as i64);
        view.shift = log.base.saturating_add(log.offset(last).into()).saturating_sub(latest).max(0);
        // An entry is dead when the end of its tick, on the policy's grid, is a period ago. All in the log's ticks: those
        // from the horizon on are alive.
        let gone = now.as_us().saturating_sub(grid.period as i64).saturating_add(1).div_euclid(grid.tick as i64);
        let (own, tick) = (i128::from(log.tick), i128::from(grid.tick));
        let horizon = if own == tick { gone.into() } else { (i128::from(gone) * tick).div_euclid(own) };
        let horizon = horizon + i128::from(view.shift) - i128::from(log.base);
        let horizon = horizon.clamp(0, 1 << 32) as u64;
        view.live = log.entries.partition_point(|entry| u64::from(offset(entry)) < horizon);
        view
    }

    fn len(&self) -> usize {
        self.log.entries.len()
    }

    /// The tick of entry `index` on the policy's grid: the one that holds the end of the entry's own tick.
    fn tick(&self, index: usize) -> i128 {
        let own = i128::from(self.log.base) - i128::from(self.shift) + i128::from(self.log.offset(index));
        let (from, to) = (i128::from(self.log.tick), i128::from(self.grid.tick));
        if from == to {
            own
        } else {
            ((own + 1) * from - 1).div_euclid(to)
        }
    }

    /// From when on a tick of the policy's grid does not count: a period after its last microsecond.
    fn expiry(&self, tick: i128) -> i128 {
        (tick + 1) * i128::from(self.grid.tick) - 1 + i128::from(self.grid.period)
    }

    /// The index of the first entry up to which `units` count.
    fn reaches(&self, units: u32) -> usize {
        let gone = self.log.before(self.live);
        self.live + self.log.entries[self.live..].partition_point(|entry| count(entry).wrapping_sub(gone) < units)
    }

    /// How long until `units` of those that count do so no more.
    fn until(&self, units: u32) -> Span {
        // Stored bytes that no limiter wrote may not reach so many.
        self.until_gone(self.reaches(units).min(self.len() - 1))
    }

    /// How long until entry `index` counts no more.
    fn until_gone(&self, index: usize) -> Span {
        let left = self.expiry(self.tick(index)) - i128::from(self.now.as_us());
        Span::saturating(left.max(1).unsigned_abs())
    }

    /// The units that count.
    fn used(&self) -> u32 {
        match self.len().checked_sub(1) {
            Some(last) if self.live <= last => self.log.count(last).wrapping_sub(self.log.before(self.live)),
            _ => 0,
        }
    }

    /// Those of them that lie ahead.
    fn booked(&self) -> u32 {
        let gone = self.log.before(self.live);
        let today = self.today();
        let past = (self.live..self.len()).rev().find(|&index| self.tick(index) <= today);
        self.used().wrapping_sub(past.map_or(0, |index| self.log.count(index).wrapping_sub(gone)))
    }

    fn standing(&self, limit: u64) -> Standing {
        let used = self.used();
        Standing {
            remaining: limit.saturating_sub(used.into()),
            // The last entry is what goes last: there is nothing to search for.
            reset: if used == 0 { Span::ZERO } else { self.until_gone(self.len() - 1) },
        }
    }

    fn decide(&self, limit: u64, Request { amount, ahead }: Request, into: Room<'_>) -> Result<Verdict, Refusal> {
        let used = u64::from(self.used());
        let Standing { remaining: free, reset } = self.standing(limit);
        let denied = |remaining, wait| Ok((Decision { granted: 0, limit, remaining, wait, reset }, Change::Keep));

        let mut acts = self.now;
        let granted = match amount {
            Amount::Cost(n) if n > limit => return denied(free, Wait::Never),
            Amount::Cost(n) if n > free => {
                // At most `used` must go, since no more than the limit is asked for.
                let wait = self.until((used + n - limit) as u32);
                let ahead = ahead.min(reach(self.now, self.grid.period, self.grid.tick).since(self.now));
                if wait > ahead {
                    return denied(free, Wait::For(wait.saturating_sub(ahead)));
                }
                acts = self.now.checked_add(wait).ok_or(Refusal::Overflow)?;
                n
            }
            Amount::UpTo(_) if free == 0 => return denied(free, Wait::For(self.until((used + 1 - limit) as u32))),
            Amount::UpTo(n) => n.min(free),
            Amount::Cost(n) | Amount::Force(n) => n,
            Amount::Refund(n) => return Ok(self.refund(limit, n.min(used) as u32, reset, into)),
        };
        let units = u32::try_from(granted).map_err(|_| Refusal::Overflow)?;
        let after = self.used().checked_add(units).ok_or(Refusal::Overflow)?;

        let tick = i128::from(acts.as_us().div_euclid(self.grid.tick as i64));
        // An entry that lies ahead takes in what is granted before its time comes: ticks ascend, and it counts for longer.
        let tick = if used == 0 { tick } else { tick.max(self.tick(self.len() - 1)) };
        let expires = self.expiry(tick);
        if expires > i64::MAX.into() {
            return Err(Refusal::Overflow);
        }
        let offset = match (self.appended(limit as u32, tick, units), into) {
            (Some((offset, last)), Some(bytes)) => {
                bytes.room(ENTRY)[..ENTRY].copy_from_slice(&last);
                offset
            }
            (None, Some(bytes)) => {
                *bytes = self.rebuilt(limit as u32, self.len(), tick, after);
                0
            }
            (_, None) => 0,
        };
        let decision = Decision {
            granted,
            limit,
            remaining: limit.saturating_sub(after.into()),
            wait: Wait::For(acts.since(self.now)),
            reset: Span::saturating((expires - i128::from(self.now.as_us())).unsigned_abs()),
        };
        Ok((decision, Change::Write { offset, bytes: (), expires: Instant::saturating(expires), slack: self.slack() }))
    }

    /// A deadline that is moved eight times in a period, and not with each grant.
    fn slack(&self) -> Span {
        Span::from_us(self.grid.period / 8)
    }

    /// The tick of the policy's grid that it is now.
    fn today(&self) -> i128 {
        self.now.as_us().div_euclid(self.grid.tick as i64).into()
    }

    /// Whether the log is as this policy would have it now.
    fn unchanged(&self, limit: u32) -> bool {
        let log = &self.log;
        (log.limit, log.period, log.tick) == (limit, self.grid.period, self.grid.tick) && self.shift == 0
    }

    /// The end of the log after `units` more at `tick`, which is not before its last entry's; `None` if the log has to be
    /// written anew.
    fn appended(&self, limit: u32, tick: i128, units: u32) -> Option<(usize, Entry)> {
        let log = &self.log;
        let last = self.len().checked_sub(1)?;
        // Dead entries are dropped well before they outnumber the others: a quarter costs four moved entries a grant.
        let worn = self.live > (self.len() - self.live) / 4;
        if !self.unchanged(limit) || worn {
            return None;
        }
        let offset = u32::try_from(tick - i128::from(log.base)).ok()?;
        if tick > self.today() && offset >= log.ahead {
            return None;
        }
        // Another policy may bring dead entries back to life: with them, too, the counts must not come full circle.
        log.count(last).wrapping_sub(log.before).checked_add(units)?;
        let index = if offset == log.offset(last) { last } else { self.len() };
        Some((HEADER + ENTRY * index, entry(offset, log.count(last).wrapping_add(units))))
    }

    /// The whole record, on the policy's grid: what counts up to the entry before `end`, and then `used` units by `tick`.
    fn rebuilt(&self, limit: u32, end: usize, tick: i128, used: u32) -> Bytes {
        let base = if self.live < self.len() { self.tick(self.live) } else { tick };
        // What counts spans two periods and a few ticks at the most; stored bytes that no limiter wrote may claim more.
        let offset = |tick: i128| u32::try_from(tick - base).unwrap_or(u32::MAX);
        let mut bytes = Bytes::with_capacity(HEADER + ENTRY * (end.saturating_sub(self.live) + 1));
        // The last tick that a reader takes for a booking's.
        let furthest = reach(self.now, self.grid.period, self.grid.tick).as_us().div_euclid(self.grid.tick as i64);
        let header = Log {
            limit,
            period: self.grid.period,
            tick: self.grid.tick,
            base: i64::try_from(base).unwrap_or(i64::MAX),
            before: 0,
            ahead: match tick - self.today() {
                1.. if tick > furthest.into() => ANYWHERE,
                // Room for a period's further bookings, so that they need not write the log anew.
                1.. => offset(tick).saturating_add(self.grid.segments()),
                _ => 0,
            },
            entries: &[],
        };
        bytes.extend(&header.header());
        let gone = if self.live < self.len() { self.log.before(self.live) } else { 0 };
        if self.log.tick == self.grid.tick {
            // On its own grid every entry moves by the same number of ticks and units: one pass over the bytes, or a long log
            // would hold the server up. Ticks ascend, so only the last entry may share its tick with what is added.
            let kept = self.log.entries.get(self.live..end).unwrap_or_default();
            let moved = (base - i128::from(self.log.base) + i128::from(self.shift)) as u32;
            let now = offset(tick);
            let kept = match kept.split_last() {
                Some((last, before)) if self::offset(last).wrapping_sub(moved) == now => before,
                _ => kept,
            };
            let start = bytes.as_slice().len();
            bytes.extend(kept.as_flattened());
            for kept in bytes.as_mut_slice()[start..].as_chunks_mut::<ENTRY>().0 {
                *kept = entry(self::offset(kept).wrapping_sub(moved), count(kept).wrapping_sub(gone));
            }
            bytes.extend(&entry(now, used));
            return bytes;
        }
        let kept = (self.live..end).map(|index| (offset(self.tick(index)), self.log.count(index).wrapping_sub(gone)));
        let added = (offset(tick), used);
        // Of entries that share a tick, the last counts for all.
        let mut entries = kept.chain([added]).peekable();
        while let Some((offset, count)) = entries.next() {
            if entries.peek().is_none_or(|&(next, _)| next != offset) {
                bytes.extend(&entry(offset, count));
            }
        }
        bytes
    }

    /// Gives back the newest `units`, no more than count.
    fn refund(&self, limit: u64, units: u32, reset: Span, into: Room<'_>) -> Verdict {
        let used = self.used() - units;
        let decision = |reset| Decision {
            granted: units.into(),
            limit,
            remaining: limit.saturating_sub(used.into()),
            wait: Wait::NONE,
            reset,
        };
        if units == 0 {
            return (decision(reset), Change::Keep);
        }
        if used == 0 {
            return (decision(Span::ZERO), Change::Remove);
        }
        let gone = self.log.before(self.live);
        let index = self.reaches(used).min(self.len() - 1);
        let offset = match (self.unchanged(limit as u32), into) {
            (true, Some(bytes)) => {
                bytes.room(ENTRY)[..ENTRY].copy_from_slice(&entry(self.log.offset(index), gone.wrapping_add(used)));
                HEADER + ENTRY * index
            }
            (false, Some(bytes)) => {
                *bytes = self.rebuilt(limit as u32, index, self.tick(index), used);
                0
            }
            (_, None) => 0,
        };
        let reset = self.until(used);
        let expires = Instant::saturating(i128::from(self.now.as_us()) + i128::from(reset.as_us()));
        (decision(reset), Change::Write { offset, bytes: (), expires, slack: self.slack() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn header()(
            limit in 1..=u32::MAX,
            period in MIN_PERIOD.as_us()..=MAX_PERIOD.as_us(),
            segments in 1..=MAX_SEGMENTS,
            base in any::<i64>(),
            before in any::<u32>(),
            ahead in any::<u32>(),
        ) -> Log<'static> {
            Log { limit, period, tick: period.div_ceil(segments), base, before, ahead, entries: &[] }
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_the_same(log in header(), entries in prop::collection::vec(any::<(u32, u32)>(), 1..20)) {
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
            n in 1..=crate::limiter::MAX_UNITS,
            ahead in prop_oneof![Just(0), any::<u64>()],
            period in MIN_PERIOD.as_us()..=MAX_PERIOD.as_us(),
        ) {
            let mut bytes = log.header().to_vec();
            bytes.extend(entries.as_flattened());
            let slide = Slide::new(Quota::new(limit.into(), Span::from_us(period)).expect("in range"));
            for amount in [Amount::Cost(n), Amount::UpTo(n), Amount::Force(n), Amount::Refund(n)] {
                let request = Request { amount, ahead: Span::from_us(ahead) };
                let _ = slide.decide(Some(&bytes), Instant::from_us(now), request, Some(&mut Bytes::new()));
            }
            let _ = Slide::inspect(&bytes, Instant::from_us(now));
        }
    }
}
