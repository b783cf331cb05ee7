//! A change of algorithm on a live key. A policy that carries over reads another algorithm's record as a record of its own. The tests
//! compute that record from the contract alone: they read what is used from RL.INSPECT's facts, and let a new key take it by force.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use redis_rl::limiter::{
    inspect, pause, Amount, Bytes, Change, Decision, Fact, Id, Instant, Kind, Policy, PolicyOption, Quota, Request, Span,
    Wait,
};

use crate::key::{Key, Steps};

/// All times and periods are multiples of this, so that the facts, which are in milliseconds, are exact.
const MS: u64 = 1_000;
const START: i64 = 1_800_000_000_000_000;

fn at(us: u64) -> Instant {
    Instant::from_us(START).saturating_add(Span::from_us(us))
}

fn policy(kind: Kind, limit: u64, period_ms: u64, option: u64) -> Policy {
    let quota = Quota::new(limit, Span::from_us(period_ms * MS)).expect("in range");
    let policy = kind.policy(quota).expect("in range");
    match (kind, option) {
        // The ticks of a SLIDE log are whole milliseconds, too.
        (Kind::Slide, _) => policy.with(PolicyOption::Segments(10)),
        (Kind::Fixed, 1) => policy.with(PolicyOption::Align(7_000)),
        (Kind::Gcra, 1..) => policy.with(PolicyOption::Burst(option * limit)),
        (Kind::Bucket, 1) => policy.with(PolicyOption::Capacity(2 * limit)),
        (Kind::Bucket, 2) => policy.with(PolicyOption::Step),
        _ => policy,
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    (select(Kind::RATES), 1..20_u64, select(vec![10_u64, 50, 1_000, 60_000]), 0..3_u64)
        .prop_map(|(kind, limit, period_ms, option)| policy(kind, limit, period_ms, option))
}

fn number(value: &[u8], now: Instant, name: &str) -> Option<i64> {
    let facts = inspect(value, now).expect("a record");
    facts.iter().find(|(fact, _)| *fact == name).and_then(|(_, fact)| match fact {
        Fact::Number(number) => Some(*number),
        _ => None,
    })
}

fn count(value: &[u8], now: Instant, name: &str) -> u64 {
    number(value, now, name).and_then(|count| count.try_into().ok()).expect("a count")
}

/// The capacity of a policy.
fn capacity(policy: &Policy) -> u64 {
    policy.peek(None, at(0), Request::now(Amount::Cost(1))).expect("a decision").limit
}

/// When the record says that it was written: FIXED shows only when its window began.
fn written(old: &Policy, value: &[u8], last_call: Instant, now: Instant) -> Instant {
    let from_ms = |name| number(value, last_call, name).map(|ms| Instant::from_us(ms * MS as i64));
    let moment = match old.kind() {
        Kind::Fixed => from_ms("window_start_ms").unwrap_or(now),
        Kind::Slide => {
            let tick_us = count(value, last_call, "tick_us");
            from_ms("newest_ms").map_or(now, |newest| newest.saturating_add(Span::from_us(tick_us)))
        }
        _ => last_call,
    };
    moment.min(now)
}

/// The first moment from `from` to `now` at which the record shows no debt.
fn paid(value: &[u8], from: Instant, now: Instant) -> Instant {
    let debt = |moment| count(value, moment, "debt") > 0;
    if debt(now) {
        return now;
    }
    let (mut before, mut paid) = (from, now);
    while debt(from) && paid.since(before) > Span::from_us(1) {
        let middle = before.saturating_add(Span::from_us(paid.since(before).as_us() / 2));
        if debt(middle) {
            before = middle;
        } else {
            paid = middle;
        }
    }
    if debt(from) {
        paid
    } else {
        from
    }
}

/// What a new key holds that has taken at `moment` what the record shows as used then.
fn taken(old: &Policy, new: &Policy, value: &[u8], moment: Instant) -> Key {
    let (used, old, capacity) = (count(value, moment, "used"), capacity(old), capacity(new));
    let units = used.min(old).min(capacity) + used.saturating_sub(old);
    let mut key = Key::default();
    if units > 0 {
        let forced = new.decide(None, moment, Request::now(Amount::Force(units))).expect("it fits a record");
        key.apply(&forced.change, &forced.bytes);
    }
    key
}

#[derive(Clone, Copy, Debug)]
struct Step {
    gap_ms: u64,
    amount: Amount,
    ahead_ms: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let amount = prop_oneof![
        4 => (1..12_u64).prop_map(Amount::Cost),
        2 => (1..12_u64).prop_map(Amount::UpTo),
        1 => (1..40_u64).prop_map(Amount::Force),
        1 => (1..5_u64).prop_map(Amount::Refund),
    ];
    let gap_ms = prop_oneof![Just(0), 0..10_u64, 0..1_000_u64];
    let step = (gap_ms, amount, prop_oneof![3 => Just(0), 1 => 0..100_u64]);
    vec(step.prop_map(|(gap_ms, amount, ahead_ms)| Step { gap_ms, amount, ahead_ms }), 1..20)
}

/// A key after these calls, and the moments of the last one that changed it and of the end.
fn history(old: &Policy, steps: &[Step]) -> (Key, Instant, Instant) {
    let (mut key, mut now, mut last) = (Key::default(), 0, 0);
    for step in steps {
        now += step.gap_ms * MS;
        let request = Request { ahead: Span::from_us(step.ahead_ms * MS), ..Request::now(step.amount) };
        let outcome = key.expire(at(now)).decide(old, at(now), request).expect("it fits");
        if key.apply(&outcome.change, &outcome.bytes) {
            last = now;
        }
    }
    (key, at(last), at(now))
}

/// The decision of a policy that carries over.
fn peek(new: &Policy, stored: Option<&[u8]>, now: Instant, request: Request) -> Decision {
    new.peek(new.carried(stored, now).value(), now, request).expect("a decision")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn usage_is_the_least_of_the_three_moments(
        (old, new) in (policies(), policies()).prop_filter("two algorithms", |(old, new)| old.kind() != new.kind()),
        steps in steps(),
        rest_ms in prop_oneof![0..10_u64, 0..2_000_u64, 0..70_000_u64],
        pause_ms in prop_oneof![3 => Just(0), 1 => 1..1_000_u64],
    ) {
        let new = new.with(PolicyOption::CarriesOver);
        let (mut key, last, now) = history(&old, &steps);
        let now = now.saturating_add(Span::from_us(rest_ms * MS));
        let Some(value) = key.expire(now).value.clone() else { return Ok(()) };
        if old.kind() == Kind::Slide && number(&value, now, "newest_ms").is_none() {
            // Nothing counts any more, and so no fact shows when the last entry was.
            prop_assert_eq!(peek(&new, Some(&value), now, Request::now(Amount::Cost(1))).granted, 1);
            return Ok(());
        }
        let written = written(&old, &value, last, now);
        let moments = [now, written, paid(&value, written, now)];
        // Of records of one policy, that with the least usage; then the one of which nothing is used sooner.
        let reset = |value: &[u8]| new.peek(Some(value), now, Request::now(Amount::UpTo(1))).expect("a decision").reset;
        let least = moments
            .map(|moment| taken(&old, &new, &value, moment))
            .into_iter()
            .min_by_key(|key| key.value.as_ref().map(|value| (count(value, now, "used"), reset(value).as_us())))
            .expect("three");
        let mut stored = value;
        if pause_ms > 0 {
            let mut bytes = Bytes::default();
            let (_, change) = pause(Some(&stored), None, now, Span::from_us(pause_ms * MS), &mut bytes).expect("a record");
            change.apply(&bytes, &mut key.value);
            stored = key.value.clone().expect("a pause");
        }
        for amount in [Amount::Cost(1), Amount::Cost(capacity(&new)), Amount::UpTo(5), Amount::Force(3)] {
            let expected = new.peek(least.value.as_deref(), now, Request::now(amount)).expect("a decision");
            let found = peek(&new, Some(&stored), now, Request::now(amount));
            if pause_ms == 0 {
                prop_assert_eq!(found, expected);
            } else if !matches!(amount, Amount::Force(_)) {
                prop_assert_eq!((found.granted, found.remaining), (0, 0));
            }
        }
        // A change of the carried record is written as a whole record of the new algorithm, which then decides as the carried one would.
        let force = Request::now(Amount::Force(1));
        let carried = new.carried(Some(&stored), now);
        prop_assert!(carried.is_of_other_algorithm() || least.value.is_none());
        let forced = new.decide(carried.value(), now, force).expect("it fits");
        let mut bytes = forced.bytes;
        let change = carried.change(forced.change, &mut bytes);
        prop_assert!(matches!(change, Change::Write { offset: 0, head: 0, .. }), "{change:?}");
        let mut whole = Some(stored.clone());
        change.apply(&bytes, &mut whole);
        let mut expected = least.clone();
        let outcome = expected.decide(&new, now, force).expect("it fits");
        expected.apply(&outcome.change, &outcome.bytes);
        let probe = Request::now(Amount::Cost(1));
        let after = new.peek(whole.as_deref(), now, probe).expect("a record of the new algorithm");
        if pause_ms == 0 {
            prop_assert_eq!(after, new.peek(expected.value.as_deref(), now, probe).expect("a record"));
        } else {
            prop_assert_eq!(after.granted, 0);
        }
    }

    #[test]
    fn the_times_in_a_denial_are_kept_and_not_too_long(
        (old, new) in (policies(), policies()).prop_filter("two algorithms", |(old, new)| old.kind() != new.kind()),
        steps in steps(),
        rest_ms in 0..500_u64,
        units in 1..15_u64,
    ) {
        let new = new.with(PolicyOption::CarriesOver);
        let (mut key, _, now) = history(&old, &steps);
        let now = now.saturating_add(Span::from_us(rest_ms * MS));
        let stored = key.expire(now).value.clone();
        let request = Request::now(Amount::Cost(units));
        let carried = new.carried(stored.as_deref(), now);
        let decision = new.peek(carried.value(), now, request).expect("a decision");
        let kept = new.with_kept_times(&carried, stored.as_deref(), request, now, decision);
        let in_use = |us: u64| peek(&new, stored.as_deref(), now.saturating_add(Span::from_us(us)), request).reset > Span::ZERO;
        let reset = kept.reset.as_us();
        prop_assert!(!in_use(reset), "in use after {reset} us");
        if carried.is_of_other_algorithm() && reset > MS {
            prop_assert!(in_use(reset - MS - 1), "not in use a millisecond before {reset} us");
        }
        let Wait::For(wait) = kept.wait else {
            prop_assert!(units > capacity(&new));
            return Ok(());
        };
        if kept.granted == 0 {
            let granted = |us: u64| peek(&new, stored.as_deref(), now.saturating_add(Span::from_us(us)), request).granted > 0;
            prop_assert!(granted(wait.as_us()), "not granted after {wait:?}");
            if carried.is_of_other_algorithm() && wait.as_us() > MS {
                prop_assert!(!granted(wait.as_us() - MS - 1), "granted a millisecond before {wait:?}");
            }
        }
    }
}

#[test]
fn the_example_of_the_module() {
    let (old, new) = (policy(Kind::Gcra, 10, 10_000, 0), policy(Kind::Fixed, 6, 10_000, 0).with(PolicyOption::CarriesOver));
    let mut key = Key::default();
    let outcome = key.decide(&old, at(0), Request::now(Amount::Cost(8))).expect("a decision");
    key.apply(&outcome.change, &outcome.bytes);
    let decisions = [4, 5].map(|second| {
        let decision = peek(&new, key.value.as_deref(), at(second * 1_000 * MS), Request::now(Amount::Cost(3)));
        (decision.granted, decision.remaining)
    });
    assert_eq!(decisions, [(0, 2), (3, 3)]);
}

/// Ids are forgotten; leases, the values of redis-cell and all other values stay what they are.
#[test]
fn what_is_not_carried_over() {
    let now = at(0);
    let gcra = policy(Kind::Gcra, 10, 10_000, 0).with(PolicyOption::CarriesOver);
    let fixed = policy(Kind::Fixed, 10, 10_000, 0).with(PolicyOption::CarriesOver);
    let lease = policy(Kind::Lease, 10, 10_000, 0).with(PolicyOption::CarriesOver);
    let id = Id::new(b"a");
    let with_id = fixed.decide(None, now, Request { id, ..Request::now(Amount::Cost(4)) }).expect("a grant");
    let lease_of_four = lease.decide(None, now, Request { id, ..Request::now(Amount::Cost(4)) }).expect("a lease");
    let carried = gcra.carried(Some(with_id.bytes.as_slice()), now);
    let view = gcra.view(carried.value(), now).expect("a record");
    assert_eq!(view.held(id.expect("an id")), None);
    assert_eq!(view.peek(Request::now(Amount::Cost(1))).expect("a grant").remaining, 6);
    // The policy itself does not carry over without that option.
    assert!(policy(Kind::Gcra, 10, 10_000, 0).view(Some(with_id.bytes.as_slice()), now).is_err());
    for (policy, value) in [
        (&gcra, lease_of_four.bytes.as_slice()),
        (&lease, with_id.bytes.as_slice()),
        (&fixed, b"1800000000000000000"),
        (&gcra, b"a string that is no record of a limiter"),
        (&gcra, &with_id.bytes.as_slice()[..20]),
    ] {
        let carried = policy.carried(Some(value), now);
        assert!(!carried.is_of_other_algorithm());
        assert_eq!(carried.value(), Some(value));
        assert!(policy.view(carried.value(), now).is_err());
    }
    // Limit 0 denies all, whatever the key holds.
    let closed = policy(Kind::Slide, 0, 10_000, 0).with(PolicyOption::CarriesOver);
    let denied = peek(&closed, Some(with_id.bytes.as_slice()), now, Request::now(Amount::Force(1)));
    assert_eq!((denied.granted, denied.limit, denied.wait), (0, 0, Wait::Never));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Callers that change the algorithm with each call are granted no more than the one that grants most by itself: FIXED, which grants
    /// two limits around the end of a window. If they also change the period, the shortest counts.
    #[test]
    fn algorithms_in_turn_grant_what_one_of_them_may(
        limit in 1..20_u64,
        period_ms in select(vec![100_u64, 1_000]),
        times in select(vec![1_u64, 1, 3, 50]),
        calls in vec((select(Kind::RATES), any::<bool>(), any::<bool>(), prop_oneof![0..10_u64, 0..200_u64], 1..8_u64), 1..80),
    ) {
        let (mut key, mut now, mut granted) = (Key::default(), 0, 0);
        for (kind, step, longer, gap_ms, units) in calls {
            now += gap_ms * MS;
            // BUCKET with STEP, and else no option: each changes the capacity.
            let option = if step && kind == Kind::Bucket { 2 } else { 0 };
            let policy = policy(kind, limit, if longer { times * period_ms } else { period_ms }, option).with(PolicyOption::CarriesOver);
            let stored = key.expire(at(now)).value.clone();
            let carried = policy.carried(stored.as_deref(), at(now));
            let outcome = policy.decide(carried.value(), at(now), Request::now(Amount::UpTo(units))).expect("it fits");
            let mut bytes = outcome.bytes;
            let change = carried.change(outcome.change, &mut bytes);
            key.apply_at(&change, &bytes, at(now));
            granted += outcome.decision.granted;
            let most = limit * now / (period_ms * MS) + 2 * limit;
            prop_assert!(granted <= most, "{granted} of {most}");
        }
    }
}
