//! The algorithms, and what is a constant of each.

use super::OptionSpec;

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fixed window.
    Fixed,
    /// Sliding window.
    Slide,
    /// Generic cell rate algorithm.
    Gcra,
    /// Token bucket.
    Bucket,
    /// Lease: units that are held until they are released, or until a time to live passes.
    Lease,
}

/// The constants of an algorithm.
pub struct Spec {
    /// The name in commands and messages, in capitals.
    pub name: &'static str,
    /// The algorithm's number in records.
    pub tag: u8,
    /// The highest limit, in units.
    pub max_limit: u64,
    /// The options.
    pub options: &'static [OptionSpec],
    /// Whether a policy can have only one of the options.
    pub options_exclude: bool,
    /// The length of the shortest value that the algorithm reads, in bytes.
    pub min_len: usize,
    /// See [`Policy::charges_when_due`](super::Policy::charges_when_due).
    pub charges_when_due: bool,
    /// What commands and messages call the period.
    pub period: &'static str,
    /// Whether a call holds its units until they are released, or until their time to live ends. If so, each call has an id, with
    /// which the units can also be renewed. The call takes all of its units or none, and books none ahead.
    pub holds: bool,
    /// Whether an option can state the moment at which the window ends. Such a moment is checked with
    /// [`Policy::is_too_far_ahead`](super::Policy::is_too_far_ahead).
    pub takes_moment: bool,
}
