//! Tests what docs/clients.md says about the crate `redis`: how it waits, and how it finds the node of a key in a cluster.

mod common;

use std::future::Future;
use std::time::Duration;

use common::{eventually, url, Cluster};
use redis_rl_client::redis;
use redis_rl_client::redis::aio::{ConnectionLike, MultiplexedConnection};
use redis_rl_client::redis::cluster::ClusterClient;
use redis_rl_client::redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis_rl_client::redis::{cmd, AsyncConnectionConfig, Client, Cmd, RedisResult, Value};
use support::Server;

fn client(server: &Server) -> Client {
    Client::open(url(server)).expect("an address")
}

async fn with_timeout(server: &Server, timeout: Option<Duration>) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(timeout);
    client(server).get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
}

fn command(words: &str) -> Cmd {
    let mut words = words.split(' ');
    let mut command = cmd(words.next().expect("a name"));
    command.arg(words.collect::<Vec<_>>());
    command
}

/// A key whose only unit is taken for an hour, and a connection that reads its state.
struct Line {
    admin: MultiplexedConnection,
}

const TAKE: &str = "RL.FIXED line 1 1h";
const WAIT: &str = "RL.FIXED line 1 1h BLOCK 2h";

impl Line {
    async fn new(server: &Server) -> Self {
        let mut line = Self { admin: with_timeout(server, None).await };
        assert_eq!(line.ask::<Vec<i64>>(TAKE).await[0], 1);
        line
    }

    async fn ask<T: redis::FromRedisValue>(&mut self, words: &str) -> T {
        command(words).query_async(&mut self.admin).await.expect("an answer")
    }

    async fn info(&mut self, name: &str) -> u64 {
        let info: String = self.ask("INFO everything").await;
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok();
        info.lines().find_map(value).expect("such a line")
    }

    async fn has(&mut self, waiting: u64) {
        eventually("the waits", async || self.info("blocked_clients").await == waiting).await;
    }

    /// Frees the unit for the first waiter, and returns the number of charged units.
    async fn let_in(&mut self) -> u64 {
        let before = self.info("rl_fixed_granted").await;
        let () = self.ask("DEL line").await;
        self.has(0).await;
        self.info("rl_fixed_granted").await - before
    }
}

/// Waits until a task on this connection is in the queue, frees a unit, and returns the reply and the number of charged units.
async fn waits(line: &mut Line, mut connection: impl ConnectionLike + Send + 'static) -> (i64, u64) {
    let _ = command("DEL line").query_async::<()>(&mut line.admin).await;
    let _ = line.ask::<Value>(TAKE).await;
    let reply = tokio::spawn(async move { command(WAIT).query_async::<Vec<i64>>(&mut connection).await });
    line.has(1).await;
    // Longer than the default time-out.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let charged = line.let_in().await;
    (reply.await.expect("no panic").expect("a reply")[0], charged)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_longer_response_timeout_it_waits_and_is_charged_once() {
    let server = Server::start();
    let mut line = Line::new(&server).await;
    assert_eq!(waits(&mut line, with_timeout(&server, None).await).await, (1, 1));
    assert_eq!(waits(&mut line, with_timeout(&server, Some(Duration::from_secs(7205))).await).await, (1, 1));
}

/// Gives up a wait, and ends it on the server in each possible way.
async fn gives_up<C: ConnectionLike, F: Future<Output = RedisResult<C>>>(server: &Server, connect: impl Fn() -> F) {
    let mut line = Line::new(server).await;
    for end in ["close", "unblock", "neither"] {
        let mut connection = connect().await.expect("a connection");
        let id: u64 = command("CLIENT ID").query_async(&mut connection).await.expect("a number");
        let lost: RedisResult<Value> = command(WAIT).query_async(&mut connection).await;
        assert!(lost.expect_err("no reply").is_timeout());
        line.has(1).await;
        // It delays the commands behind it.
        let behind: RedisResult<Value> = command("PING").query_async(&mut connection).await;
        assert!(behind.expect_err("no reply").is_timeout());
        match end {
            "close" => drop(connection),
            "unblock" => line.ask(&format!("CLIENT UNBLOCK {id}")).await,
            _ => {
                assert_eq!(line.let_in().await, 1, "the waiter is charged although no program reads its reply");
                continue;
            }
        }
        let before = line.info("rl_fixed_granted").await;
        line.has(0).await;
        let () = line.ask("DEL line").await;
        let () = line.ask(TAKE).await;
        assert_eq!(line.info("rl_fixed_granted").await, before + 1, "{end}: only the new call is charged");
    }
    let () = line.ask("DEL line").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_it_gives_up_and_the_waiter_stays_until_its_connection_is_closed_or_it_is_unblocked() {
    let server = Server::start();
    let client = client(&server);
    gives_up(&server, || client.get_multiplexed_async_connection()).await;
    gives_up(&server, || client.get_connection_manager()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_connection_waits_by_default_and_after_its_read_timeout_stays_until_it_is_dropped() {
    let server = Server::start();
    let mut line = Line::new(&server).await;
    let client = client(&server);
    let wait = move |timeout: Option<Duration>| {
        let mut connection = client.get_connection().expect("a connection");
        connection.set_read_timeout(timeout).expect("a time-out");
        let reply = command(WAIT).query::<Vec<i64>>(&mut connection);
        (reply, connection)
    };
    let hurried = wait.clone();
    let timed_out = tokio::task::spawn_blocking(move || hurried(Some(Duration::from_millis(300)))).await;
    let (lost, connection) = timed_out.expect("no panic");
    assert!(lost.expect_err("no reply").is_timeout());
    line.has(1).await;
    drop(connection);
    line.has(0).await;
    let reply = tokio::task::spawn_blocking(move || wait(None).0);
    line.has(1).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(line.let_in().await, 1);
    assert_eq!(reply.await.expect("no panic").expect("a reply")[0], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_it_takes_the_first_argument_for_the_key_unless_it_is_given_a_route() {
    let cluster = Cluster::start();
    let client = ClusterClient::new(cluster.urls()).expect("addresses");
    let mut connection = client.get_async_connection().await.expect("a connection");
    let calls = [
        ("RL.GCRA # 10 60", true),
        ("RL.INSPECT #", true),
        ("RL.PEEK GCRA # 10 60", false),
        ("RL.ALL 2 #:a #:b GCRA 10 60 FIXED 100 1d", false),
    ];
    for (call, finds_it) in calls {
        for routed in [false, true] {
            let before = cluster.moved();
            for n in 0..60 {
                let key = format!("{{user:{n}}}");
                let call = command(&call.replace('#', &key));
                let reply = if routed {
                    let route = Route::with_key(&key, SlotAddr::Master);
                    let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                    connection.route_command(call, route).await
                } else {
                    call.query_async(&mut connection).await
                };
                reply.expect("it follows");
            }
            let moved = cluster.moved() - before;
            assert_eq!(moved == 0, finds_it || routed, "{call}: {moved}");
        }
    }

    // A wait in the cluster: with a longer time-out, on a separate connection.
    let client =
        ClusterClient::builder(cluster.urls()).response_timeout(Duration::from_secs(7205)).build().expect("addresses");
    let mut line = Line::new(cluster.owner("line")).await;
    assert_eq!(waits(&mut line, client.get_async_connection().await.expect("a connection")).await, (1, 1));
    // With the default settings it waits, too.
    assert_eq!(waits(&mut line, connection).await, (1, 1));
}
