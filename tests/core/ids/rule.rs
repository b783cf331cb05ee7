//! The rule by which a settlement gives units back equals a replay of the whole history.

use super::histories::{histories, kinds, name, rules, starts, Act, Action, Ahead, Clock, Name, ALL};
use super::model::{Answer, Model};
use super::replay::Replay;
use crate::model::{Rule, Silence};
use proptest::prelude::*;
use redis_rl::limiter::{Amount, Request, Span, Wait};

/// A call, with everything resolved that depends on what came before it.
#[derive(Clone, Debug)]
pub enum Call {
    Charge(Request<'static>, Option<Vec<u8>>),
    Settle(Vec<u8>, u64),
}

/// Turns actions into calls: knows which ids have been used, and what was charged under them.
#[derive(Default)]
pub struct Script {
    pub ids: Vec<(Vec<u8>, u64)>,
}

impl Script {
    fn id(&self, pick: Name) -> Option<Vec<u8>> {
        match pick {
            Name::None => None,
            Name::Used(back) if !self.ids.is_empty() => Some(self.ids[self.ids.len() - 1 - back % self.ids.len()].0.clone()),
            _ => Some(name(self.ids.len())),
        }
    }

    pub fn call(&self, rule: &Rule, act: Act) -> Call {
        let capacity = rule.capacity();
        let request = |amount| Request::now(amount);
        match act {
            Act::Cost(size, name, ahead) => {
                let mut request = request(Amount::Cost(size.of(capacity)));
                request.ahead = Span::from_us(match ahead {
                    Ahead::No => 0,
                    Ahead::Us(us) => us,
                    Ahead::Period(permille) => super::histories::share(rule.period, permille),
                });
                Call::Charge(request, self.id(name))
            }
            Act::UpTo(size, name) => Call::Charge(request(Amount::UpTo(size.of(capacity))), self.id(name)),
            Act::Force(size) => Call::Charge(request(Amount::Force(size.of(capacity))), None),
            Act::Refund(size) => Call::Charge(request(Amount::Refund(size.of(capacity))), None),
            Act::Settle(name, permille) => {
                let id = self.id(name).expect("an id");
                let charged = self.ids.iter().find(|used| used.0 == id).map_or(1, |used| used.1);
                Call::Settle(id, (u128::from(charged) * u128::from(permille)).div_ceil(1_000).min(1_000_000_000_000) as u64)
            }
            Act::Release(name) => Call::Settle(self.id(name).expect("an id"), 0),
        }
    }

    pub fn charged(&mut self, id: &[u8], units: u64) {
        match self.ids.iter_mut().find(|used| used.0 == id) {
            Some(used) => used.1 = units,
            None => self.ids.push((id.into(), units)),
        }
    }
}

pub fn note_reply(clock: &mut Clock, answer: &Answer) {
    clock.wait = match answer.wait {
        Wait::For(span) => span.as_us(),
        Wait::Never => 0,
    };
    clock.reset = answer.reset.as_us();
}

/// Makes the same calls to both models, and expects the same levels.
fn compare(rule: &Rule, start: i64, actions: &[Action]) -> Result<(), TestCaseError> {
    // The replay does not know UNTIL.
    let rule = &rule.as_recorded();
    let (mut model, mut replay, mut clock) = (Model::new(rule), Replay::new(rule), Clock::new(start));
    let (mut script, mut history) = (Script::default(), Vec::new());
    for action in actions {
        clock.step(action.step, rule);
        let (now, at) = (clock.now, i128::from(clock.now));
        let call = script.call(rule, action.act);
        history.push(format!("{now} us: {call:?}"));
        match &call {
            Call::Charge(request, id) => match model.call(rule, now, *request, id.as_deref()) {
                Ok(answer) => {
                    note_reply(&mut clock, &answer);
                    if answer.retried || answer.granted == 0 && !matches!(request.amount, Amount::Refund(_)) {
                        continue;
                    }
                    let Wait::For(wait) = answer.wait else { unreachable!("a granted call") };
                    let refund = matches!(request.amount, Amount::Refund(_));
                    let units = i128::from(answer.granted) * if refund { -1 } else { 1 };
                    if refund && model.levels(now) == Ok(vec![]) {
                        replay.emptied(at, answer.granted.into());
                    } else {
                        replay.granted(at, units, at + i128::from(wait.as_us()), id.as_deref());
                    }
                    if let Some(id) = id {
                        script.charged(id, answer.granted);
                    }
                }
                Err(Silence::Overflow) => {}
                Err(Silence::Open) => break,
            },
            Call::Settle(id, units) => match model.settle(now, id, *units) {
                Ok(Some(answer)) => {
                    note_reply(&mut clock, &answer);
                    replay.settle(at, id, *units);
                }
                Ok(None) | Err(Silence::Overflow) => {}
                Err(Silence::Open) => break,
            },
        }
        let levels = model.levels(now);
        if levels == Err(Silence::Open) {
            break;
        }
        prop_assert_eq!(
            levels,
            Ok(replay.levels(at)),
            "rule and replay differ after the last of these calls of {:?}:\n{}",
            rule,
            history.join("\n")
        );
    }
    Ok(())
}

/// The most calls in a history. `IDS_CALLS` sets another number: short histories show a failure better.
pub fn calls() -> usize {
    std::env::var("IDS_CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(100)
}

pub fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default);
    ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 20_000,
        max_shrink_time: 60_000,
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn the_rule_equals_a_replay(
        rule in kinds().prop_flat_map(rules), start in starts(), actions in histories(ALL, calls()),
    ) {
        compare(&rule, start, &actions)?;
    }
}
