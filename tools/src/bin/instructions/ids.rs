//! Calls with an id. A segment makes [`SEGMENT`] calls that add an id, and then as many that end one: one call on each of 500 keys
//! with few ids, or 500 calls on a key with many. Each half of a segment is counted for itself. There are enough segments for
//! the ledgers to be rebuilt several times, so the counts include that work.

use std::path::Path;

use tools::ids::{Call, Group, Keys, GROUPS};

use crate::counted::Counted;

/// The calls of half a segment.
const SEGMENT: usize = 500;
/// How many segments each kind of end has.
const SEGMENTS: u64 = 8;

/// What a kind of call takes.
pub struct Row {
    pub name: &'static str,
    /// How many ids the keys remember.
    pub ids: [usize; 2],
    /// The instructions of a call with as many.
    pub counts: [u64; 2],
    /// The highest ratio of the two that is allowed.
    pub most: f64,
}

impl Row {
    pub fn ratio(&self) -> f64 {
        self.counts[1] as f64 / self.counts[0] as f64
    }
}

/// Counts all calls. `None` if the module does not know ids.
pub fn count(module: &Path) -> Option<Vec<Row>> {
    let mut server = Counted::start(module);
    let mut rows = Vec::new();
    for group in &GROUPS {
        let Group { ids, most, .. } = *group;
        let few = count_group(&mut server, group, SEGMENT, ids[0])?;
        let many = count_group(&mut server, group, 1, ids[1])?;
        let both = few.into_iter().zip(many);
        rows.extend(both.map(|((name, few), (_, many))| Row { name, ids, counts: [few, many], most }));
    }
    Some(rows)
}

/// The instructions of each kind of call, on so many keys with so many ids each.
fn count_group(server: &mut Counted, group: &Group, keys: usize, ids: usize) -> Option<Vec<(&'static str, u64)>> {
    server.make(&["FLUSHALL".into()]);
    let mut keys = Keys::fill(group, keys, ids, |calls| server.make(calls))?;
    let mut half = |call: &Call| {
        let calls = keys.calls(call, SEGMENT);
        let (replies, count) = server.count(&calls);
        keys.check(call, &calls, &replies);
        count / SEGMENT as u64
    };
    let mut added = 0;
    let mut ends = Vec::new();
    for end in group.ends {
        let mut ended = 0;
        for _ in 0..SEGMENTS {
            added += half(&group.add);
            ended += half(end);
        }
        ends.push((end.name, ended / SEGMENTS));
    }
    let others: Vec<_> = group.others.iter().map(|other| (other.name, half(other))).collect();
    let added = (group.add.name, added / SEGMENTS / group.ends.len() as u64);
    Some([added].into_iter().chain(ends).chain(others).collect())
}
