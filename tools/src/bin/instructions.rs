//! Counts the instructions that the server executes for a call. Unlike times, these counts do not vary from run to run.
//! `make instructions`, or `make instructions BASE=<commit>` to compare with another commit.
//!
//! The server runs in callgrind, which counts between two dumps. A count includes all that the server does for a call, from
//! the socket to the reply, with sixteen calls in a pipeline. The difference to `SET key value EX 60` and `INCR` is what the
//! module adds.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use redis::{Connection, ConnectionLike};
use support::{call, command, info, server_program, Server};

const CALLS: u64 = 4_000;
const PIPELINE: u64 = 16;

/// The rows of the table: a name, a call that prepares each key, and the call to count. `#` stands for one of a thousand
/// keys.
const ROWS: [(&str, &str, &str); 25] = [
    ("PING", "", "PING"),
    ("GET", "SET key:# 1", "GET key:#"),
    ("INCR", "SET key:# 1", "INCR key:#"),
    ("SET .. EX", "", "SET key:# 0123456789012345678901234567 EX 60"),
    ("RL.FIXED, granted", "", "RL.FIXED fixed:# 1000 1d"),
    ("RL.GCRA, granted", "", "RL.GCRA gcra:# 1000 1d"),
    ("RL.BUCKET, granted", "", "RL.BUCKET bucket:# 1000 1d"),
    ("RL.SLIDE, granted", "", "RL.SLIDE slide:# 1000 60"),
    ("RL.SLIDE, granted, a log of 1000", "RL.SLIDE long 1000000 1d", "RL.SLIDE long 1000000 1d"),
    ("RL.FIXED, denied", "RL.FIXED fixed:# 10 1d UPTO 10", "RL.FIXED fixed:# 10 1d"),
    ("RL.GCRA, denied", "RL.GCRA gcra:# 10 1d UPTO 10", "RL.GCRA gcra:# 10 1d"),
    ("RL.GCRA, denied, one key", "RL.GCRA gcra 10 1d UPTO 10", "RL.GCRA gcra 10 1d"),
    ("RL.BUCKET, denied", "RL.BUCKET bucket:# 10 1d UPTO 10", "RL.BUCKET bucket:# 10 1d"),
    ("RL.SLIDE, denied", "RL.SLIDE slide:# 10 1d UPTO 10", "RL.SLIDE slide:# 10 1d"),
    ("RL.GCRA COST 2, granted", "", "RL.GCRA gcra:# 1000 1d COST 2"),
    ("RL.GCRA UPTO 2, granted", "", "RL.GCRA gcra:# 1000 1d UPTO 2"),
    ("RL.GCRA BURST 2000, granted", "", "RL.GCRA gcra:# 1000 1d BURST 2000"),
    ("RL.GCRA RESERVE, booked", "RL.GCRA gcra:# 1000 1d UPTO 1000", "RL.GCRA gcra:# 1000 1d RESERVE 1d"),
    ("RL.GCRA BLOCK, granted at once", "", "RL.GCRA gcra:# 1000 1d BLOCK 5"),
    ("RL.GCRA FORCE", "", "RL.GCRA gcra:# 1000 1d FORCE 1"),
    ("RL.GCRA REFUND", "RL.GCRA gcra:# 1000 1d COST 100", "RL.GCRA gcra:# 1000 1d REFUND 1"),
    ("RL.PEEK GCRA", "RL.GCRA gcra:# 1000 1d", "RL.PEEK GCRA gcra:# 1000 1d"),
    ("RL.ALL of two, granted", "", "RL.ALL 2 gcra:# fixed:# GCRA 1000 1d FIXED 1000 1d"),
    ("RL.INSPECT GCRA", "RL.GCRA gcra:# 1000 1d", "RL.INSPECT gcra:#"),
    ("an unknown option", "", "RL.GCRA gcra:# 1000 1d BRUST 5"),
];

/// Counts the instructions of a call. With another build of the module, compares the two.
#[derive(Parser)]
struct Arguments {
    /// Another build of the module.
    #[arg(long)]
    base: Option<PathBuf>,
}

fn main() {
    let Arguments { base } = Arguments::parse();
    // The least of a few rounds: a round can include a little of the server's periodic work.
    let rounds = if base.is_some() { 3 } else { 1 };
    let least = |module: &Path| {
        let rounds = (0..rounds).map(|_| count(module));
        rounds.reduce(|one, other| one.iter().zip(other).map(|(one, other)| *one.min(&other)).collect()).expect("a round")
    };
    let counts = least(&support::module());
    let row = |name: &str| ROWS.iter().position(|row| row.0 == name).map_or(1, |index| counts[index]);
    let (set, incr) = (row("SET .. EX"), row("INCR"));
    let base = base.map(|base| least(&base));
    let more = if base.is_some() { format!("{:>10} {:>10}", "base", "change") } else { String::new() };
    println!("{:<34} {:>14} {:>10} {:>10} {more}", "", "instructions", "of SET..EX", "of INCR");
    for (index, ((name, ..), &count)) in ROWS.iter().zip(&counts).enumerate() {
        let ratio = |to: u64| count as f64 / to as f64;
        let base = base.as_ref().map(|base| base[index]);
        let more = base.map_or_else(String::new, |base| format!("{base:>10} {:>+9.1}%", 100.0 * (ratio(base) - 1.0)));
        println!("{name:<34} {count:>14} {:>10.2} {:>10.2} {more}", ratio(set), ratio(incr));
    }
}

/// The instructions of a call of each row.
fn count(module: &Path) -> Vec<u64> {
    let module = module.to_str().expect("a path");
    // The server's periodic work, once a second, would vary with the time that callgrind takes.
    let server = Server::of(&server_program(), false, &["--loadmodule", module, "--hz", "1", "--dynamic-hz", "no"]);
    let mut client = server.client();
    let process = info(&mut client, "server", "process_id").to_string();
    let counted = ROWS.iter().map(|(_, before, words)| {
        call::<()>(&mut client, "FLUSHALL");
        if !before.is_empty() {
            make(&mut client, before, 1_000);
        }
        // These calls create keys and grow logs, which is not to be counted.
        make(&mut client, words, 1_000);
        control(&server, &["-z", &process]);
        make(&mut client, words, CALLS);
        control(&server, &["-d", &process]);
        newest_dump(&server) / CALLS
    });
    counted.collect()
}

fn make(client: &mut Connection, words: &str, calls: u64) {
    for batch in 0..calls / PIPELINE {
        let mut pipe = redis::pipe();
        for index in 0..PIPELINE {
            pipe.add_command(command(&words.replace('#', &((batch * PIPELINE + index) % 1_000).to_string())));
        }
        // An error is a reply as well: one row counts it.
        let replies = client.req_packed_commands(&pipe.get_packed_pipeline(), 0, PIPELINE as usize);
        assert_eq!(replies.expect("replies").len() as u64, PIPELINE);
    }
}

/// Makes callgrind set its counts to zero, or write them to a dump.
fn control(server: &Server, options: &[&str]) {
    let output = Command::new("callgrind_control").args(options).current_dir(server.dir()).output();
    let output = output.expect("callgrind_control, of valgrind");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The number of instructions in the latest dump.
fn newest_dump(server: &Server) -> u64 {
    let dumps = std::fs::read_dir(server.dir()).expect("the server's folder").filter_map(|entry| {
        let path = entry.ok()?.path();
        let number: u64 = path.file_name()?.to_str()?.strip_prefix("callgrind.out.")?.rsplit('.').next()?.parse().ok()?;
        Some((number, path))
    });
    let (_, newest) =
        dumps.max_by_key(|(number, path)| (path.metadata().and_then(|data| data.modified()).ok(), *number)).expect("a dump");
    let text = std::fs::read_to_string(newest).expect("a dump");
    let total = text.lines().find_map(|line| line.strip_prefix("summary: ").or_else(|| line.strip_prefix("totals: ")));
    total.and_then(|total| total.trim().parse().ok()).expect("a total")
}
