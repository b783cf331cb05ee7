//! Shows the four algorithms side by side, live, under the same traffic. `make demo`

mod picture;
mod show;

use std::io::{stdout, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;

use picture::Recorder;
use show::{Show, SECONDS};

/// Calls four limiters for half a minute, and draws which calls they grant
#[derive(Parser)]
struct Options {
    /// How long the demo lasts, in seconds: traffic and periods are scaled to fit
    #[arg(long, default_value_t = SECONDS, value_parser = seconds)]
    seconds: f64,
    /// Also record the demo in this file, as a picture that plays: an animated SVG
    #[arg(long)]
    picture: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|seconds| (1.0..=3_600.0).contains(seconds)).ok_or("from 1 to 3600".into())
}

/// A later call than this, in seconds, changes what the picture shows: two calls may be in one column that belong in two.
const LATE: f64 = 0.02;

/// Whether Ctrl-C has been pressed.
static STOPPED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let options = Options::parse();
    ctrlc::set_handler(|| STOPPED.store(true, Ordering::Relaxed)).expect("a signal handler");
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let live = stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|terminal| terminal != "dumb");
    let coloured = live && !set("NO_COLOR");
    let server = support::Server::start();
    let screen = live.then(Screen::enter);
    let mut recorder = Recorder::default();
    let show = Show::run(&server, options.seconds, &STOPPED, |show| {
        recorder.watch(show);
        if live {
            Screen::draw(&show.frame(coloured));
        }
    });
    drop(screen);
    match show {
        Some(show) => {
            println!("{}\n", show.frame(coloured));
            if let Some(path) = options.picture {
                tools::chart::write(&path, &recorder.svg(&show));
                if show.late > LATE {
                    println!("A call was {:.0} ms late: record again on a quieter machine.", show.late * 1e3);
                }
            }
            // For readers who see only the end of the demo.
            for phase in show::PHASES {
                println!("{:>4} s  {}\n        {}", phase.from, phase.what, phase.see);
            }
            ExitCode::SUCCESS
        }
        // The exit status that shells use for SIGINT.
        None => ExitCode::from(130),
    }
}

/// The terminal's alternate screen, with the cursor hidden. Leaving it restores what the terminal showed before.
struct Screen;

impl Screen {
    fn enter() -> Self {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            Self::leave();
            report(panic);
        }));
        Self::print("\x1b[?1049h\x1b[?25l");
        Self
    }

    /// Draws a frame over the last one.
    fn draw(frame: &str) {
        Self::print(&format!("\x1b[H{}\x1b[J", frame.replace('\n', "\x1b[K\r\n")));
    }

    fn leave() {
        Self::print("\x1b[?25h\x1b[?1049l");
    }

    fn print(text: &str) {
        // The terminal may have been closed.
        let _ = stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        Self::leave();
    }
}

#[cfg(test)]
mod tests {
    use support::Server;

    use super::*;
    use crate::show::COLUMNS;

    #[test]
    fn the_demo_ends_with_all_four_timelines() {
        let server = Server::start();
        let mut frames = 0;
        let show = Show::run(&server, 2.0, &AtomicBool::new(false), |_| frames += 1).expect("it was not stopped");
        assert!(frames > 3, "{frames} frames");

        let frame = show.frame(false);
        assert!(!frame.contains('\x1b'), "{frame}");
        assert!(show.frame(true).contains("\x1b[32m"));
        assert!(frame.lines().count() <= 24 && frame.lines().all(|line| line.chars().count() <= 80), "{frame}");
        for name in ["RL.FIXED", "RL.SLIDE", "RL.GCRA", "RL.BUCKET"] {
            assert!(frame.contains(name), "{name}\n{frame}");
        }
        // All limiters got the same calls, and none granted all of them.
        let sums = show.limiters.iter().map(|limiter| [&limiter.granted, &limiter.denied].map(|counts| counts.iter().sum()));
        let sums: Vec<[usize; 2]> = sums.collect();
        assert!(sums.iter().all(|[granted, denied]| *granted > 0 && *denied > 0), "{frame}");
        assert!(sums.iter().all(|both| both.iter().sum::<usize>() == sums[0].iter().sum::<usize>()), "{frame}");
    }

    #[test]
    fn a_recording_has_what_the_demo_shows_and_plays_by_itself() {
        let server = Server::start();
        let mut recorder = Recorder::default();
        let show =
            Show::run(&server, 2.0, &AtomicBool::new(false), |show| recorder.watch(show)).expect("it was not stopped");

        // A frame for each column and one for the end. Counts never fall, and end as the demo's.
        let frames = &recorder.frames;
        assert_eq!(frames.len(), COLUMNS + 1);
        for (limiter, of) in show.limiters.iter().enumerate() {
            let counts = |frame: usize| [frames[frame][limiter].granted, frames[frame][limiter].denied];
            assert!((1..frames.len()).all(|frame| (0..2).all(|count| counts(frame - 1)[count] <= counts(frame)[count])));
            assert_eq!(counts(COLUMNS), [&of.granted, &of.denied].map(|counts| counts.iter().sum::<usize>()));
            assert!(frames.iter().all(|frame| frame[limiter].remaining <= frame[limiter].capacity));
            assert!(frames.iter().any(|frame| frame[limiter].remaining < frame[limiter].capacity), "{}", of.shown);
        }

        let svg = recorder.svg(&show);
        assert!(svg.len() < 200_000, "{} bytes", svg.len());
        // A page shows the picture as an image: no script runs, and nothing else is loaded.
        for needless in ["<script", "href", "url(", "@import"] {
            assert!(!svg.contains(needless), "{needless}");
        }
        assert_eq!(svg.matches("http").count(), svg.matches("http://www.w3.org/2000/svg").count());
        assert!(svg.contains("infinite") && svg.contains("prefers-reduced-motion"));
        for of in &show.limiters {
            assert!(svg.contains(&of.shown));
            let granted = format!(">{} granted<", of.granted.iter().sum::<usize>());
            assert!(svg.contains(&granted), "{granted}");
        }
    }

    #[test]
    fn the_demo_can_be_stopped() {
        let server = Server::start();
        let (stopped, mut frames) = (AtomicBool::new(false), 0);
        let show = Show::run(&server, 60.0, &stopped, |_| {
            frames += 1;
            stopped.store(true, Ordering::Relaxed);
        });
        assert!(show.is_none() && frames == 1, "{frames} frames");
    }
}
