//! The limits of the keys, and the words by which a call names a limit, an amount or a time.

use super::{word, Calls, Kind, Policy, Slot, BUCKET, DAY_US, FIXED, GCRA, LEASE, MOST_HELD, SLIDE, TEN_YEARS_US};

/// The highest limit of an algorithm.
fn most(kind: Kind) -> u64 {
    match kind {
        SLIDE => 4_294_967_295,
        LEASE => MOST_HELD,
        _ => 1_000_000_000_000,
    }
}

impl Calls {
    /// Begins a part of the run at another pace, with other limits on some keys.
    pub fn change_pace(&mut self) {
        self.pace_us = self.of_any_size(10.0, 3.0e10);
        for slot in 0..self.slots.len() {
            let times = if self.slots[slot].long { 12 } else { 3 };
            if self.once_in(times) {
                self.renew(slot);
            }
        }
    }

    /// Gives a key another limit.
    pub(super) fn renew(&mut self, slot: usize) {
        let mut policy = self.policy();
        if self.slots[slot].long {
            policy = Policy {
                kind: SLIDE,
                limit: 100_000,
                period_us: self.pace_us.clamp(1, 1_000_000_000) * 3_000,
                option: None,
                step: false,
            };
            policy.period_us = policy.period_us.clamp(1_000, TEN_YEARS_US);
        }
        self.slots[slot].policy = policy;
    }

    fn policy(&mut self) -> Policy {
        let kind = self.rng.usize(..if self.knows("rl.lease") { 5 } else { 4 });
        let pace = self.pace_us as f64;
        let period_us = match self.weighted(&[80, 10, 10]) {
            0 => self.of_any_size(pace, pace * 3_000.0),
            1 => {
                self.pick(&[1_000, 1_001, 999_999, 1_000_000, 60_000_000, 3_600_000_000, DAY_US, 30 * DAY_US, TEN_YEARS_US])
            }
            // A whole number of seconds, as in most applications.
            _ => (self.of_any_size(pace, pace * 3_000.0) / 1_000_000 + 1) * 1_000_000,
        };
        let limit = match self.weighted(&[50, 25, 15, 8, 2]) {
            0 => self.rng.u64(1..=12),
            1 => self.pick(&[60, 100, 1_000, 6_000]),
            2 => self.of_any_size(1.0, 4.0e9) as u64,
            3 => self.pick(&[1, 1_000_000, 4_294_967_295, 999_999_999_999, 1_000_000_000_000]),
            _ => 0,
        };
        let limit = limit.min(most(kind));
        let mut policy = Policy { kind, limit, period_us: period_us.clamp(1_000, TEN_YEARS_US), option: None, step: false };
        self.set_options(&mut policy);
        policy
    }

    fn set_options(&mut self, policy: &mut Policy) {
        policy.option = None;
        policy.step = policy.kind == BUCKET && self.once_in(3);
        if self.once_in(2) {
            return;
        }
        let limit = policy.limit.max(1) as i64;
        if policy.kind == LEASE {
            return;
        }
        policy.option = Some(match policy.kind {
            FIXED => match self.rng.u32(..3) {
                0 => 0,
                1 => self.rng.i64(-(policy.period_us - 1)..policy.period_us),
                _ => -(policy.period_us / 3),
            },
            SLIDE => self.pick(&[1, 2, 3, 6, 10, 24, 60, 100, 1_000, 65_535, 65_536]),
            _ => {
                let several = limit.saturating_mul(3).min(1_000_000_000_000);
                let any = self.of_any_size(1.0, 1.0e12);
                self.pick(&[1, 2, (limit / 2).max(1), limit, several, any])
            }
        });
    }

    /// A key, and the limit that it has, or now and then another.
    pub(super) fn target(&mut self) -> (Vec<u8>, Policy) {
        let slot = self.rng.usize(..self.slots.len());
        let Slot { name, policy, .. } = &self.slots[slot];
        let (name, mut policy) = (name.clone(), policy.clone());
        match self.weighted(&[86, 3, 3, 3, 2, 3]) {
            0 => {}
            1 => policy.limit = policy.limit.saturating_mul(self.rng.u64(1..4)).max(1),
            2 => policy.limit /= 2,
            3 => {
                let factor = self.pick(&[0.3, 0.5, 1.000_001, 2.0, 10.0]);
                policy.period_us = ((policy.period_us as f64 * factor) as i64).clamp(1_000, TEN_YEARS_US);
                if policy.kind == FIXED {
                    policy.option = policy.option.map(|offset| offset % policy.period_us);
                }
            }
            4 => self.set_options(&mut policy),
            _ => policy = self.policy(),
        }
        policy.limit = policy.limit.min(most(policy.kind));
        (name, policy)
    }

    /// As [`Self::target`], most often of [`GCRA`].
    pub(super) fn gcra_target(&mut self) -> (Vec<u8>, Policy) {
        let mut target = self.target();
        for _ in 0..4 {
            if target.1.kind == GCRA {
                break;
            }
            target = self.target();
        }
        target
    }

    /// A key whose limiter is of the same algorithm, as a rule.
    pub(super) fn key_like(&mut self, key: &[u8]) -> Vec<u8> {
        let kind = self.slots.iter().find(|slot| slot.name == key).map(|slot| slot.policy.kind);
        for _ in 0..4 {
            let slot = self.rng.usize(..self.slots.len());
            if Some(self.slots[slot].policy.kind) == kind {
                return self.slots[slot].name.clone();
            }
        }
        self.any_key()
    }

    /// A length of time in one of the ways in which it can be written.
    pub(super) fn duration(&mut self, us: i64) -> Vec<u8> {
        let (sign, us) = if us < 0 { ("-", -us) } else { ("", us) };
        let decimal = |unit: i64, digits: usize| {
            let (whole, part) = (us / unit, us % unit);
            if part == 0 {
                format!("{whole}")
            } else {
                format!("{whole}.{part:0digits$}").trim_end_matches('0').to_owned()
            }
        };
        let mut text = match self.rng.u32(..8) {
            0 => format!("{us}us"),
            1 => decimal(1_000, 3) + "ms",
            2 => decimal(1_000_000, 6) + "s",
            3 if us % 60_000_000 == 0 => format!("{}m", us / 60_000_000),
            4 if us % 3_600_000_000 == 0 => format!("{}h", us / 3_600_000_000),
            5 if us % DAY_US == 0 => format!("{}d", us / DAY_US),
            6 if us % 6_000_000 == 0 => format!("{}.{}m", us / 60_000_000, us % 60_000_000 / 6_000_000),
            _ => decimal(1_000_000, 6),
        };
        if self.once_in(4) {
            text = text.to_uppercase();
        }
        format!("{sign}{text}").into_bytes()
    }

    pub(super) fn keyword(&mut self, text: &str) -> Vec<u8> {
        match self.rng.u32(..4) {
            0 => word(&text.to_lowercase()),
            1 => text.bytes().map(|byte| if self.rng.bool() { byte.to_ascii_lowercase() } else { byte }).collect(),
            _ => word(text),
        }
    }

    pub(super) fn amount(&mut self, policy: &Policy) -> u64 {
        let capacity = if policy.kind >= GCRA { policy.option.unwrap_or(policy.limit as i64) as u64 } else { policy.limit };
        let amount = match self.weighted(&[40, 12, 12, 5, 20, 8, 3]) {
            0 => self.rng.u64(1..=3),
            1 => capacity,
            2 => capacity / 2 + 1,
            3 => capacity.saturating_add(1),
            4 => self.rng.u64(1..=capacity.clamp(1, 1_000_000_000_000)),
            5 => self.rng.u64(1..=capacity.saturating_mul(3).clamp(1, 1_000_000_000_000)),
            _ => self.pick(&[4_294_967_295, 4_294_967_296, 1_000_000_000_000]),
        };
        amount.clamp(1, 1_000_000_000_000)
    }

    /// How long a call may wait: a time related to the limit, or to a recent reply.
    pub(super) fn patience(&mut self, policy: &Policy) -> i64 {
        let us = match self.weighted(&[50, 30, 20]) {
            0 => (policy.period_us as f64 * self.rng.f64() * 3.0) as i64,
            1 => self.hint_us(),
            _ => self.of_any_size(1.0, 1.0e9),
        };
        us.clamp(1, DAY_US)
    }

    /// The wait or the reset of a recent reply in microseconds, or a time close to it.
    pub(super) fn hint_us(&mut self) -> i64 {
        if self.hints.is_empty() {
            return 1;
        }
        let index = self.rng.usize(..self.hints.len());
        (self.hints[index].saturating_mul(1_000) - self.pick(&[0, 0, 0, 1, 500, 999, 1_000, -1, -1_000])).max(0)
    }

    /// A name that a charge or a lease is remembered by: most often one of few, so that calls name it again.
    pub(super) fn id(&mut self) -> Vec<u8> {
        match self.weighted(&[75, 20, 5]) {
            0 => format!("i{}", self.rng.u32(..6)).into_bytes(),
            1 => format!("id:{}", self.rng.u32(..400)).into_bytes(),
            _ => self.pick(&[vec![b'l'; 64], b"\0\xff\r\n".to_vec(), word("nine bytes"), word("I0")]),
        }
    }
}
