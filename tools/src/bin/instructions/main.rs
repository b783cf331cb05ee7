//! Counts the instructions that the server executes for a call. Unlike times, these counts do not vary from run to run.
//! `make instructions`, or `make instructions BASE=<commit>` to compare with another commit.
//!
//! The server runs in callgrind, which counts between two dumps. A count includes all that the server does for a call, from
//! the socket to the reply, with sixteen calls in a pipeline. The difference to `SET key value EX 60` and `INCR` is what the
//! module adds.
//!
//! Calls with an id have a table of their own, with the counts on keys that remember few ids and on keys that remember many. If a
//! call takes too many more instructions with many ids, the program says so, and fails.

mod counted;
mod ids;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use counted::Counted;
use ids::Row;

const CALLS: u64 = 4_000;

/// The rows of the table: a name, a call that prepares each key, and the call to count. `#` stands for one of a thousand
/// keys, and `@` for a key that no other call has.
const ROWS: [(&str, &str, &str); 30] = [
    ("PING", "", "PING"),
    ("GET", "SET key:# 1", "GET key:#"),
    ("INCR", "SET key:# 1", "INCR key:#"),
    ("SET .. EX", "", "SET key:# 0123456789012345678901234567 EX 60"),
    ("SET .. PX, a new key", "", "SET set:@ 0123456789012345678901234567 PX 86400000"),
    ("RL.FIXED, a new key", "", "RL.FIXED fixed:@ 1000 1d"),
    ("RL.GCRA, a new key", "", "RL.GCRA gcra:@ 1000 1d"),
    ("RL.BUCKET, a new key", "", "RL.BUCKET bucket:@ 1000 1d"),
    ("RL.SLIDE, a new key", "", "RL.SLIDE slide:@ 1000 1d"),
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

fn main() -> ExitCode {
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
    let base_module = base;
    let base = base_module.as_ref().map(|base| least(base));
    let more = if base.is_some() { format!("{:>10} {:>10}", "base", "change") } else { String::new() };
    println!("{:<38} {:>14} {:>10} {:>10} {more}", "", "instructions", "of SET..EX", "of INCR");
    for (index, ((name, ..), &count)) in ROWS.iter().zip(&counts).enumerate() {
        let ratio = |to: u64| count as f64 / to as f64;
        let base = base.as_ref().map(|base| base[index]);
        let more = base.map_or_else(String::new, |base| format!("{base:>10} {:>+9.1}%", 100.0 * (ratio(base) - 1.0)));
        println!("{name:<38} {count:>14} {:>10.2} {:>10.2} {more}", ratio(set), ratio(incr));
    }
    let rows = ids::count(&support::module()).expect("a module that knows ids");
    with_ids(&rows, base_module.and_then(|base| ids::count(&base)).as_deref())
}

/// Prints the rows of calls with ids, beside those of another build. Fails if a call misses its requirement.
fn with_ids(rows: &[Row], base: Option<&[Row]>) -> ExitCode {
    let mut missed = Vec::new();
    let mut ids = [0; 2];
    for (index, row) in rows.iter().enumerate() {
        let Row { name, counts, most, .. } = row;
        if row.ids != ids {
            ids = row.ids;
            let [few, many] = ids.map(|ids| if ids == 1 { "1 id".into() } else { format!("{ids} ids") });
            let more = if base.is_some() {
                format!("{:>10} {:>10} {:>10} {:>10}", "base", "change", "base", "change")
            } else {
                String::new()
            };
            println!("\n{:<38} {few:>14} {many:>14} {:>10} {:>10} {more}", "", "ratio", "at most");
        }
        let change = |size: usize| {
            let base = base?[index].counts[size];
            Some(format!("{base:>10} {:>+9.1}%", 100.0 * (counts[size] as f64 / base as f64 - 1.0)))
        };
        let more = [0, 1].into_iter().filter_map(change).collect::<Vec<_>>().join(" ");
        println!("{name:<38} {:>14} {:>14} {:>10.2} {most:>10} {more}", counts[0], counts[1], row.ratio());
        if row.ratio() > *most {
            missed.push(name);
        }
    }
    if missed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("\nToo many instructions with many ids: {}", missed.iter().map(|name| **name).collect::<Vec<_>>().join("; "));
    ExitCode::FAILURE
}

/// The instructions of a call of each row.
fn count(module: &Path) -> Vec<u64> {
    let mut server = Counted::start(module);
    let counted = ROWS.iter().map(|(_, before, words)| {
        server.make(&["FLUSHALL".into()]);
        if !before.is_empty() {
            server.make(&calls(before, 1_000));
        }
        // These calls create keys and grow logs, which is not to be counted.
        server.make(&calls(words, 1_000));
        server.count(&calls(words, CALLS)).1 / CALLS
    });
    counted.collect()
}

/// So many calls, on each of a thousand keys in turn. Calls of another number have other new keys.
fn calls(words: &str, calls: u64) -> Vec<String> {
    let call =
        |index: u64| words.replace('#', &(index % 1_000).to_string()).replace('@', &(calls * calls + index).to_string());
    (0..calls).map(call).collect()
}
