//! Calls with `BLOCK`, which the servers answer later: a few clients at a time, until all are answered.

use super::Session;
use crate::calls::{Blocking, Place, Step, Words};
use crate::resp::{differ, same, show, NAMES};
use crate::resp::{encode, readable, Reply};
use crate::servers::{Link, Outcome};

/// A connection that calls with `BLOCK`.
pub struct Waiter {
    link: Link,
    /// Its number at each server.
    ids: [Vec<u8>; 2],
    /// The call that is not answered yet.
    call: Option<Words>,
    /// Whether the call was still unanswered when the replies were last collected.
    held: bool,
}

/// The longest wait, and a little more.
const LONGEST_US: i64 = 86_401_000_000;

impl Session<'_> {
    /// Sends calls with `BLOCK`, changes keys and clocks meanwhile, and at last moves the clock past the end of every wait.
    pub fn wait_episode(&mut self) -> Outcome<()> {
        let keys: Vec<_> = (0..1 + self.calls.below(2)).map(|_| self.calls.any_key()).collect();
        // Both servers must do their periodic work at each time of the clock. Otherwise one of them might do it later than
        // the other.
        self.links[0].settle()?;
        // Most often the keys are used up first, so that the calls have to wait.
        for key in &keys {
            if !self.calls.once_in(4) {
                let mut commands = vec![self.calls.fill(key)];
                if self.calls.once_in(2) {
                    commands.insert(0, vec![b"DEL".to_vec(), key.clone()]);
                }
                self.exchange(0, vec![Step { keys: vec![key.clone()], commands, place: Place::Direct }])?;
            }
        }
        for _ in 0..3 + self.calls.below(14) {
            match self.calls.below(20) {
                0..=7 => self.call_and_wait(&keys)?,
                8..=11 => self.change_keys(&keys)?,
                12..=16 => {
                    let us = self.calls.pass_us(self.pair.clock.wall_us()).clamp(0, LONGEST_US);
                    self.pair.clock.pass(us);
                }
                17 => {
                    // The wall clock alone steps.
                    let us = self.calls.pass_us(self.pair.clock.wall_us()).clamp(-LONGEST_US, LONGEST_US);
                    let us = if self.calls.once_in(2) { us } else { -us };
                    let to_us = self.pair.clock.wall_us() + us;
                    self.pair.clock.step_to(to_us);
                    self.tally.wait("the wall clock stepped");
                    self.collect()?;
                    self.pair.clock.pass(100_000);
                }
                18 => self.unblock()?,
                _ => self.leave()?,
            }
            self.collect()?;
        }
        for part in [1_000, 300_000, LONGEST_US / 100, LONGEST_US, 200_000, 200_000] {
            if self.waiting() == 0 {
                return Ok(());
            }
            self.pair.clock.pass(part);
            self.collect()?;
        }
        let calls: Vec<_> = self.waiters.iter().filter_map(|waiter| waiter.call.as_ref()).map(show).collect();
        if calls.is_empty() {
            return Ok(());
        }
        Err(self.different(&format!("both servers still hold calls whose time is over:\n{}", calls.join("\n"))))
    }

    fn waiting(&self) -> usize {
        self.waiters.iter().filter(|waiter| waiter.call.is_some()).count()
    }

    fn call_and_wait(&mut self, keys: &[Vec<u8>]) -> Outcome<()> {
        let free = self.waiters.iter().position(|waiter| waiter.call.is_none());
        let waiter = match free {
            Some(waiter) => waiter,
            None if self.waiters.len() >= 6 => return Ok(()),
            None => {
                let version = 2 + self.calls.below(2) as u8;
                let waiter = self.connect(version)?;
                self.waiters.push(waiter);
                self.waiters.len() - 1
            }
        };
        let key = keys[self.calls.below(keys.len())].clone();
        let call = match self.calls.below(9) {
            0..=2 => self.calls.limiter(Blocking::Always, Some(key)),
            3 => self.calls.all(Blocking::Always),
            _ => self.calls.wait_for(&key),
        };
        let mut request = Vec::new();
        encode(&mut request, &call);
        self.tally.commands += 1;
        self.remember(&call, b"(sent by a client that may wait)");
        self.waiters[waiter].link.send(&request)?;
        (self.waiters[waiter].call, self.waiters[waiter].held) = (Some(call), false);
        Ok(())
    }

    fn connect(&mut self, version: u8) -> Outcome<Waiter> {
        let mut link = self.pair.link(version)?;
        let mut request = Vec::new();
        encode(&mut request, &["CLIENT", "ID"]);
        let [base, new] = link.exchange(&request, 1)?;
        let id = |reply: &[u8]| {
            if let Reply::Integer(id) = Reply::read(reply) {
                id.to_string().into_bytes()
            } else {
                Vec::new()
            }
        };
        let ids = [id(base.get(0)), id(new.get(0))];
        Ok(Waiter { link, ids, call: None, held: false })
    }

    /// Sends commands that change the keys which clients wait for.
    fn change_keys(&mut self, keys: &[Vec<u8>]) -> Outcome<()> {
        let mut steps = Vec::new();
        for _ in 0..1 + self.calls.below(3) {
            let key = keys[self.calls.below(keys.len())].clone();
            let named = |words: &[&str]| {
                let mut command: Words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
                command.insert(1, key.clone());
                command
            };
            let other = self.calls.any_key();
            let step = match self.calls.below(15) {
                0 => vec![named(&["DEL"])],
                1 => vec![named(&["PEXPIRE", "50"])],
                2 => vec![vec![b"RENAME".to_vec(), other, key.clone()]],
                3 if self.calls.once_in(4) => vec![vec![[&b"FLUSHALL"[..], b"FLUSHDB"][self.calls.below(2)].to_vec()]],
                4 if self.calls.once_in(4) => vec![vec![b"SWAPDB".to_vec(), b"0".to_vec(), b"1".to_vec()]],
                5 => vec![named(&["SET", "foreign", "PX", "1000"])],
                6 => vec![vec![b"RL.INSPECT".to_vec(), key.clone()], vec![b"INFO".to_vec(), b"rl".to_vec()]],
                7 => {
                    let mut words = self.calls.limiter(Blocking::Never, Some(key.clone()));
                    let algorithm = words[0][3..].to_vec();
                    words[0] = b"RL.PEEK".to_vec();
                    words.insert(1, algorithm);
                    vec![words]
                }
                8 | 9 => {
                    let mut words = self.calls.limiter(Blocking::Never, Some(key.clone()));
                    words.truncate(4);
                    words.extend([b"REFUND".to_vec(), (1 + self.calls.below(20)).to_string().into_bytes()]);
                    vec![words]
                }
                10..=12 => vec![self.calls.settle_or_pause(key.clone())],
                _ => vec![self.calls.limiter(Blocking::Never, Some(key.clone()))],
            };
            steps.push(Step { commands: step, place: Place::Direct, keys: vec![key] });
        }
        let link = self.calls.below(2);
        self.exchange(link, steps)
    }

    /// Ends a wait by `CLIENT UNBLOCK`.
    fn unblock(&mut self) -> Outcome<()> {
        let Some(waiter) = self.waiters.iter().position(|waiter| waiter.call.is_some()) else { return Ok(()) };
        let how = ["TIMEOUT", "ERROR"][self.calls.below(2)];
        let mut requests = [Vec::new(), Vec::new()];
        for (request, id) in requests.iter_mut().zip(&self.waiters[waiter].ids) {
            encode(request, &[&b"CLIENT"[..], b"UNBLOCK", id, how.as_bytes()]);
        }
        let [base, new] = &requests;
        self.links[0].send_each([base, new])?;
        let [base, new] = self.links[0].exchange(&[], 1)?;
        if !same(base.get(0), new.get(0)) {
            let error = differ(base.get(0), new.get(0));
            return Err(self.different(&format!("CLIENT UNBLOCK: {error}")));
        }
        self.tally.wait(&format!("CLIENT UNBLOCK {how}"));
        Ok(())
    }

    /// Closes the connection of a client that waits.
    fn leave(&mut self) -> Outcome<()> {
        let Some(waiter) = self.waiters.iter().position(|waiter| waiter.call.is_some()) else { return Ok(()) };
        let gone = self.waiters.remove(waiter);
        self.tally.wait("the client disconnected");
        self.remember(&gone.call.unwrap_or_default(), b"(the client disconnected)");
        drop(gone.link);
        self.links[0].settle()
    }

    /// Waits until both servers have done all work that is due. Then compares which clients they have answered, and the
    /// replies.
    fn collect(&mut self) -> Outcome<()> {
        let mut again = 0;
        loop {
            self.links[0].settle()?;
            let mut missing = None;
            let mut answered = Vec::new();
            for (index, waiter) in self.waiters.iter_mut().enumerate() {
                if waiter.call.is_none() {
                    continue;
                }
                let [base, new] = &mut waiter.link.ends;
                let failed = |error: std::io::Error| format!("a client that waits: {error}");
                match (base.has_some().map_err(failed)?, new.has_some().map_err(failed)?) {
                    (true, true) => answered.push(index),
                    (false, false) => {}
                    (one, _) => missing = Some((index, if one { 0 } else { 1 })),
                }
            }
            match missing {
                // One server may be a few microseconds behind the other.
                Some(_) if again < 200 => {
                    again += 1;
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    continue;
                }
                Some((index, server)) => {
                    let call = self.waiters[index].call.as_ref().map(show).unwrap_or_default();
                    let reply = self.waiters[index].link.ends[server].unread().to_vec();
                    let (server, reply) = (NAMES[server], readable(&reply, 300));
                    return Err(self
                        .different(&format!("only the {server} server has answered a call that waits: {call}\n  {reply}")));
                }
                None if answered.is_empty() => {
                    self.waiters.iter_mut().for_each(|waiter| waiter.held = waiter.call.is_some());
                    return self.align_deadlines();
                }
                None => {}
            }
            for index in answered {
                let waiter = &mut self.waiters[index];
                let [base, new] = waiter.link.exchange(&[], 1)?;
                let (base, new) = (base.get(0).to_vec(), new.get(0).to_vec());
                let waiter_held = waiter.held;
                let Some(call) = waiter.call.take() else { continue };
                if !same(&base, &new) {
                    let difference = format!("a call that may wait: {}\n{}", show(&call), differ(&base, &new));
                    return Err(self.different(&difference));
                }
                self.count("BLOCK ", &call, &base);
                let granted = match Reply::read(&base) {
                    Reply::Array(items) if matches!(items.first(), Some(Reply::Integer(1..))) => "granted",
                    Reply::Array(_) => "denied",
                    _ => "an error",
                };
                let when = if waiter_held { "after a wait" } else { "at once" };
                self.tally.wait(&format!("{granted} {when}"));
                self.remember(&call, &base);
            }
        }
    }
}
