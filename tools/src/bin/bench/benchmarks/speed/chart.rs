//! The charts of this part.

use std::path::Path;

use super::report::{METERS, SLIDE, SLIDING_SCRIPTS};
use crate::benchmarks::cases::SET;
use crate::benchmarks::speed::{Measured, Scene, Section, Setting, HOT};
use tools::chart::{self, grouped, Axis, Bar, Picture, Side, LINE};

/// A row: its name, its colour, and the cases of which it shows the fastest.
type Row = (&'static str, &'static str, &'static [&'static str]);

const GRANTED: [Row; 4] = [
    ("RL.FIXED", chart::FIXED, &[METERS[0]]),
    ("RL.SLIDE", chart::SLIDE, &[SLIDE]),
    ("RL.GCRA", chart::GCRA, &[METERS[1]]),
    ("RL.BUCKET", chart::BUCKET, &[METERS[2]]),
];
const DENIED: [Row; 5] = [
    ("RL.FIXED", chart::FIXED, &["RL.FIXED, denied"]),
    ("RL.SLIDE", chart::SLIDE, &["RL.SLIDE, denied"]),
    ("RL.GCRA", chart::GCRA, &["RL.GCRA, denied"]),
    ("RL.BUCKET", chart::BUCKET, &["RL.BUCKET, denied"]),
    ("redis-cell", chart::OTHER, &["redis-cell, denied"]),
];
const OTHERS: [Row; 4] = [
    ("redis-cell", chart::OTHER, &["redis-cell, granted"]),
    ("fixed window, Lua", chart::OTHER, &["limits, fixed window (Lua)"]),
    ("sliding window, Lua", chart::OTHER, &SLIDING_SCRIPTS),
    ("GCRA, Lua", chart::OTHER, &["throttled-py, GCRA (Lua)"]),
];

fn fastest<'s>(scene: &'s Scene, names: &[&str]) -> Option<&'s Measured> {
    let cases = names.iter().filter_map(|name| scene.case(name));
    cases.max_by(|one, other| one.of_base.median.total_cmp(&other.of_base.median))
}

/// The scenes of the charts: on random keys, and on the hot key.
fn scenes(section: &Section) -> Option<[&Scene; 2]> {
    let first = section.scenes.first().map(|scene| &scene.server);
    let plain = |scene: &&Scene| Some(&scene.server) == first && scene.setting == Setting::Plain && scene.pipeline > 1;
    let hot = section.scenes.iter().filter(plain).find(|scene| scene.keys == HOT)?;
    let random = section.scenes.iter().filter(plain).find(|scene| scene.keys != HOT)?;
    Some([random, hot])
}

/// Draws grants, denials and other limiters, on random keys at the left and on the hot key at the right. Returns the title.
pub fn long(section: &Section, path: &Path) -> String {
    const LEFT: [f64; 2] = [158.0, 326.0];
    const WIDE: f64 = 112.0;
    let Some(scenes) = scenes(section) else { return String::new() };
    let ratios = |own: bool| -> Vec<f64> {
        let rows = GRANTED.iter().chain(&OTHERS).chain(&DENIED).filter(|(_, class, _)| own == (*class != chart::OTHER));
        rows.flat_map(|(_, _, names)| scenes.map(|scene| fastest(scene, names)))
            .flatten()
            .map(|case| case.of_base.median)
            .collect()
    };
    let range = |ratios: &[f64]| {
        let (least, most) = ratios.iter().fold((f64::MAX, 0.0_f64), |(least, most), &it| (least.min(it), most.max(it)));
        format!("{least:.2} to {most:.2}")
    };
    let (own, others) = (ratios(true), ratios(false));
    let most = own.iter().chain(&others).fold(1.0_f64, |most, &ratio| most.max(ratio));
    let title = format!("redis-rl runs at {} of SET's speed, other limiters at {}", range(&own), range(&others));
    let subtitle = format!(
        "Calls a second, relative to {SET} (dashed line). {}, {} calls in a pipeline; {} random keys, or one hot key.",
        scenes[0].server,
        scenes[0].pipeline,
        grouped(scenes[0].keys as f64)
    );
    let mut picture = Picture::new(&title, &subtitle);
    let axes = LEFT.map(|left| Axis { from: 0.0, to: most, start: left, end: left + WIDE });
    for (axis, title) in axes.iter().zip(["random keys", "one hot key"]) {
        picture.text(title, (axis.start, picture.y + LINE / 2.0), Side::Left, "name");
    }
    for (group, rows) in [("granted", [&GRANTED[..], &OTHERS].concat()), ("denied", DENIED.to_vec())] {
        picture.heading(group, "name");
        let top = picture.y;
        for ((axis, scene), named) in axes.iter().zip(scenes).zip([true, false]) {
            let bars: Vec<Bar> = rows
                .iter()
                .filter_map(|(name, class, names)| {
                    let ratio = fastest(scene, names)?.of_base.median;
                    let name = if named { name.to_string() } else { String::new() };
                    Some(Bar { name, class, value: ratio, figure: format!("{ratio:.2}") })
                })
                .collect();
            picture.y = top;
            picture.bars(*axis, &bars, Some(1.0));
        }
        picture.y += 4.0;
    }
    picture.save(path);
    title
}

/// Draws grants on random keys, in less than the height of a screen. Returns the title.
pub fn brief(section: &Section, path: &Path) -> String {
    let Some([random, _]) = scenes(section) else { return String::new() };
    let per_second = |names: &[&str]| fastest(random, names).map(|case| case.per_second.median / 1e3);
    let title = "How fast redis-rl is beside SET and other rate limiters".to_string();
    let subtitle = format!(
        "Thousand granted calls a second: {}, {} random keys, {} calls in a pipeline.",
        random.server,
        grouped(random.keys as f64),
        random.pipeline
    );
    let base: Row = (SET, chart::OTHER, &[SET]);
    let rows = [base].into_iter().chain(GRANTED).chain(OTHERS);
    let bars: Vec<Bar> = rows
        .filter_map(|(name, class, names)| {
            let value = per_second(names)?;
            Some(Bar { name: name.into(), class, value, figure: format!("{value:.0}") })
        })
        .collect();
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let mut picture = Picture::new(&title, &subtitle);
    let x = Axis { from: 0.0, to: most, start: 176.0, end: 430.0 };
    picture.bars(x, &bars, Some(bars[0].value));
    picture.save(path);
    title
}
