//! How many decisions a second the crate makes: by a call to the server, by a wait that finds units free, from a denial that it repeats,
//! and from a wallet.
//!
//! `decisions URL SECONDS` prints one round as JSON. `make bench PART=clients` runs it. `decisions URL SECONDS PROCESSES BATCH LIMIT`
//! prints how much of a limit per second several wallets use, each with a connection of its own, under as many calls as the limit; `make
//! scale` runs that.
//!
//! Without a URL, as under `cargo bench`, it starts a server of its own.

use std::time::{Duration, Instant};

use redis_rl_client::{Fixed, Limits, Slide};
use support::Server;

/// Decisions a second; the clock is read after each `at_once` of them.
async fn rate(seconds: f64, at_once: u32, decide: impl AsyncFn()) -> f64 {
    let begin = Instant::now();
    let mut count = 0.0;
    loop {
        let passed = begin.elapsed().as_secs_f64();
        if passed >= seconds {
            return count / passed;
        }
        for _ in 0..at_once {
            decide().await;
        }
        count += f64::from(at_once);
    }
}

/// Takes units at random moments, `rate` a second on average. Returns the calls that were made and granted after the first second, in
/// which the key begins unused.
async fn process(url: String, nth: u64, batch: u64, limit: u64, rate: f64, seconds: f64) -> (u64, u64) {
    let limits = Limits::open(url).expect("an address");
    let shared = limits.limit("wallets", Slide::new(&format!("{limit}/s")).expect("a policy")).expect("a name");
    let wallet = limits.wallet(&shared, batch).expect("a batch");
    let (mut state, mut due, begin) = (nth + 1, 0.0, Instant::now());
    let (mut made, mut granted) = (0, 0);
    loop {
        // SplitMix64, of which the upper bits make a number from 0 to 1.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        due -= (1.0 - (mixed >> 11) as f64 / (1_u64 << 53) as f64).ln() / rate;
        if due >= seconds + 1.0 {
            break;
        }
        tokio::time::sleep(Duration::from_secs_f64(due).saturating_sub(begin.elapsed())).await;
        let allowed = wallet.take("key").await.expect("a decision").allowed();
        if due >= 1.0 {
            made += 1;
            granted += u64::from(allowed);
        }
    }
    wallet.close().await;
    (made, granted)
}

/// Runs processes together, and prints the sums of their calls.
async fn wallets(url: &str, seconds: f64, numbers: &[u64]) {
    let &[processes, batch, limit] = numbers else { panic!("PROCESSES BATCH LIMIT") };
    let rate = limit as f64 / processes as f64;
    let run = |nth| tokio::spawn(process(url.to_string(), nth, batch, limit, rate, seconds));
    let running: Vec<_> = (0..processes).map(run).collect();
    let (mut made, mut granted) = (0, 0);
    for process in running {
        let counts = process.await.expect("no panic");
        made += counts.0;
        granted += counts.1;
    }
    println!("{{\"made\": {made}, \"granted\": {granted}}}");
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let url = arguments.next();
    let seconds: f64 = arguments.next().map_or(0.2, |seconds| seconds.parse().expect("seconds"));
    let own = url.is_none().then(Server::start);
    let of = |server: &Server| format!("redis+unix://{}", server.socket().display());
    let url = url.unwrap_or_else(|| of(own.as_ref().expect("a server")));
    let numbers: Vec<u64> = arguments.map(|number| number.parse().expect("a number")).collect();
    if !numbers.is_empty() {
        return wallets(&url, seconds, &numbers).await;
    }
    let limits = Limits::open(url).expect("an address");

    let many = limits.limit("bench", Fixed::new("1000000000000/d").expect("a policy")).expect("a name");
    let wallet = limits.wallet(&many, 100_000_000_000).expect("a batch");
    assert!(wallet.take("user:1").await.expect("a decision").allowed());
    let repeating = limits.clone().repeat_denials(Duration::from_secs(1));
    let few = repeating.limit("few", Fixed::new("1/d").expect("a policy")).expect("a name");
    few.take("user:1").await.expect("a decision");

    let round_trip = rate(seconds, 20, async || assert!(many.take("user:2").await.expect("a decision").allowed())).await;
    let wait = rate(seconds, 20, async || assert!(many.wait("user:2", "1m").await.expect("a decision").allowed())).await;
    // Once a second it asks the server.
    let denied = rate(seconds, 1_000, async || assert!(!few.take("user:1").await.expect("a decision").allowed())).await;
    let in_process =
        rate(seconds, 1_000, async || assert!(wallet.take("user:1").await.expect("a decision").allowed())).await;
    println!("{{\"round_trip\": {round_trip}, \"wait\": {wait}, \"denied\": {denied}, \"wallet\": {in_process}}}");
    wallet.close().await;
}
