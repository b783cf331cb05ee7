//! What an outage does to a program: nothing, as far as the program has said what to do. Judged by what arrives at the server.

mod common;

use std::fmt::Write;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::liar::Liar;
use common::{eventually, patient, url, Cluster, LONG};
use redis_rl_client::{connection, redis, Decision, Error, Fixed, Gcra, Lease, Limit, Limits, OnDown, Source};
use support::{call, Server, Signal};

fn hourly(limits: &Limits) -> Limit<Fixed> {
    limits.limit("hourly", Fixed::new("1000000/h").expect("a policy")).expect("a name")
}

fn jobs(limits: &Limits) -> Limit<Lease> {
    limits.limit("jobs", Lease::new(10, "1h").expect("a policy")).expect("a name")
}

/// Makes each call that [`OnDown`] decides, and returns where the decisions come from.
async fn each_source(limits: &Limits) -> Vec<Source> {
    let (hourly, jobs) = (hourly(limits), jobs(limits));
    let of = |decision: Result<Decision, Error>| decision.expect("a decision").source;
    let wallet = limits.wallet(&hourly, 10).expect("a batch");
    let charge = hourly.charge("a", 5).await.expect("a charge");
    let held = jobs.hold("a").wait("1m").await.expect("a lease");
    held.check().await.expect("a lease");
    let admission = limits.admit([jobs.rule("b"), hourly.rule("b")]).estimate(3).wait("1m").await.expect("an admission");
    let mut sources = vec![
        of(hourly.take("a").await),
        of(hourly.take("a").id("order-1").await),
        of(hourly.take_up_to("a", 3).await),
        of(hourly.peek("a").await),
        of(hourly.wait("a", "1m").await),
        of(hourly.reserve("a", "1m").await),
        of(hourly.admit("a").wait("1m").await),
        of(hourly.force("a", 2).await),
        of(hourly.refund("a", 2).await),
        of(wallet.take("a").await),
        charge.decision().source,
        held.decision().source,
    ];
    sources.extend(admission.decisions().iter().map(|decision| decision.source));
    let all = limits.all([hourly.rule("a"), hourly.rule("b").cost(2)]).await.expect("a decision");
    sources.extend(all.decisions.iter().map(|decision| decision.source));
    // The ends of what was let through are nothing.
    charge.settle(7).await.expect("a cost");
    held.release().await.expect("no loss");
    admission.finish().await.expect("no loss");
    sources
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_server_hangs_one_call_at_a_time_asks_it() {
    let hanging = Liar::start().await;
    let limits = Limits::open(hanging.url()).expect("an address").on_down(OnDown::Open);
    let began = Instant::now();
    assert_eq!(hourly(&limits).take("a").await.expect("a decision").source, Source::Down);
    assert_eq!(hanging.connections(), 1);
    for _ in 0..20 {
        assert!(each_source(&limits).await.into_iter().all(|source| source == Source::Down));
    }
    // 400 calls, also those with an id and those that wait. A pause is three quarters of 0.1 s at least.
    let most = 2 + began.elapsed().as_millis() / 75;
    assert!((hanging.connections() as u128) <= most, "{} connections", hanging.connections());
    assert_eq!(limits.let_through(), 1 + 20 * 14);
    // Closed: the error that said so, at once. The call was not sent.
    let closed = hourly(&limits.on_down(OnDown::Closed));
    let [asked, before] = [hanging.connections(), hanging.calls()];
    let mut at_once = 0;
    for _ in 0..100 {
        assert!(matches!(closed.take("a").await, Err(Error::Unavailable { sent: false, .. })));
        at_once += usize::from(hanging.connections() == asked);
    }
    assert!(at_once > 0 && hanging.calls() == before);
    // What ends a charge is tried in any case, but only once.
    let asked = hanging.connections();
    assert!(closed.settle("a", "order-1", 1).await.expect_err("no reply").is_unavailable());
    assert_eq!(hanging.connections(), asked + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_opens_the_breaker_and_the_first_reply_closes_it() {
    let server = Server::start();
    // A busy machine may answer late at any time: then the call is made again.
    let late = Duration::from_secs(3);
    let limits = Limits::open(url(&server)).expect("an address").on_down(OnDown::Open).timeout(late).connect_timeout(late);
    let calls = hourly(&limits);
    let from_the_server = async || calls.take("a").await.expect("a decision").source == Source::Server;
    eventually("a decision", from_the_server).await;
    let charge = {
        let mut charge = None;
        eventually("a charge", async || {
            charge = calls.charge("b", 500).await.ok().filter(|charge| charge.decision().source == Source::Server);
            charge.is_some()
        })
        .await;
        charge.expect("a charge")
    };
    server.signal(Signal::STOP);
    let down = calls.take("a").await.expect("a decision");
    server.signal(Signal::CONT);
    assert_eq!((down.source, down.granted, down.headers().len()), (Source::Down, 1, 0));
    // What must be ended is tried although the server is known to be down, and its answer ends that.
    charge.settle(7).await.expect("a cost");
    eventually("the settlement", async || common::fact(&server, "hourly:b", &["used"]) == 7).await;
    eventually("a decision", from_the_server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_goes_on_when_the_server_is_back() {
    let mut server = Server::on_port(&[]);
    let limits = Limits::open(format!("redis://127.0.0.1:{}/", server.port)).expect("an address").timeout(LONG);
    let calls = hourly(&limits);
    assert_eq!(calls.take("a").await.expect("a decision").source, Source::Server);
    server.crash();
    // The connection is known to be closed, or ends with this call; then there is none.
    eventually("the end", async || matches!(calls.take("a").await, Err(Error::Unavailable { sent: false, .. }))).await;
    let local = OnDown::Local(Gcra::new("2/h").expect("a policy"));
    let local = hourly(&limits.clone().on_down(local));
    let decisions = [(); 3].map(|()| local.take("a"));
    let mut granted = Vec::new();
    for decision in decisions {
        granted.push(decision.await.expect("a decision").granted);
    }
    assert_eq!(granted, [1, 1, 0]);
    server.restart();
    eventually("a decision", async || calls.take("a").await.is_ok()).await;

    // Nothing is called while the server restarts. The connection says by itself that it has ended, so the first call connects.
    for _ in 0..3 {
        let restarting = tokio::task::spawn_blocking(move || {
            server.crash_and_restart();
            server
        });
        server = restarting.await.expect("a restart");
        assert_eq!(calls.take("a").await.expect("a decision").source, Source::Server);
    }
}

/// A call that waits may have no reply for hours: others are sent as soon as it is in line again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_and_finds_the_server_up_holds_up_no_other() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a private folder");
    let path = folder.path().join("socket");
    std::os::unix::fs::symlink(server.socket(), &path).expect("a link");
    let limits = Limits::open(format!("redis+unix://{}", path.display())).expect("an address");
    let limits = limits.timeout(LONG).connect_timeout(LONG);
    let line = limits.limit("line", Fixed::new("1/h").expect("a policy")).expect("a name");
    assert!(line.take("a").await.expect("a decision").allowed());
    let waiting = tokio::spawn(line.charge("a", 1).wait("2h").into_future());
    let in_line = async || common::info_of(&server, "rl_waiting_clients") == 1;
    eventually("the wait", in_line).await;

    // The server can't be reached for a moment. Only the call that waits tries to.
    let away = folder.path().join("away");
    std::fs::rename(&path, &away).expect("a link");
    call::<()>(&mut server.client(), "CLIENT KILL TYPE normal SKIPME yes");
    eventually("the end of the wait", async || !in_line().await).await;
    // Long enough for its first attempt to fail.
    tokio::time::sleep(Duration::from_millis(200)).await;
    std::fs::rename(&away, &path).expect("a link");
    eventually("the wait", in_line).await;
    assert!(line.take("b").await.expect("a decision").allowed());
    call::<()>(&mut server.client(), "DEL line:a");
    waiting.await.expect("no panic").expect("a charge").finish().await.expect("no loss");
}

/// Also if the outage is longer than all time-outs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_goes_on_after_an_outage_until_its_own_time_is_over() {
    let mut server = Server::on_port(&[]);
    let half = Duration::from_millis(500);
    let limits = Limits::open(format!("redis://127.0.0.1:{}/", server.port)).expect("an address");
    let line =
        limits.timeout(half).connect_timeout(half).limit("line", Lease::new(1, "1h").expect("a policy")).expect("a name");
    call::<redis::Value>(&mut server.client(), "RL.LEASE line:a 1 1h ID other");
    eventually("a decision", async || line.peek("a").await.is_ok()).await;
    let [long, short] = ["2h", "1s"].map(|wait| tokio::spawn(line.hold("a").wait(wait).into_future()));
    eventually("the waits", async || common::info_of(&server, "rl_waiting_clients") == 2).await;
    server.crash();
    assert!(short.await.expect("no panic").expect_err("no decision").is_unavailable());
    tokio::time::sleep(2 * half).await;
    server.restart();
    long.await.expect("no panic").expect("a lease").release().await.expect("no loss");
}

/// Each call gets the error that tells the cause, also those that do not ask the server, because it was found down.
#[tokio::test]
async fn a_wrong_password_is_named_to_each_call() {
    let server = Server::on_port(&[]);
    call::<()>(&mut server.client(), "CONFIG SET requirepass secret");
    let limits = Limits::open(format!("redis://:wrong@127.0.0.1:{}/", server.port)).expect("an address").timeout(LONG);
    for _ in 0..50 {
        assert!(matches!(hourly(&limits).take("a").await, Err(Error::NotAllowed(_))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_a_server_that_can_not_decide_are_decided_and_ask_each_time() {
    let liar = Liar::start().await;
    let limits = Limits::open(liar.url()).expect("an address").timeout(LONG);
    for (reply, class) in [
        ("LOADING Redis is loading the dataset in memory", "Unavailable"),
        ("READONLY You can't write against a read only replica.", "Unavailable"),
        ("MASTERDOWN Link with MASTER is down", "Unavailable"),
        ("CLUSTERDOWN The cluster is down", "Unavailable"),
        ("MISCONF Errors writing to the AOF file", "Unavailable"),
        ("NOREPLICAS Not enough good replicas to write.", "Unavailable"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "Unavailable"),
        ("BUSY Redis is busy running a script.", "Unavailable"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "Unavailable"),
        ("ERR too many waiting calls", "Unavailable"),
        ("ERR unknown command 'RL.FIXED'", "NoModule"),
        ("NOAUTH Authentication required.", "NotAllowed"),
        ("WRONGPASS invalid username-password pair", "NotAllowed"),
        ("NOPERM User has no permissions", "NotAllowed"),
    ] {
        liar.says(format!("-{reply}\r\n").as_bytes());
        let error = hourly(&limits).take("a").await.expect_err("no decision");
        assert!(error.is_unavailable() && common::table::class(&error) == class, "{reply}: {error:?}");
        assert!(!matches!(error, Error::Unavailable { sent: true, .. }), "{reply}: the server has refused it");
        let open = limits.clone().on_down(OnDown::Open);
        let before = liar.calls();
        for _ in 0..3 {
            assert_eq!(hourly(&open).take("a").await.expect("a decision").source, Source::Down, "{reply}");
        }
        assert_eq!(liar.calls(), before + 3, "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_of_a_cluster_is_down_by_itself() {
    let mut cluster = Cluster::start();
    let limits = Limits::new(connection::Cluster::new(cluster.urls()).expect("addresses")).timeout(LONG);
    let calls = hourly(&limits.on_down(OnDown::Open));
    let keys: Vec<String> = (0..60).map(|key| key.to_string()).collect();
    for key in &keys {
        assert_eq!(calls.take(key).await.expect("a decision").source, Source::Server);
    }
    let last = cluster.nodes[2].port;
    let owners: Vec<bool> = keys.iter().map(|key| cluster.owner(&format!("hourly:{key}")).port == last).collect();
    assert!(owners.contains(&true) && owners.contains(&false));
    drop(cluster.nodes.pop());
    for (key, is_lost) in keys.iter().zip(owners) {
        let source = calls.take(key).await.expect("a decision").source;
        assert_eq!(source == Source::Down, is_lost, "{key}");
    }
}

/// A server that hangs for longer than the default time-outs, while the program has more patience than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_its_reply_as_long_as_its_timeout() {
    let (server, cluster) = (Server::on_port(&[]), Cluster::start());
    let nodes = Limits::new(connection::Cluster::new(cluster.urls()).expect("addresses"));
    let nodes = nodes.timeout(LONG).connect_timeout(LONG);
    let owner = cluster.owner("hourly:a");
    for (server, limits, connected) in
        [(&server, patient(&server), true), (&server, patient(&server), false), (owner, nodes, true)]
    {
        let calls = hourly(&limits);
        // Otherwise the connection is opened while the server hangs.
        if connected {
            calls.take("a").await.expect("a decision");
        }
        server.signal(Signal::STOP);
        let [take, charge, wait] = [calls.clone(), calls.clone(), calls];
        let late = [
            tokio::spawn(async move { take.take("a").await }),
            tokio::spawn(async move { Ok(charge.charge("a", 1).await?.decision().clone()) }),
            tokio::spawn(async move { Ok(wait.charge("a", 1).wait("10s").await?.decision().clone()) }),
        ];
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        server.signal(Signal::CONT);
        for call in late {
            assert_eq!(call.await.expect("no panic").expect("a decision").source, Source::Server);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_closes_its_limits_ends_its_waits() {
    let server = Server::start();
    let limits = patient(&server);
    let line = limits.limit("line", Fixed::new("1/h").expect("a policy")).expect("a name");
    assert!(line.take("a").await.expect("a decision").allowed());
    let waiting = [
        tokio::spawn({
            let line = line.clone();
            async move { line.wait("a", "2h").await.map(drop) }
        }),
        tokio::spawn({
            let (limits, line) = (limits.clone(), line.clone());
            async move { limits.admit([line.rule("a").cost(1)]).wait("2h").await.map(drop) }
        }),
    ];
    eventually("the waits", async || common::info_of(&server, "rl_waiting_clients") == 2).await;
    limits.close().await;
    for wait in waiting {
        assert!(matches!(wait.await.expect("no panic"), Err(Error::Closed)));
    }
    eventually("the waiters to leave", async || common::info_of(&server, "rl_waiting_clients") == 0).await;
    assert!(matches!(line.take("a").await, Err(Error::Closed)));
}

/// The lines that are logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_rl_client")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                let _ = write!(self.0, "{field}={value:?} ");
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().expect("no panic").push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_call_that_is_let_through_is_logged_once_a_second_at_most_with_what_to_do() {
    let lines = Lines::default();
    let _subscribed = tracing::subscriber::set_default(lines.clone());
    let server = Server::of(&support::server_program(), false, &[]);
    let limits = patient(&server).on_down(OnDown::Open);
    let began = Instant::now();
    for _ in 0..50 {
        hourly(&limits).take("a").await.expect("a decision");
    }
    let lines = lines.0.lock().expect("no panic").clone();
    assert!(lines[0].starts_with("ERROR") && lines[0].contains("load a new version of the module redis-rl"), "{lines:?}");
    assert!(lines.len() as u64 <= 1 + began.elapsed().as_secs(), "{lines:?}");
    assert_eq!(limits.let_through(), 50);
    assert_eq!(call::<i64>(&mut server.client(), "DBSIZE"), 0);
}
