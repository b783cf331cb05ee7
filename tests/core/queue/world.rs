//! Clients join, leave, reach their timeout and are granted, while the timer is late, keys are deleted or changed, limits
//! differ and writes are paused. In no case is a client overtaken, granted too early or forgotten. Random tests and a fuzz target
//! choose the events.

use std::sync::Arc;

use redis_rl::limiter::{Amount, Instant, Policy, Request, Span, Wait};
use redis_rl::queue::{Claim, Claims, Queues, Waiter};

use crate::key::Key;
use crate::model::{Form, Rule, Windows};

pub const MS: u64 = 1_000;
/// The most by which a grant may be late without delaying those after it.
const FORGIVEN: u64 = 100 * MS;
/// The most by which the queue may be late with the first client if a call under another limit wrote the record. The queue
/// then knows to a millisecond when the first client is due, and it charges a grant as of a time that is at most
/// [`FORGIVEN`] ago.
const NOTICED: Span = Span::from_us(FORGIVEN + MS);
/// The time after which a queue that found writes paused tries again.
const PAUSE: Span = Span::from_us(20 * MS);
/// Two keys of one database, and one of another.
const NAMES: [(i32, &[u8]); 3] = [(0, b"a"), (0, b"b"), (1, b"a")];

/// What happens.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A call under one of the rules, and how many microseconds it would wait.
    Call(usize, Amount, u64),
    /// A call with two keys, each under one of the rules, the units that it takes from each, and how many microseconds it would wait.
    CallBoth([(usize, u64); 2], u64),
    Leave(usize),
    Pass(u64),
    /// The timer fires, late by so many microseconds.
    Timer(u64),
    Delete,
    Expire(u64),
    /// A call that does not wait, under one of the rules.
    Act(usize, Amount),
    Pause(u64),
    WakeAll,
    /// The clock steps by so many microseconds.
    Step(i64),
    /// Another node now serves the key of the queue that is due.
    Dismiss,
}

/// A client that waits, as the world records it.
#[derive(Clone, Debug)]
struct Client {
    number: u32,
    /// The places of its keys, and what it takes from each.
    wants: Vec<(usize, Policy, Amount)>,
    deadline: Instant,
}

/// A key, and the times and units of its grants.
#[derive(Default)]
struct Place {
    key: Key,
    grants: Vec<(Instant, u64)>,
    /// Whether units were forced or refunded, the key was deleted or expired early, or the clock stepped.
    changed_by_hand: bool,
    /// The number of the first client, and the time at which a timer that was not late first found that it could be granted.
    grantable_since: Option<(u32, Instant)>,
}

/// The keys, the clients that wait for them, and the time.
pub struct World {
    rules: Vec<Rule>,
    most: usize,
    places: [Place; 3],
    pub queues: Queues<u32>,
    /// The clients that wait, in the order of arrival.
    waiting: Vec<Client>,
    pub now: Instant,
    /// When a timer last found writes paused.
    paused: Instant,
    next: u32,
}

impl World {
    /// `most`: how many clients the timer answers at once.
    pub fn new(rules: Vec<Rule>, most: usize, now: Instant) -> Self {
        let (places, queues, waiting) = Default::default();
        Self { rules, most, places, queues, waiting, now, paused: Instant::from_us(0), next: 0 }
    }

    /// Makes these events happen, each at one of the keys, and checks everything meanwhile and in the end.
    pub fn play(mut self, events: Vec<(usize, Event)>) {
        events.into_iter().for_each(|(at, event)| self.make(at, event));
        for place in &self.places {
            if self.rules.len() == 1 && !place.changed_by_hand {
                nothing_is_granted_twice(&self.rules[0], &place.grants);
            }
        }
        // In the end each client is answered, and all queues are empty.
        while let Some(wakes) = self.queues.next_wake() {
            self.now = self.now.max(wakes);
            self.fire(true);
        }
        assert!(self.queues.is_empty() && self.waiting.is_empty());
        assert!(!NAMES.iter().any(|(db, name)| self.queues.has_waiters(*db, name)));
    }

    /// Makes an event happen at a key.
    pub fn make(&mut self, at: usize, event: Event) {
        let (db, name) = NAMES[at];
        match event {
            Event::Call(rule, amount, patience) => {
                let policy = self.rules[rule % self.rules.len()].policy();
                self.call(vec![(at, policy, amount)], Span::from_us(patience));
            }
            Event::CallBoth(wants, patience) => {
                // The first two keys are in one database.
                let want = |(at, &(rule, units)): (usize, &(usize, u64))| {
                    (at, self.rules[rule % self.rules.len()].policy(), Amount::Cost(units))
                };
                let wants = wants.iter().enumerate().map(want).collect();
                self.call(wants, Span::from_us(patience));
            }
            Event::Leave(index) => {
                if !self.waiting.is_empty() {
                    let client = self.waiting.remove(index % self.waiting.len());
                    let left = self.queues.leave(client.number, self.now).expect("it waits");
                    assert_eq!((left.client, left.deadline), (client.number, client.deadline));
                    assert!(self.queues.leave(client.number, self.now).is_none());
                }
            }
            Event::Pass(us) => self.pass(us, true),
            Event::Pause(us) => self.pass(us, false),
            Event::Timer(late) => {
                if let Some(wakes) = self.queues.next_wake() {
                    self.now = self.now.max(wakes).saturating_add(Span::from_us(late));
                    self.fire(true);
                }
            }
            Event::Delete => {
                self.places[at].key = Key::default();
                self.places[at].changed_by_hand = true;
                self.queues.wake(db, name, self.now);
            }
            Event::Expire(us) => {
                let sooner = self.now.saturating_add(Span::from_us(us));
                if let Some(expires) = &mut self.places[at].key.expires {
                    *expires = sooner.min(*expires);
                    self.places[at].changed_by_hand = true;
                    self.queues.wake(db, name, self.now);
                }
            }
            Event::Act(rule, amount) => self.act(at, rule, amount),
            Event::WakeAll => self.queues.wake_all(self.now),
            Event::Step(us) => self.step(us),
            Event::Dismiss => {
                if let Some(task) = self.queues.next_task(self.now) {
                    let gone = self.queues.dismiss(&task, self.now);
                    assert!(!gone.is_empty());
                    self.waiting.retain(|client| !gone.contains(&client.number));
                    assert_eq!(self.queues.len(), self.waiting.len());
                }
            }
        }
    }

    /// The times and units of the grants of a key.
    pub fn grants(&self, at: usize) -> &[(Instant, u64)] {
        &self.places[at].grants
    }

    /// A place, after its key has been deleted if it has expired.
    fn place(&mut self, at: usize) -> &mut Place {
        let place = &mut self.places[at];
        place.key.expire(self.now);
        place
    }

    /// A call whose keys are at these places.
    pub fn call(&mut self, wants: Vec<(usize, Policy, Amount)>, patience: Span) {
        let (now, number) = (self.now, self.next);
        if wants.iter().any(|(_, policy, _)| policy.is_too_far_ahead(now)) {
            return;
        }
        let mut granted = true;
        for &(at, policy, amount) in &wants {
            let (db, name) = NAMES[at];
            let queued = self.queues.has_waiters(db, name);
            let Ok(decision) = self.place(at).key.peek(&policy, now, Request::now(amount)) else { return };
            let Wait::For(need) = decision.wait else { return };
            granted &= decision.granted > 0 && !queued;
            if need > patience {
                return;
            }
        }
        if granted {
            for (at, policy, amount) in wants {
                let place = &mut self.places[at];
                let decided = place.key.decide(&policy, now, Request::now(amount));
                let outcome = decided.expect("the same decision as the peek");
                place.key.apply_at(&outcome.change, &outcome.bytes, now);
                place.grants.push((now, outcome.decision.granted));
                let (db, name) = NAMES[at];
                self.queues.changed(db, name, now);
            }
            return;
        }
        let deadline = now.saturating_add(patience);
        self.next += 1;
        let rule = |&(at, policy, amount): &(usize, Policy, Amount)| Claim {
            key: NAMES[at].1.into(),
            policy,
            amount,
            names_amount: true,
        };
        let claims =
            if wants.len() == 1 { Claims::One(rule(&wants[0])) } else { Claims::All(wants.iter().map(rule).collect()) };
        let waiter = Waiter { client: number, db: NAMES[wants[0].0].0, claims, id: None, joined: now, deadline };
        let keys = self.take(wants.iter().map(|want| want.0));
        self.queues.join(waiter, &keys);
        self.put(wants.iter().map(|want| want.0), keys);
        self.waiting.push(Client { number, wants, deadline });
        assert!(self.queues.next_wake().is_some_and(|wakes| wakes <= deadline));
    }

    fn take(&mut self, places: impl Iterator<Item = usize>) -> Vec<Key> {
        places.map(|at| std::mem::take(&mut self.place(at).key)).collect()
    }

    fn put(&mut self, places: impl Iterator<Item = usize>, keys: Vec<Key>) {
        places.zip(keys).for_each(|(at, key)| self.places[at].key = key);
    }

    fn act(&mut self, at: usize, rule: usize, amount: Amount) {
        let (now, (db, name)) = (self.now, NAMES[at]);
        let policy = self.rules[rule % self.rules.len()].policy();
        let place = self.place(at);
        let Ok(outcome) = place.key.decide(&policy, now, Request::now(amount)) else { return };
        place.key.apply_at(&outcome.change, &outcome.bytes, now);
        place.changed_by_hand = true;
        self.queues.changed(db, name, now);
    }

    /// Lets time pass. The timer fires at each time that it is set for.
    fn pass(&mut self, us: u64, may_grant: bool) {
        let to = self.now.saturating_add(Span::from_us(us));
        while let Some(wakes) = self.queues.next_wake().filter(|&wakes| wakes <= to) {
            self.now = self.now.max(wakes);
            self.fire(may_grant);
        }
        self.now = to;
    }

    fn step(&mut self, us: i64) {
        let moved = |at: Instant| Instant::from_us(at.as_us().saturating_add(us));
        self.now = moved(self.now);
        self.paused = moved(self.paused);
        for place in &mut self.places {
            place.grantable_since = None;
            place.changed_by_hand = true;
        }
        self.waiting.iter_mut().for_each(|client| client.deadline = moved(client.deadline));
        self.queues.clock_stepped(us, self.now);
    }

    fn fire(&mut self, may_grant: bool) {
        let (now, most) = (self.now, self.most);
        let late = self.queues.next_wake().map_or(Span::ZERO, |wakes| now.since(wakes));
        for round in 0.. {
            let Some(task) = self.queues.next_task(now) else { break };
            assert!(round < 10_000, "the timer fires again and again without an end");
            let place = |name: &Arc<[u8]>| NAMES.iter().position(|&known| known == (task.db, &**name)).expect("a known key");
            let places: Vec<usize> = task.keys.iter().map(place).collect();
            let mut lines: Vec<_> = places.iter().map(|&at| self.queues.line(NAMES[at].0, NAMES[at].1)).collect();
            let mut keys = self.take(places.iter().copied());
            let answers = self.queues.serve(&task, &mut keys, now, may_grant, most);
            self.put(places.iter().copied(), keys);
            for (waiter, answer) in answers {
                let index =
                    self.waiting.iter().position(|client| client.number == waiter.client).expect("a client that waits");
                let client = self.waiting.remove(index);
                lines.iter_mut().for_each(|line| line.retain(|&number| number != client.number));
                let Ok(rows) = answer else { continue };
                if rows.iter().all(|row| row.granted > 0) {
                    assert!(may_grant, "granted in a pause");
                    assert!(now <= client.deadline.saturating_add(late), "{client:?} was granted too late, at {now:?}");
                    let passed = lines.iter().flatten().find(|&&number| number < client.number);
                    assert_eq!(passed, None, "{client:?} passed another client");
                    for (&(at, ..), row) in client.wants.iter().zip(&rows) {
                        self.places[at].grants.push((now, row.granted));
                    }
                } else {
                    assert!(client.deadline <= now, "{client:?} was denied before its timeout, at {now:?}");
                    assert!(rows.iter().any(|row| row.wait >= Wait::For(Span::from_us(MS))));
                }
            }
        }
        assert_eq!(self.queues.len(), self.waiting.len());
        assert!(!self.waiting.is_empty() || self.queues.next_wake().is_none());
        if !may_grant {
            self.paused = now;
            self.places.iter_mut().for_each(|place| place.grantable_since = None);
        } else {
            (0..NAMES.len()).for_each(|at| self.no_waiter_is_forgotten(at, late));
        }
    }

    /// Checks the state right after the timer: no client's timeout is over, the timer is set for the next event, and the first
    /// client of the line can't be granted if the key is its only one.
    fn no_waiter_is_forgotten(&mut self, at: usize, late: Span) {
        let (now, wakes) = (self.now, self.queues.next_wake());
        // Nothing tells a queue when a pause ends. It tries again a little later.
        let after_pause = wakes.is_some_and(|wakes| wakes <= self.paused.saturating_add(PAUSE));
        let exact = self.rules.len() == 1 && !after_pause;
        for client in &self.waiting {
            assert!(now < client.deadline && wakes.is_some_and(|wakes| wakes <= client.deadline), "{client:?}");
        }
        let first = self.queues.line(NAMES[at].0, NAMES[at].1).first().copied();
        let first = self.waiting.iter().find(|client| Some(client.number) == first).cloned();
        let place = self.place(at);
        let Some(first) = first.filter(|client| client.wants.len() == 1) else { return };
        let (_, policy, amount) = first.wants[0];
        let Ok(decision) = place.key.peek(&policy, now, Request::now(amount)) else { return };
        let wakes = wakes.expect("a time, as a client waits");
        if decision.granted > 0 {
            assert!(!exact, "{first:?} could be granted at {now:?}");
            // Units that were used under another limit may become free a little earlier than the wait said, and the line
            // gets no notice when a pause ends.
            let since = place.grantable_since.filter(|&(number, _)| number == first.number && late == Span::ZERO);
            let (_, since) = *place.grantable_since.insert(since.unwrap_or((first.number, now)));
            assert!(wakes <= since.saturating_add(NOTICED), "{first:?} could be granted since {since:?}");
            return;
        }
        place.grantable_since = None;
        let Wait::For(wait) = decision.wait else { panic!("{first:?} can never be granted") };
        let due = now.saturating_add(wait).min(place.key.expires.unwrap_or(Instant::MAX));
        assert!(!exact || wakes <= due, "{first:?} is due at {due:?}, before the timer");
    }
}

/// Checks that no stretch of time holds more than the algorithm allows, apart from the compensated lateness of the timer.
fn nothing_is_granted_twice(rule: &Rule, grants: &[(Instant, u64)]) {
    let (limit, period, capacity) = (u128::from(rule.limit), u128::from(rule.period), u128::from(rule.capacity()));
    let mut window = Instant::from_us(0);
    for (index, &(from, _)) in grants.iter().enumerate() {
        if let Form::Fixed { windows } = rule.form {
            // The windows are consecutive. Each is checked once, from its first grant on.
            if from < window {
                continue;
            }
            let (from, period) = (from.as_us(), period as i64);
            window = Instant::from_us(match windows {
                Windows::FirstCall => from + period,
                Windows::Align(offset) => from - (from - offset).rem_euclid(period) + period,
                Windows::Until(time) if from < time => time.min(from + period),
                Windows::Until(time) => from - (from - time).rem_euclid(period) + period,
            });
        }
        let mut total = 0;
        for &(to, units) in &grants[index..] {
            total += u128::from(units);
            let passed = u128::from(to.since(from).as_us());
            let most = match rule.form {
                Form::Fixed { .. } if to >= window => break,
                Form::Slide { .. } if passed >= period => break,
                Form::Fixed { .. } | Form::Slide { .. } => limit,
                Form::Bucket { step: true, .. } => capacity + (passed + u128::from(FORGIVEN)).div_ceil(period) * limit,
                _ => capacity + (passed + u128::from(FORGIVEN)) * limit / period,
            };
            assert!(total <= most, "{total} of {most} from {from:?} to {to:?}");
        }
    }
}
