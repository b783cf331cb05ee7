//! The records of FIXED, GCRA and BUCKET: fields of fixed width, 28 or 41 bytes in all.

use super::{Alignment, Drain, Level, Meter, Record};
use crate::limiter::record::{self, fits, take, RecordError};
use crate::limiter::{Bytes, Instant, Kind, Span, MAX_PERIOD, MAX_UNITS, MIN_PERIOD};

/// The widths in bytes of a record's fields, in their order after the first three bytes (see [`record`]).
///
/// [`encode`] takes the first layout whose fields fit. The records of most limiters take 28 bytes, so that their keys are as
/// small as keys that hold a decimal timestamp.
struct Layout {
    /// Units per period.
    limit: usize,
    /// Units; zero bytes if the capacity equals the limit.
    capacity: usize,
    period: usize,
    /// The unit in which the period is stored, in microseconds.
    period_unit_us: u64,
    /// Microseconds since the Unix epoch; signed if it has eight bytes.
    at: usize,
    /// Grains.
    used: usize,
}

impl Layout {
    const COMMON: Self = Self { limit: 4, capacity: 0, period: 6, period_unit_us: 1, at: 7, used: 8 };
    const BURST: Self = Self { limit: 4, capacity: 4, period: 4, period_unit_us: 1_000, at: 7, used: 6 };
    const WIDE: Self = Self { limit: 5, capacity: 5, period: 7, period_unit_us: 1, at: 8, used: 13 };

    const fn len(&self) -> usize {
        self.limit + self.capacity + self.period + self.at + self.used
    }

    #[inline(always)]
    fn decode(&self, mut fields: &[u8], kind: Kind, drain: Drain) -> Option<Record<'static>> {
        if fields.len() != self.len() {
            return None;
        }
        let limit = take(&mut fields, self.limit) as u64;
        let capacity = if self.capacity == 0 { limit } else { take(&mut fields, self.capacity) as u64 };
        let period_us = take(&mut fields, self.period) as u64 * self.period_unit_us;
        let at = Instant::from_us(take(&mut fields, self.at) as u64 as i64);
        let used = take(&mut fields, self.used);
        let valid = (1..=MAX_UNITS).contains(&limit)
            && (1..=MAX_UNITS).contains(&capacity)
            && (MIN_PERIOD..=MAX_PERIOD).contains(&Span::from_us(period_us));
        let meter = Meter { kind, limit, period_us, capacity, drain, alignment: Alignment::FirstCall, carries_over: false };
        valid.then_some(Record { meter, level: Level { at, used }, ids: None })
    }

    /// Writes the record and returns true; returns false if a field does not fit.
    #[inline(always)]
    fn encode(&self, meter: &Meter, level: Level, head: u8, bytes: &mut Bytes) -> bool {
        let capacity_is_limit = self.capacity == 0;
        let at = level.at.as_us();
        if capacity_is_limit && meter.capacity != meter.limit
            || !meter.period_us.is_multiple_of(self.period_unit_us)
            || self.at < 8 && at < 0
        {
            return false;
        }
        let at = at as u64;
        let fits = fits(meter.limit.into(), self.limit)
            && (capacity_is_limit || fits(meter.capacity.into(), self.capacity))
            && fits((meter.period_us / self.period_unit_us).into(), self.period)
            && fits(at.into(), self.at)
            && fits(level.used, self.used);
        if !fits {
            return false;
        }
        let bytes = bytes.room(3 + self.len());
        bytes[..3].copy_from_slice(&[record::MAGIC, record::VERSION, head]);
        let mut end = 3;
        // Each number is one store of 16 bytes. Its upper bytes are zero, and the next number overwrites them.
        let mut put = |number: u128, width: usize| {
            bytes[end..end + size_of::<u128>()].copy_from_slice(&number.to_le_bytes());
            end += width;
        };
        put(meter.limit.into(), self.limit);
        put(if capacity_is_limit { 0 } else { meter.capacity.into() }, self.capacity);
        put((meter.period_us / self.period_unit_us).into(), self.period);
        put(at.into(), self.at);
        put(level.used, self.used);
        true
    }
}

/// The length of the longest record without ids.
pub(super) const MAX_LEN: usize = 3 + Layout::WIDE.len();

/// The third byte holds the [`Drain`] from this bit on.
const DRAIN_SHIFT: u32 = 3;
/// The third byte holds the [`Layout`] from this bit on.
const LAYOUT_SHIFT: u32 = 5;

impl Record<'static> {
    /// Reads a record of `kind` without ids.
    #[inline(always)]
    pub(in crate::limiter) fn decode(bytes: &[u8], kind: Kind) -> Result<Self, RecordError> {
        let (head, fields) = record::open(bytes, kind)?;
        let drain = match Drain::ALL.get(usize::from(head >> DRAIN_SHIFT & 0b11)) {
            Some(&drain) if drain.is_of(kind) => drain,
            _ => return Err(RecordError::Unknown),
        };
        // One call for each layout, so that the compiler generates code with constant widths for each.
        let decoded = match head >> LAYOUT_SHIFT {
            0 => Layout::COMMON.decode(fields, kind, drain),
            1 => Layout::BURST.decode(fields, kind, drain),
            2 => Layout::WIDE.decode(fields, kind, drain),
            _ => None,
        };
        decoded.ok_or(RecordError::Unknown)
    }
}

impl Record<'_> {
    /// The moment at which the level has drained: the TAT of GCRA.
    pub(in crate::limiter) fn drained_at(&self) -> Instant {
        let (level, _) = self.meter.read(self.level);
        level.at.saturating_add(self.meter.reset(level, level.at))
    }
}

/// Whether a record can hold a level of `used` grains. The other fields always fit the widest layout.
pub(super) fn holds(used: u128) -> bool {
    fits(used, Layout::WIDE.used)
}

/// Writes the record of a level whose grains [fit](holds).
#[inline]
pub(super) fn encode(meter: &Meter, level: Level, bytes: &mut Bytes) {
    let head = meter.kind.spec().tag | (meter.drain as u8) << DRAIN_SHIFT;
    let encoded = Layout::COMMON.encode(meter, level, head, bytes)
        || Layout::BURST.encode(meter, level, head | 1 << LAYOUT_SHIFT, bytes)
        || Layout::WIDE.encode(meter, level, head | 2 << LAYOUT_SHIFT, bytes);
    debug_assert!(encoded, "{level:?} of {meter:?} fits no layout");
    debug_assert_eq!(
        Record::decode(bytes.as_slice(), meter.kind).map(|record| (record.meter, record.level)),
        Ok((Meter { alignment: Alignment::FirstCall, carries_over: false, ..*meter }, level))
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::View;
    use super::*;
    use crate::limiter::{Instant, Quota, MIN_RECORD};

    /// Each way to drain, with an algorithm that drains so.
    const DRAINS: [(Kind, Drain); 4] = [
        (Kind::Fixed, Drain::Windows),
        (Kind::Gcra, Drain::Smooth),
        (Kind::Bucket, Drain::Smooth),
        (Kind::Bucket, Drain::Steps),
    ];

    fn units() -> impl Strategy<Value = u64> {
        prop_oneof![1..1_000_u64, 1..=MAX_UNITS, Just(u64::from(u32::MAX)), Just(u64::from(u32::MAX) + 1)]
    }

    prop_compose! {
        fn state()(
            limit in units(),
            capacity in prop::option::of(units()),
            period_us in prop_oneof![
                MIN_PERIOD.as_us()..=MAX_PERIOD.as_us(),
                (1..=MAX_PERIOD.as_us() / 1_000).prop_map(|ms| ms * 1_000),
            ],
            (kind, drain) in prop::sample::select(&DRAINS[..]),
            at in prop_oneof![any::<i64>(), 0..1_i64 << 56, Just(0), Just(i64::MAX), Just(i64::MIN)],
            used in prop_oneof![any::<u64>().prop_map(u128::from), 0..1_u128 << 104],
        ) -> (Meter, Level) {
            let quota = Quota::new(limit, Span::from_us(period_us)).expect("in range");
            let meter = Meter { capacity: capacity.unwrap_or(limit), ..Meter::new(kind, quota, drain) };
            (meter, Level { at: Instant::from_us(at), used })
        }
    }

    fn encoded(meter: &Meter, level: Level) -> Bytes {
        let mut bytes = Bytes::default();
        encode(meter, level, &mut bytes);
        bytes
    }

    fn decoded(bytes: &[u8], kind: Kind) -> Result<(Meter, Level), RecordError> {
        Record::decode(bytes, kind).map(|record| (record.meter, record.level))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn an_encoded_record_decodes_to_the_same((meter, level) in state()) {
            prop_assert!(holds(level.used));
            let bytes = encoded(&meter, level);
            prop_assert!((MIN_RECORD..=Bytes::SHORT).contains(&bytes.as_slice().len()));
            prop_assert_eq!(decoded(bytes.as_slice(), meter.kind), Ok((meter, level)));
        }

        #[test]
        fn a_decoded_record_is_encoded_in_no_more_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), 28..=41),
            head in any::<u8>(),
            (kind, _) in prop::sample::select(&DRAINS[..]),
        ) {
            bytes[..3].copy_from_slice(&[record::MAGIC, record::VERSION, head & !record::TAG_BITS | kind.spec().tag]);
            if let Ok(record) = Record::decode(&bytes, kind) {
                let again = encoded(&record.meter, record.level);
                prop_assert!(again.as_slice().len() <= bytes.len());
                prop_assert_eq!(decoded(again.as_slice(), kind), Ok((record.meter, record.level)));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            (kind, _) in prop::sample::select(&DRAINS[..]),
            now in any::<i64>(),
        ) {
            if let Ok(record) = Record::decode(&bytes, kind) {
                View::of_record(&record, Instant::from_us(now)).inspect();
            }
        }
    }

    #[test]
    fn the_widest_layout_has_a_limit() {
        assert!(holds((1 << 104) - 1));
        assert!(!holds(1 << 104));
    }
}
