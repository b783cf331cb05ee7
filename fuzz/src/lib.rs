//! What the targets share: policies and calls made of arbitrary bytes, near enough to each other that something happens.

#[path = "../../tests/core/action.rs"]
pub mod action;
#[path = "../../tests/core/exercise.rs"]
pub mod exercise;
// Its property tests and examples are compiled, but not run.
#[allow(dead_code, unused_imports)]
#[path = "../../tests/core/ids/mod.rs"]
pub mod ids;
#[path = "../../tests/core/key.rs"]
pub mod key;
#[path = "../../tests/core/model.rs"]
pub mod model;
#[path = "../../tests/core/queue/world.rs"]
pub mod world;

use action::{Action, Ahead, Step, Verb};
use arbitrary::{Arbitrary, Result, Unstructured};
use ids::histories::Size;
pub use ids::histories::{share, SECOND};
use model::{Form, Rule, Windows};
use redis_rl::limiter::{Instant, Kind, MAX_PERIOD, MAX_UNITS, MIN_PERIOD};

/// The moment at which most sequences of calls begin, in microseconds since the Unix epoch.
pub const START: i64 = 1_760_000_000_000_000;

/// A number of units, 1 ..= `max`: small ones are the rule.
pub fn units(u: &mut Unstructured<'_>, max: u64) -> Result<u64> {
    Ok(match u.int_in_range(0..=7u8)? {
        0..=3 => u.int_in_range(1..=20)?,
        4 => u.int_in_range(1..=2_000)?,
        5 => u.int_in_range(1..=max)?,
        6 => 1,
        _ => max,
    }
    .min(max))
}

fn period(u: &mut Unstructured<'_>) -> Result<u64> {
    let (min, max) = (MIN_PERIOD.as_us(), MAX_PERIOD.as_us());
    Ok(match u.int_in_range(0..=7u8)? {
        0 | 1 => SECOND,
        2..=4 => u.int_in_range(min..=100_000)?,
        5 => u.int_in_range(min..=max)?,
        6 => min,
        _ => max,
    })
}

fn form(u: &mut Unstructured<'_>, kind: Kind, limit: u64, period: u64) -> Result<Form> {
    let size = period as i64 - 1;
    let capacity = |u: &mut Unstructured<'_>| {
        Ok(match u.int_in_range(0..=3u8)? {
            0 | 1 => None,
            2 => Some(u.int_in_range(1..=limit.saturating_mul(3).min(MAX_UNITS))?),
            _ => Some(units(u, MAX_UNITS)?),
        })
    };
    Ok(match kind {
        Kind::Fixed => Form::Fixed {
            windows: match u.int_in_range(0..=3u8)? {
                0 => Windows::Align(u.int_in_range(-size..=size)?),
                // The time counts from the start: see `starting`.
                1 | 2 => Windows::Until(u.int_in_range(-2 * size..=3 * size)?),
                _ => Windows::FirstCall,
            },
        },
        Kind::Slide => Form::Slide { segments: if u.arbitrary()? { units(u, 65_536)? } else { 65_536 } },
        Kind::Gcra => Form::Gcra { burst: capacity(u)? },
        // Callers ask for the rules of `Kind::RATES` only.
        Kind::Bucket | Kind::Lease => Form::Bucket { capacity: capacity(u)?, step: u.arbitrary()? },
    })
}

/// A rule of one algorithm, at the extremes as well.
pub fn rule(u: &mut Unstructured<'_>, kind: Kind) -> Result<Rule> {
    let (limit, period) = (units(u, kind.spec().max_limit)?, period(u)?);
    Ok(Rule { limit, period, form: form(u, kind, limit, period)? })
}

/// A rule near `first`: a change of policy that leaves something to carry.
fn near(u: &mut Unstructured<'_>, kind: Kind, first: &Rule) -> Result<Rule> {
    let mut scaled = |n: u64| Ok(if u.arbitrary()? { share(n, u.int_in_range(0..=3_000)?) } else { n });
    let limit = scaled(first.limit)?.clamp(1, kind.spec().max_limit);
    let period = scaled(first.period)?.clamp(MIN_PERIOD.as_us(), MAX_PERIOD.as_us());
    Ok(Rule { limit, period, form: form(u, kind, limit, period)? })
}

/// A rule, and up to three others near it.
pub fn rules(u: &mut Unstructured<'_>) -> Result<Vec<Rule>> {
    let kind = *u.choose(Kind::RATES)?;
    let mut rules = vec![rule(u, kind)?];
    for _ in 0..u.int_in_range(0..=3u8)? {
        rules.push(near(u, kind, &rules[0])?);
    }
    Ok(rules)
}

/// When a sequence begins: at the epoch, in our days, or whenever.
pub fn start(u: &mut Unstructured<'_>) -> Result<i64> {
    Ok(match u.int_in_range(0..=3u8)? {
        0 => 0,
        1 | 2 => START,
        _ => u.int_in_range(0..=2_000_000_000_000_000)?,
    })
}

/// The rules for calls from `start` on.
pub fn starting(rules: Vec<Rule>, start: i64) -> Vec<Rule> {
    rules.into_iter().map(|rule| rule.starting_at(start)).collect()
}

/// Whether the module refuses a call with this rule at `now`, because its window would end too far ahead.
pub fn is_refused(rule: &Rule, now: i64) -> bool {
    rule.policy().is_too_far_ahead(Instant::from_us(now))
}

impl<'a> Arbitrary<'a> for Action {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        // How many rules to move on by.
        let rule = u.int_in_range(0..=7usize)?.saturating_sub(4);
        let step = match u.int_in_range(0..=15u8)? {
            0 | 1 => Step::Us(0),
            2 => Step::Us(1),
            3 | 4 => Step::Us(u.int_in_range(0..=10_000)?),
            5..=8 => Step::Period(u.int_in_range(0..=255)?),
            9 => Step::Period(u.int_in_range(0..=3_000)?),
            10 | 11 => Step::Promise,
            12 => Step::Before,
            13 => Step::Reset,
            _ => Step::Back(u.int_in_range(0..=2_500)?),
        };
        let verb = match u.int_in_range(0..=7u8)? {
            0..=3 => Verb::Cost,
            4 | 5 => Verb::UpTo,
            6 => Verb::Force,
            _ => Verb::Refund,
        };
        let size = match u.int_in_range(0..=7u8)? {
            0..=3 => Size::Units(units(u, MAX_UNITS)?),
            _ => Size::Share(u.int_in_range(0..=2_500)?),
        };
        let ahead = match u.int_in_range(0..=15u8)? {
            0..=7 => Ahead::Us(0),
            8 => Ahead::Us(u.int_in_range(0..=10_000)?),
            9 => Ahead::Us(86_400 * SECOND),
            10 | 11 => Ahead::Period(u.int_in_range(0..=1_200)?),
            12 => Ahead::Period(u.int_in_range(0..=5_000)?),
            13 | 14 => Ahead::Wait,
            _ => Ahead::Less,
        };
        Ok(Self { rule, step, verb, size, ahead })
    }
}
