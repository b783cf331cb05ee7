//! The calls of a run. A call follows from the seed, the caller and its number alone, so a history need not contain it.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use redis_rl::limiter::{Amount, Instant, Kind, Policy, PolicyOption, Quota, Span};

use crate::model::{Form, Rule, Windows};

/// How many clients call.
pub const CALLERS: u64 = 36;
/// How many hash tags the keys have.
pub const TAGS: u64 = 24;
/// Every third caller sends transactions in batches. The others make one call at a time, which may wait.
pub const fn sends_batches(caller: u64) -> bool {
    caller.is_multiple_of(3)
}

/// What a run's calls follow from.
#[derive(Clone, Copy)]
pub struct Run {
    pub seed: u64,
    /// When the run began, in seconds since the Unix epoch: the times of `UNTIL` count from there.
    pub start_s: u64,
}

/// A call: its caller, and how many this caller has made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    pub caller: u64,
    pub number: u64,
}

impl CallId {
    /// The value of the mark that is set with the call.
    pub fn mark(self) -> String {
        format!("c{}.{}", self.caller, self.number)
    }

    /// Reads a mark.
    pub fn parse(mark: &[u8]) -> Option<Self> {
        let (caller, number) = std::str::from_utf8(mark).ok()?.strip_prefix('c')?.split_once('.')?;
        Some(Self { caller: caller.parse().ok()?, number: number.parse().ok()? })
    }

    /// The id that the call gives its charge.
    fn charge_id(self) -> String {
        format!("c{}n{}", self.caller, self.number)
    }
}

/// The rule of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Rate(Rule),
    /// Limit and time to live in microseconds.
    Lease(u64, u64),
}

impl Limit {
    pub fn policy(&self) -> Policy {
        match *self {
            Self::Rate(rule) => rule.policy(),
            Self::Lease(limit, ttl_us) => {
                let quota = Quota::new(limit, Span::from_us(ttl_us)).expect("a quota");
                Kind::Lease.policy(quota).expect("a policy")
            }
        }
    }

    pub fn capacity(&self) -> u64 {
        match self {
            Self::Rate(rule) => rule.capacity(),
            Self::Lease(limit, _) => *limit,
        }
    }

    pub const fn is_lease(&self) -> bool {
        matches!(self, Self::Lease(..))
    }

    /// Whether the rule says when windows begin or end.
    pub fn aligns(&self) -> bool {
        matches!(self, Self::Rate(Rule { form: Form::Fixed { windows }, .. }) if !matches!(windows, Windows::FirstCall))
    }

    /// Whether a key holds a log of grants.
    pub const fn is_log(&self) -> bool {
        matches!(self, Self::Rate(Rule { form: Form::Slide { .. }, .. }))
    }

    /// The algorithm, the limit, the period and the options, as in a call.
    pub fn words(&self) -> String {
        let mut words = String::new();
        let (name, limit, period_us) = match self {
            Self::Lease(limit, ttl_us) => ("LEASE", *limit, *ttl_us),
            Self::Rate(Rule { limit, period, form }) => {
                let name = match form {
                    Form::Fixed { .. } => "FIXED",
                    Form::Slide { .. } => "SLIDE",
                    Form::Gcra { .. } => "GCRA",
                    Form::Bucket { .. } => "BUCKET",
                };
                (name, *limit, *period)
            }
        };
        let _ = write!(words, "{name} {limit} {period_us}us");
        let Self::Rate(rule) = self else { return words };
        let _ = match rule.form {
            Form::Fixed { windows: Windows::FirstCall } | Form::Gcra { burst: None } => Ok(()),
            Form::Fixed { windows: Windows::Align(offset) } => write!(words, " ALIGN {offset}us"),
            Form::Fixed { windows: Windows::Until(us) } => write!(words, " UNTIL {}", us / 1_000_000),
            Form::Slide { segments } => write!(words, " SEGMENTS {segments}"),
            Form::Gcra { burst: Some(burst) } => write!(words, " BURST {burst}"),
            Form::Bucket { capacity, step } => {
                capacity.map_or(Ok(()), |capacity| write!(words, " CAPACITY {capacity}")).expect("a string");
                write!(words, "{}", if step { " STEP" } else { "" })
            }
        };
        words
    }
}

const MS: u64 = 1_000;
const fn rate(limit: u64, period_ms: u64, form: Form) -> Limit {
    Limit::Rate(Rule { limit, period: period_ms * MS, form })
}
const FIXED: Form = Form::Fixed { windows: Windows::FirstCall };
const LOG: Form = Form::Slide { segments: 65_536 };
/// The lanes: the keys of a tag, each with the rules that its callers use. Most use the first.
const LANES: &[(&str, &[Limit])] = &[
    ("fixed", &[rate(20, 400, FIXED), rate(24, 500, FIXED)]),
    ("aligned", &[rate(30, 700, Form::Fixed { windows: Windows::Align(-123_000) })]),
    ("until", &[rate(400, 60_000, Form::Fixed { windows: Windows::Until(0) })]),
    ("slide", &[rate(20, 400, LOG), rate(16, 300, LOG), rate(20, 400, Form::Slide { segments: 20 })]),
    ("segments", &[rate(20, 500, Form::Slide { segments: 10 })]),
    ("gcra", &[rate(30, 600, Form::Gcra { burst: Some(12) }), rate(20, 500, Form::Gcra { burst: None })]),
    ("spaced", &[rate(70, 1_000, Form::Gcra { burst: Some(1) })]),
    (
        "bucket",
        &[
            rate(20, 500, Form::Bucket { capacity: Some(25), step: false }),
            rate(30, 500, Form::Bucket { capacity: None, step: false }),
        ],
    ),
    ("step", &[rate(8, 200, Form::Bucket { capacity: Some(20), step: true })]),
    ("lease", &[Limit::Lease(6, 300 * MS), Limit::Lease(5, 200 * MS)]),
    ("hours", &[rate(300, 3_600_000, Form::Gcra { burst: None })]),
    ("days", &[rate(300, 86_400_000, LOG)]),
    ("month", &[rate(300, 2_592_000_000, FIXED)]),
];
/// The lane of leases.
const LEASES: usize = 9;
/// The lanes from here on have long periods. Their keys are used up, and others follow.
const LONG: usize = 10;
/// How many calls of a caller use the same key of a long lane.
const GENERATION: u64 = 3_000;
/// The keys that `RL.USE` limits.
const USED: [&str; 2] = ["used:0", "used:1"];
pub const POLICIES: [&str; 2] = ["policy:0", "policy:1"];
/// The rules that a policy key may hold; SHADOW follows two of them.
pub const RULES: &[(Limit, bool)] = &[
    (rate(20, 400, FIXED), false),
    (rate(10, 300, FIXED), true),
    (rate(16, 300, LOG), false),
    (rate(12, 300, Form::Gcra { burst: Some(10) }), false),
    (rate(20, 400, Form::Gcra { burst: None }), false),
    (rate(18, 400, Form::Bucket { capacity: Some(15), step: false }), false),
    (rate(6, 200, Form::Bucket { capacity: None, step: true }), true),
];

/// The text of a policy key.
pub fn policy_text((limit, shadow): &(Limit, bool)) -> String {
    limit.words() + if *shadow { " SHADOW" } else { "" }
}

/// When the units of a call may be had later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    No,
    /// `RESERVE`, in microseconds.
    Reserve(u64),
    /// `BLOCK`, in microseconds.
    Block(u64),
}

/// One of the rules of a call: what it takes from its key.
#[derive(Clone, Debug)]
pub struct Part {
    pub key: String,
    /// `None`: the policy keys say it.
    pub limit: Option<Limit>,
    pub amount: Amount,
    /// Whether the call states the amount.
    pub names_amount: bool,
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub enum Verb {
    /// The limiters' commands and `RL.USE`.
    Take {
        part: Part,
        id: Option<String>,
        renew: bool,
        later: Later,
    },
    All {
        parts: Vec<Part>,
        id: Option<String>,
        block_us: Option<u64>,
    },
    Peek(Part),
    /// `CL.THROTTLE`.
    Throttle {
        part: Part,
        words: String,
    },
    /// `RL.SETTLE`; without units `RL.RELEASE`.
    Settle {
        key: String,
        id: String,
        units: Option<u64>,
    },
    Pause {
        key: String,
        us: u64,
    },
    /// `RL.POLICY`, with the place of the rule in [`RULES`]; `None`: `DEL`.
    Policy {
        key: String,
        rule: Option<usize>,
    },
    Inspect {
        key: String,
    },
}

/// A call.
#[derive(Clone, Debug)]
pub struct Call {
    pub tag: u64,
    pub verb: Verb,
}

fn amount_words(amount: Amount) -> String {
    match amount {
        Amount::Cost(n) => format!(" COST {n}"),
        Amount::UpTo(n) => format!(" UPTO {n}"),
        Amount::Force(n) => format!(" FORCE {n}"),
        Amount::Refund(n) => format!(" REFUND {n}"),
    }
}

impl Call {
    /// The key that is set with the call.
    pub fn mark_key(tag: u64) -> String {
        format!("{{t{tag}}}:m")
    }

    /// The words of the call.
    pub fn words(&self) -> String {
        let stated = |part: &Part| if part.names_amount { amount_words(part.amount) } else { String::new() };
        match &self.verb {
            Verb::Take { part, id, renew, later } => {
                let mut words = match &part.limit {
                    Some(limit) => {
                        let rule = limit.words();
                        let (name, rule) = rule.split_once(' ').expect("a rule");
                        format!("RL.{name} {} {rule}", part.key)
                    }
                    None => {
                        let policies = POLICIES.map(|policy| format!("{{t{}}}:{policy}", self.tag));
                        format!("RL.USE {} 2 {}", part.key, policies.join(" "))
                    }
                };
                words += &stated(part);
                let _ = id.iter().try_for_each(|id| write!(words, " ID {id}"));
                words += if *renew { " RENEW" } else { "" };
                let _ = match later {
                    Later::No => Ok(()),
                    Later::Reserve(us) => write!(words, " RESERVE {us}us"),
                    Later::Block(us) => write!(words, " BLOCK {us}us"),
                };
                words
            }
            Verb::All { parts, id, block_us } => {
                let keys: Vec<_> = parts.iter().map(|part| part.key.as_str()).collect();
                let mut words = format!("RL.ALL {} {}", keys.len(), keys.join(" "));
                for part in parts {
                    let _ = write!(words, " {}{}", part.limit.expect("a rule").words(), stated(part));
                }
                let _ = id.iter().try_for_each(|id| write!(words, " ID {id}"));
                let _ = block_us.iter().try_for_each(|us| write!(words, " BLOCK {us}us"));
                words
            }
            Verb::Peek(part) => {
                let rule = part.limit.expect("a rule").words();
                let (name, rule) = rule.split_once(' ').expect("a rule");
                format!("RL.PEEK {name} {} {rule}{}", part.key, stated(part))
            }
            Verb::Throttle { words, .. } => words.clone(),
            Verb::Settle { key, id, units: Some(units) } => format!("RL.SETTLE {key} {id} {units}"),
            Verb::Settle { key, id, units: None } => format!("RL.RELEASE {key} {id}"),
            Verb::Pause { key, us } => format!("RL.PAUSE {key} {us}us"),
            Verb::Policy { key, rule: Some(rule) } => format!("RL.POLICY {key} {}", policy_text(&RULES[*rule])),
            Verb::Policy { key, rule: None } => format!("DEL {key}"),
            Verb::Inspect { key } => format!("RL.INSPECT {key}"),
        }
    }

    /// How long the call waits at most.
    pub fn block(&self) -> Option<Span> {
        match self.verb {
            Verb::Take { later: Later::Block(us), .. } => Some(Span::from_us(us)),
            Verb::All { block_us, .. } => block_us.map(Span::from_us),
            _ => None,
        }
    }

    /// What the call takes from each key.
    pub fn parts(&self) -> &[Part] {
        match &self.verb {
            Verb::Take { part, .. } | Verb::Throttle { part, .. } | Verb::Peek(part) => std::slice::from_ref(part),
            Verb::All { parts, .. } => parts,
            _ => &[],
        }
    }

    /// The id that the call gives its charge.
    pub fn id(&self) -> Option<&str> {
        match &self.verb {
            Verb::Take { id, .. } | Verb::All { id, .. } => id.as_deref(),
            _ => None,
        }
    }

    /// The keys of the call, except policy keys that it reads.
    pub fn keys(&self) -> Vec<&str> {
        match &self.verb {
            Verb::Take { part, .. } | Verb::Peek(part) | Verb::Throttle { part, .. } => vec![&part.key],
            Verb::All { parts, .. } => parts.iter().map(|part| part.key.as_str()).collect(),
            Verb::Settle { key, .. } | Verb::Pause { key, .. } | Verb::Policy { key, .. } | Verb::Inspect { key } => {
                vec![key]
            }
        }
    }
}

impl Run {
    /// A run that begins now.
    pub fn new(seed: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
        Self { seed, start_s: now.as_secs() }
    }

    fn rng(self, call: CallId) -> Rng {
        let mut rng = Rng::with_seed(self.seed ^ call.caller.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ call.number << 20);
        rng.u64(..);
        rng
    }

    /// A key and a rule of a lane.
    fn part(self, rng: &mut Rng, call: CallId, tag: u64, lane: usize) -> Part {
        let (name, limits) = LANES[lane];
        let mut limit = if rng.u8(..10) < 9 { limits[0] } else { limits[rng.usize(..limits.len())] };
        let mut key = format!("{{t{tag}}}:{name}");
        if let Limit::Rate(Rule { form: Form::Fixed { windows: Windows::Until(time) }, .. }) = &mut limit {
            // Callers do not agree on the time, which the next whole minutes give.
            *time = ((self.start_s + 20 + rng.u64(0..3) * 30) * 1_000_000) as i64;
        }
        if lane >= LONG {
            key += &format!(":{}", call.number / GENERATION);
        }
        let most = (limit.capacity() / 5).max(1);
        let units = if rng.u8(..3) == 0 { rng.u64(1..=most) } else { 1 };
        let amount = match rng.u8(..60) {
            _ if limit.is_lease() => Amount::Cost(units.min(2)),
            0 => Amount::Refund(units),
            1 => Amount::Force(units),
            2 => Amount::Cost(limit.capacity() + 1),
            3..=6 => Amount::UpTo(units + 1),
            _ => Amount::Cost(units),
        };
        let names_amount = amount != Amount::Cost(1);
        Part { key, limit: Some(limit), amount, names_amount }
    }

    /// The call with this number.
    pub fn draw(self, call: CallId) -> Call {
        self.draw_from(call, true)
    }

    fn draw_from(self, call: CallId, may_look_back: bool) -> Call {
        let mut rng = self.rng(call);
        let waits = !sends_batches(call.caller);
        let block = |rng: &mut Rng| rng.u64(2..250) * MS + rng.u64(..1_000);
        if may_look_back && call.number > 0 && rng.u8(..100) < 24 {
            let before = CallId { number: call.number - 1 - rng.u64(..call.number.min(12)), ..call };
            if let Some(again) = Self::again(&mut rng, self.draw_from(before, false)) {
                return again;
            }
        }
        let tag = rng.u64(..TAGS);
        let lane = rng.usize(..LANES.len());
        let mut part = self.part(&mut rng, call, tag, lane);
        let verb = match rng.u8(..100) {
            0 | 1 => Verb::Inspect { key: part.key },
            2..=4 => {
                if !matches!(part.amount, Amount::Cost(_) | Amount::UpTo(_)) {
                    (part.amount, part.names_amount) = (Amount::Cost(1), false);
                }
                Verb::Peek(part)
            }
            5 if rng.bool() => Verb::Pause { key: part.key, us: rng.u64(..4) * rng.u64(1_000..100_000) },
            6 if rng.bool() => {
                let key = format!("{{t{tag}}}:{}", POLICIES[rng.usize(..2)]);
                Verb::Policy { key, rule: (rng.u8(..4) > 0).then(|| rng.usize(..RULES.len())) }
            }
            7 | 8 => {
                let (units, limit) =
                    (rng.u64(1..4), Rule { limit: 20, period: 1_000_000, form: Form::Gcra { burst: Some(16) } });
                let key = format!("{{t{tag}}}:cell");
                let part = Part { key, limit: Some(Limit::Rate(limit)), amount: Amount::Cost(units), names_amount: true };
                Verb::Throttle { words: format!("CL.THROTTLE {} 15 20 1 {units}", part.key), part }
            }
            9..=16 => {
                let count = rng.usize(2..4);
                let lanes = rng.choose_multiple(0..LANES.len(), count);
                let mut parts: Vec<_> = lanes.iter().map(|&lane| self.part(&mut rng, call, tag, lane)).collect();
                for part in &mut parts {
                    if !matches!(part.amount, Amount::Cost(n) if n <= part.limit.expect("a rule").capacity()) {
                        (part.amount, part.names_amount) = (Amount::Cost(1), false);
                    }
                }
                let leases = parts.iter().any(|part| part.limit.expect("a rule").is_lease());
                let id = (leases || rng.u8(..3) == 0).then(|| call.charge_id());
                let block_us = (waits && rng.u8(..3) > 0).then(|| block(&mut rng));
                Verb::All { parts, id, block_us }
            }
            17..=26 => {
                let key = format!("{{t{tag}}}:{}", USED[rng.usize(..2)]);
                let amount = if rng.u8(..4) == 0 { Amount::Cost(rng.u64(1..4)) } else { Amount::Cost(1) };
                let part = Part { key, limit: None, amount, names_amount: amount != Amount::Cost(1) };
                let id = (rng.u8(..4) == 0).then(|| call.charge_id());
                let later = if waits && rng.bool() { Later::Block(block(&mut rng)) } else { Later::No };
                Verb::Take { part, id, renew: false, later }
            }
            _ => {
                let costs = matches!(part.amount, Amount::Cost(_));
                let takes = costs || matches!(part.amount, Amount::UpTo(_));
                let lease = lane == LEASES;
                let id = (lease || takes && rng.u8(..3) == 0).then(|| call.charge_id());
                let later = match rng.u8(..10) {
                    0 if costs && !lease => Later::Reserve(rng.u64(1..300) * MS),
                    0..=6 if takes && waits => Later::Block(block(&mut rng)),
                    _ => Later::No,
                };
                Verb::Take { part, id, renew: false, later }
            }
        };
        Call { tag, verb }
    }

    /// A call about the id of an earlier one, if that had one.
    fn again(rng: &mut Rng, before: Call) -> Option<Call> {
        let tag = before.tag;
        let (part, id) = match before.verb {
            Verb::Take { part, id: Some(id), .. } => (part, id),
            Verb::All { mut parts, id: Some(id), .. } => (parts.swap_remove(rng.usize(..parts.len())), id),
            _ => return None,
        };
        let lease = part.limit.is_some_and(|limit| limit.is_lease());
        let verb = match rng.u8(..10) {
            0 => Verb::Take { part, id: Some(id), renew: false, later: Later::No },
            1 | 2 if lease => Verb::Take { part, id: Some(id), renew: true, later: Later::No },
            3..=5 if !lease => Verb::Settle { key: part.key, id, units: Some(rng.u64(..6)) },
            _ => Verb::Settle { key: part.key, id, units: None },
        };
        Some(Call { tag, verb })
    }
}

/// The policy of a rule that a policy key holds.
pub fn named(limit: &Limit) -> Policy {
    let policy = limit.policy();
    if limit.is_lease() {
        policy
    } else {
        policy.with(PolicyOption::CarriesOver)
    }
}

/// A moment.
pub const fn at(us: i64) -> Instant {
    Instant::from_us(us)
}
