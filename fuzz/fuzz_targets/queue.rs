//! Random events for the clients that wait in queues: tests/core/queue/world.rs says what must hold.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use redis_rl::limiter::{Amount, Instant};
use redis_rl_fuzz::model::Rule;
use redis_rl_fuzz::world::{Event, World, MS};
use redis_rl_fuzz::{rules, starting, units, START};

const MAX_EVENTS: usize = 120;

fn event(u: &mut Unstructured<'_>) -> Result<Event> {
    Ok(match u.int_in_range(0..=31u8)? {
        0..=2 => {
            let mut wants = [(0, 0); 2];
            for want in &mut wants {
                *want = (u.int_in_range(0..=3)?, units(u, 8)?);
            }
            Event::CallBoth(wants, u.int_in_range(1..=3_000 * MS)?)
        }
        3..=9 => {
            let (rule, n) = (u.int_in_range(0..=3)?, units(u, 8)?);
            let patience = if u.arbitrary()? { u.int_in_range(1..=50 * MS)? } else { u.int_in_range(1..=3_000 * MS)? };
            Event::Call(rule, if u.ratio(1, 3)? { Amount::UpTo(n) } else { Amount::Cost(n) }, patience)
        }
        10 | 11 => Event::Leave(u.arbitrary::<u8>()?.into()),
        12..=15 => Event::Pass(u.int_in_range(0..=80 * MS)?),
        16..=21 => Event::Timer(u.int_in_range(0..=2 * MS)?),
        22 | 23 => Event::Timer(0),
        24 => Event::Timer(u.int_in_range(0..=500 * MS)?),
        25 => Event::Delete,
        26 => Event::Expire(u.int_in_range(0..=500 * MS)?),
        27 | 28 => {
            let (rule, n) = (u.int_in_range(0..=3)?, units(u, 8)?);
            Event::Act(rule, if u.arbitrary()? { Amount::Force(n) } else { Amount::Refund(n) })
        }
        29 => Event::Pause(u.int_in_range(0..=300 * MS)?),
        30 if u.arbitrary()? => Event::WakeAll,
        // After the clock has stepped back, the queue of a full limiter is due at every microsecond until the clock has
        // caught up. So steps back are short.
        30 => Event::Step(u.int_in_range(-2_000..=200_000)?),
        _ => Event::Dismiss,
    })
}

#[derive(Debug)]
struct Play {
    rules: Vec<Rule>,
    /// How many clients the timer answers at once.
    most: usize,
    /// Events, each at one of the keys.
    events: Vec<(usize, Event)>,
}

impl<'a> Arbitrary<'a> for Play {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let rules = starting(rules(u)?, START);
        let most = if u.arbitrary()? { 1_000 } else { u.int_in_range(1..=4)? };
        let mut events = Vec::new();
        while !u.is_empty() && events.len() < MAX_EVENTS {
            events.push((u.int_in_range(0..=7usize)?.saturating_sub(5), event(u)?));
        }
        Ok(Self { rules, most, events })
    }
}

fuzz_target!(|play: Play| {
    World::new(play.rules, play.most, Instant::from_us(START)).play(play.events);
});
