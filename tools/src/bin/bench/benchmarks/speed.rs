//! Speed: measures each case on a server of its own, in rounds, compared with `SET key value EX 60` in the same round.

use redis::Connection;
use serde::{Deserialize, Serialize};

use crate::benchmarks::cases::{Case, Needs, Width, CASES, FIRST};
use crate::benchmarks::peers::Peers;
use crate::version;
use crate::Options;
use support::{self, call, command, info, Server};
use tools::chart::grouped;
use tools::load::{self, cpu, Load, Shape};
use tools::statistics::Steady;
use tools::statistics::{median, Quartiles};

#[derive(Serialize, Deserialize)]
pub struct Section {
    pub rounds: usize,
    pub seconds: f64,
    pub connections: usize,
    pub peers: Vec<String>,
    /// How many measurements there were, and how many of them were made again because other work slowed the machine.
    pub measured: usize,
    pub repeated: usize,
    pub scenes: Vec<Scene>,
    pub stream: Vec<Stream>,
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

impl Scene {
    pub fn case(&self, name: &str) -> Option<&Measured> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// The server, its setting and the keys.
    pub fn title(&self) -> String {
        let with = match self.setting {
            Setting::Plain => "",
            Setting::Aof => ", append-only file, everysec",
            Setting::Replica => ", a replica",
        };
        let keys = match self.keys {
            HOT => "one hot key".into(),
            NEW => "a new key in each call".into(),
            keys => format!("{} random keys", grouped(keys as f64)),
        };
        format!("{}, pipeline {}{with}, {keys}", self.server, self.pipeline)
    }
}

impl Measured {
    /// The median over the rounds of a time of the replies, in milliseconds; `None` if it was not measured.
    pub fn ms(&self, percentile: usize) -> Option<f64> {
        let time = |round: &Round| if percentile == 50 { round.p50_ms } else { round.p99_ms };
        let times: Option<Vec<f64>> = self.rounds.iter().map(time).collect();
        times.map(median)
    }
}

impl Section {
    /// The first scene of this kind on the first server.
    pub fn scene(&self, setting: Setting, keys: u64, pipeline: usize) -> &Scene {
        let is = |scene: &&Scene| scene.setting == setting && scene.keys == keys && scene.pipeline == pipeline;
        self.scenes.iter().find(is).expect("a scene")
    }

    /// What a call adds to the replication stream.
    pub fn bytes(&self, name: &str) -> Option<f64> {
        self.stream.iter().find(|row| row.name == name).map(|row| row.bytes_per_call)
    }
}

/// A scene that is to be measured.
struct Plan {
    server: String,
    setting: Setting,
    pipeline: usize,
    keys: u64,
    cases: Vec<&'static Case>,
}

pub const RANDOM: u64 = 100_000;
/// So many that a call hardly ever picks the same one twice. redis-benchmark knows no higher number.
pub const NEW: u64 = 2_000_000_000;
pub const HOT: u64 = 1;
/// Loads without a pipeline last this many times as long: their percentiles are reported, and the 99th needs many calls.
pub const LONGER_WITHOUT_PIPELINE: f64 = 3.0;

pub fn measure(options: &Options, peers: &Peers) -> Section {
    let first = support::server_program();
    let plan = |server: &String, setting, pipeline, keys, width| {
        let cases = if keys == NEW { FIRST } else { CASES };
        let cases = cases.iter().filter(|case| case.width <= width).collect();
        Plan { server: server.clone(), setting, pipeline, keys, cases }
    };
    let mut plans = vec![
        plan(&first, Setting::Plain, 16, RANDOM, Width::Wide),
        plan(&first, Setting::Plain, 16, HOT, Width::Wide),
        plan(&first, Setting::Plain, 16, NEW, Width::Wide),
        plan(&first, Setting::Plain, 1, RANDOM, Width::Narrow),
        plan(&first, Setting::Plain, 1, HOT, Width::Narrow),
        plan(&first, Setting::Aof, 16, RANDOM, Width::Narrow),
        plan(&first, Setting::Aof, 16, HOT, Width::Narrow),
        plan(&first, Setting::Replica, 16, RANDOM, Width::Narrow),
        plan(&first, Setting::Replica, 16, HOT, Width::Narrow),
    ];
    for server in &options.server {
        plans.extend([RANDOM, HOT, NEW].map(|keys| plan(server, Setting::Plain, 16, keys, Width::Medium)));
    }
    let mut steady = Steady::new();
    Section {
        scenes: plans.iter().map(|plan| plan.measure(options, peers, &mut steady)).collect(),
        measured: steady.measured,
        repeated: steady.repeated,
        rounds: options.rounds,
        seconds: options.seconds,
        connections: load::CONNECTIONS,
        peers: peers.versions(),
        stream: stream(&first),
    }
}

/// Measures these cases on random keys, and on the hot key.
pub fn scenes(options: &Options, peers: &Peers, cases: &'static [Case]) -> Vec<Scene> {
    let plan = |keys| {
        let cases = cases.iter().collect();
        Plan { server: support::server_program(), setting: Setting::Plain, pipeline: 16, keys, cases }
    };
    let mut steady = Steady::new();
    [RANDOM, HOT].map(|keys| plan(keys).measure(options, peers, &mut steady)).into()
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
    /// The replica of `server`, if there is one.
    _replica: Option<Server>,
    setting: Setting,
}

impl Plan {
    fn measure(&self, options: &Options, peers: &Peers, steady: &mut Steady) -> Scene {
        let server = version(&self.server);
        println!("{server}, {:?}, pipeline {}, {} keys", self.setting, self.pipeline, self.keys);
        let cases = &self.cases;
        let set = cases.iter().position(|case| case.name == case.base).expect("SET is everywhere");
        let count = cases.len();
        let mut rounds = vec![Vec::new(); count];
        for round in 0..options.rounds {
            // The layout of its memory makes a server faster or slower for as long as it runs. So each measurement uses a
            // new server.
            let mut measure = |at: usize| steady.measure(|| Runner::start(self, cases[at], peers).measure(options.seconds));
            // SET is measured at the beginning, in the middle and at the end. Each round begins with another of the other
            // cases.
            let mut sets = vec![measure(set)];
            let others = (0..count).map(|place| (place + round * count / options.rounds) % count).filter(|&at| at != set);
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
            println!("  round {} of {}", round + 1, options.rounds);
        }
        let base_of = |case: &Case| {
            let base = cases.iter().position(|other| other.name == case.base);
            &rounds[base.expect("the base of a case is measured wherever the case is")]
        };
        let measured = cases.iter().zip(&rounds).map(|(case, rounds)| {
            let base = base_of(case);
            Measured {
                name: case.name.into(),
                base: case.base.into(),
                per_second: Quartiles::of(rounds.iter().map(|round| round.per_second)),
                cpu_us: Quartiles::of(rounds.iter().map(|round| round.cpu_us)),
                of_base: ratio(rounds, base, |round| round.per_second),
                cpu_of_base: ratio(base, rounds, |round| round.cpu_us),
                rounds: rounds.clone(),
            }
        });
        let cases = measured.collect();
        Scene { server, setting: self.setting, pipeline: self.pipeline, keys: self.keys, cases }
    }
}

/// The ratio of a figure of two cases, round by round.
pub fn ratio(of: &[Round], base: &[Round], figure: impl Fn(&Round) -> f64) -> Quartiles {
    Quartiles::of(of.iter().zip(base).map(|(of, base)| figure(of) / figure(base)))
}

impl<'a> Runner<'a> {
    fn start(plan: &Plan, case: &'a Case, peers: &Peers) -> Self {
        let mut options = vec!["--auto-aof-rewrite-percentage", "0"];
        if plan.setting == Setting::Aof {
            options.extend(["--appendonly", "yes", "--appendfsync", "everysec"]);
        }
        options.extend(case.options(peers));
        let (server, mut client) = Server::of(&plan.server, case.needs == Needs::Module, &options).and_client();
        let replica = (plan.setting == Setting::Replica).then(|| follow(&plan.server, &server, &mut client));
        let sha = match case.needs {
            Needs::Script(name) => {
                let script = peers.script(name);
                redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut client).expect("a script")
            }
            _ => String::new(),
        };
        let shape = Shape { keys: plan.keys, pipeline: plan.pipeline };
        let setting = plan.setting;
        let mut runner = Self { case, shape, server, client, sha, rate: 0.0, _replica: replica, setting };
        if !case.prepare.is_empty() {
            runner.each_key(case.prepare);
        }
        if plan.keys != NEW {
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
        let generator = if self.case.own_loop { load::own } else { load::redis_benchmark };
        generator(&self.server.socket(), &words, self.shape, calls)
    }

    /// Checks that calls are granted or denied as the case says.
    fn sample(&mut self) {
        if self.case.expects.is_none() {
            return;
        }
        let words = Case::first_key(&self.fill(self.case.call));
        let reply = command(&words).query(&mut self.client).unwrap_or_else(|error| panic!("{words}: {error}"));
        assert!(self.case.allows(&reply), "{}: {words}: {reply:?}", self.case.name);
    }

    fn measure(mut self, seconds: f64) -> Round {
        self.settle();
        let longer = if self.shape.pipeline == 1 { LONGER_WITHOUT_PIPELINE } else { 1.0 };
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
