//! Proves with random policies and random calls that the core decides exactly as the model does, and that it keeps its
//! promises: the wait in a reply is long enough, no window holds more than its limit, no rounding loses units however fast
//! the calls come, bookings are granted in order, a clock that steps back locks no caller out, and no bytes make the core
//! panic.
//!
//! `PROPTEST_CASES` sets another number of cases than the default.

use crate::action::{Action, Ahead, Clock, Step, Verb};
use crate::ids::histories::{near, rules_of, share, starts, Size, SECOND};
use crate::key::{Key, Refusal, Steps};
use crate::model::{survives, Form, Model, Rule, Silence, Windows};
use proptest::collection::vec;
use proptest::prelude::*;
use redis_rl::limiter::{Amount, Change, Decision, Instant, Kind, Policy, Request, Span, Wait};
use redis_rl::limiter::{MAX_PERIOD, MAX_UNITS, MIN_PERIOD};
use std::collections::VecDeque;

// ---- Random policies and calls ----

fn limits() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..=20u64, 2 => 1..=2_000u64, 2 => 1..=MAX_UNITS, 1 => Just(1), 1 => Just(MAX_UNITS)]
}

fn periods() -> impl Strategy<Value = u64> {
    let (min, max) = (MIN_PERIOD.as_us(), MAX_PERIOD.as_us());
    prop_oneof![2 => Just(SECOND), 3 => min..=100_000, 2 => min..=max, 1 => Just(min), 1 => Just(max)]
}

fn capacities(limit: u64) -> impl Strategy<Value = Option<u64>> {
    let near = 1..=limit.saturating_mul(3).min(MAX_UNITS);
    prop_oneof![3 => Just(None), 3 => near.prop_map(Some), 1 => Just(Some(1)), 1 => (1..=MAX_UNITS).prop_map(Some)]
}

fn segments() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(65_536u64), 2 => 1..=10u64, 2 => 1..=1_000u64, 1 => 1..=65_536u64]
}

/// A rule of one algorithm, among them rules with extreme values.
fn rules(kind: Kind) -> impl Strategy<Value = Rule> {
    rules_of(kind, (limits(), periods()), capacities, segments)
}

fn kinds() -> impl Strategy<Value = Kind> {
    proptest::sample::select(Kind::RATES)
}

/// Rules of one algorithm that are close to each other, so that a change of policy carries usage over.
fn rule_changes(kind: Kind) -> impl Strategy<Value = Vec<Rule>> {
    let factor = || prop_oneof![2 => Just(1_000u64), 3 => 1..=3_000u64];
    (rules(kind), vec((factor(), factor(), rules(kind)), 1..4)).prop_map(move |(first, others)| {
        let near = others
            .into_iter()
            .map(|(limit, period, other)| near(kind, &first, (limit, period), MAX_PERIOD.as_us(), other.form));
        std::iter::once(first).chain(near).collect()
    })
}

fn steps_ahead() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Us(0)),
        1 => Just(Step::Us(1)),
        2 => (0..=10_000u64).prop_map(Step::Us),
        4 => (0..=300u64).prop_map(Step::Period),
        1 => (0..=3_000u64).prop_map(Step::Period),
        2 => Just(Step::Promise),
        1 => Just(Step::Before),
        1 => Just(Step::Reset),
    ]
}

fn steps_anywhere() -> impl Strategy<Value = Step> {
    prop_oneof![5 => steps_ahead(), 1 => (0..=2_500u64).prop_map(Step::Back)]
}

fn sizes() -> impl Strategy<Value = Size> {
    prop_oneof![
        4 => Just(Size::Units(1)),
        4 => (1..=5u64).prop_map(Size::Units),
        4 => (1..=1_000u64).prop_map(Size::Share),
        1 => (1_000..=2_500u64).prop_map(Size::Share),
        1 => (1..=MAX_UNITS).prop_map(Size::Units),
    ]
}

fn taking() -> impl Strategy<Value = Verb> {
    prop_oneof![2 => Just(Verb::Cost), 1 => Just(Verb::UpTo)]
}

fn any_verb() -> impl Strategy<Value = Verb> {
    prop_oneof![6 => taking(), 1 => Just(Verb::Force), 1 => Just(Verb::Refund)]
}

fn aheads() -> impl Strategy<Value = Ahead> {
    const DAY: u64 = 86_400 * SECOND;
    prop_oneof![
        4 => Just(Ahead::Us(0)),
        1 => (0..=10_000u64).prop_map(Ahead::Us),
        3 => (0..=1_200u64).prop_map(Ahead::Period),
        1 => (0..=5_000u64).prop_map(Ahead::Period),
        1 => Just(Ahead::Us(DAY)),
        2 => Just(Ahead::Wait),
        1 => Just(Ahead::Less),
    ]
}

/// Calls without RESERVE: the units that are free now decide about them.
fn actions(
    step: impl Strategy<Value = Step>,
    verb: impl Strategy<Value = Verb>,
    max: usize,
) -> impl Strategy<Value = Vec<Action>> {
    actions_ahead(step, verb, Just(Ahead::Us(0)), max)
}

/// Calls of which some may be booked. In some of the sequences none is.
fn bookings(
    step: impl Strategy<Value = Step>,
    verb: impl Strategy<Value = Verb>,
    max: usize,
) -> impl Strategy<Value = Vec<Action>> {
    (actions_ahead(step, verb, aheads(), max), 0..4u8).prop_map(|(mut actions, books)| {
        if books == 0 {
            actions.iter_mut().for_each(|action| action.ahead = Ahead::Us(0));
        }
        actions
    })
}

fn actions_ahead(
    step: impl Strategy<Value = Step>,
    verb: impl Strategy<Value = Verb>,
    ahead: impl Strategy<Value = Ahead>,
    max: usize,
) -> impl Strategy<Value = Vec<Action>> {
    let change = prop_oneof![3 => Just(0usize), 1 => 0..4usize];
    let action = (change, step, verb, sizes(), ahead).prop_map(|(rule, step, verb, size, ahead)| Action {
        rule,
        step,
        verb,
        size,
        ahead,
    });
    vec(action, 1..max).prop_map(|mut actions| {
        // A rule stays in force until an action changes it.
        let mut rule = 0;
        for action in &mut actions {
            rule += action.rule;
            action.rule = rule;
        }
        actions
    })
}

/// Whether these are rules of SLIDE with several periods or ticks.
fn shares_a_log(rules: &[Rule]) -> bool {
    let grid = |rule: &Rule| match rule.form {
        Form::Slide { segments } => Some((rule.period, segments)),
        _ => None,
    };
    rules.iter().any(|rule| grid(rule) != grid(&rules[0]))
}

/// Makes the same calls to the core and to the model, and expects the same answers.
fn compare(rules: &[Rule], start: i64, actions: &[Action], expiring: bool) -> Result<(), TestCaseError> {
    let rules: Vec<Rule> = rules.iter().map(|rule| rule.starting_at(start)).collect();
    let (mut key, mut model, mut clock) = (Key::default(), Model::default(), Clock::new(start));
    let (mut history, mut latest) = (Vec::new(), start);
    for action in actions {
        let rule = &rules[action.rule % rules.len()];
        let (now, request) = clock.next(rule, action, &key);
        if expiring {
            key.expire(Instant::from_us(now));
        }
        let expected = model.call(rule, now, request);
        if expected == Err(Silence::Open) {
            break;
        }
        // The contract does not define how long a log stays shared after the clock has stepped back. The promise to each
        // caller holds in any case.
        let stepped_back = now < latest;
        latest = latest.max(now);
        if stepped_back && shares_a_log(&rules) {
            break;
        }
        history.push(format!("{now} us: {request:?} of {rule:?}"));
        let actual = key.call(rule, now, request);
        // A shared log also counts grants that are outside a caller's own window, and may be full a little sooner.
        if actual == Err(Refusal::Overflow) && shares_a_log(&rules) && rule.limit > u64::from(u32::MAX / 4) {
            break;
        }
        let expected = expected.map_err(|_| Refusal::Overflow);
        prop_assert_eq!(actual, expected, "core and model differ at the last of these calls:\n{}", history.join("\n"));
        if let Ok(decision) = actual {
            clock.note_reply(&decision);
        }
    }
    Ok(())
}

/// A fraction of the configured number of cases.
fn one_case_in(share: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(6_000);
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases((cases / share).max(1)) }
}

// ---- The core decides as the model does ----

proptest! {
    #![proptest_config(one_case_in(1))]

    #[test]
    fn decides_as_the_model(
        rule in kinds().prop_flat_map(rules), start in starts(),
        actions in bookings(steps_ahead(), any_verb(), 60), expiring: bool,
    ) {
        compare(&[rule], start, &actions, expiring)?;
    }

    #[test]
    fn decides_as_the_model_while_the_policy_changes_or_the_clock_steps_back(
        (rules, actions) in prop_oneof![
            (kinds().prop_flat_map(rule_changes), bookings(steps_ahead(), any_verb(), 60)),
            (kinds().prop_flat_map(rule_changes), bookings(steps_anywhere(), any_verb(), 60)),
            (kinds().prop_flat_map(rules).prop_map(|rule| vec![rule]), bookings(steps_anywhere(), any_verb(), 60)),
        ],
        start in starts(),
    ) {
        compare(&rules, start, &actions, false)?;
    }

    // ---- Promises ----

    #[test]
    fn a_lone_retry_is_granted_at_the_promised_instant_and_not_before(
        rule in kinds().prop_flat_map(rules), start in starts(), actions in bookings(steps_ahead(), any_verb(), 40),
    ) {
        let rule = rule.starting_at(start);
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        for action in &actions {
            let (now, request) = clock.next(&rule, action, &key);
            let Ok(decision) = key.call(&rule, now, request) else { continue };
            clock.note_reply(&decision);
            let promised = now.saturating_add_unsigned(clock.wait);
            if decision.granted > 0 || clock.wait == 0 || promised == i64::MAX {
                continue;
            }
            let retry = |at| key.clone().call(&rule, at, request).map(|retry| (retry.granted > 0).then_some(retry.wait));
            prop_assert_eq!(retry(promised - 1), Ok(None), "{:?} at {} us: {:?}", request, now, decision);
            // The booking was too far ahead. Now it is exactly as far ahead as it may be.
            let ahead = match rule.form {
                _ if !matches!(request.amount, Amount::Cost(_)) => Span::ZERO,
                Form::Slide { .. } => request.ahead.min(Span::from_us(rule.period + rule.tick())),
                _ => request.ahead,
            };
            // A call that should be granted fails only if the state would reach past the end of time.
            let retried = retry(promised);
            // With UNTIL, the next window ends sooner than a period after the one that has just ended.
            let sooner = matches!(rule.form, Form::Fixed { windows: Windows::Until(_) })
                && matches!(retried, Ok(Some(wait)) if wait <= Wait::For(ahead));
            prop_assert!(
                retried == Ok(Some(Wait::For(ahead))) || sooner || retried == Err(Refusal::Overflow),
                "{request:?} at {now} us: {decision:?}, then {retried:?}"
            );
        }
    }

    #[test]
    fn a_promise_under_a_changed_policy_is_kept(
        rules in kinds().prop_flat_map(rule_changes), start in starts(), actions in bookings(steps_ahead(), any_verb(), 40),
    ) {
        let rules: Vec<Rule> = rules.iter().map(|rule| rule.starting_at(start)).collect();
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        for action in &actions {
            let rule = &rules[action.rule % rules.len()];
            let (now, request) = clock.next(rule, action, &key);
            let Ok(decision) = key.call(rule, now, request) else { continue };
            clock.note_reply(&decision);
            if decision.granted > 0 || matches!(request.amount, Amount::Refund(_)) {
                continue;
            }
            // The exact wait, and as a reply names it, in milliseconds. With UNTIL some bookings can be made only before
            // `time`.
            let until = matches!(rule.form, Form::Fixed { windows: Windows::Until(_) }) && request.ahead > Span::ZERO;
            for wait in [clock.wait, if until { clock.wait } else { clock.wait.div_ceil(1_000) * 1_000 }] {
                let promised = now.saturating_add_unsigned(wait);
                let retry = key.clone().call(rule, promised, request).map(|decision| decision.granted > 0);
                prop_assert!(
                    wait == 0 || promised == i64::MAX || matches!(retry, Ok(true) | Err(Refusal::Overflow)),
                    "{request:?} of {rule:?} at {now} us: {decision:?}, {retry:?} after {wait} us"
                );
            }
            let reset = now.saturating_add_unsigned(clock.reset);
            if reset < i64::MAX {
                prop_assert_eq!(key.reset(rule, reset), 0, "{:?} of {:?} at {} us: {:?}", request, rule, now, decision);
            }
        }
    }

    #[test]
    fn no_window_holds_more_than_its_bound(
        rule in kinds().prop_flat_map(rules), start in starts(), actions in actions(steps_ahead(), taking(), 150),
    ) {
        let rule = rule.starting_within_a_period(start);
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        let mut grants: Vec<(i128, u128)> = Vec::new();
        for action in &actions {
            let (now, request) = clock.next(&rule, action, &key);
            let Ok(decision) = key.call(&rule, now, request) else { continue };
            clock.note_reply(&decision);
            grants.push((now.into(), decision.granted.into()));
        }
        assert_bound(&rule, &grants, 0);
    }

    #[test]
    fn polling_with_upto_gets_every_unit_that_flows_in(
        limit in 1..=1_000_000u64, period in periods(), capacity in 2..=1_000_000u64,
        gaps in vec(0..=1_000u128, 1..300), bucket: bool,
    ) {
        let form = if bucket {
            Form::Bucket { capacity: Some(capacity), step: false }
        } else {
            Form::Gcra { burst: Some(capacity) }
        };
        let rule = Rule { limit, period, form };
        // As long as units can flow in without reaching the capacity, none may be lost.
        let longest = u128::from(capacity - 1) * u128::from(period) / u128::from(limit);
        let (mut key, mut now, mut total) = (Key::default(), 0, 0u128);
        for gap in std::iter::once(0).chain(gaps) {
            now += longest * gap / 1_000;
            let Ok(at) = i64::try_from(now) else { break };
            let Ok(decision) = key.call(&rule, at, Request::now(Amount::UpTo(MAX_UNITS))) else { break };
            total += u128::from(decision.granted);
            prop_assert_eq!(total, u128::from(capacity) + now * u128::from(limit) / u128::from(period));
        }
    }

    // ---- Callers of SLIDE with several policies ----

    #[test]
    fn callers_in_turn_share_a_slide_log_and_each_promise_holds(
        rules in rule_changes(Kind::Slide), start in starts(), actions in actions(steps_ahead(), taking(), 120), turns in 1..4usize,
    ) {
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        let coarsest = rules.iter().map(Rule::tick).max().unwrap_or(1) as i64;
        // Each grant: its time, its units, and its caller.
        let mut grants: Vec<(i64, u64, usize)> = Vec::new();
        // Grants before this time may be forgotten.
        let mut forgotten = i64::MIN;
        for (turn, action) in actions.iter().enumerate() {
            // The callers take turns, or each makes calls for a while.
            let caller = (action.rule + turn / turns) % rules.len();
            let rule = &rules[caller];
            let (now, request) = clock.next(rule, action, &key);
            let (period, entire) = (rule.period as i64, Rule { limit: u32::MAX.into(), ..*rule });
            let within = |grants: &[(i64, u64, usize)], after: i64| -> u64 {
                grants.iter().filter(|grant| grant.0 > after).map(|grant| grant.1).sum()
            };
            let peeked = entire.policy().peek(key.value.as_deref(), Instant::from_us(now), Request::now(Amount::Cost(MAX_UNITS)));
            let used = u64::from(u32::MAX) - peeked.expect("a decision").remaining;
            let context = format!("{now} us, {rule:?} after {grants:?}");
            prop_assert!(used >= within(&grants, (now - period).max(forgotten)), "{used} at {context}");
            // One tick for the entry itself, and one for each time that the log adopted other ticks while the entry counted.
            prop_assert!(used <= within(&grants, now - period - 5 * coarsest), "{used} at {context}");

            let before = key.value.as_deref().map(log_grid);
            let Ok(decision) = key.call(rule, now, request) else { continue };
            clock.note_reply(&decision);
            prop_assert!(decision.reset.as_us() as i64 <= period + 5 * coarsest, "{decision:?} at {context}");
            if decision.granted == 0 {
                continue;
            }
            grants.push((now, decision.granted, caller));
            let all = within(&grants, (now - period).max(forgotten));
            prop_assert!(all <= rule.limit, "{all} at {context}");

            let value = key.value.as_deref().expect("a log");
            let (kept, tick) = log_grid(value);
            let last = u32::from_le_bytes(*value[value.len() - 8..].first_chunk().expect("an entry"));
            let base = i64::from_le_bytes(*value[24..].first_chunk().expect("a header"));
            prop_assert!(base + i64::from(last) <= now.div_euclid(tick as i64), "past the present tick at {context}");
            // The log adopts a shorter period only if no caller who needs the longer one was granted units within it.
            if let Some((before, _)) = before.filter(|&(before, _)| before > kept) {
                let needs = |grant: &&(i64, u64, usize)| grant.0 > now - before as i64 && rules[grant.2].period > kept;
                prop_assert_eq!(grants.iter().find(needs), None, "{}", context);
            }
            forgotten = forgotten.max(now - kept as i64);
        }
    }

    // ---- Bookings ----

    #[test]
    fn no_window_holds_more_than_its_bound_if_each_caller_waits_as_replied(
        rule in kinds().prop_flat_map(rules), start in starts(), actions in bookings(steps_ahead(), any_verb(), 100),
    ) {
        // Without ALIGN, debt makes the next windows follow without a call, and no reply shows where they begin. So no call
        // of such a limiter forces units.
        let forces = !matches!(rule.form, Form::Fixed { windows: Windows::FirstCall });
        let rule = rule.starting_within_a_period(start);
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        let mut acts: Vec<(i128, u128)> = Vec::new();
        // The last call, if it was a booking.
        let mut booked = None;
        for action in &actions {
            let (now, mut request) = clock.next(&rule, action, &key);
            match request.amount {
                Amount::Force(_) if !forces => continue,
                // A refund is of the last booking that is not due yet. After a refund of an older one, the later ones would
                // still be due at the times in their replies, and the last of their slots would be granted again.
                Amount::Refund(_) => match booked {
                    Some((instant, units)) if instant > now => request.amount = Amount::Refund(units),
                    _ => continue,
                },
                _ => {}
            }
            let Ok(decision) = key.call(&rule, now, request) else { continue };
            clock.note_reply(&decision);
            match request.amount {
                Amount::Refund(units) => {
                    prop_assert_eq!(decision.granted, units);
                    acts.pop();
                    booked = None;
                }
                // Forced units are bound by no window, granted units are.
                Amount::Force(_) => booked = None,
                _ if decision.granted > 0 => {
                    let instant = now.saturating_add_unsigned(clock.wait);
                    acts.push((instant.into(), decision.granted.into()));
                    booked = (clock.wait > 0).then_some((instant, decision.granted));
                }
                _ => {}
            }
        }
        acts.sort_by_key(|&(instant, _)| instant);
        // A slot is at an exact fraction of a microsecond. A reply names the next whole microsecond.
        assert_bound(&rule, &acts, 1);
    }

    #[test]
    fn no_later_call_acts_before_an_earlier_one(
        rule in kinds().prop_flat_map(rules), start in starts(),
        actions in bookings(steps_ahead(), prop_oneof![6 => taking(), 1 => Just(Verb::Force)], 80),
    ) {
        // A time that lies further ahead ends a window sooner than the replies to earlier bookings say.
        let rule = rule.starting_within_a_period(start);
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        let mut latest = i64::MIN;
        for action in &actions {
            let (now, request) = clock.next(&rule, action, &key);
            let Ok(decision) = key.call(&rule, now, request) else { continue };
            clock.note_reply(&decision);
            if decision.granted > 0 && !matches!(request.amount, Amount::Force(_)) {
                let instant = now.saturating_add_unsigned(clock.wait);
                prop_assert!(instant >= latest, "{request:?} at {now} us acts at {instant}, after {latest}");
                latest = instant;
            }
        }
    }

    #[test]
    fn a_booking_leaves_the_same_usage_as_a_call_at_its_instant(
        rule in kinds().prop_flat_map(rules), start in starts(), actions in bookings(steps_ahead(), any_verb(), 30),
    ) {
        // By then, the time of UNTIL has passed. The booking has a window that ends sooner.
        let rule = rule.as_recorded();
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        for action in &actions {
            let (now, request) = clock.next(&rule, action, &key);
            let before = key.clone();
            let Ok(decision) = key.call(&rule, now, request) else { continue };
            clock.note_reply(&decision);
            let instant = now.saturating_add_unsigned(clock.wait);
            if decision.granted == 0 || clock.wait == 0 || instant == i64::MAX {
                continue;
            }
            let mut called = before;
            let granted = called.call(&rule, instant, Request::now(request.amount)).map(|called| called.granted);
            prop_assert_eq!(granted, Ok(decision.granted), "{:?} at {} us: {:?}", request, now, decision);
            let (booked, called) = (key.reset(&rule, instant), called.reset(&rule, instant));
            // A slot is at an exact fraction of a microsecond, but no caller comes before the next whole microsecond.
            let slack = u64::from(matches!(rule.form, Form::Gcra { .. } | Form::Bucket { step: false, .. }));
            prop_assert!(booked <= called && called <= booked + slack, "{request:?} at {now} us: {booked}, {called}");
        }
    }

    // ---- A denial that lasts ----

    #[test]
    fn a_lasting_denial_is_repeated_as_it_would_be_decided(
        rules in kinds().prop_flat_map(rule_changes), start in starts(), permille in 0..=1_000_u64, back: u32,
        actions in bookings(steps_anywhere(), any_verb(), 30),
    ) {
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        for action in &actions {
            let rule = &rules[action.rule % rules.len()];
            let (now, request) = clock.next(rule, action, &key);
            let _ = key.call(rule, now, request);
            let Some(record) = key.value.as_deref() else { continue };
            let policy = rule.policy();
            let denial = |now: i64| {
                let view = policy.view(Some(record), Instant::from_us(now)).expect("a record");
                let (decision, _) = view.decide(Request::now(Amount::Cost(1))).ok()?;
                Some((decision, view.lasting_denial(record, &decision), view.matches_policy()))
            };
            let Some((decision, lasting, same_policy)) = denial(now) else { continue };
            let Some(lasting) = lasting else {
                // Most denials last.
                let plain = matches!(rule.form, Form::Fixed { windows: Windows::FirstCall } | Form::Gcra { .. } | Form::Bucket { .. });
                let dated_ahead = actions.iter().any(|action| matches!(action.step, Step::Back(_)));
                prop_assert!(decision.granted > 0 || !plain || !same_policy || dated_ahead || rule.limit == 0, "{decision:?}");
                continue;
            };
            let Wait::For(wait) = decision.wait else { panic!("{decision:?}") };
            let last = wait.as_us() - 1;
            for passed in [0, 1.min(last), share(last, permille), last] {
                let Some(later) = now.checked_add_unsigned(passed) else { continue };
                let expected = denial(later).map(|(decision, ..)| decision);
                prop_assert_eq!(lasting.repeated(record, Instant::from_us(later)), expected, "after {} us", passed);
            }
            prop_assert_eq!(lasting.repeated(record, Instant::from_us(now).saturating_add(wait)), None);
            prop_assert_eq!(lasting.repeated(record, Instant::from_us(now.saturating_sub(1 + i64::from(back)))), None);
            prop_assert_eq!(lasting.repeated(&record[1..], Instant::from_us(now)), None);
        }
    }

    // ---- The clock steps back ----

    #[test]
    fn a_step_back_makes_no_wait_longer_than_when_it_was_written(
        rule in kinds().prop_flat_map(rules), start in starts(), back in 0..=i64::MAX,
        actions in bookings(steps_ahead(), prop_oneof![4 => taking(), 1 => Just(Verb::Force)], 30),
        size in sizes(), verb in taking(),
    ) {
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        let (mut written, mut booked) = (start, false);
        for action in &actions {
            let (now, request) = clock.next(&rule, action, &key);
            let before = key.value.clone();
            if let Ok(decision) = key.call(&rule, now, request) {
                clock.note_reply(&decision);
                booked |= decision.granted > 0 && clock.wait > 0;
            }
            if key.value != before {
                written = now;
            }
        }
        let stay = Action { rule: 0, step: Step::Us(0), verb, size, ahead: Ahead::Us(0) };
        let (_, request) = clock.next(&rule, &stay, &key);
        for earlier in [written - back % rule.period as i64, written - back % (written + 1), 0] {
            let at = |now| key.clone().call(&rule, now, request);
            let (Ok(then), Ok(now)) = (at(written), at(earlier)) else { continue };
            // A window, a step or a tick is stored by its beginning. The part of it that had passed may have to pass again.
            let unknown = match rule.form {
                Form::Fixed { .. } | Form::Bucket { step: true, .. } => rule.period,
                // A log also does not store how far ahead its bookings were.
                Form::Slide { .. } if booked => rule.period + 2 * rule.tick() - 1,
                Form::Slide { .. } => rule.tick() - 1,
                _ => 0,
            };
            let longest = |wait| match wait {
                Wait::For(span) => Wait::For(Span::from_us(span.as_us() + unknown)),
                Wait::Never => Wait::Never,
            };
            prop_assert!(now.wait <= longest(then.wait), "written {written}, back to {earlier}: {then:?}, then {now:?}");
            prop_assert!(now.reset.as_us() <= then.reset.as_us() + unknown);
        }
    }

    // ---- Bytes ----

    #[test]
    fn no_bytes_make_it_panic(
        rules in kinds().prop_flat_map(rule_changes), start in starts(),
        actions in bookings(steps_anywhere(), any_verb(), 12),
        garbage in vec(any::<u8>(), 0..120), header in 0..=40usize,
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), cut in any::<prop::sample::Index>(), whole: bool,
        now in prop_oneof![any::<i64>(), starts()], size in 1..=MAX_UNITS,
        ahead in prop_oneof![Just(0), 0..=100 * SECOND, any::<u64>()],
    ) {
        let (mut key, mut clock) = (Key::default(), Clock::new(start));
        for action in &actions {
            let rule = &rules[action.rule % rules.len()];
            let (now, request) = clock.next(rule, action, &key);
            let _ = key.call(rule, now, request);
        }
        let real = key.value.unwrap_or_default();
        let mut damaged = real.clone();
        for (index, byte) in flips {
            if !real.is_empty() {
                damaged[index.index(real.len())] = byte;
            }
        }
        damaged.truncate(if whole { real.len() } else { cut.index(real.len() + 1) });
        let grafted = [&real[..header.min(real.len())], &garbage].concat();
        for value in [garbage, grafted, damaged] {
            for rule in &rules {
                for now in [now, clock.now] {
                    for verb in [Verb::Cost, Verb::UpTo, Verb::Force, Verb::Refund] {
                        for amount in [verb.of(size), verb.of(1)] {
                            survives(&rule.policy(), &value, now, Request { ahead: Span::from_us(ahead), ..Request::now(amount) });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn no_time_makes_it_panic(
        rules in kinds().prop_flat_map(rule_changes),
        calls in vec(
            (prop_oneof![any::<i64>(), Just(i64::MAX), Just(i64::MIN), starts()], any_verb(), sizes(), aheads()),
            1..20,
        ),
    ) {
        let mut key = Key::default();
        for (index, (now, verb, size, ahead)) in calls.into_iter().enumerate() {
            let rule = &rules[index % rules.len()];
            let request = Action { rule: 0, step: Step::Us(0), verb, size, ahead }.request(rule, now, &key);
            match rule.policy().decide(key.value.as_deref(), Instant::from_us(now), request) {
                Ok(outcome) => {
                    key.apply(&outcome.change, &outcome.bytes);
                }
                Err(refusal) => prop_assert_eq!(refusal, Refusal::Overflow),
            }
        }
    }
}

proptest! {
    #![proptest_config(one_case_in(150))]

    #[test]
    fn slide_grants_nearly_what_an_exact_log_grants(
        limit in 10..=2_000u64, period in 100_000..=100 * SECOND, overload in 2..=10u64,
        gaps in vec(0..=1_000u64, 997),
    ) {
        let policy = Rule { limit, period, form: Form::Slide { segments: 65_536 } }.policy();
        let (mut key, mut log, mut now) = (Key::default(), VecDeque::new(), 0);
        let (mut granted, mut exact) = (0u64, 0u64);
        for gap in gaps.iter().cycle() {
            now += period * gap / (500 * limit * overload);
            if now > 20 * period {
                break;
            }
            granted += decide(&mut key, &policy, now, Amount::Cost(1)).granted;
            while log.front().is_some_and(|at| at + period <= now) {
                log.pop_front();
            }
            if log.len() < limit as usize {
                log.push_back(now);
                exact += 1;
            }
        }
        prop_assert!(granted * 1_000 >= exact * 999, "{granted} of {exact}");
    }

    #[test]
    fn a_slide_log_stays_small(
        limit in 1..=3_000u64, period in periods(), segments in vec(segments(), 1..3),
        actions in actions(steps_ahead(), taking(), 2_000),
    ) {
        assert_small(limit, period, &segments, &actions, 1)?;
    }

    #[test]
    fn a_slide_log_with_bookings_holds_at_most_twice_the_entries(
        limit in 1..=3_000u64, period in periods(), segments in vec(segments(), 1..3),
        actions in actions_ahead(steps_ahead(), taking(), aheads(), 2_000),
    ) {
        assert_small(limit, period, &segments, &actions, 2)?;
    }
}

/// The period and the tick of a log.
fn log_grid(value: &[u8]) -> (u64, u64) {
    let number = |at: usize| u64::from_le_bytes(*value[at..].first_chunk().expect("a header"));
    (number(8), number(16))
}

/// Panics if a log of these calls is ever longer than `times` the entries of a window, plus expired entries.
fn assert_small(limit: u64, period: u64, segments: &[u64], actions: &[Action], times: u64) -> Result<(), TestCaseError> {
    let (mut key, mut clock) = (Key::default(), Clock::new(0));
    // Callers that take turns share the finest ticks.
    let mut finest = 0;
    for action in actions {
        let segments = segments[action.rule % segments.len()];
        finest = segments.max(finest);
        let rule = Rule { limit, period, form: Form::Slide { segments } };
        let (now, request) = clock.next(&rule, action, &key);
        let Ok(decision) = key.call(&rule, now, request) else { continue };
        clock.note_reply(&decision);
        let length = key.value.as_ref().map_or(0, Vec::len) as u64;
        // Expired entries are dropped when they are a quarter of the others.
        let entries = times * limit.min(finest + 1);
        prop_assert!(decision.granted == 0 || length <= 64 + 8 * (entries + entries / 4), "{length} bytes");
    }
    Ok(())
}

/// Checks all grants, in order of time, against what the algorithm allows in any stretch of time. Where that is an exact
/// fraction of a microsecond, each grant may come up to `late` microseconds after its time.
fn assert_bound(rule: &Rule, grants: &[(i128, u128)], late: u128) {
    let (limit, period, capacity) = (u128::from(rule.limit), i128::from(rule.period), u128::from(rule.capacity()));
    let mut window = None;
    for (index, &(first, _)) in grants.iter().enumerate() {
        if let Form::Fixed { windows } = rule.form {
            // The windows are consecutive. Each is checked once, from its first call on.
            let begin = match windows {
                Windows::FirstCall => first,
                // The time of UNTIL lies at most one period ahead, so all windows end a multiple of the period from it.
                Windows::Align(offset) | Windows::Until(offset) => first - (first - i128::from(offset)).rem_euclid(period),
            };
            if window.is_some_and(|begun: i128| first < begun + period) || grants[index].1 == 0 {
                continue;
            }
            window = Some(begin);
        }
        let mut total = 0;
        for &(last, units) in &grants[index..] {
            total += units;
            let elapsed = (last - first) as u128;
            let periods = elapsed / period as u128;
            match rule.form {
                Form::Fixed { .. } => {
                    assert!(last >= window.expect("a window") + period || total <= limit, "{first}..{last}")
                }
                Form::Slide { .. } => assert!(periods > 0 || total <= limit, "{first}..{last}: {total}"),
                // A full bucket, and the steps that may fall after the first grant.
                Form::Bucket { step: true, .. } => {
                    let steps = elapsed.div_ceil(period as u128);
                    assert!(total <= capacity + steps * limit, "{first}..{last}: {total}")
                }
                // Multiplied by the period, so that the comparison is exact.
                _ => assert!(
                    total * period as u128 <= capacity * period as u128 + limit * (elapsed + late),
                    "{first}..{last}: {total}"
                ),
            }
        }
    }
}

/// Decides and carries out the change, as fast as possible.
fn decide(key: &mut Key, policy: &Policy, now: u64, amount: Amount) -> Decision {
    let outcome =
        policy.decide(key.value.as_deref(), Instant::from_us(now as i64), Request::now(amount)).expect("a decision");
    key.apply(&outcome.change, &outcome.bytes);
    outcome.decision
}

// ---- Exact at speed ----

/// How many units are granted in each of the first `seconds` seconds, with one call each microsecond.
fn one_a_microsecond(form: Form, seconds: u64) -> Vec<u64> {
    let policy = Rule { limit: 1_000_000, period: SECOND, form }.policy();
    let mut key = Key::default();
    let second = |n: u64| n * SECOND..(n + 1) * SECOND;
    (0..seconds).map(|n| second(n).map(|now| decide(&mut key, &policy, now, Amount::Cost(1)).granted).sum()).collect()
}

#[test]
fn a_million_a_second_are_granted_in_each_second() {
    for form in [
        Form::Fixed { windows: Windows::FirstCall },
        Form::Gcra { burst: None },
        Form::Gcra { burst: Some(1) },
        Form::Bucket { capacity: None, step: false },
        Form::Bucket { capacity: Some(1), step: false },
        Form::Bucket { capacity: None, step: true },
    ] {
        assert_eq!(one_a_microsecond(form, 2), [1_000_000; 2], "{form:?}");
    }
    // A grant of SLIDE counts until its whole tick has left the window.
    let granted = one_a_microsecond(Form::Slide { segments: 65_536 }, 2);
    assert!(granted[0] == 1_000_000 && (999_000..=1_000_000).contains(&granted[1]), "SLIDE: {granted:?}");
}

#[test]
fn gcra_three_a_second_polled_for_a_year_does_not_drift() {
    let policy = Rule { limit: 3, period: SECOND, form: Form::Gcra { burst: None } }.policy();
    let (mut key, mut now) = (Key::default(), 0);
    assert_eq!(decide(&mut key, &policy, now, Amount::Cost(3)).granted, 3);
    for call in 1..=3 * 365 * 86_400 {
        let Wait::For(wait) = decide(&mut key, &policy, now, Amount::Cost(1)).wait else { panic!("never") };
        now += wait.as_us();
        assert_eq!(now, (call * SECOND).div_ceil(3));
        assert_eq!(decide(&mut key, &policy, now, Amount::Cost(1)).granted, 1);
    }
}

// ---- Callers of SLIDE in turn, at speed ----

/// How many bytes the calls of these callers in turn write, and how often they write the whole log.
fn written(rules: &[Rule], calls: u64, gap: u64) -> (usize, usize) {
    let policies: Vec<Policy> = rules.iter().map(Rule::policy).collect();
    let (mut key, mut bytes, mut rewrites) = (Key::default(), 0, 0);
    for call in 0..calls {
        let (policy, now) = (&policies[call as usize % policies.len()], Instant::from_us((call * gap) as i64));
        let outcome = policy.decide(key.value.as_deref(), now, Request::now(Amount::Cost(1))).expect("a decision");
        assert_eq!(outcome.decision.granted, 1);
        if let Change::Write { offset, .. } = &outcome.change {
            bytes += outcome.bytes.as_slice().len();
            rewrites += usize::from(*offset == 0);
        }
        key.apply(&outcome.change, &outcome.bytes);
    }
    (bytes, rewrites)
}

#[test]
fn callers_in_turn_write_hardly_more_than_one() {
    const CALLS: u64 = 400_000;
    let rule = |limit, period, segments| Rule { limit, period, form: Form::Slide { segments } };
    let gap = 1_000;
    let one = rule(1_000_000, 65_536_000, 65_536);
    // Tens of thousands of entries, over six periods.
    let (alone, rewrites) = written(&[one], CALLS, gap);
    assert!(alone <= 48 * CALLS as usize && rewrites <= 30, "{alone} bytes, {rewrites} rewrites");
    for (name, other, most) in [
        // Each call writes only the header.
        ("limits", rule(2_000_000, one.period, 65_536), 0),
        ("segments", rule(1_000_000, one.period, 1_000), 2),
        ("segments that divide nothing", rule(1_000_000, one.period, 46_811), 2),
        ("periods", rule(1_000_000, one.period / 1_000, 65_536), 2),
        ("near periods", rule(1_000_000, one.period - 1, 65_536), 2),
    ] {
        let (bytes, more) = written(&[one, other], CALLS, gap);
        assert!(more <= rewrites + most, "{name}: {more} rewrites, {rewrites} alone");
        assert!(bytes <= alone + 48 * CALLS as usize, "{name}: {bytes} bytes, {alone} alone");
    }
}

#[test]
fn a_shared_log_holds_no_more_than_twice_the_longest() {
    // A thousand calls per second for ten minutes, and a caller with a window of a month: the log has the ticks of the first
    // caller.
    let rule = |limit, period, segments| Rule { limit, period, form: Form::Slide { segments } };
    let (short, long) = (rule(2_000, SECOND, 65_536), rule(4_000_000_000, 30 * 86_400 * SECOND, 65_536));
    let (mut key, mut longest) = (Key::default(), 0);
    for call in 0..600_000u64 {
        let now = (call * 1_000) as i64;
        let rule = if call % 1_000 == 0 { &long } else { &short };
        assert_eq!(
            key.call(rule, now, Request::now(Amount::Cost(1))).map(|decision| decision.granted),
            Ok(1),
            "call {call}"
        );
        longest = longest.max(key.value.as_ref().map_or(0, Vec::len));
        if call % 50_000 == 49_999 {
            let used = |rule: &Rule| {
                let peeked = rule.policy().peek(key.value.as_deref(), Instant::from_us(now), Request::now(Amount::Cost(1)));
                rule.limit - peeked.expect("a decision").remaining
            };
            // The log's ticks are a hundredth of a second. Entries that are merged are older than the short window.
            assert!((1_000..=1_012).contains(&used(&short)), "{}", used(&short));
            assert_eq!(used(&long), call + 1);
        }
    }
    assert!(longest <= 64 + 8 * 3 * 65_537, "{longest} bytes");
}

// ---- Bookings at speed ----

#[test]
fn a_booking_seldom_rewrites_a_slide_log() {
    const CALLS: u64 = 10_000;
    for (limit, segments) in
        [(1_000, 65_536), (1_000, 1_000), (1_000, 10), (100, 65_536), (100, 7), (10, 65_536), (1, 65_536)]
    {
        let rule = Rule { limit, period: SECOND, form: Form::Slide { segments } };
        let (policy, gap, mut key) = (rule.policy(), SECOND / limit, Key::default());
        let (mut booked, mut rewrites, mut rewritten) = (0, 0, 0);
        for call in 0..CALLS {
            // The calls come exactly at the rate of the limit, but half a period's worth comes at once: all that follow are
            // due that much later.
            let now = gap * call.min(limit).max(call.saturating_sub(limit / 2));
            let request = Request { ahead: Span::from_us(2 * SECOND), ..Request::now(Amount::Cost(1)) };
            let outcome = policy.decide(key.value.as_deref(), Instant::from_us(now as i64), request).expect("a decision");
            booked += u64::from(outcome.decision.wait > Wait::NONE && outcome.decision.granted == 1);
            if let Change::Write { offset: 0, .. } = &outcome.change {
                rewrites += 1;
                rewritten += outcome.bytes.as_slice().len();
            }
            key.apply(&outcome.change, &outcome.bytes);
        }
        let figures = format!("{limit} in {segments}: {booked} booked, {rewrites} rewrites of {rewritten} bytes");
        assert!(booked > CALLS * 4 / 5, "{figures}");
        // A log is rewritten when a quarter of it has expired.
        assert!(rewrites <= 5 * CALLS / limit.min(segments), "{figures}");
        assert!(rewritten as u64 <= 64 * CALLS, "{figures}");
    }
}

#[test]
fn a_log_booked_as_far_ahead_as_may_be_is_free_two_periods_after_a_step_back() {
    let rule = Rule { limit: 1, period: 1_000, form: Form::Slide { segments: 65_536 } };
    let (mut key, request) = (Key::default(), Request { ahead: Span::from_us(SECOND), ..Request::now(Amount::Cost(1)) });
    let start = 10 * SECOND as i64;
    for (now, wait) in [(start, 0), (start, 1_000), (start + 999, 1_001)] {
        let decision = key.call(&rule, now, request).expect("a decision");
        assert_eq!((decision.granted, decision.wait), (1, Wait::For(Span::from_us(wait))));
    }
    for now in [start + 999, start, start - 1, start - 1_000, 0] {
        assert!(key.reset(&rule, now) <= 2 * (rule.period + rule.tick()), "at {now} us");
    }
}
