//! `UNTIL time`: windows of FIXED that end when their callers say, at midnight in Berlin or on the first of the month.
//!
//! The record holds such a window like any other, dated one period before its end. So it needs no field for the end, and
//! callers without `UNTIL` see a window with the same end. The end is at most one period ahead, so the date is never in the
//! future.
//!
//! Callers can be wrong about the time, by seconds: at midnight some still state the end of the day that is over, and some
//! state the end of the next day too soon. So a window in force is only ever shortened, and a time that has passed
//! shortens nothing.

use super::{Grid, Level, Meter, View};
use crate::limiter::{Instant, Span, Wait};

impl Meter {
    /// See [`Policy::is_too_far_ahead`](crate::limiter::Policy::is_too_far_ahead).
    #[inline(always)]
    pub(in crate::limiter) const fn is_too_far_ahead(&self, now: Instant) -> bool {
        matches!(self.grid, Grid::Until(time) if time.since(now).as_us() > 2 * self.period_us)
    }

    /// The date of a window that begins at `now` and ends at `time`, at the latest after one period. If `time` has passed, the
    /// window ends at `time` plus as many whole periods as are needed.
    #[cold]
    pub(super) fn start_until(&self, time: Instant, now: Instant) -> Instant {
        let period = Span::from_us(self.period_us);
        if time > now {
            time.min(now.saturating_add(period)).saturating_sub(period)
        } else {
            now.saturating_sub(Span::from_us(now.since(time).as_us() % self.period_us))
        }
    }

    /// [`Meter::advance`]. Then the window in force ends at `time`, if that is earlier and lies ahead.
    #[cold]
    pub(super) fn advance_until(&self, time: Instant, level: Level, now: Instant) -> Level {
        let Level { at, used } = self.advance(level, now);
        Level { at: if time > now { at.min(self.start_until(time, now)) } else { at }, used }
    }

    /// With [`Grid::Until`], the date under this policy of a window that has the date `at` under the policy `old`: the window
    /// keeps its end. Otherwise a window keeps its beginning, so this is `at` itself.
    pub(super) fn with_end_of(&self, old: &Self, at: Instant) -> Instant {
        match self.grid {
            Grid::Until(_) => {
                at.saturating_add(Span::from_us(old.period_us)).saturating_sub(Span::from_us(self.period_us))
            }
            Grid::FirstCall | Grid::Align(_) => at,
        }
    }
}

impl View<'_> {
    /// The wait and the reset of a denied call whose policy has [`Grid::Until`], and which fits when `over` grains have drained.
    ///
    /// A denial does not write an earlier end into the record. Once `time` has passed, the same call shortens nothing, so it
    /// is denied until the end in the record. Only a booking can be made before `time`, under the earlier end.
    #[cold]
    pub(super) fn denied_until(&self, time: Instant, over: u128, ahead: Span, wait: Wait) -> (Wait, Span) {
        let Self { meter, now, level: Level { used, .. }, .. } = *self;
        let recorded = self.uncorrected();
        let reset = meter.reset(recorded, now);
        if used == 0 || wait == Wait::Never {
            return (wait, reset);
        }
        let by_record = meter.until(recorded, now, over).saturating_sub(ahead);
        // The windows in the record that end before `time`. The one after them ends at `time`.
        let period_us = i128::from(meter.period_us);
        let end_us = i128::from(recorded.at.as_us()) + period_us;
        let time_us = i128::from(time.as_us());
        let whole = (time_us - end_us).max(0).unsigned_abs().div_ceil(meter.period_us.into());
        let more = over.div_ceil(meter.grains(meter.limit)).saturating_sub(whole);
        let mut wait = by_record;
        if more > 0 {
            let begins_us = if whole == 0 { now.as_us().into() } else { end_us + (whole as i128 - 1) * period_us };
            let booked_us = i128::try_from(more - 1).unwrap_or(i128::MAX).saturating_mul(period_us).saturating_add(time_us)
                - i128::from(ahead.as_us());
            let booked = Instant::saturating(booked_us.max(begins_us));
            if now < booked && booked < time {
                wait = wait.min(booked.since(now));
            }
        }
        (Wait::For(wait), reset)
    }

    /// The level with the end that the record has, whatever the policy says.
    fn uncorrected(&self) -> Level {
        let Self { meter, now, level, recorded_at, .. } = *self;
        if level.used == 0 {
            return level;
        }
        let start = recorded_at.min(now);
        let into_us = now.since(start).as_us() % meter.period_us;
        Level { at: now.saturating_sub(Span::from_us(into_us)), used: level.used }
    }
}
