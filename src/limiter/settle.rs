//! Settles what an id holds: a charge becomes what it really cost, a lease ends.

use super::record::{self, tat_ns, RecordError};
use super::{lease, meter, slide, Bytes, Change, Decision, Id, Instant, Kind, Overflow};

/// What [`settle`] does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The algorithm.
    pub kind: Kind,
    /// `granted` is the units that the charge was settled to. The other fields show the state afterwards, under the policy of
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

/// Settles the charge with this id to `units`, and forgets the id. If `units` are fewer than were charged, the key is then as
/// if the charge had taken only them. If they are more, the difference is taken now, as
/// [`Amount::Force`](super::Amount::Force) does. A lease can only be settled to 0 units, which ends it. `None`: the key does
/// not remember the id, and stays as it is.
///
/// # Errors
/// See [`SettleError`].
pub fn settle(
    stored: &[u8],
    now: Instant,
    id: Id<'_>,
    units: u64,
    bytes: &mut Bytes,
) -> Result<Option<Settlement>, SettleError> {
    match record::kind(stored) {
        Ok(Kind::Slide) => Ok(slide::View::of_record(stored, now)?.settle(id, units, bytes)?),
        Ok(Kind::Lease) => lease::View::of_record(stored, now)?.settle(id, units, bytes),
        Ok(kind) => {
            let record = meter::Record::decode_any(stored, kind)?;
            Ok(meter::View::of_record(&record, now).settle(id, units, bytes)?)
        }
        // A value of redis-cell is a limiter without ids.
        Err(_) if tat_ns(stored).is_some() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
