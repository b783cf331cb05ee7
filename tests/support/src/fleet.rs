//! Starts a cluster of three primaries with a replica each on the loopback interface, breaks it in many ways, and checks it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::cluster::{ClusterClient, ClusterConnection};
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{Cmd, Connection, FromRedisValue, RedisError, RedisResult, Value};

use crate::{call, command, free_port, send, snapshots, wait_for, Server, Signal};

/// How many shards there are. Nodes `shard` and `shard + SHARDS` serve the same slots: one is the primary, the other its
/// replica.
pub const SHARDS: usize = 3;
const NODES: usize = 2 * SHARDS;

/// If a cluster takes longer than this for anything, it is broken.
const DEADLINE: Duration = Duration::from_secs(90);

/// The least time between two elections of a node. If they are closer, it may count the votes of the first one again (seen
/// with Redis 8.2).
const TERM: Duration = Duration::from_millis(4_500);

/// A running cluster. When this value is dropped, its servers are killed.
pub struct Fleet {
    nodes: Vec<Server>,
    ids: Vec<String>,
    pids: Vec<i64>,
    dead: Vec<bool>,
    /// When each node last became a primary.
    elected: Vec<Option<Instant>>,
    /// Reports of crashes in logs that a restart has emptied since.
    crashes: Vec<String>,
}

impl Fleet {
    /// Starts a cluster whose nodes have these options besides those that a cluster needs. A replica takes over only if it
    /// is [allowed](Self::allow_takeover): so a busy machine causes no failover, and a test can read what a replica holds
    /// before it takes over.
    pub fn start(options: &[&str]) -> Self {
        let nodes: Vec<_> = (0..NODES).map(|_| node(options)).collect();
        let ids = nodes.iter().map(|node| call(&mut node.client(), "CLUSTER MYID")).collect();
        let pids = nodes.iter().map(pid).collect();
        let fleet = Self { nodes, ids, pids, dead: vec![false; NODES], elected: vec![None; NODES], crashes: Vec::new() };
        for (index, server) in fleet.nodes.iter().enumerate() {
            let mut client = server.client();
            call::<()>(&mut client, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
            if index < SHARDS {
                let (from, to) = (index * 16_384 / SHARDS, (index + 1) * 16_384 / SHARDS - 1);
                call::<()>(&mut client, &format!("CLUSTER ADDSLOTSRANGE {from} {to}"));
            }
            // To introduce each node to all before it is faster than to wait for the cluster's gossip.
            for (before, bus) in fleet.nodes[..index].iter().zip(fleet.buses()) {
                call::<()>(&mut client, &format!("CLUSTER MEET 127.0.0.1 {} {bus}", before.port));
            }
        }
        for shard in 0..SHARDS {
            let replicate = command(&format!("CLUSTER REPLICATE {}", fleet.ids[shard]));
            fleet.call_until_ok(shard + SHARDS, &replicate);
        }
        fleet.settle();
        fleet
    }

    fn buses(&self) -> Vec<String> {
        let bus = |(node, id): (&Server, &String)| {
            let known: String = call(&mut node.client(), "CLUSTER NODES");
            let own = known.lines().find(|line| line.starts_with(id.as_str())).expect("a node knows itself");
            let bus = own.split(['@', ',', ' ']).nth(2).expect("a bus port");
            bus.to_string()
        };
        self.nodes.iter().zip(&self.ids).map(bus).collect()
    }

    /// A cluster client, which can find the cluster through any node.
    pub fn cluster_client(&self) -> ClusterClient {
        let addresses = self.nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port));
        // The library retries more often by default, and waits longer between two tries.
        let builder = ClusterClient::builder(addresses).retries(8).min_retry_wait(2).max_retry_wait(100);
        let builder = builder.connection_timeout(Duration::from_secs(5)).response_timeout(Duration::from_secs(10));
        builder.build().expect("addresses")
    }

    /// The server of a node.
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// Connects a client to one node, by its socket.
    pub fn client(&self, index: usize) -> Connection {
        self.nodes[index].client()
    }

    /// Connects a client to one node, and allows it to read there if the node is a replica.
    pub fn reader(&self, index: usize) -> Connection {
        let mut client = self.client(index);
        call::<()>(&mut client, "READONLY");
        client
    }

    fn living(&self) -> impl Iterator<Item = usize> + '_ {
        (0..NODES).filter(|&index| !self.dead[index])
    }

    /// Repeats a command until the node accepts it.
    fn call_until_ok(&self, index: usize, command: &Cmd) {
        let mut client = self.client(index);
        let start = Instant::now();
        while let Err(error) = command.query::<Value>(&mut client) {
            assert!(start.elapsed() < DEADLINE, "node {index}: {error}");
            sleep(Duration::from_millis(20));
        }
    }

    // ---- The parts that nodes play ----

    /// Whether the node considers itself a primary.
    fn leads(&self, index: usize) -> bool {
        let role = command("INFO replication").query::<String>(&mut self.client(index));
        role.is_ok_and(|text| text.contains("role:master"))
    }

    /// The primary of a shard. Waits if it has none that runs.
    pub fn primary(&self, shard: usize) -> usize {
        let start = Instant::now();
        loop {
            if let Some(index) = [shard, shard + SHARDS].into_iter().find(|&index| !self.dead[index] && self.leads(index)) {
                return index;
            }
            assert!(start.elapsed() < DEADLINE, "no primary");
            sleep(Duration::from_millis(20));
        }
    }

    /// The other node of the same shard.
    pub fn partner(index: usize) -> usize {
        (index + SHARDS) % NODES
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let index = self.living().next().expect("a node");
        call(&mut self.client(index), &format!("CLUSTER KEYSLOT {key}"))
    }

    /// The shard that serves a slot.
    pub fn shard(&self, slot: u16) -> usize {
        let start = Instant::now();
        loop {
            // Only the view of the owner itself counts: others learn of a change later.
            let owns = |&index: &usize| {
                let view = self.view(index).unwrap_or_default();
                view.get(&self.nodes[index].port).is_some_and(|role| role.has(slot))
            };
            if let Some(owner) = self.living().find(owns) {
                return owner % SHARDS;
            }
            assert!(start.elapsed() < DEADLINE, "no shard serves slot {slot}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Hash tags whose slots the shard serves.
    pub fn tags(&self, shard: usize, count: usize) -> Vec<String> {
        let tags = (0..).map(|number| format!("{{t{number}}}"));
        tags.filter(|tag| self.shard(self.slot(tag)) == shard).take(count).collect()
    }

    /// The running nodes of the cluster as one node sees them, by their ports.
    fn view(&self, index: usize) -> RedisResult<BTreeMap<u16, Role>> {
        let text: String = command("CLUSTER NODES").query(&mut self.client(index))?;
        let dead: Vec<_> = (0..NODES).filter(|&index| self.dead[index]).map(|index| self.nodes[index].port).collect();
        let role = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let port = words.get(1)?.split([':', '@']).nth(1)?.parse().ok()?;
            let flags = words.get(2)?.replace("myself,", "").replace(",nofailover", "");
            let slots = words.get(8..).unwrap_or_default().iter().map(|slots| slots.trim().to_string()).collect();
            // All nodes have to agree on the epochs, too: a node that does not know the latest one might use it again for
            // the next slot that it takes.
            let epoch = if flags == "master" { words.get(6)?.to_string() } else { String::new() };
            (!dead.contains(&port)).then_some((port, Role { flags, epoch, slots }))
        };
        Ok(text.lines().filter_map(role).collect())
    }

    /// Waits until all running nodes agree on their parts and serve all slots that have a running primary, and until all
    /// replicas are connected.
    pub fn settle(&self) {
        let mut why = String::new();
        let start = Instant::now();
        while let Err(open) = self.settled() {
            why = if open == why { why } else { open };
            assert!(start.elapsed() < DEADLINE, "the cluster does not settle: {why}\n{}", self.logs());
            sleep(Duration::from_millis(20));
        }
    }

    fn settled(&self) -> Result<(), String> {
        let mut first = None;
        for index in self.living() {
            let say = |error: RedisError| format!("node {index}: {error}");
            let view = self.view(index).map_err(say)?;
            if view.len() != self.living().count() {
                return Err(format!("node {index} knows {} nodes", view.len()));
            }
            let is_open =
                |role: &Role| !["master", "slave"].contains(&role.flags.as_str()) || role.slots.join("").contains('[');
            let first = first.get_or_insert_with(|| view.clone());
            if view.values().any(is_open) || *first != view {
                return Err(format!("node {index} sees {view:?}, and the first {first:?}"));
            }
            let info: String = command("CLUSTER INFO").query(&mut self.client(index)).map_err(say)?;
            if !info.contains("cluster_state:ok") {
                return Err(format!("node {index}: {info}"));
            }
            let link: String = command("INFO replication").query(&mut self.client(index)).map_err(say)?;
            let leads = view.get(&self.nodes[index].port).is_some_and(|role| role.flags == "master");
            let linked = match (leads, self.dead[Self::partner(index)]) {
                (true, true) => true,
                (true, false) => link.contains("role:master") && link.contains("state=online"),
                (false, _) => link.contains("master_link_status:up") && !link.contains("master_sync_in_progress:1"),
            };
            if !linked {
                return Err(format!("node {index}: {link}"));
            }
        }
        Ok(())
    }

    // ---- Events ----

    /// Sends a signal to a node: `KILL`, `STOP` or `CONT`.
    pub fn signal(&mut self, index: usize, signal: &str) {
        let signal = match signal {
            "KILL" => Signal::KILL,
            "STOP" => Signal::STOP,
            "CONT" => Signal::CONT,
            other => panic!("unknown signal {other}"),
        };
        send(self.pids[index].try_into().expect("a process"), signal);
    }

    /// Kills a node without a chance to save anything, as a power cut does.
    pub fn kill(&mut self, index: usize) {
        self.signal(index, "KILL");
        wait_for("the process to end", || !self.nodes[index].is_alive());
        self.dead[index] = true;
    }

    /// Starts a killed node again, on the same files.
    pub fn restart(&mut self, index: usize) {
        assert!(self.dead[index]);
        self.crashes.extend(crash(&self.nodes[index]));
        self.nodes[index].crash_and_restart();
        self.pids[index] = pid(&self.nodes[index]);
        self.dead[index] = false;
    }

    /// Allows or forbids a replica to take over when its primary is down.
    pub fn allow_takeover(&self, index: usize, may: bool) {
        let word = if may { "no" } else { "yes" };
        call::<()>(&mut self.client(index), &format!("CONFIG SET cluster-replica-no-failover {word}"));
    }

    /// Calls `look` with a client of a replica whose primary is down, before the replica takes over.
    pub fn without_primary<T>(&self, replica: usize, look: impl FnOnce(&mut Connection) -> T) -> T {
        let mut client = self.reader(replica);
        // The replica has executed all that it has received before it notices that the connection has ended.
        wait_for("the link to be down", || {
            call::<String>(&mut client, "INFO replication").contains("master_link_status:down")
        });
        let seen = look(&mut client);
        assert!(
            call::<String>(&mut client, "INFO replication").contains("role:slave"),
            "the replica has taken over too early"
        );
        seen
    }

    /// Makes the replica of a killed primary take over.
    pub fn take_over(&mut self, replica: usize) {
        self.elect(replica);
        self.settle();
    }

    /// Makes a replica take over whose primary the other nodes can't reach.
    pub fn elect(&mut self, replica: usize) {
        self.wait_until_electable(replica);
        self.allow_takeover(replica, true);
        wait_for("the takeover", || self.leads(replica));
        self.elected[replica] = Some(Instant::now());
        self.allow_takeover(replica, false);
    }

    /// Waits until the node may be elected again.
    fn wait_until_electable(&self, node: usize) {
        if let Some(elected) = self.elected[node] {
            sleep(TERM.saturating_sub(elected.elapsed()));
        }
    }

    /// Makes the nodes of a shard change their parts with `CLUSTER FAILOVER`, which loses nothing. Returns the new primary.
    pub fn fail_over(&mut self, shard: usize) -> usize {
        let next = Self::partner(self.primary(shard));
        self.wait_until_electable(next);
        let start = Instant::now();
        while !self.leads(next) {
            assert!(start.elapsed() < DEADLINE, "no failover");
            // A node gives up after 5 seconds. Then it needs the command again.
            self.call_until_ok(next, &command("CLUSTER FAILOVER"));
            let asked = Instant::now();
            while !self.leads(next) && asked.elapsed() < Duration::from_secs(6) {
                sleep(Duration::from_millis(5));
            }
        }
        self.elected[next] = Some(Instant::now());
        self.settle();
        next
    }

    /// Moves a slot with its keys to another shard, as `redis-cli --cluster reshard` does.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let from = self.shard(slot);
        if from == to {
            return;
        }
        let (source, target) = (self.primary(from), self.primary(to));
        self.call_until_ok(target, &command(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.ids[source])));
        self.call_until_ok(source, &command(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.ids[target])));
        let mut client = self.client(source);
        loop {
            let keys: Vec<String> = call(&mut client, &format!("CLUSTER GETKEYSINSLOT {slot} 20"));
            if keys.is_empty() {
                break;
            }
            // REPLACE: a MIGRATE that timed out may have left a key at the target. As long as the source has the key too,
            // the source serves it and has the newer value.
            let port = self.nodes[target].port;
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(port).arg("").arg(0).arg(10_000).arg("REPLACE").arg("KEYS").arg(keys);
            self.call_until_ok(source, &migrate);
        }
        let others = (0..SHARDS).map(|shard| self.primary(shard)).filter(|&index| index != source && index != target);
        for index in [target, source].into_iter().chain(others.collect::<Vec<_>>()) {
            self.call_until_ok(index, &command(&format!("CLUSTER SETSLOT {slot} NODE {}", self.ids[target])));
        }
        // Messages that nodes have sent before may still arrive. A slot that moves every few milliseconds can end up with
        // two owners permanently (seen with Redis 7.0).
        self.settle();
        sleep(Duration::from_millis(50));
    }

    /// Whether the servers can move a slot as a whole (atomic slot migration): Redis from 8.4 on, Valkey from 9.0 on.
    pub fn moves_whole_slots(&self) -> bool {
        let help: Vec<String> = call(&mut self.client(self.primary(0)), "CLUSTER HELP");
        help.iter().any(|line| line.starts_with("MIGRATESLOTS") || line.starts_with("MIGRATION"))
    }

    /// Moves a slot as a whole to another shard: the source sends a copy of its keys, and then their changes.
    pub fn move_whole_slot(&self, slot: u16, to: usize) {
        let from = self.shard(slot);
        if from == to {
            return;
        }
        let (source, target) = (self.primary(from), self.primary(to));
        let start = Instant::now();
        while self.shard(slot) != to {
            assert!(start.elapsed() < DEADLINE, "slot {slot} does not move\n{}", self.logs());
            // Valkey has a command for the source, Redis one for the target. A node refuses it during another move of the slot.
            let words = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", self.ids[target]);
            let asked = command(&words).query::<redis::Value>(&mut self.client(source));
            if asked.is_err_and(|error| error.to_string().contains("unknown subcommand")) {
                let words = format!("CLUSTER MIGRATION IMPORT {slot} {slot}");
                let _ = command(&words).query::<redis::Value>(&mut self.client(target));
            }
            sleep(Duration::from_millis(50));
        }
        self.settle();
    }

    // ---- Checks ----

    /// Panics unless each replica holds the same as its primary, and all keys have a deadline. Returns the number of keys.
    /// No client may write meanwhile.
    pub fn assert_replicated(&self) -> usize {
        let Comparison { keys, differ, endless } = self.compare();
        assert!(differ.is_empty(), "not the same on primary and replica: {differ:#?}");
        assert!(endless.is_empty(), "no deadline: {endless:?}");
        keys
    }

    /// Compares primaries and replicas. No client may write meanwhile.
    pub fn compare(&self) -> Comparison {
        self.settle();
        let mut found = Comparison::default();
        for shard in 0..SHARDS {
            let primary = self.primary(shard);
            let replica = Self::partner(primary);
            let end = self.offset(primary);
            wait_for("the replica", || self.offset(replica) >= end);
            let [left, right] = [primary, replica].map(|index| snapshots(&mut self.reader(index)));
            found.keys += left.len();
            let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
            let differ = keys.into_iter().filter(|&key| left.get(key) != right.get(key));
            found.differ.extend(differ.map(|key| format!("{key}: {:?} and {:?}", left.get(key), right.get(key))));
            let endless = left.iter().chain(&right).filter(|(_, snapshot)| snapshot.deadline_ms <= 0);
            found.endless.extend(endless.map(|(key, _)| key.clone()));
        }
        found
    }

    fn offset(&self, index: usize) -> i64 {
        crate::info(&mut self.client(index), "replication", "master_repl_offset")
    }

    /// Panics if a node has ended that was not killed, or if a log reports a crash.
    pub fn assert_healthy(&mut self) {
        if let Some(found) = self.failure() {
            panic!("{found}\n{}", self.logs());
        }
    }

    /// Describes a node that has ended without being killed, or a crash that a log reports; `None` if there is neither.
    pub fn failure(&mut self) -> Option<String> {
        for index in 0..NODES {
            if !self.dead[index] && !self.nodes[index].is_alive() {
                return Some(format!("node {index} has died: {}", self.nodes[index].log()));
            }
            self.crashes.extend(crash(&self.nodes[index]));
        }
        self.crashes.first().cloned()
    }

    /// The logs of all nodes.
    pub fn logs(&self) -> String {
        self.nodes.iter().enumerate().map(|(index, node)| format!("node {index}:\n{}\n", node.log())).collect()
    }
}

/// The result of a comparison of primaries and replicas.
#[derive(Debug, Default)]
pub struct Comparison {
    /// How many keys the primaries hold.
    pub keys: usize,
    /// Keys whose values or deadlines differ, with both snapshots.
    pub differ: Vec<String>,
    /// Keys without a deadline.
    pub endless: Vec<String>,
}

/// The part that one node plays, as another sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Role {
    flags: String,
    epoch: String,
    slots: Vec<String>,
}

impl Role {
    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bounds = first.parse::<u16>().and_then(|first| last.parse::<u16>().map(|last| first..=last));
            bounds.is_ok_and(|bounds| bounds.contains(&slot))
        })
    }
}

fn node(options: &[&str]) -> Server {
    let [port, bus] = [free_port(), free_port()];
    let (own, bus) = (port.to_string(), bus.to_string());
    let mut all = vec!["--port", &own, "--cluster-enabled", "yes", "--cluster-port", &bus];
    all.extend(["--cluster-require-full-coverage", "no", "--cluster-allow-replica-migration", "no"]);
    all.extend(["--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0"]);
    // Tests read what survives while a part of the cluster is down.
    all.extend(["--cluster-replica-no-failover", "yes", "--cluster-allow-reads-when-down", "yes"]);
    all.extend(options);
    let mut server = Server::with(&all);
    server.port = port;
    server
}

fn pid(server: &Server) -> i64 {
    crate::info(&mut server.client(), "server", "process_id")
}

/// The report of a crash in a node's log, if there is one.
fn crash(server: &Server) -> Option<String> {
    let log = server.log();
    let words = ["BUG REPORT", "crashed by signal", "panicked at", "ASSERTION FAILED", "Guru Meditation", "stack trace"];
    let at = words.iter().filter_map(|word| log.find(word)).min()?;
    Some(log[at..].chars().take(4_000).collect())
}

// ---- Callers ----

/// A cluster client that connects again after an error of its connection.
pub struct Caller {
    cluster: ClusterClient,
    connection: Option<ClusterConnection>,
}

impl Caller {
    /// A caller that is not connected yet.
    pub fn new(cluster: &ClusterClient) -> Self {
        Self { cluster: cluster.clone(), connection: None }
    }

    /// Calls a command at the node that serves `key`. By default the library takes the first argument for the key, which is
    /// not right for all commands.
    pub fn call<T: FromRedisValue>(&mut self, key: &str, command: &Cmd) -> RedisResult<T> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.cluster.get_connection()?),
        };
        let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master)));
        let reply = connection.route_command(command, route).and_then(|reply| Ok(T::from_redis_value(reply)?));
        if reply.as_ref().is_err_and(|error| error.code().is_none()) {
            self.connection = None;
        }
        reply
    }

    /// Calls a limiter and returns its reply: granted, limit, remaining, wait_ms, reset_ms.
    pub fn limit(&mut self, key: &str, words: &str) -> RedisResult<[i64; 5]> {
        self.call::<Vec<i64>>(key, &command(words)).map(|row| row.try_into().expect("five integers"))
    }
}

/// Knows which calls of some callers are still running, so that a thread can wait for those that began before a moment.
pub struct InFlight {
    moment: AtomicU64,
    callers: Vec<AtomicU64>,
}

impl InFlight {
    /// For callers with the numbers from 0 to `callers` - 1.
    pub fn new(callers: usize) -> Self {
        Self { moment: AtomicU64::new(1), callers: (0..callers).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Does the work of a caller, which counts as one call.
    pub fn run<T>(&self, caller: usize, work: impl FnOnce() -> T) -> T {
        let began = self.moment.load(Ordering::SeqCst);
        let done = work();
        self.callers[caller].store(began, Ordering::SeqCst);
        done
    }

    /// Waits until all calls have ended that had begun before.
    pub fn wait_for_earlier(&self) {
        let moment = self.moment.fetch_add(1, Ordering::SeqCst) + 1;
        let passed = || self.callers.iter().all(|seen| seen.load(Ordering::SeqCst) >= moment);
        wait_for("the calls to end", passed);
    }

    /// Notes that a caller makes no more calls.
    pub fn leave(&self, caller: usize) {
        self.callers[caller].store(u64::MAX, Ordering::SeqCst);
    }
}

/// How many units are used in each of these keys, or held by leases, as a node reports.
pub fn used<'a>(client: &mut Connection, keys: impl Iterator<Item = &'a str>) -> Vec<i64> {
    let mut pipe = redis::pipe();
    for key in keys {
        pipe.cmd("RL.INSPECT").arg(key);
    }
    let reports: Vec<Option<BTreeMap<String, Value>>> = pipe.query(client).expect("reports");
    // A lease does not use units, but holds them.
    let field = |mut report: BTreeMap<String, Value>| report.remove("used").or_else(|| report.remove("held"));
    let used = |report: Option<BTreeMap<String, Value>>| match report.map(field) {
        None => 0,
        Some(Some(Value::Int(used))) => used,
        Some(other) => panic!("used: {other:?}"),
    };
    reports.into_iter().map(used).collect()
}
