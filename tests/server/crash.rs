//! No acknowledged grant is lost: when servers are killed under load, while files are rewritten, when replicas come late or
//! lose the connection, and on servers without the module.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use redis::{Connection, RedisResult, Value};
use support::{
    assert_same, call, command, crowd_while, flood_all, limit, snapshots, wait_for, Load, Server, Signal, LIMITERS,
};

/// So long that nothing drains within the test.
const PERIOD: &str = "3650d";
const LIMIT: i64 = 1_000_000;

/// The calls that were made on a key: those that were answered, and those that the server may have executed.
#[derive(Default)]
struct Count {
    acknowledged: AtomicI64,
    sent: AtomicI64,
}

impl Count {
    /// Calls until the server is gone or the load ends. `#` in the words stands for an id that no other call has.
    fn load(&self, client: &mut Connection, words: &str, units: i64, load: &Load) {
        static IDS: AtomicI64 = AtomicI64::new(0);
        while load.goes_on() {
            self.sent.fetch_add(units, Ordering::Relaxed);
            let words = words.replace('#', &IDS.fetch_add(1, Ordering::Relaxed).to_string());
            match command(&words).query::<Vec<i64>>(client) {
                Ok(row) => {
                    assert_eq!(row[0], units, "{words}");
                    self.acknowledged.fetch_add(units, Ordering::Relaxed);
                }
                Err(_) => return,
            }
        }
    }

    /// Checks what the key holds, and takes that as the acknowledged units from now on.
    fn settle(&self, client: &mut Connection, name: &str) {
        let row = limit(client, &format!("RL.PEEK {name} {name} {LIMIT} {PERIOD}"));
        let used = LIMIT - row[2];
        let (acknowledged, sent) = (self.acknowledged.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
        assert!((acknowledged..=sent).contains(&used), "{name}: {used} used, {acknowledged} acknowledged, {sent} sent");
        self.acknowledged.store(used, Ordering::Relaxed);
        self.sent.store(used, Ordering::Relaxed);
        if used > 0 {
            assert!(call::<i64>(client, &format!("PTTL {name}")) > 0, "{name}");
        }
    }
}

/// Runs three connections for each algorithm, one of them with ids, as long as `meanwhile` takes.
fn under_load<T>(server: &Server, counts: &[Count; 4], meanwhile: impl FnOnce() -> T) -> T {
    let load = Load::default();
    let meanwhile = || {
        let _end = load.ends_here();
        meanwhile()
    };
    let (done, _) = crowd_while(server, 12, meanwhile, |index, client| {
        let (name, count) = (LIMITERS[index % 4], &counts[index % 4]);
        let (amount, units) = [("COST 1", 1), ("COST 3", 3), ("COST 2 ID #", 2)][index / 4];
        count.load(client, &format!("RL.{name} {name} {LIMIT} {PERIOD} {amount}"), units, &load);
    });
    done
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn acknowledged(counts: &[Count; 4]) -> i64 {
    counts.iter().map(|count| count.acknowledged.load(Ordering::Relaxed)).sum()
}

#[test]
fn a_server_killed_under_load_has_every_acknowledged_grant() {
    for preamble in ["yes", "no"] {
        let mut server =
            Server::with(&["--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", preamble]);
        let counts: [Count; 4] = Default::default();
        for round in 0..6_u64 {
            // In some rounds the files are being rewritten when the server is killed.
            if round % 2 == 1 {
                let _: RedisResult<Value> = command("BGREWRITEAOF").query(&mut server.client());
            }
            let before = acknowledged(&counts);
            under_load(&server, &counts, || {
                wait_for("some grants", || acknowledged(&counts) > before + 100);
                pause(round * 37 % 90);
                server.signal(Signal::KILL);
            });
            server.crash_and_restart();
            let mut client = server.client();
            LIMITERS.iter().zip(&counts).for_each(|(name, count)| count.settle(&mut client, name));
            server.rewrite_append_only_file();
        }
        let total = acknowledged(&counts);
        println!("preamble {preamble}: {total} units granted over 6 kills, none lost");
    }
}

#[test]
fn a_server_killed_under_load_has_the_leases_that_are_held_and_no_others() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let lease = |id: &str, options: &str| format!("RL.LEASE jobs 65536 1d ID {id} {options}");
    for round in 0..3 {
        // The leases of each client: those that it holds, and those that it has released.
        let taken = AtomicI64::new(0);
        let kill = || {
            let _end = server.killed_at_the_end();
            wait_for("some leases", || taken.load(Ordering::Relaxed) > 300);
        };
        let (_, leases) = crowd_while(&server, 4, kill, |worker, client| {
            let (mut held, mut released) = (Vec::new(), Vec::new());
            for number in 0.. {
                let id = format!("{round}-{worker}-{number}");
                let Ok(row) = command(&lease(&id, "")).query::<Vec<i64>>(client) else { break };
                assert_eq!(row[0], 1, "{id}");
                held.push(id);
                taken.fetch_add(1, Ordering::Relaxed);
                // Every other lease is released, not always the newest.
                if number % 2 == 1 {
                    let id = held.swap_remove(number * 7 % held.len());
                    match command(&format!("RL.RELEASE jobs {id}")).query::<Option<Vec<i64>>>(client) {
                        Ok(row) => assert!(row.is_some(), "{id}"),
                        // Whether the server has executed this call is not known.
                        Err(_) => break,
                    }
                    released.push(id);
                }
            }
            (held, released)
        });
        server.crash_and_restart();
        let mut client = server.client();
        for (held, released) in &leases {
            assert!(held.len() > 10 && released.len() > 10, "{} held, {} released", held.len(), released.len());
            held.iter().for_each(|id| assert_eq!(limit(&mut client, &lease(id, "RENEW"))[0], 1, "{id} is held"));
            released.iter().for_each(|id| assert_eq!(limit(&mut client, &lease(id, "RENEW"))[0], 0, "{id} was released"));
        }
        assert!(call::<i64>(&mut client, "PTTL jobs") > 0);
        server.rewrite_append_only_file();
    }
}

#[test]
fn a_server_killed_under_load_has_charged_all_keys_of_a_call_or_none() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    const KEYS: [&str; 3] = ["tokens", "requests", "slots"];
    // So few slots that most calls wait for one.
    let words = |id: &str| {
        let rules = format!("SLIDE {LIMIT} {PERIOD} COST 3 GCRA {LIMIT} {PERIOD} COST 2 LEASE 4 1d");
        format!("RL.ALL 3 {} {rules} ID {id} BLOCK 1m", KEYS.join(" "))
    };
    for round in 0..4 {
        // Each client takes all three, and gives the slot back.
        let answered = AtomicI64::new(0);
        let kill = || {
            let _end = server.killed_at_the_end();
            wait_for("some grants", || answered.load(Ordering::Relaxed) > 150);
        };
        let (_, taken) = crowd_while(&server, 12, kill, |worker, client| {
            for number in 0.. {
                let id = format!("{round}-{worker}-{number}");
                let Ok((granted, ..)) = command(&words(&id)).query::<support::AllRows>(client) else { return number };
                assert_eq!(granted, 1, "{id}");
                answered.fetch_add(1, Ordering::Relaxed);
                match command(&format!("RL.RELEASE slots {id}")).query::<Option<[i64; 5]>>(client) {
                    Ok(row) => assert!(row.is_some(), "{id}"),
                    Err(_) => return number + 1,
                }
            }
            0_i64
        });
        server.crash_and_restart();
        let mut client = server.client();
        let mut held = 0;
        for (worker, &answered) in taken.iter().enumerate() {
            // All calls that were answered, and the one that may have been executed.
            for number in 0..=answered {
                let id = format!("{round}-{worker}-{number}");
                let known =
                    KEYS.map(|key| call::<Option<[i64; 5]>>(&mut client, &format!("RL.RELEASE {key} {id}")).is_some());
                assert!(number == answered || known[0], "{id} was answered, and is lost");
                assert_eq!(known[0], known[1], "{id} has charged a part of its keys");
                // The slot may have been given back.
                assert!(!known[2] || known[0], "{id} has charged a part of its keys");
                assert!(number + 1 >= answered || !known[2], "{id} was released, and still holds the slot");
                held += i64::from(known[2]);
            }
        }
        assert!(held <= 4, "{held} slots are held");
        assert!(KEYS.iter().all(|key| call::<i64>(&mut client, &format!("EXISTS {key}")) == 0), "only ids were charged");
        server.rewrite_append_only_file();
    }
}

#[test]
fn a_server_without_the_module_keeps_the_keys() {
    for files in [&["--appendonly", "yes"][..], &["--dbfilename", "dump.rdb"][..]] {
        let (mut server, mut client) = Server::with(files).and_client();
        flood_all(&mut client);
        if files[0] == "--dbfilename" {
            call::<()>(&mut client, "SAVE");
        }
        let before = snapshots(&mut client);
        pause(1_100);
        server.crash_and_restart_with_module(false);
        let mut client = server.client();
        assert!(command("RL.GCRA key 10 60").query::<Value>(&mut client).is_err());
        assert_same(&before, &snapshots(&mut client));
        // Any string command works on the keys; a copy counts as well.
        call::<()>(&mut client, "COPY full:GCRA copied");
        call::<()>(&mut client, "RENAME full:SLIDE renamed");
        if files[0] == "--dbfilename" {
            call::<()>(&mut client, "SAVE");
        }
        let before = snapshots(&mut client);
        pause(1_100);
        server.crash_and_restart_with_module(true);
        let mut client = server.client();
        assert_same(&before, &snapshots(&mut client));
        for words in ["RL.FIXED full:FIXED", "RL.SLIDE renamed", "RL.GCRA copied", "RL.BUCKET full:BUCKET"] {
            assert_eq!(limit(&mut client, &format!("{words} 5 1d"))[..3], [0, 5, 0], "{words}");
        }
    }
}

#[test]
fn the_module_is_replaced_under_load_and_counts_on() {
    let (_server, mut control) = Server::with(&["--enable-module-command", "yes"]).and_client();
    let (mut granted, mut without) = (0, 0);
    for _ in 0..20 {
        for _ in 0..10 {
            granted += limit(&mut control, "RL.SLIDE key 1000000 3650d COST 7")[0];
        }
        call::<()>(&mut control, "MODULE UNLOAD rl");
        without += i64::from(command("RL.SLIDE key 1000000 3650d").query::<Value>(&mut control).is_err());
        assert!(call::<i64>(&mut control, "STRLEN key") > 0);
        call::<()>(&mut control, &format!("MODULE LOAD {}", support::module().display()));
    }
    assert_eq!((granted, without), (1_400, 20));
    assert_eq!(limit(&mut control, "RL.PEEK SLIDE key 1000000 3650d")[2], 1_000_000 - 1_400);
}

/// While a server writes the report of a crash, the module adds nothing. Else it could crash again, or wait for a lock.
#[test]
fn a_server_that_panics_ends() {
    // The server's test of its memory reads all of it, which AddressSanitizer would report.
    let mut server = Server::with(&["--enable-debug-command", "yes", "--crash-memcheck-enabled", "no"]);
    assert!(call::<String>(&mut server.client(), "INFO everything").contains("rl_version:"));
    command("DEBUG PANIC").query::<()>(&mut server.client()).expect_err("the server ends");
    wait_for("the end of the server", || !server.is_alive());
    let log = server.log();
    // The server also reports a crash within the report.
    assert!(log.contains("MODULES INFO OUTPUT") && !log.contains("rl_version:") && !log.contains("by signal"), "{log}");
}
