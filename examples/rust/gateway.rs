//! A gateway to a language model: 4 calls of a tenant at a time, its requests and tokens, and the tokens of all tenants. All are
//! charged, or none. The answer is a stream, and what it has used so far is what is charged if it breaks.

use redis_rl_client::{Error, Lease, Limit, Limits, Rule, Slide};
use tokio::sync::mpsc;

struct Gateway {
    limits: Limits,
    running: Limit<Lease>,
    requests: Limit<Slide>,
    tokens: Limit<Slide>,
}

impl Gateway {
    fn new(limits: Limits) -> Result<Self, Error> {
        let running = limits.limit("{gateway}:running", Lease::new(4, "30s")?)?;
        let requests = limits.limit("{gateway}:requests", Slide::new("60/m")?)?;
        let tokens = limits.limit("{gateway}:tokens", Slide::new("20000/m")?)?;
        Ok(Self { limits, running, requests, tokens })
    }

    /// The lease is first, so it is released last. All calls wait for the last key, so it is settled first.
    fn rules(&self, tenant: &str) -> Result<[Rule; 4], Error> {
        let all = self.limits.limit("{gateway}:all", Slide::new("100000/m")?)?;
        Ok([self.running.rule(tenant), self.requests.rule(tenant).cost(1), self.tokens.rule(tenant), all.rule("tokens")])
    }

    async fn complete(&self, tenant: &str, prompt: &str) -> Result<String, Error> {
        let asked = prompt.len() as u64 / 3;
        let call = self.limits.admit(self.rules(tenant)?).estimate(asked + 1000).wait("90s").await?;
        call.set_used(asked)?; // without this line, a call that breaks before its first chunk is charged nothing
        let mut answer = String::new();
        // If the lease is lost, the stream is dropped, and the result is Error::LeaseLost.
        call.run(async {
            let (mut used, mut chunks) = (asked, stream_of_the_model(prompt));
            while let Some(chunk) = chunks.recv().await {
                used += 1;
                call.set_used(used)?;
                answer.push_str(&chunk);
            }
            Ok::<(), Error>(())
        })
        .await??;
        call.finish().await?;
        Ok(answer)
    }
}

/// One token after the other.
fn stream_of_the_model(prompt: &str) -> mpsc::Receiver<String> {
    let (sender, chunks) = mpsc::channel(8);
    let words: Vec<String> = prompt.split_inclusive(' ').map(str::to_uppercase).collect();
    tokio::spawn(async move {
        for word in words {
            let _ = sender.send(word).await;
        }
    });
    chunks
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::open(std::env::var("REDIS_URL").as_deref().unwrap_or("redis://127.0.0.1/"))?;
    println!("{}", Gateway::new(limits)?.complete("acme", "the quick brown fox").await?);
    Ok(())
}
