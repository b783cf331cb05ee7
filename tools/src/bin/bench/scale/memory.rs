//! What a key takes on each server, what a snapshot costs, and how long loading takes.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use support::{call, info, wait_for, Server};
use tools::load::{each_key, settled_memory};

use crate::scale::Size;
use crate::version;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub keys: u64,
    pub kinds: Vec<Of>,
    pub snapshots: Vec<Snapshot>,
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
    /// From the start of the server until it answers, in seconds.
    pub load_seconds: f64,
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
    let (mut kinds, mut snapshots) = (Vec::new(), Vec::new());
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
    }
    Section { keys: size.keys, kinds, snapshots }
}

/// Writes a snapshot, and loads it.
fn snapshot(server: &mut Server, name: &str, size: &Size) -> Snapshot {
    let mut client = server.client();
    let start = Instant::now();
    call::<String>(&mut client, "BGSAVE");
    let fork_ms = info(&mut client, "stats", "latest_fork_usec") as f64 / 1_000.0;
    wait_for("the snapshot", || info(&mut client, "persistence", "rdb_bgsave_in_progress") == 0);
    let seconds = start.elapsed().as_secs_f64();
    let status: String = call(&mut client, "INFO persistence");
    assert!(status.contains("rdb_last_bgsave_status:ok"), "{status}");
    let file = server.dir().join("dump.rdb");
    let bytes = std::fs::metadata(&file).expect("a snapshot").len() as f64 / size.keys as f64;
    drop(client);
    server.crash();
    let start = Instant::now();
    server.restart();
    let load_seconds = start.elapsed().as_secs_f64();
    assert_eq!(call::<u64>(&mut server.client(), "DBSIZE"), size.keys);
    Snapshot { server: name.into(), fork_ms, seconds, bytes, load_seconds }
}
