//! Tests the ends of windows against known moments, and on a server that callers share a window.

mod support;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use redis::cmd;
use redis_rl_tower::calendar::{take, Quota, Unit};
use support::Server;

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).expect("a time zone")
}

fn utc(text: &str) -> Timestamp {
    format!("{text}Z").parse().expect("a time")
}

#[test]
fn windows_end_where_the_calendar_says() {
    for (unit, name, now, end) in [
        (Unit::Day, "Europe/Berlin", "2026-11-21T22:59:59", "2026-11-21T23:00:00"),
        (Unit::Day, "Europe/Berlin", "2026-11-21T23:00:00", "2026-11-22T23:00:00"),
        // The clocks go forward on 29 March and back on 25 October: these days have 23 and 25 hours.
        (Unit::Day, "Europe/Berlin", "2026-03-28T23:00:00", "2026-03-29T22:00:00"),
        (Unit::Day, "Europe/Berlin", "2026-10-24T22:00:00", "2026-10-25T23:00:00"),
        (Unit::Day, "Europe/Berlin", "2026-10-25T01:30:00", "2026-10-25T23:00:00"),
        (Unit::Week, "Europe/Berlin", "2026-03-22T23:00:00", "2026-03-29T22:00:00"),
        (Unit::Week, "Europe/Berlin", "2026-10-18T22:00:00", "2026-10-25T23:00:00"),
        (Unit::Month, "Europe/Berlin", "2028-02-28T23:00:00", "2028-02-29T23:00:00"),
        (Unit::Month, "Europe/Berlin", "2026-03-31T21:59:59", "2026-03-31T22:00:00"),
        (Unit::Month, "Europe/Berlin", "2026-09-30T22:00:00", "2026-10-31T23:00:00"),
        (Unit::Month, "Europe/Berlin", "2026-12-31T23:00:00", "2027-01-31T23:00:00"),
        // In Havana the clocks go from 00:00 to 01:00 on the second Sunday of March, since 2013.
        (Unit::Day, "America/Havana", "2026-03-07T12:00:00", "2026-03-08T05:00:00"),
        (Unit::Day, "America/Havana", "2026-03-08T12:00:00", "2026-03-09T04:00:00"),
    ] {
        assert_eq!(unit.end(&zone(name), utc(now)).expect("an end"), utc(end), "{unit:?} of {name} at {now}");
    }
}

#[test]
fn no_window_is_longer_than_the_period_less_an_hour() {
    for (unit, hours) in [(Unit::Day, 25), (Unit::Week, 169), (Unit::Month, 745)] {
        assert_eq!(unit.period(), format!("{}h", hours + 1));
        for name in ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Auckland"] {
            let mut now = unit.end(&zone(name), utc("2026-01-01T00:00:00")).expect("an end");
            while now < utc("2030-01-01T00:00:00") {
                let end = unit.end(&zone(name), now).expect("an end");
                let seconds = end.as_second() - now.as_second();
                assert!(0 < seconds && seconds <= hours * 3_600, "{unit:?} of {name}: {now} to {end}");
                now = end;
            }
        }
    }
}

#[tokio::test]
async fn all_callers_share_a_window() {
    let (server, mut redis) = Server::start().await;
    let (seconds, _): (i64, i64) = cmd("TIME").query_async(&mut redis).await.expect("the time");
    let now = Timestamp::from_second(seconds).expect("a time");
    for unit in [Unit::Day, Unit::Week, Unit::Month] {
        let quota = Quota { unit, limit: 10, zone: zone("Europe/Berlin") };
        let key = format!("{unit:?}");
        let end = unit.end(&quota.zone, now).expect("an end").as_millisecond();
        assert_eq!(take(&mut redis, &key, &quota, 4, now).await.expect("a reply")[..3], [4, 10, 6]);
        // Another caller's clock is fast or slow.
        for (clock, remaining) in [(now + 24.hours(), 5), (now - 768.hours(), 4)] {
            let row = take(&mut redis, &key, &quota, 1, clock).await.expect("a reply");
            assert_eq!(row[..3], [1, 10, remaining]);
        }
        // Each call has its own id, so a repeated command is charged once.
        let facts: Vec<redis::Value> = cmd("RL.INSPECT").arg(&key).query_async(&mut redis).await.expect("facts");
        let name = facts.iter().position(|fact| redis::from_redis_value_ref::<String>(fact).is_ok_and(|name| name == "ids"));
        let ids: i64 = redis::from_redis_value_ref(&facts[name.expect("a count") + 1]).expect("a number");
        assert_eq!(ids, 3);
        let deadline: i64 = cmd("PEXPIRETIME").arg(&key).query_async(&mut redis).await.expect("a deadline");
        assert_eq!(deadline, end, "{unit:?}");
        assert_eq!(take(&mut redis, &key, &quota, 5, now).await.expect("a reply")[0], 0);
    }
    drop(server);
}
