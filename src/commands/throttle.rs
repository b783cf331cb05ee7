//! `CL.THROTTLE` and `GCRA`: `RL.GCRA` as redis-cell and the milestones of Redis 8.8 spelled it.
//!
//! Both name the burst without the unit that always fits, and reply in whole seconds. The limiter is the same:
//! `CL.THROTTLE key 4 10 60` and `RL.GCRA key 10 60 BURST 5` share a key.

use super::error::{Error, Name};
use super::grammar::{self, Asked, Rule};
use super::{limiter, now, number, reply, Wanted};
use crate::limiter::{Amount, Decision, Kind, Request, Span, Wait};
use crate::server::{Call, CommandHandler, ReadKey};

/// `CL.THROTTLE key max_burst count_per_period period [quantity]`
///
/// A negative quantity gives back, as it does in redis-cell; one of 0 only looks, and changes nothing. Replies five integers:
/// limited (0 or 1), limit, remaining, retry_after, reset_after, these in seconds.
pub(crate) struct Throttle;

/// `GCRA key max_burst tokens_per_period period [TOKENS n]`
///
/// Replies as [`Throttle`]; 0 tokens only look, too.
pub(crate) struct Tokens;

impl CommandHandler for Throttle {
    fn run(call: &Call<'_>) {
        run(call, Name::Throttle, grammar::throttle(call));
    }
}

impl CommandHandler for Tokens {
    fn run(call: &Call<'_>) {
        run(call, Name::Tokens, grammar::tokens(call));
    }
}

fn run(call: &Call<'_>, command: Name, asked: Result<Asked, Error>) {
    let answer = asked.and_then(|asked| answer(call, command, asked));
    reply(call, answer, |row| call.reply_integers(&row));
}

fn answer(call: &Call<'_>, command: Name, Asked { policy, amount }: Asked) -> Result<[i64; 5], Error> {
    let Some(amount) = amount else {
        let key = ReadKey::open(call, 1).ok_or(Error::Arity(command))?;
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
