//! Several limits in one call: all are charged, or none.

use crate::account::Account;
use crate::ask::{Call, How};
use crate::awaited::awaited;
use crate::limit::Amount;
use crate::{AllDecision, Error, IntoSpan, Limit, Limits};

/// One limit of an [`All`] or of an admission, with a key: [`Limit::rule`] makes it.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) limit: Limit,
    pub(crate) key: Result<Vec<u8>, Error>,
    pub(crate) amount: Option<Amount>,
}

impl Rule {
    /// How many units to take. Without a cost, [`Limits::all`] takes a unit, and [`Limits::admit`] the estimate, or one lease.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { amount: Some(Amount::Cost(cost)), ..self }
    }
}

/// A call that takes units from several limits, from all of them or from none. Nothing is sent before it is awaited.
///
/// With an id it is repeated after a lost connection, and is charged once; settle or release the charge key by key, with
/// [`Limit::settle`] and [`Limit::release`]. If a limit is a lease, and the call has no id, it gets a random one: [`AllDecision::id`].
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct All(Call);

impl Limits {
    /// Takes units from several limits, from all of them or from none.
    pub fn all(&self, rules: impl IntoIterator<Item = Rule>) -> All {
        All(Call::new(self, rules, How::Now))
    }
}

impl All {
    /// Waits until all limits grant at the same moment, at most this long.
    pub fn wait(mut self, wait: impl IntoSpan) -> Self {
        self.0.how = How::within(wait, How::Block);
        self
    }

    /// Names the charge on each key: 1 to 64 bytes.
    pub fn id(mut self, id: impl AsRef<[u8]>) -> Self {
        self.0.id = Some(id.as_ref().to_vec());
        self
    }

    async fn send(self) -> Result<AllDecision, Error> {
        let mut call = self.0.checked()?;
        if call.id.is_some() || !call.parts.iter().any(|part| part.limit.policy().is_lease()) {
            return Ok(call.decide().await?.decision);
        }
        // The caller learns the id from the decision. Without one, what the call may have taken is released.
        let mut account = Account::new(&mut call);
        match call.decide().await {
            Ok(asked) => {
                account.forget();
                Ok(asked.decision)
            }
            Err(error) => {
                account.failed(error.may_be_charged());
                Err(error)
            }
        }
    }
}

awaited!(All => AllDecision);
