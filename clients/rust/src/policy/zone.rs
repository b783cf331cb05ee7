//! Windows of the calendar in a time zone: days, weeks from Monday, and months.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use super::{number, Fixed, MOST};
use crate::span::Rate;
use crate::{Error, Span};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Day,
    Week,
    Month,
}

/// A unit of the calendar in a time zone. All copies of a zone refer to one that is never freed, of which there are as many as names in
/// the time zone database at most; so policies can be copied.
#[derive(Clone, Copy)]
pub(super) struct Zone {
    unit: Unit,
    zone: &'static TimeZone,
}

static ZONES: Mutex<BTreeMap<String, &'static TimeZone>> = Mutex::new(BTreeMap::new());

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.unit == other.unit && std::ptr::eq(self.zone, other.zone)
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.unit.hash(state);
        std::ptr::from_ref(self.zone).hash(state);
    }
}

impl Fixed {
    /// Windows of the calendar in a time zone, which has a name of the IANA time zone database: days (`"1000/d"`), weeks from Monday
    /// (`"1000/week"`) or months (`"1000/month"`). The process says when the window ends, by its clock.
    pub fn zone(rate: &str, zone: &str) -> Result<Self, Error> {
        let invalid = |text: String| Error::InvalidLimit(text);
        let unit = |name: &str| match name.to_ascii_lowercase().as_str() {
            "d" | "day" => Some(Unit::Day),
            "week" => Some(Unit::Week),
            "month" => Some(Unit::Month),
            _ => None,
        };
        let parsed = Rate::split(rate).and_then(|(limit, name)| Some((limit, unit(name)?)));
        let (limit, unit) = parsed.ok_or_else(|| {
            invalid(format!("{rate:?} is no rate of a zone: it is whole units, a slash, and d (day), week or month"))
        })?;
        let zone = known(zone).ok_or_else(|| invalid(format!("{zone:?} is no name of the IANA time zone database")))?;
        // The longest that a window can be and one hour more, so that a fast clock ends none early.
        let hours = match unit {
            Unit::Day => 26,
            Unit::Week => 170,
            Unit::Month => 746,
        };
        let period = Span::of_micros(hours * 3_600_000_000);
        let rate = Rate { limit: number("limit", limit, 0, MOST)?, period };
        Ok(Self { zone: Some(Zone { unit, zone }), ..Self::of(rate) })
    }
}

fn known(name: &str) -> Option<&'static TimeZone> {
    let zone = TimeZone::get(name).ok()?;
    let name = zone.iana_name()?.to_string();
    let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    Some(zones.entry(name).or_insert_with(|| Box::leak(Box::new(zone))))
}

impl Zone {
    pub(super) fn name(self) -> &'static str {
        self.zone.iana_name().unwrap_or_default()
    }

    pub(super) fn unit_name(self) -> &'static str {
        match self.unit {
            Unit::Day => "d",
            Unit::Week => "week",
            Unit::Month => "month",
        }
    }

    /// The Unix times in seconds at which the window of this time begins and ends.
    pub(super) fn window(self, now: SystemTime) -> (i64, i64) {
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::MAX);
        let today = self.zone.to_datetime(now).date();
        let first = match self.unit {
            Unit::Day => today,
            Unit::Week => today.saturating_sub(i64::from(today.weekday().to_monday_zero_offset()).days()),
            Unit::Month => today.first_of_month(),
        };
        let next = match self.unit {
            Unit::Day => first.saturating_add(1.day()),
            Unit::Week => first.saturating_add(1.week()),
            Unit::Month => first.saturating_add(1.month()),
        };
        (self.begin(first), self.begin(next))
    }

    /// When a day begins: where the clocks skip midnight, at the moment at which they do.
    fn begin(self, day: Date) -> i64 {
        day.to_zoned(self.zone.clone()).map_or(i64::MAX, |begin| begin.timestamp().as_second())
    }
}
