//! One decision, and the headers that it gives an answer to an HTTP request.

use redis_rl_client::{Gcra, Limits};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::open(std::env::var("REDIS_URL").as_deref().unwrap_or("redis://127.0.0.1/"))?;
    let api = limits.limit("api", Gcra::new("10/m")?.burst(5)?)?;

    let decision = api.take("user:42").await?;
    if decision.allowed() {
        println!("go on; {} more right now", decision.remaining);
    } else {
        println!("retry in {:?}", decision.wait());
    }
    for (name, value) in decision.headers() {
        println!("{name}: {value}");
    }
    Ok(())
}
