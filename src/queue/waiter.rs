//! A waiting client: its call, and the denial that it gets when its wait ends.

use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use crate::limiter::{Amount, Decision, Id, Instant, Policy, Request, Span, Wait};

/// The least wait in a denial that [`denied`] makes. If the client is denied because other clients wait, the units themselves may
/// be free.
const MIN_WAIT: Span = Span::from_us(1_000);

/// A waiting client. The trait does not require `Copy`: the queues hand each client out once, so that it is answered at most once.
pub trait Client {
    /// Identifies a client.
    type Id: Copy + Eq + Hash;

    /// The client's id.
    fn id(&self) -> Self::Id;
}

/// A plain number is its own id.
impl Client for u32 {
    type Id = Self;

    fn id(&self) -> Self {
        *self
    }
}

/// A key of a waiting call, and what the call takes from it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The name of the key.
    pub key: Arc<[u8]>,
    /// The policy.
    pub policy: Policy,
    /// How many units the call takes.
    pub amount: Amount,
    /// Whether the call states the amount. Otherwise the amount is [`Amount::Cost`] of 1.
    pub names_amount: bool,
}

/// The claims of a waiting call. All of its keys must grant them at one moment.
#[derive(Clone, Debug)]
pub enum Claims {
    /// The claim of a command with one key.
    One(Claim),
    /// The claims of `RL.ALL`, with different keys.
    All(Box<[Claim]>),
}

impl Deref for Claims {
    type Target = [Claim];

    fn deref(&self) -> &[Claim] {
        match self {
            Self::One(claim) => std::slice::from_ref(claim),
            Self::All(claims) => claims,
        }
    }
}

/// A waiting client, with its call.
#[derive(Debug)]
pub struct Waiter<C> {
    /// The client.
    pub client: C,
    /// The database of the keys.
    pub db: i32,
    /// The keys, and what the call takes from each.
    pub claims: Claims,
    /// The id of the call, from 1 to [`Id::MAX_LEN`] bytes; `None` if it has none.
    pub id: Option<Arc<[u8]>>,
    /// When the client began to wait.
    pub joined: Instant,
    /// When the wait ends. Units that are due at this very moment are still granted.
    pub deadline: Instant,
}

impl<C> Waiter<C> {
    /// What the call requests from the key of `claim`. A client that waits does not book units.
    pub fn request(&self, claim: &Claim) -> Request<'_> {
        Request { id: self.id.as_deref().and_then(Id::new), ..Request::now(claim.amount) }
    }

    /// Turns the present decisions on the claims, in `rows`, into the answer to the client when its wait ends. The decision of each
    /// key that refuses the call becomes a denial. If no key refuses the call, the decisions of all keys become denials. But the
    /// decision of a key that remembers the id of the call stays as it is. `refusals` is the result of
    /// [`Queues::refusals`](super::Queues::refusals).
    pub fn deny(&self, refusals: &[bool], rows: &mut [Decision]) {
        let deny = |row: &mut Decision| *row = denied(*row, self.deadline.since(self.joined));
        for (row, &refused) in rows.iter_mut().zip(refusals) {
            if !row.retried && (refused || row.granted == 0) {
                deny(row);
            }
        }
        if rows.iter().all(|row| row.granted > 0) {
            // All keys would grant the call, but its time is over.
            rows.iter_mut().filter(|row| !row.retried).for_each(deny);
        }
    }
}

/// An error of the claim with this index.
pub type ClaimError<E> = (usize, E);

/// A client that has waited, and the answer to its call: a decision for each claim, or the error of one of them.
pub type Served<C, E> = (Waiter<C>, Result<Vec<Decision>, ClaimError<E>>);

/// Turns the decision that a key makes at present into a denial. `timeout` is how long the client waits, or would wait, before it
/// is denied; zero if it does not wait. The wait in the denial is the time after which the same call, with the same `timeout`,
/// would be granted if no other client waited.
pub fn denied(decision: Decision, timeout: Span) -> Decision {
    let wait = match decision.wait {
        Wait::Never => Wait::Never,
        Wait::For(_) if decision.granted > 0 => Wait::For(MIN_WAIT),
        Wait::For(need) => Wait::For(need.saturating_sub(timeout).max(MIN_WAIT)),
    };
    Decision { granted: 0, wait, ..decision }
}
