//! What can be configured, as `rl.<name>`.

use super::grammar::MAX_TOP;
use crate::server::{NumberParameter, Parameter, WordsParameter, SHORTCUTS};

/// Every setting that the server learns of.
pub(crate) static SETTINGS: &[Parameter] = &[
    Parameter::Words(&COMPAT),
    Parameter::Number(&TOP_KEYS),
    Parameter::Number(&TOP_HALF_LIFE),
    Parameter::Words(&SHORTCUTS),
];

/// The bit of `CL.THROTTLE` in [`COMPAT`].
pub(crate) const CL_THROTTLE: i32 = 1;
/// The bit of `GCRA` in [`COMPAT`].
pub(crate) const GCRA: i32 = 2;

/// The commands of others that the module offers.
pub(crate) static COMPAT: WordsParameter =
    WordsParameter::any_of(c"compat", &[(c"none", 0), (c"cl.throttle", CL_THROTTLE), (c"gcra", GCRA)], CL_THROTTLE);

/// How many keys `RL.TOP` keeps count of; 0: it is off.
pub(super) static TOP_KEYS: NumberParameter = NumberParameter::new(c"top-keys", 128, 0..=MAX_TOP as i64);

/// After so many seconds a denial counts half in `RL.TOP`.
pub(super) static TOP_HALF_LIFE: NumberParameter = NumberParameter::new(c"top-half-life", 60, 1..=86_400);
