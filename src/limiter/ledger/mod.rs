//! The ledger: the ids that a record remembers, with the units that each of them holds. An id names a charge or a lease.
//!
//! A record with a ledger has version [3](super::record::IDS). It consists of a header, of the algorithm's own fields (the
//! inner record), and of the ledger:
//!
//! | bytes | what it is |
//! |---|---|
//! | 4 | magic byte, version, the algorithm's number, 1 if [`Header::is_aligned`] or else 0 |
//! | 4 | revision: each write increments it |
//! | 4 + 4 | inner record: its length, and the bytes reserved for it (a multiple of 8) |
//! | 4 + 4 | slots: how many there is room for (the capacity), and how many are in use, live or dead |
//! | 4 | the number of live slots: their ids are neither settled nor forgotten |
//! | 4 | the index of the first slot that may be live |
//! | 4 | bytes reserved for an id in each slot (a multiple of 8) |
//! | 4 | how many slots were in use when the cells were last computed |
//! | 8 | seed of the hashes |
//! | 8 | FIXED: the number of the window in force, counted from the first window with ids |
//! | 8 | GCRA and BUCKET: how many grains of the weights are a unit |
//! | 32 | the aggregate of all blocks |
//! | | the inner record |
//! | 4 each | cells: a hash table with open addressing. A cell holds a slot's index plus 1; 0: empty |
//! | 32 each | blocks: the aggregate of [`BLOCK`] slots |
//! | | slots, in the order in which the ids were added |
//!
//! An id is found by its hash. A slot is added at the end. A slot is live until its id is settled or forgotten; then it is
//! dead, and stays where it is. So each change patches a few places. When the room for slots is used up, the record is rebuilt
//! without the dead slots, which costs O(1) amortized per added id.
//!
//! An [`Aggregate`] summarizes slots. With the aggregates of blocks, it takes n / 64 + 64 steps to find the sum or the extremes
//! of n slots.
//!
//! Records of version [2](super::record::OLD_IDS), which earlier versions of the module wrote, are read, too: see [`version_2`].
//! The next write rebuilds them.

mod aggregate;
mod edit;
mod header;
mod layers;
mod slot;
mod sound;
mod version_2;

pub(super) use aggregate::Aggregate;
pub(super) use edit::{Edit, Finish, Inner};
use header::{Header, LEDGER_HEADER};
pub use slot::Charge;
pub(super) use slot::Slot;
pub(super) use slot::LOWER;
use slot::{EMPTIED, HEAD, SLOT, WEIGHT};

use super::record::{self, RecordError};
use super::{Bytes, Kind};

/// The most ids that a key remembers. When one more is added, the oldest is forgotten.
pub const MAX_IDS: usize = 65_536;

/// The number of slots that share an aggregate.
pub(super) const BLOCK: usize = 64;
/// The most slots in a record, live or dead: [`Edit`] gives a rebuilt record no room for more.
const MAX_SLOTS: usize = 2 * MAX_IDS;
/// The length of a cell, in bytes.
const CELL: usize = 4;

/// Returns a random number, with which the hashes of a ledger are seeded. The core computes no random numbers itself.
pub type RandomSeed = fn() -> u64;

/// The name of a charge or a lease: 1 to 64 bytes that the caller chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id<'a>(&'a [u8]);

impl<'a> Id<'a> {
    /// The longest id, in bytes.
    pub const MAX_LEN: usize = 64;

    /// The id of these bytes; `None` if they are fewer than 1 or more than [`Self::MAX_LEN`].
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (1..=Self::MAX_LEN).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// The bytes.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A record with a ledger, not decoded. The views of keys hold this instead of a [`Ledger`], so that every view is small, also that
/// of a record without ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct WithIds<'a>(&'a [u8]);

impl<'a> WithIds<'a> {
    /// The ledger.
    pub(super) fn ledger(self) -> Ledger<'a> {
        // `Ledger::record` returns only records that are long enough.
        Ledger { bytes: self.0, header: Header::decode(self.0).unwrap_or(Header::EMPTY) }
    }

    /// The whole record.
    pub(super) const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The sum of all weights, in a ledger of charges.
    pub(super) fn weights(self) -> u128 {
        let is_version_2 = self.0.get(1) == Some(&record::OLD_IDS);
        let (header, aggregate) =
            if is_version_2 { (version_2::LEDGER_HEADER, version_2::AGGREGATE) } else { (LEDGER_HEADER, Aggregate::LEN) };
        // The header ends with the aggregate, which begins with the sum.
        weight(self.0, header - aggregate)
    }
}

/// What a ledger remembers under an id.
pub(super) struct Remembered<'a> {
    pub(super) ledger: Ledger<'a>,
    /// The index of the slot in the ledger.
    pub(super) index: usize,
    pub(super) slot: Slot,
}

/// The ledger of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger<'a> {
    /// The whole record.
    bytes: &'a [u8],
    /// The decoded header of the record.
    pub(super) header: Header,
}

impl<'a> Ledger<'a> {
    /// Reads a record of the algorithm `wanted`. The time does not depend on the number of ids, because the slots are not
    /// checked. Damaged slots lead to wrong sums, but never to a panic.
    pub(super) fn open(bytes: &'a [u8], wanted: Kind) -> Result<Self, RecordError> {
        match record::kind_with_ids(bytes)? {
            kind if kind != wanted => return Err(RecordError::OtherAlgorithm(kind)),
            _ => {}
        }
        let header = Header::decode(bytes).ok_or(RecordError::Unknown)?;
        let valid = header.is_valid() && header.len() == bytes.len();
        valid.then_some(Self { bytes, header }).ok_or(RecordError::Unknown)
    }

    /// The record.
    pub(super) const fn record(&self) -> WithIds<'a> {
        WithIds(self.bytes)
    }

    /// The inner record.
    pub(super) fn inner(&self) -> &'a [u8] {
        &self.bytes[self.header.inner_at()..][..self.header.inner_len]
    }

    /// The number of slots in use.
    pub(super) const fn len(&self) -> usize {
        self.header.used
    }

    /// The bytes of slot `index`, which must be less than [`Self::len`].
    fn slot_bytes(&self, index: usize) -> &'a [u8] {
        &self.bytes[self.header.slot_at(index)..self.header.slot_at(index + 1)]
    }

    /// Slot `index`, which must be less than [`Self::len`].
    pub(super) fn slot(&self, index: usize) -> Slot {
        Slot::decode(self.slot_bytes(index))
    }

    /// The id of slot `index`; empty if the slot is dead.
    pub(super) fn id(&self, index: usize) -> &'a [u8] {
        let bytes = self.slot_bytes(index);
        let end = HEAD + usize::from(bytes[0]);
        bytes[..bytes.len() - WEIGHT].get(HEAD..end).unwrap_or_default()
    }

    /// [`Slot::when`] of slot `index`, if it is live.
    fn live_when(&self, index: usize) -> Option<i64> {
        let at = self.header.slot_at(index);
        // A damaged length that exceeds the room for ids makes a dead slot, as in `Slot::decode`.
        let is_live = self.bytes.get(at).is_some_and(|&len| (1..=self.header.id_room).contains(&len.into()));
        is_live.then(|| word(self.bytes, at + 8) as i64)
    }

    /// The slots in use with their indices, in the order in which the ids were added.
    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = (usize, Slot)> + '_ {
        (0..self.len()).map(|index| (index, self.slot(index)))
    }

    /// The sum of the units of leases in a block: those leases whose deadline is after `when`.
    pub(super) fn units_after(&self, block: usize, when: i64) -> u64 {
        let Aggregate { weights, first, .. } = self.block(block);
        if first > when && !self.header.is_version_2 {
            return u64::try_from(weights).unwrap_or(u64::MAX);
        }
        let leases = self.block_slots(block).filter(|(_, slot)| slot.is_live() && slot.when > when);
        leases.fold(0, |sum, (_, slot)| sum.saturating_add(slot.units))
    }

    /// The slots of a block that are in use, with their indices.
    pub(super) fn block_slots(self, block: usize) -> impl Iterator<Item = (usize, Slot)> + 'a {
        (BLOCK * block..(BLOCK * (block + 1)).min(self.len())).map(move |index| (index, self.slot(index)))
    }

    /// The number of live slots that are not past, and the sum of their units.
    pub(super) fn count(&self, is_past: &dyn Fn(i64) -> bool) -> (u64, u128) {
        let remembered = self.slots().filter(|(_, slot)| slot.is_live() && !is_past(slot.when));
        remembered.fold((0, 0), |(ids, units), (_, slot)| (ids + 1, units + u128::from(slot.units)))
    }

    /// The aggregate of a block.
    pub(super) fn block(&self, block: usize) -> Aggregate {
        let bytes = self.bytes.get(self.header.block_at(block)..).unwrap_or_default();
        if self.header.is_version_2 {
            version_2::aggregate(self.bytes, bytes)
        } else {
            Aggregate::decode(bytes)
        }
    }

    /// The number of blocks with slots in use.
    pub(super) const fn blocks(&self) -> usize {
        self.header.used.div_ceil(BLOCK)
    }

    /// The sum of the weights of the first `end` slots, modulo 2^128.
    pub(super) fn prefix(&self, end: usize) -> u128 {
        let blocks = (0..end / BLOCK).map(|block| self.block(block).weights);
        let weights = (end / BLOCK * BLOCK..end).map(|index| self.weight(index));
        blocks.chain(weights).fold(0, u128::wrapping_add)
    }

    /// The index after the last slot whose [`Slot::when`] is less than `when`, by binary search. All slots that are not
    /// [emptied](Slot::emptied) must be in the order of their `when`s.
    pub(super) fn slots_before(&self, when: i64) -> usize {
        let (mut start, mut end) = (0, self.len());
        while start < end {
            let middle = start + (end - start) / 2;
            let at = |index: &usize| self.header.slot_at(*index);
            // Emptied slots are not in order, and are skipped. There are few of them, if any.
            let in_order = |index: &usize| word(self.bytes, at(index)) & EMPTIED == 0;
            match (middle..end).find(in_order) {
                Some(index) if (word(self.bytes, at(&index) + 8) as i64) < when => start = index + 1,
                _ => end = middle,
            }
        }
        start
    }

    /// [`Slot::weight`] of slot `index`.
    fn weight(&self, index: usize) -> u128 {
        weight(self.bytes, self.header.slot_at(index + 1) - WEIGHT)
    }

    /// Cell `index`: a slot's index plus 1, or 0 if the cell is empty.
    fn cell(&self, index: usize) -> u32 {
        let at = self.header.cells_at() + CELL * index;
        self.bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |&cell| u32::from_le_bytes(cell))
    }

    /// All cells with their indices, in the order in which the hash table is searched for this id.
    fn probe(&self, id: Id<'_>) -> impl Iterator<Item = (usize, u32)> + '_ {
        let cells = self.header.cells();
        let start = hash(self.header.seed, id.0) as usize;
        (0..cells).map(move |step| {
            let index = start.wrapping_add(step) & (cells - 1);
            (index, self.cell(index))
        })
    }

    /// What this id holds; `None` if it holds nothing, or what it holds is past. `is_past` says whether a [`Slot::when`] is past.
    pub(super) fn remembered(self, id: Id<'_>, is_past: impl Fn(i64) -> bool) -> Option<Remembered<'a>> {
        let index = self.find(id)?;
        let slot = self.slot(index);
        (!is_past(slot.when)).then_some(Remembered { ledger: self, index, slot })
    }

    /// The index of the live slot with this id. What the slot holds may be past.
    pub(super) fn find(&self, id: Id<'_>) -> Option<usize> {
        let slots = self.probe(id).map(|(_, cell)| cell).take_while(|&cell| cell != 0).map(|cell| cell as usize - 1);
        slots.filter(|&slot| slot < self.len()).find(|&slot| self.id(slot) == id.0)
    }
}

/// A short part at the front of a value. Each change of a limiter's record changes this part. In a record without ids, the part is
/// the whole record. In a record with ids, it is the header, which has a revision, and the inner record. `None` if the part would
/// be long, as in most SLIDE logs.
pub fn fingerprint(stored: &[u8]) -> Option<&[u8]> {
    const MAX: usize = 160;
    if stored.len() <= Bytes::SHORT {
        return Some(stored);
    }
    let header = record::kind_with_ids(stored).ok().and_then(|_| Header::decode(stored))?;
    stored.get(..header.inner_at() + header.inner_len).filter(|front| front.len() <= MAX)
}

/// The record that a [`fingerprint`] contains, without its ids.
pub fn without_ids(fingerprint: &[u8]) -> &[u8] {
    match record::kind_with_ids(fingerprint).ok().and_then(|_| Header::decode(fingerprint)) {
        Some(header) => fingerprint.get(header.inner_at()..).unwrap_or_default(),
        None => fingerprint,
    }
}

/// The number in the eight bytes at `at`; 0 if the bytes end before.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |&word| u64::from_le_bytes(word))
}

/// The weight in the 16 bytes at `at`; 0 if the bytes end before.
fn weight(bytes: &[u8], at: usize) -> u128 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |&number| u128::from_le_bytes(number))
}

/// A hash of an id. A caller who does not know the seed cannot choose ids that collide. If many ids collide all the same, [`Edit`]
/// takes another seed.
fn hash(seed: u64, id: &[u8]) -> u64 {
    let mut hash = seed ^ id.len() as u64;
    for chunk in id.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = fold(hash ^ u64::from_le_bytes(word), 0x9e37_79b9_7f4a_7c15);
    }
    fold(hash, 0xd6e8_feb8_6659_fd93)
}

/// Multiplies to 128 bits, and combines the two halves of the product to 64 bits.
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}
