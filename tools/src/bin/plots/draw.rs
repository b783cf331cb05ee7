//! Draws the pictures. Each function returns the title of its picture, which says what it shows.

use std::path::Path;

use crate::gateway::{self, Fleet, Lane as Gateway, Line, GRANTED_A_SECOND, OF_A, OF_ALL, PER_SECOND, STOP_US, WORKERS};
use crate::held::{Units, AT_A_TIME, GIVEN_BACK_LIMIT, SLOW_US, SLOW_WORK_US, WORK_PER_SECOND, WORK_US};
use crate::traffic::{self, Played, Row, ACCURACY_LIMIT, LIMIT, OVERLOAD_FROM, OVERLOAD_TO};
use tools::chart::{self, Axis, Bar, Picture, Point, Side, LINE, MARGIN, ROW, WIDTH};

/// Room for a scale below a panel, and for its name.
const SCALE: f64 = 24.0;

/// A count that grows at these times, in seconds.
type Steps = Vec<(f64, f64)>;

/// The number of events up to a time.
fn cumulated(times_us: impl Iterator<Item = i64>) -> Steps {
    times_us.enumerate().map(|(index, time)| (time as f64 / 1e6, index as f64 + 1.0)).collect()
}

fn stairs(steps: &Steps, x: Axis, y: Axis) -> Vec<Point> {
    let mut points = vec![(x.start, y.start)];
    for &(time, count) in steps.iter().filter(|&&(time, _)| time <= x.to) {
        let before = points[points.len() - 1].1;
        points.push((x.at(time), before));
        points.push((x.at(time), y.at(count)));
    }
    points.push((x.end, points[points.len() - 1].1));
    // A line straight up or along needs only its ends.
    let straight =
        |[one, two, three]: [Point; 3]| (one.0 == two.0 && two.0 == three.0) || (one.1 == two.1 && two.1 == three.1);
    let mut short: Vec<Point> = Vec::new();
    for point in points {
        while short.len() > 1 && straight([short[short.len() - 2], short[short.len() - 1], point]) {
            short.pop();
        }
        short.push(point);
    }
    short
}

/// Whole seconds, with labels. The last one names the unit.
fn seconds(to: f64) -> Vec<(f64, String)> {
    let last = to.floor() as i32;
    (0..=last)
        .map(|second| (second.into(), if second == last { format!("{second} s") } else { second.to_string() }))
        .collect()
}

fn counts(counts: &[usize]) -> Vec<(f64, String)> {
    counts.iter().map(|&count| (count as f64, count.to_string())).collect()
}

/// The lanes that are drawn, with their names. Without options, `RL.BUCKET` decides as `RL.GCRA` does; if it did here, one
/// drawing stands for both.
fn drawn(played: &Played) -> Vec<(usize, String)> {
    let (gcra, bucket) = (played.lane("GCRA"), played.lane("BUCKET"));
    let same = (0..played.calls.len()).all(|call| played.is_granted(call, gcra) == played.is_granted(call, bucket));
    let name = |lane: usize| match lane == gcra && same {
        true => "GCRA, BUCKET".into(),
        false => played.lanes[lane].name.to_string(),
    };
    (0..played.lanes.len()).filter(|&lane| !same || lane != bucket).map(|lane| (lane, name(lane))).collect()
}

/// The head of a panel: its name at the left, and a figure at the right.
fn head(picture: &mut Picture, name: &str, figure: &str, room: f64) {
    picture.text(name, (MARGIN, picture.y + LINE / 2.0), Side::Left, "name");
    picture.text(figure, (WIDTH - 20.0, picture.y + LINE / 2.0), Side::Right, "");
    picture.y += LINE + room;
}

/// The axis below a panel that began at `top`, at the present height; with whole seconds below the `last` panel.
fn foot(picture: &mut Picture, x: Axis, top: f64, last: bool) {
    let y = Axis { from: 0.0, to: 1.0, start: picture.y, end: top };
    picture.line("axis", &[(x.start, y.start), (x.end, y.start)]);
    picture.axes(x, y, &if last { seconds(x.to) } else { Vec::new() }, &[]);
}

/// Panels in two columns: the number of grants since the start.
pub fn burst(played: &Played, path: &Path) -> String {
    const HEIGHT: f64 = 84.0;
    const WIDE: f64 = 196.0;
    let burst = traffic::burst_calls();
    let title = "Of a burst, RL.GCRA grants a whole limit at once, RL.SLIDE what is left of it";
    let subtitle = format!(
        "Calls (grey) and grants (coloured) since the start. The limit is {LIMIT} a second. {} calls come at once, and then as many as \
         the limit allows.",
        burst.len()
    );
    let mut picture = Picture::new(title, &subtitle);
    let calls = cumulated(played.calls.iter().map(|call| call.from_us));
    let lanes = drawn(played);
    for (row, pair) in lanes.chunks(2).enumerate() {
        let top = picture.y;
        for (column, (lane, name)) in pair.iter().enumerate() {
            let left = 40.0 + column as f64 * (WIDE + 34.0);
            let granted = burst.clone().filter(|&call| played.is_granted(call, *lane)).count();
            picture.text(name, (left, top + LINE / 2.0), Side::Left, "name");
            picture.text(&format!("{granted} of {} at once", burst.len()), (left, top + LINE * 1.5), Side::Left, "");
            let x = Axis { from: 0.0, to: 4.0, start: left, end: left + WIDE };
            let y = Axis { from: 0.0, to: 130.0, start: top + 2.0 * LINE + HEIGHT, end: top + 2.0 * LINE };
            let last = lanes.len() <= 2 * (row + 1);
            let up = if column == 0 { counts(&[0, 50, 100]) } else { [0.0, 50.0, 100.0].map(|at| (at, "".into())).into() };
            picture.axes(x, y, &if last { seconds(4.0) } else { Vec::new() }, &up);
            picture.line(&format!("line {}", chart::OTHER), &stairs(&calls, x, y));
            let grants = cumulated(played.grants(*lane).iter().map(|grant| grant.from_us));
            picture.line(&format!("line {}", played.lanes[*lane].class), &stairs(&grants, x, y));
        }
        picture.y = top + 2.0 * LINE + HEIGHT + 10.0;
    }
    picture.y += SCALE - 10.0;
    picture.save(path);
    title.into()
}

/// A row for each limiter: how many calls it grants in each tenth of a second.
pub fn overload(played: &Played, path: &Path) -> String {
    const HEIGHT: f64 = 22.0;
    const BIN: f64 = 0.1;
    let bins = ((OVERLOAD_TO - OVERLOAD_FROM) / BIN).round() as usize;
    let per_bin = 2.0 * LIMIT as f64 * BIN;
    let title = "At twice the limit, windows grant in lumps, RL.GCRA and RL.BUCKET evenly";
    let subtitle = format!(
        "Grants (coloured) of {} calls a second (grey), at a limit of {LIMIT}. Right: grants of all {} calls.",
        2 * LIMIT,
        played.calls.len()
    );
    let mut picture = Picture::new(title, &subtitle);
    let top = picture.y;
    let x = Axis { from: 0.0, to: OVERLOAD_TO - OVERLOAD_FROM, start: 172.0, end: 434.0 };
    for (lane, name) in drawn(played) {
        let lane_of = &played.lanes[lane];
        let base = picture.y + HEIGHT + 4.0;
        let y = Axis { from: 0.0, to: per_bin, start: base, end: base - HEIGHT };
        let mut granted = vec![0; bins];
        let grants = played.grants(lane);
        for grant in &grants {
            let bin = (grant.from_us as f64 / 1e6 - OVERLOAD_FROM) / BIN;
            granted[(bin as usize).min(bins - 1)] += 1;
        }
        picture.bar(&format!("pale {}", chart::OTHER), (x.start, y.start), (x.end, y.end));
        for (bin, &count) in granted.iter().enumerate().filter(|&(_, &count)| count > 0) {
            let (from, to) = (x.at(bin as f64 * BIN), x.at((bin + 1) as f64 * BIN));
            // A call that comes a little later than it is due may make a bin higher than it should be.
            let height = y.at(f64::from(count).min(per_bin));
            picture.bar(&format!("bar {}", lane_of.class), (from, y.start), (to - 1.0, height));
        }
        picture.text(&name, (x.start - 7.0, base - HEIGHT / 2.0), Side::Right, "");
        picture.text(&grants.len().to_string(), (x.end + 7.0, base - HEIGHT / 2.0), Side::Left, "");
        picture.y += HEIGHT + 9.0;
    }
    picture.y += 2.0;
    foot(&mut picture, x, top, true);
    picture.y += SCALE - 2.0;
    picture.save(path);
    title.into()
}

/// A bar for each limiter: the most grants in a window.
pub fn boundary(played: &Played, path: &Path) -> String {
    let most = |name: &str| played.most_in_a_window(played.lane(name));
    let title = format!(
        "At a limit of {LIMIT} a second, an attack gets {} in a second from RL.FIXED, {} from RL.SLIDE",
        most("FIXED"),
        most("SLIDE")
    );
    let subtitle = "Most grants within a second (dashed line: limit). A flood of calls begins shortly before a window ends.";
    let mut picture = Picture::new(&title, subtitle);
    let bars: Vec<Bar> = (played.lanes.iter().enumerate())
        .map(|(lane, of)| {
            let most = played.most_in_a_window(lane);
            Bar { name: of.name.into(), class: of.class, value: most as f64, figure: most.to_string() }
        })
        .collect();
    let x = Axis { from: 0.0, to: 2.0 * LIMIT as f64, start: 140.0, end: 434.0 };
    picture.bars(x, &bars, Some(LIMIT as f64));
    picture.save(path);
    title
}

/// Bars: what breaks the limit, and what few segments cost.
pub fn accuracy(rows: &[Row], path: &Path) -> String {
    let title = "RL.SLIDE never exceeds its limit; with few SEGMENTS it grants less";
    let mut picture = Picture::new(title, "");
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let (slides, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.lane.class == chart::SLIDE);
    picture.heading("Most grants in any second, of the limit", "name");
    picture.y -= 3.0;
    picture.heading(&format!("Attack across windows; the limit is {ACCURACY_LIMIT} a second",), "muted");
    let worst = slides.iter().map(|row| row.most.attacked).fold(0.0, f64::max);
    let slide = Bar { name: "SLIDE, any SEGMENTS".into(), class: chart::SLIDE, value: worst, figure: percent(worst) };
    let rest = others.iter().map(|row| Bar {
        name: row.lane.name.into(),
        class: row.lane.class,
        value: row.most.attacked,
        figure: percent(row.most.attacked),
    });
    let bars: Vec<Bar> = [slide].into_iter().chain(rest).collect();
    let x = Axis { from: 0.0, to: 2.0, start: 186.0, end: 420.0 };
    picture.bars(x, &bars, Some(1.0));
    picture.y += 12.0;
    picture.heading("Grants, of those that an exact window makes", "name");
    picture.y -= 3.0;
    picture.heading("Random traffic, half as much again as the limit", "muted");
    let bars: Vec<Bar> = slides
        .iter()
        .map(|row| Bar {
            name: row.lane.name.into(),
            class: chart::SLIDE,
            value: row.share.random,
            figure: percent(row.share.random),
        })
        .collect();
    picture.bars(Axis { to: 1.0, ..x }, &bars, None);
    picture.save(path);
    title.into()
}

fn second(us: i64) -> f64 {
    us as f64 / 1e6
}

fn units_steps(units: &Units) -> Steps {
    units.steps().into_iter().map(|(time_us, units)| (second(time_us), units as f64)).collect()
}

/// A name beside a short line, as it is in the panel below. The next one is at the returned position.
fn key(picture: &mut Picture, at: Point, class: &str, name: &str) {
    picture.line(&format!("line {class}"), &[at, (at.0 + 26.0, at.1)]);
    picture.text(name, (at.0 + 34.0, at.1), Side::Left, "");
}

/// Two lines: how many calls are under way at each time.
pub fn work(units: &[Units; 2], path: &Path) -> String {
    let [rate, leases] = units;
    let title =
        format!("When a backend becomes slow, RL.GCRA lets {} calls pile up, RL.LEASE only {}", rate.most(), leases.most());
    let subtitle = format!(
        "Calls under way. {WORK_PER_SECOND} arrive each second; each takes {} s, or {} s in the shaded time.",
        second(WORK_US),
        second(SLOW_WORK_US)
    );
    let mut picture = Picture::new(&title, &subtitle);
    for (units, class) in [(rate, chart::GCRA), (leases, chart::LEASE)] {
        let name = format!("{}: {} of {} calls granted", units.name, units.granted, units.calls);
        let at = (MARGIN, picture.y + LINE / 2.0);
        key(&mut picture, at, class, &name);
        picture.y += LINE + 2.0;
    }
    picture.y += 10.0;
    let x = Axis { from: 0.0, to: 7.0, start: 34.0, end: WIDTH - 20.0 };
    let y = Axis { from: 0.0, to: 17.0, start: picture.y + 160.0, end: picture.y };
    picture.bar(
        &format!("pale {}", chart::OTHER),
        (x.at(second(SLOW_US.start)), y.start),
        (x.at(second(SLOW_US.end)), y.end),
    );
    picture.axes(x, y, &seconds(x.to), &counts(&[0, AT_A_TIME, 10, 15]));
    for (units, class) in [(rate, chart::GCRA), (leases, chart::LEASE)] {
        picture.line(&format!("line {class}"), &stairs(&units_steps(units), x, y));
    }
    picture.y = y.start + SCALE;
    picture.save(path);
    title
}

/// Two panels: how many units are in use at each time.
pub fn given_back(units: &[Units; 2], path: &Path) -> String {
    let limit = GIVEN_BACK_LIMIT as f64;
    let title = format!(
        "At a limit of {limit}, REFUND lets {} units be in use; RL.RELEASE by id lets {}",
        units[0].most(),
        units[1].most()
    );
    let subtitle = "Units of the last 3 s, without those that A gave back. A takes 5 at 0 s, B takes 5 at 2.7 s, A gives its 5 back at \
                    2.8 s, and C takes all it can at 3.3 s.";
    let mut picture = Picture::new(&title, subtitle);
    let class = chart::SLIDE;
    for (at, units) in units.iter().enumerate() {
        head(&mut picture, units.name, &format!("at most {}", units.most()), 4.0);
        let x = Axis { from: 0.0, to: 7.0, start: 44.0, end: WIDTH - 20.0 };
        let y = Axis { from: 0.0, to: 1.6 * limit, start: picture.y + 88.0, end: picture.y };
        let ticks = [(0.0, "0".into()), (limit / 2.0, format!("{}", limit / 2.0)), (limit, format!("{limit}"))];
        picture.axes(x, y, &if at == 1 { seconds(x.to) } else { Vec::new() }, &ticks);
        picture.line("limit", &[(x.start, y.at(limit)), (x.end, y.at(limit))]);
        let mut points = stairs(&units_steps(units), x, y);
        picture.line(&format!("line {class}"), &points);
        points.push((x.end, y.start));
        picture.line(&format!("pale {class}"), &points);
        picture.y = y.start + 8.0;
    }
    picture.y += SCALE - 8.0;
    picture.save(path);
    title
}

/// Each call is a row: a line while it waits, a bar while it runs.
pub fn gateway(lanes: &[Gateway; 2], path: &Path) -> String {
    const HIGH: f64 = 11.0;
    let wait = |lane: &Gateway| match lane.longest_wait_us('B') {
        ..50_000 => "does not wait".into(),
        wait_us => format!("waits up to {:.1} s", second(wait_us)),
    };
    let title = format!("In one RL.ALL, tenant B {} behind tenant A; key by key, it {}", wait(&lanes[0]), wait(&lanes[1]));
    let subtitle = format!(
        "Each row is a call. At most {OF_ALL} run at a time, {OF_A} of them of tenant A; each runs for {} s.",
        gateway::WORK_US / 1_000_000
    );
    let mut picture = Picture::new(&title, &subtitle);
    // The legend.
    let middle = picture.y + LINE / 2.0;
    let mut left = MARGIN;
    for (class, name, half, room) in
        [("line", "waits", 0.0, 86.0), ("pale", "waits, but holds a shared place", 4.0, 270.0), ("bar", "runs", 4.5, 0.0)]
    {
        let class = format!("{class} {}", chart::OTHER);
        if half == 0.0 {
            picture.line(&class, &[(left, middle), (left + 24.0, middle)]);
        } else {
            picture.bar(&class, (left, middle - half), (left + 24.0, middle + half));
        }
        picture.text(name, (left + 30.0, middle), Side::Left, "");
        left += room;
    }
    picture.y += LINE + 8.0;
    for (at, lane) in lanes.iter().enumerate() {
        picture.heading(lane.name, "name");
        let x = Axis { from: 0.0, to: 4.5, start: 78.0, end: WIDTH - 20.0 };
        let place = |us: i64| x.at(second(us));
        let top = picture.y;
        for tenant in ['A', 'B'] {
            let calls: Vec<_> = lane.calls.iter().filter(|call| call.tenant == tenant).collect();
            let class = if tenant == 'A' { chart::ONE } else { chart::TWO };
            let label = (x.start - 8.0, picture.y + HIGH * calls.len() as f64 / 2.0);
            picture.text(&format!("tenant {tenant}"), label, Side::Right, "");
            for call in calls {
                let middle = picture.y + HIGH / 2.0;
                picture.line(&format!("thin {class}"), &[(place(call.asked_us), middle), (place(call.shared_us), middle)]);
                picture.bar(
                    &format!("pale {class}"),
                    (place(call.shared_us), middle - 4.0),
                    (place(call.runs_us), middle + 4.0),
                );
                picture.bar(
                    &format!("bar {class}"),
                    (place(call.runs_us), middle - 4.5),
                    (place(call.ends_us), middle + 4.5),
                );
                picture.y += HIGH;
            }
            picture.y += 5.0;
        }
        foot(&mut picture, x, top, at == 1);
        picture.y += ROW / 2.0;
    }
    picture.y += SCALE - ROW / 2.0;
    picture.save(path);
    title
}

/// Two panels: how many calls a fleet makes in each tenth of a second.
pub fn stopped(fleets: &[Fleet; 2], path: &Path) -> String {
    const HEIGHT: f64 = 34.0;
    const BIN: f64 = 0.1;
    let refused = fleets.each_ref().map(Fleet::refused);
    let title =
        format!("The third party says stop: with RL.PAUSE it refuses {} of the calls, else {}", refused[0], refused[1]);
    let subtitle = format!(
        "Calls of {WORKERS} workers, which may make {PER_SECOND} a second together. In the shaded time, the third party answers 429."
    );
    let mut picture = Picture::new(&title, &subtitle);
    for (at, (fleet, refused)) in fleets.iter().zip(refused).enumerate() {
        head(&mut picture, fleet.name, &format!("{refused} refused"), 4.0);
        let x = Axis { from: 0.0, to: 7.0, start: 34.0, end: WIDTH - 20.0 };
        let y = Axis { from: 0.0, to: 3.0, start: picture.y + HEIGHT, end: picture.y };
        let shade = [second(STOP_US.start), second(STOP_US.end)].map(|at| x.at(at));
        picture.bar(&format!("pale {}", chart::OTHER), (shade[0], y.start), (shade[1], y.end));
        let mut bins = vec![(0.0, 0.0); (x.to / BIN) as usize];
        for &call in &fleet.calls {
            let bin = ((second(call) / BIN) as usize).min(bins.len() - 1);
            let (served, refused) = &mut bins[bin];
            *if STOP_US.contains(&call) { refused } else { served } += 1.0;
        }
        for (bin, (served, refused)) in bins.into_iter().enumerate() {
            let (from, to) = (x.at(bin as f64 * BIN), x.at((bin + 1) as f64 * BIN) - 1.0);
            for (class, low, high) in [(chart::GCRA, 0.0, served), (chart::FIXED, served, served + refused)] {
                if high > low {
                    picture.bar(&format!("bar {class}"), (from, y.at(low)), (to, y.at(high.min(y.to))));
                }
            }
        }
        picture.y = y.start;
        foot(&mut picture, x, y.end, at == 1);
        picture.y += 10.0;
    }
    picture.y += SCALE - 10.0;
    picture.save(path);
    title
}

/// Each call is a row: a line while it waits, and a dot when it is granted, or a cross when it is denied.
pub fn in_line(lines: &[Line; 2], path: &Path) {
    const HIGH: f64 = 6.5;
    let [waits, asks] = lines;
    let (all, denied) = (waits.calls.len(), asks.calls.len() - asks.granted());
    assert_eq!(waits.granted(), all, "a call that waits was denied");
    let title = format!("With BLOCK, none of {all} calls is denied; without it, {denied} are");
    let subtitle = format!(
        "The limit is {GRANTED_A_SECOND} in any second. Each row is a call: it waits (line) until it is granted (dot), or is denied \
         (cross)."
    );
    let mut picture = Picture::new(&title, &subtitle);
    for (at, line) in lines.iter().enumerate() {
        head(&mut picture, &line.name, &format!("{} of {all} granted", line.granted()), 6.0);
        let x = Axis { from: 0.0, to: 4.0, start: 20.0, end: WIDTH - 20.0 };
        let top = picture.y;
        for call in &line.calls {
            let middle = picture.y + HIGH / 2.0;
            let [from, to] = [call.asked_us, call.replied_us].map(|us| x.at(second(us)));
            if call.is_granted {
                picture.line(&format!("thin {}", chart::SLIDE), &[(from, middle), (to, middle)]);
                picture.dot(chart::SLIDE, (to, middle));
            } else {
                for slope in [-3.0, 3.0] {
                    let ends = [(to - 3.0, middle - slope), (to + 3.0, middle + slope)];
                    picture.line(&format!("thin {}", chart::FIXED), &ends);
                }
            }
            picture.y += HIGH;
        }
        picture.y += 3.0;
        foot(&mut picture, x, top, at == 1);
        picture.y += 12.0;
    }
    picture.y += SCALE - 12.0;
    picture.save(path);
}
