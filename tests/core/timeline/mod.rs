//! Proves the contract by example: timelines of calls for each algorithm, with the exact answer to each call, to the microsecond.
//! The answers were worked out by hand. Both the core and the model that the random tests trust have to give them.
//!
//! A row is `time | policy | amount | granted limit remaining wait reset`. An empty policy is that of the row above. Times
//! may be sums (`6s-1us`); the policy and the amount read as in the commands (`COST 5 RESERVE 10s`).

mod bucket;
mod fixed;
mod gcra;
mod log;
mod records;
mod shared;
mod slide;

use redis_rl::limiter::{Amount, Decision, Request, Span, Wait};

use crate::key::Key;
use crate::model::{Form, Model, Rule, Windows};

/// A booking that may be arbitrarily far ahead.
const BOOKING: Request = Request { ahead: Span::from_us(u64::MAX), ..Request::now(Amount::Cost(1)) };

/// A time in microseconds: `0`, `250ms`, `-8h`, `61s-1us`, `5s+3us`.
fn time(text: &str) -> i64 {
    let Some(split) = text.rfind(['+', '-']).filter(|&split| split > 0) else {
        let (sign, size) = text.strip_prefix('-').map_or((1, text), |size| (-1, size));
        let (number, unit) = size.split_at(size.find(char::is_alphabetic).unwrap_or(size.len()));
        let unit = match unit {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            "" if number == "0" => 0,
            _ => panic!("no time: {text}"),
        };
        return sign * unit * number.parse::<i64>().unwrap_or_else(|_| panic!("no time: {text}"));
    };
    let (rest, last) = text.split_at(split);
    let last = last.trim_start_matches('+');
    time(rest) + time(last)
}

fn span(text: &str) -> Span {
    Span::from_us(time(text) as u64)
}

fn count(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

fn rule(text: &str) -> Rule {
    let words: Vec<&str> = text.split_whitespace().collect();
    let option = |keyword| words.iter().position(|word| *word == keyword).map(|at| words.get(at + 1).copied().unwrap_or(""));
    let form = match words[0] {
        "FIXED" => {
            let align = option("ALIGN").map(|offset| Windows::Align(time(offset)));
            let until = option("UNTIL").map(|end| Windows::Until(time(end)));
            Form::Fixed { windows: align.or(until).unwrap_or(Windows::FirstCall) }
        }
        "SLIDE" => Form::Slide { segments: option("SEGMENTS").map_or(65_536, count) },
        "GCRA" => Form::Gcra { burst: option("BURST").map(count) },
        "BUCKET" => Form::Bucket { capacity: option("CAPACITY").map(count), step: option("STEP").is_some() },
        other => panic!("no algorithm: {other}"),
    };
    Rule { limit: count(words[1]), period: time(words[2]) as u64, form }
}

fn request(text: &str) -> Request<'static> {
    let (amount, ahead) = match text.split_once(" RESERVE ") {
        Some((amount, ahead)) => (amount, span(ahead)),
        None => (text, Span::ZERO),
    };
    let (verb, n) = amount.split_once(' ').expect("a verb and a number");
    let n = count(n);
    let amount = match verb {
        "COST" => Amount::Cost(n),
        "UPTO" => Amount::UpTo(n),
        "FORCE" => Amount::Force(n),
        "REFUND" => Amount::Refund(n),
        other => panic!("no verb: {other}"),
    };
    Request { ahead, ..Request::now(amount) }
}

fn decision(text: &str) -> Decision {
    let [granted, limit, remaining, wait, reset] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("not five columns: {text}")
    };
    let wait = if wait == "never" { Wait::Never } else { Wait::For(span(wait)) };
    Decision {
        granted: count(granted),
        limit: count(limit),
        remaining: count(remaining),
        wait,
        reset: span(reset),
        retried: false,
    }
}

/// Makes the calls of several cases. A line without `|` is the title of a case, which begins with a missing key.
fn timelines(cases: &str) {
    let (mut key, mut model, mut policy, mut title) = (Key::default(), Model::default(), "", None);
    let mut calls = 0;
    for row in cases.lines().map(str::trim).filter(|row| !row.is_empty()) {
        if !row.contains('|') {
            assert!(title.is_none() || calls > 0, "{title:?} has no calls");
            (key, model, policy, title, calls) = (Key::default(), Model::default(), "", Some(row), 0);
            continue;
        }
        let [at, given, asked, expected] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("not four columns: {row}")
        };
        let title = title.expect("a title");
        policy = if given.is_empty() { policy } else { given };
        let (rule, now, request) = (rule(policy), time(at), request(asked));
        assert_eq!(key.call(&rule, now, request), Ok(decision(expected)), "{title}: core at {row}");
        assert_eq!(model.call(&rule, now, request), Ok(decision(expected)), "{title}: model at {row}");
        calls += 1;
    }
    assert!(calls > 0, "{title:?} has no calls");
}
