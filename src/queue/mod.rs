//! Waiting clients. Each key that clients wait for has a line. Clients are served in the order of arrival, and charged only when
//! they are granted their units.
//!
//! A call has one key, or several keys that must all grant the call at one moment. The call first stands in the line of the key
//! that makes it wait longest. When this key grants the call, the call asks its other keys, and joins the line of the key that now
//! makes it wait longest. It goes on like this until all keys grant it. A call leaves no line before it is answered. Its place in
//! each line is by the arrival of the call, even if it joins the line later. So a call never waits for a younger call, and calls
//! cannot wait for each other in a circle. While a call stands in the line of one key, its other keys serve other calls.
//!
//! What the call takes from each of its keys is a [`Claim`].
//!
//! This module is pure, as [`limiter`](crate::limiter): time is an argument, and a key is a [`KeyState`]. The wake time of a line
//! is when the line must be served: when the units of its first client are due, or when the key expires. The agenda holds the wake
//! times of all lines. If a call changes the key, [`Queues::changed`] sets the wake time to now. To serve a line once costs O(log
//! n), and a waiting client takes a few hundred bytes.
#![forbid(unsafe_code)]

mod invariants;
mod key;
mod line;
mod queues;
mod serve;
mod waiter;

pub use key::{first_grant, KeyState, Refusal};
pub use queues::{LongLine, Queues, Task, Waiters};
pub use waiter::{denied, Claim, ClaimError, Claims, Client, Served, Waiter};
