//! `RL.ALL`: several limiters in one decision.
//!
//! ```text
//! RL.ALL numkeys key [key ...] rule [rule ...] [ID id] [BLOCK d]
//! rule = <FIXED|SLIDE|GCRA|BUCKET|LEASE> limit period [algorithm options] [COST n]      one for each key
//! ```
//!
//! Charges all rules or none. Replies with 1 or 0 (charged or not), with wait_ms, and with a row of five integers for each rule.
//! With BLOCK the reply may come later.

use super::shared::clock::now;
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args, Cursor, Rule, FIRST_KEY_OF_ALL as FIRST_KEY};
use super::shared::numbers::count;
use super::shared::outcome::{record_outcome, Outcome};
use super::shared::reply::{reply_decisions, reply_now_or_later, Answered};
use super::shared::target::{Decided, Target};
use super::shared::waiting::{self, Begun};
use crate::limiter::{Bytes, Decision, Instant, Overflow, Request, Span};
use crate::queue::{denied, Waiters};
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec, WriteKey};

pub(super) const COMMAND: Command = Command {
    name: c"rl.all",
    callback: run_command::<All>,
    arity: -6,
    flags: c"write deny-oom fast getkeys-api",
    keys: KeySpec::CountedReadWrite(1),
    summary: c"Takes units from several limiters: from all of them or from none.",
    complexity: c"O(N) with N the number of keys, plus the complexity of each rule's own command; with BLOCK, plus O(N*log(M)) with M the waiting clients",
    arguments,
    reply: &[
        "Replies with three values: granted (1 or 0), wait_ms, and a row of five integers for each rule.",
        "If the call is granted, a row is what the rule's own command would reply. If it is denied, nothing is charged:",
        "granted is 0 in the rows that refused, and remaining describes the current state.",
    ],
    example: "RL.ALL 2 {a}:requests {a}:tokens FIXED 60 1m SLIDE 100000 1m COST 1200",
};

fn arguments() -> Vec<Argument> {
    let rule = grammar::algorithm_arguments("rule", |kind| grammar::rule_arguments(kind, CommandName::All));
    let (id, wait) = grammar::call_arguments(CommandName::All);
    let mut arguments =
        vec![Argument::new("numkeys", ArgumentKind::Integer), grammar::key_argument().multiple(), rule.multiple()];
    arguments.extend(id.map(Argument::optional).into_iter().chain(wait));
    arguments
}

/// The highest number of keys in a call.
const MAX_KEYS: u64 = 1024;

/// Parses the number of keys.
///
/// # Errors
/// If it is missing or out of range.
pub fn parse_numkeys<A: Args + ?Sized>(args: &A) -> Result<usize, Error> {
    let number = count(args.arg(1).ok_or(Error::Arity(CommandName::All))?, "numkeys", 1, MAX_KEYS)?;
    Ok(usize::try_from(number).unwrap_or(usize::MAX))
}

/// Parses the rules, one for each of `keys` keys, and what follows them. The id and the longest wait are the same in all rules.
///
/// # Errors
/// If an argument is malformed, the number of rules differs from the number of keys, or a lease has no id.
pub fn parse_rules<A: Args + ?Sized>(args: &A, keys: usize) -> Result<Vec<Rule<'_>>, Box<Error>> {
    let mut args = Cursor::new(args, FIRST_KEY + keys);
    let mut rules: Vec<Rule<'_>> = Vec::with_capacity(keys);
    while let Some(word) = args.word() {
        let kind = grammar::algorithm(word)?;
        if rules.len() == keys {
            return Err(Box::new(Error::Unpaired { keys, rules: keys + 1 }));
        }
        rules.push(grammar::rule(kind, CommandName::All, &mut args)?);
    }
    if rules.len() < keys {
        return Err(Box::new(Error::Unpaired { keys, rules: rules.len() }));
    }
    let Some((Rule { request: Request { id, .. }, block, .. }, others)) = rules.split_last_mut() else { return Ok(rules) };
    for rule in others {
        if let Some(keyword) = rule.request.id.map(|_| grammar::ID).or(rule.block.map(|_| grammar::BLOCK)) {
            return Err(Box::new(Error::BeforeLastRule(keyword)));
        }
        (rule.request.id, rule.block) = (*id, *block);
    }
    if id.is_none() && rules.iter().any(|rule| rule.policy.kind().spec().holds) {
        return Err(Box::new(Error::NoId));
    }
    Ok(rules)
}

struct All;

impl CommandHandler for All {
    fn run(call: &Call<'_>) {
        if call.asks_for_keys() {
            // A malformed number of keys counts as none here. The call itself will reply with the error.
            let keys = parse_numkeys(call).unwrap_or(0);
            (FIRST_KEY..FIRST_KEY + keys)
                .take_while(|&index| call.argument(index).is_some())
                .for_each(|index| call.key_at(index, false));
            return;
        }
        if call.is_announcement() {
            return call.reply_nil();
        }
        reply_now_or_later(call, run(call), |decisions| reply_decisions(call, &decisions));
    }
}

/// The longest change, in bytes, that is kept until all rules are decided. A longer change, such as a log that is written anew, is
/// dropped, and computed again when it is committed. So only one longer change at a time is in memory.
const MAX_KEPT: usize = 4_096;

/// Decides all rules, and then charges all of them or none.
fn run(call: &Call<'_>) -> Result<Answered<Vec<Decision>>, Box<Error>> {
    let numkeys = parse_numkeys(call)?;
    let rules = parse_rules(call, numkeys)?;
    check_distinct(call, numkeys)?;
    // Expired keys are deleted before any key is open, because subscribers to the notifications may modify the other keys.
    (FIRST_KEY + 1..FIRST_KEY + numkeys).for_each(|index| call.delete_if_expired(index));
    let mut keys = (FIRST_KEY..FIRST_KEY + numkeys)
        .map(|index| WriteKey::open(call, index))
        .collect::<Option<Vec<_>>>()
        .ok_or(Error::InUse)?;
    let now = now(call);
    let mut decided = Vec::with_capacity(rules.len());
    let mut any_waiters = false;
    for (index, (key, rule)) in keys.iter().zip(&rules).enumerate() {
        decided.push(decide(call, index, key, rule, now, &mut any_waiters)?);
    }
    let granted = !decided.iter().any(Decided::is_refused);
    let decisions = if granted {
        commit(&mut keys, &rules, &decided, now)?
    } else {
        let decisions = decided.iter().map(|decided| decided.decision);
        let waited = match rules.first().and_then(|rule| rule.block) {
            None => Span::ZERO,
            Some(timeout) => match waiting::begin(call, FIRST_KEY, &keys, &rules, decisions, timeout, now)? {
                Begun::Waits => return Ok(Answered::Later),
                Begun::Denied(waited) => waited,
            },
        };
        deny(&keys, &rules, &decided, waited, now)?
    };
    drop(keys);
    for (index, (rule, decision)) in rules.iter().zip(&decisions).enumerate() {
        // In a denied call, a rule that would have granted counts neither as granted nor as denied.
        if granted || decision.granted == 0 {
            let changed = granted && !decision.retried;
            if any_waiters && changed {
                waiting::changed(call, FIRST_KEY + index);
            }
            let name = || (call.db(), call.argument(FIRST_KEY + index).unwrap_or_default());
            let outcome = Outcome::of(rule.request.amount, decision, changed);
            record_outcome(call, name, rule.policy.kind(), outcome, now);
        }
    }
    Ok(Answered::Now(decisions))
}

/// Decides a rule, and changes nothing. Sets `any_waiters` if a waiting call has a rule for the key.
fn decide(
    call: &Call<'_>,
    index: usize,
    key: &WriteKey<'_>,
    rule: &Rule<'_>,
    now: Instant,
    any_waiters: &mut bool,
) -> Result<Decided, Box<Error>> {
    target(index, rule).view(key, &rule.policy, now, |view, record| {
        let waiters = match rule.request.id.and_then(|id| view.held(id)) {
            Some(held) => {
                rule.check_cost(held)?;
                Waiters::None
            }
            None => waiting::waiters(call, FIRST_KEY + index),
        };
        *any_waiters |= waiters != Waiters::None;
        if waiters == Waiters::InLine {
            return Ok(Decided::behind_line(view, rule.request)?);
        }
        let decided = Decided::of(view, rule.request)?;
        // Without ids, a change lengthens a value by less than `Bytes::SHORT`. Records with ids are far shorter than the longest
        // value, unless a client has written them itself. So after this check, no commit can fail after another one has been made.
        if record.map_or(0, <[u8]>::len) + Bytes::SHORT > WriteKey::MAX_LEN {
            return Err(Overflow.into());
        }
        Ok(if decided.len() > MAX_KEPT { Decided::unchanged(decided.decision) } else { decided })
    })
}

/// Charges all rules.
fn commit(
    keys: &mut [WriteKey<'_>],
    rules: &[Rule<'_>],
    decided: &[Decided],
    now: Instant,
) -> Result<Vec<Decision>, Box<Error>> {
    for (index, ((key, rule), decided)) in keys.iter_mut().zip(rules).zip(decided).enumerate() {
        if decided.changes() || decided.decision.retried {
            decided.commit(key)?;
        } else {
            // The change was too long to be kept. The decision is the same again.
            let again = target(index, rule).view(key, &rule.policy, now, |view, _| Ok(Decided::of(view, rule.request)?))?;
            again.commit(key)?;
        }
    }
    Ok(decided.iter().map(|decided| decided.decision).collect())
}

/// The decisions of a denied call: the denials of the rules that refused it, and the present state of the others, since the call
/// takes nothing from them.
fn deny(
    keys: &[WriteKey<'_>],
    rules: &[Rule<'_>],
    decided: &[Decided],
    waited: Span,
    now: Instant,
) -> Result<Vec<Decision>, Box<Error>> {
    let decision = |(index, ((key, rule), decided)): (usize, ((&WriteKey<'_>, &Rule<'_>), &Decided))| {
        if decided.is_refused() {
            return Ok(denied(decided.decision, waited));
        }
        target(index, rule).peek(key, &rule.policy, rule.request, now)
    };
    keys.iter().zip(rules).zip(decided).enumerate().map(decision).collect()
}

/// The key of the rule at `index`, which should hold a limiter of the rule's algorithm.
const fn target(index: usize, rule: &Rule<'_>) -> Target {
    Target::at(index + 1, rule.policy.kind())
}

/// Refuses a call that names a key twice, because each of the two rules would overwrite the other's charge. `ReadKey::value` also
/// relies on this: a call has each key open only once.
fn check_distinct(call: &Call<'_>, keys: usize) -> Result<(), Error> {
    let name = |index: usize| (call.argument(FIRST_KEY + index), index + 1);
    if keys == 2 {
        // Most calls have two keys, which need not be sorted.
        let (one, other) = (name(0), name(1));
        return if one.0 == other.0 { Err(Error::SameKey(one.1, other.1)) } else { Ok(()) };
    }
    let mut names: Vec<_> = (0..keys).map(name).collect();
    names.sort_unstable();
    let same = names.windows(2).find(|pair| pair[0].0 == pair[1].0);
    same.map_or(Ok(()), |pair| Err(Error::SameKey(pair[0].1, pair[1].1)))
}
