//! The codec: bytes that are no record are foreign, and no damage to a record makes it panic.

use crate::steps::{DecideError, Steps};
use redis_rl::limiter::{Amount, Instant, Kind, RecordError, Request, MAX_PERIOD, MAX_UNITS};

use super::{rule, BOOKING};
use crate::key::Key;
use crate::model::survives;

const POLICIES: &[&str] = &[
    "FIXED 10 60s",
    "FIXED 1000000000000 3650d ALIGN -1h",
    "FIXED 10 25h UNTIL 489000h",
    "SLIDE 10 60s",
    "SLIDE 4294967295 1ms SEGMENTS 3",
    "GCRA 10 60s",
    "GCRA 3 1s BURST 7",
    "GCRA 1000000000000 3650d BURST 1",
    "BUCKET 10 60s",
    "BUCKET 10 60s CAPACITY 1000000000000",
    "BUCKET 10 61s CAPACITY 25 STEP",
];

const NOW: i64 = 1_760_000_000_123_456;
const AMOUNTS: [Amount; 4] = [Amount::Cost(2), Amount::UpTo(MAX_UNITS), Amount::Force(MAX_UNITS), Amount::Refund(2)];

/// A record of a few calls under `policy`, one of which is a booking.
fn record(policy: &str) -> Vec<u8> {
    let mut key = Key::default();
    for call in 0..4 {
        key.call(&rule(policy), NOW + call * 1_000, Request::now(Amount::Force(3))).expect("a grant");
    }
    key.call(&rule(policy), NOW + 4_000, BOOKING).expect("a booking, or too far ahead");
    key.value.expect("a record")
}

fn refusal(policy: &str, stored: &[u8], amount: Amount) -> Option<DecideError> {
    rule(policy).policy().decide(Some(stored), Instant::from_us(NOW), Request::now(amount)).err()
}

pub fn is_foreign(policy: &str, stored: &[u8]) -> bool {
    AMOUNTS.iter().all(|&amount| matches!(refusal(policy, stored, amount), Some(DecideError::Record(_))))
}

fn kind(policy: &str) -> Kind {
    rule(policy).policy().kind()
}

#[test]
fn records_are_small() {
    for quota in ["10 60s", "1000000 1d", "4294967295 1s", "3 30d"] {
        for policy in [format!("FIXED {quota}"), format!("GCRA {quota}"), format!("BUCKET {quota} STEP")] {
            let mut key = Key::default();
            key.call(&rule(&policy), NOW, Request::now(Amount::UpTo(MAX_UNITS))).expect("a grant");
            key.call(&rule(&policy), NOW, BOOKING).expect("a booking");
            assert_eq!(key.value.expect("a record").len(), 28, "{policy}");
        }
    }
}

#[test]
fn a_record_of_another_algorithm_is_foreign() {
    for held in POLICIES {
        for asked in POLICIES {
            let record = record(held);
            assert_eq!(is_foreign(asked, &record), kind(held) != kind(asked), "{asked} of {held}");
        }
        assert!(is_foreign("FIXED 0 60s", &record(held)) != (kind(held) == Kind::Fixed), "{held} under limit 0");
    }
}

#[test]
fn a_value_that_is_no_record_is_foreign() {
    for policy in POLICIES {
        let record = record(policy);
        let other_version = [&record[..1], &[record[1] + 3], &record[2..]].concat();
        let longer = [&record[..], &[0]].concat();
        for value in [&b""[..], b"0", b"hello", b"{\"count\":1}", &[0; 31], &[0xff; 64], &other_version, &longer] {
            assert!(is_foreign(policy, value), "{policy} reads {value:02x?}");
        }
        assert_eq!(refusal(policy, b"hello", Amount::Cost(1)), Some(DecideError::Record(RecordError::Unknown)));
        assert_eq!(refusal(policy, &other_version, Amount::Cost(1)), Some(DecideError::Record(RecordError::Version(4))));
    }
}

#[test]
fn a_record_that_drains_as_no_limiter_of_its_algorithm_is_foreign() {
    // Bits 3 and 4 of the third byte: 0 continuously, 1 in steps, 2 in windows.
    for (policy, drains) in [
        ("FIXED 10 60s", &[2][..]),
        ("GCRA 10 60s", &[0]),
        ("BUCKET 10 60s", &[0, 1]),
        ("BUCKET 10 60s STEP", &[0, 1]),
        ("SLIDE 10 60s", &[0]),
    ] {
        for drain in 0..4 {
            let mut record = record(policy);
            record[2] = record[2] & !0b11_000 | drain << 3;
            assert_eq!(is_foreign(policy, &record), !drains.contains(&drain), "{policy} with {drain}");
        }
    }
}

#[test]
fn a_record_with_a_field_out_of_range_is_foreign() {
    let number = |number: u64, width: usize| number.to_le_bytes()[..width].to_vec();
    let (units, period) = (MAX_UNITS, MAX_PERIOD.as_us());
    // The policy of the record, the offset of the field, and its width; values in its range, and values out of it.
    for (policy, offset, width, valid, invalid) in [
        ("FIXED 10 60s", 3, 4, &[1, u32::MAX.into()][..], &[0][..]),
        ("FIXED 10 60s", 7, 6, &[1_000], &[0, 999]),
        ("GCRA 3 1s BURST 7", 7, 4, &[1, u32::MAX.into()], &[0]),
        ("GCRA 3 1s BURST 7", 11, 4, &[1, u32::MAX.into()], &[0]),
        ("GCRA 1000000000000 3650d BURST 1", 3, 5, &[1, units], &[0, units + 1]),
        ("GCRA 1000000000000 3650d BURST 1", 8, 5, &[1, units], &[0, units + 1]),
        ("GCRA 1000000000000 3650d BURST 1", 13, 7, &[1_000, period], &[0, 999, period + 1]),
        // The upper bits of the third byte, and the fourth byte, have no meaning.
        ("SLIDE 10 60s", 2, 1, &[2], &[2 | 1 << 3, 2 | 1 << 7]),
        ("SLIDE 10 60s", 3, 1, &[0], &[1]),
        ("SLIDE 10 60s", 4, 4, &[1, u32::MAX.into()], &[0]),
        ("SLIDE 10 60s", 8, 8, &[60_000_000, period], &[0, 915, period + 1, u64::MAX]),
        ("SLIDE 10 60s", 16, 8, &[1, 60_000_000], &[0, 60_000_001, u64::MAX]),
    ] {
        for (values, foreign) in [(valid, false), (invalid, true)] {
            for &value in values {
                let mut record = record(policy);
                record[offset..offset + width].copy_from_slice(&number(value, width));
                assert_eq!(is_foreign(policy, &record), foreign, "{policy} with {value} at {offset}");
            }
        }
    }
    // A period in range, but shorter than the least, with a tick that it holds; and a log without an entry.
    let mut record = record("SLIDE 10 60s");
    record[8..16].copy_from_slice(&number(999, 8));
    record[16..24].copy_from_slice(&number(1, 8));
    assert!(is_foreign("SLIDE 10 60s", &record));
    assert!(is_foreign("SLIDE 10 60s", &self::record("SLIDE 10 60s")[..40]));
}

#[test]
fn a_record_cut_at_any_length_is_foreign_or_decided() {
    for policy in POLICIES {
        let record = record(policy);
        for length in 0..record.len() {
            let fixed_length = kind(policy) != Kind::Slide;
            survives_all(policy, &record[..length]);
            assert!(!fixed_length || is_foreign(policy, &record[..length]), "{policy} cut to {length} bytes");
        }
    }
}

#[test]
fn a_record_changed_at_any_byte_is_foreign_or_decided() {
    for policy in POLICIES {
        let record = record(policy);
        for index in 0..record.len() {
            for byte in 0..=u8::MAX {
                let mut changed = record.clone();
                changed[index] = byte;
                survives_all(policy, &changed);
            }
        }
    }
}

/// Makes decisions of all kinds on `value`.
fn survives_all(policy: &str, value: &[u8]) {
    let policy = rule(policy).policy();
    for now in [0, NOW, i64::MAX] {
        for request in AMOUNTS.map(Request::now).into_iter().chain([BOOKING]) {
            survives(&policy, value, now, request);
        }
    }
}
