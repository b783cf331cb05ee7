//! `RESERVE`: bookings are part of the key, also on replicas and after restarts, and no later call is granted before them.

use redis::Connection;
use support::{assert_same, call, command, limit, snapshot, snapshots, time_us, Server};

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
    let server = Server::start();
    let mut client = server.client();
    // All calls are executed right after each other. The server reports its time in between.
    let mut pipe = redis::pipe();
    (0..20).for_each(|_| {
        pipe.cmd("TIME").add_command(command("RL.GCRA k 10 1 BURST 1 RESERVE 10"));
    });
    // The twenty-first booking would be two seconds after the first.
    pipe.cmd("TIME").add_command(command("RL.GCRA k 10 1 BURST 1 RESERVE 500ms")).cmd("TIME");
    let replies: Vec<Vec<i64>> = pipe.query(&mut client).expect("replies");
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
    let server = Server::start();
    let mut client = server.client();
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
    let server = Server::start();
    let mut client = server.client();
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
fn transactions_and_scripts_book_as_well() {
    let server = Server::start();
    let mut client = server.client();
    exhaust(&mut client);
    for policy in POLICIES {
        let words = format!("{policy} RESERVE 20m");
        let mut pipe = redis::pipe();
        pipe.atomic().add_command(command(&words)).add_command(command(&words));
        let rows: Vec<Vec<i64>> = pipe.query(&mut client).expect("replies");
        let mut eval = redis::cmd("EVAL");
        eval.arg("return redis.call(unpack(ARGV))")
            .arg(1)
            .arg(policy.split(' ').nth(1))
            .arg(words.split(' ').collect::<Vec<_>>());
        let row: Vec<i64> = eval.query(&mut client).expect("a reply");
        let waits = [rows[0][3], rows[1][3], row[3]];
        assert!(rows.iter().chain([&row]).all(|row| row[0] == 1), "{policy}: {rows:?}, {row:?}");
        let apart = if policy.contains("gcra") || policy.contains("bucket") { 60_000 - MEANWHILE } else { -MEANWHILE };
        assert!(waits.windows(2).all(|pair| pair[1] - pair[0] >= apart), "{policy}: {waits:?}");
    }
}

#[test]
fn bookings_survive_a_crash_and_a_failover() {
    let mut server = Server::on_port(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = server.client();
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
