//! How one queue is served: grants in the order of arrival, denials at the deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{denied, due, first_grant, peek, Answer, KeyState, Waiter};
use crate::limiter::{Bytes, Change, Decision, Instant, Policy, Span};

/// A grant may come so late without costing its client the time. Timers are late by a millisecond or two. After a longer
/// standstill of the server the units of the whole standstill must not all be granted at once.
const MAX_LATENESS: Span = Span::from_us(100_000);

/// While the server refuses writes, a queue whose first client is due is looked at again after this span.
const PAUSED_RETRY: Span = Span::from_us(20_000);

/// Values up to this length, in bytes, are cached to see whether they have changed.
const MAX_CACHED_LEN: usize = 64;

/// The clients that wait for one key.
#[derive(Debug)]
pub(super) struct Queue<C> {
    pub(super) db: i32,
    pub(super) key: Arc<[u8]>,
    /// By number, in the order of arrival.
    pub(super) waiters: BTreeMap<u64, Waiter<C>>,
    pub(super) deadlines: BTreeSet<(Instant, u64)>,
    /// When to look at the queue again: its place in the agenda.
    pub(super) wake: Instant,
    /// When the units of the first client are due, as far as is known.
    due: Instant,
    /// What the key held as of [`Self::as_of`]; `None`: not known, or too long to be cached.
    cached: Option<CachedState>,
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

/// What a look at the first client of a queue comes to.
enum Turn {
    /// It waits on: its units are due then.
    Wait(Instant),
    /// Its units are due, but after its deadline.
    Late,
    /// It is granted its units. The bytes of the change are in the buffer of the look.
    Granted(Decision, Change),
}

impl<C> Queue<C> {
    /// An empty queue for `key`, whose first client is `waiter`. Alone, it would be granted its units at `due` at the latest.
    pub(super) fn new<K: KeyState>(db: i32, key: Arc<[u8]>, waiter: &Waiter<C>, state: &K, due: Instant) -> Self {
        let (policy, joined) = (&waiter.policy, waiter.joined);
        let due = first_grant(state, policy, waiter.request, joined, due).unwrap_or(due);
        let cached = CachedState::of(state, policy);
        let (waiters, deadlines) = (BTreeMap::new(), BTreeSet::new());
        let mut queue = Self { db, key, waiters, deadlines, wake: due, due, cached, as_of: joined };
        queue.wake = queue.next_look(state);
        queue
    }

    pub(super) fn take(&mut self, number: u64) -> Option<Waiter<C>> {
        let waiter = self.waiters.remove(&number)?;
        self.deadlines.remove(&(waiter.deadline, number));
        Some(waiter)
    }

    /// Answers the clients whose units are due, if the server may write (`may_grant`), and those whose deadline has passed.
    /// Returns when to look again.
    pub(super) fn serve<K: KeyState>(
        &mut self,
        key: &mut K,
        now: Instant,
        may_grant: bool,
        most: usize,
        answers: &mut Vec<Answer<C, K::Error>>,
    ) -> Instant {
        if !may_grant {
            // Units that flow in while the server refuses writes are not owed to the waiting clients.
            self.as_of = now;
        }
        loop {
            self.due = if may_grant { self.grant(key, now, most, answers) } else { now.saturating_add(PAUSED_RETRY) };
            if !self.time_out(key, now, most, answers) {
                break;
            }
        }
        let deadline = self.deadlines.first().map_or(Instant::MAX, |&(deadline, _)| deadline);
        deadline.min(if may_grant { self.next_look(key) } else { self.due })
    }

    /// When the first client may be granted next: when its units are due, or when the key expires.
    fn next_look<K: KeyState>(&self, key: &K) -> Instant {
        self.due.min(key.expires().unwrap_or(Instant::MAX))
    }

    /// Grants in the order of arrival, up to the first client whose units are not due. Returns when they are.
    fn grant<K: KeyState>(
        &mut self,
        key: &mut K,
        now: Instant,
        most: usize,
        answers: &mut Vec<Answer<C, K::Error>>,
    ) -> Instant {
        let mut bytes = Bytes::new();
        while let Some((&number, head)) = self.waiters.first_key_value() {
            if answers.len() >= most {
                return now;
            }
            let (policy, request, timeout) = (head.policy, head.request, head.timeout());
            let answer = match self.turn(number, key, now, &mut bytes) {
                Ok(Turn::Wait(due)) => return due,
                Ok(Turn::Late) => peek(key, &policy, now, request).map(|decision| denied(decision, timeout)),
                Ok(Turn::Granted(decision, change)) => key.commit(&change, &bytes, now).map(|()| {
                    self.cached = CachedState::of(key, &policy);
                    // The decision is as of the moment of the charge, and the answer comes now.
                    let reset = decision.reset.saturating_sub(now.since(self.as_of));
                    Decision { reset, ..decision }
                }),
                Err(error) => Err(error),
            };
            if let Some(head) = self.take(number) {
                answers.push((head, answer));
            }
        }
        Instant::MAX
    }

    /// Looks at the first client, whose number is `number`. If it is granted, [`Self::as_of`] becomes the moment of the charge.
    fn turn<K: KeyState>(&mut self, number: u64, key: &K, now: Instant, bytes: &mut Bytes) -> Result<Turn, K::Error> {
        let Some(head) = self.waiters.get(&number) else { return Ok(Turn::Wait(Instant::MAX)) };
        let (policy, request, joined, deadline) = (head.policy, head.request, head.joined, head.deadline);
        let record_error = |error| K::record_error(&policy, error);
        let stored = key.stored(&policy)?;
        // A client that may be charged as of a past moment is judged by what the key held then, though the key may have expired
        // since. For a record of another policy the moment at which the units were due is not exact: then the charge counts from
        // now.
        let cached = self.cached.as_ref().map(|cached| (cached.value.as_deref(), cached.expires));
        let cached = cached.filter(|&(value, expires)| {
            value == stored || stored.is_none() && policy.charges_when_due() && expires.is_some_and(|expires| expires <= now)
        });
        if let Some((value, _)) = cached {
            let earliest = self.as_of.max(joined).max(now.saturating_sub(MAX_LATENESS)).min(now);
            let view = policy.view(value, earliest).map_err(record_error)?;
            if view.matches_policy() {
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

    /// Denies the clients whose deadline has passed. Returns whether the first client was among them, so that another is the first.
    fn time_out<K: KeyState>(&mut self, key: &K, now: Instant, most: usize, answers: &mut Vec<Answer<C, K::Error>>) -> bool {
        let first = self.waiters.first_key_value().map(|(&number, _)| number);
        let mut moved = false;
        while let Some(&(_, number)) =
            self.deadlines.first().filter(|&&(deadline, _)| deadline <= now && answers.len() < most)
        {
            let Some(waiter) = self.take(number) else { break };
            let decision = peek(key, &waiter.policy, now, waiter.request);
            let timeout = waiter.timeout();
            answers.push((waiter, decision.map(|decision| denied(decision, timeout))));
            moved |= Some(number) == first;
        }
        moved && !self.waiters.is_empty()
    }
}
