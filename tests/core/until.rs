//! Windows of the calendar: `RL.FIXED ... UNTIL time` with callers whose calendars are right and whose clocks are not.
//!
//! The days have 23, 24 or 25 hours, the months 28 to 31 days, less or more an hour. Each caller reads its own clock, which is
//! fast or slow by seconds, takes the end of the day that this clock shows, and sends it; the call arrives up to seconds later.
//! Here are the promises to these callers. That each call is answered as the contract says, with ids, too, is proved with all other
//! limiters, in `properties.rs` and `ids/core.rs`, whose rules have times of `UNTIL`.

use crate::key::{Key, Steps};
use proptest::collection::vec;
use proptest::prelude::*;
use redis_rl::limiter::{Amount, Decision, Instant, Kind, Policy, PolicyOption, Quota, Request, Span, Wait};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
/// By how much a clock may be wrong, and how long a call may be under way.
const SKEW: i64 = 5 * SECOND;

/// Makes a call.
fn call(key: &mut Key, policy: &Policy, now: i64, request: Request) -> Decision {
    let outcome = key.decide(policy, Instant::from_us(now), request).expect("a decision");
    key.apply(&outcome.change, &outcome.bytes);
    if let Some(value) = &key.value {
        assert_eq!(value.len(), 28, "{value:02x?}");
    }
    outcome.decision
}

fn policy(limit: i64, period: i64) -> Policy {
    let quota = Quota::new(limit as u64, Span::from_us(period as u64)).expect("in range");
    Kind::Fixed.policy(quota).expect("in range")
}

fn until(policy: &Policy, time: i64) -> Policy {
    policy.with(PolicyOption::Until(Instant::from_us(time)))
}

/// When the days begin, or the months, or the weeks.
#[derive(Clone, Debug)]
struct Calendar {
    begins: Vec<i64>,
    longest: i64,
}

impl Calendar {
    /// The end of the day that holds `clock`.
    fn end(&self, clock: i64) -> i64 {
        *self.begins.iter().find(|begin| **begin > clock).expect("a day")
    }

    fn day(&self, now: i64) -> usize {
        self.begins.iter().rposition(|begin| *begin <= now).expect("a day")
    }
}

fn calendars() -> impl Strategy<Value = Calendar> {
    let days = vec(prop_oneof![4 => Just(24i64), 1 => Just(23), 1 => Just(25)], 12).prop_map(|hours| (hours, 25 * HOUR));
    let hours = prop_oneof![3 => Just(0i64), 1 => Just(1), 1 => Just(-1)];
    let months =
        vec((28..=31i64, hours).prop_map(|(days, hours)| 24 * days + hours), 12).prop_map(|hours| (hours, 31 * DAY + HOUR));
    let weeks =
        vec(prop_oneof![3 => Just(168i64), 1 => Just(167), 1 => Just(169)], 12).prop_map(|hours| (hours, 169 * HOUR));
    prop_oneof![3 => days, 1 => months, 1 => weeks].prop_map(|(hours, longest)| {
        let mut begins = vec![1_795_302_000 * SECOND];
        for hours in hours {
            begins.push(begins[begins.len() - 1] + hours * HOUR);
        }
        Calendar { begins, longest }
    })
}

/// A call: on which day it arrives and when, by how much the caller's clock is wrong when it reads it, and what it asks.
#[derive(Clone, Copy, Debug)]
struct Action {
    day: usize,
    at: At,
    /// How far the caller's clock is ahead, less the time for which the call is under way.
    clock: i64,
    amount: u64,
    verb: u8,
}

/// A moment of a day.
#[derive(Clone, Copy, Debug)]
enum At {
    /// So long after it begins.
    First(i64),
    /// So long before it ends.
    Last(i64),
    /// At so many thousandths of it.
    Within(i64),
}

fn actions(max: usize) -> impl Strategy<Value = Vec<Action>> {
    let seconds = 0..=2 * SKEW;
    let at = prop_oneof![
        2 => prop_oneof![Just(0), seconds.clone()].prop_map(At::First),
        2 => prop_oneof![Just(1), seconds].prop_map(At::Last),
        3 => (1..999i64).prop_map(At::Within),
    ];
    let clock = prop_oneof![3 => Just(0i64), 2 => -SKEW..=SKEW];
    let amount = prop_oneof![3 => 1..=3u64, 1 => 1..=12u64];
    (vec((0..10usize, at, clock, amount, 0..12u8), 1..max)).prop_map(|actions| {
        let action = |(day, at, clock, amount, verb)| Action { day, at, clock, amount, verb };
        actions.into_iter().map(action).collect()
    })
}

/// The actions with the moments at which they arrive, in order.
fn in_order(calendar: &Calendar, actions: &[Action]) -> Vec<(i64, Action)> {
    let mut timed: Vec<(i64, Action)> = actions
        .iter()
        .map(|action| {
            let (begin, end) = (calendar.begins[action.day], calendar.begins[action.day + 1]);
            let now = match action.at {
                At::First(after) => begin + after,
                At::Last(before) => end - before,
                At::Within(permille) => begin + (end - begin) / 1_000 * permille,
            };
            (now, *action)
        })
        .collect();
    timed.sort_by_key(|(now, _)| *now);
    timed
}

fn us(wait: Wait) -> i64 {
    match wait {
        Wait::For(span) => span.as_us() as i64,
        Wait::Never => -1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// No day has two limits, if a right caller has been granted units on the day before, since its window began: then that
    /// window ends when the day does.
    #[test]
    fn no_day_grants_two_limits(calendar in calendars(), actions in actions(80), limit in 1..=12i64) {
        // As long as the longest day, by the clock that is ahead the most.
        let plain = policy(limit, calendar.longest + SKEW);
        let mut key = Key::default();
        let mut granted = vec![0; calendar.begins.len()];
        let mut last_end = i64::MIN;
        let mut provisional = vec![false; calendar.begins.len()];
        for (now, action) in in_order(&calendar, &actions) {
            let (time, day) = (calendar.end(now + action.clock), calendar.day(now));
            let amount = if action.verb < 4 { Amount::UpTo(action.amount) } else { Amount::Cost(action.amount) };
            let decision = call(&mut key, &until(&plain, time), now, Request::now(amount));
            if decision.granted == 0 {
                continue;
            }
            let end = now + decision.reset.as_us() as i64;
            // A window in force never becomes longer. A right caller makes it end with the day, at the latest.
            let longest = if last_end > now { last_end } else { i64::MAX };
            let stated = if time > now { time } else { longest.min(time + calendar.longest + SKEW) };
            prop_assert_eq!(end, stated.min(longest), "at {}", now);
            last_end = end;
            provisional[day] = !calendar.begins.contains(&end);
            granted[day] += decision.granted as i64;
            // A window that no right caller has corrected reaches into the next day.
            let corrected = day == 0 || !provisional[day - 1];
            prop_assert!(granted[day] <= if corrected { limit } else { 2 * limit }, "day {day}: {granted:?}");
        }
    }

    /// If the period is only as long as the longest day, a fast clock can end that day sooner, by as much as it is fast.
    #[test]
    fn a_period_of_the_longest_day_is_exact_but_for_the_last_seconds(
        calendar in calendars(), actions in actions(80), limit in 1..=12i64,
    ) {
        let plain = policy(limit, calendar.longest);
        let mut key = Key::default();
        let (mut granted, mut provisional) = (vec![0; calendar.begins.len()], vec![false; calendar.begins.len()]);
        for (now, action) in in_order(&calendar, &actions) {
            let (time, day) = (calendar.end(now + action.clock), calendar.day(now));
            let decision = call(&mut key, &until(&plain, time), now, Request::now(Amount::UpTo(action.amount)));
            let end = now + decision.reset.as_us() as i64;
            if decision.granted > 0 {
                provisional[day] = !calendar.begins.iter().any(|begin| (begin - SKEW..=*begin).contains(&end));
            }
            if now < calendar.begins[day + 1] - SKEW && (day == 0 || !provisional[day - 1]) {
                granted[day] += decision.granted as i64;
                prop_assert!(granted[day] <= limit, "day {day}: {granted:?}");
            }
        }
    }

    /// UNTIL leaves a record that a caller without it reads, with the same end, and the same bytes as it would write itself.
    #[test]
    fn a_caller_without_until_sees_the_same_window(
        calendar in calendars(), actions in actions(20), limit in 1..=12i64, later in 0..30 * HOUR,
    ) {
        let plain = policy(limit, calendar.longest);
        let mut key = Key::default();
        let mut last = 0;
        for (now, action) in in_order(&calendar, &actions) {
            let time = calendar.end(now + action.clock);
            call(&mut key, &until(&plain, time), now, Request::now(Amount::UpTo(action.amount)));
            last = now;
        }
        let now = last + later;
        let (mut one, mut other) = (key.clone(), key);
        let (one_says, other_says) = (
            call(&mut one, &plain, now, Request::now(Amount::Force(1))),
            // A time that has passed leaves the window in force as it is.
            call(&mut other, &until(&plain, now), now, Request::now(Amount::Force(1))),
        );
        prop_assert_eq!(one_says, other_says);
        prop_assert_eq!(one.value, other.value);
    }
}

#[test]
fn a_time_more_than_two_periods_ahead_is_too_far() {
    let plain = policy(10, 25 * HOUR);
    let now = 1_795_302_000 * SECOND;
    for (time, too_far) in [
        (0, false),
        (now, false),
        (now + 50 * HOUR, false),
        (now + 50 * HOUR + 1, true),
        // Milliseconds instead of seconds.
        (now * 1_000, true),
        (i64::MAX, true),
    ] {
        assert_eq!(until(&plain, time).is_too_far_ahead(Instant::from_us(now)), too_far, "{time}");
    }
    assert!(!plain.is_too_far_ahead(Instant::from_us(now)));
    assert!(until(&policy(10, 3_650 * DAY), i64::MAX).is_too_far_ahead(Instant::from_us(now)));
    assert!(!until(&plain, i64::MAX).is_too_far_ahead(Instant::from_us(i64::MAX)));
}

// ---- Callers with several periods ----

/// The window in force, if callers state several periods, and nobody owes or books units: its end, and what is used.
fn called(
    in_force: &mut Option<(i64, i64)>,
    limit: i64,
    period: i64,
    now: i64,
    time: i64,
    amount: Amount,
) -> (i64, i64, i64) {
    let seen = in_force.filter(|&(end, _)| now < end);
    let whole_periods = |time: i64| time + ((now - time).div_euclid(period) + 1) * period;
    let (end, used) = match seen {
        // The end only comes nearer, whatever the period.
        Some((end, used)) => (if now < time { end.min(time) } else { end }, used),
        None => (if now < time { time.min(now + period) } else { whole_periods(time) }, 0),
    };
    let granted = match amount {
        Amount::Cost(n) if used + n as i64 <= limit => n as i64,
        Amount::UpTo(n) => (n as i64).min(limit - used),
        Amount::Refund(n) => -used.min(n as i64),
        _ => 0,
    };
    let changes = granted != 0;
    if changes {
        *in_force = Some((end, used + granted));
    }
    // A denial writes nothing, so the window lasts as the record says.
    let end = if changes { end } else { seen.map_or(end, |(end, _)| end) };
    let left = if used + granted == 0 { 0 } else { end - now };
    (granted.abs(), limit - used - granted, left)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The end stays if only the period changes, and only a time brings it nearer: no window grants more than its limit,
    /// every wait is kept, and no record has a date in the future.
    #[test]
    fn the_end_of_a_window_stays_whatever_the_callers_period(
        periods in vec(prop_oneof![2 => 1..=72 * HOUR, 1 => Just(24 * HOUR), 1 => Just(48 * HOUR)], 1..4), limit in 1..=12i64,
        calls in vec((prop_oneof![2 => 0..=5 * SECOND, 3 => 0..=30 * HOUR], -2_000..=2_000i64, 0..4usize, 1..=5u64, 0..6u8), 1..40),
        shared in prop_oneof![Just(None), (1..=2_000i64).prop_map(Some)],
    ) {
        let periods: Vec<i64> = periods.into_iter().map(|period| period.max(1_000)).collect();
        let (mut key, mut in_force, mut now) = (Key::default(), None, 1_795_302_000 * SECOND);
        // All callers state one time, or each states its own.
        let one = shared.map(|permille| now + periods[0] / 1_000 * permille);
        for (later, permille, caller, n, verb) in calls {
            now += later;
            let period = periods[caller % periods.len()];
            let time = one.unwrap_or(now + period / 1_000 * permille);
            let policy = until(&policy(limit, period), time);
            if policy.is_too_far_ahead(Instant::from_us(now)) {
                continue;
            }
            let amount = match verb {
                0 => Amount::Refund(n),
                1 => Amount::UpTo(n),
                _ => Amount::Cost(n),
            };
            let decision = call(&mut key, &policy, now, Request::now(amount));
            let (granted, remaining, reset) = called(&mut in_force, limit, period, now, time, amount);
            let actual = (decision.granted as i64, decision.remaining as i64, decision.reset.as_us() as i64);
            prop_assert_eq!(actual, (granted, remaining, reset), "{:?} at {} until {} in {} us", amount, now, time, period);
            if granted == 0 && !matches!(amount, Amount::Refund(_)) {
                let never = matches!(amount, Amount::Cost(n) if n as i64 > limit);
                prop_assert_eq!(us(decision.wait), if never { -1 } else { reset });
            }
            if let Some(value) = &key.value {
                let at = i64::from_le_bytes([&value[13..20], &[0][..]].concat().try_into().expect("eight bytes"));
                prop_assert!(at <= now, "{at} at {now}");
            }
        }
    }
}

#[test]
fn a_shorter_period_does_not_end_the_window_early() {
    let now = 1_795_302_000 * SECOND;
    let time = now + DAY + 3 * SECOND;
    let (long, short) = (until(&policy(100, 2 * DAY), time), until(&policy(100, DAY), time));
    let mut key = Key::default();
    assert_eq!(call(&mut key, &long, now, Request::now(Amount::Cost(60))).granted, 60);
    let decision = call(&mut key, &short, now + SECOND, Request::now(Amount::Cost(1)));
    assert_eq!((decision.granted, decision.remaining), (1, 39));
    assert_eq!(decision.reset.as_us() as i64, DAY + 2 * SECOND);
    // The window would have ended after two more seconds, a period after its beginning.
    for (later, policy) in [(4 * SECOND, &short), (4 * SECOND, &long), (time - now - 1, &short)] {
        let decision = call(&mut key, policy, now + later, Request::now(Amount::Cost(40)));
        assert_eq!((decision.granted, decision.remaining), (0, 39), "after {later} us");
        assert_eq!((us(decision.wait), decision.reset.as_us() as i64), (time - now - later, time - now - later));
    }
    assert_eq!(call(&mut key, &short, time, Request::now(Amount::Cost(100))).granted, 100);
}

#[test]
fn a_window_longer_than_the_callers_period_ends_sooner_after_the_clock_is_set_back_never_later() {
    let now = 1_795_302_000 * SECOND;
    let time = now + 2 * DAY;
    let (long, short) = (until(&policy(100, 2 * DAY), time), until(&policy(100, DAY), time));
    for back in [0, 1, SECOND, DAY, 30 * DAY] {
        let mut key = Key::default();
        call(&mut key, &long, now, Request::now(Amount::Cost(60)));
        call(&mut key, &short, now + SECOND, Request::now(Amount::Cost(1)));
        let later = now + SECOND - back;
        for policy in [&long, &short] {
            let reset = policy.peek(key.value.as_deref(), Instant::from_us(later), Request::now(Amount::Cost(100)));
            let reset = reset.expect("a record").reset.as_us() as i64;
            assert!((1..=2 * DAY).contains(&reset) && (back > SECOND || later + reset == time), "{back}: {reset}");
        }
    }
}

/// The example of `denied_until`.
#[test]
fn a_denied_booking_is_made_before_the_time_that_it_states() {
    let policy = policy(10, 10 * SECOND);
    let at = |second: i64| (1_760_000_000 + second) * SECOND;
    let mut key = Key::default();
    call(&mut key, &policy, at(0), Request::now(Amount::Cost(10)));
    let ahead = Request { ahead: Span::from_us(3 * SECOND as u64), ..Request::now(Amount::Cost(1)) };
    let sooner = until(&policy, at(6));
    let wait = |key: &mut Key, policy, now| us(call(key, policy, now, ahead).wait);
    assert_eq!(wait(&mut key, &policy, at(2)), 5 * SECOND);
    assert_eq!(wait(&mut key, &sooner, at(2)), SECOND);
    // One second later it is booked, for second 6.
    let decision = call(&mut key, &sooner, at(3), ahead);
    assert_eq!((decision.granted, us(decision.wait)), (1, 3 * SECOND));
}
