//! Charts: transparent, and in colours that are legible on light and dark pages.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::cases::{CASES, SET};
use crate::speed::{Scene, Section, Setting, HOT};

const TEXT: RGBColor = RGBColor(125, 133, 144);
const OURS: RGBColor = RGBColor(47, 129, 247);
const OTHERS: RGBColor = RGBColor(190, 134, 60);

const WIDTH: u32 = 840;
const ROW: u32 = 34;
const LABELS: u32 = 270;
const TOP: u32 = 64;

pub fn speed(section: &Section, file: &Path) {
    let first = section.scenes.first().map(|scene| &scene.server);
    let plain = |scene: &&Scene| Some(&scene.server) == first && scene.setting == Setting::Plain && scene.pipeline > 1;
    let hot = section.scenes.iter().filter(plain).find(|scene| scene.keys == HOT);
    let random = section.scenes.iter().filter(plain).find(|scene| scene.keys != HOT);
    let (Some(hot), Some(random)) = (hot, random) else { return };
    let names = CASES.iter().map(|case| case.name).filter(|name| ![SET, crate::cases::SET_OWN].contains(name));
    let rows: Vec<_> = names.filter_map(|name| Some((name, random.case(name)?, hot.case(name)?))).collect();
    let height = TOP + ROW * rows.len() as u32 + 12;
    let root = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    let most = rows.iter().map(|(_, random, hot)| random.of_base.high.max(hot.of_base.high)).fold(1.0, f64::max) + 0.15;
    let style = |size: i32, color: &RGBColor| ("sans-serif", size).into_font().color(color);
    let title = format!("Calls a second, of those of {SET} (= 1) · {}, pipeline {}", random.server, random.pipeline);
    root.draw(&Text::new(title, (10, 8), style(17, &TEXT))).expect("a chart");
    let legend = format!("above: {} random keys; below, fainter: one hot key; thin lines: quartiles", random.keys);
    root.draw(&Text::new(legend, (10, 32), style(14, &TEXT))).expect("a chart");
    let mut chart = ChartBuilder::on(&root)
        .margin_left(LABELS)
        .margin_right(10)
        .margin_top(TOP)
        .margin_bottom(12)
        .build_cartesian_2d(0.0..most, 0.0..rows.len() as f64)
        .expect("a chart");
    let one = [(1.0, 0.0), (1.0, rows.len() as f64)];
    chart.draw_series([PathElement::new(one, TEXT.stroke_width(1))]).expect("a chart");
    for (place, (name, random, hot)) in rows.iter().enumerate() {
        let top = (rows.len() - place) as f64;
        let color = if name.starts_with("RL.") {
            OURS
        } else if name.contains("Lua") || name.starts_with("redis-cell") || name.starts_with("MULTI") {
            OTHERS
        } else {
            TEXT
        };
        let bars = [(random, 0.10, color.mix(0.95)), (hot, 0.50, color.mix(0.55))];
        for (measured, offset, color) in bars {
            let (from, to) = (top - offset, top - offset - 0.36);
            let middle = (from + to) / 2.0;
            let ratio = measured.of_base;
            chart.draw_series([Rectangle::new([(0.0, from), (ratio.median, to)], color.filled())]).expect("a chart");
            let whisker = [(ratio.low, middle), (ratio.high, middle)];
            chart.draw_series([PathElement::new(whisker, TEXT.stroke_width(1))]).expect("a chart");
            let label = style(12, &TEXT).pos(Pos::new(HPos::Left, VPos::Center));
            let at = (ratio.high.max(ratio.median) + most * 0.008, middle);
            chart.draw_series([Text::new(format!("{:.2}", ratio.median), at, label)]).expect("a chart");
        }
        let label = style(14, &TEXT).pos(Pos::new(HPos::Right, VPos::Center));
        let y = TOP as i32 + (ROW as i32) * place as i32 + ROW as i32 / 2;
        root.draw(&Text::new(name.to_string(), (LABELS as i32 - 8, y), label)).expect("a chart");
    }
    root.present().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    println!("{}", file.display());
}
