//! Numbers and durations, as callers write them.

use super::error::Error;
use crate::limiter::{Instant, Kind, Span, MAX_PAUSE, MAX_PERIOD, MIN_PERIOD};

/// The longest duration after RESERVE or BLOCK: a day.
const MAX_WAIT_US: u64 = 86_400_000_000;

/// The error for a period of this algorithm that is malformed or out of range.
pub const fn bad_period(kind: Kind) -> Error {
    Error::Duration { name: kind.spec().period, range: "from 1ms to 3650d" }
}

/// Parses a whole number from `min` to `max`.
pub fn count(word: &[u8], name: &'static str, min: u64, max: u64) -> Result<u64, Error> {
    digits(word).filter(|number| (min..=max).contains(number)).ok_or(Error::Count { name, min, max })
}

/// Parses a word that consists of digits; `None` if it contains anything else or is empty, or if the number exceeds 64 bits.
pub fn digits(word: &[u8]) -> Option<u64> {
    let (number, rest) = leading_digits(word)?;
    rest.is_empty().then_some(number)
}

/// Splits an optional sign off. Returns whether it is a minus, and the rest of the word.
pub fn sign(word: &[u8]) -> (bool, &[u8]) {
    match word.split_first() {
        Some((b'-', size)) => (true, size),
        Some((b'+', size)) => (false, size),
        _ => (false, word),
    }
}

/// Parses the digits at the front of a word. Returns the number and the rest of the word; `None` if there is no digit, or if the
/// number exceeds 64 bits.
fn leading_digits(word: &[u8]) -> Option<(u64, &[u8])> {
    // A number with this many digits always fits 64 bits.
    const SAFE: usize = 19;
    let mut number = 0_u64;
    for (index, byte) in word.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (index > 0).then(|| (number, &word[index..]));
        }
        number =
            if index < SAFE { number * 10 + u64::from(digit) } else { number.checked_mul(10)?.checked_add(digit.into())? };
    }
    (!word.is_empty()).then_some((number, &[]))
}

/// Parses a period; `None` if it is malformed or out of range.
pub fn period(word: &[u8]) -> Option<Span> {
    duration_us(word).map(Span::from_us).filter(|period| (MIN_PERIOD..=MAX_PERIOD).contains(period))
}

/// Parses the duration after RESERVE or BLOCK.
pub fn wait(word: &[u8], name: &'static str) -> Result<Span, Error> {
    let span = duration_us(word).filter(|us| (1..=MAX_WAIT_US).contains(us)).map(Span::from_us);
    span.ok_or(Error::Duration { name, range: "above 0, at most 1d" })
}

/// Parses the length of a pause; zero ends one.
pub fn pause(word: &[u8]) -> Result<Span, Error> {
    let span =
        duration_us(word).map(Span::from_us).filter(|&span| span == Span::ZERO || (MIN_PERIOD..=MAX_PAUSE).contains(&span));
    span.ok_or(Error::Duration { name: "duration", range: "0, or from 1ms to 31d" })
}

/// Parses a signed duration, whose absolute value must be less than `period`, into microseconds.
pub fn offset_us(word: &[u8], name: &'static str, period: Span) -> Result<i64, Error> {
    let (negative, size) = sign(word);
    let size_us = duration_us(size).filter(|&us| us < period.as_us()).and_then(|us| i64::try_from(us).ok());
    let size_us = size_us.ok_or(Error::Duration { name, range: "less than the period, either way" })?;
    Ok(if negative { -size_us } else { size_us })
}

/// Parses a moment: seconds since the Unix epoch, with up to six decimals. A number that is too large to be represented is the
/// last moment, so that the error says that it lies too far ahead.
pub fn time(word: &[u8], name: &'static str) -> Result<Instant, Error> {
    let is_whole = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    let has_no_suffix = word.last().is_some_and(u8::is_ascii_digit);
    match duration_us(word).filter(|_| has_no_suffix) {
        Some(us) => Ok(Instant::from_us(i64::try_from(us).unwrap_or(i64::MAX))),
        None if is_whole => Ok(Instant::MAX),
        None => Err(Error::Time(name)),
    }
}

/// Returns the length in microseconds of the unit of time with this suffix, and the most decimals with which every number gives
/// whole microseconds. Without a suffix, the unit is seconds.
fn unit(suffix: &[u8]) -> Option<(u64, usize)> {
    match suffix {
        [] | [b's' | b'S'] => Some((1_000_000, 6)),
        [b'u' | b'U', b's' | b'S'] => Some((1, 0)),
        [b'm' | b'M', b's' | b'S'] => Some((1_000, 3)),
        [b'm' | b'M'] => Some((60 * 1_000_000, 7)),
        [b'h' | b'H'] => Some((3_600 * 1_000_000, 8)),
        [b'd' | b'D'] => Some((86_400 * 1_000_000, 8)),
        _ => None,
    }
}

/// Parses a duration into microseconds: digits, optionally a point and digits, and a unit; without a unit, seconds.
fn duration_us(word: &[u8]) -> Option<u64> {
    let (whole, rest) = leading_digits(word)?;
    let (decimals, fraction, suffix) = match rest.strip_prefix(b".") {
        None => (0, 0, rest),
        Some(rest) => {
            let (fraction, suffix) = leading_digits(rest)?;
            (rest.len() - suffix.len(), fraction, suffix)
        }
    };
    let (unit_us, max_decimals) = unit(suffix)?;
    if decimals == 0 {
        return whole.checked_mul(unit_us);
    }
    if decimals > max_decimals {
        return None;
    }
    let fraction_us = unit_us / 10_u64.pow(decimals as u32);
    whole.checked_mul(unit_us)?.checked_add(fraction.checked_mul(fraction_us)?)
}

/// A caller's word for use in an error text: escaped to printable ASCII, and shortened if it is long.
pub fn printable(word: &[u8]) -> String {
    const MAX_LEN: usize = 32;
    let end = if word.len() > MAX_LEN { "..." } else { "" };
    format!("{}{end}", word[..word.len().min(MAX_LEN)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durations(rows: &[(&str, Option<u64>)]) {
        for &(word, us) in rows {
            assert_eq!(duration_us(word.as_bytes()), us, "{word}");
        }
    }

    #[test]
    fn durations_are_exact_to_the_microsecond() {
        durations(&[
            ("60", Some(60_000_000)),
            ("0.25", Some(250_000)),
            ("0.000001", Some(1)),
            ("1.000001s", Some(1_000_001)),
            ("250ms", Some(250_000)),
            ("0.001ms", Some(1)),
            ("7US", Some(7)),
            ("1.5m", Some(90_000_000)),
            ("1h", Some(3_600_000_000)),
            ("0.00000001h", Some(36)),
            ("1D", Some(86_400_000_000)),
            ("0060", Some(60_000_000)),
        ]);
    }

    #[test]
    fn times_are_seconds_without_suffix() {
        let parsed = |word: &str| time(word.as_bytes(), "UNTIL").ok().map(Instant::as_us);
        for (word, us) in [
            ("0", 0),
            ("1795302000", 1_795_302_000_000_000),
            ("1795302000.25", 1_795_302_000_250_000),
            ("1795302000.000001", 1_795_302_000_000_001),
            ("01", 1_000_000),
            ("9223372036854", 9_223_372_036_854_000_000),
            ("9223372036855", i64::MAX),
            ("18446744073709551615", i64::MAX),
            ("99999999999999999999999", i64::MAX),
        ] {
            assert_eq!(parsed(word), Some(us), "{word}");
        }
        for word in ["", "-1", "+1", "1s", "1d", "1.", ".5", "1.0000000", "1.5us", "1e9", "now", "1 ", "1,5", "1.x", "0x10"]
        {
            assert_eq!(parsed(word), None, "{word}");
        }
    }

    #[test]
    fn malformed_durations_are_refused() {
        durations(&[
            ("", None),
            ("s", None),
            (".5", None),
            ("5.", None),
            ("-1", None),
            ("+1", None),
            ("1.0000000", None),
            ("0.5us", None),
            ("0.0001ms", None),
            ("1e3", None),
            ("1 s", None),
            ("1s ", None),
            ("1ss", None),
            ("1w", None),
            ("1.2.3", None),
            ("inf", None),
            ("nan", None),
            ("99999999999999999999", None),
            ("18446744073709551615d", None),
            ("0x10", None),
            ("1\0", None),
        ]);
    }
}
