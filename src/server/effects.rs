//! Effects: the commands by which replicas and the append-only file repeat a change.
//!
//! An effect sets absolute values (these bytes, this deadline), so it gives the same key wherever and whenever it is executed.
//! The module's own command would decide again, by another clock.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{api, raw, string_bytes, Ctx, ServerString};

/// The commands that effects use. The server must know all of them by these names.
pub(super) const COMMANDS: [&CStr; 4] = [SET, SETRANGE, PEXPIREAT, DEL];
const SET: &CStr = c"SET";
const SETRANGE: &CStr = c"SETRANGE";
const PEXPIREAT: &CStr = c"PEXPIREAT";
const DEL: &CStr = c"DEL";

/// The word `PXAT` as a string of the server. `SET` needs it in each effect, so [`start`] makes it once.
static PXAT: AtomicPtr<raw::RedisModuleString> = AtomicPtr::new(ptr::null_mut());

/// Allocates what the effects share.
pub(super) fn start() {
    let word = c"PXAT";
    // SAFETY: the server copies the word. A string made without a context belongs to the module until the module frees it.
    let word = unsafe { api!(RedisModule_CreateString(ptr::null_mut(), word.as_ptr(), word.count_bytes())) };
    PXAT.store(word, Ordering::Relaxed);
}

/// Frees what [`start`] allocated.
pub(super) fn stop() {
    let word = PXAT.swap(ptr::null_mut(), Ordering::Relaxed);
    if !word.is_null() {
        // SAFETY: `start` made the string, and the swap above ensures that it is freed once. Freeing needs no context.
        unsafe { api!(RedisModule_FreeString(ptr::null_mut(), word)) };
    }
}

/// Where the effects of a change go: the running call or timer, and the name of the changed key.
#[derive(Clone, Copy)]
pub(super) struct Effects {
    ctx: Ctx,
    name: ServerString,
}

impl Effects {
    /// Effects on the key `name` in the context `ctx`.
    ///
    /// # Safety
    /// `ctx` must be a live context that may write, and `name` a valid string, both for as long as the result is used.
    #[inline(always)]
    pub(super) const unsafe fn new(ctx: Ctx, name: ServerString) -> Self {
        Self { ctx, name }
    }

    /// The length of the key's name, in bytes.
    pub(super) fn name_len(self) -> usize {
        // SAFETY: `new` requires a valid name.
        unsafe { string_bytes(self.name) }.len()
    }

    /// `SET name value PXAT deadline_ms`
    #[inline(always)]
    pub(super) fn set(self, value: &[u8], deadline_ms: i64) {
        let (bytes, len, pxat) = (value.as_ptr(), value.len(), PXAT.load(Ordering::Relaxed));
        // SAFETY: `new` requires a live context and name. The format takes a string, bytes with their length, a string and an
        // integer, which follow in this order; the server copies them.
        unsafe {
            api!(RedisModule_Replicate(self.ctx, SET.as_ptr(), c"sbsl".as_ptr(), self.name, bytes, len, pxat, deadline_ms))
        };
    }

    /// `SET name value`: without a deadline.
    pub(super) fn set_lasting(self, value: &[u8]) {
        let (bytes, len) = (value.as_ptr(), value.len());
        // SAFETY: `new` requires a live context and name. The format takes a string, and bytes with their length, which follow in this
        // order; the server copies them.
        unsafe { api!(RedisModule_Replicate(self.ctx, SET.as_ptr(), c"sb".as_ptr(), self.name, bytes, len)) };
    }

    /// `SETRANGE name offset bytes`
    #[inline(always)]
    pub(super) fn set_range(self, offset: usize, bytes: &[u8]) {
        let (offset, bytes, len) = (offset as i64, bytes.as_ptr(), bytes.len());
        // SAFETY: `new` requires a live context and name. The format takes a string, an integer, and bytes with their length,
        // which follow in this order; the server copies them.
        unsafe { api!(RedisModule_Replicate(self.ctx, SETRANGE.as_ptr(), c"slb".as_ptr(), self.name, offset, bytes, len)) };
    }

    /// `PEXPIREAT name deadline_ms`
    #[inline(always)]
    pub(super) fn expire_at(self, deadline_ms: i64) {
        // SAFETY: `new` requires a live context and name. The format takes a string and an integer, which follow in this order.
        unsafe { api!(RedisModule_Replicate(self.ctx, PEXPIREAT.as_ptr(), c"sl".as_ptr(), self.name, deadline_ms)) };
    }

    /// `DEL name`
    #[inline(always)]
    pub(super) fn delete(self) {
        // SAFETY: `new` requires a live context and name. The format takes one string, which follows.
        unsafe { api!(RedisModule_Replicate(self.ctx, DEL.as_ptr(), c"s".as_ptr(), self.name)) };
    }
}
