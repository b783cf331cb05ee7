//! Denials that the process remembers, so that it does not ask the server again before their wait is over.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ProtocolVersion, PushInfo, PushKind, RedisResult, Value};

use crate::account::in_background;
use crate::limits::Amount;
use crate::send::decision;
use crate::{AnyPolicy, Cause, Decision, Error, Limit, Limits, RatePolicy};

/// How many keys a cache remembers by default.
const KEYS: usize = 10_000;

/// A denial with less wait than this is not remembered: the wait would be over before the server has confirmed it.
const SHORTEST: Duration = Duration::from_millis(2);

impl Limits {
    /// A cache of denials: after a denial, the same key is not asked again before the wait is over. See [`Cached`].
    pub fn cached<P: RatePolicy>(&self, limit: &Limit<P>) -> Cached<P> {
        Cached { limit: limit.clone(), denials: Arc::new(Denials::new(KEYS)) }
    }
}

/// A limit that answers calls from denials that it remembers. A caller that asks again and again costs the server nothing then.
///
/// * After a denial, calls of the same key with the same cost or a higher one are denied in the process until the wait is over.
///   A call with a lower cost goes to the server.
/// * The cache is kept right by [tracking](https://redis.io/docs/latest/develop/reference/client-side-caching/): after a denial
///   it asks `RL.PEEK` on a connection of its own, so that the server tells when the key changes. Units that are given back, and a
///   key that is deleted, end the denial at once. If this connection is lost, all denials are forgotten. Without such a
///   connection nothing is remembered, and each call goes to the server.
/// * It remembers 10 000 keys; those that were not used for longest are forgotten first.
///
/// The connection speaks RESP3, whatever the others do. It needs a [`Limits::open`], a `Sentinel`, a `Cluster`, or a connection
/// named by [`Limits::waits_with`]. Cheap to clone.
///
/// ```no_run
/// # async fn example(limits: redis_rl_client::Limits) -> Result<(), redis_rl_client::Error> {
/// # use redis_rl_client::Gcra;
/// let api = limits.cached(&limits.limit("api", Gcra::new("10/m")?)?);
/// let decision = api.take("user:42", 1).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cached<P: AnyPolicy> {
    limit: Limit<P>,
    denials: Arc<Denials>,
}

impl<P: AnyPolicy> fmt::Debug for Cached<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").field("limit", &self.limit).field("keys", &self.len()).finish_non_exhaustive()
    }
}

struct Denials {
    table: Mutex<Table>,
    /// The tracking connections by the address of their server.
    connections: tokio::sync::Mutex<HashMap<String, Tracking>>,
}

#[derive(Clone)]
struct Tracking {
    connection: MultiplexedConnection,
    alive: Arc<AtomicBool>,
}

#[derive(Default)]
struct Table {
    most: usize,
    denials: HashMap<Vec<u8>, Denial>,
    /// The keys by the number of their last use.
    uses: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

struct Denial {
    used: u64,
    state: State,
}

enum State {
    /// The server is being asked to track the key. If the key changes meanwhile, this goes.
    Asking,
    Denied {
        until: Instant,
        cost: u64,
        decision: Decision,
    },
}

impl Table {
    fn touch(&mut self, key: &[u8]) {
        if let Some(denial) = self.denials.get_mut(key) {
            if let Some(key) = self.uses.remove(&denial.used) {
                self.next += 1;
                denial.used = self.next;
                self.uses.insert(self.next, key);
            }
        }
    }

    /// Notes that the server is asked about a key. Returns the number of the question; `None` if it is asked already.
    fn ask(&mut self, key: &[u8]) -> Option<u64> {
        if matches!(self.denials.get(key), Some(Denial { state: State::Asking, .. })) {
            return None;
        }
        self.forget(key);
        self.next += 1;
        self.denials.insert(key.to_vec(), Denial { used: self.next, state: State::Asking });
        self.uses.insert(self.next, key.to_vec());
        while self.denials.len() > self.most {
            let Some((_, oldest)) = self.uses.pop_first() else { break };
            self.denials.remove(&oldest);
        }
        Some(self.next)
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some(denial) = self.denials.remove(key) {
            self.uses.remove(&denial.used);
        }
    }

    fn clear(&mut self) {
        self.denials.clear();
        self.uses.clear();
    }
}

impl Denials {
    fn new(most: usize) -> Self {
        Self { table: Mutex::new(Table { most, ..Table::default() }), connections: tokio::sync::Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server pushes on a tracking connection.
    fn pushed(&self, push: &PushInfo, alive: &AtomicBool) {
        match push.kind {
            PushKind::Invalidate => match push.data.first() {
                Some(Value::Array(keys)) => {
                    let mut table = self.table();
                    for key in keys {
                        if let Value::BulkString(key) = key {
                            table.forget(key);
                        }
                    }
                }
                // All keys: FLUSHALL.
                _ => self.table().clear(),
            },
            PushKind::Disconnection => {
                alive.store(false, Ordering::Release);
                self.table().clear();
            }
            _ => {}
        }
    }

    async fn tracking(self: &Arc<Self>, client: &Client, patience: Duration) -> RedisResult<Tracking> {
        let address = client.get_connection_info().addr().to_string();
        let mut connections = self.connections.lock().await;
        connections.retain(|_, tracking| tracking.alive.load(Ordering::Acquire));
        if let Some(tracking) = connections.get(&address) {
            return Ok(tracking.clone());
        }
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        let alive = Arc::new(AtomicBool::new(true));
        let sender = {
            let (denials, alive) = (Arc::downgrade(self), alive.clone());
            move |push: PushInfo| {
                if let Some(denials) = denials.upgrade() {
                    denials.pushed(&push, &alive);
                }
                Ok::<(), ()>(())
            }
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(patience))
            .set_response_timeout(Some(patience))
            .set_push_sender(sender);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut command = redis::cmd("CLIENT");
        command.arg("TRACKING").arg("ON");
        connection.send_packed_command(&command).await?.extract_error()?;
        let tracking = Tracking { connection, alive };
        connections.insert(address, tracking.clone());
        Ok(tracking)
    }
}

impl<P: RatePolicy> Cached<P> {
    /// How many keys to remember; 10 000 by default. What was remembered is forgotten.
    pub fn keys(self, keys: usize) -> Self {
        Self { denials: Arc::new(Denials::new(keys)), ..self }
    }

    /// Takes so many units of this key.
    ///
    /// # Errors
    /// As [`Limit::take`].
    pub async fn take(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, Error> {
        let full = self.limit.key(key.as_ref())?;
        Amount::Cost(cost).check()?;
        if let Some(denied) = self.remembered(&full, cost) {
            return Ok(denied);
        }
        let decision = self.limit.take(key).cost(cost).await?;
        if let Some(wait) = decision.wait().filter(|wait| decision.denied() && *wait >= SHORTEST) {
            // A caller that waits for as long as it was told finds the denial over.
            let latest = Instant::now() + wait;
            let question = self.denials.table().ask(&full);
            if let Some(question) = question {
                let this = self.clone();
                in_background(None, async move { this.track(full, cost, question, latest).await });
            }
        }
        Ok(decision)
    }

    /// A denial that is remembered, with what is left of its wait.
    fn remembered(&self, key: &[u8], cost: u64) -> Option<Decision> {
        let mut table = self.denials.table();
        let State::Denied { until, cost: denied, decision } = &table.denials.get(key)?.state else { return None };
        let left = until.saturating_duration_since(Instant::now());
        if cost < *denied {
            return None;
        }
        if left.is_zero() {
            table.forget(key);
            return None;
        }
        let waited = decision.wait()?.saturating_sub(left);
        let decision = Decision {
            wait_ms: Some(millis(left)),
            reset_ms: millis(decision.reset().saturating_sub(waited)),
            ..decision.clone()
        };
        table.touch(key);
        Some(decision)
    }

    /// Asks the server, on a connection that it tracks, whether the key still denies, and remembers that.
    async fn track(self, key: Vec<u8>, cost: u64, question: u64, latest: Instant) {
        let confirmed = self.confirm(&key, cost).await;
        let mut table = self.denials.table();
        // The key has changed since the question, or the connection was lost.
        let Some(denial) = table.denials.get_mut(&key).filter(|denial| denial.used == question) else { return };
        match confirmed {
            Some((until, decision)) => denial.state = State::Denied { until: until.min(latest), cost, decision },
            None => table.forget(&key),
        }
    }

    async fn confirm(&self, key: &[u8], cost: u64) -> Option<(Instant, Decision)> {
        match self.ask(key, cost).await {
            Ok(confirmed) => confirmed,
            Err(error) => {
                // The connection leads to another node or server by now, or nowhere.
                self.denials.connections.lock().await.clear();
                self.denials.table().clear();
                self.limit.limits.warn(&Error::Down(Cause::new(error)), "denials are not remembered");
                None
            }
        }
    }

    async fn ask(&self, key: &[u8], cost: u64) -> RedisResult<Option<(Instant, Decision)>> {
        let Some(client) = self.limit.limits.client_for(key) else { return Ok(None) };
        let mut tracking = self.denials.tracking(&client.await?, self.limit.limits.own_patience()).await?;
        let asked = Instant::now();
        let reply = tracking.connection.send_packed_command(&self.peek(key, cost)).await?.extract_error()?;
        let decision = decision(&reply, self.limit.policy(), &self.limit.name).ok().filter(Decision::denied);
        Ok(decision.and_then(|decision| Some((asked + decision.wait()?, decision))))
    }

    fn peek(&self, key: &[u8], cost: u64) -> Cmd {
        let mut command = redis::cmd("RL.PEEK");
        command.arg(self.limit.policy().algorithm()).arg(key);
        self.limit.push_policy(&mut command);
        Amount::Cost(cost).push(&mut command);
        command
    }
}

impl<P: AnyPolicy> Cached<P> {
    /// How many keys have a denial that is remembered.
    pub fn len(&self) -> usize {
        self.denials.table().denials.values().filter(|denial| matches!(denial.state, State::Denied { .. })).count()
    }

    /// Whether no denial is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
