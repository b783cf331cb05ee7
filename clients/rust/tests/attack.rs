//! What a server, a program or a runtime may do wrong: each gives one clear error, nothing panics, and nothing is charged twice.

mod common;

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::liar::Liar;
use common::{eventually, patient, LONG};
use redis_rl_client::{connection, Error, Fixed, Lease, Limit, Limits, OnDown, Policy, Slide};
use support::{call, server_program, Server};

fn hourly(limits: &Limits) -> Limit<Fixed> {
    limits.limit("hourly", Fixed::new("100/h").expect("a policy")).expect("a name")
}

fn jobs(limits: &Limits) -> Limit<Lease> {
    limits.limit("jobs", Lease::new(10, "1h").expect("a policy")).expect("a name")
}

async fn used(server: &Server) -> u64 {
    100 - hourly(&patient(server)).peek("a").await.expect("a decision").remaining
}

/// Makes every call, and returns the results, with what was granted thrown away.
async fn each_call(limits: &Limits) -> Vec<(&'static str, Result<(), Error>)> {
    let (hourly, jobs) = (hourly(limits), jobs(limits));
    let slide = limits.limit("slide", Slide::new("100/h").expect("a policy")).expect("a name");
    let wallet = limits.wallet(&slide, 10).expect("a batch");
    let rules = || [jobs.rule("a"), hourly.rule("a")];
    let end = std::time::SystemTime::now() + Duration::from_secs(60);
    vec![
        ("take", hourly.take("a").await.map(drop)),
        ("take_up_to", hourly.take_up_to("a", 2).await.map(drop)),
        ("force", hourly.force("a", 2).await.map(drop)),
        ("refund", hourly.refund("a", 2).await.map(drop)),
        ("peek", hourly.peek("a").await.map(drop)),
        ("wait", hourly.wait("a", "10ms").await.map(drop)),
        ("reserve", hourly.reserve("a", "10ms").await.map(drop)),
        ("until", hourly.until("a", end).await.map(drop)),
        ("admit on one limit", hourly.admit("a").await.map(drop)),
        ("take with an id", hourly.take("a").id("id").await.map(drop)),
        ("charge", hourly.charge("a", 2).await.map(drop)),
        ("settle", hourly.settle("a", "id", 1).await.map(drop)),
        ("release", hourly.release("a", "id").await.map(drop)),
        ("hold", jobs.hold("a").await.map(drop)),
        ("renew", jobs.renew("a", "id").await.map(drop)),
        ("all", limits.all(rules()).await.map(drop)),
        ("admit", limits.admit(rules()).estimate(2).await.map(drop)),
        ("wallet", wallet.take("a").await.map(drop)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_of_another_shape_is_an_error() {
    let liar = Liar::start().await;
    let shapes: [&[u8]; 16] = [
        b"+OK\r\n",
        b":1\r\n",
        b"$5\r\nhello\r\n",
        b"*0\r\n",
        b"*4\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        b"*6\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        b"*5\r\n+1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        b"*5\r\n$-1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        b"*5\r\n:-1\r\n:10\r\n:9\r\n:0\r\n:0\r\n",
        b"*5\r\n:1\r\n:-10\r\n:9\r\n:0\r\n:0\r\n",
        b"*5\r\n:1\r\n:10\r\n:9\r\n:-2\r\n:0\r\n",
        b"*5\r\n:1\r\n:10\r\n:9\r\n:0\r\n:-1\r\n",
        b"*5\r\n*0\r\n*0\r\n*0\r\n*0\r\n*0\r\n",
        b"*3\r\n:1\r\n:0\r\n*1\r\n*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        b"*3\r\n:1\r\n:0\r\n*2\r\n:1\r\n:1\r\n",
        b"*3\r\n:0\r\n:0\r\n:0\r\n",
    ];
    for mode in [OnDown::Closed, OnDown::Open] {
        let limits = Limits::open(format!("redis://127.0.0.1:{}/", liar.port)).expect("an address");
        let limits = limits.timeout(LONG).on_down(mode);
        for shape in shapes {
            liar.says(shape);
            for (name, result) in each_call(&limits).await {
                let error = result.expect_err(name);
                assert!(matches!(error, Error::UnexpectedReply(_)), "{name}: {error:?}");
            }
        }
    }

    // Nil is a reply to the end of a charge, and to nothing else.
    let limits = Limits::open(format!("redis://127.0.0.1:{}/", liar.port)).expect("an address").timeout(LONG);
    liar.says(b"$-1\r\n");
    for (name, result) in each_call(&limits).await {
        match name {
            "settle" | "release" => result.expect(name),
            _ => assert!(matches!(result, Err(Error::UnexpectedReply(_))), "{name}: {result:?}"),
        }
    }
    // Denied, and no limit has refused.
    liar.says(b"*3\r\n:0\r\n:0\r\n*1\r\n*5\r\n:1\r\n:1\r\n:1\r\n:0\r\n:1\r\n");
    let denied = limits.admit([hourly(&limits).rule("a")]).estimate(1).await;
    assert!(matches!(denied, Err(Error::UnexpectedReply(_))), "{denied:?}");
}

/// The largest numbers: no sum overflows. More units than were asked for are no units of a wallet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_numbers_of_a_reply_are_no_overflow() {
    let liar = Liar::start().await;
    let most = i64::MAX;
    let limits = Limits::open(format!("redis://127.0.0.1:{}/", liar.port)).expect("an address").timeout(Duration::MAX);
    for numbers in [[most, most, most, most, most], [0, most, most, most, most], [10, most, most, 0, most], [0, 0, 0, -1, 0]]
    {
        let row = numbers.map(|number| format!(":{number}\r\n")).concat();
        liar.says(format!("*5\r\n{row}").as_bytes());
        let hourly = hourly(&limits);
        let decision = hourly.take("a").await.expect("a decision");
        assert_eq!(i64::try_from(decision.granted), Ok(numbers[0]));
        assert!(!decision.headers().is_empty());
        let slide = limits.limit("slide", Slide::new("100/h").expect("a policy")).expect("a name");
        let wallet = limits.wallet(&slide, 10).expect("a batch");
        match wallet.take("a").await {
            Ok(decision) => assert!(numbers[0] <= 10 && decision.granted <= 1),
            Err(error) => assert!(numbers[0] > 10 && matches!(error, Error::UnexpectedReply(_)), "{error:?}"),
        }
        let charge = hourly.charge("a", 1).wait("1d").await;
        assert_eq!(charge.is_ok(), numbers[0] > 0);
    }
}

/// What is no reply at all: the connection is given up, and a call without an id is sent once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_reply_end_the_connection() {
    let liar = Liar::start().await;
    let limits = Limits::open(format!("redis://127.0.0.1:{}/", liar.port)).expect("an address");
    let limits = limits.timeout(Duration::from_millis(300));
    liar.says(b"what?\r\n");
    for name in ["first", "second"] {
        let before = liar.calls.load(Ordering::SeqCst);
        assert!(hourly(&limits).take("a").await.expect_err(name).is_unavailable());
        assert_eq!(liar.calls.load(Ordering::SeqCst), before + 1);
    }
    assert!(hourly(&limits).charge("a", 1).await.expect_err("no reply").is_unavailable());
    liar.says(b"*5\r\n:1\r\n:10\r\n:9\r\n:0\r\n:0\r\n");
    eventually("a decision", async || hourly(&limits).take("a").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_holds_something_else_and_a_server_without_the_module() {
    let server = Server::start();
    for key in ["hourly:a", "jobs:a", "slide:a"] {
        call::<i64>(&mut server.client(), &format!("LPUSH {key} x"));
    }
    let without = Server::of(&server_program(), false, &[]);
    for mode in [OnDown::Closed, OnDown::Open] {
        for (name, result) in each_call(&patient(&server).on_down(mode)).await {
            let error = result.expect_err(name);
            assert!(matches!(error, Error::WrongType(_)), "{name}: {error:?}");
            let text = error.to_string();
            assert!(["hourly:a", "jobs:a", "slide:a"].iter().any(|key| text.contains(key)), "{name}: {text}");
        }
    }
    for (name, result) in each_call(&patient(&without)).await {
        let error = result.expect_err(name);
        assert!(matches!(error, Error::NoModule(_)), "{name}: {error:?}");
        assert!(error.to_string().contains("no module redis-rl"), "{name}: {error}");
    }
    // A key of another algorithm.
    call::<()>(&mut server.client(), "FLUSHALL");
    call::<Vec<i64>>(&mut server.client(), "RL.SLIDE hourly:a 10 1h");
    let error = hourly(&patient(&server)).take("a").await.expect_err("another algorithm");
    assert!(matches!(error, Error::WrongType(_)), "{error:?}");
    assert_eq!(call::<i64>(&mut without.client(), "DBSIZE"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_costs_are_refused_before_a_call() {
    let liar = Liar::start().await;
    let limits = Limits::open(format!("redis://127.0.0.1:{}/", liar.port)).expect("an address");
    let (hourly, jobs) = (hourly(&limits), jobs(&limits));
    let slide = limits.limit("slide", Slide::new("100/h").expect("a policy")).expect("a name");
    let wallet = limits.wallet(&slide, 10).expect("a batch");
    // A negative cost has no type here.
    for cost in [0, 1_000_000_000_001, u64::MAX] {
        for result in [
            hourly.take("a").cost(cost).await.map(drop),
            hourly.take_up_to("a", cost).await.map(drop),
            hourly.force("a", cost).await.map(drop),
            hourly.refund("a", cost).await.map(drop),
            hourly.peek("a").cost(cost).await.map(drop),
            hourly.wait("a", "1s").cost(cost).await.map(drop),
            hourly.reserve("a", "1s").cost(cost).await.map(drop),
            hourly.admit("a").cost(cost).await.map(drop),
            hourly.charge("a", cost).await.map(drop),
            jobs.hold("a").units(cost).await.map(drop),
            limits.all([hourly.rule("a").cost(cost)]).await.map(drop),
            limits.admit([hourly.rule("a").cost(cost)]).await.map(drop),
            limits.admit([hourly.rule("a")]).estimate(cost).await.map(drop),
            limits.wallet(&slide, cost).map(drop),
            wallet.take("a").cost(cost).await.map(drop),
        ] {
            assert!(matches!(result, Err(Error::InvalidCost(_))), "{cost}: {result:?}");
        }
    }
    // A lease is held, and not taken.
    let lease = limits.limit("jobs", Policy::from(Lease::new(1, "1s").expect("a policy"))).expect("a name");
    for result in [
        lease.take("a").await.map(drop),
        lease.force("a", 1).await.map(drop),
        lease.charge("a", 1).await.map(drop),
        limits.wallet(&lease, 1).map(drop),
    ] {
        assert!(matches!(result, Err(Error::InvalidLimit(_))), "{result:?}");
    }
    assert_eq!(liar.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_and_missing_rights_are_no_decision() {
    let server = Server::on_port(&[]);
    let mut admin = server.client();
    for rule in [
        "reader on >secret ~* +@all -rl.fixed -rl.slide -rl.lease -rl.all -rl.peek -rl.settle -rl.release",
        "narrow on >secret ~other:* +@all",
        "default on resetpass >secret",
    ] {
        call::<()>(&mut admin, &format!("ACL SETUSER {rule}"));
    }
    for login in ["reader:secret@", "narrow:secret@", "reader:wrong@", "unknown:secret@", ":wrong@", ""] {
        let address = format!("redis://{login}127.0.0.1:{}/", server.port);
        let limits = Limits::open(address.as_str()).expect("an address").timeout(LONG);
        for (name, result) in each_call(&limits).await {
            let error = result.expect_err(name);
            assert!(matches!(error, Error::NotAllowed(_)), "{login} {name}: {error:?}");
        }
        // Open limits go on, except with what can't be let through.
        for (name, result) in each_call(&limits.on_down(OnDown::Open)).await {
            let ends = matches!(name, "settle" | "release" | "renew");
            assert_eq!(result.is_err(), ends, "{login} {name}: {result:?}");
        }
    }
}

/// Polls a future once, without a runtime.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let waker = std::task::Waker::noop();
    match std::pin::pin!(future).poll(&mut std::task::Context::from_waker(waker)) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn a_call_outside_of_a_runtime_is_an_error() {
    let limits = Limits::open("redis://127.0.0.1:1/").expect("an address");
    let result = |name: &str, result: Option<Result<(), Error>>| match result {
        Some(Err(Error::InvalidArgument(_))) => {}
        other => panic!("{name}: {other:?}"),
    };
    let (hourly, jobs) = (hourly(&limits), jobs(&limits));
    let wallet = limits.wallet(&hourly, 10).expect("a batch");
    result("take", poll_once(async { hourly.take("a").await.map(drop) }));
    result("wait", poll_once(async { hourly.wait("a", "1s").await.map(drop) }));
    result("charge", poll_once(async { hourly.charge("a", 1).await.map(drop) }));
    result("hold", poll_once(async { jobs.hold("a").await.map(drop) }));
    result("all", poll_once(async { limits.all([hourly.rule("a")]).await.map(drop) }));
    result("admit", poll_once(async { limits.admit([hourly.rule("a")]).estimate(1).await.map(drop) }));
    result("wallet", poll_once(async { wallet.take("a").await.map(drop) }));
    drop(wallet);
}

/// As with limits that are a static and tests that have a runtime each.
#[test]
fn limits_go_on_with_a_second_runtime() {
    let (server, cluster) = (Server::start(), common::Cluster::start());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let nodes = connection::Cluster::new(cluster.urls()).expect("addresses");
    let one = patient(&server);
    for _ in 0..3 {
        runtime().block_on(async { hourly(&one).take("a").await }).expect("a decision");
    }
    let nodes = Limits::new(nodes).timeout(LONG);
    for _ in 0..3 {
        runtime().block_on(async { hourly(&nodes).take("a").await }).expect("a decision");
    }
}

/// The guards of a charge, of a lease and of an admission, which takes 5 units and has used 2; and the other two used 1 of 3.
async fn guards(limits: &Limits) -> impl Send {
    let (hourly, jobs) = (hourly(limits), jobs(limits));
    let charge = hourly.charge("a", 3).await.expect("a charge");
    charge.set_used(1).expect("a cost");
    let admission = limits.admit([jobs.rule("b"), hourly.rule("a")]).estimate(5).await.expect("an admission");
    admission.set_used(2).expect("a cost");
    (charge, jobs.hold("a").await.expect("a lease"), admission)
}

async fn held(server: &Server) -> u64 {
    let jobs = jobs(&patient(server));
    20 - jobs.peek("a").await.expect("a decision").remaining - jobs.peek("b").await.expect("a decision").remaining
}

#[test]
fn guards_that_are_dropped_anywhere_charge_nothing_twice() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let reader = runtime();
    let state = || reader.block_on(async { (used(&server).await, held(&server).await) });
    let limits = || patient(&server);

    // On a thread that has no runtime, while the runtime goes on: it ends them.
    let first = runtime();
    let dropped = first.block_on(async { guards(&limits()).await });
    assert_eq!(state(), (8, 2));
    drop(dropped);
    support::wait_for("the end", || state() == (3, 0));

    // After the runtime is gone: the estimates stay until their period is over, and the leases lapse.
    call::<()>(&mut server.client(), "FLUSHALL");
    let second = runtime();
    let dropped = second.block_on(async { guards(&limits()).await });
    drop(second);
    drop(dropped);
    assert_eq!(state(), (8, 2));

    // By a runtime that shuts down, which drops its tasks.
    call::<()>(&mut server.client(), "FLUSHALL");
    let third = runtime();
    let (sender, ready) = std::sync::mpsc::channel();
    let own = limits();
    third.spawn(async move {
        let _guards = guards(&own).await;
        sender.send(()).expect("a test that waits");
        std::future::pending::<()>().await;
    });
    ready.recv().expect("the guards");
    third.shutdown_timeout(Duration::from_secs(30));
    let (used, held) = state();
    assert!((3..=8).contains(&used) && held <= 2, "{used} {held}");

    // By a panic in a block.
    call::<()>(&mut server.client(), "FLUSHALL");
    let panicked = first.block_on(async {
        let own = limits();
        tokio::spawn(async move {
            let _guards = guards(&own).await;
            panic!("a defect of the block");
        })
        .await
    });
    assert!(panicked.is_err());
    support::wait_for("the end", || state() == (3, 0));

    // A wallet, which is dropped on a thread without a runtime: what is left is given back.
    call::<()>(&mut server.client(), "FLUSHALL");
    let own = limits();
    let wallet = own.wallet(&hourly(&own), 10).expect("a batch").idle(Duration::from_secs(3600));
    assert!(first.block_on(async { wallet.take("a").await.expect("a decision") }).allowed());
    assert_eq!(state(), (10, 0));
    drop(wallet);
    support::wait_for("the end", || state() == (1, 0));
}

/// A future that is dropped at any moment charges what it says or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_dropped_at_any_moment_leave_nothing() {
    let server = Server::start();
    let limits = patient(&server);
    let (hourly, jobs) = (hourly(&limits), jobs(&limits));
    assert!(hourly.take("other").await.expect("a decision").allowed());
    for step in 0..60_u64 {
        let pause = Duration::from_micros(step * 25);
        let _ = tokio::time::timeout(pause, async { hourly.charge("a", 1).await.expect("a charge").release().await }).await;
        let _ = tokio::time::timeout(pause, async { jobs.hold("a").await.expect("a lease").release().await }).await;
        let _ = tokio::time::timeout(pause, async {
            let admission = limits.admit([jobs.rule("b"), hourly.rule("a")]).estimate(2).await.expect("an admission");
            admission.settle(0).await
        })
        .await;
    }
    eventually("the end", async || (used(&server).await, held(&server).await) == (0, 0)).await;
}
