//! Several limits in one call: all are charged, or none.

use std::collections::HashSet;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use redis::{Cmd, Value};

use crate::account::{Account, Entry, Kind, Options};
use crate::connection::slot;
use crate::limit::Amount;
use crate::local::{Ask, Local};
use crate::send::{decision, Request};
use crate::take::push;
use crate::{AllDecision, Decision, Error, IntoSpan, Limit, Limits, Span};

/// One limit of an [`All`] or of an admission, with a key: [`Limit::rule`] makes it.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) limit: Limit,
    key: Result<Vec<u8>, Error>,
    pub(crate) cost: Option<u64>,
}

impl Rule {
    pub(crate) fn new(limit: Limit, key: Result<Vec<u8>, Error>) -> Self {
        Self { limit, key, cost: None }
    }

    /// How many units to take. Without a cost, [`Limits::all`] takes a unit, and [`Limits::admit`] the estimate, or one lease.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost: Some(cost), ..self }
    }

    pub(crate) fn units(&self) -> u64 {
        self.cost.unwrap_or(1)
    }

    pub(crate) fn is_lease(&self) -> bool {
        self.limit.policy().is_lease()
    }
}

/// A call that takes units from several limits, from all of them or from none. Nothing is sent before it is awaited.
///
/// With an id it is repeated after a lost connection, and is charged once; settle or release the charge key by key, with
/// [`Limit::settle`] and [`Limit::release`]. If a limit is a lease, and the call has no id, it gets a random one: [`AllDecision::id`].
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct All {
    limits: Limits,
    rules: Vec<Rule>,
    options: Options,
}

impl All {
    pub(crate) fn new(limits: Limits, rules: Vec<Rule>) -> Self {
        Self { limits, rules, options: Options::new() }
    }

    /// Waits until all limits grant at the same moment, at most this long.
    pub fn wait(self, wait: impl IntoSpan) -> Self {
        Self { options: self.options.wait(wait), ..self }
    }

    /// Names the charge on each key: 1 to 64 bytes.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self { options: self.options.id(id.as_ref()), ..self }
    }

    async fn send(self) -> Result<AllDecision, Error> {
        let keys = keys(&self.limits, &self.rules)?;
        let (wait, id) = self.options.check()?;
        if id.is_some() || !self.rules.iter().any(Rule::is_lease) {
            return Ok(ask(&self.limits, &self.rules, &keys, wait, id.as_deref())
                .await
                .map_err(|asked| asked.error)?
                .decision);
        }
        // The caller learns the id from the decision. Without one, what the call may have taken is released.
        let entry = |(rule, key): (&Rule, &Vec<u8>)| {
            let kind = if rule.is_lease() { Kind::Lease } else { Kind::Cost };
            Entry::new(rule.limit.clone(), key.clone(), kind, rule.units())
        };
        let mut account = Account::new(self.limits.clone(), None, self.rules.iter().zip(&keys).map(entry).collect());
        let id = account.id().to_vec();
        match ask(&self.limits, &self.rules, &keys, wait, Some(&id)).await {
            Ok(asked) => {
                account.forget();
                Ok(asked.decision)
            }
            Err(Failed { error, may_be_charged }) => {
                account.failed(may_be_charged);
                Err(error)
            }
        }
    }
}

impl IntoFuture for All {
    type Output = Result<AllDecision, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
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
        Some(first) if limits.connection.has_slots() && keys.iter().any(|key| slot(key) != slot(first)) => {
            return invalid("in a cluster all keys of a call need the same hash tag")
        }
        Some(_) => {}
    }
    rules.iter().try_for_each(|rule| Amount::Cost(rule.units()).check())?;
    Ok(keys)
}

/// What several limits have decided.
pub(crate) struct Asked {
    pub(crate) decision: AllDecision,
    /// The call was sent once and has not waited.
    pub(crate) at_once: bool,
    /// How often it was sent.
    pub(crate) sent: u32,
    /// The server may have charged it.
    pub(crate) may_be_charged: bool,
}

/// A call that failed.
pub(crate) struct Failed {
    pub(crate) error: Error,
    pub(crate) may_be_charged: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { may_be_charged: error.may_be_charged(), error }
    }
}

/// Takes units from all of these limits, or from none.
pub(crate) async fn ask(
    limits: &Limits,
    rules: &[Rule],
    keys: &[Vec<u8>],
    wait: Option<Span>,
    id: Option<&[u8]>,
) -> Result<Asked, Failed> {
    let key = keys.first().map(Vec::as_slice).unwrap_or_default();
    let words: Vec<_> = rules.iter().map(|rule| rule.limit.words()).collect();
    let command = |wait: Option<Span>| command(rules, &words, keys, id, wait);
    let request = Request { command: &command, key, repeat: id.is_some(), wait, forced: false };
    let own_id = id.map(<[u8]>::to_vec);
    let reply = match limits.send(request).await.map_err(|error| error.with_keys(keys.iter().map(Vec::as_slice))) {
        Ok(reply) => reply,
        Err(error) => {
            let may_be_charged = error.may_be_charged();
            let decided = limits.without_server(error, |local| without_server(local, rules, keys));
            let decision = decided.map_err(|error| Failed { error, may_be_charged })?;
            return Ok(Asked { decision: AllDecision { id: own_id, ..decision }, at_once: true, sent: 1, may_be_charged });
        }
    };
    let decision = AllDecision { id: own_id, ..read(&reply.value, rules, &words)? };
    Ok(Asked { decision, at_once: reply.sent == 1 && !reply.waited, sent: reply.sent, may_be_charged: true })
}

/// The words of the policy of each rule, and the length of its window if that is one of a calendar.
type Words = [(Arc<[String]>, Option<u64>)];

/// Reads the reply to `RL.ALL`, or to the command of a single rule.
fn read(reply: &Value, rules: &[Rule], words: &Words) -> Result<AllDecision, Error> {
    let row = |row: &Value, rule: &Rule, window: Option<u64>| {
        decision(row, rule.limit.policy(), rule.limit.name()).map(|decision| Decision { window, ..decision })
    };
    if let ([rule], [(_, window)]) = (rules, words) {
        let decision = row(reply, rule, *window)?;
        let (granted, wait_ms) = (decision.allowed(), decision.wait_ms);
        return Ok(AllDecision { granted, id: None, wait_ms, decisions: vec![decision] });
    }
    let unexpected = || Error::UnexpectedReply(format!("{reply:?}"));
    let Value::Array(fields) = reply else { return Err(unexpected()) };
    let [Value::Int(granted), Value::Int(wait_ms), Value::Array(rows)] = fields.as_slice() else { return Err(unexpected()) };
    if rows.len() != rules.len() {
        return Err(unexpected());
    }
    let each = rows.iter().zip(rules).zip(words).map(|((value, rule), (_, window))| row(value, rule, *window));
    let wait_ms = u64::try_from(*wait_ms).ok();
    Ok(AllDecision { granted: *granted > 0, id: None, wait_ms, decisions: each.collect::<Result<_, _>>()? })
}

/// Decides without the server: each rule by itself, all or none. Also returns whether the call goes through.
fn without_server(local: Option<&mut Local>, rules: &[Rule], keys: &[Vec<u8>]) -> (AllDecision, bool) {
    let open = |rule: &Rule| Decision::open(rule.units(), rule.limit.policy(), rule.limit.name().clone());
    let mut decisions: Vec<_> = rules.iter().map(open).collect();
    if let Some(local) = local {
        let mut decide = |ask: fn(u64) -> Ask| {
            for ((rule, key), decision) in
                rules.iter().zip(keys).zip(&mut decisions).filter(|((rule, _), _)| !rule.is_lease())
            {
                *decision = local.decide(key, ask(rule.units()), open(rule));
            }
            decisions.iter().all(Decision::allowed)
        };
        if decide(Ask::Peek) {
            decide(Ask::Take);
        }
    }
    let granted = decisions.iter().all(Decision::allowed);
    // A rule that is never granted makes the whole call wait for ever.
    let wait_ms = decisions.iter().map(|decision| decision.wait_ms).try_fold(0, |longest, wait| Some(wait?.max(longest)));
    (AllDecision { granted, id: None, wait_ms, decisions }, granted)
}

fn command(rules: &[Rule], words: &Words, keys: &[Vec<u8>], id: Option<&[u8]>, wait: Option<Span>) -> Cmd {
    let mut command = match (rules, keys) {
        ([rule], [key]) => rule.limit.command(key),
        _ => {
            let mut command = redis::cmd("RL.ALL");
            command.arg(keys.len()).arg(keys);
            command
        }
    };
    for (rule, (words, _)) in rules.iter().zip(words) {
        if rules.len() > 1 {
            command.arg(rule.limit.policy().algorithm());
        }
        command.arg(&**words);
        Amount::Cost(rule.units()).push(&mut command);
    }
    push(&mut command, "ID", id);
    push(&mut command, "BLOCK", wait.map(|wait| wait.to_string()));
    command
}
