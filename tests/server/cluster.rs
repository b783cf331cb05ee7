//! A cluster counts exactly while slots move and while primaries change; after a crash, it counts all that had been
//! replicated.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::cluster::ClusterClient;
use redis::{RedisError, RedisResult, Value};
use support::fleet::{used, Caller, Fleet, InFlight, SHARDS};
use support::{call, command, crowd_while, error, limit, pipe, replies, time_us, wait_for, Held, Server};

/// Only one of these tests runs at a time: a small machine has not the power for two clusters.
static MACHINE: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const LIMIT: i64 = 200;
const CALLERS: usize = 8;

// ---- Redirects ----

#[test]
fn a_wrong_node_redirects_and_a_cluster_client_follows() {
    let _alone = alone();
    let mut fleet = Fleet::start(&[]);
    let tags: Vec<_> = (0..SHARDS).map(|shard| fleet.tags(shard, 1).remove(0)).collect();
    let tag = &tags[0];
    let (slot, owner) = (fleet.slot(tag), fleet.primary(0));
    let port = fleet.node(owner).port;
    let commands = [
        ("RL.FIXED #fixed 10 1d", false),
        ("RL.SLIDE #slide 10 1d UPTO 3", false),
        ("RL.GCRA #gcra 10 1d BLOCK 1", false),
        ("RL.BUCKET #bucket 10 1d RESERVE 1", false),
        ("RL.GCRA #gcra 10 1d FORCE 2", false),
        ("RL.SLIDE #slide 10 1d REFUND 1", false),
        ("RL.GCRA #gcra 10 1d ID a", false),
        ("RL.SETTLE #gcra a 2", false),
        ("RL.RELEASE #gcra a", false),
        ("RL.LEASE #lease 10 1d ID a", false),
        ("RL.ALL 2 #fixed #gcra FIXED 10 1d GCRA 10 1d", false),
        ("RL.ALL 3 #lease #bucket #slide LEASE 10 1d BUCKET 10 1d SLIDE 10 1d ID b BLOCK 1", false),
        ("RL.POLICY #policy GCRA 10 1d", false),
        ("RL.USE #gcra 2 #none #policy COST 2", false),
        ("RL.USE #gcra 1 #policy BLOCK 1", false),
        ("RL.PEEK LEASE #lease 10 1d", true),
        ("RL.PEEK BUCKET #bucket 10 1d", true),
        ("RL.INSPECT #slide", true),
    ];
    let mut cluster = fleet.cluster_client().get_connection().expect("a connection");
    for (words, reads) in commands {
        let command = command(&words.replace('#', tag));
        let moved = format!("MOVED {slot} 127.0.0.1:{port}");
        let replica = Fleet::partner(owner);
        for wrong in [fleet.primary(1), fleet.primary(2), replica] {
            assert_eq!(error(&mut fleet.client(wrong), &command), moved, "{words} on node {wrong}");
        }
        // A cluster client finds the right node, also if it takes the first argument of the command for the key.
        let reply: RedisResult<Value> = command.query(&mut cluster);
        assert!(reply.is_ok(), "{words}: {reply:?}");
        // A replica answers commands that only read, after READONLY.
        let shards = &mut fleet.reader(replica);
        wait_for("the replica", || call::<Option<String>>(shards, &format!("TYPE {tag}fixed")).is_some());
        let reply: RedisResult<Value> = command.query(shards);
        assert_eq!(reply.is_ok(), reads, "{words} on the replica: {reply:?}");
    }
    assert_eq!(call::<i64>(&mut fleet.client(owner), &format!("CLUSTER COUNTKEYSINSLOT {slot}")), 6);
    assert_eq!(call::<i64>(&mut fleet.client(owner), "DBSIZE"), 6);

    let together = command(&format!("RL.ALL 2 {tag}a {tag}b FIXED 1 1d SLIDE 5 1d"));
    let mut caller = Caller::new(&fleet.cluster_client());
    let granted = |reply: RedisResult<(i64, i64, Value)>| reply.expect("a reply").0;
    assert_eq!([granted(caller.call(tag, &together)), granted(caller.call(tag, &together))], [1, 0]);
    // With keys in several slots, of one node or of two, the call is refused and nothing is charged.
    let near = fleet.tags(0, 2).remove(1);
    for other in [&near, &tags[1]] {
        let apart = command(&format!("RL.ALL 2 {tag}c {other}c FIXED 1 1d SLIDE 5 1d"));
        assert!(error(&mut fleet.client(owner), &apart).starts_with("CROSSSLOT "));
        let refused = caller.call::<Value>(tag, &apart).expect_err("CROSSSLOT");
        assert_eq!(refused.code(), Some("CROSSSLOT"));
        assert_eq!(call::<i64>(&mut fleet.client(owner), &format!("EXISTS {tag}c")), 0);
    }
    // The comparison demands a deadline, which a policy has not.
    assert_eq!(call::<i64>(&mut fleet.client(owner), &format!("DEL {tag}policy")), 1);
    fleet.assert_replicated();
    fleet.assert_healthy();
}

// ---- Keys under load ----

/// A key with a limit of [`LIMIT`] a day, and what its callers were granted.
struct Key {
    name: String,
    call: String,
    granted: AtomicI64,
    /// The units of which `WAIT` has confirmed that the replica has them.
    safe: AtomicI64,
}

impl Key {
    fn granted(&self) -> i64 {
        self.granted.load(Ordering::SeqCst)
    }
}

/// Keys of every algorithm with each tag.
fn keys(tags: &[String]) -> Vec<Key> {
    let limiters = ["FIXED", "SLIDE", "GCRA", "BUCKET"];
    let all = tags.iter().flat_map(|tag| limiters.map(|limiter| (format!("{tag}{limiter}"), limiter)));
    let key = |(name, limiter): (String, &str)| {
        let call = format!("RL.{limiter} {name} {LIMIT} 1d");
        Key { name, call, granted: AtomicI64::new(0), safe: AtomicI64::new(0) }
    };
    all.map(key).collect()
}

fn names(keys: &[Key]) -> impl Iterator<Item = &str> {
    keys.iter().map(|key| key.name.as_str())
}

/// Asks for a unit of a key, and returns how many units were granted.
type Call<'a> = Box<dyn FnMut(&Key) -> RedisResult<i64> + 'a>;

/// Callers that use up keys.
struct Load<'a> {
    keys: &'a [Key],
    in_flight: InFlight,
    /// How long a caller pauses after each call, in microseconds.
    rest: AtomicU64,
    /// While the work goes on, the callers wait once all keys together have granted this many units.
    most: AtomicI64,
    /// Goes on until the work is done that the load accompanies. Then the callers go on until all is granted.
    goes_on: support::Load,
    errors: Mutex<BTreeSet<String>>,
}

impl<'a> Load<'a> {
    fn new(keys: &'a [Key], rest: Duration) -> Self {
        let rest = AtomicU64::new(rest.as_micros() as u64);
        let (in_flight, most) = (InFlight::new(CALLERS), AtomicI64::new(i64::MAX));
        Self { keys, in_flight, rest, most, goes_on: support::Load::default(), errors: Mutex::default() }
    }

    /// How many units all keys together have granted.
    fn total(&self) -> i64 {
        self.keys.iter().map(Key::granted).sum()
    }

    /// Runs the callers while `work` is done, and then until all keys are used up.
    fn during(&self, call: impl Fn(usize) -> Call<'a> + Sync, work: impl FnOnce()) {
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let call = &call;
                scope.spawn(move || self.pull(caller, call(caller)));
            }
            let _end = self.goes_on.ends_here();
            work();
            self.rest.store(0, Ordering::SeqCst);
        });
    }

    fn pull(&self, caller: usize, mut call: impl FnMut(&Key) -> RedisResult<i64>) {
        let start = Instant::now();
        loop {
            let over = !self.goes_on.goes_on();
            let mut idle = true;
            for index in 0..self.keys.len() {
                let key = &self.keys[(index + caller * 3) % self.keys.len()];
                while self.total() >= self.most.load(Ordering::SeqCst) && self.goes_on.goes_on() {
                    sleep(ms(1));
                }
                idle &= self.in_flight.run(caller, || match call(key) {
                    Ok(granted) => {
                        key.granted.fetch_add(granted, Ordering::SeqCst);
                        granted == 0
                    }
                    Err(error) => {
                        self.errors.lock().expect("errors").insert(kind(&error));
                        sleep(ms(5));
                        false
                    }
                });
                sleep(Duration::from_micros(self.rest.load(Ordering::Relaxed)));
            }
            // All keys have denied a call since the end of the work.
            if over && idle {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(180), "the load does not end");
        }
        self.in_flight.leave(caller);
    }

    /// The errors that the callers got, except `CLUSTERDOWN`: on a busy machine, the nodes can lose sight of each other for a moment.
    fn errors(&self) -> Vec<String> {
        self.errors.lock().expect("errors").iter().filter(|error| *error != "CLUSTERDOWN").cloned().collect()
    }
}

fn kind(error: &RedisError) -> String {
    error.code().map_or_else(|| "connection".into(), ToString::to_string)
}

/// Callers that are cluster clients.
fn by_cluster<'a>(cluster_client: &'a ClusterClient) -> impl Fn(usize) -> Call<'a> + Sync {
    move |_| {
        let mut caller = Caller::new(cluster_client);
        Box::new(move |key| Ok(caller.limit(&key.name, &key.call)?[0]))
    }
}

/// How many units the cluster reports as used for each key.
fn used_now(fleet: &Fleet, keys: &[Key]) -> Vec<i64> {
    let used_of = |key: &Key| {
        let mut client = fleet.client(fleet.primary(fleet.shard(fleet.slot(&key.name))));
        used(&mut client, std::iter::once(key.name.as_str()))[0]
    };
    keys.iter().map(used_of).collect()
}

/// Panics unless each key has granted its limit exactly, and reports it as used.
fn assert_exact(fleet: &Fleet, keys: &[Key]) {
    for (key, used) in keys.iter().zip(used_now(fleet, keys)) {
        assert_eq!((key.granted(), used), (LIMIT, LIMIT), "{}", key.name);
    }
}

#[test]
fn a_slot_that_moves_under_load_grants_to_the_unit() {
    let _alone = alone();
    moves_under_load(Fleet::start(&[]), Fleet::move_slot);
}

#[test]
fn a_slot_that_moves_as_a_whole_under_load_grants_to_the_unit() {
    let _alone = alone();
    let fleet = Fleet::start(&[]);
    let version: String = call(&mut fleet.client(0), "INFO server");
    let version = |field: &str| {
        let text = version.lines().find_map(|line| line.strip_prefix(field))?;
        let mut numbers = text.split('.').map(|number| number.trim().parse::<u32>().expect("a number"));
        Some((numbers.next()?, numbers.next()?))
    };
    let expected = match version("valkey_version:") {
        Some(version) => version >= (9, 0),
        None => version("redis_version:").is_some_and(|version| version >= (8, 4)),
    };
    assert_eq!(fleet.moves_whole_slots(), expected);
    if expected {
        moves_under_load(fleet, Fleet::move_whole_slot);
    }
}

/// Moves slots to and fro, while clients use up keys in them.
fn moves_under_load(mut fleet: Fleet, move_slot: impl Fn(&Fleet, u16, usize)) {
    let tags = fleet.tags(0, 3);
    let slots: Vec<_> = tags.iter().map(|tag| fleet.slot(tag)).collect();
    let keys = keys(&tags);
    let cluster_client = fleet.cluster_client();
    // Charges and leases whose ids move along.
    let mut caller = Caller::new(&cluster_client);
    let with_ids: Vec<(&str, String, String)> = tags
        .iter()
        .flat_map(|tag| ["FIXED", "SLIDE", "GCRA", "BUCKET", "LEASE"].map(|limiter| (tag, limiter)))
        .map(|(tag, limiter)| {
            (&**tag, format!("RL.{limiter} {tag}ids:{limiter} 10 1d COST 4 ID a"), format!("{tag}ids:{limiter}"))
        })
        .collect();
    for (tag, charge, _) in &with_ids {
        let row = caller.call::<[i64; 5]>(tag, &command(charge)).expect("a reply");
        assert_eq!(row[..3], [4, 10, 6], "{charge}");
    }
    let load = Load::new(&keys, ms(20));
    let share = LIMIT * keys.len() as i64 / 5;
    load.most.store(share, Ordering::SeqCst);
    load.during(by_cluster(&cluster_client), || {
        for to in [1, 0, 1, 0] {
            let before = load.total();
            for &slot in &slots {
                move_slot(&fleet, slot, to);
            }
            // The callers have units left for each of these moves, however long the moves take.
            load.most.fetch_add(share, Ordering::SeqCst);
            wait_for("grants in between", || load.total() > before);
        }
    });
    assert_eq!(load.errors(), [""; 0], "the client follows redirects, so that its callers see no error");
    assert_exact(&fleet, &keys);
    assert_eq!(fleet.assert_replicated(), keys.len() + with_ids.len());
    for (tag, charge, name) in &with_ids {
        let again = caller.call::<[i64; 5]>(tag, &command(charge)).expect("a reply");
        assert_eq!(again[..3], [4, 10, 6], "{charge}");
        let released = caller.call::<Option<[i64; 5]>>(tag, &command(&format!("RL.RELEASE {name} a"))).expect("a reply");
        assert_eq!(released.map(|row| row[2]), Some(10), "{name}");
    }
    fleet.assert_healthy();
}

// ---- Failover ----

/// Kills the primary of shard 0 while its replica lags behind. Returns what the replica holds of each key, and what callers
/// had been granted by then. The replica does not take over yet.
fn kill_ahead_of_replica<T>(fleet: &mut Fleet, load: &Load<'_>, look: impl Fn(&Key) -> T) -> (Vec<i64>, Vec<T>) {
    let (primary, replica) = (fleet.primary(0), Fleet::partner(fleet.primary(0)));
    let all = LIMIT * load.keys.len() as i64;
    wait_for("some grants", || load.total() > all / 4);
    // The connection to the replica is cut first, because what the primary has sent already would still arrive there.
    fleet.signal(replica, "STOP");
    let mut client = fleet.client(primary);
    let mut used_there = || used(&mut client, names(load.keys)).into_iter().sum::<i64>();
    call::<()>(&mut fleet.client(primary), "CLIENT KILL TYPE replica");
    // The replica gets none of the later grants. Some of these must have been answered when the primary is killed.
    let sent = used_there();
    wait_for("grants that the replica does not get", || load.total() > sent + 5);
    fleet.kill(primary);
    fleet.signal(replica, "CONT");
    load.in_flight.wait_for_earlier();
    let surviving = fleet.without_primary(replica, |client| used(client, names(load.keys)));
    (surviving, load.keys.iter().map(look).collect())
}

#[test]
fn a_crash_loses_what_was_not_replicated_and_no_more() {
    let _alone = alone();
    let mut fleet = Fleet::start(&[]);
    let keys = keys(&fleet.tags(0, 3));
    let cluster_client = fleet.cluster_client();
    let load = Load::new(&keys, ms(3));
    let primary = fleet.primary(0);
    let (mut surviving, mut acknowledged) = (Vec::new(), Vec::new());
    load.during(by_cluster(&cluster_client), || {
        (surviving, acknowledged) = kill_ahead_of_replica(&mut fleet, &load, Key::granted);
        fleet.take_over(Fleet::partner(primary));
    });
    let lost: i64 = acknowledged.iter().zip(&surviving).map(|(acknowledged, surviving)| acknowledged - surviving).sum();
    assert!(lost > 0, "the replica did lag: {lost}");
    for ((key, surviving), acknowledged) in keys.iter().zip(surviving).zip(acknowledged) {
        let (granted, name) = (key.granted(), &key.name);
        assert!(
            granted - LIMIT <= acknowledged - surviving,
            "{name}: {granted}, {acknowledged} at the kill, of which {surviving} stayed"
        );
        // The new primary has granted exactly what its record had left.
        assert_eq!(granted - acknowledged, LIMIT - surviving, "{name}");
    }
    assert_eq!(used_now(&fleet, &keys), vec![LIMIT; keys.len()]);
    // The old primary becomes a replica, and loses the grants that only it had.
    fleet.restart(primary);
    assert_eq!(fleet.assert_replicated(), keys.len());
    assert_eq!(fleet.primary(0), Fleet::partner(primary));
    fleet.assert_healthy();
}

#[test]
fn grants_acknowledged_by_wait_survive_a_crash() {
    let _alone = alone();
    let mut fleet = Fleet::start(&[]);
    let keys = keys(&fleet.tags(0, 3));
    let load = Load::new(&keys, ms(2));
    let primary = fleet.primary(0);
    // WAIT waits for the writes of its own connection, so each caller keeps one connection to each node of the shard.
    let addresses = [primary, Fleet::partner(primary)].map(|index| format!("redis://127.0.0.1:{}", fleet.node(index).port));
    let call = |caller: usize| -> Call<'_> {
        let (addresses, mut turn, mut connection) = (addresses.clone(), caller, None);
        Box::new(move |key| {
            let mut ask = || {
                let client = match &mut connection {
                    Some(client) => client,
                    none => none.insert(redis::Client::open(addresses[turn % 2].as_str())?.get_connection()?),
                };
                let (row, replicas): ([i64; 5], i64) = pipe([&*key.call, "WAIT 1 1000"]).query(client)?;
                if replicas > 0 {
                    key.safe.fetch_add(row[0], Ordering::SeqCst);
                }
                Ok(row[0])
            };
            ask().inspect_err(|_| (turn, connection) = (turn + 1, None))
        })
    };
    let (mut surviving, mut safe) = (Vec::new(), Vec::new());
    load.during(call, || {
        (surviving, safe) = kill_ahead_of_replica(&mut fleet, &load, |key| key.safe.load(Ordering::SeqCst));
        fleet.take_over(Fleet::partner(primary));
        fleet.restart(primary);
        fleet.settle();
    });
    assert!(safe.iter().sum::<i64>() > 0);
    for ((key, surviving), safe) in keys.iter().zip(surviving).zip(safe) {
        assert!(surviving >= safe, "{}: {safe} were acknowledged, {surviving} are left", key.name);
        assert!(key.safe.load(Ordering::SeqCst) <= LIMIT, "{}", key.name);
    }
    assert_eq!(used_now(&fleet, &keys), vec![LIMIT; keys.len()]);
    fleet.assert_replicated();
    fleet.assert_healthy();
}

#[test]
fn a_coordinated_failover_loses_nothing() {
    let _alone = alone();
    let mut fleet = Fleet::start(&[]);
    let tags: Vec<_> = (0..SHARDS).flat_map(|shard| fleet.tags(shard, 1)).collect();
    let keys = keys(&tags);
    let cluster_client = fleet.cluster_client();
    let load = Load::new(&keys, ms(8));
    let share = LIMIT * keys.len() as i64 / 4;
    load.most.store(share, Ordering::SeqCst);
    load.during(by_cluster(&cluster_client), || {
        for shard in 0..SHARDS {
            assert_eq!(fleet.fail_over(shard), shard + SHARDS);
            // The callers have units left for each failover, however long it takes.
            load.most.fetch_add(share, Ordering::SeqCst);
        }
    });
    assert_eq!(load.errors(), [""; 0]);
    assert_exact(&fleet, &keys);
    assert_eq!(fleet.assert_replicated(), keys.len());
    fleet.assert_healthy();
}

// ---- Clients that wait ----

#[test]
fn waiters_are_granted_while_slots_move_and_primaries_change() {
    let _alone = alone();
    let mut fleet = Fleet::start(&[]);
    let tag = fleet.tags(0, 1).remove(0);
    let slot = fleet.slot(&tag);
    let cluster_client = fleet.cluster_client();
    let limiters = ["FIXED", "SLIDE", "GCRA", "BUCKET"];
    let key = |limiter: &str| format!("{tag}{limiter}");
    for limiter in limiters {
        let mut client = fleet.client(fleet.primary(0));
        assert_eq!(limit(&mut client, &format!("RL.{limiter} {} 5 12h COST 5", key(limiter)))[0], 5);
    }
    let (load, waiting) = (support::Load::default(), AtomicI64::new(0));
    let granted: Vec<AtomicI64> = (0..limiters.len()).map(|_| AtomicI64::new(0)).collect();
    let (paced, errors) = (AtomicI64::new(0), Mutex::new(BTreeSet::new()));
    // Calls until the call is granted. Each error must be one after which a client may call again.
    let call_until_ok = |caller: &mut Caller, key: &str, words: &str| {
        let start = Instant::now();
        loop {
            match caller.limit(key, words) {
                Ok(row) => return row[0],
                Err(error) => {
                    let kind = kind(&error);
                    let again = ["connection", "TRYAGAIN", "UNBLOCKED", "MOVED", "ASK", "CLUSTERDOWN", "READONLY"];
                    assert!(again.contains(&kind.as_str()), "{words}: {error}");
                    errors.lock().expect("errors").insert(kind);
                }
            }
            assert!(start.elapsed() < Duration::from_secs(90), "{words}: never granted");
        }
    };
    let start = Instant::now();
    let mut refunded = vec![0; limiters.len()];
    std::thread::scope(|scope| {
        for (index, limiter) in limiters.into_iter().enumerate() {
            for _ in 0..3 {
                waiting.fetch_add(1, Ordering::SeqCst);
                let (call_until_ok, load, waiting, granted, cluster_client, key) =
                    (&call_until_ok, &load, &waiting, &granted, &cluster_client, key(limiter));
                scope.spawn(move || {
                    let _gone = Gone(waiting);
                    let mut caller = Caller::new(cluster_client);
                    while load.goes_on() {
                        let got = call_until_ok(&mut caller, &key, &format!("RL.{limiter} {key} 5 12h BLOCK 1d"));
                        assert_eq!(got, 1, "{limiter}: the call is granted before its timeout");
                        granted[index].fetch_add(got, Ordering::SeqCst);
                    }
                });
            }
        }
        // These calls come evenly spaced, and wait each time.
        for _ in 0..3 {
            scope.spawn(|| {
                let mut caller = Caller::new(&cluster_client);
                while load.goes_on() {
                    let pace = key("pace");
                    paced.fetch_add(
                        call_until_ok(&mut caller, &pace, &format!("RL.GCRA {pace} 100 1 BURST 1 BLOCK 20")),
                        Ordering::SeqCst,
                    );
                }
            });
        }
        let refunds = scope.spawn(|| {
            let mut caller = Caller::new(&cluster_client);
            while waiting.load(Ordering::SeqCst) > 0 {
                for (index, limiter) in limiters.into_iter().enumerate() {
                    // A refund of a unit of which a part has drained returns less than a unit. So some whole units stay in
                    // use.
                    if 5 + granted[index].load(Ordering::SeqCst) - refunded[index] < 3 {
                        continue;
                    }
                    let key = key(limiter);
                    refunded[index] += call_until_ok(&mut caller, &key, &format!("RL.{limiter} {key} 5 12h REFUND 1"));
                }
                sleep(ms(2));
            }
        });
        {
            let _end = load.ends_here();
            let total = || granted.iter().map(|granted| granted.load(Ordering::SeqCst)).sum::<i64>();
            let goes_on = |what: &str| {
                let before = (total(), paced.load(Ordering::SeqCst));
                wait_for(what, || total() > before.0 + 20 && paced.load(Ordering::SeqCst) > before.1 + 5);
            };
            goes_on("grants");
            for round in 0..3 {
                for to in [1, 2, 0] {
                    fleet.move_slot(slot, to);
                    goes_on("grants after a move");
                }
                if round < 2 {
                    fleet.fail_over(0);
                    goes_on("grants after a failover");
                }
            }
        }
        refunds.join().expect("refunds");
    });
    let elapsed = start.elapsed();
    for (index, limiter) in limiters.into_iter().enumerate() {
        let granted = 5 + granted[index].load(Ordering::SeqCst);
        let mut client = fleet.client(fleet.primary(0));
        let used = used(&mut client, std::iter::once(key(limiter).as_str()))[0];
        assert_eq!(granted - refunded[index], used, "{limiter}: {granted} granted, {} given back", refunded[index]);
        assert!(used <= 5, "{limiter}: {used}");
    }
    let most = 1 + elapsed.as_millis() as i64 / 10;
    let paced = paced.load(Ordering::SeqCst);
    assert!(paced <= most, "{paced} of {most}");
    for index in (0..SHARDS).map(|shard| fleet.primary(shard)) {
        assert_eq!(support::held(&mut fleet.client(index)), 0, "clients still wait on node {index}");
    }
    let mut client = fleet.client(fleet.primary(0));
    wait_for("the short limit's key to go", || call::<i64>(&mut client, &format!("EXISTS {}", key("pace"))) == 0);
    assert_eq!(fleet.assert_replicated(), limiters.len());
    fleet.assert_healthy();
}

/// Counts one waiting client less when it is dropped.
struct Gone<'a>(&'a AtomicI64);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_client_that_is_due_when_its_key_expires_is_granted() {
    let _alone = alone();
    let mut node = Server::node();
    call::<()>(&mut node.client(), "CLUSTER ADDSLOTSRANGE 0 16383");
    wait_for("the cluster", || call::<String>(&mut node.client(), "CLUSTER INFO").contains("cluster_state:ok"));
    let (load, granted) = (support::Load::default(), AtomicU64::new(0));
    let wait = || {
        let _end = load.ends_here();
        wait_for("grants", || granted.load(Ordering::Relaxed) > 5_000);
    };
    // The server deletes the key because it has expired, while the module is deciding which client is next.
    crowd_while(&node, 60, wait, |caller, client| {
        while load.goes_on() {
            assert_eq!(limit(client, &format!("RL.FIXED key{caller} 1 5ms BLOCK 30"))[0], 1);
            granted.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(node.is_alive());
}

#[test]
fn a_pause_moves_with_its_slot() {
    let _alone = alone();
    let mut fleet = Fleet::start(&[]);
    let tag = fleet.tags(0, 1).remove(0);
    let slot = fleet.slot(&tag);
    let mut client = fleet.client(fleet.primary(0));
    assert_eq!(limit(&mut client, &format!("RL.SLIDE {tag} 5 12h COST 2 ID a"))[0], 2);
    assert_eq!(call::<i64>(&mut client, &format!("RL.PAUSE {tag} 24h")), 86_400_000);
    let before = support::snapshot(&mut client, &tag);
    let mut waiting = Held::send(fleet.node(fleet.primary(0)), &format!("RL.SLIDE {tag} 5 12h BLOCK 1d"));
    fleet.move_slot(slot, 1);
    let error = waiting.reply().row.expect_err("the key is gone");
    assert!(error.starts_with("TRYAGAIN "), "{error}");
    if fleet.moves_whole_slots() {
        fleet.move_whole_slot(slot, 2);
        fleet.move_whole_slot(slot, 1);
    }
    let mut client = fleet.client(fleet.primary(1));
    // The time to live begins anew on the new node, so the key's deadline is later by the time that the move takes.
    let after = support::snapshot(&mut client, &tag);
    assert!(after.value == before.value && after.deadline_ms >= before.deadline_ms, "{before:?} became {after:?}");
    assert_eq!(limit(&mut client, &format!("RL.SLIDE {tag} 5 12h"))[..3], [0, 5, 0]);
    let waiting = Held::send(fleet.node(fleet.primary(1)), &format!("RL.SLIDE {tag} 5 12h BLOCK 1d"));
    assert_eq!(call::<i64>(&mut client, &format!("RL.PAUSE {tag} 0")), 0);
    assert_eq!(waiting.row()[..3], [1, 5, 2]);
    assert_eq!(fleet.assert_replicated(), 1);
    fleet.assert_healthy();
}

#[test]
fn the_move_of_a_slot_as_a_whole_ends_waits() {
    let _alone = alone();
    let mut fleet = Fleet::start(&[]);
    if !fleet.moves_whole_slots() {
        return;
    }
    let tags = fleet.tags(0, 2);
    let slot = fleet.slot(&tags[0]);
    let wait = |shard: usize, tag: &str| {
        let node = fleet.node(fleet.primary(shard));
        Held::send(node, &format!("RL.GCRA {tag} 5 12h BLOCK 1d"))
    };
    for tag in &tags {
        assert_eq!(limit(&mut fleet.client(fleet.primary(0)), &format!("RL.GCRA {tag} 5 12h COST 5"))[0], 5);
    }
    let stays = wait(0, &tags[1]);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let mut moved = wait(from, &tags[0]);
        fleet.move_whole_slot(slot, to);
        let error = moved.reply().row.expect_err("the key is gone");
        assert!(error.starts_with("TRYAGAIN "), "{error}");
    }
    let mut client = fleet.client(fleet.primary(0));
    assert_eq!(support::held(&mut client), 1, "a call that waits for a key of another slot still waits");
    assert_eq!(limit(&mut client, &format!("RL.GCRA {} 5 12h REFUND 1", tags[1]))[..2], [1, 5]);
    assert_eq!(stays.row()[0], 1);
    fleet.assert_healthy();
}

#[test]
fn a_failover_ends_waits() {
    let _alone = alone();
    let mut fleet = Fleet::start(&[]);
    let tag = fleet.tags(0, 1).remove(0);
    let old = fleet.primary(0);
    assert_eq!(limit(&mut fleet.client(old), &format!("RL.GCRA {tag} 5 12h COST 5"))[0], 5);
    let waiting = Held::send(fleet.node(old), &format!("RL.GCRA {tag} 5 12h BLOCK 1d"));
    fleet.fail_over(0);
    // The wait has ended, or ends within a second of the server's clock.
    let mut client = fleet.client(old);
    let failed_over = time_us(&mut client);
    while support::held(&mut client) > 0 {
        sleep(ms(20));
        assert!(time_us(&mut client) < failed_over + 1_500_000, "the call still waits");
    }
    let error = replies([waiting]).remove(0).row.expect_err("no grant by a node that is a replica now");
    assert!(error.starts_with("UNBLOCKED ") || error.starts_with("TRYAGAIN ") || error.starts_with("MOVED "), "{error}");
    fleet.assert_healthy();
}
