//! Memory per key: the growth of `used_memory` over many keys with names of the same length.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::benchmarks::peers::Peers;
use crate::Options;
use support::{call, Server};
use tools::load::{line, settled_memory, Pipe};

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    /// The server's allocator, which determines how many bytes a value takes.
    pub allocator: String,
    pub limits: Vec<u64>,
    pub rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// Bytes per key, in the order of the limits.
    pub bytes: Vec<f64>,
}

/// What a key holds.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A count, or a time. The key is half used, which makes no difference to the size of the module's record.
    Count,
    /// An entry for each grant. The log is as long as the limit allows.
    Log,
}

const SLIDE: &str = "RL.SLIDE";

/// How the keys of a row are filled.
struct Subject {
    name: &'static str,
    kind: Kind,
    /// The commands that use a key; for a log, those of one grant. `grant` counts from 0.
    calls: fn(&Plan, key: &str, grant: u64) -> Vec<Vec<u8>>,
}

/// The limit and period of a row's keys.
struct Plan {
    limit: u64,
    /// The period in seconds: long enough that each grant has a tick of its own, and at least a minute.
    period: f64,
    /// The id of the script of limits at the server.
    script: String,
}

fn microseconds() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time after 1970").as_micros()
}

const SUBJECTS: [Subject; 9] = [
    Subject { name: "RL.FIXED", kind: Kind::Count, calls: |plan, key, _| used(plan, "RL.FIXED", key) },
    Subject { name: "RL.GCRA", kind: Kind::Count, calls: |plan, key, _| used(plan, "RL.GCRA", key) },
    Subject { name: "RL.BUCKET", kind: Kind::Count, calls: |plan, key, _| used(plan, "RL.BUCKET", key) },
    Subject {
        name: "redis-cell",
        kind: Kind::Count,
        calls: |Plan { limit, .. }, key, _| {
            vec![line(&format!("CL.THROTTLE {key} {} {limit} 86400 {}", limit - 1, limit / 2))]
        },
    },
    Subject {
        name: "INCR + EXPIRE",
        kind: Kind::Count,
        calls: |Plan { limit, .. }, key, _| {
            vec![line(&format!("INCRBY {key} {}", limit / 2)), line(&format!("EXPIRE {key} 86400"))]
        },
    },
    Subject {
        name: SLIDE,
        kind: Kind::Log,
        calls: |Plan { limit, period, .. }, key, _| vec![line(&format!("RL.SLIDE {key} {limit} {period:.6}"))],
    },
    Subject {
        name: "sorted set, times",
        kind: Kind::Log,
        calls: |_, key, grant| {
            // Two events with the same time in microseconds would be stored as one.
            let now = microseconds() + u128::from(grant);
            vec![line(&format!("ZADD {key} {now} {now}")), line(&format!("EXPIRE {key} 86400"))]
        },
    },
    Subject {
        name: "sorted set, UUIDs",
        kind: Kind::Log,
        calls: |_, key, grant| {
            let digits = format!("{:032x}", u128::from(grant + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
            let uuid = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-");
            vec![line(&format!("ZADD {key} {} {uuid}", microseconds())), line(&format!("EXPIRE {key} 86400"))]
        },
    },
    Subject {
        name: "list (limits)",
        kind: Kind::Log,
        calls: |Plan { limit, script, .. }, key, _| {
            let now = format!("{:.7}", microseconds() as f64 / 1e6);
            vec![line(&format!("EVALSHA {script} 1 {key} {now} {limit} 86400 1"))]
        },
    },
];

/// A key that has been called only once may take less.
fn used(plan: &Plan, command: &str, key: &str) -> Vec<Vec<u8>> {
    let policy = format!("{command} {key} {} 1d", plan.limit);
    vec![line(&format!("{policy} COST {}", plan.limit / 2)), line(&policy)]
}

/// Three quarters of a power of two: the server's hash table is equally full for each number of keys.
fn keys(kind: Kind, limit: u64, options: &Options) -> u64 {
    let entries = if options.quick { 1 << 17 } else { 1 << 19 };
    let most = if kind == Kind::Log { (entries / limit).max(4) } else { 1 << 17 };
    let power = most.next_power_of_two();
    (if power > most { power / 2 } else { power }) / 4 * 3
}

/// Measures all rows.
pub fn measure(options: &Options, peers: &Peers) -> Section {
    let limits = vec![10, 1_000, 100_000];
    let mut allocator = String::new();
    let rows = SUBJECTS.map(|subject| {
        let bytes = limits.iter().map(|&limit| fill(&subject, limit, options, peers, &mut allocator)).collect();
        Row { name: subject.name.into(), bytes }
    });
    Section { allocator, limits, rows: rows.into() }
}

fn fill(subject: &Subject, limit: u64, options: &Options, peers: &Peers, allocator: &mut String) -> f64 {
    let (server, mut client) = Server::with(&["--loadmodule", peers.redis_cell.to_str().expect("a path")]).and_client();
    *allocator = call::<String>(&mut client, "INFO memory")
        .lines()
        .find_map(|line| line.strip_prefix("mem_allocator:"))
        .expect("an allocator")
        .into();
    let script = peers.script("limits/acquire_moving_window");
    let script = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut client).expect("a script");
    let keys = keys(subject.kind, limit, options);
    let (rounds, apart) = match subject.kind {
        Kind::Count => (1, Duration::ZERO),
        // SLIDE keeps one entry for all grants in a tick, and a period has 65 536 ticks. These grants are so slow that each
        // has a tick of its own.
        Kind::Log if subject.name == SLIDE => (limit, Duration::from_micros(if limit > 65_536 { 150 } else { 1_000 })),
        Kind::Log => (limit, Duration::ZERO),
    };
    let plan = Plan { limit, period: apart.as_secs_f64() * limit.max(65_536) as f64 * 1.02, script };

    let before = settled_memory(&mut client);
    let mut pipe = Pipe::to(&server);
    let start = Instant::now();
    for grant in 0..rounds {
        let due = start + apart * grant as u32;
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        let mut batch = Vec::new();
        let mut calls = 0;
        for key in 0..keys {
            for command in (subject.calls)(&plan, &format!("limit:{key:010}"), grant) {
                batch.extend(command);
                calls += 1;
            }
            if calls >= 256 || key == keys - 1 {
                pipe.send(&batch, calls);
                batch.clear();
                calls = 0;
            }
        }
    }
    drop(pipe);
    let bytes = (settled_memory(&mut client) - before) as f64 / keys as f64;
    assert_eq!(call::<u64>(&mut client, "DBSIZE"), keys, "{} {limit}", subject.name);
    bytes
}
