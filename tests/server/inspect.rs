//! `RL.INSPECT` shows what a key holds so that a person understands it without the documentation.

use redis::Value;
use support::{call, command, error, limit, Resp, Server};

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
    let server = Server::start();
    let mut client = server.client();
    for (words, expected) in [
        (
            "RL.FIXED key 10 1d COST 3",
            r#"algorithm "FIXED", limit 10, period_ms 86400000, used 3, remaining 7, reset_ms 86400 s, debt 0, window_start_ms a moment, window_end_ms a moment, ids 0, ids_units 0, waiting 0"#,
        ),
        (
            "RL.FIXED key 10 1d FORCE 13",
            r#"algorithm "FIXED", limit 10, period_ms 86400000, used 13, remaining 0, reset_ms 172800 s, debt 3, window_start_ms a moment, window_end_ms a moment, ids 0, ids_units 0, waiting 0"#,
        ),
        (
            "RL.SLIDE key 10 86450 COST 3",
            r#"algorithm "SLIDE", limit 10, period_ms 86450000, used 3, remaining 7, reset_ms 86500 s, debt 0, bookings 0, tick_us 1319123, entries 1, entries_stored 1, oldest_ms a moment, newest_ms a moment, ids 0, ids_units 0, waiting 0"#,
        ),
        (
            "RL.SLIDE key 10 43225 COST 8; RL.SLIDE key 10 43225 COST 5 RESERVE 1d",
            r#"algorithm "SLIDE", limit 10, period_ms 43225000, used 13, remaining 0, reset_ms 86500 s, debt 3, bookings 5, tick_us 659562, entries 2, entries_stored 2, oldest_ms a moment, newest_ms a moment, ids 0, ids_units 0, waiting 0"#,
        ),
        (
            "RL.GCRA key 10 1d BURST 20 COST 4",
            r#"algorithm "GCRA", limit 10, period_ms 86400000, used 4, remaining 16, reset_ms 34600 s, debt 0, burst 20, tat_ms a moment, ids 0, ids_units 0, waiting 0"#,
        ),
        (
            "RL.BUCKET key 10 1d COST 4",
            r#"algorithm "BUCKET", limit 10, period_ms 86400000, used 4, remaining 6, reset_ms 34600 s, debt 0, capacity 10, tokens 6, step "no", next_step_ms (nil), ids 0, ids_units 0, waiting 0"#,
        ),
        (
            "RL.BUCKET key 10 90000.0005s STEP FORCE 25",
            r#"algorithm "BUCKET", limit 10, period_ms "90000000.5", used 25, remaining 0, reset_ms 270000 s, debt 15, capacity 10, tokens -15, step "yes", next_step_ms a moment, ids 0, ids_units 0, waiting 0"#,
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
    let server = Server::start();
    let mut client = server.client();
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
    assert_eq!(error(&mut client, &command("RL.INSPECT")), "ERR wrong number of arguments for 'rl.inspect' command");
    assert_eq!(error(&mut client, &command("RL.INSPECT a b")), "ERR wrong number of arguments for 'rl.inspect' command");
}
