//! The charts of this part.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::report::{GRANTS, SLIDING_SCRIPTS};
use crate::cases::{CASES, SET, SET_OWN};
use crate::speed::{Measured, Scene, Section, Setting, HOT};
use tools::chart::{grouped, save, text, COLOURS, INK, WIDTH};

/// The rows of the short chart: each shows the fastest of these cases.
const SHORT: [&[&str]; 11] = [
    &[SET],
    &[GRANTS[0]],
    &[GRANTS[1]],
    &[GRANTS[2]],
    &[GRANTS[3]],
    &["RL.GCRA, denied"],
    &["redis-cell, granted"],
    &["MULTI, INCR, EXPIRE, EXEC"],
    &["throttled-py, GCRA (Lua)"],
    &["throttled-py, token bucket (Lua)"],
    &SLIDING_SCRIPTS,
];

/// Draws all cases. Each has a bar for random keys and below it one for the hot key.
pub fn long(section: &Section, path: &Path) {
    let names = CASES.iter().map(|case| case.name).filter(|name| ![SET, SET_OWN].contains(name));
    draw(
        section,
        path,
        "upper bar: # random keys; lower, fainter bar: one hot key; thin lines: quartiles",
        |random, hot| names.filter_map(|name| Some((name, vec![random.case(name)?, hot.case(name)?]))).collect(),
    );
}

/// Draws a few cases on random keys, in less than the height of a screen.
pub fn short(section: &Section, path: &Path) {
    draw(section, path, "# random keys; thin lines: quartiles", |random, _| {
        let fastest = |names: &&[&str]| {
            let cases = names.iter().filter_map(|name| random.case(name));
            cases.max_by(|one, other| one.of_base.median.total_cmp(&other.of_base.median))
        };
        SHORT.iter().filter_map(fastest).map(|case| (case.name.as_str(), vec![case])).collect()
    });
}

/// Draws rows, each with a name and bars below each other. In the legend, a mark stands for the number of keys.
fn draw<'s>(
    section: &'s Section,
    path: &Path,
    legend: &str,
    rows: impl FnOnce(&'s Scene, &'s Scene) -> Vec<(&'s str, Vec<&'s Measured>)>,
) {
    const LEFT: i32 = 260;
    const RIGHT: i32 = 750;
    const TOP: i32 = 60;
    const BAR: i32 = 13;
    // Leaves room for the text of a ratio at the right.
    const RATIO: i32 = 32;
    let first = section.scenes.first().map(|scene| &scene.server);
    let plain = |scene: &&Scene| Some(&scene.server) == first && scene.setting == Setting::Plain && scene.pipeline > 1;
    let hot = section.scenes.iter().filter(plain).find(|scene| scene.keys == HOT);
    let random = section.scenes.iter().filter(plain).find(|scene| scene.keys != HOT);
    let (Some(hot), Some(random)) = (hot, random) else { return };
    let rows = rows(random, hot);
    let step = 8 + BAR * rows.first().map_or(0, |(_, bars)| bars.len() as i32);
    let bottom = TOP + step * rows.len() as i32;
    let most = rows.iter().flat_map(|(_, bars)| bars).map(|bar| bar.of_base.high).fold(1.0, f64::max);
    let place = |ratio: f64| LEFT + (ratio / most * f64::from(RIGHT - LEFT)) as i32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, bottom as u32 + 10)).into_drawing_area();
        let title = format!("Calls a second, relative to {SET} (= 1) · {}, pipeline {}", random.server, random.pipeline);
        root.draw(&Text::new(title, (10, 14), text(16, HPos::Left))).expect("text");
        let legend = legend.replace('#', &grouped(random.keys as f64));
        root.draw(&Text::new(legend, (10, 38), text(13, HPos::Left))).expect("text");
        let one = place(1.0);
        root.draw(&PathElement::new([(one, TOP), (one, bottom)], INK)).expect("a line");
        for (index, (name, bars)) in rows.iter().enumerate() {
            let top = TOP + step * index as i32;
            root.draw(&Text::new(name.to_string(), (LEFT - 8, top + step / 2), text(13, HPos::Right))).expect("text");
            let colour = if name.starts_with("RL.") {
                COLOURS[0]
            } else if name.contains("Lua") || name.starts_with("redis-cell") || name.starts_with("MULTI") {
                COLOURS[1]
            } else {
                COLOURS[6]
            };
            for ((bar, opacity), top) in bars.iter().zip([1.0, 0.55]).zip((top + 4..).step_by(BAR as usize)) {
                let ratio = bar.of_base;
                let (middle, low, high) = (top + BAR / 2, place(ratio.low), place(ratio.high));
                let bar = [(LEFT, top), (place(ratio.median), top + BAR - 1)];
                root.draw(&Rectangle::new(bar, colour.mix(opacity).filled())).expect("a bar");
                root.draw(&PathElement::new([(low, middle), (high, middle)], INK)).expect("a line");
                // The text must not cross the line at 1.
                let x = if high + 6 + RATIO > one { high.max(one) + 6 } else { high + 6 };
                root.draw(&Text::new(format!("{:.2}", ratio.median), (x, middle), text(12, HPos::Left))).expect("text");
            }
        }
        root.present().expect("a drawing");
    }
    save(&svg, path);
}
