//! Whether the server refuses commands that write.
//!
//! The server checks this for clients' commands only (`NOREPLICAS`, `OOM`, `MISCONF`), and not for what a module's timer writes.
//! No function of the server answers it on Redis 7.0, so it is worked out from `INFO` and the configuration as the server does.

use std::sync::{Mutex, PoisonError};

use redis_module::raw;

use super::api::server;
use super::effects::Info;
use super::Server;

/// The part of the server's configuration that decides.
#[derive(Clone, Copy)]
struct Settings {
    /// `min-replicas-to-write`; 0 where the check is off.
    min_replicas: i64,
    /// Whether a failed snapshot stops writes: `stop-writes-on-bgsave-error`, with any `save` point.
    needs_snapshots: bool,
    eviction: Eviction,
    databases: i64,
}

/// Which keys `maxmemory-policy` evicts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Eviction {
    None,
    /// Those with a deadline.
    Volatile,
    All,
}

/// As last read; `None` after a change.
static SETTINGS: Mutex<Option<Settings>> = Mutex::new(None);

/// The configuration is read anew when it is next needed.
pub(super) fn configuration_changed() {
    *SETTINGS.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

fn settings(server: &Server<'_>) -> Settings {
    let lock = || SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = *lock();
    known.unwrap_or_else(|| {
        // Nothing is locked meanwhile: the call may lead to an event.
        let settings = Settings::read(server);
        *lock() = Some(settings);
        settings
    })
}

impl Settings {
    /// The server's defaults, and one replica where `INFO` shows that some are demanded: if `CONFIG` is renamed.
    const UNKNOWN: Self = Self { min_replicas: 1, needs_snapshots: true, eviction: Eviction::None, databases: 16 };

    fn read(server: &Server<'_>) -> Self {
        let mut settings = Self { min_replicas: 0, needs_snapshots: true, ..Self::UNKNOWN };
        let mut set = |name: &[u8], value: &[u8]| match name {
            b"min-replicas-to-write" => settings.min_replicas = number(value),
            b"databases" => settings.databases = number(value),
            b"stop-writes-on-bgsave-error" => settings.needs_snapshots &= value == b"yes",
            b"save" => settings.needs_snapshots &= !value.is_empty(),
            b"maxmemory-policy" if value.starts_with(b"allkeys-") => settings.eviction = Eviction::All,
            b"maxmemory-policy" if value.starts_with(b"volatile-") => settings.eviction = Eviction::Volatile,
            _ => {}
        };
        // SAFETY: the context is live. The reply is an array of names, each followed by its value, and is freed once, after all that
        // is read of it.
        unsafe {
            let reply = server!(RedisModule_Call(
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
                let mut len = 0;
                let element = server!(RedisModule_CallReplyArrayElement(reply, index));
                if element.is_null() {
                    return None;
                }
                let bytes = server!(RedisModule_CallReplyStringPtr(element, &mut len));
                (!bytes.is_null()).then(|| std::slice::from_raw_parts(bytes.cast::<u8>(), len))
            };
            let mut index = 0;
            while let (Some(name), Some(value)) = (text(index), text(index + 1)) {
                set(name, value);
                index += 2;
            }
            server!(RedisModule_FreeCallReply(reply));
        }
        settings
    }
}

fn number(value: &[u8]) -> i64 {
    std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Whether the server, a primary, would now refuse a client's command that writes and takes memory.
pub(super) fn refused(server: &Server<'_>) -> bool {
    let (settings, flags) = (settings(server), server.flags());
    out_of_memory(server, settings, flags) || lacks_replicas(server, settings) || cannot_persist(server, settings, flags)
}

/// `OOM`: above `maxmemory`, with no key that could be evicted.
fn out_of_memory(server: &Server<'_>, settings: Settings, flags: u32) -> bool {
    if flags & raw::REDISMODULE_CTX_FLAGS_OOM == 0 {
        return false;
    }
    let field = match settings.eviction {
        Eviction::None => return true,
        Eviction::Volatile => "expires=",
        Eviction::All => "keys=",
    };
    let info = Info::ask(server, c"keyspace");
    // `db0:keys=2,expires=1,avg_ttl=0`
    let has_candidates = |db: i64| {
        let name = std::ffi::CString::new(format!("db{db}")).unwrap_or_default();
        let text = info.text(&name).and_then(|text| text.to_str().ok()).unwrap_or_default();
        text.split(',').filter_map(|part| part.strip_prefix(field)).any(|count| count != "0")
    };
    !(0..settings.databases).any(has_candidates)
}

/// `NOREPLICAS`: fewer replicas in step than `min-replicas-to-write` demands. `INFO` has the field only where some are demanded.
fn lacks_replicas(server: &Server<'_>, settings: Settings) -> bool {
    settings.min_replicas > 0
        && Info::ask(server, c"replication")
            .number(c"min_slaves_good_slaves")
            .is_some_and(|good| good < settings.min_replicas)
}

/// `MISCONF`: the last snapshot failed, or the append-only file can't be written.
fn cannot_persist(server: &Server<'_>, settings: Settings, flags: u32) -> bool {
    let appends = flags & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    if !settings.needs_snapshots && !appends {
        return false;
    }
    let info = Info::ask(server, c"persistence");
    settings.needs_snapshots && info.text(c"rdb_last_bgsave_status") == Some(c"err")
        || appends && info.text(c"aof_last_write_status") == Some(c"err")
}
