//! What a settlement does, and why an id cannot be settled: see [`settle`](super::settle()).

use super::record::RecordError;
use super::{Change, Decision, Kind, Overflow};

/// What [`settle`](super::settle()) does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The algorithm.
    pub kind: Kind,
    /// `granted` is how many units the charge is now. The other fields show the state afterwards, under the policy of
    /// the record.
    pub decision: Decision,
    /// The change of the value.
    pub change: Change,
}

/// Why an id cannot be settled. The key is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleError {
    /// The value is not a limiter's record.
    Record(RecordError),
    /// The next state would not fit a record.
    Overflow,
    /// The id names a lease. It can be released, but it cannot be settled to units.
    Lease,
}

impl From<RecordError> for SettleError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<Overflow> for SettleError {
    fn from(_: Overflow) -> Self {
        Self::Overflow
    }
}
