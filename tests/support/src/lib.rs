//! What tests and tools share: starts servers with the module, calls them, and ends them.

mod call;
mod clock;
pub mod fleet;
mod held;
mod process;
mod server;
pub mod witness;

use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use call::{
    assert_same, call, command, error, flood_all, held, info, inspect, limit, pipe, settle, snapshot, snapshots, time_us,
    traces, watched_are_unchanged, Snapshot, Snapshots, LIMITERS,
};
pub use clock::Clocked;
pub use held::{at_once, at_once_by, replies, AllRows, AtOnce, Held, Reply};
pub use process::{dies_with_this_thread, is_process, raise_open_files, send, send_to_group, Load, Signal};
pub use server::{crowd, crowd_while, Resp, Server};

/// What takes longer than this is broken, however busy the machine is.
const DEADLINE: Duration = Duration::from_secs(60);

/// The top folder of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/support is two folders down")
}

/// Checks that a document of the checkout contains `words`. A line may end between any two of them.
#[track_caller]
pub fn assert_document_says(document: &str, words: &str) {
    let text = std::fs::read_to_string(root().join(document)).expect("a document");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(words), "{document} does not say: {words}");
}

/// The module under test: `REDIS_RL_MODULE`, or what `make build` has built.
pub fn module() -> PathBuf {
    let built = || root().join("target/release/libredis_rl.so");
    let path = std::env::var_os("REDIS_RL_MODULE").map_or_else(built, PathBuf::from);
    assert!(path.exists(), "{} is missing: run `make build`", path.display());
    path
}

/// The folder in which cargo keeps the source of the dependency `name` of the package with this manifest.
pub fn package(manifest: &Path, name: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--quiet", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .expect("cargo");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo's JSON");
    let found = metadata["packages"].as_array().expect("packages").iter().find(|package| package["name"] == name);
    let manifest = found.expect("a dependency")["manifest_path"].as_str().expect("a path");
    Path::new(manifest).parent().expect("a folder").into()
}

/// The server to test on: the program that `REDIS_RL_SERVER` names; else the link that scripts/common.sh makes on machines
/// where the server is installed under another name only; else redis-server.
pub fn server_program() -> String {
    let found = root().join("target/servers/installed/redis-server");
    let program = if found.exists() { found.display().to_string() } else { "redis-server".into() };
    std::env::var("REDIS_RL_SERVER").unwrap_or(program)
}

/// The command line client: redis-cli or valkey-cli, whichever is installed. Both can talk to any server.
pub fn cli_program() -> &'static str {
    let runs = |program: &&str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    ["redis-cli", "valkey-cli"].into_iter().find(runs).expect("redis-cli or valkey-cli")
}

/// A TCP port of the loopback interface that no process listens on. As long as this process lives, it holds the same port of UDP,
/// so that no other test gets the port before its server has started, or while the server is started again. It is below those that
/// the system gives to outgoing connections.
pub fn free_port() -> u16 {
    const FIRST: u32 = 11_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static HELD: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    loop {
        let number = std::process::id().wrapping_mul(7) + NEXT.fetch_add(1, Ordering::Relaxed);
        let address = ("127.0.0.1", (FIRST + number % COUNT) as u16);
        if let (Ok(held), Ok(_)) = (UdpSocket::bind(address), TcpListener::bind(address)) {
            HELD.lock().unwrap_or_else(PoisonError::into_inner).push(held);
            return address.1;
        }
    }
}

/// Waits until `done` returns true. Panics after a minute, naming what it has waited for.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "waited too long for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Records with ids in version 2 of the format, each with the name of its algorithm. They were written in November 2026 under a limit
/// of 10 units in 3650 days. The id `a` holds 3 units, `b` was settled from 2 units to 1, and `c` holds 1 unit. Of the leases `a` and
/// `c` hold 2 units each, and `b` was released.
pub fn records_of_version_2() -> Vec<(&'static str, Vec<u8>)> {
    // `(n)` stands for n zeros.
    let record = |text: &str| {
        let parts = text.split(['(', ')']).enumerate();
        let bytes = |(place, part): (usize, &str)| match place % 2 {
            0 => part
                .as_bytes()
                .chunks(2)
                .map(|digits| u8::from_str_radix(&String::from_utf8_lossy(digits), 16).expect("hex"))
                .collect(),
            _ => vec![0; part.parse().expect("a number")],
        };
        parts.flat_map(bytes).collect()
    };
    let lines = include_str!("../../version-2.txt").lines();
    lines.map(|line| line.split_once(' ').expect("a name")).map(|(name, text)| (name, record(text))).collect()
}
