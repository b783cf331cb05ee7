//! Blocked clients: the server withholds the reply to their call until the module provides it.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;

use super::{api, contain_panic, raw, Call, Ctx, Server, ServerString};

/// The handle of a blocked client, which must be unblocked exactly once: by [`Self::reply_with`], or by a callback of `H` that
/// returns the handle. Dropping the handle replies with an internal error, so that no client waits for ever.
///
/// `H` replies to the client, and determines the type of the answer. Code that unblocks a client twice, or with an answer for
/// another handler, does not compile.
pub struct BlockedClient<H: ReplyHandler> {
    raw: *mut raw::RedisModuleBlockedClient,
    handler: PhantomData<fn(H)>,
}

// SAFETY: the queues of blocked clients are in a static, which requires `Send`. Only the server's main thread uses them, since
// the server calls the module's callbacks in that thread.
unsafe impl<H: ReplyHandler> Send for BlockedClient<H> {}

/// Identifies a blocked client for as long as it is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(usize);

/// Replies to blocked clients.
pub trait ReplyHandler: Sized {
    /// The answer to a call: what the client is unblocked with, and [`Self::reply`] replies with.
    type Answer;

    /// Replies to the call of a client that was unblocked with `answer`.
    fn reply(call: &Call<'_>, answer: Self::Answer);

    /// Called when the server unblocks a client (`CLIENT UNBLOCK`). Replies to the client's call, and returns the client's handle;
    /// `None` if the handle has been used.
    fn on_timeout(call: &Call<'_>, client: ClientId) -> Option<BlockedClient<Self>>;

    /// Called when a client has disconnected. Returns its handle; `None` if the handle has been used.
    fn on_disconnect(server: &Server<'_>, client: ClientId) -> Option<BlockedClient<Self>>;
}

/// The data that the server keeps between the unblocking of a client and its reply: the answer; `None` if the handle was dropped.
type PrivateData<H> = Option<<H as ReplyHandler>::Answer>;

impl<H: ReplyHandler> BlockedClient<H> {
    /// Blocks the client of a call, to which nothing may have been replied yet. `None` if the server refuses; then nothing has
    /// been replied either.
    ///
    /// Valkey 8.1 and newer refuse a client to which they may have to send other data meanwhile, such as a client with a
    /// subscription. The other servers refuse only where [`Server::forbids_blocking`] is true.
    pub fn block(call: &Call<'_>) -> Option<Self> {
        let (reply, timeout, free) =
            (Some(reply_callback::<H> as _), Some(timeout_callback::<H> as _), Some(free_data::<H> as _));
        // SAFETY: `call.ctx` is the live context of a call. The callbacks stay loaded, since the server does not unload a module
        // that has blocked clients. The time-out is 0, for none: the server would check it only ten times a second.
        let raw = unsafe { api!(RedisModule_BlockClient(call.ctx, reply, timeout, free, 0)) };
        if raw.is_null() {
            return None;
        }
        call.mark_blocked();
        // SAFETY: `raw` is the client that has just been blocked.
        unsafe { api!(RedisModule_SetDisconnectCallback(raw, Some(disconnect_callback::<H>))) };
        Some(Self { raw, handler: PhantomData })
    }

    /// Returns the client's id, which the callbacks get, too.
    pub fn id(&self) -> ClientId {
        ClientId::of(self.raw)
    }

    /// Unblocks the client. [`ReplyHandler::reply`] is called with the answer soon afterwards.
    pub fn reply_with(self, answer: H::Answer) {
        // SAFETY: `into_raw` consumes the handle of a blocked client.
        unsafe { unblock::<H>(self.into_raw(), Some(answer)) };
    }

    /// Unblocks the client in a callback after which it gets no further reply.
    fn end(self) {
        // SAFETY: `into_raw` consumes the handle of a blocked client. `reply_callback` accepts null.
        unsafe { api!(RedisModule_UnblockClient(self.into_raw(), ptr::null_mut())) };
    }

    /// Consumes the handle without dropping it.
    fn into_raw(self) -> *mut raw::RedisModuleBlockedClient {
        ManuallyDrop::new(self).raw
    }
}

impl<H: ReplyHandler> Drop for BlockedClient<H> {
    fn drop(&mut self) {
        // SAFETY: the client is blocked, and its handle ends here.
        unsafe { unblock::<H>(self.raw, None) };
    }
}

/// Unblocks a client. [`reply_callback`] gets the data.
///
/// # Safety
/// `client` must be blocked by [`BlockedClient::block`] of the same `H`, and must not be unblocked again.
unsafe fn unblock<H: ReplyHandler>(client: *mut raw::RedisModuleBlockedClient, data: PrivateData<H>) {
    // SAFETY: the caller vouches for the client. The server passes the pointer to `reply_callback` at most once, and then to
    // `free_data` once.
    unsafe { api!(RedisModule_UnblockClient(client, Box::into_raw(Box::new(data)).cast())) };
}

impl ClientId {
    fn of(client: *mut raw::RedisModuleBlockedClient) -> Self {
        Self(client.addr())
    }
}

/// Replies to a client that was unblocked.
///
/// # Safety
/// Only the server may call it, for a client that [`unblock`] or [`BlockedClient::end`] unblocked with the same `H`: `ctx` and
/// the `argc` arguments in `argv` must be live during the call.
unsafe extern "C" fn reply_callback<H: ReplyHandler>(ctx: Ctx, argv: *mut ServerString, argc: c_int) -> c_int {
    let reply = |call: &Call<'_>| {
        // SAFETY: the pointer is null or comes from `unblock` with the same `H`, and `free_data` gets it only afterwards. Nothing
        // else refers to it.
        let data = unsafe { api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<PrivateData<H>>().as_mut() };
        match data.map(Option::take) {
            Some(Some(answer)) => H::reply(call, answer),
            Some(None) => call.reply_internal_error(),
            // `BlockedClient::end`: the client has its reply, or is gone.
            None => {}
        }
    };
    // SAFETY: only the server calls this function, with the client's call.
    unsafe { Call::handle(ctx, argv, argc, reply) }
}

/// Ends the block of a client before the module unblocks it.
///
/// # Safety
/// Only the server may call it, for a client that [`BlockedClient::block`] blocked with the same `H`: `ctx` and the `argc`
/// arguments in `argv` must be live during the call.
unsafe extern "C" fn timeout_callback<H: ReplyHandler>(ctx: Ctx, argv: *mut ServerString, argc: c_int) -> c_int {
    let end = |call: &Call<'_>| {
        // SAFETY: the context is that of a blocked client.
        let client = unsafe { api!(RedisModule_GetBlockedClientHandle(ctx)) };
        // The server does not unblock the client itself. If the module did not, the server would never free the client's memory, and
        // never unload the module.
        if let Some(client) = H::on_timeout(call, ClientId::of(client)) {
            client.end();
        }
    };
    // SAFETY: only the server calls this function, with the client's call.
    unsafe { Call::handle(ctx, argv, argc, end) }
}

/// Handles the end of a blocked client's connection.
///
/// # Safety
/// Only the server may call it, for a client that [`BlockedClient::block`] blocked with the same `H`: `ctx` must be live during
/// the call.
unsafe extern "C" fn disconnect_callback<H: ReplyHandler>(ctx: Ctx, client: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the server passes a context that is live during this call.
    let server = unsafe { Server::new(ctx) };
    contain_panic(|| {
        // The server requires that the client is unblocked in this callback, unless it has been before.
        if let Some(client) = H::on_disconnect(&server, ClientId::of(client)) {
            client.end();
        }
    });
}

/// Frees what [`unblock`] allocated.
///
/// # Safety
/// Only the server may call it: `data` must be null or come from [`unblock`] with the same `H`, and must not be used afterwards.
unsafe extern "C" fn free_data<H: ReplyHandler>(_: Ctx, data: *mut c_void) {
    if !data.is_null() {
        // SAFETY: `unblock` allocated it as a box of this type, and the server frees it once.
        drop(unsafe { Box::from_raw(data.cast::<PrivateData<H>>()) });
    }
}

#[cfg(test)]
mod tests;
