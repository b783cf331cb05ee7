//! Tests of the module in a server. Each test starts servers of its own, from the package `support`.

mod access;
mod all;
mod amounts;
mod block;
mod cluster;
mod commands;
mod concurrency;
mod crash;
mod durability;
mod followers;
mod harness;
mod hints;
mod inspect;
mod keys;
mod leaks;
mod listeners;
mod operate;
mod outgoing;
mod peek;
mod readme;
mod replication;
mod reserve;
mod throttle;
mod throttle_clients;
mod waiting;
mod worker;
