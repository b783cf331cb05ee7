//! Servers for the tests.

// Each test file uses only a part of it.
#![allow(dead_code)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client};
use rustix::process::{kill_process, Pid, Signal};
use tempfile::TempDir;

pub const DEADLINE: Duration = Duration::from_secs(20);

/// A server with the module, in a private folder. It stops when dropped.
pub struct Server {
    child: Child,
    folder: TempDir,
    url: Option<String>,
}

impl Server {
    /// Starts a server on a socket, and a connection that gives up after a second, which is long enough on a busy machine.
    pub async fn start() -> (Self, ConnectionManager) {
        let server = Self::listening(&["--port", "0", "--unixsocket", "server.sock"], None).await;
        let config =
            ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_secs(1))).set_number_of_retries(0);
        let manager = ConnectionManager::new_with_config(server.client(), config).await.expect("a connection");
        (server, manager)
    }

    /// Starts a server with these options. Without a `url` it listens on the socket `server.sock`.
    async fn listening(options: &[&str], url: Option<String>) -> Self {
        let module = std::env::var_os("REDIS_RL_MODULE")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/libredis_rl.so"), Into::into);
        let module = module.canonicalize().unwrap_or_else(|_| panic!("{} is missing: run `make build`", module.display()));
        let program = std::env::var("REDIS_RL_SERVER").unwrap_or_else(|_| "redis-server".into());
        let folder = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
        let log = std::fs::File::create(folder.path().join("log")).expect("a log file");
        let child = Command::new(&program)
            .args(options)
            .args(["--save", "", "--loadmodule"])
            .arg(module)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{program} does not run: {error}"));
        let mut server = Self { child, folder, url };
        let start = Instant::now();
        while let Err(error) = server.client().get_multiplexed_async_connection().await {
            let exited = server.child.try_wait().expect("the server's state");
            let log = std::fs::read_to_string(server.folder.path().join("log")).unwrap_or_default();
            let waits = exited.is_none() && start.elapsed() < DEADLINE;
            assert!(waits, "the server did not start: {error}, {exited:?}\n{log}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server
    }

    pub fn url(&self) -> String {
        self.url.clone().unwrap_or_else(|| format!("redis+unix://{}/server.sock", self.folder.path().display()))
    }

    pub fn client(&self) -> Client {
        Client::open(self.url()).expect("an address")
    }

    /// A connection without a time-out.
    pub async fn patient(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        self.client().get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("a running server");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("a server to kill");
        self.child.wait().expect("its end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The slots of each of three primaries.
const SHARES: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

/// Three primaries on loopback. They stop when dropped.
pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    pub async fn start() -> Self {
        let ports = free_ports(2 * SHARES.len());
        let (ports, buses) = ports.split_at(SHARES.len());
        let mut nodes = Vec::new();
        for (port, bus) in ports.iter().zip(buses) {
            let options = ["--port", port, "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-port", bus];
            nodes.push(Server::listening(&options, Some(format!("redis://127.0.0.1:{port}"))).await);
        }
        for (node, (first, last)) in nodes.iter().zip(SHARES) {
            let mut node = node.patient().await;
            let () = redis::cmd("CLUSTER")
                .arg("ADDSLOTSRANGE")
                .arg(first)
                .arg(last)
                .query_async(&mut node)
                .await
                .expect("its slots");
            let meet = ["MEET", "127.0.0.1", &ports[0], &buses[0]];
            let () = redis::cmd("CLUSTER").arg(&meet[..]).query_async(&mut node).await.expect("a meeting");
        }
        let cluster = Self { nodes };
        // Waits until each node knows all slots: a client that asked it earlier would miss some.
        let knows_all = |info: &String| info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
        eventually(async || cluster.ask_all(&["CLUSTER", "INFO"]).await.iter().all(knows_all)).await;
        cluster
    }

    pub fn owner(&self, slot: u16) -> &Server {
        let has = |share: &(u16, u16)| (share.0..=share.1).contains(&slot);
        &self.nodes[SHARES.iter().position(has).expect("one of the slots")]
    }

    async fn ask_all(&self, call: &[&str]) -> Vec<String> {
        let mut answers = Vec::new();
        for node in &self.nodes {
            let answer = redis::cmd(call[0]).arg(&call[1..]).query_async(&mut node.patient().await).await;
            answers.push(answer.expect("an answer"));
        }
        answers
    }

    /// The number of calls that the nodes have redirected.
    pub async fn moved(&self) -> u64 {
        let errors = self.ask_all(&["INFO", "errorstats"]).await;
        let count = |line: &str| line.strip_prefix("errorstat_MOVED:count=")?.trim().parse::<u64>().ok();
        errors.iter().flat_map(|errors| errors.lines().filter_map(count)).sum()
    }
}

fn free_ports(count: usize) -> Vec<String> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("an address").port().to_string()).collect()
}

pub async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < DEADLINE, "waited for too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
