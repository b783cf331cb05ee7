#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod account;
mod admit;
mod amount;
mod ask;
mod breaker;
pub mod connection;
mod decision;
mod error;
mod key;
mod leases;
mod limit;
mod limits;
mod local;
mod pause;
mod policy;
mod repeat;
mod send;
mod span;
mod take;
#[cfg(feature = "tower")]
pub mod tower;
mod wallet;

pub use admit::{Admission, Admitting, Charge, Held};
pub use ask::Rule;
pub use decision::{headers, AllDecision, Decision, Source};
pub use error::{Cause, Denial, Error};
pub use key::{address_key, Key};
pub use limit::Limit;
pub use limits::{Limits, OnDown};
pub use pause::Observe;
pub use policy::{AnyPolicy, Bucket, Fixed, Gcra, Lease, LeasePolicy, Named, Policy, RatePolicy, Slide};
pub use span::{IntoSpan, Span};
pub use take::{All, Take};
pub use wallet::{Spend, Wallet};

/// The crate `redis`, whose clients this crate uses.
pub use redis;

#[cfg(test)]
extern crate self as redis_rl_client;

#[cfg(all(test, feature = "zone"))]
#[path = "../tests/unit/values.rs"]
mod values;
