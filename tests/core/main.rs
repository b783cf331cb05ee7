//! Tests of the pure core: the limiters, the queues of waiting clients, and the table of busiest keys. No server runs.

mod changes;
mod damage;
mod exercise;
mod ids;
mod key;
mod leases;
mod lines;
mod model;
#[cfg(debug_assertions)]
mod pairs;
mod promises;
mod properties;
mod queue;
mod sketch;
mod steps;
mod timeline;
mod until;
