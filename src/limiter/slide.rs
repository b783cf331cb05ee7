//! SLIDE: in no window (t - period, t] are more than `limit` units granted.
//!
//! The state is one packed log of what was granted, searched where it lies. Time is cut into ticks, counted from the Unix
//! epoch; an entry is a tick in which units were granted and the number of units granted up to its end. So the units in a
//! window are the difference of two entries, and every question is a binary search. An entry counts until its whole tick
//! has left the window: at most one tick longer than the exact log would count it, never shorter.
//!
//! Callers with several periods or ticks share one log. It keeps its own [`Grid`], through which each caller looks at its own
//! window, and is written anew only where that grid is not enough: for a longer period or a finer tick ([`Grid::with`]). Who
//! has been the only one to be granted anything for a whole period of the log has it on its own grid again ([`View::plan`]).
//! So no entry is rounded up twice by the same caller within a period, and none is ever moved past the present tick.
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
//! | 4 | ahead: entries before this tick, from the base, may lie in the future; 0 if none does, 2^32 - 1 if however far; from 2^31 on it is a [`Shared`] |
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
        let view = View::new(log, log.grid(), now);
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
            None => Log { limit: 0, period, tick, base: 0, before: 0, ahead: 0, entries: &[] },
        };
        Ok(View::new(log, Grid { tick, period }, now))
    }
}

/// The ticks of a policy or of a log, and how long what was granted in one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// The tick that holds `instant`.
    fn tick_of(self, instant: Instant) -> i128 {
        instant.as_us().div_euclid(self.tick as i64).into()
    }

    /// From when on a tick does not count: a period after its last microsecond.
    fn expiry(self, tick: i128) -> i128 {
        (tick + 1) * i128::from(self.tick) - 1 + i128::from(self.period)
    }

    /// Ticks in an eighth of a period, at least one.
    fn eighth(self) -> i128 {
        (self.period.div_ceil(self.tick) / 8).max(1).into()
    }

    /// The grid of a log that serves `other` too: the longer period and the finer tick, as far as an entry can tell so many.
    fn with(self, other: Self) -> Self {
        let period = self.period.max(other.period);
        Self { tick: self.tick.min(other.tick).max(period.div_ceil(MOST_TICKS)), period }
    }

    /// A number for this grid, to tell one caller from another.
    fn tag(self) -> u32 {
        let mixed = (self.period.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.tick).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // Not the last one: with it an `ahead` could be `ANYWHERE`.
        (mixed >> 32) as u32 % (TAGS - 1)
    }
}

/// The most ticks in the period of a log that callers with several policies share.
const MOST_TICKS: u64 = 1 << 28;
/// How many of its newest entries such a log keeps as they are. Older ones are thinned out to one in each 65536th of its period.
/// No shorter window holds more: its own caller's tick is no finer than that.
const NEWEST: usize = MAX_SEGMENTS as usize + 1;
/// From so many entries on it is written anew, whether or not any of them is dead.
const MOST: usize = 3 * NEWEST;

/// What the log of callers with several policies has in `ahead`.
///
/// Times are eighths of the log's period, counted from the one that holds the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    /// The [`Grid::tag`] of a caller.
    tag: u32,
    /// From when on nobody else has been granted anything.
    since: i128,
    /// Entries before this one may lie in the future; `None` if none does, [`Shared::FAR`] if however far.
    ahead: Option<i128>,
}

impl Shared {
    /// Set in an `ahead` that is one of these. An older module takes it for bookings that may lie ahead.
    const FLAG: u32 = 1 << 31;
    /// Bits of a time.
    const BITS: u32 = 6;
    /// The latest time that fits.
    const LAST: u32 = (1 << Self::BITS) - 1;
    const FAR: i128 = i128::MAX;

    fn encode(self, first: i128) -> u32 {
        let from = |time: i128| time.saturating_sub(first).clamp(0, Self::LAST.into()) as u32;
        let ahead = self.ahead.map_or(0, |ahead| from(ahead).max(1));
        Self::FLAG | self.tag << (2 * Self::BITS) | from(self.since) << Self::BITS | ahead
    }
}

/// How many numbers there are to tell callers apart.
const TAGS: u32 = 1 << (31 - 2 * Shared::BITS);

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

    fn grid(&self) -> Grid {
        Grid { tick: self.tick, period: self.period }
    }

    /// The eighth of a period that holds the base.
    fn first(&self) -> i128 {
        i128::from(self.base).div_euclid(self.grid().eighth())
    }

    /// What `ahead` tells if callers with several policies share the log.
    #[inline]
    fn shared(&self) -> Option<Shared> {
        if self.ahead < Shared::FLAG || self.ahead == ANYWHERE {
            return None;
        }
        let time = |bits: u32| self.first() + i128::from(bits & Shared::LAST);
        let ahead = match self.ahead & Shared::LAST {
            0 => None,
            Shared::LAST => Some(Shared::FAR),
            bits => Some(time(bits)),
        };
        let tag = (self.ahead & !Shared::FLAG) >> (2 * Shared::BITS);
        Some(Shared { tag, since: time(self.ahead >> Shared::BITS), ahead })
    }

    /// Entries before this tick, from the base, may lie in the future; `None` if however far.
    #[inline]
    fn bound(&self) -> Option<u64> {
        match self.shared() {
            None => (self.ahead != ANYWHERE).then_some(self.ahead.into()),
            Some(Shared { ahead: None, .. }) => Some(0),
            Some(Shared { ahead: Some(Shared::FAR), .. }) => None,
            Some(Shared { ahead: Some(time), .. }) => {
                Some((time * self.grid().eighth() - i128::from(self.base)).clamp(0, u64::MAX.into()) as u64)
            }
        }
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
    /// The policy's.
    grid: Grid,
    now: Instant,
    /// The clock stepped back: entries count as if so many of the log's ticks earlier.
    shift: i64,
    /// The index of the first entry that counts for the policy.
    live: usize,
    /// The index of the first entry that counts for the policy, or for the log's period.
    kept: usize,
}

/// What a write makes of a log.
struct Plan {
    grid: Grid,
    /// If callers with several policies share it.
    shared: Option<Shared>,
}

impl<'a> View<'a> {
    fn new(log: Log<'a>, grid: Grid, now: Instant) -> Self {
        let mut view = Self { log, grid, now, shift: 0, live: 0, kept: 0 };
        let Some(last) = log.entries.len().checked_sub(1) else { return view };
        // A log is dated by its last entry, unless it says that this one lies ahead: as far as a booking may, which is a period
        // and a tick, or further.
        let furthest = match log.bound() {
            None => Instant::MAX,
            Some(bound) if u64::from(log.offset(last)) < bound => reach(now, log.period, log.tick),
            Some(_) => now,
        };
        let latest = furthest.as_us().div_euclid(log.tick as i64);
        view.shift = log.base.saturating_add(log.offset(last).into()).saturating_sub(latest).max(0);
        view.live = view.first_within(grid.period);
        view.kept = if grid.period < log.period { view.first_within(log.period) } else { view.live };
        view
    }

    /// The index of the first entry that counts for `period`.
    #[inline]
    fn first_within(&self, period: u64) -> usize {
        // An entry is dead when the end of its tick is a period ago: those from the horizon on are alive.
        let log = &self.log;
        let gone = self.now.as_us().saturating_sub(period as i64).saturating_add(1).div_euclid(log.tick as i64);
        let horizon = i128::from(gone) + i128::from(self.shift) - i128::from(log.base);
        let horizon = horizon.clamp(0, 1 << 32) as u64;
        log.entries.partition_point(|entry| u64::from(offset(entry)) < horizon)
    }

    fn len(&self) -> usize {
        self.log.entries.len()
    }

    /// The tick of entry `index`.
    fn tick(&self, index: usize) -> i128 {
        i128::from(self.log.base) - i128::from(self.shift) + i128::from(self.log.offset(index))
    }

    /// The tick of entry `index` on another grid: the one that holds the end of the entry's own tick. But what was granted in
    /// the present tick was granted by now, and is not put any later.
    fn placed(&self, index: usize, grid: Grid) -> i128 {
        let tick = self.tick(index);
        if self.log.tick == grid.tick {
            return tick;
        }
        let end = (tick + 1) * i128::from(self.log.tick) - 1;
        let placed = end.div_euclid(grid.tick.into());
        let booked = || self.log.bound().is_none_or(|bound| u64::from(self.log.offset(index)) < bound);
        if tick == self.today() && !booked() {
            placed.min(grid.tick_of(self.now))
        } else {
            placed
        }
    }

    /// What a write under the policy makes of the log.
    #[inline]
    fn plan(&self) -> Plan {
        let own = self.log.grid();
        let mine = Plan { grid: self.grid, shared: None };
        if self.kept == self.len() || own == self.grid && self.log.shared().is_none() {
            return mine;
        }
        self.plan_shared(own, mine)
    }

    /// What a write under the policy makes of a log that others have written, too.
    #[cold]
    fn plan_shared(&self, own: Grid, mine: Plan) -> Plan {
        let (grid, tag) = (own.with(self.grid), self.grid.tag());
        let today = grid.tick_of(self.now);
        // Who writes in this eighth of a period writes it down once: what others write in it later need not be told.
        let next = today.div_euclid(grid.eighth()) + 1;
        let claim = |ahead| Plan { grid, shared: Some(Shared { tag, since: next, ahead }) };
        let shared = match self.log.shared() {
            Some(shared) if grid == own => shared,
            _ => return claim(self.ahead(grid)),
        };
        let since = shared.since.min(next);
        if shared.tag != tag && since < next {
            claim(shared.ahead)
        } else if shared.tag == tag && today - since * grid.eighth() >= grid.segments().into() {
            mine
        } else {
            Plan { grid, shared: Some(Shared { since, ..shared }) }
        }
    }

    /// Where on `grid` entries of a log that nobody shared yet may lie ahead.
    fn ahead(&self, grid: Grid) -> Option<i128> {
        let Some(bound) = self.log.bound() else { return Some(Shared::FAR) };
        if bound <= u64::from(self.log.offset(self.len() - 1)) {
            return None;
        }
        let end = (i128::from(self.log.base) + i128::from(bound)) * i128::from(self.log.tick);
        Some(end.div_euclid(grid.tick.into()).div_euclid(grid.eighth()) + 1)
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
        let seen = Grid { tick: self.log.tick, period: self.grid.period };
        let left = seen.expiry(self.tick(index)) - i128::from(self.now.as_us());
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

        let plan = self.plan();
        let mut acts = self.now;
        let granted = match amount {
            Amount::Cost(n) if n > limit => return denied(free, Wait::Never),
            Amount::Cost(n) if n > free => {
                // At most `used` must go, since no more than the limit is asked for.
                let wait = self.until((used + n - limit) as u32);
                let ahead = ahead.min(reach(self.now, self.grid.period, plan.grid.tick).since(self.now));
                if wait > ahead {
                    return denied(free, Wait::For(wait.saturating_sub(ahead)));
                }
                acts = self.now.checked_add(wait).ok_or(Refusal::Overflow)?;
                n
            }
            Amount::UpTo(_) if free == 0 => return denied(free, Wait::For(self.until((used + 1 - limit) as u32))),
            Amount::UpTo(n) => n.min(free),
            Amount::Cost(n) | Amount::Force(n) => n,
            Amount::Refund(n) => return Ok(self.refund(limit, n.min(used) as u32, reset, &plan, into)),
        };
        let units = u32::try_from(granted).map_err(|_| Refusal::Overflow)?;
        let after = self.used().checked_add(units).ok_or(Refusal::Overflow)?;
        // What counts for others only has to fit, too.
        let count = self.log.before(self.live).wrapping_add(after);
        count.wrapping_sub(units).wrapping_sub(self.gone(&plan)).checked_add(units).ok_or(Refusal::Overflow)?;

        let tick = plan.grid.tick_of(acts);
        // An entry that lies ahead takes in what is granted before its time comes: ticks ascend, and it counts for longer.
        let tick = if self.kept == self.len() { tick } else { tick.max(self.placed(self.len() - 1, plan.grid)) };
        let expires = plan.grid.expiry(tick);
        if expires > i64::MAX.into() {
            return Err(Refusal::Overflow);
        }
        let (mut head, mut offset) = (0, 0);
        match (self.appended(&plan, limit as u32, tick, units), into) {
            (Some((at, last, header)), Some(bytes)) => {
                (head, offset) = (put(bytes, header, last), at);
            }
            (None, Some(bytes)) => *bytes = self.rebuilt(&plan, limit as u32, self.len(), tick, count),
            (_, None) => {}
        };
        let used_until = Grid { period: self.grid.period, ..plan.grid }.expiry(tick);
        let decision = Decision {
            granted,
            limit,
            remaining: limit.saturating_sub(u64::from(after) + self.revived(&plan)),
            wait: Wait::For(acts.since(self.now)),
            reset: Span::saturating((used_until - i128::from(self.now.as_us())).unsigned_abs()),
        };
        let (expires, slack) = (Instant::saturating(expires), plan.slack());
        Ok((decision, Change::Write { offset, head, bytes: (), expires, slack }))
    }

    /// The log's tick that it is now.
    fn today(&self) -> i128 {
        self.log.grid().tick_of(self.now)
    }

    /// The index of the first entry that a log written anew keeps: for others, what counts for them, too.
    fn from(&self, plan: &Plan) -> usize {
        if plan.shared.is_some() {
            self.kept
        } else {
            self.live
        }
    }

    /// The units granted before that entry, modulo 2^32.
    fn gone(&self, plan: &Plan) -> u32 {
        let from = self.from(plan);
        if from < self.len() {
            self.log.before(from)
        } else {
            self.log.before(self.live)
        }
    }

    /// Units that count for the policy again on the planned ticks, where their ends are rounded up.
    #[inline]
    fn revived(&self, plan: &Plan) -> u64 {
        if plan.shared.is_none() || plan.grid.tick == self.log.tick || self.live == 0 {
            return 0;
        }
        let seen = Grid { period: self.grid.period, ..plan.grid };
        let counts = |&index: &usize| seen.expiry(self.placed(index, plan.grid)) > self.now.as_us().into();
        let first = (self.kept..self.live).rev().take_while(counts).last();
        first.map_or(0, |first| self.log.before(self.live).wrapping_sub(self.log.before(first)).into())
    }

    /// The limit that the header tells: the last caller's, of those with its period.
    fn limit(&self, plan: &Plan, limit: u32) -> u32 {
        if plan.grid.period == self.grid.period {
            limit
        } else {
            self.log.limit
        }
    }

    /// Whether the entries can stay where they are; and the header, if it has to change. `ahead`: an entry at this tick may lie
    /// in the future.
    #[inline]
    fn header(&self, plan: &Plan, limit: u32, ahead: Option<i128>) -> Option<Option<[u8; HEADER]>> {
        let log = &self.log;
        if plan.grid != log.grid() || self.shift != 0 {
            return None;
        }
        let limit = self.limit(plan, limit);
        let mut marks = log.ahead;
        if let Some(mut shared) = plan.shared {
            if ahead.is_some() {
                shared.ahead = ahead;
            }
            if shared.since - log.first() > Shared::LAST.into() {
                return None;
            }
            marks = shared.encode(log.first());
        } else if ahead.is_some() || log.shared().is_some() {
            return None;
        }
        Some(((limit, marks) != (log.limit, log.ahead)).then(|| Log { limit, ahead: marks, ..*log }.header()))
    }

    /// The end of the log after `units` more at `tick`, which is not before its last entry's, and its header if that changes;
    /// `None` if the log has to be written anew.
    #[inline]
    fn appended(&self, plan: &Plan, limit: u32, tick: i128, units: u32) -> Option<(usize, Entry, Option<[u8; HEADER]>)> {
        let log = &self.log;
        let last = self.len().checked_sub(1)?;
        // Dead entries are dropped well before they outnumber the others: a quarter costs four moved entries a grant.
        let worn = self.kept > (self.len() - self.kept) / 4 || self.len() >= MOST;
        if worn {
            return None;
        }
        let offset = u32::try_from(tick - i128::from(log.base)).ok()?;
        let further = tick > self.today() && log.bound().is_some_and(|bound| u64::from(offset) >= bound);
        let header = self.header(plan, limit, further.then(|| plan.room(tick)))?;
        // Another policy may bring dead entries back to life: with them, too, the counts must not come full circle.
        log.count(last).wrapping_sub(log.before).checked_add(units)?;
        let index = if offset == log.offset(last) { last } else { self.len() };
        Some((HEADER + ENTRY * index, entry(offset, log.count(last).wrapping_add(units)), header))
    }

    /// The whole record as planned: what counts up to the entry before `end`, and then `count` units by `tick`, of all that were
    /// ever granted.
    #[cold]
    fn rebuilt(&self, plan: &Plan, limit: u32, end: usize, tick: i128, count: u32) -> Bytes {
        let (grid, from, gone) = (plan.grid, self.from(plan), self.gone(plan));
        let today = grid.tick_of(self.now);
        let mut base = if from < end.min(self.len()) { self.placed(from, grid).min(tick) } else { tick };
        if let Some(shared) = plan.shared {
            // The header tells times from the base on.
            base = base.min(shared.since * grid.eighth());
        }
        // What counts spans two periods and a few ticks at the most; stored bytes that no limiter wrote may claim more.
        let offset = |tick: i128| u32::try_from(tick - base).unwrap_or(u32::MAX);
        // The last tick that a reader takes for a booking's.
        let furthest = grid.tick_of(reach(self.now, grid.period, grid.tick));
        let mut header = Log {
            limit: self.limit(plan, limit),
            period: grid.period,
            tick: grid.tick,
            base: i64::try_from(base).unwrap_or(i64::MAX),
            before: 0,
            ahead: match tick - today {
                1.. if tick > furthest => ANYWHERE,
                // Room for a period's further bookings, so that they need not write the log anew.
                1.. => offset(tick).saturating_add(grid.segments()),
                _ => 0,
            },
            entries: &[],
        };
        if let Some(shared) = plan.shared {
            let ahead = match tick - today {
                1.. if tick > furthest => Some(Shared::FAR),
                1.. => Some(plan.room(tick)),
                _ => None,
            };
            header.ahead = Shared { ahead, ..shared }.encode(header.first());
        }
        let mut bytes = Bytes::with_capacity(HEADER + ENTRY * (end.saturating_sub(from) + 1));
        bytes.extend(&header.header());
        let used = count.wrapping_sub(gone);
        let old = (plan.shared.is_some() && end.saturating_sub(from) > NEWEST).then(|| end - NEWEST);
        if self.log.tick == grid.tick && old.is_none() {
            // On its own grid every entry moves by the same number of ticks and units: one pass over the bytes, or a long log
            // would hold the server up. Ticks ascend, so only the last entry may share its tick with what is added.
            let kept = self.log.entries.get(from..end).unwrap_or_default();
            let moved = (base - i128::from(self.log.base) + i128::from(self.shift)) as u32;
            let now = offset(tick);
            let kept = match kept.split_last() {
                Some((last, before)) if self::offset(last).wrapping_sub(moved) == now => before,
                _ => kept,
            };
            let start = bytes.as_slice().len();
            bytes.extend(kept.as_flattened());
            for kept in bytes.as_mut_slice()[start..].as_chunks_mut::<ENTRY>().0 {
                *kept = entry(self::offset(kept).wrapping_sub(moved), self::count(kept).wrapping_sub(gone));
            }
            bytes.extend(&entry(now, used));
            return bytes;
        }
        // Of old entries in the same 65536th of a period, the last counts for all.
        let coarse = i128::from(grid.period.div_ceil(MAX_SEGMENTS).div_ceil(grid.tick));
        let thinned = |&index: &usize| {
            old.is_none_or(|old| {
                let part = |index| self.placed(index, grid).div_euclid(coarse);
                index + 1 >= old || part(index) != part(index + 1)
            })
        };
        let kept = (from..end).filter(thinned);
        let kept = kept.map(|index| (offset(self.placed(index, grid)), self.log.count(index).wrapping_sub(gone)));
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
    fn refund(&self, limit: u64, units: u32, reset: Span, plan: &Plan, into: Room<'_>) -> Verdict {
        let used = self.used() - units;
        let revived = self.revived(plan);
        let decision = |reset| Decision {
            granted: units.into(),
            limit,
            remaining: limit.saturating_sub(u64::from(used) + revived),
            wait: Wait::NONE,
            reset,
        };
        if units == 0 {
            return (Decision { remaining: limit.saturating_sub(used.into()), ..decision(reset) }, Change::Keep);
        }
        let from = self.from(plan);
        if used == 0 && from == self.live {
            return (decision(Span::ZERO), Change::Remove);
        }
        // With nothing used in this window, what counts for others stays: there is something before it then.
        let index = if used == 0 { self.live - 1 } else { self.reaches(used).min(self.len() - 1) };
        let count = self.log.before(self.live).wrapping_add(used);
        let tick = self.placed(index, plan.grid);
        let (mut head, mut offset) = (0, 0);
        match (self.header(plan, limit as u32, None), into) {
            (Some(header), Some(bytes)) => {
                head = put(bytes, header, entry(self.log.offset(index), count));
                offset = HEADER + ENTRY * index;
            }
            (None, Some(bytes)) => *bytes = self.rebuilt(plan, limit as u32, index, tick, count),
            (_, None) => {}
        };
        let now = i128::from(self.now.as_us());
        let reset = match u64::from(used) + revived {
            0 => Span::ZERO,
            _ => Span::saturating((Grid { period: self.grid.period, ..plan.grid }.expiry(tick) - now).max(1).unsigned_abs()),
        };
        let expires = Instant::saturating(plan.grid.expiry(tick).max(now + 1));
        (decision(reset), Change::Write { offset, head, bytes: (), expires, slack: plan.slack() })
    }
}

impl Plan {
    /// A deadline that is moved eight times in a period, and not with each grant.
    fn slack(&self) -> Span {
        Span::from_us(self.grid.period / 8)
    }

    /// Room for a booking at `tick` and a period's further ones, so that they need not change the header.
    fn room(&self, tick: i128) -> i128 {
        tick.saturating_add(self.grid.segments().into()).div_euclid(self.grid.eighth()) + 1
    }
}

/// Puts the header, if it changes, and the last entry into `bytes`: tells how many of these are the header's.
#[inline]
fn put(bytes: &mut Bytes, header: Option<[u8; HEADER]>, last: Entry) -> usize {
    let Some(header) = header else {
        bytes.room(ENTRY)[..ENTRY].copy_from_slice(&last);
        return 0;
    };
    let room = bytes.room(HEADER + ENTRY);
    room[..HEADER].copy_from_slice(&header);
    room[HEADER..HEADER + ENTRY].copy_from_slice(&last);
    HEADER
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
