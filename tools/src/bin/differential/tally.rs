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
    /// Comparisons of a server with its replica.
    pub digests: u64,
    /// Deadlines that the module at hand chose otherwise.
    pub deadlines: u64,
    /// Keyspace events.
    pub events: u64,
    /// Values and deadlines of all keys at the end of a session.
    pub snapshots: u64,
    /// The longest value that was compared in full, in bytes.
    pub longest: usize,
    /// How often each thing happened, by what it is one of.
    others: BTreeMap<(&'static str, String), u64>,
}

impl Tally {
    /// Counts the calls of a step by the reply to its last command; the five numbers of each go to `learn`.
    pub fn count(&mut self, place: &Place, commands: &[Words], replies: &[&[u8]], mut learn: impl FnMut([i64; 5])) {
        let last = replies.last().map_or(Reply::Other, |reply| Reply::read(reply));
        match (place, &last) {
            (Place::Direct, _) => {
                for (command, reply) in commands.iter().zip(replies) {
                    self.call("", command, &Reply::read(reply), &mut learn);
                }
            }
            (Place::Inside(name, calls), Reply::Array(items)) if items.len() == calls.len() => {
                calls.iter().zip(items).for_each(|(call, reply)| self.call(name, call, reply, &mut learn));
            }
            (Place::Inside(name, calls), reply) => calls.iter().for_each(|call| self.call(name, call, reply, &mut learn)),
        }
    }

    /// Counts one call.
    pub fn call(&mut self, place: &str, command: &Words, reply: &Reply<'_>, learn: &mut impl FnMut([i64; 5])) {
        let name = command[0].to_ascii_uppercase();
        let ours: [&[u8]; 6] = [b"RL.", b"CL.", b"GCRA", b"INFO", b"CONFIG", b"COMMAND"];
        if !ours.iter().any(|prefix| name.starts_with(prefix)) {
            return;
        }
        self.calls += 1;
        // All but redis-cell and its successor begin with the units that are granted.
        let limited = name.starts_with(b"CL.") || name == b"GCRA";
        let outcome = match reply {
            Reply::Error(text) => {
                self.add("errors", class(text));
                "an error"
            }
            Reply::Array(items) => {
                if let (Some(Reply::Array(rows)), true) = (items.get(2), name.starts_with(b"RL.ALL")) {
                    rows.iter().filter_map(Reply::five).for_each(&mut *learn);
                }
                reply.five().into_iter().for_each(&mut *learn);
                match items.first() {
                    Some(Reply::Integer(first)) if (*first > 0) == limited => "denied",
                    _ => "granted",
                }
            }
            _ => "granted",
        };
        self.add("calls", format!("{place}{}, {outcome}", readable(&name, 14)));
    }

    /// Counts what happened with calls that wait.
    pub fn wait(&mut self, what: &str) {
        self.add("calls that wait", what.into());
    }

    /// Counts a command of the replication stream.
    pub fn effect(&mut self, command: &[u8]) {
        self.stream += command.len() as u64;
        if let Reply::Array(words) = Reply::read(command) {
            if let Some(Reply::Bulk(name)) = words.first() {
                self.add("commands of the replication stream", readable(&name.to_ascii_uppercase(), 20));
            }
        }
    }

    fn add(&mut self, of: &'static str, what: String) {
        *self.others.entry((of, what)).or_default() += 1;
    }

    /// Prints all of it.
    pub fn print(&self) {
        let mut title = "";
        for ((of, what), count) in &self.others {
            if *of != title {
                title = of;
                println!("\n{title}");
            }
            println!("{count:>10}  {what}");
        }
        println!(
            "\n{} commands to each server, {} calls of the module among them; {} stored values with their deadlines (the longest of {} bytes), and {} at the \
             ends of sessions; {} other deadlines; {} bytes of replication stream, and {} comparisons with a replica; {} bytes of append-only file; {} keyspace events",
            self.commands, self.calls, self.values, self.longest, self.snapshots, self.deadlines, self.stream, self.digests, self.appended, self.events
        );
    }
}

/// An error's text up to the first part that differs from call to call: a quoted word or a number.
fn class(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.split(|letter: char| letter == '\'' || letter.is_ascii_digit()).next().unwrap_or_default().into()
}
