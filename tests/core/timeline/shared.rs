//! What all algorithms have in common.

use crate::steps::{Change, DecideError, Steps};
use redis_rl::limiter::{Amount, Instant, Request, Wait, MAX_PERIOD, MAX_UNITS};

use super::{rule, timeline, BOOKING};
use crate::model::Key;

#[test]
fn limit_zero_is_closed_and_touches_nothing() {
    for policy in
        ["FIXED 0 60s", "FIXED 0 60s ALIGN 1s", "SLIDE 0 60s", "GCRA 0 60s BURST 5", "BUCKET 0 60s CAPACITY 5 STEP"]
    {
        let name = policy.split(' ').next().unwrap();
        timeline(
            policy,
            &format!(
                "1s | {policy}             | COST 1   | 0 0 0 never 0
                 1s |                      | UPTO 1   | 0 0 0 never 0
                 1s |                      | FORCE 1  | 0 0 0 never 0
                 1s |                      | REFUND 1 | 0 0 0 never 0
                 1s |                      | COST 1 RESERVE 1d | 0 0 0 never 0
                 1s | {name} 10 1ms        | COST 4   | 4 10 6 0 {reset}
                 1s | {policy}             | COST 1   | 0 0 0 never 0
                 1s |                      | UPTO 1   | 0 0 0 never 0
                 1s |                      | FORCE 1  | 0 0 0 never 0
                 1s |                      | REFUND 4 | 0 0 0 never 0
                 1s | {name} 10 1ms        | COST 6   | 6 10 0 0 1ms",
                reset = if matches!(name, "GCRA" | "BUCKET") { "400us" } else { "1ms" },
            ),
        );
    }
}

#[test]
fn refund_on_a_missing_key_does_nothing() {
    for policy in
        ["FIXED 10 60s", "FIXED 10 60s ALIGN 1s", "SLIDE 10 60s", "GCRA 10 60s", "BUCKET 10 60s", "BUCKET 10 60s STEP"]
    {
        timeline(policy, &format!("1s | {policy} | REFUND 5 | 0 10 10 0 0"));
        let outcome = rule(policy).policy().decide(None, Instant::from_us(0), Request::now(Amount::Refund(5))).unwrap();
        assert_eq!(outcome.change, Change::Keep);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |policy: &str, now, amount| {
        let mut key = Key::default();
        assert_eq!(key.call(&rule(policy), now, Request::now(amount)), Err(DecideError::Overflow), "{policy} {amount:?}");
        assert_eq!(key.value, None);
    };
    for policy in ["FIXED 1 3650d", "GCRA 1 3650d", "BUCKET 1 3650d", "BUCKET 1 3650d STEP"] {
        refused(policy, 0, Amount::Force(MAX_UNITS));
        refused(policy, i64::MAX - 1_000, Amount::Cost(1));
        // The longest debt that ends before the end of time, and one unit more.
        let most = i64::MAX as u64 / MAX_PERIOD.as_us();
        let mut key = Key::default();
        assert!(key.call(&rule(policy), 0, Request::now(Amount::Force(most))).is_ok());
        assert_eq!(key.call(&rule(policy), 0, BOOKING), Err(DecideError::Overflow), "{policy}");
        refused(policy, 0, Amount::Force(most + 1));
    }
    refused("SLIDE 10 60s", 0, Amount::Force(1 << 32));
    refused("SLIDE 10 60s", i64::MAX - 1_000, Amount::Cost(1));
    refused("GCRA 1 3650d BURST 1000000000000", 0, Amount::Cost(MAX_UNITS));

    let mut key = Key::default();
    let slide = rule("SLIDE 4294967295 60s");
    let all = Request::now(Amount::Cost(u32::MAX.into()));
    assert_eq!(key.call(&slide, 0, all).map(|decision| decision.granted), Ok(u32::MAX.into()));
    assert_eq!(key.call(&slide, 0, Request::now(Amount::Force(1))), Err(DecideError::Overflow));
    // The log counts this many units, together with those that are booked.
    assert_eq!(key.call(&slide, 0, BOOKING), Err(DecideError::Overflow));
}

#[test]
fn a_cost_above_the_capacity_is_never_booked() {
    for policy in ["FIXED 10 60s", "SLIDE 10 60s", "GCRA 99 60s BURST 10", "BUCKET 99 60s CAPACITY 10 STEP"] {
        timeline(
            policy,
            &format!(
                "0 | {policy} | COST 11 RESERVE 1d | 0 10 10 never 0
                 0 |          | REFUND 1           | 0 10 10 0 0"
            ),
        );
    }
}

#[test]
fn only_cost_is_booked() {
    for policy in ["FIXED 10 60s", "SLIDE 10 60s SEGMENTS 1", "GCRA 1 60s BURST 10", "BUCKET 10 60s STEP"] {
        let (mut key, rule) = (Key::default(), rule(policy));
        key.call(&rule, 0, Request::now(Amount::Cost(10))).expect("a grant");
        let far = |amount| Request { amount, ahead: BOOKING.ahead };
        let denied = key.clone().call(&rule, 0, Request::now(Amount::UpTo(1))).expect("a decision");
        assert_eq!((denied.granted, key.call(&rule, 0, far(Amount::UpTo(1)))), (0, Ok(denied)), "{policy}");
        for (amount, granted) in [(Amount::Force(5), 5), (Amount::Refund(15), 15)] {
            let decision = key.call(&rule, 0, far(amount)).expect("a decision");
            assert_eq!((decision.granted, decision.wait), (granted, Wait::NONE), "{policy}");
        }
    }
}
