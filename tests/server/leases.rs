//! Leases: how many units are held at the same time.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{Connection, Value};
use support::witness::{timed, Watched, A_FEW};
use support::{
    at_once, call, command, crowd, error, held, info, limit, settle, snapshot, time_us, wait_for, Held, Resp, Server,
    LIMITERS,
};

/// Waits until the server's clock has passed this time.
fn let_pass(client: &mut Connection, until_us: i64) {
    wait_for("time to pass", || time_us(client) > until_us);
}

#[test]
fn a_lease_holds_units_until_it_is_released() {
    let (_server, mut client) = Server::start().and_client();
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID a"), [1, 3, 2, 0, 3_600_000]);
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID b COST 2")[..4], [2, 3, 0, 0]);
    let denied = limit(&mut client, "RL.LEASE key 3 1h ID c");
    assert!(denied[..3] == [0, 3, 0] && (1..=3_600_000).contains(&denied[3]), "{denied:?}");
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID c COST 4")[..4], [0, 3, 0, -1]);
    assert_eq!(limit(&mut client, "RL.PEEK LEASE key 3 1h")[0], 0);
    // A renewal takes nothing, and needs no COST.
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID b")[..4], [2, 3, 0, 0]);
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID b COST 2 RENEW")[..4], [2, 3, 0, 0]);
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID c RENEW")[..4], [0, 3, 0, -1]);
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID c RENEW BLOCK 1d")[..4], [0, 3, 0, -1]);
    // A lowered limit takes nothing from anybody, and a limit of 0 denies all.
    assert_eq!(limit(&mut client, "RL.LEASE key 1 1h ID b")[..4], [2, 1, 0, 0]);
    for rest in ["ID b", "ID b RENEW", "ID c", "ID c RENEW", "ID c BLOCK 10"] {
        assert_eq!(limit(&mut client, &format!("RL.LEASE key 0 1h {rest}")), [0, 0, 0, -1, 0], "{rest}");
    }
    let row = settle(&mut client, "RL.RELEASE key b").expect("a lease");
    assert_eq!(row[0], 0);
    assert_eq!(settle(&mut client, "RL.RELEASE key b"), None);
    assert_eq!(limit(&mut client, "RL.PEEK LEASE key 3 1h COST 2")[..4], [2, 3, 2, 0]);
    // SETTLE to 0 ends a lease, too. With the last one the key ends.
    assert!(settle(&mut client, "RL.SETTLE key a 0").is_some());
    assert_eq!(call::<i64>(&mut client, "EXISTS key"), 0);
    assert_eq!(limit(&mut client, "RL.PEEK LEASE key 3 1h"), [1, 3, 3, 0, 0]);
}

#[test]
fn a_lapsed_lease_is_not_revived() {
    let (_server, mut client) = Server::start().and_client();
    let (row, _, after) = timed(&mut client, "RL.LEASE key 1 200ms ID a");
    assert_eq!(row, [1, 1, 0, 0, 200]);
    assert!((1..=400).contains(&call::<i64>(&mut client, "PTTL key")));
    let_pass(&mut client, after + 200_000);
    assert_eq!(limit(&mut client, "RL.LEASE key 1 200ms ID a RENEW")[..4], [0, 1, 1, -1]);
    assert_eq!(settle(&mut client, "RL.RELEASE key a"), None);
    // The successor's units are not touched by what the predecessor does.
    assert_eq!(limit(&mut client, "RL.LEASE key 1 1h ID b")[0], 1);
    assert_eq!(limit(&mut client, "RL.LEASE key 1 1h ID a")[0], 0);
    assert_eq!(limit(&mut client, "RL.LEASE key 1 1h ID a RENEW")[0], 0);
    assert_eq!(settle(&mut client, "RL.RELEASE key a"), None);
    assert_eq!(limit(&mut client, "RL.LEASE key 1 1h ID b RENEW")[0], 1);
}

#[test]
fn a_renewal_moves_the_deadline_and_never_shortens_it() {
    let (_server, mut client) = Server::start().and_client();
    limit(&mut client, "RL.LEASE key 2 1h ID a");
    assert_eq!(limit(&mut client, "RL.LEASE key 2 2h ID a")[4], 7_200_000);
    let row = limit(&mut client, "RL.LEASE key 2 1m ID a");
    assert!(row[0] == 1 && row[4] > 7_100_000, "{row:?}");
    let left = call::<i64>(&mut client, "PTTL key");
    assert!((7_100_000..=9_000_000).contains(&left), "{left}");
}

#[test]
fn inspection_lists_the_holders() {
    let server = Server::start();
    let mut client = server.client_of(Resp::Three);
    for holder in 0..120 {
        limit(&mut client, &format!("RL.LEASE key 1000 {} ID worker:{holder} COST 2", 4_000 - holder));
    }
    let facts: BTreeMap<String, Value> = call(&mut client, "RL.INSPECT key");
    let number = |name: &str| redis::from_redis_value::<i64>(facts[name].clone()).expect("a number");
    assert_eq!(["limit", "held", "remaining", "leases", "waiting"].map(number), [1_000, 240, 760, 120, 0]);
    assert_eq!(facts["algorithm"], Value::BulkString(b"LEASE".into()));
    assert_eq!(number("ttl_ms"), 3_881_000);
    // The 100 that lapse first.
    let holders: Vec<BTreeMap<String, Value>> = redis::from_redis_value(facts["holders"].clone()).expect("maps");
    assert_eq!(holders.len(), 100);
    for (index, holder) in holders.iter().enumerate() {
        assert_eq!(holder["id"], Value::BulkString(format!("worker:{}", 119 - index).into()));
        assert_eq!(holder["units"], Value::Int(2));
        let left = redis::from_redis_value::<i64>(holder["left_ms"].clone()).expect("a time");
        assert!((3_000_000..=4_000_000).contains(&left), "{left}");
    }
    let flat: Vec<Value> = call(&mut server.client(), "RL.INSPECT key");
    assert_eq!(flat.len(), 2 * facts.len());
    let holders = flat.iter().position(|value| value == &Value::BulkString(b"holders".into())).expect("holders");
    let holders: Vec<Vec<Value>> = redis::from_redis_value(flat[holders + 1].clone()).expect("arrays");
    assert!(holders.len() == 100 && holders.iter().all(|holder| holder.len() == 6));
}

#[test]
fn info_top_and_events_show_leases() {
    let (server, mut client) = Watched::with(&["--notify-keyspace-events", "KEd"]).and_client();
    limit(&mut client, "RL.LEASE key 1 1h ID a");
    limit(&mut client, "RL.LEASE key 1 1h ID a");
    limit(&mut client, "RL.LEASE key 1 1h ID b");
    limit(&mut client, "RL.LEASE key 1 1h ID b RENEW");
    settle(&mut client, "RL.RELEASE key b");
    let events = |server: &Watched| ["rl.lease", "rl.denied"].map(|event| server.events(event, "key").len());
    assert_eq!(events(&server), [2, 2]);
    settle(&mut client, "RL.RELEASE key a");
    assert_eq!(events(&server), [3, 2]);
    let counts = ["lease_calls", "lease_granted", "lease_denied", "settled", "released", "retried"];
    assert_eq!(counts.map(|what| info(&mut client, "rl", &format!("rl_{what}"))), [4, 2, 2, 0, 1, 0]);
    let top: Vec<Vec<Value>> = call(&mut client, "RL.TOP");
    assert_eq!((top.len(), &top[0][1], &top[0][5]), (1, &Value::BulkString(b"key".into()), &Value::Int(2)));
}

#[test]
fn acl_rules_bind_the_commands() {
    let (server, mut owner) = Server::start().and_client();
    call::<()>(&mut owner, "ACL SETUSER someone on >secret ~mine:* +@all");
    let mut client = server.client();
    call::<()>(&mut client, "AUTH someone secret");
    assert_eq!(limit(&mut client, "RL.LEASE mine:a 1 1h ID a")[0], 1);
    for words in ["RL.LEASE other 1 1h ID a", "RL.RELEASE other a", "RL.SETTLE other a 1", "RL.PEEK LEASE other 1 1h"] {
        assert!(error(&mut client, &command(words)).starts_with("NOPERM"), "{words}");
    }
    let (_replica, mut client) = Server::on_port(&["--replicaof", "127.0.0.1 1"]).and_client();
    for words in ["RL.LEASE key 1 1h ID a", "RL.RELEASE key a", "RL.SETTLE key a 1"] {
        assert!(error(&mut client, &command(words)).starts_with("READONLY"), "{words}");
    }
}

// ---- Out of memory ----

#[test]
fn giving_back_and_renewing_work_without_memory() {
    const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4 ID a"));
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4 ID b"));
    }
    limit(&mut client, "RL.LEASE key 3 1h ID a COST 2");
    call::<()>(&mut client, "CONFIG SET maxmemory 1");
    let before = snapshot(&mut client, "key");
    for words in ["RL.LEASE key 3 1h ID b", "RL.LEASE key 3 1h ID b COST 3 BLOCK 1h", "RL.LEASE new 3 1h ID b"] {
        assert_eq!(error(&mut client, &command(words)), OOM, "{words}");
    }
    // The text is the server's own.
    assert_eq!(error(&mut client, &command("SET other 1")), OOM);
    assert_eq!((snapshot(&mut client, "key"), held(&mut client)), (before, 0));
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID b RENEW")[..4], [0, 3, 1, -1]);
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID a")[..4], [2, 3, 1, 0]);
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID a RENEW")[..4], [2, 3, 1, 0]);
    assert!(settle(&mut client, "RL.RELEASE key a").is_some());
    for name in LIMITERS {
        assert!(settle(&mut client, &format!("RL.RELEASE {name} a")).is_some(), "{name}");
        assert!(settle(&mut client, &format!("RL.SETTLE {name} b 9")).is_some(), "{name}");
    }
    // Where keys can be evicted, the server grants new leases, too.
    call::<()>(&mut client, "CONFIG SET maxmemory 0");
    call::<()>(&mut client, "FLUSHALL");
    for key in 0..3_000 {
        call::<()>(&mut client, &format!("SET fill:{key} {key} EX 10000"));
    }
    call::<()>(&mut client, "CONFIG SET maxmemory-policy allkeys-random");
    let used = info(&mut client, "memory", "used_memory");
    call::<()>(&mut client, &format!("CONFIG SET maxmemory {}", used - 10_000));
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID b")[0], 1);
}

// ---- Waiting ----

#[test]
fn a_release_grants_the_first_waiter_at_once() {
    let (server, mut client) = Watched::with(&[]).and_client();
    limit(&mut client, "RL.LEASE key 2 1h ID a COST 2");
    let calls = ["b COST 2", "c", "d"].map(|rest| format!("RL.LEASE key 2 1h ID {rest} BLOCK 30m"));
    // The wait in the denial would be an hour, but leases are usually given back earlier.
    let [b, c, d] = <[Held; 3]>::try_from(at_once(&server, calls).held).unwrap_or_else(|_| panic!("three waiters"));
    wait_for("the waiters", || held(&mut client) == 3);
    // A renewal does not wait, and a new lease does not overtake.
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID a")[0], 2);
    assert_eq!(limit(&mut client, "RL.LEASE key 3 1h ID e")[0], 0);
    for (id, waiters, left) in [("a", vec![b], 2), ("b", vec![c, d], 0)] {
        let before = time_us(&mut client);
        assert!(settle(&mut client, &format!("RL.RELEASE key {id}")).is_some());
        for mut waiter in waiters {
            let reply = waiter.reply();
            assert!(reply.granted() > 0, "{reply:?}");
            // The ttl counts from the answer.
            assert_eq!(reply.row.as_ref().expect("a row")[4], 3_600_000, "{reply:?}");
            server.assert_not_late("the lease of a waiter", before, reply.at_us(), A_FEW);
        }
        assert_eq!(held(&mut client), left);
    }
}

#[test]
fn a_lapse_grants_the_first_waiter() {
    let (server, mut client) = Watched::with(&[]).and_client();
    let (row, before, after) = timed(&mut client, "RL.LEASE key 1 300ms ID a");
    assert_eq!(row[0], 1);
    let reply = Held::send(&server, "RL.LEASE key 1 1h ID b BLOCK 1h").reply();
    assert_eq!(reply.granted(), 1);
    assert!(reply.at_us() >= before + 300_000, "{reply:?}");
    server.assert_not_late("the lease", after + 300_000, reply.at_us(), 50);
    // It is denied when its own time is over, or at once if no lapse can help.
    let before = time_us(&mut client);
    let reply = Held::send(&server, "RL.LEASE key 1 1h ID c BLOCK 200ms").reply();
    assert_eq!(reply.granted(), 0);
    assert!(reply.at_us() >= before + 200_000, "{reply:?}");
    assert_eq!(limit(&mut client, "RL.LEASE key 1 1h ID c COST 2 BLOCK 1h")[..4], [0, 1, 0, -1]);
    assert_eq!(limit(&mut client, "RL.LEASE key 0 1h ID c BLOCK 1h")[3], -1);
}

// ---- Never more than the limit ----

/// Holders take, renew and release leases, come too late, release twice, repeat calls, and crash while they wait or hold. Every
/// lease is recorded with the latest moment at which it can have begun and the earliest at which it can have ended.
#[test]
fn at_no_instant_are_more_units_held_than_the_limit() {
    const LIMIT: i64 = 5;
    const TTL_US: i64 = 40_000;
    let server = Server::start();
    let spans = crowd(&server, 8, |number, client| {
        let mut rng = fastrand::Rng::with_seed(number as u64);
        let mut spans: Vec<(i64, i64, i64)> = Vec::new();
        for turn in 0..150 {
            let id = format!("holder:{number}:{turn}");
            let cost = rng.i64(1..=3);
            let wait = ["", " BLOCK 100ms", " BLOCK 20ms"][rng.usize(..3)];
            let take = format!("RL.LEASE key {LIMIT} 40ms ID {id} COST {cost}{wait}");
            let (row, before, after) = timed(client, &take);
            if row[0] == 0 {
                continue;
            }
            assert_eq!(row[0], cost);
            // It has begun at `from` at the latest, and ends at `until` at the earliest.
            let (from, mut until) = (after, before + TTL_US);
            for _ in 0..rng.u64(..4) {
                std::thread::sleep(Duration::from_millis(rng.u64(..30)));
                let chance = rng.u64(..4);
                if chance == 0 {
                    // A crash.
                    break;
                }
                let (renew, release_it) = (format!("RL.LEASE key {LIMIT} 40ms ID {id} RENEW"), chance > 1);
                if release_it {
                    let before = time_us(client);
                    let released = settle(client, &format!("RL.RELEASE key {id}")).is_some();
                    assert_eq!(settle(client, &format!("RL.RELEASE key {id}")), None);
                    assert_eq!(limit(client, &renew)[0], 0);
                    if released {
                        until = before;
                    }
                    break;
                }
                let (row, before, _) = timed(client, &renew);
                if row[0] == 0 {
                    break;
                }
                assert_eq!(row[0], cost);
                until = before + TTL_US;
            }
            spans.push((from, until, cost));
        }
        spans
    });
    let spans: Vec<_> = spans.into_iter().flatten().collect();
    assert!(spans.len() > 100, "{}", spans.len());
    let mut events: Vec<(i64, i64)> = spans
        .iter()
        .filter(|(from, until, _)| from < until)
        .flat_map(|&(from, until, units)| [(from, units), (until, -units)])
        .collect();
    // Of events at the same moment, the ends come first.
    events.sort_unstable();
    let (mut held, mut most) = (0, 0);
    for (at, units) in events {
        held += units;
        most = most.max(held);
        assert!(held <= LIMIT, "{held} units at {at}");
    }
    assert!(most >= LIMIT - 1, "{most}");
}
