//! What one hot key gives on a server, beside random keys and the server's own `SET`.

use serde::{Deserialize, Serialize};
use support::{server_program, Server};
use tools::load::{each_key, own, redis_benchmark, Load, Shape};
use tools::probe::cpu;
use tools::statistics::{median, Quartiles};

use crate::Size;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub server: String,
    pub rounds: usize,
    pub rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub hot: bool,
    pub pipeline: usize,
    /// Calls a second, and the server's CPU time for a call in microseconds: medians over the rounds.
    pub per_second: f64,
    pub cpu_us: f64,
    /// Calls a second, and calls in the same CPU time, relative to `SET` in the same round.
    pub of_set: Quartiles,
    pub of_set_cpu: Quartiles,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

struct Case {
    name: &'static str,
    prepare: &'static str,
    words: &'static str,
    /// On the hot key, where a second has up to a million calls.
    hot: &'static str,
}

const SET: &str = "`SET .. EX 60`";
const CASES: [Case; 5] = [
    Case {
        name: SET,
        prepare: "SET key:# 0123456789012345678901234567 EX 60",
        words: "SET key:# 0123456789012345678901234567 EX 60",
        hot: "SET key:# 0123456789012345678901234567 EX 60",
    },
    Case {
        name: "`RL.FIXED`, granted",
        prepare: "RL.FIXED key:# 1000000000 1d COST 100000000",
        words: "RL.FIXED key:# 1000000000 1d",
        hot: "RL.FIXED key:# 1000000000 1d",
    },
    Case {
        name: "`RL.GCRA`, granted",
        prepare: "RL.GCRA key:# 1000000000 1d COST 100000000",
        words: "RL.GCRA key:# 1000000000 1d",
        hot: "RL.GCRA key:# 1000000000 1d",
    },
    Case {
        name: "`RL.SLIDE`, granted",
        prepare: "RL.SLIDE key:# 1000 60",
        words: "RL.SLIDE key:# 1000 60",
        hot: "RL.SLIDE key:# 2000 1ms",
    },
    Case {
        name: "`RL.GCRA`, denied",
        prepare: "RL.GCRA key:# 10 1d COST 10",
        words: "RL.GCRA key:# 10 1d",
        hot: "RL.GCRA key:# 10 1d",
    },
];
const PIPELINES: [usize; 2] = [16, 1];

struct Measured {
    load: Load,
    cpu_us: f64,
}

/// Measures a case with each pipeline, on a server of its own.
fn run(case: &Case, hot: bool, size: &Size) -> Vec<Measured> {
    let server = Server::start();
    let mut client = server.client();
    let keys = if hot { 1 } else { size.keys.min(100_000) };
    each_key(&server.socket(), case.prepare, 0..keys);
    let words = if hot { case.hot } else { case.words };
    let measure = |&pipeline: &usize| {
        let shape = Shape { keys, pipeline };
        let expected = if pipeline == 1 { 100_000.0 } else { 700_000.0 };
        let calls = (expected * size.load) as u64;
        let before = cpu(&mut client);
        // Not every machine that runs the tests has redis-benchmark. The loop of our own measures no percentiles.
        let load = if size.quick { own } else { redis_benchmark }(&server.socket(), words, shape, calls);
        Measured { load, cpu_us: (cpu(&mut client) - before).as_secs_f64() * 1e6 / calls as f64 }
    };
    PIPELINES.iter().map(measure).collect()
}

pub fn measure(size: &Size) -> Section {
    let mut rounds = Vec::new();
    for round in 0..size.rounds {
        let mut measured: Vec<Vec<Vec<Measured>>> = Vec::new();
        for hot in [true, false] {
            // The order rotates. The results are in the order of the cases.
            let mut row: Vec<(usize, Vec<Measured>)> =
                (0..CASES.len()).map(|nth| (nth + round) % CASES.len()).map(|at| (at, run(&CASES[at], hot, size))).collect();
            row.sort_by_key(|(at, _)| *at);
            measured.push(row.into_iter().map(|(_, cells)| cells).collect());
        }
        rounds.push(measured);
    }
    let mut rows = Vec::new();
    for (at_hot, hot) in [true, false].into_iter().enumerate() {
        for (at_pipeline, pipeline) in PIPELINES.into_iter().enumerate() {
            for (at, case) in CASES.iter().enumerate() {
                let cell = |round: usize, at: usize| &rounds[round][at_hot][at][at_pipeline];
                let each = |look: &dyn Fn(usize) -> f64| (0..rounds.len()).map(look).collect::<Vec<_>>();
                rows.push(Row {
                    name: case.name.into(),
                    hot,
                    pipeline,
                    per_second: median(each(&|round| cell(round, at).load.per_second)),
                    cpu_us: median(each(&|round| cell(round, at).cpu_us)),
                    of_set: Quartiles::of(each(&|round| cell(round, at).load.per_second / cell(round, 0).load.per_second)),
                    of_set_cpu: Quartiles::of(each(&|round| cell(round, 0).cpu_us / cell(round, at).cpu_us)),
                    p50_ms: median(each(&|round| cell(round, at).load.p50_ms.unwrap_or_default())),
                    p99_ms: median(each(&|round| cell(round, at).load.p99_ms.unwrap_or_default())),
                });
            }
        }
    }
    Section { server: crate::version(&server_program()), rounds: size.rounds, rows }
}
