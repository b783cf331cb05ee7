//! A naive model of LEASE: a list of leases, each with its units, its deadline and the ttl that set it.

use redis_rl::limiter::{Decision, Span, Wait};

use crate::model::CLOSED;

/// A lease of the model. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct Held {
    pub id: String,
    pub units: u64,
    pub deadline: i64,
    ttl: i64,
}

/// The leases of a key.
#[derive(Clone, Debug, Default)]
pub struct Model {
    leases: Vec<Held>,
    /// The limit of the last call that was granted.
    limit_written: u64,
}

impl Model {
    /// The leases at `now`. After a step back of the clock, a lease lasts for at most its ttl from now on.
    pub fn at(&self, now: i64) -> Vec<Held> {
        let live = self.leases.iter().filter(|held| held.deadline > now);
        live.map(|held| Held { deadline: held.deadline.min(now + held.ttl), ..held.clone() }).collect()
    }

    fn held(&self, now: i64) -> u64 {
        self.at(now).iter().map(|held| held.units).sum()
    }

    fn reset(&self, now: i64) -> u64 {
        self.at(now).iter().map(|held| (held.deadline - now) as u64).max().unwrap_or(0)
    }

    pub fn decision(&self, now: i64, limit: u64, granted: u64, wait: Wait) -> Decision {
        let remaining = limit.saturating_sub(self.held(now));
        Decision { granted, limit, remaining, wait, reset: Span::from_us(self.reset(now)), retried: false }
    }

    pub fn call(&mut self, now: i64, limit: u64, ttl: i64, id: &str, units: u64) -> Decision {
        let mut leases = self.at(now);
        if limit == 0 {
            return CLOSED;
        }
        if let Some(held) = leases.iter_mut().find(|held| held.id == id) {
            if now + ttl > held.deadline {
                (held.deadline, held.ttl) = (now + ttl, ttl);
            }
            let units = held.units;
            (self.leases, self.limit_written) = (leases, limit);
            return self.decision(now, limit, units, Wait::NONE);
        }
        let held: u64 = leases.iter().map(|held| held.units).sum();
        if units > limit {
            return self.decision(now, limit, 0, Wait::Never);
        }
        if held + units > limit {
            leases.sort_by_key(|held| held.deadline);
            let mut free = limit as i64 - held as i64;
            let last = leases.iter().find(|held| {
                free += held.units as i64;
                free >= units as i64
            });
            let wait = last.expect("enough leases").deadline - now;
            return self.decision(now, limit, 0, Wait::For(Span::from_us(wait as u64)));
        }
        leases.push(Held { id: id.into(), units, deadline: now + ttl, ttl });
        (self.leases, self.limit_written) = (leases, limit);
        self.decision(now, limit, units, Wait::NONE)
    }

    pub fn release(&mut self, now: i64, id: &str) -> Option<Decision> {
        let mut leases = self.at(now);
        let index = leases.iter().position(|held| held.id == id)?;
        leases.remove(index);
        self.leases = leases;
        Some(self.decision(now, self.limit_written, 0, Wait::NONE))
    }
}
