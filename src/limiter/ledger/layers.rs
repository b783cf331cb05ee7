//! The weights of charges: how much of a charge can still be given back.
//!
//! For each id let m be the least that the level has been since the charge. At most m can be given back, because the rest has
//! drained: it was free for other calls, which may have taken it. The m of ids in the order of their charges never decrease, so a slot holds
//! only the difference to the slot before it, its weight, and m is a sum of weights. The weights are a stack of layers:
//!
//! * A charge adds a layer, so that its own m is the level after it.
//! * m = min(m, level) for all ids takes layers off the top, until their sum is the level ([`Edit::trim`]). It is needed only
//!   before a rise of the level: until then the level itself bounds what can be given back.
//! * To give back d of charge A takes d off the layers from A's own downwards ([`Edit::take`]): the m of A and of all later
//!   charges fall by d, and the m of earlier ones to A's.
//! * The layer of a forgotten id stays. It belongs to the m of the ids after it.
//!
//! So each call changes O(1) weights, amortized: a layer is used up once.
//!
//! In SLIDE each tick has its own level, the units that were granted in it, and so its own stack: the slots of that tick. The
//! lower half of a weight is the layer. The upper half counts units of the tick that were given back, but that the log still
//! holds: see [`slide`](crate::limiter::slide).

use std::ops::Range;

use super::{Edit, Slot, BLOCK};

/// The part of a weight that is the layer, of SLIDE.
pub(in crate::limiter) const LOWER: u128 = u64::MAX as u128;

impl Edit<'_> {
    /// Takes layers off the top of the given slots, whose sum is `sum`, until the sum is at most `level`. `part` is the part of
    /// weights that is the layer. Returns the new sum.
    pub(in crate::limiter) fn trim(&mut self, slots: Range<usize>, sum: u128, level: u128, part: u128) -> u128 {
        self.take(slots, sum.saturating_sub(level), part);
        sum.min(level)
    }

    /// After a change of policy: maps the m of each id, which is the sum of the layers up to its own. `map` must never map a larger
    /// number to a smaller result than a smaller one.
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

    /// Takes `amount` off the layers of the slots in `range`, from the last one downwards.
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
