//! Decisions in the process: units that were charged in batches, spent one by one.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;

use crate::account::{in_background, Account, Entry, Kind};
use crate::limit::{check_units, Amount};
use crate::{Decision, Error, Key, Limit, Limits, RatePolicy, Source};

/// Keys are spread over so many maps, so that threads seldom meet at a lock.
const SHARDS: usize = 16;

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
            shards: std::array::from_fn(|_| Mutex::default()),
            swept: AtomicBool::new(false),
            runtime: OnceLock::new(),
            closed: AtomicBool::new(false),
        });
        self.closes(Arc::downgrade(&inner));
        Ok(Wallet { inner })
    }
}

/// Decides in the process from batches of units that the server has charged.
///
/// It never spends more than the server has charged, and a batch only until the window in which it was charged is over: until nothing is
/// in use on the server, or for a period, whichever is shorter, counted from before the call. What is left is given back when no call has
/// taken units of its key for [`idle`](Self::idle), and by [`close`](Self::close). One batch of a key is fetched at a time; the calls of
/// the key wait for it. Cheap to clone.
#[derive(Clone)]
pub struct Wallet {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    limit: Limit,
    batch: u64,
    idle_us: AtomicU64,
    shards: [Mutex<HashMap<Box<[u8]>, Purse>>; SHARDS],
    /// A task gives back what is idle.
    swept: AtomicBool,
    /// Where the first batch was fetched.
    runtime: OnceLock<Handle>,
    closed: AtomicBool,
}

/// The units of one key.
struct Purse {
    /// The id of the batch, and the units that were charged.
    batch: Option<(Vec<u8>, u64)>,
    /// The units that are not spent, and until when they may be spent.
    left: u64,
    ends: Instant,
    /// When a call last took units.
    used: Instant,
    /// The server's last reply: the capacity, the units that remained there, and when nothing is in use there.
    limit: u64,
    remaining: u64,
    resets: Instant,
    /// How many times a pause has begun: what was fetched before is not spent.
    pauses: u64,
    /// Whoever holds it may change the batch.
    gate: Arc<AsyncMutex<()>>,
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
}

impl<'a, K: Key + Sync + ?Sized> IntoFuture for Spend<'a, K> {
    type Output = Result<Decision, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let own = self.key.bytes();
            match self.wallet.inner.begin(&own, self.cost)? {
                Some(decision) => Ok(decision),
                None => self.wallet.inner.clone().take(self.wallet.inner.limit.key(self.key)?, own.into(), self.cost).await,
            }
        })
    }
}

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
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, HashMap<Box<[u8]>, Purse>> {
        // Cheap, because this only spreads locks; the map has a hasher that no caller can predict.
        let spread = key.iter().rev().take(8).fold(key.len(), |hash, &byte| hash.wrapping_mul(31) ^ usize::from(byte));
        self.shards[spread % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides without a call, if that is possible.
    fn begin(&self, own: &[u8], cost: u64) -> Result<Option<Decision>, Error> {
        Amount::Cost(cost).check()?;
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        let mut shard = self.shard(own);
        let Some(purse) = shard.get_mut(own) else { return Ok(None) };
        let now = Instant::now();
        if purse.left < cost || now >= purse.ends {
            return Ok(None);
        }
        purse.left -= cost;
        purse.used = now;
        Ok(Some(self.decision(purse, now, cost, Some(0))))
    }

    fn decision(&self, purse: &Purse, now: Instant, granted: u64, wait_ms: Option<u64>) -> Decision {
        let reset = purse.resets.saturating_duration_since(now).as_micros().div_ceil(1_000);
        Decision {
            granted,
            limit: purse.limit,
            remaining: (purse.left + purse.remaining).min(purse.limit),
            wait_ms,
            reset_ms: u64::try_from(reset).unwrap_or(u64::MAX),
            source: Source::Wallet,
            policy: self.limit.policy(),
            name: self.limit.name().clone(),
            window: self.limit.words().1,
        }
    }

    /// Decides by the server: by a new batch, or for this call alone.
    async fn take(self: Arc<Self>, key: Vec<u8>, own: Box<[u8]>, cost: u64) -> Result<Decision, Error> {
        // No batch has so many units; or no key ever has.
        if cost > self.batch.min(self.limit.policy().capacity()) {
            return self.limit.take(&*own).cost(cost).await;
        }
        let repeats = self.limit.limits().repeat_denials;
        let repeated = || (!repeats.is_zero()).then(|| self.limit.repeats().find(&key, cost)).flatten();
        if let Some(denied) = repeated() {
            return Ok(denied);
        }
        let gate = self.gate(&own);
        let gate = match gate.clone().try_lock_owned() {
            Ok(gate) => gate,
            // Only one call asks a server that is down.
            Err(_) => match self.limit.limits().connection.down(&key) {
                Some(failure) => return self.limit.without_server(failure.into(), &key, Amount::Cost(cost), false),
                None => gate.lock_owned().await,
            },
        };
        if let Some(decision) = self.begin(&own, cost)?.or_else(repeated) {
            return Ok(decision);
        }
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::InvalidArgument("a wallet needs a tokio runtime, and there is none here".to_string()));
        };
        self.runtime.get_or_init(|| runtime.clone());
        // A task of its own: the batch that is on its way is not lost if the caller gives up.
        let (wallet, filled_key) = (self.clone(), key.clone());
        let asked = Instant::now();
        let filled = runtime.spawn(async move {
            let filled = wallet.fill(&filled_key, &own, cost).await;
            drop(gate);
            filled
        });
        match filled.await.unwrap_or(Err(Error::Closed)) {
            Ok(decision) => {
                if !repeats.is_zero() {
                    self.limit.repeats().remember(&key, cost, asked, repeats, &decision);
                }
                Ok(decision)
            }
            Err(error) => self.limit.without_server(error, &key, Amount::Cost(cost), false),
        }
    }

    /// What the fetches of a key wait for each other at. The key has a purse from then on.
    fn gate(&self, own: &[u8]) -> Arc<AsyncMutex<()>> {
        let now = Instant::now();
        let limit = self.limit.policy().capacity();
        let purse = || Purse {
            batch: None,
            left: 0,
            ends: now,
            used: now,
            limit,
            remaining: 0,
            resets: now,
            pauses: 0,
            gate: Arc::default(),
        };
        self.shard(own).entry(own.into()).or_insert_with(purse).gate.clone()
    }

    /// Fetches a batch, and takes units of it.
    async fn fill(self: &Arc<Self>, key: &[u8], own: &[u8], cost: u64) -> Result<Decision, Error> {
        // What is left of the batch before is given back first, so that the new batch finds it.
        self.give_back(key, own).await;
        let pauses = self.shard(own).get(own).map_or(0, |purse| purse.pauses);
        // If there is no reply, what the server may have charged is released.
        let entry = Entry::new(self.limit.clone(), key.to_vec(), Kind::Estimate, self.batch);
        let mut account = Account::new(self.limit.limits().clone(), None, vec![entry]);
        let id = account.id().to_vec();
        let asked = Instant::now();
        let fetched = self.limit.take(own).amount(Amount::UpTo(self.batch)).id(&id).ask().await;
        let fetched = match fetched.and_then(|fetched| self.at_most_a_batch(fetched)) {
            Ok(fetched) => fetched,
            Err(error) => {
                account.failed(error.may_be_charged());
                return Err(error);
            }
        };
        account.forget();
        self.sweep();
        let (mut decided, mut paused) = (None, false);
        if let Some(purse) = self.shard(own).get_mut(own) {
            let after = |time: Duration| asked.checked_add(time).unwrap_or(asked);
            (purse.limit, purse.remaining, purse.resets) = (fetched.limit, fetched.remaining, after(fetched.reset()));
            // The server rounds up to a millisecond.
            let whole = fetched.reset().saturating_sub(Duration::from_millis(1));
            purse.ends = after(whole.min(self.limit.policy().rate().period.into()));
            if fetched.granted > 0 {
                (purse.batch, purse.left) = (Some((id, fetched.granted)), fetched.granted);
            }
            // A call that is denied takes no units, so that what others may need is given back soon.
            if fetched.granted >= cost {
                purse.left -= cost;
                purse.used = Instant::now();
                decided = Some(self.decision(purse, purse.used, cost, Some(0)));
            }
            paused = purse.pauses != pauses;
            if paused {
                purse.ends = asked;
            }
        }
        if paused || self.closed.load(Ordering::SeqCst) {
            self.give_back(key, own).await;
        }
        match decided {
            Some(decision) => Ok(decision),
            None if fetched.granted == 0 && cost == 1 => Ok(fetched),
            // Too few: how long until the server has the others?
            None => {
                let denied = self.limit.peek(own).cost(cost - fetched.granted).ask().await?;
                let wait_ms = if denied.allowed() { Some(1) } else { denied.wait_ms };
                Ok(Decision { granted: 0, wait_ms, ..denied })
            }
        }
    }

    /// A purse has room for a batch. More was not asked for.
    fn at_most_a_batch(&self, fetched: Decision) -> Result<Decision, Error> {
        match fetched.granted <= self.batch {
            true => Ok(fetched),
            false => Err(Error::UnexpectedReply(format!("{} units, when asked for {}", fetched.granted, self.batch))),
        }
    }

    /// Takes the batch from a purse, so that no one spends a unit of it any more, and settles it to what was spent: the server has the
    /// rest, and forgets the id. If nothing is left, that runs in the background.
    async fn give_back(&self, key: &[u8], own: &[u8]) {
        let Some((id, spent, left)) = self.shard(own).get_mut(own).and_then(Purse::seal) else { return };
        let settle = settle(self.limit.clone(), key.to_vec(), id, spent);
        match left {
            0 => in_background(None, settle),
            _ => settle.await,
        }
    }

    /// Lets no call spend what was fetched of a key up to now.
    pub(crate) fn stop(&self, key: &[u8], give_back: bool) {
        let Some(own) = self.limit.own(key) else { return };
        let mut shard = self.shard(own);
        let Some(purse) = shard.get_mut(own) else { return };
        purse.pauses += 1;
        purse.ends = Instant::now();
        let Some((id, spent, _)) = give_back.then(|| purse.seal()).flatten() else { return };
        drop(shard);
        in_background(self.runtime.get(), settle(self.limit.clone(), key.to_vec(), id, spent));
    }

    /// Starts the task that gives back what is idle, unless it runs. It ends with the wallet.
    fn sweep(self: &Arc<Self>) {
        if !self.swept.swap(true, Ordering::AcqRel) {
            in_background(None, sweep(Sweeper(Arc::downgrade(self)), self.idle() / 4));
        }
    }

    fn idle(&self) -> Duration {
        Duration::from_micros(self.idle_us.load(Ordering::Relaxed)).max(Duration::from_millis(4))
    }

    /// Gives back the batches of which nobody has taken units for this time, and forgets keys without a batch.
    async fn give_back_after(&self, idle: Duration, wait: bool) {
        for index in 0..SHARDS {
            let keys: Vec<_> = {
                let mut shard = self.shards[index].lock().unwrap_or_else(PoisonError::into_inner);
                let is_idle = |purse: &Purse| purse.used.elapsed() >= idle;
                shard.retain(|_, purse| purse.batch.is_some() || Arc::strong_count(&purse.gate) > 1 || !is_idle(purse));
                let idle = shard.iter().filter(|(_, purse)| purse.batch.is_some() && is_idle(purse));
                idle.map(|(own, purse)| (own.clone(), purse.gate.clone())).collect()
            };
            for (own, gate) in keys {
                // Whoever holds it fetches a batch.
                let held = if wait { Some(gate.lock().await) } else { gate.try_lock().ok() };
                if let (Some(_held), Ok(key)) = (held, self.limit.key(&*own)) {
                    self.give_back(&key, &own).await;
                }
            }
        }
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // A batch that is on its way finds that the wallet is closed, or is given back here.
        self.give_back_after(Duration::ZERO, true).await;
    }
}

impl Purse {
    /// Ends the batch: its id, the units that were spent of it, and those that were left.
    fn seal(&mut self) -> Option<(Vec<u8>, u64, u64)> {
        let (id, granted) = self.batch.take()?;
        let left = std::mem::take(&mut self.left);
        Some((id, granted - left, left))
    }
}

async fn settle(limit: Limit, key: Vec<u8>, id: Vec<u8>, spent: u64) {
    if let Err(error) = limit.end(limit.limits(), &key, &id, Some(spent)).await {
        limit.limits().warn(&error, "units of a wallet are not given back");
    }
}

/// Says that no task gives back what is idle, when that task ends: its runtime may shut down before the wallet is dropped.
struct Sweeper(Weak<Inner>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(wallet) = self.0.upgrade() {
            wallet.swept.store(false, Ordering::Release);
        }
    }
}

async fn sweep(sweeper: Sweeper, mut pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        let Some(wallet) = sweeper.0.upgrade() else { return };
        wallet.give_back_after(wallet.idle(), false).await;
        pause = wallet.idle() / 4;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // If the runtime is gone, what is left stays charged until its period is over.
        let Some(runtime) = self.runtime.get() else { return };
        for shard in &mut self.shards {
            for (own, mut purse) in shard.get_mut().unwrap_or_else(PoisonError::into_inner).drain() {
                if let (Some((id, spent, _)), Ok(key)) = (purse.seal(), self.limit.key(&*own)) {
                    in_background(Some(runtime), settle(self.limit.clone(), key, id, spent));
                }
            }
        }
    }
}
