//! Decisions, and what they say in an answer to an HTTP request.

use std::cmp::Reverse;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::{Denial, Error, Policy};

/// What the server has decided.
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
    pub wait_ms: Option<u64>,
    /// The time in milliseconds until no unit is in use.
    pub reset_ms: u64,
    /// Whether the server has counted the call. It has not if it was down and [`OnDown::Open`](crate::OnDown::Open) let it
    /// through.
    pub counted: bool,
    /// The policy.
    pub policy: Policy,
    /// The name of the limit.
    pub name: Arc<str>,
}

impl Decision {
    /// Reads the five integers of a reply.
    ///
    /// # Errors
    /// [`Error::UnexpectedReply`] if an integer is outside of its range.
    pub fn of_reply(reply: [i64; 5], policy: Policy, name: Arc<str>) -> Result<Self, Error> {
        let unexpected = || Error::UnexpectedReply(format!("{reply:?}"));
        let natural = |number: i64| u64::try_from(number).map_err(|_| unexpected());
        let wait_ms = match reply[3] {
            -1 => None,
            wait_ms => Some(natural(wait_ms)?),
        };
        let [granted, limit, remaining, reset_ms] =
            [natural(reply[0])?, natural(reply[1])?, natural(reply[2])?, natural(reply[4])?];
        Ok(Self { granted, limit, remaining, wait_ms, reset_ms, counted: true, policy, name })
    }

    /// A call that goes through although the server has not counted it.
    #[cfg(feature = "tokio")]
    pub(crate) fn uncounted(granted: u64, policy: Policy, name: Arc<str>) -> Self {
        Self { granted, limit: policy.capacity(), remaining: 0, wait_ms: Some(0), reset_ms: 0, counted: false, policy, name }
    }

    /// Whether the call was granted. A refund of a key that has nothing in use gives back 0 units, and is not denied.
    pub fn allowed(&self) -> bool {
        self.granted > 0 || self.wait_ms == Some(0)
    }

    /// Whether the call was denied.
    pub fn denied(&self) -> bool {
        !self.allowed()
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

    /// The decision itself if the call was granted.
    ///
    /// # Errors
    /// [`Error::RateLimited`] if it was denied.
    pub fn or_denied(self) -> Result<Self, Error> {
        if self.allowed() {
            Ok(self)
        } else {
            Err(Error::RateLimited(Box::new(Denial { decisions: vec![self.clone()], decision: self })))
        }
    }

    /// The headers of an answer to an HTTP request: `RateLimit-Policy` and `RateLimit` as
    /// draft-ietf-httpapi-ratelimit-headers defines them, `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`
    /// (seconds until no unit is in use), and if the call was denied `Retry-After`, unless a retry would never be granted.
    /// There are none if the call was not counted.
    ///
    /// ```
    /// # use redis_rl_client::{Decision, Gcra};
    /// let denied = Decision::of_reply([0, 10, 0, 5900, 59900], Gcra::new("10/m")?.into(), "api".into())?;
    /// let headers = denied.headers();
    /// assert_eq!(headers[0], ("RateLimit-Policy", "\"api\";q=10;w=60".to_string()));
    /// assert_eq!(headers[1], ("RateLimit", "\"api\";r=0;t=6".to_string()));
    /// assert_eq!(headers[5], ("Retry-After", "6".to_string()));
    /// # Ok::<(), redis_rl_client::Error>(())
    /// ```
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        headers([self])
    }
}

/// The headers of several decisions about one request: `RateLimit-Policy` and `RateLimit` list all of them; the other headers
/// show the one that denies for longest, or else the one with the fewest units remaining.
pub fn headers<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> Vec<(&'static str, String)> {
    let counted: Vec<&Decision> = decisions.into_iter().filter(|decision| decision.counted).collect();
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
        let window = match decision.policy {
            // A lease has no window: its limit counts what runs at the same time.
            Policy::Lease(_) => "qu=\"concurrent-requests\"".to_string(),
            policy => format!("w={}", policy.period().as_micros().div_ceil(1_000_000).max(1)),
        };
        let _ = write!(policies, "{comma}{name};q={};{window}", decision.policy.limit());
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
    if let (true, Some(wait_ms)) = (tightest.denied(), tightest.wait_ms) {
        headers.push(("Retry-After", wait_ms.div_ceil(1_000).to_string()));
    }
    headers
}

/// A string of structured fields (RFC 9651). It has printable ASCII only, so other bytes, which no name of a limit has, become
/// `%` and two digits.
fn quoted(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            0x20..=0x7e => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text.push('"');
    text
}

/// What the server has decided about several limits: all are granted, or none.
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

    /// The decision itself if all limits granted.
    ///
    /// # Errors
    /// [`Error::RateLimited`] if the call was denied, with the decision of the limit that makes it wait longest.
    pub fn or_denied(self) -> Result<Self, Error> {
        if self.granted {
            return Ok(self);
        }
        let refused = self.decisions.iter().filter(|decision| decision.denied());
        let longest = refused.max_by_key(|decision| decision.wait_ms.unwrap_or(u64::MAX)).cloned();
        match longest {
            Some(decision) => Err(Error::RateLimited(Box::new(Denial { decision, decisions: self.decisions }))),
            None => Err(Error::UnexpectedReply("the call was denied, and no limit has refused".to_string())),
        }
    }
}
