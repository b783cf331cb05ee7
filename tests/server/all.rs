//! `RL.ALL` charges every rule or none.

mod cluster;
mod effects;
pub(crate) mod ends;
mod grammar;
mod ids;
mod lines;
mod load;

use redis::{Connection, FromRedisValue, Value};
use support::{call, command, crowd, error, inspect, limit, snapshots, AllRows, Server};

/// Calls `RL.ALL`, and returns whether it was granted, wait_ms, and a row for each rule.
fn all(client: &mut Connection, words: &str) -> AllRows {
    AllRows::from_redis_value(call(client, words)).unwrap_or_else(|error| panic!("{words}: {error}"))
}

#[test]
fn any_refusing_rule_leaves_every_key_untouched() {
    let (_server, mut client) = Server::start().and_client();
    for rules in [2, 3, 7, 32] {
        for refusing in 0..rules {
            call::<()>(&mut client, "FLUSHALL");
            let names = ["FIXED", "SLIDE", "GCRA", "BUCKET"];
            let keys: Vec<String> = (0..rules).map(|rule| format!("key:{rule}")).collect();
            // Half of the keys are in use already. The key that refuses is full.
            for rule in (0..rules).filter(|rule| rule % 2 == 0 || *rule == refusing) {
                let cost = if rule == refusing { 10 } else { 4 };
                limit(&mut client, &format!("RL.{} key:{rule} 10 1d COST {cost}", names[rule % 4]));
            }
            let before = snapshots(&mut client);
            let terms: Vec<String> = (0..rules).map(|rule| format!("{} 10 1d COST 2", names[rule % 4])).collect();
            let words = format!("RL.ALL {rules} {} {}", keys.join(" "), terms.join(" "));
            let (granted, wait_ms, rows) = all(&mut client, &words);
            assert_eq!((granted, rows.len()), (0, rules));
            for (rule, row) in rows.iter().enumerate() {
                assert_eq!(row[0], if rule == refusing { 0 } else { 2 }, "rule {rule} of {rules}");
                assert_eq!(
                    row[2],
                    if rule == refusing {
                        0
                    } else if rule % 2 == 0 {
                        6
                    } else {
                        10
                    },
                    "rule {rule} of {rules}"
                );
            }
            assert_eq!(wait_ms, rows[refusing][3]);
            assert_eq!(snapshots(&mut client), before);
            // When the key that refuses is reset, the same call is granted, and every key is charged.
            call::<i64>(&mut client, &format!("DEL key:{refusing}"));
            let (granted, wait_ms, rows) = all(&mut client, &words);
            assert_eq!((granted, wait_ms), (1, 0));
            assert!(rows.iter().all(|row| row[0] == 2));
            assert_eq!(call::<i64>(&mut client, "DBSIZE"), rules as i64);
            assert!(keys.iter().all(|key| call::<i64>(&mut client, &format!("PTTL {key}")) > 0));
        }
    }
}

#[test]
fn never_outweighs_every_wait() {
    let (_server, mut client) = Server::start().and_client();
    limit(&mut client, "RL.FIXED a 10 1d COST 10");
    let (granted, wait_ms, rows) = all(&mut client, "RL.ALL 3 a b c FIXED 10 1d GCRA 10 1d BURST 2 COST 3 BUCKET 0 1d");
    assert_eq!((granted, wait_ms), (0, -1));
    assert!(rows[0][3] > 0);
    assert_eq!(rows[1], [0, 2, 2, -1, 0]);
    assert_eq!(rows[2], [0, 0, 0, -1, 0]);
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 1);
}

#[test]
fn options_and_costs_belong_to_their_rule() {
    let (_server, mut client) = Server::start().and_client();
    let words = "rl.all 4 a b c d fixed 10 1d align 1h cost 2 slide 10 1d segments 7 \
        gcra 10 1d cost 3 burst 5 bucket 10 1d step capacity 20 cost 20";
    let (granted, _, rows) = all(&mut client, words);
    assert_eq!(granted, 1);
    let heads: Vec<_> = rows.iter().map(|row| [row[0], row[1], row[2]]).collect();
    assert_eq!(heads, [[2, 10, 8], [1, 10, 9], [3, 5, 2], [20, 20, 0]]);
}

#[test]
fn fifty_clients_on_overlapping_keys_never_get_more_than_any_rule_allows() {
    const RULES: [(&str, i64); 6] =
        [("GCRA", 300), ("FIXED", 400), ("SLIDE", 250), ("BUCKET", 350), ("SLIDE", 500), ("FIXED", 200)];
    let server = Server::start();
    let clients = crowd(&server, 50, |seed, client| {
        let mut charged = [0; RULES.len()];
        for round in 0..40_usize {
            // Two to four of the keys, in an order that differs from client to client.
            let first = (seed + round * round) % 6;
            let picked: Vec<usize> = (0..2 + (seed + round) % 3).map(|step| (first + step * [1, 5][seed % 2]) % 6).collect();
            let keys: Vec<String> = picked.iter().map(|rule| format!("key:{rule}")).collect();
            let cost = 1 + (seed + round) % 3;
            let rule = |&rule: &usize| format!("{} {} 1d COST {cost}", RULES[rule].0, RULES[rule].1);
            let rules: Vec<String> = picked.iter().map(rule).collect();
            let words = format!("RL.ALL {} {} {}", keys.len(), keys.join(" "), rules.join(" "));
            let (granted, _, rows) = all(client, &words);
            assert_eq!(granted == 1, rows.iter().all(|row| row[0] > 0));
            if granted == 1 {
                picked.iter().for_each(|&rule| charged[rule] += cost as i64);
            }
        }
        charged
    });
    let charged: Vec<i64> = (0..RULES.len()).map(|rule| clients.iter().map(|charged| charged[rule]).sum()).collect();
    let mut client = server.client();
    for (rule, (name, most)) in RULES.into_iter().enumerate() {
        let units = charged[rule];
        // In the meantime at most one unit has drained.
        assert!((1..=most + 1).contains(&units), "{name}: {units} of {most}");
        let [_, _, remaining, ..] = limit(&mut client, &format!("RL.PEEK {name} key:{rule} {most} 1d"));
        assert!(
            (most - units..=most - units + 1).contains(&remaining),
            "{name}: {remaining} left of {most} with {units} charged"
        );
    }
    assert!(charged.iter().sum::<i64>() > 500);
}

#[test]
fn a_cluster_refuses_keys_of_different_slots_and_takes_a_hash_tag() {
    let (_server, mut client) = Server::node().and_client();
    call::<()>(&mut client, "CLUSTER ADDSLOTSRANGE 0 8191");
    support::wait_for("the slots", || {
        call::<()>(&mut client, "CLUSTER BUMPEPOCH");
        call::<String>(&mut client, "CLUSTER INFO").contains("cluster_slots_assigned:8192")
    });
    call::<()>(&mut client, "CONFIG SET cluster-require-full-coverage no");
    support::wait_for("the cluster", || call::<String>(&mut client, "CLUSTER INFO").contains("cluster_state:ok"));
    // Of the tags {a} to {z}, one whose slot this node serves and one whose slot it does not serve.
    let mut tag = |here: bool| {
        let mut tags = ('a'..='z').map(String::from);
        tags.find(|tag| (call::<i64>(&mut client, &format!("CLUSTER KEYSLOT {tag}")) < 8192) == here).expect("a tag")
    };
    let (here, elsewhere) = (tag(true), tag(false));
    let words = format!("RL.ALL 2 {{{here}}}:1 {{{here}}}:2 FIXED 10 60 GCRA 10 60");
    assert_eq!(all(&mut client, &words).0, 1);
    let words = format!("RL.ALL 2 {{{here}}}:1 {{{elsewhere}}}:2 FIXED 10 60 GCRA 10 60");
    assert!(error(&mut client, &command(&words)).contains("CROSSSLOT"));
    // A node executes no command on a slot that it does not serve.
    for words in [
        format!("RL.ALL 1 {elsewhere} FIXED 10 60"),
        format!("RL.GCRA {elsewhere} 10 60"),
        format!("RL.INSPECT {elsewhere}"),
    ] {
        let text = error(&mut client, &command(&words));
        assert!(text.contains("MOVED") || text.contains("CLUSTERDOWN"), "{words}: {text}");
    }
    assert_eq!(call::<Value>(&mut client, "DBSIZE"), Value::Int(2));
}

/// A record of SLIDE with many entries of one unit, which will count for most of a day.
fn long_log(client: &mut Connection, entries: u32) -> Vec<u8> {
    limit(client, "RL.SLIDE sample 1000000 1d");
    let mut record: Vec<u8> = call(client, "GET sample");
    let header = 40;
    let base = i64::from_le_bytes(record[24..32].try_into().expect("eight bytes"));
    record[24..32].copy_from_slice(&(base - i64::from(entries)).to_le_bytes());
    record.truncate(header);
    for entry in 1..=entries {
        record.extend(entry.to_le_bytes());
        record.extend(entry.to_le_bytes());
    }
    record
}

#[test]
fn a_call_takes_no_memory_for_what_it_refuses_and_little_for_what_it_grants() {
    const KEYS: usize = 128;
    let (server, mut client) = Server::start().and_client();
    let record = long_log(&mut client, 60_000);
    for key in 0..KEYS {
        redis::cmd("SET").arg(format!("log:{key}")).arg(&record).arg("EX").arg(86_400).exec(&mut client).expect("a record");
    }
    let keys: Vec<_> = (0..KEYS).map(|key| format!("log:{key}")).collect();
    // Under a longer period, each grant rewrites its log.
    let rules = vec!["SLIDE 1000000 2d SEGMENTS 40000"; KEYS].join(" ");
    let before = server.peak_memory();
    limit(&mut client, "RL.FIXED full 1 1d");
    let refused = format!("RL.ALL {} {} full {rules} FIXED 1 1d", KEYS + 1, keys.join(" "));
    let (granted, wait_ms, rows) = all(&mut client, &refused);
    assert!(
        granted == 0 && wait_ms > 80_000_000 && rows[..KEYS].iter().all(|row| row[..3] == [1, 1_000_000, 940_000]),
        "{rows:?}"
    );
    let grown = server.peak_memory().saturating_sub(before);
    assert!(grown < 8_000_000, "{grown} bytes more for a refusal");
    assert!(keys.iter().all(|key| call::<Vec<u8>>(&mut client, &format!("GET {key}")) == record));

    let before = server.peak_memory();
    let (granted, _, rows) = all(&mut client, &format!("RL.ALL {KEYS} {} {rules}", keys.join(" ")));
    assert!(granted == 1 && rows.iter().all(|row| row[..3] == [1, 1_000_000, 939_999]), "{rows:?}");
    let grown = server.peak_memory().saturating_sub(before);
    assert!(grown < 16_000_000, "{grown} bytes more for a grant");
    assert!(keys.iter().all(|key| inspect(&mut client, key, "used") == Some(60_001)));
}
