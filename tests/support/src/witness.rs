//! A server with a witness: a small module beside the one under test, which notes when things happen and how much time the server had.
//!
//! What is late on a busy machine may be late because the server was not let run. The witness has a timer of a millisecond in the
//! same process: so many of its ticks between the moment at which something is due and the moment at which it happens is how
//! late the module was.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use redis::Connection;

use crate::{call, package, root, Reply, Server};

/// The path of a C source of this package, by its name without the ending.
pub fn c_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).with_extension("c")
}

/// Builds a module of tests/support/, into a folder.
pub fn build(name: &str, folder: &Path) -> PathBuf {
    let module = folder.join(name).with_extension("so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-I"])
        .arg(package(&root().join("Cargo.toml"), "redis-module").join("src/include"))
        .arg("-o")
        .arg(&module)
        .arg(c_source(name))
        .output()
        .expect("cc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    module
}

/// So many ticks a timer of the server may be late: it counts in whole milliseconds, and sets itself anew if it was too early.
pub const A_FEW: i64 = 6;

/// Up to so much of a grant's lateness is made up for.
pub const FORGIVEN_US: i64 = 100_000;

/// A server with the module under test, and with the witness.
pub struct Watched {
    // It goes first.
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
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With these options of the server.
    pub fn with(options: &[&str]) -> Self {
        Self::by(options, Server::with)
    }

    /// With these options, on a port.
    pub fn on_port(options: &[&str]) -> Self {
        Self::by(options, Server::on_port)
    }

    fn by(options: &[&str], start: impl Fn(&[&str]) -> Server) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let module = build("witness", folder.path()).display().to_string();
        // Events are told to modules only if the server is set to tell of them at all.
        let own = ["--notify-keyspace-events", "Ed", "--loadmodule", &module];
        Self { server: start(&[options, &own].concat()), _folder: folder }
    }

    pub fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// How many milliseconds' ticks the server has served between two moments.
    pub fn ticks(&self, from_us: i64, to_us: i64) -> i64 {
        call(&mut self.client(), &format!("WITNESS.TICKS {from_us} {to_us}"))
    }

    /// Fails if something that was due at one moment happened earlier, or late by more than so many ticks.
    pub fn assert_on_time(&self, what: &str, due_us: i64, at_us: i64, ticks: i64) {
        assert!(at_us >= due_us, "{what}: {} us early", due_us - at_us);
        self.assert_not_late(what, due_us, at_us, ticks);
    }

    /// Fails if something that was due at one moment, or earlier, was late by more than so many ticks.
    pub fn assert_not_late(&self, what: &str, due_us: i64, at_us: i64, ticks: i64) {
        let late = self.ticks(due_us, at_us);
        assert!(late <= ticks, "{what}: late by {late} ticks and {} us", at_us - due_us);
    }

    /// By how much the server stood still for longer than is forgiven, in sum: what flows in then is lost.
    pub fn lost_us(&self, from_us: i64, to_us: i64) -> i64 {
        call(&mut self.client(), &format!("WITNESS.STOOD {from_us} {to_us} {FORGIVEN_US}"))
    }

    /// For how long the server stood still at once, at the most, in microseconds, to one in a thousand.
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

    /// When these events happened to a key, in microseconds.
    pub fn events(&self, event: &str, key: &str) -> Vec<i64> {
        let events: Vec<(i64, String, String)> = call(&mut self.client(), "WITNESS.EVENTS");
        events.into_iter().filter(|(_, name, of)| name == event && of == key).map(|(at, ..)| at).collect()
    }

    /// Fails unless these, who were granted one after the other, were answered in their order. `grants`: the key's events of
    /// theirs. The server sends what is granted at the same moment in any order: each must be among those of its turn.
    pub fn assert_in_turn(&self, grants: &[i64], replies: &[Reply]) {
        assert_eq!(grants.len(), replies.len(), "{replies:?}");
        let granted = |reply: &Reply| grants.iter().filter(|&&at| at <= reply.at_us()).count();
        let mut turns: Vec<_> = replies.iter().map(granted).collect();
        turns.push(usize::MAX);
        for (index, turn) in turns.windows(2).enumerate() {
            // By its reply its own grant was given, and no reply tells of fewer grants than one before it. The last of those who
            // were granted together is the last grant.
            let in_turn = turn[0] > index && turn[0] <= turn[1] && (turn[0] == turn[1] || turn[0] == index + 1);
            assert!(in_turn, "{index} of {turns:?}: {replies:?}");
        }
    }
}

/// Asks a server for its time and makes a call, and asks again: the reply, and the two moments in microseconds.
pub fn timed(client: &mut Connection, words: &str) -> ([i64; 5], i64, i64) {
    let mut pipe = redis::pipe();
    pipe.cmd("TIME").add_command(crate::command(words)).cmd("TIME");
    let (before, row, after): ((i64, i64), [i64; 5], (i64, i64)) =
        pipe.query(client).unwrap_or_else(|error| panic!("{words}: {error}"));
    (row, before.0 * 1_000_000 + before.1, after.0 * 1_000_000 + after.1)
}
