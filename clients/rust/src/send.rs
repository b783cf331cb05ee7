//! Sends a call: once without an id, and repeatedly with one; and turns what comes back into decisions and errors.

use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::Handle;

use crate::connection::Call;
use crate::{Cause, Decision, Error, Limits, Policy, Span};

/// The pauses between the repetitions of a call.
const PAUSES_MS: [u64; 4] = [10, 20, 40, 80];

/// A reply to a call that may have been repeated.
pub(crate) struct Reply {
    pub(crate) value: Value,
    /// How often the call was sent.
    pub(crate) sent: u32,
}

/// What to send.
pub(crate) struct Request<'a> {
    /// The command, with this wait if it is to wait.
    pub(crate) command: &'a (dyn Fn(Option<Span>) -> Cmd + Sync),
    pub(crate) key: &'a [u8],
    /// The command has an id: it may be repeated.
    pub(crate) repeat: bool,
    pub(crate) wait: Option<Span>,
    pub(crate) replica: bool,
}

impl Limits {
    /// Sends a request, and returns the reply to it.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Reply, Error> {
        let key = request.key;
        self.send_unnamed(request).await.map_err(|error| error.with_keys([key]))
    }

    /// As [`send`](Self::send), but an error does not name the key.
    pub(crate) async fn send_unnamed(&self, request: Request<'_>) -> Result<Reply, Error> {
        if !has_runtime() {
            return Err(Error::NoRuntime);
        }
        let began = Instant::now();
        let wait = request.wait.map_or(Duration::ZERO, Duration::from);
        let whole = wait.saturating_add(self.own_patience());
        let mut sent = 0;
        loop {
            let left = whole.saturating_sub(began.elapsed());
            // A call that is repeated waits for what is left of its wait.
            let wait_left = request.wait.map(|_| Span::of_micros(micros(wait.saturating_sub(began.elapsed())).max(1)));
            let attempt = match request.repeat {
                // One lost reply must not use up all the patience.
                true => left.min(wait_left.map_or(Duration::ZERO, Duration::from).saturating_add(self.own_patience() / 2)),
                false => left,
            };
            sent += 1;
            let answer = self.send_once(&request, wait_left, attempt).await;
            let error = match answer {
                Ok(value) => return Ok(Reply { value, sent }),
                Err(error) => error,
            };
            let pause = Duration::from_millis(PAUSES_MS[(sent as usize - 1).min(PAUSES_MS.len() - 1)]);
            if !request.repeat || !is_passing(&error) || began.elapsed() + pause >= whole {
                return Err(error.into());
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn send_once(&self, request: &Request<'_>, wait: Option<Span>, time: Duration) -> Result<Value, Failure> {
        let command = (request.command)(wait);
        let patience = self.own_patience();
        let call = Call { command: &command, key: request.key, replica: request.replica, patience };
        let answer = match wait {
            Some(_) => self.call_alone(call, time)?,
            None => self.connection().call(call),
        };
        match tokio::time::timeout(time, answer).await {
            Ok(answer) => answer.map_err(Failure::Redis),
            Err(_) => Err(Failure::TimeOut(time)),
        }
    }
}

/// Whether the caller has a tokio runtime with timers. Tokio tells that there are none only by a panic, which is caught.
fn has_runtime() -> bool {
    Handle::try_current().is_ok() && std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

pub(crate) enum Failure {
    NoClient,
    Redis(RedisError),
    TimeOut(Duration),
}

/// Whether a call with an id is worth repeating after this error.
fn is_passing(failure: &Failure) -> bool {
    let error = match failure {
        Failure::NoClient => return false,
        Failure::TimeOut(_) => return true,
        Failure::Redis(error) => error,
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
        ErrorKind::Io
        | ErrorKind::Parse
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel => true,
        _ => false,
    }
}

impl Error {
    /// The error with the keys of the call, if one of them holds something else.
    pub(crate) fn with_keys<'a>(self, keys: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let Self::WrongType(text) = self else { return self };
        let keys: Vec<_> = keys.into_iter().map(String::from_utf8_lossy).collect();
        Self::WrongType(format!("{}: {text}", keys.join(", ")))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoClient => Self::NoClient,
            Failure::Redis(error) => of_redis(error),
            Failure::TimeOut(time) => Self::Down(Cause::new(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("there was no reply within {} ms", time.as_millis()),
            ))),
        }
    }
}

fn of_redis(error: RedisError) -> Error {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    match error.code() {
        Some("ERR") if error.detail().is_some_and(|detail| detail.starts_with("unknown command")) => Error::NoModule(text),
        // The server's own errors, which are no fault of the call.
        Some("ERR") if error.detail().is_some_and(|detail| detail.starts_with("max number of clients")) => {
            Error::Down(Cause::new(error))
        }
        // Rights that are missing, and a wrong password: no repetition mends them.
        Some("ERR" | "NOPERM" | "NOAUTH" | "WRONGPASS") => Error::Refused(text),
        Some("WRONGTYPE") => Error::WrongType(text),
        Some("CROSSSLOT") => Error::InvalidKey(text),
        _ => match error.kind() {
            ErrorKind::UnexpectedReturnType => Error::UnexpectedReply(text),
            ErrorKind::AuthenticationFailed => Error::Refused(text),
            _ => Error::Down(Cause::new(error)),
        },
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Reads the five integers of a reply.
pub(crate) fn decision(value: &Value, policy: Policy, name: &std::sync::Arc<str>) -> Result<Decision, Error> {
    let unexpected = || Error::UnexpectedReply(format!("{value:?}"));
    let Value::Array(row) = value else { return Err(unexpected()) };
    let mut integers = [0; 5];
    if row.len() != integers.len() {
        return Err(unexpected());
    }
    for (integer, value) in integers.iter_mut().zip(row) {
        match value {
            Value::Int(value) => *integer = *value,
            _ => return Err(unexpected()),
        }
    }
    Decision::of_reply(integers, policy, name.clone())
}

/// As [`decision`]; `None` if the reply is nil.
pub(crate) fn decision_or_nil(value: &Value, policy: Policy, name: &std::sync::Arc<str>) -> Result<Option<Decision>, Error> {
    match value {
        Value::Nil => Ok(None),
        value => decision(value, policy, name).map(Some),
    }
}
