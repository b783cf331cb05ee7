//! The layout of records of version 2. It differs from the present one in three points:
//!
//! * The header has 72 bytes. It does not hold [`Header::indexed`](super::Header) and `grains_per_unit`, and its fourth byte is 0.
//! * An aggregate has 16 bytes: for charges the sum of the weights, for leases the first and the last deadline.
//! * The weights are in grains of the policy in the inner record.

use super::{weight, word, Aggregate};
use crate::limiter::Kind;

/// The length of the header, in bytes.
pub(super) const LEDGER_HEADER: usize = 72;
/// The length of an aggregate, in bytes.
pub(super) const AGGREGATE: usize = 16;

/// Reads an aggregate of `record` from the front of `bytes`. The moments of charges are not known: they get the widest bounds.
pub(super) fn aggregate(record: &[u8], bytes: &[u8]) -> Aggregate {
    if record.get(2) == Some(&Kind::Lease.spec().tag) {
        Aggregate { weights: 0, first: word(bytes, 0) as i64, last: word(bytes, 8) as i64 }
    } else {
        Aggregate { weights: weight(bytes, 0), first: i64::MIN, last: i64::MAX }
    }
}
