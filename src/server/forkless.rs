//! Valkey 9.2 saves its keys and copies them to replicas without a fork if all modules have declared that they can handle it.
//!
//! A thread of the server then reads values while the main thread executes commands. Before a command that writes, the server looks
//! at the keys that the command declares: it holds the command back while the thread reads one of them, has the thread save values
//! that it has not reached yet, and decides whether the effects go to the replica. This has three consequences for a module:
//!
//! * `RedisModule_OpenKey` for writing returns null while the thread reads the key. A command answers an error then, and a line
//!   is served a little later.
//! * A timer has no command. So it first calls one that declares the keys and does nothing ([`Server::announce`]). Without that, a snapshot
//!   could lack a key that the timer changes, and a new replica could miss the change.
//! * `RedisModule_StringDMA` may move a short value in memory even for reading, which the server does not survive while the thread
//!   reads it. So a key is opened for writing to be read, too.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use super::owned_name::OwnedName;
use super::{api, raw, Call, Server, ServerString};

/// The option by which a module declares that it can handle this: `VALKEYMODULE_OPTIONS_HANDLE_FORKLESS`.
pub(super) const OPTION: c_int = 1 << 6;

/// Whether the module has declared [`OPTION`].
static DECLARED: AtomicBool = AtomicBool::new(false);

/// Whether [`Server::announce`] is calling `RL.ALL`.
static ANNOUNCING: AtomicBool = AtomicBool::new(false);

/// Notes whether the module declares [`OPTION`], while it is loaded.
pub(super) fn start(declared: bool) {
    DECLARED.store(declared, Ordering::Relaxed);
}

/// Whether a thread of the server may be reading keys.
pub(super) fn is_possible() -> bool {
    DECLARED.load(Ordering::Relaxed)
}

impl Server<'_> {
    /// Announces to the server, in a timer's callback, that these keys of database `db` are about to be changed, all in one callback
    /// and before any other. Returns whether they can be changed now.
    pub fn announce<N: AsRef<[u8]>>(&self, db: i32, names: &[N]) -> bool {
        if !is_possible() || !self.select(db) {
            return true;
        }
        let owned: Vec<_> = names.iter().map(|name| OwnedName::new(self, name.as_ref())).collect();
        let mut names: Vec<ServerString> = owned.iter().map(|owned| owned.name).collect();
        let len = names.len();
        // Expired keys are deleted first, because a subscriber to the notification may execute a command with other keys.
        for &name in &names {
            // SAFETY: the context is live, and the name is valid.
            unsafe { api!(RedisModule_KeyExists(self.ctx, name)) };
        }
        ANNOUNCING.store(true, Ordering::Relaxed);
        // SAFETY: the context is live, and the names are valid. The format takes an integer, an array of strings with its length, and
        // three C strings, which follow in this order. A reply is freed once.
        let is_in_use = unsafe {
            let (command, format, names) = (c"RL.ALL".as_ptr(), c"lvccc".as_ptr(), names.as_mut_ptr());
            let (kind, limit, period) = (c"FIXED".as_ptr(), c"1".as_ptr(), c"1".as_ptr());
            let reply = api!(RedisModule_Call(self.ctx, command, format, len as i64, names, len, kind, limit, period));
            // `Call::is_announcement` keeps the command from replying with an error, so that one comes from the server. There is no
            // reply if the server refuses the call for another reason, such as the state of the cluster.
            let is_in_use =
                !reply.is_null() && api!(RedisModule_CallReplyType(reply)) == raw::REDISMODULE_REPLY_ERROR as c_int;
            if !reply.is_null() {
                api!(RedisModule_FreeCallReply(reply));
            }
            is_in_use
        };
        ANNOUNCING.store(false, Ordering::Relaxed);
        !is_in_use
    }
}

impl Call<'_> {
    /// Whether the module itself makes this call, only to announce the keys. The command must then reply and do nothing else.
    pub fn is_announcement(&self) -> bool {
        ANNOUNCING.load(Ordering::Relaxed)
    }
}
