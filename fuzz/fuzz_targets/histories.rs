//! The core answers every history of charges with ids as the exact model does: retries, settlements in any order, releases,
//! refunds, changes of policy.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use redis_rl::limiter::{Amount, Request, Span, MAX_UNITS};
use redis_rl_fuzz::ids::core::{difference, Timed};
use redis_rl_fuzz::ids::rule::Call;
use redis_rl_fuzz::model::Rule;
use redis_rl_fuzz::{is_refused, rules, share, start, starting, units};

/// The most calls in a history: the model computes with rational numbers, for each id.
const MAX_CALLS: usize = 60;

#[derive(Debug)]
struct History {
    rules: Vec<Rule>,
    calls: Vec<Timed>,
    expiring: bool,
}

/// An id by its number: ids of various lengths.
fn id(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number) * 7 % 64]
}

fn call(u: &mut Unstructured<'_>, rule: &Rule) -> Result<Call> {
    let size = |u: &mut Unstructured<'_>| {
        Ok(if u.arbitrary()? {
            units(u, MAX_UNITS)?
        } else {
            share(rule.capacity(), u.int_in_range(0..=1_500)?).clamp(1, MAX_UNITS)
        })
    };
    let number = u.int_in_range(0..=30u8)?;
    let named = u.ratio(3, 4)?.then(|| id(number));
    Ok(match u.int_in_range(0..=15u8)? {
        0..=5 => Call::Charge(Request::now(Amount::Cost(size(u)?)), named),
        6 => {
            let ahead = share(rule.period, u.int_in_range(0..=2_500)?);
            Call::Charge(Request { ahead: Span::from_us(ahead), ..Request::now(Amount::Cost(size(u)?)) }, named)
        }
        7 | 8 => Call::Charge(Request::now(Amount::UpTo(size(u)?)), named),
        9 => Call::Charge(Request::now(Amount::Force(size(u)?)), None),
        10 => Call::Charge(Request::now(Amount::Refund(size(u)?)), None),
        11..=13 => Call::Settle(id(number), size(u)?),
        _ => Call::Settle(id(number), 0),
    })
}

impl<'a> Arbitrary<'a> for History {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (rules, mut now, expiring) = (rules(u)?, start(u)?.clamp(0, i64::MAX / 4), u.arbitrary()?);
        let rules = starting(rules, now);
        let (mut calls, mut rule) = (Vec::new(), 0);
        while !u.is_empty() && calls.len() < MAX_CALLS {
            rule += u.int_in_range(0..=7usize)?.saturating_sub(5);
            let in_force = rule % rules.len();
            let period = rules[in_force].period;
            now += match u.int_in_range(0..=7u8)? {
                0..=2 => 0,
                3 => 1,
                4 => u.int_in_range(0..=5_000)?,
                5 | 6 => share(period, u.int_in_range(0..=255)?) as i64,
                _ => share(period, u.int_in_range(0..=3_000)?) as i64,
            };
            let call = call(u, &rules[in_force])?;
            if !is_refused(&rules[in_force], now) {
                calls.push((now, in_force, call));
            }
        }
        Ok(Self { rules, calls, expiring })
    }
}

fuzz_target!(|history: History| {
    let History { rules, calls, expiring } = history;
    // The model does not know that keys expire. That makes a difference only under a longer period.
    let difference = difference(&rules, &calls, expiring && rules.len() == 1);
    assert!(difference.is_none(), "{rules:?} {calls:?}: {difference:?}");
});
