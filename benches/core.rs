//! Times decisions in nanoseconds, without a server: the pure core on the bytes of a key, and the grammar on the words of a
//! call. `make core`, or `cargo bench`

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{criterion_group, criterion_main, BenchmarkGroup, Criterion};
use redis_rl::commands::parsers::{parse_limit, parse_numkeys, parse_peek, parse_rules};
use redis_rl::limiter::{
    settle, Amount, Bytes, Change, Decision, Id, Instant, Kind, Policy, PolicyOption, Quota, Request, Span,
};
use redis_rl::sketch::Sketch;

const DAY: u64 = 86_400_000_000;
const LIMIT: u64 = 1_000;
const START: Instant = Instant::from_us(1_760_000_000_000_000);

fn policy(kind: Kind, limit: u64, period: u64, options: &[PolicyOption]) -> Policy {
    let quota = Quota::new(limit, Span::from_us(period)).expect("in range");
    options.iter().fold(kind.policy(quota).expect("in range"), |policy, &option| policy.with(option))
}

fn after(us: u64) -> Instant {
    START.saturating_add(Span::from_us(us))
}

/// Loads, decides and stores.
#[inline(always)]
fn steps(policy: &Policy, stored: Option<&[u8]>, now: Instant, request: Request, bytes: &mut Bytes) -> (Decision, Change) {
    let view = policy.view(stored, now).expect("a record");
    let (decision, next) = view.decide(request).expect("a decision");
    (decision, view.store(&next, || 0x5eed, bytes))
}

/// Makes a decision, and changes the value as the server would.
fn call(policy: &Policy, value: &mut Vec<u8>, now: Instant, amount: Amount) -> u64 {
    make(policy, value, now, Request::now(amount))
}

fn make(policy: &Policy, value: &mut Vec<u8>, now: Instant, request: Request) -> u64 {
    let stored = (!value.is_empty()).then_some(&value[..]);
    let mut bytes = Bytes::default();
    let (decision, change) = steps(policy, stored, now, request, &mut bytes);
    write(value, change, &bytes);
    decision.granted
}

/// Changes a value as the server would. Empty bytes are a key that does not exist.
fn write(value: &mut Vec<u8>, change: Change, bytes: &Bytes) {
    let mut stored = Some(std::mem::take(value)).filter(|value| !value.is_empty());
    change.apply(bytes, &mut stored);
    *value = stored.unwrap_or_default();
}

fn holding(policy: &Policy, units: u64) -> Vec<u8> {
    let mut value = Vec::new();
    call(policy, &mut value, START, Amount::Force(units));
    value
}

fn decide(group: &mut BenchmarkGroup<WallTime>, name: &str, policy: &Policy, stored: Option<&[u8]>, request: Request) {
    let now = after(1_000);
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let mut bytes = Bytes::default();
            let answer = steps(black_box(policy), black_box(stored), black_box(now), black_box(request), &mut bytes);
            black_box(&bytes);
            answer
        });
    });
}

fn peek(group: &mut BenchmarkGroup<WallTime>, name: &str, policy: &Policy, stored: &[u8]) {
    let (now, request) = (after(1_000), Request::now(Amount::Cost(1)));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            black_box(policy).view(black_box(Some(stored)), black_box(now)).map(|view| view.peek(black_box(request)))
        });
    });
}

/// Every kind of amount, on a limiter that is half used and on one that is full.
fn amounts(criterion: &mut Criterion) {
    for &kind in Kind::RATES {
        let mut group = criterion.benchmark_group(kind.name());
        let policy = policy(kind, LIMIT, DAY, &[]);
        let (half, full) = (holding(&policy, LIMIT / 2), holding(&policy, LIMIT));
        let cost = Request::now(Amount::Cost(1));
        let upto = Request::now(Amount::UpTo(2));
        decide(&mut group, "COST/first", &policy, None, cost);
        decide(&mut group, "COST/granted", &policy, Some(&half), cost);
        decide(&mut group, "COST/denied", &policy, Some(&full), cost);
        decide(&mut group, "UPTO/granted", &policy, Some(&half), upto);
        decide(&mut group, "UPTO/denied", &policy, Some(&full), upto);
        decide(&mut group, "FORCE/free", &policy, Some(&half), Request::now(Amount::Force(1)));
        decide(&mut group, "FORCE/debt", &policy, Some(&full), Request::now(Amount::Force(1)));
        decide(&mut group, "REFUND", &policy, Some(&half), Request::now(Amount::Refund(1)));
        decide(&mut group, "RESERVE/booked", &policy, Some(&full), Request { ahead: Span::from_us(2 * DAY), ..cost });
        decide(&mut group, "RESERVE/denied", &policy, Some(&full), Request { ahead: Span::from_us(1), ..cost });
        peek(&mut group, "peek/granted", &policy, &half);
        peek(&mut group, "peek/denied", &policy, &full);
    }
}

/// The options of the algorithms.
fn options(criterion: &mut Criterion) {
    type Options = &'static [PolicyOption];
    let rows: [(Kind, &str, Options); 5] = [
        (Kind::Fixed, "ALIGN", &[PolicyOption::Align(-28_800_000_000)]),
        (Kind::Slide, "SEGMENTS", &[PolicyOption::Segments(60)]),
        (Kind::Gcra, "BURST", &[PolicyOption::Burst(2 * LIMIT)]),
        (Kind::Bucket, "CAPACITY", &[PolicyOption::Capacity(2 * LIMIT)]),
        (Kind::Bucket, "STEP", &[PolicyOption::Step]),
    ];
    let cost = Request::now(Amount::Cost(1));
    for (kind, name, options) in rows {
        let mut group = criterion.benchmark_group(format!("{} {name}", kind.name()));
        let policy = policy(kind, LIMIT, DAY, options);
        decide(&mut group, "granted", &policy, Some(&holding(&policy, LIMIT / 2)), cost);
        decide(&mut group, "denied", &policy, Some(&holding(&policy, 2 * LIMIT)), cost);
    }
    // Usage under another limit, which the decision carries over.
    for kind in [Kind::Fixed, Kind::Gcra, Kind::Bucket] {
        let mut group = criterion.benchmark_group(format!("{} changed", kind.name()));
        let stored = holding(&policy(kind, 2 * LIMIT, DAY, &[]), LIMIT / 2);
        decide(&mut group, "granted", &policy(kind, LIMIT, DAY, &[]), Some(&stored), cost);
    }
}

/// SLIDE on logs of so many entries, one in each `period / entries`.
fn logs(criterion: &mut Criterion) {
    // Ticks are whole seconds.
    const PERIOD: u64 = 65_536_000_000;
    for entries in [10, 1_000, 65_536] {
        let mut group = criterion.benchmark_group(format!("SLIDE log of {entries}"));
        let step = PERIOD / entries;
        let wide = policy(Kind::Slide, u32::MAX.into(), PERIOD, &[]);
        let mut log = Vec::new();
        let mut at = 0;
        let mut grant = |log: &mut Vec<u8>| {
            at += step;
            assert_eq!(call(&wide, log, after(at), Amount::Cost(1)), 1);
            after(at)
        };
        let mut now = START;
        for _ in 0..entries {
            now = grant(&mut log);
        }
        let tight = policy(Kind::Slide, entries, PERIOD, &[]);
        let other = policy(Kind::Slide, u32::MAX.into(), PERIOD, &[PolicyOption::Segments(60_000)]);
        let cost = Request::now(Amount::Cost(1));
        let mut look = |name: &str, policy: &Policy, now: Instant, request: Request| {
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    let mut bytes = Bytes::default();
                    let answer =
                        steps(black_box(policy), black_box(Some(&log)), black_box(now), black_box(request), &mut bytes);
                    black_box(&bytes);
                    answer
                });
            });
        };
        look("granted, one append", &wide, now, cost);
        look("denied", &tight, now, cost);
        look("refunded", &wide, now, Request::now(Amount::Refund(1)));
        look("refunded, half of it", &wide, now, Request::now(Amount::Refund(entries / 2)));
        let mut look = |name: &str, policy: &Policy, now: Instant| {
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    black_box(policy).view(black_box(Some(&log)), black_box(now)).map(|view| view.peek(black_box(cost)))
                });
            });
        };
        look("peek", &wide, now);
        look("peek, a third has died", &wide, now.saturating_add(Span::from_us(PERIOD / 3)));
        look("peek, another policy", &other, now);
        // Each call finds the log as the last call left it, so that the time includes a share of the rewriting of the log.
        group.bench_function("granted, sliding", |bencher| bencher.iter(|| grant(black_box(&mut log))));
    }
}

fn id(name: &str) -> Id<'_> {
    Id::new(name.as_bytes()).expect("an id")
}

fn cost(units: u64, name: &str) -> Request<'_> {
    Request::now(Amount::Cost(units)).with_id(id(name))
}

/// Calls with an id, on a key that remembers so many.
fn ids(criterion: &mut Criterion) {
    const CHARGES: [usize; 2] = [1, 1_000];
    const LEASES: [usize; 2] = [10, 10_000];
    let rates = Kind::RATES.iter().map(|&kind| (kind, CHARGES));
    for (kind, sizes) in rates.chain([(Kind::Lease, LEASES)]) {
        for size in sizes {
            let mut group = criterion.benchmark_group(format!("{}, ids: {size}", kind.name()));
            let (limit, most) = if kind == Kind::Lease { (60_000, size as u64) } else { (100_000, 2 * size as u64) };
            let (wide, tight) = (policy(kind, limit, DAY, &[]), policy(kind, most, DAY, &[]));
            let units = if kind == Kind::Lease { 1 } else { 2 };
            let name = |number: usize| format!("{number:036}");
            let mut value = Vec::new();
            for number in 0..size {
                assert_eq!(make(&wide, &mut value, START, cost(units, &name(number))), units);
            }
            decide(&mut group, "granted", &wide, Some(&value), cost(units, "another"));
            decide(&mut group, "denied", &tight, Some(&value), cost(units, "another"));
            let known = name(size / 2);
            let again = if kind == Kind::Lease { "renewed" } else { "a retry" };
            decide(&mut group, again, &wide, Some(&value), cost(units, &known));
            group.bench_function("released", |bencher| {
                let id = id(&known);
                bencher.iter(|| {
                    let mut bytes = Bytes::default();
                    let settled = settle(black_box(&value), black_box(after(1_000)), black_box(id), 0, &mut bytes);
                    black_box(&bytes);
                    settled.is_ok_and(|settled| settled.is_some())
                });
            });
            // Each charge finds the value as the last one left it, so that the time includes a share of the rebuilding.
            let mut number = size;
            group.bench_function("granted and released", |bencher| {
                bencher.iter(|| {
                    make(&wide, &mut value, START, cost(units, &name(number)));
                    let mut bytes = Bytes::default();
                    let settled = settle(&value, START, id(&name(number - size)), 0, &mut bytes);
                    let settled = settled.expect("a limiter").expect("an id");
                    number += 1;
                    write(&mut value, settled.change, &bytes);
                });
            });
        }
    }
}

/// The words of calls, as clients send them.
fn words(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("grammar");
    let mut parse = |line: &str, read: fn(&[&[u8]]) -> bool| {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        group.bench_function(line, |bencher| bencher.iter(|| read(black_box(&words))));
    };
    let gcra: fn(&[&[u8]]) -> bool = |words| black_box(parse_limit(Kind::Gcra, words)).is_ok();
    parse("RL.GCRA key 10 60", gcra);
    parse("RL.GCRA key 1000000 250ms COST 5", gcra);
    parse("RL.GCRA key 10 60 BURST 20 COST 5 RESERVE 30s", gcra);
    parse("RL.GCRA key 10 60 BRUST 20", gcra);
    parse("RL.FIXED key 1000 1d ALIGN -8h", |words| black_box(parse_limit(Kind::Fixed, words)).is_ok());
    parse("RL.PEEK GCRA key 10 60", |words| black_box(parse_peek(words)).is_ok());
    parse("RL.ALL 2 a b FIXED 60 1m SLIDE 1000 1m COST 7", |words| {
        parse_numkeys(words).is_ok_and(|keys| black_box(parse_rules(words, keys)).is_ok())
    });
}

/// The table of the keys that are denied most, in its usual size.
fn sketch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sketch of 128");
    let names: Vec<String> = (0..100_000).map(|key| format!("limit:{key:012}")).collect();
    for (name, keys) in [("one key", 1), ("100 keys", 100), ("100 000 keys", names.len())] {
        let mut sketch = Sketch::new(128, Span::from_us(60_000_000), [1, 2], START);
        let mut turn = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                // A prime number as the step, so that all keys are used.
                turn = (turn + 7_919) % keys;
                sketch.count(0, names[turn].as_bytes(), black_box(START));
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .sample_size(40)
        .nresamples(2_000);
    targets = amounts, options, logs, ids, words, sketch
}
criterion_main!(benches);
