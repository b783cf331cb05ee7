//! LEASE against its model.

use proptest::prelude::*;
use redis_rl::limiter::{settle, Amount, Bytes, Change, Id, Instant, Kind, Policy, Quota, Request, SettleError, Span, Wait};

use crate::key::{Key, Steps};
use crate::lease_model::Model;

/// A call of a history.
#[derive(Clone, Debug)]
enum Call {
    /// Takes or renews a lease: limit, ttl, id, units.
    Lease(u64, i64, usize, u64),
    /// Looks at what a new lease of these units would get.
    Peek(u64, i64, u64),
    Release(usize),
    /// Tries to settle a lease to units.
    Settle(usize),
}

fn calls() -> impl Strategy<Value = Vec<(i64, Call)>> {
    let passed = prop_oneof![
        8 => 0..5_000_i64,
        4 => 0..2_000_000_i64,
        1 => 0..60_000_000_i64,
        1 => -3_000_000..0_i64,
    ];
    (1..400_usize, 1..300_u64).prop_flat_map(move |(ids, most)| {
        let limit = prop_oneof![6 => Just(most), 1 => 0..=most + 5];
        let ttl = prop_oneof![4 => Just(1_000_000_i64), 1 => 1_000..5_000_000_i64];
        let call = prop_oneof![
            8 => (limit, ttl.clone(), 0..ids, prop_oneof![4 => Just(1), 1 => 1..=most + 1])
                .prop_map(|(limit, ttl, id, units)| Call::Lease(limit, ttl, id, units)),
            1 => (1..=most, ttl, 1..=most).prop_map(|(limit, ttl, units)| Call::Peek(limit, ttl, units)),
            3 => (0..ids).prop_map(Call::Release),
            1 => (0..ids).prop_map(Call::Settle),
        ];
        prop::collection::vec((passed.clone(), call), 1..600)
    })
}

/// Ids of various lengths.
fn name(id: usize) -> String {
    format!("{id}{}", "x".repeat(id % 60))
}

fn policy(limit: u64, ttl: i64) -> Policy {
    let quota = Quota::new(limit, Span::from_us(ttl as u64)).expect("in range");
    Kind::Lease.policy(quota).expect("in range")
}

fn compare(calls: &[(i64, Call)]) -> Result<(), TestCaseError> {
    let mut now = 1_700_000_000_000_000_i64;
    let (mut model, mut key) = (Model::default(), Key::default());
    for (passed, call) in calls {
        now += passed;
        let at = Instant::from_us(now);
        match *call {
            Call::Lease(limit, ttl, id, units) => {
                let name = name(id);
                let expected = model.call(now, limit, ttl, &name, units);
                let policy = policy(limit, ttl);
                let id = Id::new(name.as_bytes()).expect("an id");
                let outcome = policy
                    .decide(key.value.as_deref(), at, Request::now(Amount::Cost(units)).with_id(id))
                    .expect("a decision");
                prop_assert_eq!(outcome.decision, expected);
                prop_assert_eq!(expected.granted == 0, outcome.change == Change::Keep);
                key.apply(&outcome.change, &outcome.bytes);
            }
            Call::Peek(limit, ttl, units) => {
                let mut expected = model.clone().call(now, limit, ttl, "of nobody", units);
                if expected.granted > 0 {
                    expected = model.decision(now, limit, units, Wait::NONE);
                }
                let peeked = policy(limit, ttl).peek(key.value.as_deref(), at, Request::now(Amount::Cost(units)));
                prop_assert_eq!(peeked.expect("a decision"), expected);
            }
            Call::Release(id) => {
                let name = name(id);
                let expected = model.release(now, &name);
                let id = Id::new(name.as_bytes()).expect("an id");
                let mut bytes = Bytes::default();
                let released = key.value.as_deref().map(|stored| settle(stored, at, id, 0, &mut bytes).expect("a lease"));
                let released = released.flatten();
                prop_assert_eq!(released.map(|released| released.decision), expected);
                if let Some(released) = released {
                    key.apply(&released.change, &bytes);
                }
            }
            Call::Settle(id) => {
                let name = name(id);
                let id = Id::new(name.as_bytes()).expect("an id");
                let held = model.at(now).iter().any(|held| held.id == name);
                let settled =
                    key.value.as_deref().map_or(Ok(None), |stored| settle(stored, at, id, 1, &mut Bytes::default()));
                prop_assert_eq!(settled, if held { Err(SettleError::Lease) } else { Ok(None) });
            }
        }
        let leases = model.at(now);
        for id in 0..40 {
            let name = name(id);
            let expected = leases.iter().find(|held| held.id == name).map(|held| held.units);
            let policy = policy(1, 1_000_000);
            let view = policy.view(key.value.as_deref(), at).expect("a record");
            prop_assert_eq!(view.held(Id::new(name.as_bytes()).expect("an id")), expected);
        }
        // The key lives as long as its last lease. While a step back of the clock makes leases end sooner, it may live longer.
        if let Some(last) = leases.iter().map(|held| held.deadline).max() {
            prop_assert!(key.expires.is_some_and(|expires| expires >= Instant::from_us(last)));
        }
        let bytes = key.value.as_ref().map_or(0, Vec::len);
        prop_assert!(bytes < 1_000 + 400 * (leases.len() + 40) * 2, "{bytes} bytes for {} leases", leases.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn leases_equal_the_model(calls in calls()) {
        compare(&calls)?;
    }
}

#[test]
fn a_full_ledger_takes_the_last_lease_and_no_more() {
    const LIMIT: u64 = 65_536;
    let policy = policy(LIMIT, 60_000_000);
    let (mut key, at) = (Key::default(), Instant::from_us(1_700_000_000_000_000));
    let mut call = |id: u64| {
        let name = id.to_string();
        let request = Request::now(Amount::Cost(1)).with_id(Id::new(name.as_bytes()).expect("an id"));
        let outcome = policy.decide(key.value.as_deref(), at, request).expect("a decision");
        key.apply(&outcome.change, &outcome.bytes);
        outcome.decision
    };
    assert!((0..LIMIT).all(|id| call(id).granted == 1));
    assert_eq!(call(LIMIT).granted, 0);
    assert_eq!((call(0).granted, call(LIMIT - 1).granted), (1, 1), "the first and the last lease are renewed");
}

#[test]
fn a_denial_among_many_leases_names_a_wait_after_which_the_call_is_granted() {
    const LEASES: u64 = 4_096;
    const MS: i64 = 1_000;
    let (ttl, start) = (10_000 * MS, 1_700_000_000_000_000);
    let policy = policy(LEASES, ttl);
    let mut key = Key::default();
    // All units are held. Each ms one lease lapses, from `start + ttl` on.
    for lease in 0..LEASES {
        let name = lease.to_string();
        let request = Request::now(Amount::Cost(1)).with_id(Id::new(name.as_bytes()).expect("an id"));
        let now = Instant::from_us(start + lease as i64 * MS);
        let outcome = policy.decide(key.value.as_deref(), now, request).expect("a decision");
        key.apply(&outcome.change, &outcome.bytes);
    }
    let ask = |units, now| key.peek(&policy, Instant::from_us(now), Request::now(Amount::Cost(units))).expect("a decision");
    for lapsed in [1, 11] {
        let now = start + ttl + (lapsed as i64 - 1) * MS;
        for units in 100..300 {
            let Wait::For(wait) = ask(units, now).wait else { panic!("{units} units can be held") };
            // To sort so many leases out would take too long. The wait ends up to 64 leases late.
            let missing = units - lapsed;
            assert!((missing..missing + 64).contains(&(wait.as_us() / MS as u64)), "{units} units: {wait:?}");
            assert_eq!(ask(units, now + wait.as_us() as i64).granted, units);
        }
    }
    // The clock has been set back. No lease is held for longer than its ttl.
    assert_eq!(ask(200, start - ttl).wait, Wait::For(Span::from_us(ttl as u64)));
}
