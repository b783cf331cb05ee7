//! FIXED: a window that starts with its first call, or on a grid, and grants `limit` units.
//!
//! The window is a [`Meter`] whose capacity is the limit and which drains by it at each window's end. So a count above the
//! limit (a debt) is paid from the next windows, a limit each, and only then does a new window start with its first call.

use super::meter::{self, Drain, Meter};
use super::{Algorithm, Foreign, Instant, Kind, Outcome, Quota, Refusal, Request, Setting, SettingValue, MAX_UNITS};

/// Fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    quota: Quota,
    /// Windows begin at each multiple of the period since the Unix epoch, shifted by so many microseconds.
    align: Option<i64>,
}

const DRAINS: &[Drain] = &[Drain::Windows];

impl Algorithm for Fixed {
    const KIND: Kind = Kind::Fixed;
    const NAME: &'static str = "FIXED";
    const TAG: u8 = 1;
    const MAX_LIMIT: u64 = MAX_UNITS;
    const SETTINGS: &'static [Setting] = &[Setting { keyword: "ALIGN", value: SettingValue::Offset }];

    fn new(quota: Quota) -> Self {
        Self { quota, align: None }
    }

    fn set(&mut self, _: usize, value: i64) {
        self.align = Some(value);
    }

    fn quota(&self) -> Quota {
        self.quota
    }

    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Outcome, Refusal> {
        let windows = Meter { align: self.align, ..Meter::new(self.quota, self.quota.limit(), Drain::Windows) };
        windows.decide((Self::TAG, DRAINS), stored, now, request)
    }

    fn check(stored: &[u8]) -> Result<(), Foreign> {
        meter::check(stored, Self::TAG, DRAINS)
    }
}
