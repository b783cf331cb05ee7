//! Snapshots of keys, to compare two servers, or one server before and after an event.

use std::collections::{BTreeMap, BTreeSet};

use redis::Connection;

use crate::call;

/// The value and the deadline of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The bytes of the string; `None` if there is no such key.
    pub value: Option<Vec<u8>>,
    /// When the key expires, in milliseconds since the Unix epoch; negative if never or if there is no such key.
    pub deadline_ms: i64,
}

/// Takes the snapshot of one key.
pub fn snapshot(client: &mut Connection, key: &str) -> Snapshot {
    Snapshot { value: call(client, &format!("GET {key}")), deadline_ms: call(client, &format!("PEXPIRETIME {key}")) }
}

/// Every key with its [`Snapshot`].
pub type Snapshots = BTreeMap<String, Snapshot>;

/// Takes the snapshots of all keys.
pub fn snapshots(client: &mut Connection) -> Snapshots {
    let keys: Vec<String> = call(client, "KEYS *");
    keys.into_iter().map(|key| (key.clone(), snapshot(client, &key))).collect()
}

/// Panics with the keys that differ, and also if there are no keys at all.
pub fn assert_same(left: &Snapshots, right: &Snapshots) {
    let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differ: Vec<_> = keys.into_iter().filter(|&key| left.get(key) != right.get(key)).collect();
    assert!(differ.is_empty(), "{differ:?} differ, the first: {:?} and {:?}", left.get(differ[0]), right.get(differ[0]));
    assert!(!left.is_empty());
}
