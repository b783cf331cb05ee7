//! Calls a third party that allows 5 calls a second. However many processes run this program, they share one line: each call
//! waits until it is its turn.

use redis_rl_client::{Error, Limits, Slide};
use tokio::task::JoinSet;

async fn call_the_partner(number: u32) -> String {
    tokio::task::yield_now().await;
    format!("answer {number}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::open(std::env::var("REDIS_URL").as_deref().unwrap_or("redis://127.0.0.1/"))?;
    let partner = limits.limit("partner", Slide::new("5/s")?)?;

    let mut calls = JoinSet::new();
    for number in 1..=12 {
        let partner = partner.clone();
        calls.spawn(async move {
            partner.admit("api").wait("5m").await?; // denied after 5 minutes: Error::RateLimited
            Ok::<_, Error>(call_the_partner(number).await)
        });
    }
    while let Some(answer) = calls.join_next().await {
        println!("{}", answer??);
    }
    Ok(())
}
