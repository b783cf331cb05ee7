//! The weights of charges: how much of a charge can still be given back.
//!
//! The level is the usage of the key. The *refundable* usage of an id is the lowest level since its charge. At most that
//! much of the charge can be given back, because the rest has drained: it was free for other calls, which may have taken it.
//! In the order of the charges, what is refundable never decreases from one id to the next. So a slot holds only the
//! difference to the slot before it, its weight, and what is refundable is the sum of the weights up to its slot. These
//! differences form a stack of layers, whose top belongs to the newest charge:
//!
//! ```text
//! charge of n:          if the level has fallen since the last change:
//!                           take layers off the top, until their sum is the level    (trim)
//!                       raise the level by n
//!                       add a slot with the layer: the new level, less the sum of the layers
//!
//! give back d of an id: take layers off the top, until their sum is the level        (trim)
//!                       lower d to the sum of the layers up to the id's own
//!                       take d off these layers, from the id's own downwards          (take)
//!                       lower the level by d, and forget the id; what is left of its layer stays
//! ```
//!
//! * Trimming makes the refundable usage of each id at most the level. It is needed only before the level rises. Until then
//!   the level itself bounds what can be given back.
//! * After d was given back, what is refundable of the id and of each later one is lower by d. Of an earlier id at most as
//!   much is refundable as of this one.
//! * The layer of a forgotten id stays, because it is a part of what is refundable of all later ids.
//!
//! An example, in units of a key whose usage drains by one unit each second. The brackets hold the layers, the oldest first:
//!
//! | second | call | level before | level after | layers | refundable |
//! |---|---|---|---|---|---|
//! | 0 | charge A of 5 | 0 | 5 | [5] | A 5 |
//! | 2 | charge B of 4 | 3 | 7 | trimmed to [3], then [3, 4] | A 3, B 7 |
//! | 3 | charge C of 1 | 6 | 7 | trimmed to [3, 3], then [3, 3, 1] | A 3, B 6, C 7 |
//! | 3 | give back all of B | 7 | 3 | [2, 0, 1] | A 2, C 3 |
//!
//! In the last call the 4 units of B are given back: the 3 of its own layer, and one of A's.
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
    /// `low`: what is refundable stays as it is up to `low`, becomes `low` if it lies between them, and falls by their
    /// difference if it is more. Must be called before other changes.
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
