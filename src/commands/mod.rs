//! The commands: parse, run, reply.

mod all;
pub(crate) mod docs;
mod error;
pub mod grammar;
mod help;
mod inspect;
mod limiter;
mod peek;
pub(crate) mod settings;
mod stats;
mod throttle;
mod top;
mod waiting;

pub(crate) use all::All;
pub(crate) use help::Help;
pub(crate) use inspect::Inspect;
pub(crate) use limiter::Limiter;
pub(crate) use peek::Peek;
pub(crate) use throttle::{Throttle, Tokens};
pub(crate) use top::Top;

use std::borrow::Borrow;
use std::ops::RangeInclusive;

use error::{Error, Holds};
use grammar::Words;

use crate::limiter::{
    Amount, Bytes, Change, Decision, Foreign, Instant, Kind, Outcome, Policy, Refusal, Request, Span, Wait, MIN_LEN,
};
use crate::server::{Call, ReadKey, Server, Value, WriteKey};

/// Begins anew, as the module is loaded.
pub(crate) fn start(server: &Server<'_>) {
    waiting::start(server);
    stats::start();
    top::start(server);
}

/// Gives back what the module holds, before it goes.
pub(crate) fn stop() {
    top::stop();
}

/// What `INFO rl` tells, by name.
pub(crate) fn facts() -> Vec<(String, u64)> {
    stats::facts(waiting::waiting_clients())
}

impl Call<'_> {
    /// The key that argument `index` names, with its database.
    fn key(&self, index: usize) -> (i32, &[u8]) {
        (self.db(), self.argument(index).unwrap_or_default())
    }
}

impl Words for Call<'_> {
    fn word(&self, index: usize) -> Option<&[u8]> {
        self.argument(index)
    }
}

/// What a key is opened for: its place among several, and the limiter that it should hold.
#[derive(Clone, Copy)]
struct Wanted {
    /// From 1 on; `None` where there is but one key.
    place: Option<usize>,
    /// `None`: any.
    kind: Option<Kind>,
}

impl Wanted {
    const fn one(kind: Kind) -> Self {
        Self { place: None, kind: Some(kind) }
    }

    fn wrong_type(self, holds: Holds) -> Error {
        Error::WrongType { key: self.place, holds, wanted: self.kind }
    }

    fn refused(self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Foreign(foreign) => self.wrong_type(Holds::String(foreign)),
            Refusal::Overflow => Error::Overflow,
        }
    }

    /// The record in `key`, if there is one.
    #[inline]
    fn stored<'k>(self, key: &'k ReadKey<'_>) -> Result<Option<&'k [u8]>, Box<Error>> {
        match key.value(self.kind.map_or(MIN_LEN, Kind::min_len)) {
            Value::Missing => Ok(None),
            Value::String(bytes) => Ok(Some(bytes)),
            Value::TooShort => Err(Box::new(self.wrong_type(Holds::String(Foreign::Unknown)))),
            Value::OtherType(name) => Err(Box::new(self.wrong_type(Holds::Type(name)))),
        }
    }

    /// Decides for a key that holds `stored`, with a change that is [`storable`].
    fn decide_for(self, stored: Option<&[u8]>, policy: &Policy, now: Instant, request: Request) -> Result<Outcome, Error> {
        let Outcome { decision, change } = policy.decide(stored, now, request).map_err(|refusal| self.refused(refusal))?;
        Ok(Outcome { decision, change: storable(change)? })
    }

    /// What [`charge`] would answer, without making the change. An error of the change itself is one here, too.
    fn look(self, key: &ReadKey<'_>, policy: &Policy, now: Instant, request: Request) -> Result<Decision, Error> {
        let stored = self.stored(key)?;
        let decision = policy.look(stored, now, request).map_err(|refusal| self.refused(refusal))?;
        // A change makes a value longer by less than this.
        if WriteKey::fits(stored.map_or(0, <[u8]>::len) + Bytes::SHORT) {
            Ok(decision)
        } else {
            Err(Error::Overflow)
        }
    }

    /// What [`charge`] would answer, with the limiter as it stands.
    fn peek(self, key: &ReadKey<'_>, policy: &Policy, now: Instant, request: Request) -> Result<Decision, Error> {
        policy.peek(self.stored(key)?, now, request).map_err(|refusal| self.refused(refusal))
    }
}

/// Whether a call takes units, and so has to queue up where others wait.
const fn takes(amount: Amount) -> bool {
    matches!(amount, Amount::Cost(_) | Amount::UpTo(_))
}

/// A change that the server can store: from here on, [`commit`] can't fail.
fn storable<B: Borrow<Bytes>>(change: Change<B>) -> Result<Change<B>, Error> {
    match &change {
        Change::Write { offset, head, bytes, .. } if !WriteKey::fits(offset + bytes.borrow().as_slice().len() - head) => {
            Err(Error::Overflow)
        }
        _ => Ok(change),
    }
}

/// Carries a decision out.
fn commit<B: Borrow<Bytes>>(key: &mut WriteKey<'_>, change: &Change<B>) {
    match change {
        Change::Keep => {}
        Change::Write { offset, head, bytes, expires, slack } => {
            key.write(*offset, bytes.borrow().as_slice().split_at(*head), deadlines(*expires, *slack))
        }
        Change::Remove => key.remove(),
    }
}

/// The deadlines that a key may have, in milliseconds since the Unix epoch.
fn deadlines(expires: Instant, slack: Span) -> RangeInclusive<i64> {
    expires.as_ms_ceil()..=expires.saturating_add(slack).as_ms_ceil()
}

/// Decides for what `key` holds and carries it out, if `goes` agrees: what [`Wanted::decide_for`] and [`commit`] do, for calls that
/// have to be fast. The bytes are not moved in between, which is a good part of all their time. Returns also whether anything
/// changed.
#[inline(always)]
fn charge(
    wanted: Wanted,
    key: &mut WriteKey<'_>,
    policy: &Policy,
    now: Instant,
    request: Request,
    goes: impl FnOnce(&Decision) -> bool,
) -> Result<Option<(Decision, bool)>, Box<Error>> {
    let mut bytes = Bytes::new();
    let decided = policy.decide_into(wanted.stored(key)?, now, request, &mut bytes);
    let (decision, change) = decided.map_err(|refusal| wanted.refused(refusal))?;
    if !goes(&decision) {
        return Ok(None);
    }
    let change = storable(change.map(|()| &bytes))?;
    commit(key, &change);
    Ok(Some((decision, !matches!(change, Change::Keep))))
}

/// What became of a call that asked a limiter of this `kind` for an `amount` is counted, and told to those who follow it. The
/// key is not open any more: whoever is told may do with it what they like.
///
/// `key` is asked only if it is needed.
#[inline(always)]
fn conclude<'k>(
    server: &Server<'_>,
    key: impl FnOnce() -> (i32, &'k [u8]),
    kind: Kind,
    amount: Amount,
    changed: bool,
    now: Instant,
) {
    // What takes units changes the key if any are granted. There may be nothing to give back, but nobody is denied it.
    let denied = !changed && !matches!(amount, Amount::Refund(_));
    stats::call(kind, denied);
    let tells = server.notifications_enabled();
    if denied || tells {
        let (db, name) = key();
        if denied {
            top::denied(db, name, now);
        }
        if tells && (denied || changed) {
            let event = if denied { "rl.denied".into() } else { format!("rl.{}", kind.name().to_lowercase()) };
            server.notify(db, name, &event);
        }
    }
}

/// The time of a call: one reading for all that it decides.
fn now(server: &Server<'_>) -> Instant {
    Instant::from_us(server.now_us())
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The decision as every command replies it.
fn row(decision: &Decision) -> [i64; 5] {
    [
        number(decision.granted),
        number(decision.limit),
        number(decision.remaining),
        wait_ms(decision.wait),
        number(decision.reset.as_ms_ceil()),
    ]
}

/// Milliseconds, rounded up; -1 for never.
fn wait_ms(wait: Wait) -> i64 {
    match wait {
        Wait::For(span) => i64::try_from(span.as_ms_ceil()).unwrap_or(i64::MAX),
        Wait::Never => -1,
    }
}

/// Replies what a command came to.
fn reply<T>(call: &Call<'_>, result: Result<T, Error>, success: impl FnOnce(T)) {
    match result {
        Ok(value) => success(value),
        Err(error) => call.reply_error(&error.to_string()),
    }
}
