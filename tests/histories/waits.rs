//! Explains the effects and the replies of calls outside of transactions, which may have waited.

use std::collections::VecDeque;

use redis_rl::limiter::{Decision, Request, Span};

use crate::check::{is_transient, reply_text, Checker, First, Move, MOST_TRIES, MOST_US, SHORT_US};
use crate::explain::{self, Done, Rule};
use crate::log::{Effect, Group};
use crate::models::Asked;
use crate::moments::moments;
use crate::node::{tag_of, Look, Node, Sight, Waiting};
use crate::replies::{grants, Reply, State};
use crate::workload::{named, Call, CallId, Part, Verb, RULES};

/// The most by which the moment as of which a call is charged has passed: the module's `MAX_LATENESS`.
const MAX_LATENESS_US: i64 = 100_000;

/// How hard a moment is looked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    Likely,
    All,
    /// Also those that are no moments of the clock.
    Any,
}

/// Whether a call may be granted before one that stands before it in the line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Own,
    Any,
}

impl Depth {
    /// From the fastest search to the slowest.
    const EACH: [Self; 3] = [Self::Likely, Self::All, Self::Any];
}

/// Which calls are tried: those whose replies are known, or the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    Known,
    Unknown,
}

impl Checker<'_> {
    /// Whether another call may stand in the line of a key.
    pub fn may_stand_in_line(&self, node: &Node, tag: u64, key: &str) -> bool {
        node.waiting.get(&tag).is_some_and(|waiting| waiting.iter().any(|other| other.call.keys().contains(&key)))
    }

    /// Whether a call that stood in line certainly still did so at a moment: it was granted later, or denied when its time was over.
    pub fn waited(&self, node: &Node, other: &Waiting, now_us: i64) -> bool {
        let record = &self.history.records[&other.id];
        let (Some(block), Reply::Text(reply)) = (other.call.block(), &record.reply) else { return false };
        let until_us = record.before_us.saturating_add_unsigned(block.as_us());
        let timed_out = || record.after_us >= until_us && now_us < until_us;
        // A call that would wait for too long is denied at once, however late its caller learns it.
        let denied_at_once = || self.is_denied(node, other, reply, Depth::All, now_us);
        record.after_us.saturating_sub(2_000) > now_us && (grants(reply) || timed_out() && !denied_at_once())
    }

    /// A call that certainly stands in the line of a call's only key at `now_us`.
    pub fn stands_in_line(&self, node: &Node, call: &Call, now_us: i64, done: &Done) -> Option<CallId> {
        let [part] = call.parts() else { return None };
        if done.decisions.iter().any(|decision| decision.retried)
            || call.id().is_some() && part.limit.is_some_and(|limit| limit.is_lease())
        {
            return None;
        }
        let waits = |other: &&Waiting| {
            let record = &self.history.records[&other.id];
            let [own] = other.call.parts() else { return false };
            let waits = own.key == part.key && own.limit.is_some() && record.before_us < now_us;
            waits && self.waited(node, other, now_us) && !self.served.contains(&other.id)
        };
        node.waiting.get(&call.tag)?.iter().find(waits).map(|other| other.id)
    }

    /// Explains effects without a mark: keys have expired or moved, or calls that waited were granted. The server's timer serves several
    /// clients at once.
    pub fn effect(&mut self, node: &mut Node, group: &Group, log_us: [i64; 2]) {
        if let [(key, Effect::Delete)] = group.effects.as_slice() {
            // A call that gives back can delete its key.
            let tag = tag_of(key).unwrap_or_default();
            let gives_back = |other: &Waiting| other.call.block().is_none() && other.call.keys().contains(&key.as_str());
            let may_be = node.waiting.get(&tag).is_some_and(|waiting| waiting.iter().any(gives_back));
            if may_be
                && !node.broken.contains(&tag)
                && self.serve(node, tag, group, log_us, (Tried::Known, Depth::Likely, Turn::Any))
            {
                return;
            }
        }
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
            self.tally.arrived += u64::from(matches!(effect, Effect::Arrive(..)));
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
            // What changes several keys belongs to a call with several keys, rather than to several calls. Only what no other call explains
            // can be a grant out of turn.
            let has_keys = |len: usize| left.iter().take(len).any(|(key, _)| *key != left[0].0);
            let joint: Vec<_> = whole.iter().copied().filter(|&len| has_keys(len)).collect();
            let single: Vec<_> = whole.into_iter().chain(parts).collect();
            let mut tries = vec![
                (Tried::Known, &Depth::EACH[..], &joint, Turn::Own),
                (Tried::Known, &Depth::EACH, &single, Turn::Own),
                (Tried::Unknown, &[Depth::Any], &joint, Turn::Own),
                (Tried::Unknown, &[Depth::Any], &single, Turn::Own),
                (Tried::Known, &Depth::EACH, &single, Turn::Any),
            ];
            if self.first == First::Joint {
                tries.insert(1, (Tried::Unknown, &[Depth::Likely], &joint, Turn::Own));
            }
            let may_be = |other: &Waiting| {
                other.call.keys().len() > 1 && reply_text(&self.history.records[&other.id].reply).is_none()
            };
            if !joint.is_empty() && node.waiting.get(&tag).is_some_and(|waiting| waiting.iter().any(may_be)) {
                self.doubtful.insert(tag);
            }
            tries.retain(|_| !node.broken.contains(&tag));
            let mut tries = tries.into_iter().flat_map(|(tried, depths, lens, turn)| {
                depths.iter().flat_map(move |&depth| lens.iter().map(move |&len| (len, (tried, depth, turn))))
            });
            let served = tries.find_map(|(len, how)| {
                let group = Group { effects: left.iter().take(len).cloned().collect(), ..Group::default() };
                self.serve(node, tag, &group, log_us, how).then_some(len)
            });
            if served.is_none() {
                let effects: Vec<_> = left.iter().take(of_tag).cloned().collect();
                let shards = self.history.logs.len() / 2;
                let arrives = |moved: &Move| moved.whole && moved.to == node.index % shards;
                if !node.leads_on || self.moves_of(Some(tag), log_us[1]).any(arrives) {
                    self.tally.unproved += 1;
                } else {
                    let keys: Vec<_> = effects.iter().map(|(key, effect)| format!("{key} {}", effect.shown())).collect();
                    let waiting = node.waiting.get(&tag).into_iter().flatten();
                    let waiting: Vec<_> = waiting.map(|other| self.shown(other.id, &other.call)).collect();
                    self.find(node, tag, format!("no call caused the effect of {log_us:?}: {keys:?}\nof {waiting:#?}"));
                }
                effects.iter().for_each(|(key, _)| node.models.forget(key));
                self.apply(node, &Group { effects, ..Group::default() }, log_us);
            }
            left.drain(..served.unwrap_or(of_tag));
        }
    }

    /// Finds the waiting call that was granted what a group changes, and carries the group out.
    fn serve(
        &mut self,
        node: &mut Node,
        tag: u64,
        group: &Group,
        log_us: [i64; 2],
        (tried, depth, turn): (Tried, Depth, Turn),
    ) -> bool {
        let waiting = node.waiting.remove(&tag).unwrap_or_default();
        // Of several that it may be, it is the one that was answered first, and only then one whose reply nobody knows.
        let is_known = |place: &usize| reply_text(&self.history.records[&waiting[*place].id].reply).is_some();
        let mut places: Vec<usize> = (0..waiting.len()).filter(|place| is_known(place) == (tried == Tried::Known)).collect();
        places.sort_by_key(|&place| {
            let record = &self.history.records[&waiting[place].id];
            (record.reply == Reply::HungUp, record.after_us)
        });
        let found = places.into_iter().find_map(|place| {
            let kept = node.models.of(&waiting[place].call.keys());
            let answered_us = self.serves(node, &waiting[place], group, log_us, depth)?;
            // It is the one that came first, if that was still waiting and may have got this, however late its caller asked for the time.
            let Some(first) = self.overtaken(node, &waiting, place, log_us[1]) else { return Some((place, answered_us)) };
            let after = node.models.of(&waiting[place].call.keys());
            node.models.restore(kept.clone());
            if let Some(answered_us) = self.serves(node, &waiting[first], group, log_us, depth) {
                return Some((first, answered_us));
            }
            if turn == Turn::Own {
                node.models.restore(kept);
                return None;
            }
            node.models.restore(after);
            Some((place, answered_us))
        });
        // Of equal calls with equal replies, it is the one that came first, however late its caller asked for the time.
        let found = found.map(|(place, answered_us)| {
            let equals = |first: &usize| self.equals(&waiting[*first], &waiting[place]);
            ((0..place).find(equals).unwrap_or(place), answered_us)
        });
        let out_of_turn = found.filter(|_| turn == Turn::Any);
        let overtaken =
            out_of_turn.and_then(|(place, _)| Some(waiting[self.overtaken(node, &waiting, place, log_us[1])?].id));
        node.waiting.insert(tag, waiting);
        let Some((place, answered_us)) = found else { return false };
        let other = node.waiting.get_mut(&tag).and_then(|waiting| waiting.remove(place)).expect("a waiting call");
        self.served.insert(other.id);
        self.tally.waited += u64::from(answered_us - other.mark_us > 2_000);
        let record = &self.history.records[&other.id];
        if record.reply == Reply::HungUp && log_us[0] > record.after_us && !self.is_stepped(node.index, record, log_us[0]) {
            self.find(node, tag, format!("{} was granted after its caller had hung up", other.id.mark()));
        }
        if let Some(first) = overtaken {
            let first = self.shown(first, &self.history.run.draw(first));
            let other = self.shown(other.id, &other.call);
            self.find(node, tag, format!("{log_us:?} {other} was granted before {first}, which came first"));
        }
        self.apply(node, group, log_us);
        true
    }

    /// A call that came before the one at a place, stands in line for the same key, and still waits later.
    fn overtaken(&self, node: &Node, waiting: &VecDeque<Waiting>, place: usize, now_us: i64) -> Option<usize> {
        let call = &waiting[place].call;
        let [part] = call.parts() else { return None };
        if !part.amount.takes_free_units() || call.block().is_none() || call.id().is_some() {
            return None;
        }
        waiting.iter().take(place).position(|first| {
            let same = matches!(first.call.parts(), [own] if own.key == part.key && own.limit.is_some());
            same && self.waited(node, first, now_us)
        })
    }

    /// Whether two calls ask the same of the same key, without ids, and have the same reply.
    fn equals(&self, one: &Waiting, other: &Waiting) -> bool {
        let ([part], [same]) = (one.call.parts(), other.call.parts()) else { return false };
        let [reply, same_reply] = [one, other].map(|call| &self.history.records[&call.id].reply);
        let waits = [one, other].iter().all(|call| call.call.block().is_some() && call.call.id().is_none());
        waits && reply == same_reply && (&part.key, part.limit, part.amount) == (&same.key, same.limit, same.amount)
    }

    /// Whether a group is what a waiting call was granted. Returns about when it was answered.
    pub fn serves(
        &mut self,
        node: &mut Node,
        other: &Waiting,
        group: &Group,
        log_us: [i64; 2],
        depth: Depth,
    ) -> Option<i64> {
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
        // If the clock was stepped meanwhile, only the log's own times count. It may have been stepped between them.
        let [earliest_us, latest_us] = if stepped {
            let earliest_us = log_us[0].min(log_us[1]);
            [earliest_us, log_us[1].max(log_us[0] + 5_000).min(earliest_us + MOST_US)]
        } else {
            [earliest_us, latest_us]
        };
        // A call that is not made to wait, or gives back.
        if other.call.block().is_none() || !grants_all || other.call.parts().is_empty() {
            return self.at_once(node, other, &after, reply.as_deref(), [earliest_us, latest_us], depth);
        }
        let id = other.call.id();
        // As of when the call may be charged: its units were due then, or the last waiting call was charged.
        let (tag, mut dues, mut charged) = (other.call.tag, Vec::new(), Vec::new());
        for part in other.call.parts() {
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
        for (place, (part, after)) in other.call.parts().iter().zip(&after).enumerate() {
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
        for (part, charged) in other.call.parts().iter().zip(&charged) {
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
            let Some(exists) = *exists else {
                node.models.forget(&part.key);
                continue;
            };
            let request = Request::now(part.amount);
            let asked = Asked {
                key: &part.key,
                exists,
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
    pub fn at_once(
        &mut self,
        node: &mut Node,
        other: &Waiting,
        after: &[State],
        reply: Option<&str>,
        us: [i64; 2],
        depth: Depth,
    ) -> Option<i64> {
        let keys = other.call.keys();
        let record = &self.history.records[&other.id];
        // It was executed just after its mark.
        let latest_us = (other.mark_us + if depth > Depth::Likely { SHORT_US } else { 5_000 }).min(us[1]);
        let mut windows = vec![[other.mark_us.max(record.before_us), latest_us]];
        if self.is_stepped(node.index, record, us[0]) {
            windows.push([other.mark_us, latest_us]);
        }
        let (mut found, mut tries) = (None, 0);
        'search: for look in Look::all(&node.keys, &keys, [other.mark_us, latest_us]) {
            for now_us in windows.iter().flat_map(|&window| moments(window)) {
                let sight = Sight { keys: &node.keys, expired_ms: look.expired_ms(now_us), other: &[], kept: None };
                let done = explain::execute(&sight, &other.call, now_us, Span::ZERO, &|_| false);
                if done.changes.is_empty() && !matches!(other.call.verb, Verb::Policy { .. }) {
                    continue;
                }
                if reply.is_some_and(|reply| !explain::same_reply(&other.call, &done.reply, reply)) {
                    continue;
                }
                if Self::leads(&sight, &other.call, &done, &keys, after, node, [now_us; 2]) {
                    // Several moments may explain the call. The models have to agree at one of them.
                    let kept = node.models.of(&keys);
                    let verdict = self.model(node, &other.call, &done, now_us, look);
                    let agree = verdict.is_ok();
                    if !agree {
                        node.models.restore(kept);
                        tries += 1;
                    }
                    if agree || found.is_none() {
                        found = Some((now_us, verdict));
                    }
                    if agree || tries > MOST_TRIES {
                        break 'search;
                    }
                }
            }
        }
        let (now_us, verdict) = found?;
        self.judge(node, other.id, &other.call, verdict);
        Some(now_us)
    }

    /// As of when a part of a waiting call was charged, with the decision, and whether the key existed, unless a line remembered it.
    /// `Some(None)`: nothing was charged, since the id was held already.
    #[allow(clippy::type_complexity)]
    pub fn charged_at(
        &self,
        node: &Node,
        other: &Waiting,
        part: &Part,
        (id, row): (Option<&str>, Option<[i64; 5]>),
        after: &State,
        (us, dues, depth): ([i64; 2], &[i64], Depth),
    ) -> Option<Option<(i64, Decision, Option<bool>)>> {
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
        // When the call came, by the present clock.
        let since_us = if is_stepped { us[0] - MAX_LATENESS_US } else { other.mark_us.min(us[0]) };
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
                    tries.extend(explain::due(&rule, stored, [since_us, us[1]]));
                    tries.extend_from_slice(dues);
                }
                tries.extend(moments(us).rev().take(if depth > Depth::Likely { usize::MAX } else { 200 }));
                tries.extend(moments(us).take(200));
                if policy.charges_when_due() {
                    // When the call came, or when the one before it in the line was charged.
                    let before = moments([since_us, us[0]]);
                    tries.extend(before.take(if depth > Depth::Likely { usize::MAX } else { 20 }));
                    // The module charges as of no moment that has passed for longer.
                    tries.extend(moments(us).map(|now_us| now_us - MAX_LATENESS_US).filter(|_| depth > Depth::Likely));
                    // The module moves what it has noted by about as much as the clock was stepped. With several keys, the moment
                    // depends on when it looked at those with records under other policies.
                    if depth >= Depth::Any && (is_stepped || other.call.parts().len() > 1) {
                        tries.extend(us[0] - MAX_LATENESS_US..=us[1]);
                    }
                }
                for at_us in tries {
                    if at_us < since_us || at_us > us[1] {
                        continue;
                    }
                    let Some((decision, pending)) = explain::charge(&rule, stored, at_us) else { continue };
                    let again = || explain::charge(&rule, stored, at_us).map(|(_, pending)| pending);
                    // A charge as of when the units were due is answered later.
                    let answered = if policy.charges_when_due() { [us[0].max(at_us), us[1]] } else { [at_us; 2] };
                    if row.is_none_or(|row| explain::is_row(&decision, at_us, answered, row))
                        && explain::leads_to(&pending, again, before, after, at_us, us[1])
                    {
                        // The models don't know what a line remembers of a key that is gone.
                        let exists = (before.is_none() || *before == raw).then_some(before.is_some());
                        return Some(Some((at_us, decision, exists)));
                    }
                }
            }
        }
        None
    }

    /// Whether a call was answered before `now` or before its caller made the call `next`; without both, each was.
    pub fn is_over(&self, node: &Node, other: &Waiting, now: Option<i64>, next: Option<CallId>) -> bool {
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
    pub fn end_waits(&mut self, node: &mut Node, now: Option<i64>, next: Option<CallId>) {
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
    pub fn denied(&mut self, node: &mut Node, other: &Waiting) {
        let record = &self.history.records[&other.id];
        let Some(reply) = reply_text(&record.reply).filter(|_| !node.broken.contains(&other.call.tag)) else { return };
        if reply.strip_prefix('!').is_some_and(is_transient)
            || Depth::EACH.into_iter().any(|depth| self.is_denied(node, other, &reply, depth, i64::MAX))
        {
            return;
        }
        self.find(node, other.call.tag, format!("at no moment was {} answered", self.shown(other.id, &other.call)));
    }

    /// Whether a call was answered so by `until_us`, in one of the states that its keys had meanwhile.
    pub fn is_denied(&self, node: &Node, other: &Waiting, reply: &str, depth: Depth, until_us: i64) -> bool {
        let record = &self.history.records[&other.id];
        let keys = other.call.keys();
        let waited = other.call.block().unwrap_or(Span::ZERO);
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
        let uses = matches!(other.call.parts(), [Part { limit: None, .. }]) && depth > Depth::Likely;
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
            // Or for long.
            let any =
                [[over_us.min(record.after_us - SHORT_US), record.after_us]].into_iter().filter(|_| depth >= Depth::Any);
            for now_us in
                likely.into_iter().chain(late).chain(any).flat_map(|[from, to]| moments([from.max(lower_us), to.min(upper)]))
            {
                for subset in 0..1_u32 << keys.len() {
                    let behind = |key: &str| {
                        keys.iter().position(|other| *other == key).is_some_and(|place| subset >> place & 1 == 1)
                    };
                    for look in [Look::Live, Look::Stored] {
                        let expired_ms = look.expired_ms(now_us);
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
}

/// Whether the last of the first `len` effects begins another change of a key that one before has changed: it sets the key, or writes
/// to its beginning.
fn begins_again(effects: &VecDeque<(String, Effect)>, len: usize) -> bool {
    let Some((key, Effect::Set(..) | Effect::Patch(0, _))) = effects.get(len - 1) else { return false };
    effects.iter().take(len - 1).any(|(other, _)| other == key)
}

/// The five integers for a key of a call.
fn row_of(call: &Call, place: usize, reply: &str) -> Option<[i64; 5]> {
    let numbers: Vec<i64> = reply.split(',').filter_map(|word| word.parse().ok()).collect();
    let from = if matches!(call.verb, Verb::All { .. }) { 2 + 5 * place } else { 0 };
    numbers.get(from..from + 5)?.try_into().ok()
}
