//! Keys: [`ReadKey`] reads a value, [`WriteKey`] also changes it and replicates the change.

use std::cell::Cell;
use std::ffi::{c_int, CStr};
use std::ops::{Deref, RangeInclusive};
use std::ptr;
use std::sync::OnceLock;

use super::effects::Effects;
use super::owned_name::OwnedName;
use super::{api, forkless, propagation, raw, Call, Server, ServerString};

/// About how many bytes an effect has besides the key's name and the bytes that it writes.
const EFFECT: usize = 48;

/// The value of a key.
pub enum Value<'k> {
    /// The key does not exist.
    Missing,
    /// The bytes of a string.
    String(&'k [u8]),
    /// A string with fewer bytes than the caller asked for.
    TooShort,
    /// A value of another type, which has this name.
    OtherType(&'static str),
}

/// A key that is open for reading.
pub struct ReadKey<'c> {
    server: &'c Server<'c>,
    name: ServerString,
    /// Null if the key is open only for reading and does not exist.
    handle: *mut raw::RedisModuleKey,
    /// The mode in which the bytes of the value are accessed: [`WRITE`] if they may be changed in place.
    access: c_int,
    /// The bytes of the value and their number, if [`Self::value`] has looked them up since the last change.
    known: Cell<Option<(*mut u8, usize)>>,
}

/// A key that is open for reading and writing. Each change is complete: the bytes, the deadline, its effects, and the
/// invalidation of `WATCH` and of client-side caches.
pub struct WriteKey<'c> {
    key: ReadKey<'c>,
    /// The name, if it was made for this key. It is declared after `key`, so that the key is closed before its name is freed.
    own_name: Option<OwnedName<'c>>,
}

/// The key's slot is on another node of the cluster, or is being moved to one.
pub struct Moved;

const WRITE: c_int = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;

impl<'c> ReadKey<'c> {
    /// Opens the key that argument `index` names. The server does not mark the key as used. `None` if a thread of the server
    /// [is reading the key](forkless), or the call has no such argument.
    pub fn open(call: &'c Call<'c>, index: usize) -> Option<Self> {
        Self::open_marked(call, index, raw::REDISMODULE_OPEN_KEY_NOTOUCH)
    }

    /// As [`Self::open`], but the server marks the key as used, as it does in `GET`. So a policy that serves calls is not evicted as
    /// one that nobody reads.
    pub fn open_used(call: &'c Call<'c>, index: usize) -> Option<Self> {
        Self::open_marked(call, index, 0)
    }

    #[inline(always)]
    fn open_marked(call: &'c Call<'c>, index: usize, mark: u32) -> Option<Self> {
        // With this flag, an expired key reads as missing, but is not deleted. Redis 7.0 does not know the flag, and treats the
        // key as in any command that reads.
        const NOEXPIRE: u32 = 1 << 19;
        let mode = (raw::REDISMODULE_READ | NOEXPIRE | mark) as c_int;
        let &name = call.arguments.get(index)?;
        let mode = if forkless::is_possible() { mode | WRITE } else { mode };
        // SAFETY: the name is an argument of the call, which outlives `'c`.
        unsafe { Self::open_with(call, name, mode, raw::REDISMODULE_READ as c_int) }
    }

    /// Opens a key in the selected database. `None` if `mode` includes [`WRITE`], and a thread of the server is reading the key.
    ///
    /// # Safety
    /// `name` must be a valid string that outlives the result.
    #[inline(always)]
    unsafe fn open_with(server: &'c Server<'c>, name: ServerString, mode: c_int, access: c_int) -> Option<Self> {
        // SAFETY: the context is live as long as `server`, and the caller vouches for the name. Dropping the result closes the
        // key.
        let handle = unsafe { api!(RedisModule_OpenKey(server.ctx, name, mode)) };
        if handle.is_null() && mode & WRITE == WRITE {
            return None;
        }
        Some(Self { server, name, handle: handle.cast(), access, known: Cell::new(None) })
    }

    /// Returns when the key expires, in milliseconds since the Unix epoch; `None` if it has no deadline or does not exist.
    pub fn expires_ms(&self) -> Option<i64> {
        // SAFETY: `handle` is an open key or null; the first function accepts both. The second is called for existing keys only,
        // because Redis 8.2 crashes when it is called for a missing one.
        let ms = unsafe {
            if api!(RedisModule_KeyType(self.handle)) as isize == raw::REDISMODULE_KEYTYPE_EMPTY {
                return None;
            }
            api!(RedisModule_GetAbsExpire(self.handle))
        };
        // A negative number means that there is no deadline.
        (ms >= 0).then_some(ms)
    }

    /// Returns the value. If a string has fewer than `min_len` bytes, this does not access the bytes, because that would change
    /// how the server stores the string.
    #[inline(always)]
    pub fn value(&self, min_len: usize) -> Value<'_> {
        if let Some((bytes, len)) = self.known.get().filter(|&(_, len)| len >= min_len) {
            // SAFETY: the last look-up, below, returned this pointer and this length. The value has not changed since then: a
            // `WriteKey` forgets both before it changes the value, and no call has the same key open twice.
            return Value::String(unsafe { std::slice::from_raw_parts(bytes, len) });
        }
        // SAFETY: `handle` is an open key or null; both functions accept both.
        let (kind, len) = unsafe { (api!(RedisModule_KeyType(self.handle)), api!(RedisModule_ValueLength(self.handle))) };
        match kind as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Value::Missing,
            raw::REDISMODULE_KEYTYPE_STRING if len < min_len => Value::TooShort,
            raw::REDISMODULE_KEYTYPE_STRING => {
                let mut len = 0;
                // SAFETY: the key is open and holds a string, so the server returns a pointer to the `len` bytes of its value.
                // These stay in place until the value changes, which takes `&mut WriteKey`, or the key is closed. Either ends
                // the borrow of `self`.
                Value::String(unsafe {
                    let bytes = api!(RedisModule_StringDMA(self.handle, &mut len, self.access)).cast::<u8>();
                    self.known.set(Some((bytes, len)));
                    std::slice::from_raw_parts(bytes, len)
                })
            }
            raw::REDISMODULE_KEYTYPE_LIST => Value::OtherType("list"),
            raw::REDISMODULE_KEYTYPE_HASH => Value::OtherType("hash"),
            raw::REDISMODULE_KEYTYPE_SET => Value::OtherType("set"),
            raw::REDISMODULE_KEYTYPE_ZSET => Value::OtherType("sorted set"),
            raw::REDISMODULE_KEYTYPE_STREAM => Value::OtherType("stream"),
            _ => Value::OtherType("value of a module's type"),
        }
    }
}

impl<'c> WriteKey<'c> {
    /// Opens the key that argument `index` names. `None` if a thread of the server [is reading the key](forkless), or the call has
    /// no such argument.
    pub fn open(call: &'c Call<'c>, index: usize) -> Option<Self> {
        let &name = call.arguments.get(index)?;
        // SAFETY: the name is an argument of the call, which outlives `'c`.
        let key = unsafe { ReadKey::open_with(call, name, WRITE, WRITE) }?;
        Some(Self { key, own_name: None })
    }

    /// Checks that this node serves a key of database `db`, in a timer's callback. Outside a cluster it does.
    ///
    /// # Errors
    /// [`Moved`] if this node of the cluster would redirect a client that asks for the key.
    pub fn check_node(server: &Server<'_>, db: i32, name: &[u8]) -> Result<(), Moved> {
        if !server.select(db) {
            return Err(Moved);
        }
        if !server.in_cluster() {
            return Ok(());
        }
        let name = OwnedName::new(server, name);
        // The server refuses a call for a key for which it would redirect a client.
        let reply_type = |command: &CStr, format: &CStr| {
            // SAFETY: the context is live as long as `server`. The formats below take at most a string and a C string, and both
            // are valid. The reply is freed once.
            unsafe {
                let id = c"id".as_ptr();
                let reply = api!(RedisModule_Call(server.ctx, command.as_ptr(), format.as_ptr(), name.name, id));
                if reply.is_null() {
                    return raw::REDISMODULE_REPLY_UNKNOWN;
                }
                let kind = api!(RedisModule_CallReplyType(reply)) as isize;
                api!(RedisModule_FreeCallReply(reply));
                kind
            }
        };
        // An operator can rename the server's commands, but not the module's. With `cluster-allow-reads-when-down`, a server accepts
        // calls that read while the cluster is down. So the server is asked about a call that writes.
        let (write, read) = (c"RL.RELEASE", c"RL.INSPECT");
        // The flag `D` makes the server check a call, without executing or counting it, and reply with an error if it
        // refuses it. Here the call lacks its key, so a server that knows the flag refuses it. Redis 7.0 does not know the
        // flag, and has no reply.
        static HAS_DRY_RUN: OnceLock<bool> = OnceLock::new();
        let is_here = if *HAS_DRY_RUN.get_or_init(|| reply_type(write, c"D") == raw::REDISMODULE_REPLY_ERROR) {
            // Most servers have no reply to a call that they accept. Valkey 9.1 has an empty one.
            reply_type(write, c"scD") != raw::REDISMODULE_REPLY_ERROR
        } else {
            // `EXISTS` takes O(1), if it is not renamed. There is no reply to a refused call. While the cluster is down, Redis 7.0
            // itself ends the waits.
            [c"EXISTS", read].iter().any(|command| reply_type(command, c"s") != raw::REDISMODULE_REPLY_UNKNOWN)
        };
        is_here.then_some(()).ok_or(Moved)
    }

    /// Opens a key of database `db` by its name, in a timer's callback. See [`Self::check_node`]. `None` if a thread of the server
    /// [is reading it](forkless).
    ///
    /// # Errors
    /// [`Moved`] if there is no such database.
    pub fn open_named(server: &'c Server<'c>, db: i32, name: &[u8]) -> Result<Option<Self>, Moved> {
        if !server.select(db) {
            return Err(Moved);
        }
        let owned = OwnedName::new(server, name);
        // SAFETY: `owned` is freed after the key is closed: see `own_name`.
        let key = unsafe { ReadKey::open_with(server, owned.name, WRITE, WRITE) };
        Ok(key.map(|key| Self { key, own_name: Some(owned) }))
    }

    /// The longest string that the server stores, in bytes.
    pub const MAX_LEN: usize = 512 * 1024 * 1024;

    /// Replaces the value, or creates the key. `deadlines` is the range, in milliseconds since the Unix epoch, that the key's deadline
    /// must be in afterwards: it becomes the first of them.
    ///
    /// The value must have at most [`Self::MAX_LEN`] bytes.
    #[inline(always)]
    pub fn replace(&mut self, value: &[u8], deadlines: RangeInclusive<i64>) {
        debug_assert!(value.len() <= Self::MAX_LEN);
        let (first_ms, last_ms) = deadlines.into_inner();
        if self.is_missing() {
            return self.create(value, first_ms);
        }
        let Some((bytes, _)) = self.resize(value.len()) else { return };
        // SAFETY: `bytes` points to as many bytes as `value` has, which the server neither reads nor writes until the next call.
        unsafe { std::slice::from_raw_parts_mut(bytes, value.len()) }.copy_from_slice(value);
        self.propagate(|effects| effects.set(value, first_ms));
        // On Redis 8 the look at the present deadline takes a tenth of the time of setting it. It is worth it only if the range has
        // several deadlines: others nearly always have changed.
        if first_ms == last_ms || self.deadline_ms() != first_ms {
            self.set_deadline(first_ms);
        }
    }

    /// Changes the value in part: truncates it to `len` bytes, or extends it by zeros, and writes each of `patches`, which is an offset
    /// and the new bytes from there on. `deadlines` is as for [`Self::replace`], but the deadline stays if it is one of them: to move
    /// it takes an effect of its own. If it must be moved, it is moved as far as possible.
    ///
    /// The key must exist. `len` must be at most [`Self::MAX_LEN`], and no patch may go beyond it.
    pub fn patch<'p>(
        &mut self,
        len: usize,
        patches: impl Iterator<Item = (usize, &'p [u8])> + Clone,
        deadlines: RangeInclusive<i64>,
    ) {
        debug_assert!(len <= Self::MAX_LEN);
        debug_assert!(patches.clone().all(|(offset, patch)| offset + patch.len() <= len));
        let Some((bytes, old_len)) = self.resize(len) else { return };
        // SAFETY: `bytes` points to the `len` bytes of the value, which the server neither reads nor writes until the next call.
        let value = unsafe { std::slice::from_raw_parts_mut(bytes, len) };
        for (offset, patch) in patches.clone() {
            if let Some(place) = value.get_mut(offset..offset + patch.len()) {
                place.copy_from_slice(patch);
            }
        }
        let present_ms = self.deadline_ms();
        let moves = !deadlines.contains(&present_ms);
        let deadline_ms = if moves { *deadlines.end() } else { present_ms };
        self.propagate(|effects| {
            if is_cheaper_in_place(effects, patches.clone(), (old_len, len), moves) {
                // A replica that extends the value pads it with zeros, as the server does here.
                patches.for_each(|(offset, patch)| effects.set_range(offset, patch));
                if moves {
                    effects.expire_at(deadline_ms);
                }
            } else {
                effects.set(value, deadline_ms);
            }
        });
        if moves {
            self.set_deadline(deadline_ms);
        }
    }

    /// The key's deadline; negative if it has none.
    fn deadline_ms(&self) -> i64 {
        // SAFETY: the key is open and holds a string.
        unsafe { api!(RedisModule_GetAbsExpire(self.key.handle)) }
    }

    /// Sets the key's deadline. This may move the value in memory, so no reference to it may be used afterwards.
    #[inline(always)]
    fn set_deadline(&mut self, deadline_ms: i64) {
        // SAFETY: the key is open for writing and holds a string.
        unsafe { api!(RedisModule_SetAbsExpire(self.key.handle, deadline_ms)) };
    }

    /// Stores a value that has no deadline, as `SET` does. The key must hold a string, or be missing.
    pub fn set_lasting(&mut self, value: &[u8]) {
        self.key.known.set(None);
        self.store(value);
        self.propagate(|effects| effects.set_lasting(value));
    }

    /// Stores the value of a key that does not exist. The server stores a whole string in less time and memory than one that it
    /// first extends from nothing.
    fn create(&mut self, value: &[u8], deadline_ms: i64) {
        self.store(value);
        self.propagate(|effects| effects.set(value, deadline_ms));
        self.set_deadline(deadline_ms);
    }

    /// Stores a whole value, which has no deadline then.
    fn store(&mut self, value: &[u8]) {
        let handle = self.key.handle;
        // SAFETY: the key is open for writing. The string is made without a context, so it belongs to the module; the key takes a
        // reference of its own. Afterwards the key holds a string.
        unsafe {
            let string = api!(RedisModule_CreateString(ptr::null_mut(), value.as_ptr().cast(), value.len()));
            api!(RedisModule_StringSet(handle, string));
            api!(RedisModule_FreeString(ptr::null_mut(), string));
        }
    }

    fn is_missing(&self) -> bool {
        // SAFETY: the key is open.
        unsafe { api!(RedisModule_KeyType(self.key.handle)) as isize == raw::REDISMODULE_KEYTYPE_EMPTY }
    }

    /// Truncates or extends the value to `new_len` bytes. Returns a pointer to them and the former length; `None` if the server
    /// refuses.
    #[inline(always)]
    fn resize(&mut self, new_len: usize) -> Option<(*mut u8, usize)> {
        let ReadKey { handle, access, .. } = self.key;
        let known = self.key.known.take();
        if let Some((bytes, len)) = known {
            if len == new_len {
                return Some((bytes, len));
            }
        }
        // SAFETY: the key is open for writing, and holds a string or nothing: its users checked its value. After the second call
        // it is a string of `new_len` bytes, to which the third returns a pointer.
        unsafe {
            let old_len = known.map_or_else(|| api!(RedisModule_ValueLength(handle)), |(_, len)| len);
            if old_len != new_len && api!(RedisModule_StringTruncate(handle, new_len)) != raw::REDISMODULE_OK as c_int {
                return None;
            }
            let mut len = 0;
            let bytes = api!(RedisModule_StringDMA(handle, &mut len, access)).cast();
            debug_assert_eq!(len, new_len);
            Some((bytes, old_len))
        }
    }

    /// Deletes the key.
    pub fn remove(&mut self) {
        self.key.known.set(None);
        // SAFETY: the key is open for writing. It stays open, and does not exist any more.
        unsafe { api!(RedisModule_DeleteKey(self.key.handle)) };
        self.propagate(Effects::delete);
    }

    /// Replicates a change by `effects`, and invalidates `WATCH` and client-side caches.
    #[inline(always)]
    fn propagate(&self, effects: impl FnOnce(Effects)) {
        let (server, name) = (self.key.server, self.key.name);
        // A timer has no command, so `RedisModule_ReplicateVerbatim` does nothing there.
        let in_timer = self.own_name.is_some();
        if in_timer || propagation::is_needed(server) {
            // SAFETY: the context belongs to the running call or timer, and the name lives as long as `self`.
            effects(unsafe { Effects::new(server.ctx, name) });
        } else {
            // No effect would have a receiver. This call only makes the server count the change, for its `save` points.
            // SAFETY: the context belongs to the running call.
            unsafe { api!(RedisModule_ReplicateVerbatim(server.ctx)) };
        }
        // SAFETY: the context is live, and the name lives as long as `self`.
        unsafe { api!(RedisModule_SignalModifiedKey(server.ctx, name)) };
    }
}

/// Whether effects that change the value in place, one for each of `patches` and one for the deadline if it `moves`, have fewer bytes
/// than one effect with the whole value. `SETRANGE` does not truncate, and extends a value only as far as it writes.
fn is_cheaper_in_place<'p>(
    effects: Effects,
    patches: impl Iterator<Item = (usize, &'p [u8])> + Clone,
    (old_len, len): (usize, usize),
    moves: bool,
) -> bool {
    let each = EFFECT + effects.name_len();
    let reaches_end =
        len == old_len || (len > old_len && patches.clone().any(|(offset, patch)| offset + patch.len() == len));
    reaches_end && patches.map(|(_, patch)| patch.len() + each).sum::<usize>() + usize::from(moves) * each < len + each
}

/// A key that is open for writing can be read, too.
impl<'c> Deref for WriteKey<'c> {
    type Target = ReadKey<'c>;

    #[inline(always)]
    fn deref(&self) -> &ReadKey<'c> {
        &self.key
    }
}

impl Drop for ReadKey<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `open_with` opened the key, it is closed only here, and nothing borrows from it any more. Null is accepted.
        unsafe { api!(RedisModule_CloseKey(self.handle)) };
    }
}
