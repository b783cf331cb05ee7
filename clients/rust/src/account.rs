//! What a call with an id has charged: one key or several, units or leases. It is ended key by key, now or in the background.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::ask::{Asked, Checked, Kind, Part};
use crate::leases::Leases;
use crate::{Decision, Error, Limits, Source};

/// When the keys of a call that was given up are released again, counted from the release before, unless a release has found the
/// id. The call may still be on its way: it and the release may have different connections, so the server may read it later, or may
/// see later that its connection is closed.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(900)];

/// One key of an [`Account`].
struct Entry {
    part: Part,
    /// The units that are charged.
    granted: u64,
    /// The reset of the decision.
    reset: Duration,
    /// The command that ends it may have been sent.
    sent: bool,
    /// It was a lease that had ended before.
    lost: bool,
}

/// How a charge ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All is given back, because the call was not granted as far as is known.
    Cancel,
    /// Estimates are given back.
    Release,
    /// Estimates stay.
    Keep,
    /// Estimates become what was used.
    Used(u64),
}

/// The keys that a call has charged under its id. If it is dropped, it is ended in the background.
pub(crate) struct Account {
    limits: Limits,
    pub(crate) id: Vec<u8>,
    /// The program has named the id: it may repeat the call.
    pub(crate) own_id: bool,
    /// What is not ended yet. The last one is ended first.
    entries: Vec<Entry>,
    /// What a drop does.
    pub(crate) end: End,
    /// The server has counted the charge.
    counted: bool,
    /// Where the call was made.
    runtime: Option<Handle>,
}

impl Account {
    /// An account of what a call is about to charge under its id. A call without one gets a new one.
    pub(crate) fn new(call: &mut Checked) -> Self {
        let own_id = call.id.is_some();
        let id = call.id.get_or_insert_with(|| uuid::Uuid::new_v4().simple().to_string().into_bytes()).clone();
        let entry = |part: &Part| Entry {
            part: part.clone(),
            granted: part.amount.units(),
            reset: Duration::ZERO,
            sent: false,
            lost: false,
        };
        let entries = call.parts.iter().map(entry).collect();
        let runtime = Handle::try_current().ok();
        Self { limits: call.limits.clone(), id, own_id, entries, end: End::Cancel, counted: false, runtime }
    }

    /// Nothing is charged, or what is charged stays: there is nothing to end.
    pub(crate) fn forget(&mut self) {
        self.entries.clear();
    }

    /// The account after its call. If the call has failed, what it may have charged is released.
    pub(crate) fn after(self, call: &Checked, asked: Result<Asked, Error>) -> Result<(Self, Asked), Error> {
        match asked {
            Ok(asked) => Ok((self, asked)),
            Err(error) => Err(self.failed(call.may_be_charged(&error), error)),
        }
    }

    /// After a failure: what is charged is released in the background, unless the program may repeat the call with its own id.
    pub(crate) fn failed(mut self, may_be_charged: bool, error: Error) -> Error {
        if self.own_id || !may_be_charged {
            self.forget();
        }
        error
    }

    /// The units that were granted, in the order of the entries. If they were granted without the server, and it can't have charged
    /// them, there is nothing to end.
    pub(crate) fn granted(&mut self, decisions: &[Decision], may_be_charged: bool) {
        self.counted = decisions.iter().all(|decision| decision.source != Source::Down);
        for (entry, decision) in self.entries.iter_mut().zip(decisions) {
            (entry.granted, entry.reset) = (decision.granted, decision.reset());
        }
        self.end = End::Release;
        if !self.own_id && !may_be_charged {
            self.forget();
        }
    }

    /// The leases that the server has granted, by a call that was made at `since`.
    pub(crate) async fn leases(&self, since: Option<Instant>) -> Result<Arc<Leases>, Error> {
        let leases = self.entries.iter().filter(|entry| self.counted && entry.part.kind == Kind::Lease);
        let granted = leases.map(|entry| (entry.part.clone(), entry.reset)).collect();
        Leases::new(&self.limits, &self.id, granted, since).await
    }

    /// The call was denied, but an earlier one with this id may have been charged: all is given back.
    pub(crate) async fn cancel(&mut self) {
        self.counted = true;
        self.end().await;
    }

    /// Ends it, key by key, the last one first. Errors of the connection are logged. It takes about as long as one call at most,
    /// however many keys there are; the rest is then ended in the background. Returns whether a lease had ended before.
    pub(crate) async fn end(&mut self) -> bool {
        if !self.counted {
            // The server was down, so this is most likely in vain: the caller does not wait for it. If the server made the charge
            // after all, and lost its reply, it is set right.
            self.in_background();
            return false;
        }
        let longest = self.limits.timeout.saturating_add(self.limits.connect_timeout);
        let unknown = end_all(&self.limits, &mut self.entries, &self.id, self.end, true, longest).await;
        unknown.iter().any(|entry| entry.lost)
    }

    fn in_background(&mut self) {
        // Without a runtime nothing happens.
        let runtime = self.runtime.clone().or_else(|| Handle::try_current().ok());
        let Some(runtime) = runtime.filter(|_| !self.entries.is_empty()) else { return };
        // It owns no account: when a runtime shuts down, it drops the future, and that must not start another one.
        let (limits, id, end, counted) = (self.limits.clone(), mem::take(&mut self.id), self.end, self.counted);
        let mut entries = mem::take(&mut self.entries);
        // No one else uses the id, and the call may still be on its way.
        let pauses: &[Duration] = if self.own_id || counted { &[] } else { &AGAIN };
        runtime.spawn(async move {
            entries = end_all(&limits, &mut entries, &id, end, counted, Duration::MAX).await;
            for pause in pauses {
                if entries.is_empty() {
                    return;
                }
                tokio::time::sleep(*pause).await;
                entries = end_all(&limits, &mut entries, &id, end, counted, Duration::MAX).await;
            }
        });
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.in_background();
    }
}

/// Ends what is there, the last one first, for about as long at most. Errors are logged if the charge was `counted`. Returns those whose
/// keys do not know the id.
async fn end_all(
    limits: &Limits,
    entries: &mut Vec<Entry>,
    id: &[u8],
    end: End,
    counted: bool,
    longest: Duration,
) -> Vec<Entry> {
    let (began, mut unknown) = (Instant::now(), Vec::new());
    while let Some(entry) = entries.last_mut() {
        let ended = entry.end(limits, id, end).await;
        let entry = entries.pop();
        match ended {
            Ok(false) => unknown.extend(entry),
            Err(error) if counted => limits.warn(&error, "a charge or a lease is not ended"),
            Ok(true) | Err(_) => {}
        }
        if began.elapsed() >= longest {
            break;
        }
    }
    unknown.reverse();
    unknown
}

impl Entry {
    /// Settles or releases it. Returns whether the key has known the id.
    async fn end(&mut self, limits: &Limits, id: &[u8], end: End) -> Result<bool, Error> {
        let Part { limit, key, kind, .. } = &self.part;
        let units = match (kind, end) {
            (Kind::Lease, _) | (_, End::Cancel) | (Kind::Estimate, End::Release) => None,
            (Kind::Estimate, End::Used(used)) => Some(used),
            (Kind::Cost, _) | (Kind::Estimate, End::Keep) => Some(self.granted),
        };
        let first = !mem::replace(&mut self.sent, true);
        let (ended, sent) = limit.end(limits, key, id, units).await?;
        if ended.is_some() || !first || sent > 1 {
            return Ok(ended.is_some());
        }
        // It was sent once: the key has forgotten the id. So the estimate is no longer charged apart from its period; what was used
        // beyond it never was, and is charged once.
        self.lost = *kind == Kind::Lease;
        let excess = units.unwrap_or_default().saturating_sub(self.granted);
        if excess > 0 {
            limit.force_at(limits, key, excess).await?;
        }
        Ok(excess > 0)
    }
}
