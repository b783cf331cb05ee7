//! Shows the four algorithms side by side, live, under the same traffic. `make demo`

mod picture;
mod show;
#[cfg(test)]
mod tests;

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
