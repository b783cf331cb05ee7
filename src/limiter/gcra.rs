//! GCRA, the generic cell rate algorithm: units one emission interval apart, and a burst of them at once.
//!
//! ITU-T I.371 annex A; the [`Meter`] is its continuous-state leaky bucket, and tells why. Besides its own records it reads
//! what redis-cell stored, so that a key of that module goes on counting.

use super::meter::{self, Drain, Form, Meter};
use super::record;
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

    /// What a theoretical arrival time tells without the policy, which redis-cell does not store.
    fn arrival(tat: Instant, now: Instant) -> Report {
        let unknown = |name| (name, Fact::Nothing);
        vec![
            ("algorithm", Fact::Word(Self::NAME)),
            unknown("limit"),
            unknown("period_ms"),
            unknown("used"),
            unknown("remaining"),
            ("reset_ms", Fact::units(tat.since(now).as_ms_ceil())),
            unknown("debt"),
            unknown("burst"),
            ("tat_ms", Fact::Number(tat.as_ms_ceil())),
        ]
    }
}

impl Algorithm for Gcra {
    const KIND: Kind = Kind::Gcra;
    const NAME: &'static str = "GCRA";
    const TAG: u8 = 3;
    const MAX_LIMIT: u64 = MAX_UNITS;
    const SETTINGS: &'static [Setting] = &[Setting { keyword: "BURST", value: SettingValue::Count(1, MAX_UNITS) }];
    /// What redis-cell stored is shorter than a record.
    const MIN_LEN: usize = record::TAT_DIGITS;
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
        if let Some(tat_ns) = record::tat_ns(stored) {
            return Ok(Self::arrival(Instant::from_us(tat_ns.div_euclid(1_000) + i64::from(tat_ns % 1_000 != 0)), now));
        }
        let sight = meter::sight(stored, FORM, now)?;
        let mut report = sight.report(FORM);
        report.push(("burst", Fact::units(sight.meter.capacity)));
        report.push(("tat_ms", Fact::Number(sight.drained.as_ms_ceil())));
        Ok(report)
    }
}
