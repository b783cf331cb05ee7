//! Makes calls at their times, and notes which were granted when, by the server's clock.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use support::{call, command, Server};

/// The period of all limits is a second.
pub const PERIOD_US: i64 = 1_000_000;

/// One of the limiters that get the same calls.
pub struct Lane {
    pub name: &'static str,
    /// The class of its colour, which its algorithm determines.
    pub class: &'static str,
    /// The call; `#` stands for its key.
    pub words: &'static str,
}

/// The counter of two windows as it is commonly written, after Cloudflare's "Counting things, a lot of different things". It
/// counts the calls of the window before by the part of that window that the sliding window still covers, as if they had
/// come evenly.
pub const TWO_WINDOWS: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local window = math.floor(now / period)
local current = KEYS[1] .. ':' .. window
local before = tonumber(redis.call('GET', KEYS[1] .. ':' .. window - 1) or 0)
local count = tonumber(redis.call('GET', current) or 0)
if before * (1 - now % period / period) + count + 1 > limit then
    return {0}
end
redis.call('INCR', current)
redis.call('PEXPIRE', current, 2 * period / 1000)
return {1}
";

/// When a call was decided: between these two times of the server's clock, in microseconds after the beginning.
#[derive(Clone, Copy)]
pub struct Moment {
    pub from_us: i64,
    pub to_us: i64,
}

/// The outcome of the calls.
pub struct Played {
    pub lanes: &'static [Lane],
    pub calls: Vec<Moment>,
    /// For each call, whether each lane granted it.
    granted: Vec<Vec<bool>>,
    /// How late the latest call was.
    pub late_us: i64,
}

impl Played {
    /// Makes each lane's call at each of these times, in seconds after the beginning. Calls that are due at the same time
    /// are sent together.
    pub fn of(server: &Server, name: &str, lanes: &'static [Lane], arrivals: &[f64], begin: SystemTime) -> Self {
        let mut client = server.client();
        let script: String = redis::cmd("SCRIPT").arg("LOAD").arg(TWO_WINDOWS).query(&mut client).expect("a script");
        let calls: Vec<_> = lanes
            .iter()
            .enumerate()
            .map(|(at, lane)| command(&lane.words.replace('#', &format!("{name}:{at}")).replace("TWO_WINDOWS", &script)))
            .collect();
        call::<()>(&mut client, "PING");
        let begin_us = begin.duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970").as_micros() as i64;
        let mut played = Self { lanes, calls: Vec::new(), granted: Vec::new(), late_us: 0 };
        for due in arrivals.chunk_by(|one, other| one == other) {
            let at = begin + Duration::from_secs_f64(due[0]);
            // The subtraction fails when the time has come.
            while let Ok(rest) = at.duration_since(SystemTime::now()) {
                sleep(rest);
            }
            let mut pipe = redis::pipe();
            for _ in due {
                pipe.cmd("TIME");
                calls.iter().for_each(|call| {
                    pipe.add_command(call.clone());
                });
            }
            pipe.cmd("TIME");
            let replies: Vec<Vec<i64>> = pipe.query(&mut client).unwrap_or_else(|error| panic!("{name}: {error}"));
            let time = |reply: &Vec<i64>| reply[0] * 1_000_000 + reply[1] - begin_us;
            for (index, _) in due.iter().enumerate() {
                let (from, to) = (index * (lanes.len() + 1), (index + 1) * (lanes.len() + 1));
                played.calls.push(Moment { from_us: time(&replies[from]), to_us: time(&replies[to]) });
                played.granted.push(replies[from + 1..to].iter().map(|reply| reply[0] > 0).collect());
            }
            let last = played.calls.last().map_or(0, |call| call.to_us);
            played.late_us = played.late_us.max(last - (due[0] * 1e6) as i64);
        }
        played
    }

    pub fn lane(&self, name: &str) -> usize {
        self.lanes.iter().position(|lane| lane.name == name).unwrap_or_else(|| panic!("no lane {name}"))
    }

    pub fn is_granted(&self, call: usize, lane: usize) -> bool {
        self.granted[call][lane]
    }

    /// The times at which a lane granted a call.
    pub fn grants(&self, lane: usize) -> Vec<Moment> {
        (0..self.calls.len()).filter(|&call| self.granted[call][lane]).map(|call| self.calls[call]).collect()
    }

    /// The most grants that certainly were in one window of a period, wherever the window begins.
    pub fn most_in_a_window(&self, lane: usize) -> usize {
        let grants = self.grants(lane);
        let mut first = 0;
        let counts = grants.iter().enumerate().map(|(last, grant)| {
            while grant.to_us - grants[first].from_us >= PERIOD_US {
                first += 1;
            }
            last + 1 - first
        });
        counts.max().unwrap_or(0)
    }

    /// The most of these calls that can be granted with never more than the limit in a window. Granting each call that fits
    /// reaches this number.
    pub fn possible(&self, limit: usize) -> usize {
        let mut grants: Vec<i64> = Vec::new();
        for call in &self.calls {
            if grants.len() < limit || call.from_us - grants[grants.len() - limit] >= PERIOD_US {
                grants.push(call.from_us);
            }
        }
        grants.len()
    }
}
