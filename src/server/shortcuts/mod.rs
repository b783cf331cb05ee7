//! Two shortcuts that make calls faster and rely on internals of the server, which the module API does not promise.
//!
//! * [`propagation`] builds no effects while no replica, replication backlog or append-only file would receive them.
//! * [`reply`] sends five integers with one call of the module API instead of six.
//!
//! Both were checked against the servers' sources and by tests, up to the versions below. On newer versions and unknown servers
//! the module uses neither: it replicates every effect, and sends integers one by one. Replies and replicated data are the same
//! either way.

pub(super) mod propagation;
pub(super) mod reply;

use std::ffi::{c_int, CStr};

use super::{Info, Server, WordsParameter};

/// The newest major versions on which the shortcuts were checked.
const NEWEST_REDIS: u32 = 8;
const NEWEST_VALKEY: u32 = 9;

const YES: c_int = 1;

/// `rl.shortcuts`: an operator switches the shortcuts off for a fork of the server that reports the version number of the
/// original but works differently inside.
pub static SHORTCUTS: WordsParameter = WordsParameter::one_of(c"shortcuts", &[(c"no", 0), (c"yes", YES)], YES);

/// Whether the module may use the shortcuts on this server.
pub(super) fn allowed(server: &Server<'_>) -> bool {
    SHORTCUTS.has(YES) && is_known_version(server)
}

fn is_known_version(server: &Server<'_>) -> bool {
    let info = Info::section(server, c"server");
    let at_most = |version: &CStr, newest| major(version).is_some_and(|major| major <= newest);
    // Valkey reports a Redis version, too, for the sake of compatibility.
    match (info.text(c"valkey_version"), info.text(c"redis_version")) {
        (Some(valkey), _) => at_most(valkey, NEWEST_VALKEY),
        (None, Some(redis)) => at_most(redis, NEWEST_REDIS),
        (None, None) => false,
    }
}

fn major(version: &CStr) -> Option<u32> {
    version.to_str().ok()?.split('.').next()?.parse().ok()
}
