//! Decisions in the process: units that were charged in batches, spent one by one.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::account::{in_background, Account, Entry, Kind};
use crate::limits::Amount;
use crate::send::{decision, Request};
use crate::{Cause, Decision, Error, Limit, Limits, Policy, RatePolicy, Span};

/// Keys are spread over so many maps, so that threads seldom meet at a lock.
const SHARDS: usize = 16;

/// The units of a purse are the lower bits of its state, and the number of its batch the upper bits.
const UNIT_BITS: u32 = 40;
const UNITS: u64 = (1 << UNIT_BITS) - 1;

/// How often a call looks again whether a batch has units for it, before it asks the server for its own units.
const ROUNDS: usize = 8;

impl Limits {
    /// A wallet, which decides in the process: it charges units in batches, and spends them one by one.
    ///
    /// # Errors
    /// [`Error::InvalidCost`] unless the batch is from 1 to 1000000000000; [`Error::InvalidLimit`] for a lease.
    pub fn wallet<P: RatePolicy>(&self, limit: &Limit<P>, batch: u64) -> Result<Wallet, Error> {
        Amount::UpTo(batch).check()?;
        if matches!(limit.policy(), Policy::Lease(_)) {
            return Err(Error::InvalidLimit("a lease is held, and not spent".to_string()));
        }
        let inner = Inner {
            limit: limit.erase(),
            batch,
            idle: AtomicU64::new(1_000_000_000),
            epoch: Instant::now(),
            shards: std::array::from_fn(|_| RwLock::default()),
            swept: AtomicBool::new(false),
            runtime: OnceLock::new(),
            closed: AtomicBool::new(false),
        };
        Ok(Wallet { inner: Arc::new(inner) })
    }
}

/// Decides in the process from batches of units that the server has charged.
///
/// * It never spends more than the server has charged, and at most one batch of a key is on its way at a time.
/// * A batch is spent only until the window in which it was charged is over: until nothing is in use on the server, or for a
///   period, whichever is shorter, counted from before the call. What is left of it then is lost.
/// * What is left of a batch is given back when its key was idle for [`idle`](Self::idle), and by [`close`](Self::close).
/// * So fewer calls may be granted than the limit allows: what one process holds in its wallet, others can't take. Choose a batch
///   that is a small share of the limit.
/// * While a batch is used up, the next call waits for the server, and so do the calls behind it.
///
/// It needs a tokio runtime. Cheap to clone.
///
/// ```no_run
/// # async fn example(limits: redis_rl_client::Limits) -> Result<(), redis_rl_client::Error> {
/// # use redis_rl_client::Slide;
/// let api = limits.limit("api", Slide::new("100000/m")?)?;
/// let wallet = limits.wallet(&api, 100)?;
/// if wallet.take("user:42").await?.allowed() { /* go on */ }
/// wallet.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Wallet {
    inner: Arc<Inner>,
}

struct Inner {
    limit: Limit,
    batch: u64,
    /// In nanoseconds.
    idle: AtomicU64,
    /// Times are nanoseconds since this moment, on the monotonic clock.
    epoch: Instant,
    shards: [Shard; SHARDS],
    /// A task gives back what is idle.
    swept: AtomicBool,
    /// Where the first batch was fetched.
    runtime: OnceLock<Handle>,
    closed: AtomicBool,
}

/// Purses by their keys, without the beginning that all keys of the limit have in common.
type Shard = RwLock<HashMap<Box<[u8]>, Arc<Purse>>>;

/// The units of one key.
struct Purse {
    key: Vec<u8>,
    /// The name of the limit: a copy, so that threads with different keys do not meet at its counter.
    name: Arc<str>,
    /// The number of the batch, and its units that are not spent. A batch that is sealed has no units, and its number is not used
    /// again; so whoever takes units by a compare-and-swap has seen the end of that same batch.
    state: AtomicU64,
    /// When the batch ends. Written only while the batch before is sealed, and before the new one is there.
    ends: AtomicU64,
    /// Until when calls of `denied_cost` or more are denied.
    denied_until: AtomicU64,
    denied_cost: AtomicU64,
    /// When a call last took units.
    used_at: AtomicU64,
    /// Of the last reply: the capacity, the units that remained on the server, and when nothing is in use there.
    capacity: AtomicU64,
    remaining: AtomicU64,
    resets: AtomicU64,
    /// Whoever holds it may change the batch.
    slow: Arc<Mutex<Slow>>,
}

#[derive(Default)]
struct Slow {
    /// The id of the batch, and its units.
    batch: Option<(Vec<u8>, u64)>,
    /// The last fetch that failed, and when it did.
    failed: Option<(Instant, Error)>,
}

impl fmt::Debug for Wallet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wallet").field("limit", &self.inner.limit).field("batch", &self.inner.batch).finish_non_exhaustive()
    }
}

/// A call on a [`Wallet`].
#[must_use = "nothing is taken before the call is awaited"]
#[derive(Clone, Copy, Debug)]
pub struct Spend<'a> {
    wallet: &'a Wallet,
    key: &'a [u8],
    cost: u64,
}

impl Spend<'_> {
    /// How many units to take; 1 by default. A cost above the batch goes to the server.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }
}

impl IntoFuture for Spend<'_> {
    type Output = Result<Decision, Error>;
    type IntoFuture = Spending;

    fn into_future(self) -> Spending {
        match self.wallet.try_take(self.key, self.cost) {
            Ok(Some(decision)) => Spending(Step::Decided(Some(Ok(decision)))),
            Err(error) => Spending(Step::Decided(Some(Err(error)))),
            Ok(None) => match self.wallet.inner.limit.key(self.key) {
                Ok(key) => {
                    let purse = self.wallet.inner.purse(&key);
                    Spending(Step::Asks(Box::pin(self.wallet.inner.clone().take(purse, self.cost))))
                }
                Err(error) => Spending(Step::Decided(Some(Err(error)))),
            },
        }
    }
}

/// The future of a [`Spend`]. If the process can decide, it is ready at once, and no memory was allocated.
pub struct Spending(Step);

enum Step {
    Decided(Option<Result<Decision, Error>>),
    Asks(Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>),
}

impl Future for Spending {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            // A future that was ready is not polled again; if it is, it never ends.
            Step::Decided(decision) => decision.take().map_or(Poll::Pending, Poll::Ready),
            Step::Asks(future) => future.as_mut().poll(context),
        }
    }
}

impl fmt::Debug for Spending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spending").finish_non_exhaustive()
    }
}

/// One key of a [`Wallet`], for programs that take from it often.
#[derive(Clone)]
pub struct Pocket {
    wallet: Arc<Inner>,
    purse: Arc<Purse>,
}

impl Pocket {
    /// As [`Wallet::try_take`].
    ///
    /// # Errors
    /// [`Error::InvalidCost`].
    pub fn try_take(&self, cost: u64) -> Result<Option<Decision>, Error> {
        Amount::Cost(cost).check()?;
        Ok(self.wallet.try_take(&self.purse, cost))
    }

    /// As [`Wallet::take`] with this cost.
    ///
    /// # Errors
    /// As all calls.
    pub async fn take(&self, cost: u64) -> Result<Decision, Error> {
        Amount::Cost(cost).check()?;
        self.wallet.clone().take(self.purse.clone(), cost).await
    }
}

impl fmt::Debug for Pocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pocket").field("key", &String::from_utf8_lossy(&self.purse.key)).finish_non_exhaustive()
    }
}

impl Wallet {
    /// After how long without a call what is left of a batch is given back; a second by default.
    pub fn idle(self, idle: Duration) -> Self {
        self.inner.idle.store(nanos(idle), Ordering::Relaxed);
        self
    }

    /// Takes a unit of this key: in the process if a batch has it, and else from a new batch.
    pub fn take<'a>(&'a self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Spend<'a> {
        Spend { wallet: self, key: key.as_ref(), cost: 1 }
    }

    /// The decision, if it can be made without a call: `None` if the batch has too few units.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`].
    pub fn try_take(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Option<Decision>, Error> {
        Amount::Cost(cost).check()?;
        let inner = &self.inner;
        let decided = inner.with_purse(key.as_ref(), |purse| inner.try_take(purse, cost));
        match decided {
            Some(decision) => Ok(decision),
            None => inner.limit.key(key).map(|_| None),
        }
    }

    /// One key, for programs that take from it often.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] if the key is empty.
    pub fn pocket(&self, key: impl AsRef<[u8]>) -> Result<Pocket, Error> {
        Ok(Pocket { wallet: self.inner.clone(), purse: self.inner.purse(&self.inner.limit.key(key)?) })
    }

    /// Gives back what is left of all batches. Calls that come later go to the server.
    pub async fn close(&self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        for purse in self.inner.all() {
            let mut slow = purse.slow.clone().lock_owned().await;
            if let Some(give_back) = self.inner.give_back(&purse, &mut slow) {
                give_back.await;
            }
        }
    }
}

impl Inner {
    fn now(&self) -> u64 {
        nanos(self.epoch.elapsed())
    }

    fn shard(&self, key: &[u8]) -> &Shard {
        // Cheap, because this only spreads locks; the map has a hasher that no caller can predict.
        let spread = key.iter().rev().take(8).fold(key.len(), |hash, &byte| hash.wrapping_mul(31) ^ usize::from(byte));
        &self.shards[spread % SHARDS]
    }

    fn with_purse<T>(&self, key: &[u8], look: impl FnOnce(&Purse) -> T) -> Option<T> {
        let shard = self.shard(key).read().unwrap_or_else(PoisonError::into_inner);
        shard.get(key).map(|purse| look(purse))
    }

    fn own<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        &key[self.limit.start_length()..]
    }

    /// The purse of a key on the server.
    fn purse(&self, key: &[u8]) -> Arc<Purse> {
        let own = self.own(key);
        let shard = self.shard(own);
        if let Some(purse) = shard.read().unwrap_or_else(PoisonError::into_inner).get(own) {
            return purse.clone();
        }
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        let purse = || {
            Arc::new(Purse {
                key: key.to_vec(),
                name: Arc::from(&*self.limit.name),
                state: AtomicU64::new(0),
                ends: AtomicU64::new(0),
                denied_until: AtomicU64::new(0),
                denied_cost: AtomicU64::new(0),
                used_at: AtomicU64::new(self.now()),
                capacity: AtomicU64::new(self.limit.policy().capacity()),
                remaining: AtomicU64::new(0),
                resets: AtomicU64::new(0),
                slow: Arc::default(),
            })
        };
        shard.entry(own.into()).or_insert_with(purse).clone()
    }

    fn all(&self) -> Vec<Arc<Purse>> {
        let purses =
            |shard: &Shard| shard.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect::<Vec<_>>();
        self.shards.iter().flat_map(purses).collect()
    }

    /// Decides without a call, if that is possible.
    fn try_take(&self, purse: &Purse, cost: u64) -> Option<Decision> {
        let now = self.now();
        let mut state = purse.state.load(Ordering::Acquire);
        while state & UNITS >= cost && now < purse.ends.load(Ordering::Acquire) {
            match purse.state.compare_exchange_weak(state, state - cost, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    purse.used_at.store(now, Ordering::Relaxed);
                    let left = (state - cost) & UNITS;
                    return Some(self.decision(purse, now, cost, left, Some(0)));
                }
                Err(other) => state = other,
            }
        }
        let until = purse.denied_until.load(Ordering::Acquire);
        if now < until && cost >= purse.denied_cost.load(Ordering::Acquire) && !self.closed.load(Ordering::Relaxed) {
            let wait_ms = (until - now).div_ceil(1_000_000);
            return Some(self.decision(purse, now, 0, state & UNITS, Some(wait_ms)));
        }
        None
    }

    fn decision(&self, purse: &Purse, now: u64, granted: u64, left: u64, wait_ms: Option<u64>) -> Decision {
        let limit = purse.capacity.load(Ordering::Relaxed);
        Decision {
            granted,
            limit,
            remaining: (left + purse.remaining.load(Ordering::Relaxed)).min(limit),
            wait_ms,
            reset_ms: purse.resets.load(Ordering::Relaxed).saturating_sub(now).div_ceil(1_000_000),
            counted: true,
            policy: self.limit.policy(),
            name: purse.name.clone(),
        }
    }

    async fn take(self: Arc<Self>, purse: Arc<Purse>, cost: u64) -> Result<Decision, Error> {
        let began = Instant::now();
        for _ in 0..ROUNDS {
            if let Some(decision) = self.try_take(&purse, cost) {
                return Ok(decision);
            }
            if cost > self.batch || self.closed.load(Ordering::SeqCst) {
                break;
            }
            let slow = purse.slow.clone().lock_owned().await;
            if let Some(decision) = self.try_take(&purse, cost) {
                return Ok(decision);
            }
            // Those that have waited for a fetch that failed do not try again one after the other.
            let failed = slow.failed.as_ref().filter(|(failed, _)| *failed >= began).map(|(_, error)| error.clone());
            let filled = match failed {
                Some(error) => Err(error),
                None => {
                    // A task of its own: units that are on their way are not lost if the caller gives up.
                    let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
                    self.runtime.get_or_init(|| runtime.clone());
                    let fill = self.clone().fill(purse.clone(), slow, cost);
                    runtime.spawn(fill).await.unwrap_or_else(|error| Err(Error::Down(Cause::new(error))))
                }
            };
            match filled {
                Ok(Filled::Units) => {}
                Ok(Filled::Denied(decision)) => return Ok(decision),
                Ok(Filled::TooLate) => break,
                Err(error) => return self.limit.or_open(error, cost),
            }
        }
        // The caller's own units, from the server.
        let request = |_| {
            let mut command = self.limit.command(&purse.key);
            Amount::Cost(cost).push(&mut command);
            command
        };
        let request = Request { command: &request, key: &purse.key, repeat: false, wait: None, replica: false };
        match self.limit.limits.send(request).await {
            Ok(reply) => decision(&reply.value, self.limit.policy(), &self.limit.name),
            Err(error) => self.limit.or_open(error, cost),
        }
    }

    /// Fetches a batch.
    async fn fill(self: Arc<Self>, purse: Arc<Purse>, mut slow: OwnedMutexGuard<Slow>, cost: u64) -> Result<Filled, Error> {
        // All of it takes as long as the patience at most. What is left of the batch before is given back first, so that the new
        // batch finds it; if the server is silent, that goes on in the background.
        let start = Instant::now();
        let patience = self.limit.limits.own_patience();
        let rest = |limits: &Limits| limits.clone().patience(patience.saturating_sub(start.elapsed()));
        if let Some(give_back) = self.give_back(&purse, &mut slow) {
            let _ = tokio::time::timeout(patience / 2, tokio::spawn(give_back)).await;
        }
        if self.closed.load(Ordering::SeqCst) {
            return Ok(Filled::TooLate);
        }
        // If there is no reply, what the server may have charged is released.
        let entry = Entry::new(self.limit.clone(), purse.key.clone(), Kind::Estimate, self.batch);
        let mut account = Account::new(None, vec![entry]);
        let id = account.id().to_vec();
        let amount = Amount::UpTo(self.batch);
        let command = |_: Option<Span>| {
            let mut command = self.limit.command(&purse.key);
            amount.push(&mut command);
            command.arg("ID").arg(&id);
            command
        };
        let began = self.now();
        let request = Request { command: &command, key: &purse.key, repeat: true, wait: None, replica: false };
        let reply = rest(&self.limit.limits).send(request).await;
        let fetched = reply.and_then(|reply| decision(&reply.value, self.limit.policy(), &self.limit.name));
        let fetched = match fetched.and_then(|fetched| self.at_most_a_batch(fetched)) {
            Ok(fetched) => fetched,
            Err(error) => {
                slow.failed = Some((Instant::now(), error.clone()));
                account.failed(&error, false);
                return Err(error);
            }
        };
        account.forget();
        slow.failed = None;
        self.sweep();
        purse.capacity.store(fetched.limit, Ordering::Relaxed);
        purse.remaining.store(fetched.remaining, Ordering::Relaxed);
        purse.resets.store(began.saturating_add(fetched.reset_ms.saturating_mul(1_000_000)), Ordering::Relaxed);
        if fetched.granted > 0 {
            // The server rounds up to a millisecond.
            let reset = fetched.reset_ms.saturating_sub(1).saturating_mul(1_000_000);
            let ends = began.saturating_add(reset.min(nanos(self.limit.policy().period().into())));
            slow.batch = Some((id, fetched.granted));
            purse.used_at.store(self.now(), Ordering::Relaxed);
            // The batch before is sealed and has no units, so no one takes a unit of it by the end of the new one.
            let sealed = purse.state.load(Ordering::Acquire);
            purse.ends.store(ends, Ordering::Release);
            purse.state.store(sealed.wrapping_add(1 << UNIT_BITS) & !UNITS | fetched.granted, Ordering::Release);
            if self.now() >= ends {
                return Ok(Filled::TooLate);
            }
            if fetched.granted >= cost {
                return Ok(Filled::Units);
            }
        }
        // Too few: how long until the server has the others?
        let missing = cost - fetched.granted;
        let denied = match fetched.granted {
            0 if cost == 1 => fetched,
            _ => self.peek(&rest(&self.limit.limits), &purse, missing).await?,
        };
        let now = self.now();
        let wait_ms = if denied.allowed() { Some(1) } else { denied.wait_ms };
        if let Some(wait_ms) = wait_ms {
            purse.denied_cost.store(cost, Ordering::Release);
            purse.denied_until.store(now.saturating_add(wait_ms.saturating_mul(1_000_000)), Ordering::Release);
        }
        let left = purse.state.load(Ordering::Acquire) & UNITS;
        Ok(Filled::Denied(self.decision(&purse, now, 0, left, wait_ms)))
    }

    /// A purse has room for a batch. More was not asked for.
    fn at_most_a_batch(&self, fetched: Decision) -> Result<Decision, Error> {
        match fetched.granted <= self.batch {
            true => Ok(fetched),
            false => Err(Error::UnexpectedReply(format!("{} units, when asked for {}", fetched.granted, self.batch))),
        }
    }

    async fn peek(&self, limits: &Limits, purse: &Purse, cost: u64) -> Result<Decision, Error> {
        let command = |_: Option<Span>| {
            let mut command = redis::cmd("RL.PEEK");
            command.arg(self.limit.policy().algorithm()).arg(&purse.key);
            self.limit.push_policy(&mut command);
            Amount::Cost(cost).push(&mut command);
            command
        };
        let request = Request { command: &command, key: &purse.key, repeat: true, wait: None, replica: false };
        decision(&limits.send(request).await?.value, self.limit.policy(), &self.limit.name)
    }

    /// Seals the batch: no one takes a unit of it any more. Returns what settles it to what was spent, so that the server has the
    /// rest and forgets the id. If nothing is left, that runs in the background.
    fn give_back(&self, purse: &Purse, slow: &mut Slow) -> Option<impl Future<Output = ()> + Send + 'static> {
        let (id, granted, left) = self.seal(purse, slow)?;
        let (limit, key) = (self.limit.clone(), purse.key.clone());
        let settle = async move {
            if let Err(error) = limit.end(&key, &id, Some(granted - left)).await {
                limit.limits.warn(&error, "units of a wallet are not given back");
            }
        };
        match left {
            // The next batch need not wait.
            0 => {
                in_background(None, settle);
                None
            }
            _ => Some(settle),
        }
    }

    /// The id of the batch, its units, and those that were left.
    fn seal(&self, purse: &Purse, slow: &mut Slow) -> Option<(Vec<u8>, u64, u64)> {
        let (id, granted) = slow.batch.take()?;
        let seal = |state: u64| Some(state.wrapping_add(1 << UNIT_BITS) & !UNITS);
        let before = match purse.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, seal) {
            Ok(before) | Err(before) => before,
        };
        Some((id, granted, before & UNITS))
    }

    /// Starts the task that gives back what is idle, unless it runs. It ends with the wallet.
    fn sweep(self: &Arc<Self>) {
        if self.swept.swap(true, Ordering::AcqRel) {
            return;
        }
        in_background(None, sweep(Sweeper(Arc::downgrade(self)), self.pause()));
    }

    /// How often to look for what is idle.
    fn pause(&self) -> Duration {
        Duration::from_nanos(self.idle.load(Ordering::Relaxed) / 4).max(Duration::from_millis(1))
    }

    async fn give_back_idle(&self) {
        let idle = self.idle.load(Ordering::Relaxed);
        for purse in self.all() {
            if self.now().saturating_sub(purse.used_at.load(Ordering::Relaxed)) < idle {
                continue;
            }
            // Whoever holds it fetches a batch: the key is not idle.
            if let Ok(mut slow) = purse.slow.clone().try_lock_owned() {
                if let Some(give_back) = self.give_back(&purse, &mut slow) {
                    give_back.await;
                }
            }
        }
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            // A purse that no one holds, without a batch.
            shard.retain(|_, purse| {
                let held = Arc::strong_count(purse) > 1 || purse.state.load(Ordering::Acquire) & UNITS > 0;
                held || self.now().saturating_sub(purse.used_at.load(Ordering::Relaxed)) < idle
            });
        }
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
        wallet.give_back_idle().await;
        pause = wallet.pause();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // If the runtime is gone, what is left stays charged until its period is over.
        let Some(runtime) = self.runtime.get().cloned() else { return };
        for purse in self.all() {
            if let Ok(mut slow) = purse.slow.clone().try_lock_owned() {
                if let Some((id, granted, left)) = self.seal(&purse, &mut slow) {
                    let (limit, key) = (self.limit.clone(), purse.key.clone());
                    in_background(Some(&runtime), async move {
                        let _ = limit.end(&key, &id, Some(granted - left)).await;
                    });
                }
            }
        }
    }
}

enum Filled {
    /// The batch has units for the call.
    Units,
    Denied(Decision),
    /// The batch has ended before its reply arrived, or the wallet is closed.
    TooLate,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
