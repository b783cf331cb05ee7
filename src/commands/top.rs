//! `RL.TOP`: who is being limited.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazy_static::lazy_static;

use super::grammar::{self, TopOf};
use super::settings::{TOP_HALF_LIFE, TOP_KEYS};
use super::{now, number, reply};
use crate::limiter::{Instant, Span};
use crate::server::{Call, CommandHandler, Server};
use crate::sketch::Sketch;

lazy_static! {
    static ref DENIED: Mutex<Sketch> = Mutex::new(empty());
}

/// One that counts nothing, and takes no memory.
fn empty() -> Sketch {
    Sketch::new(0, Span::ZERO, [0, 0], Instant::from_us(0))
}

/// The table, as it is configured now: one of another size or pace begins anew.
fn denied_of_late(now: Instant) -> MutexGuard<'static, Sketch> {
    let mut sketch = DENIED.lock().unwrap_or_else(PoisonError::into_inner);
    let most = usize::try_from(TOP_KEYS.get()).unwrap_or(0);
    let half_life = Span::from_us(u64::try_from(TOP_HALF_LIFE.get()).unwrap_or(1).saturating_mul(1_000_000));
    if !sketch.is_for(most, half_life) {
        // Nobody can know which names collide in it.
        let seed = [0, 1].map(|number| RandomState::new().hash_one(number));
        *sketch = Sketch::new(most, half_life, seed, now);
    }
    sketch
}

/// Begins anew, as the module is loaded.
pub(super) fn start(server: &Server<'_>) {
    denied_of_late(now(server)).reset();
}

/// Gives the memory back, before the module goes.
pub(super) fn stop() {
    *DENIED.lock().unwrap_or_else(PoisonError::into_inner) = empty();
}

/// A key was denied.
pub(super) fn denied(db: i32, name: &[u8], now: Instant) {
    denied_of_late(now).count(db, name, now);
}

/// `RL.TOP [n | RESET]`
///
/// Replies the `n` keys (10) with the most denials of late, each as a map: key, db, denials, overcount. With RESET all are
/// forgotten.
pub(crate) struct Top;

impl CommandHandler for Top {
    fn run(call: &Call<'_>) {
        let now = now(call);
        match grammar::top(call) {
            Ok(TopOf::Reset) => {
                denied_of_late(now).reset();
                call.reply_status(c"OK");
            }
            Ok(TopOf::Most(most)) => {
                let mut sketch = denied_of_late(now);
                let rows = sketch.top(most, now);
                call.reply_array(rows.len());
                for row in rows {
                    call.reply_map(4);
                    call.reply_string("key");
                    call.reply_bytes(row.name);
                    for (name, number) in
                        [("db", row.db.into()), ("denials", number(row.count)), ("overcount", number(row.over))]
                    {
                        call.reply_string(name);
                        call.reply_integer(number);
                    }
                }
            }
            Err(error) => reply(call, Err(error), |()| {}),
        }
    }
}
