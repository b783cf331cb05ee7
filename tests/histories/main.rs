//! Checked histories: clients call a cluster that is being broken, and each reply and each effect is explained afterwards.
//!
//! ```text
//! make histories HOURS=0.1 SEED=7
//! ```
//!
//! The nodes' append-only files record what was executed, and in which order: with each call its client sets a mark, in the same
//! transaction, or just before if the call may wait. The checker replays the files. For each call it looks for a moment, between the
//! server's times before and after it, at which the core (and the models of tests/core) make of the key's state that reply and exactly
//! those bytes. A server whose effects nobody records behaves otherwise. So in one round of four there is a lone server without a file,
//! and callers read the states after each call.
//!
//! After a round without a finding, faults are planted into what was recorded: the checker has to find each of them.

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
mod ends;
mod explain;
mod faults;
mod log;
mod models;
mod moments;
mod node;
mod plant;
mod recorded;
mod replies;
mod waits;
mod workload;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use support::fleet::{Fleet, SHARDS};
use support::{root, server_program, witness, Load, Server};
use tempfile::TempDir;

use caller::Task;
use check::{Checked, Finding};
use faults::{Breaker, Events};
use log::Manifests;
use recorded::Recorded;
use workload::{Run, CALLERS};

/// In how many processes clients call.
const PROCESSES: u64 = 4;
/// How long a round of calls takes.
const ROUND: Duration = Duration::from_secs(12);
/// After so many rounds, a fault that had no place in any is a failure.
const ROUNDS_TO_PLANT_ALL: u32 = 12;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn main() -> ExitCode {
    if let Ok(task) = std::env::var("HISTORIES_CALLER") {
        caller::work(&task_of(&task));
        return ExitCode::SUCCESS;
    }
    if let Ok(folder) = std::env::var("HISTORIES_CHECK") {
        let recorded = Recorded::read(folder.as_ref());
        let Checked { tally, findings } = recorded.check();
        println!("{tally:?}");
        show(&findings);
        let missed = if findings.is_empty() && !recorded.is_lone() { recorded.plant(&mut plant::all())[1] } else { 0 };
        return if findings.is_empty() && missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let hours: f64 = std::env::var("HISTORIES_HOURS").map_or(0.0, |hours| hours.parse().expect("a number of hours"));
    let mut seed = number("HISTORIES_SEED", 7);
    let begin = Instant::now();
    let mut all = Checked::default();
    let mut events: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut rounds, mut planted, mut missed) = (0, 0, 0);
    // A short run plants only some, other ones for another seed.
    let mut wanted = plant::all();
    Rng::with_seed(seed).shuffle(&mut wanted);
    loop {
        // One round in four has no recorder.
        let round = if seed % 4 == 3 { lone_round(seed) } else { cluster_round(seed, &mut wanted) };
        println!("seed {seed}: {:?}", round.checked.tally);
        show(&round.checked.findings);
        if !round.checked.findings.is_empty() {
            println!("  events:\n{}", round.events.told.join("\n"));
        }
        all.add(round.checked);
        planted += round.planted[0];
        missed += round.planted[1];
        round.events.counts.into_iter().for_each(|(name, count)| *events.entry(name).or_default() += count);
        (seed, rounds) = (seed + 1, rounds + 1);
        if begin.elapsed().as_secs_f64() >= hours * 3_600.0 {
            break;
        }
    }
    println!("{events:#?}");
    let Checked { tally, findings } = all;
    println!("{tally:#?}\n{} findings in {rounds} rounds and {:.0} s", findings.len(), begin.elapsed().as_secs_f64());
    println!("{} of {planted} planted faults found, {} were not planted", planted - missed, wanted.len());
    if findings.is_empty() && missed == 0 && (wanted.is_empty() || rounds < ROUNDS_TO_PLANT_ALL) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn show(findings: &[Finding]) {
    for Finding { what, timeline, .. } in findings.iter().take(5) {
        println!("  FINDING: {what}\n{timeline}\n");
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

/// A round that was checked.
struct Round {
    checked: Checked,
    events: Events,
    /// How many faults were planted, and how many of them the checker missed.
    planted: [usize; 2],
}

impl Round {
    /// Checks what was recorded. If there is a finding, what was recorded stays, so that `HISTORIES_CHECK=<folder>` checks it again.
    fn check(folder: TempDir, events: Events, findings: Vec<Finding>, wanted: &mut Vec<usize>) -> Self {
        let recorded = Recorded::read(folder.path());
        let mut checked = recorded.check();
        checked.findings.extend(findings);
        if !checked.findings.is_empty() {
            println!("recorded in {}", folder.keep().display());
        }
        let plants = !wanted.is_empty() && checked.findings.is_empty() && !recorded.is_lone();
        let planted = if plants { recorded.plant(wanted) } else { [0; 2] };
        Self { checked, events, planted }
    }
}

/// Starts servers whose clocks can be stepped.
fn start<T>(folder: &Path, start: impl FnOnce() -> T) -> T {
    let before = std::env::var("REDIS_RL_SERVER").ok();
    wrap_server(folder);
    let started = start();
    match before {
        Some(before) => std::env::set_var("REDIS_RL_SERVER", before),
        None => std::env::remove_var("REDIS_RL_SERVER"),
    }
    started
}

/// Starts the processes that call these nodes.
fn start_callers(run: Run, folder: &Path, nodes: &[(u16, PathBuf)]) -> Vec<Child> {
    let callers = |process| (0..CALLERS).filter(move |caller| caller / 3 % PROCESSES == process).collect::<Vec<_>>();
    (0..PROCESSES).map(|process| start_caller(run, &callers(process), folder, nodes)).collect()
}

/// Ends the calls, and waits for the processes.
fn end_callers(callers: Vec<Child>, folder: &Path) {
    std::fs::write(folder.join("stop"), "").expect("a file");
    for mut caller in callers {
        assert!(caller.wait().expect("a caller").success(), "a caller failed");
    }
}

/// Breaks a lone server under load, which has neither a replica nor an append-only file.
fn lone_round(seed: u64) -> Round {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), || Server::with(&["--save", ""]));
    let run = Run::new(seed);
    let callers = start_callers(run, folder.path(), &[(server.port, server.socket())]);
    let events = faults::break_lone(&server, seed, ROUND);
    end_callers(callers, folder.path());
    drop(server);
    recorded::write(folder.path(), run, &events, &[], &[]);
    Round::check(folder, events, Vec::new(), &mut Vec::new())
}

/// Breaks a cluster under load.
fn cluster_round(seed: u64, wanted: &mut Vec<usize>) -> Round {
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        "--appendonly yes --appendfsync no --aof-use-rdb-preamble no --aof-disable-auto-gc yes --rdbcompression no \
                   --auto-aof-rewrite-percentage 0 --notify-keyspace-events KEA --repl-backlog-size 64mb";
    let options: Vec<_> = options.split_whitespace().collect();
    let mut fleet = start(folder.path(), || Fleet::start(&options));
    let nodes: Vec<_> = (0..2 * SHARDS).map(|index| (fleet.node(index).port, fleet.node(index).socket())).collect();
    let folders: Vec<PathBuf> = (0..2 * SHARDS).map(|index| fleet.node(index).dir().to_path_buf()).collect();
    let run = Run::new(seed);
    let load = Load::lasting_at_most(Duration::from_secs(3_600));
    let mut manifests = vec![Manifests::default(); 2 * SHARDS];
    let callers = start_callers(run, folder.path(), &nodes);
    let events = std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            while load.goes_on() {
                manifests.iter_mut().zip(&folders).for_each(|(manifests, folder)| manifests.look(folder));
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        let _end = load.ends_here();
        let mut breaker = Breaker::new(&mut fleet, seed);
        breaker.work(ROUND);
        let events = breaker.events;
        end_callers(callers, folder.path());
        fleet.settle();
        load.end();
        look.join().expect("the manifests");
        events
    });
    fleet.assert_healthy();
    for (index, manifests) in manifests.iter_mut().enumerate() {
        support::wait_for("the append-only file", || {
            let report: String = support::call(&mut fleet.client(index), "INFO persistence");
            report.contains("aof_rewrite_in_progress:0") && report.contains("aof_rewrite_scheduled:0")
        });
        manifests.look(fleet.node(index).dir());
    }
    let compared = fleet.compare();
    let finding = |what| Finding { tag: None, what, timeline: String::new() };
    let mut findings: Vec<_> = compared.differ.into_iter().filter(|key| lasts(key)).map(finding).collect();
    let endless = compared.endless.iter().filter(|key| lasts(key) && !key.contains(":policy:"));
    findings.extend(endless.map(|key| finding(format!("{key} has no deadline"))));
    recorded::write(folder.path(), run, &events, &manifests, &folders);
    drop(fleet);
    Round::check(folder, events, findings, wanted)
}
