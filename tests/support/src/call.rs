//! Calls of commands whose replies come at once, and snapshots of keys.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Cmd, Connection, FromRedisValue, Pipeline, Value};

/// The limiters that count calls by the time: each command is one of these words after `RL.`.
pub const LIMITERS: [&str; 4] = ["FIXED", "SLIDE", "GCRA", "BUCKET"];

/// The command that consists of these words, divided by spaces.
pub fn command(words: &str) -> Cmd {
    let mut words = words.split_whitespace();
    let mut command = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        command.arg(word);
    });
    command
}

/// Calls a command and returns its reply. Panics on an error.
pub fn call<T: FromRedisValue>(client: &mut Connection, words: &str) -> T {
    command(words).query(client).unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// Calls a limiter and returns its reply: granted, limit, remaining, wait_ms, reset_ms.
pub fn limit(client: &mut Connection, words: &str) -> [i64; 5] {
    call::<Vec<i64>>(client, words).try_into().unwrap_or_else(|reply| panic!("{words}: {reply:?}"))
}

/// Settles or releases an id, and returns the five integers; `None` if the key does not remember the id.
pub fn settle(client: &mut Connection, words: &str) -> Option<[i64; 5]> {
    call(client, words)
}

/// Calls a command that must fail, and returns the error as it was on the wire.
pub fn error(client: &mut Connection, command: &Cmd) -> String {
    match command.query::<Value>(client) {
        Err(error) => format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default()),
        Ok(reply) => panic!("no error but {reply:?}"),
    }
}

/// The server's clock, in microseconds.
pub fn time_us(client: &mut Connection) -> i64 {
    let (seconds, us): (i64, i64) = call(client, "TIME");
    seconds * 1_000_000 + us
}

/// How many clients wait for the reply to a blocking command.
pub fn held(client: &mut Connection) -> i64 {
    info(client, "clients", "blocked_clients")
}

/// The number in a field of a section of `INFO`.
pub fn info(client: &mut Connection, section: &str, field: &str) -> i64 {
    optional_info(client, section, field).unwrap_or_else(|| panic!("no number {field} in INFO {section}"))
}

fn optional_info(client: &mut Connection, section: &str, field: &str) -> Option<i64> {
    number(&call::<String>(client, &format!("INFO {section}")), field)
}

/// The number in a field of a reply of `INFO`.
fn number(report: &str, field: &str) -> Option<i64> {
    report.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?.trim().parse().ok()
}

/// A number that `RL.INSPECT` reports of a key; `None` if there is no such key or no such number.
pub fn inspect(client: &mut Connection, key: &str, name: &str) -> Option<i64> {
    let report: Option<BTreeMap<String, Value>> = call(client, &format!("RL.INSPECT {key}"));
    let number = report?.remove(name)?;
    Some(redis::from_redis_value(number).unwrap_or_else(|error| panic!("{name} of {key}: {error}")))
}

/// What a write moves on: the offset of replication, the size of the append-only file, if there is one, and the changes since the
/// last snapshot.
pub fn traces(client: &mut Connection) -> [i64; 3] {
    // One report: between two, the server could move bytes from the buffer to the file, and neither would count them. It does so
    // later if the disk is busy.
    let persistence: String = call(client, "INFO persistence");
    let read = |field| number(&persistence, field);
    [
        info(client, "replication", "master_repl_offset"),
        read("aof_current_size").unwrap_or(0) + read("aof_buffer_length").unwrap_or(0),
        read("rdb_changes_since_last_save").expect("the changes since the last snapshot"),
    ]
}

/// Whether the keys that this client watches have not changed since. It watches none afterwards.
pub fn watched_are_unchanged(client: &mut Connection) -> bool {
    let reply: Option<Vec<String>> = redis::pipe().atomic().cmd("PING").query(client).expect("PONG, or nil");
    reply.is_some()
}

/// These calls in a pipeline. To make it a transaction is up to the caller.
pub fn pipe<W: AsRef<str>>(calls: impl IntoIterator<Item = W>) -> Pipeline {
    let mut pipe = redis::pipe();
    for words in calls {
        pipe.add_command(command(words.as_ref()));
    }
    pipe
}

/// Makes calls of every kind, with every algorithm: granted, denied, forced, refunded, with a changed policy, on short and long
/// logs.
pub fn flood_all(client: &mut Connection) {
    let mut pipe = redis::pipe();
    for name in LIMITERS {
        pipe.add_command(command(&format!("RL.{name} full:{name} 5 1d UPTO 5")));
        pipe.add_command(command(&format!("RL.{name} denied:{name} 5 1d COST 6")));
        pipe.add_command(command(&format!("RL.{name} debt:{name} 5 1d FORCE 9")));
        pipe.add_command(command(&format!("RL.{name} refunded:{name} 5 1d COST 5")));
        pipe.add_command(command(&format!("RL.{name} refunded:{name} 5 1d REFUND 2")));
        pipe.add_command(command(&format!("RL.{name} gone:{name} 5 1d COST 5")));
        pipe.add_command(command(&format!("RL.{name} gone:{name} 5 1d REFUND 5")));
        pipe.add_command(command(&format!("RL.{name} changed:{name} 5000 1d COST 7")));
        pipe.add_command(command(&format!("RL.{name} changed:{name} 50000 2d COST 7")));
        for id in 0..20 {
            pipe.add_command(command(&format!("RL.{name} ids:{name} 1000 1d COST 7 ID charge:{id}")));
            pipe.add_command(command(&format!("RL.{name} ids:{name} 1000 1d")));
        }
        pipe.add_command(command(&format!("RL.{name} ids:{name} 1000 1d COST 1000 ID booked RESERVE 1d")));
        pipe.add_command(command(&format!("RL.{name} ids:{name} 1000 1d REFUND 3")));
        for (id, units) in [(3, 0), (4, 2), (5, 7), (6, 9), (19, 1)] {
            pipe.add_command(command(&format!("RL.SETTLE ids:{name} charge:{id} {units}")));
        }
        pipe.add_command(command(&format!("RL.{name} ids:{name} 2000 2d COST 2 ID changed")));
        pipe.add_command(command(&format!("RL.{name} no-ids:{name} 1000 1d COST 2 ID one")));
        pipe.add_command(command(&format!("RL.{name} no-ids:{name} 1000 1d COST 2")));
        pipe.add_command(command(&format!("RL.RELEASE no-ids:{name} one")));
        pipe.add_command(command(&format!("RL.{name} no-ids:{name} 1000 1d COST 2")));
        pipe.add_command(command(&format!("RL.{name} paused:{name} 1000 1d COST 2 ID one")));
        pipe.add_command(command(&format!("RL.PAUSE paused:{name} 2d")));
        pipe.add_command(command(&format!("RL.{name} paused:{name} 1000 1d FORCE 3")));
        pipe.add_command(command(&format!("RL.SETTLE paused:{name} one 1")));
        pipe.add_command(command(&format!("RL.{name} resumed:{name} 1000 1d COST 2")));
        pipe.add_command(command(&format!("RL.PAUSE resumed:{name} 1h")));
        pipe.add_command(command(&format!("RL.PAUSE resumed:{name} 0")));
    }
    pipe.add_command(command("RL.PAUSE paused 1h"));
    pipe.add_command(command("RL.LEASE paused:leases 100 1h ID worker"));
    pipe.add_command(command("RL.PAUSE paused:leases 2h"));
    pipe.add_command(command("RL.LEASE paused:leases 100 1h ID worker RENEW"));
    for holder in 0..20 {
        pipe.add_command(command(&format!("RL.LEASE leases 100 1h ID worker:{holder} COST 3")));
    }
    pipe.add_command(command("RL.RELEASE leases worker:7"));
    pipe.add_command(command("RL.LEASE leases 100 2h ID worker:8"));
    pipe.add_command(command("RL.LEASE leases 100 1m ID short-lived"));
    pipe.add_command(command("RL.LEASE released 1 1h ID worker"));
    pipe.add_command(command("RL.RELEASE released worker"));
    pipe.ignore().exec(client).expect("replies");
    // Long logs: entries are appended, shared by calls, trimmed, and removed by refunds.
    for round in 0..200 {
        let mut pipe = redis::pipe();
        pipe.add_command(command("RL.SLIDE log:fine 1000000 1h COST 2"));
        pipe.add_command(command("RL.SLIDE log:fine 1000000 100s COST 2 SEGMENTS 65536"));
        pipe.add_command(command("RL.SLIDE log:long 1000000 100s"));
        pipe.add_command(command("RL.SLIDE log:short 1000000 20ms"));
        pipe.add_command(command("RL.SLIDE log:coarse 1000000 1d SEGMENTS 24"));
        if round % 7 == 0 {
            pipe.add_command(command("RL.SLIDE log:long 1000000 100s REFUND 3"));
        }
        pipe.ignore().exec(client).expect("replies");
    }
    // This key lives for 20 ms: it could expire between two snapshots that a test compares.
    call::<()>(client, "DEL log:short");
}

/// The value and the deadline of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The bytes of the string; `None` if there is no such key.
    pub value: Option<Vec<u8>>,
    /// When the key expires, in milliseconds since the Unix epoch; negative if never or if there is no such key.
    pub deadline_ms: i64,
}

/// Takes the snapshot of one key.
pub fn snapshot(client: &mut Connection, key: &str) -> Snapshot {
    Snapshot { value: call(client, &format!("GET {key}")), deadline_ms: call(client, &format!("PEXPIRETIME {key}")) }
}

/// Every key with its [`Snapshot`].
pub type Snapshots = BTreeMap<String, Snapshot>;

/// Takes the snapshots of all keys.
pub fn snapshots(client: &mut Connection) -> Snapshots {
    let keys: Vec<String> = call(client, "KEYS *");
    keys.into_iter().map(|key| (key.clone(), snapshot(client, &key))).collect()
}

/// Panics with the keys that differ, and also if there are no keys at all.
pub fn assert_same(left: &Snapshots, right: &Snapshots) {
    let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differ: Vec<_> = keys.into_iter().filter(|&key| left.get(key) != right.get(key)).collect();
    assert!(differ.is_empty(), "{differ:?} differ, the first: {:?} and {:?}", left.get(differ[0]), right.get(differ[0]));
    assert!(!left.is_empty());
}
