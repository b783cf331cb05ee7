//! Exact, native rate limiting for Redis and Valkey: docs/commands.md says what the commands do.
//!
//! The layers: `commands` (parse, run, reply) uses all others. `server` (the interface to the server, with all `unsafe` code) uses
//! none of them. [`queue`] (the clients that wait for a key) and [`sketch`] (the keys that are denied most) use only [`limiter`] (the
//! decisions). These three are pure: they call no server and read no clock.

#![deny(unsafe_code)]
// No input from a client and no value of a key may cause a panic. Clippy refuses the macros and functions below. It does not check
// indices and arithmetic; these are fuzzed.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo, clippy::unimplemented)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod commands;
pub mod limiter;
pub mod queue;
#[allow(unsafe_code)]
mod server;
pub mod sketch;

/// The entry points that the server looks for in a module.
mod module {
    use crate::commands::{load, unload};
    use redis_module::redis_module;

    redis_module! {
        name: "rl",
        version: 1_00,
        // The system's allocator, not the server's: persistent state is in keys, so the module's own heap is tiny, and it must
        // work in tests without a server.
        allocator: (std::alloc::System, std::alloc::System),
        data_types: [],
        init: load,
        deinit: unload,
    }
}
