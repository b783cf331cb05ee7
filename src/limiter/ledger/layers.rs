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
//! For FIXED, GCRA and BUCKET, whose level is the key's, weights are in grains (see [`meter`](crate::limiter::meter)).
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
        self.take(slots, sum.saturating_sub(level), part);
        sum.min(level)
    }

    /// Applies `map` to the m of each id, which is the sum of the layers up to its own, after a change of policy. `map` must
    /// be monotonic: a larger number never has a smaller result.
    pub(in crate::limiter) fn carry(&mut self, map: impl Fn(u128) -> u128) {
        let (mut before, mut after) = (0_u128, 0_u128);
        for index in 0..self.old_len() {
            let Some(slot) = self.slot(index) else { return };
            before = before.wrapping_add(slot.weight);
            let mapped = map(before);
            let weight = mapped.saturating_sub(after);
            after = mapped;
            if weight != slot.weight {
                self.set(index, Slot { weight, ..slot });
            }
        }
    }

    /// Subtracts `amount` from the weights of the slots in `range`, from the last one downwards, or as much as they hold.
    /// `part` masks the bits of a weight to subtract from. They must be the lowest bits, or `amount` must be a multiple of the
    /// lowest one.
    pub(in crate::limiter) fn take(&mut self, range: Range<usize>, mut amount: u128, part: u128) {
        let mut index = range.end;
        while amount > 0 && index > range.start {
            if index.is_multiple_of(BLOCK) && self.old_block(index / BLOCK - 1) & part == 0 {
                index -= BLOCK;
                continue;
            }
            index -= 1;
            let taken = (self.weight(index) & part).min(amount);
            if taken > 0 {
                let Some(slot) = self.slot(index) else { return };
                self.set(index, Slot { weight: slot.weight - taken, ..slot });
                amount -= taken;
            }
        }
    }
}
