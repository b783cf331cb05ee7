//! GCRA, the generic cell rate algorithm: units one emission interval apart, and a burst of them at once.
//!
//! The algorithm is that of ITU-T I.371, annex A. The [`Meter`] is the continuous-state leaky bucket of that annex; `meter/mod.rs`
//! says why. Besides its own records, GCRA reads the values that redis-cell stored, so that a key of that module keeps its state.

use super::inspection::ids_facts;
use super::meter::{Drain, Meter, Record};
use super::record::{tat_ns, TAT_DIGITS};
use super::{Fact, Inspection, Instant, Kind, OptionSpec, OptionValue, PolicyOption, Quota, Spec, MAX_UNITS};

pub(super) const SPEC: Spec = Spec {
    name: "GCRA",
    tag: 3,
    max_limit: MAX_UNITS,
    options: &[OptionSpec {
        keyword: "BURST",
        value: OptionValue::Count { min: 1, max: MAX_UNITS, option: PolicyOption::Burst },
    }],
    options_exclude: false,
    // The values that redis-cell stored are shorter than a record.
    min_len: TAT_DIGITS,
    charges_when_due: true,
    period: "period",
    holds: false,
    takes_moment: false,
};

pub(super) const fn meter(quota: Quota) -> Meter {
    Meter::new(Kind::Gcra, quota, Drain::Smooth)
}

/// Adds the facts that only GCRA shows.
pub(super) fn inspect(record: &Record<'_>, inspection: &mut Inspection) {
    let tat_ms = record.drained_at().as_ms_ceil();
    inspection.extend([("burst", Fact::count(record.meter.capacity)), ("tat_ms", Fact::Number(tat_ms))]);
}

/// When all usage has drained, by a theoretical arrival time that redis-cell stored; `None` if `stored` is not such a time.
pub(super) fn redis_cell_ends(stored: &[u8]) -> Option<Instant> {
    let tat_ns = tat_ns(stored)?;
    Some(Instant::from_us(tat_ns.div_euclid(1_000) + i64::from(tat_ns % 1_000 != 0)))
}

/// The facts in a theoretical arrival time that redis-cell stored; `None` if `stored` is not such a time. redis-cell does not store
/// the policy, so most facts are unknown.
pub(super) fn inspect_redis_cell(stored: &[u8], now: Instant) -> Option<Inspection> {
    let tat = redis_cell_ends(stored)?;
    let unknown = |name| (name, Fact::Nothing);
    let mut inspection = vec![
        ("algorithm", Fact::Word(SPEC.name)),
        unknown("limit"),
        unknown("period_ms"),
        unknown("used"),
        unknown("remaining"),
        ("reset_ms", Fact::count(tat.since(now).as_ms_ceil())),
        unknown("debt"),
        unknown("burst"),
        ("tat_ms", Fact::Number(tat.as_ms_ceil())),
    ];
    inspection.extend(ids_facts((0, 0)));
    Some(inspection)
}
