//! Replays the logs of all nodes, and explains each reply and each effect by the core and by the models.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_rl::limiter::{Decision, Request, Span};

use crate::explain::{self, Done, Keys, Rule};
use crate::log::{hex, Effect, Group, Item};
use crate::models::{Asked, Models};
use crate::moments::moments;
use crate::replies::{Record, Reply, State};
use crate::workload::{named, policy_text, sends_batches, Call, CallId, Later, Limit, Part, Run, Verb, RULES};

/// A time that a call takes without a stall, in microseconds.
const SHORT_US: i64 = 300_000;
/// The time in which the moment of a call is looked for, if nothing limits it, in microseconds.
const MOST_US: i64 = 3_000_000;
/// The most by which the moment as of which a call is charged has passed: the module's `MAX_LATENESS`.
const MAX_LATENESS_US: i64 = 100_000;
/// How many events of a key a finding shows.
const SHOWN: usize = 14;

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub calls: u64,
    pub replies: u64,
    pub granted: u64,
    pub waited: u64,
    pub effects: u64,
    pub modelled: u64,
    pub copied: u64,
    /// Calls whose effect a takeover lost, though their callers have a reply.
    pub lost: u64,
    pub unknown: u64,
    pub refused: u64,
}

impl Tally {
    /// Adds another run's figures.
    pub fn add(&mut self, other: &Self) {
        for (all, one) in [
            (&mut self.calls, other.calls),
            (&mut self.replies, other.replies),
            (&mut self.granted, other.granted),
            (&mut self.waited, other.waited),
            (&mut self.effects, other.effects),
            (&mut self.modelled, other.modelled),
            (&mut self.copied, other.copied),
            (&mut self.lost, other.lost),
            (&mut self.unknown, other.unknown),
            (&mut self.refused, other.refused),
        ] {
            *all += one;
        }
    }
}

/// A reply or an effect that nothing explains: what is wrong, and what happened to the key.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The tag of the keys, if it is known.
    pub tag: Option<u64>,
    pub what: String,
    pub timeline: String,
}

/// What a check has shown.
#[derive(Default)]
pub struct Checked {
    pub tally: Tally,
    pub findings: Vec<Finding>,
}

impl Checked {
    pub fn add(&mut self, other: Self) {
        self.tally.add(&other.tally);
        self.findings.extend(other.findings);
    }
}

/// A slot that moved.
#[derive(Clone, Copy)]
pub struct Move {
    pub tag: u64,
    /// When, in microseconds: it began not before, and ended not after.
    pub us: [i64; 2],
    /// The shard that got the slot.
    pub to: usize,
    /// Whether the slot moved as a whole. Then the new node gets the keys as commands like those of calls, and not by RESTORE.
    pub whole: bool,
}

/// A recorded run.
pub struct History<'a> {
    pub run: Run,
    pub records: &'a HashMap<CallId, Record>,
    pub logs: &'a [Vec<Item>],
    pub moves: &'a [Move],
    /// The wall clock of each node was stepped at these times, as it showed before and after.
    pub steps: &'a [(usize, [i64; 2])],
}

/// A call outside of a transaction that may still be answered.
struct Waiting {
    id: CallId,
    call: Call,
    mark_us: i64,
    /// How many changes there were of the tag's keys before.
    changed: usize,
}

/// A change of a key: the earliest and the latest time at which it can have been made, and the state before.
struct Changed {
    between_us: [i64; 2],
    key: String,
    before: State,
}

struct Node {
    index: usize,
    keys: HashMap<String, State>,
    /// The last state of keys that are gone.
    ghosts: HashMap<String, State>,
    models: Models,
    /// As of when a call that has waited for a key was charged last, and when its units were due.
    charged_us: HashMap<String, Vec<i64>>,
    waiting: HashMap<u64, VecDeque<Waiting>>,
    changes: HashMap<u64, VecDeque<Changed>>,
    /// How many changes of each tag there were.
    changed: HashMap<u64, usize>,
    leads: bool,
    /// Calls that were executed without a mark, and are not replayed yet, with their times.
    unmarked: VecDeque<(CallId, i64)>,
    /// The last events of each tag.
    events: HashMap<u64, VecDeque<String>>,
}

/// A node's keys: those whose deadline is before `expired_ms` count as gone.
struct Sight<'a> {
    keys: &'a HashMap<String, State>,
    expired_ms: Option<i64>,
    /// Keys that had another state.
    other: &'a [(String, State)],
    /// The rule that a waiting call has kept.
    kept: Option<Limit>,
}

impl Sight<'_> {
    fn state(&self, key: &str) -> Option<&(Vec<u8>, i64)> {
        let other = self.other.iter().find(|(other, _)| other == key).map(|(_, state)| state);
        let state = other.or_else(|| self.keys.get(key))?.as_ref()?;
        (state.1 == 0 || self.expired_ms.is_none_or(|now| state.1 >= now)).then_some(state)
    }
}

impl Sight<'_> {
    /// Whether the deadline of any key of the tag may have passed.
    fn any_expired(&self) -> bool {
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

fn tag_of(key: &str) -> Option<u64> {
    key.strip_prefix("{t")?.split_once('}')?.0.parse().ok()
}

fn block(call: &Call) -> Option<Span> {
    match call.verb {
        Verb::Take { later: Later::Block(us), .. } => Some(Span::from_us(us)),
        Verb::All { block_us, .. } => block_us.map(Span::from_us),
        _ => None,
    }
}

fn parts(call: &Call) -> &[Part] {
    match &call.verb {
        Verb::Take { part, .. } | Verb::Throttle { part, .. } | Verb::Peek(part) => std::slice::from_ref(part),
        Verb::All { parts, .. } => parts,
        _ => &[],
    }
}

fn call_id(call: &Call) -> Option<&str> {
    match &call.verb {
        Verb::Take { id, .. } | Verb::All { id, .. } => id.as_deref(),
        _ => None,
    }
}

/// Whether a reply is a grant.
pub fn grants(reply: &str) -> bool {
    !reply.starts_with("0,") && !reply.starts_with('!') && reply != "nil"
}

/// What the node has replied; `None` if that is not known.
fn reply_text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Text(text) => Some(text.clone()),
        Reply::Failed(error) => Some(format!("!{error}")),
        _ => None,
    }
}

/// The errors of a server that does not execute a call at present.
fn is_transient(error: &str) -> bool {
    let code = error.split(' ').next().unwrap_or_default();
    [
        "UNBLOCKED",
        "READONLY",
        "MISCONF",
        "OOM",
        "NOREPLICAS",
        "LOADING",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "MOVED",
        "ASK",
    ]
    .contains(&code)
}

/// How hard a moment is looked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Likely,
    All,
    /// Also those that are no moments of the clock.
    Any,
}

impl Depth {
    const ALL: [Self; 3] = [Self::Likely, Self::All, Self::Any];
}

/// Checks a run.
pub struct Checker<'a> {
    history: &'a History<'a>,
    tally: Tally,
    findings: Vec<Finding>,
    /// The calls whose marks the node of the call has executed.
    executed: HashSet<CallId>,
    /// The calls outside of transactions whose effect was found.
    served: HashSet<CallId>,
}

impl<'a> Checker<'a> {
    pub fn check(history: &'a History<'a>) -> Checked {
        let mut checker = Self::new(history);
        let next = AtomicUsize::new(0);
        let parts = std::thread::scope(|scope| {
            let work = || {
                let mut part = Self::new(history);
                while let Some((index, log)) = history.logs.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    part.replay(index, log);
                }
                part
            };
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a part")).collect::<Vec<_>>()
        });
        for part in parts {
            checker.tally.add(&part.tally);
            checker.findings.extend(part.findings);
            for id in part.executed {
                if !checker.executed.insert(id) {
                    checker.find_call(id, format!("{} was executed twice", id.mark()));
                }
            }
            checker.served.extend(part.served);
        }
        checker.copies();
        checker.replies();
        Checked { tally: checker.tally, findings: checker.findings }
    }

    fn new(history: &'a History<'a>) -> Self {
        Self { history, tally: Tally::default(), findings: Vec::new(), executed: HashSet::new(), served: HashSet::new() }
    }

    fn is_origin(&self, id: CallId, node: usize) -> bool {
        self.history.records.get(&id).is_some_and(|record| record.node == node)
    }

    /// Whether a call was made in a transaction: on a lone server all are.
    fn in_transaction(&self, id: CallId) -> bool {
        self.history.logs.len() == 1 || sends_batches(id.caller)
    }

    /// Whether a mark is of a call that this node has sent on to another one, whose slot was moving.
    fn is_stray(&self, id: CallId, node: usize) -> bool {
        let nodes = self.history.logs.len();
        let partner = (node + nodes / 2) % nodes;
        self.history.records.get(&id).is_some_and(|record| record.node != node && record.node != partner)
    }

    fn find(&mut self, node: &Node, tag: u64, what: String) {
        let events = node.events.get(&tag).map(|events| events.iter().cloned().collect::<Vec<_>>().join("\n"));
        let what = format!("node {}: {what}", node.index);
        self.findings.push(Finding { tag: Some(tag), what, timeline: events.unwrap_or_default() });
    }

    /// Notes what is wrong with a call.
    fn find_call(&mut self, id: CallId, what: String) {
        self.findings.push(Finding { tag: Some(self.history.run.draw(id).tag), what, timeline: String::new() });
    }

    /// Follows the states of a node's keys.
    fn replay(&mut self, index: usize, log: &[Item]) {
        let mut node = Node {
            index,
            keys: HashMap::new(),
            ghosts: HashMap::new(),
            models: Models::default(),
            charged_us: HashMap::new(),
            waiting: HashMap::new(),
            changes: HashMap::new(),
            changed: HashMap::new(),
            leads: false,
            unmarked: self
                .history
                .records
                .iter()
                .filter(|(_, record)| record.unmarked && record.node == index)
                .map(|(&id, record)| (id, record.before_us))
                .collect(),
            events: HashMap::new(),
        };
        // The time of the next mark after each place.
        let mut next_us = vec![i64::MAX; log.len() + 1];
        for (place, item) in log.iter().enumerate().rev() {
            next_us[place] = match item {
                Item::Group(Group { mark: Some((_, ms)), .. }) => ms * 1_000,
                _ => next_us[place + 1],
            };
        }
        node.unmarked.make_contiguous().sort_by_key(|&(_, before_us)| before_us);
        let mut last_us = 0;
        for (place, item) in log.iter().enumerate() {
            let group = match item {
                // The file was rewritten, and the keys are the same.
                Item::Copy(keys) if Self::has(&node, keys, last_us) => continue,
                Item::Copy(keys) => {
                    self.begin_unmarked(&mut node, next_us[place]);
                    self.end_waits(&mut node, None, None);
                    node.keys = keys.clone();
                    node.ghosts.clear();
                    node.changes.clear();
                    node.models.forget_all();
                    node.leads = false;
                    continue;
                }
                Item::Group(group) => group,
            };
            let until_us = next_us[place + 1].saturating_add(1_000);
            let Some((id, mark_ms)) = group.mark else {
                if node.leads {
                    self.effect(&mut node, group, [last_us, until_us]);
                } else {
                    Self::take_over(&mut node, group);
                }
                continue;
            };
            last_us = mark_ms * 1_000;
            if self.is_stray(id, index) {
                if node.leads {
                    self.apply(&mut node, group, [last_us; 2]);
                } else {
                    Self::take_over(&mut node, group);
                }
                continue;
            }
            let leads = self.is_origin(id, index);
            if node.leads && !leads {
                self.end_waits(&mut node, None, None);
            }
            node.leads = leads;
            if !leads {
                Self::take_over(&mut node, group);
                continue;
            }
            if !self.executed.insert(id) {
                self.find(
                    &node,
                    tag_of(&group.effects[0].0).unwrap_or_default(),
                    format!("{} was executed twice", id.mark()),
                );
            }
            let call = self.history.run.draw(id);
            self.end_waits(&mut node, Some(last_us), Some(id));
            self.begin_unmarked(&mut node, last_us + 1_000);
            if self.in_transaction(id) {
                self.marked(&mut node, id, &call, group, [last_us, until_us]);
            } else {
                self.note(&mut node, call.tag, id, &call, last_us);
                Self::begin(&mut node, id, call, last_us);
            }
        }
        self.end_waits(&mut node, None, None);
    }

    /// Notes calls that were executed without a mark until a time. Their places among the changes are not known.
    fn begin_unmarked(&self, node: &mut Node, until_us: i64) {
        while let Some((id, mark_us)) = node.unmarked.pop_front_if(|(_, before_us)| *before_us <= until_us) {
            let call = self.history.run.draw(id);
            node.waiting.entry(call.tag).or_default().push_back(Waiting { id, call, mark_us, changed: 0 });
        }
    }

    /// Notes a call outside of a transaction.
    fn begin(node: &mut Node, id: CallId, call: Call, mark_us: i64) {
        let changed = node.changed.get(&call.tag).copied().unwrap_or_default();
        node.waiting.entry(call.tag).or_default().push_back(Waiting { id, call, mark_us, changed });
    }

    /// A call with its times and its reply.
    fn shown(&self, id: CallId, call: &Call) -> String {
        let record = &self.history.records[&id];
        format!("{} {} [{}..{}] -> {:?}", id.mark(), call.words(), record.before_us, record.after_us, record.reply)
    }

    fn note(&self, node: &mut Node, tag: u64, id: CallId, call: &Call, us: i64) {
        let events = node.events.entry(tag).or_default();
        events.push_back(format!("{us} {}", self.shown(id, call)));
        if events.len() > 6 * SHOWN {
            events.pop_front();
        }
    }

    /// Whether a node has these keys, apart from marks; a rewritten file may lack what has expired.
    fn has(node: &Node, keys: &HashMap<String, State>, now_us: i64) -> bool {
        let lives = |key: &str, state: &(Vec<u8>, i64)| keys.contains_key(key) || state.1 == 0 || state.1 * 1_000 > now_us;
        let live = node.keys.iter().filter(|(key, state)| state.as_ref().is_some_and(|state| lives(key, state)));
        let live: Vec<_> = live.filter(|(key, _)| !key.ends_with(":m")).collect();
        live.len() == keys.keys().filter(|key| !key.ends_with(":m")).count()
            && live.into_iter().all(|(key, state)| keys.get(key) == Some(state))
    }

    /// A replica does what its primary did.
    fn take_over(node: &mut Node, group: &Group) {
        for (key, effect) in &group.effects {
            effect.apply(node.keys.entry(key.clone()).or_default());
            node.models.forget(key);
            node.ghosts.remove(key);
        }
    }

    /// The states of some keys after a group.
    fn after(node: &Node, group: &Group, keys: &[&str]) -> Vec<State> {
        let mut states: HashMap<String, State> =
            keys.iter().map(|&key| (key.to_string(), node.keys.get(key).cloned().flatten())).collect();
        for (key, effect) in &group.effects {
            if let Some(state) = states.get_mut(key) {
                effect.apply(state);
            }
        }
        keys.iter().map(|&key| states.get(key).cloned().flatten()).collect()
    }

    /// Carries out a group's effects on a node's keys.
    fn apply(&mut self, node: &mut Node, group: &Group, between_us: [i64; 2]) {
        for (key, effect) in &group.effects {
            let state = node.keys.entry(key.clone()).or_default();
            let before = state.clone();
            effect.apply(state);
            if key.ends_with(":m") {
                continue;
            }
            self.tally.effects += 1;
            if state.is_none() {
                node.ghosts.insert(key.clone(), before.clone());
            }
            let tag = tag_of(key).unwrap_or_default();
            let events = node.events.entry(tag).or_default();
            events.push_back(format!("  {between_us:?} {key} {} -> {}", show(&before), show(&node.keys[key])));
            if events.len() > 6 * SHOWN {
                events.pop_front();
            }
            let changes = node.changes.entry(tag).or_default();
            changes.push_back(Changed { between_us, key: key.clone(), before });
            *node.changed.entry(tag).or_default() += 1;
            if changes.len() > 6_000 {
                changes.pop_front();
            }
        }
    }

    /// The windows in which a call was executed, by the node's clock, in microseconds.
    fn windows(&self, node: usize, record: &Record, log_us: [i64; 2]) -> Vec<[i64; 2]> {
        let (before, after) = (record.before_us, record.after_us);
        let stepped = |from: i64, to: i64| {
            self.history
                .steps
                .iter()
                .any(|(other, [left, right])| *other == node && *left >= from && (*right <= to || *right < from))
        };
        if before == 0 || after == i64::MAX {
            let from = log_us[0].max(before);
            return vec![[from, log_us[1].min(from + MOST_US)]];
        }
        if after < before || stepped(before, after) {
            return vec![[log_us[0], log_us[0] + SHORT_US], [before, before + SHORT_US], [after - SHORT_US, after]];
        }
        // The mark was set just before the call.
        let near = [before.max(log_us[0]), after.min(log_us[0] + 3_000)];
        if near[0] <= near[1] && after - before > 5_000 {
            vec![near, [before, after]]
        } else {
            vec![[before, after]]
        }
    }

    /// Whether a node's clock was stepped about the time of a call.
    fn is_stepped(&self, node: usize, record: &Record, now_us: i64) -> bool {
        let about = [record.before_us.min(now_us) - 4_000_000, record.after_us.min(now_us).max(now_us) + 4_000_000];
        self.history
            .steps
            .iter()
            .any(|(other, times)| *other == node && times.iter().any(|time| (about[0]..=about[1]).contains(time)))
    }

    /// Whether a deletion of a key needs no call: its deadline has passed, or its slot has moved.
    fn is_gone(&self, node: &Node, key: &str, until_us: i64) -> bool {
        let Some(Some((_, deadline_ms))) = node.keys.get(key) else { return true };
        let expired = *deadline_ms > 0 && deadline_ms * 1_000 <= until_us;
        expired || self.moves_of(tag_of(key), until_us).next().is_some()
    }

    /// The moves of a tag about a time.
    fn moves_of(&self, tag: Option<u64>, us: i64) -> impl Iterator<Item = &Move> {
        // The clocks differ by up to 3 seconds.
        let about = move |moved: &&Move| {
            Some(moved.tag) == tag && moved.us[0] - 4_000_000 <= us && us.saturating_sub(5_000_000) <= moved.us[1]
        };
        self.history.moves.iter().filter(about)
    }

    /// Explains a call in a transaction.
    fn marked(&mut self, node: &mut Node, id: CallId, call: &Call, group: &Group, log_us: [i64; 2]) {
        let record = &self.history.records[&id];
        self.note(node, call.tag, id, call, log_us[0]);
        let keys = call.keys();
        let after = Self::after(node, group, &keys);
        let reply = reply_text(&record.reply);
        let others = group.effects.iter().find(|(key, _)| !keys.contains(&key.as_str()) && *key != Call::mark_key(call.tag));
        if let Some((key, _)) = others {
            self.find(node, call.tag, format!("{} has changed {key}: {}", id.mark(), call.words()));
        }
        if reply.as_deref().is_some_and(|reply| reply.starts_with('!') && is_transient(&reply[1..])) {
            let same = keys
                .iter()
                .zip(&after)
                .all(|(&key, after)| node.keys.get(key).cloned().flatten() == *after || after.is_none());
            if !same {
                self.find(node, call.tag, format!("{} was refused, and has changed a key", id.mark()));
            }
            return self.apply(node, group, log_us);
        }
        let windows = self.windows(node.index, record, log_us);
        let lines: Vec<&str> = keys.iter().copied().filter(|key| self.may_stand_in_line(node, call.tag, key)).collect();
        let (mut explained, mut tries) = (None, 0);
        // Whether a call that may stand in a line does, is not known. So all cases are tried.
        'search: for subset in 0..1_u32 << lines.len() {
            let behind = subset > 0;
            let line =
                |key: &str| lines.iter().position(|other| *other == key).is_some_and(|place| subset >> place & 1 == 1);
            for expire in [true, false] {
                for &[from, to] in &windows {
                    for now_us in moments([from, to]) {
                        let sight = Sight {
                            keys: &node.keys,
                            expired_ms: expire.then_some(now_us.div_euclid(1_000)),
                            other: &[],
                            kept: None,
                        };
                        let done = explain::execute(&sight, call, now_us, Span::ZERO, &line);
                        if reply.as_ref().is_some_and(|reply| !explain::same_reply(call, &done.reply, reply)) {
                            continue;
                        }
                        if Self::leads(&sight, call, &done, &keys, &after, node, [now_us; 2]) {
                            // Several moments may explain the call. The models have to agree at one of them.
                            let kept = node.models.of(&keys);
                            let verdict = self.model(node, call, &done, now_us, expire);
                            if verdict.is_err() {
                                node.models.restore(kept);
                                tries += 1;
                            }
                            if verdict.is_ok() || explained.is_none() {
                                explained = Some((now_us, done, behind, verdict));
                            }
                            if explained.as_ref().is_some_and(|explained| explained.3.is_ok()) || tries > 200 {
                                break 'search;
                            }
                        }
                    }
                }
            }
        }
        let Some((now_us, done, behind, verdict)) = explained else {
            self.find(
                node,
                call.tag,
                format!(
                    "nothing explains {}\n{:?}\n-> {:?}",
                    self.shown(id, call),
                    keys.iter().map(|&key| node.keys.get(key).map(show)).collect::<Vec<_>>(),
                    after.iter().map(show).collect::<Vec<_>>()
                ),
            );
            keys.iter().for_each(|key| node.models.forget(key));
            return self.apply(node, group, log_us);
        };
        let charged = !done.refused && !done.changes.is_empty();
        if charged && !behind && matches!(parts(call), [part] if part.amount.takes_free_units()) {
            if let Some(other) = self.stands_in_line(node, call, now_us, &done) {
                self.find(
                    node,
                    call.tag,
                    format!("{} was granted before {}, which waits for the key", id.mark(), other.mark()),
                );
            }
        }
        self.judge(node, id, call, verdict);
        self.apply(node, group, [now_us; 2]);
    }

    /// Whether what a call does leads to the states that its keys have.
    fn leads(
        sight: &Sight<'_>,
        call: &Call,
        done: &Done,
        keys: &[&str],
        after: &[State],
        node: &Node,
        us: [i64; 2],
    ) -> bool {
        if let Verb::Policy { key, rule } = &call.verb {
            let text = rule.map(|rule| (policy_text(&RULES[rule]).into_bytes(), 0));
            return after[0] == text || sight.state(key).is_none() && after[0].is_none();
        }
        keys.iter().zip(after).enumerate().all(|(place, (&key, after))| {
            let before = sight.state(key).cloned();
            let Some((_, pending)) = done.changes.iter().find(|(other, _)| *other == place) else {
                return before == *after || node.keys.get(key).is_some_and(|raw| raw == after);
            };
            let again = || {
                let line = |_: &str| false;
                let mut again = explain::execute(sight, call, us[0], Span::ZERO, &line);
                let at = again.changes.iter().position(|(other, _)| *other == place)?;
                Some(again.changes.swap_remove(at).1)
            };
            explain::leads_to(pending, again, &before, after, us[0], us[1])
                || before.is_none()
                    && node.keys.get(key).is_some_and(|raw| raw == after)
                    && explain::changes_nothing(pending)
        })
    }

    /// Reports what the models say.
    fn judge(&mut self, node: &mut Node, id: CallId, call: &Call, verdict: Result<u64, String>) {
        match verdict {
            Ok(modelled) => self.tally.modelled += modelled,
            Err(what) => {
                self.find(node, call.tag, format!("{} {}: {what}", id.mark(), call.words()));
                call.keys().into_iter().for_each(|key| node.models.forget(key));
            }
        }
    }

    /// Compares what the core decided with the models. Returns how many have said the same.
    fn model(&self, node: &mut Node, call: &Call, done: &Done, now_us: i64, expire: bool) -> Result<u64, String> {
        let sight =
            Sight { keys: &node.keys, expired_ms: expire.then_some(now_us.div_euclid(1_000)), other: &[], kept: None };
        let mut verdicts = Vec::new();
        match &call.verb {
            Verb::Take { renew: true, .. } if done.refused || done.reply.starts_with("0,") => {}
            Verb::Take { .. } | Verb::Throttle { .. } | Verb::All { .. } => {
                for (part, decision) in parts(call).iter().zip(&done.decisions) {
                    let behind = done.refused && decision.granted > 0;
                    let Some(limit) = part.limit.or_else(|| sight.used_rule(call.tag).map(|rule| rule.0)) else {
                        continue;
                    };
                    let rule = Rule::of(&sight, call, part, call_id(call)).expect("a rule");
                    let value = sight.value(&part.key);
                    let paused = explain::paused_us(value, now_us) > 0;
                    let charged = !done.refused && !done.changes.is_empty();
                    if behind || (!charged && decision.retried) || limit.is_lease() && paused {
                        if charged {
                            node.models.forget(&part.key);
                        }
                        continue;
                    }
                    let request = Request { id: None, ..rule.request };
                    verdicts.push(node.models.compare(&Asked {
                        key: &part.key,
                        exists: value.is_some(),
                        limit,
                        request,
                        id: call_id(call),
                        now_us,
                        charged,
                        paused,
                        decision,
                    }));
                }
            }
            Verb::Settle { key, id, units } if !done.reply.starts_with('!') => {
                let value = sight.value(key);
                if value.is_some() {
                    let paused = explain::paused_us(value, now_us) > 0;
                    let decision = done.decisions.first();
                    verdicts.push(node.models.settle(key, now_us, id, units.unwrap_or(0), paused, decision));
                }
            }
            Verb::Pause { key, .. } if sight.value(key).is_none() => node.models.begin(key),
            _ => {}
        }
        verdicts.into_iter().map(|verdict| verdict.map(u64::from)).sum()
    }

    /// Whether another call may stand in the line of a key.
    fn may_stand_in_line(&self, node: &Node, tag: u64, key: &str) -> bool {
        node.waiting.get(&tag).is_some_and(|waiting| waiting.iter().any(|other| other.call.keys().contains(&key)))
    }

    /// Whether a call that stood in line certainly still did so at a moment: it was granted later, or denied when its time was over.
    fn waited(&self, node: &Node, other: &Waiting, now_us: i64) -> bool {
        let record = &self.history.records[&other.id];
        let (Some(block), Reply::Text(reply)) = (block(&other.call), &record.reply) else { return false };
        let until_us = record.before_us.saturating_add_unsigned(block.as_us());
        let timed_out = || record.after_us >= until_us && now_us < until_us;
        // A call that would wait for too long is denied at once, however late its caller learns it.
        let denied_at_once = || self.is_denied(node, other, reply, Depth::All, now_us);
        record.after_us.saturating_sub(2_000) > now_us && (grants(reply) || timed_out() && !denied_at_once())
    }

    /// A call that certainly stands in the line of a call's only key at `now_us`.
    fn stands_in_line(&self, node: &Node, call: &Call, now_us: i64, done: &Done) -> Option<CallId> {
        let [part] = parts(call) else { return None };
        if done.decisions.iter().any(|decision| decision.retried)
            || call_id(call).is_some() && part.limit.is_some_and(|limit| limit.is_lease())
        {
            return None;
        }
        let waits = |other: &&Waiting| {
            let record = &self.history.records[&other.id];
            let [own] = parts(&other.call) else { return false };
            let waits = own.key == part.key && own.limit.is_some() && record.before_us < now_us;
            waits && self.waited(node, other, now_us) && !self.served.contains(&other.id)
        };
        node.waiting.get(&call.tag)?.iter().find(waits).map(|other| other.id)
    }

    /// Explains effects without a mark: keys have expired or moved, or calls that waited were granted. The server's timer serves several
    /// clients at once.
    fn effect(&mut self, node: &mut Node, group: &Group, log_us: [i64; 2]) {
        let mut left: VecDeque<(String, Effect)> = VecDeque::new();
        for (key, effect) in &group.effects {
            let changed = left.iter().any(|(other, _)| other == key);
            let gone = match effect {
                Effect::Delete => !changed && self.is_gone(node, key, log_us[1]),
                Effect::Arrive(..) => true,
                _ => false,
            };
            if !gone {
                left.push_back((key.clone(), effect.clone()));
                continue;
            }
            self.tally.copied += u64::from(matches!(effect, Effect::Arrive(..)));
            node.models.forget(key);
            self.apply(node, &Group { effects: vec![(key.clone(), effect.clone())], ..Group::default() }, log_us);
        }
        while !left.is_empty() {
            let tag = tag_of(&left[0].0).unwrap_or_default();
            let of_tag = left.iter().take_while(|(key, _)| tag_of(key) == Some(tag)).count();
            // Each call changes a key once. So what belongs to one call ends before another key, or before the next value of this one.
            let most = (1..=of_tag.min(40)).take_while(|&len| !begins_again(&left, len)).last().unwrap_or(1);
            let ends = |&len: &usize| len == of_tag || left[len - 1].0 != left[len].0 || begins_again(&left, len + 1);
            let (whole, parts): (Vec<_>, Vec<_>) = (1..=most).rev().partition(ends);
            let served = Depth::ALL.into_iter().find_map(|depth| {
                whole.iter().chain(&parts).find_map(|&len| {
                    let effects = left.iter().take(len).cloned().collect();
                    let group = Group { effects, ..Group::default() };
                    self.serve(node, tag, &group, log_us, depth).then_some(len)
                })
            });
            let shards = self.history.logs.len() / 2;
            let arrives = |moved: &Move| moved.whole && moved.to == node.index % shards;
            if served.is_none() && self.moves_of(Some(tag), log_us[1]).any(arrives) {
                let effects: Vec<_> = left.iter().take(of_tag).cloned().collect();
                effects.iter().for_each(|(key, _)| node.models.forget(key));
                self.tally.copied += 1;
                self.apply(node, &Group { effects, ..Group::default() }, log_us);
            } else if served.is_none() {
                let keys: Vec<_> =
                    left.iter().take(of_tag).map(|(key, effect)| format!("{key} {}", effect.shown())).collect();
                let waiting: Vec<_> = node.waiting.get(&tag).into_iter().flatten().collect();
                let waiting: Vec<_> = waiting.iter().map(|other| self.shown(other.id, &other.call)).collect();
                self.find(node, tag, format!("no call caused the effect of {log_us:?}: {keys:?}\nof {waiting:#?}"));
                let effects: Vec<_> = left.iter().take(of_tag).cloned().collect();
                effects.iter().for_each(|(key, _)| node.models.forget(key));
                self.apply(node, &Group { effects, ..Group::default() }, log_us);
            }
            left.drain(..served.unwrap_or(of_tag));
        }
    }

    /// Finds the waiting call that was granted what a group changes, and carries the group out.
    fn serve(&mut self, node: &mut Node, tag: u64, group: &Group, log_us: [i64; 2], depth: Depth) -> bool {
        let waiting = node.waiting.remove(&tag).unwrap_or_default();
        // Of several that it may be, it is the one that was answered first.
        let mut places: Vec<usize> = (0..waiting.len()).collect();
        places.sort_by_key(|&place| {
            let record = &self.history.records[&waiting[place].id];
            (record.reply == Reply::HungUp, record.after_us)
        });
        let found =
            places.into_iter().find_map(|place| Some((place, self.serves(node, &waiting[place], group, log_us, depth)?)));
        node.waiting.insert(tag, waiting);
        let Some((place, answered_us)) = found else { return false };
        let other = node.waiting.get_mut(&tag).and_then(|waiting| waiting.remove(place)).expect("a waiting call");
        self.served.insert(other.id);
        self.tally.waited += u64::from(answered_us - other.mark_us > 2_000);
        let record = &self.history.records[&other.id];
        if record.reply == Reply::HungUp && log_us[0] > record.after_us && !self.is_stepped(node.index, record, log_us[0]) {
            self.find(node, tag, format!("{} was granted after its caller had hung up", other.id.mark()));
        }
        let [part] = parts(&other.call) else {
            self.apply(node, group, log_us);
            return true;
        };
        if part.amount.takes_free_units() && block(&other.call).is_some() {
            let overtaken = node.waiting[&tag].iter().take(place).find(|first| {
                let same = matches!(parts(&first.call), [own] if own.key == part.key && own.limit.is_some());
                same && call_id(&other.call).is_none() && self.waited(node, first, log_us[1])
            });
            if let Some(first) = overtaken.map(|first| first.id) {
                let first = self.shown(first, &self.history.run.draw(first));
                self.find(
                    node,
                    tag,
                    format!("{log_us:?} {} was granted before {first}, which came first", self.shown(other.id, &other.call)),
                );
            }
        }
        self.apply(node, group, log_us);
        true
    }

    /// Whether a group is what a waiting call was granted. Returns about when it was answered.
    fn serves(&mut self, node: &mut Node, other: &Waiting, group: &Group, log_us: [i64; 2], depth: Depth) -> Option<i64> {
        let record = &self.history.records[&other.id];
        let reply = reply_text(&record.reply);
        let keys = other.call.keys();
        let takes = |key: &String| keys.contains(&key.as_str());
        let stepped = self.is_stepped(node.index, record, log_us[0]);
        if !group.effects.iter().all(|(key, _)| takes(key)) || !stepped && log_us[1] < record.before_us {
            return None;
        }
        let grants_all = reply.as_deref().is_none_or(grants);
        if !stepped && record.after_us < log_us[0].saturating_sub(1_000) && record.reply != Reply::HungUp {
            return None;
        }
        let after = Self::after(node, group, &keys);
        let after_of = after.clone();
        let latest_us =
            log_us[1].min(record.after_us.max(record.before_us)).min(log_us[0].max(other.mark_us).saturating_add(MOST_US));
        let earliest_us = log_us[0].max(record.before_us).min(latest_us);
        // If the clock was stepped meanwhile, only the log's own times count.
        let [earliest_us, latest_us] = if stepped && !(log_us[0]..=log_us[1]).contains(&record.after_us) {
            [log_us[0].min(log_us[1]), log_us[1].min(log_us[0] + MOST_US)]
        } else if stepped {
            [log_us[0], record.after_us]
        } else {
            [earliest_us, latest_us]
        };
        // A call that is not made to wait, or gives back.
        if block(&other.call).is_none() || !grants_all || parts(&other.call).is_empty() {
            return self.at_once(node, other, &after, reply.as_deref(), [earliest_us, latest_us], depth);
        }
        let id = call_id(&other.call);
        // As of when the call may be charged: its units were due then, or the last waiting call was charged.
        let (tag, mut dues, mut charged) = (other.call.tag, Vec::new(), Vec::new());
        for part in parts(&other.call) {
            dues.extend(node.charged_us.get(&part.key).into_iter().flatten());
            let Some(limit) = part.limit else { continue };
            let rule = Rule::with(limit.policy(), part, None);
            let states = [node.keys.get(&part.key), node.ghosts.get(&part.key)].into_iter().flatten();
            // The line of a key may have looked when the key had another state.
            let changes = node.changes.get(&tag).into_iter().flatten().rev().filter(|_| depth > Depth::Likely);
            let made = node.changed.get(&tag).copied().unwrap_or_default() - other.changed;
            let changes = changes.take(made);
            let states = states.chain(changes.filter(|change| change.key == part.key).map(|change| &change.before));
            for (value, _) in states.flatten() {
                dues.extend(explain::due(&rule, Some(value), [other.mark_us, latest_us]));
            }
        }
        dues.sort_unstable();
        dues.dedup();
        for (place, (part, after)) in parts(&other.call).iter().zip(&after).enumerate() {
            let row = match reply.as_deref().map(|reply| row_of(&other.call, place, reply)) {
                Some(None) => return None,
                row => row.flatten(),
            };
            let Some(found) = self.charged_at(node, other, part, (id, row), after, ([earliest_us, latest_us], &dues, depth))
            else {
                // Under SHADOW nobody waits.
                return match part.limit {
                    None => self.at_once(node, other, &after_of, reply.as_deref(), [earliest_us, latest_us], depth),
                    Some(_) => None,
                };
            };
            charged.push(found);
        }
        for (part, charged) in parts(&other.call).iter().zip(&charged) {
            let limit = match part.limit {
                Some(limit) => limit,
                None => {
                    node.models.forget(&part.key);
                    continue;
                }
            };
            let Some((now_us, decision, exists)) = charged else {
                continue;
            };
            let rule = Rule::with(limit.policy(), part, None);
            let value = node.keys.get(&part.key).and_then(|state| Some(state.as_ref()?.0.as_slice()));
            let due_us = explain::due(&rule, value, [other.mark_us, latest_us]);
            node.charged_us.insert(part.key.clone(), due_us.into_iter().chain([*now_us]).collect());
            let request = Request::now(part.amount);
            let asked = Asked {
                key: &part.key,
                exists: *exists,
                limit,
                request,
                id,
                now_us: *now_us,
                charged: true,
                paused: false,
                decision,
            };
            match node.models.compare(&asked) {
                Ok(modelled) => self.tally.modelled += u64::from(modelled),
                Err(what) => self.find(node, other.call.tag, format!("{} {}: {what}", other.id.mark(), other.call.words())),
            }
        }
        Some(latest_us)
    }

    /// Whether a call outside of a transaction did this at once.
    fn at_once(
        &mut self,
        node: &mut Node,
        other: &Waiting,
        after: &[State],
        reply: Option<&str>,
        us: [i64; 2],
        depth: Depth,
    ) -> Option<i64> {
        let keys = other.call.keys();
        let mut found = None;
        'search: for expire in [true, false] {
            // It was executed just after its mark.
            let latest_us = other.mark_us + if depth > Depth::Likely { SHORT_US } else { 5_000 };
            for now_us in moments([other.mark_us, latest_us.min(us[1])]) {
                let sight = Sight {
                    keys: &node.keys,
                    expired_ms: expire.then_some(now_us.div_euclid(1_000)),
                    other: &[],
                    kept: None,
                };
                let done = explain::execute(&sight, &other.call, now_us, Span::ZERO, &|_| false);
                if done.changes.is_empty() && !matches!(other.call.verb, Verb::Policy { .. }) {
                    continue;
                }
                if reply.is_some_and(|reply| !explain::same_reply(&other.call, &done.reply, reply)) {
                    continue;
                }
                if Self::leads(&sight, &other.call, &done, &keys, after, node, [now_us; 2]) {
                    found = Some((now_us, done, expire));
                    break 'search;
                }
            }
        }
        let (now_us, done, expire) = found?;
        let verdict = self.model(node, &other.call, &done, now_us, expire);
        self.judge(node, other.id, &other.call, verdict);
        Some(now_us)
    }

    /// As of when a part of a waiting call was charged, with the decision, and whether the key existed. `Some(None)`: nothing was charged,
    /// since the id was held already.
    #[allow(clippy::type_complexity)]
    fn charged_at(
        &self,
        node: &Node,
        other: &Waiting,
        part: &Part,
        (id, row): (Option<&str>, Option<[i64; 5]>),
        after: &State,
        (us, dues, depth): ([i64; 2], &[i64], Depth),
    ) -> Option<Option<(i64, Decision, bool)>> {
        let raw = node.keys.get(&part.key).cloned().flatten();
        let ghost = node.ghosts.get(&part.key).cloned().flatten();
        let mut states = vec![raw.clone()];
        if raw.as_ref().is_some_and(|raw| raw.1 * 1_000 <= us[1]) {
            states.push(None);
        }
        // A line remembers what its key held when it expired, without the ids.
        for gone in [&raw, &ghost].into_iter().flatten().filter(|(_, deadline_ms)| deadline_ms * 1_000 <= us[1]) {
            states.extend(explain::remembered(&gone.0).map(|value| Some((value, gone.1))));
        }
        if raw.is_none() && ghost.is_some() {
            states.push(ghost);
        }
        let is_stepped = self.is_stepped(node.index, &self.history.records[&other.id], us[0]);
        let policies: Vec<_> = match part.limit {
            Some(limit) => vec![limit.policy()],
            // A waiting call keeps the rule that it came with, which is not known any more.
            None => RULES.iter().filter(|(_, shadow)| !shadow).map(|(limit, _)| named(limit)).collect(),
        };
        for policy in policies {
            let rule = Rule::with(policy, part, id);
            for before in &states {
                let stored = before.as_ref().map(|before| before.0.as_slice());
                let held = id.is_some_and(|id| explain::holds(&policy, stored, id, us[1]));
                if held && *after == *before {
                    return Some(None);
                }
                let mut tries = Vec::new();
                if policy.charges_when_due() {
                    tries.extend(explain::due(&rule, stored, [other.mark_us, us[1]]));
                    tries.extend_from_slice(dues);
                }
                tries.extend(moments(us).rev().take(if depth > Depth::Likely { usize::MAX } else { 200 }));
                tries.extend(moments(us).take(200));
                if policy.charges_when_due() {
                    // When the call came, or when the one before it in the line was charged.
                    let before = moments([other.mark_us.min(us[0]), us[0]]);
                    tries.extend(before.take(if depth > Depth::Likely { usize::MAX } else { 20 }));
                    // The module charges as of no moment that has passed for longer.
                    tries.extend(moments(us).map(|now_us| now_us - MAX_LATENESS_US).filter(|_| depth > Depth::Likely));
                    // The module moves what it has noted by about as much as the clock was stepped. With several keys, the moment
                    // depends on when it looked at those with records under other policies.
                    if depth == Depth::Any && (is_stepped || parts(&other.call).len() > 1) {
                        tries.extend(us[0] - MAX_LATENESS_US..=us[1]);
                    }
                }
                for at_us in tries {
                    if at_us < other.mark_us.min(us[0]) || at_us > us[1] {
                        continue;
                    }
                    let Some((decision, pending)) = explain::charge(&rule, stored, at_us) else { continue };
                    let again = || explain::charge(&rule, stored, at_us).map(|(_, pending)| pending);
                    // A charge as of when the units were due is answered later.
                    let answered = if policy.charges_when_due() { [us[0].max(at_us), us[1]] } else { [at_us; 2] };
                    if row.is_none_or(|row| explain::is_row(&decision, at_us, answered, row))
                        && explain::leads_to(&pending, again, before, after, at_us, us[1])
                    {
                        return Some(Some((at_us, decision, before.is_some())));
                    }
                }
            }
        }
        None
    }

    /// Whether a call was answered before `now` or before its caller made the call `next`; without both, each was.
    fn is_over(&self, node: &Node, other: &Waiting, now: Option<i64>, next: Option<CallId>) -> bool {
        let record = &self.history.records[&other.id];
        // A caller makes one call at a time, unless it gave up the one before.
        let came = !matches!(record.reply, Reply::Lost | Reply::HungUp);
        let has_gone_on = next.is_some_and(|next| came && next.caller == other.id.caller && next.number > other.id.number);
        has_gone_on
            || now.is_none_or(|now_us| {
                record.after_us.saturating_add(5_000) < now_us
                    && (record.after_us.saturating_add(8_000_000) < now_us || !self.is_stepped(node.index, record, now_us))
            })
    }

    /// Ends the calls that were answered before `now` or before the call `next`; without both, all.
    fn end_waits(&mut self, node: &mut Node, now: Option<i64>, next: Option<CallId>) {
        let has_over = |waiting: &VecDeque<Waiting>| waiting.iter().any(|other| self.is_over(node, other, now, next));
        let tags: Vec<u64> = node.waiting.iter().filter(|(_, waiting)| has_over(waiting)).map(|(&tag, _)| tag).collect();
        for tag in tags {
            let waiting = node.waiting.remove(&tag).unwrap_or_default();
            let (over, left): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|other| self.is_over(node, other, now, next));
            node.waiting.insert(tag, left.into());
            over.iter().for_each(|other| self.denied(node, other));
        }
    }

    /// Checks the reply to a call outside of a transaction that has changed nothing.
    fn denied(&mut self, node: &mut Node, other: &Waiting) {
        let record = &self.history.records[&other.id];
        let Some(reply) = reply_text(&record.reply) else { return };
        if reply.strip_prefix('!').is_some_and(is_transient)
            || [Depth::Likely, Depth::All].into_iter().any(|depth| self.is_denied(node, other, &reply, depth, i64::MAX))
        {
            return;
        }
        self.find(node, other.call.tag, format!("at no moment was {} answered", self.shown(other.id, &other.call)));
    }

    /// Whether a call was answered so by `until_us`, in one of the states that its keys had meanwhile.
    fn is_denied(&self, node: &Node, other: &Waiting, reply: &str, depth: Depth, until_us: i64) -> bool {
        let record = &self.history.records[&other.id];
        let keys = other.call.keys();
        let waited = block(&other.call).unwrap_or(Span::ZERO);
        let mut states: Vec<(String, State)> = node
            .keys
            .iter()
            .filter(|(key, _)| tag_of(key) == Some(other.call.tag))
            .map(|(key, state)| (key.clone(), state.clone()))
            .collect();
        // The changes since the call's mark, the last one first. If the clock was stepped, their times say nothing.
        let all = node.changes.get(&other.call.tag);
        let made = node.changed.get(&other.call.tag).copied().unwrap_or_default() - other.changed;
        let mut changes = all.into_iter().flatten().rev().take(made);
        let is_stepped = self.is_stepped(node.index, record, record.after_us);
        let [lowest_us, highest_us] =
            if is_stepped { [i64::MIN, i64::MAX] } else { [record.before_us, record.after_us.min(until_us)] };
        let mut upper_us = highest_us;
        // A call that has waited has kept the rule that it came with.
        let uses = matches!(parts(&other.call), [Part { limit: None, .. }]) && depth > Depth::Likely;
        let kept = RULES.iter().filter(|(_, shadow)| uses && !shadow).map(|(limit, _)| Some(*limit));
        let rules: Vec<_> = std::iter::once(None).chain(kept).collect();
        loop {
            let change = changes.next();
            let lower_us = match change {
                Some(change) if !is_stepped => change.between_us[0].clamp(lowest_us, highest_us),
                _ => lowest_us,
            };
            let upper = upper_us.max(lower_us);
            // A call that is not made to wait is answered at once, and another when its time is over.
            let over_us = record.before_us.saturating_add_unsigned(waited.as_us());
            let likely = [[record.before_us, record.before_us + 400], [over_us, over_us + 3_000]];
            // A process may stand still for a while.
            let late = [
                [record.before_us, record.before_us + 20_000],
                [over_us, over_us + 2 * SHORT_US],
                [record.after_us - 5_000, record.after_us],
            ];
            let late = late.into_iter().filter(|_| depth > Depth::Likely);
            for now_us in likely.into_iter().chain(late).flat_map(|[from, to]| moments([from.max(lower_us), to.min(upper)]))
            {
                for subset in 0..1_u32 << keys.len() {
                    let behind = |key: &str| {
                        keys.iter().position(|other| *other == key).is_some_and(|place| subset >> place & 1 == 1)
                    };
                    for expire in [true, false] {
                        let expired_ms = expire.then_some(now_us.div_euclid(1_000));
                        let mut any_expired = false;
                        for &kept in &rules {
                            let sight = Sight { keys: &node.keys, expired_ms, other: &states, kept };
                            let done = explain::execute(&sight, &other.call, now_us, waited, &behind);
                            let changes = done.changes.iter().any(|(_, pending)| !explain::changes_nothing(pending));
                            if !changes && explain::same_reply(&other.call, &done.reply, reply)
                                || done.decisions.len() > 1
                                    && explain::denied_in_line(&sight, &other.call, now_us, waited, reply)
                            {
                                return true;
                            }
                            any_expired = sight.any_expired();
                        }
                        if !any_expired {
                            break;
                        }
                    }
                }
            }
            let Some(change) = change else { return false };
            if !is_stepped {
                upper_us = change.between_us[1].min(highest_us);
                if change.between_us[1] < lowest_us {
                    return false;
                }
            }
            if let Some(state) = states.iter_mut().find(|(key, _)| *key == change.key) {
                state.1.clone_from(&change.before);
            }
        }
    }

    /// Compares the replicas' logs with those of the nodes that executed the calls, and counts what takeovers have lost.
    fn copies(&mut self) {
        // For each mark: the mark before it, and the bytes of the commands between.
        let mut origins: HashMap<CallId, (Option<CallId>, u64)> = HashMap::new();
        let mut copied: Vec<HashSet<CallId>> = vec![HashSet::new(); self.history.logs.len()];
        let mut sequences = Vec::new();
        for (index, log) in self.history.logs.iter().enumerate() {
            let (mut before, mut hash, mut whole) = (None, 0_u64, false);
            let mut sequence = Vec::new();
            for item in log {
                match item {
                    Item::Copy(_) => {
                        (before, hash, whole) = (None, 0, false);
                        sequence.push(None);
                    }
                    Item::Group(group) => {
                        hash = hash.rotate_left(5) ^ group.hash;
                        let Some((id, _)) = group.mark.filter(|&(id, _)| !self.is_stray(id, index)) else { continue };
                        let leads = self.is_origin(id, index);
                        if leads {
                            origins.insert(id, (before, hash));
                        } else {
                            copied[index].insert(id);
                        }
                        sequence.push(Some((id, leads, before.filter(|_| whole), hash)));
                        (before, hash, whole) = (Some(id), 0, true);
                    }
                }
            }
            sequences.push(sequence);
        }
        for (index, sequence) in sequences.iter().enumerate() {
            let pairs = sequence.windows(2);
            for pair in pairs {
                let [Some((last, false, ..)), Some((id, false, before, hash))] = pair else { continue };
                let Some(origin) = origins.get(id) else {
                    self.find_call(*id, format!("node {index} has {}, which no node executed", id.mark()));
                    continue;
                };
                // After a takeover, the new primary goes on where its copy ended.
                if before.is_some() && origin.0 == Some(*last) && origin.1 != *hash {
                    let what = format!("node {index} differs from its primary between {} and {}", last.mark(), id.mark());
                    self.find_call(*id, what);
                }
                let lacks = origin.0.filter(|before| before != last && origins.contains_key(last));
                if let Some(lacks) = lacks.filter(|_| self.same_node(*last, *id)) {
                    self.find_call(
                        lacks,
                        format!("node {index} lacks what came after {}, to {}", last.mark(), lacks.mark()),
                    );
                }
            }
            // What a primary executed last, and its successor never got.
            let partner = (index + self.history.logs.len() / 2) % self.history.logs.len();
            let mut term: Vec<CallId> = Vec::new();
            for entry in sequence {
                if let Some((id, true, ..)) = entry {
                    term.push(*id);
                    continue;
                }
                // The node leads no more.
                for id in term.drain(..).rev().take_while(|id| !copied[partner].contains(id)) {
                    self.tally.lost +=
                        u64::from(reply_text(&self.history.records[&id].reply).is_some_and(|reply| grants(&reply)));
                }
            }
        }
    }

    fn same_node(&self, one: CallId, other: CallId) -> bool {
        self.history.records[&one].node == self.history.records[&other].node
    }

    /// Each reply has its effect.
    fn replies(&mut self) {
        for (id, record) in self.history.records {
            self.tally.calls += 1;
            let executed = self.executed.contains(id);
            match &record.reply {
                Reply::Lost | Reply::HungUp => self.tally.unknown += 1,
                Reply::Refused(code) => {
                    self.tally.refused += 1;
                    if executed && self.in_transaction(*id) {
                        self.find_call(*id, format!("{} was refused with {code}, and executed", id.mark()));
                    }
                }
                Reply::Failed(_) => self.tally.replies += 1,
                Reply::Text(text) => {
                    self.tally.replies += 1;
                    let call = self.history.run.draw(*id);
                    let granted = grants(text) && !parts(&call).is_empty();
                    self.tally.granted += u64::from(granted);
                    // A node whose cluster is down sets no mark, and answers reads.
                    let reads = matches!(call.verb, Verb::Peek(_));
                    let executed = executed || record.unmarked && (reads || self.served.contains(id));
                    let missing = if self.in_transaction(*id) { !executed } else { !executed && granted };
                    if missing {
                        let what = format!("{} was answered {text}, and is in no log: {}", id.mark(), call.words());
                        self.find_call(*id, what);
                    }
                }
            }
        }
    }
}

/// A state as text: the deadline and the bytes.
fn show(state: &State) -> String {
    state.as_ref().map_or("none".into(), |(value, deadline_ms)| format!("{deadline_ms}:{}", hex(value)))
}

/// Whether the last of the first `len` effects sets a key that another of them changes.
fn begins_again(effects: &VecDeque<(String, Effect)>, len: usize) -> bool {
    let Some((key, Effect::Set(..))) = effects.get(len - 1) else { return false };
    effects.iter().take(len - 1).any(|(other, _)| other == key)
}

/// The five integers for a key of a call.
fn row_of(call: &Call, place: usize, reply: &str) -> Option<[i64; 5]> {
    let numbers: Vec<i64> = reply.split(',').filter_map(|word| word.parse().ok()).collect();
    let from = if matches!(call.verb, Verb::All { .. }) { 2 + 5 * place } else { 0 };
    numbers.get(from..from + 5)?.try_into().ok()
}
