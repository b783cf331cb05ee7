//! The replies of the commands, as integers.

use super::error::Error;
use crate::limiter::{Decision, Wait};
use crate::server::Call;

/// How a call gets its reply.
pub enum Answered<T> {
    /// At once: this.
    Now(T),
    /// Later: the client waits, and [`waiting`](super::waiting) replies to it.
    Later,
}

/// Replies with the result of a command: calls `success` with a value, or replies with the text of an error.
pub fn reply<T>(call: &Call<'_>, result: Result<T, Error>, success: impl FnOnce(T)) {
    match result {
        Ok(value) => success(value),
        Err(error) => call.reply_error(&error.to_string()),
    }
}

/// As [`reply`], for a command that may let its client wait.
#[inline(always)]
pub fn reply_now_or_later<T>(call: &Call<'_>, result: Result<Answered<T>, Box<Error>>, success: impl FnOnce(T)) {
    match result {
        Ok(Answered::Now(value)) => success(value),
        Ok(Answered::Later) => {}
        Err(error) => reply(call, Err(*error), |()| {}),
    }
}

/// Replies with the decision of a limiter.
pub fn reply_decision(call: &Call<'_>, decision: &Decision) {
    call.reply_integers(&row(decision));
}

/// Replies with the decisions of the rules of `RL.ALL`. The call is granted if all of them are.
pub fn reply_decisions(call: &Call<'_>, decisions: &[Decision]) {
    let granted = decisions.iter().all(|decision| decision.granted > 0);
    // A denied call waits for the rules that refuse it, and for no booking that it repeats. `Wait::Never` is greater than any span.
    let waits = decisions.iter().filter(|decision| granted || decision.granted == 0).map(|decision| decision.wait);
    let wait = waits.max().unwrap_or(Wait::NONE);
    call.reply_rows([granted.into(), wait_ms(wait)], decisions.iter().map(row));
}

/// The five integers of a decision: granted, limit, remaining, wait_ms, reset_ms.
fn row(decision: &Decision) -> [i64; 5] {
    [
        integer(decision.granted),
        integer(decision.limit),
        integer(decision.remaining),
        wait_ms(decision.wait),
        integer(decision.reset.as_ms_ceil()),
    ]
}

/// A wait in milliseconds, rounded up; -1 for [`Wait::Never`].
fn wait_ms(wait: Wait) -> i64 {
    match wait {
        Wait::For(span) => integer(span.as_ms_ceil()),
        Wait::Never => -1,
    }
}

/// Converts a count to an integer of a reply.
pub fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
