//! docs/benchmarks.md: what calls cost, compared with the server's own commands and with other rate limiters. `make bench`

pub mod cases;
mod clients;
mod fresh;
mod ids;
mod memory;
mod peers;
mod scale;
pub mod speed;

use std::cell::OnceCell;
use std::fs;
use std::path::Path;

use clap::Args;
use serde::{Deserialize, Serialize};

use tools::chart::{describe, fill};
use tools::results::Machine;

use crate::{figure, keep, measure, read, Common};

/// The options of `make bench`.
#[derive(Args)]
pub struct Options {
    /// How often each case is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long the load on a case lasts in each round, in seconds
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
    /// Measure only the scenes whose title contains this; may be given several times
    #[arg(long)]
    only: Vec<String>,
    /// Measure only this part, and keep the other figures of the file
    #[arg(long, value_parser = ["speed", "memory", "scale", "fresh", "ids", "clients"])]
    part: Vec<String>,
    /// The most keys of the part `scale`
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    #[command(flatten)]
    common: Common,
}

impl Options {
    /// How often each figure of memory and scale is measured.
    fn repeats(&self) -> usize {
        if self.common.quick {
            1
        } else {
            3
        }
    }
}

/// The content of docs/benchmarks.json.
#[derive(Serialize, Deserialize)]
pub struct Results {
    machine: Machine,
    speed: speed::Section,
    memory: memory::Section,
    scale: scale::Section,
    fresh: fresh::Section,
    ids: ids::Section,
    clients: clients::Section,
}

/// Measures the figures, unless they are only to be shown again, and writes the page.
pub fn write(options: &Options) {
    let file = options.common.out.join("benchmarks.json");
    if !options.common.report {
        // The client packages are not compared with other rate limiters, so they need no download.
        let installed = OnceCell::new();
        let peers = || installed.get_or_init(peers::install);
        // These parts say by themselves what they were measured with.
        let apart = |part: &String| ["fresh", "ids", "clients"].contains(&part.as_str());
        let known = !options.part.is_empty() && options.part.iter().all(apart);
        let new = [("machine", figure(Machine::this()))];
        // The parts that are short and least sensitive to other work on the machine come first.
        let results: Results = measure(
            &file,
            &options.part,
            if known { &[] } else { &new },
            &[
                ("memory", &|| figure(memory::measure(options, peers()))),
                ("scale", &|| figure(scale::measure(options))),
                ("speed", &|| figure(speed::measure(options, peers()))),
                ("fresh", &|| figure(fresh::measure(options, peers()))),
                ("ids", &|| figure(ids::measure(options, peers()))),
                ("clients", &|| figure(clients::measure(options))),
            ],
        );
        keep(&file, &results);
    }
    report(&read(&file), &options.common.out);
}

/// Writes the page and its charts into this folder, and the table of the README beside it.
fn report(results: &Results, out: &Path) {
    let chart = |name: &str| out.join(format!("benchmarks-{name}.svg"));
    // The title of a chart, which says what it shows, is also its text for those who can't see it.
    let speed = speed::chart::long(&results.speed, &chart("speed"));
    let brief = speed::chart::brief(&results.speed, &chart("short"));
    let memory = memory::chart(&results.memory, &chart("memory"));
    let keys = scale::keys_chart(&results.scale, &chart("scale"));
    let logs = scale::logs_chart(&results.scale, &chart("log"));
    let section = |title: &str, name: &str, shows: &str, text: String| {
        format!("## {title}\n\n![{shows}](benchmarks-{name}.svg)\n\n{text}")
    };
    let sections = [
        results.machine.report(),
        section("Speed", "speed", &speed, speed::report::report(&results.speed)),
        section("Memory", "memory", &memory, memory::report(&results.memory)),
        section("Scale", "scale", &keys, scale::report(&results.scale, &logs)),
        fresh::report(&results.fresh),
        ids::report(&results.ids),
        clients::report(&results.clients),
        speed::report::bars(&results.speed)
            + &fresh::bars(&results.fresh)
            + &ids::bars(&results.ids)
            + &clients::bars(&results.clients),
    ];
    tools::chart::write(&out.join("benchmarks.md"), &sections.join("\n"));
    let readme = out.join("../README.md");
    if let Ok(page) = fs::read_to_string(&readme) {
        let page = fill(&page, "make bench: speed", &speed::report::summary(&results.speed));
        tools::chart::write(&readme, &describe(&page, "docs/benchmarks-short.svg", &brief));
    }
}
