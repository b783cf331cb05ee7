//! Waiting clients. Each key that clients wait for has a line. Clients are served in the order of arrival, and charged only when
//! they are granted their units.
//!
//! A call has one key, or several that must all grant it at one moment. It first stands in the line of the key that makes it
//! wait longest. When that key's units are free for it, it asks its other keys, and joins the line of the one that then makes it
//! wait longest, and so on until all grant it. It leaves no line before it is answered. Its place in each line is by its arrival,
//! also if it joins the line later: so a call never waits for a younger one, and calls cannot wait for each other in a circle. A
//! key in whose line the call does not stand serves other calls meanwhile.
//!
//! Pure, as [`limiter`](crate::limiter): time is an argument, and a key is a [`KeyState`]. A line must be served when the
//! units of its first client are due, or when the key expires. This moment is its wake time. The agenda holds the wake times
//! of all lines. If a call changes the key, [`Queues::changed`] sets the wake time to now. To serve a line once costs O(log
//! n), and a waiting client takes a few hundred bytes.
#![forbid(unsafe_code)]

mod invariants;
mod line;
mod serve;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use crate::limiter::{Amount, Bytes, Change, Decision, Id, Instant, Overflow, Policy, RecordError, Request, Span, Wait};
use line::{present, Line, LineId, Lines};
use serve::FreeKeys;

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

    /// Whether a string of `len` bytes fits the key.
    fn fits(len: usize) -> bool;

    /// See [`RandomSeed`](crate::limiter::RandomSeed).
    fn random_seed() -> u64;

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

/// A key of a waiting call, and what the call takes from it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The name of the key.
    pub key: Arc<[u8]>,
    /// The policy.
    pub policy: Policy,
    /// How many units the call takes.
    pub amount: Amount,
    /// Whether the call states the amount. Otherwise it is [`Amount::Cost`] of 1.
    pub names_amount: bool,
}

/// The rules of a waiting call. All of them must grant it.
#[derive(Clone, Debug)]
pub enum Rules {
    /// The rule of a command with one key.
    One(Rule),
    /// The rules of `RL.ALL`, with different keys.
    All(Box<[Rule]>),
}

impl Deref for Rules {
    type Target = [Rule];

    fn deref(&self) -> &[Rule] {
        match self {
            Self::One(rule) => std::slice::from_ref(rule),
            Self::All(rules) => rules,
        }
    }
}

/// A waiting client, with its call.
#[derive(Debug)]
pub struct Waiter<C> {
    /// The client.
    pub client: C,
    /// The database of the keys.
    pub db: i32,
    /// The keys, and what the call takes from each.
    pub rules: Rules,
    /// The id of the call, from 1 to [`Id::MAX_LEN`] bytes; `None` if it has none.
    pub id: Option<Arc<[u8]>>,
    /// When the client began to wait.
    pub joined: Instant,
    /// When the wait ends. Units that are due at this very moment are still granted.
    pub deadline: Instant,
}

impl<C> Waiter<C> {
    /// What the call requests from the key of `rule`. A client that waits does not book units.
    pub fn request(&self, rule: &Rule) -> Request<'_> {
        Request { id: self.id.as_deref().and_then(Id::new), ..Request::now(rule.amount) }
    }

    /// Turns the present decisions of the rules into the answer to the client when its wait ends: denials, except for the keys that
    /// remember the id of its call. `refusals` are those of [`Queues::refusals`].
    pub fn deny(&self, refusals: &[bool], rows: &mut [Decision]) {
        let deny = |row: &mut Decision| *row = denied(*row, self.deadline.since(self.joined));
        for (row, &refused) in rows.iter_mut().zip(refusals) {
            if !row.retried && (refused || row.granted == 0) {
                deny(row);
            }
        }
        if rows.iter().all(|row| row.granted > 0) {
            // All keys would grant the call, but its time is over.
            rows.iter_mut().filter(|row| !row.retried).for_each(deny);
        }
    }
}

/// A client that has waited, and the answer to its call: a decision for each rule, or an error of the rule with this index.
pub type Answer<C, E> = (Waiter<C>, Result<Vec<Decision>, (usize, E)>);

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

/// What to do next: [`Queues::next_task`] returns it, and [`Queues::serve`] does it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The line to serve; `None`: the client's wait has ended.
    line: Option<LineId>,
    /// The number of the client whose keys are needed.
    number: u64,
    /// The database of the keys.
    pub db: i32,
    /// The keys that [`Queues::serve`] needs, in the order of the client's rules.
    pub keys: Vec<Arc<[u8]>>,
}

/// A key that clients wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongLine<'q> {
    /// The number of its database.
    pub db: i32,
    /// Its name.
    pub key: &'q [u8],
    /// How many clients stand in its line.
    pub clients: usize,
    /// When the first of them began to wait.
    pub since: Instant,
}

/// What the waiting calls mean for a call on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiters {
    /// No waiting call has a rule for the key.
    None,
    /// Waiting calls have a rule for the key, but none stands in its line. If the call changes the key, [`Queues::changed`]
    /// must be called.
    Elsewhere,
    /// Clients stand in the line of the key, so the call must not take units. A change is as for [`Self::Elsewhere`].
    InLine,
}

/// All waiting clients, and the lines in which they stand.
#[derive(Debug)]
pub struct Queues<C: Client> {
    /// The clients by their numbers, in the order of arrival.
    waiters: BTreeMap<u64, Waiter<C>>,
    /// The number of each client.
    numbers: HashMap<C::Id, u64>,
    /// When the wait of each client ends, and the client is answered.
    deadlines: BTreeSet<(Instant, u64)>,
    /// When clients are answered whose wait has ended while the server used one of their keys.
    postponed: HashMap<u64, Instant>,
    lines: Lines,
    /// The number of the next client.
    next_number: u64,
    /// When the server last refused writes. No client is charged as of an earlier moment.
    refused: Instant,
}

impl<C: Client> Default for Queues<C> {
    fn default() -> Self {
        let (waiters, numbers, deadlines, postponed, lines) = Default::default();
        Self { waiters, numbers, deadlines, postponed, lines, next_number: 0, refused: Instant::MIN }
    }
}

impl<C: Client> Queues<C> {
    /// How many clients wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether no client waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// What a call on this key, which does not wait, must know of the calls that wait.
    pub fn waiters(&self, db: i32, key: &[u8]) -> Waiters {
        match self.lines.of_key(db, key) {
            None => Waiters::None,
            Some(line) if line.is_empty() => Waiters::Elsewhere,
            Some(_) => Waiters::InLine,
        }
    }

    /// Whether a client stands in the line of this key.
    pub fn has_waiters(&self, db: i32, key: &[u8]) -> bool {
        self.lines.of_key(db, key).is_some_and(|line| !line.is_empty())
    }

    /// How many clients stand in the line of this key.
    pub fn count_waiters(&self, db: i32, key: &[u8]) -> usize {
        self.lines.of_key(db, key).map_or(0, Line::len)
    }

    /// The keys in whose lines the most clients stand, at most `most` of them, from the longest line down. Of lines of one length,
    /// the one whose first client has waited longest comes first.
    pub fn longest_lines(&self, most: usize) -> Vec<LongLine<'_>> {
        let joined = |line: &Line| Some(self.waiters.get(&line.first()?)?.joined);
        let mut lines: Vec<_> = self
            .lines
            .with_clients()
            .filter_map(|line| Some(LongLine { db: line.db, key: &line.key, clients: line.len(), since: joined(line)? }))
            .collect();
        lines.sort_unstable_by_key(|line| (Reverse(line.clients), line.since, line.db, line.key));
        lines.truncate(most);
        lines
    }

    /// The clients that stand in the line of this key, in the order of arrival.
    pub fn line(&self, db: i32, key: &[u8]) -> Vec<C::Id> {
        let numbers = self.lines.of_key(db, key).map_or_else(Vec::new, Line::numbers);
        numbers.iter().filter_map(|number| Some(self.waiters.get(number)?.client.id())).collect()
    }

    /// Lets a client wait whose call can't be granted now. `keys` are the present states of its keys, in the order of its rules.
    pub fn join<K: KeyState>(&mut self, waiter: Waiter<C>, keys: &[K]) {
        let (number, now) = (self.next_number, waiter.joined);
        self.next_number += 1;
        self.numbers.insert(waiter.client.id(), number);
        self.deadlines.insert((waiter.deadline, number));
        waiter.rules.iter().for_each(|rule| self.lines.begin(&waiter, rule));
        self.waiters.insert(number, waiter);
        if let Some(waiter) = self.waiters.get(&number) {
            for (rule, key) in waiter.rules.iter().zip(keys) {
                // If the key does not change any more, the client can be charged as of the moment at which its units were due.
                self.lines.of_key_mut(waiter.db, &rule.key).into_iter().for_each(|line| line.note(key, &rule.policy, now));
            }
        }
        if let Ok(Some(due)) = self.ask_more(number, keys, now, &mut FreeKeys::new(keys.len())) {
            self.sleep(number, keys, due);
            debug_assert_eq!(self.fault(), None);
            return;
        }
        // The caller's call was denied, so this is not expected. The next task answers the client.
        let Some((waiter, rule)) = self.waiters.get(&number).and_then(|waiter| Some((waiter, waiter.rules.first()?))) else {
            return;
        };
        if let Some(line) = self.lines.of_key_mut(waiter.db, &rule.key) {
            line.insert(number, waiter.id.as_ref());
            self.lines.wake(waiter.db, &rule.key, now);
        }
        debug_assert_eq!(self.fault(), None);
    }

    /// Which of its keys refuse a client because of their lines: it stands in the line, or an older client does. Empty if the
    /// client does not wait.
    pub fn refusals(&self, client: C::Id) -> Vec<bool> {
        self.numbers.get(&client).map_or_else(Vec::new, |&number| self.refusals_of(number))
    }

    fn refusals_of(&self, number: u64) -> Vec<bool> {
        let Some(waiter) = present(self.waiters.get(&number)) else { return Vec::new() };
        let line = |rule: &Rule| self.lines.of_key(waiter.db, &rule.key);
        waiter
            .rules
            .iter()
            .map(|rule| line(rule).is_some_and(|line| line.contains(number) || !line.is_first(number)))
            .collect()
    }

    /// Removes a client, if it waits. The lines in which it was the first are served now.
    pub fn leave(&mut self, client: C::Id, now: Instant) -> Option<Waiter<C>> {
        self.remove(*self.numbers.get(&client)?, now)
    }

    fn remove(&mut self, number: u64, now: Instant) -> Option<Waiter<C>> {
        let waiter = self.waiters.remove(&number)?;
        self.numbers.remove(&waiter.client.id());
        let answer = self.postponed.remove(&number).unwrap_or(waiter.deadline);
        self.deadlines.remove(&(answer, number));
        waiter.rules.iter().for_each(|rule| self.lines.end(number, &waiter, rule, now));
        if self.waiters.is_empty() {
            // While no client waits, steps of the clock go unnoticed.
            self.refused = Instant::MIN;
        }
        debug_assert_eq!(self.fault(), None);
        Some(waiter)
    }

    /// A call has changed the key. No waiting client is charged as of an earlier moment from now on, and the line of the key
    /// is served.
    pub fn changed(&mut self, db: i32, key: &[u8], now: Instant) {
        self.lines.of_key_mut(db, key).into_iter().for_each(Line::forget);
        self.lines.wake(db, key, now);
        debug_assert_eq!(self.fault(), None);
    }

    /// Sets the wake time of a key's line to now, because the server has deleted the key, or it may have changed in another
    /// way.
    pub fn wake(&mut self, db: i32, key: &[u8], now: Instant) {
        self.lines.of_key_mut(db, key).into_iter().for_each(|line| line.forget_unless_expired(now));
        self.lines.wake(db, key, now);
        debug_assert_eq!(self.fault(), None);
    }

    /// Sets the wake times of all lines to now, because any key may have changed.
    pub fn wake_all(&mut self, now: Instant) {
        self.lines.wake_all(|wake| wake.min(now));
        debug_assert_eq!(self.fault(), None);
    }

    /// Adjusts the waiting clients to a clock that was set forward by `by_us` microseconds, or back if that is negative. Deadlines
    /// move along, so that each client waits for as long as it would have otherwise, and all wake times become `now`.
    pub fn clock_stepped(&mut self, by_us: i64, now: Instant) {
        let moved = |at: Instant| Instant::saturating(i128::from(at.as_us()) + i128::from(by_us));
        for waiter in self.waiters.values_mut() {
            (waiter.joined, waiter.deadline) = (moved(waiter.joined), moved(waiter.deadline));
        }
        self.postponed.clear();
        self.deadlines = self.waiters.iter().map(|(&number, waiter)| (waiter.deadline, number)).collect();
        self.lines.wake_all(|_| now);
        self.refused = moved(self.refused).min(now);
        debug_assert_eq!(self.fault(), None);
    }

    /// When [`Self::next_task`] next returns a task; `None` if no client waits.
    pub fn next_wake(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        let wake = self.lines.next_wake().map(|(wake, _)| wake.max(self.retry()));
        wake.into_iter().chain(deadline).min()
    }
}
