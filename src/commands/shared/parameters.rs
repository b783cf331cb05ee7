//! The configuration parameters, `rl.<name>`.

use crate::server::{NumberParameter, Parameter, WordsParameter, SHORTCUTS};

/// All parameters.
pub static PARAMETERS: &[Parameter] = &[
    Parameter::Words(&COMPAT),
    Parameter::Number(&MAX_WAITERS),
    Parameter::Number(&TOP_KEYS),
    Parameter::Number(&TOP_HALF_LIFE),
    Parameter::Words(&SHORTCUTS),
];

/// The bit of `CL.THROTTLE` in [`COMPAT`].
pub const CL_THROTTLE: i32 = 1;
/// The bit of `GCRA` in [`COMPAT`].
pub const GCRA: i32 = 2;

/// The commands of other rate limiters that the module provides.
pub static COMPAT: WordsParameter =
    WordsParameter::any_of(c"compat", &[(c"none", 0), (c"cl.throttle", CL_THROTTLE), (c"gcra", GCRA)], CL_THROTTLE);

/// How many clients may wait at the same time; 0: any number.
pub static MAX_WAITERS: NumberParameter = NumberParameter::new(c"max-waiters", 0, 0..=1_000_000);

/// The most keys that `RL.TOP` can count.
pub const MAX_TOP_KEYS: u64 = 1024;

/// How many keys `RL.TOP` counts; 0 switches the counting off.
pub static TOP_KEYS: NumberParameter = NumberParameter::new(c"top-keys", 128, 0..=MAX_TOP_KEYS as i64);

/// The half-life of the counts in `RL.TOP`, in seconds.
pub static TOP_HALF_LIFE: NumberParameter = NumberParameter::new(c"top-half-life", 60, 1..=86_400);
