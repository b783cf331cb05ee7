//! Calls of `RL.ALL` in a cluster, whose keys share a slot: while the slot moves and primaries change, each call is charged on all
//! its keys once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::cluster::ClusterClient;
use redis::{FromRedisValue, RedisError, Value};
use support::fleet::{used, Caller, Fleet, SHARDS};
use support::{command, held, info, wait_for, AllRows, Load};

const LIMIT: i64 = 6;
const KINDS: [&str; 5] = ["FIXED", "SLIDE", "GCRA", "BUCKET", "LEASE"];
const CALLERS: usize = 24;
/// The callers that keep what their last call took.
const KEEPERS: usize = 2;

/// Releases an id on all its keys at once.
const RELEASE: &str =
    "#!lua\nlocal known = 0 for _, key in ipairs(KEYS) do if redis.call('RL.RELEASE', key, ARGV[1]) then known = known + 1 end end return known";

/// The callers, and what they have counted.
struct Crowd<'a> {
    tag: &'a str,
    cluster: &'a ClusterClient,
    load: Load,
    units: [AtomicI64; KINDS.len()],
    granted: AtomicU64,
    errors: Mutex<BTreeSet<String>>,
}

impl Crowd<'_> {
    fn key(&self, kind: usize) -> String {
        format!("{}{}", self.tag, KINDS[kind])
    }

    /// Repeats a command until there is a reply. Each error must be one after which a client may call again.
    fn call<T: FromRedisValue>(&self, caller: &mut Caller, command: &redis::Cmd) -> T {
        let start = Instant::now();
        loop {
            match caller.call(self.tag, command) {
                Ok(reply) => return reply,
                Err(error) => {
                    let kind = kind(&error);
                    let again = ["connection", "TRYAGAIN", "UNBLOCKED", "MOVED", "ASK", "CLUSTERDOWN", "READONLY"];
                    assert!(again.contains(&kind.as_str()), "{error}");
                    self.errors.lock().expect("errors").insert(kind);
                    sleep(Duration::from_millis(5));
                }
            }
            assert!(start.elapsed() < Duration::from_secs(90), "no reply");
        }
    }

    fn work(&self, number: usize) {
        let mut caller = Caller::new(self.cluster);
        for round in 0.. {
            // Two to four keys, in an order that differs from call to call.
            let first = (number + round * round) % KINDS.len();
            let kinds: Vec<_> =
                (0..2 + (number + round) % 3).map(|step| (first + step * [1, 4][round % 2]) % KINDS.len()).collect();
            let cost = 1 + (number + round) as i64 % 2;
            let (keys, id) = (kinds.iter().map(|&kind| self.key(kind)).collect::<Vec<_>>(), format!("{number}:{round}"));
            let rules: Vec<_> = kinds.iter().map(|&kind| format!("{} {LIMIT} 12h COST {cost}", KINDS[kind])).collect();
            let words = format!("RL.ALL {} {} {} ID {id} BLOCK 2", keys.len(), keys.join(" "), rules.join(" "));
            let start = Instant::now();
            let rows = loop {
                let (granted, _, rows): AllRows = self.call(&mut caller, &command(&words));
                if granted == 1 {
                    break rows;
                }
                // A denied call is charged nowhere, so that none of its keys answers as to a retry.
                assert!(rows.iter().any(|row| row[0] == 0), "{words}: {rows:?}");
                assert!(start.elapsed() < Duration::from_secs(90), "{words}: never granted");
            };
            assert!(rows.iter().all(|row| row[0] == cost), "{words}: {rows:?}");
            kinds.iter().for_each(|&kind| {
                self.units[kind].fetch_add(cost, Ordering::SeqCst);
            });
            self.granted.fetch_add(1, Ordering::SeqCst);
            let over = !self.load.goes_on();
            if over && number < KEEPERS {
                return;
            }
            // A release whose reply was lost is repeated, and then finds nothing.
            let mut release = redis::cmd("EVAL");
            release.arg(RELEASE).arg(keys.len()).arg(&keys).arg(&id);
            let known: usize = self.call(&mut caller, &release);
            assert!(known == 0 || known == keys.len(), "{words}: {known} keys remembered it");
            kinds.iter().for_each(|&kind| {
                self.units[kind].fetch_sub(cost, Ordering::SeqCst);
            });
            if over {
                return;
            }
        }
    }
}

fn kind(error: &RedisError) -> String {
    error.code().map_or_else(|| "connection".into(), ToString::to_string)
}

#[test]
fn calls_are_charged_once_on_all_keys_while_slots_move_and_primaries_change() {
    let _alone = crate::cluster::alone();
    let mut fleet = Fleet::start(&[]);
    let tag = fleet.tags(0, 1).remove(0);
    let slot = fleet.slot(&tag);
    let cluster = fleet.cluster_client();
    let crowd = Crowd {
        tag: &tag,
        cluster: &cluster,
        load: Load::default(),
        units: Default::default(),
        granted: AtomicU64::new(0),
        errors: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for number in 0..CALLERS {
            let crowd = &crowd;
            scope.spawn(move || crowd.work(number));
        }
        let _end = crowd.load.ends_here();
        let goes_on = |what: &str| {
            let before = crowd.granted.load(Ordering::SeqCst);
            wait_for(what, || crowd.granted.load(Ordering::SeqCst) > before + 40);
        };
        goes_on("grants");
        for round in 0..2 {
            for to in [1, 2, 0] {
                fleet.move_slot(slot, to);
                goes_on("grants after a move");
            }
            if round == 0 {
                fleet.fail_over(0);
                goes_on("grants after a failover");
            }
        }
    });
    println!("{:?} calls granted, and these errors: {:?}", crowd.granted, crowd.errors);
    let names: Vec<_> = (0..KINDS.len()).map(|kind| crowd.key(kind)).collect();
    let mut client = fleet.client(fleet.primary(fleet.shard(slot)));
    let in_use = used(&mut client, names.iter().map(String::as_str));
    let counted: Vec<_> = crowd.units.iter().map(|units| units.load(Ordering::SeqCst)).collect();
    assert_eq!(in_use, counted);
    assert!(counted.iter().sum::<i64>() > 0 && counted.iter().all(|units| (0..=LIMIT).contains(units)), "{counted:?}");
    for index in (0..SHARDS).map(|shard| fleet.primary(shard)) {
        let mut client = fleet.client(index);
        assert_eq!((held(&mut client), info(&mut client, "rl", "rl_waiting_clients")), (0, 0), "node {index}");
    }
    fleet.assert_replicated();
    fleet.assert_healthy();
    // A call whose keys lie in several slots is refused, whatever follows its rules.
    let apart: Result<Value, _> =
        command("RL.ALL 2 {a}1 {b}1 LEASE 5 1h FIXED 5 1h ID x BLOCK 1").query(&mut fleet.client(fleet.primary(0)));
    assert_eq!(apart.expect_err("an error").code(), Some("CROSSSLOT"));
}
