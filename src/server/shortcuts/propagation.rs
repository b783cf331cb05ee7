//! Builds no effects while nothing would receive them.
//!
//! `RedisModule_Replicate` takes about as long as the rest of a call, even if the server then discards the effect because it has
//! no replica, no replication backlog and no append-only file. So the module asks the server whether it has one of them, and
//! trusts a "no" until one of them can have appeared. It detects every way in which that happens:
//!
//! * `SYNC` or `PSYNC` creates a replica, and with it the backlog. The server fires no event for these commands, so a command
//!   filter ([`detect_sync`]) looks for their names. It is registered only while the answer is "no".
//! * A backlog can also come from the file that the server loads, or from its time as a replica. Both fire events.
//! * `CONFIG SET` turns on the append-only file. It fires an event.
//!
//! A second safeguard covers ways that are missing in this list: every receiver of effects starts from a copy of all keys, and the
//! server makes such a copy in a forked process or writes it to an RDB file (`SAVE`, `SHUTDOWN`). Both fire events, too.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::server::{api, raw, string_bytes, Info, Server};

/// [`NO_RECEIVER`], [`ASK`] or [`ALWAYS`]. Any other number n means that there is a receiver, and that the module asks the
/// server again after n more effects.
static STATE: AtomicU32 = AtomicU32::new(ALWAYS);

/// Effects have no receiver.
const NO_RECEIVER: u32 = 0;
/// It is not known whether effects have a receiver: ask the server at the next effect.
const ASK: u32 = 1;
/// After this many effects, the module asks the server again, because no event reports that the last receiver has gone.
const ASK_AGAIN_AFTER: u32 = 10_000;
/// The shortcut is off: replicate every effect.
const ALWAYS: u32 = u32::MAX;

/// The command filter; null while none is registered.
static FILTER: AtomicPtr<raw::RedisModuleCommandFilter> = AtomicPtr::new(ptr::null_mut());

/// Whether a replica may have sent `SYNC` or `PSYNC` without the server having executed it yet: `CLIENT PAUSE` postpones
/// commands, and newer servers do not pass a postponed command to the filters again. While this is true, the module does not trust a
/// "no" of the server. It becomes false when the server reports a replica or a backlog.
static SYNC_PENDING: AtomicBool = AtomicBool::new(false);

/// Turns the shortcut off, until [`start`] is called.
pub(in crate::server) fn reset() {
    STATE.store(ALWAYS, Ordering::Relaxed);
    SYNC_PENDING.store(false, Ordering::Relaxed);
    // The server removes the filters of a module that it unloads.
    FILTER.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Turns the shortcut on where it is safe. From now on, each event after which there may be a receiver must lead to
/// [`ask_at_next_effect`].
pub(in crate::server) fn start(server: &Server<'_>) {
    // A node of a cluster can send the keys of a slot to another node by a stream that `INFO replication` does not show.
    if !server.in_cluster() && super::are_in_use() && knows_sync_by_name(server) {
        STATE.store(ASK, Ordering::Relaxed);
    }
}

/// Makes the module ask the server at the next effect whether effects have a receiver.
pub(in crate::server) fn ask_at_next_effect() {
    if STATE.load(Ordering::Relaxed) != ALWAYS {
        STATE.store(ASK, Ordering::Relaxed);
    }
}

/// Whether the effects of a change must be replicated.
pub(in crate::server) fn is_needed(server: &Server<'_>) -> bool {
    match STATE.load(Ordering::Relaxed) {
        NO_RECEIVER => false,
        ASK => {
            let needed = may_have_receiver(server) || !register_filter(server);
            if needed {
                unregister_filter(server);
            }
            STATE.store(if needed { ASK_AGAIN_AFTER } else { NO_RECEIVER }, Ordering::Relaxed);
            needed
        }
        ALWAYS => true,
        effects_left => {
            STATE.store(effects_left - 1, Ordering::Relaxed);
            true
        }
    }
}

/// Asks the server whether anything receives effects. When in doubt, the answer is yes.
fn may_have_receiver(server: &Server<'_>) -> bool {
    let flags = server.flags();
    let is_primary = flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0;
    let has_file = flags & (raw::REDISMODULE_CTX_FLAGS_AOF | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0;
    if !is_primary || has_file {
        return true;
    }
    let info = Info::section(server, c"replication");
    let has_stream = info.number(c"connected_slaves") != Some(0) || info.number(c"repl_backlog_active") != Some(0);
    if has_stream {
        SYNC_PENDING.store(false, Ordering::Relaxed);
    }
    has_stream || SYNC_PENDING.load(Ordering::Relaxed)
}

/// Registers the command filter if it is not registered yet. Returns whether it is registered now.
fn register_filter(server: &Server<'_>) -> bool {
    if FILTER.load(Ordering::Relaxed).is_null() {
        // SAFETY: the context belongs to a running command of this module. The filter is a function that stays loaded as long
        // as the module.
        let filter = unsafe { api!(RedisModule_RegisterCommandFilter(server.ctx, Some(detect_sync), 0)) };
        FILTER.store(filter, Ordering::Relaxed);
    }
    !FILTER.load(Ordering::Relaxed).is_null()
}

fn unregister_filter(server: &Server<'_>) {
    let filter = FILTER.swap(ptr::null_mut(), Ordering::Relaxed);
    if !filter.is_null() {
        // SAFETY: `register_filter` got the pointer from the server, and the swap above ensures that it is used once. No filter
        // is running, since a command is.
        unsafe { api!(RedisModule_UnregisterCommandFilter(server.ctx, filter)) };
    }
}

/// The command filter: the server calls it for each command, before it executes the command.
///
/// # Safety
/// Only the server may call it: `command` must be valid during the call.
unsafe extern "C" fn detect_sync(command: *mut raw::RedisModuleCommandFilterCtx) {
    // SAFETY: the server passes a valid `command`.
    let name = unsafe { api!(RedisModule_CommandFilterArgGet(command, 0)) };
    if name.is_null() {
        return;
    }
    // SAFETY: the name is an argument of the command, which nobody changes while the filter runs.
    let name = unsafe { string_bytes(name) };
    if name.eq_ignore_ascii_case(b"PSYNC") || name.eq_ignore_ascii_case(b"SYNC") {
        // SAFETY: the function has no requirements.
        if unsafe { api!(RedisModule_AvoidReplicaTraffic()) } != 0 {
            SYNC_PENDING.store(true, Ordering::Relaxed);
        }
        ask_at_next_effect();
    }
}

/// Whether the server knows `SYNC` and `PSYNC` by these names. [`detect_sync`] would not recognize them under other names
/// (`rename-command`).
fn knows_sync_by_name(server: &Server<'_>) -> bool {
    [c"SYNC", c"PSYNC"].into_iter().all(|name| {
        let (command, format, info) = (c"COMMAND".as_ptr(), c"cc".as_ptr(), c"INFO".as_ptr());
        // SAFETY: the context is live as long as `server`, and the format takes the two C strings that follow it. The reply is
        // freed once, and nothing of it is used afterwards.
        unsafe {
            let reply = api!(RedisModule_Call(server.ctx, command, format, info, name.as_ptr()));
            if reply.is_null() {
                return false;
            }
            // The reply has one element, which is nil if the server does not know the name.
            let element = api!(RedisModule_CallReplyArrayElement(reply, 0));
            let is_known =
                !element.is_null() && api!(RedisModule_CallReplyType(element)) == raw::REDISMODULE_REPLY_ARRAY as c_int;
            api!(RedisModule_FreeCallReply(reply));
            is_known
        }
    })
}
