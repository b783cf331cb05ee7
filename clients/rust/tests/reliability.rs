//! Lost replies, long waits, abandoned waits, servers that are down, slots that move: judged by the counters of the server.

mod common;

use std::future::IntoFuture;
use std::time::Duration;

use common::{eventually, granted, speaking, url, Cluster, Loss, Proxy, Watched};
use redis_rl_client::connection::{Connection, Sentinel, Server as OneServer};
use redis_rl_client::redis::cluster_read_routing::RandomReplicaStrategy;
use redis_rl_client::redis::sentinel::{SentinelClient, SentinelServerType};
use redis_rl_client::{redis, Error, Fixed, Gcra, Lease, Limit, Limits, OnDown, Slide};
use support::{call, info, Server, Signal};

const LONG: Duration = Duration::from_secs(30);

/// Limits that wait for a reply for as long as a busy machine needs.
fn patient(server: &Server) -> Limits {
    Limits::new(OneServer::new(url(server)).expect("an address").response_timeout(LONG)).patience(LONG)
}

fn hourly(limits: &Limits, limit: u64) -> Limit<Fixed> {
    let policy = Fixed::new((limit, Duration::from_secs(3600))).expect("a policy");
    limits.limit("hourly", policy).expect("a name")
}

async fn remaining(server: &Server, limit: u64, key: &str) -> u64 {
    hourly(&patient(server), limit).peek(key).await.expect("a decision").remaining
}

fn through(proxy: &Proxy) -> Limits {
    let server = OneServer::new(proxy.url()).expect("an address").response_timeout(Duration::from_secs(2));
    Limits::new(server).patience(Duration::from_secs(20))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_an_id_is_sent_once_although_its_reply_is_lost() {
    let server = Server::start();
    for loss in [Loss::Close, Loss::Silence] {
        let proxy = Proxy::start(&server, "RL.FIXED", loss).await;
        let calls = hourly(&through(&proxy).patience(Duration::from_secs(2)), 100);
        let before = granted(&server, "fixed");
        proxy.lose(1);
        assert!(calls.take("a").await.expect_err("no decision").is_down());
        assert_eq!(granted(&server, "fixed"), before + 1);
        proxy.lose(1);
        assert!(calls.wait("a", "10s").await.expect_err("no decision").is_down());
        assert_eq!(granted(&server, "fixed"), before + 2);
        assert!(calls.take("a").await.expect("a decision").allowed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_with_an_id_is_repeated_and_charged_once() {
    let server = Server::start();
    for loss in [Loss::Close, Loss::Silence] {
        call::<()>(&mut server.client(), "FLUSHALL");
        let proxy = Proxy::start(&server, "RL.", loss).await;
        let limits = through(&proxy);
        let calls = hourly(&limits, 100);
        proxy.lose(2);
        let charge = calls.charge("a", 10).await.expect("a charge");
        assert_eq!((proxy.left(), charge.decision().granted, charge.decision().remaining), (0, 10, 90));
        assert_eq!(remaining(&server, 100, "a").await, 90);
        // The reply to the settlement is lost: the second one gets nil, and the excess is not charged twice.
        proxy.lose(1);
        assert_eq!(charge.settle(15).await.expect("a cost"), None);
        assert_eq!((proxy.left(), remaining(&server, 100, "a").await), (0, 85));

        proxy.lose(1);
        let charge = calls.charge("a", 5).wait("20s").await.expect("a charge");
        assert_eq!((proxy.left(), remaining(&server, 100, "a").await), (0, 80));
        proxy.lose(1);
        assert_eq!(charge.release().await, None);
        assert_eq!((proxy.left(), remaining(&server, 100, "a").await), (0, 85));

        proxy.lose(1);
        let all = limits.all([calls.rule("a").cost(3)]).id("request-1").await.expect("a decision");
        assert_eq!((proxy.left(), all.granted, remaining(&server, 100, "a").await), (0, true, 82));

        let jobs = limits.limit("jobs", Lease::new(2, "30s").expect("a policy")).expect("a name");
        proxy.lose(1);
        let held = jobs.hold("a").await.expect("a lease");
        assert_eq!((proxy.left(), held.decision().remaining), (0, 1));
        proxy.lose(1);
        held.release().await.expect("a release that was repeated");
        assert_eq!((proxy.left(), jobs.peek("a").await.expect("a decision").remaining), (0, 2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repetition_ends_with_the_patience() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "RL.", Loss::Close).await;
    let calls = hourly(&through(&proxy).patience(Duration::from_millis(300)), 100);
    proxy.lose(1_000_000);
    assert!(calls.charge("a", 10).id("job-7").await.expect_err("no decision").is_down());
    let sent = 1_000_000 - proxy.left();
    assert!((2..100).contains(&sent), "{sent}");
    // The program may repeat the call with its id. Without an id of the program, what was charged is released.
    assert_eq!(remaining(&server, 100, "a").await, 90);
    assert!(calls.charge("a", 10).await.expect_err("no decision").is_down());
    eventually("the release", async || remaining(&server, 100, "a").await == 90).await;
    proxy.lose(0);
    assert_eq!(hourly(&patient(&server), 100).charge("a", 10).id("job-7").await.expect("a charge").keep().remaining, 90);
}

/// In a cluster the crate `redis` repeats a call whose reply was lost, unless it is told not to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_too_a_call_without_an_id_is_sent_once() {
    let node = Server::node();
    call::<()>(&mut node.client(), "CLUSTER ADDSLOTSRANGE 0 16383");
    support::wait_for("the cluster", || call::<String>(&mut node.client(), "CLUSTER INFO").contains("cluster_state:ok"));
    let proxy = Proxy::start(&node, "RL.", Loss::Close).await;
    call::<()>(&mut node.client(), &format!("CONFIG SET cluster-announce-port {}", proxy.port));

    let cluster = redis_rl_client::connection::Cluster::new([proxy.url()]).expect("addresses");
    let limits = Limits::new(cluster).patience(Duration::from_secs(20));
    let calls = hourly(&limits, 100);
    assert!(calls.take("a").await.expect("a decision").allowed());
    proxy.lose(1);
    assert!(calls.take("a").await.expect_err("no decision").is_down());
    assert_eq!((proxy.left(), granted(&node, "fixed")), (0, 2));
    // It connects again; with an id, the call is repeated.
    proxy.lose(2);
    let charge = calls.charge("a", 10).await.expect("a charge");
    assert_eq!((proxy.left(), charge.keep().remaining), (0, 88));
    assert_eq!(calls.wait("a", "5s").await.expect("a decision").remaining, 87);
    proxy.lose(1);
    assert!(calls.wait("a", "5s").await.expect_err("no decision").is_down());
    assert_eq!(calls.peek("a").await.expect("a decision").remaining, 86);
}

/// Takes the only unit, waits for it for longer than the default time-outs, and frees it.
async fn waits(server: &Server, limits: Limits) {
    call::<()>(&mut server.client(), "FLUSHALL");
    let line = hourly(&limits, 1);
    assert!(line.take("line").await.expect("a decision").allowed());
    let waiting = tokio::spawn({
        let line = line.clone();
        async move { line.wait("line", "2h").await }
    });
    eventually("the wait", async || info(&mut server.client(), "everything", "rl_waiting_clients") == 1).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = granted(server, "fixed");
    call::<()>(&mut server.client(), "DEL hourly:line");
    assert!(waiting.await.expect("no panic").expect("a decision").allowed());
    assert_eq!(granted(server, "fixed"), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_longer_than_the_default_time_outs() {
    let server = Server::start();
    waits(&server, Limits::open(url(&server)).expect("an address")).await;
    let client = redis::Client::open(url(&server)).expect("an address");
    let own = || OneServer::new(url(&server)).expect("an address");
    let manager = client.get_connection_manager().await.expect("a connection");
    waits(&server, Limits::new(manager.clone()).waits_with(own())).await;
    let shared = client.get_multiplexed_async_connection().await.expect("a connection");
    waits(&server, Limits::new(shared).waits_with(own())).await;
    // Without a client for waits, the caller is told at once.
    let alone = hourly(&Limits::new(manager).on_down(OnDown::Open), 1);
    assert!(matches!(alone.wait("line", "1s").await, Err(Error::NoClient)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_dropped_leaves_the_line_uncharged() {
    let server = Server::start();
    let limits = patient(&server);
    let line = hourly(&limits, 1);
    assert!(line.take("line").await.expect("a decision").allowed());
    let has = |waiting| {
        let server = &server;
        async move || info(&mut server.client(), "everything", "rl_waiting_clients") == waiting
    };
    let jobs = limits.limit("jobs", Lease::new(1, "1h").expect("a policy")).expect("a name");
    let lease = jobs.hold("a").await.expect("a lease");
    let waits: [tokio::task::JoinHandle<()>; 4] = [
        tokio::spawn(IntoFuture::into_future(line.wait("line", "2h")).map_drop()),
        tokio::spawn(IntoFuture::into_future(line.charge("line", 1).wait("2h")).map_drop()),
        tokio::spawn(IntoFuture::into_future(limits.all([line.rule("line")]).wait("2h")).map_drop()),
        tokio::spawn(IntoFuture::into_future(jobs.hold("a").wait("2h")).map_drop()),
    ];
    eventually("the waits", has(4)).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    eventually("the waiters to leave", has(0)).await;
    let before = granted(&server, "fixed");
    lease.release().await.expect("a lease");
    call::<()>(&mut server.client(), "DEL hourly:line");
    assert!(line.take("line").await.expect("a decision").allowed());
    assert_eq!(granted(&server, "fixed"), before + 1);
    assert_eq!(jobs.peek("a").await.expect("a decision").remaining, 1);
}

/// Waits for a future, and drops what it returns.
trait MapDrop: std::future::Future + Sized {
    async fn map_drop(self) {
        drop(self.await);
    }
}

impl<F: std::future::Future> MapDrop for F {}

/// A wait that is on its way when it is dropped: its release, on another connection, arrives first and finds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_arrives_after_its_release_is_released_again() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "BLOCK", Loss::Late).await;
    let limits = Limits::new(OneServer::new(proxy.url()).expect("an address")).patience(LONG);
    let calls = hourly(&limits, 100);
    let jobs = limits.limit("jobs", Lease::new(100, "1h").expect("a policy")).expect("a name");
    proxy.lose(4);
    let waits: [tokio::task::JoinHandle<()>; 4] = [
        tokio::spawn(calls.charge("a", 1).wait("2h").into_future().map_drop()),
        tokio::spawn(jobs.hold("a").wait("2h").into_future().map_drop()),
        tokio::spawn(limits.admit([jobs.rule("b"), calls.rule("b")]).estimate(1).wait("2h").into_future().map_drop()),
        tokio::spawn(limits.all([jobs.rule("c"), calls.rule("c")]).wait("2h").into_future().map_drop()),
    ];
    eventually("the calls", async || proxy.left() == 0).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    // All of them are granted, although no one waits for them, and all of them are released.
    eventually("the grants", async || (granted(&server, "fixed"), granted(&server, "lease")) == (3, 3)).await;
    for key in ["a", "b", "c"] {
        let free = async || {
            let jobs = jobs.peek(key).await.expect("a decision").remaining;
            remaining(&server, 100, key).await == 100 && jobs == 100
        };
        eventually("the release", free).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dropped_is_released_in_the_background() {
    let server = Server::start();
    let limits = patient(&server);
    let calls = hourly(&limits, 100);
    let charge = calls.charge("a", 10).await.expect("a charge");
    assert_eq!(remaining(&server, 100, "a").await, 90);
    drop(charge);
    eventually("the release", async || remaining(&server, 100, "a").await == 100).await;
    let mut charge = calls.charge("a", 10).await.expect("a charge");
    charge.set_used(25).expect("a cost");
    drop(charge);
    eventually("the settlement", async || remaining(&server, 100, "a").await == 75).await;
    let jobs = limits.limit("jobs", Lease::new(1, "1h").expect("a policy")).expect("a name");
    drop(jobs.hold("a").await.expect("a lease"));
    eventually("the release", async || jobs.peek("a").await.expect("a decision").remaining == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_until_it_is_lost() {
    let mut server = Server::on_port(&[]);
    let limits = patient(&server);
    let jobs = limits.limit("jobs", Lease::new(1, "1500ms").expect("a policy")).expect("a name");
    let held = jobs.hold("a").await.expect("a lease");
    // Longer than the time to live: without renewals, the lease would have lapsed.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!held.is_lost());
    assert_eq!(jobs.peek("a").await.expect("a decision").remaining, 0);
    assert_eq!(held.run(async { 7 }).await.expect("a lease"), 7);
    assert_eq!(jobs.peek("a").await.expect("a decision").remaining, 1);

    // Its key is deleted: the next renewal is denied, and the future is dropped.
    let held = jobs.hold("a").await.expect("a lease");
    call::<()>(&mut server.client(), "DEL jobs:a");
    let never = std::future::pending::<()>();
    let lost = tokio::time::timeout(common::DEADLINE, held.run(never)).await.expect("an end");
    assert!(matches!(lost, Err(Error::LeaseLost)));

    // The server is gone: no renewal is answered for a whole time to live.
    let held = jobs.hold("a").await.expect("a lease");
    server.crash();
    tokio::time::timeout(common::DEADLINE, held.lost()).await.expect("an end");
    assert!(held.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_goes_on_when_the_server_is_back() {
    let mut server = Server::on_port(&[]);
    for protocol in ["resp2", "resp3"] {
        let address = format!("redis://127.0.0.1:{}/?protocol={protocol}", server.port);
        let limits = Limits::new(OneServer::new(address.as_str()).expect("an address").response_timeout(LONG));
        let calls = hourly(&limits, 1000);
        assert!(calls.take("a").await.expect("a decision").counted);
        server.crash();
        assert!(calls.take("a").await.expect_err("no decision").is_down());
        let open = hourly(&limits.clone().on_down(OnDown::Open), 1000);
        let decision = open.take("a").cost(2).await.expect("a decision");
        assert_eq!((decision.granted, decision.counted, decision.headers().len()), (2, false, 0));
        server.restart();
        // The first call after the restart is granted: each call connects if there is no connection.
        assert!(calls.take("a").await.expect("a decision").counted, "{protocol}");
        assert!(open.take("a").await.expect("a decision").counted);
        server.crash_and_restart();
        if protocol == "resp3" {
            // The connection reports its end, and then the next call connects again. Until then a call may fail.
            eventually("a decision", async || calls.take("a").await.is_ok_and(|decision| decision.counted)).await;
        } else {
            // A call with an id is repeated on a new connection.
            calls.charge("a", 1).await.expect("a charge").keep();
        }
    }
    // A server that hangs: the call ends with the patience.
    server.signal(support::Signal::STOP);
    let calls = hourly(&Limits::open(url(&server)).expect("an address").patience(Duration::from_millis(300)), 1000);
    assert!(calls.take("a").await.expect_err("no decision").is_down());
    server.signal(support::Signal::CONT);
}

async fn used_of(limit: &Limit<Fixed>) -> u64 {
    1_000_000 - limit.peek("a").await.expect("a decision").remaining
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_during_a_failover_of_sentinel_are_made_once() {
    let watched = Watched::start();
    let client = SentinelClient::build(vec![watched.url()], "mymaster", None, SentinelServerType::Master);
    let limits = Limits::new(Sentinel::new(client.expect("an address"))).patience(LONG);
    let calls = hourly(&limits, 1_000_000);
    let (mut made, mut after) = (0, 0);
    let waiting = tokio::spawn({
        let line = limits.limit("line", Slide::new("1/h").expect("a policy")).expect("a name");
        async move {
            line.charge("a", 1).await.expect("a charge").keep();
            line.charge("a", 1).wait("2h").await
        }
    });
    let first = watched.primary();
    eventually("the wait", async || info(&mut watched.servers[first].client(), "everything", "rl_waiting_clients") == 1)
        .await;
    // The charge of the line is on the replica, too, before it takes over. A new replica gets changes up to a second late.
    let replica = &watched.servers[1 - first];
    eventually("the replica", async || call::<i64>(&mut replica.client(), "EXISTS line:a") == 1).await;
    let failing = std::thread::scope(|scope| {
        let failover = scope.spawn(|| watched.fail_over());
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                while !failover.is_finished() || after < 20 {
                    after += u64::from(failover.is_finished());
                    calls.charge("a", 1).await.expect("a charge").keep();
                    made += 1;
                }
            })
        });
        failover.join().expect("a failover")
    });
    assert_ne!(failing, first);
    assert!(made > 20);
    let new = &watched.servers[failing];
    let used = used_of(&hourly(&patient(new), 1_000_000)).await;
    // The connection leads to the new primary.
    assert_eq!(used_of(&calls).await, used);
    // What the old primary granted and had not replicated is lost; nothing is charged twice.
    assert!(used <= made, "{used} charged, {made} granted");
    assert!(used >= 20, "{used}");
    // The call that waited has moved to the new primary.
    eventually("the wait", async || info(&mut new.client(), "everything", "rl_waiting_clients") == 1).await;
    call::<()>(&mut new.client(), "DEL line:a");
    waiting.await.expect("no panic").expect("a charge").keep();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_follow_a_slot_that_moves() {
    let cluster = Cluster::start();
    let slow = |builder: redis::cluster::ClusterClientBuilder| builder.response_timeout(LONG);
    let limits =
        Limits::new(redis_rl_client::connection::Cluster::with(cluster.urls(), slow).expect("addresses")).patience(LONG);
    let calls = limits.limit("{moving}", Fixed::new("100/h").expect("a policy")).expect("a name");
    let line = limits.limit("{moving}:line", Fixed::new("1/h").expect("a policy")).expect("a name");
    assert_eq!(calls.take("a").await.expect("a decision").remaining, 99);
    assert_eq!(line.take("a").await.expect("a decision").remaining, 0);
    let waiting = tokio::spawn({
        let line = line.clone();
        async move { line.charge("a", 1).wait("2h").await }
    });

    let source = cluster.owner("{moving}");
    eventually("the wait", async || info(&mut source.client(), "everything", "rl_waiting_clients") == 1).await;
    let target = cluster.nodes.iter().find(|node| node.port != source.port).expect("another node");
    let slot: u16 = call(&mut source.client(), "CLUSTER KEYSLOT {moving}");
    let [from, to]: [String; 2] = [source, target].map(|node| call(&mut node.client(), "CLUSTER MYID"));
    call::<()>(&mut target.client(), &format!("CLUSTER SETSLOT {slot} IMPORTING {from}"));
    call::<()>(&mut source.client(), &format!("CLUSTER SETSLOT {slot} MIGRATING {to}"));
    // A key that the old node still has, and one that it does not have: ASK.
    assert_eq!(calls.take("a").await.expect("a decision").remaining, 98);
    assert_eq!(calls.take("new").await.expect("a decision").remaining, 99);
    assert_eq!(calls.wait("newer", "5s").await.expect("a decision").remaining, 99);
    assert_eq!(calls.peek("new").await.expect("a decision").remaining, 99);
    let keys: Vec<String> = call(&mut source.client(), &format!("CLUSTER GETKEYSINSLOT {slot} 100"));
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(target.port).arg("").arg(0).arg(10_000).arg("REPLACE").arg("KEYS").arg(keys);
    let () = migrate.query(&mut source.client()).expect("OK");
    for node in [target, source].into_iter().chain(&cluster.nodes) {
        call::<()>(&mut node.client(), &format!("CLUSTER SETSLOT {slot} NODE {to}"));
    }
    // The first call is told MOVED, and follows; the next ones go to the new node at once.
    assert_eq!(calls.take("a").await.expect("a decision").remaining, 97);
    assert_eq!(calls.wait("a", "5s").await.expect("a decision").remaining, 96);
    let before = cluster.moved();
    assert_eq!(calls.take("a").await.expect("a decision").remaining, 95);
    assert_eq!(calls.wait("a", "5s").await.expect("a decision").remaining, 94);
    let all = limits.all([calls.rule("a"), line.rule("b")]).await.expect("a decision");
    assert!(all.granted);
    assert_eq!(cluster.moved(), before);
    // The call that waited was told TRYAGAIN, and waits at the new node.
    eventually("the wait", async || info(&mut target.client(), "everything", "rl_waiting_clients") == 1).await;
    call::<()>(&mut target.client(), "DEL {moving}:line:a");
    waiting.await.expect("no panic").expect("a charge").keep();

    // Keys of different slots are refused before a call is made.
    let other = limits.limit("other", Gcra::new("10/m").expect("a policy")).expect("a name");
    let apart = limits.all([calls.rule("a"), other.rule("a")]).await;
    assert!(matches!(apart, Err(Error::InvalidKey(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_a_cluster_that_the_program_has() {
    let cluster = Cluster::start();
    let client = redis::cluster::ClusterClient::builder(cluster.urls()).retries(0).build().expect("addresses");
    let connection = client.get_async_connection().await.expect("a connection");
    assert!(Connection::has_slots(&connection));
    let limits = Limits::new(connection).patience(LONG);
    let calls = hourly(&limits, 10);
    let before = cluster.moved();
    for key in 0..50 {
        assert!(calls.take(key.to_string()).await.expect("a decision").allowed());
        assert_eq!(calls.peek(key.to_string()).await.expect("a decision").remaining, 9);
    }
    assert_eq!(cluster.moved(), before);
}

/// With default settings of this crate and of the crate `redis`. Two clients stand in line behind a denial that ends after more than
/// a minute. Its name comes first, so that it begins first, and the other tests run beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_default_wait_keeps_its_place_for_more_than_a_minute() {
    let (server, cluster) = (Server::on_port(&[]), Cluster::start());
    let one = |protocol: &str| {
        Limits::open(format!("redis://127.0.0.1:{}/?protocol={protocol}", server.port)).expect("an address")
    };
    let nodes = redis_rl_client::connection::Cluster::new(cluster.urls()).expect("addresses");
    let owner = cluster.owner("{line}");
    let lines = [
        ("{line}:two", one("resp2"), &server),
        ("{line}:three", one("resp3"), &server),
        ("{line}", Limits::new(nodes), owner),
    ];
    let waiting = async |server: &Server| info(&mut server.client(), "everything", "rl_waiting_clients");
    let mut waits = Vec::new();
    for (name, limits, server) in &lines {
        let line = limits.limit(name, Fixed::new("2/62s").expect("a policy")).expect("a name");
        // On a busy machine, the first call may take longer than the default patience.
        eventually("a decision", async || line.take("a").cost(2).await.is_ok()).await;
        let from: (u64, u64) = call(&mut server.client(), "TIME");
        let before = waiting(server).await;
        for place in 1..=2 {
            let line = line.clone();
            waits.push((*server, from, tokio::spawn(async move { line.wait("a", "10m").await })));
            eventually("the wait", async || waiting(server).await == before + place).await;
        }
    }
    for (index, (server, from, wait)) in waits.into_iter().enumerate() {
        let decision = wait.await.expect("no panic").expect("a decision");
        // The first in line is granted first, and leaves a unit to the second.
        assert_eq!((decision.granted, decision.remaining), (1, 1 - index as u64 % 2), "{index}");
        let now: (u64, u64) = call(&mut server.client(), "TIME");
        assert!(now.0 - from.0 >= 60, "{index}: {now:?} {from:?}");
    }
    assert_eq!((granted(&server, "fixed"), granted(owner, "fixed")), (6, 3));
}

/// How often a server has executed a command.
fn executed(server: &Server, command: &str) -> u64 {
    let stats: String = call(&mut server.client(), "INFO commandstats");
    let name = format!("cmdstat_{command}:calls=").to_lowercase();
    let calls = stats.lines().find_map(|line| line.to_lowercase().strip_prefix(&name)?.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_cluster_answer_peek_if_they_are_let() {
    let cluster = Cluster::start();
    let owner = cluster.owner("{a}");
    let replica = cluster.add_replica(owner);
    for protocol in ["resp2", "resp3"] {
        let urls = || cluster.urls().into_iter().map(|url| speaking(&url, protocol));
        let reading = |builder: redis::cluster::ClusterClientBuilder| {
            builder.response_timeout(LONG).read_routing_strategy(RandomReplicaStrategy)
        };
        for (peek_replica, at_the_replica) in [(false, false), (true, true)] {
            let limits = Limits::new(redis_rl_client::connection::Cluster::with(urls(), reading).expect("addresses"));
            let limits = limits.patience(LONG).peek_replica(peek_replica);
            let calls = limits.limit("{a}:calls", Fixed::new("1000/h").expect("a policy")).expect("a name");
            let decision = calls.take("a").await.expect("a decision");
            // Its effect arrives at the replica.
            eventually("the effect", async || calls.peek("a").await.is_ok_and(|peek| peek.remaining == decision.remaining))
                .await;
            let count = || [owner, &replica].map(|server| executed(server, "rl.peek"));
            if at_the_replica {
                // The connection to the replica may not be there yet.
                let first = count();
                eventually("a peek at the replica", async || {
                    calls.peek("a").await.expect("a decision");
                    count()[1] > first[1]
                })
                .await;
            }
            let before = count();
            for _ in 0..20 {
                assert_eq!(calls.peek("a").await.expect("a decision").remaining, decision.remaining);
            }
            let after = count();
            let peeks = [after[0] - before[0], after[1] - before[1]];
            assert_eq!(peeks, if at_the_replica { [0, 20] } else { [20, 0] }, "{protocol}");
            // All other calls go to the primary.
            assert_eq!(calls.take("a").await.expect("a decision").remaining, decision.remaining - 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_during_a_failover_of_a_cluster_are_made_once() {
    for protocol in ["resp2", "resp3"] {
        let cluster = Cluster::start();
        let at = cluster.nodes.iter().position(|node| node.port == cluster.owner("{a}").port).expect("the owner");
        let replica = cluster.add_replica(&cluster.nodes[at]);
        let urls = cluster.urls().into_iter().map(|url| speaking(&url, protocol));
        let slow = |builder: redis::cluster::ClusterClientBuilder| builder.response_timeout(Duration::from_secs(5));
        let connection = redis_rl_client::connection::Cluster::with(urls, slow).expect("addresses");
        let limits = Limits::new(connection).patience(Duration::from_secs(60));
        let calls = limits.limit("{a}:calls", Fixed::new((1_000_000, Duration::from_secs(3600))).expect("a policy"));
        let calls = calls.expect("a name");
        let used = |server: &Server| {
            let mut client = server.client();
            call::<()>(&mut client, "READONLY");
            let peek: Vec<u64> = call(&mut client, "RL.PEEK FIXED {a}:calls:a 1000000 1h");
            1_000_000 - peek[2]
        };
        // Charges until a condition holds, and a few after it.
        let charges = async |done: &dyn Fn() -> bool| {
            let (mut made, mut after) = (0, 0);
            while after < 20 {
                after += u64::from(done());
                calls.charge("a", 1).await.expect("a charge").keep();
                made += 1;
            }
            made
        };
        // By the operator: the old primary hands over all that it has granted. Each charge is there once.
        let mut made = charges(&|| true).await;
        call::<()>(&mut replica.client(), "CLUSTER FAILOVER");
        let is_primary = |server: &Server| call::<String>(&mut server.client(), "INFO replication").contains("role:master");
        made += charges(&|| is_primary(&replica)).await;
        assert_eq!(used(&replica), made, "{protocol}");

        // The primary is lost: what it had not replicated is lost with it. Nothing is charged twice.
        let old = &cluster.nodes[at];
        eventually("the replica", async || {
            let linked = call::<String>(&mut old.client(), "INFO replication").contains("master_link_status:up");
            linked && used(old) == made
        })
        .await;
        drop(replica);
        let mut client = cluster.nodes[at].client();
        let takes = tokio::task::spawn_blocking(move || {
            // Calls meet a primary that is gone first.
            std::thread::sleep(Duration::from_millis(500));
            call::<()>(&mut client, "CLUSTER FAILOVER TAKEOVER");
        });
        made += charges(&|| true).await;
        takes.await.expect("a failover");
        let used = used(&cluster.nodes[at]);
        assert!(used <= made && used >= made - 20, "{used} charged, {made} granted");
    }
}

/// A server that hangs for longer than the default time-outs, while the program has more patience than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_its_reply_as_long_as_the_patience() {
    let (server, cluster) = (Server::on_port(&[]), Cluster::start());
    let nodes = || redis_rl_client::connection::Cluster::new(cluster.urls()).expect("addresses");
    let one = || Limits::open(url(&server)).expect("an address");
    let owner = cluster.owner("hourly:a");
    for (server, limits, connected) in [(&server, one(), true), (&server, one(), false), (owner, Limits::new(nodes()), true)]
    {
        let calls = hourly(&limits.patience(LONG), 100);
        // Otherwise the connection is opened while the server hangs.
        if connected {
            calls.take("a").await.expect("a decision");
        }
        server.signal(Signal::STOP);
        let [take, charge, wait] = [calls.clone(), calls.clone(), calls];
        let late = [
            tokio::spawn(async move { take.take("a").await }),
            tokio::spawn(async move { Ok(charge.charge("a", 1).await?.keep()) }),
            tokio::spawn(async move { Ok(wait.charge("a", 1).wait("10s").await?.keep()) }),
        ];
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        server.signal(Signal::CONT);
        for call in late {
            assert!(call.await.expect("no panic").expect("a decision").counted);
        }
    }
    // A shorter time-out of the connection holds: the call ends while the server hangs.
    let brief = OneServer::new(url(&server)).expect("an address").response_timeout(Duration::from_millis(200));
    let calls = hourly(&Limits::new(brief).patience(Duration::from_secs(600)), 100);
    calls.peek("a").await.expect("a decision");
    server.signal(Signal::STOP);
    let ended = tokio::time::timeout(common::DEADLINE, calls.take("a")).await;
    server.signal(Signal::CONT);
    assert!(ended.expect("an end").expect_err("no decision").is_down());
}
