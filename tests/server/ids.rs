//! Charges with an id: they can be repeated without paying twice, settled to what they really cost, and released.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::{Connection, Value};
use support::witness::Watched;
use support::{
    assert_same, call, command, error, held, info, inspect, limit, settle, snapshot, snapshots, time_us, traces, wait_for,
    watched_are_unchanged, Held, Load, Resp, Server, Signal, Snapshot, LIMITERS,
};

/// What `key` takes while `ids` ids of this length are added, in so many steps from 100 ids on, and while new ones then replace them.
struct Memory {
    /// The fewest bytes for each id that it remembers.
    least: u64,
    /// The most.
    most: u64,
    /// The most bytes in all.
    all: u64,
}

fn memory_of_ids(client: &mut Connection, name: &str, length: usize, ids: usize, steps: usize) -> Memory {
    call::<()>(client, "FLUSHALL");
    let add = |id: usize| match name {
        "LEASE" => command(&format!("RL.LEASE key 65536 1d ID {id:0length$}")),
        _ => command(&format!("RL.{name} key 1000000 1d ID {id:0length$}")),
    };
    let mut memory = Memory { least: u64::MAX, most: 0, all: 0 };
    let mut note = |client: &mut Connection, ids: usize| {
        let bytes: u64 = call(client, "MEMORY USAGE key SAMPLES 0");
        memory.least = memory.least.min(bytes / ids as u64);
        memory.most = memory.most.max(bytes.div_ceil(ids as u64));
        memory.all = memory.all.max(bytes);
    };
    let sizes = (0..=steps).map(|step| (100.0 * (ids as f64 / 100.0).powf(step as f64 / steps as f64)).round() as usize);
    let mut added = 0;
    for size in sizes {
        let mut pipeline = redis::pipe();
        (added..size).for_each(|id| {
            pipeline.add_command(add(id)).ignore();
        });
        pipeline.exec(client).expect("charges");
        added = size;
        note(client, size);
    }
    for step in 0..40 {
        let mut pipeline = redis::pipe();
        for id in (step * ids / 20)..((step + 1) * ids / 20) {
            let old = command(&format!("RL.RELEASE key {id:0length$}"));
            pipeline.add_command(old).ignore().add_command(add(id + ids)).ignore();
        }
        pipeline.exec(client).expect("charges and releases");
        note(client, ids);
    }
    memory
}

/// docs/commands.md and SECURITY.md say how much memory ids take.
#[test]
fn ids_take_as_much_memory_as_the_documents_say() {
    const MOST_AT_ALL: u64 = 13_000_000;
    let documented = [(16, 75, 280), (32, 90, 340)];
    let [(_, low, high), (_, low_long, high_long)] = documented;
    let sentence = "On a key with 100 ids or more, few of which have ended, an id of 16 bytes usually takes";
    support::assert_document_says(
        "docs/commands.md",
        &format!("{sentence} {low} to {high} bytes of memory, and one of 32 bytes {low_long} to {high_long}"),
    );
    support::assert_document_says("SECURITY.md", &format!("with ids of 64 bytes, up to {:.1} MB", MOST_AT_ALL as f64 / 1e6));

    let (_server, mut client) = Server::start().and_client();
    for (length, low, high) in documented {
        let of_sizes =
            ["FIXED", "SLIDE", "LEASE"].into_iter().flat_map(|name| [250, 400, 1_000, 3_000, 10_000].map(|ids| (name, ids)));
        let measured: Vec<_> = of_sizes.map(|(name, ids)| memory_of_ids(&mut client, name, length, ids, 80)).collect();
        let least = measured.iter().map(|memory| memory.least).min().expect("figures");
        let most = measured.iter().map(|memory| memory.most).max().expect("figures");
        println!("an id of {length} bytes takes {least} to {most} bytes");
        assert!(low <= least && most <= high, "an id of {length} bytes takes {least} to {most} bytes");
        // The documents do not say much more than what is true. Servers differ by a fifth.
        assert!(least <= low + 10 && high * 2 / 3 <= most, "an id of {length} bytes takes only {least} to {most} bytes");
    }
    let all = memory_of_ids(&mut client, "SLIDE", 64, 65_536, 10).all;
    assert!((MOST_AT_ALL * 9 / 10..=MOST_AT_ALL).contains(&all), "65536 ids of 64 bytes take {all} bytes");
}

#[test]
fn a_retry_is_answered_and_charges_nothing() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        let rule = format!("RL.{name} {name} 10 1d");
        assert_eq!(limit(&mut client, &format!("{rule} COST 4 ID a"))[..4], [4, 10, 6, 0], "{name}");
        assert_eq!(limit(&mut client, &format!("{rule} UPTO 9 ID b"))[..4], [6, 10, 0, 0], "{name}");
        let before = snapshot(&mut client, name);
        // The retry may name another amount, and also one that can never be granted.
        for amount in ["COST 4", "COST 1", "UPTO 3", "COST 99", ""] {
            for wait in ["", "BLOCK 10", "RESERVE 10"] {
                if wait == "RESERVE 10" && amount.starts_with("UPTO") {
                    continue;
                }
                let row = limit(&mut client, &format!("{rule} {wait} {amount} ID a"));
                assert_eq!(row[..4], [4, 10, 0, 0], "{name} {amount} {wait}");
            }
        }
        // Ids are case-sensitive.
        assert_eq!(limit(&mut client, &format!("{rule} ID A"))[0], 0, "{name}");
        assert_eq!(limit(&mut client, &format!("RL.{name} {name} 0 1d ID a")), [0, 0, 0, -1, 0], "{name}");
        assert_eq!(snapshot(&mut client, name), before, "{name}");
    }
    assert_eq!(held(&mut client), 0);
}

#[test]
fn a_settled_charge_is_what_it_really_cost() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        let rule = format!("RL.{name} {name} 10 1d");
        assert_eq!(limit(&mut client, &format!("{rule} COST 6 ID a"))[2], 4);
        assert_eq!(limit(&mut client, &format!("{rule} COST 2 ID b"))[2], 2);
        let row = settle(&mut client, &format!("RL.SETTLE {name} a 1")).expect("the key remembers the id");
        assert_eq!(row[..4], [1, 10, 7, 0], "{name}");
        // The id is forgotten now.
        assert_eq!(settle(&mut client, &format!("RL.SETTLE {name} a 1")), None, "{name}");
        assert_eq!(limit(&mut client, &format!("{rule} ID a"))[2], 6, "{name}");
        // More than charged becomes a debt.
        let row = settle(&mut client, &format!("RL.SETTLE {name} b 12")).expect("the key remembers the id");
        assert_eq!(row[..4], [12, 10, 0, 0], "{name}");
        let row = settle(&mut client, &format!("RL.RELEASE {name} a")).expect("the key remembers the id");
        assert_eq!(row[0], 0, "{name}");
        assert_eq!(settle(&mut client, &format!("RL.RELEASE {name} a")), None, "{name}");
        // 1 + 12 units are left.
        assert_eq!(inspect(&mut client, name, "used"), Some(13), "{name}");
    }
    for words in ["RL.SETTLE missing a 1", "RL.RELEASE missing a"] {
        assert_eq!(settle(&mut client, words), None, "{words}");
        assert_eq!(call::<i64>(&mut client, "EXISTS missing"), 0);
    }
}

#[test]
fn a_refused_call_changes_nothing() {
    let (_server, mut client) = Server::start().and_client();
    let long = "x".repeat(65);
    for name in LIMITERS {
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4 ID a"));
    }
    call::<()>(&mut client, "RL.LEASE lease 3 1d ID a COST 2");
    call::<()>(&mut client, "RPUSH list a");
    call::<()>(&mut client, "SET text a-long-string-that-no-limiter-has-written-here");
    call::<()>(&mut client, "SET short 17");
    let keys = |client: &mut Connection| -> Vec<Snapshot> {
        LIMITERS.iter().chain(&["lease", "text", "short"]).map(|key| snapshot(client, key)).collect()
    };
    let before = keys(&mut client);
    let refused = |client: &mut Connection, words: &str, text: &str| {
        assert_eq!(error(client, &command(words)), text, "{words}");
    };
    for name in LIMITERS {
        let rule = format!("RL.{name} {name} 10 1d");
        refused(&mut client, &format!("{rule} ID {long}"), "ERR ID must be 1 to 64 bytes long");
        let empty = redis::cmd(&format!("RL.{name}")).arg(&[name, "10", "1d", "ID", ""]).to_owned();
        assert_eq!(error(&mut client, &empty), "ERR ID must be 1 to 64 bytes long");
        refused(&mut client, &format!("RL.SETTLE {name} {long} 1"), "ERR id must be 1 to 64 bytes long");
        refused(&mut client, &format!("RL.RELEASE {name} {long}"), "ERR id must be 1 to 64 bytes long");
        for units in ["-1", "x", "1.5", "1000000000001"] {
            let text = "ERR units must be a whole number from 0 to 1000000000000";
            refused(&mut client, &format!("RL.SETTLE {name} a {units}"), text);
        }
    }
    for (words, text) in [
        ("RL.LEASE lease 3 1d ID a COST 1", "ERR COST must be 2, the units that this ID holds, or be omitted"),
        ("RL.LEASE lease 3 1d COST 1", "ERR LEASE needs an ID"),
        ("RL.LEASE lease 65537 1d ID a", "ERR limit must be a whole number from 0 to 65536"),
        ("RL.LEASE GCRA 3 1d ID a", "WRONGTYPE key holds a GCRA limiter, not a LEASE limiter"),
        ("RL.GCRA lease 3 1d ID a", "WRONGTYPE key holds a LEASE limiter, not a GCRA limiter"),
        ("RL.SETTLE lease a 1", "ERR units must be 0 for a lease: RL.RELEASE ends it"),
        ("RL.SETTLE list a 1", "WRONGTYPE key holds a list, not a limiter"),
        ("RL.RELEASE text a", "WRONGTYPE key holds a string that is not a limiter"),
        ("RL.RELEASE short a", "WRONGTYPE key holds a string that is not a limiter"),
    ] {
        refused(&mut client, words, text);
    }
    assert_eq!(keys(&mut client), before);
    // The result would not fit a record; the id stays.
    limit(&mut client, "RL.SLIDE huge 10 1d ID a");
    let before = snapshot(&mut client, "huge");
    refused(&mut client, "RL.SETTLE huge a 1000000000000", "ERR the result is too large for a limiter's record");
    assert_eq!(snapshot(&mut client, "huge"), before);
    assert!(settle(&mut client, "RL.RELEASE huge a").is_some());
}

// ---- Counts, events ----

#[test]
fn info_counts_retries_settlements_and_releases() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4 ID a"));
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4 ID b"));
        for _ in 0..3 {
            limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4 ID a"));
        }
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4"));
        settle(&mut client, &format!("RL.SETTLE {name} a 3"));
        settle(&mut client, &format!("RL.SETTLE {name} a 3"));
        settle(&mut client, &format!("RL.RELEASE {name} b"));
        settle(&mut client, &format!("RL.RELEASE {name} b"));
        let name = name.to_lowercase();
        let counts = ["calls", "granted", "denied"].map(|what| info(&mut client, "rl", &format!("rl_{name}_{what}")));
        assert_eq!(counts, [6, 2, 1], "{name}");
    }
    let counts = ["settled", "released", "retried"].map(|what| info(&mut client, "rl", &format!("rl_{what}")));
    assert_eq!(counts, [4, 4, 12]);
    let top: Vec<Vec<Value>> = call(&mut client, "RL.TOP");
    assert_eq!(top.len(), 4, "{top:?}");
    assert!(top.iter().all(|row| row[5] == Value::Int(1)), "{top:?}");
}

#[test]
fn a_retry_and_a_nil_cause_no_event_and_no_effect() {
    // With `always`, the file has grown when the reply comes.
    let files = ["--appendonly", "yes", "--appendfsync", "always", "--notify-keyspace-events", "KEd"];
    let (server, mut client) = Watched::with(&files).and_client();
    for name in LIMITERS {
        let event = format!("rl.{}", name.to_lowercase());
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4 ID a"));
        assert_eq!(server.events(&event, name).len(), 1);
        let before = traces(&mut client);
        call::<()>(&mut client, &format!("WATCH {name}"));
        limit(&mut client, &format!("RL.{name} {name} 10 1d COST 4 ID a"));
        settle(&mut client, &format!("RL.SETTLE {name} b 4"));
        assert!(watched_are_unchanged(&mut client), "{name}");
        assert_eq!(traces(&mut client), before, "{name}");
        assert_eq!((server.events(&event, name).len(), server.events("rl.denied", name).len()), (1, 0), "{name}");
        settle(&mut client, &format!("RL.SETTLE {name} a 2"));
        assert_eq!(server.events(&event, name).len(), 2, "{name}");
    }
}

// ---- The queue ----

#[test]
fn a_retry_does_not_wait_for_the_queue() {
    let (server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        let rule = format!("RL.{name} {name} 10 1h");
        limit(&mut client, &format!("{rule} COST 9 ID a"));
        let mut waiting = Held::send(&server, &format!("{rule} COST 10 BLOCK 1d"));
        wait_for("the waiter", || held(&mut client) == 1);
        let row = limit(&mut client, &format!("{rule} COST 9 ID a BLOCK 1d"));
        assert_eq!(row[..4], [9, 10, 1, 0], "{name}");
        // Another id is denied, because it must not overtake the waiter.
        assert_eq!(limit(&mut client, &format!("{rule} ID b"))[0], 0, "{name}");
        // To settle wakes the queue.
        assert!(settle(&mut client, &format!("RL.RELEASE {name} a")).is_some(), "{name}");
        assert_eq!(waiting.reply().granted(), 10, "{name}");
    }
}

#[test]
fn a_waiter_is_charged_as_of_the_moment_at_which_its_units_were_due() {
    // With ids, too, the units that flow in while the timer is late are not lost.
    let (server, mut client) = Watched::with(&[]).and_client();
    for name in ["GCRA", "BUCKET"] {
        let calls = 60;
        let rule = format!("RL.{name} {name} 200 1s");
        limit(&mut client, &format!("{rule} COST 200 ID first"));
        let from = time_us(&mut client);
        let waiting: Vec<_> =
            (0..calls).map(|call| Held::send(&server, &format!("{rule} COST 5 ID waiter:{call} BLOCK 1h"))).collect();
        let replies = support::replies(waiting);
        assert!(replies.iter().all(|reply| reply.granted() == 5), "{replies:?}");
        let last = replies.iter().map(|reply| reply.at_us()).max().expect("replies");
        // 60 times 5 units take 1.5 seconds.
        let due = from + 1_500_000 + server.lost_us(from, last);
        let late = server.ticks(due, last);
        assert!(late <= 40, "{name}: late by {late} ticks, {} us", last - due);
    }
}

// ---- Lost replies ----

/// The clients of a load. Each makes charges of 2 units, one after the other, each with an id of its own, and repeats a charge whose
/// reply it did not get.
struct Chargers {
    rule: String,
    /// How many charges of each client were answered.
    answered: Vec<AtomicUsize>,
}

impl Chargers {
    fn new(name: &str) -> Self {
        let answered = (0..50).map(|_| AtomicUsize::new(0)).collect();
        Self { rule: format!("RL.{name} {name} 1000000 3650d"), answered }
    }

    /// Makes charges until the connection ends or the load does.
    fn charge(&self, client: &mut Connection, number: usize, load: &Load) {
        let answered = &self.answered[number];
        while load.goes_on() {
            let words = format!("{} COST 2 ID client:{number}:{}", self.rule, answered.load(Ordering::Relaxed));
            match command(&words).query::<Vec<i64>>(client) {
                Ok(row) => assert_eq!(row[0], 2, "{words}"),
                Err(_) => return,
            }
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(&self) -> usize {
        self.answered.iter().map(|answered| answered.load(Ordering::Relaxed)).sum()
    }

    /// Repeats the charges that may not have been answered, and checks that each charge was made once.
    fn check(&self, client: &mut Connection, name: &str) {
        for (number, answered) in self.answered.iter().enumerate() {
            let charge = answered.fetch_add(1, Ordering::Relaxed);
            assert_eq!(limit(client, &format!("{} COST 2 ID client:{number}:{charge}", self.rule))[0], 2);
        }
        let used = 1_000_000 - limit(client, &format!("RL.PEEK {name} {name} 1000000 3650d"))[2];
        assert_eq!(used, 2 * self.count() as i64, "{name}");
    }
}

#[test]
fn a_charge_that_is_repeated_after_a_killed_connection_is_charged_once() {
    let server = Server::start();
    for name in LIMITERS {
        let (chargers, load) = (Chargers::new(name), Load::default());
        std::thread::scope(|scope| {
            for number in 0..chargers.answered.len() {
                let (chargers, load, server) = (&chargers, &load, &server);
                scope.spawn(move || {
                    while load.goes_on() {
                        // The connection may be killed while it is being made.
                        let Ok(mut client) = server.try_client(Resp::Two) else { continue };
                        chargers.charge(&mut client, number, load);
                    }
                });
            }
            let _end = load.ends_here();
            let mut killer = server.client();
            let mut killed = 0;
            for _ in 0..20 {
                let before = chargers.count();
                wait_for("some charges", || chargers.count() > before + 50);
                killed += call::<i64>(&mut killer, "CLIENT KILL TYPE normal SKIPME yes");
            }
            assert!(killed > 200, "{killed}");
        });
        chargers.check(&mut server.client(), name);
    }
    assert!(info(&mut server.client(), "rl", "rl_retried") > 0);
}

#[test]
fn a_charge_that_is_repeated_after_a_crash_is_charged_once() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let all = LIMITERS.map(Chargers::new);
    for _ in 0..4 {
        let load = Load::default();
        std::thread::scope(|scope| {
            for (chargers, number) in all.iter().flat_map(|all| (0..all.answered.len()).map(move |number| (all, number))) {
                let (load, mut client) = (&load, server.client());
                scope.spawn(move || chargers.charge(&mut client, number, load));
            }
            let _end = load.ends_here();
            let before: Vec<_> = all.iter().map(Chargers::count).collect();
            wait_for("some charges", || all.iter().zip(&before).all(|(all, before)| all.count() > before + 100));
            server.signal(Signal::KILL);
        });
        server.crash_and_restart();
        server.rewrite_append_only_file();
    }
    let mut client = server.client();
    all.iter().zip(LIMITERS).for_each(|(chargers, name)| chargers.check(&mut client, name));
}

// ---- Effects ----

/// The bytes that each of these calls adds to the replication stream.
fn bytes_a_call(primary: &mut Connection, calls: impl Iterator<Item = String>) -> i64 {
    let offset = |client: &mut Connection| info(client, "replication", "master_repl_offset");
    let before = offset(primary);
    let mut count = 0;
    for words in calls {
        call::<Value>(primary, &words);
        count += 1;
    }
    (offset(primary) - before) / count
}

#[test]
fn calls_with_ids_replicate_little() {
    let primary = Server::on_port(&["--repl-ping-replica-period", "3600"]);
    let replica = primary.replica(&[]);
    let (mut left, mut right) = (primary.client(), replica.client());
    for name in LIMITERS.into_iter().chain(["LEASE"]) {
        let words = |id: i64| match name {
            "LEASE" => format!("RL.LEASE LEASE 60000 1h ID lease:{id}"),
            _ => format!("RL.{name} {name} 1000000000 1d COST 100 ID charge:{id}"),
        };
        let settle = |id: i64| match name {
            "LEASE" => format!("RL.RELEASE LEASE lease:{id}"),
            _ => format!("RL.SETTLE {name} charge:{id} {}", id * 7 % 200),
        };
        bytes_a_call(&mut left, (0..1_000).map(words));
        // Charges and settlements in turn, so that there are about 1000 ids all the time.
        let both = bytes_a_call(&mut left, (1_000..3_000).flat_map(|id| [words(id), settle(id - 1_000)]));
        let random = bytes_a_call(&mut left, (0..1_000).map(|id| settle(2_000 + id * 617 % 1_000)));
        println!("{name}: {both} bytes a call in turn, {random} bytes a settlement in random order");
        assert!(both < 1_024 && random < 1_024, "{name}: {both}, {random}");
        // Callers with two policies in turn, as while a new version of an application is rolled out.
        bytes_a_call(&mut left, (3_000..4_000).map(words));
        for (old, new) in
            [(" 1d ", " 36h "), ("00000 1h", "00000 90m"), ("1000000000 ", "2000000000 "), ("60000 ", "50000 ")]
        {
            if words(0).contains(old) {
                let changed = |id: i64, text: String| if id % 2 == 0 { text.replace(old, new) } else { text };
                let with_ids =
                    bytes_a_call(&mut left, (4_000..5_000).flat_map(|id| [changed(id, words(id)), settle(id - 1_000)]));
                let without =
                    |id| changed(id, words(0).split(" ID ").next().expect("a call").replace("RL.LEASE", "RL.PEEK LEASE"));
                let without_ids = bytes_a_call(&mut left, (0..1_000).map(without));
                println!("{name}: {old}and {new}in turn: {with_ids} bytes a call with an id, {without_ids} without");
                assert!(with_ids < 1_024 && without_ids < 1_024, "{name}: {old}and {new}: {with_ids}, {without_ids}");
                bytes_a_call(&mut left, (4_000..5_000).map(settle));
                bytes_a_call(&mut left, (3_000..4_000).map(words));
            }
        }
    }
    // As without ids, a call to a long log replicates its own entry only.
    wait_for("the replica", || {
        info(&mut left, "replication", "master_repl_offset") == info(&mut right, "replication", "master_repl_offset")
    });
    assert_same(&snapshots(&mut right), &snapshots(&mut left));
}
