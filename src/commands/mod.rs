//! The commands: parse, run, reply.

mod error;
pub mod grammar;
mod limiter;

pub(crate) use limiter::Limiter;
