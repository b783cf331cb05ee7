//! Calls that take units, or ask for them: of one key, or of several.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::account::Account;
use crate::amount::{check_id, check_units, Amount};
use crate::ask::{awaited, Asked, Call, How};
use crate::{AllDecision, AnyPolicy, Decision, Error, Fixed, IntoSpan, Key, LeasePolicy, Limit, Limits, RatePolicy, Rule};

impl<P: AnyPolicy> Limit<P> {
    /// The decision that a call would get. Takes nothing.
    pub fn peek(&self, key: impl Key) -> Take<false, false> {
        Take::new(self, key, How::Peek)
    }

    /// Ends a lease, or gives back the charge that has this id. `None` if the key does not remember the id: it was settled,
    /// released or forgotten. The call is repeated until it has a reply.
    pub async fn release(&self, key: impl Key, id: impl AsRef<[u8]>) -> Result<Option<Decision>, Error> {
        let (key, id) = (self.key(&key)?, check_id(id.as_ref())?.to_vec());
        Ok(self.end(self.limits(), &key, &id, None).await?.0)
    }
}

impl<P: RatePolicy> Limit<P> {
    /// Takes a unit of this key: all or none of the [`cost`](Take::cost).
    pub fn take(&self, key: impl Key) -> Take<true, false> {
        Take::new(self, key, How::Now)
    }

    /// Takes as many units as fit, at most this number.
    pub async fn take_up_to(&self, key: impl Key, units: u64) -> Result<Decision, Error> {
        self.take(key).amount(Amount::UpTo(units)).await
    }

    /// Takes units regardless of the state. What is above the capacity is a debt.
    pub async fn force(&self, key: impl Key, units: u64) -> Result<Decision, Error> {
        self.take(key).amount(Amount::Force(units)).await
    }

    /// Gives back at most this number of the units in use.
    pub async fn refund(&self, key: impl Key, units: u64) -> Result<Decision, Error> {
        self.take(key).amount(Amount::Refund(units)).await
    }

    /// Waits in line for a unit, at most this long: a [`Duration`](std::time::Duration) or a text such as `"30s"`. If it has to wait,
    /// it has a connection of its own, on which the server sends the reply when the units are granted. To leave the line, drop the
    /// future: nothing is charged then, unless the units were granted at that moment.
    pub fn wait(&self, key: impl Key, wait: impl IntoSpan) -> Take<false, false> {
        Take::new(self, key, How::within(wait, How::Block))
    }

    /// Books units that will be free within this time, and answers when: [`wait`](Decision::wait) of the decision. It does not sleep.
    pub fn reserve(&self, key: impl Key, within: impl IntoSpan) -> Take<false, false> {
        Take::new(self, key, How::within(within, How::Reserve))
    }

    /// Takes a unit, and returns [`Error::RateLimited`] if it is denied. With [`wait`](Take::wait) it waits in line.
    pub fn admit(&self, key: impl Key) -> Take<false, true> {
        Take::new(self, key, How::Now)
    }

    /// Sets the charge with this id to what it really cost. `None` if the key does not remember the id. The call is repeated
    /// until it has a reply.
    pub async fn settle(&self, key: impl Key, id: impl AsRef<[u8]>, units: u64) -> Result<Option<Decision>, Error> {
        let (key, id) = (self.key(&key)?, check_id(id.as_ref())?.to_vec());
        check_units(units, 0)?;
        Ok(self.end(self.limits(), &key, &id, Some(units)).await?.0)
    }
}

impl Limit<Fixed> {
    /// Takes a unit from a window that ends at this time. The period of the policy is the longest that the window can be. A policy that
    /// is aligned, or has a zone, can't be used here.
    pub fn until(&self, key: impl Key, time: SystemTime) -> Take<false, false> {
        let invalid = |text: &str| How::Invalid(Error::InvalidLimit(text.to_string()));
        let how = match time.duration_since(UNIX_EPOCH) {
            _ if self.policy.has_windows() => invalid("windows that are aligned, or those of a zone, can't end at a time"),
            Ok(since) => How::Until(since),
            Err(_) => invalid("a window can't end before 1970"),
        };
        Take::new(self, key, how)
    }
}

impl<P: LeasePolicy> Limit<P> {
    /// Renews the lease with this id: it then ends one time to live from now. If the id holds no lease, the call is denied.
    /// The call is repeated until it has a reply.
    pub async fn renew(&self, key: impl Key, id: impl AsRef<[u8]>) -> Result<Decision, Error> {
        let (key, id) = (self.key(&key)?, check_id(id.as_ref())?.to_vec());
        self.renew_at(self.limits(), &key, &id).await
    }
}

/// A call of a [`Limit`]. Nothing is sent before it is awaited. `ID` says that it may have an id, and `ADMIT` that a denial is an
/// error and that the call may wait.
///
/// Without an id it is sent once, except a wait that the server has ended without a charge. If its reply is lost, the result is
/// [`Error::Unavailable`], and the server may have charged it. If the future is dropped, the same is true.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Take<const ID: bool, const ADMIT: bool>(Call);

impl<const ID: bool, const ADMIT: bool> Take<ID, ADMIT> {
    fn new<P: AnyPolicy>(limit: &Limit<P>, key: impl Key, how: How) -> Self {
        Self(Call::new(limit.limits(), [limit.rule(key)], how))
    }

    fn amount(self, amount: Amount) -> Self {
        Self(self.0.amount(amount))
    }

    /// How many units to take; 1 by default.
    pub fn cost(self, cost: u64) -> Self {
        self.amount(Amount::Cost(cost))
    }

    async fn send(self) -> Result<Decision, Error> {
        let call = self.0.checked()?;
        let part = &call.parts[0];
        let repeats = part.limit.repeats();
        if part.limit.policy().is_lease() && !matches!(call.how, How::Peek) {
            return Err(Error::InvalidLimit("a lease is held, with Limit::hold, and not taken".to_string()));
        }
        let decide = async { call.decide().await.map(Asked::first) };
        let decided = match (&call.how, part.amount) {
            // A retry of an id may be granted although the key has no units, so it is always made.
            (How::Now, Amount::Cost(cost)) if call.id.is_none() => {
                call.limits.check_open()?;
                repeats.find_or(&part.key, cost, decide).await?
            }
            (_, Amount::Force(_) | Amount::Refund(_)) => {
                repeats.forget(&part.key);
                decide.await?
            }
            _ => decide.await?,
        };
        match ADMIT {
            true => decided.or_denied(),
            false => Ok(decided),
        }
    }
}

impl Take<true, false> {
    /// Names the call: 1 to 64 bytes. Then it is repeated after a lost connection, and charged once; and can be settled or released
    /// by its id. If it fails, the program may make it again with the same id.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self(self.0.id(id))
    }
}

impl Take<false, true> {
    /// Waits in line for the units, at most this long: see [`Limit::wait`].
    pub fn wait(self, wait: impl IntoSpan) -> Self {
        Self(self.0.wait(wait))
    }
}

awaited!([const ID: bool, const ADMIT: bool] Take<ID, ADMIT> => Decision);

/// A call that takes units from several limits, from all of them or from none. Nothing is sent before it is awaited.
///
/// With an id it is repeated after a lost connection, and is charged once; settle or release the charge key by key, with
/// [`Limit::settle`] and [`Limit::release`]. If a limit is a lease, and the call has no id, it gets a random one: [`AllDecision::id`].
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct All(Call);

impl Limits {
    /// Takes units from several limits, from all of them or from none.
    pub fn all(&self, rules: impl IntoIterator<Item = Rule>) -> All {
        All(Call::new(self, rules, How::Now))
    }
}

impl All {
    /// Waits until all limits grant at the same moment, at most this long.
    pub fn wait(self, wait: impl IntoSpan) -> Self {
        Self(self.0.wait(wait))
    }

    /// Names the charge on each key: 1 to 64 bytes.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self(self.0.id(id))
    }

    async fn send(self) -> Result<AllDecision, Error> {
        let mut call = self.0.checked()?;
        if call.id.is_some() || !call.parts.iter().any(|part| part.limit.policy().is_lease()) {
            return Ok(call.decide().await?.decision);
        }
        // The caller learns the id from the decision. Without one, what the call may have taken is released.
        let (mut account, asked) = Account::new(&mut call).after(&call, call.decide().await)?;
        account.forget();
        Ok(asked.decision)
    }
}

awaited!([] All => AllDecision);
