//! `RL.PEEK` reports what a call would answer, works wherever a client may read, and changes nothing. `RL.INSPECT` shows what a key
//! holds so that a person understands it without the documentation.

use redis::Value;
use support::{call, command, error, limit, Resp, Server, LIMITERS};

#[test]
fn granted_and_wait_describe_the_call_and_the_rest_the_present_state() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        let peek =
            |client: &mut redis::Connection, amount: &str| limit(client, &format!("RL.PEEK {name} {name} 10 1d {amount}"));
        assert_eq!(peek(&mut client, ""), [1, 10, 10, 0, 0], "{name}");
        assert_eq!(peek(&mut client, "COST 11"), [0, 10, 10, -1, 0], "{name}");
        let [_, _, _, _, reset] = limit(&mut client, &format!("RL.{name} {name} 10 1d COST 7"));
        for (amount, granted, wait) in [("COST 3", 3, 0), ("UPTO 9", 3, 0), ("COST 4", 0, 1), ("COST 11", 0, -1)] {
            let reported = peek(&mut client, amount);
            assert_eq!(reported[..3], [granted, 10, 3], "{name} {amount}");
            assert!(
                reported[3].signum() == wait && (reset - 10_000..=reset).contains(&reported[4]),
                "{name} {amount}: {reported:?}"
            );
            let real = limit(&mut client, &format!("RL.{name} {name} 10 1d {amount}"));
            assert!(
                real[0] == reported[0] && (reported[3] - 10_000..=reported[3]).contains(&real[3]),
                "{name} {amount}: {reported:?} {real:?}"
            );
            if granted > 0 {
                limit(&mut client, &format!("RL.{name} {name} 10 1d REFUND {granted}"));
            }
        }
        assert_eq!(limit(&mut client, &format!("RL.PEEK {name} {name} 0 1d")), [0, 0, 0, -1, 0], "{name}");
    }
}

#[test]
fn it_takes_the_options_of_each_algorithm() {
    let (_server, mut client) = Server::start().and_client();
    for (words, expected) in [
        ("RL.PEEK FIXED a 10 1d ALIGN -8h COST 3", [3, 10, 10, 0, 0]),
        ("RL.PEEK slide a 10 1d SEGMENTS 5 UPTO 20", [10, 10, 10, 0, 0]),
        ("RL.PEEK GCRA a 10 1d BURST 3 COST 4", [0, 3, 3, -1, 0]),
        ("RL.PEEK Bucket a 10 1d STEP CAPACITY 50 COST 50", [50, 50, 50, 0, 0]),
    ] {
        assert_eq!(limit(&mut client, words), expected, "{words}");
    }
}

#[test]
fn it_runs_wherever_reading_is_allowed() {
    let (server, mut client) = Server::on_port(&[]).and_client();
    limit(&mut client, "RL.GCRA key 10 1d COST 7");

    let reply: Vec<i64> = redis::cmd("EVAL_RO")
        .arg("return redis.call('RL.PEEK', 'GCRA', KEYS[1], 10, 86400, 'UPTO', 9)")
        .arg(1)
        .arg("key")
        .query(&mut client)
        .expect("a reply");
    assert_eq!(reply[..3], [3, 10, 3]);
    let mut script = redis::cmd("EVAL_RO");
    script.arg("return redis.call('RL.GCRA', KEYS[1], 10, 86400)").arg(1).arg("key");
    assert!(error(&mut client, &script).contains("Write commands are not allowed from read-only scripts"));

    // Before 7.2, ACL categories do not contain commands of modules, so that a rule must name each command.
    let by_category = call::<Vec<String>>(&mut client, "ACL CAT read").contains(&"rl.peek".into());
    let rights = if by_category { "+@read" } else { "+@read +rl.peek +rl.inspect" };
    call::<()>(&mut client, &format!("ACL SETUSER reader on >secret %R~* {rights}"));
    let mut reader = server.client();
    call::<()>(&mut reader, "AUTH reader secret");
    assert_eq!(limit(&mut reader, "RL.PEEK GCRA key 10 1d")[..3], [1, 10, 3]);
    call::<Value>(&mut reader, "RL.INSPECT key");
    assert!(error(&mut reader, &command("RL.GCRA key 10 1d")).contains("NOPERM"));
    // By its key specs, a limiter writes to its keys. So it needs the right to write to them, besides the right to run the
    // command.
    call::<()>(&mut client, "ACL SETUSER reader +rl.gcra +rl.all");
    for words in ["RL.GCRA key 10 1d", "RL.ALL 1 key GCRA 10 1d"] {
        assert!(error(&mut reader, &command(words)).contains("NOPERM"), "{words}");
    }

    let replica = server.replica(&[]);
    let mut other = replica.client();
    assert_eq!(limit(&mut other, "RL.PEEK GCRA key 10 1d UPTO 5")[..3], [3, 10, 3]);
    for words in ["RL.GCRA key 10 1d", "RL.ALL 1 key GCRA 10 1d"] {
        assert!(error(&mut other, &command(words)).contains("READONLY"), "{words}");
    }
}

#[test]
fn its_errors() {
    let (_server, mut client) = Server::start().and_client();
    limit(&mut client, "RL.GCRA key 10 1d");
    call::<()>(&mut client, "RPUSH list a");
    for (words, text) in [
        ("RL.PEEK GRCA key 10 60", "ERR unknown algorithm 'GRCA': must be FIXED, SLIDE, GCRA, BUCKET or LEASE"),
        ("RL.PEEK GCRA key x 60", "ERR limit must be a whole number from 0 to 1000000000000"),
        ("RL.PEEK SLIDE key 4294967296 60", "ERR limit must be a whole number from 0 to 4294967295"),
        ("RL.PEEK LEASE key 65537 60", "ERR limit must be a whole number from 0 to 65536"),
        ("RL.PEEK LEASE key 3 0", "ERR ttl must be from 1ms to 3650d: a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond"),
        ("RL.PEEK LEASE key 3 60", "WRONGTYPE key holds a GCRA limiter, not a LEASE limiter"),
        ("RL.PEEK FIXED key 10 60", "WRONGTYPE key holds a GCRA limiter, not a FIXED limiter"),
        ("RL.PEEK FIXED list 10 60", "WRONGTYPE key holds a list, not a FIXED limiter"),
        ("RL.PEEK FIXED list 0 60", "WRONGTYPE key holds a list, not a FIXED limiter"),
    ] {
        assert_eq!(error(&mut client, &command(words)), text, "{words}");
    }
}

/// What redis-cli prints, with times of the clock left out and remaining times rounded up to 100 seconds.
fn shown(server: &Server, key: &str) -> Vec<String> {
    let text = server.cli(&["-3", "--no-raw"], &["RL.INSPECT", key]);
    let line = |line: &str| {
        let (_, fact) = line.split_once("# ").expect("a fact");
        let (name, value) = fact.split_once(" => ").expect("a name and a value");
        let number = value.strip_prefix("(integer) ").and_then(|number| number.parse::<u64>().ok());
        match number {
            Some(number) if name.ends_with("_ms\"") && number > 1_500_000_000_000 => format!("{name} => a moment"),
            Some(number) if name == "\"reset_ms\"" => format!("{name} => {} s", number.div_ceil(100_000) * 100),
            _ => format!("{name} => {}", value.trim_start_matches("(integer) ")),
        }
    };
    text.lines().map(line).collect()
}

#[test]
fn every_algorithm_in_words() {
    let (server, mut client) = Server::start().and_client();
    for (words, expected) in [
        (
            "RL.FIXED key 10 1d COST 3",
            r#"algorithm "FIXED", limit 10, period_ms 86400000, used 3, remaining 7, reset_ms 86400 s, debt 0, window_start_ms a moment, window_end_ms a moment, ids 0, ids_units 0, paused_ms 0, waiting 0"#,
        ),
        (
            "RL.FIXED key 10 1d FORCE 13",
            r#"algorithm "FIXED", limit 10, period_ms 86400000, used 13, remaining 0, reset_ms 172800 s, debt 3, window_start_ms a moment, window_end_ms a moment, ids 0, ids_units 0, paused_ms 0, waiting 0"#,
        ),
        (
            "RL.SLIDE key 10 86450 COST 3",
            r#"algorithm "SLIDE", limit 10, period_ms 86450000, used 3, remaining 7, reset_ms 86500 s, debt 0, bookings 0, tick_us 1319123, entries 1, entries_stored 1, oldest_ms a moment, newest_ms a moment, ids 0, ids_units 0, paused_ms 0, waiting 0"#,
        ),
        (
            "RL.SLIDE key 10 43225 COST 8; RL.SLIDE key 10 43225 COST 5 RESERVE 1d",
            r#"algorithm "SLIDE", limit 10, period_ms 43225000, used 13, remaining 0, reset_ms 86500 s, debt 3, bookings 5, tick_us 659562, entries 2, entries_stored 2, oldest_ms a moment, newest_ms a moment, ids 0, ids_units 0, paused_ms 0, waiting 0"#,
        ),
        (
            "RL.GCRA key 10 1d BURST 20 COST 4",
            r#"algorithm "GCRA", limit 10, period_ms 86400000, used 4, remaining 16, reset_ms 34600 s, debt 0, burst 20, tat_ms a moment, ids 0, ids_units 0, paused_ms 0, waiting 0"#,
        ),
        (
            "RL.BUCKET key 10 1d COST 4",
            r#"algorithm "BUCKET", limit 10, period_ms 86400000, used 4, remaining 6, reset_ms 34600 s, debt 0, capacity 10, tokens 6, step "no", next_step_ms (nil), ids 0, ids_units 0, paused_ms 0, waiting 0"#,
        ),
        (
            "RL.BUCKET key 10 90000.0005s STEP FORCE 25",
            r#"algorithm "BUCKET", limit 10, period_ms "90000000.5", used 25, remaining 0, reset_ms 270000 s, debt 15, capacity 10, tokens -15, step "yes", next_step_ms a moment, ids 0, ids_units 0, paused_ms 0, waiting 0"#,
        ),
    ] {
        call::<()>(&mut client, "DEL key");
        for words in words.split("; ") {
            limit(&mut client, words);
        }
        // SLIDE's tick may end just before or just after a whole second.
        let shown = shown(&server, "key").join(", ").replace('"', "").replace("=> ", "");
        assert_eq!(shown, expected.replace('"', ""), "{words}");
    }
}

#[test]
fn a_map_under_resp3_and_a_flat_array_under_resp2() {
    let server = Server::start();
    limit(&mut server.client(), "RL.FIXED key 10 1d COST 3");
    let Value::Map(pairs) = call::<Value>(&mut server.client_of(Resp::Three), "RL.INSPECT key") else { panic!("no map") };
    let Value::Array(flat) = call::<Value>(&mut server.client_of(Resp::Two), "RL.INSPECT key") else { panic!("no array") };
    assert_eq!(flat.len(), 2 * pairs.len());
    // All but the remaining times is the same.
    for ((name, value), flat) in pairs.iter().zip(flat.chunks(2)) {
        assert_eq!(name, &flat[0]);
        if name != &Value::BulkString(b"reset_ms".into()) {
            assert_eq!(value, &flat[1], "{name:?}");
        }
    }
    for resp in [Resp::Two, Resp::Three] {
        assert_eq!(call::<Value>(&mut server.client_of(resp), "RL.INSPECT missing"), Value::Nil, "{resp:?}");
    }
}

#[test]
fn foreign_values_are_an_error() {
    let (_server, mut client) = Server::start().and_client();
    for (make, text) in [
        ("RPUSH key a", "WRONGTYPE key holds a list, not a limiter"),
        ("HSET key a b", "WRONGTYPE key holds a hash, not a limiter"),
        ("SADD key a", "WRONGTYPE key holds a set, not a limiter"),
        ("ZADD key 1 a", "WRONGTYPE key holds a sorted set, not a limiter"),
        ("XADD key * a b", "WRONGTYPE key holds a stream, not a limiter"),
        ("SET key 17", "WRONGTYPE key holds a string that is not a limiter"),
        ("SET key a-long-string-that-no-limiter-has-written-here", "WRONGTYPE key holds a string that is not a limiter"),
    ] {
        call::<()>(&mut client, "DEL key");
        call::<Value>(&mut client, make);
        assert_eq!(error(&mut client, &command("RL.INSPECT key")), text, "{make}");
    }
}
