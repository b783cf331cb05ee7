//! The server, for as long as it has called the module: its clock and state, the timer, and what it tells of its keys.

use std::ffi::{c_char, c_int, c_void, CString};
use std::marker::PhantomData;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use redis_module::{raw, Context};

use super::api::server;
use super::{effects, writes};

/// The server, which has called the module: by a command, by the timer or with an event. What is borrowed from it lives as
/// long as that call.
pub struct Server<'a> {
    pub(super) ctx: *mut raw::RedisModuleCtx,
    lives: PhantomData<&'a ()>,
}

impl<'a> Server<'a> {
    /// The server that has called the module with this context.
    pub fn of(ctx: &'a Context) -> Self {
        Self::new(ctx.get_raw().cast())
    }

    /// The server behind a context that outlives `'a`.
    pub(super) const fn new(ctx: *mut raw::RedisModuleCtx) -> Self {
        Self { ctx, lives: PhantomData }
    }

    /// The server's clock, in microseconds since the Unix epoch; 0 before that.
    ///
    /// It is read for each call. The server's own reading (`RedisModule_CachedMicroseconds`, from Redis 7.2 on) stands still in a
    /// transaction or a script.
    pub fn now_us(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        seconds.saturating_mul(1_000_000).saturating_add(since.subsec_micros().into())
    }

    /// Microseconds by a clock that never steps, from an arbitrary moment on. How long something has lasted is the difference of
    /// two readings, whatever happens to the wall clock meanwhile.
    pub fn steady_us(&self) -> i64 {
        static START: OnceLock<Instant> = OnceLock::new();
        i64::try_from(START.get_or_init(Instant::now).elapsed().as_micros()).unwrap_or(i64::MAX)
    }

    /// The number of the database that is selected.
    pub fn db(&self) -> i32 {
        // SAFETY: `ctx` is live, as in all of this file.
        unsafe { server!(RedisModule_GetSelectedDb(self.ctx)) }
    }

    /// Whether the client of a call can't be held: in a transaction, in a script, and wherever else the server forbids it.
    pub fn forbids_blocking(&self) -> bool {
        let forbidding =
            raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & forbidding != 0
    }

    /// Whether a timer may write: only where the server would not refuse a client's call that does. It refuses them on a
    /// read-only replica, while it pauses writes (Redis 7.0 aborts if a timer writes then), and for the reasons of
    /// [`writes::refused`].
    pub fn may_write(&self) -> bool {
        let read_only = self.flags() & raw::REDISMODULE_CTX_FLAGS_READONLY != 0;
        // SAFETY: as above.
        let paused = unsafe { server!(RedisModule_AvoidReplicaTraffic()) } != 0;
        !read_only && !paused && !writes::refused(self)
    }

    /// Whether the server is a node of a cluster.
    pub(super) fn in_cluster(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    pub(super) fn flags(&self) -> u32 {
        // SAFETY: as above.
        unsafe { server!(RedisModule_GetContextFlags(self.ctx)) as u32 }
    }

    /// Whether anybody may follow what happens to keys, by events of modules (class `d`).
    #[inline]
    pub fn has_followers(&self) -> bool {
        // SAFETY: as above; it takes nothing.
        let followed = unsafe { server!(RedisModule_GetNotifyKeyspaceEvents()) };
        followed & raw::REDISMODULE_NOTIFY_MODULE as c_int != 0
    }

    /// Tells those who follow it that `event` has happened to a key, which is not open.
    pub fn tell(&self, db: i32, name: &[u8], event: &str) {
        let Ok(event) = CString::new(event) else { return };
        // SAFETY: `ctx` is live. The server copies the name; the string that is made of it goes when all have been told.
        unsafe {
            if server!(RedisModule_SelectDb(self.ctx, db)) == raw::REDISMODULE_OK as c_int {
                let name = server!(RedisModule_CreateString(ptr::null_mut(), name.as_ptr().cast(), name.len()));
                let class = raw::REDISMODULE_NOTIFY_MODULE as c_int;
                server!(RedisModule_NotifyKeyspaceEvent(self.ctx, class, event.as_ptr(), name));
                server!(RedisModule_FreeString(ptr::null_mut(), name));
            }
        }
    }

    /// Has `T` called once, in so many milliseconds.
    pub fn start_timer<T: Watch>(&self, in_ms: i64) -> Timer {
        // SAFETY: as above. The callback takes no data.
        Timer(unsafe { server!(RedisModule_CreateTimer(self.ctx, in_ms, Some(timer::<T>), ptr::null_mut())) })
    }

    /// Stops a timer that was started and has not been called.
    pub fn stop_timer(&self, Timer(id): Timer) {
        // SAFETY: as above. The server knows its timers by number: one that is gone is no error.
        unsafe { server!(RedisModule_StopTimer(self.ctx, id, ptr::null_mut())) };
    }

    /// Subscribes to all the events of the server that the module handles: `T`'s own, and those by which this layer knows who
    /// receives effects and whether writes are refused. There is one callback for all of them, since a module can have only one
    /// for an event: a second would replace it.
    pub fn watch_server<T: Watch>(&self) {
        const EVENTS: [u64; 9] = [
            raw::REDISMODULE_EVENT_FLUSHDB,
            raw::REDISMODULE_EVENT_SWAPDB,
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            raw::REDISMODULE_EVENT_CRON_LOOP,
            raw::REDISMODULE_EVENT_CONFIG,
            raw::REDISMODULE_EVENT_FORK_CHILD,
            raw::REDISMODULE_EVENT_PERSISTENCE,
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        ];
        let subscribed = EVENTS.map(|id| {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            // SAFETY: as above. The callback does not look at the event's data.
            let status = unsafe { server!(RedisModule_SubscribeToServerEvent(self.ctx, event, Some(event_of::<T>))) };
            status == raw::REDISMODULE_OK as c_int
        });
        if subscribed == [true; EVENTS.len()] {
            effects::start(self);
        }
    }

    /// Has `T` told of each key that is deleted, renamed, copied, restored, moved, evicted or expires, or whose deadline is set
    /// by a command. It can't be undone, and costs each such command a little.
    pub fn watch_keys<T: Watch>(&self) {
        let types = raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED;
        // SAFETY: as above.
        unsafe { server!(RedisModule_SubscribeToKeyspaceEvents(self.ctx, types, Some(keys::<T>))) };
    }
}

/// What the server calls out of turn. A panic ends where it happens.
pub trait Watch {
    /// The timer's time has come.
    fn timer(server: &Server<'_>);

    /// Something has happened to a key of the selected database.
    fn key(server: &Server<'_>, name: &[u8]);

    /// Something has happened to whole databases, or the server has become a primary or a replica.
    fn databases(server: &Server<'_>);

    /// The server's periodic work, ten times a second unless `hz` says otherwise. It keeps this pace when the wall clock steps,
    /// which timers do not.
    fn cron(server: &Server<'_>);
}

/// A timer that has been started.
#[derive(Clone, Copy, Debug)]
pub struct Timer(raw::RedisModuleTimerID);

extern "C" fn timer<T: Watch>(ctx: *mut raw::RedisModuleCtx, _: *mut c_void) {
    let _ = catch_unwind(AssertUnwindSafe(|| T::timer(&Server::new(ctx))));
}

extern "C" fn keys<T: Watch>(
    ctx: *mut raw::RedisModuleCtx,
    _: c_int,
    _: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let mut len = 0;
        // SAFETY: the server passes the key's name, which outlives this call and does not change in it.
        let name = unsafe {
            let bytes = server!(RedisModule_StringPtrLen(name, &mut len));
            std::slice::from_raw_parts(bytes.cast(), len)
        };
        T::key(&Server::new(ctx), name);
    }));
    raw::REDISMODULE_OK as c_int
}

extern "C" fn event_of<T: Watch>(ctx: *mut raw::RedisModuleCtx, event: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let server = Server::new(ctx);
        match event.id {
            raw::REDISMODULE_EVENT_CRON_LOOP => T::cron(&server),
            raw::REDISMODULE_EVENT_FLUSHDB | raw::REDISMODULE_EVENT_SWAPDB => T::databases(&server),
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED => {
                effects::ask_at_next_effect();
                T::databases(&server);
            }
            raw::REDISMODULE_EVENT_CONFIG => {
                effects::ask_at_next_effect();
                writes::configuration_changed();
            }
            _ => effects::ask_at_next_effect(),
        }
    }));
}
