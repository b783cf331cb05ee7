//! How calls reach a server: what a [`Limits`](crate::Limits) sends its calls through.
//!
//! | made from | for |
//! |---|---|
//! | a `redis::Client`; [`Limits::open`](crate::Limits::open) makes one | one server |
//! | a `redis::sentinel::SentinelClient` | the primary that Sentinel names |
//! | a [`Cluster`] | a cluster |
//!
//! All calls to a server share one connection. Calls that wait have connections of their own, which are used again. They are opened
//! when a call needs them, and speak RESP3, because only then the crate `redis` says at once that a connection has ended.

mod cluster;
mod node;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, Cmd, RedisError, Value};

use crate::Error;

pub use cluster::Cluster;
use node::{Find, Node};

/// One server, the primary that Sentinel names, or a cluster.
#[derive(Clone)]
pub struct Connection(Arc<Kind>);

enum Kind {
    One(Box<Node>),
    Cluster(Cluster),
}

impl From<Client> for Connection {
    fn from(client: Client) -> Self {
        Self::one(Find::At(client))
    }
}

impl From<redis::sentinel::SentinelClient> for Connection {
    fn from(client: redis::sentinel::SentinelClient) -> Self {
        Self::one(Find::By(tokio::sync::Mutex::new(client)))
    }
}

impl From<Cluster> for Connection {
    fn from(cluster: Cluster) -> Self {
        Self(Arc::new(Kind::Cluster(cluster)))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// A command to send once.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) command: &'a Cmd,
    /// One of its keys. All of them have the same slot.
    pub(crate) key: &'a [u8],
    /// How long the server lets it wait; it needs a connection of its own.
    pub(crate) block: Option<Duration>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// It is made although the server is down.
    pub(crate) forced: bool,
    /// The node has its slot only in part: it follows an `ASK`.
    pub(crate) asking: bool,
}

/// Why a call has no reply, or an error as its reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server was down before, and still is: the error that said so, and when a call may be made.
    Down(Error, Duration),
    /// No connection could be opened.
    NoConnection(Error),
    /// No reply came in time, or the connection has ended.
    Unanswered(Error),
    /// The reply is an error.
    Reply(RedisError),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Down(error, _) | Failure::NoConnection(error) | Failure::Unanswered(error) => error,
            Failure::Reply(error) => Self::of_redis(error),
        }
    }
}

impl Connection {
    fn one(find: Find) -> Self {
        secure();
        Self(Arc::new(Kind::One(Box::new(Node::new(find)))))
    }

    /// Sends a call once.
    pub(crate) fn call<'a>(&'a self, call: Call<'a>) -> Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send + 'a>> {
        match &*self.0 {
            Kind::One(node) => Box::pin(node.call(call)),
            Kind::Cluster(cluster) => Box::pin(cluster.call(call)),
        }
    }

    /// Why a call with this key can't be made now, if its server is known to be down.
    pub(crate) fn down(&self, key: &[u8]) -> Option<Failure> {
        match &*self.0 {
            Kind::One(node) => node.down(),
            Kind::Cluster(cluster) => cluster.down(key),
        }
    }

    /// Whether two keys of one call may be at different nodes.
    pub(crate) fn has_slots(&self) -> bool {
        matches!(*self.0, Kind::Cluster(_))
    }
}

/// The crate `redis` panics if rustls has no default cryptography, so there is one: that of the program, or else ring.
fn secure() {
    // It fails if there is one already.
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
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
#[path = "../../tests/unit/slots.rs"]
mod tests;
