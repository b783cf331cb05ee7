//! `RL.FIXED`, `RL.SLIDE`, `RL.GCRA` and `RL.BUCKET`: one worker for all.

use std::marker::PhantomData;

use super::error::{Error, Name};
use super::{commit, grammar, now, reply, row, Wanted};
use crate::keyspace::{Call, Key, Run};
use crate::limiter::{Algorithm, Decision, Kind};

/// `RL.<algorithm> key limit period [algorithm options] [COST n | UPTO n | FORCE n | REFUND n]`
///
/// Replies five integers: granted, limit, remaining, wait_ms, reset_ms.
pub(crate) struct Limiter<A>(PhantomData<A>);

impl<A: Algorithm> Run for Limiter<A> {
    fn run(call: &Call<'_>) {
        reply(call, limit(call, A::KIND), |decision| call.reply_integers(&row(&decision)));
    }
}

fn limit(call: &Call<'_>, kind: Kind) -> Result<Decision, Error> {
    let rule = grammar::limiter(kind, call)?;
    let mut key = Key::open(call, 1).ok_or(Error::Arity(Name::Limiter(kind)))?;
    let outcome = Wanted::one(kind).decide(&key, &rule, now(call))?;
    commit(&mut key, &outcome.change);
    Ok(outcome.decision)
}
