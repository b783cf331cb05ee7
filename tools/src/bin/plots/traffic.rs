//! Makes calls at their times, and notes which were granted when, by the server's clock. Which limiters get which traffic: those times
//! are in seconds after the beginning, which is a whole second of the clock.

use std::ops::Range;
use std::time::SystemTime;

use fastrand::Rng;
use support::{call, command, Server};

use crate::gateway::wait_until;
use tools::chart::{BUCKET, FIXED, GCRA, OTHER, SLIDE};

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
            wait_until(begin, (due[0] * 1e6) as i64);
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

// ---- Scenes ----

/// The limiters in the pictures that show a few seconds.
pub const LIMIT: usize = 20;
pub const ACCURACY_LIMIT: usize = 100;

const fn lane(name: &'static str, class: &'static str, words: &'static str) -> Lane {
    Lane { name, class, words }
}

pub const BURST: [Lane; 7] = [
    lane("FIXED", FIXED, "RL.FIXED # 20 1"),
    lane("SLIDE", SLIDE, "RL.SLIDE # 20 1"),
    lane("GCRA", GCRA, "RL.GCRA # 20 1"),
    lane("GCRA BURST 1", GCRA, "RL.GCRA # 20 1 BURST 1"),
    lane("BUCKET CAPACITY 40", BUCKET, "RL.BUCKET # 20 1 CAPACITY 40"),
    lane("BUCKET STEP", BUCKET, "RL.BUCKET # 20 1 STEP"),
    lane("BUCKET", BUCKET, "RL.BUCKET # 20 1"),
];

/// Calls at half the limit, then three times the limit at once, then calls at the limit.
pub fn burst() -> Vec<f64> {
    let before = every(0.1, 0.0, BURST_AT);
    let after = every(0.05, BURST_AT + 0.05, 4.0);
    before.into_iter().chain([BURST_AT; 3 * LIMIT]).chain(after).collect()
}

const BURST_AT: f64 = 1.3;

/// Which of these calls come at once.
pub fn burst_calls() -> Range<usize> {
    let before = every(0.1, 0.0, BURST_AT).len();
    before..before + 3 * LIMIT
}

pub const OVERLOAD: [Lane; 9] = [
    lane("FIXED", FIXED, "RL.FIXED # 20 1"),
    lane("FIXED ALIGN 0", FIXED, "RL.FIXED # 20 1 ALIGN 0"),
    lane("SLIDE", SLIDE, "RL.SLIDE # 20 1"),
    lane("GCRA", GCRA, "RL.GCRA # 20 1"),
    lane("GCRA BURST 2", GCRA, "RL.GCRA # 20 1 BURST 2"),
    lane("GCRA BURST 1", GCRA, "RL.GCRA # 20 1 BURST 1"),
    lane("BUCKET", BUCKET, "RL.BUCKET # 20 1"),
    lane("BUCKET CAPACITY 40", BUCKET, "RL.BUCKET # 20 1 CAPACITY 40"),
    lane("BUCKET STEP", BUCKET, "RL.BUCKET # 20 1 STEP"),
];

pub const OVERLOAD_FROM: f64 = 0.5;
pub const OVERLOAD_TO: f64 = 4.5;

/// Calls at twice the limit. They begin between two whole seconds, which is where the grid's windows begin.
pub fn overload() -> Vec<f64> {
    every(0.5 / LIMIT as f64, OVERLOAD_FROM, OVERLOAD_TO)
}

/// The limiters, in the order of what they can grant within a period.
pub const BOUNDARY: [Lane; 7] = [
    lane("FIXED ALIGN 0", FIXED, "RL.FIXED # 20 1 ALIGN 0"),
    lane("FIXED", FIXED, "RL.FIXED # 20 1"),
    lane("GCRA", GCRA, "RL.GCRA # 20 1"),
    lane("BUCKET", BUCKET, "RL.BUCKET # 20 1"),
    lane("BUCKET STEP", BUCKET, "RL.BUCKET # 20 1 STEP"),
    lane("GCRA BURST 1", GCRA, "RL.GCRA # 20 1 BURST 1"),
    lane("SLIDE", SLIDE, "RL.SLIDE # 20 1"),
];

/// What each of these limiters promises: the most units within a period, in words and as a number.
pub const PROMISED: [(&str, usize); 7] = [
    ("twice the limit", 2 * LIMIT),
    ("twice the limit less one", 2 * LIMIT - 1),
    ("limit + `BURST` - 1; by default, `BURST` is the limit", 2 * LIMIT - 1),
    ("limit + `CAPACITY` - 1; by default, `CAPACITY` is the limit", 2 * LIMIT - 1),
    ("limit + `CAPACITY` - 1", 2 * LIMIT - 1),
    ("limit + `BURST` - 1", LIMIT),
    ("limit", LIMIT),
];

/// A time long enough after a boundary to be certainly behind it.
const OPENING: f64 = 0.002;

/// One call opens a window that ends at 1.9 s. From shortly before then on, as many calls come as can be granted. The grid's
/// windows end at whole seconds, so the opening call is in the one before: with `ALIGN`, a whole limit is left at 1.75 s.
pub fn boundary() -> Vec<f64> {
    std::iter::once(0.9).chain(every(0.002, 1.75, 2.75)).collect()
}

/// One call at the beginning of a period; then, between `from` and `to`, a salvo and one call each `gap`.
fn attack(start: f64, from: f64, to: f64, gap: f64, salvo: usize) -> Vec<f64> {
    let flood = every(gap, start + from + gap, start + to);
    std::iter::once(start + OPENING).chain(std::iter::repeat_n(start + from, salvo)).chain(flood).collect()
}

/// The limiters, from the finest to the coarsest.
pub const ACCURACY: [Lane; 7] = [
    lane("SEGMENTS 65536", SLIDE, "RL.SLIDE # 100 1"),
    lane("SEGMENTS 64", SLIDE, "RL.SLIDE # 100 1 SEGMENTS 64"),
    lane("SEGMENTS 16", SLIDE, "RL.SLIDE # 100 1 SEGMENTS 16"),
    lane("SEGMENTS 4", SLIDE, "RL.SLIDE # 100 1 SEGMENTS 4"),
    lane("SEGMENTS 1", SLIDE, "RL.SLIDE # 100 1 SEGMENTS 1"),
    lane("two windows in Lua", OTHER, "EVALSHA TWO_WINDOWS 1 # 100 1000000"),
    lane("FIXED", FIXED, "RL.FIXED # 100 1"),
];

/// Attacks across a boundary that begin at several times before it. Between two attacks all windows end.
pub fn attacks() -> Vec<f64> {
    let phases = [0.98, 0.9, 0.75, 0.5, 0.98];
    let attacks = phases.iter().enumerate().flat_map(|(round, &phase)| {
        let start = 4.0 * round as f64;
        attack(start, phase, phase + 1.2, 1.0 / 600.0, ACCURACY_LIMIT)
    });
    attacks.collect()
}

/// How many bytes of the server's memory each of these limiters takes after it has granted its limit evenly within less than
/// a period; 0 if its key has expired by then.
pub fn bytes(server: &Server, begin: SystemTime) -> Vec<i64> {
    // The calls cross a whole second, so that both windows exist.
    let played = Played::of(server, "full", &ACCURACY, &every(0.9 / ACCURACY_LIMIT as f64, 0.3, 1.2), begin);
    let mut client = server.client();
    let bytes = (0..played.lanes.len()).map(|lane| {
        let keys: Vec<String> = call(&mut client, &format!("KEYS full:{lane}*"));
        let bytes = keys.iter().map(|key| call::<Option<i64>>(&mut client, &format!("MEMORY USAGE {key}")));
        bytes.map(Option::unwrap_or_default).sum()
    });
    bytes.collect()
}

const RANDOM_SECONDS: f64 = 20.0;

/// Calls at independent random times, in calm and in busy phases by turns. In all there are half as many calls again as the
/// limit allows. There are four such streams.
pub fn random(seed: u64) -> [Vec<f64>; 4] {
    [0, 1, 2, 3].map(|stream| {
        let mut rng = Rng::with_seed(seed * 4 + stream);
        let (mut arrivals, mut now, mut busy) = (Vec::new(), 0.0, false);
        while now < RANDOM_SECONDS {
            let end = now + exponential(&mut rng, 0.6);
            let gap = 1.0 / if busy { 280.0 } else { 20.0 };
            now += exponential(&mut rng, gap);
            while now < end.min(RANDOM_SECONDS) {
                arrivals.push(now);
                now += exponential(&mut rng, gap);
            }
            (now, busy) = (end, !busy);
        }
        arrivals
    })
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - rng.f64()).ln() * mean
}

fn every(gap: f64, from: f64, to: f64) -> Vec<f64> {
    (0..).map(|index| from + f64::from(index) * gap).take_while(|&at| at < to - gap / 2.0).collect()
}

/// How exact a window counter is.
pub struct Row {
    pub lane: &'static Lane,
    /// The most grants in any window of a period, relative to the limit. At 1 the promise holds.
    pub most: Pair,
    /// All grants, relative to the most grants that keep the promise.
    pub share: Pair,
}

#[derive(Clone, Copy)]
pub struct Pair {
    pub attacked: f64,
    pub random: f64,
}

/// How exact the window counters are, from attacks and from random traffic.
pub fn accuracy(attacked: &Played, random: &[Played]) -> Vec<Row> {
    let rows = attacked.lanes.iter().enumerate().map(|(lane, description)| {
        let random: Vec<_> = random.iter().map(|played| figures(played, lane)).collect();
        let streams = random.len() as f64;
        let (most, share) = figures(attacked, lane);
        let row = Row {
            lane: description,
            most: Pair { attacked: most, random: random.iter().map(|&(most, _)| most).fold(0.0, f64::max) },
            share: Pair { attacked: share, random: random.iter().map(|&(_, share)| share).sum::<f64>() / streams },
        };
        let broken = description.class == SLIDE && row.most.attacked.max(row.most.random) > 1.0;
        assert!(!broken, "{} granted more than its limit in a window", description.name);
        row
    });
    rows.collect()
}

/// The most grants in a window, and the share of the grants that were possible.
fn figures(played: &Played, lane: usize) -> (f64, f64) {
    let most = played.most_in_a_window(lane) as f64 / ACCURACY_LIMIT as f64;
    (most, played.grants(lane).len() as f64 / played.possible(ACCURACY_LIMIT) as f64)
}
