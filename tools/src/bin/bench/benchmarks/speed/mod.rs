//! Speed: measures each case on a server of its own, in rounds, compared with `SET key value EX 60` in the same round.

pub mod chart;
pub mod report;

use redis::Connection;
use serde::{Deserialize, Serialize};

use crate::benchmarks::cases::{Case, Needs, Replies, Width, CASES, EXPIRING, FIRST};
use crate::benchmarks::peers::Peers;
use crate::benchmarks::Options;
use crate::version;
use support::{self, call, command, info, Server};
use tools::load::{self, cpu, Load, Shape};
use tools::statistics::Steady;
use tools::statistics::{median, Quartiles};

#[derive(Serialize, Deserialize)]
pub struct Section {
    pub rounds: usize,
    pub seconds: f64,
    pub connections: usize,
    pub peers: Vec<String>,
    /// How many measurements there were, and how many more were made because other work slowed the machine.
    pub repeated: Repeated,
    pub scenes: Vec<Scene>,
    pub stream: Vec<Stream>,
}

/// How many measurements were made, and repeated: see [`Steady`].
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Repeated {
    pub measured: usize,
    pub repeated: usize,
}

impl Repeated {
    pub fn of(steady: &Steady) -> Self {
        Self { measured: steady.measured, repeated: steady.repeated }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    Plain,
    Aof,
    Replica,
}

#[derive(Serialize, Deserialize)]
pub struct Scene {
    pub server: String,
    pub setting: Setting,
    pub pipeline: usize,
    /// From how many keys a call picks one at random; 1 is the hot key.
    pub keys: u64,
    /// What the keys are, if they are no ordinary ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub which: Option<String>,
    pub cases: Vec<Measured>,
}

#[derive(Serialize, Deserialize)]
pub struct Measured {
    pub name: String,
    /// The name of the case that it is compared with, round by round.
    pub base: String,
    pub per_second: Quartiles,
    pub cpu_us: Quartiles,
    /// Relative to the base: calls per second, and calls per second of the server's CPU time.
    pub of_base: Quartiles,
    pub cpu_of_base: Quartiles,
    pub rounds: Vec<Round>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Round {
    pub per_second: f64,
    /// The CPU time of the server's main thread per call.
    pub cpu_us: f64,
    /// The changes of keys that the server counts, per call.
    pub changes: f64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

/// What a call adds to the replication stream.
#[derive(Serialize, Deserialize)]
pub struct Stream {
    pub name: String,
    pub bytes_per_call: f64,
}

/// A scene that is to be measured.
pub struct Plan {
    pub server: String,
    pub setting: Setting,
    pub pipeline: usize,
    pub keys: u64,
    pub which: Option<&'static str>,
    pub cases: Vec<&'static Case>,
}

/// How scenes are measured.
pub struct Effort<'a> {
    pub rounds: usize,
    /// How long the load on a case lasts in each round.
    pub seconds: f64,
    /// Only scenes whose title contains one of these, unless there are none.
    pub only: &'a [String],
    /// Whether our own loop makes all calls. It measures no percentiles.
    pub own_loop: bool,
    /// Cases of the module and of the server need none.
    pub peers: Option<&'a Peers>,
}

impl<'a> Effort<'a> {
    fn of(options: &'a Options, peers: &'a Peers) -> Self {
        let Options { rounds, seconds, only, .. } = options;
        Self { rounds: *rounds, seconds: *seconds, only, own_loop: false, peers: Some(peers) }
    }
}

const RANDOM: u64 = 100_000;
const MANY: u64 = 1_000_000;
/// So many that a call hardly ever picks the same one twice. redis-benchmark knows no higher number.
pub const NEW: u64 = 2_000_000_000;
pub const HOT: u64 = 1;

pub fn measure(options: &Options, peers: &Peers) -> Section {
    let first = support::server_program();
    let plan = |server: &String, setting, pipeline, keys, width| {
        let cases = CASES.iter().filter(|case| case.width <= width).collect();
        Plan { server: server.clone(), setting, pipeline, keys, which: None, cases }
    };
    let mut plans = vec![
        plan(&first, Setting::Plain, 16, RANDOM, Width::Wide),
        plan(&first, Setting::Plain, 16, MANY, Width::Medium),
        plan(&first, Setting::Plain, 16, HOT, Width::Wide),
        plan(&first, Setting::Plain, 1, RANDOM, Width::Narrow),
        plan(&first, Setting::Plain, 1, HOT, Width::Narrow),
        plan(&first, Setting::Aof, 16, RANDOM, Width::Narrow),
        plan(&first, Setting::Aof, 16, HOT, Width::Narrow),
        plan(&first, Setting::Replica, 16, RANDOM, Width::Narrow),
        plan(&first, Setting::Replica, 16, HOT, Width::Narrow),
    ];
    for server in &options.common.server {
        plans.extend([RANDOM, HOT].map(|keys| plan(server, Setting::Plain, 16, keys, Width::Medium)));
    }
    let (effort, mut steady) = (Effort::of(options, peers), Steady::new());
    let scenes = plans.iter().filter_map(|plan| plan.measure(&effort, &mut steady)).collect();
    Section {
        repeated: Repeated::of(&steady),
        rounds: options.rounds,
        seconds: options.seconds,
        connections: load::CONNECTIONS,
        peers: peers.versions(),
        scenes,
        stream: stream(&first),
    }
}

/// Measures these cases on random keys, and on the hot key.
pub fn scenes(options: &Options, peers: &Peers, cases: &'static [Case]) -> Vec<Scene> {
    let plan = |keys| {
        let cases = cases.iter().collect();
        Plan { server: support::server_program(), setting: Setting::Plain, pipeline: 16, keys, which: None, cases }
    };
    let (effort, mut steady) = (Effort::of(options, peers), Steady::new());
    [RANDOM, HOT].into_iter().filter_map(|keys| plan(keys).measure(&effort, &mut steady)).collect()
}

/// Measures calls with a new key each, and calls whose keys have expired, on every server.
pub fn fresh_scenes(options: &Options, peers: &Peers, steady: &mut Steady) -> Vec<Scene> {
    let first = support::server_program();
    let plan = |server: &String, setting, width, (which, keys, cases): (&'static str, u64, &'static [Case])| {
        let cases = cases.iter().filter(|case| case.width <= width).collect();
        Plan { server: server.clone(), setting, pipeline: 16, keys, which: Some(which), cases }
    };
    let kinds: [(_, _, &'static [Case]); 2] =
        [("a new key in each call", NEW, FIRST), ("100 000 random keys that expire after a millisecond", RANDOM, EXPIRING)];
    let settings = [(Setting::Plain, Width::Wide), (Setting::Aof, Width::Narrow)].into_iter();
    let here = settings.flat_map(|(setting, width)| kinds.map(|kind| plan(&first, setting, width, kind)));
    let others =
        options.common.server.iter().flat_map(|server| kinds.map(|kind| plan(server, Setting::Plain, Width::Narrow, kind)));
    let effort = Effort::of(options, peers);
    here.chain(others).filter_map(|plan| plan.measure(&effort, steady)).collect()
}

/// A server that holds the keys of one case.
struct Runner<'a> {
    case: &'a Case,
    shape: Shape,
    server: Server,
    client: Connection,
    sha: String,
    /// Calls per second, roughly.
    rate: f64,
    own_loop: bool,
    /// The replica of `server`, if there is one.
    _replica: Option<Server>,
    setting: Setting,
}

impl Plan {
    fn title(&self, server: &str) -> String {
        let setting = match self.setting {
            Setting::Plain => "",
            Setting::Aof => ", appendfsync everysec",
            Setting::Replica => ", with a replica",
        };
        let keys = match self.which {
            Some(which) => which.into(),
            None if self.keys == HOT => "the hot key".into(),
            None => format!("{} keys", self.keys),
        };
        format!("{server}, pipeline {}{setting}, {keys}", self.pipeline)
    }

    /// `None` if only other scenes are wanted.
    pub fn measure(&self, effort: &Effort<'_>, steady: &mut Steady) -> Option<Scene> {
        let name = version(&self.server);
        let title = self.title(&name);
        if !effort.only.is_empty() && !effort.only.iter().any(|only| title.contains(only.as_str())) {
            return None;
        }
        println!("{title}");
        let cases = &self.cases;
        let set = cases.iter().position(|case| case.name == case.base()).expect("SET is everywhere");
        let count = cases.len();
        let mut rounds = vec![Vec::new(); count];
        for round in 0..effort.rounds {
            // The layout of its memory makes a server faster or slower for as long as it runs. So each measurement uses a
            // new server.
            let mut measure = |at: usize| steady.measure(|| Runner::start(self, cases[at], effort).measure(effort.seconds));
            // SET is measured at the beginning, in the middle and at the end. Each round begins with another of the other
            // cases.
            let mut sets = vec![measure(set)];
            let others = (0..count).map(|place| (place + round * count / effort.rounds) % count).filter(|&at| at != set);
            for (place, at) in others.enumerate() {
                if place == count / 2 {
                    sets.push(measure(set));
                }
                rounds[at].push(measure(at));
            }
            sets.push(measure(set));
            rounds[set].push(Round {
                per_second: median(sets.iter().map(|set| set.per_second)),
                cpu_us: median(sets.iter().map(|set| set.cpu_us)),
                changes: median(sets.iter().map(|set| set.changes)),
                p50_ms: sets.iter().map(|set| set.p50_ms).collect::<Option<Vec<_>>>().map(median),
                p99_ms: sets.iter().map(|set| set.p99_ms).collect::<Option<Vec<_>>>().map(median),
            });
            println!("  round {} of {}", round + 1, effort.rounds);
        }
        let base_of = |case: &Case| {
            let base = cases.iter().position(|other| other.name == case.base());
            &rounds[base.expect("the base of a case is measured wherever the case is")]
        };
        let measured = cases.iter().zip(&rounds).map(|(case, rounds)| {
            let base = base_of(case);
            Measured {
                name: case.name.into(),
                base: case.base().into(),
                per_second: Quartiles::of(rounds.iter().map(|round| round.per_second)),
                cpu_us: Quartiles::of(rounds.iter().map(|round| round.cpu_us)),
                of_base: ratio(rounds, base, |round| round.per_second),
                cpu_of_base: ratio(base, rounds, |round| round.cpu_us),
                rounds: rounds.clone(),
            }
        });
        let cases = measured.collect();
        let which = self.which.map(String::from);
        Some(Scene { server: name, setting: self.setting, pipeline: self.pipeline, keys: self.keys, which, cases })
    }
}

/// The ratio of a figure of two cases, round by round.
pub fn ratio(of: &[Round], base: &[Round], figure: impl Fn(&Round) -> f64) -> Quartiles {
    Quartiles::of(of.iter().zip(base).map(|(of, base)| figure(of) / figure(base)))
}

impl<'a> Runner<'a> {
    fn start(plan: &Plan, case: &'a Case, effort: &Effort<'_>) -> Self {
        let mut options = vec!["--auto-aof-rewrite-percentage", "0"];
        if plan.setting == Setting::Aof {
            options.extend(["--appendonly", "yes", "--appendfsync", "everysec"]);
        }
        options.extend(case.options(effort.peers));
        let (server, mut client) = Server::of(&plan.server, case.needs == Needs::Module, &options).and_client();
        let replica = (plan.setting == Setting::Replica).then(|| follow(&plan.server, &server, &mut client));
        let sha = match case.needs {
            Needs::Script(name) => {
                let script = effort.peers.expect("its package").script(name);
                redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut client).expect("a script")
            }
            _ => String::new(),
        };
        let shape = Shape { keys: plan.keys, pipeline: plan.pipeline };
        let own_loop = case.own_loop || effort.own_loop;
        let setting = plan.setting;
        let mut runner = Self { case, shape, server, client, sha, rate: 0.0, own_loop, _replica: replica, setting };
        if !case.prepare.is_empty() {
            runner.each_key(case.prepare);
        }
        if plan.which.is_none() {
            runner.each_key(case.call);
        }
        runner.sample();
        runner.rate = runner.load(if plan.pipeline == 1 { 2_000 } else { 20_000 }).per_second;
        runner
    }

    fn fill(&self, words: &str) -> String {
        Case::fill(words, self.shape.keys, &self.sha)
    }

    fn each_key(&self, words: &str) {
        load::each_key(&self.server.socket(), &self.fill(words), 0..self.shape.keys);
    }

    fn load(&self, calls: u64) -> Load {
        let words = self.fill(self.case.call);
        let generator = if self.own_loop { load::own } else { load::redis_benchmark };
        generator(&self.server.socket(), &words, self.shape, calls)
    }

    /// Checks that calls are granted or denied as the case says.
    fn sample(&mut self) {
        if self.case.replies == Replies::Any {
            return;
        }
        let words = Case::first_key(&self.fill(self.case.call));
        let reply = command(&words).query(&mut self.client).unwrap_or_else(|error| panic!("{words}: {error}"));
        assert!(self.case.expects(&reply), "{}: {words}: {reply:?}", self.case.name);
    }

    fn measure(mut self, seconds: f64) -> Round {
        self.settle();
        // Without a pipeline, percentiles are reported, and the 99th needs many calls.
        let longer = if self.shape.pipeline == 1 { 3.0 } else { 1.0 };
        let calls = (self.rate * seconds * longer).max(1_000.0) as u64;
        let before = cpu(&mut self.client);
        let changes = info(&mut self.client, "persistence", "rdb_changes_since_last_save");
        let load = self.load(calls);
        let cpu_us = (cpu(&mut self.client) - before).as_secs_f64() / calls as f64 * 1e6;
        let changes = info(&mut self.client, "persistence", "rdb_changes_since_last_save") - changes;
        let changes = changes as f64 / calls as f64;
        assert!(self.case.changes().contains(&changes), "{}: {changes} changes a call", self.case.name);
        self.sample();
        Round { per_second: load.per_second, cpu_us, changes, p50_ms: load.p50_ms, p99_ms: load.p99_ms }
    }

    /// Waits until the server has done its work for a replica or a file, so that this is not measured.
    fn settle(&mut self) {
        match self.setting {
            Setting::Plain => {}
            Setting::Aof => {
                support::wait_for("the file", || info(&mut self.client, "persistence", "aof_pending_bio_fsync") == 0);
            }
            Setting::Replica => {
                // WAIT waits only for what the same connection has written.
                call::<()>(&mut self.client, "SET settled 1");
                support::wait_for("the replica", || call::<i64>(&mut self.client, "WAIT 1 1000") == 1);
            }
        }
    }
}

/// Starts a replica of a server, and waits until it has synchronised.
pub fn follow(program: &str, server: &Server, client: &mut Connection) -> Server {
    let replica = Server::of(program, true, &["--replicaof", &format!("127.0.0.1 {}", server.port)]);
    support::wait_for("a replica", || call::<String>(client, "INFO replication").contains("state=online"));
    replica
}

/// Measures what calls add to the stream that replicas and the append-only file receive.
fn stream(program: &str) -> Vec<Stream> {
    // Fewer calls than the limit of the logs.
    const CALLS: u64 = 500;
    // The server must not send a PING meanwhile, which is part of the stream.
    let (server, mut client) = Server::of(program, true, &["--repl-ping-replica-period", "3600"]).and_client();
    let _replica = follow(program, &server, &mut client);
    let deadline =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_millis() + 3_600_000;
    let set = format!("SET key:# 0123456789012345678901234567 PXAT {deadline}");
    let ours = CASES.iter().filter(|case| case.needs == Needs::Module && case.width <= Width::Medium);
    let rows =
        [("SET key value PXAT t", "", &set[..])].into_iter().chain(ours.map(|case| (case.name, case.prepare, case.call)));
    let rows = rows.map(|(name, prepare, words)| {
        call::<()>(&mut client, "FLUSHALL");
        let [prepare, words] = [prepare, words].map(|words| Case::first_key(&Case::fill(words, 2, "")));
        if !prepare.is_empty() {
            call::<()>(&mut client, &prepare);
        }
        call::<()>(&mut client, &words);
        let before = info(&mut client, "replication", "master_repl_offset");
        (0..CALLS).for_each(|_| call::<()>(&mut client, &words));
        let bytes = info(&mut client, "replication", "master_repl_offset") - before;
        Stream { name: name.into(), bytes_per_call: bytes as f64 / CALLS as f64 }
    });
    rows.collect()
}
