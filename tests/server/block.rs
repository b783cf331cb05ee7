//! `BLOCK`: clients that wait are granted in turn and on time, and leave nothing behind when they disconnect.

use redis::{Connection, Value};
use support::witness::{timed, Watched, A_FEW, MAX_LATENESS_US};
use support::{
    assert_same, at_once, call, command, error, held, limit, pipe, replies, snapshots, time_us, wait_for, AtOnce, Held,
    Load, Reply, Resp, Server, LIMITERS,
};

/// A millisecond. All times of the server's clock are in microseconds.
const MS: i64 = 1_000;

/// Makes a call that uses up a key: for a day, no unit is free.
fn exhaust(client: &mut Connection, words: &str) {
    assert!(limit(client, words)[0] > 0, "{words}");
}

// ---- The order and the time of grants ----

/// Has many clients make the same call, in a known order.
fn same_calls(server: &Server, clients: usize, words: &str) -> AtOnce {
    at_once(server, std::iter::repeat_n(words, clients))
}

/// Panics unless the first is granted between two times, and each next one a gap after the one before it was due, however late that
/// one was. But lateness of more than MAX_LATENESS_US is not compensated.
fn assert_paced(server: &Watched, what: &str, replies: &[Reply], (mut earliest, mut latest): (i64, i64), gap_us: i64) {
    for (index, reply) in replies.iter().enumerate() {
        let (what, at) = (format!("{what}: client {index}"), reply.at_us());
        assert!(at >= earliest, "{what} is {} us early", earliest - at);
        server.assert_not_late(&what, latest, at, A_FEW);
        (earliest, latest) = (earliest + gap_us, latest.max(at - MAX_LATENESS_US) + gap_us);
    }
}

#[test]
fn two_hundred_clients_at_a_hundred_a_second_are_granted_in_turn_and_on_time() {
    const GAP_US: i64 = 10 * MS;
    let server = Watched::start();
    for (key, words) in
        [("gcra", "RL.GCRA gcra 100 1 BURST 1 BLOCK 30"), ("bucket", "RL.BUCKET bucket 100 1 CAPACITY 1 BLOCK 30")]
    {
        let AtOnce { held, from_us, to_us } = same_calls(&server, 200, words);
        let replies = replies(held);
        for (index, reply) in replies.iter().enumerate() {
            assert_eq!(reply.row.as_ref().expect("a grant")[..4], [1, 1, 0, 0], "{words}, client {index}");
        }
        assert_paced(&server, words, &replies, (from_us, to_us), GAP_US);
        // The first client did not wait.
        server.assert_in_turn(&server.events(&format!("rl.{key}"), key)[1..], &replies[1..]);
    }
}

#[test]
fn each_window_grants_as_many_waiting_clients_as_fit() {
    const PERIOD_US: i64 = 200 * MS;
    let server = Watched::start();
    for (key, words) in [("fixed", "RL.FIXED fixed 20 200ms BLOCK 30"), ("slide", "RL.SLIDE slide 20 200ms BLOCK 30")] {
        let AtOnce { held, from_us, to_us } = same_calls(&server, 100, words);
        let replies = replies(held);
        let (mut earliest, mut latest) = (from_us, to_us);
        for (window, replies) in replies.chunks(20).enumerate() {
            let mut last = latest;
            for (index, reply) in replies.iter().enumerate() {
                assert_eq!(reply.granted(), 1);
                let (what, at) = (format!("{words}: client {index} of window {window}"), reply.at_us());
                assert!(at >= earliest, "{what} is {} us early", earliest - at);
                server.assert_not_late(&what, latest, at, A_FEW);
                last = last.max(at);
            }
            // The next window begins a period after this one.
            (earliest, latest) = (earliest + PERIOD_US, last + PERIOD_US);
        }
        // The clients of the first window did not wait.
        server.assert_in_turn(&server.events(&format!("rl.{key}"), key)[20..], &replies[20..]);
    }
}

#[test]
fn each_is_granted_its_own_amount_by_its_own_policy() {
    let server = Watched::start();
    // A unit drains every 100 ms.
    let AtOnce { mut held, from_us, to_us } = at_once(
        &server,
        [
            "RL.BUCKET key 10 1 CAPACITY 6 COST 6",
            "RL.BUCKET key 10 1 CAPACITY 6 COST 5 BLOCK 10",
            "RL.BUCKET key 10 1 CAPACITY 6 UPTO 5 BLOCK 10",
            // Under this policy, ten units drain in the time in which five did before.
            "RL.BUCKET key 20 1 CAPACITY 6 COST 4 BLOCK 10",
            "RL.BUCKET key 10 1 CAPACITY 6 BLOCK 10",
        ],
    );
    assert_eq!(held.remove(0).row()[0], 6);
    let replies = replies(held);
    assert_eq!(replies.iter().map(Reply::granted).collect::<Vec<_>>(), [5, 1, 4, 1]);
    server.assert_in_turn(&server.events("rl.bucket", "key")[1..], &replies);
    // Five units and one drain in 100 ms each, four in 50 ms each, and the rest of the third call drains at its own rate
    // until the last grant. Usage under another policy counts as of now, so that the last two grants are as late as those
    // before them.
    let (mut due_us, mut latest) = (from_us, to_us);
    for (index, (reply, gap_ms)) in replies.iter().zip([500, 100, 200, 50]).enumerate() {
        (due_us, latest) = (due_us + gap_ms * MS, latest + gap_ms * MS);
        let at = reply.at_us();
        assert!(at >= due_us, "{index}: {} us early", due_us - at);
        server.assert_not_late(&index.to_string(), latest, at, A_FEW);
        latest = latest.max(at);
    }
}

#[test]
fn replies_are_alike_in_both_protocols() {
    let (server, mut control) = Server::start().and_client();
    exhaust(&mut control, "RL.GCRA slow 1 1d");
    for resp in [Resp::Two, Resp::Three] {
        call::<()>(&mut control, "DEL key");
        exhaust(&mut control, "RL.GCRA key 2 1 BURST 1");
        let mut held = Held::prepare(&server, resp).call(&mut control, "RL.GCRA key 2 1 BURST 1 BLOCK 30");
        // A timer that is late shortens the half second after which nothing is used.
        let row = held.reply().row.expect("a grant");
        assert!(row[..4] == [1, 1, 0, 0] && (400..=500).contains(&row[4]), "{row:?}");
        let mut held = Held::prepare(&server, resp).call(&mut control, "RL.GCRA slow 1 1d BLOCK 10ms");
        assert_eq!(held.reply().row.expect("a denial")[..3], [0, 1, 0]);
        assert_eq!(call::<String>(held.connection(), "PING"), "PONG");
    }
}

#[test]
fn calls_pipelined_behind_a_wait_come_after_it() {
    let server = Server::start();
    let waits = ["RL.GCRA key 20 1 BURST 1 BLOCK 30", "TIME"].repeat(3);
    let replies: Vec<Vec<i64>> = pipe(["TIME"].into_iter().chain(waits)).query(&mut server.client()).expect("replies");
    assert_eq!(replies.len(), 7);
    assert!(replies.iter().skip(1).step_by(2).all(|row| row.len() == 5 && row[0] == 1), "{replies:?}");
    let times: Vec<i64> = replies.iter().step_by(2).map(|time| time[0] * 1_000_000 + time[1]).collect();
    assert!(times[2] >= times[0] + 50 * MS && times[3] >= times[0] + 100 * MS, "{times:?}");
}

// ---- Calls that do not wait ----

#[test]
fn no_call_passes_the_queue() {
    let (server, mut client) = Server::start().and_client();
    let policies = ["RL.FIXED key 10 12h", "RL.SLIDE key 10 12h", "RL.GCRA key 10 12h", "RL.BUCKET key 10 12h CAPACITY 10"];
    for policy in policies {
        call::<()>(&mut client, "FLUSHALL");
        exhaust(&mut client, &format!("{policy} COST 7"));
        let day = limit(&mut client, &format!("{policy} COST 10"))[3];
        let first = Held::send(&server, &format!("{policy} COST 9 BLOCK 1d"));
        let before = snapshots(&mut client);
        // Three units are free, but the first client in the queue waits for nine.
        for words in ["COST 1", "UPTO 3", "COST 1 RESERVE 1d", "UPTO 3", "COST 9"] {
            let row = limit(&mut client, &format!("{policy} {words}"));
            assert!(row[0] == 0 && row[2] == 3 && (1..=day).contains(&row[3]), "{policy} {words}: {row:?}");
        }
        assert_eq!(limit(&mut client, &format!("{policy} COST 11"))[3], -1);
        let (name, rest) = policy.strip_prefix("RL.").and_then(|words| words.split_once(" key ")).expect("a policy");
        let row = limit(&mut client, &format!("RL.PEEK {name} key {rest}"));
        assert!(row[0] == 0 && row[2] == 3 && row[3] >= 1, "{row:?}");
        let all = format!("RL.ALL 2 key other {name} {rest} FIXED 5 60");
        let (granted, wait, rows): (i64, i64, Vec<Vec<i64>>) = call(&mut client, &all);
        assert!(granted == 0 && wait >= 1 && rows[0][0] == 0 && rows[1][0] == 1, "{all}: {rows:?}");
        // A call with BLOCK goes to the end of the queue.
        let second = Held::send(&server, &format!("{policy} COST 1 BLOCK 1d"));
        assert_eq!(held(&mut client), 2);
        assert_same(&before, &snapshots(&mut client));

        // Calls that can't wait are executed at once.
        assert_eq!(limit(&mut client, &format!("{policy} FORCE 1"))[0], 1);
        assert_eq!(held(&mut client), 2);
        assert_eq!(limit(&mut client, &format!("{policy} REFUND 7"))[0], 7);
        assert_eq!(first.row()[0], 9, "{policy}");
        assert_eq!(
            held(&mut client),
            1,
            "one unit was used, and the first client took the other nine, so the second client still waits"
        );
        assert_eq!(limit(&mut client, &format!("{policy} REFUND 2"))[0], 2);
        assert_eq!(second.row()[0], 1, "{policy}");
        // When the queue is empty, any call gets the last unit.
        assert_eq!(limit(&mut client, policy)[..3], [1, 10, 0]);
    }
}

#[test]
fn a_crowd_of_both_kinds_gets_what_the_limit_allows() {
    let server = Watched::start();
    let load = Load::default();
    let start = time_us(&mut server.client());
    let grants: Vec<Vec<(i64, i64)>> = std::thread::scope(|scope| {
        let _end = load.ends_here();
        let worker = |words: &'static str| {
            let (server, load) = (&server, &load);
            scope.spawn(move || {
                let mut client = server.client();
                let mut grants = Vec::new();
                while load.goes_on() {
                    let (row, _, at) = timed(&mut client, words);
                    grants.push((at, row[0]));
                }
                grants
            })
        };
        // So many clients wait that the queue is never empty while the granted clients call again.
        let waiting: Vec<_> = (0..30).map(|_| worker("RL.GCRA key 100 1 BURST 5 BLOCK 30")).collect();
        wait_for("a queue", || held(&mut server.client()) >= 20);
        let passing: Vec<_> = (0..2).map(|_| worker("RL.GCRA key 100 1 BURST 5 UPTO 5")).collect();
        let mut client = server.client();
        wait_for("a second to pass", || time_us(&mut client) > start + 1_000 * MS);
        load.end();
        [waiting, passing].map(|kind| kind.into_iter().flat_map(|worker| worker.join().expect("grants")).collect()).into()
    });
    let all: Vec<_> = grants.iter().flatten().filter(|(_, units)| *units > 0).collect();
    let (first, last) =
        (all.iter().map(|(at, _)| at).min().expect("some"), all.iter().map(|(at, _)| at).max().expect("some"));
    let units = |grants: &[(i64, i64)]| grants.iter().map(|(_, units)| units).sum::<i64>();
    let (waiting, passing) = (units(&grants[0]), units(&grants[1]));
    let most = 5 + (last - start) / (10 * MS);
    assert!(waiting + passing <= most, "{waiting} and {passing} of {most}");
    let least = (last - first - server.lost_us(*first, *last)) / (10 * MS) * 9 / 10;
    assert!(waiting + passing >= least, "{waiting} and {passing}, of at least {least}");
    assert!(
        waiting >= 9 * passing,
        "calls with BLOCK get nine tenths of the units or more: {waiting}, and {passing} without BLOCK"
    );
}

#[test]
fn a_call_that_would_reach_its_timeout_is_denied_at_once() {
    let (_server, mut client) = Server::start().and_client();
    for (policy, need_ms) in [
        ("RL.FIXED key 10 1000s", 1_000_000),
        ("RL.SLIDE key 10 1000s", 1_000_016),
        ("RL.GCRA key 10 1000s", 400_000),
        ("RL.BUCKET key 10 1000s CAPACITY 10", 400_000),
    ] {
        call::<()>(&mut client, "FLUSHALL");
        exhaust(&mut client, &format!("{policy} COST 10"));
        let before = snapshots(&mut client);
        for amount in ["COST 4", "UPTO 4"] {
            let need_ms = if amount == "UPTO 4" && need_ms == 400_000 { 100_000 } else { need_ms };
            let row = limit(&mut client, &format!("{policy} {amount} BLOCK 50s"));
            assert_eq!(row[..3], [0, 10, 0]);
            assert!((need_ms - 60_000..=need_ms - 50_000).contains(&row[3]), "{policy} {amount}: {row:?}");
        }
        assert_eq!(limit(&mut client, &format!("{policy} COST 11 BLOCK 1d"))[3], -1);
        assert_same(&before, &snapshots(&mut client));
    }
    assert_eq!(limit(&mut client, "RL.GCRA closed 0 1s BLOCK 1d"), [0, 0, 0, -1, 0]);
}

#[test]
fn transactions_and_scripts_are_answered_at_once() {
    let (_server, mut client) = Server::start().and_client();
    let words = "RL.GCRA key 1 1h BLOCK 1d";
    for first in [true, false] {
        let rows: Vec<Vec<i64>> = pipe([words]).atomic().query(&mut client).expect("a reply");
        // wait_ms is the whole wait. The time that BLOCK would have waited is not subtracted.
        assert!(if first { rows[0][0] == 1 } else { rows[0][0] == 0 && rows[0][3] > 3_500_000 }, "{rows:?}");
    }
    let script = "return redis.call(unpack(ARGV))";
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(0).arg(words.split(' ').collect::<Vec<_>>());
    let row: Vec<i64> = eval.query(&mut client).expect("a reply");
    assert!(row[0] == 0 && row[3] > 3_500_000, "{row:?}");
    assert_eq!(held(&mut client), 0);
    for (words, text) in [
        ("RL.GCRA key 10 60 BLOCK 0", "ERR BLOCK must be above 0, at most 1d: a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond"),
        ("RL.GCRA key 10 60 RESERVE 86401", "ERR RESERVE must be above 0, at most 1d: a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond"),
    ] {
        assert_eq!(error(&mut client, &command(words)), text);
    }
}

// ---- Clients that leave ----

#[test]
fn client_unblock_ends_a_wait() {
    let (server, mut client) = Server::start().and_client();
    exhaust(&mut client, "RL.SLIDE key 5 12h COST 5");
    let before = snapshots(&mut client);
    let mut waiting: Vec<_> = (0..3).map(|_| Held::send(&server, "RL.SLIDE key 5 12h COST 2 BLOCK 1d")).collect();
    for (index, how, expected) in [(1, "ERROR", "UNBLOCKED"), (0, "TIMEOUT", ""), (2, "", "")] {
        assert_eq!(call::<i64>(&mut client, &format!("CLIENT UNBLOCK {} {how}", waiting[index].id)), 1);
        let reply = waiting[index].reply();
        match reply.row {
            Err(error) => assert!(!expected.is_empty() && error.starts_with(expected), "{error}"),
            Ok(row) => assert!(expected.is_empty() && row[..3] == [0, 5, 0] && row[3] >= 1, "{row:?}"),
        }
        // The connection still works.
        assert_eq!(call::<String>(waiting[index].connection(), "PING"), "PONG");
    }
    assert_eq!(held(&mut client), 0);
    assert_same(&before, &snapshots(&mut client));
    // The clients that left do not delay the next call.
    assert_eq!(limit(&mut client, "RL.SLIDE key 5 12h REFUND 1")[0], 1);
    assert_eq!(limit(&mut client, "RL.SLIDE key 5 12h")[0], 1);
}

#[test]
fn the_module_stays_loaded_while_a_client_waits() {
    let (server, mut client) = Server::start().and_client();
    exhaust(&mut client, "RL.GCRA key 1 1d");
    let waiting = Held::send(&server, "RL.GCRA key 1 1d BLOCK 1d");
    let refusal = error(&mut client, &command("MODULE UNLOAD rl"));
    assert!(refusal.contains("rl") || refusal.contains("block"), "{refusal}");
    drop(waiting);
    wait_for("it to be gone", || held(&mut client) == 0);
    call::<()>(&mut client, "MODULE UNLOAD rl");
    call::<()>(&mut client, &format!("MODULE LOAD {}", support::module().display()));
    let waiting = Held::send(&server, "RL.GCRA key 1 1d BLOCK 1d");
    call::<()>(&mut client, "DEL key");
    assert_eq!(waiting.row()[0], 1);
}

// ---- Changes of the key ----

#[test]
fn a_change_of_the_key_that_frees_units_grants_a_client_that_waits() {
    let (server, mut client) = Watched::start().and_client();
    let policies = ["RL.FIXED key 5 12h", "RL.SLIDE key 5 12h", "RL.GCRA key 5 12h", "RL.BUCKET key 5 12h STEP"];
    for (index, happens) in [
        "DEL key",
        "UNLINK key",
        "GETDEL key",
        "RENAME key elsewhere",
        "RENAME fresh key",
        "COPY fresh key REPLACE",
        "MOVE key 2",
        "PEXPIRE key 1",
        "PEXPIREAT key 1",
        "PEXPIRE key 40",
        "FLUSHDB",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "SWAPDB 0 1",
        "POLICY REFUND 1",
        "POLICY REFUND 5",
    ]
    .iter()
    .enumerate()
    {
        for policy in policies {
            call::<()>(&mut client, "FLUSHALL");
            exhaust(&mut client, &format!("{policy} COST 5"));
            exhaust(&mut client, &policy.replace("key", "fresh"));
            let mut waiting = Held::send(&server, &format!("{policy} BLOCK 1d"));
            let other = Held::send(&server, &policy.replace("key 5", "other 0"));
            call::<Value>(&mut client, &happens.replace("POLICY", policy));
            let happened = time_us(&mut client);
            // Valkey 8.1 leaves the client of a MOVE in the other database: see docs/operations.md.
            call::<()>(&mut client, "SELECT 0");
            let reply = waiting.reply();
            assert_eq!(reply.granted(), 1, "{index}: {happens}, {policy}");
            // The server expires keys with a precision of a millisecond.
            let late = if *happens == "PEXPIRE key 40" { 40 } else { 1 } + A_FEW;
            server.assert_not_late(&format!("{happens}, {policy}"), happened, reply.at_us(), late);
            assert_eq!(other.row()[0], 0);
            assert_eq!(held(&mut client), 0);
        }
    }
}

#[test]
fn a_raised_limit_grants_the_clients_that_wait() {
    let (server, mut client) = Watched::start().and_client();
    exhaust(&mut client, "RL.GCRA key 10 1d COST 10");
    let waiting = Held::send(&server, "RL.GCRA key 10 1d BLOCK 1d");
    // To raise the limit of the key, a call has to write under the new limit, as FORCE does. The first client still has its
    // own policy.
    let mut raised = Held::send(&server, "RL.GCRA key 1000 1s BLOCK 1d");
    assert_eq!(held(&mut client), 2);
    assert_eq!(limit(&mut client, "RL.GCRA key 1000 1s FORCE 1")[0], 1);
    let happened = time_us(&mut client);
    assert_eq!(waiting.row()[0], 1);
    let raised = raised.reply();
    assert_eq!(raised.granted(), 1);
    server.assert_not_late("the raised limit", happened, raised.at_us(), 150);
}

#[test]
fn a_client_is_granted_on_time_if_another_limit_wrote_its_key() {
    let server = Watched::start();
    // The policy of the record changes with the grant. Until then five units per second drain, not one in a hundred seconds.
    let calls = ["RL.GCRA key 10 2 COST 10", "RL.GCRA key 10 1000 BLOCK 1000"];
    let AtOnce { mut held, to_us, .. } = at_once(&server, calls);
    let reply = held[1].reply();
    assert_eq!(reply.granted(), 1);
    server.assert_not_late("the first unit", to_us + 200 * MS, reply.at_us(), 150);
}

#[test]
fn a_deadline_that_was_set_before_the_wait_ends_it() {
    let (server, mut client) = Watched::start().and_client();
    call::<()>(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    for kind in LIMITERS {
        let policy = format!("RL.{kind} key 1 1000");
        let calls = [policy.clone(), "PEXPIRE key 200".into(), format!("{policy} BLOCK 5000")];
        let AtOnce { mut held, to_us, .. } = at_once(&server, calls);
        let reply = held[2].reply();
        assert_eq!(reply.granted(), 1);
        server.assert_not_late(kind, to_us + 200 * MS, reply.at_us(), 1 + A_FEW);
        call::<()>(&mut client, "DEL key");
    }
}

#[test]
fn the_eviction_of_a_key_grants_the_client_that_waits_for_it() {
    let (server, mut client) = Server::with(&["--maxmemory-policy", "volatile-ttl"]).and_client();
    exhaust(&mut client, "RL.GCRA key 1 1h");
    let waiting = Held::send(&server, "RL.GCRA key 1 1h BLOCK 1d");
    call::<()>(&mut client, "CONFIG SET maxmemory 1");
    // The server evicts the key for this command, and still has too little memory for the command and for a grant.
    let _: redis::RedisResult<Value> = command("SET other 1").query(&mut client);
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 0);
    call::<()>(&mut client, "CONFIG SET maxmemory 0");
    assert_eq!(waiting.row()[0], 1);
}

#[test]
fn a_wait_for_a_key_that_gets_another_type_ends_in_an_error() {
    let (server, mut client) = Server::start().and_client();
    for kind in LIMITERS {
        call::<()>(&mut client, "DEL key");
        exhaust(&mut client, &format!("RL.{kind} key 1 12h"));
        let waiting: Vec<_> = (0..2).map(|_| Held::send(&server, &format!("RL.{kind} key 1 12h BLOCK 1d"))).collect();
        call::<()>(&mut client, "RPUSH list 1");
        call::<()>(&mut client, "RENAME list key");
        for reply in replies(waiting) {
            assert_eq!(reply.row.expect_err("an error"), format!("WRONGTYPE key holds a list, not a {kind} limiter"));
        }
        assert_eq!(call::<String>(&mut client, "TYPE key"), "list");
    }
    // A call of another algorithm does not wait at all.
    call::<()>(&mut client, "DEL key");
    exhaust(&mut client, "RL.GCRA key 1 1d");
    let _waiting = Held::send(&server, "RL.GCRA key 1 1d BLOCK 1d");
    let text = error(&mut client, &command("RL.SLIDE key 1 1d BLOCK 1d"));
    assert_eq!(text, "WRONGTYPE key holds a GCRA limiter, not a SLIDE limiter");
}

// ---- Replicas, files, pauses, failover ----

#[test]
fn grants_replicate_and_a_pause_holds_them_back() {
    let mut server = Watched::on_port(&["--appendonly", "yes", "--appendfsync", "always"]);
    let replica = server.replica(&[]);
    let mut client = server.client();
    // The first clients are due after three seconds. The clients behind them reach their timeout after three and a half.
    // Both times are in the pause.
    let policies = [
        ("rl.gcra", "key", "RL.GCRA key 20 1 BURST 1", "FORCE 60"),
        ("rl.slide", "log", "RL.SLIDE log 8 3s", "COST 8"),
        ("rl.fixed", "window", "RL.FIXED window 8 3s", "COST 8"),
    ];
    for kind in ["WRITE", "ALL"] {
        call::<()>(&mut client, "FLUSHALL");
        let calls = policies.iter().flat_map(|(.., policy, use_up)| {
            let waits = std::iter::repeat_n(format!("{policy} BLOCK 30"), 8);
            std::iter::once(format!("{policy} {use_up}")).chain(waits).chain([format!("{policy} BLOCK 3500ms")])
        });
        let AtOnce { held, from_us, to_us } = at_once(&server, calls);
        let from = time_us(&mut client);
        call::<()>(&mut client, &format!("CLIENT PAUSE 5000 {kind}"));
        let waiting = std::thread::spawn(|| replies(held));
        let replies = waiting.join().expect("replies");
        for ((event, key, ..), replies) in policies.iter().zip(replies.chunks(10)) {
            // No client is granted in the pause, and all are after it. A client that reaches its timeout is answered in the
            // pause, too.
            assert!(replies[1..9].iter().all(|reply| reply.granted() == 1), "{kind}: {replies:?}");
            assert_eq!(replies[9].granted(), 0, "{kind}: {replies:?}");
            let grants: Vec<_> = server.events(event, key).into_iter().filter(|&at| at > to_us).collect();
            assert_eq!(grants.len(), 8, "{kind}, {key}: all clients were due in the pause");
            for at in grants {
                // Valkey 9.1 reads the clock once in a millisecond, and counts on from there.
                assert!(at > from + 4_999 * MS, "{kind}, {key}: granted {} us into the pause", at - from);
            }
            let denied = *server.events("rl.denied", key).last().expect("a denial");
            assert!(denied >= from_us + 3_500 * MS, "{kind}, {key}: denied before its timeout");
            server.assert_not_late(&format!("{kind}, {key}: a time-out"), to_us + 3_500 * MS, denied, 25 + A_FEW);
        }
    }
    call::<()>(&mut client, "FLUSHALL");
    // These keys live long enough to be compared.
    for (name, db) in [("GCRA", 0), ("SLIDE", 0), ("BUCKET", 3), ("FIXED", 0)] {
        let mut clients: Vec<_> = (0..4).map(|_| Held::prepare(&server, Resp::Two)).collect();
        for held in &mut clients {
            call::<()>(held.connection(), &format!("SELECT {db}"));
        }
        exhaust(clients[0].connection(), &format!("RL.{name} long:{name} 5 12h COST 5"));
        let waiting =
            clients.into_iter().map(|held| held.call(&mut client, &format!("RL.{name} long:{name} 5 12h BLOCK 1d")));
        let waiting: Vec<_> = waiting.collect();
        let mut control = server.client();
        call::<()>(&mut control, &format!("SELECT {db}"));
        assert_eq!(limit(&mut control, &format!("RL.{name} long:{name} 5 12h REFUND 4"))[0], 4);
        assert!(replies(waiting).iter().all(|reply| reply.row.as_ref().is_ok_and(|row| row[0] == 1)));
    }
    server.wait_until_in_step(&replica);
    let before = snapshots(&mut client);
    assert_same(&before, &snapshots(&mut replica.client()));
    let mut third = (server.client(), replica.client());
    call::<()>(&mut third.0, "SELECT 3");
    call::<()>(&mut third.1, "SELECT 3");
    let before_third = snapshots(&mut third.0);
    assert_same(&before_third, &snapshots(&mut third.1));
    server.server_mut().crash_and_restart();
    assert_same(&before, &snapshots(&mut server.client()));
    let mut third = server.client();
    call::<()>(&mut third, "SELECT 3");
    assert_same(&before_third, &snapshots(&mut third));
}

#[test]
fn a_failover_ends_the_waits_and_the_new_primary_goes_on() {
    let mut server = Server::on_port(&["--appendonly", "yes"]);
    let mut replica = server.replica(&[]);
    let mut client = server.client();
    let start = time_us(&mut client);
    exhaust(&mut client, "RL.GCRA key 10 1 COST 10");
    exhaust(&mut client, "RL.GCRA long 5 1d COST 5");
    let waiting: Vec<_> = (0..5)
        .map(|_| Held::send(&server, "RL.GCRA long 5 1d BLOCK 1d"))
        .chain((0..5).map(|_| Held::send(&server, "RL.GCRA key 10 1 COST 10 BLOCK 30")))
        .collect();
    call::<()>(&mut client, "FAILOVER");
    let mut granted = 0;
    for reply in replies(waiting) {
        match reply.row {
            Ok(row) => granted += row[0],
            // The server replies UNBLOCKED and closes the connection, as it does to clients that wait in BLPOP.
            Err(error) => assert!(error.contains("UNBLOCKED") || error.contains("unblock"), "{error}"),
        }
    }
    wait_for("the new primary", || call::<String>(&mut replica.client(), "INFO replication").contains("role:master"));
    let most = (time_us(&mut replica.client()) - start) / (1_000 * MS) * 10;
    assert!(granted <= most, "{granted} of {most}");
    // The new primary holds all grants, and goes on from there.
    assert_eq!(limit(&mut replica.client(), "RL.GCRA long 5 1d")[0], 0);
    let waiting = Held::send(&replica, "RL.GCRA long 5 1d BLOCK 1d");
    assert_eq!(limit(&mut replica.client(), "RL.GCRA long 5 1d REFUND 1")[0], 1);
    assert_eq!(waiting.row()[0], 1);
    assert!(server.is_alive() && replica.is_alive());
    assert_eq!(held(&mut server.client()), 0);
    // This key may expire between the snapshots.
    call::<i64>(&mut replica.client(), "DEL key");
    replica.wait_until_in_step(&server);
    assert_same(&snapshots(&mut replica.client()), &snapshots(&mut server.client()));
}

/// A cluster of two nodes, of which the first serves all slots.
pub(crate) fn cluster() -> [Server; 2] {
    let nodes = [Server::node(), Server::node()];
    let mut clients = [nodes[0].client(), nodes[1].client()];
    call::<()>(&mut clients[0], "CLUSTER ADDSLOTSRANGE 0 16383");
    let bus: String = call(&mut clients[1], "CLUSTER MYID");
    let nodes_of_second: String = call(&mut clients[1], "CLUSTER NODES");
    let address = nodes_of_second.split_whitespace().find(|word| word.contains('@')).expect("an address");
    let bus_port = address.split(['@', ',']).nth(1).expect("a port");
    call::<()>(&mut clients[0], &format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", nodes[1].port));
    wait_for("the nodes to meet", || {
        let known: String = call(&mut clients[0], "CLUSTER NODES");
        let both = |client: &mut Connection| call::<String>(client, "CLUSTER INFO").contains("cluster_state:ok");
        known.contains(&bus) && !known.contains("handshake") && both(&mut clients[0]) && both(&mut clients[1])
    });
    nodes
}

/// Begins to move the slot of a key from the first node to the second. Returns the command that ends it on either node.
pub(crate) fn begin_to_move(source: &mut Connection, target: &mut Connection, key: &str) -> String {
    let ids: [String; 2] = [call(source, "CLUSTER MYID"), call(target, "CLUSTER MYID")];
    let slot: i64 = call(source, &format!("CLUSTER KEYSLOT {key}"));
    call::<()>(target, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    call::<()>(source, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    format!("CLUSTER SETSLOT {slot} NODE {}", ids[1])
}

#[test]
fn a_slot_that_moves_ends_the_waits_for_its_keys() {
    let [from, to] = cluster();
    let (mut source, mut target) = (from.client(), to.client());
    exhaust(&mut source, "RL.GCRA key 5 1d COST 5");
    exhaust(&mut source, "RL.GCRA {key}soon 5 1 COST 5");
    exhaust(&mut source, "RL.GCRA {key}later 5 1d COST 5");
    exhaust(&mut source, "RL.GCRA stays 5 1 COST 5");
    let waiting: Vec<_> = (0..3).map(|_| Held::send(&from, "RL.GCRA key 5 1d BLOCK 1d")).collect();
    let end = begin_to_move(&mut source, &mut target, "key");
    // As long as this node holds the key, the queue of the key works.
    let [soon, stays] = ["{key}soon", "stays"].map(|key| Held::send(&from, &format!("RL.GCRA {key} 5 1 BLOCK 30")));
    assert_eq!([soon.row()[0], stays.row()[0]], [1, 1]);
    let last = Held::send(&from, "RL.GCRA {key}later 5 1d COST 5 BLOCK 1d");
    assert_eq!(held(&mut source), 4);
    let migrated: String = call(&mut source, &format!("MIGRATE 127.0.0.1 {} key 0 5000", to.port));
    assert_eq!(migrated, "OK");
    for reply in replies(waiting) {
        assert_eq!(
            reply.row.expect_err("no grant after the slot has moved"),
            "TRYAGAIN the key's slot has moved to another node"
        );
    }
    // A client that calls again is redirected, and finds the key unchanged.
    assert!(error(&mut source, &command("RL.GCRA key 5 1d BLOCK 1d")).starts_with("ASK "));
    call::<()>(&mut target, "ASKING");
    assert_eq!(limit(&mut target, "RL.GCRA key 5 1d BLOCK 1ms")[..3], [0, 5, 0]);
    // A slot can also move while the first client in a queue is not due yet.
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(to.port).arg("").arg(0).arg(5_000).arg("KEYS").arg("{key}later").arg("{key}soon");
    migrate.exec(&mut source).expect("OK");
    assert!(replies(vec![last])[0].row.as_ref().is_err_and(|error| error.starts_with("TRYAGAIN ")));
    for client in [&mut target, &mut source] {
        call::<()>(client, &end);
    }
    assert!(error(&mut source, &command("RL.GCRA key 5 1d BLOCK 1d")).starts_with("MOVED "));
    let waiting = Held::send(&to, "RL.GCRA key 5 1d BLOCK 1d");
    assert_eq!(limit(&mut target, "RL.GCRA key 5 1d REFUND 1")[0], 1);
    assert_eq!(waiting.row()[0], 1);
    assert_eq!(held(&mut source), 0);
}

#[test]
fn whole_slots_move_where_the_server_can() {
    let [from, to] = cluster();
    let (mut source, mut target) = (from.client(), to.client());
    let id: String = call(&mut target, "CLUSTER MYID");
    exhaust(&mut source, "RL.GCRA key 5 1d COST 5");
    let slot: i64 = call(&mut source, "CLUSTER KEYSLOT key");
    let waiting: Vec<_> = (0..3).map(|_| Held::send(&from, "RL.GCRA key 5 1d BLOCK 1d")).collect();
    let moved = command(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}"));
    if let Err(refusal) = moved.query::<()>(&mut source) {
        // Only Valkey 9 and newer have this command.
        let text = refusal.to_string().to_lowercase();
        return assert!(text.contains("unknown subcommand") && !text.contains("module"), "{refusal}");
    }
    for reply in replies(waiting) {
        assert_eq!(
            reply.row.expect_err("no grant after the slot has moved"),
            "TRYAGAIN the key's slot has moved to another node"
        );
    }
    wait_for("the slot to move", || {
        command("RL.PEEK GCRA key 5 1d").query::<Vec<i64>>(&mut source).is_err_and(|error| error.code() == Some("MOVED"))
    });
    // The key has not changed, and neither have other keys with a deadline.
    wait_for("the new node", || command("RL.PEEK GCRA key 5 1d").query::<Vec<i64>>(&mut target).is_ok());
    assert_eq!(limit(&mut target, "RL.GCRA key 5 1d")[..3], [0, 5, 0]);
    assert!(call::<i64>(&mut target, "PTTL key") > 0);
}
