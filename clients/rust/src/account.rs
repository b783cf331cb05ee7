//! What a call with an id has charged: one key or several, units or leases. It is ended key by key, now or in the background.

use std::future::Future;
use std::mem;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::limits::{check_id, check_used, new_id, Amount};
use crate::send::{decision, Request};
use crate::{Decision, Error, Limit, Policy, Span};

/// What is logged if a charge can't be settled or released.
const NOT_ENDED: &str = "a charge or a lease is not ended";

/// When the keys of a call that was given up are released again, counted from the release before, unless a release has found the
/// id. The call may still be on its way: it and the release have different connections, so the server may read it later, or may see
/// later that its connection is closed.
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

    pub(crate) fn wait<W: TryInto<Span>>(self, wait: W) -> Self
    where
        Error: From<W::Error>,
    {
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

/// What the calls with an id have in common: the setters `wait` and `id`, and that they are sent when they are awaited.
macro_rules! call_with_id {
    ($call:ident, $output:ty, $wait:literal, $id:literal) => {
        impl $call {
            #[doc = $wait]
            /// A `Duration`, or a text such as `"30s"`.
            pub fn wait<W: TryInto<crate::Span>>(self, wait: W) -> Self
            where
                crate::Error: From<W::Error>,
            {
                Self { options: self.options.wait(wait), ..self }
            }

            #[doc = $id]
            pub fn id(self, id: impl AsRef<[u8]>) -> Self {
                Self { options: self.options.id(id.as_ref()), ..self }
            }
        }

        impl std::future::IntoFuture for $call {
            type Output = Result<$output, crate::Error>;
            type IntoFuture = std::pin::Pin<Box<dyn std::future::Future<Output = Self::Output> + Send>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.send())
            }
        }
    };
}
pub(crate) use call_with_id;

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
    pub(crate) granted: u64,
    /// The command that ends it may have been sent.
    pub(crate) sent: bool,
}

/// How a charge ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All is given back.
    Release,
    /// What was charged stays, except leases. The keys forget the id.
    Keep,
    /// The estimates become what was used.
    Used(u64),
}

/// What has become of an account.
#[derive(Default)]
pub(crate) struct Ended {
    /// The last decision of the server.
    pub(crate) decision: Option<Decision>,
    /// A lease had ended before.
    pub(crate) lost: bool,
}

/// The keys that a call has charged under its id. If it is dropped, it is ended in the background.
pub(crate) struct Account {
    id: Vec<u8>,
    /// What is not ended yet. The last one is ended first.
    entries: Vec<Entry>,
    /// What a drop does.
    pub(crate) end: End,
    /// The server has counted the charge.
    pub(crate) counted: bool,
    /// The server may grant the call later, because no reply has arrived. No one else uses its id.
    open: bool,
    /// Where the call was made.
    runtime: Option<Handle>,
}

impl Account {
    /// An account of what a call is about to charge under this id, or under a new one.
    pub(crate) fn new(id: Option<Vec<u8>>, entries: Vec<Entry>) -> Self {
        let open = id.is_none();
        let id = id.unwrap_or_else(new_id);
        Self { id, entries, end: End::Release, counted: true, open, runtime: Handle::try_current().ok() }
    }

    pub(crate) fn id(&self) -> &[u8] {
        &self.id
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Nothing is charged, or what is charged stays: there is nothing to end.
    pub(crate) fn forget(&mut self) {
        self.entries.clear();
    }

    /// After the call has failed: what it may have charged is released in the background, unless the caller may repeat the call
    /// with its own id.
    pub(crate) fn failed(mut self, error: &Error, own_id: bool) {
        if own_id || !matches!(error, Error::Down(_) | Error::UnexpectedReply(_)) {
            self.forget();
        }
    }

    /// The units that were granted, in the order of the entries.
    pub(crate) fn granted<'a>(&mut self, decisions: impl IntoIterator<Item = &'a Decision>) {
        for (entry, decision) in self.entries.iter_mut().zip(decisions) {
            entry.granted = decision.granted;
            self.counted &= decision.counted;
        }
        self.open &= !self.counted;
    }

    /// How it ends if it is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidCost`].
    pub(crate) fn set_used(&mut self, used: u64) -> Result<(), Error> {
        check_used(used)?;
        self.end = End::Used(used);
        Ok(())
    }

    /// Ends it, key by key, the last one first. Errors of the connection are logged. It takes about as long as the patience at
    /// most, however many keys there are; the rest is then ended in the background.
    pub(crate) async fn end(&mut self) -> Ended {
        let mut ended = Ended::default();
        if !self.counted {
            // The server was down, so this is most likely in vain: the caller does not wait for it. If the server made the charge
            // after all, and lost its reply, it is set right.
            self.in_background();
            return ended;
        }
        let began = Instant::now();
        while let Some(entry) = self.entries.last_mut() {
            let (decision, lost) = entry.end(&self.id, self.end).await;
            ended.decision = decision.unwrap_or_else(|error| {
                entry.limit.limits.warn(&error, NOT_ENDED);
                None
            });
            ended.lost |= lost;
            let late = began.elapsed() >= entry.limit.limits.own_patience();
            self.entries.pop();
            if late {
                break;
            }
        }
        ended
    }

    fn in_background(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        // It owns no account: when a runtime shuts down, it drops the future, and that must not start another one.
        let (id, end, counted) = (mem::take(&mut self.id), self.end, self.counted);
        let mut entries = mem::take(&mut self.entries);
        let pauses: &[Duration] = if self.open { &AGAIN } else { &[] };
        in_background(self.runtime.as_ref(), async move {
            let mut unknown = end_all(&mut entries, &id, end, counted).await;
            for pause in pauses {
                if unknown.is_empty() {
                    return;
                }
                tokio::time::sleep(*pause).await;
                unknown = end_all(&mut unknown, &id, end, counted).await;
            }
        });
    }
}

/// Ends what is there, the last one first. Returns what the keys have not found, to be ended in the same order.
async fn end_all(entries: &mut Vec<Entry>, id: &[u8], end: End, counted: bool) -> Vec<Entry> {
    let mut unknown = Vec::new();
    while let Some(mut entry) = entries.pop() {
        match entry.end(id, end).await.0 {
            Ok(Some(_)) => {}
            Ok(None) => unknown.insert(0, entry),
            Err(error) if counted => entry.limit.limits.warn(&error, NOT_ENDED),
            Err(_) => {}
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
    async fn end(&mut self, id: &[u8], end: End) -> (Result<Option<Decision>, Error>, bool) {
        let units = match (self.kind, end) {
            (Kind::Lease, _) | (_, End::Release) => None,
            (Kind::Estimate, End::Used(used)) => Some(used),
            (Kind::Cost, End::Used(_)) | (_, End::Keep) => Some(self.granted),
        };
        let first = !mem::replace(&mut self.sent, true);
        match self.limit.end(&self.key, id, units).await {
            // Nil, and it was sent once: the key has forgotten the id. So the estimate is no longer charged apart from its period;
            // what was used beyond it never was.
            Ok((None, 1)) if first => match units {
                Some(used) if used > self.granted => (self.force(used - self.granted).await.map(Some), false),
                _ => (Ok(None), self.kind == Kind::Lease),
            },
            ended => (ended.map(|(decision, _)| decision), false),
        }
    }

    /// Charges what was used beyond the estimate, once.
    async fn force(&self, excess: u64) -> Result<Decision, Error> {
        let command = |_| {
            let mut command = self.limit.command(&self.key);
            Amount::Force(excess).push(&mut command);
            command
        };
        let request = Request { command: &command, key: &self.key, repeat: false, wait: None, replica: false };
        decision(&self.limit.limits.send(request).await?.value, self.limit.policy(), &self.limit.name)
    }
}

/// A charge of one key that was granted.
pub(crate) struct Opened {
    pub(crate) account: Account,
    pub(crate) decision: Decision,
    /// The server has granted it after this moment; `None` if that is not known.
    pub(crate) since: Option<Instant>,
}

/// Charges one key under an id: units, or a lease. If the future is dropped, what it may have charged is released.
pub(crate) async fn open(limit: Limit, key: Result<Vec<u8>, Error>, cost: u64, options: Options) -> Result<Opened, Error> {
    let key = key?;
    let amount = Amount::Cost(cost);
    amount.check()?;
    let (wait, id) = options.check()?;
    let own_id = id.is_some();
    let kind = if matches!(limit.policy(), Policy::Lease(_)) { Kind::Lease } else { Kind::Estimate };
    let mut account = Account::new(id, vec![Entry::new(limit.clone(), key.clone(), kind, cost)]);
    let id = account.id().to_vec();
    let command = |wait: Option<Span>| {
        let mut command = limit.command(&key);
        command.arg("ID").arg(&id);
        amount.push(&mut command);
        if let Some(wait) = wait {
            command.arg("BLOCK").arg(wait.to_string());
        }
        command
    };
    let since = wait.is_none().then(Instant::now);
    let reply = limit.limits.send(Request { command: &command, key: &key, repeat: true, wait, replica: false }).await;
    let granted = match reply.and_then(|reply| decision(&reply.value, limit.policy(), &limit.name)) {
        Ok(decision) => decision.or_denied(),
        Err(error) => limit.or_open(error, cost),
    };
    match granted {
        Ok(decision) => {
            account.granted([&decision]);
            Ok(Opened { account, decision, since })
        }
        Err(error) => {
            account.failed(&error, own_id);
            Err(error)
        }
    }
}

/// Watches whether leases are lost: one of them is no longer held, or was not renewed for a whole time to live.
pub(crate) mod beat {
    use tokio::sync::watch;
    use tokio::task::AbortHandle;

    use super::{Duration, Future, Handle, Instant};
    use crate::{Error, Lease, Limit};

    /// Renews leases until it is dropped.
    pub(crate) struct Beat {
        lost: watch::Receiver<bool>,
        sender: watch::Sender<bool>,
        tasks: Vec<AbortHandle>,
    }

    impl Beat {
        pub(crate) fn new() -> Self {
            let (sender, lost) = watch::channel(false);
            Self { lost, sender, tasks: Vec::new() }
        }

        /// Renews a lease at each third of its time to live. The server has granted it after `since`. If that is not known, because
        /// the call has waited or has continued an earlier one, it renews it at once.
        pub(crate) fn renew(&mut self, limit: Limit<Lease>, key: Vec<u8>, id: Vec<u8>, since: Option<Instant>) {
            if let Ok(runtime) = Handle::try_current() {
                let beats = beats(limit, key, id, since, self.sender.clone());
                self.tasks.push(runtime.spawn(beats).abort_handle());
            }
        }

        pub(crate) fn is_lost(&self) -> bool {
            *self.lost.borrow()
        }

        pub(crate) async fn lost(&self) {
            let mut lost = self.lost.clone();
            // It keeps the sender itself, so this ends only with a loss.
            if lost.wait_for(|lost| *lost).await.is_err() {
                std::future::pending::<()>().await;
            }
        }

        /// Runs a future. If a lease is lost, the future is dropped.
        pub(crate) async fn guard<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
            tokio::select! {
                biased;
                () = self.lost() => Err(Error::LeaseLost),
                ended = future => Ok(ended),
            }
        }

        pub(crate) fn stop(&mut self) {
            self.tasks.drain(..).for_each(|task| task.abort());
        }
    }

    impl Drop for Beat {
        fn drop(&mut self) {
            self.stop();
        }
    }

    async fn beats(limit: Limit<Lease>, key: Vec<u8>, id: Vec<u8>, since: Option<Instant>, lost: watch::Sender<bool>) {
        let ttl = Duration::from(limit.policy.ttl());
        let mut renewed = since.unwrap_or_else(Instant::now);
        let mut pause = since.map_or(Duration::ZERO, |since| (ttl / 3).saturating_sub(since.elapsed()));
        loop {
            tokio::time::sleep(pause).await;
            let asked = Instant::now();
            // Without an answer for a whole time to live, the lease has lapsed.
            let left = ttl.saturating_sub(renewed.elapsed());
            pause = match tokio::time::timeout(left, limit.renew_at(&key, &id)).await {
                Ok(Ok(decision)) if decision.granted > 0 => {
                    renewed = asked;
                    ttl / 3
                }
                Ok(Err(error)) if error.is_down() && renewed.elapsed() < ttl => {
                    limit.limits.warn(&error, "a lease is not renewed yet");
                    ttl / 30
                }
                _ => {
                    let _ = lost.send(true);
                    return;
                }
            };
        }
    }
}
