//! `RL.HELP`: the commands, for a person at redis-cli.
//!
//! ```text
//! RL.HELP [command]
//! ```
//!
//! Replies with lines of text. Without an argument: what the five integers of a limiter mean, then two lines for each command,
//! its syntax and its summary, similar to `HELP` of the server's own container commands. With the name of a command, also what
//! this command replies, and an example.

use super::shared::error::{CommandName, Error};
use super::shared::numbers::printable;
use super::shared::reply::reply;
use crate::server::{run_command, Argument, ArgumentKind, Call, Command, CommandHandler, KeySpec};

pub(super) const COMMAND: Command = Command {
    name: c"rl.help",
    callback: run_command::<Help>,
    arity: -1,
    flags: c"fast allow-loading allow-stale",
    keys: KeySpec::None,
    summary: c"Lists the commands with their arguments, or describes one command.",
    complexity: c"O(1)",
    arguments: || vec![Argument::new("command", ArgumentKind::Text).optional()],
    reply: &["Replies with lines of text."],
    example: "RL.HELP GCRA",
};

/// What the limiters reply.
pub(super) const FIVE_INTEGERS: &[&str] = &[
    "A limiter replies with five integers: granted (units; 0 = denied, or no whole unit to refund), limit, remaining (units free now), wait_ms, reset_ms.",
    "wait_ms: if denied, time after which to call again, -1 = never; else time until the caller may act. reset_ms: until no unit is in use.",
];

struct Help;

impl CommandHandler for Help {
    fn run(call: &Call<'_>) {
        reply(call, lines(call), |lines| {
            call.reply_array(lines.len());
            lines.iter().for_each(|line| call.reply_string(line));
        });
    }
}

fn lines(call: &Call<'_>) -> Result<Vec<String>, Error> {
    if call.argument(2).is_some() {
        return Err(Error::Arity(CommandName::Help));
    }
    let commands = super::COMMANDS
        .iter()
        .chain(super::compat_commands())
        // If the name of a compat command was taken, another module or the server provides that command.
        .filter(|command| call.provides(command.name));
    let Some(word) = call.argument(1) else {
        let heading = FIVE_INTEGERS.iter().map(|&line| line.into());
        return Ok(heading.chain(commands.flat_map(short)).collect());
    };
    let lines: Vec<String> = commands.filter(|command| is_named(command, word)).flat_map(long).collect();
    if lines.is_empty() {
        return Err(Error::UnknownCommand { word: printable(word) });
    }
    Ok(lines)
}

/// Whether a person who types `word` means this command. The prefix `RL.` may be omitted.
fn is_named(command: &Command, word: &[u8]) -> bool {
    let name = command.name.to_bytes();
    name.eq_ignore_ascii_case(word) || name.strip_prefix(b"rl.").is_some_and(|rest| rest.eq_ignore_ascii_case(word))
}

fn short(command: &Command) -> Vec<String> {
    vec![command.syntax(), format!("    {}", command.summary.to_string_lossy())]
}

fn long(command: &Command) -> Vec<String> {
    let mut lines = short(command);
    lines.push(format!("    Example: {}", command.example));
    lines.extend(command.reply.iter().map(|line| format!("    {line}")));
    lines
}
