//! Decisions in the process, for events that are too many to ask the server about each: a cache of denials, and a wallet.

use redis_rl_client::{Gcra, Limits, Slide};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::open(std::env::var("REDIS_URL").as_deref().unwrap_or("redis://127.0.0.1/"))?;

    let login = limits.cached(&limits.limit("login", Gcra::new("5/m")?)?);
    let mut granted = 0;
    for _ in 0..1000 {
        granted += login.take("user:42", 1).await?.granted; // the server is asked about few of those that are denied
    }
    println!("{granted} logins");

    let wallet = limits.wallet(&limits.limit("search", Slide::new("100000/m")?)?, 100)?;
    for _ in 0..1000 {
        assert!(wallet.take("user:42").await?.allowed()); // the server is asked ten times
    }
    wallet.close().await; // gives back what is left
    println!("1000 searches");
    Ok(())
}
