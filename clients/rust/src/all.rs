//! Several limits in one call: all are charged, or none.

use std::collections::HashSet;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use redis::{Cmd, Value};

use crate::connection::slot;
use crate::limits::{check_id, new_id, Amount};
use crate::send::{decision, Request};
use crate::{AllDecision, AnyPolicy, Decision, Error, Limit, Limits, Policy, Span};

/// One limit of an [`All`], with a key: [`Limit::rule`] makes it.
#[derive(Clone, Debug)]
pub struct Rule {
    limit: Limit,
    key: Result<Vec<u8>, Error>,
    cost: u64,
}

impl Rule {
    pub(crate) fn new<P: AnyPolicy>(limit: &Limit<P>, key: Result<Vec<u8>, Error>) -> Self {
        Self { limit: limit.erase(), key, cost: 1 }
    }

    /// How many units to take; 1 by default.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }
}

/// A call that takes units from several limits, from all of them or from none. Nothing is sent before it is awaited.
///
/// Without an id it is sent once. With an id it is repeated until it has a reply, and is charged once; settle or release the
/// charge key by key, with [`Limit::settle`] and [`Limit::release`]. If a limit is a lease, and the call has no id, it gets a random
/// one: [`AllDecision::id`]. In a cluster all keys need the same hash tag.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct All {
    limits: Limits,
    rules: Vec<Rule>,
    wait: Result<Option<Span>, Error>,
    id: Option<Vec<u8>>,
}

impl All {
    pub(crate) fn new(limits: Limits, rules: Vec<Rule>) -> Self {
        Self { limits, rules, wait: Ok(None), id: None }
    }

    /// Waits until all limits grant at the same moment, at most this long: a `Duration`, or a text such as `"30s"`.
    pub fn wait<W: TryInto<Span>>(self, wait: W) -> Self
    where
        Error: From<W::Error>,
    {
        Self { wait: Span::of_wait(wait), ..self }
    }

    /// Names the charge on each key: 1 to 64 bytes.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self { id: Some(id.as_ref().to_vec()), ..self }
    }

    /// The keys on the server, if they are valid.
    fn keys(&self) -> Result<Vec<Vec<u8>>, Error> {
        let keys = self.rules.iter().map(|rule| rule.key.clone()).collect::<Result<Vec<_>, _>>()?;
        let invalid = |text: &str| Err(Error::InvalidKey(text.to_string()));
        match keys.first() {
            None => return invalid("a call needs a rule"),
            Some(_) if keys.len() > 1_024 => return invalid("a call has at most 1024 rules"),
            Some(_) if keys.iter().collect::<HashSet<_>>().len() < keys.len() => {
                return invalid("two rules have the same key")
            }
            Some(first) if self.limits.connection().has_slots() && keys.iter().any(|key| slot(key) != slot(first)) => {
                return invalid("in a cluster all keys of a call need the same hash tag")
            }
            Some(_) => {}
        }
        Ok(keys)
    }

    async fn send(self) -> Result<AllDecision, Error> {
        let keys = self.keys()?;
        self.rules.iter().try_for_each(|rule| Amount::Cost(rule.cost).check())?;
        let Self { limits, rules, wait, id } = self;
        let wait = wait?;
        let has_lease = rules.iter().any(|rule| matches!(rule.limit.policy(), Policy::Lease(_)));
        let id = id.or_else(|| has_lease.then(new_id));
        id.as_deref().map_or(Ok(()), check_id)?;
        let command = |wait: Option<Span>| command(&rules, &keys, id.as_deref(), wait);
        let request = Request { command: &command, key: &keys[0], repeat: id.is_some(), wait, replica: false };
        let reply = match limits.send(request).await {
            Ok(reply) => reply.value,
            Err(error) if limits.lets_through(&error) => {
                let uncounted = |rule: &Rule| Decision::uncounted(rule.cost, rule.limit.policy(), rule.limit.name.clone());
                return Ok(AllDecision {
                    granted: true,
                    id,
                    wait_ms: Some(0),
                    decisions: rules.iter().map(uncounted).collect(),
                });
            }
            Err(error) => return Err(error),
        };
        let unexpected = || Error::UnexpectedReply(format!("{reply:?}"));
        let Value::Array(fields) = &reply else { return Err(unexpected()) };
        let [Value::Int(granted), Value::Int(wait_ms), Value::Array(rows)] = fields.as_slice() else {
            return Err(unexpected());
        };
        if rows.len() != rules.len() {
            return Err(unexpected());
        }
        let row = |(row, rule): (&Value, &Rule)| decision(row, rule.limit.policy(), &rule.limit.name);
        Ok(AllDecision {
            granted: *granted > 0,
            id,
            wait_ms: u64::try_from(*wait_ms).ok(),
            decisions: rows.iter().zip(&rules).map(row).collect::<Result<_, _>>()?,
        })
    }
}

fn command(rules: &[Rule], keys: &[Vec<u8>], id: Option<&[u8]>, wait: Option<Span>) -> Cmd {
    let mut command = redis::cmd("RL.ALL");
    command.arg(keys.len()).arg(keys);
    for rule in rules {
        command.arg(rule.limit.policy().algorithm());
        rule.limit.push_policy(&mut command);
        Amount::Cost(rule.cost).push(&mut command);
    }
    if let Some(id) = id {
        command.arg("ID").arg(id);
    }
    if let Some(wait) = wait {
        command.arg("BLOCK").arg(wait.to_string());
    }
    command
}

impl IntoFuture for All {
    type Output = Result<AllDecision, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
