//! Limits per day, week or month of a time zone's calendar: full again at midnight in Berlin, on Monday morning, or on the first
//! of the month.
//!
//! ```no_run
//! # use jiff::{tz::TimeZone, Timestamp};
//! # use redis_rl_tower::calendar::{take, Quota, Unit};
//! # type Error = Box<dyn std::error::Error + Send + Sync>;
//! # async fn example(redis: &mut redis::aio::MultiplexedConnection) -> Result<(), Error> {
//! let quota = Quota { unit: Unit::Month, limit: 10_000, zone: TimeZone::get("Europe/Berlin")? };
//! let [granted, _, remaining, _, reset_ms] = take(redis, "quota:42", &quota, 1, Timestamp::now()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The calendar is that of jiff; the server only learns when the window ends. Each call states the end of the day that the
//! caller's clock shows. A clock that is wrong by seconds does no harm.
//!
//! Each call has a new id. So if the connection repeats a command whose reply was lost, as a `ClusterConnection` does, the server
//! charges it once. The key remembers the ids until its window ends, at most 65536 of them, in up to 210 bytes each: 2 MB for
//! 10 000 calls.

use std::error::Error;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use redis::aio::ConnectionLike;
use uuid::Uuid;

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

impl Unit {
    /// The longest that the window can be, and one hour more, because a clock may be fast. A day has up to 25 hours. In zones
    /// where the clocks go back in October, October has 31 days and one hour.
    pub const fn period(self) -> &'static str {
        match self {
            Self::Day => "26h",
            Self::Week => "170h",
            Self::Month => "746h",
        }
    }

    /// When the unit that holds `now` ends in a time zone.
    ///
    /// # Errors
    /// If that is after the year 9999.
    pub fn end(self, zone: &TimeZone, now: Timestamp) -> Result<Timestamp, jiff::Error> {
        let today = now.to_zoned(zone.clone()).date();
        let first = match self {
            Self::Day => today.tomorrow()?,
            Self::Week => today.nth_weekday(1, Weekday::Monday)?,
            Self::Month => today.first_of_month().checked_add(1.month())?,
        };
        // Where the clocks go forward at midnight, this is the moment at which they do.
        Ok(first.to_zoned(zone.clone())?.start_of_day()?.timestamp())
    }
}

/// A limit per unit of the calendar.
#[derive(Clone, Debug)]
pub struct Quota {
    /// When it is full again.
    pub unit: Unit,
    /// Units of the limiter, such as calls.
    pub limit: u64,
    /// The time zone.
    pub zone: TimeZone,
}

/// Takes units, all or none. Returns the reply of `RL.FIXED`: granted, limit, remaining, `wait_ms`, `reset_ms`.
///
/// # Errors
/// If the server gives no decision.
pub async fn take(
    redis: &mut impl ConnectionLike,
    key: &str,
    quota: &Quota,
    units: u64,
    now: Timestamp,
) -> Result<[i64; 5], Box<dyn Error + Send + Sync>> {
    let end = quota.unit.end(&quota.zone, now)?;
    let mut command = redis::cmd("RL.FIXED");
    command.arg(key).arg(quota.limit).arg(quota.unit.period()).arg("UNTIL").arg(end.as_second());
    command.arg("COST").arg(units).arg("ID").arg(Uuid::new_v4().simple().to_string());
    Ok(command.query_async(redis).await?)
}
