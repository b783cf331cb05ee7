//! What all records share: the first three bytes, and how numbers of any width are read.
//!
//! | byte | what it is |
//! |---|---|
//! | 0 | [`MAGIC`]: no text begins with it, since it is not UTF-8 |
//! | 1 | [`VERSION`] of the format |
//! | 2 | the algorithm's number in the low three bits; the others are the algorithm's own |
//! | 3.. | its fields, little-endian |

use super::Kind;

/// The first byte of every record.
pub(super) const MAGIC: u8 = 0xfa;
/// The version of the format.
pub(super) const VERSION: u8 = 1;
/// The bits of the third byte that number the algorithm.
pub(super) const TAG_BITS: u8 = 0b111;

/// redis-cell stores a theoretical arrival time as the whole value of a key, in nanoseconds since the Unix epoch. That number has
/// so many digits from 2001 until its range ends in 2262. A shorter number is no such time.
pub(super) const TAT_DIGITS: usize = 19;

/// A theoretical arrival time that redis-cell stored, in nanoseconds since the Unix epoch.
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

/// The algorithm that the first bytes name.
pub(super) fn kind(bytes: &[u8]) -> Result<Kind, RecordError> {
    match *bytes {
        [MAGIC, VERSION, head, ..] => {
            Kind::ALL.iter().copied().find(|kind| kind.spec().tag == head & TAG_BITS).ok_or(RecordError::Unknown)
        }
        [MAGIC, version, _, ..] => Err(RecordError::Version(version)),
        _ => Err(RecordError::Unknown),
    }
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

/// Takes an unsigned number of `width` bytes, at most 16, off the front; 0 if there are fewer bytes.
#[inline(always)]
pub(super) fn take(fields: &mut &[u8], width: usize) -> u128 {
    let Some((number, rest)) = fields.split_at_checked(width) else { return 0 };
    // One load, if eight bytes are left: a number that is put together byte by byte and then read as a whole stalls the processor.
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

/// Whether `width` bytes, at most 16, hold `number`.
#[inline(always)]
pub(super) fn fits(number: u128, width: usize) -> bool {
    width == 16 || number >> (8 * width) == 0
}
