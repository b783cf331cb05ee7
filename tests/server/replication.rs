//! Callers with several policies that use the same log in turn replicate little, and a replica holds the same value with the
//! same deadline.

use redis::Connection;
use support::{assert_same, call, command, info, snapshots, wait_for, Server};

/// The number of entries in the log, with ticks of 110 ms.
const ENTRIES: usize = 65_000;
const PERIOD: &str = "7200s";

/// The position of both servers in the replication stream.
fn offset(client: &mut Connection) -> i64 {
    info(client, "replication", "master_repl_offset")
}

fn in_step(primary: &mut Connection, replica: &mut Connection) {
    wait_for("the replica", || offset(primary) == offset(replica));
    assert_same(&snapshots(replica), &snapshots(primary));
}

/// A record of a log with one unit in each of its last ticks. The last one ended a second ago.
fn log(now_us: i64, entries: usize) -> Vec<u8> {
    let (period, tick) = (7_200_000_000_i64, 109_864_i64);
    let base = (now_us - 1_000_000) / tick - entries as i64;
    let mut bytes = vec![0xfa, 1, 2, 0];
    bytes.extend(4_000_000_u32.to_le_bytes());
    [period, tick, base].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes.extend([0; 8]);
    (0..entries as u32).for_each(|entry| bytes.extend([entry.to_le_bytes(), (entry + 1).to_le_bytes()].concat()));
    bytes
}

/// The bytes that each of these calls adds to the stream. They are made in turn, 20 times each, on a log with so many
/// entries.
fn bytes_a_call(primary: &mut Connection, replica: &mut Connection, entries: usize, words: &[&str]) -> i64 {
    let (seconds, us): (i64, i64) = redis::cmd("TIME").query(primary).expect("the time");
    let value = log(seconds * 1_000_000 + us, entries);
    redis::cmd("SET").arg("log").arg(value).arg("PX").arg(7_300_000).exec(primary).expect("a log");
    // The first calls make the log adopt the tick and the period that serve them all.
    for _ in 0..2 {
        words.iter().for_each(|words| assert_eq!(call::<[i64; 5]>(primary, words)[0], 1, "{words}"));
    }
    in_step(primary, replica);
    let before = offset(primary);
    let calls = 20 * words.len();
    for call in 0..calls {
        let reply: [i64; 5] = command(words[call % words.len()]).query(primary).expect("a reply");
        assert_eq!(reply[0], 1);
    }
    let bytes = offset(primary) - before;
    in_step(primary, replica);
    bytes / calls as i64
}

#[test]
fn callers_in_turn_replicate_little() {
    let primary = Server::on_port(&["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"]);
    let replica = primary.replica(&[]);
    let (mut left, mut right) = (primary.client(), replica.client());
    for entries in [3, 100, ENTRIES] {
        let mut cost = |words: &[&str]| bytes_a_call(&mut left, &mut right, entries, words);
        let one = format!("RL.SLIDE log 4000000 {PERIOD}");
        let alone = cost(&[&one]);
        assert!(alone <= 100, "{alone} bytes alone, {entries} entries");
        for other in [
            // Two limits; two SEGMENTS, a coarser and a finer one; two periods, a shorter and a longer one.
            format!("RL.SLIDE log 5000000 {PERIOD}"),
            format!("RL.SLIDE log 4000000 {PERIOD} SEGMENTS 24"),
            format!("RL.SLIDE log 4000000 {PERIOD} SEGMENTS 60000"),
            "RL.SLIDE log 4000000 7199s".into(),
            "RL.SLIDE log 4000000 1m".into(),
            "RL.SLIDE log 4000000 8000s".into(),
        ] {
            let both = cost(&[&one, &other]);
            assert!(both <= alone + 200, "{both} bytes a call with {other}, {alone} alone, {entries} entries");
        }
    }
}
