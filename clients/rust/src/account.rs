//! What a call with an id has charged: one key or several, units or leases. It is ended key by key, now or in the background.

use std::future::Future;
use std::mem;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::beat::Beat;
use crate::limit::{check_id, check_units, Amount};
use crate::send::{decision, Request};
use crate::{Decision, Error, IntoSpan, Limit, Limits, Source, Span};

/// What is logged if a charge can't be settled or released.
const NOT_ENDED: &str = "a charge or a lease is not ended";

/// When the keys of a call that was given up are released again, counted from the release before, unless a release has found the
/// id. The call may still be on its way: it and the release may have different connections, so the server may read it later, or may
/// see later that its connection is closed.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(900)];

/// What the caller of a call with an id has named.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    wait: Result<Option<Span>, Error>,
    pub(crate) id: Option<Vec<u8>>,
}

impl Options {
    pub(crate) fn new() -> Self {
        Self { wait: Ok(None), id: None }
    }

    pub(crate) fn wait(self, wait: impl IntoSpan) -> Self {
        Self { wait: Span::of_wait(wait), ..self }
    }

    pub(crate) fn id(self, id: &[u8]) -> Self {
        Self { id: Some(id.to_vec()), ..self }
    }

    /// The wait and the id, if they are valid.
    pub(crate) fn check(&self) -> Result<(Option<Span>, Option<Vec<u8>>), Error> {
        let wait = self.wait.clone()?;
        self.id.as_deref().map_or(Ok(()), check_id)?;
        Ok((wait, self.id.clone()))
    }
}

/// Runs a future in the background: on this runtime, or on that of the caller. Without a runtime nothing happens.
pub(crate) fn in_background(runtime: Option<&Handle>, future: impl Future<Output = ()> + Send + 'static) {
    if let Some(runtime) = runtime.cloned().or_else(|| Handle::try_current().ok()) {
        runtime.spawn(future);
    }
}

/// What a key is charged, and what becomes of it at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Units that are settled to what was used.
    Estimate,
    /// Units that stay charged.
    Cost,
    /// A lease, which is released.
    Lease,
}

/// One key of an [`Account`].
pub(crate) struct Entry {
    pub(crate) limit: Limit,
    pub(crate) key: Vec<u8>,
    pub(crate) kind: Kind,
    /// The units that are charged.
    granted: u64,
    /// The command that ends it may have been sent.
    sent: bool,
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
    id: Vec<u8>,
    /// The program has named the id: it may repeat the call.
    own_id: bool,
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
    /// An account of what a call is about to charge under this id, or under a new one.
    pub(crate) fn new(limits: Limits, id: Option<Vec<u8>>, entries: Vec<Entry>) -> Self {
        let own_id = id.is_some();
        let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string().into_bytes());
        Self { limits, id, own_id, entries, end: End::Cancel, counted: false, runtime: Handle::try_current().ok() }
    }

    pub(crate) fn id(&self) -> &[u8] {
        &self.id
    }

    pub(crate) fn has_own_id(&self) -> bool {
        self.own_id
    }

    /// Nothing is charged, or what is charged stays: there is nothing to end.
    pub(crate) fn forget(&mut self) {
        self.entries.clear();
    }

    /// After the call has failed: what it has charged, or may have charged, is released in the background, unless the program may
    /// repeat the call with its own id.
    pub(crate) fn failed(mut self, may_be_charged: bool) {
        if self.own_id || !(may_be_charged || self.counted) {
            self.forget();
        }
    }

    /// The units that were granted, in the order of the entries. If they were granted without the server, and it can't have charged
    /// them, there is nothing to end.
    pub(crate) fn granted<'a>(&mut self, decisions: impl IntoIterator<Item = &'a Decision>, may_be_charged: bool) {
        self.counted = true;
        for (entry, decision) in self.entries.iter_mut().zip(decisions) {
            entry.granted = decision.granted;
            self.counted &= decision.source != Source::Down;
        }
        self.end = End::Release;
        if !self.own_id && !may_be_charged {
            self.forget();
        }
    }

    /// Renews the leases among the entries from now on. The server has granted them after `since`.
    pub(crate) async fn beat(&self, since: Option<Instant>) -> Result<Beat, Error> {
        let mut beat = Beat::new(self.limits.clone(), self.id.clone());
        for entry in self.entries.iter().filter(|_| self.counted) {
            beat.hold(&entry.limit, &entry.key, since).await?;
        }
        Ok(beat)
    }

    /// How it ends if it is dropped.
    pub(crate) fn set_used(&mut self, used: u64) -> Result<(), Error> {
        check_units(used, 0)?;
        self.end = End::Used(used);
        Ok(())
    }

    /// The work is done: estimates stay, unless it was said what was used.
    pub(crate) fn keep(&mut self) {
        if self.end == End::Release {
            self.end = End::Keep;
        }
    }

    /// The call was denied, but an earlier one with this id may have been charged: all is given back.
    pub(crate) async fn cancel(&mut self) {
        self.counted = true;
        self.end().await;
    }

    /// Ends it, key by key, the last one first. Errors of the connection are logged. It takes about as long as one call at most,
    /// however many keys there are; the rest is then ended in the background. Returns whether a lease had ended before.
    pub(crate) async fn end(&mut self) -> bool {
        let mut lost = false;
        if !self.counted {
            // The server was down, so this is most likely in vain: the caller does not wait for it. If the server made the charge
            // after all, and lost its reply, it is set right.
            self.in_background();
            return lost;
        }
        let began = Instant::now();
        while let Some(entry) = self.entries.last_mut() {
            let (ended, had_ended) = entry.end(&self.limits, &self.id, self.end).await;
            if let Err(error) = ended {
                self.limits.warn(&error, NOT_ENDED);
            }
            lost |= had_ended;
            self.entries.pop();
            if began.elapsed() >= self.limits.timeout.saturating_add(self.limits.connect_timeout) {
                break;
            }
        }
        lost
    }

    fn in_background(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        // It owns no account: when a runtime shuts down, it drops the future, and that must not start another one.
        let (limits, id, end, counted) = (self.limits.clone(), mem::take(&mut self.id), self.end, self.counted);
        let mut entries = mem::take(&mut self.entries);
        // No one else uses the id, and the call may still be on its way.
        let pauses: &[Duration] = if self.own_id || counted { &[] } else { &AGAIN };
        in_background(self.runtime.as_ref(), async move {
            let mut unknown = end_all(&limits, &mut entries, &id, end, counted).await;
            for pause in pauses {
                if unknown.is_empty() {
                    return;
                }
                tokio::time::sleep(*pause).await;
                unknown = end_all(&limits, &mut unknown, &id, end, counted).await;
            }
        });
    }
}

/// Ends what is there, the last one first. Returns what the keys have not found, to be ended in the same order.
async fn end_all(limits: &Limits, entries: &mut Vec<Entry>, id: &[u8], end: End, counted: bool) -> Vec<Entry> {
    let mut unknown = Vec::new();
    while let Some(mut entry) = entries.pop() {
        match entry.end(limits, id, end).await.0 {
            Ok(None) => unknown.insert(0, entry),
            Err(error) if counted => limits.warn(&error, NOT_ENDED),
            Ok(Some(_)) | Err(_) => {}
        }
    }
    unknown
}

impl Drop for Account {
    fn drop(&mut self) {
        self.in_background();
    }
}

impl Entry {
    /// An entry that is about to be charged.
    pub(crate) fn new(limit: Limit, key: Vec<u8>, kind: Kind, cost: u64) -> Self {
        Self { limit, key, kind, granted: cost, sent: false }
    }

    /// Settles or releases it. Also returns whether it was a lease that had ended before.
    async fn end(&mut self, limits: &Limits, id: &[u8], end: End) -> (Result<Option<Decision>, Error>, bool) {
        let units = match (self.kind, end) {
            (Kind::Lease, _) | (_, End::Cancel) | (Kind::Estimate, End::Release) => None,
            (Kind::Estimate, End::Used(used)) => Some(used),
            (Kind::Cost, _) | (Kind::Estimate, End::Keep) => Some(self.granted),
        };
        let first = !mem::replace(&mut self.sent, true);
        match self.limit.end(limits, &self.key, id, units).await {
            // Nil, and it was sent once: the key has forgotten the id. So the estimate is no longer charged apart from its period;
            // what was used beyond it never was.
            Ok((None, 1)) if first => match units {
                Some(used) if used > self.granted => (self.force(limits, used - self.granted).await.map(Some), false),
                _ => (Ok(None), self.kind == Kind::Lease),
            },
            ended => (ended.map(|(decision, _)| decision), false),
        }
    }

    /// Charges what was used beyond the estimate, once.
    async fn force(&self, limits: &Limits, excess: u64) -> Result<Decision, Error> {
        let command = |_| {
            let mut command = self.limit.command(&self.key);
            command.arg(&*self.limit.words().0);
            Amount::Force(excess).push(&mut command);
            command
        };
        let request = Request { command: &command, key: &self.key, repeat: false, wait: None, forced: true };
        decision(&limits.send(request).await?.value, self.limit.policy(), self.limit.name())
    }
}
