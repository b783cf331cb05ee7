//! Clients that are held: the server keeps their reply back until the module has it.

use std::ffi::{c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

use redis_module::raw;

use super::api::server;
use super::call::guarded;
use super::{Call, Server};

/// A client that is held. It is so until it is [released](Self::release), or [`Holding`] is told that it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client(*mut raw::RedisModuleBlockedClient);

// SAFETY: the pointer is a name to tell clients by. Only the server looks behind it, and all calls of the module are made by
// its main thread.
unsafe impl Send for Client {}

/// What becomes of the clients that are held.
pub trait Holding {
    /// What a client is released with.
    type Answer;

    /// Replies to the call of a client that was released.
    fn reply(call: &Call<'_>, answer: Self::Answer);

    /// The server ends the wait of a client as if its time was over, and wants the reply to its call: whether it was still
    /// held, and not released before.
    fn ended(call: &Call<'_>, client: Client) -> bool;

    /// A client is gone, without a reply: whether it was still held, and not released before.
    fn gone(server: &Server<'_>, client: Client) -> bool;
}

impl Client {
    /// Holds the client of a call, to which nothing has been replied yet; `None` if the server refuses to, and nothing has been
    /// replied either. Valkey from 9.1 on refuses clients that it may have to send something else to, such as those with a
    /// subscription. The others refuse only where [`Server::forbids_blocking`] says so.
    pub fn hold<H: Holding>(call: &Call<'_>) -> Option<Self> {
        // SAFETY: `ctx` is the context of a running call of a client that may be blocked, as the caller has asked the server.
        // There is no timeout of the server's: it looks at those only ten times a second.
        unsafe {
            let client =
                server!(RedisModule_BlockClient(call.ctx, Some(replies::<H>), Some(ended::<H>), Some(free::<H>), 0));
            if client.is_null() {
                return None;
            }
            server!(RedisModule_SetDisconnectCallback(client, Some(gone::<H>)));
            Some(Self(client))
        }
    }

    /// Has the client replied to: once, and only if it is held.
    pub fn release<H: Holding>(self, answer: H::Answer) {
        // SAFETY: the client is held, so the pointer is valid. The answer comes back to `replies`, or else to `free`.
        unsafe { server!(RedisModule_UnblockClient(self.0, Box::into_raw(Box::new(Some(answer))).cast())) };
    }
}

/// The answer that a client was released with, as the server keeps it; taken when it was replied.
type Kept<H> = Option<<H as Holding>::Answer>;

extern "C" fn replies<H: Holding>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes the context and the arguments of the call that it held; they outlive this one.
    let call = unsafe { Call::new(Server::new(ctx), argv, argc) };
    guarded(&call, || {
        // SAFETY: this is what `release` handed over, and `free` has not had it yet; nobody else refers to it.
        let kept = unsafe { server!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Kept<H>>().as_mut() };
        if let Some(answer) = kept.and_then(Option::take) {
            H::reply(&call, answer);
        }
    });
    raw::REDISMODULE_OK as c_int
}

extern "C" fn ended<H: Holding>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: as above.
    let call = unsafe { Call::new(Server::new(ctx), argv, argc) };
    guarded(&call, || {
        // SAFETY: the context is that of a client which was held. If it was so until now, it is to be released here, with no
        // answer: the server would keep its memory, and the module, for ever.
        unsafe {
            let client = server!(RedisModule_GetBlockedClientHandle(ctx));
            if H::ended(&call, Client(client)) {
                server!(RedisModule_UnblockClient(client, std::ptr::null_mut()));
            }
        }
    });
    raw::REDISMODULE_OK as c_int
}

extern "C" fn gone<H: Holding>(ctx: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if H::gone(&Server::new(ctx), Client(client)) {
            // SAFETY: the client was held until now, and is to be released in this callback, with no answer.
            unsafe { server!(RedisModule_UnblockClient(client, std::ptr::null_mut())) };
        }
    }));
}

extern "C" fn free<H: Holding>(_: *mut raw::RedisModuleCtx, kept: *mut c_void) {
    if !kept.is_null() {
        // SAFETY: this is what `release` handed over; the server frees it once, when it is done with it.
        drop(unsafe { Box::from_raw(kept.cast::<Kept<H>>()) });
    }
}
