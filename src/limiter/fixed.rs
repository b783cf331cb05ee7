//! FIXED: a window that starts with its first call, or on a grid, and grants `limit` units.
//!
//! The window is a [`Meter`] whose capacity is the limit and which drains by it at each window's end. So a count above the
//! limit (a debt) is paid from the next windows, a limit each, and only then does a new window start with its first call.

use super::meter::{self, Drain, Form, Meter};
use super::{
    Algorithm, Fact, Foreign, Instant, Kind, Quota, Refusal, Report, Request, Room, Setting, SettingValue, Standing,
    Verdict, MAX_UNITS,
};

/// Fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    quota: Quota,
    /// Windows begin at each multiple of the period since the Unix epoch, shifted by so many microseconds.
    align: Option<i64>,
}

const FORM: Form = Form { kind: Kind::Fixed, drains: &[Drain::Windows] };

impl Fixed {
    fn meter(&self) -> Meter {
        Meter { align: self.align, ..Meter::new(self.quota, self.quota.limit(), Drain::Windows) }
    }
}

impl Algorithm for Fixed {
    const KIND: Kind = Kind::Fixed;
    const NAME: &'static str = "FIXED";
    const TAG: u8 = 1;
    const MAX_LIMIT: u64 = MAX_UNITS;
    const SETTINGS: &'static [Setting] = &[Setting { keyword: "ALIGN", value: SettingValue::Offset }];
    /// A window starts with a grant, at that moment.
    const CHARGED_WHEN_DUE: bool = false;

    fn new(quota: Quota) -> Self {
        Self { quota, align: None }
    }

    fn set(&mut self, _: usize, value: i64) {
        self.align = Some(value);
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
        let start = sight.step.map_or(Fact::Nothing, |_| Fact::Number(sight.at.as_ms_ceil()));
        report.push(("window_start_ms", start));
        report.push(("window_end_ms", sight.step.map_or(Fact::Nothing, |end| Fact::Number(end.as_ms_ceil()))));
        Ok(report)
    }
}
