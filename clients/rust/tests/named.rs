//! Limits by name: policy keys that an operator sets, changes and deletes under a running process.

mod common;

use std::time::Duration;

use common::{eventually, executed, fact, info_of, patient, Cluster, LONG};
use redis_rl_client::{connection, Error, Fixed, Gcra, Lease, Limit, Limits, Named, OnDown, Policy, Slide, Source};
use support::{call, Server};

const KEY: &str = "policy:api";

fn gcra() -> Gcra {
    Gcra::new("10/m").expect("a policy").burst(5).expect("a burst")
}

fn api(limits: &Limits) -> Limit<Named<Gcra>> {
    limits.limit("api", Named::new(KEY, gcra()).expect("a name")).expect("a name")
}

/// What an operator does.
fn policy(server: &Server, words: &str) {
    assert_eq!(call::<String>(&mut server.client(), &format!("RL.POLICY {words}")), "OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_changes_under_the_process() {
    let server = Server::start();
    let limits = patient(&server);
    let limit = api(&limits);
    let taken = async |units| limit.take("a").cost(units).await.expect("a decision");
    let state = async |units| {
        let decision = taken(units).await;
        (decision.granted, decision.limit, decision.remaining)
    };
    // The default, as there is no policy key; then a policy, also one with another algorithm, which carries over what is used.
    assert_eq!(state(1).await, (1, 5, 4));
    policy(&server, "policy:api GCRA 100 1h BURST 20");
    assert_eq!(state(1).await, (1, 20, 18));
    policy(&server, "policy:api FIXED 50 1h");
    assert_eq!(state(2).await, (2, 50, 46));
    policy(&server, "policy:api SLIDE 4 1h");
    let denied = taken(1).await;
    assert!(!denied.allowed() && denied.limit == 4 && denied.wait_ms.is_some(), "{denied:?}");
    assert!(denied.headers().contains(&("RateLimit-Policy", "\"api\";q=4".to_string())), "{:?}", denied.headers());
    assert_eq!(denied.policy, Policy::from(Named::new(KEY, gcra()).expect("a name")));
    assert_eq!(denied.policy.to_string(), "Named(policy:api, default Gcra(10/m, burst 5))");
    // Tried before it is enforced.
    policy(&server, "policy:api SLIDE 4 1h SHADOW");
    assert!(taken(1).await.allowed());
    assert_eq!(info_of(&server, "rl_slide_shadowed"), 1);
    // Back to the policy that the key had, and then to the default.
    policy(&server, "policy:api GCRA 100 1h BURST 20");
    assert!(taken(1).await.allowed());
    call::<i64>(&mut server.client(), "DEL policy:api");
    let (found, used) = (taken(1).await, executed(&server, "rl.gcra"));
    assert_eq!(found.limit, 5);
    // With an id, the default is charged once, too.
    for _ in 0..2 {
        assert_eq!(limit.take("b").cost(2).id("order-1").await.expect("a decision").remaining, 3);
    }
    assert_eq!(executed(&server, "rl.gcra"), used + 2);
    assert_eq!(limit.settle("b", "order-1", 1).await.expect("a decision").map(|settled| settled.remaining), Some(4));

    // A text that is no rule, and another type.
    call::<String>(&mut server.client(), "SET policy:api nonsense");
    assert!(matches!(limit.take("a").await, Err(Error::InvalidArgument(text)) if text.contains("policy key 'policy:api'")));
    call::<i64>(&mut server.client(), "DEL policy:api");
    call::<i64>(&mut server.client(), "LPUSH policy:api x");
    assert!(matches!(limit.take("a").await, Err(Error::WrongType(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_names_the_policies_that_come_first() {
    let server = Server::start();
    let limits = patient(&server).prefix("shop:");
    let named = Named::new(KEY, gcra()).expect("a name");
    let own =
        named.clone().overrides(|key| vec![format!("policy:{}", String::from_utf8_lossy(key)), "policy:all".to_string()]);
    assert!(own != named && own.clone() == own);
    let limit = limits.limit("api", own).expect("a name");
    let granted = async |key: &str| limit.take_up_to(key, 1_000).await.expect("a decision").granted;
    assert_eq!(granted("ada").await, 5);
    policy(&server, "policy:api FIXED 100 1h");
    policy(&server, "policy:bob FIXED 200 1h");
    assert_eq!((granted("eve").await, granted("bob").await), (100, 200));
    policy(&server, "policy:all FIXED 300 1h");
    assert_eq!((granted("mary").await, fact(&server, "shop:api:mary", &["used"])), (300, 300));

    for (number, allowed) in [(15, true), (16, false)] {
        let many = Named::new(KEY, gcra()).expect("a name").overrides(move |_| vec!["policy:none".to_string(); number]);
        let taken = limits.limit("many", many).expect("a name").take("a").await;
        assert!(if allowed { taken.is_ok() } else { matches!(taken, Err(Error::InvalidLimit(_))) }, "{number}");
    }
    assert!(matches!(Named::new("", gcra()), Err(Error::InvalidLimit(_))));
    assert!(matches!(Named::new(KEY, Policy::from(named)), Err(Error::InvalidLimit(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_calls_that_take_units_work() {
    let server = Server::start();
    let limits = patient(&server).repeat_denials(Duration::from_millis(500));
    let limit = api(&limits);
    for set in [false, true] {
        if set {
            policy(&server, "policy:api FIXED 100 500ms");
        }
        let (key, capacity) = (format!("calls:{set}"), if set { 100 } else { 5 });
        assert_eq!(limit.force(&key, capacity).await.expect("a decision").remaining, 0);
        let sources = [limit.take(&key).await, limit.take(&key).await].map(|taken| taken.expect("a decision").source);
        assert_eq!(sources, [Source::Server, Source::Repeated]);
        assert!(matches!(limit.admit(&key).await, Err(Error::RateLimited(_))));
        assert!(limit.reserve(&key, "30s").await.expect("a decision").wait_ms > Some(0));
        assert_eq!(limit.refund(&key, 3).await.expect("a decision").granted, 3);
        assert!(limit.pause(&key, "60s").await.expect("a pause") > Duration::ZERO);
        assert!(!limit.take(&key).await.expect("a decision").allowed());
        limit.resume(&key).await.expect("the end");
        let (status, headers) = (429_u16, [("Retry-After", "30")]);
        assert!(limit.observe(&key, status, headers).await.expect("a pause") > Duration::ZERO);

        let key = format!("charges:{set}");
        let charge = limit.charge(&key, 4).await.expect("a charge");
        charge.settle(2).await.expect("no loss");
        drop(limit.charge(&key, 3).await.expect("a charge"));
        eventually("the release", async || fact(&server, &format!("api:{key}"), &["ids"]) == 0).await;
        assert!(limit.take(&key).await.expect("a decision").remaining >= capacity - 3);

        let wallet = limits.wallet(&limit, 4).expect("a batch").idle(LONG);
        let taken = async |cost| wallet.take(&format!("wallet:{set}")).cost(cost).await.expect("a decision");
        let mut sources = Vec::new();
        for _ in 0..4 {
            sources.push(taken(1).await.source);
        }
        assert_eq!(sources, [Source::Wallet; 4]);
        // The batch has too few.
        let more = taken(4).await;
        assert_eq!(more.allowed(), set, "{more:?}");
        assert!(set || more.wait() > Some(Duration::from_secs(5)), "{more:?}");
        wallet.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_in_line() {
    let server = Server::start();
    let limits = patient(&server);
    let limit =
        limits.limit("line", Named::new(KEY, Slide::new("1/300ms").expect("a policy")).expect("a name")).expect("a name");
    for key in ["default", "policy"] {
        for _ in 0..3 {
            assert!(limit.wait(key, "30s").await.expect("a decision").allowed());
        }
        assert!(limit.charge(key, 1).wait("30s").await.expect("a charge").settle(0).await.is_ok());
        policy(&server, "policy:api SLIDE 1 200ms");
    }
    // Each call of the default asks by the policy key first, also the one that waits.
    assert!(executed(&server, "rl.use") >= 8 && executed(&server, "rl.slide") >= 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_held() {
    let server = Server::start();
    let limits = patient(&server);
    let default = Lease::new(1, "300ms").expect("a policy");
    let jobs = limits.limit("jobs", Named::new(KEY, default).expect("a name")).expect("a name");
    for (key, places) in [("default", 1), ("policy", 2)] {
        let mut held = Vec::new();
        for _ in 0..places {
            held.push(jobs.hold(key).await.expect("a lease"));
        }
        assert!(matches!(jobs.hold(key).await, Err(Error::RateLimited(_))));
        // They are renewed.
        tokio::time::sleep(Duration::from_millis(700)).await;
        for lease in held {
            lease.check().await.expect("no loss");
            assert!(lease.decision().headers()[0].1.ends_with(&format!("q={places};qu=\"concurrent-requests\"")));
            lease.finish().await.expect("no loss");
        }
        let lease = jobs.hold(key).id("job-1").wait("10s").await.expect("a lease");
        assert!(jobs.renew(key, "job-1").await.expect("a decision").allowed());
        assert!(!jobs.renew(key, "job-2").await.expect("a decision").allowed());
        assert!(jobs.release(key, "job-1").await.expect("a decision").is_some());
        assert!(matches!(lease.finish().await, Err(Error::LeaseLost)));
        policy(&server, "policy:api LEASE 2 300ms");
    }
    // They are renewed by the time to live of the policy key, also after a wait.
    let default = Lease::new(1, "30s").expect("a policy");
    let jobs = limits.limit("jobs", Named::new(KEY, default).expect("a name")).expect("a name");
    policy(&server, "policy:api LEASE 2 5s");
    let held = [jobs.hold("short").await.expect("a lease"), jobs.hold("short").wait("10s").await.expect("a lease")];
    tokio::time::sleep(Duration::from_secs(6)).await;
    for lease in held {
        lease.finish().await.expect("no loss");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_the_policy_is_an_error() {
    let server = Server::start();
    let limits = patient(&server);
    let (limit, other) = (api(&limits), limits.limit("other", Fixed::new("5/h").expect("a policy")).expect("a name"));
    let rules = || [other.rule("a"), limit.rule("a").cost(1)];
    let errors = [
        limit.peek("a").await.expect_err("a peek"),
        limits.all(rules()).await.expect_err("several limits"),
        limits.admit(rules()).estimate(1).await.expect_err("several limits"),
    ];
    for error in errors {
        assert!(matches!(&error, Error::InvalidArgument(text) if text.contains("a Named limit cannot")), "{error}");
    }
    assert!(limits.admit([limit.rule("a")]).estimate(1).await.is_ok());
    assert_eq!(executed(&server, "rl.peek") + executed(&server, "rl.all"), 0);
    assert!(matches!(
        limits.limit("jobs", Named::new(KEY, Policy::from(Lease::new(1, "1s").expect("a policy"))).expect("a name")),
        Ok(jobs) if matches!(jobs.take("a").await, Err(Error::InvalidLimit(_)))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_on_down_decides() {
    let mut server = Server::start();
    let limits = Limits::open(common::url(&server)).expect("an address").on_down(OnDown::Open);
    let limit = api(&limits);
    assert_eq!(limit.take("a").await.expect("a decision").source, Source::Server);
    server.crash();
    let open = limit.take("a").await.expect("a decision");
    assert_eq!((open.source, open.limit, open.headers().len()), (Source::Down, 5, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_policies_have_the_tag_of_the_key() {
    let cluster = Cluster::start();
    let limits =
        Limits::new(connection::Cluster::new(cluster.urls()).expect("addresses")).timeout(LONG).connect_timeout(LONG);
    let tagged = |key: &[u8]| vec![format!("policy:{}", String::from_utf8_lossy(key))];
    for tag in 0..10 {
        let key = format!("user:{{{tag}}}");
        let own = format!("policy:{{{tag}}}");
        let named = Named::new(&own, gcra()).expect("a name").overrides(tagged);
        let limit = limits.limit("api", named).expect("a name");
        assert_eq!(limit.take(&key).await.expect("a decision").limit, 5);
        policy(cluster.owner(&own), &format!("{own} FIXED 30 1h"));
        assert_eq!(limit.take(format!("other:{{{tag}}}")).await.expect("a decision").limit, 30);
    }
    assert_eq!(cluster.moved(), 0);
    let error = api(&limits).take("user:42").await.expect_err("another slot");
    assert!(
        matches!(&error, Error::InvalidKey(text) if text.contains("hash tag") && text.contains("policy keys")),
        "{error}"
    );
}
