//! The client packages: decisions by a call to the server, by a wait that finds units free, from a denial that is repeated, and from a
//! wallet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use support::{root, Server};

use crate::Options;
use crate::{run, rust_program};
use tools::statistics::Quartiles;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub rows: Vec<Row>,
}

/// One way in which a client package decides.
#[derive(Serialize, Deserialize)]
pub struct Row {
    pub client: String,
    pub way: String,
    /// Decisions a second of one thread, in each round.
    pub per_second: Vec<f64>,
    /// Relative to the calls to the server of the same process.
    pub of_round_trip: Quartiles,
}

const ROUND_TRIP: &str = "round_trip";
const WALLET: &str = "wallet";
/// The names in what the programs print, and on the page.
pub const WAYS: [(&str, &str); 4] = [
    (ROUND_TRIP, "a call to the server"),
    ("wait", "a wait that finds units free"),
    ("denied", "a denial that is repeated in the process"),
    (WALLET, "a wallet"),
];

/// A program that prints the figures of one round, and its arguments.
struct Program {
    client: &'static str,
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

/// Installs what the programs need, in the folder `target` and beside the package for Node.js.
fn programs() -> Vec<Program> {
    let (clients, target) = (root().join("clients"), root().join("target/clients"));
    let text = |path: PathBuf| path.display().to_string();
    // Python: the version of redis-py that the tests use.
    let needs = std::fs::read_to_string(clients.join("python/tests/requirements.txt")).expect("a list of packages");
    let redis = needs.lines().find(|line| line.starts_with("redis==")).expect("redis-py");
    let packages = target.join("bench-python").join(redis);
    if !packages.exists() {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"];
        run(Command::new("python3").args(pip).arg(&packages).arg(redis));
    }
    let path = std::env::join_paths([clients.join("python/src"), packages]).expect("paths").into_string().expect("text");
    // Node.js: the packages of the lock file, and the modules that are made from the sources.
    if !clients.join("node/node_modules/.package-lock.json").exists() {
        run(Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(clients.join("node")));
    }
    run(Command::new("npm").args(["run", "--silent", "build"]).current_dir(clients.join("node")));
    vec![
        Program {
            client: "Python",
            command: "python3".into(),
            arguments: vec!["-B".into(), text(clients.join("python/benchmark.py"))],
            environment: vec![("PYTHONPATH", path)],
        },
        Program {
            client: "Node.js",
            command: "node".into(),
            arguments: vec![text(clients.join("node/benchmark.mjs"))],
            environment: Vec::new(),
        },
        Program { client: "Rust", command: rust_program(), arguments: Vec::new(), environment: Vec::new() },
    ]
}

/// Measures all of the part.
pub fn measure(options: &Options) -> Section {
    let programs = programs();
    let server = Server::on_port(&[]);
    let url = format!("redis://127.0.0.1:{}/", server.port);
    let mut rounds: Vec<Vec<BTreeMap<String, f64>>> = programs.iter().map(|_| Vec::new()).collect();
    for round in 0..options.rounds {
        // The order rotates.
        for nth in 0..programs.len() {
            let at = (nth + round) % programs.len();
            let Program { command, arguments, environment, .. } = &programs[at];
            let mut command = Command::new(command);
            command.args(arguments).arg(&url).arg((options.seconds / 2.0).to_string()).envs(environment.iter().cloned());
            let text = run(command.current_dir(Path::new("/")));
            rounds[at].push(serde_json::from_str(text.trim()).expect("the figures of a round"));
        }
    }
    let mut rows = Vec::new();
    for (program, rounds) in programs.iter().zip(rounds) {
        for (way, _) in WAYS {
            let per_second: Vec<f64> = rounds.iter().filter_map(|round| round.get(way).copied()).collect();
            if per_second.is_empty() {
                continue;
            }
            let of_round_trip = Quartiles::of(rounds.iter().map(|round| round[way] / round[ROUND_TRIP]));
            rows.push(Row { client: program.client.into(), way: way.into(), per_second, of_round_trip });
        }
    }
    Section { rows }
}
