//! Changes of a ledger: a few patches if possible, otherwise a rebuilt record.

use std::collections::BTreeMap;

use super::{hash, seed, Header, Id, Ledger, Slot, AGGREGATE, BLOCK, CELL, HEADER, MAX_IDS, SLOT};
use crate::limiter::{Bytes, Change, Instant, Kind, Span};

/// The fewest slots that a rebuilt ledger has room for beyond those in use.
const SPARE: usize = 8;
/// Patches with at most this many bytes between them are joined, because one longer effect is then shorter than two.
const GAP: usize = 40;

/// A ledger that is being changed.
pub(in crate::limiter) struct Edit<'a> {
    /// The algorithm of the record.
    kind: Kind,
    /// The ledger in the old record; `None` if that has none.
    old: Option<Ledger<'a>>,
    /// The new header, apart from the fields that [`Self::finish`] computes. For charges, [`Header::aggregate`] is at any time
    /// the sum of all weights after the changes made so far.
    pub(in crate::limiter) header: Header,
    /// The slots that differ from `old`, by index.
    changed: BTreeMap<usize, Slot>,
    /// The id that is added, and its slot. An edit adds at most one.
    added: Option<(Id<'a>, Slot)>,
}

/// What [`Edit::finish`] needs to know besides the slots.
pub(in crate::limiter) struct Finish<'f> {
    /// The new inner record, as (tail, offset, head): `tail` is its bytes from `offset` on, `head` replaces as many bytes at
    /// its beginning, and the bytes between are those of the old inner record.
    pub(in crate::limiter) inner: (&'f [u8], usize, &'f [u8]),
    /// Whether the whole record must be rebuilt, because the slots move with the new inner record.
    pub(in crate::limiter) rewritten: bool,
    /// How many bytes a rebuilt record reserves for the inner record, at least.
    pub(in crate::limiter) room: usize,
    /// Whether what a slot holds is past, so that a rebuilt record does not contain its id.
    pub(in crate::limiter) is_past: &'f dyn Fn(&Slot) -> bool,
    /// The slot that replaces a slot in a rebuilt record.
    pub(in crate::limiter) moved: &'f dyn Fn(Slot) -> Slot,
    /// Whether all slots share one stack of layers. Otherwise the slots of each [`Slot::when`] have a stack of their own
    /// (SLIDE).
    pub(in crate::limiter) one_level: bool,
    /// See [`Change::Write`].
    pub(in crate::limiter) expires: Instant,
    /// See [`Change::Write`].
    pub(in crate::limiter) slack: Span,
}

impl<'a> Edit<'a> {
    /// `old` is the ledger in the record; `None` if the record has none.
    pub(in crate::limiter) fn new(kind: Kind, old: Option<Ledger<'a>>, now: Instant) -> Self {
        let aggregate = if kind == Kind::Lease { bounds::NONE } else { 0 };
        let empty = Header { seed: seed(now), aggregate, ..Header::EMPTY };
        Self { kind, old, header: old.map_or(empty, |old| old.header), changed: BTreeMap::new(), added: None }
    }

    /// The number of slots in the old record.
    pub(in crate::limiter) fn old_len(&self) -> usize {
        self.old.map_or(0, |old| old.len())
    }

    /// Slot `index` of the old record, as changed.
    pub(in crate::limiter) fn slot(&self, index: usize) -> Option<Slot> {
        let old = self.old.filter(|old| index < old.len())?;
        Some(self.changed.get(&index).copied().unwrap_or_else(|| old.slot(index)))
    }

    /// The latest [`Slot::when`] of the live slots among the newest [`BLOCK`] slots of the old record.
    pub(in crate::limiter) fn newest_when(&self) -> Option<i64> {
        let old = self.old.filter(|_| self.header.live > 0)?;
        let newest = old.len().saturating_sub(BLOCK)..old.len();
        let when = |index| match self.changed.get(&index) {
            Some(slot) => slot.is_live().then_some(slot.when),
            None => old.live_when(index),
        };
        newest.filter_map(when).max()
    }

    /// The weight of slot `index` of the old record, as changed.
    pub(super) fn weight(&self, index: usize) -> u128 {
        let changed = if self.changed.is_empty() { None } else { self.changed.get(&index) };
        changed.map_or_else(|| self.old.map_or(0, |old| old.weight(index)), |slot| slot.weight)
    }

    /// The aggregate of a block of the old record.
    pub(super) fn old_block(&self, block: usize) -> u128 {
        self.old.map_or(0, |old| old.block(block))
    }

    /// Replaces a slot of the old record.
    pub(in crate::limiter) fn set(&mut self, index: usize, slot: Slot) {
        if let Some(old) = self.slot(index) {
            if self.kind != Kind::Lease {
                self.header.aggregate = self.header.aggregate.wrapping_sub(old.weight).wrapping_add(slot.weight);
            }
            self.changed.insert(index, slot);
        }
    }

    /// Forgets the id of a slot. Its weight stays.
    pub(in crate::limiter) fn kill(&mut self, index: usize) {
        if let Some(slot) = self.slot(index).filter(Slot::is_live) {
            self.set(index, Slot { len: 0, ..slot });
            self.header.live = self.header.live.saturating_sub(1);
        }
    }

    /// Adds an id, and forgets the oldest one if there are [`MAX_IDS`] already. The caller must first [kill](Self::kill) a
    /// live slot with the same id.
    pub(in crate::limiter) fn append(&mut self, id: Id<'a>, slot: Slot) {
        if self.header.live >= MAX_IDS {
            while let Some(slot) = self.slot(self.header.first) {
                if slot.is_live() {
                    self.kill(self.header.first);
                    break;
                }
                self.header.first += 1;
            }
        }
        self.header.live += 1;
        if self.kind != Kind::Lease {
            self.header.aggregate = self.header.aggregate.wrapping_add(slot.weight);
        }
        self.added = Some((id, Slot { len: id.as_bytes().len(), ..slot }));
    }

    /// Whether no id is left. With more slots than one block has, the slots are not looked at one by one: then ids that are
    /// past count as left.
    pub(in crate::limiter) fn is_empty(&self, is_past: &dyn Fn(&Slot) -> bool) -> bool {
        let remembered = |index| self.slot(index).is_some_and(|slot| slot.is_live() && !is_past(&slot));
        // The newest id is remembered longest.
        let all_past = || self.old_len() <= BLOCK && !(0..self.old_len()).rev().any(remembered);
        self.added.is_none() && (self.header.live == 0 || all_past())
    }

    /// Whether the changes can be written as patches, if the new inner record has `inner_len` bytes.
    pub(in crate::limiter) fn fits(&self, inner_len: usize) -> bool {
        let id_len = self.added.map_or(0, |(id, _)| id.as_bytes().len());
        inner_len <= self.header.inner_room
            && id_len <= self.header.id_room
            && self.header.used + usize::from(self.added.is_some()) <= self.header.capacity
            && self.changed.len() <= self.header.used / 4 + BLOCK
    }

    /// Encodes the record. If no id is left, and the inner record is rewritten or has at most `strip` bytes, the new record is
    /// the inner record alone.
    pub(in crate::limiter) fn finish(mut self, finish: &Finish<'_>, strip: usize, bytes: &mut Bytes) -> Change {
        let (tail, offset, head) = finish.inner;
        let inner_len = offset + tail.len();
        if self.is_empty(finish.is_past) && (finish.rewritten || inner_len <= strip) {
            *bytes = Bytes::with_capacity(inner_len);
            self.put_inner(finish, bytes);
            return Change::Write { offset: 0, head: 0, expires: finish.expires, slack: finish.slack };
        }
        match self.old {
            Some(old) if self.fits(inner_len) && !finish.rewritten => {
                self.header.revision = self.header.revision.wrapping_add(1);
                self.header.inner_len = inner_len;
                let patches = self.patches(&old, (tail, offset, head));
                let len = self.header.len();
                put_patches(old.bytes, patches, bytes);
                Change::Patch { len, expires: finish.expires, slack: finish.slack }
            }
            _ => {
                *bytes = self.rebuilt(finish);
                Change::Write { offset: 0, head: 0, expires: finish.expires, slack: finish.slack }
            }
        }
    }

    /// Appends the whole new inner record.
    fn put_inner(&self, finish: &Finish<'_>, bytes: &mut Bytes) {
        let (tail, offset, head) = finish.inner;
        let kept = self.old.map_or(&[][..], |old| old.inner());
        bytes.extend(head);
        bytes.extend(kept.get(head.len()..offset).unwrap_or_default());
        bytes.extend(tail);
    }

    /// The patches, by offset: see [`Change::Patch`]. Also completes the header.
    fn patches(&mut self, old: &Ledger<'_>, (tail, offset, head): (&[u8], usize, &[u8])) -> BTreeMap<usize, Vec<u8>> {
        let mut patches = BTreeMap::new();
        for (&index, slot) in &self.changed {
            let (before, at) = (old.slot(index), self.header.slot_at(index));
            if before.weight != slot.weight {
                let weight = slot.weight.to_le_bytes();
                patches.insert(self.header.slot_at(index + 1) - AGGREGATE, weight.to_vec());
            }
            let (before, after) = (before.head(), slot.head());
            if before != after {
                // If a slot dies, only the length of its id changes, which is one byte.
                let len = if before[1..] == after[1..] { 1 } else { after.len() };
                patches.insert(at, after[..len].to_vec());
            }
        }
        let mut touched: Vec<usize> = self.changed.keys().map(|index| index / BLOCK).collect();
        if let Some((id, slot)) = self.added {
            let index = self.header.used;
            self.header.used += 1;
            patches.insert(self.header.slot_at(index), encoded(id.as_bytes(), &slot, self.header.id_room));
            if let Some((cell, _)) = old.probe(id).find(|&(_, cell)| cell == 0) {
                let at = self.header.cells_at() + CELL * cell;
                patches.insert(at, (index as u32 + 1).to_le_bytes().to_vec());
            }
            touched.push(index / BLOCK);
        }
        touched.dedup();
        let mut untouched = 0;
        let mut all = bounds::NONE;
        for block in touched {
            let aggregate = self.block(old, block);
            patches.insert(self.header.block_at(block), aggregate.to_le_bytes().to_vec());
            if self.kind == Kind::Lease {
                all = (untouched..block).map(|block| old.block(block)).chain([aggregate]).fold(all, bounds::join);
                untouched = block + 1;
            }
        }
        if self.kind == Kind::Lease {
            self.header.aggregate = (untouched..old.blocks()).map(|block| old.block(block)).fold(all, bounds::join);
        }
        patches.insert(0, self.header.encode(self.kind).to_vec());
        if !head.is_empty() {
            patches.insert(HEADER, head.to_vec());
        }
        if !tail.is_empty() {
            patches.insert(HEADER + offset, tail.to_vec());
        }
        patches
    }

    /// The new aggregate of a block.
    fn block(&self, old: &Ledger<'_>, block: usize) -> u128 {
        let added = self.added.filter(|_| self.old_len() / BLOCK == block).map(|(_, slot)| slot);
        let range = BLOCK * block..(BLOCK * (block + 1)).min(self.old_len());
        if self.kind == Kind::Lease {
            let slots = range.filter_map(|index| self.slot(index)).chain(added);
            return slots.map(|slot| bounds::of(&slot)).fold(bounds::NONE, bounds::join);
        }
        // The block has an aggregate already, unless the added slot is its first one.
        let before = if range.is_empty() { 0 } else { old.block(block) };
        let changes = self.changed.range(range);
        let sum =
            changes.fold(before, |sum, (&index, slot)| sum.wrapping_sub(old.slot(index).weight).wrapping_add(slot.weight));
        added.map_or(sum, |slot| sum.wrapping_add(slot.weight))
    }

    /// The whole record without dead slots, with room for more.
    fn rebuilt(mut self, finish: &Finish<'_>) -> Bytes {
        let mut kept: Vec<(&[u8], Slot)> = Vec::with_capacity(self.header.live);
        // `when` of the slots that were dropped since the last kept one, and the sum of their weights. The next slot of the
        // same stack gets this sum, because it is a part of the m of all later ids.
        let mut dropped = (0, 0_u128);
        let old = self.old.into_iter().flat_map(|old| (0..old.len()).map(move |index| (old.id(index), index)));
        for (id, index) in old {
            let Some(stored) = self.slot(index) else { break };
            let slot = (finish.moved)(stored);
            let stays = slot.is_live() && !(finish.is_past)(&stored);
            if slot.emptied {
                kept.extend(stays.then_some((id, slot)));
                continue;
            }
            if dropped.0 != slot.when && !finish.one_level {
                dropped = (slot.when, 0);
            }
            let slot = Slot { weight: slot.weight.wrapping_add(dropped.1), ..slot };
            if stays {
                kept.push((id, slot));
                dropped.1 = 0;
            } else {
                dropped.1 = slot.weight;
            }
        }
        if let Some((id, slot)) = self.added {
            let weight = if dropped.0 == slot.when || finish.one_level { dropped.1 } else { 0 };
            kept.push((id.as_bytes(), Slot { weight: slot.weight.wrapping_add(weight), ..slot }));
        }

        let (tail, offset, _) = finish.inner;
        let inner_len = offset + tail.len();
        let longest = kept.iter().map(|(id, _)| id.len()).max().unwrap_or(1);
        self.header.revision = self.header.revision.wrapping_add(1);
        self.header.inner_len = inner_len;
        self.header.inner_room = inner_len.max(finish.room).next_multiple_of(8);
        self.header.capacity = kept.len() + SPARE.max(kept.len() / 2).max(inner_len / 128);
        self.header.capacity = self.header.capacity.min(super::MAX_SLOTS);
        self.header.used = kept.len();
        self.header.live = kept.len();
        self.header.first = 0;
        self.header.id_room = longest.next_multiple_of(8);
        let blocks: Vec<u128> = kept.chunks(BLOCK).map(|slots| self.aggregate(slots)).collect();
        self.header.aggregate = match self.kind {
            Kind::Lease => blocks.iter().copied().fold(bounds::NONE, bounds::join),
            _ => blocks.iter().copied().fold(0, u128::wrapping_add),
        };
        let header = &self.header;
        let mut cells = vec![0_u32; header.cells()];
        for (index, (id, _)) in kept.iter().enumerate() {
            let start = hash(header.seed, id) as usize;
            let mut places = (0..cells.len()).map(|step| start.wrapping_add(step) & (cells.len() - 1));
            if let Some(place) = places.find(|&place| cells[place] == 0) {
                cells[place] = index as u32 + 1;
            }
        }
        let mut bytes = Bytes::with_capacity(header.len().max(Bytes::SHORT + 1));
        bytes.extend(&header.encode(self.kind));
        self.put_inner(finish, &mut bytes);
        bytes.fill(header.cells_at());
        bytes.extend(cells.iter().flat_map(|cell| cell.to_le_bytes()).collect::<Vec<_>>().as_slice());
        for block in &blocks {
            bytes.extend(&block.to_le_bytes());
        }
        bytes.fill(header.slot_at(0));
        for (id, slot) in &kept {
            bytes.extend(&encoded(id, slot, header.id_room));
        }
        bytes
    }

    /// The aggregate of these slots.
    fn aggregate(&self, slots: &[(&[u8], Slot)]) -> u128 {
        match self.kind {
            Kind::Lease => slots.iter().map(|(_, slot)| bounds::of(slot)).fold(bounds::NONE, bounds::join),
            _ => slots.iter().map(|(_, slot)| slot.weight).fold(0, u128::wrapping_add),
        }
    }
}

/// A slot as it is stored. `id_room` is the number of bytes that it reserves for the id.
fn encoded(id: &[u8], slot: &Slot, id_room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SLOT + id_room);
    bytes.extend_from_slice(&slot.head());
    bytes.extend_from_slice(id);
    bytes.resize(SLOT - AGGREGATE + id_room, 0);
    bytes.extend_from_slice(&slot.weight.to_le_bytes());
    bytes
}

/// Writes patches to `bytes`, and joins those that are close to each other.
fn put_patches(old: &[u8], patches: BTreeMap<usize, Vec<u8>>, bytes: &mut Bytes) {
    *bytes = Bytes::default();
    let mut end = None;
    for (at, patch) in patches {
        match end.and_then(|end: usize| old.get(end..at).filter(|between| between.len() <= GAP)) {
            Some(between) => bytes.extend(between),
            None => bytes.start_patch(at),
        }
        bytes.extend(&patch);
        end = Some(at + patch.len());
    }
}

/// The aggregate of leases: the first and the last deadline of the live ones, in microseconds since the Unix epoch.
pub(in crate::limiter) mod bounds {
    use super::Slot;

    /// The aggregate of no lease.
    pub(in crate::limiter) const NONE: u128 = pack(i64::MAX, i64::MIN);

    /// The aggregate with these deadlines.
    const fn pack(first: i64, last: i64) -> u128 {
        first as u64 as u128 | (last as u64 as u128) << 64
    }

    /// The first and the last deadline.
    pub(in crate::limiter) const fn unpack(bounds: u128) -> (i64, i64) {
        (bounds as u64 as i64, (bounds >> 64) as u64 as i64)
    }

    /// The aggregate of one slot.
    pub(in crate::limiter) const fn of(slot: &Slot) -> u128 {
        if slot.is_live() {
            pack(slot.when, slot.when)
        } else {
            NONE
        }
    }

    /// The aggregate of two sets of slots.
    pub(in crate::limiter) fn join(one: u128, other: u128) -> u128 {
        let ((a, b), (c, d)) = (unpack(one), unpack(other));
        pack(a.min(c), b.max(d))
    }
}
