//! Calls with several keys, which wait in several lines: a simulation with a virtual clock.

mod share;
mod world;

use world::{Counts, World};

/// Seeds whose worlds once had a finding.
const ONCE_FAILED: &[u64] = &[61, 768, 100_246];

fn run(seed: u64) -> Counts {
    World::run(seed).unwrap_or_else(|text| panic!("{text}"))
}

#[test]
fn worlds_that_once_had_a_finding_have_none() {
    for &seed in ONCE_FAILED {
        run(seed);
    }
}

/// `LINES_STEPS` and `LINES_SEED` make it longer, and begin with another seed.
#[test]
fn no_call_is_passed_forgotten_or_charged_in_part() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let steps: u64 = variable("LINES_STEPS").unwrap_or(300_000);
    let first: u64 = variable("LINES_SEED").unwrap_or(1);
    let mut total = Counts::default();
    let mut seed = first;
    while total.steps < steps {
        let counts = run(seed);
        total.steps += counts.steps;
        total.granted += counts.granted;
        total.denied += counts.denied;
        total.in_several_lines += counts.in_several_lines;
        total.most_waiting = total.most_waiting.max(counts.most_waiting);
        seed += 1;
    }
    println!("seeds {first} to {}: {total:?}", seed - 1);
    assert!(
        total.granted > steps / 1_000 && total.denied > steps / 1_000 && total.in_several_lines > steps / 1_000,
        "{total:?}"
    );
}
