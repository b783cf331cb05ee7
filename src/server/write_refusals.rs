//! Whether the server refuses commands that write: with `OOM`, `NOREPLICAS` or `MISCONF`.
//!
//! The server checks this for clients' commands, but not when a module's timer writes. The module API of Redis 7.0 has no
//! function for this check, so the module makes it itself, from `INFO` and the configuration, in the same way as the server.

use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{api, raw, Info, Server};

/// The part of the server's configuration on which the checks depend.
#[derive(Clone, Copy)]
struct Configuration {
    /// `min-replicas-to-write`; 0 if the check is off.
    min_replicas: i64,
    /// Whether a failed snapshot stops writes: `stop-writes-on-bgsave-error` is `yes`, and `save` is not empty.
    needs_snapshots: bool,
    eviction: Eviction,
    databases: i64,
}

/// Which keys `maxmemory-policy` evicts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Eviction {
    None,
    /// Keys with a deadline.
    Volatile,
    All,
}

/// The configuration as it was last read; `None` after a change.
static CONFIGURATION: Mutex<Option<Configuration>> = Mutex::new(None);

fn cached() -> MutexGuard<'static, Option<Configuration>> {
    CONFIGURATION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Discards the cached configuration, so that it is read again when it is next needed.
pub(super) fn configuration_changed() {
    *cached() = None;
}

fn configuration(server: &Server<'_>) -> Configuration {
    let known = *cached();
    known.unwrap_or_else(|| {
        // The lock is not held here: the call can fire an event, which calls `configuration_changed`.
        let configuration = Configuration::read(server);
        *cached() = Some(configuration);
        configuration
    })
}

impl Configuration {
    /// The assumption if `CONFIG` is renamed: the server's defaults, except that one replica is required. Whether any is
    /// required shows in `INFO`: see [`lacks_replicas`].
    const UNKNOWN: Self = Self { min_replicas: 1, needs_snapshots: true, eviction: Eviction::None, databases: 16 };

    fn read(server: &Server<'_>) -> Self {
        let mut read = Self { min_replicas: 0, needs_snapshots: true, ..Self::UNKNOWN };
        let mut set = |name: &[u8], value: &[u8]| match name {
            b"min-replicas-to-write" => read.min_replicas = number(value),
            b"databases" => read.databases = number(value),
            b"stop-writes-on-bgsave-error" => read.needs_snapshots &= value == b"yes",
            b"save" => read.needs_snapshots &= !value.is_empty(),
            b"maxmemory-policy" if value.starts_with(b"allkeys-") => read.eviction = Eviction::All,
            b"maxmemory-policy" if value.starts_with(b"volatile-") => read.eviction = Eviction::Volatile,
            _ => {}
        };
        // SAFETY: the context is live, and the format takes the six C strings that follow it. The reply is an array of names,
        // each followed by its value; it is freed once, and nothing of it is used afterwards.
        unsafe {
            let reply = api!(RedisModule_Call(
                server.ctx,
                c"CONFIG".as_ptr(),
                c"cccccc".as_ptr(),
                c"GET".as_ptr(),
                c"min-replicas-to-write".as_ptr(),
                c"stop-writes-on-bgsave-error".as_ptr(),
                c"save".as_ptr(),
                c"maxmemory-policy".as_ptr(),
                c"databases".as_ptr(),
            ));
            if reply.is_null() {
                return Self::UNKNOWN;
            }
            let text = |index| {
                let element = api!(RedisModule_CallReplyArrayElement(reply, index));
                if element.is_null() {
                    return None;
                }
                let mut len = 0;
                let bytes = api!(RedisModule_CallReplyStringPtr(element, &mut len));
                (!bytes.is_null()).then(|| std::slice::from_raw_parts(bytes.cast::<u8>(), len))
            };
            let mut index = 0;
            while let (Some(name), Some(value)) = (text(index), text(index + 1)) {
                set(name, value);
                index += 2;
            }
            api!(RedisModule_FreeCallReply(reply));
        }
        read
    }
}

fn number(value: &[u8]) -> i64 {
    std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()).unwrap_or(0)
}

impl Server<'_> {
    /// Whether the server is a replica that refuses clients' writes.
    pub fn is_read_only(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_READONLY != 0
    }

    /// Whether a timer may write.
    ///
    /// The server does not check what a timer writes, so the module refrains from writing wherever the server would refuse a
    /// client's command: on a read-only replica, while writes are paused (Redis 7.0 aborts if a timer writes then), and when it
    /// has no memory, too few replicas or a failed snapshot.
    pub fn may_write(&self) -> bool {
        // SAFETY: the function has no requirements.
        let paused = unsafe { api!(RedisModule_AvoidReplicaTraffic()) } != 0;
        !self.is_read_only() && !paused && !refuses_writes(self)
    }

    /// Whether the server would refuse a command that has the flag `deny-oom`, because it is out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        refuses_memory(self)
    }
}

/// Whether the server, which is a primary, would now refuse a client's command that writes and takes memory.
fn refuses_writes(server: &Server<'_>) -> bool {
    let (configuration, flags) = (configuration(server), server.flags());
    lacks_memory(server, configuration, flags)
        || lacks_replicas(server, configuration)
        || cannot_persist(server, configuration, flags)
}

/// Whether the server, which is a primary, would now refuse a client's command with the flag `deny-oom`.
fn refuses_memory(server: &Server<'_>) -> bool {
    let flags = server.flags();
    flags & raw::REDISMODULE_CTX_FLAGS_OOM != 0 && lacks_memory(server, configuration(server), flags)
}

/// `OOM`: more memory than `maxmemory` is used, and no key can be evicted.
fn lacks_memory(server: &Server<'_>, configuration: Configuration, flags: u32) -> bool {
    if flags & raw::REDISMODULE_CTX_FLAGS_OOM == 0 {
        return false;
    }
    let count_field = match configuration.eviction {
        Eviction::None => return true,
        Eviction::Volatile => "expires=",
        Eviction::All => "keys=",
    };
    let info = Info::section(server, c"keyspace");
    // The line of a database reads `db0:keys=2,expires=1,avg_ttl=0`.
    let has_candidates = |db: i64| {
        let name = CString::new(format!("db{db}")).unwrap_or_default();
        let text = info.text(&name).and_then(|text| text.to_str().ok()).unwrap_or_default();
        text.split(',').filter_map(|part| part.strip_prefix(count_field)).any(|count| count != "0")
    };
    !(0..configuration.databases).any(has_candidates)
}

/// `NOREPLICAS`: fewer replicas are good than `min-replicas-to-write` requires. `INFO` has the field only if it requires any.
fn lacks_replicas(server: &Server<'_>, configuration: Configuration) -> bool {
    configuration.min_replicas > 0
        && Info::section(server, c"replication")
            .number(c"min_slaves_good_slaves")
            .is_some_and(|good| good < configuration.min_replicas)
}

/// `MISCONF`: the last snapshot failed, or the append-only file cannot be written.
fn cannot_persist(server: &Server<'_>, configuration: Configuration, flags: u32) -> bool {
    let has_aof = flags & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    if !configuration.needs_snapshots && !has_aof {
        return false;
    }
    let info = Info::section(server, c"persistence");
    configuration.needs_snapshots && info.text(c"rdb_last_bgsave_status") == Some(c"err")
        || has_aof && info.text(c"aof_last_write_status") == Some(c"err")
}
