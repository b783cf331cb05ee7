//! The header of a record with ids: [the module above](super) has the table of its fields.

use super::{version_2, Aggregate, Id, BLOCK, CELL, MAX_SLOTS, SLOT};
use crate::limiter::{record, Kind};

/// The length of the header, in bytes.
pub(super) const LEDGER_HEADER: usize = 96;

/// The fields of a record's header, without the inner record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) struct Header {
    /// Each write increments it; it wraps around.
    pub(super) revision: u32,
    /// The length of the inner record, in bytes.
    pub(super) inner_len: usize,
    /// The bytes reserved for the inner record, a multiple of 8.
    pub(super) inner_room: usize,
    /// How many slots there is room for: from 1 to [`MAX_SLOTS`].
    pub(super) capacity: usize,
    /// How many slots are in use, live or dead.
    pub(super) used: usize,
    /// How many slots are live.
    pub(super) live: usize,
    /// All slots before this index are dead.
    pub(super) first: usize,
    /// The bytes reserved for the id in each slot: a multiple of 8, from 8 to [`Id::MAX_LEN`].
    pub(super) id_room: usize,
    /// How many slots were in use when the cells were last computed.
    pub(super) indexed: usize,
    /// The seed of [`hash`].
    pub(super) seed: u64,
    /// FIXED: whether the last caller stated where windows begin or end, so that they follow each other also if nothing is used. The
    /// other algorithms do not use it.
    pub(in crate::limiter) is_aligned: bool,
    /// FIXED: the number of the window in force, counted from the first window with ids. The other algorithms do not use it.
    pub(in crate::limiter) window: u64,
    /// GCRA and BUCKET: how many grains of the weights are a unit, by the policy that the ledger was made under. It stays the same when
    /// the policy changes. 0 in records of version 2, whose weights are in grains of the policy in the inner record. The other
    /// algorithms do not use it.
    pub(in crate::limiter) grains_per_unit: u64,
    /// The aggregate of all blocks.
    pub(in crate::limiter) aggregate: Aggregate,
    /// Whether the record has the layout of [`version_2`].
    pub(super) is_version_2: bool,
}

impl Header {
    /// A header without ids.
    pub(super) const EMPTY: Self = Self {
        revision: 0,
        inner_len: 0,
        inner_room: 0,
        capacity: 0,
        used: 0,
        live: 0,
        first: 0,
        id_room: 0,
        indexed: 0,
        seed: 0,
        is_aligned: false,
        window: 0,
        grains_per_unit: 0,
        aggregate: Aggregate::NONE,
        is_version_2: false,
    };

    /// Reads the header of a record with ids; `None` if the record is too short. Does not check it: see [`Self::is_valid`].
    pub(super) fn decode(record: &[u8]) -> Option<Self> {
        let is_version_2 = record.get(1) == Some(&record::OLD_IDS);
        let mut fields = record.get(4..if is_version_2 { version_2::LEDGER_HEADER } else { LEDGER_HEADER })?;
        let mut word = |width| record::take(&mut fields, width);
        let mut header = Self {
            revision: word(4) as u32,
            inner_len: word(4) as usize,
            inner_room: word(4) as usize,
            capacity: word(4) as usize,
            used: word(4) as usize,
            live: word(4) as usize,
            first: word(4) as usize,
            id_room: word(4) as usize,
            indexed: word(4) as usize,
            seed: word(8) as u64,
            window: word(8) as u64,
            is_aligned: record.get(3) == Some(&1),
            is_version_2,
            ..Self::EMPTY
        };
        if is_version_2 {
            header.aggregate = version_2::aggregate(record, fields);
        } else {
            header.grains_per_unit = word(8) as u64;
            header.aggregate = Aggregate::decode(fields);
        }
        Some(header)
    }

    /// The header of a record of `kind`, as it is stored.
    pub(super) fn encode(&self, kind: Kind) -> [u8; LEDGER_HEADER] {
        let mut bytes = [0; LEDGER_HEADER];
        bytes[..4].copy_from_slice(&[record::MAGIC, record::IDS, kind.spec().tag, self.is_aligned.into()]);
        let words = [
            self.revision as usize,
            self.inner_len,
            self.inner_room,
            self.capacity,
            self.used,
            self.live,
            self.first,
            self.id_room,
            self.indexed,
        ];
        for (word, place) in words.iter().zip(bytes[4..40].as_chunks_mut::<4>().0) {
            *place = (*word as u32).to_le_bytes();
        }
        bytes[40..48].copy_from_slice(&self.seed.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.window.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.grains_per_unit.to_le_bytes());
        bytes[64..].copy_from_slice(&self.aggregate.encode());
        bytes
    }

    /// Where the inner record begins.
    pub(super) const fn inner_at(&self) -> usize {
        if self.is_version_2 {
            version_2::LEDGER_HEADER
        } else {
            LEDGER_HEADER
        }
    }

    /// Where the hash table begins.
    pub(super) const fn cells_at(&self) -> usize {
        self.inner_at() + self.inner_room
    }

    /// The number of cells: a power of two, and at least twice the slots. So at most half of the cells are ever in use.
    pub(super) const fn cells(&self) -> usize {
        (2 * self.capacity).next_power_of_two()
    }

    /// Where the aggregate of a block is.
    pub(super) const fn block_at(&self, block: usize) -> usize {
        let len = if self.is_version_2 { version_2::AGGREGATE } else { Aggregate::LEN };
        self.cells_at() + CELL * self.cells() + len * block
    }

    /// The length of a slot, in bytes.
    pub(super) const fn slot_len(&self) -> usize {
        SLOT + self.id_room
    }

    /// Where a slot begins.
    pub(super) const fn slot_at(&self, index: usize) -> usize {
        self.block_at(self.capacity.div_ceil(BLOCK)) + self.slot_len() * index
    }

    /// The length of the record.
    pub(super) const fn len(&self) -> usize {
        self.slot_at(self.used)
    }

    /// Whether each field is in its range.
    pub(super) fn is_valid(&self) -> bool {
        self.inner_len <= self.inner_room
            && self.inner_room.is_multiple_of(8)
            && (1..=MAX_SLOTS).contains(&self.capacity)
            && self.used <= self.capacity
            && self.live <= self.used
            && self.first <= self.used
            && self.indexed <= self.used
            && (8..=Id::MAX_LEN).contains(&self.id_room)
            && self.id_room.is_multiple_of(8)
    }
}
