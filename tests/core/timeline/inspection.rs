//! What `RL.INSPECT` shows of a record, fact by fact, at an exact moment.

use redis_rl::limiter::{inspect, Fact, Instant};

use super::{request, rule, time};
use crate::key::Key;

/// The facts in words, but without the algorithm, and without the last two: no id is remembered.
fn shown(value: &[u8], now: i64) -> String {
    let fact = |fact: Fact| match fact {
        Fact::Nothing => "nothing".to_owned(),
        Fact::Word(word) => word.to_owned(),
        Fact::Number(number) => number.to_string(),
        Fact::Milliseconds(span) => format!("{}us", span.as_us()),
        Fact::Holders(holders) => format!("{holders:?}"),
    };
    let facts = inspect(value, Instant::from_us(now)).expect("a record");
    let facts: Vec<String> = facts.into_iter().skip(1).map(|(name, value)| format!("{name} {}", fact(value))).collect();
    let facts = facts.join(", ");
    facts.strip_suffix(", ids 0, ids_units 0").expect("the facts about ids").to_owned()
}

/// Makes calls of a policy, `time amount; time amount`, and checks the facts at each time of the table.
fn shows(policy: &str, calls: &str, table: &str) {
    let mut key = Key::default();
    for call in calls.split("; ") {
        let (at, asked) = call.split_once(' ').expect("a time and an amount");
        assert!(key.call(&rule(policy), time(at), request(asked)).expect("a decision").granted > 0, "{policy}: {call}");
    }
    let value = key.value.expect("a record");
    for row in table.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let (at, facts) = row.split_once('|').expect("a time and facts");
        assert_eq!(shown(&value, time(at.trim())), facts.trim(), "{policy}: {calls}, at {at}");
    }
}

#[test]
fn fixed() {
    // Times are rounded up to a millisecond. At the end of the window, its usage no longer counts.
    shows(
        "FIXED 10 60s",
        "1us COST 3",
        "500us    | limit 10, period_ms 60000000us, used 3, remaining 7, reset_ms 60000, debt 0, window_start_ms 1, window_end_ms 60001
         60s      | limit 10, period_ms 60000000us, used 3, remaining 7, reset_ms 1, debt 0, window_start_ms 1, window_end_ms 60001
         60s+1us  | limit 10, period_ms 60000000us, used 0, remaining 10, reset_ms 0, debt 0, window_start_ms nothing, window_end_ms nothing",
    );
    // A window goes on when all units are given back.
    shows(
        "FIXED 10 60s",
        "1s COST 3; 2s REFUND 3",
        "3s       | limit 10, period_ms 60000000us, used 0, remaining 10, reset_ms 0, debt 0, window_start_ms 1000, window_end_ms 61000
         61s      | limit 10, period_ms 60000000us, used 0, remaining 10, reset_ms 0, debt 0, window_start_ms nothing, window_end_ms nothing",
    );
    // A debt is paid from the next windows.
    shows(
        "FIXED 10 60s",
        "1s FORCE 25",
        "61s      | limit 10, period_ms 60000000us, used 15, remaining 0, reset_ms 120000, debt 5, window_start_ms 61000, window_end_ms 121000",
    );
}

#[test]
fn slide() {
    shows(
        "SLIDE 10 60s SEGMENTS 60",
        "1500ms FORCE 8; 2500ms COST 2; 2500ms COST 4 RESERVE 70s",
        // The units of the present tick are not booked.
        "2500ms   | limit 10, period_ms 60000000us, used 14, remaining 0, reset_ms 119500, debt 4, bookings 4, tick_us 1000000, entries 3, entries_stored 3, oldest_ms 1000, newest_ms 61000
         62s-1us  | limit 10, period_ms 60000000us, used 6, remaining 4, reset_ms 60000, debt 0, bookings 0, tick_us 1000000, entries 2, entries_stored 3, oldest_ms 2000, newest_ms 61000
         122s-1us | limit 10, period_ms 60000000us, used 0, remaining 10, reset_ms 0, debt 0, bookings 0, tick_us 1000000, entries 0, entries_stored 3, oldest_ms nothing, newest_ms nothing",
    );
    // A tick's moment is its beginning, rounded down.
    shows(
        "SLIDE 10 1ms SEGMENTS 7",
        "1ms COST 1",
        "1ms      | limit 10, period_ms 1000us, used 1, remaining 9, reset_ms 1, debt 0, bookings 0, tick_us 143, entries 1, entries_stored 1, oldest_ms 0, newest_ms 0",
    );
}

#[test]
fn gcra() {
    shows(
        "GCRA 3 1s BURST 5",
        "1s COST 2; 1s COST 2",
        "1s       | limit 3, period_ms 1000000us, used 4, remaining 1, reset_ms 1334, debt 0, burst 5, tat_ms 2334
         1500ms   | limit 3, period_ms 1000000us, used 3, remaining 2, reset_ms 834, debt 0, burst 5, tat_ms 2334
         9s       | limit 3, period_ms 1000000us, used 0, remaining 5, reset_ms 0, debt 0, burst 5, tat_ms 2334",
    );
    // A debt begins above the burst.
    shows(
        "GCRA 3 1s BURST 5",
        "1s FORCE 7",
        "1s       | limit 3, period_ms 1000000us, used 7, remaining 0, reset_ms 2334, debt 2, burst 5, tat_ms 3334",
    );
}

#[test]
fn bucket() {
    // Used units are rounded up, and tokens down.
    shows(
        "BUCKET 10 10s CAPACITY 25",
        "0 COST 20",
        "500ms    | limit 10, period_ms 10000000us, used 20, remaining 5, reset_ms 19500, debt 0, capacity 25, tokens 5, step no, next_step_ms nothing
         1s       | limit 10, period_ms 10000000us, used 19, remaining 6, reset_ms 19000, debt 0, capacity 25, tokens 6, step no, next_step_ms nothing",
    );
    shows(
        "BUCKET 10 10s CAPACITY 25 STEP",
        "1us FORCE 27; 2us FORCE 1",
        "5s       | limit 10, period_ms 10000000us, used 28, remaining 0, reset_ms 25001, debt 3, capacity 25, tokens -3, step yes, next_step_ms 10001
         10s+1us  | limit 10, period_ms 10000000us, used 18, remaining 7, reset_ms 20000, debt 0, capacity 25, tokens 7, step yes, next_step_ms 20001
         40s      | limit 10, period_ms 10000000us, used 0, remaining 25, reset_ms 0, debt 0, capacity 25, tokens 25, step yes, next_step_ms nothing",
    );
}

#[test]
fn redis_cell() {
    let shown = |tat_ns: u64, now| shown(tat_ns.to_string().as_bytes(), now);
    let facts = |reset_ms, tat_ms: i64| {
        format!("limit nothing, period_ms nothing, used nothing, remaining nothing, reset_ms {reset_ms}, debt nothing, burst nothing, tat_ms {tat_ms}")
    };
    const NOW: i64 = 1_800_000_000_000_000;
    assert_eq!(shown(1_800_000_002_000_000_000, NOW), facts(2_000, 1_800_000_002_000));
    assert_eq!(shown(1_800_000_002_000_000_001, NOW), facts(2_001, 1_800_000_002_001));
    assert_eq!(shown(1_800_000_002_000_000_000, NOW + 9_000_000), facts(0, 1_800_000_002_000));
}

#[test]
fn a_count_that_no_reply_can_hold_is_shown_as_the_largest() {
    let mut key = Key::default();
    // A capacity of 5 bytes, so a record of the widest layout: the last 13 bytes are the usage.
    key.call(&rule("BUCKET 10 60s CAPACITY 1000000000000"), 0, request("COST 1")).expect("a grant");
    let mut value = key.value.expect("a record");
    assert_eq!(value.len(), 41);
    value[28..].fill(0xff);
    assert!(shown(&value, 0).contains(&format!("used {max}, remaining 0,", max = i64::MAX)), "{}", shown(&value, 0));
}
