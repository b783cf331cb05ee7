//! The part as Markdown, written from its figures alone.

use std::fmt::Write;

use super::{ratio, Measured, Repeated, Round, Scene, Section, Setting, HOT};
use crate::benchmarks::cases::{Case, CASES, SET, SET_EXPIRED, SET_NEW};
use tools::chart::grouped;
use tools::load::{ID, KEY};
use tools::statistics::Quartiles;

pub const METERS: [&str; 3] = ["RL.FIXED, granted", "RL.GCRA, granted", "RL.BUCKET, granted"];
pub const GRANTS: [&str; 4] = [METERS[0], METERS[1], METERS[2], SLIDE];
const METER_DENIALS: [&str; 3] = ["RL.FIXED, denied", "RL.GCRA, denied", "RL.BUCKET, denied"];
const DENIALS: [&str; 4] = [METER_DENIALS[0], METER_DENIALS[1], METER_DENIALS[2], "RL.SLIDE, denied"];
pub const SLIDE: &str = "RL.SLIDE, limit 1000, granted";
pub const SLIDING_SCRIPTS: [&str; 4] = [
    "throttled-py, sliding window (Lua)",
    "limits, sliding window counter (Lua)",
    "limits, moving window (Lua)",
    "a sorted set (Lua)",
];

/// A requirement on a scene: the worst of the cases `of`, compared with the best of its bases, must not be on the wrong side
/// of the bar.
struct Bar {
    what: &'static str,
    of: &'static [&'static str],
    base: &'static [&'static str],
    figure: fn(&Round) -> f64,
    bar: f64,
    /// Whether the figure is a time, of which less is better.
    time: bool,
}

pub const FRESH: [&str; 3] = ["RL.FIXED", "RL.GCRA", "RL.BUCKET"];

const fn speed(what: &'static str, of: &'static [&'static str], base: &'static [&'static str], bar: f64) -> Bar {
    Bar { what, of, base, figure: |round| round.per_second, bar, time: false }
}

const BARS: [Bar; 8] = [
    speed("the slowest grant of FIXED, GCRA and BUCKET, relative to SET..EX", &METERS, &[SET], 1.0),
    speed("the slowest denial, relative to SET..EX", &DENIALS, &[SET], 1.2),
    speed("a grant of GCRA, relative to redis-cell", &["RL.GCRA, granted"], &["redis-cell, granted"], 1.8),
    speed("a grant of GCRA, relative to GCRA in Lua", &["RL.GCRA, granted"], &["throttled-py, GCRA (Lua)"], 5.0),
    speed("a grant of SLIDE, relative to SET..EX", &[SLIDE], &[SET], 0.8),
    speed("a grant of SLIDE, relative to the fastest sliding window in Lua", &[SLIDE], &SLIDING_SCRIPTS, 4.0),
    speed("the slowest denial of FIXED, GCRA and BUCKET, relative to SET..EX", &METER_DENIALS, &[SET], 1.3),
    speed("a grant of RL.ALL with two rules, relative to SET..EX", &["RL.ALL of GCRA and FIXED, granted"], &[SET], 0.6),
];
const LOGGED: Bar = speed("the slowest grant, relative to SET..EX", &GRANTS, &[SET], 0.9);
const TIMES: [Bar; 2] = [
    Bar {
        what: "the longest p50 of a grant, relative to SET..EX",
        figure: |r| r.p50_ms.unwrap_or(f64::NAN),
        time: true,
        bar: 1.05,
        ..LOGGED
    },
    Bar {
        what: "the longest p99 of a grant, relative to SET..EX",
        figure: |r| r.p99_ms.unwrap_or(f64::NAN),
        time: true,
        bar: 1.05,
        ..LOGGED
    },
];

impl Bar {
    /// The worst ratio; `None` if the scene lacks one of the cases.
    fn measure(&self, scene: &Scene) -> Option<Quartiles> {
        let mut worst: Option<Quartiles> = None;
        for of in self.of {
            for base in self.base {
                let ratio = ratio(&scene.case(of)?.rounds, &scene.case(base)?.rounds, self.figure);
                let worse =
                    |known: Quartiles| if self.time { ratio.median > known.median } else { ratio.median < known.median };
                if worst.is_none_or(worse) {
                    worst = Some(ratio);
                }
            }
        }
        worst
    }

    fn row(&self, scene: &Scene, setting: &str) -> Option<String> {
        let measured = self.measure(scene)?;
        let met = if self.time { measured.median <= self.bar } else { measured.median >= self.bar };
        let sign = if self.time { "≤" } else { "≥" };
        let verdict = if met { "yes" } else { "**no**" };
        // These figures have more digits than elsewhere, because rounding could hide that a goal is missed.
        let measured = format!("{:.3} ({:.2}–{:.2})", measured.median, measured.low, measured.high);
        let (what, bar) = (self.what, self.bar);
        Some(format!("| {setting}, {} | {what} | {sign} {bar} | {} | {verdict} |\n", keys(scene), measured))
    }
}

impl Scene {
    pub fn case(&self, name: &str) -> Option<&Measured> {
        self.cases.iter().find(|case| case.name == name)
    }
}

pub fn report(section: &Section) -> String {
    let mut text = String::new();
    introduction(section, &mut text);
    text.push_str("\n### Bytes in the replication stream\n\n| call | bytes a call |\n|---|---:|\n");
    for row in &section.stream {
        writeln!(text, "| {} | {:.0} |", row.name, row.bytes_per_call).expect("a string");
    }
    for scene in &section.scenes {
        table(scene, &mut text);
    }
    prepared(CASES, &mut text);
    text.push_str(PLACEHOLDERS);
    text
}

fn introduction(section: &Section, text: &mut String) {
    let Repeated { measured, repeated } = section.repeated;
    write!(
        text,
        "In each of {} rounds every case runs on a server of its own. All servers have the same options, and the keys exist before \
         the load starts. The load is `redis-benchmark` with {} connections over a Unix socket, for about {} seconds. The order of \
         the cases rotates from round to round. `{SET}`, with a value of 28 bytes, runs at the beginning, in the middle and at the \
         end of a round; the ratios use the median of these three. (A server's memory layout makes it faster or slower for as long \
         as it runs, so each measurement uses a new server.) With \"the hot key\", all calls use the same key.\n\n\
         A ratio compares calls a second in the same round. Tables show the median over the rounds, with the quartiles in brackets. \
         The CPU time is that of the server's main thread for one call; it is comparable even where the load generator is the \
         bottleneck. Its ratio compares calls in the same CPU time, so in all ratios a larger number is faster. The replies, and the \
         number of changes that the server counts during each load, confirm that the calls are granted or denied as intended. A measurement \
         begins when a fixed piece of work takes hardly longer than it ever took on this machine. It is repeated if that \
         is not so any more at its end, because other work slows the processors down: {repeated} of {measured} were.\n\n\
         `SET` and `INCR` run on a server without the module. Other rate limiters: {}. redis-cell comes from the crate registry, \
         and is built in release mode. It neither replicates its writes nor logs them to the append-only file, so with a \
         replica or with that file it does less work than the others. The scripts are called by `EVALSHA` with the arguments that their \
         packages pass. redis-benchmark can't send `MULTI`, so a loop of our own sends these calls; they are compared with a `SET` \
         that the same loop sends.\n\n\
         The [end of the page](#bars) lists the goals, and which of them are missed.\n",
        section.rounds,
        section.connections,
        section.seconds,
        section.peers.join(", "),
    )
    .expect("a string");
}

/// The table for the README.
pub fn summary(section: &Section) -> String {
    const ROWS: [&str; 8] = [
        METERS[0],
        METERS[1],
        METERS[2],
        SLIDE,
        METER_DENIALS[1],
        "redis-cell, granted",
        "limits, fixed window (Lua)",
        "throttled-py, GCRA (Lua)",
    ];
    let server = section.scenes.first().map_or("", |scene| &scene.server);
    let scene = |setting: Setting, hot: bool, single: bool| {
        let is = |scene: &&Scene| {
            scene.setting == setting
                && (scene.keys == HOT) == hot
                && (scene.pipeline == 1) == single
                && scene.server == server
        };
        section.scenes.iter().find(is)
    };
    let columns = [
        ("random keys", scene(Setting::Plain, false, false)),
        ("one hot key", scene(Setting::Plain, true, false)),
        ("append-only file", scene(Setting::Aof, false, false)),
        ("a replica", scene(Setting::Replica, false, false)),
        ("no pipeline", scene(Setting::Plain, false, true)),
    ];
    let pipeline = columns[0].1.map_or(1, |scene| scene.pipeline);
    let mut text = format!("| beside `{SET}` |");
    columns.iter().for_each(|(name, _)| text += &format!(" {name} |"));
    text += &format!("\n|---|{}\n", "---:|".repeat(columns.len()));
    for name in ROWS {
        text += &format!("| {name} |");
        for (_, scene) in columns {
            let ratio = scene.and_then(|scene| scene.case(name)).map_or("-".into(), |case| spread(case.of_base));
            text += &format!(" {ratio} |");
        }
        text.push('\n');
    }
    text + &format!(
        "\nCalls a second relative to `SET` in the same round, on one machine: medians of {} rounds, with quartiles. {server}; {pipeline} \
         calls in\na pipeline, except in the last column, where the round trip takes most of the time. redis-cell neither logs nor replicates \
         its\nwrites. Others: {}.\n",
        section.rounds,
        section.peers.join(", "),
    )
}

pub fn bars(section: &Section) -> String {
    let mut text = String::from(
        "## Bars\n\nA bar is a goal that was set before anything was measured. If a bar applies to several calls, the median of \
         the worst of them has to meet it.\n\n| load | what | bar | measured | met |\n|---|---|---:|---:|---|\n",
    );
    let first = section.scenes.first().map_or("", |scene| &scene.server);
    for scene in section.scenes.iter().filter(|scene| scene.server == first) {
        let setting = setting(scene);
        let rows: &[Bar] = match (scene.setting, scene.pipeline) {
            (Setting::Plain, 1) => &TIMES,
            (Setting::Plain, _) => &BARS,
            _ => &[LOGGED],
        };
        rows.iter().filter_map(|bar| bar.row(scene, &setting)).for_each(|row| text.push_str(&row));
    }
    let bytes = |name: &str| section.stream.iter().find(|row| row.name == name).map(|row| row.bytes_per_call);
    let Some(set) = section.stream.first().map(|row| row.bytes_per_call) else { return text };
    let rows = [
        ("the longest of FIXED, GCRA and BUCKET", &METERS[..], set),
        ("SLIDE", &[SLIDE], set),
        ("the longest denial", &DENIALS, 0.0),
    ];
    for (what, names, bar) in rows {
        if let Some(most) = names.iter().filter_map(|name| bytes(name)).reduce(f64::max) {
            let verdict = if most <= bar { "yes" } else { "**no**" };
            writeln!(text, "| replication stream | bytes of {what} | ≤ {bar} | {most:.0} | {verdict} |").expect("a string");
        }
    }
    text
}

/// The bars for fresh keys.
pub fn fresh_bars(scenes: &[Scene]) -> String {
    const NEW: Bar = speed("the slowest first call of FIXED, GCRA and BUCKET, relative to SET..PX", &FRESH, &[SET_NEW], 1.0);
    const EXPIRED: Bar = speed(
        "the slowest call of FIXED, GCRA and BUCKET after the key expired, relative to SET..PX",
        &FRESH,
        &[SET_EXPIRED],
        1.0,
    );
    let rows = scenes.iter().flat_map(|scene| {
        let setting = format!("{}, {}", scene.server, setting(scene));
        [NEW, EXPIRED].iter().filter_map(|bar| bar.row(scene, &setting)).collect::<Vec<_>>()
    });
    rows.collect()
}

pub fn table(scene: &Scene, text: &mut String) {
    let unpipelined = scene.pipeline == 1;
    let more = if unpipelined { " p50 ms | p99 ms |" } else { "" };
    let line = if unpipelined { "---:|---:|" } else { "" };
    let base = if scene.which.is_some() { "SET..PX" } else { "SET..EX" };
    write!(
        text,
        "\n### {}, {}, {}\n\n| | calls a second | ratio to {base} | CPU µs a call | ratio to {base} |{more}\n|---|---:|---:|---:|---:|{line}\n",
        scene.server,
        setting(scene),
        keys(scene)
    )
    .expect("a string");
    for case in &scene.cases {
        let (speed, cpu) = (case.per_second.median, case.cpu_us.median);
        write!(text, "| {} | {speed:.0} | {} | {cpu:.2} | {} |", case.name, spread(case.of_base), spread(case.cpu_of_base))
            .expect("a string");
        if unpipelined {
            let median = |figure: fn(&Round) -> Option<f64>| {
                let values: Option<Vec<f64>> = case.rounds.iter().map(figure).collect();
                values.map_or("-".into(), |values| format!("{:.3}", Quartiles::of(values).median))
            };
            write!(text, " {} | {} |", median(|round| round.p50_ms), median(|round| round.p99_ms)).expect("a string");
        }
        text.push('\n');
    }
}

pub fn prepared<'c>(cases: impl IntoIterator<Item = &'c Case>, text: &mut String) {
    text.push_str("\n### The calls\n\n| | each key was prepared by | call |\n|---|---|---|\n");
    for case in cases {
        let code = |words: &str| format!("`{}`", words.replace(KEY, "…").replace(ID, "%id"));
        let before = match (case.compared_with, case.prepare) {
            (Some(_), _) => "nothing".into(),
            (None, "") => "the call".into(),
            (None, words) => code(words),
        };
        writeln!(text, "| {} | {before} | {} |", case.name, code(case.call)).expect("a string");
    }
}

const PLACEHOLDERS: &str =
    "\n`…` is a number of 12 digits; where it occurs twice, redis-benchmark draws both independently. `%many` is 10000, and 1000000000 \
     on the hot key. `%tenth` is a tenth of it, and `%burst` is one less than it; `%interval` (seconds per unit) and `%rate` \
     (units per second) follow from it. \
     `%slide` is 1000 60, and 2000 1ms on the hot key, where a millisecond has up to about 1000 calls. `%sorted_us` is a minute, and \
     10 milliseconds on the hot key: so short that 1000 calls are never reached. `%limit` is 1000, and on the hot key a limit that is \
     never reached, because the scripts support whole seconds only.\n";

fn setting(scene: &Scene) -> String {
    let with = match scene.setting {
        Setting::Plain => "",
        Setting::Aof => ", append-only file, everysec",
        Setting::Replica => ", a replica",
    };
    format!("pipeline {}{with}", scene.pipeline)
}

fn keys(scene: &Scene) -> String {
    if let Some(which) = &scene.which {
        return which.clone();
    }
    if scene.keys == HOT {
        return "the hot key".into();
    }
    format!("{} random keys", grouped(scene.keys as f64))
}

fn spread(ratio: Quartiles) -> String {
    format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
}
