//! A waiting `RL.ALL`: in which lines it stands, when it is granted, and when it is denied.

use redis::{Connection, Value};
use support::witness::{timed, Watched, A_FEW};
use support::{
    assert_same, at_once, call, held, inspect, limit, settle, snapshots, time_us, wait_for, AllRows, AtOnce, Held, Server,
    LIMITERS,
};

use super::all;

const MS: i64 = 1_000;

/// How many clients stand in the line of each key.
fn waiting<const N: usize>(client: &mut Connection, keys: [&str; N]) -> [i64; N] {
    keys.map(|key| inspect(client, key, "waiting").unwrap_or(0))
}

/// Has a holder take leases until the key is full.
fn fill(client: &mut Connection, key: &str, limit_of: i64, ttl: &str) {
    assert_eq!(limit(client, &format!("RL.LEASE {key} {limit_of} {ttl} ID holder COST {limit_of}"))[0], limit_of);
}

// ---- Grants ----

#[test]
fn a_call_is_granted_when_the_last_of_its_rules_grants_and_charges_all_then() {
    let (server, mut client) = Watched::start().and_client();
    // Each rule is the last once. The units are due after 100, 200, 300 and 400 ms, in an order that rotates.
    let names = ["FIXED", "SLIDE", "GCRA", "BUCKET"];
    for turn in 0..4 {
        call::<()>(&mut client, "FLUSHALL");
        let rules: Vec<_> =
            names.iter().enumerate().map(|(place, name)| format!("{name} 1 {}ms", 100 * ((place + turn) % 4 + 1))).collect();
        let uses = names
            .iter()
            .zip(&rules)
            .map(|(name, rule)| format!("RL.{} {name} {}", name, rule.split_once(' ').expect("a rule").1));
        let words = format!("RL.ALL 4 {} {} BLOCK 30", names.join(" "), rules.join(" "));
        let AtOnce { mut held, from_us, to_us } = at_once(&server, uses.chain([words]));
        let reply = held.pop().expect("a call").answer::<AllRows>();
        let at = reply.at_us();
        let (granted, wait, rows) = reply.row.expect("a grant");
        assert_eq!((granted, wait), (1, 0));
        assert!(rows.iter().all(|row| row[..4] == [1, 1, 0, 0]), "{rows:?}");
        assert!(at >= from_us + 400 * MS, "{} us early", from_us + 400 * MS - at);
        // An entry of SLIDE leaves its window a tick late.
        server.assert_not_late(&format!("turn {turn}"), to_us + 400 * MS, at, 1 + A_FEW);
        // GCRA and BUCKET are charged as of the moment at which the last unit was due, the others as of the answer.
        for (name, row) in names.iter().zip(&rows) {
            let period = 100 * ((names.iter().position(|other| other == name).expect("a name") + turn) as i64 % 4 + 1);
            let late = (at - from_us) / MS - 400;
            let least = if name.len() == 5 { period } else { period - late - 1 };
            assert!((least.max(0)..=period + 1).contains(&row[4]), "{name} of turn {turn}: {row:?}, late by {late} ms");
        }
    }
}

#[test]
fn a_released_lease_grants_a_call_that_waits_for_nothing_else() {
    let (server, mut client) = Watched::start().and_client();
    for name in LIMITERS {
        call::<()>(&mut client, "FLUSHALL");
        fill(&mut client, "slots", 2, "1h");
        let waiting =
            Held::send(&server, &format!("RL.ALL 2 tokens slots {name} 10 1d COST 4 LEASE 2 30m COST 2 ID job BLOCK 1d"));
        let mut waiting = waiting;
        assert_eq!(held(&mut client), 1);
        assert_eq!(call::<i64>(&mut client, "EXISTS tokens"), 0);
        settle(&mut client, "RL.RELEASE slots holder").expect("a lease");
        let released = time_us(&mut client);
        let reply = waiting.answer::<AllRows>();
        server.assert_not_late(name, released, reply.at_us(), A_FEW);
        let (granted, wait, rows) = reply.row.expect("a grant");
        assert_eq!((granted, wait, &rows[0][..4], &rows[1][..4]), (1, 0, &[4, 10, 6, 0][..], &[2, 2, 0, 0][..]));
        // The ttl counts from the answer.
        assert_eq!(rows[1][4], 1_800_000);
        // It is one charge that both keys remember.
        assert!(settle(&mut client, "RL.RELEASE tokens job").is_some());
        assert!(settle(&mut client, "RL.RELEASE slots job").is_some());
    }
}

#[test]
fn a_lapsed_lease_grants_a_call_on_time() {
    let server = Watched::start();
    let calls = [
        "RL.LEASE slots 1 150ms ID holder",
        "RL.GCRA pace 1 50ms",
        "RL.ALL 2 pace slots GCRA 1 50ms LEASE 1 1h ID a BLOCK 30",
    ];
    let AtOnce { mut held, from_us, to_us } = at_once(&server, calls);
    let reply = held.remove(2).answer::<AllRows>();
    assert!(reply.at_us() >= from_us + 150 * MS);
    server.assert_not_late("the lapse", to_us + 150 * MS, reply.at_us(), A_FEW);
    let (granted, _, rows) = reply.row.expect("a grant");
    assert_eq!((granted, rows[0][0], rows[1][0]), (1, 1, 1));
}

// ---- As of when a call is charged ----

/// The moment as of which a key of GCRA was last charged, as its record holds it; `None` if the key has expired.
fn charged_at(client: &mut Connection, key: &str) -> Option<i64> {
    let at: Vec<u8> = call(client, &format!("GETRANGE {key} 13 19"));
    (!at.is_empty()).then(|| i64::from_le_bytes([&at[..], &[0]].concat().try_into().expect("seven bytes")))
}

/// A call waits for two keys, of which the first is used up and the second is free. Meanwhile others make these calls, after
/// those of `before`. Returns as of which moments both keys are charged.
fn charged_while(client: &mut Connection, server: &Server, before: &[&str], calls: &[&str]) -> (i64, i64) {
    let send = |client: &mut Connection, words: &[&str]| {
        for words in words {
            let _: redis::RedisResult<Value> = support::command(words).query(client);
        }
    };
    // On a slow machine the wait can end before the calls do, or the first key before it is read. Then it is all done again with
    // a longer wait.
    for wait_ms in [50, 500, 5_000] {
        let first = format!("GCRA 1 {wait_ms}ms");
        call::<()>(client, "FLUSHALL");
        send(client, &[&format!("RL.{}", first.replace("GCRA", "GCRA first"))]);
        send(client, before);
        let waiting = Held::send(server, &format!("RL.ALL 2 first second {first} GCRA 5 50s BLOCK 30"));
        send(client, calls);
        let waited = held(client) == 1;
        let (granted, _, rows) = waiting.rows();
        if waited {
            assert_eq!((granted, rows[0][0], rows[1][0]), (1, 1, 1));
            if let (Some(first), Some(second)) = (charged_at(client, "first"), charged_at(client, "second")) {
                return (first, second);
            }
        }
    }
    panic!("the call did not wait, or its first key expired at once");
}

#[test]
fn a_call_that_changes_nothing_does_not_change_as_of_when_a_waiting_call_is_charged() {
    let (server, mut client) = Server::start().and_client();
    for before in [&[][..], &["RL.GCRA second 5 50s COST 2"]] {
        for words in [
            "PING",
            "RL.PEEK GCRA second 5 50s",
            "RL.PEEK GCRA second 5 50s COST 5",
            "RL.INSPECT second",
            "RL.GCRA second 5 50s COST 6",
            "RL.GCRA second 5 50s COST 6 BLOCK 1",
            "RL.GCRA second 0 50s",
            "RL.FIXED second 5 50s COST 6",
            "RL.SETTLE second other 1",
            "RL.RELEASE second other",
            "CL.THROTTLE second 4 5 50 6",
            "CL.THROTTLE second 4 5 50 0",
            "RL.ALL 2 second first GCRA 5 50s GCRA 1 1h",
            "RL.ALL 2 second third GCRA 5 50s GCRA 1 50s COST 2",
        ] {
            let (first, second) = charged_while(&mut client, &server, before, &[words]);
            assert_eq!(second - first, 0, "{words} after {before:?}");
        }
    }
}

#[test]
fn a_call_that_changes_a_key_ends_what_a_waiting_call_knows_of_it() {
    let (server, mut client) = Server::start().and_client();
    let (used, with_id) = (&["RL.GCRA second 5 50s"][..], &["RL.GCRA second 5 50s ID a"][..]);
    for (before, words) in [
        // These leave no trace, because the unit is free again after a microsecond.
        (&[][..], "RL.GCRA second 1000000 1s"),
        (&[], "RL.GCRA second 1000000 1s COST 1"),
        (&[], "RL.GCRA second 1000000 1s ID a"),
        (&[], "RL.GCRA second 1000000 1s UPTO 1"),
        (&[], "RL.GCRA second 1000000 1s FORCE 1"),
        (&[], "RL.GCRA second 1000000 1s RESERVE 1"),
        (&[], "RL.GCRA second 1000000 1s BLOCK 1"),
        (&[], "RL.BUCKET second 1000000 1s"),
        (&[], "RL.ALL 2 third second GCRA 5 1s GCRA 1000000 1s"),
        (&[], "CL.THROTTLE second 999999 1000000 1"),
        (used, "RL.GCRA second 5 50s REFUND 1"),
        (used, "CL.THROTTLE second 4 5 50 -1"),
        (used, "DEL second"),
        (with_id, "RL.RELEASE second a"),
        (with_id, "RL.SETTLE second a 2"),
    ] {
        let (first, second) = charged_while(&mut client, &server, before, &[words]);
        assert!(second > first, "{words} after {before:?}: {} us", second - first);
    }
}

// ---- Lines ----

#[test]
fn a_call_stands_only_in_the_lines_it_has_had_to_wait_in_and_others_pass_elsewhere() {
    let (server, mut client) = Server::start().and_client();
    // The call waits longest for `a`. The keys `b` and `c` refuse it, too, but it has not asked them alone.
    fill(&mut client, "a", 1, "2h");
    limit(&mut client, "RL.FIXED b 5 1h COST 4");
    let words = "RL.ALL 3 a b c LEASE 1 2h FIXED 5 1h COST 3 SLIDE 5 1h COST 3 ID first BLOCK 1d";
    let first = Held::send(&server, words);
    let before = snapshots(&mut client);
    assert_eq!(waiting(&mut client, ["a", "b", "c"]), [1, 0, 0]);
    // Direct calls on `a` are denied, and so is RL.ALL with `a`; on the other keys they pass.
    assert_eq!(limit(&mut client, "RL.LEASE a 2 1h ID direct")[0], 0);
    let (granted, wait, rows) = all(&mut client, "RL.ALL 2 a d LEASE 2 1h FIXED 5 1h ID direct");
    assert!(granted == 0 && wait >= 1 && rows[0][0] == 0 && rows[1][0] == 1, "{rows:?}");
    assert_same(&snapshots(&mut client), &before);
    assert_eq!(limit(&mut client, "RL.FIXED b 5 1h")[0], 1);
    assert_eq!(all(&mut client, "RL.ALL 2 c d SLIDE 5 1h COST 3 FIXED 5 1h").0, 1);
    // Another call that waits for `b` alone stands in its line, before the older one joins it.
    let second = Held::send(&server, "RL.FIXED b 5 1h COST 2 BLOCK 1d");
    assert_eq!(waiting(&mut client, ["a", "b", "c"]), [1, 1, 0]);
    // Now `a` is free. The call keeps its place in that line, and joins the line of `b` or `c`, the one that makes it wait longer.
    settle(&mut client, "RL.RELEASE a holder").expect("a lease");
    let lines = |client: &mut Connection| {
        // `a` has no record while nobody holds a lease, but direct calls are still denied there.
        let [b, c] = waiting(client, ["b", "c"]);
        (limit(client, "RL.LEASE a 2 1h ID direct")[0], b + c)
    };
    wait_for("the next line", || lines(&mut client) == (0, 2));
    let row = limit(&mut client, "RL.LEASE a 2 1h ID direct");
    assert!(row[0] == 0 && row[2] == 2 && row[3] >= 1, "units are free, but an older call waits: {row:?}");
    // All units of both keys are given back: both calls are granted, the older one first.
    limit(&mut client, "RL.FIXED b 5 1h REFUND 5");
    limit(&mut client, "RL.SLIDE c 5 1h REFUND 5");
    let (granted, _, rows) = first.rows();
    assert_eq!((granted, rows[0][0], rows[1][0], rows[2][0]), (1, 1, 3, 3));
    assert_eq!(second.row()[0], 2);
    assert_eq!(waiting(&mut client, ["a", "b", "c"]), [0, 0, 0]);
}

#[test]
fn the_place_in_a_line_that_is_joined_later_is_by_arrival() {
    let (server, mut client) = Server::start().and_client();
    for rounds in 0..3 {
        call::<()>(&mut client, "FLUSHALL");
        fill(&mut client, "a", 1, "2h");
        fill(&mut client, "b", 1, "1h");
        let old = Held::send(&server, "RL.ALL 2 b a LEASE 1 1h LEASE 1 1h ID old BLOCK 1d");
        assert_eq!(waiting(&mut client, ["a", "b"]), [1, 0]);
        // Younger calls, which come to the line of `b` before the old one.
        let young: Vec<_> =
            (0..=rounds).map(|number| Held::send(&server, &format!("RL.LEASE b 1 1h ID young:{number} BLOCK 1d"))).collect();
        assert_eq!(waiting(&mut client, ["a", "b"]), [1, 1 + rounds]);
        settle(&mut client, "RL.RELEASE a holder").expect("a lease");
        wait_for("the second line", || waiting(&mut client, ["b"]) == [2 + rounds]);
        assert_eq!(held(&mut client), 2 + rounds);
        settle(&mut client, "RL.RELEASE b holder").expect("a lease");
        let (granted, _, rows) = old.rows();
        assert_eq!((granted, rows[0][0], rows[1][0]), (1, 1, 1));
        assert_eq!(waiting(&mut client, ["a", "b"]), [0, 1 + rounds]);
        settle(&mut client, "RL.RELEASE b old").expect("a lease");
        for (number, held) in young.into_iter().enumerate() {
            assert_eq!(held.row()[0], 1);
            settle(&mut client, &format!("RL.RELEASE b young:{number}")).expect("a lease");
        }
    }
}

#[test]
fn calls_on_the_same_keys_are_granted_in_turn() {
    let (server, mut client) = Server::start().and_client();
    for keys in ["a b c", "c b a", "b c a"] {
        call::<()>(&mut client, "FLUSHALL");
        for key in ["a", "b", "c"] {
            fill(&mut client, key, 1, "1h");
        }
        let calls = (0..6).map(|number| {
            let keys = if number % 2 == 0 { "a b c" } else { keys };
            format!("RL.ALL 3 {keys} LEASE 1 1h LEASE 1 1h LEASE 1 1h ID call:{number} BLOCK 1d")
        });
        let held = at_once(&server, calls).held;
        for key in ["c", "a", "b"] {
            settle(&mut client, &format!("RL.RELEASE {key} holder")).expect("a lease");
        }
        for (number, call) in held.into_iter().enumerate() {
            assert_eq!(call.rows().0, 1);
            assert_eq!(support::held(&mut client), 5 - number as i64, "{keys}");
            for key in ["a", "b", "c"] {
                settle(&mut client, &format!("RL.RELEASE {key} call:{number}")).expect("a lease");
            }
        }
    }
}

#[test]
fn a_call_that_waits_is_not_passed_by_small_calls_without_end() {
    let (server, mut client) = Server::start().and_client();
    // Ten callers take and release single slots of both keys in turn; the call needs all slots of both at one moment.
    let load = &support::Load::default();
    std::thread::scope(|scope| {
        for caller in 0..10 {
            let mut client = server.client();
            scope.spawn(move || {
                for number in 0.. {
                    if !load.goes_on() {
                        break;
                    }
                    let key = ["a", "b"][(caller + number) % 2];
                    let id = format!("{caller}:{number}");
                    if limit(&mut client, &format!("RL.LEASE {key} 5 1h ID {id} BLOCK 20"))[0] > 0 {
                        settle(&mut client, &format!("RL.RELEASE {key} {id}")).expect("a lease");
                    }
                }
            });
        }
        let _end = load.ends_here();
        for round in 0..10 {
            let words = format!("RL.ALL 2 a b LEASE 5 1h COST 5 LEASE 5 1h COST 5 ID large:{round} BLOCK 30");
            assert_eq!(all(&mut client, &words).0, 1, "round {round}");
            for key in ["a", "b"] {
                settle(&mut client, &format!("RL.RELEASE {key} large:{round}")).expect("a lease");
            }
        }
    });
}

#[test]
fn a_call_of_the_most_keys_waits_and_is_granted() {
    let (server, mut client) = Server::start().and_client();
    let keys: Vec<_> = (0..1_024).map(|key| format!("key:{key}")).collect();
    let kinds = ["FIXED 5 1h", "SLIDE 5 1h", "GCRA 5 1h", "LEASE 5 1h"];
    let rules: Vec<_> = (0..keys.len()).map(|key| kinds[key % 4]).collect();
    let words = |id: &str| format!("RL.ALL 1024 {} {} ID {id} BLOCK 1d", keys.join(" "), rules.join(" "));
    // The last key, and one in the middle, are used up. Both refuse the call; it stands in one line at a time.
    limit(&mut client, "RL.LEASE key:1023 5 1h ID holder COST 5");
    limit(&mut client, "RL.SLIDE key:401 5 2h ID holder COST 5");
    let calls: Vec<_> = (0..3).map(|number| Held::send(&server, &words(&format!("call:{number}")))).collect();
    // The server reads such a long call in several parts.
    wait_for("the waiters", || held(&mut client) == 3);
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 2);
    settle(&mut client, "RL.RELEASE key:401 holder").expect("a charge");
    settle(&mut client, "RL.RELEASE key:1023 holder").expect("a lease");
    for call in calls {
        let (granted, wait, rows) = call.rows();
        assert_eq!((granted, wait, rows.len()), (1, 0, 1_024));
        assert!(rows.iter().all(|row| row[..2] == [1, 5]), "{rows:?}");
    }
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 1_024);
    for key in keys {
        assert!((0..3).all(|number| settle(&mut client, &format!("RL.RELEASE {key} call:{number}")).is_some()), "{key}");
    }
}

// ---- Denials ----

#[test]
fn a_call_is_denied_at_once_that_can_never_be_granted_or_not_in_time() {
    let (server, mut client) = Server::start().and_client();
    fill(&mut client, "slots", 2, "1h");
    limit(&mut client, "RL.FIXED fixed 10 1000s COST 10");
    limit(&mut client, "RL.SLIDE slide 10 1000s COST 10");
    limit(&mut client, "RL.GCRA gcra 10 1000s COST 10");
    limit(&mut client, "RL.BUCKET bucket 10 1000s COST 10");
    let before = snapshots(&mut client);
    let mut ask = |keys: &str, rules: &str| {
        let reply = all(&mut client, &format!("RL.ALL 2 {keys} {rules} ID a"));
        assert_eq!((reply.0, held(&mut client)), (0, 0), "{rules}");
        (reply.1, reply.2)
    };
    // Never: a cost above the capacity, or limit 0. Leases, too, and beside a rule that would be granted later.
    for (keys, rules, refusing) in [
        ("free slots", "FIXED 5 1d LEASE 2 1h COST 3 BLOCK 1d", 1),
        ("slots free", "LEASE 2 1h GCRA 5 1d BURST 2 COST 3 BLOCK 1d", 1),
        ("free slots", "BUCKET 0 1d LEASE 2 1h BLOCK 1d", 0),
        ("free slots", "FIXED 5 1d LEASE 0 1h BLOCK 1d", 1),
    ] {
        let (wait, rows) = ask(keys, rules);
        assert_eq!((wait, rows[refusing][0], rows[refusing][3]), (-1, 0, -1), "{rules}");
        let other = &rows[1 - refusing];
        assert_eq!(other[0] == 0, keys.starts_with("slots") || rules.starts_with("BUCKET 0"), "{rules}: {rows:?}");
    }
    // Certainly not in time: wait_ms is after how long the same call would succeed.
    for (name, cost, need_ms) in
        [("FIXED", 1, 1_000_000), ("SLIDE", 1, 1_000_016), ("GCRA", 4, 400_000), ("BUCKET", 4, 400_000)]
    {
        let key = name.to_lowercase();
        let (wait, rows) = ask(&format!("{key} free"), &format!("{name} 10 1000s COST {cost} SLIDE 5 1d COST 2 BLOCK 50s"));
        assert!((need_ms - 60_000..=need_ms - 50_000).contains(&wait), "{name}: {wait}");
        assert_eq!([&rows[0][..4], &rows[1][..]], [&[0, 10, 0, wait][..], &[2, 5, 5, 0, 0]], "{name}");
    }
    assert_same(&snapshots(&mut client), &before);
    // A lease may be released early, so the call waits although the lease lasts longer.
    let waiting = Held::send(&server, "RL.ALL 2 slots free LEASE 2 1h FIXED 5 1d ID a BLOCK 20s");
    assert_eq!(held(&mut client), 1);
    settle(&mut client, "RL.RELEASE slots holder").expect("a lease");
    assert_eq!(waiting.rows().0, 1);
}

#[test]
fn a_denial_at_the_end_of_the_wait_shows_each_rule_as_it_stands() {
    let (server, mut client) = Watched::start().and_client();
    let (_, leased_from, leased_to) = timed(&mut client, "RL.LEASE slots 1 1h ID holder");
    limit(&mut client, "RL.FIXED used 5 1d COST 1");
    limit(&mut client, "RL.GCRA soon 1 1s");
    let before = snapshots(&mut client);
    let words = "RL.ALL 4 used slots fresh soon FIXED 5 1d COST 3 LEASE 1 1h SLIDE 7 1d COST 2 GCRA 1 1s ID a BLOCK 200ms";
    // The last rule can't be granted in time: at once. Without it, the call waits.
    let (granted, wait, rows) = all(&mut client, words);
    assert_eq!((granted, held(&mut client)), (0, 0));
    assert_eq!((wait, rows[1][0], rows[3][0]), (rows[1][3], 0, 0));
    let words = "RL.ALL 3 used slots fresh FIXED 5 1d COST 3 LEASE 1 1h SLIDE 7 1d COST 2 ID a BLOCK 200ms";
    let mut waiting = Held::send(&server, words);
    let reply = waiting.answer::<AllRows>();
    let at = reply.at_us();
    assert!(at >= reply.sent_us + 200 * MS);
    let (granted, wait, rows) = reply.row.expect("a denial");
    assert_eq!((granted, wait), (0, rows[1][3]));
    assert_eq!([&rows[0][..4], &rows[2][..]], [&[3, 5, 4, 0][..], &[2, 7, 7, 0, 0]]);
    // The lease lapses an hour after it was taken; after another wait of 200 ms, the call would succeed.
    let left_ms = |us: i64| (us + 3_600_000 * MS - at + MS - 1) / MS;
    assert_eq!(rows[1][..3], [0, 1, 0]);
    assert!(
        (left_ms(leased_from) - 200..=left_ms(leased_to) - 200 + 1 + (at - reply.sent_us) / MS - 200).contains(&rows[1][3]),
        "{rows:?}"
    );
    assert_same(
        &snapshots(&mut client),
        &before
            .into_iter()
            .filter(|(key, _)| key != "soon")
            .chain(snapshots(&mut client).into_iter().filter(|(key, _)| key == "soon"))
            .collect(),
    );
    // A rule whose units are free, but in whose line an older client waits, has refused the call: its wait is at least 1 ms.
    let older = Held::send(&server, "RL.FIXED used 5 12h COST 5 BLOCK 1d");
    let (granted, wait, rows) = Held::send(&server, "RL.ALL 2 used fresh FIXED 5 1d SLIDE 7 1d COST 2 BLOCK 50ms").rows();
    assert_eq!((granted, wait, rows[0][0], &rows[1][..4]), (0, rows[0][3], 0, &[2, 7, 7, 0][..]));
    assert!(wait >= 1, "{rows:?}");
    limit(&mut client, "RL.FIXED used 5 1d REFUND 1");
    assert_eq!(older.row()[0], 5);
}

#[test]
fn time_outs_come_on_time_and_free_the_lines() {
    let (server, mut client) = Watched::start().and_client();
    fill(&mut client, "a", 1, "1h");
    let spans = [120, 155, 250, 333, 101];
    let calls = spans
        .iter()
        .enumerate()
        .map(|(number, span)| format!("RL.ALL 2 a b LEASE 1 1h FIXED 5 1h ID call:{number} BLOCK {span}ms"));
    let AtOnce { held, from_us, to_us } = at_once(&server, calls);
    let behind = Held::send(&server, "RL.LEASE a 1 1h ID behind BLOCK 1d");
    for (mut call, span) in held.into_iter().zip(spans) {
        let reply = call.answer::<AllRows>();
        let at = reply.at_us();
        assert!(at >= from_us + span * MS, "{span} ms ended after {} us", at - from_us);
        server.assert_not_late(&format!("{span} ms"), to_us + span * MS, at, A_FEW);
        let (granted, wait, rows) = reply.row.expect("a denial");
        assert_eq!((granted, wait, rows[0][0], &rows[1][..]), (0, rows[0][3], 0, &[1, 5, 5, 0, 0][..]));
    }
    assert_eq!(waiting(&mut client, ["a"]), [1]);
    settle(&mut client, "RL.RELEASE a holder").expect("a lease");
    assert_eq!(behind.row()[0], 1);
}
