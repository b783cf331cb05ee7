//! Reads a node's append-only files: the states that the node's keys had, in order, with the marks of the calls. For a server without
//! these files, the callers have read the states.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use crate::caller::MARK_MS;
use crate::replies::{Record, State};
use crate::workload::{Call, CallId, Run};

/// One effect on a key.
#[derive(Clone, Debug)]
pub enum Effect {
    Set(Vec<u8>, Option<i64>),
    Patch(usize, Vec<u8>),
    /// The deadline becomes this one.
    Deadline(i64),
    Delete,
    /// The key arrives from another node.
    Arrive(Vec<u8>, Option<i64>),
}

/// What was executed at one moment.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The call whose mark was set, and when by the node's clock, in milliseconds.
    pub mark: Option<(CallId, i64)>,
    pub effects: Vec<(String, Effect)>,
    /// The slots whose keys were all deleted, from the first to the last.
    pub trimmed: Vec<[u16; 2]>,
    /// Identifies the bytes of the commands.
    pub hash: u64,
}

/// A part of a log.
#[derive(Clone, Debug)]
pub enum Item {
    /// The node's keys become these: it has loaded a copy.
    Copy(HashMap<String, State>),
    Group(Group),
}

/// Which incremental files follow a base file, as the manifests have shown while the node ran.
#[derive(Clone, Debug, Default)]
pub struct Manifests(pub BTreeMap<String, String>);

impl Manifests {
    /// Reads a node's manifest. Call it often, so that none is missed.
    pub fn look(&mut self, folder: &Path) {
        let Ok(text) = std::fs::read_to_string(folder.join("appendonlydir/appendonly.aof.manifest")) else { return };
        let file = |kind: &str| {
            // Redis 8.6 writes more words behind the kind.
            let mut lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            let words = lines.find(|words| words.get(5) == Some(&kind))?;
            Some(words.get(1)?.to_string())
        };
        if let (Some(base), Some(first)) = (file("b"), file("i")) {
            self.0.entry(base).or_insert(first);
        }
    }
}

/// The commands of a file. The last one may have been cut off.
fn commands(bytes: &[u8]) -> Vec<Vec<&[u8]>> {
    fn number(bytes: &[u8], at: &mut usize, sign: u8) -> Option<usize> {
        let line = bytes.get(*at..)?;
        let end = line.windows(2).position(|pair| pair == b"\r\n")?;
        let digits = line[..end].strip_prefix(&[sign])?;
        *at += end + 2;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
    fn next<'a>(bytes: &'a [u8], at: &mut usize) -> Option<Vec<&'a [u8]>> {
        // Annotations.
        while bytes.get(*at) == Some(&b'#') {
            *at += bytes[*at..].windows(2).position(|pair| pair == b"\r\n")? + 2;
        }
        let count = number(bytes, at, b'*')?;
        let mut words = Vec::with_capacity(count);
        for _ in 0..count {
            let len = number(bytes, at, b'$')?;
            words.push(bytes.get(*at..*at + len)?);
            *at += len + 2;
        }
        (*at <= bytes.len()).then_some(words)
    }
    let (mut at, mut all) = (0, Vec::new());
    while let Some(words) = next(bytes, &mut at) {
        all.push(words);
    }
    all
}

fn integer(word: &[u8]) -> i64 {
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).expect("a number")
}

/// The string in a payload of `DUMP`.
fn dumped(payload: &[u8]) -> Vec<u8> {
    assert_eq!(payload.first(), Some(&0), "a string");
    let (len, from) = match payload[1] >> 6 {
        0 => (usize::from(payload[1] & 63), 2),
        1 => (usize::from(payload[1] & 63) << 8 | usize::from(payload[2]), 3),
        2 => (u32::from_be_bytes(payload[2..6].try_into().expect("a length")) as usize, 6),
        _ => panic!("an encoded string, although compression is off"),
    };
    payload[from..from + len].to_vec()
}

impl Group {
    fn of(commands: &[Vec<&[u8]>]) -> Item {
        let (mut group, mut hasher) = (Self::default(), DefaultHasher::new());
        for words in commands {
            words.hash(&mut hasher);
            group.add(words);
        }
        Item::Group(Self { hash: hasher.finish(), ..group })
    }

    fn add(&mut self, words: &[&[u8]]) {
        let name = String::from_utf8_lossy(words[0]).to_uppercase();
        let key = |at: usize| String::from_utf8_lossy(words[at]).into_owned();
        let has = |word: &str| words.iter().any(|other| other.eq_ignore_ascii_case(word.as_bytes()));
        let effect = match name.as_str() {
            "SET" => {
                let deadline = words.iter().position(|word| word.eq_ignore_ascii_case(b"PXAT"));
                let deadline = deadline.map(|at| integer(words[at + 1]));
                if let Some(call) = CallId::parse(words[2]) {
                    // A mark that a migration copies is older than a day less a moment.
                    self.mark = deadline.map(|deadline| (call, deadline - MARK_MS));
                }
                Effect::Set(words[2].to_vec(), deadline)
            }
            "SETRANGE" => Effect::Patch(integer(words[2]) as usize, words[3].to_vec()),
            "PEXPIREAT" => Effect::Deadline(integer(words[2])),
            "RESTORE" | "RESTORE-ASKING" => {
                let deadline = Some(integer(words[2])).filter(|&deadline| deadline > 0);
                assert!(deadline.is_none() || has("ABSTTL"), "an absolute deadline");
                Effect::Arrive(dumped(words[3]), deadline)
            }
            "DEL" | "UNLINK" => {
                self.effects.extend((1..words.len()).map(|at| (key(at), Effect::Delete)));
                return;
            }
            // Redis 8.4 deletes the keys of a slot that has moved as a whole.
            "TRIMSLOTS" => {
                let slots: Vec<_> = words[3..].iter().map(|slot| integer(slot) as u16).collect();
                self.trimmed.extend(slots.chunks(2).map(|slots| [slots[0], slots[1]]));
                return;
            }
            "SELECT" | "PING" | "FLUSHALL" | "FLUSHDB" | "FUNCTION" | "CLUSTER" | "SYNCSLOTS" => return,
            other => panic!("the log has the command {other}"),
        };
        self.effects.push((key(1), effect));
    }
}

/// Reads a node's files. `tags` are the tags of the slots that have moved.
pub fn read(folder: &Path, manifests: &Manifests, tags: &HashMap<u16, u64>) -> Vec<Item> {
    let folder = folder.join("appendonlydir");
    let mut files: Vec<(u64, String)> = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the log") {
        let name = entry.expect("a file").file_name().into_string().expect("a name");
        if let Some(number) = name.strip_suffix(".incr.aof").and_then(|name| name.rsplit('.').next()) {
            files.push((number.parse().expect("a number"), name));
        }
    }
    files.sort();
    let last = files.last().map(|(number, _)| *number);
    let mut items = Vec::new();
    for (number, name) in files {
        let base = manifests.0.iter().find(|(_, first)| **first == name);
        if let Some((base, _)) = base.filter(|_| number > 1) {
            let bytes = std::fs::read(folder.join(base)).expect("a base file");
            let mut keys = HashMap::new();
            for words in commands(&bytes) {
                let mut group = Group::default();
                group.add(&words);
                group.apply(&mut keys);
            }
            items.push(Item::Copy(keys));
        }
        let bytes = std::fs::read(folder.join(name)).expect("a file");
        let mut open: Option<Vec<Vec<&[u8]>>> = None;
        for words in commands(&bytes) {
            match words[0].to_ascii_uppercase().as_slice() {
                b"MULTI" => {
                    // A server that was killed within a transaction leaves its MULTI. What follows was executed alone.
                    items.extend(open.replace(Vec::new()).into_iter().flatten().map(|words| Group::of(&[words])));
                }
                b"EXEC" => items.extend(open.take().map(|commands| Group::of(&commands))),
                b"SELECT" | b"PING" => {}
                _ => match &mut open {
                    Some(commands) => commands.push(words),
                    None => items.push(Group::of(&[words])),
                },
            }
        }
        // The server has begun the next file between two calls. So this is no transaction that a kill has cut off.
        if last != Some(number) {
            items.extend(open.into_iter().flatten().map(|words| Group::of(&[words])));
        }
    }
    // Names the keys that were deleted with their slots.
    let mut names = BTreeSet::new();
    for item in &mut items {
        match item {
            Item::Copy(keys) => names.extend(keys.keys().cloned()),
            Item::Group(group) => {
                names.extend(group.effects.iter().map(|(key, _)| key.clone()));
                for [first, last] in std::mem::take(&mut group.trimmed) {
                    let tags = tags.iter().filter(|(slot, _)| (first..=last).contains(slot));
                    let tags: Vec<_> = tags.map(|(_, tag)| format!("{{t{tag}}}")).collect();
                    let deleted = names.iter().filter(|name| tags.iter().any(|tag| name.starts_with(tag)));
                    group.effects.extend(deleted.map(|name| (name.clone(), Effect::Delete)));
                }
            }
        }
    }
    items
}

impl Group {
    /// The states of the group's keys afterwards.
    pub fn apply(&self, keys: &mut HashMap<String, State>) {
        for (key, effect) in &self.effects {
            effect.apply(keys.entry(key.clone()).or_default());
        }
    }
}

/// Bytes as text: of a long value the first ones.
pub fn hex(bytes: &[u8]) -> String {
    const SHOWN: usize = 128;
    let mut text: String = bytes.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > SHOWN {
        text += &format!("... ({} bytes)", bytes.len());
    }
    text
}

impl Effect {
    /// The effect as text.
    pub fn shown(&self) -> String {
        match self {
            Self::Set(value, deadline) => format!("SET {} {deadline:?}", hex(value)),
            Self::Patch(offset, patch) => format!("PATCH {offset} {}", hex(patch)),
            Self::Arrive(value, deadline) => format!("RESTORE {} {deadline:?}", hex(value)),
            other => format!("{other:?}"),
        }
    }

    pub fn apply(&self, state: &mut State) {
        match self {
            Self::Set(value, deadline) | Self::Arrive(value, deadline) => {
                *state = Some((value.clone(), deadline.unwrap_or(0)))
            }
            Self::Patch(offset, patch) => {
                let (value, _) = state.get_or_insert_default();
                value.resize(value.len().max(offset + patch.len()), 0);
                value[*offset..offset + patch.len()].copy_from_slice(patch);
            }
            Self::Deadline(deadline) => {
                if let Some(state) = state {
                    state.1 = *deadline;
                }
            }
            Self::Delete => *state = None,
        }
    }
}

/// The log that a server without a log would have written, from the states that callers have read after each call.
pub fn of_states(folder: &Path, callers: u64, run: Run, records: &HashMap<CallId, Record>) -> Vec<Item> {
    let mut calls = Vec::new();
    for caller in 0..callers {
        let text = std::fs::read_to_string(folder.join(format!("states.{caller}"))).expect("states");
        for line in text.lines() {
            let mut words = line.split(' ');
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
            let (id, place) = (CallId { caller, number: number() }, number());
            let state = |word: &str| {
                let (deadline_ms, hex) = word.split_once(':')?;
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte");
                Some(((0..hex.len()).step_by(2).map(byte).collect(), deadline_ms.parse().expect("a deadline")))
            };
            calls.push((run.draw(id), place, id, words.map(state).collect::<Vec<State>>()));
        }
    }
    calls.sort_by_key(|&(ref call, place, ..)| (call.tag, place));
    let mut known: HashMap<String, State> = HashMap::new();
    let mut log = Vec::new();
    for (call, _, id, states) in calls {
        let mark = (id, records[&id].after_us / 1_000);
        let mut effects = vec![(Call::mark_key(call.tag), Effect::Delete)];
        for (key, state) in call.keys().into_iter().zip(states) {
            let before = known.entry(key.to_string()).or_default();
            if *before != state {
                before.clone_from(&state);
                let effect = match state {
                    Some((value, deadline_ms)) => {
                        Effect::Set(value, Some(deadline_ms).filter(|&deadline_ms| deadline_ms > 0))
                    }
                    None => Effect::Delete,
                };
                effects.push((key.to_string(), effect));
            }
        }
        log.push(Item::Group(Group { mark: Some(mark), effects, ..Group::default() }));
    }
    log
}
