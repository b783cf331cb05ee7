//! What is true of the queues between any two calls. Debug builds check it after each change.
//!
//! Nothing here depends on the value of a key: clients can write to the keys, but not to the queues.

use std::collections::BTreeMap;

use super::line::{least, Line, Lines};
use super::queues::Queues;
use super::waiter::Client;
use crate::limiter::Instant;

/// Queues of n clients are checked at about every (n / EACH + 1)th change. So, per change, the checks of many clients take about as
/// much time as the checks of `EACH` clients.
const EACH: usize = 8;

impl<C: Client> Queues<C> {
    /// The first fault that is found; `None` if the queues are sound.
    pub(super) fn fault(&self) -> Option<String> {
        let changes = self.next_number as usize + self.len() + self.lines.len();
        let is_due = changes.is_multiple_of(self.len() / EACH + 1);
        is_due.then(|| self.fault_of_waiters().or_else(|| self.fault_of_lines())).flatten()
    }

    fn fault_of_waiters(&self) -> Option<String> {
        let fault = if self.numbers.len() != self.waiters.len() {
            format!("{} clients have {} numbers", self.waiters.len(), self.numbers.len())
        } else if self.deadlines.len() != self.waiters.len() {
            format!("{} clients have {} deadlines", self.waiters.len(), self.deadlines.len())
        } else if let Some(number) = self.postponed.keys().find(|number| !self.waiters.contains_key(number)) {
            format!("the answer to client {number} is postponed, but it does not wait")
        } else {
            return self.waiters.iter().find_map(|(&number, waiter)| {
                let answered_at = self.postponed.get(&number).copied().unwrap_or(waiter.deadline);
                let stands = |line: Option<&Line>| line.is_some_and(|line| line.contains(number));
                let fault = if number >= self.next_number {
                    "has a number that a later client will have"
                } else if self.numbers.get(&waiter.client.id()) != Some(&number) {
                    "has another number"
                } else if !self.deadlines.contains(&(answered_at, number)) {
                    "has another deadline"
                } else if !waiter.claims.iter().any(|claim| stands(self.lines.of_key(waiter.db, &claim.key))) {
                    "stands in no line"
                } else {
                    return None;
                };
                Some(format!("client {number} {fault}"))
            });
        };
        Some(fault)
    }

    fn fault_of_lines(&self) -> Option<String> {
        // For each key: how many calls have a claim for it, and how many units these calls take.
        let mut calls: BTreeMap<(i32, &[u8]), (usize, u64)> = BTreeMap::new();
        for waiter in self.waiters.values() {
            for claim in &*waiter.claims {
                let (calls, units) = calls.entry((waiter.db, &claim.key)).or_default();
                (*calls, *units) = (*calls + 1, units.saturating_add(least(claim.amount)));
            }
        }
        if self.lines.len() != calls.len() {
            return Some(format!("{} lines of {} keys", self.lines.len(), calls.len()));
        }
        self.lines.fault().or_else(|| {
            calls.into_iter().find_map(|((db, key), counted)| {
                let Some(line) = self.lines.of_key(db, key) else { return Some(format!("no line of {key:?} in {db}")) };
                let ids = |number: &u64| {
                    let waiter = self.waiters.get(number)?;
                    waiter.claims.iter().any(|claim| *claim.key == *key).then(|| (waiter.id.clone(), *number))
                };
                line.fault(counted, ids).map(|fault| format!("the line of {key:?} in database {db} {fault}"))
            })
        })
    }
}

impl Lines {
    /// Whether the agenda and the names agree with the lines.
    fn fault(&self) -> Option<String> {
        let names: usize = self.ids.values().map(|ids| ids.len()).sum();
        if self.agenda.len() != self.lines.len() || names != self.lines.len() {
            return Some(format!("{} lines, {names} names, {} wake times", self.lines.len(), self.agenda.len()));
        }
        self.lines.iter().find_map(|(&id, line)| {
            let fault = if !self.agenda.contains(&(line.wake, id)) {
                "has another wake time in the agenda"
            } else if self.id(line.db, &line.key) != Some(id) || id >= self.next_id {
                "has another id"
            } else if line.is_empty() && line.wake != Instant::MAX {
                "is empty, and is to be served"
            } else {
                return None;
            };
            Some(format!("line {id} {fault}"))
        })
    }
}
