//! The part as Markdown, written from its figures alone: `report` is its tables, the others are the answers.

use std::fmt::Write;

use super::{ratio, Measured, Repeated, Round, Scene, Section, Setting, HOT};
use crate::benchmarks::cases::{Case, CASES, SET, SET_EXPIRED, SET_NEW};
use tools::chart::grouped;
use tools::load::{ID, KEY};
use tools::statistics::{median, Quartiles};

pub const METERS: [&str; 3] = ["RL.FIXED, granted", "RL.GCRA, granted", "RL.BUCKET, granted"];
pub const GRANTS: [&str; 4] = [METERS[0], METERS[1], METERS[2], SLIDE];
const METER_DENIALS: [&str; 3] = ["RL.FIXED, denied", "RL.GCRA, denied", "RL.BUCKET, denied"];
const DENIALS: [&str; 4] = [METER_DENIALS[0], METER_DENIALS[1], METER_DENIALS[2], "RL.SLIDE, denied"];
const PAIR: &str = "RL.ALL of GCRA and FIXED, granted";
const BLOCKING: &str = "RL.GCRA .. BLOCK 5, granted at once";
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
    speed("a grant of RL.ALL with two rules, relative to SET..EX", &[PAIR], &[SET], 0.6),
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

impl Measured {
    /// The median over the rounds of a time of the replies; `None` if it was not measured.
    fn time(&self, figure: fn(&Round) -> Option<f64>) -> Option<f64> {
        let times: Option<Vec<f64>> = self.rounds.iter().map(figure).collect();
        times.map(median)
    }
}

impl Section {
    fn server(&self) -> &str {
        self.scenes.first().map_or("", |scene| &scene.server)
    }

    /// The first scene of this kind on a server.
    fn scene(&self, server: &str, setting: Setting, hot: bool, single: bool) -> Option<&Scene> {
        let is = |scene: &&Scene| {
            scene.setting == setting
                && (scene.keys == HOT) == hot
                && (scene.pipeline == 1) == single
                && scene.server == server
        };
        self.scenes.iter().find(is)
    }

    /// The servers, the first one first.
    fn servers(&self) -> Vec<&str> {
        let mut servers: Vec<&str> = self.scenes.iter().map(|scene| scene.server.as_str()).collect();
        servers.dedup();
        servers
    }
}

/// The least and the most of these figures: `0.82 to 0.97`.
pub fn range(figures: impl IntoIterator<Item = f64>, digits: usize) -> String {
    let all = figures.into_iter().map(|figure| (figure, figure));
    let (least, most) = all.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))).expect("figures");
    let [least, most] = [least, most].map(|figure| format!("{figure:.digits$}"));
    if least == most {
        least
    } else {
        format!("{least} to {most}")
    }
}

/// The ratios of these cases of a scene to their base.
pub fn ratios(scene: &Scene, names: &[&str]) -> String {
    range(names.iter().filter_map(|name| scene.case(name)).map(|case| case.of_base.median), 2)
}

/// How fast calls are, beside `SET` and beside other limiters.
pub fn brief(section: &Section) -> String {
    let (first, mut text) = (section.server(), summary(section));
    let plain = |server| section.scene(server, Setting::Plain, false, false);
    let Some(random) = plain(first) else { return text };
    let own = |scene: &Scene| {
        format!(
            "a grant of `RL.FIXED`, `RL.GCRA` or `RL.BUCKET` runs at {} of `SET`'s speed, and one of `RL.SLIDE` at {}",
            ratios(scene, &METERS),
            ratios(scene, &[SLIDE])
        )
    };
    write!(text, "\n* **Beside `SET`**, on random keys and in a pipeline, {}.", own(random)).expect("a string");
    for server in section.servers().into_iter().filter(|server| *server != first) {
        let Some(scene) = plain(server) else { continue };
        write!(text, " On {server} it is {} and {}.", ratios(scene, &METERS), ratios(scene, &[SLIDE])).expect("a string");
    }
    let others = BARS.iter().filter(|bar| bar.base != [SET]).filter_map(|bar| bar.measure(random));
    if let [cell, gcra, slide] = &others.map(|ratio| ratio.median).collect::<Vec<_>>()[..] {
        write!(
            text,
            "\n* **Beside other limiters**, `RL.GCRA` grants {cell:.1} times as many calls a second as redis-cell, and {gcra:.1} times as \
             many as GCRA in a Lua script. `RL.SLIDE` grants {slide:.1} times as many as the fastest sliding window in Lua."
        )
        .expect("a string");
    }
    if let Some(single) = section.scene(first, Setting::Plain, false, true) {
        let of = |name| {
            let case = single.case(name)?;
            Some((grouped(case.per_second.median), case.time(|round| round.p50_ms)?))
        };
        if let (Some((calls, ms)), Some((sets, set_ms))) = (of(METERS[1]), of(SET)) {
            write!(
                text,
                "\n* **Without a pipeline**, {} connections make {calls} calls of `RL.GCRA` a second, and {sets} of `SET`. The median reply \
                 takes {ms:.2} ms with `RL.GCRA`, and {set_ms:.2} ms with `SET`.",
                section.connections
            )
            .expect("a string");
        }
    }
    let bytes = |names: &[&str]| {
        range(section.stream.iter().filter(|row| names.contains(&row.name.as_str())).map(|row| row.bytes_per_call), 0)
    };
    writeln!(
        text,
        "\n* **A denial**, on random keys and in a pipeline, runs at {} of `SET`'s speed.\n\
         * **Replicas and the append-only file** get {} bytes for a grant, {} for a `SET` with a deadline, and {} for a denial.",
        ratios(random, &DENIALS),
        bytes(&GRANTS),
        bytes(&["SET key value PXAT t"]),
        bytes(&DENIALS),
    )
    .expect("a string");
    text
}

/// What a call with `BLOCK` costs.
pub fn waits(section: &Section) -> String {
    let random = section.scene(section.server(), Setting::Plain, false, false);
    let rounds = |name| Some(&random?.case(name)?.rounds);
    let (Some(blocking), Some(plain)) = (rounds(BLOCKING), rounds(METERS[1])) else { return String::new() };
    let at_once = ratio(blocking, plain, |round| round.per_second).median;
    format!(
        "## What a wait costs\n\nA call of `RL.GCRA` with `BLOCK` that is granted at once runs at {at_once:.2} of the speed of the same \
         call without `BLOCK`. A waiting client takes memory, and hardly any processor time: [figures for 10 000 of \
         them](commands.md#block), by `make waiters`.\n"
    )
}

/// Where calls are slower than `SET`, or than another limiter; nothing if not all scenes were measured.
pub fn slower(section: &Section) -> String {
    let scene = |setting, hot, single| section.scene(section.server(), setting, hot, single);
    let scenes = [
        scene(Setting::Plain, false, false),
        scene(Setting::Aof, false, false),
        scene(Setting::Replica, false, false),
        scene(Setting::Plain, true, true),
        scene(Setting::Plain, false, true),
    ];
    let [Some(random), Some(logged), Some(replicated), Some(hot), Some(single)] = scenes else { return String::new() };
    let mut text = format!(
        "* `INCR`, which only counts, runs at {} times `SET`'s speed, and a grant of `RL.FIXED` at {}.\n\
         * With an append-only file, a grant runs at {} of `SET`'s speed, and with a replica at {}.\n\
         * A grant of `RL.ALL` with two rules runs at {} of `SET`'s speed.\n",
        ratios(random, &["INCR"]),
        ratios(random, &METERS[..1]),
        ratios(logged, &GRANTS),
        ratios(replicated, &GRANTS),
        ratios(random, &[PAIR]),
    );
    let of = |name| hot.case(name).map_or(0.0, |case| case.of_base.median);
    if of("redis-cell, granted") > of(METERS[1]) {
        writeln!(
            text,
            "* Without a pipeline and on one hot key, redis-cell runs at {:.2} of `SET`'s speed, and `RL.GCRA` at {:.2}.",
            of("redis-cell, granted"),
            of(METERS[1])
        )
        .expect("a string");
    }
    let p99 = |name: &&str| {
        single.case(name)?.time(|round| round.p99_ms).map(|ms| (ms, name.split(',').next().unwrap_or_default().to_string()))
    };
    if let (Some((most, name)), Some((set, _))) =
        (GRANTS.iter().filter_map(p99).max_by(|one, other| one.0.total_cmp(&other.0)), p99(&SET))
    {
        writeln!(
            text,
            "* Without a pipeline and on random keys, a hundredth of the replies takes more than {most:.1} ms with `{name}`, the worst, and \
             more than {set:.1} ms with `SET`."
        )
        .expect("a string");
    }
    text
}

/// The tables.
pub fn report(section: &Section) -> String {
    let mut text = String::from("### Bytes in the replication stream\n\n| call | bytes a call |\n|---|---:|\n");
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

/// How the speed was measured.
pub fn method(section: &Section) -> String {
    let Repeated { measured, repeated } = section.repeated;
    format!(
        "`make bench` measures again. `make bench-report` writes both pages and the charts from [benchmarks.json](benchmarks.json), which \
         has every round.\n\n\
         * **Rounds.** In each of {} rounds, every case has a new server, because a server's memory layout makes it faster or slower for as long \
         as it runs. The order rotates. `{SET}`, with a value of 28 bytes, runs three times in a round, without the module.\n\
         * **Load.** `redis-benchmark` with {} connections over a Unix socket, for about {} seconds, on keys that exist. Calls that it \
         can't send come from a loop of our own, and are compared with a `SET` of the same loop.\n\
         * **Ratios** are figures of the same round, and the larger is the faster. The CPU time in the tables is that of the server's main \
         thread.\n\
         * **Checks.** The replies and the server's count of changes confirm that calls are granted or denied as intended. A measurement is \
         repeated if other work slowed the processors down: {repeated} of {measured} were.\n",
        section.rounds,
        section.connections,
        section.seconds,
    )
}

/// The short table.
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
    let server = section.server();
    let scene = |setting, hot, single| section.scene(server, setting, hot, single);
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
        "## Bars\n\nA bar is a goal that was set before anything was measured. The median of the worst call has to meet it.\n\n| load | what | bar | measured | met |\n|---|---|---:|---:|---|\n",
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
            let [p50, p99] = [case.time(|round| round.p50_ms), case.time(|round| round.p99_ms)]
                .map(|ms| ms.map_or("-".into(), |ms| format!("{ms:.3}")));
            write!(text, " {p50} | {p99} |").expect("a string");
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
    "\n`…` is a number of 12 digits. `%many` is 10000, and 1000000000 on the hot key. `%tenth` is a tenth of it, and `%burst` is one less \
     than it; `%interval` (seconds per unit) and `%rate` (units per second) follow from it. `%slide` is 1000 60, and 2000 1ms on the hot key. \
     `%sorted_us` is a minute, and 10 milliseconds on the hot key. `%limit` is 1000, and on the hot key a limit that is never reached.\n";

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

pub fn spread(ratio: Quartiles) -> String {
    format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
}
