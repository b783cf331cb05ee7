//! The core answers every sequence of calls as the exact model does: across changes of policy, bookings and clock steps.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use redis_rl::limiter::{MAX_PERIOD};
use redis_rl_fuzz::steps::{DecideError};
use redis_rl_fuzz::model::{Key, Model, Rule, Silence};
use redis_rl_fuzz::{rules, start, Call, Clock, Step};

/// As many as make a sequence that is still played in a millisecond or so: rational numbers are slow.
const MOST: usize = 60;

/// Past this moment, 294 thousand years from now, not even the window in force need fit: then the core may refuse more.
const LAST: i64 = i64::MAX - 2 * MAX_PERIOD.as_us() as i64;

#[derive(Debug)]
struct Play {
    rules: Vec<Rule>,
    start: i64,
    expiring: bool,
    calls: Vec<Call>,
}

impl<'a> Arbitrary<'a> for Play {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (rules, start, expiring) = (rules(u)?, start(u)?, u.arbitrary()?);
        let mut calls = Vec::new();
        while !u.is_empty() && calls.len() < MOST {
            calls.push(u.arbitrary()?);
        }
        Ok(Self { rules, start, expiring, calls })
    }
}

fuzz_target!(|play: Play| {
    let Play { rules, start, expiring, calls } = play;
    // An expired key would have to be told to the model where a longer period, or the clock, goes back to what it held.
    let expiring = expiring && rules.len() == 1 && !calls.iter().any(|call| matches!(call.step, Step::Back(_)));
    let (mut key, mut model, mut clock) = (Key::default(), Model::default(), Clock::new(start));
    let mut in_force = 0;
    for call in &calls {
        in_force += call.change;
        let rule = &rules[in_force % rules.len()];
        let request = clock.next(call, rule, &key);
        if clock.now > LAST {
            break;
        }
        if expiring {
            key.expire(clock.now);
        }
        let expected = model.call(rule, clock.now, request);
        if expected == Err(Silence::Open) {
            break;
        }
        let actual = key.call(rule, clock.now, request);
        let expected = expected.map_err(|_| DecideError::Overflow);
        assert_eq!(actual, expected, "core and model at {} us: {request:?} of {rule:?}", clock.now);
        if let Ok(decision) = actual {
            clock.heard(&decision);
        }
    }
});
