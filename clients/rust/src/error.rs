//! What can go wrong.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use redis::{ErrorKind, RedisError};

use crate::decision::problem;
use crate::{headers, AllDecision, Decision};

/// What can go wrong. [`OnDown`](crate::OnDown) decides about `Unavailable`, `NoModule` and `NotAllowed`; all others are always
/// returned.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A policy, a duration or a name that is wrong. No call was made.
    #[error("{0}")]
    InvalidLimit(String),
    /// A key that is empty; a key that one call names twice; keys of one call that have different slots of a cluster.
    #[error("{0}")]
    InvalidKey(String),
    /// A cost or a batch that is not from 1 to 1000000000000. No call was made.
    #[error("{0}")]
    InvalidCost(String),
    /// A wait that is longer than a day, or no duration. No call was made.
    #[error("{0}")]
    InvalidWait(String),
    /// An id that is not 1 to 64 bytes long. No call was made.
    #[error("{0}")]
    InvalidId(String),
    /// What the server refuses with `ERR`, a malformed address, or a call outside of a tokio runtime.
    #[error("{0}")]
    InvalidArgument(String),
    /// The call was denied. Only `or_denied`, `charge`, `hold` and `admit` return this.
    #[error("{0}")]
    RateLimited(Box<Denial>),
    /// The lease of a block has ended.
    #[error("the lease has ended while it was held")]
    LeaseLost,
    /// The server gave no decision: there is no connection, no reply came in time, or the server can't decide now.
    #[error("the server gave no decision: {cause}")]
    Unavailable {
        /// Why.
        #[source]
        cause: Cause,
        /// The server may have executed the call.
        sent: bool,
    },
    /// The server has no module redis-rl, or one that is too old for this call.
    #[error("the server has no module redis-rl, or one that is too old: {0}")]
    NoModule(String),
    /// The password is wrong or missing, or the user has no right to the command or to the key.
    #[error("the server does not allow the call: {0}")]
    NotAllowed(String),
    /// The key, or one of these keys, holds something else.
    #[error("a key holds something else: {0}")]
    WrongType(String),
    /// The reply has another shape than this crate knows.
    #[error("the reply has another shape: {0}")]
    UnexpectedReply(String),
    /// The program has closed the wallet or the limits.
    #[error("the program has closed the wallet or the limits")]
    Closed,
}

/// What a call was denied by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denial {
    /// The decision that denied the call; of several, the one with the longest wait.
    pub decision: Decision,
    /// All decisions of the call: one, or one of each limit.
    pub decisions: Vec<Decision>,
}

impl Denial {
    /// How long to wait before the call is made again; `None` if it would never be granted.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.wait()
    }

    /// The headers of an answer to an HTTP request, with one item for each limit.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        headers(&self.decisions)
    }

    /// The body of an answer to an HTTP request: `application/problem+json`, with the names of the limits that denied the call.
    pub fn problem(&self) -> String {
        problem(&self.decisions)
    }
}

impl Decision {
    /// The decision itself if the call was granted.
    pub fn or_denied(self) -> Result<Self, Error> {
        match self.allowed() {
            true => Ok(self),
            false => Err(Error::RateLimited(Box::new(Denial { decisions: vec![self.clone()], decision: self }))),
        }
    }
}

impl AllDecision {
    /// The decision itself if all limits granted, or else the error with the decision that makes the call wait longest.
    pub(crate) fn or_denied(self) -> Result<Self, Error> {
        if self.granted {
            return Ok(self);
        }
        let refused = self.decisions.iter().filter(|decision| !decision.allowed());
        let longest = refused.max_by_key(|decision| decision.wait_ms.unwrap_or(u64::MAX)).cloned();
        match longest {
            Some(decision) => Err(Error::RateLimited(Box::new(Denial { decision, decisions: self.decisions }))),
            None => Err(Error::UnexpectedReply("the call was denied, and no limit has refused".to_string())),
        }
    }
}

/// The error that an [`Error::Unavailable`] was caused by.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

impl Error {
    /// Whether an argument is wrong: one of the errors that begin with `Invalid`.
    pub fn is_invalid_argument(&self) -> bool {
        matches!(
            self,
            Self::InvalidLimit(_)
                | Self::InvalidKey(_)
                | Self::InvalidCost(_)
                | Self::InvalidWait(_)
                | Self::InvalidId(_)
                | Self::InvalidArgument(_)
        )
    }

    /// Whether the server gave no decision: [`Unavailable`](Self::Unavailable), [`NoModule`](Self::NoModule) or
    /// [`NotAllowed`](Self::NotAllowed).
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::NoModule(_) | Self::NotAllowed(_))
    }

    /// Whether the server may have executed the call although there is no decision.
    pub(crate) fn may_be_charged(&self) -> bool {
        matches!(self, Self::Unavailable { sent: true, .. } | Self::UnexpectedReply(_))
    }

    /// The same error, of a call that was sent or not.
    pub(crate) fn with_sent(self, sent: bool) -> Self {
        match self {
            Self::Unavailable { cause, .. } => Self::Unavailable { cause, sent },
            other => other,
        }
    }

    /// What the operator can do about a server that gives no decision.
    pub(crate) fn advice(&self) -> &'static str {
        let text = match self {
            Self::NoModule(_) => return "load a new version of the module redis-rl into the server",
            Self::NotAllowed(_) => return "check the user, the password and the rights of the user (ACL) on the server",
            other => other.to_string(),
        };
        let known = [
            ("LOADING", "the server loads its data: wait until it has"),
            ("READONLY", "the server is a replica: connect to the primary"),
            ("MASTERDOWN", "the server is a replica without its primary: connect to the primary"),
            ("CLUSTERDOWN", "the cluster has slots without a node: repair the cluster"),
            ("MISCONF", "the server can't save its data: see its log, and its disk"),
            ("NOREPLICAS", "the server has too few replicas: see min-replicas-to-write"),
            ("OOM", "the server is out of memory: see maxmemory"),
            ("BUSY", "a script runs on the server for too long: end it with SCRIPT KILL"),
        ];
        let found = known.into_iter().find(|(code, _)| text.contains(code));
        found.map_or("check that the server runs, and that this process can reach it", |(_, advice)| advice)
    }

    /// The error with the keys of the call, if one of them holds something else.
    pub(crate) fn with_keys(self, keys: &[&[u8]]) -> Self {
        let Self::WrongType(text) = self else { return self };
        let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        Self::WrongType(format!("{}: {text}", keys.join(", ")))
    }

    /// No decision because something took too long.
    pub(crate) fn in_time(what: &str, time: Duration, sent: bool) -> Self {
        let text = format!("{what} within {} ms", time.as_millis());
        Self::Unavailable { cause: Arc::new(io::Error::new(io::ErrorKind::TimedOut, text)), sent }
    }

    /// What a reply says that is an error, or what has failed before a call was sent.
    pub(crate) fn of_redis(error: RedisError) -> Self {
        let text = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            _ => error.to_string(),
        };
        let has = |start: &str| error.detail().is_some_and(|detail| detail.starts_with(start));
        match (error.code(), error.kind()) {
            (Some("ERR"), _) if has("unknown command") => Self::NoModule(text),
            // The server's own state, which is no fault of the call.
            (Some("ERR"), _) if has("max number of clients") || has("too many waiting calls") => {
                Self::Unavailable { cause: Arc::new(error), sent: false }
            }
            (Some("ERR"), _) => Self::InvalidArgument(text),
            (Some("NOPERM" | "NOAUTH" | "WRONGPASS"), _) | (_, ErrorKind::AuthenticationFailed) => Self::NotAllowed(text),
            (Some("WRONGTYPE"), _) => Self::WrongType(text),
            (Some("CROSSSLOT"), _) => {
                Self::InvalidKey(format!("{text}: all keys of a call need the same hash tag, and so do its policy keys"))
            }
            (_, ErrorKind::UnexpectedReturnType) => Self::UnexpectedReply(text),
            _ => Self::Unavailable { cause: Arc::new(error), sent: false },
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = self.decisions.iter().filter(|decision| !decision.allowed());
        let names = refused.map(|decision| &*decision.name).collect::<Vec<_>>().join(", ");
        match self.retry_after() {
            Some(wait) => write!(f, "denied by {names}: retry in {} s", wait.as_secs_f64()),
            None => write!(f, "denied by {names}: it will never be granted"),
        }
    }
}
