//! Draws a run of the demo as a picture that plays in a page: an SVG whose style sheet moves a curtain off the timelines. It needs no
//! script, so it also plays where a page shows it as an image.

use crate::show::{Show, COLUMNS, PHASES, SECONDS};
use tools::chart::{round, Picture, Side, BUCKET, FIXED, GCRA, LINE, MARGIN, OTHER, SLIDE};

/// The colours of the limiters, in their order.
const CLASSES: [&str; 4] = [FIXED, SLIDE, GCRA, BUCKET];
/// How long the picture shows the end of the run before it plays the run again, in seconds.
const HOLD: f64 = 3.0;

/// Timelines are at the left, and the sums of each limiter at the right.
const COLUMN: f64 = 5.5;
const END: f64 = MARGIN + COLUMN * COLUMNS as f64;
const SUMS: f64 = END + 10.0;
/// The height of one call in a timeline, of the room above and below its middle, and of a limiter with its name.
const CALL: f64 = 2.6;
const UP: f64 = 43.0;
const DOWN: f64 = 35.0;
const ROW: f64 = LINE + UP + DOWN + 6.0;

/// The picture. Without animation, it shows the end of the run.
pub fn svg(show: &Show) -> String {
    let subtitle = format!("The limit is 10 per {} s. Up: granted; down, grey: denied.", round(show.period_seconds()));
    let mut picture = Picture::new("Four rate limiters give different answers to the same calls", &subtitle);
    picture.rules(&rules(show.seconds()));
    let top = picture.y + LINE;
    let bottom = top + ROW * show.limiters.len() as f64;
    let place = |second: f64| MARGIN + second / SECONDS * (END - MARGIN);
    for (at, phase) in PHASES.iter().enumerate() {
        let end = PHASES.get(at + 1).map_or(SECONDS, |next| next.from);
        let middle = (place(phase.from) + place(end)) / 2.0;
        picture.text(phase.name, (middle, picture.y + LINE / 2.0), Side::Middle, "muted");
    }
    for (row, (limiter, class)) in show.limiters.iter().zip(CLASSES).enumerate() {
        let base = top + ROW * row as f64 + LINE + UP;
        for (counts, class, sign) in [(&limiter.granted, class, -1.0), (&limiter.denied, OTHER, 1.0)] {
            for (column, &count) in counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
                let left = MARGIN + column as f64 * COLUMN;
                let tip = base + sign * count as f64 * CALL;
                picture.bar(&format!("bar {class}"), (left + 0.3, base), (left + COLUMN - 0.3, tip));
            }
        }
        for (at, (counts, what)) in [(&limiter.granted, "granted"), (&limiter.denied, "denied")].into_iter().enumerate() {
            let sum = format!("{} {what}", counts.iter().sum::<usize>());
            picture.text(&sum, (SUMS, base - UP + LINE * (at as f64 + 0.5)), Side::Left, "");
        }
    }
    // A line down through all timelines, which leaves out the names above them.
    let down = |x: f64| -> String {
        let tops = (0..show.limiters.len()).map(|row| top + ROW * row as f64 + LINE);
        tops.map(|top| format!("M{} {}v{}", round(x), round(top), UP + DOWN)).collect()
    };
    // The curtain hides what is still to come.
    picture.raw(&format!(
        "<g class=\"sweep\"><rect class=\"ground\" x=\"{MARGIN}\" y=\"{}\" width=\"480\" height=\"{}\"/>\
         <path class=\"limit\" d=\"{}\"/></g>",
        round(top),
        round(bottom - top),
        down(MARGIN)
    ));
    for phase in &PHASES[1..] {
        picture.raw(&format!("<path class=\"grid\" d=\"{}\"/>", down(place(phase.from))));
    }
    for (row, limiter) in show.limiters.iter().enumerate() {
        let top = top + ROW * row as f64;
        picture.text(&limiter.shown, (MARGIN, top + LINE / 2.0 + 2.0), Side::Left, "name");
        picture.line("axis", &[(MARGIN, top + LINE + UP), (END, top + LINE + UP)]);
    }
    picture.y = bottom;
    for second in (0..=show.seconds() as usize).step_by(2) {
        let x = MARGIN + second as f64 / show.seconds() * (END - MARGIN);
        picture.text(&second.to_string(), (x.max(MARGIN + 5.0), picture.y + LINE / 2.0), Side::Middle, "muted");
    }
    picture.text("seconds", (SUMS, picture.y + LINE / 2.0), Side::Left, "muted");
    picture.y += LINE;
    picture.svg()
}

/// The animation: the end of the run comes first and stays for a while. It is also what is seen without animation.
fn rules(seconds: f64) -> String {
    let duration = round(seconds + HOLD);
    let begin = round(HOLD / (seconds + HOLD) * 100.0);
    let end = format!("transform:translateX({}px)", round(END - MARGIN + 110.0));
    format!(
        ".sweep{{{end};animation:sweep {duration}s linear infinite}}\n\
         @keyframes sweep{{0%{{{end};animation-timing-function:step-end}}{begin}%{{transform:translateX(0)}}\
         99.9%{{transform:translateX({}px)}}100%{{{end}}}}}\n\
         @media(prefers-reduced-motion:reduce){{.sweep{{animation:none}}}}",
        round(END - MARGIN)
    )
}
