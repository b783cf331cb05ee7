//! What a failover may grant again: a primary is killed under load, behind whose replica a line delays what is replicated. What was
//! still on the line is lost, as if the machine had failed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep, spawn};
use std::time::{Duration, Instant};

use redis::{Connection, Value};
use serde::{Deserialize, Serialize};
use support::{call, inspect, wait_for, Server};
use tools::statistics::median;

use crate::scale::Size;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub kills: Vec<Kills>,
}

/// Kills of a primary with a replica that is so far behind.
#[derive(Serialize, Deserialize)]
pub struct Kills {
    pub lag_ms: u64,
    /// Whether callers wait after each grant until a replica has it.
    pub waits: bool,
    /// Grants a second, median over the kills.
    pub per_second: f64,
    /// The grants that each kill has lost, in the order of the seeds.
    pub lost: Vec<u64>,
}

// ---- The line between primary and replica ----

/// A line that delays what the primary sends.
struct Line {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// All that is on the line is lost, and no more comes through.
    dead: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Line {
    fn to(primary: u16, lag: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        spawn(move || {
            for replica in listener.incoming().flatten() {
                if shared.dead.load(SeqCst) {
                    return;
                }
                let Ok(primary) = TcpStream::connect(("127.0.0.1", primary)) else { continue };
                let _ = (replica.set_nodelay(true), primary.set_nodelay(true));
                let ends = [&replica, &primary].map(|stream| stream.try_clone().expect("a stream"));
                shared.streams.lock().expect("no panic").extend(ends);
                let clone = |stream: &TcpStream| stream.try_clone().expect("a stream");
                pass(clone(&primary), clone(&replica), lag, shared.clone());
                pass(replica, primary, Duration::ZERO, shared.clone());
            }
        });
        Self { port, state }
    }

    fn cut(&self) {
        self.state.dead.store(true, SeqCst);
    }

    /// Ends the connections.
    fn close(&self) {
        self.cut();
        for stream in self.state.streams.lock().expect("no panic").iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.close();
    }
}

/// Passes bytes on after a while. A dead line takes them and drops them.
fn pass(mut from: TcpStream, mut to: TcpStream, lag: Duration, state: Arc<State>) {
    let (sender, receiver) = channel::<(Instant, Vec<u8>)>();
    spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + lag, buffer[..len].to_vec())).is_err() {
                return;
            }
        }
    });
    spawn(move || {
        for (due, bytes) in receiver {
            sleep(due.saturating_duration_since(Instant::now()));
            if state.dead.load(SeqCst) || to.write_all(&bytes).is_err() {
                return;
            }
        }
    });
}

// ---- Kills ----

const CALLERS: usize = 2;

struct Pair {
    primary: Server,
    replica: Server,
    line: Line,
}

impl Pair {
    fn start(lag: Duration) -> Self {
        let primary = Server::on_port(&[]);
        let replica = Server::on_port(&[]);
        let line = Line::to(primary.port, lag);
        let mut client = replica.client();
        call::<String>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", line.port));
        wait_for("the replica to be in sync", || {
            call::<String>(&mut client, "INFO replication").contains("master_link_status:up")
        });
        let mut client = primary.client();
        wait_for("the primary to know it", || call::<String>(&mut client, "INFO replication").contains("state=online"));
        // A replica that has just connected gets nothing before its first acknowledgement, up to a second later.
        call::<String>(&mut client, "SET ready 1");
        wait_for("the stream to begin", || call::<i64>(&mut replica.client(), "EXISTS ready") == 1);
        Self { primary, replica, line }
    }

    /// Cuts the line and kills the primary. The replica becomes the primary.
    fn fail_over(&mut self) {
        // What the primary sends from here on is lost. A grant whose reply arrives after this moment is lost for sure.
        self.line.cut();
        self.primary.crash();
        self.line.close();
        let mut client = self.replica.client();
        // Then it has read all that the line had delivered. On a busy machine it reads later than it could.
        wait_for("the replica to miss its primary", || {
            call::<String>(&mut client, "INFO replication").contains("master_link_status:down")
        });
        call::<String>(&mut client, "REPLICAOF NO ONE");
    }
}

/// Grants until the server is gone. Returns the units of which the caller knows.
fn grants(client: &mut Connection, words: &str, waits: bool, seen: &AtomicU64) {
    loop {
        let mut pipe = redis::pipe();
        pipe.add_command(support::command(words));
        if waits {
            pipe.add_command(support::command("WAIT 1 10000"));
        }
        let Ok(replies) = pipe.query::<Vec<Value>>(client) else { return };
        let Value::Array(row) = &replies[0] else { panic!("{replies:?}") };
        assert_eq!(row[0], Value::Int(1), "a limit that is never reached");
        if !waits || replies[1] == Value::Int(1) {
            seen.fetch_add(1, SeqCst);
        }
    }
}

fn kill(lag: Duration, waits: bool, rng: &mut fastrand::Rng) -> (f64, u64) {
    let mut pair = Pair::start(lag);
    let mut clients: Vec<Connection> = (0..CALLERS).map(|_| pair.primary.client()).collect();
    let seen = AtomicU64::new(0);
    let time = Duration::from_millis(400 + rng.u64(0..400));
    let start = Instant::now();
    scope(|scope| {
        for (nth, client) in clients.iter_mut().enumerate() {
            let seen = &seen;
            scope.spawn(move || grants(client, &format!("RL.FIXED key:{nth} 1000000000 1d"), waits, seen));
        }
        sleep(time);
        pair.fail_over();
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut client = pair.replica.client();
    let known: i64 = (0..CALLERS).map(|nth| inspect(&mut client, &format!("key:{nth}"), "used").unwrap_or(0)).sum();
    let seen = seen.load(SeqCst);
    (seen as f64 / seconds, seen.saturating_sub(known as u64))
}

pub fn measure(size: &Size, seed: u64) -> Section {
    let seeds = |nth: u64| fastrand::Rng::with_seed(seed + nth);
    let repeats = if size.quick { 1 } else { 5 };
    let lags: &[(u64, bool)] = if size.quick {
        &[(10, false), (10, true)]
    } else {
        &[(0, false), (1, false), (10, false), (100, false), (1, true), (10, true)]
    };
    let kills = lags.iter().map(|&(lag_ms, waits)| {
        let all: Vec<_> = (0..repeats).map(|nth| kill(Duration::from_millis(lag_ms), waits, &mut seeds(nth))).collect();
        let per_second = median(all.iter().map(|(rate, _)| *rate));
        Kills { lag_ms, waits, per_second, lost: all.into_iter().map(|(_, lost)| lost).collect() }
    });
    Section { kills: kills.collect() }
}
