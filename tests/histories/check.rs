//! Replays the logs of all nodes, and explains each reply and each effect by the core and by the models.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_rl::limiter::{Request, Span};

use crate::explain::{self, Done, Keys, Rule};
use crate::log::{Group, Item};
use crate::models::Asked;
use crate::moments::moments;
use crate::node::{show, tag_of, Changed, Look, Node, Sight, Waiting};
use crate::replies::{Record, Reply, State};
use crate::workload::{policy_text, sends_batches, Call, CallId, Part, Run, Verb, RULES};

/// A time that a call takes without a stall, in microseconds.
pub const SHORT_US: i64 = 300_000;
/// At how many moments that explain a call the models are asked.
pub const MOST_TRIES: usize = 200;
/// How much less than the time a mark may show.
const STALE_US: i64 = 50_000;
/// The time in which the moment of a call is looked for, if nothing limits it, in microseconds.
pub const MOST_US: i64 = 3_000_000;
/// How many events of a key a finding shows.
const SHOWN: usize = 14;

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub calls: u64,
    /// Calls whose replies are known.
    pub replies: u64,
    pub granted: u64,
    /// Calls that waited, and were granted.
    pub waited: u64,
    /// Changes of keys in the logs.
    pub effects: u64,
    /// Decisions of which the models say the same.
    pub modelled: u64,
    /// Keys that arrived with their slot.
    pub arrived: u64,
    /// Effects that no call explains, where the effects of another node can stand: in a slot that moved as a whole, or as the last ones
    /// before a node stopped leading.
    pub unproved: u64,
    /// Granted calls that a takeover lost: no copy has them.
    pub lost: u64,
    /// Calls whose replies did not come.
    pub unknown: u64,
    /// Calls that a node did not execute.
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
            (&mut self.arrived, other.arrived),
            (&mut self.unproved, other.unproved),
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
    pub slot: u16,
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

/// What the node has replied; `None` if that is not known.
pub fn reply_text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Text(text) => Some(text.clone()),
        Reply::Failed(error) => Some(format!("!{error}")),
        _ => None,
    }
}

/// The errors of a server that does not execute a call at present.
pub fn is_transient(error: &str) -> bool {
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

/// Which call is tried first where effects on several keys may be of one call with several keys, whose reply nobody knows, or of
/// several calls, whose replies are known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum First {
    Known,
    Joint,
}

/// Checks a run.
pub struct Checker<'a> {
    pub history: &'a History<'a>,
    pub first: First,
    /// Only the keys of these tags are checked, if there are some.
    only: Option<&'a HashSet<u64>>,
    pub tally: Tally,
    pub findings: Vec<Finding>,
    /// The calls whose marks the node of the call has executed.
    pub executed: HashSet<CallId>,
    /// The calls outside of transactions whose effect was found.
    pub served: HashSet<CallId>,
    /// The tags on whose keys `First::Joint` may find other calls than `First::Known`.
    pub doubtful: HashSet<u64>,
}

impl<'a> Checker<'a> {
    /// Checks all keys, or those of some tags.
    pub fn check(history: &'a History<'a>, only: Option<&'a HashSet<u64>>) -> Checked {
        let mut checker = Self::check_with(history, only, First::Known);
        // The call that is tried first can be the wrong one, and then nothing explains a later effect. So there is only a fault if there
        // are findings either way.
        let tags = |findings: &[Finding]| findings.iter().filter_map(|finding| finding.tag).collect::<HashSet<_>>();
        checker.doubtful.retain(|tag| tags(&checker.findings).contains(tag));
        if !checker.doubtful.is_empty() {
            let faulty = tags(&Checker::check_with(history, Some(&checker.doubtful), First::Joint).findings);
            let explained = |tag: u64| checker.doubtful.contains(&tag) && !faulty.contains(&tag);
            checker.findings.retain(|finding| !finding.tag.is_some_and(explained));
        }
        Checked { tally: checker.tally, findings: checker.findings }
    }

    fn check_with(history: &'a History<'a>, only: Option<&'a HashSet<u64>>, first: First) -> Self {
        let mut checker = Self::new(history, only, first);
        let next = AtomicUsize::new(0);
        let parts = std::thread::scope(|scope| {
            let work = || {
                let mut part = Self::new(history, only, first);
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
            checker.doubtful.extend(part.doubtful);
            for id in part.executed {
                if !checker.executed.insert(id) {
                    checker.find_call(id, format!("{} was executed twice", id.mark()));
                }
            }
            checker.served.extend(part.served);
        }
        checker.copies();
        checker.replies();
        checker
    }

    fn new(history: &'a History<'a>, only: Option<&'a HashSet<u64>>, first: First) -> Self {
        Self {
            history,
            first,
            only,
            tally: Tally::default(),
            findings: Vec::new(),
            executed: HashSet::new(),
            served: HashSet::new(),
            doubtful: HashSet::new(),
        }
    }

    pub fn is_origin(&self, id: CallId, node: usize) -> bool {
        self.history.records.get(&id).is_some_and(|record| record.node == node)
    }

    /// Whether a call was made in a transaction: on a lone server all are.
    pub fn in_transaction(&self, id: CallId) -> bool {
        self.history.logs.len() == 1 || sends_batches(id.caller)
    }

    /// Whether a mark is of a call that this node has sent on to another one, whose slot was moving.
    pub fn is_stray(&self, id: CallId, node: usize) -> bool {
        let nodes = self.history.logs.len();
        let partner = (node + nodes / 2) % nodes;
        self.history.records.get(&id).is_some_and(|record| record.node != node && record.node != partner)
    }

    /// Notes what is wrong with the keys of a tag. What follows on them is not checked: it would only be wrong, too.
    pub fn find(&mut self, node: &mut Node, tag: u64, what: String) {
        if !node.broken.insert(tag) {
            return;
        }
        let events = node.events.get(&tag).map(|events| events.iter().cloned().collect::<Vec<_>>().join("\n"));
        let what = format!("node {}: {what}", node.index);
        self.findings.push(Finding { tag: Some(tag), what, timeline: events.unwrap_or_default() });
    }

    /// Notes what is wrong with a call.
    pub fn find_call(&mut self, id: CallId, what: String) {
        self.findings.push(Finding { tag: Some(self.history.run.draw(id).tag), what, timeline: String::new() });
    }

    /// Follows the states of a node's keys.
    pub fn replay(&mut self, index: usize, log: &[Item]) {
        let unmarked = self.history.records.iter().filter(|(_, record)| record.unmarked && record.node == index);
        let mut node = Node::new(index, unmarked.map(|(&id, record)| (id, record.before_us)).collect());
        // The time after each place, as the next marks show it. Some show less: a server executes what follows a call that has waited
        // with the time of its last event.
        let mut next_us = vec![i64::MAX; log.len() + 1];
        // Whether the next mark is of a call to this node.
        let mut leads_on = vec![false; log.len() + 1];
        let mut marks: VecDeque<i64> = VecDeque::new();
        for (place, item) in log.iter().enumerate().rev() {
            leads_on[place] = leads_on[place + 1];
            if let Item::Group(Group { mark: Some((id, ms)), .. }) = item {
                marks.push_front(ms * 1_000);
                marks.truncate(8);
                if !self.is_stray(*id, index) {
                    leads_on[place] = self.is_origin(*id, index);
                }
            }
            next_us[place] = marks.iter().max().copied().unwrap_or(i64::MAX);
        }
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
                    node.broken.clear();
                    node.leads = false;
                    continue;
                }
                Item::Group(group) => group,
            };
            let next_us = next_us[place + 1].saturating_add(1_000);
            let until_us = if next_us < last_us { next_us.max(last_us + STALE_US) } else { next_us };
            let is_checked =
                |(key, _): &(String, _)| self.only.is_none_or(|only| tag_of(key).is_none_or(|tag| only.contains(&tag)));
            let is_checked = group.effects.iter().any(is_checked);
            let Some((id, mark_ms)) = group.mark else {
                if !is_checked {
                    continue;
                }
                if node.leads {
                    node.leads_on = leads_on[place + 1];
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
                    &mut node,
                    tag_of(&group.effects[0].0).unwrap_or_default(),
                    format!("{} was executed twice", id.mark()),
                );
            }
            if !is_checked {
                continue;
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
    pub fn begin_unmarked(&self, node: &mut Node, until_us: i64) {
        while let Some(&(id, mark_us)) = node.unmarked.front().filter(|(_, before_us)| *before_us <= until_us) {
            node.unmarked.pop_front();
            let call = self.history.run.draw(id);
            node.waiting.entry(call.tag).or_default().push_back(Waiting { id, call, mark_us, changed: 0 });
        }
    }

    /// Notes a call outside of a transaction.
    pub fn begin(node: &mut Node, id: CallId, call: Call, mark_us: i64) {
        let changed = node.changed.get(&call.tag).copied().unwrap_or_default();
        node.waiting.entry(call.tag).or_default().push_back(Waiting { id, call, mark_us, changed });
    }

    /// A call with its times and its reply.
    pub fn shown(&self, id: CallId, call: &Call) -> String {
        let record = &self.history.records[&id];
        format!("{} {} [{}..{}] -> {:?}", id.mark(), call.words(), record.before_us, record.after_us, record.reply)
    }

    pub fn note(&self, node: &mut Node, tag: u64, id: CallId, call: &Call, us: i64) {
        let events = node.events.entry(tag).or_default();
        events.push_back(format!("{us} {}", self.shown(id, call)));
        if events.len() > 6 * SHOWN {
            events.pop_front();
        }
    }

    /// Whether a node has these keys, apart from marks; a rewritten file may lack what has expired.
    pub fn has(node: &Node, keys: &HashMap<String, State>, now_us: i64) -> bool {
        let lives = |key: &str, state: &(Vec<u8>, i64)| keys.contains_key(key) || state.1 == 0 || state.1 * 1_000 > now_us;
        let live = node.keys.iter().filter(|(key, state)| state.as_ref().is_some_and(|state| lives(key, state)));
        let live: Vec<_> = live.filter(|(key, _)| !key.ends_with(":m")).collect();
        live.len() == keys.keys().filter(|key| !key.ends_with(":m")).count()
            && live.into_iter().all(|(key, state)| keys.get(key) == Some(state))
    }

    /// A replica does what its primary did.
    pub fn take_over(node: &mut Node, group: &Group) {
        for (key, effect) in &group.effects {
            effect.apply(node.keys.entry(key.clone()).or_default());
            node.models.forget(key);
            node.ghosts.remove(key);
        }
    }

    /// The states of some keys after a group.
    pub fn after(node: &Node, group: &Group, keys: &[&str]) -> Vec<State> {
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
    pub fn apply(&mut self, node: &mut Node, group: &Group, between_us: [i64; 2]) {
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
    pub fn windows(&self, node: usize, record: &Record, log_us: [i64; 2]) -> Vec<[i64; 2]> {
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
    pub fn is_stepped(&self, node: usize, record: &Record, now_us: i64) -> bool {
        let about = [record.before_us.min(now_us) - 4_000_000, record.after_us.min(now_us).max(now_us) + 4_000_000];
        self.history
            .steps
            .iter()
            .any(|(other, times)| *other == node && times.iter().any(|time| (about[0]..=about[1]).contains(time)))
    }

    /// Whether a deletion of a key needs no call: its deadline has passed, or its slot has moved.
    pub fn is_gone(&self, node: &Node, key: &str, until_us: i64) -> bool {
        let Some(Some((_, deadline_ms))) = node.keys.get(key) else { return true };
        let expired = *deadline_ms > 0 && deadline_ms * 1_000 <= until_us;
        expired || self.moves_of(tag_of(key), until_us).next().is_some()
    }

    /// The moves of a tag about a time.
    pub fn moves_of(&self, tag: Option<u64>, us: i64) -> impl Iterator<Item = &Move> {
        // The clocks differ by up to 3 seconds.
        let about = move |moved: &&Move| {
            Some(moved.tag) == tag && moved.us[0] - 4_000_000 <= us && us.saturating_sub(5_000_000) <= moved.us[1]
        };
        self.history.moves.iter().filter(about)
    }

    /// Explains a call in a transaction.
    pub fn marked(&mut self, node: &mut Node, id: CallId, call: &Call, group: &Group, log_us: [i64; 2]) {
        let record = &self.history.records[&id];
        self.note(node, call.tag, id, call, log_us[0]);
        if node.broken.contains(&call.tag) {
            return self.apply(node, group, log_us);
        }
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
        // A server whose clock goes back within a transaction deletes what was set there, if its first look at the clock says so.
        let looked_us =
            if self.history.logs.len() == 1 && record.after_us < record.before_us { record.before_us } else { 0 };
        let (mut explained, mut tries) = (None, 0);
        // Whether a call that may stand in a line does, is not known. So all cases are tried.
        'search: for subset in 0..1_u32 << lines.len() {
            let behind = subset > 0;
            let line =
                |key: &str| lines.iter().position(|other| *other == key).is_some_and(|place| subset >> place & 1 == 1);
            // Nothing records that the clock of a lone server was ahead, and that keys expired then.
            let ahead_us =
                self.history.steps.iter().flat_map(|(_, times)| times).max().filter(|_| self.history.logs.len() == 1);
            let mut looks = Look::all(&node.keys, &keys, [record.before_us, record.after_us]);
            looks.extend(ahead_us.map(|us| Look::ExpiredBy(us / 1_000)));
            for look in looks {
                for &window in &windows {
                    for now_us in moments(window) {
                        let sight = Sight { keys: &node.keys, expired_ms: look.expired_ms(now_us), other: &[], kept: None };
                        let done = explain::execute(&sight, call, now_us, Span::ZERO, &line);
                        if reply.as_ref().is_some_and(|reply| !explain::same_reply(call, &done.reply, reply)) {
                            continue;
                        }
                        if Self::leads(&sight, call, &done, &keys, &after, node, [now_us, now_us.max(looked_us)]) {
                            // Several moments may explain the call. The models have to agree at one of them.
                            let kept = node.models.of(&keys);
                            let verdict = self.model(node, call, &done, now_us, look);
                            if verdict.is_err() {
                                node.models.restore(kept);
                                tries += 1;
                            }
                            if verdict.is_ok() || explained.is_none() {
                                explained = Some((now_us, done, behind, verdict));
                            }
                            if explained.as_ref().is_some_and(|explained| explained.3.is_ok()) || tries > MOST_TRIES {
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
        if charged && !behind && matches!(call.parts(), [part] if part.amount.takes_free_units()) {
            if let Some(other) = self.stands_in_line(node, call, now_us, &done) {
                self.find(
                    node,
                    call.tag,
                    format!("{} was granted before {}, which waits for the key", id.mark(), other.mark()),
                );
            }
        }
        self.judge(node, id, call, verdict);
        // A log names its moments less exactly than its model does. After a step of the clock, several moments may explain the call.
        if self.history.logs.len() == 1 && self.is_stepped(node.index, &self.history.records[&id], now_us) {
            let names_exactly = |part: &Part| part.limit.is_some_and(|limit| !limit.is_log());
            call.parts().iter().filter(|part| !names_exactly(part)).for_each(|part| node.models.forget(&part.key));
        }
        self.apply(node, group, [now_us; 2]);
    }

    /// Whether what a call does leads to the states that its keys have. `us` is when it does so, and the latest moment by which the server
    /// deletes what has expired.
    pub fn leads(
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
            let stored = before.as_ref().map(|before| before.0.as_slice());
            let Some((_, pending)) = done.changes.iter().find(|(other, _)| *other == place) else {
                return before == *after || node.keys.get(key).is_some_and(|raw| raw == after);
            };
            let again = || {
                let line = |_: &str| false;
                let mut again = explain::execute(sight, call, us[0], Span::ZERO, &line);
                let at = again.changes.iter().position(|(other, _)| *other == place)?;
                Some(again.changes.swap_remove(at).1)
            };
            explain::leads_to(pending, again, &before, after, us[0], us[0])
                || after.is_none() && us[1] > us[0] && pending.expires_by(stored, us)
                || before.is_none()
                    && node.keys.get(key).is_some_and(|raw| raw == after)
                    && explain::changes_nothing(pending)
        })
    }

    /// Reports what the models say.
    pub fn judge(&mut self, node: &mut Node, id: CallId, call: &Call, verdict: Result<u64, String>) {
        match verdict {
            Ok(modelled) => self.tally.modelled += modelled,
            Err(what) => {
                self.find(node, call.tag, format!("{} {}: {what}", id.mark(), call.words()));
                call.keys().into_iter().for_each(|key| node.models.forget(key));
            }
        }
    }

    /// Compares what the core decided with the models. Returns how many have said the same.
    pub fn model(&self, node: &mut Node, call: &Call, done: &Done, now_us: i64, look: Look) -> Result<u64, String> {
        let sight = Sight { keys: &node.keys, expired_ms: look.expired_ms(now_us), other: &[], kept: None };
        let mut verdicts = Vec::new();
        match &call.verb {
            Verb::Take { renew: true, .. } if done.refused || done.reply.starts_with("0,") => {}
            Verb::Take { .. } | Verb::Throttle { .. } | Verb::All { .. } => {
                for (part, decision) in call.parts().iter().zip(&done.decisions) {
                    let behind = done.refused && decision.granted > 0;
                    let Some(limit) = part.limit.or_else(|| sight.used_rule(call.tag).map(|rule| rule.0)) else {
                        continue;
                    };
                    let rule = Rule::of(&sight, call, part, call.id()).expect("a rule");
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
                        id: call.id(),
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
}
