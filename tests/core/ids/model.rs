//! Charges with an id, as section 8 of the contract states them, in rational numbers: for each remembered id the units
//! charged, when they act, and `m`, the most that can still be given back. Each event updates the `m` of every id.
//!
//! The levels and the decisions are those of [`crate::model`], which knows no ids.

use crate::model::{
    judge, outcomes, q, span, take, whole, Bucket, Entry, Fixed, Form, Gcra, Ledger, Meter, Rule, Silence, Slide, Windows,
    CLOSED, Q,
};
use num_bigint::BigInt;
use num_traits::{Signed, Zero};
use redis_rl::limiter::{Amount, Decision, Instant, Request, Span, Wait};

/// A remembered charge.
#[derive(Clone, Debug)]
pub struct Charge {
    pub id: Vec<u8>,
    pub units: u64,
    /// When it acts: a booking acts later than it was charged.
    pub due: i128,
    /// `SLIDE`: the last instant of its tick. The others have one level, and this is 0.
    pub tick: i128,
    /// The least that its level has been since, as far as later events have shown it.
    pub m: Q,
}

/// A ledger in which charges can be remembered.
pub trait Holds: Ledger {
    /// The policy of the last write.
    fn rule(&self) -> &Rule;
    /// The level that the charge stands in.
    fn level(&self, _charge: &Charge) -> Q {
        self.used()
    }
    /// Gives back `units` at the level of the charge.
    fn give_back(&mut self, _charge: &Charge, units: &Q) {
        self.charge(&-units);
    }
    /// Takes `units` now, under the policy of the last write.
    fn add(&mut self, units: &Q) {
        self.charge(units);
    }
    /// Whether the charge is past, so that its id is forgotten.
    fn past(&self, _charge: &Charge) -> bool {
        self.used().is_zero()
    }
    /// The first instant at which no charge is remembered and nothing is used, and that of `charge` alone.
    fn over(&self, charge: &Charge) -> i128;
    /// The units that are used up by a booking that acts after `wait`, apart from its own.
    fn skipped(&self, _wait: u64) -> Q {
        Q::zero()
    }
    /// The tick of a charge that has just been made.
    fn newest_tick(&self) -> i128 {
        0
    }
    /// The tick that the charge has after a write.
    fn tick_after_write(&self, _charge: &Charge) -> i128 {
        0
    }
    /// Whether the key still means something because of its ids alone.
    const IDS_MEAN: bool = false;
    /// Whether the state at `now` no longer differs from that of a missing key, so that all charges are past.
    fn ended(&self, _rule: &Rule, _now: i64) -> Result<bool, Silence> {
        Ok(false)
    }
    /// Whether the state does not fit a record.
    fn overflows(&self) -> bool {
        false
    }
    /// Prepares for a write by a settlement, which leaves the policy as it is.
    fn begin_settle(&mut self) {}
}

/// Rounds `m` down to a grain of the policy under which the first of the ids that are remembered was charged.
fn rounded(m: Q, first: &Rule) -> Q {
    let grains = match first.form {
        Form::Slide { .. } => return m,
        Form::Bucket { .. } | Form::Gcra { .. } => q(first.period),
        Form::Fixed { .. } => q(1),
    };
    (m * &grains).floor() / grains
}

/// The part of `m` that can be given back under a policy: whole grains of it, and with `STEP` whole units.
fn available(m: &Q, rule: &Rule) -> Q {
    let grains = match rule.form {
        Form::Slide { .. } => return m.clone(),
        Form::Bucket { step: false, .. } | Form::Gcra { .. } => q(rule.period),
        Form::Bucket { step: true, .. } | Form::Fixed { .. } => q(1),
    };
    (m * &grains).floor() / grains
}

impl Holds for Fixed {
    const IDS_MEAN: bool = true;

    fn rule(&self) -> &Rule {
        Meter::rule(self)
    }

    fn past(&self, charge: &Charge) -> bool {
        let begins =
            if matches!(self.rule.form, Form::Fixed { windows: Windows::Until(_) }) { &self.began } else { &self.start };
        q(BigInt::from(charge.due)) < *begins
    }

    fn ended(&self, rule: &Rule, now: i64) -> Result<bool, Silence> {
        let mut held = self.clone();
        held.start = self.kept.clone().min(q(now));
        let outcomes = outcomes(&held, rule, now);
        let (ended, lasting): (Vec<_>, Vec<_>) = outcomes.iter().partition(|outcome| outcome.is_none());
        if lasting.iter().any(|outcome| outcome.as_ref().is_some_and(|held| held.used().is_zero())) && !ended.is_empty() {
            // Nothing is used either way: the contract does not say which of the two windows is in force.
            return Err(Silence::Open);
        }
        Ok(!ended.is_empty())
    }

    fn over(&self, charge: &Charge) -> i128 {
        let period = q(self.rule.period);
        // A window that ends more than one period ahead has a start in the future.
        let windows = (((q(BigInt::from(charge.due)) - &self.start) / &period).floor() + q(1)).max(q(1));
        (&self.start + windows * period).to_integer().try_into().expect("an instant")
    }

    fn skipped(&self, wait: u64) -> Q {
        ((&self.now + q(wait) - &self.start) / q(self.rule.period)).floor() * q(self.rule.limit)
    }
}

impl Holds for Gcra {
    fn rule(&self) -> &Rule {
        Meter::rule(self)
    }

    fn over(&self, _: &Charge) -> i128 {
        self.tat.ceil().to_integer().try_into().expect("an instant")
    }
}

impl Holds for Bucket {
    fn rule(&self) -> &Rule {
        Meter::rule(self)
    }

    fn begin_settle(&mut self) {
        self.written = self.now.clone();
    }

    fn over(&self, _: &Charge) -> i128 {
        (&self.now + self.paid_after(&self.used())).ceil().to_integer().try_into().expect("an instant")
    }

    fn skipped(&self, wait: u64) -> Q {
        if self.rule.steps() {
            ((&self.now + q(wait) - &self.last) / q(self.rule.period)).floor() * q(self.rule.limit)
        } else {
            Q::zero()
        }
    }
}

impl Holds for Slide {
    const IDS_MEAN: bool = true;

    fn rule(&self) -> &Rule {
        &self.rule
    }

    fn level(&self, charge: &Charge) -> Q {
        q(self.entries.iter().filter(|entry| entry.end == charge.tick).map(|entry| entry.units).sum::<u64>())
    }

    fn give_back(&mut self, charge: &Charge, units: &Q) {
        let mut back = whole(units.clone());
        for entry in self.entries.iter_mut().rev().filter(|entry| entry.end == charge.tick) {
            let part = back.min(entry.units);
            entry.units -= part;
            back -= part;
        }
        assert_eq!(back, 0, "no more is given back than the tick holds");
        self.entries.retain(|entry| entry.units > 0);
    }

    fn add(&mut self, units: &Q) {
        self.enter(units, self.now);
        self.end_write();
    }

    fn past(&self, charge: &Charge) -> bool {
        charge.tick <= self.now - self.period
    }

    fn over(&self, charge: &Charge) -> i128 {
        charge.tick + self.period
    }

    fn newest_tick(&self) -> i128 {
        self.entries.last().map_or(0, |entry| entry.end)
    }

    fn tick_after_write(&self, charge: &Charge) -> i128 {
        self.moved(&Entry { end: charge.tick, units: 0 }, self.plan().0)
    }

    fn overflows(&self) -> bool {
        self.total() > Self::MAX_USED
    }

    fn begin_settle(&mut self) {
        let (now, period) = (self.now, self.period);
        let (live, dead): (Vec<_>, Vec<_>) = self.entries.iter().partition(|entry| entry.end > now - period);
        self.entries = live;
        self.dropped.extend(dead);
        self.written = now;
    }
}

/// A ledger and the charges that it remembers, in the order in which they were made.
#[derive(Clone, Debug)]
pub struct State<L> {
    pub ledger: L,
    pub charges: Vec<Charge>,
    /// The policy under which the first of the charges was made since none was remembered.
    pub first: Rule,
    /// Whether the last caller that changed the key named a time by `UNTIL`.
    until: bool,
}

/// The most ids that a key remembers.
const MAX_IDS: usize = 65_536;

impl<L: Holds> State<L> {
    fn open(rule: &Rule, now: i64) -> Self {
        Self { ledger: L::open(rule, now), charges: Vec::new(), first: *rule, until: false }
    }

    /// The state at `now` under `rule`.
    pub fn bring(self, rule: &Rule, now: i64) -> Result<Self, Silence> {
        let (old, first, until) = (*self.ledger.rule(), self.first, self.until);
        let mut charges = self.charges;
        if self.ledger.ended(rule, now)? {
            let lasts = |charge: &Charge| self.ledger.over(charge) > now.into();
            match rule.form {
                // On a grid, windows follow each other, and the charge may stand in a later one.
                Form::Fixed { windows: Windows::Align(_) } => charges.retain(lasts),
                // The time of UNTIL is not known when a charge is settled.
                _ if until && charges.iter().any(lasts) => return Err(Silence::Open),
                _ => charges.clear(),
            }
        }
        let ledger = self.ledger.bring(rule, now)?;
        if old != *rule {
            let slide = matches!(rule.form, Form::Slide { .. });
            for charge in &mut charges {
                let m = if slide { charge.m.clone() } else { rule.carry(charge.m.clone(), &old) };
                charge.m = rounded(m.min(ledger.level(charge)), &first);
            }
        }
        charges.retain(|charge| !ledger.past(charge));
        Ok(Self { ledger, charges, first, until })
    }

    /// The same under the policy of the last write.
    fn bring_as_written(self, now: i64) -> Result<Self, Silence> {
        let rule = self.ledger.rule().as_recorded();
        self.bring(&rule, now)
    }

    pub fn find(&self, id: &[u8]) -> Option<&Charge> {
        self.charges.iter().find(|charge| charge.id == id)
    }

    /// Before units are added: the levels are as low as they have been since their last rise.
    fn note_levels(&mut self, skipped: &Q) {
        for charge in &mut self.charges {
            let level = (self.ledger.level(charge) - skipped).max(Q::zero());
            charge.m = rounded(charge.m.clone().min(level), &self.first);
        }
    }

    /// The state to be kept: `None` if it no longer differs from that of a missing key.
    fn kept(self) -> Option<Self> {
        let means = self.ledger.means() || L::IDS_MEAN && !self.charges.is_empty();
        means.then(|| Self { ledger: self.ledger.stored(), charges: self.charges, first: self.first, until: self.until })
    }

    fn answer(&self, rule: &Rule, granted: u64, wait: Wait, retried: bool) -> Decision {
        let used = self.ledger.used();
        let reset = span(if used.is_zero() { Q::zero() } else { self.ledger.paid_after(&used) });
        let remaining = whole((q(rule.capacity()) - used).max(Q::zero()));
        Decision { granted, limit: rule.capacity(), remaining, wait, reset, retried }
    }

    /// Checks that the state fits a record.
    fn fits(&self, answer: &Decision, now: i64) -> Result<(), Silence> {
        Instant::from_us(now)
            .checked_add(answer.reset)
            .filter(|_| !self.ledger.overflows())
            .map(|_| ())
            .ok_or(Silence::Overflow)
    }

    /// The instant from which on the state means nothing.
    pub fn over(&self, now: i64) -> i128 {
        let used = self.ledger.used();
        let paid = if used.is_zero() { Q::zero() } else { self.ledger.paid_after(&used) };
        let paid = i128::from(now) + i128::from(span(paid).as_us());
        self.charges.iter().map(|charge| self.ledger.over(charge)).fold(paid, i128::max)
    }
}

/// A call of one of the four commands.
pub fn call<L: Holds>(
    held: &mut Option<State<L>>,
    rule: &Rule,
    now: i64,
    request: Request,
    id: Option<&[u8]>,
) -> Result<Decision, Silence> {
    if rule.limit == 0 {
        return Ok(CLOSED);
    }
    let mut state = match held {
        Some(held) => held.clone().bring(rule, now)?,
        None => State::open(rule, now),
    };
    if let Some(charge) = id.and_then(|id| state.find(id)) {
        let left = (charge.due - i128::from(now)).max(0) as u64;
        let answer = state.answer(rule, charge.units, Wait::For(Span::from_us(left)), true);
        return Ok(Decision { reset: span(state.ledger.reset_of_retry()), ..answer });
    }
    let (charge, wait) = judge(&state.ledger, rule, request);
    if charge.is_zero() {
        let refund = matches!(request.amount, Amount::Refund(_));
        let answer = state.answer(rule, 0, wait, false);
        let reset = if refund { answer.reset } else { span(state.ledger.reset_if_denied()) };
        return Ok(Decision { reset, ..answer });
    }
    let due = match wait {
        Wait::For(wait) => wait.as_us(),
        Wait::Never => unreachable!("a charged amount is granted"),
    };
    let ticks: Vec<_> = state.charges.iter().map(|charge| state.ledger.tick_after_write(charge)).collect();
    if charge.is_positive() {
        let skipped = if due > 0 { state.ledger.skipped(due) } else { Q::zero() };
        state.note_levels(&skipped);
    }
    take(&mut state.ledger, &charge, wait);
    state.until = matches!(rule.form, Form::Fixed { windows: Windows::Until(_) });
    state.charges.iter_mut().zip(ticks).for_each(|(charge, tick)| charge.tick = tick);
    let granted = whole(charge.abs());
    if let Some(id) = id {
        let due = i128::from(now) + i128::from(due);
        let mut new = Charge { id: id.into(), units: granted, due, tick: state.ledger.newest_tick(), m: Q::zero() };
        if state.charges.is_empty() {
            state.first = *rule;
        }
        new.m = rounded(state.ledger.level(&new), &state.first);
        state.charges.push(new);
        if state.charges.len() > MAX_IDS {
            state.charges.remove(0);
        }
    }
    let answer = state.answer(rule, granted, wait, false);
    state.fits(&answer, now)?;
    *held = state.kept();
    Ok(answer)
}

/// `RL.SETTLE`, and `RL.RELEASE` with 0 units. `None` is nil.
pub fn settle<L: Holds>(held: &mut Option<State<L>>, now: i64, id: &[u8], units: u64) -> Result<Option<Decision>, Silence> {
    let Some(mut state) = held.clone() else { return Ok(None) };
    state = state.bring_as_written(now)?;
    let Some(place) = state.charges.iter().position(|charge| charge.id == id) else { return Ok(None) };
    state.ledger.begin_settle();
    let m = available(&state.charges[place].m, state.ledger.rule());
    state.note_levels(&Q::zero());
    let settled = state.charges.remove(place);
    if units <= settled.units {
        let back = q(settled.units - units).min(m).min(state.ledger.level(&settled));
        for (other, charge) in state.charges.iter_mut().enumerate().filter(|(_, charge)| charge.tick == settled.tick) {
            let m = if other < place { charge.m.clone().min(&settled.m - &back) } else { &charge.m - &back };
            charge.m = rounded(m.max(Q::zero()), &state.first);
        }
        if back.is_positive() {
            state.ledger.give_back(&settled, &back);
        }
    } else {
        state.ledger.add(&q(units - settled.units));
    }
    let rule = *state.ledger.rule();
    let answer = state.answer(&rule, units, Wait::NONE, false);
    state.fits(&answer, now)?;
    // When the level stands at 0, the ids of GCRA and BUCKET go at once.
    let ledger = &state.ledger;
    state.charges.retain(|charge| !ledger.past(charge));
    *held = state.kept();
    Ok(Some(answer))
}

/// The contract for one key. Its rules determine its algorithm.
#[derive(Clone, Debug)]
pub enum Model {
    Fixed(Option<State<Fixed>>),
    Slide(Option<State<Slide>>),
    Gcra(Option<State<Gcra>>),
    Bucket(Option<State<Bucket>>),
}

/// Does the same with the state of any algorithm.
macro_rules! each {
    ($model:expr, $state:ident => $body:expr) => {
        match $model {
            Model::Fixed($state) => $body,
            Model::Slide($state) => $body,
            Model::Gcra($state) => $body,
            Model::Bucket($state) => $body,
        }
    };
}

impl Model {
    pub fn new(rule: &Rule) -> Self {
        match rule.form {
            Form::Fixed { .. } => Self::Fixed(None),
            Form::Slide { .. } => Self::Slide(None),
            Form::Gcra { .. } => Self::Gcra(None),
            Form::Bucket { .. } => Self::Bucket(None),
        }
    }

    pub fn call(&mut self, rule: &Rule, now: i64, request: Request, id: Option<&[u8]>) -> Result<Decision, Silence> {
        assert!(id.is_none() || matches!(request.amount, Amount::Cost(_) | Amount::UpTo(_)));
        each!(self, state => call(state, rule, now, request, id))
    }

    pub fn settle(&mut self, now: i64, id: &[u8], units: u64) -> Result<Option<Decision>, Silence> {
        each!(self, state => settle(state, now, id, units))
    }

    /// The units of a charge that is remembered at `now`, as a caller with `rule` sees it.
    pub fn held(&self, rule: &Rule, now: i64, id: &[u8]) -> Result<Option<u64>, Silence> {
        each!(self, state => match state {
            Some(held) => Ok(held.clone().bring(rule, now)?.find(id).map(|charge| charge.units)),
            None => Ok(None),
        })
    }

    /// `SLIDE`: the last instant of the tick of the newest remembered charge.
    pub fn newest_tick(&self) -> i128 {
        each!(self, state => state.as_ref().and_then(|held| held.charges.last()).map_or(0, |charge| charge.tick))
    }

    /// `SLIDE`: whether callers with several grids share the log.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Slide(Some(held)) if held.ledger.shared.is_some())
    }

    /// How many ids are remembered, and the instant from which on the state means nothing.
    pub fn extent(&self, now: i64) -> Result<(usize, i128), Silence> {
        each!(self, state => match state {
            Some(held) => {
                let held = held.clone().bring_as_written(now)?;
                Ok((held.charges.len(), held.over(now)))
            }
            None => Ok((0, now.into())),
        })
    }

    /// The units used at `now` under the policy of the last write; `SLIDE`: in each tick that counts.
    pub fn levels(&self, now: i64) -> Result<Vec<(i128, Q)>, Silence> {
        fn total<L: Holds>(held: &State<L>, now: i64) -> Result<Vec<(i128, Q)>, Silence> {
            let used = held.clone().bring_as_written(now)?.ledger.used();
            Ok(if used.is_zero() { vec![] } else { vec![(0, used)] })
        }
        match self {
            Self::Fixed(Some(held)) => total(held, now),
            Self::Gcra(Some(held)) => total(held, now),
            Self::Bucket(Some(held)) => total(held, now),
            Self::Slide(Some(held)) => {
                let log = held.clone().bring_as_written(now)?.ledger;
                let mut levels: Vec<(i128, Q)> = Vec::new();
                for entry in log.entries.iter().filter(|entry| log.counts(entry)) {
                    match levels.last_mut() {
                        Some((tick, units)) if *tick == entry.end => *units += q(entry.units),
                        _ => levels.push((entry.end, q(entry.units))),
                    }
                }
                Ok(levels)
            }
            _ => Ok(vec![]),
        }
    }
}
