//! Clients of redis-cell, unmodified, against `CL.THROTTLE`: they understand its replies.

use std::time::Duration;

use redis_cell_rs::{AllowedDetails, BlockedDetails, Cmd, Key, Policy, Verdict};
use support::{Resp, Server};
use tower::{service_fn, Layer, ServiceExt};
use tower_redis_cell::{Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule};

/// The policy of redis-cell's own example.
const CLASSIC: Policy = Policy::new(15, 30, Duration::from_secs(60), 1);
const FIVE_OF_TEN_SECONDS: Policy = Policy::from_tokens_per_period(1, Duration::from_secs(10)).max_burst(4);

fn allowed(verdict: Verdict) -> (usize, usize, u64) {
    match verdict {
        Verdict::Allowed(AllowedDetails { total, remaining, reset_after, .. }) => (total, remaining, reset_after),
        Verdict::Blocked(details) => panic!("{details:?}"),
    }
}

fn blocked(verdict: Verdict) -> (usize, usize, u64, u64) {
    match verdict {
        Verdict::Blocked(BlockedDetails { total, remaining, reset_after, retry_after, .. }) => {
            (total, remaining, reset_after, retry_after)
        }
        Verdict::Allowed(details) => panic!("{details:?}"),
    }
}

#[test]
fn redis_cell_rs() {
    let server = Server::start();
    for resp in [Resp::Two, Resp::Three] {
        let mut client = server.client_of(resp);
        support::call::<()>(&mut client, "FLUSHALL");
        let mut call = |key: &Key<'_>, policy: &Policy| -> Verdict {
            redis::Cmd::from(Cmd::new(key, policy)).query(&mut client).expect("a verdict")
        };
        for key in [Key::from("user123"), Key::from(42_usize), Key::pair("user123", "/api"), Key::triple("a", "b", "c")] {
            assert_eq!(allowed(call(&key, &CLASSIC)), (16, 15, 2), "{key}");
        }
        let key = Key::from("five");
        for used in 1..=5 {
            assert_eq!(allowed(call(&key, &FIVE_OF_TEN_SECONDS)), (5, 5 - used, 10 * used as u64));
        }
        assert_eq!(blocked(call(&key, &FIVE_OF_TEN_SECONDS)), (5, 0, 50, 10));
        assert_eq!(blocked(call(&key, &FIVE_OF_TEN_SECONDS.apply_tokens(5))), (5, 0, 50, 50));
        // With nothing applied, the reply shows the present state.
        assert_eq!(allowed(call(&key, &FIVE_OF_TEN_SECONDS.apply_tokens(0))), (5, 0, 50));
        assert_eq!(allowed(call(&Key::from("new"), &Policy::from_tokens_per_second(3))), (1, 0, 1));
    }
}

/// A request: its user, if that is known, and whether there is a rule for it.
struct Request {
    user: Option<&'static str>,
    ruled: bool,
}

#[derive(Clone)]
struct PerUser;

impl ProvideRule<Request> for PerUser {
    fn provide<'a>(&self, request: &'a Request) -> ProvideRuleResult<'a> {
        if !request.ruled {
            return Ok(None);
        }
        let user = request.user.ok_or("the request has no user")?;
        Ok(Some(Rule::new(Key::pair(user, "articles"), FIVE_OF_TEN_SECONDS.apply_tokens(2)).resource("articles::write")))
    }
}

#[test]
fn tower_redis_cell() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = redis::Client::open(format!("redis+unix://{}", server.socket().display())).expect("an address");
        let connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let config = RateLimitConfig::new(PerUser, |error: Error<'_>, _: &Request| match error {
            Error::RateLimit(blocked) => {
                let BlockedDetails { total, remaining, reset_after, retry_after, .. } = blocked.details;
                format!("{}: blocked {total} {remaining} {reset_after} {retry_after}", blocked.rule.key)
            }
            error => format!("error: {error}"),
        })
        .on_success(|allowed, response: &mut String| {
            let AllowedDetails { total, remaining, reset_after, .. } = allowed.details;
            *response += &format!(": allowed {total} {remaining} {reset_after} for {:?}", allowed.resource);
        })
        .on_unruled(|response: &mut String| *response += ": no rule");
        let service = service_fn(|request: Request| async move {
            Ok::<_, std::convert::Infallible>(request.user.unwrap_or("nobody").to_string())
        });
        let service = RateLimitLayer::new(config, connection).layer(service);
        for (user, ruled, expected) in [
            (Some("ada"), true, "ada: allowed 5 3 20 for Some(\"articles::write\")"),
            (Some("ada"), true, "ada: allowed 5 1 40 for Some(\"articles::write\")"),
            (Some("ada"), true, "(ada, articles): blocked 5 1 40 10"),
            (Some("bob"), true, "bob: allowed 5 3 20 for Some(\"articles::write\")"),
            (Some("ada"), false, "ada: no rule"),
            (None, true, "error: rule: failed to provide rule: the request has no user"),
        ] {
            let response = service.clone().oneshot(Request { user, ruled }).await.expect("a response");
            assert_eq!(response, expected);
        }
    });
}
