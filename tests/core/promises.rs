//! What the documents promise of a call is what the algorithm does. They use these words for such promises. The call that a promise
//! is about is the last one before it in the same paragraph, row of a table or line of code, or else the first one after it:
//!
//! * `never more than 10 in any 60 seconds` (`at most 10 per minute` and the like mean the same): no window has more, and one has
//!   as many.
//! * `ten at once, then one every 6 seconds`: what a client gets that asks all the time, after each pause.
//! * `one every 200 ms`: the same without a burst.
//! * `100 in each window of a minute`: the windows follow each other without a gap.
//! * `at most 4 at a time`: leases.
//!
//! Each promise is replayed with the real parser and the real algorithm, on a clock of its own.

use std::path::Path;

use redis_rl::commands::parsers::{parse_lease, parse_limit};
use redis_rl::limiter::{Amount, Decision, Id, Instant, Kind, Policy, Request, Wait, MAX_UNITS};

use crate::key::Steps;

/// A promise. The times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// No window of this length has more units.
    InAny(u64, u64),
    /// This many at once, and then one after each of these intervals.
    Spaced(u64, u64),
    /// This many in each of the windows, which have this length.
    InEach(u64, u64),
    /// This many leases.
    Held(u64),
}

/// A word of a text, without the punctuation around it.
struct Word<'t> {
    at: usize,
    text: &'t str,
}

fn words<'t>(text: &'t str) -> Vec<Word<'t>> {
    let word = |raw: &'t str| {
        let word = raw.trim_matches(|c: char| !c.is_alphanumeric());
        Word { at: word.as_ptr() as usize - text.as_ptr() as usize, text: word }
    };
    text.split_whitespace().map(word).collect()
}

/// The rest of the words if they begin with these.
fn after<'w, 't>(words: &'w [Word<'t>], expected: &str) -> Option<&'w [Word<'t>]> {
    expected.split(' ').try_fold(words, |rest, expected| {
        let (first, rest) = rest.split_first()?;
        first.text.eq_ignore_ascii_case(expected).then_some(rest)
    })
}

/// A number in digits, in groups of digits, or in words.
fn number<'w, 't>(words: &'w [Word<'t>]) -> Option<(u64, &'w [Word<'t>])> {
    const NAMES: [&str; 13] =
        ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    let (first, rest) = words.split_first()?;
    if let Some(number) = NAMES.iter().position(|name| first.text.eq_ignore_ascii_case(name)) {
        return Some((number as u64, rest));
    }
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(first.text) {
        return None;
    }
    let groups = rest.iter().take_while(|word| word.text.len() == 3 && digits(word.text)).count();
    let number: String = words[..=groups].iter().map(|word| word.text).collect();
    Some((number.parse().ok()?, &rest[groups..]))
}

/// A length of time in microseconds: `minute`, `a minute`, `60 seconds`, `200 ms`.
fn duration<'w, 't>(words: &'w [Word<'t>]) -> Option<(u64, &'w [Word<'t>])> {
    let words = after(words, "a").or_else(|| after(words, "an")).unwrap_or(words);
    let (count, words) = number(words).unwrap_or((1, words));
    let (unit, rest) = words.split_first()?;
    let unit = match unit.text {
        "ms" => 1_000,
        "s" | "second" | "seconds" => 1_000_000,
        "minute" | "minutes" => 60_000_000,
        "hour" | "hours" => 3_600_000_000,
        "day" | "days" => 86_400_000_000,
        _ => return None,
    };
    Some((count * unit, rest))
}

/// The promise that the words begin with.
fn promise(words: &[Word<'_>]) -> Option<Promise> {
    if let Some(rest) = after(words, "at most").or_else(|| after(words, "never more than")) {
        let (units, rest) = number(rest)?;
        return past_nouns(rest, |rest| {
            if after(rest, "at a time").or_else(|| after(rest, "at the same time")).is_some() {
                return Some(Promise::Held(units));
            }
            let joined =
                ["in any", "per", "within", "in each", "each", "every", "in"].iter().find_map(|join| after(rest, join));
            let named = joined.or_else(|| after(rest, "a").or_else(|| after(rest, "an")))?;
            duration(named).map(|(span, _)| Promise::InAny(units, span))
        });
    }
    if let Some(rest) = after(words, "one every") {
        return duration(rest).map(|(span, _)| Promise::Spaced(1, span));
    }
    let (units, rest) = number(words)?;
    past_nouns(rest, |rest| {
        let span = |words: &str| after(rest, words).and_then(duration).map(|(span, _)| span);
        let spaced = span("at once then one every").map(|span| Promise::Spaced(units, span));
        spaced.or_else(|| span("in each window of").map(|span| Promise::InEach(units, span)))
    })
}

/// What `read` finds in the words, or after a few of them that are no numbers: calls, units, logins of a user.
fn past_nouns(words: &[Word<'_>], read: impl Fn(&[Word<'_>]) -> Option<Promise>) -> Option<Promise> {
    let nouns = words.iter().enumerate().take_while(|(index, _)| number(&words[*index..]).is_none()).count().min(4);
    (0..=nouns).find_map(|nouns| read(&words[nouns..]))
}

/// The calls in a text: where each begins, and its words. A policy of a client package counts as the call that it makes.
fn calls(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut calls = Vec::new();
    for kind in Kind::ALL {
        let command = format!("RL.{} ", kind.name());
        for (at, _) in text.match_indices(&command) {
            let rest = text[at..].split(['`', '#', '"', '\'', ';', ')', '\n']).next().expect("a part");
            let words: Vec<String> = rest.split("   ").next().expect("a part").split_whitespace().map(Into::into).collect();
            if words.len() >= 4 && words[2].parse::<u64>().is_ok() {
                calls.push((at, words));
            }
        }
        let class = format!("{}{}", &kind.name()[..1], kind.name()[1..].to_lowercase());
        for open in [format!("{class}("), format!("{class}::new(")] {
            for (at, _) in text.match_indices(&open) {
                calls.extend(of_package(*kind, &text[at + open.len()..]).map(|words| (at, words)));
            }
        }
    }
    calls.sort();
    calls
}

/// The call of a policy, such as `"10/m", burst=5)` in Python, `'10/m', { burst: 5 })` in Node.js and `"10/m")?.burst(5)?` in Rust.
fn of_package(kind: Kind, rest: &str) -> Option<Vec<String>> {
    let rest = rest.split(['`', ';', '\n', '#']).next()?;
    let first = rest.split([',', ')']).next()?.trim_matches(['"', '\'']);
    let head = format!("RL.{} key", kind.name());
    let mut words: Vec<String> = head.split(' ').map(Into::into).collect();
    if kind == Kind::Lease {
        first.parse::<u64>().ok()?;
        return Some([words, vec![first.into(), "30".into()]].concat());
    }
    let (limit, period) = first.split_once('/')?;
    let period = if period.starts_with(|c: char| c.is_ascii_digit()) { period.into() } else { format!("1{period}") };
    words.extend([limit.into(), period]);
    for option in ["burst", "capacity", "segments"] {
        if let Some((_, value)) = rest.split_once(option) {
            let digits: String =
                value.chars().skip_while(|c| " :=(".contains(*c)).take_while(char::is_ascii_digit).collect();
            words.extend([option.to_uppercase(), digits]);
        }
    }
    Some(words)
}

/// A limiter on a clock of its own.
struct Limiter {
    policy: Policy,
    value: Option<Vec<u8>>,
    now_us: u64,
    /// Each grant: when, and how many units.
    grants: Vec<(u64, u64)>,
}

impl Limiter {
    fn new(policy: Policy) -> Self {
        // No multiple of any period.
        Self { policy, value: None, now_us: 1_795_302_001_234_567, grants: Vec::new() }
    }

    fn call(&mut self, amount: Amount) -> Decision {
        let outcome = self.policy.decide(self.value.as_deref(), Instant::from_us(self.now_us as i64), Request::now(amount));
        let outcome = outcome.expect("a decision");
        outcome.change.apply(&outcome.bytes, &mut self.value);
        if outcome.decision.granted > 0 {
            self.grants.push((self.now_us, outcome.decision.granted));
        }
        outcome.decision
    }

    /// Asks all the time: takes all that is free, again and again, until this moment.
    fn take_all_until(&mut self, end_us: u64) {
        while self.now_us <= end_us {
            let Wait::For(wait) = self.call(Amount::UpTo(MAX_UNITS)).wait else { panic!("nothing is ever granted") };
            // After a grant, the next call is denied, and says when to ask again.
            self.now_us += wait.as_us();
        }
    }

    /// The most units in a window of this length that ends with a grant and does not contain its own beginning.
    fn most_in(&self, span_us: u64) -> u64 {
        let units_until = |end: u64| {
            let inside = self.grants.iter().filter(|(at, _)| *at <= end && *at + span_us > end);
            inside.map(|(_, units)| units).sum()
        };
        self.grants.iter().map(|&(at, _)| units_until(at)).max().unwrap_or(0)
    }
}

/// The most units that a client gets in a window of this length, whenever it begins to ask.
fn most_in_any(policy: &Policy, span_us: u64) -> u64 {
    let period_us = policy.period().as_us();
    let pauses = (0..=16).flat_map(|part| [span_us * part / 8, period_us * part / 8]);
    let attack = |pause_us: u64| {
        let mut limiter = Limiter::new(*policy);
        limiter.call(Amount::Cost(1));
        limiter.now_us += pause_us;
        limiter.take_all_until(limiter.now_us + 2 * (span_us + period_us));
        limiter.most_in(span_us)
    };
    pauses.flat_map(|pause| [pause.saturating_sub(1), pause]).map(attack).max().expect("a pause")
}

/// What the algorithm does, in the form of the promise.
fn replay(words: &[String], promise: Promise) -> Result<Promise, String> {
    let mut arguments: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let name = words[0].trim_start_matches("RL.");
    let kind = *Kind::ALL.iter().find(|kind| kind.name() == name).expect("an algorithm");
    if kind == Kind::Lease {
        if !words.iter().any(|word| word == "ID") {
            arguments.extend([&b"ID"[..], b"a"]);
        }
        let rule = parse_lease::<[&[u8]]>(&arguments[..]).map_err(|error| error.to_string())?;
        let mut limiter = Limiter::new(rule.policy);
        let held = (0_u8..=u8::MAX).take_while(|id| {
            let request = rule.request.with_id(Id::new(std::slice::from_ref(id)).expect("an id"));
            let now = Instant::from_us(limiter.now_us as i64);
            let outcome = limiter.policy.decide(limiter.value.as_deref(), now, request).expect("a decision");
            outcome.change.apply(&outcome.bytes, &mut limiter.value);
            outcome.decision.granted > 0
        });
        return Ok(Promise::Held(held.count() as u64));
    }
    let policy = parse_limit::<[&[u8]]>(kind, &arguments[..]).map_err(|error| error.to_string())?.policy;
    match promise {
        Promise::InAny(_, span_us) => Ok(Promise::InAny(most_in_any(&policy, span_us), span_us)),
        Promise::Held(_) => Err("its algorithm limits no calls at a time".into()),
        Promise::Spaced(_, interval_us) | Promise::InEach(_, interval_us) => {
            let mut limiter = Limiter::new(policy);
            let mut units = None;
            for _ in 0..2 {
                let start_us = limiter.now_us;
                limiter.grants.clear();
                limiter.take_all_until(start_us + 20 * interval_us);
                let [(_, first), later @ ..] = &limiter.grants[..] else { return Err("nothing is granted".into()) };
                let each = if matches!(promise, Promise::Spaced(..)) { 1 } else { *first };
                let due = |number: usize| (start_us + (number as u64 + 1) * interval_us, each);
                if let Some(number) = (0..20).find(|&number| later.get(number) != Some(&due(number))) {
                    return Err(format!("grant {number} after the first is {:?}, not {:?}", later.get(number), due(number)));
                }
                if units.is_some_and(|units| units != *first) {
                    return Err(format!("{first} at once after a pause"));
                }
                units = Some(*first);
                limiter.now_us += limiter.call(Amount::UpTo(MAX_UNITS)).reset.as_us();
            }
            let units = units.expect("a first grant");
            Ok(if matches!(promise, Promise::Spaced(..)) {
                Promise::Spaced(units, interval_us)
            } else {
                Promise::InEach(units, interval_us)
            })
        }
    }
}

/// The parts of a document in which a promise and its call have to stand together.
fn parts(document: &str, markdown: bool) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut code = false;
    for line in document.lines() {
        let fence = line.starts_with("```");
        let alone = !markdown || code || fence || line.starts_with('|') || line.starts_with('#');
        if alone || line.is_empty() || line.starts_with("* ") {
            parts.push(String::new());
        }
        let part = parts.last_mut().expect("a part");
        part.push_str(line);
        part.push('\n');
        if alone {
            parts.push(String::new());
        }
        code ^= fence;
    }
    parts
}

/// Each promise in a document with what is wrong with it.
fn check(document: &str, markdown: bool) -> Vec<(Promise, Option<String>)> {
    let parts = parts(document, markdown);
    let mut checked = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let (words, calls_here) = (words(part), calls(part));
        for (index, word) in words.iter().enumerate() {
            // `then one every` is the end of a promise that was checked.
            let is_end = index > 0 && words[index - 1].text == "then";
            let Some(promise) = promise(&words[index..]).filter(|_| !is_end) else { continue };
            let before = calls_here.iter().rev().find(|(at, _)| *at < word.at);
            let after = || parts[number + 1..].iter().find_map(|part| calls(part).into_iter().next());
            let call = before.or(calls_here.first()).cloned().or_else(after);
            let wrong = match call.map(|(_, call)| (call.join(" "), replay(&call, promise))) {
                None => Some("it is about no call".into()),
                Some((call, Err(error))) => Some(format!("{call}: {error}")),
                Some((call, Ok(real))) => (real != promise).then(|| format!("{call}: it is {real:?}")),
            };
            checked.push((promise, wrong.map(|wrong| format!("{promise:?}: {wrong}, in: {part}"))));
        }
    }
    checked
}

#[test]
fn what_the_documents_promise_of_a_call_is_what_it_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = |folder: &str, extension: &str| -> Vec<_> {
        let all = std::fs::read_dir(root.join(folder)).expect("a folder").map(|file| file.expect("a file").path());
        let is_test = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("test_"));
        all.filter(|path| path.extension().is_some_and(|it| it == extension) && !is_test(path)).collect()
    };
    let named =
        ["README.md", "clients/python/README.md", "clients/node/README.md", "clients/rust/README.md", "scripts/run.sh"];
    let folders = [
        ("docs", "md"),
        ("src/commands", "rs"),
        ("examples", "md"),
        ("examples/python", "py"),
        ("examples/node", "mjs"),
        ("examples/rust", "rs"),
    ];
    let listed = folders.iter().flat_map(|(folder, extension)| files(folder, extension));
    let paths = named.iter().map(|name| root.join(name)).chain(listed);
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("text");
        let checked = check(&text, path.extension().is_some_and(|it| it == "md"));
        if path == root.join("README.md") || path == root.join("docs/commands.md") {
            let has = |form: fn(&Promise) -> bool| checked.iter().any(|(promise, _)| form(promise));
            assert!(has(|it| matches!(it, Promise::InAny(..))) && has(|it| matches!(it, Promise::Spaced(..))), "{path:?}");
        }
        for (promise, fault) in checked {
            found.push(promise);
            wrong.extend(fault.map(|fault| format!("{}: {fault}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let of_form = |form: fn(&Promise) -> bool| found.iter().filter(|promise| form(promise)).count();
    let forms = [
        of_form(|promise| matches!(promise, Promise::InAny(..))),
        of_form(|promise| matches!(promise, Promise::Spaced(..))),
        of_form(|promise| matches!(promise, Promise::InEach(..))),
        of_form(|promise| matches!(promise, Promise::Held(_))),
    ];
    println!("{forms:?} promises of the four forms");
    assert!(forms.iter().all(|&count| count > 0), "a form of promise was not found: {forms:?}");
}

#[test]
fn false_promises_are_found() {
    for (text, holds) in [
        ("`RL.GCRA key 10 60` allows at most 10 per 60 seconds.", false),
        ("`RL.GCRA key 10 60` allows at most\n19 calls in any 60 seconds.", true),
        ("`RL.BUCKET key 10 60`: never more than 10 in any minute.", false),
        ("`RL.FIXED key 10 60`: never more than 10 in any minute.", false),
        ("`RL.SLIDE key 10 60`: never more than 10 in any minute.", true),
        ("`RL.SLIDE key 10 60 SEGMENTS 7`: never more than 10 calls in any 60 seconds.", true),
        ("`RL.SLIDE key 10 60`: never more than 11 in any minute.", false),
        ("`RL.GCRA key 10 60`: ten at once, then one every 6 seconds.", true),
        ("`RL.GCRA key 10 60 BURST 5`: ten at once, then one every 6 seconds.", false),
        ("`RL.GCRA key 10 60`: ten at once, then one every 7 seconds.", false),
        ("`RL.SLIDE key 10 60`: ten at once, then one every 6 seconds.", false),
        ("`RL.GCRA key 5 1 BURST 1`: one every 200 ms.", true),
        ("`RL.GCRA key 5 1`: one every 200 ms.", false),
        ("`RL.FIXED key 10 60`: 10 in each window of a minute.", true),
        ("`RL.GCRA key 10 60`: 10 in each window of a minute.", false),
        ("`RL.LEASE key 4 30`: at most 4 at a time.", true),
        ("`RL.LEASE key 4 30`: at most 5 at a time.", false),
        ("`Gcra(\"10/m\", burst=5)`: 5 at once, then one every 6 seconds.", true),
        ("`new Gcra('10/m', { burst: 5 })`: 5 at once, then one every 6 seconds.", true),
        ("`Gcra::new(\"10/m\")?.burst(5)?`: 5 at once, then one every 6 seconds.", true),
        ("`Gcra::new(\"10/m\")?`: 5 at once, then one every 6 seconds.", false),
        ("`Slide(\"100000/15m\")`: never more than 100 000 in any 15 minutes.", true),
        ("Never more than 10 in any minute:\n\n```\nRL.SLIDE key 10 60\n```\n", true),
        ("Never more than 10 in any minute.", false),
    ] {
        let checked = check(text, true);
        assert_eq!(checked.len(), 1, "{text}: {checked:?}");
        assert_eq!(checked[0].1.is_none(), holds, "{text}: {checked:?}");
    }
}
