//! One limit for callers in several regions: one region decides, or each has a part. Simulated with the module's own decisions.

use serde::{Deserialize, Serialize};
use tools::limiter::{Kind, Policy};

use crate::scale::key::{self, gap, most_in_any, policy, Key, SECOND};

/// How the limit is shared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Sharing {
    /// One region has the key. All calls go there.
    Home,
    /// Each region has a third.
    Thirds,
    /// Each region has a part, as large as its part of a day's calls.
    Parts,
    /// The parts follow the calls of the last minute. All regions change at once.
    EachMinute,
    /// As before. Parts become smaller first, and larger a while later.
    LowerFirst,
    /// Each region has the whole limit.
    Whole,
}

impl Sharing {
    pub const ALL: [Self; 6] = [Self::Home, Self::Thirds, Self::Parts, Self::EachMinute, Self::LowerFirst, Self::Whole];

    pub fn name(self) -> &'static str {
        match self {
            Self::Home => "one home region decides",
            Self::Thirds => "a third for each region",
            Self::Parts => "a fixed part for each region, by its mean share of the calls",
            Self::EachMinute => "parts that follow the last minute, all changed at once",
            Self::LowerFirst => "parts that follow the last minute, lowered first, raised 3 seconds later",
            Self::Whole => "the whole limit in each region",
        }
    }
}

/// The parts of the calls that come from each region, on average.
pub const SHARES: [f64; 3] = [0.5, 0.3, 0.2];
/// The round trip to the home region, in milliseconds; the first region is the home. It is an assumption.
pub const ROUND_TRIP_MS: [f64; 3] = [1.0, 80.0, 150.0];
/// A region's calls swing by this part around their mean, once in the time that is simulated.
pub const SWING: f64 = 0.6;
/// The processes of a region. Each reads the policy once a second, at another moment.
const PROCESSES: usize = 4;
/// No part is smaller than this share of the limit: a region without calls must be able to begin.
pub const LEAST: f64 = 0.05;
/// How long after the parts were lowered others are raised. It is more than a second, in which all processes read the policy, and
/// more than the period, in which the units that were granted under the larger part come back.
const LATER: u64 = 3 * SECOND;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub sharing: Sharing,
    /// Units a second.
    pub limit: u64,
    /// All calls, relative to the limit.
    pub load: f64,
    pub seconds: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub made: u64,
    pub granted: u64,
    /// Grants, relative to what one exact limit would grant: the limit, or all calls if they are fewer.
    pub used: f64,
    /// The most grants in any second in all regions, relative to the limit.
    pub most: f64,
    /// The time of a decision, on average and for the slowest hundredth, in milliseconds.
    pub mean_ms: f64,
    pub p99_ms: f64,
}

pub type Section = key::Section<Plan, Outcome>;

/// The calls of each region at a moment, as shares that add up to 1.
fn demand(time: f64) -> [f64; 3] {
    let wave = |nth: usize| 1.0 + SWING * (std::f64::consts::TAU * (time + nth as f64 / 3.0)).sin();
    let raw = [0, 1, 2].map(|nth| SHARES[nth] * wave(nth));
    let sum: f64 = raw.iter().sum();
    raw.map(|part| part / sum)
}

/// Whole parts of a limit, in these proportions, which are together at most the limit.
fn parts(limit: u64, shares: [f64; 3]) -> [u64; 3] {
    let sum: f64 = shares.iter().map(|share| share.max(LEAST)).sum();
    shares.map(|share| (limit as f64 * share.max(LEAST) / sum) as u64)
}

/// A change of the part of a region, at the moment at which it is written.
struct Write {
    at: u64,
    region: usize,
    part: u64,
}

pub fn simulate(plan: Plan, rng: &mut fastrand::Rng) -> Outcome {
    let Plan { sharing, limit, load, seconds } = plan;
    let one = |part: u64| -> Policy { policy(Kind::Slide, part, SECOND) };
    let start = match sharing {
        Sharing::Home | Sharing::Whole => [limit; 3],
        Sharing::Thirds => [limit / 3; 3],
        Sharing::Parts | Sharing::EachMinute | Sharing::LowerFirst => parts(limit, SHARES),
    };
    let moves = matches!(sharing, Sharing::EachMinute | Sharing::LowerFirst);
    let mut written = start;
    let mut known = start.map(|part| [one(part); PROCESSES]);
    let mut reads = [[0; PROCESSES]; 3].map(|row| row.map(|_: u64| rng.u64(0..SECOND)));
    let mut pending: Vec<Write> = Vec::new();
    let mut last_minute = [0_u64; 3];
    let mut next_minute = 60 * SECOND;
    let mut keys: [Key; 3] = Default::default();
    let mut outcome = Outcome::default();
    let (mut times, mut late) = (Vec::new(), [0_u64; 3]);
    let mut clock = 0.0;
    loop {
        clock += gap(rng, limit as f64 * load);
        let now = clock as u64;
        if now >= seconds * SECOND {
            break;
        }
        if moves && now >= next_minute {
            let sum = last_minute.iter().sum::<u64>().max(1) as f64;
            let wanted = parts(limit, last_minute.map(|calls| calls as f64 / sum));
            for (region, &part) in wanted.iter().enumerate() {
                let raises = part > written[region];
                let wait = if sharing == Sharing::LowerFirst && raises { LATER } else { 0 };
                pending.push(Write { at: next_minute + wait, region, part });
            }
            last_minute = [0; 3];
            next_minute += 60 * SECOND;
        }
        pending.retain(|write| {
            if write.at <= now {
                written[write.region] = write.part;
            }
            write.at > now
        });
        let drawn = rng.f64();
        let shares = demand(now as f64 / (seconds * SECOND) as f64);
        let region = if drawn < shares[0] { 0 } else { 1 + usize::from(drawn >= shares[0] + shares[1]) };
        last_minute[region] += 1;
        let process = rng.usize(0..PROCESSES);
        if moves && now >= reads[region][process] {
            // The first call of a second reads the policy.
            reads[region][process] += SECOND * ((now - reads[region][process]) / SECOND + 1);
            known[region][process] = one(written[region]);
        }
        let place = if sharing == Sharing::Home { 0 } else { region };
        outcome.made += 1;
        late[if sharing == Sharing::Home { region } else { 0 }] += 1;
        if keys[place].take(&known[region][process], now) {
            outcome.granted += 1;
            times.push(now);
        }
    }
    outcome.used = outcome.granted as f64 / ((limit * seconds) as f64 * load.min(1.0));
    outcome.most = most_in_any(SECOND, &times) as f64 / limit as f64;
    let made = outcome.made as f64;
    outcome.mean_ms = late.iter().zip(ROUND_TRIP_MS).map(|(&calls, ms)| calls as f64 * ms).sum::<f64>() / made;
    let mut left = made * 0.01;
    for (calls, ms) in late.into_iter().zip(ROUND_TRIP_MS).rev() {
        left -= calls as f64;
        if left <= 0.0 {
            outcome.p99_ms = ms;
            break;
        }
    }
    outcome
}

pub fn measure(seconds: u64, seed: u64) -> Section {
    let plans =
        Sharing::ALL.into_iter().flat_map(|sharing| [0.9, 1.2].map(|load| Plan { sharing, limit: 1_000, load, seconds }));
    Section::simulate(plans, |plan| simulate(plan, &mut fastrand::Rng::with_seed(seed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sharing: Sharing, load: f64) -> Outcome {
        simulate(Plan { sharing, limit: 300, load, seconds: 400 }, &mut fastrand::Rng::with_seed(11))
    }

    #[test]
    fn only_shares_that_change_at_once_or_whole_limits_exceed_the_limit() {
        for sharing in [Sharing::Home, Sharing::Thirds, Sharing::Parts, Sharing::LowerFirst] {
            let outcome = run(sharing, 1.5);
            assert!(outcome.most <= 1.0, "{sharing:?} {outcome:?}");
        }
        assert!(run(Sharing::Whole, 3.0).most > 1.5);
    }

    #[test]
    fn parts_that_follow_the_calls_use_more_than_fixed_ones() {
        let [home, thirds, follows] =
            [Sharing::Home, Sharing::Thirds, Sharing::LowerFirst].map(|sharing| run(sharing, 1.2).used);
        assert!(thirds < follows && follows < home + 0.001, "{thirds} {follows} {home}");
        assert!(home > 0.98, "{home}");
    }

    #[test]
    fn parts_are_together_at_most_the_limit() {
        for shares in [[1.0, 0.0, 0.0], [0.3, 0.3, 0.4], SHARES] {
            let parts = parts(1_000, shares);
            assert!(parts.iter().sum::<u64>() <= 1_000 && parts.iter().all(|&part| part >= 40), "{parts:?}");
        }
    }
}
