//! Sends a request: once, or repeatedly if it has an id. Without an id, only a wait that the server has ended goes on.

use std::time::{Duration, Instant};

use redis::{Cmd, ToRedisArgs, Value};
use tokio::runtime::Handle;

use crate::connection::{Call, Failure};
use crate::{Error, IntoSpan, Limits};

/// The pauses between the repetitions of a call.
const PAUSES_MS: [u64; 4] = [10, 20, 40, 80];

/// No call is repeated for longer. (The sum of a moment and a longer time may overflow.)
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The errors that may be over soon.
const PASSING: [&str; 10] =
    ["LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "UNBLOCKED", "NOREPLICAS", "BUSY"];

/// A reply to a call that may have been repeated.
pub(crate) struct Reply {
    pub(crate) value: Value,
    /// How often the call was sent.
    pub(crate) sent: u32,
    /// It has waited in line.
    pub(crate) waited: bool,
}

/// What to send.
pub(crate) struct Request<'a> {
    pub(crate) command: Cmd,
    /// The same without policy keys, for a server that has none of them.
    pub(crate) otherwise: Option<Cmd>,
    /// The keys, which have the same slot.
    pub(crate) keys: Vec<&'a [u8]>,
    /// The command has an id: it may be repeated.
    pub(crate) repeat: bool,
    /// How long it may wait, if it may.
    pub(crate) wait: Option<Duration>,
    /// It ends or renews a charge: it is sent although the server is down, or the limits are closed.
    pub(crate) forced: bool,
}

impl<'a> Request<'a> {
    /// A command that is sent once and does not wait.
    pub(crate) fn new(command: Cmd, keys: Vec<&'a [u8]>) -> Self {
        Self { command, otherwise: None, keys, repeat: false, wait: None, forced: false }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        for command in [Some(&mut self.command), self.otherwise.as_mut()].into_iter().flatten() {
            command.arg(&argument);
        }
        self
    }
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
        tokio::select! {
            biased;
            () = self.closed() => Err(Error::Closed),
            waited = self.repeat(&request, Some(began + wait)) => {
                waited.map(|reply| Reply { sent: reply.sent + asked.sent, waited: true, ..reply })
            }
        }
    }

    /// Sends a request until there is a reply, if it may be repeated; or else once.
    async fn repeat(&self, request: &Request<'_>, until: Option<Instant>) -> Result<Reply, Error> {
        let budget = self.timeout.saturating_add(self.connect_timeout).min(LONGEST);
        // A call that waits is worth repeating as long as it waits.
        let end = until.unwrap_or_else(Instant::now) + budget;
        let mut sent = 0;
        let (mut lost, mut ended, mut command) = (false, false, &request.command);
        loop {
            sent += 1;
            let began = Instant::now();
            // A call that is repeated waits for what is left of its wait.
            let left = until.map(|until| until.saturating_duration_since(began).max(Duration::from_micros(1)).span());
            let wait = left.transpose()?;
            let waiting = wait.map(|wait| command.clone().arg("BLOCK").arg(wait.to_string()).take());
            let call = Call {
                command: waiting.as_ref().unwrap_or(command),
                key: request.keys[0],
                block: wait.map(Duration::from),
                timeout: self.timeout,
                connect_timeout: self.connect_timeout,
                // A wait that was lost tries to go on, and does not wait until others find the server up.
                forced: request.forced || until.is_some() && sent > 1,
                asking: false,
            };
            let failure = match (self.connection.call(call).await, &request.otherwise) {
                (Ok(value), _) => return Ok(Reply { value, sent, waited: false }),
                // It has charged nothing.
                (Err(Failure::Reply(error)), Some(otherwise))
                    if error.code() == Some("NOPOLICY") && !std::ptr::eq(command, otherwise) =>
                {
                    command = otherwise;
                    sent -= 1;
                    continue;
                }
                (Err(failure), _) => failure,
            };
            let unanswered =
                matches!(failure, Failure::Down(Error::Unavailable { sent: true, .. }, _) | Failure::Unanswered(_));
            lost |= unanswered;
            // The server has ended the wait and charged nothing.
            let ends = |error: &redis::RedisError| matches!(error.code(), Some("UNBLOCKED" | "TRYAGAIN"));
            ended |= until.is_some() && matches!(&failure, Failure::Reply(error) if ends(error));
            let goes_on = request.repeat || ended && !unanswered;
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
                Some(pause) if goes_on && Instant::now() + pause < end => tokio::time::sleep(pause).await,
                _ => {
                    let error = Error::from(failure).with_keys(&request.keys);
                    // The server may have executed it once.
                    return Err(if lost { error.with_sent(true) } else { error });
                }
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
    match failure {
        Failure::NoConnection(error) => matches!(error, Error::Unavailable { .. }),
        Failure::Unanswered(_) => true,
        Failure::Down(..) => false,
        Failure::Reply(error) => error.code().is_some_and(|code| PASSING.contains(&code)),
    }
}
