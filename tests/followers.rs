//! Other modules are told of keys that expire, and may then call this one, or change any key, in the middle of a call.

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redis::Value;
use support::{call, held, info, limit, wait_for, Held, Server};

/// A server with a module that makes this call whenever a key expires. Keys expire only when they are looked at.
fn server(reaction: &str) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("follower.so");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-I"])
        .arg(support::package(&root.join("Cargo.toml"), "redis-module").join("src/include"))
        .arg("-o")
        .arg(&module)
        .arg(root.join("tests/support/follower.c"))
        .output()
        .expect("cc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let module = module.display().to_string();
    let options: Vec<&str> = ["--loadmodule", &module].into_iter().chain(reaction.split(' ')).collect();
    let server = Server::with(&options);
    call::<()>(&mut server.client(), "DEBUG SET-ACTIVE-EXPIRE 0");
    (folder, server)
}

#[test]
fn a_queue_that_is_served_can_be_called_for() {
    // Another key, and the very one that they wait for; takings, lookings and changings.
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
        limit(&mut client, "RL.GCRA waited 1 200ms");
        let mut waiter = Held::send(&server, "RL.GCRA waited 1 200ms BLOCK 1");
        wait_for("it to wait", || held(&mut client) == 1);
        // The timer is what finds the key expired: until then, nobody else comes.
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
fn keys_of_one_call_may_go_when_another_expires() {
    for reaction in ["DEL {x}1", "SET {x}1 else", "FLUSHALL", "RL.GCRA {x}1 100 3600 COST 7", "EXPIRE {x}1 1"] {
        let (_folder, server) = server(reaction);
        let mut client = server.client();
        for _ in 0..3 {
            call::<()>(&mut client, "DEL {x}1");
            limit(&mut client, "RL.GCRA {x}1 100 3600");
            limit(&mut client, "RL.GCRA {x}2 1 1ms");
            std::thread::sleep(Duration::from_millis(5));
            let reply: redis::RedisResult<Value> =
                support::command("RL.ALL 2 {x}1 {x}2 GCRA 100 3600 GCRA 1 5ms").query(&mut client);
            match reply {
                Ok(Value::Array(rows)) => assert_eq!(rows[0], Value::Int(1), "{reaction}: {rows:?}"),
                reply => assert!(reaction.starts_with("SET"), "{reaction}: {reply:?}"),
            }
            let left: i64 = call(&mut client, "PTTL {x}1");
            assert!(left > 0 || reaction.starts_with("SET"), "{reaction}: {left}");
        }
    }
}
