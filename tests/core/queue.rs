//! The queues, without a server: random events, which the world checks, and examples.

use self::world::{Event, World, MS};
use crate::ids::histories::rules_of;
use crate::key::{Key, Refusal, Steps};
use crate::model::{Form, Rule};
use proptest::collection::vec;
use proptest::prelude::*;
use redis_rl::limiter::{self, Amount, Bytes, Decision, Instant, Kind, Policy, PolicyOption, Quota, Request, Span, Wait};
use redis_rl::queue::{Claim, Claims, Queues, Task, Waiter};
use std::slice;

mod examples;
mod ids;
mod world;

const START: Instant = Instant::from_us(1_760_000_000_000_000);

/// Makes a call that does not wait.
fn take(key: &mut Key, policy: &Policy, request: Request, now: Instant) {
    let outcome = key.decide(policy, now, request).expect("a decision");
    key.apply_at(&outcome.change, &outcome.bytes, now);
}

/// A policy of GCRA or BUCKET with this capacity.
fn with_capacity(policy: Policy, capacity: u64) -> Policy {
    // Each takes its own option.
    policy.with(PolicyOption::Burst(capacity)).with(PolicyOption::Capacity(capacity))
}

fn limits() -> impl Strategy<Value = u64> {
    1..12u64
}

fn capacities(_: u64) -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 2 => limits().prop_map(Some)]
}

fn segments() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(65_536u64), 1 => 1..=100u64]
}

/// The rules of the calls: mostly one.
fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let periods = || (1..2_000u64).prop_map(|ms| ms * MS);
    let of = move |kind: Kind| vec(rules_of(kind, (limits(), periods()), capacities, segments), 1..4);
    let rules = prop::sample::select(Kind::RATES).prop_flat_map(of);
    (rules, 0..4u8).prop_map(|(mut rules, several)| {
        rules.truncate(if several == 0 { 3 } else { 1 });
        rules.into_iter().map(|rule| rule.starting_at(START.as_us())).collect()
    })
}

/// Random events, each at one of the keys: mostly the first.
fn events() -> impl Strategy<Value = Vec<(usize, Event)>> {
    let amount = || prop_oneof![4 => Just(Amount::Cost(1)), 2 => (1..6u64).prop_map(Amount::Cost), 2 => (1..9u64).prop_map(Amount::UpTo)];
    let patience = || prop_oneof![3 => 1..3_000 * MS, 1 => 1..50 * MS, 1 => Just(86_400_000 * MS)];
    let late = || prop_oneof![4 => 0..2 * MS, 1 => Just(0), 1 => 0..500 * MS];
    let act = prop_oneof![(1..6u64).prop_map(Amount::Force), (1..6u64).prop_map(Amount::Refund)];
    let rule = || 0..3usize;
    let event = prop_oneof![
        10 => (rule(), amount(), patience()).prop_map(|(rule, amount, patience)| Event::Call(rule, amount, patience)),
        2 => ((rule(), 1..6u64), (rule(), 1..6u64), patience()).prop_map(|(one, two, patience)| Event::CallBoth([one, two], patience)),
        2 => any::<u8>().prop_map(|index| Event::Leave(index.into())),
        4 => (0..80 * MS).prop_map(Event::Pass),
        12 => late().prop_map(Event::Timer),
        1 => Just(Event::Delete),
        1 => (0..500 * MS).prop_map(Event::Expire),
        1 => (rule(), act).prop_map(|(rule, amount)| Event::Act(rule, amount)),
        1 => (0..300 * MS).prop_map(Event::Pause),
        1 => (-5_000_000..5_000_000i64).prop_map(Event::Step),
        1 => prop_oneof![Just(Event::WakeAll), Just(Event::Dismiss)],
    ];
    vec((prop_oneof![5 => Just(0usize), 1 => 0..3usize], event), 1..120)
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(6_000);
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_waiter_is_overtaken_granted_early_or_forgotten(
        rules in rules(), events in events(), most in prop_oneof![Just(1_000usize), 1..4usize],
    ) {
        World::new(rules, most, START).play(events);
    }

    #[test]
    fn lateness_does_not_add_up(
        limit in 1..200u64, period_ms in 100..2_000u64, capacity in 1..4u64, bucket: bool,
        late in vec(0..5 * MS, 50),
    ) {
        let (capacity_of, period) = (Some(capacity), period_ms * MS);
        let form = if bucket { Form::Bucket { capacity: capacity_of, step: false } } else { Form::Gcra { burst: capacity_of } };
        let mut world = World::new(vec![Rule { limit, period, form }], 1_000, START);
        for _ in 0..capacity + 50 {
            world.make(0, Event::Call(0, Amount::Cost(1), 86_400_000 * MS));
        }
        for late in late.iter().cycle() {
            if world.queues.is_empty() {
                break;
            }
            world.make(0, Event::Timer(*late));
        }
        for (index, &(at, units)) in world.grants(0).iter().enumerate().skip(capacity as usize) {
            let due = ((index as u64 + 1 - capacity) * period).div_ceil(limit);
            prop_assert_eq!(units, 1);
            let at = at.since(START).as_us();
            // Times are whole microseconds: each grant may be rounded up by one.
            prop_assert!((due..=due + 5 * MS + index as u64).contains(&at), "grant {}, due at {} us, came at {} us", index, due, at);
        }
        prop_assert_eq!(world.grants(0).len() as u64, capacity + 50);
    }
}

/// A key of which one unit was taken at `now`.
fn used(policy: &Policy, now: Instant) -> Key {
    let mut key = Key::default();
    take(&mut key, policy, Request::now(Amount::Cost(1)), now);
    key
}

const EPOCH: Instant = Instant::from_us(0);

fn policy(kind: Kind, limit: u64, period_ms: u64) -> Policy {
    kind.policy(Quota::new(limit, Span::from_us(period_ms * MS)).expect("a quota")).expect("a policy")
}

/// A client that waits for one unit of one key.
fn waiter(policy: Policy, client: u32, joined: Instant, deadline: Instant) -> Waiter<u32> {
    let claim = Claim { key: b"key"[..].into(), policy, amount: Amount::Cost(1), names_amount: false };
    Waiter { client, db: 0, claims: Claims::One(claim), id: None, joined, deadline }
}

/// The same client, asking for another amount.
fn asking(amount: Amount, mut waiter: Waiter<u32>) -> Waiter<u32> {
    if let Claims::One(claim) = &mut waiter.claims {
        (claim.amount, claim.names_amount) = (amount, true);
    }
    waiter
}

/// Does a task of clients with one key.
fn serve(
    queues: &mut Queues<u32>,
    task: &Task,
    key: &mut Key,
    now: Instant,
    may_grant: bool,
    most: usize,
) -> Vec<(Waiter<u32>, Result<Decision, Refusal>)> {
    let answers = queues.serve(task, slice::from_mut(key), now, may_grant, most);
    let one = |rows: Result<Vec<Decision>, (usize, Refusal)>| match rows {
        Ok(rows) => Ok(rows[..].try_into().map(|[row]: [Decision; 1]| row).expect("one decision")),
        Err((index, error)) => {
            assert_eq!(index, 0);
            Err(error)
        }
    };
    answers.into_iter().map(|(waiter, rows)| (waiter, one(rows))).collect()
}

/// Does the task that is due, as long as it may grant.
fn served(queues: &mut Queues<u32>, key: &mut Key, now: Instant) -> Vec<(Waiter<u32>, Result<Decision, Refusal>)> {
    let task = queues.next_task(now).expect("a task");
    serve(queues, &task, key.expire(now), now, true, 100)
}

/// A key of which one unit was taken at the epoch, and so many clients that wait for another, for ever: number 1 is the first.
fn line(policy: Policy, clients: u32) -> (Key, Queues<u32>) {
    let (key, mut queues) = (used(&policy, EPOCH), Queues::default());
    (1..=clients).for_each(|client| join(&mut queues, 0, waiter(policy, client, EPOCH, Instant::MAX), &key));
    (key, queues)
}

/// Lets a client wait for a key of this database.
fn join(queues: &mut Queues<u32>, db: i32, waiter: Waiter<u32>, key: &Key) {
    queues.join(Waiter { db, ..waiter }, slice::from_ref(key));
}

#[test]
fn a_client_due_before_its_timeout_is_granted_though_the_timer_is_late() {
    for kind in Kind::RATES {
        for units in [1, 100] {
            // The queue does not cache a long log of SLIDE. It only knows when the first client was due.
            let policy = policy(*kind, 1, 1_000);
            let mut key = used(&policy, EPOCH);
            if let Some(value) = key.value.as_mut().filter(|_| *kind == Kind::Slide && units > 1) {
                let entry = value[40..].to_vec();
                (0..4).for_each(|_| value.extend_from_slice(&entry));
            }
            let decision = key.peek(&policy, EPOCH, Request::now(Amount::Cost(1))).expect("a decision");
            let Wait::For(wait) = decision.wait else { panic!("the call can never be granted") };
            let due = EPOCH.saturating_add(wait);
            let late = due.saturating_add(Span::from_us(3_000));
            for (deadline, granted) in [(due, 1), (Instant::from_us(due.as_us() - 1), 0)] {
                let (mut queues, mut key) = (Queues::default(), key.clone());
                join(&mut queues, 0, waiter(policy, 1, EPOCH, deadline), &key);
                let answers = served(&mut queues, &mut key, late);
                assert!(
                    matches!(&answers[..], [(Waiter { client: 1, .. }, Ok(row))] if row.granted == granted),
                    "{kind:?} {answers:?}"
                );
            }
        }
    }
}

#[test]
fn no_waiter_is_charged_for_a_moment_before_it_joined() {
    let policy = policy(Kind::Gcra, 1, 50);
    let at = |ms: u64| Instant::from_us((ms * MS) as i64);
    let burst_one = with_capacity(policy, 1);
    let mut key = used(&burst_one, EPOCH);
    let mut queues = Queues::default();
    join(&mut queues, 0, waiter(burst_one, 1, at(0), Instant::MAX), &key);
    // The timer is late. In the meantime another client has come, and the first has left.
    join(&mut queues, 0, waiter(burst_one, 2, at(60), Instant::MAX), &key);
    queues.leave(1, at(61));
    let task = queues.next_task(at(70)).expect("a task");
    assert_eq!(serve(&mut queues, &task, key.expire(at(70)), at(70), true, 10).len(), 1);
    let next = key.peek(&burst_one, at(70), Request::now(Amount::Cost(1))).expect("a decision");
    assert_eq!(next.wait, Wait::For(Span::from_us(40 * MS)), "it is charged as of its arrival, at 60 ms");
}

#[test]
fn a_log_that_has_expired_is_begun_anew() {
    let policy = policy(Kind::Slide, 5, 1_000);
    let mut key = used(&policy, EPOCH);
    // The key expires, as after PEXPIRE, while its log would still count.
    key.expires = Some(Instant::from_us(400_000));
    let mut queues = Queues::default();
    let all = asking(Amount::Cost(5), waiter(policy, 1, EPOCH, Instant::MAX));
    join(&mut queues, 0, all, &key);
    join(&mut queues, 0, waiter(policy, 2, EPOCH, Instant::MAX), &key);
    let late = Instant::from_us(500_000);
    queues.leave(1, late);
    let answers = served(&mut queues, &mut key, late);
    assert!(matches!(&answers[..], [(Waiter { client: 2, .. }, Ok(decision))] if decision.granted == 1), "{answers:?}");
    assert_eq!(key.value, used(&policy, late).value);
}

#[test]
fn queues_of_different_keys_are_independent() {
    let policy = policy(Kind::Gcra, 1, 1_000);
    let (mut queues, mut keys) = (Queues::default(), Vec::new());
    for db in 0..3 {
        let key = used(&policy, EPOCH);
        join(&mut queues, db as i32, waiter(policy, db, EPOCH, Instant::MAX), &key);
        keys.push(key);
    }
    let soon = Instant::from_us(1_000);
    keys[1] = Key::default();
    queues.wake(1, b"key", soon);
    queues.wake(1, b"other", soon);
    queues.wake(9, b"key", soon);
    let task = queues.next_task(soon).expect("a task");
    assert_eq!((task.db, &*task.keys[0]), (1, &b"key"[..]));
    let answers = serve(&mut queues, &task, &mut keys[1], soon, true, 10);
    assert!(matches!(&answers[..], [(Waiter { client: 1, .. }, Ok(decision))] if decision.granted == 1), "{answers:?}");
    assert!(queues.next_task(soon).is_none() && !queues.has_waiters(1, b"key") && queues.has_waiters(0, b"key"));
    queues.wake_all(soon);
    let task = queues.next_task(soon).expect("a task");
    assert!(serve(&mut queues, &task, &mut keys[0], soon, true, 10).is_empty());
    assert_eq!(queues.len(), 2);
}

/// How often a queue reads the key until its one client, under `policy`, is granted. `written` has used up the units that it
/// needs.
fn looks(written: &Policy, policy: Policy) -> usize {
    let mut key = Key::default();
    let all = Request::now(Amount::Cost(1_000));
    take(&mut key, written, all, EPOCH);
    let Wait::For(_) = key.peek(&policy, EPOCH, Request::now(Amount::Cost(1))).expect("a decision").wait else {
        panic!("the call can never be granted")
    };
    let mut queues = Queues::default();
    join(&mut queues, 0, waiter(policy, 1, EPOCH, Instant::MAX), &key);
    for looks in 1.. {
        let now = queues.next_wake().expect("a time");
        let task = queues.next_task(now).expect("a task");
        if let [(_, answer)] = &serve(&mut queues, &task, key.expire(now), now, true, 10)[..] {
            assert_eq!(answer.as_ref().expect("a decision").granted, 1);
            return looks;
        }
        assert!(looks < 1_000_000, "the timer fires again and again without an end");
    }
    unreachable!()
}

#[test]
fn a_waiter_on_a_record_of_another_policy_does_not_poll() {
    for kind in [Kind::Fixed, Kind::Gcra, Kind::Bucket, Kind::Slide] {
        let own = policy(kind, 1_000, 3_600_000);
        let same = looks(&own, own);
        for other in [policy(kind, 1_000, 86_400_000), policy(kind, 2_000, 3_600_000), policy(kind, 1_000, 60_000)] {
            let (before, after) = (looks(&own, other), looks(&other, own));
            assert!(before.max(after) <= 5 * same, "{kind:?}: {before} and {after} looks, {same} by the same policy");
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_queue_finds_when_units_of_another_policy_are_free(
        kind in prop::sample::select(vec![Kind::Slide, Kind::Gcra, Kind::Bucket]), limits in (1..50u64, 1..50u64),
        periods in (1..5_000u64, 1..5_000u64), used in 1..100u64, passed in 0..2_000 * MS, asked in 1..50u64,
    ) {
        let (written, own) = (policy(kind, limits.0, periods.0), policy(kind, limits.1, periods.1));
        let asked = Request::now(Amount::Cost(asked.min(limits.1)));
        let mut key = Key::default();
        take(&mut key, &written, Request::now(Amount::Force(used)), EPOCH);
        let now = EPOCH.saturating_add(Span::from_us(passed));
        let decision = key.expire(now).peek(&own, now, asked).expect("a decision");
        if decision.granted > 0 {
            return Ok(());
        }
        let Wait::For(_) = decision.wait else { panic!("the call can never be granted") };
        let mut queues = Queues::default();
        let waiter = asking(asked.amount, waiter(own, 1, now, Instant::MAX));
        join(&mut queues, 0, waiter, &key);
        let due = queues.next_wake().expect("a time");
        // The key may expire first, and then all units are free.
        let granted = |at: Instant| own.decide(key.value.as_deref(), at, asked).expect("a decision").decision.granted > 0;
        prop_assert!(granted(due) || key.expires == Some(due), "not at {:?}", due);
        let sooner = due.saturating_sub(Span::from_us(1_001));
        prop_assert!(sooner < now || !granted(sooner), "already at {:?}, due at {:?}", sooner, due);
    }
}
