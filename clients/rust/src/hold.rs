//! Leases that are held while something runs.

use std::fmt;
use std::future::Future;

use crate::account::beat::Beat;
use crate::account::{call_with_id, open, Account, Opened, Options};
use crate::{Decision, Error, Lease, Limit};

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
        Hold { limit: self.clone(), key: self.key(key), cost: 1, options: Options::new() }
    }
}

/// A call that takes a lease. Nothing is sent before it is awaited. If the future is dropped before it has ended, a lease that it
/// has taken is released in the background; likewise if it fails with [`Error::Down`], unless it has an id of the program.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Hold {
    limit: Limit<Lease>,
    key: Result<Vec<u8>, Error>,
    cost: u64,
    options: Options,
}

call_with_id!(
    Hold,
    Held,
    "Waits in line for the units, at most this long.",
    "The id: 1 to 64 bytes; a random one by default. A job that names its own id takes its own lease again after a restart."
);

impl Hold {
    /// How many units to hold; 1 by default.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    async fn send(self) -> Result<Held, Error> {
        let Self { limit, key, cost, options } = self;
        let Opened { account, decision, since } = open(limit.erase(), key, cost, options).await?;
        let mut beat = Beat::new();
        let key = account.entries().first().map(|entry| entry.key.clone()).unwrap_or_default();
        if decision.counted {
            beat.renew(limit.clone(), key.clone(), account.id().to_vec(), since);
        }
        Ok(Held { limit, key, account, decision, beat })
    }
}

/// A lease that is held. [`release`](Self::release) ends it. If it is dropped, it is released in the background; that needs the tokio
/// runtime on which it was taken to go on, and otherwise the lease lapses after its time to live.
///
/// A lease is no lock for correctness: a holder that stalls for longer than the time to live is not stopped, and another holder
/// gets the lease meanwhile.
pub struct Held {
    limit: Limit<Lease>,
    key: Vec<u8>,
    account: Account,
    decision: Decision,
    beat: Beat,
}

impl Held {
    /// The decision that granted the lease.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The id.
    pub fn id(&self) -> &[u8] {
        self.account.id()
    }

    /// Whether the lease is known to be lost: a renewal was denied, or none was answered for a whole time to live.
    pub fn is_lost(&self) -> bool {
        self.beat.is_lost()
    }

    /// Waits until the lease is lost.
    pub async fn lost(&self) {
        self.beat.lost().await;
    }

    /// Renews the lease now.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it has ended, and [`Error::Down`] if the server gives no answer.
    pub async fn check(&self) -> Result<(), Error> {
        if !self.decision.counted {
            return Ok(());
        }
        if self.is_lost() || self.limit.renew_at(&self.key, self.account.id()).await?.denied() {
            return Err(Error::LeaseLost);
        }
        Ok(())
    }

    /// Runs a future while the lease is held, and releases the lease at the end. If the lease is lost, the future is dropped.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the lease was lost before the future has ended.
    pub async fn run<T>(self, future: impl Future<Output = T>) -> Result<T, Error> {
        let ended = self.beat.guard(future).await;
        let released = self.release().await;
        let ended = ended?;
        released.map(|()| ended)
    }

    /// Ends the lease. Errors of the connection are logged, and the lease then lapses after its time to live.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it had ended before.
    pub async fn release(mut self) -> Result<(), Error> {
        self.beat.stop();
        let ended = self.account.end().await;
        match ended.lost || self.is_lost() {
            true => Err(Error::LeaseLost),
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("decision", &self.decision).field("lost", &self.is_lost()).finish_non_exhaustive()
    }
}
