//! The three steps of a decision (load, decide, store) as one call, for tests that check all of them together.

use redis_rl::limiter::{Bytes, Change, Decision, Instant, Next, Overflow, Policy, RecordError, Request};

/// A decision, and the change that carries it out, with its bytes.
#[derive(Debug)]
pub struct Outcome {
    pub decision: Decision,
    pub change: Change,
    pub bytes: Bytes,
}

/// Why there is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecideError {
    /// The value is not a record of the policy's algorithm.
    Record(RecordError),
    /// The next state does not fit a record.
    Overflow,
    /// A waiting call renews a lease of so many units, with another cost.
    OtherCost(u64),
}

impl From<RecordError> for DecideError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<Overflow> for DecideError {
    fn from(_: Overflow) -> Self {
        Self::Overflow
    }
}

/// All steps at once.
pub trait Steps {
    /// Loads, decides and stores.
    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Outcome, DecideError>;

    /// Loads and peeks.
    fn peek(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Decision, DecideError>;

    /// Whether `stored` was written under this policy, as far as it can show it.
    fn wrote(&self, stored: &[u8]) -> bool;
}

impl Steps for Policy {
    fn decide(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Outcome, DecideError> {
        let view = self.view(stored, now)?;
        let (decision, next) = view.decide(request)?;
        let mut bytes = Bytes::default();
        let change = view.store(&next, || 0x5eed, &mut bytes);
        // A step that is not needed changes nothing.
        assert!(!matches!(next, Next::Keep) || bytes.as_slice().is_empty());
        Ok(Outcome { decision, change, bytes })
    }

    fn peek(&self, stored: Option<&[u8]>, now: Instant, request: Request) -> Result<Decision, DecideError> {
        Ok(self.view(stored, now)?.peek(request)?)
    }

    fn wrote(&self, stored: &[u8]) -> bool {
        self.view(Some(stored), Instant::from_us(0)).is_ok_and(|view| view.matches_policy())
    }
}
