//! Exact, native rate limiting for Redis and Valkey.
pub mod limiter;
