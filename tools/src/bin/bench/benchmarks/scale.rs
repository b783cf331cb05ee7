//! What a call costs depending on the number of keys and on the length of SLIDE's log, and the longest time that one call
//! takes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Connection;
use serde::{Deserialize, Serialize};

use crate::Options;
use support::{call, inspect, Server};
use tools::load::{cpu, each_key, line, packed, redis_benchmark, Pipe, Shape};
use tools::statistics::median;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub keys: Vec<OfKeys>,
    pub logs: Vec<OfLog>,
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

/// What a call of SLIDE costs on a log of this length.
#[derive(Serialize, Deserialize)]
pub struct OfLog {
    /// The entries that count after the run.
    pub entries: u64,
    /// Nanoseconds of the server's main thread: for a grant, while entries expire as fast as new ones come; and for a
    /// denial.
    pub granted_ns: f64,
    pub denied_ns: f64,
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
    Section { keys: of_keys(options), logs: of_logs(options), stalls: stalls(options) }
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

/// A record of SLIDE, byte by byte as src/limiter/slide/mod.rs describes it: one unit was granted every `apart`, the last one
/// right now. By calls to the server, a record as old as this would take hours.
fn log(entries: u64, limit: u32, period: Duration, apart: Duration) -> Vec<u8> {
    const MOST_TICKS: u64 = 65_536;
    let (period, apart) = (period.as_micros() as u64, apart.as_micros() as u64);
    let tick = period.div_ceil(MOST_TICKS);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_micros() as u64;
    let ticks: Vec<u64> = (0..entries).rev().map(|index| (now - apart * index) / tick).collect();
    let base = ticks[0];
    let mut record = vec![0xfa, 1, 2, 0];
    record.extend(limit.to_le_bytes());
    record.extend(period.to_le_bytes());
    record.extend(tick.to_le_bytes());
    record.extend(base.to_le_bytes());
    // Nothing was granted before the first entry, and no entry lies in the future.
    record.extend([0; 8]);
    for (index, &at) in ticks.iter().enumerate() {
        // Grants in the same tick share an entry, which holds the count after the last of them.
        if ticks.get(index + 1) != Some(&at) {
            record.extend(((at - base) as u32).to_le_bytes());
            record.extend((index as u32 + 1).to_le_bytes());
        }
    }
    record
}

/// How many keys are called in turn: one pipeline of them.
const LOGS: usize = PIPELINE;

fn of_logs(options: &Options) -> Vec<OfLog> {
    let (server, mut client) = Server::start().and_client();
    let mut pipe = Pipe::to(&server);
    let most = if options.quick { 4_096 } else { 65_536 };
    let sizes = [10, 64, 512, 4_096, 16_384, 65_536].into_iter().filter(|&entries| entries <= most);
    // One and a half times as long as a round over all keys takes when the machine does nothing else.
    let rounds =
        (0..5).map(|_| paced(&mut pipe, "RL.SLIDE log:# 4000000000 1", Duration::from_millis(100), Duration::ZERO).0);
    let apart = rounds.min().unwrap_or_default() * 3 / 2;
    sizes.map(|entries| of_log(&mut client, &mut pipe, entries, apart.max(LEAST), options)).collect()
}

/// The least time between two rounds. The shortest period is a millisecond, and the smallest log must fit into it.
const LEAST: Duration = Duration::from_micros(100);

/// Calls each key in turn, in rounds that begin `apart` after each other, for the time `long`. Returns how long a round
/// took, and how many there were.
fn paced(pipe: &mut Pipe, words: &str, long: Duration, apart: Duration) -> (Duration, u32) {
    let batch: Vec<u8> = (0..LOGS).flat_map(|key| line(&words.replace('#', &key.to_string()))).collect();
    let start = Instant::now();
    let mut rounds = 0;
    while rounds == 0 || start.elapsed() < long {
        while start.elapsed() < apart * rounds {
            std::hint::spin_loop();
        }
        pipe.send(&batch, LOGS);
        rounds += 1;
    }
    (start.elapsed() / rounds, rounds)
}

fn of_log(client: &mut Connection, pipe: &mut Pipe, entries: u64, apart: Duration, options: &Options) -> OfLog {
    let fill = |pipe: &mut Pipe, limit: u32, period: Duration, apart: Duration| {
        let value = log(entries, limit, period, apart);
        for key in 0..LOGS {
            let name = format!("log:{key}");
            pipe.send(&packed(&[b"SET", name.as_bytes(), &value, b"EX", b"86400"]), 1);
        }
    };
    let least = Duration::from_millis(if options.quick { 200 } else { 600 });
    let period = apart * entries as u32;
    let limit = 4_000_000_000;
    let words = format!("RL.SLIDE log:# {limit} {}us", period.as_micros());
    fill(pipe, limit, period, apart);
    // Expired entries are dropped when they are a quarter of the log. A measurement of at least a whole period includes that
    // work.
    paced(pipe, &words, period / 2, apart);
    let granted_ns = per_call(client, pipe, &words, least.max(period), apart, options);
    // The smallest log expires after a millisecond. On a busy machine it may be gone before it can be inspected.
    let counted = (0..15).filter_map(|_| {
        paced(pipe, &words, apart * 2 * entries.min(100) as u32, apart);
        Some(inspect(client, &format!("log:{}", LOGS - 1), "entries")? as f64)
    });
    let counted = median(counted) as u64;

    // None of these entries expires during the measurement.
    let period = Duration::from_secs(86_400);
    fill(pipe, entries as u32, period, period / 70_000);
    let denied_ns = per_call(client, pipe, &format!("RL.SLIDE log:# {entries} 1d"), least, apart, options);
    OfLog { entries: counted, granted_ns, denied_ns }
}

/// The server's processor time per call, in nanoseconds, of the best round.
fn per_call(
    client: &mut Connection,
    pipe: &mut Pipe,
    words: &str,
    long: Duration,
    apart: Duration,
    options: &Options,
) -> f64 {
    let rounds = (0..options.repeats()).map(|_| {
        let before = cpu(client);
        let rounds = paced(pipe, words, long, apart).1;
        (cpu(client) - before).as_nanos() as f64 / f64::from(rounds) / LOGS as f64
    });
    rounds.fold(f64::MAX, f64::min)
}

/// Makes single calls, each after the reply to the last one.
fn stalls(options: &Options) -> Vec<Stall> {
    let (server, mut client) = Server::with(&["--latency-tracking-info-percentiles", "100"]).and_client();
    let calls: u64 = if options.quick { 20_000 } else { 120_000 };
    // A tick is a little shorter than a call takes, so that each call adds an entry. The log grows to its full length, and
    // is then rewritten again and again as entries expire.
    let mut pipe = Pipe::to(&server);
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
