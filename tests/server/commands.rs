//! The commands as clients see them, through a client library and redis-cli: replies, options, errors and registration.

use redis::{Cmd, Value};
use support::{call, command, error, limit, snapshot, time_us, Server};

const LIMITERS: [&str; 4] = ["RL.FIXED", "RL.SLIDE", "RL.GCRA", "RL.BUCKET"];

#[test]
fn ten_calls_are_granted_and_the_eleventh_gets_its_wait() {
    let (_server, mut client) = Server::start().and_client();
    let start = time_us(&mut client);
    assert_eq!(limit(&mut client, "RL.GCRA key 10 60"), [1, 10, 9, 0, 6000]);
    for remaining in (0..9).rev() {
        let [granted, capacity, left, wait_ms, _] = limit(&mut client, "RL.GCRA key 10 60");
        assert_eq!([granted, capacity, left, wait_ms], [1, 10, remaining, 0]);
    }
    let [granted, capacity, left, wait_ms, reset_ms] = limit(&mut client, "RL.GCRA key 10 60");
    assert_eq!([granted, capacity, left], [0, 10, 0]);
    let passed = (time_us(&mut client) - start) / 1_000 + 1;
    let since = |ms: i64| ms - passed..=ms;
    assert!(since(6_000).contains(&wait_ms) && since(60_000).contains(&reset_ms), "{wait_ms} {reset_ms}");
}

#[test]
fn every_option_of_every_algorithm() {
    let (_server, mut client) = Server::start().and_client();
    // The period is a day: no reply depends on the milliseconds between two calls, except for the last two fields.
    for (words, expected) in [
        ("RL.FIXED a 10 1d", [1, 10, 9]),
        ("RL.FIXED a 10 1d COST 4", [4, 10, 5]),
        ("RL.FIXED a 10 1d COST 6", [0, 10, 5]),
        ("RL.FIXED b 10 1d ALIGN -8h COST 3", [3, 10, 7]),
        ("RL.SLIDE c 10 1d", [1, 10, 9]),
        ("RL.SLIDE d 10 1d SEGMENTS 1 COST 10", [10, 10, 0]),
        ("RL.SLIDE e 10 1d cost 2 segments 65536", [2, 10, 8]),
        ("RL.GCRA f 10 1d BURST 3 COST 2", [2, 3, 1]),
        ("RL.GCRA f 10 1d COST 2 BURST 3", [0, 3, 1]),
        ("RL.BUCKET g 10 1d CAPACITY 100 COST 60", [60, 100, 40]),
        ("RL.BUCKET h 10 1d STEP", [1, 10, 9]),
        ("rl.bucket i 10 86400.000000 step capacity 20 cost 20", [20, 20, 0]),
        ("RL.BUCKET j 10 1440m UPTO 15", [10, 10, 0]),
        ("RL.BUCKET j 10 24h FORCE 5", [5, 10, 0]),
        ("RL.BUCKET j 10 1D REFUND 12", [12, 10, 7]),
    ] {
        assert_eq!(limit(&mut client, words)[..3], expected, "{words}");
    }
}

#[test]
fn a_limit_of_zero_denies_every_call_and_writes_nothing() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        for amount in ["", "COST 5", "UPTO 5", "FORCE 5", "REFUND 5"] {
            assert_eq!(limit(&mut client, &format!("{name} key 0 60 {amount}")), [0, 0, 0, -1, 0], "{name} {amount}");
        }
    }
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 0);
    call::<()>(&mut client, "SET text hello");
    for name in LIMITERS {
        assert!(error(&mut client, &command(&format!("{name} text 0 60"))).starts_with("WRONGTYPE"));
    }
}

#[test]
fn redis_cli_shows_the_reply_in_both_protocols() {
    let server = Server::start();
    for protocol in ["-2", "-3"] {
        server.cli(&[], &["FLUSHALL"]);
        let reply = server.cli(&[protocol, "--no-raw"], &["RL.GCRA", "key", "10", "60"]);
        assert_eq!(
            reply, "1) (integer) 1\n2) (integer) 10\n3) (integer) 9\n4) (integer) 0\n5) (integer) 6000\n",
            "{protocol}"
        );
        let reply = server.cli(&[protocol], &["RL.GCRA", "key", "10", "60", "BRUST", "3"]);
        assert_eq!(reply.trim(), "ERR unknown option 'BRUST' for RL.GCRA", "{protocol}");
    }
}

#[test]
fn every_error_names_what_is_wrong_and_changes_nothing() {
    const LIMIT: &str = "ERR limit must be a whole number from 0 to 1000000000000";
    const SLIDE_LIMIT: &str = "ERR limit must be a whole number from 0 to 4294967295";
    const PERIOD: &str =
        "ERR period must be from 1ms to 3650d: a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond";
    const OFFSET: &str = "ERR ALIGN must be less than the period, either way: \
        a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond";
    const COST: &str = "ERR COST must be a whole number from 1 to 1000000000000";

    let (_server, mut client) = Server::start().and_client();
    call::<()>(&mut client, "RL.GCRA key 10 60");
    let before = snapshot(&mut client, "key");
    for (words, text) in [
        ("RL.SLIDE key 10", "ERR wrong number of arguments for 'rl.slide' command"),
        ("RL.GCRA key ten 60", LIMIT),
        ("RL.GCRA key -1 60", LIMIT),
        ("RL.GCRA key +1 60", LIMIT),
        ("RL.GCRA key 1.0 60", LIMIT),
        ("RL.GCRA key 1e3 60", LIMIT),
        ("RL.FIXED key 1000000000001 60", LIMIT),
        ("RL.BUCKET key 99999999999999999999999 60", LIMIT),
        ("RL.SLIDE key 4294967296 60", SLIDE_LIMIT),
        ("RL.GCRA key 10 0", PERIOD),
        ("RL.GCRA key 10 -60", PERIOD),
        ("RL.GCRA key 10 999us", PERIOD),
        ("RL.GCRA key 10 0.0009", PERIOD),
        ("RL.GCRA key 10 3651d", PERIOD),
        ("RL.GCRA key 10 1.0000001", PERIOD),
        ("RL.GCRA key 10 60x", PERIOD),
        ("RL.GCRA key 10 inf", PERIOD),
        ("RL.GCRA key 10 nan", PERIOD),
        ("RL.GCRA key 10 60 COST 0", COST),
        ("RL.GCRA key 10 60 COST -1", COST),
        ("RL.GCRA key 10 60 COST x", COST),
        ("RL.GCRA key 10 60 COST 1000000000001", COST),
        ("RL.GCRA key 10 60 UPTO 0", "ERR UPTO must be a whole number from 1 to 1000000000000"),
        ("RL.GCRA key 10 60 FORCE 0", "ERR FORCE must be a whole number from 1 to 1000000000000"),
        ("RL.GCRA key 10 60 REFUND 0", "ERR REFUND must be a whole number from 1 to 1000000000000"),
        ("RL.GCRA key 10 60 BURST 0", "ERR BURST must be a whole number from 1 to 1000000000000"),
        ("RL.BUCKET key 10 60 CAPACITY 0", "ERR CAPACITY must be a whole number from 1 to 1000000000000"),
        ("RL.SLIDE key 10 60 SEGMENTS 0", "ERR SEGMENTS must be a whole number from 1 to 65536"),
        ("RL.SLIDE key 10 60 SEGMENTS 65537", "ERR SEGMENTS must be a whole number from 1 to 65536"),
        ("RL.FIXED key 10 60 ALIGN 60", OFFSET),
        ("RL.FIXED key 10 60 ALIGN -1m", OFFSET),
        ("RL.FIXED key 10 60 ALIGN x", OFFSET),
        ("RL.FIXED key 10 60 ALIGN --1", OFFSET),
        ("RL.GCRA key 10 60 BRUST 3", "ERR unknown option 'BRUST' for RL.GCRA"),
        ("RL.FIXED key 10 60", "WRONGTYPE key holds a GCRA limiter, not a FIXED limiter"),
        ("RL.SLIDE key 10 60", "WRONGTYPE key holds a GCRA limiter, not a SLIDE limiter"),
        ("RL.BUCKET key 10 60", "WRONGTYPE key holds a GCRA limiter, not a BUCKET limiter"),
        ("RL.GCRA other 1 3650d FORCE 1000000000000", "ERR the result is too large for a limiter's record"),
        ("RL.SLIDE other 10 60 FORCE 4294967296", "ERR the result is too large for a limiter's record"),
    ] {
        assert_eq!(error(&mut client, &command(words)), text, "{words}");
    }
    assert_eq!(snapshot(&mut client, "key"), before);
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 1);
}

#[test]
fn an_unknown_option_is_shown_in_printable_form() {
    let (_server, mut client) = Server::start().and_client();
    for (option, shown) in [
        (&b"%s%n%x"[..], "%s%n%x".to_string()),
        (b"a\r\nb", "a\\r\\nb".into()),
        (b"\0\xff'", "\\x00\\xff\\'".into()),
        (b"", String::new()),
        (&[b'x'; 1_000_000], format!("{}...", "x".repeat(32))),
    ] {
        let mut call = command("RL.GCRA key 10 60");
        call.arg(option);
        assert_eq!(error(&mut client, &call), format!("ERR unknown option '{shown}' for RL.GCRA"));
    }
}

#[test]
fn hostile_arguments_are_errors_and_never_more() {
    let (mut server, mut client) = Server::start().and_client();
    let big = vec![b'9'; 1_000_000];
    let words: [&[u8]; 12] =
        [b"", b"\0", b"10", b"-1", b"%s%n", b"\xff\xfe", b"COST", b"ALIGN", b"18446744073709551616", b"1d", b"nan", &big];
    let mut replies = 0;
    for name in LIMITERS {
        for arity in 0..40_usize {
            for seed in 0..8_usize {
                let mut call: Cmd = redis::cmd(name);
                for place in 0..arity {
                    call.arg(words[(seed * 7 + place * (seed + 3) + place * place) % words.len()]);
                }
                let _ = call.query::<Value>(&mut client);
                replies += 1;
            }
        }
    }
    assert_eq!(replies, 4 * 40 * 8);
    assert_eq!(call::<String>(&mut client, "PING"), "PONG");
    assert!(server.is_alive());
    for key in call::<Vec<Vec<u8>>>(&mut client, "KEYS *") {
        let ttl: i64 = redis::cmd("PTTL").arg(key).query(&mut client).expect("a TTL");
        assert!(ttl > 0);
    }
}

#[test]
fn the_name_of_a_key_may_be_any_bytes() {
    let (_server, mut client) = Server::start().and_client();
    for key in [&b""[..], b"\0", b"\xff\xfe", b"%s%n", b"a b\r\n", &[b'k'; 100_000]] {
        let reply: Vec<i64> = redis::cmd("RL.GCRA").arg(key).arg(10).arg(60).query(&mut client).expect("a reply");
        assert_eq!(reply, [1, 10, 9, 0, 6000]);
        assert!(redis::cmd("PTTL").arg(key).query::<i64>(&mut client).expect("a TTL") > 0);
    }
}

#[test]
fn the_server_knows_keys_and_flags() {
    const REFUSED_WITHOUT_MEMORY: &[&str] = &["denyoom", "fast", "module", "write"];
    const GIVES_BACK: &[&str] = &["fast", "module", "write"];
    let (_server, mut client) = Server::with(&["--rl.compat", "cl.throttle gcra"]).and_client();
    let limiters = LIMITERS.map(|name| (name, "10 60 COST 5", -4, REFUSED_WITHOUT_MEMORY));
    let compatible = ["CL.THROTTLE", "GCRA"].map(|name| (name, "4 1 10", -5, REFUSED_WITHOUT_MEMORY));
    let others =
        [("RL.LEASE", "1 1h ID a", -6, GIVES_BACK), ("RL.SETTLE", "a 1", 4, GIVES_BACK), ("RL.RELEASE", "a", 3, GIVES_BACK)];
    for (name, rest, words, wanted) in limiters.into_iter().chain(compatible).chain(others) {
        assert_eq!(call::<Vec<String>>(&mut client, &format!("COMMAND GETKEYS {name} the-key {rest}")), ["the-key"]);
        let access: Vec<(String, Vec<String>)> =
            call(&mut client, &format!("COMMAND GETKEYSANDFLAGS {name} the-key {rest}"));
        assert_eq!(access, [("the-key".into(), ["RW", "access", "update"].map(String::from).to_vec())], "{name}");
        let info: Vec<Vec<Value>> = call(&mut client, &format!("COMMAND INFO {name}"));
        let [_, arity, flags, first, last, step, ..] = &info[0][..] else { panic!("{info:?}") };
        let wanted_numbers = [words, 1, 1, 1].map(Value::Int);
        assert_eq!([arity, first, last, step], wanted_numbers.each_ref(), "{name}");
        let mut flags: Vec<String> = redis::from_redis_value(flags.clone()).expect("flags");
        flags.sort();
        assert_eq!(flags, wanted, "{name}");
    }
}

#[test]
fn the_module_is_replaced_though_its_calls_are_queued() {
    let (server, mut operator) = Server::start().and_client();
    for round in 1..=5 {
        // A server executes a queued call of a command that no longer exists, and reports each client's last command by a
        // name that no longer exists. So these clients are disconnected first.
        let [mut queued, mut idle] = [(); 2].map(|()| server.client());
        limit(&mut idle, "RL.GCRA key 10 1d");
        call::<()>(&mut queued, "MULTI");
        call::<()>(&mut queued, "RL.GCRA key 10 1d");
        call::<()>(&mut operator, "MULTI");
        call::<()>(&mut operator, "CLIENT KILL TYPE normal");
        call::<()>(&mut operator, "MODULE UNLOAD rl");
        call::<()>(&mut operator, &format!("MODULE LOAD {}", support::module().display()));
        call::<()>(&mut operator, "EXEC");
        assert!(command("EXEC").query::<Value>(&mut queued).is_err_and(|error| error.is_io_error()));
        let clients: String = call(&mut operator, "CLIENT LIST");
        assert_eq!(clients.lines().count(), 1, "{clients}");
        assert_eq!(limit(&mut operator, "RL.PEEK GCRA key 10 1d")[2], 10 - round);
    }
}

#[test]
fn info_shows_the_version() {
    let server = Server::start();
    let text: String = call(&mut server.client(), "INFO rl");
    assert!(text.contains(&format!("rl_version:{}", env!("CARGO_PKG_VERSION"))), "{text}");
}

#[test]
fn a_limit_may_change_on_a_live_key() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        let mut call = |words: &str| limit(&mut client, &format!("{name} {name} {words}"));
        assert_eq!(call("10 1d COST 10")[..3], [10, 10, 0], "{name}");
        // When the limit is raised, the difference is free at once. When it is lowered, nothing is free.
        assert_eq!(call("15 1d COST 3")[..3], [3, 15, 2], "{name}");
        assert_eq!(call("5 1d")[..3], [0, 5, 0], "{name}");
        assert_eq!(call("15 1d UPTO 3")[..3], [2, 15, 0], "{name}");
    }
    // The limit changes from slow to fast. The wait in the reply is long enough, though the denial changed nothing.
    for name in ["RL.GCRA", "RL.BUCKET"] {
        call::<()>(&mut client, &format!("DEL {name}"));
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d COST 10"))[0], 10);
        let [granted, _, _, wait_ms, _] = limit(&mut client, &format!("{name} {name} 10 1"));
        if granted == 0 {
            assert!((1..=100).contains(&wait_ms), "{name}: {wait_ms}");
            std::thread::sleep(std::time::Duration::from_millis(wait_ms as u64));
            assert_eq!(limit(&mut client, &format!("{name} {name} 10 1"))[0], 1, "{name}");
        }
    }
}
