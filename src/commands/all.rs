//! `RL.ALL`: several limiters in one decision.
//!
//! ```text
//! RL.ALL numkeys key [key ...] rule [rule ...] [ID id] [BLOCK d]
//! rule = <FIXED|SLIDE|GCRA|BUCKET|LEASE> limit period [algorithm options] [COST n]      one for each key
//! ```
//!
//! Charges all rules or none. Replies with 1 or 0 (charged or not), with wait_ms, and with a row of five integers for each rule.
//! With BLOCK the reply may come later.

use super::outcome::wait_ms;
use super::{count, grammar, now, record_outcome, reply, row, waiting};
use super::{Args, CommandName, Cursor, Error, Outcome, Rule, Target};
use crate::limiter::{Decision, Kind, Request, Span, Wait};
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
        "granted is 0 in the rows that refused, and all rows show remaining and reset_ms as they stand.",
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

/// The index of the first key.
pub(super) const FIRST_KEY: usize = 2;
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
    if id.is_none() && rules.iter().any(|rule| rule.policy.kind() == Kind::Lease) {
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
                .for_each(|index| call.key_at(index));
            return;
        }
        if call.is_announcement() {
            return call.reply_nil();
        }
        match run(call) {
            // The client is blocked. `waiting` replies to it later.
            Ok(None) => {}
            Ok(Some(rows)) => reply_rows(call, &rows),
            Err(error) => reply(call, Err(error), |()| {}),
        }
    }
}

/// Replies with the decisions of the rules. The call is granted if all of them are.
pub(super) fn reply_rows(call: &Call<'_>, rows: &[Decision]) {
    // The longest of the waits. `Wait::Never` is greater than any span.
    let longest = |(granted, wait), row: &Decision| (granted && row.granted > 0, Ord::max(wait, row.wait));
    let (granted, wait) = rows.iter().fold((true, Wait::NONE), longest);
    call.reply_rows([granted.into(), wait_ms(wait)], rows.iter().map(row));
}

fn is_granted(rows: &[Decision]) -> bool {
    rows.iter().all(|decision| decision.granted > 0)
}

/// Returns the decisions of the rules; `None` if the client was blocked.
fn run(call: &Call<'_>) -> Result<Option<Vec<Decision>>, Error> {
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
    // All rules are decided before any is charged.
    let mut rows = Vec::with_capacity(rules.len());
    let mut prepared = Vec::with_capacity(rules.len());
    let mut any_waiters = false;
    for (index, (key, rule)) in keys.iter().zip(&rules).enumerate() {
        let target = target(index, rule);
        let held = if rule.request.id.is_some() { target.held(key, rule, now)? } else { None };
        held.map_or(Ok(()), |held| rule.check_cost(held))?;
        let waiters = if held.is_none() { waiting::waiters(call, FIRST_KEY + index) } else { Waiters::None };
        any_waiters |= waiters != Waiters::None;
        let (row, change) = if waiters == Waiters::InLine {
            (denied(target.peek(key, rule, now)?, Span::ZERO), None)
        } else {
            target.decide(key, rule, now)?
        };
        rows.push(row);
        prepared.push(change);
    }

    let granted = is_granted(&rows);
    if let Some(timeout) = rules.first().and_then(|rule| rule.block).filter(|_| !granted) {
        let Some(waited) = waiting::block(call, true, &keys, &rules, timeout, now)? else { return Ok(None) };
        rows.iter_mut().filter(|row| row.granted == 0).for_each(|row| *row = denied(*row, waited));
    }
    for (index, (row, (key, rule))) in rows.iter_mut().zip(keys.iter_mut().zip(&rules)).enumerate() {
        let target = target(index, rule);
        if let (true, Some(change)) = (granted, &prepared[index]) {
            change.commit(key)?;
        } else if granted {
            // One long record at a time is encoded and stored, so that only one is in memory. The decision is the same again.
            target.charge(key, rule, now, |_, _, _| true)?;
        } else if row.granted > 0 {
            // The call takes nothing, so the row of a rule that would have granted shows the rule's present state.
            *row = target.peek(key, rule, now)?;
        }
    }
    drop(keys);
    for (index, (rule, row)) in rules.iter().zip(&rows).enumerate() {
        // In a denied call, a rule that would have granted counts neither as granted nor as denied.
        if granted || row.granted == 0 {
            let changed = granted && !row.retried;
            if any_waiters && changed {
                waiting::changed(call, FIRST_KEY + index);
            }
            let outcome = Outcome::of(rule.request.amount, row, changed);
            record_outcome(call, || call.key(FIRST_KEY + index), rule.policy.kind(), outcome, now);
        }
    }
    Ok(Some(rows))
}

/// The key of the rule at `index`, which should hold a limiter of the rule's algorithm.
const fn target(index: usize, rule: &Rule<'_>) -> Target {
    Target::at(index + 1, rule.policy.kind())
}

/// Refuses a call that names a key twice, because each of the two rules would overwrite the other's charge.
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
