//! The demo ends by itself, shows all four algorithms, and fits into a terminal.

use std::sync::atomic::{AtomicBool, Ordering};

use support::Server;

use crate::show::Show;

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
fn the_demo_can_be_stopped() {
    let server = Server::start();
    let (stopped, mut frames) = (AtomicBool::new(false), 0);
    let show = Show::run(&server, 60.0, &stopped, |_| {
        frames += 1;
        stopped.store(true, Ordering::Relaxed);
    });
    assert!(show.is_none() && frames == 1, "{frames} frames");
}
