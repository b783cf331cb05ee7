//! Medians and quartiles; and measurements that are repeated because other work slowed the processors down, as happens on a machine that
//! others use.

use std::hint::black_box;
use std::thread::{available_parallelism, scope, sleep};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The quartiles of some values.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Quartiles {
    /// A quarter of the values is lower.
    pub low: f64,
    /// See above.
    pub median: f64,
    /// A quarter of the values is higher.
    pub high: f64,
}

impl Quartiles {
    /// The quartiles of at least one value. Between two values it interpolates.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |quarter: f64| {
            let place = quarter * (values.len() - 1) as f64;
            let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Self { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

/// The median of at least one value.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Quartiles::of(values).median
}

/// By how much more than its best time a fixed piece of work may take while a measurement counts.
const TOLERANCE: f64 = 1.12;
/// How often the work is done to find its best time.
const SAMPLES: usize = 100;
/// The longest wait for the processors to be free, before each measurement.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a measurement is made at most.
const TRIES: usize = 4;

/// How fast the processors are when nothing else uses them.
pub struct Steady {
    /// Does a fixed piece of work, and returns the time that it took.
    work: Box<dyn FnMut() -> Duration>,
    best: Duration,
    /// How many measurements there were.
    pub measured: usize,
    /// How many of them were repeated.
    pub repeated: usize,
}

impl Steady {
    /// Finds out how fast the processors are.
    #[must_use]
    pub fn new() -> Self {
        Self::by(work)
    }

    fn by(mut work: impl FnMut() -> Duration + 'static) -> Self {
        let best = (0..SAMPLES).map(|_| work()).min().unwrap_or_default();
        Self { work: Box::new(work), best, measured: 0, repeated: 0 }
    }

    /// Waits until the processors are free, and measures. Measures again if they were not free afterwards. The last result counts in any
    /// case.
    pub fn measure<R>(&mut self, mut measure: impl FnMut() -> R) -> R {
        self.measured += 1;
        for _ in 1..TRIES {
            let start = Instant::now();
            while !self.is_free() && start.elapsed() < PATIENCE {
                sleep(Duration::from_millis(50));
            }
            let result = measure();
            if self.is_free() {
                return result;
            }
            self.repeated += 1;
        }
        measure()
    }

    fn is_free(&mut self) -> bool {
        // One slow piece of work can be an accident of this process.
        let now = (0..3).map(|_| (self.work)()).min().unwrap_or_default();
        self.best = self.best.min(now);
        now.as_secs_f64() <= self.best.as_secs_f64() * TOLERANCE
    }
}

impl Default for Steady {
    fn default() -> Self {
        Self::new()
    }
}

/// Does a fixed piece of work on all processors at once, and returns the time that the slowest of them took.
fn work() -> Duration {
    const STEPS: u64 = 1_000_000;
    let processors = available_parallelism().map_or(1, usize::from);
    scope(|scope| {
        let one = || {
            let start = Instant::now();
            black_box((0..black_box(STEPS)).fold(1_u64, |state, step| (state ^ step).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            start.elapsed()
        };
        let others: Vec<_> = (1..processors).map(|_| scope.spawn(one)).collect();
        let own = one();
        others.into_iter().filter_map(|other| other.join().ok()).fold(own, Duration::max)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_repeated_if_the_processors_were_not_free() {
        use std::cell::Cell;
        use std::rc::Rc;
        // How many of the next pieces of work take longer.
        let slow = Rc::new(Cell::new(0));
        let mut steady = Steady::by({
            let slow = Rc::clone(&slow);
            move || {
                let left = slow.get();
                slow.set(left.max(1) - 1);
                Duration::from_millis(if left > 0 { 120 } else { 100 })
            }
        });
        // Other work begins during the first and the second measurement.
        let mut begins = [5, 3, 0].into_iter();
        let mut calls = 0;
        let result = steady.measure(|| {
            calls += 1;
            slow.set(begins.next().unwrap_or(0));
            calls
        });
        assert_eq!((result, steady.measured, steady.repeated), (3, 1, 2));
    }
}
