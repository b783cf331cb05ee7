//! Counts the instructions that the server executes for a call. Unlike times, these counts vary little from run to run.
//! `make instructions`, or `make instructions BASE=<commit>` to compare with another commit.
//!
//! The server runs in callgrind, which counts between two dumps. A count includes all that the server does for a call, from
//! the socket to the reply, with sixteen calls in a pipeline. The difference to `SET key value EX 60` and `INCR` is what the
//! module adds. `own` are the instructions in the module's library. The server's own vary by up to 1 % of a call from one start to the
//! next, as its hash tables have random seeds; those of the library do not. So the last column, the change of the library's instructions
//! as a share of the whole call, shows what a change of the module costs, unless it calls other functions of the server.
//!
//! Calls with an id have a table of their own, with the counts on keys that remember few ids and on keys that remember many. If a
//! call takes too many more instructions with many ids, the program says so, and fails.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use redis::{Connection, Value};
use support::{info, server_program, Server};
use tools::ids::{make, Call, Group, Keys, GROUPS};

const CALLS: u64 = 4_000;

/// The rows of the table: a name, the calls that prepare each key, divided by `|`, and the call to count. `#` stands for one of a
/// thousand keys, and `@` for a key that no other call has.
const ROWS: [(&str, &str, &str); 34] = [
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
    ("RL.USE FIXED, granted", "RL.POLICY p FIXED 1000 1d", "RL.USE fixed:# 1 p"),
    ("RL.USE GCRA, granted", "RL.POLICY p GCRA 1000 1d", "RL.USE gcra:# 1 p"),
    ("RL.USE GCRA, denied", "RL.POLICY p GCRA 10 1d|RL.GCRA gcra:# 10 1d UPTO 10", "RL.USE gcra:# 1 p"),
    ("RL.USE GCRA COST 2, granted", "RL.POLICY p GCRA 1000 1d", "RL.USE gcra:# 1 p COST 2"),
    ("an unknown option", "", "RL.GCRA gcra:# 1000 1d BRUST 5"),
];

/// The rows of calls that name their policy, and those of the calls that state it, whose instructions they may take
/// [`MOST_OF_LITERAL`] times.
const NAMED: [(&str, &str); 4] = [
    ("RL.USE FIXED, granted", "RL.FIXED, granted"),
    ("RL.USE GCRA, granted", "RL.GCRA, granted"),
    ("RL.USE GCRA, denied", "RL.GCRA, denied"),
    ("RL.USE GCRA COST 2, granted", "RL.GCRA COST 2, granted"),
];
const MOST_OF_LITERAL: f64 = 1.25;

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
        let least = |(one, other): (&Count, Count)| Count(one.0.min(other.0), one.1.min(other.1));
        rounds.reduce(|one, other| one.iter().zip(other).map(least).collect()).expect("a round")
    };
    let counts = least(&support::module());
    let row = |name: &str| ROWS.iter().position(|row| row.0 == name).map_or(1, |index| counts[index].0);
    let (set, incr) = (row("SET .. EX"), row("INCR"));
    let base_module = base;
    let base = base_module.as_ref().map(|base| least(base));
    let more = if base.is_some() {
        format!("{:>10} {:>10} {:>10} {:>10}", "base", "change", "own, base", "own")
    } else {
        String::new()
    };
    println!("{:<38} {:>14} {:>10} {:>10} {:>10} {more}", "", "instructions", "of SET..EX", "of INCR", "own");
    for (index, ((name, ..), &Count(count, own))) in ROWS.iter().zip(&counts).enumerate() {
        let ratio = |to: u64| count as f64 / to as f64;
        let more = base.as_ref().map_or_else(String::new, |base| {
            let Count(all, base_own) = base[index];
            let own_change = 100.0 * (own as f64 - base_own as f64) / all as f64;
            format!("{all:>10} {:>+9.1}% {base_own:>10} {own_change:>+9.1}%", 100.0 * (ratio(all) - 1.0))
        });
        println!("{name:<38} {count:>14} {:>10.2} {:>10.2} {own:>10} {more}", ratio(set), ratio(incr));
    }
    println!("\n{:<38} {:>14} {:>10}", "", "of the literal", "at most");
    let mut missed = Vec::new();
    for (named, literal) in NAMED {
        let ratio = row(named) as f64 / row(literal) as f64;
        println!("{named:<38} {ratio:>14.2} {MOST_OF_LITERAL:>10}");
        missed.extend((ratio > MOST_OF_LITERAL).then_some(named));
    }
    let rows = count_with_ids(&support::module()).expect("a module that knows ids");
    with_ids(&rows, base_module.and_then(|base| count_with_ids(&base)).as_deref(), missed)
}

/// Prints the rows of calls with ids, beside those of another build. Fails if a call misses its requirement; `missed` are others that
/// have missed theirs.
fn with_ids(rows: &[Row], base: Option<&[Row]>, mut missed: Vec<&str>) -> ExitCode {
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
    println!("\nToo many instructions: {}", missed.join("; "));
    ExitCode::FAILURE
}

/// The instructions of a call: all of them, and those in the library of the module.
#[derive(Clone, Copy)]
struct Count(u64, u64);

/// The instructions of a call of each row.
fn count(module: &Path) -> Vec<Count> {
    let mut server = Counted::start(module);
    let counted = ROWS.iter().map(|(_, before, words)| {
        server.make(&["FLUSHALL".into()]);
        if !before.is_empty() {
            before.split('|').for_each(|words| drop(server.make(&calls(words, 1_000))));
        }
        // These calls create keys and grow logs, which is not to be counted.
        server.make(&calls(words, 1_000));
        let Count(all, own) = server.count(&calls(words, CALLS)).1;
        Count(all / CALLS, own / CALLS)
    });
    counted.collect()
}

/// So many calls, on each of a thousand keys in turn. Calls of another number have other new keys.
fn calls(words: &str, calls: u64) -> Vec<String> {
    let call =
        |index: u64| words.replace('#', &(index % 1_000).to_string()).replace('@', &(calls * calls + index).to_string());
    (0..calls).map(call).collect()
}

// ---- Calls with an id ----
//
// A segment makes [`SEGMENT`] calls that add an id, and then as many that end one: one call on each of 500 keys with few ids, or
// 500 calls on a key with many. Each half of a segment is counted for itself. There are enough segments for the ledgers to be
// rebuilt several times, so the counts include that work.

/// The calls of half a segment.
const SEGMENT: usize = 500;
/// How many segments each kind of end has.
const SEGMENTS: u64 = 8;

/// What a kind of call takes.
struct Row {
    name: &'static str,
    /// How many ids the keys remember.
    ids: [usize; 2],
    /// The instructions of a call with as many.
    counts: [u64; 2],
    /// The highest ratio of the two that is allowed.
    most: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.counts[1] as f64 / self.counts[0] as f64
    }
}

/// Counts all calls. `None` if the module does not know ids.
fn count_with_ids(module: &Path) -> Option<Vec<Row>> {
    let mut server = Counted::start(module);
    let mut rows = Vec::new();
    for group in &GROUPS {
        let Group { ids, most, .. } = *group;
        let few = count_group(&mut server, group, SEGMENT, ids[0])?;
        let many = count_group(&mut server, group, 1, ids[1])?;
        let both = few.into_iter().zip(many);
        rows.extend(both.map(|((name, few), (_, many))| Row { name, ids, counts: [few, many], most }));
    }
    Some(rows)
}

/// The instructions of each kind of call, on so many keys with so many ids each.
fn count_group(server: &mut Counted, group: &Group, keys: usize, ids: usize) -> Option<Vec<(&'static str, u64)>> {
    server.make(&["FLUSHALL".into()]);
    let mut keys = Keys::fill(group, keys, ids, |calls| server.make(calls))?;
    let half = |call: &Call| {
        let calls = keys.calls(call, SEGMENT);
        let (replies, Count(count, _)) = server.count(&calls);
        keys.check(call, &calls, &replies);
        count / SEGMENT as u64
    };
    let rows = group.measure(SEGMENTS, half).into_iter();
    Some(rows.map(|(name, instructions, halves)| (name, instructions / halves)).collect())
}

// ---- Callgrind ----

/// A server in callgrind. It executes calls sixteen at a time.
struct Counted {
    server: Server,
    client: Connection,
    process: String,
    /// The path of the module.
    library: String,
}

impl Counted {
    /// Starts a server with this build of the module.
    fn start(module: &Path) -> Self {
        let module = module.to_str().expect("a path");
        // The server's periodic work, once a second, would vary with the time that callgrind takes.
        let server = Server::of(&server_program(), false, &["--loadmodule", module, "--hz", "1", "--dynamic-hz", "no"]);
        let mut client = server.client();
        let process = info(&mut client, "server", "process_id").to_string();
        Self { server, client, process, library: module.into() }
    }

    /// Makes calls. An error is a reply as well.
    fn make(&mut self, calls: &[String]) -> Vec<Value> {
        make(&mut self.client, calls)
    }

    /// Makes calls, and returns their replies and the instructions of all of them.
    fn count(&mut self, calls: &[String]) -> (Vec<Value>, Count) {
        self.control("-z");
        let replies = self.make(calls);
        self.control("-d");
        (replies, newest_dump(&self.server, &self.library))
    }

    /// Makes callgrind set its counts to zero (`-z`), or write them to a dump (`-d`).
    fn control(&self, option: &str) {
        let output = Command::new("callgrind_control").args([option, &self.process]).current_dir(self.server.dir()).output();
        let output = output.expect("callgrind_control, of valgrind");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The instructions in the latest dump.
fn newest_dump(server: &Server, library: &str) -> Count {
    let dumps = std::fs::read_dir(server.dir()).expect("the server's folder").filter_map(|entry| {
        let path = entry.ok()?.path();
        let number: u64 = path.file_name()?.to_str()?.strip_prefix("callgrind.out.")?.rsplit('.').next()?.parse().ok()?;
        Some((number, path))
    });
    let (_, newest) =
        dumps.max_by_key(|(number, path)| (path.metadata().and_then(|data| data.modified()).ok(), *number)).expect("a dump");
    let text = std::fs::read_to_string(newest).expect("a dump");
    let total = text.lines().find_map(|line| line.strip_prefix("summary: ").or_else(|| line.strip_prefix("totals: ")));
    Count(total.and_then(|total| total.trim().parse().ok()).expect("a total"), of_library(&text, library))
}

/// The instructions of the functions in the module's library, without those that they call. See the section "Callgrind Format
/// Specification" of Valgrind's manual.
fn of_library(dump: &str, library: &str) -> u64 {
    // A name is given once, as `ob=(7) /path`, and later by its number alone.
    let mut library_number = None;
    let (mut is_library, mut is_call, mut sum) = (false, false, 0);
    for line in dump.lines() {
        let object = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob="));
        if let Some(object) = object {
            let number = object.split(' ').next();
            if object.ends_with(library) {
                library_number = number;
            }
            if line.starts_with("ob=") {
                is_library = number == library_number;
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // The line after `calls=` holds what the called function took.
            if is_library && !is_call {
                sum += line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok()).unwrap_or(0);
            }
            is_call = false;
        }
    }
    sum
}
