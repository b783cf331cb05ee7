//! Calls with several keys, which wait in several lines: a simulation with a virtual clock.

mod share;
mod world;

use crate::key::Key;
use redis_rl::limiter::{Amount, Bytes, Instant, Kind, Policy, Quota, Request, Span, Wait};
use redis_rl::queue::{Queues, Rule, Rules, Waiter, Waiters};
use world::{Counts, World};

/// Seeds whose worlds once had a finding.
const ONCE_FAILED: &[u64] = &[61, 768, 100_246];

fn run(seed: u64) -> Counts {
    World::run(seed).unwrap_or_else(|text| panic!("{text}"))
}

#[test]
fn worlds_that_once_had_a_finding_have_none() {
    for &seed in ONCE_FAILED {
        run(seed);
    }
}

/// `LINES_STEPS` and `LINES_SEED` make it longer, and begin with another seed.
#[test]
fn no_call_is_passed_forgotten_or_charged_in_part() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let steps: u64 = variable("LINES_STEPS").unwrap_or(300_000);
    let first: u64 = variable("LINES_SEED").unwrap_or(1);
    let mut total = Counts::default();
    let mut seed = first;
    while total.steps < steps {
        let counts = run(seed);
        total.steps += counts.steps;
        total.granted += counts.granted;
        total.denied += counts.denied;
        total.in_several_lines += counts.in_several_lines;
        total.asked += counts.asked;
        total.most_waiting = total.most_waiting.max(counts.most_waiting);
        seed += 1;
    }
    println!("seeds {first} to {}: {total:?}", seed - 1);
    assert!(
        total.granted > steps / 1_000
            && total.denied > steps / 1_000
            && total.in_several_lines > steps / 1_000
            && total.asked > steps / 1_000,
        "{total:?}"
    );
}

#[test]
fn a_question_about_a_key_changes_no_later_charge() {
    let ms = |ms: i64| Instant::from_us(1_760_000_000_000_000 + 1_000 * ms);
    let policy = |period_ms: u64| {
        let quota = Quota::new(1, Span::from_us(1_000 * period_ms)).expect("a quota");
        Kind::Gcra.policy(quota).expect("a policy")
    };
    let (one, two) = (policy(1_000), policy(10_000));
    let wait = |policy: &Policy, key: &Key, now| {
        policy
            .view(key.value.as_deref(), now)
            .expect("a record")
            .peek(Request::now(Amount::Cost(1)))
            .expect("a decision")
            .wait
    };
    let charge = |policy: &Policy, key: &mut Key| {
        let mut bytes = Bytes::default();
        let view = policy.view(None, ms(0)).expect("no record");
        let (_, next) = view.decide(Request::now(Amount::Cost(1))).expect("a decision");
        let change = view.store(&next, || 0x5eed, &mut bytes);
        key.apply_at(&change, &bytes, ms(0));
    };
    for asked in [false, true] {
        let mut keys = [Key::default(), Key::default()];
        charge(&one, &mut keys[0]);
        let mut queues = Queues::default();
        let rule = |key: &[u8], policy| Rule { key: key.into(), policy, amount: Amount::Cost(1), names_amount: false };
        let rules = Rules::All([rule(b"one", one), rule(b"two", two)].into());
        let waiter = Waiter { client: 1, db: 0, rules, id: None, joined: ms(0), deadline: Instant::MAX };
        queues.join(waiter, &keys);
        if asked {
            // A peek, or a call that is denied.
            assert_eq!(queues.waiters(0, b"two"), Waiters::Elsewhere);
            assert_eq!(wait(&two, &keys[1], ms(500)), Wait::NONE);
        }
        // The timer is 50 ms late.
        let now = ms(1_050);
        let task = queues.next_task(now).expect("a task");
        for key in &mut keys {
            key.expire(now);
        }
        let answers = queues.serve(&task, &mut keys, now, true, 10);
        assert!(matches!(&answers[..], [(_, Ok(rows))] if rows.iter().all(|row| row.granted == 1)));
        let waits = [wait(&one, &keys[0], now), wait(&two, &keys[1], now)];
        assert_eq!(waits, [950_000, 9_950_000].map(|us| Wait::For(Span::from_us(us))), "asked: {asked}");
    }
}
