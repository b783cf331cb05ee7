//! At most four jobs at a time, on all machines. A lease is renewed while its job runs, and the others wait in line.

use std::time::Duration;

use redis_rl_client::{Error, Lease, Limits};
use tokio::task::JoinSet;

async fn report(customer: &str) -> usize {
    tokio::time::sleep(Duration::from_millis(200)).await;
    customer.len()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::open(std::env::var("REDIS_URL").as_deref().unwrap_or("redis://127.0.0.1/"))?;
    let jobs = limits.limit("jobs", Lease::new(4, "30s")?)?;

    let mut reports = JoinSet::new();
    for customer in ["ada", "bob", "eve", "grace", "linus", "mary"] {
        let jobs = jobs.clone();
        reports.spawn(async move {
            let lease = jobs.hold("reports").wait("1h").await?;
            let pages = lease.run(report(customer)).await?; // lost: the job is dropped, and this is Error::LeaseLost
            Ok::<_, Error>(format!("{customer}: {pages} pages"))
        });
    }
    while let Some(line) = reports.join_next().await {
        println!("{}", line??);
    }
    Ok(())
}
