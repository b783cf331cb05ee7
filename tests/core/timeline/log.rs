//! The bytes of SLIDE's log: what each call writes, and what the mark in the header means.

use std::collections::BTreeMap;

use redis_rl::limiter::{Amount, Change, Decision, Instant, Policy, Request, Span, Wait};

use super::{request, rule, span, time};
use crate::key::{Outcome, Steps};

/// From this value on a mark says that several callers share the log.
const SHARED: u32 = 1 << 31;

/// A log, field by field: `limit period tick base before mark: tick/count tick/count`.
fn layout(value: &[u8]) -> String {
    let four = |at: usize| u32::from_le_bytes(*value[at..].first_chunk().expect("a field"));
    let eight = |at: usize| i64::from_le_bytes(*value[at..].first_chunk().expect("a field"));
    let entries: Vec<String> = (40..value.len()).step_by(8).map(|at| format!("{}/{}", four(at), four(at + 4))).collect();
    let (limit, before, mark) = (four(4), four(32), four(36));
    let mark = match mark {
        u32::MAX => "far".to_owned(),
        0..SHARED => mark.to_string(),
        // Without the caller's tag.
        _ => format!("shared({},{})", mark >> 6 & 63, mark & 63),
    };
    format!("{limit} {} {} {} {before} {mark}: {}", eight(8), eight(16), eight(24), entries.join(" "))
}

/// The caller's tag in the mark of a shared log.
fn tag(value: &[u8]) -> u32 {
    u32::from_le_bytes(*value[36..].first_chunk().expect("a mark")) >> 12
}

/// A log on ticks of a second with a period of a minute and a limit of 4, based on tick 1000.
fn log(mark: u32, entries: &[(u32, u32)]) -> Vec<u8> {
    let fields = [4_u32.to_le_bytes(), [0; 4], [0; 4], [0; 4], [0; 4], [0; 4], [0; 4], [0; 4], mark.to_le_bytes()];
    let mut value = [&[0xfa, 1, 2, 0][..], fields.as_flattened()].concat();
    value[8..16].copy_from_slice(&60_000_000_u64.to_le_bytes());
    value[16..24].copy_from_slice(&1_000_000_u64.to_le_bytes());
    value[24..32].copy_from_slice(&1_000_i64.to_le_bytes());
    entries.iter().for_each(|(tick, count)| value.extend([tick.to_le_bytes(), count.to_le_bytes()].as_flattened()));
    value
}

/// Carries out the change of a call.
fn apply(outcome: &Outcome, value: &mut Vec<u8>) {
    let mut stored = Some(std::mem::take(value));
    outcome.change.apply(&outcome.bytes, &mut stored);
    *value = stored.expect("no log is removed");
}

/// Makes a call that is granted. Returns the decision, and how many bytes stay, are changed in place, and are written.
fn charge(value: &mut Vec<u8>, at: &str, policy: &str, asked: &str) -> (Decision, (usize, usize, usize)) {
    let stored = Some(&value[..]).filter(|value| !value.is_empty());
    let outcome = rule(policy).policy().decide(stored, Instant::from_us(time(at)), request(asked)).expect("a decision");
    let Change::Write { offset, head, .. } = outcome.change else { panic!("{at} {policy} {asked}: {outcome:?}") };
    apply(&outcome, value);
    (outcome.decision, (offset, head, outcome.bytes.as_slice().len()))
}

/// Makes calls, and checks what each writes and the log that it leaves.
/// A row is `time | policy | amount | bytes that stay, are changed in place, are written | log`.
fn writes(value: &mut Vec<u8>, table: &str) {
    for row in table.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let [at, policy, asked, bytes, expected] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("not five columns: {row}")
        };
        let (_, (stay, head, written)) = charge(value, at, policy, asked);
        assert_eq!((format!("{stay} {head} {written}"), layout(value)), (bytes.to_owned(), expected.to_owned()), "{row}");
    }
}

#[test]
fn a_grant_appends_an_entry_or_changes_the_last() {
    writes(
        &mut Vec::new(),
        "1s          | SLIDE 10 60s SEGMENTS 60 | COST 3   | 0 0 48 | 10 60000000 1000000 1 0 0: 0/3
         1500ms      | SLIDE 10 60s SEGMENTS 60 | COST 1   | 40 0 8 | 10 60000000 1000000 1 0 0: 0/4
         3s          | SLIDE 10 60s SEGMENTS 60 | COST 2   | 48 0 8 | 10 60000000 1000000 1 0 0: 0/4 2/6
         4s          | SLIDE 10 60s SEGMENTS 60 | REFUND 3 | 40 0 8 | 10 60000000 1000000 1 0 0: 0/3
         61s         | SLIDE 10 60s SEGMENTS 60 | COST 1   | 48 0 8 | 10 60000000 1000000 1 0 0: 0/3 60/4
         62s-1us     | SLIDE 10 60s SEGMENTS 60 | COST 1   | 0 0 48 | 10 60000000 1000000 61 0 0: 0/2",
    );
    let outcome = rule("SLIDE 10 60s").policy().decide(None, Instant::from_us(0), Request::now(Amount::Cost(1)));
    let Change::Write { slack, .. } = outcome.expect("a decision").change else { panic!("no write") };
    assert_eq!(slack, Span::from_us(7_500_000), "a deadline moves eight times in a period");
}

#[test]
fn a_booking_marks_the_ticks_that_may_lie_ahead() {
    let mut value = Vec::new();
    writes(
        &mut value,
        "1s  | SLIDE 4 60s SEGMENTS 60 | COST 1             | 0 0 48  | 4 60000000 1000000 1 0 0: 0/1
         20s | SLIDE 4 60s SEGMENTS 60 | COST 3             | 48 0 8  | 4 60000000 1000000 1 0 0: 0/1 19/4
         20s | SLIDE 4 60s SEGMENTS 60 | COST 1 RESERVE 70s | 0 0 64  | 4 60000000 1000000 1 0 121: 0/1 19/4 60/5",
    );
    // A mark covers the ticks before it. Tick 80 is the 79th from the base.
    value[36..40].copy_from_slice(&79_u32.to_le_bytes());
    let mut covered = value.clone();
    covered[36..40].copy_from_slice(&80_u32.to_le_bytes());
    writes(
        &mut value,
        "21s | SLIDE 4 60s SEGMENTS 60 | COST 2 RESERVE 70s | 0 0 72 | 4 60000000 1000000 1 0 140: 0/1 19/4 60/5 79/7",
    );
    writes(
        &mut covered,
        "21s | SLIDE 4 60s SEGMENTS 60 | COST 2 RESERVE 70s | 64 0 8 | 4 60000000 1000000 1 0 80: 0/1 19/4 60/5 79/7",
    );
}

#[test]
fn the_mark_tells_entries_ahead_from_a_clock_that_stepped_back() {
    // The entry is at tick 1100, and the call comes in tick 1010.
    for (mark, wait) in [
        // No entry lies ahead, so the clock has stepped back, and the entry counts as of now.
        (0, "61s-1us"),
        (100, "61s-1us"),
        // Bookings may lie a period and a tick ahead, and no further.
        (101, "122s-1us"),
        (SHARED - 1, "122s-1us"),
        // Entries may lie however far ahead.
        (u32::MAX, "151s-1us"),
        // Times in the mark of a shared log are in sevenths of ticks, from tick 994 on: 15 of them are tick 1099.
        (SHARED, "61s-1us"),
        (SHARED + 15, "61s-1us"),
        (SHARED + 16, "122s-1us"),
        (SHARED + 62, "122s-1us"),
        (SHARED + 63, "151s-1us"),
    ] {
        let peeked = rule("SLIDE 4 60s SEGMENTS 60").policy().peek(
            Some(&log(mark, &[(100, 4)])),
            Instant::from_us(1_010_000_000),
            request("COST 1"),
        );
        assert_eq!(peeked.expect("a decision").wait, Wait::For(span(wait)), "{mark:#x}");
    }
}

#[test]
fn a_log_keeps_that_entries_lie_ahead() {
    let far = || log(u32::MAX, &[(100, 1)]);
    writes(&mut far(), "1010s | SLIDE 4 60s SEGMENTS 60 | FORCE 1 | 40 0 8 | 4 60000000 1000000 1000 0 far: 100/2");
    writes(
        &mut far(),
        "1010s | SLIDE 4 4s SEGMENTS 4   | FORCE 1 | 40 40 48 | 4 60000000 1000000 1000 0 shared(3,63): 100/2",
    );
    // The first entry is dead, so the log is rewritten.
    let worn = |mark, last| log(mark, &[(0, 1), (last, 2)]);
    writes(
        &mut worn(u32::MAX, 200),
        "1061s | SLIDE 4 60s SEGMENTS 60 | FORCE 1 | 0 0 48 | 4 60000000 1000000 1200 0 far: 0/2",
    );
    writes(
        &mut worn(u32::MAX, 200),
        "1061s | SLIDE 4 4s SEGMENTS 4   | FORCE 1 | 0 0 48 | 4 60000000 1000000 1064 0 shared(0,63): 136/2",
    );
    writes(&mut worn(101, 90), "1061s | SLIDE 4 60s SEGMENTS 60 | FORCE 1 | 0 0 48 | 4 60000000 1000000 1090 0 61: 0/2");
    writes(
        &mut worn(101, 90),
        "1061s | SLIDE 4 4s SEGMENTS 4   | FORCE 1 | 0 0 48 | 4 60000000 1000000 1064 0 shared(0,13): 26/2",
    );
    // The booked ticks have come: the mark of a shared log no longer says that entries lie ahead.
    writes(
        &mut log(3, &[(0, 1), (5, 2)]),
        "1006s | SLIDE 4 4s SEGMENTS 4   | COST 1  | 56 40 48 | 4 60000000 1000000 1000 0 shared(2,0): 0/1 5/2 6/3",
    );
}

#[test]
fn the_mark_of_a_shared_log_names_the_last_caller_and_since_when_it_is_alone() {
    const MINUTE: &str = "SLIDE 100 60s SEGMENTS 60";
    const MOMENT: &str = "SLIDE 100 4s SEGMENTS 4";
    let (mut value, mut tags) = (Vec::new(), Vec::new());
    for (at, policy, mark) in [
        ("1s", MINUTE, "0"),
        ("2s", MOMENT, "shared(1,0)"),
        ("3s", MINUTE, "shared(1,0)"),
        ("7s", MINUTE, "shared(2,0)"),
        ("8s", MOMENT, "shared(2,0)"),
        // Finer ticks, of which 15 are an eighth: the log moves to them, and only this caller is known.
        ("9s", "SLIDE 100 60s SEGMENTS 120", "shared(2,0)"),
    ] {
        charge(&mut value, at, policy, "COST 1");
        assert_eq!(layout(&value).split([' ', ':']).nth(5), Some(mark), "{at} {policy}");
        tags.push(tag(&value));
    }
    assert!(tags[1] == tags[2] && tags[2] != tags[3] && tags[3] == tags[4] && tags[4] != tags[5], "{tags:x?}");

    // An eighth of a period is never less than a tick.
    let mut value = Vec::new();
    charge(&mut value, "1s", MOMENT, "COST 1");
    charge(&mut value, "3s", "SLIDE 100 2s SEGMENTS 2", "COST 1");
    assert_eq!(layout(&value), "100 4000000 1000000 1 0 shared(3,0): 0/1 2/2");
}

#[test]
fn a_caller_that_is_alone_for_a_period_has_the_log_for_itself() {
    const MINUTE: &str = "SLIDE 100 60s SEGMENTS 60";
    let mut value = Vec::new();
    charge(&mut value, "1s", MINUTE, "COST 1");
    charge(&mut value, "2s", "SLIDE 100 4s SEGMENTS 4", "COST 1");
    // Noted at 7 s as alone since 14 s, and a period and a tick later the log is its own.
    for second in 7..=75 {
        charge(&mut value, &format!("{second}s"), MINUTE, "COST 1");
        assert_eq!(layout(&value).contains("shared"), second < 75, "{second} s: {}", layout(&value));
    }

    // On coarser ticks, the entries of one tick become one.
    let mut value = Vec::new();
    charge(&mut value, "0", "SLIDE 100 60s SEGMENTS 600", "COST 1");
    for half in 1..=140 {
        charge(&mut value, &format!("{}ms", 500 * half), "SLIDE 100 4s SEGMENTS 4", "COST 1");
        if !layout(&value).contains("shared") {
            break;
        }
    }
    let log = layout(&value);
    assert!(log.starts_with("100 4000000 1000000 ") && log.contains(": 0/2 1/4 2/6 3/8"), "{log}");
}

#[test]
fn a_booked_entry_of_the_present_tick_keeps_its_time_on_finer_ticks() {
    let mut value = Vec::new();
    charge(&mut value, "500ms", "SLIDE 1 60s SEGMENTS 60", "COST 1");
    // It acts when the tick of the first ends, at 61 s.
    charge(&mut value, "500ms", "SLIDE 1 60s SEGMENTS 60", "COST 1 RESERVE 70s");
    let (decision, _) = charge(&mut value, "60200ms", "SLIDE 1 60s SEGMENTS 600", "FORCE 1");
    assert_eq!(decision.reset, span("60800ms-1us"));
}

#[test]
fn units_booked_for_later_in_the_present_tick_keep_their_time_on_finer_ticks() {
    let last = |calls: &[(&str, &str, &str)]| {
        let mut value = Vec::new();
        let decisions = calls.iter().map(|(at, policy, call)| charge(&mut value, at, policy, call).0);
        decisions.last().expect("a call")
    };
    // Ticks of 5 s. The second call acts when the first tick has left the window, at the end of its own tick. So it counts until
    // 15 s - 1 us.
    let (coarse, fine) = ("SLIDE 9 5s SEGMENTS 1", "SLIDE 9 5s SEGMENTS 10");
    let calls = [("957ms", coarse, "COST 6"), ("5065ms", coarse, "COST 4 RESERVE 20s")];
    let then =
        [("5068ms", fine, "COST 1 RESERVE 20s"), ("9859ms", coarse, "COST 2 RESERVE 20s"), ("11858ms", fine, "COST 2")];
    assert_eq!(last(&[&calls[..], &then].concat()).remaining, 0);
    // A caller with the same tick and a longer period rewrites the log before.
    for other in ["COST 1", "REFUND 1"] {
        let then = [("5066ms", "SLIDE 90 10s SEGMENTS 2", other), ("5068ms", fine, "FORCE 1")];
        assert_eq!(last(&[&calls[..], &then].concat()).reset, span("9932ms-1us"), "{other}");
    }
}

#[test]
fn a_long_shared_log_keeps_its_newest_entries_and_one_in_each_65536th_of_its_period() {
    const NEWEST: usize = 65_537;
    // A unit each millisecond, in a window of a second, on a log of an hour. The log has ticks of 16 us.
    let (hour, second) = (rule("SLIDE 4000000000 1h").policy(), rule("SLIDE 2000 1s").policy());
    let mut value = Vec::new();
    charge(&mut value, "0", "SLIDE 4000000000 1h", "COST 1");
    let ticks = |value: &[u8]| -> Vec<i64> {
        let base = i64::from_le_bytes(*value[24..].first_chunk().expect("a base"));
        let tick = |entry: &[u8; 8]| base + i64::from(u32::from_le_bytes(*entry.first_chunk().expect("a tick")));
        value[40..].as_chunks().0.iter().map(tick).collect()
    };
    let one = Request::now(Amount::Cost(1));
    let mut calls = 0;
    let mut call = |value: &mut Vec<u8>| {
        calls += 1;
        let outcome = second.decide(Some(value), Instant::from_us(1_000 * calls), one).expect("a decision");
        apply(&outcome, value);
        calls
    };
    while value.len() < 40 + 8 * 3 * NEWEST {
        let calls = call(&mut value);
        assert_eq!(value.len() as i64, 40 + 8 * calls, "an entry for each call");
    }
    assert_eq!(layout(&value[..48]), "4000000000 3600000000 16 62 0 shared(1,0): 0/2");
    let before = value.clone();
    let calls = call(&mut value);
    let (before, after) = (ticks(&before), ticks(&value));
    // The newest entries, and the one of this call, are as they were.
    assert_eq!(after[after.len() - 1 - NEWEST..after.len() - 1], before[before.len() - NEWEST..]);
    // Of the older ones, the last in each 65536th of an hour: in 3434 ticks of 16 us. One more may stay beside the newest.
    let older: BTreeMap<i64, i64> = before.iter().map(|&tick| (tick / 3_434, tick)).collect();
    let older: Vec<i64> = older.into_values().filter(|&tick| tick < before[before.len() - NEWEST]).collect();
    let stayed = &after[..after.len() - 1 - NEWEST];
    assert!(
        older.iter().all(|tick| stayed.contains(tick)) && stayed.len() <= older.len() + 1,
        "{} of {}",
        stayed.len(),
        older.len()
    );
    // Both callers count what they counted before.
    let remaining =
        |policy: &Policy| policy.peek(Some(&value), Instant::from_us(1_000 * calls), one).expect("a decision").remaining;
    assert_eq!(remaining(&hour), 4_000_000_000 - 1 - calls as u64);
    assert!((1_000..=1_001).contains(&(2_000 - remaining(&second))), "{}", remaining(&second));
}
