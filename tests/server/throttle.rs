//! `CL.THROTTLE` as users of redis-cell know it, without the faults of that module, also with clients that were made for it; and
//! `GCRA`, the command planned for Redis 8.8.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::Connection;
use redis_cell_rs::{AllowedDetails, BlockedDetails, Cmd, Key, Policy, Verdict};
use support::{call, command, error, held, inspect, limit, pipe, snapshot, Held, Resp, Server};
use tower::{service_fn, Layer, ServiceExt};
use tower_redis_cell::{Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule};

/// Enables both commands.
const BOTH: [&str; 2] = ["--rl.compat", "cl.throttle gcra"];

fn both(options: &[&str]) -> Server {
    Server::with(&[&BOTH, options].concat())
}

fn both_on_port(options: &[&str]) -> Server {
    Server::on_port(&[&BOTH, options].concat())
}

/// Makes the calls of a table right after each other, and compares the replies: none depends on the milliseconds between two
/// calls.
fn timeline(client: &mut Connection, rows: &[(&str, [i64; 5])]) {
    let calls = rows.iter().map(|(words, _)| words);
    let replies: Vec<[i64; 5]> = pipe(calls).atomic().query(client).expect("replies");
    assert_eq!(replies.len(), rows.len());
    for ((words, expected), (row, reply)) in rows.iter().zip(replies.iter().enumerate()) {
        assert_eq!(reply, expected, "row {row}: {words}");
    }
}

/// The same for calls that come a while after those that their replies depend on: the seconds may be up to twenty fewer.
fn later(client: &mut Connection, rows: &[(&str, [i64; 5])]) {
    for (words, expected) in rows {
        let reply = limit(client, words);
        let alike = |place: usize| reply[place] == expected[place] || (1..=20).contains(&(expected[place] - reply[place]));
        assert!(reply[..3] == expected[..3] && alike(3) && alike(4), "{words}: {reply:?}, not {expected:?}");
    }
}

#[test]
fn replies_are_those_that_users_of_redis_cell_know() {
    let server = both(&[]);
    timeline(
        &mut server.client(),
        &[
            ("CL.THROTTLE user 15 30 60", [0, 16, 15, -1, 2]),
            ("CL.THROTTLE key 4 1 10", [0, 5, 4, -1, 10]),
            ("CL.THROTTLE key 4 1 10", [0, 5, 3, -1, 20]),
            ("CL.THROTTLE key 4 1 10", [0, 5, 2, -1, 30]),
            ("CL.THROTTLE key 4 1 10", [0, 5, 1, -1, 40]),
            ("CL.THROTTLE key 4 1 10", [0, 5, 0, -1, 50]),
            ("CL.THROTTLE key 4 1 10", [1, 5, 0, 10, 50]),
            ("CL.THROTTLE key 4 1 10 5", [1, 5, 0, 50, 50]),
            ("CL.THROTTLE key 4 1 10 6", [1, 5, 0, -1, 50]),
            // All units at once, and one more than ever fits: the reply is -1, whether anything is used or not.
            ("CL.THROTTLE all 4 1 10 5", [0, 5, 0, -1, 50]),
            ("CL.THROTTLE all 4 1 10 2", [1, 5, 0, 20, 50]),
            ("CL.THROTTLE none 4 1 10 6", [1, 5, 5, -1, 0]),
            ("cl.throttle none 4 1 10 1000000000000", [1, 5, 5, -1, 0]),
            // Without a burst: one unit at a time.
            ("CL.THROTTLE single 0 1 60", [0, 1, 0, -1, 60]),
            ("CL.THROTTLE single 0 1 60", [1, 1, 0, 60, 60]),
            // Parts of a second are rounded up: no reply says to come back in 0 seconds.
            ("CL.THROTTLE half 0 2 1", [0, 1, 0, -1, 1]),
            ("CL.THROTTLE half 0 2 1", [1, 1, 0, 1, 1]),
            ("CL.THROTTLE third 1 3 4", [0, 2, 1, -1, 2]),
            ("CL.THROTTLE third 1 3 4", [0, 2, 0, -1, 3]),
            ("CL.THROTTLE third 1 3 4", [1, 2, 0, 2, 3]),
            // Fast rates and large numbers are exact.
            ("CL.THROTTLE fast 6000 6000 1 0", [0, 6001, 6001, -1, 0]),
            ("CL.THROTTLE fast 6000 1 60 1", [0, 6001, 6000, -1, 60]),
            ("CL.THROTTLE odd 2 3 1 3", [0, 3, 0, -1, 1]),
            (
                "CL.THROTTLE most 999999999999 1000000000000 315360000 1000000000000",
                [0, 1_000_000_000_000, 0, -1, 315_360_000],
            ),
            // GCRA replies alike, and takes parts of a second.
            ("GCRA other_user 15 30 60", [0, 16, 15, -1, 2]),
            ("GCRA tokens 4 1 10 TOKENS 5", [0, 5, 0, -1, 50]),
            ("GCRA tokens 4 1 10.0", [1, 5, 0, 10, 50]),
            ("GCRA tokens 4 1 10 tokens 6", [1, 5, 0, -1, 50]),
            ("gcra parts 0 1 0.5", [0, 1, 0, -1, 1]),
            ("gcra parts 0 1 0.5", [1, 1, 0, 1, 1]),
            ("GCRA two 1 1 2.5 TOKENS 2", [0, 2, 0, -1, 5]),
            ("GCRA two 1 1 2.5", [1, 2, 0, 3, 5]),
            // As clients write a floating-point number.
            ("GCRA thirds 1 3 3.3333333333333335 TOKENS 2", [0, 2, 0, -1, 3]),
            ("GCRA tenth 0 1 1e-1", [0, 1, 0, -1, 1]),
            ("GCRA long 0 1 1.0E7", [0, 1, 0, -1, 10_000_000]),
            ("GCRA long 0 1 .1e8", [1, 1, 0, 10_000_000, 10_000_000]),
        ],
    );
    let report: Vec<redis::Value> = call(&mut server.client(), "RL.INSPECT thirds");
    assert_eq!(report[5], redis::Value::BulkString(b"3333.333".to_vec()), "{report:?}");
}

#[test]
fn a_negative_quantity_gives_back_and_never_more_than_is_used() {
    let (_server, mut client) = both(&[]).and_client();
    timeline(
        &mut client,
        &[
            ("CL.THROTTLE key 4 1 10 -1", [0, 5, 5, -1, 0]),
            ("CL.THROTTLE key 4 1 10 3", [0, 5, 2, -1, 30]),
            ("CL.THROTTLE key 4 1 10 -1", [0, 5, 3, -1, 20]),
            ("CL.THROTTLE key 4 1 10 -1000000000000", [0, 5, 5, -1, 0]),
            ("CL.THROTTLE key 4 1 10", [0, 5, 4, -1, 10]),
        ],
    );
    assert!(call::<i64>(&mut client, "PTTL key") > 0);
    timeline(
        &mut client,
        &[("CL.THROTTLE key 4 1 10 -5", [0, 5, 5, -1, 0]), ("CL.THROTTLE key 4 1 10 -0", [0, 5, 5, -1, 0])],
    );
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 0);
}

#[test]
fn a_grant_replicates_its_effect() {
    let server = both_on_port(&["--appendonly", "yes", "--appendfsync", "always"]);
    let replica = server.replica(&BOTH);
    let mut client = server.client();
    for words in [
        "CL.THROTTLE cell 4 1 86400 2",
        "CL.THROTTLE cell 4 1 86400 -1",
        "CL.THROTTLE gone 4 1 86400",
        "CL.THROTTLE gone 4 1 86400 -1",
        "GCRA tokens 4 1 86400 TOKENS 3",
    ] {
        assert_eq!(limit(&mut client, words)[0], 0, "{words}");
    }
    call::<i64>(&mut client, "WAIT 1 50000");
    let both = ["cell", "tokens"].map(|key| snapshot(&mut client, key));
    assert_eq!(["cell", "tokens"].map(|key| snapshot(&mut replica.client(), key)), both);
    assert!(both.iter().all(|key| key.value.is_some() && key.deadline_ms > 0), "{both:?}");
    for server in [&server, &replica] {
        assert_eq!(call::<i64>(&mut server.client(), "DBSIZE"), 2);
        let stats: String = call(&mut server.client(), "INFO commandstats");
        let calls = stats.contains("cmdstat_cl.throttle") || stats.contains("cmdstat_gcra");
        assert_eq!(calls, !std::ptr::eq(server, &replica), "only the primary executes the command: {stats}");
    }
    call::<()>(&mut client, "DEBUG LOADAOF");
    assert_eq!(["cell", "tokens"].map(|key| snapshot(&mut client, key)), both);
}

#[test]
fn keys_of_redis_cell_are_read_in_place() {
    let (server, mut client) = both(&[]).and_client();
    let (seconds, us): (i64, i64) = call(&mut client, "TIME");
    // The value that redis-cell leaves when 2.5 of the 5 units are used.
    let tat_ns = (seconds * 1_000_000 + us) * 1_000 + 2_500_000_000_000;
    for key in ["cell", "gcra", "tokens", "full"] {
        let ahead_ns = if key == "full" { 2_500_000_000_000 } else { 0 };
        call::<()>(&mut client, &format!("SET {key} {} PX 6000000", tat_ns + ahead_ns));
    }
    later(
        &mut client,
        &[
            ("CL.THROTTLE cell 4 1 1000 0", [0, 5, 2, -1, 2500]),
            ("CL.THROTTLE full 4 1 1000 0", [0, 5, 0, -1, 5000]),
            ("CL.THROTTLE full 4 1 1000", [1, 5, 0, 1000, 5000]),
            ("GCRA full 4 1 1000", [1, 5, 0, 1000, 5000]),
        ],
    );
    // Reads and denials leave the value as it is, for other readers.
    assert_eq!(call::<i64>(&mut client, "GET cell"), tat_ns);
    assert_eq!(call::<i64>(&mut client, "GET full"), tat_ns + 2_500_000_000_000);
    assert_eq!(limit(&mut client, "RL.PEEK GCRA cell 1 1000 BURST 5")[..3], [1, 5, 2]);
    assert_eq!(call::<i64>(&mut client, "GET cell"), tat_ns);
    later(
        &mut client,
        &[
            ("CL.THROTTLE cell 4 1 1000", [0, 5, 1, -1, 3500]),
            ("CL.THROTTLE cell 4 1 1000 2", [1, 5, 1, 500, 3500]),
            ("GCRA tokens 4 1 1000", [0, 5, 1, -1, 3500]),
        ],
    );
    assert_eq!(limit(&mut client, "RL.GCRA gcra 1 1000 BURST 5 COST 2")[..3], [2, 5, 0]);
    for key in ["cell", "gcra", "tokens"] {
        assert_eq!(call::<i64>(&mut client, &format!("STRLEN {key}")), 28, "{key}");
        assert!((1..=4_600_000).contains(&call::<i64>(&mut client, &format!("PTTL {key}"))), "{key}");
    }

    let report = server.cli(&[], &["RL.INSPECT", "full"]);
    let tat_ms = (tat_ns + 2_500_000_000_000 + 999_999) / 1_000_000;
    assert!(report.contains("GCRA") && report.contains(&format!("tat_ms\n{tat_ms}")), "{report}");

    // A value whose time is over, or that has lost its deadline, counts as no value.
    for value in [tat_ns - 3_600_000_000_000, 1_000_000_000_000_000_000] {
        call::<()>(&mut client, &format!("SET old {value}"));
        timeline(&mut client, &[("CL.THROTTLE old 4 1 10", [0, 5, 4, -1, 10])]);
        assert!(call::<i64>(&mut client, "PTTL old") > 0);
    }

    // A client that waits for such a key is granted when the time in the value is over.
    call::<()>(&mut client, &format!("SET waited {} PX 6000000", tat_ns + 2_500_000_000_000));
    let waiter = Held::send(&server, "RL.GCRA waited 1 1000 BURST 5 BLOCK 1d");
    assert_eq!(held(&mut client), 1);
    assert_eq!(limit(&mut client, "CL.THROTTLE waited 4 1 1000 -2")[..3], [0, 5, 2]);
    assert_eq!(waiter.row()[..3], [1, 5, 1]);
}

#[test]
fn keys_of_any_bytes_are_charged_and_other_commands_read_no_value_of_redis_cell() {
    let (_server, mut client) = both(&[]).and_client();
    call::<()>(&mut client, "SET key 1800000000000000000");
    for name in ["FIXED", "SLIDE", "BUCKET"] {
        assert!(error(&mut client, &command(&format!("RL.{name} key 10 60"))).starts_with("WRONGTYPE"), "{name}");
    }
    let reply: Vec<i64> = redis::cmd("CL.THROTTLE").arg(b"\xff\xfe\0").arg(&[4, 1, 10]).query(&mut client).expect("a reply");
    assert_eq!(reply, [0, 5, 4, -1, 10]);
}

#[test]
fn every_error_names_what_is_wrong_and_changes_nothing() {
    const BURST: &str = "ERR max_burst must be a whole number from 0 to 999999999999";
    const COUNT: &str = "ERR count_per_period must be a whole number from 1 to 1000000000000";
    const PERIOD: &str = "ERR period must be a whole number from 1 to 315360000";
    const QUANTITY: &str = "ERR quantity must be a whole number from -1000000000000 to 1000000000000";
    const INTEGER_BURST: &str = "ERR max_burst is not an integer or out of range: it must be from 0 to 999999999999";
    const TOKENS_PER_PERIOD: &str =
        "ERR tokens_per_period is not an integer or out of range: it must be from 1 to 1000000000000";
    const SECONDS: &str = "ERR period must be > 0: from 0.001 to 315360000 seconds";
    const TOKENS: &str = "ERR TOKENS is not an integer or out of range: it must be from 1 to 1000000000000";

    let (_server, mut client) = both(&[]).and_client();
    call::<()>(&mut client, "CL.THROTTLE key 4 1 10");
    let before = snapshot(&mut client, "key");
    for (words, text) in [
        ("CL.THROTTLE key -1 1 10", BURST),
        ("CL.THROTTLE key four 1 10", BURST),
        ("CL.THROTTLE key 4.0 1 10", BURST),
        ("CL.THROTTLE key 1000000000000 1 10", BURST),
        ("CL.THROTTLE key 9223372036854775807 1 10", BURST),
        ("CL.THROTTLE key 99999999999999999999999 1 10", BURST),
        ("CL.THROTTLE key 4 0 10", COUNT),
        ("CL.THROTTLE key 4 -1 10", COUNT),
        ("CL.THROTTLE key 4 x 10", COUNT),
        ("CL.THROTTLE key 4 1000000000001 10", COUNT),
        ("CL.THROTTLE key 4 1 0", PERIOD),
        ("CL.THROTTLE key 4 1 -10", PERIOD),
        ("CL.THROTTLE key 4 1 0.5", PERIOD),
        ("CL.THROTTLE key 4 1 10s", PERIOD),
        ("CL.THROTTLE key 4 1 315360001", PERIOD),
        ("CL.THROTTLE key 4 1 18446744073709551615", PERIOD),
        ("CL.THROTTLE key 4 1 10 x", QUANTITY),
        ("CL.THROTTLE key 4 1 10 -", QUANTITY),
        ("CL.THROTTLE key 4 1 10 --1", QUANTITY),
        ("CL.THROTTLE key 4 1 10 1.5", QUANTITY),
        ("CL.THROTTLE key 4 1 10 1000000000001", QUANTITY),
        ("CL.THROTTLE key 4 1 10 -1000000000001", QUANTITY),
        ("CL.THROTTLE key 4 1 10 -9223372036854775808", QUANTITY),
        ("CL.THROTTLE other 999999999999 1 315360000 1000000000000", "ERR the result is too large for a limiter's record"),
        // These texts have the words that the tests of Redis itself expect of GCRA, such as "out of range".
        ("GCRA key -1 1 10", INTEGER_BURST),
        ("GCRA key four 1 10", INTEGER_BURST),
        ("GCRA key 4 0 10", TOKENS_PER_PERIOD),
        ("GCRA key 4 -1 10", TOKENS_PER_PERIOD),
        ("GCRA key 4 x 10", TOKENS_PER_PERIOD),
        ("GCRA key 4 1 0", SECONDS),
        ("GCRA key 4 1 -1", SECONDS),
        ("GCRA key 4 1 -1.5", SECONDS),
        ("GCRA key 4 1 0.0009", SECONDS),
        ("GCRA key 4 1 315360001", SECONDS),
        ("GCRA key 4 1 x", "ERR period is not a valid float: it must be a number of seconds"),
        ("GCRA key 4 1 10 TOKENS 0", TOKENS),
        ("GCRA key 4 1 10 TOKENS -1", TOKENS),
        ("GCRA key 4 1 10 TOKENS x", TOKENS),
        ("GCRA key 4 1 10 TOKENS 1000000000001", TOKENS),
    ] {
        assert_eq!(error(&mut client, &command(words)), text, "{words}");
    }
    assert_eq!(snapshot(&mut client, "key"), before);
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 1);
}

#[test]
fn it_shares_its_keys_with_rl_gcra() {
    let (_server, mut client) = both(&[]).and_client();
    later(
        &mut client,
        &[
            ("CL.THROTTLE key 4 1 1000", [0, 5, 4, -1, 1000]),
            ("GCRA key 4 1 1000", [0, 5, 3, -1, 2000]),
            // Both commands report the same in different units.
            ("RL.GCRA none 1 1000 BURST 5 COST 6", [0, 5, 5, -1, 0]),
        ],
    );
    assert_eq!(limit(&mut client, "RL.GCRA key 1 1000 BURST 5 COST 2")[..3], [2, 5, 1]);
    assert_eq!(limit(&mut client, "RL.GCRA key 1 1000 BURST 5 FORCE 2")[..3], [2, 5, 0]);
    later(
        &mut client,
        &[
            // Of a debt, PEEK reports how much it is, and a call how long it lasts.
            ("CL.THROTTLE key 4 1 1000", [1, 5, 0, 2000, 6000]),
            ("CL.THROTTLE key 4 1 1000 0", [0, 5, 0, -1, 6000]),
            ("CL.THROTTLE key 4 1 1000 -3", [0, 5, 2, -1, 3000]),
        ],
    );
    let report = ["limit", "period_ms", "burst", "used"].map(|name| inspect(&mut client, "key", name));
    assert_eq!(report, [1, 1_000_000, 5, 3].map(Some));
}

#[test]
fn no_call_passes_the_waiters() {
    let (server, mut client) = both(&[]).and_client();
    limit(&mut client, "RL.GCRA key 10 1000 COST 5");
    let waiter = Held::send(&server, "RL.GCRA key 10 1000 COST 8 BLOCK 1000");
    assert_eq!(held(&mut client), 1);
    let before = snapshot(&mut client, "key");
    later(
        &mut client,
        &[
            ("CL.THROTTLE key 9 10 1000", [1, 10, 5, 1, 500]),
            ("GCRA key 9 10 1000", [1, 10, 5, 1, 500]),
            ("CL.THROTTLE key 9 10 1000 6", [1, 10, 5, 100, 500]),
            ("CL.THROTTLE key 9 10 1000 11", [1, 10, 5, -1, 500]),
            ("CL.THROTTLE key 9 10 1000 0", [0, 10, 5, -1, 500]),
        ],
    );
    assert_eq!(snapshot(&mut client, "key"), before);
    // A refund takes effect at once.
    assert_eq!(limit(&mut client, "CL.THROTTLE key 9 10 1000 -3")[..3], [0, 10, 8]);
    assert_eq!(waiter.row()[..3], [8, 10, 0]);
    assert_eq!(limit(&mut client, "CL.THROTTLE key 9 10 1000")[..3], [1, 10, 0]);
}

#[test]
fn it_decides_as_rl_gcra_does() {
    let server = both(&[]);
    let client = RefCell::new(server.client());
    let small = || prop_oneof![1..=50_i64, 1..=1_000_000_000_000_i64];
    let step = (prop_oneof![4 => 1..=60_i64, 1 => small()], 1..=4_u8);
    let cases = (small(), 1..=100_000_i64, small(), prop::collection::vec(step, 1..12));
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let result = runner.run(&cases, |(count, period, capacity, steps)| {
        let client = &mut *client.borrow_mut();
        call::<()>(client, "FLUSHALL");
        // A time longer than the range of the server's clock is an error.
        prop_assume!(i128::from(capacity) * i128::from(period) < 100_000_000_000 * i128::from(count));
        for (quantity, kind) in steps {
            let burst = capacity - 1;
            let words = match kind {
                1 => format!("GCRA key {burst} {count} {period} TOKENS {quantity}"),
                _ => format!("CL.THROTTLE key {burst} {count} {period} {quantity}"),
            };
            let peek = |amount: i64| format!("RL.PEEK GCRA key {count} {period} BURST {capacity} COST {amount}");
            let start = Instant::now();
            let replies = pipe([&peek(quantity), &words, &peek(1)]).atomic().query(client);
            let [before, reply, after]: [[i64; 5]; 3] = replies.expect("replies");
            // At most so much time is between the three calls. What drains meanwhile is known to a unit.
            let apart_ms = i64::try_from(start.elapsed().as_millis()).expect("a short time") + 1;
            let drained =
                i64::try_from(i128::from(apart_ms) * i128::from(count) / i128::from(period * 1_000)).expect("units") + 1;
            let seconds = |ms: i64| (ms.max(0) + 999) / 1_000;

            let [limited, total, remaining, retry_after, reset_after] = reply;
            prop_assert_eq!(total, capacity);
            prop_assert!((after[2] - drained..=after[2]).contains(&remaining), "{}: {:?}, {:?}", words, reply, after);
            prop_assert!((seconds(after[4])..=seconds(after[4] + apart_ms)).contains(&reset_after));
            if limited == 0 {
                prop_assert_eq!(retry_after, -1);
                // The unit may have become free only just now.
                prop_assert!(before[0] == quantity || (0..=apart_ms).contains(&before[3]), "{}: {:?}", words, before);
            } else {
                prop_assert_eq!((limited, before[0]), (1, 0), "{}", words);
                match before[3] {
                    -1 => prop_assert_eq!(retry_after, -1),
                    wait_ms => prop_assert!((seconds(wait_ms - apart_ms).max(1)..=seconds(wait_ms)).contains(&retry_after)),
                }
            }
            let ttl: i64 = call(client, "PTTL key");
            prop_assert!(ttl == -2 || ttl >= 0, "a key without a deadline");
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_taken_command_name_stays_with_its_owner() {
    // A command of the server takes the place of one of another module, or of one that a future server has built in.
    for (taken, free) in [("cl.throttle", "GCRA"), ("gcra", "CL.THROTTLE")] {
        let (server, mut client) = both(&["--rename-command", "ECHO", taken, "--loglevel", "notice"]).and_client();
        assert_eq!(call::<String>(&mut client, &format!("{taken} hello")), "hello");
        assert_eq!(limit(&mut client, &format!("{free} key 4 1 10")), [0, 5, 4, -1, 10]);
        assert_eq!(limit(&mut client, "RL.GCRA key 1 10 BURST 5")[..3], [1, 5, 3]);
        let help = call::<Vec<String>>(&mut client, "RL.HELP").join("\n").to_lowercase();
        assert!(
            help.contains(&format!("\n{} key", free.to_lowercase())) && !help.contains(&format!("\n{taken} key")),
            "{help}"
        );
        let log = server.log();
        assert!(log.contains(&format!("redis-rl does not provide the command {taken}: the server has one")), "{log}");
    }
}

#[test]
fn the_compat_commands_are_configured() {
    let offered = |options: &[&str]| -> Vec<String> {
        let server = Server::with(options);
        let mut commands: Vec<String> = call(&mut server.client(), "COMMAND LIST FILTERBY MODULE rl");
        commands.retain(|name| !name.starts_with("rl."));
        commands.sort();
        commands
    };
    assert_eq!(offered(&[]), ["cl.throttle"]);
    assert_eq!(offered(&["--rl.compat", "none"]), [""; 0]);
    assert_eq!(offered(&["compat", "gcra"]), ["gcra"]);
    assert_eq!(offered(&BOTH), ["cl.throttle", "gcra"]);
}

// ---- Clients of redis-cell, unmodified ----

/// The policy of redis-cell's own example.
const CLASSIC: Policy = Policy::new(15, 30, Duration::from_secs(60), 1);
const FIVE_OF_TEN_SECONDS: Policy = Policy::from_tokens_per_period(1, Duration::from_secs(10)).max_burst(4);

fn allowed(verdict: Verdict) -> (usize, usize, u64) {
    match verdict {
        Verdict::Allowed(AllowedDetails { total, remaining, reset_after, .. }) => (total, remaining, reset_after),
        Verdict::Blocked(details) => panic!("{details:?}"),
    }
}

fn blocked(verdict: Verdict) -> (usize, usize, u64, u64) {
    match verdict {
        Verdict::Blocked(BlockedDetails { total, remaining, reset_after, retry_after, .. }) => {
            (total, remaining, reset_after, retry_after)
        }
        Verdict::Allowed(details) => panic!("{details:?}"),
    }
}

#[test]
fn the_client_redis_cell_rs() {
    let server = Server::start();
    for resp in [Resp::Two, Resp::Three] {
        let mut client = server.client_of(resp);
        call::<()>(&mut client, "FLUSHALL");
        let mut call = |key: &Key<'_>, policy: &Policy| -> Verdict {
            redis::Cmd::from(Cmd::new(key, policy)).query(&mut client).expect("a verdict")
        };
        for key in [Key::from("user123"), Key::from(42_usize), Key::pair("user123", "/api"), Key::triple("a", "b", "c")] {
            assert_eq!(allowed(call(&key, &CLASSIC)), (16, 15, 2), "{key}");
        }
        let key = Key::from("five");
        for used in 1..=5 {
            assert_eq!(allowed(call(&key, &FIVE_OF_TEN_SECONDS)), (5, 5 - used, 10 * used as u64));
        }
        assert_eq!(blocked(call(&key, &FIVE_OF_TEN_SECONDS)), (5, 0, 50, 10));
        assert_eq!(blocked(call(&key, &FIVE_OF_TEN_SECONDS.apply_tokens(5))), (5, 0, 50, 50));
        // With nothing applied, the reply shows the present state.
        assert_eq!(allowed(call(&key, &FIVE_OF_TEN_SECONDS.apply_tokens(0))), (5, 0, 50));
        assert_eq!(allowed(call(&Key::from("new"), &Policy::from_tokens_per_second(3))), (1, 0, 1));
    }
}

/// A request: its user, if that is known, and whether there is a rule for it.
struct Request {
    user: Option<&'static str>,
    ruled: bool,
}

#[derive(Clone)]
struct PerUser;

impl ProvideRule<Request> for PerUser {
    fn provide<'a>(&self, request: &'a Request) -> ProvideRuleResult<'a> {
        if !request.ruled {
            return Ok(None);
        }
        let user = request.user.ok_or("the request has no user")?;
        Ok(Some(Rule::new(Key::pair(user, "articles"), FIVE_OF_TEN_SECONDS.apply_tokens(2)).resource("articles::write")))
    }
}

#[test]
fn the_client_tower_redis_cell() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = redis::Client::open(format!("redis+unix://{}", server.socket().display())).expect("an address");
        let connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let config = RateLimitConfig::new(PerUser, |error: Error<'_>, _: &Request| match error {
            Error::RateLimit(blocked) => {
                let BlockedDetails { total, remaining, reset_after, retry_after, .. } = blocked.details;
                format!("{}: blocked {total} {remaining} {reset_after} {retry_after}", blocked.rule.key)
            }
            error => format!("error: {error}"),
        })
        .on_success(|allowed, response: &mut String| {
            let AllowedDetails { total, remaining, reset_after, .. } = allowed.details;
            *response += &format!(": allowed {total} {remaining} {reset_after} for {:?}", allowed.resource);
        })
        .on_unruled(|response: &mut String| *response += ": no rule");
        let service = service_fn(|request: Request| async move {
            Ok::<_, std::convert::Infallible>(request.user.unwrap_or("nobody").to_string())
        });
        let service = RateLimitLayer::new(config, connection).layer(service);
        for (user, ruled, expected) in [
            (Some("ada"), true, "ada: allowed 5 3 20 for Some(\"articles::write\")"),
            (Some("ada"), true, "ada: allowed 5 1 40 for Some(\"articles::write\")"),
            (Some("ada"), true, "(ada, articles): blocked 5 1 40 10"),
            (Some("bob"), true, "bob: allowed 5 3 20 for Some(\"articles::write\")"),
            (Some("ada"), false, "ada: no rule"),
            (None, true, "error: rule: failed to provide rule: the request has no user"),
        ] {
            let response = service.clone().oneshot(Request { user, ruled }).await.expect("a response");
            assert_eq!(response, expected);
        }
    });
}
