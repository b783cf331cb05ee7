//! The state of a key under a policy at a moment: the decision on a request, and the state of the key afterwards.

use super::lease;
use super::meter::{self, LastingDenial};
use super::pause::Stored;
use super::slide;
use super::{
    Amount, Bytes, Change, Charge, Decision, Id, Instant, Overflow, Policy, RandomSeed, RecordError, Request, Snapshot,
    Span, Wait,
};

/// A key's state under a policy at a moment, as [`Policy::view`](super::Policy::view) returns it.
pub enum View<'a> {
    /// The limit is 0: every call is denied, and nothing is written.
    Closed,
    /// See [`Policy::Meter`](super::Policy::Meter).
    Meter(meter::View<'a>),
    /// See [`Policy::Slide`](super::Policy::Slide).
    Slide(slide::View<'a>),
    /// See [`Policy::Lease`](super::Policy::Lease).
    Lease(lease::View<'a>),
    /// The state of a key with a pause.
    Paused(Paused<'a>),
}

/// The state that a decision leads to. [`View::store`] encodes it.
#[derive(Clone, Debug)]
pub enum Next<'r> {
    /// The key stays as it is.
    Keep,
    /// The key is deleted, because its state affects no decision any more.
    Remove,
    /// A level of used units.
    Meter(meter::Next),
    /// A log with added or removed units.
    Slide(slide::Next),
    /// As [`Self::Meter`], with the ids of charges. The next states with ids are boxed: this makes the type smaller, and so the
    /// decisions without ids faster.
    MeterWithIds(Box<(meter::Next, Charge<'r>)>),
    /// As [`Self::Slide`], with the ids of charges.
    SlideWithIds(Box<(slide::Next, Charge<'r>)>),
    /// A lease that is taken or renewed.
    Lease(Box<lease::Next<'r>>),
}

impl Policy {
    /// Decodes the value of a key (`None`: the key does not exist), and computes the key's state under this policy at `now`.
    ///
    /// # Errors
    /// If the value is not a record of this algorithm.
    #[inline(always)]
    pub fn view<'a>(&'a self, stored: Option<&'a [u8]>, now: Instant) -> Result<View<'a>, RecordError> {
        match stored {
            Some(bytes) if Stored::is_wrapped(bytes) => self.view_paused(bytes, now),
            _ => self.view_without_pause(stored, now),
        }
    }

    /// As [`Self::view`], for a value that has a pause.
    #[cold]
    #[inline(never)]
    fn view_paused<'a>(&'a self, stored: &'a [u8], now: Instant) -> Result<View<'a>, RecordError> {
        let stored = Stored::split(stored)?;
        self.view_without_pause(stored.inner, now)?;
        Ok(View::Paused(Paused { policy: self, stored, now }))
    }

    /// As [`Self::view`], for a value that has no pause.
    #[inline(always)]
    fn view_without_pause<'a>(&'a self, stored: Option<&'a [u8]>, now: Instant) -> Result<View<'a>, RecordError> {
        match self {
            Self::Meter(meter) => meter::View::load(meter, stored, now),
            Self::Slide(slide) => slide::View::load(slide, stored, now),
            Self::Lease(lease) => {
                let view = lease::View::load(lease, stored, now)?;
                Ok(if lease.quota.limit() == 0 { View::Closed } else { View::Lease(view) })
            }
        }
    }
}

impl View<'_> {
    /// Decides a request. Returns the decision, and the state that the key has afterwards.
    ///
    /// # Errors
    /// If the next state would not fit a record.
    #[inline(always)]
    pub fn decide<'r>(&self, request: Request<'r>) -> Result<(Decision, Next<'r>), Overflow> {
        match self {
            Self::Closed => Ok((Decision::CLOSED, Next::Keep)),
            Self::Meter(view) if request.id.is_some() || view.has_ids() => view.decide_with_ids(request),
            Self::Meter(view) => view.decide(request),
            Self::Slide(view) if request.id.is_some() || view.has_ids() => view.decide_with_ids(request),
            Self::Slide(view) => view.decide(request),
            Self::Lease(view) => Ok(view.decide(request)),
            Self::Paused(view) => view.decide(request),
        }
    }

    /// The units that an id holds: a charge that the key remembers, or a lease; `None` if the id holds nothing.
    pub fn held(&self, id: Id<'_>) -> Option<u64> {
        match self {
            Self::Closed => None,
            Self::Meter(view) => view.held(id),
            Self::Slide(view) => view.held(id),
            Self::Lease(view) => view.held(id),
            Self::Paused(view) => view.held(id),
        }
    }

    /// Returns the decision of [`Self::decide`], but with `remaining` and `reset` of the present state, because no units are taken.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn peek(&self, request: Request<'_>) -> Result<Decision, Overflow> {
        if let Self::Paused(view) = self {
            return view.peek(request);
        }
        let (decision, _) = self.decide(request)?;
        let Snapshot { remaining, reset } = match self {
            _ if decision.granted == 0 => return Ok(decision),
            Self::Meter(view) => view.snapshot(),
            Self::Slide(view) => view.snapshot(),
            Self::Lease(view) => view.snapshot(),
            Self::Closed | Self::Paused(_) => return Ok(decision),
        };
        Ok(Decision { remaining, reset, ..decision })
    }

    /// The lasting form of `decision`, which [`Self::decide`] returned for `COST 1`; `None` if `decision` is a grant, or a denial
    /// that is not sure to last. `record` is the value of the key.
    #[inline(always)]
    pub fn lasting_denial(&self, record: &[u8], decision: &Decision) -> Option<LastingDenial> {
        match self {
            Self::Meter(view) => view.lasting_denial(record, decision),
            Self::Closed | Self::Slide(_) | Self::Lease(_) | Self::Paused(_) => None,
        }
    }

    /// Encodes the next state that [`Self::decide`] returned: writes the bytes to `bytes`, and returns where they belong. Only a
    /// state with a new id needs a random number.
    #[inline(always)]
    pub fn store(&self, next: &Next<'_>, random: RandomSeed, bytes: &mut Bytes) -> Change {
        match (self, next) {
            (Self::Paused(view), next) => view.store(next, random, bytes),
            (_, Next::Remove) => Change::Remove,
            (Self::Meter(view), Next::Meter(next)) => view.store(next, bytes),
            (Self::Slide(view), Next::Slide(next)) => view.store(next, bytes),
            (Self::Meter(view), Next::MeterWithIds(next)) => view.store_with_ids_lengthened(&next.0, &next.1, random, bytes),
            (Self::Slide(view), Next::SlideWithIds(next)) => view.store_with_ids(&next.0, &next.1, random, bytes),
            (Self::Lease(view), Next::Lease(next)) => view.store(next, random, bytes),
            (_, Next::Keep) => Change::Keep,
            _ => {
                debug_assert!(false, "a view stores only what it has decided itself");
                Change::Keep
            }
        }
    }

    /// Whether the record was written under the view's policy, as far as the record shows it. If true, the waits in
    /// decisions are exact; otherwise they are upper bounds.
    pub fn matches_policy(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Meter(view) => view.matches_policy,
            // The log holds the times of the grants, so waits are exact under any policy.
            Self::Slide(_) | Self::Lease(_) => true,
            Self::Paused(view) => view.matches_policy(),
        }
    }
}

/// The state of a key whose value has a pause, perhaps one that is over.
///
/// It holds no view of the state without the pause: such a view would need a box, which each call would have to free at its end,
/// even a call on a key without a pause. So each function computes that view.
pub struct Paused<'a> {
    pub(super) policy: &'a Policy,
    pub(super) stored: Stored<'a>,
    pub(super) now: Instant,
}

impl Paused<'_> {
    /// The state without the pause.
    fn inner(&self) -> View<'_> {
        let view = self.policy.view_without_pause(self.stored.inner, self.now);
        debug_assert!(view.is_ok(), "`Policy::view` has read the value");
        view.unwrap_or(View::Closed)
    }

    /// See [`View::held`].
    fn held(&self, id: Id<'_>) -> Option<u64> {
        self.inner().held(id)
    }

    /// See [`View::matches_policy`].
    fn matches_policy(&self) -> bool {
        self.inner().matches_policy()
    }

    /// The decision on a request that the pause does not refuse: `remaining` is 0 while the pause lasts.
    fn shown(&self, decision: Decision) -> Decision {
        let remaining = if self.stored.rest(self.now) > Span::ZERO { 0 } else { decision.remaining };
        Decision { remaining, ..decision }
    }

    /// The denial of a request that needs free units; `None` if the pause does not refuse the request. `inner` is the state without
    /// the pause.
    fn denial(&self, inner: &View<'_>, request: Request<'_>) -> Result<Option<Decision>, Overflow> {
        let rest = self.stored.rest(self.now);
        let is_retry = || request.id.is_some_and(|id| inner.held(id).is_some());
        if rest == Span::ZERO || matches!(request.amount, Amount::Force(_) | Amount::Refund(_)) || is_retry() {
            return Ok(None);
        }
        let decision = inner.peek(request)?;
        let wait = match decision.wait {
            Wait::Never => Wait::Never,
            Wait::For(_) if decision.granted > 0 => Wait::For(rest),
            Wait::For(need) => Wait::For(need.max(rest)),
        };
        Ok(Some(Decision { granted: 0, remaining: 0, wait, ..decision }))
    }

    /// See [`View::decide`].
    #[inline(never)]
    fn decide<'r>(&self, request: Request<'r>) -> Result<(Decision, Next<'r>), Overflow> {
        let inner = self.inner();
        if let Some(denial) = self.denial(&inner, request)? {
            return Ok((denial, Next::Keep));
        }
        let (decision, next) = inner.decide(request)?;
        Ok((self.shown(decision), next))
    }

    /// See [`View::peek`].
    #[inline(never)]
    fn peek(&self, request: Request<'_>) -> Result<Decision, Overflow> {
        let inner = self.inner();
        match self.denial(&inner, request)? {
            Some(denial) => Ok(denial),
            None => Ok(self.shown(inner.peek(request)?)),
        }
    }

    /// See [`View::store`].
    #[inline(never)]
    fn store(&self, next: &Next<'_>, random: RandomSeed, bytes: &mut Bytes) -> Change {
        let change = self.inner().store(next, random, bytes);
        self.stored.wrap(change, self.now, bytes)
    }
}
