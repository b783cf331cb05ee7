//! Calls that depend on earlier ones: work that holds units until it ends, and charges that are given back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::SystemTime;

use redis::Connection;
use support::Server;

use crate::gateway::{reply, wait_until};

/// How a number of units changes: a time of the server's clock, in microseconds after the beginning, and the difference.
pub type Changes = Vec<(i64, i64)>;

/// The outcome of the calls to one limiter.
pub struct Units {
    pub name: &'static str,
    pub changes: Changes,
    /// How many calls were granted, and how many there were.
    pub granted: usize,
    pub calls: usize,
    /// How late the latest call was.
    pub late_us: i64,
}

impl Units {
    fn new(name: &'static str) -> Self {
        Self { name, changes: Vec::new(), granted: 0, calls: 0, late_us: 0 }
    }

    /// The numbers of units, each from a time on.
    pub fn steps(&self) -> Vec<(i64, i64)> {
        let mut changes = self.changes.clone();
        changes.sort_unstable();
        let mut units = 0;
        let steps = changes.into_iter().map(|(time, change)| {
            units += change;
            (time, units)
        });
        steps.collect()
    }

    /// The most units at a time.
    pub fn most(&self) -> i64 {
        self.steps().into_iter().map(|(_, units)| units).max().unwrap_or(0)
    }

    /// Makes a call at its time, in microseconds after the beginning. Returns when it was made, and the first integer of its
    /// reply.
    fn call(&mut self, client: &mut Connection, begin: SystemTime, due_us: i64, words: &str) -> (i64, i64) {
        wait_until(begin, due_us);
        let ([at_us, _], reply) = reply(client, begin, words);
        self.late_us = self.late_us.max(at_us - due_us);
        (at_us, redis::from_redis_value::<Vec<i64>>(reply).expect("integers")[0])
    }
}

/// How many pieces of work come in a second, when the backend is slow, and how long the work then takes, and otherwise.
pub const WORK_PER_SECOND: usize = 10;
pub const SLOW_US: std::ops::Range<i64> = 2_000_000..4_000_000;
pub const SLOW_WORK_US: i64 = 1_550_000;
pub const WORK_US: i64 = 350_000;
pub const WORK_SECONDS: usize = 6;
/// How many pieces of work may be under way at the same time.
pub const AT_A_TIME: usize = 5;

/// Limits work by its rate, and by how much is under way. The changes are the pieces of work that are under way.
pub fn work(server: &Server, begin: SystemTime) -> [Units; 2] {
    std::thread::scope(|scope| {
        let lanes = [
            ("RL.GCRA, 10 a second", "RL.GCRA work:rate 10 1", ""),
            ("RL.LEASE, 5 at a time", "RL.LEASE work:leases 5 10 ID @", "RL.RELEASE work:leases @"),
        ];
        lanes
            .map(|(name, take, release)| scope.spawn(move || work_in(server, begin, name, take, release)))
            .map(|lane| lane.join().expect("work"))
    })
}

fn work_in(server: &Server, begin: SystemTime, name: &'static str, take: &str, release: &str) -> Units {
    let mut client = server.client();
    let mut units = Units::new(name);
    let gap_us = 1_000_000 / WORK_PER_SECOND as i64;
    // What comes next: a new piece of work, or the end of one.
    let mut due: BinaryHeap<_> =
        (0..WORK_PER_SECOND * WORK_SECONDS).map(|work| Reverse((work as i64 * gap_us, work, false))).collect();
    while let Some(Reverse((due_us, work, ends))) = due.pop() {
        if !ends {
            let (at_us, granted) = units.call(&mut client, begin, due_us, &take.replace('@', &work.to_string()));
            units.calls += 1;
            if granted > 0 {
                units.granted += 1;
                units.changes.push((at_us, 1));
                let lasts_us = if SLOW_US.contains(&due_us) { SLOW_WORK_US } else { WORK_US };
                due.push(Reverse((at_us + lasts_us, work, true)));
            }
        } else if release.is_empty() {
            units.changes.push((due_us, -1));
        } else {
            let (at_us, _) = units.call(&mut client, begin, due_us, &release.replace('@', &work.to_string()));
            units.changes.push((at_us, -1));
        }
    }
    units
}

/// The limit and the period of the limiter whose charges are given back.
pub const GIVEN_BACK_LIMIT: i64 = 10;
pub const GIVEN_BACK_PERIOD_US: i64 = 3_000_000;

/// A takes 5 units and gives them back after B has taken 5. Then a call takes as many as it can. The changes are the units that
/// were used in the last period, without those that A gave back.
pub fn given_back(server: &Server, begin: SystemTime) -> [Units; 2] {
    std::thread::scope(|scope| {
        let lanes = [
            ("REFUND 5", "back:refund", ["", ""], "RL.SLIDE back:refund 10 3 REFUND 5"),
            ("RL.RELEASE key A", "back:id", [" ID A", " ID B"], "RL.RELEASE back:id A"),
        ];
        let play = |(name, key, ids, back): (&'static str, &str, [&str; 2], &str)| {
            let mut client = server.client();
            let mut units = Units::new(name);
            let mut taken = Vec::new();
            for (due_us, amount) in [(0, ["COST 5", ids[0]]), (2_700_000, ["COST 5", ids[1]])] {
                let words = format!("RL.SLIDE {key} 10 3 {}", amount.concat());
                taken.push(units.call(&mut client, begin, due_us, &words));
            }
            let (given_back_us, _) = units.call(&mut client, begin, 2_800_000, back);
            taken.push(units.call(&mut client, begin, 3_300_000, &format!("RL.SLIDE {key} 10 3 UPTO 10")));
            for (who, (at_us, granted)) in taken.into_iter().enumerate() {
                let end_us = if who == 0 { given_back_us } else { at_us + GIVEN_BACK_PERIOD_US };
                units.changes.extend([(at_us, granted), (end_us, -granted)]);
            }
            units
        };
        lanes.map(|lane| scope.spawn(move || play(lane))).map(|lane| lane.join().expect("charges"))
    })
}
