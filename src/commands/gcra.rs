//! `GCRA`: `RL.GCRA` with the arguments and the reply of the `GCRA` command in the milestone releases of Redis 8.8.
//!
//! ```text
//! GCRA key max_burst tokens_per_period period [TOKENS n]
//! ```
//!
//! The reply is that of [`cl_throttle`]. The errors and their texts follow the tests of the server's own command.

use super::cl_throttle::{self, policy, ThrottleArgs};
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args};
use super::shared::numbers::{self, digits, printable, sign};
use crate::limiter::{Amount, Span, MAX_PERIOD, MAX_UNITS, MIN_PERIOD};
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec};

pub(super) const COMMAND: Command = Command {
    name: c"gcra",
    callback: run_command::<Gcra>,
    arity: -5,
    flags: c"write deny-oom fast",
    keys: KeySpec::ReadWrite(1),
    summary: c"Takes tokens by the generic cell rate algorithm, as GCRA of the Redis 8.8 milestones does.",
    complexity: c"O(1)",
    arguments,
    reply: cl_throttle::REPLY,
    example: "GCRA user:44 15 30 60",
};

fn arguments() -> Vec<Argument> {
    let numbers = ["max_burst", "tokens_per_period"].map(|name| Argument::new(name, ArgumentKind::Integer));
    let period = Argument::new("period", ArgumentKind::Text);
    let tokens = Argument::new("tokens", ArgumentKind::Integer).token(TOKENS).optional();
    [grammar::key_argument()].into_iter().chain(numbers).chain([period, tokens]).collect()
}

const TOKENS: &str = "TOKENS";

struct Gcra;

impl CommandHandler for Gcra {
    fn run(call: &Call<'_>) {
        cl_throttle::run(call, parse(call));
    }
}

/// Parses the arguments.
///
/// # Errors
/// If an argument is malformed. The error is about the first such argument.
pub fn parse<A: Args + ?Sized>(args: &A) -> Result<ThrottleArgs, Error> {
    let word = |index| args.arg(index).ok_or(Error::Arity(CommandName::Gcra));
    let integer = |word: &[u8], name, min, max| {
        digits(word).filter(|number| (min..=max).contains(number)).ok_or(Error::Integer { name, min, max })
    };
    let capacity = integer(word(2)?, "max_burst", 0, MAX_UNITS - 1)? + 1;
    let limit = integer(word(3)?, "tokens_per_period", 1, MAX_UNITS)?;
    let period = seconds(word(4)?)?;
    let mut tokens = None;
    let mut next = 5;
    while let Some(word) = args.arg(next) {
        if !TOKENS.as_bytes().eq_ignore_ascii_case(word) {
            return Err(Error::UnknownOption { word: printable(word), command: CommandName::Gcra });
        }
        if tokens.is_some() {
            return Err(Error::Twice(TOKENS));
        }
        tokens = Some(integer(args.arg(next + 1).ok_or(Error::Missing(TOKENS))?, TOKENS, 1, MAX_UNITS)?);
        next += 2;
    }
    Ok(ThrottleArgs { policy: policy(limit, period, capacity)?, amount: Some(Amount::Cost(tokens.unwrap_or(1))) })
}

/// Parses a period: one that `RL.GCRA` takes, or a floating-point number of seconds as clients write it (`0.5`,
/// `3.3333333333333335`, `1e3`), which is rounded to the microsecond.
fn seconds(word: &[u8]) -> Result<Span, Error> {
    if let Some(period) = numbers::period(word) {
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

/// Parses a number of seconds into microseconds, rounded to the nearest: digits, with an optional point before, between or
/// after them, and an optional exponent. A number that is too large becomes [`u64::MAX`].
fn decimal_us(word: &[u8]) -> Option<u64> {
    let exponent_at = word.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e'));
    let (number, exponent) = match exponent_at {
        None => (word, 0),
        Some(at) => {
            let (negative, size) = sign(&word[at + 1..]);
            let size = i64::try_from(digits(size)?.min(1_000)).ok()?;
            (&word[..at], if negative { -size } else { size })
        }
    };
    let point = number.iter().position(|&byte| byte == b'.').unwrap_or(number.len());
    let mut any = false;
    let mut us = 0_u128;
    // The value of the next digit is digit × 10^power seconds, which is digit × 10^(power + 6) microseconds.
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
            // Such a number exceeds any period. From 10^39 on the power of ten would overflow.
            Ok(power) if power > 25 && digit > 0 => u128::from(u64::MAX),
            Ok(power) if power > 25 => us,
            Ok(power) => us.saturating_add(u128::from(digit) * 10_u128.pow(power)),
            // The first digit after the microseconds rounds.
            Err(_) if power == -7 => us + u128::from(digit >= 5),
            Err(_) => us,
        };
        power -= 1;
    }
    any.then(|| u64::try_from(us).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
