//! What breaks a cluster while clients call it, in an order that the seed determines.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use support::fleet::{Fleet, SHARDS};
use support::{call, Server, Signal};

use crate::check::Move;
use crate::workload::TAGS;

/// The events of a run.
#[derive(Default)]
pub struct Events {
    pub counts: BTreeMap<&'static str, u64>,
    pub moves: Vec<Move>,
    /// Clocks that were stepped: the node, and its time before and after.
    pub steps: Vec<(usize, [i64; 2])>,
    pub told: Vec<String>,
}

pub fn wall_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_micros() as i64
}

/// The numbers of the file that `clock.c` reads, by their places.
const STEP: u64 = 1;
const DISK: u64 = 2;
const PARTED: u64 = 4;
/// What a node may be parted from.
const NODES: i64 = 1;
const CLIENTS: i64 = 2;

/// Sets a number of the file that `clock.c` reads, in a node's folder.
fn set(folder: &Path, place: u64, number: i64) {
    let file = OpenOptions::new().write(true).open(folder.join("clock")).expect("the clock");
    file.write_all_at(&number.to_ne_bytes(), 8 * place).expect("a step");
}

/// Breaks a lone server for so long: steps of its clock, stops of its process, partitions from its clients.
pub fn break_lone(server: &Server, seed: u64, time: Duration) -> Events {
    let (start, mut rng) = (Instant::now(), Rng::with_seed(seed));
    let (mut events, mut ahead_us) = (Events::default(), 0);
    let pid = call::<String>(&mut server.client(), "INFO server")
        .lines()
        .find_map(|line| line.strip_prefix("process_id:")?.trim().parse().ok())
        .expect("a process");
    while start.elapsed() < time {
        sleep(Duration::from_millis(rng.u64(200..900)));
        let ms = Duration::from_millis(rng.u64(20..500));
        let name = match rng.u8(..3) {
            0 => {
                let (before, to_us) = (wall_us() + ahead_us, rng.i64(-1_500_000..1_500_000));
                set(server.dir(), STEP, to_us);
                ahead_us = to_us;
                events.steps.push((0, [before, wall_us() + ahead_us]));
                "clocks stepped on a lone server"
            }
            1 => {
                support::send(pid, Signal::STOP);
                sleep(ms);
                support::send(pid, Signal::CONT);
                "stops of a lone server"
            }
            _ => {
                set(server.dir(), PARTED, CLIENTS);
                sleep(ms);
                set(server.dir(), PARTED, 0);
                "lone servers parted from their clients"
            }
        };
        *events.counts.entry(name).or_default() += 1;
        events.told.push(format!("{} {name}", wall_us()));
    }
    events
}

/// A cluster that is being broken.
pub struct Breaker<'a> {
    pub fleet: &'a mut Fleet,
    rng: Rng,
    ahead_us: Vec<i64>,
    whole: bool,
    pub events: Events,
}

impl<'a> Breaker<'a> {
    pub fn new(fleet: &'a mut Fleet, seed: u64) -> Self {
        let whole = fleet.moves_whole_slots();
        Self { fleet, rng: Rng::with_seed(seed), ahead_us: vec![0; 2 * SHARDS], whole, events: Events::default() }
    }

    /// Breaks the cluster again and again for so long.
    pub fn work(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            sleep(Duration::from_millis(self.rng.u64(50..600)));
            let shard = self.rng.usize(..SHARDS);
            let name = match self.rng.u8(..26) {
                0..=2 => self.kill_primary(shard, false),
                3 | 4 => self.kill_primary(shard, true),
                5 => self.restart_primary(shard),
                6 => self.kill_replica(shard),
                7 | 8 => {
                    self.fleet.fail_over(shard);
                    "failovers by hand"
                }
                9..=12 => self.move_slot(),
                13 | 14 => self.stop(shard),
                15..=18 => self.step(),
                19 => self.fill(shard),
                20 => {
                    let node = self.rng.usize(..2 * SHARDS);
                    let _: redis::RedisResult<()> = redis::cmd("BGREWRITEAOF").query(&mut self.fleet.client(node));
                    "rewrites of the append-only file"
                }
                21..=22 => self.part_from_nodes(shard),
                23..=24 => self.part_from_clients(),
                _ => {
                    let primary = self.fleet.primary(shard);
                    let ms = self.rng.u64(20..300);
                    call::<()>(&mut self.fleet.client(primary), &format!("CLIENT PAUSE {ms} WRITE"));
                    "pauses of all writes"
                }
            };
            *self.events.counts.entry(name).or_default() += 1;
            self.events.told.push(format!("{} {name} (shard {shard})", wall_us()));
        }
    }

    fn kill_primary(&mut self, shard: usize, behind: bool) -> &'static str {
        let primary = self.fleet.primary(shard);
        let replica = Fleet::partner(primary);
        if behind {
            self.fleet.signal(replica, "STOP");
            call::<()>(&mut self.fleet.client(primary), "CLIENT KILL TYPE replica");
            sleep(Duration::from_millis(20 + self.rng.u64(..200)));
        }
        self.fleet.kill(primary);
        if behind {
            self.fleet.signal(replica, "CONT");
        }
        self.fleet.take_over(replica);
        sleep(Duration::from_millis(self.rng.u64(..200)));
        self.fleet.restart(primary);
        self.fleet.settle();
        if behind {
            "kills of a primary with a replica far behind"
        } else {
            "kills of a primary"
        }
    }

    fn restart_primary(&mut self, shard: usize) -> &'static str {
        let primary = self.fleet.primary(shard);
        self.fleet.kill(primary);
        self.fleet.restart(primary);
        self.fleet.settle();
        // A server that was killed within a transaction cuts off its last commands, and leaves the MULTI before them.
        self.fleet.node(primary).rewrite_append_only_file();
        "restarts of a primary on its append-only file"
    }

    fn kill_replica(&mut self, shard: usize) -> &'static str {
        let replica = Fleet::partner(self.fleet.primary(shard));
        self.fleet.kill(replica);
        sleep(Duration::from_millis(self.rng.u64(..200)));
        self.fleet.restart(replica);
        self.fleet.settle();
        "kills of a replica"
    }

    fn move_slot(&mut self) -> &'static str {
        let tag = self.rng.u64(..TAGS);
        let slot = self.fleet.slot(&format!("{{t{tag}}}"));
        let to = (self.fleet.shard(slot) + 1 + self.rng.usize(..SHARDS - 1)) % SHARDS;
        let from_us = wall_us() - self.ahead_us.iter().map(|ahead| ahead.abs()).max().unwrap_or(0);
        let whole = self.whole && self.rng.bool();
        if whole {
            self.fleet.move_whole_slot(slot, to);
        } else {
            self.fleet.move_slot(slot, to);
        }
        let to_us = wall_us() + self.ahead_us.iter().map(|ahead| ahead.abs()).max().unwrap_or(0);
        self.events.moves.push(Move { tag, slot, us: [from_us, to_us], to, whole });
        if whole {
            "slots moved as a whole"
        } else {
            "moved slots"
        }
    }

    fn stop(&mut self, shard: usize) -> &'static str {
        let primary = self.fleet.primary(shard);
        let node = if self.rng.bool() { primary } else { Fleet::partner(primary) };
        self.fleet.signal(node, "STOP");
        sleep(Duration::from_millis(self.rng.u64(50..900)));
        self.fleet.signal(node, "CONT");
        self.fleet.settle();
        "stopped processes"
    }

    fn step(&mut self) -> &'static str {
        let node = self.rng.usize(..2 * SHARDS);
        let ahead_us = self.rng.i64(-1_500_000..1_500_000);
        let before = wall_us() + self.ahead_us[node];
        set(self.fleet.node(node).dir(), STEP, ahead_us);
        self.ahead_us[node] = ahead_us;
        self.events.steps.push((node, [before, wall_us() + ahead_us]));
        if ahead_us < 0 {
            "clocks stepped back"
        } else {
            "clocks stepped ahead"
        }
    }

    /// Parts a primary from all other nodes, while clients reach it. Its replica takes over, or the partition ends before.
    fn part_from_nodes(&mut self, shard: usize) -> &'static str {
        let primary = self.fleet.primary(shard);
        let from = if self.rng.bool() { NODES } else { NODES | CLIENTS };
        set(self.fleet.node(primary).dir(), PARTED, from);
        let elects = self.rng.bool();
        if elects {
            self.fleet.elect(Fleet::partner(primary));
        }
        sleep(Duration::from_millis(self.rng.u64(50..700)));
        set(self.fleet.node(primary).dir(), PARTED, 0);
        self.fleet.settle();
        if elects {
            "primaries parted from the other nodes until the replica took over"
        } else {
            "primaries parted from the other nodes for a moment"
        }
    }

    fn part_from_clients(&mut self) -> &'static str {
        let node = self.rng.usize(..2 * SHARDS);
        set(self.fleet.node(node).dir(), PARTED, CLIENTS);
        sleep(Duration::from_millis(self.rng.u64(50..900)));
        set(self.fleet.node(node).dir(), PARTED, 0);
        "nodes parted from the clients"
    }

    fn fill(&mut self, shard: usize) -> &'static str {
        let primary = self.fleet.primary(shard);
        set(self.fleet.node(primary).dir(), DISK, 1);
        sleep(Duration::from_millis(self.rng.u64(100..700)));
        set(self.fleet.node(primary).dir(), DISK, 0);
        // The server tries again once a second.
        support::wait_for("the disk", || {
            call::<String>(&mut self.fleet.client(primary), "INFO persistence").contains("aof_last_write_status:ok")
        });
        "full disks"
    }
}
