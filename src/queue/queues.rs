//! All waiting clients, and what changes their lines: clients that join and leave, changed keys, steps of the clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::line::{present, Line, LineId, Lines};
use super::waiter::{Claim, Client, Waiter};
use crate::limiter::Instant;

/// What to do next: [`Queues::next_task`] returns it, and [`Queues::serve`] does it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The line to serve; `None`: the client's wait has ended.
    pub(super) line: Option<LineId>,
    /// The number of the client whose keys are needed.
    pub(super) number: u64,
    /// The database of the keys.
    pub db: i32,
    /// The keys that [`Queues::serve`] needs, in the order of the client's claims.
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

/// Whether calls wait for a key, and whether another call on it must stay behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiters {
    /// No waiting call has a claim for the key.
    None,
    /// Waiting calls have a claim for the key, but none stands in its line. If the call changes the key, [`Queues::changed`]
    /// must be called.
    Elsewhere,
    /// Clients stand in the line of the key, so the call must not take units. If the call changes the key in another way,
    /// [`Queues::changed`] must be called, too.
    InLine,
}

/// All waiting clients, and the lines in which they stand.
#[derive(Debug)]
pub struct Queues<C: Client> {
    /// The clients by their numbers, in the order of arrival.
    pub(super) waiters: BTreeMap<u64, Waiter<C>>,
    /// The number of each client.
    pub(super) numbers: HashMap<C::Id, u64>,
    /// When each client is answered if its units are not granted before: when its wait ends, or the moment in [`Self::postponed`].
    pub(super) deadlines: BTreeSet<(Instant, u64)>,
    /// The clients whose wait has ended while the server was using one of their keys, and when they are answered.
    pub(super) postponed: HashMap<u64, Instant>,
    pub(super) lines: Lines,
    /// The number of the next client.
    pub(super) next_number: u64,
    /// When the server last refused writes. No client is charged as of an earlier moment.
    pub(super) refused: Instant,
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

    /// Whether calls wait for this key, and whether a call that does not wait itself must stay behind them.
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

    /// For each claim of a client: whether the client must wait for the key. That is so if the client stands in the line of the key,
    /// or if an older client stands there. Empty if the client does not wait.
    pub fn refusals(&self, client: C::Id) -> Vec<bool> {
        self.numbers.get(&client).map_or_else(Vec::new, |&number| self.refusals_of(number))
    }

    pub(super) fn refusals_of(&self, number: u64) -> Vec<bool> {
        let Some(waiter) = present(self.waiters.get(&number)) else { return Vec::new() };
        let line = |claim: &Claim| self.lines.of_key(waiter.db, &claim.key);
        waiter
            .claims
            .iter()
            .map(|claim| line(claim).is_some_and(|line| line.contains(number) || !line.is_first(number)))
            .collect()
    }

    /// Removes a client, if it waits. The lines in which it was the first are served now.
    pub fn leave(&mut self, client: C::Id, now: Instant) -> Option<Waiter<C>> {
        self.remove(*self.numbers.get(&client)?, now)
    }

    pub(super) fn remove(&mut self, number: u64, now: Instant) -> Option<Waiter<C>> {
        let waiter = self.waiters.remove(&number)?;
        self.numbers.remove(&waiter.client.id());
        let answered_at = self.postponed.remove(&number).unwrap_or(waiter.deadline);
        self.deadlines.remove(&(answered_at, number));
        waiter.claims.iter().for_each(|claim| self.lines.end(number, &waiter, claim, now));
        if self.waiters.is_empty() {
            // While no client waits, steps of the clock go unnoticed. After such a step, `refused` would mean nothing.
            self.refused = Instant::MIN;
        }
        debug_assert_eq!(self.fault(), None);
        Some(waiter)
    }

    /// A call has changed the key. From now on, no client is charged as of a moment before this change, and the line of the key is
    /// served.
    pub fn changed(&mut self, db: i32, key: &[u8], now: Instant) {
        self.lines.of_key_mut(db, key).into_iter().for_each(Line::forget);
        self.lines.wake(db, key, now);
        debug_assert_eq!(self.fault(), None);
    }

    /// Sets the wake time of a key's line to now, because the server has deleted the key, or the key may have changed in another
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

    /// Adjusts the waiting clients to a clock that was set forward by `by_us` microseconds, or back if `by_us` is negative.
    /// Deadlines move by the same step, so the step does not change how long each client waits. All wake times become `now`.
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
        let wake = self.lines.next_wake().map(|(wake, _)| wake.max(self.paused_until()));
        wake.into_iter().chain(deadline).min()
    }
}
