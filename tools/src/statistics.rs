//! Medians and quartiles.

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
