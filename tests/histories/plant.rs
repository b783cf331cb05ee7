//! Plants faults into a recorded run, as a faulty module would have caused them, to show that the checker finds each.

use std::collections::HashMap;

use fastrand::Rng;

use crate::log::{Effect, Group, Item};
use crate::replies::{grants, Record, Reply};
use crate::workload::{policy_text, sends_batches, Call, CallId, Later, Run, Verb, RULES};

type Records = HashMap<CallId, Record>;

/// A call in a log, or an effect of a call that waited.
struct Site {
    node: usize,
    place: usize,
    /// The call whose mark is set there.
    call: Option<(CallId, Call)>,
    tag: u64,
    /// Whether the node is a replica there.
    copies: bool,
}

/// A fault: where it may be, and what it changes.
struct Fault {
    name: &'static str,
    /// How often it is planted.
    times: usize,
    plant: fn(&mut Scene<'_>) -> bool,
}

/// What a fault changes.
struct Scene<'a> {
    run: Run,
    log: &'a mut Vec<Item>,
    records: &'a mut Records,
    site: &'a Site,
    rng: &'a mut Rng,
}

impl Scene<'_> {
    fn group(&mut self) -> &mut Group {
        match &mut self.log[self.site.place] {
            Item::Group(group) => group,
            Item::Copy(_) => unreachable!("a site is a group"),
        }
    }

    fn call(&self) -> Option<&Call> {
        self.site.call.as_ref().map(|(_, call)| call)
    }

    fn record(&mut self) -> Option<&mut Record> {
        self.records.get_mut(&self.site.call.as_ref()?.0)
    }

    /// The reply, if it is known and the call took no long time.
    fn reply(&mut self) -> Option<String> {
        match self.record()? {
            Record { reply: Reply::Text(text), before_us, after_us, unmarked: false, .. }
                if (0..50_000).contains(&(*after_us - *before_us)) =>
            {
                Some(text.clone())
            }
            _ => None,
        }
    }

    /// The call of a transaction with its reply, if it changed keys as `changes` says.
    fn transaction(&mut self, changes: bool) -> Option<(Verb, String)> {
        let (id, call) = self.site.call.as_ref().filter(|_| !self.site.copies)?;
        let (is_batch, verb) = (sends_batches(id.caller), call.verb.clone());
        let reply = self.reply()?;
        (is_batch && changes == self.changes_keys()).then_some((verb, reply))
    }

    /// Whether this is such a call of a transaction, which changed keys or not.
    fn makes(&mut self, changes: bool, is_such: fn(&Verb) -> bool) -> bool {
        self.transaction(changes).is_some_and(|(verb, _)| is_such(&verb))
    }

    fn is_mark(key: &str) -> bool {
        key.ends_with(":m")
    }

    fn changes_keys(&mut self) -> bool {
        self.group().effects.iter().any(|(key, _)| !Self::is_mark(key))
    }

    /// Removes the effects on keys for which this holds.
    fn lose(&mut self, loses: impl Fn(&str) -> bool) -> bool {
        self.group().effects.retain(|(key, _)| Self::is_mark(key) || !loses(key));
        true
    }

    /// Removes the call and its effects.
    fn drop_group(&mut self) -> bool {
        *self.group() = Group::default();
        true
    }

    /// Repeats the call with its effects.
    fn repeat(&mut self) -> bool {
        let group = self.group().clone();
        self.log.insert(self.site.place + 1, Item::Group(group));
        true
    }

    /// Whether the node still leads when the next mark after a place is set: if not, effects before it may be copies.
    fn leads_on(&self, place: usize) -> bool {
        let marks = self.log[place + 1..].iter().map(|item| match item {
            Item::Group(group) => {
                group.mark.map(|(id, _)| self.records.get(&id).is_some_and(|record| record.node == self.site.node))
            }
            Item::Copy(_) => Some(false),
        });
        marks.flatten().next().unwrap_or(false)
    }

    /// Whether the next effect on the call's key comes so late that the call was not granted at once.
    fn is_granted_later(&self) -> bool {
        let Some((id, call)) = &self.site.call else { return false };
        let (keys, mut last_us) = (call.keys(), 0);
        for (place, item) in self.log.iter().enumerate().skip(self.site.place + 1) {
            let Item::Group(group) = item else { return false };
            match group.mark {
                Some((_, ms)) => last_us = ms * 1_000,
                None if group.effects.iter().any(|(key, _)| keys.contains(&key.as_str())) => {
                    return last_us > self.records[id].before_us + 5_000 && self.leads_on(place);
                }
                None => {}
            }
        }
        false
    }

    /// Changes a number of the reply.
    fn miscount(&mut self, place: usize, by: i64) -> bool {
        let Some(Record { reply: Reply::Text(text), .. }) = self.record() else { return false };
        let mut words: Vec<String> = text.split(',').map(str::to_string).collect();
        let Some(number) = words.get(place).and_then(|word| word.parse::<i64>().ok()) else { return false };
        words[place] = (number + by).to_string();
        *text = words.join(",");
        true
    }

    /// Changes the deadline that the call sets.
    fn mistime(&mut self, by_ms: i64) -> bool {
        let effects = self.group().effects.iter_mut().filter(|(key, _)| !Self::is_mark(key));
        for (_, effect) in effects {
            match effect {
                Effect::Set(_, Some(deadline)) | Effect::Deadline(deadline) => {
                    *deadline += by_ms;
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// Changes a byte of what the call writes.
    fn garble(&mut self) -> bool {
        let number = self.rng.usize(..);
        let effects = self.group().effects.iter_mut().filter(|(key, _)| !Self::is_mark(key));
        for (_, effect) in effects {
            if let Effect::Set(bytes, _) | Effect::Patch(_, bytes) = effect {
                let place = number % bytes.len();
                bytes[place] ^= 1 << (number / bytes.len() % 8);
                return true;
            }
        }
        false
    }
}

fn takes(verb: &Verb) -> bool {
    matches!(verb, Verb::Take { .. } | Verb::All { .. } | Verb::Throttle { .. })
}

/// Whether the scene is a granted call of a transaction.
fn is_charge(scene: &mut Scene<'_>) -> bool {
    scene.transaction(true).is_some_and(|(verb, reply)| matches!(verb, Verb::Take { .. }) && grants(&reply))
}

/// Whether the scene is a denied call with one key of a transaction.
fn is_denial(scene: &mut Scene<'_>) -> bool {
    scene.transaction(false).is_some_and(|(verb, reply)| {
        matches!(verb, Verb::Take { renew: false, .. }) && reply.starts_with("0,") && reply.split(',').count() == 5
    })
}

fn is_lease(verb: &Verb) -> bool {
    matches!(verb, Verb::Take { part, .. } if part.limit.is_some_and(|limit| limit.is_lease()))
}

/// Whether the scene is a call that waited, as its reply says.
fn has_waited(scene: &mut Scene<'_>) -> bool {
    let Some((id, call)) = &scene.site.call else { return false };
    let blocks = matches!(&call.verb, Verb::Take { later: Later::Block(_), part, .. } if part.limit.is_some());
    let (waits, id) = (blocks && !sends_batches(id.caller) && !scene.site.copies, *id);
    let record = &scene.records[&id];
    waits
        && matches!(&record.reply, Reply::Text(text) if grants(text))
        && (20_000..200_000).contains(&(record.after_us - record.before_us))
}

/// Whether the scene is the effect of calls that waited, all of which were answered.
fn is_late_effect(scene: &mut Scene<'_>) -> bool {
    let alone = scene.site.call.is_none() && !scene.site.copies;
    let effects = &scene.group().effects;
    if !alone || !effects.iter().all(|(_, effect)| matches!(effect, Effect::Set(..) | Effect::Patch(..))) {
        return false;
    }
    let keys: Vec<_> = effects.iter().map(|(key, _)| key.clone()).collect();
    if !scene.leads_on(scene.site.place) {
        return false;
    }
    let before = &scene.log[scene.site.place.saturating_sub(LONGEST_WAIT)..scene.site.place];
    before.iter().all(|item| {
        let Item::Group(Group { mark: Some((id, _)), .. }) = item else { return true };
        let unknown = scene.records.get(id).is_some_and(|record| matches!(record.reply, Reply::Lost | Reply::HungUp));
        !unknown || !scene.run.draw(*id).keys().iter().any(|key| keys.iter().any(|other| other == key))
    })
}

/// For about how many items of a log a call may wait.
const LONGEST_WAIT: usize = 10_000;

/// The deadline of a log may be later than its last entry needs, by a part of the period.
const TWENTY_DAYS_MS: i64 = 1_728_000_000;

const FAULTS: &[Fault] = &[
    Fault { name: "a granted call charges nothing", times: 6, plant: |scene| is_charge(scene) && scene.lose(|_| true) },
    Fault {
        name: "a lease is granted, and nobody holds it",
        times: 2,
        plant: |scene| is_charge(scene) && is_lease(&scene.call().expect("a call").verb) && scene.lose(|_| true),
    },
    Fault {
        name: "a call with several keys charges only some",
        times: 3,
        plant: |scene| {
            let all = scene.transaction(true).filter(|(verb, _)| matches!(verb, Verb::All { .. }));
            let keys = scene.call().map(|call| call.keys().iter().map(|key| key.to_string()).collect::<Vec<_>>());
            all.is_some_and(|(_, reply)| grants(&reply)) && {
                let keys = keys.unwrap_or_default();
                scene.lose(|key| key == keys[0])
            }
        },
    },
    Fault {
        name: "a settlement is lost",
        times: 3,
        plant: |scene| {
            let settled = scene.transaction(true).filter(|(_, reply)| reply != "nil");
            settled.is_some_and(|(verb, _)| matches!(verb, Verb::Settle { .. })) && scene.lose(|_| true)
        },
    },
    Fault {
        name: "a released lease is still held",
        times: 1,
        plant: |scene| {
            let released = scene.transaction(true).filter(|(_, reply)| reply != "nil");
            let is_lease = |verb: &Verb| matches!(verb, Verb::Settle { key, .. } if key.ends_with(":lease"));
            released.is_some_and(|(verb, _)| is_lease(&verb)) && scene.lose(|_| true)
        },
    },
    Fault {
        name: "a pause is lost",
        times: 2,
        plant: |scene| scene.makes(true, |verb| matches!(verb, Verb::Pause { us: 1.., .. })) && scene.lose(|_| true),
    },
    Fault {
        name: "a policy is not deleted",
        times: 1,
        plant: |scene| {
            let deleted = scene.transaction(true).filter(|(_, reply)| reply == "1");
            deleted.is_some_and(|(verb, _)| matches!(verb, Verb::Policy { rule: None, .. })) && scene.lose(|_| true)
        },
    },
    Fault {
        name: "another policy is written",
        times: 1,
        plant: |scene| {
            let Some((Verb::Policy { rule: Some(rule), .. }, _)) = scene.transaction(true) else { return false };
            let other = policy_text(&RULES[(rule + 1) % RULES.len()]).into_bytes();
            scene.group().effects.iter_mut().any(|(key, effect)| match effect {
                Effect::Set(bytes, _) if !Scene::is_mark(key) => {
                    bytes.clone_from(&other);
                    true
                }
                _ => false,
            })
        },
    },
    Fault {
        name: "a key lives twenty days longer",
        times: 3,
        plant: |scene| is_charge(scene) && scene.mistime(TWENTY_DAYS_MS),
    },
    Fault {
        name: "a key lives twenty days less",
        times: 2,
        plant: |scene| is_charge(scene) && scene.mistime(-TWENTY_DAYS_MS),
    },
    Fault { name: "a bit of a record differs", times: 6, plant: |scene| is_charge(scene) && scene.garble() },
    Fault {
        name: "a denial deletes the key",
        times: 2,
        plant: |scene| {
            let key = scene.call().and_then(|call| Some(call.keys().first()?.to_string()));
            is_denial(scene) && {
                scene.group().effects.push((key.expect("a key"), Effect::Delete));
                true
            }
        },
    },
    Fault {
        name: "a call changes another key",
        times: 2,
        plant: |scene| {
            is_charge(scene) && {
                let tag = scene.site.tag;
                let effects = scene.group().effects.iter_mut().filter(|(key, _)| !Scene::is_mark(key));
                effects.for_each(|(key, _)| *key = format!("{{t{tag}}}:other"));
                true
            }
        },
    },
    Fault {
        name: "a denied call is answered with a grant",
        times: 4,
        plant: |scene| is_denial(scene) && scene.miscount(0, 1),
    },
    Fault {
        name: "a lease above the limit",
        times: 2,
        plant: |scene| is_denial(scene) && is_lease(&scene.call().expect("a call").verb) && scene.miscount(0, 1),
    },
    Fault {
        name: "a granted call is answered with a denial",
        times: 2,
        plant: |scene| {
            let granted = scene.reply().and_then(|reply| reply.split(',').next()?.parse::<i64>().ok());
            is_charge(scene) && scene.miscount(0, -granted.unwrap_or(0))
        },
    },
    Fault { name: "one unit more remains", times: 2, plant: |scene| is_charge(scene) && scene.miscount(2, 1) },
    Fault { name: "one unit less remains", times: 1, plant: |scene| is_charge(scene) && scene.miscount(2, -1) },
    Fault { name: "another limit in a reply", times: 1, plant: |scene| is_charge(scene) && scene.miscount(1, 1) },
    Fault { name: "a wait too short", times: 2, plant: |scene| is_denial(scene) && scene.miscount(3, -2) },
    Fault { name: "a wait too long", times: 2, plant: |scene| is_denial(scene) && scene.miscount(3, 2) },
    Fault { name: "a wrong reset", times: 2, plant: |scene| is_charge(scene) && scene.miscount(4, 60) },
    Fault {
        name: "RL.PEEK shows a unit more",
        times: 1,
        plant: |scene| scene.makes(false, |verb| matches!(verb, Verb::Peek(_))) && scene.miscount(2, 1),
    },
    Fault {
        name: "RL.INSPECT shows another number",
        times: 1,
        plant: |scene| {
            let inspects = scene
                .transaction(false)
                .is_some_and(|(verb, reply)| matches!(verb, Verb::Inspect { .. }) && reply.starts_with("algorithm,"));
            inspects && scene.miscount(3, 1)
        },
    },
    Fault {
        name: "CL.THROTTLE shows a unit more",
        times: 1,
        plant: |scene| scene.makes(true, |verb| matches!(verb, Verb::Throttle { .. })) && scene.miscount(2, 1),
    },
    Fault {
        name: "RL.ALL states another wait",
        times: 1,
        plant: |scene| {
            let denies = scene
                .transaction(false)
                .is_some_and(|(verb, reply)| matches!(verb, Verb::All { .. }) && reply.starts_with("0,"));
            denies && scene.miscount(1, 2)
        },
    },
    Fault {
        name: "a settlement shows a unit more",
        times: 1,
        plant: |scene| scene.makes(true, |verb| matches!(verb, Verb::Settle { .. })) && scene.miscount(2, 1),
    },
    Fault {
        name: "an answered call was never executed",
        times: 2,
        plant: |scene| {
            let answered = scene.transaction(false).is_some_and(|(verb, _)| takes(&verb));
            answered && scene.drop_group()
        },
    },
    Fault { name: "a call is executed twice", times: 2, plant: |scene| is_charge(scene) && scene.repeat() },
    Fault {
        name: "the grant of a call that waited is lost",
        times: 3,
        plant: |scene| is_late_effect(scene) && scene.drop_group(),
    },
    Fault { name: "an effect happens twice", times: 2, plant: |scene| is_late_effect(scene) && scene.repeat() },
    Fault {
        name: "a waiting call is granted after its caller hung up",
        times: 3,
        plant: |scene| {
            has_waited(scene) && scene.is_granted_later() && {
                let record = scene.record().expect("a record");
                (record.reply, record.after_us) = (Reply::HungUp, record.before_us + 2_000);
                true
            }
        },
    },
    Fault {
        name: "a copy differs from its primary",
        times: 2,
        plant: |scene| {
            scene.site.copies && scene.site.call.is_some() && scene.changes_keys() && scene.garble() && {
                scene.group().hash ^= 1;
                true
            }
        },
    },
    Fault {
        name: "a copy lacks a call",
        times: 2,
        plant: |scene| scene.site.copies && scene.site.call.is_some() && scene.drop_group(),
    },
    Fault {
        name: "a call that waited is answered with a unit more",
        times: 2,
        plant: |scene| has_waited(scene) && scene.miscount(2, 1),
    },
];

/// A fault that was planted.
pub struct Planted {
    pub name: &'static str,
    pub tag: u64,
    /// Where it is.
    pub place: String,
}

/// Plants the wanted faults, in turn: one for each tag. It stops at one that has no place in any tag
/// that is left. So those planted are the first of the wanted ones.
pub fn plant(
    run: Run,
    (records, logs): (&mut Records, &mut [Vec<Item>]),
    (tags, steps): (&[u64], &[(usize, [i64; 2])]),
    rng: &mut Rng,
    wanted: &[usize],
) -> Vec<Planted> {
    let mut sites: HashMap<u64, Vec<Site>> = HashMap::new();
    let nodes = logs.len();
    for (node, log) in logs.iter().enumerate() {
        let mut copies = true;
        for (place, item) in log.iter().enumerate() {
            let Item::Group(group) = item else {
                copies = true;
                continue;
            };
            let record = group.mark.and_then(|(id, _)| records.get(&id));
            // A call that another shard has sent on is nobody's.
            if record.is_some_and(|record| record.node % (nodes / 2) != node % (nodes / 2)) {
                continue;
            }
            copies = record.map_or(copies, |record| record.node != node);
            let tag = group.effects.first().and_then(|(key, _)| key.strip_prefix("{t")?.split('}').next()?.parse().ok());
            let call = group.mark.map(|(id, _)| (id, run.draw(id)));
            let Some(tag) = tag else { continue };
            sites.entry(tag).or_default().push(Site { node, place, call, tag, copies });
        }
    }
    let all: Vec<_> = FAULTS.iter().flat_map(|fault| std::iter::repeat_n(fault, fault.times)).collect();
    let (mut planted, mut inserted) = (Vec::new(), Vec::new());
    for &tag in tags {
        let Some(&number) = wanted.get(planted.len()) else { break };
        let fault = all[number];
        let sites = sites.get(&tag).map(Vec::as_slice).unwrap_or_default();
        for _ in 0..20_000.min(sites.len() * 4) {
            let site = &sites[rng.usize(..sites.len())];
            let record = site.call.as_ref().map(|(id, _)| &records[id]);
            // About a step of a clock, times prove less.
            let near = |us: i64, record: &Record| (us - record.before_us).abs() < 6_000_000;
            let is_stepped = |record: &Record| {
                steps.iter().any(|(node, times)| *node == site.node && times.iter().any(|&us| near(us, record)))
            };
            if record.is_some_and(is_stepped) {
                continue;
            }
            // An inserted item moves all behind it.
            let moved = inserted.iter().filter(|&&(node, place)| node == site.node && place < site.place).count();
            let moved = Site { place: site.place + moved, call: site.call.clone(), ..*site };
            let log = &mut logs[site.node];
            let len = log.len();
            if (fault.plant)(&mut Scene { run, log, records, site: &moved, rng }) {
                if logs[site.node].len() > len {
                    inserted.push((site.node, site.place));
                }
                let mark =
                    site.call.as_ref().map_or("an effect".into(), |(id, call)| format!("{} {}", id.mark(), call.words()));
                planted.push(Planted { name: fault.name, tag, place: format!("node {}, {mark}", site.node) });
                break;
            }
        }
    }
    planted
}

/// The numbers of all faults.
pub fn all() -> Vec<usize> {
    (0..FAULTS.iter().map(|fault| fault.times).sum()).collect()
}
