//! Limits: a connection, and what all limits on it have in common.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Client, IntoConnectionInfo};
use tokio::sync::watch;

use crate::connection::Connection;
use crate::local::Local;
use crate::{wallet, Error, Gcra};

/// What decides a call if the server gives no decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDown {
    /// The call returns [`Error::Unavailable`], [`Error::NoModule`] or [`Error::NotAllowed`].
    #[default]
    Closed,
    /// A decision grants what was asked for.
    Open,
    /// This process limits each key by itself, with this policy in place of that of the limit. It remembers 10 000 keys. Leases are
    /// granted.
    Local(Gcra),
}

/// A connection, and how its limits behave. Cheap to clone.
#[derive(Clone)]
pub struct Limits {
    pub(crate) connection: Connection,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) repeat_denials: Duration,
    pub(crate) prefix: Arc<[u8]>,
    on_down: OnDown,
    /// The keys of [`OnDown::Local`].
    local: Option<Arc<Mutex<Local>>>,
    shared: Arc<Shared>,
}

/// What all copies have in common.
struct Shared {
    let_through: AtomicU64,
    closed: watch::Sender<bool>,
    wallets: Mutex<Vec<Weak<wallet::Inner>>>,
    began: Instant,
    /// The milliseconds from `began` to the next moment at which something may be logged.
    log_at: AtomicU64,
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits")
            .field("prefix", &String::from_utf8_lossy(&self.prefix))
            .field("on_down", &self.on_down)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Limits {
    /// Limits on one server, at an address such as `redis://127.0.0.1/`. The connection is opened with the first call, so a
    /// program can start before its server.
    pub fn open(address: impl IntoConnectionInfo) -> Result<Self, Error> {
        let client = Client::open(address).map_err(|error| Error::InvalidArgument(error.to_string()))?;
        Ok(Self::new(client))
    }

    /// Limits on any [`Connection`]: a `redis::Client`, a `redis::sentinel::SentinelClient` or a
    /// [`Cluster`](crate::connection::Cluster).
    pub fn new(connection: impl Into<Connection>) -> Self {
        Self {
            connection: connection.into(),
            timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_secs(1),
            repeat_denials: Duration::ZERO,
            prefix: Arc::default(),
            on_down: OnDown::Closed,
            local: None,
            shared: Arc::new(Shared {
                let_through: AtomicU64::new(0),
                closed: watch::Sender::new(false),
                wallets: Mutex::default(),
                began: Instant::now(),
                log_at: AtomicU64::new(0),
            }),
        }
    }

    /// What each key begins with; nothing by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().into();
        self
    }

    /// What decides a call if the server gives no decision; [`OnDown::Closed`] by default.
    #[must_use]
    pub fn on_down(mut self, on_down: OnDown) -> Self {
        self.local = match on_down {
            OnDown::Local(gcra) => Some(Arc::new(Mutex::new(Local::new(gcra)))),
            OnDown::Closed | OnDown::Open => None,
        };
        self.on_down = on_down;
        self
    }

    /// How long a reply may take on an open connection; 0.25 s by default. A call that waits is not late before its wait is over.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a connection may take to open; 1 s by default. A call with an id whose connection was lost is repeated for the sum of
    /// both times; one that waits, until its wait is over.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a denial may be repeated in the process: [`Limit::take`](crate::Limit::take) and [`Limit::admit`](crate::Limit::admit) of the same key with the same cost
    /// are denied without a call for this time, or until the wait is over if that is sooner. At most 1 s; 0 by default.
    #[must_use]
    pub fn repeat_denials(mut self, time: Duration) -> Self {
        self.repeat_denials = time.min(Duration::from_secs(1));
        self
    }

    /// How many calls [`OnDown`] has let through without the server.
    pub fn let_through(&self) -> u64 {
        self.shared.let_through.load(Ordering::Relaxed)
    }

    /// The end, for all copies of these limits: calls that wait end with [`Error::Closed`], wallets give back what is left, and later
    /// calls return [`Error::Closed`]. Charges and leases can still be ended.
    pub async fn close(&self) {
        self.shared.closed.send_replace(true);
        let wallets = std::mem::take(&mut *self.shared.wallets.lock());
        for wallet in wallets.iter().filter_map(Weak::upgrade) {
            wallet.close().await;
        }
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match *self.shared.closed.borrow() {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// Waits until the limits are closed.
    pub(crate) async fn closed(&self) {
        // The sender lives as long as these limits.
        let _ = self.shared.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Closes this wallet with the limits.
    pub(crate) fn closes(&self, wallet: Weak<wallet::Inner>) {
        let mut wallets = self.shared.wallets.lock();
        wallets.retain(|wallet| wallet.strong_count() > 0);
        wallets.push(wallet);
    }

    /// Lets no wallet spend what was fetched of a key up to now.
    pub(crate) fn stop_wallets(&self, key: &[u8], give_back: bool) {
        let wallets = self.shared.wallets.lock().clone();
        for wallet in wallets.iter().filter_map(Weak::upgrade) {
            wallet.stop(key, give_back);
        }
    }

    /// Whether a program, or a request, goes on after any error: the limits are not closed without the server.
    #[cfg(feature = "tower")]
    pub(crate) fn goes_on(&self) -> bool {
        self.on_down != OnDown::Closed
    }

    /// Decides without the server, if this error says that it gave no decision, and [`OnDown`] does not return the error. `decide`
    /// gets the keys of [`OnDown::Local`]; what `goes_through` is counted.
    pub(crate) fn without_server<T>(
        &self,
        error: Error,
        decide: impl FnOnce(Option<&mut Local>) -> T,
        goes_through: impl FnOnce(&T) -> bool,
    ) -> Result<T, Error> {
        if !error.is_unavailable() || self.on_down == OnDown::Closed {
            return Err(error);
        }
        self.warn(&error, "calls are decided without the server");
        let decided = decide(self.local.as_ref().map(|local| local.lock()).as_deref_mut());
        self.shared.let_through.fetch_add(u64::from(goes_through(&decided)), Ordering::Relaxed);
        Ok(decided)
    }

    /// Logs an error and what to do about it, once a second at most.
    pub(crate) fn warn(&self, error: &Error, what: &str) {
        let now = u64::try_from(self.shared.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let log_at = self.shared.log_at.load(Ordering::Relaxed);
        let log = &self.shared.log_at;
        if now >= log_at && log.compare_exchange(log_at, now + 1_000, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let advice = if error.is_unavailable() { error.advice() } else { "see the error" };
            tracing::error!(%error, let_through = self.let_through(), "{what}: {advice}");
        }
    }
}
