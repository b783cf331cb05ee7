//! A session: calls to both servers, and the comparison of everything that clients and replicas can see.

mod compare;
mod waiters;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::calls::{Calls, Place, Step, Words};
use crate::resp::{differ, have_ids, same, show};
use crate::resp::{encode, readable, Reply};
use crate::servers::{Arrival, Link, Outcome, Pair, Setup};
use crate::tally::Tally;

/// The latest wall clock, in microseconds since the Unix epoch: well before 2262, the last year that a record of redis-cell
/// can hold.
const LATEST_US: i64 = 5_000_000_000_000_000;
/// Where a session logs its commands. A difference is the last of them.
const LOG: &str = "target/differential.log";
/// The channel of the marks. A mark is published after each batch: the keyspace events and the replication stream are
/// compared up to it.
const MARKS: &str = "differential:marks";

/// The commands that the module at hand has.
const COMMANDS: &str =
    "rl.fixed rl.slide rl.gcra rl.bucket rl.lease rl.settle rl.release rl.pause rl.use rl.policy rl.peek rl.all \
     rl.inspect rl.top rl.help cl.throttle gcra";

/// A session with a pair of servers.
pub struct Session<'r> {
    /// The servers.
    pub pair: Pair,
    /// Makes the calls.
    pub calls: &'r mut Calls,
    /// Counts the comparisons.
    pub tally: &'r mut Tally,
    /// Connections for commands that do not block: one that speaks RESP2 and one that speaks RESP3.
    pub links: [Link; 2],
    /// Connections for calls with `BLOCK`, opened when they are needed.
    pub waiters: Vec<waiters::Waiter>,
    first_us: i64,
    subscriber: Link,
    replica: Option<Link>,
    /// Two connections to the servers that are sent the replication streams: one for the streams, and one that looks.
    followers: Option<[Link; 2]>,
    setup: Setup,
    appended: u64,
    marks: u64,
    /// All commands of the session with their replies, to read if there is a difference.
    log: BufWriter<File>,
}

impl<'r> Session<'r> {
    /// Starts the servers, and opens connections.
    pub fn start(
        program: &str,
        modules: [&Path; 2],
        setup: Setup,
        first_us: i64,
        calls: &'r mut Calls,
        tally: &'r mut Tally,
    ) -> Outcome<Self> {
        let log = File::create(LOG).map_err(|error| format!("{LOG}: {error}"))?;
        let log = BufWriter::new(log);
        let pair = Pair::start(program, modules, first_us, setup)?;
        let links = [pair.link(2)?, pair.link(3)?];
        let followers = pair.links_to_followers()?;
        let mut subscriber = pair.link(3)?;
        let mut request = Vec::new();
        encode(&mut request, &["SUBSCRIBE", MARKS]);
        encode(&mut request, &["PSUBSCRIBE", "__key*__:*"]);
        subscriber.send(&request)?;
        let mut session = Self {
            pair,
            calls,
            tally,
            links,
            waiters: Vec::new(),
            first_us,
            subscriber,
            replica: None,
            followers,
            setup,
            appended: 0,
            marks: 0,
            log,
        };
        let server = session.info("server")?;
        if server.lines().any(|line| line.starts_with("monotonic_clock:") && !line.contains("POSIX")) {
            return Err(format!("the server's steady clock can't be frozen: {server}"));
        }
        session.calls.known = session.known()?;
        // The reply is the seconds and the microseconds.
        let time = session.plain(&["TIME"])?;
        let digits: String =
            String::from_utf8_lossy(&time).lines().skip(2).step_by(2).map(|part| format!("{part:0>6}")).collect();
        if digits != first_us.to_string() {
            return Err(format!("the servers do not see the tool's clock, {first_us} us, but {digits} us"));
        }
        // The servers delete an expired key only when a command names it, and not in their periodic work: so both delete it
        // at the same command.
        session.plain(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?;
        session.plain(&["CONFIG", "SET", "notify-keyspace-events", "EA"])?;
        if setup.replica == Arrival::First {
            session.attach()?;
        }
        Ok(session)
    }

    /// Makes at least `calls` calls of the module, with other commands and steps of the clock between them.
    pub fn run(&mut self, calls: u64) -> Outcome<()> {
        let last = self.tally.calls + calls;
        let middle = self.tally.calls + calls / 2;
        let mut batches = 0_u64;
        while self.tally.calls < last {
            batches += 1;
            if batches.is_multiple_of(300) {
                self.calls.change_pace();
            }
            if self.setup.replica == Arrival::Middle && self.replica.is_none() && self.tally.calls >= middle {
                self.attach()?;
            }
            self.let_time_pass()?;
            if self.calls.once_in(10) {
                self.learn_a_value()?;
            }
            if self.calls.once_in(40) {
                self.wait_episode()?;
                self.mark()?;
                continue;
            }
            if self.calls.once_in(300) {
                self.lengthen_a_log()?;
                self.mark()?;
            }
            if self.calls.once_in(100) {
                self.change_surroundings()?;
            }
            let now_us = self.pair.clock.wall_us();
            let count = 1 + self.calls.below(30);
            let steps: Vec<_> = (0..count).map(|_| self.calls.step(now_us)).collect();
            let link = self.calls.below(2);
            self.exchange(link, steps)?;
            self.align_deadlines()?;
            self.mark()?;
        }
        self.compare_all("at the end of the session")?;
        // The servers write their keys to a file and load them from it, without those that have expired. That
        // has no effect on the followers, so they are not compared any more.
        self.followers = None;
        self.plain(&["DEBUG", "RELOAD"])?;
        self.compare_all("after DEBUG RELOAD")?;
        if self.setup.appends {
            // While it loads, events name the words of the effects.
            if !self.calls.bytes {
                self.plain(&["CONFIG", "SET", "notify-keyspace-events", ""])?;
            }
            self.plain(&["DEBUG", "LOADAOF"])?;
            self.compare_all("after DEBUG LOADAOF")?;
        }
        self.pair.alive()
    }

    /// Makes many calls on one key, each a little later than the one before.
    fn lengthen_a_log(&mut self) -> Outcome<()> {
        let key = format!("long:{}", self.calls.below(2)).into_bytes();
        for _ in 0..100 + self.calls.below(500) {
            let (call, later_us) = self.calls.lengthen(&key);
            self.pair.clock.pass(later_us);
            self.exchange(0, vec![Step { keys: vec![key.clone()], commands: vec![call], place: Place::Direct }])?;
        }
        self.plain(&[b"DUMP", &key[..]])?;
        self.align_deadlines()
    }

    fn let_time_pass(&mut self) -> Outcome<()> {
        let pass_us = self.calls.pass_us(self.pair.clock.wall_us());
        let clock = &mut self.pair.clock;
        let to_us = clock.wall_us().saturating_add(pass_us);
        if to_us > LATEST_US || to_us < self.first_us / 2 {
            clock.step_to(self.first_us);
        } else if pass_us < 0 {
            clock.step_to(to_us);
        } else {
            clock.pass(pass_us);
        }
        Ok(())
    }

    /// Sends steps to both servers at once, and compares the replies, and the stored values after each step.
    pub fn exchange(&mut self, link: usize, steps: Vec<Step>) -> Outcome<()> {
        let mut request = Vec::new();
        // For each step, the commands that read what its keys hold after it.
        let mut plan = Vec::with_capacity(steps.len());
        let mut count = 0;
        for step in &steps {
            step.commands.iter().for_each(|command| encode(&mut request, command));
            let mut keys = BTreeSet::new();
            if !self.calls.once_in(6) {
                keys.extend(step.keys.iter().cloned());
            }
            let mut looks: Vec<Words> = Vec::new();
            for key in &keys {
                looks.extend(self.looks(key));
            }
            looks.iter().for_each(|look| encode(&mut request, look));
            self.tally.values += keys.len() as u64;
            count += step.commands.len() + looks.len();
            plan.push(looks);
        }
        let wall_us = self.pair.clock.wall_us();
        self.tally.commands += count as u64;
        let [base, new] = match self.links[link].exchange(&request, count) {
            Ok(both) => both,
            Err(error) => {
                let sent: Vec<_> = steps.iter().flat_map(|step| &step.commands).map(show).collect();
                let ended = self.pair.alive().err().unwrap_or_default();
                return Err(format!("{error}\n{ended}\nthe commands were:\n{}", sent.join("\n")));
            }
        };
        let mut at = 0;
        let mut difference = None;
        let (calls, tally) = (&mut *self.calls, &mut *self.tally);
        'steps: for (step, looks) in steps.into_iter().zip(plan) {
            let first = at;
            let Step { commands, place, .. } = step;
            for words in commands.iter().chain(&looks) {
                let (one, other) = (base.get(at), new.get(at));
                at += 1;
                if words[0] == b"DUMP" {
                    tally.longest = tally.longest.max(one.len());
                }
                if !same(one, other) && (calls.bytes || !have_ids(one, other)) {
                    let step: Vec<_> = commands.iter().map(show).collect();
                    difference =
                        Some(format!("{}\nof the step:\n  {}\n{}", show(words), step.join("\n  "), differ(one, other)));
                    break 'steps;
                }
            }
            let replies: Vec<_> = (first..first + commands.len()).map(|index| base.get(index)).collect();
            tally.count(&place, &commands, &replies, |five| calls.learn(five));
            for (command, reply) in commands.iter().zip(&replies) {
                if reply.starts_with(b"-WRONGTYPE") {
                    calls.learn_foreign(command);
                }
            }
            for (words, reply) in commands.iter().zip(&replies) {
                write_line(&mut self.log, wall_us, words, reply);
            }
        }
        let Some(difference) = difference else { return Ok(()) };
        let ended = self.pair.alive().err().unwrap_or_default();
        Err(self.different(&format!("at {wall_us} us, version {} of the protocol: {difference}\n{ended}", link + 2)))
    }

    /// An error: what differs, and where the commands before it are.
    pub fn different(&mut self, what: &str) -> String {
        let _ = self.log.flush();
        format!("{what}\nall commands before: {LOG}")
    }

    /// The commands that show what a key holds.
    fn looks(&mut self, key: &[u8]) -> Vec<Words> {
        let command = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Words>();
        let deadline = command(&[b"PEXPIRETIME", key]);
        if !self.calls.bytes {
            return vec![command(&[b"DUMP", key]), command(&[b"RL.INSPECT", key])];
        }
        if self.calls.is_long(key) && !self.calls.once_in(40) {
            return vec![
                command(&[b"STRLEN", key]),
                command(&[b"GETRANGE", key, b"0", b"63"]),
                command(&[b"GETRANGE", key, b"-64", b"-1"]),
                deadline,
            ];
        }
        vec![command(&[b"DUMP", key]), deadline]
    }

    /// Logs a command that was not sent by [`Self::exchange`].
    pub fn remember(&mut self, words: &Words, reply: &[u8]) {
        write_line(&mut self.log, self.pair.clock.wall_us(), words, reply);
    }

    /// Sends one command, and returns the reply. It is an error if the replies differ.
    pub fn plain<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Outcome<Vec<u8>> {
        let mut request = Vec::new();
        encode(&mut request, words);
        self.tally.commands += 1;
        let [base, new] = self.links[0].exchange(&request, 1)?;
        let (one, other) = (base.get(0), new.get(0));
        if same(one, other) || !self.calls.bytes && have_ids(one, other) {
            Ok(one.to_vec())
        } else {
            let words: Words = words.iter().map(|word| word.as_ref().to_vec()).collect();
            let difference = format!("{}\n{}", show(&words), differ(one, other));
            Err(self.different(&difference))
        }
    }

    /// A section of `INFO` of the base's server.
    fn info(&mut self, section: &str) -> Outcome<String> {
        let mut request = Vec::new();
        encode(&mut request, &["INFO", section]);
        let [base, _] = self.links[0].exchange(&request, 1)?;
        Ok(String::from_utf8_lossy(base.get(0)).into_owned())
    }

    /// The module's commands that the base has, too.
    fn known(&mut self) -> Outcome<Vec<&'static str>> {
        let mut known = Vec::new();
        for name in COMMANDS.split(' ') {
            let mut request = Vec::new();
            encode(&mut request, &["COMMAND", "INFO", name]);
            let [base, _] = self.links[0].exchange(&request, 1)?;
            if let Reply::Array(rows) = Reply::read(base.get(0)) {
                known.extend(matches!(rows[..], [Reply::Array(_)]).then_some(name));
            }
        }
        Ok(known)
    }

    fn learn_a_value(&mut self) -> Outcome<()> {
        let key = self.calls.any_key();
        let reply = self.plain(&[b"GET", &key[..]])?;
        match Reply::read(&reply) {
            Reply::Bulk(value) if self.calls.bytes || !have_ids(&reply, &reply) => self.calls.learn_value(value),
            _ => {}
        }
        Ok(())
    }

    /// Changes a setting that the module's behaviour depends on.
    fn change_surroundings(&mut self) -> Outcome<()> {
        match self.calls.below(4) {
            0 => self.plain(&["CONFIG", "SET", "notify-keyspace-events", "EA"])?,
            1 => {
                let events = ["", "Ed", "KEAm", "Egx"][self.calls.below(4)];
                self.plain(&["CONFIG", "SET", "notify-keyspace-events", events])?
            }
            2 => {
                // With it, the server pushes the names of changed keys to this client.
                let state = if self.calls.once_in(2) { "ON" } else { "OFF" };
                let mut request = Vec::new();
                encode(&mut request, &["CLIENT", "TRACKING", state]);
                self.links[1].exchange(&request, 1)?;
                Vec::new()
            }
            _ => {
                let most = ["128", "0", "3", "10", "1024"][self.calls.below(5)];
                self.plain(&["CONFIG", "SET", "rl.top-keys", most])?
            }
        };
        Ok(())
    }

    /// Counts a call that was not sent by [`Self::exchange`].
    pub fn count(&mut self, place: &str, words: &Words, reply: &[u8]) {
        let calls = &mut *self.calls;
        self.tally.call(place, words, &Reply::read(reply), &mut |five| calls.learn(five));
    }
}

/// Logs a command: the wall clock in microseconds, the words, the reply.
fn write_line(log: &mut impl Write, wall_us: i64, words: &Words, reply: &[u8]) {
    writeln!(log, "{wall_us} {} -> {}", show(words), readable(reply, 160)).expect("a file");
}
