//! Exact, native rate limiting for Redis and Valkey: docs/commands.md says what the commands do.
//!
//! Layers, each of which knows only those to its right: `commands` (parse, run, reply) → `keyspace` (the server's side, all
//! `unsafe` code), [`queue`] (who waits for what: pure), [`sketch`] (who is denied most: pure) → [`limiter`] (what is decided:
//! pure, and nothing but integers).

#![deny(unsafe_code)]
// Nothing that a client sends or a key holds may end in a panic. Indices and arithmetic, which the compiler can't vouch for, are
// fuzzed.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo, clippy::unimplemented)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod commands;
#[allow(unsafe_code)]
mod keyspace;
pub mod limiter;
pub mod queue;
pub mod sketch;

use redis_module::{Context, InfoContext, RedisResult, RedisString, Status};
use redis_module_macros::info_command_handler;

use commands::{docs, settings, All, Help, Inspect, Limiter, Peek, Throttle, Tokens, Top};
use keyspace::{handler, Command, Keys};
use limiter::{Bucket, Fixed, Gcra, Slide};

/// Every command that the server learns of.
const COMMANDS: &[Command] = &[
    Command {
        name: c"rl.fixed",
        handler: handler::<Limiter<Fixed>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: Keys::Update(1),
        summary: c"Takes units from a fixed window.",
        complexity: c"O(1); with BLOCK, O(log(N)) with N the clients that wait",
        arguments: docs::limiter::<Fixed>,
    },
    Command {
        name: c"rl.slide",
        handler: handler::<Limiter<Slide>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: Keys::Update(1),
        summary: c"Takes units from a sliding window.",
        complexity: c"O(log(N)) with N the grants in the window, amortized; O(N) for the first grant after a change of policy; with BLOCK, N counts the clients that wait, too",
        arguments: docs::limiter::<Slide>,
    },
    Command {
        name: c"rl.gcra",
        handler: handler::<Limiter<Gcra>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: Keys::Update(1),
        summary: c"Takes units by the generic cell rate algorithm: evenly spaced, after a burst.",
        complexity: c"O(1); with BLOCK, O(log(N)) with N the clients that wait",
        arguments: docs::limiter::<Gcra>,
    },
    Command {
        name: c"rl.bucket",
        handler: handler::<Limiter<Bucket>>,
        arity: -4,
        flags: c"write deny-oom fast",
        keys: Keys::Update(1),
        summary: c"Takes tokens from a bucket that fills up with time.",
        complexity: c"O(1); with BLOCK, O(log(N)) with N the clients that wait",
        arguments: docs::limiter::<Bucket>,
    },
    Command {
        name: c"rl.peek",
        handler: handler::<Peek>,
        arity: -5,
        flags: c"readonly fast",
        keys: Keys::Read(2),
        summary: c"Tells what a limiter would answer, and takes nothing.",
        complexity: c"O(log(N)) with N the grants in the window for SLIDE, O(1) for the others",
        arguments: docs::peek,
    },
    Command {
        name: c"rl.all",
        handler: handler::<All>,
        arity: -6,
        flags: c"write deny-oom fast getkeys-api",
        keys: Keys::UpdateCounted(1),
        summary: c"Takes units from several limiters, from all of them or from none.",
        complexity: c"O(N) with N the number of keys, and as each rule's own command for each",
        arguments: docs::all,
    },
    Command {
        name: c"rl.inspect",
        handler: handler::<Inspect>,
        arity: 2,
        flags: c"readonly fast",
        keys: Keys::Read(1),
        summary: c"Tells what a limiter's key holds.",
        complexity: c"O(log(N)) with N the grants in the window for SLIDE, O(1) for the others",
        arguments: docs::inspect,
    },
    Command {
        name: c"rl.top",
        handler: handler::<Top>,
        arity: -1,
        flags: c"admin allow-loading allow-stale",
        keys: Keys::None,
        summary: c"Tells which keys were denied most of late.",
        complexity: c"O(N*log(N)) with N the keys that are kept count of, at most 1024",
        arguments: docs::top,
    },
    Command {
        name: c"rl.help",
        handler: handler::<Help>,
        arity: 1,
        flags: c"fast allow-loading allow-stale",
        keys: Keys::None,
        summary: c"Tells the commands, with their arguments.",
        complexity: c"O(1)",
        arguments: docs::none,
    },
];

/// Commands of others, for the clients that know them.
const COMPAT: &[(i32, Command)] = &[
    (
        settings::CL_THROTTLE,
        Command {
            name: c"cl.throttle",
            handler: handler::<Throttle>,
            arity: -5,
            flags: c"write deny-oom fast",
            keys: Keys::Update(1),
            summary: c"Takes units by the generic cell rate algorithm, as redis-cell does.",
            complexity: c"O(1)",
            arguments: docs::throttle,
        },
    ),
    (
        settings::GCRA,
        Command {
            name: c"gcra",
            handler: handler::<Tokens>,
            arity: -5,
            flags: c"write deny-oom fast",
            keys: Keys::Update(1),
            summary: c"Takes tokens by the generic cell rate algorithm, as the milestones of Redis 8.8 did.",
            complexity: c"O(1)",
            arguments: docs::tokens,
        },
    ),
];

/// Those of [`COMPAT`] that are wanted, as it is configured when they are asked for.
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
        // All that lasts is in keys: the module's own heap is tiny, and must work outside a server, in tests.
        allocator: (std::alloc::System, std::alloc::System),
        data_types: [],
        init: load,
        deinit: unload,
    }
}

fn load(ctx: &Context, arguments: &[RedisString]) -> Status {
    match keyspace::register(ctx, arguments, settings::SETTINGS, COMMANDS, compat()) {
        Status::Ok => {
            commands::start(&keyspace::Server::of(ctx));
            Status::Ok
        }
        Status::Err => Status::Err,
    }
}

fn unload(_: &Context) -> Status {
    commands::stop();
    keyspace::unregister();
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
