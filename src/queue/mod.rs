//! Waiting clients. Each key that clients wait for has a line. Clients are served in the order of arrival, and charged only when
//! they are granted their units.
//!
//! A call has one key, or several that must all grant it at one moment. It first stands in the line of the key that makes it
//! wait longest. When that key's units are free for it, it asks its other keys, and joins the line of the one that then makes it
//! wait longest, and so on until all grant it. It leaves no line before it is answered. Its place in each line is by its arrival,
//! also if it joins the line later: so a call never waits for a younger one, and calls cannot wait for each other in a circle. A
//! key in whose line the call does not stand serves other calls meanwhile.
//!
//! What the call takes from each of its keys is a [`Claim`].
//!
//! Pure, as [`limiter`](crate::limiter): time is an argument, and a key is a [`KeyState`]. A line must be served when the
//! units of its first client are due, or when the key expires. This moment is its wake time. The agenda holds the wake times
//! of all lines. If a call changes the key, [`Queues::changed`] sets the wake time to now. To serve a line once costs O(log
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
