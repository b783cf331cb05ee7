//! A limit that changes on a live key keeps the waits and resets that replies have named. A denied call writes nothing, and
//! still the wait in its reply is long enough under the new policy.

use crate::key::{Outcome, Steps};
use proptest::prelude::*;
use redis_rl::limiter::{
    inspect, Amount, Change, Decision, Fact, Instant, Kind, OptionValue, Policy, PolicyOption, Quota, Request, Span, Wait,
};

fn policy(kind: Kind) -> impl Strategy<Value = Policy> {
    let limit = prop_oneof![1..20_u64, 1..1_000_000_u64];
    let period = prop_oneof![1_000..100_000_u64, 1_000_000..100_000_000_u64, Just(86_400_000_000_u64)];
    (limit, period, any::<[bool; 2]>(), 1..50_u64).prop_map(move |(limit, period, [first, second], option)| {
        let quota = Quota::new(limit, Span::from_us(period)).expect("in range");
        let mut policy = kind.policy(quota).expect("in range");
        let first_option = match kind {
            Kind::Fixed | Kind::Lease => None,
            Kind::Slide => Some(PolicyOption::Segments(option)),
            Kind::Gcra => Some(PolicyOption::Burst(option)),
            Kind::Bucket => Some(PolicyOption::Capacity(option)),
        };
        if let Some(option) = first_option.filter(|_| first) {
            policy = policy.with(option);
        }
        if second && kind == Kind::Bucket {
            policy = policy.with(PolicyOption::Step);
        }
        policy
    })
}

fn kinds() -> impl Strategy<Value = (Policy, Policy)> {
    prop::sample::select(Kind::RATES).prop_flat_map(|kind| (policy(kind), policy(kind)))
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
        outcome.change.apply(&outcome.bytes, &mut key);
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
    fn a_denial_under_a_new_policy_lasts_no_longer_than_its_wait(
        (old, new) in kinds(),
        taken in 1..30_u64,
        forced in 1..30_u64,
        gap in prop_oneof![0..1_000_u64, 0..1_000_000_u64, 0..100_000_000_u64],
        n in 1..5_u64,
    ) {
        let key = written(&old, &[(0, Amount::UpTo(taken)), (7, Amount::Force(forced))]);
        // The wait in the reply to a call that comes with the change, right after the last grant.
        let now = 7 + gap;
        if let (0, Wait::For(wait)) = decide(&new, &key, 7, n) {
            prop_assert_eq!(decide(&new, &key, 7 + wait.as_us(), n).0, n, "after {:?}", wait);
        }
        // The wait in the reply to a later call. If usage drains in steps, an old step that falls meanwhile may shift what
        // the new steps drain.
        if smooth(&old) && smooth(&new) {
            if let (0, Wait::For(wait)) = decide(&new, &key, now, n) {
                // Rounding at a change is against the caller, by less than a microsecond.
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
        // The limit becomes lower: the call is denied for an emission interval of the new limit, and not until the old usage
        // is below it.
        assert_eq!(decide(&policy(5, 10), &key, 0, 1), (0, Wait::For(Span::from_us(2_000_000))));
        assert_eq!(decide(&policy(5, 10), &key, 2_000_000, 1).0, 1);
    }
}

#[test]
fn two_grids_on_one_key_grant_no_more_than_one() {
    for (period, one, other) in [(86_400, 0, -28_800), (86_400, 0, 28_800), (3_600, 0, 1_800)] {
        let policy = |offset: i64| {
            let policy = Kind::Fixed.policy(Quota::new(10, Span::from_us(period * 1_000_000)).expect("ok")).expect("ok");
            policy.with(PolicyOption::Align(offset * 1_000_000))
        };
        let (one, other) = (policy(one), policy(other));
        let mut key = None;
        let mut granted = 0;
        // A call each second for ten minutes: for each of the grids, one end of a window can lie within that time.
        for second in 0..600 {
            let request = Request::now(Amount::Cost(1));
            let policy = if second % 2 == 0 { &one } else { &other };
            let outcome = policy.decide(key.as_deref(), at(second * 1_000_000), request).expect("a decision");
            granted += outcome.decision.granted;
            if let Change::Write { .. } = outcome.change {
                key = Some(outcome.bytes.as_slice().to_vec());
            }
        }
        assert!((10..=30).contains(&granted), "{granted}");
    }
}

#[test]
fn expired_entries_that_count_again_do_not_overflow_the_counts() {
    let slide = |segments: u64| {
        let quota = Quota::new(u32::MAX.into(), Span::from_us(60_000_000)).expect("in range");
        Kind::Slide.policy(quota).expect("in range").with(PolicyOption::Segments(segments))
    };
    let mut calls = vec![(0, Amount::Cost(4_000_000_000))];
    calls.extend((1..=8).map(|second| (second * 1_000_000, Amount::Cost(1))));
    calls.push((61_000_000, Amount::Cost(4_000_000_000)));
    let key = written(&slide(60), &calls);
    // The policies with finer and with coarser ticks have less than this left. Coarser ticks may count more, but never less.
    assert_eq!(decide(&slide(60), &key, 62_000_000, 589_934_583).0, 0);
    assert_eq!(decide(&slide(6), &key, 62_000_000, 589_934_583).0, 0);
    // For a longer period the first call counts again, or is forgotten. It does not make room.
    let quota = Quota::new(u32::MAX.into(), Span::from_us(120_000_000)).expect("in range");
    let longer = Kind::Slide.policy(quota).expect("in range").with(PolicyOption::Segments(120));
    assert_eq!(decide(&longer, &key, 62_000_000, 294_967_288).0, 0);
}

#[test]
fn a_long_period_and_fine_ticks_share_a_log_of_entries_that_fit() {
    let (decade, moment) = (slide(10, 315_360_000, 65_536), slide(10, 1, 65_536));
    let mut key = None;
    charge(&decade, &mut key, 0, Amount::Cost(1));
    charge(&moment, &mut key, 1_000_000, Amount::Cost(1));
    // Ten years in 2^28 ticks, so that a booking's tick fits 32 bits.
    assert_eq!(fact(&key, 1_000_000, "tick_us"), Fact::Number(315_360_000_000_000_u64.div_ceil(1 << 28) as i64));
    assert_eq!(fact(&key, 1_000_000, "used"), Fact::Number(2));
}

/// A SLIDE limiter with a period of so many seconds.
fn slide(limit: u64, seconds: u64, segments: u64) -> Policy {
    let quota = Quota::new(limit, Span::from_us(seconds * 1_000_000)).expect("in range");
    Kind::Slide.policy(quota).expect("in range").with(PolicyOption::Segments(segments))
}

/// Makes a call and carries out its change. Returns the decision and how many bytes of the value stayed, were changed in
/// place, and were written.
fn charge(policy: &Policy, key: &mut Option<Vec<u8>>, us: u64, amount: Amount) -> (Decision, Option<(usize, usize, usize)>) {
    let Outcome { decision, change, bytes } =
        policy.decide(key.as_deref(), at(us), Request::now(amount)).expect("a decision");
    change.apply(&bytes, key);
    let written = match change {
        Change::Keep | Change::Remove => None,
        Change::Write { offset, head, .. } => Some((offset, head, bytes.as_slice().len())),
        Change::Patch { .. } => panic!("a record without ids is not patched"),
    };
    (decision, written)
}

fn fact(key: &Option<Vec<u8>>, us: u64, name: &str) -> Fact {
    let report = inspect(key.as_deref().expect("a key"), at(us)).expect("a record");
    report.into_iter().find(|fact| fact.0 == name).expect("a fact of this name").1
}

#[test]
fn two_segments_in_turn_push_nothing_ahead() {
    let (fine, coarse) = (slide(1_000, 86_400, 65_536), slide(1_000, 86_400, 24));
    let mut key = None;
    for call in 0..600 {
        let policy = if call % 2 == 0 { &fine } else { &coarse };
        let (decision, written) = charge(policy, &mut key, call * 1_000_000, Amount::Cost(1));
        assert_eq!(decision.granted, 1);
        // The log's period is a day, and its tick the finer one.
        assert!(decision.reset <= Span::from_us(86_400_000_000 + 1_318_360), "{decision:?}");
        let whole = written.is_some_and(|(offset, ..)| offset == 0);
        assert!(!whole || call == 0, "call {call} wrote all of the log");
    }
    // No caller is locked out for longer than a window and a tick, however the ticks of the policies lie.
    let (ten, seven) = (slide(10, 60, 10), slide(10, 60, 7));
    let (mut key, mut last) = (None, 0);
    for call in 0..3_600 {
        let policy = if call % 2 == 0 { &ten } else { &seven };
        let (decision, _) = charge(policy, &mut key, call * 1_000_000, Amount::UpTo(10));
        if decision.granted > 0 {
            last = call;
        }
        assert!(call - last <= 66, "nothing granted for {} s", call - last);
    }
}

#[test]
fn a_limit_that_differs_changes_the_header_and_nothing_else() {
    let (ten, twenty) = (slide(10, 60, 60), slide(20, 60, 60));
    let mut key = None;
    charge(&ten, &mut key, 0, Amount::Cost(1));
    for call in 1..8 {
        let (policy, limit) = if call % 2 == 0 { (&ten, 10) } else { (&twenty, 20) };
        let (decision, written) = charge(policy, &mut key, call * 1_000_000, Amount::Cost(1));
        assert_eq!((decision.granted, decision.remaining), (1, limit - call - 1));
        assert_eq!(written, Some((40 + 8 * call as usize, 40, 48)), "call {call}");
        assert_eq!(fact(&key, call * 1_000_000, "limit"), Fact::Number(limit as i64));
        assert_eq!(fact(&key, call * 1_000_000, "used"), Fact::Number(call as i64 + 1));
    }
    // A denial changes nothing, and a refund changes just as little of the layout.
    assert_eq!(charge(&slide(5, 60, 60), &mut key, 8_000_000, Amount::Cost(1)).1, None);
    assert_eq!(charge(&ten, &mut key, 8_000_000, Amount::Refund(2)).1, Some((40 + 8 * 5, 40, 48)));
    assert_eq!((fact(&key, 8_000_000, "limit"), fact(&key, 8_000_000, "used")), (Fact::Number(10), Fact::Number(6)));
}

#[test]
fn a_shorter_period_takes_over_once_it_is_alone_for_a_longer_one() {
    let (minute, moment) = (slide(10, 60, 60), slide(100, 4, 4));
    let mut key = None;
    let second = |second: u64| second * 1_000_000;
    charge(&minute, &mut key, second(0), Amount::Cost(5));
    for now in 1..=8 {
        charge(&moment, &mut key, second(now), Amount::Cost(1));
    }
    // The call counts its own window, and the log the other's. When the one holds nothing, the other is unchanged.
    charge(&moment, &mut key, second(9), Amount::Refund(100));
    assert_eq!(fact(&key, second(9), "period_ms"), Fact::Milliseconds(Span::from_us(60_000_000)));
    assert_eq!((fact(&key, second(9), "limit"), fact(&key, second(9), "used")), (Fact::Number(10), Fact::Number(9)));
    let left = |policy: &Policy, key: &Option<Vec<u8>>, now: u64| {
        policy.peek(key.as_deref(), at(second(now)), Request::now(Amount::Cost(1))).expect("a decision").remaining
    };
    assert_eq!((left(&minute, &key, 9), left(&moment, &key, 9)), (1, 100));
    // As long as the caller with the longer period is granted units now and then, the log keeps its period.
    for now in 10..200 {
        let policy = if now % 50 == 0 { &minute } else { &moment };
        let (decision, _) = charge(policy, &mut key, second(now), Amount::Force(1));
        assert_eq!(decision.granted, 1);
        assert_eq!(fact(&key, second(now), "period_ms"), Fact::Milliseconds(Span::from_us(60_000_000)), "second {now}");
    }
    assert_eq!(left(&slide(1_000, 60, 60), &key, 199), 1_000 - 61);
    // Its last grant was at 150 s. A period and a quarter later, the log has the shorter period, and is as small.
    for now in 200..=226 {
        charge(&moment, &mut key, second(now), Amount::Cost(1));
    }
    assert_eq!(fact(&key, second(226), "period_ms"), Fact::Milliseconds(Span::from_us(4_000_000)));
    assert_eq!(fact(&key, second(226), "limit"), Fact::Number(100));
    assert!(key.as_ref().is_some_and(|key| key.len() <= 40 + 8 * 7));
    assert!(left(&slide(1_000, 60, 60), &key, 226) >= 1_000 - 7);
}

#[test]
fn a_booking_stays_in_place_in_a_shared_log() {
    let (minute, moment) = (slide(10, 60, 60), slide(10, 4, 400));
    let mut key = None;
    charge(&minute, &mut key, 0, Amount::Cost(10));
    let ahead = Request { ahead: Span::from_us(70_000_000), ..Request::now(Amount::Cost(10)) };
    let Outcome { decision, change, bytes } = minute.decide(key.as_deref(), at(1_000_000), ahead).expect("a decision");
    let Wait::For(wait) = decision.wait else { panic!("{decision:?}") };
    change.apply(&bytes, &mut key);
    let acts = 1_000_000 + wait.as_us();
    // A caller with finer ticks and a shorter period: the log adopts the ticks, and bookings count for both callers.
    charge(&moment, &mut key, 2_000_000, Amount::Force(1));
    assert_eq!(fact(&key, 2_000_000, "bookings"), Fact::Number(11));
    assert_eq!(fact(&key, 2_000_000, "tick_us"), Fact::Number(10_000));
    let free = |policy: &Policy, us: u64| decide(policy, &key, us, 10).0 == 10;
    for (policy, period) in [(&minute, 60_000_000), (&moment, 4_000_000)] {
        assert!(!free(policy, acts + period - 1));
        assert!(free(policy, acts + period + 1_000_000 + 10_000));
    }
}

#[test]
fn tokens_of_steps_flow_from_the_last_grant_on() {
    let bucket = |limit, seconds: u64, step: bool| {
        let policy = Kind::Bucket.policy(Quota::new(limit, Span::from_us(seconds * 1_000_000)).expect("ok")).expect("ok");
        if step {
            policy.with(PolicyOption::Step)
        } else {
            policy
        }
    };
    for (last, missing) in [(0, 5), (1, 5), (29_999_999, 5), (59_999_999, 10)] {
        let mut key = None;
        charge(&bucket(10, 60, true), &mut key, 0, Amount::Cost(5));
        charge(&bucket(10, 60, true), &mut key, last, Amount::Cost(missing));
        let used = if last == 59_999_999 { 5 } else { 10 };
        assert_eq!(fact(&key, last, "used"), Fact::Number(used));
        assert_eq!(fact(&key, last, "next_step_ms"), fact(&key, 0, "next_step_ms"));
        if used == 10 {
            // Nothing is free at once. Then there is one token each six seconds, counted from the last grant.
            let flowing = bucket(10, 60, false);
            assert_eq!(decide(&flowing, &key, last, 1), (0, Wait::For(Span::from_us(6_000_000))));
            assert_eq!(decide(&flowing, &key, last + 5_999_999, 1), (0, Wait::For(Span::from_us(1))));
            assert_eq!(decide(&flowing, &key, last + 6_000_000, 1).0, 1);
        }
    }
}

/// On the ticks of the new log, a unit that had left the window may count again for a moment. The remaining units and the
/// reset agree about it.
#[test]
fn a_refund_on_other_ticks_reports_the_units_that_count_again() {
    let policy = |limit, period, segments| {
        let policy = Kind::Slide.policy(Quota::new(limit, Span::from_us(period)).expect("in range")).expect("in range");
        policy.with(PolicyOption::Segments(segments))
    };
    let (plain, two) = (policy(1, 1_000_000, 65_536), policy(2, 1_349_000, 2));
    let (coarse, fine) = (policy(1, 1_000_000, 561), policy(1, 1_000_000, 562));
    let one = Amount::Cost(1);
    let mut key: Option<Vec<u8>> = None;
    let mut last = None;
    for (us, policy, amount) in [
        (2_075_000, plain, one),
        (3_748_000, plain, one),
        (5_923_000, plain, one),
        (5_923_000, two, Amount::Refund(1)),
        (5_927_137, two, one),
        (6_044_500, two, Amount::UpTo(1)),
        (8_067_999, two, one),
        (8_068_000, two, Amount::UpTo(1)),
        (8_068_000, fine, one),
        (9_742_499, fine, Amount::Refund(1)),
        (9_742_499, coarse, one),
        (9_742_499, fine, Amount::Refund(1)),
    ] {
        let now = Instant::from_us(1_760_000_000_000_000 + us);
        let outcome = policy.decide(key.as_deref(), now, Request::now(amount)).expect("a decision");
        outcome.change.apply(&outcome.bytes, &mut key);
        last = Some((policy, now, outcome.decision));
    }
    let (policy, now, decision) = last.expect("calls");
    let after = policy.peek(key.as_deref(), now, Request::now(one)).expect("a decision");
    assert_eq!((decision.remaining, decision.reset), (after.remaining, after.reset));
    assert_eq!((decision.remaining, decision.reset), (0, Span::from_us(1_180)));
}

#[test]
fn every_option_changes_the_policy_of_its_algorithm_only() {
    let quota = Quota::new(10, Span::from_us(60_000_000)).expect("in range");
    let options: Vec<(Kind, PolicyOption)> = Kind::RATES
        .iter()
        .flat_map(|&kind| kind.spec().options.iter().map(move |option| (kind, option.value)))
        .map(|(kind, value)| match value {
            OptionValue::Flag(option) => (kind, option),
            OptionValue::Count { max, option, .. } => (kind, option(max - 1)),
            OptionValue::Offset(option) => (kind, option(1)),
            OptionValue::Time(option) => (kind, option(Instant::from_us(1))),
        })
        .collect();
    for &kind in Kind::RATES {
        let policy = kind.policy(quota).expect("a policy");
        assert_eq!(policy.kind(), kind);
        for &(of, option) in &options {
            assert_eq!(policy.with(option) != policy, of == kind, "{kind:?} {option:?}");
        }
    }
}
