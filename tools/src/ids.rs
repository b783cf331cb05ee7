//! Calls with an id, on keys that remember few ids and on keys that remember many. The number of ids stays about the same: as many
//! ids are ended as added.

use std::collections::VecDeque;

use fastrand::Rng;
use redis::{Connection, ConnectionLike, Value};
use support::command;

/// Which id a call names.
#[derive(Clone, Copy, PartialEq)]
pub enum Which {
    /// The oldest one.
    Oldest,
    /// A random one.
    Random,
    /// One that the key does not remember.
    Unknown,
}

/// What a call does to the ids of its key.
#[derive(Clone, Copy, PartialEq)]
pub enum Effect {
    /// The key remembers one more id.
    Adds,
    /// The key remembers one id less.
    Ends,
    /// Neither.
    Keeps,
}

/// A kind of call. `#` stands for the key, `@` for the id, `%ids` for how many ids the key remembers, and `%half` for half as many.
#[derive(Clone, Copy)]
pub struct Call {
    /// What tables call it.
    pub name: &'static str,
    which: Which,
    effect: Effect,
    words: &'static str,
    /// The first integer of the reply.
    granted: i64,
}

/// Calls on keys of the same kind.
pub struct Group {
    /// Adds an id.
    pub add: Call,
    /// End an id.
    pub ends: &'static [Call],
    /// Neither add nor end one.
    pub others: &'static [Call],
    /// Few ids, and many.
    pub ids: [usize; 2],
    /// The requirement: how many times as many instructions a call may take with many ids.
    pub most: f64,
}

impl Group {
    /// Measures each kind of call by `half`, which makes calls of a kind and returns what they took: as many calls that add an id as
    /// calls that end one, `times` times for each kind of end. Returns the name of each kind, and what its halves took.
    pub fn measure<T>(&self, times: u64, mut half: impl FnMut(&Call) -> T) -> Vec<(&'static str, Vec<T>)> {
        let mut rows = vec![(self.add.name, Vec::new())];
        for end in self.ends {
            let mut ended = Vec::new();
            for _ in 0..times {
                rows[0].1.push(half(&self.add));
                ended.push(half(end));
            }
            rows.push((end.name, ended));
        }
        rows.extend(self.others.iter().map(|other| (other.name, vec![half(other)])));
        rows
    }
}

/// A charge of two units, and all that can follow it. Hardly a unit comes back during the calls.
macro_rules! charges {
    ($kind:literal, $policy:literal) => {{
        const ADD: Call = Call {
            name: concat!("RL.", $kind, " .. ID, granted"),
            which: Which::Unknown,
            effect: Effect::Adds,
            words: concat!("RL.", $kind, " key:# ", $policy, " COST 2 ID @"),
            granted: 2,
        };
        const SETTLE: Call = Call {
            name: concat!("RL.SETTLE of RL.", $kind, ", the oldest id"),
            which: Which::Oldest,
            effect: Effect::Ends,
            words: "RL.SETTLE key:# @ 1",
            granted: 1,
        };
        const RELEASE: Call = Call {
            name: concat!("RL.RELEASE of RL.", $kind, ", the oldest id"),
            words: "RL.RELEASE key:# @",
            granted: 0,
            ..SETTLE
        };
        Group {
            add: ADD,
            ends: &[
                SETTLE,
                Call { name: concat!("RL.SETTLE of RL.", $kind, ", a random id"), which: Which::Random, ..SETTLE },
                RELEASE,
                Call { name: concat!("RL.RELEASE of RL.", $kind, ", a random id"), which: Which::Random, ..RELEASE },
            ],
            others: &[Call {
                name: concat!("RL.", $kind, " .. ID, a retry"),
                which: Which::Random,
                effect: Effect::Keeps,
                ..ADD
            }],
            ids: [1, 1_000],
            most: 2.0,
        }
    }};
}

const LEASE: Call = Call {
    name: "RL.LEASE, a new lease",
    which: Which::Unknown,
    effect: Effect::Adds,
    words: "RL.LEASE key:# 60000 1d ID @",
    granted: 1,
};
const RELEASE: Call = Call {
    name: "RL.RELEASE of the oldest lease",
    which: Which::Oldest,
    effect: Effect::Ends,
    words: "RL.RELEASE key:# @",
    granted: 0,
};
const DENIED: Call =
    Call { name: "RL.LEASE, denied", effect: Effect::Keeps, words: "RL.LEASE key:# %ids 1d ID @", granted: 0, ..LEASE };

const LEASES: Group = Group {
    add: LEASE,
    ends: &[RELEASE, Call { name: "RL.RELEASE of a random lease", which: Which::Random, ..RELEASE }],
    others: &[
        Call { name: "RL.LEASE, renewed", which: Which::Random, effect: Effect::Keeps, ..LEASE },
        DENIED,
        Call { name: "RL.LEASE of half the limit, denied", words: "RL.LEASE key:# %ids 1d COST %half ID @", ..DENIED },
    ],
    ids: [10, 10_000],
    most: 10.0,
};

/// What is used instead of leases: a script on a sorted set. `%sha` stands for the script.
pub const SEMAPHORE: Group = Group {
    add: Call { name: "a sorted set (Lua), a new holder", words: "EVALSHA %sha 1 key:# @ 86400000000 60000", ..LEASE },
    ends: &[Call { name: "ZREM of a random holder", which: Which::Random, words: "ZREM key:# @", granted: 1, ..RELEASE }],
    others: &[],
    ..LEASES
};

/// All groups of calls of the module.
pub const GROUPS: [Group; 5] = [
    charges!("FIXED", "100000 100d"),
    charges!("GCRA", "100000 100d"),
    charges!("BUCKET", "100000 100d"),
    charges!("SLIDE", "100000 600"),
    LEASES,
];

/// A random id, as long as most ids are: a UUID.
fn uuid(rng: &mut Rng) -> String {
    let digits = format!("{:032x}", rng.u128(..));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// Keys with equally many ids each.
pub struct Keys<'a> {
    group: &'a Group,
    ids: usize,
    /// The ids of each key, in the order in which they were added.
    remembered: Vec<VecDeque<String>>,
    rng: Rng,
    last: usize,
}

impl<'a> Keys<'a> {
    /// Adds the ids by `make`, which makes calls. `None` if the module does not know ids.
    pub fn fill(group: &'a Group, keys: usize, ids: usize, mut make: impl FnMut(&[String]) -> Vec<Value>) -> Option<Self> {
        let mut filled = Self { group, ids, remembered: vec![VecDeque::new(); keys], rng: Rng::with_seed(1), last: 0 };
        // The first call on each key shows whether the module knows ids.
        for calls in [keys, keys * (ids - 1)] {
            let calls = filled.calls(&group.add, calls);
            let replies = make(&calls);
            if let Some(Value::ServerError(_)) = replies.first() {
                return None;
            }
            filled.check(&group.add, &calls, &replies);
        }
        Some(filled)
    }

    /// So many calls of a kind, on each of the keys in turn.
    pub fn calls(&mut self, call: &Call, calls: usize) -> Vec<String> {
        (0..calls).map(|_| self.call(call)).collect()
    }

    fn call(&mut self, call: &Call) -> String {
        self.last = (self.last + 1) % self.remembered.len();
        let ids = &mut self.remembered[self.last];
        let place = if call.which == Which::Random { self.rng.usize(..ids.len()) } else { 0 };
        let id = match (call.which, call.effect) {
            (Which::Unknown, _) => uuid(&mut self.rng),
            (_, Effect::Ends) => ids.remove(place).expect("an id"),
            _ => ids[place].clone(),
        };
        if call.effect == Effect::Adds {
            ids.push_back(id.clone());
        }
        let words = call.words.replace('#', &self.last.to_string()).replace('@', &id);
        words.replace("%ids", &self.ids.to_string()).replace("%half", &(self.ids / 2).to_string())
    }

    /// Panics if a reply is not what the call's kind expects.
    pub fn check(&self, call: &Call, calls: &[String], replies: &[Value]) {
        for (reply, words) in replies.iter().zip(calls) {
            let granted = if let Value::Array(row) = reply { row.first() } else { Some(reply) };
            assert_eq!(granted, Some(&Value::Int(call.granted)), "{}: {words}: {reply:?}", self.group.add.name);
        }
    }
}

/// Makes calls, sixteen in a pipeline. An error is a reply as well.
pub fn make(client: &mut Connection, calls: &[String]) -> Vec<Value> {
    const PIPELINE: usize = 16;
    let replies = calls.chunks(PIPELINE).flat_map(|batch| {
        let mut pipe = redis::pipe();
        batch.iter().for_each(|words| {
            pipe.add_command(command(words));
        });
        let replies = client.req_packed_commands(&pipe.get_packed_pipeline(), 0, batch.len()).expect("replies");
        assert_eq!(replies.len(), batch.len());
        replies
    });
    replies.collect()
}
