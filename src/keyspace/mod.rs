//! The server's side: registration, a call's arguments and replies, and the keys. All `unsafe` code is here.

mod api;
mod call;
mod key;
mod register;

pub use call::{handler, Call, Run};
pub use key::{Held, Key};
pub use register::{register, Command, Keys};
