//! Calls with and without ids on any value, for tests that look only for panics.

use redis_rl::limiter::{inspect, settle, Amount, Bytes, Id, Instant, Kind, Policy, PolicyOption, Quota, Request, Span};

use crate::steps::Steps;

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
        if call % 8 == 7 {
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
