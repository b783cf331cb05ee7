//! A shared connection that is opened when a call needs it, and opened again after it was lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::Mutex;

use super::{Answer, Call, TIMEOUT};

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
}

pub(super) struct Redial<F> {
    pub(super) find: F,
    pub(super) response_timeout: Duration,
    live: RwLock<Option<Live>>,
    /// Whoever holds it opens a connection; others wait for it.
    opening: Mutex<()>,
}

impl<F: Find> Redial<F> {
    pub(super) fn new(find: F) -> Self {
        Self { find, response_timeout: TIMEOUT, live: RwLock::default(), opening: Mutex::default() }
    }

    fn live(&self) -> Option<Live> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|live| live.alive.load(Ordering::Acquire)).cloned()
    }

    async fn connection(&self) -> RedisResult<Live> {
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
            AsyncConnectionConfig::new().set_connection_timeout(Some(TIMEOUT)).set_response_timeout(Some(self.response_timeout));
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
        let live = Live { connection, alive };
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
        Ok(live)
    }

    pub(super) async fn call(&self, call: Call<'_>) -> RedisResult<Value> {
        let mut live = self.connection().await?;
        let reply = live.connection.send_packed_command(call.command).await.and_then(Value::extract_error);
        if let Err(error) = &reply {
            // A reply that is late leaves the connection as it is: replies come in order.
            if (error.is_unrecoverable_error() && !error.is_timeout()) || self.find.misled(error) {
                live.alive.store(false, Ordering::Release);
            }
        }
        reply
    }
}
