//! The keys of waiting calls, as the server holds them.

use crate::limiter::{Bytes, Change, Decision, Instant, Overflow, Policy, RecordError, Request, Span, Wait};

/// How exactly [`first_grant`] finds the moment of the grant.
const PRECISION: Span = Span::from_us(1_000);

/// Why a key refuses a call, whatever the units that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The value is not a record of the policy's algorithm.
    Record(RecordError),
    /// The call renews a lease of `held` units, but names another amount.
    OtherCost {
        /// The units of the lease.
        held: u64,
    },
    /// The new state would not fit a record, or the new value would be too long for the server.
    Overflow,
}

impl From<RecordError> for Refusal {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<Overflow> for Refusal {
    fn from(_: Overflow) -> Self {
        Self::Overflow
    }
}

/// A key, as far as its line needs it.
pub trait KeyState {
    /// The error that a client gets instead of a decision.
    type Error;

    /// The greatest length of a value, in bytes.
    const MAX_LEN: usize;

    /// The value of the key; an error if it can't be a record of the policy's algorithm.
    fn stored(&self, policy: &Policy) -> Result<Option<&[u8]>, Self::Error>;

    /// Calls `work` with the value of the key, and returns its result. A refusal of `work` becomes the error that says so.
    ///
    /// # Errors
    /// Those of [`Self::stored`] and of `work`.
    fn with_value<R>(
        &self,
        policy: &Policy,
        work: impl FnOnce(Option<&[u8]>) -> Result<R, Refusal>,
    ) -> Result<R, Self::Error> {
        work(self.stored(policy)?).map_err(|refusal| Self::error(policy, refusal))
    }

    /// When the key expires; `None` if it never does, or is missing.
    fn expires(&self) -> Option<Instant>;

    /// The error that says why the key refuses a call under this policy.
    fn error(policy: &Policy, refusal: Refusal) -> Self::Error;

    /// See [`RandomSeed`](crate::limiter::RandomSeed).
    fn random_seed() -> u64;

    /// Changes the key. `bytes` are the new bytes of [`Change::Write`] and [`Change::Patch`].
    ///
    /// # Errors
    /// If the value would be too long for the server. The key is not changed then.
    fn commit(&mut self, change: &Change, bytes: &Bytes, now: Instant) -> Result<(), Self::Error>;
}

/// When the units of a request are due. `decision` is the one on it, at the moment `at`.
pub(super) fn due(decision: &Decision, at: Instant) -> Instant {
    match decision.wait {
        Wait::For(wait) => at.saturating_add(wait),
        Wait::Never => Instant::MAX,
    }
}

/// The decision of [`View::peek`](crate::limiter::View::peek) on a key.
pub(super) fn peek<K: KeyState>(key: &K, policy: &Policy, now: Instant, request: Request<'_>) -> Result<Decision, K::Error> {
    key.with_value(policy, |stored| Ok(policy.view(stored, now)?.peek(request)?))
}

/// Finds the first moment at which `request`, which is denied `now`, would be granted if nothing else changes the key. The result
/// is at most a millisecond late. `latest` is the moment at which the wait in the denial ends.
///
/// If the record was written under the same policy, the moment is `latest`. If the policy has changed since, the grant may come
/// sooner: the level is then the lowest of several levels, one of which drains at the former rate. Each of them only falls with
/// time, so bisection finds the moment.
///
/// # Errors
/// If the key holds no record of the policy's algorithm.
pub fn first_grant<K: KeyState>(
    key: &K,
    policy: &Policy,
    request: Request<'_>,
    now: Instant,
    latest: Instant,
) -> Result<Instant, K::Error> {
    key.with_value(policy, |stored| first_grant_on(stored, policy, request, now, latest))
}

/// [`first_grant`] on a key with the value `stored`.
pub(super) fn first_grant_on(
    stored: Option<&[u8]>,
    policy: &Policy,
    request: Request<'_>,
    now: Instant,
    latest: Instant,
) -> Result<Instant, Refusal> {
    if policy.view(stored, now)?.matches_policy() {
        return Ok(latest);
    }
    let (mut too_early, mut granted) = (now, latest);
    while granted.since(too_early) > PRECISION {
        let middle = too_early.saturating_add(Span::from_us(granted.since(too_early).as_us() / 2));
        let (decision, _) = policy.view(stored, middle)?.decide(request)?;
        if decision.granted > 0 {
            granted = middle;
        } else {
            too_early = middle;
        }
    }
    Ok(granted)
}
