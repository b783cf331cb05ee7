//! BUCKET: tokens flow in, `limit` per period, up to a capacity; a call takes them out.
//!
//! The [`Meter`] counts what is missing from a full bucket.

use super::meter::{self, Drain, Meter};
use super::{Algorithm, Foreign, Instant, Kind, Outcome, Quota, Refusal, Request, Setting, SettingValue, MAX_UNITS};

/// Token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    quota: Quota,
    /// Tokens that it holds, at least 1.
    capacity: u64,
    /// Whether a period's tokens arrive all at once, at its end.
    step: bool,
}

const DRAINS: &[Drain] = &[Drain::Smooth, Drain::Steps];
/// The indices of the settings.
const CAPACITY: usize = 0;

impl Algorithm for Bucket {
    const KIND: Kind = Kind::Bucket;
    const NAME: &'static str = "BUCKET";
    const TAG: u8 = 4;
    const MAX_LIMIT: u64 = MAX_UNITS;
    const SETTINGS: &'static [Setting] = &[
        Setting { keyword: "CAPACITY", value: SettingValue::Count(1, MAX_UNITS) },
        Setting { keyword: "STEP", value: SettingValue::Flag },
    ];

    fn new(quota: Quota) -> Self {
        Self { quota, capacity: quota.limit(), step: false }
    }

    fn set(&mut self, index: usize, value: i64) {
        if index == CAPACITY {
            self.capacity = value.unsigned_abs();
        } else {
            self.step = true;
        }
    }

    fn quota(&self) -> Quota {
        self.quota
    }

    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Outcome, Refusal> {
        let drain = if self.step { Drain::Steps } else { Drain::Smooth };
        Meter::new(self.quota, self.capacity, drain).decide((Self::TAG, DRAINS), stored, now, request)
    }

    fn check(stored: &[u8]) -> Result<(), Foreign> {
        meter::check(stored, Self::TAG, DRAINS)
    }
}
