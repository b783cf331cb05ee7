//! A call that takes units of one key, or asks for them.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, Instant};

use redis::{Cmd, ToRedisArgs};

use crate::limit::{check_id, Amount};
use crate::send::{decision, Request};
use crate::{Decision, Error, IntoSpan, Key, Limit, Span};

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
        match Span::of_wait(wait) {
            Ok(wait) => wait.map_or(Self::Now, how),
            Err(error) => Self::Invalid(error),
        }
    }
}

/// A call of a [`Limit`]. Nothing is sent before it is awaited. `ID` says that it may have an id, and `ADMIT` that a denial is an
/// error and that the call may wait.
///
/// Without an id it is sent once. If its reply is lost, the result is [`Error::Unavailable`], and the server may have charged it. If
/// the future is dropped, the same is true.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Take<const ID: bool, const ADMIT: bool> {
    limit: Limit,
    key: Result<Vec<u8>, Error>,
    amount: Amount,
    how: How,
    id: Option<Vec<u8>>,
}

impl<const ID: bool, const ADMIT: bool> Take<ID, ADMIT> {
    pub(crate) fn new<K: Key + ?Sized>(limit: Limit, key: &K, how: How) -> Self {
        let key = limit.key(key);
        Self { limit, key, amount: Amount::Cost(1), how, id: None }
    }

    pub(crate) fn amount(self, amount: Amount) -> Self {
        Self { amount, ..self }
    }

    /// How many units to take; 1 by default.
    pub fn cost(self, cost: u64) -> Self {
        self.amount(Amount::Cost(cost))
    }

    /// The decision, also without the server.
    async fn send(self) -> Result<Decision, Error> {
        let limit = self.limit.clone();
        let repeat = limit.limits().repeat_denials;
        // A retry of an id may be granted although the key has no units, so it is always made.
        let plain = matches!((&self.how, self.amount), (How::Now, Amount::Cost(_))) && self.id.is_none();
        let (key, amount, peek) = (self.key.clone()?, self.amount, matches!(self.how, How::Peek));
        if let Some(denied) = (plain && !repeat.is_zero()).then(|| limit.repeats().find(&key, amount.units())).flatten() {
            limit.limits().check_open()?;
            return if ADMIT { denied.or_denied() } else { Ok(denied) };
        }
        let asked = Instant::now();
        let decided = match self.ask().await {
            Ok(decision) => decision,
            Err(error) => limit.without_server(error, &key, amount, peek)?,
        };
        if plain && !repeat.is_zero() {
            limit.repeats().remember(&key, amount.units(), asked, repeat, &decided);
        }
        if ADMIT {
            decided.or_denied()
        } else {
            Ok(decided)
        }
    }

    /// The decision of the server.
    pub(crate) async fn ask(self) -> Result<Decision, Error> {
        let Self { limit, key, amount, how, id } = self;
        let key = key?;
        amount.check()?;
        id.as_deref().map_or(Ok(()), check_id)?;
        let wait = match how {
            How::Invalid(error) => return Err(error),
            How::Block(wait) => Some(wait),
            _ => None,
        };
        let peek = matches!(how, How::Peek);
        if limit.policy().is_lease() && !peek {
            return Err(Error::InvalidLimit("a lease is held, with Limit::hold, and not taken".to_string()));
        }
        if matches!(amount, Amount::Force(_) | Amount::Refund(_)) {
            limit.repeats().forget(&key);
        }
        let (words, window) = limit.words();
        let command = |wait: Option<Span>| {
            let mut command = if peek { limit.peek_command(&key) } else { limit.command(&key) };
            command.arg(&*words);
            if let How::Until(time) = how {
                // The server takes six decimals.
                command.arg("UNTIL").arg(format!("{}.{:06}", time.as_secs(), time.subsec_micros()));
            }
            amount.push(&mut command);
            push(&mut command, "ID", id.as_deref());
            if let How::Reserve(within) = how {
                command.arg("RESERVE").arg(within.to_string());
            }
            push(&mut command, "BLOCK", wait.map(|wait| wait.to_string()));
            command
        };
        let request = Request { command: &command, key: &key, repeat: id.is_some(), wait, forced: false };
        let reply = limit.limits().send(request).await.map_err(|error| error.with_keys([&*key]))?;
        Ok(Decision { window, ..decision(&reply.value, limit.policy(), limit.name())? })
    }
}

/// Adds an option to a command, if there is one.
pub(crate) fn push(command: &mut Cmd, name: &str, option: Option<impl ToRedisArgs>) {
    if let Some(option) = option {
        command.arg(name).arg(option);
    }
}

impl Take<true, false> {
    /// Names the call: 1 to 64 bytes. Then it is repeated after a lost connection, and charged once; and can be settled or released
    /// by its id. If it fails, the program may make it again with the same id.
    pub fn id(self, id: impl AsRef<[u8]>) -> Self {
        Self { id: Some(id.as_ref().to_vec()), ..self }
    }
}

impl Take<false, true> {
    /// Waits in line for the units, at most this long: see [`Limit::wait`].
    pub fn wait(self, wait: impl IntoSpan) -> Self {
        Self { how: How::within(wait, How::Block), ..self }
    }
}

impl<const ID: bool, const ADMIT: bool> IntoFuture for Take<ID, ADMIT> {
    type Output = Result<Decision, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
