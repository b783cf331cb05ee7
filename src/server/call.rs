//! One call of a command: its arguments and its reply.

use std::cell::Cell;
use std::ffi::{c_int, CStr, CString};
use std::ops::Deref;
use std::panic::{catch_unwind, AssertUnwindSafe};

use super::{api, key_flags, raw, shortcuts, string_bytes, Ctx, Server, ServerString};

/// One call of a command. It lives as long as the server's call of the handler, and so does everything borrowed from it.
pub struct Call<'a> {
    server: Server<'a>,
    /// Valid strings, which nobody changes or frees during `'a`.
    pub(super) arguments: &'a [ServerString],
    /// Whether the client was blocked during this call, so that the reply comes later.
    is_blocked: Cell<bool>,
}

impl<'a> Deref for Call<'a> {
    type Target = Server<'a>;

    fn deref(&self) -> &Server<'a> {
        &self.server
    }
}

impl<'a> Call<'a> {
    /// A call with the arguments that the server has passed.
    ///
    /// # Safety
    /// `argv` must point to `argc` valid strings that nobody changes or frees during `'a`, and `server` must be in the call that
    /// they belong to.
    #[inline(always)]
    pub(super) unsafe fn new(server: Server<'a>, argv: *mut ServerString, argc: c_int) -> Self {
        // SAFETY: the caller vouches for the pointer and the number.
        let arguments = unsafe { std::slice::from_raw_parts(argv, usize::try_from(argc).unwrap_or(0)) };
        Self { server, arguments, is_blocked: Cell::new(false) }
    }

    /// Returns argument `index`; 0 is the command's name.
    pub fn argument(&self, index: usize) -> Option<&[u8]> {
        // SAFETY: the arguments are valid during `'a`, which is longer than the borrow of `self`.
        self.arguments.get(index).map(|&string| unsafe { string_bytes(string) })
    }

    /// Whether the server calls a command with the flag `getkeys-api` only to get the positions of its keys. The command must
    /// then call [`Self::key_at`] for each key, and do nothing else.
    pub fn asks_for_keys(&self) -> bool {
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_IsKeysPositionRequest(self.ctx)) != 0 }
    }

    /// The number of arguments, with the command's name.
    pub fn count(&self) -> usize {
        self.arguments.len()
    }

    /// Reports that argument `index` is a key, which the command reads, and also changes unless it `only_reads`: see
    /// [`Self::asks_for_keys`].
    pub fn key_at(&self, index: usize, only_reads: bool) {
        let access = if only_reads { key_flags::READ } else { key_flags::UPDATE };
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_KeyAtPosWithFlags(self.ctx, index as c_int, access)) }
    }

    /// Deletes the key that argument `index` names if it has expired. This publishes the notification for the expiry.
    pub fn delete_if_expired(&self, index: usize) {
        if let Some(&name) = self.arguments.get(index) {
            // The server deletes an expired key when it looks it up.
            // SAFETY: `self.ctx` is live, and the name is an argument of the call.
            unsafe { api!(RedisModule_KeyExists(self.ctx, name)) };
        }
    }

    /// Whether this module provides the command of this name. False if the name was taken when the module was loaded.
    pub fn provides(&self, command: &CStr) -> bool {
        // SAFETY: `self.ctx` is live, and the name ends with a NUL.
        !unsafe { api!(RedisModule_GetCommand(self.ctx, command.as_ptr())) }.is_null()
    }

    /// Replies with an array of five integers.
    pub fn reply_integers(&self, integers: &[i64; 5]) {
        shortcuts::reply::integers(self, integers);
    }

    /// Replies with an array of two integers and of an array of rows of five integers.
    pub fn reply_rows(&self, head: [i64; 2], mut rows: impl ExactSizeIterator<Item = [i64; 5]>) {
        let len = rows.len();
        shortcuts::reply::rows(self, head, len, rows.next());
        rows.for_each(|row| self.reply_integers(&row));
    }

    /// Begins an array, whose elements are the next `len` replies.
    pub fn reply_array(&self, len: usize) {
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_ReplyWithArray(self.ctx, len as _)) };
    }

    /// Begins a map, whose keys and values are the next `len` pairs of replies. Under RESP2 it is a flat array.
    pub fn reply_map(&self, len: usize) {
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_ReplyWithMap(self.ctx, len as _)) };
    }

    /// Replies with an integer.
    pub fn reply_integer(&self, integer: i64) {
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.ctx, integer)) };
    }

    /// Replies with a string.
    pub fn reply_string(&self, text: &str) {
        self.reply_bytes(text.as_bytes());
    }

    /// Replies with a string of arbitrary bytes.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: `self.ctx` is live, and the server copies the bytes.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.ctx, bytes.as_ptr().cast(), bytes.len())) };
    }

    /// Replies with a simple string, such as `OK`.
    pub fn reply_status(&self, status: &CStr) {
        // SAFETY: `self.ctx` is live, and the server copies the text.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.ctx, status.as_ptr())) };
    }

    /// Replies with nil.
    pub fn reply_nil(&self) {
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_ReplyWithNull(self.ctx)) };
    }

    /// Replies with an error. `text` must begin with the error's code and must not contain control characters.
    pub fn reply_error(&self, text: &str) {
        let text = CString::new(text).unwrap_or_else(|_| c"ERR".into());
        // SAFETY: `self.ctx` is live. The server copies the text and does not interpret it as a format.
        unsafe { api!(RedisModule_ReplyWithError(self.ctx, text.as_ptr())) };
    }

    pub(super) fn reply_internal_error(&self) {
        self.reply_error("ERR internal error in redis-rl");
    }

    /// Notes that the client was blocked during this call.
    pub(super) fn mark_blocked(&self) {
        self.is_blocked.set(true);
    }

    /// Runs the body of a callback that replies to a call, and returns what the callback must return. A panic ends here, in an
    /// error reply, because one that unwinds into the server's C code aborts the server.
    ///
    /// # Safety
    /// The arguments must be those that the server has passed to the callback.
    #[inline(always)]
    pub(super) unsafe fn handle(ctx: Ctx, argv: *mut ServerString, argc: c_int, work: impl FnOnce(&Call<'_>)) -> c_int {
        // SAFETY: the server passes the context and the arguments of a call, which are live during the callback.
        let call = unsafe { Call::new(Server::new(ctx), argv, argc) };
        // There is no reply yet, since no command replies before its work is done. A client that was blocked gets its reply by
        // its `BlockedClient`.
        if catch_unwind(AssertUnwindSafe(|| work(&call))).is_err() && !call.is_blocked.get() {
            let _ = catch_unwind(AssertUnwindSafe(|| call.reply_internal_error()));
        }
        raw::REDISMODULE_OK as c_int
    }
}

/// Handles the calls of a command.
pub trait CommandHandler {
    /// Executes a call, and replies to it.
    fn run(call: &Call<'_>);
}

/// The callback of a command, which calls the handler `H`.
///
/// # Safety
/// Only the server may call it: `ctx` and the `argc` arguments in `argv` must be live during the call.
pub unsafe extern "C" fn run_command<H: CommandHandler>(ctx: Ctx, argv: *mut ServerString, argc: c_int) -> c_int {
    // SAFETY: only the server calls this function.
    unsafe { Call::handle(ctx, argv, argc, H::run) }
}
