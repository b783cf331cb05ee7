//! A third party that says stop: a fleet of workers that pauses its limiter, and one in which each worker waits by itself.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use redis::Connection;
use support::{call, Server};

use crate::gateway::{timed, wait_until};

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
