//! Histories that core and model once answered differently, as short as they could be made.

use super::core::{difference, Timed};
use super::rule::Call;
use crate::model::{Form, Rule, Windows};
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

#[test]
fn core_and_model_answer_these_histories_alike() {
    let slide = |limit, period, segments| Rule { limit, period, form: Form::Slide { segments } };
    let now = 1_760_000_000_000_000;
    for (what, rules, calls) in [
        (
            "a booking whose tick was emptied takes nothing from another tick",
            vec![slide(12, 90_940, 65_536)],
            vec![
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
        ),
        (
            "a charge that acts at once is retried without a wait though its tick lies ahead",
            vec![slide(2, 100_000, 65_536)],
            vec![
                charge(0, Amount::Cost(2), 0, "a"),
                charge(1, Amount::Cost(1), 200_000, "b"),
                settle(2, "a", 0),
                // Ticks ascend, so c shares the tick of b, in the future. But it was told to act at once.
                charge(3, Amount::Cost(1), 0, "c"),
                charge(4, Amount::Cost(1), 0, "c"),
                charge(4, Amount::Cost(1), 0, "b"),
            ],
        ),
        (
            "the retry of a booking keeps the moment that it was told",
            vec![slide(2, 100_000, 65_536)],
            vec![
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
        ),
        (
            "the retry of a booking due just before its tick keeps the microsecond",
            vec![slide(11, 6_020, 14)],
            vec![
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
        ),
        (
            "a caller with other segments does not push the deadline away",
            vec![slide(3, 1_000_000, 4), slide(3, 1_000_000, 65_536)],
            vec![under(0, now, Amount::Cost(1), 0, "a"), under(1, now, Amount::Cost(1), 0, "b")],
        ),
        (
            "a key lasts as long as it remembers an id, though all its units were given back",
            vec![slide(5, 1_000_000, 65_536)],
            vec![
                charge(now, Amount::Cost(5), 0, "a"),
                charge(now + 10_000, Amount::Refund(5), 0, ""),
                charge(now + 20_000, Amount::Cost(5), 0, "a"),
            ],
        ),
        (
            "a window that ends with nothing owed also ends the bookings of the windows after the next",
            vec![Rule { limit: 1, period: 1_000_000, form: Form::Fixed { windows: Windows::FirstCall } }],
            vec![
                charge(0, Amount::Cost(1), 0, "a"),
                charge(345_000, Amount::Cost(1), 655_000, "b"),
                charge(345_000, Amount::Cost(1), 1_655_000, "c"),
                charge(345_000, Amount::Refund(2), 0, ""),
                // A new window begins, at the moment at which b's would have begun.
                charge(1_000_000, Amount::Cost(1), 0, "d"),
            ],
        ),
        (
            "a key lasts as long as its record says, also while that keeps a longer period than the last caller's",
            [(1, 1_000_000), (2, 215_000)]
                .map(|(limit, period)| Rule { limit, period, form: Form::Fixed { windows: Windows::Until(781_666) } })
                .into(),
            vec![under(0, 0, Amount::Cost(1), 0, ""), under(1, 4_441, Amount::Cost(2), 777_225, "")],
        ),
    ] {
        let difference = difference(&rules, &calls, false);
        assert!(difference.is_none(), "{what}: {difference:?}");
    }
}
