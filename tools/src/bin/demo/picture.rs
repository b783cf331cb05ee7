//! Records a run of the demo, and draws it as a picture that plays in a page: an SVG whose style sheet moves its parts. It needs no
//! script, so it also plays where a page shows it as an image.

use std::fmt::Write;

use crate::show::{Show, COLUMNS, PHASES, SECONDS};
use tools::chart::{round, Picture, Side, BUCKET, FIXED, GCRA, LINE, MARGIN, OTHER, SLIDE};

/// The colours of the limiters, in their order.
const CLASSES: [&str; 4] = [FIXED, SLIDE, GCRA, BUCKET];
/// How long the picture shows the end of the run before it plays the run again, in seconds.
const HOLD: f64 = 3.0;

/// Timelines are at the left, and the state of each limiter at the right.
const COLUMN: f64 = 5.5;
const END: f64 = MARGIN + COLUMN * COLUMNS as f64;
const STATE: f64 = END + 10.0;
/// The height of one call in a timeline, of the room above and below its middle, and of a limiter with its name.
const CALL: f64 = 2.6;
const UP: f64 = 43.0;
const DOWN: f64 = 35.0;
const ROW: f64 = LINE + UP + DOWN + 6.0;

/// The state of a limiter at the end of a column, as the demo shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    pub granted: usize,
    pub denied: usize,
    pub remaining: usize,
    pub capacity: usize,
}

/// The states of all limiters in each column, and one more for the end.
#[derive(Default)]
pub struct Recorder {
    pub frames: Vec<Vec<State>>,
}

impl Recorder {
    /// Takes a frame of the demo. A later frame of the same column replaces it.
    pub fn watch(&mut self, show: &Show) {
        let state = |limiter: &crate::show::Limiter| State {
            granted: limiter.granted.iter().sum(),
            denied: limiter.denied.iter().sum(),
            remaining: limiter.remaining,
            capacity: limiter.capacity,
        };
        let frame: Vec<State> = show.limiters.iter().map(state).collect();
        // If the demo was late, a column has no frame of its own, and nothing happened in it.
        while self.frames.len() < show.column() {
            self.frames.push(self.frames.last().unwrap_or(&frame).clone());
        }
        self.frames.truncate(show.column());
        self.frames.push(frame);
    }

    /// Draws the run. Without animation, the picture shows its end.
    pub fn svg(&self, show: &Show) -> String {
        let subtitle = format!("The limit is 10 per {} s. Up: granted; down, grey: denied.", round(show.period_seconds()));
        let mut picture = Picture::new("Four rate limiters give different answers to the same calls", &subtitle);
        picture.rules(&rules(show.seconds()));

        let calls: usize = show.calls.iter().sum();
        let caption = |at: usize| match at {
            COLUMNS => format!("The end: {calls} calls to each of them"),
            at => phase(at as f64 / COLUMNS as f64 * SECONDS).into(),
        };
        let line = |at: usize| words(MARGIN, LINE / 2.0 + at as f64 * LINE, &caption(at), " class=\"name\"");
        film(&mut picture, [0.0, 0.0], "film caption", LINE, (0..=COLUMNS).map(line).collect());
        picture.y += LINE + 4.0;

        // Where the traffic changes.
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
        }
        // A line down through all timelines, which leaves out the names above them.
        let rows = 0..show.limiters.len();
        let down = |x: f64| -> String {
            let each =
                rows.clone().map(|row| format!("M{} {}v{}", round(x), round(top + ROW * row as f64 + LINE), UP + DOWN));
            each.collect()
        };
        // This hides what is still to come.
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
        for (row, (limiter, class)) in show.limiters.iter().zip(CLASSES).enumerate() {
            let top = top + ROW * row as f64;
            picture.text(&limiter.shown, (MARGIN, top + LINE / 2.0 + 2.0), Side::Left, "name");
            picture.line("axis", &[(MARGIN, top + LINE + UP), (END, top + LINE + UP)]);
            let frames = self.frames.iter().enumerate().map(|(at, frame)| frame[row].draw(at, class));
            picture.y = top + LINE;
            film(&mut picture, [STATE, 0.0], "film", STATE_HEIGHT, frames.collect());
        }
        picture.y = bottom;
        for second in (0..=show.seconds() as usize).step_by(2) {
            let x = MARGIN + second as f64 / show.seconds() * (END - MARGIN);
            picture.text(&second.to_string(), (x.max(MARGIN + 5.0), picture.y + LINE / 2.0), Side::Middle, "muted");
        }
        picture.text("seconds", (STATE, picture.y + LINE / 2.0), Side::Left, "muted");
        picture.y += LINE;
        picture.svg()
    }
}

const STATE_HEIGHT: f64 = 4.0 * LINE;

impl State {
    /// What is left, and the counts, at the place of this frame in a film.
    fn draw(&self, frame: usize, class: &str) -> String {
        let top = frame as f64 * STATE_HEIGHT;
        // Twice the limit is the largest capacity.
        let width = |units: usize| round(units as f64 * 4.2);
        let mut drawing = String::new();
        for (class, units) in [(format!("pale {OTHER}"), self.capacity), (format!("bar {class}"), self.remaining)] {
            let y = round(top + 5.0);
            write!(drawing, "<rect class=\"{class}\" y=\"{y}\" width=\"{}\" height=\"10\"/>", width(units))
                .expect("a string");
        }
        let line = |at: f64, text: String| words(0.0, top + LINE * (at + 0.5), &text, "");
        let lines = [(self.remaining, "left"), (self.granted, "granted"), (self.denied, "denied")];
        let lines = lines.iter().zip(1..).map(|((count, what), at)| line(f64::from(at), format!("{count} {what}")));
        drawing + &lines.collect::<String>()
    }
}

fn words(x: f64, y: f64, text: &str, class: &str) -> String {
    format!("<text x=\"{}\" y=\"{}\" dy=\".35em\"{class}>{text}</text>", round(x), round(y))
}

/// What the traffic is at a time, in seconds of the traffic.
fn phase(at: f64) -> &'static str {
    PHASES.iter().rev().find(|phase| phase.from <= at).expect("the first").brief
}

/// Adds frames that are below each other, and a window through which one of them is seen.
fn film(picture: &mut Picture, [x, dy]: [f64; 2], class: &str, height: f64, frames: Vec<String>) {
    picture.raw(&format!(
        "<svg x=\"{}\" y=\"{}\" width=\"480\" height=\"{height}\" overflow=\"hidden\"><g class=\"{class}\">{}</g></svg>",
        round(x),
        round(picture.y + dy),
        frames.concat()
    ));
}

/// The animations. In each, the end of the run comes first and stays for a while. It is also what is seen without animation.
fn rules(seconds: f64) -> String {
    let duration = round(seconds + HOLD);
    let begin = (HOLD / (seconds + HOLD) * 1e4).round() / 100.0;
    let film = |name: &str, height: f64| {
        let end = format!("transform:translateY(-{}px)", height * COLUMNS as f64);
        format!(
            "@keyframes {name}{{0%{{{end};animation-timing-function:step-end}}\
             {begin}%{{transform:translateY(0);animation-timing-function:steps({COLUMNS})}}100%{{{end}}}}}\n"
        )
    };
    let width = round(END - MARGIN);
    let end = format!("transform:translateX({width}px)");
    format!(
        ".sweep{{{end};animation:sweep {duration}s linear infinite}}\n\
         .film{{transform:translateY(-{state}px);animation:state {duration}s infinite}}\n\
         .caption{{transform:translateY(-{caption}px);animation-name:caption}}\n\
         @keyframes sweep{{0%{{{end};animation-timing-function:step-end}}{begin}%{{transform:translateX(0)}}100%{{{end}}}}}\n\
         {}{}@media(prefers-reduced-motion:reduce){{.sweep,.film{{animation:none}}}}",
        film("state", STATE_HEIGHT),
        film("caption", LINE),
        state = STATE_HEIGHT * COLUMNS as f64,
        caption = LINE * COLUMNS as f64,
    )
}
