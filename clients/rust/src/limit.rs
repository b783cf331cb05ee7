//! A limit: a policy with a name and a connection; and what all its calls have in common.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value};

use crate::ask::How;
use crate::repeat::Repeats;
use crate::send::decision;
use crate::{AnyPolicy, Decision, Error, Fixed, IntoSpan, Key, LeasePolicy, Limits, Policy, RatePolicy, Rule, Take};

/// A policy with a name and a connection. Cheap to clone.
#[derive(Clone)]
pub struct Limit<P = Policy> {
    policy: P,
    inner: Arc<Inner>,
}

struct Inner {
    limits: Limits,
    policy: Policy,
    name: Arc<str>,
    /// What the keys of this limit start with.
    start: Arc<[u8]>,
    /// What follows the key in the command, unless that changes with the calendar.
    words: Option<Arc<[String]>>,
    repeats: Repeats,
}

impl<P> fmt::Debug for Limit<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.inner.name, self.inner.policy)
    }
}

/// What says the policy in a call.
pub(crate) struct Words {
    /// The number and the names of the policy keys of a `Named` limit.
    keys: Option<Vec<String>>,
    /// The words of the policy, or of the default.
    pub(crate) policy: Arc<[String]>,
    /// The length of the window in seconds, if it is one of a calendar.
    pub(crate) window: Option<u64>,
}

/// How many units a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Cost(u64),
    UpTo(u64),
    Force(u64),
    Refund(u64),
}

impl Amount {
    pub(crate) fn units(self) -> u64 {
        match self {
            Self::Cost(units) | Self::UpTo(units) | Self::Force(units) | Self::Refund(units) => units,
        }
    }

    pub(crate) fn check(self) -> Result<(), Error> {
        check_units(self.units(), 1)
    }

    pub(crate) fn push(self, command: &mut Cmd) {
        let name = match self {
            Self::Cost(1) => return,
            Self::Cost(_) => "COST",
            Self::UpTo(_) => "UPTO",
            Self::Force(_) => "FORCE",
            Self::Refund(_) => "REFUND",
        };
        command.arg(name).arg(self.units());
    }
}

/// Checks a number of units.
pub(crate) fn check_units(units: u64, least: u64) -> Result<(), Error> {
    match (least..=1_000_000_000_000).contains(&units) {
        true => Ok(()),
        false => Err(Error::InvalidCost(format!("units must be a whole number from {least} to 1000000000000, not {units}"))),
    }
}

pub(crate) fn check_id(id: &[u8]) -> Result<&[u8], Error> {
    match id.len() {
        1..=64 => Ok(id),
        length => Err(Error::InvalidId(format!("an id must be 1 to 64 bytes long, not {length}"))),
    }
}

impl<P: AnyPolicy> Limit<P> {
    pub(crate) fn new(limits: Limits, policy: P, name: &str, start: Arc<[u8]>) -> Self {
        let any: Policy = policy.clone().into();
        let words = any.constant_words().map(|words| words.words.into());
        let repeats = Repeats::new(limits.repeat_denials);
        Self { policy, inner: Arc::new(Inner { limits, policy: any, name: name.into(), start, words, repeats }) }
    }

    /// A rule of [`Limits::all`] or [`Limits::admit`] with this key.
    pub fn rule(&self, key: impl Key) -> Rule {
        Rule { limit: self.erase(), key: self.key(&key), amount: None }
    }

    /// The decision that a call would get. Takes nothing.
    pub fn peek(&self, key: impl Key) -> Take<false, false> {
        Take::new(self.erase(), &key, How::Peek)
    }

    /// Ends a lease, or gives back the charge that has this id. `None` if the key does not remember the id: it was settled,
    /// released or forgotten. The call is repeated until it has a reply.
    pub async fn release(&self, key: impl Key, id: impl AsRef<[u8]>) -> Result<Option<Decision>, Error> {
        let (key, id) = (self.key(&key)?, check_id(id.as_ref())?.to_vec());
        Ok(self.erase().end(self.limits(), &key, &id, None).await?.0)
    }

    /// The limit with any policy.
    pub(crate) fn erase(&self) -> Limit {
        Limit { policy: self.inner.policy.clone(), inner: self.inner.clone() }
    }

    pub(crate) fn key<K: Key + ?Sized>(&self, key: &K) -> Result<Vec<u8>, Error> {
        match &*key.bytes() {
            [] => Err(Error::InvalidKey("a key must not be empty".to_string())),
            key => Ok([&self.inner.start, key].concat()),
        }
    }
}

impl<P> Limit<P> {
    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.inner.name
    }

    pub(crate) fn repeats(&self) -> &Repeats {
        &self.inner.repeats
    }

    /// The key of a call whose key on the server is this one, if it is one of this limit.
    pub(crate) fn own<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        key.strip_prefix(&*self.inner.start)
    }

    /// The words that say the policy at this moment, in a call with this key on the server.
    pub(crate) fn words(&self, key: &[u8]) -> Result<Words, Error> {
        let keys = match self.policy() {
            Policy::Named(named) => Some(named.keys(self.own(key).unwrap_or(key))?),
            _ => None,
        };
        let (policy, window) = match &self.inner.words {
            Some(words) => (words.clone(), None),
            None => {
                let words = self.policy().words(SystemTime::now());
                (words.words.into(), words.window)
            }
        };
        Ok(Words { keys, policy, window })
    }

    /// The command of this limit up to the amount; by the policy keys, unless the server has none of them.
    pub(crate) fn command(&self, key: &[u8], words: &Words, has_keys: bool) -> Cmd {
        let (name, words) = match &words.keys {
            Some(keys) if has_keys => ("RL.USE", &**keys),
            _ => (self.policy().command_name(), &*words.policy),
        };
        let mut command = redis::cmd(name);
        command.arg(key).arg(words);
        command
    }
}

impl Limit {
    /// Settles the charge with this id, or releases it. Also returns how often the call was sent.
    pub(crate) async fn end(
        &self,
        limits: &Limits,
        key: &[u8],
        id: &[u8],
        units: Option<u64>,
    ) -> Result<(Option<Decision>, u32), Error> {
        let command = |_, _| {
            let mut command = redis::cmd(if units.is_some() { "RL.SETTLE" } else { "RL.RELEASE" });
            command.arg(key).arg(id).arg(units);
            command
        };
        self.repeats().forget(key);
        let reply = limits.send_forced(&command, key, true).await?;
        let ended = match reply.value {
            Value::Nil => None,
            value => Some(decision(&value, self.policy(), self.name())?),
        };
        Ok((ended, reply.sent))
    }

    /// Renews the lease with this id.
    pub(crate) async fn renew_at(&self, limits: &Limits, key: &[u8], id: &[u8]) -> Result<Decision, Error> {
        let words = self.words(key)?;
        let command = |_, has_keys| self.command(key, &words, has_keys).arg("ID").arg(id).arg("RENEW").clone();
        decision(&limits.send_forced(&command, key, true).await?.value, self.policy(), self.name())
    }

    /// Charges units, also while the server is down or the limits are closed.
    pub(crate) async fn force_at(&self, limits: &Limits, key: &[u8], units: u64) -> Result<Decision, Error> {
        let words = self.words(key)?;
        let command = |_, has_keys| self.command(key, &words, has_keys).arg("FORCE").arg(units).clone();
        decision(&limits.send_forced(&command, key, false).await?.value, self.policy(), self.name())
    }
}

impl<P: RatePolicy> Limit<P> {
    /// Takes a unit of this key: all or none of the [`cost`](Take::cost).
    pub fn take(&self, key: impl Key) -> Take<true, false> {
        Take::new(self.erase(), &key, How::Now)
    }

    /// Takes as many units as fit, at most this number.
    pub async fn take_up_to(&self, key: impl Key, units: u64) -> Result<Decision, Error> {
        Take::<false, false>::new(self.erase(), &key, How::Now).amount(Amount::UpTo(units)).await
    }

    /// Takes units regardless of the state. What is above the capacity is a debt.
    pub async fn force(&self, key: impl Key, units: u64) -> Result<Decision, Error> {
        Take::<false, false>::new(self.erase(), &key, How::Now).amount(Amount::Force(units)).await
    }

    /// Gives back at most this number of the units in use.
    pub async fn refund(&self, key: impl Key, units: u64) -> Result<Decision, Error> {
        Take::<false, false>::new(self.erase(), &key, How::Now).amount(Amount::Refund(units)).await
    }

    /// Waits in line for a unit, at most this long: a [`Duration`](std::time::Duration) or a text such as `"30s"`. If it has to wait,
    /// it has a connection of its own, on which the server sends the reply when the units are granted. To leave the line, drop the
    /// future: nothing is charged then, unless the units were granted at that moment.
    pub fn wait(&self, key: impl Key, wait: impl IntoSpan) -> Take<false, false> {
        Take::new(self.erase(), &key, How::within(wait, How::Block))
    }

    /// Books units that will be free within this time, and answers when: [`wait`](Decision::wait) of the decision. It does not sleep.
    pub fn reserve(&self, key: impl Key, within: impl IntoSpan) -> Take<false, false> {
        Take::new(self.erase(), &key, How::within(within, How::Reserve))
    }

    /// Takes a unit, and returns [`Error::RateLimited`] if it is denied. With [`wait`](Take::wait) it waits in line.
    pub fn admit(&self, key: impl Key) -> Take<false, true> {
        Take::new(self.erase(), &key, How::Now)
    }

    /// Sets the charge with this id to what it really cost. `None` if the key does not remember the id. The call is repeated
    /// until it has a reply.
    pub async fn settle(&self, key: impl Key, id: impl AsRef<[u8]>, units: u64) -> Result<Option<Decision>, Error> {
        let (key, id) = (self.key(&key)?, check_id(id.as_ref())?.to_vec());
        check_units(units, 0)?;
        Ok(self.erase().end(self.limits(), &key, &id, Some(units)).await?.0)
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
        Take::new(self.erase(), &key, how)
    }
}

impl<P: LeasePolicy> Limit<P> {
    /// Renews the lease with this id: it then ends one time to live from now. If the id holds no lease, the call is denied.
    /// The call is repeated until it has a reply.
    pub async fn renew(&self, key: impl Key, id: impl AsRef<[u8]>) -> Result<Decision, Error> {
        let (key, id) = (self.key(&key)?, check_id(id.as_ref())?.to_vec());
        self.erase().renew_at(self.limits(), &key, &id).await
    }
}
