//! The second program in the README of the recipes; a test compares the two.

#[allow(dead_code)]
#[path = "../src/calendar.rs"]
mod calendar;

use calendar::{take, Quota, Unit};
use jiff::{tz::TimeZone, Timestamp};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut redis = redis::Client::open("redis://127.0.0.1")?.get_multiplexed_async_connection().await?;
    let quota = Quota { unit: Unit::Month, limit: 10_000, zone: TimeZone::get("Europe/Berlin")? };
    let [granted, _, remaining, _, reset_ms] = take(&mut redis, "quota:42", &quota, 1, Timestamp::now()).await?;
    println!("granted: {granted}, remaining: {remaining}, full again in {} s", reset_ms / 1000);
    Ok(())
}
