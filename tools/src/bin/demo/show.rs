//! The traffic of the demo, its outcome, and how that is drawn, in 80 columns and 23 lines.

use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Cmd;

use support::{command, Server};

/// The length of the traffic below.
pub const SECONDS: f64 = 26.0;
const PERIOD_SECONDS: f64 = 2.0;
/// Five columns are one period.
pub const COLUMNS: usize = 65;
const FRAME: Duration = Duration::from_millis(50);

/// All limiters have the same limit. `#` stands for the key, `@` for the period.
const LIMITERS: [&str; 4] = ["RL.FIXED # 10 @", "RL.SLIDE # 10 @", "RL.GCRA # 10 @", "RL.BUCKET # 10 @ CAPACITY 20"];

pub struct Phase {
    pub from: f64,
    /// A word, and a sentence.
    pub name: &'static str,
    pub what: &'static str,
    /// What the viewer can observe.
    pub see: &'static str,
}

pub const PHASES: [Phase; 6] = [
    Phase {
        from: 0.0,
        name: "calm",
        what: "Calm: half of what the limit allows.",
        see: "Everything is granted by all of them.",
    },
    Phase {
        from: 4.4,
        name: "burst",
        what: "A burst: 15 calls at once, then as many as the limit allows.",
        see: "FIXED waits for a new window, SLIDE until grants are 2 s old; GCRA goes on.",
    },
    Phase {
        from: 8.0,
        name: "pause",
        what: "A pause: nobody calls.",
        see: "All are full again after a period. BUCKET saves up more than the limit.",
    },
    Phase {
        from: 12.0,
        name: "overload",
        what: "Overload: twice what the limit allows.",
        see: "FIXED and SLIDE spend it and then deny; GCRA and BUCKET end in an even flow.",
    },
    Phase { from: 18.0, name: "", what: "A pause.", see: "FIXED's window ends." },
    Phase {
        from: 20.0,
        name: "attack",
        what: "An attack: one call opens FIXED's window, 12 come before its end, 12 after.",
        see: "FIXED grants 19 within 0.3 s. SLIDE never grants more than 10 in 2 s.",
    },
];

/// The times of the calls, in seconds. The burst comes early in a window of FIXED, and no call comes at the very end of a
/// window.
fn traffic() -> Vec<f64> {
    let every = |gap: f64, from: f64, to: f64| {
        (0..).map(move |index| from + f64::from(index) * gap).take_while(move |&at| at < to - 0.01)
    };
    let calm = every(0.42, 0.2, 4.3);
    let burst = [4.6; 15].into_iter().chain(every(0.2, 4.85, 8.0));
    let overload = every(0.1, 12.05, 18.0);
    let attack = [20.0].into_iter().chain([21.8; 12]).chain([22.1; 12]).chain(every(0.4, 22.6, 26.0));
    calm.chain(burst).chain(overload).chain(attack).collect()
}

/// The number of calls in each column.
type Counts = [usize; COLUMNS];

pub struct Limiter {
    /// The call as the demo prints it.
    pub shown: String,
    call: Cmd,
    look: Cmd,
    pub granted: Counts,
    pub denied: Counts,
    pub remaining: usize,
    pub capacity: usize,
}

impl Limiter {
    fn new(words: &str, period: &str) -> Self {
        let words = words.replace('@', period);
        let call = words.replace('#', "key:#").replace('#', words.split([' ', '.']).nth(1).expect("an algorithm"));
        Self {
            shown: words.replace('#', "key"),
            look: command(&call.replacen("RL.", "RL.PEEK ", 1)),
            call: command(&call),
            granted: [0; COLUMNS],
            denied: [0; COLUMNS],
            remaining: 0,
            capacity: 0,
        }
    }
}

pub struct Show {
    /// The position in the traffic, from 0 to [`SECONDS`].
    now: f64,
    speed: f64,
    /// How late the latest call was, in seconds of the clock.
    pub late: f64,
    pub calls: Counts,
    pub limiters: Vec<Limiter>,
}

impl Show {
    /// Plays the traffic, scaled to this many seconds, and calls `draw` after each change.
    pub fn run(server: &Server, seconds: f64, mut draw: impl FnMut(&Self)) -> Self {
        let speed = SECONDS / seconds;
        let period_us = (PERIOD_SECONDS / speed * 1e6).round() as u64;
        let period =
            if period_us.is_multiple_of(1_000_000) { (period_us / 1_000_000).to_string() } else { format!("{period_us}us") };
        let limiters = LIMITERS.iter().map(|words| Limiter::new(words, &period)).collect();
        let mut show = Self { now: 0.0, speed, late: 0.0, calls: [0; COLUMNS], limiters };
        let mut client = server.client();
        let mut traffic = traffic().into_iter().peekable();
        let start = Instant::now();
        while show.now < SECONDS {
            let now = start.elapsed();
            show.now = (now.as_secs_f64() * speed).min(SECONDS);
            let mut pipe = redis::pipe();
            let mut due = 0;
            while let Some(at) = traffic.next_if(|&at| at <= show.now) {
                due += 1;
                show.late = show.late.max((show.now - at) / speed);
                show.limiters.iter().for_each(|limiter| {
                    pipe.add_command(limiter.call.clone());
                });
            }
            show.limiters.iter().for_each(|limiter| {
                pipe.add_command(limiter.look.clone());
            });
            let replies: Vec<Vec<i64>> = pipe.query(&mut client).unwrap_or_else(|error| panic!("{error}"));
            show.count(&replies, due);
            draw(&show);
            let next = traffic.peek().map_or(SECONDS, |&at| at);
            let next = Duration::from_secs_f64(next / speed).min(now + FRAME);
            sleep(next.saturating_sub(start.elapsed()));
        }
        show
    }

    /// Counts the replies to the calls that were due. The last replies are those of RL.PEEK, which report the levels.
    fn count(&mut self, replies: &[Vec<i64>], due: usize) {
        let column = self.column().min(COLUMNS - 1);
        self.calls[column] += due;
        let rounds = replies.chunks(self.limiters.len());
        for (round, replies) in rounds.enumerate() {
            for (limiter, reply) in self.limiters.iter_mut().zip(replies) {
                if round == due {
                    (limiter.capacity, limiter.remaining) = (reply[1] as usize, reply[2] as usize);
                } else if reply[0] > 0 {
                    limiter.granted[column] += 1;
                } else {
                    limiter.denied[column] += 1;
                }
            }
        }
    }

    /// The column of the present time. At the end of the traffic, it is one more than the last column.
    pub fn column(&self) -> usize {
        (self.now / SECONDS * COLUMNS as f64) as usize
    }

    /// How long the traffic takes, and a period.
    pub fn seconds(&self) -> f64 {
        SECONDS / self.speed
    }

    pub fn period_seconds(&self) -> f64 {
        PERIOD_SECONDS / self.speed
    }

    pub fn frame(&self, coloured: bool) -> String {
        let paint = |colour: &str, text: String| if coloured { format!("\x1b[{colour}m{text}\x1b[0m") } else { text };
        let (green, red, dim) = ("32", "31", "2");
        let title = "Four rate limiters get the same calls";
        let fast = if self.speed == 1.0 { String::new() } else { format!(", {:.1} times as fast", self.speed) };
        let clock = format!("{:.1} of {SECONDS} s{fast}", self.now);
        let legend = format!("The limit is 10 per {PERIOD_SECONDS} s. A column is 0.4 s: taller is more calls.");
        let mut lines = vec![format!("{title}{clock:>0$}", 80 - title.len()), paint(dim, legend)];
        lines.push(String::new());
        let phase = PHASES.iter().rev().find(|phase| phase.from <= self.now).expect("the first");
        lines.extend([phase.what.into(), phase.see.into(), String::new()]);
        lines.push(format!("     calls  {}", self.row(&self.calls, DOTS)));
        let seconds = (0..SECONDS as usize).step_by(2).map(|second| format!("{second:<5}"));
        lines.push(paint(dim, format!("{:>10}  {}{SECONDS}", "seconds", seconds.collect::<String>())));
        for limiter in &self.limiters {
            let level = "█".repeat(limiter.remaining) + &"░".repeat(limiter.capacity.saturating_sub(limiter.remaining));
            lines.push(String::new());
            let left = format!("{:>2} of {:>2} left", limiter.remaining, limiter.capacity);
            lines.push(format!("{:<44} {level:>20} {left}", limiter.shown));
            let sum = |counts: &Counts| counts.iter().sum::<usize>();
            let rows = [("granted", &limiter.granted, BARS, green), ("denied", &limiter.denied, DOTS, red)];
            for (name, counts, signs, colour) in rows {
                lines.push(format!("{name:<7}{:>4} {}", sum(counts), paint(colour, self.row(counts, signs))));
            }
        }
        lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
    }

    /// A sign for each count. The present column has a line if its count is 0.
    fn row(&self, counts: &Counts, signs: [char; 8]) -> String {
        // The least count for which each sign stands.
        const LEAST: [usize; 8] = [1, 2, 3, 4, 6, 9, 13, 19];
        let sign = |(column, count): (usize, &usize)| match LEAST.iter().rposition(|least| least <= count) {
            Some(place) => signs[place],
            None if column == self.column() => '│',
            None => ' ',
        };
        counts.iter().enumerate().map(sign).collect()
    }
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const DOTS: [char; 8] = ['⡀', '⣀', '⣄', '⣤', '⣦', '⣶', '⣷', '⣿'];
