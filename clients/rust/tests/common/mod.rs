//! Servers, a cluster, Sentinel, and a proxy that loses replies.

// Each test file uses only a part of it.
#![allow(dead_code)]

pub mod liar;
pub mod table;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Client, Connection};
use redis_rl_client::{redis, Limits};
use support::{call, dies_with_this_thread, free_port, info, server_program, wait_for, Server, Signal};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

pub const DEADLINE: Duration = Duration::from_secs(60);

/// Longer than a busy machine needs for a reply.
pub const LONG: Duration = Duration::from_secs(30);

/// The address of a server's socket.
pub fn url(server: &Server) -> String {
    format!("redis+unix://{}", server.socket().display())
}

/// Limits that wait for a reply for as long as a busy machine needs.
pub fn patient(server: &Server) -> Limits {
    Limits::open(url(server)).expect("an address").timeout(LONG).connect_timeout(LONG)
}

/// How many units this algorithm's command has granted, as the server counts.
pub fn granted(server: &Server, algorithm: &str) -> u64 {
    let granted = info(&mut server.client(), "everything", &format!("rl_{algorithm}_granted"));
    granted.try_into().expect("a count")
}

/// A number of `INFO everything`.
pub fn info_of(server: &Server, name: &str) -> i64 {
    info(&mut server.client(), "everything", name)
}

/// How often a server has executed a command.
pub fn executed(server: &Server, command: &str) -> u64 {
    let stats: String = call(&mut server.client(), "INFO commandstats");
    let name = format!("cmdstat_{command}:calls=").to_lowercase();
    let calls = stats.lines().find_map(|line| line.to_lowercase().strip_prefix(&name)?.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// A number that `RL.INSPECT` reports about a key, under one of these names; 0 without the key.
pub fn fact(server: &Server, key: &str, names: &[&str]) -> i64 {
    let facts: Vec<redis::Value> = match redis::cmd("RL.INSPECT").arg(key).query(&mut server.client()) {
        Ok(redis::Value::Array(facts)) => facts,
        Ok(redis::Value::Nil) => return 0,
        other => panic!("{other:?}"),
    };
    let text = |value: &redis::Value| redis::from_redis_value_ref::<String>(value).ok();
    let found = facts.chunks(2).find(|pair| text(&pair[0]).is_some_and(|name| names.contains(&name.as_str())));
    found.map_or(0, |pair| redis::from_redis_value_ref(&pair[1]).expect("a number"))
}

pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < DEADLINE, "waited for too long: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Three primaries on loopback.
pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| Server::node()).collect();
        for (index, node) in nodes.iter().enumerate() {
            let (from, to) = (index * 16_384 / 3, (index + 1) * 16_384 / 3 - 1);
            call::<()>(&mut node.client(), &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
            call::<()>(&mut node.client(), &format!("CLUSTER ADDSLOTSRANGE {from} {to}"));
            let bus: String = call::<Vec<String>>(&mut nodes[0].client(), "CONFIG GET cluster-port").remove(1);
            call::<()>(&mut node.client(), &format!("CLUSTER MEET 127.0.0.1 {} {bus}", nodes[0].port));
        }
        let cluster = Self { nodes };
        wait_for("the cluster", || {
            cluster.nodes.iter().all(|node| {
                let info: String = call(&mut node.client(), "CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            })
        });
        cluster
    }

    /// Gives a primary a replica, and waits until it has all data.
    pub fn add_replica(&self, primary: &Server) -> Server {
        let replica = Server::node();
        let bus: String = call::<Vec<String>>(&mut primary.client(), "CONFIG GET cluster-port").remove(1);
        call::<()>(&mut replica.client(), &format!("CLUSTER MEET 127.0.0.1 {} {bus}", primary.port));
        call::<()>(&mut primary.client(), "CONFIG SET repl-ping-replica-period 1");
        let id: String = call(&mut primary.client(), "CLUSTER MYID");
        wait_for("the replica to know its primary", || {
            redis::cmd("CLUSTER").arg("REPLICATE").arg(&id).query::<()>(&mut replica.client()).is_ok()
        });
        wait_for("the replica", || {
            let linked = call::<String>(&mut replica.client(), "INFO replication").contains("master_link_status:up");
            // Nodes list a replica when they have heard how far it is, which needs something that is replicated: a ping.
            let listed = |node: &Server| {
                let slots: redis::Value = call(&mut node.client(), "CLUSTER SLOTS");
                format!("{slots:?}").contains(&format!("int({})", replica.port))
            };
            linked && self.nodes.iter().all(listed)
        });
        replica
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("redis://127.0.0.1:{}/", node.port)).collect()
    }

    /// The number of calls that the nodes have redirected.
    pub fn moved(&self) -> u64 {
        let count = |node: &Server| {
            let errors: String = call(&mut node.client(), "INFO errorstats");
            errors
                .lines()
                .find_map(|line| line.strip_prefix("errorstat_MOVED:count=")?.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        self.nodes.iter().map(count).sum()
    }

    pub fn owner(&self, key: &str) -> &Server {
        let slot: usize = call(&mut self.nodes[0].client(), &format!("CLUSTER KEYSLOT {key}"));
        let has = |index: &usize| (index * 16_384 / 3..(index + 1) * 16_384 / 3).contains(&slot);
        &self.nodes[(0..3).find(has).expect("an owner")]
    }
}

/// A primary and a replica, and a sentinel that watches them.
pub struct Watched {
    pub servers: Vec<Server>,
    sentinel: Child,
    folder: TempDir,
    pub port: u16,
}

impl Watched {
    pub fn start() -> Self {
        let primary = Server::on_port(&[]);
        let replica = Server::on_port(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
        // The primary sends its changes only when the replica has confirmed that it is there.
        wait_for("the replica", || {
            call::<String>(&mut replica.client(), "INFO replication").contains("master_link_status:up")
                && call::<String>(&mut primary.client(), "INFO replication").contains("state=online")
        });
        let port = free_port();
        let folder = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
        let file = folder.path().join("sentinel.conf");
        // On a busy machine a server may be silent for seconds: the sentinel neither fails over by itself nor gives up a failover.
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {} 1\nsentinel down-after-milliseconds mymaster 60000\n\
             sentinel failover-timeout mymaster 60000\n",
            primary.port
        );
        std::fs::write(&file, text).expect("a configuration");
        let mut command = Command::new(server_program());
        dies_with_this_thread(&mut command, Signal::KILL);
        command.arg(&file).arg("--sentinel").current_dir(folder.path()).stdin(Stdio::null());
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let sentinel = command.stdout(log.try_clone().expect("the log")).stderr(log).spawn().expect("a sentinel");
        let watched = Self { servers: vec![primary, replica], sentinel, folder, port };
        wait_for("the sentinel to know the replica", || {
            let Ok(mut client) = watched.try_client() else { return false };
            let replicas = redis::cmd("SENTINEL").arg("REPLICAS").arg("mymaster").query::<Vec<Vec<String>>>(&mut client);
            let linked = |replica: &Vec<String>| replica.windows(2).any(|pair| pair == ["master-link-status", "ok"]);
            replicas.is_ok_and(|replicas| replicas.iter().any(linked))
        });
        watched
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn try_client(&self) -> redis::RedisResult<Connection> {
        Client::open(self.url())?.get_connection()
    }

    fn is_switched_to(&self, server: usize) -> bool {
        let mut client = self.try_client().expect("the sentinel");
        let primary: Vec<String> =
            redis::cmd("SENTINEL").arg("MASTER").arg("mymaster").query(&mut client).expect("a primary");
        let has = |name: &str, value: &str| primary.chunks(2).any(|pair| pair == [name, value]);
        has("port", &self.servers[server].port.to_string()) && has("flags", "master")
    }

    /// The index of the server that the sentinel names.
    pub fn primary(&self) -> usize {
        let mut client = self.try_client().expect("the sentinel");
        let address: Vec<String> =
            redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg("mymaster").query(&mut client).expect("an address");
        let port: u16 = address[1].parse().expect("a port");
        self.servers.iter().position(|server| server.port == port).expect("one of the servers")
    }

    /// Makes the sentinel name the other server, and waits until it does.
    pub fn fail_over(&self) -> usize {
        let before = self.primary();
        wait_for("the sentinel to begin a failover", || {
            let mut client = self.try_client().expect("the sentinel");
            redis::cmd("SENTINEL").arg("FAILOVER").arg("mymaster").query::<()>(&mut client).is_ok()
        });
        wait_for("the failover", || self.primary() != before);
        let after = self.primary();
        let is = |server: usize, role: &str| {
            call::<String>(&mut self.servers[server].client(), "INFO replication").contains(&format!("role:{role}"))
        };
        // The sentinel names the new primary a moment before its failover has ended.
        wait_for("the new primary", || is(after, "master") && self.is_switched_to(after));
        // The sentinel makes the old primary a replica of the new one when it has seen both for some seconds without a doubt; on a busy
        // machine that may take minutes. So the test tells it the same, and the sentinel agrees with what it then sees.
        call::<()>(&mut self.servers[before].client(), &format!("REPLICAOF 127.0.0.1 {}", self.servers[after].port));
        after
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.sentinel.kill();
        let _ = self.sentinel.wait();
        if std::thread::panicking() {
            eprintln!("The sentinel:\n{}", std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default());
        }
    }
}

/// What happens to a reply that a [`Proxy`] loses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The connection ends when the reply has arrived at the proxy.
    Close,
    /// Nothing arrives any more; the connection stays.
    Silence,
    /// The call arrives at the server when the test says so, and its reply is lost if the client is gone by then.
    Late,
}

/// Stands between a client and a server, and loses replies.
pub struct Proxy {
    pub port: u16,
    /// The replies to lose from now on.
    lose: Arc<AtomicUsize>,
    /// Whether late calls are delivered.
    deliver: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// A proxy that loses replies to commands that contain this word.
    pub async fn start(server: &Server, word: &'static str, loss: Loss) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let lose = Arc::new(AtomicUsize::new(0));
        let (socket, counter, deliver) = (server.socket(), lose.clone(), watch::Sender::new(false));
        let delivers = deliver.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                let Ok(server) = UnixStream::connect(&socket).await else { continue };
                connections.spawn(carry(client, server, word, loss, counter.clone(), delivers.subscribe()));
            }
        });
        Self { port, lose, deliver, task }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn lose(&self, replies: usize) {
        self.lose.store(replies, Ordering::SeqCst);
    }

    pub fn deliver(&self) {
        self.deliver.send_replace(true);
    }

    /// How many replies are still to be lost.
    pub fn left(&self) -> usize {
        self.lose.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    mut client: TcpStream,
    mut server: UnixStream,
    word: &str,
    loss: Loss,
    lose: Arc<AtomicUsize>,
    mut deliver: watch::Receiver<bool>,
) {
    let (mut sent, mut reply) = (vec![0; 65_536], vec![0; 65_536]);
    let mut losing = false;
    loop {
        tokio::select! {
            length = client.read(&mut sent) => {
                let Ok(length @ 1..) = length else { return };
                let has_word = sent[..length].windows(word.len()).any(|window| window == word.as_bytes());
                let less = |left: usize| left.checked_sub(1);
                let lost = has_word && lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
                losing |= lost && loss != Loss::Late;
                if lost && loss == Loss::Late {
                    let _ = deliver.wait_for(|deliver| *deliver).await;
                }
                if server.write_all(&sent[..length]).await.is_err() { return }
            }
            length = server.read(&mut reply) => {
                let Ok(length @ 1..) = length else { return };
                match (losing, loss) {
                    (true, Loss::Close) => return,
                    (true, Loss::Silence) => {}
                    _ => if client.write_all(&reply[..length]).await.is_err() { return },
                }
            }
        }
    }
}
