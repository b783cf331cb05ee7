//! Damaged ledgers: whatever a value holds, calls are refused or decided, and never panic.

use proptest::prelude::*;

use crate::exercise::{exercise, policies};

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_ledgers_never_panic(
        policy in prop::sample::select(policies()),
        others in prop::sample::select(policies()),
        before in prop::collection::vec(any::<(u8, u8, u8)>(), 1..60),
        damage in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6),
        cut in any::<Option<u16>>(),
        after in prop::collection::vec(any::<(u8, u8, u8)>(), 1..30),
        passed in prop_oneof![Just(0), any::<i32>().prop_map(i64::from), any::<i64>().prop_map(|us| us / 4)],
    ) {
        let mut value = None;
        let now = 1_700_000_000_000_000_i64;
        exercise(&mut value, &policy, now, &before);
        if let Some(bytes) = &mut value {
            for &(at, byte) in &damage {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
            if let Some(cut) = cut.filter(|cut| cut % 4 == 0) {
                bytes.truncate(usize::from(cut) % bytes.len());
            }
        }
        let other = if passed % 2 == 0 { policy } else { others };
        exercise(&mut value, &other, now.saturating_add(passed), &after);
    }

    #[test]
    fn arbitrary_headers_never_panic(
        policy in prop::sample::select(policies()),
        mut bytes in prop::collection::vec(any::<u8>(), 72..600),
        words in prop::array::uniform8(0..20_u32),
        calls in prop::collection::vec(any::<(u8, u8, u8)>(), 1..10),
    ) {
        bytes[..4].copy_from_slice(&[0xfa, 2, policy.kind().spec().tag, 0]);
        for (place, word) in bytes[4..36].chunks_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        exercise(&mut Some(bytes), &policy, 1_700_000_000_000_000, &calls);
    }
}
