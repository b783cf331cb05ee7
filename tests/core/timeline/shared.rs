//! What all algorithms have in common.

use crate::key::{Key, Refusal, Steps};
use redis_rl::limiter::{
    Amount, Change, Decision, Instant, Kind, Quota, Request, Span, Wait, MAX_PERIOD, MAX_UNITS, MIN_PERIOD,
};

use super::{decision, request, rule, timelines, BOOKING};

#[test]
fn limit_zero_is_closed_and_touches_nothing() {
    for policy in
        ["FIXED 0 60s", "FIXED 0 60s ALIGN 1s", "SLIDE 0 60s", "GCRA 0 60s BURST 5", "BUCKET 0 60s CAPACITY 5 STEP"]
    {
        let name = policy.split(' ').next().unwrap();
        let reset = if matches!(name, "GCRA" | "BUCKET") { "400us" } else { "1ms" };
        timelines(&format!(
            "{policy}
                1s | {policy}             | COST 1   | 0 0 0 never 0
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
        ));
    }
}

#[test]
fn refund_on_a_missing_key_does_nothing() {
    for policy in
        ["FIXED 10 60s", "FIXED 10 60s ALIGN 1s", "SLIDE 10 60s", "GCRA 10 60s", "BUCKET 10 60s", "BUCKET 10 60s STEP"]
    {
        timelines(&format!("{policy}\n 1s | {policy} | REFUND 5 | 0 10 10 0 0"));
        let outcome = rule(policy).policy().decide(None, Instant::from_us(0), Request::now(Amount::Refund(5))).unwrap();
        assert_eq!(outcome.change, Change::Keep);
    }
}

#[test]
fn a_state_that_fits_no_record_is_refused() {
    let refused = |policy: &str, now, amount| {
        let mut key = Key::default();
        assert_eq!(key.call(&rule(policy), now, Request::now(amount)), Err(Refusal::Overflow), "{policy} {amount:?}");
        assert_eq!(key.value, None);
    };
    for policy in ["FIXED 1 3650d", "GCRA 1 3650d", "BUCKET 1 3650d", "BUCKET 1 3650d STEP"] {
        refused(policy, 0, Amount::Force(MAX_UNITS));
        refused(policy, i64::MAX - 1_000, Amount::Cost(1));
        // The longest debt that ends before the end of time, and one unit more.
        let most = i64::MAX as u64 / MAX_PERIOD.as_us();
        let mut key = Key::default();
        assert!(key.call(&rule(policy), 0, Request::now(Amount::Force(most))).is_ok());
        assert_eq!(key.call(&rule(policy), 0, BOOKING), Err(Refusal::Overflow), "{policy}");
        refused(policy, 0, Amount::Force(most + 1));
    }
    refused("SLIDE 10 60s", 0, Amount::Force(1 << 32));
    refused("SLIDE 10 60s", i64::MAX - 1_000, Amount::Cost(1));
    refused("GCRA 1 3650d BURST 1000000000000", 0, Amount::Cost(MAX_UNITS));

    let mut key = Key::default();
    let slide = rule("SLIDE 4294967295 60s");
    let all = Request::now(Amount::Cost(u32::MAX.into()));
    assert_eq!(key.call(&slide, 0, all).map(|decision| decision.granted), Ok(u32::MAX.into()));
    assert_eq!(key.call(&slide, 0, Request::now(Amount::Force(1))), Err(Refusal::Overflow));
    // The log counts this many units, together with those that are booked.
    assert_eq!(key.call(&slide, 0, BOOKING), Err(Refusal::Overflow));
}

#[test]
fn a_cost_above_the_capacity_is_never_booked() {
    for policy in ["FIXED 10 60s", "SLIDE 10 60s", "GCRA 99 60s BURST 10", "BUCKET 99 60s CAPACITY 10 STEP"] {
        timelines(&format!(
            "{policy}
                0 | {policy} | COST 11 RESERVE 1d | 0 10 10 never 0
                0 |          | REFUND 1           | 0 10 10 0 0"
        ));
    }
}

#[test]
fn only_cost_is_booked() {
    for policy in ["FIXED 10 60s", "SLIDE 10 60s SEGMENTS 1", "GCRA 1 60s BURST 10", "BUCKET 10 60s STEP"] {
        let (mut key, rule) = (Key::default(), rule(policy));
        key.call(&rule, 0, Request::now(Amount::Cost(10))).expect("a grant");
        let far = |amount| Request { ahead: BOOKING.ahead, ..Request::now(amount) };
        let denied = key.clone().call(&rule, 0, Request::now(Amount::UpTo(1))).expect("a decision");
        assert_eq!((denied.granted, key.call(&rule, 0, far(Amount::UpTo(1)))), (0, Ok(denied)), "{policy}");
        for (amount, granted) in [(Amount::Force(5), 5), (Amount::Refund(15), 15)] {
            let decision = key.call(&rule, 0, far(amount)).expect("a decision");
            assert_eq!((decision.granted, decision.wait), (granted, Wait::NONE), "{policy}");
        }
    }
}

#[test]
fn giving_all_back_removes_the_key_unless_a_window_runs() {
    for policy in [
        "SLIDE 10 60s",
        "GCRA 10 60s BURST 5",
        "BUCKET 10 60s",
        "BUCKET 10 60s STEP",
        "FIXED 10 60s",
        "FIXED 10 60s ALIGN 1s",
    ] {
        let mut key = Key::default();
        key.call(&rule(policy), 1_000_000, request("COST 3")).expect("a grant");
        let back = rule(policy).policy().decide(key.value.as_deref(), Instant::from_us(5_000_000), request("REFUND 3"));
        let change = back.expect("a decision").change;
        if policy.starts_with("FIXED") {
            // Until the window's end: the next one begins with a call.
            let Change::Write { expires, .. } = change else { panic!("{policy}: {change:?}") };
            assert_eq!(expires, Instant::from_us(61_000_000), "{policy}");
        } else {
            assert_eq!(change, Change::Remove, "{policy}");
        }
    }
}

#[test]
fn a_peek_shows_what_is_left_without_the_call() {
    for (policy, left) in [
        ("FIXED 10 60s", "7 60s"),
        ("SLIDE 10 60s SEGMENTS 60", "7 61s-1us"),
        ("GCRA 10 60s", "7 18s"),
        ("BUCKET 10 60s STEP", "7 60s"),
        ("BUCKET 10 60s", "7 18s"),
    ] {
        let mut key = Key::default();
        key.call(&rule(policy), 0, request("COST 3")).expect("a grant");
        for (asked, granted) in [("COST 2", 2), ("UPTO 9", 7)] {
            let peeked = rule(policy).policy().peek(key.value.as_deref(), Instant::from_us(0), request(asked));
            let [remaining, reset] = left.split(' ').collect::<Vec<_>>()[..] else { panic!("{left}") };
            let expected: Decision = decision(&format!("{granted} 10 {remaining} 0 {reset}"));
            assert_eq!(peeked, Ok(expected), "{policy}: {asked}");
        }
    }
}

#[test]
fn a_record_matches_the_policy_that_wrote_it_and_no_other() {
    for (written, others) in [
        ("FIXED 10 60s", &["FIXED 11 60s", "FIXED 10 61s", "FIXED 10 60s ALIGN 1s"][..]),
        ("GCRA 10 60s BURST 5", &["GCRA 11 60s BURST 5", "GCRA 10 61s BURST 5", "GCRA 10 60s BURST 6"]),
        ("BUCKET 10 60s CAPACITY 5", &["BUCKET 10 60s", "BUCKET 11 60s CAPACITY 5", "BUCKET 10 60s CAPACITY 5 STEP"]),
    ] {
        let mut key = Key::default();
        key.call(&rule(written), 10_000_000, request("COST 1")).expect("a grant");
        let value = key.value.expect("a record");
        assert!(rule(written).policy().wrote(&value), "{written}");
        for other in others {
            assert!(!rule(other).policy().wrote(&value), "{other} of {written}");
        }
    }
}

#[test]
fn quotas_have_these_bounds() {
    let valid = |limit, period_us| Quota::new(limit, Span::from_us(period_us)).is_some();
    let (shortest, longest) = (MIN_PERIOD.as_us(), MAX_PERIOD.as_us());
    assert!(valid(0, shortest) && valid(MAX_UNITS, longest));
    assert!(!valid(MAX_UNITS + 1, longest) && !valid(1, longest + 1) && !valid(1, shortest - 1));
    let quota = |limit| Quota::new(limit, MIN_PERIOD).expect("in range");
    assert!(Kind::Slide.policy(quota(u32::MAX.into())).is_some() && Kind::Slide.policy(quota(1 << 32)).is_none());
    assert!(Kind::Fixed.policy(quota(MAX_UNITS)).is_some());
}

/// A view stores only what a view of its own kind has decided. No type says so, so debug builds assert it.
#[cfg(debug_assertions)]
mod pairs {
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use redis_rl::limiter::{Bytes, Id, Next};

    use super::*;

    #[test]
    fn a_view_stores_no_state_of_another_kind() {
        let now = Instant::from_us(1_760_000_000_000_000);
        let quota = Quota::new(10, Span::from_us(60_000_000)).expect("in range");
        let policies: Vec<_> = Kind::ALL.iter().map(|kind| kind.policy(quota).expect("in range")).collect();
        let views: Vec<_> = policies.iter().map(|policy| policy.view(None, now).expect("no record")).collect();
        let id = Id::new(b"id").expect("an id");
        let requests = [Request::now(Amount::Cost(1)), Request::now(Amount::Cost(1)).with_id(id)];
        // Views of FIXED, GCRA and BUCKET are of one kind.
        let kind = |next: &Next<'_>| match next {
            Next::Keep | Next::Remove => None,
            Next::Meter(_) | Next::MeterWithIds(_) => Some(Kind::Gcra),
            Next::Slide(_) | Next::SlideWithIds(_) => Some(Kind::Slide),
            Next::Lease(_) => Some(Kind::Lease),
        };
        let mut refused = 0;
        for decides in &views {
            for (request, stores) in requests.iter().flat_map(|request| views.iter().map(move |view| (request, view))) {
                let (_, next) = decides.decide(*request).expect("a decision");
                let own = kind(&stores.decide(requests[1]).expect("a decision").1);
                let stored = catch_unwind(AssertUnwindSafe(|| stores.store(&next, || 0x5eed, &mut Bytes::default())));
                match stored {
                    Ok(change) => {
                        assert!(kind(&next).is_none() || kind(&next) == own, "{next:?}");
                        assert_eq!(change == Change::Keep, matches!(next, Next::Keep));
                    }
                    Err(panic) => {
                        assert!(kind(&next).is_some() && kind(&next) != own, "{next:?}");
                        let text = panic.downcast_ref::<&str>().copied();
                        assert_eq!(text, Some("a view stores only what it has decided itself"));
                        refused += 1;
                    }
                }
            }
        }
        // Two states each of three views of one kind are refused by two views, two of SLIDE by four, and that of a lease by
        // four.
        assert_eq!(refused, 12 + 8 + 4);
    }
}
