//! Memory per key: the growth of `used_memory` over many keys with names of the same length.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::benchmarks::peers::Peers;
use crate::benchmarks::Options;
use support::{call, inspect, Server};
use tools::chart::{self, grouped, table, Axis, Bar, Picture};
use tools::load::{line, settled_memory, Pipe};

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    /// The server's allocator, which determines how many bytes a value takes.
    allocator: String,
    limits: Vec<u64>,
    rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    kind: Kind,
    /// In the order of the limits.
    cells: Vec<Cell>,
}

/// What a key holds.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Kind {
    /// A count, or a time. The key is half used, which makes no difference to the size of the module's record.
    Count,
    /// An entry for each grant. The log is as long as the limit allows.
    Log,
}

#[derive(Serialize, Deserialize)]
struct Cell {
    keys: u64,
    /// Bytes per key.
    bytes: f64,
    /// SLIDE: the number of entries in the longest log.
    entries: Option<u64>,
}

const SLIDE: &str = "RL.SLIDE";
const CELL: &str = "redis-cell";
const TIMESTAMPS: &str = "sorted set, timestamps";
const COUNT: &str = "INCR + EXPIRE";
const COUNTERS: [&str; 3] = ["RL.FIXED", "RL.GCRA", "RL.BUCKET"];

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
        name: CELL,
        kind: Kind::Count,
        calls: |Plan { limit, .. }, key, _| {
            vec![line(&format!("CL.THROTTLE {key} {} {limit} 86400 {}", limit - 1, limit / 2))]
        },
    },
    Subject {
        name: COUNT,
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
        name: TIMESTAMPS,
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
        name: "limits, moving window",
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
    let entries = if options.common.quick { 1 << 17 } else { 1 << 19 };
    let most = if kind == Kind::Log { (entries / limit).max(4) } else { 1 << 17 };
    let power = most.next_power_of_two();
    (if power > most { power / 2 } else { power }) / 4 * 3
}

/// Measures all rows.
pub fn measure(options: &Options, peers: &Peers) -> Section {
    let limits = vec![10, 1_000, 100_000];
    let mut allocator = String::new();
    let rows = SUBJECTS.map(|subject| {
        let cells = limits.iter().map(|&limit| fill(&subject, limit, options, peers, &mut allocator)).collect();
        Row { name: subject.name.into(), kind: subject.kind, cells }
    });
    Section { allocator, limits, rows: rows.into() }
}

fn fill(subject: &Subject, limit: u64, options: &Options, peers: &Peers, allocator: &mut String) -> Cell {
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
    let entries =
        (subject.name == SLIDE).then(|| inspect(&mut client, "limit:0000000000", "entries_stored").expect("a log") as u64);
    Cell { keys, bytes, entries }
}

impl Section {
    fn row(&self, name: &str) -> &Row {
        self.rows.iter().find(|row| row.name == name).expect("a row")
    }
}

/// The part as Markdown.
pub fn report(section: &Section) -> String {
    let limits: Vec<_> = section.limits.iter().map(|&limit| grouped(limit as f64)).collect();
    let head: Vec<_> = ["bytes a key at a limit of"].into_iter().chain(limits.iter().map(String::as_str)).collect();
    let row = |row: &Row| -> Vec<_> {
        [row.name.clone()].into_iter().chain(row.cells.iter().map(|cell| grouped(cell.bytes))).collect()
    };
    let mut out = table(&head, section.rows.iter().map(row));
    out += &format!(
        "\nThe growth of `used_memory` a key, with names of 16 bytes and a deadline, on {}. After [one \
         call](benchmarks-tables.md#a-million-keys) a counter may take less. Logs hold as many grants as the limit allows; that of `{SLIDE}` has \
         at most 65 536 entries in a period.\n",
        section.allocator,
    );
    out
}

/// What takes less memory than this module's counters.
pub fn larger(section: &Section) -> String {
    let bytes = |name| section.row(name).cells.first().map_or(0.0, |cell| cell.bytes);
    let own = COUNTERS.map(bytes).into_iter().fold(0.0, f64::max);
    let smaller = [CELL, COUNT].into_iter().filter(|name| bytes(name).round() < own.round());
    smaller
        .map(|name| format!("* A key of {name} takes {:.0} bytes, and one of `RL.GCRA` {own:.0}.\n", bytes(name)))
        .collect()
}

/// Draws what a key takes at the limit in the middle, and returns the title. The module's counters are one bar if they take the
/// same.
pub fn chart(section: &Section, path: &Path) -> String {
    let at = section.limits.len() / 2;
    let limit = grouped(section.limits[at] as f64);
    let bytes = |name: &str| section.row(name).cells[at].bytes;
    let same = COUNTERS.iter().all(|name| bytes(name).round() == bytes(COUNTERS[0]).round());
    let rows: Vec<(&str, &'static str, f64)> = if same {
        vec![("FIXED, GCRA, BUCKET", chart::GCRA, bytes(COUNTERS[0]))]
    } else {
        COUNTERS
            .iter()
            .zip([chart::FIXED, chart::GCRA, chart::BUCKET])
            .map(|(name, class)| (*name, class, bytes(name)))
            .collect()
    };
    let others = [("redis-cell", CELL), ("INCR and EXPIRE", COUNT), ("list (limits)", "limits, moving window")];
    let sets = [("sorted set, times", TIMESTAMPS), ("sorted set, UUIDs", "sorted set, UUIDs")];
    let others = others.into_iter().chain(sets).map(|(shown, name)| (shown, chart::OTHER, bytes(name)));
    let mut rows: Vec<_> = rows.into_iter().chain([("SLIDE", chart::SLIDE, bytes(SLIDE))]).chain(others).collect();
    rows.sort_by(|one, other| one.2.total_cmp(&other.2));
    let bars: Vec<Bar> = rows
        .into_iter()
        .map(|(name, class, bytes)| Bar { name: name.into(), class, value: bytes, figure: grouped(bytes) })
        .collect();
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let title = format!(
        "At a limit of {limit}, RL.SLIDE takes 1/{:.0} of the memory of a sorted set",
        bytes(TIMESTAMPS) / bytes(SLIDE)
    );
    let mut picture = Picture::new(&title, "Bytes a key. Grey: other ways to limit.");
    let x = Axis { from: 0.0, to: most, start: 188.0, end: 402.0 };
    picture.bars(x, &bars, None);
    picture.save(path);
    title
}
