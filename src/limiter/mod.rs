//! The pure core: the decisions of each algorithm, exact to the unit and the microsecond.
//!
//! This module reads no clock, opens no key and does not depend on Redis. Time is an argument, a stored value is a slice of
//! bytes, and all arithmetic is on integers, with the same decisions as in rational numbers.
//!
//! Every command takes the same three steps:
//!
//! ```text
//! let view = policy.view(stored, now)?;           // load: decode the record, and compute the state at `now`
//! let (decision, next) = view.decide(request)?;   // decide: the decision, and the key's next state
//! let change = view.store(&next, random, &mut bytes); // store: encode the next state
//! ```
//!
//! Only `store` produces bytes, so a caller that drops `next` changes nothing.
//!
//! A new algorithm needs one file with a [`Spec`], a variant of [`Kind`], and an arm in each function here that matches on
//! [`Kind`].
#![forbid(unsafe_code)]

mod bucket;
mod change;
mod decision;
mod fixed;
mod gcra;
mod inspection;
mod lease;
mod ledger;
mod meter;
mod option;
mod record;
mod settle;
mod slide;
mod time;

pub use change::{Bytes, Change};
pub use decision::{Amount, Decision, Overflow, Quota, Request, Snapshot, Wait};
pub use inspection::{Fact, Holder, Inspection};
pub use ledger::{fingerprint, without_ids, Charge, Id, RandomSeed, MAX_IDS};
pub use meter::LastingDenial;
pub use option::{OptionSpec, OptionValue, PolicyOption};
pub use record::RecordError;
pub use settle::{SettleError, Settlement};
pub use time::{Instant, Span};

use lease::Lease;
use meter::Meter;
use slide::Slide;

/// The highest limit, capacity or amount, in units.
pub const MAX_UNITS: u64 = 1_000_000_000_000;
/// The shortest period.
pub const MIN_PERIOD: Span = Span::from_us(1_000);
/// The longest period: ten years of 365 days.
pub const MAX_PERIOD: Span = Span::from_us(3_650 * 86_400_000_000);

/// The length of the shortest record, in bytes.
pub const MIN_RECORD: usize = 28;
/// The length of the shortest value that any algorithm reads, in bytes.
pub const MIN_LEN: usize = record::TAT_DIGITS;

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fixed window.
    Fixed,
    /// Sliding window.
    Slide,
    /// Generic cell rate algorithm.
    Gcra,
    /// Token bucket.
    Bucket,
    /// Lease: units that are held until they are released, or until a time to live passes.
    Lease,
}

/// The constants of an algorithm.
pub struct Spec {
    /// The name in commands and messages, in capitals.
    pub name: &'static str,
    /// The algorithm's number in records.
    pub tag: u8,
    /// The highest limit, in units.
    pub max_limit: u64,
    /// The options.
    pub options: &'static [OptionSpec],
    /// Whether a policy can have only one of the options.
    pub options_exclude: bool,
    /// The length of the shortest value that the algorithm reads, in bytes.
    pub min_len: usize,
    /// See [`Policy::charges_when_due`].
    pub charges_when_due: bool,
}

impl Kind {
    /// Every algorithm.
    pub const ALL: &'static [Self] = &[Self::Fixed, Self::Slide, Self::Gcra, Self::Bucket, Self::Lease];

    /// The algorithms that limit how many units are taken per period: all but [`Self::Lease`].
    pub const RATES: &'static [Self] = &[Self::Fixed, Self::Slide, Self::Gcra, Self::Bucket];

    /// The constants.
    pub const fn spec(self) -> &'static Spec {
        match self {
            Self::Fixed => &fixed::SPEC,
            Self::Slide => &slide::SPEC,
            Self::Gcra => &gcra::SPEC,
            Self::Bucket => &bucket::SPEC,
            Self::Lease => &lease::SPEC,
        }
    }

    /// The name in commands and messages, in capitals.
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// The policy with every option at its default; `None` if the limit is above [`Spec::max_limit`].
    #[inline]
    pub fn policy(self, quota: Quota) -> Option<Policy> {
        let policy = || match self {
            Self::Fixed => Policy::Meter(fixed::meter(quota)),
            Self::Slide => Policy::Slide(Slide::new(quota)),
            Self::Gcra => Policy::Meter(gcra::meter(quota)),
            Self::Bucket => Policy::Meter(bucket::meter(quota)),
            Self::Lease => Policy::Lease(Lease::new(quota)),
        };
        (quota.limit() <= self.spec().max_limit).then(policy)
    }
}

/// A quota with its algorithm and that algorithm's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// FIXED, GCRA or BUCKET: a level of used units that drains with time.
    Meter(Meter),
    /// SLIDE: a log of how many units were granted at which time.
    Slide(Slide),
    /// LEASE: a ledger of units that are held.
    Lease(Lease),
}

impl Policy {
    /// The algorithm.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Meter(meter) => meter.kind,
            Self::Slide(_) => Kind::Slide,
            Self::Lease(_) => Kind::Lease,
        }
    }

    /// Whole units per period.
    pub const fn limit(&self) -> u64 {
        match self {
            Self::Meter(meter) => meter.limit,
            Self::Slide(slide) => slide.quota.limit(),
            Self::Lease(lease) => lease.quota.limit(),
        }
    }

    /// The period; the time to live of a lease.
    pub const fn period(&self) -> Span {
        match self {
            Self::Meter(meter) => Span::from_us(meter.period_us),
            Self::Slide(slide) => slide.quota.period(),
            Self::Lease(lease) => lease.quota.period(),
        }
    }

    /// Sets an option. An option of another algorithm changes nothing.
    pub fn set(&mut self, option: PolicyOption) {
        match self {
            Self::Meter(meter) => meter.set(option),
            Self::Slide(slide) => slide.set(option),
            Self::Lease(_) => {}
        }
    }

    /// The policy with an option set.
    #[must_use]
    pub fn with(mut self, option: PolicyOption) -> Self {
        self.set(option);
        self
    }

    /// Whether the policy states a moment that lies so far ahead that it must be a mistake: more than two periods. It may be in
    /// milliseconds, for example.
    #[inline(always)]
    pub const fn is_too_far_ahead(&self, now: Instant) -> bool {
        matches!(self, Self::Meter(meter) if meter.is_too_far_ahead(now))
    }

    /// Whether a waiting client is charged as of the moment at which its units were due, even if it is granted them a little
    /// later. Then the units that flow in between these two moments are not lost. If false, it is charged as of the moment
    /// of the grant.
    pub const fn charges_when_due(&self) -> bool {
        self.kind().spec().charges_when_due
    }

    /// Whether the waits in denials are upper bounds, because units are usually given back before they fall free by themselves.
    pub const fn frees_early(&self) -> bool {
        matches!(self, Self::Lease(_))
    }

    /// Decodes the value of a key (`None`: the key does not exist), and computes the key's state under this policy at `now`.
    ///
    /// # Errors
    /// If the value is not a record of this algorithm.
    #[inline(always)]
    pub fn view<'a>(&'a self, stored: Option<&'a [u8]>, now: Instant) -> Result<View<'a>, RecordError> {
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

/// A key's state under a policy at a moment, as [`Policy::view`] returns it.
pub enum View<'a> {
    /// The limit is 0: every call is denied, and nothing is written.
    Closed,
    /// See [`Policy::Meter`].
    Meter(meter::View<'a>),
    /// See [`Policy::Slide`].
    Slide(slide::View<'a>),
    /// See [`Policy::Lease`].
    Lease(lease::View<'a>),
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
    /// As [`Self::Meter`], with the ids of charges. The next states with ids are boxed, because those without are then smaller and
    /// faster.
    MeterWithIds(Box<(meter::Next, Charge<'r>)>),
    /// As [`Self::Slide`], with the ids of charges.
    SlideWithIds(Box<(slide::Next, Charge<'r>)>),
    /// A lease that is taken or renewed.
    Lease(Box<lease::Next<'r>>),
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
        }
    }

    /// The units that an id holds: a charge that the key remembers, or a lease; `None` if the id holds nothing.
    pub fn held(&self, id: Id<'_>) -> Option<u64> {
        match self {
            Self::Closed => None,
            Self::Meter(view) => view.held(id),
            Self::Slide(view) => view.held(id),
            Self::Lease(view) => view.held(id),
        }
    }

    /// Returns the decision of [`Self::decide`], but with `remaining` and `reset` of the present state, as no units are
    /// taken.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn peek(&self, request: Request<'_>) -> Result<Decision, Overflow> {
        let (decision, _) = self.decide(request)?;
        let Snapshot { remaining, reset } = match self {
            Self::Meter(view) if decision.granted > 0 => view.snapshot(),
            Self::Slide(view) if decision.granted > 0 => view.snapshot(),
            Self::Lease(view) if decision.granted > 0 => view.snapshot(),
            _ => return Ok(decision),
        };
        Ok(Decision { remaining, reset, ..decision })
    }

    /// The lasting form of `decision`, which [`Self::decide`] returned for `COST 1`; `None` if it is a grant, or may not last.
    /// `record` is the value of the key.
    #[inline(always)]
    pub fn lasting_denial(&self, record: &[u8], decision: &Decision) -> Option<LastingDenial> {
        match self {
            Self::Meter(view) => view.lasting_denial(record, decision),
            _ => None,
        }
    }

    /// Encodes the next state that [`Self::decide`] returned: writes the bytes to `bytes`, and returns where they belong. Only a
    /// state with a new id needs a random number.
    #[inline(always)]
    pub fn store(&self, next: &Next<'_>, random: RandomSeed, bytes: &mut Bytes) -> Change {
        match (self, next) {
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
    pub const fn matches_policy(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Meter(view) => view.matches_policy,
            // The log holds the times of the grants, so waits are exact under any policy.
            Self::Slide(_) | Self::Lease(_) => true,
        }
    }
}

/// Returns the facts in a record of any algorithm at `now`, under the policy that the record was written under.
///
/// # Errors
/// If `stored` is not a limiter's record.
pub fn inspect(stored: &[u8], now: Instant) -> Result<Inspection, RecordError> {
    match record::kind(stored) {
        Ok(Kind::Slide) => Ok(slide::View::of_record(stored, now)?.inspect()),
        Ok(Kind::Lease) => Ok(lease::View::of_record(stored, now)?.inspect()),
        Ok(kind) => {
            let record = meter::Record::decode_any(stored, kind)?;
            let view = meter::View::of_record(&record, now);
            let mut inspection = view.inspect();
            match kind {
                Kind::Fixed => fixed::inspect(&view, &mut inspection),
                Kind::Gcra => gcra::inspect(&record, &mut inspection),
                Kind::Bucket => bucket::inspect(&view, &mut inspection),
                Kind::Slide | Kind::Lease => {}
            }
            inspection.extend(inspection::ids_facts(view.count_ids()));
            Ok(inspection)
        }
        Err(error) => gcra::inspect_redis_cell(stored, now).ok_or(error),
    }
}

/// Settles the charge with this id to `units`, and forgets the id. If `units` are fewer than were charged, the key is then as
/// if the charge had taken only them. If they are more, the difference is taken now, as [`Amount::Force`] does. A lease can
/// only be settled to 0 units, which ends it. `None`: the key does not remember the id, and stays as it is.
///
/// # Errors
/// See [`SettleError`].
pub fn settle(
    stored: &[u8],
    now: Instant,
    id: Id<'_>,
    units: u64,
    bytes: &mut Bytes,
) -> Result<Option<Settlement>, SettleError> {
    match record::kind(stored) {
        Ok(Kind::Slide) => Ok(slide::View::of_record(stored, now)?.settle(id, units, bytes)?),
        Ok(Kind::Lease) => lease::View::of_record(stored, now)?.settle(id, units, bytes),
        Ok(kind) => {
            let record = meter::Record::decode_any(stored, kind)?;
            Ok(meter::View::of_record(&record, now).settle(id, units, bytes)?)
        }
        // A value of redis-cell is a limiter without ids.
        Err(_) if record::tat_ns(stored).is_some() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
