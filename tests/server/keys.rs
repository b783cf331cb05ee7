//! Keys: their deadlines, what a denial changes, values that are no limiters, and memory.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Connection, Value};
use redis_rl::commands::parsers::{parse_lease, parse_limit, parse_release, parse_settle};
use redis_rl::limiter::{settle, Bytes, Change, Instant, Kind};
use support::{call, command, error, info, limit, snapshot, time_us, wait_for, Server};

const LIMITERS: [&str; 4] = ["RL.FIXED", "RL.SLIDE", "RL.GCRA", "RL.BUCKET"];

#[test]
fn every_granted_key_has_a_deadline_that_is_never_early() {
    let server = Server::start();
    let mut client = server.client();
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
            let mut transaction = redis::pipe();
            transaction.atomic().add_command(command(words)).add_command(command("PEXPIRETIME key"));
            let ([granted, ..], deadline_ms): ([i64; 5], i64) = transaction.query(&mut client).expect("replies");
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
fn a_denied_call_leaves_no_trace() {
    let server = Server::on_port(&["--appendonly", "yes", "--repl-ping-replica-period", "3600", "--appendfsync", "always"]);
    let _replica = server.replica(&[]);
    let mut client = server.client();

    let mut watcher = server.client();
    let mut other = server.client();
    for name in LIMITERS {
        let words = format!("{name} {name} 10 1d COST 10");
        assert_eq!(limit(&mut client, &words)[0], 10);
        let before = snapshot(&mut client, name);
        call::<i64>(&mut client, "WAIT 1 50000");
        // After the offset that the replica has acknowledged, only writes count.
        let offset = info(&mut client, "replication", "master_repl_offset");
        let aof = info(&mut client, "persistence", "aof_current_size");
        let dirty = info(&mut client, "persistence", "rdb_changes_since_last_save");
        call::<()>(&mut watcher, &format!("WATCH {name}"));

        for amount in ["COST 1", "COST 5", "UPTO 3", "COST 11"] {
            assert_eq!(limit(&mut other, &format!("{name} {name} 10 1d {amount}"))[0], 0);
        }

        assert_eq!(snapshot(&mut client, name), before, "{name}");
        assert_eq!(info(&mut client, "replication", "master_repl_offset"), offset, "{name}");
        assert_eq!(info(&mut client, "persistence", "aof_current_size"), aof, "{name}");
        assert_eq!(info(&mut client, "persistence", "rdb_changes_since_last_save"), dirty, "{name}");
        call::<()>(&mut watcher, "MULTI");
        call::<()>(&mut watcher, "PING");
        assert!(matches!(call::<Value>(&mut watcher, "EXEC"), Value::Array(_)), "{name}: the denial broke a WATCH");

        call::<()>(&mut watcher, &format!("WATCH {name}"));
        assert_eq!(limit(&mut other, &format!("{name} {name} 10 1d FORCE 1"))[0], 1);
        call::<()>(&mut watcher, "MULTI");
        call::<()>(&mut watcher, "PING");
        assert_eq!(call::<Value>(&mut watcher, "EXEC"), Value::Nil, "{name}: the grant went past a WATCH");
        assert!(info(&mut client, "replication", "master_repl_offset") > offset, "{name}");
        assert!(info(&mut client, "persistence", "aof_current_size") > aof, "{name}");
        assert!(info(&mut client, "persistence", "rdb_changes_since_last_save") > dirty, "{name}");
    }
}

#[test]
fn a_denied_call_invalidates_no_clients_cache_and_a_grant_does() {
    let server = Server::start();
    let mut subscriber = server.client();
    let subscriber_id: i64 = call(&mut subscriber, "CLIENT ID");
    let mut subscriber = subscriber.as_pubsub();
    subscriber.subscribe("__redis__:invalidate").expect("a subscription");
    subscriber.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let mut caching = server.client();
    call::<()>(&mut caching, &format!("CLIENT TRACKING ON REDIRECT {subscriber_id}"));
    let mut other = server.client();
    for name in LIMITERS {
        limit(&mut other, &format!("{name} {name} 10 1d COST 10"));
        call::<()>(&mut caching, &format!("STRLEN {name}"));
        limit(&mut other, &format!("{name} {name} 10 1d"));
        // A marker, which proves that nothing came before it.
        call::<()>(&mut other, "SET marker 1");
        call::<()>(&mut caching, "STRLEN marker");
        call::<()>(&mut other, "SET marker 2");
        let keys: Vec<String> = subscriber.get_message().expect("a message").get_payload().expect("keys");
        assert_eq!(keys, ["marker"], "{name}");
        limit(&mut other, &format!("{name} {name} 10 1d FORCE 1"));
        let keys: Vec<String> = subscriber.get_message().expect("a message").get_payload().expect("keys");
        assert_eq!(keys, [name]);
    }
}

#[test]
fn foreign_values_are_named_and_stay_unchanged() {
    let server = Server::start();
    let mut client = server.client();
    for (make, held) in [
        ("RPUSH key a b", "a list"),
        ("HSET key a b", "a hash"),
        ("SADD key a b", "a set"),
        ("ZADD key 1 a", "a sorted set"),
        ("XADD key * a b", "a stream"),
        ("SET key 42", "a string that is"),
        ("SET key hello", "a string that is"),
        ("SET key the-length-of-a-record-is-28", "a string that is"),
        ("SET key the-length-of-a-wide-record-is-41-of-them", "a string that is"),
        ("SET key 3.14 EX 1000", "a string that is"),
        ("SETBIT key 2000 1", "a string that is"),
    ] {
        call::<()>(&mut client, "DEL key");
        call::<Value>(&mut client, make);
        let all = |client: &mut Connection| -> (Value, i64) { (call(client, "DUMP key"), call(client, "PEXPIRETIME key")) };
        let before = all(&mut client);
        for name in LIMITERS {
            let text = error(&mut client, &command(&format!("{name} key 10 60")));
            let limiter = format!("{} limiter", &name[3..]);
            assert!(text.starts_with(&format!("WRONGTYPE key holds {held}")) && text.ends_with(&limiter), "{make}: {text}");
        }
        assert_eq!(all(&mut client), before, "{make}");
    }
}

#[test]
fn a_record_that_is_damaged_or_of_another_version_is_an_error_and_stays() {
    let mut server = Server::start();
    let mut client = server.client();
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
fn a_record_copied_renamed_dumped_and_restored_goes_on_counting() {
    let server = Server::start();
    let mut client = server.client();
    for name in LIMITERS {
        call::<()>(&mut client, "FLUSHALL");
        limit(&mut client, &format!("{name} key 10 1d COST 3"));
        call::<()>(&mut client, "COPY key copy");
        call::<()>(&mut client, "RENAME key renamed");
        let dump: Vec<u8> = call(&mut client, "DUMP renamed");
        redis::cmd("RESTORE").arg("restored").arg(100_000).arg(dump).exec(&mut client).expect("RESTORE");
        for key in ["copy", "renamed", "restored"] {
            assert_eq!(limit(&mut client, &format!("{name} {key} 10 1d"))[..3], [1, 10, 6], "{name} {key}");
        }
        assert_eq!(limit(&mut client, &format!("{name} key 10 1d"))[..3], [1, 10, 9], "{name}");
    }
}

#[test]
fn a_key_made_persistent_gets_its_deadline_back() {
    let server = Server::start();
    let mut client = server.client();
    for name in LIMITERS {
        limit(&mut client, &format!("{name} {name} 10 60"));
        call::<()>(&mut client, &format!("PERSIST {name}"));
        limit(&mut client, &format!("{name} {name} 10 60"));
        assert!(call::<i64>(&mut client, &format!("PTTL {name}")) > 0, "{name}");
    }
}

#[test]
fn small_records_stay_small() {
    let server = Server::start();
    let mut client = server.client();
    for (words, most) in [
        ("RL.FIXED key 1000 1h", 28),
        ("RL.GCRA key 1000 1h", 28),
        ("RL.GCRA key 1000 1h BURST 50", 28),
        ("RL.BUCKET key 1000 1d CAPACITY 2000", 28),
        ("RL.BUCKET key 1000 1h STEP", 28),
        ("RL.GCRA key 1000000000000 3650d BURST 999999999999", 64),
        ("RL.SLIDE key 10 60", 48),
    ] {
        call::<()>(&mut client, "DEL key");
        limit(&mut client, words);
        let len: i64 = call(&mut client, "STRLEN key");
        assert!(len <= most, "{words}: {len} bytes");
    }
}

#[test]
fn new_keys_take_no_more_memory_than_with_set() {
    let server = Server::start();
    let mut client = server.client();
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
        let mut pipe = redis::pipe();
        (0..batch).for_each(|_| {
            pipe.add_command(command(words));
        });
        granted += pipe.query::<Vec<[i64; 5]>>(client).expect("replies").iter().map(|reply| reply[0]).sum::<i64>();
        left -= batch;
    }
    granted
}

#[test]
fn ten_thousand_grants_in_a_sliding_window_take_less_than_140_kilobytes() {
    let server = Server::start();
    let mut client = server.client();
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
    let server = Server::start();
    let mut client = server.client();
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
    for document in ["README.md", "docs/operations.md", "SECURITY.md"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
        let text = std::fs::read_to_string(path).expect("text");
        assert!(text.contains("100 to 200 bytes"), "{document}");
    }
    let server = Server::start();
    let mut client = server.client();
    // After two calls a key may take more than after one.
    let mut measured = Vec::new();
    for (name, calls) in [("FIXED", 1), ("GCRA", 1), ("GCRA", 2), ("BUCKET", 2)] {
        call::<()>(&mut client, "FLUSHALL SYNC");
        let before = info(&mut client, "memory", "used_memory");
        let mut keys = 0;
        // The hash tables have 2^17 cells from 65 536 keys on, when they are half empty, and 2^18 from 131 072 keys on.
        for size in [65_000, 66_000, 100_000, 131_000, 132_000] {
            while keys < size {
                let mut pipeline = redis::pipe();
                (keys..keys + 1_000).flat_map(|key| (0..calls).map(move |_| key)).for_each(|key| {
                    pipeline.add_command(command(&format!("RL.{name} key:{key:012} 10 1d"))).ignore();
                });
                pipeline.exec(&mut client).expect("calls");
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
    let server = Server::start();
    let mut client = server.client();
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
