//! No value of a key makes a limiter panic. A call on it is either refused, or decided within the bounds of a decision.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use redis_rl::limiter::{
    inspect, pause, rest_of_pause, Amount, Bytes, Change, Fact, Instant, Kind, Request, Span, Wait, MAX_PERIOD, MAX_UNITS,
};
use redis_rl_fuzz::action::{Action, Clock};
use redis_rl_fuzz::key::{Key, Outcome, Steps};
use redis_rl_fuzz::model::{survives, Form, Rule, Windows};
use redis_rl_fuzz::{rule, rules, start, starting, units};

#[derive(Debug)]
struct Stored {
    /// The calls that write a real record. If there are none, the value consists of arbitrary bytes.
    calls: Vec<Action>,
    /// The rules of these calls, and one of any algorithm.
    rules: Vec<Rule>,
    start: i64,
    /// Bytes of the record to set.
    patches: Vec<(u8, u8)>,
    /// How many bytes of the record are kept; `None` for all.
    keep: Option<u8>,
    /// The time and the request of the call on the value.
    now: i64,
    request: Request<'static>,
    /// The bytes after the record.
    more: Vec<u8>,
}

impl<'a> Arbitrary<'a> for Stored {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let n = if u.arbitrary()? { units(u, MAX_UNITS)? } else { u.int_in_range(1..=MAX_UNITS)? };
        let amount = *u.choose(&[Amount::Cost(n), Amount::UpTo(n), Amount::Force(n), Amount::Refund(n)])?;
        let ahead = Span::from_us(if u.arbitrary()? { u.arbitrary()? } else { 0 });
        let now = if u.arbitrary()? { u.arbitrary()? } else { start(u)? };
        let other = *u.choose(Kind::RATES)?;
        let (mut rules, other, start) = (rules(u)?, rule(u, other)?, start(u)?);
        rules.push(other);
        let rules = starting(rules, start);
        let calls = (0..u.int_in_range(0..=12u8)?).map(|_| u.arbitrary()).collect::<Result<_>>()?;
        let patches = (0..u.int_in_range(0..=6u8)?).map(|_| u.arbitrary()).collect::<Result<_>>()?;
        let keep = u.arbitrary()?;
        let more = u.bytes(u.len())?.to_vec();
        Ok(Self { calls, rules, start, patches, keep, now, request: Request { ahead, ..Request::now(amount) }, more })
    }
}

fuzz_target!(|stored: Stored| {
    let Stored { calls, rules, start, patches, keep, now, request, more } = stored;
    let (mut key, mut clock, mut in_force) = (Key::default(), Clock::new(start), 0);
    for call in &calls {
        in_force += call.rule;
        let rule = &rules[in_force % (rules.len() - 1)];
        let (_, request) = clock.next(rule, call, &key);
        if let Ok(decision) = key.call(rule, clock.now, request) {
            clock.note_reply(&decision);
        }
    }
    let real = key.value.unwrap_or_default();
    let mut value = real.clone();
    for (index, byte) in patches {
        if let Some(old) = value.get_mut(usize::from(index)) {
            *old = byte;
        }
    }
    value.truncate(keep.map_or(value.len(), usize::from));
    value.extend(more);
    for now in [now, clock.now] {
        let _ = inspect(&value, Instant::from_us(now));
        for rule in &rules {
            // In the other records every value of a field is valid. The entries of a damaged log may be out of order.
            let sound = !matches!(rule.form, Form::Slide { .. }) || value == real;
            check(rule, &value, now, request, sound);
            check(&Rule { limit: 0, ..*rule }, &value, now, request, sound);
        }
    }
    if (0..1 << 55).contains(&now) {
        check_paused(&rules, value, now, request);
    }
});

/// Checks what must be true for any value with a pause: it takes nothing for that long. If the pause is ended, the value is as it was,
/// or affects no decision any more.
fn check_paused(rules: &[Rule], value: Vec<u8>, now: i64, request: Request<'static>) {
    let (at, length) = (Instant::from_us(now), Span::from_us(1_000_000));
    let mut bytes = Bytes::default();
    // The bytes may be a pause already.
    let was_paused = rest_of_pause(Some(&value), at) > Span::ZERO;
    let Ok((rest, change)) = pause(Some(&value), None, at, length, &mut bytes) else { return };
    let mut paused = Some(value.clone());
    change.apply(&bytes, &mut paused);
    assert!(rest >= length && rest_of_pause(paused.as_deref(), at) == rest);
    for rule in rules {
        survives(&rule.policy(), paused.as_deref().expect("a pause"), now, request);
        let Ok(decision) = rule.policy().peek(paused.as_deref(), at, request) else { continue };
        assert_eq!(decision.remaining, 0);
        if let Amount::Cost(_) | Amount::UpTo(_) = request.amount {
            assert!(decision.granted == 0 && decision.wait >= Wait::For(rest), "{decision:?}");
        }
    }
    let mut bytes = Bytes::default();
    let ended = pause(paused.as_deref(), None, at, Span::ZERO, &mut bytes);
    let (Span::ZERO, change) = ended.expect("a limiter") else { panic!("the pause has not ended") };
    change.apply(&bytes, &mut paused);
    assert!(was_paused || paused.is_none_or(|ended| ended == value));
}

/// Checks what must be true for any value at any time, and if the value is `sound`, also what must be true for a value that
/// a limiter may have written.
fn check(rule: &Rule, value: &[u8], now: i64, request: Request<'static>, sound: bool) {
    let (policy, at) = (rule.policy(), Instant::from_us(now));
    survives(&policy, value, now, request);
    let _ = policy.wrote(value);
    let peeked = policy.peek(Some(value), at, request);
    let Outcome { decision, change, bytes } = match policy.decide(Some(value), at, request) {
        Err(error) => return assert_eq!(peeked, Err(error)),
        Ok(outcome) => outcome,
    };
    assert_eq!(peeked.map(|peeked| (peeked.granted, peeked.wait)), Ok((decision.granted, decision.wait)));
    assert!(decision.limit == (if rule.limit == 0 { 0 } else { rule.capacity() }) && decision.remaining <= decision.limit);
    let latest = if let Amount::Cost(_) = request.amount { request.ahead } else { Span::ZERO };
    if decision.granted > 0 || rule.limit > 0 && matches!(request.amount, Amount::Refund(_)) {
        assert!(decision.wait <= Wait::For(latest), "acts later than requested: {decision:?}");
    } else {
        assert!(decision.wait > Wait::NONE && change == Change::Keep, "a denial: {decision:?}, {change:?}");
    }
    // The log may be shared with a caller that has a longer period.
    let mut key = Key { value: Some(value.to_vec()), longest_us: MAX_PERIOD.as_us(), ..Key::default() };
    if let Change::Write { .. } = change {
        let mut key = key.clone();
        key.apply(&change, &bytes);
        let written = key.value.expect("a value");
        let until = matches!(rule.form, Form::Fixed { windows: Windows::Until(_) });
        assert!(policy.wrote(&written) || until || matches!(rule.form, Form::Fixed { windows: Windows::Align(_) }));
        let report = inspect(&written, at).expect("a limiter writes records");
        let fact = |name| report.iter().find(|fact| fact.0 == name).map(|fact| fact.1.clone());
        let number = |n: u64| Some(Fact::Number(n as i64));
        assert_eq!(fact("algorithm"), Some(Fact::Word(policy.kind().name())));
        // A shared log shows the policy of the caller with the longest period.
        let Some(Fact::Milliseconds(period)) = fact("period_ms") else { panic!("no period: {report:?}") };
        // A window that a caller with a longer period has begun keeps its end.
        let keeps_period = period == Span::from_us(rule.period) || until && period > Span::from_us(rule.period);
        let own = fact("limit") == number(rule.limit) && keeps_period;
        let shared = matches!(rule.form, Form::Slide { .. }) && written.get(39).is_some_and(|byte| byte & 0x80 != 0);
        assert!(own || shared, "{report:?} of {rule:?}");
        let sound = sound && own;
        assert!(!sound || fact("remaining") == number(decision.remaining), "{decision:?}, {report:?}");
    }
    // Near the end of time the deadline of a log can't be later, so that the checks of `Key::call` would fail there.
    if sound && (0..1 << 55).contains(&now) {
        assert_eq!(key.call(rule, now, request), Ok(decision));
    }
}
