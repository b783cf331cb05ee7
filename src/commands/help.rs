//! `RL.HELP`: the commands, for a person at redis-cli.

use crate::server::{Call, CommandHandler};

/// `RL.HELP`
///
/// Replies a line with the syntax of each command, and one that says what it does, much as `HELP` of the server's own containers does.
pub(crate) struct Help;

impl CommandHandler for Help {
    fn run(call: &Call<'_>) {
        let lines: Vec<String> = crate::COMMANDS
            .iter()
            .chain(crate::compat())
            // A name of `compat` may have been taken.
            .filter(|command| call.provides(command))
            .flat_map(|command| [command.syntax(), format!("    {}", command.summary.to_string_lossy())])
            .collect();
        call.reply_array(lines.len());
        lines.iter().for_each(|line| call.reply_string(line));
    }
}
