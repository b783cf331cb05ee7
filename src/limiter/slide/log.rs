//! The record of SLIDE: a header and a packed log of entries, which is read in place.

use crate::limiter::ledger::{Ledger, WithIds};
use crate::limiter::record::{self, take, RecordError};
use crate::limiter::{Instant, Kind, Span, MAX_PERIOD, MIN_PERIOD};

/// The most ticks in a policy's period.
pub(super) const MAX_SEGMENTS: u64 = 65_536;
/// The most ticks in the period of a log that callers with several policies share.
const MAX_SHARED_SEGMENTS: u64 = 1 << 28;

/// The length of a tick, and how long an entry counts: of a policy or of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) tick_us: u64,
    pub(super) period_us: u64,
}

impl Grid {
    /// The most ticks that a window can overlap: the ticks of a period, and one.
    pub(super) fn window_ticks(self) -> u32 {
        u32::try_from(self.period_us.div_ceil(self.tick_us)).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// The tick that holds `instant`.
    pub(super) fn tick_at(self, instant: Instant) -> i128 {
        instant.as_us().div_euclid(self.tick_us as i64).into()
    }

    /// The moment from which on a tick's units do not count, in microseconds since the Unix epoch: a period after the last
    /// microsecond of the tick.
    pub(super) fn expiry_us(self, tick: i128) -> i128 {
        (tick + 1) * i128::from(self.tick_us) - 1 + i128::from(self.period_us)
    }

    /// The number of ticks in an eighth of a period, at least one.
    pub(super) fn eighth(self) -> i128 {
        (self.period_us.div_ceil(self.tick_us) / 8).max(1).into()
    }

    /// The grid of a log that callers with this grid and callers with `other` share: the longer period, and the finer tick,
    /// as far as the width of an entry allows.
    pub(super) fn covering(self, other: Self) -> Self {
        let period_us = self.period_us.max(other.period_us);
        Self { tick_us: self.tick_us.min(other.tick_us).max(period_us.div_ceil(MAX_SHARED_SEGMENTS)), period_us }
    }

    /// A number of 19 bits that identifies callers with this grid. Two grids rarely have the same number.
    pub(super) fn caller_tag(self) -> u32 {
        let mixed = (self.period_us.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.tick_us).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // The last tag is left out, because a mark with it could equal `AHEAD_ANYWHERE`.
        (mixed >> 32) as u32 % (Shared::TAGS - 1)
    }
}

/// The latest moment for which units may be booked: a period and a tick after `now`.
pub(super) fn booking_horizon(now: Instant, grid: Grid) -> Instant {
    now.checked_add(Span::from_us(grid.period_us + grid.tick_us)).unwrap_or(Instant::MAX)
}

/// The `mark` of a log whose entries may lie any time in the future: they were booked under a former policy.
pub(super) const AHEAD_ANYWHERE: u32 = u32::MAX;

/// The `mark` of a log that callers with several policies share.
///
/// A mark holds times in eighths of the log's period, counted from the eighth that holds the base. The fields hold them in
/// eighths counted from the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// The [`Grid::caller_tag`] of one of the callers.
    pub(super) tag: u32,
    /// Since this time only the caller with that tag has been granted units.
    pub(super) alone_since: i128,
    /// Entries before this time may lie in the future; `None` if no entry lies there, [`Shared::FAR`] if entries may lie any
    /// time in the future.
    pub(super) ahead: Option<i128>,
}

impl Shared {
    /// This bit of a mark says that the log is shared. An older version of the module reads such a mark as that of a log
    /// whose entries may lie in the future.
    const FLAG: u32 = 1 << 31;
    /// The number of bits that hold a time.
    const BITS: u32 = 6;
    /// The latest time that fits these bits.
    pub(super) const LAST: u32 = (1 << Self::BITS) - 1;
    /// The number of caller tags.
    const TAGS: u32 = 1 << (31 - 2 * Self::BITS);
    pub(super) const FAR: i128 = i128::MAX;

    /// The mark of a log whose base lies in the eighth `first`.
    pub(super) fn encode(self, first: i128) -> u32 {
        let bits = |time: i128| time.saturating_sub(first).clamp(0, Self::LAST.into()) as u32;
        let ahead = self.ahead.map_or(0, |ahead| bits(ahead).max(1));
        Self::FLAG | self.tag << (2 * Self::BITS) | bits(self.alone_since) << Self::BITS | ahead
    }
}

/// A record, whose entries are borrowed from the stored value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log<'a> {
    /// The limit of the last caller whose period is the log's, in units.
    pub(super) limit: u32,
    pub(super) grid: Grid,
    /// The tick from which the ticks of entries are counted; itself counted from the Unix epoch.
    pub(super) base: i64,
    /// Units granted before the first entry, modulo 2^32.
    pub(super) before_first: u32,
    /// Which entries may lie in the future; see the table in [`super`].
    pub(super) mark: u32,
    pub(super) entries: &'a [Entry],
}

/// The length of an entry, in bytes.
pub(super) const ENTRY: usize = 8;
pub(super) type Entry = [u8; ENTRY];
/// The length of the header, in bytes.
pub(super) const LOG_HEADER: usize = 40;

impl<'a> Log<'a> {
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let log = Self::decode_inner(bytes)?;
        (!log.entries.is_empty()).then_some(log).ok_or(RecordError::Unknown)
    }

    /// Reads a record with or without ids.
    pub(super) fn decode_any(bytes: &'a [u8]) -> Result<(Self, Option<WithIds<'a>>), RecordError> {
        match Self::decode(bytes) {
            Ok(log) => Ok((log, None)),
            Err(_) => {
                let ledger = Ledger::open(bytes, Kind::Slide)?;
                Ok((Self::decode_inner(ledger.inner())?, Some(ledger.record())))
            }
        }
    }

    /// Reads a log. With ids, a log may have no entries.
    #[inline(always)]
    fn decode_inner(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let (head, mut fields) = record::open(bytes, Kind::Slide)?;
        let spare = take(&mut fields, 1);
        let limit = take(&mut fields, 4) as u32;
        let period_us = take(&mut fields, 8) as u64;
        let tick_us = take(&mut fields, 8) as u64;
        let base = take(&mut fields, 8) as u64 as i64;
        let before_first = take(&mut fields, 4) as u32;
        let mark = take(&mut fields, 4) as u32;
        let (entries, rest) = fields.as_chunks::<ENTRY>();
        let valid = head == 0
            && spare == 0
            && limit > 0
            && (MIN_PERIOD..=MAX_PERIOD).contains(&Span::from_us(period_us))
            && (1..=period_us).contains(&tick_us)
            && rest.is_empty();
        let log = Self { limit, grid: Grid { tick_us, period_us }, base, before_first, mark, entries };
        valid.then_some(log).ok_or(RecordError::Unknown)
    }

    pub(super) fn header(&self) -> [u8; LOG_HEADER] {
        let mut header = [0; LOG_HEADER];
        header[..3].copy_from_slice(&[record::MAGIC, record::VERSION, super::SPEC.tag]);
        header[4..8].copy_from_slice(&self.limit.to_le_bytes());
        header[8..16].copy_from_slice(&self.grid.period_us.to_le_bytes());
        header[16..24].copy_from_slice(&self.grid.tick_us.to_le_bytes());
        header[24..32].copy_from_slice(&self.base.to_le_bytes());
        header[32..36].copy_from_slice(&self.before_first.to_le_bytes());
        header[36..40].copy_from_slice(&self.mark.to_le_bytes());
        header
    }

    /// The eighth of a period that holds the base, counted from the Unix epoch.
    pub(super) fn first_eighth(&self) -> i128 {
        i128::from(self.base).div_euclid(self.grid.eighth())
    }

    /// The mark, if callers with several policies share the log.
    #[inline]
    pub(super) fn shared(&self) -> Option<Shared> {
        if self.mark < Shared::FLAG || self.mark == AHEAD_ANYWHERE {
            return None;
        }
        let time = |bits: u32| self.first_eighth() + i128::from(bits & Shared::LAST);
        let ahead = match self.mark & Shared::LAST {
            0 => None,
            Shared::LAST => Some(Shared::FAR),
            bits => Some(time(bits)),
        };
        let tag = (self.mark & !Shared::FLAG) >> (2 * Shared::BITS);
        Some(Shared { tag, alone_since: time(self.mark >> Shared::BITS), ahead })
    }

    /// Entries before this tick, from the base, may lie in the future; `None` if entries may lie any time in the future.
    #[inline]
    pub(super) fn ahead_bound(&self) -> Option<u64> {
        match self.shared() {
            None => (self.mark != AHEAD_ANYWHERE).then_some(self.mark.into()),
            Some(Shared { ahead: None, .. }) => Some(0),
            Some(Shared { ahead: Some(Shared::FAR), .. }) => None,
            Some(Shared { ahead: Some(time), .. }) => {
                Some((time * self.grid.eighth() - i128::from(self.base)).clamp(0, u64::MAX.into()) as u64)
            }
        }
    }

    /// The tick of entry `index`, from the base.
    pub(super) fn offset(&self, index: usize) -> u32 {
        offset(&self.entries[index])
    }

    /// The units granted up to the end of entry `index`, modulo 2^32.
    pub(super) fn count(&self, index: usize) -> u32 {
        count(&self.entries[index])
    }
}

pub(super) fn entry(offset: u32, count: u32) -> Entry {
    let ([a, b, c, d], [e, f, g, h]) = (offset.to_le_bytes(), count.to_le_bytes());
    [a, b, c, d, e, f, g, h]
}

pub(super) fn offset(&[a, b, c, d, ..]: &Entry) -> u32 {
    u32::from_le_bytes([a, b, c, d])
}

pub(super) fn count(&[.., a, b, c, d]: &Entry) -> u32 {
    u32::from_le_bytes([a, b, c, d])
}
