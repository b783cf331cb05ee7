//! Checked histories: clients call a cluster that is being broken, and each reply and each effect is explained afterwards.
//!
//! ```text
//! make histories HISTORIES=600 SEED=7
//! ```
//!
//! The nodes' append-only files record what was executed, and in which order: with each call its client sets a mark, in the same
//! transaction, or just before if the call may wait. The checker replays the files. For each call it looks for a moment, between the
//! server's times before and after it, at which the core (and the models of tests/core) make of the key's state that reply and exactly
//! those bytes.
//!
//! This is unfinished, and no other target runs it. In a hundred thousand calls, about one reply is not explained, each time so far by a
//! fault of the checker. It searches for minutes when the log of a node has a long gap. It plants no faults, runs no server without an
//! append-only file, and does not part nodes from each other.

#[allow(dead_code)]
#[path = "../core/ids/model.rs"]
mod ids_model;
#[allow(dead_code)]
#[path = "../core/key.rs"]
mod key;
#[path = "../core/lease_model.rs"]
mod lease_model;
#[allow(dead_code)]
#[path = "../core/model.rs"]
mod model;

mod caller;
mod check;
mod explain;
mod faults;
mod log;
mod models;
mod moments;
mod replies;
mod workload;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use support::fleet::{Fleet, SHARDS};
use support::{root, server_program, witness, Load};

use caller::Task;
use check::{Checker, Finding, History, Tally};
use faults::{Breaker, Events};
use log::Manifests;
use workload::Run;

/// How many clients call, and in how many processes.
const CALLERS: u64 = 36;
const PROCESSES: u64 = 4;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn main() -> ExitCode {
    if let Ok(task) = std::env::var("HISTORIES_CALLER") {
        caller::work(&task_of(&task));
        return ExitCode::SUCCESS;
    }
    if let Ok(folder) = std::env::var("HISTORIES_CHECK") {
        let (tally, findings) = check(folder.as_ref());
        println!("{tally:?}");
        findings.iter().take(5).for_each(|Finding { what, timeline }| println!("FINDING: {what}\n{timeline}\n"));
        return if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    // A cluster is used for so long, and then checked.
    let seconds = number("HISTORIES_SECONDS", 12);
    let total = Duration::from_secs(number("HISTORIES_TOTAL", seconds));
    let mut seed = number("HISTORIES_SEED", 7);
    let begin = Instant::now();
    let mut all = Tally::default();
    let mut events: BTreeMap<&str, u64> = BTreeMap::new();
    let mut found = 0;
    loop {
        let (tally, findings, told) = round(seed, Duration::from_secs(seconds));
        println!("seed {seed}: {tally:?}");
        for Finding { what, timeline } in findings.iter().take(5) {
            println!("  FINDING: {what}\n{timeline}\n");
        }
        if !findings.is_empty() {
            println!("  events:\n{}", told.told.join("\n"));
        }
        found += findings.len();
        all.add(&tally);
        told.counts.into_iter().for_each(|(name, count)| *events.entry(name).or_default() += count);
        if begin.elapsed() >= total {
            break;
        }
        seed += 1;
    }
    println!("{all:?}\n{events:?}\n{found} findings in {:.0} s", begin.elapsed().as_secs_f64());
    if found == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What a caller process finds in its environment.
fn task_of(text: &str) -> Task {
    let mut lines = text.lines();
    let mut line = || lines.next().expect("a line");
    let numbers = |line: &str| line.split(' ').map(|word| word.parse().expect("a number")).collect::<Vec<u64>>();
    let head = numbers(line());
    let callers = numbers(line());
    let folder = line().into();
    let nodes = lines
        .map(|line| line.split_once(' ').expect("a node"))
        .map(|(port, path)| (port.parse().expect("a port"), path.into()));
    Task { run: Run { seed: head[0], start_s: head[1] }, callers, folder, nodes: nodes.collect() }
}

fn start_caller(run: Run, callers: &[u64], folder: &Path, nodes: &[(u16, PathBuf)]) -> Child {
    let callers: Vec<_> = callers.iter().map(u64::to_string).collect();
    let nodes: Vec<_> = nodes.iter().map(|(port, path)| format!("{port} {}", path.display())).collect();
    let task = format!("{} {}\n{}\n{}\n{}", run.seed, run.start_s, callers.join(" "), folder.display(), nodes.join("\n"));
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    support::dies_with_this_thread(&mut command, support::Signal::KILL);
    command.env("HISTORIES_CALLER", task).stdin(Stdio::null()).spawn().expect("a process")
}

/// Makes the servers of this process start with clocks of their own, each in its folder.
fn wrap_server(folder: &Path) {
    let (library, program) = (witness::build("clock", folder), server_program());
    // The script runs in another folder.
    let program = if program.contains('/') { root().join(program).display().to_string() } else { program };
    let wrapper = folder.join("server");
    let clock: Vec<u8> = [0, 0, 0, moments::STEP_US, 0].into_iter().flat_map(i64::to_ne_bytes).collect();
    let first = folder.join("clock");
    std::fs::write(&first, clock).expect("a file");
    let script = format!(
        "#!/bin/sh\n[ -e clock ] || cp '{}' clock\nCLOCK_FILE=clock LD_PRELOAD='{}' exec '{program}' \"$@\"\n",
        first.display(),
        library.display()
    );
    std::fs::write(&wrapper, script).expect("a script");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("a program");
    std::env::set_var("REDIS_RL_SERVER", wrapper);
}

/// Whether a key, of which this is said, lives for so long that it does not expire between two looks.
fn lasts(key: &str) -> bool {
    let deadlines = key.split("deadline_ms: ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<i64>().ok());
    let soon_ms = faults::wall_us() / 1_000 + 20_000;
    ["hours", "days", "month"].iter().any(|name| key.contains(&format!("}}:{name}:")))
        && deadlines.filter(|&ms| ms > 0).all(|ms| ms > soon_ms)
}

/// Starts a cluster, breaks it under load, and checks what has happened.
fn round(seed: u64, time: Duration) -> (Tally, Vec<Finding>, Events) {
    let folder = tempfile::tempdir().expect("a folder");
    let before = std::env::var("REDIS_RL_SERVER").ok();
    wrap_server(folder.path());
    let options =
        "--appendonly yes --appendfsync no --aof-use-rdb-preamble no --aof-disable-auto-gc yes --rdbcompression no \
                   --auto-aof-rewrite-percentage 0 --notify-keyspace-events KEA --repl-backlog-size 64mb";
    let mut fleet = Fleet::start(&options.split_whitespace().collect::<Vec<_>>());
    match before {
        Some(before) => std::env::set_var("REDIS_RL_SERVER", before),
        None => std::env::remove_var("REDIS_RL_SERVER"),
    }
    let nodes: Vec<_> = (0..2 * SHARDS).map(|index| (fleet.node(index).port, fleet.node(index).socket())).collect();
    let folders: Vec<PathBuf> = (0..2 * SHARDS).map(|index| fleet.node(index).dir().to_path_buf()).collect();
    let run = Run { seed, start_s: (faults::wall_us() / 1_000_000) as u64 };
    let load = Load::lasting_at_most(Duration::from_secs(3_600));
    let mut manifests = vec![Manifests::default(); 2 * SHARDS];
    let mut children: Vec<_> = (0..PROCESSES)
        .map(|process| {
            let callers: Vec<_> = (0..CALLERS).filter(|caller| caller / 3 % PROCESSES == process).collect();
            start_caller(run, &callers, folder.path(), &nodes)
        })
        .collect();
    let events = std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            while load.goes_on() {
                manifests.iter_mut().zip(&folders).for_each(|(manifests, folder)| manifests.look(folder));
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        let _end = load.ends_here();
        let mut breaker = Breaker::new(&mut fleet, seed);
        breaker.work(time);
        let events = breaker.events;
        std::fs::write(folder.path().join("stop"), "").expect("a file");
        children.iter_mut().for_each(|child| assert!(child.wait().expect("a caller").success(), "a caller failed"));
        fleet.settle();
        load.end();
        look.join().expect("the manifests");
        events
    });
    fleet.assert_healthy();
    let compared = fleet.compare();
    let mut findings: Vec<_> =
        compared.differ.into_iter().filter(|key| lasts(key)).map(|what| Finding { what, timeline: String::new() }).collect();
    let endless = compared.endless.iter().filter(|key| lasts(key) && !key.contains(":policy:"));
    findings.extend(endless.map(|key| Finding { what: format!("{key} has no deadline"), timeline: String::new() }));
    let record = Recorded { run, events, manifests };
    record.write(folder.path(), &folders);
    drop(fleet);
    let (tally, found) = check(folder.path());
    findings.extend(found);
    if !findings.is_empty() {
        // What was recorded stays, so that `HISTORIES_CHECK=<folder>` checks it again.
        println!("recorded in {}", folder.keep().display());
    }
    (tally, findings, record.events)
}

/// What is recorded of a run besides the histories and the logs.
struct Recorded {
    run: Run,
    events: Events,
    manifests: Vec<Manifests>,
}

impl Recorded {
    /// Moves the nodes' logs into the folder, and writes down the rest.
    fn write(&self, folder: &Path, nodes: &[PathBuf]) {
        let mut text = format!("run {} {}\n", self.run.seed, self.run.start_s);
        for (tag, [from, to]) in &self.events.moves {
            text += &format!("move {tag} {from} {to}\n");
        }
        for (node, [before, after]) in &self.events.steps {
            text += &format!("step {node} {before} {after}\n");
        }
        for (node, manifests) in self.manifests.iter().enumerate() {
            for (base, first) in &manifests.0 {
                text += &format!("base {node} {base} {first}\n");
            }
        }
        std::fs::write(folder.join("run"), text).expect("a file");
        for (number, node) in nodes.iter().enumerate() {
            let to = folder.join(number.to_string());
            std::fs::create_dir(&to).expect("a folder");
            std::fs::rename(node.join("appendonlydir"), to.join("appendonlydir")).expect("the log");
        }
    }

    fn read(folder: &Path) -> Self {
        let mut record = Self {
            run: Run { seed: 0, start_s: 0 },
            events: Events::default(),
            manifests: vec![Manifests::default(); 2 * SHARDS],
        };
        for line in std::fs::read_to_string(folder.join("run")).expect("a recorded run").lines() {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<i64>().expect("a number");
            match words[0] {
                "run" => record.run = Run { seed: number(1) as u64, start_s: number(2) as u64 },
                "move" => record.events.moves.push((number(1) as u64, [number(2), number(3)])),
                "step" => record.events.steps.push((number(1) as usize, [number(2), number(3)])),
                _ => drop(record.manifests[number(1) as usize].0.insert(words[2].into(), words[3].into())),
            }
        }
        record
    }
}

/// Checks a recorded run.
fn check(folder: &Path) -> (Tally, Vec<Finding>) {
    let Recorded { run, events, manifests } = Recorded::read(folder);
    let nodes = manifests.iter().enumerate();
    let logs: Vec<_> = nodes.map(|(node, manifests)| log::read(&folder.join(node.to_string()), manifests)).collect();
    let records = replies::read(folder, CALLERS);
    let history = History { run, records: &records, logs: &logs, moves: &events.moves, steps: &events.steps };
    let begin = Instant::now();
    let checker = Checker::check(&history);
    println!("{} calls checked in {:.1} s", records.len(), begin.elapsed().as_secs_f64());
    (checker.tally, checker.findings)
}
