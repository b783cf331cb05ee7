//! A block of work that limits are charged for: several of them, all or none; an estimate, which is settled; a lease, which is renewed.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::account::{Account, End, Entry, Kind, Options};
use crate::all::{ask, keys, Failed};
use crate::beat::Beat;
use crate::limit::Amount;
use crate::{AllDecision, Decision, Error, IntoSpan, Key, Lease, Limit, Limits, RatePolicy, Rule};

impl Limits {
    /// Charges several limits around a block of work, all of them or none. Denied: [`Error::RateLimited`]. A rule with a cost takes it;
    /// one without takes the [`estimate`](Admitting::estimate), and is settled; a lease is renewed while the block runs. The keys are
    /// settled in the reverse order of the rules: list the lease first, and the key that most calls wait for last.
    pub fn admit(&self, rules: impl IntoIterator<Item = Rule>) -> Admitting<false> {
        Admitting { limits: self.clone(), rules: rules.into_iter().collect(), estimate: None, options: Options::new() }
    }
}

impl<P: RatePolicy> Limit<P> {
    /// Charges an estimate around a block of work, which is settled to what was used. Denied: [`Error::RateLimited`].
    pub fn charge(&self, key: impl Key, estimate: u64) -> Admitting<false> {
        let rule = self.rule(key);
        let held = || Error::InvalidLimit("a lease is held, with Limit::hold, and not charged".to_string());
        let rule = if rule.is_lease() { Rule::new(self.erase(), Err(held())) } else { rule };
        self.limits().admit([rule]).estimate(estimate)
    }
}

impl Limit<Lease> {
    /// Takes a lease, and renews it at each third of its time to live until it is released. Denied: [`Error::RateLimited`].
    pub fn hold(&self, key: impl Key) -> Admitting<true> {
        let Admitting { limits, rules, estimate, options } = self.limits().admit([self.rule(key)]);
        Admitting { limits, rules, estimate, options }
    }
}

/// A call of `charge`, `admit` or `hold` (`HOLD`), which makes an [`Admission`]. Nothing is sent before it is awaited. If the future is
/// dropped before it has ended, or fails, what it may have charged is released in the background, unless it fails with an id of the
/// program: then the program may repeat the call with this id, and is charged once.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Admitting<const HOLD: bool> {
    limits: Limits,
    rules: Vec<Rule>,
    estimate: Option<u64>,
    options: Options,
}

impl Admitting<false> {
    /// What the rules without a cost are charged at first.
    pub fn estimate(self, estimate: u64) -> Self {
        Self { estimate: Some(estimate), ..self }
    }
}

impl Admitting<true> {
    /// How many units to hold; 1 by default.
    pub fn units(mut self, units: u64) -> Self {
        self.rules.iter_mut().for_each(|rule| rule.cost = Some(units));
        self
    }
}

impl<const HOLD: bool> Admitting<HOLD> {
    /// Waits until all limits grant at the same moment, at most this long: a `Duration` or a text such as `"30s"`. It holds nothing
    /// meanwhile.
    pub fn wait(self, wait: impl IntoSpan) -> Self {
        Self { options: self.options.wait(wait), ..self }
    }

    /// The id: 1 to 64 bytes; a random one by default. A process that continues its work after a restart names the id of its job. Two
    /// calls at the same time need different ids, also those of different tenants, if they share a key.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self { options: self.options.id(id.as_ref()), ..self }
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
                let missing = || Error::InvalidCost(format!("{} needs a cost, or the call an estimate", rule.limit.name()));
                rule.cost = Some(estimate.ok_or_else(missing)?);
            }
            kinds.push(kind);
        }
        let keys = keys(&limits, &rules)?;
        estimate.map_or(Ok(()), |estimate| Amount::Cost(estimate).check())?;
        let (wait, id) = options.check()?;
        let entry = |((rule, key), kind): ((&Rule, &Vec<u8>), &Kind)| {
            Entry::new(rule.limit.clone(), key.clone(), *kind, rule.units())
        };
        let mut account = Account::new(limits.clone(), id, rules.iter().zip(&keys).zip(&kinds).map(entry).collect());
        let asked = Instant::now();
        let id = account.id().to_vec();
        let answer = match ask(&limits, &rules, &keys, wait, Some(&id)).await {
            Ok(answer) => answer,
            Err(Failed { error, may_be_charged }) => {
                account.failed(may_be_charged);
                return Err(error);
            }
        };
        let decision = match answer.decision.or_denied() {
            Ok(decision) => decision,
            Err(error) => {
                // An earlier call with this id may have been charged: its lease has lapsed since, and others have it.
                if rules.len() > 1 && (account.has_own_id() || answer.sent > 1) {
                    account.cancel().await;
                }
                account.forget();
                return Err(error);
            }
        };
        // If this id was charged with another estimate before, the decisions show that one.
        account.granted(&decision.decisions, answer.may_be_charged);
        // With an id of the program, an earlier call may have taken the leases.
        let since = (answer.at_once && !account.has_own_id()).then_some(asked);
        match account.beat(since).await {
            Ok(beat) => Ok(Admission { account: Mutex::new(account), id, decision, beat }),
            Err(error) => {
                account.failed(true);
                Err(error)
            }
        }
    }
}

impl<const HOLD: bool> IntoFuture for Admitting<HOLD> {
    type Output = Result<Admission, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// What a block of work was granted. [`settle`](Self::settle) it, [`finish`](Self::finish) it, or [`release`](Self::release) it. A drop
/// ends it in the background, as [`set_used`](Self::set_used) has said, or like a release; that needs the tokio runtime on which it was
/// made to go on. Errors of the connection are logged: what was charged then stays until its period is over, and the leases lapse.
///
/// A lease is lost one time to live after the last call that granted or renewed it was made, by the monotonic clock of this process, or
/// when the server says so. A holder that stalls is not stopped in time: a lease is no lock for correctness.
pub struct Admission {
    account: Mutex<Account>,
    id: Vec<u8>,
    decision: AllDecision,
    beat: Beat,
}

/// What [`Limit::charge`] makes.
pub type Charge = Admission;

/// What [`Limit::hold`] makes.
pub type Held = Admission;

impl Admission {
    /// The decision of the only limit, or of the first one.
    pub fn decision(&self) -> &Decision {
        &self.decision.decisions[0]
    }

    /// The decisions of the limits.
    pub fn decisions(&self) -> &[Decision] {
        &self.decision.decisions
    }

    /// The id.
    pub fn id(&self) -> &[u8] {
        &self.id
    }

    /// What the estimates become at the end. A program that streams an answer sets it again and again, also inside of
    /// [`run`](Self::run).
    pub fn set_used(&self, used: u64) -> Result<(), Error> {
        self.account().set_used(used)
    }

    /// Renews the leases now. If the server gives no answer, they are held until their deadlines.
    pub async fn check(&self) -> Result<(), Error> {
        self.beat.check().await
    }

    /// Runs a future. If a lease is lost, the future is dropped.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        self.beat.guard(future).await
    }

    /// The end after the work: estimates become what was used, or stay.
    pub async fn finish(self) -> Result<(), Error> {
        self.account().keep();
        self.end().await
    }

    /// [`set_used`](Self::set_used), and then [`finish`](Self::finish).
    pub async fn settle(self, used: u64) -> Result<(), Error> {
        self.set_used(used)?;
        self.finish().await
    }

    /// Gives the estimates and the leases back, also if [`set_used`](Self::set_used) was called. Costs stay.
    pub async fn release(self) -> Result<(), Error> {
        self.account().end = End::Release;
        self.end().await
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn end(mut self) -> Result<(), Error> {
        self.beat.stop();
        let lost = self.beat.is_lost();
        let ended_before = self.account.get_mut().unwrap_or_else(PoisonError::into_inner).end().await;
        match ended_before || lost {
            true => Err(Error::LeaseLost),
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("decision", &self.decision)
            .field("lost", &self.beat.is_lost())
            .finish_non_exhaustive()
    }
}
