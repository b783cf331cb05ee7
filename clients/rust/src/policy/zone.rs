//! Windows of the calendar in a time zone: days, weeks from Monday, and months.

use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use parking_lot::Mutex;

use super::{number, Fixed, Spec, MOST};
use crate::span::Rate;
use crate::{Error, Span};

/// A unit of the calendar: its names, of which texts have the first, and the hours that a window can have at most and one more, so that a
/// fast clock ends none early.
type Unit = (&'static [&'static str], u64);

const DAY: Unit = (&["d", "day", "days"], 26);
const WEEK: Unit = (&["week"], 170);
const MONTH: Unit = (&["month"], 746);

/// A unit of the calendar in a time zone. All copies of a zone refer to one that is never freed, of which there are as many as names in
/// the time zone database at most; so policies can be copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Zone {
    unit: Unit,
    zone: &'static TimeZone,
}

static ZONES: Mutex<BTreeMap<String, &'static TimeZone>> = Mutex::new(BTreeMap::new());

impl Fixed {
    /// Windows of the calendar in a time zone, which has a name of the IANA time zone database: days (`"1000/d"`), weeks from Monday
    /// (`"1000/week"`) or months (`"1000/month"`). The process says when the window ends, by its clock.
    pub fn zone(rate: &str, zone: &str) -> Result<Self, Error> {
        let invalid = |text: String| Error::InvalidLimit(text);
        let unit = |text: &str| {
            [DAY, WEEK, MONTH].into_iter().find(|(names, _)| names.iter().any(|name| name.eq_ignore_ascii_case(text)))
        };
        let parsed = Rate::split(rate).and_then(|(limit, name)| Some((limit, unit(name)?)));
        let (limit, unit) = parsed.ok_or_else(|| {
            invalid(format!("{rate:?} is no rate of a zone: it is whole units, a slash, and d (day), week or month"))
        })?;
        let zone = known(zone).ok_or_else(|| invalid(format!("{zone:?} is no name of the IANA time zone database")))?;
        let period = Span::of_micros(unit.1 * 3_600_000_000);
        let rate = Rate { limit: number("limit", limit, 0, MOST)?, period };
        Ok(Self(Spec { zone: Some(Zone { unit, zone }), ..Spec::of(rate) }))
    }
}

fn known(name: &str) -> Option<&'static TimeZone> {
    let zone = TimeZone::get(name).ok()?;
    let name = zone.iana_name()?.to_string();
    let mut zones = ZONES.lock();
    Some(zones.entry(name).or_insert_with(|| Box::leak(Box::new(zone))))
}

impl Zone {
    /// The names of the unit and of the zone.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        (self.unit.0[0], self.zone.iana_name().unwrap_or_default())
    }

    /// The Unix times in seconds at which the window of this time begins and ends.
    pub(super) fn window(self, now: SystemTime) -> (i64, i64) {
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::MAX);
        let today = self.zone.to_datetime(now).date();
        let (first, length) = match self.unit {
            WEEK => (today.saturating_sub(i64::from(today.weekday().to_monday_zero_offset()).days()), 1.week()),
            MONTH => (today.first_of_month(), 1.month()),
            _ => (today, 1.day()),
        };
        let next = first.saturating_add(length);
        (self.begin(first), self.begin(next))
    }

    /// When a day begins: where the clocks skip midnight, at the moment at which they do.
    fn begin(self, day: Date) -> i64 {
        day.to_zoned(self.zone.clone()).map_or(i64::MAX, |begin| begin.timestamp().as_second())
    }
}
