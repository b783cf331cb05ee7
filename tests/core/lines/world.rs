//! A world in which random clients call random keys, with one rule or several, and wait in lines. A virtual clock, no server; the
//! decisions and the lines are those of the module's own core.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use fastrand::Rng;
use redis_rl::limiter::{
    pause, settle, Amount, Bytes, Change, Decision, Id, Instant, Kind, Policy, PolicyOption, Quota, Request, Span, Wait,
};
use redis_rl::queue::{Claim, Claims, Queues, Waiter, Waiters};

use crate::key::Key;

const MS: u64 = 1_000;
/// The most by which a grant may be late without delaying those after it.
const FORGIVEN: u64 = 100 * MS;
/// The time after which a line that found writes refused is served again.
const SERVED_AGAIN: Span = Span::from_us(20 * MS);
/// The most by which a line may be late if the record was written under another policy.
const NOTICED: Span = Span::from_us(FORGIVEN + MS);

/// What one call takes from one key.
#[derive(Clone, Copy, Debug)]
struct Want {
    key: usize,
    policy: Policy,
    amount: Amount,
}

/// A call that waits, as the world records it.
#[derive(Clone, Debug)]
struct Call {
    wants: Vec<Want>,
    id: Option<Arc<[u8]>>,
    deadline: Instant,
}

impl Call {
    fn request(&self, want: &Want) -> Request<'_> {
        Request { id: self.id.as_deref().and_then(Id::new), ..Request::now(want.amount) }
    }
}

/// What a world is like.
#[derive(Clone, Debug)]
struct Shape {
    keys: usize,
    /// How many clients may wait at once.
    clients: usize,
    /// The most rules of a call.
    rules: usize,
    /// The longest wait.
    patience_us: u64,
    /// How far the clock goes in a step.
    pace_us: u64,
    /// Whether callers of one key differ in their limits.
    mixed: bool,
    /// Whether keys are deleted, expire early or are given foreign values, and whether units are forced or given back.
    meddled: bool,
    /// Whether the server refuses writes at times.
    refusing: bool,
    /// How many clients the timer answers at once.
    most: usize,
    /// How late the timer may be.
    late_us: u64,
    /// How long periods are.
    slowness: u64,
    /// Whether the clock jumps to the next task in some steps.
    jumps: bool,
    /// How many steps are made.
    steps: u64,
}

impl Shape {
    fn new(rng: &mut Rng) -> Self {
        let large = rng.u8(..32) == 0;
        let keys = if large { rng.usize(500..3_000) } else { rng.usize(1..9) };
        Self {
            keys,
            clients: if large { rng.usize(1_000..4_000) } else { rng.usize(1..40) },
            rules: rng.usize(1..=4.min(keys)),
            patience_us: *rng.choice(&[50 * MS, 3_000 * MS, 600_000 * MS]).expect("a choice"),
            pace_us: if large { 20 } else { *rng.choice(&[500, 20 * MS]).expect("a choice") },
            mixed: rng.u8(..4) == 0,
            meddled: rng.bool(),
            refusing: rng.u8(..4) == 0,
            most: if rng.bool() { 1_000 } else { rng.usize(1..4) },
            late_us: *rng.choice(&[0, 2 * MS, 90 * MS]).expect("a choice"),
            slowness: if large { 30 } else { 1 },
            jumps: !large,
            steps: if large { 60_000 } else { 5_000 },
        }
    }
}

/// The units that a key has granted, to check what its policy promises.
#[derive(Default)]
struct Granted {
    /// The units of GCRA and BUCKET that have not drained, times the period, and the time of the last grant.
    level: u128,
    last: Option<Instant>,
    /// The times and units of SLIDE's window.
    window: VecDeque<(Instant, u64)>,
}

impl Granted {
    fn note(&mut self, policy: &Policy, now: Instant, units: u64) -> Result<(), String> {
        let (limit, period) = (u128::from(policy.limit()), policy.period());
        let plain = Quota::new(policy.limit(), period).and_then(|quota| policy.kind().policy(quota));
        match policy.kind() {
            // `STEP` gives the tokens of a period at once.
            Kind::Bucket if Some(*policy) != plain => {}
            Kind::Gcra | Kind::Bucket => {
                let passed = u128::from(self.last.replace(now).map_or(0, |last| now.since(last).as_us()));
                self.level = self.level.saturating_sub(passed * limit) + u128::from(units) * u128::from(period.as_us());
                let most = limit * u128::from(period.as_us()) + limit * u128::from(FORGIVEN);
                if self.level > most {
                    return Err(format!("the level is {} of {most}", self.level));
                }
            }
            Kind::Slide => {
                self.window.push_back((now, units));
                while self.window.front().is_some_and(|&(at, _)| now.since(at) >= period) {
                    self.window.pop_front();
                }
                let sum: u64 = self.window.iter().map(|&(_, units)| units).sum();
                if sum > policy.limit() {
                    return Err(format!("{sum} units of {} are in a window", policy.limit()));
                }
            }
            Kind::Fixed | Kind::Lease => {}
        }
        Ok(())
    }
}

/// The name of a key.
fn name(key: usize) -> [u8; 4] {
    (key as u32).to_le_bytes()
}

/// A charge: when it was made, the key, and a hash of what the key holds afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Charge {
    at: Instant,
    key: usize,
    holds: u64,
}

/// Counts of what has happened, so that a test can see that it tested something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Steps.
    pub steps: u64,
    /// Calls with several keys that waited and were granted.
    pub granted: u64,
    /// Calls with several keys that waited and were denied.
    pub denied: u64,
    /// The most clients that waited at once.
    pub most_waiting: usize,
    /// Calls that stood in two lines or more at once.
    pub in_several_lines: u64,
    /// Peeks and denied calls on keys that waiting calls have a rule for, in a world in which these are made.
    pub asked: u64,
    /// Pauses that were set, lengthened or ended by a command while clients stood in the key's line.
    pub paused: u64,
}

/// The keys, the clients that wait for them, and the time.
pub struct World {
    shape: Shape,
    rng: Rng,
    now: Instant,
    keys: Vec<Key>,
    /// Each key's own policy.
    policies: Vec<Policy>,
    granted: Vec<Granted>,
    queues: Queues<u32>,
    /// The calls that wait, by their numbers in the order of arrival.
    waiting: BTreeMap<u32, Call>,
    next: u32,
    /// Ids that were granted units, and the keys that granted them.
    held: Vec<(Arc<[u8]>, Vec<usize>)>,
    held_by: HashSet<(Arc<[u8]>, usize)>,
    refused_until: Instant,
    /// Since when a call could be granted, in a world in which lines may be late.
    grantable_since: HashMap<u32, Instant>,
    /// The keys that the present step has changed.
    touched: Vec<usize>,
    /// All charges.
    charges: Vec<Charge>,
    /// Where peeks and denied calls come from; `None`: there are none.
    asking: Option<Rng>,
    /// Where pauses come from; `None`: there are none.
    pausing: Option<Rng>,
    /// When the last pause of each key ends.
    pauses: Vec<Instant>,
    counts: Counts,
}

impl World {
    /// The world of a seed; with `asking`, peeks and denied calls are made in it, too.
    fn new(seed: u64, asking: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let shape = Shape::new(&mut rng);
        let policies = (0..shape.keys).map(|_| Self::policy(&mut rng, shape.slowness)).collect();
        Self {
            rng,
            now: Instant::from_us(1_760_000_000_000_000),
            keys: (0..shape.keys).map(|_| Key::default()).collect(),
            policies,
            granted: (0..shape.keys).map(|_| Granted::default()).collect(),
            queues: Queues::default(),
            waiting: BTreeMap::new(),
            next: 0,
            held: Vec::new(),
            held_by: HashSet::new(),
            refused_until: Instant::from_us(0),
            grantable_since: HashMap::new(),
            touched: Vec::new(),
            charges: Vec::new(),
            asking: asking.then(|| Rng::with_seed(!seed)),
            pausing: (seed % 3 == 2).then(|| Rng::with_seed(seed.reverse_bits())),
            pauses: vec![Instant::MIN; shape.keys],
            counts: Counts::default(),
            shape,
        }
    }

    fn policy(rng: &mut Rng, slowness: u64) -> Policy {
        let kind = *rng.choice(Kind::ALL).expect("a choice");
        let limit = if rng.bool() { rng.u64(1..4) } else { rng.u64(1..30) };
        let period = Span::from_us(slowness * MS * if rng.bool() { rng.u64(1..50) } else { rng.u64(1..3_000) });
        let policy = kind.policy(Quota::new(limit, period).expect("a quota")).expect("a policy");
        match kind {
            Kind::Bucket if rng.u8(..4) == 0 => policy.with(PolicyOption::Step),
            Kind::Slide if rng.u8(..4) == 0 => policy.with(PolicyOption::Segments(rng.u64(1..20))),
            Kind::Fixed if rng.u8(..4) == 0 => policy.with(PolicyOption::Align(0)),
            _ => policy,
        }
    }

    /// Plays the world of a seed twice, with and without peeks and denied calls. These change no charge.
    ///
    /// # Errors
    /// The first finding.
    pub fn run(seed: u64) -> Result<Counts, String> {
        let (counts, charges) = Self::play(seed, false)?;
        let (asked, others) = Self::play(seed, true)?;
        let differs = charges.iter().zip(&others).find(|(one, other)| one != other);
        if differs.is_some() || charges.len() != others.len() {
            let lengths = (charges.len(), others.len());
            return Err(format!("seed {seed}: peeks and denied calls change a charge: {differs:?} of {lengths:?}"));
        }
        Ok(Counts { asked: asked.asked, ..counts })
    }

    /// Makes all steps, and then lets time pass until all calls are answered.
    fn play(seed: u64, asking: bool) -> Result<(Counts, Vec<Charge>), String> {
        let mut world = Self::new(seed, asking);
        let mut end = || {
            for _ in 0..world.shape.steps {
                world.step()?;
            }
            world.end()
        };
        end().map_err(|text| format!("seed {seed}, step {}: {text}\n{:?}", world.counts.steps, world.shape))?;
        Ok((world.counts, world.charges))
    }

    /// Makes one random step, and checks everything that it may have changed.
    ///
    /// # Errors
    /// The first finding.
    fn step(&mut self) -> Result<(), String> {
        self.counts.steps += 1;
        self.touched.clear();
        self.ask();
        self.pause()?;
        let act = self.rng.u8(..100);
        match act {
            0..=39 => self.arrive()?,
            40..=44 => self.disconnect(),
            45..=52 => self.release(),
            53..=56 if self.shape.meddled => self.meddle(),
            57 if self.shape.refusing => {
                self.refused_until = self.now.saturating_add(Span::from_us(self.rng.u64(..100 * MS)));
            }
            58 => self.queues.wake_all(self.now),
            59..=69 if self.shape.jumps => {
                if let Some(wake) = self.queues.next_wake() {
                    let late = self.rng.u64(..=self.shape.late_us);
                    self.now = self.now.max(wake).saturating_add(Span::from_us(late));
                }
            }
            _ => {
                // The timer fires at each moment that it is set for, or a little later.
                let to = self.now.saturating_add(Span::from_us(self.rng.u64(..=self.shape.pace_us)));
                while let Some(wake) = self.queues.next_wake().filter(|&wake| wake <= to) {
                    let late = if self.rng.bool() { 0 } else { self.rng.u64(..=self.shape.late_us) };
                    self.now = self.now.max(wake).saturating_add(Span::from_us(late));
                    self.fire()?;
                }
                self.now = self.now.max(to);
            }
        }
        self.fire()?;
        self.check()
    }

    /// Lets time pass until all calls are answered.
    ///
    /// # Errors
    /// If a client or a line is left.
    fn end(&mut self) -> Result<(), String> {
        while let Some(wake) = self.queues.next_wake() {
            self.now = self.now.max(wake);
            self.fire()?;
        }
        let lines = (0..self.keys.len()).filter(|&key| self.queues.has_waiters(0, &name(key))).count();
        if lines > 0 || !self.waiting.is_empty() || !self.queues.is_empty() {
            return Err(format!("in the end {lines} lines and {} clients are left", self.waiting.len()));
        }
        Ok(())
    }

    /// Makes peeks and denied calls: they ask keys and lines, and change nothing.
    fn ask(&mut self) {
        let Some(mut rng) = self.asking.take() else { return };
        for _ in 0..rng.u8(..3) {
            let key = rng.usize(..self.keys.len());
            let amount = Amount::Cost(rng.u64(1..=self.policies[key].limit()));
            let waiters = self.queues.waiters(0, &name(key));
            self.counts.asked += u64::from(waiters == Waiters::Elsewhere);
            self.expire(key);
            if let Ok(view) = self.policies[key].view(self.keys[key].value.as_deref(), self.now) {
                let _ = view.peek(Request::now(amount));
            }
        }
        self.asking = Some(rng);
    }

    /// Sets, lengthens or ends the pause of a key.
    fn pause(&mut self) -> Result<(), String> {
        let Some(rng) = &mut self.pausing else { return Ok(()) };
        if rng.u8(..10) > 0 || self.now < self.refused_until {
            return Ok(());
        }
        let index = rng.usize(..self.keys.len());
        let longest = if rng.bool() { 20 * MS } else { self.policies[index].period().as_us() * 2 };
        let length = Span::from_us(if rng.u8(..4) == 0 { 0 } else { rng.u64(MS..=longest.max(MS)) });
        self.expire(index);
        let (key, mut bytes) = (&mut self.keys[index], Bytes::default());
        let Ok((rest, change)) = pause(key.value.as_deref(), key.expires, self.now, length, &mut bytes) else {
            return Ok(());
        };
        let (before, end) = (self.pauses[index], self.now.saturating_add(length));
        let after = if length == Span::ZERO { before.min(self.now) } else { before.max(end) };
        if rest != after.since(self.now) {
            return Err(format!("the pause of key {index} lasts {rest:?}, and not until {after:?}"));
        }
        self.pauses[index] = after;
        if key.apply_at(&change, &bytes, self.now) {
            self.counts.paused += u64::from(self.queues.has_waiters(0, &name(index)));
            self.queues.changed(0, &name(index), self.now);
            self.touched.push(index);
        }
        Ok(())
    }

    fn wants(&mut self) -> Vec<Want> {
        let count = self.rng.usize(1..=self.shape.rules);
        let mut keys: Vec<usize> = (0..count).map(|_| self.rng.usize(..self.keys.len())).collect();
        if self.rng.u8(..4) == 0 {
            // Many calls share a few keys.
            keys[0] = self.rng.usize(..self.keys.len().min(2));
        }
        let mut seen = HashSet::new();
        keys.retain(|key| seen.insert(*key));
        let want = |key: usize| {
            let mut policy = self.policies[key];
            if self.shape.mixed && self.rng.u8(..4) == 0 {
                let limit = self.rng.u64(1..30);
                let quota = Quota::new(limit, policy.period()).expect("a quota");
                policy = policy.kind().policy(quota).expect("a policy");
            }
            if policy.kind() == Kind::Fixed && self.shape.mixed && self.rng.bool() {
                let ahead = Span::from_us(self.rng.u64(..policy.period().as_us()));
                policy = policy.with(PolicyOption::Until(self.now.saturating_add(ahead)));
            }
            let units = if self.rng.bool() { 1 } else { self.rng.u64(1..=policy.limit()) };
            let upto = count == 1 && policy.kind() != Kind::Lease && self.rng.u8(..4) == 0;
            Want { key, policy, amount: if upto { Amount::UpTo(units) } else { Amount::Cost(units) } }
        };
        keys.into_iter().map(want).collect()
    }

    /// A call arrives. It is granted, denied, or waits, as the commands of the module decide.
    fn arrive(&mut self) -> Result<(), String> {
        let wants = self.wants();
        let leases = wants.iter().any(|want| want.policy.kind() == Kind::Lease);
        let id = (leases || self.rng.u8(..4) == 0).then(|| {
            // Some ids are used again, by calls that wait or that were granted.
            let number = if self.rng.u8(..8) == 0 { self.rng.u32(..=self.next) } else { self.next };
            Arc::from(number.to_le_bytes())
        });
        let patience = Span::from_us(self.rng.u64(1..=self.shape.patience_us));
        let call = Call { wants, id, deadline: self.now.saturating_add(patience) };
        let number = self.next;
        self.next += 1;
        let (mut granted, mut hopeless) = (true, false);
        for want in &call.wants {
            self.expire(want.key);
            let key = &self.keys[want.key];
            let Ok(view) = want.policy.view(key.value.as_deref(), self.now) else { return Ok(()) };
            let request = call.request(want);
            if let Some(held) = request.id.and_then(|id| view.held(id)) {
                if want.policy.kind() == Kind::Lease && want.amount != Amount::Cost(held) {
                    return Ok(());
                }
                continue;
            }
            let Ok(decision) = view.peek(request) else { return Ok(()) };
            let barred = self.queues.waiters(0, &name(want.key)) == Waiters::InLine;
            granted &= decision.granted > 0 && !barred;
            hopeless |= match decision.wait {
                Wait::Never => true,
                Wait::For(need) => need > patience && !want.policy.frees_early(),
            };
            hopeless |= self.pauses[want.key].since(self.now) > patience;
        }
        if granted {
            for want in &call.wants {
                self.charge(&call, want)?;
            }
            self.note_held(&call);
            return Ok(());
        }
        if hopeless || self.rng.u8(..8) == 0 || self.waiting.len() >= self.shape.clients || self.now < self.refused_until {
            return Ok(());
        }
        let claim = |want: &Want| Claim {
            key: name(want.key)[..].into(),
            policy: want.policy,
            amount: want.amount,
            names_amount: true,
        };
        let claims: Box<[Claim]> = call.wants.iter().map(claim).collect();
        let claims = match <[Claim; 1]>::try_from(claims.to_vec()) {
            Ok([claim]) => Claims::One(claim),
            Err(_) => Claims::All(claims),
        };
        let keys = self.take(&call.wants.iter().map(|want| want.key).collect::<Vec<_>>());
        let (joined, deadline) = (self.now, call.deadline);
        self.queues.join(Waiter { client: number, db: 0, claims, id: call.id.clone(), joined, deadline }, &keys);
        self.put(call.wants.iter().map(|want| want.key), keys);
        self.touched.extend(call.wants.iter().map(|want| want.key));
        self.waiting.insert(number, call);
        self.counts.most_waiting = self.counts.most_waiting.max(self.waiting.len());
        Ok(())
    }

    /// Charges one rule of a call that does not wait.
    fn charge(&mut self, call: &Call, want: &Want) -> Result<(), String> {
        let key = &mut self.keys[want.key];
        let mut bytes = Bytes::default();
        let view = want.policy.view(key.value.as_deref(), self.now).map_err(|error| format!("{error:?}"))?;
        let (decision, next) = view.decide(call.request(want)).map_err(|error| format!("{error:?}"))?;
        let repeats = call.request(want).id.is_some_and(|id| view.held(id).is_some());
        let change = view.store(&next, || 0x5eed, &mut bytes);
        key.apply_at(&change, &bytes, self.now);
        self.touched.push(want.key);
        self.note_charge(want.key);
        if change != Change::Keep {
            self.queues.changed(0, &name(want.key), self.now);
        }
        if decision.granted == 0 {
            return Err(format!("{want:?} was denied after it was granted: {decision:?}"));
        }
        self.note_granted(want, &decision, repeats)
    }

    fn note_charge(&mut self, key: usize) {
        let mut hasher = DefaultHasher::new();
        (&self.keys[key].value, self.keys[key].expires.map(Instant::as_us)).hash(&mut hasher);
        self.charges.push(Charge { at: self.now, key, holds: hasher.finish() });
    }

    /// Notes a grant. `repeats`: its id holds the units already.
    fn note_granted(&mut self, want: &Want, decision: &Decision, repeats: bool) -> Result<(), String> {
        if self.now < self.pauses[want.key] && !repeats {
            return Err(format!("key {} has granted in a pause: {want:?}", want.key));
        }
        if self.shape.meddled || self.shape.mixed || decision.retried {
            return Ok(());
        }
        self.granted[want.key]
            .note(&want.policy, self.now, decision.granted)
            .map_err(|text| format!("key {}: {text}, after {want:?}", want.key))
    }

    fn note_held(&mut self, call: &Call) {
        let Some(id) = &call.id else { return };
        let keys: Vec<usize> = call.wants.iter().map(|want| want.key).collect();
        self.held_by.extend(keys.iter().map(|&key| (id.clone(), key)));
        self.held.push((id.clone(), keys));
        if self.held.len() > 10_000 {
            self.held.drain(..5_000);
        }
    }

    fn disconnect(&mut self) {
        let Some(&number) = self.waiting.keys().nth(self.rng.usize(..=self.waiting.len())) else { return };
        let call = self.waiting.remove(&number).expect("it waits");
        assert_eq!(self.queues.leave(number, self.now).expect("it waits").client, number);
        assert!(self.queues.leave(number, self.now).is_none());
        self.touched.extend(call.wants.iter().map(|want| want.key));
    }

    /// Settles or releases what an id holds, key by key.
    fn release(&mut self) {
        if self.held.is_empty() || self.now < self.refused_until {
            return;
        }
        let (id, keys) = self.held.swap_remove(self.rng.usize(..self.held.len()));
        for index in keys {
            self.expire(index);
            let key = &mut self.keys[index];
            let mut bytes = Bytes::default();
            let units = if self.rng.bool() { 0 } else { self.rng.u64(..3) };
            let id = Id::new(&id).expect("an id");
            // A settlement gives back units of the past, so what was promised for each window then holds only for what calls cost.
            if !self.shape.meddled && self.policies[index].kind() != Kind::Lease {
                continue;
            }
            let Some(value) = &key.value else { continue };
            if let Ok(Some(settlement)) = settle(value, self.now, id, units, &mut bytes) {
                key.apply_at(&settlement.change, &bytes, self.now);
                self.queues.changed(0, &name(index), self.now);
                self.touched.push(index);
            }
        }
    }

    /// Changes a key in a way that calls can't foresee.
    fn meddle(&mut self) {
        let index = self.rng.usize(..self.keys.len());
        let (now, policy) = (self.now, self.policies[index]);
        self.expire(index);
        let key = &mut self.keys[index];
        match self.rng.u8(..8) {
            0 | 1 => {
                key.delete();
                self.pauses[index] = now;
            }
            2 => {
                let sooner = now.saturating_add(Span::from_us(self.rng.u64(..500 * MS)));
                key.expires = key.expires.map(|at| at.min(sooner));
            }
            3 => {
                (key.value, key.expires) = (Some(b"foreign".to_vec()), Some(now.saturating_add(Span::from_us(50 * MS))));
                self.pauses[index] = now;
            }
            force if policy.kind() != Kind::Lease => {
                let units = self.rng.u64(1..4);
                let amount = if force == 4 { Amount::Force(units) } else { Amount::Refund(units) };
                let mut bytes = Bytes::default();
                let Ok(view) = policy.view(key.value.as_deref(), now) else { return };
                let Ok((_, next)) = view.decide(Request::now(amount)) else { return };
                let change = view.store(&next, || 0x5eed, &mut bytes);
                key.apply_at(&change, &bytes, now);
                self.queues.changed(0, &name(index), now);
            }
            _ => return,
        }
        self.queues.wake(0, &name(index), now);
        self.touched.push(index);
    }

    /// Deletes a key whose deadline has passed, and with it its pause. Returns the key.
    fn expire(&mut self, index: usize) -> &mut Key {
        let key = self.keys[index].expire(self.now);
        if key.value.is_none() {
            self.pauses[index] = self.pauses[index].min(self.now);
        }
        key
    }

    fn take(&mut self, keys: &[usize]) -> Vec<Key> {
        keys.iter().map(|&key| std::mem::take(self.expire(key))).collect()
    }

    fn put(&mut self, places: impl Iterator<Item = usize>, keys: Vec<Key>) {
        places.zip(keys).for_each(|(place, key)| self.keys[place] = key);
    }

    /// Fires the timer: does all tasks that are due.
    fn fire(&mut self) -> Result<(), String> {
        let (now, may_grant) = (self.now, self.now >= self.refused_until);
        for round in 0.. {
            let Some(task) = self.queues.next_task(now) else { break };
            if round > 100_000 {
                return Err("the timer fires again and again without an end".into());
            }
            let places: Vec<usize> =
                task.keys.iter().map(|key| u32::from_le_bytes(key[..].try_into().expect("a name")) as usize).collect();
            let mut lines: Vec<Vec<u32>> = places.iter().map(|&place| self.queues.line(0, &name(place))).collect();
            let mut keys = self.take(&places);
            let mut changes: Vec<u64> = keys.iter().map(|key| key.changes).collect();
            let answers = self.queues.serve(&task, &mut keys, now, may_grant, self.shape.most);
            let after: Vec<u64> = keys.iter().map(|key| key.changes).collect();
            self.put(places.iter().copied(), keys);
            self.touched.extend(&places);
            if changes != after {
                places.iter().for_each(|&place| self.note_charge(place));
            }
            for (waiter, answer) in answers {
                let number = waiter.client;
                let call = self.waiting.remove(&number).ok_or_else(|| format!("{number} was answered twice"))?;
                self.grantable_since.remove(&number);
                lines.iter_mut().for_each(|line| line.retain(|&other| other != number));
                self.touched.extend(call.wants.iter().map(|want| want.key));
                let Ok(rows) = answer else { continue };
                let several = call.wants.len() > 1;
                if rows.iter().any(|row| row.granted == 0) {
                    if call.deadline > now {
                        return Err(format!("{number} was denied before its deadline: {call:?}"));
                    }
                    self.counts.denied += u64::from(several);
                    continue;
                }
                if !may_grant && rows.iter().any(|row| !row.retried) {
                    return Err(format!("{number} was granted while writes are refused"));
                }
                self.counts.granted += u64::from(several);
                for ((want, row), (line, changes)) in call.wants.iter().zip(&rows).zip(lines.iter().zip(&mut changes)) {
                    let repeats =
                        row.retried || call.id.as_ref().is_some_and(|id| self.held_by.contains(&(id.clone(), want.key)));
                    if let Some(older) = line.iter().find(|&&other| other < number).filter(|_| !repeats) {
                        return Err(format!("{number} passed {older} in the line of key {}", want.key));
                    }
                    *changes += u64::from(!row.retried);
                    self.note_granted(want, row, repeats)?;
                }
                self.note_held(&call);
            }
            if changes != after {
                return Err(format!("the keys {places:?} were changed {after:?} times, and not {changes:?} times"));
            }
        }
        Ok(())
    }

    /// Whether all rules of a waiting call would grant it, and no older call stands in a line of its keys.
    fn is_grantable(&mut self, number: u32) -> bool {
        let call = self.waiting[&number].clone();
        for want in &call.wants {
            self.expire(want.key);
            let Ok(view) = want.policy.view(self.keys[want.key].value.as_deref(), self.now) else { return false };
            let request = call.request(want);
            if request.id.is_some_and(|id| view.held(id).is_some()) {
                continue;
            }
            if self.queues.line(0, &name(want.key)).iter().any(|&other| other < number) {
                return false;
            }
            if !view.peek(request).is_ok_and(|decision| decision.granted > 0) {
                return false;
            }
        }
        true
    }

    /// Checks the list of the keys that clients wait for: each has the clients that stand in its line, and the longest comes first.
    fn check_list(&self) -> Result<(), String> {
        let list = self.queues.longest_lines(usize::MAX);
        for line in &list {
            let clients = self.queues.line(0, line.key);
            if (line.db, line.clients) != (0, clients.len()) || line.since > self.now {
                return Err(format!("the list of lines has {line:?}, and the line has {clients:?}"));
            }
        }
        let waited_for: BTreeSet<_> =
            self.waiting.values().flat_map(|call| call.wants.iter().map(|want| want.key)).collect();
        let lines = waited_for.into_iter().filter(|&key| self.queues.has_waiters(0, &name(key))).count();
        if lines != list.len() || !list.is_sorted_by_key(|line| (Reverse(line.clients), line.since)) {
            return Err(format!("{lines} keys have lines, and the list is {list:?}"));
        }
        Ok(())
    }

    /// Checks the state after a step, when all tasks that are due have been done.
    fn check(&mut self) -> Result<(), String> {
        if self.queues.len() != self.waiting.len() {
            return Err(format!("{} clients wait, and not {}", self.queues.len(), self.waiting.len()));
        }
        let mut looked: Vec<u32> = self.waiting.keys().next().copied().into_iter().collect();
        self.touched.sort_unstable();
        self.touched.dedup();
        for key in std::mem::take(&mut self.touched) {
            let line = self.queues.line(0, &name(key));
            if line.is_empty() == self.queues.has_waiters(0, &name(key))
                || line.len() != self.queues.count_waiters(0, &name(key))
            {
                return Err(format!("key {key}: the line of {line:?} is not what it seems"));
            }
            for number in &line {
                let stands = |call: &Call| call.wants.iter().any(|want| want.key == key);
                if !self.waiting.get(number).is_some_and(stands) {
                    return Err(format!("{number} stands in the line of key {key}, and does not wait for it"));
                }
            }
            looked.extend(line.first());
        }
        if self.waiting.len() < 40 || self.counts.steps.is_multiple_of(2_000) {
            looked = self.waiting.keys().copied().collect();
            self.check_list()?;
        }
        for number in looked {
            let call = &self.waiting[&number];
            if call.deadline <= self.now {
                return Err(format!("{number} waits beyond its deadline: {call:?}"));
            }
            let in_lines = call.wants.iter().filter(|want| self.queues.line(0, &name(want.key)).contains(&number)).count();
            if in_lines == 0 {
                return Err(format!("{number} stands in no line: {call:?}"));
            }
            self.counts.in_several_lines += u64::from(in_lines > 1);
            if !self.is_grantable(number) {
                self.grantable_since.remove(&number);
                continue;
            }
            let after_refusals = self.refused_until.saturating_add(SERVED_AGAIN) >= self.now;
            let since = *self.grantable_since.entry(number).or_insert(self.now);
            let late = self.shape.mixed && self.now <= since.saturating_add(NOTICED);
            if !after_refusals && !late {
                let lines: Vec<_> =
                    self.waiting[&number].wants.iter().map(|want| self.queues.line(0, &name(want.key))).collect();
                return Err(format!(
                    "{number} could be granted since {since:?}, at {:?}, and the next task is at {:?}: {:?} in the lines {lines:?}",
                    self.now,
                    self.queues.next_wake(),
                    self.waiting[&number]
                ));
            }
        }
        Ok(())
    }
}
