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
    /// The calls that use a key; for a log, those of one grant. `#` stands for the key, and words with `%` for the limit and the like. A
    /// counter that has been called only once may take less.
    calls: &'static str,
}

const fn subject(name: &'static str, kind: Kind, calls: &'static str) -> Subject {
    Subject { name, kind, calls }
}

const SUBJECTS: [Subject; 9] = [
    subject("RL.FIXED", Kind::Count, "RL.FIXED # %limit 1d COST %half ; RL.FIXED # %limit 1d"),
    subject("RL.GCRA", Kind::Count, "RL.GCRA # %limit 1d COST %half ; RL.GCRA # %limit 1d"),
    subject("RL.BUCKET", Kind::Count, "RL.BUCKET # %limit 1d COST %half ; RL.BUCKET # %limit 1d"),
    subject("redis-cell", Kind::Count, "CL.THROTTLE # %burst %limit 86400 %half"),
    subject("INCR + EXPIRE", Kind::Count, "INCRBY # %half ; EXPIRE # 86400"),
    subject(SLIDE, Kind::Log, "RL.SLIDE # %limit %period"),
    subject("sorted set, times", Kind::Log, "ZADD # %now_us %now_us ; EXPIRE # 86400"),
    subject("sorted set, UUIDs", Kind::Log, "ZADD # %now_us %uuid ; EXPIRE # 86400"),
    subject("list (limits)", Kind::Log, "EVALSHA %sha 1 # %now_s %limit 86400 1"),
];

/// The calls of a subject for one grant, without the key.
fn fill_in(words: &str, limit: u64, period: f64, sha: &str, grant: u64) -> String {
    let digits = format!("{:032x}", u128::from(grant + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    let uuid = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-");
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time after 1970");
    // Two events with the same time in microseconds would be stored as one.
    let now_us = clock.as_micros() + u128::from(grant);
    words
        .replace("%limit", &limit.to_string())
        .replace("%half", &(limit / 2).to_string())
        .replace("%burst", &(limit - 1).to_string())
        .replace("%period", &format!("{period:.6}"))
        .replace("%now_us", &now_us.to_string())
        .replace("%now_s", &format!("{:.7}", clock.as_secs_f64()))
        .replace("%uuid", &uuid)
        .replace("%sha", sha)
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
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut client).expect("a script");
    let keys = keys(subject.kind, limit, options);
    let (rounds, apart) = match subject.kind {
        Kind::Count => (1, Duration::ZERO),
        // SLIDE keeps one entry for all grants in a tick, and a period has 65 536 ticks. These grants are so slow that each
        // has a tick of its own.
        Kind::Log if subject.name == SLIDE => (limit, Duration::from_micros(if limit > 65_536 { 150 } else { 1_000 })),
        Kind::Log => (limit, Duration::ZERO),
    };
    // Long enough that each grant has a tick of its own.
    let period = apart.as_secs_f64() * limit.max(65_536) as f64 * 1.02;

    let before = settled_memory(&mut client);
    let mut pipe = Pipe::to(&server.socket());
    let start = Instant::now();
    for grant in 0..rounds {
        let due = start + apart * grant as u32;
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        let words = fill_in(subject.calls, limit, period, &sha, grant);
        let mut batch = Vec::new();
        let mut calls = 0;
        for key in 0..keys {
            for call in words.split(" ; ") {
                batch.extend(line(&call.replace('#', &format!("limit:{key:010}"))));
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
