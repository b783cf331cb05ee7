//! What a call does at a moment, by the core: the reply, and the states of its keys afterwards.

use std::cell::Cell;

use redis_rl::limiter::{
    fingerprint, inspect, pause, rest_of_pause, settle, without_ids, Amount, Bytes, Change, Decision, Fact, Id, Policy,
    Request, SettleError, Span, Wait,
};
use redis_rl::queue::denied;

use crate::replies::State;
use crate::workload::{at, named, policy_text, Call, Later, Limit, Part, Verb, POLICIES, RULES};

thread_local! {
    /// The random number that the next record with ids gets.
    static SEED: Cell<u64> = const { Cell::new(MARKER) };
}
const MARKER: u64 = 0x5eed_1a5e_c0de_f00d;

/// The state of a key after a call.
#[derive(Debug)]
pub enum After {
    Same,
    Gone,
    /// The value, and the range of the deadline in milliseconds.
    Value(Vec<u8>, [i64; 2]),
}

/// A change, not yet carried out.
pub struct Pending {
    change: Change,
    bytes: Bytes,
}

impl Pending {
    fn none() -> Self {
        Self { change: Change::Keep, bytes: Bytes::default() }
    }

    fn after(&self, stored: Option<&[u8]>, now_us: i64) -> After {
        let (expires, slack) = match self.change {
            Change::Keep => return After::Same,
            Change::Remove => return After::Gone,
            Change::Write { expires, slack, .. } | Change::Patch { expires, slack, .. } => (expires, slack),
        };
        let mut value = stored.map(<[u8]>::to_vec);
        self.change.apply(&self.bytes, &mut value);
        let first = expires.max(at(now_us));
        let range = [first.as_ms_ceil(), first.saturating_add(slack).as_ms_ceil()];
        After::Value(value.unwrap_or_default(), range)
    }

    /// Whether the key gets a deadline that has passed by the second moment, when it is changed at the first one.
    pub fn expires_by(&self, stored: Option<&[u8]>, [now_us, until_us]: [i64; 2]) -> bool {
        matches!(self.after(stored, now_us), After::Value(_, [first_ms, _]) if first_ms * 1_000 <= until_us)
    }
}

/// Where a key's state comes from.
pub trait Keys {
    fn value(&self, key: &str) -> Option<&[u8]>;
    /// When the key expires, in milliseconds; 0 if never or if it is missing.
    fn deadline_ms(&self, key: &str) -> i64;
    /// The rule of the calls of `RL.USE`, and whether SHADOW follows it.
    fn used_rule(&self, tag: u64) -> Option<(Limit, bool)>;
}

/// The rule that the policy keys of a tag state, and whether SHADOW follows it.
pub fn stated_rule(keys: &dyn Keys, tag: u64) -> Option<(Limit, bool)> {
    let text = POLICIES.iter().find_map(|policy| keys.value(&format!("{{t{tag}}}:{policy}")))?;
    RULES.iter().find(|rule| policy_text(rule).as_bytes() == text).copied()
}

/// What a call did: its reply, and the changes of its keys.
pub struct Done {
    pub reply: String,
    pub changes: Vec<(usize, Pending)>,
    /// Whether the call is refused, so that it waits if it may.
    pub refused: bool,
    /// What was decided for each key, before it became a reply.
    pub decisions: Vec<Decision>,
}

fn integer(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// The five integers.
pub fn row(decision: &Decision) -> String {
    let wait = match decision.wait {
        Wait::For(wait) => integer(wait.as_ms_ceil()),
        Wait::Never => -1,
    };
    let Decision { granted, limit, remaining, reset, .. } = decision;
    format!("{granted},{limit},{remaining},{wait},{}", reset.as_ms_ceil())
}

/// The policy, the amount and the options of a part, as its command reads them.
pub struct Rule<'a> {
    pub policy: Policy,
    pub request: Request<'a>,
    pub renew: bool,
    pub shadow: bool,
    pub names_amount: bool,
    pub block: Option<Span>,
}

impl<'a> Rule<'a> {
    pub fn of(keys: &dyn Keys, call: &'a Call, part: &Part, id: Option<&'a str>) -> Option<Self> {
        let (policy, shadow) = match &part.limit {
            Some(limit) => (limit.policy(), false),
            None => keys.used_rule(call.tag).map(|(limit, shadow)| (named(&limit), shadow))?,
        };
        let id = id.and_then(|id| Id::new(id.as_bytes()));
        let (mut renew, mut ahead, mut block) = (false, Span::ZERO, None);
        match &call.verb {
            Verb::Take { later, renew: renews, .. } => {
                renew = *renews;
                match *later {
                    Later::No => {}
                    Later::Reserve(us) => ahead = Span::from_us(us),
                    Later::Block(us) => block = Some(Span::from_us(us)).filter(|_| !shadow),
                }
            }
            Verb::All { block_us, .. } => block = block_us.map(Span::from_us),
            _ => {}
        }
        let request = Request { amount: part.amount, ahead, id };
        Some(Self { policy, request, renew, shadow, names_amount: part.names_amount, block })
    }

    /// The decision on the rule's key, whether the call is refused, and the change. The error of the command, if it has one.
    fn decide(&self, stored: Option<&[u8]>, now_us: i64, behind: bool) -> Result<(Decision, bool, Pending), String> {
        let now = at(now_us);
        let wrong = |_| "WRONGTYPE".to_string();
        let carried = self.policy.carried(stored, now);
        let view = self.policy.view(carried.value(), now).map_err(wrong)?;
        let overflow = |_| "ERR overflow".to_string();
        match self.request.id.and_then(|id| view.held(id)) {
            Some(held)
                if self.policy.kind().spec().holds && self.names_amount && self.request.amount != Amount::Cost(held) =>
            {
                return Err("ERR other cost".into());
            }
            Some(_) => {}
            None if self.renew => {
                let present = view.peek(self.request).map_err(overflow)?;
                return Ok((Decision { granted: 0, wait: Wait::Never, ..present }, false, Pending::none()));
            }
            None if behind && self.request.amount.takes_free_units() => {
                let present = view.peek(self.request).map_err(overflow)?;
                let kept = self.policy.with_kept_times(&carried, stored, self.request, now, present);
                return Ok((kept, true, Pending::none()));
            }
            None => {}
        }
        let (decision, next) = view.decide(self.request).map_err(overflow)?;
        let mut bytes = Bytes::default();
        let change = view.store(&next, || SEED.get(), &mut bytes);
        let decision = match change {
            Change::Keep => self.policy.with_kept_times(&carried, stored, self.request, now, decision),
            _ => decision,
        };
        let change = carried.change(change, &mut bytes);
        let refused = decision.granted == 0 && self.request.amount.takes_free_units();
        Ok((decision, refused, Pending { change, bytes }))
    }
}

/// What a call does at a moment. `waited` is how long it waits before it is denied, and `behind` says whether it is behind others in the
/// line of a key.
pub fn execute(keys: &dyn Keys, call: &Call, now_us: i64, waited: Span, behind: &dyn Fn(&str) -> bool) -> Done {
    let kept = |reply: String| Done { reply, changes: Vec::new(), refused: false, decisions: Vec::new() };
    let failed = |error: String| kept(format!("!{error}"));
    match &call.verb {
        Verb::Take { part, id, .. } => {
            let Some(rule) = Rule::of(keys, call, part, id.as_deref()) else { return failed("NOPOLICY".into()) };
            let stored = keys.value(&part.key);
            let (decision, refused, pending) = match rule.decide(stored, now_us, behind(&part.key)) {
                Ok(decided) => decided,
                Err(error) => return failed(error),
            };
            let is_behind = refused && (decision.granted > 0 || behind(&part.key));
            if rule.shadow && !matches!(part.amount, Amount::Refund(_)) && (refused || decision.granted == 0) {
                return Done { decisions: vec![decision], refused, ..kept(row(&shadowed(decision, part.amount))) };
            }
            let shown = if refused && (is_behind || rule.block.is_some()) {
                denied(decision, waited)
            } else if rule.shadow {
                shadowed(decision, part.amount)
            } else {
                decision
            };
            Done { reply: row(&shown), changes: vec![(0, pending)], refused, decisions: vec![decision] }
        }
        Verb::All { parts, id, .. } => {
            let mut decided = Vec::new();
            for part in parts {
                let rule = Rule::of(keys, call, part, id.as_deref()).expect("a rule");
                match rule.decide(keys.value(&part.key), now_us, behind(&part.key)) {
                    Ok(decision) => decided.push((rule, decision)),
                    Err(error) => return failed(error),
                }
            }
            let refused = decided.iter().any(|(_, decided)| decided.1 || decided.0.granted == 0);
            let mut wait = 0;
            let mut rows = String::new();
            let (mut changes, mut decisions) = (Vec::new(), Vec::new());
            for (place, (part, (rule, (decision, refuses, pending)))) in parts.iter().zip(decided).enumerate() {
                let refuses = refuses || decision.granted == 0;
                decisions.push(decision);
                let shown = if !refused {
                    changes.push((place, pending));
                    decision
                } else if refuses {
                    denied(decision, waited)
                } else {
                    let view = rule.policy.view(keys.value(&part.key), at(now_us)).expect("it was decided");
                    view.peek(rule.request).expect("it was decided")
                };
                let ms = match shown.wait {
                    Wait::For(wait) => integer(wait.as_ms_ceil()),
                    Wait::Never => -1,
                };
                if !refused || shown.granted == 0 {
                    wait = if wait < 0 || ms < 0 { -1 } else { wait.max(ms) };
                }
                rows += &format!(",{}", row(&shown));
            }
            Done { reply: format!("{},{wait}{rows}", i64::from(!refused)), changes, refused, decisions }
        }
        Verb::Peek(part) => {
            let rule = Rule::of(keys, call, part, None).expect("a rule");
            match rule.policy.view(keys.value(&part.key), at(now_us)) {
                Ok(view) => kept(view.peek(rule.request).map_or_else(
                    |_| "!ERR overflow".into(),
                    |decision| row(&if behind(&part.key) { denied(decision, waited) } else { decision }),
                )),
                Err(_) => failed("WRONGTYPE".into()),
            }
        }
        Verb::Throttle { part, .. } => {
            let rule = Rule::of(keys, call, part, None).expect("a rule");
            match rule.decide(keys.value(&part.key), now_us, behind(&part.key)) {
                Ok((decision, _, pending)) => {
                    let seconds = |span: Span| integer(span.as_us().div_ceil(1_000_000));
                    let retry = match decision.wait {
                        Wait::For(wait) if decision.granted == 0 => seconds(wait),
                        _ => -1,
                    };
                    let Decision { granted, limit, remaining, reset, .. } = decision;
                    let reply = format!("{},{limit},{remaining},{retry},{}", i64::from(granted == 0), seconds(reset));
                    Done { reply, changes: vec![(0, pending)], refused: granted == 0, decisions: vec![decision] }
                }
                Err(error) => failed(error),
            }
        }
        Verb::Settle { key, id, units } => {
            let Some(stored) = keys.value(key) else { return kept("nil".into()) };
            let mut bytes = Bytes::default();
            let id = Id::new(id.as_bytes()).expect("an id");
            match settle(stored, at(now_us), id, units.unwrap_or(0), &mut bytes) {
                Ok(None) => kept("nil".into()),
                Ok(Some(settled)) => {
                    let change = Pending { change: settled.change, bytes };
                    Done {
                        reply: row(&settled.decision),
                        changes: vec![(0, change)],
                        refused: false,
                        decisions: vec![settled.decision],
                    }
                }
                Err(SettleError::Record(_)) => failed("WRONGTYPE".into()),
                Err(_) => failed("ERR settle".into()),
            }
        }
        Verb::Pause { key, us } => {
            let mut bytes = Bytes::default();
            let expires = Some(keys.deadline_ms(key)).filter(|&ms| ms > 0).map(|ms| at(ms * 1_000));
            match pause(keys.value(key), expires, at(now_us), Span::from_us(*us), &mut bytes) {
                Ok((rest, change)) => Done {
                    reply: rest.as_ms_ceil().to_string(),
                    changes: vec![(0, Pending { change, bytes })],
                    refused: false,
                    decisions: Vec::new(),
                },
                Err(_) => failed("WRONGTYPE".into()),
            }
        }
        // Their effects are compared by the checker.
        Verb::Policy { .. } => kept("OK".into()),
        Verb::Inspect { key } => {
            let Some(stored) = keys.value(key) else { return kept("nil".into()) };
            let Ok(facts) = inspect(stored, at(now_us)) else { return failed("WRONGTYPE".into()) };
            let mut words = Vec::new();
            for (name, fact) in facts {
                words.push(name.to_string());
                match fact {
                    Fact::Nothing => words.push("nil".into()),
                    Fact::Word(word) => words.push(word.to_string()),
                    Fact::Number(number) => words.push(number.to_string()),
                    Fact::Milliseconds(span) if span.as_us().is_multiple_of(1_000) => {
                        words.push((span.as_us() / 1_000).to_string())
                    }
                    Fact::Milliseconds(span) => {
                        let text = format!("{}.{:03}", span.as_us() / 1_000, span.as_us() % 1_000);
                        words.push(text.trim_end_matches('0').into());
                    }
                    Fact::Holders(holders) => {
                        for holder in holders.iter() {
                            let id = String::from_utf8_lossy(&holder.id);
                            words.push(format!("id,{id},units,{},left_ms,{}", holder.units, holder.left.as_ms_ceil()));
                        }
                    }
                }
            }
            kept(words.join(",") + ",waiting,")
        }
    }
}

fn shadowed(decision: Decision, amount: Amount) -> Decision {
    let granted = match amount {
        Amount::Cost(units) | Amount::UpTo(units) | Amount::Force(units) => decision.granted.max(units),
        Amount::Refund(_) => decision.granted,
    };
    Decision { granted, wait: Wait::NONE, ..decision }
}

/// Whether `reply` is the one that a caller has got.
pub fn same_reply(call: &Call, expected: &str, reply: &str) -> bool {
    match &call.verb {
        // How many clients wait is not known exactly.
        Verb::Inspect { .. } if expected.ends_with(",waiting,") => {
            reply.strip_prefix(expected).is_some_and(|waiting| waiting.parse::<u64>().is_ok())
        }
        Verb::Policy { rule: None, .. } => ["0", "1"].contains(&reply),
        _ => match (expected.strip_prefix('!'), reply.strip_prefix('!')) {
            // The texts of errors are tested elsewhere.
            (Some(expected), Some(reply)) => expected.split(' ').next() == reply.split(' ').next(),
            _ => expected == reply,
        },
    }
}

/// Whether the state that a pending change leads to is `wanted`. A new record with ids has a random number, which is read from it.
///
/// A client that waited is charged as of a moment that may have passed: `latest_us` is when it was answered at the latest.
pub fn leads_to(
    pending: &Pending,
    again: impl FnOnce() -> Option<Pending>,
    before: &State,
    wanted: &State,
    now_us: i64,
    latest_us: i64,
) -> bool {
    let stored = before.as_ref().map(|before| before.0.as_slice());
    let matches = |after: &After| match (after, wanted) {
        (After::Same, wanted) => wanted == before,
        (After::Gone, None) => true,
        (After::Value(value, range), Some((wanted, deadline))) => {
            value == wanted && (range[0]..=range[1].max(at(latest_us).as_ms_ceil())).contains(deadline)
        }
        _ => false,
    };
    let after = pending.after(stored, now_us);
    if matches(&after) {
        return true;
    }
    let (After::Value(value, _), Some((wanted, _))) = (&after, wanted) else { return false };
    let place = value.windows(8).position(|bytes| bytes == MARKER.to_le_bytes());
    let Some(found) = place.and_then(|place| wanted.get(place..place + 8)) else { return false };
    SEED.set(u64::from_le_bytes(found.try_into().expect("eight bytes")));
    let found = again().is_some_and(|pending| matches(&pending.after(stored, now_us)));
    SEED.set(MARKER);
    found
}

/// What is left of the pause of a key.
pub fn paused_us(value: Option<&[u8]>, now_us: i64) -> u64 {
    rest_of_pause(value, at(now_us)).as_us()
}

/// The rule's decision and change when a client is charged as of `at_us`, after it has waited.
pub fn charge(rule: &Rule<'_>, stored: Option<&[u8]>, at_us: i64) -> Option<(Decision, Pending)> {
    let (decision, _, pending) = rule.decide(stored, at_us, false).ok()?;
    (decision.granted > 0).then_some((decision, pending))
}

impl<'a> Rule<'a> {
    /// A rule of a call that waits.
    pub fn with(policy: Policy, part: &Part, id: Option<&'a str>) -> Self {
        let id = id.and_then(|id| Id::new(id.as_bytes()));
        let request = Request { id, ..Request::now(part.amount) };
        Self { policy, request, renew: false, shadow: false, names_amount: part.names_amount, block: None }
    }
}

/// Whether a change changes nothing.
pub fn changes_nothing(pending: &Pending) -> bool {
    pending.change == Change::Keep
}

/// Whether a key's record holds an id.
pub fn holds(policy: &Policy, stored: Option<&[u8]>, id: &str, now_us: i64) -> bool {
    let Some(id) = Id::new(id.as_bytes()) else { return false };
    policy.view(stored, at(now_us)).is_ok_and(|view| view.held(id).is_some())
}

/// The first moment in a range at which a rule's request is granted, in microseconds.
pub fn due(rule: &Rule<'_>, stored: Option<&[u8]>, [from_us, to_us]: [i64; 2]) -> Option<i64> {
    let is_granted = |us: i64| charge(rule, stored, us).is_some();
    if from_us > to_us || !is_granted(to_us) {
        return None;
    }
    let (mut denied_us, mut granted_us) = (from_us - 1, to_us);
    while granted_us - denied_us > 1 {
        let middle_us = denied_us + (granted_us - denied_us) / 2;
        *(if is_granted(middle_us) { &mut granted_us } else { &mut denied_us }) = middle_us;
    }
    Some(granted_us)
}

/// Whether `RL.ALL` is answered so when its time ends: all rules would grant, but it is behind others.
pub fn denied_in_line(keys: &dyn Keys, call: &Call, now_us: i64, waited: Span, reply: &str) -> bool {
    let Verb::All { parts, id, .. } = &call.verb else { return false };
    let rows: Option<Vec<String>> = parts
        .iter()
        .map(|part| {
            let rule = Rule::of(keys, call, part, id.as_deref())?;
            let present = rule.policy.view(keys.value(&part.key), at(now_us)).ok()?.peek(rule.request).ok()?;
            Some(row(&if present.retried { present } else { denied(present, waited) }))
        })
        .collect();
    rows.is_some_and(|rows| reply.splitn(3, ',').nth(2) == Some(rows.join(",").as_str()))
}

/// Whether a row is that of a decision as of `at_us` which was answered between these times: `reset_ms` counts from the answer.
pub fn is_row(decision: &Decision, at_us: i64, answered_us: [i64; 2], row: [i64; 5]) -> bool {
    let reset = |answered_us: i64| {
        let passed = Span::from_us(answered_us.saturating_sub(at_us).max(0) as u64);
        integer(decision.reset.saturating_sub(passed).as_ms_ceil())
    };
    let wait = if let Wait::For(wait) = decision.wait { integer(wait.as_ms_ceil()) } else { -1 };
    row[..4] == [integer(decision.granted), integer(decision.limit), integer(decision.remaining), wait]
        && (reset(answered_us[1])..=reset(answered_us[0])).contains(&row[4])
}

/// What the line of a key remembers of its value.
pub fn remembered(value: &[u8]) -> Option<Vec<u8>> {
    fingerprint(value).map(|value| without_ids(value).into_owned())
}
