//! `UNTIL` on a server: windows that end at a time which the caller computes. What depends on the moment is tested without a
//! server, in `tests/core/until.rs`.

use redis::Connection;
use support::{assert_same, call, command, info, limit, snapshot, snapshots, time_us, wait_for, Held, Server};

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
    let server = Server::start();
    let mut client = server.client();
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
    let server = Server::start();
    let mut client = server.client();
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
    let server = Server::start();
    let mut client = server.client();
    let now = seconds(&mut client, 0);
    call::<()>(&mut client, "RL.FIXED key 10 60");
    let before = snapshot(&mut client, "key");
    for (words, text) in [
        ("UNTIL", "ERR UNTIL needs a value".into()),
        ("UNTIL x", NO_TIME.into()),
        ("UNTIL -1", NO_TIME.into()),
        ("UNTIL +1", NO_TIME.into()),
        ("UNTIL 1s", NO_TIME.into()),
        ("UNTIL 1.0000001", NO_TIME.into()),
        ("UNTIL 1.", NO_TIME.into()),
        ("UNTIL 5 UNTIL 5", "ERR UNTIL is given twice".into()),
        ("UNTIL 5 ALIGN 0", "ERR UNTIL and ALIGN can't be combined".into()),
        ("ALIGN 0 UNTIL 5", "ERR ALIGN and UNTIL can't be combined".into()),
        (&*format!("UNTIL {}", now + 140), TOO_FAR.into()),
        (&*format!("UNTIL {now}000"), TOO_FAR.into()),
        ("UNTIL 99999999999999999999999", TOO_FAR.into()),
    ] as [(&str, String); 13]
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
    let server = Server::start();
    let mut client = server.client();
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
    let server = Server::start();
    let mut client = server.client();
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
    let server = Server::start();
    let mut client = server.client();
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
