//! The cache of denials: judged by the number of calls that the server has had.

mod common;

use std::time::Duration;

use common::{eventually, url, Cluster};
use redis_rl_client::connection::Server as OneServer;
use redis_rl_client::{redis, Cached, Fixed, Gcra, Limits};
use support::{call, Server};

const LONG: Duration = Duration::from_secs(30);

fn patient(server: &Server) -> Limits {
    Limits::new(OneServer::new(url(server)).expect("an address").response_timeout(LONG)).patience(LONG)
}

/// How often this command was called.
fn calls(server: &Server, command: &str) -> u64 {
    let stats: String = call(&mut server.client(), "INFO commandstats");
    let line = stats.lines().find(|line| line.to_lowercase().starts_with(&format!("cmdstat_rl.{command}:")));
    let count = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse().ok();
    line.and_then(count).unwrap_or(0)
}

async fn denied(cache: &Cached<Fixed>, key: &str) {
    assert!(cache.take(key, 1).await.expect("a decision").denied());
    eventually("the denial", async || !cache.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_key_is_not_asked_again_until_it_changes() {
    let server = Server::start();
    let limits = patient(&server);
    let limit = limits.limit("hourly", Fixed::new("5/h").expect("a policy")).expect("a name");
    let cache = limits.cached(&limit);
    assert!(cache.take("a", 5).await.expect("a decision").allowed());
    denied(&cache, "a").await;
    let before = calls(&server, "fixed");
    for cost in 1..100 {
        let decision = cache.take("a", cost).await.expect("a decision");
        assert!(decision.denied() && decision.counted && decision.wait_ms > Some(3_500_000), "{decision:?}");
        assert!(decision.reset_ms > 3_500_000);
    }
    assert_eq!(calls(&server, "fixed"), before);
    // Other keys are asked.
    assert!(cache.take("b", 1).await.expect("a decision").allowed());

    // Units that come back, a key that is deleted, and all keys: each ends the denial.
    limit.refund("a", 2).await.expect("a decision");
    eventually("the invalidation", async || cache.is_empty()).await;
    assert!(cache.take("a", 2).await.expect("a decision").allowed());
    for end in ["DEL hourly:a", "FLUSHALL"] {
        denied(&cache, "a").await;
        call::<redis::Value>(&mut server.client(), end);
        eventually("the invalidation", async || cache.is_empty()).await;
        assert!(cache.take("a", 5).await.expect("a decision").allowed(), "{end}");
    }

    // A lower cost than that which was denied is asked.
    limit.refund("a", 2).await.expect("a decision");
    assert!(cache.take("a", 3).await.expect("a decision").denied());
    eventually("the denial", async || !cache.is_empty()).await;
    assert!(cache.take("a", 4).await.expect("a decision").denied());
    assert!(cache.take("a", 1).await.expect("a decision").allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_ends_with_its_wait_and_with_the_connection() {
    let server = Server::start();
    let limits = patient(&server);
    let limit = limits.limit("fast", Gcra::new("2/s").expect("a policy")).expect("a name");
    let cache = limits.cached(&limit);
    assert!(cache.take("a", 2).await.expect("a decision").allowed());
    let decision = cache.take("a", 1).await.expect("a decision");
    assert!(decision.denied());
    tokio::time::sleep(decision.wait().expect("a wait")).await;
    // No other call took the unit.
    assert!(cache.take("a", 1).await.expect("a decision").allowed());

    let limit = limits.limit("hourly", Fixed::new("5/h").expect("a policy")).expect("a name");
    let cache = limits.cached(&limit);
    assert!(cache.take("a", 5).await.expect("a decision").allowed());
    denied(&cache, "a").await;
    call::<i64>(&mut server.client(), "CLIENT KILL TYPE normal SKIPME yes");
    eventually("the end of the connection", async || cache.is_empty()).await;
    // The cache opens another one.
    eventually("a decision", async || cache.take("a", 1).await.is_ok_and(|decision| decision.denied())).await;
    eventually("the denial", async || {
        let _ = cache.take("a", 1).await;
        !cache.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_remembers_so_many_keys_and_forgets_the_oldest() {
    let server = Server::start();
    let limits = patient(&server);
    let limit = limits.limit("hourly", Fixed::new("1/h").expect("a policy")).expect("a name");
    let cache = limits.cached(&limit).keys(3);
    for (index, key) in ["a", "b", "c"].into_iter().enumerate() {
        assert!(limit.take(key).await.expect("a decision").allowed());
        assert!(cache.take(key, 1).await.expect("a decision").denied());
        eventually("the denial", async || cache.len() == index + 1).await;
    }
    // `a` is used, so `b` is the oldest.
    assert!(cache.take("a", 1).await.expect("a decision").denied());
    assert!(limit.take("d").await.expect("a decision").allowed());
    assert!(cache.take("d", 1).await.expect("a decision").denied());
    eventually("the denial", async || cache.len() == 3).await;
    let before = calls(&server, "fixed");
    for key in ["a", "c", "d"] {
        assert!(cache.take(key, 1).await.expect("a decision").denied());
    }
    assert_eq!(calls(&server, "fixed"), before);
    assert!(cache.take("b", 1).await.expect("a decision").denied());
    assert_eq!(calls(&server, "fixed"), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_and_without_tracking() {
    let cluster = Cluster::start();
    let slow = |builder: redis::cluster::ClusterClientBuilder| builder.response_timeout(LONG);
    let limits =
        Limits::new(redis_rl_client::connection::Cluster::with(cluster.urls(), slow).expect("addresses")).patience(LONG);
    let limit = limits.limit("hourly", Fixed::new("1/h").expect("a policy")).expect("a name");
    let cache = limits.cached(&limit);
    for key in 0..20 {
        let key = key.to_string();
        assert!(cache.take(&key, 1).await.expect("a decision").allowed());
        assert!(cache.take(&key, 1).await.expect("a decision").denied());
    }
    eventually("the denials", async || cache.len() == 20).await;
    let all = || cluster.nodes.iter().map(|node| calls(node, "fixed")).sum::<u64>();
    let before = all();
    for key in 0..20 {
        assert!(cache.take(key.to_string(), 1).await.expect("a decision").denied());
    }
    assert_eq!(all(), before);
    limit.refund("7", 1).await.expect("a decision");
    eventually("the invalidation", async || cache.len() == 19).await;
    assert!(cache.take("7", 1).await.expect("a decision").allowed());

    // A connection that can open no other: nothing is remembered, and each call goes to the server.
    let server = Server::start();
    let client = redis::Client::open(url(&server)).expect("an address");
    let limits = Limits::new(client.get_connection_manager().await.expect("a connection"));
    let cache = limits.cached(&limits.limit("hourly", Fixed::new("1/h").expect("a policy")).expect("a name"));
    assert!(cache.take("a", 1).await.expect("a decision").allowed());
    for _ in 0..10 {
        assert!(cache.take("a", 1).await.expect("a decision").denied());
    }
    assert_eq!(calls(&server, "fixed"), 11);
    assert!(cache.is_empty());
}
