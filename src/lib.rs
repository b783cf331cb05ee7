//! Exact, native rate limiting for Redis and Valkey. docs/commands.md describes the commands, docs/internals.md the design.
//!
//! Each layer uses only those below it:
//!
//! * `commands` parses arguments, runs the commands and replies.
//! * `server` is the interface to the server, with all `unsafe` code. [`queue`] decides in which order clients that wait get
//!   their units, and [`sketch`] counts which keys are denied most; both are pure.
//! * [`limiter`] decides. It is pure, and computes with integers only.

#![deny(unsafe_code)]
// Nothing that a client sends or a key holds may cause a panic. The compiler does not check indices and arithmetic; these are
// fuzzed.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo, clippy::unimplemented)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod commands;
pub mod limiter;
pub mod queue;
#[allow(unsafe_code)]
mod server;
pub mod sketch;

use redis_module::{Context, InfoContext, RedisResult, RedisString, Status};
use redis_module_macros::info_command_handler;

use commands::{docs, settings, All, Help, Inspect, Limiter, Peek, Throttle, Tokens, Top};
use limiter::{Bucket, Fixed, Gcra, Slide};
use server::{run_command, Command, KeySpec, Server};

/// The commands that the module always registers.
const COMMANDS: &[Command] = &[
    Command {
        name: c"rl.fixed",
        callback: run_command::<Limiter<Fixed>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: KeySpec::ReadWrite(1),
        summary: c"Takes units from a fixed window.",
        complexity: c"O(1); with BLOCK, O(log(N)) with N the clients that wait",
        arguments: docs::limiter::<Fixed>,
    },
    Command {
        name: c"rl.slide",
        callback: run_command::<Limiter<Slide>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: KeySpec::ReadWrite(1),
        summary: c"Takes units from a sliding window.",
        complexity: c"O(log(N)) with N the grants in the window, amortized; O(N) for the first grant after a change of policy; with BLOCK, N counts the clients that wait, too",
        arguments: docs::limiter::<Slide>,
    },
    Command {
        name: c"rl.gcra",
        callback: run_command::<Limiter<Gcra>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: KeySpec::ReadWrite(1),
        summary: c"Takes units by the generic cell rate algorithm: evenly spaced, after a burst.",
        complexity: c"O(1); with BLOCK, O(log(N)) with N the clients that wait",
        arguments: docs::limiter::<Gcra>,
    },
    Command {
        name: c"rl.bucket",
        callback: run_command::<Limiter<Bucket>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: KeySpec::ReadWrite(1),
        summary: c"Takes tokens from a bucket that fills up with time.",
        complexity: c"O(1); with BLOCK, O(log(N)) with N the clients that wait",
        arguments: docs::limiter::<Bucket>,
    },
    Command {
        name: c"rl.peek",
        callback: run_command::<Peek>,
        arity: -5,
        flags: c"readonly fast",
        keys: KeySpec::ReadOnly(2),
        summary: c"Tells what a limiter would answer, and takes nothing.",
        complexity: c"O(log(N)) with N the grants in the window for SLIDE, O(1) for the others",
        arguments: docs::peek,
    },
    Command {
        name: c"rl.all",
        callback: run_command::<All>,
        arity: -6,
        flags: c"write deny-oom fast getkeys-api",
        keys: KeySpec::CountedReadWrite(1),
        summary: c"Takes units from several limiters, from all of them or from none.",
        complexity: c"O(N) with N the number of keys, and as each rule's own command for each",
        arguments: docs::all,
    },
    Command {
        name: c"rl.inspect",
        callback: run_command::<Inspect>,
        arity: 2,
        flags: c"readonly fast",
        keys: KeySpec::ReadOnly(1),
        summary: c"Tells what a limiter's key holds.",
        complexity: c"O(log(N)) with N the grants in the window for SLIDE, O(1) for the others",
        arguments: docs::inspect,
    },
    Command {
        name: c"rl.top",
        callback: run_command::<Top>,
        arity: -1,
        flags: c"admin allow-loading allow-stale",
        keys: KeySpec::None,
        summary: c"Tells which keys were denied most of late.",
        complexity: c"O(N*log(N)) with N the keys that are kept count of, at most 1024",
        arguments: docs::top,
    },
    Command {
        name: c"rl.help",
        callback: run_command::<Help>,
        arity: 1,
        flags: c"fast allow-loading allow-stale",
        keys: KeySpec::None,
        summary: c"Tells the commands, with their arguments.",
        complexity: c"O(1)",
        arguments: docs::none,
    },
];

/// Commands that other rate limiters have, for clients written for those; each with its bit in [`settings::COMPAT`].
const COMPAT: &[(i32, Command)] = &[
    (
        settings::CL_THROTTLE,
        Command {
            name: c"cl.throttle",
            callback: run_command::<Throttle>,
            arity: -5,
            flags: c"write deny-oom fast",
            keys: KeySpec::ReadWrite(1),
            summary: c"Takes units by the generic cell rate algorithm, as redis-cell does.",
            complexity: c"O(1)",
            arguments: docs::throttle,
        },
    ),
    (
        settings::GCRA,
        Command {
            name: c"gcra",
            callback: run_command::<Tokens>,
            arity: -5,
            flags: c"write deny-oom fast",
            keys: KeySpec::ReadWrite(1),
            summary: c"Takes tokens by the generic cell rate algorithm, as the milestones of Redis 8.8 did.",
            complexity: c"O(1)",
            arguments: docs::tokens,
        },
    ),
];

/// Returns the commands of [`COMPAT`] that the configuration enables at the time of the iteration.
fn compat() -> impl Iterator<Item = &'static Command> {
    COMPAT.iter().filter(|(bit, _)| settings::COMPAT.has(*bit)).map(|(_, command)| command)
}

/// The entry points that the server looks for in a module.
mod module {
    use super::{load, unload};
    use redis_module::redis_module;

    redis_module! {
        name: "rl",
        version: 1_00,
        // Not the server's allocator: persistent state is in keys, so the module's own heap is tiny, and it must work in tests
        // without a server.
        allocator: (std::alloc::System, std::alloc::System),
        data_types: [],
        init: load,
        deinit: unload,
    }
}

fn load(ctx: &Context, arguments: &[RedisString]) -> Status {
    match server::register(ctx, arguments, settings::SETTINGS, COMMANDS, compat()) {
        Status::Ok => {
            commands::start(&Server::from_context(ctx));
            Status::Ok
        }
        Status::Err => Status::Err,
    }
}

fn unload(_: &Context) -> Status {
    commands::stop();
    server::unregister();
    Status::Ok
}

/// `INFO rl`
#[info_command_handler]
fn info(ctx: &InfoContext, _for_crash_report: bool) -> RedisResult<()> {
    let section = ctx.builder().add_section("").field("version", env!("CARGO_PKG_VERSION"))?;
    let section =
        commands::facts().into_iter().try_fold(section, |section, (name, value)| section.field(&name, value.to_string()))?;
    section.build_section()?.build_info()?;
    Ok(())
}
