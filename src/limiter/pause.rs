//! A pause: until it ends, its key grants nothing.
//!
//! A pause is no field of an algorithm. It is a wrapper around the value of the key, whatever that value is:
//!
//! | bytes | what it is |
//! |---|---|
//! | 8 | magic byte, version [`PAUSED`], 0 |
//! | 8 | when the pause was set, microseconds since the Unix epoch |
//! | 8 | when it ends |
//! | | the value without the pause: a record, a number of redis-cell, or [`NOTHING`] if the key had no value |
//!
//! So a value without a pause has no byte for it, and only [`Policy::view`](super::Policy::view) looks for the wrapper. The first write
//! after the end of the pause removes it.

use super::record::{MAGIC, PAUSED};
use super::{Bytes, Change, Instant, RecordError, Span};

/// The longest pause: 31 days.
pub const MAX_PAUSE: Span = Span::from_us(31 * 86_400_000_000);

/// The length of the wrapper's fields, in bytes.
const WRAPPER: usize = 24;
/// What a wrapper contains if the key has no other value. With it, the value has the length of the shortest record.
const NOTHING: [u8; 4] = [0; 4];

/// The pause of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    set: Instant,
    ends: Instant,
}

impl Pause {
    /// A pause that begins `now`.
    pub(super) const fn new(now: Instant, length: Span) -> Self {
        Self { set: now, ends: now.saturating_add(length) }
    }

    /// What is left of the pause at `now`. If the clock has stepped back, this is at most the length of the pause.
    pub(super) fn rest(self, now: Instant) -> Span {
        self.ends.since(now).min(self.ends.since(self.set))
    }

    /// The pause that a write at `now` stores: it ends when [`Self::rest`] says, also if the clock has stepped back.
    fn adjusted(self, now: Instant) -> Self {
        if now < self.set {
            Self::new(now, self.rest(now))
        } else {
            self
        }
    }

    fn encode(self) -> [u8; WRAPPER] {
        let mut bytes = [0; WRAPPER];
        bytes[..2].copy_from_slice(&[MAGIC, PAUSED]);
        bytes[8..16].copy_from_slice(&self.set.as_us().to_le_bytes());
        bytes[16..].copy_from_slice(&self.ends.as_us().to_le_bytes());
        bytes
    }

    /// Turns the bytes of a value, of which `None` is that of a missing key, into those with this pause.
    pub(super) fn wrap(self, value: Option<&[u8]>, bytes: &mut Bytes) {
        *bytes = Bytes::default();
        bytes.extend(&self.encode());
        bytes.extend(value.unwrap_or(&NOTHING));
    }

    /// The change of a value with another pause to one with this pause.
    pub(super) fn replace(self, stored: &[u8], expires: Instant, bytes: &mut Bytes) -> Change {
        *bytes = Bytes::default();
        bytes.extend(&self.encode());
        Change::Write { offset: stored.len(), head: WRAPPER, expires, slack: Span::ZERO }
    }

    /// When a value with this pause affects no decision any more, if the one inside affects none from `state_ends` on.
    pub(super) fn expires(self, state_ends: Option<Instant>) -> Instant {
        state_ends.map_or(self.ends, |ends| ends.max(self.ends))
    }
}

/// A stored value, and its pause.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) pause: Option<Pause>,
    /// The value without the pause; `None` if the key has no other value.
    pub(super) inner: Option<&'a [u8]>,
}

impl<'a> Stored<'a> {
    /// Whether the value has a pause, perhaps one that is over.
    #[inline(always)]
    pub(super) fn is_wrapped(stored: &[u8]) -> bool {
        matches!(*stored, [MAGIC, PAUSED, ..])
    }

    /// Separates a value from its pause.
    ///
    /// # Errors
    /// If the value has a wrapper that the module did not write. Within a wrapper there is never another one.
    pub(super) fn split(stored: &'a [u8]) -> Result<Self, RecordError> {
        if !Self::is_wrapped(stored) {
            return Ok(Self { pause: None, inner: Some(stored) });
        }
        let (header, inner) = stored.split_first_chunk::<WRAPPER>().ok_or(RecordError::Unknown)?;
        let [_, set, ends] = *header.as_chunks::<8>().0 else { return Err(RecordError::Unknown) };
        let [set, ends] = [set, ends].map(|us| Instant::from_us(i64::from_le_bytes(us)));
        let valid = header[2..8] == [0; 6]
            && set < ends
            && ends.since(set) <= MAX_PAUSE
            && inner.len() >= NOTHING.len()
            && !Self::is_wrapped(inner);
        let inner = Some(inner).filter(|inner| **inner != NOTHING);
        valid.then_some(Self { pause: Some(Pause { set, ends }), inner }).ok_or(RecordError::Unknown)
    }

    /// What is left of the pause.
    pub(super) fn rest(&self, now: Instant) -> Span {
        self.pause.map_or(Span::ZERO, |pause| pause.rest(now))
    }

    /// Turns a change of the value without the pause into one of the whole value.
    pub(super) fn wrap(&self, change: Change, now: Instant, bytes: &mut Bytes) -> Change {
        match self.pause {
            None => change,
            // The pause is over, so the value is stored without it.
            Some(pause) if pause.rest(now) == Span::ZERO => change.whole(self.inner, bytes),
            Some(pause) => wrap(pause, change, now, bytes),
        }
    }
}

/// Turns a change of the value without its pause, which is in force, into one of the whole value.
fn wrap(pause: Pause, change: Change, now: Instant, bytes: &mut Bytes) -> Change {
    let adjusted = pause.adjusted(now);
    // The deadline, of `expires` and the slack, is at least the end of the pause.
    let until = |expires: Instant, slack: Span| {
        let last = expires.saturating_add(slack);
        let expires = adjusted.expires(Some(expires));
        (expires, last.since(expires))
    };
    match change {
        Change::Keep => Change::Keep,
        Change::Remove => {
            adjusted.wrap(None, bytes);
            Change::Write { offset: 0, head: 0, expires: adjusted.ends, slack: Span::ZERO }
        }
        Change::Write { offset, head, expires, slack } => {
            let (expires, slack) = until(expires, slack);
            if offset > 0 && head == 0 && adjusted == pause {
                return Change::Write { offset: offset + WRAPPER, head, expires, slack };
            }
            bytes.prepend(&adjusted.encode());
            let (offset, head) = if offset == 0 { (0, 0) } else { (offset + WRAPPER, head + WRAPPER) };
            Change::Write { offset, head, expires, slack }
        }
        Change::Patch { len, expires, slack } => {
            let (expires, slack) = until(expires, slack);
            bytes.move_patches(WRAPPER, &adjusted.encode()[..if adjusted == pause { 0 } else { WRAPPER }]);
            Change::Patch { len: len + WRAPPER, expires, slack }
        }
    }
}
