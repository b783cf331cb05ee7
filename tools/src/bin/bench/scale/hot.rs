//! What one hot key gives on a server, beside random keys and the server's own `SET`.

use serde::{Deserialize, Serialize};
use support::server_program;
use tools::statistics::Steady;
use tools::statistics::{median, Quartiles};

use crate::benchmarks::cases::{self, SET};
use crate::benchmarks::speed::report::{METERS, SLIDE};
use crate::benchmarks::speed::{Effort, Plan, Round, Setting, HOT};
use crate::scale::Size;
use crate::version;

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

/// The cases, with their names in the table of the benchmarks.
const CASES: [(&str, &str); 5] = [
    ("`SET .. EX 60`", SET),
    ("`RL.FIXED`, granted", METERS[0]),
    ("`RL.GCRA`, granted", METERS[1]),
    ("`RL.SLIDE`, granted", SLIDE),
    ("`RL.GCRA`, denied", "RL.GCRA, denied"),
];

pub fn measure(size: &Size) -> Section {
    let server = server_program();
    // Not every machine that runs the tests has redis-benchmark.
    let effort = Effort { rounds: size.rounds, seconds: size.load, only: &[], own_loop: size.quick, peers: None };
    let mut steady = if size.quick { Steady::once() } else { Steady::new() };
    let case = |name: &str| cases::CASES.iter().find(|case| case.name == name).expect("a case");
    let mut rows = Vec::new();
    for (hot, pipeline) in [(true, 16), (true, 1), (false, 16), (false, 1)] {
        let keys = if hot { HOT } else { size.keys.min(100_000) };
        let cases = CASES.iter().map(|(_, name)| case(name)).collect();
        let plan = Plan { server: server.clone(), setting: Setting::Plain, pipeline, keys, which: None, cases };
        let scene = plan.measure(&effort, &mut steady).expect("a scene");
        rows.extend(CASES.iter().zip(scene.cases).map(|((name, _), measured)| {
            let ms = |time: fn(&Round) -> Option<f64>| {
                median(measured.rounds.iter().map(|round| time(round).unwrap_or_default()))
            };
            Row {
                name: (*name).into(),
                hot,
                pipeline,
                per_second: measured.per_second.median,
                cpu_us: measured.cpu_us.median,
                of_set: measured.of_base,
                of_set_cpu: measured.cpu_of_base,
                p50_ms: ms(|round| round.p50_ms),
                p99_ms: ms(|round| round.p99_ms),
            }
        }));
    }
    Section { server: version(&server), rounds: size.rounds, rows }
}
