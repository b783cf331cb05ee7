//! `RL.POLICY`: stores the rule of a limiter under a name, in an ordinary string key.
//!
//! ```text
//! RL.POLICY key <FIXED|SLIDE|GCRA|BUCKET|LEASE> limit period [algorithm options] [SHADOW]
//! ```
//!
//! Replies with OK. The key has no deadline. `GET` returns the rule, and `SET` can store one, too.

use super::shared::error::{CommandName, Error, MAX_POLICY_LEN};
use super::shared::grammar::{self, Args, Cursor, KEY, SHADOW};
use super::shared::reply::reply;
use super::shared::waiting;
use crate::limiter::is_limiter;
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec, Value, WriteKey};

pub(super) const COMMAND: Command = Command {
    name: c"rl.policy",
    callback: run_command::<Policy>,
    arity: -5,
    flags: c"write deny-oom fast",
    keys: KeySpec::ReadWrite(1),
    summary: c"Stores a rule under a name, for calls of RL.USE.",
    complexity: c"O(1)",
    arguments,
    reply: &[
        "Replies with OK. The key is a string without a deadline, which GET, SET and DEL work on.",
        "SHADOW: RL.USE decides and counts, but answers denials as grants.",
    ],
    example: "RL.POLICY policy:api GCRA 200 1s BURST 20",
};

fn arguments() -> Vec<Argument> {
    let rule = grammar::algorithm_arguments("rule", |kind| grammar::rule_arguments(kind, CommandName::Policy));
    let shadow = Argument::new("shadow", ArgumentKind::Token).token(SHADOW).optional();
    vec![grammar::key_argument(), rule, shadow]
}

/// Checks the rule, and returns its text: the words as given, but keywords in capitals, with one space between two words.
///
/// # Errors
/// If the words are no rule, or the text is too long.
pub fn parse<A: Args + ?Sized>(args: &A) -> Result<Vec<u8>, Box<Error>> {
    const FIRST: usize = KEY + 1;
    grammar::policy_text(&mut Cursor::new(args, FIRST))?;
    let mut text = Vec::new();
    for word in (FIRST..).map_while(|index| args.arg(index)) {
        text.extend(if text.is_empty() { &b""[..] } else { b" " });
        if grammar::is_policy_keyword(word) {
            text.extend(word.to_ascii_uppercase());
        } else {
            text.extend(word);
        }
    }
    if text.len() > MAX_POLICY_LEN {
        return Err(Box::new(Error::LongPolicy));
    }
    Ok(text)
}

struct Policy;

impl CommandHandler for Policy {
    fn run(call: &Call<'_>) {
        reply(call, run(call).map_err(Error::from), |()| call.reply_status(c"OK"));
    }
}

fn run(call: &Call<'_>) -> Result<(), Box<Error>> {
    let text = parse(call)?;
    let mut key = WriteKey::open(call, KEY).ok_or(Error::InUse)?;
    match key.value(0) {
        Value::String(stored) if is_limiter(stored) => return Err(Box::new(Error::NotOverwritten("limiter"))),
        Value::OtherType(name) => return Err(Box::new(Error::NotOverwritten(name))),
        Value::Missing | Value::String(_) | Value::TooShort => {}
    }
    key.set_lasting(&text);
    drop(key);
    waiting::changed(call, KEY);
    if call.notifications_enabled() {
        call.notify(call.db(), call.argument(KEY).unwrap_or_default(), "rl.policy");
    }
    Ok(())
}
