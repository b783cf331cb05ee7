//! The moments that the nodes' clocks show.

/// The clocks show multiples of this number of microseconds only, as `tests/support/clock.c` makes them: so few moments are tried for a
/// call. It is odd, so that all digits of a time vary.
pub const STEP_US: i64 = 97;

/// Every moment in a range, in order.
pub fn moments([from_us, to_us]: [i64; 2]) -> impl DoubleEndedIterator<Item = i64> + Clone {
    let first = from_us.div_euclid(STEP_US) + i64::from(from_us.rem_euclid(STEP_US) > 0);
    (first..=to_us.div_euclid(STEP_US)).map(|step| step * STEP_US)
}
