//! docs/scale.md: what the program writes between its marks, and the charts.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use tools::chart::{self, describe, fill, grouped, short, table, Graph, Line, Picture};
use tools::statistics::median;

use crate::scale::memory::TYPICAL;
use crate::scale::regions::{Sharing, LEAST, ROUND_TRIP_MS, SHARES, SWING};
use crate::scale::shards::{Algorithm, Choice};
use crate::scale::{hot, memory, shards, wallets, Results};

/// Writes the page and its pictures.
pub fn write_all(results: &Results, out: &Path) {
    for (name, svg) in pictures(results) {
        chart::write(&out.join(name), &svg);
    }
    let path = out.join("scale.md");
    let before = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    chart::write(&path, &page(results, &before));
}

/// The page with these figures.
pub fn page(results: &Results, before: &str) -> String {
    let blocks = [
        ("run", run(results)),
        ("start", start(results)),
        ("hot", hot(&results.hot)),
        ("keys", keys(&results.shards)),
        ("algorithms", algorithms(&results.shards)),
        ("wallets", wallets(&results.wallets)),
        ("kills", kills(results)),
        ("memory", memory(&results.memory)),
        ("nodes", nodes(&results.memory)),
        ("snapshots", snapshots(&results.memory)),
        ("cluster", cluster(results)),
        ("regions", regions(results)),
    ];
    let mut page = before.to_string();
    for (name, text) in blocks {
        page = fill(&page, &format!("make scale: {name}"), &text);
    }
    let titles = [("scale-keys.svg", keys_title(&results.shards)), ("scale-wallets.svg", wallets_title(&results.wallets))];
    titles.into_iter().fold(page, |page, (file, title)| describe(&page, file, &title))
}

/// The charts, with their file names.
pub fn pictures(results: &Results) -> Vec<(String, String)> {
    vec![
        ("scale-keys.svg".into(), keys_chart(&results.shards)),
        ("scale-wallets.svg".into(), wallets_chart(&results.wallets)),
    ]
}

/// The space between groups of digits and before a percent sign, at which no line ends.
const NARROW: char = '\u{a0}';

fn percent(share: f64) -> String {
    match share * 100.0 {
        whole if whole >= 99.95 => format!("{whole:.0}{NARROW}%"),
        part => format!("{part:.1}{NARROW}%"),
    }
}

fn run(results: &Results) -> String {
    let Results { machine, seed, .. } = results;
    format!(
        "Measured on {} by `make scale SEED={seed}` with redis-rl {}, on {}.\n",
        machine.date(),
        machine.module(),
        machine.brief()
    )
}

// ---- One key ----

impl hot::Section {
    fn row(&self, name: &str, hot: bool, pipeline: usize) -> &hot::Row {
        self.rows.iter().find(|row| row.name == name && row.hot == hot && row.pipeline == pipeline).expect("a row")
    }
}

fn hot(section: &hot::Section) -> String {
    let names: Vec<&str> = section.rows.iter().filter(|row| row.hot && row.pipeline == 16).map(|row| &*row.name).collect();
    let rows = names.into_iter().map(|name| {
        let [hot, random, single] =
            [(true, 16), (false, 16), (true, 1)].map(|(hot, pipeline)| section.row(name, hot, pipeline));
        let ratio = |row: &hot::Row| format!("{:.2} ({:.2}–{:.2})", row.of_set.median, row.of_set.low, row.of_set.high);
        vec![
            name.into(),
            grouped(hot.per_second),
            ratio(hot),
            format!("{:.2}", hot.cpu_us),
            grouped(random.per_second),
            ratio(random),
            grouped(single.per_second),
            format!("{:.2}", single.p99_ms),
        ]
    });
    let head = [
        "call",
        "hot key: calls a second",
        "ratio to `SET`",
        "CPU µs a call",
        "random keys: calls a second",
        "ratio to `SET`",
        "hot key, no pipeline",
        "p99 ms",
    ];
    format!(
        "{}\n{}, `redis-benchmark` with 50 connections, 16 calls in a pipeline except in the last two columns; medians of {} rounds, \
         with quartiles.\n",
        table(&head, rows),
        section.server,
        section.rounds
    )
}

// ---- Several keys ----

impl shards::Section {
    fn of(&self, choice: Choice, keys: u64, load: f64) -> &shards::Outcome {
        // One key leaves no choice.
        self.slide(|plan| {
            plan.limit == 10_000 && plan.keys == keys && plan.load == load && (plan.choice == choice || keys == 1)
        })
    }

    fn limit(&self, limit: u64) -> &shards::Outcome {
        self.slide(|plan| plan.choice == Choice::Random && plan.limit == limit && plan.keys == 8 && plan.load == 1.0)
    }

    fn slide(&self, is: impl Fn(&shards::Plan) -> bool) -> &shards::Outcome {
        self.find(|plan| plan.algorithm == Algorithm::Slide && is(plan))
    }

    fn algorithm(&self, algorithm: Algorithm, keys: u64) -> &shards::Outcome {
        let (choice, limit, load) = (Choice::Random, 10_000, 1.2);
        self.find(|plan| {
            (plan.algorithm, plan.choice, plan.limit, plan.keys, plan.load) == (algorithm, choice, limit, keys, load)
        })
    }
}

const CHOICES: [(Choice, &str); 3] = [
    (Choice::Random, "at random"),
    (Choice::Two, "at random, another one after a denial"),
    (Choice::Client, "by a hash of the client"),
];
const KEYS: [u64; 5] = [2, 4, 8, 16, 32];

fn keys(section: &shards::Section) -> String {
    let mut rows = Vec::new();
    for (choice, name) in CHOICES {
        for keys in [2, 8, 32] {
            let at = |load: f64| section.of(choice, keys, load);
            let mut row = vec![format!("{name}, {keys} keys")];
            row.extend([0.8, 1.0, 1.2, 2.0].map(|load| percent(at(load).used)));
            row.push(percent(at(1.0).early as f64 / at(1.0).made as f64));
            row.push(format!("{:.2}", at(1.2).tries as f64 / at(1.2).made as f64));
            row.push(percent([0.8, 1.0, 1.2, 2.0].iter().map(|&load| at(load).most).max().unwrap_or(0) as f64 / 10_000.0));
            rows.push(row);
        }
    }
    let head = [
        "the caller chooses a key",
        "load 0.8",
        "load 1.0",
        "load 1.2",
        "load 2.0",
        "denied too early, load 1.0",
        "server calls for a call, load 1.2",
        "most in any second",
    ];
    table(&head, rows)
}

fn algorithms(section: &shards::Section) -> String {
    let rows = Algorithm::ALL.into_iter().map(|algorithm| {
        let [one, eight] = [1, 8].map(|keys| section.algorithm(algorithm, keys));
        let most = |outcome: &shards::Outcome| percent(outcome.most as f64 / 10_000.0);
        vec![algorithm.name().into(), percent(eight.used), most(one), most(eight)]
    });
    let head =
        ["algorithm, 8 keys at random, load 1.2", "granted, beside one key", "most in any second, one key", "eight keys"];
    let limits = [100, 1_000, 10_000, 100_000];
    let by_limit = limits.map(|limit| format!("{} at {}", percent(section.limit(limit).used), grouped(limit as f64)));
    format!(
        "{}\nWhat counts is the units of one key in one period. With 8 keys at random and load 1.0, the grants are {} units a second.\n",
        table(&head, rows),
        by_limit.join(", ")
    )
}

fn keys_title(section: &shards::Section) -> String {
    let used = |choice| percent(section.of(choice, 32, 1.0).used);
    format!(
        "Split over 32 keys chosen at random, a limit grants {} of what one key would; by a hash of the client, {}",
        used(Choice::Random),
        used(Choice::Client)
    )
}

fn keys_chart(section: &shards::Section) -> String {
    let lines = [
        ("a second try", chart::GCRA, Choice::Two),
        ("at random", chart::SLIDE, Choice::Random),
        ("hash of the client", chart::FIXED, Choice::Client),
    ];
    let lines = lines.map(|(name, class, choice)| {
        let points = std::iter::once(1).chain(KEYS).map(|keys| (keys as f64, section.of(choice, keys, 1.0).used)).collect();
        Line { name, class, stroke: "line", points }
    });
    draw(
        &keys_title(section),
        "Grants beside those of one key; as many calls as the limit of 10\u{a0}000 a second.",
        "keys",
        &lines,
    )
}

// ---- Wallets ----

impl wallets::Section {
    fn of(&self, processes: usize, batch: u64, load: f64) -> &wallets::Outcome {
        self.simulated.find(|plan| (plan.processes, plan.batch, plan.load) == (processes, batch, load))
    }
}

const BATCHES: [u64; 5] = [10, 30, 100, 300, 1_000];

fn wallets(section: &wallets::Section) -> String {
    let mut rows = Vec::new();
    for processes in [1, 10, 100] {
        for batch in [0, 10, 100, 1_000] {
            if batch == 0 && processes > 1 {
                continue;
            }
            let [calm, full, over] = [0.8, 1.0, 1.5].map(|load| section.of(processes, batch, load));
            let mut row = vec![if batch == 0 {
                "none: each call asks the server".into()
            } else {
                format!("{processes} × {}", grouped(batch as f64))
            }];
            row.push(if batch == 0 { "0".into() } else { format!("{}", processes as f64 * batch as f64 / 10_000.0) });
            row.extend([calm, full, over].map(|outcome| percent(outcome.used)));
            row.push(format!("{:.0} + {:.0}", full.fetches, full.settles));
            row.extend([calm.p50_ms, calm.p99_ms, calm.p999_ms].map(|ms| format!("{ms:.2}")));
            row.push(percent(over.most));
            rows.push(row);
        }
    }
    let head = [
        "processes × batch",
        "of the limit",
        "used, load 0.8",
        "load 1.0",
        "load 1.5",
        "calls for 1000 decisions: fetch + settle",
        "p50 ms",
        "p99",
        "p99.9",
        "most spent in any second",
    ];
    let mut text = table(&head, rows);
    if let Some(real) = &section.real {
        write!(
            text,
            "\nMeasured to check this, with {} wallets of {} units at a limit of {}: {} used, and {} simulated.\n",
            real.plan.processes,
            real.plan.batch,
            grouped(real.plan.limit as f64),
            percent(real.used),
            percent(real.simulated_used),
        )
        .expect("a string");
    }
    text
}

fn wallets_title(section: &wallets::Section) -> String {
    let used = |batch| percent(section.of(100, batch, 1.0).used);
    format!(
        "100 processes use {} of a limit of 10{NARROW}000 with batches of 10, {} with 100, and {} with 1000",
        used(10),
        used(100),
        used(1_000)
    )
}

fn wallets_chart(section: &wallets::Section) -> String {
    let lines = [("1 process", chart::GCRA, 1), ("10", chart::SLIDE, 10), ("100", chart::FIXED, 100)];
    let lines = lines.map(|(name, class, processes)| {
        let points = BATCHES.iter().map(|&batch| (batch as f64, section.of(processes, batch, 1.0).used)).collect();
        Line { name, class, stroke: "line", points }
    });
    draw(
        &wallets_title(section),
        "Grants beside those without wallets; as many calls as the limit.",
        "units in a batch",
        &lines,
    )
}

// ---- Charts ----

/// Draws shares over numbers.
fn draw(title: &str, subtitle: &str, across: &str, lines: &[Line]) -> String {
    let mut picture = Picture::new(title, subtitle);
    picture.graph(&Graph {
        across,
        numbers: lines[0].points.iter().map(|(at, _)| *at).collect(),
        values: [0.0, 0.25, 0.5, 0.75, 1.0].map(|share: f64| (share, format!("{:.0}{NARROW}%", share * 100.0))).into(),
        lines,
        sides: (52.0, 20.0),
        height: 170.0,
        legend: [24.0, 30.0, 142.0],
    });
    picture.svg()
}

// ---- Failover ----

/// `12, 14, 90`
fn list(numbers: impl IntoIterator<Item = f64>) -> String {
    numbers.into_iter().map(|number| format!("{number:.0}")).collect::<Vec<_>>().join(", ")
}

fn kills(results: &Results) -> String {
    let section = &results.failover;
    let rows = section.kills.iter().map(|kills| {
        let expected = kills.per_second * kills.lag_ms as f64 / 1_000.0;
        vec![
            if kills.waits {
                format!("{} ms, `WAIT 1` after each grant", kills.lag_ms)
            } else {
                format!("{} ms", kills.lag_ms)
            },
            grouped(kills.per_second),
            if kills.waits { "0".into() } else { grouped(expected) },
            list(kills.lost.iter().map(|&lost| lost as f64)),
        ]
    });
    let mut text = table(
        &["the replica is behind by", "grants a second", "rate × lag", "acknowledged grants that were lost, by kill"],
        rows,
    );
    text.push('\n');
    let rows = section.bursts.iter().map(|bursts| {
        vec![
            format!("{} a second, `BURST {}`", grouped(bursts.limit as f64), bursts.burst),
            format!("{} ms", bursts.lag_ms),
            grouped((bursts.limit * bursts.lag_ms) as f64 / 1_000.0),
            list(bursts.excess.iter().copied()),
            list(bursts.before.iter().copied()),
        ]
    });
    let head =
        ["`RL.GCRA`, always at its limit", "behind by", "rate × lag", "granted above the limit, by kill", "before the kill"];
    text += &table(&head, rows);
    text.push('\n');
    let rows = section.cut_off.iter().map(|cut| {
        let seconds = cut.seconds.iter().map(|seconds| format!("{seconds:.1}")).collect::<Vec<_>>().join(", ");
        vec![cut.max_lag.to_string(), seconds, list(cut.granted.iter().map(|&granted| granted as f64))]
    });
    text + &table(&["`min-replicas-max-lag`", "seconds until the first `NOREPLICAS`, by run", "grants in this time"], rows)
}

// ---- Memory ----

impl memory::Section {
    fn servers(&self) -> Vec<&str> {
        self.expiry.iter().map(|expiry| &*expiry.server).collect()
    }

    fn of(&self, name: &str, server: &str) -> &memory::Of {
        self.kinds.iter().find(|of| of.name == name && of.server == server).expect("a kind")
    }

    /// The most bytes that a key of a kind takes on any server: of what `maxmemory` bounds, and of the system's memory.
    fn most(&self, name: &str) -> (f64, f64) {
        let all = self.kinds.iter().filter(|of| of.name == name);
        all.fold((0.0, 0.0), |(used, resident), of| (of.used.max(used), of.resident.max(resident)))
    }
}

fn memory(section: &memory::Section) -> String {
    let servers = section.servers();
    let mut names: Vec<&str> = Vec::new();
    section.kinds.iter().for_each(|of| {
        if !names.contains(&&*of.name) {
            names.push(&of.name);
        }
    });
    let rows = names.iter().map(|name| {
        let cell = |server: &&str| {
            let of = section.of(name, server);
            format!("{:.0} / {:.0}", of.used, of.resident)
        };
        std::iter::once(name.to_string()).chain(servers.iter().map(cell)).collect()
    });
    let head: Vec<&str> = std::iter::once("bytes a key: `used_memory` / resident").chain(servers.iter().copied()).collect();
    format!("{}\n{} keys with names of 16 bytes on each server.\n", table(&head, rows), grouped(section.keys as f64))
}

/// How many limiters are planned for.
const MANY: f64 = 100_000_000.0;
/// The part of `maxmemory` that is planned to be full.
const FULL: f64 = 0.8;

fn nodes(section: &memory::Section) -> String {
    let sizes = [4.0, 8.0, 16.0, 32.0];
    let kinds = [TYPICAL, "`RL.LEASE`, one holder"];
    let rows = kinds.map(|name| {
        let (bytes, resident) = section.most(name);
        let all = bytes * MANY;
        let nodes = |gb: f64| (all / (gb * 1e9 * FULL)).ceil();
        let mut row = vec![
            name.to_string(),
            format!("{bytes:.0} / {resident:.0}"),
            format!("{:.1} / {:.1} GB", all / 1e9, resident * MANY / 1e9),
        ];
        row.extend(sizes.map(|gb| format!("{:.0}", nodes(gb))));
        row
    });
    let head = [
        "100 million limiters",
        "bytes a key, the most above: `used_memory` / resident",
        "all",
        "primaries with `maxmemory` 4 GB",
        "8 GB",
        "16 GB",
        "32 GB",
    ];
    format!("{}\nA primary is planned to be {:.0}{NARROW}% full.\n", table(&head, rows), FULL * 100.0)
}

fn snapshots(section: &memory::Section) -> String {
    let millions = section.keys as f64 / 1e6;
    let rows = section.snapshots.iter().zip(&section.expiry).map(|(of, expiry)| {
        vec![
            of.server.clone(),
            format!("{:.1}", of.fork_ms / millions),
            format!("{:.2}", of.seconds / millions),
            format!("{:.0}", of.bytes),
            format!("{:.0} ({:.0}{NARROW}%)", of.copied, of.calls * 100.0),
            format!("{:.2}", of.load_seconds / millions),
            format!("{:.2} / {:.2}", expiry.hundredth / millions, expiry.none / millions),
            format!("{:.1}", expiry.ping_ms),
        ]
    });
    let head = [
        "for a million keys of `RL.GCRA`",
        "fork, ms",
        "snapshot, s",
        "bytes a key in the file",
        "bytes a key copied meanwhile (keys changed)",
        "start with the file, s",
        "all expire at once: 99 % / all gone after, s",
        "longest `PING` meanwhile, ms",
    ];
    table(&head, rows)
}

// ---- Several nodes, several regions ----

fn cluster(results: &Results) -> String {
    let rows = results.cluster.rows.iter().map(|row| {
        vec![row.name.clone(), format!("{:.2}", row.gcra_us), format!("{:.2}", row.set_us), format!("{:.2}", row.spread)]
    });
    let head =
        ["CPU µs of the node for a call", "`RL.GCRA`, granted", "`SET .. EX`", "the busiest node beside the least busy one"];
    let [alone, one, three] = &results.cluster.rows[..] else { panic!("three rows") };
    // Less than one node's time is noise: three nodes do not make more than three times as many calls.
    let times = (three.gcra_us / one.gcra_us).max(1.0);
    let of_three = if times > 1.0 { format!("{times:.2} times the CPU time") } else { "no more CPU time".into() };
    let than = if times > 1.0 { "of" } else { "than" };
    format!(
        "{}\nA node of three spends {of_three} {than} a cluster of one node, so three nodes grant about {:.1} times as many calls. \
         A node of a cluster spends {:.2} times the CPU time of a server alone; with `SET` {:.2} times.\n",
        table(&head, rows),
        3.0 / times,
        one.gcra_us / alone.gcra_us,
        one.set_us / alone.set_us
    )
}

fn regions(results: &Results) -> String {
    let rows = Sharing::ALL.into_iter().map(|sharing| {
        let [calm, over] = [0.9, 1.2].map(|load| results.regions.find(|plan| plan.sharing == sharing && plan.load == load));
        vec![
            sharing.name().into(),
            percent(calm.used),
            percent(over.used),
            percent(calm.most.max(over.most)),
            format!("{:.0}", over.mean_ms),
            format!("{:.0}", over.p99_ms),
        ]
    });
    let head = ["", "granted, load 0.9", "load 1.2", "most in any second", "round trip, mean ms", "p99"];
    let plan = results.regions.rows[0].plan;
    let whole = |share: f64| format!("{:.0}{NARROW}%", share * 100.0);
    format!(
        "{}\n`RL.SLIDE` with {} units a second in all. Three regions make {} of the calls, and each swings by {} around its mean in {} \
         minutes. No part is below {} of the limit. Assumed: round trips of {} ms to the home region, and {} ms within a region. \
         \"Granted\" is beside the limit, or beside all calls if they are fewer.\n",
        table(&head, rows),
        grouped(plan.limit as f64),
        SHARES.map(whole).join(", "),
        whole(SWING),
        plan.seconds / 60,
        whole(LEAST),
        ROUND_TRIP_MS.map(|ms| format!("{ms:.0}")).join(", "),
        ROUND_TRIP_MS[0]
    )
}

// ---- The first table ----

fn start(results: &Results) -> String {
    let gcra = results.hot.row("`RL.GCRA`, granted", true, 16);
    let single = results.hot.row("`RL.GCRA`, granted", true, 1);
    let lost = results.failover.kills.iter().filter(|kills| !kills.waits && kills.lag_ms == 10);
    let lost = median(lost.flat_map(|kills| kills.lost.iter().map(|&lost| lost as f64)));
    let random = results.shards.of(Choice::Random, 8, 1.0);
    let two = results.shards.of(Choice::Two, 8, 1.0);
    let wallet = results.wallets.of(10, 100, 1.0);
    let region = |sharing| percent(results.regions.find(|plan| plan.sharing == sharing && plan.load == 1.2).used);
    let rows = [
        (
            format!("up to about {} calls a second", short((single.per_second / 1_000.0).floor() * 1_000.0)),
            "one server, one key for each limiter, no pipeline".to_string(),
            "nothing".to_string(),
        ),
        (
            format!("up to about {} on one key", short((gcra.per_second / 10_000.0).floor() * 10_000.0)),
            format!("[pipeline the calls](#1-one-hot-key): {:.2} times as many as `SET`", gcra.of_set.median),
            "calls of a pipeline come back together".into(),
        ),
        (
            "most calls are denied".into(),
            "[repeat denials](../clients/README.md) in the process for a moment".into(),
            "units that others give back count up to a second later".into(),
        ),
        (
            "few keys, many calls on each".into(),
            "[wallets](#3-wallets): batches of units".into(),
            format!(
                "10 processes × 100 of 10 000: {:.0} calls to the server for 1000 decisions, {} used",
                wallet.fetches + wallet.settles,
                percent(wallet.used)
            ),
        ),
        (
            "more than one server can do on one key".into(),
            "[split it over n keys](#2-one-limit-over-several-keys), and try another after a denial".into(),
            format!("8 keys: {} used, and {} without the second try", percent(two.used), percent(random.used)),
        ),
        (
            "many limiters".into(),
            "[more nodes](#5-memory-and-nodes)".into(),
            format!(
                "{:.0} bytes of `maxmemory` a key of `RL.GCRA`, and more for a while when the hash tables double",
                results.memory.most(TYPICAL).0
            ),
        ),
        (
            "a limit that a failover must not break".into(),
            "[`WAIT`, `min-replicas-to-write`, a small `BURST`](#4-what-a-failover-grants-again)".into(),
            format!(
                "without: rate × lag, {lost:.0} grants at {} a second and 10 ms",
                short(
                    results
                        .failover
                        .kills
                        .iter()
                        .find(|kills| !kills.waits && kills.lag_ms == 10)
                        .map_or(0.0, |kills| kills.per_second)
                )
            ),
        ),
        (
            "callers in several regions".into(),
            "[one home region, or parts that follow the calls](#6-nodes-and-regions)".into(),
            format!(
                "the round trip; or {} of the limit, and {} with fixed parts",
                region(Sharing::LowerFirst),
                region(Sharing::Parts)
            ),
        ),
    ];
    let mut text = String::from("| you have | do | what it costs |\n|---|---|---|\n");
    rows.into_iter().for_each(|(have, act, cost)| writeln!(text, "| {have} | {act} | {cost} |").expect("a string"));
    text
}
