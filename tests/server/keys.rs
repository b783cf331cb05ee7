//! Keys: their deadlines, what a denial changes, values that are no limiters, and memory.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Connection, Value};
use redis_rl::commands::parsers::{parse_lease, parse_limit, parse_release, parse_settle};
use redis_rl::limiter::{settle, Bytes, Change, Instant, Kind};
use support::{call, command, error, info, limit, pipe, snapshot, time_us, traces, wait_for, watched_are_unchanged, Server};

const LIMITERS: [&str; 4] = ["RL.FIXED", "RL.SLIDE", "RL.GCRA", "RL.BUCKET"];
const COMPAT: [&str; 2] = ["--rl.compat", "cl.throttle gcra"];

#[test]
fn every_granted_key_has_a_deadline_that_is_never_early() {
    let (_server, mut client) = Server::start().and_client();
    // The call, and the microseconds after which nothing is used any more; for the last one, that is plus a period.
    for (words, used_us, period_us) in [
        ("RL.FIXED key 10 60", 60_000_000, 60_000_000),
        ("RL.SLIDE key 10 60", 60_000_000, 60_000_000),
        ("RL.SLIDE key 10 60 SEGMENTS 1", 60_000_000, 60_000_000),
        ("RL.GCRA key 10 60", 6_000_000, 60_000_000),
        ("RL.BUCKET key 10 60 COST 3", 18_000_000, 60_000_000),
        ("RL.BUCKET key 10 60 STEP", 60_000_000, 60_000_000),
        ("RL.FIXED key 1 1ms", 1_000, 1_000),
        ("RL.SLIDE key 1 1ms", 1_000, 1_000),
        ("RL.GCRA key 1 1ms", 1_000, 1_000),
        ("RL.GCRA key 1000000 1ms", 1, 1_000),
        ("RL.GCRA key 7 1.3ms COST 7", 1_300, 1_300),
        ("RL.BUCKET key 1000000 1 COST 1", 1, 1_000_000),
        ("RL.GCRA key 10 60 FORCE 100", 600_000_000, 60_000_000),
        ("RL.FIXED key 10 60 FORCE 25", 180_000_000, 60_000_000),
    ] {
        for _ in 0..20 {
            call::<()>(&mut client, "DEL key");
            let before = time_us(&mut client);
            let replies = pipe([words, "PEXPIRETIME key"]).atomic().query(&mut client);
            let ([granted, ..], deadline_ms): ([i64; 5], i64) = replies.expect("replies");
            let after = time_us(&mut client);
            assert!(granted > 0, "{words}");
            // In a transaction the server's clock for expiry stands still, so that the key can't expire within it.
            let deadline = deadline_ms * 1_000;
            assert!(deadline >= before + used_us, "{words}: early by {} us", before + used_us - deadline);
            assert!(deadline <= after + used_us + period_us + 1_000, "{words}: late by {} us", deadline - after - used_us);
        }
    }
}

#[test]
fn what_takes_nothing_leaves_no_trace_and_what_takes_does() {
    let files = ["--appendonly", "yes", "--appendfsync", "always", "--repl-ping-replica-period", "3600"];
    let (server, mut client) = Server::on_port(&[&COMPAT[..], &files].concat()).and_client();
    let _replica = server.replica(&COMPAT);
    let [mut watcher, mut caching, mut subscriber] = [server.client(), server.client(), server.client()];
    let subscriber_id: i64 = call(&mut subscriber, "CLIENT ID");
    call::<()>(&mut caching, &format!("CLIENT TRACKING ON REDIRECT {subscriber_id}"));
    let mut subscriber = subscriber.as_pubsub();
    subscriber.subscribe("__redis__:invalidate").expect("a subscription");
    subscriber.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let mut changed = || -> Vec<String> { subscriber.get_message().expect("a message").get_payload().expect("keys") };

    // A call, those that take nothing after it, with the first integer of their replies, and one that takes or gives back.
    let denied = LIMITERS.map(|name| {
        let denied = ["COST 1", "COST 5", "UPTO 3", "COST 11"].map(|amount| (format!("{name} # 10 1d {amount}"), Some(0)));
        (format!("{name} # 10 1d COST 10"), denied.to_vec(), format!("{name} # 10 1d FORCE 1"))
    });
    let reads = LIMITERS.map(|name| {
        let peeks = ["", "COST 3", "UPTO 5", "COST 4", "COST 11"].into_iter().flat_map(|amount| {
            ["# 10 1d", "# 99 2d", "missing 10 1d"].map(|rest| (format!("RL.PEEK {} {rest} {amount}", &name[3..]), None))
        });
        let reads = peeks.chain([("RL.INSPECT #".to_string(), None)]).collect();
        (format!("{name} # 10 1d COST 7"), reads, format!("{name} # 10 1d FORCE 1"))
    });
    let compatible = [
        ("CL.THROTTLE missing 4 1 86400 0", 0),
        ("CL.THROTTLE # 4 1 86400 0", 0),
        ("CL.THROTTLE # 4 1 86400", 1),
        ("CL.THROTTLE # 4 1 86400 9", 1),
        ("CL.THROTTLE missing 4 1 86400 9", 1),
        ("CL.THROTTLE missing 4 1 86400 -9", 0),
        ("GCRA # 4 1 86400", 1),
    ];
    let compatible = compatible.map(|(words, limited)| (words.to_string(), Some(limited))).to_vec();
    let compatible = ("CL.THROTTLE # 4 1 86400 5".to_string(), compatible, "CL.THROTTLE # 4 1 86400 -1".to_string());

    for (index, (first, nothing, last)) in denied.into_iter().chain(reads).chain([compatible]).enumerate() {
        let key = format!("key:{index}");
        let on = |words: &str| words.replace('#', &key);
        limit(&mut client, &on(&first));
        call::<i64>(&mut client, "WAIT 1 50000");
        // After the offset that the replica has acknowledged, only writes count.
        let mut state = || (traces(&mut client), call::<i64>(&mut client, "DBSIZE"), snapshot(&mut client, &key));
        let before = state();
        call::<()>(&mut caching, &format!("STRLEN {key}"));
        call::<()>(&mut watcher, &format!("WATCH {key} missing"));
        let mut other = server.client();
        for (words, expected) in nothing {
            let reply: Vec<Value> = call(&mut other, &on(&words));
            assert!(expected.is_none_or(|expected| reply[0] == Value::Int(expected)), "{words}: {reply:?}");
            assert_eq!(state(), before, "{words}");
        }
        assert!(watched_are_unchanged(&mut watcher), "{first}: a call that takes nothing broke a WATCH");
        // A marker, which proves that nothing came before it.
        call::<()>(&mut other, "SET marker 1");
        call::<()>(&mut caching, "STRLEN marker");
        call::<()>(&mut other, "SET marker 2");
        assert_eq!(changed(), ["marker"], "{first}");

        call::<()>(&mut watcher, &format!("WATCH {key}"));
        let before = traces(&mut other);
        limit(&mut other, &on(&last));
        assert_eq!(changed(), [&*key], "{last}");
        assert!(!watched_are_unchanged(&mut watcher), "{last} went past a WATCH");
        let after = traces(&mut other);
        assert!(after.iter().zip(before).all(|(after, before)| *after > before), "{last}: {before:?}, {after:?}");
    }
    assert_eq!(call::<i64>(&mut client, "EXISTS missing"), 0);
}

#[test]
fn foreign_values_are_named_and_stay_unchanged() {
    const STRING: &str = "a string that is not a";
    let (mut server, mut client) = Server::with(&COMPAT).and_client();
    let all = |client: &mut Connection| -> (Value, i64) { (call(client, "DUMP key"), call(client, "PEXPIRETIME key")) };
    let limiters = LIMITERS.map(|name| (format!("{name} key 10 60"), &name[3..]));
    let compatible = ["CL.THROTTLE key 4 1 10", "CL.THROTTLE key 4 1 10 0", "CL.THROTTLE key 4 1 10 -1", "GCRA key 4 1 10"];
    let calls: Vec<_> = limiters.into_iter().chain(compatible.map(|words| (words.into(), "GCRA"))).collect();
    for (make, held) in [
        ("RPUSH key a b", "a list, not a"),
        ("HSET key a b", "a hash, not a"),
        ("SADD key a b", "a set, not a"),
        ("ZADD key 1 a", "a sorted set, not a"),
        ("XADD key * a b", "a stream, not a"),
        ("SET key 42", STRING),
        ("SET key hello", STRING),
        ("SET key the-length-of-a-record-is-28", STRING),
        ("SET key the-length-of-a-wide-record-is-41-of-them", STRING),
        ("SET key 3.14 EX 1000", STRING),
        ("SETBIT key 2000 1", STRING),
        // As long as a value of redis-cell, or a digit shorter or longer; of that length, but no time.
        ("SET key 123456789012345678", STRING),
        ("SET key 12345678901234567890", STRING),
        ("SET key 9999999999999999999", STRING),
        ("SET key nineteen-characters", STRING),
        ("RL.BUCKET key 10 1d", "a BUCKET limiter, not a"),
    ] {
        call::<()>(&mut client, "DEL key");
        call::<Value>(&mut client, make);
        let before = all(&mut client);
        for (words, algorithm) in calls.iter().filter(|(_, algorithm)| !make.contains(*algorithm)) {
            let text = format!("WRONGTYPE key holds {held} {algorithm} limiter");
            assert_eq!(error(&mut client, &command(words)), text, "{make}: {words}");
        }
        assert_eq!(all(&mut client), before, "{make}");
    }
    assert!(server.is_alive());
}

#[test]
fn a_record_that_is_damaged_or_of_another_version_is_an_error_and_stays() {
    let (mut server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        call::<()>(&mut client, "DEL key");
        limit(&mut client, &format!("{name} key 10 1d COST 3"));
        let record: Vec<u8> = call(&mut client, "GET key");
        let put = |bytes: &[u8]| {
            redis::cmd("SET").arg("key").arg(bytes).arg("KEEPTTL").exec(&mut server.client()).expect("SET");
        };
        for len in 0..record.len() {
            put(&record[..len]);
            let text = error(&mut client, &command(&format!("{name} key 10 1d")));
            assert!(text.starts_with("WRONGTYPE"), "{name} cut to {len}: {text}");
            assert_eq!(call::<Vec<u8>>(&mut client, "GET key"), record[..len]);
        }
        for place in 0..record.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = record.clone();
                bytes[place] ^= flip;
                put(&bytes);
                // Each of these calls must survive the damaged record.
                for words in ["PEEK", "INSPECT", "UPTO 3", "REFUND 1", "FORCE 1", "COST 8 RESERVE 1d", "COST 8 BLOCK 1us"] {
                    put(&bytes);
                    let words = match words {
                        "PEEK" => format!("RL.PEEK {} key 10 1d", &name[3..]),
                        "INSPECT" => "RL.INSPECT key".into(),
                        amount => format!("{name} key 10 1d {amount}"),
                    };
                    let _ = command(&words).query::<Value>(&mut client);
                }
                put(&bytes);
                // If it is still a record, the call may be granted or denied. The server must survive, and the key must keep
                // its deadline.
                match command(&format!("{name} key 10 1d")).query::<Vec<i64>>(&mut client) {
                    Ok(reply) => assert_eq!(reply.len(), 5),
                    Err(_) => assert_eq!(call::<Vec<u8>>(&mut client, "GET key"), bytes),
                }
                assert!(call::<i64>(&mut client, "PTTL key") > 0);
            }
        }
        let mut bytes = record.clone();
        bytes[1] = 9;
        put(&bytes);
        let text = error(&mut client, &command(&format!("{name} key 10 1d")));
        assert!(text.starts_with("WRONGTYPE key holds a limiter in format 9, which this version"), "{text}");
    }
    assert!(server.is_alive());
}

#[test]
fn copies_of_a_key_hold_and_remember_the_same() {
    let (_server, mut client) = Server::start().and_client();
    // Calls on a key, a call on each of its copies, and the first fields of that reply: the copy goes on counting, remembers the id,
    // and holds the leases.
    let charges = LIMITERS.map(|name| (format!("{name} # 10 1d COST 3"), format!("{name} # 10 1d"), [1, 10, 6]));
    let ids =
        LIMITERS.map(|name| (format!("{name} # 10 1d COST 4 ID a"), format!("{name} # 10 1d COST 9 ID a"), [4, 10, 6]));
    let released = ids.clone().map(|(make, ..)| (make, "RL.RELEASE # a".into(), [0, 10, 10]));
    let leases = [("RL.LEASE # 5 1h ID new", [0, 5, 0]), ("RL.RELEASE # worker:3", [0, 5, 1])];
    let leases = leases.map(|(words, row)| ("RL.LEASE # 5 1h ID worker:@".to_string(), words.to_string(), row));
    for (make, again, expected) in charges.into_iter().chain(ids).chain(released).chain(leases) {
        call::<()>(&mut client, "FLUSHALL");
        let on = |words: &str, key: &str| words.replace('#', key);
        for holder in 0..if make.contains('@') { 5 } else { 1 } {
            limit(&mut client, &on(&make, "one").replace('@', &holder.to_string()));
        }
        call::<()>(&mut client, "COPY one two");
        call::<()>(&mut client, "RENAME one three");
        let dump: Vec<u8> = call(&mut client, "DUMP two");
        let deadline: i64 = call(&mut client, "PEXPIRETIME two");
        redis::cmd("RESTORE").arg("four").arg(deadline).arg(dump).arg("ABSTTL").exec(&mut client).expect("a key");
        let original = snapshot(&mut client, "two");
        for key in ["two", "three", "four"] {
            assert_eq!(snapshot(&mut client, key), original, "{make}, {key}");
            assert_eq!(limit(&mut client, &on(&again, key))[..3], expected, "{make}, {again}, {key}");
        }
        // Nothing is left under the first name.
        assert_eq!(call::<i64>(&mut client, "EXISTS one"), 0, "{make}");
    }
}

#[test]
fn a_key_made_persistent_gets_its_deadline_back() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        limit(&mut client, &format!("{name} {name} 10 60"));
        call::<()>(&mut client, &format!("PERSIST {name}"));
        limit(&mut client, &format!("{name} {name} 10 60"));
        assert!(call::<i64>(&mut client, &format!("PTTL {name}")) > 0, "{name}");
    }
}

#[test]
fn new_keys_take_no_more_memory_than_with_set() {
    let (_server, mut client) = Server::start().and_client();
    // The sum of many keys: the server rounds the memory of a key in more than one way.
    let mut usage = |words: &str| -> i64 {
        call::<()>(&mut client, "FLUSHALL");
        let key = |index: i32| format!("key:{index:04}");
        (0..200).for_each(|index| call::<()>(&mut client, &words.replace('#', &key(index))));
        (0..200).map(|index| call::<i64>(&mut client, &format!("MEMORY USAGE {}", key(index)))).sum()
    };
    let set = usage("SET # 0123456789012345678901234567 PX 3600000");
    for words in ["RL.FIXED # 1000 1h", "RL.GCRA # 1000 1h", "RL.BUCKET # 1000 1h"] {
        let own = usage(words);
        assert!(own <= set + set / 50, "{words}: {own} bytes, and SET {set}");
    }
}

/// Makes `calls` calls of a command, many at a time, and returns the sum of the units granted.
fn flood(client: &mut Connection, words: &str, calls: usize) -> i64 {
    let mut granted = 0;
    let mut left = calls;
    while left > 0 {
        let batch = left.min(1_000);
        let replies: Vec<[i64; 5]> = pipe(std::iter::repeat_n(words, batch)).query(client).expect("replies");
        granted += replies.iter().map(|reply| reply[0]).sum::<i64>();
        left -= batch;
    }
    granted
}

#[test]
fn ten_thousand_grants_in_a_sliding_window_take_less_than_140_kilobytes() {
    let (_server, mut client) = Server::start().and_client();
    // A period of a second has short ticks, which few grants share. The limit is just high enough to be used up.
    assert_eq!(flood(&mut client, "RL.SLIDE key 10000 60", 10_000), 10_000);
    assert_eq!(limit(&mut client, "RL.SLIDE key 10000 60")[0], 0);
    let shared: i64 = call(&mut client, "STRLEN key");
    assert!(call::<i64>(&mut client, "MEMORY USAGE key") < 140_000);
    assert!(shared <= 40 + 8 * 10_000);

    // A tick for each grant: the most entries that a window can hold.
    let mut spread = 0;
    let start = std::time::Instant::now();
    while spread < 10_000 && start.elapsed() < Duration::from_secs(20) {
        spread += flood(&mut client, "RL.SLIDE spread 10000 20", 50);
    }
    let memory: i64 = call(&mut client, "MEMORY USAGE spread");
    assert!(memory < 140_000, "{memory} bytes for {spread} grants");
}

#[test]
fn a_sliding_window_of_100_000_fills_and_slides() {
    const PERIOD: Duration = Duration::from_secs(4);
    let words = format!("RL.SLIDE key 100000 {}", PERIOD.as_secs());
    let (_server, mut client) = Server::start().and_client();
    let start = std::time::Instant::now();
    let mut granted = Vec::new();
    // Fills the log and goes on for two periods, in which it is filled, trimmed and filled again. This takes longer on a
    // busy machine.
    let mut total = 0;
    while start.elapsed() < 3 * PERIOD || total < 200_000 && start.elapsed() < 20 * PERIOD {
        let from = start.elapsed();
        let units = flood(&mut client, &words, 2_000);
        total += units;
        granted.push((from, start.elapsed(), units));
    }
    assert!(total >= 2 * 100_000, "only {total} granted");
    // No window holds more: batches that lie wholly in one window add up to at most the limit.
    for (index, &(from, ..)) in granted.iter().enumerate() {
        let within: i64 =
            granted[index..].iter().take_while(|&&(_, to, _)| to < from + PERIOD).map(|&(.., units)| units).sum();
        assert!(within <= 100_000, "{within} in the window from {from:?}");
    }
    let entries = (call::<i64>(&mut client, "STRLEN key") - 40) / 8;
    assert!(entries <= 65_537 + 65_537 / 3, "{entries} entries");
    wait_for("the window to pass", || call::<i64>(&mut client, "EXISTS key") == 0);
}

#[test]
fn a_key_takes_as_much_memory_as_the_documents_say() {
    for document in ["docs/choosing.md", "docs/operations.md", "SECURITY.md"] {
        support::assert_document_says(document, "100 to 200 bytes");
    }
    let (_server, mut client) = Server::start().and_client();
    // After two calls a key may take more than after one.
    let mut measured = Vec::new();
    for (name, calls) in [("FIXED", 1), ("GCRA", 1), ("GCRA", 2), ("BUCKET", 2)] {
        call::<()>(&mut client, "FLUSHALL SYNC");
        let before = info(&mut client, "memory", "used_memory");
        let mut keys = 0;
        // The hash tables have 2^17 cells from 65 536 keys on, when they are half empty, and 2^18 from 131 072 keys on.
        for size in [65_000, 66_000, 100_000, 131_000, 132_000] {
            while keys < size {
                let words = |key| std::iter::repeat_n(format!("RL.{name} key:{key:012} 10 1d"), calls);
                pipe((keys..keys + 1_000).flat_map(words)).exec(&mut client).expect("calls");
                keys += 1_000;
            }
            let used = info(&mut client, "memory", "used_memory") - before;
            measured.push((used as f64 / size as f64).round() as i64);
        }
    }
    let (least, most) = (measured.iter().min().expect("figures"), measured.iter().max().expect("figures"));
    println!("a key takes {least} to {most} bytes");
    assert!((100..=200).contains(least) && (100..=200).contains(most), "a key takes {measured:?} bytes");
}

/// Makes a call as the core alone would make it at `at`, on a key with this value. Returns the change and the new value.
fn by_core(words: &[&[u8]], value: Option<&[u8]>, at: Instant, seed: u64) -> (Change, Option<Vec<u8>>) {
    thread_local!(static SEED: Cell<u64> = const { Cell::new(0) });
    SEED.set(seed);
    let mut bytes = Bytes::default();
    let settlement = match words[0] {
        b"RL.SETTLE" => Some(parse_settle(words).expect("words")),
        b"RL.RELEASE" => Some(parse_release(words).expect("words")),
        _ => None,
    };
    let change = match (settlement, value) {
        (Some(args), Some(value)) => {
            let settled = settle(value, at, args.id, args.units, &mut bytes).expect("a record");
            settled.expect("an id that is remembered").change
        }
        (Some(_), None) => panic!("no key"),
        (None, _) => {
            let name = words[0].strip_prefix(b"RL.").expect("a command of the module");
            let kind = *Kind::ALL.iter().find(|kind| kind.name().as_bytes() == name).expect("an algorithm");
            let rule = if kind == Kind::Lease { parse_lease(words) } else { parse_limit(kind, words) }.expect("words");
            let view = rule.policy.view(value, at).expect("a record");
            let (_, next) = view.decide(rule.request).expect("a decision");
            view.store(&next, || SEED.get(), &mut bytes)
        }
    };
    let mut stored = value.map(<[u8]>::to_vec);
    change.apply(&bytes, &mut stored);
    (change, stored)
}

#[test]
fn the_stored_bytes_are_those_that_the_core_applies() {
    let (_server, mut client) = Server::start().and_client();
    let value = |client: &mut Connection| call::<Option<Vec<u8>>>(client, "GET key");
    let mut seen = BTreeSet::new();
    for calls in [
        &["RL.FIXED key 10 1h COST 3", "RL.FIXED key 10 1h COST 4", "RL.FIXED key 10 1h COST 4", "RL.FIXED key 20 1h"][..],
        &[
            "RL.GCRA key 10 1h COST 3",
            "RL.GCRA key 10 1h REFUND 1",
            "RL.GCRA key 10 1h BURST 20",
            "RL.GCRA key 10 1h REFUND 9",
        ],
        &["RL.BUCKET key 10 1h STEP", "RL.BUCKET key 10 1h CAPACITY 5 FORCE 7", "RL.BUCKET key 10 1h REFUND 10"],
        // The fourth call adds an entry to the log, the fifth one takes it away. The last one marks the log as shared.
        &[
            "RL.SLIDE key 10 1s SEGMENTS 1000",
            "RL.SLIDE key 10 1s SEGMENTS 1000 COST 2",
            "RL.SLIDE key 10 1s SEGMENTS 1000 COST 10",
            "RL.SLIDE key 10 1s SEGMENTS 1000 COST 3",
            "RL.SLIDE key 10 1s SEGMENTS 1000 REFUND 4",
            "RL.SLIDE key 20 1s SEGMENTS 1000",
            "RL.SLIDE key 20 2s SEGMENTS 1000",
        ],
        &["RL.SLIDE key 10 1h ID a COST 3", "RL.SLIDE key 10 1h ID b COST 4", "RL.SETTLE key a 1", "RL.RELEASE key b"],
        &["RL.GCRA key 10 1h ID a COST 3", "RL.GCRA key 10 1h", "RL.GCRA key 10 1h ID a COST 3", "RL.SETTLE key a 1"],
        &["RL.FIXED key 10 1h ID a COST 3", "RL.FIXED key 10 1h ID b", "RL.RELEASE key a", "RL.RELEASE key b"],
        &[
            "RL.LEASE key 10 1h ID a",
            "RL.LEASE key 10 1h ID b COST 9",
            "RL.LEASE key 10 2h ID a",
            "RL.RELEASE key b",
            "RL.RELEASE key a",
        ],
    ] {
        call::<()>(&mut client, "DEL key");
        for words in calls {
            // Each call of SLIDE falls into a tick of its own.
            std::thread::sleep(Duration::from_millis(2));
            let (old, before) = (value(&mut client), time_us(&mut client));
            call::<Value>(&mut client, words);
            let (after, new) = (time_us(&mut client), value(&mut client));
            // A new table of ids has a random seed. That is the only part of the record that the core does not determine.
            let seed = new.as_ref().and_then(|new| new.get(40..48)?.try_into().ok()).map_or(0, u64::from_le_bytes);
            let split: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
            // Which microsecond the call read is not known.
            let mut moments = (before..=after).chain(before - 2_000..before).chain(after + 1..after + 2_000);
            let change = moments.find_map(|us| {
                let (change, stored) = by_core(&split, old.as_deref(), Instant::from_us(us), seed);
                (stored == new).then_some(change)
            });
            let change = change.unwrap_or_else(|| panic!("{words} turns {old:02x?} into {new:02x?}"));
            let len = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
            seen.insert(match change {
                Change::Keep => "keeps",
                Change::Remove => "removes",
                Change::Patch { .. } if len(&new) > len(&old) => "patches and lengthens",
                Change::Patch { .. } => "patches",
                Change::Write { head: 1.., .. } => "changes the front and the end",
                Change::Write { offset: 0, .. } => "replaces",
                Change::Write { .. } if len(&new) < len(&old) => "shortens",
                Change::Write { .. } => "appends",
            });
        }
    }
    let every = [
        "appends",
        "changes the front and the end",
        "keeps",
        "patches",
        "patches and lengthens",
        "removes",
        "replaces",
        "shortens",
    ];
    assert_eq!(seen, BTreeSet::from(every));
}
