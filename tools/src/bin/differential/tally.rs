//! Counts what a run has covered, and prints it.

use std::collections::BTreeMap;

use crate::calls::{Place, Words};
use crate::resp::{readable, Reply};

/// Counts of calls and of their outcomes.
#[derive(Default)]
pub struct Tally {
    /// All commands, including the reads that compare the stored values.
    pub commands: u64,
    /// Calls of the module.
    pub calls: u64,
    /// Values of keys that were compared.
    pub values: u64,
    /// Bytes of the replication stream and of the append-only file.
    pub stream: u64,
    /// Bytes of the append-only file.
    pub appended: u64,
    /// Keyspace events.
    pub events: u64,
    /// Values and deadlines of all keys at the end of a session.
    pub snapshots: u64,
    names: BTreeMap<String, [u64; 4]>,
    keywords: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
    waits: BTreeMap<String, u64>,
    effects: BTreeMap<String, u64>,
    module_events: BTreeMap<String, u64>,
    /// The longest value that was compared in full, in bytes.
    pub longest: usize,
}

/// The words that are counted.
const KEYWORDS: [&str; 13] = [
    "ALIGN", "SEGMENTS", "BURST", "CAPACITY", "STEP", "COST", "UPTO", "FORCE", "REFUND", "RESERVE", "BLOCK", "TOKENS",
    "RESET",
];

impl Tally {
    /// Counts the calls of a step by the reply to its last command; the five numbers of each go to `learn`.
    pub fn count(&mut self, place: &Place, commands: &[Words], replies: &[&[u8]], mut learn: impl FnMut([i64; 5])) {
        let last = replies.last().map_or(Reply::Other, |reply| Reply::read(reply));
        match place {
            Place::Direct => {
                for (command, reply) in commands.iter().zip(replies) {
                    self.call("", command, &Reply::read(reply), &mut learn);
                }
            }
            Place::Multi(calls) | Place::Script(calls) => {
                let name = if matches!(place, Place::Multi(_)) { "MULTI " } else { "EVAL " };
                match &last {
                    Reply::Array(items) if items.len() == calls.len() => {
                        calls.iter().zip(items).for_each(|(call, reply)| self.call(name, call, reply, &mut learn));
                    }
                    reply => calls.iter().for_each(|call| self.call(name, call, reply, &mut learn)),
                }
            }
        }
    }

    /// Counts one call.
    pub fn call(&mut self, place: &str, command: &Words, reply: &Reply<'_>, learn: &mut impl FnMut([i64; 5])) {
        let name = command[0].to_ascii_uppercase();
        let named = |prefix: &[u8]| name.starts_with(prefix);
        let ours =
            named(b"RL.") || named(b"CL.") || name == b"GCRA" || named(b"INFO") || named(b"CONFIG") || named(b"COMMAND");
        if !ours {
            return;
        }
        self.calls += 1;
        let printed = format!("{place}{}", readable(&name, 14));
        let counts = self.names.entry(printed).or_default();
        counts[0] += 1;
        match reply {
            Reply::Error(text) => {
                counts[3] += 1;
                *self.errors.entry(class(text)).or_default() += 1;
                return;
            }
            Reply::Array(items) => {
                let five = reply.five();
                let granted = match (five, items.first()) {
                    (Some(five), _) => {
                        learn(five);
                        (five[0] > 0) != (named(b"CL.") || name == b"GCRA")
                    }
                    (None, Some(Reply::Integer(granted))) if named(b"RL.ALL") => {
                        if let Some(Reply::Array(rows)) = items.get(2) {
                            rows.iter().filter_map(Reply::five).for_each(&mut *learn);
                        }
                        *granted > 0
                    }
                    _ => true,
                };
                counts[if granted { 1 } else { 2 }] += 1;
            }
            _ => counts[1] += 1,
        }
        for word in &command[1..] {
            if let Some(keyword) = KEYWORDS.iter().find(|keyword| keyword.as_bytes().eq_ignore_ascii_case(word)) {
                *self.keywords.entry((*keyword).into()).or_default() += 1;
            }
        }
    }

    /// Counts what happened with calls that wait.
    pub fn wait(&mut self, what: &str) {
        *self.waits.entry(what.into()).or_default() += 1;
    }

    /// Counts a command of the replication stream.
    pub fn effect(&mut self, command: &[u8]) {
        self.stream += command.len() as u64;
        if let Reply::Array(words) = Reply::read(command) {
            if let Some(Reply::Bulk(name)) = words.first() {
                *self.effects.entry(readable(&name.to_ascii_uppercase(), 20)).or_default() += 1;
            }
        }
    }

    /// Counts a keyspace event, as it is pushed to a client that has subscribed.
    pub fn event(&mut self, push: &[u8]) {
        self.events += 1;
        let text = String::from_utf8_lossy(push);
        if let Some((_, event)) = text.split_once("__keyevent@").and_then(|(_, rest)| rest.split_once("__:rl.")) {
            let name: String = event.chars().take_while(|letter| letter.is_ascii_lowercase()).collect();
            *self.module_events.entry(format!("rl.{name}")).or_default() += 1;
        }
    }

    /// Prints all of it.
    pub fn print(&self) {
        println!("\n{:<24} {:>10} {:>10} {:>10} {:>10}", "calls", "all", "granted", "denied", "errors");
        let mut rest = [0; 4];
        for (name, counts) in &self.names {
            if counts[0] < 20 {
                rest.iter_mut().zip(counts).for_each(|(rest, count)| *rest += count);
            } else {
                println!("{name:<24} {:>10} {:>10} {:>10} {:>10}", counts[0], counts[1], counts[2], counts[3]);
            }
        }
        println!("{:<24} {:>10} {:>10} {:>10} {:>10}", "others", rest[0], rest[1], rest[2], rest[3]);
        let list = |title: &str, counts: &BTreeMap<String, u64>| {
            println!("\n{title}");
            counts.iter().for_each(|(name, count)| println!("{count:>10}  {name}"));
        };
        list("keywords in calls without an error", &self.keywords);
        list("calls that wait", &self.waits);
        list("errors", &self.errors);
        list("commands of the replication stream", &self.effects);
        list("keyspace events of the module", &self.module_events);
        println!(
            "\n{} commands to each server, {} calls of the module among them; {} stored values with their deadlines (the longest of {} bytes), and {} at the \
             ends of sessions; {} bytes of replication stream; {} bytes of append-only file; {} keyspace events",
            self.commands, self.calls, self.values, self.longest, self.snapshots, self.stream, self.appended, self.events
        );
    }
}

/// An error's text without the parts that differ from call to call: quoted words and numbers.
fn class(text: &[u8]) -> String {
    let mut class = String::new();
    let mut quoted = false;
    let text = String::from_utf8_lossy(text);
    // In a script, the server adds the script's hash to the error.
    let text = text.split(" script: ").next().unwrap_or_default();
    for (index, letter) in text.char_indices() {
        let opens = letter == '\'' && (quoted || text[..index].ends_with(' '));
        if opens {
            quoted = !quoted;
            class.push(letter);
        } else if quoted {
        } else if letter.is_ascii_digit() {
            if !class.ends_with('N') {
                class.push('N');
            }
        } else {
            class.push(letter);
        }
    }
    let end = class.char_indices().nth(110).map_or(class.len(), |(end, _)| end);
    class[..end].to_owned()
}
