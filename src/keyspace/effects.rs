//! How replicas and the append-only file learn what has changed: by effects, which are plain commands with absolute values.

use std::ffi::{c_int, CStr};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use redis_module::raw;

use super::api::server;
use super::Server;

/// The commands that effects are.
pub(super) const COMMANDS: [&CStr; 4] = [SET, SETRANGE, PEXPIREAT, DEL];
pub(super) const SET: &CStr = c"SET";
pub(super) const SETRANGE: &CStr = c"SETRANGE";
pub(super) const PEXPIREAT: &CStr = c"PEXPIREAT";
pub(super) const DEL: &CStr = c"DEL";

/// Whether the next effect has a receiver: [`NOBODY`], [`ASK`], [`ALWAYS`], or for how many effects more the answer "yes" holds.
///
/// `RedisModule_Replicate` costs as much as the call itself, also where the server then throws the effect away because it has no
/// replica, no replication backlog and no append-only file. [`NOBODY`] says that it has none of them, and stays true until one
/// begins. Each way in which one can begin is watched:
///
/// * A replica, and with it the backlog, begins with `SYNC` or `PSYNC`. The server fires no event for these, so a command filter
///   ([`filter`]) watches for their names for as long as [`NOBODY`] holds.
/// * A backlog can also come from the file that the server loads, or from its time as a replica: events.
/// * An append-only file begins with `CONFIG SET`: an event.
///
/// A second line of defence: whoever continues a stream begins with a copy of all keys, and the server makes a copy by a fork
/// or writes it into an RDB file (`SAVE`, `SHUTDOWN`), both of which are events, too.
static RECEIVERS: AtomicU32 = AtomicU32::new(ASK);

const NOBODY: u32 = 0;
/// Ask the server at the next effect.
const ASK: u32 = 1;
/// No event says that the last receiver has gone, so the server is asked again after so many effects.
const TRUSTED: u32 = 10_000;
/// On servers where nothing above is known to hold.
const ALWAYS: u32 = u32::MAX;

/// The command filter; null where none is registered.
static FILTER: AtomicPtr<raw::RedisModuleCommandFilter> = AtomicPtr::new(ptr::null_mut());

/// Whether a replica may have asked for a stream and not been answered yet: `CLIENT PAUSE` postpones commands, and newer servers
/// do not show a postponed command to the filters again. Until the backlog has been seen, "nobody" is not believed.
static SYNC_PENDING: AtomicBool = AtomicBool::new(false);

/// Makes what effects are made of. Until [`start`], every effect has a receiver.
pub(super) fn prepare() {
    RECEIVERS.store(ALWAYS, Ordering::Relaxed);
    SYNC_PENDING.store(false, Ordering::Relaxed);
    let word = c"PXAT";
    // SAFETY: the server copies the word; without a context it is the module's own.
    let word = unsafe { server!(RedisModule_CreateString(ptr::null_mut(), word.as_ptr(), word.count_bytes())) };
    PXAT.store(word, Ordering::Relaxed);
}

/// From now on each event after which there may be a receiver leads to [`ask_at_next_effect`].
pub(super) fn start(server: &Server<'_>) {
    // A node of a cluster may send the keys of a slot to another node by a stream of another kind.
    if !server.in_cluster() && is_known_version(server) && knows_sync_by_name(server) {
        RECEIVERS.store(ASK, Ordering::Relaxed);
    }
}

/// `PXAT`, made once.
static PXAT: AtomicPtr<raw::RedisModuleString> = AtomicPtr::new(ptr::null_mut());

/// The word `PXAT`, as an argument of an effect.
pub(super) fn pxat() -> *mut raw::RedisModuleString {
    PXAT.load(Ordering::Relaxed)
}

/// Gives back what [`prepare`] made.
pub(super) fn stop() {
    // The server removes the filters of a module that it unloads.
    FILTER.store(ptr::null_mut(), Ordering::Relaxed);
    let word = PXAT.swap(ptr::null_mut(), Ordering::Relaxed);
    if !word.is_null() {
        // SAFETY: it was made by `prepare`, and is given back once. A string needs no context to be freed.
        unsafe { server!(RedisModule_FreeString(ptr::null_mut(), word)) };
    }
}

/// The next effect asks the server whether it has a receiver.
pub(super) fn ask_at_next_effect() {
    if RECEIVERS.load(Ordering::Relaxed) != ALWAYS {
        RECEIVERS.store(ASK, Ordering::Relaxed);
    }
}

/// The server calls it for each command, before the command runs.
extern "C" fn filter(command: *mut raw::RedisModuleCommandFilterCtx) {
    let mut len = 0;
    // SAFETY: the server passes the arguments of a command; the name is the first, and does not change in this call. The functions
    // exist, or the module would not have been loaded.
    let name = unsafe {
        let name = server!(RedisModule_CommandFilterArgGet(command, 0));
        if name.is_null() {
            return;
        }
        let bytes = server!(RedisModule_StringPtrLen(name, &mut len));
        if !(4..=5).contains(&len) {
            return;
        }
        std::slice::from_raw_parts(bytes.cast::<u8>(), len)
    };
    if name.eq_ignore_ascii_case(b"PSYNC") || name.eq_ignore_ascii_case(b"SYNC") {
        // SAFETY: it takes nothing.
        if unsafe { server!(RedisModule_AvoidReplicaTraffic()) } != 0 {
            SYNC_PENDING.store(true, Ordering::Relaxed);
        }
        ask_at_next_effect();
    }
}

/// Whether the next effect has a receiver.
pub(super) fn has_receiver(server: &Server<'_>) -> bool {
    match RECEIVERS.load(Ordering::Relaxed) {
        NOBODY => false,
        ASK => {
            let somebody = ask(server) || !set_filter(server);
            if somebody {
                remove_filter(server);
            }
            RECEIVERS.store(if somebody { TRUSTED } else { NOBODY }, Ordering::Relaxed);
            somebody
        }
        ALWAYS => true,
        trusted => {
            RECEIVERS.store(trusted - 1, Ordering::Relaxed);
            true
        }
    }
}

/// Registers the filter; whether it is registered now.
fn set_filter(server: &Server<'_>) -> bool {
    if FILTER.load(Ordering::Relaxed).is_null() {
        // SAFETY: the context is that of a running call of a command of this module.
        FILTER.store(unsafe { server!(RedisModule_RegisterCommandFilter(server.ctx, Some(filter), 0)) }, Ordering::Relaxed);
    }
    !FILTER.load(Ordering::Relaxed).is_null()
}

fn remove_filter(server: &Server<'_>) {
    let filter = FILTER.swap(ptr::null_mut(), Ordering::Relaxed);
    if !filter.is_null() {
        // SAFETY: `set_filter` has registered it, and no filter runs now: a command does.
        unsafe { server!(RedisModule_UnregisterCommandFilter(server.ctx, filter)) };
    }
}

/// Asks the server, which knows of a replica from its first `PSYNC` on. When in doubt, there is a receiver.
fn ask(server: &Server<'_>) -> bool {
    let flags = server.flags();
    let primary = flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0;
    let stores = flags & (raw::REDISMODULE_CTX_FLAGS_AOF | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0;
    if !primary || stores {
        return true;
    }
    let info = Info::ask(server, c"replication");
    let none = |field: &CStr| info.number(field) == Some(0);
    let streams = !(none(c"connected_slaves") && none(c"repl_backlog_active"));
    if streams {
        SYNC_PENDING.store(false, Ordering::Relaxed);
    }
    streams || SYNC_PENDING.load(Ordering::Relaxed)
}

/// Whether this is a version of the server whose ways to begin a stream are known: those that [`RECEIVERS`] lists.
fn is_known_version(server: &Server<'_>) -> bool {
    let info = Info::ask(server, c"server");
    match (info.text(c"valkey_version"), info.text(c"redis_version")) {
        (Some(valkey), _) => major(valkey).is_some_and(|major| major <= 9),
        (None, Some(redis)) => major(redis).is_some_and(|major| major <= 8),
        (None, None) => false,
    }
}

/// Whether `SYNC` and `PSYNC` have these names on this server: [`filter`] would not know them by others (`rename-command`).
fn knows_sync_by_name(server: &Server<'_>) -> bool {
    [c"SYNC", c"PSYNC"].into_iter().all(|name| {
        // SAFETY: the context is live. The reply is freed once, after all that is read of it.
        unsafe {
            let reply =
                server!(RedisModule_Call(server.ctx, c"COMMAND".as_ptr(), c"cc".as_ptr(), c"INFO".as_ptr(), name.as_ptr()));
            if reply.is_null() {
                return false;
            }
            // One element, which is nil for a name that the server does not know.
            let element = server!(RedisModule_CallReplyArrayElement(reply, 0));
            let known =
                !element.is_null() && server!(RedisModule_CallReplyType(element)) == raw::REDISMODULE_REPLY_ARRAY as c_int;
            server!(RedisModule_FreeCallReply(reply));
            known
        }
    })
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

    pub(super) fn number(&self, field: &CStr) -> Option<i64> {
        self.text(field)?.to_str().ok()?.parse().ok()
    }
}

impl Drop for Info<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing borrowed from `data` outlives `self`.
        unsafe { server!(RedisModule_FreeServerInfo(self.server.ctx, self.data)) };
    }
}
