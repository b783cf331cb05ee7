//! The commands. Each has one file with its syntax, its row in the table, its arguments, its parser and its handler; RL.FIXED,
//! RL.SLIDE, RL.GCRA and RL.BUCKET share one file, and so do RL.SETTLE and RL.RELEASE. What several commands need is in [`shared`].
//!
//! All handlers take the same steps: parse all arguments, open the key, read the clock once, decide with a
//! [`target`](shared::target), close the key, record the [`outcome`](shared::outcome), reply.

mod all;
mod cl_throttle;
mod gcra;
mod help;
mod info;
mod inspect;
mod lease;
mod limit;
mod pause;
mod peek;
mod policy;
mod settle;
mod shared;
mod top;
mod use_policy;

use redis_module::{Context, RedisString, Status};

use crate::server::{self, Command, Server};
use shared::{denials, parameters, stats, waiting};

/// The commands that the module always provides.
const COMMANDS: &[Command] = &[
    limit::FIXED,
    limit::SLIDE,
    limit::GCRA,
    limit::BUCKET,
    lease::COMMAND,
    settle::SETTLE,
    settle::RELEASE,
    pause::COMMAND,
    use_policy::COMMAND,
    policy::COMMAND,
    peek::COMMAND,
    all::COMMAND,
    inspect::COMMAND,
    top::COMMAND,
    help::COMMAND,
];

/// The commands of other rate limiters, for clients that were written for them; each with its bit in [`parameters::COMPAT`].
/// [`gcra`] is the command `GCRA`; `RL.GCRA` is [`limit::GCRA`].
const COMPAT: &[(i32, Command)] = &[(parameters::CL_THROTTLE, cl_throttle::COMMAND), (parameters::GCRA, gcra::COMMAND)];

/// The commands of [`COMPAT`] that the configuration enables at the time of the iteration.
fn compat_commands() -> impl Iterator<Item = &'static Command> {
    COMPAT.iter().filter(|(bit, _)| parameters::COMPAT.has(*bit)).map(|(_, command)| command)
}

/// The parsers, for tests and fuzzing without a server.
pub mod parsers {
    pub use super::all::{parse_numkeys, parse_rules};
    pub use super::cl_throttle::{parse as parse_cl_throttle, ThrottleArgs};
    pub use super::gcra::parse as parse_gcra;
    pub use super::lease::parse as parse_lease;
    pub use super::limit::parse as parse_limit;
    pub use super::pause::parse as parse_pause;
    pub use super::peek::parse as parse_peek;
    pub use super::policy::parse as parse_policy;
    pub use super::settle::{parse_release, parse_settle, SettleArgs};
    pub use super::shared::grammar::{Args, Rule};
    pub use super::shared::parameters::MAX_TOP_KEYS;
    pub use super::shared::policies::parse as parse_policy_text;
    pub use super::top::{parse as parse_top, TopArgs};
    pub use super::use_policy::{parse as parse_use, parse_numpolicies};
}

/// Loads the module: registers the configuration parameters and the commands, and resets all state.
pub(crate) fn load(ctx: &Context, arguments: &[RedisString]) -> Status {
    let status = server::register(ctx, arguments, parameters::PARAMETERS, COMMANDS, compat_commands());
    if matches!(status, Status::Ok) {
        let server = Server::from_context(ctx);
        waiting::start(&server);
        stats::reset();
        denials::start(&server);
    }
    status
}

/// Unloads the module: frees all memory that it has allocated.
pub(crate) fn unload(ctx: &Context) -> Status {
    let server = Server::from_context(ctx);
    denials::free(&server);
    server::unregister(&server);
    Status::Ok
}
