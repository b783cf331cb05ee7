//! Calls with an id, on keys that remember few ids and on keys that remember many.
//!
//! The number of ids stays about the same. A segment makes [`SEGMENT`] calls that add an id, and then as many that end one: one
//! call on each of 500 keys with few ids, or 500 calls on a key with many. Both halves of a segment are counted for
//! themselves. There are enough segments for the ledger to be rebuilt several times, so the counts include that work.

use std::collections::VecDeque;
use std::path::Path;

use fastrand::Rng;
use redis::Value;

use crate::counted::Counted;

/// The calls of half a segment.
const SEGMENT: usize = 500;
const SEGMENTS: usize = 8;

/// Which id a call names.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    /// The oldest one.
    Oldest,
    /// A random one.
    Random,
    /// One that the key does not remember.
    Unknown,
}

/// A kind of call. `#` stands for the key, `@` for the id, and `%ids` for how many ids the key remembers.
struct Call {
    name: &'static str,
    which: Which,
    words: &'static str,
    /// The first integer of the reply.
    granted: u64,
}

/// Calls on keys of the same kind.
struct Group {
    /// Adds an id.
    add: Call,
    /// End an id.
    ends: &'static [Call],
    /// Neither add nor end one.
    others: &'static [Call],
    /// Few ids, and many.
    ids: [usize; 2],
    /// The requirement: how many times as many instructions a call may take with many ids.
    most: f64,
}

const ENDS: [Call; 4] = [
    Call { name: "RL.SETTLE, the oldest", which: Which::Oldest, words: "RL.SETTLE key:# @ 1", granted: 1 },
    Call { name: "RL.SETTLE, a random one", which: Which::Random, words: "RL.SETTLE key:# @ 1", granted: 1 },
    Call { name: "RL.RELEASE, the oldest", which: Which::Oldest, words: "RL.RELEASE key:# @", granted: 0 },
    Call { name: "RL.RELEASE, a random one", which: Which::Random, words: "RL.RELEASE key:# @", granted: 0 },
];

/// A charge of two units, and all that can follow it. Hardly a unit comes back while the calls are counted.
macro_rules! charges {
    ($kind:literal, $policy:literal) => {
        Group {
            add: Call {
                name: concat!("RL.", $kind, " .. ID, granted"),
                which: Which::Unknown,
                words: concat!("RL.", $kind, " key:# ", $policy, " COST 2 ID @"),
                granted: 2,
            },
            ends: &ENDS,
            others: &[Call {
                name: concat!("RL.", $kind, " .. ID, a retry"),
                which: Which::Random,
                words: concat!("RL.", $kind, " key:# ", $policy, " COST 2 ID @"),
                granted: 2,
            }],
            ids: [1, 1_000],
            most: 2.0,
        }
    };
}

const GROUPS: [Group; 5] = [
    charges!("FIXED", "100000 100d"),
    charges!("GCRA", "100000 100d"),
    charges!("BUCKET", "100000 100d"),
    charges!("SLIDE", "100000 600"),
    Group {
        add: Call { name: "RL.LEASE, granted", which: Which::Unknown, words: "RL.LEASE key:# 60000 1d ID @", granted: 1 },
        ends: &[ENDS[2], ENDS[3]],
        others: &[
            Call { name: "RL.LEASE, renewed", which: Which::Random, words: "RL.LEASE key:# 60000 1d ID @", granted: 1 },
            Call { name: "RL.LEASE, denied", which: Which::Unknown, words: "RL.LEASE key:# %ids 1d ID @", granted: 0 },
        ],
        ids: [10, 10_000],
        most: 10.0,
    },
];

impl Copy for Call {}
impl Clone for Call {
    fn clone(&self) -> Self {
        *self
    }
}

/// What a kind of call takes.
pub struct Row {
    pub name: String,
    /// How many ids the keys remember.
    pub ids: [usize; 2],
    /// The instructions of a call with as many.
    pub counts: [u64; 2],
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
        let [few, many] = group.ids.map(|ids| Keys::fill(&mut server, group, ids).map(|mut keys| keys.count()));
        for ((name, few), (_, many)) in few?.into_iter().zip(many?) {
            rows.push(Row { name, ids: group.ids, counts: [few, many], most: group.most });
        }
    }
    Some(rows)
}

/// The keys of a group, with equally many ids each.
struct Keys<'a> {
    server: &'a mut Counted,
    group: &'a Group,
    ids: usize,
    /// The ids of each key, in the order in which they were added.
    remembered: Vec<VecDeque<String>>,
    next: u64,
    rng: Rng,
}

impl<'a> Keys<'a> {
    /// Adds the ids. `None` if the module does not know ids.
    fn fill(server: &'a mut Counted, group: &'a Group, ids: usize) -> Option<Self> {
        server.make(&["FLUSHALL".into()]);
        let keys = if ids == group.ids[0] { SEGMENT } else { 1 };
        let remembered = vec![VecDeque::new(); keys];
        let mut keys = Self { server, group, ids, remembered, next: 0, rng: Rng::with_seed(1) };
        let probe = keys.call(&group.add, 0);
        if matches!(keys.server.make(&[probe])[..], [Value::ServerError(_)]) {
            return None;
        }
        while keys.remembered.iter().map(VecDeque::len).sum::<usize>() < ids * keys.remembered.len() {
            let calls: Vec<_> = (0..keys.remembered.len()).map(|key| keys.call(&group.add, key)).collect();
            keys.server.make(&calls);
        }
        Some(keys)
    }

    /// The instructions of each kind of call.
    fn count(&mut self) -> Vec<(String, u64)> {
        let group = self.group;
        let mut added = 0;
        let mut ends = Vec::new();
        for end in group.ends {
            let mut ended = 0;
            for _ in 0..SEGMENTS {
                added += self.segment(&group.add);
                ended += self.segment(end);
            }
            ends.push((end.name, ended / SEGMENTS));
        }
        let others = group.others.iter().map(|other| (other.name, self.segment(other)));
        let rows = [(group.add.name, added / SEGMENTS / group.ends.len())].into_iter().chain(ends).chain(others);
        rows.map(|(name, count)| (name.into(), (count / SEGMENT) as u64)).collect()
    }

    /// The instructions of [`SEGMENT`] calls.
    fn segment(&mut self, call: &Call) -> usize {
        let calls: Vec<_> = (0..SEGMENT).map(|index| self.call(call, index % self.remembered.len())).collect();
        let (replies, count) = self.server.count(&calls);
        for (reply, call_made) in replies.iter().zip(&calls) {
            let granted = if let Value::Array(row) = reply { row.first() } else { None };
            assert_eq!(granted, Some(&Value::Int(call.granted as i64)), "{call_made}: {reply:?}");
        }
        count as usize
    }

    /// The next call of a kind on a key.
    fn call(&mut self, call: &Call, key: usize) -> String {
        let ids = &mut self.remembered[key];
        let ends = self.group.ends.iter().any(|end| end.name == call.name);
        let place = if call.which == Which::Random { self.rng.usize(..ids.len()) } else { 0 };
        let id = match call.which {
            Which::Unknown => {
                self.next += 1;
                let digits =
                    format!("{:032x}", u128::from(self.next).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
                [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
            }
            _ if ends => ids.remove(place).expect("an id"),
            _ => ids[place].clone(),
        };
        if call.name == self.group.add.name {
            ids.push_back(id.clone());
        }
        call.words.replace('#', &key.to_string()).replace('@', &id).replace("%ids", &self.ids.to_string())
    }
}
