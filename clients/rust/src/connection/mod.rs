//! How calls reach a server: what a [`Limits`](crate::Limits) sends its calls through.
//!
//! A [`Connection`] sends each call once. Repetition of calls with an id is the business of [`Limits`](crate::Limits).
//!
//! | connection | for | waits |
//! |---|---|---|
//! | [`Server`] | one server; [`Limits::open`](crate::Limits::open) makes one | on a connection of their own |
//! | `Sentinel` (feature `sentinel`) | the primary that Sentinel names | on a connection of their own |
//! | `Cluster` (feature `cluster`) | a cluster | on a connection of their own, to the node that has the key |
//! | [`ConnectionManager`], [`MultiplexedConnection`] | connections that a program has | by [`Limits::waits_with`](crate::Limits::waits_with) |
//! | `ClusterConnection` (feature `cluster`) | likewise; build its client with `retries(0)`, because it repeats lost calls otherwise | likewise |

mod redial;
mod server;

#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "sentinel")]
mod sentinel;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, Value};
use tokio::sync::oneshot;

#[cfg(feature = "cluster")]
pub use cluster::Cluster;
#[cfg(feature = "sentinel")]
pub use sentinel::Sentinel;
pub use server::Server;

/// A future with a result of the crate `redis`.
pub type Answer<'a, T = Value> = Pin<Box<dyn Future<Output = RedisResult<T>> + Send + 'a>>;

/// A command with its key.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The command.
    pub command: &'a Cmd,
    /// One of its keys. All of them have the same slot.
    pub key: &'a [u8],
    /// A replica may answer.
    pub replica: bool,
    /// How long the call may take besides its wait. Whoever sends it gives it up then; a connection that opens others for it gives
    /// up each of them after this time.
    pub patience: Duration,
}

/// Sends calls to a server.
pub trait Connection: Send + Sync + 'static {
    /// Sends a call once, on a connection that all calls share, to the node that has its key.
    fn call<'a>(&'a self, call: Call<'a>) -> Answer<'a>;

    /// Sends a call once, on a connection of its own, which closes when the answer is dropped. The reply may take as long as
    /// `timeout`. `None` if no other connection can be opened.
    fn call_alone<'a>(&'a self, call: Call<'a>, timeout: Duration) -> Option<Answer<'a>> {
        let _ = (call, timeout);
        None
    }

    /// A client of the server that has this key, for connections that watch it. `None` if no other connection can be opened.
    fn client_for<'a>(&'a self, key: &'a [u8]) -> Option<Answer<'a, Client>> {
        let _ = key;
        None
    }

    /// Whether two keys of one call may be at different nodes.
    fn has_slots(&self) -> bool {
        false
    }
}

impl<C: Connection + ?Sized> Connection for Arc<C> {
    fn call<'a>(&'a self, call: Call<'a>) -> Answer<'a> {
        (**self).call(call)
    }

    fn call_alone<'a>(&'a self, call: Call<'a>, timeout: Duration) -> Option<Answer<'a>> {
        (**self).call_alone(call, timeout)
    }

    fn client_for<'a>(&'a self, key: &'a [u8]) -> Option<Answer<'a, Client>> {
        (**self).client_for(key)
    }

    fn has_slots(&self) -> bool {
        (**self).has_slots()
    }
}

impl Connection for MultiplexedConnection {
    fn call<'a>(&'a self, call: Call<'a>) -> Answer<'a> {
        let mut connection = self.clone();
        Box::pin(async move { connection.send_packed_command(call.command).await?.extract_error() })
    }
}

impl Connection for ConnectionManager {
    fn call<'a>(&'a self, call: Call<'a>) -> Answer<'a> {
        let mut connection = self.clone();
        Box::pin(async move { connection.send_packed_command(call.command).await?.extract_error() })
    }
}

/// The crate `redis` panics if rustls has no default cryptography, so there is one: that of the program, or else ring.
#[cfg(feature = "tls")]
pub(crate) fn secure() {
    // It fails if there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(not(feature = "tls"))]
pub(crate) fn secure() {}

/// The runtime on which a connection was opened, and which drives it. When it shuts down, the connection is lost.
#[derive(Clone)]
pub(crate) struct Home(Arc<oneshot::Sender<()>>);

impl Home {
    /// The runtime of the caller. A task on it waits until the last copy of this is dropped.
    pub(crate) fn new() -> Self {
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let _ = receiver.await;
        });
        Self(Arc::new(sender))
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_closed()
    }
}

/// Opens a connection of its own for a call.
pub(crate) async fn alone(client: &Client, call: Call<'_>, timeout: Duration) -> RedisResult<Value> {
    let mut connection = open(client, call.patience, timeout).await?;
    connection.send_packed_command(call.command).await?.extract_error()
}

/// Opens a connection within `patience`, on which a reply may take as long as `timeout`.
pub(crate) async fn open(client: &Client, patience: Duration, timeout: Duration) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(patience)).set_response_timeout(Some(timeout));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// The slot of a key in a cluster: the CRC-16 (XMODEM) of its hash tag, or else of the whole key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let after = &key[key.iter().position(|&byte| byte == b'{')? + 1..];
        let tag = &after[..after.iter().position(|&byte| byte == b'}')?];
        (!tag.is_empty()).then_some(tag)
    };
    let step = |crc: u16, byte: &u8| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    };
    tag().unwrap_or(key).iter().fold(0, step) % 16_384
}

#[cfg(test)]
mod tests {
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(super::slot(b"123456789"), 0x31c3);
        assert_eq!(super::slot(b"{user1000}.following"), super::slot(b"user1000"));
        assert_eq!(super::slot(b"foo{}{bar}"), super::slot(b"foo{}{bar}"));
        assert_ne!(super::slot(b"foo{}{bar}"), super::slot(b"bar"));
        assert_eq!(super::slot(b"foo{{bar}}zap"), super::slot(b"{bar"));
    }
}
