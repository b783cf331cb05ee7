//! BUCKET: tokens flow in, `limit` per period, up to a capacity; a call takes them out.
//!
//! The [`Meter`] counts what is missing from a full bucket.

use super::meter::{self, Drain, Form, Meter};
use super::{
    Algorithm, Fact, Foreign, Instant, Kind, Quota, Refusal, Report, Request, Room, Setting, SettingValue, Standing,
    Verdict, MAX_UNITS,
};

/// Token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    quota: Quota,
    /// Tokens that it holds, at least 1.
    capacity: u64,
    /// Whether a period's tokens arrive all at once, at its end.
    step: bool,
}

const FORM: Form = Form { kind: Kind::Bucket, drains: &[Drain::Smooth, Drain::Steps] };
/// The indices of the settings.
const CAPACITY: usize = 0;

impl Bucket {
    fn meter(&self) -> Meter {
        Meter::new(self.quota, self.capacity, if self.step { Drain::Steps } else { Drain::Smooth })
    }
}

impl Algorithm for Bucket {
    const KIND: Kind = Kind::Bucket;
    const NAME: &'static str = "BUCKET";
    const TAG: u8 = 4;
    const MAX_LIMIT: u64 = MAX_UNITS;
    const SETTINGS: &'static [Setting] = &[
        Setting { keyword: "CAPACITY", value: SettingValue::Count(1, MAX_UNITS) },
        Setting { keyword: "STEP", value: SettingValue::Flag },
    ];
    const CHARGED_WHEN_DUE: bool = true;

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

    #[inline(always)]
    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request, into: Room<'_>) -> Result<Verdict, Refusal> {
        self.meter().decide(FORM, stored, now, request, into)
    }

    fn wrote(&self, stored: &[u8]) -> bool {
        self.meter().wrote(FORM, stored)
    }

    fn standing(&self, stored: Option<&[u8]>, now: Instant) -> Result<Standing, Foreign> {
        self.meter().standing(FORM, stored, now)
    }

    fn inspect(stored: &[u8], now: Instant) -> Result<Report, Foreign> {
        let sight = meter::sight(stored, FORM, now)?;
        let mut report = sight.report(FORM);
        let tokens = i128::from(sight.meter.capacity) - i128::try_from(sight.used).unwrap_or(i128::MAX);
        report.push(("capacity", Fact::units(sight.meter.capacity)));
        report.push(("tokens", Fact::units(tokens)));
        report.push(("step", Fact::Word(if sight.meter.drain == Drain::Steps { "yes" } else { "no" })));
        report.push(("next_step_ms", sight.step.map_or(Fact::Nothing, |step| Fact::Number(step.as_ms_ceil()))));
        Ok(report)
    }
}
