//! GCRA, the generic cell rate algorithm: units one emission interval apart, and a burst of them at once.
//!
//! ITU-T I.371 annex A; the [`Meter`] is its continuous-state leaky bucket, and tells why.

use super::meter::{self, Drain, Meter};
use super::{Algorithm, Foreign, Instant, Kind, Outcome, Quota, Refusal, Request, Setting, SettingValue, MAX_UNITS};

/// Generic cell rate algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    quota: Quota,
    /// Units that may come at once, at least 1.
    burst: u64,
}

const DRAINS: &[Drain] = &[Drain::Smooth];

impl Algorithm for Gcra {
    const KIND: Kind = Kind::Gcra;
    const NAME: &'static str = "GCRA";
    const TAG: u8 = 3;
    const MAX_LIMIT: u64 = MAX_UNITS;
    const SETTINGS: &'static [Setting] = &[Setting { keyword: "BURST", value: SettingValue::Count(1, MAX_UNITS) }];

    fn new(quota: Quota) -> Self {
        Self { quota, burst: quota.limit() }
    }

    fn set(&mut self, _: usize, value: i64) {
        self.burst = value.unsigned_abs();
    }

    fn quota(&self) -> Quota {
        self.quota
    }

    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Outcome, Refusal> {
        Meter::new(self.quota, self.burst, Drain::Smooth).decide((Self::TAG, DRAINS), stored, now, request)
    }

    fn check(stored: &[u8]) -> Result<(), Foreign> {
        meter::check(stored, Self::TAG, DRAINS)
    }
}
