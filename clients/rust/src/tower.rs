//! A layer for axum and other frameworks on tower: one decision for each request, and headers with the remaining units.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{HeaderName, HeaderValue, CONTENT_TYPE};
use http::{HeaderMap, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Decision, Error, Key, Limit, Limits, RatePolicy, Wallet};

/// What decides a request.
#[derive(Clone, Debug)]
pub enum Decider {
    /// A limit.
    Limit(Limit),
    /// A wallet.
    Wallet(Wallet),
}

impl<P: RatePolicy> From<Limit<P>> for Decider {
    fn from(limit: Limit<P>) -> Self {
        Self::Limit(limit.erase())
    }
}

impl From<Wallet> for Decider {
    fn from(wallet: Wallet) -> Self {
        Self::Wallet(wallet)
    }
}

impl Decider {
    fn limits(&self) -> &Limits {
        match self {
            Self::Limit(limit) => limit.limits(),
            Self::Wallet(wallet) => wallet.limits(),
        }
    }

    async fn take(&self, key: &[u8], cost: u64) -> Result<Decision, Error> {
        match self {
            Self::Limit(limit) => limit.take(key).cost(cost).await,
            Self::Wallet(wallet) => wallet.take(key).cost(cost).await,
        }
    }
}

/// What can be the limit of a [`RateLimitLayer`]: a [`Limit`], a [`Wallet`], or a function from the request to one of them, for limits
/// that depend on the request, such as those of a plan.
pub trait Decides<B>: Clone {
    /// What decides this request.
    fn decider(&self, request: &Request<B>) -> Decider;
}

impl<P: RatePolicy, B> Decides<B> for Limit<P> {
    fn decider(&self, _: &Request<B>) -> Decider {
        self.clone().into()
    }
}

impl<B> Decides<B> for Wallet {
    fn decider(&self, _: &Request<B>) -> Decider {
        self.clone().into()
    }
}

impl<B, F: Fn(&Request<B>) -> D + Clone, D: Into<Decider>> Decides<B> for F {
    fn decider(&self, request: &Request<B>) -> Decider {
        self(request).into()
    }
}

type Denied<R> = Arc<dyn Fn(&Decision) -> Response<R> + Send + Sync>;
type OfRequest<B, T> = Arc<dyn Fn(&Request<B>) -> T + Send + Sync>;

/// Limits requests. The limit is a [`Limit`], a [`Wallet`], or a function from the request to one of them. Another function returns the
/// key of each request; requests without a key are not limited. A denied request is answered with 429 and [`Decision::problem`]. If the server gives no decision, the answer is 503, unless
/// [`OnDown`](crate::OnDown) decides. Other errors are faults of the program: they are logged, and the request goes through if
/// [`OnDown`](crate::OnDown) is open or local, and is answered with 500 otherwise. All answers have the headers of the decision; with
/// several layers, each one adds an item to the first two. The decision is an extension of the request.
pub struct RateLimitLayer<B, R> {
    limit: OfRequest<B, Decider>,
    key: OfRequest<B, Option<Vec<u8>>>,
    cost: OfRequest<B, u64>,
    denied: Denied<R>,
}

impl<B: 'static, R: From<String> + 'static> RateLimitLayer<B, R> {
    /// Limits requests by the key that `key` returns.
    pub fn new<L, K, T>(limit: L, key: K) -> Self
    where
        L: Decides<B> + Send + Sync + 'static,
        K: Fn(&Request<B>) -> Option<T> + Send + Sync + 'static,
        T: Key,
    {
        Self {
            limit: Arc::new(move |request| limit.decider(request)),
            key: Arc::new(move |request| key(request).map(|key| key.bytes().into_owned())),
            cost: Arc::new(|_| 1),
            denied: Arc::new(|decision| answer(StatusCode::TOO_MANY_REQUESTS, decision.problem())),
        }
    }

    /// How many units a request takes; 1 by default.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Request<B>) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Arc::new(cost), ..self }
    }

    /// Which requests are not limited.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Request<B>) -> bool + Send + Sync + 'static) -> Self {
        let key = self.key;
        Self { key: Arc::new(move |request| if skip(request) { None } else { key(request) }), ..self }
    }

    /// Makes the answer to a denied request. The headers of the decision are added to it.
    #[must_use]
    pub fn denied(self, denied: impl Fn(&Decision) -> Response<R> + Send + Sync + 'static) -> Self {
        Self { denied: Arc::new(denied), ..self }
    }
}

impl<B, R> Clone for RateLimitLayer<B, R> {
    fn clone(&self) -> Self {
        let Self { limit, key, cost, denied } = self;
        Self { limit: limit.clone(), key: key.clone(), cost: cost.clone(), denied: denied.clone() }
    }
}

impl<B, R> fmt::Debug for RateLimitLayer<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<S, B, R> Layer<S> for RateLimitLayer<B, R> {
    type Service = RateLimit<S, B, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, layer: self.clone() }
    }
}

/// The service of a [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimit<S, B, R> {
    inner: S,
    layer: RateLimitLayer<B, R>,
}

impl<S: Clone, B, R> Clone for RateLimit<S, B, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String> + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // `poll_ready` was called on `self.inner`, not on its clone: call the original, and keep the clone.
        let inner = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, inner);
        let RateLimitLayer { limit, key, cost, denied } = &self.layer;
        let Some(key) = key(&request) else {
            return Box::pin(inner.call(request));
        };
        let (cost, decider, denied) = (cost(&request), limit(&request), denied.clone());
        Box::pin(async move {
            let limits = decider.limits();
            let decision = match decider.take(&key, cost).await {
                Ok(decision) => decision,
                Err(error) if error.is_unavailable() => {
                    limits.warn(&error, "requests are answered with 503");
                    return Ok(problem(StatusCode::SERVICE_UNAVAILABLE));
                }
                Err(error) => {
                    limits.warn(&error, "a request is not limited, because its key, its cost or its limit is wrong");
                    return match limits.goes_on() {
                        true => inner.call(request).await,
                        false => Ok(problem(StatusCode::INTERNAL_SERVER_ERROR)),
                    };
                }
            };
            let headers = decision.headers();
            let mut response = match decision.allowed() {
                true => {
                    request.extensions_mut().insert(decision);
                    inner.call(request).await?
                }
                false => denied(&decision),
            };
            set_headers(response.headers_mut(), headers);
            Ok(response)
        })
    }
}

fn answer<R: From<String>>(status: StatusCode, body: String) -> Response<R> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// An answer without a decision.
fn problem<R: From<String>>(status: StatusCode) -> Response<R> {
    let title = status.canonical_reason().unwrap_or_default();
    answer(status, format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{}}}", status.as_u16()))
}

/// Adds the headers of a decision to an answer that may have those of an inner layer: the lists get one more item, and the other
/// headers stay, because the inner layer decided last.
fn set_headers(map: &mut HeaderMap, headers: Vec<(&'static str, String)>) {
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
