//! docs/scale.md: how limiters grow beyond a call to one server, measured and simulated. `make scale`

mod failover;
mod key;
mod memory;
pub mod report;
mod shards;
mod wallets;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use support::server_program;
use tools::results::Machine;

use crate::{figure, read, Options};

/// How much is measured and simulated.
pub struct Size {
    quick: bool,
    /// Keys on a server whose memory is measured; other parts use fewer.
    keys: u64,
    /// The seconds that are simulated.
    seconds: u64,
}

impl Size {
    const FULL: Self = Self { quick: false, keys: 1_000_000, seconds: 20 };
    const QUICK: Self = Self { quick: true, keys: 2_000, seconds: 1 };
}

/// The content of docs/scale.json.
#[derive(Serialize, Deserialize)]
pub struct Results {
    machine: Machine,
    seed: u64,
    shards: shards::Section,
    wallets: wallets::Section,
    failover: failover::Section,
    memory: memory::Section,
}

/// Measures the figures.
pub fn results(file: &Path, options: &Options) -> Results {
    let known = (!options.part.is_empty()).then(|| read::<Results>(file).seed);
    // The page names one seed for all parts.
    let differs = options.seed.zip(known).is_some_and(|(seed, known)| seed != known);
    assert!(!differs, "the other parts have the seed {known:?}: give that one, or measure all parts");
    let seed = options.seed.or(known).unwrap_or_else(now);
    let size = if options.quick { Size::QUICK } else { Size::FULL };
    measure(file, &options.part, &size, seed, &options.server)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs())
}

/// Measures these parts, or all if none is named.
fn measure(file: &Path, wanted: &[String], size: &Size, seed: u64, others: &[String]) -> Results {
    let servers: Vec<String> = std::iter::once(server_program()).chain(others.iter().cloned()).collect();
    crate::measure(
        file,
        wanted,
        &[("machine", figure(Machine::this())), ("seed", figure(seed))],
        &[
            ("shards", &|| figure(shards::measure(size.seconds, seed))),
            ("wallets", &|| figure(wallets::measure(size.seconds, seed, !size.quick))),
            ("failover", &|| figure(failover::measure(size, seed))),
            ("memory", &|| figure(memory::measure(size, &servers))),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_measures_everything() {
        let docs = support::root().join("docs");
        let results = measure(&docs.join("scale.json"), &[], &Size::QUICK, 1, &[]);
        let speed = read::<crate::benchmarks::Results>(&docs.join("benchmarks.json")).speed;
        for (_, text) in report::texts(&results, &speed) {
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
        let lost = |waits: bool| results.failover.kills.iter().filter(move |kills| kills.waits == waits);
        // Grants that a replica has confirmed survive.
        assert!(lost(true).all(|kills| kills.lost.iter().all(|&units| units == 0)));
        assert!(results.memory.kinds.iter().all(|of| of.used > 50.0));
        // The same seed gives the same figures, whatever the machine does meanwhile.
        for row in results.shards.rows.iter().step_by(10) {
            let again = shards::simulate(row.plan, Size::QUICK.seconds, &mut fastrand::Rng::with_seed(1));
            let counts = |of: &shards::Outcome| (of.made, of.granted, of.early, of.tries, of.most);
            assert_eq!(counts(&row.outcome), counts(&again), "{:?}", row.plan);
        }
        for row in results.wallets.simulated.rows.iter().step_by(10) {
            let again = wallets::simulate(row.plan, Size::QUICK.seconds, 1);
            let counts = |of: &wallets::Outcome| (of.made, of.granted, of.charged, of.given_back, of.lost);
            assert_eq!(counts(&row.outcome), counts(&again), "{:?}", row.plan);
        }
    }
}
