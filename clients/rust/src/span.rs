//! Durations and rates as the server takes them: exact to the microsecond.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Error;

const DAY_US: u64 = 86_400_000_000;

/// The units of a duration in a text, the largest first.
const UNITS: [(&str, u64); 6] =
    [("d", DAY_US), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// A length of time that is exact to the microsecond, as the server takes it. Made from a [`Duration`], or from a text such as
/// `"30s"`, `"1.5h"`, `"250ms"` or `"m"`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    us: u64,
}

impl Span {
    /// The length in microseconds.
    pub fn as_micros(self) -> u64 {
        self.us
    }

    #[cfg(feature = "tokio")]
    pub(crate) const fn of_micros(us: u64) -> Self {
        Self { us }
    }

    /// A period or a time to live: 1 ms to 3650 days.
    pub(crate) fn as_period(self, what: &str) -> Result<Self, Error> {
        match self.us {
            1_000..=315_360_000_000_000 => Ok(self),
            _ => Err(Error::InvalidLimit(format!("{what} must be from 1ms to 3650d, not {self}"))),
        }
    }

    /// A wait: at most a day; `None` if it is 0.
    #[cfg(feature = "tokio")]
    pub(crate) fn of_wait<W: TryInto<Self>>(wait: W) -> Result<Option<Self>, Error>
    where
        Error: From<W::Error>,
    {
        let invalid = |text: String| Error::InvalidWait(format!("a wait must be from 0 to 1d: {text}"));
        match wait.try_into() {
            Ok(Self { us: 0 }) => Ok(None),
            Ok(wait) if wait.us <= DAY_US => Ok(Some(wait)),
            Ok(wait) => Err(invalid(wait.to_string())),
            Err(error) => Err(invalid(Error::from(error).to_string())),
        }
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.us)
    }
}

impl TryFrom<Duration> for Span {
    type Error = Error;

    /// Fails if the duration is longer than 584 000 years. What is shorter than a microsecond is rounded up.
    fn try_from(duration: Duration) -> Result<Self, Error> {
        let us = u64::try_from(duration.as_nanos().div_ceil(1_000));
        Ok(Self { us: us.map_err(|_| Error::InvalidLimit(format!("{duration:?} is too long")))? })
    }
}

impl TryFrom<&str> for Span {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        text.parse()
    }
}

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            Error::InvalidLimit(format!(
                "{text:?} is no duration: it is a unit (us, ms, s, m, h or d) with a number before it; exact to the microsecond"
            ))
        };
        let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let (_, unit) = UNITS.into_iter().find(|&(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(invalid)?;
        let us = if number.is_empty() { Some(unit) } else { decimal(number, unit) };
        us.map(|us| Self { us }).ok_or_else(invalid)
    }
}

/// `number` times `unit`, if that is a whole number.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && decimals.is_empty()) || decimals.contains('.') {
        return None;
    }
    let mut us = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    // Zeros at the end change nothing.
    let decimals = decimals.trim_end_matches('0');
    if !decimals.is_empty() {
        let part = u128::from(decimals.parse::<u64>().ok()?) * u128::from(unit);
        let scale = 10_u128.checked_pow(u32::try_from(decimals.len()).ok()?)?;
        if !part.is_multiple_of(scale) {
            return None;
        }
        us = us.checked_add(u64::try_from(part / scale).ok()?)?;
    }
    Some(us)
}

/// As the server takes it, in the largest unit that divides it.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides = |&(_, unit): &(&str, u64)| self.us > 0 && self.us.is_multiple_of(unit);
        let (name, unit) = UNITS.into_iter().find(divides).unwrap_or(("s", 1));
        write!(f, "{}{name}", self.us / unit)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// So many units in a period: `"10/m"`, `"100/15m"`, `"2/250ms"`, or `(10, Duration::from_secs(60))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The units.
    pub limit: u64,
    /// The period.
    pub period: Span,
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            Error::InvalidLimit(format!(
                "{text:?} is no rate: it is whole units, a slash, and a period such as s, 15m, 250ms, 1.5h or 1d"
            ))
        };
        let (limit, period) = text.split_once('/').ok_or_else(invalid)?;
        if limit.is_empty() || !limit.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let limit = limit.parse().map_err(|_| invalid())?;
        Ok(Self { limit, period: period.parse().map_err(|_| invalid())? })
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

impl TryFrom<&str> for Rate {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        text.parse()
    }
}

impl TryFrom<(u64, Duration)> for Rate {
    type Error = Error;

    fn try_from((limit, period): (u64, Duration)) -> Result<Self, Error> {
        Ok(Self { limit, period: period.try_into()? })
    }
}

impl TryFrom<(u64, Span)> for Rate {
    type Error = Error;

    fn try_from((limit, period): (u64, Span)) -> Result<Self, Error> {
        Ok(Self { limit, period })
    }
}
