//! Serves the lines: grants units in the order of arrival, and denies clients whose wait has ended.

use super::key::{ask_now, peek, Ask, KeyState, Refusal};
use super::line::{charge, present, Line, LineId};
use super::queues::{Queues, Task};
use super::waiter::{Claim, ClaimError, Client, Served, Waiter};
use crate::limiter::{Bytes, Decision, Instant, Span};

/// For this long, no line is served after the server has refused writes. A task is put off for the same time if the server is using
/// one of its keys.
const PAUSE: Span = Span::from_us(20_000);

/// What the keys of a client say when they are asked whether they grant its call.
enum Look {
    /// The client continues to wait.
    Wait,
    /// All keys grant the call. The client is charged as of these moments, one for each key.
    Grant(Vec<Instant>),
    /// The units of a key have become due, but after the client's deadline.
    Late,
}

/// Of the keys in whose lines a client does not stand: the key that makes the client wait longest.
struct Slowest<'k, K> {
    /// About how long, by [`Line::wait_among_others`].
    wait: Span,
    claim: &'k Claim,
    key: &'k K,
    /// When the client's units are due if no other client takes them.
    due: Instant,
    asked: Ask,
}

/// The keys that grant a call.
pub(super) struct FreeKeys {
    /// The latest moment at which one of these keys began to grant the call: see [`Self::add`].
    since: Instant,
    /// For each claim of the call: whether the client is charged as of `since`. If not, it is charged as of the moment of the
    /// answer.
    charged_when_due: Vec<bool>,
}

impl FreeKeys {
    /// Of this many keys, none is free yet.
    pub(super) fn new(keys: usize) -> Self {
        Self { since: Instant::MIN, charged_when_due: vec![false; keys] }
    }

    /// Adds the key of claim `index`. The key began to grant the call at `known`, the moment of [`Ask::Free`]; if that is `None`,
    /// at `computed`.
    fn add(&mut self, index: usize, claim: &Claim, known: Option<Instant>, computed: Instant) {
        self.since = self.since.max(known.unwrap_or(computed));
        if let Some(charged_when_due) = self.charged_when_due.get_mut(index) {
            *charged_when_due = known.is_some() && claim.policy.charges_when_due();
        }
    }

    /// The moments as of which the claims are charged, if the answer is sent at `now`.
    fn moments(self, now: Instant) -> Vec<Instant> {
        self.charged_when_due.into_iter().map(|when_due| if when_due { self.since } else { now }).collect()
    }
}

impl<C: Client> Queues<C> {
    /// Adds a waiting client. Its call can't be granted now. `keys` are its keys in their present state, in the order of its
    /// claims.
    pub fn join<K: KeyState>(&mut self, waiter: Waiter<C>, keys: &[K]) {
        let (number, now) = (self.next_number, waiter.joined);
        self.next_number += 1;
        self.numbers.insert(waiter.client.id(), number);
        self.deadlines.insert((waiter.deadline, number));
        waiter.claims.iter().for_each(|claim| self.lines.begin(&waiter, claim));
        self.waiters.insert(number, waiter);
        if let Some(waiter) = self.waiters.get(&number) {
            for (claim, key) in waiter.claims.iter().zip(keys) {
                // If the key does not change after this note, the client can be charged as of the moment at which its units were
                // due.
                self.lines.of_key_mut(waiter.db, &claim.key).into_iter().for_each(|line| line.note(key, &claim.policy, now));
            }
        }
        if let Ok(Some(due)) = self.ask_more(number, keys, now, &mut FreeKeys::new(keys.len())) {
            self.sleep(number, keys, due);
            debug_assert_eq!(self.fault(), None);
            return;
        }
        // All keys grant the call, or one key has an error. This is not expected, because the caller found that the call can't be
        // granted. The client joins the line of its first key, and the next task answers the client.
        let Some((waiter, claim)) = self.waiters.get(&number).and_then(|waiter| Some((waiter, waiter.claims.first()?)))
        else {
            return;
        };
        if let Some(line) = self.lines.of_key_mut(waiter.db, &claim.key) {
            line.insert(number, waiter.id.as_ref());
            self.lines.wake(waiter.db, &claim.key, now);
        }
        debug_assert_eq!(self.fault(), None);
    }

    /// What to do at `now`. If units are due and waits have ended, the units are granted first.
    pub fn next_task(&self, now: Instant) -> Option<Task> {
        let due = self.lines.next_wake().filter(|&(wake, _)| wake <= now && self.paused_until() <= now);
        match due {
            Some((_, id)) => self.task(Some(id), self.lines.get(id)?.next()?),
            None => self.next_timeout(now),
        }
    }

    /// The client whose wait ended first, if any has ended.
    pub fn next_timeout(&self, now: Instant) -> Option<Task> {
        let &(_, number) = self.deadlines.first().filter(|&&(deadline, _)| deadline <= now)?;
        self.task(None, number)
    }

    fn task(&self, line: Option<LineId>, number: u64) -> Option<Task> {
        let waiter = self.waiters.get(&number)?;
        Some(Task { line, number, db: waiter.db, keys: waiter.claims.iter().map(|claim| claim.key.clone()).collect() })
    }

    /// No line is served before this moment, because the server has refused writes.
    pub(super) fn paused_until(&self) -> Instant {
        self.refused.saturating_add(PAUSE)
    }

    /// Does a task. If the task has a line, grants units to the clients of the line, up to the first that must wait; but grants
    /// nothing unless the server may write (`may_grant`). If the task has no line, answers clients whose wait has ended. `keys` are
    /// the open keys of the task. Answers at most `most` clients. If more is to be done, [`Self::next_task`] returns the next task.
    pub fn serve<K: KeyState>(
        &mut self,
        task: &Task,
        keys: &mut [K],
        now: Instant,
        may_grant: bool,
        most: usize,
    ) -> Vec<Served<C, K::Error>> {
        let mut answers = Vec::new();
        match task.line {
            Some(id) if may_grant => self.grant(id, task, keys, now, most, &mut answers),
            // The waiting clients do not get the units that flow in while the server refuses writes.
            Some(_) => self.refused = now,
            None => self.time_out(task, keys, now, may_grant, most, &mut answers),
        }
        debug_assert_eq!(self.fault(), None);
        answers
    }

    /// Puts off a task, because the server is using one of its keys. The task is due again after `PAUSE`, or earlier if an event
    /// makes it due.
    pub fn postpone(&mut self, task: &Task, now: Instant) {
        let again_at = now.saturating_add(PAUSE);
        match task.line {
            Some(id) => self.lines.wake_at(id, again_at),
            None => {
                let Some(waiter) = present(self.waiters.get(&task.number)) else { return };
                let answered_at = self.postponed.insert(task.number, again_at).unwrap_or(waiter.deadline);
                self.deadlines.remove(&(answered_at, task.number));
                self.deadlines.insert((again_at, task.number));
            }
        }
        debug_assert_eq!(self.fault(), None);
    }

    /// The keys of `task` are not on this server any more: removes the clients of the task. Returns these clients in the order of
    /// arrival; the caller must answer them.
    pub fn dismiss(&mut self, task: &Task, now: Instant) -> Vec<C> {
        let line = task.line.and_then(|id| self.lines.get(id));
        let numbers = line.map_or_else(|| vec![task.number], Line::numbers);
        numbers.into_iter().filter_map(|number| Some(self.remove(number, now)?.client)).collect()
    }

    /// Whether `task` has the keys of a client.
    fn has_keys(&self, number: u64, task: &Task) -> bool {
        let has = |waiter: &Waiter<C>| waiter.db == task.db && waiter.claims.iter().map(|claim| &claim.key).eq(&task.keys);
        number == task.number || self.waiters.get(&number).is_some_and(has)
    }

    /// Grants units to the clients of a line, up to the first that must wait.
    fn grant<K: KeyState>(
        &mut self,
        id: LineId,
        task: &Task,
        keys: &mut [K],
        now: Instant,
        most: usize,
        answers: &mut Vec<Served<C, K::Error>>,
    ) {
        while let Some(number) = self.lines.get(id).and_then(Line::next) {
            if answers.len() >= most || !self.has_keys(number, task) {
                return self.lines.wake_at(id, now);
            }
            match self.look(number, keys, now) {
                Ok(Look::Wait) if self.lines.get_mut(id).is_some_and(|line| line.unmark_retry(number)) => {}
                Ok(Look::Wait) => return,
                looked => answers.extend(self.answer(number, keys, looked, now)),
            }
        }
    }

    /// Removes a client. Charges the client if all its keys grant its call; otherwise denies the call. After a grant, other calls
    /// with the same id become retries.
    fn answer<K: KeyState>(
        &mut self,
        number: u64,
        keys: &mut [K],
        looked: Result<Look, ClaimError<K::Error>>,
        now: Instant,
    ) -> Option<Served<C, K::Error>> {
        let rows = match looked {
            Ok(Look::Grant(moments)) => self.charge_all(number, keys, &moments, now),
            Ok(Look::Wait | Look::Late) => self.denial(number, keys, now),
            Err(error) => Err(error),
        };
        let waiter = self.remove(number, now)?;
        let granted = rows.as_ref().is_ok_and(|rows| rows.iter().all(|row| row.granted > 0));
        if let Some(call_id) = waiter.id.as_ref().filter(|_| granted) {
            for claim in &*waiter.claims {
                if self.lines.of_key_mut(waiter.db, &claim.key).is_some_and(|line| line.mark_retries(call_id)) {
                    self.lines.wake(waiter.db, &claim.key, now);
                }
            }
        }
        Some((waiter, rows))
    }

    /// Asks the keys of a client. If the client must wait, sets the wake times of the lines in which it is the first.
    fn look<K: KeyState>(&mut self, number: u64, keys: &[K], now: Instant) -> Result<Look, ClaimError<K::Error>> {
        let Some(waiter) = present(self.waiters.get(&number)) else { return Ok(Look::Wait) };
        let mut wait: Option<Instant> = None;
        let mut free = FreeKeys::new(keys.len());
        for (index, (claim, key)) in waiter.claims.iter().zip(keys).enumerate() {
            let line = self.lines.of_key_mut(waiter.db, &claim.key).filter(|line| line.contains(number));
            let Some(line) = line else { continue };
            let asked = if line.is_first(number) {
                line.ask(waiter, claim, key, self.refused, now)
            } else {
                // The client waits for an older one, unless the key remembers the id of its call.
                let wait = Ask::Wait { due: Instant::MAX, known: true };
                ask_now(waiter, claim, key, now).map(|asked| if asked == Ask::Held { asked } else { wait })
            };
            let asked = asked.map_err(|error| (index, error))?;
            if line.is_first(number) {
                line.note_asked(key, &claim.policy, now, asked);
            }
            match asked {
                Ask::Held => {}
                Ask::Wait { due, .. } => wait = wait.max(Some(due)),
                Ask::Free(known) => free.add(index, claim, known, line.due.max(self.refused).min(now)),
            }
        }
        let deadline = waiter.deadline;
        if wait.is_none() {
            wait = self.ask_more(number, keys, now, &mut free)?;
        }
        Ok(match wait {
            Some(due) => {
                self.sleep(number, keys, due);
                Look::Wait
            }
            None if free.since > deadline => Look::Late,
            None => Look::Grant(free.moments(now)),
        })
    }

    /// Asks the keys in whose lines a client does not stand. If any of these keys does not grant the call, the client joins the
    /// line of the key that makes it wait longest. Returns when to look at the client again; `None`: the client need not wait for
    /// these keys.
    pub(super) fn ask_more<K: KeyState>(
        &mut self,
        number: u64,
        keys: &[K],
        now: Instant,
        free: &mut FreeKeys,
    ) -> Result<Option<Instant>, ClaimError<K::Error>> {
        let Some(waiter) = present(self.waiters.get(&number)) else { return Ok(None) };
        let mut slowest: Option<Slowest<'_, K>> = None;
        for (index, (claim, key)) in waiter.claims.iter().zip(keys).enumerate() {
            let Some(line) = self.lines.of_key(waiter.db, &claim.key).filter(|line| !line.contains(number)) else {
                continue;
            };
            let asked = line.ask(waiter, claim, key, self.refused, now).map_err(|error| (index, error))?;
            let due = match asked {
                Ask::Held => continue,
                // If it is not known when the key began to grant the call, `free.since` stays as it is.
                Ask::Free(known) if line.is_first(number) => {
                    free.add(index, claim, known, Instant::MIN);
                    continue;
                }
                Ask::Free(_) => now,
                Ask::Wait { due, .. } => due,
            };
            let wait = line.wait_among_others(&claim.policy, due.since(now));
            if slowest.as_ref().is_none_or(|slowest| wait > slowest.wait) {
                slowest = Some(Slowest { wait, claim, key, due, asked });
            }
        }
        let Some(Slowest { claim, key, due, asked, .. }) = slowest else { return Ok(None) };
        let Some(line) = present(self.lines.of_key_mut(waiter.db, &claim.key)) else { return Ok(None) };
        line.insert(number, waiter.id.as_ref());
        if !line.is_first(number) {
            return Ok(Some(Instant::MAX));
        }
        line.note_asked(key, &claim.policy, now, asked);
        Ok(Some(due))
    }

    /// Sets the wake times of the lines in which a client is the first. `due` is when all its keys are expected to grant its call.
    /// If a key changes before `due`, [`Queues::changed`] or [`Queues::wake`] has the line of that key served.
    pub(super) fn sleep<K: KeyState>(&mut self, number: u64, keys: &[K], due: Instant) {
        let Some(waiter) = present(self.waiters.get(&number)) else { return };
        for (claim, key) in waiter.claims.iter().zip(keys) {
            let Some(id) = present(self.lines.id(waiter.db, &claim.key)) else { continue };
            // A line with retries is served at once, before its first client.
            if self.lines.get(id).is_some_and(|line| line.is_first(number) && line.next() == Some(number)) {
                self.lines.wake_at(id, due.min(key.expires().unwrap_or(Instant::MAX)));
            }
        }
    }

    /// Charges all claims of a client, each as of a moment of its own.
    fn charge_all<K: KeyState>(
        &mut self,
        number: u64,
        keys: &mut [K],
        moments: &[Instant],
        now: Instant,
    ) -> Result<Vec<Decision>, ClaimError<K::Error>> {
        let Some(waiter) = present(self.waiters.get(&number)) else { return Ok(Vec::new()) };
        for (index, (claim, key)) in waiter.claims.iter().zip(&*keys).enumerate() {
            // Without ids, a change lengthens a value by less than `Bytes::SHORT`. Records with ids are far shorter than the
            // longest value, unless a client has written them itself. So after this check, all claims can be charged.
            let len = key.stored(&claim.policy).map_err(|error| (index, error))?.map_or(0, <[u8]>::len) + Bytes::SHORT;
            if len > K::MAX_LEN {
                return Err((index, K::error(&claim.policy, Refusal::Overflow)));
            }
        }
        let mut rows = Vec::with_capacity(keys.len());
        for (index, ((claim, key), &at)) in waiter.claims.iter().zip(keys).zip(moments).enumerate() {
            let line = self.lines.of_key_mut(waiter.db, &claim.key);
            rows.push(charge(line, waiter, claim, key, at, now).map_err(|error| (index, error))?);
            // Other clients may stand in the line of this key, even if this client does not. If their policies differ from the
            // policy of this client, they may be due at another moment now.
            self.lines.wake(waiter.db, &claim.key, now);
        }
        Ok(rows)
    }

    /// Answers clients whose wait has ended: first the client of the task, then other clients with the same keys. A client whose
    /// units are free by now is granted them, even if its line has not been served since then. All other clients are denied.
    fn time_out<K: KeyState>(
        &mut self,
        task: &Task,
        keys: &mut [K],
        now: Instant,
        may_grant: bool,
        most: usize,
        answers: &mut Vec<Served<C, K::Error>>,
    ) {
        while let Some(&(_, number)) = self.deadlines.first().filter(|&&(deadline, _)| deadline <= now) {
            if answers.len() >= most || !self.has_keys(number, task) {
                return;
            }
            let looked = if may_grant { self.look(number, keys, now) } else { Ok(Look::Wait) };
            answers.extend(self.answer(number, keys, looked, now));
        }
    }

    /// See [`Waiter::deny`].
    fn denial<K: KeyState>(&self, number: u64, keys: &[K], now: Instant) -> Result<Vec<Decision>, ClaimError<K::Error>> {
        let Some(waiter) = present(self.waiters.get(&number)) else { return Ok(Vec::new()) };
        let decisions = waiter.claims.iter().zip(keys).enumerate().map(|(index, (claim, key))| {
            peek(key, &claim.policy, now, waiter.request(claim)).map_err(|error| (index, error))
        });
        let mut rows = decisions.collect::<Result<Vec<_>, _>>()?;
        waiter.deny(&self.refusals_of(number), &mut rows);
        Ok(rows)
    }
}
