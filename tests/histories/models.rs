//! What the models of tests/core say of each key, beside what the core says.

use std::collections::HashMap;

use redis_rl::limiter::{Amount, Decision, Request};

use crate::ids_model::Model;
use crate::lease_model;
use crate::model::{Form, Rule};
use crate::workload::Limit;

/// The model of a key.
#[derive(Clone)]
pub enum Known {
    /// As if the key did not exist.
    Fresh,
    Rate(Box<Model>),
    Lease(lease_model::Model),
}

/// The models of a node's keys. A key that exists and has none is not modelled until it is made anew: for instance, because another
/// node had it before, or because the contract leaves an answer open.
#[derive(Default)]
pub struct Models {
    known: HashMap<String, Known>,
    /// The latest moment of a call on each key.
    latest_us: HashMap<String, i64>,
}

fn fits(model: &Model, rule: &Rule) -> bool {
    matches!(
        (model, rule.form),
        (Model::Fixed(_), Form::Fixed { .. })
            | (Model::Slide(_), Form::Slide { .. })
            | (Model::Gcra(_), Form::Gcra { .. })
            | (Model::Bucket(_), Form::Bucket { .. })
    )
}

/// A call on one key, for its model.
pub struct Asked<'a> {
    pub key: &'a str,
    /// Whether the key exists.
    pub exists: bool,
    pub limit: Limit,
    pub request: Request<'a>,
    pub id: Option<&'a str>,
    pub now_us: i64,
    /// Whether the call was charged.
    pub charged: bool,
    /// Whether a pause hides what remains.
    pub paused: bool,
    pub decision: &'a Decision,
}

impl Models {
    pub fn forget(&mut self, key: &str) {
        self.known.remove(key);
    }

    pub fn forget_all(&mut self) {
        self.known.clear();
    }

    /// The models of some keys, for [`Self::restore`].
    pub fn of(&self, keys: &[&str]) -> Vec<(String, Option<Known>)> {
        keys.iter().map(|&key| (key.to_string(), self.known.get(key).cloned())).collect()
    }

    /// Makes the models what they were.
    pub fn restore(&mut self, kept: Vec<(String, Option<Known>)>) {
        for (key, known) in kept {
            match known {
                Some(known) => self.known.insert(key, known),
                None => self.known.remove(&key),
            };
        }
    }

    /// Notes that a key that did not exist has got a pause.
    pub fn begin(&mut self, key: &str) {
        self.known.insert(key.into(), Known::Fresh);
    }

    /// Compares a decision with that of the key's model. Returns whether the key has one; and the model's decision, if it is another.
    pub fn compare(&mut self, asked: &Asked<'_>) -> Result<bool, String> {
        let Asked { key, exists, limit, request, id, now_us, charged, paused, decision } = *asked;
        if !exists {
            self.known.insert(key.into(), Known::Fresh);
        }
        let latest_us = self.latest_us.entry(key.into()).or_default();
        let went_back = now_us < *latest_us - 1_000;
        *latest_us = now_us.max(*latest_us);
        // After the clock has gone back, a window can begin at another moment than its rule says. RL.SETTLE, which states no rule, shows
        // when a window that began then ends.
        if went_back && limit.aligns() {
            self.known.remove(key);
        }
        let Some(known) = self.known.get_mut(key) else { return Ok(false) };
        let is_refused_by_pause = paused && !charged;
        if is_refused_by_pause {
            return Ok(true);
        }
        let (said, next) = match (limit, known.clone()) {
            // When callers with several periods share a log, what is left depends on moments that the log does not name exactly.
            (_, Known::Rate(model)) if model.is_shared() => {
                self.known.remove(key);
                return Ok(false);
            }
            (Limit::Rate(rule), Known::Fresh) => Self::rate(Model::new(&rule), &rule, now_us, request, id),
            (Limit::Rate(rule), Known::Rate(model)) if fits(&model, &rule) => Self::rate(*model, &rule, now_us, request, id),
            (Limit::Lease(limit, ttl_us), known @ (Known::Fresh | Known::Lease(_))) => {
                let mut model = if let Known::Lease(model) = known { model } else { lease_model::Model::default() };
                let Amount::Cost(units) = request.amount else { return Ok(false) };
                let said = model.call(now_us, limit, ttl_us as i64, id.unwrap_or_default(), units);
                (Some(said), Known::Lease(model))
            }
            // Another algorithm carries the usage over.
            _ => {
                self.known.remove(key);
                return Ok(false);
            }
        };
        let Some(said) = said else {
            self.known.remove(key);
            return Ok(false);
        };
        if charged {
            *known = next;
        }
        let shown = if paused { Decision { remaining: 0, ..said } } else { said };
        if shown == *decision {
            return Ok(true);
        }
        Err(format!("the model says {shown:?}, and the core {decision:?}"))
    }

    fn rate(
        mut model: Model,
        rule: &Rule,
        now_us: i64,
        request: Request<'_>,
        id: Option<&str>,
    ) -> (Option<Decision>, Known) {
        let plain = Request { id: None, ..request };
        let said = model.call(rule, now_us, plain, id.map(str::as_bytes)).ok();
        (said, Known::Rate(Box::new(model)))
    }

    /// Settles an id. `decision` is the core's; `None`: nothing is remembered.
    pub fn settle(
        &mut self,
        key: &str,
        now_us: i64,
        id: &str,
        units: u64,
        paused: bool,
        decision: Option<&Decision>,
    ) -> Result<bool, String> {
        let said = match self.known.get_mut(key) {
            None => return Ok(false),
            Some(Known::Fresh) => Ok(None),
            Some(Known::Rate(model)) if model.is_shared() => Err(()),
            Some(Known::Rate(model)) => model.settle(now_us, id.as_bytes(), units).map_err(|_| ()),
            Some(Known::Lease(model)) => Ok(model.release(now_us, id)),
        };
        let Ok(said) = said else {
            self.known.remove(key);
            return Ok(false);
        };
        let shown = said.map(|said| if paused { Decision { remaining: 0, ..said } } else { said });
        if shown.as_ref() == decision {
            return Ok(true);
        }
        Err(format!("the model says {shown:?}, and the core {decision:?}"))
    }
}
