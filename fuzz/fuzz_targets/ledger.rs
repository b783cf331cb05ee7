//! No damage to a record with ids, or to the leases of a key, makes a call panic.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use redis_rl_fuzz::exercise::{exercise, policies};

#[derive(Arbitrary, Debug)]
struct Damaged {
    /// The policies that write the record, and that then read it.
    policies: [u8; 2],
    before: Vec<(u8, u8, u8)>,
    /// Bytes of the record to set.
    patches: Vec<(u16, u8)>,
    /// How many bytes of the record are kept; `None` for all.
    keep: Option<u16>,
    /// How long after the record was written the other calls come, in microseconds.
    passed: i64,
    after: Vec<(u8, u8, u8)>,
}

fuzz_target!(|damaged: Damaged| {
    let all = policies();
    let [writer, reader] = damaged.policies.map(|index| all[usize::from(index) % all.len()]);
    let (mut value, now) = (None, 1_700_000_000_000_000_i64);
    exercise(&mut value, &writer, now, &damaged.before[..damaged.before.len().min(300)]);
    if let Some(bytes) = &mut value {
        for &(at, byte) in &damaged.patches {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        if let Some(keep) = damaged.keep {
            bytes.truncate(usize::from(keep) % (bytes.len() + 1));
        }
    }
    exercise(&mut value, &reader, now.saturating_add(damaged.passed), &damaged.after[..damaged.after.len().min(300)]);
});
