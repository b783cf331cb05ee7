//! A limit that changes on a live key keeps every promise: a denied call writes nothing, and yet the wait that it is told
//! under the new policy is enough.

mod model;

use proptest::prelude::*;
use redis_rl::limiter::{Amount, Change, Instant, Kind, Policy, Quota, Request, Span, Wait};

fn policy(kind: Kind) -> impl Strategy<Value = Policy> {
    let limit = prop_oneof![1..20_u64, 1..1_000_000_u64];
    let period = prop_oneof![1_000..100_000_u64, 1_000_000..100_000_000_u64, Just(86_400_000_000_u64)];
    (limit, period, any::<[bool; 2]>(), 1..50_u64).prop_map(move |(limit, period, [first, second], option)| {
        let quota = Quota::new(limit, Span::from_us(period)).expect("in range");
        let mut policy = kind.policy(quota).expect("in range");
        if first && kind != Kind::Fixed {
            policy.set(0, option as i64);
        }
        if second && kind == Kind::Bucket {
            policy.set(1, 1);
        }
        policy
    })
}

fn kinds() -> impl Strategy<Value = (Policy, Policy)> {
    prop::sample::select(Kind::ALL).prop_flat_map(|kind| (policy(kind), policy(kind)))
}

fn smooth(policy: &Policy) -> bool {
    matches!(policy.kind(), Kind::Gcra | Kind::Slide) || format!("{policy:?}").contains("step: false")
}

fn at(us: u64) -> Instant {
    Instant::from_us(1_000_000_000_000_000 + us as i64)
}

/// What the key holds after these calls.
fn written(policy: &Policy, calls: &[(u64, Amount)]) -> Option<Vec<u8>> {
    let mut key: Option<Vec<u8>> = None;
    for &(us, amount) in calls {
        let outcome = policy.decide(key.as_deref(), at(us), Request::now(amount)).expect("a decision");
        match outcome.change {
            Change::Keep => {}
            Change::Remove => key = None,
            Change::Write { offset, head, bytes, .. } => {
                model::write(key.get_or_insert_default(), offset, head, bytes.as_slice());
            }
        }
    }
    key
}

fn decide(policy: &Policy, key: &Option<Vec<u8>>, us: u64, n: u64) -> (u64, Wait) {
    let decision = policy.decide(key.as_deref(), at(us), Request::now(Amount::Cost(n))).expect("a decision").decision;
    (decision.granted, decision.wait)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200_000, ..ProptestConfig::default() })]

    #[test]
    fn who_is_denied_under_a_new_policy_waits_no_longer_than_told(
        (old, new) in kinds(),
        taken in 1..30_u64,
        forced in 1..30_u64,
        gap in prop_oneof![0..1_000_u64, 0..1_000_000_u64, 0..100_000_000_u64],
        n in 1..5_u64,
    ) {
        let key = written(&old, &[(0, Amount::UpTo(taken)), (7, Amount::Force(forced))]);
        // As told by a call that comes with the change, right after the last grant.
        let now = 7 + gap;
        if let (0, Wait::For(wait)) = decide(&new, &key, 7, n) {
            prop_assert_eq!(decide(&new, &key, 7 + wait.as_us(), n).0, n, "after {:?}", wait);
        }
        // As told later. Where usage drains in steps, an old step that falls meanwhile may shift what the new ones pay.
        if smooth(&old) && smooth(&new) {
            if let (0, Wait::For(wait)) = decide(&new, &key, now, n) {
                // Rounding across a change is against the caller, by less than a microsecond.
                prop_assert_eq!(decide(&new, &key, now + wait.as_us() + 1, n).0, n, "after {:?}", wait);
            }
        }
    }
}

#[test]
fn a_faster_limit_frees_a_key_that_was_full_at_a_slower_one() {
    for kind in [Kind::Gcra, Kind::Bucket] {
        let policy = |limit, seconds: u64| {
            kind.policy(Quota::new(limit, Span::from_us(seconds * 1_000_000)).expect("ok")).expect("ok")
        };
        let key = written(&policy(10, 86_400), &[(0, Amount::Cost(10))]);
        assert_eq!(decide(&policy(10, 1), &key, 10_000, 1), (0, Wait::For(Span::from_us(90_000))));
        assert_eq!(decide(&policy(10, 1), &key, 99_999, 1), (0, Wait::For(Span::from_us(1))));
        assert_eq!(decide(&policy(10, 1), &key, 100_000, 1).0, 1);
        // A lower limit: denied for a new emission interval, and not until the old usage is below the new limit.
        assert_eq!(decide(&policy(5, 10), &key, 0, 1), (0, Wait::For(Span::from_us(2_000_000))));
        assert_eq!(decide(&policy(5, 10), &key, 2_000_000, 1).0, 1);
    }
}

#[test]
fn two_grids_on_one_key_grant_no_more_than_one() {
    for (period, one, other) in [(86_400, 0, -28_800), (86_400, 0, 28_800), (3_600, 0, 1_800)] {
        let policy = |offset: i64| {
            let mut policy = Kind::Fixed.policy(Quota::new(10, Span::from_us(period * 1_000_000)).expect("ok")).expect("ok");
            policy.set(0, offset * 1_000_000);
            policy
        };
        let (one, other) = (policy(one), policy(other));
        let mut key = None;
        let mut granted = 0;
        // A call a second for ten minutes: one end of a window may lie in there for each of the grids.
        for second in 0..600 {
            let request = Request::now(Amount::Cost(1));
            let policy = if second % 2 == 0 { &one } else { &other };
            let outcome = policy.decide(key.as_deref(), at(second * 1_000_000), request).expect("a decision");
            granted += outcome.decision.granted;
            if let Change::Write { bytes, .. } = outcome.change {
                key = Some(bytes.as_slice().to_vec());
            }
        }
        assert!((10..=30).contains(&granted), "{granted}");
    }
}

#[test]
fn entries_that_come_back_to_life_do_not_make_the_counts_come_full_circle() {
    let slide = |segments: i64| {
        let quota = Quota::new(u32::MAX.into(), Span::from_us(60_000_000)).expect("in range");
        let mut policy = Kind::Slide.policy(quota).expect("in range");
        policy.set(0, segments);
        policy
    };
    let mut calls = vec![(0, Amount::Cost(4_000_000_000))];
    calls.extend((1..=8).map(|second| (second * 1_000_000, Amount::Cost(1))));
    calls.push((61_000_000, Amount::Cost(4_000_000_000)));
    let key = written(&slide(60), &calls);
    // What is used leaves less than this, in fine ticks as in coarse ones, which may count more but never less.
    assert_eq!(decide(&slide(60), &key, 62_000_000, 589_934_583).0, 0);
    assert_eq!(decide(&slide(6), &key, 62_000_000, 589_934_583).0, 0);
}
