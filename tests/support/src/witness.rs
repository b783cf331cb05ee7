//! A server with a second module, the witness. It records when keyspace events happen, and it has a timer that ticks each
//! millisecond.
//!
//! On a busy machine an event may be late because the system did not run the server. The witness's timer runs in the same
//! process and is late for the same reason. So tests measure lateness in ticks: those between the moment at which an event
//! is due and the moment at which it happens.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use redis::Connection;

use crate::{call, package, root, Reply, Server};

/// Compiles a C source of this package, a module or a library to preload, and returns the path of what it becomes, in `folder`.
pub fn build(name: &str, folder: &Path) -> PathBuf {
    static HEADERS: OnceLock<PathBuf> = OnceLock::new();
    let module = folder.join(name).with_extension("so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-I"])
        .arg(HEADERS.get_or_init(|| package(&root().join("Cargo.toml"), "redis-module").join("src/include")))
        .arg("-o")
        .arg(&module)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(name).with_extension("c"))
        .arg("-ldl")
        .output()
        .expect("cc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    module
}

/// How many ticks late an event may be that a timer of the server causes. The server counts in whole milliseconds, and sets
/// a timer anew that fires a little too early.
pub const A_FEW: i64 = 6;

/// The most by which a grant may be late without delaying those after it: `MAX_LATENESS` of the module.
pub const MAX_LATENESS_US: i64 = 100_000;

/// A server with the module under test and the witness.
pub struct Watched {
    // Declared before the folder, so that it is dropped first.
    server: Server,
    _folder: tempfile::TempDir,
}

impl Deref for Watched {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Watched {
    /// As [`Server::start`].
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// As [`Server::with`].
    pub fn with(options: &[&str]) -> Self {
        Self::by(options, Server::with)
    }

    /// As [`Server::on_port`].
    pub fn on_port(options: &[&str]) -> Self {
        Self::by(options, Server::on_port)
    }

    fn by(options: &[&str], start: impl Fn(&[&str]) -> Server) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let module = build("witness", folder.path()).display().to_string();
        // The server notifies modules of events only if it is configured to notify clients of some.
        let own = ["--notify-keyspace-events", "Ed", "--loadmodule", &module];
        Self { server: start(&[options, &own].concat()), _folder: folder }
    }

    /// This server, and a client that is connected to it.
    pub fn and_client(self) -> (Self, Connection) {
        let client = self.client();
        (self, client)
    }

    /// The server.
    pub fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// How many ticks there were between two moments.
    pub fn ticks(&self, from_us: i64, to_us: i64) -> i64 {
        call(&mut self.client(), &format!("WITNESS.TICKS {from_us} {to_us}"))
    }

    /// Panics if an event that was due at `due_us` happened earlier, or more than `ticks` ticks later.
    pub fn assert_on_time(&self, what: &str, due_us: i64, at_us: i64, ticks: i64) {
        assert!(at_us >= due_us, "{what}: {} us early", due_us - at_us);
        self.assert_not_late(what, due_us, at_us, ticks);
    }

    /// Panics if an event that was due at `due_us` or earlier happened more than `ticks` ticks after that.
    pub fn assert_not_late(&self, what: &str, due_us: i64, at_us: i64, ticks: i64) {
        let late = self.ticks(due_us, at_us);
        assert!(late <= ticks, "{what}: late by {late} ticks and {} us", at_us - due_us);
    }

    /// The sum of the times for which the server stood still, each less [`MAX_LATENESS_US`]. What a limiter regains in them
    /// is lost for clients that wait.
    pub fn lost_us(&self, from_us: i64, to_us: i64) -> i64 {
        self.stood_us(from_us, to_us, MAX_LATENESS_US)
    }

    /// The sum of the times for which the server stood still, each less `longer_us`.
    pub fn stood_us(&self, from_us: i64, to_us: i64, longer_us: i64) -> i64 {
        call(&mut self.client(), &format!("WITNESS.STOOD {from_us} {to_us} {longer_us}"))
    }

    /// The longest time for which the server stood still, in microseconds, up to a millisecond too long.
    pub fn longest_stop_us(&self, from_us: i64, to_us: i64) -> i64 {
        let mut client = self.client();
        let mut stood = |longer: i64| call::<i64>(&mut client, &format!("WITNESS.STOOD {from_us} {to_us} {longer}"));
        let (mut least, mut most) = (0, to_us - from_us + 10_000_000);
        while most - least > 1_000 {
            let middle = (least + most) / 2;
            if stood(middle) > 0 {
                least = middle;
            } else {
                most = middle;
            }
        }
        most
    }

    /// The times of these events of a key, in microseconds.
    pub fn events(&self, event: &str, key: &str) -> Vec<i64> {
        let events: Vec<(i64, String, String)> = call(&mut self.client(), "WITNESS.EVENTS");
        events.into_iter().filter(|(_, name, of)| name == event && of == key).map(|(at, ..)| at).collect()
    }

    /// Panics unless clients were answered in the order of `replies`. `grants` are the times at which the calls were
    /// granted. The server may send the replies to calls that are granted at the same moment in any order.
    pub fn assert_in_turn(&self, grants: &[i64], replies: &[Reply]) {
        assert_eq!(grants.len(), replies.len(), "{replies:?}");
        let granted = |reply: &Reply| grants.iter().filter(|&&at| at <= reply.at_us()).count();
        let mut turns: Vec<_> = replies.iter().map(granted).collect();
        turns.push(usize::MAX);
        for (index, turn) in turns.windows(2).enumerate() {
            // `turn` counts the grants before a reply. It includes the reply's own grant, never falls from one reply to the
            // next, and is the same for calls that were granted together: the number of the last of them.
            let in_turn = turn[0] > index && turn[0] <= turn[1] && (turn[0] == turn[1] || turn[0] == index + 1);
            assert!(in_turn, "{index} of {turns:?}: {replies:?}");
        }
    }
}

/// Makes a call, and returns its reply and the server's time in microseconds before and after it.
pub fn timed(client: &mut Connection, words: &str) -> ([i64; 5], i64, i64) {
    let mut pipe = redis::pipe();
    pipe.cmd("TIME").add_command(crate::command(words)).cmd("TIME");
    let (before, row, after): ((i64, i64), [i64; 5], (i64, i64)) =
        pipe.query(client).unwrap_or_else(|error| panic!("{words}: {error}"));
    (row, before.0 * 1_000_000 + before.1, after.0 * 1_000_000 + after.1)
}
