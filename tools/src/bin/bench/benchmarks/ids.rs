//! Ids and leases: the bytes that calls add to the replication stream and that keys take, and speed, beside what is used instead
//! of leases.

use std::fmt::Write;

use redis::{Connection, Value};
use serde::{Deserialize, Serialize};

use crate::benchmarks::cases::{IDS, SET_OWN};
use crate::benchmarks::peers::Peers;
use crate::benchmarks::speed::report::{prepared, range, spread, table};
use crate::benchmarks::speed::{follow, scenes, Scene, Stream};
use crate::benchmarks::Options;
use support::{call, info, server_program, Server};
use tools::chart::grouped;
use tools::ids::{make, Group, Keys, GROUPS, SEMAPHORE};
use tools::results::Machine;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    machine: Machine,
    rounds: usize,
    held: Vec<Held>,
    pub scenes: Vec<Scene>,
}

/// A key with many ids.
#[derive(Serialize, Deserialize)]
struct Held {
    name: String,
    ids: usize,
    /// `MEMORY USAGE` of the key after its ids were added.
    bytes: i64,
    /// The most bytes while ids were ended and others added.
    most_bytes: i64,
    /// The length of its value when it took the most bytes; `None` for a sorted set.
    length: Option<i64>,
    stream: Vec<Stream>,
}

/// The most bytes that a call may add to the replication stream on average.
const MOST: f64 = 1_024.0;

/// Measures all of the part.
pub fn measure(options: &Options, peers: &Peers) -> Section {
    let program = server_program();
    // The server must not send a PING meanwhile, which is part of the stream.
    let (server, mut client) = Server::of(&program, true, &["--repl-ping-replica-period", "3600"]).and_client();
    let _replica = follow(&program, &server, &mut client);
    let script = peers.script("semaphore");
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut client).expect("a script");
    let held = GROUPS.iter().chain([&SEMAPHORE]).map(|group| hold(&mut client, group, &sha)).collect();
    Section { machine: Machine::this(), rounds: options.rounds, held, scenes: scenes(options, peers, IDS) }
}

fn hold(client: &mut Connection, group: &Group, sha: &str) -> Held {
    /// Before as many ids have been added, they are ended.
    const SEGMENT: usize = 250;
    const SEGMENTS: u64 = 12;
    call::<()>(client, "FLUSHALL");
    let ids = group.ids[1];
    let run = |client: &mut Connection, calls: &[String]| -> Vec<Value> {
        let calls: Vec<_> = calls.iter().map(|words| words.replace("%sha", sha)).collect();
        make(client, &calls)
    };
    let mut keys = Keys::fill(group, 1, ids, |calls| run(client, calls)).expect("a module that knows ids");
    let bytes = usage(client);
    let (mut most_bytes, mut length) = (bytes, None);
    let half = |kind: &tools::ids::Call| {
        let calls = keys.calls(kind, SEGMENT);
        let before = info(client, "replication", "master_repl_offset");
        let replies = run(client, &calls);
        let bytes = info(client, "replication", "master_repl_offset") - before;
        keys.check(kind, &calls, &replies);
        if usage(client) >= most_bytes {
            most_bytes = usage(client);
            length = redis::cmd("STRLEN").arg("key:0").query(client).ok();
        }
        bytes as u64
    };
    let rows = group.measure(SEGMENTS, half).into_iter().map(|(name, bytes, halves)| {
        let calls = SEGMENT as f64 * halves as f64;
        Stream { name: name.into(), bytes_per_call: bytes as f64 / calls }
    });
    let stream = rows.collect();
    let name = group.add.name.split(" ..").next().and_then(|name| name.split(',').next()).expect("a command");
    Held { name: name.into(), ids, bytes, most_bytes, length, stream }
}

/// The memory of the only key.
fn usage(client: &mut Connection) -> i64 {
    call(client, "MEMORY USAGE key:0")
}

impl Section {
    /// The least and the most bytes that calls of these keys add to the replication stream, other than none.
    fn stream(&self, is: impl Fn(&Held) -> bool) -> String {
        let rows = self.held.iter().filter(|held| is(held)).flat_map(|held| &held.stream);
        range(rows.map(|row| row.bytes_per_call).filter(|bytes| *bytes > 0.0), 0)
    }
}

/// What calls with ids and leases cost.
pub fn brief(section: &Section) -> String {
    let mut text = format!("## Ids and leases\n\n| beside `{SET_OWN}` | random keys | one hot key |\n|---|---:|---:|\n");
    let [random, hot] = &section.scenes[..] else { return String::new() };
    for (case, other) in random.cases.iter().zip(&hot.cases).filter(|(case, _)| case.name != SET_OWN) {
        writeln!(text, "| {} | {} | {} |", case.name, spread(case.of_base), spread(other.of_base)).expect("a string");
    }
    write!(
        text,
        "\nTwo calls of a row count as one. When a key remembers 1 000 ids or 10 000 leases, a call that changes it adds {} bytes to what \
         replicas get: only the changed places are replicated. [The tables](benchmarks-tables.md#ids-and-leases).\n",
        section.stream(|held| held.name.starts_with("RL."))
    )
    .expect("a string");
    text
}

/// Where leases take more than what is used instead of them.
pub fn slower(section: &Section) -> String {
    format!(
        "* With 10 000 leases on a key, `RL.LEASE`, its renewal and `RL.RELEASE` add {} bytes to the replication stream, and a semaphore in a \
         sorted set {}.\n",
        section.stream(|held| held.name == "RL.LEASE"),
        section.stream(|held| !held.name.starts_with("RL.")),
    )
}

/// The part as Markdown.
pub fn report(section: &Section) -> String {
    let Section { machine, rounds, held, scenes } = section;
    let mut text = format!(
        "## Ids and leases\n\nMeasured on {} with redis-rl {}. The ids are UUIDs (36 bytes). 250 calls add an id each, then 250 end one each, \
         several times. The averages include that the whole value is written when the room for new ids is used up.\n\n\
         | call, at 1 000 ids or 10 000 leases | bytes a call in the replication stream |\n|---|---:|\n",
        machine.date(),
        machine.module(),
    );
    for row in held.iter().flat_map(|held| &held.stream) {
        writeln!(text, "| {} | {:.0} |", row.name, row.bytes_per_call).expect("a string");
    }
    text.push_str(
        "\n| key | ids | bytes after they were added | most bytes while ids come and go | length of the value then |\n\
         |---|---:|---:|---:|---:|\n",
    );
    for Held { name, ids, bytes, most_bytes, length, .. } in held {
        let [ids, bytes, most] = [*ids as f64, *bytes as f64, *most_bytes as f64].map(grouped);
        let length = length.map_or("-".into(), |length| grouped(length as f64));
        writeln!(text, "| {name} | {ids} | {bytes} | {most} | {length} |").expect("a string");
    }
    write!(
        text,
        "\nThe bytes of a key are the result of `MEMORY USAGE`. For a string that grows, the server reserves up to twice its length.\n\n\
         The tables below have {rounds} rounds, with a load from a loop of our own. Two calls of a row count as one. The keys of the leases and \
         of the sorted sets have five other holders. On the hot key, `RL.GCRA .. ID` without `RL.SETTLE` fills the key with all the ids that it \
         can remember, 65 536.\n"
    )
    .expect("a string");
    scenes.iter().for_each(|scene| table(scene, &mut text));
    prepared(IDS, &mut text);
    text.push_str(
        "\n`…` is the number of the key, with 12 digits. `%id` is another number in each call. `%many` and `%tenth` are as \
         [above](#the-calls).\n",
    );
    text
}

/// The rows of the table of bars.
pub fn bars(section: &Section) -> String {
    let held = section.held.iter().filter(|held| held.name.starts_with("RL."));
    let rows = held.map(|Held { name, ids, stream, .. }| {
        let longest = stream.iter().map(|row| row.bytes_per_call).fold(0.0, f64::max);
        let verdict = if longest <= MOST { "yes" } else { "**no**" };
        let ids = grouped(*ids as f64);
        format!("| replication stream | bytes of the longest call of {name} at {ids} ids, on average | ≤ {MOST} | {longest:.0} | {verdict} |\n")
    });
    rows.collect()
}
