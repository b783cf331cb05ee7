//! The answers to clients that have waited.

use super::lines::{lock, WaitQueues, WaitingClient};
use crate::commands::shared::clock::now;
use crate::commands::shared::error::Error;
use crate::commands::shared::grammar::{FIRST_KEY_OF_ALL, KEY};
use crate::commands::shared::outcome::{record_outcome, Outcome};
use crate::commands::shared::reply::{reply, reply_decision, reply_decisions};
use crate::commands::shared::stats::{ABANDONED, TIMEOUTS};
use crate::commands::shared::target::Target;
use crate::limiter::{Decision, Instant};
use crate::queue::{ClaimError, Claims, Waiter};
use crate::server::{Call, ClientId, ReadKey, ReplyHandler, Server};

/// The answer to a client that has waited.
pub enum Answer {
    /// The decision of a command with one key.
    One(Decision),
    /// The decisions of `RL.ALL`.
    All(Vec<Decision>),
}

/// The answer to a waiter, from the decisions of its claims.
pub fn answer(claims: &Claims, rows: Result<Vec<Decision>, ClaimError<Error>>) -> Result<Answer, Error> {
    match (claims, rows) {
        (Claims::All(_), Ok(rows)) => Ok(Answer::All(rows)),
        (Claims::All(_), Err((index, error))) => Err(error.at(index + 1)),
        (Claims::One(_), Ok(rows)) => rows.first().map(|row| Answer::One(*row)).ok_or(Error::Unblocked),
        (Claims::One(_), Err((_, error))) => Err(error),
    }
}

/// Counts the decisions of a call that has waited, and publishes them.
pub fn record_answer(server: &Server<'_>, db: i32, claims: &Claims, rows: &[Decision], now: Instant) {
    let granted = rows.iter().all(|row| row.granted > 0);
    if !granted {
        TIMEOUTS.increment();
    }
    for (claim, row) in claims.iter().zip(rows) {
        // In a denied call, a claim that would have been granted counts neither as granted nor as denied.
        if granted || row.granted == 0 {
            let outcome = Outcome::of(claim.amount, row, granted && !row.retried);
            record_outcome(server, || (db, &claim.key), claim.policy.kind(), outcome, now);
        }
    }
}

impl ReplyHandler for WaitQueues {
    type Answer = Result<Answer, Error>;

    fn reply(call: &Call<'_>, answer: Self::Answer) {
        reply(call, answer, |answer| match answer {
            Answer::One(decision) => reply_decision(call, &decision),
            Answer::All(decisions) => reply_decisions(call, &decisions),
        });
    }

    fn on_timeout(call: &Call<'_>, client: ClientId) -> Option<WaitingClient> {
        let refusals = lock().queues.refusals(client);
        let waiter = leave(call, client);
        let denial = waiter.as_ref().ok_or(Error::Unblocked).and_then(|waiter| deny_at_timeout(call, waiter, &refusals));
        Self::reply(call, denial);
        waiter.map(|waiter| waiter.client)
    }

    fn on_disconnect(server: &Server<'_>, client: ClientId) -> Option<WaitingClient> {
        let waiter = leave(server, client)?;
        ABANDONED.increment();
        Some(waiter.client)
    }
}

/// Returns the denial for a waiter that the server unblocks. `call` is the waiter's call, and `refusals` is the result of
/// [`refusals`](crate::queue::Queues::refusals).
fn deny_at_timeout(call: &Call<'_>, waiter: &Waiter<WaitingClient>, refusals: &[bool]) -> Result<Answer, Error> {
    let now = now(call);
    let first_key = match waiter.claims {
        Claims::One(_) => KEY,
        Claims::All(_) => FIRST_KEY_OF_ALL,
    };
    let decisions = waiter.claims.iter().enumerate().map(|(index, claim)| {
        // The server is in the middle of unblocking the client. The key must not change now, so it is opened for reading only.
        let key = ReadKey::open(call, first_key + index).ok_or((index, Error::InUse))?;
        let decision = Target::only(claim.policy.kind()).peek(&key, &claim.policy, waiter.request(claim), now);
        decision.map_err(|error| (index, *error))
    });
    let rows = decisions.collect::<Result<Vec<_>, _>>().map(|mut rows| {
        waiter.deny(refusals, &mut rows);
        record_answer(call, waiter.db, &waiter.claims, &rows, now);
        rows
    });
    if rows.is_err() {
        ABANDONED.increment();
    }
    answer(&waiter.claims, rows)
}

/// Removes a client from the lines in which it stands, if it waits.
fn leave(server: &Server<'_>, client: ClientId) -> Option<Waiter<WaitingClient>> {
    let mut waiting = lock();
    waiting.adjust_to_clock(server);
    let now = now(server);
    let waiter = waiting.queues.leave(client, now);
    waiting.rearm_timer(server, now);
    waiter
}
