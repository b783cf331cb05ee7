use std::time::Duration;

use redis::{Client, IntoConnectionInfo, RedisError, RedisResult};

use super::redial::{Find, Redial};
use super::{alone, secure, Answer, Call, Connection};

/// A connection to one server. It is opened with the first call, and again with the next call after it was lost, so a program
/// can start before its server.
pub struct Server {
    redial: Redial<Client>,
}

impl Find for Client {
    fn client(&self) -> Answer<'_, Client> {
        Box::pin(async { Ok(self.clone()) })
    }

    fn misled(&self, _: &RedisError) -> bool {
        false
    }
}

impl Server {
    /// A server at this address, or of this [`Client`]'s address: `Server::new("redis://127.0.0.1/")`. Nothing is sent yet.
    ///
    /// # Errors
    /// If the address is malformed.
    pub fn new(address: impl IntoConnectionInfo) -> RedisResult<Self> {
        Ok(Client::open(address)?.into())
    }

    /// How long to wait for a reply, if that is less than the [`patience`](crate::Limits::patience) of the limits, which bounds
    /// each call. Waits have a longer time-out of their own.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.redial.response_timeout = Some(timeout);
        self
    }
}

impl From<Client> for Server {
    fn from(client: Client) -> Self {
        secure();
        Self { redial: Redial::new(client) }
    }
}

impl Connection for Server {
    fn call<'a>(&'a self, call: Call<'a>) -> Answer<'a> {
        Box::pin(self.redial.call(call))
    }

    fn call_alone<'a>(&'a self, call: Call<'a>, timeout: Duration) -> Option<Answer<'a>> {
        Some(Box::pin(alone(&self.redial.find, call, timeout)))
    }

    fn client_for<'a>(&'a self, _: &'a [u8]) -> Option<Answer<'a, Client>> {
        Some(self.redial.find.client())
    }
}
