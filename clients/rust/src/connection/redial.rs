//! A shared connection that is opened when a call needs it, and opened again after it was lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::Mutex;

use super::{Answer, Call, Home};

/// Finds the server to connect to.
pub(super) trait Find: Send + Sync + 'static {
    fn client(&self) -> Answer<'_, Client>;

    /// Whether an error means that the connection leads to the wrong server.
    fn misled(&self, error: &RedisError) -> bool;
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Turns false when the connection is lost.
    alive: Arc<AtomicBool>,
    /// How many replies have arrived.
    replies: Arc<AtomicU64>,
    home: Home,
}

/// A call that stays unanswered for less than this says nothing about its connection: its caller may have given up early.
const SILENCE: Duration = Duration::from_millis(100);

/// Watches a call. If it ends unanswered, and no other call got a reply meanwhile, the connection leads nowhere: replies come in
/// order. Then the next call opens another connection.
struct Watch<'a> {
    live: &'a Live,
    began: Instant,
    replies: u64,
}

impl<'a> Watch<'a> {
    fn new(live: &'a Live) -> Self {
        Self { live, began: Instant::now(), replies: live.replies.load(Ordering::Acquire) }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let silent = self.live.replies.load(Ordering::Acquire) == self.replies;
        if silent && self.began.elapsed() >= SILENCE {
            self.live.alive.store(false, Ordering::Release);
        }
    }
}

pub(super) struct Redial<F> {
    pub(super) find: F,
    /// How long to wait for a reply, if the program has said that; a call is given up after its patience in any case.
    pub(super) response_timeout: Option<Duration>,
    live: RwLock<Option<Live>>,
    /// Whoever holds it opens a connection; others wait for it.
    opening: Mutex<()>,
}

impl<F: Find> Redial<F> {
    pub(super) fn new(find: F) -> Self {
        Self { find, response_timeout: None, live: RwLock::default(), opening: Mutex::default() }
    }

    fn live(&self) -> Option<Live> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|live| live.alive.load(Ordering::Acquire) && !live.home.is_gone()).cloned()
    }

    async fn connection(&self, patience: Duration) -> RedisResult<Live> {
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let _opening = self.opening.lock().await;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let client = self.find.client().await?;
        let alive = Arc::new(AtomicBool::new(true));
        let mut config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(patience)).set_response_timeout(self.response_timeout);
        // With RESP3 the crate `redis` reports that a connection was lost before a call finds out.
        if client.get_connection_info().redis_settings().protocol().supports_resp3() {
            let alive = alive.clone();
            config = config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    alive.store(false, Ordering::Release);
                }
                Ok::<(), ()>(())
            });
        }
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let live = Live { connection, alive, replies: Arc::default(), home: Home::new() };
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
        Ok(live)
    }

    pub(super) async fn call(&self, call: Call<'_>) -> RedisResult<Value> {
        let live = self.connection(call.patience).await?;
        let watch = Watch::new(&live);
        let mut connection = live.connection.clone();
        let reply = connection.send_packed_command(call.command).await.and_then(Value::extract_error);
        match &reply {
            Err(error) if error.is_timeout() => {}
            Err(error) if error.is_unrecoverable_error() || self.find.misled(error) => {
                live.alive.store(false, Ordering::Release);
            }
            _ => {
                live.replies.fetch_add(1, Ordering::AcqRel);
            }
        }
        drop(watch);
        reply
    }
}
