//! No words make the grammar panic. For every command, the values that it accepts are within the contract's ranges, and the
//! error for words that it refuses is a short printable line.
#![no_main]

use std::fmt::Display;

use libfuzzer_sys::fuzz_target;
use redis_rl::commands::parsers::{
    parse_cl_throttle, parse_gcra, parse_lease, parse_limit, parse_numkeys, parse_numpolicies, parse_pause, parse_peek,
    parse_policy, parse_policy_text, parse_release, parse_rules, parse_settle, parse_top, parse_use, Rule, SettleArgs,
    ThrottleArgs, TopArgs, MAX_TOP_KEYS,
};
use redis_rl::limiter::{Amount, Decision, Instant, Kind, Policy, Request, Span};
use redis_rl::limiter::{MAX_PAUSE, MAX_PERIOD, MAX_UNITS, MIN_PERIOD};
use redis_rl_fuzz::key::{Refusal, Steps};

const DAY: Span = Span::from_us(86_400_000_000);

fn policy_in_range(policy: &Policy) {
    let (limit, period) = (policy.limit(), policy.period());
    assert!(limit <= policy.kind().spec().max_limit && (MIN_PERIOD..=MAX_PERIOD).contains(&period), "{policy:?}");
}

fn in_range(rule: &Rule) {
    let Rule { policy, request, block, names_amount, renew, shadow } = rule;
    policy_in_range(policy);
    assert!(!shadow, "only a policy key says so: {rule:?}");
    let (Amount::Cost(n) | Amount::UpTo(n) | Amount::Force(n) | Amount::Refund(n)) = request.amount;
    assert!((1..=MAX_UNITS).contains(&n), "{rule:?}");
    let (cost, upto) = (matches!(request.amount, Amount::Cost(_)), matches!(request.amount, Amount::UpTo(_)));
    assert!(*names_amount || request.amount == Amount::Cost(1), "{rule:?}");
    assert!(request.id.is_none() || cost || upto, "{rule:?}");
    assert!(
        policy.kind() == Kind::Lease && cost && request.ahead == Span::ZERO || policy.kind() != Kind::Lease && !renew,
        "{rule:?}"
    );
    assert!(request.ahead == Span::ZERO || cost && block.is_none() && request.ahead <= DAY, "{rule:?}");
    assert!(block.is_none_or(|span| (cost || upto) && Span::ZERO < span && span <= DAY), "{rule:?}");

    match policy.decide(None, Instant::from_us(1_760_000_000_000_000), *request).map(|outcome| outcome.decision) {
        Ok(Decision { limit, remaining, .. }) => assert!(remaining <= limit && limit <= MAX_UNITS, "{rule:?}"),
        // A debt or a wait past the end of time.
        Err(error) => assert_eq!(error, Refusal::Overflow, "{rule:?}"),
    }
}

/// The rule without its id, which is case-sensitive.
fn without_id(mut rule: Rule<'_>) -> Rule<'_> {
    rule.request.id = None;
    rule
}

fn accepted<T>(result: Result<T, impl Display>) -> Option<T> {
    result.inspect_err(|error| short_and_printable(&error.to_string())).ok()
}

fn short_and_printable(text: &str) {
    let printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    assert!(text.starts_with("ERR ") && text.len() <= 256 && printable, "{text:?}");
}

/// Checks a rule of `RL.PEEK`: it takes units as `Cost` or `UpTo`, never waits, and has no id.
fn only_takes(rule: &Rule) {
    assert!(
        matches!(rule.request.amount, Amount::Cost(_) | Amount::UpTo(_)) && rule.request.ahead == Span::ZERO,
        "{rule:?}"
    );
    assert!(rule.block.is_none() && rule.request.id.is_none() && !rule.renew, "{rule:?}");
    in_range(rule);
}

/// Checks the rules of `RL.ALL`: they take units as `Cost`, book none, and have the same id and wait. A lease has an id.
fn take_together(rules: &[Rule]) {
    for rule in rules {
        assert!(
            matches!(rule.request.amount, Amount::Cost(_)) && rule.request.ahead == Span::ZERO && !rule.renew,
            "{rule:?}"
        );
        assert!((rule.request.id, rule.block) == (rules[0].request.id, rules[0].block), "{rules:?}");
        assert!(rule.request.id.is_some() || rule.policy.kind() != Kind::Lease, "{rule:?}");
        in_range(rule);
    }
}

// The input is a line of words between spaces, so that the entries of a dictionary can be words. Two spaces make an empty
// word.
fuzz_target!(|line: &[u8]| {
    let words = split(line);
    for &kind in Kind::ALL {
        let rule = accepted(parse_limit(kind, &words[..]));
        if kind == Kind::Lease {
            assert_eq!(accepted(parse_lease(&words[..])), rule.filter(|rule| rule.request.id.is_some()));
        }
        if let Some(rule) = &rule {
            in_range(rule);
        }
        for line in [line.to_ascii_lowercase(), line.to_ascii_uppercase()] {
            let words = split(&line);
            let other = parse_limit(kind, &words[..]).ok().map(without_id);
            assert_eq!(other, rule.map(without_id), "letter case matters");
        }
        // The other commands read the words that they accept in the same way.
        let name = kind.name().as_bytes();
        let rest = words.get(2..).unwrap_or_default();
        if let Some(peeked) = accepted(parse_peek(&[&[b"RL.PEEK", name, b"key"], rest].concat()[..])) {
            only_takes(&peeked);
            assert_eq!(rule, Some(peeked));
        }
        let all: [&[u8]; 4] = [b"RL.ALL", b"1", b"key", name];
        if let Some(one) = accepted(parse_rules(&[&all, rest].concat()[..], 1)) {
            assert_eq!(rule.as_slice(), one);
            take_together(&one);
        }
    }
    if let Some(rule) = accepted(parse_peek(&words[..])) {
        only_takes(&rule);
    }
    for ThrottleArgs { policy, amount } in
        [accepted(parse_cl_throttle(&words[..])), accepted(parse_gcra(&words[..]))].into_iter().flatten()
    {
        policy_in_range(&policy);
        assert!(policy.limit() > 0);
        match amount {
            None => {}
            Some(Amount::Cost(n) | Amount::Refund(n)) => assert!((1..=MAX_UNITS).contains(&n), "{amount:?}"),
            Some(_) => panic!("{amount:?}"),
        }
    }
    let released = accepted(parse_release(&words[..]));
    if let Some(SettleArgs { id, units }) = accepted(parse_settle(&words[..])) {
        assert!(units <= MAX_UNITS && released == Some(SettleArgs { id, units: 0 }));
    }
    if let Some(length) = accepted(parse_pause(&words[..])) {
        assert!(length == Span::ZERO || (MIN_PERIOD..=MAX_PAUSE).contains(&length), "{length:?}");
    }
    if let Some(text) = accepted(parse_policy(&words[..])) {
        // What RL.POLICY stores is a policy, whose text stays as it is when it is stored again.
        let named = accepted(parse_policy_text(&text)).expect("a policy");
        assert_eq!(named, Rule { shadow: named.shadow, ..Rule::new(named.policy, Request::now(Amount::Cost(1))) });
        policy_in_range(&named.policy);
        let again: Vec<&[u8]> = [&b"RL.POLICY"[..], b"key"].into_iter().chain(text.split(|&byte| byte == b' ')).collect();
        assert_eq!(accepted(parse_policy(&again[..])).as_deref(), Some(&text[..]));
    }
    // Any text is a policy or an error.
    accepted(parse_policy_text(line));
    if let Some(policies) = accepted(parse_numpolicies(&words[..])) {
        assert!((1..=16).contains(&policies) && words.len() >= 3 + policies);
        for kind in Kind::ALL {
            let named = parse_policy_text(format!("{} 5 1m SHADOW", kind.name()).as_bytes()).expect("a policy");
            if let Some(rule) = accepted(parse_use(&words[..], policies, &named)) {
                assert!(rule.shadow && rule.policy == named.policy && (rule.request.id.is_some() || *kind != Kind::Lease));
                in_range(&Rule { shadow: false, ..rule });
            }
        }
    }
    if let Some(TopArgs::List(most)) = accepted(parse_top(&words[..])) {
        assert!((1..=MAX_TOP_KEYS as usize).contains(&most));
    }
    if let Some(keys) = accepted(parse_numkeys(&words[..])) {
        assert!((1..=1024).contains(&keys));
        if let Some(rules) = accepted(parse_rules(&words[..], keys)) {
            assert_eq!(rules.len(), keys);
            take_together(&rules);
        }
    }
});

fn split(line: &[u8]) -> Vec<&[u8]> {
    line.split(|&byte| byte == b' ').collect()
}
