//! Charges with an id: the rule of the contract against replays of whole histories, and the core against the rule.

pub mod core;
mod examples;
pub mod histories;
mod ledger;
mod model;
pub mod rule;
