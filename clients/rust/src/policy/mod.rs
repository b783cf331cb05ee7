//! Policies: values without a connection, checked when they are made.

mod text;
#[cfg_attr(not(feature = "zone"), path = "no_zone.rs")]
mod zone;

use std::fmt;
use std::time::Duration;

use crate::span::Rate;
use crate::{Error, IntoSpan, Span};

pub(crate) use text::Words;
use zone::Zone;

const MOST: u64 = 1_000_000_000_000;

/// Any policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// A fixed window.
    Fixed(Fixed),
    /// A sliding window.
    Slide(Slide),
    /// The generic cell rate algorithm.
    Gcra(Gcra),
    /// A token bucket.
    Bucket(Bucket),
    /// Units that are held until they are released.
    Lease(Lease),
}

/// What all policies have in common. [`Fixed`], [`Slide`], [`Gcra`], [`Bucket`], [`Lease`] and [`Policy`] implement it.
pub trait AnyPolicy: Copy + Send + Sync + Into<Policy> + 'static {}

/// A policy that takes units at a rate: all but [`Lease`]. [`Policy`] is one, too: calls with a `Policy::Lease` return
/// [`Error::InvalidLimit`].
pub trait RatePolicy: AnyPolicy {}

/// At most `limit` units in each window, which starts with its first grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fixed {
    rate: Rate,
    align: Option<Offset>,
    zone: Option<Zone>,
}

/// At most `limit` units in any window of one period, wherever it starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slide {
    rate: Rate,
    segments: Option<u64>,
}

/// The generic cell rate algorithm: units come back evenly, and up to `burst` of them may be taken at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gcra {
    rate: Rate,
    burst: Option<u64>,
}

/// A token bucket: `limit` tokens flow in per period, and the bucket holds `capacity` tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bucket {
    rate: Rate,
    capacity: Option<u64>,
    step: bool,
}

/// At most `limit` units are held at the same time. A lease ends when it is released, or `ttl` after its last renewal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    limit: u64,
    ttl: Span,
}

/// The offset of aligned windows: a duration with or without a sign.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Offset {
    negative: bool,
    span: Span,
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.span)
    }
}

fn rate(rate: &str, most: u64) -> Result<Rate, Error> {
    let rate: Rate = rate.parse()?;
    number("limit", rate.limit, 0, most)?;
    rate.period.as_period("period")?;
    Ok(rate)
}

fn number(what: &str, number: u64, least: u64, most: u64) -> Result<u64, Error> {
    match number {
        _ if (least..=most).contains(&number) => Ok(number),
        _ => Err(Error::InvalidLimit(format!("{what} must be a whole number from {least} to {most}, not {number}"))),
    }
}

impl Fixed {
    /// A window with this rate: `"1000/d"`.
    pub fn new(rate: &str) -> Result<Self, Error> {
        Ok(Self::of(self::rate(rate, MOST)?))
    }

    /// Windows start at each multiple of the period since 1970 (UTC), shifted by this offset: `"0s"`, `"8h"`, `"-8h"`.
    pub fn align(self, offset: &str) -> Result<Self, Error> {
        let text = offset.strip_prefix(['-', '+']).unwrap_or(offset);
        let (negative, span) = (offset.starts_with('-'), text.span()?);
        if self.zone.is_some() {
            return Err(Error::InvalidLimit("windows of a zone can't be aligned".to_string()));
        }
        if span >= self.rate.period {
            return Err(Error::InvalidLimit(format!("ALIGN must be less than the period, either way, not {span}")));
        }
        Ok(Self { align: Some(Offset { negative: negative && span.as_micros() > 0, span }), ..self })
    }

    fn of(rate: Rate) -> Self {
        Self { rate, align: None, zone: None }
    }

    /// Whether the policy itself says where its windows begin.
    pub(crate) fn has_windows(self) -> bool {
        self.align.is_some() || self.zone.is_some()
    }
}

impl Slide {
    /// A sliding window with this rate. The limit is at most 4294967295.
    pub fn new(rate: &str) -> Result<Self, Error> {
        Ok(Self { rate: self::rate(rate, u64::from(u32::MAX))?, segments: None })
    }

    /// The number of ticks in a period: fewer ticks make the log on the server smaller, and the times coarser.
    pub fn segments(self, segments: u64) -> Result<Self, Error> {
        Ok(Self { segments: Some(number("SEGMENTS", segments, 1, 65_536)?), ..self })
    }
}

impl Gcra {
    /// A policy with this rate. Without [`burst`](Self::burst), the limit may be taken at once.
    pub fn new(rate: &str) -> Result<Self, Error> {
        Ok(Self { rate: self::rate(rate, MOST)?, burst: None })
    }

    /// The units that may be taken at once.
    pub fn burst(self, burst: u64) -> Result<Self, Error> {
        Ok(Self { burst: Some(number("BURST", burst, 1, MOST)?), ..self })
    }
}

impl Bucket {
    /// A bucket with this rate. Without [`capacity`](Self::capacity), it holds the limit.
    pub fn new(rate: &str) -> Result<Self, Error> {
        Ok(Self { rate: self::rate(rate, MOST)?, capacity: None, step: false })
    }

    /// The tokens that the bucket holds.
    pub fn capacity(self, capacity: u64) -> Result<Self, Error> {
        Ok(Self { capacity: Some(number("CAPACITY", capacity, 1, MOST)?), ..self })
    }

    /// The tokens of a period arrive all at once at its end.
    #[must_use]
    pub fn step(self) -> Self {
        Self { step: true, ..self }
    }
}

impl Lease {
    /// At most `limit` units are held, each for `ttl` after its last renewal: `Lease::new(4, "30s")`, or with a `Duration`.
    pub fn new(limit: u64, ttl: impl IntoSpan) -> Result<Self, Error> {
        Ok(Self { limit: number("limit", limit, 0, 65_536)?, ttl: ttl.span()?.as_period("ttl")? })
    }

    pub(crate) fn ttl(self) -> Duration {
        self.ttl.into()
    }
}

impl AnyPolicy for Policy {}
impl RatePolicy for Policy {}

macro_rules! policies {
    ($($name:ident),*) => {$(
        impl AnyPolicy for $name {}

        impl From<$name> for Policy {
            fn from(policy: $name) -> Self {
                Self::$name(policy)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&Policy::from(*self), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

policies!(Fixed, Slide, Gcra, Bucket, Lease);

impl RatePolicy for Fixed {}
impl RatePolicy for Slide {}
impl RatePolicy for Gcra {}
impl RatePolicy for Bucket {}
