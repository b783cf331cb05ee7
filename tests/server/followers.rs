//! Other modules are notified of keys that expire. They may then call this module or change any key, while one of its calls
//! is being executed.

use std::time::Duration;

use redis::{ConnectionLike, Value};
use support::witness::build;
use support::{at_once, call, command, held, info, limit, AllRows, Server};

/// Starts a server with a module that makes this call whenever a key expires. Keys expire only when a command accesses them.
fn server(reaction: &str) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().expect("a folder");
    let module = build("follower", folder.path());
    let module = module.display().to_string();
    let options: Vec<&str> = ["--loadmodule", &module].into_iter().chain(reaction.split(' ')).collect();
    let server = Server::with(&options);
    call::<()>(&mut server.client(), "DEBUG SET-ACTIVE-EXPIRE 0");
    (folder, server)
}

#[test]
fn other_modules_may_make_calls_while_a_queue_is_served() {
    // The reactions concern another key, or the key that clients wait for. They grant, read and change.
    for (reaction, takes) in [
        ("RL.PEEK GCRA other 10 60", false),
        ("RL.GCRA other 10 60", false),
        ("INFO rl", false),
        ("RL.PEEK GCRA waited 1 200ms", false),
        ("RL.GCRA waited 1 200ms", false),
        ("RL.GCRA waited 1 200ms FORCE 1", true),
        ("RL.ALL 2 waited other GCRA 1 200ms GCRA 10 60", false),
        ("DEL waited", false),
        ("SET waited else", true),
        ("CLIENT UNBLOCK 0", false),
    ] {
        let (_folder, server) = server(reaction);
        let mut client = server.client();
        let mut waiter = at_once(&server, ["RL.GCRA waited 1 200ms", "RL.GCRA waited 1 200ms BLOCK 30"]).held.remove(1);
        // Only the module's timer finds that the key has expired: no other call accesses it before.
        let stood_still: String = call(&mut client, "DEBUG SLEEP 0.3");
        assert_eq!(stood_still, "OK");
        let row = waiter.reply().row;
        assert!(takes || row.as_ref().is_ok_and(|row| row[0] == 1), "{reaction}: {row:?}");
        assert_eq!(held(&mut client), 0, "{reaction}");
        let expired: i64 = info(&mut client, "stats", "expired_keys");
        assert!(expired > 0, "{reaction}");
    }
}

#[test]
fn other_modules_may_make_calls_while_a_call_of_several_keys_is_served() {
    // The reactions concern another key, or one of the keys that the call waits for. They grant, read and change. Those of the
    // second column may keep the call from its units for longer than it waits, or end its wait with an error.
    for (reaction, takes) in [
        ("RL.PEEK GCRA other 10 60", false),
        ("RL.GCRA other 10 60", false),
        ("INFO rl", false),
        ("RL.PEEK GCRA {x}1 1 200ms", false),
        ("RL.ALL 2 {x}1 {x}2 GCRA 1 200ms FIXED 1 200ms", false),
        ("RL.ALL 2 {x}2 {x}3 FIXED 1 200ms SLIDE 5 1h ID a BLOCK 1", false),
        ("DEL {x}1", false),
        ("FLUSHALL", false),
        ("RL.FIXED {x}2 1 200ms FORCE 1", true),
        ("SET {x}1 else", true),
        ("RL.SLIDE {x}3 5 1h FORCE 5", true),
        ("CLIENT UNBLOCK 0", false),
    ] {
        let (_folder, server) = server(reaction);
        let mut client = server.client();
        let calls = [
            "RL.GCRA {x}1 1 200ms",
            "RL.FIXED {x}2 1 200ms",
            "RL.ALL 3 {x}1 {x}2 {x}3 GCRA 1 200ms FIXED 1 200ms SLIDE 5 1h COST 2 ID call BLOCK 3",
        ];
        let mut waiter = at_once(&server, calls).held.remove(2);
        // Only the module's timer finds that the keys have expired: no other call accesses them before.
        call::<String>(&mut client, "DEBUG SLEEP 0.3");
        let row = waiter.answer::<AllRows>().row;
        let granted = row.as_ref().is_ok_and(|(granted, ..)| *granted == 1);
        assert!(takes || granted, "{reaction}: {row:?}");
        assert_eq!(held(&mut client), 0, "{reaction}");
        assert!(info(&mut client, "stats", "expired_keys") > 0, "{reaction}");
        // The third key, which no reaction empties after the grant, has been charged only with the others.
        let released: Option<[i64; 5]> = call(&mut client, "RL.RELEASE {x}3 call");
        assert_eq!(released.is_some(), granted, "{reaction}: {row:?}");
    }
}

#[test]
fn other_modules_may_change_the_keys_of_a_call_when_one_of_them_expires() {
    for reaction in ["DEL {x}1", "SET {x}1 else", "FLUSHALL", "RL.GCRA {x}1 100 3600 COST 7", "EXPIRE {x}1 1"] {
        let (_folder, server) = server(reaction);
        let mut client = server.client();
        for _ in 0..3 {
            call::<()>(&mut client, "DEL {x}1");
            limit(&mut client, "RL.GCRA {x}1 100 3600");
            limit(&mut client, "RL.GCRA {x}2 1 1ms");
            std::thread::sleep(Duration::from_millis(5));
            // Both calls are executed right after each other: one of the reactions leaves the key for only a second.
            let mut pipe = redis::pipe();
            pipe.add_command(command("RL.ALL 2 {x}1 {x}2 GCRA 100 3600 GCRA 1 5ms")).add_command(command("PTTL {x}1"));
            let replies = client.req_packed_commands(&pipe.get_packed_pipeline(), 0, 2).expect("two replies");
            match &replies[0] {
                Value::Array(rows) => assert_eq!(rows[0], Value::Int(1), "{reaction}: {rows:?}"),
                reply => assert!(reaction.starts_with("SET"), "{reaction}: {reply:?}"),
            }
            let left: i64 = redis::from_redis_value(replies[1].clone()).expect("a time");
            assert!(left > 0 || reaction.starts_with("SET"), "{reaction}: {left}");
        }
    }
}
