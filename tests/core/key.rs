//! A key of a simulated server, for all tests: it holds the bytes that the core wrote, until the core's deadline. Its calls are the three
//! steps of a decision (load, decide, store) at once.

use redis_rl::limiter::{Bytes, Change, Decision, Instant, Next, Policy, Request};
use redis_rl::queue::KeyState;
pub use redis_rl::queue::Refusal;

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
    /// Returns whether it is a change.
    pub fn apply_at(&mut self, change: &Change, bytes: &Bytes, now: Instant) -> bool {
        let changed = self.apply(change, bytes);
        if let Some(expires) = change.expires() {
            self.expires = Some(Instant::from_us(expires.max(now).as_ms_ceil().saturating_mul(1_000)));
        }
        changed
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
    pub fn decide(&self, policy: &Policy, at: Instant, request: Request) -> Result<Outcome, Refusal> {
        policy.decide(self.value.as_deref(), at, request)
    }

    /// What a call would answer.
    pub fn peek(&self, policy: &Policy, at: Instant, request: Request) -> Result<Decision, Refusal> {
        policy.peek(self.value.as_deref(), at, request)
    }
}

impl KeyState for Key {
    type Error = Refusal;

    const MAX_LEN: usize = usize::MAX;

    fn stored(&self, _: &Policy) -> Result<Option<&[u8]>, Refusal> {
        Ok(self.value.as_deref())
    }

    fn expires(&self) -> Option<Instant> {
        self.expires
    }

    fn error(_: &Policy, refusal: Refusal) -> Refusal {
        refusal
    }

    fn random_seed() -> u64 {
        0x5eed
    }

    fn commit(&mut self, change: &Change, bytes: &Bytes, now: Instant) -> Result<(), Refusal> {
        self.apply_at(change, bytes, now);
        Ok(())
    }
}

/// A decision, and the change that carries it out, with its bytes.
#[derive(Debug)]
pub struct Outcome {
    pub decision: Decision,
    pub change: Change,
    pub bytes: Bytes,
}

/// All steps at once.
pub trait Steps {
    /// Loads, decides and stores.
    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Outcome, Refusal>;

    /// Loads and peeks.
    fn peek(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Decision, Refusal>;

    /// Whether `stored` was written under this policy, as far as it can show it.
    fn wrote(&self, stored: &[u8]) -> bool;
}

impl Steps for Policy {
    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Outcome, Refusal> {
        let view = self.view(stored, now)?;
        let (decision, next) = view.decide(request)?;
        let mut bytes = Bytes::default();
        let change = view.store(&next, || 0x5eed, &mut bytes);
        // A step that is not needed changes nothing.
        assert!(!matches!(next, Next::Keep) || bytes.as_slice().is_empty());
        Ok(Outcome { decision, change, bytes })
    }

    fn peek(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Decision, Refusal> {
        Ok(self.view(stored, now)?.peek(request)?)
    }

    fn wrote(&self, stored: &[u8]) -> bool {
        self.view(Some(stored), Instant::from_us(0)).is_ok_and(|view| view.matches_policy())
    }
}
