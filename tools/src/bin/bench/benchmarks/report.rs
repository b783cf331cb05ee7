//! docs/benchmarks.md: what the program writes between its marks, and the charts; and docs/benchmarks-tables.md.

use std::path::Path;

use super::cases::{Case, CASES, FIRST, IDS, SET, SET_NEW, SET_OWN};
use super::clients::{Row as Way, WAYS};
use super::ids::Held;
use super::scale::{self, OfKeys};
use super::speed::{ratio, Scene, Section, Setting, HOT, LONGER_WITHOUT_PIPELINE, NEW, RANDOM};
use super::{clients, ids, memory, Results};
use tools::chart::{self, fill, grouped, table, words, Axis, Bar, Picture};
use tools::load::{ID, KEY};
use tools::statistics::{median, Quartiles};

pub const METERS: [&str; 3] = ["RL.FIXED, granted", "RL.GCRA, granted", "RL.BUCKET, granted"];
pub const SLIDE: &str = "RL.SLIDE, limit 1000, granted";
pub const DENIALS: [&str; 4] = ["RL.FIXED, denied", "RL.GCRA, denied", "RL.BUCKET, denied", "RL.SLIDE, denied"];
const PAIR: &str = "RL.ALL of GCRA and FIXED, granted";
const CELL: &str = "redis-cell, granted";
const GCRA_SCRIPT: &str = "throttled-py, GCRA (Lua)";
const SLIDING_SCRIPTS: [&str; 4] = [
    "throttled-py, sliding window (Lua)",
    "limits, sliding window counter (Lua)",
    "limits, moving window (Lua)",
    "a sorted set (Lua)",
];
/// Writes the pages and the charts into this folder.
pub fn write(results: &Results, out: &Path) {
    speed_chart(&results.speed, &out.join("benchmarks-short.svg"));
    memory_chart(&results.memory, &out.join("benchmarks-memory.svg"));
    let machine = &results.machine;
    let blocks = [
        ("run", format!("Most figures were measured on {} on {}.\n", machine.date(), machine.brief())),
        ("speed", speed(&results.speed)),
        ("others", others(&results.speed)),
        ("ids", with_ids(&results.ids)),
        ("memory", memory(&results.memory)),
        ("scale", scale(&results.scale)),
        ("clients", clients(&results.clients)),
        ("method", method(results)),
    ];
    let page = out.join("benchmarks.md");
    fill(&page, &page, "make bench", &blocks, &[]);
    let scenes = |scenes: &[Scene]| scenes.iter().map(scene_table).collect::<Vec<_>>().join("\n");
    let blocks = [
        ("speed", scenes(&results.speed.scenes)),
        ("ids", scenes(&results.ids.scenes)),
        ("calls", calls(CASES.iter().chain(FIRST).chain(IDS))),
    ];
    let page = out.join("benchmarks-tables.md");
    fill(&page, &page, "make bench", &blocks, &[]);
}

/// A ratio or a time, with its quartiles.
pub fn spread(of: Quartiles) -> String {
    format!("{:.2} ({:.2}–{:.2})", of.median, of.low, of.high)
}

fn or_dash<T>(figure: Option<T>, show: impl Fn(T) -> String) -> String {
    figure.map_or("-".into(), show)
}

// ---- Speed ----

fn speed(section: &Section) -> String {
    const ROWS: [&str; 11] = [
        "INCR",
        METERS[0],
        METERS[1],
        METERS[2],
        SLIDE,
        DENIALS[1],
        "RL.GCRA .. BLOCK 5, granted at once",
        PAIR,
        CELL,
        "limits, fixed window (Lua)",
        GCRA_SCRIPT,
    ];
    let columns = [
        ("random keys", section.scene(Setting::Plain, RANDOM, 16)),
        ("one hot key", section.scene(Setting::Plain, HOT, 16)),
        ("append-only file", section.scene(Setting::Aof, RANDOM, 16)),
        ("a replica", section.scene(Setting::Replica, RANDOM, 16)),
        ("no pipeline", section.scene(Setting::Plain, RANDOM, 1)),
    ];
    let rows = ROWS.map(|name| {
        let cells = columns.map(|(_, scene)| or_dash(scene.case(name), |case| spread(case.of_base)));
        [name.into()].into_iter().chain(cells).collect()
    });
    let head = format!("beside `{SET}` | {}", columns.map(|(name, _)| name).join(" | "));
    let random = columns[0].1;
    // How many times as many as the fastest of the others, round by round.
    let times = |of: &str, others: &[&str]| {
        let rounds = |name: &str| &random.case(name).expect("a case").rounds;
        let of = others.iter().map(|other| ratio(rounds(of), rounds(other), |round| round.per_second).median);
        of.fold(f64::MAX, f64::min)
    };
    format!(
        "{}\nCalls a second relative to `SET` in the same round: medians of {} rounds, with quartiles. {}.\n\nOn random keys, in the median \
         round, `RL.GCRA` grants {:.1} times as many calls a second as redis-cell, and {:.1} times as many as GCRA in a Lua script. \
         `RL.SLIDE` grants {:.1} times as many as the fastest of four sliding windows in Lua.\n",
        table(&head, rows),
        section.rounds,
        section.scenes[0].server,
        times(METERS[1], &[CELL]),
        times(METERS[1], &[GCRA_SCRIPT]),
        times(SLIDE, &SLIDING_SCRIPTS),
    )
}

/// Other servers, first calls, times and replication.
fn others(section: &Section) -> String {
    const ROWS: [&str; 7] = [SET, METERS[0], METERS[1], METERS[2], SLIDE, DENIALS[1], CELL];
    let (first, single) = (&section.scenes[0].server, section.scene(Setting::Plain, RANDOM, 1));
    let servers = section.scenes.iter().filter(|scene| scene.server != *first && scene.keys == RANDOM);
    let mut scenes: Vec<(String, &Scene)> = servers.map(|scene| (scene.server.clone(), scene)).collect();
    scenes.push(("a new key".into(), section.scene(Setting::Plain, NEW, 16)));
    let rows = ROWS.map(|name| {
        let ratio = |(_, scene): &(_, &Scene)| {
            let of = |name: &str| scene.case(name).map(|case| case.of_base);
            or_dash(of(name).or_else(|| of(SET_NEW).filter(|_| name == SET)), spread)
        };
        let mut row = vec![name.to_string()];
        row.extend(scenes.iter().map(ratio));
        row.extend([50, 99].map(|part| or_dash(single.case(name).and_then(|case| case.ms(part)), |ms| format!("{ms:.2}"))));
        let bytes = if name == SET { section.stream.first().map(|set| set.bytes_per_call) } else { section.bytes(name) };
        row.push(or_dash(bytes, |bytes| format!("{bytes:.0}")));
        row
    });
    let names: Vec<_> = scenes.iter().map(|(name, _)| name.as_str()).collect();
    table(&format!("call | {} | no pipeline: p50 ms | p99 ms | bytes to a replica", names.join(" | ")), rows)
}

/// Draws grants on random keys.
fn speed_chart(section: &Section, path: &Path) {
    const ROWS: [(&str, &str, &[&str]); 9] = [
        (SET, chart::OTHER, &[SET]),
        ("RL.FIXED", chart::FIXED, &[METERS[0]]),
        ("RL.SLIDE", chart::SLIDE, &[SLIDE]),
        ("RL.GCRA", chart::GCRA, &[METERS[1]]),
        ("RL.BUCKET", chart::BUCKET, &[METERS[2]]),
        ("redis-cell", chart::OTHER, &[CELL]),
        ("fixed window, Lua", chart::OTHER, &["limits, fixed window (Lua)"]),
        ("sliding window, Lua", chart::OTHER, &SLIDING_SCRIPTS),
        ("GCRA, Lua", chart::OTHER, &[GCRA_SCRIPT]),
    ];
    let scene = section.scene(Setting::Plain, RANDOM, 16);
    let subtitle = format!("Thousand granted calls a second: {}.", scene.title());
    let bars = ROWS.map(|(name, class, cases)| {
        let of = |name: &&str| scene.case(name).expect("a case").per_second.median / 1e3;
        let value = cases.iter().map(of).fold(0.0, f64::max);
        Bar { name: name.into(), class, value, figure: format!("{value:.0}") }
    });
    draw("How fast redis-rl is beside SET and other rate limiters", &subtitle, &bars, Some(bars[0].value), path);
}

fn draw(title: &str, subtitle: &str, bars: &[Bar], mark: Option<f64>, path: &Path) {
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let mut picture = Picture::new(title, subtitle);
    picture.bars(Axis { from: 0.0, to: most, start: 176.0, end: 402.0 }, bars, mark);
    picture.save(path);
}

// ---- The other parts ----

/// `68 to 170`, of the figures that are not 0.
fn range(figures: impl Iterator<Item = f64>) -> String {
    let (least, most) =
        figures.filter(|figure| *figure > 0.0).fold((f64::MAX, 0.0_f64), |(least, most), it| (least.min(it), most.max(it)));
    format!("{least:.0} to {most:.0}")
}

fn with_ids(section: &ids::Section) -> String {
    let [random, hot] = &section.scenes[..] else { panic!("two scenes") };
    let pairs = random.cases.iter().zip(&hot.cases).filter(|(case, _)| case.name != SET_OWN);
    let rows = pairs.map(|(case, other)| vec![case.name.clone(), spread(case.of_base), spread(other.of_base)]);
    let speed = table(&format!("beside `{SET_OWN}` | random keys | one hot key"), rows);
    let rows = section.held.iter().map(|Held { name, ids, most_bytes, stream }| {
        let bytes = range(stream.iter().map(|row| row.bytes_per_call));
        vec![name.clone(), grouped(*ids as f64), bytes, grouped(*most_bytes as f64)]
    });
    let head = "a key that remembers many ids | ids | bytes to a replica, for a call that changes it | `MEMORY \
                USAGE`";
    format!("{speed}\n{}", table(head, rows))
}

fn memory(section: &memory::Section) -> String {
    let limits: Vec<_> = section.limits.iter().map(|&limit| grouped(limit as f64)).collect();
    let head = format!("bytes a key at a limit of | {}", limits.join(" | "));
    let rows = section.rows.iter();
    let rows = rows.map(|row| [row.name.clone()].into_iter().chain(row.bytes.iter().copied().map(grouped)).collect());
    format!("{}\nThe allocator is {}.\n", table(&head, rows), section.allocator)
}

/// Draws what a key takes at the limit in the middle.
fn memory_chart(section: &memory::Section, path: &Path) {
    let classes = [chart::FIXED, chart::GCRA, chart::BUCKET, chart::OTHER, chart::OTHER, chart::SLIDE];
    let at = section.limits.len() / 2;
    let bars: Vec<Bar> = (section.rows.iter().zip(classes.into_iter().chain([chart::OTHER; 3])))
        .map(|(row, class)| Bar { name: row.name.clone(), class, value: row.bytes[at], figure: grouped(row.bytes[at]) })
        .collect();
    let subtitle = format!("Bytes a key at a limit of {}. Grey: other ways to limit.", grouped(section.limits[at] as f64));
    draw("RL.SLIDE takes a fraction of the memory of a sorted set", &subtitle, &bars, None, path);
}

fn scale(section: &scale::Section) -> String {
    let rows = section.keys.iter().map(|OfKeys { keys, gcra, set }| {
        let cells = [*keys as f64, gcra.calls_per_second, set.calls_per_second, gcra.cpu_ns, set.cpu_ns];
        cells.map(grouped).into()
    });
    let head = "random keys | `RL.GCRA`, calls a second | `SET .. EX` | `RL.GCRA`, CPU ns a call | `SET .. EX`";
    let keys = table(head, rows);
    let rows = section.stalls.iter().map(|row| {
        let entries = or_dash(row.entries, |entries| grouped(entries as f64));
        let times = [row.median, row.p999, row.inside_of_best].map(|us| format!("{us:.0}"));
        [row.name.clone(), entries].into_iter().chain(times).collect()
    });
    let calls = grouped(section.stalls[0].calls as f64);
    let head = "entries in its log | median µs | p99.9 | longest in the server, best round";
    format!("{keys}\n{}", table(&format!("{calls} calls, one after the other | {head}"), rows))
}

fn clients(section: &clients::Section) -> String {
    let rows = section.rows.iter().map(|Way { client, way, per_second, of_round_trip: of }| {
        let name = WAYS.iter().find(|(known, _)| known == way).expect("a known way").1;
        let rate = grouped(median(per_second.iter().copied()));
        vec![format!("{client}: {name}"), rate, format!("{:.1} ({:.1}–{:.1})", of.median, of.low, of.high)]
    });
    table("package, and what decides | decisions a second | ratio to calls", rows)
}

fn method(results: &Results) -> String {
    let Section { rounds, seconds, connections, peers, measured, repeated, .. } = &results.speed;
    format!(
        "{}| rounds | {rounds}, each with a load of about {seconds} seconds ({} without a pipeline) by {connections} connections on \
         each case |\n\
         | repeated | {repeated} of {measured} measurements, because other work slowed the processors down |\n| others | {} |\n",
        results.machine.report(),
        seconds * LONGER_WITHOUT_PIPELINE,
        peers.join(", ")
    )
}

// ---- The page of tables ----

fn scene_table(scene: &Scene) -> String {
    let base = if scene.keys == NEW { "ratio to SET..PX" } else { "ratio to SET..EX" };
    let times = if scene.pipeline == 1 { " | p50 ms | p99 ms" } else { "" };
    let head = format!(" | calls a second | {base} | CPU µs a call | {base}{times}");
    let rows = scene.cases.iter().map(|case| {
        let (speed, cpu) = (format!("{:.0}", case.per_second.median), format!("{:.2}", case.cpu_us.median));
        let mut row = vec![case.name.clone(), speed, spread(case.of_base), cpu, spread(case.cpu_of_base)];
        let times = [50, 99].into_iter().filter(|_| scene.pipeline == 1);
        row.extend(times.map(|part| or_dash(case.ms(part), |ms| format!("{ms:.3}"))));
        row
    });
    format!("### {}\n\n{}", scene.title(), table(&head, rows))
}

fn calls<'c>(cases: impl Iterator<Item = &'c Case>) -> String {
    let rows = cases.map(|case| {
        let code = |words: &str| format!("`{}`", words.replace(KEY, "…").replace(ID, "%id"));
        let before = match (case.base, case.prepare) {
            (SET_NEW, _) => "nothing".into(),
            (_, "") => "the call".into(),
            (_, words) => code(words),
        };
        vec![case.name.into(), before, code(case.call)]
    });
    words(" | each key was prepared by | call", rows)
}
