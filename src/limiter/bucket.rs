//! BUCKET: tokens flow in, `limit` per period, up to a capacity; a call takes them out.
//!
//! The [`Meter`] counts the tokens that a full bucket lacks.

use super::meter::{Drain, Meter, View};
use super::{Fact, Inspection, Kind, OptionSpec, OptionValue, PolicyOption, Quota, Spec, MAX_UNITS, MIN_RECORD};

pub(super) const SPEC: Spec = Spec {
    name: "BUCKET",
    tag: 4,
    max_limit: MAX_UNITS,
    options: &[
        OptionSpec {
            keyword: "CAPACITY",
            value: OptionValue::Count { min: 1, max: MAX_UNITS, option: PolicyOption::Capacity },
        },
        OptionSpec { keyword: "STEP", value: OptionValue::Flag(PolicyOption::Step) },
    ],
    options_exclude: false,
    min_len: MIN_RECORD,
    charges_when_due: true,
    period: "period",
    holds: false,
    takes_moment: false,
};

pub(super) const fn meter(quota: Quota) -> Meter {
    Meter::new(Kind::Bucket, quota, Drain::Smooth)
}

/// Adds the facts that only BUCKET shows.
pub(super) fn inspect(view: &View<'_>, inspection: &mut Inspection) {
    let meter = view.meter;
    let tokens = i128::from(meter.capacity) - i128::try_from(view.used_units()).unwrap_or(i128::MAX);
    let next_step = view.step().map_or(Fact::Nothing, |(_, end)| Fact::Number(end.as_ms_ceil()));
    inspection.extend([
        ("capacity", Fact::count(meter.capacity)),
        ("tokens", Fact::count(tokens)),
        ("step", Fact::Word(if meter.drain == Drain::Steps { "yes" } else { "no" })),
        ("next_step_ms", next_step),
    ]);
}
