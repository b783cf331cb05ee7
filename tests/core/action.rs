//! Calls as random tests and fuzz targets choose them: relative to the rule, to the key and to the last reply.

use redis_rl::limiter::{Amount, Decision, Request, Span, Wait};

use crate::ids::histories::{share, Size};
use crate::key::Key;
use crate::model::Rule;

/// How the clock moves before a call.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Us(u64),
    /// Forward, by so many thousandths of the period.
    Period(u64),
    /// To the time at which the last reply said to come back, or to the last reset.
    Promise,
    Reset,
    /// To the microsecond before that time.
    Before,
    /// Back, by so many thousandths of the period.
    Back(u64),
}

/// What a call does with its units.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    Cost,
    UpTo,
    Force,
    Refund,
}

impl Verb {
    pub fn of(self, n: u64) -> Amount {
        match self {
            Self::Cost => Amount::Cost(n),
            Self::UpTo => Amount::UpTo(n),
            Self::Force => Amount::Force(n),
            Self::Refund => Amount::Refund(n),
        }
    }
}

/// How far ahead a call may be booked.
#[derive(Clone, Copy, Debug)]
pub enum Ahead {
    Us(u64),
    /// So many thousandths of the period.
    Period(u64),
    /// Exactly as long as this call would have to wait.
    Wait,
    /// A microsecond less.
    Less,
}

/// A call, before it is known under which rule.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// The index of a rule, wrapping around.
    pub rule: usize,
    pub step: Step,
    pub verb: Verb,
    pub size: Size,
    pub ahead: Ahead,
}

impl Action {
    pub fn request(&self, rule: &Rule, now: i64, key: &Key) -> Request<'static> {
        let amount = self.verb.of(self.size.of(rule.capacity()));
        let ahead = match self.ahead {
            Ahead::Us(us) => us,
            Ahead::Period(permille) => share(rule.period, permille),
            Ahead::Wait => key.wait(rule, now, amount),
            Ahead::Less => key.wait(rule, now, amount).saturating_sub(1),
        };
        Request { ahead: Span::from_us(ahead), ..Request::now(amount) }
    }
}

/// Keeps the time of a sequence of actions.
pub struct Clock {
    pub now: i64,
    pub wait: u64,
    pub reset: u64,
}

impl Clock {
    pub fn new(now: i64) -> Self {
        Self { now, wait: 0, reset: 0 }
    }

    /// The time of the next call, and its request.
    pub fn next(&mut self, rule: &Rule, action: &Action, key: &Key) -> (i64, Request<'static>) {
        let ahead = match action.step {
            Step::Us(us) => us,
            Step::Period(permille) => share(rule.period, permille),
            Step::Promise => self.wait,
            Step::Before => self.wait.saturating_sub(1),
            Step::Reset => self.reset,
            Step::Back(_) => 0,
        };
        self.now = self.now.saturating_add_unsigned(ahead);
        if let Step::Back(permille) = action.step {
            self.now = self.now.saturating_sub_unsigned(share(rule.period, permille)).max(0);
        }
        (self.now, action.request(rule, self.now, key))
    }

    /// Keeps the times that a reply names, for [`Self::next`].
    pub fn note_reply(&mut self, decision: &Decision) {
        self.wait = match decision.wait {
            Wait::For(span) => span.as_us(),
            Wait::Never => 0,
        };
        self.reset = decision.reset.as_us();
    }
}
