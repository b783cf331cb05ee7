use std::time::Duration;

use redis::sentinel::SentinelClient;
use redis::{Client, RedisError};
use tokio::sync::Mutex;

use super::redial::{Find, Redial};
use super::{alone, secure, Answer, Call, Connection};

/// A connection to the primary that Sentinel names. After a failover it asks the sentinels again.
pub struct Sentinel {
    redial: Redial<Names>,
}

struct Names(Mutex<SentinelClient>);

impl Find for Names {
    fn client(&self) -> Answer<'_, Client> {
        Box::pin(async { self.0.lock().await.async_get_client().await })
    }

    fn misled(&self, error: &RedisError) -> bool {
        // A server that was the primary.
        matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "UNBLOCKED" | "LOADING"))
    }
}

impl Sentinel {
    /// The server that this client finds. Nothing is sent yet.
    pub fn new(client: SentinelClient) -> Self {
        secure();
        Self { redial: Redial::new(Names(Mutex::new(client))) }
    }

    /// How long to wait for a reply, if that is less than the [`patience`](crate::Limits::patience) of the limits, which bounds
    /// each call. Waits have a longer time-out of their own.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.redial.response_timeout = Some(timeout);
        self
    }
}

impl Connection for Sentinel {
    fn call<'a>(&'a self, call: Call<'a>) -> Answer<'a> {
        Box::pin(self.redial.call(call))
    }

    fn call_alone<'a>(&'a self, call: Call<'a>, timeout: Duration) -> Option<Answer<'a>> {
        Some(Box::pin(async move { alone(&self.redial.find.client().await?, call, timeout).await }))
    }

    fn client_for<'a>(&'a self, _: &'a [u8]) -> Option<Answer<'a, Client>> {
        Some(self.redial.find.client())
    }
}
