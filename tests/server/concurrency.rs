//! A hundred connections at once, on one key and on many: together they are granted what the algorithm allows, to the unit.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Mutex;

use redis::Connection;
use support::{crowd, crowd_while, inspect, limit, pipe, time_us, wait_for, Load, Server, LIMITERS};

const CONNECTIONS: usize = 100;
/// So long that nothing drains within the test.
const PERIOD: &str = "3650d";

#[test]
fn one_key_grants_its_limit_and_not_a_unit_more() {
    let server = Server::start();
    for name in LIMITERS {
        let granted = AtomicI64::new(0);
        crowd(&server, CONNECTIONS, |number, client| {
            for call in 0..60 {
                let amount = ["COST 1", "COST 7", "UPTO 5", "COST 2 RESERVE 1", "COST 3 BLOCK 1ms"][(number + call) % 5];
                let words = format!("RL.{name} {name} 10007 {PERIOD} {amount}");
                granted.fetch_add(limit(client, &words)[0], Ordering::Relaxed);
            }
        });
        // The remaining units are fewer than the most expensive call takes.
        let mut client = server.client();
        let granted = granted.into_inner();
        let left = limit(&mut client, &format!("RL.PEEK {name} {name} 10007 {PERIOD}"))[2];
        assert_eq!(granted + left, 10_007, "{name}");
        assert!(left < 7, "{name}: {left} left");
        assert_eq!(limit(&mut client, &format!("RL.{name} {name} 10007 {PERIOD} UPTO 10"))[0], left);
        assert_eq!(limit(&mut client, &format!("RL.{name} {name} 10007 {PERIOD}"))[..3], [0, 10_007, 0]);
    }
}

#[test]
fn used_units_are_the_granted_ones_less_the_refunded_ones() {
    let server = Server::start();
    let keys: i64 = 25;
    let used: Vec<AtomicI64> = (0..keys * 4).map(|_| AtomicI64::new(0)).collect();
    // A refund also returns the part of a unit that has not drained, and reports whole units.
    let fractions: Vec<AtomicI64> = (0..keys * 4).map(|_| AtomicI64::new(0)).collect();
    crowd(&server, CONNECTIONS, |number, client| {
        for call in 0..80 {
            let key = (number * 31 + call * 17) % used.len();
            let name = LIMITERS[key % 4];
            let amount = ["COST 3", "UPTO 4", "FORCE 2", "REFUND 1", "COST 5", "REFUND 3", "UPTO 1"][(number + call) % 7];
            let row = limit(client, &format!("RL.{name} key:{key} 100 {PERIOD} {amount}"));
            let refund = amount.strip_prefix("REFUND ").map(|asked| asked.parse::<i64>().expect("a number"));
            let units = refund.map_or(row[0], |_| -row[0]);
            fractions[key].fetch_add(refund.is_some_and(|asked| row[0] < asked).into(), Ordering::Relaxed);
            used[key].fetch_add(units, Ordering::Relaxed);
            if call % 8 == 0 {
                // Other connections read the keys meanwhile, and charge several keys at once.
                limit(client, &format!("RL.PEEK {name} key:{key} 100 {PERIOD}"));
                let other = (key + 4) % used.len();
                let words = format!("RL.ALL 2 key:{key} key:{other} {name} 100 {PERIOD} {name} 100 {PERIOD} COST 2");
                let (granted, _, rows): (i64, i64, Vec<Vec<i64>>) = support::call(client, &words);
                if granted == 1 {
                    used[key].fetch_add(rows[0][0], Ordering::Relaxed);
                    used[other].fetch_add(rows[1][0], Ordering::Relaxed);
                }
            }
        }
    });
    let mut client = server.client();
    for (key, used) in used.iter().enumerate() {
        let used = used.load(Ordering::Relaxed);
        // A key with nothing used is gone.
        let reported = inspect(&mut client, &format!("key:{key}"), "used").unwrap_or(0);
        // Two of the four algorithms drain all the time, if only a little.
        let drains = matches!(LIMITERS[key % 4], "GCRA" | "BUCKET");
        let fractions = if drains { fractions[key].load(Ordering::Relaxed) } else { 0 };
        assert!((used - fractions..=used).contains(&reported), "key:{key}: {reported}, not {used}");
    }
}

#[test]
fn a_rate_is_met_exactly_under_pressure() {
    const PERIOD_US: i64 = 100_000;
    let (server, mut clock) = Server::start().and_client();
    // Twenty thousand units per second, in periods of a tenth of a second: always used up, and never overdrawn.
    for (name, options) in [("GCRA", ""), ("BUCKET", ""), ("SLIDE", ""), ("FIXED", "ALIGN 0")] {
        let (granted, asked, load) = (AtomicI64::new(0), Mutex::new(Vec::new()), Load::default());
        let words = format!("RL.{name} {name} 2000 100ms {options} UPTO 50");
        let start = time_us(&mut clock);
        let ask = |_, client: &mut Connection| {
            while load.goes_on() {
                let calls = std::iter::repeat_n(&*words, 8).chain(["TIME"]);
                let rows: Vec<Vec<i64>> = pipe(calls).query(client).expect("replies");
                granted.fetch_add(rows[..8].iter().map(|row| row[0]).sum(), Ordering::Relaxed);
                asked.lock().expect("moments").push(rows[8][0] * 1_000_000 + rows[8][1]);
            }
        };
        let wait = || {
            let _end = load.ends_here();
            wait_for("a while to pass", || time_us(&mut clock) > start + 7 * PERIOD_US);
        };
        crowd_while(&server, CONNECTIONS, wait, ask);
        let elapsed = time_us(&mut clock) - start;
        let granted = granted.into_inner();
        let most = match name {
            "GCRA" | "BUCKET" => 2_000 + elapsed * 20_000 / 1_000_000,
            // The most windows that can overlap this time.
            _ => 2_000 * (elapsed / PERIOD_US + 2),
        };
        assert!(granted <= most, "{name}: {granted} granted in {elapsed} us, {most} allowed");
        // All callers may be stopped at the same time by the system. The time in which they did not ask for all units does
        // not count. Six of them ask for more than there is.
        let mut asked = asked.into_inner().expect("moments");
        asked.sort_unstable();
        let asked: Vec<_> = asked.into_iter().step_by(6).collect();
        let used_up: i64 = asked.windows(2).map(|pair| (pair[1] - pair[0]).min(PERIOD_US / 10)).sum();
        let least = used_up / 50 * 8 / 10;
        println!("{name}: {granted} granted in {elapsed} us, of which all was asked for in {used_up} us");
        assert!(granted >= least, "{name}: only {granted} granted, at least {least} due");
    }
}
