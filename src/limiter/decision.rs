//! A request to a limiter, and the limiter's decision.

use super::{Id, Span, MAX_PERIOD, MAX_UNITS, MIN_PERIOD};

/// A limit per period: the first two arguments of every algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    limit: u64,
    period: Span,
}

impl Quota {
    /// `limit` units (0 ..= [`MAX_UNITS`]) for each `period` ([`MIN_PERIOD`] ..= [`MAX_PERIOD`]); `None` outside of these ranges.
    pub fn new(limit: u64, period: Span) -> Option<Self> {
        (limit <= MAX_UNITS && (MIN_PERIOD..=MAX_PERIOD).contains(&period)).then_some(Self { limit, period })
    }

    /// Whole units per period.
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// The period.
    pub const fn period(self) -> Span {
        self.period
    }
}

/// How many units a call takes or gives back. The count is 1 ..= [`MAX_UNITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Take all of them or none.
    Cost(u64),
    /// Take as many of them as are free.
    UpTo(u64),
    /// Take all of them, even if they are not free: what exceeds the capacity is a debt.
    Force(u64),
    /// Give back this many of the used units, or all used units if they are fewer.
    Refund(u64),
}

impl Amount {
    /// Whether the call takes units only if they are free. While other clients stand in the line of the key, such a call is denied
    /// or waits.
    pub const fn takes_free_units(self) -> bool {
        matches!(self, Self::Cost(_) | Self::UpTo(_))
    }
}

/// A request to a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'r> {
    /// How many units to take or give back.
    pub amount: Amount,
    /// How far in the future the units of [`Amount::Cost`] may be booked if they are not free now; zero: no booking. The
    /// other amounts are never booked.
    pub ahead: Span,
    /// The name under which the key remembers the units of [`Amount::Cost`] and [`Amount::UpTo`]; a lease needs one.
    pub id: Option<Id<'r>>,
}

impl<'r> Request<'r> {
    /// A request without booking and without id.
    pub const fn now(amount: Amount) -> Self {
        Self { amount, ahead: Span::ZERO, id: None }
    }

    /// The request with an id.
    #[must_use]
    pub const fn with_id(self, id: Id<'r>) -> Self {
        Self { id: Some(id), ..self }
    }
}

/// How long until a call would be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// After this span, rounded up to a microsecond; zero for a call that is granted, unless it is booked.
    For(Span),
    /// Never: the call asks for more than the capacity.
    Never,
}

impl Wait {
    /// No wait.
    pub const NONE: Self = Self::For(Span::ZERO);
}

/// A limiter's decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Units granted, or given back. 0 is a denial, except for [`Amount::Refund`].
    pub granted: u64,
    /// The capacity in force, in units.
    pub limit: u64,
    /// Whole units that are free now, 0 ..= limit, rounded down.
    pub remaining: u64,
    /// Granted: how long the caller must wait before it acts; zero unless the units are booked. Denied: how long until the
    /// same call would be granted if no other call came in between.
    pub wait: Wait,
    /// How long until no unit is used any more, rounded up to a microsecond.
    pub reset: Span,
    /// Whether the key remembers a charge with the id of the request. If so, the call takes nothing: `granted` shows the units of
    /// that charge, and `wait` shows how long its caller must still wait before it acts.
    pub retried: bool,
}

impl Decision {
    /// The decision on every request under a limit of 0.
    pub(super) const CLOSED: Self =
        Self { granted: 0, limit: 0, remaining: 0, wait: Wait::Never, reset: Span::ZERO, retried: false };
}

/// The state of a limiter, whatever the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whole units that are free now, rounded down.
    pub remaining: u64,
    /// How long until no unit is used any more, rounded up to a microsecond.
    pub reset: Span,
}

/// The next state does not fit a record, because the debt or the booking is too large. The key is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;
