//! The queues of waiting clients, one for each key. Clients are served in the order of arrival, and charged only when they are
//! granted their units.
//!
//! Pure, as [`limiter`](crate::limiter): time is an argument, and a key is a [`KeyState`]. A queue must be served when the
//! units of its first client are due, when a client's deadline passes, or when the key expires. This moment is its wake time.
//! The agenda holds the wake times of all queues. If a call changes the key, [`Queues::wake`] sets the wake time to now. To
//! serve a queue once costs O(log n), and a waiting client takes a few hundred bytes.
#![forbid(unsafe_code)]

mod turn;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use crate::limiter::{Amount, Bytes, Change, Decision, Id, Instant, Overflow, Policy, RecordError, Request, Span, Wait};
use turn::Queue;

/// The least wait in the reply to a client that is denied because other clients wait. The units themselves may be free.
const MIN_WAIT: Span = Span::from_us(1_000);

/// How exactly [`first_grant`] finds the moment of the grant.
const PRECISION: Span = Span::from_us(1_000);

/// A key, as far as its queue needs it.
pub trait KeyState {
    /// The error that a client gets instead of a decision.
    type Error: From<Overflow>;

    /// The value of the key; an error if it can't be a record of the policy's algorithm.
    fn stored(&self, policy: &Policy) -> Result<Option<&[u8]>, Self::Error>;

    /// When the key expires; `None` if it never does, or is missing.
    fn expires(&self) -> Option<Instant>;

    /// The error for a value that is not a record of the policy's algorithm.
    fn record_error(policy: &Policy, error: RecordError) -> Self::Error;

    /// The error for a call that renews a lease of `held` units, but names another amount.
    fn other_cost(held: u64) -> Self::Error;

    /// Changes the key. `bytes` are the new bytes of [`Change::Write`] and [`Change::Patch`].
    ///
    /// # Errors
    /// If the value would be too long for the server. The key is not changed then.
    fn commit(&mut self, change: &Change, bytes: &Bytes, now: Instant) -> Result<(), Self::Error>;
}

/// A waiting client. The trait does not require `Copy`: a queue hands each client out once, so that it is answered at most once.
pub trait Client {
    /// Identifies a client.
    type Id: Copy + Eq + Hash;

    /// The client's id.
    fn id(&self) -> Self::Id;
}

/// A plain number is its own id.
impl Client for u32 {
    type Id = Self;

    fn id(&self) -> Self {
        *self
    }
}

/// A client in a queue, with its call.
#[derive(Debug)]
pub struct Waiter<C> {
    /// The client.
    pub client: C,
    /// The policy of the call.
    pub policy: Policy,
    /// How many units the call takes.
    pub amount: Amount,
    /// Whether the call states the amount. Otherwise it is [`Amount::Cost`] of 1.
    pub names_amount: bool,
    /// The id of the call, from 1 to [`Id::MAX_LEN`] bytes; `None` if it has none.
    pub id: Option<Arc<[u8]>>,
    /// When the client began to wait.
    pub joined: Instant,
    /// When the wait ends. Units that are due at this very moment are still granted.
    pub deadline: Instant,
}

impl<C> Waiter<C> {
    /// The request of the call. A client that waits does not book units.
    pub fn request(&self) -> Request<'_> {
        Request { id: self.id.as_deref().and_then(Id::new), ..Request::now(self.amount) }
    }

    /// The longest time that the client waits.
    pub fn timeout(&self) -> Span {
        self.deadline.since(self.joined)
    }
}

/// A client that has waited, and the answer to its call: a decision or an error.
pub type Answer<C, E> = (Waiter<C>, Result<Decision, E>);

/// Identifies a queue. An empty queue is dropped, so the next queue of the same key has another id.
pub type QueueId = u64;

/// Turns `decision` into the denial of a client, either because other clients wait (`timeout` is then zero), or because its
/// `timeout` passes. The wait in the result is how long after the timeout the same call would be granted if no other client
/// waited.
pub fn denied(decision: Decision, timeout: Span) -> Decision {
    let wait = match decision.wait {
        Wait::Never => Wait::Never,
        Wait::For(_) if decision.granted > 0 => Wait::For(MIN_WAIT),
        Wait::For(need) => Wait::For(need.saturating_sub(timeout).max(MIN_WAIT)),
    };
    Decision { granted: 0, wait, ..decision }
}

/// The answer to a client whose `timeout` has passed: a denial, unless the call is a retry of a charge that the key remembers.
pub fn timed_out(decision: Decision, timeout: Span) -> Decision {
    if decision.retried {
        decision
    } else {
        denied(decision, timeout)
    }
}

/// When the units are due of a request that was decided at `at`.
fn due(decision: &Decision, at: Instant) -> Instant {
    match decision.wait {
        Wait::For(wait) => at.saturating_add(wait),
        Wait::Never => Instant::MAX,
    }
}

/// The decision of [`View::peek`](crate::limiter::View::peek) for a key.
fn peek<K: KeyState>(key: &K, policy: &Policy, now: Instant, request: Request<'_>) -> Result<Decision, K::Error> {
    let view = policy.view(key.stored(policy)?, now).map_err(|error| K::record_error(policy, error))?;
    Ok(view.peek(request)?)
}

/// Finds the first moment at which `request`, which is denied `now`, would be granted if nothing else changes the key. The result
/// is at most a millisecond late. `latest` is the moment at which the wait in the denial ends.
///
/// `latest` is exact if the record was written under the same policy. If the policy has changed since, the grant may come
/// sooner: the level is then the lowest of several levels, one of which drains at the former rate. Each of them only falls with
/// time, so bisection finds the moment.
///
/// # Errors
/// If the key holds no record of the policy's algorithm.
pub fn first_grant<K: KeyState>(
    key: &K,
    policy: &Policy,
    request: Request<'_>,
    now: Instant,
    latest: Instant,
) -> Result<Instant, K::Error> {
    let stored = key.stored(policy)?;
    let view = |at| policy.view(stored, at).map_err(|error| K::record_error(policy, error));
    if view(now)?.matches_policy() {
        return Ok(latest);
    }
    let (mut too_early, mut granted) = (now, latest);
    while granted.since(too_early) > PRECISION {
        let middle = too_early.saturating_add(Span::from_us(granted.since(too_early).as_us() / 2));
        let (decision, _) = view(middle)?.decide(request)?;
        if decision.granted > 0 {
            granted = middle;
        } else {
            too_early = middle;
        }
    }
    Ok(granted)
}

/// All queues.
#[derive(Debug)]
pub struct Queues<C: Client> {
    /// The id of each key's queue, by database and key.
    ids: BTreeMap<i32, HashMap<Arc<[u8]>, QueueId>>,
    queues: HashMap<QueueId, Queue<C>>,
    /// The queue of each client, and the client's number in it.
    clients: HashMap<C::Id, (QueueId, u64)>,
    /// The wake time of each queue.
    agenda: BTreeSet<(Instant, QueueId)>,
    /// The number of the next client. The id of a queue is the number of the client that it was made for.
    next_id: u64,
}

impl<C: Client> Default for Queues<C> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), queues: HashMap::new(), clients: HashMap::new(), agenda: BTreeSet::new(), next_id: 0 }
    }
}

impl<C: Client> Queues<C> {
    /// How many clients wait.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether no client waits.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Whether a client waits for this key.
    pub fn has_waiters(&self, db: i32, key: &[u8]) -> bool {
        self.id(db, key).is_some()
    }

    /// How many clients wait for this key.
    pub fn count_waiters(&self, db: i32, key: &[u8]) -> usize {
        self.id(db, key).and_then(|id| self.queues.get(&id)).map_or(0, |queue| queue.waiters.len())
    }

    fn id(&self, db: i32, key: &[u8]) -> Option<QueueId> {
        self.ids.get(&db)?.get(key).copied()
    }

    /// Puts `waiter` at the end of the key's queue. `state` is the key's present state. `due` is the latest moment at which the
    /// waiter would be granted its units if no other client waited.
    pub fn join<K: KeyState>(&mut self, db: i32, key: &[u8], waiter: Waiter<C>, state: &K, due: Instant) {
        let number = self.next_id;
        self.next_id += 1;
        let id = self.id(db, key).unwrap_or_else(|| {
            let key: Arc<[u8]> = key.into();
            self.ids.entry(db).or_default().insert(key.clone(), number);
            let queue = Queue::new(db, key, &waiter, state, due);
            self.agenda.insert((queue.wake, number));
            self.queues.insert(number, queue);
            number
        });
        self.clients.insert(waiter.client.id(), (id, number));
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let wake = queue.wake.min(waiter.deadline);
        queue.insert(number, waiter);
        self.wake_by(id, wake);
    }

    /// Removes a client from its queue, if it is in one. If it was the first, the queue's wake time becomes `now`.
    pub fn leave(&mut self, client: C::Id, now: Instant) -> Option<Waiter<C>> {
        let (id, number) = self.clients.remove(&client)?;
        let queue = self.queues.get_mut(&id)?;
        let first = queue.waiters.first_key_value().is_some_and(|(&first, _)| first == number);
        let waiter = queue.remove(number)?;
        if queue.waiters.is_empty() {
            self.drop_queue(id);
        } else if first {
            self.wake_by(id, now);
        }
        Some(waiter)
    }

    /// Sets the wake time of a key's queue to now, because the key may have changed.
    pub fn wake(&mut self, db: i32, key: &[u8], now: Instant) {
        if let Some(id) = self.id(db, key) {
            self.wake_by(id, now);
        }
    }

    /// Sets the wake times of all queues to now, because any key may have changed.
    pub fn wake_all(&mut self, now: Instant) {
        let agenda = self.queues.iter_mut().map(|(&id, queue)| {
            queue.wake = queue.wake.min(now);
            (queue.wake, id)
        });
        self.agenda = agenda.collect();
    }

    /// Adjusts the queues to a clock that was set forward by `by_us` microseconds, or back if that is negative. Deadlines move
    /// along, so that each client waits for as long as it would have otherwise, and all wake times become `now`.
    pub fn clock_stepped(&mut self, by_us: i64, now: Instant) {
        let moved = |at: Instant| Instant::saturating(i128::from(at.as_us()) + i128::from(by_us));
        for queue in self.queues.values_mut() {
            for waiter in queue.waiters.values_mut() {
                (waiter.joined, waiter.deadline) = (moved(waiter.joined), moved(waiter.deadline));
            }
            queue.deadlines = queue.waiters.iter().map(|(&number, waiter)| (waiter.deadline, number)).collect();
            queue.wake = now;
        }
        self.agenda = self.queues.keys().map(|&id| (now, id)).collect();
    }

    /// The earliest wake time; `None` if no client waits.
    pub fn next_wake(&self) -> Option<Instant> {
        self.agenda.first().map(|&(wake, _)| wake)
    }

    /// The queue to serve next, with its database and key, if its wake time is not after `now`.
    pub fn next_queue(&self, now: Instant) -> Option<(QueueId, i32, Arc<[u8]>)> {
        let &(_, id) = self.agenda.first().filter(|&&(wake, _)| wake <= now)?;
        let queue = self.queues.get(&id)?;
        Some((id, queue.db, queue.key.clone()))
    }

    /// Serves a queue: if the server may write (`may_grant`), grants units to the first clients, up to the first whose units
    /// are not due; and denies the clients whose deadline has passed. Answers at most `most` clients; if there may be more, the
    /// queue's wake time is not after `now`.
    pub fn serve<K: KeyState>(
        &mut self,
        id: QueueId,
        key: &mut K,
        now: Instant,
        may_grant: bool,
        most: usize,
    ) -> Vec<Answer<C, K::Error>> {
        let Some(queue) = self.queues.get_mut(&id) else { return Vec::new() };
        let mut answers = Vec::new();
        let wake = queue.serve(key, now, may_grant, most, &mut answers);
        let empty = queue.waiters.is_empty();
        for (waiter, _) in &answers {
            self.clients.remove(&waiter.client.id());
        }
        if empty {
            self.drop_queue(id);
        } else {
            self.wake_at(id, wake);
        }
        answers
    }

    /// Drops a queue. Returns its clients in the order of arrival, for the caller to answer.
    pub fn dismiss(&mut self, id: QueueId) -> Vec<C> {
        let waiters = self.drop_queue(id).map(|queue| queue.waiters).unwrap_or_default();
        let clients: Vec<C> = waiters.into_values().map(|waiter| waiter.client).collect();
        for client in &clients {
            self.clients.remove(&client.id());
        }
        clients
    }

    /// Sets the queue's wake time to `wake`, unless it is earlier already.
    fn wake_by(&mut self, id: QueueId, wake: Instant) {
        if self.queues.get(&id).is_some_and(|queue| wake < queue.wake) {
            self.wake_at(id, wake);
        }
    }

    /// Sets the queue's wake time to `wake`.
    fn wake_at(&mut self, id: QueueId, wake: Instant) {
        if let Some(queue) = self.queues.get_mut(&id) {
            self.agenda.remove(&(queue.wake, id));
            self.agenda.insert((wake, id));
            queue.wake = wake;
        }
    }

    fn drop_queue(&mut self, id: QueueId) -> Option<Queue<C>> {
        let queue = self.queues.remove(&id)?;
        self.agenda.remove(&(queue.wake, id));
        if let Some(keys) = self.ids.get_mut(&queue.db) {
            keys.remove(&queue.key);
            if keys.is_empty() {
                self.ids.remove(&queue.db);
            }
        }
        Some(queue)
    }
}
