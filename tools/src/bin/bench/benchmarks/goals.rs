//! The goals that were set before anything was measured, and whether they are met.

use super::cases::{SET, SET_NEW};
use super::clients::WALLET;
use super::speed::{ratio, Round, Scene, Setting, NEW};
use super::Results;
use tools::statistics::Quartiles;

pub const METERS: [&str; 3] = ["RL.FIXED, granted", "RL.GCRA, granted", "RL.BUCKET, granted"];
pub const SLIDE: &str = "RL.SLIDE, limit 1000, granted";
pub const GRANTS: [&str; 4] = [METERS[0], METERS[1], METERS[2], SLIDE];
pub const DENIALS: [&str; 4] = ["RL.FIXED, denied", "RL.GCRA, denied", "RL.BUCKET, denied", "RL.SLIDE, denied"];
pub const PAIR: &str = "RL.ALL of GCRA and FIXED, granted";
pub const CELL: &str = "redis-cell, granted";
pub const GCRA_SCRIPT: &str = "throttled-py, GCRA (Lua)";
pub const SLIDING_SCRIPTS: [&str; 4] = [
    "throttled-py, sliding window (Lua)",
    "limits, sliding window counter (Lua)",
    "limits, moving window (Lua)",
    "a sorted set (Lua)",
];
/// The most bytes that a call on a key with many ids may add to the replication stream on average.
const MOST_WITH_IDS: f64 = 1_024.0;

/// A goal for each scene of a kind: the worst of the cases `of`, compared with the best of the cases `base`, must not be on the wrong
/// side of the bar.
struct Goal {
    scenes: fn(&Scene) -> bool,
    what: &'static str,
    of: &'static [&'static str],
    base: &'static [&'static str],
    figure: fn(&Round) -> Option<f64>,
    bar: f64,
    /// Whether the figure is a time, of which less is better.
    time: bool,
}

type Names = &'static [&'static str];

const fn speed(scenes: fn(&Scene) -> bool, what: &'static str, of: Names, base: Names, bar: f64) -> Goal {
    Goal { scenes, what, of, base, figure: |round| Some(round.per_second), bar, time: false }
}

const fn time(what: &'static str, figure: fn(&Round) -> Option<f64>) -> Goal {
    Goal { scenes: |scene| scene.pipeline == 1, what, of: &GRANTS, base: &[SET], figure, bar: 1.05, time: true }
}

const PIPED: fn(&Scene) -> bool = |scene| scene.setting == Setting::Plain && scene.pipeline > 1 && scene.keys != NEW;

const GOALS: [Goal; 12] = [
    speed(PIPED, "the slowest grant of FIXED, GCRA and BUCKET, relative to SET..EX", &METERS, &[SET], 1.0),
    speed(PIPED, "the slowest denial, relative to SET..EX", &DENIALS, &[SET], 1.2),
    speed(PIPED, "a grant of GCRA, relative to redis-cell", &[METERS[1]], &[CELL], 1.8),
    speed(PIPED, "a grant of GCRA, relative to GCRA in Lua", &[METERS[1]], &[GCRA_SCRIPT], 5.0),
    speed(PIPED, "a grant of SLIDE, relative to SET..EX", &[SLIDE], &[SET], 0.8),
    speed(PIPED, "a grant of SLIDE, relative to the fastest sliding window in Lua", &[SLIDE], &SLIDING_SCRIPTS, 4.0),
    speed(PIPED, "the slowest denial of FIXED, GCRA and BUCKET, relative to SET..EX", DENIALS.split_at(3).0, &[SET], 1.3),
    speed(PIPED, "a grant of RL.ALL with two rules, relative to SET..EX", &[PAIR], &[SET], 0.6),
    time("the longest p50 of a grant, relative to SET..EX", |round| round.p50_ms),
    time("the longest p99 of a grant, relative to SET..EX", |round| round.p99_ms),
    speed(|scene| scene.setting != Setting::Plain, "the slowest grant, relative to SET..EX", &GRANTS, &[SET], 0.9),
    speed(
        |scene| scene.keys == NEW,
        "the slowest first call of FIXED, GCRA and BUCKET, relative to SET..PX",
        &METERS,
        &[SET_NEW],
        1.0,
    ),
];

/// The worst ratio of these cases to their bases, round by round; `None` if the scene lacks one of them.
pub fn worst(scene: &Scene, of: &[&str], base: &[&str]) -> Option<Quartiles> {
    worst_of(scene, of, base, |round| Some(round.per_second), false)
}

fn worst_of(scene: &Scene, of: &[&str], base: &[&str], figure: fn(&Round) -> Option<f64>, time: bool) -> Option<Quartiles> {
    let mut ratios = Vec::new();
    for of in of {
        for base in base {
            let [of, base] = [scene.case(of)?, scene.case(base)?];
            ratios.push(ratio(&of.rounds, &base.rounds, |round| figure(round).unwrap_or(f64::NAN)));
        }
    }
    let order = |one: &Quartiles, other: &Quartiles| one.median.total_cmp(&other.median);
    if time {
        ratios.into_iter().max_by(order)
    } else {
        ratios.into_iter().min_by(order)
    }
}

/// Whether a goal is met, and its row of the table: the load, what it is about, the bar, and what was measured.
pub type Verdict = (bool, [String; 4]);

/// All goals.
pub fn verdicts(results: &Results) -> Vec<Verdict> {
    let speed = &results.speed;
    let mut verdicts = Vec::new();
    for scene in &speed.scenes {
        for goal in GOALS.iter().filter(|goal| (goal.scenes)(scene)) {
            // The goals are about the first server, but for those of new keys.
            if scene.server != speed.scenes[0].server && scene.keys != NEW {
                continue;
            }
            let Some(measured) = worst_of(scene, goal.of, goal.base, goal.figure, goal.time) else { continue };
            let met = if goal.time { measured.median <= goal.bar } else { measured.median >= goal.bar };
            let sign = if goal.time { "≤" } else { "≥" };
            // These figures have more digits than elsewhere, because rounding could hide that a goal is missed.
            let measured = format!("{:.3} ({:.2}–{:.2})", measured.median, measured.low, measured.high);
            verdicts.push((met, [scene.title(), goal.what.into(), format!("{sign} {}", goal.bar), measured]));
        }
    }
    let mut bytes = |what: String, most: f64, bar: f64| {
        let row = ["replication stream".into(), what, format!("≤ {bar}"), format!("{most:.0}")];
        verdicts.push((most <= bar, row));
    };
    let longest = |names: &[&str]| names.iter().filter_map(|name| speed.bytes(name)).fold(0.0, f64::max);
    let set = speed.stream.first().map_or(0.0, |set| set.bytes_per_call);
    bytes("bytes of the longest of FIXED, GCRA and BUCKET".into(), longest(&METERS), set);
    bytes("bytes of SLIDE".into(), longest(&[SLIDE]), set);
    bytes("bytes of the longest denial".into(), longest(&DENIALS), 0.0);
    for held in results.ids.held.iter().filter(|held| held.name.starts_with("RL.")) {
        let longest = held.stream.iter().map(|row| row.bytes_per_call).fold(0.0, f64::max);
        let what = format!("bytes of the longest call of {} at {} ids, on average", held.name, held.ids);
        bytes(what, longest, MOST_WITH_IDS);
    }
    for row in results.clients.rows.iter().filter(|row| row.way == WALLET) {
        let what = format!("{}, decisions from a wallet, relative to calls", row.client);
        let measured = row.of_round_trip;
        let figures = format!("{:.1} ({:.1}–{:.1})", measured.median, measured.low, measured.high);
        verdicts.push((measured.median >= 20.0, ["client packages".into(), what, "≥ 20".into(), figures]));
    }
    verdicts
}
