//! What ends the wait of an `RL.ALL` early: its client, its keys, and the node on which it waits. Each call gets one reply, and
//! charges all keys or none.
//!
//! No call is granted while the server would refuse a direct one. It goes on afterwards, and is denied in time. What the server refuses,
//! and when, is in `waiting.rs`.

use redis::{Connection, Value};
use support::witness::{Watched, A_FEW};
use support::{
    assert_same, call, command, error, held, info, inspect, limit, replies, settle, snapshots, time_us, wait_for, AllRows,
    Held, Resp, Server, Signal,
};

use super::all;
use crate::block::{begin_to_move, cluster};

/// Three keys: the first and the second refuse the call, which stands in the line of the first only.
const WORDS: &str = "RL.ALL 3 {k}a {k}b {k}c LEASE 1 2h FIXED 5 1h COST 3 SLIDE 5 1h COST 2 ID call BLOCK 1d";
const KEYS: [&str; 3] = ["{k}a", "{k}b", "{k}c"];

fn use_up(client: &mut Connection) {
    limit(client, "RL.LEASE {k}a 1 2h ID holder");
    limit(client, "RL.FIXED {k}b 5 1h COST 4 ID holder");
}

/// Has the call stand in the lines of the first key and of the second one.
fn stand_in_two_lines(server: &Server) -> Held {
    let mut client = server.client();
    use_up(&mut client);
    let waiting = Held::send(server, WORDS);
    let older = Held::send(server, "RL.LEASE {k}a 1 2h ID other BLOCK 1d");
    settle(&mut client, "RL.RELEASE {k}a holder").expect("a lease");
    wait_for("the second line", || inspect(&mut client, "{k}b", "waiting") == Some(1));
    drop(older);
    wait_for("it to be gone", || held(&mut client) == 1);
    waiting
}

/// Whether each of the keys remembers the call.
fn charged(client: &mut Connection) -> [bool; 3] {
    KEYS.map(|key| settle(client, &format!("RL.RELEASE {key} call")).is_some())
}

/// Panics unless direct calls are served at once, as if no client had waited.
fn no_line_is_left(client: &mut Connection) {
    assert_eq!(held(client), 0);
    assert_eq!(info(client, "rl", "rl_waiting_clients"), 0);
    assert_eq!(limit(client, "RL.LEASE {k}a 5 1h ID direct")[0], 1);
    assert_eq!(limit(client, "RL.FIXED {k}b 50 1h")[0], 1);
    assert_eq!(limit(client, "RL.SLIDE {k}c 50 1h")[0], 1);
}

// ---- Clients that leave ----

#[test]
fn client_unblock_a_kill_and_a_disconnect_end_a_wait_on_all_keys() {
    let (server, mut client) = Server::start().and_client();
    for how in ["TIMEOUT", "", "ERROR", "KILL", "DROP"] {
        call::<()>(&mut client, "FLUSHALL");
        let mut waiting = stand_in_two_lines(&server);
        let before = snapshots(&mut client);
        let abandoned = info(&mut client, "rl", "rl_waits_abandoned");
        match how {
            "KILL" => assert_eq!(call::<i64>(&mut client, &format!("CLIENT KILL ID {}", waiting.id)), 1),
            "DROP" => drop(waiting),
            _ => {
                assert_eq!(call::<i64>(&mut client, &format!("CLIENT UNBLOCK {} {how}", waiting.id)), 1);
                let reply = waiting.answer::<AllRows>();
                if how == "ERROR" {
                    assert!(reply.row.expect_err("an error").starts_with("UNBLOCKED "));
                } else {
                    let (granted, wait, rows) = reply.row.expect("a denial");
                    // The first key is free, but the call stands in its line.
                    assert_eq!((granted, [&rows[0][..3], &rows[1][..3]]), (0, [&[0, 1, 1][..], &[0, 5, 1]]), "{how:?}");
                    assert!(rows[0][3] >= 1 && rows[1][3] >= 1 && wait == rows[0][3].max(rows[1][3]), "{how:?}: {rows:?}");
                    assert_eq!(rows[2], [2, 5, 5, 0, 0], "{how:?}");
                }
                // The connection still works.
                assert_eq!(call::<String>(waiting.connection(), "PING"), "PONG");
            }
        }
        wait_for("the wait to end", || held(&mut client) == 0);
        assert_same(&snapshots(&mut client), &before);
        let ended = info(&mut client, "rl", "rl_waits_abandoned") - abandoned;
        // A time-out counts as such, and the other ends as abandoned waits.
        assert_eq!(ended, i64::from(!["TIMEOUT", ""].contains(&how)), "{how}");
        assert_eq!(charged(&mut client), [false; 3], "{how}");
        no_line_is_left(&mut client);
    }
    call::<()>(&mut client, "MODULE UNLOAD rl");
}

#[test]
fn many_clients_that_disconnect_leave_no_memory() {
    let (server, mut client) = Server::start().and_client();
    use_up(&mut client);
    let round = |client: &mut Connection| {
        let waiting: Vec<_> =
            (0..100).map(|number| Held::send(&server, &WORDS.replace("ID call", &format!("ID call:{number}")))).collect();
        assert_eq!(held(client), 100);
        drop(waiting);
        wait_for("them to be gone", || held(client) == 0 && info(client, "clients", "connected_clients") == 1);
    };
    round(&mut client);
    let before = info(&mut client, "memory", "used_memory");
    (0..4).for_each(|_| round(&mut client));
    let grown = info(&mut client, "memory", "used_memory") - before;
    assert!(grown < 1_000_000, "{grown} bytes more");
    settle(&mut client, "RL.RELEASE {k}a holder").expect("a lease");
    settle(&mut client, "RL.RELEASE {k}b holder").expect("a charge");
    assert_eq!(all(&mut client, WORDS).0, 1);
}

// ---- Keys that change ----

#[test]
fn a_key_of_another_type_ends_the_wait_on_all_keys() {
    let (server, mut client) = Server::start().and_client();
    for (position, key, held_kind) in [(1, "{k}a", "LEASE"), (2, "{k}b", "FIXED"), (3, "{k}c", "SLIDE")] {
        for value in ["list", "SLIDE limiter", "FIXED limiter"] {
            if value.starts_with(held_kind) {
                continue;
            }
            call::<()>(&mut client, "FLUSHALL");
            let mut waiting = stand_in_two_lines(&server);
            match value {
                "list" => call::<()>(&mut client, "RPUSH {k}other 1"),
                "SLIDE limiter" => call::<()>(&mut client, "RL.SLIDE {k}other 5 1h"),
                _ => call::<()>(&mut client, "RL.FIXED {k}other 5 1h"),
            }
            call::<()>(&mut client, &format!("RENAME {{k}}other {key}"));
            if position == 3 {
                // The call has not had to wait for this key, so it asks it only when the others grant.
                assert_eq!(held(&mut client), 1);
                settle(&mut client, "RL.RELEASE {k}b holder").expect("a charge");
            }
            let text = waiting.answer::<AllRows>().row.expect_err("an error");
            assert_eq!(text, format!("WRONGTYPE key {position} holds a {value}, not a {held_kind} limiter"));
            assert_eq!(call::<String>(waiting.connection(), "PING"), "PONG");
            assert_eq!(held(&mut client), 0);
            for other in KEYS.into_iter().filter(|&other| other != key) {
                assert_eq!(settle(&mut client, &format!("RL.RELEASE {other} call")), None, "{other}");
            }
            call::<()>(&mut client, &format!("DEL {key}"));
            no_line_is_left(&mut client);
        }
    }
    // Also if the time is over before the call asks the key.
    call::<()>(&mut client, "FLUSHALL");
    limit(&mut client, "RL.LEASE {k}a 1 2h ID holder");
    let mut waiting = Held::send(&server, &WORDS.replace("BLOCK 1d", "BLOCK 60ms"));
    call::<()>(&mut client, "RPUSH {k}c 1");
    let text = waiting.answer::<AllRows>().row.expect_err("an error");
    assert_eq!(text, "WRONGTYPE key 3 holds a list, not a SLIDE limiter");
    // And if a lease is taken by the call's own id with another cost, on any key.
    call::<()>(&mut client, "FLUSHALL");
    limit(&mut client, "RL.LEASE one 2 1h ID holder COST 2");
    let mut waiting = Held::send(&server, "RL.ALL 2 one two LEASE 2 1h COST 2 LEASE 5 1h COST 2 ID call BLOCK 1d");
    limit(&mut client, "RL.LEASE two 5 1h ID call COST 1");
    settle(&mut client, "RL.RELEASE one holder").expect("a lease");
    let text = waiting.answer::<AllRows>().row.expect_err("an error");
    assert_eq!(text, "ERR COST must be 1, the units that this ID holds, or be omitted");
    assert_eq!(settle(&mut client, "RL.RELEASE one call"), None);
    assert_eq!(settle(&mut client, "RL.RELEASE two call").expect("the other call's lease")[2], 5);
}

#[test]
fn a_change_of_any_key_in_whose_line_it_stands_grants_it() {
    let (server, mut client) = Watched::start().and_client();
    for happens in [
        "DEL {k}a {k}b",
        "UNLINK {k}a {k}b",
        "RENAME {k}a x|RENAME {k}b y",
        "MOVE {k}b 2|MOVE {k}a 2",
        "PEXPIRE {k}a 1|PEXPIRE {k}b 1",
        "PEXPIRE {k}b 40|PEXPIRE {k}a 40",
        "FLUSHDB",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "SWAPDB 0 1",
        "RL.RELEASE {k}b holder|RL.RELEASE {k}a holder",
        "RL.RELEASE {k}a holder|RL.SETTLE {k}b holder 2",
        "RL.FIXED {k}b 5 1h REFUND 4|DEL {k}a",
    ] {
        call::<()>(&mut client, "FLUSHALL");
        use_up(&mut client);
        let mut waiting = Held::send(&server, WORDS);
        assert_eq!(held(&mut client), 1);
        for words in happens.split('|') {
            call::<Value>(&mut client, words);
            // Valkey 8.1 leaves the client of a MOVE in the other database: see docs/operations.md.
            call::<()>(&mut client, "SELECT 0");
        }
        let happened = time_us(&mut client);
        let reply = waiting.answer::<AllRows>();
        // The server expires keys with a precision of a millisecond.
        let late = if happens.ends_with("40") { 40 } else { 1 } + A_FEW;
        server.assert_not_late(happens, happened, reply.at_us(), late);
        let (granted, wait, rows) = reply.row.expect("a grant");
        assert_eq!((granted, wait, rows[0][0], rows[1][0], rows[2][0]), (1, 0, 1, 3, 2), "{happens}");
        assert_eq!(charged(&mut client), [true; 3], "{happens}");
    }
}

#[test]
fn databases_have_lines_of_their_own() {
    let (server, mut control) = Server::start().and_client();
    let waiting: Vec<_> = (0..4)
        .map(|db| {
            let mut held = Held::prepare(&server, Resp::Two);
            call::<()>(held.connection(), &format!("SELECT {db}"));
            use_up(held.connection());
            held.call(&mut control, WORDS)
        })
        .collect();
    call::<()>(&mut control, "SELECT 2");
    call::<()>(&mut control, "DEL {k}a {k}b");
    wait_for("one to be granted", || held(&mut control) == 3);
    assert_eq!(charged(&mut control), [true; 3]);
    // The call waits for the keys of its database number, whatever they hold by now.
    call::<()>(&mut control, "SWAPDB 3 9");
    wait_for("another to be granted", || held(&mut control) == 2);
    call::<()>(&mut control, "SELECT 3");
    assert_eq!(charged(&mut control), [true; 3]);
    call::<()>(&mut control, "SELECT 9");
    assert_eq!(charged(&mut control), [false; 3]);
    call::<()>(&mut control, "FLUSHALL");
    waiting.into_iter().for_each(|held| assert_eq!(held.rows().0, 1));
}

// ---- The node ----

#[test]
fn a_primary_that_becomes_a_replica_ends_the_waits() {
    for how in ["FAILOVER", "REPLICAOF"] {
        let server = Server::on_port(&[]);
        let replica = server.replica(&[]);
        let mut client = server.client();
        let first = stand_in_two_lines(&server);
        let others = (0..5).map(|number| Held::send(&server, &WORDS.replace("ID call", &format!("ID other:{number}"))));
        let waiting: Vec<_> = std::iter::once(first).chain(others.collect::<Vec<_>>()).collect();
        assert_eq!(call::<i64>(&mut client, "WAIT 1 50000"), 1);
        server.wait_until_in_step(&replica);
        if how == "FAILOVER" {
            call::<()>(&mut client, "FAILOVER");
        } else {
            call::<()>(&mut replica.client(), "REPLICAOF NO ONE");
            call::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", replica.port));
        }
        for mut held in waiting {
            let text = held.answer::<AllRows>().row.expect_err("no grant by a replica");
            assert!(text.contains("UNBLOCKED") || text.contains("unblock"), "{how}: {text}");
        }
        let mut other = replica.client();
        wait_for("the new primary", || call::<String>(&mut other, "INFO replication").contains("role:master"));
        assert_eq!(held(&mut server.client()), 0);
        assert_eq!(charged(&mut other), [false; 3], "{how}");
        // The new primary goes on from there.
        let again = Held::send(&replica, WORDS);
        settle(&mut other, "RL.RELEASE {k}b holder").expect("a charge");
        assert_eq!(again.rows().0, 1);
        wait_for("the old primary", || {
            let mut old = server.client();
            info(&mut old, "replication", "master_repl_offset") == info(&mut other, "replication", "master_repl_offset")
                && call::<String>(&mut old, "INFO replication").contains("master_link_status:up")
        });
        assert_same(&snapshots(&mut server.client()), &snapshots(&mut other));
    }
}

#[test]
fn a_slot_that_moves_ends_the_waits_on_all_its_keys() {
    let [from, to] = cluster();
    let (mut source, mut target) = (from.client(), to.client());
    let first = stand_in_two_lines(&from);
    let others: Vec<_> =
        (0..3).map(|number| Held::send(&from, &WORDS.replace("ID call", &format!("ID other:{number}")))).collect();
    let single = Held::send(&from, "RL.FIXED {k}b 5 1h COST 3 BLOCK 1d");
    let end = begin_to_move(&mut source, &mut target, "{k}a");
    // As long as this node holds all keys of a call, the call can be granted: a call on keys that are all here.
    assert_eq!(held(&mut source), 5);
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(to.port).arg("").arg(0).arg(5_000).arg("KEYS").arg("{k}b");
    migrate.exec(&mut source).expect("OK");
    // The line of the key that has moved ends, with all calls that stand in it.
    let text = "TRYAGAIN the key's slot has moved to another node";
    let mut first = first;
    assert_eq!(first.answer::<AllRows>().row.expect_err("no grant"), text);
    assert_eq!(replies([single])[0].row.as_ref().expect_err("no grant"), text);
    for client in [&mut target, &mut source] {
        call::<()>(client, &end);
    }
    // The others stand in the line of the first key, in which the first call stood before them.
    for mut held in others {
        assert_eq!(held.answer::<AllRows>().row.expect_err("no grant"), text);
    }
    assert!(error(&mut source, &command(WORDS)).starts_with("MOVED "));
    assert_eq!(held(&mut source), 0);
    assert_eq!(charged(&mut target), [false; 3]);
    assert_eq!(limit(&mut target, "RL.PEEK FIXED {k}b 5 1h")[2], 1);
    // A call that is repeated at the new node waits there and is granted.
    let again = Held::send(&to, WORDS);
    settle(&mut target, "RL.RELEASE {k}b holder").expect("a charge");
    assert_eq!(again.rows().0, 1);
}

const MS: i64 = 1_000;

/// Two calls with three keys, which wait until their keys are free after 300 ms.
pub(crate) struct Waiting {
    /// It waits for long enough.
    patient: Held,
    /// It waits for 700 ms.
    impatient: Held,
}

impl Waiting {
    fn words(id: &str, wait: &str) -> String {
        format!("RL.ALL 3 a b c GCRA 1 300ms LEASE 1 1h FIXED 5 1h COST 2 ID {id} BLOCK {wait}")
    }

    pub(crate) fn send(server: &Server, client: &mut Connection) -> Self {
        call::<()>(client, "DEL a b c");
        limit(client, "RL.GCRA a 1 300ms");
        limit(client, "RL.LEASE b 1 300ms ID holder");
        let patient = Held::send(server, &Self::words("patient", "1000"));
        Self { patient, impatient: Held::send(server, &Self::words("impatient", "700ms")) }
    }

    /// The server has refused writes with the error `code` for longer than the second call waits.
    pub(crate) fn only_one_waits(&mut self, client: &mut Connection, code: &str) {
        let direct = error(client, &command(&Self::words("direct", "1000")));
        assert!(direct.starts_with(code), "{direct}");
        let (granted, wait, rows) = self.impatient.answer::<AllRows>().row.expect("a denial");
        assert!(granted == 0 && wait >= 1 && rows.iter().any(|row| row[0] == 0 && row[3] >= 1), "{code}: {rows:?}");
        assert_eq!(call::<i64>(client, "EXISTS c"), 0, "{code}");
    }

    /// The server takes writes again.
    pub(crate) fn one_is_granted(mut self, client: &mut Connection, code: &str) {
        let (granted, wait, rows) = self.patient.answer::<AllRows>().row.expect("a grant");
        assert_eq!((granted, wait, rows[0][0], rows[1][0], rows[2][0]), (1, 0, 1, 1, 2), "{code}");
        assert_eq!(limit(client, "RL.PEEK FIXED c 5 1h")[2], 3, "{code}");
        for key in ["b", "c"] {
            assert_eq!(settle(client, &format!("RL.RELEASE {key} impatient")), None, "{code}");
            assert!(settle(client, &format!("RL.RELEASE {key} patient")).is_some(), "{code}");
        }
    }
}

#[test]
fn a_pause_holds_grants_back_and_a_time_out_comes_in_it() {
    let mut server = Watched::on_port(&[]);
    let replica = server.replica(&[]);
    let mut client = server.client();
    for kind in ["WRITE", "ALL"] {
        call::<()>(&mut client, "FLUSHALL");
        limit(&mut client, "RL.GCRA a 1 600ms");
        limit(&mut client, "RL.LEASE b 1 600ms ID holder");
        let words =
            |id: &str, wait: &str| format!("RL.ALL 3 a b c GCRA 1 600ms LEASE 1 1h FIXED 5 1h COST 2 ID {id} BLOCK {wait}");
        let mut patient = Held::send(&server, &words("patient", "30"));
        let mut impatient = Held::send(&server, &words("impatient", "900ms"));
        // Both calls wait for less than the pause takes.
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").add_command(command(&format!("CLIENT PAUSE 2500 {kind}"))).ignore();
        let ((seconds, us),): ((i64, i64),) = pipe.query(&mut client).expect("a pause");
        // The server counts a pause from the last whole millisecond on.
        let over = (seconds * 1_000_000 + us + 2_500 * MS) / MS * MS;
        let denied = impatient.answer::<AllRows>();
        assert_eq!(denied.row.expect("a denial").0, 0, "{kind}");
        let reply = patient.answer::<AllRows>();
        assert_eq!(reply.row.as_ref().expect("a grant").0, 1, "{kind}");
        let at = server.events("rl.gcra", "a").last().copied().expect("a grant");
        assert!(at >= over, "{kind}: granted {} us before the end of the pause", over - at);
        assert!(*server.events("rl.denied", "b").last().expect("a denial") < over, "{kind}: denied after the pause");
    }
    call::<i64>(&mut client, "WAIT 1 50000");
    assert_same(&snapshots(&mut client), &snapshots(&mut replica.client()));
    assert!(server.server_mut().is_alive());
}

#[test]
fn a_call_goes_on_after_the_server_stood_still() {
    let (server, mut client) = Server::start().and_client();
    limit(&mut client, "RL.LEASE a 1 200ms ID holder");
    limit(&mut client, "RL.GCRA b 1 200ms");
    let first = Held::send(&server, "RL.ALL 2 a b LEASE 1 1h GCRA 1 200ms ID first BLOCK 30");
    let mut late = Held::send(&server, "RL.ALL 2 a b LEASE 1 1h GCRA 1 200ms ID late BLOCK 300ms");
    server.signal(Signal::STOP);
    std::thread::sleep(std::time::Duration::from_millis(600));
    server.signal(Signal::CONT);
    // Units come before time-outs; the second call is late.
    assert_eq!(first.rows().0, 1);
    let (granted, wait, rows) = late.answer::<AllRows>().row.expect("a denial");
    assert_eq!((granted, rows[0][0]), (0, 0));
    assert!(wait >= 1, "{rows:?}");
    assert_eq!(held(&mut client), 0);
}
