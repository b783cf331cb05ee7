//! Sends a call: once without an id, and repeatedly with one; and turns what comes back into decisions and errors.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::Handle;

use crate::connection::{Call, Failure};
use crate::{Decision, Error, Limits, Policy, Span};

/// The pauses between the repetitions of a call.
const PAUSES_MS: [u64; 4] = [10, 20, 40, 80];

/// No call is repeated for longer. (The sum of a moment and a longer time may overflow.)
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A reply to a call that may have been repeated.
pub(crate) struct Reply {
    pub(crate) value: Value,
    /// How often the call was sent.
    pub(crate) sent: u32,
    /// It has waited in line.
    pub(crate) waited: bool,
}

type Command<'a> = dyn Fn(Option<Span>, bool) -> Cmd + Sync + 'a;

/// What to send.
pub(crate) struct Request<'a> {
    /// The command, with this wait if it is to wait; by policy keys or, if the server has none of them, without.
    pub(crate) command: &'a Command<'a>,
    pub(crate) key: &'a [u8],
    /// The command has an id: it may be repeated.
    pub(crate) repeat: bool,
    pub(crate) wait: Option<Span>,
    /// It ends or renews a charge: it is sent although the server is down, or the limits are closed.
    pub(crate) forced: bool,
}

impl Limits {
    /// Sends a request, and returns the reply to it.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Reply, Error> {
        if Handle::try_current().is_err() {
            return Err(Error::InvalidArgument("a call needs a tokio runtime, and there is none here".to_string()));
        }
        if !request.forced {
            self.check_open()?;
        }
        let began = Instant::now();
        // A call that may wait asks first, on the connection that all calls share. The server denies it while others wait, so it
        // overtakes none of them.
        let asked = self.repeat(&request, None).await?;
        let Some(wait) = request.wait.filter(|_| may_wait(&asked.value)) else { return Ok(asked) };
        let until = began + Duration::from(wait);
        tokio::select! {
            biased;
            () = self.closed() => Err(Error::Closed),
            waited = self.repeat(&request, Some(until)) => {
                waited.map(|reply| Reply { sent: reply.sent + asked.sent, waited: true, ..reply })
            }
        }
    }

    /// Sends a command that ends or renews a charge.
    pub(crate) async fn send_forced(&self, command: &Command<'_>, key: &[u8], repeat: bool) -> Result<Reply, Error> {
        self.send(Request { command, key, repeat, wait: None, forced: true }).await.map_err(|error| error.with_keys([key]))
    }

    /// Sends a request until there is a reply, if it may be repeated; or else once.
    async fn repeat(&self, request: &Request<'_>, until: Option<Instant>) -> Result<Reply, Error> {
        let budget = self.timeout.saturating_add(self.connect_timeout).min(LONGEST);
        let mut end = Instant::now() + budget;
        let mut sent = 0;
        let (mut lost, mut has_keys) = (false, true);
        loop {
            sent += 1;
            let began = Instant::now();
            // A call that is repeated waits for what is left of its wait.
            let wait = until.map(|until| Span::of_micros(micros(until.saturating_duration_since(began)).max(1)));
            let command = (request.command)(wait, has_keys);
            let call = Call {
                command: &command,
                key: request.key,
                block: wait.map(Duration::from),
                timeout: self.timeout,
                connect_timeout: self.connect_timeout,
                forced: request.forced,
                asking: false,
            };
            let failure = match self.connection.call(call).await {
                Ok(value) => return Ok(Reply { value, sent, waited: false }),
                // It has charged nothing.
                Err(Failure::Reply(error)) if has_keys && error.code() == Some("NOPOLICY") => {
                    has_keys = false;
                    sent -= 1;
                    continue;
                }
                Err(failure) => failure,
            };
            if until.is_some() && began.elapsed() > budget {
                // It has waited until now.
                end = Instant::now() + budget;
            }
            lost |= match &failure {
                Failure::Down(Error::Unavailable { sent, .. }, _) => *sent,
                failure => matches!(failure, Failure::Lost(_) | Failure::Silent(_)),
            };
            let pause = match &failure {
                // A server that is known to be down is not waited for, unless this call itself has lost its connection.
                Failure::Down(_, pause) if sent > 1 => Some(*pause),
                Failure::Down(..) => None,
                failure if is_passing(failure) => {
                    Some(Duration::from_millis(PAUSES_MS[(sent as usize - 1).min(PAUSES_MS.len() - 1)]))
                }
                _ => None,
            };
            match pause {
                Some(pause) if request.repeat && Instant::now() + pause < end => tokio::time::sleep(pause).await,
                // The server may have executed it once.
                _ if lost => return Err(Error::from(failure).with_sent(true)),
                _ => return Err(failure.into()),
            }
        }
    }
}

/// Whether a reply denies a call that may be granted later: the five integers of a decision, or the reply to `RL.ALL`.
fn may_wait(reply: &Value) -> bool {
    let Value::Array(fields) = reply else { return false };
    matches!(
        fields.as_slice(),
        [Value::Int(0), Value::Int(_), Value::Int(_), Value::Int(1..), Value::Int(_)]
            | [Value::Int(0), Value::Int(1..), Value::Array(_)]
    )
}

/// Whether a call with an id is worth repeating after this.
fn is_passing(failure: &Failure) -> bool {
    let error = match failure {
        Failure::NoConnection(error) => return matches!(error, Error::Unavailable { .. }),
        Failure::Silent(_) | Failure::Lost(_) => return true,
        Failure::Down(..) => return false,
        Failure::Reply(error) => error,
    };
    match error.kind() {
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::MasterDown
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
        ),
        ErrorKind::Extension => matches!(error.code(), Some("UNBLOCKED" | "NOREPLICAS" | "BUSY")),
        _ => false,
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Down(error, _) | Failure::NoConnection(error) | Failure::Silent(error) => error,
            Failure::Lost(error) => Self::Unavailable { cause: Arc::new(error), sent: true },
            Failure::Reply(error) => of_redis(error, false),
        }
    }
}

/// An error that says that something took too long.
pub(crate) fn in_time(what: &str, time: Duration, sent: bool) -> Error {
    let text = format!("{what} within {} ms", time.as_millis());
    Error::Unavailable { cause: Arc::new(io::Error::new(io::ErrorKind::TimedOut, text)), sent }
}

pub(crate) fn of_redis(error: RedisError, sent: bool) -> Error {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    let has = |start: &str| error.detail().is_some_and(|detail| detail.starts_with(start));
    match error.code() {
        Some("ERR") if has("unknown command") => Error::NoModule(text),
        // The server's own state, which is no fault of the call.
        Some("ERR") if has("max number of clients") || has("too many waiting calls") => {
            Error::Unavailable { cause: Arc::new(error), sent }
        }
        Some("NOPERM" | "NOAUTH" | "WRONGPASS") => Error::NotAllowed(text),
        Some("ERR") => Error::InvalidArgument(text),
        Some("WRONGTYPE") => Error::WrongType(text),
        Some("CROSSSLOT") => {
            Error::InvalidKey(format!("{text}: all keys of a call need the same hash tag, and so do its policy keys"))
        }
        _ => match error.kind() {
            ErrorKind::UnexpectedReturnType => Error::UnexpectedReply(text),
            ErrorKind::AuthenticationFailed => Error::NotAllowed(text),
            _ => Error::Unavailable { cause: Arc::new(error), sent },
        },
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Reads the five integers of a reply.
pub(crate) fn decision(value: &Value, policy: &Policy, name: &Arc<str>) -> Result<Decision, Error> {
    let unexpected = || Error::UnexpectedReply(format!("{value:?}"));
    let integer = |value: &Value| if let Value::Int(value) = value { Some(*value) } else { None };
    let Value::Array(row) = value else { return Err(unexpected()) };
    let row: Option<Vec<i64>> = row.iter().map(integer).collect();
    let row = row.and_then(|row| row.try_into().ok()).ok_or_else(unexpected)?;
    Decision::of_reply(row, policy.clone(), name.clone())
}
