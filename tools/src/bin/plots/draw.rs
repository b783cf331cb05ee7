//! Draws the pictures. They show grants only.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::gateway::{self, Lane as Gateway, OF_A, OF_ALL};
use crate::held::{Units, AT_A_TIME, GIVEN_BACK_LIMIT, SLOW_US, SLOW_WORK_US, WORK_PER_SECOND, WORK_US};
use crate::scenes::{Accuracy, Pair, Row, ACCURACY_LIMIT, GCRA, LEASE, LIMIT, OTHER, OVERLOAD_FROM, OVERLOAD_TO, SLIDE};
use crate::traffic::{Lane, Played, PERIOD_US};
use tools::chart::{save, text, COLOURS, INK, WIDTH};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Point = (i32, i32);
/// A title, and the row of figures below it.
type Column = (&'static str, fn(&Row) -> Pair);

/// Font sizes as plotters counts them, which give letters of 16, 13 and 12 pixels.
const TITLE: u32 = 20;
const NAME: u32 = 16;
const LABEL: u32 = 15;

fn picture(path: &Path, height: u32, title: &str, subtitle: &str, draw: impl FnOnce(&Area)) {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        write(&root, title, TITLE, HPos::Left, (8, 16));
        write(&root, subtitle, LABEL, HPos::Left, (8, 38));
        draw(&root);
        root.present().expect("a drawing");
    }
    save(&svg, path);
}

fn write(root: &Area, words: &str, size: u32, side: HPos, at: Point) {
    root.draw(&Text::new(words.to_string(), at, text(size, side))).expect("text");
}

fn line(root: &Area, points: Vec<Point>, style: impl Into<ShapeStyle>) {
    root.draw(&PathElement::new(points, style)).expect("a line");
}

fn bar(root: &Area, from: Point, to: Point, style: impl Into<ShapeStyle>) {
    root.draw(&Rectangle::new([from, to], style)).expect("a bar");
}

/// Converts a coordinate to pixels.
#[derive(Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    start: i32,
    end: i32,
}

impl Axis {
    fn at(&self, value: f64) -> i32 {
        self.start + ((value - self.from) / (self.to - self.from) * f64::from(self.end - self.start)).round() as i32
    }
}

/// A count that grows at these times, in seconds.
type Steps = Vec<(f64, f64)>;

/// The number of events up to a time.
fn cumulated(times_us: impl Iterator<Item = i64>) -> Steps {
    times_us.enumerate().map(|(index, time)| (time as f64 / 1e6, index as f64 + 1.0)).collect()
}

/// The number of events in the period before a time.
fn in_a_period(times_us: &[i64]) -> Steps {
    let come = times_us.iter().map(|&time| (time, 1));
    let go = times_us.iter().map(|&time| (time + PERIOD_US, -1));
    let mut changes: Vec<_> = come.chain(go).collect();
    changes.sort_unstable();
    let mut count = 0;
    changes
        .into_iter()
        .map(|(time, change)| {
            count += change;
            (time as f64 / 1e6, f64::from(count))
        })
        .collect()
}

fn stairs(steps: &Steps, x: Axis, y: Axis) -> Vec<Point> {
    let mut points = vec![(x.start, y.start)];
    for &(time, count) in steps.iter().filter(|&&(time, _)| time <= x.to) {
        let before = points[points.len() - 1].1;
        points.push((x.at(time), before));
        points.push((x.at(time), y.at(count)));
    }
    points.push((x.end, points[points.len() - 1].1));
    points.dedup();
    points
}

/// Six panels with the same axes, in two rows.
struct Panels<'a, 'b> {
    root: &'a Area<'b>,
    seconds: f64,
    /// The counts that are drawn as lines, with their names.
    marks: &'a [(f64, &'a str)],
    most: f64,
}

const PANEL_TOP: i32 = 78;
const PANEL_HEIGHT: i32 = 150;
const PANEL_STEP: i32 = 190;
const PANELS_HEIGHT: u32 = (PANEL_TOP + PANEL_STEP + PANEL_HEIGHT + 30) as u32;

impl Panels<'_, '_> {
    /// Draws a panel's frame and axes, with a title and a figure above it.
    fn panel(&self, place: usize, name: &str, figure: &str) -> (Axis, Axis) {
        let (column, row) = (place as i32 % 3, place as i32 / 3);
        let left = 66 + column * 246;
        let top = PANEL_TOP + row * PANEL_STEP;
        let x = Axis { from: 0.0, to: self.seconds, start: left, end: left + 224 };
        let y = Axis { from: 0.0, to: self.most, start: top + PANEL_HEIGHT, end: top };
        write(self.root, name, NAME, HPos::Left, (x.start, top - 12));
        write(self.root, figure, LABEL, HPos::Right, (x.end, top - 12));
        for &(count, label) in self.marks {
            line(self.root, vec![(x.start, y.at(count)), (x.end, y.at(count))], INK.mix(0.35));
            if column == 0 {
                write(self.root, label, LABEL, HPos::Right, (left - 6, y.at(count)));
            }
        }
        seconds(self.root, x, y.start, y.end, row == 1);
        (x, y)
    }
}

/// Draws lines at whole seconds, and a scale below them.
fn seconds(root: &Area, x: Axis, bottom: i32, top: i32, labels: bool) {
    for second in 0..=x.to as i32 {
        let at = x.at(second.into());
        line(root, vec![(at, bottom), (at, top)], INK.mix(0.2));
        if labels {
            let unit = if second == x.to as i32 { " s" } else { "" };
            write(root, &format!("{second}{unit}"), LABEL, HPos::Center, (at, bottom + 14));
        }
    }
}

pub fn burst(played: &Played, path: &Path) {
    let subtitle = format!(
        "Calls (grey) and grants since the start, at a limit of {LIMIT} per second: half of it, {} calls at once, then all of it",
        3 * LIMIT
    );
    picture(path, PANELS_HEIGHT, "A burst", &subtitle, |root| {
        let marks = [(0.0, "0"), (50.0, "50"), (100.0, "100")];
        let panels = Panels { root, seconds: 4.0, marks: &marks, most: 130.0 };
        let calls = cumulated(played.calls.iter().map(|call| call.from_us));
        for (place, lane, twin) in panelled(played) {
            let granted = played.grants(lane).len();
            let (x, y) = panels.panel(place, &title(played, lane, twin), &format!("{granted} of {}", played.calls.len()));
            line(root, stairs(&calls, x, y), INK.stroke_width(1));
            curves(root, played, lane, twin, |lane| {
                stairs(&cumulated(played.grants(lane).iter().map(|grant| grant.from_us)), x, y)
            });
        }
    });
}

pub fn boundary(played: &Played, path: &Path) {
    let subtitle = format!(
        "Grants in the last second, at a limit of {LIMIT} per second: one call, then all that can be had from 0.9 s to 1.9 s"
    );
    picture(path, PANELS_HEIGHT, "An attack across the boundary of windows", &subtitle, |root| {
        let limit = LIMIT as f64;
        let marks = [(0.0, "0"), (limit, "limit"), (2.0 * limit, "2×limit")];
        let panels = Panels { root, seconds: 3.0, marks: &marks, most: 2.25 * limit };
        for (place, lane, twin) in panelled(played) {
            let most = format!("at most {}", played.most_in_a_window(lane));
            let (x, y) = panels.panel(place, &title(played, lane, twin), &most);
            curves(root, played, lane, twin, |lane| {
                let times: Vec<_> = played.grants(lane).iter().map(|grant| grant.from_us).collect();
                stairs(&in_a_period(&times), x, y)
            });
        }
    });
}

fn colour(lane: &Lane) -> RGBColor {
    COLOURS[lane.colour]
}

/// The lanes that have a panel: where the panel is, the lane, and another lane that is drawn in it, too. Without options,
/// `RL.BUCKET` grants the same as `RL.GCRA`.
fn panelled(played: &Played) -> impl Iterator<Item = (usize, usize, Option<usize>)> {
    let (gcra, bucket) = (played.lane("GCRA"), played.lane("BUCKET"));
    let lanes = (0..played.lanes.len()).filter(move |&lane| lane != bucket);
    lanes.enumerate().map(move |(place, lane)| (place, lane, (lane == gcra).then_some(bucket)))
}

fn title(played: &Played, lane: usize, twin: Option<usize>) -> String {
    let names = std::iter::once(lane).chain(twin).map(|lane| played.lanes[lane].name);
    names.collect::<Vec<_>>().join(", ")
}

fn curves(root: &Area, played: &Played, lane: usize, twin: Option<usize>, points: impl Fn(usize) -> Vec<Point>) {
    // The lower line stays visible on both sides of the upper one.
    let width = if twin.is_some() { 4 } else { 2 };
    line(root, points(lane), colour(&played.lanes[lane]).stroke_width(width));
    if let Some(twin) = twin {
        line(root, points(twin), colour(&played.lanes[twin]).stroke_width(2));
    }
}

pub fn overload(played: &Played, path: &Path) {
    const LEFT: i32 = 168;
    const RIGHT: i32 = 716;
    const TOP: i32 = 66;
    const ROW: i32 = 34;
    let rows = played.lanes.len() as i32;
    let bottom = TOP + rows * ROW;
    let subtitle =
        format!("Each call of {} per second, at a limit of {LIMIT} per second: up is granted, down is denied", 2 * LIMIT);
    picture(path, bottom as u32 + 26, "A steady overload", &subtitle, |root| {
        let x = Axis { from: OVERLOAD_FROM, to: OVERLOAD_TO, start: LEFT, end: RIGHT };
        // The axis begins with the traffic.
        let scale = Axis { from: 0.0, to: OVERLOAD_TO - OVERLOAD_FROM, ..x };
        seconds(root, scale, bottom, TOP, true);
        write(root, "granted", LABEL, HPos::Right, (WIDTH as i32 - 8, TOP - 4));
        for (lane, description) in played.lanes.iter().enumerate() {
            let base = TOP + (lane as i32 + 1) * ROW - 9;
            write(root, description.name, NAME, HPos::Right, (LEFT - 10, base - 8));
            for (granted, tip, style) in
                [(false, base + 5, INK.stroke_width(1)), (true, base - 18, colour(description).stroke_width(2))]
            {
                let calls = played.calls.iter().enumerate().filter(|&(call, _)| played.is_granted(call, lane) == granted);
                let teeth = calls.flat_map(|(_, call)| {
                    let at = x.at(call.from_us as f64 / 1e6);
                    [(at, base), (at, tip), (at, base)]
                });
                line(root, teeth.collect(), style);
            }
            let count = played.grants(lane).len().to_string();
            write(root, &count, NAME, HPos::Right, (WIDTH as i32 - 8, base - 8));
        }
    });
}

pub fn accuracy(accuracy: &Accuracy, path: &Path) {
    const TOP: i32 = 96;
    const ROW: i32 = 42;
    const LEFT: i32 = 196;
    const NARROW: i32 = 250;
    const APART: i32 = 310;
    let bottom = TOP + ROW * accuracy.rows.len() as i32;
    let subtitle = format!(
        "At a limit of {ACCURACY_LIMIT} per second. Upper bars: attacks across boundaries; lower, fainter: random traffic"
    );
    picture(path, bottom as u32 + 10, "How exact window counters are", &subtitle, |root| {
        let columns: [Column; 2] =
            [("most in a second (1 = the limit)", |row| row.most), ("granted (1 = all that is possible)", |row| row.share)];
        for (row, at) in accuracy.rows.iter().zip(0..) {
            let middle = TOP + ROW * at + ROW / 2;
            write(root, row.lane.name, NAME, HPos::Right, (LEFT - 10, middle));
        }
        for ((title, figure), place) in columns.into_iter().zip(0..) {
            let left = LEFT + APART * place;
            let x = Axis { from: 0.0, to: 2.0, start: left, end: left + NARROW };
            write(root, title, NAME, HPos::Left, (left, TOP - 28));
            line(root, vec![(x.at(1.0), TOP - 12), (x.at(1.0), bottom)], INK.mix(0.6));
            line(root, vec![(left, TOP - 12), (left, bottom)], INK.mix(0.6));
            for (row, at) in accuracy.rows.iter().zip(0..) {
                let figures = figure(row);
                for (value, strength, down) in [(figures.attacked, 1.0, 4), (figures.random, 0.55, 21)] {
                    let top = TOP + ROW * at + down;
                    bar(root, (left, top), (x.at(value), top + 14), colour(row.lane).mix(strength).filled());
                    // The text is beside the line at 1, not on it.
                    write(root, &format!("{value:.2}"), LABEL, HPos::Left, (x.at(value.max(1.0)) + 6, top + 7));
                }
            }
        }
    });
}

/// Two panels side by side that show how many units there are at each time.
fn pair(
    root: &Area,
    units: &[Units; 2],
    colours: [usize; 2],
    marks: &[(f64, &str)],
    most: f64,
    figure: impl Fn(&Units) -> String,
) {
    for ((units, colour), left) in units.iter().zip(colours).zip([66, 436]) {
        let x = Axis { from: 0.0, to: 7.0, start: left, end: left + 344 };
        let y = Axis { from: 0.0, to: most, start: PANEL_TOP + PANEL_HEIGHT, end: PANEL_TOP };
        write(root, units.name, NAME, HPos::Left, (x.start, PANEL_TOP - 12));
        write(root, &figure(units), LABEL, HPos::Right, (x.end, PANEL_TOP - 12));
        for &(count, label) in marks {
            line(root, vec![(x.start, y.at(count)), (x.end, y.at(count))], INK.mix(0.35));
            if left == 66 {
                write(root, label, LABEL, HPos::Right, (left - 6, y.at(count)));
            }
        }
        seconds(root, x, y.start, y.end, true);
        let steps = units.steps().into_iter().map(|(time_us, units)| (time_us as f64 / 1e6, units as f64)).collect();
        line(root, stairs(&steps, x, y), COLOURS[colour].stroke_width(2));
    }
}

const PAIR_HEIGHT: u32 = (PANEL_TOP + PANEL_HEIGHT + 30) as u32;

pub fn work(units: &[Units; 2], path: &Path) {
    let second = |us: i64| us as f64 / 1e6;
    let subtitle = format!(
        "Calls under way. {WORK_PER_SECOND} arrive per second; each takes {} s, but {} s if it begins between {} s and {} s",
        second(WORK_US),
        second(SLOW_WORK_US),
        second(SLOW_US.start),
        second(SLOW_US.end)
    );
    picture(path, PAIR_HEIGHT, "A backend becomes slow", &subtitle, |root| {
        let marks = [(0.0, "0"), (AT_A_TIME as f64, "5"), (10.0, "10"), (15.0, "15")];
        pair(root, units, [GCRA, LEASE], &marks, 18.0, |units| {
            format!("{} of {}, at most {} at a time", units.granted, units.calls, units.most())
        });
    });
}

pub fn given_back(units: &[Units; 2], path: &Path) {
    let subtitle = "Units used in the last 3 s. A takes 5 at 0 s, B takes 5 at 2.7 s, A gives 5 back at 2.8 s, and C takes all it can at 3.3 s";
    picture(path, PAIR_HEIGHT, "Units that are given back, at a limit of 10 per 3 seconds", subtitle, |root| {
        let limit = GIVEN_BACK_LIMIT as f64;
        let marks = [(0.0, "0"), (limit / 2.0, "5"), (limit, "limit"), (1.5 * limit, "15")];
        pair(root, units, [OTHER, SLIDE], &marks, 1.7 * limit, |units| format!("at most {}", units.most()));
    });
}

/// Each call is a row: a thin line while it waits, a bar while it runs.
pub fn gateway(lanes: &[Gateway; 2], path: &Path) {
    const TOP: i32 = 84;
    const ROW: i32 = 14;
    let bottom = TOP + ROW * lanes[0].calls.len() as i32;
    let subtitle = format!(
        "At most {OF_ALL} calls run, {OF_A} of them of tenant A; each takes {} s. Line: waits. Pale: waits, and holds one of the {OF_ALL}. Bar: runs",
        gateway::WORK_US / 1_000_000
    );
    picture(path, bottom as u32 + 30, "Two tenants that share a key", &subtitle, |root| {
        for (lane, left) in lanes.iter().zip([66, 436]) {
            let x = Axis { from: 0.0, to: 4.5, start: left, end: left + 344 };
            let at = |us: i64| x.at(us as f64 / 1e6);
            write(root, lane.name, NAME, HPos::Left, (left, TOP - 12));
            let wait = format!("B waits up to {:.1} s", lane.longest_wait_us('B') as f64 / 1e6);
            write(root, &wait, LABEL, HPos::Right, (x.end, TOP - 12));
            seconds(root, x, bottom, TOP, true);
            for (call, row) in lane.calls.iter().zip(0..) {
                let middle = TOP + row * ROW + ROW / 2;
                let colour = COLOURS[if call.tenant == 'A' { GCRA } else { SLIDE }];
                line(root, vec![(at(call.asked_us), middle), (at(call.runs_us), middle)], colour.stroke_width(2));
                bar(root, (at(call.shared_us), middle - 4), (at(call.runs_us), middle + 4), colour.mix(0.35).filled());
                bar(root, (at(call.runs_us), middle - 5), (at(call.ends_us), middle + 5), colour.filled());
                if left == 66 {
                    write(root, &format!("{}", call.tenant), LABEL, HPos::Right, (left - 6, middle));
                }
            }
        }
    });
}
