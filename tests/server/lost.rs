//! What becomes of clients that wait when their connection or their primary is lost.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use redis::Connection;
use support::{
    assert_same, call, command, error, free_port, held, info, limit, replies, server_program, snapshot, snapshots, wait_for,
    Held, Reply, Resp, Server,
};

// ---- A client that does not read ----

#[test]
fn a_client_that_does_not_read_takes_its_grants_and_delays_nobody() {
    let (server, mut client) = Server::start().and_client();
    call::<()>(&mut client, &format!("SET large {}", "x".repeat(4_000_000)));
    // What the client has sent before its call, and how many calls it sends. It reads no reply.
    for (before, calls) in [("PING", 1), ("GET large", 1), ("PING", 3)] {
        call::<()>(&mut client, "DEL key");
        let granted = info(&mut client, "rl", "rl_gcra_granted");
        assert_eq!(limit(&mut client, "RL.GCRA key 1 100ms")[0], 1);
        let mut silent = UnixStream::connect(server.socket()).expect("a connection");
        let words = format!("{before}\r\n{}", "RL.GCRA key 1 100ms BLOCK 1h\r\n".repeat(calls));
        silent.write_all(words.as_bytes()).expect("a connection");
        wait_for("it to wait", || held(&mut client) == 1);
        let others: Vec<_> = (0..3).map(|_| Held::send(&server, "RL.GCRA key 1 100ms BLOCK 1h")).collect();
        let rows: Vec<_> = replies(others).iter().map(Reply::granted).collect();
        assert_eq!(rows, [1; 3], "{before}");
        // Each of its calls is charged. The next one joins the line when the one before is answered.
        wait_for("its calls to be granted", || held(&mut client) == 0);
        assert_eq!(info(&mut client, "rl", "rl_gcra_granted") - granted, 1 + 3 + calls as i64, "{before}");
        // The replies are there for a client that reads later.
        let mut reader = BufReader::new(silent).lines();
        let rows = (0..calls).map(|_| {
            reader.find(|line| line.as_ref().expect("a line") == "*5");
            reader.next().expect("a line").expect("a line")
        });
        assert_eq!(rows.collect::<Vec<_>>(), vec![":1"; calls], "{before}");
    }
}

#[test]
fn the_setting_timeout_ends_no_wait() {
    let (server, mut client) = Server::with(&["--timeout", "1"]).and_client();
    assert_eq!(limit(&mut client, "RL.GCRA key 1 3")[0], 1);
    let reply = Held::send(&server, "RL.GCRA key 1 3 BLOCK 1h").reply();
    assert!(reply.at_us() - reply.sent_us > 2_000_000 && reply.granted() == 1, "{reply:?}");
}

// ---- A replica that must not serve stale state ----

#[test]
fn a_replica_that_serves_no_stale_state_refuses_reads_and_ends_waits() {
    let (server, mut client) = Server::on_port(&["--replica-serve-stale-data", "no"]).and_client();
    let calls = ["RL.PEEK GCRA key 1 1d", "RL.INSPECT key", "RL.GCRA key 1 1d", "RL.GCRA key 1 1d BLOCK 1d"];
    assert_eq!(limit(&mut client, "RL.GCRA key 1 1d")[0], 1);
    let before = snapshots(&mut client);
    let one = Held::send(&server, "RL.GCRA key 1 1d BLOCK 1d");
    let all = Held::send(&server, "RL.ALL 2 free key GCRA 1 1d GCRA 1 1d BLOCK 1d");
    // It becomes a replica of a primary that it cannot reach.
    call::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", free_port()));
    for reply in replies([one, all]) {
        let error = reply.row.expect_err("no grant by a replica");
        assert!(error.starts_with("UNBLOCKED "), "{error}");
    }
    for (words, code) in calls.iter().zip(["MASTERDOWN", "MASTERDOWN", "READONLY", "READONLY"]) {
        let error = error(&mut client, &command(words));
        assert!(error.starts_with(code), "{words}: {error}");
    }
    call::<()>(&mut client, "REPLICAOF NO ONE");
    assert_same(&before, &snapshots(&mut client));
    // A replica that loses its primary: what it had is readable only with the default of the setting.
    for (stale, code) in [("no", Some("MASTERDOWN")), ("yes", None)] {
        let mut primary = Server::on_port(&[]);
        assert_eq!(limit(&mut primary.client(), "RL.GCRA key 1 1d")[0], 1);
        call::<()>(&mut client, &format!("CONFIG SET replica-serve-stale-data {stale}"));
        call::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", primary.port));
        let link = |client: &mut Connection, state: &str| {
            wait_for(state, || call::<String>(client, "INFO replication").contains(&format!("master_link_status:{state}")));
        };
        link(&mut client, "up");
        assert_eq!(limit(&mut client, calls[0])[..3], [0, 1, 0]);
        primary.crash();
        link(&mut client, "down");
        match code {
            Some(code) => calls[..2].iter().for_each(|words| assert!(error(&mut client, &command(words)).starts_with(code))),
            None => assert_eq!(limit(&mut client, calls[0])[..3], [0, 1, 0]),
        }
    }
}

// ---- Sentinel ----

/// Starts a sentinel that watches the server `primary`, in a private folder.
fn sentinel(primary: u16) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().expect("a folder");
    let [file, program] = ["sentinel.conf", "start-sentinel"].map(|name| folder.path().join(name));
    let watch = format!("sentinel monitor main 127.0.0.1 {primary} 1\nsentinel down-after-milliseconds main 500\n");
    let watch = format!("{watch}sentinel failover-timeout main 5000\n");
    std::fs::write(&file, format!("{watch}unixsocket server.sock\nbind 127.0.0.1\n")).expect("a file");
    // Of the options that a server gets, a sentinel takes only the port.
    let script = format!("#!/bin/sh\nexec '{}' '{}' --sentinel --port \"$4\"\n", server_program(), file.display());
    std::fs::write(&program, script).expect("a file");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("a program");
    let server = Server::of(&program.display().to_string(), false, &[]);
    (folder, server)
}

#[test]
fn failovers_by_sentinel_end_waits_and_charge_none() {
    let first = Server::on_port(&[]);
    let mut second = Server::on_port(&["--replicaof", &format!("127.0.0.1 {}", first.port)]);
    let (_folder, sentinel) = sentinel(first.port);
    let mut asks = sentinel.client();
    // A sentinel that changes a server's part closes the connections to it.
    let is = |server: &Server, role: &str| {
        let ask = |mut client: Connection| command("INFO replication").query::<String>(&mut client);
        let text = server.try_client(Resp::Two).and_then(ask).unwrap_or_default();
        text.contains(&format!("role:{role}")) && (role == "master" || text.contains("master_link_status:up"))
    };
    let state = |server: &Server| ["key", "log"].map(|key| snapshot(&mut server.client(), key));
    let words = ["RL.GCRA key 8 12h", "RL.SLIDE log 8 12h"];
    let wait_on =
        |server: &Server| (0..8).map(|index| Held::send(server, &format!("{} BLOCK 1d", words[index % 2]))).collect();
    let assert_ended = |waiting: Vec<Held>| {
        for reply in replies(waiting) {
            // The sentinel closes the connections at the moment at which the server becomes a replica.
            let error = reply.row.expect_err("no grant by a server that is no primary any more");
            assert!(error.starts_with("UNBLOCKED ") || reply.at_us.is_none(), "{error}");
        }
    };
    words.iter().for_each(|words| assert_eq!(limit(&mut first.client(), &format!("{words} COST 8"))[0], 8));
    let before = state(&first);
    let waiting = wait_on(&first);
    wait_for("the replica", || is(&second, "slave") && state(&second) == before);
    // The sentinel refuses this until it knows the replica.
    wait_for("the failover", || command("SENTINEL FAILOVER main").query::<()>(&mut asks).is_ok());
    assert_ended(waiting);
    wait_for("the new parts", || is(&second, "master") && is(&first, "slave"));
    assert_eq!(state(&second), before, "nothing was charged");
    // The clients call the new primary, and each of them is granted once.
    let waiting = wait_on(&second);
    call::<()>(&mut second.client(), "DEL key log");
    assert_eq!(replies(waiting).iter().map(Reply::granted).sum::<i64>(), 8);
    let peeks = ["RL.PEEK GCRA key 8 12h COST 5", "RL.PEEK SLIDE log 8 12h COST 5"];
    peeks.iter().for_each(|words| assert_eq!(limit(&mut second.client(), words)[..3], [0, 8, 4], "{words}"));
    // Now the primary is killed while they wait for more than is left.
    let waiting: Vec<_> = words.iter().map(|words| Held::send(&second, &format!("{words} COST 8 BLOCK 1d"))).collect();
    let before = state(&second);
    wait_for("the replica", || state(&first) == before);
    second.crash();
    assert_ended(waiting);
    wait_for("the next failover", || is(&first, "master"));
    assert_eq!(state(&first), before, "nothing was charged");
    peeks.iter().for_each(|words| assert_eq!(limit(&mut first.client(), words)[..3], [0, 8, 4], "{words}"));
}
