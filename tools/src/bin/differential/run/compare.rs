//! Compares what a session shows besides the replies: keyspace events, replication streams, append-only files and all keys.

use std::collections::BTreeSet;

use super::{Session, MARKS};
use crate::resp::{commands, first_difference, NAMES};
use crate::resp::{encode, readable, Reply};
use crate::servers::Outcome;

impl Session<'_> {
    /// Compares the events and the streams up to now.
    pub fn mark(&mut self) -> Outcome<()> {
        self.marks += 1;
        let mark = format!("mark {}.", self.marks);
        self.plain(&["PUBLISH", MARKS, &mark])?;
        let [base, new] = self.subscriber.until(mark.as_bytes(), |_| true)?;
        // The last is the mark, which was published and is no event.
        self.tally.events += base.len() as u64 - 1;
        if base != new {
            return Err(self.different(&format!("the keyspace events differ\n{}", first_difference(&base, &new))));
        }
        if let Some(replica) = &mut self.replica {
            // When the servers ping their replicas depends on the time.
            let wanted = |command: &[u8]| !command.starts_with(b"*1\r\n$4\r\nPING");
            let [base, new] = replica.until(mark.as_bytes(), wanted)?;
            base.iter().for_each(|command| self.tally.effect(command));
            if let Some([followers, _]) = &mut self.followers {
                followers.apply([&base, &new])?;
            }
            if base != new && self.calls.bytes {
                return Err(self.different(&format!("the replication streams differ\n{}", first_difference(&base, &new))));
            }
        }
        if self.setup.appends && self.marks.is_multiple_of(20) {
            let [base, new] = self.pair.appended(self.appended)?;
            self.appended += base.len() as u64;
            self.tally.appended += base.len() as u64;
            if base != new && self.calls.bytes {
                let error = first_difference(&commands(&base), &commands(&new));
                return Err(self.different(&format!("the append-only files differ\n{error}")));
            }
        }
        if self.marks.is_multiple_of(20) {
            self.compare_followers()?;
        }
        Ok(())
    }

    /// Compares each server with what its replication stream has made: a digest of all keys, and the deadline of one.
    fn compare_followers(&mut self) -> Outcome<()> {
        let Some([_, followers]) = &mut self.followers else { return Ok(()) };
        let mut request = Vec::new();
        encode(&mut request, &["DEBUG", "DIGEST"]);
        encode(&mut request, &[b"PEXPIRETIME", &self.calls.any_key()[..]]);
        let (there, here) = (followers.exchange(&request, 2)?, self.links[0].exchange(&request, 2)?);
        for (server, name) in NAMES.into_iter().enumerate() {
            let part = |index| [&here, &there].map(|both| readable(both[server].get(index), 100));
            let ([here, there], [deadline, other]) = (part(0), part(1));
            // The look at an expired key has deleted it.
            if here != there || deadline != other && !deadline.starts_with(":-2") {
                let what = format!("the {name} server: {here}, {deadline}, and its replica: {there}, {other}");
                return Err(self.different(&what));
            }
        }
        self.tally.digests += 1;
        Ok(())
    }

    /// The base may choose other deadlines. Checks those of the module at hand, and gives its keys the deadlines of the base's, so that
    /// both expire at the same time.
    pub(super) fn align_deadlines(&mut self) -> Outcome<()> {
        if self.calls.bytes {
            return Ok(());
        }
        let mut request = Vec::new();
        let names = self.calls.all_keys();
        names.iter().for_each(|name| encode(&mut request, &[b"PEXPIRETIME", &name[..]]));
        let [base, new] = self.links[0].exchange(&request, names.len())?;
        let number = |reply| if let Reply::Integer(number) = Reply::read(reply) { number } else { -3 };
        let both = |index| (number(base.get(index)), number(new.get(index)));
        let differ: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(index, name)| (name, both(index)))
            .filter(|(_, (one, other))| one != other)
            .collect();
        for (name, (one, other)) in differ {
            let facts = self.plain(&[b"RL.INSPECT", &name[..]])?;
            let fact = |name: &str| {
                let text = String::from_utf8_lossy(&facts);
                let value =
                    text.split("\r\n").skip_while(|line| *line != name).skip(1).find(|line| !line.starts_with('$'))?;
                value.trim_start_matches(':').parse::<f64>().ok()
            };
            let least = self.pair.clock.wall_us() / 1_000 + fact("reset_ms").unwrap_or(0.0) as i64 - 1;
            let most = least.saturating_add(fact("period_ms").map_or(i64::MAX, |period| period as i64 + 3));
            if one < 0 || other < least || other > most {
                let what = format!("deadline {other} instead of {one}, not {least} to {most}: {}", readable(name, 40));
                return Err(self.different(&what));
            }
            self.tally.deadlines += 1;
            self.plain(&[b"PEXPIREAT", &name[..], one.to_string().as_bytes()])?;
        }
        Ok(())
    }

    /// Connects to both servers as a replica, and reads the copy of their keys.
    pub(super) fn attach(&mut self) -> Outcome<()> {
        let failed = |error: std::io::Error| format!("no stream: {error}");
        let mut replica = self.pair.bare_link()?;
        // The two requests are sent one after the other, because a server sends no stream to a client to which it owes
        // another reply.
        replica.exchange(b"REPLCONF capa psync2\r\n", 1)?;
        let [answer, _] = replica.exchange(b"PSYNC ? -1\r\n", 1)?;
        if !answer.get(0).starts_with(b"+FULLRESYNC") {
            return Err(format!("no stream but {}", readable(answer.get(0), 200)));
        }
        // The servers write and send the copy of their keys in their periodic work, which depends on the steady clock.
        for server in 0..2 {
            let mut line = Vec::new();
            while line.is_empty() || !line.ends_with(b"\n") {
                if !replica.ends[server].has_some().map_err(failed)? {
                    self.pair.clock.tick();
                    self.links[0].settle()?;
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    continue;
                }
                line.extend(replica.ends[server].take(1).map_err(failed)?);
                // Until the copy is ready, the servers send empty lines.
                if line == b"\n" {
                    line.clear();
                }
            }
            let length = std::str::from_utf8(&line[1..line.len() - 2]).ok().and_then(|length| length.parse::<usize>().ok());
            let mut left = length.ok_or_else(|| format!("no copy of the keys but {}", readable(&line, 100)))?;
            while left > 0 {
                if !replica.ends[server].has_some().map_err(failed)? {
                    self.links[0].settle()?;
                    continue;
                }
                left -= replica.ends[server].take_at_most(left);
            }
        }
        for _ in 0..20 {
            self.pair.clock.tick();
            self.links[0].settle()?;
        }
        self.replica = Some(replica);
        self.mark()
    }

    /// Compares every key of both databases, the statistics and the configuration.
    pub fn compare_all(&mut self, when: &str) -> Outcome<()> {
        for db in ["0", "1"] {
            self.plain(&["SELECT", db])?;
            let mut request = Vec::new();
            encode(&mut request, &["KEYS", "*"]);
            let [base, new] = self.links[0].exchange(&request, 1)?;
            let names = |reply: &[u8]| match Reply::read(reply) {
                Reply::Array(names) => names
                    .iter()
                    .filter_map(|name| if let Reply::Bulk(name) = name { Some(name.to_vec()) } else { None })
                    .collect::<BTreeSet<_>>(),
                _ => BTreeSet::new(),
            };
            let (one, other) = (names(base.get(0)), names(new.get(0)));
            if one != other {
                let differ: Vec<_> = one.symmetric_difference(&other).map(|name| readable(name, 40)).collect();
                return Err(self.different(&format!("keys of one server only, {when}: {differ:?}")));
            }
            self.tally.snapshots += one.len() as u64;
            for name in one {
                for look in ["DUMP", "PEXPIRETIME", "RL.INSPECT"] {
                    self.plain(&[look.as_bytes(), &name]).map_err(|error| format!("{error}\n{when}"))?;
                }
            }
        }
        self.plain(&["SELECT", "0"])?;
        for words in
            ["INFO rl", "RL.TOP 1024", "CONFIG GET rl.compat", "CONFIG GET rl.top-keys", "CONFIG GET rl.top-half-life"]
        {
            self.plain(&words.split(' ').collect::<Vec<_>>()).map_err(|error| format!("{error}\n{when}"))?;
        }
        self.mark()?;
        self.compare_followers()
    }
}
