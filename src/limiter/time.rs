//! Instants and spans, in whole microseconds. Their arithmetic saturates: it never wraps around.

/// A moment: microseconds since the Unix epoch, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(i64);

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(u64);

impl Instant {
    /// The first moment that can be represented.
    pub const MIN: Self = Self(i64::MIN);
    /// The last moment that can be represented.
    pub const MAX: Self = Self(i64::MAX);

    /// `us` microseconds after the Unix epoch.
    pub const fn from_us(us: i64) -> Self {
        Self(us)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_us(self) -> i64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded down.
    pub const fn as_ms_floor(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// Milliseconds since the Unix epoch, rounded up, so that a deadline is never too early.
    pub const fn as_ms_ceil(self) -> i64 {
        // Division truncates, which rounds a negative number up.
        self.0 / 1_000 + (self.0 % 1_000 > 0) as i64
    }

    /// The time since `earlier`; zero if `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Span {
        // The difference of two `i64` always fits a `u64`, and wrapping subtraction yields it.
        if self.0 <= earlier.0 {
            Span::ZERO
        } else {
            Span(self.0.wrapping_sub(earlier.0) as u64)
        }
    }

    /// The moment `span` after this one; `None` past [`Self::MAX`].
    pub const fn checked_add(self, span: Span) -> Option<Self> {
        match self.0.checked_add_unsigned(span.0) {
            Some(us) => Some(Self(us)),
            None => None,
        }
    }

    /// The moment `span` after this one, or [`Self::MAX`].
    pub const fn saturating_add(self, span: Span) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// The moment `span` before this one, or the first one that can be represented.
    pub const fn saturating_sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub_unsigned(span.0))
    }

    /// `us` microseconds after the Unix epoch, or the nearest moment that can be represented.
    pub(crate) const fn saturating(us: i128) -> Self {
        if us > i64::MAX as i128 {
            Self(i64::MAX)
        } else if us < i64::MIN as i128 {
            Self(i64::MIN)
        } else {
            Self(us as i64)
        }
    }
}

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// `us` microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// Microseconds.
    pub const fn as_us(self) -> u64 {
        self.0
    }

    /// Milliseconds, rounded up, so that a client that waits for them has waited long enough.
    pub const fn as_ms_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// What is left of this span after `other`; zero if `other` is longer.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `us` microseconds, or the longest span.
    pub(crate) const fn saturating(us: u128) -> Self {
        Self(if us > u64::MAX as u128 { u64::MAX } else { us as u64 })
    }
}
