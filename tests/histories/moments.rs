//! The moments that the nodes' wall clocks show.

/// The clocks go on in steps of about so many microseconds: so few moments are tried for a call.
pub const STEP_US: i64 = 100;

/// The moment of a step. `tests/support/clock.c` has the same function.
const fn moment(step: i64) -> i64 {
    let mixed = (step as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    step * STEP_US + mixed as i64 % STEP_US
}

/// Every moment in a range, in order.
pub fn moments([from_us, to_us]: [i64; 2]) -> impl DoubleEndedIterator<Item = i64> {
    (from_us.div_euclid(STEP_US)..=to_us.div_euclid(STEP_US))
        .map(moment)
        .filter(move |moment| (from_us..=to_us).contains(moment))
}
