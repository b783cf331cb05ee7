//! Makes random calls on few keys. The seed determines them. Most are meaningful, so that the keys reach many states.

use fastrand::Rng;

/// The words of a command.
pub type Words = Vec<Vec<u8>>;

/// Commands that belong together, which one connection sends one after the other.
pub struct Step {
    /// The commands.
    pub commands: Vec<Words>,
    /// Whether the calls of the module are among the commands, in a transaction or in a script.
    pub place: Place,
    /// The keys of database 0 that it may touch.
    pub keys: Vec<Vec<u8>>,
}

/// Where calls are made.
pub enum Place {
    /// One by one.
    Direct,
    /// In a transaction, whose last reply has theirs.
    Multi(Vec<Words>),
    /// In a script, whose reply has theirs.
    Script(Vec<Words>),
}

/// An algorithm, by its place in [`KINDS`].
type Kind = usize;
const KINDS: [&str; 4] = ["FIXED", "SLIDE", "GCRA", "BUCKET"];
const FIXED: Kind = 0;
const SLIDE: Kind = 1;
const GCRA: Kind = 2;
const BUCKET: Kind = 3;

const DAY_US: i64 = 86_400_000_000;
const TEN_YEARS_US: i64 = 3_650 * DAY_US;

/// A limit as a caller asks for it.
#[derive(Clone, Debug)]
struct Policy {
    kind: Kind,
    limit: u64,
    period_us: i64,
    /// The option that has a number: ALIGN (microseconds), SEGMENTS, BURST, CAPACITY.
    option: Option<i64>,
    step: bool,
}

impl Policy {
    /// The most units that can be taken at once.
    fn capacity(&self) -> u64 {
        let option = self.option.and_then(|option| u64::try_from(option).ok());
        option.filter(|_| self.kind >= GCRA).unwrap_or(self.limit)
    }
}

struct Slot {
    name: Vec<u8>,
    policy: Policy,
    /// Whether its log gets long, and is looked at in part.
    long: bool,
}

/// Makes calls, and steps of the clock.
pub struct Calls {
    rng: Rng,
    slots: Vec<Slot>,
    /// A typical step of the clock in this part of the run, in microseconds.
    pace_us: i64,
    /// Waits and resets that were answered of late, in milliseconds.
    hints: Vec<i64>,
    /// Values that limiters' keys had.
    records: Vec<Vec<u8>>,
    /// Keys that hold something else than their limiter's record, and are to be deleted.
    foreign: Vec<Vec<u8>>,
    /// Whether to call RL.HELP and COMMAND DOCS.
    pub texts: bool,
}

/// The script that makes calls: each is a number of words, and these. An error is one of its results.
const SCRIPT: &str = "local out = {} local at = 1 while at <= #ARGV do local count = tonumber(ARGV[at]) local words = {} \
     for word = 1, count do words[word] = ARGV[at + word] end out[#out + 1] = redis.pcall(unpack(words)) at = at + count + 1 end return out";
/// The same, where an error ends the script, and with maps where there are any.
const STRICT_SCRIPT: &str =
    "redis.setresp(3) local out = {} local at = 1 while at <= #ARGV do local count = tonumber(ARGV[at]) \
     local words = {} for word = 1, count do words[word] = ARGV[at + word] end out[#out + 1] = redis.call(unpack(words)) \
     at = at + count + 1 end return out";

/// Whether calls may have `BLOCK`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// Never `BLOCK`.
    Never,
    /// Now and then, as in transactions and scripts, where the server answers at once.
    Harmless,
    /// Always.
    Always,
}

fn word(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn words(text: &str) -> Words {
    text.split(' ').map(word).collect()
}

impl Calls {
    /// Calls by a seed.
    pub fn new(seed: u64) -> Self {
        let mut calls = Self {
            rng: Rng::with_seed(seed),
            slots: Vec::new(),
            pace_us: 1_000,
            hints: Vec::new(),
            records: Vec::new(),
            foreign: Vec::new(),
            texts: true,
        };
        let mut names: Vec<Vec<u8>> = (0..14).map(|index| format!("key:{index}").into_bytes()).collect();
        names.extend([b"".to_vec(), b"a\0b\r\nc\xff".to_vec(), vec![b'n'; 600], word("{tag}:1"), word("{tag}:2")]);
        names.extend((0..2).map(|index| format!("long:{index}").into_bytes()));
        for name in names {
            let long = name.starts_with(b"long");
            let policy = Policy { kind: FIXED, limit: 1, period_us: 1_000_000, option: None, step: false };
            calls.slots.push(Slot { name, policy, long });
        }
        calls.change_pace();
        (0..calls.slots.len()).for_each(|slot| calls.renew(slot));
        calls
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.rng.usize(..end)
    }

    /// True with a probability of 1 in `times`.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.rng.u32(..times) == 0
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.rng.usize(..all.len())].clone()
    }

    /// Chooses by weight: the place of the weight.
    fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.rng.u32(..weights.iter().sum::<u32>());
        weights
            .iter()
            .position(|&weight| {
                left < weight || {
                    left -= weight;
                    false
                }
            })
            .unwrap_or(0)
    }

    /// A number from `least` to `most`, whose logarithm is distributed evenly.
    fn of_any_size(&mut self, least: f64, most: f64) -> i64 {
        (least * (most / least).powf(self.rng.f64())) as i64
    }

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
    fn renew(&mut self, slot: usize) {
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
        let kind = self.rng.usize(..4);
        let pace = self.pace_us as f64;
        let period_us = match self.weighted(&[80, 10, 10]) {
            0 => self.of_any_size(pace, pace * 3_000.0),
            1 => {
                self.pick(&[1_000, 1_001, 999_999, 1_000_000, 60_000_000, 3_600_000_000, DAY_US, 30 * DAY_US, TEN_YEARS_US])
            }
            // A whole number of seconds, as most write it.
            _ => (self.of_any_size(pace, pace * 3_000.0) / 1_000_000 + 1) * 1_000_000,
        };
        let limit = match self.weighted(&[50, 25, 15, 8, 2]) {
            0 => self.rng.u64(1..=12),
            1 => self.pick(&[60, 100, 1_000, 6_000]),
            2 => self.of_any_size(1.0, 4.0e9) as u64,
            3 => self.pick(&[1, 1_000_000, 4_294_967_295, 999_999_999_999, 1_000_000_000_000]),
            _ => 0,
        };
        let limit = if kind == SLIDE { limit.min(4_294_967_295) } else { limit };
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
    fn target(&mut self) -> (Vec<u8>, Policy) {
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
        if policy.kind == SLIDE {
            policy.limit = policy.limit.min(4_294_967_295);
        }
        policy.limit = policy.limit.min(1_000_000_000_000);
        (name, policy)
    }

    /// As [`Self::target`], most often of [`GCRA`].
    fn gcra_target(&mut self) -> (Vec<u8>, Policy) {
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
    fn key_like(&mut self, key: &[u8]) -> Vec<u8> {
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
    fn duration(&mut self, us: i64) -> Vec<u8> {
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

    fn keyword(&mut self, text: &str) -> Vec<u8> {
        match self.rng.u32(..4) {
            0 => word(&text.to_lowercase()),
            1 => text.bytes().map(|byte| if self.rng.bool() { byte.to_ascii_lowercase() } else { byte }).collect(),
            _ => word(text),
        }
    }

    fn amount(&mut self, policy: &Policy) -> u64 {
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

    /// How long a call may wait: related to the limit, or to an answer of late.
    fn patience(&mut self, policy: &Policy) -> i64 {
        let us = match self.weighted(&[50, 30, 20]) {
            0 => (policy.period_us as f64 * self.rng.f64() * 3.0) as i64,
            1 => self.hint_us(),
            _ => self.of_any_size(1.0, 1.0e9),
        };
        us.clamp(1, DAY_US)
    }

    /// A wait or a reset that was answered of late, to the millisecond or a little before.
    fn hint_us(&mut self) -> i64 {
        if self.hints.is_empty() {
            return 1;
        }
        let index = self.rng.usize(..self.hints.len());
        (self.hints[index].saturating_mul(1_000) - self.pick(&[0, 0, 0, 1, 500, 999, 1_000, -1, -1_000])).max(0)
    }

    /// Learns what was answered.
    pub fn learn(&mut self, [_, _, _, wait_ms, reset_ms]: [i64; 5]) {
        for ms in [wait_ms, reset_ms] {
            if ms > 0 && ms < TEN_YEARS_US / 1_000 {
                if self.hints.len() < 24 {
                    self.hints.push(ms);
                } else {
                    let index = self.rng.usize(..24);
                    self.hints[index] = ms;
                }
            }
        }
    }

    /// Learns a value of a key.
    pub fn learn_value(&mut self, value: &[u8]) {
        if value.len() > 200_000 {
            return;
        }
        if self.records.len() < 100 {
            self.records.push(value.to_vec());
        } else {
            let index = self.rng.usize(..100);
            self.records[index] = value.to_vec();
        }
    }

    /// Learns that a call was refused for what its key holds. Most of such keys are deleted, or no call would find a record.
    pub fn learn_foreign(&mut self, call: &Words) {
        if self.foreign.len() < 40 && !self.once_in(4) {
            self.foreign.extend(self.keys_of(call));
        }
    }

    /// The name of a key.
    pub fn any_key(&mut self) -> Vec<u8> {
        let slot = self.rng.usize(..self.slots.len());
        self.slots[slot].name.clone()
    }

    /// Whether a key's value is long.
    pub fn is_long(&self, name: &[u8]) -> bool {
        name.starts_with(b"long")
    }

    /// The algorithm's own options, as clauses.
    fn option_clauses(&mut self, policy: &Policy) -> Vec<Words> {
        let mut clauses = Vec::new();
        if let Some(option) = policy.option {
            let keyword = self.keyword(["ALIGN", "SEGMENTS", "BURST", "CAPACITY"][policy.kind]);
            let value = if policy.kind == FIXED { self.duration(option) } else { word(&option.to_string()) };
            clauses.push(vec![keyword, value]);
        }
        if policy.step {
            clauses.push(vec![self.keyword("STEP")]);
        }
        clauses
    }

    /// `limit period` and what may follow it: of the amounts the first so many, and waits if any.
    fn rule(&mut self, policy: &Policy, amounts: usize, blocking: Option<Blocking>) -> Words {
        let mut rule = vec![word(&policy.limit.to_string()), self.duration(policy.period_us)];
        let mut clauses = self.option_clauses(policy);
        let amount = self.weighted(&[&[35, 30, 12, 9, 12][..=amounts]].concat());
        if amount > 0 {
            let keyword = self.keyword(["COST", "UPTO", "FORCE", "REFUND"][amount - 1]);
            clauses.push(vec![keyword, word(&self.amount(policy).to_string())]);
        }
        if let Some(blocking) = blocking {
            let reserves = amount <= 1 && self.once_in(5) || self.once_in(100);
            let blocks = match blocking {
                Blocking::Never => false,
                Blocking::Harmless => amount <= 2 && self.once_in(5) || self.once_in(100),
                Blocking::Always => amount <= 2 || self.once_in(20),
            };
            if blocks || reserves {
                let keyword = self.keyword(if blocks { "BLOCK" } else { "RESERVE" });
                let patience = self.patience(policy);
                clauses.push(vec![keyword, self.duration(patience)]);
            }
        }
        self.rng.shuffle(&mut clauses);
        rule.extend(clauses.concat());
        rule
    }

    /// A call of a limiter, `RL.FIXED` and the like.
    pub fn limiter(&mut self, blocking: Blocking, key: Option<Vec<u8>>) -> Words {
        let (name, mut policy) = self.target();
        let name = match key {
            None => name,
            Some(name) => {
                if let Some(slot) = self.slots.iter().find(|slot| slot.name == name) {
                    policy = slot.policy.clone();
                }
                name
            }
        };
        let mut words = vec![self.keyword(&format!("RL.{}", KINDS[policy.kind])), name];
        words.extend(self.rule(&policy, 4, Some(blocking)));
        words
    }

    /// The limit that a key has.
    fn policy_of(&self, key: &[u8]) -> Option<Policy> {
        self.slots.iter().find(|slot| slot.name == key).map(|slot| slot.policy.clone())
    }

    /// A call under a key's own limit, with this clause.
    fn clause_for(&mut self, key: &[u8], policy: &Policy, clause: Words) -> Words {
        let mut words = vec![word(&format!("RL.{}", KINDS[policy.kind])), key.to_vec()];
        words.extend([word(&policy.limit.to_string()), self.duration(policy.period_us)]);
        words.extend(self.option_clauses(policy).concat());
        words.extend(clause);
        words
    }

    /// A call that uses a key up, or more than that.
    pub fn fill(&mut self, key: &[u8]) -> Words {
        let Some(policy) = self.policy_of(key) else { return words("PING") };
        let units = policy.capacity().saturating_mul(self.rng.u64(1..3)).clamp(1, 1_000_000_000_000);
        self.clause_for(key, &policy, vec![word("FORCE"), word(&units.to_string())])
    }

    /// A call that has to wait for a key that is used up, and most likely gets its turn.
    pub fn wait_for(&mut self, key: &[u8]) -> Words {
        let Some(policy) = self.policy_of(key) else { return words("PING") };
        let units = self.rng.u64(1..=policy.capacity().clamp(1, 20));
        let amount = self.pick(&["COST", "COST", "UPTO"]);
        let patience = policy.period_us.saturating_mul(self.rng.i64(1..6)).min(DAY_US);
        let patience = self.duration(patience);
        self.clause_for(key, &policy, vec![word(amount), word(&units.to_string()), word("BLOCK"), patience])
    }

    /// One of many calls by which a long log grows, a tick or so after the one before: the call, and how much later.
    pub fn lengthen(&mut self, key: &[u8]) -> (Words, i64) {
        let Some(mut policy) = self.policy_of(key) else { return (words("PING"), 0) };
        let tick_us = policy.period_us / 65_536 + 1;
        if self.once_in(40) {
            policy.option = self.pick(&[None, Some(65_536), Some(60_000), Some(1_000)]);
        }
        if self.once_in(40) {
            policy.limit = self.pick(&[90_000, 100_000, 200_000]);
        }
        let clause = match self.rng.u32(..40) {
            0 => "REFUND 3",
            1 => "FORCE 5",
            2 => "RESERVE 1h",
            3 => "UPTO 9",
            4..=10 => "COST 2",
            _ => "COST 1",
        };
        (self.clause_for(key, &policy, words(clause)), self.rng.i64(0..=2 * tick_us))
    }

    fn peek(&mut self) -> Words {
        let (name, policy) = self.target();
        let mut words = vec![word("RL.PEEK"), self.keyword(KINDS[policy.kind]), name];
        words.extend(self.rule(&policy, 2, None));
        words
    }

    fn all(&mut self) -> Words {
        let count = match self.weighted(&[80, 18, 2]) {
            0 => self.rng.usize(1..5),
            1 => self.rng.usize(1..21),
            _ => self.rng.usize(20..300),
        };
        let (mut names, mut rules) = (Vec::new(), Words::new());
        for index in 0..count {
            let (mut name, policy) = self.target();
            if count > 20 || names.contains(&name) && !self.once_in(60) {
                name = format!("{{tag}}:many:{index}").into_bytes();
            }
            names.push(name);
            rules.push(self.keyword(KINDS[policy.kind]));
            rules.extend(self.rule(&policy, 1, None));
        }
        let told = if self.once_in(50) { count + self.rng.usize(..3) - 1 } else { count };
        let mut words = vec![word("RL.ALL"), word(&told.to_string())];
        words.extend(names);
        words.extend(rules);
        words
    }

    fn throttle(&mut self) -> Words {
        let (name, policy) = self.gcra_target();
        let capacity = if policy.kind == GCRA { policy.option.unwrap_or(policy.limit as i64) } else { policy.limit as i64 };
        let seconds = policy.period_us / 1_000_000 + i64::from(policy.period_us % 1_000_000 > 0);
        let mut words = vec![self.keyword("CL.THROTTLE"), name];
        words.extend([(capacity - 1).max(0), policy.limit as i64, seconds].map(|number| word(&number.to_string())));
        if self.once_in(2) {
            let quantity = self.amount(&policy) as i64;
            let any = self.pick(&[0, 1, quantity, -quantity, quantity, -1]);
            words.push(word(&any.to_string()));
        }
        words
    }

    fn tokens(&mut self) -> Words {
        let (name, policy) = self.gcra_target();
        let capacity = if policy.kind == GCRA { policy.option.unwrap_or(policy.limit as i64) } else { policy.limit as i64 };
        let seconds = policy.period_us as f64 / 1.0e6;
        let period = match self.rng.u32(..4) {
            0 => format!("{seconds}"),
            1 => format!("{seconds:e}"),
            2 => format!("{:.7}", seconds + 0.000_000_4),
            _ => format!("{}", policy.period_us / 1_000_000 + 1),
        };
        let mut words =
            vec![self.keyword("GCRA"), name, word(&(capacity - 1).max(0).to_string()), word(&policy.limit.to_string())];
        words.push(word(&period));
        if self.once_in(2) {
            words.push(self.keyword("TOKENS"));
            words.push(word(&self.amount(&policy).to_string()));
        }
        words
    }

    /// A call of the module, which is as it should be but once in so many times.
    pub fn call(&mut self, blocking: Blocking) -> Words {
        let mut call = match self.weighted(&[630, 90, 60, 40, 50, 50, 12, 4, 12, 8, 2]) {
            0 => self.limiter(blocking, None),
            1 => self.peek(),
            2 => self.all(),
            3 => vec![self.keyword("RL.INSPECT"), self.any_key()],
            4 => self.throttle(),
            5 => self.tokens(),
            6 => match self.rng.u32(..5) {
                0 => words("RL.TOP"),
                1 => words("RL.TOP 1024"),
                2 if self.once_in(5) => vec![word("RL.TOP"), self.keyword("RESET")],
                _ => vec![word("RL.TOP"), word(&self.rng.u32(..40).to_string())],
            },
            7 if self.texts => words("RL.HELP"),
            8 => words("INFO rl"),
            9 => match self.rng.u32(..8) {
                0 => words("CONFIG GET rl.compat"),
                1 => vec![word("CONFIG"), word("SET"), word("rl.top-keys"), word(&self.rng.i32(-1..1_030).to_string())],
                2 => words("CONFIG SET rl.top-keys 128"),
                3 => vec![word("CONFIG"), word("SET"), word("rl.top-half-life"), word(&self.rng.i32(0..90_000).to_string())],
                4 => words("CONFIG SET rl.compat none"),
                _ => words("CONFIG GET rl.top-half-life"),
            },
            _ => self.about_commands(),
        };
        if self.once_in(14) {
            self.spoil(&mut call, blocking);
        }
        call
    }

    fn about_commands(&mut self) -> Words {
        const NAMES: &str = "rl.fixed rl.slide rl.gcra rl.bucket rl.peek rl.all rl.inspect rl.top rl.help cl.throttle gcra";
        if self.texts && self.rng.bool() {
            let name = self.pick(&NAMES.split(' ').collect::<Vec<_>>());
            return words(&format!("COMMAND DOCS {name}"));
        }
        if self.rng.bool() {
            return words(&format!("COMMAND INFO {NAMES}"));
        }
        let mut call = words("COMMAND GETKEYS");
        call.extend(if self.rng.bool() { self.all() } else { self.limiter(Blocking::Harmless, None) });
        call
    }

    /// Changes a call so that it is most likely an error.
    fn spoil(&mut self, call: &mut Words, blocking: Blocking) {
        const JUNK: [&[u8]; 46] = [
            b"",
            b"0",
            b"-1",
            b"+1",
            b"1.5",
            b"1e3",
            b"01",
            b" 1",
            b"1 ",
            b"x",
            b"COST",
            b"UPTO",
            b"FORCE",
            b"REFUND",
            b"RESERVE",
            b"ALIGN",
            b"SEGMENTS",
            b"BURST",
            b"CAPACITY",
            b"STEP",
            b"TOKENS",
            b"FIXED",
            b"SLIDE",
            b"GCRA",
            b"BUCKET",
            b"BRUST",
            b"1000000000001",
            b"1000000000000",
            b"18446744073709551615",
            b"18446744073709551616",
            b"99999999999999999999999",
            b"65537",
            b"999us",
            b"1ms",
            b"3650d",
            b"3651d",
            b"86401",
            b"25h",
            b"0.0000001",
            b"0.5us",
            b"1.0000001s",
            b"1w",
            b"\0\r\n\xff",
            b"nan",
            b"a word of more than thirty-two bytes, all told",
            b"'quoted\"\\",
        ];
        for _ in 0..self.rng.usize(1..3) {
            // The name of the command stays, as a rule: what the server itself answers is of no interest.
            let at = if call.len() > 1 && !self.once_in(40) { self.rng.usize(1..call.len()) } else { 0 };
            match self.rng.u32(..6) {
                0 if call.len() > 1 => {
                    call.remove(at.max(1));
                }
                1 => call[at] = self.pick(&JUNK).to_vec(),
                2 => call.insert(at + 1, self.pick(&JUNK).to_vec()),
                3 => {
                    let other = call[at].clone();
                    call.insert(at + 1, other);
                }
                4 => call.truncate(at + 1),
                _ => {
                    let keyword = self.pick(&[
                        "COST", "UPTO", "FORCE", "REFUND", "RESERVE", "ALIGN", "SEGMENTS", "BURST", "CAPACITY", "STEP",
                        "TOKENS",
                    ]);
                    call.push(self.keyword(keyword));
                    if !self.once_in(4) {
                        let value = self.pick(&["1", "2", "7", "0", "100ms"]);
                        call.push(word(value));
                    }
                }
            }
        }
        // Only commands of the module: another command could block, or take long.
        if !call[0].to_ascii_uppercase().starts_with(b"RL.")
            && !call[0].eq_ignore_ascii_case(b"GCRA")
            && !call[0].eq_ignore_ascii_case(b"CL.THROTTLE")
        {
            *call = words("RL.UNKNOWN 1 2 3");
        }
        if blocking == Blocking::Never {
            call.iter_mut().filter(|word| word.eq_ignore_ascii_case(b"BLOCK")).for_each(|word| *word = b"BLOKC".to_vec());
        }
    }

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
        let command = match self.weighted(&[30, 12, 10, 10, 12, 12, 12, 20, 10, 6, 5, 2, 2, 2, 1, 4, 2]) {
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

    /// A `SET` of a value: one that a limiter's key had, damaged or not, or one that no limiter wrote.
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
        match self.weighted(&[25, 30, 15, 10, 10, 4, 16, 10]) {
            0 => {}
            1 => {
                for _ in 0..self.rng.usize(1..4) {
                    if !value.is_empty() {
                        // Most of a short record is its head; of a log the end counts as much.
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

    /// The next step.
    pub fn step(&mut self, now_us: i64) -> Step {
        if let Some(key) = self.foreign.pop() {
            let commands = vec![vec![word("DEL"), key.clone()]];
            return Step { commands, place: Place::Direct, keys: vec![key] };
        }
        let weights = [780, 60, 50, 95, 8, 7];
        match self.weighted(&weights) {
            0 => {
                let call = self.call(Blocking::Never);
                Step { keys: self.keys_of(&call), commands: vec![call], place: Place::Direct }
            }
            1 => {
                let calls: Vec<_> = (0..self.rng.usize(1..6)).map(|_| self.call(Blocking::Harmless)).collect();
                let keys = calls.iter().flat_map(|call| self.keys_of(call)).collect();
                let mut commands = vec![words("MULTI")];
                commands.extend(calls.clone());
                commands.push(words("EXEC"));
                Step { commands, place: Place::Multi(calls), keys }
            }
            2 => {
                let calls: Vec<_> = (0..self.rng.usize(1..4))
                    .map(|_| self.call(Blocking::Harmless))
                    .filter(|call| !call[0].eq_ignore_ascii_case(b"CONFIG") && !call[0].eq_ignore_ascii_case(b"COMMAND"))
                    .collect();
                let keys: Vec<_> = calls.iter().flat_map(|call| self.keys_of(call)).collect();
                let (eval, script) = match self.rng.u32(..9) {
                    0 => ("EVAL_RO", SCRIPT),
                    1..=3 => ("EVAL", STRICT_SCRIPT),
                    _ => ("EVAL", SCRIPT),
                };
                let mut command = vec![word(eval), word(script), word("0")];
                for call in &calls {
                    command.push(word(&call.len().to_string()));
                    command.extend(call.clone());
                }
                Step { commands: vec![command], place: Place::Script(calls), keys }
            }
            3 => self.other(now_us),
            4 => {
                // Whether a call touches a key that is watched shows in what becomes of the transaction.
                let key = self.any_key();
                let call = self.limiter(Blocking::Never, Some(key.clone()));
                let commands = vec![vec![word("WATCH"), key.clone()], call, words("MULTI"), words("PING"), words("EXEC")];
                Step { commands, place: Place::Direct, keys: vec![key] }
            }
            _ => {
                let call = self.call(Blocking::Never);
                Step { commands: vec![words("SELECT 1"), call, words("SELECT 0")], place: Place::Direct, keys: vec![] }
            }
        }
    }

    /// The keys of a call: all words that are names of keys.
    pub fn keys_of(&self, call: &Words) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> =
            self.slots.iter().map(|slot| &slot.name).filter(|name| call[1..].contains(name)).cloned().collect();
        keys.extend(call.iter().filter(|word| word.starts_with(b"{tag}:many")).take(3).cloned());
        keys
    }

    /// By how much the clock moves before the next calls, in microseconds; less than 0: it steps back.
    pub fn pass_us(&mut self, now_us: i64) -> i64 {
        let pace = self.pace_us;
        match self.weighted(&[200, 80, 300, 100, 120, 60, 60, 4, 14, 6]) {
            0 => 0,
            1 => self.rng.i64(1..=10),
            2 => self.rng.i64(0..=pace),
            3 => self.rng.i64(0..=pace.saturating_mul(10)),
            4 => self.hint_us().min(pace.saturating_mul(4_000)),
            5 => {
                // Around a window's end.
                let slot = self.rng.usize(..self.slots.len());
                let Policy { period_us, option, kind, .. } = self.slots[slot].policy;
                let offset = if kind == FIXED { option.unwrap_or(0) } else { 0 };
                let left = period_us - (now_us - offset).rem_euclid(period_us) + self.pick(&[-1, 0, 0, 1]);
                if left <= pace.saturating_mul(4_000) {
                    left.max(0)
                } else {
                    self.rng.i64(0..=pace)
                }
            }
            6 => {
                let slot = self.rng.usize(..self.slots.len());
                let Policy { period_us, limit, kind, option, .. } = self.slots[slot].policy;
                let parts = self.pick(&[
                    limit.max(1) as i64,
                    1,
                    2,
                    65_536,
                    if kind == SLIDE { option.unwrap_or(65_536) } else { 1 },
                ]);
                (period_us / parts + self.pick(&[-1, 0, 0, 1])).clamp(0, pace.saturating_mul(4_000))
            }
            7 => self.of_any_size(1.0, 1.0e14),
            8 => -self.rng.i64(0..=pace),
            _ => -self.of_any_size(1.0, pace as f64 * 3_000.0),
        }
    }
}
