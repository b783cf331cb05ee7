//! GCRA, the generic cell rate algorithm: units one emission interval apart, and a burst of them at once.
//!
//! ITU-T I.371 annex A; the [`Meter`] is its continuous-state leaky bucket, and tells why.

use super::meter::{self, Drain, Form, Meter};
use super::{
    Algorithm, Fact, Foreign, Instant, Kind, Quota, Refusal, Report, Request, Room, Setting, SettingValue, Standing,
    Verdict, MAX_UNITS,
};

/// Generic cell rate algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    quota: Quota,
    /// Units that may come at once, at least 1.
    burst: u64,
}

const FORM: Form = Form { kind: Kind::Gcra, drains: &[Drain::Smooth] };

impl Gcra {
    fn meter(&self) -> Meter {
        Meter::new(self.quota, self.burst, Drain::Smooth)
    }
}

impl Algorithm for Gcra {
    const KIND: Kind = Kind::Gcra;
    const NAME: &'static str = "GCRA";
    const TAG: u8 = 3;
    const MAX_LIMIT: u64 = MAX_UNITS;
    const SETTINGS: &'static [Setting] = &[Setting { keyword: "BURST", value: SettingValue::Count(1, MAX_UNITS) }];
    const CHARGED_WHEN_DUE: bool = true;

    fn new(quota: Quota) -> Self {
        Self { quota, burst: quota.limit() }
    }

    fn set(&mut self, _: usize, value: i64) {
        self.burst = value.unsigned_abs();
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
        report.push(("burst", Fact::units(sight.meter.capacity)));
        report.push(("tat_ms", Fact::Number(sight.drained.as_ms_ceil())));
        Ok(report)
    }
}
