//! Sentinel and clusters: failovers, slots that move, nodes that are lost; judged by the counters of the servers.

mod common;

use std::time::{Duration, Instant};

use common::{eventually, granted, patient, Cluster, Loss, Proxy, Watched, DEADLINE, LONG};
use redis_rl_client::redis::sentinel::{SentinelClient, SentinelServerType};
use redis_rl_client::{connection, redis, Error, Fixed, Gcra, Limit, Limits, Slide};
use support::{call, info, Server};

fn hourly(limits: &Limits, limit: u64) -> Limit<Fixed> {
    let policy = Fixed::new(&format!("{limit}/h")).expect("a policy");
    limits.limit("hourly", policy).expect("a name")
}

fn nodes(cluster: &Cluster) -> Limits {
    Limits::new(connection::Cluster::new(cluster.urls()).expect("addresses")).timeout(LONG).connect_timeout(LONG)
}

async fn used_of(limit: &Limit<Fixed>) -> u64 {
    1_000_000 - limit.peek("a").await.expect("a decision").remaining
}

/// In a cluster the crate `redis` repeats a call whose reply was lost, unless it is told not to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_too_a_call_without_an_id_is_sent_once() {
    let node = Server::node();
    call::<()>(&mut node.client(), "CLUSTER ADDSLOTSRANGE 0 16383");
    support::wait_for("the cluster", || call::<String>(&mut node.client(), "CLUSTER INFO").contains("cluster_state:ok"));
    let proxy = Proxy::start(&node, "RL.", Loss::Close).await;
    call::<()>(&mut node.client(), &format!("CONFIG SET cluster-announce-port {}", proxy.port));

    let cluster = connection::Cluster::new([proxy.url()]).expect("addresses");
    let limits = Limits::new(cluster).timeout(LONG);
    let calls = hourly(&limits, 100);
    assert!(calls.take("a").await.expect("a decision").allowed());
    proxy.lose(1);
    assert!(calls.take("a").await.expect_err("no decision").is_unavailable());
    assert_eq!((proxy.left(), granted(&node, "fixed")), (0, 2));
    // It connects again; with an id, the call is repeated.
    proxy.lose(2);
    let charge = calls.charge("a", 10).await.expect("a charge");
    assert_eq!((proxy.left(), charge.decision().remaining), (0, 88));
    charge.finish().await.expect("no loss");
    assert_eq!(calls.wait("a", "5s").await.expect("a decision").remaining, 87);
    proxy.lose(1);
    assert!(calls.wait("a", "5s").await.expect_err("no decision").is_unavailable());
    assert_eq!(calls.peek("a").await.expect("a decision").remaining, 86);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_during_a_failover_of_sentinel_are_made_once() {
    let watched = Watched::start();
    let client = SentinelClient::build(vec![watched.url()], "mymaster", None, SentinelServerType::Master);
    let limits = Limits::new(client.expect("an address")).timeout(LONG);
    let calls = hourly(&limits, 1_000_000);
    let (mut tried, mut made, mut after) = (0, 0, 0);
    let waiting = tokio::spawn({
        let line = limits.limit("line", Slide::new("1/h").expect("a policy")).expect("a name");
        async move {
            line.charge("a", 1).await.expect("a charge").finish().await.expect("no loss");
            line.charge("a", 1).wait("2h").await
        }
    });
    let first = watched.primary();
    eventually("the wait", async || info(&mut watched.servers[first].client(), "everything", "rl_waiting_clients") == 1)
        .await;
    // The charge of the line is on the replica, too, before it takes over. A new replica gets changes up to a second late.
    let replica = &watched.servers[1 - first];
    eventually("the replica", async || call::<i64>(&mut replica.client(), "EXISTS line:a") == 1).await;
    let begun = Instant::now();
    let failing = std::thread::scope(|scope| {
        let failover = scope.spawn(|| watched.fail_over());
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                while !failover.is_finished() || after < 20 {
                    let is_over = failover.is_finished();
                    tried += 1;
                    match calls.charge("a", 1).await {
                        Ok(charge) => charge.finish().await.expect("no loss"),
                        // On a busy machine, a failover may take longer than a call is repeated. And after it, calls fail at once
                        // until the one that asks the server has found it up.
                        Err(error) => {
                            assert!(error.is_unavailable() && begun.elapsed() < DEADLINE, "{error}");
                            tokio::time::sleep(Duration::from_millis(5)).await;
                            continue;
                        }
                    }
                    after += u64::from(is_over);
                    made += 1;
                }
            });
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
    assert!(used <= tried, "{used} charged, {tried} called");
    assert!(used >= 20, "{used}");
    // The call that waited has moved to the new primary.
    eventually("the wait", async || info(&mut new.client(), "everything", "rl_waiting_clients") == 1).await;
    call::<()>(&mut new.client(), "DEL line:a");
    waiting.await.expect("no panic").expect("a charge").finish().await.expect("no loss");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_follow_a_slot_that_moves() {
    let cluster = Cluster::start();
    let limits = nodes(&cluster);
    let calls = limits.limit("{moving}", Fixed::new("100/h").expect("a policy")).expect("a name");
    let line = limits.limit("{moving}line", Fixed::new("1/h").expect("a policy")).expect("a name");
    assert_eq!(calls.take("a").await.expect("a decision").remaining, 99);
    assert_eq!(line.take("a").await.expect("a decision").remaining, 0);
    let source = cluster.owner("{moving}");
    let waiters = |node: &Server| info(&mut node.client(), "everything", "rl_waiting_clients");
    // One has an id, the other does not.
    let waiting = tokio::spawn({
        let line = line.clone();
        async move { line.charge("a", 1).wait("2h").await }
    });
    eventually("the wait", async || waiters(source) == 1).await;
    assert_eq!(line.take("c").await.expect("a decision").remaining, 0);
    let without_id = tokio::spawn({
        let line = line.clone();
        async move { line.wait("c", "2h").await }
    });
    eventually("the waits", async || waiters(source) == 2).await;
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
    // The calls that waited got TRYAGAIN, and wait at the new node.
    eventually("the waits", async || waiters(target) == 2).await;
    call::<()>(&mut target.client(), "DEL {moving}line:a {moving}line:c");
    waiting.await.expect("no panic").expect("a charge").finish().await.expect("no loss");
    assert!(without_id.await.expect("no panic").expect("a decision").allowed());

    // Keys of different slots are refused before a call is made.
    let other = limits.limit("other", Gcra::new("10/m").expect("a policy")).expect("a name");
    let apart = limits.all([calls.rule("a"), other.rule("a")]).await;
    assert!(matches!(apart, Err(Error::InvalidKey(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_during_a_failover_of_a_cluster_are_made_once() {
    let cluster = Cluster::start();
    let at = cluster.nodes.iter().position(|node| node.port == cluster.owner("{a}").port).expect("the owner");
    let replica = cluster.add_replica(&cluster.nodes[at]);
    let limits = nodes(&cluster);
    let calls = limits.limit("{a}calls", Fixed::new("1000000/h").expect("a policy"));
    let calls = calls.expect("a name");
    let used = |server: &Server| {
        let mut client = server.client();
        call::<()>(&mut client, "READONLY");
        let peek: Vec<u64> = call(&mut client, "RL.PEEK FIXED {a}calls:a 1000000 1h");
        1_000_000 - peek[2]
    };
    // Charges until a condition holds, and a few after it.
    let charges = async |done: &dyn Fn() -> bool| {
        let (mut made, mut after) = (0, 0);
        while after < 20 {
            after += u64::from(done());
            calls.charge("a", 1).await.expect("a charge").finish().await.expect("no loss");
            made += 1;
        }
        made
    };
    // By the operator: the old primary hands over all that it has granted. Each charge is there once.
    let mut made = charges(&|| true).await;
    call::<()>(&mut replica.client(), "CLUSTER FAILOVER");
    let is_primary = |server: &Server| call::<String>(&mut server.client(), "INFO replication").contains("role:master");
    made += charges(&|| is_primary(&replica)).await;
    assert_eq!(used(&replica), made);

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

/// Longer than any time-out of a reply. Two clients stand in line behind a denial that ends after more than a minute. Its name comes
/// first, so that it begins first, and the other tests run beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_keeps_its_place_in_line_for_more_than_a_minute() {
    let (server, cluster) = (Server::on_port(&[]), Cluster::start());
    let (one, nodes) = (patient(&server), nodes(&cluster));
    let owner = cluster.owner("{line}");
    let lines = [("{line}one", one, &server), ("{line}", nodes, owner)];
    let waiting = async |server: &Server| info(&mut server.client(), "everything", "rl_waiting_clients");
    let mut waits = Vec::new();
    for (name, limits, server) in &lines {
        let line = limits.limit(name, Fixed::new("2/62s").expect("a policy")).expect("a name");
        assert!(line.take("a").cost(2).await.expect("a decision").allowed());
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
    assert_eq!((granted(&server, "fixed"), granted(owner, "fixed")), (3, 3));
}
