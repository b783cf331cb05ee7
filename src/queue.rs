//! Who waits for which key: first come, first served, and charged only when it is their turn.
//!
//! As pure as [`limiter`](crate::limiter): time is an argument, a key is a [`Counter`], and a client is a [`Client`].
//! A queue keeps its clients in order and knows when to look at its key again: when the units of the first
//! are due, when somebody's patience ends, or when the key expires. Whoever else changes the key says so by
//! [`Queues::stir`]. A look costs O(log n), and a client a few hundred bytes for as long as it waits.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use crate::limiter::{Change, Decision, Instant, Outcome, Policy, Request, Span, Wait};

/// A client that waits is told to come back after this at least, though the units may be free: others wait for them.
const LEAST_WAIT: Span = Span::from_us(1_000);

/// How much lateness of a grant is not charged to the one who waits. Timers are late by a millisecond or two; a server that
/// stood still for longer must not let loose at once all that it held back.
const FORGIVEN: Span = Span::from_us(100_000);

/// While nobody may be granted, a queue whose first is due asks again after so long.
const PAUSE: Span = Span::from_us(20_000);

/// How exactly the moment is searched for at which a record of another policy first allows a grant.
const PRECISION: Span = Span::from_us(1_000);

/// Records up to this length are remembered, so that it is known whether they have changed.
const SHORT: usize = 64;

/// A client, as the queues hold it: whatever its owner needs in order to reply, with an identity by which the queues find it.
pub trait Client {
    /// What identifies the client.
    type Id: Copy + Eq + Hash;

    /// Returns what identifies the client.
    fn id(&self) -> Self::Id;
}

/// A plain number, which is its own identity.
impl Client for u32 {
    type Id = Self;

    fn id(&self) -> Self {
        *self
    }
}

/// A key, as its queue sees it.
pub trait Counter {
    /// Why there is no decision.
    type Error;

    /// What the key holds; an error if that can be no record of the policy's algorithm.
    fn stored(&self, policy: &Policy) -> Result<Option<&[u8]>, Self::Error>;

    /// When the key expires; `None` if it never does, or is missing.
    fn expires(&self) -> Option<Instant>;

    /// What is decided at `at` if the key holds `stored`.
    fn decide(&self, policy: &Policy, stored: Option<&[u8]>, at: Instant, request: Request) -> Result<Outcome, Self::Error>;

    /// What would be decided at `at`, with the limiter as it stands.
    fn peek(&self, policy: &Policy, at: Instant, request: Request) -> Result<Decision, Self::Error>;

    /// Carries out a decision's change.
    fn commit(&mut self, change: &Change, now: Instant);
}

/// One who waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiter<C> {
    /// Who.
    pub client: C,
    /// The limit.
    pub policy: Policy,
    /// How many units.
    pub request: Request,
    /// Since when.
    pub joined: Instant,
    /// Until when; a turn that comes at this very moment is still in time.
    pub deadline: Instant,
}

impl<C> Waiter<C> {
    /// For how long it would wait.
    pub fn patience(&self) -> Span {
        self.deadline.since(self.joined)
    }

    /// Returns a copy of everything but the client, which may not be copied.
    const fn without_client(&self) -> Waiter<()> {
        let Self { client: _, policy, request, joined, deadline } = *self;
        Waiter { client: (), policy, request, joined, deadline }
    }
}

/// One who has waited, and the answer, or its failure.
pub type Answer<C, E> = (Waiter<C>, Result<Decision, E>);

/// A queue, for as long as somebody waits in it.
pub type QueueId = u64;

/// `decision` for one who is denied because others wait, or because its `patience` is over: the wait after which the same
/// call would succeed, were nobody else there.
pub fn denied(decision: Decision, patience: Span) -> Decision {
    let wait = match decision.wait {
        Wait::Never => Wait::Never,
        Wait::For(_) if decision.granted > 0 => Wait::For(LEAST_WAIT),
        Wait::For(need) => Wait::For(need.saturating_sub(patience).max(LEAST_WAIT)),
    };
    Decision { granted: 0, wait, ..decision }
}

/// When `request`, which is denied `now`, would first be granted if nothing else changes the key, at most a millisecond late.
/// `latest` is the moment that the denial names.
///
/// That moment is exact where the record was written under the same policy. After a change of policy the grant may come sooner:
/// what is used counts as the least of several counts, one of which drains at the former rate. Each of them only falls with time,
/// so the moment is found by bisection.
///
/// # Errors
/// If the key holds no record of the policy's algorithm.
pub fn first_grant<K: Counter>(
    key: &K,
    policy: &Policy,
    request: Request,
    now: Instant,
    latest: Instant,
) -> Result<Instant, K::Error> {
    let stored = key.stored(policy)?;
    if stored.is_none_or(|bytes| policy.wrote(bytes)) {
        return Ok(latest);
    }
    let (mut denied, mut granted) = (now, latest);
    while granted.since(denied) > PRECISION {
        let middle = denied.saturating_add(Span::from_us(granted.since(denied).as_us() / 2));
        if key.decide(policy, stored, middle, request)?.decision.granted > 0 {
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
    /// Where each client waits, and its number there.
    clients: HashMap<C::Id, (QueueId, u64)>,
    /// When to look at which queue: each is in it once.
    agenda: BTreeSet<(Instant, QueueId)>,
    next: u64,
}

#[derive(Debug)]
struct Queue<C> {
    db: i32,
    key: Arc<[u8]>,
    /// By number, in the order of arrival.
    waiters: BTreeMap<u64, Waiter<C>>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// When to look again: the queue's place in the agenda.
    wake: Instant,
    /// When the units of the first are due, as far as is known.
    due: Instant,
    /// What the key held as of [`Self::as_of`]; `None`: not known, or too long to be remembered.
    seen: Option<Seen>,
    as_of: Instant,
}

#[derive(Debug)]
struct Seen {
    value: Option<Box<[u8]>>,
    expires: Option<Instant>,
}

impl Seen {
    fn of<K: Counter>(key: &K, policy: &Policy) -> Option<Self> {
        let value = key.stored(policy).ok()?;
        value.is_none_or(|bytes| bytes.len() <= SHORT).then(|| Self { value: value.map(Into::into), expires: key.expires() })
    }
}

/// What becomes of the first in a queue.
enum Turn {
    /// It waits on: its units are due then.
    Wait(Instant),
    /// Its units are due, but after its deadline.
    Late,
    Granted(Outcome),
}

impl<C: Client> Default for Queues<C> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), queues: HashMap::new(), clients: HashMap::new(), agenda: BTreeSet::new(), next: 0 }
    }
}

impl<C: Client> Queues<C> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Whether somebody waits for this key.
    pub fn holds(&self, db: i32, key: &[u8]) -> bool {
        self.id(db, key).is_some()
    }

    /// How many wait for this key.
    pub fn waiting(&self, db: i32, key: &[u8]) -> usize {
        self.id(db, key).and_then(|id| self.queues.get(&id)).map_or(0, |queue| queue.waiters.len())
    }

    fn id(&self, db: i32, key: &[u8]) -> Option<QueueId> {
        self.ids.get(&db)?.get(key).copied()
    }

    /// The waiter goes to the end of the queue. `counter` is the key as it is now, `due` when the waiter would be granted if
    /// it were alone.
    pub fn join<K: Counter>(&mut self, db: i32, key: &[u8], waiter: Waiter<C>, counter: &K, due: Instant) {
        let number = self.next;
        self.next += 1;
        let id = self.id(db, key).unwrap_or_else(|| {
            let key: Arc<[u8]> = key.into();
            self.ids.entry(db).or_default().insert(key.clone(), number);
            let mut queue = Queue {
                db,
                key,
                waiters: BTreeMap::new(),
                deadlines: BTreeSet::new(),
                wake: due,
                due,
                seen: Seen::of(counter, &waiter.policy),
                as_of: waiter.joined,
            };
            queue.due = first_grant(counter, &waiter.policy, waiter.request, waiter.joined, due).unwrap_or(due);
            queue.wake = queue.look_again(counter);
            self.agenda.insert((queue.wake, number));
            self.queues.insert(number, queue);
            number
        });
        self.clients.insert(waiter.client.id(), (id, number));
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.deadlines.insert((waiter.deadline, number));
        let wake = queue.wake.min(waiter.deadline);
        queue.waiters.insert(number, waiter);
        self.wake(id, wake);
    }

    /// The client waits no longer; what it waited for, if it did. Who stands behind it moves up.
    pub fn leave(&mut self, client: C::Id, now: Instant) -> Option<Waiter<C>> {
        let (id, number) = self.clients.remove(&client)?;
        let queue = self.queues.get_mut(&id)?;
        let first = queue.waiters.first_key_value().is_some_and(|(&first, _)| first == number);
        let waiter = queue.take(number)?;
        if queue.waiters.is_empty() {
            self.drop_queue(id);
        } else if first {
            self.wake(id, now);
        }
        Some(waiter)
    }

    /// Something has happened to a key: its queue is to be looked at now.
    pub fn stir(&mut self, db: i32, key: &[u8], now: Instant) {
        if let Some(id) = self.id(db, key) {
            self.wake(id, now);
        }
    }

    /// Something has happened that may have been to any key.
    pub fn stir_all(&mut self, now: Instant) {
        let stirred = self.queues.iter_mut().map(|(&id, queue)| {
            queue.wake = queue.wake.min(now);
            (queue.wake, id)
        });
        self.agenda = stirred.collect();
    }

    /// The clock by which `now` is told has stepped by so many microseconds: all who wait go on waiting for as long as they would
    /// have, and every queue is to be looked at now.
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

    /// When a queue is to be looked at next; `None` if nobody waits.
    pub fn wakes(&self) -> Option<Instant> {
        self.agenda.first().map(|&(wake, _)| wake)
    }

    /// The queue that is to be looked at by `now`, with its database and key.
    pub fn due(&self, now: Instant) -> Option<(QueueId, i32, Arc<[u8]>)> {
        let &(_, id) = self.agenda.first().filter(|&&(wake, _)| wake <= now)?;
        let queue = self.queues.get(&id)?;
        Some((id, queue.db, queue.key.clone()))
    }

    /// Looks at a queue: the first are granted their units as far as these are due, if there `may_grant` at all, and those
    /// whose patience is over are denied. At most `most` are answered; if there may be more, the queue is due at once.
    pub fn serve<K: Counter>(
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
            self.agenda_moved(id, wake);
        }
        answers
    }

    /// Ends a queue: those who waited in it, in their order.
    pub fn dismiss(&mut self, id: QueueId) -> Vec<C> {
        let waiters = self.drop_queue(id).map(|queue| queue.waiters).unwrap_or_default();
        let clients: Vec<C> = waiters.into_values().map(|waiter| waiter.client).collect();
        for client in &clients {
            self.clients.remove(&client.id());
        }
        clients
    }

    /// Has the queue looked at by `wake`, or before.
    fn wake(&mut self, id: QueueId, wake: Instant) {
        if self.queues.get(&id).is_some_and(|queue| wake < queue.wake) {
            self.agenda_moved(id, wake);
        }
    }

    fn agenda_moved(&mut self, id: QueueId, wake: Instant) {
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

/// When what was asked for at `at` would be granted.
fn due(outcome: &Outcome, at: Instant) -> Instant {
    match outcome.decision.wait {
        Wait::For(wait) => at.saturating_add(wait),
        Wait::Never => Instant::MAX,
    }
}

impl<C> Queue<C> {
    fn take(&mut self, number: u64) -> Option<Waiter<C>> {
        let waiter = self.waiters.remove(&number)?;
        self.deadlines.remove(&(waiter.deadline, number));
        Some(waiter)
    }

    /// Answers who is to be answered, and tells when to look again.
    fn serve<K: Counter>(
        &mut self,
        key: &mut K,
        now: Instant,
        may_grant: bool,
        most: usize,
        answers: &mut Vec<Answer<C, K::Error>>,
    ) -> Instant {
        if !may_grant {
            // What flows in while nobody may be granted is not owed to those who wait.
            self.as_of = now;
        }
        loop {
            self.due = if may_grant { self.grant(key, now, most, answers) } else { now.saturating_add(PAUSE) };
            if !self.time_out(key, now, most, answers) {
                break;
            }
        }
        let deadline = self.deadlines.first().map_or(Instant::MAX, |&(deadline, _)| deadline);
        deadline.min(if may_grant { self.look_again(key) } else { self.due })
    }

    /// When to look at the key again: when the units of the first are due, or when the key expires.
    fn look_again<K: Counter>(&self, key: &K) -> Instant {
        self.due.min(key.expires().unwrap_or(Instant::MAX))
    }

    /// Grants in the order of arrival, up to the first whose units are not due: tells when they are.
    fn grant<K: Counter>(
        &mut self,
        key: &mut K,
        now: Instant,
        most: usize,
        answers: &mut Vec<Answer<C, K::Error>>,
    ) -> Instant {
        while let Some((&number, head)) = self.waiters.first_key_value() {
            let head = head.without_client();
            if answers.len() >= most {
                return now;
            }
            let answer = match self.turn(&head, key, now) {
                Ok(Turn::Wait(due)) => return due,
                Ok(Turn::Late) => {
                    key.peek(&head.policy, now, head.request).map(|decision| denied(decision, head.patience()))
                }
                Ok(Turn::Granted(outcome)) => {
                    key.commit(&outcome.change, now);
                    self.seen = Seen::of(key, &head.policy);
                    // It is told as of its moment, and answered now.
                    let reset = outcome.decision.reset.saturating_sub(now.since(self.as_of));
                    Ok(Decision { reset, ..outcome.decision })
                }
                Err(error) => Err(error),
            };
            answers.extend(self.take(number).map(|waiter| (waiter, answer)));
        }
        Instant::MAX
    }

    /// Decides about the first. If it is granted, [`Self::as_of`] becomes the moment that it is charged at.
    fn turn<K: Counter>(&mut self, head: &Waiter<()>, key: &K, now: Instant) -> Result<Turn, K::Error> {
        let decide = |stored, at| key.decide(&head.policy, stored, at, head.request);
        let stored = key.stored(&head.policy)?;
        // Who may be charged as of a moment ago is judged by what the key held then, though it may have expired since. Of what
        // another policy left, it is not known exactly when it was due: that counts as of now.
        let known = self.seen.as_ref().map(|seen| (seen.value.as_deref(), seen.expires)).filter(|&(value, expires)| {
            let expired = stored.is_none() && head.policy.charged_when_due() && expires.is_some_and(|at| at <= now);
            (value == stored || expired) && value.is_none_or(|bytes| head.policy.wrote(bytes))
        });
        if let Some((value, _)) = known {
            let earliest = self.as_of.max(head.joined).max(now.saturating_sub(FORGIVEN)).min(now);
            let due = due(&decide(value, earliest)?, earliest);
            if due <= now {
                let charged = if head.policy.charged_when_due() { due } else { now };
                let outcome = decide(value, charged)?;
                if outcome.decision.granted > 0 {
                    return Ok(self.turned(head, due, charged, outcome));
                }
            } else if value == stored {
                return Ok(Turn::Wait(due));
            }
        }
        let outcome = decide(stored, now)?;
        let since = self.due.min(now);
        let turn = self.turned(head, since, now, outcome);
        if let Turn::Wait(latest) = turn {
            self.seen = Seen::of(key, &head.policy);
            self.as_of = now;
            return Ok(Turn::Wait(first_grant(key, &head.policy, head.request, now, latest)?));
        }
        Ok(turn)
    }

    /// What `outcome`, decided at `charged`, makes of the first, whose units were due at `since` if it is granted.
    fn turned(&mut self, head: &Waiter<()>, since: Instant, charged: Instant, outcome: Outcome) -> Turn {
        if outcome.decision.granted == 0 {
            Turn::Wait(due(&outcome, charged))
        } else if since > head.deadline {
            Turn::Late
        } else {
            self.as_of = charged;
            Turn::Granted(outcome)
        }
    }

    /// Denies those whose patience is over; whether the first was among them, so that another is the first now.
    fn time_out<K: Counter>(&mut self, key: &K, now: Instant, most: usize, answers: &mut Vec<Answer<C, K::Error>>) -> bool {
        let first = self.waiters.first_key_value().map(|(&number, _)| number);
        let mut moved = false;
        while let Some(&(_, number)) =
            self.deadlines.first().filter(|&&(deadline, _)| deadline <= now && answers.len() < most)
        {
            let Some(waiter) = self.take(number) else { break };
            let decision = key.peek(&waiter.policy, now, waiter.request);
            let answer = decision.map(|decision| denied(decision, waiter.patience()));
            answers.push((waiter, answer));
            moved |= Some(number) == first;
        }
        moved && !self.waiters.is_empty()
    }
}
