//! `RL.PEEK`: the reply that a limiter would give, without taking units.
//!
//! ```text
//! RL.PEEK <FIXED|SLIDE|GCRA|BUCKET> key limit period [algorithm options] [COST n | UPTO n]
//! RL.PEEK LEASE key limit ttl [COST n]
//! ```
//!
//! Replies with the integers of the limiter's own command, except that remaining and reset_ms show the present state, because
//! no units are taken.

use super::help;
use super::shared::clock::now;
use super::shared::error::{CommandName, Error};
use super::shared::grammar::{self, Args, Cursor, Rule};
use super::shared::reply::{reply, reply_decision};
use super::shared::target::Target;
use super::shared::waiting;
use crate::limiter::{Decision, Span};
use crate::queue::{denied, Waiters};
use crate::server::{run_command, Argument, Call, Command, CommandHandler, KeySpec, ReadKey};

pub(super) const COMMAND: Command = Command {
    name: c"rl.peek",
    callback: run_command::<Peek>,
    arity: -5,
    flags: c"readonly fast",
    keys: KeySpec::ReadOnly(2),
    summary: c"Tells whether a limiter would grant a call, and takes no units.",
    complexity:
        c"O(log(N)) with N the grants in the window for SLIDE; O(N) with N the leases for LEASE; O(1) for the others",
    arguments,
    reply: help::FIVE_INTEGERS,
    example: "RL.PEEK GCRA user:42 10 60 BURST 20",
};

fn arguments() -> Vec<Argument> {
    vec![grammar::algorithm_arguments("algorithm", |kind| {
        [grammar::key_argument()].into_iter().chain(grammar::rule_arguments(kind, CommandName::Peek)).collect()
    })]
}

struct Peek;

impl CommandHandler for Peek {
    fn run(call: &Call<'_>) {
        reply(call, run(call), |decision| reply_decision(call, &decision));
    }
}

/// Parses the arguments.
///
/// # Errors
/// If an argument is malformed. The error is about the first such argument.
pub fn parse<A: Args + ?Sized>(args: &A) -> Result<Rule<'_>, Box<Error>> {
    let kind = grammar::algorithm(args.arg(1).ok_or(Error::Arity(CommandName::Peek))?)?;
    grammar::rule(kind, CommandName::Peek, &mut Cursor::new(args, 3))
}

fn run(call: &Call<'_>) -> Result<Decision, Error> {
    let rule = parse(call)?;
    let key = ReadKey::open(call, 2).ok_or(Error::InUse)?;
    let decision = Target::only(rule.policy.kind()).peek(&key, &rule.policy, rule.request, now(call))?;
    Ok(if waiting::waiters(call, 2) == Waiters::InLine { denied(decision, Span::ZERO) } else { decision })
}
