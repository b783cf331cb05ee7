//! Amounts on real keys: partial grants, costs that are known later, and refunds.

use std::time::Duration;

use support::witness::timed;
use support::{call, limit, Server};

const LIMITERS: [&str; 4] = ["RL.FIXED", "RL.SLIDE", "RL.GCRA", "RL.BUCKET"];

#[test]
fn a_partial_grant_takes_what_is_left() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(limit(&mut client, "RL.FIXED k 100 60 COST 95")[..3], [95, 100, 5]);
    assert_eq!(limit(&mut client, "RL.FIXED k 100 60 UPTO 10")[..4], [5, 100, 0, 0]);
    let [granted, capacity, remaining, wait_ms, reset_ms] = limit(&mut client, "RL.FIXED k 100 60 UPTO 10");
    assert_eq!([granted, capacity, remaining], [0, 100, 0]);
    assert!(wait_ms == reset_ms && (1..=60_000).contains(&wait_ms));
}

#[test]
fn partial_grants_burn_no_fraction() {
    let server = Server::start();
    let mut client = server.client();
    for name in ["RL.GCRA", "RL.BUCKET"] {
        // A unit drains every 100 ms. The calls come at other times, and by the server's clock no unit is lost.
        let words = format!("{name} {name} 10 1 UPTO 10");
        let (row, since, until) = timed(&mut client, &words);
        assert_eq!(row[0], 10);
        let (mut granted, mut first, mut last) = (0, 0, 0);
        while last < since + 2_000_000 {
            std::thread::sleep(Duration::from_millis(37));
            let row;
            (row, first, last) = timed(&mut client, &words);
            granted += row[0];
        }
        let (least, most) = ((first - until) / 100_000, (last - since) / 100_000);
        assert!((least..=most).contains(&granted), "{name}: {granted}, of {least} to {most}");
    }
}

#[test]
fn a_forced_amount_is_a_debt_that_is_paid_before_the_next_grant() {
    let server = Server::start();
    let mut client = server.client();
    for (name, wait_ms) in
        [("RL.FIXED", 172_800_000), ("RL.SLIDE", 86_401_319), ("RL.GCRA", 138_240_000), ("RL.BUCKET", 138_240_000)]
    {
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d COST 10"))[0], 10);
        let [granted, _, remaining, wait, reset] = limit(&mut client, &format!("{name} {name} 10 1d FORCE 15"));
        assert_eq!([granted, remaining, wait], [15, 0, 0], "{name}");
        let reported = limit(&mut client, &format!("{name} {name} 10 1d"));
        assert_eq!(reported[0], 0, "{name}");
        // 16 units have to drain; in a window, all that is used by then has to.
        assert!((wait_ms - 10_000..=wait_ms).contains(&reported[3]), "{name}: {reported:?}");
        assert!(call::<i64>(&mut client, &format!("PTTL {name}")) >= reset - 10_000, "{name}");
    }
}

#[test]
fn a_refund_gives_back_what_is_used_and_no_more() {
    let server = Server::start();
    let mut client = server.client();
    for name in LIMITERS {
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d REFUND 5")), [0, 10, 10, 0, 0], "{name}");
        assert_eq!(call::<i64>(&mut client, &format!("EXISTS {name}")), 0, "{name}");
        limit(&mut client, &format!("{name} {name} 10 1d COST 6"));
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d REFUND 2"))[..3], [2, 10, 6], "{name}");
        assert!(call::<i64>(&mut client, &format!("PTTL {name}")) > 0, "{name}");
        // Of the four units a little has drained. Replies count whole units.
        let [given, _, remaining, ..] = limit(&mut client, &format!("{name} {name} 10 1d REFUND 100"));
        assert!(remaining == 10 && (3..=4).contains(&given), "{name}: {given}");
        assert_ne!(call::<i64>(&mut client, &format!("PTTL {name}")), -1, "{name}");
        assert_eq!(limit(&mut client, &format!("{name} {name} 10 1d REFUND 1"))[0], 0, "{name}");
    }
    // A fixed window goes on with nothing used. The keys of the other algorithms are gone.
    assert_eq!(call::<Vec<String>>(&mut client, "KEYS *"), ["RL.FIXED"]);
}
