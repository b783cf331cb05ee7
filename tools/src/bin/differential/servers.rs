//! Two servers that see the same clock, and connections to both.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use support::Server;
use tempfile::TempDir;

use crate::resp::{self, NAMES};

/// A server that takes longer than this for a reply is broken.
const DEADLINE: Duration = Duration::from_secs(60);

/// A result whose error is a text: the difference, or the server that does not answer.
pub type Outcome<T> = Result<T, String>;

/// The clocks that both servers read. Only the tool moves them.
pub struct Clock {
    file: File,
    steady_us: i64,
    ahead_us: i64,
}

impl Clock {
    fn new(path: &Path, wall_us: i64) -> io::Result<Self> {
        let steady_us = 1_000_000_000;
        let file = File::create(path)?;
        let clock = Self { file, steady_us, ahead_us: wall_us - steady_us };
        clock.file.write_all_at(&clock.ahead_us.to_ne_bytes(), 8)?;
        clock.file.write_all_at(&clock.steady_us.to_ne_bytes(), 0)?;
        Ok(clock)
    }

    /// The wall clock, in microseconds since the Unix epoch.
    pub fn wall_us(&self) -> i64 {
        self.steady_us + self.ahead_us
    }

    /// Moves both clocks ahead.
    pub fn pass(&mut self, us: i64) {
        self.steady_us += us;
        self.file.write_all_at(&self.steady_us.to_ne_bytes(), 0).expect("the clock's file");
    }

    /// Sets the wall clock, and leaves the steady one.
    pub fn step_to(&mut self, wall_us: i64) {
        self.ahead_us = wall_us - self.steady_us;
        self.file.write_all_at(&self.ahead_us.to_ne_bytes(), 8).expect("the clock's file");
    }

    /// Moves the steady clock ahead by 100 ms and leaves the wall clock: the servers do their periodic work.
    pub fn tick(&mut self) {
        let wall_us = self.wall_us();
        self.pass(100_000);
        self.step_to(wall_us);
    }
}

/// The options of a pair of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Whether the append-only file is on.
    pub appends: bool,
    /// When a replica arrives: from the beginning, in the middle of the session, or never.
    pub replica: Arrival,
}

/// When a replica arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Before the first call.
    First,
    /// In the middle of the session.
    Middle,
    /// Not at all.
    Never,
}

/// Two servers of the same program, the first with the base module and the second with the one at hand.
pub struct Pair {
    servers: [Server; 2],
    /// For each, a server without the module that is sent its replication stream. No key expires there by itself.
    followers: Option<[Server; 2]>,
    /// The clocks of both.
    pub clock: Clock,
    _folder: TempDir,
}

impl Pair {
    /// Starts both.
    pub fn start(program: &str, modules: [&Path; 2], wall_us: i64, setup: Setup) -> Outcome<Self> {
        let failed = |error: io::Error| format!("the servers can't be started: {error}");
        let folder = tempfile::Builder::new().prefix("redis-rl-").tempdir().map_err(failed)?;
        let library = support::witness::build("clock", folder.path());
        let launcher = |name: &str, wall_us| {
            let [file, launcher] = ["clock", "server"].map(|part| folder.path().join(format!("{name}-{part}")));
            let clock = Clock::new(&file, wall_us)?;
            let (file, library) = (file.display(), library.display());
            let text = format!("#!/bin/sh\nCLOCK_FILE='{file}' LD_PRELOAD='{library}' exec '{program}' \"$@\"\n");
            fs::write(&launcher, text)?;
            fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755))?;
            Ok((clock, launcher.display().to_string()))
        };
        let (clock, both) = launcher("pair", wall_us).map_err(failed)?;
        let (_, long_ago) = launcher("follower", 2_000_000_000).map_err(failed)?;
        let followers = (setup.replica == Arrival::First)
            .then(|| [(); 2].map(|()| Server::of(&long_ago, false, &["--rdbcompression", "no"])));
        let servers = modules.map(|module| {
            // The servers do no work that depends on the time: they write no snapshot, ping no replica and disconnect none.
            let appends = if setup.appends { "yes" } else { "no" };
            let options = format!(
                "--rdbcompression no --appendonly {appends} --appendfsync no --auto-aof-rewrite-percentage 0 \
                 --repl-timeout 2000000000 --repl-ping-replica-period 2000000000 --repl-backlog-ttl 0 --repl-diskless-sync no \
                 --client-output-buffer-limit replica 0 0 0 --client-output-buffer-limit pubsub 0 0 0 \
                 --latency-tracking no --slowlog-log-slower-than -1 --loadmodule {} compat",
                module.display()
            );
            let options: Vec<&str> = options.split(' ').chain(["cl.throttle gcra"]).collect();
            Server::of(&both, false, &options)
        });
        Ok(Self { servers, followers, clock, _folder: folder })
    }

    /// A connection to each, which speaks this version of the protocol.
    pub fn link(&self, version: u8) -> Outcome<Link> {
        let mut link = self.bare_link()?;
        let mut hello = Vec::new();
        resp::encode(&mut hello, &["HELLO", if version == 3 { "3" } else { "2" }]);
        // The replies name the client's number, which may differ.
        link.exchange(&hello, 1)?;
        Ok(link)
    }

    /// A connection to each, on which nothing has been sent.
    pub fn bare_link(&self) -> Outcome<Link> {
        Self::connect(&self.servers)
    }

    /// Two connections to each of the followers, if there are any.
    pub fn links_to_followers(&self) -> Outcome<Option<[Link; 2]>> {
        let two = |followers| Ok([Self::connect(followers)?, Self::connect(followers)?]);
        self.followers.as_ref().map(two).transpose()
    }

    fn connect(servers: &[Server; 2]) -> Outcome<Link> {
        let connect = |server: &Server| -> io::Result<Connection> {
            let socket = UnixStream::connect(server.socket())?;
            socket.set_read_timeout(Some(DEADLINE))?;
            Ok(Connection { socket, buffer: Vec::new(), at: 0 })
        };
        let connect = |server: usize| connect(&servers[server]).map_err(|error| lost(server, &error));
        Ok(Link { ends: [connect(0)?, connect(1)?] })
    }

    /// Returns an error unless both servers still run.
    pub fn alive(&mut self) -> Outcome<()> {
        for (server, name) in self.servers.iter_mut().zip(NAMES) {
            if !server.is_alive() {
                let log = server.log();
                let lines: Vec<_> = log.lines().collect();
                return Err(format!("the {name} server has ended\n{}", lines[lines.len().saturating_sub(40)..].join("\n")));
            }
        }
        Ok(())
    }

    /// The bytes of the append-only files from `from` on. They are in the incremental file, which grows.
    pub fn appended(&self, from: u64) -> Outcome<[Vec<u8>; 2]> {
        let read = |server: &Server| -> io::Result<Vec<u8>> {
            let folder = server.dir().join("appendonlydir");
            let mut files: Vec<_> = fs::read_dir(folder)?
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
                .collect();
            files.sort();
            let path = files.pop().ok_or(ErrorKind::NotFound)?;
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            let mut bytes = vec![0; usize::try_from(length.saturating_sub(from)).unwrap_or(0)];
            file.read_exact_at(&mut bytes, from)?;
            Ok(bytes)
        };
        let read = |server: usize| read(&self.servers[server]).map_err(|error| format!("no append-only file: {error}"));
        Ok([read(0)?, read(1)?])
    }
}

/// A connection to one server.
pub struct Connection {
    socket: UnixStream,
    buffer: Vec<u8>,
    /// How many bytes of the buffer have been read.
    at: usize,
}

impl Connection {
    /// Waits for the next reply, which may be a push.
    fn next(&mut self) -> io::Result<std::ops::Range<usize>> {
        loop {
            if let Some(length) = resp::length(&self.buffer[self.at..]) {
                let range = self.at..self.at + length;
                self.at += length;
                return Ok(range);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut room = [0; 65_536];
        match self.socket.read(&mut room)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.buffer.extend_from_slice(&room[..count]);
                Ok(())
            }
        }
    }

    fn forget(&mut self) {
        self.buffer.drain(..self.at);
        self.at = 0;
    }

    /// Reads `count` bytes.
    pub fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < self.at + count {
            self.fill()?;
        }
        let bytes = self.buffer[self.at..self.at + count].to_vec();
        self.at += count;
        self.forget();
        Ok(bytes)
    }

    /// Drops up to `most` of the bytes that have been received, and returns how many.
    pub fn take_at_most(&mut self, most: usize) -> usize {
        let count = most.min(self.buffer.len() - self.at);
        self.at += count;
        self.forget();
        count
    }

    /// The bytes that have been received and not been read.
    pub fn unread(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// Reads the bytes that have arrived into the buffer, and returns whether any of them have not been read.
    pub fn has_some(&mut self) -> io::Result<bool> {
        self.socket.set_nonblocking(true)?;
        let filled = self.fill();
        self.socket.set_nonblocking(false)?;
        match filled {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(self.buffer.len() > self.at),
        }
    }
}

/// The same connection to both servers.
pub struct Link {
    /// To the base, and to the other.
    pub ends: [Connection; 2],
}

/// Replies of one server: their bytes, and where each reply ends.
pub struct Replies<'c> {
    bytes: &'c [u8],
    ranges: Vec<std::ops::Range<usize>>,
}

impl<'c> Replies<'c> {
    /// Reply `index`, together with the pushes before it.
    pub fn get(&self, index: usize) -> &'c [u8] {
        &self.bytes[self.ranges[index].clone()]
    }
}

fn lost(server: usize, error: &io::Error) -> String {
    format!("no reply of the {} server: {error}", NAMES[server])
}

impl Link {
    /// Sends the same bytes to both servers.
    pub fn send(&mut self, request: &[u8]) -> Outcome<()> {
        self.send_each([request; 2])
    }

    /// Sends each server its own bytes.
    pub fn send_each(&mut self, requests: [&[u8]; 2]) -> Outcome<()> {
        for (server, (end, request)) in self.ends.iter_mut().zip(requests).enumerate() {
            end.socket.write_all(request).map_err(|error| lost(server, &error))?;
        }
        Ok(())
    }

    /// Reads `count` replies of one server. A push counts as the beginning of the reply that follows it.
    fn ranges(&mut self, server: usize, count: usize) -> Outcome<Vec<std::ops::Range<usize>>> {
        let end = &mut self.ends[server];
        end.forget();
        let mut ranges = Vec::with_capacity(count);
        let mut from = 0;
        while ranges.len() < count {
            let range = end.next().map_err(|error| lost(server, &error))?;
            if end.buffer[range.start] != b'>' {
                ranges.push(from..range.end);
                from = range.end;
            }
        }
        Ok(ranges)
    }

    /// Sends a request of `count` commands to both, and reads the replies.
    pub fn exchange(&mut self, request: &[u8], count: usize) -> Outcome<[Replies<'_>; 2]> {
        self.send(request)?;
        let ranges = [self.ranges(0, count)?, self.ranges(1, count)?];
        let [base, new] = &self.ends;
        let [of_base, of_new] = ranges;
        Ok([Replies { bytes: &base.buffer, ranges: of_base }, Replies { bytes: &new.buffer, ranges: of_new }])
    }

    /// Sends each server its own commands, and drops the replies, none of which may be an error.
    pub fn apply(&mut self, commands: [&[Vec<u8>]; 2]) -> Outcome<()> {
        for (server, commands) in commands.into_iter().enumerate() {
            self.ends[server].socket.write_all(&commands.concat()).map_err(|error| lost(server, &error))?;
            let ranges = self.ranges(server, commands.len())?;
            for (command, range) in commands.iter().zip(ranges) {
                let reply = &self.ends[server].buffer[range];
                if reply.starts_with(b"-") {
                    let [command, reply] = [command, reply].map(|bytes| resp::readable(bytes, 400));
                    return Err(format!("a replica of the {} server can't execute {command}: {reply}", NAMES[server]));
                }
            }
        }
        Ok(())
    }

    /// Reads from both up to the reply that contains `mark`, and returns those replies for which `keep` is true.
    pub fn until(&mut self, mark: &[u8], keep: impl Fn(&[u8]) -> bool) -> Outcome<[Vec<Vec<u8>>; 2]> {
        let mut both = [Vec::new(), Vec::new()];
        for (server, (end, kept)) in self.ends.iter_mut().zip(&mut both).enumerate() {
            loop {
                let range = end.next().map_err(|error| lost(server, &error))?;
                let reply = &end.buffer[range];
                let last = reply.windows(mark.len()).any(|window| window == mark);
                if keep(reply) {
                    kept.push(reply.to_vec());
                }
                if last {
                    break;
                }
            }
            end.forget();
        }
        Ok(both)
    }

    /// Waits until both servers have run their event loops a few times: they have then read all that was sent, and have run
    /// all timers that are due.
    pub fn settle(&mut self) -> Outcome<()> {
        for _ in 0..12 {
            self.exchange(b"*1\r\n$4\r\nPING\r\n", 1)?;
        }
        Ok(())
    }
}
