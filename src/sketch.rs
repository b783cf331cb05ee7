//! Counts the denials of the most denied keys in a table of fixed size, which does not grow with the number of keys.
//!
//! The algorithm is Space-Saving (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", 2005). If the table is full, a new key replaces the key with the lowest count, and starts with its count. In a
//! table for n keys, no count is too low, no count is too high by more than an n-th of all denials, and every key with more
//! denials than that is in the table.
//!
//! Beyond that algorithm, all counts are halved after each half-life, so that they reflect recent denials, and a key is removed when
//! its count falls below one. So a count can also be too low, by up to two.
//!
//! Pure, as [`limiter`](crate::limiter): time is an argument, and all numbers are integers.
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use crate::limiter::{Instant, Span};

/// One denial, in the units of the counts. The units are smaller than a denial because halving makes fractions.
const ONE: u64 = 1 << 16;

/// The table stores this many bytes of a name at most. Names that differ only after them count as one.
pub const LONGEST_NAME: usize = 512;

/// The table.
#[derive(Debug)]
pub struct Sketch {
    /// The hash table (open addressing). A cell holds the index of an entry in `entries`, plus 1; a free cell holds 0. There are at
    /// least four times as many cells as entries.
    cells: Box<[u16]>,
    entries: Vec<Entry>,
    /// The counts of the entries, in the same order: see [the module](self) for how far they can be wrong.
    counts: Vec<u64>,
    /// The most entries.
    capacity: usize,
    half_life: Span,
    seed: [u64; 2],
    /// When all counts are halved the next time.
    fades_at: Instant,
    /// The place of the entry that was counted last. The next call is likely to count it again.
    last: usize,
    /// Once the table is full: no count is lower than this.
    least: u64,
    /// Once the table is full: the entries before this place have counts above `least`.
    scan_from: usize,
}

#[derive(Debug, Default)]
struct Entry {
    hash: u32,
    db: i32,
    name: Vec<u8>,
    /// The part of the count that is certain.
    certain: u64,
}

/// A key in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top<'s> {
    /// The number of its database.
    pub db: i32,
    /// Its name, up to [`LONGEST_NAME`].
    pub name: &'s [u8],
    /// How often the key was counted, rounded up.
    pub count: u64,
    /// The most by which `count` may be too high.
    pub over: u64,
}

impl Sketch {
    /// An empty table for `capacity` keys (at most 8192), in which counts are halved after each `half_life`, which must not be
    /// 0. The `seed` should be secret, since it would allow a caller to choose names that collide, which take longer to count.
    pub fn new(capacity: usize, half_life: Span, seed: [u64; 2], now: Instant) -> Self {
        let fades_at = now.saturating_add(half_life);
        let cells = vec![0; (4 * capacity).next_power_of_two()].into();
        let (entries, counts) = (Vec::new(), Vec::new());
        Self { cells, entries, counts, capacity, half_life, seed, fades_at, last: 0, least: 0, scan_from: 0 }
    }

    /// Whether the table has this capacity and this half-life.
    #[inline]
    pub fn is_for(&self, capacity: usize, half_life: Span) -> bool {
        (self.capacity, self.half_life) == (capacity, half_life)
    }

    /// Counts one denial of a key.
    pub fn count(&mut self, db: i32, name: &[u8], now: Instant) {
        self.fade(now);
        if self.capacity == 0 {
            return;
        }
        let name = &name[..name.len().min(LONGEST_NAME)];
        // The next denial is often one of the same key, which needs no hash.
        if self.entries.get(self.last).is_none_or(|entry| entry.db != db || entry.name != name) {
            self.last = self.place_of(db, name);
        }
        let found = self.last;
        self.counts[found] = self.counts[found].saturating_add(ONE);
        let entry = &mut self.entries[found];
        entry.certain = entry.certain.saturating_add(ONE);
    }

    /// The place of a key's entry, which is added if there is none.
    fn place_of(&mut self, db: i32, name: &[u8]) -> usize {
        let hash = hash(self.seed, db, name);
        if let Some(found) = self.find(hash, db, name) {
            return found;
        }
        let place = if self.entries.len() < self.capacity {
            self.entries.push(Entry::default());
            self.counts.push(0);
            (self.least, self.scan_from) = (0, 0);
            self.entries.len() - 1
        } else {
            let place = self.place_of_least();
            self.unlink(place);
            place
        };
        self.assign(place, hash, db, name);
        place
    }

    /// The keys with the highest counts, at most `most` of them, sorted from the highest count down.
    pub fn top(&mut self, most: usize, now: Instant) -> Vec<Top<'_>> {
        self.fade(now);
        let mut top: Vec<_> = self.counts.iter().zip(&self.entries).collect();
        // Equal counts are ordered by their certain part, then by name, so the order is always the same.
        top.sort_by_key(|(count, entry)| (Reverse((**count, entry.certain)), entry.db, &entry.name));
        let rows = top.into_iter().take(most).map(|(count, entry)| {
            let count = count.div_ceil(ONE);
            Top { db: entry.db, name: &entry.name, count, over: count - entry.certain / ONE }
        });
        rows.collect()
    }

    /// Forgets all keys.
    pub fn reset(&mut self) {
        self.entries.clear();
        self.counts.clear();
        self.cells.fill(0);
        self.last = 0;
    }

    /// Halves the counts once for each half-life that has passed.
    #[inline(always)]
    fn fade(&mut self, now: Instant) {
        if now < self.fades_at {
            // If the clock was set back, counts must not wait for it to catch up before they are halved again.
            self.fades_at = self.fades_at.min(now.saturating_add(self.half_life));
        } else {
            self.halve(now);
        }
    }

    /// [`Self::fade`], if at least one half-life has passed.
    #[cold]
    fn halve(&mut self, now: Instant) {
        let passed = now.since(self.fades_at).as_us() / self.half_life.as_us() + 1;
        self.fades_at = self.fades_at.saturating_add(Span::from_us(passed.saturating_mul(self.half_life.as_us())));
        let times = u32::try_from(passed).unwrap_or(u32::MAX).min(63);
        self.counts.iter_mut().for_each(|count| *count = count.div_ceil(1 << times));
        self.entries.iter_mut().for_each(|entry| entry.certain >>= times);
        let mut counts = self.counts.iter();
        self.entries.retain(|_| counts.next().is_some_and(|&count| count >= ONE));
        self.counts.retain(|&count| count >= ONE);
        self.cells.fill(0);
        (0..self.entries.len()).for_each(|place| self.link(place));
        (self.last, self.least, self.scan_from) = (0, 0, 0);
    }

    fn find(&self, hash: u32, db: i32, name: &[u8]) -> Option<usize> {
        let is = |entry: &Entry| entry.hash == hash && entry.db == db && entry.name == name;
        let places = self.cells_from(hash).map(|cell| self.cells[cell]).take_while(|&place| place > 0);
        places.map(|place| usize::from(place) - 1).find(|&place| is(&self.entries[place]))
    }

    /// The cells that may hold an entry with this hash, in the order of the search. The entry was put into the first free one.
    fn cells_from(&self, hash: u32) -> impl Iterator<Item = usize> {
        let (first, len) = (hash as usize, self.cells.len());
        (0..len).map(move |index| (first + index) & (len - 1))
    }

    /// Assigns the entry at `place`, which has no cell, to a key.
    fn assign(&mut self, place: usize, hash: u32, db: i32, name: &[u8]) {
        let entry = &mut self.entries[place];
        (entry.hash, entry.db, entry.certain) = (hash, db, 0);
        entry.name.clear();
        entry.name.extend_from_slice(name);
        self.link(place);
    }

    /// Puts the entry at `place` into a free cell.
    fn link(&mut self, place: usize) {
        let free = self.cells_from(self.entries[place].hash).find(|&cell| self.cells[cell] == 0);
        if let Some(cell) = free {
            self.cells[cell] = place as u16 + 1;
        }
    }

    /// Frees the cell of the entry at `place`. Entries in the cells after it move up, because a search ends at a free cell.
    fn unlink(&mut self, place: usize) {
        let own = self.cells_from(self.entries[place].hash).find(|&cell| usize::from(self.cells[cell]) == place + 1);
        let (Some(mut free), mask) = (own, self.cells.len() - 1) else { return };
        let mut cell = free;
        loop {
            cell = (cell + 1) & mask;
            let Some(other) = usize::from(self.cells[cell]).checked_sub(1) else { break };
            let wanted = self.entries[other].hash as usize & mask;
            // An entry may not move before the cell at which the search for it begins.
            if cell.wrapping_sub(wanted) & mask >= cell.wrapping_sub(free) & mask {
                self.cells[free] = self.cells[cell];
                free = cell;
            }
        }
        self.cells[free] = 0;
    }

    /// The place of an entry with the lowest count, in a full table. If `least` is still the lowest count, the search goes on from
    /// `scan_from`, so that it does not look at all entries in each call.
    fn place_of_least(&mut self) -> usize {
        let found = self.counts[self.scan_from..].iter().position(|&count| count <= self.least);
        let place = found.map_or_else(
            || {
                self.least = self.counts.iter().copied().fold(u64::MAX, u64::min);
                self.counts.iter().position(|&count| count == self.least).unwrap_or(0)
            },
            |found| self.scan_from + found,
        );
        self.scan_from = place + 1;
        place
    }
}

/// Mixes eight bytes at a time by a full multiplication, so that the hash depends on all bits of the seed.
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
