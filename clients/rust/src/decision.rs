//! Decisions, and what they say in an answer to an HTTP request.

use std::cmp::Reverse;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::Policy;

/// What has decided a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The server.
    Server,
    /// A [`Wallet`](crate::Wallet), from units that the server has charged.
    Wallet,
    /// A denial of before, which is repeated: see [`Limits::repeat_denials`](crate::Limits::repeat_denials).
    Repeated,
    /// [`OnDown`](crate::OnDown), because the server gave no decision. Such a decision has no headers.
    Down,
}

/// What has been decided about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// The units that were granted, or given back by a refund; 0 if the call was denied.
    pub granted: u64,
    /// The capacity in force: the limit, or the burst or capacity of the policy.
    pub limit: u64,
    /// The whole units that could be taken right now.
    pub remaining: u64,
    /// Denied: the time in milliseconds until this same call would be granted, if no other call came first; `None` = never.
    /// Granted: 0, or with `reserve` the time until the units are free.
    pub wait_ms: Option<u64>,
    /// The time in milliseconds until no unit is in use.
    pub reset_ms: u64,
    /// What has decided.
    pub source: Source,
    /// The policy.
    pub policy: Policy,
    /// The name of the limit.
    pub name: Arc<str>,
    /// The length of the window in seconds, if it is one of a calendar.
    pub(crate) window: Option<u64>,
}

impl Decision {
    /// What the five integers of a reply say.
    pub(crate) fn of_reply(reply: [i64; 5], policy: Policy, name: Arc<str>) -> Option<Self> {
        let natural = |at: usize| u64::try_from(reply[at]).ok();
        let [granted, limit, remaining, reset_ms] = [natural(0)?, natural(1)?, natural(2)?, natural(4)?];
        let wait_ms = if reply[3] == -1 { None } else { Some(natural(3)?) };
        Some(Self { granted, limit, remaining, wait_ms, reset_ms, source: Source::Server, policy, name, window: None })
    }

    /// A call that goes through without the server.
    pub(crate) fn open(granted: u64, policy: Policy, name: Arc<str>) -> Self {
        let limit = policy.capacity();
        let (wait_ms, source) = (Some(0), Source::Down);
        Self { granted, limit, remaining: 0, wait_ms, reset_ms: 0, source, policy, name, window: None }
    }

    /// Whether the call was granted. A refund of a key that has nothing in use gives back 0 units, and is not denied.
    pub fn allowed(&self) -> bool {
        self.granted > 0 || self.wait_ms == Some(0)
    }

    /// Denied: the time until this same call would be granted; `None` = never. Granted: zero, or with `reserve` the time until
    /// the units may be used.
    pub fn wait(&self) -> Option<Duration> {
        self.wait_ms.map(Duration::from_millis)
    }

    /// The time until no unit is in use.
    pub fn reset(&self) -> Duration {
        Duration::from_millis(self.reset_ms)
    }

    /// The headers of an answer to an HTTP request: `RateLimit-Policy` and `RateLimit` as
    /// draft-ietf-httpapi-ratelimit-headers defines them, `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset` (seconds until no unit is in use), and if the
    /// call was denied `Retry-After`, unless a retry would never be granted. There are none without the server.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        headers([self])
    }

    /// The body of an answer to a denied HTTP request: `application/problem+json`, with the name of the limit.
    pub fn problem(&self) -> String {
        problem([self])
    }
}

/// What has been decided about several limits: all are granted, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllDecision {
    /// Whether all limits granted.
    pub granted: bool,
    /// The id of the call, if it had one, or if one was made because a limit is a lease. It names the charge on each key.
    pub id: Option<Vec<u8>>,
    /// The longest wait of the limits in milliseconds; `None` = never.
    pub wait_ms: Option<u64>,
    /// The decision of each limit, in the order of the call. If the call was denied, `granted` is 0 for each limit that refused,
    /// and for the others the units that they would have granted.
    pub decisions: Vec<Decision>,
}

impl AllDecision {
    /// What these decisions come to, if each limit has decided by itself.
    pub(crate) fn of_parts(decisions: Vec<Decision>, id: Option<Vec<u8>>) -> Self {
        // A rule that is never granted makes the whole call wait for ever.
        let wait_ms =
            decisions.iter().map(|decision| decision.wait_ms).try_fold(0, |longest, wait| Some(wait?.max(longest)));
        Self { granted: decisions.iter().all(Decision::allowed), id, wait_ms, decisions }
    }

    /// Whether all limits granted.
    pub fn allowed(&self) -> bool {
        self.granted
    }

    /// The longest wait of the limits; `None` = never.
    pub fn wait(&self) -> Option<Duration> {
        self.wait_ms.map(Duration::from_millis)
    }

    /// The headers of an answer to an HTTP request, with one item for each limit.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        headers(&self.decisions)
    }
}

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
