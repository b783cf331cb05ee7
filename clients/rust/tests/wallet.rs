//! The wallet: what is spent in the process never exceeds what the server has charged.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{eventually, fact, granted, patient, Cluster, Loss, Proxy, LONG};
use redis_rl_client::{connection, Error, Fixed, Gcra, Lease, Limit, Limits, OnDown, Policy, Slide, Source, Wallet};
use support::{call, Server};

fn hourly(limits: &Limits, limit: u64) -> Limit<Slide> {
    limits.limit("hourly", Slide::new(&format!("{limit}/h")).expect("a policy")).expect("a name")
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
    assert_eq!(
        (decision.granted, decision.limit, decision.remaining, decision.source),
        (1, 1_000_000, 999_899, Source::Wallet)
    );
    wallet.close().await;
    assert_eq!(used(&server, 1_000_000, "a").await, 101);
    // The id of the batch is gone, too.
    assert_eq!(fact(&server, "hourly:a", &["ids"]), 0);
    assert!(matches!(wallet.take("a").await, Err(Error::Closed)));
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
        ("fixed", Policy::from(Fixed::new("100/1500ms").expect("a policy"))),
        ("slide", Slide::new("100/1500ms").expect("a policy").into()),
        // 50 units of 100 in 3 s come back in 1.5 s.
        ("gcra", Gcra::new("100/3s").expect("a policy").into()),
    ];
    for (algorithm, policy) in policies {
        let limit = limits.limit(algorithm, policy.clone()).expect("a name");
        let wallet = limits.wallet(&limit, 50).expect("a batch").idle(Duration::from_secs(600));
        assert!(wallet.take("a").await.expect("a decision").allowed());
        // The batch was fetched before.
        let began = Instant::now();
        let fetched = granted(&server, algorithm);
        let mut last = Duration::ZERO;
        loop {
            let asked = began.elapsed();
            assert!(wallet.take("a").await.expect("a decision").allowed());
            if granted(&server, algorithm) > fetched {
                break;
            }
            last = asked;
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        assert!(last < window, "{policy}: {last:?}");
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
    assert!(!denied.allowed() && denied.wait().is_some_and(|wait| wait > Duration::from_secs(3_000)), "{denied:?}");
    assert_eq!(used(&server, 10, "a").await, 7);
    assert!(wallet.take("a").cost(3).await.expect("a decision").allowed());
    assert!(!wallet.take("a").await.expect("a decision").allowed());
    // Each denial is asked for, unless they may be repeated.
    let asked = || common::info_of(&server, "rl_slide_denied");
    let before = asked();
    for _ in 0..5 {
        assert_eq!(wallet.take("a").await.expect("a decision").source, Source::Server);
    }
    assert_eq!(asked(), before + 5);
    // More than a batch goes to the server, and so does what is never granted.
    assert!(wallet.take("b").cost(8).await.expect("a decision").allowed());
    // A cost above the limit is denied, and no batch is fetched for it.
    let wide = limits.wallet(&limit, 100).expect("a batch");
    assert_eq!(wide.take("c").cost(11).await.expect("a decision").wait(), None);
    assert_eq!(used(&server, 10, "c").await, 0);
    assert!(matches!(wallet.take("").await, Err(Error::InvalidKey(_))));
    assert!(matches!(wallet.take("a").cost(0).await, Err(Error::InvalidCost(_))));
    let jobs: Limit = limits.limit("jobs", Policy::from(Lease::new(1, "1s").expect("a policy"))).expect("a name");
    assert!(matches!(limits.wallet(&jobs, 10), Err(Error::InvalidLimit(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_and_callers_that_give_up_lose_no_units() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "RL.", Loss::Close).await;
    let limits = Limits::open(proxy.url()).expect("an address").timeout(LONG).connect_timeout(LONG);
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
    // One unit is that of the caller who has given up.
    assert!(wallet.take("b").await.expect("a decision").allowed());
    wallet.close().await;
    eventually("the units", async || used(&server, 1_000, "b").await == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_and_in_a_cluster() {
    let limits = Limits::open(format!("redis://127.0.0.1:{}", support::free_port())).expect("an address");
    let wallet = limits.wallet(&hourly(&limits, 100), 10).expect("a batch");
    // Callers that wait for the same fetch fail together, and not one after the other.
    let takes: Vec<_> = (0..50)
        .map(|_| {
            let wallet = wallet.clone();
            tokio::spawn(async move { wallet.take("a").await.is_err_and(|error| error.is_unavailable()) })
        })
        .collect();
    for take in takes {
        assert!(take.await.expect("no panic"));
    }
    let limits = limits.on_down(OnDown::Open);
    let wallet = limits.wallet(&hourly(&limits, 100), 10).expect("a batch");
    let decision = wallet.take("a").cost(3).await.expect("a decision");
    assert_eq!((decision.granted, decision.source), (3, Source::Down));

    let cluster = Cluster::start();
    let limits = Limits::new(connection::Cluster::new(cluster.urls()).expect("addresses")).timeout(LONG);
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

/// A batch whose reply is lost until the call is given up has no owner: its units are released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_not_answered_is_released() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "UPTO", Loss::Close).await;
    let limits = Limits::open(proxy.url()).expect("an address");
    let wallet = limits.wallet(&hourly(&limits, 1000), 10).expect("a batch");
    proxy.lose(1_000_000);
    assert!(wallet.take("a").await.expect_err("no decision").is_unavailable());
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

/// Spent batches are settled: their ids do not stay on the key, where they would push out those of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_batches_leave_nothing_on_the_key() {
    let server = Server::start();
    let limits = patient(&server);
    let wallet = limits.wallet(&hourly(&limits, 1_000_000), 2).expect("a batch").idle(Duration::from_millis(200));
    for taken in 0..4_000_u64 {
        assert!(wallet.take("a").await.expect("a decision").allowed());
        if taken % 100 == 0 {
            // The batch that is spent, and those whose settlement is on its way.
            let ids = fact(&server, "hourly:a", &["ids"]);
            assert!(ids < 20, "{ids} ids after {taken} units");
        }
    }
    eventually("the last batch", async || fact(&server, "hourly:a", &["ids"]) == 0).await;
    assert_eq!(used(&server, 1_000_000, "a").await, 4_000);
}

/// What does not suffice for a call is given back at once, and not when it is idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_denied_keeps_no_units_from_others() {
    let server = Server::start();
    // Of a sliding window, a refund gives back the newest units: those that the wallet is about to give back.
    let hourly = |limits: &Limits| limits.limit("hourly", Fixed::new("100/h").expect("a policy")).expect("a name");
    let used = || fact(&server, "hourly:a", &["used"]);
    let [one, other] = [100, 60].map(|batch| {
        let limits = patient(&server);
        limits.wallet(&hourly(&limits), batch).expect("a batch").idle(Duration::from_secs(3_600))
    });
    let take = async |wallet: &Wallet, cost| wallet.take("a").cost(cost).await.expect("a decision").allowed();
    let refund = async |units| hourly(&patient(&server)).refund("a", units).await.expect("a decision");
    assert!(take(&one, 80).await && !take(&one, 80).await);
    assert_eq!(used(), 80);
    assert!(take(&other, 20).await);
    // The server has too few.
    refund(50).await;
    assert!(!take(&one, 80).await);
    assert_eq!(used(), 50);
    // A cost above the batch needs the units that are here, too.
    assert!(take(&other, 10).await);
    assert_eq!(used(), 100);
    refund(50).await;
    assert!(take(&other, 90).await);
    // A call for fewer that waits for the same units gets them.
    refund(20).await;
    assert_eq!(tokio::join!(take(&one, 80), take(&one, 20)), (false, true));
    assert_eq!(used(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_limits_close_their_wallets() {
    let server = Server::start();
    let limits = patient(&server);
    let wallet = limits.wallet(&hourly(&limits, 1000), 10).expect("a batch");
    assert!(wallet.take("a").await.expect("a decision").allowed());
    limits.clone().close().await;
    assert_eq!(used(&server, 1000, "a").await, 1);
    assert!(matches!(wallet.take("a").await, Err(Error::Closed)));
    assert!(matches!(hourly(&limits, 1000).take("a").await, Err(Error::Closed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_stops_the_wallets_of_this_process() {
    let server = Server::start();
    let limits = patient(&server);
    let limit = hourly(&limits, 1_000);
    let wallets = [&limit, &hourly(&limits, 1_000)]
        .map(|limit| limits.wallet(limit, 100).expect("a batch").idle(Duration::from_secs(600)));
    for key in ["a", "b"] {
        for wallet in &wallets {
            assert!(wallet.take(key).await.expect("a decision").allowed());
        }
    }
    let rest = limit.pause("a", "60s").await.expect("a pause");
    assert!((Duration::from_secs(50)..=Duration::from_secs(60)).contains(&rest), "{rest:?}");
    // What they had is given back.
    eventually("the units", async || fact(&server, "hourly:a", &["used"]) == 2).await;
    assert_eq!((fact(&server, "hourly:a", &["ids"]), fact(&server, "hourly:b", &["used"])), (0, 200));
    for wallet in &wallets {
        let denied = wallet.take("a").await.expect("a decision");
        assert!(!denied.allowed() && denied.remaining == 0 && denied.wait() > Some(Duration::from_secs(30)), "{denied:?}");
        // Another key is not paused.
        assert!(wallet.take("b").await.expect("a decision").allowed());
    }
    limit.resume("a").await.expect("the end");
    for wallet in &wallets {
        assert!(wallet.take("a").await.expect("a decision").allowed());
    }
    assert_eq!(fact(&server, "hourly:a", &["used"]), 202);
    // One that another process has set is found by the next fetch.
    assert!(call::<i64>(&mut server.client(), "RL.PAUSE hourly:a 60s") > 0);
    for wallet in &wallets {
        assert!(wallet.take("a").cost(99).await.expect("a decision").allowed());
        assert!(!wallet.take("a").await.expect("a decision").allowed());
    }
    // While the server is asked to pause, nothing is spent that was fetched before: on one connection, the fetch comes after the pause.
    let wallet = &wallets[0];
    assert!(wallet.take("c").await.expect("a decision").allowed());
    let (rest, taken) = tokio::join!(biased; async { limit.pause("c", "60s").await }, async { wallet.take("c").await });
    assert!(rest.is_ok() && !taken.expect("a decision").allowed());
}

/// The server has granted the units before it knew of the pause, and its reply comes later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_stops_what_is_being_fetched() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "UPTO", Loss::Close).await;
    let limits = Limits::open(proxy.url()).expect("an address").timeout(LONG).connect_timeout(LONG);
    let limit = hourly(&limits, 1_000);
    let wallet = limits.wallet(&limit, 100).expect("a batch").idle(Duration::from_secs(600));
    proxy.lose(1_000_000);
    let take = tokio::spawn({
        let wallet = wallet.clone();
        async move { wallet.take("a").await }
    });
    eventually("the fetch", async || proxy.left() < 1_000_000).await;
    assert_eq!(fact(&server, "hourly:a", &["used"]), 100);
    // Its own reply is not lost, and that of the fetch comes by a repetition with the same id.
    assert!(!limit.pause("a", "60s").await.expect("a pause").is_zero());
    proxy.lose(0);
    // The call was under way. It is granted its unit, and what was fetched for others is given back.
    assert!(take.await.expect("no panic").expect("a decision").allowed());
    assert!(!wallet.take("a").await.expect("a decision").allowed());
    eventually("the units", async || fact(&server, "hourly:a", &["used"]) == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_is_not_repeated_after_a_pause_or_its_end() {
    let server = Server::start();
    let limits = patient(&server).repeat_denials(Duration::from_secs(1));
    let limit = hourly(&limits, 10);
    let source = async || limit.take("a").await.expect("a decision").source;
    limit.take("a").cost(10).await.expect("a decision");
    assert_eq!((source().await, source().await), (Source::Server, Source::Repeated));
    limit.pause("a", "2h").await.expect("a pause");
    let denied = limit.take("a").await.expect("a decision");
    assert!(denied.source == Source::Server && denied.wait() > Some(Duration::from_secs(3_600)), "{denied:?}");
    limit.resume("a").await.expect("the end");
    limit.refund("a", 10).await.expect("a decision");
    limit.pause("a", "60s").await.expect("a pause");
    assert_eq!((source().await, source().await), (Source::Server, Source::Repeated));
    limit.resume("a").await.expect("the end");
    assert!(limit.take("a").await.expect("a decision").allowed());
}
