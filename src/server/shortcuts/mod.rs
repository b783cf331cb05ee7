//! Two shortcuts that make calls faster and rely on internals of the server, which the module API does not promise.
//!
//! * [`propagation`] builds no effects while no replica, replication backlog or append-only file would receive them.
//! * [`reply`] sends five integers with one call of the module API instead of six.
//!
//! Both were checked against the servers' sources and by tests, up to the versions in [`TRUSTED`]. On newer versions and unknown
//! servers the module uses neither: it replicates every effect, and sends integers one by one. Replies and replicated data are the
//! same either way.

pub(super) mod propagation;
pub(super) mod reply;

use std::ffi::{c_int, CStr};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Info, Server, WordsParameter};

/// The newest versions, major and minor, on which the tests have run, by the field of `INFO server` that holds the version. Valkey
/// reports a Redis version, too, for the sake of compatibility, so it comes first.
const TRUSTED: [(&CStr, (u32, u32)); 2] = [(c"valkey_version", (9, 1)), (c"redis_version", (8, 6))];

const YES: c_int = 1;

/// `rl.shortcuts`: an operator switches the shortcuts off for a fork of the server that reports the version number of the
/// original but works differently inside.
pub static SHORTCUTS: WordsParameter = WordsParameter::one_of(c"shortcuts", &[(c"no", 0), (c"yes", YES)], YES);

/// Whether the module uses the shortcuts.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Determines whether the module uses the shortcuts, when it is loaded.
pub(super) fn start(server: &Server<'_>) {
    let info = Info::section(server, c"server");
    IN_USE.store(SHORTCUTS.has(YES) && are_trusted(|field| info.text(field)), Ordering::Relaxed);
}

/// Whether the module may use the shortcuts on this server.
pub fn are_in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// Whether the shortcuts are known to work on the server that has these fields.
fn are_trusted<'i>(field: impl Fn(&CStr) -> Option<&'i CStr>) -> bool {
    let version = TRUSTED.iter().find_map(|&(name, newest)| Some((field(name)?, newest)));
    version.is_some_and(|(version, newest)| major_and_minor(version).is_some_and(|version| version <= newest))
}

fn major_and_minor(version: &CStr) -> Option<(u32, u32)> {
    let mut numbers = version.to_str().ok()?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_trusted_up_to_the_newest_tested_one() {
        for (valkey, redis, expected) in [
            (None, Some(c"7.0.5"), true),
            (None, Some(c"7.4.9"), true),
            (None, Some(c"8.0.2"), true),
            (None, Some(c"8.6.99"), true),
            (None, Some(c"8.7.0"), false),
            (None, Some(c"8.10.0"), false),
            (None, Some(c"8.12.240"), false),
            (None, Some(c"10.0.0"), false),
            (None, Some(c"255.255.255"), false),
            (Some(c"7.2.5"), Some(c"7.2.4"), true),
            (Some(c"8.1.1"), Some(c"7.2.4"), true),
            (Some(c"9.1.2"), Some(c"7.2.4"), true),
            (Some(c"9.2.0"), Some(c"7.2.4"), false),
            (Some(c"9.10.0"), Some(c"7.2.4"), false),
            (Some(c"10.0.0"), Some(c"7.2.4"), false),
            (Some(c"255.255.255"), Some(c"7.2.4"), false),
            (Some(c"9"), Some(c"7.2.4"), false),
            (None, Some(c"eight.6"), false),
            (None, None, false),
        ] {
            let field = |name: &CStr| if name == c"valkey_version" { valkey } else { redis };
            assert_eq!(are_trusted(field), expected, "{valkey:?}, {redis:?}");
        }
    }
}
