//! Histories that core and model once answered differently, as short as they could be made.

use super::core::{difference, Timed};
use super::rule::Call;
use crate::model::{Form, Rule};
use redis_rl::limiter::{Amount, Request, Span};

fn charge(now: i64, amount: Amount, ahead: u64, id: &str) -> Timed {
    under(0, now, amount, ahead, id)
}

/// A charge under the policy of this index.
fn under(rule: usize, now: i64, amount: Amount, ahead: u64, id: &str) -> Timed {
    let mut request = Request::now(amount);
    request.ahead = Span::from_us(ahead);
    (now, rule, Call::Charge(request, (!id.is_empty()).then(|| id.into())))
}

fn settle(now: i64, id: &str, units: u64) -> Timed {
    (now, 0, Call::Settle(id.into(), units))
}

fn assert_same(rule: Rule, calls: &[Timed]) {
    assert_same_under(&[rule], calls);
}

fn assert_same_under(rules: &[Rule], calls: &[Timed]) {
    let difference = difference(rules, calls, false);
    assert!(difference.is_none(), "{difference:?}");
}

#[test]
fn a_booking_whose_tick_was_emptied_takes_nothing_from_another_tick() {
    let rule = Rule { limit: 12, period: 90_940, form: Form::Slide { segments: 65_536 } };
    assert_same(
        rule,
        &[
            charge(0, Amount::Cost(5), 0, "a"),
            charge(1_362, Amount::Cost(1), 0, ""),
            charge(2_088, Amount::Cost(7), 271_910, "b"),
            charge(2_088, Amount::Force(1), 0, ""),
            charge(2_178, Amount::Cost(4), 179_879, "c"),
            // Takes all of c, which is alone in its tick, and 2 of b's.
            charge(2_178, Amount::Refund(6), 0, ""),
            charge(2_626, Amount::Cost(1), 191_610, "d"),
            // c has nothing left to give back.
            settle(2_807, "c", 0),
        ],
    );
}

#[test]
fn a_charge_that_acts_at_once_is_retried_without_a_wait_though_its_tick_lies_ahead() {
    let rule = Rule { limit: 2, period: 100_000, form: Form::Slide { segments: 65_536 } };
    assert_same(
        rule,
        &[
            charge(0, Amount::Cost(2), 0, "a"),
            charge(1, Amount::Cost(1), 200_000, "b"),
            settle(2, "a", 0),
            // Ticks ascend, so c shares the tick of b, in the future. But it was told to act at once.
            charge(3, Amount::Cost(1), 0, "c"),
            charge(4, Amount::Cost(1), 0, "c"),
            charge(4, Amount::Cost(1), 0, "b"),
        ],
    );
}

#[test]
fn the_retry_of_a_booking_keeps_the_moment_that_it_was_told() {
    let rule = Rule { limit: 2, period: 100_000, form: Form::Slide { segments: 65_536 } };
    assert_same(
        rule,
        &[
            charge(0, Amount::Cost(1), 0, "a"),
            charge(50_000, Amount::Cost(1), 0, "b"),
            charge(50_001, Amount::Cost(2), 200_000, "c"),
            charge(50_002, Amount::Cost(1), 200_000, "d"),
            settle(50_003, "c", 1),
            settle(50_004, "d", 0),
            // Due when a has left the window, long before c.
            charge(50_005, Amount::Cost(1), 200_000, "e"),
            charge(50_006, Amount::Cost(1), 0, "e"),
            charge(50_006, Amount::Cost(1), 0, "c"),
        ],
    );
}

#[test]
fn the_retry_of_a_booking_due_just_before_its_tick_keeps_the_microsecond() {
    let rule = Rule { limit: 11, period: 6_020, form: Form::Slide { segments: 14 } };
    assert_same(
        rule,
        &[
            charge(12, Amount::Cost(1), 0, "b"),
            charge(433, Amount::Force(1), 0, ""),
            charge(607, Amount::UpTo(5), 0, "c"),
            charge(613, Amount::UpTo(6), 0, "a"),
            settle(631, "a", 3),
            charge(2_005, Amount::Cost(3), 5_430, ""),
            charge(2_011, Amount::Refund(2), 0, ""),
            charge(2_402, Amount::Force(2), 0, ""),
            settle(2_402, "c", 4),
            charge(2_748, Amount::Refund(1), 0, ""),
            // Due at 6449, in the tick from 6450 on, which an earlier booking opened.
            charge(2_760, Amount::Cost(1), 6_459, "d"),
            charge(3_395, Amount::Cost(1), 0, "d"),
        ],
    );
}

#[test]
fn a_caller_with_other_segments_does_not_push_the_deadline_away() {
    let rule = |segments| Rule { limit: 3, period: 1_000_000, form: Form::Slide { segments } };
    let now = 1_760_000_000_000_000;
    assert_same_under(
        &[rule(4), rule(65_536)],
        &[under(0, now, Amount::Cost(1), 0, "a"), under(1, now, Amount::Cost(1), 0, "b")],
    );
}
