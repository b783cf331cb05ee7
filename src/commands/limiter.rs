//! `RL.FIXED`, `RL.SLIDE`, `RL.GCRA` and `RL.BUCKET`: one worker for all.

use std::marker::PhantomData;

use super::error::Error;
use super::grammar::{self, Invocation, Words};
use crate::keyspace::{Call, Held, Key, Run};
use crate::limiter::{Algorithm, Change, Decision, Foreign, Instant, Kind, Refusal, Wait, MIN_RECORD};

impl Words for Call<'_> {
    fn word(&self, index: usize) -> Option<&[u8]> {
        self.argument(index)
    }
}

/// The key is the first argument, and its limit follows.
const KEY: usize = 1;

/// `RL.<kind> key limit period [algorithm options] [COST n | UPTO n | FORCE n | REFUND n]`
///
/// Replies five integers: granted, limit, remaining, wait_ms, reset_ms.
pub(crate) struct Limiter<A>(PhantomData<A>);

impl<A: Algorithm> Run for Limiter<A> {
    fn run(call: &Call<'_>) {
        match run(call, A::KIND) {
            Ok(decision) => call.reply_integers(&reply(&decision)),
            Err(error) => call.reply_error(&error.to_string()),
        }
    }
}

fn run(call: &Call<'_>, kind: Kind) -> Result<Decision, Error> {
    let Invocation { policy, request } = grammar::parse(kind, call, KEY + 1)?;
    let mut key = Key::open(call, KEY).ok_or(Error::Arity(kind))?;
    let stored = match key.held(MIN_RECORD) {
        Held::Nothing => None,
        Held::Bytes(bytes) => Some(bytes),
        Held::Short => return Err(Error::Foreign { held: Foreign::Unknown, wanted: kind }),
        Held::Type(held) => return Err(Error::Type { held, wanted: kind }),
    };
    let now = Instant::from_us(call.now_us());
    let outcome = policy.decide(stored, now, request).map_err(|refusal| match refusal {
        Refusal::Foreign(held) => Error::Foreign { held, wanted: kind },
        Refusal::Overflow => Error::Overflow,
    })?;
    match outcome.change {
        Change::Keep => {}
        Change::Write { offset, bytes, expires } => {
            key.write(offset, bytes.as_slice(), expires.as_ms_ceil()).map_err(|_| Error::Overflow)?;
        }
        Change::Remove => key.remove(),
    }
    Ok(outcome.decision)
}

/// The decision as every limiter command replies it.
fn reply(decision: &Decision) -> [i64; 5] {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let wait_ms = match decision.wait {
        Wait::For(span) => number(span.as_ms_ceil()),
        Wait::Never => -1,
    };
    [number(decision.granted), number(decision.limit), number(decision.remaining), wait_ms, number(decision.reset.as_ms_ceil())]
}
