#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod decision;
mod error;
mod policy;
mod span;

#[cfg(feature = "tokio")]
mod account;
#[cfg(feature = "tokio")]
mod admit;
#[cfg(feature = "tokio")]
mod all;
#[cfg(feature = "tokio")]
mod cached;
#[cfg(feature = "tokio")]
mod charge;
#[cfg(feature = "tokio")]
pub mod connection;
#[cfg(feature = "tokio")]
mod hold;
#[cfg(feature = "tokio")]
mod limits;
#[cfg(feature = "tokio")]
mod send;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "tokio")]
mod wallet;

pub use decision::{headers, AllDecision, Decision};
pub use error::{Cause, Denial, Error};
pub use policy::{AnyPolicy, Bucket, Fixed, Gcra, Lease, Offset, Policy, RatePolicy, Slide};
pub use span::{Rate, Span};

#[cfg(feature = "tokio")]
pub use admit::{Admission, Admitting};
#[cfg(feature = "tokio")]
pub use all::{All, Rule};
#[cfg(feature = "tokio")]
pub use cached::Cached;
#[cfg(feature = "tokio")]
pub use charge::{Charge, Charging};
#[cfg(feature = "tokio")]
pub use hold::{Held, Hold};
#[cfg(feature = "tokio")]
pub use limits::{Limit, Limits, OnDown, Take};
#[cfg(feature = "tokio")]
pub use wallet::{Pocket, Spend, Spending, Wallet};

/// The crate `redis`, whose clients and connections this crate uses.
#[cfg(feature = "tokio")]
pub use redis;
