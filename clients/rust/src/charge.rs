//! A charge whose cost is known only afterwards.

use std::fmt;

use crate::account::{call_with_id, open, Account, End, Options};
use crate::{Decision, Error, Limit, RatePolicy};

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
        Charging { limit: self.erase(), key: self.key(key), estimate, options: Options::new() }
    }
}

/// A call that makes a [`Charge`]. Nothing is sent before it is awaited. If the future is dropped before it has ended, a charge
/// that it has made is released in the background.
///
/// If it fails with [`Error::Down`], what it may have charged is released in the background, too, unless it has an id of the
/// program: then the program may repeat the call with this id, and is charged once.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Charging {
    limit: Limit,
    key: Result<Vec<u8>, Error>,
    estimate: u64,
    options: Options,
}

call_with_id!(
    Charging,
    Charge,
    "Waits in line for the units, at most this long.",
    "The id: 1 to 64 bytes; a random one by default. A process that continues a charge after a restart names the id of its job."
);

impl Charging {
    async fn send(self) -> Result<Charge, Error> {
        if let crate::Policy::Lease(_) = self.limit.policy() {
            return Err(Error::InvalidLimit("a lease is held, with Limit::hold, and not charged".to_string()));
        }
        let opened = open(self.limit, self.key, self.estimate, self.options).await?;
        Ok(Charge { account: opened.account, decision: opened.decision })
    }
}

/// A charge that was granted. [`settle`](Self::settle) it, [`release`](Self::release) it, or [`keep`](Self::keep) the estimate.
///
/// If it is dropped, it is ended in the background: settled to what [`set_used`](Self::set_used) said, or else released. That
/// needs the tokio runtime on which it was made to go on for as long as the call takes; otherwise the estimate stays charged until
/// its period is over.
///
/// To settle and to release never fail for errors of the connection: the work has been done. Such errors are logged, once a
/// second at most, and the estimate stays charged until its period is over.
pub struct Charge {
    account: Account,
    decision: Decision,
}

impl Charge {
    /// The decision that granted the charge.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The id.
    pub fn id(&self) -> &[u8] {
        self.account.id()
    }

    /// What the charge is settled to if it is dropped. A program that streams an answer sets this as it goes on.
    ///
    /// # Errors
    /// [`Error::InvalidCost`] above 1000000000000.
    pub fn set_used(&mut self, used: u64) -> Result<(), Error> {
        self.account.set_used(used)
    }

    /// Sets the charge to what it really cost. More than the estimate is charged, too, even if the key has forgotten the id.
    /// `None` if the server has made no new decision: the key does not remember the id, or there was an error, which is logged.
    ///
    /// # Errors
    /// [`Error::InvalidCost`] above 1000000000000. Then the charge is released.
    pub async fn settle(mut self, used: u64) -> Result<Option<Decision>, Error> {
        self.set_used(used)?;
        Ok(self.account.end().await.decision)
    }

    /// Gives the whole charge back.
    pub async fn release(mut self) -> Option<Decision> {
        self.account.end = End::Release;
        self.account.end().await.decision
    }

    /// Keeps the estimate. The key forgets the id when the charge is past.
    pub fn keep(mut self) -> Decision {
        self.account.forget();
        self.decision
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").field("decision", &self.decision).field("end", &self.account.end).finish_non_exhaustive()
    }
}
