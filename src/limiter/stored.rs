//! Functions on a stored value of any algorithm, with or without a pause.

use std::borrow::Cow;

use super::pause::{Pause, Stored};
use super::{
    bucket, fixed, gcra, inspection, lease, ledger, meter, record, slide, Bytes, Change, Fact, Id, Inspection, Instant,
    Kind, RecordError, SettleError, Settlement, Span,
};

/// Returns the facts in a value at `now`, under the policy that its record was written under.
///
/// # Errors
/// If `stored` is not a limiter's value.
pub fn inspect(stored: &[u8], now: Instant) -> Result<Inspection, RecordError> {
    let stored = Stored::split(stored)?;
    let rest = stored.rest(now);
    let mut inspection = match stored.inner {
        Some(record) => inspect_record(record, now)?,
        None => vec![("algorithm", Fact::Nothing), ("remaining", Fact::Nothing), ("reset_ms", Fact::count(0))],
    };
    if rest > Span::ZERO {
        inspection.iter_mut().filter(|(name, _)| *name == "remaining").for_each(|(_, fact)| *fact = Fact::count(0));
    }
    inspection.push(("paused_ms", Fact::count(rest.as_ms_ceil())));
    Ok(inspection)
}

fn inspect_record(stored: &[u8], now: Instant) -> Result<Inspection, RecordError> {
    match record::kind(stored) {
        Ok(Kind::Slide) => Ok(slide::View::of_record(stored, now)?.inspect()),
        Ok(Kind::Lease) => Ok(lease::View::of_record(stored, now)?.inspect()),
        Ok(kind) => {
            let record = meter::Record::decode_any(stored, kind)?;
            let view = meter::View::of_record(&record, now);
            let mut inspection = view.inspect();
            match kind {
                Kind::Fixed => fixed::inspect(&view, &mut inspection),
                Kind::Gcra => gcra::inspect(&record, &mut inspection),
                Kind::Bucket => bucket::inspect(&view, &mut inspection),
                Kind::Slide | Kind::Lease => {}
            }
            inspection.extend(inspection::ids_facts(view.count_ids()));
            Ok(inspection)
        }
        Err(error) => gcra::inspect_redis_cell(stored, now).ok_or(error),
    }
}

/// Settles the charge with this id to `units`, and forgets the id. If `units` is less than was charged, the key is then as if the
/// charge had taken only `units`. If `units` is more, the difference is taken now, as [`Amount::Force`](super::Amount::Force) does.
/// A lease can only be settled to 0 units, and ends then. `None`: the key does not remember the id, and stays as it is.
///
/// # Errors
/// See [`SettleError`].
pub fn settle(
    stored: &[u8],
    now: Instant,
    id: Id<'_>,
    units: u64,
    bytes: &mut Bytes,
) -> Result<Option<Settlement>, SettleError> {
    let stored = Stored::split(stored)?;
    let Some(record) = stored.inner else { return Ok(None) };
    let mut settled = settle_record(record, now, id, units, bytes);
    if let (Some(_), Ok(Some(settlement))) = (stored.pause, &mut settled) {
        settlement.change = stored.wrap(settlement.change, now, bytes);
        if stored.rest(now) > Span::ZERO {
            settlement.decision.remaining = 0;
        }
    }
    settled
}

fn settle_record(
    stored: &[u8],
    now: Instant,
    id: Id<'_>,
    units: u64,
    bytes: &mut Bytes,
) -> Result<Option<Settlement>, SettleError> {
    match record::kind(stored) {
        Ok(Kind::Slide) => Ok(slide::View::of_record(stored, now)?.settle(id, units, bytes)?),
        Ok(Kind::Lease) => lease::View::of_record(stored, now)?.settle(id, units, bytes),
        Ok(kind) => {
            let record = meter::Record::decode_any(stored, kind)?;
            Ok(meter::View::of_record(&record, now).settle(id, units, bytes)?)
        }
        // A value of redis-cell is a limiter without ids.
        Err(_) if record::tat_ns(stored).is_some() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sets the pause of a key to `length`, at most [`MAX_PAUSE`](super::MAX_PAUSE). A present pause that lasts longer stays in force;
/// but a `length` of 0 ends it. `stored` is the value of the key; `None`: the key does not exist. `deadline` is when the key
/// expires; `None`: it has no deadline. The state of the limiter ends at `deadline` at the latest, unless the pause ends later than
/// `deadline`. Returns what is left of the pause that is now in force, and the change of the value.
///
/// # Errors
/// If `stored` is not a limiter's value.
pub fn pause(
    stored: Option<&[u8]>,
    deadline: Option<Instant>,
    now: Instant,
    length: Span,
    bytes: &mut Bytes,
) -> Result<(Span, Change), RecordError> {
    let Stored { pause: present, inner } = match stored {
        Some(bytes) => Stored::split(bytes)?,
        None => Stored { pause: None, inner: None },
    };
    let state_ends = inner.map(|record| ends(record, now)).transpose()?;
    let rest = present.map_or(Span::ZERO, |pause| pause.rest(now));
    if length == Span::ZERO && rest > Span::ZERO {
        let state_ends = state_ends.map(|ends| deadline.map_or(ends, |deadline| ends.min(deadline)));
        let change = match inner.zip(state_ends) {
            Some((record, ends)) if ends > now => {
                *bytes = Bytes::default();
                bytes.extend(record);
                Change::Write { offset: 0, head: 0, expires: ends, slack: Span::ZERO }
            }
            _ => Change::Remove,
        };
        return Ok((Span::ZERO, change));
    }
    if length <= rest {
        return Ok((rest, Change::Keep));
    }
    let pause = Pause::new(now, length);
    let expires = pause.expires(inner.and(deadline).or(state_ends));
    let change = match (stored, present) {
        (Some(stored), Some(_)) => pause.replace(stored, expires, bytes),
        _ => {
            pause.wrap(inner, bytes);
            Change::Write { offset: 0, head: 0, expires, slack: Span::ZERO }
        }
    };
    Ok((length, change))
}

/// What is left of the pause of a key; zero if the key has no pause, or holds no limiter.
pub fn rest_of_pause(stored: Option<&[u8]>, now: Instant) -> Span {
    stored.and_then(|stored| Stored::split(stored).ok()).map_or(Span::ZERO, |stored| stored.rest(now))
}

/// Whether a value is that of a limiter. The value may be in a format that this version of the module does not read.
pub fn is_limiter(stored: &[u8]) -> bool {
    stored.first() == Some(&record::MAGIC) || record::tat_ns(stored).is_some()
}

/// The moment from which on a value without a pause affects no decision.
pub(super) fn ends(stored: &[u8], now: Instant) -> Result<Instant, RecordError> {
    match record::kind(stored) {
        Ok(Kind::Slide) => Ok(slide::View::of_record(stored, now)?.ends()),
        Ok(Kind::Lease) => Ok(lease::View::of_record(stored, now)?.ends()),
        Ok(kind) => Ok(meter::View::of_record(&meter::Record::decode_any(stored, kind)?, now).ends()),
        Err(error) => gcra::redis_cell_ends(stored).ok_or(error),
    }
}

/// The front of a value, which changes with each write: the whole value, or the value without its ids. `None` if the front is too
/// long to be kept.
pub fn fingerprint(stored: &[u8]) -> Option<&[u8]> {
    match Stored::split(stored) {
        Ok(Stored { pause: Some(_), inner: Some(inner) }) => {
            let front = ledger::fingerprint(inner)?;
            stored.get(..stored.len() - inner.len() + front.len())
        }
        _ => ledger::fingerprint(stored),
    }
}

/// The value that a [`fingerprint`] contains, without its ids.
pub fn without_ids(fingerprint: &[u8]) -> Cow<'_, [u8]> {
    match Stored::split(fingerprint) {
        Ok(Stored { pause: Some(_), inner: Some(inner) }) => {
            let record = ledger::without_ids(inner);
            if record.len() == inner.len() {
                return Cow::Borrowed(fingerprint);
            }
            let wrapper = fingerprint.len() - inner.len();
            Cow::Owned([fingerprint.get(..wrapper).unwrap_or_default(), record].concat())
        }
        _ => Cow::Borrowed(ledger::without_ids(fingerprint)),
    }
}
