//! `RL.PEEK`: the decision that would be taken.

use super::error::{Error, Name};
use super::{grammar, now, reply, row, waiting, Wanted};
use crate::limiter::{Decision, Span};
use crate::queue::denied;
use crate::server::{Call, CommandHandler, ReadKey};

/// `RL.PEEK <FIXED|SLIDE|GCRA|BUCKET> key limit period [algorithm options] [COST n | UPTO n]`
///
/// Replies as the limiter's own command would, but with remaining and reset_ms as they stand: nothing is taken.
pub(crate) struct Peek;

impl CommandHandler for Peek {
    fn run(call: &Call<'_>) {
        reply(call, peek(call), |decision| call.reply_integers(&row(&decision)));
    }
}

fn peek(call: &Call<'_>) -> Result<Decision, Error> {
    let rule = grammar::peek(call)?;
    let key = ReadKey::open(call, 2).ok_or(Error::Arity(Name::Peek))?;
    let decision = Wanted::one(rule.policy.kind()).peek(&key, &rule.policy, now(call), rule.request)?;
    Ok(if waiting::has_waiters(call, 2) { denied(decision, Span::ZERO) } else { decision })
}
