//! A command's key, and the limiter that it should hold. Decides requests for this key, with errors that name the key.

use std::iter;
use std::ops::RangeInclusive;

use super::error::{Error, Holds};
use crate::limiter::{
    pause, settle, Bytes, Carried, Change, Decision, Id, Instant, Kind, Overflow, Policy, RecordError, Request,
};
use crate::limiter::{SettleError, Settlement, Span, View, MIN_LEN};
use crate::queue::{KeyState, Refusal};
use crate::server::{random_seed, ReadKey, Value, WriteKey};

/// A key of a command: its position, and the algorithm of the limiter that it should hold.
#[derive(Clone, Copy)]
pub struct Target {
    /// The key's position, from 1 on, if the command takes several keys.
    position: Option<usize>,
    /// The algorithm; `None`: any.
    kind: Option<Kind>,
}

impl Target {
    /// The only key of a command, which should hold a limiter of this kind.
    pub const fn only(kind: Kind) -> Self {
        Self { position: None, kind: Some(kind) }
    }

    /// The only key of a command, which should hold any limiter.
    pub const ANY: Self = Self { position: None, kind: None };

    /// The key at a position, from 1 on, which should hold a limiter of this kind.
    pub const fn at(position: usize, kind: Kind) -> Self {
        Self { position: Some(position), kind: Some(kind) }
    }

    fn wrong_type(self, holds: Holds) -> Error {
        Error::WrongType { position: self.position, holds, wanted: self.kind }
    }

    /// The error for a string that is not a record of the wanted algorithm.
    pub fn record_error(self, error: RecordError) -> Error {
        self.wrong_type(Holds::String(error))
    }

    /// The value of the key; `None` if the key does not exist.
    #[inline]
    pub fn stored<'k>(self, key: &'k ReadKey<'_>) -> Result<Option<&'k [u8]>, Box<Error>> {
        match key.value(self.kind.map_or(MIN_LEN, |kind| kind.spec().min_len)) {
            Value::Missing => Ok(None),
            Value::String(bytes) => Ok(Some(bytes)),
            Value::TooShort => Err(Box::new(self.record_error(RecordError::Unknown))),
            Value::OtherType(name) => Err(Box::new(self.wrong_type(Holds::Type(name)))),
        }
    }

    /// The limiter that [`Policy::view`] has loaded from the value of the key. It is returned by reference, because to copy it takes as
    /// long as a part of the decision.
    ///
    /// # Errors
    /// If the key holds something else, or the policy's window would end too far ahead, which only the clock shows.
    #[inline(always)]
    pub fn loaded<'v, 'k>(
        self,
        view: &'v Result<View<'k>, RecordError>,
        policy: &Policy,
        now: Instant,
    ) -> Result<&'v View<'k>, Box<Error>> {
        if self.kind.is_some_and(|kind| kind.spec().takes_moment) && policy.is_too_far_ahead(now) {
            return Err(Box::new(Error::TooFarAhead));
        }
        view.as_ref().map_err(|&error| Box::new(self.record_error(error)))
    }

    /// Calls `work` with the limiter that the key holds, and with the value of the key.
    ///
    /// # Errors
    /// As [`Self::loaded`].
    #[inline(always)]
    pub fn view<R>(
        self,
        key: &ReadKey<'_>,
        policy: &Policy,
        now: Instant,
        work: impl FnOnce(&View<'_>, Option<&[u8]>) -> Result<R, Box<Error>>,
    ) -> Result<R, Box<Error>> {
        let stored = self.stored(key)?;
        let view = policy.view(stored, now);
        work(self.loaded(&view, policy, now)?, stored)
    }

    /// The decision of [`View::peek`]. The key may also hold what the policy [carries over](Policy::carried).
    pub fn peek(
        self,
        key: &ReadKey<'_>,
        policy: &Policy,
        request: Request<'_>,
        now: Instant,
    ) -> Result<Decision, Box<Error>> {
        let stored = self.stored(key)?;
        let carried = policy.carried(stored, now);
        let view = policy.view(carried.value(), now);
        let decision = self.loaded(&view, policy, now)?.peek(request)?;
        Ok(policy.with_kept_times(&carried, stored, request, now, decision))
    }

    /// Settles what an id holds to `units`. `None` if the key does not exist, or does not remember the id: it is not changed then.
    pub fn settle(
        self,
        key: &mut WriteKey<'_>,
        id: Id<'_>,
        units: u64,
        now: Instant,
    ) -> Result<Option<Settlement>, Box<Error>> {
        let Some(stored) = self.stored(key)? else { return Ok(None) };
        let mut bytes = Bytes::default();
        let settlement = settle(stored, now, id, units, &mut bytes).map_err(|error| match error {
            SettleError::Record(error) => self.record_error(error),
            SettleError::Overflow => Error::Overflow,
            SettleError::Lease => Error::SettledLease,
        })?;
        let Some(settlement) = settlement else { return Ok(None) };
        commit(key, &settlement.change, &bytes)?;
        Ok(Some(settlement))
    }

    /// Sets, lengthens or ends the pause of the key: see [`limiter::pause`](pause()). Returns how long the pause lasts that is then in
    /// force, and whether the key has changed.
    pub fn pause(self, key: &mut WriteKey<'_>, length: Span, now: Instant) -> Result<(Span, bool), Box<Error>> {
        let mut bytes = Bytes::default();
        let paused = pause(self.stored(key)?, key.expires(), now, length, &mut bytes);
        let (rest, change) = paused.map_err(|error| self.record_error(error))?;
        commit(key, &change, &bytes)?;
        Ok((rest, change != Change::Keep))
    }
}

/// A decision on a key, and the change that belongs to it, which [`Self::commit`] makes.
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// Whether clients stand in the line of the key, so that the call is refused, whatever the decision is.
    pub is_behind_line: bool,
    change: Change,
    bytes: Bytes,
}

impl Decided {
    /// A decision that changes nothing.
    #[inline(always)]
    pub fn unchanged(decision: Decision) -> Self {
        Self { decision, is_behind_line: false, change: Change::Keep, bytes: Bytes::default() }
    }

    /// The decision on a request.
    #[inline(always)]
    pub fn of(view: &View<'_>, request: Request<'_>) -> Result<Self, Overflow> {
        let (decision, next) = view.decide(request)?;
        let mut bytes = Bytes::default();
        let change = view.store(&next, random_seed, &mut bytes);
        Ok(Self { decision, is_behind_line: false, change, bytes })
    }

    /// As [`Self::of`], on a key whose value is `stored`, which `carried` stands for. Its view is `view`.
    pub fn carried(
        self,
        policy: &Policy,
        request: Request<'_>,
        stored: Option<&[u8]>,
        carried: &Carried<'_>,
        now: Instant,
    ) -> Self {
        let Self { decision, is_behind_line, change, mut bytes } = self;
        let decision = match change {
            Change::Keep => policy.with_kept_times(carried, stored, request, now, decision),
            _ => decision,
        };
        let change = carried.change(change, &mut bytes);
        Self { decision, is_behind_line, change, bytes }
    }

    /// The present state of a key, for a call that the clients in its line come before.
    pub fn behind_line(view: &View<'_>, request: Request<'_>) -> Result<Self, Overflow> {
        Ok(Self { is_behind_line: true, ..Self::unchanged(view.peek(request)?) })
    }

    /// Whether the call takes units that it does not get now.
    pub fn is_refused(&self) -> bool {
        self.is_behind_line || self.decision.granted == 0
    }

    /// Whether [`Self::commit`] changes the key.
    pub fn changes(&self) -> bool {
        self.change != Change::Keep
    }

    /// How many bytes [`Self::commit`] writes.
    pub fn len(&self) -> usize {
        self.bytes.as_slice().len()
    }

    /// Changes the key on which this was decided.
    ///
    /// # Errors
    /// If the new value would be too long for the server. The key is not changed then.
    #[inline(always)]
    pub fn commit(&self, key: &mut WriteKey<'_>) -> Result<(), Overflow> {
        commit(key, &self.change, &self.bytes)
    }
}

/// Changes the key.
///
/// # Errors
/// If the new value would be too long for the server. The key is not changed then.
#[inline(always)]
pub fn commit(key: &mut WriteKey<'_>, change: &Change, bytes: &Bytes) -> Result<(), Overflow> {
    match *change {
        Change::Keep => {}
        Change::Write { offset: 0, expires, slack, .. } => {
            let value = bytes.as_slice();
            check_len(value.len())?;
            key.replace(value, deadlines(expires, slack));
        }
        // Most grants of a log append an entry, and change nothing before it.
        Change::Write { offset, head: 0, expires, slack } => {
            let tail = bytes.as_slice();
            check_len(offset + tail.len())?;
            key.patch(offset + tail.len(), iter::once((offset, tail)), deadlines(expires, slack));
        }
        Change::Write { offset, head, expires, slack } => {
            let (head, tail) = bytes.as_slice().split_at(head);
            check_len(offset + tail.len())?;
            let patches = [(0, head), (offset, tail)].into_iter().filter(|(_, patch)| !patch.is_empty());
            key.patch(offset + tail.len(), patches, deadlines(expires, slack));
        }
        Change::Patch { len, expires, slack } => {
            check_len(len)?;
            key.patch(len, bytes.patches(), deadlines(expires, slack));
        }
        Change::Remove => key.remove(),
    }
    Ok(())
}

const fn check_len(len: usize) -> Result<(), Overflow> {
    if len > WriteKey::MAX_LEN {
        return Err(Overflow);
    }
    Ok(())
}

/// The range that a key's deadline must be in, in milliseconds since the Unix epoch.
#[inline(always)]
fn deadlines(expires: Instant, slack: Span) -> RangeInclusive<i64> {
    let first = expires.as_ms_ceil();
    // GCRA and BUCKET have no slack.
    first..=if slack == Span::ZERO { first } else { expires.saturating_add(slack).as_ms_ceil() }
}

/// These errors show no position: see [`Error::at`].
impl KeyState for WriteKey<'_> {
    type Error = Error;

    const MAX_LEN: usize = WriteKey::MAX_LEN;

    fn stored(&self, policy: &Policy) -> Result<Option<&[u8]>, Error> {
        Ok(Target::only(policy.kind()).stored(self)?)
    }

    fn expires(&self) -> Option<Instant> {
        self.expires_ms().map(|ms| Instant::from_us(ms.saturating_mul(1_000)))
    }

    fn error(policy: &Policy, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Record(error) => Target::only(policy.kind()).record_error(error),
            Refusal::OtherCost { held } => Error::OtherCost { held },
            Refusal::Overflow => Error::Overflow,
        }
    }

    fn random_seed() -> u64 {
        random_seed()
    }

    fn commit(&mut self, change: &Change, bytes: &Bytes, now: Instant) -> Result<(), Error> {
        // A client may be charged as of a past moment, so the record may have expired by now. A deadline must not lie in the past.
        let change = match *change {
            Change::Write { offset, head, expires, slack } => {
                Change::Write { offset, head, expires: expires.max(now), slack }
            }
            Change::Patch { len, expires, slack } => Change::Patch { len, expires: expires.max(now), slack },
            change => change,
        };
        Ok(commit(self, &change, bytes)?)
    }
}
