//! A limiter's key on a server that is simulated: the module's own decisions, on the bytes that the server would store.

use serde::{Deserialize, Serialize};
use tools::limiter::{settle, Amount, Bytes, Decision, Id, Instant, Kind, Policy, Quota, Request, Span, Wait};

/// A second in microseconds, which all simulated times are counted in.
pub const SECOND: u64 = 1_000_000;
const START: Instant = Instant::from_us(1_760_000_000_000_000);

/// A moment of a simulation.
fn at(us: u64) -> Instant {
    START.saturating_add(Span::from_us(us))
}

/// A policy of `limit` units per `period` microseconds.
pub fn policy(kind: Kind, limit: u64, period: u64) -> Policy {
    let quota = Quota::new(limit, Span::from_us(period)).expect("a limit and a period in range");
    kind.policy(quota).expect("a limit in range")
}

/// A key: its value, if it exists.
#[derive(Default)]
pub struct Key {
    value: Option<Vec<u8>>,
}

impl Key {
    /// Makes a call.
    pub fn call(&mut self, policy: &Policy, us: u64, request: Request<'_>) -> Decision {
        let mut bytes = Bytes::default();
        let view = policy.view(self.value.as_deref(), at(us)).expect("a record");
        let (decision, next) = view.decide(request).expect("a decision");
        let change = view.store(&next, || 0x5eed, &mut bytes);
        change.apply(&bytes, &mut self.value);
        decision
    }

    /// Takes a unit, if there is one.
    pub fn take(&mut self, policy: &Policy, us: u64) -> bool {
        self.call(policy, us, Request::now(Amount::Cost(1))).granted == 1
    }

    /// Takes as many of these units as there are, and remembers them under an id.
    pub fn take_up_to(&mut self, policy: &Policy, us: u64, units: u64, id: u64) -> Decision {
        let name = id.to_be_bytes();
        let request = Request::now(Amount::UpTo(units)).with_id(Id::new(&name).expect("an id of eight bytes"));
        self.call(policy, us, request)
    }

    /// Settles a charge. Whether the key remembers it still.
    pub fn settle(&mut self, us: u64, id: u64, units: u64) -> bool {
        let Some(stored) = self.value.as_deref() else { return false };
        let name = id.to_be_bytes();
        let mut bytes = Bytes::default();
        let id = Id::new(&name).expect("an id of eight bytes");
        let settled = settle(stored, at(us), id, units, &mut bytes).expect("a charge that can be settled");
        let Some(settlement) = settled else { return false };
        settlement.change.apply(&bytes, &mut self.value);
        true
    }

    /// The units that could be taken.
    pub fn remaining(&self, policy: &Policy, us: u64) -> u64 {
        let view = policy.view(self.value.as_deref(), at(us)).expect("a record");
        view.peek(Request::now(Amount::Cost(1))).expect("a decision").remaining
    }
}

/// How long a denied call has to wait, in microseconds.
pub fn wait_us(decision: &Decision) -> u64 {
    match decision.wait {
        Wait::For(span) => span.as_us(),
        Wait::Never => u64::MAX,
    }
}

/// The time until the next of events that come at random, `per_second` on average.
pub fn gap(rng: &mut fastrand::Rng, per_second: f64) -> f64 {
    -(1.0 - rng.f64()).ln() / per_second * SECOND as f64
}

/// The most units in any period, from the times at which they were taken, which ascend.
pub fn most_in_any(period: u64, times: &[u64]) -> u64 {
    let (mut first, mut most) = (0, 0);
    for (at, &time) in times.iter().enumerate() {
        while times[first] + period <= time {
            first += 1;
        }
        most = most.max(at + 1 - first);
    }
    most as u64
}

/// What came of each plan that was simulated.
#[derive(Serialize, Deserialize)]
pub struct Section<Plan, Outcome> {
    pub rows: Vec<Row<Plan, Outcome>>,
}

#[derive(Serialize, Deserialize)]
pub struct Row<Plan, Outcome> {
    pub plan: Plan,
    pub outcome: Outcome,
}

impl<Plan: Copy, Outcome> Section<Plan, Outcome> {
    /// Simulates each plan.
    pub fn simulate(plans: impl IntoIterator<Item = Plan>, simulate: impl Fn(Plan) -> Outcome) -> Self {
        Self { rows: plans.into_iter().map(|plan| Row { plan, outcome: simulate(plan) }).collect() }
    }

    /// The outcome of the first of these plans.
    pub fn find(&self, is: impl Fn(&Plan) -> bool) -> &Outcome {
        &self.rows.iter().find(|row| is(&row.plan)).expect("a plan").outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decides_as_the_module_does() {
        let policy = policy(Kind::Slide, 3, SECOND);
        let mut key = Key::default();
        assert!((0..3).all(|at| key.take(&policy, at)));
        assert!(!key.take(&policy, 4));
        assert_eq!(key.remaining(&policy, 4), 0);
        assert!(key.take(&policy, SECOND + 1_000));
    }

    #[test]
    fn a_charge_that_is_settled_gives_back_the_rest() {
        for kind in [Kind::Slide, Kind::Gcra, Kind::Fixed, Kind::Bucket] {
            let policy = policy(kind, 100, 60 * SECOND);
            let mut key = Key::default();
            assert_eq!(key.take_up_to(&policy, 0, 70, 1).granted, 70);
            assert_eq!(key.take_up_to(&policy, 1, 70, 2).granted, 30);
            assert!(key.settle(2, 1, 20));
            assert_eq!(key.remaining(&policy, 2), 50, "{kind:?}");
            assert!(!key.settle(3, 1, 20), "{kind:?}");
        }
    }

    #[test]
    fn the_fullest_period_is_found() {
        assert_eq!(most_in_any(10, &[]), 0);
        assert_eq!(most_in_any(10, &[0, 9, 10, 11, 19, 20]), 3);
        assert_eq!(most_in_any(11, &[0, 9, 10, 11, 19, 20]), 4);
    }
}
