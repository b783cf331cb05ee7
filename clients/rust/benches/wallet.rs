//! How many decisions a second a wallet makes without a call to the server.

use std::future::{Future, IntoFuture};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

use redis_rl_client::{Fixed, Limits, Wallet};
use support::Server;

const DECISIONS: u32 = 5_000_000;
const ROUNDS: usize = 5;

/// The time that this thread has had a processor for, in seconds: other programs on the machine do not count.
fn busy() -> f64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the times of the thread, on Linux");
    times.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number") / 1e9
}

/// Prints the most decisions a second and thread of some rounds.
fn measure(what: &str, threads: usize, work: impl Fn(usize) + Sync) {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let barrier = Barrier::new(threads);
        let longest = std::thread::scope(|scope| {
            let run = |thread| {
                let (work, barrier) = (&work, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let start = busy();
                    work(thread);
                    // The time of a thread is brought up to date when it yields.
                    std::thread::yield_now();
                    busy() - start
                })
            };
            let all: Vec<_> = (0..threads).map(run).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).fold(0.0, f64::max)
        });
        best = best.min(longest);
    }
    println!("{what}: {:.1} million decisions a second of a processor", f64::from(DECISIONS) / best / 1e6);
}

#[tokio::main]
async fn main() {
    let server = Server::start();
    let limits = Limits::open(format!("redis+unix://{}", server.socket().display())).expect("an address");
    let limit = limits.limit("bench", Fixed::new("1000000000000/d").expect("a policy")).expect("a name");
    let wallet: Wallet = limits.wallet(&limit, 4_000_000_000).expect("a batch").idle(Duration::from_secs(3_600));
    let keys = ["user:12345678", "user:87654321"];
    for key in keys {
        assert!(wallet.take(key).await.expect("a decision").allowed());
    }
    let pockets = keys.map(|key| wallet.pocket(key).expect("a key"));
    let granted = |thread: usize| {
        for _ in 0..DECISIONS {
            assert!(black_box(pockets[thread].try_take(1).expect("a cost").expect("units").allowed()));
        }
    };
    measure("a pocket, 1 thread", 1, granted);
    measure("a pocket for each of 2 threads", 2, granted);
    measure("one pocket for 2 threads", 2, |_| granted(0));
    measure("a wallet with the key as text, 1 thread", 1, |thread| {
        for _ in 0..DECISIONS {
            assert!(black_box(wallet.try_take(keys[thread], 1).expect("a key").expect("units").allowed()));
        }
    });
    measure("a wallet with the key as text, a future, 1 thread", 1, |thread| {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..DECISIONS {
            let mut future = std::pin::pin!(wallet.take(keys[thread]).into_future());
            let std::task::Poll::Ready(decision) = future.as_mut().poll(&mut context) else { panic!("units") };
            assert!(black_box(decision.expect("a decision").allowed()));
        }
    });
    wallet.close().await;
}
