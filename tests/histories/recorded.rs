//! What is recorded of a round, in a folder: the callers' histories, the nodes' logs, and what was done to the clocks and slots.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use crate::check::{Checked, Checker, History, Move};
use crate::faults::Events;
use crate::log::{self, Item, Manifests};
use crate::plant::{self, Planted};
use crate::replies::{self, Record};
use crate::workload::{CallId, Run, CALLERS, TAGS};

/// How many faults a round gets.
const MOST_FAULTS: usize = 12;

/// A recorded round.
pub struct Recorded {
    run: Run,
    moves: Vec<Move>,
    steps: Vec<(usize, [i64; 2])>,
    records: HashMap<CallId, Record>,
    logs: Vec<Vec<Item>>,
}

/// Moves the nodes' logs into the folder of the histories, and writes down the rest.
pub fn write(folder: &Path, run: Run, events: &Events, manifests: &[Manifests], nodes: &[PathBuf]) {
    let mut text = format!("run {} {}\n", run.seed, run.start_s);
    for Move { tag, slot, us: [from, until], to, whole } in &events.moves {
        text += &format!("move {tag} {from} {until} {to} {} {slot}\n", u8::from(*whole));
    }
    for (node, [before, after]) in &events.steps {
        text += &format!("step {node} {before} {after}\n");
    }
    for (node, manifests) in manifests.iter().enumerate() {
        for (base, first) in &manifests.0 {
            text += &format!("base {node} {base} {first}\n");
        }
    }
    std::fs::write(folder.join("run"), text).expect("a file");
    for (number, node) in nodes.iter().enumerate() {
        let to = folder.join(number.to_string());
        std::fs::create_dir(&to).expect("a folder");
        std::fs::rename(node.join("appendonlydir"), to.join("appendonlydir")).expect("the log");
    }
}

impl Recorded {
    /// Reads a folder.
    pub fn read(folder: &Path) -> Self {
        let mut run = Run { seed: 0, start_s: 0 };
        let (mut moves, mut steps) = (Vec::new(), Vec::new());
        let mut manifests: Vec<Manifests> = Vec::new();
        for line in std::fs::read_to_string(folder.join("run")).expect("a recorded run").lines() {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<i64>().expect("a number");
            match words[0] {
                "run" => run = Run { seed: number(1) as u64, start_s: number(2) as u64 },
                "move" => {
                    let (tag, us, to) = (number(1) as u64, [number(2), number(3)], number(4) as usize);
                    moves.push(Move { tag, slot: number(6) as u16, us, to, whole: number(5) > 0 });
                }
                "step" => steps.push((number(1) as usize, [number(2), number(3)])),
                _ => {
                    let node = number(1) as usize;
                    manifests.resize_with(manifests.len().max(node + 1), Manifests::default);
                    manifests[node].0.insert(words[2].into(), words[3].into());
                }
            }
        }
        let records = replies::read(folder, CALLERS);
        let nodes = manifests.iter().enumerate();
        let tags = moves.iter().map(|moved| (moved.slot, moved.tag)).collect();
        let logs = nodes.map(|(node, manifests)| log::read(&folder.join(node.to_string()), manifests, &tags));
        let mut logs: Vec<_> = logs.collect();
        if logs.is_empty() {
            logs.push(log::of_states(folder, CALLERS, run, &records));
        }
        Self { run, moves, steps, records, logs }
    }

    /// Whether it is of a lone server.
    pub fn is_lone(&self) -> bool {
        self.logs.len() == 1
    }

    /// Checks the round.
    pub fn check(&self) -> Checked {
        Checker::check(&self.history(&self.records, &self.logs), None)
    }

    fn history<'a>(&'a self, records: &'a HashMap<CallId, Record>, logs: &'a [Vec<Item>]) -> History<'a> {
        History { run: self.run, records, logs, moves: &self.moves, steps: &self.steps }
    }

    /// Plants the first of the wanted faults, one for each of some tags, and removes them from the list. Returns how many, and how many
    /// of them the checker missed.
    pub fn plant(&self, wanted: &mut Vec<usize>) -> [usize; 2] {
        let mut rng = Rng::with_seed(self.run.seed);
        let (mut records, mut logs) = (self.records.clone(), self.logs.clone());
        // While a slot moves as a whole, effects without a call are no finding.
        let moved = |tag: &u64| self.moves.iter().any(|moved| moved.whole && moved.tag == *tag);
        let mut tags: Vec<_> = (0..TAGS).filter(|tag| !moved(tag)).collect();
        rng.shuffle(&mut tags);
        tags.truncate(MOST_FAULTS);
        let mut planted = Vec::new();
        for _ in 0..wanted.len() {
            planted = plant::plant(self.run, (&mut records, &mut logs), (&tags, &self.steps), &mut rng, wanted);
            if !planted.is_empty() {
                break;
            }
            // The first fault has no place in this round. Another round may have one.
            wanted.rotate_left(1);
        }
        wanted.drain(..planted.len());
        let tags = planted.iter().map(|fault| fault.tag).collect();
        let findings = Checker::check(&self.history(&records, &logs), Some(&tags)).findings;
        let is_missed = |fault: &&Planted| !findings.iter().any(|finding| finding.tag == Some(fault.tag));
        let missed: Vec<_> = planted.iter().filter(is_missed).collect();
        missed.iter().for_each(|fault| println!("  MISSED: {} ({})", fault.name, fault.place));
        [planted.len(), missed.len()]
    }
}
