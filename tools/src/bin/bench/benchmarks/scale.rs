//! What a call costs depending on the number of keys, and the longest time that one call takes.

use std::time::{Duration, Instant};

use redis::Connection;
use serde::{Deserialize, Serialize};

use crate::Options;
use support::{call, inspect, Server};
use tools::load::{cpu, each_key, line, redis_benchmark, Pipe, Shape};
use tools::statistics::median;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub keys: Vec<OfKeys>,
    pub stalls: Vec<Stall>,
}

/// What a call on a random key costs.
#[derive(Serialize, Deserialize)]
pub struct OfKeys {
    pub keys: u64,
    pub gcra: Cost,
    pub set: Cost,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Cost {
    pub calls_per_second: f64,
    /// The processor time of the server's main thread per call, in nanoseconds.
    pub cpu_ns: f64,
}

/// How long single calls took, made one after the other, in microseconds.
#[derive(Serialize, Deserialize)]
pub struct Stall {
    pub name: String,
    pub calls: u64,
    /// SLIDE: the number of entries in its log at the end.
    pub entries: Option<u64>,
    /// The median and, below it, the 99.9th percentile, as the client measures them: medians of the rounds.
    pub median: f64,
    pub p999: f64,
    /// The longest call as the server itself measures it, in the round in which it was shortest: the one with the least disturbance by
    /// other work on the machine.
    pub inside_of_best: f64,
}

const PIPELINE: usize = 16;
/// A value as long as a record of GCRA.
const VALUE: &str = "0123456789012345678901234567";

/// Measures this part.
pub fn measure(options: &Options) -> Section {
    Section { keys: of_keys(options), stalls: stalls(options) }
}

fn of_keys(options: &Options) -> Vec<OfKeys> {
    let most = if options.quick { 100_000 } else { 10_000_000 };
    let sizes: Vec<u64> = (3..8).map(|power| 10u64.pow(power)).filter(|&keys| keys <= most).collect();
    // Only one server runs at a time: ten million keys take more than a gigabyte.
    // The keys begin half used: otherwise a key would expire as soon as its one unit has drained.
    let gcra = grown(&sizes, options, "RL.GCRA key:# 1000000 1d COST 500000", "RL.GCRA key:# 1000000 1d");
    let set = format!("SET key:# {VALUE} EX 86400");
    let set = grown(&sizes, options, &set, &set);
    let rows = sizes.iter().zip(gcra.into_iter().zip(set));
    rows.map(|(&keys, (gcra, set))| OfKeys { keys, gcra, set }).collect()
}

fn grown(sizes: &[u64], options: &Options, prepare: &str, words: &str) -> Vec<Cost> {
    let (server, mut client) = Server::start().and_client();
    let mut there = 0;
    let mut costs = Vec::new();
    for &keys in sizes {
        each_key(&server.socket(), prepare, there..keys);
        there = keys;
        assert_eq!(call::<u64>(&mut client, "DBSIZE"), keys);
        // Wait until the server has moved all keys to a larger hash table.
        std::thread::sleep(Duration::from_millis(if keys > 100_000 { 2_000 } else { 200 }));
        let rounds: Vec<Cost> =
            (0..options.repeats()).map(|_| benchmark(&server, &mut client, options, keys, words)).collect();
        // Other work on the machine can only make a round slower: the best round is the closest to the truth.
        costs.push(Cost {
            calls_per_second: rounds.iter().map(|cost| cost.calls_per_second).fold(0.0, f64::max),
            cpu_ns: rounds.iter().map(|cost| cost.cpu_ns).fold(f64::MAX, f64::min),
        });
    }
    costs
}

fn benchmark(server: &Server, client: &mut Connection, options: &Options, keys: u64, words: &str) -> Cost {
    let calls = if options.quick { 100_000 } else { 500_000 };
    let before = cpu(client);
    let load = redis_benchmark(&server.socket(), words, Shape { keys, pipeline: PIPELINE }, calls);
    Cost { calls_per_second: load.per_second, cpu_ns: (cpu(client) - before).as_nanos() as f64 / calls as f64 }
}

/// Makes single calls, each after the reply to the last one.
fn stalls(options: &Options) -> Vec<Stall> {
    let (server, mut client) = Server::with(&["--latency-tracking-info-percentiles", "100"]).and_client();
    let calls: u64 = if options.quick { 20_000 } else { 120_000 };
    // A tick is a little shorter than a call takes, so that each call adds an entry. The log grows to its full length, and
    // is then rewritten again and again as entries expire.
    let mut pipe = Pipe::to(&server.socket());
    let warm = Instant::now();
    (0..5_000).for_each(|_| pipe.send(&line("RL.SLIDE warm 4000000000 1"), 1));
    let period = warm.elapsed() / 5_000 * if options.quick { 10_000 } else { 65_536 };
    let rows = [
        ("RL.SLIDE", format!("RL.SLIDE log 4000000000 {}us", period.as_micros())),
        ("RL.GCRA", "RL.GCRA meter 1000000000 1d".into()),
        ("APPEND of 8 bytes", "APPEND string 01234567".into()),
        ("SET .. EX", format!("SET value {VALUE} EX 60")),
    ];
    let mut entries = 0;
    let mut rounds: Vec<Vec<[f64; 3]>> = vec![Vec::new(); rows.len()];
    // The rows take turns in each round, so that other work on the machine affects all of them.
    for _ in 0..options.repeats() + 2 {
        for (row, (_, words)) in rows.iter().enumerate() {
            call::<()>(&mut client, "FLUSHALL");
            call::<()>(&mut client, "RL.GCRA meter 1000000000 1d COST 500000000");
            call::<()>(&mut client, "CONFIG RESETSTAT");
            rounds[row].push(single(&mut pipe, &mut client, words, calls));
            if row == 0 {
                entries = entries.max(inspect(&mut client, "log", "entries_stored").expect("a log") as u64);
            }
        }
    }
    let of = |rounds: &[[f64; 3]], at: usize| rounds.iter().map(|round| round[at]).collect::<Vec<_>>();
    let rows = rows.iter().zip(&rounds);
    rows.map(|((name, _), rounds)| Stall {
        name: (*name).into(),
        calls,
        entries: name.ends_with("SLIDE").then_some(entries),
        median: median(of(rounds, 0)),
        p999: median(of(rounds, 1)),
        inside_of_best: of(rounds, 2).into_iter().fold(f64::MAX, f64::min),
    })
    .collect()
}

/// In microseconds: the median and the 99.9th percentile as the client measures them, and the longest call inside the server.
fn single(pipe: &mut Pipe, client: &mut Connection, words: &str, calls: u64) -> [f64; 3] {
    let command = line(words);
    let mut times = Vec::with_capacity(calls as usize);
    for _ in 0..calls {
        let start = Instant::now();
        pipe.send(&command, 1);
        times.push(start.elapsed());
    }
    times.sort();
    let at = |permille: usize| times[(times.len() - 1) * permille / 1_000].as_nanos() as f64 / 1_000.0;
    let name = words.split(' ').next().expect("a command").to_lowercase();
    let stats: String = call(client, "INFO latencystats");
    let inside = stats
        .lines()
        .find_map(|row| row.strip_prefix(&format!("latency_percentiles_usec_{name}:p100="))?.trim().parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {stats}"));
    [at(500), at(999), inside]
}
