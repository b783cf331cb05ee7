//! `RL.ALL` with an id: the charge on each key is settled, released and retried by it, and leases are taken and renewed.

use support::witness::{timed, Watched};
use support::{
    assert_same, at_once, call, command, error, held, info, inspect, limit, settle, snapshot, snapshots, time_us, traces,
    wait_for, AllRows, Held, Server, LIMITERS,
};

use super::all;

const FIVE: &str =
    "RL.ALL 5 f s g b l FIXED 10 1d COST 4 SLIDE 10 1d COST 3 GCRA 10 1d COST 2 BUCKET 10 1d COST 4 LEASE 10 1h COST 5";

fn heads(rows: &[[i64; 5]]) -> Vec<[i64; 4]> {
    rows.iter().map(|row| [row[0], row[1], row[2], row[3]]).collect()
}

#[test]
fn one_id_names_the_charge_on_each_key_and_is_settled_key_by_key() {
    let (_server, mut client) = Server::start().and_client();
    let (granted, wait, rows) = all(&mut client, &format!("{FIVE} ID call"));
    let fresh = [[4, 10, 6, 0], [3, 10, 7, 0], [2, 10, 8, 0], [4, 10, 6, 0], [5, 10, 5, 0]];
    assert_eq!((granted, wait, heads(&rows)), (1, 0, fresh.to_vec()));
    for key in ["f", "s", "g", "b"] {
        assert_eq!(inspect(&mut client, key, "ids"), Some(1), "{key}");
    }
    // Each command finds the charge by its id.
    assert_eq!(limit(&mut client, "RL.FIXED f 10 1d ID call")[..4], [4, 10, 6, 0]);
    assert_eq!(limit(&mut client, "RL.LEASE l 10 1h ID call RENEW")[..4], [5, 10, 5, 0]);
    assert_eq!(settle(&mut client, "RL.SETTLE f call 1").expect("a charge")[..4], [1, 10, 9, 0]);
    assert_eq!(settle(&mut client, "RL.SETTLE s call 5").expect("a charge")[..4], [5, 10, 5, 0]);
    assert_eq!(settle(&mut client, "RL.RELEASE g call").expect("a charge")[..3], [0, 10, 10]);
    assert_eq!(settle(&mut client, "RL.RELEASE l call").expect("a lease")[..3], [0, 10, 10]);
    for key in ["f", "s", "g", "l"] {
        assert_eq!(settle(&mut client, &format!("RL.RELEASE {key} call")), None, "{key}");
    }
    // The last key has kept its charge all the time.
    assert_eq!(settle(&mut client, "RL.SETTLE b call 3").expect("a charge")[..4], [3, 10, 7, 0]);
}

#[test]
fn a_retry_that_all_keys_remember_charges_nothing() {
    let (_server, mut client) = Server::start().and_client();
    let words = "RL.ALL 4 f s g b FIXED 10 1d COST 4 SLIDE 10 1d COST 3 GCRA 10 1d COST 2 BUCKET 10 1d COST 9";
    let (_, _, first) = all(&mut client, &format!("{words} ID call"));
    let before = snapshots(&mut client);
    let changes = traces(&mut client);
    let retried = info(&mut client, "rl", "rl_retried");
    for again in [
        format!("{words} ID call"),
        format!("{words} ID call BLOCK 1d"),
        // The retry may name other amounts, also such as could not be granted at all.
        "RL.ALL 4 f s g b FIXED 10 1d SLIDE 10 1d COST 8 GCRA 10 1d COST 11 BUCKET 10 1d ID call BLOCK 1d".into(),
        // And other keys in another order.
        "RL.ALL 2 b f BUCKET 10 1d FIXED 10 1d ID call".into(),
    ] {
        let (granted, wait, rows) = all(&mut client, &again);
        assert_eq!((granted, wait), (1, 0), "{again}");
        let wanted = if rows.len() == 4 { heads(&first) } else { vec![heads(&first)[3], heads(&first)[0]] };
        assert_eq!(heads(&rows), wanted, "{again}");
    }
    assert_eq!(info(&mut client, "rl", "rl_retried"), retried + 3 * 4 + 2);
    // Limit 0 denies a retry, too; the other keys still show what they hold.
    let (granted, wait, rows) = all(&mut client, "RL.ALL 2 f s FIXED 0 1d SLIDE 10 1d ID call BLOCK 1d");
    assert_eq!((granted, wait, rows[0], &rows[1][..4]), (0, -1, [0, 0, 0, -1, 0], &[3, 10, 7, 0][..]));
    // Ids are case-sensitive: this is another call, which the last key denies.
    assert_eq!(all(&mut client, &format!("{words} ID CALL")).0, 0);
    assert_same(&snapshots(&mut client), &before);
    assert_eq!(traces(&mut client), changes);
    assert_eq!(held(&mut client), 0);
}

#[test]
fn a_retry_that_some_keys_remember_charges_the_others_or_none_of_them() {
    let (_server, mut client) = Server::start().and_client();
    let words = "RL.ALL 3 a b c FIXED 10 1d COST 4 SLIDE 10 1d COST 4 GCRA 10 1d COST 4 ID call";
    limit(&mut client, "RL.FIXED a 10 1d COST 7 ID call");
    limit(&mut client, "RL.GCRA c 10 1d COST 7 ID other");
    let before = snapshots(&mut client);
    // The third key denies, so the second is not charged. The first keeps what it remembers.
    for wait in ["", "BLOCK 1s"] {
        let (granted, wait_ms, rows) = all(&mut client, &format!("{words} {wait}"));
        assert_eq!((granted, wait_ms), (0, rows[2][3]), "{rows:?}");
        assert_eq!(
            [&rows[0][..4], &rows[1][..4], &rows[2][..3]],
            [&[7, 10, 3, 0][..], &[4, 10, 10, 0], &[0, 10, 3]],
            "{wait}"
        );
        assert_same(&snapshots(&mut client), &before);
    }
    // When there is room, those are charged that do not remember the call.
    settle(&mut client, "RL.RELEASE c other").expect("a charge");
    let kept = snapshot(&mut client, "a");
    let (granted, wait_ms, rows) = all(&mut client, words);
    assert_eq!((granted, wait_ms), (1, 0));
    assert_eq!(heads(&rows), [[7, 10, 3, 0], [4, 10, 6, 0], [4, 10, 6, 0]]);
    assert_eq!(snapshot(&mut client, "a"), kept);
    // What the caller releases, the next retry charges again.
    settle(&mut client, "RL.RELEASE a call").expect("a charge");
    let (granted, _, rows) = all(&mut client, words);
    assert_eq!((granted, heads(&rows)), (1, vec![[4, 10, 6, 0]; 3]));
    let counts = ["fixed", "slide", "gcra"].map(|name| info(&mut client, "rl", &format!("rl_{name}_granted")));
    assert_eq!(counts, [2, 1, 2], "retries do not count as granted");
}

#[test]
fn a_granted_retry_renews_the_lease_and_a_denied_one_changes_nothing() {
    let (_server, mut client) = Server::start().and_client();
    limit(&mut client, "RL.LEASE l 3 1h ID call COST 2");
    limit(&mut client, "RL.FIXED f 10 1d COST 8 ID other");
    let before = snapshots(&mut client);
    // Without COST, the rule of a lease takes what the lease holds; another COST is an error, and no key is charged.
    for (rules, text) in [
        ("LEASE 3 2h COST 1 FIXED 10 1d", "ERR COST must be 2, the units that this ID holds, or be omitted"),
        ("LEASE 3 2h COST 3 FIXED 10 1d COST 9", "ERR COST must be 2, the units that this ID holds, or be omitted"),
    ] {
        for wait in ["", "BLOCK 1d"] {
            assert_eq!(error(&mut client, &command(&format!("RL.ALL 2 l f {rules} ID call {wait}"))), text);
        }
    }
    let (granted, _, rows) = all(&mut client, "RL.ALL 2 l f LEASE 3 2h FIXED 10 1d COST 3 ID call");
    assert_eq!((granted, &rows[0][..4], rows[1][0]), (0, &[2, 3, 1, 0][..], 0));
    assert!(rows[0][4] <= 3_600_000, "a denied call does not renew: {rows:?}");
    assert_same(&snapshots(&mut client), &before);
    // Also if the limit is below what is held.
    for (rule, row) in [("LEASE 3 2h", [2, 3, 1, 0, 7_200_000]), ("LEASE 1 3h COST 2", [2, 1, 0, 0, 10_800_000])] {
        let (granted, wait, rows) = all(&mut client, &format!("RL.ALL 2 l f {rule} FIXED 10 1d ID call"));
        assert_eq!((granted, wait, rows[0]), (1, 0, row));
    }
    // It never shortens the lease.
    let (_, _, rows) = all(&mut client, "RL.ALL 2 l f LEASE 3 1m FIXED 10 1d ID call");
    assert!(rows[0][4] > 10_000_000, "{rows:?}");
    assert_eq!(limit(&mut client, "RL.PEEK FIXED f 10 1d")[2], 1);
    // Limit 0 denies renewals, and releases still work.
    let (granted, wait, rows) = all(&mut client, "RL.ALL 2 l f LEASE 0 1h FIXED 10 1d ID call");
    assert_eq!((granted, wait, rows[0]), (0, -1, [0, 0, 0, -1, 0]));
    assert!(settle(&mut client, "RL.RELEASE l call").is_some());
}

#[test]
fn a_lapsed_lease_is_taken_anew() {
    let (_server, mut client) = Server::start().and_client();
    let words = "RL.ALL 2 l f LEASE 1 100ms FIXED 10 1d ID call";
    assert_eq!(all(&mut client, words).0, 1);
    let after = time_us(&mut client);
    wait_for("the lease to lapse", || time_us(&mut client) > after + 100_000);
    assert_eq!(settle(&mut client, "RL.RELEASE l call"), None);
    // The lease is new, and the charge is still remembered.
    let (granted, _, rows) = all(&mut client, words);
    assert_eq!((granted, &rows[0][..4], &rows[1][..4]), (1, &[1, 1, 0, 0][..], &[1, 10, 9, 0][..]));
    // Where another caller holds the units now, the call is denied, and the charge stays.
    let after = time_us(&mut client);
    wait_for("the lease to lapse", || time_us(&mut client) > after + 100_000);
    limit(&mut client, "RL.LEASE l 1 1h ID other");
    let (granted, wait, rows) = all(&mut client, words);
    assert_eq!((granted, wait, rows[0][0], &rows[1][..4]), (0, rows[0][3], 0, &[1, 10, 9, 0][..]));
    assert!(settle(&mut client, "RL.RELEASE f call").is_some());
}

#[test]
fn a_retry_names_what_is_left_of_a_booking() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        let rule = format!("{name} 10 1h");
        limit(&mut client, &format!("RL.{name} {name} 10 1h COST 10"));
        let booked = limit(&mut client, &format!("RL.{name} {name} 10 1h COST 3 RESERVE 1d ID call"));
        let (_, _, before) = timed(&mut client, &format!("RL.PEEK {name} {name} 10 1h"));
        wait_for("some time", || time_us(&mut client) > before + 5_000);
        let kept = snapshot(&mut client, name);
        let again = limit(&mut client, &format!("RL.{name} {name} 10 1h COST 3 RESERVE 1d ID call"));
        assert!(booked[0] == 3 && again[0] == 3 && (1..booked[3]).contains(&again[3]), "{name}: {booked:?} then {again:?}");
        let (granted, wait, rows) = all(&mut client, &format!("RL.ALL 2 {name} free:{name} {rule} FIXED 5 1d ID call"));
        assert_eq!((granted, rows[0][0], &rows[1][..4]), (1, 3, &[1, 5, 4, 0][..]), "{name}");
        assert!((1..booked[3]).contains(&wait) && rows[0][3] == wait, "{name}: {booked:?} then {wait}, {rows:?}");
        assert_eq!(snapshot(&mut client, name), kept, "{name}");
        // A denied call names the wait for the rule that refuses it, and not that for the booking, which is longer.
        limit(&mut client, &format!("RL.FIXED full:{name} 1 1m"));
        let (granted, wait, rows) = all(&mut client, &format!("RL.ALL 2 {name} full:{name} {rule} FIXED 1 1m ID call"));
        assert_eq!((granted, rows[0][0], rows[1][0], wait), (0, 3, 0, rows[1][3]), "{name}");
        assert!(wait <= 60_000 && rows[0][3] > 60_000, "{name}: {wait}, {rows:?}");
        // A released booking does not act, and both charges are given back one by one.
        assert!(settle(&mut client, &format!("RL.RELEASE {name} call")).is_some());
        assert!(settle(&mut client, &format!("RL.RELEASE free:{name} call")).is_some());
    }
}

// ---- Retries and lines ----

#[test]
fn a_retry_does_not_wait_for_the_line() {
    let (server, mut client) = Server::start().and_client();
    let words = "RL.ALL 2 a b GCRA 10 1h COST 9 LEASE 10 1h COST 9 ID call";
    assert_eq!(all(&mut client, words).0, 1);
    let one = Held::send(&server, "RL.GCRA a 10 1h COST 10 BLOCK 1d");
    let two = Held::send(&server, "RL.LEASE b 10 1h COST 10 ID waits BLOCK 1d");
    wait_for("the waiters", || held(&mut client) == 2);
    for wait in ["", " BLOCK 1d"] {
        let (granted, wait_ms, rows) = all(&mut client, &format!("{words}{wait}"));
        assert_eq!((granted, wait_ms, rows[0][0], rows[1][0]), (1, 0, 9, 9));
    }
    // A key that does not remember the call does not let it pass its line.
    settle(&mut client, "RL.SETTLE b call 0").expect("a lease");
    assert_eq!(two.row()[0], 10);
    let three = Held::send(&server, "RL.LEASE b 10 1h COST 1 ID third BLOCK 1d");
    assert_eq!(all(&mut client, &words.replace("LEASE 10 1h COST 9", "LEASE 20 1h COST 1")).0, 0);
    settle(&mut client, "RL.RELEASE b waits").expect("a lease");
    assert_eq!(three.row()[0], 1);
    settle(&mut client, "RL.RELEASE a call").expect("a charge");
    assert_eq!(one.row()[0], 10);
}

#[test]
fn of_waiting_calls_with_one_id_the_first_is_charged_and_the_others_are_retries() {
    let (server, mut client) = Watched::with(&[]).and_client();
    for name in ["FIXED", "SLIDE", "GCRA", "BUCKET", "LEASE"] {
        call::<()>(&mut client, "FLUSHALL");
        let rule = |key: &str, rest: &str| format!("RL.{name} {key} 10 1h {rest}");
        for key in ["a", "b", "c"] {
            limit(&mut client, &rule(key, "COST 10 ID all"));
        }
        let two = |keys: &str, cost: i64| {
            format!("RL.ALL 2 {keys} {name} 10 1h COST {cost} {name} 10 1h COST {cost} ID same BLOCK 1d")
        };
        // Leases with one id have one size; charges may differ.
        let other_cost = if name == "LEASE" { 3 } else { 5 };
        let mut waiting = at_once(&server, [two("a b", 3), two("b c", other_cost), two("a b", 3), two("b a", 3)]).held;
        let mut single = Held::send(&server, &rule("a", "COST 3 ID same BLOCK 1d"));
        wait_for("the waiters", || held(&mut client) == 5);
        let retried = info(&mut client, "rl", "rl_retried");
        let before = time_us(&mut client);
        for key in ["a", "b"] {
            settle(&mut client, &rule(key, "ID all").replace(&format!("RL.{name}"), "RL.RELEASE").replace(" 10 1h ID", ""))
                .expect("a charge");
        }
        let mut answer = |index: usize| {
            let reply = waiting[index].answer::<AllRows>();
            assert!(server.ticks(before, reply.at_us()) < 100, "{name}, {index}: {reply:?}, released after {before}");
            reply.row.expect("a grant")
        };
        for index in [0, 2, 3] {
            let (granted, wait, rows) = answer(index);
            assert_eq!((granted, wait, rows[0][0], rows[1][0]), (1, 0, 3, 3), "{name}, {index}");
        }
        let reply = single.reply();
        assert_eq!(reply.granted(), 3, "{name}");
        assert!(server.ticks(before, reply.at_us()) < 100, "{name}: {reply:?}");
        // Both keys were charged once.
        for key in ["a", "b"] {
            assert_eq!(limit(&mut client, &format!("RL.PEEK {name} {key} 10 1h"))[2], 7, "{name} {key}");
        }
        if name != "LEASE" {
            assert_eq!(info(&mut client, "rl", "rl_retried"), retried + 5, "{name}");
        }
        // The last call still lacks the third key, and pays for that one only.
        assert_eq!(held(&mut client), 1, "{name}");
        settle(&mut client, "RL.RELEASE c all").expect("a charge");
        let (granted, _, rows) = waiting[1].answer::<AllRows>().row.expect("a grant");
        assert_eq!((granted, rows[0][0], rows[1][0]), (1, 3, other_cost), "{name}");
        assert_eq!(limit(&mut client, &format!("RL.PEEK {name} b 10 1h"))[2], 7, "{name}");
        assert_eq!(limit(&mut client, &format!("RL.PEEK {name} c 10 1h"))[2], 10 - other_cost, "{name}");
    }
}

#[test]
fn a_waiting_call_shows_what_it_holds_already_and_keeps_it_when_denied() {
    let (server, mut client) = Server::start().and_client();
    limit(&mut client, "RL.SLIDE a 10 1d COST 4 ID call");
    limit(&mut client, "RL.LEASE l 5 1h COST 2 ID call");
    limit(&mut client, "RL.LEASE full 1 1h ID other");
    let before = snapshots(&mut client);
    let words = "RL.ALL 3 a l full SLIDE 10 1d COST 9 LEASE 5 2h LEASE 1 1h ID call";
    let (granted, wait, rows) = Held::send(&server, &format!("{words} BLOCK 50ms")).rows();
    assert_eq!((granted, wait), (0, rows[2][3]));
    assert_eq!([&rows[0][..4], &rows[1][..4], &rows[2][..3]], [&[4, 10, 6, 0][..], &[2, 5, 3, 0], &[0, 1, 0]]);
    assert_same(&snapshots(&mut client), &before);
    let waiting = Held::send(&server, &format!("{words} BLOCK 1d"));
    wait_for("the waiter", || held(&mut client) == 1);
    settle(&mut client, "RL.RELEASE full other").expect("a lease");
    let (granted, wait, rows) = waiting.rows();
    assert_eq!((granted, wait), (1, 0));
    assert_eq!(
        [&rows[0][..4], &rows[1][..], &rows[2][..]],
        [&[4, 10, 6, 0][..], &[2, 5, 3, 0, 7_200_000], &[1, 1, 0, 0, 3_600_000]]
    );
    assert_eq!(snapshot(&mut client, "a"), before["a"]);
}
