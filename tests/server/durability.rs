//! State survives in RDB and AOF files and on replicas. Values and deadlines are the same everywhere.

use redis::Connection;
use support::{assert_same, call, flood_all, limit, snapshots, Server};

#[test]
fn a_reload_from_rdb_keeps_every_byte_and_deadline() {
    let server = Server::start();
    let mut client = server.client();
    flood_all(&mut client);
    let before = snapshots(&mut client);
    call::<()>(&mut client, "DEBUG RELOAD");
    assert_same(&snapshots(&mut client), &before);
    goes_on(&mut client);
}

#[test]
fn a_crash_with_an_append_only_file_loses_no_acknowledged_grant() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = server.client();
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
    let server = Server::on_port(&[]);
    let mut client = server.client();
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
    for name in ["FIXED", "SLIDE", "GCRA", "BUCKET"] {
        assert_eq!(limit(client, &format!("RL.{name} full:{name} 5 1d"))[..3], [0, 5, 0], "{name}");
    }
}
