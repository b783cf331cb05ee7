//! Effects are replicated only while there is a receiver. A receiver that begins in the middle of load, by any kind of
//! synchronisation, misses none.
//!
//! Each key is written only once or twice, so that a later write can't make up for a missing one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use redis::Connection;
use support::{assert_same, call, command, info, pipe, snapshots, wait_for, Load, Server, LIMITERS};

/// Numbers keys, so that no name is used twice.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Makes a few calls of every kind.
fn calls(client: &mut Connection) {
    let mut pipe = redis::pipe();
    for name in LIMITERS {
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        pipe.add_command(command(&format!("RL.{name} one:{key} 5 1d COST 2")));
        if key.is_multiple_of(5) {
            pipe.add_command(command(&format!("RL.{name} one:{key} 5 1d REFUND 2")));
        }
    }
    for name in LIMITERS {
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        pipe.add_command(command(&format!("RL.{name} ids:{key} 5 1d COST 2 ID one")));
        pipe.add_command(command(&format!("RL.{name} ids:{key} 5 1d COST 2 ID two")));
        pipe.add_command(command(&format!("RL.SETTLE ids:{key} one {}", key % 4)));
        // A unit drains in half a minute, so no key expires between two snapshots, however slow the machine is.
        pipe.add_command(command(&format!("RL.{name} many-ids:{name} 1000000 365d ID charge:{key}")));
    }
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    pipe.add_command(command(&format!("RL.LEASE lease:{key} 5 1d ID one")));
    pipe.add_command(command(&format!("RL.LEASE lease:{key} 5 1d ID two")));
    pipe.add_command(command(&format!("RL.RELEASE lease:{key} one")));
    pipe.add_command(command(&format!("RL.LEASE leases 60000 1d ID worker:{key}")));
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    pipe.add_command(command("RL.SLIDE log 1000000 1h"));
    pipe.add_command(command(&format!("RL.ALL 2 all:a:{key} all:b:{key} GCRA 5 1d FIXED 5 1d")));
    // One call of several keys that is granted at once, and one that usually waits until a lease lapses.
    pipe.add_command(command(&format!(
        "RL.ALL 3 whole:s:{key} whole:b:{key} whole:l:{key} SLIDE 5 1d BUCKET 5 1d LEASE 5 1d COST 2 ID one BLOCK 1"
    )));
    pipe.add_command(command(&format!("RL.LEASE waits:l:{key} 1 1ms ID holder")));
    pipe.add_command(command(&format!("RL.ALL 2 waits:l:{key} waits:f:{key} LEASE 1 1d FIXED 5 1d ID two BLOCK 1")));
    pipe.cmd("EVAL").arg("return redis.call('RL.FIXED', KEYS[1], 5, '1d')").arg(1).arg(format!("script:{key}"));
    pipe.ignore().exec(client).expect("replies");
    let mut transaction = redis::pipe();
    transaction.atomic().cmd("SET").arg(format!("other:{key}")).arg(key).arg("EX").arg(86_400);
    transaction.add_command(command(&format!("RL.BUCKET transaction:{key} 5 1d")));
    transaction.ignore().exec(client).expect("a transaction");
}

/// Does `work` while two clients make calls all the time, and for a while before and after it.
fn under_load<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    let load = Load::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = server.client();
                while load.goes_on() {
                    calls(&mut client);
                    sleep(Duration::from_millis(2));
                }
            });
        }
        let _end = load.ends_here();
        sleep(Duration::from_millis(50));
        let done = work();
        sleep(Duration::from_millis(50));
        done
    })
}

/// Panics unless both servers hold the same. No client may call meanwhile.
fn assert_in_step(primary: &Server, replica: &Server) {
    let (mut left, mut right) = (primary.client(), replica.client());
    wait_for("the replica", || {
        // Both servers count the bytes of the same stream, also if there is another server between them.
        let offset = |client: &mut Connection| info(client, "replication", "master_repl_offset");
        offset(&mut left) == offset(&mut right)
    });
    assert_same(&snapshots(&mut right), &snapshots(&mut left));
}

/// Panics unless the calls so far were not replicated.
fn assert_alone(server: &Server) {
    let mut client = server.client();
    assert_eq!(info(&mut client, "replication", "repl_backlog_active"), 0);
    let changes = info(&mut client, "persistence", "rdb_changes_since_last_save");
    calls(&mut client);
    // The calls count as changes nevertheless.
    assert!(info(&mut client, "persistence", "rdb_changes_since_last_save") >= changes + 9);
}

#[test]
fn a_replica_that_syncs_by_disk() {
    let primary = Server::on_port(&["--repl-diskless-sync", "no"]);
    assert_alone(&primary);
    let replica = under_load(&primary, || primary.replica(&[]));
    assert_in_step(&primary, &replica);
}

#[test]
fn a_replica_that_syncs_by_socket_and_waits_for_others() {
    let primary = Server::on_port(&["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "1"]);
    assert_alone(&primary);
    let replicas = under_load(&primary, || {
        let first = primary.replica(&[]);
        let second = primary.replica(&["--repl-diskless-load", "swapdb"]);
        [first, second]
    });
    replicas.iter().for_each(|replica| assert_in_step(&primary, replica));
}

#[test]
fn a_replica_that_gets_its_copy_by_a_second_connection() {
    // Redis from 8.0 on calls it `repl-rdb-channel`, and Valkey from 8.0 on `dual-channel-replication-enabled`.
    let known = |server: &Server, name: &str| {
        let found: Vec<String> = call(&mut server.client(), &format!("CONFIG GET {name}"));
        (!found.is_empty()).then(|| format!("--{name}"))
    };
    let server = Server::start();
    let option = known(&server, "repl-rdb-channel").or_else(|| known(&server, "dual-channel-replication-enabled"));
    let text: String = call(&mut server.client(), "INFO server");
    let major = ["valkey_version:", "redis_version:"].iter().find_map(|&field| text.split(field).nth(1)).expect("a version");
    assert_eq!(option.is_some(), !major.starts_with('7'), "{major}");
    let own = option.as_deref().map_or(vec![], |option| vec![option, "yes"]);
    for load in ["disabled", "swapdb"] {
        let slow = ["--repl-diskless-sync", "yes", "--rdb-key-save-delay", "1000"];
        let primary = Server::on_port(&[&slow[..], &own].concat());
        assert_alone(&primary);
        let replica = under_load(&primary, || {
            let address = format!("127.0.0.1 {}", primary.port);
            let replica = Server::on_port(&[&["--replicaof", &address, "--repl-diskless-load", load][..], &own].concat());
            if option.is_some() {
                let mut client = primary.client();
                wait_for("the second connection", || {
                    let text: String = call(&mut client, "INFO replication");
                    text.contains("state=send_bulk_and_stream") || text.contains("type=rdb-channel")
                });
            }
            sleep(Duration::from_millis(300));
            call::<()>(&mut primary.client(), "CONFIG SET rdb-key-save-delay 0");
            replica.wait_until_linked();
            replica
        });
        assert_in_step(&primary, &replica);
    }
}

#[test]
fn a_replica_that_connects_during_a_snapshot_for_another_one() {
    let primary = Server::on_port(&["--repl-diskless-sync", "no", "--rdb-key-save-delay", "200"]);
    assert_alone(&primary);
    let replica = under_load(&primary, || {
        call::<()>(&mut primary.client(), "BGSAVE");
        let replica = Server::on_port(&["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
        // The receiver gets the next effect.
        sleep(Duration::from_millis(300));
        call::<()>(&mut primary.client(), "CONFIG SET rdb-key-save-delay 0");
        replica.wait_until_linked();
        replica
    });
    assert_in_step(&primary, &replica);
}

#[test]
fn a_replica_that_resumes_its_stream_and_a_replica_of_it() {
    let primary = Server::on_port(&[]);
    assert_alone(&primary);
    let (replica, second) = under_load(&primary, || {
        let replica = primary.replica(&[]);
        let second = replica.replica(&[]);
        for _ in 0..3 {
            call::<i64>(&mut primary.client(), "CLIENT KILL TYPE replica");
            sleep(Duration::from_millis(100));
        }
        replica.wait_until_linked();
        (replica, second)
    });
    assert!(info(&mut primary.client(), "stats", "sync_partial_ok") > 0);
    assert_in_step(&primary, &replica);
    assert_in_step(&primary, &second);
}

#[test]
fn a_replica_that_connects_after_the_backlog_has_ended() {
    let primary = Server::on_port(&["--repl-backlog-ttl", "1"]);
    for _ in 0..2 {
        let replica = under_load(&primary, || primary.replica(&[]));
        assert_in_step(&primary, &replica);
        drop(replica);
        let mut client = primary.client();
        wait_for("the end of the backlog", || info(&mut client, "replication", "repl_backlog_active") == 0);
        // There are so many calls that the test would see a missing one.
        for _ in 0..1_200 {
            calls(&mut client);
        }
        call::<()>(&mut client, "FLUSHALL");
    }
}

#[test]
fn primaries_that_change() {
    let first = Server::on_port(&[]);
    assert_alone(&first);
    let second = under_load(&first, || first.replica(&[]));
    assert_in_step(&first, &second);
    // The second server becomes the primary, and the first its replica, which synchronises in the middle of load. Then the
    // other way round.
    for (old, new) in [(&first, &second), (&second, &first)] {
        call::<()>(&mut new.client(), "REPLICAOF NO ONE");
        under_load(new, || {
            call::<()>(&mut old.client(), &format!("REPLICAOF 127.0.0.1 {}", new.port));
            old.wait_until_linked();
        });
        assert_in_step(new, old);
    }
}

#[test]
fn a_primary_that_was_loaded_with_its_history() {
    // The backlog has room for all that is replicated before the replica resumes.
    let mut primary = Server::on_port(&["--repl-backlog-size", "64mb"]);
    let replica = under_load(&primary, || primary.replica(&[]));
    assert_in_step(&primary, &replica);
    for _ in 0..2 {
        // The primary has read the state of its replication from its file. So the replica can resume, and gets no snapshot.
        call::<()>(&mut primary.client(), "SAVE");
        primary.crash_and_restart();
        under_load(&primary, || replica.wait_until_linked());
        let mut client = primary.client();
        assert_eq!([info(&mut client, "stats", "sync_partial_ok"), info(&mut client, "stats", "sync_full")], [1, 0]);
        assert_in_step(&primary, &replica);
    }
}

#[test]
fn a_module_that_is_loaded_while_a_replica_is_connected() {
    let primary = Server::of(&support::server_program(), false, &[]);
    let replica = primary.replica(&[]);
    call::<()>(&mut primary.client(), &format!("MODULE LOAD {}", support::module().display()));
    under_load(&primary, || ());
    assert_in_step(&primary, &replica);
    // Again, after the primary has dropped the state of the replica.
    call::<()>(&mut primary.client(), "MODULE UNLOAD rl");
    call::<()>(&mut primary.client(), &format!("MODULE LOAD {}", support::module().display()));
    under_load(&primary, || ());
    assert_in_step(&primary, &replica);
}

#[test]
fn an_append_only_file_that_is_switched_on() {
    for options in [&[][..], &["--aof-use-rdb-preamble", "no"]] {
        let server = Server::with(options);
        assert_alone(&server);
        let mut client = server.client();
        for round in 0..3 {
            under_load(&server, || {
                // Every second time, the replica has to wait for a snapshot that is being written.
                if round == 1 {
                    call::<()>(&mut client, "CONFIG SET rdb-key-save-delay 100");
                    call::<()>(&mut client, "BGSAVE");
                }
                call::<()>(&mut client, "CONFIG SET appendonly yes");
                call::<()>(&mut client, "CONFIG SET rdb-key-save-delay 0");
                wait_for("the file", || {
                    let text: String = call(&mut client, "INFO persistence");
                    ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0", "aof_last_bgrewrite_status:ok"]
                        .iter()
                        .all(|line| text.contains(line))
                        && text.contains("aof_base_size")
                });
            });
            let before = snapshots(&mut client);
            call::<()>(&mut client, "DEBUG LOADAOF");
            assert_same(&snapshots(&mut client), &before);
            under_load(&server, || call::<()>(&mut client, "CONFIG SET appendonly no"));
        }
    }
}

/// Has a replica connect and disconnect before the primary makes a snapshot for it. The primary then has a backlog, and
/// there was no event about it.
fn begin_backlog_unseen(primary: &Server) {
    let mut client = primary.client();
    let replica = Server::on_port(&["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
    wait_for("the replica", || info(&mut client, "replication", "connected_slaves") == 1);
    drop(replica);
    wait_for("the replica's end", || info(&mut client, "replication", "connected_slaves") == 0);
    assert_eq!(info(&mut client, "replication", "repl_backlog_active"), 1);
    assert_eq!(info(&mut client, "stats", "total_forks"), 0);
}

/// Options of a primary that waits long before it makes a snapshot for a replica, and whose backlog is long enough to do without.
const SLOW_TO_COPY: [&str; 6] =
    ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "3600", "--repl-backlog-size", "64mb"];

#[test]
fn a_replica_that_is_seeded_with_a_snapshot_made_without_a_fork() {
    for save in ["SAVE", "SHUTDOWN SAVE"] {
        let mut primary = Server::on_port(&SLOW_TO_COPY);
        assert_alone(&primary);
        begin_backlog_unseen(&primary);
        let mut client = primary.client();
        let snapshot = primary.dir().join("dump.rdb");
        if save == "SAVE" {
            call::<()>(&mut client, save);
        } else {
            // The primary restarts on its own file.
            let _ = command(save).query::<()>(&mut client);
            wait_for("the end of the server", || !primary.is_alive());
            primary.restart();
            client = primary.client();
        }
        let offset = info(&mut client, "replication", "master_repl_offset");
        let mut replica = Server::on_snapshot(&snapshot, &[]);
        for _ in 0..200 {
            calls(&mut client);
        }
        replica.add_option(&["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
        replica.restart();
        replica.wait_until_linked();
        // The replica continues where the file ends, and receives no other snapshot.
        assert_eq!(
            [info(&mut client, "stats", "sync_partial_ok"), info(&mut client, "stats", "total_forks")],
            [1, 0],
            "{save}"
        );
        assert!(info(&mut client, "replication", "master_repl_offset") > offset);
        assert_in_step(&primary, &replica);
    }
}

/// A client that the primary takes for a replica without a file: the primary delays the snapshot.
fn like_a_replica(primary: &Server) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", primary.port)).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    write!(socket, "REPLCONF capa eof\r\n").expect("a request");
    let mut reply = [0; 5];
    socket.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply, b"+OK\r\n");
    socket
}

/// The primary's stream from `offset` on, as read by a client that continues it like a replica.
fn stream(primary: &Server, offset: i64) -> String {
    let mut client = primary.client();
    let text: String = call(&mut client, "INFO replication");
    let id = text.lines().find_map(|line| line.strip_prefix("master_replid:")).expect("a replication id");
    let end = info(&mut client, "replication", "master_repl_offset");
    let mut socket = TcpStream::connect(("127.0.0.1", primary.port)).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    write!(socket, "PSYNC {id} {}\r\n", offset + 1).expect("a request");
    let mut bytes = Vec::new();
    let mut line = [0];
    while !bytes.ends_with(b"\r\n") {
        socket.read_exact(&mut line).expect("an answer");
        bytes.extend(line);
    }
    assert!(bytes.starts_with(b"+CONTINUE"), "{}", String::from_utf8_lossy(&bytes));
    let mut stream = vec![0; usize::try_from(end - offset).expect("a length")];
    socket.read_exact(&mut stream).expect("the stream");
    String::from_utf8_lossy(&stream).into_owned()
}

#[test]
fn no_stream_contains_the_call_itself() {
    let primary = Server::on_port(&SLOW_TO_COPY);
    assert_alone(&primary);
    let mut client = primary.client();
    begin_backlog_unseen(&primary);
    let offset = info(&mut client, "replication", "master_repl_offset");
    for _ in 0..20 {
        calls(&mut client);
    }
    let stream = stream(&primary, offset);
    assert!(stream.contains("PXAT") && stream.contains("SETRANGE"), "{stream}");
    assert!(!stream.to_ascii_uppercase().contains("RL."), "{stream}");
}

#[test]
fn a_replica_that_syncs_while_the_server_is_paused() {
    let primary = Server::on_port(&SLOW_TO_COPY);
    assert_alone(&primary);
    let mut client = primary.client();
    let mut socket = like_a_replica(&primary);
    call::<()>(&mut client, "CLIENT PAUSE 1000 ALL");
    // The server postpones both: more effects than it takes until the module checks again who receives them, and after them
    // a replica's request.
    let pipe = pipe((0..12_000).map(|key| format!("RL.GCRA before:{key} 5 1d")));
    let mut other = primary.client();
    other.send_packed_command(&pipe.get_packed_pipeline()).expect("a connection");
    write!(socket, "PSYNC ? -1\r\n").expect("a request");
    wait_for("the replica", || info(&mut client, "replication", "connected_slaves") == 1);
    let offset = info(&mut client, "replication", "master_repl_offset");
    calls(&mut client);
    let stream = stream(&primary, offset);
    assert!(stream.contains("PXAT") && !stream.to_ascii_uppercase().contains("RL."), "{stream}");
}

#[test]
fn a_replica_that_syncs_by_a_renamed_command() {
    let primary = Server::on_port(&[&SLOW_TO_COPY[..], &["--rename-command", "SYNC", "hidden"]].concat());
    assert_alone(&primary);
    let mut client = primary.client();
    // The command has no name that the module could watch for, and there is no event: the module gets no notice that the
    // backlog begins.
    let mut socket = like_a_replica(&primary);
    write!(socket, "hidden\r\n").expect("a request");
    wait_for("the replica", || info(&mut client, "replication", "connected_slaves") == 1);
    assert_eq!(info(&mut client, "stats", "total_forks"), 0);
    let offset = info(&mut client, "replication", "master_repl_offset");
    calls(&mut client);
    let stream = stream(&primary, offset);
    assert!(stream.contains("PXAT") && !stream.to_ascii_uppercase().contains("RL."), "{stream}");
}
