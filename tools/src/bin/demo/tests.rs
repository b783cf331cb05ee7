//! The demo ends by itself, shows all four algorithms, and fits into a terminal.

use std::sync::atomic::{AtomicBool, Ordering};

use support::Server;

use crate::picture::Recorder;
use crate::show::{Show, COLUMNS};

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
    let show = Show::run(&server, 2.0, &AtomicBool::new(false), |show| recorder.watch(show)).expect("it was not stopped");

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
