//! Measures what calls cost, and what it takes to grow beyond one call to one server. `make bench`, `make scale`
//!
//! The figures go into docs/benchmarks.json and docs/scale.json. The pages with the same names, docs/benchmarks-tables.md and
//! the charts are written from these files alone (`--report`).

mod benchmarks;
mod scale;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::{from_value, to_value, Map, Value};

use support::{call, root, Server};
use tools::chart::write;
use tools::results;

/// Measures what calls cost, and what it takes to grow beyond one call to one server, and writes the figures into docs.
#[derive(Parser)]
struct Options {
    /// The page, and the file of its figures
    page: Page,
    /// Measure only this part, and keep the other figures of the file
    #[arg(long)]
    part: Vec<String>,
    /// How often each case is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long the load on a case lasts in each round, in seconds
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
    /// Determines the traffic that is simulated, and the moments at which servers are killed; the default is the time
    #[arg(long)]
    seed: Option<u64>,
    /// Another server program to measure on; may be given several times
    #[arg(long, value_parser = program)]
    server: Vec<String>,
    /// A short run, to see that it works: its figures are rough
    #[arg(long)]
    quick: bool,
    /// Measure nothing, only write the page and its charts again
    #[arg(long)]
    report: bool,
    /// The folder to write to
    #[arg(long, default_value_os_t = root().join("docs"))]
    out: PathBuf,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Page {
    Benchmarks,
    Scale,
}

impl Options {
    /// How often each figure that is not a ratio is measured.
    fn repeats(&self) -> usize {
        if self.quick {
            1
        } else {
            3
        }
    }

    fn run(&self) {
        let [benchmarks, scale] = ["benchmarks.json", "scale.json"].map(|name| self.out.join(name));
        match self.page {
            Page::Benchmarks => {
                if !self.report {
                    keep(&benchmarks, &benchmarks::results(&benchmarks, self));
                }
                benchmarks::report::write(&read(&benchmarks), &self.out);
            }
            Page::Scale => {
                if !self.report {
                    keep(&scale, &scale::results(&scale, self));
                }
                // What one hot key gives is a part of the benchmarks.
                scale::report::write(&read(&scale), &read::<benchmarks::Results>(&benchmarks).speed, &self.out);
            }
        }
    }
}

fn main() {
    Options::parse().run();
}

/// The absolute path of a program. A server runs in a folder of its own, so that a relative path would not be found.
fn program(path: &str) -> std::io::Result<String> {
    Ok(fs::canonicalize(path)?.to_string_lossy().into_owned())
}

/// The name and version that a server reports: `Redis 7.0.15`.
fn version(program: &str) -> String {
    let server = Server::of(program, false, &[]);
    let text: String = call(&mut server.client(), "INFO server");
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    match field("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", field("redis_version").expect("a version")),
    }
}

/// The figures of a page, as they were written.
fn read<Results: DeserializeOwned>(file: &Path) -> Results {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}: measure all parts first", file.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A part of a page: its name in the file, and what measures it.
type Part<'a> = (&'static str, &'a dyn Fn() -> Value);

/// The value of a figure in the file.
fn figure(figure: impl Serialize) -> Value {
    to_value(figure).expect("JSON")
}

/// Measures these parts of a page, in this order, or only those that are `wanted` if there are any: then all else stays as it is in
/// the file. `run` describes a run of all parts.
fn measure<Results: DeserializeOwned>(file: &Path, wanted: &[String], run: &[(&str, Value)], parts: &[Part<'_>]) -> Results {
    let unknown = wanted.iter().find(|part| parts.iter().all(|(name, _)| part != name));
    assert!(unknown.is_none(), "no part is called {unknown:?}");
    let mut figures: Map<String, Value> = if wanted.is_empty() {
        run.iter().map(|(name, figure)| (name.to_string(), figure.clone())).collect()
    } else {
        read(file)
    };
    let begin = Instant::now();
    for (name, measure) in parts {
        if wanted.is_empty() || wanted.iter().any(|part| part == name) {
            println!("{:3.0} s: {name}", begin.elapsed().as_secs_f64());
            figures.insert((*name).into(), measure());
        }
    }
    from_value(figures.into()).expect("all parts")
}

/// Writes the figures of a page.
fn keep(file: &Path, results: &impl Serialize) {
    write(file, &results::text(results));
}

// ---- Programs that are measured ----

/// Runs a program, and returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text.into_owned()
}

/// Builds clients/rust/benches/decisions.rs in the folder that the package's tests use, and returns the path of the program.
fn rust_program() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let built = run(Command::new(cargo)
        .args(["bench", "--quiet", "--locked", "--bench", "decisions", "--no-run", "--message-format", "json"])
        .env("CARGO_TARGET_DIR", root().join("target/clients/rust"))
        .current_dir(root().join("clients/rust")));
    let program = built.lines().rev().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == "decisions").then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    program.expect("a program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_read_and_written_back_without_a_change() {
        fn written_back<Results: Serialize + DeserializeOwned>(name: &str) -> bool {
            let file = root().join("docs").join(name);
            results::text(&read::<Results>(&file)) == fs::read_to_string(file).expect("the file")
        }
        // Not `assert_eq!`, which would print the whole files.
        assert!(written_back::<benchmarks::Results>("benchmarks.json"));
        assert!(written_back::<scale::Results>("scale.json"));
    }

    #[test]
    fn the_pages_and_the_charts_are_those_of_the_figures() {
        let docs = tempfile::tempdir().expect("a folder");
        let names = ["benchmarks.json", "scale.json", "benchmarks.md", "benchmarks-tables.md", "scale.md"];
        for name in names {
            fs::copy(root().join("docs").join(name), docs.path().join(name)).expect("a copy");
        }
        for page in ["benchmarks", "scale"] {
            Options::parse_from(["bench", page, "--report", "--out", docs.path().to_str().expect("a path")]).run();
        }
        let written: Vec<_> = fs::read_dir(&docs).expect("the folder").map(|file| file.expect("a file").path()).collect();
        assert_eq!(written.len(), names.len() + 3, "{written:?}");
        for path in written {
            let name = path.file_name().expect("a name");
            let [written, committed] =
                [&path, &root().join("docs").join(name)].map(|path| fs::read_to_string(path).expect("text"));
            assert!(written == committed, "{name:?} would be written differently: `make bench-report scale-report`");
        }
    }
}
