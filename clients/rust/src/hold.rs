//! Leases that are held while something runs.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::charge::Undo;
use crate::limits::{check_id, new_id, Amount};
use crate::send::{decision, Request};
use crate::{Decision, Error, Lease, Limit, Span};

impl Limit<Lease> {
    /// Takes a lease, and renews it at each third of its time to live until it is released. Denied: [`Error::RateLimited`].
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(jobs: redis_rl_client::Limit<redis_rl_client::Lease>) -> Result<(), redis_rl_client::Error> {
    /// let lease = jobs.hold("reports").wait("1h").await?;
    /// lease.run(async { work().await }).await?; // lost: the future is dropped, and the result is LeaseLost
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(&self, key: impl AsRef<[u8]>) -> Hold {
        Hold { limit: self.clone(), key: self.key(key), cost: 1, wait: Ok(None), id: None }
    }
}

/// A call that takes a lease. Nothing is sent before it is awaited. If the future is dropped before it has ended, a lease that it
/// has taken is released in the background.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Hold {
    limit: Limit<Lease>,
    key: Result<Vec<u8>, Error>,
    cost: u64,
    wait: Result<Option<Span>, Error>,
    id: Option<Vec<u8>>,
}

impl Hold {
    /// How many units to hold; 1 by default.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Waits in line for the units, at most this long: a `Duration`, or a text such as `"30s"`.
    pub fn wait<W: TryInto<Span>>(self, wait: W) -> Self
    where
        Error: From<W::Error>,
    {
        Self { wait: Span::of_wait(wait), ..self }
    }

    /// The id: 1 to 64 bytes; a random one by default. A job that names its own id takes its own lease again after a restart.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self { id: Some(id.as_ref().to_vec()), ..self }
    }

    async fn send(self) -> Result<Held, Error> {
        let Self { limit, key, cost, wait, id } = self;
        let key = key?;
        let amount = Amount::Cost(cost);
        amount.check()?;
        let wait = wait?;
        let id = id.unwrap_or_else(new_id);
        check_id(&id)?;
        let command = {
            let (limit, key, id) = (limit.clone(), key.clone(), id.clone());
            move |wait: Option<Span>| {
                let mut command = limit.command(&key);
                command.arg("ID").arg(&id);
                amount.push(&mut command);
                if let Some(wait) = wait {
                    command.arg("BLOCK").arg(wait.to_string());
                }
                command
            }
        };
        let began = Instant::now();
        let mut undo = Undo { limit: limit.erase(), key, id, armed: true };
        let request = Request { command: &command, key: &undo.key, repeat: true, wait, replica: false };
        let reply = limit.limits.send(request).await;
        let granted = match reply.and_then(|reply| decision(&reply.value, limit.policy(), &limit.name)) {
            Ok(decision) => Ok(decision),
            Err(error) => limit.or_open(error, cost),
        };
        let decision = match granted.and_then(Decision::or_denied) {
            Ok(decision) => decision,
            Err(error) => {
                undo.armed = false;
                return Err(error);
            }
        };
        let (sender, lost) = watch::channel(false);
        if !decision.counted {
            undo.armed = false;
            return Ok(Held { limit, undo, decision, lost, _sender: Some(sender), heartbeat: None });
        }
        // The server grants a lease before its reply arrives; without a wait, after the call was sent.
        let renewed = if wait.is_some() { Instant::now() } else { began };
        let beats = heartbeat(limit.clone(), undo.key.clone(), undo.id.clone(), renewed, sender);
        let heartbeat = Some(tokio::spawn(beats).abort_handle());
        Ok(Held { limit, undo, decision, lost, _sender: None, heartbeat })
    }
}

impl IntoFuture for Hold {
    type Output = Result<Held, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Renews a lease at each third of its time to live, until it is lost.
async fn heartbeat(limit: Limit<Lease>, key: Vec<u8>, id: Vec<u8>, mut renewed: Instant, lost: watch::Sender<bool>) {
    let ttl = Duration::from(limit.policy.ttl());
    let mut pause = ttl / 3;
    loop {
        tokio::time::sleep(pause).await;
        let asked = Instant::now();
        // Without an answer for a whole time to live, the lease has lapsed.
        let left = ttl.saturating_sub(renewed.elapsed());
        pause = match tokio::time::timeout(left, limit.renew_at(&key, &id)).await {
            Ok(Ok(decision)) if decision.granted > 0 => {
                renewed = asked;
                ttl / 3
            }
            Ok(Err(error)) if error.is_down() && renewed.elapsed() < ttl => {
                limit.limits.warn(&error, "a lease is not renewed yet");
                ttl / 30
            }
            _ => {
                let _ = lost.send(true);
                return;
            }
        };
    }
}

/// A lease that is held. [`release`](Self::release) ends it. If it is dropped, it is released in the background; that needs a tokio
/// runtime, and without one the lease lapses after its time to live.
///
/// A lease is no lock for correctness: a holder that stalls for longer than the time to live is not stopped, and another holder
/// gets the lease meanwhile.
pub struct Held {
    limit: Limit<Lease>,
    undo: Undo,
    decision: Decision,
    lost: watch::Receiver<bool>,
    /// Keeps `lost` open if there is no heartbeat.
    _sender: Option<watch::Sender<bool>>,
    heartbeat: Option<AbortHandle>,
}

impl Held {
    /// The decision that granted the lease.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The id.
    pub fn id(&self) -> &[u8] {
        &self.undo.id
    }

    /// Whether the lease is known to be lost: a renewal was denied, or none was answered for a whole time to live.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Waits until the lease is lost.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|lost| *lost).await.is_err() {
            // The heartbeat has ended without a loss: the runtime shuts down.
            std::future::pending::<()>().await;
        }
    }

    /// Renews the lease now.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it has ended, and [`Error::Down`] if the server gives no answer.
    pub async fn check(&self) -> Result<(), Error> {
        if !self.decision.counted {
            return Ok(());
        }
        if self.is_lost() || self.limit.renew_at(&self.undo.key, &self.undo.id).await?.denied() {
            return Err(Error::LeaseLost);
        }
        Ok(())
    }

    /// Runs a future while the lease is held, and releases the lease at the end. If the lease is lost, the future is dropped.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the lease was lost before the future has ended.
    pub async fn run<T>(self, future: impl Future<Output = T>) -> Result<T, Error> {
        let ended = tokio::select! {
            biased;
            () = self.lost() => Err(Error::LeaseLost),
            ended = future => Ok(ended),
        };
        let released = self.release().await;
        let ended = ended?;
        released.map(|()| ended)
    }

    /// Ends the lease. Errors of the connection are logged, and the lease then lapses after its time to live.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it had ended before.
    pub async fn release(mut self) -> Result<(), Error> {
        self.stop();
        if !self.decision.counted {
            return Ok(());
        }
        let ended = self.undo.limit.end(&self.undo.key, &self.undo.id, None).await;
        self.undo.armed = false;
        match ended {
            // A nil after a repetition means that an earlier one has ended the lease.
            Ok((None, 1)) => Err(Error::LeaseLost),
            Ok(_) if self.is_lost() => Err(Error::LeaseLost),
            Ok(_) => Ok(()),
            Err(error) => {
                self.limit.limits.warn(&error, "a lease is not released");
                Ok(())
            }
        }
    }

    fn stop(&mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.abort();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // `undo` releases the lease.
        self.stop();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("decision", &self.decision).field("lost", &self.is_lost()).finish_non_exhaustive()
    }
}
