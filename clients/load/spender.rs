//! A process of the load test, in Rust: load.py describes what it does.

use std::io::stdin;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Mutex;
use std::time::Duration;

use redis_rl_client::{Gcra, Limit, Limits, RatePolicy, Slide, Source, Wallet};
use serde_json::{json, Value};

/// What decides the calls.
enum Spender<P> {
    Wallet(Wallet),
    Limit(Limit<P>),
}

#[derive(Default)]
struct Report {
    calls: AtomicU64,
    spent: AtomicU64,
    failures: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl Report {
    fn say(&self, mut more: Value) {
        more["calls"] = self.calls.load(SeqCst).into();
        more["spent"] = self.spent.load(SeqCst).into();
        more["failures"] = self.failures.lock().expect("no thread panics").clone().into();
        println!("{more}");
    }
}

fn main() {
    let ask: Value = std::env::args().nth(1).and_then(|text| serde_json::from_str(&text).ok()).expect("JSON");
    let burst = ask["burst"].as_u64().expect("a number");
    let rate = ask["rate"].as_str().expect("a text");
    if burst == 0 {
        run(&ask, Slide::new(rate).expect("a rate").segments(24).expect("segments"));
    } else {
        run(&ask, Gcra::new(rate).expect("a rate").burst(burst).expect("a burst"));
    }
}

fn run<P: RatePolicy>(ask: &Value, policy: P) {
    let number = |name: &str| ask[name].as_u64().expect("a number");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let _inside = runtime.enter();
    let socket = PathBuf::from(ask["socket"].as_str().expect("a path"));
    let limits = Limits::open(format!("redis+unix://{}", socket.display())).expect("an address");
    // A server or a machine that stalls, as the test makes them do, is waited for.
    let limits = limits.timeout(Duration::from_secs(60)).connect_timeout(Duration::from_secs(60));
    let limits = limits.repeat_denials(Duration::from_secs_f64(ask["repeat"].as_f64().unwrap_or(0.0)));
    let limit = limits.limit("load", policy).expect("a name");
    let spender = match number("batch") {
        0 => Spender::Limit(limit),
        batch => Spender::Wallet(limits.wallet(&limit, batch).expect("a batch")),
    };
    let report = Report::default();
    report.say(json!({"ready": true}));
    stdin().read_line(&mut String::new()).expect("a line");
    let spend = |thread: u64| {
        for call in thread.. {
            if report.stop.load(SeqCst) {
                return;
            }
            // Costs in an irregular order.
            let cost = 1 + (call.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % number("cost");
            let decision = match &spender {
                Spender::Wallet(wallet) => runtime.block_on(async { wallet.take("key").cost(cost).await }),
                Spender::Limit(limit) => runtime.block_on(async { limit.take("key").cost(cost).await }),
            };
            report.calls.fetch_add(1, SeqCst);
            match decision {
                Ok(decision) if decision.granted == cost && decision.source != Source::Down => {
                    report.spent.fetch_add(cost, SeqCst);
                }
                Ok(decision) if !decision.allowed() => (),
                other => return report.failures.lock().expect("no thread panics").push(format!("{other:?}")),
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..number("threads") {
            let spend = &spend;
            scope.spawn(move || spend(thread));
        }
        scope.spawn(|| {
            stdin().read_line(&mut String::new()).expect("a line");
            report.stop.store(true, SeqCst);
        });
        while !report.stop.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
            report.say(json!({}));
        }
    });
    if let Spender::Wallet(wallet) = &spender {
        runtime.block_on(wallet.close());
    }
    report.say(json!({"closed": true}));
}
