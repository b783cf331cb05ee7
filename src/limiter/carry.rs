//! A change of algorithm on a live key: a policy reads the record of another algorithm.
//!
//! Usage is carried over in units, by the rule for a change of policy (see `meter::migrate`): with U units used under the old
//! capacity A, the new capacity B counts min(U, A, B) + max(0, U - A). The key is then as if the new algorithm had taken these
//! units at the moment of the change. A denied call writes nothing, so the record does not show that moment. So usage is computed
//! for a change at each of three moments: now, right after the record was written, and when its debt was paid. The policy takes the
//! least of the three.
//!
//! For example, `GCRA 10 10s` has taken 8 units at once, 4 seconds ago, and the policy becomes `FIXED 6 10s`. For a change now, 4
//! units are used, in a window that begins now. For a change right after the write, 6 units are used, in a window that began 4
//! seconds ago. The least is 4 units, so a call for 3 units is denied. The same call a second later finds 3 units used, and is
//! granted.

use std::borrow::Cow;

use super::pause::Stored;
use super::stored::ends;
use super::view::View;
use super::{meter, record, slide, Amount, Bytes, Change, Decision, Instant, Kind, Policy, Request, Span, Wait};

/// The value of a key, as a policy reads it.
pub struct Carried<'a> {
    value: Option<Cow<'a, [u8]>>,
}

impl<'a> Carried<'a> {
    /// The value for [`Policy::view`]. `None`: for the policy, the key is as if it did not exist.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    /// Whether the key itself holds the record of another algorithm.
    pub const fn is_of_other_algorithm(&self) -> bool {
        matches!(self.value, Some(Cow::Owned(_)))
    }

    /// Turns a change of [`Self::value`] into a change of the value that the key itself holds.
    pub fn change(&self, change: Change, bytes: &mut Bytes) -> Change {
        match &self.value {
            Some(Cow::Owned(value)) => change.whole(Some(value), bytes),
            _ => change,
        }
    }
}

impl Policy {
    /// Returns the value of a key as this policy reads it at `now`. If the policy [carries over](super::PolicyOption::CarriesOver),
    /// and the value is the record of another algorithm, the result is a record of this policy with the usage that counts. The ids
    /// of the other record are forgotten; its pause stays. Any other value is returned as it is.
    #[inline]
    pub fn carried<'a>(&self, stored: Option<&'a [u8]>, now: Instant) -> Carried<'a> {
        let other = if self.carries_over() { stored.and_then(|stored| self.carry(stored, now)) } else { None };
        let value = other.map_or(stored.map(Cow::Borrowed), |record| record.map(Cow::Owned));
        Carried { value }
    }

    const fn carries_over(&self) -> bool {
        match self {
            Self::Meter(meter) => meter.carries_over,
            Self::Slide(slide) => slide.carries_over,
            Self::Lease(_) => false,
        }
    }

    /// Carries over the record of another algorithm, with its pause. `None`: the value is not such a record. `Some(None)`: the
    /// value has no pause, and nothing of it counts under this policy.
    #[cold]
    fn carry(&self, stored: &[u8], now: Instant) -> Option<Option<Vec<u8>>> {
        let split = Stored::split(stored).ok()?;
        let source = Source::of_other(split.inner?, self.kind(), now)?;
        let [written, paid] = source.written_and_paid(now);
        let taken = [now, written, paid].map(|moment| self.taken(&source, moment.min(now), now));
        let used = |record: &Option<Bytes>| {
            self.view(record.as_ref().map(Bytes::as_slice), now).map_or((0, Span::ZERO), |view| view.used())
        };
        let least = taken.into_iter().min_by_key(|record| used(record)).flatten();
        let least = least.as_ref().map(Bytes::as_slice);
        let Some(pause) = split.pause else { return Some(least.map(Vec::from)) };
        let mut bytes = Bytes::default();
        pause.wrap(least, &mut bytes);
        Some(Some(bytes.as_slice().to_vec()))
    }

    /// The record that this policy writes if it takes at `moment` the units that were used at `moment`, as far as they count;
    /// `None` if none count.
    fn taken(&self, source: &Source<'_>, moment: Instant, now: Instant) -> Option<Bytes> {
        let (used, old, new) = (source.used_at(moment, now), source.capacity().into(), self.capacity().into());
        let units = used.min(old).min(new) + used.saturating_sub(old);
        let view = self.view(None, moment).ok()?;
        let take = |units| {
            let mut bytes = Bytes::default();
            let (_, next) = view.decide(Request::now(Amount::Force(units))).ok()?;
            matches!(view.store(&next, || 0, &mut bytes), Change::Write { .. }).then_some(bytes)
        };
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        // If a debt fits no record of this policy, the policy's capacity counts instead.
        (units > 0).then(|| take(units).or_else(|| take(self.capacity()))).flatten()
    }

    /// The decision of [`View::peek`] on the value that this policy reads at `now`; `None` in case of an error.
    fn peek_carried(&self, stored: Option<&[u8]>, request: Request<'_>, now: Instant) -> Option<Decision> {
        self.view(self.carried(stored, now).value(), now).ok()?.peek(request).ok()
    }

    /// `request` is denied `now`. Returns the first moment at which it is granted if nothing changes the key before; the result is
    /// at most a millisecond late. `latest` is a moment at which the request is granted.
    pub fn first_grant(&self, stored: Option<&[u8]>, request: Request<'_>, now: Instant, latest: Instant) -> Instant {
        self.first(stored, request, now, latest, |decision| decision.granted > 0)
    }

    /// The first moment at which the decision on `request` is as wanted, if nothing changes the key before; the result is at most a
    /// millisecond late. It is not as wanted `now`, and as wanted at `latest`.
    ///
    /// After a change of policy, the level is the lowest of several levels, and each of these only falls with time. So bisection
    /// finds the moment.
    fn first(
        &self,
        stored: Option<&[u8]>,
        request: Request<'_>,
        now: Instant,
        latest: Instant,
        is_wanted: impl Fn(Decision) -> bool,
    ) -> Instant {
        const PRECISION: Span = Span::from_us(1_000);
        let (mut too_early, mut found) = (now, latest);
        while found.since(too_early) > PRECISION {
            let middle = too_early.saturating_add(Span::from_us(found.since(too_early).as_us() / 2));
            if self.peek_carried(stored, request, middle).is_some_and(&is_wanted) {
                found = middle;
            } else {
                too_early = middle;
            }
        }
        found
    }

    /// Returns `decision`, which changes nothing, with a wait after which the same call is granted, and a reset after which no unit
    /// is in use. `stored` is the value of the key. `carried` is that value as this policy reads it, and `decision` is the decision
    /// on `carried`.
    #[inline]
    pub fn with_kept_times(
        &self,
        carried: &Carried<'_>,
        stored: Option<&[u8]>,
        request: Request<'_>,
        now: Instant,
        decision: Decision,
    ) -> Decision {
        if carried.is_of_other_algorithm() {
            self.kept_times(stored, request, now, decision)
        } else {
            decision
        }
    }

    #[cold]
    fn kept_times(&self, stored: Option<&[u8]>, request: Request<'_>, now: Instant, decision: Decision) -> Decision {
        // The next call carries the record over anew, and may find another level than `decision` expected. But once nothing of the
        // record counts any more, all units are free.
        let record_ends = stored.and_then(|stored| ends(Stored::split(stored).ok()?.inner?, now).ok());
        let kept = |span: Span, is_wanted: fn(Decision) -> bool| {
            let soon = now.saturating_add(span);
            let holds = self.peek_carried(stored, request, soon).is_some_and(is_wanted);
            let latest = if holds { soon } else { record_ends.map_or(soon, |ends| ends.max(soon)) };
            self.first(stored, request, now, latest, is_wanted).since(now)
        };
        let wait = match decision.wait {
            Wait::For(wait) if decision.granted == 0 => Wait::For(kept(wait, |decision| decision.granted > 0)),
            wait => wait,
        };
        let reset = match decision.reset {
            Span::ZERO => Span::ZERO,
            reset => kept(reset, |decision| decision.reset == Span::ZERO),
        };
        Decision { wait, reset, ..decision }
    }
}

/// A record of another algorithm.
enum Source<'a> {
    Meter(meter::Record<'a>),
    Slide { record: &'a [u8], capacity: u64 },
}

impl<'a> Source<'a> {
    /// Decodes the record of an algorithm other than `kind`; `None` if `record` is anything else, or the record of an algorithm
    /// that holds units (LEASE).
    fn of_other(record: &'a [u8], kind: Kind, now: Instant) -> Option<Self> {
        let other = record::kind(record).ok().filter(|&other| other != kind && !other.spec().holds)?;
        if other == Kind::Slide {
            let view = slide::View::of_record(record, now).ok()?;
            return Some(Self::Slide { record, capacity: view.limit() });
        }
        Some(Self::Meter(meter::Record::decode_any(record, other).ok()?))
    }

    /// How many units may be in use under the record's own policy.
    const fn capacity(&self) -> u64 {
        match self {
            Self::Meter(record) => record.meter.capacity,
            Self::Slide { capacity, .. } => *capacity,
        }
    }

    /// The units in use at `moment` under the record's own policy, rounded up.
    fn used_at(&self, moment: Instant, now: Instant) -> u128 {
        match self {
            Self::Meter(record) => record.used_units_at(moment, now),
            Self::Slide { record, .. } => slide_view(record, moment).map_or(0, |view| view.used().into()),
        }
    }

    /// When the record was written, and when its debt is paid.
    fn written_and_paid(&self, now: Instant) -> [Instant; 2] {
        match self {
            Self::Meter(record) => record.written_and_paid(now),
            Self::Slide { record, .. } => {
                let written = slide_view(record, now).and_then(|view| view.last_write()).unwrap_or(now).min(now);
                let paid = slide_view(record, written).map_or(now, |view| view.debt_paid_at());
                [written, paid]
            }
        }
    }
}

fn slide_view(record: &[u8], now: Instant) -> Option<slide::View<'_>> {
    slide::View::of_record(record, now).ok()
}

impl View<'_> {
    /// The usage, in grains or in units, and how long until nothing is used any more. Only records of one policy can be compared by
    /// this.
    fn used(&self) -> (u128, Span) {
        match self {
            Self::Meter(view) => (view.used_grains(), view.snapshot().reset),
            Self::Slide(view) => (view.used().into(), view.snapshot().reset),
            Self::Closed | Self::Lease(_) | Self::Paused(_) => (0, Span::ZERO),
        }
    }
}
