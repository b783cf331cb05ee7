//! The core answers every sequence of calls as the exact model does: across changes of policy, bookings and clock steps.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use redis_rl::limiter::{Instant, MAX_PERIOD};
use redis_rl_fuzz::action::{Action, Clock, Step};
use redis_rl_fuzz::key::{Key, Refusal};
use redis_rl_fuzz::model::{Model, Rule, Silence};
use redis_rl_fuzz::{is_refused, rules, start, starting};

/// The most calls in a sequence. The model computes with rational numbers, which is slow: so many calls take about a
/// millisecond.
const MAX_CALLS: usize = 60;

/// The latest time of a call, 294 thousand years from now. After it even the end of the present window may not fit a record,
/// and the core may refuse calls that the model decides.
const LAST: i64 = i64::MAX - 2 * MAX_PERIOD.as_us() as i64;

#[derive(Debug)]
struct Play {
    rules: Vec<Rule>,
    start: i64,
    expiring: bool,
    calls: Vec<Action>,
}

impl<'a> Arbitrary<'a> for Play {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (rules, start, expiring) = (rules(u)?, start(u)?, u.arbitrary()?);
        let rules = starting(rules, start);
        let mut calls = Vec::new();
        while !u.is_empty() && calls.len() < MAX_CALLS {
            calls.push(u.arbitrary()?);
        }
        Ok(Self { rules, start, expiring, calls })
    }
}

fuzz_target!(|play: Play| {
    let Play { rules, start, expiring, calls } = play;
    // The model does not know that keys expire. That makes a difference only if a longer period, or a clock that steps back,
    // would count the expired usage again. So keys expire only in sequences without either.
    let expiring = expiring && rules.len() == 1 && !calls.iter().any(|call| matches!(call.step, Step::Back(_)));
    let (mut key, mut model, mut clock) = (Key::default(), Model::default(), Clock::new(start));
    let mut in_force = 0;
    for call in &calls {
        in_force += call.rule;
        let rule = &rules[in_force % rules.len()];
        let (now, request) = clock.next(rule, call, &key);
        if now > LAST {
            break;
        }
        if is_refused(rule, clock.now) {
            continue;
        }
        if expiring {
            key.expire(Instant::from_us(clock.now));
        }
        let expected = model.call(rule, clock.now, request);
        if expected == Err(Silence::Open) {
            break;
        }
        let actual = key.call(rule, clock.now, request);
        let expected = expected.map_err(|_| Refusal::Overflow);
        assert_eq!(actual, expected, "core and model differ at {} us: {request:?} of {rule:?}", clock.now);
        if let Ok(decision) = actual {
            clock.note_reply(&decision);
        }
    }
});
