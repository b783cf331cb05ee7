//! A limit: a policy with a name and a connection; how it is said to the server, and how its charges are ended and renewed.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use redis::Value;

use crate::policy::Words;
use crate::repeat::Repeats;
use crate::send::Request;
use crate::{AnyPolicy, Decision, Error, Key, Limits, Policy};

/// A policy with a name and a connection. Cheap to clone.
#[derive(Clone)]
pub struct Limit<P = Policy> {
    pub(crate) policy: P,
    inner: Arc<Inner>,
}

struct Inner {
    limits: Limits,
    policy: Policy,
    name: Arc<str>,
    /// What the keys of this limit start with.
    start: Vec<u8>,
    /// What follows the key in the command, unless that changes with the calendar.
    words: Option<Words>,
    repeats: Repeats,
}

impl<P> fmt::Debug for Limit<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.inner.name, self.inner.policy)
    }
}

impl Limits {
    /// A limit with this name. Its keys on the server are the prefix, the name, a colon, and the key of the call. In a cluster,
    /// a name with a hash tag, such as `{acme}api`, gives all its keys one slot.
    pub fn limit<P: AnyPolicy>(&self, name: &str, policy: P) -> Result<Limit<P>, Error> {
        if name.is_empty() || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b':') {
            return Err(Error::InvalidLimit(format!(
                "a name must be printable ASCII without a colon, and not empty: {name:?}"
            )));
        }
        let any: Policy = policy.clone().into();
        let inner = Inner {
            limits: self.clone(),
            words: any.constant_words(),
            policy: any,
            name: name.into(),
            start: [&self.prefix, name.as_bytes(), b":"].concat(),
            repeats: Repeats::new(self.repeat_denials),
        };
        Ok(Limit { policy, inner: Arc::new(inner) })
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

    /// The key of a call whose key on the server is this one, if it is one of this limit.
    pub(crate) fn own<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        key.strip_prefix(&*self.inner.start)
    }

    /// The words of the policy at this moment; of a [`Named`](crate::Named), its default.
    pub(crate) fn words(&self) -> Words {
        self.inner.words.clone().unwrap_or_else(|| self.policy().words(SystemTime::now()))
    }

    /// The command of this limit with these words, up to the amount; by policy keys, if it has some.
    pub(crate) fn request<'a>(&self, key: &'a [u8], words: &Words) -> Result<Request<'a>, Error> {
        let command = redis::cmd(self.policy().command_name()).arg(key).arg(&*words.words).take();
        let Policy::Named(named) = self.policy() else { return Ok(Request::new(command, vec![key])) };
        let keys = named.keys(self.own(key).unwrap_or(key))?;
        let by_keys = redis::cmd("RL.USE").arg(key).arg(keys).take();
        Ok(Request { otherwise: Some(command), ..Request::new(by_keys, vec![key]) })
    }

    /// Reads the five integers of a reply.
    pub(crate) fn decision(&self, reply: &Value) -> Result<Decision, Error> {
        let integer = |value: &Value| if let Value::Int(value) = value { Some(*value) } else { None };
        let row = reply.as_sequence().and_then(|row| row.iter().map(integer).collect::<Option<Vec<i64>>>()?.try_into().ok());
        let decision = row.and_then(|row| Decision::of_reply(row, self.policy().clone(), self.name().clone()));
        decision.ok_or_else(|| Error::UnexpectedReply(format!("{reply:?}")))
    }

    /// Settles the charge with this id, or releases it. Also returns how often the call was sent.
    pub(crate) async fn end(
        &self,
        limits: &Limits,
        key: &[u8],
        id: &[u8],
        units: Option<u64>,
    ) -> Result<(Option<Decision>, u32), Error> {
        let command =
            redis::cmd(if units.is_some() { "RL.SETTLE" } else { "RL.RELEASE" }).arg(key).arg(id).arg(units).take();
        self.repeats().forget(key);
        let request = Request::new(command, vec![key]);
        let reply = limits.send(Request { repeat: true, forced: true, ..request }).await?;
        let ended = match reply.value {
            Value::Nil => None,
            value => Some(self.decision(&value)?),
        };
        Ok((ended, reply.sent))
    }

    /// Renews the lease with this id.
    pub(crate) async fn renew_at(&self, limits: &Limits, key: &[u8], id: &[u8]) -> Result<Decision, Error> {
        let request = self.request(key, &self.words())?.arg(("ID", id)).arg("RENEW");
        self.decision(&limits.send(Request { repeat: true, forced: true, ..request }).await?.value)
    }

    /// Charges units, also while the server is down or the limits are closed.
    pub(crate) async fn force_at(&self, limits: &Limits, key: &[u8], units: u64) -> Result<Decision, Error> {
        let request = self.request(key, &self.words())?.arg(("FORCE", units));
        self.decision(&limits.send(Request { forced: true, ..request }).await?.value)
    }
}
