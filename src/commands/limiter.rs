//! `RL.FIXED`, `RL.SLIDE`, `RL.GCRA` and `RL.BUCKET`: one worker for all.

use std::marker::PhantomData;

use super::error::{Error, Name};
use super::grammar::Rule;
use super::{charge, conclude, grammar, now, reply, row, takes, waiting, Wanted};
use crate::limiter::{Algorithm, Decision, Kind};
use crate::server::{Call, CommandHandler, WriteKey};

/// `RL.<algorithm> key limit period [algorithm options] [COST n | UPTO n | FORCE n | REFUND n] [RESERVE d | BLOCK d]`
///
/// Replies five integers: granted, limit, remaining, wait_ms, reset_ms. With BLOCK, that may be later.
pub(crate) struct Limiter<A>(PhantomData<A>);

impl<A: Algorithm> CommandHandler for Limiter<A> {
    fn run(call: &Call<'_>) {
        match limit::<A>(call) {
            // The client waits, and is replied to when its turn has come.
            Ok(None) => {}
            Ok(Some(decision)) => reply(call, Ok(decision), |decision| call.reply_integers(&row(&decision))),
            Err(error) => reply(call, Err(*error), |()| {}),
        }
    }
}

#[inline(always)]
fn limit<A: Algorithm>(call: &Call<'_>) -> Result<Option<Decision>, Box<Error>> {
    take(call, Name::Limiter(A::KIND), A::KIND, grammar::limiter(A::KIND, call)?)
}

/// Has `rule`, which is one of `kind`, decide about the key that argument 1 names: `None` if the client waits.
#[inline(always)]
pub(super) fn take(call: &Call<'_>, command: Name, kind: Kind, rule: Rule) -> Result<Option<Decision>, Box<Error>> {
    let mut key = WriteKey::open(call, 1).ok_or(Error::Arity(command))?;
    let amount = rule.request.amount;
    let takes = takes(amount);
    let now = now(call);
    let queued = waiting::has_waiters(call, 1);
    let decided = if queued && takes {
        None
    } else {
        let answers = |decision: &Decision| decision.granted > 0 || rule.block.is_none();
        charge(Wanted::one(kind), &mut key, &rule.policy, now, rule.request, answers)?
    };
    let Some((decision, changed)) = (match decided {
        Some(decided) => Some(decided),
        None => waiting::block_or_deny(call, &key, &rule, now)?.map(|decision| (decision, false)),
    }) else {
        return Ok(None);
    };
    drop(key);
    if queued && !takes {
        waiting::wake(call, 1);
    }
    conclude(call, || call.key(1), kind, amount, changed, now);
    Ok(Some(decision))
}
