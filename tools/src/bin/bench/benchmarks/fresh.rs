//! Fresh keys: calls whose key does not exist, or has expired, and the memory and the latency of creating a million keys.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::benchmarks::cases::{Case, Needs, Width, EXPIRING, FIRST};
use crate::benchmarks::peers::Peers;
use crate::benchmarks::speed::report::{fresh_bars, prepared, ratios, table, FRESH};
use crate::benchmarks::speed::{fresh_scenes, Repeated, Scene, Setting, NEW};
use crate::benchmarks::Options;
use crate::version;
use support::{call, server_program, Server};
use tools::chart::grouped;
use tools::load::{redis_benchmark, settled_memory, Shape};
use tools::results::Machine;
use tools::statistics::median;
use tools::statistics::Steady;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    machine: Machine,
    rounds: usize,
    repeated: Repeated,
    pub scenes: Vec<Scene>,
    created: Vec<Created>,
}

/// A million keys that were created on an empty server.
#[derive(Serialize, Deserialize)]
struct Created {
    server: String,
    name: String,
    rounds: Vec<Round>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Round {
    /// Bytes a key: the growth of `used_memory`.
    bytes: f64,
    p50_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
}

/// Measures all of the part.
pub fn measure(options: &Options, peers: &Peers) -> Section {
    let mut steady = Steady::new();
    let scenes = fresh_scenes(options, peers, &mut steady);
    let programs = [server_program()].into_iter().chain(options.common.server.iter().cloned());
    let created = programs.flat_map(|program| created(options, peers, &program, &mut steady)).collect();
    Section { machine: Machine::this(), rounds: options.rounds, repeated: Repeated::of(&steady), scenes, created }
}

fn created(options: &Options, peers: &Peers, program: &str, steady: &mut Steady) -> Vec<Created> {
    let calls = if options.common.quick { 100_000 } else { 1_000_000 };
    let server = version(program);
    println!("{server}: creating {calls} keys");
    let cases: Vec<&Case> = FIRST.iter().filter(|case| case.width == Width::Narrow).collect();
    let mut rounds = vec![Vec::new(); cases.len()];
    for _ in 0..options.repeats() {
        for (case, rounds) in cases.iter().zip(&mut rounds) {
            rounds.push(steady.measure(|| create(program, peers, case, calls)));
        }
    }
    let named = cases.iter().zip(rounds);
    named.map(|(case, rounds)| Created { server: server.clone(), name: case.name.into(), rounds }).collect()
}

fn create(program: &str, peers: &Peers, case: &Case, calls: u64) -> Round {
    let (server, mut client) = Server::of(program, case.needs == Needs::Module, &case.options(Some(peers))).and_client();
    let before = settled_memory(&mut client);
    let load = redis_benchmark(&server.socket(), case.call, Shape { keys: NEW, pipeline: 1 }, calls);
    let keys = call::<u64>(&mut client, "DBSIZE");
    assert!((calls - calls / 100..=calls).contains(&keys), "{}: {keys} keys", case.name);
    let bytes = (settled_memory(&mut client) - before) as f64 / keys as f64;
    let ms = |time: Option<f64>| time.expect("redis-benchmark measures times");
    Round { bytes, p50_ms: ms(load.p50_ms), p99_ms: ms(load.p99_ms), longest_ms: ms(load.longest_ms) }
}

/// How fast a first call is.
pub fn brief(section: &Section) -> String {
    let new = |scene: &&Scene| scene.keys == NEW && scene.setting == Setting::Plain;
    let scenes = section.scenes.iter().filter(new).map(|scene| format!("{} on {}", ratios(scene, &FRESH), scene.server));
    format!("* **A call that creates its key**, beside a `SET` that does: {}.\n", scenes.collect::<Vec<_>>().join(", "))
}

/// The part as Markdown.
pub fn report(section: &Section) -> String {
    let Section { machine, rounds, repeated, scenes, created } = section;
    let mut text = format!(
        "## Fresh keys\n\nMeasured on {} with redis-rl {}, in {rounds} rounds; {} of {} measurements were repeated. In each call the key does \
         not exist, or has expired. The ratios are to a `SET` of 28 bytes with the same life time.\n",
        machine.date(),
        machine.module(),
        repeated.repeated,
        repeated.measured,
    );
    scenes.iter().for_each(|scene| table(scene, &mut text));
    text.push_str(
        "\n### A million keys\n\n`redis-benchmark` creates a million keys with names of 16 bytes on an empty server, by one call each, with 50 \
         connections and without a pipeline. Bytes are the growth of `used_memory` a key.\n\n\
         | server | call | bytes a key | p50 ms | p99 ms | longest ms |\n|---|---|---:|---:|---:|---:|\n",
    );
    for Created { server, name, rounds } in created {
        let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure));
        let (bytes, longest) = (grouped(of(|round| round.bytes)), of(|round| round.longest_ms));
        let (p50, p99) = (of(|round| round.p50_ms), of(|round| round.p99_ms));
        writeln!(text, "| {server} | {name} | {bytes} | {p50:.3} | {p99:.3} | {longest:.1} |").expect("a string");
    }
    prepared(FIRST.iter().chain(EXPIRING), &mut text);
    text
}

/// The rows of the table of bars.
pub fn bars(section: &Section) -> String {
    fresh_bars(&section.scenes)
}
