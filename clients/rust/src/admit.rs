//! Several limits around a block of work: all are charged, or none; leases are renewed, and the rest is settled at the end.

use std::fmt;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::account::beat::Beat;
use crate::account::{call_with_id, Account, End, Entry, Kind, Options};
use crate::all::{ask, keys};
use crate::limits::Amount;
use crate::{AllDecision, Error, Limits, Policy, Rule};

impl Limits {
    /// Charges several limits around a block of work, all of them or none. Denied: [`Error::RateLimited`].
    ///
    /// A rule with a cost takes it. A rule without a cost takes the [`estimate`](Admitting::estimate), and is settled to what was
    /// used. A rule of a lease takes one, renews it while the block runs, and releases it at the end. The keys are settled in the
    /// reverse order of the rules: list the lease first, and the key that most calls wait for last.
    ///
    /// ```no_run
    /// # use redis_rl_client::{Error, Lease, Limits, Slide};
    /// # async fn ask_the_model() -> u64 { 450 }
    /// # async fn example(limits: Limits) -> Result<(), Error> {
    /// let running = limits.limit("{llm}:running", Lease::new(4, "30s")?)?;
    /// let requests = limits.limit("{llm}:requests", Slide::new("60/m")?)?;
    /// let tokens = limits.limit("{llm}:tokens", Slide::new("20000/m")?)?;
    ///
    /// let rules = [running.rule("acme"), requests.rule("acme").cost(1), tokens.rule("acme")];
    /// let call = limits.admit(rules).estimate(1200).wait("90s").await?;
    /// let used = call.run(ask_the_model()).await?; // a lease is lost: the future is dropped, and the result is LeaseLost
    /// call.settle(used).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn admit(&self, rules: impl IntoIterator<Item = Rule>) -> Admitting {
        Admitting { limits: self.clone(), rules: rules.into_iter().collect(), estimate: None, options: Options::new() }
    }
}

/// A call that makes an [`Admission`]. Nothing is sent before it is awaited. If the future is dropped before it has ended, it
/// leaves the lines, and what it has charged is released in the background.
///
/// If it fails with [`Error::Down`], what it may have charged is released in the background, too, unless it has an id of the
/// program: then the program may repeat the call with this id, and is charged once.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Admitting {
    limits: Limits,
    rules: Vec<Rule>,
    estimate: Option<u64>,
    options: Options,
}

call_with_id!(
    Admitting,
    Admission,
    "Waits until all limits grant at the same moment, at most this long. It holds nothing meanwhile.",
    "The id: 1 to 64 bytes; a random one by default. A process that continues its work after a restart names the id of its job. \
     Two calls at the same time need different ids, also those of different tenants, if they share a key."
);

impl Admitting {
    /// What the rules without a cost are charged at first.
    pub fn estimate(self, estimate: u64) -> Self {
        Self { estimate: Some(estimate), ..self }
    }

    async fn send(self) -> Result<Admission, Error> {
        let Self { limits, mut rules, estimate, options } = self;
        let mut kinds = Vec::with_capacity(rules.len());
        for rule in &mut rules {
            let kind = match rule.cost {
                _ if rule.is_lease() => Kind::Lease,
                Some(_) => Kind::Cost,
                None => Kind::Estimate,
            };
            if kind == Kind::Estimate {
                let missing = || Error::InvalidCost(format!("{} needs a cost, or the call an estimate", rule.limit.name));
                rule.cost = Some(estimate.ok_or_else(missing)?);
            }
            // All calls go where this one goes.
            rule.limit.limits = limits.clone();
            kinds.push(kind);
        }
        estimate.map_or(Ok(()), |estimate| Amount::Cost(estimate).check())?;
        let keys = keys(&limits, &rules)?;
        let (wait, id) = options.check()?;
        let own_id = id.is_some();
        let entry = |((rule, key), kind): ((&Rule, &Vec<u8>), &Kind)| {
            Entry::new(rule.limit.clone(), key.clone(), *kind, rule.units())
        };
        let mut account = Account::new(id, rules.iter().zip(&keys).zip(&kinds).map(entry).collect());
        // With an id of the program, an earlier call may have taken the leases.
        let since = (wait.is_none() && !own_id).then(Instant::now);
        let id = account.id().to_vec();
        let (decision, sent) = match ask(&limits, &rules, &keys, wait, Some(&id)).await {
            Ok(answer) => answer,
            Err(error) => {
                account.failed(&error, own_id);
                return Err(error);
            }
        };
        let decision = match decision.or_denied() {
            Ok(decision) => decision,
            Err(error) => {
                // An earlier call with this id may have been charged: its lease has lapsed since, and others have it.
                if own_id || sent > 1 {
                    account.end().await;
                }
                account.forget();
                return Err(error);
            }
        };
        // If this id was charged with another estimate before, the decisions show that one.
        account.granted(&decision.decisions);
        let mut beat = Beat::new();
        for (rule, key) in rules.iter().zip(keys).filter(|_| account.counted) {
            if let Policy::Lease(lease) = rule.limit.policy() {
                beat.renew(rule.limit.with(lease), key, id.clone(), since);
            }
        }
        Ok(Admission { account: Mutex::new(account), id, decision, beat })
    }
}

/// An admission that was granted. [`finish`](Self::finish) it, [`settle`](Self::settle) it, or [`release`](Self::release) it.
///
/// | the block | rules without a cost | rules with a cost | leases |
/// |---|---|---|---|
/// | has set what was used, in any way that it ends | become what was used | stay charged | are released |
/// | has not, and calls [`finish`](Self::finish) | stay at the estimate | stay charged | are released |
/// | has not, and drops the admission: an error, a panic, a future that is dropped | are given back | are given back | are released |
///
/// What was used beyond the estimate is taken whatever the limit. A drop ends the admission in the background, which needs the tokio
/// runtime on which it was made to go on. To end it never fails for errors of the connection: they are logged, what was charged
/// stays until its period is over, and the leases lapse. It takes about as long as the patience at most, however many keys there are.
pub struct Admission {
    account: Mutex<Account>,
    id: Vec<u8>,
    decision: AllDecision,
    beat: Beat,
}

impl Admission {
    /// The decisions of the limits.
    pub fn decision(&self) -> &AllDecision {
        &self.decision
    }

    /// The id.
    pub fn id(&self) -> &[u8] {
        &self.id
    }

    /// What the rules without a cost become at the end. A program that streams an answer sets it again and again, also inside of
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error::InvalidCost`] above 1000000000000.
    pub fn set_used(&self, used: u64) -> Result<(), Error> {
        self.account().set_used(used)
    }

    /// Whether a lease is known to be lost: a renewal was denied, or none was answered for a whole time to live.
    pub fn is_lost(&self) -> bool {
        self.beat.is_lost()
    }

    /// Waits until a lease is lost.
    pub async fn lost(&self) {
        self.beat.lost().await;
    }

    /// Runs a future. If a lease is lost, the future is dropped. It may call [`set_used`](Self::set_used).
    ///
    /// # Errors
    /// [`Error::LeaseLost`].
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        self.beat.guard(future).await
    }

    /// Ends the admission after the work: rules without a cost become what was used, or stay at the estimate.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if a lease had ended before. The rest is settled nevertheless.
    pub async fn finish(self) -> Result<(), Error> {
        {
            let mut account = self.account();
            if account.end == End::Release {
                account.end = End::Keep;
            }
        }
        self.end().await
    }

    /// [`set_used`](Self::set_used), and then [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`Error::InvalidCost`] above 1000000000000: then it is as if the admission was dropped. [`Error::LeaseLost`] if a lease had
    /// ended before.
    pub async fn settle(self, used: u64) -> Result<(), Error> {
        self.set_used(used)?;
        self.finish().await
    }

    /// Gives everything back, also if [`set_used`](Self::set_used) was called.
    pub async fn release(self) {
        self.account().end = End::Release;
        // A lease that had ended before has no effect any more.
        let _ = self.end().await;
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn end(mut self) -> Result<(), Error> {
        self.beat.stop();
        let ended = self.account.get_mut().unwrap_or_else(PoisonError::into_inner).end().await;
        match ended.lost || self.is_lost() {
            true => Err(Error::LeaseLost),
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("decision", &self.decision).field("lost", &self.is_lost()).finish_non_exhaustive()
    }
}
