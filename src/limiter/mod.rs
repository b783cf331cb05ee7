//! The pure core: what each algorithm decides, to the unit and the microsecond.
//!
//! Nothing here reads a clock, touches a key or knows Redis. Time is an argument, a stored value is a slice of bytes, and
//! all arithmetic is on integers: a decision is the one that rational numbers would give. The one entry is
//! [`Policy::decide`]: a policy, what the key holds, the time and a request give a [`Decision`], and the [`Change`] that
//! carries it out. Whoever drops the change has only looked.
//!
//! A new algorithm is a file with an [`Algorithm`] and a row in the table at the end of this one.
#![forbid(unsafe_code)]

mod bucket;
mod fixed;
mod gcra;
mod meter;
mod record;
mod slide;
mod time;

pub use bucket::Bucket;
pub use fixed::Fixed;
pub use gcra::Gcra;
pub use record::Foreign;
pub use slide::Slide;
pub use time::{Instant, Span};

/// The most units that a limit, a capacity or an amount can name.
pub const MAX_UNITS: u64 = 1_000_000_000_000;
/// The shortest period.
pub const MIN_PERIOD: Span = Span::from_us(1_000);
/// The longest period: ten years of 365 days.
pub const MAX_PERIOD: Span = Span::from_us(3_650 * 86_400_000_000);

/// No record is shorter, in bytes.
pub const MIN_RECORD: usize = 28;
/// No value that a limiter reads is shorter, in bytes.
pub const MIN_LEN: usize = record::TAT_DIGITS;

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

/// How many units a call takes, or gives back. The count is 1 ..= [`MAX_UNITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// All of them or none.
    Cost(u64),
    /// As many as fit.
    UpTo(u64),
    /// All of them, whatever the state: the overshoot is a debt.
    Force(u64),
    /// Give back at most so many of those in use.
    Refund(u64),
}

/// What a call asks of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many units.
    pub amount: Amount,
    /// How far ahead [`Amount::Cost`] may be booked if the units are not free now; zero: now or not at all. The other amounts
    /// are never booked.
    pub ahead: Span,
}

impl Request {
    /// A request to be answered by what is free now.
    pub const fn now(amount: Amount) -> Self {
        Self { amount, ahead: Span::ZERO }
    }
}

/// How long until a call would be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// After this span, rounded up to a microsecond; zero for a call that is granted, unless it is booked.
    For(Span),
    /// Not ever: the call asks for more than the capacity.
    Never,
}

impl Wait {
    /// No wait at all.
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
    /// Granted: how long to wait before acting, which is not at all unless the units are booked. Denied: how long until this
    /// same call, alone, would be granted.
    pub wait: Wait,
    /// Until nothing is used any more, rounded up to a microsecond.
    pub reset: Span,
}

impl Decision {
    /// The answer to every call under a limit of 0.
    const CLOSED: Self = Self { granted: 0, limit: 0, remaining: 0, wait: Wait::Never, reset: Span::ZERO };
}

/// How a limiter stands, with nothing asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whole units that could be taken right now, rounded down.
    pub remaining: u64,
    /// Until nothing is used any more, rounded up to a microsecond.
    pub reset: Span,
}

/// What a key holds, a name and a value at a time, for a person to read.
pub type Report = Vec<(&'static str, Fact)>;

/// A value in a [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Nothing of the kind.
    Nothing,
    /// A word.
    Word(&'static str),
    /// A whole number.
    Number(i64),
    /// A length of time, told in milliseconds, exactly.
    Milliseconds(Span),
}

impl Fact {
    fn units(units: impl TryInto<i64>) -> Self {
        Self::Number(units.try_into().unwrap_or(i64::MAX))
    }
}

/// The facts that every algorithm tells, in their order.
fn report(kind: Kind, quota: (u64, u64), used: u128, standing: Standing) -> Report {
    vec![
        ("algorithm", Fact::Word(kind.name())),
        ("limit", Fact::units(quota.0)),
        ("period_ms", Fact::Milliseconds(Span::from_us(quota.1))),
        ("used", Fact::units(used)),
        ("remaining", Fact::units(standing.remaining)),
        ("reset_ms", Fact::units(standing.reset.as_ms_ceil())),
    ]
}

/// What a decision does to the stored value. `B` is `()` where the bytes are somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<B = Bytes> {
    /// Nothing: the key stays as it is.
    Keep,
    /// The value becomes its own first `offset` bytes, followed by `bytes`; but the first `head` of these go where the value begins.
    Write {
        /// How much of the old value stays; 0 where there was none.
        offset: usize,
        /// How many of the bytes replace the first ones of what stays; at most `offset`, and 0 as a rule.
        head: usize,
        /// Those, and what follows.
        bytes: B,
        /// From when on the value means nothing.
        expires: Instant,
        /// How much longer the key may live, if that saves moving its deadline.
        slack: Span,
    },
    /// The key goes: the value means nothing any more.
    Remove,
}

/// A decision, and what carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub decision: Decision,
    /// Its effect.
    pub change: Change,
}

/// A decision, and what carries it out but for the bytes.
pub type Verdict = (Decision, Change<()>);

/// Where the bytes of a change go; `None` if this is only a look, which writes none.
pub type Room<'a> = Option<&'a mut Bytes>;

impl<B> Change<B> {
    /// The same change with its bytes made into something else.
    #[inline]
    pub fn map<C>(self, bytes: impl FnOnce(B) -> C) -> Change<C> {
        match self {
            Self::Keep => Change::Keep,
            Self::Write { offset, head, bytes: from, expires, slack } => {
                Change::Write { offset, head, bytes: bytes(from), expires, slack }
            }
            Self::Remove => Change::Remove,
        }
    }
}

/// Why there is no decision. Nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key holds something else than this algorithm's record.
    Foreign(Foreign),
    /// The result does not fit the record: a debt or a booking beyond all reason.
    Overflow,
}

impl From<Foreign> for Refusal {
    fn from(foreign: Foreign) -> Self {
        Self::Foreign(foreign)
    }
}

/// Bytes to be stored: short ones, which are the rule, need no allocation.
#[derive(Clone)]
pub struct Bytes {
    short: [u8; Bytes::SHORT],
    /// How many of those.
    len: usize,
    /// All of them, if they are too many for that.
    long: Option<Vec<u8>>,
}

impl Bytes {
    /// Up to this length they are kept in place: no record of fixed length is longer.
    pub const SHORT: usize = 64;

    /// No bytes.
    pub const fn new() -> Self {
        Self { short: [0; Self::SHORT], len: 0, long: None }
    }

    fn with_capacity(len: usize) -> Self {
        Self { long: (len > Self::SHORT).then(|| Vec::with_capacity(len)), ..Self::new() }
    }

    /// Room for so many bytes, at most [`Self::SHORT`], instead of what there is.
    #[inline(always)]
    fn room(&mut self, len: usize) -> &mut [u8; Self::SHORT] {
        self.long = None;
        self.len = len;
        &mut self.short
    }

    fn extend(&mut self, more: &[u8]) {
        match (&mut self.long, self.short.get_mut(self.len..self.len + more.len())) {
            (Some(bytes), _) => bytes.extend_from_slice(more),
            (None, Some(room)) => {
                room.copy_from_slice(more);
                self.len += more.len();
            }
            (None, None) => self.long = Some([&self.short[..self.len], more].concat()),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.long {
            Some(bytes) => bytes,
            None => &mut self.short[..self.len],
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.long {
            Some(bytes) => bytes,
            None => &self.short[..self.len],
        }
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({:02x?})", self.as_slice())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Bytes {}

/// An option of an algorithm, as data: the grammar reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The keyword, in capitals.
    pub keyword: &'static str,
    /// What follows it.
    pub value: SettingValue,
}

/// What follows the keyword of a [`Setting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingValue {
    /// Nothing: the keyword alone says it.
    Flag,
    /// A whole number in a range, both ends included.
    Count(u64, u64),
    /// A signed duration, in size less than the period; passed on in microseconds.
    Offset,
}

/// What an algorithm brings. Its value is the policy: the quota and the algorithm's own options.
pub trait Algorithm: Copy {
    /// Which one it is.
    const KIND: Kind;
    /// The algorithm's name in commands and messages, in capitals.
    const NAME: &'static str;
    /// Its number in records.
    const TAG: u8;
    /// The highest limit that it takes.
    const MAX_LIMIT: u64;
    /// Its options.
    const SETTINGS: &'static [Setting];
    /// No value that it reads is shorter, in bytes.
    const MIN_LEN: usize = MIN_RECORD;
    /// Whether who waited may be charged as of the moment the units were due, though the grant comes a little later: what
    /// flows in meanwhile is then not lost. Otherwise the grant's own moment counts.
    const CHARGED_WHEN_DUE: bool;

    /// The policy with every option at its default.
    fn new(quota: Quota) -> Self;

    /// Sets option `index` of [`Self::SETTINGS`] to `value`, which is in the setting's range (1 for a flag).
    fn set(&mut self, index: usize, value: i64);

    /// The limit per period.
    fn quota(&self) -> Quota;

    /// Decides `request` at `now` for a key that holds `stored`. The limit is not 0.
    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request, into: Room<'_>) -> Result<Verdict, Refusal>;

    /// Whether a key that holds `stored` was last changed under this policy, as far as can be seen, or counts as if it was: waits
    /// are then exact, and not only long enough.
    fn wrote(&self, stored: &[u8]) -> bool;

    /// How a key that holds `stored` stands at `now`. The limit is not 0.
    fn standing(&self, stored: Option<&[u8]>, now: Instant) -> Result<Standing, Foreign>;

    /// What `stored` says at `now`, under the policy that it was written under.
    fn inspect(stored: &[u8], now: Instant) -> Result<Report, Foreign>;
}

/// Makes the closed set of algorithms out of one table: the names, the policies, and the way from one to the other.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Which algorithm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($(#[$doc])* $name,)* }

        impl Kind {
            /// Every algorithm.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in commands and messages, in capitals.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $name::NAME,)* }
            }

            /// The highest limit that it takes.
            pub const fn max_limit(self) -> u64 {
                match self { $(Self::$name => $name::MAX_LIMIT,)* }
            }

            /// No value that it reads is shorter, in bytes.
            pub const fn min_len(self) -> usize {
                match self { $(Self::$name => $name::MIN_LEN,)* }
            }

            /// Its options.
            pub const fn settings(self) -> &'static [Setting] {
                match self { $(Self::$name => $name::SETTINGS,)* }
            }

            /// The policy with every option at its default; `None` if the limit is above [`Self::max_limit`].
            pub fn policy(self, quota: Quota) -> Option<Policy> {
                (quota.limit() <= self.max_limit()).then(|| match self { $(Self::$name => Policy::$name($name::new(quota)),)* })
            }

            /// The number in records.
            const fn tag(self) -> u8 {
                match self { $(Self::$name => $name::TAG,)* }
            }

            /// The algorithm of that number in records.
            const fn tagged(tag: u8) -> Option<Self> {
                match tag { $($name::TAG => Some(Self::$name),)* _ => None }
            }
        }

        /// A limit with its algorithm and that algorithm's options.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Policy { $($(#[$doc])* $name($name),)* }

        impl Policy {
            /// The algorithm.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$name(_) => Kind::$name,)* }
            }

            /// Whether a key that holds `stored` was last changed under this policy, as far as can be seen, or counts as if it
            /// was: the waits that are told are then exact, and not only long enough.
            pub fn wrote(&self, stored: &[u8]) -> bool {
                match self { $(Self::$name(policy) => policy.wrote(stored),)* }
            }

            /// See [`Algorithm::CHARGED_WHEN_DUE`].
            pub const fn charged_when_due(&self) -> bool {
                match self { $(Self::$name(_) => $name::CHARGED_WHEN_DUE,)* }
            }

            /// Sets option `index` of [`Kind::settings`] to `value`, which is in the setting's range (1 for a flag).
            pub fn set(&mut self, index: usize, value: i64) {
                match self { $(Self::$name(policy) => policy.set(index, value),)* }
            }

            /// Decides `request` at `now` for a key that holds `stored` (`None`: there is no such key).
            ///
            /// # Errors
            /// [`Refusal::Foreign`] if the value is not a record of this algorithm, [`Refusal::Overflow`] if the result
            /// would not fit one.
            pub fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Outcome, Refusal> {
                let mut bytes = Bytes::new();
                let (decision, change) = self.decide_into(stored, now, request, &mut bytes)?;
                Ok(Outcome { decision, change: change.map(|()| bytes) })
            }

            /// [`Self::decide`], with the bytes apart: they are put where they stay.
            ///
            /// # Errors
            /// As [`Self::decide`].
            #[inline(always)]
            pub fn decide_into(
                &self,
                stored: Option<&[u8]>,
                now: Instant,
                request: Request,
                bytes: &mut Bytes,
            ) -> Result<Verdict, Refusal> {
                match self { $(Self::$name(policy) => decide(policy, stored, now, request, Some(bytes)),)* }
            }

            /// What [`Self::decide`] would answer, without making the change: a long record is not copied.
            ///
            /// # Errors
            /// As [`Self::decide`].
            pub fn look(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Decision, Refusal> {
                match self { $(Self::$name(policy) => decide(policy, stored, now, request, None).map(|(decision, _)| decision),)* }
            }

            /// What [`Self::decide`] would answer, but with the limiter as it stands: nothing is taken.
            ///
            /// # Errors
            /// As [`Self::decide`].
            pub fn peek(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Decision, Refusal> {
                match self { $(Self::$name(policy) => peek(policy, stored, now, request),)* }
            }
        }

        /// What a key that holds `stored` says at `now`, whichever limiter it is.
        ///
        /// # Errors
        /// If it is not a limiter's record.
        pub fn inspect(stored: &[u8], now: Instant) -> Result<Report, Foreign> {
            let kind = record::kind(stored).or_else(|foreign| record::tat_ns(stored).map(|_| Kind::Gcra).ok_or(foreign));
            match kind? { $(Kind::$name => $name::inspect(stored, now),)* }
        }
    };
}

/// What holds for every algorithm: a limit of 0 is closed, though not to a look at what the key holds.
#[inline(always)]
fn decide<A: Algorithm>(
    policy: &A,
    stored: Option<&[u8]>,
    now: Instant,
    request: Request,
    into: Room<'_>,
) -> Result<Verdict, Refusal> {
    if policy.quota().limit() == 0 {
        if let Some(bytes) = stored {
            A::inspect(bytes, now)?;
        }
        return Ok((Decision::CLOSED, Change::Keep));
    }
    policy.decide(stored, now, request, into)
}

fn peek<A: Algorithm>(policy: &A, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Decision, Refusal> {
    let (decision, _) = decide(policy, stored, now, request, None)?;
    if decision.granted == 0 {
        return Ok(decision);
    }
    let Standing { remaining, reset } = policy.standing(stored, now)?;
    Ok(Decision { remaining, reset, ..decision })
}

algorithms! {
    /// Fixed window.
    Fixed,
    /// Sliding window.
    Slide,
    /// Generic cell rate algorithm.
    Gcra,
    /// Token bucket.
    Bucket,
}
