//! Measures and simulates what one server, a cluster and several regions can do. `make scale`
//!
//! The figures go into docs/scale.json. The tables of docs/scale.md, between marks, and the charts are written from that file alone
//! (`--report`).

mod cluster;
mod failover;
mod hot;
mod key;
mod memory;
mod regions;
mod report;
mod shards;
mod wallets;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use support::{root, server_program};
use tools::chart::write;
use tools::json;
use tools::machine::Machine;

/// Measures and simulates what one server, a cluster and several regions can do, and writes docs/scale.*
#[derive(Parser)]
struct Options {
    /// Determines the traffic that is simulated, and the moments at which servers are killed; the default is the time
    #[arg(long)]
    seed: Option<u64>,
    /// Another server program to measure memory on; may be given several times
    #[arg(long)]
    server: Vec<String>,
    /// Measure only this part, and keep the other figures of the file
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// A short run, to see that it works: its figures are rough
    #[arg(long)]
    quick: bool,
    /// Measure nothing, only write the tables and charts again
    #[arg(long)]
    report: bool,
    /// The folder with scale.md
    #[arg(long, default_value_os_t = root().join("docs"))]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    Hot,
    Shards,
    Wallets,
    Failover,
    Memory,
    Cluster,
    Regions,
}

/// How much is measured and simulated.
pub struct Size {
    quick: bool,
    rounds: usize,
    /// Keys on a server whose memory is measured; other parts use fewer.
    keys: u64,
    /// The seconds of a load.
    load: f64,
    /// The seconds that are simulated, and those of a day of the regions.
    seconds: u64,
    day: u64,
}

impl Size {
    const FULL: Self = Self { quick: false, rounds: 5, keys: 1_000_000, load: 0.5, seconds: 20, day: 3_600 };
    const QUICK: Self = Self { quick: true, rounds: 1, keys: 2_000, load: 0.02, seconds: 1, day: 240 };
}

/// The content of docs/scale.json.
#[derive(Serialize, Deserialize)]
pub struct Results {
    machine: Machine,
    seed: u64,
    hot: hot::Section,
    shards: shards::Section,
    wallets: wallets::Section,
    failover: failover::Section,
    memory: memory::Section,
    cluster: cluster::Section,
    regions: regions::Section,
}

fn main() {
    let options = Options::parse();
    let file = options.out.join("scale.json");
    let read = || {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}: run `make scale`", file.display()));
        serde_json::from_str::<Results>(&text).expect("scale.json as it was written")
    };
    if !options.report {
        let before = (!options.part.is_empty()).then(read);
        let known = before.as_ref().map(|before| before.seed);
        // The page names one seed for all parts.
        let differs = options.seed.zip(known).is_some_and(|(seed, known)| seed != known);
        assert!(!differs, "the other parts have the seed {known:?}: give that one, or measure all parts");
        let seed = options.seed.or(known).unwrap_or_else(now);
        let size = if options.quick { Size::QUICK } else { Size::FULL };
        let servers: Vec<String> = std::iter::once(server_program()).chain(options.server.iter().cloned()).collect();
        write(&file, &json::text(&measure(before, &options.part, &size, seed, &servers)));
    }
    report::write_all(&read(), &options.out);
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs())
}

/// Measures these parts, or all if none is named; the others stay as they were before.
fn measure(before: Option<Results>, parts: &[Part], size: &Size, seed: u64, servers: &[String]) -> Results {
    let begin = Instant::now();
    let (hot, shards, wallets, failover, memory, cluster, regions) = match before {
        None => (None, None, None, None, None, None, None),
        Some(Results { hot, shards, wallets, failover, memory, cluster, regions, .. }) => {
            (Some(hot), Some(shards), Some(wallets), Some(failover), Some(memory), Some(cluster), Some(regions))
        }
    };
    let run = Run { begin, parts };
    Results {
        machine: Machine::this(),
        seed,
        hot: run.part(Part::Hot, hot, || hot::measure(size)),
        shards: run.part(Part::Shards, shards, || shards::measure(size.seconds, seed)),
        wallets: run.part(Part::Wallets, wallets, || wallets::measure(size.seconds, seed, !size.quick)),
        failover: run.part(Part::Failover, failover, || failover::measure(size, seed)),
        memory: run.part(Part::Memory, memory, || memory::measure(size, servers)),
        cluster: run.part(Part::Cluster, cluster, || cluster::measure(size)),
        regions: run.part(Part::Regions, regions, || regions::measure(size.day, seed)),
    }
}

struct Run<'a> {
    begin: Instant,
    parts: &'a [Part],
}

impl Run<'_> {
    fn part<T>(&self, part: Part, before: Option<T>, measure: impl FnOnce() -> T) -> T {
        match before {
            Some(before) if !self.parts.contains(&part) => before,
            _ => {
                println!("{:3.0} s: {part:?}", self.begin.elapsed().as_secs_f64());
                measure()
            }
        }
    }
}

/// The name and version that a server program reports: `Redis 7.0.15`.
pub fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = text.split(' ').next().unwrap_or_default();
    let number = text.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or_default();
    format!("{name} {number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> String {
        fs::read_to_string(root().join("docs").join(name)).expect(name)
    }

    #[test]
    fn the_page_and_its_pictures_are_those_of_the_figures() {
        let text = file("scale.json");
        let results: Results = serde_json::from_str(&text).expect("results");
        // Not `assert_eq!`, which would print the whole files.
        assert!(json::text(&results) == text, "scale.json would be written differently");
        let page = file("scale.md");
        assert!(report::page(&results, &page) == page, "scale.md would be written differently: run `make scale-report`");
        for (name, svg) in report::pictures(&results) {
            assert!(svg == file(&name), "{name} would be drawn differently");
        }
    }

    #[test]
    fn a_quick_run_measures_everything() {
        let results = measure(None, &[], &Size::QUICK, 1, &[server_program()]);
        let page = report::page(&results, &file("scale.md"));
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        let lost = |waits: bool| results.failover.kills.iter().filter(move |kills| kills.waits == waits);
        // Grants that a replica has confirmed survive.
        assert!(lost(true).all(|kills| kills.lost.iter().all(|&units| units == 0)));
        assert!(results.memory.kinds.iter().all(|of| of.used > 50.0));
        // The same seed gives the same figures, whatever the machine does meanwhile.
        for row in results.shards.rows.iter().step_by(10) {
            let again = shards::simulate(row.plan, Size::QUICK.seconds, &mut fastrand::Rng::with_seed(1));
            let counts = |of: &shards::Outcome| (of.made, of.granted, of.early, of.tries, of.most);
            assert_eq!(counts(&row.outcome), counts(&again), "{:?}", row.plan);
        }
        for row in results.wallets.rows.iter().step_by(10) {
            let again = wallets::simulate(row.plan, Size::QUICK.seconds, 1);
            let counts = |of: &wallets::Outcome| (of.made, of.granted, of.charged, of.given_back, of.lost);
            assert_eq!(counts(&row.outcome), counts(&again), "{:?}", row.plan);
        }
    }
}
