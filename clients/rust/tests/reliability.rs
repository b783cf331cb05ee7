//! Lost replies, abandoned waits, what is dropped: judged by the counters of the server.

mod common;

use std::future::IntoFuture;
use std::time::Duration;

use common::{eventually, granted, patient, Loss, Proxy, LONG};
use redis_rl_client::{redis, Fixed, Lease, Limit, Limits};
use support::{call, info, Server};

fn hourly(limits: &Limits, limit: u64) -> Limit<Fixed> {
    let policy = Fixed::new(&format!("{limit}/h")).expect("a policy");
    limits.limit("hourly", policy).expect("a name")
}

async fn remaining(server: &Server, limit: u64, key: &str) -> u64 {
    hourly(&patient(server), limit).peek(key).await.expect("a decision").remaining
}

/// Limits that give up a reply after a second, and repeat a call with an id for long.
fn through(proxy: &Proxy) -> Limits {
    Limits::open(proxy.url()).expect("an address").timeout(Duration::from_secs(1)).connect_timeout(LONG)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_an_id_is_sent_once_although_its_reply_is_lost() {
    let server = Server::start();
    for loss in [Loss::Close, Loss::Silence] {
        let proxy = Proxy::start(&server, "RL.FIXED", loss).await;
        let calls = hourly(&through(&proxy), 100);
        let before = granted(&server, "fixed");
        proxy.lose(1);
        assert!(calls.take("a").await.expect_err("no decision").is_unavailable());
        assert_eq!(granted(&server, "fixed"), before + 1);
        // The server is not asked for a moment.
        eventually("an answer", async || calls.peek("a").await.is_ok()).await;
        proxy.lose(1);
        assert!(calls.wait("a", "10s").await.expect_err("no decision").is_unavailable());
        assert_eq!(granted(&server, "fixed"), before + 2);
        eventually("an answer", async || calls.peek("a").await.is_ok()).await;
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
        charge.settle(15).await.expect("no loss");
        assert_eq!((proxy.left(), remaining(&server, 100, "a").await), (0, 85));

        proxy.lose(1);
        let charge = calls.charge("a", 5).wait("20s").await.expect("a charge");
        assert_eq!((proxy.left(), remaining(&server, 100, "a").await), (0, 80));
        proxy.lose(1);
        charge.release().await.expect("no loss");
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
async fn repetition_ends_with_the_time_outs() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "RL.", Loss::Close).await;
    let calls = hourly(&through(&proxy).connect_timeout(Duration::from_millis(300)), 100);
    proxy.lose(1_000_000);
    assert!(calls.charge("a", 10).id("job-7").await.expect_err("no decision").is_unavailable());
    let sent = 1_000_000 - proxy.left();
    assert!((2..100).contains(&sent), "{sent}");
    // The program may repeat the call with its id. Without an id of the program, what was charged is released.
    assert_eq!(remaining(&server, 100, "a").await, 90);
    assert!(calls.charge("a", 10).await.expect_err("no decision").is_unavailable());
    eventually("the release", async || remaining(&server, 100, "a").await == 90).await;
    proxy.lose(0);
    let again = hourly(&patient(&server), 100).charge("a", 10).id("job-7").await.expect("a charge");
    assert_eq!(again.decision().remaining, 90);
    again.finish().await.expect("no loss");
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
    let limits = Limits::open(proxy.url()).expect("an address").timeout(LONG);
    let calls = hourly(&limits, 100);
    let jobs = limits.limit("jobs", Lease::new(100, "1h").expect("a policy")).expect("a name");
    // Nothing is free, so they have to wait, each on a connection of its own.
    for key in ["a", "b", "c"] {
        call::<redis::Value>(&mut server.client(), &format!("RL.FIXED hourly:{key} 100 1h COST 100"));
        call::<redis::Value>(&mut server.client(), &format!("RL.LEASE jobs:{key} 100 1h ID others COST 100"));
    }
    let before = (granted(&server, "fixed"), granted(&server, "lease"));
    proxy.lose(4);
    let waits: [tokio::task::JoinHandle<()>; 4] = [
        tokio::spawn(calls.charge("a", 1).wait("2h").into_future().map_drop()),
        tokio::spawn(jobs.hold("a").wait("2h").into_future().map_drop()),
        tokio::spawn(limits.admit([jobs.rule("b"), calls.rule("b")]).estimate(1).wait("2h").into_future().map_drop()),
        tokio::spawn(limits.all([jobs.rule("c"), calls.rule("c")]).wait("2h").into_future().map_drop()),
    ];
    eventually("the calls", async || proxy.left() == 0).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    eventually("the releases", async || common::executed(&server, "rl.release") >= 6).await;
    call::<()>(&mut server.client(), "FLUSHALL");
    proxy.deliver();
    // All of them are granted, although no one waits for them, and all of them are released.
    let after = (before.0 + 3, before.1 + 3);
    eventually("the grants", async || (granted(&server, "fixed"), granted(&server, "lease")) == after).await;
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
    let charge = calls.charge("a", 10).await.expect("a charge");
    charge.set_used(25).expect("a cost");
    drop(charge);
    eventually("the settlement", async || remaining(&server, 100, "a").await == 75).await;
    let jobs = limits.limit("jobs", Lease::new(1, "1h").expect("a policy")).expect("a name");
    drop(jobs.hold("a").await.expect("a lease"));
    eventually("the release", async || jobs.peek("a").await.expect("a decision").remaining == 1).await;
}
