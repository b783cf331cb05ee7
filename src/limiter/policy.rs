//! A policy: the quota of an algorithm with its options.

use super::lease::{self, Lease};
use super::meter::Meter;
use super::slide::{self, Slide};
use super::{bucket, fixed, gcra};
use super::{Amount, Instant, Kind, PolicyOption, Quota, Span, Spec};

impl Kind {
    /// Every algorithm, in the order of the variants: `ALL[kind as usize]` is `kind`.
    pub const ALL: &'static [Self] = &[Self::Fixed, Self::Slide, Self::Gcra, Self::Bucket, Self::Lease];

    /// The algorithms that limit how many units are taken per period: all but [`Self::Lease`]. Tests and measurements take them
    /// from here.
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

    /// Units that may be in use.
    pub(super) const fn capacity(&self) -> u64 {
        match self {
            Self::Meter(meter) => meter.capacity,
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

    /// Whether the policy states a moment that lies more than two periods ahead. Such a moment must be a mistake: for example, the
    /// caller wrote milliseconds.
    #[inline(always)]
    pub const fn is_too_far_ahead(&self, now: Instant) -> bool {
        matches!(self, Self::Meter(meter) if meter.is_too_far_ahead(now))
    }

    /// Whether a waiting client is charged as of the moment at which its units were due, even if the grant comes a little later.
    /// Then the units that flow in between the two moments are not lost. If false, the client is charged as of the moment of the
    /// grant.
    pub const fn charges_when_due(&self) -> bool {
        self.kind().spec().charges_when_due
    }

    /// Whether a call that names `amount` may repeat a charge of `held` units. A lease is renewed with its own units only.
    pub fn renews_with(&self, amount: Amount, held: u64) -> bool {
        !self.kind().spec().holds || amount == Amount::Cost(held)
    }

    /// Whether units are usually given back before they fall free by themselves. If so, the waits in denials are upper bounds.
    pub const fn frees_early(&self) -> bool {
        self.kind().spec().holds
    }
}
