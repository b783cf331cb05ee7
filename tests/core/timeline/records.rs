//! Records: bytes that are none are foreign, no damage makes the codec panic, and `RL.INSPECT` shows what a record holds at an exact
//! moment.

use redis_rl::limiter::{inspect, Amount, Fact, Instant, Kind, RecordError, Request, MAX_PERIOD, MAX_UNITS};

use super::{request, rule, time, BOOKING};
use crate::key::{Key, Refusal, Steps};
use crate::model::survives;

const POLICIES: &[&str] = &[
    "FIXED 10 60s",
    "FIXED 1000000000000 3650d ALIGN -1h",
    "FIXED 10 25h UNTIL 489000h",
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

/// A record of a few calls under `policy`, one of which is a booking.
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

pub fn is_foreign(policy: &str, stored: &[u8]) -> bool {
    AMOUNTS.iter().all(|&amount| matches!(refusal(policy, stored, amount), Some(Refusal::Record(_))))
}

fn kind(policy: &str) -> Kind {
    rule(policy).policy().kind()
}

#[test]
fn records_are_small() {
    let quotas = ["10 60s", "1000000 1d", "4294967295 1s", "3 30d"].into_iter();
    let policies =
        quotas.flat_map(|quota| ["FIXED {}", "GCRA {}", "BUCKET {} STEP"].map(|policy| policy.replace("{}", quota)));
    for policy in policies.chain(["GCRA 1000 1h BURST 50", "BUCKET 1000 1d CAPACITY 2000"].map(String::from)) {
        let mut key = Key::default();
        key.call(&rule(&policy), NOW, Request::now(Amount::UpTo(MAX_UNITS))).expect("a grant");
        key.call(&rule(&policy), NOW, BOOKING).expect("a booking");
        assert_eq!(key.value.expect("a record").len(), 28, "{policy}");
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
fn a_value_that_is_no_record_is_foreign() {
    for policy in POLICIES {
        let record = record(policy);
        let other_version = [&record[..1], &[record[1] + 4], &record[2..]].concat();
        let longer = [&record[..], &[0]].concat();
        for value in [&b""[..], b"0", b"hello", b"{\"count\":1}", &[0; 31], &[0xff; 64], &other_version, &longer] {
            assert!(is_foreign(policy, value), "{policy} reads {value:02x?}");
        }
        assert_eq!(refusal(policy, b"hello", Amount::Cost(1)), Some(Refusal::Record(RecordError::Unknown)));
        assert_eq!(refusal(policy, &other_version, Amount::Cost(1)), Some(Refusal::Record(RecordError::Version(5))));
    }
}

#[test]
fn a_record_that_drains_as_no_limiter_of_its_algorithm_is_foreign() {
    // Bits 3 and 4 of the third byte: 0 continuously, 1 in steps, 2 in windows.
    for (policy, drains) in [
        ("FIXED 10 60s", &[2][..]),
        ("GCRA 10 60s", &[0]),
        ("BUCKET 10 60s", &[0, 1]),
        ("BUCKET 10 60s STEP", &[0, 1]),
        ("SLIDE 10 60s", &[0]),
    ] {
        for drain in 0..4 {
            let mut record = record(policy);
            record[2] = record[2] & !0b11_000 | drain << 3;
            assert_eq!(is_foreign(policy, &record), !drains.contains(&drain), "{policy} with {drain}");
        }
    }
}

#[test]
fn a_record_with_a_field_out_of_range_is_foreign() {
    let number = |number: u64, width: usize| number.to_le_bytes()[..width].to_vec();
    let (units, period) = (MAX_UNITS, MAX_PERIOD.as_us());
    // The policy of the record, the offset of the field, and its width; values in its range, and values out of it.
    for (policy, offset, width, valid, invalid) in [
        ("FIXED 10 60s", 3, 4, &[1, u32::MAX.into()][..], &[0][..]),
        ("FIXED 10 60s", 7, 6, &[1_000], &[0, 999]),
        ("GCRA 3 1s BURST 7", 7, 4, &[1, u32::MAX.into()], &[0]),
        ("GCRA 3 1s BURST 7", 11, 4, &[1, u32::MAX.into()], &[0]),
        ("GCRA 1000000000000 3650d BURST 1", 3, 5, &[1, units], &[0, units + 1]),
        ("GCRA 1000000000000 3650d BURST 1", 8, 5, &[1, units], &[0, units + 1]),
        ("GCRA 1000000000000 3650d BURST 1", 13, 7, &[1_000, period], &[0, 999, period + 1]),
        // The upper bits of the third byte, and the fourth byte, have no meaning.
        ("SLIDE 10 60s", 2, 1, &[2], &[2 | 1 << 3, 2 | 1 << 7]),
        ("SLIDE 10 60s", 3, 1, &[0], &[1]),
        ("SLIDE 10 60s", 4, 4, &[1, u32::MAX.into()], &[0]),
        ("SLIDE 10 60s", 8, 8, &[60_000_000, period], &[0, 915, period + 1, u64::MAX]),
        ("SLIDE 10 60s", 16, 8, &[1, 60_000_000], &[0, 60_000_001, u64::MAX]),
    ] {
        for (values, foreign) in [(valid, false), (invalid, true)] {
            for &value in values {
                let mut record = record(policy);
                record[offset..offset + width].copy_from_slice(&number(value, width));
                assert_eq!(is_foreign(policy, &record), foreign, "{policy} with {value} at {offset}");
            }
        }
    }
    // A period in range, but shorter than the least, with a tick that it holds; and a log without an entry.
    let mut record = record("SLIDE 10 60s");
    record[8..16].copy_from_slice(&number(999, 8));
    record[16..24].copy_from_slice(&number(1, 8));
    assert!(is_foreign("SLIDE 10 60s", &record));
    assert!(is_foreign("SLIDE 10 60s", &self::record("SLIDE 10 60s")[..40]));
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

/// Makes decisions of all kinds on `value`.
fn survives_all(policy: &str, value: &[u8]) {
    let policy = rule(policy).policy();
    for now in [0, NOW, i64::MAX] {
        for request in AMOUNTS.map(Request::now).into_iter().chain([BOOKING]) {
            survives(&policy, value, now, request);
        }
    }
}

// ---- What `RL.INSPECT` shows, fact by fact ----

/// The facts in words, but without the algorithm, and without the last three: no id is remembered, and there is no pause.
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
    facts.strip_suffix(", ids 0, ids_units 0, paused_ms 0").expect("the facts about ids and pauses").to_owned()
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
