//! What calls cost, compared with the server's own commands and with other rate limiters: `make bench` measures it.
//!
//! docs/benchmarks.md has the answers, and docs/benchmarks-tables.md the tables behind them. Each part writes its section of both:
//! `brief` and `report`.

pub mod cases;
mod clients;
mod fresh;
mod ids;
mod memory;
mod peers;
mod scale;
pub mod speed;

use std::cell::OnceCell;
use std::path::Path;

use clap::Args;
use serde::{Deserialize, Serialize};

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

/// Measures the figures, unless they are only to be shown again, and writes the pages.
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

/// Writes the pages and their charts into this folder.
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
    let machine = &results.machine;
    let bars = speed::report::bars(&results.speed)
        + &fresh::bars(&results.fresh)
        + &ids::bars(&results.ids)
        + &clients::bars(&results.clients);
    let answers = [
        format!(
            "# Benchmarks (for engineers)\n\nAll figures are of one machine: {}. On another machine they differ, so compare ratios. Most \
             were measured on {} with redis-rl {}. [All tables](benchmarks-tables.md) have a page of their own.\n",
            machine.brief(),
            machine.date(),
            machine.module(),
        ),
        section("Speed", "short", &brief, speed::report::brief(&results.speed) + &fresh::brief(&results.fresh)),
        speed::report::waits(&results.speed),
        ids::brief(&results.ids),
        section("Memory", "memory", &memory, memory::report(&results.memory)),
        scale::brief(&results.scale),
        clients::brief(&results.clients),
        format!(
            "## Where this module is slower, or takes more\n\n{}{}{}* {} of {} goals that were set before anything was measured are \
             missed: [the list](benchmarks-tables.md#bars).\n",
            speed::report::slower(&results.speed),
            ids::slower(&results.ids),
            memory::larger(&results.memory),
            bars.matches("| **no** |\n").count(),
            bars.matches("| **no** |\n").count() + bars.matches("| yes |\n").count(),
        ),
        format!("## How it was measured\n\n{}\n{}", machine.report(), speed::report::method(&results.speed)),
    ];
    tools::chart::write(&out.join("benchmarks.md"), &answers.join("\n"));
    let tables = [
        "# Benchmarks: the tables (for engineers)\n\n[Benchmarks](benchmarks.md) has the answers, and says [how the figures were \
         measured](benchmarks.md#how-it-was-measured).\n"
            .into(),
        section("Speed", "speed", &speed, speed::report::report(&results.speed)),
        section("Scale", "scale", &keys, scale::report(&results.scale, &logs)),
        fresh::report(&results.fresh),
        ids::report(&results.ids),
        clients::report(&results.clients),
        bars,
    ];
    tools::chart::write(&out.join("benchmarks-tables.md"), &tables.join("\n"));
}
