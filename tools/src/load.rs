//! Load on a server, by redis-benchmark; or by a generator of our own, to prepare keys and for `MULTI`, which
//! redis-benchmark can't send; or on one connection, by a client that does hardly more than write and read. What the server reports of
//! its processor time and its memory.

use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::Connection;
use support::{call, info};

/// The number of connections: redis-benchmark's default.
pub const CONNECTIONS: usize = 50;

/// What stands for a key in the words of a case. Every key is a number with as many digits as redis-benchmark writes.
pub const KEY: &str = "#";
/// What stands for an id, which is as many digits. Each call has another one. Only the generator of our own knows it.
pub const ID: &str = "@";
const MARKS: [char; 2] = ['#', '@'];
const DIGITS: usize = 12;

/// What a load has measured.
#[derive(Clone, Copy)]
pub struct Load {
    /// Calls a second.
    pub per_second: f64,
    /// Percentiles of the time of a call, which only redis-benchmark measures.
    pub p50_ms: Option<f64>,
    /// See `p50_ms`.
    pub p99_ms: Option<f64>,
}

/// The shape of a load: each call is on a random one of this many keys, with this many calls in a pipeline.
#[derive(Clone, Copy)]
pub struct Shape {
    /// How many keys.
    pub keys: u64,
    /// How many calls are sent at once on a connection.
    pub pipeline: usize,
}

/// Makes calls by redis-benchmark.
pub fn redis_benchmark(socket: &Path, words: &str, shape: Shape, calls: u64) -> Load {
    let key = if shape.keys == 1 { format!("{:0DIGITS$}", 0) } else { "__rand_int__".into() };
    let mut command = Command::new("redis-benchmark");
    command.arg("-s").arg(socket).args(["--csv", "-c", &CONNECTIONS.to_string(), "-P", &shape.pipeline.to_string()]);
    command.args(["-n", &calls.to_string(), "-r", &shape.keys.to_string()]);
    command.args(words.split(' ').map(|word| word.replace(KEY, &key)));
    let output = command.output().expect("redis-benchmark");
    let text = String::from_utf8_lossy(&output.stdout);
    let complain = || panic!("{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        complain();
    }
    // The test's name comes first and may contain commas. Then come calls per second, average, minimum, p50, p95, p99 and
    // maximum.
    let line = text.lines().last().unwrap_or_default();
    let fields: Vec<f64> = line.rsplit(',').take(7).filter_map(|field| field.trim_matches('"').parse().ok()).collect();
    let &[_, p99, _, p50, _, _, per_second] = &fields[..] else { complain() };
    Load { per_second, p50_ms: Some(p50), p99_ms: Some(p99) }
}

/// The bytes of a call, or of several that count as one, and the positions of the digits of the key and of the id in them.
struct Template {
    bytes: Vec<u8>,
    keys: Vec<usize>,
    ids: Vec<usize>,
    /// The latest id.
    id: u64,
    /// How many calls count as one.
    calls: usize,
}

/// No two templates have ids in common.
static FIRST_ID: AtomicU64 = AtomicU64::new(0);

impl Template {
    fn new(words: &str) -> Self {
        let (id, calls) = (FIRST_ID.fetch_add(1_000_000_000, Relaxed), words.split(" ; ").count());
        let mut template = Self { bytes: Vec::new(), keys: Vec::new(), ids: Vec::new(), id, calls };
        for call in words.split(" ; ") {
            let words: Vec<&str> = call.split(' ').collect();
            template.bytes.extend(format!("*{}\r\n", words.len()).bytes());
            for word in words {
                let filled = word.replace(MARKS, &"0".repeat(DIGITS));
                template.bytes.extend(format!("${}\r\n", filled.len()).bytes());
                for (nth, (at, mark)) in word.match_indices(MARKS).enumerate() {
                    let places = if mark == KEY { &mut template.keys } else { &mut template.ids };
                    places.push(template.bytes.len() + at + nth * (DIGITS - KEY.len()));
                }
                template.bytes.extend(format!("{filled}\r\n").bytes());
            }
        }
        template
    }

    fn append(&mut self, key: u64, batch: &mut Vec<u8>) {
        self.id += 1;
        for (number, places) in [(key, &self.keys), (self.id, &self.ids)] {
            for &place in places {
                let mut rest = number;
                for digit in self.bytes[place..place + DIGITS].iter_mut().rev() {
                    *digit = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
            }
        }
        batch.extend_from_slice(&self.bytes);
    }
}

/// Makes the call once for each of these keys.
pub fn each_key(socket: &Path, words: &str, keys: Range<u64>) {
    const BATCH: u64 = 500;
    let mut template = Template::new(words);
    let mut pipe = Pipe::to(socket);
    let mut batch = Vec::new();
    for first in keys.clone().step_by(BATCH as usize) {
        let after = keys.end.min(first + BATCH);
        batch.clear();
        (first..after).for_each(|key| template.append(key, &mut batch));
        pipe.send(&batch, (after - first) as usize * template.calls);
    }
}

/// Makes calls as redis-benchmark does: with as many connections, and a pipeline on each.
pub fn own(socket: &Path, words: &str, shape: Shape, calls: u64) -> Load {
    let mut template = Template::new(words);
    let mut pipes: Vec<_> = (0..CONNECTIONS).map(|_| Pipe::to(socket)).collect();
    let mut batch = Vec::new();
    let start = Instant::now();
    let mut called = 0;
    while called < calls {
        for pipe in &mut pipes {
            pipe.receive();
            batch.clear();
            for _ in 0..shape.pipeline {
                // Spreads the calls over the keys.
                let scattered = (called + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
                template.append(scattered % shape.keys, &mut batch);
                called += 1;
            }
            pipe.write(&batch, shape.pipeline * template.calls);
        }
    }
    pipes.iter_mut().for_each(Pipe::receive);
    Load { per_second: called as f64 / start.elapsed().as_secs_f64(), p50_ms: None, p99_ms: None }
}

/// The bytes of a command on the wire; its words are divided by spaces.
pub fn line(words: &str) -> Vec<u8> {
    support::command(words).get_packed_command()
}

/// A connection with the least possible client.
pub struct Pipe {
    stream: UnixStream,
    buffer: Box<[u8]>,
    /// How many replies are still to come.
    awaited: usize,
}

impl Pipe {
    /// Connects.
    pub fn to(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Self { stream, buffer: vec![0; 1 << 16].into(), awaited: 0 }
    }

    /// Sends commands, of which there are `calls`, and reads as many replies. Panics if one is an error.
    pub fn send(&mut self, commands: &[u8], calls: usize) {
        self.write(commands, calls);
        self.receive();
    }

    fn write(&mut self, commands: &[u8], calls: usize) {
        self.stream.write_all(commands).expect("a connection");
        self.awaited = calls;
    }

    fn receive(&mut self) {
        // How many elements of arrays are still to come.
        let mut nested = 0;
        let mut start = true;
        let (mut bulk, mut len) = (0, None);
        while self.awaited > 0 || nested > 0 || bulk > 0 || !start {
            let read = self.stream.read(&mut self.buffer).expect("a reply");
            assert!(read > 0, "the server hung up");
            for &byte in &self.buffer[..read] {
                // A byte of a bulk string or of the line end after it.
                if bulk > 0 {
                    bulk -= 1;
                    continue;
                }
                match (start, byte) {
                    (true, b'-') => panic!("an error: {}", String::from_utf8_lossy(&self.buffer[..read])),
                    (true, _) => {
                        if nested > 0 {
                            nested -= 1;
                        } else {
                            self.awaited -= 1;
                        }
                        start = false;
                        len = matches!(byte, b'*' | b'$').then_some((byte, 0));
                    }
                    (false, b'\n') => {
                        start = true;
                        match len.take() {
                            Some((b'*', items)) => nested += items,
                            Some((_, bytes)) => bulk = bytes + 2,
                            None => {}
                        }
                    }
                    (false, b'-') => len = None,
                    (false, digit) => {
                        if let (Some((_, number)), b'0'..=b'9') = (&mut len, digit) {
                            *number = *number * 10 + usize::from(digit - b'0');
                        }
                    }
                }
            }
        }
    }
}

/// The processor time that the server's main thread has used.
pub fn cpu(client: &mut Connection) -> Duration {
    let text: String = call(client, "INFO cpu");
    let field = |name: &str| -> f64 {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok()).expect("a number")
    };
    Duration::from_secs_f64(field("used_cpu_user_main_thread") + field("used_cpu_sys_main_thread"))
}

/// `used_memory` after it has stopped changing: clients have disconnected, and the hash tables have grown.
pub fn settled_memory(client: &mut Connection) -> i64 {
    let deadline = Instant::now() + Duration::from_secs(10);
    let (mut last, mut same) = (0, 0);
    while same < 3 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(120));
        let memory = info(client, "memory", "used_memory");
        same = if memory == last { same + 1 } else { 0 };
        last = memory;
    }
    last
}
