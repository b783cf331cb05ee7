//! Compares, when all logs are replayed: the copies with what they were made of, and the replies with what was executed.

use std::collections::{HashMap, HashSet};

use crate::check::{reply_text, Checker};
use crate::log::Item;
use crate::replies::{grants, Reply};
use crate::workload::{CallId, Verb};

impl Checker<'_> {
    /// Compares the replicas' logs with those of the nodes that executed the calls, and counts what takeovers have lost.
    pub fn copies(&mut self) {
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

    pub fn same_node(&self, one: CallId, other: CallId) -> bool {
        self.history.records[&one].node == self.history.records[&other].node
    }

    /// Each reply has its effect.
    pub fn replies(&mut self) {
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
                    let granted = grants(text) && !call.parts().is_empty();
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
