//! Windows of the calendar, as the example computes them: against known moments, and on a server that callers share a window.

mod common;

use std::future::IntoFuture;
use std::time::Duration;

use common::url;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use quota::Unit;
use redis_rl_client::{Fixed, Limits};
use support::{call, Server};

#[allow(dead_code)]
#[path = "../../../examples/rust/quota.rs"]
mod quota;

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
    let server = Server::start();
    let limits = Limits::open(url(&server)).expect("an address").patience(Duration::from_secs(30));
    let (seconds, _): (i64, i64) = call(&mut server.client(), "TIME");
    let now = Timestamp::from_second(seconds).expect("a time");
    for unit in [Unit::Day, Unit::Week, Unit::Month] {
        let policy = Fixed::new(format!("10/{}", unit.period()).as_str()).expect("a policy");
        let quota = limits.limit(&format!("{unit:?}"), policy).expect("a name");
        let end_at = |clock: Timestamp| unit.end(&zone("Europe/Berlin"), clock).expect("an end");
        let take = |clock: Timestamp, cost: u64| quota.until("42", end_at(clock).into()).cost(cost).into_future();
        let decision = take(now, 4).await.expect("a decision");
        assert_eq!((decision.granted, decision.limit, decision.remaining), (4, 10, 6));
        // Another caller's clock is fast or slow.
        for (clock, remaining) in [(now + 24.hours(), 5), (now - 768.hours(), 4)] {
            assert_eq!(take(clock, 1).await.expect("a decision").remaining, remaining);
        }
        let deadline: i64 = call(&mut server.client(), &format!("PEXPIRETIME {unit:?}:42"));
        assert_eq!(deadline, end_at(now).as_millisecond(), "{unit:?}");
        assert!(take(now, 5).await.expect("a decision").denied());
    }
}
