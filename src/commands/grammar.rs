//! The arguments of the commands: above all a rule, `limit period [algorithm options] [amount] [wait]`.
//!
//! Words are bytes, in no encoding. Keywords come in any order and any letter case, each at most once.

use super::error::{Error, Name};
use crate::limiter::{Amount, Kind, Policy, Quota, Request, Setting, SettingValue, Span, MAX_PERIOD, MAX_UNITS, MIN_PERIOD};

/// Where the words come from.
pub trait Words {
    /// Word `index`; `None` past the last.
    fn word(&self, index: usize) -> Option<&[u8]>;
}

impl Words for [&[u8]] {
    fn word(&self, index: usize) -> Option<&[u8]> {
        self.get(index).copied()
    }
}

/// A limit, and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The limit, with the algorithm's options.
    pub policy: Policy,
    /// The amount, and how far ahead it may be booked.
    pub request: Request,
    /// For how long the server may hold the reply until the units are free; `None`: not at all.
    pub block: Option<Span>,
}

/// Reads one word after the other.
struct Cursor<'w, W: ?Sized> {
    words: &'w W,
    next: usize,
}

impl<'w, W: Words + ?Sized> Cursor<'w, W> {
    fn peek(&self) -> Option<&'w [u8]> {
        self.words.word(self.next)
    }

    fn word(&mut self) -> Option<&'w [u8]> {
        let word = self.peek()?;
        self.next += 1;
        Some(word)
    }

    fn value(&mut self, keyword: &'static str) -> Result<&'w [u8], Error> {
        self.word().ok_or(Error::MissingValue(keyword))
    }
}

pub(super) type AmountOf = fn(u64) -> Amount;

/// The keywords for the amount. [`Name::Peek`] knows the first two, [`Name::All`] the first.
const AMOUNTS: [(&str, AmountOf); 4] =
    [("COST", Amount::Cost), ("UPTO", Amount::UpTo), ("FORCE", Amount::Force), ("REFUND", Amount::Refund)];

/// A keyword for the wait: what it is called, the amounts that it goes with, and what it does.
pub(super) struct Waiting {
    pub(super) keyword: &'static str,
    amounts: &'static [&'static str],
    set: fn(&mut Rule, Span),
}

/// The keywords for the wait.
const WAITS: [Waiting; 2] = [
    Waiting { keyword: "RESERVE", amounts: &["COST"], set: |rule, span| rule.request.ahead = span },
    Waiting { keyword: "BLOCK", amounts: &["COST", "UPTO"], set: |rule, span| rule.block = Some(span) },
];

/// The longest wait that can be asked for: a day.
const MAX_WAIT_US: u64 = 86_400_000_000;

impl Name {
    /// The keywords for the wait that the command knows.
    pub(super) const fn waits(self) -> &'static [Waiting] {
        match self {
            Self::Limiter(_) => &WAITS,
            Self::Peek | Self::All | Self::Inspect | Self::Top | Self::Throttle | Self::Tokens => &[],
        }
    }

    pub(super) fn amounts(self) -> &'static [(&'static str, AmountOf)] {
        match self {
            Self::Limiter(_) => &AMOUNTS,
            Self::Peek => &AMOUNTS[..2],
            Self::All => &AMOUNTS[..1],
            Self::Inspect | Self::Top | Self::Throttle | Self::Tokens => &[],
        }
    }
}

/// The words of a limiter command: `RL.<kind> key limit period [algorithm options] [amount] [wait]`.
///
/// # Errors
/// The first word that is not as it should be; so it is with all of these.
#[inline(always)]
pub fn limiter<W: Words + ?Sized>(kind: Kind, words: &W) -> Result<Rule, Box<Error>> {
    rule(kind, Name::Limiter(kind), &mut Cursor { words, next: 2 })
}

/// The words of `RL.PEEK algorithm key limit period [algorithm options] [COST n | UPTO n]`.
///
/// # Errors
/// As [`limiter`].
pub fn peek<W: Words + ?Sized>(words: &W) -> Result<Rule, Box<Error>> {
    let kind = algorithm(words.word(1).ok_or(Error::Arity(Name::Peek))?)?;
    rule(kind, Name::Peek, &mut Cursor { words, next: 3 })
}

/// The most keys that `RL.ALL` takes.
const MAX_KEYS: u64 = 1024;

/// The number of keys in the words of `RL.ALL numkeys key [key ...] rule [rule ...]`. The first is word 2.
///
/// # Errors
/// As [`limiter`].
pub fn numkeys<W: Words + ?Sized>(words: &W) -> Result<usize, Error> {
    let number = count(words.word(1).ok_or(Error::Arity(Name::All))?, "numkeys", 1, MAX_KEYS)?;
    Ok(usize::try_from(number).unwrap_or(usize::MAX))
}

/// The rules in the words of `RL.ALL`, one for each of `keys` keys. A rule is `algorithm limit period [algorithm options]
/// [COST n]`.
///
/// # Errors
/// As [`limiter`].
pub fn rules<W: Words + ?Sized>(words: &W, keys: usize) -> Result<Vec<Rule>, Box<Error>> {
    let mut cursor = Cursor { words, next: 2 + keys };
    let mut rules = Vec::with_capacity(keys);
    while let Some(word) = cursor.word() {
        let kind = algorithm(word)?;
        if rules.len() == keys {
            return Err(Box::new(Error::Unpaired { keys, rules: keys + 1 }));
        }
        rules.push(rule(kind, Name::All, &mut cursor)?);
    }
    if rules.len() < keys {
        return Err(Box::new(Error::Unpaired { keys, rules: rules.len() }));
    }
    Ok(rules)
}

/// What is asked of `RL.TOP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopOf {
    /// So many keys.
    Most(usize),
    /// To forget all.
    Reset,
}

/// The words of `RL.TOP [n | RESET]`.
///
/// # Errors
/// As [`limiter`].
pub fn top<W: Words + ?Sized>(words: &W) -> Result<TopOf, Error> {
    /// As many as are told if it is not said how many.
    const SOME: usize = 10;
    if words.word(2).is_some() {
        return Err(Error::Arity(Name::Top));
    }
    match words.word(1) {
        None => Ok(TopOf::Most(SOME)),
        Some(word) if word.eq_ignore_ascii_case(b"RESET") => Ok(TopOf::Reset),
        Some(word) => Ok(TopOf::Most(usize::try_from(count(word, "n", 1, MAX_TOP)?).unwrap_or(SOME))),
    }
}

/// The most keys that `RL.TOP` is asked for: as many as it can keep count of.
pub const MAX_TOP: u64 = 1024;

/// What `CL.THROTTLE` and `GCRA` ask of which limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The limit.
    pub policy: Policy,
    /// How many units; `None`: it is only to be told how it stands.
    pub amount: Option<Amount>,
}

/// The words of `CL.THROTTLE key max_burst count_per_period period [quantity]`.
///
/// # Errors
/// As [`limiter`].
pub fn throttle<W: Words + ?Sized>(words: &W) -> Result<Asked, Error> {
    const MAX_SECONDS: u64 = MAX_PERIOD.as_us() / 1_000_000;
    let word = |index| words.word(index).ok_or(Error::Arity(Name::Throttle));
    let burst = burst(word(2)?)?;
    let limit = count(word(3)?, "count_per_period", 1, MAX_UNITS)?;
    let period = Span::from_us(count(word(4)?, "period", 1, MAX_SECONDS)? * 1_000_000);
    let amount = words.word(5).map_or(Ok(Some(Amount::Cost(1))), quantity)?;
    if words.word(6).is_some() {
        return Err(Error::Arity(Name::Throttle));
    }
    Ok(Asked { policy: bursty(limit, period, burst)?, amount })
}

/// The words of `GCRA key max_burst tokens_per_period period [TOKENS n]`. What it refuses, and in which words, is what the tests of
/// the server's own command ask for.
///
/// # Errors
/// As [`limiter`].
pub fn tokens<W: Words + ?Sized>(words: &W) -> Result<Asked, Error> {
    const TOKENS: &str = "TOKENS";
    let word = |index| words.word(index).ok_or(Error::Arity(Name::Tokens));
    let integer = |word: &[u8], name, min, max| {
        digits(word).filter(|number| (min..=max).contains(number)).ok_or(Error::Integer { name, min, max })
    };
    let burst = integer(word(2)?, "max_burst", 0, MAX_UNITS - 1)? + 1;
    let limit = integer(word(3)?, "tokens_per_period", 1, MAX_UNITS)?;
    let period = seconds(word(4)?)?;
    let mut tokens = None;
    let mut next = 5;
    while let Some(word) = words.word(next) {
        if !TOKENS.as_bytes().eq_ignore_ascii_case(word) {
            return Err(Error::UnknownOption { word: printable(word), command: Name::Tokens });
        }
        if tokens.is_some() {
            return Err(Error::Twice(TOKENS));
        }
        tokens = Some(integer(words.word(next + 1).ok_or(Error::Missing(TOKENS))?, TOKENS, 1, MAX_UNITS)?);
        next += 2;
    }
    Ok(Asked { policy: bursty(limit, period, burst)?, amount: Some(Amount::Cost(tokens.unwrap_or(1))) })
}

/// A period as clients write a floating-point number of seconds (`0.5`, `3.3333333333333335`, `1e3`), rounded to the microsecond; or
/// one that `RL.GCRA` takes.
fn seconds(word: &[u8]) -> Result<Span, Error> {
    if let Some(period) = period_of(word) {
        return Ok(period);
    }
    let (negative, size) = word.strip_prefix(b"-").map_or((false, word), |size| (true, size));
    let us = decimal_us(size).ok_or(Error::NoNumber("period"))?;
    let period = Span::from_us(us);
    if negative || !(MIN_PERIOD..=MAX_PERIOD).contains(&period) {
        return Err(Error::Seconds("period"));
    }
    Ok(period)
}

/// Digits with a point anywhere, or none, and an exponent, or none: a number of seconds, in microseconds, to the nearest. More than
/// fit are the most that do.
fn decimal_us(word: &[u8]) -> Option<u64> {
    let exponent_at = word.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e'));
    let (number, exponent) = match exponent_at {
        None => (word, 0),
        Some(at) => {
            let (negative, size) = match word[at + 1..].split_first() {
                Some((b'-', size)) => (true, size),
                Some((b'+', size)) => (false, size),
                _ => (false, &word[at + 1..]),
            };
            let size = i64::try_from(digits(size)?.min(1_000)).ok()?;
            (&word[..at], if negative { -size } else { size })
        }
    };
    let point = number.iter().position(|&byte| byte == b'.').unwrap_or(number.len());
    let mut any = false;
    let mut us = 0_u128;
    // The power of ten, of a second, that the next digit counts; in microseconds it is six more.
    let mut power = i64::try_from(point).ok()? - 1 + exponent;
    for (index, byte) in number.iter().enumerate() {
        if index == point {
            continue;
        }
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        any = true;
        us = match u32::try_from(power + 6) {
            // Beyond what any period can be, and far from overflow.
            Ok(power) if power > 25 && digit > 0 => u128::from(u64::MAX),
            Ok(power) if power > 25 => us,
            Ok(power) => us.saturating_add(u128::from(digit) * 10_u128.pow(power)),
            // The first digit behind the last microsecond rounds.
            Err(_) if power == -7 => us + u128::from(digit >= 5),
            Err(_) => us,
        };
        power -= 1;
    }
    any.then(|| u64::try_from(us).unwrap_or(u64::MAX))
}

/// The capacity: the burst is what may come at once besides the unit that always may.
fn burst(word: &[u8]) -> Result<u64, Error> {
    Ok(count(word, "max_burst", 0, MAX_UNITS - 1)? + 1)
}

fn quantity(word: &[u8]) -> Result<Option<Amount>, Error> {
    let (back, size) = word.strip_prefix(b"-").map_or((false, word), |size| (true, size));
    let size = digits(size).filter(|&size| size <= MAX_UNITS);
    let size = size.ok_or(Error::Signed { name: "quantity", max: MAX_UNITS })?;
    let amount = if back { Amount::Refund } else { Amount::Cost };
    Ok((size > 0).then(|| amount(size)))
}

fn bursty(limit: u64, period: Span, capacity: u64) -> Result<Policy, Error> {
    let mut policy = Quota::new(limit, period).and_then(|quota| Kind::Gcra.policy(quota)).ok_or(BAD_PERIOD)?;
    policy.set(0, i64::try_from(capacity).unwrap_or(i64::MAX));
    Ok(policy)
}

fn algorithm(word: &[u8]) -> Result<Kind, Error> {
    named(word).ok_or_else(|| Error::UnknownAlgorithm(printable(word)))
}

fn named(word: &[u8]) -> Option<Kind> {
    find(Kind::ALL, |kind| kind.name(), word).map(|(_, &kind)| kind)
}

/// `limit period [algorithm options] [amount] [wait]`, up to the last word or, in [`Name::All`], up to the next rule.
#[inline(always)]
fn rule<W: Words + ?Sized>(kind: Kind, command: Name, words: &mut Cursor<'_, W>) -> Result<Rule, Box<Error>> {
    let (Some(limit), Some(period)) = (words.word(), words.word()) else { return Err(Box::new(Error::NoLimit(kind))) };
    let limit = count(limit, "limit", 0, kind.max_limit())?;
    let period = period_of(period).ok_or(BAD_PERIOD)?;
    let quota = Quota::new(limit, period).ok_or(BAD_PERIOD)?;
    let policy = kind.policy(quota).ok_or(BAD_PERIOD)?;
    let rule = Rule { policy, request: Request::now(Amount::Cost(1)), block: None };
    // Most have no options: they are not to pay for these.
    if words.peek().is_none() {
        return Ok(rule);
    }
    options(kind, command, words, period, rule)
}

/// What follows the limit and the period.
#[inline(never)]
fn options<W: Words + ?Sized>(
    kind: Kind,
    command: Name,
    words: &mut Cursor<'_, W>,
    period: Span,
    mut rule: Rule,
) -> Result<Rule, Box<Error>> {
    let mut settings_seen = 0_u32;
    let mut amount: Option<(&'static str, Amount)> = None;
    let mut wait: Option<(&'static Waiting, Span)> = None;
    while let Some(word) = words.peek() {
        if command == Name::All && named(word).is_some() {
            break;
        }
        words.next += 1;
        if let Some((index, setting)) = find(kind.settings(), |setting| setting.keyword, word) {
            if settings_seen & 1 << index != 0 {
                return Err(Box::new(Error::Twice(setting.keyword)));
            }
            settings_seen |= 1 << index;
            rule.policy.set(index, setting_value(setting, words, period)?);
        } else if let Some((_, &(keyword, of))) = find(command.amounts(), |amount| amount.0, word) {
            match amount {
                Some((other, _)) if other == keyword => return Err(Box::new(Error::Twice(keyword))),
                Some((other, _)) => return Err(Box::new(Error::Conflict(other, keyword))),
                None => amount = Some((keyword, of(count(words.value(keyword)?, keyword, 1, MAX_UNITS)?))),
            }
        } else if let Some((_, found)) = find(command.waits(), |wait| wait.keyword, word) {
            match wait {
                Some((other, _)) if other.keyword == found.keyword => return Err(Box::new(Error::Twice(found.keyword))),
                Some((other, _)) => return Err(Box::new(Error::Conflict(other.keyword, found.keyword))),
                None => wait = Some((found, wait_of(words.value(found.keyword)?, found.keyword)?)),
            }
        } else {
            return Err(Box::new(Error::UnknownOption { word: printable(word), command }));
        }
    }
    let (keyword, amount) = amount.unwrap_or(("COST", rule.request.amount));
    rule.request.amount = amount;
    if let Some((wait, span)) = wait {
        if !wait.amounts.contains(&keyword) {
            return Err(Box::new(Error::Conflict(keyword, wait.keyword)));
        }
        (wait.set)(&mut rule, span);
    }
    Ok(rule)
}

fn find<'t, T>(table: &'t [T], keyword: impl Fn(&T) -> &'static str, word: &[u8]) -> Option<(usize, &'t T)> {
    table.iter().enumerate().find(|(_, row)| keyword(row).as_bytes().eq_ignore_ascii_case(word))
}

fn setting_value<W: Words + ?Sized>(setting: &Setting, words: &mut Cursor<'_, W>, period: Span) -> Result<i64, Error> {
    let name = setting.keyword;
    match setting.value {
        SettingValue::Flag => Ok(1),
        SettingValue::Count(min, max) => {
            let number = count(words.value(name)?, name, min, max)?;
            Ok(i64::try_from(number).unwrap_or(i64::MAX))
        }
        SettingValue::Offset => {
            let word = words.value(name)?;
            let (negative, size) = match word.split_first() {
                Some((b'-', size)) => (true, size),
                Some((b'+', size)) => (false, size),
                _ => (false, word),
            };
            let size = duration_us(size).filter(|&us| us < period.as_us()).and_then(|us| i64::try_from(us).ok());
            let size = size.ok_or(Error::Duration { name, range: "less than the period, either way" })?;
            Ok(if negative { -size } else { size })
        }
    }
}

/// A whole number of `min ..= max`, in digits.
fn count(word: &[u8], name: &'static str, min: u64, max: u64) -> Result<u64, Error> {
    digits(word).filter(|number| (min..=max).contains(number)).ok_or(Error::Count { name, min, max })
}

/// One digit or more, and nothing else; `None` also for more than 64 bits.
fn digits(word: &[u8]) -> Option<u64> {
    match leading_digits(word)? {
        (number, []) => Some(number),
        _ => None,
    }
}

/// The digits at the front, at least one, as a number, and what follows them; `None` also for more than 64 bits.
fn leading_digits(word: &[u8]) -> Option<(u64, &[u8])> {
    // So many digits always fit.
    const SURE: usize = 19;
    let mut number = 0_u64;
    for (index, byte) in word.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (index > 0).then(|| (number, &word[index..]));
        }
        number =
            if index < SURE { number * 10 + u64::from(digit) } else { number.checked_mul(10)?.checked_add(digit.into())? };
    }
    (!word.is_empty()).then_some((number, &[]))
}

const BAD_PERIOD: Error = Error::Duration { name: "period", range: "from 1ms to 3650d" };

fn period_of(word: &[u8]) -> Option<Span> {
    duration_us(word).map(Span::from_us).filter(|period| (MIN_PERIOD..=MAX_PERIOD).contains(period))
}

fn wait_of(word: &[u8], name: &'static str) -> Result<Span, Error> {
    let span = duration_us(word).filter(|us| (1..=MAX_WAIT_US).contains(us)).map(Span::from_us);
    span.ok_or(Error::Duration { name, range: "above 0, at most 1d" })
}

/// A unit of time: its suffix, its microseconds, and how many decimals are always whole microseconds.
struct Unit(&'static [u8], u64, usize);

const SECONDS: Unit = Unit(b"s", 1_000_000, 6);
const UNITS: [Unit; 6] = [
    Unit(b"us", 1, 0),
    Unit(b"ms", 1_000, 3),
    SECONDS,
    Unit(b"m", 60 * 1_000_000, 7),
    Unit(b"h", 3_600 * 1_000_000, 8),
    Unit(b"d", 86_400 * 1_000_000, 8),
];

/// A duration in microseconds: digits, optionally a point and digits, and a unit; seconds if there is none.
fn duration_us(word: &[u8]) -> Option<u64> {
    let (whole, rest) = leading_digits(word)?;
    let (decimals, part, suffix) = match rest.strip_prefix(b".") {
        None => (0, 0, rest),
        Some(rest) => {
            let (part, suffix) = leading_digits(rest)?;
            (rest.len() - suffix.len(), part, suffix)
        }
    };
    let Unit(_, unit_us, exact) = match suffix {
        [] => &SECONDS,
        _ => UNITS.iter().find(|unit| unit.0.eq_ignore_ascii_case(suffix))?,
    };
    if decimals == 0 {
        return whole.checked_mul(*unit_us);
    }
    if decimals > *exact {
        return None;
    }
    let part_us = unit_us / 10_u64.pow(decimals as u32);
    whole.checked_mul(*unit_us)?.checked_add(part.checked_mul(part_us)?)
}

/// A client's word as an error can show it: printable ASCII, and not too much of it.
fn printable(word: &[u8]) -> String {
    const MOST: usize = 32;
    let end = if word.len() > MOST { "..." } else { "" };
    format!("{}{end}", word[..word.len().min(MOST)].escape_ascii())
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
    fn floating_point_seconds_are_rounded_to_the_microsecond() {
        for (word, us) in [
            ("60", Some(60_000_000)),
            ("0.5", Some(500_000)),
            (".5", Some(500_000)),
            ("5.", Some(5_000_000)),
            ("3.3333333333333335", Some(3_333_333)),
            ("0.0000005", Some(1)),
            ("0.00000049", Some(0)),
            ("1e3", Some(1_000_000_000)),
            ("1.5E+1", Some(15_000_000)),
            ("2.5e-3", Some(2_500)),
            ("1.0E7", Some(10_000_000_000_000)),
            ("123456789012345678901234567890", Some(u64::MAX)),
            ("1e99999999999999999", Some(u64::MAX)),
            ("0e999", Some(0)),
            ("1e-999", Some(0)),
            ("0.1e1", Some(1_000_000)),
            ("", None),
            (".", None),
            ("e3", None),
            ("1e", None),
            ("1e+", None),
            ("1.2.3", None),
            ("1 ", None),
            ("inf", None),
            ("nan", None),
            ("0x10", None),
        ] {
            assert_eq!(decimal_us(word.as_bytes()), us, "{word}");
        }
    }

    #[test]
    fn what_is_no_duration() {
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
