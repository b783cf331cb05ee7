//! Policies: values without a connection, checked when they are made.

use std::fmt;
use std::time::Duration;

use crate::{Error, Rate, Span};

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
///
/// ```
/// # use redis_rl_client::Fixed;
/// let quota = Fixed::new("1000/d")?.align("-8h")?;
/// assert_eq!(quota.to_string(), "Fixed(1000/d, align -8h)");
/// # Ok::<(), redis_rl_client::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fixed {
    rate: Rate,
    align: Option<Offset>,
}

/// At most `limit` units in any window of one period, wherever it starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slide {
    rate: Rate,
    segments: Option<u64>,
}

/// The generic cell rate algorithm: units come back evenly, and up to `burst` of them may be taken at once.
///
/// ```
/// # use redis_rl_client::Gcra;
/// let api = Gcra::new("10/m")?.burst(5)?;
/// assert_eq!(api.to_string(), "Gcra(10/m, burst 5)");
/// assert!(Gcra::new("10.5/m").is_err());
/// # Ok::<(), redis_rl_client::Error>(())
/// ```
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
///
/// ```
/// # use redis_rl_client::Lease;
/// let jobs = Lease::new(4, "30s")?;
/// assert_eq!(jobs.to_string(), "Lease(4, ttl 30s)");
/// # Ok::<(), redis_rl_client::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    limit: u64,
    ttl: Span,
}

/// The offset of aligned windows: a duration with or without a sign. Made from a [`Duration`], or from a text such as `"8h"` or
/// `"-8h"`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offset {
    negative: bool,
    span: Span,
}

impl TryFrom<&str> for Offset {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        let (negative, span) = match text.strip_prefix('-') {
            Some(span) => (true, span),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let span: Span = span.parse()?;
        Ok(Self { negative: negative && span.as_micros() > 0, span })
    }
}

impl TryFrom<Duration> for Offset {
    type Error = Error;

    fn try_from(duration: Duration) -> Result<Self, Error> {
        Ok(Self { negative: false, span: duration.try_into()? })
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.span)
    }
}

fn rate<R: TryInto<Rate>>(rate: R, most: u64) -> Result<Rate, Error>
where
    Error: From<R::Error>,
{
    let rate = rate.try_into()?;
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

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl Fixed {
    /// A window with this [`Rate`]: `"1000/d"`, or `(1000, Duration::from_secs(86_400))`.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for what the server would refuse.
    pub fn new<R: TryInto<Rate>>(rate: R) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        Ok(Self { rate: self::rate(rate, MOST)?, align: None })
    }

    /// Windows start at each multiple of the period since 1970 (UTC), shifted by this [`Offset`]: `"0s"`, `"8h"`, `"-8h"`.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] unless the offset is a duration that is shorter than the period.
    pub fn align<T: TryInto<Offset>>(self, offset: T) -> Result<Self, Error>
    where
        Error: From<T::Error>,
    {
        let offset = offset.try_into()?;
        if offset.span >= self.rate.period {
            return Err(Error::InvalidLimit(format!("ALIGN must be less than the period, either way, not {offset}")));
        }
        Ok(Self { align: Some(offset), ..self })
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn is_aligned(&self) -> bool {
        self.align.is_some()
    }
}

impl Slide {
    /// A sliding window with this [`Rate`]. The limit is at most 4294967295.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for what the server would refuse.
    pub fn new<R: TryInto<Rate>>(rate: R) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        Ok(Self { rate: self::rate(rate, u64::from(u32::MAX))?, segments: None })
    }

    /// The number of ticks in a period: fewer ticks make the log on the server smaller, and the times coarser.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] unless it is from 1 to 65536.
    pub fn segments(self, segments: u64) -> Result<Self, Error> {
        Ok(Self { segments: Some(number("SEGMENTS", segments, 1, 65_536)?), ..self })
    }
}

impl Gcra {
    /// A policy with this [`Rate`]. Without [`burst`](Self::burst), the limit may be taken at once.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for what the server would refuse.
    pub fn new<R: TryInto<Rate>>(rate: R) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        Ok(Self { rate: self::rate(rate, MOST)?, burst: None })
    }

    /// The units that may be taken at once.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] unless it is from 1 to 1000000000000.
    pub fn burst(self, burst: u64) -> Result<Self, Error> {
        Ok(Self { burst: Some(number("BURST", burst, 1, MOST)?), ..self })
    }
}

impl Bucket {
    /// A bucket with this [`Rate`]. Without [`capacity`](Self::capacity), it holds the limit.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] for what the server would refuse.
    pub fn new<R: TryInto<Rate>>(rate: R) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        Ok(Self { rate: self::rate(rate, MOST)?, capacity: None, step: false })
    }

    /// The tokens that the bucket holds.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] unless it is from 1 to 1000000000000.
    pub fn capacity(self, capacity: u64) -> Result<Self, Error> {
        Ok(Self { capacity: Some(number("CAPACITY", capacity, 1, MOST)?), ..self })
    }

    /// The tokens of a period arrive all at once at its end.
    pub fn step(self) -> Self {
        Self { step: true, ..self }
    }
}

impl Lease {
    /// At most `limit` units are held, each for `ttl` after its last renewal: `Lease::new(4, "30s")`, or with a `Duration`.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] unless `limit` is from 0 to 65536, and `ttl` from 1 ms to 3650 days.
    pub fn new<T: TryInto<Span>>(limit: u64, ttl: T) -> Result<Self, Error>
    where
        Error: From<T::Error>,
    {
        Ok(Self { limit: number("limit", limit, 0, 65_536)?, ttl: ttl.try_into()?.as_period("ttl")? })
    }

    /// The time to live.
    pub fn ttl(&self) -> Span {
        self.ttl
    }
}

impl Policy {
    /// The name of the algorithm: `FIXED`, `SLIDE`, `GCRA`, `BUCKET` or `LEASE`.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "FIXED",
            Self::Slide(_) => "SLIDE",
            Self::Gcra(_) => "GCRA",
            Self::Bucket(_) => "BUCKET",
            Self::Lease(_) => "LEASE",
        }
    }

    /// The limit. The capacity in force differs from it if a burst or a capacity is named.
    pub fn limit(&self) -> u64 {
        match self {
            Self::Fixed(Fixed { rate, .. })
            | Self::Slide(Slide { rate, .. })
            | Self::Gcra(Gcra { rate, .. })
            | Self::Bucket(Bucket { rate, .. }) => rate.limit,
            Self::Lease(lease) => lease.limit,
        }
    }

    /// The period, or the time to live of a lease.
    pub fn period(&self) -> Span {
        match self {
            Self::Fixed(Fixed { rate, .. })
            | Self::Slide(Slide { rate, .. })
            | Self::Gcra(Gcra { rate, .. })
            | Self::Bucket(Bucket { rate, .. }) => rate.period,
            Self::Lease(lease) => lease.ttl,
        }
    }

    /// The units that can be taken at once: the burst, the capacity or the limit; 0 if the limit is 0.
    pub fn capacity(&self) -> u64 {
        let capacity = match self {
            Self::Gcra(policy) => policy.burst,
            Self::Bucket(policy) => policy.capacity,
            Self::Fixed(_) | Self::Slide(_) | Self::Lease(_) => None,
        };
        match self.limit() {
            0 => 0,
            limit => capacity.unwrap_or(limit),
        }
    }

    /// What follows the key in the command, and the algorithm in a rule of `RL.ALL`.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = vec![self.limit().to_string(), self.period().to_string()];
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([name.to_string(), value]);
            }
        };
        match self {
            Self::Fixed(policy) => option("ALIGN", policy.align.map(|offset| offset.to_string())),
            Self::Slide(policy) => option("SEGMENTS", policy.segments.map(|segments| segments.to_string())),
            Self::Gcra(policy) => option("BURST", policy.burst.map(|burst| burst.to_string())),
            Self::Bucket(policy) => {
                option("CAPACITY", policy.capacity.map(|capacity| capacity.to_string()));
                if policy.step {
                    words.push("STEP".to_string());
                }
            }
            Self::Lease(_) => {}
        }
        words
    }

    /// The command that takes one unit of this key: its name and its arguments. (`RL.LEASE` also needs an `ID`.)
    ///
    /// ```
    /// # use redis_rl_client::{Gcra, Policy};
    /// let policy = Policy::from(Gcra::new("10/m")?.burst(5)?);
    /// assert_eq!(policy.command("user:42"), ["RL.GCRA", "user:42", "10", "1m", "BURST", "5"].map(|word| word.as_bytes()));
    /// # Ok::<(), redis_rl_client::Error>(())
    /// ```
    pub fn command(&self, key: impl AsRef<[u8]>) -> Vec<Vec<u8>> {
        let mut words = vec![format!("RL.{}", self.algorithm()).into_bytes(), key.as_ref().to_vec()];
        words.extend(self.arguments().into_iter().map(String::into_bytes));
        words
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = Rate { limit: self.limit(), period: self.period() };
        let option = |name: &str, value: Option<u64>| value.map(|value| format!(", {name} {value}")).unwrap_or_default();
        match self {
            Self::Fixed(policy) => {
                let align = policy.align.map(|offset| format!(", align {offset}")).unwrap_or_default();
                write!(f, "Fixed({rate}{align})")
            }
            Self::Slide(policy) => write!(f, "Slide({rate}{})", option("segments", policy.segments)),
            Self::Gcra(policy) => write!(f, "Gcra({rate}{})", option("burst", policy.burst)),
            Self::Bucket(policy) => {
                let step = if policy.step { ", step" } else { "" };
                write!(f, "Bucket({rate}{}{step})", option("capacity", policy.capacity))
            }
            Self::Lease(policy) => write!(f, "Lease({}, ttl {})", policy.limit, policy.ttl),
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

        impl $name {
            /// The command that takes one unit of this key: its name and its arguments.
            pub fn command(&self, key: impl AsRef<[u8]>) -> Vec<Vec<u8>> {
                Policy::from(*self).command(key)
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
