//! What a call of `RL.ALL` leaves behind: one transaction in the append-only file and in the stream if it is granted, else nothing;
//! events, statistics and reports.

use std::path::Path;

use redis::{from_redis_value, Connection, Value};
use support::witness::Watched;
use support::{
    assert_same, call, command, held, info, inspect, limit, settle, snapshots, traces, wait_for, watched_are_unchanged,
    AllRows, Held, Server,
};

use super::all;

const RULES: &str = "FIXED 10 12h COST 2 SLIDE 10 12h COST 2 GCRA 10 12h COST 2 BUCKET 10 12h COST 2 LEASE 10 12h COST 2";
const KEYS: [&str; 5] = ["f", "s", "g", "b", "l"];

fn words(rest: &str) -> String {
    format!("RL.ALL 5 {} {RULES} {rest}", KEYS.join(" "))
}

/// The commands in the append-only files of a folder, in their order: the name, and the key if there is one.
fn logged(folder: &Path) -> Vec<(String, String)> {
    let mut files: Vec<_> = std::fs::read_dir(folder.join("appendonlydir"))
        .expect("the folder")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    let mut commands = Vec::new();
    for file in files.into_iter().filter(|file| file.to_string_lossy().ends_with(".incr.aof")) {
        let bytes = std::fs::read(file).expect("a file");
        let mut at = 0;
        while at < bytes.len() {
            let (reply, length) = parse(&bytes[at..]);
            at += length;
            let word = |index: usize| reply.get(index).cloned().unwrap_or_default();
            commands.push((word(0).to_lowercase(), word(1)));
        }
    }
    commands
}

/// Reads an array of strings, and returns how many bytes it takes.
fn parse(bytes: &[u8]) -> (Vec<String>, usize) {
    let mut at = 0;
    let number = |mark: u8, at: &mut usize| {
        assert_eq!(bytes[*at], mark, "at {at}");
        let end = *at + bytes[*at..].iter().position(|&byte| byte == b'\r').expect("a line");
        let number = std::str::from_utf8(&bytes[*at + 1..end]).expect("digits").parse::<usize>().expect("a number");
        *at = end + 2;
        number
    };
    let count = number(b'*', &mut at);
    let strings = (0..count).map(|_| {
        let length = number(b'$', &mut at);
        at += length + 2;
        String::from_utf8_lossy(&bytes[at - length - 2..at - 2]).into_owned()
    });
    (strings.collect(), at)
}

/// Panics unless these commands are this many transactions, each of which changes all keys, each with one effect.
fn assert_transactions(commands: &[(String, String)], count: usize, keys: &[&str]) {
    let names: Vec<_> = commands.iter().filter(|(name, _)| name != "select").collect();
    let groups: Vec<_> = names.split(|(name, _)| name == "exec").filter(|group| !group.is_empty()).collect();
    assert_eq!(groups.len(), count, "{commands:?}");
    for group in groups {
        assert_eq!(group[0].0, "multi", "{commands:?}");
        let mut changed: Vec<_> = group[1..]
            .iter()
            .map(|(name, key)| {
                assert!(["set", "setrange", "pexpireat", "append"].contains(&&**name), "{name}");
                key.as_str()
            })
            .collect();
        changed.dedup();
        assert_eq!(changed, keys, "{commands:?}");
    }
}

/// A primary that writes each effect to its file, and a replica.
fn primary_and_replica() -> (Server, Server) {
    let options = ["--appendonly", "yes", "--appendfsync", "always", "--repl-ping-replica-period", "3600"];
    let primary = Server::on_port(&options);
    let replica = primary.replica(&[]);
    (primary, replica)
}

#[test]
fn a_grant_is_one_transaction_in_the_file_and_in_the_stream() {
    let (mut primary, replica) = primary_and_replica();
    let (mut client, mut other) = (primary.client(), replica.client());
    let mut monitor = replica.client();
    call::<()>(&mut monitor, "MONITOR");
    let mut seen = 0;
    let mut added = |primary: &Server| {
        let all = logged(primary.dir());
        let new = all[seen..].to_vec();
        seen = all.len();
        new
    };
    // Direct calls, with an id and without.
    assert_eq!(all(&mut client, &words("ID one")).0, 1);
    assert_eq!(all(&mut client, "RL.ALL 4 f s g b FIXED 10 12h SLIDE 10 12h GCRA 10 12h BUCKET 10 12h").0, 1);
    let new = added(&primary);
    assert_transactions(&new[..new.iter().position(|(name, _)| name == "exec").expect("an end") + 1], 1, &KEYS);
    let rest = &new[new.iter().position(|(name, _)| name == "exec").expect("an end") + 1..];
    assert_transactions(rest, 1, &KEYS[..4]);
    // A call that has waited: the server's timer grants it.
    limit(&mut client, "RL.LEASE l 10 1h ID holder COST 8");
    limit(&mut client, "RL.FIXED f 10 12h COST 7 ID holder");
    let waiting = Held::send(&primary, &words("ID two BLOCK 1d"));
    wait_for("the waiter", || held(&mut client) == 1);
    added(&primary);
    settle(&mut client, "RL.RELEASE f holder").expect("a charge");
    settle(&mut client, "RL.RELEASE l holder").expect("a lease");
    let (granted, ..) = waiting.rows();
    assert_eq!(granted, 1);
    // The releases change one key each.
    let new = added(&primary);
    let begin = new.iter().rposition(|(name, _)| name == "multi").expect("a transaction");
    assert!(new[..begin].iter().all(|(_, key)| ["f", "l", ""].contains(&&**key)), "{new:?}");
    assert_transactions(&new[begin..], 1, &KEYS);
    // A granted retry that renews a lease changes that key only.
    assert_eq!(all(&mut client, &words("ID two")).0, 1);
    assert!(added(&primary).iter().all(|(name, key)| key == "l" || ["multi", "exec"].contains(&&**name)));
    // The replica executes the same, and at no time holds only a part of a grant.
    primary.wait_until_in_step(&replica);
    call::<()>(&mut client, "SET end 1 EX 1000");
    let mut stream: Vec<(String, String)> = Vec::new();
    while stream.last().is_none_or(|(_, key)| key != "end") {
        let line: String = from_redis_value(monitor.recv_response().expect("a line")).expect("text");
        let mut words = line.split('"').skip(1).step_by(2);
        stream.push((words.next().unwrap_or_default().to_lowercase(), words.next().unwrap_or_default().into()));
    }
    // Some servers select the database in the transaction.
    stream.retain(|(name, _)| name != "select");
    let open = stream.split(|(name, _)| name == "multi").skip(1).map(|part| {
        let end = part.iter().position(|(name, _)| name == "exec").expect("an end");
        let mut keys: Vec<_> = part[..end].iter().map(|(_, key)| key.clone()).collect();
        keys.dedup();
        keys
    });
    let whole: Vec<_> = open.filter(|keys| keys.len() > 1).collect();
    assert_eq!(whole, [&KEYS[..], &KEYS[..4], &KEYS[..]], "{stream:?}");
    // The same bytes and deadlines everywhere, also after a reload of either file.
    let before = snapshots(&mut client);
    primary.wait_until_in_step(&replica);
    assert_same(&snapshots(&mut other), &before);
    primary.crash_and_restart();
    let mut client = primary.client();
    assert_same(&snapshots(&mut client), &before);
    call::<()>(&mut client, "DEBUG RELOAD");
    assert_same(&snapshots(&mut client), &before);
    let (granted, _, rows) = all(&mut client, &words("ID two"));
    assert!(granted == 1 && rows.iter().all(|row| row[0] == 2), "the ids are remembered: {rows:?}");
}

#[test]
fn a_denied_call_writes_and_replicates_nothing() {
    let (primary, replica) = primary_and_replica();
    let mut client = primary.client();
    limit(&mut client, "RL.LEASE l 10 1h ID holder COST 10");
    limit(&mut client, "RL.FIXED f 10 12h COST 9 ID remembered");
    primary.wait_until_in_step(&replica);
    let before = (traces(&mut client), snapshots(&mut client));
    let mut watcher = primary.client();
    call::<()>(&mut watcher, &format!("WATCH {}", KEYS.join(" ")));
    // At once, after a wait, unblocked, with an error, and with a key that remembers the id.
    assert_eq!(all(&mut client, &words("ID x")).0, 0);
    assert_eq!(all(&mut client, &words("ID remembered BLOCK 30ms")).0, 0);
    assert_eq!(Held::send(&primary, &words("ID x BLOCK 30ms")).rows().0, 0);
    for how in ["TIMEOUT", "ERROR"] {
        let mut waiting = Held::send(&primary, &words("ID x BLOCK 1d"));
        wait_for("the waiter", || held(&mut client) == 1);
        call::<i64>(&mut client, &format!("CLIENT UNBLOCK {} {how}", waiting.id));
        assert_eq!(waiting.answer::<AllRows>().row.is_ok(), how == "TIMEOUT");
    }
    assert!(watched_are_unchanged(&mut watcher));
    assert!((traces(&mut client), snapshots(&mut client)) == before, "a denied call has written something");
}

#[test]
fn random_calls_leave_the_same_on_a_replica_and_in_the_files() {
    let (mut primary, replica) = primary_and_replica();
    let (mut client, mut other) = (primary.client(), replica.client());
    for round in 0..40 {
        let mut waiting: Vec<_> = (0..4)
            .map(|number| {
                let cost = 1 + (round + number) % 4;
                let rules = format!("SLIDE 10 1h COST {cost} LEASE 10 2h COST {cost} GCRA 10 1h COST {cost}");
                Held::send(
                    &primary,
                    &format!(
                        "RL.ALL 3 s:{} l:{} g:{} {rules} ID {round}:{number} BLOCK 1d",
                        round % 3,
                        round % 2,
                        round % 5
                    ),
                )
            })
            .collect();
        let done = |client: &mut Connection| {
            for key in (0..3)
                .map(|key| format!("s:{key}"))
                .chain((0..2).map(|key| format!("l:{key}")))
                .chain((0..5).map(|key| format!("g:{key}")))
            {
                // What all calls so far hold is given back: settled to less on some keys, released on others.
                for id in (0..=round).rev().take(3).flat_map(|round| (0..4).map(move |number| format!("{round}:{number}"))) {
                    let lease = key.starts_with('l');
                    let words = if round % 2 == 0 || lease {
                        format!("RL.RELEASE {key} {id}")
                    } else {
                        format!("RL.SETTLE {key} {id} 0")
                    };
                    call::<Option<[i64; 5]>>(client, &words);
                }
            }
        };
        wait_for("all to be granted", || {
            done(&mut client);
            held(&mut client) == 0
        });
        waiting.drain(..).for_each(|held| assert_eq!(held.rows().0, 1, "round {round}"));
        all(&mut client, &format!("RL.ALL 2 f l FIXED 100000 1d LEASE 1000 2h ID direct:{round}"));
    }
    primary.wait_until_in_step(&replica);
    let before = snapshots(&mut client);
    assert_same(&snapshots(&mut other), &before);
    primary.crash_and_restart();
    assert_same(&snapshots(&mut primary.client()), &before);
    call::<()>(&mut primary.client(), "BGREWRITEAOF");
    wait_for("the rewrite", || info(&mut primary.client(), "persistence", "aof_rewrite_in_progress") == 0);
    primary.crash_and_restart();
    assert_same(&snapshots(&mut primary.client()), &before);
}

#[test]
fn events_statistics_and_reports_show_each_call() {
    let (server, mut client) = Watched::with(&["--notify-keyspace-events", "KEd"]).and_client();
    let events = |key: &str, event: &str| server.events(event, key).len();
    let kinds = ["fixed", "slide", "gcra", "bucket", "lease"];
    let granted_events = || KEYS.iter().zip(kinds).map(|(key, kind)| events(key, &format!("rl.{kind}"))).collect::<Vec<_>>();
    let denied_events = || KEYS.map(|key| events(key, "rl.denied"));
    let counts = |client: &mut Connection, what: &str| kinds.map(|kind| info(client, "rl", &format!("rl_{kind}_{what}")));
    assert_eq!(all(&mut client, &words("ID one")).0, 1);
    assert_eq!((granted_events(), denied_events()), (vec![1; 5], [0; 5]));
    // A retry changes only the lease, which it renews.
    assert_eq!(all(&mut client, &words("ID one")).0, 1);
    assert_eq!((granted_events(), denied_events()), (vec![1, 1, 1, 1, 2], [0; 5]));
    assert_eq!((counts(&mut client, "granted"), info(&mut client, "rl", "rl_retried")), ([1, 1, 1, 1, 2], 4));
    // A denied call is a denial of the rules that refused it.
    limit(&mut client, "RL.LEASE l 10 1h ID holder COST 8");
    limit(&mut client, "RL.SLIDE s 10 12h ID holder COST 8");
    assert_eq!(all(&mut client, &words("ID two")).0, 0);
    assert_eq!((granted_events(), denied_events()), (vec![1, 2, 1, 1, 3], [0, 1, 0, 0, 1]));
    assert_eq!(counts(&mut client, "denied"), [0, 1, 0, 0, 1]);
    // A call that waits has no outcome yet.
    let waits = |client: &mut Connection| {
        ["waiting_clients", "waits", "wait_timeouts", "waits_abandoned"]
            .map(|field| info(client, "rl", &format!("rl_{field}")))
    };
    let inspected = |client: &mut Connection| KEYS.map(|key| inspect(client, key, "waiting").expect("a key"));
    let mut waiting: Vec<_> =
        (0..3).map(|number| Held::send(&server, &words(&format!("ID waits:{number} BLOCK 1d")))).collect();
    assert_eq!(waits(&mut client), [3, 3, 0, 0]);
    assert_eq!(inspected(&mut client).iter().sum::<i64>(), 3, "each stands in one line");
    assert_eq!((granted_events(), denied_events()), (vec![1, 2, 1, 1, 3], [0, 1, 0, 0, 1]));
    // One is killed, one is denied, one is granted.
    call::<i64>(&mut client, &format!("CLIENT KILL ID {}", waiting[0].id));
    call::<i64>(&mut client, &format!("CLIENT UNBLOCK {}", waiting[1].id));
    assert_eq!(waiting[1].answer::<AllRows>().row.expect("a denial").0, 0);
    assert_eq!(waits(&mut client), [1, 3, 1, 1]);
    assert_eq!((granted_events(), denied_events()), (vec![1, 2, 1, 1, 3], [0, 2, 0, 0, 2]));
    settle(&mut client, "RL.RELEASE s holder").expect("a charge");
    settle(&mut client, "RL.RELEASE l holder").expect("a lease");
    assert_eq!(waiting.remove(2).rows().0, 1);
    assert_eq!((waits(&mut client), inspected(&mut client)), ([0, 3, 1, 1], [0; 5]));
    // The releases are changes, too.
    assert_eq!((granted_events(), denied_events()), (vec![2, 4, 2, 2, 5], [0, 2, 0, 0, 2]));
    assert_eq!((counts(&mut client, "granted"), counts(&mut client, "denied")), ([2, 3, 2, 2, 4], [0, 2, 0, 0, 2]));
    let mut top: Vec<(String, i64)> = call::<Vec<Vec<Value>>>(&mut client, "RL.TOP")
        .into_iter()
        .map(|row| (from_redis_value(row[1].clone()).expect("a key"), from_redis_value(row[5].clone()).expect("a count")))
        .collect();
    top.sort();
    assert_eq!(top, [("l".into(), 2), ("s".into(), 2)]);
    // An error is no outcome of a rule.
    let before = (counts(&mut client, "calls"), denied_events());
    assert!(command(&words("")).query::<Value>(&mut client).is_err());
    assert_eq!((counts(&mut client, "calls"), denied_events()), before);
}
