//! Serves one queue: grants units in the order of arrival, and denies clients at their deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{denied, due, first_grant, peek, Answer, KeyState, Waiter};
use crate::limiter::{Bytes, Change, Decision, Instant, Policy, Span, View};

/// A client may be charged as of a moment that is at most this long ago. Timers are late by a millisecond or two, and units
/// that flow in meanwhile must not be lost. But after a longer standstill of the server, the units of the whole standstill must
/// not all be granted at once.
const MAX_LATENESS: Span = Span::from_us(100_000);

/// While the server refuses writes, a queue is served again after this span.
const PAUSED_RETRY: Span = Span::from_us(20_000);

/// Values up to this length, in bytes, are cached, to detect whether they have changed.
const MAX_CACHED_LEN: usize = 64;

/// The clients that wait for one key.
#[derive(Debug)]
pub(super) struct Queue<C> {
    pub(super) db: i32,
    pub(super) key: Arc<[u8]>,
    /// The clients by their numbers, in the order of arrival.
    pub(super) waiters: BTreeMap<u64, Waiter<C>>,
    pub(super) deadlines: BTreeSet<(Instant, u64)>,
    /// The wake time: when to serve the queue next.
    pub(super) wake: Instant,
    /// When the units of the first client are due, as last computed; while the server refuses writes, when to serve the queue again.
    due: Instant,
    /// The state of the key at [`Self::as_of`]; `None`: not known, or too long to be cached.
    cached: Option<CachedState>,
    /// No client is charged as of an earlier moment.
    as_of: Instant,
}

#[derive(Debug)]
struct CachedState {
    value: Option<Box<[u8]>>,
    expires: Option<Instant>,
}

impl CachedState {
    fn of<K: KeyState>(key: &K, policy: &Policy) -> Option<Self> {
        let value = key.stored(policy).ok()?;
        let short = value.is_none_or(|bytes| bytes.len() <= MAX_CACHED_LEN);
        short.then(|| Self { value: value.map(Into::into), expires: key.expires() })
    }
}

/// The result of [`Queue::turn`], which serves the first client.
enum Turn {
    /// The client continues to wait. Its units are due at this moment.
    Wait(Instant),
    /// The client's units have become due, but after its deadline.
    Late,
    /// The client is granted its units. The bytes of the change are in the buffer that was passed to [`Queue::turn`].
    Granted(Decision, Change),
}

impl<C> Queue<C> {
    /// An empty queue for `key`, which `waiter` is about to join. The waiter's units are due at `due` at the latest.
    pub(super) fn new<K: KeyState>(db: i32, key: Arc<[u8]>, waiter: &Waiter<C>, state: &K, due: Instant) -> Self {
        let (policy, joined) = (&waiter.policy, waiter.joined);
        let due = first_grant(state, policy, waiter.request(), joined, due).unwrap_or(due);
        let cached = CachedState::of(state, policy);
        let (waiters, deadlines) = (BTreeMap::new(), BTreeSet::new());
        let mut queue = Self { db, key, waiters, deadlines, wake: due, due, cached, as_of: joined };
        queue.wake = queue.next_wake(state);
        queue
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Waiter<C>> {
        let waiter = self.waiters.remove(&number)?;
        self.deadlines.remove(&(waiter.deadline, number));
        Some(waiter)
    }

    /// See [`Queues::serve`](super::Queues::serve). Appends to `answers`, and returns the next wake time.
    pub(super) fn serve<K: KeyState>(
        &mut self,
        key: &mut K,
        now: Instant,
        may_grant: bool,
        most: usize,
        answers: &mut Vec<Answer<C, K::Error>>,
    ) -> Instant {
        if !may_grant {
            // The waiting clients do not get the units that flow in while the server refuses writes.
            self.as_of = now;
        }
        loop {
            self.due = if may_grant { self.grant(key, now, most, answers) } else { now.saturating_add(PAUSED_RETRY) };
            if !self.time_out(key, now, most, answers) {
                break;
            }
        }
        let deadline = self.deadlines.first().map_or(Instant::MAX, |&(deadline, _)| deadline);
        deadline.min(if may_grant { self.next_wake(key) } else { self.due })
    }

    /// When the first client may be granted next: when its units are due, or when the key expires.
    fn next_wake<K: KeyState>(&self, key: &K) -> Instant {
        self.due.min(key.expires().unwrap_or(Instant::MAX))
    }

    /// Grants units in the order of arrival, up to the first client whose units are not due. Returns when that client's units
    /// are due.
    fn grant<K: KeyState>(
        &mut self,
        key: &mut K,
        now: Instant,
        most: usize,
        answers: &mut Vec<Answer<C, K::Error>>,
    ) -> Instant {
        let mut bytes = Bytes::default();
        while let Some((&number, head)) = self.waiters.first_key_value() {
            if answers.len() >= most {
                return now;
            }
            let (policy, timeout) = (head.policy, head.timeout());
            let answer = match self.turn(number, key, now, &mut bytes) {
                Ok(Turn::Wait(due)) => return due,
                Ok(Turn::Late) => {
                    let Some(head) = self.waiters.get(&number) else { return now };
                    peek(key, &policy, now, head.request()).map(|decision| denied(decision, timeout))
                }
                Ok(Turn::Granted(decision, change)) => key.commit(&change, &bytes, now).map(|()| {
                    self.cached = CachedState::of(key, &policy);
                    // `reset` counts from the moment as of which the client is charged, but the answer is sent now.
                    let reset = decision.reset.saturating_sub(now.since(self.as_of));
                    Decision { reset, ..decision }
                }),
                Err(error) => Err(error),
            };
            if let Some(head) = self.remove(number) {
                answers.push((head, answer));
            }
        }
        Instant::MAX
    }

    /// Serves the first client, whose number is `number`. If it is granted its units, [`Self::as_of`] becomes the moment as of
    /// which it is charged.
    fn turn<K: KeyState>(&mut self, number: u64, key: &K, now: Instant, bytes: &mut Bytes) -> Result<Turn, K::Error> {
        let Some(head) = self.waiters.get(&number) else { return Ok(Turn::Wait(Instant::MAX)) };
        let (policy, request, joined, deadline) = (head.policy, head.request(), head.joined, head.deadline);
        let record_error = |error| K::record_error(&policy, error);
        let stored = key.stored(&policy)?;
        // A client may be charged as of a past moment. The decision then depends on the key's value at that moment, even if the
        // key has expired since. If the record was written under another policy, it does not show exactly when the units were
        // due, and the client is charged as of now instead.
        let cached = self.cached.as_ref().map(|cached| (cached.value.as_deref(), cached.expires));
        let cached = cached.filter(|&(value, expires)| {
            value == stored || stored.is_none() && policy.charges_when_due() && expires.is_some_and(|expires| expires <= now)
        });
        if let Some((value, _)) = cached {
            let earliest = self.as_of.max(joined).max(now.saturating_sub(MAX_LATENESS)).min(now);
            let view = policy.view(value, earliest).ok().filter(View::matches_policy);
            if let Some(view) = view {
                let (decision, _) = view.decide(request)?;
                let due = due(&decision, earliest);
                if due <= now {
                    let charged = if policy.charges_when_due() { due } else { now };
                    let view = policy.view(value, charged).map_err(record_error)?;
                    let (decision, next) = view.decide(request)?;
                    if decision.granted > 0 {
                        if due > deadline {
                            return Ok(Turn::Late);
                        }
                        self.as_of = charged;
                        return Ok(Turn::Granted(decision, view.store(&next, bytes)));
                    }
                } else if value == stored {
                    return Ok(Turn::Wait(due));
                }
            }
        }

        let view = policy.view(stored, now).map_err(record_error)?;
        let (decision, next) = view.decide(request)?;
        if decision.granted == 0 {
            let latest = due(&decision, now);
            self.cached = CachedState::of(key, &policy);
            self.as_of = now;
            return Ok(Turn::Wait(first_grant(key, &policy, request, now, latest)?));
        }
        if self.due.min(now) > deadline {
            return Ok(Turn::Late);
        }
        self.as_of = now;
        Ok(Turn::Granted(decision, view.store(&next, bytes)))
    }

    /// Denies the clients whose deadline has passed. Returns whether the queue has a new first client because of that.
    fn time_out<K: KeyState>(&mut self, key: &K, now: Instant, most: usize, answers: &mut Vec<Answer<C, K::Error>>) -> bool {
        let first = self.waiters.first_key_value().map(|(&number, _)| number);
        let mut first_left = false;
        while let Some(&(_, number)) =
            self.deadlines.first().filter(|&&(deadline, _)| deadline <= now && answers.len() < most)
        {
            let Some(waiter) = self.remove(number) else { break };
            let decision = peek(key, &waiter.policy, now, waiter.request());
            let timeout = waiter.timeout();
            answers.push((waiter, decision.map(|decision| denied(decision, timeout))));
            first_left |= Some(number) == first;
        }
        first_left && !self.waiters.is_empty()
    }
}
