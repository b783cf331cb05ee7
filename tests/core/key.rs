//! A key of a simulated server, for all tests: it holds the bytes that the core wrote, until the core's deadline.

use redis_rl::limiter::{Bytes, Change, Decision, Instant, Policy, RecordError, Request};
use redis_rl::queue::KeyState;

use crate::steps::{DecideError, Outcome, Steps};

/// A key.
#[derive(Clone, Debug, Default)]
pub struct Key {
    /// Its value; `None`: it does not exist.
    pub value: Option<Vec<u8>>,
    /// Its deadline.
    pub expires: Option<Instant>,
    /// How many changes were made to it.
    pub changes: u64,
    /// The bytes that these changes have written.
    pub written: usize,
    /// The longest period under which [`Self::call`] has written its value, in microseconds.
    pub longest_us: u64,
}

impl Key {
    /// Carries out a change. Returns whether it is one.
    pub fn apply(&mut self, change: &Change, bytes: &Bytes) -> bool {
        change.apply(bytes, &mut self.value);
        match change {
            Change::Keep => return false,
            Change::Remove => self.delete(),
            Change::Write { .. } | Change::Patch { .. } => {
                self.written += bytes.as_slice().len();
                self.expires = change.expires();
            }
        }
        self.changes += 1;
        true
    }

    /// [`Self::apply`] at `now`, with a deadline as the server sets it: in whole milliseconds, and not in the past.
    pub fn apply_at(&mut self, change: &Change, bytes: &Bytes, now: Instant) {
        self.apply(change, bytes);
        if let Some(expires) = change.expires() {
            self.expires = Some(Instant::from_us(expires.max(now).as_ms_ceil().saturating_mul(1_000)));
        }
    }

    /// Deletes the key. What was counted stays.
    pub fn delete(&mut self) {
        *self = Self { changes: self.changes, written: self.written, ..Self::default() };
    }

    /// Deletes the key if its deadline has passed. Returns the key.
    pub fn expire(&mut self, now: Instant) -> &mut Self {
        if self.expires.is_some_and(|at| at <= now) {
            self.delete();
        }
        self
    }

    /// What a call would do.
    pub fn decide(&self, policy: &Policy, at: Instant, request: Request) -> Result<Outcome, DecideError> {
        policy.decide(self.value.as_deref(), at, request)
    }

    /// What a call would answer.
    pub fn peek(&self, policy: &Policy, at: Instant, request: Request) -> Result<Decision, DecideError> {
        policy.peek(self.value.as_deref(), at, request)
    }
}

impl KeyState for Key {
    type Error = DecideError;

    fn stored(&self, _: &Policy) -> Result<Option<&[u8]>, DecideError> {
        Ok(self.value.as_deref())
    }

    fn expires(&self) -> Option<Instant> {
        self.expires
    }

    fn record_error(_: &Policy, error: RecordError) -> DecideError {
        error.into()
    }

    fn other_cost(held: u64) -> DecideError {
        DecideError::OtherCost(held)
    }

    fn random_seed() -> u64 {
        0x5eed
    }

    fn fits(_: usize) -> bool {
        true
    }

    fn commit(&mut self, change: &Change, bytes: &Bytes, now: Instant) -> Result<(), DecideError> {
        self.apply_at(change, bytes, now);
        Ok(())
    }
}
