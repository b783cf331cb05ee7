//! Hundreds of connections wait for several keys at once, take and give back, and are killed and unblocked. In the end each key
//! holds exactly what the replies say, no client waits any more, each call had one reply, and the replica holds the same.
//! The pace of those that need several rates at once.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use redis::{from_redis_value, Connection, FromRedisValue, Value};
use support::witness::Watched;
use support::{
    assert_same, at_once, call, command, held, info, inspect, snapshots, time_us, wait_for, AllRows, AtOnce, Load, Server,
    Snapshots,
};

const CONNECTIONS: usize = 500;
const KEYS: usize = 50;
const KINDS: [&str; 5] = ["FIXED", "SLIDE", "GCRA", "BUCKET", "LEASE"];
/// So long that nothing drains or lapses within the test.
const PERIOD: &str = "3650d";
const LIMIT: i64 = 12;
/// How much longer a load may take on a slow machine.
const MOST_LATE_US: i64 = 120_000_000;
/// How many charges are settled to a unit instead of none.
const MOST_SETTLED: u64 = 60;

fn kind(key: usize) -> &'static str {
    KINDS[key % KINDS.len()]
}

fn name(key: usize) -> String {
    format!("{{load}}{key}")
}

/// A random number generator: SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// One call: an id, and what it takes from which keys.
#[derive(Clone, Debug)]
struct Charge {
    id: String,
    wants: Vec<(usize, i64)>,
}

impl Charge {
    /// A call of `RL.ALL`, or of a limiter if there is one key and `single` is set.
    fn words(&self, single: bool, wait: &str) -> String {
        if let ([(key, cost)], true) = (&self.wants[..], single) {
            return format!("RL.{} {} {LIMIT} {PERIOD} COST {cost} ID {} {wait}", kind(*key), name(*key), self.id);
        }
        let names: Vec<_> = self.wants.iter().map(|&(key, _)| name(key)).collect();
        let rules: Vec<_> =
            self.wants.iter().map(|&(key, cost)| format!("{} {LIMIT} {PERIOD} COST {cost}", kind(key))).collect();
        format!("RL.ALL {} {} {} ID {} {wait}", names.len(), names.join(" "), rules.join(" "), self.id)
    }

    /// Whether a reply grants the call. Panics if it is impossible.
    fn granted(&self, reply: Value) -> bool {
        let rows = match from_redis_value::<[i64; 5]>(reply.clone()) {
            Ok(row) => vec![row],
            Err(_) => {
                let (granted, wait, rows) = AllRows::from_redis_value(reply).expect("a reply");
                assert_eq!(granted == 1, rows.iter().all(|row| row[0] > 0), "{self:?}: {rows:?}");
                assert!(if granted == 1 { wait == 0 } else { wait >= 1 }, "{self:?}: {wait} {rows:?}");
                rows
            }
        };
        assert_eq!(rows.len(), self.wants.len(), "{self:?}: {rows:?}");
        for (row, &(_, cost)) in rows.iter().zip(&self.wants) {
            assert!(row[0] == 0 || row[0] == cost, "{self:?}: {rows:?}");
            assert!(row[1] == LIMIT && (0..=LIMIT).contains(&row[2]), "{self:?}: {rows:?}");
        }
        rows.iter().all(|row| row[0] > 0)
    }
}

/// What all clients have counted.
#[derive(Default)]
struct Books {
    /// The ids of connections that may be unblocked.
    connections: Mutex<Vec<i64>>,
    calls: AtomicU64,
    granted: AtomicU64,
    denied: AtomicU64,
    unblocked: AtomicU64,
    killed: AtomicU64,
    given_back: AtomicU64,
    /// How many charges were settled to a unit instead of none, or would have been.
    settled: AtomicU64,
    /// The units that each key has granted, less those given back.
    units: Vec<AtomicI64>,
    /// All charges that were granted at some time, or may have been.
    charges: Mutex<Vec<Charge>>,
}

impl Books {
    fn new() -> Self {
        Self { units: (0..KEYS).map(|_| AtomicI64::new(0)).collect(), ..Self::default() }
    }

    /// Whether all that can happen to a call has happened often.
    fn are_full(&self, client: &mut Connection) -> bool {
        let [waits, timeouts, abandoned] = waits(client);
        waits > 500
            && timeouts > 100
            && abandoned > 10
            && timeouts + abandoned < waits
            && [&self.granted, &self.denied, &self.unblocked, &self.killed, &self.given_back]
                .iter()
                .all(|counter| counter.load(Ordering::Relaxed) > 10)
    }

    fn note(&self, charge: &Charge) {
        for &(key, cost) in &charge.wants {
            self.units[key].fetch_add(cost, Ordering::Relaxed);
        }
        self.granted.fetch_add(1, Ordering::Relaxed);
        self.charges.lock().expect("charges").push(charge.clone());
    }
}

/// How many calls have waited, how many of them until their time was over, and how many were given up.
fn waits(client: &mut Connection) -> [i64; 3] {
    ["waits", "wait_timeouts", "waits_abandoned"].map(|field| info(client, "rl", &format!("rl_{field}")))
}

/// A client with a connection of its own.
struct Caller<'a> {
    server: &'a Server,
    books: &'a Books,
    number: usize,
    rng: Rng,
    client: Connection,
    client_id: i64,
    calls: u64,
    /// Whether all keys may be emptied at any time.
    emptied: bool,
    held: Vec<Charge>,
}

impl<'a> Caller<'a> {
    fn new(server: &'a Server, books: &'a Books, number: usize, emptied: bool) -> Self {
        let mut client = server.client();
        let client_id = call(&mut client, "CLIENT ID");
        books.connections.lock().expect("connections").push(client_id);
        let rng = Rng(number as u64 * 0x5851_f42d + 17);
        Self { server, books, number, rng, client, client_id, calls: 0, emptied, held: Vec::new() }
    }

    fn charge(&mut self) -> Charge {
        self.calls += 1;
        // Neighbouring keys overlap; some calls take one key, and most take two to four, in any order.
        let count = [1, 2, 2, 3, 4][self.rng.below(5)];
        let first = self.rng.below(KEYS);
        let step = [1, KEYS - 1, 7][self.rng.below(3)];
        let wants = (0..count).map(|index| ((first + index * step) % KEYS, 1 + self.rng.below(4) as i64)).collect();
        Charge { id: format!("{}:{}", self.number, self.calls), wants }
    }

    fn step(&mut self) {
        self.books.calls.fetch_add(1, Ordering::Relaxed);
        if self.held.len() > 3 || !self.held.is_empty() && self.rng.below(2) == 0 {
            let index = self.rng.below(self.held.len());
            let charge = self.held.swap_remove(index);
            return self.give_back(&charge);
        }
        let charge = self.charge();
        let wait = match self.rng.below(6) {
            0 => String::new(),
            _ => format!("BLOCK {}ms", 20 + self.rng.below(600)),
        };
        let words = charge.words(self.rng.below(2) == 0, &wait);
        if self.rng.below(25) == 0 {
            return self.call_and_lose_the_connection(charge, &words);
        }
        // The reply to ECHO shows that the call had exactly one reply.
        let mut pipe = redis::pipe();
        pipe.add_command(command(&words)).cmd("ECHO").arg(&charge.id);
        self.client.send_packed_command(&pipe.get_packed_pipeline()).expect("a connection");
        let reply = self.client.recv_response();
        let echo: String = from_redis_value(self.client.recv_response().expect("an echo")).expect("text");
        assert_eq!(echo, charge.id, "the call had not one reply: {reply:?}");
        match reply.and_then(Value::extract_error) {
            Ok(reply) if charge.granted(reply.clone()) => {
                self.books.note(&charge);
                self.held.push(charge);
            }
            Ok(_) => {
                self.books.denied.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                assert_eq!(error.code(), Some("UNBLOCKED"), "{words}: {error}");
                self.books.unblocked.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Sends a call, and has the server end the connection soon. Whether the call was granted shows only when it is repeated.
    fn call_and_lose_the_connection(&mut self, charge: Charge, words: &str) {
        self.client.send_packed_command(&command(words).get_packed_command()).expect("a connection");
        sleep(Duration::from_millis(self.rng.below(100) as u64));
        let mut client = self.server.client();
        call::<Value>(&mut client, &format!("CLIENT KILL ID {}", self.client_id));
        self.books.killed.fetch_add(1, Ordering::Relaxed);
        self.client = client;
        let id = call(&mut self.client, "CLIENT ID");
        let mut connections = self.books.connections.lock().expect("connections");
        connections.retain(|&other| other != self.client_id);
        connections.push(id);
        drop(connections);
        self.client_id = id;
        // The first connection has ended, and so has its wait. A repeated call is granted what was granted then, or decided anew.
        let (granted, _, rows): AllRows = call(&mut self.client, &Charge::words(&charge, false, ""));
        if granted == 1 {
            self.books.note(&charge);
            self.held.push(charge);
        } else if self.emptied {
            // The first call may have been granted before the databases were swapped.
            self.books.charges.lock().expect("charges").push(charge);
        } else {
            // All keys have charged the call or none: no key remembers it now.
            for &(key, _) in &charge.wants {
                let reply: Option<[i64; 5]> = call(&mut self.client, &format!("RL.RELEASE {} {}", name(key), charge.id));
                assert_eq!(reply, None, "{charge:?} was charged in part: {rows:?}");
            }
        }
    }

    /// Releases what a charge holds, or settles it to fewer units, in one transaction.
    fn give_back(&mut self, charge: &Charge) {
        let mut pipe = redis::pipe();
        pipe.atomic();
        let left: Vec<_> = charge
            .wants
            .iter()
            .map(|&(key, cost)| {
                // What stays charged is never given back, so there is little of that.
                let settles = kind(key) != "LEASE" && cost > 1 && self.rng.below(6) == 0;
                let left = i64::from(settles && self.books.settled.fetch_add(1, Ordering::Relaxed) < MOST_SETTLED);
                pipe.add_command(command(&format!("RL.SETTLE {} {} {left}", name(key), charge.id)));
                left
            })
            .collect();
        let replies: Vec<Option<[i64; 5]>> = pipe.query(&mut self.client).expect("replies");
        let known = replies.iter().flatten().count();
        assert!(known == replies.len() || self.emptied && known == 0, "{charge:?}: {replies:?}");
        if known > 0 {
            for (&(key, cost), left) in charge.wants.iter().zip(left) {
                self.books.units[key].fetch_add(left - cost, Ordering::Relaxed);
            }
            self.books.given_back.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Has all connections make calls for a while, and does `event` again and again meanwhile. In the end, all calls have ended.
fn run(server: &Server, ms: i64, emptied: bool, mut event: impl FnMut(&mut Connection, u64)) -> Books {
    let (books, load) = (Books::new(), Load::default());
    std::thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let (books, load) = (&books, &load);
            let worker = std::thread::Builder::new().stack_size(512 * 1024);
            worker
                .spawn_scoped(scope, move || {
                    let mut caller = Caller::new(server, books, number, emptied);
                    while load.goes_on() {
                        caller.step();
                    }
                })
                .expect("a thread");
        }
        let _end = load.ends_here();
        let mut client = server.client();
        let mut rng = Rng(1);
        wait_for("waiting clients", || info(&mut client, "rl", "rl_waiting_clients") > 20);
        let until = time_us(&mut client) + ms * 1_000;
        let mut round = 0;
        // A slow machine gets more time, so that everything happens often.
        while {
            let late_us = time_us(&mut client) - until;
            late_us < 0 || late_us < MOST_LATE_US && !books.are_full(&mut client)
        } {
            // Some of the clients are unblocked, in either way.
            let ids: Vec<i64> = {
                let connections = books.connections.lock().expect("connections");
                (0..10).map(|_| connections[rng.below(connections.len())]).collect()
            };
            for (index, id) in ids.into_iter().enumerate() {
                call::<i64>(&mut client, &format!("CLIENT UNBLOCK {id} {}", ["TIMEOUT", "ERROR"][index % 2]));
            }
            event(&mut client, round);
            round += 1;
            sleep(Duration::from_millis(10));
        }
    });
    let mut client = server.client();
    wait_for("no waiting client", || held(&mut client) == 0);
    assert_eq!(info(&mut client, "rl", "rl_waiting_clients"), 0);
    let [waits, timeouts, abandoned] = waits(&mut client);
    let [calls, granted, denied, unblocked, killed, given_back] =
        [&books.calls, &books.granted, &books.denied, &books.unblocked, &books.killed, &books.given_back]
            .map(|counter| counter.load(Ordering::Relaxed));
    println!(
        "{calls} calls: {granted} granted, {denied} denied, {unblocked} unblocked, {killed} killed, {given_back} given back; \
         {waits} waits, {timeouts} of them timed out, {abandoned} abandoned"
    );
    assert!(books.are_full(&mut client));
    books
}

/// What a key's record says is in use.
fn in_use(client: &mut Connection, key: usize) -> i64 {
    let mut number = |field: &str| inspect(client, &name(key), field);
    assert!(number("waiting").is_none_or(|waiting| waiting == 0), "{}", name(key));
    number("used").or_else(|| number("held")).unwrap_or(0)
}

fn assert_replicated(server: &Server, replica: &Server, db: i64) -> Snapshots {
    let (mut client, mut other) = (server.client(), replica.client());
    server.wait_until_in_step(replica);
    call::<()>(&mut client, &format!("SELECT {db}"));
    call::<()>(&mut other, &format!("SELECT {db}"));
    let all = snapshots(&mut client);
    assert_same(&all, &snapshots(&mut other));
    assert!(all.values().all(|snapshot| snapshot.deadline_ms > 0));
    all
}

#[test]
fn five_hundred_connections_get_what_the_keys_hold_to_the_unit() {
    let server = Server::on_port(&["--maxclients", "2000"]);
    let replica = server.replica(&[]);
    let books = run(&server, 6_000, false, |_, _| ());
    let mut client = server.client();
    for (key, units) in books.units.iter().enumerate() {
        let units = units.load(Ordering::Relaxed);
        assert_eq!(in_use(&mut client, key), units, "{} {}", kind(key), name(key));
        assert!((0..=LIMIT).contains(&units), "{} {}: {units}", kind(key), name(key));
        // The rest is free at once: no line is left.
        if units < LIMIT {
            let id = if kind(key) == "LEASE" { "ID last" } else { "" };
            let words = format!("RL.{} {} {LIMIT} {PERIOD} COST {} {id}", kind(key), name(key), LIMIT - units);
            assert_eq!(call::<[i64; 5]>(&mut client, &words)[0], LIMIT - units, "{words}");
        }
    }
    assert_replicated(&server, &replica, 0);
}

#[test]
fn five_hundred_connections_go_on_while_databases_are_swapped_and_emptied() {
    let server = Server::on_port(&["--maxclients", "2000"]);
    let replica = server.replica(&[]);
    let calm = time_us(&mut server.client()) + 6_000_000;
    let books = run(&server, 7_000, true, |client, round| match round % 40 {
        // In the end nothing is emptied, so that some charges are left.
        _ if time_us(client) > calm => {}
        9 => call(client, "SWAPDB 0 1"),
        19 => call(client, "FLUSHALL"),
        29 => call(client, "SWAPDB 1 0"),
        39 => call(client, "FLUSHDB"),
        _ => {}
    });
    // Neither database is empty, whichever was emptied last.
    for db in [0, 1] {
        let mut client = server.client();
        call::<()>(&mut client, &format!("SELECT {db}"));
        call::<()>(&mut client, "SET kept 1 EX 1000");
    }
    let charges = books.charges.into_inner().expect("charges");
    let mut whole = 0;
    for db in [0, 1] {
        assert_replicated(&server, &replica, db);
        let mut client = server.client();
        call::<()>(&mut client, &format!("SELECT {db}"));
        for key in 0..KEYS {
            assert!((0..=LIMIT).contains(&in_use(&mut client, key)), "{}", name(key));
        }
        // Databases are swapped and emptied as a whole: all keys of a call remember it or none.
        for charge in &charges {
            let mut pipe = redis::pipe();
            for &(key, _) in &charge.wants {
                pipe.add_command(command(&format!("RL.RELEASE {} {}", name(key), charge.id)));
            }
            let replies: Vec<Option<[i64; 5]>> = pipe.query(&mut client).expect("replies");
            let known = replies.iter().flatten().count();
            assert!(known == 0 || known == replies.len(), "{charge:?} in database {db}: {replies:?}");
            whole += usize::from(known > 0);
        }
        // And nothing is left that no call has been granted.
        for key in 0..KEYS {
            if kind(key) == "LEASE" {
                assert_eq!(in_use(&mut client, key), 0, "{}", name(key));
            }
        }
    }
    assert!(whole > 0, "no charge is left");
}

const MS: i64 = 1_000;

#[test]
fn late_timers_cost_no_throughput() {
    const GAP_US: i64 = 20 * MS;
    const CALLS: i64 = 100;
    let server = Watched::start();
    // Each call needs two rates of the same pace. Together they grant as often as one of them, which is the comparison.
    for (keys, words) in [
        (1, "RL.ALL 1 one GCRA 50 1 BURST 1 BLOCK 30"),
        (2, "RL.ALL 2 a b GCRA 50 1 BURST 1 BUCKET 50 1 CAPACITY 1 BLOCK 30"),
    ] {
        let AtOnce { held: calls, from_us, to_us } = at_once(&server, std::iter::repeat_n(words, CALLS as usize));
        let mut last = (0, 0);
        for mut call in calls {
            let reply = call.answer::<AllRows>();
            let at = reply.at_us();
            let (granted, _, rows) = reply.row.expect("a grant");
            assert_eq!(granted, 1);
            last = (at, rows.iter().map(|row| row[4]).max().expect("a row"));
        }
        // The moment as of which the last call was charged: nothing is used a gap after it.
        let charged = last.0 + last.1 * MS - GAP_US;
        // Several stops in a row, none of which is longer than the module makes up for, can be too long together. So each counts,
        // less a gap.
        let due = to_us + (CALLS - 1) * GAP_US + server.stood_us(from_us, last.0, GAP_US);
        let lost_ms = (charged - due) / MS;
        println!("{keys} rates: {lost_ms} ms are lost in {CALLS} calls");
        assert!(lost_ms <= 5, "{keys} rates: {lost_ms} ms are lost in {CALLS} calls");
    }
    assert_eq!(held(&mut server.client()), 0);
}
