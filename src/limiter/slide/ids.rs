//! Charges with an id, of SLIDE.
use super::{Next, View};
use crate::limiter::{Bytes, Change, Charge, Decision, Id, Overflow, Request, Settlement};

impl View<'_> {
    pub(in crate::limiter) const fn has_ids(&self) -> bool {
        false
    }
    pub(in crate::limiter) const fn held(&self, _: Id<'_>) -> Option<u64> {
        None
    }
    pub(in crate::limiter) fn decide_with_ids<'r>(
        &self,
        request: Request<'r>,
    ) -> Result<(Decision, crate::limiter::Next<'r>), Overflow> {
        self.decide(request)
    }
    pub(in crate::limiter) fn store_with_ids(&self, next: &Next, _: &Charge<'_>, bytes: &mut Bytes) -> Change {
        self.store(next, bytes)
    }
    pub(in crate::limiter) fn settle(&self, _: Id<'_>, _: u64, _: &mut Bytes) -> Result<Option<Settlement>, Overflow> {
        Ok(None)
    }
}
