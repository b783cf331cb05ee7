//! A block of work that limits are charged for: several of them, all or none; an estimate, which is settled; a lease, which is renewed.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::account::{Account, End};
use crate::amount::{check_units, Amount};
use crate::ask::{awaited, Call, How};
use crate::leases::Leases;
use crate::{AllDecision, Decision, Error, IntoSpan, Key, LeasePolicy, Limit, Limits, RatePolicy, Rule};

impl Limits {
    /// Charges several limits around a block of work, all of them or none. Denied: [`Error::RateLimited`]. A rule with a cost takes it;
    /// one without takes the [`estimate`](Admitting::estimate), and is settled; a lease is renewed while the block runs. The keys are
    /// settled in the reverse order of the rules: list the lease first, and the key that most calls wait for last.
    pub fn admit(&self, rules: impl IntoIterator<Item = Rule>) -> Admitting<false> {
        Admitting(Call { estimate: None, ..Call::new(self, rules, How::Now) })
    }
}

impl<P: RatePolicy> Limit<P> {
    /// Charges an estimate around a block of work, which is settled to what was used. Denied: [`Error::RateLimited`].
    pub fn charge(&self, key: impl Key, estimate: u64) -> Admitting<false> {
        let mut rule = self.rule(key);
        if self.policy().is_lease() {
            rule.key = Err(Error::InvalidLimit("a lease is held, with Limit::hold, and not charged".to_string()));
        }
        self.limits().admit([rule]).estimate(estimate)
    }
}

impl<P: LeasePolicy> Limit<P> {
    /// Takes a lease, and renews it at each third of its time to live until it is released. Denied: [`Error::RateLimited`].
    pub fn hold(&self, key: impl Key) -> Admitting<true> {
        Admitting(self.limits().admit([self.rule(key)]).0)
    }
}

/// A call of `charge`, `admit` or `hold` (`HOLD`), which makes an [`Admission`]. Nothing is sent before it is awaited. If the future is
/// dropped before it has ended, or fails, what it may have charged is released in the background, unless it fails with an id of the
/// program: then the program may repeat the call with this id, and is charged once.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Admitting<const HOLD: bool>(Call);

impl Admitting<false> {
    /// What the rules without a cost are charged at first.
    pub fn estimate(self, estimate: u64) -> Self {
        Self(Call { estimate: Some(estimate), ..self.0 })
    }
}

impl Admitting<true> {
    /// How many units to hold; 1 by default.
    pub fn units(self, units: u64) -> Self {
        Self(self.0.amount(Amount::Cost(units)))
    }
}

impl<const HOLD: bool> Admitting<HOLD> {
    /// Waits until all limits grant at the same moment, at most this long: a `Duration` or a text such as `"30s"`. It holds nothing
    /// meanwhile.
    pub fn wait(self, wait: impl IntoSpan) -> Self {
        Self(self.0.wait(wait))
    }

    /// The id: 1 to 64 bytes; a random one by default. A process that continues its work after a restart names the id of its job. Two
    /// calls at the same time need different ids, also those of different tenants, if they share a key.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self(self.0.id(id))
    }

    async fn send(self) -> Result<Admission, Error> {
        let mut call = self.0.checked()?;
        let begun = Instant::now();
        let (mut account, asked) = Account::new(&mut call).after(&call, call.decide().await)?;
        let decision = match asked.decision.or_denied() {
            Ok(decision) => decision,
            Err(error) => {
                // An earlier call with this id may have been charged: its lease has lapsed since, and others have it.
                if call.parts.len() > 1 && (account.own_id || asked.sent > 1) {
                    account.cancel().await;
                }
                account.forget();
                return Err(error);
            }
        };
        // If this id was charged with another estimate before, the decisions show that one.
        account.granted(&decision.decisions, asked.may_be_charged);
        // With an id of the program, an earlier call may have taken the leases.
        let since = (asked.at_once && !account.own_id).then_some(begun);
        match account.leases(since).await {
            Ok(leases) => Ok(Admission { account: Mutex::new(account), decision, renewals: leases.beat(), leases }),
            Err(error) => Err(account.failed(true, error)),
        }
    }
}

awaited!([const HOLD: bool] Admitting<HOLD> => Admission);

/// What a block of work was granted. [`settle`](Self::settle) it, [`finish`](Self::finish) it, or [`release`](Self::release) it. A drop
/// ends it in the background, as [`set_used`](Self::set_used) has said, or like a release; that needs the tokio runtime on which it was
/// made to go on. Errors of the connection are logged: what was charged then stays until its units come back with time, and the
/// leases lapse.
///
/// A lease is lost one time to live after the last call that granted or renewed it was made, by the monotonic clock of this process, or
/// when the server says so. A holder that stalls is not stopped in time: a lease is no lock for correctness.
pub struct Admission {
    account: Mutex<Account>,
    decision: AllDecision,
    leases: Arc<Leases>,
    renewals: JoinSet<()>,
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
        &self.leases.id
    }

    /// What the estimates become at the end. A program that streams an answer sets it again and again, also inside of
    /// [`run`](Self::run).
    pub fn set_used(&self, used: u64) -> Result<(), Error> {
        check_units(used, 0)?;
        self.account.lock().end = End::Used(used);
        Ok(())
    }

    /// Renews the leases now. If the server gives no answer, they are held until their deadlines.
    pub async fn check(&self) -> Result<(), Error> {
        self.leases.check().await
    }

    /// Runs a future. If a lease is lost, the future is dropped.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        self.leases.guard(future).await
    }

    /// The end after the work: estimates become what was used, or stay.
    pub async fn finish(self) -> Result<(), Error> {
        self.end(|end| if end == End::Release { End::Keep } else { end }).await
    }

    /// [`set_used`](Self::set_used), and then [`finish`](Self::finish).
    pub async fn settle(self, used: u64) -> Result<(), Error> {
        self.set_used(used)?;
        self.finish().await
    }

    /// Gives the estimates and the leases back, also if [`set_used`](Self::set_used) was called. Costs stay.
    pub async fn release(self) -> Result<(), Error> {
        self.end(|_| End::Release).await
    }

    /// Ends it in another way than a drop would.
    async fn end(mut self, change: impl FnOnce(End) -> End) -> Result<(), Error> {
        self.renewals.abort_all();
        let held = self.leases.check_held();
        let account = self.account.get_mut();
        account.end = change(account.end);
        match account.end().await {
            true => Err(Error::LeaseLost),
            false => held,
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (decision, lost) = (&self.decision, self.leases.check_held().is_err());
        f.debug_struct("Admission").field("decision", decision).field("lost", &lost).finish_non_exhaustive()
    }
}
