//! The options of the algorithms, as data: the grammar and `COMMAND DOCS` read them from one table.

/// An option of a policy, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOption {
    /// FIXED: windows begin at each multiple of the period since the Unix epoch, shifted by so many microseconds.
    Align(i64),
    /// SLIDE: ticks in a period.
    Segments(u64),
    /// GCRA: units that may come at once.
    Burst(u64),
    /// BUCKET: tokens that the bucket holds.
    Capacity(u64),
    /// BUCKET: a period's tokens arrive all at once, at its end.
    Step,
}

/// How an option is written.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The keyword, in capitals.
    pub keyword: &'static str,
    /// What follows the keyword.
    pub value: OptionValue,
}

/// What follows the keyword of an option.
#[derive(Clone, Copy, Debug)]
pub enum OptionValue {
    /// Nothing: the keyword alone sets the option.
    Flag(PolicyOption),
    /// A whole number of this range, both ends included.
    Count {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
        /// The option with such a value.
        option: fn(u64) -> PolicyOption,
    },
    /// A signed duration, in size less than the period, in microseconds.
    Offset(fn(i64) -> PolicyOption),
}
