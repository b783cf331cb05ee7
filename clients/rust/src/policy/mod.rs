//! Policies: values without a connection, checked when they are made.

mod named;
#[cfg_attr(not(feature = "zone"), path = "no_zone.rs")]
mod zone;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::span::Rate;
use crate::{Error, IntoSpan, Span};

pub use named::Named;
use zone::Zone;

const MOST: u64 = 1_000_000_000_000;

/// What all policies have in common. [`Fixed`], [`Slide`], [`Gcra`], [`Bucket`], [`Lease`], [`Named`] and [`Policy`] implement it.
pub trait AnyPolicy: Clone + Send + Sync + Into<Policy> + 'static {}

/// A policy that takes units at a rate: all but [`Lease`]. [`Policy`] is one, too: calls with a `Policy::Lease` return
/// [`Error::InvalidLimit`].
pub trait RatePolicy: AnyPolicy {}

/// A policy whose units are held: [`Lease`], and [`Named`] with a default that is one.
pub trait LeasePolicy: AnyPolicy {}

/// What a policy consists of: all but the algorithm.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Spec {
    rate: Rate,
    /// The segments of a `Slide`, the burst of a `Gcra`, the capacity of a `Bucket`.
    number: Option<u64>,
    step: bool,
    /// The offset of aligned windows in microseconds.
    align: Option<i64>,
    zone: Option<Zone>,
}

impl Spec {
    /// A rate with a limit that is not higher than `most`.
    fn new(rate: &str, most: u64) -> Result<Self, Error> {
        let rate: Rate = rate.parse()?;
        number("limit", rate.limit, 0, most)?;
        rate.period.as_period("period")?;
        Ok(Self::of(rate))
    }

    fn of(rate: Rate) -> Self {
        Self { rate, number: None, step: false, align: None, zone: None }
    }

    fn numbered(self, what: &str, given: u64, most: u64) -> Result<Self, Error> {
        Ok(Self { number: Some(number(what, given, 1, most)?), ..self })
    }
}

/// An offset as the server takes it: a duration with or without a sign.
fn offset(us: i64) -> String {
    format!("{}{}", if us < 0 { "-" } else { "" }, Span::of_micros(us.unsigned_abs()))
}

fn number(what: &str, number: u64, least: u64, most: u64) -> Result<u64, Error> {
    match number {
        _ if (least..=most).contains(&number) => Ok(number),
        _ => Err(Error::InvalidLimit(format!("{what} must be a whole number from {least} to {most}, not {number}"))),
    }
}

macro_rules! policies {
    ($($(#[doc = $doc:literal])* $name:ident),*) => {
        /// Any policy.
        #[derive(Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Policy {
            $(#[doc = concat!("A [`", stringify!($name), "`].")] $name($name),)*
            /// A [`Named`].
            Named(Arc<Named>),
        }

        impl Policy {
            /// That of the default, if it is a [`Named`].
            fn spec(&self) -> &Spec {
                match self {
                    $(Self::$name($name(spec)))|* => spec,
                    Self::Named(named) => named.default.spec(),
                }
            }
        }

        impl AnyPolicy for Policy {}

        $(
            $(#[doc = $doc])*
            #[derive(Clone, Copy, PartialEq, Eq)]
            pub struct $name(Spec);

            impl AnyPolicy for $name {}

            impl From<$name> for Policy {
                fn from(policy: $name) -> Self {
                    Self::$name(policy)
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    fmt::Display::fmt(self, f)
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    fmt::Display::fmt(&Policy::from(*self), f)
                }
            }
        )*
    };
}

policies!(
    /// At most `limit` units in each window, which starts with its first grant.
    Fixed,
    /// At most `limit` units in any window of one period, wherever it starts.
    Slide,
    /// The generic cell rate algorithm: units come back evenly, and up to `burst` of them may be taken at once.
    Gcra,
    /// A token bucket: `limit` tokens flow in per period, and the bucket holds `capacity` tokens.
    Bucket,
    /// At most `limit` units are held at the same time. A lease ends when it is released, or `ttl` after its last renewal.
    Lease
);

impl RatePolicy for Policy {}
impl RatePolicy for Fixed {}
impl RatePolicy for Slide {}
impl RatePolicy for Gcra {}
impl RatePolicy for Bucket {}
impl LeasePolicy for Lease {}

impl Fixed {
    /// A window with this rate: `"1000/d"`.
    pub fn new(rate: &str) -> Result<Self, Error> {
        Spec::new(rate, MOST).map(Self)
    }

    /// Windows start at each multiple of the period since 1970 (UTC), shifted by this offset: `"0s"`, `"8h"`, `"-8h"`.
    pub fn align(self, offset: &str) -> Result<Self, Error> {
        let text = offset.strip_prefix(['-', '+']).unwrap_or(offset);
        let span = text.span()?;
        if self.0.zone.is_some() {
            return Err(Error::InvalidLimit("windows of a zone can't be aligned".to_string()));
        }
        if span >= self.0.rate.period {
            return Err(Error::InvalidLimit(format!("ALIGN must be less than the period, either way, not {span}")));
        }
        // It is shorter than a period, and so far from the largest number.
        let us = span.as_micros().cast_signed();
        Ok(Self(Spec { align: Some(if offset.starts_with('-') { -us } else { us }), ..self.0 }))
    }

    /// Whether the policy itself says where its windows begin.
    pub(crate) fn has_windows(self) -> bool {
        self.0.align.is_some() || self.0.zone.is_some()
    }
}

impl Slide {
    /// A sliding window with this rate. The limit is at most 4294967295.
    pub fn new(rate: &str) -> Result<Self, Error> {
        Spec::new(rate, u64::from(u32::MAX)).map(Self)
    }

    /// The number of ticks in a period: fewer ticks make the log on the server smaller, and the times coarser.
    pub fn segments(self, segments: u64) -> Result<Self, Error> {
        self.0.numbered("SEGMENTS", segments, 65_536).map(Self)
    }
}

impl Gcra {
    /// A policy with this rate. Without [`burst`](Self::burst), the limit may be taken at once.
    pub fn new(rate: &str) -> Result<Self, Error> {
        Spec::new(rate, MOST).map(Self)
    }

    /// The units that may be taken at once.
    pub fn burst(self, burst: u64) -> Result<Self, Error> {
        self.0.numbered("BURST", burst, MOST).map(Self)
    }
}

impl Bucket {
    /// A bucket with this rate. Without [`capacity`](Self::capacity), it holds the limit.
    pub fn new(rate: &str) -> Result<Self, Error> {
        Spec::new(rate, MOST).map(Self)
    }

    /// The tokens that the bucket holds.
    pub fn capacity(self, capacity: u64) -> Result<Self, Error> {
        self.0.numbered("CAPACITY", capacity, MOST).map(Self)
    }

    /// The tokens of a period arrive all at once at its end.
    #[must_use]
    pub fn step(self) -> Self {
        Self(Spec { step: true, ..self.0 })
    }
}

impl Lease {
    /// At most `limit` units are held, each for `ttl` after its last renewal: `Lease::new(4, "30s")`, or with a `Duration`.
    pub fn new(limit: u64, ttl: impl IntoSpan) -> Result<Self, Error> {
        let rate = Rate { limit: number("limit", limit, 0, 65_536)?, period: ttl.span()?.as_period("ttl")? };
        Ok(Self(Spec::of(rate)))
    }
}

/// What follows the key in a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) words: Arc<[String]>,
    /// The length of the window in seconds, if it is one of a calendar.
    pub(crate) window: Option<u64>,
}

impl Policy {
    /// The name of the command, that of the policy in texts, and that of its option with a number.
    fn names(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Fixed(_) => ("RL.FIXED", "Fixed", ""),
            Self::Slide(_) => ("RL.SLIDE", "Slide", "SEGMENTS"),
            Self::Gcra(_) => ("RL.GCRA", "Gcra", "BURST"),
            Self::Bucket(_) => ("RL.BUCKET", "Bucket", "CAPACITY"),
            Self::Lease(_) => ("RL.LEASE", "Lease", ""),
            Self::Named(named) => named.default.names(),
        }
    }

    pub(crate) fn command_name(&self) -> &'static str {
        self.names().0
    }

    /// The name of the algorithm: `FIXED`, `SLIDE`, `GCRA`, `BUCKET` or `LEASE`.
    pub(crate) fn algorithm(&self) -> &'static str {
        &self.command_name()["RL.".len()..]
    }

    pub(crate) fn rate(&self) -> Rate {
        self.spec().rate
    }

    /// The units that can be taken at once: the burst, the capacity or the limit; 0 if the limit is 0.
    pub(crate) fn capacity(&self) -> u64 {
        match (self, self.rate().limit) {
            (_, 0) => 0,
            (Self::Gcra(_) | Self::Bucket(_), limit) => self.spec().number.unwrap_or(limit),
            (Self::Named(named), _) => named.default.capacity(),
            (_, limit) => limit,
        }
    }

    pub(crate) fn is_lease(&self) -> bool {
        self.algorithm() == "LEASE"
    }

    pub(crate) fn is_named(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// The words that never change, if the windows are not those of a calendar.
    pub(crate) fn constant_words(&self) -> Option<Words> {
        self.spec().zone.is_none().then(|| self.words(SystemTime::UNIX_EPOCH))
    }

    /// What follows the key in a command, and the algorithm in a rule of `RL.ALL`, at this time.
    pub(crate) fn words(&self, now: SystemTime) -> Words {
        let (spec, (_, _, number)) = (self.spec(), self.names());
        let window = spec.zone.map(|zone| zone.window(now));
        let options = [
            (number, spec.number.map(|number| number.to_string())),
            ("ALIGN", spec.align.map(offset)),
            ("UNTIL", window.map(|(_, end)| end.to_string())),
        ];
        let mut words = vec![spec.rate.limit.to_string(), spec.rate.period.to_string()];
        words.extend(options.into_iter().filter_map(|(name, value)| Some([name.to_string(), value?])).flatten());
        words.extend(spec.step.then(|| "STEP".to_string()));
        Words { words: words.into(), window: window.and_then(|(begin, end)| u64::try_from(end - begin).ok()) }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Named(named) = self {
            return fmt::Display::fmt(named, f);
        }
        let (spec, (_, name, number)) = (self.spec(), self.names());
        let Rate { limit, period } = spec.rate;
        match spec.zone.map(Zone::names) {
            Some((unit, zone)) => write!(f, "{name}({limit}/{unit}, zone {zone}")?,
            None if self.is_lease() => write!(f, "{name}({limit}, ttl {period}")?,
            None => write!(f, "{name}({}", spec.rate)?,
        }
        if let Some(align) = spec.align {
            write!(f, ", align {}", offset(align))?;
        }
        if let Some(value) = spec.number {
            write!(f, ", {} {value}", number.to_ascii_lowercase())?;
        }
        f.write_str(if spec.step { ", step)" } else { ")" })
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
