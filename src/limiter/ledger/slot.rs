//! The slots of a ledger.

use super::{weight, word, Id};
use crate::limiter::{Decision, Instant, Snapshot, Span, Wait};

/// SLIDE: the bits of a weight that hold the layer, see [`layers`](super::layers).
pub(in crate::limiter) const LOWER: u128 = u64::MAX as u128;

/// The length of the fields before the id, in bytes.
pub(super) const HEAD: usize = 32;
/// The length of the weight, which is stored after the id, in bytes.
pub(super) const WEIGHT: usize = 16;
/// The length of a slot without its id, in bytes.
pub(super) const SLOT: usize = HEAD + WEIGHT;
/// The bit of a slot's first eight bytes that holds [`Slot::emptied`]. The units need far fewer bits.
pub(super) const EMPTIED: u64 = 1 << 63;

/// What an id holds: a charge or a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) struct Slot {
    /// The length of the id, in bytes: at most [`Id::MAX_LEN`]. 0: the slot is dead.
    pub(in crate::limiter) len: usize,
    /// The units that were granted: at most [`MAX_UNITS`](crate::limiter::MAX_UNITS), less than 2^55.
    pub(in crate::limiter) units: u64,
    /// FIXED: the number of the window that holds the units, as [`Header::window`](super::Header::window) counts. SLIDE: the
    /// tick that holds them. LEASE: the deadline, in microseconds since the Unix epoch. GCRA and BUCKET do not use it.
    pub(in crate::limiter) when: i64,
    /// A charge: how long its caller had to wait before it acted; more than 0 only for a booking. A lease: the ttl that set
    /// its deadline. In microseconds.
    pub(in crate::limiter) span_us: u64,
    /// A charge: when its caller may act; after the charge only for a booking.
    pub(in crate::limiter) acts_at: Instant,
    /// How much of a charge can still be given back, as a difference to the slot before: see [`layers`](super::layers). Leases
    /// have none.
    pub(in crate::limiter) weight: u128,
    /// SLIDE: the log has no entry for these units any more, because they were given back, and a later charge may have been
    /// granted in an earlier tick. Such a slot is not in the order of ticks, and its weight is 0.
    pub(in crate::limiter) emptied: bool,
}

/// A charge that a decision makes, as far as the ledger remembers it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'r> {
    /// The id; `None`: the charge is not remembered.
    pub(in crate::limiter) id: Option<Id<'r>>,
    /// The units that were granted.
    pub(in crate::limiter) units: u64,
    /// How long the caller must wait before it acts.
    pub(in crate::limiter) wait: Wait,
}

impl Charge<'_> {
    /// The slot of the charge, which is made at `now`. Its weight is 0; the caller sets it. `when` is [`Slot::when`].
    pub(in crate::limiter) fn slot(&self, when: i64, now: Instant) -> Slot {
        let wait = if let Wait::For(wait) = self.wait { wait } else { Span::ZERO };
        Slot::new(self.units, when, wait.as_us(), now.saturating_add(wait))
    }
}

impl Slot {
    /// A slot for `units`. [`Edit::append`](super::Edit::append) fills in the length of the id.
    pub(in crate::limiter) const fn new(units: u64, when: i64, span_us: u64, acts_at: Instant) -> Self {
        Self { len: 0, units, when, span_us, acts_at, weight: 0, emptied: false }
    }

    /// The decision on a call that repeats the charge.
    pub(in crate::limiter) fn retry(&self, limit: u64, Snapshot { remaining, reset }: Snapshot, now: Instant) -> Decision {
        // After the clock was set back, `acts_at` may lie far ahead. The caller never waits longer than it had to at first.
        let left = self.acts_at.since(now).min(Span::from_us(self.span_us));
        Decision { granted: self.units, limit, remaining, wait: Wait::For(left), reset, retried: true }
    }

    /// The slot of a lease that is renewed until the deadline of `fresh`.
    pub(in crate::limiter) const fn renewed(self, fresh: &Self) -> Self {
        Self { when: fresh.when, span_us: fresh.span_us, ..self }
    }

    /// Whether the id has been neither settled nor forgotten. What the slot holds may be past.
    pub(in crate::limiter) const fn is_live(&self) -> bool {
        self.len > 0
    }

    /// Reads a slot with the room for its id. Does not check the fields.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let units = word(bytes, 0);
        let id_room = bytes.len().saturating_sub(SLOT);
        let len = units as u8 as usize;
        Self {
            len: if len > id_room { 0 } else { len },
            units: (units & !EMPTIED) >> 8,
            when: word(bytes, 8) as i64,
            span_us: word(bytes, 16),
            acts_at: Instant::from_us(word(bytes, 24) as i64),
            weight: weight(bytes, id_room + HEAD),
            emptied: units & EMPTIED != 0,
        }
    }

    /// The fields before the id, as they are stored. The weight is stored after the id.
    pub(super) fn head(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let emptied = if self.emptied { EMPTIED } else { 0 };
        bytes[..8].copy_from_slice(&(emptied | self.units << 8 | self.len as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.when.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.span_us.to_le_bytes());
        bytes[24..].copy_from_slice(&self.acts_at.as_us().to_le_bytes());
        bytes
    }
}
