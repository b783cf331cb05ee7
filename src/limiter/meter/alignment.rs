//! Where the windows of FIXED begin and end.
//!
//! `UNTIL time`: a window ends when its callers say, such as at midnight in Berlin or on the first of the month. The record
//! holds such a window like any other, dated one period before its end. So it needs no field for the end, and callers
//! without `UNTIL` see a window with the same end. A window begins at most one period before its end, so the date is not in
//! the future.
//!
//! If a caller has a shorter period than the one before, the window in force keeps its end, which can then lie more than one
//! period ahead. In a [`View`] the date of such a window lies in the future. In a record such a date would mean that the
//! clock was set back. So the record keeps the former period until the end is near enough: [`View::lengthened`].
//!
//! Callers can be wrong about the time, by seconds: at midnight some still state the end of the day that is over, and some
//! state the end of the next day too soon. So the window in force is only ever shortened, and a time that has passed
//! shortens nothing.

use super::{Level, Meter, Next, View};
use crate::limiter::{Bytes, Change, Charge, Instant, RandomSeed, Span, Wait};

/// Where the windows of [`Drain::Windows`](super::Drain::Windows) begin and end. They are *aligned* if a caller says so:
/// [`Self::Align`] or [`Self::Until`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) enum Alignment {
    /// A window begins with its first call.
    FirstCall,
    /// Windows begin at each multiple of the period since the Unix epoch, shifted by this many microseconds.
    Align(i64),
    /// The window ends at this moment: see [the module](self).
    Until(Instant),
}

impl Meter {
    /// The date of a level that begins at `now`. [`Alignment::FirstCall`]: `now` itself. [`Alignment::Align`]: the start of the window
    /// that holds `now`. [`Alignment::Until`]: a period before the end of the window.
    #[inline]
    pub(super) fn start(&self, now: Instant) -> Instant {
        let offset_us = match self.alignment {
            Alignment::FirstCall => return now,
            Alignment::Align(offset_us) => offset_us,
            Alignment::Until(time) => return self.start_until(time, now),
        };
        let period_us = self.period_us as i64;
        // Both terms are less than a period in size, so one correction brings their difference back into 0 .. period.
        let into_us = match now.as_us().rem_euclid(period_us) - offset_us {
            into if into < 0 => into + period_us,
            into if into >= period_us => into - period_us,
            into => into,
        };
        Instant::from_us(now.as_us().saturating_sub(into_us))
    }

    /// [`Self::advance`]. With [`Alignment::Align`], this first moves the level's date to the start of the window that holds it.
    #[inline]
    pub(super) fn advance_aligned(&self, level: Level, now: Instant) -> Level {
        let at = match self.alignment {
            Alignment::Align(_) => self.start(level.at.min(now)),
            Alignment::FirstCall | Alignment::Until(_) => level.at,
        };
        self.advance(Level { at, used: level.used }, now)
    }

    /// See [`Policy::is_too_far_ahead`](crate::limiter::Policy::is_too_far_ahead).
    #[inline(always)]
    pub(in crate::limiter) const fn is_too_far_ahead(&self, now: Instant) -> bool {
        matches!(self.alignment, Alignment::Until(time) if time.since(now).as_us() > 2 * self.period_us)
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

    /// The date under this policy of a window that has the date `at` under the policy `old`; a date in the future counts as
    /// `now`. With [`Alignment::Until`] the window keeps its end, and its date can then lie in the future. Without, it keeps
    /// its beginning, so nobody waits for an end that the new period does not explain.
    pub(super) fn with_end_of(&self, old: &Self, at: Instant, now: Instant) -> Instant {
        let at = at.min(now);
        match self.alignment {
            Alignment::Until(_) => {
                at.saturating_add(Span::from_us(old.period_us)).saturating_sub(Span::from_us(self.period_us))
            }
            _ => at,
        }
    }
}

impl<'a> View<'a> {
    /// The date of the level for the record.
    #[inline(always)]
    pub(super) fn dated(&self) -> Instant {
        match self.meter.alignment {
            // The date in a record never decreases. Otherwise callers with different offsets that call in turn would move
            // the window's start further and further back.
            Alignment::Align(_) => self.level.at.max(self.recorded_at.min(self.now)),
            Alignment::FirstCall | Alignment::Until(_) => self.level.at,
        }
    }

    /// The view of a record whose level is `level` if the record alone says when its window ends. The window in force ends at
    /// `time`, if that is sooner and lies ahead.
    #[cold]
    pub(super) fn of_until(meter: &'a Meter, time: Instant, level: Level, matches_policy: bool, now: Instant) -> Self {
        // A window that has just begun ends at most one period ahead already.
        let at = if time > now { level.at.min(time.saturating_sub(Span::from_us(meter.period_us))) } else { level.at };
        let recorded_at = level.at;
        Self { meter, now, level: Level { at, used: level.used }, recorded_at, matches_policy, stored: &[], ids: None }
    }

    /// Calls `write` with a view under the policy of the next record, and with `next` under this policy. If the window in
    /// force ends more than one period ahead, this is the view's policy with the period of the present record. The window
    /// keeps its end.
    #[cold]
    fn lengthened<R>(&self, next: &Next, write: impl FnOnce(View<'_>, &Next) -> R) -> R {
        let period_us = self.other_record().map_or(self.meter.period_us, |old| old.meter.period_us);
        let meter = Meter { period_us, ..*self.meter };
        let moved =
            |at: Instant| at.saturating_add(Span::from_us(self.meter.period_us)).saturating_sub(Span::from_us(period_us));
        let level = |level: Level| Level { at: moved(level.at), used: level.used };
        let view = View { meter: &meter, level: level(self.level), recorded_at: moved(self.recorded_at), ..*self };
        let next_level = level(next.level);
        // By the record, a debt is paid by windows of the longer period.
        let drained = self.now.saturating_add(meter.reset(next_level, self.now));
        write(view, &Next { level: next_level, expires: next.expires.max(drained) })
    }

    /// [`Self::store`] of a level whose date lies in the future.
    #[cold]
    pub(super) fn store_lengthened(&self, next: &Next, bytes: &mut Bytes) -> Change {
        self.lengthened(next, |view, next| view.store(next, bytes))
    }

    /// [`Self::store_with_ids`], also of a level whose date lies in the future.
    pub(in crate::limiter) fn store_with_ids_lengthened(
        &self,
        next: &Next,
        charge: &Charge<'_>,
        random: RandomSeed,
        bytes: &mut Bytes,
    ) -> Change {
        if next.level.at > self.now {
            self.lengthened(next, |view, next| view.store_with_ids(next, charge, random, bytes))
        } else {
            self.store_with_ids(next, charge, random, bytes)
        }
    }

    /// The wait and the reset of a denied call whose policy has [`Alignment::Until`], and which fits when `over` grains have
    /// drained.
    ///
    /// A denial does not write a sooner end into the record. Once `time` has passed, the same call shortens nothing, so it is
    /// denied until the end in the record. Only a booking can be made before `time`, under the sooner end.
    ///
    /// ```text
    /// by record: how long until the call fits, if windows follow each other from the end in the record
    /// whole:     the windows of the record that end before `time`; the one after them ends at `time`
    /// more:      the windows that must end before the call fits, less these
    /// if more > 0, a booking fits from then on:
    ///     booked = `time` + (more - 1) periods - `ahead`, but not before the window that ends at `time` begins
    ///     if now < booked < `time`: wait until booked, if that is sooner than by record
    /// ```
    ///
    /// An example: windows of 10 s, a limit of 10 units, all of them used. The record says that the window ends at second
    /// 10, but the call, at second 2, states `time` = second 6, and books up to 3 s ahead. By the record the units are free
    /// at second 10, so the call could be made at 7. No window of the record ends before second 6, so `whole` is 0. One
    /// window must end, so `more` is 1, and `booked` is second 6 + 0 - 3 = 3. That lies between 2 and 6, so the wait is 1 s:
    /// a call at second 3 that states the same time books its units for second 6.
    #[cold]
    pub(super) fn denied_until(&self, time: Instant, over: u128, ahead: Span, wait: Wait) -> (Wait, Span) {
        let Self { meter, now, level, recorded_at, .. } = *self;
        let recorded = Level { at: recorded_at, used: level.used };
        let reset = meter.reset(recorded, now);
        if wait == Wait::Never {
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
            let later_us = i128::try_from(more - 1).unwrap_or(i128::MAX).saturating_mul(period_us);
            let booked_us = later_us.saturating_add(time_us - i128::from(ahead.as_us())).max(begins_us);
            let booked = Instant::saturating(booked_us);
            if now < booked && booked < time {
                wait = wait.min(booked.since(now));
            }
        }
        (Wait::For(wait), reset)
    }
}
