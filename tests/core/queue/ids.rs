//! Waiting clients whose calls have an id, and clients that wait for a lease.

use super::*;

fn at(ms: u64) -> Instant {
    EPOCH.saturating_add(Span::from_us(ms * MS))
}

/// A waiter for `n` units, with an id.
fn with_id(policy: Policy, client: u32, id: &str, n: u64) -> Waiter<u32> {
    let amount = Amount::Cost(n);
    Waiter { id: Some(id.as_bytes().into()), ..asking(amount, waiter(policy, client, EPOCH, Instant::MAX)) }
}

/// Makes a call that does not wait.
fn charge(key: &mut Key, policy: &Policy, id: &str, n: u64, now: Instant) {
    let id = limiter::Id::new(id.as_bytes()).expect("an id");
    let outcome = policy.decide(key.value.as_deref(), now, Request::now(Amount::Cost(n)).with_id(id)).expect("a decision");
    assert_eq!(outcome.decision.granted, n);
    key.apply_at(&outcome.change, &outcome.bytes, now);
}

/// Gives back what an id holds.
fn release(key: &mut Key, id: &str, now: Instant) {
    let mut bytes = Bytes::default();
    let id = limiter::Id::new(id.as_bytes()).expect("an id");
    let settled = limiter::settle(key.value.as_deref().expect("a key"), now, id, 0, &mut bytes);
    let change = settled.expect("a limiter").expect("an id that is remembered").change;
    key.apply_at(&change, &bytes, now);
}

/// What the timer answers at `now`: the client, the units, whether it is a retry.
fn look(queues: &mut Queues<u32>, key: &mut Key, now: Instant, may_grant: bool, most: usize) -> Vec<(u32, u64, bool)> {
    let Some(task) = queues.next_task(now) else { return Vec::new() };
    let answers = serve(queues, &task, key.expire(now), now, may_grant, most);
    let answer = |answer: Result<Decision, Refusal>| answer.map(|decision| (decision.granted, decision.retried));
    let answers = answers.into_iter().map(|(waiter, decision)| (waiter.client, answer(decision).expect("a decision")));
    answers.map(|(client, (granted, retried))| (client, granted, retried)).collect()
}

/// The moment at which the next unit is free.
fn free(key: &Key, policy: &Policy, now: Instant) -> Instant {
    match key.peek(policy, now, Request::now(Amount::Cost(1))).expect("a decision").wait {
        Wait::For(wait) => now.saturating_add(wait),
        Wait::Never => panic!("never"),
    }
}

#[test]
fn a_late_timer_costs_no_units_of_a_key_with_ids() {
    for kind in [Kind::Gcra, Kind::Bucket] {
        // A unit each 50 ms.
        let policy = with_capacity(policy(kind, 1, 50), 1);
        let (mut key, mut queues) = (Key::default(), Queues::default());
        charge(&mut key, &policy, "first", 1, EPOCH);
        for client in 0..4 {
            join(&mut queues, 0, with_id(policy, client, &format!("id {client}"), 1), &key);
        }
        // Each time the timer is 20 ms late. The key may have expired by then.
        for client in 0..3 {
            let due = at(50 * (u64::from(client) + 1));
            assert_eq!(queues.next_wake(), Some(due), "{kind:?}");
            let now = due.saturating_add(Span::from_us(20 * MS));
            assert_eq!(look(&mut queues, &mut key, now, true, 10), [(client, 1, false)], "{kind:?}");
            assert_eq!(free(&key, &policy, now), due.saturating_add(Span::from_us(50 * MS)), "{kind:?}");
        }
        // The timer is so late that the level of the record has drained.
        assert_eq!(look(&mut queues, &mut key, at(290), true, 10), [(3, 1, false)], "{kind:?}");
        assert_eq!(free(&key, &policy, at(240)), at(250), "{kind:?}");
    }
}

#[test]
fn a_change_of_a_key_with_ids_is_noticed() {
    let policy = policy(Kind::Gcra, 10, 1_000);
    let (mut key, mut queues) = (Key::default(), Queues::default());
    charge(&mut key, &policy, "first", 10, EPOCH);
    join(&mut queues, 0, with_id(policy, 1, "waiter", 1), &key);
    // The units of the released charge are granted as of now, not as of an earlier moment.
    release(&mut key, "first", at(70));
    queues.wake(0, b"key", at(70));
    assert_eq!(look(&mut queues, &mut key, at(90), true, 10), [(1, 1, false)]);
    assert_eq!(
        key.peek(&policy, at(90), Request::now(Amount::Cost(10))).expect("a decision").wait,
        Wait::For(Span::from_us(100 * MS))
    );
}

#[test]
fn of_several_waiters_with_one_id_the_first_is_charged() {
    for &kind in Kind::RATES {
        let policy = policy(kind, 10, 1_000);
        let (mut key, mut queues) = (Key::default(), Queues::default());
        charge(&mut key, &policy, "first", 10, EPOCH);
        for (client, id, n) in [(1, "same", 4), (2, "other", 10), (3, "same", 4), (4, "same", 9), (5, "other", 10)] {
            join(&mut queues, 0, with_id(policy, client, id, n), &key);
        }
        release(&mut key, "first", at(10));
        queues.wake(0, b"key", at(10));
        // At most two answers at a time. The retries do not wait for the client that is ahead of them.
        assert_eq!(look(&mut queues, &mut key, at(10), true, 2), [(1, 4, false), (3, 4, true)], "{kind:?}");
        assert!(queues.next_wake() <= Some(at(10)));
        assert_eq!(look(&mut queues, &mut key, at(10), true, 2), [(4, 4, true)], "{kind:?}");
        assert_eq!(queues.len(), 2);
        let due = queues.next_wake().expect("two clients wait");
        assert!(due > at(10));
        let now = at(5_000);
        assert_eq!(look(&mut queues, &mut key, now, true, 10), [(2, 10, false), (5, 10, true)], "{kind:?}");
    }
}

#[test]
fn a_retry_whose_id_is_forgotten_before_it_is_answered_waits_in_line_again() {
    for &kind in Kind::RATES {
        let policy = policy(kind, 10, 1_000);
        let (mut key, mut queues) = (Key::default(), Queues::default());
        charge(&mut key, &policy, "first", 10, EPOCH);
        for (client, id, n) in [(1, "same", 4), (2, "other", 10), (3, "same", 4)] {
            join(&mut queues, 0, with_id(policy, client, id, n), &key);
        }
        release(&mut key, "first", at(10));
        queues.wake(0, b"key", at(10));
        assert_eq!(look(&mut queues, &mut key, at(10), true, 1), [(1, 4, false)], "{kind:?}");
        // Client 3 would be answered now. But the id that makes it a retry is settled first, and then 5 units are taken.
        release(&mut key, "same", at(10));
        charge(&mut key, &policy, "last", 5, at(10));
        queues.changed(0, b"key", at(10));
        assert_eq!(look(&mut queues, &mut key, at(10), true, 10), [], "{kind:?}");
        assert!(queues.next_wake() > Some(at(10)), "{kind:?}: the line is looked at for ever");
        // Client 2 takes all units, so client 3 waits behind it.
        assert_eq!(look(&mut queues, &mut key, at(3_000), true, 10), [(2, 10, false)], "{kind:?}");
        assert_eq!(look(&mut queues, &mut key, at(6_000), true, 10), [(3, 4, false)], "{kind:?}");
    }
}

#[test]
fn a_waiter_whose_id_is_remembered_at_its_time_out_is_answered_as_a_retry() {
    let policy = policy(Kind::Fixed, 10, 1_000);
    let (mut key, mut queues) = (Key::default(), Queues::default());
    charge(&mut key, &policy, "first", 10, EPOCH);
    let waiter = Waiter { deadline: at(300), ..with_id(policy, 1, "waiter", 1) };
    join(&mut queues, 0, waiter, &key);
    // The value of another key was moved here.
    key = Key::default();
    charge(&mut key, &policy, "waiter", 7, EPOCH);
    assert_eq!(look(&mut queues, &mut key, at(300), false, 10), [(1, 7, true)]);
}

#[test]
fn waiters_for_leases_are_granted_when_leases_lapse_or_are_released() {
    let policy = policy(Kind::Lease, 3, 1_000);
    let (mut key, mut queues) = (Key::default(), Queues::default());
    charge(&mut key, &policy, "a", 1, EPOCH);
    charge(&mut key, &policy, "b", 1, at(100));
    charge(&mut key, &policy, "c", 1, at(200));
    for (client, id, n) in [(1, "x", 2), (2, "y", 1), (3, "x", 2), (4, "z", 1)] {
        let waiter = Waiter { joined: at(200), ..with_id(policy, client, id, n) };
        join(&mut queues, 0, waiter, &key);
    }
    assert_eq!(queues.next_wake(), Some(at(1_100)));
    release(&mut key, "b", at(500));
    queues.wake(0, b"key", at(500));
    assert_eq!(look(&mut queues, &mut key, at(500), true, 10), []);
    assert_eq!(queues.next_wake(), Some(at(1_000)));
    // Two units are free. The second call with the id renews the lease of the first.
    assert_eq!(look(&mut queues, &mut key, at(1_000), true, 10), [(1, 2, false), (3, 2, false)]);
    assert_eq!(queues.next_wake(), Some(at(1_200)));
    assert_eq!(look(&mut queues, &mut key, at(1_201), true, 10), [(2, 1, false)]);
    // The ttl counts from the answer.
    assert_eq!(queues.next_wake(), Some(at(2_000)));
    assert_eq!(look(&mut queues, &mut key, at(2_000), true, 10), [(4, 1, false)]);
    assert!(queues.is_empty());
}
