//! What a ledger of many ids costs, and what it remembers.

use super::histories::SECOND;
use crate::key::Key;
use crate::model::{Form, Rule, Windows};
use redis_rl::limiter::{Amount, Request, Span, Wait};

const DAY: u64 = 86_400 * SECOND;

const FORMS: [Form; 5] = [
    Form::Fixed { windows: Windows::FirstCall },
    Form::Slide { segments: 65_536 },
    Form::Gcra { burst: None },
    Form::Bucket { capacity: None, step: false },
    Form::Bucket { capacity: None, step: true },
];

#[test]
fn two_policies_in_turn_write_little() {
    let rule = |form, limit, period| Rule { limit, period, form };
    for form in FORMS {
        for rules in [
            [rule(form, 1_000_000, DAY), rule(form, 1_000_000, 10 * SECOND)],
            [rule(form, 1_000_000, DAY), rule(form, 1_000_000, DAY + 1)],
            [rule(form, 1_000_000, DAY), rule(form, 2_000_000, DAY)],
        ] {
            let mut key = Key::default();
            let mut call = |n: usize, rule: &Rule, id: Option<&[u8]>| {
                let request = Request::now(Amount::Cost(10));
                assert!(key.call_with_id(rule, n as i64 * 1_000, request, id).expect("an answer").1);
                key.written
            };
            let before = (0..1_000).map(|n| call(n, &rules[0], Some(n.to_string().as_bytes()))).last().expect("calls");
            // Two of three calls have no id.
            for n in 1_000..3_000 {
                let id = n.to_string();
                let written = call(n, &rules[n % 2], Some(id.as_bytes()).filter(|_| n % 3 == 0)) - before;
                let calls = n - 999;
                assert!(calls < 300 || written / calls < 512, "{rules:?}: {written} bytes by {calls} calls");
            }
        }
    }
}

// ---- Ids that collide ----

/// The hash table of a record, as a client with `GETRANGE` can read it.
struct Index {
    seed: u64,
    /// How many slots there is room for.
    capacity: usize,
    /// Each cell, with a slot's index plus 1; 0: empty.
    cells: Vec<u32>,
}

impl Index {
    fn of(record: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("4 bytes"));
        let (inner_room, capacity) = (word(12) as usize, word(16) as usize);
        let seed = u64::from_le_bytes(record[40..48].try_into().expect("8 bytes"));
        let cells = (2 * capacity).next_power_of_two();
        Self { seed, capacity, cells: (0..cells).map(|cell| word(96 + inner_room + 4 * cell)).collect() }
    }

    /// The cell at which the search for an id of 8 bytes begins.
    fn start(&self, id: u64) -> usize {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let hash = fold(fold(self.seed ^ 8 ^ id, 0x9e37_79b9_7f4a_7c15), 0xd6e8_feb8_6659_fd93);
        hash as usize & (self.cells.len() - 1)
    }

    /// How many cells are searched before an empty one is found.
    fn steps(&self, id: u64) -> usize {
        (self.start(id)..).take_while(|cell| self.cells[cell & (self.cells.len() - 1)] != 0).count()
    }
}

/// Adds `ids` ids to a key, one a millisecond, chosen by `choose` from the hash table as it is. Returns the most steps that an
/// addition took, how often the seed changed while the room for slots stayed the same, and the bytes written.
fn add(ids: u64, mut choose: impl FnMut(&Index) -> u64) -> (usize, usize, usize) {
    let rule = Rule { limit: 1_000_000, period: DAY, form: Form::Fixed { windows: Windows::FirstCall } };
    let mut key = Key::default();
    let (mut most, mut reseeded, mut index) = (0, 0, Index { seed: 0, capacity: 0, cells: vec![0; 2] });
    for n in 0..ids {
        let id = choose(&index);
        most = most.max(index.steps(id));
        key.call_with_id(&rule, n as i64 * 1_000, Request::now(Amount::Cost(1)), Some(&id.to_le_bytes()))
            .expect("an answer");
        let after = Index::of(key.value.as_deref().expect("a record"));
        reseeded += usize::from(after.seed != index.seed && after.capacity == index.capacity);
        index = after;
    }
    (most, reseeded, key.written)
}

#[test]
fn a_client_that_chooses_colliding_ids_costs_little() {
    const IDS: u64 = 6_000;
    let mut last = 0;
    // The client reads the seed before each call, and takes the next id whose search begins in the first cells.
    let (most, reseeded, written) = add(IDS, |index| {
        last = (last + 1..).find(|&id| index.start(id) < index.cells.len().div_ceil(128)).expect("an id");
        last
    });
    // The 1024 ids that were chosen for a seed fill at most every second cell in a row: the others stand between them.
    assert!(most <= 2 * 1_024 + 64, "{most} steps");
    assert!((1..=6).contains(&reseeded), "{reseeded} seeds");
    assert!(written / (IDS as usize) < 1_024, "{written} bytes");
}

#[test]
fn ids_that_nobody_chose_keep_the_seed() {
    let mut last = 0;
    let (most, reseeded, _) = add(12_000, |_| {
        last += 1;
        last
    });
    assert!(most <= 64 && reseeded == 0, "{most} steps, {reseeded} seeds");
}

/// The example of `ledger/layers.rs`.
#[test]
fn a_charge_is_given_back_from_its_own_layer_down() {
    let rule = Rule { limit: 60, period: 60 * SECOND, form: Form::Gcra { burst: None } };
    let mut key = Key::default();
    for (second, id, units, level) in [(0, b"A", 5, 5), (2, b"B", 4, 7), (3, b"C", 1, 7)] {
        let request = Request::now(Amount::Cost(units));
        let (answer, _) = key.call_with_id(&rule, second * SECOND as i64, request, Some(id)).expect("an answer");
        assert_eq!(60 - answer.remaining, level);
    }
    // Of A two units are left, of C one.
    for (id, level) in [(b"B", 3), (b"A", 1), (b"C", 0)] {
        let (answer, _) = key.settle(3 * SECOND as i64, id, 0).expect("an answer").expect("a charge");
        assert_eq!(60 - answer.remaining, level);
    }
}

// ---- What is remembered ----

#[test]
fn a_booked_id_is_remembered_until_it_acts_however_many_came_after_it() {
    let rule = |limit| Rule { limit, period: SECOND, form: Form::Fixed { windows: Windows::Align(0) } };
    let (mut key, now) = (Key::default(), 100);
    let call = |key: &mut Key, limit, amount, ahead, id: &[u8]| {
        let request = Request { ahead: Span::from_us(ahead), ..Request::now(Amount::Cost(amount)) };
        let (answer, _) = key.call_with_id(&rule(limit), now, request, Some(id)).expect("an answer");
        assert_eq!(answer.granted, amount);
        answer.wait
    };
    call(&mut key, 10, 10, 0, b"a");
    assert_eq!(call(&mut key, 10, 5, SECOND, b"b"), Wait::For(Span::from_us(999_900)));
    assert_eq!(call(&mut key, 10, 10, 2 * SECOND, b"c"), Wait::For(Span::from_us(1_999_900)));
    for id in 0..70_u8 {
        call(&mut key, 1_000, 1, 0, &[id]);
    }
    assert_eq!(key.expires.map(|at| at.as_us()), Some(3_000_000));
    for (id, now) in [(b"b", 1_500_000), (b"c", 2_999_999)] {
        let (answer, changed) = key.settle(now, id, 0).expect("an answer").expect("a remembered charge");
        assert!(changed && answer.granted == 0);
    }
    assert_eq!(key.value.map(|value| value[1]), Some(1), "no id is remembered any more");
}

#[test]
fn on_a_grid_a_booking_is_remembered_although_nothing_is_owed_as_its_window_begins() {
    for windows in [Windows::Align(0), Windows::Until(1_000_000)] {
        let rule = Rule { limit: 10, period: SECOND, form: Form::Fixed { windows } };
        let mut key = Key::default();
        let mut call = |amount, ahead, id: Option<&[u8]>| {
            let request = Request { ahead: Span::from_us(ahead), ..Request::now(amount) };
            key.call_with_id(&rule, 500_000, request, id).expect("an answer").0
        };
        assert_eq!(call(Amount::Cost(10), 0, None).granted, 10);
        assert_eq!(call(Amount::Cost(10), SECOND, Some(b"a")).wait, Wait::For(Span::from_us(500_000)));
        assert_eq!(call(Amount::Refund(10), 0, None).granted, 10);
        for at in [1_000_000, 1_500_000, 1_999_999] {
            let mut key = key.clone();
            let (answer, changed) =
                key.settle(at, b"a", 0).expect("an answer").unwrap_or_else(|| panic!("{windows:?}, {at}"));
            assert!(changed && answer.granted == 0, "{windows:?}, {at}: {answer:?}");
        }
        assert_eq!(key.settle(2_000_000, b"a", 0), Ok(None), "{windows:?}");
    }
}

#[test]
fn a_record_without_ids_is_written_as_one() {
    for form in FORMS {
        for ids in [1, 70, 1_000_u64] {
            let rule = Rule { limit: 1_000_000, period: SECOND, form };
            let mut key = Key::default();
            let mut version = |now, id: Option<&[u8]>| {
                key.call_with_id(&rule, now, Request::now(Amount::Cost(10)), id).expect("an answer");
                key.value.as_deref().expect("a record")[1]
            };
            for id in 0..ids {
                assert_eq!(version(id as i64 * 100, Some(&id.to_le_bytes())), 3, "{form:?}");
            }
            // All ids are past; the log of SLIDE is long. Usage goes on.
            for n in 0..300 {
                version(300_000 + n * 5_000, None);
            }
            assert_eq!(version(2_100_000, None), 1, "{form:?} after {ids} ids");
        }
    }
}

#[test]
fn records_of_version_2_are_read_and_rewritten_by_the_next_write() {
    let now = 1_795_500_000_000_000;
    for (name, value) in support::records_of_version_2().into_iter().filter(|(name, _)| *name != "LEASE") {
        let form = *FORMS
            .iter()
            .find(|form| Rule { limit: 10, period: 3_650 * DAY, form: **form }.policy().kind().name() == name)
            .expect("a form");
        let rule = Rule { limit: 10, period: 3_650 * DAY, form };
        let mut key = Key { value: Some(value), ..Key::default() };
        let call = |key: &mut Key, amount, id: Option<&[u8]>| {
            key.call_with_id(&rule, now, Request::now(amount), id).expect("an answer")
        };
        assert_eq!(key.held(&rule, now, b"b"), Ok(None), "{name}");
        let (answer, changed) = call(&mut key, Amount::Cost(9), Some(b"a"));
        assert!(!changed && answer.retried && (answer.granted, answer.remaining) == (3, 5), "{name}: {answer:?}");
        // A caller with another limit and period.
        let other = Rule { limit: 20, period: 1_000 * DAY, form };
        for write in [
            |key: &mut Key, rule: &Rule, now| {
                key.call_with_id(rule, now, Request::now(Amount::Cost(1)), Some(b"d")).map(|(answer, _)| answer.granted)
            },
            |key: &mut Key, rule: &Rule, now| {
                key.call_with_id(rule, now, Request::now(Amount::Cost(1)), None).map(|(answer, _)| answer.granted)
            },
            |key: &mut Key, _: &Rule, now| key.settle(now, b"c", 1).map(|answer| answer.expect("a charge").0.granted),
        ] {
            for rule in [rule, other] {
                let mut key = key.clone();
                assert_eq!(write(&mut key, &rule, now), Ok(1), "{name}");
                assert_eq!(key.value.as_deref().map(|value| value[1]), Some(3), "{name}");
                let used = |key: &mut Key| rule.limit - call(key, Amount::Refund(1), None).0.remaining;
                let before = used(&mut key.clone());
                let (answer, _) = key.settle(now, b"a", 0).expect("an answer").expect("a charge");
                assert_eq!(answer.granted, 0, "{name}");
                assert_eq!(used(&mut key) + 3, before, "{name}: all of a is given back");
            }
        }
    }
}
