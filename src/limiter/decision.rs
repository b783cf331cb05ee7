//! What a caller asks of a limiter, and what the limiter answers.

use super::{Span, MAX_PERIOD, MAX_UNITS, MIN_PERIOD};

/// A limit per period: the first two arguments of every algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    limit: u64,
    period: Span,
}

impl Quota {
    /// At most `limit` units (0 ..= [`MAX_UNITS`]) per `period` ([`MIN_PERIOD`] ..= [`MAX_PERIOD`]); `None` outside of these.
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
    /// Take as many as fit.
    UpTo(u64),
    /// Take all of them, whatever the state: the overshoot is a debt.
    Force(u64),
    /// Give back so many of those in use, or all if fewer are.
    Refund(u64),
}

impl Amount {
    /// Whether units are taken only if they are free. Such a call is denied, or queues, while other clients wait for the key.
    pub const fn takes_free_units(self) -> bool {
        matches!(self, Self::Cost(_) | Self::UpTo(_))
    }
}

/// What a call asks of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many units.
    pub amount: Amount,
    /// How far ahead [`Amount::Cost`] may be booked if the units are not free now; zero: no booking. The other amounts are
    /// never booked.
    pub ahead: Span,
}

impl Request {
    /// A request that is decided by what is free now.
    pub const fn now(amount: Amount) -> Self {
        Self { amount, ahead: Span::ZERO }
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

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Units granted, or given back; 0 is a denial.
    pub granted: u64,
    /// The capacity in force, in units.
    pub limit: u64,
    /// Whole units that could be taken right now, 0 ..= limit, rounded down.
    pub remaining: u64,
    /// Granted: how long to wait before acting; zero unless the units are booked. Denied: how long until this same call, alone,
    /// would be granted.
    pub wait: Wait,
    /// Until no unit is used any more, rounded up to a microsecond.
    pub reset: Span,
}

impl Decision {
    /// The answer to every call under a limit of 0.
    pub(super) const CLOSED: Self = Self { granted: 0, limit: 0, remaining: 0, wait: Wait::Never, reset: Span::ZERO };
}

/// How a limiter stands when nothing is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whole units that could be taken right now, rounded down.
    pub remaining: u64,
    /// Until no unit is used any more, rounded up to a microsecond.
    pub reset: Span,
}

/// The next state does not fit a record: a debt or a booking beyond all reason. Nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;
