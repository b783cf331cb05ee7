//! The codec: bytes that are no record are foreign, and no damage to a record makes it panic.

use crate::steps::{DecideError, Steps};
use redis_rl::limiter::{Amount, Instant, Kind, RecordError, Request, MAX_UNITS};

use super::{rule, BOOKING};
use crate::model::{survives, Key};

const POLICIES: &[&str] = &[
    "FIXED 10 60s",
    "FIXED 1000000000000 3650d ALIGN -1h",
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
fn what_is_no_record_is_foreign() {
    for policy in POLICIES {
        let record = record(policy);
        let other_version = [&record[..1], &[record[1].wrapping_add(1)], &record[2..]].concat();
        let longer = [&record[..], &[0]].concat();
        for value in [&b""[..], b"0", b"hello", b"{\"count\":1}", &[0; 31], &[0xff; 64], &other_version, &longer] {
            assert!(is_foreign(policy, value), "{policy} reads {value:02x?}");
        }
        assert_eq!(refusal(policy, b"hello", Amount::Cost(1)), Some(DecideError::Record(RecordError::Unknown)));
    }
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
