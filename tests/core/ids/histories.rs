//! Random policies and random histories of charges with and without ids.

use crate::model::{Form, Rule, Windows};
use proptest::collection::vec;
use proptest::prelude::*;
use redis_rl::limiter::{Kind, MAX_UNITS, MIN_PERIOD};

pub const SECOND: u64 = 1_000_000;

fn limits() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..=20u64, 4 => 20..=1_000u64, 1 => 1..=1_000_000_000u64, 1 => 1..=MAX_UNITS]
}

fn periods() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => Just(SECOND),
        3 => 1_000..=100_000u64,
        1 => 1_000..=100 * SECOND,
        1 => Just(86_400 * SECOND),
        1 => Just(1_000u64),
    ]
}

fn capacities(limit: u64) -> impl Strategy<Value = Option<u64>> {
    let near = 1..=limit.saturating_mul(3).min(MAX_UNITS);
    prop_oneof![3 => Just(None), 3 => near.prop_map(Some), 1 => Just(Some(1)), 1 => (1..=1_000u64).prop_map(Some)]
}

pub fn segments() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(65_536u64), 3 => 1..=10u64, 2 => 1..=1_000u64]
}

/// Where the windows of FIXED begin and end. The time of UNTIL counts from the start of the sequence.
pub fn windows(period: u64) -> impl Strategy<Value = Windows> {
    let (size, period) = (period as i64 - 1, period as i64);
    let until = prop_oneof![3 => 0..=2 * period, 1 => -2 * period..=0, 2 => 2 * period..=9 * period];
    prop_oneof![
        2 => Just(Windows::FirstCall),
        2 => (-size..=size).prop_map(Windows::Align),
        3 => until.prop_map(Windows::Until),
    ]
}

/// A policy of one algorithm, with numbers from these generators.
pub fn rules_of<C: Strategy<Value = Option<u64>> + 'static, S: Strategy<Value = u64> + 'static>(
    kind: Kind,
    quotas: (impl Strategy<Value = u64>, impl Strategy<Value = u64>),
    capacities: fn(u64) -> C,
    segments: fn() -> S,
) -> impl Strategy<Value = Rule> {
    quotas.prop_flat_map(move |(limit, period)| {
        let limit = limit.min(kind.spec().max_limit);
        match kind {
            Kind::Lease => unreachable!("a lease limits no rate"),
            Kind::Fixed => windows(period).prop_map(|windows| Form::Fixed { windows }).boxed(),
            Kind::Slide => segments().prop_map(|segments| Form::Slide { segments }).boxed(),
            Kind::Gcra => capacities(limit).prop_map(|burst| Form::Gcra { burst }).boxed(),
            Kind::Bucket => {
                (capacities(limit), any::<bool>()).prop_map(|(capacity, step)| Form::Bucket { capacity, step }).boxed()
            }
        }
        .prop_map(move |form| Rule { limit, period, form })
    })
}

pub fn rules(kind: Kind) -> impl Strategy<Value = Rule> {
    rules_of(kind, (limits(), periods()), capacities, segments)
}

/// One of the four algorithms. `IDS_KIND` sets one of them.
pub fn kinds() -> impl Strategy<Value = Kind> {
    let only = std::env::var("IDS_KIND").unwrap_or_default();
    let four = [Kind::Fixed, Kind::Slide, Kind::Gcra, Kind::Bucket];
    proptest::sample::select(four.into_iter().filter(|kind| kind.name().contains(&only)).collect::<Vec<_>>())
}

/// A policy near `first`: with so many thousandths of its limit and of its period.
pub fn near(kind: Kind, first: &Rule, permille: (u64, u64), longest: u64, form: Form) -> Rule {
    let scale = |n: u64, permille: u64, max: u64| (u128::from(n) * u128::from(permille) / 1_000).clamp(1, max.into()) as u64;
    let limit = scale(first.limit, permille.0, kind.spec().max_limit);
    let period = scale(first.period, permille.1, longest).max(MIN_PERIOD.as_us());
    let form = match form {
        Form::Fixed { windows } => Form::Fixed { windows: windows.fit(period) },
        Form::Gcra { burst } => Form::Gcra { burst: burst.map(|n| n.min(limit.saturating_mul(3)).min(MAX_UNITS)) },
        form => form,
    };
    Rule { limit, period, form }
}

/// Policies of one algorithm that are close to each other, so that a change of policy carries usage over.
pub fn rule_changes(kind: Kind) -> impl Strategy<Value = Vec<Rule>> {
    let factor = || prop_oneof![3 => Just(1_000u64), 2 => 100..=3_000u64];
    (rules(kind), vec((factor(), factor(), rules(kind), any::<bool>()), 1..4)).prop_map(move |(first, others)| {
        let near = others.into_iter().map(|(limit, period, other, same_form)| {
            let form = if same_form { first.form } else { other.form };
            near(kind, &first, (limit, period), 86_400 * SECOND, form)
        });
        std::iter::once(first).chain(near).collect()
    })
}

/// How the clock moves before a call.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Us(u64),
    /// By so many thousandths of the period.
    Period(u64),
    /// To the time at which the last reply said to come back, or to the last reset.
    Promise,
    Reset,
    /// To the microsecond before the last reset.
    Before,
}

/// Units, before the capacity is known.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    Units(u64),
    /// So many thousandths of the capacity, but at least one.
    Share(u64),
}

impl Size {
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Units(n) => n,
            Self::Share(permille) => share(capacity, permille).clamp(1, MAX_UNITS),
        }
    }
}

pub fn share(n: u64, permille: u64) -> u64 {
    (u128::from(n) * u128::from(permille) / 1_000) as u64
}

/// Which id a call carries.
#[derive(Clone, Copy, Debug)]
pub enum Name {
    None,
    New,
    /// One of those that have been used, this many before the newest.
    Used(usize),
}

/// How far ahead a call may be booked.
#[derive(Clone, Copy, Debug)]
pub enum Ahead {
    No,
    Us(u64),
    /// So many thousandths of the period.
    Period(u64),
}

#[derive(Clone, Copy, Debug)]
pub enum Act {
    Cost(Size, Name, Ahead),
    UpTo(Size, Name),
    Force(Size),
    Refund(Size),
    /// To so many thousandths of the charge, rounded up.
    Settle(Name, u64),
    Release(Name),
}

#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// The index of a policy, wrapping around.
    pub rule: usize,
    pub step: Step,
    pub act: Act,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Us(0)),
        3 => (0..=1_000u64).prop_map(Step::Us),
        6 => (0..=100u64).prop_map(Step::Period),
        2 => (0..=600u64).prop_map(Step::Period),
        1 => (0..=3_000u64).prop_map(Step::Period),
        2 => Just(Step::Promise),
        1 => Just(Step::Reset),
        1 => Just(Step::Before),
    ]
}

fn sizes() -> impl Strategy<Value = Size> {
    prop_oneof![
        3 => Just(Size::Units(1)),
        5 => (1..=6u64).prop_map(Size::Units),
        3 => (1..=80u64).prop_map(Size::Share),
        3 => (1..=700u64).prop_map(Size::Share),
        1 => (900..=1_500u64).prop_map(Size::Share),
    ]
}

fn used() -> impl Strategy<Value = Name> {
    prop_oneof![3 => (0..6usize).prop_map(Name::Used), 2 => (0..80usize).prop_map(Name::Used)]
}

fn names() -> impl Strategy<Value = Name> {
    prop_oneof![8 => Just(Name::New), 3 => Just(Name::None), 2 => used()]
}

fn aheads() -> impl Strategy<Value = Ahead> {
    prop_oneof![
        6 => Just(Ahead::No),
        1 => (1..=10_000u64).prop_map(Ahead::Us),
        2 => (0..=1_200u64).prop_map(Ahead::Period),
        1 => (0..=4_000u64).prop_map(Ahead::Period),
    ]
}

/// What a history may contain.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub force: bool,
    pub refund: bool,
    /// Settlements to more than was charged.
    pub over: bool,
}

pub const ALL: Mix = Mix { force: true, refund: true, over: true };

fn acts(mix: Mix) -> impl Strategy<Value = Act> {
    let over = if mix.over { 1 } else { 0 };
    prop_oneof![
        10 => (sizes(), names(), aheads()).prop_map(|(size, name, ahead)| Act::Cost(size, name, ahead)),
        4 => (sizes(), names()).prop_map(|(size, name)| Act::UpTo(size, name)),
        u32::from(mix.force) => sizes().prop_map(Act::Force),
        2 * u32::from(mix.refund) => sizes().prop_map(Act::Refund),
        4 => (used(), 0..=1_000u64).prop_map(|(name, permille)| Act::Settle(name, permille)),
        over => (used(), 1_000..=3_000u64).prop_map(|(name, permille)| Act::Settle(name, permille)),
        2 => prop_oneof![6 => used(), 1 => Just(Name::New)].prop_map(Act::Release),
    ]
}

pub fn histories(mix: Mix, max: usize) -> impl Strategy<Value = Vec<Action>> {
    let change = prop_oneof![6 => Just(0usize), 1 => 0..4usize];
    let actions = vec((change, steps(), acts(mix)), 1..max);
    (actions, 0..4u8, 0..3u8).prop_map(|(actions, books, idles)| {
        let mut rule = 0;
        let action = |(change, step, act)| {
            // A policy stays in force until an action changes it.
            rule += change;
            let act = match act {
                // In some of the histories nothing is booked.
                Act::Cost(size, name, _) if books == 0 => Act::Cost(size, name, Ahead::No),
                act => act,
            };
            // In some of the histories the key is seldom idle, so that many charges are remembered.
            let step = match step {
                Step::Period(permille) if idles == 0 => Step::Period(permille / 40),
                Step::Promise | Step::Reset | Step::Before if idles == 0 => Step::Us(0),
                step => step,
            };
            Action { rule, step, act }
        };
        actions.into_iter().map(action).collect()
    })
}

pub fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(1_760_000_000_000_000), 0..2_000_000_000_000_000i64]
}

/// The name of the n-th charge, 1 to 64 bytes long. No two of the first 65 536 are the same.
pub fn name(n: usize) -> Vec<u8> {
    let length = [2, 3, 8, 16, 17, 36, 63, 64][n % 8];
    let length = if n < 256 && n.is_multiple_of(8) { 1 } else { length };
    (0..length)
        .map(|place| match place {
            0 => n as u8,
            1 => (n >> 8) as u8,
            _ => (n * 31 + place * 7) as u8,
        })
        .collect()
}

/// Keeps the time of a history.
pub struct Clock {
    pub now: i64,
    pub wait: u64,
    pub reset: u64,
}

impl Clock {
    pub fn new(now: i64) -> Self {
        Self { now, wait: 0, reset: 0 }
    }

    pub fn step(&mut self, step: Step, rule: &Rule) {
        let us = match step {
            Step::Us(us) => us,
            Step::Period(permille) => share(rule.period, permille),
            Step::Promise => self.wait,
            Step::Reset => self.reset,
            Step::Before => self.reset.saturating_sub(1),
        };
        // At most a century ahead, so that no state is beyond the end of time.
        self.now = self.now.saturating_add_unsigned(us.min(100 * 365 * 86_400 * SECOND));
    }
}
