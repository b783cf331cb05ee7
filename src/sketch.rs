//! The keys that are denied most: counted in a table of fixed size, however many keys there are.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005): a
//! key that is not in a full table takes the place, and the count, of the one with the least. So no count is too high by more than
//! an n-th of all there was to count, in a table for n, nor is any too low; and whoever has more than that is in the table. Counts
//! halve each half-life, so that they tell of late; what has faded below one is forgotten, so up to two may be missing from a count.
//!
//! As pure as [`limiter`](crate::limiter): time is an argument, and all numbers are integers.
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use crate::limiter::{Instant, Span};

/// One, in the units of the counts: they fade by the half, down to fractions.
const ONE: u64 = 1 << 16;

/// Names are kept up to this length, in bytes; those that differ only after it count as one.
pub const LONGEST_NAME: usize = 512;

/// The table.
#[derive(Debug)]
pub struct Sketch {
    /// Where an entry is, from its hash on (open addressing): its place, from 1 on; 0: nothing. Four times as many as entries.
    slots: Box<[u16]>,
    entries: Vec<Entry>,
    /// Of the entries, in their order: at least what there was to count.
    counts: Vec<u64>,
    most: usize,
    half_life: Span,
    seed: [u64; 2],
    /// When all counts halve next.
    fades: Instant,
    /// Where it was found last: it is likely to be there again.
    last: usize,
    /// No count is less, once the table is full. Entries before `next` are known to have more.
    least: u64,
    next: usize,
}

#[derive(Debug, Default)]
struct Entry {
    hash: u32,
    db: i32,
    name: Vec<u8>,
    /// At most what there was to count.
    sure: u64,
}

/// A key in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top<'s> {
    /// The number of its database.
    pub db: i32,
    /// Its name, up to [`LONGEST_NAME`].
    pub name: &'s [u8],
    /// How often it was counted, rounded up.
    pub count: u64,
    /// By how much that may be too high, at most.
    pub over: u64,
}

impl Sketch {
    /// An empty table for so many keys (at most 8192), in which counts halve after each `half_life`, which is not 0. Whoever
    /// knows the `seed` can make names that take longer to count.
    pub fn new(most: usize, half_life: Span, seed: [u64; 2], now: Instant) -> Self {
        let fades = now.saturating_add(half_life);
        let slots = vec![0; (4 * most).next_power_of_two()].into();
        let (entries, counts) = (Vec::new(), Vec::new());
        Self { slots, entries, counts, most, half_life, seed, fades, last: 0, least: 0, next: 0 }
    }

    /// Whether it is a table for so many keys, with such a half-life.
    #[inline]
    pub fn is_for(&self, most: usize, half_life: Span) -> bool {
        (self.most, self.half_life) == (most, half_life)
    }

    /// Counts a key.
    pub fn count(&mut self, db: i32, name: &[u8], now: Instant) {
        self.fade(now);
        if self.most == 0 {
            return;
        }
        let name = &name[..name.len().min(LONGEST_NAME)];
        let hash = hash(self.seed, db, name);
        let found = self.find(hash, db, name).unwrap_or_else(|| {
            if self.entries.len() < self.most {
                self.entries.push(Entry::default());
                self.counts.push(0);
                (self.least, self.next) = (0, 0);
                self.name(self.entries.len() - 1, hash, db, name)
            } else {
                let place = self.place_of_least();
                self.unlink(place);
                self.name(place, hash, db, name)
            }
        });
        self.last = found;
        self.counts[found] = self.counts[found].saturating_add(ONE);
        let entry = &mut self.entries[found];
        entry.sure = entry.sure.saturating_add(ONE);
    }

    /// The keys with the highest counts, at most `most`, the highest first.
    pub fn top(&mut self, most: usize, now: Instant) -> Vec<Top<'_>> {
        self.fade(now);
        let mut top: Vec<_> = self.counts.iter().zip(&self.entries).collect();
        // Where counts are the same, what is sure comes first, and then the names decide: the order is always the same.
        top.sort_by_key(|(count, entry)| (Reverse((**count, entry.sure)), entry.db, &entry.name));
        let rows = top.into_iter().take(most).map(|(count, entry)| {
            let count = count.div_ceil(ONE);
            Top { db: entry.db, name: &entry.name, count, over: count - entry.sure / ONE }
        });
        rows.collect()
    }

    /// Forgets all keys.
    pub fn reset(&mut self) {
        self.entries.clear();
        self.counts.clear();
        self.slots.fill(0);
        self.last = 0;
    }

    /// Halves the counts, once for each half-life that has passed.
    fn fade(&mut self, now: Instant) {
        if now < self.fades {
            // A clock that was set back by far does not stop the fading for as long.
            self.fades = self.fades.min(now.saturating_add(self.half_life));
            return;
        }
        let passed = now.since(self.fades).as_us() / self.half_life.as_us() + 1;
        self.fades = self.fades.saturating_add(Span::from_us(passed.saturating_mul(self.half_life.as_us())));
        let times = u32::try_from(passed).unwrap_or(u32::MAX).min(63);
        self.counts.iter_mut().for_each(|count| *count = count.div_ceil(1 << times));
        self.entries.iter_mut().for_each(|entry| entry.sure >>= times);
        let mut counts = self.counts.iter();
        self.entries.retain(|_| counts.next().is_some_and(|&count| count >= ONE));
        self.counts.retain(|&count| count >= ONE);
        self.slots.fill(0);
        (0..self.entries.len()).for_each(|place| self.link(place));
        (self.last, self.least, self.next) = (0, 0, 0);
    }

    fn find(&self, hash: u32, db: i32, name: &[u8]) -> Option<usize> {
        let is = |entry: &Entry| entry.hash == hash && entry.db == db && entry.name == name;
        if self.entries.get(self.last).is_some_and(is) {
            return Some(self.last);
        }
        let places = self.slots_from(hash).map(|slot| self.slots[slot]).take_while(|&place| place > 0);
        places.map(|place| usize::from(place) - 1).find(|&place| is(&self.entries[place]))
    }

    /// The slots where an entry with this hash may be: it is in the first of them that was free.
    fn slots_from(&self, hash: u32) -> impl Iterator<Item = usize> {
        let (first, len) = (hash as usize, self.slots.len());
        (0..len).map(move |index| (first + index) & (len - 1))
    }

    /// The entry at `place`, which has no slot, becomes that of a key.
    fn name(&mut self, place: usize, hash: u32, db: i32, name: &[u8]) -> usize {
        let entry = &mut self.entries[place];
        (entry.hash, entry.db, entry.sure) = (hash, db, 0);
        entry.name.clear();
        entry.name.extend_from_slice(name);
        self.link(place);
        place
    }

    /// Gives the entry at `place` a slot.
    fn link(&mut self, place: usize) {
        let free = self.slots_from(self.entries[place].hash).find(|&slot| self.slots[slot] == 0);
        if let Some(slot) = free {
            self.slots[slot] = place as u16 + 1;
        }
    }

    /// Takes the slot of the entry at `place`. Those behind it move up, so that no search ends before them.
    fn unlink(&mut self, place: usize) {
        let own = self.slots_from(self.entries[place].hash).find(|&slot| usize::from(self.slots[slot]) == place + 1);
        let (Some(mut free), mask) = (own, self.slots.len() - 1) else { return };
        let mut slot = free;
        loop {
            slot = (slot + 1) & mask;
            let Some(other) = usize::from(self.slots[slot]).checked_sub(1) else { break };
            let wanted = self.entries[other].hash as usize & mask;
            // It may move if that does not put it before the slot that it is searched from.
            if slot.wrapping_sub(wanted) & mask >= slot.wrapping_sub(free) & mask {
                self.slots[free] = self.slots[slot];
                free = slot;
            }
        }
        self.slots[free] = 0;
    }

    /// The place of an entry with the least count, of a table that is full. Of `most` calls, one has to look at all.
    fn place_of_least(&mut self) -> usize {
        let ahead = self.counts[self.next..].iter().position(|&count| count <= self.least);
        let place = ahead.map_or_else(
            || {
                self.least = self.counts.iter().copied().fold(u64::MAX, u64::min);
                self.counts.iter().position(|&count| count == self.least).unwrap_or(0)
            },
            |ahead| self.next + ahead,
        );
        self.next = place + 1;
        place
    }
}

/// Eight bytes at a time, each time multiplied in full: what becomes of them depends on all bits of the seed.
fn hash(seed: [u64; 2], db: i32, name: &[u8]) -> u32 {
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(seed[1] | 1);
        product as u64 ^ (product >> 64) as u64
    };
    let start = mix(seed[0] ^ name.len() as u64, db as u64);
    let (words, rest) = name.as_chunks::<8>();
    let hash = words.iter().fold(start, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let hash = rest.iter().fold(hash, |hash, &byte| mix(hash, byte.into()));
    mix(hash, 0) as u32
}
