//! Changes of the log: a grant adds units, a refund removes units. The log is changed in place if possible, and otherwise
//! rewritten.
//!
//! ```text
//! plan:    the grid of the log, and whether callers with several policies share it      (View::plan)
//! store:   if the log stays on its grid, its header can say what the plan says, and few enough of its entries are dead:
//!              grant:  add the units to the last entry, or append one for a new tick    (View::append)
//!              refund: write the last entry that stays, with fewer units; the value ends after it
//!          otherwise:                                                                    (View::rewrite)
//!              keep the entries that count for any caller
//!              place them on the planned grid, each at the tick that holds the end of its own
//!              of entries in one tick, keep the last, whose count includes the others
//!              if the log is shared and long, keep only the newest and one in each 65536th of its period
//!              write the header, these entries, and the entry of this change
//! ```
//!
//! An example: `SLIDE 10 60s SEGMENTS 60`, with ticks of a second. An entry is written `tick/count`, with ticks from the
//! base:
//!
//! | time | call | what is written | base | entries |
//! |---|---|---|---|---|
//! | 1 s | COST 3 | all 48 bytes | 1 | 0/3 |
//! | 1.5 s | COST 1 | the last entry | 1 | 0/4 |
//! | 3 s | COST 2 | a new entry | 1 | 0/4 2/6 |
//! | 4 s | REFUND 3 | the first entry; the value ends after it | 1 | 0/3 |
//! | 61 s | COST 1 | a new entry | 1 | 0/3 60/4 |
//! | 62 s - 1 us | COST 1 | all: one of two entries is dead | 61 | 0/2 |
//!
//! At 62 s - 1 us the entry of tick 1 has left the window. The entry of tick 61 has then 2 units: one of them was granted at
//! 61 s.

use super::log::{
    booking_horizon, count, entry, offset, Entry, Grid, Log, Shared, AHEAD_ANYWHERE, ENTRY, LOG_HEADER, MAX_SEGMENTS,
};
use super::View;
use crate::limiter::{Bytes, Change, Instant, Span};

/// A rewritten shared log keeps this many of its newest entries. Of the older entries it keeps one in each 65536th of its
/// period. A caller with a shorter period has no more entries than this in its window, since its own tick is at least a
/// 65536th of its period.
const NEWEST: usize = MAX_SEGMENTS as usize + 1;
/// A log with this many entries is rewritten even if none of them is dead.
const MAX_ENTRIES: usize = 3 * NEWEST;

/// The grid and the mark that a log has after a write.
pub(super) struct Plan {
    pub(super) grid: Grid,
    /// The mark, if callers with several policies share the log.
    pub(super) shared: Option<Shared>,
}

/// The change of the log that a decision leads to.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    /// What happens to the entries.
    pub(super) update: LogUpdate,
    /// The tick of the last entry, on the planned grid.
    pub(super) tick: i128,
    /// The units granted up to the end of that entry, modulo 2^32.
    pub(super) count: u32,
    /// From this moment on the log affects no decision.
    pub(super) expires: Instant,
}

/// What a decision does to the entries of a log.
#[derive(Clone, Copy, Debug)]
pub(super) enum LogUpdate {
    /// Adds this many units. A booking acts later than now, be it in the current tick.
    Grant { units: u32, booked: bool },
    /// Makes the entry at this index the last one, with fewer units.
    Refund(usize),
    /// Removes all entries, but not the ids.
    Clear,
}

impl Next {
    pub(super) const fn grant(units: u32, booked: bool, tick: i128, count: u32, expires: Instant) -> Self {
        Self { update: LogUpdate::Grant { units, booked }, tick, count, expires }
    }

    pub(super) const fn refund(index: usize, tick: i128, count: u32, expires: Instant) -> Self {
        Self { update: LogUpdate::Refund(index), tick, count, expires }
    }

    pub(super) const fn clear(expires: Instant) -> Self {
        Self { update: LogUpdate::Clear, tick: i64::MIN as i128, count: 0, expires }
    }
}

impl Plan {
    /// See [`Change::Write`]. With this slack the deadline moves eight times in a period, and after each rewrite, but not
    /// with each grant.
    pub(super) fn slack(&self) -> Span {
        Span::from_us(self.grid.period_us / 8)
    }

    /// The [`Shared::ahead`] that covers a booking at `tick` and the bookings of a further period, so that these need not
    /// change the header.
    fn room_ahead(&self, tick: i128) -> i128 {
        tick.saturating_add(self.grid.window_ticks().into()).div_euclid(self.grid.eighth()) + 1
    }
}

impl View<'_> {
    /// The grid and the mark of the log after a write under the policy.
    #[inline]
    pub(super) fn plan(&self) -> Plan {
        let own = Plan { grid: self.grid, shared: None };
        if self.kept == self.len() || self.log.grid == self.grid && self.log.shared().is_none() {
            return own;
        }
        self.plan_shared(own)
    }

    /// [`Self::plan`] for a log that callers with other policies have written, too.
    #[cold]
    fn plan_shared(&self, own: Plan) -> Plan {
        let (grid, tag) = (self.log.grid.covering(self.grid), self.grid.caller_tag());
        let current = grid.tick_at(self.now);
        // Grants to callers that the mark does not name change the mark at most once in each eighth of a period: `alone_since` becomes
        // the start of the next eighth, and until that begins, the mark stays as it is.
        let next = current.div_euclid(grid.eighth()) + 1;
        let named = |ahead| Plan { grid, shared: Some(Shared { tag, alone_since: next, ahead }) };
        let shared = match self.log.shared() {
            Some(shared) if grid == self.log.grid => shared,
            _ => return named(self.ahead_on(grid)),
        };
        let alone_since = shared.alone_since.min(next);
        if shared.tag != tag && alone_since < next {
            named(shared.ahead)
        } else if shared.tag == tag && current - alone_since * grid.eighth() >= grid.window_ticks().into() {
            own
        } else {
            Plan { grid, shared: Some(Shared { alone_since, ..shared }) }
        }
    }

    /// The [`Shared::ahead`], on `grid`, of a log that was not shared so far.
    fn ahead_on(&self, grid: Grid) -> Option<i128> {
        let Some(bound) = self.log.ahead_bound() else { return Some(Shared::FAR) };
        if bound <= u64::from(self.log.offset(self.len() - 1)) {
            return None;
        }
        let end_us = (i128::from(self.log.base) + i128::from(bound)) * i128::from(self.log.grid.tick_us);
        Some(end_us.div_euclid(grid.tick_us.into()).div_euclid(grid.eighth()) + 1)
    }

    /// The tick of entry `index` on another grid: the tick that holds the end of the entry's own tick. An entry of the current tick
    /// is not placed later than `now`, as its units have been granted already, unless it may be a booking.
    pub(super) fn placed(&self, index: usize, grid: Grid) -> i128 {
        self.place(self.tick(index), self.log.offset(index).into(), grid)
    }

    /// [`Self::placed`] for a tick of the log, which is `offset` ticks after the base.
    pub(super) fn place(&self, tick: i128, offset: i128, grid: Grid) -> i128 {
        if self.log.grid.tick_us == grid.tick_us {
            return tick;
        }
        let end_us = (tick + 1) * i128::from(self.log.grid.tick_us) - 1;
        let placed = end_us.div_euclid(grid.tick_us.into());
        if tick == self.current_tick() && !self.may_lie_ahead(offset) {
            placed.min(grid.tick_at(self.now))
        } else {
            placed
        }
    }

    /// Whether units of a tick of the log, which is `offset` ticks after the base, may act later than now.
    fn may_lie_ahead(&self, offset: i128) -> bool {
        self.log.ahead_bound().is_none_or(|bound| offset < bound.into())
    }

    /// The index of the first entry that a rewritten log keeps. If other callers share the log, it keeps entries that count
    /// only for them, too.
    pub(super) fn first_kept(&self, plan: &Plan) -> usize {
        if plan.shared.is_some() {
            self.kept
        } else {
            self.live
        }
    }

    /// The units granted before the entry at [`Self::first_kept`], modulo 2^32.
    pub(super) fn units_dropped(&self, plan: &Plan) -> u32 {
        let first = self.first_kept(plan);
        self.count_before(if first < self.len() { first } else { self.live })
    }

    /// Units that count for the policy again because the planned grid rounds the ends of their ticks up.
    #[inline]
    pub(super) fn units_revived(&self, plan: &Plan) -> u64 {
        if plan.shared.is_none() || plan.grid.tick_us == self.log.grid.tick_us || self.live == 0 {
            return 0;
        }
        let grid = Grid { period_us: self.grid.period_us, ..plan.grid };
        let counts = |&index: &usize| grid.expiry_us(self.placed(index, plan.grid)) > self.now.as_us().into();
        let first = (self.kept..self.live).rev().take_while(counts).last();
        first.map_or(0, |first| self.count_before(self.live).wrapping_sub(self.count_before(first)).into())
    }

    /// Encodes the log after `next`.
    pub(in crate::limiter) fn store(&self, next: &Next, bytes: &mut Bytes) -> Change {
        let plan = self.plan();
        let in_place = match next.update {
            LogUpdate::Grant { units, booked } => self.append(&plan, next, units, booked),
            LogUpdate::Refund(index) => {
                self.header(&plan, None).map(|header| InPlace { header, index, offset: self.log.offset(index) })
            }
            // Only a record with ids is cleared.
            LogUpdate::Clear => return Change::Remove,
        };
        let (offset, head) = match in_place {
            Some(InPlace { header, index, offset }) => {
                (LOG_HEADER + ENTRY * index, put(bytes, header, entry(offset, next.count)))
            }
            None => {
                let end = if let LogUpdate::Refund(index) = next.update { index } else { self.len() };
                *bytes = self.rewrite(&plan, end, next);
                (0, 0)
            }
        };
        let change = Change::Write { offset, head, expires: next.expires, slack: plan.slack() };
        debug_assert_eq!(self.fault_after(Some(next), &change, bytes), None);
        change
    }

    /// The limit in the header: that of the last caller whose period is the log's. It fits, because a policy's limit is at
    /// most [`Spec::max_limit`](crate::limiter::Spec::max_limit).
    fn header_limit(&self, plan: &Plan) -> u32 {
        if plan.grid.period_us == self.grid.period_us {
            self.limit as u32
        } else {
            self.log.limit
        }
    }

    /// The header for a change in place. `None`: there can be none, and the log has to be rewritten. `Some(None)`: the header stays as
    /// it is. `ahead` is the new [`Shared::ahead`], if it grows.
    #[inline]
    pub(super) fn header(&self, plan: &Plan, ahead: Option<i128>) -> Option<Option<[u8; LOG_HEADER]>> {
        let log = &self.log;
        if plan.grid != log.grid || self.shift != 0 {
            return None;
        }
        let limit = self.header_limit(plan);
        let mut mark = log.mark;
        if let Some(mut shared) = plan.shared {
            if ahead.is_some() {
                shared.ahead = ahead;
            }
            if shared.alone_since - log.first_eighth() > Shared::LAST.into() {
                return None;
            }
            mark = shared.encode(log.first_eighth());
        } else if ahead.is_some() || log.shared().is_some() {
            return None;
        }
        Some(((limit, mark) != (log.limit, log.mark)).then(|| Log { limit, mark, ..*log }.header()))
    }

    /// Adds `units` to the last entry, or in a new entry; `None` if the log has to be rewritten.
    #[inline(always)]
    pub(super) fn append(&self, plan: &Plan, next: &Next, units: u32, booked: bool) -> Option<InPlace> {
        let log = &self.log;
        let last = self.len().checked_sub(1)?;
        // Dead entries are dropped when there is more than one for each four that are kept. So on average a grant moves four entries.
        // A record with ids is rewritten with its ids, so it is rewritten less often.
        let kept_len = self.len() - self.kept;
        let most_dead = if self.has_ids() { kept_len } else { kept_len / 4 };
        let must_rewrite = self.kept > most_dead || self.len() >= MAX_ENTRIES;
        if must_rewrite {
            return None;
        }
        let offset = u32::try_from(next.tick - i128::from(log.base)).ok()?;
        let further = (booked || next.tick > self.current_tick()) && !self.may_lie_ahead(offset.into());
        let header = self.header(plan, further.then(|| plan.room_ahead(next.tick)))?;
        // Dead entries may count again under another policy, so the counts must not wrap around within all entries, dead
        // ones included.
        log.count(last).wrapping_sub(log.before_first).checked_add(units)?;
        let index = if offset == log.offset(last) { last } else { self.len() };
        Some(InPlace { header, index, offset })
    }

    /// The whole record on the planned grid: the entries before `end` that the log keeps, and then the entry of `next`.
    #[cold]
    pub(super) fn rewrite(&self, plan: &Plan, end: usize, next: &Next) -> Bytes {
        let (grid, first, dropped) = (plan.grid, self.first_kept(plan), self.units_dropped(plan));
        let mut base = if first < end.min(self.len()) { self.placed(first, grid).min(next.tick) } else { next.tick };
        if let Some(shared) = plan.shared {
            // The mark holds times from the base on, so the base must not be after them.
            base = base.min(shared.alone_since * grid.eighth());
        }
        // The entries that count span at most two periods and a few ticks, unless the log is damaged.
        let offset_of = |tick: i128| u32::try_from(tick - base).unwrap_or(u32::MAX);
        let mut header = Log {
            limit: self.header_limit(plan),
            grid,
            base: i64::try_from(base).unwrap_or(i64::MAX),
            before_first: 0,
            mark: 0,
            entries: &[],
        };
        header.mark = self.new_mark(plan, next, header.first_eighth(), offset_of);
        let mut bytes = Bytes::with_capacity(LOG_HEADER + ENTRY * (end.saturating_sub(first) + 1));
        bytes.extend(&header.header());
        let added = (offset_of(next.tick), next.count.wrapping_sub(dropped));
        let thin_before = (plan.shared.is_some() && end.saturating_sub(first) > NEWEST).then(|| end - NEWEST);
        if self.log.grid.tick_us == grid.tick_us && thin_before.is_none() && !self.has_given_back() {
            self.copy_entries(&mut bytes, first..end, base, dropped, added);
            return bytes;
        }
        // Of the old entries in the same 65536th of a period, the last one is kept: its count includes the units of the
        // others.
        let part_ticks = i128::from(grid.period_us.div_ceil(MAX_SEGMENTS).div_ceil(grid.tick_us));
        let stays = |&index: &usize| {
            thin_before.is_none_or(|thin_before| {
                let part = |index| self.placed(index, grid).div_euclid(part_ticks);
                index + 1 >= thin_before || part(index) != part(index + 1)
            })
        };
        let kept = (first..end).filter(stays);
        let kept = kept.map(|index| (offset_of(self.placed(index, grid)), self.count(index).wrapping_sub(dropped)));
        // Of entries in the same tick, the last one is kept, for the same reason.
        let mut entries = kept.chain([added]).peekable();
        let mut before = 0;
        while let Some((offset, count)) = entries.next() {
            // An entry whose units were all given back is dropped.
            if entries.peek().is_none_or(|&(next, _)| next != offset) && (count != before || entries.peek().is_none()) {
                bytes.extend(&entry(offset, count));
                before = count;
            }
        }
        bytes
    }

    /// The mark of a log that is rewritten for `next`.
    fn new_mark(&self, plan: &Plan, next: &Next, first_eighth: i128, offset_of: impl Fn(i128) -> u32) -> u32 {
        let (grid, tick) = (plan.grid, next.tick);
        // Of the old log, the last entry that stays.
        let (booked, last) = match next.update {
            LogUpdate::Grant { booked, .. } => (booked, self.len().checked_sub(1)),
            LogUpdate::Refund(index) => (false, Some(index)),
            LogUpdate::Clear => (false, None),
        };
        let lies_ahead = booked || tick > grid.tick_at(self.now);
        // Earlier calls may have booked units for later in the current tick.
        let may_lie_ahead = last
            .is_some_and(|last| self.tick(last) >= self.current_tick() && self.may_lie_ahead(self.log.offset(last).into()));
        // Beyond the booking horizon, [`View::new`] takes an entry for a booking only if the mark allows for any time.
        let far = tick > grid.tick_at(booking_horizon(self.now, grid));
        match plan.shared {
            Some(shared) => {
                let ahead = match lies_ahead {
                    true if far => Some(Shared::FAR),
                    true => Some(plan.room_ahead(tick)),
                    false => may_lie_ahead.then(|| tick.div_euclid(grid.eighth()) + 1),
                };
                Shared { ahead, ..shared }.encode(first_eighth)
            }
            None if lies_ahead && far => AHEAD_ANYWHERE,
            // Covers the bookings of a further period, so that they need not rewrite the log.
            None if lies_ahead => offset_of(tick).saturating_add(grid.window_ticks()),
            None if may_lie_ahead => offset_of(tick).saturating_add(1),
            None => 0,
        }
    }

    /// Copies entries to a log with the same tick, and adds one.
    ///
    /// Every entry moves by the same number of ticks and units, so one pass over the bytes is enough, and a long log does
    /// not block the server for long. Ticks ascend, so only the last entry can share its tick with the added one.
    fn copy_entries(&self, bytes: &mut Bytes, range: std::ops::Range<usize>, base: i128, dropped: u32, added: (u32, u32)) {
        let kept = self.log.entries.get(range).unwrap_or_default();
        let moved = (base - i128::from(self.log.base) + i128::from(self.shift)) as u32;
        let kept = match kept.split_last() {
            Some((last, before)) if offset(last).wrapping_sub(moved) == added.0 => before,
            _ => kept,
        };
        let start = bytes.as_slice().len();
        bytes.extend(kept.as_flattened());
        for kept in bytes.as_mut_slice()[start..].as_chunks_mut::<ENTRY>().0 {
            *kept = entry(offset(kept).wrapping_sub(moved), count(kept).wrapping_sub(dropped));
        }
        bytes.extend(&entry(added.0, added.1));
    }
}

/// A change in place, which writes the last entry of the log.
pub(super) struct InPlace {
    /// The header, if it changes.
    pub(super) header: Option<[u8; LOG_HEADER]>,
    /// The index of the last entry.
    pub(super) index: usize,
    /// The tick of the last entry, from the base.
    pub(super) offset: u32,
}

/// Writes the header, if it changes, and the last entry to `bytes`; returns how many bytes the header takes.
#[inline]
fn put(bytes: &mut Bytes, header: Option<[u8; LOG_HEADER]>, last: Entry) -> usize {
    let Some(header) = header else {
        bytes.room(ENTRY)[..ENTRY].copy_from_slice(&last);
        return 0;
    };
    let room = bytes.room(LOG_HEADER + ENTRY);
    room[..LOG_HEADER].copy_from_slice(&header);
    room[LOG_HEADER..LOG_HEADER + ENTRY].copy_from_slice(&last);
    LOG_HEADER
}
