//! The table of the keys that are denied most keeps the guarantees of Space-Saving, and its counts decay as documented.

use std::collections::BTreeMap;

use proptest::prelude::*;
use redis_rl::limiter::{Instant, Span};
use redis_rl::sketch::{Sketch, LONGEST_NAME};

const START: Instant = Instant::from_us(1_700_000_000_000_000);
const SEED: [u64; 2] = [0x5eed, 0xfeed];
const HALF_LIFE: Span = Span::from_us(1_000_000);

fn after(us: u64) -> Instant {
    START.saturating_add(Span::from_us(us))
}

/// The whole content of the table: for each key its count, and by how much that may be too high.
fn content(sketch: &mut Sketch, now: Instant) -> BTreeMap<(i32, Vec<u8>), (u64, u64)> {
    let top = sketch.top(usize::MAX, now);
    assert!(top.windows(2).all(|pair| pair[0].count >= pair[1].count), "{top:?}");
    top.iter().map(|row| ((row.db, row.name.to_vec()), (row.count, row.over))).collect()
}

/// Keys in random order, some of which occur far more often than others.
fn keys(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![0..4_u8, 0..20_u8, 0..120_u8, Just(7_u8)], 1..most)
}

fn name(key: u8) -> Vec<u8> {
    // The names are longer than a machine word, begin alike, and differ in length.
    format!("limit:{:0width$}", key, width = 3 + usize::from(key % 11)).into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn without_decay_the_table_keeps_the_bounds_of_space_saving(most in 1..40_usize, calls in keys(3_000)) {
        let mut sketch = Sketch::new(most, HALF_LIFE, SEED, START);
        let mut exact: BTreeMap<(i32, Vec<u8>), u64> = BTreeMap::new();
        for &key in &calls {
            let db = i32::from(key % 2);
            sketch.count(db, &name(key), START);
            *exact.entry((db, name(key))).or_default() += 1;
        }
        let table = content(&mut sketch, START);
        prop_assert_eq!(table.len(), most.min(exact.len()));
        // Every call is in exactly one count.
        prop_assert_eq!(table.values().map(|(count, _)| count).sum::<u64>(), calls.len() as u64);
        let share = calls.len() as u64 / most as u64;
        for (key, &(count, over)) in &table {
            let truth = exact[key];
            prop_assert!(count >= truth && count - over <= truth && over <= share, "{truth} {count} {over} {share}");
        }
        let least = table.values().map(|(count, _)| *count).min().unwrap_or(0);
        for (key, &truth) in &exact {
            if !table.contains_key(key) {
                prop_assert!(truth <= least && truth <= share, "{truth} {least} {share}");
            }
        }
        if exact.len() <= most {
            prop_assert!(table.iter().all(|(key, &row)| row == (exact[key], 0)));
        }
    }

    #[test]
    fn with_decay_the_table_keeps_the_bounds_to_two_calls(
        most in 1..12_usize,
        calls in prop::collection::vec((prop_oneof![0..3_u8, 0..30_u8], prop_oneof![Just(0_u64), 0..2_000_u64, 0..3_000_000_u64]), 1..600),
    ) {
        // The counts are in units so small that forty halvings lose nothing.
        const UNIT: u128 = 1 << 64;
        let mut sketch = Sketch::new(most, HALF_LIFE, SEED, START);
        let mut exact: BTreeMap<(i32, Vec<u8>), u128> = BTreeMap::new();
        let (mut at, mut halved) = (0, 0);
        for &(key, pause) in &calls {
            at += pause;
            while halved < at / HALF_LIFE.as_us() {
                halved += 1;
                exact.values_mut().for_each(|weight| *weight /= 2);
            }
            sketch.count(0, &name(key), after(at));
            *exact.entry((0, name(key))).or_default() += UNIT;
        }
        let table = content(&mut sketch, after(at));
        let total: u128 = exact.values().sum();
        let share = total / most as u128;
        for (key, &(count, over)) in &table {
            let (truth, count, over) = (exact[key], u128::from(count) * UNIT, u128::from(over) * UNIT);
            prop_assert!(truth < count + 2 * UNIT, "too low: {truth} {count}");
            prop_assert!(count - over <= truth, "not sure: {truth} {count} {over}");
            prop_assert!(over <= share + 2 * UNIT, "too unsure: {over} {share}");
        }
        let least = if table.len() == most { table.values().map(|(count, _)| *count).min().unwrap_or(0) } else { 0 };
        for (key, &truth) in &exact {
            prop_assert!(table.contains_key(key) || truth < (u128::from(least) + 2) * UNIT, "missing: {truth} {least}");
        }
    }

    #[test]
    fn any_times_and_names_are_counted_within_the_size(
        most in 0..5_usize,
        calls in prop::collection::vec((any::<i64>(), any::<i32>(), prop::collection::vec(any::<u8>(), 0..40)), 0..60),
        half_life in 1..u64::MAX,
    ) {
        let mut sketch = Sketch::new(most, Span::from_us(half_life), SEED, START);
        for (at, db, name) in &calls {
            sketch.count(*db, name, Instant::from_us(*at));
            prop_assert!(sketch.top(usize::MAX, Instant::from_us(*at)).len() <= most);
        }
    }
}

#[test]
fn counts_halve_each_half_life_and_then_are_forgotten() {
    let mut sketch = Sketch::new(4, HALF_LIFE, SEED, START);
    (0..100).for_each(|_| sketch.count(0, b"key", START));
    for (us, count) in [(999_999, 100), (1_000_000, 50), (1_999_999, 50), (2_000_000, 25), (3_500_000, 13), (6_000_000, 2)] {
        let top = sketch.top(1, after(us));
        assert_eq!(top.iter().map(|row| row.count).collect::<Vec<_>>(), [count], "after {us} us");
    }
    assert!(sketch.top(1, after(7_000_000)).is_empty());
    // The table was not read for a long time.
    (0..1 << 20).for_each(|_| sketch.count(0, b"key", after(7_000_000)));
    assert_eq!(sketch.top(1, after(17_000_000))[0].count, 1 << 10);
    assert!(sketch.top(1, after(u64::MAX >> 2)).is_empty());
}

#[test]
fn a_clock_that_steps_back_does_not_stop_the_decay() {
    let mut sketch = Sketch::new(4, HALF_LIFE, SEED, after(3_600_000_000));
    (0..100).for_each(|_| sketch.count(0, b"key", START));
    assert_eq!(sketch.top(1, START)[0].count, 100);
    assert_eq!(sketch.top(1, after(1_000_000))[0].count, 50);
}

#[test]
fn a_table_is_emptied_and_may_have_no_room_at_all() {
    let mut sketch = Sketch::new(2, HALF_LIFE, SEED, START);
    sketch.count(0, b"key", START);
    sketch.count(1, b"key", START);
    assert_eq!(sketch.top(5, START).len(), 2, "databases have keys of their own");
    sketch.reset();
    assert!(sketch.top(5, START).is_empty());
    sketch.count(0, b"key", START);
    assert_eq!(sketch.top(5, START)[0].count, 1);
    assert!(sketch.is_for(2, HALF_LIFE) && !sketch.is_for(3, HALF_LIFE) && !sketch.is_for(2, Span::from_us(1)));
    let mut none = Sketch::new(0, HALF_LIFE, SEED, START);
    none.count(0, b"key", START);
    assert!(none.top(5, START).is_empty());
}

#[test]
fn of_long_names_the_beginning_is_kept() {
    let mut sketch = Sketch::new(4, HALF_LIFE, SEED, START);
    for end in [b"1", b"2"] {
        sketch.count(0, &[&[b'x'; LONGEST_NAME][..], end].concat(), START);
    }
    let top = sketch.top(5, START);
    assert_eq!((top.len(), top[0].count, top[0].name), (1, 2, &[b'x'; LONGEST_NAME][..]));
}
