//! FIXED: a window that grants `limit` units. It starts with its first call, or at a multiple of the period; or its callers state
//! when it ends.
//!
//! The window is a [`Meter`] whose capacity is the limit and which drains by the limit at each window's end. So a level
//! above the limit (a debt) is paid by the next windows, `limit` units by each. After that, the next call starts a new
//! window.

use super::meter::{Drain, Meter, View};
use super::{Fact, Inspection, Kind, OptionSpec, OptionValue, PolicyOption, Quota, Spec, MAX_UNITS, MIN_RECORD};

pub(super) const SPEC: Spec = Spec {
    name: "FIXED",
    tag: 1,
    max_limit: MAX_UNITS,
    options: &[
        OptionSpec { keyword: "ALIGN", value: OptionValue::Offset(PolicyOption::Align) },
        OptionSpec { keyword: "UNTIL", value: OptionValue::Time(PolicyOption::Until) },
    ],
    options_exclude: true,
    min_len: MIN_RECORD,
    // A window starts with a grant, at the moment of the grant.
    charges_when_due: false,
    period: "period",
    holds: false,
    takes_moment: true,
};

pub(super) const fn meter(quota: Quota) -> Meter {
    Meter::new(Kind::Fixed, quota, Drain::Windows)
}

/// Adds the facts that only FIXED shows.
pub(super) fn inspect(view: &View<'_>, inspection: &mut Inspection) {
    let ms =
        |instant: Option<_>| instant.map_or(Fact::Nothing, |instant: super::Instant| Fact::Number(instant.as_ms_ceil()));
    let (start, end) = view.step().unzip();
    inspection.extend([("window_start_ms", ms(start)), ("window_end_ms", ms(end))]);
}
