//! Waits: they ask first, keep their place in line, and use their connections again. Leases, which are lost at their own deadline.
//! Denials that are repeated. Judged by the counters of the server.

mod common;

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{eventually, fact, info_of, patient, LONG};
use redis_rl_client::{Error, Fixed, Gcra, Lease, Limit, Limits, Slide, Source};
use support::{call, Server};

fn line(limits: &Limits, rate: &str) -> Limit<Slide> {
    limits.limit("line", Slide::new(rate).expect("a policy")).expect("a name")
}

async fn waiting(server: &Server, number: i64) {
    eventually("the waits", async || info_of(server, "rl_waiting_clients") == number).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_has_a_connection_of_its_own_only_if_it_has_to_wait() {
    let server = Server::start();
    let limits = patient(&server);
    let connections = || {
        // The test's own question is one.
        info_of(&server, "total_connections_received")
    };
    let free = line(&limits, "1000/h");
    free.take("a").await.expect("a decision");
    let before = connections();
    for _ in 0..100 {
        assert!(free.wait("a", "1m").await.expect("a decision").allowed());
        assert!(free.admit("a").wait("1m").await.expect("a decision").allowed());
        free.charge("a", 1).wait("1m").await.expect("a charge").finish().await.expect("no loss");
        limits.all([free.rule("a"), free.rule("b")]).wait("1m").await.expect("a decision");
    }
    assert_eq!(connections(), before + 1);
    // What is never granted does not wait either.
    assert_eq!(free.wait("a", "1m").cost(1_001).await.expect("a decision").wait_ms, None);
    assert_eq!(connections(), before + 2);

    // One after the other, they wait on the same connection.
    let slow = limits.limit("slow", Gcra::new("1/20ms").expect("a policy")).expect("a name");
    let waits = info_of(&server, "rl_waits");
    let before = connections();
    for _ in 0..30 {
        assert!(slow.wait("a", "1m").await.expect("a decision").allowed());
    }
    let (waits, opened) = (info_of(&server, "rl_waits") - waits, connections() - before);
    // Two questions of this test, and the connection that waits.
    assert!(waits > 2, "{waits} waits");
    assert_eq!(opened, 3, "connections for {waits} waits");
}

/// A call that asks first must not get units before those that stand in line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_asks_first_overtakes_nobody() {
    let server = Server::start();
    let limits = patient(&server);
    let line = line(&limits, "10/h");
    assert!(line.take("a").cost(8).await.expect("a decision").allowed());
    // Two units are free. The first in line needs five, and the others, who need one or two, stand behind it.
    let mut waits = vec![tokio::spawn(line.wait("a", "2h").cost(5).into_future())];
    waiting(&server, 1).await;
    waits.push(tokio::spawn(line.wait("a", "2h").into_future()));
    waiting(&server, 2).await;
    let charge = tokio::spawn(line.charge("a", 2).wait("2h").into_future());
    waiting(&server, 3).await;
    let all = tokio::spawn(limits.all([line.rule("a"), line.rule("b")]).wait("2h").into_future());
    waiting(&server, 4).await;
    assert_eq!(line.peek("a").await.expect("a decision").remaining, 2);
    // Units for the first one, and for one more.
    line.refund("a", 4).await.expect("a decision");
    waiting(&server, 2).await;
    for wait in waits {
        assert!(wait.await.expect("no panic").expect("a decision").allowed());
    }
    line.refund("a", 10).await.expect("a decision");
    charge.await.expect("no panic").expect("a charge").finish().await.expect("no loss");
    assert!(all.await.expect("no panic").expect("a decision").granted);
}

/// By the holder's monotonic clock, although the server would renew the lease: here another client does, with its id.
#[tokio::test]
async fn a_lease_is_lost_at_the_holders_own_deadline() {
    let server = Server::start();
    let limits = patient(&server);
    let jobs = limits.limit("jobs", Lease::new(1, "1500ms").expect("a policy")).expect("a name");
    // The holder stalls: its runtime has only this thread. Returns whether the server still has the lease.
    let stall = |id: &[u8]| {
        let (mut client, id) = (server.client(), String::from_utf8_lossy(id).into_owned());
        let mut renew = || call::<Vec<i64>>(&mut client, &format!("RL.LEASE jobs:a 1 1500ms ID {id} RENEW"))[0] == 1;
        for _ in 0..18 {
            std::thread::sleep(Duration::from_millis(100));
            renew();
        }
        renew()
    };
    let held = jobs.hold("a").await.expect("a lease");
    assert!(stall(held.id()), "the server still knows the lease");
    assert!(matches!(held.check().await, Err(Error::LeaseLost)));
    assert!(matches!(held.release().await, Err(Error::LeaseLost)));

    // A block is not polled any more after the deadline.
    let held = jobs.hold("a").await.expect("a lease");
    let went_on = AtomicBool::new(false);
    let lost = held
        .run(async {
            stall(held.id());
            tokio::task::yield_now().await;
            went_on.store(true, Ordering::SeqCst);
        })
        .await;
    assert!(matches!(lost, Err(Error::LeaseLost)) && !went_on.load(Ordering::SeqCst));
    assert!(matches!(held.release().await, Err(Error::LeaseLost)));
    // Also if it ends within the poll in which it has stalled.
    let held = jobs.hold("a").await.expect("a lease");
    held.run(async { stall(held.id()) }).await.expect("the block has ended");
    assert!(matches!(held.finish().await, Err(Error::LeaseLost)));
}

/// The grant of a call that has waited may be old when its reply is read: it is renewed before the block begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_waited_for_begins_with_a_renewal() {
    let server = Server::start();
    let limits = patient(&server);
    let jobs = limits.limit("jobs", Lease::new(1, "1h").expect("a policy")).expect("a name");
    let first = jobs.hold("a").await.expect("a lease");
    let second = tokio::spawn(jobs.hold("a").wait("2h").into_future());
    waiting(&server, 1).await;
    let granted = info_of(&server, "rl_lease_granted");
    first.release().await.expect("a lease");
    let second = second.await.expect("no panic").expect("a lease");
    assert_eq!(info_of(&server, "rl_lease_granted"), granted + 2, "the grant, and a renewal");
    second.release().await.expect("a lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_is_repeated_for_a_moment() {
    let server = Server::start();
    let asked = || info_of(&server, "rl_fixed_denied") + info_of(&server, "rl_fixed_granted");
    let few = |limits: &Limits| limits.limit("few", Fixed::new("3/h").expect("a policy")).expect("a name");
    // Not unless the program says so.
    let plain = few(&patient(&server));
    assert!(plain.take("a").cost(3).await.expect("a decision").allowed());
    let before = asked();
    for _ in 0..5 {
        assert_eq!(plain.take("a").await.expect("a decision").source, Source::Server);
    }
    assert_eq!(asked(), before + 5);

    // A second at most, whatever the program says. A stalled machine may let it pass: then the rest is tried again.
    let limits = patient(&server).repeat_denials(LONG);
    let few = few(&limits);
    eventually("repeated denials", async || {
        assert!(!few.take("a").cost(2).await.expect("a decision").allowed());
        let before = asked();
        let same = few.take("a").cost(2).await.expect("a decision");
        let error = few.admit("a").cost(2).await.expect_err("a denial");
        let Error::RateLimited(denial) = error else { panic!("a denial, and not {error:?}") };
        let all = [same, denial.decision];
        for decision in &all {
            assert!(!decision.allowed() && decision.wait_ms > Some(3_000_000), "{decision:?}");
            assert_eq!(decision.headers().len(), 6);
        }
        all.iter().all(|decision| decision.source == Source::Repeated) && asked() == before
    })
    .await;
    // A lower or higher cost, another key and a call with an id are asked for.
    for decision in [few.take("a").await, few.take("b").await, few.take("a").cost(2).id("order-1").await] {
        assert_eq!(decision.expect("a decision").source, Source::Server);
    }
    let beyond = few.take("a").cost(1000).await.expect("a decision");
    assert!(beyond.source == Source::Server && beyond.wait().is_none(), "{beyond:?}");
    // Units that this process gives back count at once.
    few.take("a").await.expect("a decision");
    few.refund("a", 1).await.expect("a decision");
    assert!(few.take("a").await.expect("a decision").allowed());
    // What others give back counts a second later.
    assert!(!few.take("a").await.expect("a decision").allowed());
    plain.refund("a", 1).await.expect("a decision");
    eventually("a grant", async || few.take("a").await.expect("a decision").allowed()).await;
}

/// On a runtime of one thread, which reads no reply before the limits are closed.
#[tokio::test]
async fn what_is_granted_while_the_limits_are_closed_is_given_back() {
    let server = Server::start();
    let limits = patient(&server);
    let jobs = limits.limit("jobs", Lease::new(1, "1h").expect("a policy")).expect("a name");
    let units = line(&limits, "1/h");
    call::<()>(&mut server.client(), "RL.LEASE jobs:a 1 1h ID first");
    call::<()>(&mut server.client(), "RL.SLIDE line:a 1 1h");
    let held = tokio::spawn(jobs.hold("a").wait("2h").into_future());
    let charged = tokio::spawn(units.charge("a", 1).wait("2h").into_future());
    waiting(&server, 2).await;
    call::<()>(&mut server.client(), "RL.RELEASE jobs:a first");
    call::<()>(&mut server.client(), "RL.SLIDE line:a 1 1h REFUND 1");
    assert_eq!(info_of(&server, "rl_waiting_clients"), 0);
    limits.close().await;
    assert!(matches!(held.await.expect("no panic"), Err(Error::Closed)));
    assert!(matches!(charged.await.expect("no panic"), Err(Error::Closed)));
    let used = || [("jobs:a", "held"), ("line:a", "used")].map(|(key, name)| fact(&server, key, &[name]));
    eventually("the release", async || used() == [0, 0]).await;
}
