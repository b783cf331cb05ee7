//! Processes that fetch units in batches and spend them: what is lost of the limit, and what it saves. Simulated with the module's
//! own decisions; the processes do what the client package for Rust does.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::process::Command;

use serde::{Deserialize, Serialize};
use support::Server;
use tools::limiter::{Kind, Policy};

use crate::scale::key::{self, gap, most_in_any, policy, wait_us, Key, SECOND};
use crate::{run, rust_program};

/// What is simulated: a limit of `RL.SLIDE` per second, and processes that have an equal part of the calls each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub processes: usize,
    /// The units of a batch; 0: no wallet, each call goes to the server.
    pub batch: u64,
    pub limit: u64,
    /// The calls that are made, relative to the limit.
    pub load: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub made: u64,
    pub granted: u64,
    /// Grants, relative to those without wallets in the same traffic.
    pub used: f64,
    /// Calls to the server for a thousand decisions: those that fetch, and those that settle a batch.
    pub fetches: f64,
    pub settles: f64,
    /// Percentiles of the time of a decision, in milliseconds.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    /// The most units that were spent in any second, relative to the limit.
    pub most: f64,
    /// Where all units went that the server has charged.
    pub charged: u64,
    pub spent: u64,
    pub given_back: u64,
    pub lost: u64,
    pub held: u64,
}

#[derive(Serialize, Deserialize)]
pub struct Section {
    #[serde(flatten)]
    pub simulated: key::Section<Plan, Outcome>,
    /// A quick run has none.
    pub real: Option<Real>,
}

/// A run with the client package for Rust and a server, and the same simulated.
#[derive(Serialize, Deserialize)]
pub struct Real {
    pub plan: Plan,
    pub seconds: u64,
    /// Grants, relative to the limit.
    pub used: f64,
    pub simulated_used: f64,
}

/// What the program prints.
#[derive(Deserialize)]
struct Counts {
    granted: u64,
}

/// A round trip, in microseconds: half a millisecond, a tenth more on average, and in one of a thousand five milliseconds more. It
/// is an assumption about a network.
fn round_trip(rng: &mut fastrand::Rng) -> u64 {
    let tail = if rng.u32(0..1_000) == 0 { 5_000.0 } else { 0.0 };
    (500.0 + gap(rng, 10_000.0) + tail) as u64
}

/// After how long without a call a batch is given back.
const IDLE: u64 = SECOND;
/// How often a process looks whether it is idle.
const LOOK: u64 = IDLE / 4;
const PERIOD: u64 = SECOND;
/// The seconds that do not count: the key begins unused.
const WARM: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A process decides on a call.
    Call(usize),
    /// The server gets the call of a process that fetches, and the id of the batch.
    Fetch(usize, u64),
    /// The process gets the reply: units, when they end, and how long to wait for more.
    Reply(usize, u64, u64, u64, u64),
    /// The server settles a batch: its id, its units, and those that were spent.
    Settle(u64, u64, u64),
    /// A process looks whether it is idle.
    Look(usize),
    /// The server gets a call of a process without a wallet, which began at this time and ends at that.
    Direct(u64, u64),
}

/// The units that a process has fetched.
#[derive(Default)]
struct Batch {
    id: u64,
    granted: u64,
    left: u64,
    ends: u64,
}

#[derive(Default)]
struct Process {
    batch: Batch,
    denied_until: u64,
    used_at: u64,
    fetching: bool,
    began: u64,
    waiting: VecDeque<u64>,
}

struct World {
    plan: Plan,
    policy: Policy,
    key: Key,
    processes: Vec<Process>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    ids: u64,
    rng: fastrand::Rng,
    outcome: Outcome,
    delays: Vec<u64>,
    spends: Vec<u64>,
    fetches: u64,
    settles: u64,
}

impl World {
    fn add(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    /// A decision that ends now.
    fn decide(&mut self, began: u64, now: u64, granted: bool) {
        if granted {
            self.spends.push(now);
        }
        if began >= WARM * SECOND {
            self.outcome.made += 1;
            self.outcome.granted += u64::from(granted);
            self.delays.push(now - began);
        }
    }

    /// Decides a call in the process, if that is possible.
    fn in_process(&mut self, at: usize, began: u64, now: u64) -> bool {
        let process = &mut self.processes[at];
        let granted = process.batch.left > 0 && now < process.batch.ends;
        if granted {
            process.batch.left -= 1;
            process.used_at = now;
            self.outcome.spent += 1;
        } else if now >= process.denied_until {
            return false;
        }
        self.decide(began, now, granted);
        true
    }

    /// Gives back what is left of a batch. Returns how long the process waits for that.
    fn give_back(&mut self, at: usize, now: u64) -> u64 {
        let Batch { id, granted, left, .. } = std::mem::take(&mut self.processes[at].batch);
        if granted == 0 {
            return 0;
        }
        let whole = round_trip(&mut self.rng);
        self.settles += u64::from(now >= WARM * SECOND);
        self.add(now + whole / 2, Event::Settle(id, granted, granted - left));
        if left > 0 {
            whole
        } else {
            0
        }
    }

    fn fetch(&mut self, at: usize, now: u64) {
        let first = self.give_back(at, now);
        self.ids += 1;
        let (id, half) = (self.ids, round_trip(&mut self.rng) / 2);
        self.fetches += u64::from(now >= WARM * SECOND);
        let process = &mut self.processes[at];
        (process.fetching, process.began) = (true, now + first);
        self.add(now + first + half, Event::Fetch(at, id));
    }

    fn step(&mut self, now: u64, event: Event) {
        match event {
            Event::Call(_) if self.plan.batch == 0 => {
                let whole = round_trip(&mut self.rng);
                self.fetches += u64::from(now >= WARM * SECOND);
                self.add(now + whole / 2, Event::Direct(now, now + whole));
            }
            Event::Call(at) => {
                if self.processes[at].fetching {
                    self.processes[at].waiting.push_back(now);
                } else if !self.in_process(at, now, now) {
                    self.processes[at].waiting.push_back(now);
                    self.fetch(at, now);
                }
            }
            Event::Direct(began, ends) => {
                let granted = self.key.take(&self.policy, now);
                self.outcome.charged += u64::from(granted);
                self.outcome.spent += u64::from(granted);
                self.decide(began, ends, granted);
            }
            Event::Fetch(at, id) => {
                let decision = self.key.take_up_to(&self.policy, now, self.plan.batch, id);
                self.outcome.charged += decision.granted;
                // The reply has milliseconds, rounded up, of which the process subtracts one.
                let reset = (decision.reset.as_ms_ceil().saturating_sub(1) * 1_000).min(PERIOD);
                let ends = self.processes[at].began + reset;
                let wait = wait_us(&decision).div_ceil(1_000) * 1_000;
                let half = round_trip(&mut self.rng) / 2;
                self.add(now + half, Event::Reply(at, id, decision.granted, ends, wait));
            }
            Event::Reply(at, id, granted, ends, wait) => {
                let process = &mut self.processes[at];
                process.fetching = false;
                process.batch = Batch { id, granted, left: granted, ends };
                process.used_at = now;
                if granted == 0 {
                    process.denied_until = now + wait;
                }
                while let Some(began) = self.processes[at].waiting.pop_front() {
                    if !self.in_process(at, began, now) {
                        self.processes[at].waiting.push_front(began);
                        self.fetch(at, now);
                        break;
                    }
                }
            }
            Event::Settle(id, granted, spent) => {
                if self.key.settle(now, id, spent) {
                    self.outcome.given_back += granted - spent;
                } else {
                    self.outcome.lost += granted - spent;
                }
            }
            Event::Look(at) => {
                let process = &self.processes[at];
                if !process.fetching && now - process.used_at.min(now) >= IDLE {
                    self.give_back(at, now);
                }
                self.add(now + LOOK, Event::Look(at));
            }
        }
    }
}

pub fn simulate(plan: Plan, seconds: u64, seed: u64) -> Outcome {
    let mut world = World {
        plan,
        policy: policy(Kind::Slide, plan.limit, PERIOD),
        key: Key::default(),
        processes: (0..plan.processes).map(|_| Process::default()).collect(),
        events: BinaryHeap::new(),
        order: 0,
        ids: 0,
        rng: fastrand::Rng::with_seed(seed),
        outcome: Outcome::default(),
        delays: Vec::new(),
        spends: Vec::new(),
        fetches: 0,
        settles: 0,
    };
    // The calls have a generator of their own: all plans with the same load get the same calls.
    let mut calls = fastrand::Rng::with_seed(seed ^ 1);
    let mut clock = 0.0;
    for process in 0..plan.processes {
        let first = world.rng.u64(0..LOOK);
        world.add(first, Event::Look(process));
    }
    let end = (WARM + seconds) * SECOND;
    let mut next = gap(&mut calls, plan.limit as f64 * plan.load);
    while clock < end as f64 {
        clock += next;
        next = gap(&mut calls, plan.limit as f64 * plan.load);
        let process = calls.usize(0..plan.processes);
        world.add(clock as u64, Event::Call(process));
        while world.events.peek().is_some_and(|Reverse((at, ..))| *at <= clock as u64) {
            let Reverse((at, _, event)) = world.events.pop().expect("an event");
            world.step(at, event);
        }
    }
    let World { outcome, mut delays, mut spends, processes, events, .. } = world;
    delays.sort_unstable();
    spends.sort_unstable();
    let percentile = |part: f64| delays[((delays.len() - 1) as f64 * part) as usize] as f64 / 1_000.0;
    let on_the_way = |event: &Event| match event {
        Event::Settle(_, granted, spent) => granted - spent,
        Event::Reply(_, _, granted, ..) => *granted,
        _ => 0,
    };
    let under_way: u64 = events.iter().map(|Reverse((_, _, event))| on_the_way(event)).sum();
    let thousands = outcome.made as f64 / 1_000.0;
    Outcome {
        fetches: world.fetches as f64 / thousands,
        settles: world.settles as f64 / thousands,
        p50_ms: percentile(0.5),
        p99_ms: percentile(0.99),
        p999_ms: percentile(0.999),
        most: most_in_any(PERIOD, &spends) as f64 / plan.limit as f64,
        held: processes.iter().map(|process| process.batch.left).sum::<u64>() + under_way,
        ..outcome
    }
}

pub fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for processes in [1, 10, 100] {
        for batch in [0, 10, 100, 1_000] {
            for load in [0.8, 1.0, 1.5] {
                plans.push(Plan { processes, batch, limit: 10_000, load });
            }
        }
    }
    plans
}

/// Runs wallets of the client package for Rust in one process, each with a connection of its own, on a server.
fn real(seed: u64) -> Real {
    const SECONDS: u64 = 10;
    let plan = Plan { processes: 20, batch: 100, limit: 2_000, load: 1.0 };
    let (program, server) = (rust_program(), Server::on_port(&[]));
    let numbers = [SECONDS, plan.processes as u64, plan.batch, plan.limit].map(|number| number.to_string());
    let text = run(Command::new(program).arg(format!("redis://127.0.0.1:{}/", server.port)).args(numbers));
    let Counts { granted } = serde_json::from_str(&text).expect("counts");
    let share = |granted: u64| granted as f64 / (plan.limit * SECONDS) as f64;
    let simulated_used = share(simulate(plan, SECONDS, seed).granted);
    Real { plan, seconds: SECONDS, used: share(granted), simulated_used }
}

pub fn measure(seconds: u64, seed: u64, with_real: bool) -> Section {
    let simulated = key::Section::simulate(plans(), |plan| {
        let without = simulate(Plan { batch: 0, ..plan }, seconds, seed);
        let outcome = simulate(plan, seconds, seed);
        Outcome { used: outcome.granted as f64 / without.granted as f64, ..outcome }
    });
    Section { simulated, real: with_real.then(|| real(seed)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_is_spent_given_back_lost_or_held() {
        for processes in [1, 7, 40] {
            for batch in [0, 1, 5, 50, 2_000] {
                for load in [0.05, 0.8, 1.5] {
                    let plan = Plan { processes, batch, limit: 600, load };
                    let Outcome { charged, spent, given_back, lost, held, .. } = simulate(plan, 4, 9);
                    assert_eq!(charged, spent + given_back + lost + held, "{plan:?}");
                    assert!(charged > 0);
                }
            }
        }
    }

    #[test]
    fn no_more_is_charged_than_the_limit_and_what_was_given_back() {
        for (processes, batch) in [(1, 0), (1, 100), (20, 10), (20, 100)] {
            let plan = Plan { processes, batch, limit: 500, load: 2.0 };
            let outcome = simulate(plan, 6, 2);
            // Eight seconds, and the second in which the key begins unused.
            assert!(outcome.charged - outcome.given_back <= 500 * 9, "{plan:?} {outcome:?}");
            assert!(outcome.granted <= 500 * 7, "{plan:?} {outcome:?}");
        }
    }

    #[test]
    fn a_larger_batch_asks_less_and_wastes_more() {
        let run = |batch| simulate(Plan { processes: 50, batch, limit: 5_000, load: 1.0 }, 6, 4);
        let [none, small, large] = [0, 10, 500].map(run);
        assert!(none.fetches > 999.0 && small.fetches < none.fetches && large.fetches < small.fetches);
        assert!(large.granted < small.granted && small.granted < none.granted * 101 / 100, "{small:?} {large:?} {none:?}");
        assert!(small.p50_ms == 0.0 && none.p50_ms > 0.5);
    }
}
