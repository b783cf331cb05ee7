//! No call leaks memory, and expired keys leave nothing behind.

use std::time::Duration;

use redis::{Connection, ConnectionLike, Value};
use support::{call, info, pipe, wait_for, Held, Resp, Server, LIMITERS};

const CALLS: usize = 100_000;

/// `used_memory`, and the resident memory of the process. The module's heap is part of the latter only.
fn memory(client: &mut Connection) -> [i64; 2] {
    // The server updates the latter ten times a second.
    std::thread::sleep(Duration::from_millis(300));
    call::<()>(client, "MEMORY PURGE");
    [info(client, "memory", "used_memory"), info(client, "memory", "used_memory_rss")]
}

fn make(client: &mut Connection, words: &str, calls: usize) {
    for batch in 0..calls / 500 {
        let pipe = pipe((0..500).map(|index| words.replace('#', &((batch * 500 + index) % 100).to_string())));
        // Some replies are errors, on purpose.
        let replies = client.req_packed_commands(&pipe.get_packed_pipeline(), 0, 500);
        assert_eq!(replies.expect("replies").len(), 500);
    }
}

#[test]
fn a_hundred_thousand_calls_of_each_kind_leak_no_memory() {
    let (_server, mut client) = Server::start().and_client();
    // With short periods, keys come and go all the time. With long ones, they fill up.
    for words in [
        "RL.FIXED key:# 10 1ms",
        "RL.FIXED key:# 10 1",
        "RL.SLIDE key:# 10 1ms",
        "RL.SLIDE key:# 1000 100ms",
        "RL.SLIDE key:# 1000 100ms UPTO 5 SEGMENTS 16",
        "RL.GCRA key:# 10 1ms",
        "RL.GCRA key:# 10 1 COST 3",
        "RL.GCRA key:# 10 1 RESERVE 1",
        "RL.BUCKET key:# 10 1 STEP",
        "RL.BUCKET key:# 10 1 FORCE 1",
        "RL.BUCKET key:# 10 1 REFUND 1",
        "RL.GCRA key:# 10 1 COST 10 BLOCK 1us",
        "RL.PEEK SLIDE key:# 1000 100ms",
        "RL.PEEK SLIDE key:# 1000 90ms SEGMENTS 7",
        "RL.ALL 2 key:# other:# GCRA 10 1 FIXED 5 1 COST 2",
        "RL.ALL 2 key:# key:# GCRA 10 1 FIXED 5 1",
        "RL.INSPECT key:#",
        "RL.GCRA key:# 10 1 BRUST 5",
        "RL.GCRA list:# 10 1",
    ] {
        call::<()>(&mut client, "FLUSHALL");
        for index in 0..100 {
            call::<()>(&mut client, &format!("RPUSH list:{index} a"));
        }
        make(&mut client, words, CALLS / 2);
        // The size of a hundred keys and of the allocator's caches varies between rounds. A leak of eight bytes per call is
        // larger than that, and happens in every round.
        let bounds = [300_000, 780_000];
        let mut seen = Vec::new();
        // From the end of one round to the end of the next, because the allocator returns more memory in an idle moment.
        let mut before = memory(&mut client);
        let clean = (0..12).any(|_| {
            make(&mut client, words, CALLS);
            let after = memory(&mut client);
            let grown = [after[0] - before[0], after[1] - before[1]];
            before = after;
            seen.push(grown);
            grown[0] < bounds[0] && grown[1] < bounds[1]
        });
        assert!(clean, "{words}: used_memory and the process grew by {seen:?} bytes");
    }
}

#[test]
fn nothing_is_left_when_the_keys_have_expired() {
    let (_server, mut client) = Server::start().and_client();
    let round = |client: &mut Connection| {
        for name in LIMITERS {
            for index in 0..25_000 / 500 {
                let keys = index * 500..(index + 1) * 500;
                pipe(keys.map(|key| format!("RL.{name} {name}:{key} 10 1s COST 2"))).exec(client).expect("replies");
            }
        }
        wait_for("the keys to expire", || call::<i64>(client, "DBSIZE") == 0);
    };
    round(&mut client);
    // The server shrinks its hash tables step by step.
    std::thread::sleep(Duration::from_millis(1_500));
    let [before, _] = memory(&mut client);
    round(&mut client);
    wait_for("the memory of the keys that have expired", || memory(&mut client)[0] - before < 200_000);
}

#[test]
fn unloading_leaks_no_memory_but_a_little_of_the_servers() {
    let (_server, mut client) = Server::start().and_client();
    let mut round = |rounds: usize| {
        for _ in 0..rounds {
            call::<()>(&mut client, "CONFIG SET rl.top-keys 1024");
            for index in 0..1_024 {
                call::<()>(&mut client, &format!("RL.GCRA {index:0512} 0 1d"));
            }
            call::<()>(&mut client, "MODULE UNLOAD rl");
            call::<()>(&mut client, &format!("MODULE LOAD {}", support::module().display()));
        }
        memory(&mut client)
    };
    let before = round(5);
    let after = round(20);
    // Each time the module is loaded, a client structure with its buffer is left in the server: the crate never frees the
    // context that it belongs to.
    assert!(after[0] - before[0] < 20 * 24_000 && after[1] - before[1] < 4_000_000, "{before:?}, then {after:?}");
}

#[test]
fn waiting_leaks_no_memory() {
    let (server, mut client) = Server::start().and_client();
    let mut round = |rounds: usize| {
        for _ in 0..rounds {
            call::<()>(&mut client, "RL.GCRA key 10 1d FORCE 10");
            let waiting: Vec<_> =
                (0..20).map(|_| Held::prepare(&server, Resp::Two).call(&mut client, "RL.GCRA key 10 1d BLOCK 1d")).collect();
            // Half are granted, some are unblocked, and some disconnect.
            call::<()>(&mut client, "DEL key");
            for held in &waiting[10..15] {
                call::<()>(&mut client, &format!("CLIENT UNBLOCK {}", held.id));
            }
            drop(waiting);
            wait_for("them to go", || info(&mut client, "clients", "connected_clients") == 1);
            call::<()>(&mut client, "DEL key");
        }
        memory(&mut client)
    };
    let before = round(10);
    let after = round(60);
    assert!(after[0] - before[0] < 300_000 && after[1] - before[1] < 3_000_000, "{before:?}, then {after:?}");
    assert_eq!(call::<Value>(&mut server.client(), "MODULE UNLOAD rl"), Value::Okay);
}
