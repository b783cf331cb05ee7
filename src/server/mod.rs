//! The interface to the server: all `unsafe` code of the crate, behind types that keep the rules of the module API.
//!
//! [`register`] describes the module to the server. The server then calls the module through three traits: [`CommandHandler`]
//! runs a command, [`EventHandler`] handles the timer and the server's events, [`ReplyHandler`] replies to blocked clients.

mod api;
mod arguments;
mod blocked_client;
mod call;
mod config;
mod context;
mod effects;
mod events;
mod forkless;
mod info;
mod key;
mod key_flags;
mod main_thread;
mod owned_name;
mod random;
mod register;
mod shortcuts;
mod write_refusals;

// Several files of this layer use each of these, through `super`.
use api::{api, contain_panic, string_bytes, Ctx, ServerString};
use info::Info;
use redis_module::raw;
use shortcuts::propagation;

pub use arguments::{Argument, ArgumentKind};
pub use blocked_client::{BlockedClient, ClientId, ReplyHandler};
pub use call::{run_command, Call, CommandHandler};
pub use config::{NumberParameter, Parameter, WordsParameter};
pub use context::Server;
pub use events::{EventHandler, Timer};
pub use key::{Moved, ReadKey, Value, WriteKey};
pub use main_thread::MainThread;
pub use random::random_seed;
pub use register::{register, unregister, Command, KeySpec};
pub use shortcuts::{are_in_use as shortcuts_are_in_use, SHORTCUTS};
