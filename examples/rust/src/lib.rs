//! A tower layer for axum and other frameworks: one call to Redis per request, and headers with the remaining units.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use axum::{body::Body, http::Request, routing::get, Router};
//! # use redis::aio::{ConnectionManager, ConnectionManagerConfig};
//! # use redis_rl_tower::{OnDown, Policy, RateLimitLayer};
//! # async fn example() -> redis::RedisResult<()> {
//! let config = ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_millis(200)));
//! let redis = ConnectionManager::new_with_config(redis::Client::open("redis://127.0.0.1")?, config).await?;
//! let policy = Policy::new("GCRA", 10, Duration::from_secs(60)).option("BURST", 5);
//! let key = |request: &Request<Body>| format!("{:?}", request.headers().get("x-user"));
//! let app: Router = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(redis, policy, key, OnDown::Open));
//! # Ok(())
//! # }
//! ```
//!
//! The key in Redis is `limit:`, the policy's name, a colon and the request's key. Layers with different names count separately,
//! and layers with the same name count together.
//!
//! All requests share one connection, so the layer does not use `BLOCK`: a waiting call needs its own connection.

pub mod calendar;

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisResult};
use tower_layer::Layer;
use tower_service::Service;

/// How a request is answered when Redis gives no decision, because it is down, slow, loading or full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDown {
    /// The request goes through, uncounted and without headers, and a warning is logged.
    Open,
    /// The request is answered with 503, and an error is logged.
    Closed,
}

/// An algorithm with its limit, its period and its options.
#[derive(Clone, Debug)]
pub struct Policy {
    name: &'static str,
    algorithm: &'static str,
    limit: u64,
    period: Duration,
    options: Vec<(&'static str, String)>,
}

impl Policy {
    /// `FIXED`, `SLIDE`, `GCRA` or `BUCKET`.
    pub fn new(algorithm: &'static str, limit: u64, period: Duration) -> Self {
        Self { name: "default", algorithm, limit, period, options: Vec::new() }
    }

    /// The policy's name in its keys and in the headers; it is `default` if this is not called.
    ///
    /// # Panics
    /// If the name contains anything but letters, digits, `-` and `_`.
    pub fn name(mut self, name: &'static str) -> Self {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        assert!(name.bytes().all(plain), "a name is of letters, digits, - and _: {name:?}");
        self.name = name;
        self
    }

    /// Adds an option of the algorithm, as in `option("BURST", 5)`.
    pub fn option(mut self, name: &'static str, value: impl ToString) -> Self {
        self.options.push((name, value.to_string()));
        self
    }

    fn command(&self, key: &str) -> Cmd {
        let mut command = redis::cmd(&format!("RL.{}", self.algorithm));
        command.arg(format!("limit:{}:{key}", self.name)).arg(self.limit).arg(format!("{}us", self.period.as_micros()));
        for (name, value) in &self.options {
            command.arg(name).arg(value);
        }
        command
    }
}

/// Limits requests. A function returns the key of each request.
#[derive(Clone, Debug)]
pub struct RateLimitLayer<C, K> {
    connection: C,
    policy: Policy,
    key: K,
    on_down: OnDown,
}

impl<C, K> RateLimitLayer<C, K> {
    /// `connection` is a `ConnectionManager`, or another connection that is cheap to clone.
    pub fn new(connection: C, policy: Policy, key: K, on_down: OnDown) -> Self {
        Self { connection, policy, key, on_down }
    }
}

impl<S, C: Clone, K: Clone> Layer<S> for RateLimitLayer<C, K> {
    type Service = RateLimit<S, C, K>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, layer: self.clone() }
    }
}

/// The service of a [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S, C, K> {
    inner: S,
    layer: RateLimitLayer<C, K>,
}

impl<S, C, K, B, R> Service<Request<B>> for RateLimit<S, C, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    C: ConnectionLike + Clone + Send + 'static,
    K: Fn(&Request<B>) -> String,
    B: Send + 'static,
    R: From<&'static str>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // `poll_ready` was called on `self.inner`, not on its clone: call the original, and keep the clone.
        let inner = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, inner);
        let command = self.layer.policy.command(&(self.layer.key)(&request));
        let mut connection = self.layer.connection.clone();
        let (name, limit, period) = (self.layer.policy.name, self.layer.policy.limit, self.layer.policy.period);
        let on_down = self.layer.on_down;
        Box::pin(async move {
            let reply: RedisResult<Reply> = command.query_async(&mut connection).await;
            let reply = match (reply, on_down) {
                (Ok(reply), _) => reply,
                (Err(error), OnDown::Open) => {
                    tracing::warn!(%error, "goes on uncounted");
                    return inner.call(request).await;
                }
                (Err(error), OnDown::Closed) => {
                    tracing::error!(%error, "refused, as there is no decision");
                    return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, "Service unavailable"));
                }
            };
            let mut response = match reply.0 {
                0 => refusal(StatusCode::TOO_MANY_REQUESTS, "Too many requests"),
                _ => inner.call(request).await?,
            };
            set_headers(response.headers_mut(), reply, name, limit, period);
            Ok(response)
        })
    }
}

/// granted, limit, remaining, `wait_ms`, `reset_ms`
type Reply = (u64, u64, u64, i64, u64);

fn refusal<R: From<&'static str>>(status: StatusCode, text: &'static str) -> Response<R> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response
}

fn set_headers(headers: &mut HeaderMap, reply: Reply, name: &str, limit: u64, period: Duration) {
    let (granted, capacity, remaining, wait_ms, reset_ms) = reply;
    let value = |text: String| HeaderValue::from_str(&text).expect("digits, signs and a name");
    let window_s = period.as_millis().div_ceil(1000);
    // `wait_ms` is -1 if the call is never granted: then there is no time to report.
    let wait_s = u64::try_from(wait_ms).ok().map(|wait_ms| wait_ms.div_ceil(1000));
    let t = if granted > 0 { Some(reset_ms.div_ceil(1000)) } else { wait_s };
    let t = t.map(|t| format!(";t={t}")).unwrap_or_default();
    // `append`, because each layer adds its own item.
    headers.append("ratelimit-policy", value(format!("\"{name}\";q={limit};w={window_s}")));
    headers.append("ratelimit", value(format!("\"{name}\";r={remaining}{t}")));
    // An inner layer decided after this one: its values stay.
    let mut set = |name: &'static str, number: u64| {
        headers.entry(name).or_insert_with(|| value(number.to_string()));
    };
    set("x-ratelimit-limit", capacity);
    set("x-ratelimit-remaining", remaining);
    let reset = SystemTime::now() + Duration::from_millis(reset_ms);
    let reset_s = reset.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis().div_ceil(1000));
    set("x-ratelimit-reset", u64::try_from(reset_s).unwrap_or(u64::MAX));
    if let (0, Some(wait_s)) = (granted, wait_s) {
        set("retry-after", wait_s);
    }
}
