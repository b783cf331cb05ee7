//! docs/scale.md: what the program writes between its marks, and a chart.

use std::path::Path;

use tools::chart::{self, fill, grouped, short, table, Axis, Bar, Picture};
use tools::statistics::median;

use crate::benchmarks::report::{spread, DENIALS, METERS, SLIDE};
use crate::benchmarks::speed::{self, Setting, HOT, RANDOM};
use crate::scale::memory::TYPICAL;
use crate::scale::shards::Choice;
use crate::scale::{memory, shards, wallets, Results};

/// Writes the page and its picture.
pub fn write(results: &Results, speed: &speed::Section, out: &Path) {
    let titles = [("scale-keys.svg", keys_chart(&results.shards, &out.join("scale-keys.svg")))];
    let page = out.join("scale.md");
    fill(&page, &page, "make scale", &texts(results, speed), &titles);
}

/// The texts between the marks of the page.
pub fn texts(results: &Results, speed: &speed::Section) -> Vec<(&'static str, String)> {
    vec![
        ("run", run(results)),
        ("start", start(results, speed)),
        ("hot", hot(speed)),
        ("keys", keys(&results.shards)),
        ("wallets", wallets(&results.wallets)),
        ("kills", kills(results)),
        ("memory", memory(&results.memory)),
        ("snapshots", snapshots(&results.memory)),
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

fn hot(section: &speed::Section) -> String {
    let [hot, random, single] =
        [(HOT, 16), (RANDOM, 16), (HOT, 1)].map(|(keys, pipeline)| section.scene(Setting::Plain, keys, pipeline));
    let rows = ["SET key value EX 60", METERS[0], METERS[1], METERS[2], SLIDE, DENIALS[1]].map(|name| {
        let [on_hot, on_random] = [hot, random].map(|scene| scene.case(name).expect("a case"));
        let alone = single.case(name);
        vec![
            // On the hot key, the limit is another.
            name.replace(", limit 1000", ""),
            grouped(on_hot.per_second.median),
            spread(on_hot.of_base),
            format!("{:.2}", on_hot.cpu_us.median),
            grouped(on_random.per_second.median),
            alone.map_or("-".into(), |case| grouped(case.per_second.median)),
            alone.and_then(|case| case.ms(99)).map_or("-".into(), |ms| format!("{ms:.2}")),
        ]
    });
    let head = "call | hot key: calls a second | ratio to `SET` | CPU µs a call | random keys: calls a second | hot \
                key, no pipeline | p99 ms";
    format!(
        "{}\n{}, 50 connections, 16 calls in a pipeline except in the last two columns: a part of the [benchmarks](benchmarks.md).\n",
        table(head, rows),
        hot.server
    )
}

// ---- Several keys ----

impl shards::Section {
    fn of(&self, choice: Choice, keys: u64, load: f64) -> &shards::Outcome {
        // One key leaves no choice.
        self.find(|plan| {
            plan.limit == 10_000 && plan.keys == keys && plan.load == load && (plan.choice == choice || keys == 1)
        })
    }

    fn limit(&self, limit: u64) -> &shards::Outcome {
        self.find(|plan| plan.choice == Choice::Random && plan.limit == limit && plan.keys == 8 && plan.load == 1.0)
    }
}

const CHOICES: [(Choice, &str); 3] = [
    (Choice::Random, "at random"),
    (Choice::Two, "at random, another one after a denial"),
    (Choice::Client, "by a hash of the client"),
];

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
    let head = "the caller chooses a key | load 0.8 | load 1.0 | load 1.2 | load 2.0 | denied too early, load 1.0 | \
                server calls for a call, load 1.2 | most in any second";
    let limits = [100, 1_000, 10_000, 100_000];
    let by_limit = limits.map(|limit| format!("{} at {}", percent(section.limit(limit).used), grouped(limit as f64)));
    format!(
        "{}\nWith 8 keys at random and load 1.0, the grants are {} units a second.\n",
        table(head, rows),
        by_limit.join(", ")
    )
}

/// Draws what split limits grant, and returns the title.
fn keys_chart(section: &shards::Section, path: &Path) -> String {
    let used = |choice, keys| section.of(choice, keys, 1.0).used;
    let title = format!(
        "Split over 32 keys chosen at random, a limit grants {} of what one key would; by a hash of the client, {}",
        percent(used(Choice::Random, 32)),
        percent(used(Choice::Client, 32))
    );
    let subtitle = "Grants beside those of one key; as many calls as the limit of 10\u{a0}000 a second.";
    let mut picture = Picture::new(&title, subtitle);
    for ((choice, name), class) in CHOICES.into_iter().zip([chart::SLIDE, chart::GCRA, chart::FIXED]) {
        picture.heading(name, "name");
        let bars = [2, 8, 32].map(|keys| {
            let value = used(choice, keys);
            Bar { name: format!("{keys} keys"), class, value, figure: percent(value) }
        });
        picture.bars(Axis { from: 0.0, to: 1.0, start: 84.0, end: 402.0 }, &bars, None);
        picture.y += 6.0;
    }
    picture.save(path);
    title
}

// ---- Wallets ----

impl wallets::Section {
    fn of(&self, processes: usize, batch: u64, load: f64) -> &wallets::Outcome {
        self.simulated.find(|plan| (plan.processes, plan.batch, plan.load) == (processes, batch, load))
    }
}

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
    let head = "processes × batch | of the limit | used, load 0.8 | load 1.0 | load 1.5 | calls for 1000 decisions: \
                fetch + settle | p50 ms | p99 | p99.9 | most spent in any second";
    let mut text = table(head, rows);
    if let Some(real) = &section.real {
        text += &format!(
            "\nMeasured to check this, with {} wallets of {} units at a limit of {}: {} used, and {} simulated.\n",
            real.plan.processes,
            real.plan.batch,
            grouped(real.plan.limit as f64),
            percent(real.used),
            percent(real.simulated_used),
        );
    }
    text
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
    table("the replica is behind by | grants a second | rate × lag | acknowledged grants that were lost, by kill", rows)
}

// ---- Memory ----

impl memory::Section {
    fn servers(&self) -> Vec<&str> {
        self.snapshots.iter().map(|of| &*of.server).collect()
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
    let head = format!("bytes a key: `used_memory` / resident | {}", servers.join(" | "));
    format!(
        "{}\n{} keys with names of 16 bytes on each server, without a cluster. In a cluster a key can take more.\n",
        table(&head, rows),
        grouped(section.keys as f64)
    )
}

fn snapshots(section: &memory::Section) -> String {
    let millions = section.keys as f64 / 1e6;
    let rows = section.snapshots.iter().map(|of| {
        vec![
            of.server.clone(),
            format!("{:.1}", of.fork_ms / millions),
            format!("{:.2}", of.seconds / millions),
            format!("{:.0}", of.bytes),
            format!("{:.2}", of.load_seconds / millions),
        ]
    });
    let head = "for a million keys of `RL.GCRA` | fork, ms | snapshot, s | bytes a key in the file | start with the file, s";
    table(head, rows)
}

// ---- The first table ----

fn start(results: &Results, speed: &speed::Section) -> String {
    let gcra = |pipeline| speed.scene(Setting::Plain, HOT, pipeline).case(METERS[1]).expect("a case");
    let (piped, single) = (gcra(16), gcra(1));
    let behind = results.failover.kills.iter().find(|kills| !kills.waits && kills.lag_ms == 10).expect("a lag of 10 ms");
    let split = |choice| percent(results.shards.of(choice, 8, 1.0).used);
    let wallet = results.wallets.of(10, 100, 1.0);
    let about = |rate: f64, step: f64| short((rate / step).floor() * step);
    format!(
        "| you have | do | what it costs |\n|---|---|---|\n\
         | up to about {} calls a second | one server, one key for each limiter, no pipeline | nothing |\n\
         | up to about {} on one key | [pipeline the calls](#1-one-hot-key): {:.2} times as many as `SET` | calls of a pipeline wait \
         for each other |\n\
         | most calls are denied | [repeat denials](../clients/README.md) in the process for a moment | units that others give back count up \
         to a second later |\n\
         | few keys, many calls on each | [wallets](#3-wallets): batches of units | 10 processes × 100 of 10 000: {:.0} calls to the server \
         for 1000 decisions, {} used |\n\
         | more than one server can do on one key | [split it over n keys](#2-one-limit-over-several-keys), and try another after a denial \
         | 8 keys: {} used, and {} without the second try |\n\
         | many limiters | [more nodes](#5-memory-and-nodes) | {:.0} bytes of `maxmemory` a key of `RL.GCRA`; it can be more, \
         such as in a cluster |\n\
         | a limit that matters in a failover, too | [`WAIT`, `min-replicas-to-write`, a small `BURST`](#4-what-a-failover-grants-again) | \
         without: about rate × lag; measured {:.0} grants at {} a second and 10 ms |\n\
         | callers in several regions | [one home region, or parts that follow the calls](#6-nodes-and-regions) | the round trip, or a part \
         of the limit that is not used |\n",
        about(single.per_second.median, 1_000.0),
        about(piped.per_second.median, 10_000.0),
        piped.of_base.median,
        wallet.fetches + wallet.settles,
        percent(wallet.used),
        split(Choice::Two),
        split(Choice::Random),
        results.memory.most(TYPICAL).0,
        median(behind.lost.iter().map(|&lost| lost as f64)),
        short(behind.per_second),
    )
}
