//! A process that calls the cluster, and writes down each call with its reply and with the server's time before and after it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use redis::{Connection, RedisResult, Value};
use support::command;

use crate::replies;
use crate::workload::{sends_batches, Call, CallId, Later, Run, Verb, TAGS};

/// How long a mark lives. Its deadline shows when it was set.
pub const MARK_MS: i64 = 86_400_000;
/// No call takes longer than this, even if it waits.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// The most calls in a batch.
const BATCH: usize = 24;

/// What a caller process reads from its environment.
pub struct Task {
    pub run: Run,
    pub callers: Vec<u64>,
    /// Port and socket of each node.
    pub nodes: Vec<(u16, PathBuf)>,
    /// Where the histories go. When it has a file `stop`, the callers end.
    pub folder: PathBuf,
}

/// Makes calls until the folder has a file `stop`.
pub fn work(task: &Task) {
    std::thread::scope(|scope| {
        for &caller in &task.callers {
            scope.spawn(move || Caller::new(task, caller).work());
        }
    });
}

/// The nodes that serve the tags, as far as a caller knows.
struct Caller<'a> {
    task: &'a Task,
    caller: u64,
    rng: Rng,
    connections: HashMap<usize, Connection>,
    owners: Vec<usize>,
    history: BufWriter<File>,
    /// What the keys of each call held afterwards, if the only node has no log.
    states: Option<BufWriter<File>>,
}

fn time(connection: &mut Connection) -> RedisResult<i64> {
    let (seconds, us): (i64, i64) = redis::from_redis_value(connection.recv_response()?)?;
    Ok(seconds * 1_000_000 + us)
}

impl<'a> Caller<'a> {
    fn new(task: &'a Task, caller: u64) -> Self {
        let file = |name| BufWriter::new(File::create(task.folder.join(format!("{name}.{caller}"))).expect("a file"));
        Self {
            task,
            caller,
            rng: Rng::with_seed(task.run.seed ^ caller),
            connections: HashMap::new(),
            owners: (0..TAGS as usize).map(|tag| tag % task.nodes.len()).collect(),
            history: file("calls"),
            states: (task.nodes.len() == 1).then(|| file("states")),
        }
    }

    fn work(&mut self) {
        let mut number = 0;
        let stop = self.task.folder.join("stop");
        while !stop.exists() {
            let batches = self.states.is_some() || sends_batches(self.caller);
            let count = if batches { 1 + self.rng.usize(..BATCH) } else { 1 };
            let calls: Vec<_> =
                (0..count as u64).map(|more| CallId { caller: self.caller, number: number + more }).collect();
            number += count as u64;
            if batches {
                self.batch(&calls);
            } else {
                self.bare(calls[0]);
            }
        }
        self.history.flush().expect("a written history");
        if let Some(states) = &mut self.states {
            states.flush().expect("written states");
        }
    }

    /// Writes down a call: the node, the server's time before and after, and the reply. `-`: none came; `x`: the caller hung up;
    /// `!`: an error.
    fn note(&mut self, call: CallId, node: usize, times: [i64; 2], reply: &str) {
        writeln!(self.history, "{} {node} {} {} {reply}", call.number, times[0], times[1]).expect("a written history");
    }

    fn connection(&mut self, node: usize) -> Option<&mut Connection> {
        if !self.connections.contains_key(&node) {
            let connection = connect(&self.task.nodes[node].1)?;
            self.connections.insert(node, connection);
        }
        self.connections.get_mut(&node)
    }

    /// Learns from an error which node serves a tag.
    fn learn(&mut self, tag: u64, error: Option<&redis::ServerError>) -> bool {
        if error.is_none_or(|error| error.code() != "MOVED" && error.code() != "ASK") {
            // A node that is down is not asked all the time.
            std::thread::sleep(Duration::from_millis(10));
        }
        let word = |at| error.and_then(|error| error.details()?.split(' ').nth(at));
        let port = word(1).and_then(|address| address.rsplit(':').next()?.parse::<u16>().ok());
        let known = port.and_then(|port| self.task.nodes.iter().position(|node| node.0 == port));
        let random = self.rng.usize(..self.task.nodes.len());
        let asks = error.is_some_and(|error| error.code() == "ASK");
        if !asks {
            self.owners[tag as usize] = known.unwrap_or(random);
        }
        known.is_some() && asks
    }

    /// Sends transactions, each with a call and its mark, to the nodes that serve them.
    fn batch(&mut self, calls: &[CallId]) {
        let mut by_node: HashMap<usize, Vec<(CallId, Call)>> = HashMap::new();
        for &id in calls {
            let call = self.task.run.draw(id);
            by_node.entry(self.owners[call.tag as usize]).or_default().push((id, call));
        }
        for (node, calls) in by_node {
            if let Err(done) = self.send_batch(node, &calls) {
                // The node is gone, or does not answer.
                self.connections.remove(&node);
                for (id, call) in &calls[done.min(calls.len())..] {
                    self.note(*id, node, [0, i64::MAX], "-");
                    self.learn(call.tag, None);
                }
            }
        }
    }

    /// The number of calls whose replies came, if the connection fails.
    fn send_batch(&mut self, node: usize, calls: &[(CallId, Call)]) -> Result<(), usize> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        for (id, call) in calls {
            pipe.cmd("MULTI");
            match self.states {
                Some(_) => pipe.cmd("INCR").arg(Call::mark_key(call.tag)),
                None => pipe.cmd("SET").arg(Call::mark_key(call.tag)).arg(id.mark()).arg("PX").arg(MARK_MS),
            };
            pipe.add_command(command(&call.words()));
            for key in self.states.iter().flat_map(|_| call.keys()) {
                pipe.cmd("GET").arg(key).cmd("PEXPIRETIME").arg(key);
            }
            pipe.cmd("EXEC").cmd("TIME");
        }
        let connection = self.connection(node).ok_or(0_usize)?;
        connection.send_packed_command(&pipe.get_packed_pipeline()).map_err(|_| 0_usize)?;
        let mut before = time(connection).map_err(|_| 0_usize)?;
        for (done, (id, call)) in calls.iter().enumerate() {
            let mut refused = None;
            // MULTI, the mark, the call, and what reads its keys.
            let reads = self.states.iter().map(|_| 2 * call.keys().len()).sum::<usize>();
            let connection = self.connections.get_mut(&node).ok_or(done)?;
            for _ in 0..3 + reads {
                if let Value::ServerError(error) = connection.recv_response().map_err(|_| done)? {
                    refused = refused.or(Some(error));
                }
            }
            let reply = connection.recv_response().map_err(|_| done)?;
            let after = time(connection).map_err(|_| done)?;
            let mut written = String::new();
            if refused.is_some() || matches!(reply, Value::ServerError(_)) {
                self.learn(call.tag, refused.as_ref());
                written = format!("?{}", refused.as_ref().map_or("EXEC", |error| error.code()));
            } else if let Value::Array(values) = reply {
                written = replies::of_call(values.get(1).unwrap_or(&Value::Nil));
                if let Some(states) = &mut self.states {
                    replies::write_states(states, *id, &values);
                }
            }
            self.note(*id, node, [before, after], &written);
            before = after;
        }
        Ok(())
    }

    /// Makes one call outside of a transaction, so that it may wait. Its mark is set just before.
    fn bare(&mut self, id: CallId) {
        let call = self.task.run.draw(id);
        let node = self.owners[call.tag as usize];
        match self.send_bare(node, id, &call, false) {
            Err(()) => {
                self.connections.remove(&node);
                self.note(id, node, [0, i64::MAX], "-");
                self.learn(call.tag, None);
            }
            Ok(Some(error)) => {
                let asks = self.learn(call.tag, Some(&error));
                let word = error.details().and_then(|details| details.rsplit(':').next()).unwrap_or_default();
                let other = self.task.nodes.iter().position(|node| node.0.to_string() == word);
                match other.filter(|_| asks) {
                    Some(other) if self.send_bare(other, id, &call, true).is_ok_and(|error| error.is_none()) => {}
                    Some(other) => {
                        self.connections.remove(&other);
                        self.note(id, other, [0, i64::MAX], "-");
                    }
                    None => self.note(id, node, [0, i64::MAX], &format!("?{}", error.code())),
                }
            }
            Ok(None) => {}
        }
    }

    /// Returns the error of a node that does not serve the tag.
    fn send_bare(&mut self, node: usize, id: CallId, call: &Call, asking: bool) -> Result<Option<redis::ServerError>, ()> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        if asking {
            pipe.cmd("ASKING");
        }
        pipe.cmd("SET").arg(Call::mark_key(call.tag)).arg(id.mark()).arg("PX").arg(MARK_MS);
        if asking {
            pipe.cmd("ASKING");
        }
        pipe.add_command(command(&call.words())).cmd("TIME");
        let waits = matches!(call.verb, Verb::Take { later: Later::Block(_), .. } | Verb::All { block_us: Some(_), .. });
        let hangs_up = waits && self.rng.u8(..100) == 0;
        let pause = Duration::from_millis(self.rng.u64(..100));
        let connection = self.connection(node).ok_or(())?;
        connection.send_packed_command(&pipe.get_packed_pipeline()).map_err(|_| ())?;
        let before = time(connection).map_err(|_| ())?;
        if asking {
            connection.recv_response().map_err(|_| ())?;
        }
        if let Value::ServerError(error) = connection.recv_response().map_err(|_| ())? {
            if asking {
                connection.recv_response().map_err(|_| ())?;
            }
            let reply = connection.recv_response().map_err(|_| ())?;
            let after = time(connection).map_err(|_| ())?;
            if matches!(reply, Value::ServerError(_)) {
                return Ok(Some(error));
            }
            // While a slot moves, the node may have the call's key and not the mark's.
            self.note(id, node, [before, after], &format!("~{}", replies::of_call(&reply)));
            return Ok(None);
        }
        if asking {
            connection.recv_response().map_err(|_| ())?;
        }
        if hangs_up {
            std::thread::sleep(pause);
            self.connections.remove(&node);
            std::thread::sleep(Duration::from_millis(100));
            // The node has seen by now that the connection has ended.
            let gone = self.connection(node).and_then(|connection| {
                connection.send_packed_command(&command("TIME").get_packed_command()).ok()?;
                time(connection).ok()
            });
            self.note(id, node, [before, gone.unwrap_or(i64::MAX)], "x");
            return Ok(None);
        }
        let reply = connection.recv_response().map_err(|_| ())?;
        let mut after = time(connection).map_err(|_| ())?;
        if waits {
            // A server executes what follows a call that has waited with the time of its last event: it is asked again.
            connection.send_packed_command(&command("TIME").get_packed_command()).map_err(|_| ())?;
            after = time(connection).map_err(|_| ())?;
        }
        let refused = match &reply {
            Value::ServerError(error) if ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"].contains(&error.code()) => {
                Some(error.clone())
            }
            _ => None,
        };
        if refused.is_none() {
            self.note(id, node, [before, after], &replies::of_call(&reply));
        }
        Ok(refused)
    }
}

fn connect(socket: &Path) -> Option<Connection> {
    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).ok()?;
    let connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok()?;
    connection.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(connection)
}
