//! Counts the instructions that the server executes for a call. Unlike times, these counts vary little from run to run.
//! `make instructions`, or `make instructions BASE=<commit>` to compare with another commit.
//!
//! The server runs in callgrind, which counts between two dumps. A count includes all that the server does for a call, from
//! the socket to the reply, with sixteen calls in a pipeline. The difference to `SET key value EX 60` and `INCR` is what the
//! module adds. `own` are the instructions in the module's library. The server's own vary by up to 1 % of a call from one start to the
//! next, as its hash tables have random seeds; those of the library do not. So the last column, the change of the library's instructions
//! as a share of the whole call, shows what a change of the module costs, unless it calls other functions of the server.
//!
//! Calls with an id are counted on keys that remember few ids and on keys that remember many. If a call takes too many more
//! instructions with many ids, the program says so, and fails.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use redis::{Connection, Value};
use support::{info, server_program, Server};
use tools::ids::{make, Call, Group, Keys, GROUPS};

const CALLS: u64 = 4_000;

/// The rows of the table: a name, the calls that prepare each key, divided by `|`, and the call to count. `#` stands for one of a
/// thousand keys, and `@` for a key that no other call has.
const ROWS: [(&str, &str, &str); 43] = [
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
    ("RL.USE GCRA BURST 2000, granted", "RL.POLICY p GCRA 1000 1d BURST 2000", "RL.USE gcra:# 1 p"),
    ("RL.USE GCRA BLOCK, granted at once", "RL.POLICY p GCRA 1000 1d", "RL.USE gcra:# 1 p BLOCK 5"),
    ("RL.USE BUCKET, granted", "RL.POLICY p BUCKET 1000 1d", "RL.USE bucket:# 1 p"),
    ("RL.USE BUCKET, denied", "RL.POLICY p BUCKET 10 1d|RL.BUCKET bucket:# 10 1d UPTO 10", "RL.USE bucket:# 1 p"),
    ("RL.USE SLIDE, granted", "RL.POLICY p SLIDE 1000 60", "RL.USE slide:# 1 p"),
    ("RL.USE SLIDE, denied", "RL.POLICY p SLIDE 10 1d|RL.SLIDE slide:# 10 1d UPTO 10", "RL.USE slide:# 1 p"),
    ("RL.LEASE, renewed", "RL.LEASE lease:# 10 1d ID a", "RL.LEASE lease:# 10 1d ID a"),
    ("RL.LEASE BLOCK, denied after a wait", "RL.LEASE lease:# 1 1d ID a", "RL.LEASE lease:# 1 1d ID b BLOCK 0.001"),
    ("RL.USE LEASE, renewed", "RL.POLICY p LEASE 10 1d|RL.LEASE lease:# 10 1d ID a", "RL.USE lease:# 1 p ID a"),
    ("an unknown option", "", "RL.GCRA gcra:# 1000 1d BRUST 5"),
];

/// The rows of calls that name their policy, and those of the calls that state it, whose instructions they may take
/// [`MOST_OF_LITERAL`] times.
const NAMED: [(&str, &str); 11] = [
    ("RL.USE FIXED, granted", "RL.FIXED, granted"),
    ("RL.USE GCRA, granted", "RL.GCRA, granted"),
    ("RL.USE GCRA, denied", "RL.GCRA, denied"),
    ("RL.USE GCRA COST 2, granted", "RL.GCRA COST 2, granted"),
    ("RL.USE GCRA BURST 2000, granted", "RL.GCRA BURST 2000, granted"),
    ("RL.USE GCRA BLOCK, granted at once", "RL.GCRA BLOCK, granted at once"),
    ("RL.USE BUCKET, granted", "RL.BUCKET, granted"),
    ("RL.USE BUCKET, denied", "RL.BUCKET, denied"),
    ("RL.USE SLIDE, granted", "RL.SLIDE, granted"),
    ("RL.USE SLIDE, denied", "RL.SLIDE, denied"),
    ("RL.USE LEASE, renewed", "RL.LEASE, renewed"),
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
        let less = |one: Count, other: &Count| Count(one.0.min(other.0), one.1.min(other.1));
        rounds.reduce(|one, other| one.into_iter().map(|(name, count)| (name.clone(), less(count, &other[&name]))).collect())
    };
    let counts = least(&support::module()).expect("a round");
    let base = base.map(|base| least(&base).expect("a round"));
    let (set, incr) = (counts["SET .. EX"].0 as f64, counts["INCR"].0 as f64);
    let columns = if base.is_some() { ["base", "change", "own, base", "own change"] } else { [""; 4] };
    let more = columns.map(|name| format!("{name:>10}")).join(" ");
    println!("{:<56} {:>14} {:>10} {:>10} {:>10} {more}", "", "instructions", "of SET..EX", "of INCR", "own");
    let pairs = pairs();
    let with_ids = pairs.iter().flat_map(|(many, few, _)| [few.clone(), many.clone()]).skip(2 * NAMED.len());
    for name in ROWS.iter().map(|row| row.0.to_string()).chain(with_ids) {
        let Count(count, own) = counts[&name];
        let more = base.as_ref().and_then(|base| base.get(&name)).map_or_else(String::new, |Count(all, base_own)| {
            let change = 100.0 * (count as f64 / *all as f64 - 1.0);
            let own_change = 100.0 * (own as f64 - *base_own as f64) / *all as f64;
            format!("{all:>10} {change:>+9.1}% {base_own:>10} {own_change:>+9.1}%")
        });
        let (of_set, of_incr) = (count as f64 / set, count as f64 / incr);
        println!("{name:<56} {count:>14} {of_set:>10.2} {of_incr:>10.2} {own:>10} {more}");
    }
    println!("\n{:<56} {:>56} {:>8} {:>8}", "", "beside", "ratio", "at most");
    let mut missed = Vec::new();
    for (name, other, most) in &pairs {
        let ratio = counts[name].0 as f64 / counts[other].0 as f64;
        println!("{name:<56} {other:>56} {ratio:>8.2} {most:>8}");
        missed.extend((ratio > *most).then_some(name.as_str()));
    }
    if missed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("\nToo many instructions: {}", missed.join("; "));
    ExitCode::FAILURE
}

/// The rows of which one may take at most so many times the instructions of another one: calls that name their policy, and calls on
/// keys that remember many ids.
fn pairs() -> Vec<(String, String, f64)> {
    let named = NAMED.iter().map(|(named, literal)| (named.to_string(), literal.to_string(), MOST_OF_LITERAL));
    let with_ids = GROUPS.iter().flat_map(|group| {
        let kinds = [&group.add].into_iter().chain(group.ends).chain(group.others);
        kinds.map(|call| (with_ids(call.name, group.ids[1]), with_ids(call.name, group.ids[0]), group.most))
    });
    named.chain(with_ids).collect()
}

/// The name of a row for a kind of call on keys with so many ids.
fn with_ids(call: &str, ids: usize) -> String {
    format!("{call}; {ids} in the key")
}

/// The instructions of a call: all of them, and those in the library of the module.
#[derive(Clone, Copy)]
struct Count(u64, u64);

/// The instructions of a call of each row. Those with ids are missing if the module does not know ids.
fn count(module: &Path) -> BTreeMap<String, Count> {
    let mut server = Counted::start(module);
    let mut counts = BTreeMap::new();
    for (name, before, words) in ROWS {
        server.make(&["FLUSHALL".into()]);
        if !before.is_empty() {
            before.split('|').for_each(|words| drop(server.make(&calls(words, 1_000))));
        }
        // These calls create keys and grow logs, which is not to be counted.
        server.make(&calls(words, 1_000));
        let Count(all, own) = server.count(&calls(words, CALLS)).1;
        counts.insert(name.into(), Count(all / CALLS, own / CALLS));
    }
    for group in &GROUPS {
        for (ids, keys) in group.ids.into_iter().zip([SEGMENT, 1]) {
            counts.extend(count_group(&mut server, group, keys, ids).into_iter().flatten());
        }
    }
    counts
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

/// The instructions of each kind of call, on so many keys with so many ids each; `None` if the module does not know ids.
fn count_group(server: &mut Counted, group: &Group, keys: usize, ids: usize) -> Option<Vec<(String, Count)>> {
    server.make(&["FLUSHALL".into()]);
    let mut keys = Keys::fill(group, keys, ids, |calls| server.make(calls))?;
    let half = |call: &Call| {
        let calls = keys.calls(call, SEGMENT);
        let (replies, count) = server.count(&calls);
        keys.check(call, &calls, &replies);
        count
    };
    let rows = group.measure(SEGMENTS, half).into_iter().map(|(name, halves)| {
        let calls = (SEGMENT * halves.len()) as u64;
        let sum = |of: fn(&Count) -> u64| halves.iter().map(of).sum::<u64>() / calls;
        (with_ids(name, ids), Count(sum(|count| count.0), sum(|count| count.1)))
    });
    Some(rows.collect())
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
