//! One limit that is split over several keys: how much of it can be used. Simulated with the module's own decisions.

use serde::{Deserialize, Serialize};
use tools::limiter::{Kind, Policy};

use crate::scale::key::{self, gap, most_in_any, policy, Key, SECOND};

/// How a caller chooses a key.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Choice {
    /// At random, for each call.
    Random,
    /// By a hash of the client, always the same. A few clients make most calls.
    Client,
    /// At random; after a denial another one, once.
    Two,
}

/// What is simulated: a limit of `RL.SLIDE` per second, split over `keys`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub choice: Choice,
    pub limit: u64,
    pub keys: u64,
    /// The calls that are made, relative to the limit.
    pub load: f64,
}

/// What came of it. Calls of the first seconds do not count.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub made: u64,
    pub granted: u64,
    /// Denied calls, and those of them that were denied while another key had units.
    pub denied: u64,
    pub early: u64,
    /// Calls to a server; more than were made if some try twice.
    pub tries: u64,
    /// The share of the limit that was used.
    pub of_limit: f64,
    /// Grants, relative to those of one key with the whole limit in the same traffic.
    pub used: f64,
    /// The most grants in any second, also in the first ones.
    pub most: u64,
}

/// The figures of this part.
pub type Section = key::Section<Plan, Outcome>;

/// How many clients there are; the nth makes 1/n as many calls as the first.
const CLIENTS: usize = 1_000;
/// The seconds that do not count: the keys begin unused.
const WARM: u64 = 8;

pub fn simulate(plan: Plan, seconds: u64, rng: &mut fastrand::Rng) -> Outcome {
    let Plan { choice, limit, keys, load } = plan;
    // The parts add up to the limit.
    let part = |nth| policy(Kind::Slide, limit / keys + u64::from(nth < limit % keys), SECOND);
    let policies: Vec<Policy> = (0..keys).map(part).collect();
    let mut values: Vec<Key> = (0..keys).map(|_| Key::default()).collect();
    let mut homes_rng = fastrand::Rng::with_seed(keys);
    let homes: Vec<usize> = (0..CLIENTS).map(|_| homes_rng.usize(0..keys as usize)).collect();
    let weights: Vec<f64> = (1..=CLIENTS)
        .scan(0.0, |sum, nth| {
            *sum += 1.0 / nth as f64;
            Some(*sum)
        })
        .collect();
    let mut outcome = Outcome::default();
    let mut times = Vec::new();
    // The choices have a generator of their own: all plans with the same limit and load get the same calls.
    let mut choices = fastrand::Rng::with_seed(rng.u64(..));
    let mut clock = 0.0;
    loop {
        clock += gap(rng, limit as f64 * load);
        let now = clock as u64;
        if now >= (WARM + seconds) * SECOND {
            break;
        }
        let first = match choice {
            Choice::Random | Choice::Two => choices.usize(0..keys as usize),
            Choice::Client => {
                let drawn = choices.f64() * weights[CLIENTS - 1];
                homes[weights.partition_point(|&sum| sum < drawn).min(CLIENTS - 1)]
            }
        };
        let mut granted = values[first].take(&policies[first], now);
        let mut tries = 1;
        if !granted && choice == Choice::Two && keys > 1 {
            let other = (first + choices.usize(1..keys as usize)) % keys as usize;
            granted = values[other].take(&policies[other], now);
            tries = 2;
        }
        if granted {
            times.push(now);
        }
        if now < WARM * SECOND {
            continue;
        }
        outcome.made += 1;
        outcome.tries += tries;
        if granted {
            outcome.granted += 1;
        } else {
            outcome.denied += 1;
            outcome.early += u64::from(values.iter().zip(&policies).any(|(key, policy)| key.remaining(policy, now) > 0));
        }
    }
    outcome.of_limit = outcome.granted as f64 / (limit * seconds) as f64;
    outcome.most = most_in_any(SECOND, &times);
    outcome
}

/// Everything that the page shows.
pub fn plans() -> Vec<Plan> {
    let base = Plan { choice: Choice::Random, limit: 10_000, keys: 1, load: 1.0 };
    let mut plans = Vec::new();
    for choice in [Choice::Random, Choice::Client, Choice::Two] {
        for keys in [1, 2, 8, 32] {
            // One key leaves no choice.
            if keys > 1 || choice == Choice::Random {
                plans.extend([0.8, 1.0, 1.2, 2.0].map(|load| Plan { choice, keys, load, ..base }));
            }
        }
    }
    plans.extend([100, 1_000, 100_000].map(|limit| Plan { limit, keys: 8, ..base }));
    plans
}

pub fn measure(seconds: u64, seed: u64) -> Section {
    let run = |plan| simulate(plan, seconds, &mut fastrand::Rng::with_seed(seed));
    Section::simulate(plans(), |plan| {
        let one = run(Plan { keys: 1, ..plan });
        let outcome = run(plan);
        Outcome { used: outcome.granted as f64 / one.granted as f64, ..outcome }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_limit_never_grant_more_than_it() {
        for choice in [Choice::Random, Choice::Client, Choice::Two] {
            for keys in [1, 3, 7] {
                let plan = Plan { choice, limit: 500, keys, load: 2.0 };
                let outcome = simulate(plan, 4, &mut fastrand::Rng::with_seed(7));
                assert!(outcome.most <= 500, "{plan:?} {outcome:?}");
                assert!(outcome.of_limit > 0.8 && outcome.of_limit <= 1.001, "{plan:?} {outcome:?}");
            }
        }
    }

    #[test]
    fn each_call_is_granted_or_denied_and_one_key_denies_only_when_it_is_used_up() {
        for (choice, keys) in [(Choice::Two, 4), (Choice::Random, 1)] {
            let plan = Plan { choice, limit: 300, keys, load: 1.2 };
            let Outcome { made, granted, denied, early, tries, .. } = simulate(plan, 4, &mut fastrand::Rng::with_seed(3));
            assert_eq!(made, granted + denied);
            assert!(early <= denied && denied > 0 && (early > 0) == (keys > 1), "{plan:?}");
            // Only what is denied at the first key tries another.
            assert!(tries <= 2 * made && (tries >= made + denied || keys == 1), "{plan:?}");
        }
    }

    #[test]
    fn a_second_try_uses_more_than_one() {
        let used = |choice| {
            let plan = Plan { choice, limit: 2_000, keys: 16, load: 1.0 };
            simulate(plan, 10, &mut fastrand::Rng::with_seed(5)).granted
        };
        assert!(used(Choice::Client) < used(Choice::Random));
        assert!(used(Choice::Random) < used(Choice::Two));
    }
}
