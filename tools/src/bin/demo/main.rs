//! Shows the four algorithms side by side, live, under the same traffic. `make demo`

mod picture;
mod show;

use std::io::{stdout, IsTerminal};
use std::path::PathBuf;

use clap::Parser;

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

fn main() {
    let options = Options::parse();
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let live = stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|terminal| terminal != "dumb");
    let coloured = live && !set("NO_COLOR");
    let server = support::Server::start();
    let show = Show::run(&server, options.seconds, |show| {
        if live {
            let frame = show.frame(coloured);
            // The next frame is drawn over this one.
            println!("{}\x1b[J\x1b[{}A", frame.replace('\n', "\x1b[K\n"), frame.lines().count());
        }
    });
    println!("{}\n", show.frame(coloured));
    if let Some(path) = options.picture {
        tools::chart::write(&path, &picture::svg(&show));
        if show.late > LATE {
            println!("A call was {:.0} ms late: record again on a quieter machine.", show.late * 1e3);
        }
    }
    // For readers who see only the end of the demo.
    for phase in show::PHASES {
        println!("{:>4} s  {}\n        {}", phase.from, phase.what, phase.see);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_ends_with_all_four_timelines_and_a_picture_that_plays_by_itself() {
        let server = support::Server::start();
        let show = Show::run(&server, 2.0, |_| {});

        let frame = show.frame(false);
        assert!(!frame.contains('\x1b') && show.frame(true).contains("\x1b[32m"), "{frame}");
        assert!(frame.lines().count() <= 24 && frame.lines().all(|line| line.chars().count() <= 80), "{frame}");
        // All limiters got the same calls, and none granted all of them.
        let sums = show.limiters.iter().map(|limiter| [&limiter.granted, &limiter.denied].map(|counts| counts.iter().sum()));
        let sums: Vec<[usize; 2]> = sums.collect();
        assert!(sums.iter().all(|[granted, denied]| *granted > 0 && *denied > 0), "{frame}");
        assert!(sums.iter().all(|both| both.iter().sum::<usize>() == sums[0].iter().sum::<usize>()), "{frame}");

        let svg = picture::svg(&show);
        assert!(svg.len() < 60_000, "{} bytes", svg.len());
        // A page shows it as an image: no script runs, and nothing else is loaded.
        for needless in ["<script", "href", "url(", "@import"] {
            assert!(!svg.contains(needless), "{needless}");
        }
        assert!(svg.contains("infinite") && svg.contains("prefers-reduced-motion"));
        for (of, [granted, _]) in show.limiters.iter().zip(sums) {
            assert!(frame.contains(&of.shown) && svg.contains(&of.shown));
            assert!(svg.contains(&format!(">{granted} granted<")), "{granted}");
        }
    }
}
