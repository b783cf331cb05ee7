//! Proves the contract by example: for each algorithm timelines of calls, with the answer to each, to the microsecond.
//! They are told by hand; the core has to answer so, and so has the model that the random tests trust.
//! Then the codec: what is not a record is foreign, and no damage to one makes it panic.
//!
//! A row is `time | policy | amount | granted limit remaining wait reset`. An empty policy is that of the row above. Times
//! may be sums (`6s-1us`); the policy and the amount read as in the commands (`COST 5 RESERVE 10s`).

use crate::model::{survives, Form, Key, Model, Rule};
use redis_rl::limiter::{
    inspect, Amount, Change, Decision, Fact, Foreign, Instant, Kind, Refusal, Request, Span, Wait, MAX_PERIOD, MAX_UNITS,
};

// ---- Reading the tables ----

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
        "FIXED" => Form::Fixed { align: option("ALIGN").map(time) },
        "SLIDE" => Form::Slide { segments: option("SEGMENTS").map_or(65_536, count) },
        "GCRA" => Form::Gcra { burst: option("BURST").map(count) },
        "BUCKET" => Form::Bucket { capacity: option("CAPACITY").map(count), step: option("STEP").is_some() },
        other => panic!("no algorithm: {other}"),
    };
    Rule { limit: count(words[1]), period: time(words[2]) as u64, form }
}

fn request(text: &str) -> Request {
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
    Request { amount, ahead }
}

fn decision(text: &str) -> Decision {
    let [granted, limit, remaining, wait, reset] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("not five columns: {text}")
    };
    let wait = if wait == "never" { Wait::Never } else { Wait::For(span(wait)) };
    Decision { granted: count(granted), limit: count(limit), remaining: count(remaining), wait, reset: span(reset) }
}

/// Plays a table on a key that is missing at first.
fn timeline(title: &str, table: &str) {
    let (mut key, mut model, mut policy) = (Key::default(), Model::default(), "");
    for row in table.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let [at, given, asked, expected] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("not four columns: {row}")
        };
        policy = if given.is_empty() { policy } else { given };
        let (rule, now, request) = (rule(policy), time(at), request(asked));
        assert_eq!(key.call(&rule, now, request), Ok(decision(expected)), "{title}: core at {row}");
        assert_eq!(model.call(&rule, now, request), Ok(decision(expected)), "{title}: model at {row}");
    }
}

// ---- What all algorithms share ----

#[test]
fn limit_zero_is_closed_and_touches_nothing() {
    for policy in
        ["FIXED 0 60s", "FIXED 0 60s ALIGN 1s", "SLIDE 0 60s", "GCRA 0 60s BURST 5", "BUCKET 0 60s CAPACITY 5 STEP"]
    {
        let name = policy.split(' ').next().unwrap();
        timeline(
            policy,
            &format!(
                "1s | {policy}             | COST 1   | 0 0 0 never 0
                 1s |                      | UPTO 1   | 0 0 0 never 0
                 1s |                      | FORCE 1  | 0 0 0 never 0
                 1s |                      | REFUND 1 | 0 0 0 never 0
                 1s |                      | COST 1 RESERVE 1d | 0 0 0 never 0
                 1s | {name} 10 1ms        | COST 4   | 4 10 6 0 {reset}
                 1s | {policy}             | COST 1   | 0 0 0 never 0
                 1s |                      | UPTO 1   | 0 0 0 never 0
                 1s |                      | FORCE 1  | 0 0 0 never 0
                 1s |                      | REFUND 4 | 0 0 0 never 0
                 1s | {name} 10 1ms        | COST 6   | 6 10 0 0 1ms",
                reset = if matches!(name, "GCRA" | "BUCKET") { "400us" } else { "1ms" },
            ),
        );
    }
}

#[test]
fn refund_on_a_missing_key_does_nothing() {
    for policy in
        ["FIXED 10 60s", "FIXED 10 60s ALIGN 1s", "SLIDE 10 60s", "GCRA 10 60s", "BUCKET 10 60s", "BUCKET 10 60s STEP"]
    {
        timeline(policy, &format!("1s | {policy} | REFUND 5 | 0 10 10 0 0"));
        let outcome = rule(policy).policy().decide(None, Instant::from_us(0), Request::now(Amount::Refund(5))).unwrap();
        assert_eq!(outcome.change, Change::Keep);
    }
}

/// A booking however far ahead.
const BOOKING: Request = Request { amount: Amount::Cost(1), ahead: Span::from_us(u64::MAX) };

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |policy: &str, now, amount| {
        let mut key = Key::default();
        assert_eq!(key.call(&rule(policy), now, Request::now(amount)), Err(Refusal::Overflow), "{policy} {amount:?}");
        assert_eq!(key.value, None);
    };
    for policy in ["FIXED 1 3650d", "GCRA 1 3650d", "BUCKET 1 3650d", "BUCKET 1 3650d STEP"] {
        refused(policy, 0, Amount::Force(MAX_UNITS));
        refused(policy, i64::MAX - 1_000, Amount::Cost(1));
        // The longest debt that ends in time, and one more.
        let most = i64::MAX as u64 / MAX_PERIOD.as_us();
        let mut key = Key::default();
        assert!(key.call(&rule(policy), 0, Request::now(Amount::Force(most))).is_ok());
        assert_eq!(key.call(&rule(policy), 0, BOOKING), Err(Refusal::Overflow), "{policy}");
        refused(policy, 0, Amount::Force(most + 1));
    }
    refused("SLIDE 10 60s", 0, Amount::Force(1 << 32));
    refused("SLIDE 10 60s", i64::MAX - 1_000, Amount::Cost(1));
    refused("GCRA 1 3650d BURST 1000000000000", 0, Amount::Cost(MAX_UNITS));

    let mut key = Key::default();
    let slide = rule("SLIDE 4294967295 60s");
    let all = Request::now(Amount::Cost(u32::MAX.into()));
    assert_eq!(key.call(&slide, 0, all).map(|decision| decision.granted), Ok(u32::MAX.into()));
    assert_eq!(key.call(&slide, 0, Request::now(Amount::Force(1))), Err(Refusal::Overflow));
    // Its log counts as many units, with those that are booked.
    assert_eq!(key.call(&slide, 0, BOOKING), Err(Refusal::Overflow));
}

#[test]
fn a_cost_above_the_capacity_is_never_booked() {
    for policy in ["FIXED 10 60s", "SLIDE 10 60s", "GCRA 99 60s BURST 10", "BUCKET 99 60s CAPACITY 10 STEP"] {
        timeline(
            policy,
            &format!(
                "0 | {policy} | COST 11 RESERVE 1d | 0 10 10 never 0
                 0 |          | REFUND 1           | 0 10 10 0 0"
            ),
        );
    }
}

#[test]
fn only_cost_is_booked() {
    for policy in ["FIXED 10 60s", "SLIDE 10 60s SEGMENTS 1", "GCRA 1 60s BURST 10", "BUCKET 10 60s STEP"] {
        let (mut key, rule) = (Key::default(), rule(policy));
        key.call(&rule, 0, Request::now(Amount::Cost(10))).expect("a grant");
        let far = |amount| Request { amount, ahead: BOOKING.ahead };
        let denied = key.clone().call(&rule, 0, Request::now(Amount::UpTo(1))).expect("a decision");
        assert_eq!((denied.granted, key.call(&rule, 0, far(Amount::UpTo(1)))), (0, Ok(denied)), "{policy}");
        for (amount, granted) in [(Amount::Force(5), 5), (Amount::Refund(15), 15)] {
            let decision = key.call(&rule, 0, far(amount)).expect("a decision");
            assert_eq!((decision.granted, decision.wait), (granted, Wait::NONE), "{policy}");
        }
    }
}

// ---- FIXED ----

#[test]
fn fixed() {
    timeline(
        "a window begins with its first call and is free again at its end",
        "100s     | FIXED 10 60s | COST 1  | 1 10 9 0 60s
         110s     |              | COST 9  | 9 10 0 0 50s
         110s     |              | COST 1  | 0 10 0 50s 50s
         160s-1us |              | COST 1  | 0 10 0 1us 1us
         160s     |              | COST 4  | 4 10 6 0 60s",
    );
    timeline(
        "after a pause the next window begins with the next call",
        "0        | FIXED 10 60s | COST 1  | 1 10 9 0 60s
         150s     |              | COST 1  | 1 10 9 0 60s
         210s-1us |              | COST 10 | 0 10 9 1us 1us
         210s     |              | COST 10 | 10 10 0 0 60s",
    );
    timeline(
        "a cost above the limit is never granted",
        "0        | FIXED 10 60s | COST 11 | 0 10 10 never 0
         0        |              | COST 10 | 10 10 0 0 60s
         1s       |              | COST 11 | 0 10 0 never 59s",
    );
    timeline(
        "UPTO takes what is left",
        "0        | FIXED 10 60s | UPTO 4  | 4 10 6 0 60s
         1s       |              | UPTO 20 | 6 10 0 0 59s
         2s       |              | UPTO 20 | 0 10 0 58s 58s
         60s      |              | UPTO 20 | 10 10 0 0 60s",
    );
    timeline(
        "FORCE leaves a debt, which the next windows pay, a limit each",
        "0        | FIXED 10 60s | FORCE 25 | 25 10 0 0 3m
         0        |              | COST 1   | 0 10 0 2m 3m
         0        |              | COST 10  | 0 10 0 3m 3m
         60s      |              | COST 1   | 0 10 0 60s 2m
         2m-1us   |              | COST 1   | 0 10 0 1us 60s+1us
         2m       |              | COST 1   | 1 10 4 0 60s
         3m       |              | COST 10  | 10 10 0 0 60s",
    );
    timeline(
        "a debt of whole windows ends with the last of them: the next begins with a call",
        "0        | FIXED 10 60s | FORCE 20 | 20 10 0 0 2m
         2m+5s    |              | COST 1   | 1 10 9 0 60s",
    );
    timeline(
        "REFUND gives back units and keeps the window, empty or not",
        "0        | FIXED 10 60s | COST 10    | 10 10 0 0 60s
         20s      |              | REFUND 4   | 4 10 4 0 40s
         20s      |              | COST 5     | 0 10 4 40s 40s
         20s      |              | COST 4     | 4 10 0 0 40s
         30s      |              | REFUND 100 | 10 10 10 0 0
         30s      |              | REFUND 1   | 0 10 10 0 0
         40s      |              | COST 1     | 1 10 9 0 20s
         60s      |              | COST 1     | 1 10 9 0 60s",
    );
    timeline(
        "the limit goes up: the difference is free at once",
        "0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         30s      | FIXED 15 60s | COST 6  | 0 15 5 30s 30s
         30s      |              | COST 5  | 5 15 0 0 30s",
    );
    timeline(
        "the limit goes down: nothing is freed, and nobody is locked out beyond the window",
        "0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         30s      | FIXED 4 60s  | COST 1  | 0 4 0 30s 30s
         60s-1us  |              | COST 1  | 0 4 0 1us 1us
         60s      |              | COST 4  | 4 4 0 0 60s",
    );
    timeline(
        "the limit goes down to above what is used",
        "0        | FIXED 10 60s | COST 3  | 3 10 7 0 60s
         30s      | FIXED 4 60s  | COST 1  | 1 4 0 0 30s",
    );
    timeline(
        "windows that have ended are paid at the old limit, a debt is carried whole",
        "0        | FIXED 10 60s | FORCE 35 | 35 10 0 0 4m
         2m+10s   | FIXED 2 60s  | COST 1   | 0 2 0 170s 3m+50s
         2m+10s   |              | FORCE 1  | 1 2 0 0 3m+50s",
    );
    timeline(
        "a shorter period ends the window sooner",
        "0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         30s      | FIXED 10 40s | COST 1  | 0 10 0 10s 10s
         40s-1us  |              | COST 1  | 0 10 0 1us 1us
         40s      |              | COST 1  | 1 10 9 0 40s",
    );
    timeline(
        "a shorter period may have ended the window",
        "0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         50s      | FIXED 10 40s | COST 1  | 1 10 9 0 40s",
    );
    timeline(
        "a longer period ends the window later",
        "0        | FIXED 10 60s  | COST 5 | 5 10 5 0 60s
         30s      | FIXED 10 100s | COST 1 | 1 10 4 0 70s
         60s      |               | COST 5 | 0 10 4 40s 40s
         100s     |               | COST 5 | 5 10 5 0 100s",
    );
    timeline(
        "the clock steps back before the window: it begins now",
        "100s     | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         40s      |              | COST 1  | 0 10 0 60s 60s
         160s     |              | COST 1  | 1 10 9 0 60s",
    );
    timeline(
        "the clock steps back within the window: it stays",
        "100s     | FIXED 10 60s | COST 5  | 5 10 5 0 60s
         130s     |              | COST 5  | 5 10 0 0 30s
         110s     |              | COST 1  | 0 10 0 50s 50s",
    );
}

#[test]
fn fixed_reserve() {
    timeline(
        "a booking acts wholly in one window: what is left of those before is used up",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         10s  |              | COST 5 RESERVE 49s  | 0 10 2 1s 50s
         10s  |              | COST 5 RESERVE 50s  | 5 10 0 50s 110s
         10s  |              | COST 1              | 0 10 0 50s 110s
         10s  |              | UPTO 1              | 0 10 0 50s 110s
         10s  |              | COST 5 RESERVE 1d   | 5 10 0 50s 110s
         10s  |              | COST 1 RESERVE 1d   | 1 10 0 110s 170s
         60s  |              | COST 1              | 0 10 0 60s 2m
         2m   |              | COST 9              | 9 10 0 0 60s",
    );
    timeline(
        "what is free is taken now, however far ahead it might be booked",
        "0    | FIXED 10 60s | COST 5 RESERVE 1d   | 5 10 5 0 60s
         59s  |              | COST 5 RESERVE 1d   | 5 10 0 0 1s",
    );
    timeline(
        "a whole limit takes a whole window, and the next booking goes behind it",
        "0    | FIXED 10 60s | COST 1              | 1 10 9 0 60s
         0    |              | COST 10 RESERVE 60s | 10 10 0 60s 2m
         0    |              | COST 9 RESERVE 2m-1us | 0 10 0 1us 2m
         1us  |              | COST 9 RESERVE 2m-1us | 9 10 0 2m-1us 3m-1us
         2m   |              | COST 2              | 0 10 1 60s 60s
         2m   |              | COST 1              | 1 10 0 0 60s",
    );
    timeline(
        "REFUND gives a booking back, but not what it used up",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
         0    |              | REFUND 5            | 5 10 0 0 60s
         0    |              | COST 1              | 0 10 0 60s 60s
         60s  |              | COST 10             | 10 10 0 0 60s",
    );
    timeline(
        "FORCE while a booking lies ahead is paid from its window on",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
         0    |              | FORCE 4             | 4 10 0 0 2m
         60s  |              | COST 2              | 0 10 1 60s 60s
         60s  |              | COST 1              | 1 10 0 0 60s",
    );
    timeline(
        "a booking while debt is owed goes behind it",
        "0    | FIXED 10 60s | FORCE 25            | 25 10 0 0 3m
         0    |              | COST 6 RESERVE 1d   | 6 10 0 3m 4m
         2m   |              | COST 4 RESERVE 60s  | 4 10 0 60s 2m
         3m   |              | COST 1              | 0 10 0 60s 60s",
    );
    timeline(
        "the limit goes up: the difference is free at once, bookings are carried whole",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
         0    | FIXED 20 60s | COST 6              | 0 20 5 60s 60s
         0    |              | COST 5              | 5 20 0 0 60s",
    );
    timeline(
        "the limit goes down: bookings are carried whole",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
         0    | FIXED 4 60s  | COST 1              | 0 4 0 2m 3m
         0    |              | COST 1 RESERVE 2m   | 1 4 0 2m 3m
         2m   |              | COST 2              | 2 4 0 0 60s",
    );
    timeline(
        "windows on a grid, and a clock that steps back",
        "130s | FIXED 10 60s ALIGN 0 | COST 10            | 10 10 0 0 50s
         130s |                      | COST 1 RESERVE 49s | 0 10 0 1s 50s
         131s |                      | COST 1 RESERVE 49s | 1 10 0 49s 109s
         70s  |                      | COST 9             | 0 10 0 50s 110s
         180s |                      | COST 9             | 9 10 0 0 60s",
    );
}

#[test]
fn fixed_align() {
    timeline(
        "windows begin on the grid",
        "70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
         2m-1us  |                      | COST 1  | 0 10 0 1us 1us
         2m      |                      | COST 1  | 1 10 9 0 60s
         10m+59s |                      | COST 11 | 0 10 10 never 0
         10m+59s |                      | COST 10 | 10 10 0 0 1s",
    );
    timeline("an offset shifts the grid", "65s | FIXED 10 60s ALIGN 10s  | COST 1 | 1 10 9 0 5s");
    timeline("a negative one shifts it back", "65s | FIXED 10 60s ALIGN -10s | COST 1 | 1 10 9 0 45s");
    timeline("a window may begin before the epoch", "0   | FIXED 10 60s ALIGN 10s  | COST 1 | 1 10 9 0 10s");
    timeline(
        "midnight in UTC+8",
        "15h       | FIXED 1000 1d ALIGN -8h | COST 1000 | 1000 1000 0 0 1h
         16h-1us   |                         | COST 1    | 0 1000 0 1us 1us
         16h       |                         | COST 1    | 1 1000 999 0 24h",
    );
    timeline(
        "UPTO, FORCE and REFUND keep to the grid",
        "70s     | FIXED 10 60s ALIGN 0 | FORCE 25   | 25 10 0 0 2m+50s
         70s     |                      | UPTO 10    | 0 10 0 1m+50s 2m+50s
         3m      |                      | UPTO 10    | 5 10 0 0 60s
         3m+10s  |                      | REFUND 100 | 10 10 10 0 0
         3m+20s  |                      | COST 1     | 1 10 9 0 40s",
    );
    timeline(
        "ALIGN is newly given: the window becomes the one of the grid that holds its start",
        "70s     | FIXED 10 60s         | COST 10 | 10 10 0 0 60s
         80s     | FIXED 10 60s ALIGN 0 | COST 1  | 0 10 0 40s 40s
         2m-1us  |                      | COST 1  | 0 10 0 1us 1us
         2m+5s   |                      | COST 1  | 1 10 9 0 55s",
    );
    timeline(
        "the offset changes",
        "70s     | FIXED 10 60s ALIGN 0   | COST 10 | 10 10 0 0 50s
         80s     | FIXED 10 60s ALIGN 30s | COST 1  | 0 10 0 10s 10s
         90s     |                        | COST 1  | 1 10 9 0 60s",
    );
    timeline(
        "ALIGN is dropped: the window keeps its start",
        "70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
         80s     | FIXED 10 60s         | COST 1  | 0 10 0 40s 40s
         2m+5s   |                      | COST 1  | 1 10 9 0 60s",
    );
    timeline(
        "the limit changes, up and down",
        "70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
         80s     | FIXED 12 60s ALIGN 0 | COST 1  | 1 12 1 0 40s
         90s     | FIXED 5 60s ALIGN 0  | COST 1  | 0 5 0 30s 30s
         2m      |                      | COST 1  | 1 5 4 0 60s",
    );
    timeline(
        "the period changes: the window of the new grid that holds the start",
        "70s     | FIXED 10 60s ALIGN 0  | COST 10 | 10 10 0 0 50s
         80s     | FIXED 10 100s ALIGN 0 | COST 1  | 0 10 0 20s 20s
         80s     | FIXED 10 35s ALIGN 0  | COST 1  | 1 10 9 0 25s",
    );
    timeline(
        "the clock steps back: the window of the grid that holds now",
        "130s    | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
         70s     |                      | COST 1  | 0 10 0 50s 50s",
    );
}

// ---- SLIDE ----

#[test]
fn slide() {
    timeline(
        "each grant counts for a period; a period of 1 ms has ticks of a microsecond",
        "7us      | SLIDE 2 1ms  | COST 1  | 1 2 1 0 1ms
         500us    |              | COST 1  | 1 2 0 0 1ms
         1ms+6us  |              | COST 1  | 0 2 0 1us 494us
         1ms+7us  |              | COST 1  | 1 2 0 0 1ms
         1ms+7us  |              | COST 2  | 0 2 0 1ms 1ms
         1ms+7us  |              | COST 1  | 0 2 0 493us 1ms
         9ms      |              | COST 2  | 2 2 0 0 1ms",
    );
    timeline(
        "a minute has ticks of 916 us by default, and a grant counts until its tick has left the window",
        "0           | SLIDE 10 60s | COST 10 | 10 10 0 0 60s+915us
         60s+914us   |              | COST 1  | 0 10 0 1us 1us
         60s+915us   |              | COST 1  | 1 10 9 0 60s+748us",
    );
    timeline(
        "a cost above the limit is never granted",
        "0       | SLIDE 10 60s | COST 11 | 0 10 10 never 0
         0       |              | COST 10 | 10 10 0 0 60s+915us
         0       |              | COST 11 | 0 10 0 never 60s+915us",
    );
}

#[test]
fn slide_segments() {
    timeline(
        "60 segments of a second",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 4 | 4 10 6 0 61s-1us
         10500ms  |                          | COST 6 | 6 10 0 0 60500ms-1us
         20s      |                          | COST 4 | 0 10 0 41s-1us 51s-1us
         20s      |                          | COST 5 | 0 10 0 51s-1us 51s-1us
         61s-2us  |                          | COST 4 | 0 10 0 1us 10s+1us
         61s-1us  |                          | COST 4 | 4 10 0 0 60s
         71s-2us  |                          | UPTO 9 | 0 10 0 1us 50s+1us
         71s-1us  |                          | UPTO 9 | 6 10 0 0 60s",
    );
    timeline(
        "one segment: a window and the rest of the one before",
        "10s      | SLIDE 10 60s SEGMENTS 1 | COST 6 | 6 10 4 0 110s-1us
         59s      |                         | COST 3 | 3 10 1 0 61s-1us
         70s      |                         | COST 2 | 0 10 1 50s-1us 50s-1us
         70s      |                         | COST 1 | 1 10 0 0 110s-1us
         2m-2us   |                         | COST 9 | 0 10 0 1us 60s+1us
         2m-1us   |                         | COST 9 | 9 10 0 0 60s",
    );
    timeline(
        "a period that the segments don't divide: 7 segments of 1 ms are ticks of 143 us",
        "1ms      | SLIDE 1 1ms SEGMENTS 7 | COST 1 | 1 1 0 0 1ms
         2ms-1us  |                        | COST 1 | 0 1 0 1us 1us
         2ms      |                        | COST 1 | 1 1 0 0 1ms+1us",
    );
    timeline(
        "UPTO takes what is left",
        "0        | SLIDE 10 60s SEGMENTS 60 | UPTO 7 | 7 10 3 0 61s-1us
         1s       |                          | UPTO 7 | 3 10 0 0 61s-1us
         2s       |                          | UPTO 7 | 0 10 0 59s-1us 60s-1us",
    );
    timeline(
        "FORCE goes above the limit, and all of it has to leave the window",
        "0        | SLIDE 10 60s SEGMENTS 60 | FORCE 25 | 25 10 0 0 61s-1us
         30s      |                          | COST 1   | 0 10 0 31s-1us 31s-1us
         30s      |                          | FORCE 9  | 9 10 0 0 61s-1us
         61s-1us  |                          | COST 2   | 0 10 1 30s 30s
         61s-1us  |                          | COST 1   | 1 10 0 0 60s",
    );
    timeline(
        "REFUND gives back the newest first",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 4     | 4 10 6 0 61s-1us
         10s      |                          | COST 6     | 6 10 0 0 61s-1us
         20s      |                          | REFUND 2   | 2 10 2 0 51s-1us
         20s      |                          | REFUND 5   | 5 10 7 0 41s-1us
         20s      |                          | REFUND 100 | 3 10 10 0 0
         20s      |                          | REFUND 1   | 0 10 10 0 0",
    );
    timeline(
        "the limit changes, up and down: entries stay",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 10 | 10 10 0 0 61s-1us
         30s      | SLIDE 15 60s SEGMENTS 60 | COST 5  | 5 15 0 0 61s-1us
         40s      | SLIDE 6 60s SEGMENTS 60  | COST 1  | 0 6 0 21s-1us 51s-1us
         40s      |                          | COST 2  | 0 6 0 51s-1us 51s-1us
         61s-1us  |                          | COST 1  | 1 6 0 0 60s",
    );
    timeline(
        "a shorter period lets them out sooner",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 10 | 10 10 0 0 61s-1us
         30s      | SLIDE 10 40s SEGMENTS 40 | COST 1  | 0 10 0 11s-1us 11s-1us
         41s-2us  |                          | COST 1  | 0 10 0 1us 1us
         41s-1us  |                          | COST 1  | 1 10 9 0 40s",
    );
    timeline(
        "a longer one keeps them",
        "0        | SLIDE 10 60s SEGMENTS 60   | COST 10 | 10 10 0 0 61s-1us
         30s      | SLIDE 10 2m SEGMENTS 120   | COST 1  | 0 10 0 91s-1us 91s-1us
         121s-2us |                            | COST 1  | 0 10 0 1us 1us
         121s-1us |                            | COST 1  | 1 10 9 0 120s",
    );
    timeline(
        "finer ticks: entries keep their own tick's end",
        "0        | SLIDE 10 60s SEGMENTS 6  | COST 5 | 5 10 5 0 70s-1us
         20s      | SLIDE 10 60s SEGMENTS 60 | COST 5 | 5 10 0 0 61s-1us
         70s-2us  |                          | COST 5 | 0 10 0 1us 11s+1us
         70s-1us  |                          | COST 5 | 5 10 0 0 60s",
    );
    timeline(
        "coarser ticks: the log keeps the finer ones",
        "5s       | SLIDE 10 60s SEGMENTS 60 | COST 5 | 5 10 5 0 61s-1us
         20s      | SLIDE 10 60s SEGMENTS 6  | COST 5 | 5 10 0 0 61s-1us
         66s-2us  |                          | COST 5 | 0 10 0 1us 15s+1us
         66s-1us  |                          | COST 5 | 5 10 0 0 60s",
    );
    timeline(
        "and goes over to coarser ones once nobody else has been granted anything for a period",
        "5s       | SLIDE 10 60s SEGMENTS 60 | COST 1 | 1 10 9 0 61s-1us
         20s      | SLIDE 10 60s SEGMENTS 6  | COST 1 | 1 10 8 0 61s-1us
         50s      |                          | COST 1 | 1 10 7 0 61s-1us
         81s-1us  |                          | COST 1 | 1 10 8 0 60s
         82s-1us  |                          | COST 1 | 1 10 7 0 60s
         82s      |                          | COST 1 | 1 10 6 0 68s-1us
         119s     |                          | COST 7 | 0 10 6 1s-1us 31s-1us
         120s-1us |                          | COST 7 | 7 10 0 0 60s",
    );
    timeline(
        "two callers in turn: each grant counts for a period and a tick of the finer one, for both",
        "0        | SLIDE 10 60s SEGMENTS 10 | COST 5 | 5 10 5 0 66s-1us
         3s       | SLIDE 10 60s SEGMENTS 7  | COST 1 | 1 10 4 0 63s-1us
         7s       | SLIDE 10 60s SEGMENTS 10 | COST 1 | 1 10 3 0 65s-1us
         15s      | SLIDE 10 60s SEGMENTS 7  | COST 1 | 1 10 2 0 63s-1us
         25s      | SLIDE 10 60s SEGMENTS 10 | COST 1 | 1 10 1 0 65s-1us
         30s      | SLIDE 10 60s SEGMENTS 7  | COST 1 | 1 10 0 0 66s-1us
         66s-2us  | SLIDE 10 60s SEGMENTS 10 | COST 6 | 0 10 0 1us 30s+1us
         66s-1us  |                          | COST 6 | 6 10 0 0 60s
         72s-1us  | SLIDE 10 60s SEGMENTS 7  | COST 1 | 1 10 0 0 60s",
    );
    timeline(
        "what was granted in the present tick is put no later, however coarse that was",
        "0        | SLIDE 10 60s SEGMENTS 1  | COST 5 | 5 10 5 0 2m-1us
         10s      | SLIDE 10 60s SEGMENTS 60 | COST 6 | 0 10 5 110s-1us 110s-1us
         10s      |                          | COST 5 | 5 10 0 0 61s-1us
         20s      |                          | COST 1 | 0 10 0 51s-1us 51s-1us
         71s-2us  |                          | COST 1 | 0 10 0 1us 1us
         71s-1us  |                          | COST 1 | 1 10 9 0 60s",
    );
    timeline(
        "two periods in turn: the log keeps the longer one, and what counts for it",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 8   | 8 10 2 0 61s-1us
         10s      |                          | COST 1   | 1 10 1 0 61s-1us
         15s      | SLIDE 3 4s SEGMENTS 4    | COST 3   | 3 3 0 0 5s-1us
         19s      |                          | COST 1   | 0 3 0 1s-1us 1s-1us
         20s-1us  |                          | COST 3   | 3 3 0 0 4s
         61s-1us  |                          | COST 3   | 3 3 0 0 4s
         66s      | SLIDE 10 60s SEGMENTS 60 | COST 1   | 0 10 0 5s-1us 55s-1us
         71s-1us  |                          | COST 1   | 1 10 0 0 60s
         73s      | SLIDE 3 4s SEGMENTS 4    | REFUND 9 | 1 3 3 0 0
         73s      | SLIDE 10 60s SEGMENTS 60 | COST 1   | 1 10 0 0 61s-1us",
    );
    timeline(
        "the clock steps back: the log is dated by its last entry",
        "90s      | SLIDE 10 60s SEGMENTS 60 | COST 4 | 4 10 6 0 61s-1us
         100s     |                          | COST 6 | 6 10 0 0 61s-1us
         40s      |                          | COST 4 | 0 10 0 51s-1us 61s-1us
         40s      |                          | COST 5 | 0 10 0 61s-1us 61s-1us",
    );
    timeline(
        "a write after a step back dates the log anew, a REFUND too",
        "100s     | SLIDE 10 60s SEGMENTS 60 | COST 10  | 10 10 0 0 61s-1us
         40s      |                          | REFUND 1 | 1 10 1 0 61s-1us
         50s      |                          | COST 1   | 1 10 0 0 61s-1us
         101s-2us |                          | COST 9   | 0 10 0 1us 10s+1us
         101s-1us |                          | COST 9   | 9 10 0 0 60s",
    );
}

#[test]
fn slide_reserve() {
    timeline(
        "a booking is entered at the tick in which it acts, at most a period and a tick ahead",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
         10s      |                          | COST 4 RESERVE 50s | 0 10 0 1s-1us 51s-1us
         10s      |                          | COST 4 RESERVE 51s | 4 10 0 51s-1us 111s-1us
         20s      |                          | COST 6 RESERVE 1d  | 6 10 0 41s-1us 101s-1us
         30s      |                          | COST 1             | 0 10 0 91s-1us 91s-1us
         30s      |                          | COST 1 RESERVE 61s | 0 10 0 30s-1us 91s-1us
         30s      |                          | COST 1 RESERVE 1d  | 0 10 0 30s-1us 91s-1us
         60s-2us  |                          | COST 1 RESERVE 1d  | 0 10 0 1us 61s+1us
         60s-1us  |                          | COST 1 RESERVE 1d  | 1 10 0 61s 121s
         61s-1us  |                          | COST 1             | 0 10 0 60s 120s
         121s-2us |                          | UPTO 20            | 0 10 0 1us 60s+1us
         121s-1us |                          | UPTO 20            | 9 10 0 0 60s",
    );
    timeline(
        "one a millisecond, in ticks of a microsecond",
        "0        | SLIDE 1 1ms | COST 1            | 1 1 0 0 1ms
         0        |             | COST 1 RESERVE 1s | 1 1 0 1ms 2ms
         0        |             | COST 1 RESERVE 1s | 0 1 0 999us 2ms
         998us    |             | COST 1 RESERVE 1s | 0 1 0 1us 1ms+2us
         999us    |             | COST 1 RESERVE 1s | 1 1 0 1ms+1us 2ms+1us
         2ms      |             | COST 1            | 0 1 0 1ms 1ms
         3ms      |             | COST 1            | 1 1 0 0 1ms",
    );
    timeline(
        "what is free is taken now, however far ahead it might be booked",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 9 RESERVE 1d  | 9 10 1 0 61s-1us
         30s      |                          | COST 1 RESERVE 1d  | 1 10 0 0 61s-1us",
    );
    timeline(
        "FORCE while a booking lies ahead acts at once, and counts for as long as the booking",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
         1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
         2s       |                          | FORCE 3            | 3 10 0 0 119s-1us
         61s-1us  |                          | COST 6             | 0 10 5 60s 60s
         61s-1us  |                          | COST 5             | 5 10 0 0 60s",
    );
    timeline(
        "REFUND gives back the newest first, so bookings first",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
         1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
         1s       |                          | REFUND 1           | 1 10 0 0 120s-1us
         1s       |                          | REFUND 3           | 3 10 2 0 60s-1us
         1s       |                          | COST 2             | 2 10 0 0 61s-1us
         1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
         1s       |                          | REFUND 100         | 12 10 10 0 0",
    );
    timeline(
        "the limit changes, up and down: bookings stay, and what is granted now counts for as long",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
         1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
         2s       | SLIDE 15 60s SEGMENTS 60 | COST 4             | 0 15 3 59s-1us 119s-1us
         2s       |                          | COST 3             | 3 15 0 0 119s-1us
         61s-1us  | SLIDE 4 60s SEGMENTS 60  | COST 1             | 0 4 0 60s 60s
         61s-1us  |                          | COST 1 RESERVE 60s | 1 4 0 60s 2m",
    );
    timeline(
        "a shorter period: the booking lies further ahead than a new one may",
        "0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
         1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
         2s       | SLIDE 10 10s SEGMENTS 10 | COST 1 RESERVE 8s  | 0 10 0 1s-1us 69s-1us
         2s       |                          | COST 1 RESERVE 9s  | 1 10 0 9s-1us 69s-1us
         11s-1us  |                          | COST 8             | 0 10 7 60s 60s
         11s-1us  |                          | COST 8 RESERVE 1d  | 0 10 7 49s 60s
         60s-1us  |                          | COST 8 RESERVE 1d  | 8 10 0 11s 21s
         71s-1us  |                          | COST 3             | 0 10 2 10s 10s",
    );
    timeline(
        "finer ticks that don't divide the period: a booking keeps its own tick's end, rounded up",
        "0        | SLIDE 3 1s SEGMENTS 4 | COST 2                | 2 3 1 0 1250ms-1us
         0        |                       | COST 2 RESERVE 1250ms | 2 3 0 1250ms-1us 2250ms-1us
         300ms    | SLIDE 3 1s SEGMENTS 7 | FORCE 1               | 1 3 0 0 1985721us
         300ms    |                       | COST 1                | 0 3 0 1985721us 1985721us",
    );
    timeline(
        "coarser ticks: a booking is entered in the finer ones, too",
        "5s       | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
         5s       |                          | COST 5 RESERVE 1d  | 5 10 0 61s-1us 121s-1us
         6s       | SLIDE 10 60s SEGMENTS 6  | COST 5 RESERVE 1d  | 5 10 0 60s-1us 120s-1us
         70s-1us  |                          | COST 1             | 0 10 0 56s 56s",
    );
}

// ---- GCRA ----

#[test]
fn gcra() {
    timeline(
        "ten at once, then one every six seconds",
        "100s     | GCRA 10 60s | COST 1  | 1 10 9 0 6s
         100s     |             | COST 9  | 9 10 0 0 60s
         100s     |             | COST 1  | 0 10 0 6s 60s
         106s-1us |             | COST 1  | 0 10 0 1us 54s+1us
         106s     |             | COST 1  | 1 10 0 0 60s
         118s-1us |             | COST 2  | 0 10 1 1us 48s+1us
         118s     |             | COST 2  | 2 10 0 0 60s",
    );
    timeline(
        "three a second: nothing is lost to thirds of a microsecond",
        "0         | GCRA 3 1s | COST 3 | 3 3 0 0 1s
         333333us  |           | COST 1 | 0 3 0 1us 666667us
         333334us  |           | COST 1 | 1 3 0 0 1s
         666666us  |           | COST 1 | 0 3 0 1us 666668us
         666667us  |           | COST 1 | 1 3 0 0 1s
         1s        |           | COST 1 | 1 3 0 0 1s",
    );
    timeline(
        "after a pause all of the burst is there, and no more",
        "0    | GCRA 10 60s | COST 5  | 5 10 5 0 30s
         1d   |             | COST 10 | 10 10 0 0 60s
         1d   |             | COST 1  | 0 10 0 6s 60s",
    );
    timeline(
        "a cost above the capacity is never granted",
        "0    | GCRA 10 60s | COST 11 | 0 10 10 never 0
         0    |             | COST 4  | 4 10 6 0 24s
         6s   |             | COST 11 | 0 10 7 never 18s",
    );
    timeline(
        "UPTO takes what is left, in whole units, and burns no fraction",
        "0     | GCRA 10 1s | UPTO 20 | 10 10 0 0 1s
         250ms |            | UPTO 10 | 2 10 0 0 950ms
         500ms |            | UPTO 10 | 3 10 0 0 1s
         550ms |            | UPTO 10 | 0 10 0 50ms 950ms",
    );
    timeline(
        "FORCE leaves a debt, which is paid in full before the next grant",
        "0        | GCRA 10 60s | FORCE 25 | 25 10 0 0 150s
         0        |             | COST 1   | 0 10 0 96s 150s
         0        |             | COST 10  | 0 10 0 150s 150s
         96s-1us  |             | COST 1   | 0 10 0 1us 54s+1us
         96s      |             | COST 1   | 1 10 0 0 60s",
    );
    timeline(
        "REFUND gives back units, and a fraction goes too",
        "0     | GCRA 10 60s | COST 10    | 10 10 0 0 60s
         0     |             | REFUND 3   | 3 10 3 0 42s
         3s    |             | REFUND 2   | 2 10 5 0 27s
         3s    |             | REFUND 100 | 4 10 10 0 0
         3s    |             | COST 1     | 1 10 9 0 6s
         6s    |             | REFUND 1   | 0 10 10 0 0
         6s    |             | COST 10    | 10 10 0 0 60s",
    );
    timeline(
        "the limit goes up: used units are carried, not time",
        "0     | GCRA 10 60s | COST 10 | 10 10 0 0 60s
         0     | GCRA 20 60s | COST 10 | 10 20 0 0 60s
         3s-1us|             | COST 1  | 0 20 0 1us 57s+1us
         3s    |             | COST 1  | 1 20 0 0 60s",
    );
    timeline(
        "the limit goes down: nothing is freed, and what was full is full",
        "0     | GCRA 10 60s | COST 10 | 10 10 0 0 60s
         0     | GCRA 5 60s  | COST 1  | 0 5 0 12s 60s
         6s    |             | COST 1  | 0 5 0 6s 54s
         12s   |             | COST 1  | 1 5 0 0 60s",
    );
    timeline(
        "a debt is carried whole",
        "0     | GCRA 10 60s | FORCE 15 | 15 10 0 0 90s
         0     | GCRA 5 60s  | COST 1   | 0 5 0 72s 120s
         0     | GCRA 30 60s | COST 16  | 0 30 15 2s 30s
         0     |             | COST 15  | 15 30 0 0 60s",
    );
    timeline(
        "the period changes: used units drain at the new rate",
        "0     | GCRA 10 60s  | COST 10 | 10 10 0 0 60s
         6s    | GCRA 10 60s  | COST 1  | 1 10 0 0 60s
         6s    | GCRA 10 10s  | COST 1  | 0 10 0 1s 10s
         7s    |              | COST 1  | 1 10 0 0 10s
         8s    | GCRA 10 100s | COST 1  | 1 10 0 0 100s",
    );
    timeline(
        "a slow limit becomes a fast one: nobody waits for longer than the new one says, though denials write nothing",
        "0     | GCRA 1 1d | COST 1 | 1 1 0 0 1d
         500ms | GCRA 1 1s | COST 1 | 0 1 0 500ms 500ms
         1s-1us|           | COST 1 | 0 1 0 1us 1us
         1s    |           | COST 1 | 1 1 0 0 1s",
    );
    timeline(
        "a change rounds used units up, by less than a microsecond's worth",
        "0     | GCRA 3 1s   | COST 1  | 1 3 2 0 333334us
         1us   |             | COST 1  | 1 3 1 0 666666us
         1us   | GCRA 3 1ms  | COST 1  | 1 3 0 0 1ms
         1us   |             | COST 1  | 0 3 0 334us 1ms",
    );
    timeline(
        "the clock steps back: what is used is used as of now",
        "100s  | GCRA 10 60s | COST 10 | 10 10 0 0 60s
         40s   |             | COST 1  | 0 10 0 6s 60s
         40s   |             | FORCE 1 | 1 10 0 0 66s
         52s   |             | COST 1  | 1 10 0 0 60s",
    );
}

#[test]
fn gcra_burst() {
    timeline(
        "BURST 1 spaces calls evenly",
        "0        | GCRA 10 60s BURST 1 | COST 1 | 1 1 0 0 6s
         0        |                     | COST 1 | 0 1 0 6s 6s
         6s-1us   |                     | COST 1 | 0 1 0 1us 1us
         6s       |                     | COST 1 | 1 1 0 0 6s
         6s       |                     | COST 2 | 0 1 0 never 6s
         6s       |                     | UPTO 9 | 0 1 0 6s 6s
         1h       |                     | UPTO 9 | 1 1 0 0 6s",
    );
    timeline(
        "a burst above the limit takes longer than a period to come back",
        "0        | GCRA 10 60s BURST 30 | COST 30  | 30 30 0 0 3m
         6s       |                      | COST 1   | 1 30 0 0 3m
         66s      |                      | COST 11  | 0 30 10 6s 2m
         66s      |                      | REFUND 5 | 5 30 15 0 90s
         66s      |                      | FORCE 20 | 20 30 0 0 210s",
    );
    timeline(
        "the burst changes, up and down",
        "0        | GCRA 10 60s BURST 5  | COST 5 | 5 5 0 0 30s
         0        | GCRA 10 60s BURST 8  | COST 3 | 3 8 0 0 48s
         0        | GCRA 10 60s BURST 2  | COST 1 | 0 2 0 6s 12s
         0        | GCRA 10 60s          | COST 2 | 2 10 0 0 60s",
    );
    timeline(
        "the period changes",
        "0        | GCRA 10 60s BURST 5 | COST 5 | 5 5 0 0 30s
         0        | GCRA 10 20s BURST 5 | COST 1 | 0 5 0 2s 10s",
    );
    timeline(
        "the clock steps back",
        "100s     | GCRA 10 60s BURST 1 | COST 1 | 1 1 0 0 6s
         1s       |                     | COST 1 | 0 1 0 6s 6s",
    );
}

/// A theoretical arrival time, in nanoseconds, as redis-cell stores it.
fn redis_cell(tat_ns: i128) -> Key {
    Key { value: Some(tat_ns.to_string().into_bytes()), ..Key::default() }
}

#[test]
fn a_key_of_redis_cell_goes_on_counting() {
    const NOW: i64 = 1_800_000_000_000_000;
    let now = |us: i64| Instant::from_us(NOW + us);
    // Under a policy, so many nanoseconds ahead, from a microsecond on: as if the units had been taken here.
    for (policy, ahead_ns, later_us, asked, expected) in [
        ("GCRA 1 10s BURST 5", 25_000_000_000, 0, "COST 1", "1 5 1 0 35s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 0, "COST 3", "0 5 2 5s 25s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 5_000_000, "COST 3", "3 5 0 0 50s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 4_999_999, "COST 3", "0 5 2 1us 20s+1us"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 0, "COST 6", "0 5 2 never 25s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 0, "REFUND 1", "1 5 3 0 15s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 25_000_000, "COST 5", "5 5 0 0 50s"),
        ("GCRA 1 10s BURST 5", -1_000_000_000, 0, "COST 5", "5 5 0 0 50s"),
        // What redis-cell cut off from the emission interval is less than a unit's worth, and stays so.
        ("GCRA 3 1s", 333_333_333, 0, "COST 2", "2 3 0 0 1s"),
        ("GCRA 3 1s", 999_999_999, 0, "COST 1", "0 3 0 333334us 1s"),
        // A fraction of a microsecond counts against the caller.
        ("GCRA 1 10s BURST 5", 1, 0, "COST 5", "0 5 4 1us 1us"),
        // More than the capacity, from before the limit was lowered: as in redis-cell, it is owed.
        ("GCRA 1 10s BURST 2", 25_000_000_000, 0, "COST 1", "0 2 0 15s 25s"),
        ("GCRA 0 10s BURST 2", 25_000_000_000, 0, "COST 1", "0 0 0 never 0"),
    ] {
        let mut key = redis_cell(i128::from(NOW) * 1_000 + ahead_ns);
        let answer = key.call(&rule(policy), NOW + later_us, request(asked));
        assert_eq!(answer, Ok(decision(expected)), "{policy}: {ahead_ns} ns, {asked}");
    }

    let value = redis_cell(i128::from(NOW) * 1_000 + 25_000_000_001).value.expect("a value");
    assert!(rule("GCRA 1 10s").policy().wrote(&value), "waits are exact");
    assert!(is_foreign("FIXED 1 10s", &value) && is_foreign("SLIDE 1 10s", &value) && is_foreign("BUCKET 1 10s", &value));
    let report = inspect(&value, now(0)).expect("a limiter");
    assert!(
        report.contains(&("limit", Fact::Nothing)) && report.contains(&("reset_ms", Fact::Number(25_001))),
        "{report:?}"
    );
    assert!(report.contains(&("tat_ms", Fact::Number(NOW / 1_000 + 25_001))), "{report:?}");

    for text in [
        "180000000000000000",
        "0800000000000000000",
        "+800000000000000000",
        "-800000000000000000",
        "1800000000000000.00",
        "9223372036854775808",
        "18000000000000000000",
        " 180000000000000000",
    ] {
        assert!(is_foreign("GCRA 1 10s", text.as_bytes()), "{text}");
    }
}

#[test]
fn gcra_reserve() {
    timeline(
        "bookings stand in line, and a later call behind them",
        "0    | GCRA 10 60s | COST 10               | 10 10 0 0 60s
         0    |             | COST 1 RESERVE 6s-1us | 0 10 0 1us 60s
         0    |             | COST 1 RESERVE 6s     | 1 10 0 6s 66s
         0    |             | COST 3 RESERVE 1d     | 3 10 0 24s 84s
         0    |             | COST 1                | 0 10 0 30s 84s
         0    |             | UPTO 9                | 0 10 0 30s 84s
         24s  |             | COST 1                | 0 10 0 6s 60s
         30s  |             | COST 1                | 1 10 0 0 60s",
    );
    timeline(
        "what is free is taken now, however far ahead it might be booked",
        "0    | GCRA 10 60s | COST 5 RESERVE 1d     | 5 10 5 0 30s
         0    |             | COST 6 RESERVE 1d     | 6 10 0 6s 66s",
    );
    timeline(
        "REFUND gives a booking back, FORCE goes before those to come",
        "0    | GCRA 10 60s | COST 10               | 10 10 0 0 60s
         0    |             | COST 5 RESERVE 30s    | 5 10 0 30s 90s
         0    |             | REFUND 5              | 5 10 0 0 60s
         0    |             | COST 1 RESERVE 1d     | 1 10 0 6s 66s
         0    |             | FORCE 4               | 4 10 0 0 90s
         0    |             | COST 1 RESERVE 1d     | 1 10 0 36s 96s",
    );
    timeline(
        "the limit goes up: bookings are carried whole",
        "0    | GCRA 10 60s | COST 10               | 10 10 0 0 60s
         0    |             | COST 5 RESERVE 30s    | 5 10 0 30s 90s
         0    | GCRA 20 60s | COST 6                | 0 20 5 3s 45s
         0    |             | COST 6 RESERVE 3s     | 6 20 0 3s 63s",
    );
    timeline(
        "the limit goes down: bookings are carried whole",
        "0    | GCRA 10 60s | COST 10               | 10 10 0 0 60s
         0    |             | COST 5 RESERVE 30s    | 5 10 0 30s 90s
         0    | GCRA 5 60s  | COST 1 RESERVE 60s    | 0 5 0 12s 2m
         0    |             | COST 1 RESERVE 72s    | 1 5 0 72s 132s",
    );
    timeline(
        "the clock steps back: what is booked is booked as of now",
        "1000s | GCRA 10 60s | COST 10              | 10 10 0 0 60s
         1000s |             | COST 5 RESERVE 30s   | 5 10 0 30s 90s
         40s   |             | COST 1 RESERVE 30s   | 0 10 0 6s 90s
         40s   |             | COST 1 RESERVE 36s   | 1 10 0 36s 96s
         76s   |             | COST 1               | 0 10 0 6s 60s",
    );
}

#[test]
fn reserved_slots_of_a_burst_of_one_are_evenly_spaced() {
    let slots = |limit: u64| {
        let at = |slot: u64| (slot * 1_000_000).div_ceil(limit);
        let row =
            |slot| format!("0 | GCRA {limit} 1s BURST 1 | COST 1 RESERVE 7s | 1 1 0 {}us {}us\n", at(slot), at(slot + 1));
        (0..20).map(row).collect::<String>()
    };
    assert!(slots(10).ends_with("1900000us 2000000us\n"));
    timeline("ten a second: 100 ms apart", &slots(10));
    timeline("three a second: exact thirds, each rounded up", &slots(3));
}

// ---- BUCKET ----

#[test]
fn bucket() {
    timeline(
        "starts full, then tokens flow in one by one",
        "100s     | BUCKET 10 60s | COST 1  | 1 10 9 0 6s
         100s     |               | COST 9  | 9 10 0 0 60s
         106s-1us |               | COST 1  | 0 10 0 1us 54s+1us
         106s     |               | COST 1  | 1 10 0 0 60s
         1d       |               | COST 11 | 0 10 10 never 0
         1d       |               | COST 10 | 10 10 0 0 60s
         1d+1s    |               | COST 11 | 0 10 0 never 59s",
    );
    timeline(
        "UPTO takes whole tokens and leaves the fraction",
        "0     | BUCKET 10 1s | UPTO 20 | 10 10 0 0 1s
         250ms |              | UPTO 10 | 2 10 0 0 950ms
         500ms |              | UPTO 10 | 3 10 0 0 1s
         550ms |              | UPTO 10 | 0 10 0 50ms 950ms",
    );
    timeline(
        "FORCE and REFUND",
        "0        | BUCKET 10 60s | FORCE 25   | 25 10 0 0 150s
         96s-1us  |               | COST 1     | 0 10 0 1us 54s+1us
         96s      |               | COST 1     | 1 10 0 0 60s
         96s      |               | REFUND 4   | 4 10 4 0 36s
         99s      |               | REFUND 100 | 5 10 10 0 0",
    );
    timeline(
        "the limit changes, up and down",
        "0     | BUCKET 10 60s | COST 10 | 10 10 0 0 60s
         0     | BUCKET 20 60s | COST 11 | 0 20 10 3s 30s
         6s    |               | COST 11 | 11 20 1 0 57s
         6s    | BUCKET 5 60s  | COST 1  | 0 5 0 12s 60s
         18s   |               | COST 1  | 1 5 0 0 60s",
    );
    timeline(
        "the period changes: refilled at the old rate up to now, or at the new one if that is more",
        "0     | BUCKET 10 60s  | COST 10 | 10 10 0 0 60s
         30s   | BUCKET 10 100s | COST 5  | 5 10 0 0 100s
         34s   | BUCKET 10 10s  | COST 5  | 0 10 4 1s 6s
         35s   |                | COST 5  | 5 10 0 0 10s",
    );
    timeline(
        "the clock steps back",
        "100s  | BUCKET 10 60s | COST 8 | 8 10 2 0 48s
         10s   |               | COST 3 | 0 10 2 6s 48s
         10s   |               | COST 2 | 2 10 0 0 60s",
    );
}

#[test]
fn bucket_capacity() {
    timeline(
        "a capacity below the limit",
        "0        | BUCKET 10 60s CAPACITY 3 | COST 4 | 0 3 3 never 0
         0        |                          | COST 3 | 3 3 0 0 18s
         6s-1us   |                          | COST 1 | 0 3 0 1us 12s+1us
         6s       |                          | COST 1 | 1 3 0 0 18s
         1h       |                          | UPTO 9 | 3 3 0 0 18s",
    );
    timeline(
        "a capacity above the limit saves up over pauses",
        "0        | BUCKET 10 60s CAPACITY 30 | COST 30  | 30 30 0 0 3m
         60s      |                           | COST 11  | 0 30 10 6s 2m
         60s      |                           | FORCE 11 | 11 30 0 0 186s
         60s      |                           | REFUND 1 | 1 30 0 0 3m",
    );
    timeline(
        "the capacity changes, up and down",
        "0        | BUCKET 10 60s             | COST 10 | 10 10 0 0 60s
         0        | BUCKET 10 60s CAPACITY 12 | COST 3  | 0 12 2 6s 60s
         0        |                           | COST 2  | 2 12 0 0 72s
         0        | BUCKET 10 60s CAPACITY 4  | COST 1  | 0 4 0 6s 24s",
    );
    timeline(
        "the clock steps back",
        "100s     | BUCKET 10 60s CAPACITY 3 | COST 3 | 3 3 0 0 18s
         1s       |                          | COST 1 | 0 3 0 6s 18s",
    );
}

#[test]
fn bucket_step() {
    timeline(
        "the tokens of a period come at its end, counted from the call that found the bucket full",
        "100s     | BUCKET 10 60s STEP | COST 1  | 1 10 9 0 60s
         130s     |                    | COST 9  | 9 10 0 0 30s
         160s-1us |                    | COST 1  | 0 10 0 1us 1us
         160s     |                    | COST 4  | 4 10 6 0 60s
         300s     |                    | COST 11 | 0 10 10 never 0
         300s     |                    | COST 1  | 1 10 9 0 60s",
    );
    timeline(
        "a capacity of several steps",
        "0        | BUCKET 10 60s CAPACITY 25 STEP | COST 25 | 25 25 0 0 3m
         10s      |                                | COST 11 | 0 25 0 110s 170s
         60s      |                                | COST 4  | 4 25 6 0 2m
         2m-1us   |                                | COST 7  | 0 25 6 1us 60s+1us
         2m+1s    |                                | COST 16 | 16 25 0 0 179s",
    );
    timeline(
        "UPTO, FORCE and REFUND",
        "0        | BUCKET 10 60s STEP | FORCE 25   | 25 10 0 0 3m
         0        |                    | UPTO 9     | 0 10 0 2m 3m
         60s      |                    | COST 10    | 0 10 0 2m 2m
         2m       |                    | UPTO 9     | 5 10 0 0 60s
         2m+10s   |                    | REFUND 4   | 4 10 4 0 50s
         2m+20s   |                    | REFUND 100 | 6 10 10 0 0
         2m+30s   |                    | COST 1     | 1 10 9 0 60s",
    );
    timeline(
        "the limit changes, up and down; the steps stay where they are",
        "0        | BUCKET 10 60s STEP | COST 10 | 10 10 0 0 60s
         30s      | BUCKET 15 60s STEP | COST 5  | 5 15 0 0 30s
         40s      | BUCKET 4 60s STEP  | COST 1  | 0 4 0 20s 20s
         60s      |                    | COST 1  | 1 4 3 0 60s",
    );
    timeline(
        "the next step falls one new period after the last",
        "0        | BUCKET 10 60s STEP  | COST 10 | 10 10 0 0 60s
         30s      | BUCKET 10 40s STEP  | COST 1  | 0 10 0 10s 10s
         30s      | BUCKET 10 100s STEP | COST 1  | 0 10 0 70s 70s
         30s      | BUCKET 10 20s STEP  | COST 1  | 1 10 9 0 20s",
    );
    timeline(
        "STEP is newly given: the next one is a period from now; and dropped: tokens flow from the last grant on",
        "0        | BUCKET 10 60s      | COST 10 | 10 10 0 0 60s
         30s      | BUCKET 10 60s STEP | COST 6  | 0 10 5 60s 60s
         30s      |                    | COST 5  | 5 10 0 0 60s
         60s      | BUCKET 10 60s      | COST 1  | 1 10 4 0 36s
         72s      |                    | COST 1  | 1 10 5 0 30s",
    );
    timeline(
        "STEP is dropped: nothing flows in for the time before the last grant, and whoever is denied waits no longer than told",
        "0        | BUCKET 10 60s STEP | COST 4  | 4 10 6 0 60s
         54s      |                    | COST 6  | 6 10 0 0 6s
         54s      | BUCKET 10 60s      | COST 1  | 0 10 0 6s 60s
         57s      |                    | COST 1  | 0 10 0 3s 57s
         60s-1us  |                    | COST 1  | 0 10 0 1us 54s+1us
         60s-1us  | BUCKET 10 1h       | COST 1  | 0 10 0 354s+1us 3594s+1us
         60s-1us  | BUCKET 20 10s      | COST 12 | 12 20 8 0 6s",
    );
    timeline(
        "STEP is dropped in debt: what was forced is owed in whole, and steps that fell pay as they did",
        "0        | BUCKET 10 60s STEP | FORCE 25 | 25 10 0 0 3m
         50s      |                    | REFUND 2 | 2 10 0 0 130s
         55s      | BUCKET 10 60s      | COST 1   | 0 10 0 79s 133s
         66s      |                    | COST 1   | 0 10 0 24s 78s
         66s      |                    | FORCE 1  | 1 10 0 0 84s",
    );
    timeline(
        "STEP is newly given: what is missing of a token comes whole with a step",
        "0        | BUCKET 10 60s      | COST 10 | 10 10 0 0 60s
         33s      | BUCKET 10 60s STEP | COST 5  | 5 10 0 0 60s
         33s      |                    | REFUND 9 | 9 10 9 0 60s",
    );
    timeline(
        "the clock steps back before the last step: it falls now",
        "100s     | BUCKET 10 60s STEP | COST 10 | 10 10 0 0 60s
         40s      |                    | COST 1  | 0 10 0 60s 60s
         110s     |                    | COST 1  | 0 10 0 50s 50s",
    );
}

#[test]
fn bucket_reserve() {
    timeline(
        "tokens that are yet to come are booked in turn",
        "0    | BUCKET 10 60s | COST 8                | 8 10 2 0 48s
         0    |               | COST 5 RESERVE 18s-1us | 0 10 2 1us 48s
         0    |               | COST 5 RESERVE 18s    | 5 10 0 18s 78s
         0    |               | COST 1                | 0 10 0 24s 78s
         0    |               | COST 10 RESERVE 1d    | 10 10 0 78s 138s
         78s  |               | COST 1                | 0 10 0 6s 60s
         84s  |               | COST 1                | 1 10 0 0 60s",
    );
    timeline(
        "REFUND and FORCE while bookings lie ahead",
        "0    | BUCKET 10 60s CAPACITY 3 | COST 3            | 3 3 0 0 18s
         0    |                          | COST 3 RESERVE 1d | 3 3 0 18s 36s
         0    |                          | FORCE 1           | 1 3 0 0 42s
         0    |                          | REFUND 2          | 2 3 0 0 30s
         0    |                          | COST 1 RESERVE 1d | 1 3 0 18s 36s
         0    |                          | REFUND 9          | 6 3 3 0 0",
    );
    timeline(
        "the limit and the capacity change, up and down: bookings are carried whole",
        "0    | BUCKET 10 60s             | COST 10            | 10 10 0 0 60s
         0    |                           | COST 5 RESERVE 30s | 5 10 0 30s 90s
         0    | BUCKET 10 60s CAPACITY 16 | COST 1             | 1 16 0 0 96s
         0    |                           | COST 2 RESERVE 12s | 2 16 0 12s 108s
         0    | BUCKET 10 60s CAPACITY 4  | COST 1 RESERVE 1d  | 1 4 0 18s 42s",
    );
}

#[test]
fn bucket_step_reserve() {
    timeline(
        "a booking acts with a step: what a full bucket can't take in then is lost",
        "0    | BUCKET 10 60s STEP | COST 8             | 8 10 2 0 60s
         10s  |                    | COST 5 RESERVE 49s | 0 10 2 1s 50s
         10s  |                    | COST 5 RESERVE 50s | 5 10 0 50s 110s
         10s  |                    | COST 6 RESERVE 1d  | 6 10 0 110s 170s
         60s  |                    | COST 1             | 0 10 0 60s 2m
         2m   |                    | COST 5             | 0 10 4 60s 60s
         2m   |                    | COST 4             | 4 10 0 0 60s",
    );
    timeline(
        "a bucket that is not full takes in all of a step, and keeps what a booking leaves",
        "0    | BUCKET 10 60s CAPACITY 25 STEP | COST 23            | 23 25 2 0 3m
         0    |                                | COST 5 RESERVE 60s | 5 25 0 60s 3m
         0    |                                | COST 20 RESERVE 1d | 20 25 0 3m 5m
         0    |                                | COST 1 RESERVE 1d  | 1 25 0 3m 6m
         3m   |                                | COST 4             | 4 25 0 0 3m",
    );
    timeline(
        "a bucket of one token gives one a step, however many a step would bring",
        "0    | BUCKET 10 60s CAPACITY 1 STEP | COST 1             | 1 1 0 0 60s
         0    |                               | COST 1 RESERVE 1d  | 1 1 0 60s 2m
         0    |                               | COST 1 RESERVE 1d  | 1 1 0 2m 3m
         60s  |                               | COST 1             | 0 1 0 2m 2m
         3m   |                               | COST 1             | 1 1 0 0 60s",
    );
    timeline(
        "REFUND gives a booking back, but not what was lost",
        "0    | BUCKET 10 60s STEP | COST 8             | 8 10 2 0 60s
         0    |                    | COST 5 RESERVE 60s | 5 10 0 60s 2m
         0    |                    | REFUND 5           | 5 10 0 0 60s
         60s  |                    | COST 10            | 10 10 0 0 60s",
    );
    timeline(
        "the limit changes, up and down: bookings are carried whole",
        "0    | BUCKET 10 60s STEP | COST 10            | 10 10 0 0 60s
         0    |                    | COST 5 RESERVE 60s | 5 10 0 60s 2m
         0    | BUCKET 20 60s STEP | COST 6             | 0 20 5 60s 60s
         0    | BUCKET 4 60s STEP  | COST 1 RESERVE 1d  | 1 4 0 2m 3m",
    );
}

// ---- The codec ----

const POLICIES: &[&str] = &[
    "FIXED 10 60s",
    "FIXED 1000000000000 3650d ALIGN -1h",
    "SLIDE 10 60s",
    "SLIDE 4294967295 1ms SEGMENTS 3",
    "GCRA 10 60s",
    "GCRA 3 1s BURST 7",
    "GCRA 1000000000000 3650d BURST 1",
    "BUCKET 10 60s",
    "BUCKET 10 60s CAPACITY 1000000000000",
    "BUCKET 10 61s CAPACITY 25 STEP",
];

const NOW: i64 = 1_760_000_000_123_456;
const AMOUNTS: [Amount; 4] = [Amount::Cost(2), Amount::UpTo(MAX_UNITS), Amount::Force(MAX_UNITS), Amount::Refund(2)];

/// A record of a few calls under `policy`, a booking among them.
fn record(policy: &str) -> Vec<u8> {
    let mut key = Key::default();
    for call in 0..4 {
        key.call(&rule(policy), NOW + call * 1_000, Request::now(Amount::Force(3))).expect("a grant");
    }
    key.call(&rule(policy), NOW + 4_000, BOOKING).expect("a booking, or too far ahead");
    key.value.expect("a record")
}

fn refusal(policy: &str, stored: &[u8], amount: Amount) -> Option<Refusal> {
    rule(policy).policy().decide(Some(stored), Instant::from_us(NOW), Request::now(amount)).err()
}

fn is_foreign(policy: &str, stored: &[u8]) -> bool {
    AMOUNTS.iter().all(|&amount| matches!(refusal(policy, stored, amount), Some(Refusal::Foreign(_))))
}

fn kind(policy: &str) -> Kind {
    rule(policy).policy().kind()
}

#[test]
fn records_are_small() {
    for quota in ["10 60s", "1000000 1d", "4294967295 1s", "3 30d"] {
        for policy in [format!("FIXED {quota}"), format!("GCRA {quota}"), format!("BUCKET {quota} STEP")] {
            let mut key = Key::default();
            key.call(&rule(&policy), NOW, Request::now(Amount::UpTo(MAX_UNITS))).expect("a grant");
            key.call(&rule(&policy), NOW, BOOKING).expect("a booking");
            assert_eq!(key.value.expect("a record").len(), 28, "{policy}");
        }
    }
}

#[test]
fn a_record_of_another_algorithm_is_foreign() {
    for held in POLICIES {
        for asked in POLICIES {
            let record = record(held);
            assert_eq!(is_foreign(asked, &record), kind(held) != kind(asked), "{asked} of {held}");
        }
        assert!(is_foreign("FIXED 0 60s", &record(held)) != (kind(held) == Kind::Fixed), "{held} under limit 0");
    }
}

#[test]
fn what_is_no_record_is_foreign() {
    for policy in POLICIES {
        let record = record(policy);
        let other_version = [&record[..1], &[record[1].wrapping_add(1)], &record[2..]].concat();
        let longer = [&record[..], &[0]].concat();
        for value in [&b""[..], b"0", b"hello", b"{\"count\":1}", &[0; 31], &[0xff; 64], &other_version, &longer] {
            assert!(is_foreign(policy, value), "{policy} reads {value:02x?}");
        }
        assert_eq!(refusal(policy, b"hello", Amount::Cost(1)), Some(Refusal::Foreign(Foreign::Unknown)));
    }
}

#[test]
fn a_record_cut_at_any_length_is_foreign_or_decided() {
    for policy in POLICIES {
        let record = record(policy);
        for length in 0..record.len() {
            let fixed_length = kind(policy) != Kind::Slide;
            survives_all(policy, &record[..length]);
            assert!(!fixed_length || is_foreign(policy, &record[..length]), "{policy} cut to {length} bytes");
        }
    }
}

#[test]
fn a_record_changed_at_any_byte_is_foreign_or_decided() {
    for policy in POLICIES {
        let record = record(policy);
        for index in 0..record.len() {
            for byte in 0..=u8::MAX {
                let mut changed = record.clone();
                changed[index] = byte;
                survives_all(policy, &changed);
            }
        }
    }
}

/// Decides on `value` in every way.
fn survives_all(policy: &str, value: &[u8]) {
    let policy = rule(policy).policy();
    for now in [0, NOW, i64::MAX] {
        for request in AMOUNTS.map(Request::now).into_iter().chain([BOOKING]) {
            survives(&policy, value, now, request);
        }
    }
}
