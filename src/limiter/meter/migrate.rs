//! A change of policy on a live key: usage is carried over in units, not in time.

use super::{Drain, Grid, Level, Meter};
use crate::limiter::Instant;

impl Meter {
    /// Converts `used` grains under the policy `old` to grains under this policy, rounded up. Usage is carried over in units:
    /// raising the capacity frees the difference at once, lowering it frees nothing, and debt above the old capacity is
    /// carried over in full.
    #[cold]
    fn carry(&self, old: &Self, used: u128) -> u128 {
        // Rounding up costs the caller less than one grain: less than what drains in a microsecond.
        let (from, to) = (u128::from(old.grains_per_unit()), u128::from(self.grains_per_unit()));
        let used = (used / from).saturating_mul(to).saturating_add((used % from * to).div_ceil(from));
        let used = self.carry_units(old, used);
        if self.drain == Drain::Steps {
            // Usage is whole units, because no step drains a fraction of one.
            used.div_ceil(to).saturating_mul(to)
        } else {
            used
        }
    }

    /// [`Self::carry`] after the conversion to grains.
    fn carry_units(&self, old: &Self, used: u128) -> u128 {
        let capacity = self.grains(old.capacity);
        used.min(capacity).min(self.grains(self.capacity)).saturating_add(used.saturating_sub(capacity))
    }

    /// Converts grains that can be given back, as [`Meter::carry`] converts usage, but rounded down.
    pub(super) fn carry_down(&self, old: &Self, grains: u128) -> u128 {
        let (from, to) = (u128::from(old.grains_per_unit()), u128::from(self.grains_per_unit()));
        let grains = (grains / from).saturating_mul(to).saturating_add(grains % from * to / from);
        let grains = self.carry_units(old, grains);
        if self.drain == Drain::Steps {
            grains / to * to
        } else {
            grains
        }
    }

    /// The level at `now` of a record that was written at `written` under the policy `old`.
    ///
    /// Usage drains at the old rate until the policy changes, and at the new rate afterwards. The record does not show when
    /// the policy changed: this call may be the first one under the new policy, or a retry of an earlier call that was denied
    /// under it, since a denied call writes nothing. So the level is computed for a change at each of three moments: now,
    /// right after the record was written, and when the debt in the record was paid. The result is the lowest of the three
    /// levels, so that no caller waits longer than the new policy demands.
    #[cold]
    pub(super) fn migrate(&self, old: &Self, (level, written): (Level, Instant), now: Instant) -> Level {
        let level = Level { at: level.at.min(now), used: level.used };
        let debt = level.used.saturating_sub(old.grains(old.capacity));
        let paid = if debt == 0 { written } else { level.at.checked_add(old.until(level, level.at, debt)).unwrap_or(now) };
        let changed_at = |change: Instant| {
            let Level { at, used } = old.advance(level, change);
            if matches!(self.grid, Grid::Until(_)) && used == 0 && change.since(level.at).as_us() >= old.period_us {
                // No window is in force, so a new one begins.
                return Level { at: self.start(now), used: 0 };
            }
            // When steps change to a continuous flow, tokens flow from the change on, not from the last step.
            let at = if old.drain == Drain::Steps && self.drain == Drain::Smooth {
                change
            } else {
                self.with_end_of(old, at, now)
            };
            self.advance_aligned(Level { at, used: self.carry(old, used) }, now)
        };
        // Of two equal levels, the one that drains sooner counts.
        let least = |least: Level, other: Level| if (other.used, other.at) < (least.used, least.at) { other } else { least };
        least(least(changed_at(now), changed_at(written.min(now))), changed_at(paid.min(now)))
    }
}
