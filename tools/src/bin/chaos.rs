//! Breaks a cluster under load in many ways, in an order that a seed determines: `make chaos CHAOS=120 SEED=1`
//!
//! Cluster clients use every command on three primaries, which have a replica each. Meanwhile primaries and replicas are
//! killed and restarted on their files, replicas take over, slots move, and servers pause, sleep and rewrite their files. In
//! the end the grants that the clients counted are compared with what the keys hold: no key may have granted more than its
//! limit and those grants that were lost because a primary was killed before its replica received them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use fastrand::Rng;
use redis::cluster::ClusterClient;
use redis::{RedisError, RedisResult, Value};
use support::fleet::{used, Caller, Fleet, InFlight, SHARDS};
use support::{call, command, Load};

const CALLERS: usize = 8;
/// How often a caller repeats its last call after the end of the load, at most.
const MAX_REPEATS: u32 = 2_000;
/// The number of hash tags. At first, each shard serves the slots of a third of them.
const TAGS: usize = 12;
/// The limit of each key, per day.
const LIMIT: i64 = 80;
/// How often new keys come into use. Each stays in use four times as long.
const GENERATION: Duration = Duration::from_secs(3);

/// A kind of calls whose grants are counted. For each tag and generation there is one key of each lane.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lane {
    name: &'static str,
    limiter: &'static str,
    options: &'static str,
    /// The option with the units of the call; `n` stands for the number.
    clause: &'static str,
    /// The most units in one call.
    most: i64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Grants at most the limit.
    Limited,
    /// Grants at most the limit and what becomes free within half a day.
    Booked,
    /// Grants all requested units.
    Forced,
    /// Calls also give back units that were granted.
    Refunded,
    /// Each call has an id, with which it is repeated until there is a reply.
    Named,
    /// As `Named`. The charges are settled to fewer units, and the leases are released.
    Settled,
    /// The first of two keys that `RL.ALL` charges.
    Pair,
    /// The second of these keys.
    Second,
    /// The first of several keys that `RL.ALL` charges with an id, after a wait if need be. The call is repeated until there is a
    /// reply, and in the end all keys are released at once.
    Together,
    /// Another one of these keys. It holds as much as the key of the lane before.
    Another,
}

const fn lane(
    name: &'static str,
    limiter: &'static str,
    options: &'static str,
    clause: &'static str,
    most: i64,
    kind: Kind,
) -> Lane {
    Lane { name, limiter, options, clause, most, kind }
}

impl Kind {
    /// Whether units are given back.
    fn gives_back(self) -> bool {
        matches!(self, Self::Refunded | Self::Settled | Self::Together | Self::Another)
    }

    /// Whether the key holds as much as the key of the lane before, because calls charge both or none.
    fn equals_the_one_before(self) -> bool {
        matches!(self, Self::Second | Self::Another)
    }

    /// Whether the units that were granted before a crash may be counted after it: the reply was lost, and the call repeated.
    fn repeats(self) -> bool {
        matches!(self, Self::Named | Self::Settled | Self::Together | Self::Another)
    }
}

const LANES: [Lane; 22] = [
    lane("fixed", "FIXED", "", "COST n", 3, Kind::Limited),
    lane("slide", "SLIDE", "", "COST n", 3, Kind::Limited),
    lane("gcra", "GCRA", "", "UPTO n", 5, Kind::Limited),
    lane("bucket", "BUCKET", "", "COST n", 3, Kind::Limited),
    lane("step", "BUCKET", "STEP", "UPTO n", 5, Kind::Limited),
    lane("turn", "SLIDE", "", "COST n BLOCK 100ms", 2, Kind::Limited),
    lane("booked", "GCRA", "", "COST n RESERVE 12h", 3, Kind::Booked),
    lane("tokens", "BUCKET", "", "COST n RESERVE 12h", 3, Kind::Booked),
    lane("debt", "FIXED", "", "FORCE n", 3, Kind::Forced),
    lane("penalty", "GCRA", "", "FORCE n", 3, Kind::Forced),
    lane("back", "SLIDE", "", "COST n", 3, Kind::Refunded),
    lane("return", "BUCKET", "", "COST n", 3, Kind::Refunded),
    lane("named", "FIXED", "", "COST n", 3, Kind::Named),
    lane("ids", "SLIDE", "", "COST n", 3, Kind::Named),
    lane("estimate", "SLIDE", "", "COST n", 5, Kind::Settled),
    lane("budget", "BUCKET", "", "COST n", 5, Kind::Settled),
    lane("lease", "LEASE", "", "COST n", 3, Kind::Settled),
    lane("first", "FIXED", "", "", 3, Kind::Pair),
    lane("second", "SLIDE", "", "", 3, Kind::Second),
    lane("whole", "FIXED", "", "", 3, Kind::Together),
    lane("part", "SLIDE", "", "", 3, Kind::Another),
    lane("slots", "LEASE", "", "", 3, Kind::Another),
];

/// How many units of the lane `slots` are held at most. It is the limit that calls wait for.
const SLOTS: i64 = 12;

/// Releases an id on all keys at once.
const RELEASE: &str = "#!lua\nlocal known = 0 for _, key in ipairs(KEYS) do \
    if redis.call('RL.RELEASE', key, ARGV[1]) then known = known + 1 end end return known";

/// Calls with short limits, most of which wait. Their grants are not counted.
const PACED: [(&str, &str); 4] = [
    ("pace", "RL.GCRA # 50 1 BURST 1 BLOCK 200ms"),
    ("turns", "RL.FIXED # 10 200ms UPTO 3 BLOCK 300ms"),
    ("soon", "RL.SLIDE # 20 500ms RESERVE 300ms"),
    ("drip", "RL.BUCKET # 40 1 CAPACITY 4 BLOCK 150ms"),
];

/// Puts a cluster under load, and kills, pauses and moves parts of it meanwhile.
#[derive(Parser)]
struct Options {
    /// How long the load lasts, in seconds
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Determines the order of events; the default is the time
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let Options { seconds, seed } = Options::parse();
    let seed = seed.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs()));
    println!("{} for {seconds} seconds; the same order again: --seed {seed}", support::server_program());
    let begin = Instant::now();
    let mut fleet = Fleet::start(&["--appendonly", "yes"]);
    let tags: Vec<_> = (0..TAGS).map(|tag| format!("{{t{tag}}}")).collect();
    let books = Books::new(tags, seconds);
    let cluster_client = fleet.cluster_client();
    let mut run = Run {
        fleet: &mut fleet,
        books: &books,
        rng: Rng::with_seed(seed),
        events: BTreeMap::new(),
        last: Vec::new(),
        wrong: vec![],
    };
    run.last = vec![Last::default(); books.cells.len()];
    let load = Load::lasting_at_most(Duration::from_secs(seconds + 600));
    let tallies = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (books, cluster_client, load) = (&books, &cluster_client, &load);
                scope.spawn(move || Tally::work(caller, seed, books, cluster_client, load))
            })
            .collect();
        {
            let _end = load.ends_here();
            run.play(Duration::from_secs(seconds));
        }
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect::<Vec<_>>()
    });
    let tally = tallies.into_iter().fold(Tally::default(), Tally::and);
    // Wait until the keys with short limits have expired.
    sleep(Duration::from_millis(1_500));
    run.report(&tally, begin)
}

// ---- The granted units ----

/// The units that callers have been granted, for each key.
struct Books {
    tags: Vec<String>,
    generations: usize,
    begin: Instant,
    cells: Vec<AtomicI64>,
    in_flight: InFlight,
}

/// A key whose grants are counted.
#[derive(Clone, Copy)]
struct Place {
    tag: usize,
    lane: usize,
    generation: usize,
}

impl Books {
    fn new(tags: Vec<String>, seconds: u64) -> Self {
        // The last event may go on after the end of the load.
        let generations = (seconds + 90) as usize / GENERATION.as_secs() as usize;
        let cells = (0..tags.len() * LANES.len() * generations).map(|_| AtomicI64::new(0)).collect();
        Self { tags, generations, begin: Instant::now(), cells, in_flight: InFlight::new(CALLERS) }
    }

    fn index(&self, place: Place) -> usize {
        (place.tag * LANES.len() + place.lane) * self.generations + place.generation
    }

    fn place(&self, index: usize) -> Place {
        let (row, generation) = (index / self.generations, index % self.generations);
        Place { tag: row / LANES.len(), lane: row % LANES.len(), generation }
    }

    fn name(&self, place: Place) -> String {
        format!("{}:{}:{}", self.tags[place.tag], LANES[place.lane].name, place.generation)
    }

    fn granted(&self, index: usize) -> i64 {
        self.cells[index].load(Ordering::SeqCst)
    }

    fn note(&self, place: Place, units: i64) {
        self.cells[self.index(place)].fetch_add(units, Ordering::SeqCst);
    }

    /// A random key of one of the generations that are in use now.
    fn pick(&self, rng: &mut Rng) -> Place {
        let now = (self.begin.elapsed().as_millis() / GENERATION.as_millis()) as usize;
        let generation = now.min(self.generations - 1).saturating_sub(rng.usize(..4));
        Place { tag: rng.usize(..TAGS), lane: rng.usize(..LANES.len()), generation }
    }
}

// ---- Callers ----

/// The outcomes of the calls.
#[derive(Default)]
struct Tally {
    calls: u64,
    granted: u64,
    denied: u64,
    looks: u64,
    errors: BTreeMap<String, u64>,
    wrong: Vec<String>,
    /// The number of the caller.
    caller: usize,
    /// The number of ids that the caller has used.
    ids: u64,
    /// The call that is repeated, because its reply was lost: its key, id and units.
    unanswered: Option<(Place, String, i64)>,
    /// Calls that were repeated, and those of them that had been granted already.
    repeated: u64,
    /// What the caller's ids hold: the key, the id and the units.
    held: Vec<(Place, String, i64)>,
    /// What its calls of several keys hold: the first key, the id and the units.
    together: Vec<(Place, String, i64)>,
    settled: u64,
}

impl Tally {
    fn work(caller: usize, seed: u64, books: &Books, cluster_client: &ClusterClient, load: &Load) -> Self {
        let mut rng = Rng::with_seed(seed ^ (caller as u64 + 1).wrapping_mul(0x5851_f42d_4c95_7f2d));
        let mut client = Caller::new(cluster_client);
        let mut tally = Self { caller, ..Self::default() };
        // The last call is repeated, too, until there is a reply.
        let mut after = 0;
        while load.goes_on() || tally.unanswered.is_some() && after < MAX_REPEATS {
            after += u32::from(!load.goes_on());
            tally.calls += 1;
            if let Err(error) = books.in_flight.run(caller, || tally.step(&mut rng, books, &mut client)) {
                let kind = kind(&error);
                if !TRANSIENT_ERRORS.contains(&kind.as_str()) {
                    tally.wrong.push(error.to_string());
                }
                *tally.errors.entry(kind).or_default() += 1;
                sleep(Duration::from_millis(5));
            }
        }
        books.in_flight.leave(caller);
        tally
    }

    /// Makes one call.
    fn step(&mut self, rng: &mut Rng, books: &Books, client: &mut Caller) -> RedisResult<()> {
        if self.unanswered.is_some() {
            self.repeated += 1;
            return self.charge(books, client);
        }
        match rng.u64(..100) {
            0..10 => {
                let (name, words) = PACED[rng.usize(..PACED.len())];
                let key = format!("{}:{name}", books.tags[rng.usize(..TAGS)]);
                let row = client.limit(&key, &words.replace('#', &key))?;
                self.judge(&row, 3, &key);
            }
            10..20 => {
                let place = books.pick(rng);
                let (key, Lane { limiter, options, .. }) = (books.name(place), LANES[place.lane]);
                if rng.u64(..2) == 0 {
                    let row = client.limit(&key, &format!("RL.PEEK {limiter} {key} {LIMIT} 1d {options}"))?;
                    self.check(&row, 1, &key);
                } else {
                    client.call::<Value>(&key, &command(&format!("RL.INSPECT {key}")))?;
                }
                self.looks += 1;
            }
            _ => {
                let place = books.pick(rng);
                self.take(rng, books, client, place)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, rng: &mut Rng, books: &Books, client: &mut Caller, place: Place) -> RedisResult<()> {
        let Lane { limiter, options, clause, most, kind, .. } = LANES[place.lane];
        let (key, units) = (books.name(place), rng.i64(1..=most));
        match kind {
            Kind::Pair | Kind::Second => {
                let pair = ["first", "second"].map(|name| LANES.iter().position(|lane| lane.name == name).expect("a lane"));
                let pair = pair.map(|lane| Place { lane, ..place });
                let [first, second] = pair.map(|place| books.name(place));
                let words = format!("RL.ALL 2 {first} {second} FIXED {LIMIT} 1d COST {units} SLIDE {LIMIT} 1d COST {units}");
                let (granted, _, rows): (i64, i64, Vec<[i64; 5]>) = client.call(&key, &command(&words))?;
                if granted > 0 {
                    pair.into_iter().for_each(|place| books.note(place, units));
                    self.granted += 1;
                } else {
                    self.denied += 1;
                }
                rows.iter().for_each(|row| self.check(row, units, &key));
            }
            Kind::Settled if rng.u64(..3) == 0 && !self.held.is_empty() => {
                let (place, id, units) = self.held.swap_remove(rng.usize(..self.held.len()));
                let (key, lease) = (books.name(place), LANES[place.lane].limiter == "LEASE");
                let left = if lease { 0 } else { rng.i64(0..=units) };
                let reply: Option<[i64; 5]> = client.call(&key, &command(&format!("RL.SETTLE {key} {id} {left}")))?;
                if let Some(row) = reply {
                    books.note(place, left - units);
                    self.settled += 1;
                    self.check(&row, units, &key);
                }
            }
            Kind::Together | Kind::Another if rng.u64(..2) == 0 && !self.together.is_empty() => {
                let (place, id, units) = self.together.swap_remove(rng.usize(..self.together.len()));
                let places = together(place);
                let keys = places.map(|place| books.name(place));
                let mut release = redis::cmd("EVAL");
                release.arg(RELEASE).arg(keys.len()).arg(&keys[..]).arg(&id);
                let known: usize = client.call(&keys[0], &release)?;
                if known == keys.len() {
                    places.into_iter().for_each(|place| books.note(place, -units));
                    self.settled += 1;
                } else if known > 0 {
                    self.wrong.push(format!("{}: {known} keys of a call remembered its id", keys[0]));
                }
            }
            Kind::Named | Kind::Settled | Kind::Together | Kind::Another => {
                self.ids += 1;
                let place = if kind == Kind::Another { together(place)[0] } else { place };
                self.unanswered = Some((place, format!("{}-{}", self.caller, self.ids), units));
                self.charge(books, client)?;
            }
            Kind::Refunded if rng.u64(..3) == 0 => {
                let row = client.limit(&key, &format!("RL.{limiter} {key} {LIMIT} 1d {options} REFUND {units}"))?;
                books.note(place, -row[0]);
                self.check(&row, units, &key);
            }
            _ => {
                let clause = clause.replace('n', &units.to_string());
                let row = client.limit(&key, &format!("RL.{limiter} {key} {LIMIT} 1d {options} {clause}"))?;
                books.note(place, row[0]);
                self.judge(&row, units, &key);
                if kind == Kind::Forced && row[0] != units {
                    self.wrong.push(format!("{key}: FORCE {units} took {}", row[0]));
                }
            }
        }
        Ok(())
    }

    /// Makes the call that has no reply yet.
    fn charge(&mut self, books: &Books, client: &mut Caller) -> RedisResult<()> {
        let Some((place, id, units)) = self.unanswered.clone() else { return Ok(()) };
        let Lane { limiter, options, clause, kind, .. } = LANES[place.lane];
        let (key, clause) = (books.name(place), clause.replace('n', &units.to_string()));
        if kind == Kind::Together {
            return self.charge_together(books, client, place, &id, units);
        }
        let row = client.limit(&key, &format!("RL.{limiter} {key} {LIMIT} 1d {options} {clause} ID {id}"))?;
        self.unanswered = None;
        books.note(place, row[0]);
        self.judge(&row, units, &key);
        if row[0] > 0 && kind == Kind::Settled {
            self.held.push((place, id, units));
        }
        Ok(())
    }

    /// Makes the call of several keys that has no reply yet.
    fn charge_together(
        &mut self,
        books: &Books,
        client: &mut Caller,
        place: Place,
        id: &str,
        units: i64,
    ) -> RedisResult<()> {
        let places = together(place);
        let [whole, part, slots] = places.map(|place| books.name(place));
        let rules = format!("FIXED {LIMIT} 1d COST {units} SLIDE {LIMIT} 1d COST {units} LEASE {SLOTS} 1d COST {units}");
        let words = format!("RL.ALL 3 {whole} {part} {slots} {rules} ID {id} BLOCK 150ms");
        let (granted, _, rows): (i64, i64, Vec<[i64; 5]>) = client.call(&whole, &command(&words))?;
        self.unanswered = None;
        rows.iter().for_each(|row| self.check(row, units, &whole));
        if (granted == 1) != rows.iter().all(|row| row[0] == units) {
            self.wrong.push(format!("{words}: {granted} {rows:?}"));
        }
        if granted == 1 {
            places.into_iter().for_each(|place| books.note(place, units));
            self.granted += 1;
            self.together.push((place, id.to_string(), units));
        } else {
            self.denied += 1;
        }
        Ok(())
    }

    fn judge(&mut self, row: &[i64; 5], units: i64, key: &str) {
        if row[0] > 0 {
            self.granted += 1;
        } else {
            self.denied += 1;
        }
        self.check(row, units, key);
    }

    /// Records a reply that is impossible in itself.
    fn check(&mut self, row: &[i64; 5], units: i64, key: &str) {
        let &[granted, limit, remaining, wait, reset] = row;
        let possible = (0..=units).contains(&granted) && (0..=limit).contains(&remaining) && wait >= -1 && reset >= 0;
        if !possible || limit > LIMIT {
            self.wrong.push(format!("{key}: {row:?}"));
        }
    }

    fn and(mut self, other: Self) -> Self {
        self.calls += other.calls;
        self.granted += other.granted;
        self.denied += other.denied;
        self.looks += other.looks;
        self.repeated += other.repeated;
        self.settled += other.settled;
        other.errors.into_iter().for_each(|(kind, count)| *self.errors.entry(kind).or_default() += count);
        self.wrong.extend(other.wrong);
        self
    }
}

/// The keys that a call of [`Kind::Together`] charges: the one of its lane, and those of the lanes after it.
fn together(place: Place) -> [Place; 3] {
    let first = LANES.iter().position(|lane| lane.kind == Kind::Together).expect("a lane");
    [0, 1, 2].map(|lane| Place { lane: first + lane, ..place })
}

fn kind(error: &RedisError) -> String {
    match error.code() {
        Some(code) => code.to_string(),
        None if error.is_connection_refusal() => "connection refused".into(),
        None if error.is_timeout() => "timeout".into(),
        None if error.is_io_error() => "connection lost".into(),
        None => format!("{:?}", error.kind()),
    }
}

/// Errors that clients get while servers change, and after which they call again. All other errors would mean that a call is
/// wrong. `Client` is the library's word for a node that does not report where slots are.
const TRANSIENT_ERRORS: [&str; 13] = [
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "UNBLOCKED",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "connection refused",
    "connection lost",
    "Io",
    "Client",
    "ClusterConnectionNotFound",
];

// ---- Events ----

#[derive(Clone, Copy)]
enum Event {
    /// Kills a primary whose replica then takes over. `lag`: the replica has not received the last grants.
    Takeover {
        lag: bool,
    },
    /// Kills a primary and restarts it before its replica takes over.
    Comeback {
        lag: bool,
    },
    KillReplica,
    Failover,
    Move,
    Pause,
    Sleep,
    Rewrite,
    Save,
}

const EVENTS: [(Event, &str, u64); 11] = [
    (Event::Takeover { lag: false }, "primary killed, replica takes over", 3),
    (Event::Takeover { lag: true }, "primary killed ahead of its replica, which takes over", 3),
    (Event::Comeback { lag: false }, "primary killed and back in time", 2),
    (Event::Comeback { lag: true }, "primary killed ahead of its replica, and back in time", 1),
    (Event::KillReplica, "replica killed and back", 3),
    (Event::Failover, "CLUSTER FAILOVER", 5),
    (Event::Move, "slots moved", 9),
    (Event::Pause, "CLIENT PAUSE", 4),
    (Event::Sleep, "DEBUG SLEEP 0.2", 4),
    (Event::Rewrite, "BGREWRITEAOF", 3),
    (Event::Save, "BGSAVE", 2),
];

/// A key at the last crash of its primary: the units that had been granted by then, and the units that survived.
#[derive(Clone, Copy, Default)]
struct Last {
    granted: i64,
    survived: i64,
}

struct Run<'a> {
    fleet: &'a mut Fleet,
    books: &'a Books,
    rng: Rng,
    events: BTreeMap<&'static str, u64>,
    last: Vec<Last>,
    wrong: Vec<String>,
}

/// Units that crashes have lost in all, and how many keys lost some.
static LOST: AtomicI64 = AtomicI64::new(0);
static KEYS_HIT: AtomicI64 = AtomicI64::new(0);

impl Run<'_> {
    fn play(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            let total: u64 = EVENTS.iter().map(|(.., weight)| weight).sum();
            let mut at = self.rng.u64(..total);
            let (event, name, _) = EVENTS
                .into_iter()
                .find(|(.., weight)| match at.checked_sub(*weight) {
                    Some(rest) => {
                        at = rest;
                        false
                    }
                    None => true,
                })
                .expect("one of them");
            // Each event draws the same number of random numbers, so that the order of events depends on the seed alone.
            let (shard, first, second, rest) =
                (self.rng.usize(..SHARDS), self.rng.u64(..), self.rng.u64(..), self.rng.u64(..900));
            *self.events.entry(name).or_default() += 1;
            println!("{:6.1} s  shard {shard}: {name}", start.elapsed().as_secs_f64());
            self.trigger(event, shard, first, second);
            if let Some(found) = self.fleet.failure() {
                self.wrong.push(found);
                return;
            }
            sleep(Duration::from_millis(100 + rest));
        }
    }

    fn trigger(&mut self, event: Event, shard: usize, first: u64, second: u64) {
        let some_node = if first & 1 == 0 { shard } else { shard + SHARDS };
        let admin = |fleet: &Fleet, words: &str| {
            // The server refuses a command that is still at work from before.
            let _: RedisResult<Value> = command(words).query(&mut fleet.client(some_node));
        };
        match event {
            Event::Takeover { lag } => {
                let keys = self.keys_of(shard);
                let (primary, replica) = self.kill(shard, lag, first);
                let survived = self.fleet.without_primary(replica, |client| used(client, names(&keys)));
                self.account(&keys, &survived);
                self.fleet.take_over(replica);
                sleep(Duration::from_millis(second % 500));
                self.fleet.restart(primary);
                self.fleet.settle();
            }
            Event::Comeback { lag } => {
                let keys = self.keys_of(shard);
                let (primary, _) = self.kill(shard, lag, first);
                self.fleet.restart(primary);
                // A primary that is restarted refuses writes for two seconds.
                let mut client = self.fleet.reader(primary);
                let survived = used(&mut client, names(&keys));
                let info: String = call(&mut client, "CLUSTER INFO");
                assert!(
                    info.contains("cluster_state:fail"),
                    "the restarted primary took writes before the tool had read its keys"
                );
                self.account(&keys, &survived);
                self.fleet.settle();
            }
            Event::KillReplica => {
                let replica = Fleet::partner(self.fleet.primary(shard));
                self.fleet.kill(replica);
                sleep(Duration::from_millis(second % 1_500));
                self.fleet.restart(replica);
                self.fleet.settle();
            }
            Event::Failover => {
                self.fleet.fail_over(shard);
            }
            Event::Move => {
                for tag in [first, second].map(|draw| draw as usize % TAGS) {
                    let slot = self.fleet.slot(&self.books.tags[tag]);
                    let to = (self.fleet.shard(slot) + 1 + (first >> 32) as usize % 2) % SHARDS;
                    self.fleet.move_slot(slot, to);
                }
            }
            Event::Pause => {
                let kind = if second & 1 == 0 { "WRITE" } else { "ALL" };
                admin(self.fleet, &format!("CLIENT PAUSE {} {kind}", 100 + (second >> 1) % 400));
            }
            Event::Sleep => admin(self.fleet, "DEBUG SLEEP 0.2"),
            Event::Rewrite => admin(self.fleet, "BGREWRITEAOF"),
            Event::Save => admin(self.fleet, "BGSAVE SCHEDULE"),
        }
    }

    /// Kills a shard's primary. With `lag`, it first grants units that its replica does not receive.
    fn kill(&mut self, shard: usize, lag: bool, draw: u64) -> (usize, usize) {
        let primary = self.fleet.primary(shard);
        let replica = Fleet::partner(primary);
        if lag {
            self.fleet.signal(replica, "STOP");
            call::<()>(&mut self.fleet.client(primary), "CLIENT KILL TYPE replica");
            sleep(Duration::from_millis(20 + draw % 200));
        }
        self.fleet.kill(primary);
        if lag {
            self.fleet.signal(replica, "CONT");
        }
        self.books.in_flight.wait_for_earlier();
        (primary, replica)
    }

    /// The counted keys of a shard that are in use, or soon will be.
    fn keys_of(&self, shard: usize) -> Vec<(usize, String)> {
        let tags: Vec<_> =
            (0..TAGS).filter(|&tag| self.fleet.shard(self.fleet.slot(&self.books.tags[tag])) == shard).collect();
        let now = (self.books.begin.elapsed().as_millis() / GENERATION.as_millis()) as usize;
        let of_shard = |index: &usize| {
            let place = self.books.place(*index);
            tags.contains(&place.tag) && place.generation <= now + 1
        };
        let name = |index| (index, self.books.name(self.books.place(index)));
        (0..self.books.cells.len()).filter(of_shard).map(name).collect()
    }

    /// Records the usage of a killed primary's keys that has survived. No caller is granted units of these keys meanwhile.
    fn account(&mut self, keys: &[(usize, String)], survived: &[i64]) {
        for ((index, name), &survived) in keys.iter().zip(survived) {
            let granted = self.books.granted(*index);
            let last = std::mem::replace(&mut self.last[*index], Last { granted, survived });
            let place = self.books.place(*index);
            let lost = (granted - last.granted) - (survived - last.survived);
            let kind = LANES[place.lane].kind;
            if !kind.gives_back() && !kind.repeats() && lost > 0 {
                LOST.fetch_add(lost, Ordering::Relaxed);
                KEYS_HIT.fetch_add(1, Ordering::Relaxed);
            }
            if LANES[place.lane].kind.equals_the_one_before() {
                let first = self.books.index(Place { lane: place.lane - 1, ..place });
                if self.last[first].survived != survived {
                    self.wrong
                        .push(format!("{name}: half of an RL.ALL survived: {} and {survived}", self.last[first].survived));
                }
            }
        }
    }

    // ---- The report ----

    fn report(&mut self, tally: &Tally, begin: Instant) -> ExitCode {
        println!("\n{} calls in {:.0} s by {CALLERS} cluster clients", tally.calls, begin.elapsed().as_secs_f64());
        row("granted", tally.granted);
        row("denied", tally.denied);
        row("peeks and inspections", tally.looks);
        row("calls repeated with their id", tally.repeated);
        row("settled and released", tally.settled);
        println!("errors after the client's own retries");
        tally.errors.iter().for_each(|(kind, count)| row(kind, count));
        println!("events");
        self.events.iter().for_each(|(name, count)| row(name, count));
        println!("lost to crashes");
        row("units acknowledged, and not replicated", LOST.load(Ordering::Relaxed));
        row("keys that lost some", KEYS_HIT.load(Ordering::Relaxed));
        println!("checks");
        let mut failed = 0;
        let mut verdict = |what: &str, figures: String, wrong: &[String]| {
            println!("  {:<4} {what}: {figures}", if wrong.is_empty() { "ok" } else { "FAIL" });
            wrong.iter().take(5).for_each(|wrong| println!("         {wrong}"));
            failed += usize::from(!wrong.is_empty());
        };
        let failure: Vec<_> = self.fleet.failure().into_iter().collect();
        verdict(
            "no process has ended that was not killed, and no log reports a crash",
            format!("{} nodes", 2 * SHARDS),
            &failure,
        );
        let step = self.fleet.compare();
        verdict("every key has a deadline on every node", format!("{} keys", step.keys), &step.endless);
        verdict("every replica equals its primary", format!("{} differ", step.differ.len()), &step.differ);
        let odd: Vec<_> = tally.errors.keys().filter(|kind| !TRANSIENT_ERRORS.contains(&kind.as_str())).cloned().collect();
        verdict("all errors are such that a client calls again", format!("{} others", odd.len()), &odd);
        let mut impossible = tally.wrong.clone();
        impossible.append(&mut self.wrong);
        verdict("every reply and every record is possible", format!("{} are not", impossible.len()), &impossible);
        let Audit { keys, spent, over, twice, lost, halves } = self.audit(begin);
        let figures = format!("{keys} keys, of which {spent} are used up");
        verdict("no key has granted more than its limit and what crashes have lost", figures, &over);
        verdict("a call that is repeated with its id is charged once", format!("{} keys hold more", twice.len()), &twice);
        verdict("nothing granted since a crash is missing", format!("{} keys miss some", lost.len()), &lost);
        verdict("RL.ALL has charged all keys of a call or none", format!("{} differ", halves.len()), &halves);
        let unserved = self.unserved();
        verdict("the cluster serves all keys", format!("{TAGS} tags, {} not", unserved.len()), &unserved);
        if failed > 0 {
            println!("{failed} checks failed");
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }

    /// Compares the granted units with the usage that the keys hold.
    fn audit(&self, begin: Instant) -> Audit {
        let mut audit = Audit::default();
        let mut held = vec![0; self.books.cells.len()];
        for shard in 0..SHARDS {
            let keys = self.keys_of(shard);
            let used = used(&mut self.fleet.client(self.fleet.primary(shard)), names(&keys));
            keys.iter().zip(used).for_each(|((index, _), used)| held[*index] = used);
        }
        for (index, &used) in held.iter().enumerate() {
            let (place, Last { granted, survived }) = (self.books.place(index), self.last[index]);
            let Lane { limiter, options, kind, .. } = LANES[place.lane];
            // The units that a limiter regains during the run.
            let flows = limiter == "GCRA" || limiter == "BUCKET" && options != "STEP";
            let flowed = |time: Duration| if flows { LIMIT * time.as_millis() as i64 / 86_400_000 } else { 0 };
            let half_a_day = Duration::from_secs(43_200);
            let refill = flowed(begin.elapsed());
            let most = match kind {
                Kind::Forced => i64::MAX / 2,
                Kind::Booked => LIMIT + flowed(begin.elapsed() + half_a_day),
                _ => LIMIT + refill,
            };
            let since = self.books.granted(index) - granted;
            let name = self.books.name(place);
            audit.keys += usize::from(used > 0);
            audit.spent += usize::from(used >= LIMIT);
            let exact = !kind.gives_back() && !kind.repeats();
            if used > most || exact && since > most - survived {
                audit.over.push(format!(
                    "{name}: {granted} granted of which {survived} survived, {since} since; it holds {used} of {most}"
                ));
            }
            if kind == Kind::Named && used > granted + since {
                audit.twice.push(format!("{name}: {} granted in all, it holds {used}", granted + since));
            }
            if exact && used + refill < survived + since {
                audit.lost.push(format!("{name}: {survived} survived, {since} granted since, it holds {used}"));
            }
            if kind.equals_the_one_before() && held[index] != held[self.books.index(Place { lane: place.lane - 1, ..place })]
            {
                audit.halves.push(name);
            }
        }
        audit
    }

    /// The tags whose keys no node serves.
    fn unserved(&self) -> Vec<String> {
        let mut client = Caller::new(&self.fleet.cluster_client());
        let mut ask = |tag: &String| {
            let reply = client.limit(tag, &format!("RL.GCRA {tag}:end 10 1d"));
            let served = reply.as_ref().is_ok_and(|row| row[..3] == [1, 10, 9]);
            (!served).then(|| format!("{tag}: {reply:?}"))
        };
        self.books.tags.iter().filter_map(&mut ask).collect()
    }
}

#[derive(Default)]
struct Audit {
    keys: usize,
    spent: usize,
    over: Vec<String>,
    twice: Vec<String>,
    lost: Vec<String>,
    halves: Vec<String>,
}

fn names(keys: &[(usize, String)]) -> impl Iterator<Item = &str> {
    keys.iter().map(|(_, name)| name.as_str())
}

fn row(name: &str, value: impl Display) {
    println!("  {name:<56} {value:>10}");
}
