//! The weights of charges: how much of a charge can still be given back.
//!
//! The level is the usage of the key. For each id let m be the lowest level since its charge. At most m can be given back,
//! because the rest has drained: it was free for other calls, which may have taken it. In the order of the charges, m never
//! decreases from one id to the next. So a slot holds only the difference to the slot before it, its weight, and m is the sum
//! of the weights up to its slot. These differences form a stack of layers, whose top belongs to the newest charge:
//!
//! * A charge adds a layer, so that its own m is the level after it.
//! * When the level has fallen, m becomes min(m, level) for all ids: layers are taken off the top, until their sum is the
//!   level ([`Edit::trim`]). This is needed only before the level rises. Until then the level itself bounds what can be given
//!   back.
//! * When d of charge A is given back, d is taken off the layers from A's own downwards ([`Edit::take`]). Then the m of A and
//!   of each later charge are lower by d, and the m of an earlier charge is at most A's new m.
//! * The layer of a forgotten id stays, because it is a part of the m of all later ids.
//!
//! So each call changes O(1) weights, amortized: each layer is used up at most once.
//!
//! For FIXED, GCRA and BUCKET, whose level is the key's, weights are in grains (see [`meter`](crate::limiter::meter)) of the policy
//! that the ledger was made under. Under another policy they are converted when they are read, rounded down. So a change of the
//! period changes no weight, even if callers with two periods call in turn.
//!
//! In SLIDE each tick has its own level, the units that were granted in it and not given back, and so its own stack: the slots
//! of that tick. Weights are in units. The lower half of a weight is the layer. The upper half counts those units of the tick
//! that were given back while the log still contains them: see `slide/ids.rs`.

use std::ops::Range;

use super::{Edit, Slot, BLOCK};

/// SLIDE: the bits of a weight that hold the layer.
pub(in crate::limiter) const LOWER: u128 = u64::MAX as u128;

impl Edit<'_> {
    /// Takes layers of the given slots off the top until their sum, which is `sum`, is at most `level`. `part` masks the bits
    /// of a weight that hold the layer. Returns the new sum.
    pub(in crate::limiter) fn trim(&mut self, slots: Range<usize>, sum: u128, level: u128, part: u128) -> u128 {
        let is_all = part == u128::MAX && slots == (0..self.old_len());
        self.take(slots, sum.saturating_sub(level), part);
        debug_assert!(
            !is_all || self.header.aggregate.weights == sum.min(level) || self.was_damaged(),
            "the layers add up to {}, and not to {}",
            self.header.aggregate.weights,
            sum.min(level)
        );
        sum.min(level)
    }

    /// Takes what lies between two heights out of the stack of layers, when a change of policy lowers the capacity from `high` to
    /// `low`: an m up to `low` stays as it is, one between them becomes `low`, and a higher one falls by their difference. Must be
    /// called before other changes.
    pub(in crate::limiter) fn take_between(&mut self, low: u128, high: u128) {
        let top = self.header.aggregate.weights.min(high);
        let amount = top.saturating_sub(low);
        if amount == 0 {
            return;
        }
        // The slot whose layer reaches `top`, and the sum of the layers below it.
        let (mut index, mut below) = (0, 0_u128);
        let reaches = |below: u128, weights: u128| below.saturating_add(weights) >= top;
        while index + BLOCK <= self.old_len() && !reaches(below, self.old_weights(index / BLOCK)) {
            below = below.saturating_add(self.old_weights(index / BLOCK));
            index += BLOCK;
        }
        while index < self.old_len() && !reaches(below, self.weight(index)) {
            below = below.saturating_add(self.weight(index));
            index += 1;
        }
        let of_this = amount.min(top.saturating_sub(below));
        if let Some(slot) = self.slot(index) {
            self.set(index, Slot { weight: slot.weight.saturating_sub(of_this), ..slot });
            self.take(0..index, amount - of_this, u128::MAX);
        }
    }

    /// Subtracts `amount` from the weights of the slots in `range`, from the last one downwards, or as much as they hold.
    /// `part` masks the bits of a weight to subtract from. They must be the lowest bits, or `amount` must be a multiple of the
    /// lowest one.
    pub(in crate::limiter) fn take(&mut self, range: Range<usize>, mut amount: u128, part: u128) {
        let mut index = range.end;
        while amount > 0 && index > range.start {
            if index.is_multiple_of(BLOCK) && self.old_weights(index / BLOCK - 1) & part == 0 {
                index -= BLOCK;
                continue;
            }
            index -= 1;
            let taken = (self.weight(index) & part).min(amount);
            if taken > 0 {
                let Some(slot) = self.slot(index) else {
                    debug_assert!(false, "slot {index} has a weight, so it is in the ledger");
                    return;
                };
                self.set(index, Slot { weight: slot.weight - taken, ..slot });
                amount -= taken;
            }
        }
    }
}
