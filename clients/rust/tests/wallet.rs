//! The wallet: what is spent in the process never exceeds what the server has charged.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{eventually, url, Cluster, Loss, Proxy};
use redis_rl_client::connection::Server as OneServer;
use redis_rl_client::{redis, Error, Fixed, Gcra, Lease, Limit, Limits, OnDown, Policy, Slide, Wallet};
use support::{call, Server};

const LONG: Duration = Duration::from_secs(30);

fn patient(server: &Server) -> Limits {
    Limits::new(OneServer::new(url(server)).expect("an address").response_timeout(LONG)).patience(LONG)
}

fn hourly(limits: &Limits, limit: u64) -> Limit<Slide> {
    limits.limit("hourly", Slide::new((limit, Duration::from_secs(3600))).expect("a policy")).expect("a name")
}

/// The units of a key that are in use, as the server counts them.
async fn used(server: &Server, limit: u64, key: &str) -> u64 {
    limit - hourly(&patient(server), limit).peek(key).await.expect("a decision").remaining
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_on_one_key_spend_what_the_server_has_charged_and_no_more() {
    const LIMIT: u64 = 60_000;
    let server = Server::start();
    // Two wallets, as of two processes.
    let wallets: Vec<Wallet> = (0..2)
        .map(|_| patient(&server))
        .map(|limits| limits.wallet(&hourly(&limits, LIMIT), 97).expect("a batch"))
        .collect();
    let spent = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for task in 0..8 {
        let (wallet, spent) = (wallets[task % 2].clone(), spent.clone());
        tasks.push(tokio::spawn(async move {
            let mut cost = 1 + task as u64 % 3;
            loop {
                let decision = wallet.take("a").cost(cost).await.expect("a decision");
                if decision.allowed() {
                    assert_eq!(decision.granted, cost);
                    spent.fetch_add(cost, Ordering::SeqCst);
                } else if cost == 1 {
                    return;
                } else {
                    cost = 1;
                }
            }
        }));
    }
    // At every moment the server has charged at least what was spent before.
    let watch = tokio::spawn({
        let (spent, over, limits) = (spent.clone(), over.clone(), patient(&server));
        async move {
            let mut looks = 0_u64;
            while !over.load(Ordering::SeqCst) {
                let spent = spent.load(Ordering::SeqCst);
                let used = LIMIT - hourly(&limits, LIMIT).peek("a").await.expect("a decision").remaining;
                assert!(used >= spent, "{spent} units were spent, and the server has charged {used}");
                looks += 1;
            }
            looks
        }
    });
    for task in tasks {
        task.await.expect("no panic");
    }
    over.store(true, Ordering::SeqCst);
    assert!(watch.await.expect("no panic") > 10);
    for wallet in &wallets {
        wallet.close().await;
    }
    // Everything was given out, and the server agrees.
    assert_eq!(spent.load(Ordering::SeqCst), LIMIT);
    assert_eq!(used(&server, LIMIT, "a").await, LIMIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_batch_of_a_key_is_fetched_at_a_time() {
    let server = Server::start();
    let limits = patient(&server);
    let wallet = limits.wallet(&hourly(&limits, 1_000_000), 1_000).expect("a batch");
    let takes: Vec<_> = (0..100)
        .map(|_| {
            let wallet = wallet.clone();
            tokio::spawn(async move { wallet.take("a").await.expect("a decision").allowed() })
        })
        .collect();
    for take in takes {
        assert!(take.await.expect("no panic"));
    }
    let stats: String = call(&mut server.client(), "INFO commandstats");
    let slide = stats.lines().find(|line| line.to_lowercase().starts_with("cmdstat_rl.slide:")).expect("calls");
    assert!(slide.contains("calls=1,"), "{slide}");
    assert_eq!(used(&server, 1_000_000, "a").await, 1_000);
    // Calls that are decided in the process say what is left.
    let decision = wallet.take("a").await.expect("a decision");
    assert_eq!((decision.granted, decision.limit, decision.remaining, decision.counted), (1, 1_000_000, 999_899, true));
    wallet.close().await;
    assert_eq!(used(&server, 1_000_000, "a").await, 101);
    // After that, calls go to the server.
    assert!(wallet.take("a").await.expect("a decision").allowed());
    assert_eq!(used(&server, 1_000_000, "a").await, 102);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_is_given_back_when_idle_and_when_dropped() {
    let server = Server::start();
    let limits = patient(&server);
    let wallet = limits.wallet(&hourly(&limits, 1_000), 100).expect("a batch").idle(Duration::from_millis(300));
    for key in ["a", "b"] {
        assert!(wallet.take(key).cost(3).await.expect("a decision").allowed());
        eventually("the units", async || used(&server, 1_000, key).await == 3).await;
    }
    // The key goes on with a new batch.
    assert!(wallet.take("a").await.expect("a decision").allowed());
    drop(wallet);
    eventually("the units", async || used(&server, 1_000, "a").await == 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_ends_with_its_window() {
    let server = Server::start();
    let limits = patient(&server);
    let window = Duration::from_millis(1_500);
    let policies = [
        Policy::from(Fixed::new((100, window)).expect("a policy")),
        Slide::new((100, window)).expect("a policy").into(),
        // 50 units of 100 in 3 s come back in 1.5 s.
        Gcra::new((100, 2 * window)).expect("a policy").into(),
    ];
    for (index, policy) in policies.into_iter().enumerate() {
        let limit = limits.limit(&format!("short{index}"), policy).expect("a name");
        let wallet = limits.wallet(&limit, 50).expect("a batch").idle(Duration::from_secs(600));
        let began = Instant::now();
        assert!(wallet.take("a").await.expect("a decision").allowed());
        let mut last = Duration::ZERO;
        loop {
            let asked = began.elapsed();
            match wallet.try_take("a", 1).expect("a key") {
                Some(decision) if decision.allowed() => last = asked,
                _ => break,
            }
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        assert!(last < window, "{policy}: {last:?}");
        // The next call fetches a new batch.
        assert!(wallet.take("a").await.expect("a decision").allowed());
        assert!(wallet.try_take("a", 1).expect("a key").is_some_and(|decision| decision.allowed()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_and_batches_that_are_granted_in_part() {
    let server = Server::start();
    let limits = patient(&server);
    let limit = hourly(&limits, 10);
    let wallet = limits.wallet(&limit, 7).expect("a batch");
    assert!(wallet.take("a").cost(7).await.expect("a decision").allowed());
    // The server grants 3 of 7: too few for 4, and enough for 3.
    let denied = wallet.take("a").cost(4).await.expect("a decision");
    assert!(denied.denied() && denied.wait().is_some_and(|wait| wait > Duration::from_secs(3_000)), "{denied:?}");
    assert_eq!(used(&server, 10, "a").await, 10);
    assert!(wallet.take("a").cost(3).await.expect("a decision").allowed());
    assert!(wallet.take("a").await.expect("a decision").denied());
    let calls = || call::<String>(&mut server.client(), "INFO commandstats");
    let count = |stats: &str| {
        let line =
            stats.lines().find(|line| line.to_lowercase().starts_with("cmdstat_rl.slide:")).expect("calls").to_string();
        line
    };
    // Denied in the process, until the wait is over.
    let before = count(&calls());
    for _ in 0..100 {
        let denied = wallet.take("a").await.expect("a decision");
        assert!(denied.denied() && denied.wait_ms > Some(3_000_000));
    }
    assert_eq!(count(&calls()), before);
    // More than a batch goes to the server, and so does what is never granted.
    assert!(wallet.take("b").cost(8).await.expect("a decision").allowed());
    assert_eq!(wallet.take("b").cost(11).await.expect("a decision").wait(), None);
    assert!(matches!(wallet.take("").await, Err(Error::InvalidKey(_))));
    assert!(matches!(wallet.take("a").cost(0).await, Err(Error::InvalidCost(_))));
    let jobs: Limit = limits.limit("jobs", Policy::from(Lease::new(1, "1s").expect("a policy"))).expect("a name");
    assert!(matches!(limits.wallet(&jobs, 10), Err(Error::InvalidLimit(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_and_callers_that_give_up_lose_no_units() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "RL.", Loss::Close).await;
    let limits = Limits::open(proxy.url()).expect("an address").patience(LONG);
    let wallet = limits.wallet(&hourly(&limits, 1_000), 10).expect("a batch");
    for _ in 0..25 {
        proxy.lose(1);
        assert!(wallet.take("a").await.expect("a decision").allowed());
    }
    proxy.lose(0);
    wallet.close().await;
    eventually("the units", async || used(&server, 1_000, "a").await == 25).await;

    // The caller gives up while the batch is on its way; the batch serves the next one.
    let wallet = limits.wallet(&hourly(&limits, 1_000), 10).expect("a batch");
    proxy.lose(5);
    let take = tokio::spawn({
        let wallet = wallet.clone();
        async move { wallet.take("b").await.map(|_| ()) }
    });
    eventually("the first replies to be lost", async || proxy.left() < 5).await;
    take.abort();
    eventually("the batch", async || wallet.try_take("b", 1).expect("a key").is_some()).await;
    wallet.close().await;
    eventually("the units", async || used(&server, 1_000, "b").await == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_and_in_a_cluster() {
    let limits = Limits::open(format!("redis://127.0.0.1:{}", support::free_port())).expect("an address");
    let limits = limits.patience(Duration::from_millis(200));
    let wallet = limits.wallet(&hourly(&limits, 100), 10).expect("a batch");
    // Callers that wait for the same fetch fail together, and not one after the other.
    let takes: Vec<_> = (0..50)
        .map(|_| {
            let wallet = wallet.clone();
            tokio::spawn(async move { wallet.take("a").await.is_err_and(|error| error.is_down()) })
        })
        .collect();
    for take in takes {
        assert!(take.await.expect("no panic"));
    }
    let limits = limits.on_down(OnDown::Open);
    let wallet = limits.wallet(&hourly(&limits, 100), 10).expect("a batch");
    let decision = wallet.take("a").cost(3).await.expect("a decision");
    assert_eq!((decision.granted, decision.counted), (3, false));

    let cluster = Cluster::start();
    let slow = |builder: redis::cluster::ClusterClientBuilder| builder.response_timeout(LONG);
    let limits =
        Limits::new(redis_rl_client::connection::Cluster::with(cluster.urls(), slow).expect("addresses")).patience(LONG);
    let limit = hourly(&limits, 100);
    let wallet = limits.wallet(&limit, 10).expect("a batch");
    assert!(wallet.take("first").await.expect("a decision").allowed());
    let before = cluster.moved();
    for key in 0..50 {
        for _ in 0..12 {
            assert!(wallet.take(&key.to_string()).await.expect("a decision").allowed());
        }
    }
    wallet.close().await;
    for key in 0..50 {
        let key = key.to_string();
        eventually("the units", async || limit.peek(&key).await.expect("a decision").remaining == 88).await;
    }
    assert_eq!(cluster.moved(), before);
}

/// To give back what is left and to fetch a batch have one patience in common.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_takes_as_long_as_the_patience_when_the_server_is_down() {
    let mut server = Server::start();
    let patience = Duration::from_secs(8);
    let limits = patient(&server).patience(patience);
    let wallet = limits.wallet(&hourly(&limits, 1000), 10).expect("a batch").idle(Duration::from_secs(3600));
    assert!(wallet.take("a").await.expect("a decision").allowed());
    server.crash();
    // The batch has too few units: they are given back, and another batch is fetched.
    let began = Instant::now();
    assert!(wallet.take("a").cost(10).await.expect_err("no decision").is_down());
    // With a patience for each, it would be twice as long.
    assert!(began.elapsed() < patience * 3 / 2, "{:?}", began.elapsed());
}

/// A batch whose reply is lost until the patience is over has no owner: its units are released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_not_answered_is_released() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "UPTO", Loss::Close).await;
    let limits = Limits::open(proxy.url()).expect("an address").patience(Duration::from_secs(2));
    let wallet = limits.wallet(&hourly(&limits, 1000), 10).expect("a batch");
    proxy.lose(1_000_000);
    assert!(wallet.take("a").await.expect_err("no decision").is_down());
    assert!(proxy.left() < 1_000_000);
    eventually("the release", async || used(&server, 1000, "a").await == 0).await;
}

/// The task that gives back what is idle ends with its runtime; the next batch starts another one.
#[test]
fn what_is_idle_is_given_back_on_a_second_runtime() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let limits = patient(&server);
    let wallet = limits.wallet(&hourly(&limits, 1000), 10).expect("a batch").idle(Duration::from_millis(50));
    for key in ["a", "b"] {
        let runtime = runtime();
        runtime.block_on(async {
            assert!(wallet.take(key).await.expect("a decision").allowed());
            eventually("what is left", async || used(&server, 1000, key).await == 1).await;
        });
    }
}
