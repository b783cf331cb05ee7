//! What an operator sees and configures: `INFO rl`, keyspace events, settings, `RL.TOP` and ACL categories.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use redis::{Connection, Value};
use support::{call, command, error, held, info, limit, server_program, time_us, wait_for, Held, Resp, Server, LIMITERS};

/// How often an algorithm was called, granted and denied.
fn counts(client: &mut Connection, name: &str) -> [i64; 3] {
    ["calls", "granted", "denied"].map(|what| info(client, "rl", &format!("rl_{}_{what}", name.to_lowercase())))
}

#[test]
fn info_counts_calls_by_outcome() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        assert_eq!(counts(&mut client, name), [0, 0, 0], "{name}");
        // Grants: all of the units, a part, by FORCE, and by REFUND even if there is nothing to refund.
        for words in ["10 1d COST 6", "10 1d UPTO 6", "10 1d FORCE 1", "10 1d REFUND 11", "10 1d REFUND 1"] {
            limit(&mut client, &format!("RL.{name} {name} {words}"));
        }
        assert_eq!(counts(&mut client, name), [5, 5, 0], "{name}");
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 11"));
        limit(&mut client, &format!("RL.{name} {name} 0 1d"));
        limit(&mut client, &format!("RL.{name} {name} 0 1d FORCE 1"));
        assert_eq!(counts(&mut client, name), [8, 5, 3], "{name}");
        // RL.PEEK does not count as a call of the algorithm, and neither does an error.
        limit(&mut client, &format!("RL.PEEK {name} {name} 10 1d COST 11"));
        call::<Value>(&mut client, &format!("RL.INSPECT {name}"));
        error(&mut client, &command(&format!("RL.{name} {name} 10 1d BRUST")));
        call::<()>(&mut client, "SET something else");
        error(&mut client, &command(&format!("RL.{name} something 10 1d")));
        assert_eq!(counts(&mut client, name), [8, 5, 3], "{name}");
    }
}

/// The events that these calls cause, in their order: `event key`.
fn events(server: &Server, classes: &str, calls: &[&str]) -> Vec<String> {
    let mut client = server.client();
    call::<()>(&mut client, &format!("CONFIG SET notify-keyspace-events {classes}"));
    let mut subscriber = server.client();
    subscriber.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let mut subscriber = subscriber.as_pubsub();
    subscriber.psubscribe("__keyevent@*__:*").expect("a subscription");
    subscriber.subscribe("end").expect("a subscription");
    for words in calls {
        call::<Value>(&mut client, words);
    }
    call::<()>(&mut client, "PUBLISH end end");
    let mut events = Vec::new();
    loop {
        let message = subscriber.get_message().expect("a message");
        let key: String = message.get_payload().expect("a key");
        match message.get_channel_name() {
            "end" => return events,
            channel => events.push(format!("{} {key}", channel.trim_start_matches("__keyevent@"))),
        }
    }
}

#[test]
fn each_change_and_each_denial_is_an_event_of_the_key() {
    let server = Server::start();
    for name in LIMITERS {
        let event = format!("rl.{}", name.to_lowercase());
        let calls = ["10 1d", "10 1d UPTO 20", "10 1d FORCE 1", "10 1d", "10 1d REFUND 100", "10 1d REFUND 1", "0 1d"];
        let calls = calls.map(|words| format!("RL.{name} {name} {words}"));
        let reported = events(&server, "Ed", &calls.each_ref().map(String::as_str));
        let change = format!("0__:{event} {name}");
        let denial = format!("0__:rl.denied {name}");
        assert_eq!(reported, [&change, &change, &change, &denial, &change, &denial].map(Clone::clone), "{name}");
    }
    // A refund may be less than a unit: then the reply says 0, but the key has changed. If there is nothing to refund, there
    // is no change.
    let reported =
        events(&server, "Ed", &["RL.GCRA part 1000000 100000", "DEBUG SLEEP 0.01", "RL.GCRA part 1000000 100000 REFUND 1"]);
    assert_eq!(reported, ["0__:rl.gcra part"; 2]);
    assert_eq!(events(&server, "Ed", &["RL.GCRA nothing 10 1d REFUND 1", "RL.FIXED nothing 10 1d REFUND 1"]), [""; 0]);
    // RL.PEEK causes no event, and neither does an error. Each of several rules has its own event.
    let reported = events(
        &server,
        "EA",
        &[
            "RL.PEEK GCRA looked 1 1d COST 2",
            "RL.INSPECT looked",
            "RL.ALL 2 a b FIXED 1 1d GCRA 2 1d",
            "RL.ALL 2 a b FIXED 1 1d GCRA 2 1d",
            "SELECT 7",
            "RL.SLIDE c 1 1d",
        ],
    );
    assert_eq!(reported, ["0__:rl.fixed a", "0__:rl.gcra b", "0__:rl.denied a", "7__:rl.slide c"]);
    // The events belong to the class of modules' events, and to no other.
    assert_eq!(events(&server, "E$gtxe", &["RL.GCRA d 1 1d", "RL.GCRA d 1 1d"]), [""; 0]);
}

/// The rows of a reply of `RL.TOP`: key, database, and the two numbers with these names.
fn rows(client: &mut Connection, words: &str, names: [&str; 2]) -> Vec<(String, i64, i64, i64)> {
    let rows: Vec<BTreeMap<String, Value>> = call(client, words);
    let row = |row: &BTreeMap<String, Value>| {
        let number = |name: &str| redis::from_redis_value::<i64>(row[name].clone()).expect("a number");
        assert_eq!(row.len(), 4);
        let key = redis::from_redis_value(row["key"].clone()).expect("a key");
        (key, number("db"), number(names[0]), number(names[1]))
    };
    rows.iter().map(row).collect()
}

/// The reply of `RL.TOP`: key, database, denials, and by how many these may be too many.
fn top(client: &mut Connection, words: &str) -> Vec<(String, i64, i64, i64)> {
    rows(client, words, ["denials", "overcount"])
}

#[test]
fn the_top_keys_are_those_denied_most() {
    let server = Server::start();
    for resp in [Resp::Two, Resp::Three] {
        let mut client = server.client_of(resp);
        call::<()>(&mut client, "FLUSHALL");
        call::<()>(&mut client, "RL.TOP reset");
        assert_eq!(top(&mut client, "RL.TOP"), []);
        for (times, key) in [(3, "three"), (12, "twelve"), (7, "seven")] {
            (0..=times).for_each(|_| {
                limit(&mut client, &format!("RL.GCRA {key} 1 1d"));
            });
        }
        call::<()>(&mut client, "SELECT 5");
        (0..10).for_each(|_| {
            limit(&mut client, "RL.BUCKET three 1 1d");
        });
        call::<()>(&mut client, "SELECT 0");
        let rows = [("twelve", 0, 12, 0), ("three", 5, 9, 0), ("seven", 0, 7, 0), ("three", 0, 3, 0)];
        let rows = rows.map(|(key, db, denials, over)| (key.to_string(), db, denials, over));
        assert_eq!(top(&mut client, "RL.TOP"), rows);
        assert_eq!(top(&mut client, "RL.TOP 2"), rows[..2]);
        assert_eq!(call::<String>(&mut client, "RL.TOP RESET"), "OK");
        assert_eq!(top(&mut client, "RL.TOP 1024"), []);
    }
    let mut client = server.client();
    for words in ["RL.TOP 0", "RL.TOP 1025", "RL.TOP -1", "RL.TOP ten"] {
        let text = "ERR n must be a whole number from 1 to 1024; or give RESET or WAITING instead of n";
        assert_eq!(error(&mut client, &command(words)), text, "{words}");
    }
    assert_eq!(error(&mut client, &command("RL.TOP 1 RESET")), "ERR wrong number of arguments for RL.TOP");
}

/// The reply of `RL.TOP WAITING`: key, database, waiting clients, and how long the first of them has waited.
fn waited_for(client: &mut Connection) -> Vec<(String, i64, i64, i64)> {
    rows(client, "RL.TOP waiting", ["waiting", "longest_ms"])
}

#[test]
fn the_keys_that_most_clients_wait_for_are_listed() {
    let (server, mut client) = Server::start().and_client();
    assert_eq!(waited_for(&mut client), []);
    let start_us = time_us(&mut client);
    let mut waiting = Vec::new();
    for (key, clients) in [("one", 1), ("three", 3), ("two", 2)] {
        assert_eq!(limit(&mut client, &format!("RL.FIXED {key} 1 1h"))[0], 1);
        for _ in 0..clients {
            let before = held(&mut client);
            waiting.push(Held::send(&server, &format!("RL.FIXED {key} 1 1h BLOCK 7200")));
            wait_for("a client to wait", || held(&mut client) == before + 1);
        }
    }
    // A call for two keys stands in the line of the key that makes it wait.
    waiting.push(Held::send(&server, "RL.ALL 2 two free FIXED 1 1h FIXED 1 1h BLOCK 7200"));
    wait_for("a client to wait", || held(&mut client) == 7);
    for resp in [Resp::Two, Resp::Three] {
        let mut client = server.client_of(resp);
        let rows = waited_for(&mut client);
        let passed_ms = (time_us(&mut client) - start_us) / 1_000 + 1;
        let names: Vec<_> = rows.iter().map(|(key, db, clients, _)| (&**key, *db, *clients)).collect();
        assert_eq!(names, [("three", 0, 3), ("two", 0, 3), ("one", 0, 1)]);
        assert!(rows.iter().all(|row| (0..=passed_ms).contains(&row.3)), "{rows:?} after {passed_ms} ms");
        // The clients of one line have waited for longer than those that came after them.
        assert!(rows[2].3 >= rows[0].3 && rows[0].3 >= rows[1].3, "{rows:?}");
    }
    call::<()>(&mut client, "DEL three two one");
    wait_for("the first clients to be granted", || waited_for(&mut client).iter().map(|row| row.2).sum::<i64>() == 4);
    drop(waiting);
    wait_for("no client to wait", || held(&mut client) == 0);
    assert_eq!(waited_for(&mut client), []);
    assert!(error(&mut client, &command("RL.TOP WAITING 5")).starts_with("ERR "));
}

#[test]
fn the_top_keeps_to_its_size_and_pace() {
    let (_server, mut client) = Server::start().and_client();
    call::<()>(&mut client, "CONFIG SET rl.top-keys 10 rl.top-half-life 86400");
    for round in 0..30 {
        for other in 0..20 {
            limit(&mut client, &format!("RL.FIXED other:{round}:{other} 0 1d"));
        }
        (0..20).for_each(|_| {
            limit(&mut client, "RL.FIXED often 0 1d");
        });
    }
    let rows = top(&mut client, "RL.TOP 1024");
    assert_eq!(rows.len(), 10);
    let (key, _, denials, over) = &rows[0];
    assert!(key == "often" && (600..=720).contains(denials) && denials - over <= 600, "{rows:?}");
    // Any name is possible, and a long one is cut off.
    let name = [b'\0', b'\n', 0xff].repeat(200);
    limit_of(&mut client, &name);
    call::<()>(&mut client, "CONFIG SET rl.top-keys 20");
    limit_of(&mut client, &name);
    let rows: Vec<BTreeMap<String, Value>> = call(&mut client, "RL.TOP");
    assert_eq!(rows.len(), 1, "another size of the table empties it");
    assert_eq!(rows[0]["key"], Value::BulkString(name[..512].to_vec()));

    call::<()>(&mut client, "CONFIG SET rl.top-half-life 1");
    (0..16).for_each(|_| {
        limit(&mut client, "RL.FIXED fading 0 1d");
    });
    // Denials are forgotten only seconds later.
    wait_for("denials to count half", || top(&mut client, "RL.TOP").first().is_some_and(|row| row.2 <= 8));
    wait_for("denials to be forgotten", || top(&mut client, "RL.TOP").is_empty());
    call::<()>(&mut client, "CONFIG SET rl.top-keys 0");
    limit(&mut client, "RL.FIXED never 0 1d");
    assert_eq!(top(&mut client, "RL.TOP"), []);
}

fn limit_of(client: &mut Connection, name: &[u8]) {
    let reply: Vec<i64> = redis::cmd("RL.FIXED").arg(name).arg("0").arg("1d").query(client).expect("five integers");
    assert_eq!(reply[0], 0);
}

fn setting(client: &mut Connection, name: &str) -> String {
    let pair: BTreeMap<String, String> = call(client, &format!("CONFIG GET rl.{name}"));
    pair[&format!("rl.{name}")].clone()
}

#[test]
fn settings_are_checked_and_changed_while_the_server_runs() {
    let (_server, mut client) = Server::start().and_client();
    let all: BTreeMap<String, String> = call(&mut client, "CONFIG GET rl.*");
    let defaults = [
        ("rl.compat", "cl.throttle"),
        ("rl.max-waiters", "0"),
        ("rl.shortcuts", "yes"),
        ("rl.top-half-life", "60"),
        ("rl.top-keys", "128"),
    ];
    assert_eq!(all, defaults.map(|(name, value)| (name.into(), value.into())).into());
    for (name, least, most) in [("max-waiters", 0, 1_000_000), ("top-keys", 0, 1024), ("top-half-life", 1, 86_400)] {
        for value in [least, most] {
            call::<()>(&mut client, &format!("CONFIG SET rl.{name} {value}"));
            assert_eq!(setting(&mut client, name), value.to_string());
        }
        for value in [(least - 1).to_string(), (most + 1).to_string(), "many".into()] {
            let words = format!("CONFIG SET rl.{name} {value}");
            assert!(error(&mut client, &command(&words)).contains("argument"), "{words}");
        }
        assert_eq!(setting(&mut client, name), most.to_string());
    }
    // Commands can't be added or removed while the server runs. A tool may set what it has read.
    call::<()>(&mut client, "CONFIG SET rl.compat cl.throttle");
    assert!(error(&mut client, &command("CONFIG SET rl.compat none")).contains("immutable"));
}

#[test]
fn settings_come_from_the_configuration_file_and_go_back_there() {
    // A server that is started with a configuration file, as in production.
    let dir = tempfile::tempdir().expect("a private folder");
    let (file, starter) = (dir.path().join("redis.conf"), dir.path().join("start-server"));
    std::fs::write(&file, "rl.top-keys 77\nrl.max-waiters 7\nrl.compat gcra cl.throttle\n").expect("a file");
    let script = format!("#!/bin/sh\nexec {} {} \"$@\"\n", server_program(), file.display());
    std::fs::write(&starter, script).expect("a file");
    std::fs::set_permissions(&starter, std::fs::Permissions::from_mode(0o700)).expect("a program");
    let (_server, mut client) = Server::of(&starter.to_string_lossy(), true, &[]).and_client();
    assert_eq!(["top-keys", "max-waiters", "top-half-life"].map(|name| setting(&mut client, name)), ["77", "7", "60"]);
    let mut compat: Vec<_> = setting(&mut client, "compat").split(' ').map(String::from).collect();
    compat.sort();
    assert_eq!(compat, ["cl.throttle", "gcra"]);
    call::<()>(&mut client, "CONFIG SET rl.top-half-life 5");
    call::<()>(&mut client, "CONFIG REWRITE");
    let text = std::fs::read_to_string(&file).expect("a file");
    assert!(
        text.lines().any(|line| line == "rl.top-half-life 5") && text.lines().any(|line| line == "rl.top-keys 77"),
        "{text}"
    );
    let refused = Server::refusing(&["--rl.top-keys", "1025"]);
    assert!(refused.contains("top-keys"), "{refused}");
}

#[test]
fn settings_come_with_the_loading_of_the_module() {
    let (_server, mut client) = Server::with(&["top-keys", "5", "COMPAT", "none", "top-keys", "7"]).and_client();
    assert_eq!(["top-keys", "top-half-life", "compat"].map(|name| setting(&mut client, name)), ["7", "60", "none"]);
    // The values in the file, and then the server's own options, take precedence.
    let server = Server::with(&["top-keys", "5", "--rl.top-keys", "9"]);
    assert_eq!(setting(&mut server.client(), "top-keys"), "9");
    // A value of several words may be in quotes or, as the server itself writes it to the file, without.
    for words in [&["compat", "cl.throttle gcra", "top-keys", "3"][..], &["compat", "cl.throttle", "gcra", "top-keys", "3"]]
    {
        let server = Server::with(words);
        let compat = setting(&mut server.client(), "compat");
        assert!(compat.contains("gcra") && compat.contains("cl.throttle"), "{compat}");
        assert_eq!(setting(&mut server.client(), "top-keys"), "3");
    }
    for (arguments, reported) in [
        (&["top-keys", "1025"][..], "top-keys must be a whole number from 0 to 1024"),
        (&["top-half-life", "0"], "top-half-life must be a whole number from 1 to 86400"),
        (&["top-keys", "x"], "top-keys must be a whole number from 0 to 1024"),
        (&["top-keys"], "top-keys needs a value"),
        (&["compat", "cl.throttl"], "compat must be of: none, cl.throttle, gcra"),
        (&["compat", " "], "compat must be of: none, cl.throttle, gcra"),
        (&["compat"], "compat needs a value"),
        (&["top-keys", "5", "6"], "top-keys must be a whole number from 0 to 1024"),
        (&["top-key", "5"], "the module's arguments are names, each with its value: compat, max-waiters, top-keys"),
        (&["%s%n", "5"], "the module's arguments are names"),
    ] {
        let log = Server::refusing(arguments);
        assert!(log.contains(&format!("redis-rl: {reported}")), "{arguments:?}: {log}");
    }
}

#[test]
fn the_top_is_for_operators() {
    let (_server, mut client) = Server::start().and_client();
    let allowed = |client: &mut Connection, words: &str| {
        let reply: String = call(client, &format!("ACL DRYRUN someone {words}"));
        reply == "OK"
    };
    // The settings of a module that was replaced are still in the file.
    call::<()>(&mut client, "MODULE UNLOAD rl");
    call::<()>(&mut client, &format!("MODULE LOAD {}", support::module().display()));
    let categories: Vec<String> = call(&mut client, "ACL CAT");
    let commands: Vec<String> = call(&mut client, "COMMAND LIST FILTERBY MODULE rl");
    call::<()>(&mut client, "ACL SETUSER someone reset on ~* +@all -@dangerous");
    // Before 7.2, commands of modules are in no ACL category.
    let known = allowed(&mut client, "RL.GCRA key 1 1") && !allowed(&mut client, "RL.TOP");
    assert_eq!(known, call::<Vec<String>>(&mut client, "ACL CAT dangerous").contains(&"rl.top".into()));
    if categories.contains(&"ratelimit".into()) {
        assert!(known);
        let mut own: Vec<String> = call(&mut client, "ACL CAT ratelimit");
        let mut all = commands.clone();
        own.sort();
        all.sort();
        assert_eq!(own, all);
        call::<()>(&mut client, "ACL SETUSER someone reset on ~* +@ratelimit -@admin");
        assert!(
            allowed(&mut client, "RL.HELP")
                && allowed(&mut client, "RL.PEEK GCRA key 1 1")
                && !allowed(&mut client, "RL.TOP")
        );
        assert!(!allowed(&mut client, "GET key"));
        call::<()>(&mut client, "ACL SETUSER someone reset on ~* +@read");
        assert!(allowed(&mut client, "RL.PEEK GCRA key 1 1") && allowed(&mut client, "RL.INSPECT key"));
        assert!(!allowed(&mut client, "RL.GCRA key 1 1"));
    }
}
