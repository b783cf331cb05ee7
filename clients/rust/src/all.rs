//! Several limits in one call: all are charged, or none.

use std::collections::HashSet;

use redis::{Cmd, Value};

use crate::account::{call_with_id, Account, Entry, Kind, Options};
use crate::connection::slot;
use crate::limits::Amount;
use crate::send::{decision, Request};
use crate::{AllDecision, AnyPolicy, Decision, Error, Limit, Limits, Policy, Span};

/// One limit of an [`All`] or of an admission, with a key: [`Limit::rule`] makes it.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) limit: Limit,
    pub(crate) key: Result<Vec<u8>, Error>,
    pub(crate) cost: Option<u64>,
}

impl Rule {
    pub(crate) fn new<P: AnyPolicy>(limit: &Limit<P>, key: Result<Vec<u8>, Error>) -> Self {
        Self { limit: limit.erase(), key, cost: None }
    }

    /// How many units to take. Without a cost, [`Limits::all`] takes a unit, and [`Limits::admit`] the estimate, or one lease.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost: Some(cost), ..self }
    }

    pub(crate) fn units(&self) -> u64 {
        self.cost.unwrap_or(1)
    }

    pub(crate) fn is_lease(&self) -> bool {
        matches!(self.limit.policy(), Policy::Lease(_))
    }
}

/// A call that takes units from several limits, from all of them or from none. Nothing is sent before it is awaited.
///
/// Without an id it is sent once. With an id it is repeated until it has a reply, and is charged once; settle or release the
/// charge key by key, with [`Limit::settle`] and [`Limit::release`]. If a limit is a lease, and the call has no id, it gets a random
/// one: [`AllDecision::id`]. If there is no decision, or the future is dropped, what the call may have taken is released. In a
/// cluster all keys need the same hash tag. [`Limits::admit`] settles and releases by itself.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct All {
    limits: Limits,
    rules: Vec<Rule>,
    options: Options,
}

call_with_id!(
    All,
    AllDecision,
    "Waits until all limits grant at the same moment, at most this long.",
    "Names the charge on each key: 1 to 64 bytes."
);

impl All {
    pub(crate) fn new(limits: Limits, rules: Vec<Rule>) -> Self {
        Self { limits, rules, options: Options::new() }
    }

    async fn send(self) -> Result<AllDecision, Error> {
        let keys = keys(&self.limits, &self.rules)?;
        let (wait, id) = self.options.check()?;
        if id.is_some() || !self.rules.iter().any(Rule::is_lease) {
            return Ok(ask(&self.limits, &self.rules, &keys, wait, id.as_deref()).await?.0);
        }
        // The caller learns the id from the decision. Without one, what the call may have taken is released.
        let entry = |(rule, key): (&Rule, &Vec<u8>)| {
            let kind = if rule.is_lease() { Kind::Lease } else { Kind::Cost };
            // All calls go where this one goes.
            let mut limit = rule.limit.clone();
            limit.limits = self.limits.clone();
            Entry::new(limit, key.clone(), kind, rule.units())
        };
        let mut account = Account::new(None, self.rules.iter().zip(&keys).map(entry).collect());
        let id = account.id().to_vec();
        match ask(&self.limits, &self.rules, &keys, wait, Some(&id)).await {
            Ok((decision, _)) => {
                account.forget();
                Ok(decision)
            }
            Err(error) => {
                account.failed(&error, false);
                Err(error)
            }
        }
    }
}

/// The keys of these rules on the server, if they and the costs are valid.
pub(crate) fn keys(limits: &Limits, rules: &[Rule]) -> Result<Vec<Vec<u8>>, Error> {
    let keys = rules.iter().map(|rule| rule.key.clone()).collect::<Result<Vec<_>, _>>()?;
    let invalid = |text: &str| Err(Error::InvalidKey(text.to_string()));
    match keys.first() {
        None => return invalid("a call needs a rule"),
        Some(_) if keys.len() > 1_024 => return invalid("a call has at most 1024 rules"),
        Some(_) if keys.iter().collect::<HashSet<_>>().len() < keys.len() => return invalid("two rules have the same key"),
        Some(first) if limits.connection().has_slots() && keys.iter().any(|key| slot(key) != slot(first)) => {
            return invalid("in a cluster all keys of a call need the same hash tag")
        }
        Some(_) => {}
    }
    rules.iter().try_for_each(|rule| Amount::Cost(rule.units()).check())?;
    Ok(keys)
}

/// Takes units from all of these limits, or from none. Also returns how often the call was sent.
pub(crate) async fn ask(
    limits: &Limits,
    rules: &[Rule],
    keys: &[Vec<u8>],
    wait: Option<Span>,
    id: Option<&[u8]>,
) -> Result<(AllDecision, u32), Error> {
    let key = keys.first().map(Vec::as_slice).unwrap_or_default();
    let own_id = id.map(<[u8]>::to_vec);
    let command = |wait: Option<Span>| command(rules, keys, id, wait);
    let request = Request { command: &command, key, repeat: id.is_some(), wait, replica: false };
    let reply = match limits.send_unnamed(request).await.map_err(|error| error.with_keys(keys.iter().map(Vec::as_slice))) {
        Ok(reply) => reply,
        Err(error) if limits.lets_through(&error) => {
            let uncounted = |rule: &Rule| Decision::uncounted(rule.units(), rule.limit.policy(), rule.limit.name.clone());
            let decisions = rules.iter().map(uncounted).collect();
            return Ok((AllDecision { granted: true, id: own_id, wait_ms: Some(0), decisions }, 1));
        }
        Err(error) => return Err(error),
    };
    let unexpected = || Error::UnexpectedReply(format!("{:?}", reply.value));
    let Value::Array(fields) = &reply.value else { return Err(unexpected()) };
    let [Value::Int(granted), Value::Int(wait_ms), Value::Array(rows)] = fields.as_slice() else {
        return Err(unexpected());
    };
    if rows.len() != rules.len() {
        return Err(unexpected());
    }
    let row = |(row, rule): (&Value, &Rule)| decision(row, rule.limit.policy(), &rule.limit.name);
    let decisions = rows.iter().zip(rules).map(row).collect::<Result<_, _>>()?;
    let all = AllDecision { granted: *granted > 0, id: own_id, wait_ms: u64::try_from(*wait_ms).ok(), decisions };
    Ok((all, reply.sent))
}

fn command(rules: &[Rule], keys: &[Vec<u8>], id: Option<&[u8]>, wait: Option<Span>) -> Cmd {
    let mut command = redis::cmd("RL.ALL");
    command.arg(keys.len()).arg(keys);
    for rule in rules {
        command.arg(rule.limit.policy().algorithm());
        rule.limit.push_policy(&mut command);
        Amount::Cost(rule.units()).push(&mut command);
    }
    if let Some(id) = id {
        command.arg("ID").arg(id);
    }
    if let Some(wait) = wait {
        command.arg("BLOCK").arg(wait.to_string());
    }
    command
}
