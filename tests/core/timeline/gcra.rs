//! Timelines of GCRA, and of keys that redis-cell has written.

use redis_rl::limiter::{inspect, Fact, Instant};

use super::records::is_foreign;
use super::{decision, request, rule, timelines};
use crate::key::{Key, Steps};

#[test]
fn gcra() {
    timelines(
        "
        ten at once, then one every six seconds
            100s     | GCRA 10 60s | COST 1  | 1 10 9 0 6s
            100s     |             | COST 9  | 9 10 0 0 60s
            100s     |             | COST 1  | 0 10 0 6s 60s
            106s-1us |             | COST 1  | 0 10 0 1us 54s+1us
            106s     |             | COST 1  | 1 10 0 0 60s
            118s-1us |             | COST 2  | 0 10 1 1us 48s+1us
            118s     |             | COST 2  | 2 10 0 0 60s
        three a second: nothing is lost to thirds of a microsecond
            0         | GCRA 3 1s | COST 3 | 3 3 0 0 1s
            333333us  |           | COST 1 | 0 3 0 1us 666667us
            333334us  |           | COST 1 | 1 3 0 0 1s
            666666us  |           | COST 1 | 0 3 0 1us 666668us
            666667us  |           | COST 1 | 1 3 0 0 1s
            1s        |           | COST 1 | 1 3 0 0 1s
        after a pause all of the burst is there, and no more
            0    | GCRA 10 60s | COST 5  | 5 10 5 0 30s
            1d   |             | COST 10 | 10 10 0 0 60s
            1d   |             | COST 1  | 0 10 0 6s 60s
        a cost above the capacity is never granted
            0    | GCRA 10 60s | COST 11 | 0 10 10 never 0
            0    |             | COST 4  | 4 10 6 0 24s
            6s   |             | COST 11 | 0 10 7 never 18s
        UPTO takes the remaining whole units, and loses no fraction
            0     | GCRA 10 1s | UPTO 20 | 10 10 0 0 1s
            250ms |            | UPTO 10 | 2 10 0 0 950ms
            500ms |            | UPTO 10 | 3 10 0 0 1s
            550ms |            | UPTO 10 | 0 10 0 50ms 950ms
        FORCE leaves a debt, which is paid in full before the next grant
            0        | GCRA 10 60s | FORCE 25 | 25 10 0 0 150s
            0        |             | COST 1   | 0 10 0 96s 150s
            0        |             | COST 10  | 0 10 0 150s 150s
            96s-1us  |             | COST 1   | 0 10 0 1us 54s+1us
            96s      |             | COST 1   | 1 10 0 0 60s
        REFUND gives back units, and a fraction goes too
            0     | GCRA 10 60s | COST 10    | 10 10 0 0 60s
            0     |             | REFUND 3   | 3 10 3 0 42s
            3s    |             | REFUND 2   | 2 10 5 0 27s
            3s    |             | REFUND 100 | 4 10 10 0 0
            3s    |             | COST 1     | 1 10 9 0 6s
            6s    |             | REFUND 1   | 0 10 10 0 0
            6s    |             | COST 10    | 10 10 0 0 60s
        the limit goes up: used units are carried, not time
            0     | GCRA 10 60s | COST 10 | 10 10 0 0 60s
            0     | GCRA 20 60s | COST 10 | 10 20 0 0 60s
            3s-1us|             | COST 1  | 0 20 0 1us 57s+1us
            3s    |             | COST 1  | 1 20 0 0 60s
        the limit goes down: no unit becomes free, and a full limiter stays full
            0     | GCRA 10 60s | COST 10 | 10 10 0 0 60s
            0     | GCRA 5 60s  | COST 1  | 0 5 0 12s 60s
            6s    |             | COST 1  | 0 5 0 6s 54s
            12s   |             | COST 1  | 1 5 0 0 60s
        a debt is carried whole
            0     | GCRA 10 60s | FORCE 15 | 15 10 0 0 90s
            0     | GCRA 5 60s  | COST 1   | 0 5 0 72s 120s
            0     | GCRA 30 60s | COST 16  | 0 30 15 2s 30s
            0     |             | COST 15  | 15 30 0 0 60s
        the period changes: used units drain at the new rate
            0     | GCRA 10 60s  | COST 10 | 10 10 0 0 60s
            6s    | GCRA 10 60s  | COST 1  | 1 10 0 0 60s
            6s    | GCRA 10 10s  | COST 1  | 0 10 0 1s 10s
            7s    |              | COST 1  | 1 10 0 0 10s
            8s    | GCRA 10 100s | COST 1  | 1 10 0 0 100s
        a slow limit becomes a fast one: no caller waits for longer than the new limit requires, though denials write nothing
            0     | GCRA 1 1d | COST 1 | 1 1 0 0 1d
            500ms | GCRA 1 1s | COST 1 | 0 1 0 500ms 500ms
            1s-1us|           | COST 1 | 0 1 0 1us 1us
            1s    |           | COST 1 | 1 1 0 0 1s
        a change rounds used units up, by less than a microsecond's worth
            0     | GCRA 3 1s   | COST 1  | 1 3 2 0 333334us
            1us   |             | COST 1  | 1 3 1 0 666666us
            1us   | GCRA 3 1ms  | COST 1  | 1 3 0 0 1ms
            1us   |             | COST 1  | 0 3 0 334us 1ms
        the clock steps back: the usage counts as of now
            100s  | GCRA 10 60s | COST 10 | 10 10 0 0 60s
            40s   |             | COST 1  | 0 10 0 6s 60s
            40s   |             | FORCE 1 | 1 10 0 0 66s
            52s   |             | COST 1  | 1 10 0 0 60s
        ",
    );
}

#[test]
fn gcra_burst() {
    timelines(
        "
        BURST 1 spaces calls evenly
            0        | GCRA 10 60s BURST 1 | COST 1 | 1 1 0 0 6s
            0        |                     | COST 1 | 0 1 0 6s 6s
            6s-1us   |                     | COST 1 | 0 1 0 1us 1us
            6s       |                     | COST 1 | 1 1 0 0 6s
            6s       |                     | COST 2 | 0 1 0 never 6s
            6s       |                     | UPTO 9 | 0 1 0 6s 6s
            1h       |                     | UPTO 9 | 1 1 0 0 6s
        a burst above the limit takes longer than a period to come back
            0        | GCRA 10 60s BURST 30 | COST 30  | 30 30 0 0 3m
            6s       |                      | COST 1   | 1 30 0 0 3m
            66s      |                      | COST 11  | 0 30 10 6s 2m
            66s      |                      | REFUND 5 | 5 30 15 0 90s
            66s      |                      | FORCE 20 | 20 30 0 0 210s
        the burst changes, up and down
            0        | GCRA 10 60s BURST 5  | COST 5 | 5 5 0 0 30s
            0        | GCRA 10 60s BURST 8  | COST 3 | 3 8 0 0 48s
            0        | GCRA 10 60s BURST 2  | COST 1 | 0 2 0 6s 12s
            0        | GCRA 10 60s          | COST 2 | 2 10 0 0 60s
        the period changes
            0        | GCRA 10 60s BURST 5 | COST 5 | 5 5 0 0 30s
            0        | GCRA 10 20s BURST 5 | COST 1 | 0 5 0 2s 10s
        the clock steps back
            100s     | GCRA 10 60s BURST 1 | COST 1 | 1 1 0 0 6s
            1s       |                     | COST 1 | 0 1 0 6s 6s
        ",
    );
}

/// A theoretical arrival time in nanoseconds, as redis-cell stores it.
fn redis_cell(tat_ns: i128) -> Key {
    Key { value: Some(tat_ns.to_string().into_bytes()), ..Key::default() }
}

#[test]
fn a_key_of_redis_cell_goes_on_counting() {
    const NOW: i64 = 1_800_000_000_000_000;
    let now = |us: i64| Instant::from_us(NOW + us);
    // A policy, by how many nanoseconds the arrival time is in the future, after how many microseconds a call comes, and its
    // reply: the same as if the units had been taken by this module.
    for (policy, ahead_ns, later_us, asked, expected) in [
        ("GCRA 1 10s BURST 5", 25_000_000_000, 0, "COST 1", "1 5 1 0 35s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 0, "COST 3", "0 5 2 5s 25s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 5_000_000, "COST 3", "3 5 0 0 50s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 4_999_999, "COST 3", "0 5 2 1us 20s+1us"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 0, "COST 6", "0 5 2 never 25s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 0, "REFUND 1", "1 5 3 0 15s"),
        ("GCRA 1 10s BURST 5", 25_000_000_000, 25_000_000, "COST 5", "5 5 0 0 50s"),
        ("GCRA 1 10s BURST 5", -1_000_000_000, 0, "COST 5", "5 5 0 0 50s"),
        // The part that redis-cell has cut off from the emission interval is less than a unit, and is not added.
        ("GCRA 3 1s", 333_333_333, 0, "COST 2", "2 3 0 0 1s"),
        ("GCRA 3 1s", 999_999_999, 0, "COST 1", "0 3 0 333334us 1s"),
        // A fraction of a microsecond counts against the caller.
        ("GCRA 1 10s BURST 5", 1, 0, "COST 5", "0 5 4 1us 1us"),
        // More units than the capacity are used, from before the limit was lowered: as in redis-cell, they are debt.
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
    timelines(
        "
        bookings act one after the other, and a later call acts after them
            0    | GCRA 10 60s | COST 10               | 10 10 0 0 60s
            0    |             | COST 1 RESERVE 6s-1us | 0 10 0 1us 60s
            0    |             | COST 1 RESERVE 6s     | 1 10 0 6s 66s
            0    |             | COST 3 RESERVE 1d     | 3 10 0 24s 84s
            0    |             | COST 1                | 0 10 0 30s 84s
            0    |             | UPTO 9                | 0 10 0 30s 84s
            24s  |             | COST 1                | 0 10 0 6s 60s
            30s  |             | COST 1                | 1 10 0 0 60s
        free units are taken now, however far ahead the call may be booked
            0    | GCRA 10 60s | COST 5 RESERVE 1d     | 5 10 5 0 30s
            0    |             | COST 6 RESERVE 1d     | 6 10 0 6s 66s
        REFUND gives a booking back; FORCE acts now, before the bookings
            0    | GCRA 10 60s | COST 10               | 10 10 0 0 60s
            0    |             | COST 5 RESERVE 30s    | 5 10 0 30s 90s
            0    |             | REFUND 5              | 5 10 0 0 60s
            0    |             | COST 1 RESERVE 1d     | 1 10 0 6s 66s
            0    |             | FORCE 4               | 4 10 0 0 90s
            0    |             | COST 1 RESERVE 1d     | 1 10 0 36s 96s
        the limit goes up: bookings are carried whole
            0    | GCRA 10 60s | COST 10               | 10 10 0 0 60s
            0    |             | COST 5 RESERVE 30s    | 5 10 0 30s 90s
            0    | GCRA 20 60s | COST 6                | 0 20 5 3s 45s
            0    |             | COST 6 RESERVE 3s     | 6 20 0 3s 63s
        the limit goes down: bookings are carried whole
            0    | GCRA 10 60s | COST 10               | 10 10 0 0 60s
            0    |             | COST 5 RESERVE 30s    | 5 10 0 30s 90s
            0    | GCRA 5 60s  | COST 1 RESERVE 60s    | 0 5 0 12s 2m
            0    |             | COST 1 RESERVE 72s    | 1 5 0 72s 132s
        the clock steps back: bookings count as of now
            1000s | GCRA 10 60s | COST 10              | 10 10 0 0 60s
            1000s |             | COST 5 RESERVE 30s   | 5 10 0 30s 90s
            40s   |             | COST 1 RESERVE 30s   | 0 10 0 6s 90s
            40s   |             | COST 1 RESERVE 36s   | 1 10 0 36s 96s
            76s   |             | COST 1               | 0 10 0 6s 60s
        ",
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
    timelines(&format!("ten a second: 100 ms apart\n{}", slots(10)));
    timelines(&format!("three a second: exact thirds, each rounded up\n{}", slots(3)));
}
