//! Examples of what one look at a queue does, with the exact moment of each charge and of the next look.

use super::*;
use redis_rl::limiter::Id;
use redis_rl::queue::{denied, first_grant};

fn at_us(us: i64) -> Instant {
    Instant::from_us(us)
}

fn at(ms: i64) -> Instant {
    at_us(ms * 1_000)
}

fn span(ms: u64) -> Span {
    Span::from_us(ms * MS)
}

/// GCRA with one unit per 50 ms, and no burst.
fn spaced() -> Policy {
    with_capacity(policy(Kind::Gcra, 1, 50), 1)
}

/// Looks at the queue that is due, and returns which clients were granted how many units.
fn look(queues: &mut Queues<u32>, key: &mut Key, now: Instant) -> Vec<(u32, u64)> {
    served(queues, key, now)
        .into_iter()
        .map(|(waiter, answer)| (waiter.client, answer.expect("a decision").granted))
        .collect()
}

/// How long one unit has to wait.
fn wait(key: &Key, policy: &Policy, now: Instant) -> Wait {
    key.peek(policy, now, Request::now(Amount::Cost(1))).expect("a decision").wait
}

#[test]
fn a_denial_names_the_wait_after_which_the_same_call_would_succeed() {
    let decision = |granted, wait| Decision { granted, limit: 10, remaining: 3, wait, reset: span(9_000), retried: false };
    for (granted, wait, expected) in [
        (0, Wait::For(span(5_000)), Wait::For(span(3_000))),
        (0, Wait::For(span(2_000)), Wait::For(span(1))),
        (0, Wait::For(span(500)), Wait::For(span(1))),
        (0, Wait::Never, Wait::Never),
        // The units are free, or could be booked, but other clients wait.
        (3, Wait::NONE, Wait::For(span(1))),
        (3, Wait::For(span(5_000)), Wait::For(span(1))),
    ] {
        assert_eq!(denied(decision(granted, wait), span(2_000)), decision(0, expected), "{granted} granted, {wait:?}");
    }
}

#[test]
fn a_client_that_reaches_its_timeout_gets_the_rest_of_its_wait() {
    let policy = policy(Kind::Gcra, 1, 1_000);
    let mut key = used(&policy, EPOCH);
    let mut queues = Queues::default();
    // The unit is due after 1 s.
    join(&mut queues, 0, waiter(policy, 1, EPOCH, at(300)), &key);
    assert_eq!(queues.next_wake(), Some(at(300)));
    let answers = served(&mut queues, &mut key, at(300));
    let [(waiter, Ok(decision))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((waiter.client, waiter.deadline.since(waiter.joined), decision.granted), (1, span(300), 0));
    // 700 ms are left; the same call waits 300 ms of them.
    assert_eq!(decision.wait, Wait::For(span(400)));
}

#[test]
fn a_client_that_is_due_after_its_timeout_gets_the_rest_of_its_wait() {
    let policy = spaced();
    let (mut key, mut queues) = line(policy, 1);
    join(&mut queues, 0, waiter(policy, 2, at(40), at(60)), &key);
    // The timer is late: the second client's units are due at 100 ms, after its timeout.
    let answers = served(&mut queues, &mut key, at(110));
    let [(_, Ok(first)), (_, Ok(second))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((first.granted, second.granted), (1, 0));
    assert_eq!(second.wait, Wait::For(span(1)), "the units are free by now");
}

#[test]
fn the_moment_of_the_first_grant_is_exact_under_the_same_policy() {
    let ask = Request::now(Amount::Cost(1));
    let own = policy(Kind::Gcra, 10, 60_000);
    let key = used(&with_capacity(own, 1), EPOCH);
    let due = at_us(6_000_000);
    assert_eq!(first_grant(&key, &with_capacity(own, 1), ask, EPOCH, due), Ok(due));
}

#[test]
fn reading_a_key_after_a_change_of_policy_does_not_delay_the_timer() {
    // Ten units are used at ten per second. At ten per minute the denial names six seconds. But a unit is free after a tenth
    // of a second, since usage drains at the former rate until then.
    let (written, own) = (policy(Kind::Gcra, 10, 1_000), policy(Kind::Gcra, 10, 60_000));
    let mut key = Key::default();
    take(&mut key, &written, Request::now(Amount::Cost(10)), EPOCH);
    assert_eq!(wait(&key, &own, EPOCH), Wait::For(span(6_000)));
    let mut queues = Queues::default();
    join(&mut queues, 0, waiter(own, 1, EPOCH, Instant::MAX), &key);
    for now in [at(20), at(40), at(99)] {
        assert!((at(100)..=at(101)).contains(&queues.next_wake().expect("a time")), "{queues:?}");
        queues.wake(0, b"key", now);
        assert_eq!(look(&mut queues, &mut key, now), []);
    }
    let due = queues.next_wake().expect("a time");
    assert!((at(100)..=at(101)).contains(&due), "{due:?}");
    assert_eq!(look(&mut queues, &mut key, due), [(1, 1)]);
}

#[test]
fn a_call_on_the_record_of_another_algorithm_is_granted_when_that_has_a_free_unit() {
    // GCRA frees a unit each 100 ms. A window of FIXED in which 10 units are used frees them after a second.
    let (written, own) = (policy(Kind::Gcra, 10, 1_000), policy(Kind::Fixed, 10, 1_000).with(PolicyOption::CarriesOver));
    let (mut key, mut queues) = (Key::default(), Queues::default());
    take(&mut key, &written, Request::now(Amount::Cost(10)), EPOCH);
    join(&mut queues, 0, waiter(own, 1, EPOCH, Instant::MAX), &key);
    let due = queues.next_wake().expect("a time");
    assert!((at(100)..=at(101)).contains(&due), "{due:?}");
    assert_eq!(look(&mut queues, &mut key, due), [(1, 1)]);
}

#[test]
fn a_call_that_can_never_be_granted_waits_for_its_deadline() {
    let policy = spaced();
    let mut key = used(&policy, EPOCH);
    let mut queues = Queues::default();
    let two = asking(Amount::Cost(2), waiter(policy, 1, EPOCH, at(9_000)));
    join(&mut queues, 0, two, &key);
    key.expires = None;
    assert_eq!(look(&mut queues, &mut key, at(50)), []);
    assert_eq!(queues.next_wake(), Some(at(9_000)));
}

#[test]
fn a_queue_is_due_when_its_key_expires_before_the_first_client_is_due() {
    let policy = policy(Kind::Gcra, 1, 1_000);
    let mut key = used(&policy, EPOCH);
    key.expires = Some(at(400));
    let mut queues = Queues::default();
    join(&mut queues, 0, waiter(policy, 1, EPOCH, Instant::MAX), &key);
    assert_eq!(queues.next_wake(), Some(at(400)));
    assert_eq!(look(&mut queues, &mut key, at(400)), [(1, 1)]);
}

#[test]
fn the_next_client_moves_up_when_the_first_leaves() {
    let policy = policy(Kind::Gcra, 10, 10_000);
    let mut key = Key::default();
    take(&mut key, &policy, Request::now(Amount::Cost(9)), EPOCH);
    let mut queues = Queues::default();
    let five = asking(Amount::Cost(5), waiter(policy, 1, EPOCH, Instant::MAX));
    join(&mut queues, 0, five, &key);
    join(&mut queues, 0, waiter(policy, 2, EPOCH, Instant::MAX), &key);
    join(&mut queues, 0, waiter(policy, 3, EPOCH, Instant::MAX), &key);
    assert_eq!((queues.len(), queues.count_waiters(0, b"key"), queues.next_wake()), (3, 3, Some(at(4_000))));
    // When the last client in the queue leaves, nothing changes for the first.
    queues.leave(3, at(100)).expect("it waits");
    assert_eq!((queues.count_waiters(0, b"key"), queues.next_wake()), (2, Some(at(4_000))));
    queues.leave(1, at(200)).expect("it waits");
    assert_eq!((queues.count_waiters(0, b"key"), queues.next_wake()), (1, Some(at(200))));
    assert_eq!(look(&mut queues, &mut key, at(200)), [(2, 1)]);
    assert_eq!((queues.count_waiters(0, b"key"), queues.next_wake()), (0, None));
}

#[test]
fn a_call_on_two_keys_stands_in_the_line_of_the_one_whose_waiting_calls_take_longer() {
    let ten = policy(Kind::Gcra, 10, 1_000);
    let exhausted = |policy: &Policy, units| {
        let mut key = Key::default();
        take(&mut key, policy, Request::now(Amount::Cost(units)), EPOCH);
        key
    };
    let claim = |name: &[u8], policy, amount| Claim { key: name.into(), policy, amount, names_amount: true };
    // A call waits for 10 units of the first key, which take a second. Two calls wait for the second key: first for at least 2 units of
    // 5 a second, then for 21 units of 100 a second.
    let fewer = (10, 2_000, [Amount::Cost(1), Amount::UpTo(10)]);
    let faster = (100, 1_000, [Amount::Cost(10), Amount::Cost(11)]);
    for (limit, period_ms, amounts) in [fewer, faster] {
        let two = policy(Kind::Gcra, limit, period_ms);
        let (key_one, key_two) = (exhausted(&ten, 10), exhausted(&two, limit));
        let mut queues = Queues::default();
        let call = |client, claims| Waiter { claims, ..waiter(ten, client, EPOCH, Instant::MAX) };
        queues.join(call(1, Claims::One(claim(b"one", ten, Amount::Cost(10)))), slice::from_ref(&key_one));
        for (client, amount) in (2..).zip(amounts) {
            queues.join(call(client, Claims::One(claim(b"two", two, amount))), slice::from_ref(&key_two));
        }
        let both = [claim(b"two", two, Amount::Cost(1)), claim(b"one", ten, Amount::Cost(1))];
        queues.join(call(4, Claims::All(both.into())), &[key_two, key_one]);
        assert_eq!((queues.line(0, b"one"), queues.line(0, b"two")), (vec![1, 4], vec![2, 3]), "{limit}");
    }
}

#[test]
fn a_queue_that_ends_keeps_no_clients() {
    let policy = spaced();
    let key = Key { expires: None, ..used(&policy, EPOCH) };
    let mut queues = Queues::default();
    for client in 1..=3 {
        join(&mut queues, 0, waiter(policy, client, EPOCH, Instant::MAX), &key);
    }
    join(&mut queues, 1, waiter(policy, 4, EPOCH, Instant::MAX), &key);
    let task = queues.next_task(at(50)).expect("a task");
    assert_eq!(queues.dismiss(&task, at(50)), [1, 2, 3]);
    assert!(!queues.has_waiters(0, b"key") && queues.has_waiters(1, b"key"));
    assert_eq!((queues.len(), queues.next_wake()), (1, Some(at(50))));
    assert!(queues.leave(1, EPOCH).is_none());
    assert_eq!(queues.dismiss(&task, at(50)), Vec::<u32>::new());
}

#[test]
fn a_client_waits_as_long_as_it_would_have_when_the_clock_steps() {
    let policy = spaced();
    for step in [-30_000_000, 30_000_000_i64] {
        let key = used(&policy, EPOCH);
        let mut queues = Queues::default();
        join(&mut queues, 0, waiter(policy, 1, at(10), at(500)), &key);
        join(&mut queues, 0, waiter(policy, 2, at(20), Instant::MAX), &key);
        let now = at_us(30_000 + step);
        queues.clock_stepped(step, now);
        assert_eq!(queues.next_wake(), Some(now));
        let first = queues.leave(1, now).expect("it waits");
        assert_eq!((first.joined, first.deadline), (at_us(10_000 + step), at_us(500_000 + step)));
        assert_eq!(first.deadline.since(first.joined), span(490));
        // The end of time stays the end of time.
        let second = queues.leave(2, now).expect("it waits");
        assert_eq!(second.deadline, at_us(i64::MAX.saturating_add(step)));
    }
}

#[test]
fn a_late_timer_grants_the_units_of_the_last_tenth_of_a_second() {
    let policy = spaced();
    let mut key = used(&policy, EPOCH);
    let mut queues = Queues::default();
    for client in 0..20 {
        join(&mut queues, 0, waiter(policy, client, EPOCH, Instant::MAX), &key);
    }
    // The server stood still for a second. The charges are as of 900, 950 and 1000 ms, and the next unit is due at 1050 ms.
    assert_eq!(look(&mut queues, &mut key, at(1_000)), [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(queues.next_wake(), Some(at(1_050)));
}

#[test]
fn units_that_drain_while_the_server_refuses_writes_are_not_granted_later() {
    let policy = spaced();
    let (mut key, mut queues) = line(policy, 1);
    let task = queues.next_task(at(60)).expect("a task");
    assert!(serve(&mut queues, &task, key.expire(at(60)), at(60), false, 10).is_empty());
    assert_eq!(queues.next_wake(), Some(at(80)));
    let answers = serve(&mut queues, &task, key.expire(at(80)), at(80), true, 10);
    let [(_, Ok(decision))] = &answers[..] else { panic!("{answers:?}") };
    // The charge is as of 60 ms, when the server last refused. The reply comes at 80 ms.
    assert_eq!((decision.granted, decision.reset), (1, span(30)));
    assert_eq!(wait(&key, &policy, at(80)), Wait::For(span(30)));
}

#[test]
fn a_late_grant_after_a_change_of_the_key_is_charged_when_it_was_due() {
    let policy = spaced();
    let (_, mut queues) = line(policy, 1);
    // The key was replaced: its unit is due at 60 ms now.
    let mut key = used(&policy, at(10));
    queues.wake(0, b"key", at(10));
    assert_eq!(look(&mut queues, &mut key, at(10)), []);
    assert_eq!(queues.next_wake(), Some(at(60)));
    assert_eq!(look(&mut queues, &mut key, at(72)), [(1, 1)]);
    assert_eq!(wait(&key, &policy, at(72)), Wait::For(span(38)), "the charge is as of 60 ms");
}

#[test]
fn a_deleted_key_is_charged_from_nothing() {
    let policy = with_capacity(policy(Kind::Gcra, 1, 50), 5);
    let mut key = Key::default();
    take(&mut key, &policy, Request::now(Amount::Cost(5)), EPOCH);
    let mut queues = Queues::default();
    join(&mut queues, 0, waiter(policy, 1, EPOCH, Instant::MAX), &key);
    // The first unit is due at 50 ms, and the timer is late. At 55 ms the key is deleted.
    key = Key::default();
    queues.wake(0, b"key", at(55));
    assert_eq!(look(&mut queues, &mut key, at(60)), [(1, 1)]);
    assert_eq!(key.value, used(&policy, at(60)).value);
}

#[test]
fn clients_after_the_first_of_a_deleted_key_wait_from_its_grant_on() {
    let policy = spaced();
    let (_, mut queues) = line(policy, 2);
    let mut key = Key::default();
    queues.wake(0, b"key", at(30));
    let task = queues.next_task(at(30)).expect("a task");
    let answers = serve(&mut queues, &task, &mut key, at(30), true, 10);
    let [(_, Ok(decision))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((decision.granted, decision.reset), (1, span(50)));
    assert_eq!(queues.next_wake(), Some(at(80)));
}

#[test]
fn an_expired_record_of_another_algorithm_does_not_concern_the_next_client() {
    let (fixed, gcra) = (policy(Kind::Fixed, 1, 50), policy(Kind::Gcra, 1, 50));
    let mut key = used(&fixed, EPOCH);
    let mut queues = Queues::default();
    join(&mut queues, 0, waiter(fixed, 1, EPOCH, Instant::MAX), &key);
    join(&mut queues, 0, waiter(gcra, 2, EPOCH, Instant::MAX), &key);
    // The call answers only one client. The next call of the timer answers the other.
    let task = queues.next_task(at(50)).expect("a task");
    let answers = serve(&mut queues, &task, key.expire(at(50)), at(50), true, 1);
    assert!(matches!(&answers[..], [(waiter, Ok(_))] if waiter.client == 1), "{answers:?}");
    // The window of the first client is over by then, and the key is gone.
    assert_eq!(look(&mut queues, &mut key, at(200)), [(2, 1)]);
}

#[test]
fn a_server_that_refuses_writes_denies_a_client_in_time_however_many_lines_are_due() {
    let policy = spaced();
    let mut key = used(&policy, EPOCH);
    let mut queues = Queues::default();
    for db in 0..100 {
        join(&mut queues, db, waiter(policy, db as u32, EPOCH, Instant::MAX), &key);
    }
    join(&mut queues, 100, waiter(policy, 100, EPOCH, at(60)), &key);
    let task = queues.next_task(at(70)).expect("a line that is due");
    assert!(serve(&mut queues, &task, key.expire(at(70)), at(70), false, 10).is_empty());
    let task = queues.next_task(at(70)).expect("a client whose wait has ended");
    let answers = serve(&mut queues, &task, key.expire(at(70)), at(70), false, 10);
    assert!(matches!(&answers[..], [(Waiter { client: 100, .. }, Ok(row))] if row.granted == 0), "{answers:?}");
    assert_eq!(queues.next_wake(), Some(at(90)));
    // Nor do lines that are due come before it for ever.
    join(&mut queues, 100, waiter(policy, 101, at(70), at(80)), &key);
    let task = queues.next_timeout(at(95)).expect("a client whose wait has ended");
    assert_eq!(task.db, 100);
}

#[test]
fn a_step_of_the_clock_ends_a_postponement() {
    let policy = spaced();
    let key = used(&policy, EPOCH);
    let mut queues = Queues::default();
    join(&mut queues, 0, waiter(policy, 1, EPOCH, at(10)), &key);
    let task = queues.next_timeout(at(10)).expect("a client whose wait has ended");
    queues.postpone(&task, at(10));
    assert!(queues.next_timeout(at(29)).is_none() && queues.next_timeout(at(30)).is_some());
    // The clock is set back by 4 ms. The wait then ended at 6 ms, and no answer is put off any more.
    queues.clock_stepped(-4_000, at(6));
    assert!(queues.next_timeout(at(5)).is_none() && queues.next_timeout(at(6)).is_some());
}

#[test]
fn a_task_that_is_put_off_comes_again_soon_and_holds_up_no_other() {
    let policy = spaced();
    let mut key = used(&policy, EPOCH);
    let mut queues = Queues::default();
    // The units of both lines are due at 50 ms. The wait of another client of the first line ends at 60 ms.
    join(&mut queues, 0, waiter(policy, 1, EPOCH, Instant::MAX), &key);
    join(&mut queues, 0, waiter(policy, 2, EPOCH, at(60)), &key);
    join(&mut queues, 1, waiter(policy, 3, EPOCH, Instant::MAX), &key);
    let due = |queues: &Queues<u32>, now| queues.next_task(now).map(|task| task.db);
    let put_off = |queues: &mut Queues<u32>, now| {
        let task = queues.next_task(now).expect("a task");
        queues.postpone(&task, now);
    };
    put_off(&mut queues, at(55));
    assert_eq!(due(&queues, at(55)), Some(1));
    assert_eq!(look(&mut queues, &mut used(&policy, EPOCH), at(55)), [(3, 1)]);
    // Then the second client is to be denied, and then the first line is due again. Both are put off.
    for (now, next) in [(60, 75), (75, 80), (80, 95), (95, 100)] {
        assert_eq!((due(&queues, at(now - 1)), due(&queues, at(now))), (None, Some(0)), "{now}");
        put_off(&mut queues, at(now));
        assert_eq!(queues.next_wake(), Some(at(next)), "{now}");
    }
    // The wait of the second client ended at 60 ms. Its denial says when the same call would have been granted.
    let answers = served(&mut queues, &mut key, at(100));
    assert!(matches!(&answers[..], [(Waiter { client: 2, .. }, Ok(row))] if row.granted == 0), "{answers:?}");
    assert_eq!(look(&mut queues, &mut key, at(115)), [(1, 1)]);
    assert!(queues.is_empty() && queues.next_wake().is_none());
    // A client that leaves while it is put off leaves nothing behind.
    let key = used(&policy, at(200));
    join(&mut queues, 0, waiter(policy, 4, at(200), at(210)), &key);
    put_off(&mut queues, at(210));
    assert!(queues.leave(4, at(220)).is_some());
    assert!(queues.is_empty() && queues.next_wake().is_none());
}

#[test]
fn a_server_that_refused_writes_before_its_clock_was_set_back_serves_new_clients() {
    let policy = spaced();
    let mut key = used(&policy, at(10_000));
    let mut queues = Queues::default();
    join(&mut queues, 0, waiter(policy, 1, at(10_000), Instant::MAX), &key);
    let task = queues.next_task(at(10_070)).expect("a line that is due");
    assert!(serve(&mut queues, &task, key.expire(at(10_070)), at(10_070), false, 10).is_empty());
    assert!(queues.leave(1, at(10_070)).is_some());
    // No client waits when the clock is set back.
    let mut key = used(&policy, EPOCH);
    join(&mut queues, 0, waiter(policy, 2, EPOCH, Instant::MAX), &key);
    assert_eq!(queues.next_wake(), Some(at(50)));
    assert_eq!(look(&mut queues, &mut key, at(50)), [(2, 1)]);
}

#[test]
fn a_paused_line_is_due_when_the_pause_ends_and_charged_as_of_then() {
    let policy = spaced();
    // In the second case the unit is due, but the timer is late, when the pause is set. In the third the state outlasts the pause.
    // The key remembers the id of its charge until it expires, which is when the pause ends in the first two cases.
    let cases = [(10, 200), (70, 140), (20, 20)].into_iter().flat_map(|case| [(case, None), (case, Id::new(b"first"))]);
    for ((set_ms, length), id) in cases {
        let (mut key, mut queues) = (Key::default(), Queues::default());
        take(&mut key, &policy, Request { id, ..Request::now(Amount::Cost(1)) }, at(0));
        (1..=3).for_each(|client| join(&mut queues, 0, waiter(policy, client, EPOCH, Instant::MAX), &key));
        crate::pause::set(&mut key, at(set_ms), span(length));
        queues.changed(0, b"key", at(set_ms));
        assert_eq!(look(&mut queues, &mut key, at(set_ms + 1)), []);
        let due = (set_ms + length as i64).max(50);
        assert_eq!(queues.next_wake(), Some(at(due)));
        // The timer is 20 ms late.
        assert_eq!(look(&mut queues, &mut key, at(due + 20)), [(1, 1)]);
        assert_eq!(wait(&key, &policy, at(due + 20)), Wait::For(span(30)));
        assert_eq!(queues.next_wake(), Some(at(due + 50)));
        // The next pause is lengthened, and then ended.
        for length in [1_000, 2_000, 0] {
            crate::pause::set(&mut key, at(due + 30), span(length));
            queues.changed(0, b"key", at(due + 30));
            assert_eq!(look(&mut queues, &mut key, at(due + 30)), []);
            assert_eq!(queues.next_wake(), Some(at(due + if length > 0 { 30 + length as i64 } else { 50 })));
        }
        assert_eq!(look(&mut queues, &mut key, at(due + 60)), [(2, 1)]);
        assert_eq!(queues.next_wake(), Some(at(due + 100)));
    }
}
