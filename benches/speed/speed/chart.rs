//! The section as a chart.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::cases::{CASES, SET, SET_OWN};
use crate::chart::{grouped, save, text, COLOURS, INK, WIDTH};
use crate::speed::{Scene, Section, Setting, HOT};

/// Bars: for each case two, one below the other.
pub fn speed(section: &Section, path: &Path) {
    const LEFT: i32 = 260;
    const RIGHT: i32 = 750;
    const TOP: i32 = 60;
    const STEP: i32 = 34;
    const BAR: i32 = 13;
    // As wide as a ratio is written, at the most.
    const RATIO: i32 = 32;
    let first = section.scenes.first().map(|scene| &scene.server);
    let plain = |scene: &&Scene| Some(&scene.server) == first && scene.setting == Setting::Plain && scene.pipeline > 1;
    let hot = section.scenes.iter().filter(plain).find(|scene| scene.keys == HOT);
    let random = section.scenes.iter().filter(plain).find(|scene| scene.keys != HOT);
    let (Some(hot), Some(random)) = (hot, random) else { return };
    let names = CASES.iter().map(|case| case.name).filter(|name| ![SET, SET_OWN].contains(name));
    let rows: Vec<_> = names.filter_map(|name| Some((name, random.case(name)?, hot.case(name)?))).collect();
    let bottom = TOP + STEP * rows.len() as i32;
    let most = rows.iter().map(|(_, random, hot)| random.of_base.high.max(hot.of_base.high)).fold(1.0, f64::max);
    let place = |ratio: f64| LEFT + (ratio / most * f64::from(RIGHT - LEFT)) as i32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, bottom as u32 + 10)).into_drawing_area();
        let title = format!("Calls a second, of those of {SET} (= 1) · {}, pipeline {}", random.server, random.pipeline);
        root.draw(&Text::new(title, (10, 14), text(16, HPos::Left))).expect("text");
        let random_keys = grouped(random.keys as f64);
        let legend = format!("above: {random_keys} random keys; below, fainter: one hot key; thin lines: quartiles");
        root.draw(&Text::new(legend, (10, 38), text(13, HPos::Left))).expect("text");
        let one = place(1.0);
        root.draw(&PathElement::new([(one, TOP), (one, bottom)], INK)).expect("a line");
        for (index, (name, random, hot)) in rows.iter().enumerate() {
            let top = TOP + STEP * index as i32;
            root.draw(&Text::new(name.to_string(), (LEFT - 8, top + STEP / 2), text(13, HPos::Right))).expect("text");
            let colour = if name.starts_with("RL.") {
                COLOURS[0]
            } else if name.contains("Lua") || name.starts_with("redis-cell") || name.starts_with("MULTI") {
                COLOURS[1]
            } else {
                COLOURS[6]
            };
            for (ratio, top, opacity) in [(random.of_base, top + 4, 1.0), (hot.of_base, top + 4 + BAR, 0.55)] {
                let (middle, low, high) = (top + BAR / 2, place(ratio.low), place(ratio.high));
                let bar = [(LEFT, top), (place(ratio.median), top + BAR - 1)];
                root.draw(&Rectangle::new(bar, colour.mix(opacity).filled())).expect("a bar");
                root.draw(&PathElement::new([(low, middle), (high, middle)], INK)).expect("a line");
                // Not across the line at 1.
                let x = if high + 6 + RATIO > one { high.max(one) + 6 } else { high + 6 };
                root.draw(&Text::new(format!("{:.2}", ratio.median), (x, middle), text(12, HPos::Left))).expect("text");
            }
        }
        root.present().expect("a drawing");
    }
    save(&svg, path);
}
