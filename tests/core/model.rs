//! A naive and exact model of the four algorithms, and the two things that tests compare: [`Model`], which transcribes the
//! contract in rational numbers, and [`Key`], which stores what the core tells it to store.
//!
//! The model knows nothing of records, grains or integers that could overflow. Each algorithm is a [`Ledger`], which knows
//! how many units are used now and when they will have been paid. The meaning of a call follows from these in the same way
//! for all four, in [`call`].

use crate::key::{Key, Refusal, Steps};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive, Zero};
use redis_rl::limiter::{
    inspect, Amount, Change, Decision, Fact, Instant, Kind, Policy, PolicyOption, Quota, Request, Span, Wait, MAX_UNITS,
};

pub type Q = BigRational;

pub fn q(number: impl Into<BigInt>) -> Q {
    Q::from_integer(number.into())
}

/// A policy as in a command. Times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub limit: u64,
    pub period: u64,
    pub form: Form,
}

/// An algorithm with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Fixed { windows: Windows },
    Slide { segments: u64 },
    Gcra { burst: Option<u64> },
    Bucket { capacity: Option<u64>, step: bool },
}

/// Where the windows of FIXED begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    FirstCall,
    Align(i64),
    Until(i64),
}

impl Windows {
    /// The same for another period.
    pub fn fit(self, period: u64) -> Self {
        match self {
            Self::Align(offset) => Self::Align(offset % period as i64),
            // Not so many periods ahead that the model would have to count them one by one.
            Self::Until(time) => Self::Until(time % (9 * period as i64)),
            windows => windows,
        }
    }
}

impl Rule {
    /// The rule for a sequence of calls that begins at `start`: the time of UNTIL counts from there.
    pub fn starting_at(mut self, start: i64) -> Self {
        if let Form::Fixed { windows: Windows::Until(time) } = &mut self.form {
            *time = start.saturating_add(*time).max(0);
        }
        self
    }

    /// [`Self::starting_at`], with a time of `UNTIL` that is at most one period after the start. All windows then end at this time, or
    /// at whole periods after or before it.
    pub fn starting_within_a_period(mut self, start: i64) -> Self {
        if let Form::Fixed { windows: Windows::Until(time) } = &mut self.form {
            *time = (*time).min(self.period as i64);
        }
        self.starting_at(start)
    }

    /// The most units that one call can be granted.
    pub fn capacity(&self) -> u64 {
        match self.form {
            Form::Fixed { .. } | Form::Slide { .. } => self.limit,
            Form::Gcra { burst } => burst.unwrap_or(self.limit),
            Form::Bucket { capacity, .. } => capacity.unwrap_or(self.limit),
        }
    }

    /// The length of a tick of `SLIDE`.
    pub fn tick(&self) -> u64 {
        match self.form {
            Form::Slide { segments } => self.period.div_ceil(segments),
            _ => 1,
        }
    }

    /// The same without the time of `UNTIL`, which a record does not show.
    pub fn as_recorded(mut self) -> Self {
        if let Form::Fixed { windows: windows @ Windows::Until(_) } = &mut self.form {
            *windows = Windows::FirstCall;
        }
        self
    }

    /// The same policy for the core.
    pub fn policy(&self) -> Policy {
        let (kind, options) = match self.form {
            Form::Fixed { windows } => {
                let option = match windows {
                    Windows::FirstCall => None,
                    Windows::Align(offset) => Some(PolicyOption::Align(offset)),
                    Windows::Until(time) => Some(PolicyOption::Until(Instant::from_us(time))),
                };
                (Kind::Fixed, [option, None])
            }
            Form::Slide { segments } => (Kind::Slide, [Some(PolicyOption::Segments(segments)), None]),
            Form::Gcra { burst } => (Kind::Gcra, [burst.map(PolicyOption::Burst), None]),
            Form::Bucket { capacity, step } => {
                (Kind::Bucket, [capacity.map(PolicyOption::Capacity), step.then_some(PolicyOption::Step)])
            }
        };
        let quota = Quota::new(self.limit, Span::from_us(self.period)).expect("a quota in range");
        let policy = kind.policy(quota).expect("a limit in the algorithm's range");
        options.into_iter().flatten().fold(policy, Policy::with)
    }

    /// Units that are paid in a microsecond, on average.
    pub fn rate(&self) -> Q {
        Q::new(self.limit.into(), self.period.into())
    }

    pub fn steps(&self) -> bool {
        matches!(self.form, Form::Bucket { step: true, .. })
    }

    /// The beginning of the window that holds `start`: on the grid with `ALIGN`, otherwise at `start` itself.
    pub fn window_holding(&self, start: Q) -> Q {
        match self.form {
            Form::Fixed { windows: Windows::Align(offset) } => {
                let (offset, period) = (q(offset), q(self.period));
                ((start - &offset) / &period).floor() * period + offset
            }
            _ => start,
        }
    }

    /// Usage of `used` units under the capacity of `old`, carried over to this policy.
    pub fn carry(&self, used: Q, old: &Rule) -> Q {
        let (before, after) = (q(old.capacity()), q(self.capacity()));
        let debt = (&used - &before).max(Q::zero());
        used.min(before).min(after) + debt
    }

    /// `units`, rounded up to the precision of a policy with this period.
    fn round_up(&self, units: Q) -> Q {
        let period = q(self.period);
        (units * &period).ceil() / period
    }
}

/// Why the model gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The result is out of range.
    Overflow,
    /// The contract does not define the answer: it depends on expired entries that would count again, and that a log may or
    /// may not have dropped.
    Open,
}

/// The state of a key at some time, under some policy.
pub trait Ledger: Clone {
    /// Whether the state differs from that of a missing key.
    fn means(&self) -> bool {
        !self.used().is_zero()
    }

    /// The state of a missing key.
    fn open(rule: &Rule, now: i64) -> Self;
    /// The stored state, at `now` under `rule`.
    fn bring(self, rule: &Rule, now: i64) -> Result<Self, Silence>;
    /// Units used. Those above the capacity are debt.
    fn used(&self) -> Q;
    /// Takes `units`, or gives them back if the number is negative.
    fn charge(&mut self, units: &Q);
    /// The time until `units` of those used are paid.
    fn paid_after(&self, units: &Q) -> Q;

    /// How long a call is denied for that fits after `need`, when `units` of those used are paid, and that may be booked so
    /// far ahead.
    fn denied_for(&self, _units: &Q, need: Span, ahead: Span) -> Span {
        need.saturating_sub(ahead)
    }

    /// The time until nothing is used, after a denial.
    fn reset_if_denied(&self) -> Q {
        self.reset()
    }

    /// The time until nothing is used, as a retry shows it.
    fn reset_of_retry(&self) -> Q {
        self.reset_if_denied()
    }

    /// The time until nothing is used, after a grant.
    fn reset(&self) -> Q {
        let used = self.used();
        if used.is_zero() {
            used
        } else {
            self.paid_after(&used)
        }
    }

    /// The state as the key keeps it after a change.
    fn stored(self) -> Self {
        self
    }

    /// How far ahead a booking may be, in microseconds.
    fn reach(&self) -> u64 {
        u64::MAX
    }

    /// Takes `units` that will be free after `wait` microseconds and not before.
    fn book(&mut self, units: &Q, _wait: u64) {
        self.charge(units);
    }
}

/// The answer of a limiter with limit 0.
pub const CLOSED: Decision =
    Decision { granted: 0, limit: 0, remaining: 0, wait: Wait::Never, reset: Span::ZERO, retried: false };

/// What every call means: section 3 of the contract.
fn call<L: Ledger>(held: &mut Option<L>, rule: &Rule, now: i64, request: Request) -> Result<Decision, Silence> {
    if rule.limit == 0 {
        return Ok(CLOSED);
    }
    let mut ledger = match held {
        Some(held) => held.clone().bring(rule, now)?,
        None => L::open(rule, now),
    };
    let (charge, wait) = judge(&ledger, rule, request);
    if !charge.is_zero() {
        take(&mut ledger, &charge, wait);
    }
    let capacity = q(rule.capacity());
    let used = ledger.used();
    let refund = matches!(request.amount, Amount::Refund(_));
    let reset = span(if used.is_zero() {
        Q::zero()
    } else if charge.is_zero() && !refund {
        ledger.reset_if_denied()
    } else {
        ledger.paid_after(&used)
    });
    if !charge.is_zero() {
        Instant::from_us(now).checked_add(reset).ok_or(Silence::Overflow)?;
        *held = ledger.means().then(|| ledger.stored());
    }
    Ok(Decision {
        granted: whole(charge.abs()),
        limit: rule.capacity(),
        remaining: whole((capacity - used).max(Q::zero())),
        wait,
        reset,
        retried: false,
    })
}

/// How many units a request takes of a ledger (a negative number: gives back), and its wait. No units: the call is denied, or
/// there is nothing to give back.
pub fn judge<L: Ledger>(ledger: &L, rule: &Rule, request: Request) -> (Q, Wait) {
    let capacity = q(rule.capacity());
    let used = ledger.used();
    let fits = (&capacity - &used).floor().max(Q::zero());
    let missing = |n: Q| &used + n - &capacity;

    match request.amount {
        Amount::Cost(n) if q(n) <= fits => (q(n), Wait::NONE),
        Amount::Cost(n) if q(n) > capacity => (Q::zero(), Wait::Never),
        Amount::Cost(n) => {
            let need = span(ledger.paid_after(&missing(q(n))));
            let ahead = Span::from_us(request.ahead.as_us().min(ledger.reach()));
            if need <= ahead {
                (q(n), Wait::For(need))
            } else {
                (Q::zero(), Wait::For(ledger.denied_for(&missing(q(n)), need, ahead)))
            }
        }
        Amount::UpTo(_) if fits.is_zero() => {
            let need = span(ledger.paid_after(&missing(q(1))));
            (Q::zero(), Wait::For(ledger.denied_for(&missing(q(1)), need, Span::ZERO)))
        }
        Amount::UpTo(n) => (q(n).min(fits), Wait::NONE),
        Amount::Force(n) => (q(n), Wait::NONE),
        Amount::Refund(n) => (-q(n).min(used.clone()), Wait::NONE),
    }
}

/// Takes what [`judge`] returned.
pub fn take<L: Ledger>(ledger: &mut L, charge: &Q, wait: Wait) {
    match wait {
        Wait::NONE => ledger.charge(charge),
        Wait::For(wait) => ledger.book(charge, wait.as_us()),
        Wait::Never => unreachable!("a charged amount is granted"),
    }
}

/// A number of units, rounded down.
pub fn whole(units: Q) -> u64 {
    units.floor().to_integer().to_u64().expect("a number of units")
}

/// A time in whole microseconds, rounded up, and at most the longest that a reply can express.
pub fn span(time: Q) -> Span {
    Span::from_us(time.ceil().to_integer().to_u64().unwrap_or(u64::MAX))
}

/// A ledger that carries its usage over to another policy.
pub trait Meter: Ledger {
    fn rule(&self) -> &Rule;
    /// The time of the stored usage: that of the write, the beginning of the window, or the last step.
    fn dated(&self) -> Q;
    /// The state at `now`; `None` if it no longer differs from a missing key.
    fn at(self, now: &Q) -> Option<Self>;
    /// The stored state, if it was written under another policy.
    fn before(&self) -> Option<&Self>;
    /// The state under `rule`, if the policy changed at the moment of the state; `now` is the moment of the call.
    fn under(self, rule: &Rule, now: &Q) -> Self;

    /// The state at `now` under `rule`, if the policy changed at `change`.
    fn changed(&self, change: &Q, rule: &Rule, now: &Q) -> Option<Self> {
        self.clone().at(change)?.under(rule, now).at(now)
    }
}

/// Usage is paid at the old rate up to the change of policy. The time of the change is not known, since a denied call writes
/// nothing: it may be now, the time of the stored usage, or the time at which its debt was paid. The least usage of these
/// cases counts; of equal ones, the one that is paid first.
fn bring<M: Meter>(held: M, rule: &Rule, now: i64) -> Result<M, Silence> {
    let open = M::open(rule, now);
    let outcomes = outcomes(&held, rule, now).into_iter().map(|outcome| outcome.unwrap_or_else(|| open.clone()));
    Ok(outcomes.min_by_key(|held| (held.used(), held.paid_after(&held.used()))).expect("some change"))
}

/// The states at `now` for each time of the change; `None`: the state no longer differs from a missing key.
pub fn outcomes<M: Meter>(held: &M, rule: &Rule, now: i64) -> Vec<Option<M>> {
    let now = q(now);
    let mut changes = vec![now.clone()];
    if held.rule() != rule {
        changes.extend(changes_of(held, &now));
    }
    changes.iter().map(|change| held.changed(&now.clone().min(change.clone()), rule, &now)).collect()
}

/// When the stored usage was written, and when its debt is paid.
fn changes_of<M: Meter>(held: &M, now: &Q) -> [Q; 2] {
    let dated = held.dated().min(now.clone());
    let paid = held.clone().at(&dated).map_or(Q::zero(), |held| {
        let debt = held.used() - q(held.rule().capacity());
        if debt.is_positive() {
            held.paid_after(&debt).ceil()
        } else {
            Q::zero()
        }
    });
    [dated.clone(), dated + paid]
}

/// Whether a state is stored as under another policy: the record shows neither ALIGN nor UNTIL.
fn differs(old: &Rule, new: &Rule) -> bool {
    (old.limit, old.period, old.capacity(), old.steps()) != (new.limit, new.period, new.capacity(), new.steps())
}

/// How long until no more than `rest` units are used, and stay so: if the policy changed at the write, or when the debt was
/// paid, or if the old rate alone pays them.
fn until_rest<M: Meter>(before: &M, rule: &Rule, now: &Q, rest: &Q) -> Span {
    // A date in the future counts as now.
    let Some(before) = Some(before.clone()).filter(|held| held.dated() <= *now).or_else(|| before.clone().at(now)) else {
        return Span::ZERO;
    };
    let before = &before;
    let passed = |from: &Q, held: Option<M>| {
        let over = held.as_ref().map_or(Q::zero(), |held| held.used() - rest);
        let paid = held.filter(|_| over.is_positive()).map_or(Q::zero(), |held| held.paid_after(&over));
        span(from - now + paid)
    };
    let changes = changes_of(before, now).into_iter().map(|change| {
        let from = change.clone().max(now.clone());
        passed(&from, before.changed(&change, rule, &from))
    });
    changes.fold(passed(now, before.clone().at(now)), Span::min)
}

/// How long a call is denied for, if the policy has changed. `wait` is that under the usage of this look alone, and `units`
/// of those used must be paid.
fn denied_after_change<M: Meter>(held: &M, now: i64, units: &Q, wait: Span, ahead: Span) -> Span {
    let Some(before) = held.before() else { return wait };
    let (rule, rest) = (*held.rule(), held.used() - units);
    let free = until_rest(before, &rule, &q(now), &rest);
    let books_after = |wait: u64| {
        let held = before.clone().bring(&rule, now.saturating_add_unsigned(wait)).unwrap_or_else(|_| held.clone());
        let over = held.used() - &rest;
        !over.is_positive() || span(held.paid_after(&over)) <= ahead
    };
    // The wait of this look is long enough if the call fits then for good, or can be booked then.
    let is_kept = |wait: &Span| {
        let us = wait.as_us();
        *wait >= free || ahead > Span::ZERO && us > 0 && books_after(us) && books_after(us.div_ceil(1_000) * 1_000)
    };
    [wait, free.saturating_sub(ahead)].into_iter().find(is_kept).unwrap_or(free)
}

/// The time until nothing is used, after a denial.
fn reset_after_change<M: Meter>(held: &M, now: &Q, reset: Q) -> Q {
    match held.before() {
        Some(before) if !held.used().is_zero() => reset.max(q(until_rest(before, held.rule(), now, &Q::zero()).as_us())),
        _ => reset,
    }
}

/// `FIXED`: a window and its count.
#[derive(Clone, Debug)]
pub struct Fixed {
    pub rule: Rule,
    pub now: Q,
    /// The beginning of the present window.
    pub start: Q,
    /// The time that is stored. It lies in that window.
    pub kept: Q,
    pub count: Q,
    /// The end of the present window by the record alone, which `UNTIL` may have made sooner.
    pub end_by_record: Q,
    /// When the present window really began: with `UNTIL`, windows differ in length, and `start` is a period before the end.
    pub began: Q,
    pub before: Option<Box<Self>>,
}

impl Fixed {
    fn period(&self) -> Q {
        q(self.rule.period)
    }

    /// `UNTIL`: the time, and the end of a window that begins at `now`.
    fn until(rule: &Rule, now: &Q) -> Option<(Q, Q)> {
        let Form::Fixed { windows: Windows::Until(time) } = rule.form else { return None };
        let (time, period) = (q(time), q(rule.period));
        let end = if time > *now {
            time.clone().min(now + &period)
        } else {
            // The fewest whole periods that lie ahead.
            &time + (((now - &time) / &period).floor() + q(1)) * &period
        };
        Some((time, end))
    }

    /// `UNTIL`: when `units` of those used are paid for a call that is made at `at`, if nothing is written until then.
    fn paid_at(&self, units: &Q, at: &Q) -> Q {
        let mut end = self.end_by_record.clone();
        let mut windows = (units / q(self.rule.limit)).ceil();
        let ended = ((at - &end) / self.period()).floor() + q(1);
        if ended.is_positive() {
            end += &ended * self.period();
            windows -= ended;
        }
        let (time, new_end) = Self::until(&self.rule, at).expect("UNTIL");
        if time > *at {
            end = end.min(if self.end_by_record > *at { time } else { new_end });
        }
        end + (windows - q(1)) * self.period()
    }

    /// How long a call is denied for under the usage of this look.
    fn denied_by_windows(&self, units: &Q, need: Span, ahead: Span) -> Span {
        let Some((time, _)) = Self::until(&self.rule, &self.now) else { return need.saturating_sub(ahead) };
        // A denial writes nothing. So the call is made again, at the ends of the windows in the record up to `time`, and
        // after `time`; in between, the need falls as time passes.
        let (ahead, mut from) = (q(ahead.as_us()), self.now.clone());
        let mut next = self.end_by_record.clone();
        loop {
            let to = if from >= time { None } else { Some(next.clone().min(time.clone())) };
            let fits = from.clone().max(self.paid_at(units, &from) - &ahead);
            match to {
                Some(to) if fits >= to => {
                    if to == next {
                        next += self.period();
                    }
                    from = to;
                }
                _ => return span(fits - &self.now),
            }
        }
    }
}

/// What the three meters store in the same way: their policy, and the state under the policy before.
macro_rules! remembers {
    () => {
        fn rule(&self) -> &Rule {
            &self.rule
        }

        fn before(&self) -> Option<&Self> {
            self.before.as_deref()
        }
    };
}

/// What `GCRA` and `BUCKET` have in common.
macro_rules! drains_evenly {
    () => {
        fn bring(self, rule: &Rule, now: i64) -> Result<Self, Silence> {
            let before = differs(&self.rule, rule).then(|| Box::new(self.clone()));
            Ok(Self { before, ..bring(self, rule, now)? })
        }

        fn stored(self) -> Self {
            Self { before: None, ..self }
        }

        fn denied_for(&self, units: &Q, need: Span, ahead: Span) -> Span {
            let now = self.now.to_integer().to_i64().expect("an instant");
            denied_after_change(self, now, units, need.saturating_sub(ahead), ahead)
        }

        fn reset_if_denied(&self) -> Q {
            reset_after_change(self, &self.now, self.reset())
        }
    };
}

impl Meter for Fixed {
    remembers!();

    fn dated(&self) -> Q {
        self.start.clone()
    }

    fn at(mut self, now: &Q) -> Option<Self> {
        self.now = now.clone();
        self.start = self.start.min(now.clone());
        // Each window that has ended paid for one limit.
        let ended = ((now - &self.start) / q(self.rule.period)).floor();
        self.start += &ended * q(self.rule.period);
        self.count = (self.count - &ended * q(self.rule.limit)).max(Q::zero());
        self.began = if ended.is_positive() { self.start.clone() } else { self.began.min(now.clone()) };
        (ended.is_zero() || self.count.is_positive()).then_some(self)
    }

    fn changed(&self, change: &Q, rule: &Rule, now: &Q) -> Option<Self> {
        let held = self.clone().at(change)?.under(rule, now);
        if held.start > *now {
            // The window ends more than one period ahead.
            return Some(Self { now: now.clone(), ..held });
        }
        held.at(now)
    }

    fn under(mut self, rule: &Rule, _: &Q) -> Self {
        self.count = rule.carry(self.count, &self.rule);
        if let Form::Fixed { windows: Windows::Until(_) } = rule.form {
            // The end stays.
            self.start = &self.start + q(self.rule.period) - q(rule.period);
        } else {
            self.start = rule.window_holding(self.start);
        }
        self.rule = *rule;
        self
    }
}

impl Ledger for Fixed {
    fn means(&self) -> bool {
        true
    }

    fn open(rule: &Rule, now: i64) -> Self {
        let start = match Self::until(rule, &q(now)) {
            Some((_, end)) => end - q(rule.period),
            None => rule.window_holding(q(now)),
        };
        let end_by_record = &start + q(rule.period);
        let (count, now) = (Q::zero(), q(now));
        Self { rule: *rule, now: now.clone(), kept: start.clone(), start, count, end_by_record, began: now, before: None }
    }

    fn bring(mut self, rule: &Rule, now: i64) -> Result<Self, Silence> {
        // The stored time never goes back. On a grid, a window may begin before it.
        let kept = self.kept.clone().min(q(now));
        self.start = kept.clone();
        let before = differs(&self.rule, rule).then(|| Box::new(self.clone()));
        let mut held = bring(self, rule, now)?;
        held.before = before;
        held.end_by_record = &held.start + q(rule.period);
        if let Some((time, _)) = Self::until(rule, &q(now)) {
            if time > q(now) {
                // A window in force is never lengthened.
                held.start = held.start.min(time - q(rule.period));
            }
            held.kept = held.start.clone();
        } else {
            held.kept = kept.max(held.start.clone());
        }
        Ok(held)
    }

    fn used(&self) -> Q {
        self.count.clone()
    }

    fn charge(&mut self, units: &Q) {
        self.count += units;
    }

    fn paid_after(&self, units: &Q) -> Q {
        &self.start + (units / q(self.rule.limit)).ceil() * q(self.rule.period) - &self.now
    }

    fn stored(mut self) -> Self {
        // No date lies in the future: as long as the window ends more than one period ahead, the key keeps the former
        // period.
        if let Some(before) = self.before.take().filter(|_| self.start > self.now) {
            self.start = self.start + q(self.rule.period) - q(before.rule.period);
            self.kept = self.start.clone();
            self.rule.period = before.rule.period;
        }
        self
    }

    fn denied_for(&self, units: &Q, need: Span, ahead: Span) -> Span {
        let wait = self.denied_by_windows(units, need, ahead);
        denied_after_change(self, self.now.to_integer().to_i64().expect("an instant"), units, wait, ahead)
    }

    fn reset_of_retry(&self) -> Q {
        if Self::until(&self.rule, &self.now).is_some() {
            self.reset()
        } else {
            self.reset_if_denied()
        }
    }
    fn reset_if_denied(&self) -> Q {
        if self.count.is_zero() {
            return Q::zero();
        }
        let windows = (&self.count / q(self.rule.limit)).ceil();
        let reset = match Self::until(&self.rule, &self.now) {
            None => self.paid_after(&self.count),
            Some(_) => &self.end_by_record + (windows - q(1)) * self.period() - &self.now,
        };
        reset_after_change(self, &self.now, reset)
    }

    fn book(&mut self, units: &Q, wait: u64) {
        // The booking is wholly in one window: those before it are used up.
        let before = ((&self.now + q(wait) - &self.start) / q(self.rule.period)).floor();
        self.count = self.count.clone().max(before * q(self.rule.limit)) + units;
    }
}

/// `GCRA`: the theoretical arrival time.
#[derive(Clone, Debug)]
pub struct Gcra {
    pub rule: Rule,
    pub now: Q,
    pub tat: Q,
    pub before: Option<Box<Self>>,
}

impl Meter for Gcra {
    remembers!();

    fn dated(&self) -> Q {
        self.now.clone()
    }

    fn at(mut self, now: &Q) -> Option<Self> {
        let stepped_back = (self.now - now).max(Q::zero());
        self.now = now.clone();
        self.tat -= stepped_back;
        (self.tat > *now).then_some(self)
    }

    fn under(mut self, rule: &Rule, _: &Q) -> Self {
        let used = rule.round_up(rule.carry(self.used(), &self.rule));
        self.tat = &self.now + used / rule.rate();
        self.rule = *rule;
        self
    }
}

impl Ledger for Gcra {
    fn open(rule: &Rule, now: i64) -> Self {
        Self { rule: *rule, now: q(now), tat: q(now), before: None }
    }

    drains_evenly!();

    fn used(&self) -> Q {
        (&self.tat - &self.now) * self.rule.rate()
    }

    fn charge(&mut self, units: &Q) {
        self.tat += units / self.rule.rate();
    }

    fn paid_after(&self, units: &Q) -> Q {
        units / self.rule.rate()
    }
}

/// `BUCKET`: tokens, below zero in debt, and the time at which tokens were last added.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub rule: Rule,
    pub now: Q,
    pub tokens: Q,
    pub last: Q,
    pub written: Q,
    pub before: Option<Box<Self>>,
}

impl Meter for Bucket {
    remembers!();

    fn dated(&self) -> Q {
        self.written.clone()
    }

    fn at(mut self, now: &Q) -> Option<Self> {
        let (period, capacity) = (q(self.rule.period), q(self.rule.capacity()));
        self.now = now.clone();
        self.last = self.last.min(now.clone());
        let elapsed = now - &self.last;
        let elapsed = if self.rule.steps() { (elapsed / &period).floor() * period } else { elapsed };
        self.last += &elapsed;
        self.tokens += elapsed * self.rule.rate();
        (self.tokens < capacity).then_some(self)
    }

    fn under(mut self, rule: &Rule, _: &Q) -> Self {
        let used = rule.round_up(rule.carry(self.used(), &self.rule));
        // With STEP, whole tokens are added in steps. Without it, tokens flow from the change on.
        self.tokens = q(rule.capacity()) - if rule.steps() { used.ceil() } else { used };
        if self.rule.steps() && !rule.steps() {
            self.last = self.now.clone();
        }
        self.rule = *rule;
        self
    }
}

impl Ledger for Bucket {
    fn open(rule: &Rule, now: i64) -> Self {
        let tokens = q(rule.capacity());
        Self { rule: *rule, now: q(now), tokens, last: q(now), written: q(now), before: None }
    }

    drains_evenly!();

    fn used(&self) -> Q {
        q(self.rule.capacity()) - &self.tokens
    }

    fn charge(&mut self, units: &Q) {
        self.tokens -= units;
        self.written = self.now.clone();
    }

    fn paid_after(&self, units: &Q) -> Q {
        if self.rule.steps() {
            &self.last + (units / q(self.rule.limit)).ceil() * q(self.rule.period) - &self.now
        } else {
            units / self.rule.rate()
        }
    }

    fn book(&mut self, units: &Q, wait: u64) {
        if self.rule.steps() {
            // At the step in which the booking is due, the bucket holds at most its capacity: the rest is lost.
            let steps = ((&self.now + q(wait) - &self.last) / q(self.rule.period)).floor();
            self.tokens = self.tokens.clone().min(q(self.rule.capacity()) - steps * q(self.rule.limit));
        }
        self.charge(units);
    }
}

/// The period and tick of a caller, and since which eighth of the log's period no other caller has been granted units.
pub type Alone = ((u64, u64), i128);

/// `SLIDE`: every grant, with the last instant of its tick.
#[derive(Clone, Debug)]
pub struct Slide {
    pub rule: Rule,
    pub now: i128,
    /// The tick of the log, and how long the log keeps grants.
    pub tick: i128,
    pub period: i128,
    /// If callers with several policies share the log: the period and tick of one of them, and since which eighth of the
    /// log's period no other caller has been granted units.
    pub shared: Option<Alone>,
    /// The time of the last write.
    pub written: i128,
    /// Whether units were booked, or a write has found an entry in the future. From then on the log does not know how far
    /// ahead it is.
    pub ahead: bool,
    pub entries: Vec<Entry>,
    /// Entries that had expired at a write: the log may have dropped them.
    pub dropped: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub end: i128,
    pub units: u64,
}

/// The last instant of the tick that holds `instant`.
pub fn end_of_tick(instant: i128, tick: i128) -> i128 {
    instant - instant.rem_euclid(tick) + tick - 1
}

fn round_up(n: i128, to: i128) -> i128 {
    (n + to - 1) / to
}

impl Slide {
    pub const MAX_USED: u64 = u32::MAX as u64;
    /// The most ticks in a period of a log that several callers share.
    const MOST_TICKS: i128 = 1 << 28;

    /// Whether a part of the entry's tick is in the window (now - period, now].
    pub fn counts(&self, entry: &Entry) -> bool {
        entry.end > self.now - i128::from(self.rule.period)
    }

    /// The tick, the period and the sharing of the log after a write.
    pub fn plan(&self) -> (i128, i128, Option<Alone>) {
        let caller = (self.rule.period, self.rule.tick());
        let (period, tick) = (i128::from(caller.0), i128::from(caller.1));
        let alone = (tick, period, None);
        let longest = period.max(self.period);
        if !self.entries.iter().any(|entry| entry.end > self.now - longest) {
            return alone;
        }
        if self.shared.is_none() && (tick, period) == (self.tick, self.period) {
            return alone;
        }
        let finest = tick.min(self.tick).max(round_up(longest, Self::MOST_TICKS));
        let eighth = (round_up(longest, finest) / 8).max(1) * finest;
        let next = self.now.div_euclid(eighth) + 1;
        let shared = match self.shared {
            Some((other, since)) if (finest, longest) == (self.tick, self.period) => {
                let since = since.min(next);
                // All ticks of a period, and the one in which it began.
                let past = self.now.div_euclid(finest) - since * eighth / finest > round_up(longest, finest);
                if other == caller && past {
                    return alone;
                } else if other == caller || since == next {
                    (other, since)
                } else {
                    (caller, next)
                }
            }
            _ => (caller, next),
        };
        (finest, longest, Some(shared))
    }

    /// The end of an entry on other ticks: that of the tick which holds the old end. Units that were granted by now do not
    /// move past the present tick.
    pub fn moved(&self, entry: &Entry, tick: i128) -> i128 {
        let end = if tick == self.tick { entry.end } else { end_of_tick(entry.end, tick) };
        if entry.end <= end_of_tick(self.now, self.tick) && tick != self.tick {
            end.min(end_of_tick(self.now, tick))
        } else {
            end
        }
    }

    /// Prepares the log for a write under this policy. Expired entries may be dropped.
    fn begin_write(&mut self) {
        let (tick, period, shared) = self.plan();
        let (live, dead) = self.entries.iter().partition(|entry| entry.end > self.now - period);
        self.entries = live;
        self.dropped.extend::<Vec<_>>(dead);
        let ends: Vec<_> = self.entries.iter().map(|entry| self.moved(entry, tick)).collect();
        self.entries.iter_mut().zip(ends).for_each(|(entry, end)| entry.end = end);
        (self.tick, self.period, self.shared) = (tick, period, shared);
    }

    /// Adds `units` at the tick of `instant`, or at that of the last entry if that is later: ticks ascend.
    pub fn enter(&mut self, units: &Q, instant: i128) {
        let end = end_of_tick(instant, self.tick).max(self.entries.last().map_or(i128::MIN, |last| last.end));
        self.entries.push(Entry { end, units: units.to_integer().to_u64().expect("a number of units") });
    }

    pub fn end_write(&mut self) {
        self.written = self.now;
        self.ahead |= self.lead() > 0;
    }

    /// How far the last entry's tick is ahead of the present tick.
    fn lead(&self) -> i128 {
        self.entries.last().map_or(0, |last| last.end - end_of_tick(self.now, self.tick)).max(0)
    }

    /// All units in the log.
    pub fn total(&self) -> u64 {
        self.entries.iter().map(|entry| entry.units).sum()
    }
}

impl Ledger for Slide {
    fn open(rule: &Rule, now: i64) -> Self {
        Self {
            rule: *rule,
            now: now.into(),
            tick: rule.tick().into(),
            period: rule.period.into(),
            shared: None,
            written: now.into(),
            ahead: false,
            entries: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn bring(mut self, rule: &Rule, now: i64) -> Result<Self, Silence> {
        self.rule = *rule;
        self.now = now.into();
        if self.ahead && self.now < self.written {
            return Err(Silence::Open);
        }
        let stepped_back = if self.ahead { 0 } else { self.lead() };
        for entry in self.entries.iter_mut().chain(&mut self.dropped) {
            entry.end -= stepped_back;
        }
        // After the clock has stepped back, dropped entries may count again: for this caller, or for those with a longer period.
        let longest = self.period.max(rule.period.into());
        if self.dropped.iter().any(|entry| entry.end > self.now - longest) {
            return Err(Silence::Open);
        }
        // A booking may be due later in the present tick: the log can't tell.
        let present = end_of_tick(self.now, self.tick);
        if self.ahead && self.plan().0 != self.tick && self.entries.iter().any(|entry| entry.end == present) {
            return Err(Silence::Open);
        }
        Ok(self)
    }

    fn means(&self) -> bool {
        !self.entries.is_empty()
    }

    fn used(&self) -> Q {
        q(self.entries.iter().filter(|entry| self.counts(entry)).map(|entry| entry.units).sum::<u64>())
    }

    fn charge(&mut self, units: &Q) {
        self.begin_write();
        let mut back = (-units).to_integer().to_u64().unwrap_or(0);
        while back > 0 {
            let newest = self.entries.last_mut().expect("no more is given back than is used");
            let part = back.min(newest.units);
            newest.units -= part;
            back -= part;
            self.entries.pop_if(|entry| entry.units == 0);
        }
        if units.is_positive() {
            self.enter(units, self.now);
        }
        self.end_write();
    }

    fn reach(&self) -> u64 {
        self.rule.period + self.plan().0 as u64
    }

    fn book(&mut self, units: &Q, wait: u64) {
        self.begin_write();
        self.enter(units, self.now + i128::from(wait));
        self.end_write();
        self.ahead |= wait > 0;
    }

    fn paid_after(&self, units: &Q) -> Q {
        let mut paid = Q::zero();
        for entry in self.entries.iter().filter(|entry| self.counts(entry)) {
            paid += q(entry.units);
            if paid >= *units {
                return q(entry.end + i128::from(self.rule.period) - self.now);
            }
        }
        unreachable!("no more is paid than is used")
    }
}

/// The contract for one key. Its rules determine its algorithm.
#[derive(Clone, Debug, Default)]
pub struct Model {
    fixed: Option<Fixed>,
    slide: Option<Slide>,
    gcra: Option<Gcra>,
    bucket: Option<Bucket>,
}

impl Model {
    pub fn call(&mut self, rule: &Rule, now: i64, request: Request) -> Result<Decision, Silence> {
        match rule.form {
            Form::Fixed { .. } => call(&mut self.fixed, rule, now, request),
            Form::Gcra { .. } => call(&mut self.gcra, rule, now, request),
            Form::Bucket { .. } => call(&mut self.bucket, rule, now, request),
            Form::Slide { .. } => {
                let before = self.slide.clone();
                let decision = call(&mut self.slide, rule, now, request)?;
                if self.slide.as_ref().is_some_and(|slide| slide.total() > Slide::MAX_USED) {
                    self.slide = before;
                    return Err(Silence::Overflow);
                }
                Ok(decision)
            }
        }
    }
}

impl Key {
    /// Makes a call to the core, carries out the change, and checks what must hold for every change.
    pub fn call(&mut self, rule: &Rule, now: i64, request: Request) -> Result<Decision, Refusal> {
        let (policy, now) = (rule.policy(), Instant::from_us(now));
        let outcome = policy.decide(self.value.as_deref(), now, request)?;
        let decision = outcome.decision;

        assert_eq!(decision.limit, if rule.limit == 0 { 0 } else { rule.capacity() });
        assert!(decision.remaining <= decision.limit);
        if decision.granted > 0 || matches!(request.amount, Amount::Refund(_)) && rule.limit > 0 {
            let ahead = if matches!(request.amount, Amount::Cost(_)) { request.ahead } else { Span::ZERO };
            assert!(decision.wait <= Wait::For(ahead), "acts later than requested: {outcome:?}");
        } else {
            assert!(decision.wait > Wait::NONE, "a denied call has to wait: {outcome:?}");
            assert_eq!(outcome.change, Change::Keep, "a denied call changes nothing: {outcome:?}");
        }
        if let Change::Write { offset, head, expires, .. } = &outcome.change {
            let length = offset + outcome.bytes.as_slice().len() - head;
            assert!(*offset <= self.value.as_ref().map_or(0, Vec::len), "{outcome:?}");
            assert!(head <= offset && (*head == 0 || matches!(rule.form, Form::Slide { .. })), "{outcome:?}");
            assert!(length <= 64 || matches!(rule.form, Form::Slide { .. }), "a record of {length} bytes");
            let mut free = now.checked_add(decision.reset).expect("a state whose end does not fit is refused");
            if let Form::Fixed { windows: Windows::Until(_) } = rule.form {
                // The record may keep the longer period of an earlier caller. By that, a debt lasts longer.
                let mut written = self.clone();
                written.apply(&outcome.change, &outcome.bytes);
                let report = inspect(&written.value.expect("a record"), now).expect("a record");
                let fact = report.iter().find(|(name, _)| *name == "reset_ms").map(|(_, fact)| fact.clone());
                let Some(Fact::Number(reset_ms)) = fact else { panic!("{report:?}") };
                let reset = Span::from_us((reset_ms as u64).saturating_sub(1).saturating_mul(1_000));
                free = free.max(now.saturating_add(reset));
            }
            // A log that other callers share lives as long as it counts for any of them, with bookings.
            self.longest_us = self.longest_us.max(rule.period);
            let later = if self.longest_us == rule.period { rule.period } else { 4 * self.longest_us };
            let latest = free.checked_add(Span::from_us(later)).unwrap_or(Instant::MAX);
            assert!((free..=latest).contains(expires), "free at {free:?}, {outcome:?}");
        }
        let written = matches!(outcome.change, Change::Write { .. });
        self.apply(&outcome.change, &outcome.bytes);
        if written {
            let again = policy.decide(self.value.as_deref(), now, Request::now(Amount::Cost(1)));
            let again = again.map(|outcome| (outcome.decision.granted, outcome.decision.wait == Wait::NONE));
            let fits = decision.remaining > 0;
            let overflow = again == Err(Refusal::Overflow);
            assert!(overflow || again == Ok((fits.into(), fits)), "the written bytes are decoded as {again:?}");
        }
        Ok(decision)
    }

    /// How long `amount` would have to wait, in microseconds; 0 also if no wait would help.
    pub fn wait(&self, rule: &Rule, now: i64, amount: Amount) -> u64 {
        match rule.policy().peek(self.value.as_deref(), Instant::from_us(now), Request::now(amount)) {
            Ok(Decision { wait: Wait::For(wait), .. }) => wait.as_us(),
            _ => 0,
        }
    }

    /// The microseconds until nothing is used any more.
    pub fn reset(&self, rule: &Rule, now: i64) -> u64 {
        let more = Request::now(Amount::Cost(MAX_UNITS));
        rule.policy().peek(self.value.as_deref(), Instant::from_us(now), more).expect("a record").reset.as_us()
    }
}

/// Checks that a call on any value is either refused or decided without a panic, that the same holds for the value that the
/// call leaves, and that no written value is foreign.
pub fn survives(policy: &Policy, value: &[u8], now: i64, request: Request) {
    let mut key = Key { value: Some(value.to_vec()), ..Key::default() };
    let now = Instant::from_us(now);
    if let Ok(outcome) = policy.decide(Some(value), now, request) {
        if let Change::Write { offset, .. } = outcome.change {
            assert!(offset <= value.len());
        }
        key.apply(&outcome.change, &outcome.bytes);
        let again = policy.decide(key.value.as_deref(), now, request);
        assert!(!matches!(again, Err(Refusal::Record(_))), "{value:02x?} became {:02x?}", key.value);
    }
}
