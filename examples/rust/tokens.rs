//! A budget of tokens for calls of a language model: charges an estimate, and settles it to what was used.

use redis_rl_client::{Limits, Slide};

struct Answer {
    text: String,
    tokens: u64,
}

async fn ask_the_model(prompt: &str) -> Result<Answer, std::io::Error> {
    Ok(Answer { text: prompt.to_uppercase(), tokens: 12 })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::open(std::env::var("REDIS_URL").as_deref().unwrap_or("redis://127.0.0.1/"))?;
    let tokens = limits.limit("tokens", Slide::new("100000/m")?)?;

    let charge = tokens.charge("team-a", 1200).wait("90s").await?;
    let answer = ask_the_model("hello").await?; // an error gives the charge back
    charge.settle(answer.tokens).await?;
    println!("{}", answer.text);
    Ok(())
}
