//! `BLOCK`: the server blocks the client of a call whose units are not free, and the client waits in [lines](crate::queue).
//!
//! All of this runs on the server's main thread:
//!
//! ```text
//! begin    a call whose units are not free: blocks its client, and puts it into the lines of its keys
//! timer    fires for the next task, and does all tasks that are due: it grants units to clients or denies them
//! answer   replies to the clients whose wait has ended
//! lines    the lines, and the timer that is set for them
//! ```
//!
//! Events make the timer fire at once. Only the timer grants units to waiting clients, so that no other call takes longer because
//! of them.

mod answer;
mod begin;
mod lines;
mod timer;

pub use begin::{begin, Begun};
pub use lines::{changed, count_waiters, longest_lines, start, waiters, waiting_clients};
