//! One call of a command: its arguments and its reply.

use std::ffi::{c_int, CStr, CString};
use std::ops::Deref;
use std::panic::{catch_unwind, AssertUnwindSafe};

use redis_module::raw;

use super::api::server;
use super::{reply, Command, Server};

/// One call of a command. It lives as long as the server's call of the handler, and so does everything borrowed from it.
pub struct Call<'a> {
    server: Server<'a>,
    pub(super) arguments: &'a [*mut raw::RedisModuleString],
}

impl<'a> Deref for Call<'a> {
    type Target = Server<'a>;

    fn deref(&self) -> &Server<'a> {
        &self.server
    }
}

impl<'a> Call<'a> {
    /// A call as `server` passes it to the module.
    ///
    /// # Safety
    /// `argv` are the `argc` arguments of a call that has the context of `server` and outlives `'a`.
    pub(super) unsafe fn new(server: Server<'a>, argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        // SAFETY: as the caller says.
        let arguments = unsafe { std::slice::from_raw_parts(argv, usize::try_from(argc).unwrap_or(0)) };
        Self { server, arguments }
    }

    /// Argument `index`, the command's name being 0.
    pub fn argument(&self, index: usize) -> Option<&[u8]> {
        let &string = self.arguments.get(index)?;
        let mut len = 0;
        // SAFETY: `string` is an argument of the running call: the server keeps it alive and unchanged until that returns,
        // and so longer than `self`. The pointer is never null, and `len` bytes long.
        unsafe {
            let bytes = server!(RedisModule_StringPtrLen(string, &mut len));
            Some(std::slice::from_raw_parts(bytes.cast(), len))
        }
    }

    /// Whether the server only asks where the keys are, of a command registered with `getkeys-api`. It is then told by
    /// [`Self::key_at`], and nothing else is to be done.
    pub fn asks_for_keys(&self) -> bool {
        // SAFETY: `ctx` is the context of the running call, as in all of this file.
        unsafe { server!(RedisModule_IsKeysPositionRequest(self.ctx)) != 0 }
    }

    /// Tells that argument `index` is a key.
    pub fn key_at(&self, index: usize) {
        // SAFETY: as above.
        unsafe { server!(RedisModule_KeyAtPos(self.ctx, index as c_int)) }
    }

    /// Has the key that argument `index` names deleted if its time is up, and whoever follows that told.
    pub fn touch(&self, index: usize) {
        if let Some(&name) = self.arguments.get(index) {
            // SAFETY: as above; the name is an argument of the running call.
            unsafe { server!(RedisModule_KeyExists(self.ctx, name)) };
        }
    }

    /// Whether the server has a command of this name, and has it from this module.
    pub fn server_has(&self, command: &Command) -> bool {
        // SAFETY: as above.
        !unsafe { server!(RedisModule_GetCommand(self.ctx, command.name.as_ptr())) }.is_null()
    }

    /// Replies an array of integers.
    pub fn reply_integers(&self, integers: &[i64; 5]) {
        reply::integers(self, integers);
    }

    /// Begins an array, whose elements are the next `len` replies.
    pub fn reply_array(&self, len: usize) {
        // SAFETY: as above.
        unsafe { server!(RedisModule_ReplyWithArray(self.ctx, len as _)) };
    }

    /// Begins a map, whose keys and values are the next `len` pairs of replies; under RESP2 it is a flat array.
    pub fn reply_map(&self, len: usize) {
        // SAFETY: as above.
        unsafe { server!(RedisModule_ReplyWithMap(self.ctx, len as _)) };
    }

    /// Replies an integer.
    pub fn reply_integer(&self, integer: i64) {
        // SAFETY: as above.
        unsafe { server!(RedisModule_ReplyWithLongLong(self.ctx, integer)) };
    }

    /// Replies a string.
    pub fn reply_string(&self, text: &str) {
        self.reply_bytes(text.as_bytes());
    }

    /// Replies a string of any bytes.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: as above; the server copies the bytes.
        unsafe { server!(RedisModule_ReplyWithStringBuffer(self.ctx, bytes.as_ptr().cast(), bytes.len())) };
    }

    /// Replies a status, such as `OK`: a line.
    pub fn reply_status(&self, status: &CStr) {
        // SAFETY: as above; the server copies the text.
        unsafe { server!(RedisModule_ReplyWithSimpleString(self.ctx, status.as_ptr())) };
    }

    /// Replies nil.
    pub fn reply_nil(&self) {
        // SAFETY: as above.
        unsafe { server!(RedisModule_ReplyWithNull(self.ctx)) };
    }

    /// Replies an error: `text` begins with its code and has no control characters.
    pub fn reply_error(&self, text: &str) {
        let text = CString::new(text).unwrap_or_else(|_| c"ERR".into());
        // SAFETY: `ctx` is the context of the running call; the server copies the text, and takes it as is, not as a format.
        unsafe {
            server!(RedisModule_ReplyWithError(self.ctx, text.as_ptr()));
        }
    }
}

/// What runs a command.
pub trait Run {
    /// Does the work, then replies.
    fn run(call: &Call<'_>);
}

/// A command's handler, in the server's form. A panic ends here: unwinding into the server would abort it.
///
/// Only the server calls it, which is why it is private to its table of commands.
pub extern "C" fn handler<R: Run>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes a call's context and arguments, with the command's name the first; they outlive the call.
    let call = unsafe { Call::new(Server::new(ctx), argv, argc) };
    guarded(&call, || R::run(&call));
    raw::REDISMODULE_OK as c_int
}

/// Does what ends in a reply to `call`; if it panics, the reply is an error.
pub(super) fn guarded(call: &Call<'_>, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        // No command replies before its work is done, so there is no reply yet.
        let _ = catch_unwind(AssertUnwindSafe(|| call.reply_error("ERR internal error in redis-rl")));
    }
}
