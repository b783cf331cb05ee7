//! One server: its shared connection, which is opened again after it was lost, the connections of waits, and whether it is down.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::{oneshot, Mutex as AsyncMutex};
use tokio::time::timeout;

use super::{Call, Failure};
use crate::breaker::{Attempt, Breaker};
use crate::Error;

/// A call that stays unanswered for less than this says nothing about its connection: its caller may have given up early.
const SILENCE: Duration = Duration::from_millis(100);

/// When a call that has found its server still down may be made again.
const AGAIN: Duration = Duration::from_millis(100);

/// How many connections of waits are kept for the next ones.
const IDLE: usize = 16;

/// Finds the server to connect to.
pub(super) enum Find {
    At(Client),
    By(AsyncMutex<SentinelClient>),
}

impl Find {
    async fn client(&self) -> RedisResult<Client> {
        let client = match self {
            Self::At(client) => client.clone(),
            Self::By(sentinels) => sentinels.lock().await.async_get_client().await?,
        };
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        Client::open(info.set_redis_settings(settings))
    }
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Turns false when the connection is lost.
    alive: Arc<AtomicBool>,
    /// How many replies have arrived.
    replies: Arc<AtomicU64>,
    /// Is closed when the runtime shuts down that drives the connection, because then a task on it ends.
    home: Arc<oneshot::Sender<()>>,
}

impl Live {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire) && !self.home.is_closed()
    }
}

pub(super) struct Node {
    find: Find,
    breaker: Breaker,
    shared: RwLock<Option<Live>>,
    /// Whoever holds it opens the shared connection; others wait for it.
    opening: AsyncMutex<()>,
    /// Connections of waits that have ended.
    idle: Mutex<Vec<Live>>,
}

impl Node {
    pub(super) fn new(find: Find) -> Self {
        let (shared, opening) = (RwLock::default(), AsyncMutex::default());
        Self { find, breaker: Breaker::default(), shared, opening, idle: Mutex::default() }
    }

    /// Sends a call once, unless the server is known to be down.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Value, Failure> {
        if call.block.is_some() && self.breaker.down().is_some() {
            // While one call asks whether the server is up, all others fail. One that waits may have no reply for hours, so another
            // one asks for it.
            let ping = redis::cmd("PING");
            let unsent = |error: Error| error.with_sent(false);
            match self.send(Call { command: &ping, block: None, asking: false, ..call }).await {
                Ok(_) | Err(Failure::Reply(_)) => {}
                Err(Failure::Down(error, pause)) => return Err(Failure::Down(unsent(error), pause)),
                Err(Failure::NoConnection(error) | Failure::Unanswered(error)) => {
                    return Err(Failure::NoConnection(unsent(error)));
                }
            }
        }
        self.send(call).await
    }

    async fn send(&self, call: Call<'_>) -> Result<Value, Failure> {
        let attempt = self.breaker.attempt(call.forced).map_err(|(error, pause)| Failure::Down(error, pause))?;
        let was_down = attempt.was_down;
        // A call that is made although the server is down does not take longer than one that is answered.
        let connect = if was_down && call.forced { call.connect_timeout.min(call.timeout) } else { call.connect_timeout };
        let down = |attempt: Attempt<'_>, error: Error, failure: fn(Error) -> Failure| {
            attempt.down(&error);
            Err(if was_down { Failure::Down(error, AGAIN) } else { failure(error) })
        };
        let live = match timeout(connect, self.connection(call.block.is_some(), connect)).await {
            Ok(Ok(live)) => live,
            Ok(Err(error)) => return down(attempt, Error::of_redis(error), Failure::NoConnection),
            Err(_) => return down(attempt, Error::in_time("no connection was made", connect, false), Failure::NoConnection),
        };
        let patience = call.block.unwrap_or_default().saturating_add(call.timeout);
        let (began, replies) = (Instant::now(), live.replies.load(Ordering::Acquire));
        // If the call ends unanswered, or is dropped, and no other call got a reply meanwhile, the connection leads nowhere: replies
        // come in order. Then the next call opens another connection.
        let watch = scopeguard::guard(&live, |live| {
            if live.replies.load(Ordering::Acquire) == replies && began.elapsed() >= SILENCE.min(call.timeout) {
                live.alive.store(false, Ordering::Release);
            }
        });
        let Ok(reply) = timeout(patience, send(live.connection.clone(), call)).await else {
            drop(watch);
            return down(attempt, Error::in_time("there was no reply", patience, true), Failure::Unanswered);
        };
        match &reply {
            Err(error) if is_lost(error) => {
                live.alive.store(false, Ordering::Release);
                return Err(Failure::Unanswered(Error::Unavailable { cause: Arc::new(error.clone()), sent: true }));
            }
            Err(error) if matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "UNBLOCKED" | "LOADING")) => {
                // A server that was the primary: its name may lead to another one by now.
                live.alive.store(false, Ordering::Release);
            }
            _ => {}
        }
        live.replies.fetch_add(1, Ordering::AcqRel);
        drop(watch);
        attempt.up();
        if call.block.is_some() && live.is_alive() {
            let mut idle = self.idle.lock();
            idle.push(live);
            idle.truncate(IDLE);
        }
        reply.map_err(Failure::Reply)
    }

    /// Why a call can't be made now, if the server is known to be down.
    pub(super) fn down(&self) -> Option<Failure> {
        self.breaker.down().map(|(error, pause)| Failure::Down(error, pause))
    }

    /// The shared connection, or one that no other call uses.
    async fn connection(&self, alone: bool, connect: Duration) -> RedisResult<Live> {
        if alone {
            let kept = {
                let mut idle = self.idle.lock();
                idle.retain(Live::is_alive);
                idle.pop()
            };
            return match kept {
                Some(live) => Ok(live),
                None => self.open(connect).await,
            };
        }
        let shared = || self.shared.read().clone().filter(Live::is_alive);
        if let Some(live) = shared() {
            return Ok(live);
        }
        let _opening = self.opening.lock().await;
        if let Some(live) = shared() {
            return Ok(live);
        }
        let live = self.open(connect).await?;
        *self.shared.write() = Some(live.clone());
        Ok(live)
    }

    async fn open(&self, connect: Duration) -> RedisResult<Live> {
        let client = self.find.client().await?;
        let alive = Arc::new(AtomicBool::new(true));
        let lost = alive.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect))
            // Each call has a time of its own.
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    lost.store(false, Ordering::Release);
                }
                Ok::<(), ()>(())
            });
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let (home, end) = oneshot::channel();
        tokio::spawn(async { drop(end.await) });
        Ok(Live { connection, alive, replies: Arc::default(), home: Arc::new(home) })
    }
}

async fn send(mut connection: MultiplexedConnection, call: Call<'_>) -> RedisResult<Value> {
    if !call.asking {
        return connection.send_packed_command(call.command).await?.extract_error();
    }
    // No other call may come between.
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(call.command.clone());
    let mut replies = connection.send_packed_commands(&both, 1, 1).await?;
    let none = || RedisError::from((ErrorKind::UnexpectedReturnType, "there is no reply after ASKING"));
    replies.pop().ok_or_else(none)?.extract_error()
}

/// Whether an error is no reply of the server, but the end of the connection.
fn is_lost(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
}
