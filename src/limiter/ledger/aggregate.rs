//! What a block of slots, or a whole ledger, has in total.

use super::{weight, word, Slot};
use crate::limiter::Kind;

/// A summary of slots: the sum of their weights, and the first and the last [`Slot::when`] of the live slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) struct Aggregate {
    /// The sum of the weights, modulo 2^128: see [`layers`](super::layers). LEASE: the sum of the units of the live slots.
    pub(in crate::limiter) weights: u128,
    /// The first moment; [`i64::MAX`] if no slot is live.
    pub(in crate::limiter) first: i64,
    /// The last moment; [`i64::MIN`] if no slot is live.
    pub(in crate::limiter) last: i64,
}

impl Aggregate {
    /// The length of an aggregate, in bytes.
    pub(super) const LEN: usize = 32;

    /// The aggregate of no slot.
    pub(in crate::limiter) const NONE: Self = Self { weights: 0, first: i64::MAX, last: i64::MIN };

    /// The aggregate of one slot in a ledger of `kind`.
    pub(in crate::limiter) fn of(slot: &Slot, kind: Kind) -> Self {
        Self { weights: Self::weight_of(slot, kind), ..Self::of_moment(slot.is_live().then_some(slot.when)) }
    }

    /// What a slot adds to [`Self::weights`].
    pub(super) fn weight_of(slot: &Slot, kind: Kind) -> u128 {
        match kind {
            Kind::Lease => u128::from(if slot.is_live() { slot.units } else { 0 }),
            _ => slot.weight,
        }
    }

    /// The aggregate of a slot without weight. `when` is its [`Slot::when`]; `None`: the slot is dead.
    pub(super) fn of_moment(when: Option<i64>) -> Self {
        when.map_or(Self::NONE, |when| Self { weights: 0, first: when, last: when })
    }

    /// The aggregate of the slots of `self` and of `other`.
    #[must_use]
    pub(in crate::limiter) fn join(self, other: Self) -> Self {
        Self {
            weights: self.weights.wrapping_add(other.weights),
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }

    /// Whether the moments may lie closer together after slot `after` has replaced slot `before`.
    pub(super) fn may_narrow(&self, before: &Slot, after: &Slot) -> bool {
        let stays = after.is_live() && after.when == before.when;
        before.is_live() && !stays && (self.first == before.when || self.last == before.when)
    }

    /// Reads an aggregate from the front of `bytes`; missing bytes count as zero.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self { weights: weight(bytes, 0), first: word(bytes, 16) as i64, last: word(bytes, 24) as i64 }
    }

    /// The aggregate as it is stored.
    pub(super) fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.weights.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..].copy_from_slice(&self.last.to_le_bytes());
        bytes
    }
}
