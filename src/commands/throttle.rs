//! `CL.THROTTLE` and `GCRA`: `RL.GCRA` as redis-cell and the milestones of Redis 8.8 spelled it.
//!
//! Both name the burst without the unit that always fits, and reply in whole seconds. The limiter is the same:
//! `CL.THROTTLE key 4 10 60` and `RL.GCRA key 10 60 BURST 5` share a key.

use super::error::{Error, Name};
use super::grammar::{count, digits, period_of, printable, Rule, Words, BAD_PERIOD};
use super::{limiter, now, number, reply, Wanted};
use crate::keyspace::{Call, Key, Run};
use crate::limiter::{Amount, Decision, Kind, Policy, Quota, Request, Span, Wait, MAX_PERIOD, MAX_UNITS};

/// `CL.THROTTLE key max_burst count_per_period period [quantity]`
///
/// A negative quantity gives back, as it does in redis-cell; one of 0 only looks, and changes nothing. Replies five integers:
/// limited (0 or 1), limit, remaining, retry_after, reset_after, these in seconds.
pub(crate) struct Throttle;

/// `GCRA key max_burst tokens_per_period period [TOKENS n]`
///
/// Replies as [`Throttle`]; 0 tokens only look, too.
pub(crate) struct Tokens;

impl Run for Throttle {
    fn run(call: &Call<'_>) {
        run(call, Name::Throttle, throttle(call));
    }
}

impl Run for Tokens {
    fn run(call: &Call<'_>) {
        run(call, Name::Tokens, tokens(call));
    }
}

/// What is asked of which limiter; no amount: how it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    policy: Policy,
    amount: Option<Amount>,
}

fn throttle<W: Words + ?Sized>(words: &W) -> Result<Asked, Error> {
    const MAX_SECONDS: u64 = MAX_PERIOD.as_us() / 1_000_000;
    let word = |index| words.word(index).ok_or(Error::Arity(Name::Throttle));
    let burst = burst(word(2)?)?;
    let limit = count(word(3)?, "count_per_period", 1, MAX_UNITS)?;
    let period = Span::from_us(count(word(4)?, "period", 1, MAX_SECONDS)? * 1_000_000);
    let amount = words.word(5).map_or(Ok(Some(Amount::Cost(1))), quantity)?;
    if words.word(6).is_some() {
        return Err(Error::Arity(Name::Throttle));
    }
    Ok(Asked { policy: policy(limit, period, burst)?, amount })
}

fn tokens<W: Words + ?Sized>(words: &W) -> Result<Asked, Error> {
    const TOKENS: &str = "TOKENS";
    let word = |index| words.word(index).ok_or(Error::Arity(Name::Tokens));
    let burst = burst(word(2)?)?;
    let limit = count(word(3)?, "tokens_per_period", 1, MAX_UNITS)?;
    let period = period_of(word(4)?).ok_or(BAD_PERIOD)?;
    let amount = match words.word(5) {
        None => Some(Amount::Cost(1)),
        Some(word) if TOKENS.as_bytes().eq_ignore_ascii_case(word) => {
            let tokens = count(words.word(6).ok_or(Error::MissingValue(TOKENS))?, TOKENS, 0, MAX_UNITS)?;
            (tokens > 0).then_some(Amount::Cost(tokens))
        }
        Some(word) => return Err(Error::UnknownOption { word: printable(word), command: Name::Tokens }),
    };
    if words.word(7).is_some() {
        return Err(Error::Arity(Name::Tokens));
    }
    Ok(Asked { policy: policy(limit, period, burst)?, amount })
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

fn policy(limit: u64, period: Span, capacity: u64) -> Result<Policy, Error> {
    let mut policy = Quota::new(limit, period).and_then(|quota| Kind::Gcra.policy(quota)).ok_or(BAD_PERIOD)?;
    policy.set(0, i64::try_from(capacity).unwrap_or(i64::MAX));
    Ok(policy)
}

fn run(call: &Call<'_>, command: Name, asked: Result<Asked, Error>) {
    let answer = asked.and_then(|asked| answer(call, command, asked));
    reply(call, answer, |row| call.reply_integers(&row));
}

fn answer(call: &Call<'_>, command: Name, Asked { policy, amount }: Asked) -> Result<[i64; 5], Error> {
    let Some(amount) = amount else {
        let key = Key::look(call, 1).ok_or(Error::Arity(command))?;
        let one = Request::now(Amount::Cost(1));
        return Ok(row(true, &Wanted::one(Kind::Gcra).peek(&key, &policy, now(call), one)?));
    };
    let rule = Rule { policy, request: Request::now(amount), block: None };
    let decision = limiter::take(call, command, Kind::Gcra, rule)?;
    // Only with BLOCK would it wait.
    let decision = decision.ok_or(Error::Unblocked)?;
    // Nothing to give back is no denial.
    Ok(row(decision.granted > 0 || matches!(amount, Amount::Refund(_)), &decision))
}

/// The decision as both reply it. Seconds are rounded up: who waits for so long has waited long enough.
fn row(allowed: bool, decision: &Decision) -> [i64; 5] {
    let seconds = |span: Span| number(span.as_us().div_ceil(1_000_000));
    let retry_after = match decision.wait {
        Wait::For(span) if !allowed => seconds(span),
        _ => -1,
    };
    [i64::from(!allowed), number(decision.limit), number(decision.remaining), retry_after, seconds(decision.reset)]
}
