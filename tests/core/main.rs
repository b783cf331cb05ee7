//! Tests of the pure core: the limiters, the queues of waiting clients, and the table of busiest keys. No server runs.

mod action;
mod carry;
mod changes;
mod exercise;
mod ids;
mod key;
mod lease_model;
mod leases;
mod lines;
mod model;
mod pause;
mod promises;
mod properties;
mod queue;
mod sketch;
mod timeline;
mod until;
