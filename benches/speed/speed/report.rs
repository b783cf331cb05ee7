//! The section as Markdown, of nothing but its figures.

use std::fmt::Write;

use super::{ratio, Measured, Round, Scene, Section, Setting, HOT};
use crate::cases::{CASES, SET};
use crate::chart::grouped;
use crate::load::KEY;
use crate::statistics::Quartiles;

const METERS: [&str; 3] = ["RL.FIXED, granted", "RL.GCRA, granted", "RL.BUCKET, granted"];
pub const GRANTS: [&str; 4] = [METERS[0], METERS[1], METERS[2], SLIDE];
const DENIALS: [&str; 4] = ["RL.FIXED, denied", "RL.GCRA, denied", "RL.BUCKET, denied", "RL.SLIDE, denied"];
const SLIDE: &str = "RL.SLIDE, limit 1000, granted";
pub const SLIDING_SCRIPTS: [&str; 4] = [
    "throttled-py, sliding window (Lua)",
    "limits, sliding window counter (Lua)",
    "limits, moving window (Lua)",
    "a sorted set (Lua)",
];

/// What is asked of a scene: that the worst of these, compared with the best of those, is on the right side of the bar.
struct Bar {
    what: &'static str,
    of: &'static [&'static str],
    base: &'static [&'static str],
    figure: fn(&Round) -> f64,
    bar: f64,
    /// Whether it is a time: then less is better.
    time: bool,
}

const fn speed(what: &'static str, of: &'static [&'static str], base: &'static [&'static str], bar: f64) -> Bar {
    Bar { what, of, base, figure: |round| round.per_second, bar, time: false }
}

const BARS: [Bar; 6] = [
    speed("the slowest of FIXED, GCRA and BUCKET, granted, of SET..EX", &METERS, &[SET], 1.0),
    speed("the slowest denial, of SET..EX", &DENIALS, &[SET], 1.2),
    speed("GCRA, granted, of redis-cell", &["RL.GCRA, granted"], &["redis-cell, granted"], 1.8),
    speed("GCRA, granted, of the same in Lua", &["RL.GCRA, granted"], &["throttled-py, GCRA (Lua)"], 5.0),
    speed("SLIDE, granted, of SET..EX", &[SLIDE], &[SET], 0.8),
    speed("SLIDE, granted, of the fastest sliding window in Lua", &[SLIDE], &SLIDING_SCRIPTS, 4.0),
];
const LOGGED: Bar = speed("the slowest grant, of SET..EX", &GRANTS, &[SET], 0.9);
const TIMES: [Bar; 2] = [
    Bar {
        what: "the longest p50 of a grant, of SET..EX",
        figure: |r| r.p50_ms.unwrap_or(f64::NAN),
        time: true,
        bar: 1.05,
        ..LOGGED
    },
    Bar {
        what: "the longest p99 of a grant, of SET..EX",
        figure: |r| r.p99_ms.unwrap_or(f64::NAN),
        time: true,
        bar: 1.05,
        ..LOGGED
    },
];

impl Bar {
    /// The worst ratio; none if the scene does not have all the cases.
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
        // Finer than elsewhere, or a miss could look like a hit.
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
    prepared(&mut text);
    text
}

fn introduction(section: &Section, text: &mut String) {
    write!(
        text,
        "## Speed\n\n![Calls a second, of those of {SET}](benchmarks-speed.svg)\n\n\
         In each of {} rounds each case has a server of its own, all with the same options, and its keys exist before the load comes: \
         `redis-benchmark` with {} connections, over a Unix socket, for about {} seconds. The \
         order is rotated from round to round, with `{SET}` and a value of 28 bytes at the beginning, in the middle and \
         at the end, of which the median counts. (Where its memory happens to lie makes a server faster or slower for as long as it \
         runs: hence so many servers.) A ratio is one of calls a second in the same round; tables have medians over the \
         rounds, and from quartile to quartile in brackets. The time is the CPU time of the server's main thread for a call, which \
         tells also where the load generator is the slower one; its ratio is one of calls in the same CPU time, so in all ratios \
         more is faster. That calls are granted, or denied, is seen in replies and in the number of changes that the server \
         counts over each load.\n\n\
         `SET` and `INCR` run in a server without the module. Peers: {}; redis-cell is what the crate registry has, built in release mode: \
         it neither replicates nor logs what it writes, so its figures beside a replica or a log are of less work. The \
         scripts are called by `EVALSHA` with the arguments that their packages pass. redis-benchmark can't call `MULTI`: a loop of \
         our own does, and it has a `SET` of its own to be compared with.\n\n\
         What was aimed at, and where it is missed, is at the [end of the page](#bars).\n",
        section.rounds,
        section.connections,
        section.seconds,
        section.peers.join(", "),
    )
    .expect("a string");
}

/// The paragraph for the README.
pub fn summary(section: &Section) -> String {
    let scene = |hot: bool| section.scenes.iter().find(|scene| (scene.keys == HOT) == hot).expect("a scene");
    let (random, hot) = (scene(false), scene(true));
    let ratios = |scenes: &[&Scene], names: &[&str]| -> String {
        let cases = || scenes.iter().flat_map(|scene| names.iter().filter_map(|name| scene.case(name)));
        let (least, most) = cases()
            .map(|case| case.of_base.median)
            .fold((f64::INFINITY, 0.0_f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
        format!("{least:.2} to {most:.2}")
    };
    let logged: Vec<&Scene> = section.scenes.iter().filter(|scene| scene.setting != Setting::Plain).collect();
    let bar = |bar: &Bar| bar.measure(random).expect("its cases").median;
    let [_, _, cell, script, slide, _] = BARS.each_ref().map(bar);
    format!(
        "Measured on {server} with {pipeline} calls in a pipeline, as a ratio to `{SET}` in calls a second:\n\
         grants of `RL.FIXED`, `RL.GCRA` and `RL.BUCKET` reach {} on random keys, {} on one hot key, and {}\n\
         with an append-only file or a replica. With random keys, `RL.GCRA` is {cell:.1} times as fast as redis-cell and {script:.1} times as fast as\n\
         GCRA in Lua. `RL.SLIDE` with a limit of 1000 reaches {slide:.2}; denials reach {}.\n",
        ratios(&[random], &METERS),
        ratios(&[hot], &METERS),
        ratios(&logged, &METERS),
        ratios(&[random], &DENIALS),
        server = random.server,
        pipeline = random.pipeline,
    )
}

pub fn bars(section: &Section) -> String {
    let mut text = String::from(
        "## Bars\n\nBars are goals that were set before anything was measured; the worst of the calls that a bar names has to meet it, \
         by its median.\n\n| load | what | bar | measured | met |\n|---|---|---:|---:|---|\n",
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

fn table(scene: &Scene, text: &mut String) {
    let unpipelined = scene.pipeline == 1;
    let more = if unpipelined { " p50 ms | p99 ms |" } else { "" };
    let line = if unpipelined { "---:|---:|" } else { "" };
    write!(
        text,
        "\n### {}, {}, {}\n\n| | calls a second | of SET..EX | CPU µs a call | of SET..EX |{more}\n|---|---:|---:|---:|---:|{line}\n",
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

fn prepared(text: &mut String) {
    text.push_str("\n### The calls\n\n| | each key was prepared by | call |\n|---|---|---|\n");
    for case in CASES {
        let code = |words: &str| format!("`{}`", words.replace(KEY, "…"));
        let before = if case.prepare.is_empty() { "the call".into() } else { code(case.prepare) };
        writeln!(text, "| {} | {before} | {} |", case.name, code(case.call)).expect("a string");
    }
    text.push_str(
        "\n`…` is a number of 12 digits; where it comes twice, redis-benchmark draws each by itself. `%many` is 10000, and 1000000000 on \
         the hot key, `%tenth`, `%burst` (one less), `%interval` (seconds for one) and `%rate` (a second) follow from it. `%slide` is 1000 60, and 2000 1ms on \
         the hot key, where a millisecond has up to about 1000 calls, `%sorted_us` a minute and 10 milliseconds: so short that 1000 are never reached. `%limit` is 1000, and on the \
         hot key a limit that is never reached: the scripts know whole seconds only.\n",
    );
}

fn setting(scene: &Scene) -> String {
    let with = match scene.setting {
        Setting::Plain => "",
        Setting::Aof => ", append-only file, everysec",
        Setting::Replica => ", a replica",
    };
    format!("pipeline {}{with}", scene.pipeline)
}

fn keys(scene: &Scene) -> String {
    if scene.keys == HOT {
        return "the hot key".into();
    }
    format!("{} random keys", grouped(scene.keys as f64))
}

fn spread(ratio: Quartiles) -> String {
    format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
}
