//! How replicas and the append-only file learn what has changed: by effects, which are plain commands with absolute values.

use std::ffi::{c_int, c_void, CStr};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use redis_module::raw;

use super::api::server;
use super::Server;

/// The commands that effects are.
pub(super) const COMMANDS: [&CStr; 4] = [SET, SETRANGE, PEXPIREAT, DEL];
pub(super) const SET: &CStr = c"SET";
pub(super) const SETRANGE: &CStr = c"SETRANGE";
pub(super) const PEXPIREAT: &CStr = c"PEXPIREAT";
pub(super) const DEL: &CStr = c"DEL";

/// Who listens to effects: [`NOBODY`], or for how many effects more that need not be asked, or [`ALWAYS`].
///
/// An effect costs as much as the call itself even where the server then throws it away, because nobody listens: without
/// replicas, a backlog for them, or an append-only file. Whoever begins to listen begins with a copy of all keys, which the
/// server makes in a forked process: until then there is nothing to tell, and the fork is an event. Only a replica that goes on
/// where it was (`PSYNC`) needs no copy, but a backlog, which the server has from an earlier copy, from its time as a replica,
/// or from the file it was loaded from: each an event, too.
static LISTENERS: AtomicU32 = AtomicU32::new(ASK);

const NOBODY: u32 = 0;
/// The server is to be asked at the next effect.
const ASK: u32 = 1;
/// Those who listened may have gone, of which nothing tells: so often is the server asked again.
const TRUSTED: u32 = 10_000;
/// Where it is not known that every copy is a fork's.
const ALWAYS: u32 = u32::MAX;

/// Has the server tell when somebody may have begun to listen.
pub(super) fn start(ctx: *mut raw::RedisModuleCtx) {
    const EVENTS: [u64; 5] = [
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        raw::REDISMODULE_EVENT_CONFIG,
    ];
    let server = Server::new(ctx);
    // Slots that move may have listeners of their own kind.
    let known = !server.in_cluster()
        && copies_by_fork(&server)
        && EVENTS.into_iter().all(|id| {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            // SAFETY: `ctx` is live. The callback does not look at the event's data.
            let told = unsafe { server!(RedisModule_SubscribeToServerEvent(ctx, event, Some(changed))) };
            told == raw::REDISMODULE_OK as c_int
        });
    LISTENERS.store(if known { ASK } else { ALWAYS }, Ordering::Relaxed);
    let word = c"PXAT";
    // SAFETY: the server copies the word; without a context it is the module's own.
    let word = unsafe { server!(RedisModule_CreateString(ptr::null_mut(), word.as_ptr(), word.count_bytes())) };
    PXAT.store(word, Ordering::Relaxed);
}

/// `PXAT`, made once.
static PXAT: AtomicPtr<raw::RedisModuleString> = AtomicPtr::new(ptr::null_mut());

/// The word `PXAT`, as an argument of an effect.
pub(super) fn pxat() -> *mut raw::RedisModuleString {
    PXAT.load(Ordering::Relaxed)
}

/// Gives back what [`start`] made.
pub(super) fn stop() {
    let word = PXAT.swap(ptr::null_mut(), Ordering::Relaxed);
    if !word.is_null() {
        // SAFETY: it was made by `start`, and is given back once. A string needs no context to be freed.
        unsafe { server!(RedisModule_FreeString(ptr::null_mut(), word)) };
    }
}

extern "C" fn changed(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    if LISTENERS.load(Ordering::Relaxed) != ALWAYS {
        LISTENERS.store(ASK, Ordering::Relaxed);
    }
}

/// Whether the next effect is to be told to somebody.
pub(super) fn somebody_listens(server: &Server<'_>) -> bool {
    match LISTENERS.load(Ordering::Relaxed) {
        NOBODY => false,
        ASK => {
            let somebody = ask(server);
            LISTENERS.store(if somebody { TRUSTED } else { NOBODY }, Ordering::Relaxed);
            somebody
        }
        ALWAYS => true,
        trusted => {
            LISTENERS.store(trusted - 1, Ordering::Relaxed);
            true
        }
    }
}

/// Asks the server, which knows of a replica from its first `PSYNC` on. When in doubt, somebody listens.
fn ask(server: &Server<'_>) -> bool {
    let flags = server.flags();
    let primary = flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0;
    let stores = flags & (raw::REDISMODULE_CTX_FLAGS_AOF | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0;
    let none = |info: &Info<'_>, field: &CStr| info.number(field) == Some(0);
    !primary || stores || {
        let info = Info::ask(server, c"replication");
        !(none(&info, c"connected_slaves") && none(&info, c"repl_backlog_active"))
    }
}

/// Whether this is a server of which it is known that every copy of all keys is made by a fork, and that a fork is an event.
fn copies_by_fork(server: &Server<'_>) -> bool {
    let info = Info::ask(server, c"server");
    match (info.text(c"valkey_version"), info.text(c"redis_version")) {
        (Some(valkey), _) => major(valkey).is_some_and(|major| major <= 9),
        (None, Some(redis)) => major(redis).is_some_and(|major| major <= 8),
        (None, None) => false,
    }
}

fn major(version: &CStr) -> Option<u32> {
    version.to_str().ok()?.split('.').next()?.parse().ok()
}

/// What `INFO` tells in one of its sections.
pub(super) struct Info<'s> {
    server: &'s Server<'s>,
    data: *mut raw::RedisModuleServerInfoData,
}

impl<'s> Info<'s> {
    pub(super) fn ask(server: &'s Server<'s>, section: &CStr) -> Self {
        // SAFETY: the context is live; the server copies the section's name. What it answers is freed when `self` is dropped.
        let data = unsafe { server!(RedisModule_GetServerInfo(server.ctx, section.as_ptr())) };
        Self { server, data }
    }

    pub(super) fn text(&self, field: &CStr) -> Option<&CStr> {
        // SAFETY: `data` is not freed yet; a field that is there is text that ends with a NUL and lives as long.
        unsafe {
            let text = server!(RedisModule_ServerInfoGetFieldC(self.data, field.as_ptr()));
            (!text.is_null()).then(|| CStr::from_ptr(text))
        }
    }

    fn number(&self, field: &CStr) -> Option<i64> {
        self.text(field)?.to_str().ok()?.parse().ok()
    }
}

impl Drop for Info<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing borrowed from `data` outlives `self`.
        unsafe { server!(RedisModule_FreeServerInfo(self.server.ctx, self.data)) };
    }
}
