//! The clock of a call.

use crate::limiter::Instant;
use crate::server::Server;

/// Reads the wall clock. A call does so once, and uses the result for all its decisions.
pub fn now(server: &Server<'_>) -> Instant {
    Instant::from_us(server.now_us())
}
