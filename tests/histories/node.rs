//! What a node's log says: the states of its keys, and the calls that may wait for them.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::explain::{self, Keys};
use crate::log::hex;
use crate::models::Models;
use crate::replies::State;
use crate::workload::{Call, CallId, Limit};

/// A call outside of a transaction that may still be answered.
pub struct Waiting {
    pub id: CallId,
    pub call: Call,
    pub mark_us: i64,
    /// How many changes there were of the tag's keys before.
    pub changed: usize,
}

/// A change of a key: the earliest and the latest time at which it can have been made, and the state before.
pub struct Changed {
    pub between_us: [i64; 2],
    pub key: String,
    pub before: State,
}

/// A node while its log is replayed.
pub struct Node {
    pub index: usize,
    pub keys: HashMap<String, State>,
    /// The last state of keys that are gone.
    pub ghosts: HashMap<String, State>,
    pub models: Models,
    /// As of when a call that has waited for a key was charged last, and when its units were due.
    pub charged_us: HashMap<String, Vec<i64>>,
    pub waiting: HashMap<u64, VecDeque<Waiting>>,
    pub changes: HashMap<u64, VecDeque<Changed>>,
    /// How many changes of each tag there were.
    pub changed: HashMap<u64, usize>,
    pub leads: bool,
    /// Whether the node still leads when the next mark is set. If not, its next effects may be copies.
    pub leads_on: bool,
    /// The tags for which there is a finding.
    pub broken: HashSet<u64>,
    /// Calls that were executed without a mark, and are not replayed yet, with their times.
    pub unmarked: VecDeque<(CallId, i64)>,
    /// The last events of each tag.
    pub events: HashMap<u64, VecDeque<String>>,
}

impl Node {
    pub fn new(index: usize, mut unmarked: VecDeque<(CallId, i64)>) -> Self {
        unmarked.make_contiguous().sort_by_key(|&(_, before_us)| before_us);
        Self {
            index,
            keys: HashMap::new(),
            ghosts: HashMap::new(),
            models: Models::default(),
            charged_us: HashMap::new(),
            waiting: HashMap::new(),
            changes: HashMap::new(),
            changed: HashMap::new(),
            leads: false,
            leads_on: false,
            broken: HashSet::new(),
            unmarked,
            events: HashMap::new(),
        }
    }
}

/// Which keys a call finds.
#[derive(Clone, Copy)]
pub enum Look {
    /// Those that have not expired.
    Live,
    /// All that are stored.
    Stored,
    /// Those that had not expired by this time in milliseconds.
    ExpiredBy(i64),
}

impl Look {
    /// What a call on these keys can find that is executed between two moments. A server takes one time for all keys of a call, which can
    /// be earlier than the time that the module asks for later.
    pub fn all(states: &HashMap<String, State>, keys: &[&str], [from_us, to_us]: [i64; 2]) -> Vec<Self> {
        let deadlines = keys.iter().filter_map(|&key| Some(states.get(key)?.as_ref()?.1));
        let during = deadlines.filter(|ms| (from_us..=to_us).contains(&(ms * 1_000)));
        [Self::Live, Self::Stored].into_iter().chain(during.map(|ms| Self::ExpiredBy(ms - 1))).collect()
    }

    /// The keys are gone whose deadline is before this time in milliseconds.
    pub fn expired_ms(self, now_us: i64) -> Option<i64> {
        match self {
            Self::Live => Some(now_us.div_euclid(1_000)),
            Self::Stored => None,
            Self::ExpiredBy(ms) => Some(ms),
        }
    }
}

/// A node's keys: those whose deadline is before `expired_ms` count as gone.
pub struct Sight<'a> {
    pub keys: &'a HashMap<String, State>,
    pub expired_ms: Option<i64>,
    /// Keys that had another state.
    pub other: &'a [(String, State)],
    /// The rule that a waiting call has kept.
    pub kept: Option<Limit>,
}

impl Sight<'_> {
    pub fn state(&self, key: &str) -> Option<&(Vec<u8>, i64)> {
        let other = self.other.iter().find(|(other, _)| other == key).map(|(_, state)| state);
        let state = other.or_else(|| self.keys.get(key))?.as_ref()?;
        (state.1 == 0 || self.expired_ms.is_none_or(|now| state.1 >= now)).then_some(state)
    }

    /// Whether the deadline of any key of the tag may have passed.
    pub fn any_expired(&self) -> bool {
        let passed = |(_, state): &(String, State)| {
            state.as_ref().is_some_and(|state| state.1 > 0 && self.expired_ms.is_some_and(|now| state.1 < now + 1))
        };
        self.other.iter().any(passed)
    }
}

impl Keys for Sight<'_> {
    fn value(&self, key: &str) -> Option<&[u8]> {
        self.state(key).map(|state| state.0.as_slice())
    }

    fn deadline_ms(&self, key: &str) -> i64 {
        self.state(key).map_or(0, |state| state.1)
    }

    fn used_rule(&self, tag: u64) -> Option<(Limit, bool)> {
        self.kept.map(|limit| (limit, false)).or_else(|| explain::stated_rule(self, tag))
    }
}

/// The tag of a key.
pub fn tag_of(key: &str) -> Option<u64> {
    key.strip_prefix("{t")?.split_once('}')?.0.parse().ok()
}

/// A state as text: the deadline and the bytes.
pub fn show(state: &State) -> String {
    state.as_ref().map_or("none".into(), |(value, deadline_ms)| format!("{deadline_ms}:{}", hex(value)))
}
