//! The tower layer, in axum.
#![cfg(feature = "tower")]

mod common;

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::routing::get;
use axum::{Extension, Router};
use common::url;
use redis_rl_client::connection::Server as OneServer;
use redis_rl_client::tower::RateLimitLayer;
use redis_rl_client::{Decision, Fixed, Gcra, Limits, OnDown, Slide};
use support::{call, Server, Signal};
use tower_service::Service;

fn limits(server: &Server) -> Limits {
    let connection = OneServer::new(url(server)).expect("an address").response_timeout(Duration::from_secs(30));
    Limits::new(connection).patience(Duration::from_secs(30))
}

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
    let limits = limits(&server);
    let hour = limits.limit("hour", Fixed::new("3/h").expect("a policy")).expect("a name");
    let day = limits.limit("day", Fixed::new("100/d").expect("a policy")).expect("a name");
    let cost = |parts: &axum::http::request::Parts| parts.headers.get("x-cost").map_or(2, |_| 0);
    let mut app = Router::new()
        .route("/", get(remaining))
        .layer(RateLimitLayer::new(hour.clone(), user))
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

    // Requests that wait in line.
    let mut app = Router::new().route("/", get(remaining)).layer(RateLimitLayer::new(hour, user).wait("1h"));
    let waiting = tokio::spawn(async move { ask(&mut app, Some("ada")).await.status() });
    common::eventually("the wait", async || support::info(&mut server.client(), "everything", "rl_waiting_clients") == 1)
        .await;
    call::<()>(&mut server.client(), "DEL hour:ada");
    assert_eq!(waiting.await.expect("no panic"), StatusCode::OK);
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
    let limits = limits(&server);
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
    let limit = limits(&server).limit("api", Slide::new("20/h").expect("a policy")).expect("a name");
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

/// A server that hangs, and then a key that a limit can't use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_delays_a_request_for_the_patience_at_most() {
    let server = Server::start();
    let limits = Limits::open(url(&server)).expect("an address").patience(Duration::from_millis(300));
    server.signal(Signal::STOP);
    for (on_down, status) in [(OnDown::Closed, StatusCode::SERVICE_UNAVAILABLE), (OnDown::Open, StatusCode::OK)] {
        let limit = limits.clone().on_down(on_down).limit("api", Fixed::new("3/h").expect("a policy")).expect("a name");
        let mut app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limit, user));
        assert_eq!(ask(&mut app, Some("ada")).await.status(), status);
    }
    server.signal(Signal::CONT);
    call::<i64>(&mut server.client(), "LPUSH list:ada x");
    let list = self::limits(&server).on_down(OnDown::Open);
    let list = list.limit("list", Fixed::new("3/h").expect("a policy")).expect("a name");
    let mut app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(list, user));
    assert_eq!(ask(&mut app, Some("ada")).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
}
