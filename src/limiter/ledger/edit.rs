//! Changes of a ledger: a few patches if possible, otherwise a rebuilt record.

use std::collections::BTreeMap;

use super::{
    hash, sound, Aggregate, Header, Id, Ledger, RandomSeed, Slot, BLOCK, CELL, HEAD, LEDGER_HEADER, MAX_IDS, SLOT, WEIGHT,
};
use crate::limiter::{Bytes, Change, Instant, Kind, Span};

/// The fewest slots that a rebuilt ledger has room for beyond those in use.
const SPARE: usize = 8;
/// For each id, how many bytes a rebuilt record of SLIDE reserves for new entries of the log. A record of n ids then has room for n / 2
/// entries of 8 bytes before it is rebuilt again, so each entry costs the writing of two slots.
const GROWTH: usize = 4;
/// Patches with at most this many bytes between them are joined: one effect that also writes these bytes is shorter than two effects.
const GAP: usize = 40;
/// If the search for an empty cell takes more steps than this, ids collide more often than chance explains: a caller who has read the
/// seed may have chosen them. The cells are then computed again with another seed, as far as [`MIN_ADDED`] allows.
const MAX_STEPS: usize = 64;
/// The cells are not computed again before this many ids were added, because that takes O(n) time.
const MIN_ADDED: usize = 1_024;

/// A ledger that is being changed.
pub(in crate::limiter) struct Edit<'a> {
    /// The algorithm of the record.
    kind: Kind,
    /// The ledger in the old record; `None` if that has none.
    old: Option<Ledger<'a>>,
    /// The new header, apart from the fields that [`Self::finish`] computes. Its [`Header::aggregate`] is at any time that of the slots
    /// of the old record with the changes made so far, unless [`Self::is_wide`].
    pub(in crate::limiter) header: Header,
    /// Whether the moments of [`Header::aggregate`] may lie further apart than those of the live slots.
    is_wide: bool,
    /// The slots that differ from `old`, by index.
    changed: BTreeMap<usize, Slot>,
    /// The aggregates of changed blocks that were computed since the last change.
    computed: BTreeMap<usize, Aggregate>,
    /// The id that is added. An edit adds at most one.
    added: Option<Added<'a>>,
}

/// An id that is added, with its slot.
#[derive(Clone, Copy)]
struct Added<'a> {
    id: Id<'a>,
    slot: Slot,
    random: RandomSeed,
}

/// A new inner record, as a change of the old one: `head`, then the bytes of the old one up to `offset`, then `tail`.
#[derive(Clone, Copy)]
pub(in crate::limiter) struct Inner<'f> {
    pub(in crate::limiter) head: &'f [u8],
    pub(in crate::limiter) offset: usize,
    pub(in crate::limiter) tail: &'f [u8],
}

impl<'f> Inner<'f> {
    /// An inner record that keeps nothing of the old one.
    pub(in crate::limiter) const fn whole(bytes: &'f [u8]) -> Self {
        Self { head: &[], offset: 0, tail: bytes }
    }

    pub(in crate::limiter) const fn len(&self) -> usize {
        self.offset + self.tail.len()
    }
}

/// What [`Edit::finish`] needs to know besides the slots.
pub(in crate::limiter) struct Finish<'f> {
    pub(in crate::limiter) inner: Inner<'f>,
    /// Whether the whole record must be rebuilt, because the slots move with the new inner record.
    pub(in crate::limiter) rewritten: bool,
    /// How many bytes a rebuilt record reserves for the inner record, at least.
    pub(in crate::limiter) room: usize,
    /// Whether what a slot holds is past, by its [`Slot::when`], so that a rebuilt record does not contain its id.
    pub(in crate::limiter) is_past: &'f dyn Fn(i64) -> bool,
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
    pub(in crate::limiter) fn new(kind: Kind, old: Option<Ledger<'a>>) -> Self {
        Self {
            kind,
            old,
            header: old.map_or(Header::EMPTY, |old| old.header),
            is_wide: old.is_some_and(|old| old.header.is_version_2),
            changed: BTreeMap::new(),
            computed: BTreeMap::new(),
            added: None,
        }
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

    /// The latest [`Slot::when`] of the live slots of the old record, as changed; `None` if there are none.
    pub(in crate::limiter) fn last_when(&mut self) -> Option<i64> {
        if self.is_wide {
            let mut touched: Vec<usize> = self.changed.keys().map(|index| index / BLOCK).collect();
            touched.dedup();
            self.header.aggregate = (0..self.old_len().div_ceil(BLOCK)).fold(Aggregate::NONE, |all, block| {
                let untouched = self.old.filter(|old| !old.header.is_version_2 && !touched.contains(&block));
                all.join(untouched.map_or_else(|| self.block(block), |old| old.block(block)))
            });
            self.is_wide = false;
        }
        let Aggregate { first, last, .. } = self.header.aggregate;
        (first <= last).then_some(last)
    }

    /// The weight of slot `index` of the old record, as changed.
    pub(super) fn weight(&self, index: usize) -> u128 {
        let changed = if self.changed.is_empty() { None } else { self.changed.get(&index) };
        changed.map_or_else(|| self.old.map_or(0, |old| old.weight(index)), |slot| slot.weight)
    }

    /// The sum of the weights of a block of the old record, without the changes.
    pub(super) fn old_weights(&self, block: usize) -> u128 {
        self.old.map_or(0, |old| old.block(block).weights)
    }

    /// Replaces a slot of the old record.
    pub(in crate::limiter) fn set(&mut self, index: usize, slot: Slot) {
        let Some(before) = self.slot(index) else {
            debug_assert!(false, "there is no slot {index} in a ledger of {}", self.old_len());
            return;
        };
        let aggregate = self.header.aggregate;
        self.is_wide |= aggregate.may_narrow(&before, &slot);
        let weights = aggregate.weights.wrapping_sub(Aggregate::weight_of(&before, self.kind));
        self.header.aggregate = Aggregate { weights, ..aggregate }.join(Aggregate::of(&slot, self.kind));
        self.changed.insert(index, slot);
        self.computed.clear();
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
    pub(in crate::limiter) fn append(&mut self, id: Id<'a>, slot: Slot, random: RandomSeed) {
        if self.header.live >= MAX_IDS {
            while let Some(slot) = self.slot(self.header.first) {
                if slot.is_live() {
                    self.kill(self.header.first);
                    break;
                }
                self.header.first += 1;
            }
        }
        let slot = Slot { len: id.as_bytes().len(), ..slot };
        self.header.live += 1;
        self.added = Some(Added { id, slot, random });
    }

    /// Whether the old record is damaged: what is true of sound records need not be true of the new one then.
    pub(super) fn was_damaged(&self) -> bool {
        self.old.is_some_and(|old| old.fault(self.kind).is_some())
    }

    /// Whether all ids that are left are past, or none is left.
    pub(in crate::limiter) fn is_empty(&mut self, is_past: &dyn Fn(i64) -> bool) -> bool {
        self.added.is_none() && self.last_when().is_none_or(is_past)
    }

    /// Whether all ids of the old record are past. In version 2 that is not known, but such a record is rebuilt anyway.
    pub(in crate::limiter) fn was_empty(&self, is_past: &dyn Fn(i64) -> bool) -> bool {
        self.old.is_none_or(|old| old.header.is_version_2 || old.header.live == 0 || is_past(old.header.aggregate.last))
    }

    /// Whether the changes can be written as patches, if the new inner record has `inner_len` bytes.
    pub(in crate::limiter) fn fits(&self, inner_len: usize) -> bool {
        let id_len = self.added.map_or(0, |added| added.slot.len);
        !self.header.is_version_2
            && inner_len <= self.header.inner_room
            && id_len <= self.header.id_room
            && self.header.used + usize::from(self.added.is_some()) <= self.header.capacity
            && self.changed.len() <= self.header.used / 4 + BLOCK
    }

    /// Encodes the record. If no id is left, and the inner record is rewritten or has at most `strip` bytes, the new record is
    /// the inner record alone.
    pub(in crate::limiter) fn finish(self, finish: &Finish<'_>, strip: usize, bytes: &mut Bytes) -> Change {
        let (kind, old) = (self.kind, self.old);
        let change = self.encode(finish, strip, bytes);
        debug_assert_eq!(sound::fault_after(kind, old, &change, bytes), None);
        change
    }

    fn encode(mut self, finish: &Finish<'_>, strip: usize, bytes: &mut Bytes) -> Change {
        let inner_len = finish.inner.len();
        if self.is_empty(finish.is_past) && (finish.rewritten || inner_len <= strip) {
            *bytes = Bytes::with_capacity(inner_len);
            self.put_inner(finish, bytes);
            return Change::Write { offset: 0, head: 0, expires: finish.expires, slack: finish.slack };
        }
        match self.old {
            Some(old) if self.fits(inner_len) && !finish.rewritten => {
                self.header.revision = self.header.revision.wrapping_add(1);
                self.header.inner_len = inner_len;
                let patches = self.patches(&old, finish.inner);
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
        let Inner { head, offset, tail } = finish.inner;
        let kept = self.old.map_or(&[][..], |old| old.inner());
        bytes.extend(head);
        bytes.extend(kept.get(head.len()..offset).unwrap_or_default());
        bytes.extend(tail);
    }

    /// The patches, by offset: see [`Change::Patch`]. Also completes the header.
    fn patches(&mut self, old: &Ledger<'_>, Inner { head, offset, tail }: Inner<'_>) -> BTreeMap<usize, Vec<u8>> {
        let mut patches = BTreeMap::new();
        for (&index, slot) in &self.changed {
            let (before, at) = (old.slot(index), self.header.slot_at(index));
            if before.weight != slot.weight {
                let weight = slot.weight.to_le_bytes();
                patches.insert(self.header.slot_at(index + 1) - WEIGHT, weight.to_vec());
            }
            let (before, after) = (before.head(), slot.head());
            if before != after {
                // If a slot dies, only the length of its id changes, which is one byte.
                let len = if before[1..] == after[1..] { 1 } else { after.len() };
                patches.insert(at, after[..len].to_vec());
            }
        }
        let mut touched: Vec<usize> = self.changed.keys().map(|index| index / BLOCK).collect();
        if let Some(Added { id, slot, random }) = self.added {
            let index = self.header.used;
            self.header.used += 1;
            patches.insert(self.header.slot_at(index), encoded(id.as_bytes(), &slot, self.header.id_room));
            let steps = old.probe(id).take_while(|&(_, cell)| cell != 0).count();
            if steps > MAX_STEPS && index.saturating_sub(self.header.indexed) >= MIN_ADDED {
                self.header.seed = random();
                self.header.indexed = self.header.used;
                let live = (0..index).filter(|&index| self.slot(index).is_some_and(|slot| slot.is_live()));
                let ids = live.map(|index| (index, old.id(index))).chain([(index, id.as_bytes())]);
                patches.insert(self.header.cells_at(), cells(&self.header, ids));
            } else if let Some((cell, _)) = old.probe(id).nth(steps) {
                let at = self.header.cells_at() + CELL * cell;
                patches.insert(at, (index as u32 + 1).to_le_bytes().to_vec());
            }
            touched.push(index / BLOCK);
        }
        touched.dedup();
        let added = self.added.map_or(Aggregate::NONE, |added| Aggregate::of(&added.slot, self.kind));
        for block in touched {
            let has_added = self.added.is_some() && block == self.old_len() / BLOCK;
            let aggregate = self.block(block).join(if has_added { added } else { Aggregate::NONE });
            patches.insert(self.header.block_at(block), aggregate.encode().to_vec());
        }
        self.last_when();
        self.header.aggregate = self.header.aggregate.join(added);
        patches.insert(0, self.header.encode(self.kind).to_vec());
        if !head.is_empty() {
            patches.insert(LEDGER_HEADER, head.to_vec());
        }
        if !tail.is_empty() {
            patches.insert(LEDGER_HEADER + offset, tail.to_vec());
        }
        patches
    }

    /// The aggregate of a block of the old record, as changed.
    fn block(&mut self, block: usize) -> Aggregate {
        if let Some(&computed) = self.computed.get(&block) {
            return computed;
        }
        let range = BLOCK * block..(BLOCK * (block + 1)).min(self.old_len());
        // The block of the added slot may have no other slot yet, and so no aggregate.
        let before = self.old.filter(|_| !range.is_empty()).map_or(Aggregate::NONE, |old| old.block(block));
        let mut after = before;
        let mut is_wide = self.old.is_some_and(|old| old.header.is_version_2);
        let changed = self.changed.range(range.clone());
        for (&index, slot) in changed.clone() {
            let Some(was) = self.old.map(|old| old.slot(index)) else { break };
            is_wide |= before.may_narrow(&was, slot);
            after = after.join(Aggregate::of(slot, self.kind));
            after.weights = after.weights.wrapping_sub(Aggregate::weight_of(&was, self.kind));
        }
        if is_wide {
            // The changes come in the order of their slots, so that no slot is searched for.
            let mut changed = changed.peekable();
            let moments = range.map(|index| match changed.next_if(|(&at, _)| at == index) {
                Some((_, slot)) => slot.is_live().then_some(slot.when),
                None => self.old.and_then(|old| old.live_when(index)),
            });
            let moments = moments.map(Aggregate::of_moment).fold(Aggregate::NONE, Aggregate::join);
            after = Aggregate { weights: after.weights, ..moments };
            self.computed.insert(block, after);
        }
        after
    }

    /// The whole record without dead slots, with room for more.
    fn rebuilt(mut self, finish: &Finish<'_>) -> Bytes {
        let mut kept: Vec<(&[u8], Slot)> = Vec::with_capacity(self.header.live);
        // The sum of the weights of the slots that were dropped since the last kept one, and their `when`. The next slot of the same
        // stack gets this sum, because it is a part of what is refundable of all later ids.
        let (mut dropped_when, mut dropped) = (0, 0_u128);
        let old = self.old.into_iter().flat_map(|old| (0..old.len()).map(move |index| (old.id(index), index)));
        for (id, index) in old {
            let Some(stored) = self.slot(index) else { break };
            let slot = (finish.moved)(stored);
            let stays = slot.is_live() && !(finish.is_past)(stored.when);
            if slot.emptied {
                kept.extend(stays.then_some((id, slot)));
                continue;
            }
            if dropped_when != slot.when && !finish.one_level {
                (dropped_when, dropped) = (slot.when, 0);
            }
            let slot = Slot { weight: slot.weight.wrapping_add(dropped), ..slot };
            if stays {
                kept.push((id, slot));
                dropped = 0;
            } else {
                dropped = slot.weight;
            }
        }
        if let Some(Added { id, slot, random }) = self.added {
            let weight = if dropped_when == slot.when || finish.one_level { dropped } else { 0 };
            kept.push((id.as_bytes(), Slot { weight: slot.weight.wrapping_add(weight), ..slot }));
            self.header.seed = random();
        }

        let inner_len = finish.inner.len();
        let longest = kept.iter().map(|(id, _)| id.len()).max().unwrap_or(1);
        self.header.revision = self.header.revision.wrapping_add(1);
        self.header.inner_len = inner_len;
        // A log grows with each call, so its room grows with the ids, which a rebuild writes again.
        let growth = if finish.one_level { 0 } else { GROWTH * kept.len() };
        self.header.inner_room = finish.room.max(inner_len + growth).next_multiple_of(8);
        self.header.capacity = kept.len() + SPARE.max(kept.len() / 2).max(inner_len / 128);
        self.header.capacity = self.header.capacity.min(super::MAX_SLOTS);
        self.header.used = kept.len();
        self.header.live = kept.len();
        self.header.first = 0;
        self.header.id_room = longest.next_multiple_of(8);
        self.header.indexed = kept.len();
        self.header.is_version_2 = false;
        let kind = self.kind;
        let of = |slots: &[(_, Slot)]| {
            slots.iter().map(|(_, slot)| Aggregate::of(slot, kind)).fold(Aggregate::NONE, Aggregate::join)
        };
        let blocks: Vec<_> = kept.chunks(BLOCK).map(of).collect();
        self.header.aggregate = blocks.iter().copied().fold(Aggregate::NONE, Aggregate::join);
        let header = &self.header;
        let mut bytes = Bytes::with_capacity(header.len().max(Bytes::SHORT + 1));
        bytes.extend(&header.encode(self.kind));
        self.put_inner(finish, &mut bytes);
        bytes.fill(header.cells_at());
        bytes.extend(&cells(header, kept.iter().map(|&(id, _)| id).enumerate()));
        for block in &blocks {
            bytes.extend(&block.encode());
        }
        bytes.fill(header.slot_at(0));
        for (id, slot) in &kept {
            bytes.extend(&encoded(id, slot, header.id_room));
        }
        bytes
    }
}

/// The cells for these ids, each with the index of its slot, as they are stored.
fn cells<'i>(header: &Header, ids: impl Iterator<Item = (usize, &'i [u8])>) -> Vec<u8> {
    let mut cells = vec![0_u32; header.cells()];
    for (index, id) in ids {
        let start = hash(header.seed, id) as usize;
        let mut places = (0..cells.len()).map(|step| start.wrapping_add(step) & (cells.len() - 1));
        if let Some(place) = places.find(|&place| cells[place] == 0) {
            cells[place] = index as u32 + 1;
        }
    }
    cells.iter().flat_map(|cell| cell.to_le_bytes()).collect()
}

/// A slot as it is stored. `id_room` is the number of bytes that it reserves for the id.
fn encoded(id: &[u8], slot: &Slot, id_room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SLOT + id_room);
    bytes.extend_from_slice(&slot.head());
    bytes.extend_from_slice(id);
    bytes.resize(HEAD + id_room, 0);
    bytes.extend_from_slice(&slot.weight.to_le_bytes());
    bytes
}

/// Writes patches to `bytes`, and joins those that are close to each other.
fn put_patches(old: &[u8], patches: BTreeMap<usize, Vec<u8>>, bytes: &mut Bytes) {
    *bytes = Bytes::default();
    let mut end = None;
    for (at, patch) in patches {
        debug_assert!(end.is_none_or(|end| end <= at), "a patch at {at} overlaps the one before, which ends at {end:?}");
        match end.and_then(|end: usize| old.get(end..at).filter(|between| between.len() <= GAP)) {
            Some(between) => bytes.extend(between),
            None => bytes.start_patch(at),
        }
        bytes.extend(&patch);
        end = Some(at + patch.len());
    }
}
