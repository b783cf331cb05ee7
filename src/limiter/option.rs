//! The options of the algorithms, as data: the grammar and `COMMAND DOCS` read them from one table.

use super::Instant;

/// An option of a policy, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOption {
    /// FIXED: windows begin at each multiple of the period since the Unix epoch, shifted by this many microseconds.
    Align(i64),
    /// FIXED: the window ends at this moment.
    Until(Instant),
    /// SLIDE: ticks in a period.
    Segments(u64),
    /// GCRA: units that may come at once.
    Burst(u64),
    /// BUCKET: tokens that the bucket holds.
    Capacity(u64),
    /// BUCKET: a period's tokens arrive all at once, at its end.
    Step,
    /// All but LEASE: the policy also reads the records of other algorithms. See [`Policy::carried`](super::Policy::carried).
    CarriesOver,
}

/// The syntax of an option.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The keyword, in capitals.
    pub keyword: &'static str,
    /// The value after the keyword.
    pub value: OptionValue,
}

/// The value after the keyword of an option.
#[derive(Clone, Copy, Debug)]
pub enum OptionValue {
    /// Nothing: the keyword alone sets the option.
    Flag(PolicyOption),
    /// A whole number from `min` to `max`.
    Count {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
        /// Makes the option from the number.
        option: fn(u64) -> PolicyOption,
    },
    /// A signed duration in microseconds, whose absolute value is less than the period.
    Offset(fn(i64) -> PolicyOption),
    /// A moment, in seconds since the Unix epoch.
    Time(fn(Instant) -> PolicyOption),
}
