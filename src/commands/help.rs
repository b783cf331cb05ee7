//! `RL.HELP`: the commands, for a person at redis-cli.
//!
//! Replies with two lines for each command, its syntax and its summary, similar to `HELP` of the server's own container commands.

use crate::server::{run_command, Call, Command, CommandHandler, KeySpec};

pub(super) const COMMAND: Command = Command {
    name: c"rl.help",
    callback: run_command::<Help>,
    arity: 1,
    flags: c"fast allow-loading allow-stale",
    keys: KeySpec::None,
    summary: c"Lists the commands with their arguments.",
    complexity: c"O(1)",
    arguments: Vec::new,
};

struct Help;

impl CommandHandler for Help {
    fn run(call: &Call<'_>) {
        let lines: Vec<String> = super::COMMANDS
            .iter()
            .chain(super::compat_commands())
            // If the name of a compat command was taken, another module or the server provides that command.
            .filter(|command| call.provides(command))
            .flat_map(|command| [command.syntax(), format!("    {}", command.summary.to_string_lossy())])
            .collect();
        call.reply_array(lines.len());
        lines.iter().for_each(|line| call.reply_string(line));
    }
}
