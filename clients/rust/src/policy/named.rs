//! Limits by name: what a policy key says.

use std::fmt;
use std::sync::Arc;

use super::{AnyPolicy, Lease, LeasePolicy, Policy, RatePolicy};
use crate::Error;

/// How many policy keys a call may name.
const MOST: usize = 16;

/// What the policy key of this name says: an operator sets it with `RL.POLICY`, and so changes the limit for all programs. While there is
/// no policy key, `default` serves, and it says whether the limit is a [`Lease`]. Such a limit can't peek, nor be one of several in a call.
#[derive(Clone, PartialEq, Eq)]
pub struct Named<P = Policy> {
    key: Arc<str>,
    pub(super) default: P,
    overrides: Option<Overrides>,
}

type OfKey = dyn Fn(&[u8]) -> Vec<String> + Send + Sync;

#[derive(Clone)]
struct Overrides(Arc<OfKey>);

impl PartialEq for Overrides {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Overrides {}

impl<P: AnyPolicy> Named<P> {
    /// The limit of this policy key, which has this name on the server: no prefix is added. In a cluster, the key of each call needs its
    /// hash tag.
    pub fn new(key: &str, default: P) -> Result<Self, Error> {
        match default.clone().into() {
            _ if key.is_empty() => Err(Error::InvalidLimit("the name of a policy key must not be empty".to_string())),
            Policy::Named(_) => Err(Error::InvalidLimit("the default of a Named limit can't be another one".to_string())),
            _ => Ok(Self { key: key.into(), default, overrides: None }),
        }
    }

    /// The names of policy keys that come before the own one, by the key of the call; the first that exists counts. At most 15.
    #[must_use]
    pub fn overrides(self, overrides: impl Fn(&[u8]) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self { overrides: Some(Overrides(Arc::new(overrides))), ..self }
    }

    /// The number and the names of the policy keys for the key of a call.
    pub(crate) fn keys(&self, key: &[u8]) -> Result<Vec<String>, Error> {
        let before = self.overrides.as_ref().map(|overrides| (overrides.0)(key)).unwrap_or_default();
        match before.len() + 1 {
            number @ ..=MOST => Ok([vec![number.to_string()], before, vec![self.key.to_string()]].concat()),
            number => Err(Error::InvalidLimit(format!("a call has at most {MOST} policy keys, not {number}"))),
        }
    }
}

impl<P: AnyPolicy> AnyPolicy for Named<P> {}
impl<P: RatePolicy> RatePolicy for Named<P> {}
impl LeasePolicy for Named<Lease> {}

impl<P: AnyPolicy> From<Named<P>> for Policy {
    fn from(Named { key, default, overrides }: Named<P>) -> Self {
        Self::Named(Arc::new(Named { key, default: default.into(), overrides }))
    }
}

impl<P: AnyPolicy> fmt::Display for Named<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Named({}, default {})", self.key, self.default.clone().into())
    }
}

impl<P: AnyPolicy> fmt::Debug for Named<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
