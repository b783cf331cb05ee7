//! The tower layer, in axum.
#![cfg(feature = "tower")]

mod common;

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::routing::get;
use axum::{Extension, Router};
use common::patient;
use redis_rl_client::tower::RateLimitLayer;
use redis_rl_client::{Decision, Fixed, Gcra, Limit, Limits, Named, OnDown, Slide};
use support::{call, Server};
use tower_service::Service;

fn user(request: &Request<Body>) -> Option<Vec<u8>> {
    Some(request.headers().get("x-user")?.as_bytes().to_vec())
}

async fn remaining(Extension(decision): Extension<Decision>) -> String {
    decision.remaining.to_string()
}

async fn ask(app: &mut Router, user: Option<&str>) -> Response<Body> {
    let mut request = Request::get("/");
    if let Some(user) = user {
        request = request.header("x-user", user);
    }
    app.call(request.body(Body::empty()).expect("a request")).await.expect("a response")
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Vec<&'a str> {
    response.headers().get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_granted_denied_and_answered_with_headers() {
    let server = Server::start();
    let limits = patient(&server);
    let hour = limits.limit("hour", Fixed::new("3/h").expect("a policy")).expect("a name");
    let day = limits.limit("day", Fixed::new("100/d").expect("a policy")).expect("a name");
    let cost = |request: &Request<Body>| request.headers().get("x-cost").map_or(2, |_| 0);
    let mut app = Router::new()
        .route("/", get(remaining))
        .layer(RateLimitLayer::new(hour, user))
        .layer(RateLimitLayer::new(day, user).cost(cost));
    let response = ask(&mut app, Some("ada")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(header(&response, "ratelimit-policy"), ["\"hour\";q=3;w=3600", "\"day\";q=100;w=86400"]);
    assert_eq!(header(&response, "ratelimit"), ["\"hour\";r=2;t=3600", "\"day\";r=98;t=86400"]);
    assert_eq!(header(&response, "x-ratelimit-limit"), ["3"]);
    assert_eq!(header(&response, "x-ratelimit-remaining"), ["2"]);
    assert!(header(&response, "retry-after").is_empty());
    let body = axum::body::to_bytes(response.into_body(), 100).await.expect("a body");
    assert_eq!(body, "2");

    for status in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        assert_eq!(ask(&mut app, Some("ada")).await.status(), status);
    }
    let response = ask(&mut app, Some("ada")).await;
    let retry: u64 = header(&response, "retry-after")[0].parse().expect("seconds");
    assert!((3_000..=3_600).contains(&retry), "{retry}");
    assert_eq!(ask(&mut app, Some("bob")).await.status(), StatusCode::OK);
    // A request without a key is not limited, so there is no decision to extract.
    assert_eq!(ask(&mut app, None).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
    // A cost of 0 is a fault of the program.
    let request = Request::get("/").header("x-user", "eve").header("x-cost", "0").body(Body::empty()).expect("a request");
    assert_eq!(app.call(request).await.expect("a response").status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_requests_are_refused_or_go_through() {
    let limits = Limits::open(format!("redis://127.0.0.1:{}", support::free_port())).expect("an address");
    for (on_down, status) in [(OnDown::Closed, StatusCode::SERVICE_UNAVAILABLE), (OnDown::Open, StatusCode::OK)] {
        let limit = limits.clone().on_down(on_down).limit("api", Fixed::new("3/h").expect("a policy")).expect("a name");
        let mut app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limit, user));
        let response = ask(&mut app, Some("ada")).await;
        assert_eq!(response.status(), status);
        assert!(header(&response, "ratelimit").is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_retry_after_is_granted_and_a_limit_of_zero_has_no_such_time() {
    let server = Server::start();
    let limits = patient(&server);
    let policy = Gcra::new("2/1800ms").and_then(|policy| policy.burst(1)).expect("a policy");
    let limit = limits.limit("api", policy).expect("a name");
    let mut app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limit, user));
    assert_eq!(ask(&mut app, Some("ada")).await.status(), StatusCode::OK);
    let denied = ask(&mut app, Some("ada")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied, "ratelimit-policy"), ["\"api\";q=2;w=2"]);
    assert_eq!(header(&denied, "x-ratelimit-limit"), ["1"]);
    let retry = header(&denied, "retry-after")[0].parse().expect("seconds");
    tokio::time::sleep(Duration::from_secs(retry)).await;
    assert_eq!(ask(&mut app, Some("ada")).await.status(), StatusCode::OK);

    let none = limits.limit("none", Fixed::new("0/m").expect("a policy")).expect("a name");
    let mut app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(none, user));
    let denied = ask(&mut app, Some("ada")).await;
    assert_eq!((denied.status(), header(&denied, "ratelimit")), (StatusCode::TOO_MANY_REQUESTS, vec!["\"none\";r=0"]));
    assert!(header(&denied, "retry-after").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_once_get_no_more_than_the_limit() {
    let server = Server::start();
    let limit = patient(&server).limit("api", Slide::new("20/h").expect("a policy")).expect("a name");
    let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limit, user));
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let mut app = app.clone();
        requests.spawn(async move { ask(&mut app, Some("ada")).await.status() });
    }
    let statuses = requests.join_all().await;
    let count = |status: StatusCode| statuses.iter().filter(|each| **each == status).count();
    assert_eq!((count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS)), (20, 40));
}

fn hourly(limits: &Limits, name: &str, rate: &str) -> Limit<Fixed> {
    limits.limit(name, Fixed::new(rate).expect("a policy")).expect("a name")
}

async fn body(response: Response<Body>) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.expect("a body");
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_may_depend_on_the_request_and_so_may_what_is_skipped_and_answered() {
    let server = Server::start();
    let limits = patient(&server);
    let (free, pro) = (hourly(&limits, "free", "1/h"), hourly(&limits, "pro", "3/h"));
    let plan = move |request: &Request<Body>| match request.headers().contains_key("x-pro") {
        true => pro.clone(),
        false => free.clone(),
    };
    let health = |request: &Request<Body>| request.uri().path() == "/health";
    let denied = |decision: &Decision| Response::new(Body::from(format!("{} is used up", decision.name)));
    let plain = RateLimitLayer::new(plan, |_: &Request<Body>| Some(42));
    let routes = || Router::new().route("/", get("hello")).route("/health", get("well"));
    let mut app = routes().layer(plain.clone().skip(health));
    let ask = |path: &str, pro: bool| {
        let request = Request::get(path);
        let request = if pro { request.header("x-pro", "yes") } else { request };
        request.body(Body::empty()).expect("a request")
    };
    for (path, pro, status, policies) in [
        ("/", false, StatusCode::OK, vec!["\"free\";q=1;w=3600"]),
        ("/", false, StatusCode::TOO_MANY_REQUESTS, vec!["\"free\";q=1;w=3600"]),
        ("/", true, StatusCode::OK, vec!["\"pro\";q=3;w=3600"]),
        ("/health", false, StatusCode::OK, vec![]),
        // Errors have the headers, too.
        ("/nowhere", true, StatusCode::NOT_FOUND, vec!["\"pro\";q=3;w=3600"]),
    ] {
        let response = app.call(ask(path, pro)).await.expect("a response");
        assert_eq!((response.status(), header(&response, "ratelimit-policy")), (status, policies), "{path}");
        if status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(header(&response, "content-type"), ["application/problem+json"]);
            let problem: serde_json::Value = serde_json::from_str(&body(response).await).expect("JSON");
            assert_eq!(problem["violated-policies"], serde_json::json!(["free"]));
        }
    }
    let mut app = routes().layer(plain.denied(denied));
    let response = app.call(ask("/", false)).await.expect("a response");
    assert_eq!((response.status(), header(&response, "ratelimit").len()), (StatusCode::OK, 1));
    assert_eq!(body(response).await, "free is used up");

    // A wallet decides in the process.
    let wallet = limits.wallet(&hourly(&limits, "wallet", "1000/h"), 100).expect("a batch");
    let mut app = routes().layer(RateLimitLayer::new(wallet, |_: &Request<Body>| Some("all")));
    for left in [999, 998] {
        let response = app.call(ask("/", false)).await.expect("a response");
        assert_eq!(header(&response, "x-ratelimit-remaining"), [left.to_string()]);
    }
    assert_eq!(common::fact(&server, "wallet:all", &["used"]), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_changes_the_limit() {
    let server = Server::start();
    let named = Named::new("policy:api", Fixed::new("2/h").expect("a policy")).expect("a name");
    let named = named.overrides(|key| vec![format!("policy:{}", String::from_utf8_lossy(key))]);
    let limit = patient(&server).limit("api", named).expect("a name");
    let mut app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limit, user));
    let mut asked = async |user| {
        let response = ask(&mut app, Some(user)).await;
        (response.status().as_u16(), header(&response, "x-ratelimit-limit")[0].to_string())
    };
    for (policy, user, status, limit) in [
        ("", "ada", 200, "2"),
        ("", "ada", 200, "2"),
        ("", "ada", 429, "2"),
        ("policy:api GCRA 5 1h", "ada", 200, "5"),
        ("policy:api GCRA 1 1h", "ada", 429, "1"),
        ("policy:api GCRA 1 1h SHADOW", "ada", 200, "1"),
        ("policy:api GCRA 0 1h", "ada", 429, "0"),
        ("policy:bob SLIDE 9 1h", "bob", 200, "9"),
    ] {
        if !policy.is_empty() {
            call::<()>(&mut server.client(), &format!("RL.POLICY {policy}"));
        }
        assert_eq!(asked(user).await, (status, limit.to_string()), "{policy}");
    }
}

/// Faults of the program: a key that holds something else, a cost of 0, an empty key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_the_program_let_a_request_through_unless_the_limits_are_closed() {
    let server = Server::start();
    call::<i64>(&mut server.client(), "LPUSH list:ada x");
    let local = OnDown::Local(Gcra::new("10/s").expect("a policy"));
    for (on_down, status) in
        [(OnDown::Closed, StatusCode::INTERNAL_SERVER_ERROR), (OnDown::Open, StatusCode::OK), (local, StatusCode::OK)]
    {
        let list = || hourly(&patient(&server).on_down(on_down), "list", "3/h");
        let app = || Router::new().route("/", get("hello"));
        let mut wrong_type = app().layer(RateLimitLayer::new(list(), user));
        let mut wrong_cost = app().layer(RateLimitLayer::new(list(), |_: &Request<Body>| Some("bob")).cost(|_| 0));
        let mut wrong_key = app().layer(RateLimitLayer::new(list(), |_: &Request<Body>| Some("")));
        for app in [&mut wrong_type, &mut wrong_cost, &mut wrong_key] {
            assert_eq!(ask(app, Some("ada")).await.status(), status, "{on_down:?}");
        }
    }
}
