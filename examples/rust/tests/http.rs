//! Tests with real HTTP requests to axum, on a private server.

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use axum::Router;
use redis::aio::ConnectionManager;
use redis_rl_tower::{OnDown, Policy, RateLimitLayer};
use rustix::process::Signal;
use support::{Server, DEADLINE};

fn by_user(request: &Request<Body>) -> String {
    request.headers()["x-user"].to_str().expect("text").into()
}

/// Serves "hello" behind the layer, and returns the URL.
async fn serve(connection: ConnectionManager, policy: Policy, on_down: OnDown) -> String {
    let layer = RateLimitLayer::new(connection, policy, by_user, on_down);
    listen(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await
}

async fn listen(app: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

async fn ask(url: &str, user: &str) -> minreq::Response {
    let request = minreq::get(url).with_header("X-User", user).with_timeout(DEADLINE.as_secs());
    tokio::task::spawn_blocking(|| request.send()).await.expect("no panic").expect("a response")
}

fn header<'a>(response: &'a minreq::Response, name: &str) -> Option<&'a str> {
    response.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// The number in a header, or in its parameter `t`.
fn number(response: &minreq::Response, name: &str) -> u64 {
    let value = header(response, name).unwrap_or_else(|| panic!("no {name}: {:?}", response.headers));
    value.rsplit("t=").next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name}: {value}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn granted_and_denied_with_every_header() {
    let (_server, connection) = Server::start().await;
    let url = serve(connection, Policy::new("GCRA", 2, Duration::from_secs(60)), OnDown::Closed).await;
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    for (status, remaining, t, reset) in [(200, 1, 30, 30), (200, 0, 60, 60), (429, 0, 30, 60)] {
        let asked_s = now_s();
        let response = ask(&url, "ada").await;
        assert_eq!(response.status_code, status);
        assert_eq!(response.as_str().expect("text") == "hello", status == 200);
        assert_eq!(header(&response, "ratelimit-policy"), Some("\"default\";q=2;w=60"));
        let quota = header(&response, "ratelimit").expect("a quota");
        assert!(quota.starts_with(&format!("\"default\";r={remaining};t=")), "{quota}");
        // Less than five seconds have passed since the first request.
        assert!((t - 5..=t).contains(&number(&response, "ratelimit")), "{:?}", response.headers);
        assert_eq!(number(&response, "x-ratelimit-limit"), 2);
        assert_eq!(number(&response, "x-ratelimit-remaining"), remaining);
        let reset_at = number(&response, "x-ratelimit-reset");
        assert!((asked_s + reset - 5..=now_s() + reset + 1).contains(&reset_at), "{reset_at} at {asked_s}");
        match status {
            200 => assert!(header(&response, "retry-after").is_none()),
            _ => assert_eq!(number(&response, "retry-after"), number(&response, "ratelimit")),
        }
    }
    assert_eq!(ask(&url, "bob").await.status_code, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_retry_after_is_granted() {
    let (_server, connection) = Server::start().await;
    let policy = Policy::new("GCRA", 2, Duration::from_millis(1800)).option("BURST", 1);
    let url = serve(connection, policy, OnDown::Closed).await;
    assert_eq!(ask(&url, "ada").await.status_code, 200);
    let denied = ask(&url, "ada").await;
    assert_eq!((denied.status_code, number(&denied, "x-ratelimit-limit")), (429, 1));
    assert_eq!(header(&denied, "ratelimit-policy"), Some("\"default\";q=2;w=2"));
    tokio::time::sleep(Duration::from_secs(number(&denied, "retry-after"))).await;
    assert_eq!(ask(&url, "ada").await.status_code, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_once_get_no_more_than_the_limit() {
    let (_server, connection) = Server::start().await;
    let url = serve(connection, Policy::new("SLIDE", 20, Duration::from_secs(3600)), OnDown::Closed).await;
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let url = url.clone();
        requests.spawn(async move { ask(&url, "ada").await.status_code });
    }
    let statuses = requests.join_all().await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 20);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_layers_with_the_same_key_count_separately_by_name() {
    let (_server, mut connection) = Server::start().await;
    let hour = Duration::from_secs(3600);
    let layer = |policy| RateLimitLayer::new(connection.clone(), policy, by_user, OnDown::Closed);
    let inner = layer(Policy::new("GCRA", 2, hour).name("login"));
    let outer = layer(Policy::new("FIXED", 4, hour));
    let url = listen(Router::new().route("/", get(|| async { "hello" })).layer(inner).layer(outer)).await;
    for (status, remaining) in [(200, 1), (200, 0), (429, 0)] {
        let response = ask(&url, "ada").await;
        assert_eq!(response.status_code, status);
        // These headers are those of the inner layer, which decided last.
        assert_eq!((number(&response, "x-ratelimit-limit"), number(&response, "x-ratelimit-remaining")), (2, remaining));
        let policies: Vec<&str> = response.headers("RateLimit-Policy").collect();
        assert_eq!(policies, ["\"login\";q=2;w=3600", "\"default\";q=4;w=3600"]);
        let quotas: Vec<&str> = response.headers("RateLimit").collect();
        assert!(quotas[0].starts_with("\"login\";r=") && quotas[1].starts_with("\"default\";r="), "{quotas:?}");
    }
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.expect("the keys");
    keys.sort();
    assert_eq!(keys, ["limit:default:ada", "limit:login:ada"]);
    // The fourth request is the outer layer's last grant. The outer layer denies the fifth without calling the inner one.
    for (status, limit) in [(429, 2), (429, 4)] {
        let response = ask(&url, "ada").await;
        assert_eq!((response.status_code, number(&response, "x-ratelimit-limit")), (status, limit));
    }
}

#[test]
#[should_panic(expected = "letters, digits")]
fn a_name_that_is_no_header_is_refused_at_once() {
    let _ = Policy::new("FIXED", 1, Duration::from_secs(1)).name("my \"limit\"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_zero_has_no_retry_time() {
    let (_server, connection) = Server::start().await;
    let url = serve(connection, Policy::new("FIXED", 0, Duration::from_secs(60)), OnDown::Open).await;
    let denied = ask(&url, "ada").await;
    assert_eq!((denied.status_code, header(&denied, "ratelimit")), (429, Some("\"default\";r=0")));
    assert!(header(&denied, "retry-after").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redis_is_down_closed_or_open() {
    let (mut server, connection) = Server::start().await;
    let policy = || Policy::new("FIXED", 1, Duration::from_secs(3600));
    let closed = serve(connection.clone(), policy(), OnDown::Closed).await;
    let open = serve(connection, policy(), OnDown::Open).await;
    assert_eq!(ask(&closed, "ada").await.status_code, 200);
    assert_eq!(ask(&open, "ada").await.status_code, 429);
    let refuses_or_goes_on = || async {
        // A request waits only for the response time-out. Without one it would wait for ever.
        let (refused, let_through) = (ask(&closed, "ada").await, ask(&open, "ada").await);
        assert_eq!((refused.status_code, let_through.status_code), (503, 200));
        assert!(header(&let_through, "ratelimit").is_none());
    };
    server.signal(Signal::STOP);
    refuses_or_goes_on().await;
    server.signal(Signal::CONT);
    server.kill();
    refuses_or_goes_on().await;
}
