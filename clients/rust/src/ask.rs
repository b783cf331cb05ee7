//! What all calls that take units have in common: rules, how to take them, and an id; and how they are decided.

use std::collections::HashSet;
use std::time::Duration;

use redis::Value;

use crate::amount::{check_id, Amount};
use crate::connection::slot;
use crate::local::Local;
use crate::policy::Words;
use crate::send::Request;
use crate::{AllDecision, AnyPolicy, Decision, Error, IntoSpan, Key, Limit, Limits, Span};

/// Lets a call be awaited: then it is sent, by its method `send`. Before the type are its parameters, in brackets; at the end is the
/// lifetime of what it borrows.
macro_rules! awaited {
    ([$($parameter:tt)*] $call:ty => $output:ty $(, $lifetime:lifetime)?) => {
        impl<$($parameter)*> std::future::IntoFuture for $call {
            type Output = Result<$output, crate::Error>;
            type IntoFuture = std::pin::Pin<Box<dyn std::future::Future<Output = Self::Output> + Send $(+ $lifetime)?>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.send())
            }
        }
    };
}

pub(crate) use awaited;

/// One limit of an [`All`](crate::All) or of an admission, with a key: [`Limit::rule`] makes it.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) limit: Limit,
    pub(crate) key: Result<Vec<u8>, Error>,
    pub(crate) amount: Option<Amount>,
}

impl<P: AnyPolicy> Limit<P> {
    /// A rule of [`Limits::all`] or [`Limits::admit`] with this key.
    pub fn rule(&self, key: impl Key) -> Rule {
        Rule { limit: self.erase(), key: self.key(&key), amount: None }
    }
}

impl Rule {
    /// How many units to take. Without a cost, [`Limits::all`] takes a unit, and [`Limits::admit`] the estimate, or one lease.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { amount: Some(Amount::Cost(cost)), ..self }
    }
}

/// How a call is made.
#[derive(Clone, Debug)]
pub(crate) enum How {
    Now,
    Peek,
    Block(Span),
    Reserve(Span),
    Until(Duration),
    Invalid(Error),
}

impl How {
    /// A call with this wait; without one if it is 0.
    pub(crate) fn within(wait: impl IntoSpan, how: impl FnOnce(Span) -> Self) -> Self {
        Span::of_wait(wait).map_or_else(Self::Invalid, |wait| wait.map_or(Self::Now, how))
    }
}

/// What a key is charged by a block of work, and what becomes of it at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Units that are settled to what was used.
    Estimate,
    /// Units that stay charged.
    Cost,
    /// A lease, which is released.
    Lease,
}

/// A key of a call, and the units that it takes there.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) limit: Limit,
    pub(crate) key: Vec<u8>,
    pub(crate) amount: Amount,
    pub(crate) kind: Kind,
}

/// A call, as it is built. Nothing is checked yet.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) limits: Limits,
    pub(crate) rules: Vec<Rule>,
    /// What rules without an amount take, except leases, of which they take one.
    pub(crate) estimate: Option<u64>,
    pub(crate) how: How,
    pub(crate) id: Option<Vec<u8>>,
}

impl Call {
    /// A call that takes a unit of each rule.
    pub(crate) fn new(limits: &Limits, rules: impl IntoIterator<Item = Rule>, how: How) -> Self {
        Self { limits: limits.clone(), rules: rules.into_iter().collect(), estimate: Some(1), how, id: None }
    }

    /// The call with another amount for its first rule.
    pub(crate) fn amount(mut self, amount: Amount) -> Self {
        self.rules[0].amount = Some(amount);
        self
    }

    /// The call with a wait in line.
    pub(crate) fn wait(self, wait: impl IntoSpan) -> Self {
        Self { how: How::within(wait, How::Block), ..self }
    }

    /// The call with an id.
    pub(crate) fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self { id: Some(id.as_ref().to_vec()), ..self }
    }

    /// The call with its keys on the server, if all of it is valid.
    pub(crate) fn checked(self) -> Result<Checked, Error> {
        let Self { limits, rules, estimate, how, id } = self;
        let part = |Rule { limit, key, amount }: Rule| -> Result<Part, Error> {
            let missing = || Error::InvalidCost(format!("{} needs a cost, or the call an estimate", limit.name()));
            let (kind, amount) = match amount {
                _ if limit.policy().is_lease() => (Kind::Lease, amount.unwrap_or(Amount::Cost(1))),
                Some(amount) => (Kind::Cost, amount),
                None => (Kind::Estimate, Amount::Cost(estimate.ok_or_else(missing)?)),
            };
            Ok(Part { limit, key: key?, amount, kind })
        };
        let parts = rules.into_iter().map(part).collect::<Result<Vec<_>, _>>()?;
        let invalid = |text: &str| Err(Error::InvalidKey(text.to_string()));
        if (parts.len() > 1 || matches!(how, How::Peek)) && parts.iter().any(|part| part.limit.policy().is_named()) {
            let text =
                "a Named limit cannot peek, and cannot be one of several limits in a call: only the server knows its policy";
            return Err(Error::InvalidArgument(text.to_string()));
        }
        let Some(first) = parts.first() else { return invalid("a call needs a rule") };
        if parts.len() > 1_024 {
            return invalid("a call has at most 1024 rules");
        }
        if parts.iter().map(|part| &part.key).collect::<HashSet<_>>().len() < parts.len() {
            return invalid("two rules have the same key");
        }
        if limits.connection.has_slots() && parts.iter().any(|part| slot(&part.key) != slot(&first.key)) {
            return invalid("in a cluster all keys of a call need the same hash tag");
        }
        parts.iter().map(|part| part.amount).chain(estimate.map(Amount::Cost)).try_for_each(Amount::check)?;
        id.as_deref().map(check_id).transpose()?;
        match how {
            How::Invalid(error) => Err(error),
            how => Ok(Checked { limits, parts, how, id }),
        }
    }
}

/// A call that is valid.
pub(crate) struct Checked {
    pub(crate) limits: Limits,
    pub(crate) parts: Vec<Part>,
    pub(crate) how: How,
    pub(crate) id: Option<Vec<u8>>,
}

/// What was decided, and what is known of the call.
pub(crate) struct Asked {
    pub(crate) decision: AllDecision,
    /// The call was sent once and has not waited.
    pub(crate) at_once: bool,
    /// How often it was sent.
    pub(crate) sent: u32,
    /// The server may have charged it.
    pub(crate) may_be_charged: bool,
}

impl Asked {
    /// The decision of the only part, or of the first one.
    pub(crate) fn first(mut self) -> Decision {
        self.decision.decisions.swap_remove(0)
    }
}

impl Checked {
    /// The decision of the server.
    pub(crate) async fn ask(&self) -> Result<Asked, Error> {
        let words: Vec<Words> = self.parts.iter().map(|part| part.limit.words()).collect();
        let reply = self.limits.send(self.request(&words)?).await?;
        let decision = AllDecision { id: self.id.clone(), ..self.read(&reply.value, &words)? };
        Ok(Asked { decision, at_once: reply.sent == 1 && !reply.waited, sent: reply.sent, may_be_charged: true })
    }

    /// The decision, also without the server.
    pub(crate) async fn decide(&self) -> Result<Asked, Error> {
        self.ask().await.or_else(|error| self.without_server(error))
    }

    /// Whether the server may have executed the call, which has failed.
    pub(crate) fn may_be_charged(&self, error: &Error) -> bool {
        // A call that waits was sent before the limits were closed.
        error.may_be_charged() || matches!((&self.how, error), (How::Block(_), Error::Closed))
    }

    /// Decides without the server, if this error says that it gave no decision, and the limits are not closed.
    pub(crate) fn without_server(&self, error: Error) -> Result<Asked, Error> {
        let may_be_charged = error.may_be_charged();
        let decide = |local: Option<&mut Local>| AllDecision::of_parts(self.locally(local), self.id.clone());
        let decision = self.limits.without_server(error, decide, |decision| decision.granted)?;
        Ok(Asked { decision, at_once: true, sent: 1, may_be_charged })
    }

    fn request(&self, words: &[Words]) -> Result<Request<'_>, Error> {
        let keys: Vec<&[u8]> = self.parts.iter().map(|part| &*part.key).collect();
        let mut request = match (&*self.parts, &self.how) {
            ([Part { limit, key, .. }], How::Peek) => {
                let words = (limit.policy().algorithm(), key, &*words[0].words);
                Request::new(redis::cmd("RL.PEEK").arg(words).take(), keys)
            }
            ([Part { limit, key, .. }], _) => limit.request(key, &words[0])?,
            (parts, _) => Request::new(redis::cmd("RL.ALL").arg(parts.len()).arg(&keys).take(), keys),
        };
        for (part, words) in self.parts.iter().zip(words) {
            if self.parts.len() > 1 {
                request = request.arg((part.limit.policy().algorithm(), &*words.words));
            }
            if let How::Until(time) = self.how {
                // The server takes six decimals.
                request = request.arg(("UNTIL", format!("{}.{:06}", time.as_secs(), time.subsec_micros())));
            }
            request = request.arg(part.amount.words());
        }
        request = request.arg(self.id.as_ref().map(|id| ("ID", id)));
        request.repeat = self.id.is_some();
        match self.how {
            How::Block(wait) => request.wait = Some(wait.into()),
            How::Reserve(within) => request = request.arg(("RESERVE", within.to_string())),
            _ => {}
        }
        Ok(request)
    }

    /// Reads the reply to `RL.ALL`, or to the command of a single part.
    fn read(&self, reply: &Value, words: &[Words]) -> Result<AllDecision, Error> {
        let read = |rows: &[Value]| -> Result<Vec<Decision>, Error> {
            let parts = rows.iter().zip(&self.parts).zip(words);
            parts.map(|((row, part), words)| Ok(Decision { window: words.window, ..part.limit.decision(row)? })).collect()
        };
        if self.parts.len() == 1 {
            return Ok(AllDecision::of_parts(read(std::slice::from_ref(reply))?, None));
        }
        let unexpected = || Error::UnexpectedReply(format!("{reply:?}"));
        let Value::Array(fields) = reply else { return Err(unexpected()) };
        match fields.as_slice() {
            [Value::Int(granted), Value::Int(wait_ms), Value::Array(rows)] if rows.len() == self.parts.len() => {
                let wait_ms = u64::try_from(*wait_ms).ok();
                Ok(AllDecision { granted: *granted > 0, id: None, wait_ms, decisions: read(rows)? })
            }
            _ => Err(unexpected()),
        }
    }

    /// The decisions without the server: each part by itself, and all of them take their units or none.
    fn locally(&self, mut local: Option<&mut Local>) -> Vec<Decision> {
        let mut decide = |takes: bool| {
            let decision = |Part { limit, key, amount, .. }: &Part| {
                let open = Decision::open(amount.units(), limit.policy().clone(), limit.name().clone());
                match &mut local {
                    Some(local) if !limit.policy().is_lease() => local.decide(key, *amount, takes, open),
                    _ => open,
                }
            };
            self.parts.iter().map(decision).collect::<Vec<_>>()
        };
        let seen = decide(false);
        match !matches!(self.how, How::Peek) && seen.iter().all(Decision::allowed) {
            true => decide(true),
            false => seen,
        }
    }
}
