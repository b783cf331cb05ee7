//! What decisions say in an answer to an HTTP request.

use std::cmp::Reverse;
use std::fmt::Write;

use crate::decision::Source;
use crate::{Decision, Policy};

/// The headers of several decisions about one request: `RateLimit-Policy` and `RateLimit` list all of them; the other headers
/// show the one that denies for longest, or else the one with the fewest units remaining.
pub fn headers<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> Vec<(&'static str, String)> {
    let counted: Vec<&Decision> = decisions.into_iter().filter(|decision| decision.source != Source::Down).collect();
    // A call that is never granted waits longer than any other.
    let wait = |decision: &Decision| if decision.allowed() { 0 } else { decision.wait_ms.unwrap_or(u64::MAX) };
    let remaining = |decision: &Decision| if decision.allowed() { decision.remaining } else { 0 };
    let tightest = |decision: &&&Decision| (Reverse(wait(decision)), remaining(decision));
    let Some(tightest) = counted.iter().min_by_key(tightest) else {
        return Vec::new();
    };
    let mut policies = String::new();
    let mut states = String::new();
    for (index, decision) in counted.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let name = quoted(&decision.name);
        let rate = decision.policy.rate();
        let window = match &decision.policy {
            // A lease has no window: its limit counts what runs at the same time.
            policy if policy.is_lease() => ";qu=\"concurrent-requests\"".to_string(),
            // Only the server knows the policy.
            Policy::Named(_) => String::new(),
            _ => format!(";w={}", decision.window.unwrap_or(rate.period.seconds())),
        };
        let quota = if decision.policy.is_named() { decision.limit } else { rate.limit };
        let _ = write!(policies, "{comma}{name};q={quota}{window}");
        let _ = write!(states, "{comma}{name};r={}", decision.remaining);
        let t_ms = if decision.allowed() { Some(decision.reset_ms) } else { decision.wait_ms };
        if let Some(t_ms) = t_ms {
            let _ = write!(states, ";t={}", t_ms.div_ceil(1_000));
        }
    }
    let mut headers = vec![
        ("RateLimit-Policy", policies),
        ("RateLimit", states),
        ("X-RateLimit-Limit", tightest.limit.to_string()),
        ("X-RateLimit-Remaining", tightest.remaining.to_string()),
        ("X-RateLimit-Reset", tightest.reset_ms.div_ceil(1_000).to_string()),
    ];
    if let (false, Some(wait_ms)) = (tightest.allowed(), tightest.wait_ms) {
        headers.push(("Retry-After", wait_ms.div_ceil(1_000).to_string()));
    }
    headers
}

/// The body of an answer to a denied request, as draft-ietf-httpapi-ratelimit-headers defines it, with the names of the limits
/// that denied it.
pub(crate) fn problem<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> String {
    let denied = decisions.into_iter().filter(|decision| !decision.allowed());
    let names: Vec<_> = denied.map(|decision| quoted(&decision.name)).collect();
    format!(
        "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
         \"status\":429,\"violated-policies\":[{}]}}",
        names.join(",")
    )
}

/// A string of structured fields (RFC 9651), and of JSON. A name is printable ASCII.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}
