//! Tests what docs/clients.md says about the crate `redis`: how it waits, and how it finds the node of a key in a cluster.

mod support;

use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use axum::Router;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{cmd, AsyncConnectionConfig, Cmd, RedisResult, Value};
use redis_rl_tower::{OnDown, Policy, RateLimitLayer};
use support::{eventually, Cluster, Server};
use tower_service::Service;

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
        let mut line = Self { admin: server.patient().await };
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
        eventually(async || self.info("blocked_clients").await == waiting).await;
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
    let (server, _) = Server::start().await;
    let mut line = Line::new(&server).await;
    assert_eq!(waits(&mut line, server.patient().await).await, (1, 1));
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(7205)));
    let connection = server.client().get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
    assert_eq!(waits(&mut line, connection).await, (1, 1));
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
    let (server, _) = Server::start().await;
    let client = server.client();
    gives_up(&server, || client.get_multiplexed_async_connection()).await;
    gives_up(&server, || client.get_connection_manager()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_connection_waits_by_default_and_leaves_after_its_read_timeout() {
    let (server, _) = Server::start().await;
    let mut line = Line::new(&server).await;
    let client = server.client();
    let wait = move |timeout: Option<Duration>| {
        let mut connection = client.get_connection().expect("a connection");
        connection.set_read_timeout(timeout).expect("a time-out");
        command(WAIT).query::<Vec<i64>>(&mut connection)
    };
    let hurried = wait.clone();
    let lost = tokio::task::spawn_blocking(move || hurried(Some(Duration::from_millis(300)))).await.expect("no panic");
    assert!(lost.expect_err("no reply").is_timeout());
    line.has(0).await;
    let reply = tokio::task::spawn_blocking(move || wait(None));
    line.has(1).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(line.let_in().await, 1);
    assert_eq!(reply.await.expect("no panic").expect("a reply")[0], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_it_takes_the_first_argument_for_the_key_unless_it_is_given_a_route() {
    let cluster = Cluster::start().await;
    let client = ClusterClient::new(cluster.nodes.iter().map(Server::url).collect::<Vec<_>>()).expect("addresses");
    let mut connection = client.get_async_connection().await.expect("a connection");
    let calls = [
        ("RL.GCRA # 10 60", true),
        ("RL.INSPECT #", true),
        ("RL.PEEK GCRA # 10 60", false),
        ("RL.ALL 2 #:a #:b GCRA 10 60 FIXED 100 1d", false),
    ];
    for (call, finds_it) in calls {
        for routed in [false, true] {
            let before = cluster.moved().await;
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
            let moved = cluster.moved().await - before;
            assert_eq!(moved == 0, finds_it || routed, "{call}: {moved}");
        }
    }

    // The layer of the recipe: the key is the first argument of its command.
    let before = cluster.moved().await;
    let policy = Policy::new("GCRA", 1, Duration::from_secs(3600));
    let key = |request: &Request<Body>| request.headers()["x-user"].to_str().expect("text").to_string();
    let layer = RateLimitLayer::new(connection.clone(), policy, key, OnDown::Closed);
    let mut app = Router::new().route("/", get(async || "hello")).layer(layer);
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        for n in 0..60 {
            let request = Request::get("/").header("x-user", format!("user:{n}")).body(Body::empty()).expect("a request");
            assert_eq!(app.call(request).await.expect("a response").status(), status);
        }
    }
    assert_eq!(cluster.moved().await, before);

    // A wait in the cluster: with a longer time-out, on a separate connection.
    let client = ClusterClient::builder(cluster.nodes.iter().map(Server::url).collect::<Vec<_>>())
        .response_timeout(Duration::from_secs(7205))
        .build()
        .expect("addresses");
    let slot = command("CLUSTER KEYSLOT line").query_async(&mut connection).await.expect("a slot");
    let mut line = Line::new(cluster.owner(slot)).await;
    assert_eq!(waits(&mut line, client.get_async_connection().await.expect("a connection")).await, (1, 1));
    // With the default settings it waits, too.
    assert_eq!(waits(&mut line, connection).await, (1, 1));
}
