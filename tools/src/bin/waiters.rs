//! Measures what many waiting clients cost: the memory of each, wake-ups per second, and the latency for others. `make
//! waiters`
//!
//! For comparison it also measures `BLPOP`, the server's own blocking command.

use std::time::{Duration, Instant};

use redis::Connection;
use support::{call, held, info, Load, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

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

const SCENES: [Scene; 8] = [
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
        name: "RL.GCRA, a key each, of another limit",
        first: "PING",
        before: "RL.GCRA key:# 1 1d",
        wait: "RL.GCRA key:# 2 1d BURST 1 BLOCK 1d",
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
    Scene {
        name: "RL.ALL, the shared key refuses",
        first: "RL.GCRA shared 100000 100d COST 100000",
        before: "PING",
        wait: "RL.ALL 2 key:# shared GCRA 1 1d GCRA 100000 100d BLOCK 1d",
        wake: Some("DEL shared"),
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
    let head = |row: [&str; 8]| {
        let [name, memory, more, heap, used, idle, wakes, ping] = row;
        println!("{name:<38} {memory:>17} {more:>17} {heap:>17} {used:>17} {idle:>10} {wakes:>12} {ping:>22}");
    };
    let columns =
        "|a client's memory|more as it waits|of it the module's|counted as used|idle CPU|wake-ups|PING meanwhile (ms)";
    let units = "|(bytes)|(bytes)|(bytes)|(bytes)|(percent)|(a second)|p50 / p99 / max";
    for line in [columns, units] {
        let columns: Vec<_> = line.split('|').collect();
        head(columns.try_into().expect("eight columns"));
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

/// The resident memory of the process's C heap, in bytes. The module's data are there, but not the server's, which has an
/// allocator of its own. 0 if the server's allocator replaces that of the C library, as Debian's Redis does: then the two
/// cannot be told apart.
fn heap(server: &Server) -> i64 {
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", server.pid())).expect("the process");
    let heap = maps.split_once("[heap]").map_or("", |(_, heap)| heap);
    let kilobytes = heap.lines().find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?.parse::<i64>().ok());
    kilobytes.unwrap_or(0) * 1_024
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let before = resident(&mut client);
        let mut streams = connect(&runtime, &server, waiters);
        // From here on all clients have their buffers, and all keys exist.
        exchange(&runtime, &mut streams, self.before);
        call::<()>(&mut client, self.first);
        let connected = resident(&mut client);
        let heap_before = heap(&server);
        let counted = info(&mut client, "memory", "used_memory");
        send(&runtime, &mut streams, self.wait);
        let started = Instant::now();
        let waiting = if self.wake.is_some() { waiters as i64 } else { 1 };
        support::wait_for("the clients to wait", || held(&mut client) >= waiting);
        let more = resident(&mut client);
        let heap = heap(&server);
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
            receive(&runtime, &mut streams);
            let took = start.elapsed();
            drop(end);
            (took, pinging.join().expect("pings"))
        });
        pings.sort();
        let ping = |permille: usize| pings[(pings.len() - 1) * permille / 1_000].as_secs_f64() * 1_000.0;
        let each = |from: i64, to: i64| (to - from) / waiters as i64;
        format!(
            "{:<38} {:>17} {:>17} {:>17} {:>17} {:>10} {:>12.0} {:>22}",
            self.name,
            each(before, connected),
            each(connected, more),
            each(heap_before, heap),
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

fn connect(runtime: &Runtime, server: &Server, waiters: usize) -> Vec<UnixStream> {
    let path = server.dir().join("server.sock");
    runtime.block_on(async {
        let mut streams = Vec::with_capacity(waiters);
        while streams.len() < waiters {
            match UnixStream::connect(&path).await {
                Ok(stream) => streams.push(stream),
                // The backlog of the server's socket is full.
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        streams
    })
}

fn send(runtime: &Runtime, streams: &mut [UnixStream], words: &str) {
    runtime.block_on(async {
        for (index, stream) in streams.iter_mut().enumerate() {
            let line = format!("{}\r\n", words.replace('#', &index.to_string()));
            stream.write_all(line.as_bytes()).await.expect("a connection");
        }
    });
}

/// Reads a reply on each connection. The replies of the scenes are so short that each arrives in one piece.
fn receive(runtime: &Runtime, streams: &mut [UnixStream]) {
    runtime.block_on(async {
        let mut buffer = [0; 256];
        for stream in streams {
            let len = stream.read(&mut buffer).await.expect("a reply");
            assert!(len > 0 && buffer[0] != b'-', "{}", String::from_utf8_lossy(&buffer[..len]));
        }
    });
}

fn exchange(runtime: &Runtime, streams: &mut [UnixStream], words: &str) {
    send(runtime, streams, words);
    receive(runtime, streams);
}
