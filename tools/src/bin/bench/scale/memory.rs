//! What a key takes on each server, what a snapshot costs, how long loading takes, and how fast keys expire.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use support::{call, info, time_us, wait_for, Server};
use tools::load::{each_key, settled_memory};

use crate::scale::Size;
use crate::version;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub keys: u64,
    pub kinds: Vec<Of>,
    pub snapshots: Vec<Snapshot>,
    pub expiry: Vec<Expiry>,
}

/// What a key of this kind takes.
#[derive(Serialize, Deserialize)]
pub struct Of {
    pub server: String,
    pub name: String,
    /// Bytes for a key: of `used_memory`, and of the memory that the process has from the system.
    pub used: f64,
    pub resident: f64,
}

#[derive(Serialize, Deserialize)]
pub struct Snapshot {
    pub server: String,
    /// How long the server answered nobody, because it forked, in milliseconds.
    pub fork_ms: f64,
    /// The time until the file was complete, in seconds, and its bytes for a key.
    pub seconds: f64,
    pub bytes: f64,
    /// The memory that was copied meanwhile for a key, because calls changed keys while the file was written; and those calls for a
    /// key.
    pub copied: f64,
    pub calls: f64,
    /// From the start of the server until it answers, in seconds.
    pub load_seconds: f64,
}

#[derive(Serialize, Deserialize)]
pub struct Expiry {
    pub server: String,
    /// All keys have the same deadline. The seconds after it at which a hundredth and none of them were left.
    pub hundredth: f64,
    pub none: f64,
    /// The longest time that a PING took meanwhile, in milliseconds.
    pub ping_ms: f64,
}

/// All names have 16 bytes.
const KINDS: [(&str, &str); 7] = [
    ("`RL.FIXED`", "RL.FIXED key:# 1000 1d COST 500 ; RL.FIXED key:# 1000 1d"),
    ("`RL.GCRA`", "RL.GCRA key:# 1000 1d COST 500 ; RL.GCRA key:# 1000 1d"),
    ("`RL.BUCKET`", "RL.BUCKET key:# 1000 1d COST 500 ; RL.BUCKET key:# 1000 1d"),
    ("`RL.SLIDE`, one grant", "RL.SLIDE key:# 1000 1d"),
    ("`RL.GCRA .. ID`, one open charge", "RL.GCRA key:# 1000 1d ID request-1"),
    ("`RL.LEASE`, one holder", "RL.LEASE key:# 10 1d ID worker-1"),
    ("`SET`, 28 bytes, with a deadline", "SET key:# 0123456789012345678901234567 EX 86400"),
];
/// The kind on which snapshots and loading are measured.
pub const TYPICAL: &str = KINDS[1].0;

pub fn measure(size: &Size, servers: &[String]) -> Section {
    let (mut kinds, mut snapshots, mut expiry) = (Vec::new(), Vec::new(), Vec::new());
    for program in servers {
        let name = version(program);
        for (kind, words) in KINDS {
            let (mut server, mut client) = Server::of(program, true, &[]).and_client();
            let resident = |client: &mut redis::Connection| info(client, "memory", "used_memory_rss");
            let before = (settled_memory(&mut client), resident(&mut client));
            each_key(&server.socket(), words, 0..size.keys);
            assert_eq!(call::<u64>(&mut client, "DBSIZE"), size.keys);
            let after = (settled_memory(&mut client), resident(&mut client));
            kinds.push(Of {
                server: name.clone(),
                name: kind.into(),
                used: (after.0 - before.0) as f64 / size.keys as f64,
                resident: (after.1 - before.1) as f64 / size.keys as f64,
            });
            if kind == TYPICAL {
                snapshots.push(snapshot(&mut server, &name, size));
            }
        }
        expiry.push(expire(program, &name, size));
    }
    Section { keys: size.keys, kinds, snapshots, expiry }
}

/// Writes a snapshot while calls change random keys, and loads it.
fn snapshot(server: &mut Server, name: &str, size: &Size) -> Snapshot {
    let mut client = server.client();
    let start = Instant::now();
    call::<String>(&mut client, "BGSAVE");
    let fork_ms = info(&mut client, "stats", "latest_fork_usec") as f64 / 1_000.0;
    let mut calls = 0;
    let mut rng = fastrand::Rng::with_seed(1);
    // About ten thousand changes a second, each of a random key.
    while info(&mut client, "persistence", "rdb_bgsave_in_progress") == 1 {
        let first = rng.u64(0..size.keys);
        for nth in 0..100 {
            let key = (first + nth * 7_919) % size.keys;
            call::<redis::Value>(&mut client, &format!("RL.GCRA key:{key:012} 1000 1d"));
            calls += 1;
        }
        sleep(Duration::from_millis(5));
    }
    let seconds = start.elapsed().as_secs_f64();
    let status: String = call(&mut client, "INFO persistence");
    assert!(status.contains("rdb_last_bgsave_status:ok"), "{status}");
    let copied = info(&mut client, "persistence", "rdb_last_cow_size") as f64 / size.keys as f64;
    let file = server.dir().join("dump.rdb");
    let bytes = std::fs::metadata(&file).expect("a snapshot").len() as f64 / size.keys as f64;
    drop(client);
    server.crash();
    let start = Instant::now();
    server.restart();
    let load_seconds = start.elapsed().as_secs_f64();
    assert_eq!(call::<u64>(&mut server.client(), "DBSIZE"), size.keys);
    Snapshot { server: name.into(), fork_ms, seconds, bytes, copied, calls: calls as f64 / size.keys as f64, load_seconds }
}

/// Lets all keys expire at the same moment.
fn expire(program: &str, name: &str, size: &Size) -> Expiry {
    let (server, mut client) = Server::of(program, true, &[]).and_client();
    let left = |client: &mut redis::Connection| call::<u64>(client, "DBSIZE");
    // The keys must be there before they expire. On a busy machine that takes longer.
    let rest = [1, 2, 4, 8].into_iter().find_map(|patience| {
        call::<String>(&mut client, "FLUSHALL");
        let deadline = time_us(&mut client) / 1_000_000 + (2 + size.keys as i64 / 200_000) * patience;
        each_key(&server.socket(), &format!("RL.FIXED key:# 10 1h UNTIL {deadline}"), 0..size.keys);
        let rest = deadline * 1_000_000 - time_us(&mut client);
        (rest > 0 && left(&mut client) == size.keys).then_some(rest as u64)
    });
    sleep(Duration::from_micros(rest.expect("time to make all keys before they expire")));
    let start = Instant::now();
    let (mut hundredth, mut ping_ms) = (None, 0.0_f64);
    wait_for("the keys to expire", || {
        let before = Instant::now();
        call::<String>(&mut client, "PING");
        ping_ms = ping_ms.max(before.elapsed().as_secs_f64() * 1_000.0);
        let (now, count) = (start.elapsed().as_secs_f64(), left(&mut client));
        if count <= size.keys / 100 {
            hundredth.get_or_insert(now);
        }
        count == 0
    });
    let none = start.elapsed().as_secs_f64();
    Expiry { server: name.into(), hundredth: hundredth.unwrap_or(none), none, ping_ms }
}
