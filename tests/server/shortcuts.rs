//! `rl.shortcuts no`: the module uses none of its shortcuts, and replies and replicates the same.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use redis::Connection;
use support::{assert_same, call, command, error, info, snapshots, wait_for, Server, LIMITERS};

const OFF: [&str; 2] = ["--rl.shortcuts", "no"];

/// Calls whose replies do not depend on the moment of the call. The integers have from one digit to fourteen, so that the arrays
/// are shorter than the shortest one for which the module has a shortcut, as long as the longest one, and longer.
fn timeless_calls() -> Vec<String> {
    let mut calls = Vec::new();
    for kind in ["FIXED", "GCRA", "BUCKET"] {
        for (limit, period) in [(0, "1ms"), (1, "1ms"), (10, "60"), (99_999, "1d"), (1_000_000_000_000_u64, "3650d")] {
            for amount in ["COST 1", "COST 12", "UPTO 700000000000", "COST 1000000000000"] {
                let key = format!("key:{}", calls.len());
                calls.push(format!("RL.PEEK {kind} {key} {limit} {period} {amount}"));
                calls.push(format!("RL.{kind} {key} {limit} {period} {amount}"));
            }
            let key = format!("debt:{}", calls.len());
            calls.push(format!("RL.{kind} {key} {limit} {period} FORCE 99999999"));
            calls.push(format!("RL.ALL 2 all:{key} other:{key} {kind} {limit} {period} FIXED 5 1m COST 2"));
        }
    }
    calls
}

/// Sends the calls and reads the bytes of all replies, up to that of a last `PING`.
fn replies(server: &Server, calls: &[String]) -> String {
    let mut socket = UnixStream::connect(server.socket()).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    let request: Vec<u8> = calls.iter().flat_map(|words| command(words).get_packed_command()).collect();
    socket.write_all(&request).expect("a request");
    socket.write_all(b"PING end\r\n").expect("a request");
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while !bytes.ends_with(b"$3\r\nend\r\n") {
        let len = socket.read(&mut part).expect("replies");
        assert!(len > 0, "the server has closed the connection");
        bytes.extend_from_slice(&part[..len]);
    }
    String::from_utf8(bytes).expect("text")
}

#[test]
fn replies_are_the_same_byte_for_byte() {
    let (on, off) = (Server::start(), Server::with(&OFF));
    let calls = timeless_calls();
    let (with, without) = (replies(&on, &calls), replies(&off, &calls));
    assert_eq!(with, without);
    assert!(!with.contains("-ERR"), "{with}");
    // The lengths of the arrays of five integers.
    let arrays = with.split('*').filter(|array| array.starts_with("5\r\n"));
    let lengths: Vec<usize> =
        arrays.map(|array| 1 + array.split_inclusive('\n').take(6).map(str::len).sum::<usize>()).collect();
    let (least, most) = (lengths.iter().min().expect("a length"), lengths.iter().max().expect("a length"));
    assert!(*least <= 26 && *most >= 60, "{least} to {most}");
}

/// Whether the module has registered a command filter, as it does where it replicates nothing until a replica comes.
fn has_filter(client: &mut Connection) -> bool {
    let text: String = call(client, "INFO modules");
    text.lines().find(|line| line.contains("name=rl,")).expect("the module").contains("filters=1")
}

/// Whether the module has called `ECHO`, whose replies it overwrites with its own.
fn has_templates(client: &mut Connection) -> bool {
    call::<String>(client, "INFO commandstats").contains("cmdstat_echo:")
}

#[test]
fn the_setting_turns_both_shortcuts_off() {
    for (server, expected) in [(Server::start(), true), (Server::with(&OFF), false)] {
        let mut client = server.client();
        let changes = info(&mut client, "persistence", "rdb_changes_since_last_save");
        call::<()>(&mut client, "RL.GCRA key 10 60");
        assert_eq!([has_filter(&mut client), has_templates(&mut client)], [expected; 2]);
        assert_eq!(info(&mut client, "rl", "rl_shortcuts"), i64::from(expected));
        assert!(info(&mut client, "persistence", "rdb_changes_since_last_save") > changes);
    }
}

#[test]
fn effects_reach_a_replica_and_the_append_only_file() {
    let primary = Server::on_port(&[&OFF[..], &["--appendonly", "yes"]].concat());
    let replica = primary.replica(&OFF);
    let (mut left, mut right) = (primary.client(), replica.client());
    let offset = info(&mut left, "replication", "master_repl_offset");
    for round in 0..50 {
        for kind in LIMITERS {
            call::<()>(&mut left, &format!("RL.{kind} {kind}:{} 100 1d COST 2", round % 5));
            call::<()>(&mut left, &format!("RL.{kind} gone:{kind} 100 1d"));
            call::<()>(&mut left, &format!("RL.{kind} gone:{kind} 100 1d REFUND 1"));
        }
    }
    wait_for("the replica", || {
        let at = info(&mut left, "replication", "master_repl_offset");
        at > offset && info(&mut right, "replication", "master_repl_offset") == at
    });
    let before = snapshots(&mut left);
    assert_same(&snapshots(&mut right), &before);
    call::<()>(&mut left, "DEBUG LOADAOF");
    assert_same(&snapshots(&mut left), &before);
}

#[test]
fn the_setting_is_one_of_two_words_and_stays() {
    for (options, value) in
        [(&[][..], "yes"), (&OFF[..], "no"), (&["shortcuts", "NO"], "no"), (&["shortcuts", "yes"], "yes")]
    {
        let (_server, mut client) = Server::with(options).and_client();
        let [_, set]: [String; 2] = call(&mut client, "CONFIG GET rl.shortcuts");
        assert_eq!(set, value, "{options:?}");
        let other = if value == "yes" { "no" } else { "yes" };
        assert!(error(&mut client, &command(&format!("CONFIG SET rl.shortcuts {other}"))).contains("immutable"));
        call::<()>(&mut client, &format!("CONFIG SET rl.shortcuts {value}"));
        let [_, set]: [String; 2] = call(&mut client, "CONFIG GET rl.shortcuts");
        assert_eq!(set, value, "{options:?}");
    }
    for words in [&["shortcuts", "maybe"][..], &["shortcuts", "yes no"], &["shortcuts", "yes", "no"]] {
        let log = Server::refusing(words);
        assert!(log.contains("redis-rl: shortcuts must be of: no, yes"), "{words:?}: {log}");
    }
    let log = Server::refusing(&["--rl.shortcuts", "maybe"]);
    assert!(log.contains("rl.shortcuts"), "{log}");
}
