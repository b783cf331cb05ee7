//! Durations and rates as the server takes them: exact to the microsecond.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Error;

const DAY_US: u64 = 86_400_000_000;

/// The units of a duration in a text, the largest first. The server knows the first name of each.
const UNITS: [(&[&str], u64); 6] = [
    (&["d", "day", "days"], DAY_US),
    (&["h", "hr", "hour", "hours"], 3_600_000_000),
    (&["m", "min", "minute", "minutes"], 60_000_000),
    (&["s", "sec", "second", "seconds"], 1_000_000),
    (&["ms"], 1_000),
    (&["us"], 1),
];

/// What an error says about the units.
const NAMES: &str = "us, ms, s (sec, second), m (min, minute), h (hr, hour) or d (day)";

/// A length of time that is exact to the microsecond, as the server takes it. It is shown as the server takes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    us: u64,
}

impl Span {
    pub(crate) const fn as_micros(self) -> u64 {
        self.us
    }

    pub(crate) const fn of_micros(us: u64) -> Self {
        Self { us }
    }

    /// The whole seconds, rounded up; at least 1.
    pub(crate) fn seconds(self) -> u64 {
        self.us.div_ceil(1_000_000).max(1)
    }

    /// A period or a time to live: 1 ms to 3650 days.
    pub(crate) fn as_period(self, what: &str) -> Result<Self, Error> {
        match self.us {
            1_000..=315_360_000_000_000 => Ok(self),
            _ => Err(Error::InvalidLimit(format!("{what} must be from 1ms to 3650d, not {self}"))),
        }
    }

    /// A wait: at most a day; `None` if it is 0.
    pub(crate) fn of_wait(wait: impl IntoSpan) -> Result<Option<Self>, Error> {
        let wait = Self::within(wait, 0, DAY_US, "a wait must be from 0 to 1d")?;
        Ok(Some(wait).filter(|wait| wait.us > 0))
    }

    /// A pause: 1 ms to 31 days.
    pub(crate) fn of_pause(length: impl IntoSpan) -> Result<Self, Error> {
        Self::within(length, 1_000, 31 * DAY_US, "a pause must be from 1ms to 31d")
    }

    fn within(length: impl IntoSpan, least: u64, most: u64, rule: &str) -> Result<Self, Error> {
        let span = length.span().map_err(|error| Error::InvalidWait(format!("{rule}: {error}")))?;
        match (least..=most).contains(&span.us) {
            true => Ok(span),
            false => Err(Error::InvalidWait(format!("{rule}, not {span}"))),
        }
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.us)
    }
}

/// A length of time: a [`Duration`], or a text such as `"30s"`.
pub trait IntoSpan {
    /// The length, exact to the microsecond; what is shorter is rounded up.
    fn span(self) -> Result<Span, Error>;
}

impl IntoSpan for Span {
    fn span(self) -> Result<Span, Error> {
        Ok(self)
    }
}

impl IntoSpan for Duration {
    fn span(self) -> Result<Span, Error> {
        let us = u64::try_from(self.as_nanos().div_ceil(1_000));
        Ok(Span { us: us.map_err(|_| Error::InvalidLimit(format!("{self:?} is too long")))? })
    }
}

impl IntoSpan for &str {
    fn span(self) -> Result<Span, Error> {
        self.parse()
    }
}

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            Error::InvalidLimit(format!(
                "{text:?} is no duration: it is a unit ({NAMES}) with a number before it, exact to the microsecond"
            ))
        })
    }
}

/// A unit with a number before it; they may have a space between them.
fn parse(text: &str) -> Option<Span> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, name) = text.split_at(digits);
    let name = if number.is_empty() { name } else { name.strip_prefix(' ').unwrap_or(name) };
    let is_named = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let (_, unit) = UNITS.into_iter().find(|(names, _)| is_named(names))?;
    Some(Span { us: if number.is_empty() { unit } else { decimal(number, unit)? } })
}

/// `number` times `unit`, if that is a whole number.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, decimals) = match number.split_once('.') {
        Some((_, "")) => return None,
        // Zeros at the end change nothing.
        Some((whole, decimals)) => (whole, decimals.trim_end_matches('0')),
        None => (number, ""),
    };
    let scale = 10_u128.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let part = u128::from(format!("0{decimals}").parse::<u64>().ok()?) * u128::from(unit);
    let part = u64::try_from(part / scale).ok().filter(|_| part.is_multiple_of(scale))?;
    whole.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(part)
}

/// As the server takes it, in the largest unit that divides it.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides = |(_, unit): &(&[&str], u64)| self.us > 0 && self.us.is_multiple_of(*unit);
        let (names, unit) = UNITS.into_iter().find(divides).unwrap_or((&["s"], 1));
        write!(f, "{}{}", self.us / unit, names[0])
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// So many units in a period: `"10/m"`, `"100/15 minutes"`, `"2/250ms"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) limit: u64,
    pub(crate) period: Span,
}

impl Rate {
    /// The whole units before the slash, and the period after it as a text.
    pub(crate) fn split(text: &str) -> Option<(u64, &str)> {
        let (limit, period) = text.split_once('/')?;
        let digits = !limit.is_empty() && limit.bytes().all(|byte| byte.is_ascii_digit());
        Some((limit.parse().ok().filter(|_| digits)?, period))
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let rate = Self::split(text).and_then(|(limit, period)| Some(Self { limit, period: parse(period)? }));
        rate.ok_or_else(|| {
            Error::InvalidLimit(format!(
                "{text:?} is no rate: it is whole units, a slash, and a unit of time ({NAMES}) with a number before it if that is not 1"
            ))
        })
    }
}

/// As short as possible: `10/m`, `7/90m`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = self.period.to_string();
        let unit = period.strip_prefix('1').filter(|unit| unit.starts_with(|first: char| first.is_ascii_alphabetic()));
        write!(f, "{}/{}", self.limit, unit.unwrap_or(&period))
    }
}
