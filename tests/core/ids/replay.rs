//! A second model, which knows no rule about settling: it keeps every event, and a settlement to fewer units changes that one
//! past charge. The level is then computed anew from the beginning: every other call was granted what it was.
//!
//! It takes over what was granted, and so decides nothing. It holds for a policy that does not change.

use crate::model::{end_of_tick, q, Form, Rule, Windows, Q};
use num_bigint::BigInt;
use num_traits::Zero;

#[derive(Clone, Debug)]
struct Event {
    at: i128,
    /// Units taken, or given back if the number is negative.
    units: i128,
    id: Option<Vec<u8>>,
    /// The units that a booking in a later window or step uses up before it takes its own.
    skipped: Q,
    tick: i128,
}

/// The whole history of a key, since it was last a missing key.
#[derive(Clone, Debug)]
pub struct Replay {
    rule: Rule,
    /// The beginning of the first window, or the time of the first step.
    start: Q,
    events: Vec<Event>,
    /// The last call that changed anything.
    written: i128,
}

impl Replay {
    pub fn new(rule: &Rule) -> Self {
        Self { rule: *rule, start: Q::zero(), events: Vec::new(), written: 0 }
    }

    /// Keeps a call that was granted `units` (negative: it gave back so many), to act at `due`.
    pub fn granted(&mut self, now: i128, units: i128, due: i128, id: Option<&[u8]>) {
        if self.levels(now).is_empty() && !self.lasts(now) {
            self.events.clear();
        }
        if self.events.is_empty() {
            self.start = self.rule.window_holding(whole(now));
        }
        self.written = now;
        if units < 0 && matches!(self.rule.form, Form::Slide { .. }) {
            self.refund_newest(now, -units);
            return;
        }
        let skipped = if due > now && self.drains_at_once() { self.steps(now, due) * q(self.rule.limit) } else { Q::zero() };
        let newest = self.levels(now).last().map_or(i128::MIN, |(tick, _)| *tick);
        let tick = end_of_tick(due, self.rule.tick().into()).max(newest);
        let tick = if matches!(self.rule.form, Form::Slide { .. }) { tick } else { 0 };
        self.events.push(Event { at: now, units, id: id.map(Into::into), skipped, tick });
    }

    /// Nothing is used any more. Keeps the window of `FIXED`.
    pub fn emptied(&mut self, now: i128, units: i128) {
        match self.rule.form {
            Form::Gcra { .. } | Form::Bucket { .. } => self.events.clear(),
            _ if units > 0 => self.granted(now, -units, now, None),
            _ => {}
        }
    }

    /// `SLIDE` gives back the newest entries first: this is one event in each of their ticks.
    fn refund_newest(&mut self, now: i128, mut units: i128) {
        for (tick, level) in self.levels(now).into_iter().rev() {
            let part = units.min(level.to_integer().try_into().expect("units"));
            if part > 0 {
                self.events.push(Event { at: now, units: -part, id: None, skipped: Q::zero(), tick });
            }
            units -= part;
        }
    }

    /// A charge becomes `units`: fewer as of when it was made, more as of now.
    pub fn settle(&mut self, now: i128, id: &[u8], units: u64) {
        let charge = self.events.iter_mut().rev().find(|event| event.id.as_deref() == Some(id)).expect("a charge");
        let more = i128::from(units) - charge.units;
        if more < 0 {
            charge.units = units.into();
        }
        charge.id = None;
        self.written = now;
        if more > 0 {
            self.granted(now, more, now, None);
        }
    }

    /// The units used at `now`; `SLIDE`: in each tick that counts.
    pub fn levels(&self, now: i128) -> Vec<(i128, Q)> {
        let mut ticks: Vec<i128> = self.events.iter().map(|event| event.tick).collect();
        ticks.sort_unstable();
        ticks.dedup();
        if matches!(self.rule.form, Form::Slide { .. }) {
            ticks.retain(|tick| *tick > now - i128::from(self.rule.period));
        }
        ticks.into_iter().map(|tick| (tick, self.level(tick, now))).filter(|(_, level)| !level.is_zero()).collect()
    }

    fn level(&self, tick: i128, now: i128) -> Q {
        let (mut level, mut at) = (Q::zero(), None);
        for event in self.events.iter().filter(|event| event.tick == tick) {
            level = self.drained(level, at.unwrap_or(event.at), event.at).max(event.skipped.clone()) + whole(event.units);
            level = level.max(Q::zero());
            at = Some(event.at);
        }
        self.drained(level, at.unwrap_or(now), now)
    }

    /// Whether the key means something though nothing is used: `FIXED` keeps its window until it is over, and windows on a grid are the
    /// same whether or not the history begins anew, so it may go on.
    fn lasts(&self, now: i128) -> bool {
        match self.rule.form {
            Form::Fixed { windows: Windows::Align(_) } => true,
            Form::Fixed { .. } => !self.events.is_empty() && self.steps(self.written, now).is_zero(),
            Form::Slide { .. } => true,
            _ => false,
        }
    }

    fn drains_at_once(&self) -> bool {
        matches!(self.rule.form, Form::Fixed { .. } | Form::Bucket { step: true, .. })
    }

    /// How many windows end, or steps fall, between two instants.
    fn steps(&self, from: i128, to: i128) -> Q {
        let index = |at| ((whole(at) - &self.start) / q(self.rule.period)).floor();
        index(to) - index(from)
    }

    fn drained(&self, level: Q, from: i128, to: i128) -> Q {
        let paid = match self.rule.form {
            Form::Slide { .. } => return level,
            _ if self.drains_at_once() => self.steps(from, to) * q(self.rule.limit),
            _ => whole(to - from) * self.rule.rate(),
        };
        (level - paid).max(Q::zero())
    }
}

fn whole(number: i128) -> Q {
    q(BigInt::from(number))
}
