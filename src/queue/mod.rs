//! Which client waits for which key: first come, first served, and charged only when its turn has come.
//!
//! As pure as [`limiter`](crate::limiter): time is an argument, and a key is a [`KeyState`]. A queue keeps its clients in order
//! and knows when to look at its key again: when the units of the first client are due, when a deadline passes, or when the key
//! expires. A caller that changes the key reports it with [`Queues::wake`]. A look costs O(log n), and a client a few hundred
//! bytes while it waits.
#![forbid(unsafe_code)]

mod turn;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use crate::limiter::{Bytes, Change, Decision, Instant, Overflow, Policy, RecordError, Request, Span, Wait};
use turn::Queue;

/// A client that is denied because others wait gets at least this wait, although the units may be free.
const MIN_WAIT: Span = Span::from_us(1_000);

/// How exactly [`first_grant`] finds the moment.
const PRECISION: Span = Span::from_us(1_000);

/// The state of a key, as its queue needs it.
pub trait KeyState {
    /// Why there is no decision.
    type Error: From<Overflow>;

    /// What the key holds; an error if that can't be a record of the policy's algorithm.
    fn stored(&self, policy: &Policy) -> Result<Option<&[u8]>, Self::Error>;

    /// When the key expires; `None` if it never does, or is missing.
    fn expires(&self) -> Option<Instant>;

    /// The error for a value that is no record of the policy's algorithm.
    fn record_error(policy: &Policy, error: RecordError) -> Self::Error;

    /// Carries out a change. `bytes` are the new bytes of [`Change::Write`].
    ///
    /// # Errors
    /// If the value would be too long for the server. The key is then as before.
    fn commit(&mut self, change: &Change, bytes: &Bytes, now: Instant) -> Result<(), Self::Error>;
}

/// A client that waits. It need not be `Copy`, so that each client gets at most one answer.
pub trait Client {
    /// What a client is looked up by.
    type Id: Copy + Eq + Hash;

    /// The id.
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
    /// The limit.
    pub policy: Policy,
    /// How many units.
    pub request: Request,
    /// Since when it waits.
    pub joined: Instant,
    /// Until when it waits; a turn at this very moment is still in time.
    pub deadline: Instant,
}

impl<C> Waiter<C> {
    /// How long it waits at the most.
    pub fn timeout(&self) -> Span {
        self.deadline.since(self.joined)
    }
}

/// A client that waited, and the answer to its call.
pub type Answer<C, E> = (Waiter<C>, Result<Decision, E>);

/// The number of a queue. A key gets a new one when its queue was empty in between.
pub type QueueId = u64;

/// `decision` for a client that is denied because others wait, or because its `timeout` has passed: its wait becomes the one after
/// which the same call would succeed if no other client waited.
pub fn denied(decision: Decision, timeout: Span) -> Decision {
    let wait = match decision.wait {
        Wait::Never => Wait::Never,
        Wait::For(_) if decision.granted > 0 => Wait::For(MIN_WAIT),
        Wait::For(need) => Wait::For(need.saturating_sub(timeout).max(MIN_WAIT)),
    };
    Decision { granted: 0, wait, ..decision }
}

/// When a request that was decided at `at` would be granted.
fn due(decision: &Decision, at: Instant) -> Instant {
    match decision.wait {
        Wait::For(wait) => at.saturating_add(wait),
        Wait::Never => Instant::MAX,
    }
}

/// What the key answers, with the limiter as it stands.
fn peek<K: KeyState>(key: &K, policy: &Policy, now: Instant, request: Request) -> Result<Decision, K::Error> {
    let view = policy.view(key.stored(policy)?, now).map_err(|error| K::record_error(policy, error))?;
    Ok(view.peek(request)?)
}

/// When `request`, which is denied `now`, would first be granted if nothing else changes the key, at most a millisecond late.
/// `latest` is the moment that the denial names.
///
/// That moment is exact if the record was written under the same policy. After a change of policy the grant may come sooner:
/// what is used counts as the least of several counts, one of which drains at the former rate. Each of them only falls with time,
/// so bisection finds the moment.
///
/// # Errors
/// If the key holds no record of the policy's algorithm.
pub fn first_grant<K: KeyState>(
    key: &K,
    policy: &Policy,
    request: Request,
    now: Instant,
    latest: Instant,
) -> Result<Instant, K::Error> {
    let stored = key.stored(policy)?;
    let view = |at| policy.view(stored, at).map_err(|error| K::record_error(policy, error));
    if view(now)?.matches_policy() {
        return Ok(latest);
    }
    let (mut denied, mut granted) = (now, latest);
    while granted.since(denied) > PRECISION {
        let middle = denied.saturating_add(Span::from_us(granted.since(denied).as_us() / 2));
        let (decision, _) = view(middle)?.decide(request)?;
        if decision.granted > 0 {
            granted = middle;
        } else {
            denied = middle;
        }
    }
    Ok(granted)
}

/// All queues.
#[derive(Debug)]
pub struct Queues<C: Client> {
    /// By database and key.
    ids: BTreeMap<i32, HashMap<Arc<[u8]>, QueueId>>,
    queues: HashMap<QueueId, Queue<C>>,
    /// The queue that each client waits in, and its number there.
    clients: HashMap<C::Id, (QueueId, u64)>,
    /// When to look at which queue: each queue is in it once.
    agenda: BTreeSet<(Instant, QueueId)>,
    next: u64,
}

impl<C: Client> Default for Queues<C> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), queues: HashMap::new(), clients: HashMap::new(), agenda: BTreeSet::new(), next: 0 }
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
    pub fn holds(&self, db: i32, key: &[u8]) -> bool {
        self.id(db, key).is_some()
    }

    /// How many clients wait for this key.
    pub fn waiting(&self, db: i32, key: &[u8]) -> usize {
        self.id(db, key).and_then(|id| self.queues.get(&id)).map_or(0, |queue| queue.waiters.len())
    }

    fn id(&self, db: i32, key: &[u8]) -> Option<QueueId> {
        self.ids.get(&db)?.get(key).copied()
    }

    /// Puts `waiter` at the end of the key's queue. `state` is the key as it is now; alone, the waiter would be granted its units
    /// at `due` at the latest.
    pub fn join<K: KeyState>(&mut self, db: i32, key: &[u8], waiter: Waiter<C>, state: &K, due: Instant) {
        let number = self.next;
        self.next += 1;
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
        queue.deadlines.insert((waiter.deadline, number));
        queue.waiters.insert(number, waiter);
        self.look_by(id, wake);
    }

    /// Removes a client from its queue, if it waits in one. The clients behind it move up.
    pub fn leave(&mut self, client: C::Id, now: Instant) -> Option<Waiter<C>> {
        let (id, number) = self.clients.remove(&client)?;
        let queue = self.queues.get_mut(&id)?;
        let first = queue.waiters.first_key_value().is_some_and(|(&first, _)| first == number);
        let waiter = queue.take(number)?;
        if queue.waiters.is_empty() {
            self.drop_queue(id);
        } else if first {
            self.look_by(id, now);
        }
        Some(waiter)
    }

    /// Has the queue of a key looked at now, since the key may have changed.
    pub fn wake(&mut self, db: i32, key: &[u8], now: Instant) {
        if let Some(id) = self.id(db, key) {
            self.look_by(id, now);
        }
    }

    /// Has every queue looked at now, since any key may have changed.
    pub fn wake_all(&mut self, now: Instant) {
        let agenda = self.queues.iter_mut().map(|(&id, queue)| {
            queue.wake = queue.wake.min(now);
            (queue.wake, id)
        });
        self.agenda = agenda.collect();
    }

    /// Follows a step of the clock by so many microseconds. Every client waits on for as long as it would have, and every queue is
    /// looked at now.
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

    /// When to look at a queue next; `None` if no client waits.
    pub fn next_look(&self) -> Option<Instant> {
        self.agenda.first().map(|&(wake, _)| wake)
    }

    /// The queue to look at by `now`, with its database and key.
    pub fn due(&self, now: Instant) -> Option<(QueueId, i32, Arc<[u8]>)> {
        let &(_, id) = self.agenda.first().filter(|&&(wake, _)| wake <= now)?;
        let queue = self.queues.get(&id)?;
        Some((id, queue.db, queue.key.clone()))
    }

    /// Looks at a queue: grants the first clients their units as far as these are due, if the server may write (`may_grant`), and
    /// denies the clients whose deadline has passed. Answers at most `most` clients; if there may be more, the queue is due at
    /// once.
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
            self.look_at(id, wake);
        }
        answers
    }

    /// Ends a queue. Returns its clients, in their order.
    pub fn dismiss(&mut self, id: QueueId) -> Vec<C> {
        let waiters = self.drop_queue(id).map(|queue| queue.waiters).unwrap_or_default();
        let clients: Vec<C> = waiters.into_values().map(|waiter| waiter.client).collect();
        for client in &clients {
            self.clients.remove(&client.id());
        }
        clients
    }

    /// Has the queue looked at by `wake`, or before.
    fn look_by(&mut self, id: QueueId, wake: Instant) {
        if self.queues.get(&id).is_some_and(|queue| wake < queue.wake) {
            self.look_at(id, wake);
        }
    }

    /// Has the queue looked at next at `wake`.
    fn look_at(&mut self, id: QueueId, wake: Instant) {
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
