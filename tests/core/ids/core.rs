//! The core answers random histories of charges with ids as the model does, and keeps the promises of each record with ids.

use super::histories::{histories, segments, Mix, SECOND};
use super::histories::{kinds, rule_changes, rules, starts, Action, Clock, ALL};
use super::model::Model;
use super::rule::{calls, cases, note_reply, Call, Script};
use crate::key::{Key, Refusal};
use crate::model::{Form, Rule, Silence, Windows};
use proptest::prelude::*;
use redis_rl::limiter::{self, Amount, Bytes, Decision, Fact, Id, Instant, Request, SettleError, Span, Wait};

const FORMS: [Form; 4] = [
    Form::Fixed { windows: Windows::FirstCall },
    Form::Slide { segments: 9 },
    Form::Gcra { burst: None },
    Form::Bucket { capacity: None, step: false },
];

/// Numbers that look random, the same in each run of a test.
fn random() -> u64 {
    thread_local!(static CALLS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    CALLS.set(CALLS.get() + 1);
    let mixed = CALLS.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Key {
    /// Makes a call to the core and carries out the change. Returns also whether anything was changed.
    pub fn call_with_id(
        &mut self,
        rule: &Rule,
        now: i64,
        request: Request,
        id: Option<&[u8]>,
    ) -> Result<(Decision, bool), Refusal> {
        let policy = rule.policy();
        let mut named = Request::now(request.amount);
        named.ahead = request.ahead;
        if let Some(id) = id {
            named = named.with_id(Id::new(id).expect("an id of 1 to 64 bytes"));
        }
        let mut bytes = Bytes::default();
        let (decision, change) = {
            let view = policy.view(self.value.as_deref(), Instant::from_us(now))?;
            let (decision, next) = view.decide(named)?;
            (decision, view.store(&next, random, &mut bytes))
        };
        Ok((decision, self.apply(&change, &bytes)))
    }

    /// `RL.SETTLE`.
    pub fn settle(&mut self, now: i64, id: &[u8], units: u64) -> Result<Option<(Decision, bool)>, Refusal> {
        let Some(value) = self.value.as_deref() else { return Ok(None) };
        let mut bytes = Bytes::default();
        let id = Id::new(id).expect("an id of 1 to 64 bytes");
        let settled = limiter::settle(value, Instant::from_us(now), id, units, &mut bytes);
        let Some(settlement) = settled.map_err(|error| match error {
            SettleError::Record(error) => Refusal::Record(error),
            SettleError::Overflow => Refusal::Overflow,
            SettleError::Lease => unreachable!("a rate has no leases"),
        })?
        else {
            return Ok(None);
        };
        Ok(Some((settlement.decision, self.apply(&settlement.change, &bytes))))
    }

    /// The units of a remembered charge.
    pub fn held(&self, rule: &Rule, now: i64, id: &[u8]) -> Result<Option<u64>, Refusal> {
        let policy = rule.policy();
        let view = policy.view(self.value.as_deref(), Instant::from_us(now))?;
        Ok(view.held(Id::new(id).expect("an id of 1 to 64 bytes")))
    }
}

/// Whether these are policies of SLIDE with several periods or ticks.
fn shares_a_log(rules: &[Rule]) -> bool {
    let slide = matches!(rules[0].form, Form::Slide { .. });
    slide && rules.iter().any(|rule| (rule.period, rule.tick()) != (rules[0].period, rules[0].tick()))
}

/// One call of a history: its time, the index of its policy, and what it does.
pub type Timed = (i64, usize, Call);

/// The core, the model, and what is compared after each call.
pub struct Pair {
    rules: Vec<Rule>,
    key: Key,
    model: Model,
    /// All ids that were ever charged, each with the tick of its last charge.
    ids: Vec<(Vec<u8>, i128)>,
    /// The longest period of a write.
    longest: u64,
    /// The algorithm, the options and the period of the last caller that changed the key.
    windows: (Form, u64),
    /// Whether callers with different windows have changed the key since it last did not exist.
    mixed: bool,
}

/// What the core does differently, in words.
#[derive(Debug)]
pub enum Stop {
    /// The contract does not say how it goes on.
    Open,
    Differs(String),
}

/// What determines the windows of FIXED.
fn windows(rule: &Rule) -> (Form, u64) {
    match rule.form {
        // Callers with different times share the window in force.
        Form::Fixed { windows: Windows::Until(_) } => (Form::Fixed { windows: Windows::Until(0) }, rule.period),
        form => (form, rule.period),
    }
}

impl Pair {
    pub fn new(rules: &[Rule]) -> Self {
        Self {
            rules: rules.into(),
            key: Key::default(),
            model: Model::new(&rules[0]),
            ids: Vec::new(),
            longest: 0,
            windows: windows(&rules[0]),
            mixed: false,
        }
    }

    /// Makes a call to both. Returns the common answer; `None`: nil, or the state would not fit a record.
    pub fn call(&mut self, (now, index, call): &Timed) -> Result<Option<Decision>, Stop> {
        let (now, rule, shared) = (*now, self.rules[*index], shares_a_log(&self.rules));
        // Callers of FIXED with another ALIGN or period see other windows. The contract does not say in which of them a charge
        // with an id stands.
        let mixed = self.key.value.is_some() && (self.mixed || windows(&rule) != self.windows);
        let with_ids = !self.ids.is_empty() || matches!(call, Call::Charge(_, Some(_)));
        if matches!(rule.form, Form::Fixed { .. }) && mixed && with_ids {
            return Err(Stop::Open);
        }
        let Self { key, model, .. } = self;
        if matches!(rule.form, Form::Fixed { .. }) && key.value.is_none() && windows(&rule) != self.windows {
            // The key has expired or was never written, so the windows of earlier callers are over. The model still holds them, and
            // dates the window of this call no earlier than theirs.
            *model = Model::new(&rule);
        }
        let differs = |text: String| Err(Stop::Differs(text));
        let Ok((before, _)) = model.extent(now) else { return Err(Stop::Open) };
        // Whether the tick of an id has left a window is open at its edge, while callers with several grids share the log.
        let coarsest = i128::from(self.rules.iter().map(Rule::tick).max().unwrap_or(0));
        let periods = || self.rules.iter().map(|rule| i128::from(rule.period));
        let (least, most) = (periods().min().unwrap_or(0) - 4 * coarsest, periods().max().unwrap_or(0) + 4 * coarsest);
        let unsure = |tick: i128| shared && (least..=most).contains(&(i128::from(now) - tick));
        let id = match call {
            Call::Charge(_, id) => id.as_ref(),
            Call::Settle(id, _) => Some(id),
        };
        if self.ids.iter().any(|(used, tick)| Some(used) == id && unsure(*tick)) {
            return Err(Stop::Open);
        }
        let (expected, actual, denied) = match call {
            Call::Charge(request, id) => {
                let expected = model.call(&rule, now, *request, id.as_deref()).map(Some);
                let actual = key.call_with_id(&rule, now, *request, id.as_deref()).map(Some);
                let refund = matches!(request.amount, Amount::Refund(_));
                let denied = matches!(expected, Ok(Some(answer)) if answer.granted == 0) && !refund;
                (expected, actual, denied)
            }
            Call::Settle(id, units) => (model.settle(now, id, *units), key.settle(now, id, *units), false),
        };
        if expected == Err(Silence::Open) {
            return Err(Stop::Open);
        }
        let expected = expected.map_err(|_| Refusal::Overflow);
        let changed = matches!(actual, Ok(Some((_, true))));
        let mut actual = actual.map(|answer| answer.map(|(answer, _)| answer));
        if shared && matches!(call, Call::Settle(..)) {
            // The record of a shared log does not show the policy of its last writer.
            if let (Ok(Some(expected)), Ok(Some(actual))) = (&expected, &mut actual) {
                *actual = Decision { granted: actual.granted, wait: actual.wait, ..*expected };
            }
        }
        if actual != expected {
            return differs(format!("answer: core {actual:?}, model {expected:?}"));
        }
        let answer = expected.ok().flatten();
        let nil = matches!(expected, Ok(None));
        if changed && (nil || denied || answer.is_some_and(|answer| answer.retried)) {
            return differs("a denial, a retry or a nil changes the value".into());
        }
        if let (Some(answer), Call::Charge(_, Some(id))) = (answer, call) {
            if answer.granted > 0 && !answer.retried {
                self.ids.retain(|(used, _)| used != id);
                self.ids.push((id.clone(), model.newest_tick()));
            }
        }
        let Ok((ids, over)) = model.extent(now) else { return Err(Stop::Open) };
        if changed {
            self.longest = self.longest.max(rule.period);
            if matches!(call, Call::Charge(..)) {
                (self.windows, self.mixed) = (windows(&rule), mixed);
            }
            if let Some(value) = &key.value {
                let past = !self.ids.iter().any(|(_, tick)| unsure(*tick));
                let short = !matches!(rule.form, Form::Slide { .. }) || value.len() < 1_024;
                if before == 0 && ids == 0 && past && short && value[1] != 1 {
                    return differs(format!("no id is remembered, and the version is {}", value[1]));
                }
                let expires = i128::from(key.expires.expect("a deadline").as_us());
                let later = i128::from(if shared { 5 * self.longest } else { self.longest });
                let least = if shared { over - 4 * coarsest } else { over };
                if !(least..=over + later).contains(&expires) {
                    return differs(format!("the state means nothing from {over} us on, and expires at {expires} us"));
                }
            }
        }
        // The contract does not say for how long a settlement keeps a log shared.
        if matches!(call, Call::Settle(..)) && model.is_shared() {
            return Err(Stop::Open);
        }
        for (id, _) in self.ids.iter().filter(|(_, tick)| !unsure(*tick)) {
            let Ok(expected) = model.held(&rule, now, id) else { continue };
            let actual = key.held(&rule, now, id);
            if actual != Ok(expected) {
                return differs(format!("held {id:?}: core {actual:?}, model {expected:?}"));
            }
        }
        Ok(answer)
    }
}

/// Makes these calls to core and model. Returns the first difference, and after how many calls it shows.
pub fn difference(rules: &[Rule], calls: &[Timed], expiring: bool) -> Option<(usize, String)> {
    let mut pair = Pair::new(rules);
    for (place, call) in calls.iter().enumerate() {
        if expiring {
            pair.key.expire(Instant::from_us(call.0));
        }
        match pair.call(call) {
            Ok(_) => {}
            Err(Stop::Open) => return None,
            Err(Stop::Differs(text)) => return Some((place + 1, text)),
        }
    }
    None
}

/// Leaves out every call without which the two still differ, and makes ids short.
fn shortened(rules: &[Rule], mut calls: Vec<Timed>, expiring: bool) -> (Vec<Timed>, String) {
    let mut text = String::new();
    let mut place = 0;
    while place < calls.len() {
        let mut fewer = calls.clone();
        fewer.remove(place);
        match difference(rules, &fewer, expiring) {
            Some((length, difference)) => {
                fewer.truncate(length);
                (calls, text, place) = (fewer, difference, 0);
            }
            None => place += 1,
        }
    }
    (calls, text)
}

/// Makes the same calls to the core and to the model, and expects the same answers.
fn compare(rules: &[Rule], start: i64, actions: &[Action], expiring: bool) -> Result<(), TestCaseError> {
    let rules: Vec<Rule> = rules.iter().map(|rule| rule.starting_at(start)).collect();
    let (mut pair, mut clock) = (Pair::new(&rules), Clock::new(start));
    let (mut script, mut calls) = (Script::default(), Vec::new());
    for action in actions {
        let index = action.rule % rules.len();
        let rule = &rules[index];
        clock.step(action.step, rule);
        if expiring {
            pair.key.expire(Instant::from_us(clock.now));
        }
        calls.push((clock.now, index, script.call(rule, action.act)));
        let call = calls.last().expect("the call just added");
        match pair.call(call) {
            Ok(Some(answer)) => {
                note_reply(&mut clock, &answer);
                if let (Call::Charge(_, Some(id)), 1.., false) = (&call.2, answer.granted, answer.retried) {
                    script.charged(id, answer.granted);
                }
            }
            Ok(None) => {}
            Err(Stop::Open) => break,
            Err(Stop::Differs(text)) => {
                let (fewer, why) = shortened(&rules, calls, expiring);
                let lines: Vec<_> = fewer.iter().map(|call| format!("{call:?}")).collect();
                prop_assert!(false, "{why} ({text})\nrules {rules:?}\nexpiring {expiring}\n{}", lines.join("\n"));
                break;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn the_core_decides_as_the_model(
        rule in kinds().prop_flat_map(rules), start in starts(), actions in histories(ALL, calls()), expiring: bool,
    ) {
        compare(&[rule], start, &actions, expiring)?;
    }

    #[test]
    fn the_core_decides_as_the_model_while_the_policy_changes(
        rules in kinds().prop_flat_map(rule_changes), start in starts(), actions in histories(ALL, calls()), expiring: bool,
    ) {
        // When a log that callers share expires for one of them, it may still count for another with a longer period.
        compare(&rules, start, &actions, expiring && !shares_a_log(&rules))?;
    }
}

// ---- The promise of SLIDE ----

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn no_window_of_slide_holds_more_than_its_limit_of_what_calls_really_cost(
        limit in 1..=60u64, period in prop_oneof![Just(SECOND), 1_000..=100_000u64], segments in segments(),
        start in starts(), actions in histories(Mix { force: false, refund: false, over: false }, 150), expiring: bool,
    ) {
        let rule = Rule { limit, period, form: Form::Slide { segments } };
        let (mut key, mut clock, mut script) = (Key::default(), Clock::new(start), Script::default());
        // When each charge acts, its id, and what it really cost.
        let mut charges: Vec<(i128, Option<Vec<u8>>, u64)> = Vec::new();
        for action in &actions {
            clock.step(action.step, &rule);
            let now = clock.now;
            if expiring {
                key.expire(Instant::from_us(now));
            }
            match script.call(&rule, action.act) {
                Call::Charge(request, id) => {
                    let (answer, _) = key.call_with_id(&rule, now, request, id.as_deref()).expect("an answer");
                    note_reply(&mut clock, &answer);
                    if let (false, Wait::For(wait), 1..) = (answer.retried, answer.wait, answer.granted) {
                        if let Some(id) = &id {
                            script.charged(id, answer.granted);
                        }
                        charges.push((i128::from(now) + i128::from(wait.as_us()), id, answer.granted));
                    }
                }
                Call::Settle(id, units) => {
                    if key.settle(now, &id, units).expect("an answer").is_some() {
                        let charge = charges.iter_mut().rev().find(|charge| charge.1.as_ref() == Some(&id)).expect("a charge");
                        prop_assert!(units <= charge.2);
                        charge.2 = units;
                    }
                }
            }
        }
        for (last, ..) in &charges {
            let window = last - i128::from(period)..*last;
            let units: u64 = charges.iter().filter(|(at, ..)| window.contains(&(at - 1))).map(|charge| charge.2).sum();
            prop_assert!(units <= limit, "{units} units in the window that ends at {last} us: {rule:?} {charges:?}");
        }
    }
}

// ---- Limits ----

/// Makes a charge that is granted.
fn charge(key: &mut Key, rule: &Rule, now: i64, id: &[u8]) {
    let (answer, changed) = key.call_with_id(rule, now, Request::now(Amount::Cost(1)), Some(id)).expect("an answer");
    assert!(changed && answer.granted == 1 && !answer.retried, "{answer:?}");
}

#[test]
fn one_id_more_than_a_key_remembers_forgets_the_oldest_and_nothing_else() {
    let forms = [
        Form::Fixed { windows: Windows::FirstCall },
        Form::Slide { segments: 65_536 },
        Form::Slide { segments: 3 },
        Form::Gcra { burst: None },
        Form::Bucket { capacity: None, step: true },
    ];
    for form in forms {
        let rule = Rule { limit: 1_000_000, period: 86_400 * SECOND, form };
        let (mut key, id) = (Key::default(), |n: u32| n.to_le_bytes());
        let most = limiter::MAX_IDS as u32;
        assert_eq!(most, 65_536);
        for n in 0..most {
            charge(&mut key, &rule, i64::from(n), &id(n));
        }
        let now = most.into();
        assert_eq!(key.held(&rule, now, &id(0)), Ok(Some(1)));
        charge(&mut key, &rule, now, &id(most));
        assert_eq!(key.held(&rule, now, &id(0)), Ok(None), "{form:?}");
        for n in 1..=most {
            assert_eq!(key.held(&rule, now, &id(n)), Ok(Some(1)), "{form:?}: {n}");
        }
        assert_eq!(key.settle(now, &id(0), 0), Ok(None));
        let used = |key: &Key| {
            let policy = rule.policy();
            let view = policy.view(key.value.as_deref(), Instant::from_us(now)).expect("a record");
            rule.limit - view.peek(Request::now(Amount::Cost(1))).expect("a decision").remaining
        };
        // A unit of GCRA is paid every 86 ms: after 65 ms a part of one.
        assert_eq!(used(&key), u64::from(most) + 1, "{form:?}");
        for n in [most, 1, most / 2] {
            let (answer, changed) = key.settle(now, &id(n), 0).expect("an answer").expect("a remembered charge");
            assert!(changed && answer.granted == 0);
        }
        assert_eq!(used(&key), u64::from(most) - 2, "{form:?}");
        assert_eq!(key.held(&rule, now, &id(2)), Ok(Some(1)));
    }
}

#[test]
fn a_limit_of_0_denies_retries_and_leaves_the_charge() {
    for form in FORMS {
        let rule = Rule { limit: 10, period: SECOND, form };
        let mut key = Key::default();
        charge(&mut key, &rule, 0, b"a");
        let none = Rule { limit: 0, ..rule };
        let (answer, changed) = key.call_with_id(&none, 1, Request::now(Amount::Cost(1)), Some(b"a")).expect("an answer");
        assert!(!changed);
        assert_eq!(
            (answer.granted, answer.limit, answer.remaining, answer.wait, answer.retried),
            (0, 0, 0, Wait::Never, false)
        );
        assert_eq!(answer.reset, Span::ZERO);
        assert_eq!(key.held(&rule, 1, b"a"), Ok(Some(1)));
        assert!(key.settle(1, b"a", 0).expect("an answer").is_some());
    }
}

#[test]
fn inspect_shows_how_many_ids_are_remembered_and_their_units() {
    for form in FORMS {
        let rule = Rule { limit: 10, period: SECOND, form };
        let mut key = Key::default();
        charge(&mut key, &rule, 0, b"a");
        let (answer, _) = key.call_with_id(&rule, 1, Request::now(Amount::Cost(3)), Some(b"b")).expect("an answer");
        assert_eq!(answer.granted, 3);
        let facts = limiter::inspect(key.value.as_deref().expect("a record"), Instant::from_us(2)).expect("a record");
        let fact = |name: &str| facts.iter().find(|(other, _)| *other == name).map(|(_, fact)| fact);
        assert_eq!((fact("ids"), fact("ids_units")), (Some(&Fact::Number(2)), Some(&Fact::Number(4))), "{form:?}");
    }
}
