//! One key: what it holds, and every way in which the module changes it.

use std::cell::Cell;
use std::ffi::c_int;
use std::ops::RangeInclusive;

use redis_module::raw;

use super::api::server;
use super::effects::{self, DEL, PEXPIREAT, SET, SETRANGE};
use super::{Call, Server};

/// From this length on, a change at the end of a value is replicated as such, and not with the whole value, even if the deadline
/// moves, too.
const LONG: usize = 256;

/// What a key holds.
pub enum Held<'k> {
    /// There is no such key.
    Nothing,
    /// A string that may be a record.
    Bytes(&'k [u8]),
    /// A string too short for any record.
    Short,
    /// A value of this other type.
    Type(&'static str),
}

/// What the server stores in a string, in bytes.
const MOST: usize = 512 * 1024 * 1024;

/// An open key. Each change is complete: the bytes, the deadline, what watches the key, and the replicas.
pub struct Key<'c> {
    server: &'c Server<'c>,
    name: *mut raw::RedisModuleString,
    /// Whether the name was made for this key, and goes with it.
    own_name: bool,
    key: *mut raw::RedisModuleKey,
    /// How its value is looked at: where it is to be changed, as what may be written to.
    access: c_int,
    /// The value and its length, once it was looked at, until the next change.
    value: Cell<Option<(*mut u8, usize)>>,
}

/// Where a key is.
pub enum Found<K> {
    /// In this server.
    Here(K),
    /// On another node of the cluster, or on its way there.
    Elsewhere,
}

const UPDATE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

impl<'c> Key<'c> {
    /// Opens the key that argument `index` names, to be changed; `None` if there is no such argument.
    pub fn open(call: &'c Call<'c>, index: usize) -> Option<Self> {
        Some(Self::open_with(call, *call.arguments.get(index)?, false, UPDATE))
    }

    /// Opens a key of this database by its name, to be changed.
    pub fn open_named(server: &'c Server<'c>, db: i32, name: &[u8]) -> Found<Self> {
        // SAFETY: `ctx` is the server's live context; it copies the name, which the key frees when it is dropped. The server
        // refuses a call, with null, for a key that it would redirect a client for. The command is the module's own, since an
        // operator can rename the server's.
        unsafe {
            if server!(RedisModule_SelectDb(server.ctx, db)) != raw::REDISMODULE_OK as c_int {
                return Found::Elsewhere;
            }
            let name = server!(RedisModule_CreateString(server.ctx, name.as_ptr().cast(), name.len()));
            if server.in_cluster() {
                let reply = server!(RedisModule_Call(server.ctx, c"RL.INSPECT".as_ptr(), c"s".as_ptr(), name));
                if reply.is_null() {
                    server!(RedisModule_FreeString(server.ctx, name));
                    return Found::Elsewhere;
                }
                server!(RedisModule_FreeCallReply(reply));
            }
            Found::Here(Self::open_with(server, name, true, UPDATE))
        }
    }

    /// Opens the key that argument `index` names, only to look at it: it is not even marked as used.
    pub fn look(call: &'c Call<'c>, index: usize) -> Option<Self> {
        // A key whose time is up is not there, but it is not for a look to delete it. Redis 7.0 does not know this flag, and
        // does as with any command that reads.
        const NOEXPIRE: u32 = 1 << 19;
        let mode = raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH | NOEXPIRE;
        Some(Self::open_with(call, *call.arguments.get(index)?, false, mode))
    }

    fn open_with(server: &'c Server<'c>, name: *mut raw::RedisModuleString, own_name: bool, mode: u32) -> Self {
        // SAFETY: the context outlives `self`, and so does the name: it belongs to the running call, or to `self`. The key is
        // closed when that is dropped.
        let key = unsafe { server!(RedisModule_OpenKey(server.ctx, name, mode as c_int)) };
        let access = (mode & UPDATE) as c_int;
        Self { server, name, own_name, key: key.cast(), access, value: Cell::new(None) }
    }

    /// When it expires, in milliseconds since the Unix epoch; `None` if it does not, or there is no such key.
    pub fn expires_ms(&self) -> Option<i64> {
        // SAFETY: `key` is open, or null for a missing key, which the first function takes. Redis 8.2 crashes if it is asked
        // for the deadline of a missing key.
        let ms = unsafe {
            if server!(RedisModule_KeyType(self.key)) as isize == raw::REDISMODULE_KEYTYPE_EMPTY {
                return None;
            }
            server!(RedisModule_GetAbsExpire(self.key))
        };
        // A negative number: it has none.
        (ms >= 0).then_some(ms)
    }

    /// What the key holds. A string shorter than `least` bytes is not looked at: to do so would change how it is stored.
    pub fn held(&self, least: usize) -> Held<'_> {
        // SAFETY: `key` is open, or null for a missing key, which both functions take.
        let (kind, len) = unsafe { (server!(RedisModule_KeyType(self.key)), server!(RedisModule_ValueLength(self.key))) };
        match kind as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Held::Nothing,
            raw::REDISMODULE_KEYTYPE_STRING if len < least => Held::Short,
            raw::REDISMODULE_KEYTYPE_STRING => {
                let mut len = 0;
                // SAFETY: the key is open and a string, so this is its value, `len` bytes long. It stays where it is until
                // the value is changed, which takes `&mut self`, or the key is closed, which ends the borrow.
                Held::Bytes(unsafe {
                    let bytes = server!(RedisModule_StringDMA(self.key, &mut len, self.access)).cast::<u8>();
                    self.value.set(Some((bytes, len)));
                    std::slice::from_raw_parts(bytes, len)
                })
            }
            raw::REDISMODULE_KEYTYPE_LIST => Held::Type("list"),
            raw::REDISMODULE_KEYTYPE_HASH => Held::Type("hash"),
            raw::REDISMODULE_KEYTYPE_SET => Held::Type("set"),
            raw::REDISMODULE_KEYTYPE_ZSET => Held::Type("sorted set"),
            raw::REDISMODULE_KEYTYPE_STREAM => Held::Type("stream"),
            _ => Held::Type("value of a module's type"),
        }
    }

    /// Whether a string can be so many bytes long.
    pub fn fits(len: usize) -> bool {
        len <= MOST
    }

    /// Makes the value its own first `offset` bytes, which begin with `head` from now on, followed by `bytes`, in place, and has it
    /// expire at one of these `deadlines` (milliseconds since the Unix epoch). It [fits](Self::fits), and so does `head` into
    /// what stays.
    pub fn write(&mut self, offset: usize, (head, bytes): (&[u8], &[u8]), deadlines: RangeInclusive<i64>) {
        debug_assert!(Self::fits(offset + bytes.len()) && head.len() <= offset);
        // SAFETY: the key is open for writing and empty or a string. Its value has `before` bytes, is made `after` bytes
        // long where it is not, and is then that long at `value` until the next change; `offset + bytes.len()` is `after`, and
        // `head` is no longer than `offset`.
        unsafe {
            let known = self.value.take();
            let before = known.map_or_else(|| server!(RedisModule_ValueLength(self.key)), |(_, len)| len);
            let after = offset + bytes.len();
            let value = match known {
                Some((value, len)) if len == after => value,
                _ => {
                    if before != after
                        && server!(RedisModule_StringTruncate(self.key, after)) != raw::REDISMODULE_OK as c_int
                    {
                        return;
                    }
                    let mut len = 0;
                    let value: *mut u8 = server!(RedisModule_StringDMA(self.key, &mut len, self.access)).cast();
                    debug_assert_eq!(len, after);
                    value
                }
            };
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.add(offset), bytes.len());
            if !head.is_empty() {
                std::ptr::copy_nonoverlapping(head.as_ptr(), value, head.len());
            }

            // The replicas are told the effect, not the call: they hold the same bytes with the same deadline.
            let at_end = offset > 0 && after >= before;
            // Moving the deadline of a log is a command of its own, or has the whole log told, and is more work than looking at it:
            // it is moved seldom, and then as far as it may.
            let (moved, deadline_ms) = if at_end {
                (!deadlines.contains(&server!(RedisModule_GetAbsExpire(self.key))), *deadlines.end())
            } else {
                (true, *deadlines.start())
            };
            let name = self.name;
            self.changed(|ctx| {
                if at_end && (!moved || after >= LONG) {
                    let range = |offset: usize, bytes: &[u8]| {
                        let (offset, bytes, len) = (offset as i64, bytes.as_ptr(), bytes.len());
                        server!(RedisModule_Replicate(ctx, SETRANGE.as_ptr(), c"slb".as_ptr(), name, offset, bytes, len));
                    };
                    if !head.is_empty() {
                        range(0, head);
                    }
                    range(offset, bytes);
                    if moved {
                        server!(RedisModule_Replicate(ctx, PEXPIREAT.as_ptr(), c"sl".as_ptr(), name, deadline_ms));
                    }
                } else {
                    let at = effects::pxat();
                    server!(RedisModule_Replicate(ctx, SET.as_ptr(), c"sbsl".as_ptr(), name, value, after, at, deadline_ms));
                }
            });
            if moved {
                // Last, since it may move the value.
                server!(RedisModule_SetAbsExpire(self.key, deadline_ms));
            }
        }
    }

    /// Deletes the key.
    pub fn remove(&mut self) {
        // SAFETY: the key is open for writing, and stays open, as a missing one.
        unsafe {
            self.value.set(None);
            server!(RedisModule_DeleteKey(self.key));
            self.changed(|ctx| {
                server!(RedisModule_Replicate(ctx, DEL.as_ptr(), c"s".as_ptr(), self.name));
            });
        }
    }

    /// Replicates the change by `effects`, if anything receives them, and notifies `WATCH` and client-side caches.
    fn changed(&self, effects: impl FnOnce(*mut raw::RedisModuleCtx)) {
        let ctx = self.server.ctx;
        // A timer has no call, and so nothing to mark the dataset as changed by.
        if self.own_name || effects::has_receiver(self.server) {
            effects(ctx);
        } else {
            // There is no replica, backlog or append-only file that this could reach. It only counts the change, which is what
            // `save` points go by.
            // SAFETY: `ctx` is the context of the running call.
            unsafe { server!(RedisModule_ReplicateVerbatim(ctx)) };
        }
        // SAFETY: the key's name lives at least as long as the key.
        unsafe { server!(RedisModule_SignalModifiedKey(ctx, self.name)) };
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: the key was opened by `self`, and nothing borrowed from it is left; nor is anything else of its own name.
        unsafe {
            server!(RedisModule_CloseKey(self.key));
            if self.own_name {
                server!(RedisModule_FreeString(self.server.ctx, self.name));
            }
        }
    }
}
