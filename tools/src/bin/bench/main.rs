//! Measures what calls cost, and what one server, a cluster and several regions can do. `make bench`, `make scale`
//!
//! The figures go into docs/benchmarks.json and docs/scale.json. The pages with the same names, docs/benchmarks-tables.md and
//! the charts are written from these files alone (`--report`).

mod benchmarks;
mod scale;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::{Args, Parser};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::{from_value, to_value, Map, Value};

use support::{call, root, Server};
use tools::chart::write;
use tools::results;

#[derive(Parser)]
enum Page {
    /// Measures what calls cost, and writes docs/benchmarks.json, docs/benchmarks.md, docs/benchmarks-tables.md and the charts
    Benchmarks(benchmarks::Options),
    /// Measures and simulates what one server, a cluster and several regions can do, and writes docs/scale.*
    Scale(scale::Options),
}

/// The options that both pages have.
#[derive(Args)]
struct Common {
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

fn main() {
    Page::parse().write();
}

impl Page {
    fn write(&self) {
        match self {
            Self::Benchmarks(options) => benchmarks::write(options),
            Self::Scale(options) => scale::write(options),
        }
    }
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

/// Measures these parts of a page, in this order, or only those that are `wanted` if there are any. The other figures stay as they
/// are in the file. `new` is what each run replaces.
fn measure<Results: DeserializeOwned>(file: &Path, wanted: &[String], new: &[(&str, Value)], parts: &[Part<'_>]) -> Results {
    let mut figures: Map<String, Value> = if wanted.is_empty() { Map::new() } else { read(file) };
    figures.extend(new.iter().map(|(name, figure)| (name.to_string(), figure.clone())));
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
        let folder = tempfile::tempdir().expect("a folder");
        let docs = folder.path().join("docs");
        fs::create_dir(&docs).expect("a folder");
        for name in ["docs/benchmarks.json", "docs/scale.json", "docs/scale.md"] {
            fs::copy(root().join(name), folder.path().join(name)).expect("a copy");
        }
        for page in ["benchmarks", "scale"] {
            Page::parse_from(["bench", page, "--report", "--out", docs.to_str().expect("a path")]).write();
        }
        let written: Vec<_> = fs::read_dir(&docs).expect("the folder").map(|file| file.expect("a file").path()).collect();
        assert_eq!(written.len(), 12, "{written:?}");
        for path in written {
            let name = path.strip_prefix(folder.path()).expect("within");
            let [written, committed] = [&path, &root().join(name)].map(|path| fs::read_to_string(path).expect("text"));
            let page =
                if name.to_string_lossy().contains("scale.") || name.starts_with("docs/scale") { "scale" } else { "bench" };
            assert!(written == committed, "{} would be written differently: run `make {page}-report`", name.display());
        }
    }
}
