//! `RL.PEEK` reports what a call would answer, works wherever a client may read, and changes nothing.

use redis::Value;
use support::{call, command, error, info, limit, snapshot, Server};

const LIMITERS: [&str; 4] = ["FIXED", "SLIDE", "GCRA", "BUCKET"];

#[test]
fn granted_and_wait_describe_the_call_and_the_rest_the_present_state() {
    let server = Server::start();
    let mut client = server.client();
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
    let server = Server::start();
    let mut client = server.client();
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
fn it_touches_nothing() {
    let server = Server::on_port(&["--repl-ping-replica-period", "3600"]);
    let _replica = server.replica(&[]);
    let mut client = server.client();
    let mut subscriber = server.client();
    let subscriber_id: i64 = call(&mut subscriber, "CLIENT ID");
    let mut subscriber = subscriber.as_pubsub();
    subscriber.subscribe("__redis__:invalidate").expect("a subscription");
    let mut caching = server.client();
    call::<()>(&mut caching, &format!("CLIENT TRACKING ON REDIRECT {subscriber_id}"));
    let mut watcher = server.client();
    for name in LIMITERS {
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 7"));
        call::<i64>(&mut client, "WAIT 1 50000");
        let before = snapshot(&mut client, name);
        let offset = info(&mut client, "replication", "master_repl_offset");
        call::<()>(&mut caching, &format!("STRLEN {name}"));
        call::<()>(&mut watcher, &format!("WATCH {name} missing"));

        for amount in ["", "COST 3", "UPTO 5", "COST 4", "COST 11"] {
            limit(&mut client, &format!("RL.PEEK {name} {name} 10 1d {amount}"));
            limit(&mut client, &format!("RL.PEEK {name} {name} 99 2d {amount}"));
            limit(&mut client, &format!("RL.PEEK {name} missing 10 1d {amount}"));
            call::<Value>(&mut client, &format!("RL.INSPECT {name}"));
        }

        assert_eq!(snapshot(&mut client, name), before, "{name}");
        assert_eq!(info(&mut client, "replication", "master_repl_offset"), offset, "{name}");
        call::<()>(&mut watcher, "MULTI");
        call::<()>(&mut watcher, "PING");
        assert!(matches!(call::<Value>(&mut watcher, "EXEC"), Value::Array(_)), "{name}");
        // The first invalidation message is that of the marker: there was none before it.
        call::<()>(&mut client, "SET marker 1");
        call::<()>(&mut caching, "STRLEN marker");
        call::<()>(&mut client, "SET marker 2");
        let keys: Vec<String> = subscriber.get_message().expect("a message").get_payload().expect("keys");
        assert_eq!(keys, ["marker"], "{name}");
        call::<i64>(&mut client, "DEL marker");
    }
    assert_eq!(call::<i64>(&mut client, "EXISTS missing"), 0);
}

#[test]
fn it_runs_wherever_reading_is_allowed() {
    let server = Server::on_port(&[]);
    let mut client = server.client();
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
    let server = Server::start();
    let mut client = server.client();
    limit(&mut client, "RL.GCRA key 10 1d");
    call::<()>(&mut client, "RPUSH list a");
    for (words, text) in [
        ("RL.PEEK GCRA key 10", "ERR wrong number of arguments for 'rl.peek' command"),
        ("RL.PEEK GRCA key 10 60", "ERR unknown algorithm 'GRCA': must be FIXED, SLIDE, GCRA, BUCKET or LEASE"),
        ("RL.PEEK GCRA key x 60", "ERR limit must be a whole number from 0 to 1000000000000"),
        ("RL.PEEK SLIDE key 4294967296 60", "ERR limit must be a whole number from 0 to 4294967295"),
        ("RL.PEEK GCRA key 10 60 FORCE 1", "ERR unknown option 'FORCE' for RL.PEEK"),
        ("RL.PEEK GCRA key 10 60 REFUND 1", "ERR unknown option 'REFUND' for RL.PEEK"),
        ("RL.PEEK GCRA key 10 60 ID an-id", "ERR unknown option 'ID' for RL.PEEK"),
        ("RL.PEEK LEASE key 65537 60", "ERR limit must be a whole number from 0 to 65536"),
        ("RL.PEEK LEASE key 3 0", "ERR ttl must be from 1ms to 3650d: a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond"),
        ("RL.PEEK LEASE key 3 60 UPTO 2", "ERR unknown option 'UPTO' for RL.PEEK"),
        ("RL.PEEK LEASE key 3 60", "WRONGTYPE key holds a GCRA limiter, not a LEASE limiter"),
        ("RL.PEEK GCRA key 10 60 COST 1 UPTO 1", "ERR COST and UPTO can't be combined"),
        ("RL.PEEK FIXED key 10 60", "WRONGTYPE key holds a GCRA limiter, not a FIXED limiter"),
        ("RL.PEEK FIXED list 10 60", "WRONGTYPE key holds a list, not a FIXED limiter"),
        ("RL.PEEK FIXED list 0 60", "WRONGTYPE key holds a list, not a FIXED limiter"),
    ] {
        assert_eq!(error(&mut client, &command(words)), text, "{words}");
    }
}
