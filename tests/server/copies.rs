//! State survives in RDB and AOF files and on replicas, with the same values and deadlines everywhere. Replicas that serve reads while
//! they load a copy from their primary do so with the keys that they had.

use std::collections::HashMap;

use redis::{Connection, Value};
use support::{
    assert_same, call, command, error, flood_all, held, info, limit, snapshots, wait_for, Held, Server, LIMITERS,
};

#[test]
fn a_reload_from_rdb_keeps_every_byte_and_deadline() {
    let (_server, mut client) = Server::start().and_client();
    flood_all(&mut client);
    let before = snapshots(&mut client);
    call::<()>(&mut client, "DEBUG RELOAD");
    assert_same(&snapshots(&mut client), &before);
    goes_on(&mut client);
}

#[test]
fn a_crash_with_an_append_only_file_loses_no_acknowledged_grant() {
    let (mut server, mut client) = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).and_client();
    flood_all(&mut client);
    let before = snapshots(&mut client);
    server.crash_and_restart();
    let mut client = server.client();
    assert_same(&snapshots(&mut client), &before);
    goes_on(&mut client);
    // Again, from a rewritten file with more commands after it.
    server.rewrite_append_only_file();
    flood_all(&mut client);
    let before = snapshots(&mut client);
    server.crash_and_restart();
    assert_same(&snapshots(&mut server.client()), &before);
}

#[test]
fn an_effect_that_a_crash_cut_off_is_undone_whole() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let charge = |server: &Server, id: usize| limit(&mut server.client(), &format!("RL.GCRA key 1000 1d ID {id}"))[2];
    let remaining = |server: &Server| limit(&mut server.client(), "RL.PEEK GCRA key 1000 1d")[2];
    let folder = std::fs::read_dir(server.dir().join("appendonlydir")).expect("the folder");
    let mut paths = folder.map(|entry| entry.expect("an entry").path());
    let path = paths.find(|path| path.to_string_lossy().ends_with(".incr.aof")).expect("the file of effects");
    // Most effects of calls with ids are transactions of several commands; one that needs more room is a single SET.
    let is_transaction = |id: &usize| {
        assert_eq!(charge(&server, *id), 1_000 - *id as i64);
        std::fs::read(&path).expect("the file").ends_with(b"EXEC\r\n")
    };
    let last = (1..100).find(is_transaction).expect("a transaction") as i64;
    // The crash cuts the last one off, within its last command.
    server.crash();
    let bytes = std::fs::read(&path).expect("the file");
    std::fs::write(&path, &bytes[..bytes.len() - 3]).expect("the file is written");
    server.restart();
    assert_eq!(remaining(&server), 1_000 - last + 1);
    // After a rewrite, new effects are not lost.
    server.rewrite_append_only_file();
    assert_eq!(charge(&server, 1_000), 1_000 - last);
    server.crash_and_restart();
    assert_eq!(remaining(&server), 1_000 - last);
}

#[test]
fn the_append_only_file_holds_effects_and_no_calls() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    flood_all(&mut server.client());
    let mut file = Vec::new();
    for entry in std::fs::read_dir(server.dir().join("appendonlydir")).expect("the folder") {
        file.extend(std::fs::read(entry.expect("an entry").path()).expect("a file"));
    }
    let has = |word: &[u8]| file.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word));
    assert!(has(b"PXAT") && has(b"SETRANGE") && has(b"PEXPIREAT"));
    assert!(!has(b"RL."));
}

#[test]
fn a_replica_holds_the_same_bytes_and_deadlines() {
    let (server, mut client) = Server::on_port(&[]).and_client();
    flood_all(&mut client);
    let replica = server.replica(&[]);
    let mut other = replica.client();
    assert_same(&snapshots(&mut other), &snapshots(&mut client));
    for _ in 0..3 {
        flood_all(&mut client);
        assert_eq!(call::<i64>(&mut client, "WAIT 1 50000"), 1);
        assert_same(&snapshots(&mut other), &snapshots(&mut client));
    }
    // The last replica of a chain, promoted to primary, goes on counting.
    call::<()>(&mut other, "REPLICAOF NO ONE");
    goes_on(&mut other);
}

/// Panics unless keys that were used up are still used up.
fn goes_on(client: &mut Connection) {
    for name in LIMITERS {
        assert_eq!(limit(client, &format!("RL.{name} full:{name} 5 1d"))[..3], [0, 5, 0], "{name}");
    }
}

// ---- Callers with several policies on one log ----

/// The number of entries in the log, with ticks of 110 ms.
const ENTRIES: usize = 65_000;
const PERIOD: &str = "7200s";

/// The position of both servers in the replication stream.
fn offset(client: &mut Connection) -> i64 {
    info(client, "replication", "master_repl_offset")
}

/// A primary and a replica. Their stream contains nothing but the effects of calls.
fn without_pings() -> (Server, Server) {
    let primary = Server::on_port(&["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"]);
    let replica = primary.replica(&[]);
    (primary, replica)
}

fn in_step(primary: &mut Connection, replica: &mut Connection) {
    wait_for("the replica", || offset(primary) == offset(replica));
    assert_same(&snapshots(replica), &snapshots(primary));
}

/// A record of a log with one unit in each of its last ticks. The last one ended a second ago.
fn log(now_us: i64, entries: usize) -> Vec<u8> {
    let (period, tick) = (7_200_000_000_i64, 109_864_i64);
    let base = (now_us - 1_000_000) / tick - entries as i64;
    let mut bytes = vec![0xfa, 1, 2, 0];
    bytes.extend(4_000_000_u32.to_le_bytes());
    [period, tick, base].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes.extend([0; 8]);
    (0..entries as u32).for_each(|entry| bytes.extend([entry.to_le_bytes(), (entry + 1).to_le_bytes()].concat()));
    bytes
}

/// The bytes that each of these calls adds to the stream. They are made in turn, 20 times each, on a log with so many
/// entries.
fn bytes_a_call(primary: &mut Connection, replica: &mut Connection, entries: usize, words: &[&str]) -> i64 {
    let (seconds, us): (i64, i64) = redis::cmd("TIME").query(primary).expect("the time");
    let value = log(seconds * 1_000_000 + us, entries);
    redis::cmd("SET").arg("log").arg(value).arg("PX").arg(7_300_000).exec(primary).expect("a log");
    // The first calls make the log adopt the tick and the period that serve them all.
    for _ in 0..2 {
        words.iter().for_each(|words| assert_eq!(call::<[i64; 5]>(primary, words)[0], 1, "{words}"));
    }
    bytes_in_turn(primary, replica, 20, words)
}

/// The bytes that each of these calls adds to the stream. They are made in turn, `times` times each.
fn bytes_in_turn(primary: &mut Connection, replica: &mut Connection, times: usize, words: &[&str]) -> i64 {
    in_step(primary, replica);
    let before = offset(primary);
    for _ in 0..times {
        words.iter().for_each(|words| assert_eq!(limit(primary, words)[0], 1, "{words}"));
    }
    let bytes = offset(primary) - before;
    in_step(primary, replica);
    bytes / (times * words.len()) as i64
}

#[test]
fn callers_in_turn_replicate_little() {
    let (primary, replica) = without_pings();
    let (mut left, mut right) = (primary.client(), replica.client());
    for entries in [3, 100, ENTRIES] {
        let mut cost = |words: &[&str]| bytes_a_call(&mut left, &mut right, entries, words);
        let one = format!("RL.SLIDE log 4000000 {PERIOD}");
        let alone = cost(&[&one]);
        assert!(alone <= 100, "{alone} bytes alone, {entries} entries");
        for other in [
            // Two limits; two SEGMENTS, a coarser and a finer one; two periods, a shorter and a longer one.
            format!("RL.SLIDE log 5000000 {PERIOD}"),
            format!("RL.SLIDE log 4000000 {PERIOD} SEGMENTS 24"),
            format!("RL.SLIDE log 4000000 {PERIOD} SEGMENTS 60000"),
            "RL.SLIDE log 4000000 7199s".into(),
            "RL.SLIDE log 4000000 1m".into(),
            "RL.SLIDE log 4000000 8000s".into(),
        ] {
            let both = cost(&[&one, &other]);
            assert!(both <= alone + 200, "{both} bytes a call with {other}, {alone} alone, {entries} entries");
        }
    }
}

#[test]
fn callers_in_turn_on_a_key_with_ids_replicate_little() {
    let (primary, replica) = without_pings();
    let (mut left, mut right) = (primary.client(), replica.client());
    for name in LIMITERS {
        // As while a new version of a service, with another period, takes the place of the old one.
        let [old, new] = ["7200s", "7199s"].map(|period| format!("RL.{name} ids:{name} 4000000 {period}"));
        for id in 0..1_000 {
            assert_eq!(limit(&mut left, &format!("{old} ID {id}"))[0], 1);
        }
        let bytes = bytes_in_turn(&mut left, &mut right, 150, &[&old, &new]);
        assert!(bytes < 1_024, "{name}: {bytes} bytes a call at 1000 ids");
    }
}

// ---- Loading a copy while reads go on (`repl-diskless-load swapdb`): servers do so only if all modules have declared that they can ----

/// A primary and a replica that has its keys. A copy of the keys takes long, except for the first one.
fn primary_and_replica(options: &[&str]) -> (Server, Server) {
    let primary = Server::on_port(&["--repl-diskless-sync", "yes", "--repl-backlog-size", "16kb", "--rdbcompression", "no"]);
    let address = format!("127.0.0.1 {}", primary.port);
    let own = ["--replicaof", &address, "--repl-diskless-load", "swapdb", "--loading-process-events-interval-bytes", "1024"];
    let mut client = primary.client();
    call::<()>(&mut client, "DEBUG POPULATE 600 filler 20000");
    let replica = Server::on_port(&[&own[..], options].concat());
    replica.wait_until_linked();
    (primary, replica)
}

/// Makes the replica load all keys again from the same primary, which takes two seconds or more. Waits until it is loading.
fn load_again(primary: &Server, replica: &Server, meanwhile: &str) {
    let mut client = primary.client();
    call::<()>(&mut client, "CONFIG SET rdb-key-save-delay 5000");
    // The replica cannot resume, since the backlog does not have what it has missed.
    let mut transaction = redis::pipe();
    transaction.atomic().cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]).add_command(command(meanwhile));
    transaction.cmd("SET").arg("filler").arg("-".repeat(100_000));
    transaction.query::<Value>(&mut client).expect("a transaction");
    let mut client = replica.client();
    wait_for("the load", || info(&mut client, "persistence", "async_loading") == 1);
}

fn is_loading(client: &mut Connection) -> bool {
    info(client, "persistence", "async_loading") == 1
}

fn used(client: &mut Connection, key: &str) -> Value {
    call::<HashMap<String, Value>>(client, &format!("RL.INSPECT {key}"))["used"].clone()
}

#[test]
fn reads_go_on_during_a_load() {
    let (primary, replica) = primary_and_replica(&[]);
    let (mut left, mut right) = (primary.client(), replica.client());
    for name in LIMITERS {
        limit(&mut left, &format!("RL.{name} {name} 9 1d COST 2"));
    }
    wait_for("the replica", || limit(&mut right, "RL.PEEK BUCKET BUCKET 9 1d")[2] == 7);
    load_again(&primary, &replica, "RL.FIXED FIXED 9 1d");
    // These grants are not in the copy: the replica gets them as effects, after it has loaded.
    for name in ["SLIDE", "GCRA", "BUCKET"] {
        limit(&mut left, &format!("RL.{name} {name} 9 1d"));
    }
    for name in LIMITERS {
        // The former state, as long as the replica has no other.
        assert_eq!(limit(&mut right, &format!("RL.PEEK {name} {name} 9 1d"))[..3], [1, 9, 7], "{name}");
        assert_eq!(used(&mut right, name), Value::Int(2), "{name}");
        let refusal = error(&mut right, &command(&format!("RL.{name} {name} 9 1d")));
        assert!(refusal.starts_with("READONLY"), "{refusal}");
    }
    assert!(is_loading(&mut right));
    call::<()>(&mut left, "CONFIG SET rdb-key-save-delay 0");
    replica.wait_until_linked();
    for name in LIMITERS {
        wait_for(name, || limit(&mut right, &format!("RL.PEEK {name} {name} 9 1d"))[2] == 6);
        assert_eq!(used(&mut right, name), Value::Int(3), "{name}");
    }
}

#[test]
fn waiting_clients_notice_that_all_keys_were_exchanged() {
    let (primary, replica) = primary_and_replica(&["--replica-read-only", "no"]);
    let (mut left, mut right) = (primary.client(), replica.client());
    limit(&mut left, "RL.GCRA key 1 12h");
    wait_for("the replica", || call(&mut right, "EXISTS key"));
    let waiter = Held::send(&replica, "RL.GCRA key 1 12h BLOCK 1d");
    load_again(&primary, &replica, "DEL key");
    // A client that comes while the replica loads waits as well.
    let second = Held::send(&replica, "RL.GCRA key 1 12h BLOCK 1d");
    assert_eq!(held(&mut right), 2);
    assert!(is_loading(&mut right));
    call::<()>(&mut left, "CONFIG SET rdb-key-save-delay 0");
    assert_eq!(waiter.row()[0], 1);
    // The second one goes on to wait for the unit that the first one has got.
    assert_eq!(held(&mut right), 1);
    drop(second);
}
