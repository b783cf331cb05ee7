//! Makes random calls on few keys. The seed determines them. Most are meaningful, so that the keys reach many states.

mod commands;
mod limits;
mod server;

use fastrand::Rng;

/// The words of a command.
pub type Words = Vec<Vec<u8>>;

/// Commands that belong together, which one connection sends one after the other.
pub struct Step {
    /// The commands.
    pub commands: Vec<Words>,
    /// Whether the calls of the module are commands of their own, in a transaction or in a script.
    pub place: Place,
    /// The keys of database 0 that it may touch.
    pub keys: Vec<Vec<u8>>,
}

/// Where calls are made.
pub enum Place {
    /// One by one.
    Direct,
    /// In a transaction or a script, by its name. Its last reply contains the replies to the calls.
    Inside(&'static str, Vec<Words>),
}

/// An algorithm, by its place in [`KINDS`].
type Kind = usize;
const KINDS: [&str; 5] = ["FIXED", "SLIDE", "GCRA", "BUCKET", "LEASE"];
const FIXED: Kind = 0;
const SLIDE: Kind = 1;
const GCRA: Kind = 2;
const BUCKET: Kind = 3;
const LEASE: Kind = 4;
/// Without a comparison of bytes, the most keys of an RL.ALL.
const MANY: usize = 20;
/// The most that a lease may be a part of.
const MOST_HELD: u64 = 65_536;

/// How the names of the policies' keys begin.
const POLICY: &[u8] = b"policy:";

const DAY_US: i64 = 86_400_000_000;
const TEN_YEARS_US: i64 = 3_650 * DAY_US;

/// A limit as a call names it.
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
    /// Whether its log gets long, so that mostly only parts of it are compared.
    long: bool,
}

/// Makes calls, and steps of the clock.
pub struct Calls {
    rng: Rng,
    slots: Vec<Slot>,
    /// A typical step of the clock in this part of the run, in microseconds.
    pace_us: i64,
    /// The waits and resets of recent replies, in milliseconds.
    hints: Vec<i64>,
    /// Values that limiters' keys had.
    records: Vec<Vec<u8>>,
    /// Keys that hold something else than their limiter's record. The next steps delete them.
    foreign: Vec<Vec<u8>>,
    /// Whether to call RL.HELP and COMMAND DOCS.
    pub texts: bool,
    /// Whether effects and records with ids are compared byte for byte, so that a client may also damage records.
    pub bytes: bool,
    /// The commands that both modules have, in small letters. The others are not called.
    pub known: Vec<&'static str>,
}

/// The script that makes calls. Its arguments are, for each call, the number of words and the words. An error of a call is
/// one of its results.
const SCRIPT: &str = "local out = {} local at = 1 while at <= #ARGV do local count = tonumber(ARGV[at]) local words = {} \
     for word = 1, count do words[word] = ARGV[at + word] end out[#out + 1] = redis.pcall(unpack(words)) at = at + count + 1 end return out";
/// The same, but the first error ends the script, and replies use RESP3, with its maps.
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
    /// A generator whose calls the seed determines.
    pub fn new(seed: u64) -> Self {
        let mut calls = Self {
            rng: Rng::with_seed(seed),
            slots: Vec::new(),
            pace_us: 1_000,
            hints: Vec::new(),
            records: Vec::new(),
            foreign: Vec::new(),
            texts: true,
            bytes: true,
            known: Vec::new(),
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

    fn knows(&self, command: &str) -> bool {
        self.known.contains(&command)
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

    /// Chooses one of the weights at random, in proportion to them, and returns its index.
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

    /// Records the waits and resets of a reply, for later calls and steps of the clock.
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

    /// Records a value of a key, for later `SET` commands.
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

    /// Records that a call was refused because of the value of its key. Most of these keys are deleted later, so that other
    /// calls can create limiters there.
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

    /// All names of keys that a call may have, but for those of policies.
    pub fn all_keys(&self) -> Vec<Vec<u8>> {
        let many = (0..MANY).map(|index| format!("{{tag}}:many:{index}").into_bytes());
        self.slots.iter().map(|slot| slot.name.clone()).chain(many).collect()
    }

    /// Whether a key's value is long.
    pub fn is_long(&self, name: &[u8]) -> bool {
        name.starts_with(b"long")
    }

    /// The next step.
    pub fn step(&mut self, now_us: i64) -> Step {
        if let Some(key) = self.foreign.pop() {
            let commands = vec![vec![word("DEL"), key.clone()]];
            return Step { commands, place: Place::Direct, keys: vec![key] };
        }
        let weights = [780, 60, 50, 95, 8, if self.bytes { 7 } else { 0 }];
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
                Step { commands, place: Place::Inside("MULTI ", calls), keys }
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
                Step { commands: vec![command], place: Place::Inside("EVAL ", calls), keys }
            }
            3 => self.other(now_us),
            4 => {
                // The reply to EXEC shows whether the call changed the watched key.
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
        keys.extend(call.iter().filter(|word| word.starts_with(POLICY)).cloned());
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
