//! Commands of the server on the keys, and the values that they store.

use fastrand::Rng;

use super::{word, words, Calls, Place, Step, Words, TEN_YEARS_US};

impl Calls {
    /// A command of the server on a key: it deletes it, moves it, changes its value or its deadline.
    pub fn other(&mut self, now_us: i64) -> Step {
        let mut key = self.any_key();
        // Most of these commands would shorten the log of a long key.
        while self.is_long(&key) && !self.once_in(20) {
            key = self.any_key();
        }
        let second = self.key_like(&key);
        let near_ms = |rng: &mut Rng| {
            let us = now_us.saturating_add(rng.i64(-2_000..20_000));
            us / 1_000
        };
        let number = |number: i64| word(&number.to_string());
        let pace_ms = (self.pace_us / 1_000).max(1);
        let named = |name: &str, more: Words| {
            let mut command = words(name);
            command.push(key.clone());
            command.extend(more);
            command
        };
        let damage = u32::from(self.bytes);
        let weights = [30, 12, 10, 10, 12, 12, 12, 20, 10, 6 * damage, 5 * damage, 2 * damage, 2, 2 * damage, damage, 4, 2];
        let command = match self.weighted(&weights) {
            0 => named(if self.rng.bool() { "DEL" } else { "UNLINK" }, vec![]),
            1 => named("RENAME", vec![second.clone()]),
            2 => named("COPY", vec![second.clone(), word("REPLACE")]),
            3 => named("PERSIST", vec![]),
            4 => named("PEXPIRE", vec![number(self.rng.i64(1..=pace_ms.saturating_mul(100)))]),
            5 => named("PEXPIREAT", vec![number(near_ms(&mut self.rng))]),
            6 => named("EXPIRE", vec![number(self.rng.i64(0..1_000))]),
            7 => self.store(key.clone(), now_us),
            8 => self.pick(&[
                named("LPUSH", words("a b")),
                named("HSET", words("f 1")),
                named("SADD", words("1 2 3")),
                named("ZADD", words("1 a")),
                named("XADD", words("1-1 f v")),
            ]),
            9 => named("APPEND", vec![self.pick(&[b"".to_vec(), b"x".to_vec(), vec![0; 8], vec![255; 40]])]),
            10 => named("SETRANGE", vec![number(self.rng.i64(0..40)), vec![self.rng.u8(..)]]),
            11 => named("SETBIT", vec![number(self.rng.i64(0..320)), word("1")]),
            12 => named("GETDEL", vec![]),
            13 => named("MOVE", words("1")),
            14 => self.pick(&[words("FLUSHDB"), words("SWAPDB 0 1"), words("FLUSHALL")]),
            15 => named("TYPE", vec![]),
            _ => named("INCR", vec![]),
        };
        Step { commands: vec![command], place: Place::Direct, keys: vec![key, second] }
    }

    /// A `SET` of a value that a limiter's key had, damaged or not, or of a value that no limiter wrote.
    fn store(&mut self, key: Vec<u8>, now_us: i64) -> Words {
        let kind = self.slots.iter().find(|slot| slot.name == key).map_or(0, |slot| slot.policy.kind);
        let mut value = b"nothing yet".to_vec();
        for _ in 0..6 {
            if !self.records.is_empty() {
                let index = self.rng.usize(..self.records.len());
                value.clone_from(&self.records[index]);
            }
            // The third byte names the algorithm; these numbers are those of the format.
            if value.get(2).is_some_and(|head| usize::from(head & 7) == kind + 1) {
                break;
            }
        }
        let damage = u32::from(self.bytes);
        match self.weighted(&[25, 30 * damage, 15 * damage, 10 * damage, 10 * damage, 4 * damage, 16, 10]) {
            0 => {}
            1 => {
                for _ in 0..self.rng.usize(1..4) {
                    if !value.is_empty() {
                        // Half of the changes are in the first 32 bytes, which hold a short record or most of a log's
                        // header.
                        let end = if self.rng.bool() { value.len().min(32) } else { value.len() };
                        let at = self.rng.usize(..end);
                        value[at] ^= 1 << self.rng.u32(..8);
                    }
                }
            }
            2 => {
                let end = self.rng.usize(..=value.len());
                value.truncate(end);
            }
            3 => value.extend((0..self.rng.usize(1..20)).map(|_| self.rng.u8(..))),
            4 => {
                for _ in 0..self.rng.usize(1..9) {
                    if value.len() > 3 {
                        let at = self.rng.usize(2..value.len());
                        value[at] = self.pick(&[0, 1, 127, 128, 255]);
                    }
                }
            }
            // Records of another format, or of no algorithm.
            5 => {
                if let [_, version, head, ..] = &mut value[..] {
                    if self.rng.bool() {
                        *version = self.pick(&[0, 2, 3, 255])
                    } else {
                        *head ^= self.rng.u8(..8)
                    }
                }
            }
            // What redis-cell stores: nanoseconds.
            6 => {
                let ahead_us = self.rng.i64(-1_000..100_000).saturating_mul(self.pace_us.min(1_000_000_000));
                let ns = i128::from(now_us.saturating_add(ahead_us)) * 1_000 + i128::from(self.rng.i64(0..1_000));
                value = ns.to_string().into_bytes();
                if self.once_in(10) {
                    value[0] = b'0';
                }
            }
            _ => {
                value = self.pick(&[
                    b"".to_vec(),
                    b"12345".to_vec(),
                    b"hello".to_vec(),
                    vec![0xfa; 28],
                    vec![0xfa, 1],
                    vec![0; 64],
                    b"9999999999999999999".to_vec(),
                    vec![b'x'; 300],
                ])
            }
        }
        let mut command = vec![word("SET"), key, value];
        match self.rng.u32(..4) {
            0 => {}
            1 => command.push(word("KEEPTTL")),
            _ => {
                let us = self.pace_us.saturating_mul(self.rng.i64(1..3_000)).min(TEN_YEARS_US);
                command.extend([word("PX"), word(&(us / 1_000 + 1).to_string())]);
            }
        }
        command
    }
}
