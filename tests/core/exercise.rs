//! Calls with and without ids on any value, for tests that look only for panics: whatever a value holds, calls are refused or decided.

use redis_rl::limiter::{
    inspect, pause, settle, Amount, Bytes, Id, Instant, Kind, Policy, PolicyOption, Quota, Request, Span,
};

use crate::key::Steps;

/// A policy of each algorithm, and of each way to count.
pub fn policies() -> Vec<Policy> {
    let quota = Quota::new(20, Span::from_us(10_000_000)).expect("in range");
    let mut policies: Vec<Policy> = Kind::ALL.iter().map(|kind| kind.policy(quota).expect("in range")).collect();
    policies.push(Kind::Bucket.policy(quota).expect("in range").with(PolicyOption::Step));
    let until = PolicyOption::Until(Instant::from_us(1_700_000_005_000_000));
    policies.push(Kind::Fixed.policy(quota).expect("in range").with(until));
    policies.push(Kind::Slide.policy(quota).expect("in range").with(PolicyOption::Segments(3)));
    policies
}

/// Makes calls of all sorts, from `now` on.
pub fn exercise(value: &mut Option<Vec<u8>>, policy: &Policy, mut now: i64, calls: &[(u8, u8, u8)]) {
    for &(call, id, units) in calls {
        now = now.saturating_add(i64::from(call) * 10_000);
        let name = [id % 40; 64];
        let id = Id::new(&name[..1 + usize::from(id % 64)]).expect("an id");
        let units = u64::from(units);
        let at = Instant::from_us(now);
        let amount = match call % 8 {
            0 => Amount::Force(units.max(1)),
            1 => Amount::Refund(units.max(1)),
            2 => Amount::UpTo(units.max(1)),
            _ => Amount::Cost(1 + units % 4),
        };
        if call == u8::MAX {
            let mut bytes = Bytes::default();
            if let Ok((_, change)) = pause(value.as_deref(), None, at, Span::from_us(units * 100_000), &mut bytes) {
                change.apply(&bytes, value);
            }
        } else if call % 8 == 7 {
            let Some(stored) = value.as_deref() else { continue };
            let mut bytes = Bytes::default();
            if let Ok(Some(settled)) = settle(stored, at, id, units % 8, &mut bytes) {
                settled.change.apply(&bytes, value);
            }
        } else {
            let with_id = call % 8 != 0 && call % 8 != 1;
            let ahead = if call % 8 == 3 { Span::from_us(5_000_000) } else { Span::ZERO };
            let request = Request { amount, ahead, id: with_id.then_some(id) };
            if let Ok(outcome) = policy.decide(value.as_deref(), at, request) {
                outcome.change.apply(&outcome.bytes, value);
            }
        }
        if let Some(stored) = value.as_deref() {
            let _ = inspect(stored, at);
            let _ = policy.view(Some(stored), at).map(|view| view.held(id));
        }
    }
}

// The fuzz targets include this file for `exercise`.
#[cfg(test)]
mod damage {
    use proptest::prelude::*;

    use super::{exercise, policies};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

        #[test]
        fn damaged_ledgers_never_panic(
            policy in prop::sample::select(policies()),
            others in prop::sample::select(policies()),
            before in prop::collection::vec(any::<(u8, u8, u8)>(), 1..60),
            damage in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6),
            cut in any::<Option<u16>>(),
            after in prop::collection::vec(any::<(u8, u8, u8)>(), 1..30),
            passed in prop_oneof![Just(0), any::<i32>().prop_map(i64::from), any::<i64>().prop_map(|us| us / 4)],
        ) {
            let mut value = None;
            let now = 1_700_000_000_000_000_i64;
            exercise(&mut value, &policy, now, &before);
            if let Some(bytes) = &mut value {
                for &(at, byte) in &damage {
                    let at = usize::from(at) % bytes.len();
                    bytes[at] = byte;
                }
                if let Some(cut) = cut.filter(|cut| cut % 4 == 0) {
                    bytes.truncate(usize::from(cut) % bytes.len());
                }
            }
            let other = if passed % 2 == 0 { policy } else { others };
            exercise(&mut value, &other, now.saturating_add(passed), &after);
        }

        #[test]
        fn arbitrary_headers_never_panic(
            policy in prop::sample::select(policies()),
            mut bytes in prop::collection::vec(any::<u8>(), 72..600),
            words in prop::array::uniform8(0..20_u32),
            calls in prop::collection::vec(any::<(u8, u8, u8)>(), 1..10),
        ) {
            bytes[..4].copy_from_slice(&[0xfa, 2, policy.kind().spec().tag, 0]);
            for (place, word) in bytes[4..36].chunks_mut(4).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            exercise(&mut Some(bytes), &policy, 1_700_000_000_000_000, &calls);
        }
    }
}
