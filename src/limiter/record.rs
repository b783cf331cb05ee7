//! The part that all records share: the first three bytes, and the encoding of numbers of any width.
//!
//! | byte | what it is |
//! |---|---|
//! | 0 | [`MAGIC`]: no UTF-8 text begins with this byte |
//! | 1 | [`VERSION`] of the format |
//! | 2 | low three bits: the algorithm's number; other bits: defined by the algorithm |
//! | 3.. | the algorithm's fields, little-endian |

use super::Kind;

/// The first byte of every record.
pub(super) const MAGIC: u8 = 0xfa;
/// The version of the format.
pub(super) const VERSION: u8 = 1;
/// The version of records with ids: see [`ledger`](super::ledger).
pub(super) const IDS: u8 = 3;
/// The version that records with ids had before.
pub(super) const OLD_IDS: u8 = 2;
/// The version of values with a pause: see [`pause`](super::pause).
pub(super) const PAUSED: u8 = 4;
/// The bits of the third byte that hold the algorithm's number.
pub(super) const TAG_BITS: u8 = 0b111;

/// The digits of a theoretical arrival time of redis-cell. redis-cell stores this time as the whole value of a key, as a decimal
/// number of nanoseconds since the Unix epoch. From 2001 until the end of its range in 2262, this number has 19 digits. A number of
/// another length is not taken for such a time.
pub(super) const TAT_DIGITS: usize = 19;

/// Parses a theoretical arrival time that redis-cell stored, in nanoseconds since the Unix epoch.
pub(super) fn tat_ns(bytes: &[u8]) -> Option<i64> {
    let number = bytes.len() == TAT_DIGITS && bytes[0] != b'0' && bytes.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(bytes).ok().filter(|_| number)?.parse().ok()
}

/// Why a value is not a record of the wanted algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// It is another algorithm's record.
    OtherAlgorithm(Kind),
    /// It is a record in a format that this version of the module does not read.
    Version(u8),
    /// It is a string that no limiter wrote.
    Unknown,
}

/// The algorithm that wrote a record.
pub(super) fn kind(bytes: &[u8]) -> Result<Kind, RecordError> {
    match *bytes {
        [MAGIC, VERSION, head, ..] => {
            kind_of(head & TAG_BITS).filter(|&kind| kind != Kind::Lease).ok_or(RecordError::Unknown)
        }
        [MAGIC, IDS | OLD_IDS, ..] => kind_with_ids(bytes),
        [MAGIC, version, _, ..] => Err(RecordError::Version(version)),
        _ => Err(RecordError::Unknown),
    }
}

/// The algorithm that wrote a record with ids.
pub(super) fn kind_with_ids(bytes: &[u8]) -> Result<Kind, RecordError> {
    match *bytes {
        [MAGIC, IDS, tag, 0 | 1, ..] | [MAGIC, OLD_IDS, tag, 0, ..] => kind_of(tag).ok_or(RecordError::Unknown),
        [MAGIC, VERSION | IDS | OLD_IDS, ..] => Err(RecordError::Unknown),
        _ => kind(bytes).and(Err(RecordError::Unknown)),
    }
}

/// The algorithm with this number.
fn kind_of(tag: u8) -> Option<Kind> {
    Kind::ALL.iter().copied().find(|kind| kind.spec().tag == tag)
}

/// Splits a record of `wanted` into the third byte's upper bits and the fields.
#[inline(always)]
pub(super) fn open(bytes: &[u8], wanted: Kind) -> Result<(u8, &[u8]), RecordError> {
    match *bytes {
        [MAGIC, VERSION, head, ref fields @ ..] if head & TAG_BITS == wanted.spec().tag => Ok((head & !TAG_BITS, fields)),
        _ => Err(not_of_the_wanted_algorithm(bytes)),
    }
}

#[cold]
fn not_of_the_wanted_algorithm(bytes: &[u8]) -> RecordError {
    kind(bytes).map_or_else(|error| error, RecordError::OtherAlgorithm)
}

/// Splits an unsigned number of `width` bytes, at most 16, off the front of `fields`; 0 if there are fewer bytes.
#[inline(always)]
pub(super) fn take(fields: &mut &[u8], width: usize) -> u128 {
    let Some((number, rest)) = fields.split_at_checked(width) else { return 0 };
    // If eight bytes are left, one load reads them all. If a number is first copied to memory byte by byte, and then loaded as a
    // whole, the load stalls the processor.
    let taken = match fields.first_chunk() {
        Some(&eight) if width <= 8 => (u64::from_le_bytes(eight) & (u64::MAX >> (64 - 8 * width.clamp(1, 8)))).into(),
        _ => number.iter().rev().fold(0, |number, &byte| number << 8 | u128::from(byte)),
    };
    *fields = rest;
    if width == 0 {
        0
    } else {
        taken
    }
}

/// Whether `number` fits in `width` bytes, at most 16.
#[inline(always)]
pub(super) fn fits(number: u128, width: usize) -> bool {
    width == 16 || number >> (8 * width) == 0
}
