//! The rule by which a settlement gives units back equals a replay of the whole history.

use num_bigint::BigInt;
use num_traits::Zero;
use proptest::prelude::*;
use redis_rl::limiter::{Amount, Decision, Request, Span, Wait};

use super::histories::{histories, kinds, name, rules, starts, Act, Action, Ahead, Clock, Name, ALL};
use super::model::Model;
use crate::model::{end_of_tick, q, Form, Rule, Silence, Windows, Q};

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

pub fn note_reply(clock: &mut Clock, answer: &Decision) {
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

// ---- The replay ----
//
// This second model knows no rule about settling: it keeps every event, and a settlement to fewer units changes that one past
// charge. The level is then computed anew from the beginning: every other call was granted what it was. It takes over what was
// granted, and so decides nothing. It holds for a policy that does not change.

#[derive(Clone, Debug)]
struct Event {
    at: i128,
    /// Units taken, or given back if the number is negative.
    units: i128,
    id: Option<Vec<u8>>,
    /// The units that a booking in a later window or step uses up before it takes its own.
    skipped: Q,
    tick: i128,
}

/// The whole history of a key, since it was last a missing key.
#[derive(Clone, Debug)]
pub struct Replay {
    rule: Rule,
    /// The beginning of the first window, or the time of the first step.
    start: Q,
    events: Vec<Event>,
    /// The last call that changed anything.
    written: i128,
}

impl Replay {
    pub fn new(rule: &Rule) -> Self {
        Self { rule: *rule, start: Q::zero(), events: Vec::new(), written: 0 }
    }

    /// Keeps a call that was granted `units` (negative: it gave back so many), to act at `due`.
    pub fn granted(&mut self, now: i128, units: i128, due: i128, id: Option<&[u8]>) {
        if self.levels(now).is_empty() && !self.lasts(now) {
            self.events.clear();
        }
        if self.events.is_empty() {
            self.start = self.rule.window_holding(whole(now));
        }
        self.written = now;
        if units < 0 && matches!(self.rule.form, Form::Slide { .. }) {
            self.refund_newest(now, -units);
            return;
        }
        let skipped = if due > now && self.drains_at_once() { self.steps(now, due) * q(self.rule.limit) } else { Q::zero() };
        let newest = self.levels(now).last().map_or(i128::MIN, |(tick, _)| *tick);
        let tick = end_of_tick(due, self.rule.tick().into()).max(newest);
        let tick = if matches!(self.rule.form, Form::Slide { .. }) { tick } else { 0 };
        self.events.push(Event { at: now, units, id: id.map(Into::into), skipped, tick });
    }

    /// Nothing is used any more. Keeps the window of `FIXED`.
    pub fn emptied(&mut self, now: i128, units: i128) {
        match self.rule.form {
            Form::Gcra { .. } | Form::Bucket { .. } => self.events.clear(),
            _ if units > 0 => self.granted(now, -units, now, None),
            _ => {}
        }
    }

    /// `SLIDE` gives back the newest entries first: this is one event in each of their ticks.
    fn refund_newest(&mut self, now: i128, mut units: i128) {
        for (tick, level) in self.levels(now).into_iter().rev() {
            let part = units.min(level.to_integer().try_into().expect("units"));
            if part > 0 {
                self.events.push(Event { at: now, units: -part, id: None, skipped: Q::zero(), tick });
            }
            units -= part;
        }
    }

    /// A charge becomes `units`: fewer as of when it was made, more as of now.
    pub fn settle(&mut self, now: i128, id: &[u8], units: u64) {
        let charge = self.events.iter_mut().rev().find(|event| event.id.as_deref() == Some(id)).expect("a charge");
        let more = i128::from(units) - charge.units;
        if more < 0 {
            charge.units = units.into();
        }
        charge.id = None;
        self.written = now;
        if more > 0 {
            self.granted(now, more, now, None);
        }
    }

    /// The units used at `now`; `SLIDE`: in each tick that counts.
    pub fn levels(&self, now: i128) -> Vec<(i128, Q)> {
        let mut ticks: Vec<i128> = self.events.iter().map(|event| event.tick).collect();
        ticks.sort_unstable();
        ticks.dedup();
        if matches!(self.rule.form, Form::Slide { .. }) {
            ticks.retain(|tick| *tick > now - i128::from(self.rule.period));
        }
        ticks.into_iter().map(|tick| (tick, self.level(tick, now))).filter(|(_, level)| !level.is_zero()).collect()
    }

    fn level(&self, tick: i128, now: i128) -> Q {
        let (mut level, mut at) = (Q::zero(), None);
        for event in self.events.iter().filter(|event| event.tick == tick) {
            level = self.drained(level, at.unwrap_or(event.at), event.at).max(event.skipped.clone()) + whole(event.units);
            level = level.max(Q::zero());
            at = Some(event.at);
        }
        self.drained(level, at.unwrap_or(now), now)
    }

    /// Whether the key means something though nothing is used: `FIXED` keeps its window until it is over, and windows on a grid are the
    /// same whether or not the history begins anew, so it may go on.
    fn lasts(&self, now: i128) -> bool {
        match self.rule.form {
            Form::Fixed { windows: Windows::Align(_) } => true,
            Form::Fixed { .. } => !self.events.is_empty() && self.steps(self.written, now).is_zero(),
            Form::Slide { .. } => true,
            _ => false,
        }
    }

    fn drains_at_once(&self) -> bool {
        matches!(self.rule.form, Form::Fixed { .. } | Form::Bucket { step: true, .. })
    }

    /// How many windows end, or steps fall, between two instants.
    fn steps(&self, from: i128, to: i128) -> Q {
        let index = |at| ((whole(at) - &self.start) / q(self.rule.period)).floor();
        index(to) - index(from)
    }

    fn drained(&self, level: Q, from: i128, to: i128) -> Q {
        let paid = match self.rule.form {
            Form::Slide { .. } => return level,
            _ if self.drains_at_once() => self.steps(from, to) * q(self.rule.limit),
            _ => whole(to - from) * self.rule.rate(),
        };
        (level - paid).max(Q::zero())
    }
}

fn whole(number: i128) -> Q {
    q(BigInt::from(number))
}
