//! A quota per month of a time zone: full again when the first of the month begins in Berlin.

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use redis_rl_client::{Fixed, Limits};

/// A unit of the calendar. A week begins on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Day,
    Week,
    Month,
}

impl Unit {
    /// The longest that the unit can be, and one hour more, because a clock may be fast. A day has up to 25 hours. Where the clocks
    /// go back in October, October has 31 days and one hour.
    pub const fn period(self) -> &'static str {
        match self {
            Self::Day => "26h",
            Self::Week => "170h",
            Self::Month => "746h",
        }
    }

    /// When the unit that holds `now` ends.
    pub fn end(self, zone: &TimeZone, now: Timestamp) -> Result<Timestamp, jiff::Error> {
        let today = now.to_zoned(zone.clone()).date();
        let next = match self {
            Self::Day => today.tomorrow()?,
            Self::Week => today.nth_weekday(1, Weekday::Monday)?,
            Self::Month => today.first_of_month().checked_add(1.month())?,
        };
        // Where the clocks go forward at midnight, this is the moment at which they do.
        Ok(next.to_zoned(zone.clone())?.start_of_day()?.timestamp())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::open(std::env::var("REDIS_URL").as_deref().unwrap_or("redis://127.0.0.1/"))?;
    let policy = Fixed::new(format!("10000/{}", Unit::Month.period()).as_str())?;
    let quota = limits.limit("quota:month", policy)?;

    // By the clock of this machine. If that is wrong by seconds, it does no harm.
    let end = Unit::Month.end(&TimeZone::get("Europe/Berlin")?, Timestamp::now())?;
    let decision = quota.until("42", end.into()).await?;
    println!("granted: {}, remaining: {}, full again in {:?}", decision.granted, decision.remaining, decision.reset());
    Ok(())
}
