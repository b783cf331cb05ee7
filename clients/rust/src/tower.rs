//! A layer for axum and other frameworks on tower: one decision for each request, and headers with the remaining units.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Error, Limit, RatePolicy, Span};

/// Limits requests. A function returns the key of each request; requests without a key are not limited.
///
/// A denied request is answered with 429. If the server gives no decision, the answer is 503, unless
/// [`OnDown::Open`](crate::OnDown::Open) lets the request through. Other errors, which are faults of the program, are answered
/// with 500 and logged. All answers to counted requests have the [headers](crate::Decision::headers) of the decision; with several
/// layers, each one adds an item to the first two. The decision is an extension of the request.
///
/// ```no_run
/// # use axum::{extract::Request, routing::get, Router};
/// # use redis_rl_client::{tower::RateLimitLayer, Gcra, Limits};
/// # fn example() -> Result<(), redis_rl_client::Error> {
/// let limits = Limits::open("redis://127.0.0.1/")?;
/// let api = limits.limit("api", Gcra::new("10/m")?.burst(5)?)?;
/// let user = |request: &Request| Some(request.headers().get("x-user")?.as_bytes().to_vec());
/// let app: Router = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(api, user));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimitLayer<P: RatePolicy, K, C = fn(&http::request::Parts) -> u64> {
    limit: Limit<P>,
    key: K,
    cost: Option<C>,
    wait: Option<Arc<Result<Option<Span>, Error>>>,
}

impl<P: RatePolicy, K> RateLimitLayer<P, K> {
    /// Limits requests by the key that `key` returns.
    pub fn new(limit: Limit<P>, key: K) -> Self {
        Self { limit, key, cost: None, wait: None }
    }
}

impl<P: RatePolicy, K, C> RateLimitLayer<P, K, C> {
    /// How many units a request takes; 1 by default.
    pub fn cost<D>(self, cost: D) -> RateLimitLayer<P, K, D> {
        RateLimitLayer { limit: self.limit, key: self.key, cost: Some(cost), wait: self.wait }
    }

    /// Lets requests wait in line, at most this long: a `Duration`, or a text such as `"2s"`.
    pub fn wait<W: TryInto<Span>>(self, wait: W) -> Self
    where
        Error: From<W::Error>,
    {
        Self { wait: Some(Arc::new(Span::of_wait(wait))), ..self }
    }
}

impl<P: RatePolicy, K, C> fmt::Debug for RateLimitLayer<P, K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<S, P: RatePolicy, K: Clone, C: Clone> Layer<S> for RateLimitLayer<P, K, C> {
    type Service = RateLimit<S, P, K, C>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, layer: self.clone() }
    }
}

/// The service of a [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S, P: RatePolicy, K, C = fn(&http::request::Parts) -> u64> {
    inner: S,
    layer: RateLimitLayer<P, K, C>,
}

impl<S, P, K, T, C, B, R> Service<Request<B>> for RateLimit<S, P, K, C>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    P: RatePolicy,
    K: Fn(&Request<B>) -> Option<T>,
    T: AsRef<[u8]>,
    C: Fn(&http::request::Parts) -> u64,
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
        let Some(key) = (self.layer.key)(&request) else {
            return Box::pin(inner.call(request));
        };
        let (parts, body) = request.into_parts();
        let mut take = self.layer.limit.take(key);
        if let Some(cost) = &self.layer.cost {
            take = take.cost(cost(&parts));
        }
        take = match self.layer.wait.as_deref() {
            None | Some(Ok(None)) => take,
            Some(Ok(Some(wait))) => take.wait(*wait),
            Some(Err(error)) => take.refuse(error.clone()),
        };
        let mut request = Request::from_parts(parts, body);
        Box::pin(async move {
            let decision = match take.await {
                Ok(decision) => decision,
                Err(error) if error.is_down() => {
                    tracing::error!(%error, "a request is refused, as there is no decision");
                    return Ok(answer(StatusCode::SERVICE_UNAVAILABLE, "Service unavailable"));
                }
                Err(error) => {
                    tracing::error!(%error, "a request is refused, as the limit is not usable");
                    return Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error"));
                }
            };
            let headers = decision.headers();
            let mut response = match decision.allowed() {
                true => {
                    request.extensions_mut().insert(decision);
                    inner.call(request).await?
                }
                false => answer(StatusCode::TOO_MANY_REQUESTS, "Too many requests"),
            };
            set_headers(response.headers_mut(), headers);
            Ok(response)
        })
    }
}

fn answer<R: From<&'static str>>(status: StatusCode, text: &'static str) -> Response<R> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response
}

/// Adds the headers of a decision to an answer that may have those of an inner layer: the lists get one more item, and the other
/// headers stay, because the inner layer decided last.
pub fn set_headers(map: &mut HeaderMap, headers: Vec<(&'static str, String)>) {
    for (name, value) in headers {
        let (Ok(header), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value)) else {
            continue;
        };
        match name {
            "RateLimit-Policy" | "RateLimit" => {
                map.append(header, value);
            }
            _ => {
                map.entry(header).or_insert(value);
            }
        }
    }
}
