//! Denials that can be repeated without deciding again.

use super::record::MAX_LEN;
use super::{Alignment, Decision, Instant, View, Wait};
use crate::limiter::MIN_RECORD;

/// A denial of `COST 1` that holds for every call with the same policy while the key holds the same record, until the unit is free:
/// only the wait and the reset become shorter, by the time that has passed.
#[derive(Clone, Copy, Debug)]
pub struct LastingDenial {
    record: [u8; MAX_LEN],
    record_len: usize,
    /// The moment of the denial.
    from: Instant,
    /// The moment at which the unit is free.
    free_at: Instant,
    /// The moment at which nothing is used any more.
    reset_at: Instant,
    limit: u64,
}

impl LastingDenial {
    /// The decision on a call at `now` whose key holds `record`; `None` if it must be decided anew.
    #[inline(always)]
    pub fn repeated(&self, record: &[u8], now: Instant) -> Option<Decision> {
        // Not before `from`: if the clock is set back, the record may have a date in the future.
        let holds = self.from <= now && now < self.free_at && self.record.get(..self.record_len) == Some(record);
        holds.then(|| Decision {
            granted: 0,
            limit: self.limit,
            remaining: 0,
            wait: Wait::For(self.free_at.since(now)),
            reset: self.reset_at.since(now),
            retried: false,
        })
    }
}

impl View<'_> {
    /// The lasting form of this view's `decision` on `COST 1`; `None` if it is a grant, or may not last. `record` is the value of the
    /// key.
    #[inline(always)]
    pub(in crate::limiter) fn lasting_denial(&self, record: &[u8], decision: &Decision) -> Option<LastingDenial> {
        let (0, Wait::For(wait)) = (decision.granted, decision.wait) else { return None };
        // Under another policy than its own, and as a number of redis-cell, a record is only converted, with rounding. Ids are
        // forgotten one by one. A date in the future counts as `now`, whatever `now` is.
        let lasts = self.matches_policy
            && self.ids.is_none()
            && self.meter.alignment == Alignment::FirstCall
            && self.recorded_at <= self.now
            && record.len() >= MIN_RECORD
            && decision.remaining == 0;
        if !lasts {
            return None;
        }
        let mut copy = [0; MAX_LEN];
        copy.get_mut(..record.len())?.copy_from_slice(record);
        Some(LastingDenial {
            record: copy,
            record_len: record.len(),
            from: self.now,
            free_at: self.now.checked_add(wait)?,
            reset_at: self.now.checked_add(decision.reset)?,
            limit: decision.limit,
        })
    }
}
