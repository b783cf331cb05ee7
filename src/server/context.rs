//! The server during one call of the module: its clocks, its state and its notifications.

use std::ffi::{c_int, CStr, CString};
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::time::Instant;

use redis_module::Context;

use super::{api, raw, Ctx};

/// The server, during one call of the module: by a command, by the timer or with an event.
pub struct Server<'a> {
    /// The context of that call, which is live during `'a`.
    pub(super) ctx: Ctx,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> Server<'a> {
    /// The server that called the module with this context.
    pub fn from_context(ctx: &'a Context) -> Self {
        // SAFETY: the context is borrowed for `'a`, so it is live for as long.
        unsafe { Self::new(ctx.get_raw().cast()) }
    }

    /// The server that called the module with this context.
    ///
    /// # Safety
    /// `ctx` must be live during `'a`, and used by the server's main thread only.
    pub(super) const unsafe fn new(ctx: Ctx) -> Self {
        Self { ctx, lifetime: PhantomData }
    }

    /// Returns the wall clock's time, in microseconds since the Unix epoch; 0 before that.
    ///
    /// The server's own reading (`RedisModule_CachedMicroseconds`, from Redis 7.2 on) is not used, although that would save a twentieth
    /// of a denied call. It does not advance during a transaction or a script, and in newer servers it is not exact: Valkey 9.1
    /// reads the clock once in a millisecond and counts on from there, and notices as late that the clock was set; the development
    /// tree of Redis reads it once for several commands.
    pub fn now_us(&self) -> i64 {
        // `SystemTime` would read the same clock, and convert the time twice.
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writing.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
        time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000).max(0)
    }

    /// Returns the monotonic clock's time, in microseconds since an arbitrary moment. The difference of two readings is how much
    /// time has passed, even if the wall clock was set in between.
    pub fn monotonic_us(&self) -> i64 {
        static START: OnceLock<Instant> = OnceLock::new();
        i64::try_from(START.get_or_init(Instant::now).elapsed().as_micros()).unwrap_or(i64::MAX)
    }

    /// Returns the number of the selected database.
    pub fn db(&self) -> i32 {
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_GetSelectedDb(self.ctx)) }
    }

    /// Selects a database. Returns whether there is one of this number.
    pub(super) fn select(&self, db: i32) -> bool {
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_SelectDb(self.ctx, db)) == raw::REDISMODULE_OK as c_int }
    }

    /// Whether the client of a call must not be blocked: in a transaction, in a script, and where else the server forbids it.
    pub fn forbids_blocking(&self) -> bool {
        let forbidding =
            raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & forbidding != 0
    }

    /// Whether the server is a node of a cluster.
    pub(super) fn in_cluster(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    /// Returns the bits `REDISMODULE_CTX_FLAGS_...` that describe the server's state.
    pub(super) fn flags(&self) -> u32 {
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_GetContextFlags(self.ctx)) as u32 }
    }

    /// Whether `notify-keyspace-events` includes the events of modules (class `d`).
    #[inline]
    pub fn notifications_enabled(&self) -> bool {
        // SAFETY: the function has no requirements.
        let classes = unsafe { api!(RedisModule_GetNotifyKeyspaceEvents()) };
        classes & raw::REDISMODULE_NOTIFY_MODULE as c_int != 0
    }

    /// Publishes the keyspace notification `event` for a key. The key must be closed: modules that subscribe to notifications
    /// may modify it.
    pub fn notify(&self, db: i32, name: &[u8], event: &str) {
        let Ok(event) = CString::new(event) else { return };
        if !self.select(db) {
            return;
        }
        let class = raw::REDISMODULE_NOTIFY_MODULE as c_int;
        // SAFETY: `self.ctx` is live. The server copies the name; the copy is freed once, after its last use.
        unsafe {
            let name = api!(RedisModule_CreateString(ptr::null_mut(), name.as_ptr().cast(), name.len()));
            api!(RedisModule_NotifyKeyspaceEvent(self.ctx, class, event.as_ptr(), name));
            api!(RedisModule_FreeString(ptr::null_mut(), name));
        }
    }

    /// Logs a warning. The message must not contain bytes that a client sent, so that clients cannot forge log lines.
    pub(super) fn log_warning(&self, message: &str) {
        self.log(c"warning", message);
    }

    /// Logs a message at a level of the server's. See [`Self::log_warning`].
    pub(super) fn log(&self, level: &CStr, message: &str) {
        let Ok(message) = CString::new(message) else { return };
        // SAFETY: `self.ctx` is live. The format `%s` takes exactly the one string that follows it.
        unsafe {
            if let Some(log) = raw::RedisModule_Log {
                log(self.ctx, level.as_ptr(), c"%s".as_ptr(), message.as_ptr());
            }
        }
    }
}
