//! What can go wrong.

use std::error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{headers, Decision};

/// What can go wrong. [`OnDown::Open`](crate::OnDown::Open) turns only `Down` into a decision; all others are always returned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A policy, a duration or a name that the server would refuse. No call was made.
    InvalidLimit(String),
    /// A key that is empty; a key that one call names twice; keys of one call that have different slots of a cluster. No call was
    /// made.
    InvalidKey(String),
    /// A cost that is not from 1 to 1000000000000. No call was made.
    InvalidCost(String),
    /// A wait that is longer than a day, or no duration. No call was made.
    InvalidWait(String),
    /// An id that is not 1 to 64 bytes long. No call was made.
    InvalidId(String),
    /// A wait with a connection that cannot open another one: see [`Limits::waits_with`](crate::Limits::waits_with). No call was
    /// made.
    NoClient,
    /// The call was made outside of a tokio runtime, or on one without timers. Nothing was sent.
    NoRuntime,
    /// The call was denied. Only `or_denied`, `protect`, `charge`, `hold` and `admit` return this.
    RateLimited(Box<Denial>),
    /// The lease has ended while it was held, or could not be renewed for a whole time to live.
    LeaseLost,
    /// The server gave no decision: there is no connection, a time-out has passed, the server is loading its data, is a replica,
    /// or has no memory. If the connection was lost after the call was sent, the server may have charged it.
    Down(Cause),
    /// The server does not know the command: it has no module, or one that is too old for this command.
    NoModule(String),
    /// The key, or one of these keys, holds something else.
    WrongType(String),
    /// The reply has another shape than this crate knows.
    UnexpectedReply(String),
    /// The server has refused the call: its arguments, for another reason than this crate checks before a call; the password; or the
    /// user, who has no right to the command or to the key.
    Refused(String),
}

/// What a call was denied by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denial {
    /// The decision that denied the call; of several, the one with the longest wait.
    pub decision: Decision,
    /// All decisions of the call: one, or one of each limit of [`Limits::all`](crate::Limits::all) or
    /// [`Limits::admit`](crate::Limits::admit).
    pub decisions: Vec<Decision>,
}

/// The error that a [`Error::Down`] was caused by.
#[derive(Clone)]
pub struct Cause(Arc<dyn error::Error + Send + Sync>);

impl Cause {
    /// Wraps an error.
    pub fn new(error: impl error::Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error {
    /// Whether an argument was refused before a call was made.
    pub fn is_invalid_argument(&self) -> bool {
        matches!(
            self,
            Self::InvalidLimit(_) | Self::InvalidKey(_) | Self::InvalidCost(_) | Self::InvalidWait(_) | Self::InvalidId(_)
        )
    }

    /// Whether the call was denied: [`Error::RateLimited`].
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::RateLimited(_))
    }

    /// Whether the server gave no decision: [`Error::Down`].
    pub fn is_down(&self) -> bool {
        matches!(self, Self::Down(_))
    }

    /// The decision, if the call was denied; of several limits, the one with the longest wait.
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::RateLimited(denial) => Some(&denial.decision),
            _ => None,
        }
    }

    /// The decisions of all limits, if the call was denied; else none.
    pub fn decisions(&self) -> &[Decision] {
        match self {
            Self::RateLimited(denial) => &denial.decisions,
            _ => &[],
        }
    }

    /// How long to wait before the call is made again, if it was denied. `None` also if it would never be granted.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision()?.wait()
    }

    /// The headers of an answer to an HTTP request, if the call was denied, with one item for each limit; else none.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        headers(self.decisions())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidLimit(text)
            | Self::InvalidKey(text)
            | Self::InvalidCost(text)
            | Self::InvalidWait(text)
            | Self::InvalidId(text) => f.write_str(text),
            Self::NoClient => {
                f.write_str("a wait needs a client that opens its connection: name one with Limits::waits_with")
            }
            Self::NoRuntime => f.write_str("a call needs a tokio runtime with timers, and there is none here"),
            Self::RateLimited(denial) => {
                let refused = denial.decisions.iter().filter(|decision| decision.denied());
                let names = refused.map(|decision| &*decision.name).collect::<Vec<_>>().join(", ");
                match denial.decision.wait() {
                    Some(wait) => write!(f, "denied by {names}: retry in {} s", wait.as_secs_f64()),
                    None => write!(f, "denied by {names}: it will never be granted"),
                }
            }
            Self::LeaseLost => f.write_str("the lease has ended while it was held"),
            Self::Down(cause) => write!(f, "the server gave no decision: {cause}"),
            Self::NoModule(text) => write!(f, "the server has no module redis-rl, or one that is too old: {text}"),
            Self::WrongType(text) => write!(f, "a key holds something else: {text}"),
            Self::UnexpectedReply(text) => write!(f, "the reply has another shape: {text}"),
            Self::Refused(text) => write!(f, "the server has refused the call: {text}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Down(cause) => Some(&*cause.0),
            _ => None,
        }
    }
}
