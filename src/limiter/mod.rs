//! The pure core: the decisions of each algorithm, exact to the unit and the microsecond.
//!
//! This module reads no clock, opens no key and does not depend on Redis. Time is an argument, a stored value is a slice of bytes,
//! and all arithmetic is on integers. The decisions are the same as with rational numbers.
//!
//! Every command takes the same three steps:
//!
//! ```text
//! let view = policy.view(stored, now)?;           // load: decode the record, and compute the state at `now`
//! let (decision, next) = view.decide(request)?;   // decide: the decision, and the key's next state
//! let change = view.store(&next, random, &mut bytes); // store: encode the next state
//! ```
//!
//! Only `store` produces bytes, so a caller that drops `next` changes nothing.
//!
//! A new algorithm needs one file with a [`Spec`], a variant of [`Kind`], and an arm in each `match` on [`Kind`] that the compiler
//! reports. Other places compile unchanged: docs/internals.md lists them, under "A sixth algorithm".
#![forbid(unsafe_code)]

mod bucket;
mod carry;
mod change;
mod decision;
mod fixed;
mod gcra;
mod inspection;
mod kind;
mod lease;
mod ledger;
mod meter;
mod option;
mod pause;
mod policy;
mod record;
mod settle;
mod slide;
mod stored;
mod time;
mod view;

pub use carry::Carried;
pub use change::{Bytes, Change};
pub use decision::{Amount, Decision, Overflow, Quota, Request, Snapshot, Wait};
pub use inspection::{Fact, Holder, Inspection};
pub use kind::{Kind, Spec};
pub use ledger::{Charge, Id, RandomSeed, MAX_IDS};
pub use meter::LastingDenial;
pub use option::{OptionSpec, OptionValue, PolicyOption};
pub use pause::MAX_PAUSE;
pub use policy::Policy;
pub use record::RecordError;
pub use settle::{SettleError, Settlement};
pub use stored::{fingerprint, inspect, is_limiter, pause, rest_of_pause, settle, without_ids};
pub use time::{Instant, Span};
pub use view::{Next, View};

/// The highest limit, capacity or amount, in units.
pub const MAX_UNITS: u64 = 1_000_000_000_000;
/// The shortest period.
pub const MIN_PERIOD: Span = Span::from_us(1_000);
/// The longest period: ten years of 365 days.
pub const MAX_PERIOD: Span = Span::from_us(3_650 * 86_400_000_000);

/// The length of the shortest record, in bytes.
pub const MIN_RECORD: usize = 28;
/// The length of the shortest value that any algorithm reads, in bytes.
pub const MIN_LEN: usize = record::TAT_DIGITS;
