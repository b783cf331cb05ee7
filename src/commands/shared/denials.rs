//! The table of `RL.TOP`: the keys that were denied most often recently.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use super::clock::now;
use super::parameters::{TOP_HALF_LIFE, TOP_KEYS};
use crate::limiter::{Instant, Span};
use crate::server::{MainThread, Server};
use crate::sketch::Sketch;

/// The table; `None` while the module is not loaded.
static DENIALS: MainThread<Option<Sketch>> = MainThread::new(None);

/// Calls `work` with the table. If its configured size or half-life has changed, it is replaced by an empty one before.
#[inline(always)]
pub fn with_denials(server: &Server<'_>, now: Instant, work: impl FnOnce(&mut Sketch)) {
    let most = usize::try_from(TOP_KEYS.get()).unwrap_or(0);
    let half_life = Span::from_us(u64::try_from(TOP_HALF_LIFE.get()).unwrap_or(1).saturating_mul(1_000_000));
    DENIALS.with(server, |table| match table {
        Some(sketch) if sketch.is_for(most, half_life) => work(sketch),
        _ => work(table.insert(empty_for(most, half_life, now))),
    });
}

/// A table without denials.
#[cold]
fn empty_for(most: usize, half_life: Span, now: Instant) -> Sketch {
    // The seed is random, so that no caller can choose names that collide.
    let seed = [0, 1].map(|number| RandomState::new().hash_one(number));
    Sketch::new(most, half_life, seed, now)
}

/// Makes an empty table, when the module is loaded.
pub fn start(server: &Server<'_>) {
    free(server);
    with_denials(server, now(server), |_| ());
}

/// Frees the table, when the module is unloaded.
pub fn free(server: &Server<'_>) {
    DENIALS.with(server, |table| *table = None);
}

/// Counts a denial.
pub fn count_denial(server: &Server<'_>, db: i32, name: &[u8], now: Instant) {
    with_denials(server, now, |sketch| sketch.count(db, name, now));
}
