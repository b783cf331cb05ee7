//! Several limits around a block of work: what is charged while it runs, and what of it stays, as the server counts.

mod common;

use std::future::IntoFuture;
use std::time::Duration;

use common::{eventually, fact, patient, url, Cluster, Loss, Proxy, DEADLINE, LONG};
use redis_rl_client::{
    connection, redis, Admission, Bucket, Denial, Error, Fixed, Lease, Limits, OnDown, Policy, Rule, Source,
};
use support::{call, info, Server, Signal};

/// Longer than the period: a shorter wait is denied at once.
const WAIT: &str = "2h";
/// A time to live that no test outlasts.
const HOUR: &str = "1h";

fn fixed(rate: &str) -> Policy {
    Fixed::new(rate).expect("a policy").into()
}

/// Two calls at a time and 100 requests of the tenant, its tokens, and the tokens of all tenants.
fn rules_of(limits: &Limits, tenant: &str, ttl: &str, all: &str) -> [Rule; 4] {
    let limit = |name: &str, policy: Policy| limits.limit(&format!("{{llm}}{name}"), policy).expect("a name");
    [
        limit("running", Lease::new(2, ttl).expect("a policy").into()).rule(tenant),
        limit("requests", fixed("100/h")).rule(tenant).cost(1),
        limit("tokens", fixed("1000/h")).rule(tenant),
        limit("all", fixed(all)).rule("tokens"),
    ]
}

fn rules(limits: &Limits) -> [Rule; 4] {
    rules_of(limits, "acme", HOUR, "2000/h")
}

/// The calls that run, the requests, the tenant's tokens, and those of all tenants.
fn charged_of(server: &Server, tenant: &str) -> [i64; 4] {
    let keys = ["running", "requests", "tokens"].map(|name| format!("{{llm}}{name}:{tenant}"));
    let [running, requests, tokens] = keys.map(|key| fact(server, &key, &["held", "used"]));
    [running, requests, tokens, fact(server, "{llm}all:tokens", &["used"])]
}

fn charged(server: &Server) -> [i64; 4] {
    charged_of(server, "acme")
}

fn ids(server: &Server) -> i64 {
    let keys = ["{llm}requests:acme", "{llm}tokens:acme", "{llm}all:tokens"];
    keys.iter().map(|key| fact(server, key, &["ids"])).sum()
}

fn waiting(server: &Server) -> u64 {
    info(&mut server.client(), "everything", "rl_waiting_clients").try_into().expect("a count")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_settled_requests_stay_and_the_lease_is_released() {
    let server = Server::start();
    let limits = patient(&server);
    let mut total = 0;
    for (round, used) in [(1, Some(120)), (2, Some(450)), (3, Some(0)), (4, None)] {
        let admission = limits.admit(rules(&limits)).estimate(300).await.expect("an admission");
        assert_eq!(charged(&server), [1, round, total + 300, total + 300]);
        assert_eq!(admission.decisions().len(), 4);
        match used {
            // A stream: the last one counts.
            Some(used) => {
                admission.set_used(1).expect("a cost");
                admission.settle(used.try_into().expect("a cost")).await.expect("no loss");
            }
            None => admission.finish().await.expect("no loss"),
        }
        total += used.unwrap_or(300);
        assert_eq!((charged(&server), ids(&server)), ([0, round, total, total], 0));
    }
    // Released: the cost of the request stays.
    let admission = limits.admit(rules(&limits)).estimate(100).await.expect("an admission");
    admission.set_used(7).expect("a cost");
    admission.release().await.expect("no loss");
    assert_eq!((charged(&server), ids(&server)), ([0, 5, 870, 870], 0));
}

/// A block that ends early: its future is dropped, or it returns an error, or it panics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_ends_early_gives_its_estimates_back_unless_it_has_said_what_it_used() {
    let server = Server::start();
    let limits = patient(&server);
    let settled = |expected: [i64; 4]| {
        let server = &server;
        async move || charged(server) == expected && ids(server) == 0
    };
    for used in [None, Some(121)] {
        call::<()>(&mut server.client(), "FLUSHALL");
        let mut requests = 0;
        let mut tokens = 0;
        for end in ["error", "panic", "abort"] {
            let limits = limits.clone();
            let block = tokio::spawn(async move {
                let admission = limits.admit(rules(&limits)).estimate(300).await.expect("an admission");
                if let Some(used) = used {
                    admission.set_used(used).expect("a cost");
                }
                match end {
                    "error" => Err(std::io::Error::other("the stream broke")),
                    "panic" => panic!("a defect of the block"),
                    _ => {
                        let never: Result<(), Error> = admission.run(std::future::pending()).await;
                        never.map_err(std::io::Error::other)
                    }
                }
            });
            if end == "abort" {
                eventually("the admission", async || charged(&server)[0] == 1).await;
                block.abort();
            }
            let ended = block.await;
            assert!(!matches!(ended, Ok(Ok(()))), "{end}");
            // What has a cost stays charged.
            requests += 1;
            if let Some(used) = used {
                tokens += i64::try_from(used).expect("a number");
            }
            eventually(end, settled([0, requests, tokens, tokens])).await;
        }
    }
    // What was used is no number of units: the caller is told at once, and the estimates are given back.
    call::<()>(&mut server.client(), "FLUSHALL");
    let admission = limits.admit(rules(&limits)).estimate(300).await.expect("an admission");
    assert!(matches!(admission.settle(1_000_000_000_001).await, Err(Error::InvalidCost(_))));
    eventually("the release", settled([0, 1, 0, 0])).await;
}

fn denial(error: Error) -> Denial {
    match error {
        Error::RateLimited(denial) => *denial,
        other => panic!("a denial, and not {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_call_charges_nothing_and_names_the_limits() {
    let server = Server::start();
    let limits = patient(&server);
    let running = limits.admit(rules(&limits)).estimate(700).await.expect("an admission");
    for wait in ["0s", "200ms"] {
        let error = limits.admit(rules(&limits)).estimate(301).wait(wait).await.expect_err("a denial");
        assert_eq!(error.to_string().split(": ").next(), Some("denied by {llm}tokens"));
        let denied = denial(error);
        assert_eq!(&*denied.decision.name, "{llm}tokens");
        let retry = denied.retry_after().expect("a wait").as_secs();
        assert!((3_500..=3_600).contains(&retry), "{retry}");
        // The headers are those of all limits.
        assert_eq!(denied.decisions.len(), 4);
        let policies = &denied.headers()[0].1;
        assert_eq!(policies.matches("q=").count(), 4, "{policies}");
        assert!(denied.problem().ends_with("\"violated-policies\":[\"{llm}tokens\"]}"), "{}", denied.problem());
        assert_eq!(charged(&server), [1, 1, 700, 700]);
    }
    let error = limits.admit(rules(&limits)).estimate(2_001).wait(WAIT).await.expect_err("a denial");
    assert!(error.to_string().contains("{llm}tokens, {llm}all: it will never be granted"), "{error}");
    let never = denial(error);
    assert_eq!(never.retry_after(), None);
    assert!(!never.headers().iter().any(|(name, _)| *name == "Retry-After"));
    running.finish().await.expect("no loss");
    assert_eq!(charged(&server), [0, 1, 700, 700]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_arguments_are_refused_before_a_call() {
    let server = Server::start();
    let limits = patient(&server);
    let before: i64 = info(&mut server.client(), "everything", "total_commands_processed");
    let calls = info(&mut server.client(), "everything", "total_commands_processed") - before;
    let admit = || limits.admit(rules(&limits));
    let [lease, requests, tokens, _] = rules(&limits);
    let errors = [
        admit().await.expect_err("no estimate"),
        admit().estimate(0).await.expect_err("a cost"),
        admit().estimate(1_000_000_000_001).await.expect_err("a cost"),
        limits.admit([requests.clone().cost(0)]).await.expect_err("a cost"),
        admit().estimate(1).wait("25h").await.expect_err("a wait"),
        admit().estimate(1).wait("soon").await.expect_err("a wait"),
        admit().estimate(1).id("").await.expect_err("an id"),
        admit().estimate(1).id([b'x'; 65]).await.expect_err("an id"),
        limits.admit([]).await.expect_err("a rule"),
        limits.admit([tokens.clone(), tokens.clone()]).estimate(1).await.expect_err("a key"),
        limits.admit([limits.limit("a", fixed("1/h")).expect("a name").rule("")]).estimate(1).await.expect_err("a key"),
    ];
    for error in &errors {
        assert!(error.is_invalid_argument(), "{error:?}");
    }
    let text = errors.map(|error| format!("{error:?}"));
    for (error, class) in text.iter().zip(["Cost", "Cost", "Cost", "Cost", "Wait", "Wait", "Id", "Id", "Key", "Key", "Key"])
    {
        assert!(error.starts_with(&format!("Invalid{class}")), "{error}");
    }
    // What was sent since is this question.
    let now: i64 = info(&mut server.client(), "everything", "total_commands_processed");
    assert_eq!(now - before, 2 * calls);
    assert_eq!(charged(&server), [0; 4]);

    // Fixed costs and leases need no estimate; a lease may cost more than one.
    let admission = limits.admit([lease.cost(2), requests.cost(3)]).await.expect("an admission");
    assert_eq!(charged(&server), [2, 3, 0, 0]);
    admission.finish().await.expect("no loss");
    assert_eq!(charged(&server), [0, 3, 0, 0]);
    // All policies can be settled.
    let bucket = limits.limit("bucket", Bucket::new("100/h").expect("a policy").capacity(500).expect("a policy"));
    let admission = limits.admit([bucket.expect("a name").rule("a")]).estimate(300).await.expect("an admission");
    admission.settle(120).await.expect("no loss");
    assert_eq!(fact(&server, "bucket:a", &["used"]), 120);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thirty_calls_of_three_tenants_share_what_all_have() {
    let server = Server::start();
    let limits = patient(&server);
    let mut calls = tokio::task::JoinSet::new();
    for (tenant, number) in ["ada", "bob", "eve"].into_iter().flat_map(|tenant| (0..10).map(move |number| (tenant, number)))
    {
        let (limits, socket) = (limits.clone(), url(&server));
        calls.spawn(async move {
            let rules = rules_of(&limits, tenant, HOUR, "1000/h");
            let call = limits.admit(rules).estimate(250).wait(WAIT).await.expect("an admission");
            let inspect = Limits::open(socket).expect("an address").timeout(LONG);
            let all = inspect.limit("{llm}all", fixed("1000/h")).expect("a name");
            let running = inspect.limit("{llm}running", Lease::new(2, HOUR).expect("a policy")).expect("a name");
            let left = all.peek("tokens").await.expect("a decision").remaining;
            let free = running.peek(tenant).await.expect("a decision").remaining;
            assert!(left <= 1000 && free <= 1);
            if number % 3 == 0 {
                call.release().await.expect("no loss");
            } else {
                call.settle(number).await.expect("no loss");
            }
        });
    }
    while let Some(ended) = calls.join_next().await {
        ended.expect("no panic");
    }
    let total: i64 = (0..10).filter(|number| number % 3 != 0).sum();
    for tenant in ["ada", "bob", "eve"] {
        assert_eq!(charged_of(&server, tenant), [0, 10, total, 3 * total]);
    }
    assert!(info(&mut server.client(), "everything", "rl_waits") > 0);
    assert_eq!(waiting(&server), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_waits_delays_no_other_and_leaves_the_line_when_it_is_dropped() {
    let server = Server::start();
    let limits = patient(&server);
    let admit = || limits.admit(rules(&limits)).estimate(100);
    let [first, second] = [admit().await.expect("an admission"), admit().await.expect("an admission")];
    let waiter = tokio::spawn(admit().wait(WAIT).into_future());
    eventually("the wait", async || waiting(&server) == 1).await;
    assert_eq!(charged(&server), [2, 2, 200, 200]);
    let other = limits.admit(rules_of(&limits, "bob", HOUR, "2000/h")).estimate(100).await.expect("an admission");
    assert_eq!(charged(&server), [2, 2, 200, 300]);
    let dropped = tokio::spawn(admit().wait(WAIT).into_future());
    eventually("the wait", async || waiting(&server) == 2).await;
    dropped.abort();
    eventually("the end of the wait", async || waiting(&server) == 1).await;
    assert_eq!(charged(&server), [2, 2, 200, 300]);
    for admission in [first, other] {
        admission.finish().await.expect("no loss");
    }
    let waiter: Admission = waiter.await.expect("no panic").expect("an admission");
    for admission in [second, waiter] {
        admission.finish().await.expect("no loss");
    }
    assert_eq!((charged(&server), ids(&server)), ([0, 3, 300, 400], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_charges_once_and_settles_once() {
    let server = Server::start();
    for loss in [Loss::Close, Loss::Silence] {
        for used in [120, 450] {
            call::<()>(&mut server.client(), "FLUSHALL");
            let proxy = Proxy::start(&server, "RL.", loss).await;
            let limits = Limits::open(proxy.url()).expect("an address");
            let limits = limits.timeout(Duration::from_secs(1)).connect_timeout(LONG);
            proxy.lose(2);
            let admission = limits.admit(rules(&limits)).estimate(300).await.expect("an admission");
            assert_eq!((proxy.left(), charged(&server)), (0, [1, 1, 300, 300]));
            // One reply of each settlement is lost.
            let settling = tokio::spawn(async move { admission.settle(used).await });
            for _ in 0..2 {
                proxy.lose(1);
                eventually("a loss", async || proxy.left() == 0 || settling.is_finished()).await;
            }
            settling.await.expect("no panic").expect("no loss");
            let used = used.try_into().expect("a number");
            assert_eq!((charged(&server), ids(&server)), ([0, 1, used, used], 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_of_a_waiter_charges_once() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "BLOCK", Loss::Close).await;
    let limits = Limits::open(proxy.url()).expect("an address").timeout(LONG);
    let first = limits.admit(rules(&limits)).estimate(600).await.expect("an admission");
    // The server grants the waiter when the first one ends. Then the reply is lost with its connection.
    proxy.lose(1);
    let waiter = tokio::spawn(limits.admit(rules(&limits)).estimate(600).wait(WAIT).into_future());
    eventually("the wait", async || waiting(&server) == 1).await;
    first.settle(100).await.expect("no loss");
    let second: Admission = waiter.await.expect("no panic").expect("an admission");
    assert_eq!((proxy.left(), charged(&server)), (0, [1, 2, 700, 700]));
    second.settle(50).await.expect("no loss");
    assert_eq!((charged(&server), ids(&server)), ([0, 2, 150, 150], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_repeated_call_that_is_denied_was_charged_at_first_is_given_back() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "RL.ALL", Loss::Silence).await;
    let limits = Limits::open(proxy.url()).expect("an address").timeout(Duration::from_secs(3)).connect_timeout(LONG);
    proxy.lose(1);
    let admitting = tokio::spawn(limits.admit(rules(&limits)).estimate(300).into_future());
    eventually("the charge", async || charged(&server) == [1, 1, 300, 300]).await;
    // Before the call is repeated, its lease ends, and others take it.
    call::<()>(&mut server.client(), "DEL {llm}running:acme");
    call::<redis::Value>(&mut server.client(), "RL.LEASE {llm}running:acme 2 1h ID others COST 2");
    let denied = admitting.await.expect("no panic").expect_err("a denial");
    assert_eq!(&*denial(denied).decision.name, "{llm}running");
    assert_eq!(charged(&server), [2, 0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_id_is_forgotten_only_the_excess_is_charged() {
    let server = Server::start();
    let limits = patient(&server);
    for (used, excess) in [(Some(450), 150), (Some(120), 0), (None, 0)] {
        let admission = limits.admit(rules(&limits)).estimate(300).await.expect("an admission");
        call::<()>(&mut server.client(), "DEL {llm}tokens:acme {llm}all:tokens");
        match used {
            Some(used) => admission.settle(used).await.expect("no loss"),
            None => admission.finish().await.expect("no loss"),
        }
        assert_eq!(charged(&server)[2..], [excess, excess]);
        call::<()>(&mut server.client(), "DEL {llm}tokens:acme {llm}all:tokens");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_until_it_is_lost() {
    let mut server = Server::on_port(&[]);
    let limits = patient(&server);
    let admit = |used: Option<u64>| {
        let limits = limits.clone();
        async move {
            let admission = limits.admit(rules_of(&limits, "acme", "1500ms", "2000/h")).estimate(100).await;
            let admission = admission.expect("an admission");
            used.map_or(Ok(()), |used| admission.set_used(used)).expect("a cost");
            admission
        }
    };
    let admission = admit(None).await;
    // Longer than the time to live: without renewals, the lease would have lapsed.
    tokio::time::sleep(Duration::from_secs(4)).await;
    admission.check().await.expect("a lease");
    assert_eq!(charged(&server), [1, 1, 100, 100]);
    assert_eq!(admission.run(async { 7 }).await.expect("no loss"), 7);
    admission.finish().await.expect("no loss");
    assert_eq!(charged(&server), [0, 1, 100, 100]);

    // Its key is deleted: the next renewal is denied, and the future is dropped.
    for (used, stays) in [(None, [0, 2, 100, 100]), (Some(7), [0, 3, 107, 107])] {
        let admission = admit(used).await;
        call::<()>(&mut server.client(), "DEL {llm}running:acme");
        let run = admission.run(std::future::pending::<()>());
        let lost = tokio::time::timeout(DEADLINE, run).await.expect("an end");
        assert!(matches!(lost, Err(Error::LeaseLost)));
        assert!(matches!(admission.check().await, Err(Error::LeaseLost)));
        drop(admission);
        eventually("the end", async || charged(&server) == stays).await;
    }
    // A block that does not run in `run` hears of it at the end; what it used is charged.
    let admission = admit(None).await;
    call::<()>(&mut server.client(), "DEL {llm}running:acme");
    assert!(matches!(admission.settle(30).await, Err(Error::LeaseLost)));
    assert_eq!(charged(&server), [0, 4, 137, 137]);

    // The server hangs: no renewal is answered for a whole time to live.
    let admission = admit(None).await;
    server.signal(Signal::STOP);
    let lost = tokio::time::timeout(DEADLINE, admission.run(std::future::pending::<()>())).await;
    server.signal(Signal::CONT);
    assert!(matches!(lost.expect("an end"), Err(Error::LeaseLost)));
    drop(admission);
    eventually("the end", async || charged(&server) == [0, 5, 137, 137]).await;
    server.crash();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_continues_a_charge_with_its_id() {
    let server = Server::start();
    let limits = patient(&server);
    // The process ends without a chance to do anything: its runtime is gone.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let killed = {
        let limits = patient(&server);
        std::thread::spawn(move || {
            let admission = runtime
                .block_on(async { limits.admit(rules_of(&limits, "bob", "1s", "2000/h")).estimate(200).id("job-8").await });
            drop(runtime);
            drop(admission.expect("an admission"));
        })
    };
    tokio::task::spawn_blocking(move || killed.join()).await.expect("no panic").expect("no panic");
    // The lease ends by itself. The tokens stay charged until they are settled.
    eventually("the end of the lease", async || charged_of(&server, "bob")[0] == 0).await;
    assert_eq!(charged_of(&server, "bob"), [0, 1, 200, 200]);
    // This time the estimate is higher, but the charge is the one of the first time.
    let again = limits.admit(rules_of(&limits, "bob", HOUR, "2000/h")).estimate(400).id("job-8").await;
    let again = again.expect("an admission");
    assert_eq!((again.id(), charged_of(&server, "bob")), (&b"job-8"[..], [1, 1, 200, 200]));
    again.settle(350).await.expect("no loss");
    assert_eq!(charged_of(&server, "bob"), [0, 1, 350, 350]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_is_an_error_before_the_block_and_none_after_it() {
    for stop in [Signal::KILL, Signal::STOP] {
        let server = Server::start();
        let limits = Limits::open(url(&server)).expect("an address").timeout(Duration::from_millis(300));
        let rules = rules(&limits);
        let mut admission = None;
        // On a busy machine an answer may take longer than this patience.
        eventually("an admission", async || {
            admission = limits.admit(rules.clone()).estimate(300).id("a").await.ok();
            admission.is_some()
        })
        .await;
        server.signal(stop);
        // What the server does not answer is logged.
        admission.expect("an admission").settle(120).await.expect("no loss");
        let down = limits.admit(rules.clone()).estimate(300).await.expect_err("no decision");
        assert!(down.is_unavailable(), "{down:?}");
        let down = limits.admit(rules.clone()).estimate(300).wait("100ms").await.expect_err("no decision");
        assert!(down.is_unavailable(), "{down:?}");
        let open = limits.clone().on_down(OnDown::Open);
        let admission = open.admit(rules).estimate(300).await.expect("it goes on");
        assert!(admission.decisions().iter().all(|decision| decision.source == Source::Down));
        assert!(redis_rl_client::headers(admission.decisions()).is_empty());
        admission.check().await.expect("no loss");
        assert_eq!(admission.run(async { 7 }).await.expect("no loss"), 7);
        admission.settle(100).await.expect("no loss");
        if stop == Signal::STOP {
            server.signal(Signal::CONT);
        }
    }
}

/// A call that fails may have been charged: what it was charged is released, unless the caller may repeat it with its own id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_fails_gives_back_what_it_was_charged() {
    let server = Server::start();
    let proxy = Proxy::start(&server, "RL.ALL", Loss::Close).await;
    let limits = Limits::open(proxy.url()).expect("an address").timeout(Duration::from_secs(2));
    proxy.lose(1_000_000);
    let admit = || limits.admit(rules(&limits)).estimate(300);
    assert!(admit().id("job-7").await.expect_err("no decision").is_unavailable());
    assert_eq!(charged(&server), [1, 1, 300, 300]);
    proxy.lose(0);
    admit().id("job-7").await.expect("an admission").settle(10).await.expect("no loss");
    assert_eq!(charged(&server), [0, 1, 10, 10]);
    proxy.lose(1_000_000);
    assert!(admit().await.expect_err("no decision").is_unavailable());
    eventually("the release", async || (charged(&server), ids(&server)) == ([0, 1, 10, 10], 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_call_outlasts_the_time_in_which_its_server_is_a_replica() {
    let server = Server::start();
    let limits = patient(&server);
    let first = limits.admit(rules(&limits)).estimate(600).await.expect("an admission");
    let waiter = tokio::spawn(limits.admit(rules(&limits)).estimate(600).wait(WAIT).into_future());
    // A call without an id waits, too.
    let hourly = limits.limit("hourly", fixed("1/h")).expect("a name");
    assert!(hourly.take("a").await.expect("a decision").allowed());
    let without_id = tokio::spawn({
        let hourly = hourly.clone();
        async move { hourly.wait("a", WAIT).await }
    });
    eventually("the waits", async || waiting(&server) == 2).await;
    // The waiting calls get UNBLOCKED, and then READONLY each time that they call again.
    call::<()>(&mut server.client(), "REPLICAOF 127.0.0.1 1");
    eventually("refusals", async || {
        let errors: String = call(&mut server.client(), "INFO errorstats");
        let count = errors.lines().find_map(|line| line.strip_prefix("errorstat_READONLY:count=")?.trim().parse().ok());
        count.unwrap_or(0) >= 6
    })
    .await;
    call::<()>(&mut server.client(), "REPLICAOF NO ONE");
    eventually("the waits", async || waiting(&server) == 2).await;
    first.release().await.expect("no loss");
    hourly.refund("a", 1).await.expect("a decision");
    assert!(without_id.await.expect("no panic").expect("a decision").allowed());
    let second: Admission = waiter.await.expect("no panic").expect("an admission");
    second.settle(50).await.expect("no loss");
    assert_eq!((charged(&server), ids(&server)), ([0, 2, 50, 50], 0));
}

/// Runs an admission with each end, where the keys may be on other nodes.
async fn ends(limits: Limits, tokens: impl Fn() -> i64) {
    let admit = || limits.admit(rules(&limits)).estimate(300).wait("1h");
    admit().await.expect("an admission").settle(120).await.expect("no loss");
    assert_eq!(tokens(), 120);
    admit().await.expect("an admission").release().await.expect("no loss");
    assert_eq!(tokens(), 120);
    let admission = admit().await.expect("an admission");
    admission.set_used(30).expect("a cost");
    drop(admission);
    eventually("the settlement", async || tokens() == 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_all_keys_have_a_tag_in_common() {
    let cluster = Cluster::start();
    let limits = Limits::new(connection::Cluster::new(cluster.urls()).expect("addresses")).timeout(LONG);
    let owner = cluster.owner("{llm}");
    ends(limits.clone(), || fact(owner, "{llm}all:tokens", &["used"])).await;
    let other = limits.limit("other", fixed("10/h")).expect("a name");
    let apart = limits.admit([rules(&limits)[1].clone(), other.rule("a").cost(1)]).await;
    assert!(matches!(apart, Err(Error::InvalidKey(_))), "{apart:?}");
}
