//! Calls that wait. Two tenants that share a key: they wait for both of their keys in one RL.ALL, or for one key after the other. A
//! third party that says stop: a fleet of workers that pauses its limiter, and one in which each worker waits by itself.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use redis::Connection;
use support::{call, command, Server};

/// How many calls may be under way at the same time: of all tenants, and of tenant A.
pub const OF_ALL: usize = 6;
pub const OF_A: usize = 2;
/// How many calls tenant A makes at once, how many tenant B makes one after the other, and how long each takes.
const CALLS_OF_A: i64 = 8;
const CALLS_OF_B: i64 = 6;
pub const WORK_US: i64 = 1_000_000;

/// A call. Its times are those of the server's clock, in microseconds after the beginning.
pub struct Call {
    pub tenant: char,
    pub asked_us: i64,
    /// Since when it has held its place among the calls of all tenants.
    pub shared_us: i64,
    /// When it has all its places, so that it runs, and when it ends.
    pub runs_us: i64,
    pub ends_us: i64,
}

/// The calls of one way to wait.
pub struct Lane {
    pub name: &'static str,
    pub calls: Vec<Call>,
    /// How late the latest call was.
    pub late_us: i64,
}

impl Lane {
    /// The longest wait of a tenant's calls.
    pub fn longest_wait_us(&self, tenant: char) -> i64 {
        let calls = self.calls.iter().filter(|call| call.tenant == tenant);
        calls.map(|call| call.runs_us - call.asked_us).max().unwrap_or(0)
    }
}

pub fn lanes(server: &Server, begin: SystemTime) -> [Lane; 2] {
    std::thread::scope(|scope| {
        let lanes = [
            ("One RL.ALL with BLOCK for both keys", "together", true),
            ("First the shared key, then the own key", "apart", false),
        ];
        lanes
            .map(|(name, keys, together)| scope.spawn(move || lane(server, begin, name, keys, together)))
            .map(|lane| lane.join().expect("calls"))
    })
}

fn lane(server: &Server, begin: SystemTime, name: &'static str, keys: &str, together: bool) -> Lane {
    let of_a = (0..CALLS_OF_A).map(|call| ('A', call * 30_000));
    let of_b = (0..CALLS_OF_B).map(|call| ('B', 400_000 + call * 500_000));
    let due: Vec<_> = of_a.chain(of_b).collect();
    let calls: Vec<_> = std::thread::scope(|scope| {
        let call = |(tenant, due_us): (char, i64)| {
            let mut client = server.client();
            scope.spawn(move || play(&mut client, begin, keys, together, tenant, due_us))
        };
        let threads: Vec<_> = due.iter().copied().map(call).collect();
        threads.into_iter().map(|thread| thread.join().expect("a call")).collect()
    });
    let late = calls
        .iter()
        .zip(&due)
        .map(|(call, (_, due_us))| (call.asked_us - due_us).max(call.ends_us - call.runs_us - WORK_US));
    Lane { name, late_us: late.max().unwrap_or(0), calls }
}

fn play(client: &mut Connection, begin: SystemTime, keys: &str, together: bool, tenant: char, due_us: i64) -> Call {
    let (shared, own) = (format!("gateway:{keys}"), format!("gateway:{keys}:{tenant}"));
    // Tenant B has a limit of its own that it does not reach.
    let own_limit = if tenant == 'A' { OF_A } else { OF_ALL };
    let id = format!("{tenant}{due_us}");
    wait_until(begin, due_us);
    let [asked_us, shared_us, runs_us] = if together {
        let words = format!("RL.ALL 2 {own} {shared} LEASE {own_limit} 60 LEASE {OF_ALL} 60 ID {id} BLOCK 60");
        let [asked_us, runs_us] = timed(client, begin, &words);
        [asked_us, runs_us, runs_us]
    } else {
        let [asked_us, shared_us] = timed(client, begin, &format!("RL.LEASE {shared} {OF_ALL} 60 ID {id} BLOCK 60"));
        let [_, runs_us] = timed(client, begin, &format!("RL.LEASE {own} {own_limit} 60 ID {id} BLOCK 60"));
        [asked_us, shared_us, runs_us]
    };
    wait_until(begin, runs_us + WORK_US);
    let [ends_us, _] = timed(client, begin, &format!("RL.RELEASE {shared} {id}"));
    timed(client, begin, &format!("RL.RELEASE {own} {id}"));
    Call { tenant, asked_us, shared_us, runs_us, ends_us }
}

// ---- A third party that says stop ----

/// The workers, and how many calls a second they may make together.
pub const WORKERS: usize = 16;
pub const PER_SECOND: usize = 10;
/// When the third party answers 429, with `Retry-After` until the end.
pub const STOP_US: std::ops::Range<i64> = 2_000_000..4_500_000;
const END_US: i64 = 7_000_000;

/// The calls of a fleet to the third party.
pub struct Fleet {
    pub name: &'static str,
    /// When each call was made, in microseconds after the beginning, in their order.
    pub calls: Vec<i64>,
}

impl Fleet {
    /// How many calls were answered 429.
    pub fn refused(&self) -> usize {
        self.calls.iter().filter(|at| STOP_US.contains(at)).count()
    }
}

pub fn fleets(server: &Server, begin: SystemTime) -> [Fleet; 2] {
    let fleets =
        [("One worker sends RL.PAUSE", "stopped:paused", true), ("Each worker waits by itself", "stopped:alone", false)];
    std::thread::scope(|scope| {
        fleets
            .map(|(name, key, pauses)| {
                let workers: Vec<_> =
                    (0..WORKERS).map(|_| scope.spawn(move || work(&mut server.client(), begin, key, pauses))).collect();
                (name, workers)
            })
            .map(|(name, workers)| {
                let mut calls: Vec<i64> = workers.into_iter().flat_map(|worker| worker.join().expect("calls")).collect();
                calls.sort_unstable();
                Fleet { name, calls }
            })
    })
}

/// Makes calls to the third party, each when it is granted. Returns their times.
fn work(client: &mut Connection, begin: SystemTime, key: &str, pauses: bool) -> Vec<i64> {
    let mut calls = Vec::new();
    wait_until(begin, 0);
    loop {
        let [_, at_us] = timed(client, begin, &format!("RL.GCRA {key} {PER_SECOND} 1 BURST 1 BLOCK 60"));
        if at_us >= END_US {
            return calls;
        }
        calls.push(at_us);
        if STOP_US.contains(&at_us) {
            let rest_us = STOP_US.end - at_us;
            if pauses {
                call::<i64>(client, &format!("RL.PAUSE {key} {rest_us}us"));
            } else {
                sleep(Duration::from_micros(rest_us as u64));
            }
        }
    }
}

// ---- More calls than a limit allows ----

/// How many calls come, each from a worker of its own, and how many the limiter grants in any second.
pub const COME: i64 = 20;
pub const GRANTED_A_SECOND: i64 = 5;
/// The time between two calls: so that no call comes at the very moment at which units get free.
const BETWEEN_US: i64 = 95_000;

/// When a call was made and when its reply came, in microseconds after the beginning, and what the reply was.
pub struct Asked {
    pub asked_us: i64,
    pub replied_us: i64,
    pub is_granted: bool,
}

/// The calls of one way to ask.
pub struct Line {
    pub name: String,
    pub calls: Vec<Asked>,
    /// How late the latest call was.
    pub late_us: i64,
}

impl Line {
    pub fn granted(&self) -> usize {
        self.calls.iter().filter(|call| call.is_granted).count()
    }
}

pub fn in_line(server: &Server, begin: SystemTime) -> [Line; 2] {
    let ask = |number: i64, words: &str| {
        let mut client = server.client();
        wait_until(begin, number * BETWEEN_US);
        let ([asked_us, replied_us], reply) = reply(&mut client, begin, words);
        let reply: Vec<i64> = redis::from_redis_value(reply).expect("five integers");
        Asked { asked_us, replied_us, is_granted: reply[0] > 0 }
    };
    std::thread::scope(|scope| {
        [("waits", " BLOCK 30"), ("asks", "")]
            .map(|(key, option)| {
                let words = format!("RL.SLIDE line:{key} {GRANTED_A_SECOND} 1{option}");
                let workers: Vec<_> = (0..COME).map(|number| (number, words.clone())).collect();
                let name = format!("RL.SLIDE partner {GRANTED_A_SECOND} 1{option}");
                let start = |(number, words): (i64, String)| scope.spawn(move || ask(number, &words));
                (name, workers.into_iter().map(start).collect::<Vec<_>>())
            })
            .map(|(name, workers)| {
                let calls: Vec<Asked> = workers.into_iter().map(|worker| worker.join().expect("a call")).collect();
                let late = calls.iter().zip(0..).map(|(call, number)| call.asked_us - number * BETWEEN_US).max();
                Line { name, late_us: late.unwrap_or(0), calls }
            })
    })
}

/// Makes a call. Returns the server's times before the call and after its reply.
pub fn timed(client: &mut Connection, begin: SystemTime, words: &str) -> [i64; 2] {
    reply(client, begin, words).0
}

/// Makes a call. Returns the server's times before the call and after its reply, and the reply.
pub fn reply(client: &mut Connection, begin: SystemTime, words: &str) -> ([i64; 2], redis::Value) {
    let mut pipe = redis::pipe();
    pipe.cmd("TIME").add_command(command(words)).cmd("TIME");
    let (before, reply, after): (Vec<i64>, redis::Value, Vec<i64>) =
        pipe.query(client).unwrap_or_else(|error| panic!("{words}: {error}"));
    let begin_us = begin.duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970").as_micros() as i64;
    ([before, after].map(|time| time[0] * 1_000_000 + time[1] - begin_us), reply)
}

/// Waits until a time after the beginning.
pub fn wait_until(begin: SystemTime, at_us: i64) {
    // The subtraction fails when the time has come.
    while let Ok(rest) = (begin + Duration::from_micros(at_us as u64)).duration_since(SystemTime::now()) {
        sleep(rest);
    }
}
