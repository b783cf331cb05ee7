//! Serves one queue: grants units in the order of arrival, and denies clients at their deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{denied, due, first_grant, peek, timed_out, Answer, KeyState, Waiter};
use crate::limiter::{fingerprint, without_ids, Amount, Bytes, Change, Decision, Instant, Kind, Policy, Span, View};

/// A client may be charged as of a moment that is at most this long ago. Timers are late by a millisecond or two, and units
/// that flow in meanwhile must not be lost. But after a longer standstill of the server, the units of the whole standstill must
/// not all be granted at once.
const MAX_LATENESS: Span = Span::from_us(100_000);

/// While the server refuses writes, a queue is served again after this span.
const PAUSED_RETRY: Span = Span::from_us(20_000);

/// The clients that wait for one key.
#[derive(Debug)]
pub(super) struct Queue<C> {
    pub(super) db: i32,
    pub(super) key: Arc<[u8]>,
    /// The clients by their numbers, in the order of arrival.
    pub(super) waiters: BTreeMap<u64, Waiter<C>>,
    pub(super) deadlines: BTreeSet<(Instant, u64)>,
    /// The ids of calls, and the numbers of the clients that make them.
    ids: BTreeSet<(Arc<[u8]>, u64)>,
    /// The numbers of the clients whose call became a retry: another client's call with the same id has been granted units. They
    /// are served before all others.
    retries: BTreeSet<u64>,
    /// The wake time: when to serve the queue next.
    pub(super) wake: Instant,
    /// When the units of the first client are due, as last computed; while the server refuses writes, when to serve the queue
    /// again.
    due: Instant,
    /// The state of the key at [`Self::as_of`]; `None`: not known, or too long to be cached.
    cached: Option<CachedState>,
    /// No client is charged as of an earlier moment.
    as_of: Instant,
}

#[derive(Debug)]
struct CachedState {
    /// The [fingerprint] of the value; `None`: the key did not exist.
    value: Option<Box<[u8]>>,
    expires: Option<Instant>,
}

impl CachedState {
    fn of<K: KeyState>(key: &K, policy: &Policy) -> Option<Self> {
        let value = match key.stored(policy).ok()? {
            Some(bytes) => Some(fingerprint(bytes)?.into()),
            None => None,
        };
        Some(Self { value, expires: key.expires() })
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
    /// The client's id holds units already. The call repeats a charge, or renews a lease.
    Held(Decision, Change),
}

impl<C> Queue<C> {
    /// An empty queue for `key`, which `waiter` is about to join. The waiter's units are due at `due` at the latest.
    pub(super) fn new<K: KeyState>(db: i32, key: Arc<[u8]>, waiter: &Waiter<C>, state: &K, due: Instant) -> Self {
        let (policy, joined) = (&waiter.policy, waiter.joined);
        let due = first_grant(state, policy, waiter.request(), joined, due).unwrap_or(due);
        let cached = CachedState::of(state, policy);
        let mut queue = Self {
            db,
            key,
            waiters: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            ids: BTreeSet::new(),
            retries: BTreeSet::new(),
            wake: due,
            due,
            cached,
            as_of: joined,
        };
        queue.wake = queue.next_wake(state);
        queue
    }

    /// Adds a client at the end of the queue.
    pub(super) fn insert(&mut self, number: u64, waiter: Waiter<C>) {
        self.deadlines.insert((waiter.deadline, number));
        if let Some(id) = &waiter.id {
            self.ids.insert((id.clone(), number));
        }
        self.waiters.insert(number, waiter);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Waiter<C>> {
        let waiter = self.waiters.remove(&number)?;
        self.deadlines.remove(&(waiter.deadline, number));
        if let Some(id) = &waiter.id {
            self.ids.remove(&(id.clone(), number));
            self.retries.remove(&number);
        }
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
        loop {
            // Retries are answered first: they take nothing, so they need not wait for their turn.
            let next = self.retries.first().copied().or_else(|| Some(*self.waiters.first_key_value()?.0));
            let Some((number, head)) = next.and_then(|number| Some((number, self.waiters.get(&number)?))) else {
                return Instant::MAX;
            };
            if answers.len() >= most {
                return now;
            }
            let (policy, timeout) = (head.policy, head.timeout());
            let answer = match self.turn(number, key, now, &mut bytes) {
                // The id of this client holds nothing any more, so the client waits in line again.
                Ok(Turn::Wait(_)) if self.retries.remove(&number) => continue,
                Ok(Turn::Wait(due)) => return due,
                Ok(Turn::Held(decision, change)) => key.commit(&change, &bytes, now).map(|()| decision),
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
                if let (Some(id), true) = (&head.id, answer.is_ok()) {
                    let same = (id.clone(), 0)..=(id.clone(), u64::MAX);
                    self.retries.extend(self.ids.range(same).map(|&(_, number)| number));
                }
                answers.push((head, answer));
            }
        }
    }

    /// Serves the first client, whose number is `number`. If it is granted its units, [`Self::as_of`] becomes the moment as of
    /// which it is charged.
    fn turn<K: KeyState>(&mut self, number: u64, key: &K, now: Instant, bytes: &mut Bytes) -> Result<Turn, K::Error> {
        let Some(head) = self.waiters.get(&number) else { return Ok(Turn::Wait(Instant::MAX)) };
        let (policy, request, joined, deadline) = (head.policy, head.request(), head.joined, head.deadline);
        let record_error = |error| K::record_error(&policy, error);
        let stored = key.stored(&policy)?;
        if let Some(id) = request.id {
            let view = policy.view(stored, now).map_err(record_error)?;
            if let Some(held) = view.held(id) {
                if policy.kind() == Kind::Lease && head.names_amount && head.amount != Amount::Cost(held) {
                    return Err(K::other_cost(held));
                }
                let (decision, next) = view.decide(request)?;
                return Ok(Turn::Held(decision, view.store(&next, bytes)));
            }
        }
        // A client may be charged as of a past moment. The decision then depends on the key's value at that moment, even if the
        // key has expired since. If the record was written under another policy, it does not show exactly when the units were
        // due, and the client is charged as of now instead.
        let cached = self.cached.as_ref().and_then(|cached| match (stored, cached.value.as_deref()) {
            (Some(bytes), Some(value)) => (fingerprint(bytes) == Some(value)).then_some(stored),
            (None, None) => Some(None),
            (None, Some(value)) => {
                let expired = cached.expires.is_some_and(|expires| expires <= now);
                // When the key expired, its ids were forgotten.
                (expired && policy.charges_when_due()).then(|| Some(without_ids(value)))
            }
            (Some(_), None) => None,
        });
        if let Some(value) = cached {
            let earliest = self.as_of.max(joined).max(now.saturating_sub(MAX_LATENESS)).min(now);
            let view = policy.view(value, earliest).ok().filter(View::matches_policy);
            if let Some(view) = view {
                let (decision, _) = view.decide(request)?;
                let due = due(&decision, earliest);
                if due <= now {
                    let charged = if policy.charges_when_due() { due } else { now };
                    let view = policy.view(value, charged).map_err(record_error)?;
                    let (decision, next) = view.decide(request)?;
                    if decision.granted > 0 && !decision.retried {
                        if due > deadline {
                            return Ok(Turn::Late);
                        }
                        self.as_of = charged;
                        return Ok(Turn::Granted(decision, view.store(&next, bytes)));
                    }
                } else if value.is_some() == stored.is_some() {
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
            answers.push((waiter, decision.map(|decision| timed_out(decision, timeout))));
            first_left |= Some(number) == first;
        }
        first_left && !self.waiters.is_empty()
    }
}
