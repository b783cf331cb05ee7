//! The ledger: the ids that a record remembers, with the units that each of them holds. An id names a charge or a lease.
//!
//! A record with a ledger has version [2](super::record::IDS). It consists of a header, of the algorithm's own fields (the
//! inner record), and of the ledger:
//!
//! | bytes | what it is |
//! |---|---|
//! | 4 | magic byte, version, the algorithm's number, 0 |
//! | 4 | revision: each write increments it |
//! | 4 + 4 | inner record: its length, and the bytes reserved for it (a multiple of 8) |
//! | 4 + 4 | slots: how many there is room for (the capacity), and how many are in use, live or dead |
//! | 4 | the number of live slots: their ids are neither settled nor forgotten |
//! | 4 | the index of the first slot that may be live |
//! | 4 + 4 | bytes reserved for an id in each slot (a multiple of 8), 0 |
//! | 8 | seed of the hashes |
//! | 8 | FIXED: the number of the window in force, counted from the first window with ids |
//! | 16 | the aggregate of all blocks |
//! | | the inner record |
//! | 4 each | cells: a hash table with open addressing. A cell holds a slot's index plus 1; 0: empty |
//! | 16 each | blocks: the aggregate of [`BLOCK`] slots |
//! | | slots, in the order in which the ids were added |
//!
//! An id is found by its hash. A slot is added at the end. A slot is live until its id is settled or forgotten; then it is
//! dead, and stays where it is. So each change patches a few places. When the room for slots is used up, the record is rebuilt
//! without the dead slots, which costs O(1) amortized per added id.
//!
//! An aggregate summarizes slots. That of charges is the sum of the slots' weights (see [`layers`]), that of leases is the
//! first and the last deadline (see [`bounds`]). With the aggregates of blocks, it takes n / 64 + 64 steps to find the sum or
//! the extremes of n slots.

mod edit;
mod layers;
mod slot;

pub(super) use edit::{bounds, Edit, Finish};
pub(super) use layers::LOWER;
pub use slot::Charge;
pub(super) use slot::Slot;
use slot::{EMPTIED, SLOT};

use super::record::{self, RecordError};
use super::{Bytes, Instant, Kind};

/// The most ids that a key remembers. One more forgets the oldest.
pub const MAX_IDS: usize = 65_536;

/// The number of slots that share an aggregate.
pub(super) const BLOCK: usize = 64;
/// The most slots in a record, live or dead: [`Edit`] gives a rebuilt record no room for more.
const MAX_SLOTS: usize = 2 * MAX_IDS;
/// The length of the header, in bytes.
pub(super) const HEADER: usize = 72;
/// The length of a cell, in bytes.
const CELL: usize = 4;
/// The length of an aggregate, in bytes.
const AGGREGATE: usize = 16;

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

/// The fields of a record's header, without the inner record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Each write increments it; it wraps around.
    revision: u32,
    /// The length of the inner record, in bytes.
    inner_len: usize,
    /// The bytes reserved for the inner record, a multiple of 8.
    inner_room: usize,
    /// How many slots there is room for: from 1 to [`MAX_SLOTS`].
    capacity: usize,
    /// How many slots are in use, live or dead.
    used: usize,
    /// How many slots are live.
    live: usize,
    /// All slots before this index are dead.
    first: usize,
    /// The bytes reserved for the id in each slot: a multiple of 8, from 8 to [`Id::MAX_LEN`].
    id_room: usize,
    /// The seed of [`hash`].
    seed: u64,
    /// FIXED: the number of the window in force, counted from the first window with ids. The others do not use it.
    pub(super) window: u64,
    /// The aggregate of all blocks.
    pub(super) aggregate: u128,
}

impl Header {
    /// A header without ids.
    const EMPTY: Self = Self {
        revision: 0,
        inner_len: 0,
        inner_room: 0,
        capacity: 0,
        used: 0,
        live: 0,
        first: 0,
        id_room: 0,
        seed: 0,
        window: 0,
        aggregate: 0,
    };

    /// Reads the header. Does not check it: see [`Self::is_valid`].
    fn decode(bytes: &[u8; HEADER]) -> Self {
        let mut fields = &bytes[4..];
        let mut word = |width| record::take(&mut fields, width);
        Self {
            revision: word(4) as u32,
            inner_len: word(4) as usize,
            inner_room: word(4) as usize,
            capacity: word(4) as usize,
            used: word(4) as usize,
            live: word(4) as usize,
            first: word(4) as usize,
            id_room: word(8) as usize,
            seed: word(8) as u64,
            window: word(8) as u64,
            aggregate: word(16),
        }
    }

    /// The header of a record of `kind`, as it is stored.
    fn encode(&self, kind: Kind) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&[record::MAGIC, record::IDS, kind.spec().tag, 0]);
        let words = [
            self.revision as usize,
            self.inner_len,
            self.inner_room,
            self.capacity,
            self.used,
            self.live,
            self.first,
            self.id_room,
        ];
        for (word, place) in words.iter().zip(bytes[4..36].as_chunks_mut::<4>().0) {
            *place = (*word as u32).to_le_bytes();
        }
        bytes[40..48].copy_from_slice(&self.seed.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.window.to_le_bytes());
        bytes[56..].copy_from_slice(&self.aggregate.to_le_bytes());
        bytes
    }

    /// Where the hash table begins.
    const fn cells_at(&self) -> usize {
        HEADER + self.inner_room
    }

    /// The number of cells: a power of two, and at least twice the slots. So at most half of the cells are ever in use.
    const fn cells(&self) -> usize {
        (2 * self.capacity).next_power_of_two()
    }

    /// Where the aggregate of a block is.
    const fn block_at(&self, block: usize) -> usize {
        self.cells_at() + CELL * self.cells() + AGGREGATE * block
    }

    /// The length of a slot, in bytes.
    const fn slot_len(&self) -> usize {
        SLOT + self.id_room
    }

    /// Where a slot begins.
    const fn slot_at(&self, index: usize) -> usize {
        self.block_at(self.capacity.div_ceil(BLOCK)) + self.slot_len() * index
    }

    /// The length of the record.
    const fn len(&self) -> usize {
        self.slot_at(self.used)
    }

    /// Whether each field is in its range.
    fn is_valid(&self) -> bool {
        self.inner_len <= self.inner_room
            && self.inner_room.is_multiple_of(8)
            && (1..=MAX_SLOTS).contains(&self.capacity)
            && self.used <= self.capacity
            && self.live <= self.used
            && self.first <= self.used
            && (8..=Id::MAX_LEN).contains(&self.id_room)
            && self.id_room.is_multiple_of(8)
    }
}

/// A record with a ledger, not decoded. The views of keys hold this instead of a [`Ledger`], so that a view is small also when
/// the record has no ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct WithIds<'a>(&'a [u8]);

impl<'a> WithIds<'a> {
    /// The ledger.
    pub(super) fn ledger(self) -> Ledger<'a> {
        // `Ledger::record` returns only records that are long enough.
        let header = self.0.first_chunk().map_or(Header::EMPTY, Header::decode);
        Ledger { bytes: self.0, header }
    }

    /// The aggregate of all blocks.
    pub(super) fn aggregate(self) -> u128 {
        aggregate(self.0, HEADER - AGGREGATE)
    }
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
        let header = Header::decode(bytes.first_chunk().ok_or(RecordError::Unknown)?);
        let valid = header.is_valid() && header.len() == bytes.len();
        valid.then_some(Self { bytes, header }).ok_or(RecordError::Unknown)
    }

    /// The record.
    pub(super) const fn record(&self) -> WithIds<'a> {
        WithIds(self.bytes)
    }

    /// The inner record.
    pub(super) fn inner(&self) -> &'a [u8] {
        &self.bytes[HEADER..HEADER + self.header.inner_len]
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
        let end = SLOT - AGGREGATE + usize::from(bytes[0]);
        bytes[..bytes.len() - AGGREGATE].get(SLOT - AGGREGATE..end).unwrap_or_default()
    }

    /// [`Slot::when`] of slot `index`, if it is live.
    fn live_when(&self, index: usize) -> Option<i64> {
        let at = self.header.slot_at(index);
        (self.bytes.get(at) != Some(&0)).then(|| word(self.bytes, at + 8) as i64)
    }

    /// The slots in use with their indices, in the order in which the ids were added.
    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = (usize, Slot)> + '_ {
        (0..self.len()).map(|index| (index, self.slot(index)))
    }

    /// The sum of the units of those live slots of a block whose [`Slot::when`] is after `when`.
    pub(super) fn units_after(&self, block: usize, when: i64) -> u64 {
        let end = (BLOCK * (block + 1)).min(self.len());
        let slots = self.bytes.get(self.header.slot_at(BLOCK * block)..self.header.slot_at(end)).unwrap_or_default();
        slots.chunks_exact(self.header.slot_len()).fold(0, |sum: u64, slot| {
            let (units, lapses) = (word(slot, 0), word(slot, 8) as i64);
            let live = units as u8 > 0 && lapses > when;
            sum.saturating_add(if live { (units & !EMPTIED) >> 8 } else { 0 })
        })
    }

    /// The slots of a block that are in use, with their indices.
    pub(super) fn block_slots(self, block: usize) -> impl Iterator<Item = (usize, Slot)> + 'a {
        (BLOCK * block..(BLOCK * (block + 1)).min(self.len())).map(move |index| (index, self.slot(index)))
    }

    /// The number of live slots that are not past, and the sum of their units.
    pub(super) fn count(&self, is_past: &dyn Fn(&Slot) -> bool) -> (u64, u128) {
        let remembered = self.slots().filter(|(_, slot)| slot.is_live() && !is_past(slot));
        remembered.fold((0, 0), |(ids, units), (_, slot)| (ids + 1, units + u128::from(slot.units)))
    }

    /// The aggregate of a block.
    pub(super) fn block(&self, block: usize) -> u128 {
        aggregate(self.bytes, self.header.block_at(block))
    }

    /// The number of blocks with slots in use.
    pub(super) const fn blocks(&self) -> usize {
        self.header.used.div_ceil(BLOCK)
    }

    /// The sum of the weights of the first `end` slots, modulo 2^128. Only for charges: the aggregates of leases are no sums.
    pub(super) fn prefix(&self, end: usize) -> u128 {
        let blocks = (0..end / BLOCK).map(|block| self.block(block));
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
        aggregate(self.bytes, self.header.slot_at(index + 1) - AGGREGATE)
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

    /// The slot of this id, with its index, if what it holds is not past.
    pub(super) fn remembered(self, id: Id<'_>, is_past: impl Fn(&Slot) -> bool) -> Option<(Self, usize, Slot)> {
        let index = self.find(id)?;
        let slot = self.slot(index);
        (!is_past(&slot)).then_some((self, index, slot))
    }

    /// The index of the live slot with this id. What the slot holds may be past.
    pub(super) fn find(&self, id: Id<'_>) -> Option<usize> {
        let slots = self.probe(id).map(|(_, cell)| cell).take_while(|&cell| cell != 0).map(|cell| cell as usize - 1);
        slots.filter(|&slot| slot < self.len()).find(|&slot| self.id(slot) == id.0)
    }
}

/// A short part of a value, at its front, that differs before and after each change of a limiter's record. Of a record without
/// ids it is the whole record. Of a record with ids it is the header, which has a revision, and the inner record. `None` if
/// this part is long, for example of a SLIDE log.
pub fn fingerprint(stored: &[u8]) -> Option<&[u8]> {
    const MAX: usize = 128;
    if stored.len() <= Bytes::SHORT {
        return Some(stored);
    }
    let header = record::kind_with_ids(stored).ok().and(stored.first_chunk()).map(Header::decode)?;
    stored.get(..HEADER + header.inner_len).filter(|front| front.len() <= MAX)
}

/// The record that a [`fingerprint`] contains, without its ids.
pub fn without_ids(fingerprint: &[u8]) -> &[u8] {
    match record::kind_with_ids(fingerprint) {
        Ok(_) => fingerprint.get(HEADER..).unwrap_or_default(),
        Err(_) => fingerprint,
    }
}

/// The number in the eight bytes at `at`; 0 if the bytes end before.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |&word| u64::from_le_bytes(word))
}

/// The number in the 16 bytes at `at`; 0 if the bytes end before.
fn aggregate(bytes: &[u8], at: usize) -> u128 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |&number| u128::from_le_bytes(number))
}

/// A hash of an id. A caller who does not know the seed cannot choose ids that collide.
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

/// The seed of a new ledger, from the microsecond in which the first id is added. A caller cannot know that exactly.
fn seed(now: Instant) -> u64 {
    fold(now.as_us() as u64 ^ 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db)
}
