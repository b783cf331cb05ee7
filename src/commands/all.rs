//! `RL.ALL`: several limiters in one decision.

use super::error::{Error, Name};
use super::grammar::Rule;
use super::{charge, conclude, grammar, now, reply, row, wait_ms, waiting, Wanted};
use crate::limiter::{Decision, Span, Wait};
use crate::queue::denied;
use crate::server::{Call, CommandHandler, ReadKey, WriteKey};

/// `RL.ALL numkeys key [key ...] rule [rule ...]`, with a rule for each key:
/// `<FIXED|SLIDE|GCRA|BUCKET> limit period [algorithm options] [COST n]`
///
/// Charges every rule or none. Replies whether it did (1 or 0), wait_ms, and a row of five integers for each rule.
pub(crate) struct All;

/// Where the keys begin.
const FIRST: usize = 2;

impl CommandHandler for All {
    fn run(call: &Call<'_>) {
        if call.asks_for_keys() {
            // What is no number of keys has none; the call itself will say so.
            let keys = grammar::numkeys(call).unwrap_or(0);
            (FIRST..FIRST + keys).take_while(|&index| call.argument(index).is_some()).for_each(|index| call.key_at(index));
            return;
        }
        reply(call, all(call), |Answer { granted, wait, rows }| {
            call.reply_array(3);
            call.reply_integer(granted.into());
            call.reply_integer(wait_ms(wait));
            call.reply_array(rows.len());
            rows.iter().for_each(|decision| call.reply_integers(&row(decision)));
        });
    }
}

struct Answer {
    granted: bool,
    wait: Wait,
    rows: Vec<Decision>,
}

fn all(call: &Call<'_>) -> Result<Answer, Error> {
    let keys = grammar::numkeys(call)?;
    let rules = grammar::rules(call, keys)?;
    distinct(call, keys)?;
    // A key that has expired goes now, and not while others are open: whoever is told of it may do with those what they like.
    (FIRST + 1..FIRST + keys).for_each(|index| call.expire_if_due(index));
    let mut keys = (FIRST..FIRST + keys)
        .map(|index| WriteKey::open(call, index))
        .collect::<Option<Vec<_>>>()
        .ok_or(Error::Arity(Name::All))?;
    let now = now(call);
    // First a look at each, which copies no record: a refusal costs no more than that.
    let looks = judge(&keys, &rules, |wanted, key, rule| {
        if wanted.has_waiters(call) {
            Ok(denied(wanted.peek(key, &rule.policy, now, rule.request)?, Span::ZERO))
        } else {
            wanted.look(key, &rule.policy, now, rule.request)
        }
    })?;

    // The longest of the waits, and never if any is never.
    let wait = looks.iter().map(|decision| decision.wait).max().unwrap_or(Wait::NONE);
    let granted = looks.iter().all(|decision| decision.granted > 0);
    let mut rows = looks;
    if granted {
        // Record by record, so that only one is in memory besides those of the keys. Each decision is the one of the look.
        for (index, (key, rule)) in keys.iter_mut().zip(&rules).enumerate() {
            charge(Wanted::of(index, rule), key, &rule.policy, now, rule.request, |_| true)?;
        }
    } else {
        // Nothing is taken, so the rules that would have granted are shown as they stand.
        for (index, (row, (key, rule))) in rows.iter_mut().zip(keys.iter().zip(&rules)).enumerate() {
            if row.granted > 0 {
                *row = Wanted::of(index, rule).peek(key, &rule.policy, now, rule.request)?;
            }
        }
    }
    drop(keys);
    for (index, (rule, row)) in rules.iter().zip(&rows).enumerate() {
        // A rule that would have granted, had the others, is neither charged nor denied.
        if granted || row.granted == 0 {
            conclude(call, || call.key(FIRST + index), rule.policy.kind(), rule.request.amount, granted, now);
        }
    }
    Ok(Answer { granted, wait, rows })
}

impl Wanted {
    /// The key of `rule`, which is the one at `index`.
    fn of(index: usize, rule: &Rule) -> Self {
        Self { place: Some(index + 1), kind: Some(rule.policy.kind()) }
    }

    /// Whether others wait for this key, which is one of several.
    fn has_waiters(self, call: &Call<'_>) -> bool {
        self.place.is_some_and(|place| waiting::has_waiters(call, FIRST + place - 1))
    }
}

/// Asks each rule about its key.
fn judge(
    keys: &[WriteKey<'_>],
    rules: &[Rule],
    ask: impl Fn(Wanted, &ReadKey<'_>, &Rule) -> Result<Decision, Error>,
) -> Result<Vec<Decision>, Error> {
    let pairs = keys.iter().zip(rules).enumerate();
    pairs.map(|(index, (key, rule))| ask(Wanted::of(index, rule), key, rule)).collect()
}

/// Two rules for one key would each overwrite what the other charges.
fn distinct(call: &Call<'_>, keys: usize) -> Result<(), Error> {
    let mut names: Vec<_> = (0..keys).map(|index| (call.argument(FIRST + index), index + 1)).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(Error::SameKey(pair[0].1, pair[1].1)),
        None => Ok(()),
    }
}
