//! A call whose units are not free begins to wait.

use super::lines::{lock, waiting_clients, WaitQueues, WaitingClient};
use crate::commands::shared::error::Error;
use crate::commands::shared::grammar::{Rule, FIRST_KEY_OF_ALL};
use crate::commands::shared::parameters::MAX_WAITERS;
use crate::commands::shared::stats::WAITS;
use crate::limiter::{rest_of_pause, Decision, Instant, Span, Wait};
use crate::queue::{first_grant, Claims, KeyState, Waiter};
use crate::server::{Call, WriteKey};

/// What becomes of a call whose keys refuse it.
pub enum Begun {
    /// The client of the call waits. The timer will answer the client.
    Waits,
    /// The call is denied at once. The span is the `timeout` for [`denied`](crate::queue::denied): the whole wait of the call if
    /// its units are not due in time, and 0 if its client can't be blocked.
    Denied(Span),
}

/// Blocks the client of a call that its keys refuse now. `first_key` is the index of the argument that names the first key, and
/// `decisions` has the decision on each key.
///
/// Denies the call instead if the server forbids to block the client: the answer is then that of a call without BLOCK. Also denies
/// the call if the units of a rule are not due within the timeout.
///
/// # Errors
/// If a key does not hold a record of its rule's algorithm, or if as many clients wait as `rl.max-waiters` allows.
pub fn begin(
    call: &Call<'_>,
    first_key: usize,
    keys: &[WriteKey<'_>],
    rules: &[Rule<'_>],
    decisions: impl Iterator<Item = Decision>,
    timeout: Span,
    now: Instant,
) -> Result<Begun, Error> {
    if call.forbids_blocking() {
        return Ok(Begun::Denied(Span::ZERO));
    }
    for ((key, rule), decision) in keys.iter().zip(rules).zip(decisions) {
        let due_in_time = match decision.wait {
            Wait::Never => false,
            Wait::For(_) if decision.granted > 0 => true,
            Wait::For(need) if need <= timeout => true,
            // Units that are usually given back early can be free before the wait is over, but not before a pause ends.
            Wait::For(_) if rule.policy.frees_early() => {
                key.with_value(&rule.policy, |stored| Ok(rest_of_pause(stored, now)))? <= timeout
            }
            Wait::For(need) => {
                let due = first_grant(key, &rule.policy, rule.request, now, now.saturating_add(need))?;
                due.since(now) <= timeout
            }
        };
        if !due_in_time {
            return Ok(Begun::Denied(timeout));
        }
    }
    // If `rl.max-waiters` is 0, any number of clients may wait. This check comes before the server is asked to block the client,
    // because a blocked client takes memory.
    if (1..=waiting_clients()).contains(&MAX_WAITERS.get().cast_unsigned()) {
        return Err(Error::TooManyWaiters);
    }
    // The server has refused to block this client: the call is answered as without BLOCK.
    let Some(client) = WaitingClient::block(call) else { return Ok(Begun::Denied(Span::ZERO)) };
    WAITS.increment();
    let id = rules.first().and_then(|rule| rule.request.id).map(|id| id.as_bytes().into());
    let name = |index| call.argument(first_key + index).unwrap_or_default().into();
    let mut claims: Vec<_> = rules.iter().enumerate().map(|(index, rule)| rule.claim(name(index))).collect();
    // A call of `RL.ALL` with a single key is answered like those with several.
    let claims = match claims.pop() {
        Some(claim) if first_key != FIRST_KEY_OF_ALL => Claims::One(claim),
        last => Claims::All(claims.into_iter().chain(last).collect()),
    };
    let waiter = Waiter { client, db: call.db(), claims, id, joined: now, deadline: now.saturating_add(timeout) };
    let mut waiting = lock();
    waiting.adjust_to_clock(call);
    waiting.queues.join(waiter, keys);
    if !waiting.subscribed {
        waiting.subscribed = true;
        call.subscribe_to_key_events::<WaitQueues>();
    }
    waiting.rearm_timer(call, now);
    Ok(Begun::Waits)
}
