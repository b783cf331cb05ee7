//! The keys of waiting calls, as the server holds them.

use super::waiter::{Claim, Waiter};
use crate::limiter::{Bytes, Change, Decision, Instant, Overflow, Policy, RecordError, Request, Wait};

/// Why a key refuses a call, no matter how many units are free.
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

    /// Calls `work` with the value of the key, and returns its result. If `work` returns a refusal, the result is the error for
    /// this refusal.
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

/// When the units of a request are due. `decision` is the decision on the request at the moment `at`.
pub(super) fn due(decision: &Decision, at: Instant) -> Instant {
    match decision.wait {
        Wait::For(wait) => at.saturating_add(wait),
        Wait::Never => Instant::MAX,
    }
}

/// The decision of [`View::peek`](crate::limiter::View::peek) on a key.
pub(super) fn peek<K: KeyState>(key: &K, policy: &Policy, now: Instant, request: Request<'_>) -> Result<Decision, K::Error> {
    key.with_value(policy, |stored| {
        let carried = policy.carried(stored, now);
        let decision = policy.view(carried.value(), now)?.peek(request)?;
        Ok(policy.with_kept_times(&carried, stored, request, now, decision))
    })
}

/// Finds the first moment at which `request`, which is denied `now`, would be granted if nothing else changes the key. The result
/// is at most a millisecond late. `latest` is the moment at which the wait in the denial ends.
///
/// If the record was written under the same policy, the moment is `latest`. If the policy has changed since, the grant may come
/// sooner: see [`Policy::first_grant`].
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
    let carried = policy.carried(stored, now);
    let is_exact = policy.view(carried.value(), now)?.matches_policy() && !carried.is_of_other_algorithm();
    Ok(if is_exact { latest } else { policy.first_grant(stored, request, now, latest) })
}

/// What a key says when it is asked whether it grants a waiting call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The call's id holds units of the key already: the call repeats a charge, or renews a lease.
    Held,
    /// The units will be due at `due`. `known` is whether this follows from the state of the key that the line has noted.
    Wait { due: Instant, known: bool },
    /// The units are free. `Some`: the moment at which they were due. The key has not changed since this moment, so the client can
    /// be charged as of any moment from then until now. `None`: this moment is not known.
    Free(Option<Instant>),
}

/// Asks a key whether it would grant a call now.
pub(super) fn ask_now<C, K: KeyState>(waiter: &Waiter<C>, claim: &Claim, key: &K, now: Instant) -> Result<Ask, K::Error> {
    let policy = &claim.policy;
    key.with_value(policy, |stored| {
        let request = waiter.request(claim);
        let carried = policy.carried(stored, now);
        let view = policy.view(carried.value(), now)?;
        if let Some(held) = request.id.and_then(|id| view.held(id)) {
            let renews = !claim.names_amount || policy.renews_with(claim.amount, held);
            return if renews { Ok(Ask::Held) } else { Err(Refusal::OtherCost { held }) };
        }
        let (decision, _) = view.decide(request)?;
        if decision.granted == 0 {
            let due = first_grant_on(stored, policy, request, now, due(&decision, now))?;
            return Ok(Ask::Wait { due, known: false });
        }
        Ok(Ask::Free(None))
    })
}
