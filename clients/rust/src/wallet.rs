//! Decisions in the process: units that were charged in batches, spent one by one.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinHandle;

use crate::account::{Account, End};
use crate::amount::{check_units, Amount};
use crate::ask::{awaited, Checked, How, Kind, Part};
use crate::{Decision, Error, Key, Limit, Limits, RatePolicy, Source};

impl Limits {
    /// A wallet, which decides in the process: it charges units in batches, and spends them one by one.
    pub fn wallet<P: RatePolicy>(&self, limit: &Limit<P>, batch: u64) -> Result<Wallet, Error> {
        check_units(batch, 1)?;
        if limit.policy().is_lease() {
            return Err(Error::InvalidLimit("a lease is held, and not spent".to_string()));
        }
        let inner = Arc::new(Inner {
            limit: limit.erase(),
            batch,
            idle_us: AtomicU64::new(1_000_000),
            purses: DashMap::new(),
            closed: AtomicBool::new(false),
        });
        self.closes(Arc::downgrade(&inner));
        Ok(Wallet { inner })
    }
}

/// Decides in the process from batches of units that the server has charged.
///
/// It never spends more than the server has charged, and a batch only until the window in which it was charged is over: until nothing is in
/// use on the server, or for a period, whichever is shorter, counted from before the call. What is left is given back when no call has
/// taken units of its key for [`idle`](Self::idle), at once if a call is denied because the server can't add enough to it, and by
/// [`close`](Self::close). One batch of a key is fetched at a time; the calls of the key wait for it. Cheap to clone.
#[derive(Clone)]
pub struct Wallet {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    limit: Limit,
    batch: u64,
    idle_us: AtomicU64,
    purses: DashMap<Box<[u8]>, Purse>,
    closed: AtomicBool,
}

/// What is known of one key.
struct Purse {
    batch: Option<Batch>,
    /// When a call last took units.
    used: Instant,
    /// How many times a pause has begun: what was fetched before is not spent.
    pauses: u64,
    /// Whoever holds it may change the batch.
    gate: Arc<AsyncMutex<()>>,
    /// Gives the batch back when it is idle. It ends with its runtime.
    tidy: Option<JoinHandle<()>>,
}

/// Units that the server has charged. If it is dropped, what is left is given back.
struct Batch {
    /// It ends with what was spent.
    account: Account,
    /// The units that are not spent, and until when they may be spent.
    left: u64,
    ends: Instant,
    /// What the server has decided, and when it was asked.
    server: Decision,
    asked: Instant,
}

impl fmt::Debug for Wallet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wallet").field("limit", &self.inner.limit).field("batch", &self.inner.batch).finish_non_exhaustive()
    }
}

/// A call on a [`Wallet`].
#[must_use = "nothing is taken before the call is awaited"]
#[derive(Clone, Copy, Debug)]
pub struct Spend<'a, K: ?Sized> {
    wallet: &'a Wallet,
    key: &'a K,
    cost: u64,
}

impl<K: Key + ?Sized> Spend<'_, K> {
    /// How many units to take; 1 by default. A cost above the batch goes to the server.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    async fn send(self) -> Result<Decision, Error> {
        let (wallet, own) = (&self.wallet.inner, self.key.bytes());
        match wallet.begin(&own, self.cost)? {
            Some(decision) => Ok(decision),
            None => wallet.clone().take(wallet.limit.key(self.key)?, own.into(), self.cost).await,
        }
    }
}

awaited!(['a, K: Key + Sync + ?Sized] Spend<'a, K> => Decision, 'a);

impl Wallet {
    /// After how long without a call that takes units what is left of a batch is given back; a second by default.
    #[must_use]
    pub fn idle(self, idle: Duration) -> Self {
        self.inner.idle_us.store(u64::try_from(idle.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self
    }

    /// Takes a unit of this key: in the process if a batch has it, and else from a new batch.
    pub fn take<'a, K: Key + ?Sized>(&'a self, key: &'a K) -> Spend<'a, K> {
        Spend { wallet: self, key, cost: 1 }
    }

    /// Gives back what is left of all batches. Later calls return [`Error::Closed`].
    pub async fn close(&self) {
        self.inner.close().await;
    }

    #[cfg(feature = "tower")]
    pub(crate) fn limits(&self) -> &Limits {
        self.inner.limit.limits()
    }
}

impl Inner {
    /// Decides without a call, if that is possible.
    fn begin(&self, own: &[u8], cost: u64) -> Result<Option<Decision>, Error> {
        Amount::Cost(cost).check()?;
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        Ok(self.purses.get_mut(own).and_then(|mut purse| purse.spend(cost)))
    }

    /// Decides by the server: by a new batch, or for this call alone.
    async fn take(self: Arc<Self>, key: Vec<u8>, own: Box<[u8]>, cost: u64) -> Result<Decision, Error> {
        // No batch has so many units; or no key ever has.
        if cost > self.batch.min(self.limit.policy().capacity()) {
            let decision = self.limit.take(&*own).cost(cost).await?;
            // What is missing may be here.
            if decision.allowed() || decision.wait_ms.is_none() || !self.give_back(&own).await {
                return Ok(decision);
            }
            return self.limit.take(&*own).cost(cost).await;
        }
        let gate = self.purses.entry(own.clone()).or_insert_with(Purse::new).gate.clone();
        let gate = match gate.clone().try_lock_owned() {
            Ok(gate) => gate,
            // Only one call asks a server that is down.
            Err(_) => match self.limit.limits().connection.down(&key) {
                Some(failure) => return self.without_server(failure.into(), key, cost),
                None => gate.lock_owned().await,
            },
        };
        if let Some(decision) = self.begin(&own, cost)? {
            return Ok(decision);
        }
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::InvalidArgument("a wallet needs a tokio runtime, and there is none here".to_string()));
        };
        let wallet = self.clone();
        // A task of its own: the batch that is on its way is not lost if the caller gives up.
        let filled = runtime.spawn(async move {
            let filled = wallet.fill(&own, cost).await;
            drop(gate);
            filled
        });
        filled.await.unwrap_or(Err(Error::Closed)).or_else(|error| self.without_server(error, key, cost))
    }

    fn call(&self, key: Vec<u8>, amount: Amount, how: How) -> Checked {
        let part = Part { limit: self.limit.clone(), key, amount, kind: Kind::Estimate };
        Checked { limits: self.limit.limits().clone(), parts: vec![part], how, id: None }
    }

    fn without_server(&self, error: Error, key: Vec<u8>, cost: u64) -> Result<Decision, Error> {
        Ok(self.call(key, Amount::Cost(cost), How::Now).without_server(error)?.first())
    }

    /// Fetches a batch, and takes units of it.
    async fn fill(self: &Arc<Self>, own: &[u8], cost: u64) -> Result<Decision, Error> {
        // What is left of the batch before is given back first, so that the new batch finds it.
        self.give_back(own).await;
        let pauses = self.purses.get_mut(own).map(|mut purse| {
            if purse.tidy.as_ref().is_none_or(JoinHandle::is_finished) {
                purse.tidy = Some(tokio::spawn(tidy(Arc::downgrade(self), own.into())));
            }
            purse.pauses
        });
        let (key, pauses) = (self.limit.key(own)?, pauses.ok_or(Error::Closed)?);
        // If there is no reply, what the server may have charged is released.
        let mut call = self.call(key.clone(), Amount::UpTo(self.batch), How::Now);
        let asked = Instant::now();
        let (mut account, reply) = Account::new(&mut call).after(&call, call.ask().await)?;
        let server = reply.first();
        if server.granted > self.batch {
            let text = format!("{} units, when asked for {}", server.granted, self.batch);
            return Err(Error::UnexpectedReply(text));
        }
        account.granted(std::slice::from_ref(&server), true);
        account.end = End::Used(0);
        let granted = server.granted;
        if granted == 0 {
            account.forget();
        }
        if granted < cost {
            // Others may need what came: a call that is denied takes and keeps no units.
            account.end().await;
            if granted == 0 && cost == 1 {
                return Ok(server);
            }
            // A policy key can't be asked what another call would get: the call is decided alone.
            if self.limit.policy().is_named() {
                return self.limit.take(own).cost(cost).await;
            }
            let denied = self.call(key, Amount::Cost(cost), How::Peek).ask().await?.first();
            let wait_ms = if denied.allowed() { Some(1) } else { denied.wait_ms };
            return Ok(Decision { granted: 0, wait_ms, ..denied });
        }
        // The server rounds up to a millisecond.
        let whole = server.reset().saturating_sub(Duration::from_millis(1)).min(self.limit.policy().rate().period.into());
        let ends = asked.checked_add(whole).unwrap_or(asked);
        let mut batch = Batch { account, left: granted, ends, server, asked };
        let decision = batch.spend(cost, asked);
        let stopped = self.purses.get_mut(own).is_none_or(|mut purse| {
            purse.used = Instant::now();
            purse.batch = Some(batch);
            purse.pauses != pauses
        });
        if stopped || self.closed.load(Ordering::SeqCst) {
            self.give_back(own).await;
        }
        Ok(decision)
    }

    /// Takes the batch from a purse, so that no one spends a unit of it any more, and settles it to what was spent: the server has the
    /// rest, and forgets the id. If nothing is left, that runs in the background. Returns whether something was left.
    async fn give_back(&self, own: &[u8]) -> bool {
        let batch = self.purses.get_mut(own).and_then(|mut purse| purse.batch.take());
        let Some(mut batch) = batch.filter(|batch| batch.left > 0) else { return false };
        batch.account.end().await;
        true
    }

    /// Lets no call spend what was fetched of a key up to now.
    pub(crate) fn stop(&self, key: &[u8], give_back: bool) {
        let Some(mut purse) = self.limit.own(key).and_then(|own| self.purses.get_mut(own)) else { return };
        purse.pauses += 1;
        purse.end();
        if give_back {
            purse.batch = None;
        }
    }

    fn idle(&self) -> Duration {
        Duration::from_micros(self.idle_us.load(Ordering::Relaxed)).max(Duration::from_millis(4))
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // A batch that is on its way finds that the wallet is closed, or is given back here.
        let purses: Vec<_> = self.purses.iter().map(|purse| (purse.key().clone(), purse.gate.clone())).collect();
        for (own, gate) in purses {
            let _held = gate.lock().await;
            self.give_back(&own).await;
        }
    }
}

impl Purse {
    fn new() -> Self {
        Self { batch: None, used: Instant::now(), pauses: 0, gate: Arc::default(), tidy: None }
    }

    fn spend(&mut self, cost: u64) -> Option<Decision> {
        let now = Instant::now();
        let batch = self.batch.as_mut().filter(|batch| batch.left >= cost && now < batch.ends)?;
        self.used = now;
        Some(batch.spend(cost, now))
    }

    /// Lets no call spend what is left.
    fn end(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.ends = batch.asked;
        }
    }
}

impl Batch {
    fn spend(&mut self, cost: u64, now: Instant) -> Decision {
        self.left -= cost;
        self.account.end = End::Used(self.server.granted - self.left);
        let Decision { limit, remaining, reset_ms, .. } = self.server;
        let passed = u64::try_from(now.duration_since(self.asked).as_millis()).unwrap_or(u64::MAX);
        Decision {
            granted: cost,
            remaining: (self.left + remaining).min(limit),
            wait_ms: Some(0),
            reset_ms: reset_ms.saturating_sub(passed),
            source: Source::Wallet,
            ..self.server.clone()
        }
    }
}

/// Gives a batch back when no call has taken units of its key for long enough, and then forgets the key.
async fn tidy(wallet: Weak<Inner>, own: Box<[u8]>) {
    loop {
        let pause = {
            let Some(wallet) = wallet.upgrade() else { return };
            let Some((used, gate)) = wallet.purses.get(&own).map(|purse| (purse.used, purse.gate.clone())) else { return };
            let left = wallet.idle().saturating_sub(used.elapsed());
            // Whoever holds it fetches a batch.
            if let (true, Ok(_held)) = (left.is_zero(), gate.try_lock()) {
                wallet.give_back(&own).await;
                // The purse and this task have the gate; a third one is a call that waits for it.
                let is_idle = |purse: &Purse| purse.batch.is_none() && Arc::strong_count(&purse.gate) <= 2;
                if wallet.purses.remove_if(&own, |_, purse| is_idle(purse)).is_some() {
                    return;
                }
            }
            left.max(wallet.idle() / 4)
        };
        tokio::time::sleep(pause).await;
    }
}
