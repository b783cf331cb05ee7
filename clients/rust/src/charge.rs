//! A charge whose cost is known only afterwards.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use redis::Cmd;
use tokio::runtime::Handle;

use crate::limits::{check_id, check_used, new_id, Amount};
use crate::send::{decision, Request};
use crate::{Decision, Error, Limit, RatePolicy, Span};

/// Runs a future in the background, if there is a runtime. Else nothing happens.
pub(crate) fn in_background(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(future);
    }
}

impl<P: RatePolicy> Limit<P> {
    /// Charges an estimate under an id, so that the call can be repeated if its reply is lost, and be settled to what it really
    /// cost. Denied: [`Error::RateLimited`].
    ///
    /// ```no_run
    /// # async fn example(tokens: redis_rl_client::Limit) -> Result<(), redis_rl_client::Error> {
    /// let charge = tokens.charge("team-a", 1200).wait("90s").await?;
    /// // ... call the model ...
    /// charge.settle(450).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn charge(&self, key: impl AsRef<[u8]>, estimate: u64) -> Charging {
        Charging { limit: self.erase(), key: self.key(key), estimate, wait: Ok(None), id: None }
    }
}

/// A call that makes a [`Charge`]. Nothing is sent before it is awaited. If the future is dropped before it has ended, a charge
/// that it has made is released in the background.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Charging {
    limit: Limit,
    key: Result<Vec<u8>, Error>,
    estimate: u64,
    wait: Result<Option<Span>, Error>,
    id: Option<Vec<u8>>,
}

impl Charging {
    /// Waits in line for the units, at most this long: a `Duration`, or a text such as `"30s"`.
    pub fn wait<W: TryInto<Span>>(self, wait: W) -> Self
    where
        Error: From<W::Error>,
    {
        Self { wait: Span::of_wait(wait), ..self }
    }

    /// The id: 1 to 64 bytes; a random one by default. A process that continues a charge after a restart names the id of its job.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self { id: Some(id.as_ref().to_vec()), ..self }
    }

    async fn send(self) -> Result<Charge, Error> {
        let Self { limit, key, estimate, wait, id } = self;
        let key = key?;
        let amount = Amount::Cost(estimate);
        amount.check()?;
        let wait = wait?;
        let id = id.unwrap_or_else(new_id);
        check_id(&id)?;
        let command = {
            let (limit, key, id) = (limit.clone(), key.clone(), id.clone());
            move |wait: Option<Span>| charge_command(&limit, &key, amount, &id, wait)
        };
        let policy = limit.policy();
        // From here on, whoever drops this future releases the charge.
        let mut undo = Undo { limit, key, id, armed: true };
        let request = Request { command: &command, key: &undo.key, repeat: true, wait, replica: false };
        let reply = undo.limit.limits.send(request).await;
        let granted = match reply.and_then(|reply| decision(&reply.value, policy, &undo.limit.name)) {
            Ok(decision) => Ok(decision),
            Err(error) => undo.limit.or_open(error, estimate),
        };
        match granted.and_then(Decision::or_denied) {
            Ok(decision) => Ok(Charge { undo, decision, used: None, sent: false }),
            Err(error) => {
                undo.armed = false;
                Err(error)
            }
        }
    }
}

fn charge_command(limit: &Limit, key: &[u8], amount: Amount, id: &[u8], wait: Option<Span>) -> Cmd {
    let mut command = limit.command(key);
    amount.push(&mut command);
    command.arg("ID").arg(id);
    if let Some(wait) = wait {
        command.arg("BLOCK").arg(wait.to_string());
    }
    command
}

impl IntoFuture for Charging {
    type Output = Result<Charge, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Releases a charge or a lease in the background when it is dropped, if it is armed.
pub(crate) struct Undo {
    pub(crate) limit: Limit,
    pub(crate) key: Vec<u8>,
    pub(crate) id: Vec<u8>,
    pub(crate) armed: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.armed {
            let (limit, key, id) = (self.limit.clone(), std::mem::take(&mut self.key), std::mem::take(&mut self.id));
            in_background(async move {
                if let Err(error) = limit.end(&key, &id, None).await {
                    limit.limits.warn(&error, "a charge or a lease is not released");
                }
            });
        }
    }
}

/// A charge that was granted. [`settle`](Self::settle) it, [`release`](Self::release) it, or [`keep`](Self::keep) the estimate.
///
/// If it is dropped, it is ended in the background: settled to what [`set_used`](Self::set_used) said, or else released. That
/// needs a tokio runtime at the moment of the drop, and that the runtime goes on for as long as the call takes; without one, the
/// estimate stays charged until its period is over.
///
/// To settle and to release never fail for errors of the connection: the work has been done. Such errors are logged, once a
/// second at most, and the estimate stays charged until its period is over.
pub struct Charge {
    undo: Undo,
    decision: Decision,
    used: Option<u64>,
    /// `RL.SETTLE` may have been sent.
    sent: bool,
}

impl Charge {
    /// The decision that granted the charge.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The id.
    pub fn id(&self) -> &[u8] {
        &self.undo.id
    }

    /// What the charge is settled to if it is dropped. A program that streams an answer sets this as it goes on.
    ///
    /// # Errors
    /// [`Error::InvalidCost`] above 1000000000000.
    pub fn set_used(&mut self, used: u64) -> Result<(), Error> {
        check_used(used)?;
        self.used = Some(used);
        Ok(())
    }

    /// Sets the charge to what it really cost. More than the estimate is charged, too, even if the key has forgotten the id.
    /// `None` if the server has made no new decision: the key does not remember the id, or there was an error, which is logged.
    ///
    /// # Errors
    /// [`Error::InvalidCost`] above 1000000000000. Then the charge is released.
    pub async fn settle(mut self, used: u64) -> Result<Option<Decision>, Error> {
        check_used(used)?;
        self.used = Some(used);
        Ok(self.end().await)
    }

    /// Gives the whole charge back.
    pub async fn release(mut self) -> Option<Decision> {
        self.used = None;
        self.end().await
    }

    /// Keeps the estimate. The key forgets the id when the charge is past.
    pub fn keep(mut self) -> Decision {
        self.undo.armed = false;
        self.decision.clone()
    }

    async fn end(&mut self) -> Option<Decision> {
        if !self.decision.counted {
            // The server was down, so this is most likely in vain: the caller does not wait for it. If the server made the charge
            // after all, and lost its reply, it is set right.
            self.undo.armed = false;
            let (limit, key, id, used) = (self.undo.limit.clone(), self.undo.key.clone(), self.undo.id.clone(), self.used);
            in_background(async move {
                let _ = limit.end(&key, &id, used).await;
            });
            return None;
        }
        let first = !std::mem::replace(&mut self.sent, true);
        let ended = self.undo.limit.end(&self.undo.key, &self.undo.id, self.used).await;
        self.undo.armed = false;
        let result = match ended {
            Ok((Some(decision), _)) => return Some(decision),
            // Nil, and no other settlement was sent: the key has forgotten the id, so the estimate is no longer charged apart from
            // its period. What was used beyond the estimate never was.
            Ok((None, 1)) if first && self.used > Some(self.decision.granted) => self.force().await.map(Some),
            Ok((None, _)) => Ok(None),
            Err(error) => Err(error),
        };
        result.unwrap_or_else(|error| {
            self.undo.limit.limits.warn(&error, "a charge is not settled");
            None
        })
    }

    async fn force(&self) -> Result<Decision, Error> {
        let limit = &self.undo.limit;
        let excess = Amount::Force(self.used.unwrap_or_default().saturating_sub(self.decision.granted));
        let command = |_| {
            let mut command = limit.command(&self.undo.key);
            excess.push(&mut command);
            command
        };
        let request = Request { command: &command, key: &self.undo.key, repeat: false, wait: None, replica: false };
        decision(&limit.limits.send(request).await?.value, limit.policy(), &limit.name)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.undo.armed {
            return;
        }
        let Some(used) = self.used else {
            // `undo` releases it.
            return;
        };
        self.undo.armed = false;
        let undo = Undo {
            limit: self.undo.limit.clone(),
            key: std::mem::take(&mut self.undo.key),
            id: std::mem::take(&mut self.undo.id),
            armed: true,
        };
        let mut charge = Self { undo, decision: self.decision.clone(), used: Some(used), sent: self.sent };
        in_background(async move {
            charge.end().await;
        });
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").field("decision", &self.decision).field("used", &self.used).finish_non_exhaustive()
    }
}
