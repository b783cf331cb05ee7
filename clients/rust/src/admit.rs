//! A block of work that limits are charged for: several of them, all or none; an estimate, which is settled; a lease, which is renewed.

use std::fmt;
use std::future::Future;
use std::time::Instant;

use parking_lot::Mutex;

use crate::account::{Account, End};
use crate::ask::{Call, How};
use crate::awaited::awaited;
use crate::beat::Beat;
use crate::limit::Amount;
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
    pub fn estimate(mut self, estimate: u64) -> Self {
        self.0.estimate = Some(estimate);
        self
    }
}

impl Admitting<true> {
    /// How many units to hold; 1 by default.
    pub fn units(mut self, units: u64) -> Self {
        self.0.rules[0].amount = Some(Amount::Cost(units));
        self
    }
}

impl<const HOLD: bool> Admitting<HOLD> {
    /// Waits until all limits grant at the same moment, at most this long: a `Duration` or a text such as `"30s"`. It holds nothing
    /// meanwhile.
    pub fn wait(mut self, wait: impl IntoSpan) -> Self {
        self.0.how = How::within(wait, How::Block);
        self
    }

    /// The id: 1 to 64 bytes; a random one by default. A process that continues its work after a restart names the id of its job. Two
    /// calls at the same time need different ids, also those of different tenants, if they share a key.
    pub fn id(mut self, id: impl AsRef<[u8]>) -> Self {
        self.0.id = Some(id.as_ref().to_vec());
        self
    }

    async fn send(self) -> Result<Admission, Error> {
        let mut call = self.0.checked()?;
        let mut account = Account::new(&mut call);
        let begun = Instant::now();
        let asked = match call.decide().await {
            Ok(asked) => asked,
            Err(error) => {
                account.failed(error.may_be_charged());
                return Err(error);
            }
        };
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
        match account.beat(since).await {
            Ok(beat) => Ok(Admission { id: account.id.clone(), account: Mutex::new(account), decision, beat }),
            Err(error) => {
                account.failed(true);
                Err(error)
            }
        }
    }
}

awaited!([const HOLD: bool] Admitting<HOLD> => Admission);

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
        self.account.lock().set_used(used)
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
        self.account.lock().keep();
        self.end().await
    }

    /// [`set_used`](Self::set_used), and then [`finish`](Self::finish).
    pub async fn settle(self, used: u64) -> Result<(), Error> {
        self.set_used(used)?;
        self.finish().await
    }

    /// Gives the estimates and the leases back, also if [`set_used`](Self::set_used) was called. Costs stay.
    pub async fn release(self) -> Result<(), Error> {
        self.account.lock().end = End::Release;
        self.end().await
    }

    async fn end(mut self) -> Result<(), Error> {
        self.beat.stop();
        let lost = self.beat.is_lost();
        match self.account.get_mut().end().await || lost {
            true => Err(Error::LeaseLost),
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (decision, lost) = (&self.decision, self.beat.is_lost());
        f.debug_struct("Admission").field("decision", decision).field("lost", &lost).finish_non_exhaustive()
    }
}
