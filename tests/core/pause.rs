//! Pauses. A key with pauses gets random calls, and so does its twin, which never has one. While no pause is in force, both decide the
//! same. While one is, the twin says what the key must reply: see [`Twins::call`].

use proptest::collection::vec;
use proptest::prelude::*;
use redis_rl::limiter::{
    inspect, pause, rest_of_pause, settle, Amount, Bytes, Change, Decision, Fact, Id, Instant, Kind, Policy, Quota,
    RecordError, Request, Settlement, Span, Wait, MAX_PAUSE,
};

use crate::ids::histories::{histories, kinds, name, rule_changes, share, starts, Act, Action, Ahead, Clock, Name, ALL};
use crate::key::{Key, Refusal};
use crate::model::{Form, Rule, Windows};

/// What is done to a key.
#[derive(Clone, Copy, Debug)]
enum Move {
    Call(Action),
    /// A pause of so many thousandths of the period; 0 ends one.
    Pause(u64),
}

/// A key and its twin.
#[derive(Default)]
struct Twins {
    key: Key,
    /// It never has a pause.
    twin: Key,
    /// When the pause of the key ends.
    ends: Option<Instant>,
    /// How many ids have been used.
    ids: usize,
    /// The last end of a pause that a command has ended or lengthened.
    ended: Option<Instant>,
}

/// The value inside a pause; `Err`: there is no pause.
fn inside(value: &[u8]) -> Result<Option<&[u8]>, &[u8]> {
    match value {
        [0xfa, 4, rest @ ..] => Ok(Some(&rest[22..]).filter(|inner| **inner != [0; 4])),
        value => Err(value),
    }
}

impl Twins {
    fn is_paused(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| now < ends)
    }

    fn id(&mut self, wanted: Name) -> Option<Vec<u8>> {
        match wanted {
            Name::None => None,
            Name::New => {
                self.ids += 1;
                Some(name(self.ids - 1))
            }
            Name::Used(back) => Some(name(self.ids.saturating_sub(1 + back))),
        }
    }

    fn pause(&mut self, now: Instant, length: Span) {
        let mut bytes = Bytes::default();
        let was_paused = self.is_paused(now);
        let (rest, change) = pause(self.key.value.as_deref(), self.key.expires, now, length, &mut bytes).expect("a limiter");
        let new_end = now.saturating_add(length);
        let ends = match self.ends {
            _ if length == Span::ZERO => None,
            Some(ends) if ends >= new_end => Some(ends),
            _ => Some(new_end),
        };
        let changes = if length == Span::ZERO { was_paused } else { ends != self.ends };
        assert_eq!(change != Change::Keep, changes, "a pause that changes nothing writes nothing");
        if length > Span::ZERO || was_paused {
            self.ended = self.ended.max(self.ends);
            self.ends = ends;
        }
        assert_eq!(rest, ends.map_or(Span::ZERO, |ends| ends.since(now)));
        self.key.apply(&change, &bytes);
        self.check(now);
    }

    /// A call of a limiter.
    fn call(&mut self, policy: &Policy, now: Instant, request: Request) -> Option<Decision> {
        let twin = self.twin.decide(policy, now, request);
        let found = self.key.decide(policy, now, request);
        let is_retry = || {
            let view = policy.view(self.twin.value.as_deref(), now).expect("a record");
            request.id.is_some_and(|id| view.held(id).is_some())
        };
        if !self.is_paused(now) {
            let (twin, found) = (twin.ok()?, found.expect("as the twin"));
            assert_eq!(found.decision, twin.decision);
            self.apply(&(found.change, &found.bytes), &(twin.change, &twin.bytes), now);
            return Some(twin.decision);
        }
        if matches!(request.amount, Amount::Force(_) | Amount::Refund(_)) || is_retry() {
            let (twin, found) = (twin.ok()?, found.expect("as the twin"));
            assert_eq!(found.decision, Decision { remaining: 0, ..twin.decision });
            self.apply(&(found.change, &found.bytes), &(twin.change, &twin.bytes), now);
            return Some(twin.decision);
        }
        // It takes units: it is denied, and its wait lasts until the pause has ended and its units are free.
        let twin = self.twin.peek(policy, now, request).ok()?;
        let found = found.expect("a denial");
        let rest = self.ends.expect("a pause").since(now);
        let wait = match twin.wait {
            Wait::Never => Wait::Never,
            Wait::For(_) if twin.granted > 0 => Wait::For(rest),
            Wait::For(need) => Wait::For(need.max(rest)),
        };
        assert_eq!(found.decision, Decision { granted: 0, remaining: 0, wait, ..twin });
        assert_eq!(found.change, Change::Keep);
        assert_eq!(self.key.peek(policy, now, request).expect("a denial"), found.decision);
        if let (Wait::For(wait), 0) = (wait, request.ahead.as_us()) {
            // If no other call comes, the same call is granted after this wait.
            let later = now.saturating_add(wait);
            let peeked = self.key.clone().expire(later).peek(policy, later, request);
            assert!(wait == Span::ZERO || peeked.is_err() || peeked.is_ok_and(|decision| decision.granted > 0));
        }
        Some(found.decision)
    }

    fn settle(&mut self, now: Instant, id: Id, units: u64) {
        let Some(stored) = self.twin.value.as_deref() else { return };
        let mut bytes = (Bytes::default(), Bytes::default());
        let twin = settle(stored, now, id, units, &mut bytes.0);
        let found = settle(self.key.value.as_deref().expect("as the twin"), now, id, units, &mut bytes.1);
        match (twin, found) {
            (Ok(Some(twin)), Ok(Some(found))) => {
                let remaining = if self.is_paused(now) { 0 } else { twin.decision.remaining };
                let decision = Decision { remaining, ..twin.decision };
                assert_eq!(found, Settlement { decision, change: found.change, ..twin });
                self.apply(&(found.change, &bytes.1), &(twin.change, &bytes.0), now);
            }
            (twin, found) => assert_eq!(twin, found),
        }
    }

    /// Carries the changes out on both.
    fn apply(&mut self, found: &(Change, &Bytes), twin: &(Change, &Bytes), now: Instant) {
        // What a call costs and replicates is at most the wrapper more, except that the first write after a pause is a whole one.
        let (found_len, twin_len) = (found.1.as_slice().len(), twin.1.as_slice().len());
        let in_part = matches!(twin.0, Change::Patch { .. } | Change::Write { offset: 1.., .. });
        let unwraps = !self.is_paused(now) && self.key.value.as_deref().is_some_and(|value| inside(value).is_ok());
        assert!((unwraps && in_part) || found_len <= twin_len + 28, "{found_len} bytes for {twin_len}");
        self.key.apply(&found.0, found.1);
        self.twin.apply(&twin.0, twin.1);
        if found.0 != Change::Keep && !self.is_paused(now) {
            assert!(self.key.value.as_deref().is_none_or(|value| inside(value).is_err()), "a write after the end unwraps");
        }
    }

    /// Whether the twin affects no decision from then on. Its deadline may be later, so that not every write has to move it.
    fn twin_ends_by(&self, at: Instant) -> bool {
        let ended = |value: &Vec<u8>| {
            let facts = inspect(value, at).expect("a limiter");
            let number = |wanted| facts.iter().find(|(name, _)| *name == wanted).map(|(_, fact)| fact);
            number("reset_ms") == Some(&Fact::Number(0)) && number("ids").is_none_or(|ids| *ids == Fact::Number(0))
        };
        self.twin.expires.is_none_or(|expires| expires <= at) || self.twin.value.as_ref().is_none_or(ended)
    }

    /// Both keys expire. What the key holds is what the twin holds, with the pause around it.
    fn check(&mut self, now: Instant) {
        let deadline = self.twin.expires;
        // A pause keeps the record that it has around it.
        if self.ends.is_none_or(|ends| ends <= now) {
            self.twin.expire(now);
        }
        self.key.expire(now);
        let Some(value) = &self.key.value else {
            assert!(!self.is_paused(now) && self.twin_ends_by(now));
            self.twin.delete();
            return;
        };
        let (inner, wrapped) = match inside(value) {
            Ok(inner) => (inner, true),
            Err(value) => (Some(value), false),
        };
        if let (Some(record), None) = (inner, &self.twin.value) {
            // A record does not say how its windows are aligned. So after a command has ended the pause, the key may keep the record
            // until the pause would have ended.
            let expires = self.key.expires.expect("a deadline");
            assert!(Some(expires) <= deadline.max(self.ended), "the record is kept for too long, until {expires:?}");
            self.twin = Key { value: Some(record.to_vec()), expires: Some(expires), ..Key::default() };
        }
        assert_eq!(inner, self.twin.value.as_deref());
        assert!(wrapped || !self.is_paused(now));
        assert_eq!(rest_of_pause(Some(value), now), self.ends.map_or(Span::ZERO, |ends| ends.since(now)));
        let expires = self.key.expires.expect("a deadline");
        assert!(self.ends.is_none_or(|ends| ends <= expires) && self.twin_ends_by(expires));
        let facts = inspect(value, now).expect("a limiter");
        let paused_ms = self.ends.map_or(0, |ends| ends.since(now).as_ms_ceil());
        assert!(facts.contains(&("paused_ms", Fact::Number(paused_ms.try_into().expect("a number")))));
        if self.is_paused(now) {
            assert!(facts.contains(&("remaining", Fact::Number(0))));
        }
    }

    fn run(mut self, rules: &[Rule], policy: impl Fn(&Rule) -> Policy, start: i64, moves: &[Move]) {
        let mut clock = Clock::new(start);
        let mut current = 0;
        for moved in moves {
            let rule = &rules[current % rules.len()];
            let Move::Call(Action { rule: next, step, act }) = *moved else {
                let Move::Pause(permille) = *moved else { continue };
                let length =
                    Span::from_us(share(rule.period, permille).clamp(u64::from(permille > 0) * 1_000, MAX_PAUSE.as_us()));
                self.pause(Instant::from_us(clock.now), length);
                continue;
            };
            current = next;
            let rule = &rules[current % rules.len()];
            let (policy, capacity) = (policy(rule), rule.capacity());
            clock.step(step, rule);
            let now = Instant::from_us(clock.now);
            self.check(now);
            let (amount, wanted, ahead) = match act {
                Act::Cost(size, name, ahead) => (Amount::Cost(size.of(capacity)), name, ahead),
                Act::UpTo(size, name) => (Amount::UpTo(size.of(capacity)), name, Ahead::No),
                Act::Force(size) => (Amount::Force(size.of(capacity)), Name::None, Ahead::No),
                Act::Refund(size) => (Amount::Refund(size.of(capacity)), Name::None, Ahead::No),
                Act::Settle(wanted, _) | Act::Release(wanted) => {
                    let permille = if let Act::Settle(_, permille) = act { permille } else { 0 };
                    if let Some(id) = self.id(wanted) {
                        self.settle(now, Id::new(&id).expect("an id"), share(capacity, permille));
                    }
                    continue;
                }
            };
            let id = self.id(wanted);
            let id = id.as_deref().and_then(Id::new);
            let ahead = Span::from_us(match ahead {
                Ahead::No => 0,
                Ahead::Us(us) => us,
                Ahead::Period(permille) => share(rule.period, permille),
            });
            let request = match (policy.kind(), amount) {
                (Kind::Lease, Amount::Cost(n) | Amount::UpTo(n)) => Request { id, ..Request::now(Amount::Cost(n)) },
                (Kind::Lease, _) => continue,
                _ => Request { amount, ahead, id },
            };
            if request.id.is_none() && policy.kind() == Kind::Lease {
                continue;
            }
            let Some(decision) = self.call(&policy, now, request) else { return };
            clock.reset = decision.reset.as_us();
            clock.wait = if let Wait::For(span) = decision.wait { span.as_us() } else { 0 };
        }
    }
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let permille = prop_oneof![2 => Just(0), 3 => 1..=1_000u64, 1 => 1_000..=20_000u64];
    let pauses = vec((any::<prop::sample::Index>(), permille), 1..10);
    (histories(ALL, 60), pauses).prop_map(|(actions, pauses)| {
        let mut moves: Vec<Move> = actions.into_iter().map(Move::Call).collect();
        for (place, permille) in pauses {
            moves.insert(place.index(moves.len() + 1), Move::Pause(permille));
        }
        moves
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn a_paused_key_is_its_twin_that_grants_nothing(
        rules in kinds().prop_flat_map(rule_changes),
        start in starts(),
        moves in moves(),
    ) {
        Twins::default().run(&rules, Rule::policy, start, &moves);
    }

    #[test]
    fn a_paused_lease_is_its_twin_that_takes_no_new_holder(
        limit in 1..=20u64, period in prop_oneof![Just(1_000_000u64), 1_000..=100_000u64], start in starts(), moves in moves(),
    ) {
        let rule = Rule { limit, period, form: Form::Fixed { windows: Windows::FirstCall } };
        let quota = Quota::new(limit, Span::from_us(period)).expect("a quota");
        Twins::default().run(&[rule], |_| Kind::Lease.policy(quota).expect("a policy"), start, &moves);
    }
}

const SECOND: i64 = 1_000_000;
const NOW: i64 = 1_760_000_000 * SECOND;

fn at(ms: i64) -> Instant {
    Instant::from_us(NOW + 1_000 * ms)
}

fn ms(ms: u64) -> Span {
    Span::from_us(1_000 * ms)
}

fn policy(kind: Kind) -> Policy {
    kind.policy(Quota::new(10, ms(60_000)).expect("a quota")).expect("a policy")
}

/// Pauses a key. Returns what is left of its pause.
pub fn set(key: &mut Key, now: Instant, length: Span) -> Span {
    let mut bytes = Bytes::default();
    let (rest, change) = pause(key.value.as_deref(), key.expires, now, length, &mut bytes).expect("a limiter");
    key.apply_at(&change, &bytes, now);
    rest
}

/// Makes a call.
fn call(key: &mut Key, policy: &Policy, now: Instant, request: Request) -> Decision {
    let outcome = key.expire(now).decide(policy, now, request).expect("a decision");
    key.apply_at(&outcome.change, &outcome.bytes, now);
    outcome.decision
}

#[test]
fn a_pause_on_a_missing_key_is_all_that_the_key_holds() {
    for &kind in Kind::ALL {
        let (mut key, policy) = (Key::default(), policy(kind));
        assert_eq!(set(&mut key, at(0), ms(500)), ms(500));
        assert_eq!((key.value.as_ref().map(Vec::len), key.expires), (Some(28), Some(at(500))));
        // The later end wins.
        assert_eq!(set(&mut key, at(100), ms(200)), ms(400));
        assert_eq!(set(&mut key, at(100), ms(500)), ms(500));
        assert_eq!(key.expires, Some(at(600)));
        let request = Request { id: Id::new(b"a").filter(|_| kind == Kind::Lease), ..Request::now(Amount::Cost(1)) };
        let denied = call(&mut key, &policy, at(200), request);
        assert_eq!((denied.granted, denied.remaining, denied.wait), (0, 0, Wait::For(ms(400))));
        assert_eq!(set(&mut key, at(300), Span::ZERO), Span::ZERO);
        assert!(key.value.is_none());
        set(&mut key, at(300), ms(100));
        // It ends as its key expires: the first call begins anew, with a record as it always is.
        assert_eq!(call(&mut key, &policy, at(400), request).granted, 1);
        assert_eq!(key.value.as_ref().map(|value| value[1] == 4), Some(false));
    }
}

#[test]
fn a_limit_of_0_and_too_many_units_are_denied_for_ever() {
    let mut key = Key::default();
    set(&mut key, at(0), ms(500));
    let closed = Kind::Gcra.policy(Quota::new(0, ms(60_000)).expect("a quota")).expect("a policy");
    for (policy, amount, limit) in [(closed, 1, 0), (policy(Kind::Gcra), 11, 10)] {
        let denied = call(&mut key, &policy, at(1), Request::now(Amount::Cost(amount)));
        assert_eq!((denied.granted, denied.limit, denied.wait), (0, limit, Wait::Never));
    }
}

#[test]
fn a_booking_waits_for_the_longer_of_the_pause_and_its_units() {
    let (mut key, policy) = (Key::default(), policy(Kind::Gcra));
    call(&mut key, &policy, at(0), Request::now(Amount::Cost(10)));
    set(&mut key, at(0), ms(5_000));
    // Two units are free after 12 s.
    for (ahead_ms, wait_ms) in [(0, 12_000), (4_000, 8_000), (7_000, 5_000), (60_000, 5_000)] {
        let request = Request { ahead: ms(ahead_ms), ..Request::now(Amount::Cost(2)) };
        assert_eq!(call(&mut key, &policy, at(0), request).wait, Wait::For(ms(wait_ms)));
    }
}

#[test]
fn a_value_of_redis_cell_is_kept_inside() {
    let tat = format!("{}", (NOW + 6 * SECOND) * 1_000).into_bytes();
    let mut key = Key { value: Some(tat.clone()), expires: Some(at(6_000)), ..Key::default() };
    set(&mut key, at(0), ms(1_000));
    assert_eq!(key.expires, Some(at(6_000)));
    let denied = call(&mut key, &policy(Kind::Gcra), at(500), Request::now(Amount::Cost(1)));
    assert_eq!((denied.granted, denied.wait), (0, Wait::For(ms(500))));
    assert_eq!(
        key.decide(&policy(Kind::Slide), at(500), Request::now(Amount::Cost(1))).err(),
        Some(Refusal::Record(RecordError::Unknown))
    );
    set(&mut key, at(500), Span::ZERO);
    assert_eq!((key.value, key.expires), (Some(tat), Some(at(6_000))));
}

#[test]
fn after_a_step_back_of_the_clock_a_pause_lasts_at_most_as_long_as_it_was_set_for() {
    let (mut key, policy) = (Key::default(), policy(Kind::Gcra));
    call(&mut key, &policy, at(0), Request::now(Amount::Cost(1)));
    set(&mut key, at(0), ms(30_000));
    let wait = |key: &mut Key, now| call(key, &policy, now, Request::now(Amount::Cost(1))).wait;
    assert_eq!(wait(&mut key, at(-3_600_000)), Wait::For(ms(30_000)));
    // Denials write nothing, so the rest stays. A write sets the end to what it then is.
    assert_eq!(wait(&mut key, at(-3_590_000)), Wait::For(ms(30_000)));
    call(&mut key, &policy, at(-3_590_000), Request::now(Amount::Force(1)));
    assert_eq!(wait(&mut key, at(-3_580_000)), Wait::For(ms(20_000)));
    assert_eq!(call(&mut key, &policy, at(-3_560_000), Request::now(Amount::Cost(1))).granted, 1);
}

#[test]
fn what_no_limiter_wrote_cannot_be_paused() {
    let mut paused = Key::default();
    set(&mut paused, at(0), ms(500));
    let pause_of = |value: &[u8]| pause(Some(value), None, at(0), ms(1_000), &mut Bytes::default()).err();
    let wrapper = paused.value.expect("a pause");
    let with = |at: usize, byte: u8| {
        let mut value = wrapper.clone();
        value[at] = byte;
        value
    };
    let nested = [&wrapper[..24], &wrapper].concat();
    let too_long = [&wrapper[..16], &(NOW + 32 * 86_400 * SECOND).to_le_bytes()[..], &[0; 4]].concat();
    let backwards = [&wrapper[..16], &wrapper[8..16], &[0; 4]].concat();
    let with_text = [&wrapper[..24], b"some other program's text"].concat();
    let unknown = [
        b"some other program's text".to_vec(),
        with(2, 1),
        with(7, 1),
        wrapper[..27].to_vec(),
        nested,
        too_long,
        backwards,
        with_text,
    ];
    for value in unknown {
        assert_eq!(pause_of(&value), Some(RecordError::Unknown), "{value:?}");
        assert!(inspect(&value, at(0)).is_err() && policy(Kind::Gcra).view(Some(&value), at(0)).is_err(), "{value:?}");
    }
    assert_eq!(pause_of(&with(1, 5)), Some(RecordError::Version(5)));
}
