//! Options of the limiters on real keys: amounts, bookings, and windows that end at a time which the caller computes. What depends on
//! the moment of `UNTIL` is tested without a server, in `tests/core/until.rs`.

use std::time::Duration;

use redis::Connection;
use support::witness::timed;
use support::{assert_same, call, command, info, limit, pipe, snapshot, snapshots, time_us, wait_for, Held, Server};

// ---- Amounts: partial grants, costs that are known later, and refunds ----

const LIMITERS: [&str; 4] = ["RL.FIXED", "RL.SLIDE", "RL.GCRA", "RL.BUCKET"];

#[test]
fn partial_grants_burn_no_fraction() {
    let (_server, mut client) = Server::start().and_client();
    for name in ["RL.GCRA", "RL.BUCKET"] {
        // A unit drains every 100 ms. The calls come at other times, and by the server's clock no unit is lost.
        let words = format!("{name} {name} 10 1 UPTO 10");
        let (row, since, until) = timed(&mut client, &words);
        assert_eq!(row[0], 10);
        let (mut granted, mut first, mut last) = (0, 0, 0);
        while last < since + 2_000_000 {
            std::thread::sleep(Duration::from_millis(37));
            let row;
            (row, first, last) = timed(&mut client, &words);
            granted += row[0];
        }
        let (least, most) = ((first - until) / 100_000, (last - since) / 100_000);
        assert!((least..=most).contains(&granted), "{name}: {granted}, of {least} to {most}");
    }
}

#[test]
fn a_forced_amount_is_a_debt_that_is_paid_before_the_next_grant() {
    let (_server, mut client) = Server::start().and_client();
    for (name, wait_ms) in
        [("RL.FIXED", 172_800_000), ("RL.SLIDE", 86_401_319), ("RL.GCRA", 138_240_000), ("RL.BUCKET", 138_240_000)]
    {
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d COST 10"))[0], 10);
        let [granted, _, remaining, wait, reset] = limit(&mut client, &format!("{name} {name} 10 1d FORCE 15"));
        assert_eq!([granted, remaining, wait], [15, 0, 0], "{name}");
        let reported = limit(&mut client, &format!("{name} {name} 10 1d"));
        assert_eq!(reported[0], 0, "{name}");
        // 16 units have to drain; in a window, all that is used by then has to.
        assert!((wait_ms - 10_000..=wait_ms).contains(&reported[3]), "{name}: {reported:?}");
        assert!(call::<i64>(&mut client, &format!("PTTL {name}")) >= reset - 10_000, "{name}");
    }
}

#[test]
fn a_refund_gives_back_what_is_used_and_no_more() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d REFUND 5")), [0, 10, 10, 0, 0], "{name}");
        assert_eq!(call::<i64>(&mut client, &format!("EXISTS {name}")), 0, "{name}");
        limit(&mut client, &format!("{name} {name} 10 1d COST 6"));
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d REFUND 2"))[..3], [2, 10, 6], "{name}");
        assert!(call::<i64>(&mut client, &format!("PTTL {name}")) > 0, "{name}");
        // Of the four units a little has drained. Replies count whole units.
        let [given, _, remaining, ..] = limit(&mut client, &format!("{name} {name} 10 1d REFUND 100"));
        assert!(remaining == 10 && (3..=4).contains(&given), "{name}: {given}");
        assert_ne!(call::<i64>(&mut client, &format!("PTTL {name}")), -1, "{name}");
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d REFUND 1"))[0], 0, "{name}");
    }
    // A fixed window goes on with nothing used. The keys of the other algorithms are gone.
    assert_eq!(call::<Vec<String>>(&mut client, "KEYS *"), ["RL.FIXED"]);
}

// ---- `RESERVE`: bookings are part of the key, also on replicas and after restarts, and no later call is granted before them ----

/// Each algorithm at 10 units per 10 minutes, with all units used: so a unit can be booked within 20 minutes at most, and
/// the seconds that a test takes matter little.
const POLICIES: [&str; 5] = [
    "RL.FIXED fixed 10 10m",
    "RL.SLIDE slide 10 10m",
    "RL.GCRA gcra 10 10m",
    "RL.BUCKET bucket 10 10m",
    "RL.BUCKET step 10 10m STEP",
];

/// How much time may pass between two calls, in milliseconds.
const MEANWHILE: i64 = 20_000;

fn exhaust(client: &mut Connection) {
    for policy in POLICIES {
        assert_eq!(limit(client, &format!("{policy} COST 10"))[..3], [10, 10, 0], "{policy}");
    }
}

#[test]
fn a_leaky_bucket_hands_out_slots_a_tenth_of_a_second_apart() {
    let (_server, mut client) = Server::start().and_client();
    // All calls are executed right after each other. The server reports its time in between.
    let calls = ["TIME", "RL.GCRA k 10 1 BURST 1 RESERVE 10"].repeat(20);
    // The twenty-first booking would be two seconds after the first.
    let calls = [&calls[..], &["TIME", "RL.GCRA k 10 1 BURST 1 RESERVE 500ms", "TIME"]].concat();
    let replies: Vec<Vec<i64>> = pipe(calls).query(&mut client).expect("replies");
    let moment = |index: usize| replies[2 * index][0] * 1_000_000 + replies[2 * index][1];
    for index in 0..20 {
        let row = &replies[2 * index + 1];
        assert_eq!(row[..3], [1, 1, 0]);
        assert_eq!(row[4] - row[3], 100, "free again a tenth of a second after the slot");
        // The server reads its clock at some time in between, and rounds up to a millisecond.
        let (from, to) = (moment(index) + row[3] * 1_000, moment(index + 1) + row[3] * 1_000);
        let after = 100_000 * index as i64;
        assert!(to >= moment(0) + after && from <= moment(1) + after + 1_000, "{index}: {replies:?}");
    }
    let denied = &replies[41];
    let most = 1_500 - (moment(20) - moment(1)) / 1_000;
    let least = 1_499 - (moment(21) - moment(0)) / 1_000;
    assert!(denied[0] == 0 && (least..=most + 1).contains(&denied[3]), "{denied:?}, not {least} to {most}");
}

#[test]
fn a_booking_beyond_what_was_offered_is_denied_and_books_nothing() {
    let (_server, mut client) = Server::start().and_client();
    exhaust(&mut client);
    let before = snapshots(&mut client);
    for policy in POLICIES {
        let need = limit(&mut client, &format!("{policy} COST 3"))[3];
        let row = limit(&mut client, &format!("{policy} COST 3 RESERVE 1m"));
        assert_eq!(row[..3], [0, 10, 0], "{policy}");
        // The call is denied as long as its wait is longer than RESERVE allows.
        assert!((need - 60_000 - MEANWHILE..=need - 60_000).contains(&row[3]), "{policy}: {row:?}, and {need} ms");
        assert_eq!(limit(&mut client, &format!("{policy} COST 11 RESERVE 1d"))[3], -1, "{policy}");
    }
    assert_same(&before, &snapshots(&mut client));
}

#[test]
fn no_call_gets_ahead_of_a_booking() {
    let (_server, mut client) = Server::start().and_client();
    exhaust(&mut client);
    for policy in POLICIES {
        let booked = limit(&mut client, &format!("{policy} COST 4 RESERVE 20m"));
        assert!(booked[0] == 4 && booked[3] > 180_000, "{policy}: {booked:?}");
        for amount in ["COST 1", "UPTO 1"] {
            let row = limit(&mut client, &format!("{policy} {amount}"));
            // A little time has passed since.
            assert!(row[0] == 0 && row[3] > booked[3] - MEANWHILE, "{policy} {amount}: {row:?} after {booked:?}");
        }
        let later = limit(&mut client, &format!("{policy} COST 1 RESERVE 20m"));
        assert!(later[0] == 1 && later[3] >= booked[3] - MEANWHILE, "{policy}: {later:?} after {booked:?}");
        // A booking that is given back leaves the key as if it had never been made.
        assert_eq!(limit(&mut client, &format!("{policy} REFUND 1"))[0], 1);
        let again = limit(&mut client, &format!("{policy} COST 1 RESERVE 20m"));
        assert!((later[3] - MEANWHILE..=later[3]).contains(&again[3]), "{policy}: {again:?} instead of {later:?}");
    }
}

#[test]
fn bookings_survive_a_crash_and_a_failover() {
    let (mut server, mut client) = Server::on_port(&["--appendonly", "yes", "--appendfsync", "always"]).and_client();
    exhaust(&mut client);
    let book = |client: &mut Connection, policy: &str| {
        let row = limit(client, &format!("{policy} COST 2 RESERVE 20m"));
        assert_eq!(row[0], 2, "{policy}: {row:?}");
        row[3]
    };
    let start = time_us(&mut client);
    let first: Vec<i64> = POLICIES.iter().map(|policy| book(&mut client, policy)).collect();
    let before = snapshots(&mut client);
    server.crash_and_restart();
    let mut client = server.client();
    assert_same(&before, &snapshots(&mut client));

    let replica = server.replica(&[]);
    let second: Vec<i64> = POLICIES.iter().map(|policy| book(&mut client, policy)).collect();
    let before = snapshots(&mut client);
    call::<i64>(&mut client, "WAIT 1 50000");
    assert_same(&before, &snapshots(&mut replica.client()));
    call::<()>(&mut replica.client(), "REPLICAOF NO ONE");
    let passed = (time_us(&mut replica.client()) - start) / 1_000 + 1;
    for ((policy, first), second) in POLICIES.iter().zip(first).zip(second) {
        let third = book(&mut replica.client(), policy);
        assert!(second >= first - passed && third >= second - passed, "{policy}: {first}, {second}, {third} ms");
        assert!(snapshot(&mut replica.client(), policy.split(' ').nth(1).expect("a key")).deadline_ms > 0);
    }
}

// ---- `UNTIL` ----

fn error(client: &mut Connection, words: &str) -> String {
    support::error(client, &command(words))
}

const TOO_FAR: &str =
    "ERR UNTIL must be at most two periods ahead: it is a Unix time in seconds, and the period is the longest window";
const NO_TIME: &str = "ERR UNTIL must be a Unix time in seconds, with at most 6 decimals and without sign or suffix";

/// The server's time in seconds, rounded down, and so many seconds.
fn seconds(client: &mut Connection, ahead: i64) -> i64 {
    time_us(client) / 1_000_000 + ahead
}

/// Makes a call, and checks that `reset_ms` is the time from the call to `end`, in seconds. Returns the other fields.
fn ends_at(client: &mut Connection, words: &str, end: i64) -> [i64; 4] {
    let before = time_us(client);
    let [granted, limit, remaining, wait, reset] = limit(client, words);
    let after = time_us(client);
    let left = |now: i64| (end * 1_000_000 - now + 999) / 1_000;
    assert!((left(after)..=left(before)).contains(&reset), "{words}: {reset} ms, not {} to {}", left(after), left(before));
    [granted, limit, remaining, wait]
}

#[test]
fn the_window_ends_at_the_time_and_is_never_lengthened() {
    let (_server, mut client) = Server::start().and_client();
    let now = seconds(&mut client, 0);
    let (sooner, end, later) = (now + 1_800, now + 3_600, now + 7_200);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED k 10 25h UNTIL {end}"), end), [1, 10, 9, 0]);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED k 10 25h UNTIL {later}"), end), [1, 10, 8, 0]);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED k 10 25h until {}.5 COST 2", now - 5), end), [2, 10, 6, 0]);
    assert_eq!(ends_at(&mut client, "RL.FIXED k 10 25h", end), [1, 10, 5, 0]);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED k 10 30h UPTO 1 UNTIL {later}"), end), [1, 10, 4, 0]);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED k 10 25h UNTIL {sooner} FORCE 1"), sooner), [1, 10, 3, 0]);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED k 10 25h UNTIL {later} REFUND 1"), sooner), [1, 10, 4, 0]);
    // The key lives as long as its window, and its record is as small as any.
    let deadline: i64 = call(&mut client, "PEXPIRETIME k");
    assert_eq!(deadline, sooner * 1_000);
    assert_eq!(call::<i64>(&mut client, "STRLEN k"), 28);
    let facts: Vec<redis::Value> = call(&mut client, "RL.INSPECT k");
    let shown = format!("{facts:?}");
    assert!(shown.contains(&format!("int({})", sooner * 1_000)), "{shown}");
}

#[test]
fn a_time_that_has_passed_opens_a_provisional_window() {
    let (_server, mut client) = Server::start().and_client();
    let now = seconds(&mut client, 0);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED k 10 1h UNTIL {}", now - 5), now + 3_595), [1, 10, 9, 0]);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED j 10 1h UNTIL {}", now - 3_700), now + 3_500), [1, 10, 9, 0]);
    // A right caller corrects the end by a grant, but not by a denial, whose wait is that until the end in the record.
    let right = format!("1h UNTIL {}", now + 600);
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED k 10 {right} COST 11"), now + 3_595), [0, 10, 9, -1]);
    assert_eq!(ends_at(&mut client, "RL.FIXED k 10 1h COST 9", now + 3_595), [9, 10, 0, 0]);
    let [granted, _, _, wait, reset] = limit(&mut client, &format!("RL.FIXED k 10 {right}"));
    assert!(granted == 0 && wait == reset && wait > 3_500_000, "{wait} {reset}");
    assert_eq!(ends_at(&mut client, &format!("RL.FIXED j 10 {right}"), now + 600), [1, 10, 8, 0]);
}

#[test]
fn every_bad_time_is_refused_and_changes_nothing() {
    let (_server, mut client) = Server::start().and_client();
    let now = seconds(&mut client, 0);
    call::<()>(&mut client, "RL.FIXED key 10 60");
    let before = snapshot(&mut client, "key");
    for (words, text) in [
        ("UNTIL x", NO_TIME.into()),
        ("UNTIL -1", NO_TIME.into()),
        ("UNTIL +1", NO_TIME.into()),
        ("UNTIL 1s", NO_TIME.into()),
        ("UNTIL 1.0000001", NO_TIME.into()),
        ("UNTIL 1.", NO_TIME.into()),
        ("UNTIL 5 ALIGN 0", "ERR UNTIL and ALIGN can't be combined".into()),
        ("ALIGN 0 UNTIL 5", "ERR ALIGN and UNTIL can't be combined".into()),
        (&*format!("UNTIL {}", now + 140), TOO_FAR.into()),
        (&*format!("UNTIL {now}000"), TOO_FAR.into()),
        ("UNTIL 99999999999999999999999", TOO_FAR.into()),
    ] as [(&str, String); 11]
    {
        assert_eq!(error(&mut client, &format!("RL.FIXED key 10 60 {words}")), text, "{words}");
        assert_eq!(error(&mut client, &format!("RL.PEEK FIXED key 10 60 {words}")), text, "{words}");
        assert_eq!(error(&mut client, &format!("RL.ALL 2 other key GCRA 5 60 FIXED 10 60 {words}")), text, "{words}");
        assert_eq!(snapshot(&mut client, "key"), before, "{words}");
        assert_eq!(call::<i64>(&mut client, "DBSIZE"), 1);
    }
    for name in ["SLIDE", "GCRA", "BUCKET"] {
        let text = error(&mut client, &format!("RL.{name} key 10 60 UNTIL 5"));
        assert_eq!(text, format!("ERR unknown option 'UNTIL' for RL.{name}"));
    }
}

#[test]
fn peek_and_all_take_it() {
    let (_server, mut client) = Server::start().and_client();
    let end = seconds(&mut client, 3_600);
    let rule = format!("10 25h UNTIL {end}");
    assert_eq!(limit(&mut client, &format!("RL.PEEK FIXED k {rule} COST 3")), [3, 10, 10, 0, 0]);
    assert_eq!(call::<i64>(&mut client, "EXISTS k"), 0);
    let all = format!("RL.ALL 2 k j FIXED {rule} COST 4 FIXED 5 40d UNTIL {}", end + 86_400);
    let (granted, wait, rows): (i64, i64, Vec<Vec<i64>>) = call(&mut client, &all);
    assert_eq!((granted, wait, rows[0][0], rows[1][0]), (1, 0, 4, 1));
    assert_eq!(ends_at(&mut client, &format!("RL.PEEK FIXED k {rule} UPTO 20"), end), [6, 10, 6, 0]);
    // A peek that would correct the end corrects nothing.
    let sooner = end - 60;
    assert_eq!(ends_at(&mut client, &format!("RL.PEEK FIXED k 10 25h UNTIL {sooner}"), sooner), [1, 10, 6, 0]);
    assert_eq!(ends_at(&mut client, "RL.PEEK FIXED k 10 25h", end), [1, 10, 6, 0]);
}

#[test]
fn ids_and_bookings_stand_in_the_window() {
    let (_server, mut client) = Server::start().and_client();
    let now = seconds(&mut client, 0);
    let rule = |ahead: i64| format!("RL.FIXED k 10 25h UNTIL {}", now + ahead);
    assert_eq!(ends_at(&mut client, &format!("{} COST 6 ID a", rule(3_600)), now + 3_600), [6, 10, 4, 0]);
    // Another caller makes the window shorter. The charge is still in it.
    assert_eq!(ends_at(&mut client, &format!("{} COST 1 ID b", rule(1_800)), now + 1_800), [1, 10, 3, 0]);
    assert_eq!(ends_at(&mut client, &format!("{} COST 9 ID a", rule(-5)), now + 1_800), [6, 10, 3, 0]);
    let before = snapshot(&mut client, "k");
    assert_eq!(ends_at(&mut client, &format!("{} ID a", rule(7_200)), now + 1_800), [6, 10, 3, 0]);
    assert_eq!(snapshot(&mut client, "k"), before);
    assert_eq!(ends_at(&mut client, "RL.SETTLE k a 2", now + 1_800), [2, 10, 7, 0]);
    assert_eq!(ends_at(&mut client, "RL.RELEASE k b", now + 1_800), [0, 10, 8, 0]);
    // A booking acts when the window ends, and windows lie a period apart.
    let period_s = 25 * 3_600;
    let [granted, _, _, wait] =
        ends_at(&mut client, &format!("{} COST 10 RESERVE 1h ID c", rule(1_800)), now + 1_800 + period_s);
    assert!(granted == 10 && (1..=1_800_000).contains(&wait), "{wait}");
    assert_eq!(ends_at(&mut client, "RL.RELEASE k c", now + 1_800), [0, 10, 0, 0]);
}

#[test]
fn a_waiting_client_is_granted_when_the_window_ends() {
    let (server, mut client) = Server::start().and_client();
    let end_ms = time_us(&mut client) / 1_000 + 400;
    let until = format!("UNTIL {}.{:03}", end_ms / 1_000, end_ms % 1_000);
    assert_eq!(limit(&mut client, &format!("RL.FIXED k 1 25h {until}"))[..4], [1, 1, 0, 0]);
    let row = Held::send(&server, &format!("RL.FIXED k 1 25h {until} BLOCK 60")).row();
    assert!(time_us(&mut client) >= end_ms * 1_000);
    // The time has passed, so the new window's end is provisional: a period after it.
    let left = end_ms + 25 * 3_600_000 - time_us(&mut client) / 1_000;
    assert!(row[..4] == [1, 1, 0, 0] && (left..left + 60_000).contains(&row[4]), "{row:?}, {left}");
    assert_eq!(info(&mut client, "rl", "rl_waiting_clients"), 0);
}

#[test]
fn a_replica_holds_the_same_windows() {
    let server = Server::on_port(&[]);
    let replica = server.replica(&[]);
    let (mut client, mut follower) = (server.client(), replica.client());
    let now = seconds(&mut client, 0);
    for (key, ahead) in [("a", 3_600), ("b", -5), ("a", 1_800), ("b", 600), ("c", 20 * 3_600), ("c", -7)] {
        call::<()>(&mut client, &format!("RL.FIXED {key} 10 25h UNTIL {} COST 2", now + ahead));
    }
    call::<()>(&mut client, &format!("RL.FIXED c 10 25h UNTIL {} ID x", now + 60));
    let offset = |client: &mut Connection| info(client, "replication", "master_repl_offset");
    wait_for("the stream", || offset(&mut client) == offset(&mut follower));
    assert_same(&snapshots(&mut follower), &snapshots(&mut client));
}
