//! The line of each key: its clients in the order of arrival, and what is known about the key.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::key::{ask_now, due, Ask, KeyState};
use super::waiter::{Claim, Waiter};
use crate::limiter::{fingerprint, without_ids, Amount, Bytes, Change, Decision, Instant, Policy, Span};

/// A client may be charged as of a moment that is at most this long ago. Timers are late by a millisecond or two, and units
/// that flow in meanwhile must not be lost. But after a longer standstill of the server, the units of the whole standstill must
/// not all be granted at once.
const MAX_LATENESS: Span = Span::from_us(100_000);

/// The clients that wait for one key. The line exists as long as a waiting call has a claim for the key, also if no client stands
/// in it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) db: i32,
    pub(super) key: Arc<[u8]>,
    /// The numbers of the clients, which are in the order of arrival.
    members: BTreeSet<u64>,
    /// The ids of calls, and the numbers of the clients that make them.
    ids: BTreeSet<(Arc<[u8]>, u64)>,
    /// The numbers of the clients whose call became a retry: another client's call with the same id has been granted units. They
    /// are served before all others.
    retries: BTreeSet<u64>,
    /// How many waiting calls have a claim for the key, whether or not their clients stand in the line.
    calls: usize,
    /// How many units these calls take.
    units: u64,
    /// The wake time: when to serve the line next.
    pub(super) wake: Instant,
    /// When the units of the first client are due, as last computed.
    pub(super) due: Instant,
    /// The state of the key at [`Self::as_of`]; `None`: not known, or too long to be cached.
    cached: Option<CachedState>,
    /// No client is charged as of an earlier moment.
    as_of: Instant,
}

#[derive(Debug)]
struct CachedState {
    /// The [fingerprint] of the value; `None`: the key did not exist.
    value: Option<Box<[u8]>>,
    expires: Option<Instant>,
}

impl CachedState {
    fn of<K: KeyState>(key: &K, policy: &Policy) -> Option<Self> {
        let value = match key.stored(policy).ok()? {
            Some(bytes) => Some(fingerprint(bytes)?.into()),
            None => None,
        };
        Some(Self { value, expires: key.expires() })
    }
}

/// What a line knows of its key.
enum Known<'v> {
    /// The key may have changed since its state was noted.
    Nothing,
    /// The key has not changed since [`Line::as_of`], except that it may have expired.
    Unchanged {
        /// The value that the key had then; `None`: the key did not exist.
        value: Option<Cow<'v, [u8]>>,
    },
}

/// Returns `found`, which should never be `None`: if any part of the queues holds the number of a client, this client waits; and
/// each key of a waiting call has a line.
#[inline(always)]
#[track_caller]
pub(super) fn present<T>(found: Option<T>) -> Option<T> {
    debug_assert!(found.is_some(), "the queues have lost a client or a line");
    found
}

impl Line {
    /// An empty line, which is not served.
    pub(super) fn new(db: i32, key: Arc<[u8]>, now: Instant) -> Self {
        let (members, ids, retries) = Default::default();
        Self { db, key, members, ids, retries, calls: 0, units: 0, wake: Instant::MAX, due: now, cached: None, as_of: now }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// What is wrong with the line; `None` if nothing is. `counted` is how many waiting calls have a claim for the key, and how
    /// many units these calls take. `id` gets the number of a client. If the client's call has a claim for the key, `id` returns
    /// the id of the call, and the number.
    pub(super) fn fault(
        &self,
        counted: (usize, u64),
        id: impl Fn(&u64) -> Option<(Option<Arc<[u8]>>, u64)>,
    ) -> Option<&'static str> {
        let members: Vec<_> = self.members.iter().filter_map(id).collect();
        let ids: BTreeSet<_> = members.iter().filter_map(|(id, number)| Some((id.clone()?, *number))).collect();
        if (self.calls, self.units) != counted {
            Some("counts other calls or units than there are")
        } else if members.len() != self.members.len() {
            Some("holds a client without a call on its key")
        } else if self.ids != ids {
            Some("holds other ids than its clients")
        } else if !self.retries.iter().all(|number| ids.iter().any(|(_, member)| member == number)) {
            Some("takes a call for a retry that has no id or is in another line")
        } else {
            None
        }
    }

    /// The number of the first client.
    pub(super) fn first(&self) -> Option<u64> {
        self.members.first().copied()
    }

    /// The numbers of the clients, in the order of arrival.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.members.iter().copied().collect()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.members.contains(&number)
    }

    /// Whether no client in the line is older than the client with this number. That client itself need not stand in the line.
    pub(super) fn is_first(&self, number: u64) -> bool {
        self.members.first().is_none_or(|&first| first >= number)
    }

    /// The client to serve next. Retries take nothing, so they need not wait for their turn.
    pub(super) fn next(&self) -> Option<u64> {
        self.retries.first().or_else(|| self.members.first()).copied()
    }

    /// Lets a client stand in the line, at its place by arrival.
    pub(super) fn insert(&mut self, number: u64, id: Option<&Arc<[u8]>>) {
        self.members.insert(number);
        self.ids.extend(id.map(|id| (id.clone(), number)));
    }

    fn remove(&mut self, number: u64, id: Option<&Arc<[u8]>>) {
        self.members.remove(&number);
        self.retries.remove(&number);
        if let Some(id) = id {
            self.ids.remove(&(id.clone(), number));
        }
    }

    /// A call with this id has just been granted units: marks the other calls with this id as retries. Returns whether a call was
    /// marked.
    pub(super) fn mark_retries(&mut self, id: &Arc<[u8]>) -> bool {
        let same = (id.clone(), 0)..=(id.clone(), u64::MAX);
        let before = self.retries.len();
        self.retries.extend(self.ids.range(same).map(|&(_, number)| number));
        self.retries.len() > before
    }

    /// The id of a client's call holds nothing any more: the call is no retry now, so the client waits for its turn again. Returns
    /// false if the call was no retry before.
    pub(super) fn unmark_retry(&mut self, number: u64) -> bool {
        self.retries.remove(&number)
    }

    /// About how long a client waits for the key. Without the other waiting calls, the client would wait for `need`. But the other
    /// calls take units, too, and in each period at most `limit` units fall free. Leases usually end earlier than this estimate
    /// assumes.
    pub(super) fn wait_among_others(&self, policy: &Policy, need: Span) -> Span {
        let us = u128::from(self.units) * u128::from(policy.period().as_us()) / u128::from(policy.limit().max(1));
        Span::from_us(need.as_us().saturating_add(u64::try_from(us).unwrap_or(u64::MAX)))
    }

    /// Notes the state of the key at `now`. But if the state has been noted before, and the key has not changed since, the earlier
    /// note stays.
    pub(super) fn note<K: KeyState>(&mut self, key: &K, policy: &Policy, now: Instant) {
        let known = |stored| matches!(self.known(stored, policy, now), Known::Unchanged { .. });
        if !key.stored(policy).is_ok_and(known) {
            self.cached = CachedState::of(key, policy);
            self.as_of = now;
        }
    }

    /// Forgets the state of the key, because the key has changed. The value does not always show a change: a record can be written,
    /// and then expire.
    pub(super) fn forget(&mut self) {
        self.cached = None;
    }

    /// Forgets the state of the key if the deadline in this state lies ahead. If the deadline has passed, perhaps the key has only
    /// expired: [`Self::known`] takes account of this.
    pub(super) fn forget_unless_expired(&mut self, now: Instant) {
        self.cached.take_if(|cached| cached.expires.is_some_and(|expires| now < expires));
    }

    /// Notes the answer that the key gave when it was asked about the first client.
    pub(super) fn note_asked<K: KeyState>(&mut self, key: &K, policy: &Policy, now: Instant, asked: Ask) {
        if let Ask::Wait { due, known } = asked {
            self.due = due;
            if !known {
                self.cached = CachedState::of(key, policy);
                self.as_of = now;
            }
        }
    }

    /// Asks the key whether it grants the call of a client before which no other client stands in the line. The client is not
    /// charged as of a moment before `least`.
    pub(super) fn ask<C, K: KeyState>(
        &self,
        waiter: &Waiter<C>,
        claim: &Claim,
        key: &K,
        least: Instant,
        now: Instant,
    ) -> Result<Ask, K::Error> {
        let policy = &claim.policy;
        let known = key.with_value(policy, |stored| {
            let request = waiter.request(claim);
            let held = match request.id {
                Some(id) => policy.view(policy.carried(stored, now).value(), now)?.held(id).is_some(),
                None => false,
            };
            let Known::Unchanged { value } = self.known(stored, policy, now) else { return Ok(None) };
            let earliest = self.as_of.max(waiter.joined).max(least).max(now.saturating_sub(MAX_LATENESS)).min(now);
            // If the record was written under another policy, it does not show exactly when the units were due.
            let carried = policy.carried(value.as_deref(), earliest);
            let is_exact = !held && !carried.is_of_other_algorithm();
            let view = policy.view(carried.value(), earliest).ok().filter(|view| is_exact && view.matches_policy());
            let Some(view) = view else { return Ok(None) };
            let (decision, _) = view.decide(request)?;
            let due = due(&decision, earliest);
            if due > now {
                return Ok((value.is_some() == stored.is_some()).then_some(Ask::Wait { due, known: true }));
            }
            let at = if policy.charges_when_due() { due } else { now };
            let (decision, _) = policy.view(value.as_deref(), at)?.decide(request)?;
            Ok((decision.granted > 0 && !decision.retried).then_some(Ask::Free(Some(due))))
        })?;
        known.map_or_else(|| ask_now(waiter, claim, key, now), Ok)
    }

    /// What the line knows of a key that has the value `stored` now.
    fn known<'v>(&'v self, stored: Option<&'v [u8]>, policy: &Policy, now: Instant) -> Known<'v> {
        let Some(cached) = &self.cached else { return Known::Nothing };
        match (stored, cached.value.as_deref()) {
            (Some(bytes), Some(value)) if fingerprint(bytes) == Some(value) => {
                Known::Unchanged { value: Some(Cow::Borrowed(bytes)) }
            }
            (None, None) => Known::Unchanged { value: None },
            // When the key expired, its ids were forgotten.
            (None, Some(value)) if policy.charges_when_due() && cached.expires.is_some_and(|expires| expires <= now) => {
                Known::Unchanged { value: Some(without_ids(value)) }
            }
            _ => Known::Nothing,
        }
    }
}

/// Charges a client as of `at`, which is `now` or earlier. If `at` is earlier, [`Line::ask`] has found that the line knows the
/// state of the key since `at`. `line` is the line of the key.
pub(super) fn charge<C, K: KeyState>(
    line: Option<&mut Line>,
    waiter: &Waiter<C>,
    claim: &Claim,
    key: &mut K,
    at: Instant,
    now: Instant,
) -> Result<Decision, K::Error> {
    let mut bytes = Bytes::default();
    let (decision, change) = key.with_value(&claim.policy, |stored| {
        let value = match line.as_ref().filter(|_| at < now).map(|line| line.known(stored, &claim.policy, now)) {
            Some(Known::Unchanged { value }) => value,
            _ => stored.map(Cow::Borrowed),
        };
        let carried = claim.policy.carried(value.as_deref(), at);
        let view = claim.policy.view(carried.value(), at)?;
        let (decision, next) = view.decide(waiter.request(claim))?;
        let change = view.store(&next, K::random_seed, &mut bytes);
        Ok((decision, carried.change(change, &mut bytes)))
    })?;
    key.commit(&change, &bytes, now)?;
    if let Some(line) = line.filter(|_| change != Change::Keep) {
        line.cached = CachedState::of(key, &claim.policy);
        line.as_of = at;
    }
    // In `decision`, `reset` counts from `at`, but the answer is sent at `now`.
    Ok(Decision { reset: decision.reset.saturating_sub(now.since(at)), ..decision })
}

/// The fewest units that a call for this amount is granted.
pub(super) const fn least(amount: Amount) -> u64 {
    match amount {
        Amount::Cost(units) => units,
        _ => 1,
    }
}

/// Identifies a line.
pub(super) type LineId = u64;

/// The lines of all keys that clients wait for.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) lines: HashMap<LineId, Line>,
    /// The id of each key's line, by database and key.
    pub(super) ids: BTreeMap<i32, HashMap<Arc<[u8]>, LineId>>,
    /// The wake time of each line.
    pub(super) agenda: BTreeSet<(Instant, LineId)>,
    pub(super) next_id: LineId,
}

impl Lines {
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn id(&self, db: i32, key: &[u8]) -> Option<LineId> {
        self.ids.get(&db)?.get(key).copied()
    }

    pub(super) fn get(&self, id: LineId) -> Option<&Line> {
        self.lines.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LineId) -> Option<&mut Line> {
        self.lines.get_mut(&id)
    }

    /// The line of a key.
    pub(super) fn of_key(&self, db: i32, key: &[u8]) -> Option<&Line> {
        self.get(self.id(db, key)?)
    }

    /// The line of a key.
    pub(super) fn of_key_mut(&mut self, db: i32, key: &[u8]) -> Option<&mut Line> {
        self.get_mut(self.id(db, key)?)
    }

    /// All lines in which clients stand.
    pub(super) fn with_clients(&self) -> impl Iterator<Item = &Line> {
        self.lines.values().filter(|line| !line.is_empty())
    }

    /// Counts a claim of a call that begins to wait.
    pub(super) fn begin<C>(&mut self, waiter: &Waiter<C>, claim: &Claim) {
        let id = self.id(waiter.db, &claim.key).unwrap_or_else(|| {
            let id = self.next_id;
            self.next_id += 1;
            self.ids.entry(waiter.db).or_default().insert(claim.key.clone(), id);
            let line = Line::new(waiter.db, claim.key.clone(), waiter.joined);
            self.agenda.insert((line.wake, id));
            self.lines.insert(id, line);
            id
        });
        if let Some(line) = self.lines.get_mut(&id) {
            line.calls += 1;
            line.units = line.units.saturating_add(least(claim.amount));
        }
    }

    /// Removes a call that has ended from the line of a claim's key. If its client was the first, the line is served now.
    pub(super) fn end<C>(&mut self, number: u64, waiter: &Waiter<C>, claim: &Claim, now: Instant) {
        let Some(id) = present(self.id(waiter.db, &claim.key)) else { return };
        let Some(line) = present(self.lines.get_mut(&id)) else { return };
        line.calls = line.calls.saturating_sub(1);
        line.units = line.units.saturating_sub(least(claim.amount));
        let was_first = line.contains(number) && line.is_first(number);
        line.remove(number, waiter.id.as_ref());
        if line.calls == 0 {
            self.drop_line(id);
        } else if line.is_empty() {
            self.wake_at(id, Instant::MAX);
        } else if was_first {
            self.wake_by(id, now);
        }
    }

    fn drop_line(&mut self, id: LineId) {
        let Some(line) = present(self.lines.remove(&id)) else { return };
        self.agenda.remove(&(line.wake, id));
        if let Some(keys) = self.ids.get_mut(&line.db) {
            keys.remove(&line.key);
            if keys.is_empty() {
                self.ids.remove(&line.db);
            }
        }
    }

    /// The line to serve next, and its wake time.
    pub(super) fn next_wake(&self) -> Option<(Instant, LineId)> {
        self.agenda.first().copied()
    }

    /// Sets the wake time of a key's line to `wake`, unless the wake time is earlier already, or no client stands in the line.
    pub(super) fn wake(&mut self, db: i32, key: &[u8], wake: Instant) {
        if let Some(id) = self.id(db, key) {
            self.wake_by(id, wake);
        }
    }

    fn wake_by(&mut self, id: LineId, wake: Instant) {
        if self.lines.get(&id).is_some_and(|line| wake < line.wake && !line.is_empty()) {
            self.wake_at(id, wake);
        }
    }

    /// Sets the line's wake time.
    pub(super) fn wake_at(&mut self, id: LineId, wake: Instant) {
        if let Some(line) = self.lines.get_mut(&id) {
            self.agenda.remove(&(line.wake, id));
            self.agenda.insert((wake, id));
            line.wake = wake;
        }
    }

    /// Changes the wake times of all lines in which clients stand.
    pub(super) fn wake_all(&mut self, change: impl Fn(Instant) -> Instant) {
        self.lines.values_mut().filter(|line| !line.is_empty()).for_each(|line| line.wake = change(line.wake));
        self.agenda = self.lines.iter().map(|(&id, line)| (line.wake, id)).collect();
    }
}
