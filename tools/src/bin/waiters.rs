//! Measures what many waiting clients cost: the memory of each, wake-ups per second, and the latency for others. `make
//! waiters`
//!
//! For comparison it also measures `BLPOP`, the server's own blocking command.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::Connection;
use support::{call, held, info, Load, Server};

/// How many clients wait, unless the first argument says otherwise.
const WAITERS: usize = 10_000;

struct Scene {
    name: &'static str,
    /// A call that is made once.
    first: &'static str,
    /// What client number `#` calls first, and then what it calls to wait.
    before: &'static str,
    wait: &'static str,
    /// What wakes all clients at once; `None` if each wakes up by itself when its time comes.
    wake: Option<&'static str>,
}

const SCENES: [Scene; 6] = [
    Scene {
        name: "RL.GCRA, one key",
        first: "RL.GCRA key 100000 100d COST 100000",
        before: "PING",
        wait: "RL.GCRA key 100000 100d BLOCK 1d",
        wake: Some("DEL key"),
    },
    Scene {
        name: "RL.GCRA, a key each",
        first: "PING",
        before: "RL.GCRA key:# 1 1d",
        wait: "RL.GCRA key:# 1 1d BLOCK 1d",
        wake: Some("FLUSHALL"),
    },
    Scene {
        name: "RL.FIXED, a key each, due at once",
        first: "PING",
        before: "RL.FIXED key:# 1 20s ALIGN 0",
        wait: "RL.FIXED key:# 1 20s ALIGN 0 BLOCK 1d",
        wake: None,
    },
    Scene {
        name: "RL.ALL, a key each and a shared one",
        first: "PING",
        before: "RL.GCRA key:# 1 1d",
        wait: "RL.ALL 2 key:# shared GCRA 1 1d GCRA 100000 100d BLOCK 1d",
        wake: Some("FLUSHALL"),
    },
    Scene { name: "BLPOP, one key", first: "PING", before: "PING", wait: "BLPOP key 0", wake: Some("EVAL LPUSH") },
    Scene {
        name: "RL.GCRA, one key, 5000 a second",
        first: "PING",
        before: "PING",
        wait: "RL.GCRA key 5000 1 BURST 1 BLOCK 1h",
        wake: None,
    },
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let waiters = arguments.next().map_or(WAITERS, |number| number.parse().expect("a number of clients"));
    let wanted: Vec<String> = arguments.collect();
    let limit = support::raise_open_files();
    assert!(limit > waiters as u64 + 100, "only {limit} open files are allowed: raise the hard limit (ulimit -Hn)");
    println!("{waiters} clients wait.");
    let columns =
        ["a client's memory", "more as it waits", "counted as used", "idle CPU", "wake-ups", "PING meanwhile (ms)"];
    let units = ["(bytes)", "(bytes)", "(bytes)", "(percent)", "(a second)", "p50 / p99 / max"];
    for [memory, more, used, idle, wakes, ping] in [columns, units] {
        println!("{:<34} {memory:>17} {more:>17} {used:>17} {idle:>10} {wakes:>12} {ping:>22}", "");
    }
    for scene in SCENES.iter().filter(|scene| wanted.is_empty() || wanted.iter().any(|name| name == scene.name)) {
        println!("{}", scene.play(waiters));
    }
}

/// The resident memory of the server's process, in bytes. It includes the module's heap, unlike `used_memory`.
fn resident(client: &mut Connection) -> i64 {
    // The server updates this figure ten times a second.
    std::thread::sleep(Duration::from_millis(500));
    info(client, "memory", "used_memory_rss")
}

fn cpu(client: &mut Connection) -> f64 {
    let text: String = call(client, "INFO cpu");
    let field = |name: &str| -> f64 {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok()).expect("a number")
    };
    field("used_cpu_user") + field("used_cpu_sys")
}

impl Scene {
    fn play(&self, waiters: usize) -> String {
        let server = Server::with(&["--maxclients", &(waiters + 100).to_string(), "--timeout", "0"]);
        let mut client = server.client();
        let before = resident(&mut client);
        let connect = |_| UnixStream::connect(server.socket()).expect("a connection");
        let mut streams: Vec<_> = (0..waiters).map(connect).collect();
        // From here on all clients have their buffers, and all keys exist.
        exchange(&mut streams, self.before);
        call::<()>(&mut client, self.first);
        let connected = resident(&mut client);
        let counted = info(&mut client, "memory", "used_memory");
        send(&mut streams, self.wait);
        let started = Instant::now();
        let waiting = if self.wake.is_some() { waiters as i64 } else { 1 };
        support::wait_for("the clients to wait", || held(&mut client) >= waiting);
        let more = resident(&mut client);
        let counted = info(&mut client, "memory", "used_memory") - counted;

        let idle = cpu(&mut client);
        if self.wake.is_some() {
            std::thread::sleep(Duration::from_secs(2));
        }
        let idle = (cpu(&mut client) - idle) / 2.0 * 100.0;

        let load = Load::default();
        let (took, mut pings) = std::thread::scope(|scope| {
            let pinging = scope.spawn(|| ping(&server, &load));
            let end = load.ends_here();
            std::thread::sleep(Duration::from_millis(20));
            let start = match self.wake {
                Some("EVAL LPUSH") => {
                    let script = format!("for i = 1, {waiters} do redis.call('RPUSH', 'key', i) end");
                    let start = Instant::now();
                    redis::cmd("EVAL").arg(script).arg(1).arg("key").exec(&mut client).expect("a reply");
                    start
                }
                Some(wake) => {
                    let start = Instant::now();
                    call::<()>(&mut client, wake);
                    start
                }
                None => started,
            };
            receive(&mut streams);
            let took = start.elapsed();
            drop(end);
            (took, pinging.join().expect("pings"))
        });
        pings.sort();
        let ping = |permille: usize| pings[(pings.len() - 1) * permille / 1_000].as_secs_f64() * 1_000.0;
        let each = |from: i64, to: i64| (to - from) / waiters as i64;
        format!(
            "{:<34} {:>17} {:>17} {:>17} {:>10} {:>12.0} {:>22}",
            self.name,
            each(before, connected),
            each(connected, more),
            // What the server reserves for each blocked client of a module. It hardly ever touches this memory.
            counted / waiters as i64,
            if self.wake.is_some() { format!("{idle:.1}") } else { "-".into() },
            waiters as f64 / took.as_secs_f64(),
            format!("{:.2} / {:.2} / {:.2}", ping(500), ping(990), ping(1_000)),
        )
    }
}

/// The latencies of PINGs, which are sent a millisecond apart until the load ends.
fn ping(server: &Server, load: &Load) -> Vec<Duration> {
    let mut client = server.client();
    let mut times = Vec::new();
    while load.goes_on() {
        let start = Instant::now();
        call::<()>(&mut client, "PING");
        times.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    times
}

fn send(streams: &mut [UnixStream], words: &str) {
    for (index, stream) in streams.iter_mut().enumerate() {
        let line = format!("{}\r\n", words.replace('#', &index.to_string()));
        stream.write_all(line.as_bytes()).expect("a connection");
    }
}

/// Reads a reply on each connection. The replies of the scenes are so short that each arrives in one piece.
fn receive(streams: &mut [UnixStream]) {
    let mut buffer = [0; 256];
    for stream in streams {
        let len = stream.read(&mut buffer).expect("a reply");
        assert!(len > 0 && buffer[0] != b'-', "{}", String::from_utf8_lossy(&buffer[..len]));
    }
}

fn exchange(streams: &mut [UnixStream], words: &str) {
    send(streams, words);
    receive(streams);
}
