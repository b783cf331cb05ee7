//! A call that takes units of one key, or asks for them.

use std::time::Instant;

use crate::ask::{Call, How};
use crate::awaited::awaited;
use crate::limit::Amount;
use crate::{Decision, Error, IntoSpan, Key, Limit, Rule};

/// A call of a [`Limit`]. Nothing is sent before it is awaited. `ID` says that it may have an id, and `ADMIT` that a denial is an
/// error and that the call may wait.
///
/// Without an id it is sent once. If its reply is lost, the result is [`Error::Unavailable`], and the server may have charged it. If
/// the future is dropped, the same is true.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Take<const ID: bool, const ADMIT: bool>(Call);

impl<const ID: bool, const ADMIT: bool> Take<ID, ADMIT> {
    pub(crate) fn new<K: Key + ?Sized>(limit: Limit, key: &K, how: How) -> Self {
        let key = limit.key(key);
        Self(Call::new(&limit.limits().clone(), [Rule { limit, key, amount: None }], how))
    }

    pub(crate) fn amount(mut self, amount: Amount) -> Self {
        self.0.rules[0].amount = Some(amount);
        self
    }

    /// How many units to take; 1 by default.
    pub fn cost(self, cost: u64) -> Self {
        self.amount(Amount::Cost(cost))
    }

    async fn send(self) -> Result<Decision, Error> {
        let call = self.0.checked()?;
        let part = &call.parts[0];
        let (repeats, units) = (part.limit.repeats(), part.amount.units());
        if part.limit.policy().is_lease() && !matches!(call.how, How::Peek) {
            return Err(Error::InvalidLimit("a lease is held, with Limit::hold, and not taken".to_string()));
        }
        if matches!(part.amount, Amount::Force(_) | Amount::Refund(_)) {
            repeats.forget(&part.key);
        }
        // A retry of an id may be granted although the key has no units, so it is always made.
        let plain = matches!((&call.how, part.amount), (How::Now, Amount::Cost(_))) && call.id.is_none();
        let repeated = plain.then(|| repeats.find(&part.key, units)).flatten();
        let decided = match repeated {
            Some(denied) => {
                call.limits.check_open()?;
                denied
            }
            None => {
                let asked = Instant::now();
                let decided = call.decide().await?.first();
                if plain {
                    repeats.remember(&part.key, units, asked, &decided);
                }
                decided
            }
        };
        match ADMIT {
            true => decided.or_denied(),
            false => Ok(decided),
        }
    }
}

impl Take<true, false> {
    /// Names the call: 1 to 64 bytes. Then it is repeated after a lost connection, and charged once; and can be settled or released
    /// by its id. If it fails, the program may make it again with the same id.
    pub fn id(mut self, id: impl AsRef<[u8]>) -> Self {
        self.0.id = Some(id.as_ref().to_vec());
        self
    }
}

impl Take<false, true> {
    /// Waits in line for the units, at most this long: see [`Limit::wait`].
    pub fn wait(mut self, wait: impl IntoSpan) -> Self {
        self.0.how = How::within(wait, How::Block);
        self
    }
}

awaited!([const ID: bool, const ADMIT: bool] Take<ID, ADMIT> => Decision);
