//! Ids and leases: the bytes that calls add to the replication stream and that keys take, and speed, beside what is used instead
//! of leases.

use redis::{Connection, Value};
use serde::{Deserialize, Serialize};

use crate::benchmarks::cases::IDS;
use crate::benchmarks::peers::Peers;
use crate::benchmarks::speed::{follow, scenes, Scene, Stream};
use crate::Options;
use support::{call, info, server_program, Server};
use tools::ids::{make, Group, Keys, GROUPS, SEMAPHORE};

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub held: Vec<Held>,
    pub scenes: Vec<Scene>,
}

/// A key with many ids.
#[derive(Serialize, Deserialize)]
pub struct Held {
    pub name: String,
    pub ids: usize,
    /// The most bytes that `MEMORY USAGE` of the key showed, while ids were ended and others added.
    pub most_bytes: i64,
    pub stream: Vec<Stream>,
}

/// Measures all of the part.
pub fn measure(options: &Options, peers: &Peers) -> Section {
    let program = server_program();
    // The server must not send a PING meanwhile, which is part of the stream.
    let (server, mut client) = Server::of(&program, true, &["--repl-ping-replica-period", "3600"]).and_client();
    let _replica = follow(&program, &server, &mut client);
    let script = peers.script("semaphore");
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut client).expect("a script");
    let held = GROUPS.iter().chain([&SEMAPHORE]).map(|group| hold(&mut client, group, &sha)).collect();
    Section { held, scenes: scenes(options, peers, IDS) }
}

fn hold(client: &mut Connection, group: &Group, sha: &str) -> Held {
    /// Before as many ids have been added, they are ended.
    const SEGMENT: usize = 250;
    const SEGMENTS: u64 = 12;
    call::<()>(client, "FLUSHALL");
    let ids = group.ids[1];
    let run = |client: &mut Connection, calls: &[String]| -> Vec<Value> {
        let calls: Vec<_> = calls.iter().map(|words| words.replace("%sha", sha)).collect();
        make(client, &calls)
    };
    let mut keys = Keys::fill(group, 1, ids, |calls| run(client, calls)).expect("a module that knows ids");
    let mut most_bytes = usage(client);
    let half = |kind: &tools::ids::Call| {
        let calls = keys.calls(kind, SEGMENT);
        let before = info(client, "replication", "master_repl_offset");
        let replies = run(client, &calls);
        let bytes = info(client, "replication", "master_repl_offset") - before;
        keys.check(kind, &calls, &replies);
        most_bytes = most_bytes.max(usage(client));
        bytes as u64
    };
    let rows = group.measure(SEGMENTS, half).into_iter().map(|(name, halves)| {
        let calls = (SEGMENT * halves.len()) as f64;
        Stream { name: name.into(), bytes_per_call: halves.iter().sum::<u64>() as f64 / calls }
    });
    let stream = rows.collect();
    let name = group.add.name.split(" ..").next().and_then(|name| name.split(',').next()).expect("a command");
    Held { name: name.into(), ids, most_bytes, stream }
}

/// The memory of the only key.
fn usage(client: &mut Connection) -> i64 {
    call(client, "MEMORY USAGE key:0")
}
