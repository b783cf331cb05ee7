//! Measures what calls cost, compared with the server's own commands and with other rate limiters. `make bench`
//!
//! The figures go into docs/benchmarks.json. docs/benchmarks.md and the charts are written from that file alone
//! (`--report`).

mod cases;
mod clients;
mod fresh;
mod ids;
mod memory;
mod peers;
mod scale;
mod speed;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use support::root;
use tools::chart::{describe, fill, write};
use tools::{json, load, machine, probe, statistics, steady};

/// Measures what calls cost, and writes docs/benchmarks.json, docs/benchmarks.md and the charts
#[derive(Parser)]
struct Options {
    /// How often each case is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long the load on a case lasts in each round, in seconds
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
    /// Another server program to measure on; may be given several times
    #[arg(long, value_parser = program)]
    server: Vec<String>,
    /// Measure only the scenes whose title contains this; may be given several times
    #[arg(long)]
    only: Vec<String>,
    /// Measure only this part, and keep the other figures of the file
    #[arg(long, value_enum)]
    part: Vec<Part>,
    #[command(flatten)]
    scale: Scale,
    /// Measure nothing, only write the report again
    #[arg(long)]
    report: bool,
    /// The folder to write to
    #[arg(long, default_value_os_t = root().join("docs"))]
    out: PathBuf,
}

/// How much of memory and scale is measured.
#[derive(Args)]
pub struct Scale {
    /// A short run, to see that it works: its figures are rough
    #[arg(long)]
    pub quick: bool,
    /// The most keys
    #[arg(long, default_value_t = 10_000_000)]
    pub keys: u64,
}

impl Scale {
    /// How often each figure is measured.
    pub fn rounds(&self) -> usize {
        if self.quick {
            1
        } else {
            3
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    Speed,
    Memory,
    Scale,
    Fresh,
    Ids,
    Clients,
}

/// The content of docs/benchmarks.json.
#[derive(Serialize, Deserialize)]
struct Results {
    machine: machine::Machine,
    speed: speed::Section,
    memory: memory::Section,
    scale: scale::Section,
    /// As `ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fresh: Option<fresh::Section>,
    /// A file that was written before there were ids has no such part.
    #[serde(default)]
    ids: Option<ids::Section>,
    /// As `ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clients: Option<clients::Section>,
}

fn main() {
    let options = Options::parse();
    let file = options.out.join("benchmarks.json");
    let read = || {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}: run `make bench`", file.display()));
        serde_json::from_str::<Results>(&text).expect("benchmarks.json as it was written")
    };
    if !options.report {
        // The client packages are not compared with other rate limiters.
        let peers = (options.part != [Part::Clients]).then(peers::install);
        let peers = || peers.as_ref().expect("the other rate limiters");
        let before = (!options.part.is_empty()).then(read);
        let wanted = |part: Part| options.part.is_empty() || options.part.contains(&part);
        let (machine, speed, memory, scale, fresh, ids, clients) = match before {
            Some(Results { machine, speed, memory, scale, fresh, ids, clients }) => {
                (Some(machine), Some(speed), Some(memory), Some(scale), fresh, ids, clients)
            }
            None => (None, None, None, None, None, None, None),
        };
        // These parts say by themselves what they were measured with.
        let apart = |part: &Part| [Part::Fresh, Part::Ids, Part::Clients].contains(part);
        let machine = machine.filter(|_| options.part.iter().all(apart)).unwrap_or_else(machine::Machine::this);
        // The parts that are short and least sensitive to other work on the machine come first.
        let memory = memory.filter(|_| !wanted(Part::Memory)).unwrap_or_else(|| memory::measure(&options.scale, peers()));
        let scale = scale.filter(|_| !wanted(Part::Scale)).unwrap_or_else(|| scale::measure(&options.scale));
        let speed = speed.filter(|_| !wanted(Part::Speed)).unwrap_or_else(|| speed::measure(&options, peers()));
        let fresh = fresh
            .filter(|_| !wanted(Part::Fresh))
            .or_else(|| wanted(Part::Fresh).then(|| fresh::measure(&options, peers())));
        let ids = ids.filter(|_| !wanted(Part::Ids)).unwrap_or_else(|| ids::measure(&options, peers()));
        let clients =
            clients.filter(|_| !wanted(Part::Clients)).or_else(|| wanted(Part::Clients).then(|| clients::measure(&options)));
        let results = Results { machine, speed, memory, scale, fresh, ids: Some(ids), clients };
        write(&file, &json::text(&results));
    }
    report(&read(), &options.out);
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
        results.fresh.as_ref().map(fresh::report).unwrap_or_default(),
        results.ids.as_ref().map(ids::report).unwrap_or_default(),
        results.clients.as_ref().map(clients::report).unwrap_or_default(),
        speed::report::bars(&results.speed)
            + &results.fresh.as_ref().map(fresh::bars).unwrap_or_default()
            + &results.ids.as_ref().map(ids::bars).unwrap_or_default()
            + &results.clients.as_ref().map(clients::bars).unwrap_or_default(),
    ];
    write(&out.join("benchmarks.md"), &sections.join("\n"));
    let readme = out.join("../README.md");
    if let Ok(page) = fs::read_to_string(&readme) {
        let page = fill(&page, "make bench: speed", &speed::report::summary(&results.speed));
        write(&readme, &describe(&page, "docs/benchmarks-short.svg", &brief));
    }
}

/// The absolute path of a program. A server runs in a folder of its own, so that a relative path would not be found.
fn program(path: &str) -> std::io::Result<String> {
    Ok(fs::canonicalize(path)?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::{json::text, report, Results};

    #[test]
    fn the_file_is_read_and_written_back_without_a_change() {
        let file = std::fs::read_to_string(support::root().join("docs/benchmarks.json")).expect("the file");
        let results: Results = serde_json::from_str(&file).expect("results");
        let written = text(&results);
        // Not `assert_eq!`, which would print the whole file.
        assert!(written == file);
        let scenes = results.speed.scenes.iter().chain(results.ids.iter().flat_map(|section| &section.scenes));
        let scenes = scenes.chain(results.fresh.iter().flat_map(|section| &section.scenes));
        let cases: usize = scenes.map(|scene| scene.cases.len()).sum();
        assert_eq!(written.lines().filter(|line| line.contains("\"rounds\": [{")).count(), cases);
    }

    #[test]
    fn the_pages_and_the_charts_are_those_of_the_figures() {
        let root = support::root();
        let file = std::fs::read_to_string(root.join("docs/benchmarks.json")).expect("the file");
        let results: Results = serde_json::from_str(&file).expect("results");
        let folder = tempfile::tempdir().expect("a folder");
        let docs = folder.path().join("docs");
        std::fs::create_dir(&docs).expect("a folder");
        std::fs::copy(root.join("README.md"), folder.path().join("README.md")).expect("a copy");
        report(&results, &docs);
        let written = std::fs::read_dir(&docs).expect("the folder").map(|file| file.expect("a file").path());
        let written: Vec<_> = written.chain([folder.path().join("README.md")]).collect();
        assert!(written.len() >= 7, "{written:?}");
        for path in written {
            let name = path.strip_prefix(folder.path()).expect("within");
            let [written, committed] = [&path, &root.join(name)].map(|path| std::fs::read_to_string(path).expect("text"));
            // Not `assert_eq!`, which would print the whole files.
            assert!(written == committed, "{} would be written differently: run `make bench-report`", name.display());
        }
    }
}
