//! `RL.ALL`: several limiters in one decision.
//!
//! ```text
//! RL.ALL numkeys key [key ...] rule [rule ...]
//! rule = <FIXED|SLIDE|GCRA|BUCKET> limit period [algorithm options] [COST n]      one for each key
//! ```
//!
//! Charges all rules or none. Replies with 1 or 0 (charged or not), with wait_ms, and with a row of five integers for each rule.

use super::outcome::wait_ms;
use super::{count, grammar, now, record_outcome, reply, row, waiting};
use super::{Args, CommandName, Cursor, Error, Outcome, Rule, Target};
use crate::limiter::{Decision, Span, Wait};
use crate::queue::denied;
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec, WriteKey};

pub(super) const COMMAND: Command = Command {
    name: c"rl.all",
    callback: run_command::<All>,
    arity: -6,
    flags: c"write deny-oom fast getkeys-api",
    keys: KeySpec::CountedReadWrite(1),
    summary: c"Takes units from several limiters: from all of them or from none.",
    complexity: c"O(N) with N the number of keys, plus the complexity of each rule's own command",
    arguments,
};

fn arguments() -> Vec<Argument> {
    vec![
        Argument::new("numkeys", ArgumentKind::Integer),
        grammar::key_argument().multiple(),
        grammar::algorithm_arguments("rule", CommandName::All, |kind| grammar::rule_arguments(kind, CommandName::All))
            .multiple(),
    ]
}

/// The index of the first key.
const FIRST_KEY: usize = 2;
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

/// Parses the rules, one for each of `keys` keys.
///
/// # Errors
/// If an argument is malformed, or the number of rules differs from the number of keys.
pub fn parse_rules<A: Args + ?Sized>(args: &A, keys: usize) -> Result<Vec<Rule<'_>>, Box<Error>> {
    let mut args = Cursor::new(args, FIRST_KEY + keys);
    let mut rules = Vec::with_capacity(keys);
    while let Some(word) = args.word() {
        let kind = grammar::algorithm(word, CommandName::All)?;
        if rules.len() == keys {
            return Err(Box::new(Error::Unpaired { keys, rules: keys + 1 }));
        }
        rules.push(grammar::rule(kind, CommandName::All, &mut args)?);
    }
    if rules.len() < keys {
        return Err(Box::new(Error::Unpaired { keys, rules: rules.len() }));
    }
    Ok(rules)
}

struct All;

struct AllReply {
    granted: bool,
    wait: Wait,
    rows: Vec<Decision>,
}

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
        reply(call, run(call), |AllReply { granted, wait, rows }| {
            call.reply_array(3);
            call.reply_integer(granted.into());
            call.reply_integer(wait_ms(wait));
            call.reply_array(rows.len());
            rows.iter().for_each(|decision| call.reply_integers(&row(decision)));
        });
    }
}

fn run(call: &Call<'_>) -> Result<AllReply, Error> {
    let numkeys = parse_numkeys(call)?;
    let rules = parse_rules(call, numkeys)?;
    check_distinct(call, numkeys)?;
    // Expired keys are deleted before any key is open, because subscribers to the notifications may modify the other keys.
    (FIRST_KEY + 1..FIRST_KEY + numkeys).for_each(|index| call.delete_if_expired(index));
    let mut keys = (FIRST_KEY..FIRST_KEY + numkeys)
        .map(|index| WriteKey::open(call, index))
        .collect::<Option<Vec<_>>>()
        .ok_or(Error::Arity(CommandName::All))?;
    let now = now(call);
    // All rules are decided before any is charged. To decide copies no record, so a denied call costs no more than the decisions.
    let mut rows = Vec::with_capacity(rules.len());
    for (index, (key, rule)) in keys.iter().zip(&rules).enumerate() {
        let target = target(index, rule);
        rows.push(if waiting::has_waiters(call, FIRST_KEY + index) {
            denied(target.peek(key, rule, now)?, Span::ZERO)
        } else {
            target.decide(key, rule, now)?
        });
    }

    // The longest of the waits. `Wait::Never` is greater than any span.
    let wait = rows.iter().map(|decision| decision.wait).max().unwrap_or(Wait::NONE);
    let granted = rows.iter().all(|decision| decision.granted > 0);
    for (index, (row, (key, rule))) in rows.iter_mut().zip(keys.iter_mut().zip(&rules)).enumerate() {
        let target = target(index, rule);
        if granted {
            // One record at a time is encoded and stored, so that only one new record is in memory. The decision is the same again.
            target.charge(key, rule, now, |_| true)?;
        } else if row.granted > 0 {
            // The call takes nothing, so the row of a rule that would have granted shows the rule's present state.
            *row = target.peek(key, rule, now)?;
        }
    }
    drop(keys);
    for (index, (rule, row)) in rules.iter().zip(&rows).enumerate() {
        // In a denied call, a rule that would have granted counts neither as granted nor as denied.
        if granted || row.granted == 0 {
            let outcome = Outcome::of(rule.request.amount, row, granted);
            record_outcome(call, || call.key(FIRST_KEY + index), rule.policy.kind(), outcome, now);
        }
    }
    Ok(AllReply { granted, wait, rows })
}

/// The key of the rule at `index`, which should hold a limiter of the rule's algorithm.
const fn target(index: usize, rule: &Rule<'_>) -> Target {
    Target::at(index + 1, rule.policy.kind())
}

/// Refuses a call that names a key twice, because each of the two rules would overwrite the other's charge.
fn check_distinct(call: &Call<'_>, keys: usize) -> Result<(), Error> {
    let mut names: Vec<_> = (0..keys).map(|index| (call.argument(FIRST_KEY + index), index + 1)).collect();
    names.sort_unstable();
    let same = names.windows(2).find(|pair| pair[0].0 == pair[1].0);
    same.map_or(Ok(()), |pair| Err(Error::SameKey(pair[0].1, pair[1].1)))
}
