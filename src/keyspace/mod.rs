//! The server's side: registration, a call's arguments and replies, the keys, clients that are held, the timer and events. All
//! `unsafe` code is here.

mod api;
mod block;
mod call;
mod config;
mod docs;
mod effects;
mod key;
mod register;
mod reply;
mod server;
mod writes;

pub use block::{Client, Holding};
pub use call::{handler, Call, Run};
pub use config::{Choice, Number, Setting};
pub use docs::{Argument, What};
pub use key::{Found, Held, Key};
pub use register::{register, unregister, Command, Keys};
pub use server::{Server, Timer, Watch};
