//! Finds an entry in a log.
//!
//! A binary search reads another cache line in nearly each step. In a long log that is not in the caches, that takes longer than all else
//! that a call does. The search in this file first reads the entries at both ends, which a call needs anyway. Then it guesses: grants come
//! at about the same rate during a period, so the place of an entry follows from its value (interpolation search: Peterson, "Addressing for
//! Random-Access Storage", 1957).

use super::log::{Entry, ENTRY};

/// The entries in a cache line.
const CACHE_LINE: usize = 64 / ENTRY;

/// The index of the first entry whose value, by `value`, is at least `wanted`; the number of entries if there is none. The result is that
/// of `entries.partition_point(|entry| value(entry) < wanted)`.
///
/// Values must ascend, and must be less than 2^32. In a damaged log they may not ascend: the result then has no meaning, but is in the same
/// range.
#[inline(always)]
pub(super) fn first_reaching(entries: &[Entry], wanted: u64, value: impl Fn(&Entry) -> u64) -> usize {
    match entries.first() {
        Some(first) if value(first) < wanted => after_first(entries, wanted, value),
        // In most calls it is the first entry.
        _ => 0,
    }
}

/// [`first_reaching`] if the first entry has a value below `wanted`.
fn after_first(entries: &[Entry], wanted: u64, value: impl Fn(&Entry) -> u64) -> usize {
    let ([first, ..], [.., last]) = (entries, entries) else {
        debug_assert!(false, "there is a first entry");
        return 0;
    };
    let is_below = |entry: &Entry| value(entry) < wanted;
    if is_below(last) {
        return entries.len();
    }
    // The entry at `low` is below `wanted`, the entry at `high` is not.
    let (mut low, mut high) = (0, entries.len() - 1);
    let (all, part) = (value(last) - value(first), wanted - value(first));
    // The product fits: a value is less than 2^32, and so is an index.
    let mut guess = (part * high as u64 / all) as usize;
    guess = guess.min(high - 1).max(1);
    // The steps away from the guess become longer and longer, so that a wrong guess costs few of them. The loop ends when `wanted` lies
    // within the last step.
    let mut step = CACHE_LINE;
    while low < guess && guess < high {
        if is_below(&entries[guess]) {
            low = guess;
            guess = guess.saturating_add(step);
        } else {
            high = guess;
            guess = guess.saturating_sub(step);
        }
        step *= 2;
    }
    low + 1 + entries[low + 1..high].partition_point(is_below)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::ptr;

    use proptest::prelude::*;

    use super::*;
    use crate::limiter::slide::log::{entry, offset};

    fn value(entry: &Entry) -> u64 {
        offset(entry).into()
    }

    /// Entries with these values.
    fn entries(values: &[u32]) -> Vec<Entry> {
        values.iter().map(|&value| entry(value, 0)).collect()
    }

    /// Values that are spread evenly, that are crowded at one end, or that are equal.
    fn values() -> impl Strategy<Value = Vec<u32>> {
        let shift = prop_oneof![Just(0_u32), 0..32_u32];
        prop::collection::vec((any::<u32>(), shift).prop_map(|(value, shift)| value >> shift), 0..600)
    }

    proptest! {
        #[test]
        fn it_finds_the_entry_that_a_binary_search_finds(mut values in values(), any: u32, at: prop::sample::Index, near in 0..3_u64) {
            values.sort_unstable();
            let entries = entries(&values);
            let present = if values.is_empty() { 0 } else { values[at.index(values.len())] };
            for wanted in [any.into(), u64::from(present) + near, 0, 1 << 32] {
                let expected = entries.partition_point(|entry| value(entry) < wanted);
                prop_assert_eq!(first_reaching(&entries, wanted, value), expected, "{} in {:?}", wanted, values);
            }
        }

        #[test]
        fn a_damaged_log_gives_an_index_in_the_same_range(values in values(), wanted in 0..=1_u64 << 32) {
            prop_assert!(first_reaching(&entries(&values), wanted, value) <= values.len());
        }
    }

    #[test]
    fn entries_that_come_at_a_steady_rate_take_few_reads() {
        let values: Vec<u32> = (0..4000).map(|index| 100 * index + index * 7919 % 97).collect();
        let entries = entries(&values);
        let lines_read = |wanted: u32| {
            let lines = RefCell::new(BTreeSet::new());
            first_reaching(&entries, wanted.into(), |entry| {
                lines.borrow_mut().insert(ptr::from_ref(entry).addr() / 64);
                value(entry)
            });
            lines.into_inner().len()
        };
        // A binary search reads up to nine.
        let most = values.iter().map(|&wanted| lines_read(wanted)).max();
        assert!(most <= Some(6), "{most:?} cache lines");
    }
}
