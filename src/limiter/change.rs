//! The change that a decision makes to the stored value.

use std::fmt;

use super::{Instant, Span};

/// The change that a decision makes to the stored value. The bytes of a [`Self::Write`] are returned separately, in a
/// [`Bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key stays as it is.
    Keep,
    /// The new bytes are split at `head`. The first `head` of them overwrite the beginning of the value. The others are
    /// written at `offset`, and the value ends after them.
    Write {
        /// The length of the old value's part that is kept; 0 if there was no value.
        offset: usize,
        /// How many of the new bytes overwrite the beginning of the value; at most `offset`, and usually 0.
        head: usize,
        /// From this moment on the value affects no decision.
        expires: Instant,
        /// How long after `expires` the key's deadline may be, if it then need not be moved.
        slack: Span,
    },
    /// Patches change the value at several places: see [`Bytes::patches`].
    Patch {
        /// The new length of the value, at least the old one. Bytes beyond the old length are zero until they are patched.
        len: usize,
        /// From this moment on the value affects no decision.
        expires: Instant,
        /// As in [`Self::Write`].
        slack: Span,
    },
    /// The key is deleted, because its value affects no decision any more.
    Remove,
}

impl Change {
    /// Carries the change out on a value in memory, as the server does on the value of the key. `None` is a key that does
    /// not exist. `bytes` are those that were returned with the change, and `value` is the one that the decision was made
    /// on.
    ///
    /// # Panics
    /// May panic if the change was decided on another value.
    pub fn apply(&self, bytes: &Bytes, value: &mut Option<Vec<u8>>) {
        match *self {
            Self::Keep => {}
            Self::Write { offset, head, .. } => {
                let value = value.get_or_insert_default();
                debug_assert!(head <= offset && offset <= value.len(), "{self:?} of a value of {} bytes", value.len());
                let (head, tail) = bytes.as_slice().split_at(head);
                value.truncate(offset);
                value[..head.len()].copy_from_slice(head);
                value.extend_from_slice(tail);
            }
            Self::Patch { len, .. } => {
                let value = value.get_or_insert_default();
                debug_assert!(value.len() <= len, "{self:?} of a value of {} bytes", value.len());
                value.resize(len, 0);
                for (offset, patch) in bytes.patches() {
                    value[offset..offset + patch.len()].copy_from_slice(patch);
                }
            }
            Self::Remove => *value = None,
        }
    }

    /// The change that replaces the whole value, instead of a part of it. `value` is the one that this change was decided on, and `bytes`
    /// are those that were returned with it.
    pub(super) fn whole(self, value: Option<&[u8]>, bytes: &mut Bytes) -> Self {
        let (expires, slack) = match self {
            Self::Keep | Self::Remove | Self::Write { offset: 0, .. } => return self,
            Self::Write { expires, slack, .. } | Self::Patch { expires, slack, .. } => (expires, slack),
        };
        let mut value = value.map(Vec::from);
        self.apply(bytes, &mut value);
        *bytes = Bytes::from(value.unwrap_or_default());
        Self::Write { offset: 0, head: 0, expires, slack }
    }

    /// The moment from which on the new value affects no decision; `None` if no value is written.
    pub const fn expires(&self) -> Option<Instant> {
        match *self {
            Self::Write { expires, .. } | Self::Patch { expires, .. } => Some(expires),
            Self::Keep | Self::Remove => None,
        }
    }
}

/// Bytes to be stored. Up to [`Bytes::SHORT`] bytes, the usual case, need no allocation.
pub struct Bytes {
    short: [u8; Bytes::SHORT],
    /// How many bytes of `short` are in use.
    len: usize,
    /// All the bytes, if `short` can't hold them.
    long: Option<Vec<u8>>,
    /// The patches that the bytes consist of: where each belongs in the value, and where it begins in the bytes.
    patches: Option<Box<Patches>>,
}

/// Where each patch belongs in the value, and where it begins in the bytes. Few changes have any, so [`Bytes`] boxes them.
#[derive(Default)]
struct Patches(Vec<(usize, usize)>);

impl Bytes {
    /// Up to this length the bytes need no allocation. No record of fixed length is longer.
    pub const SHORT: usize = 64;

    /// No bytes, with room for `len` bytes.
    pub(super) fn with_capacity(len: usize) -> Self {
        Self { long: (len > Self::SHORT).then(|| Vec::with_capacity(len)), ..Self::default() }
    }

    /// Replaces the bytes by `len` others, at most [`Self::SHORT`], which the caller writes to the front of the returned
    /// array.
    #[inline(always)]
    pub(super) fn room(&mut self, len: usize) -> &mut [u8; Self::SHORT] {
        self.long = None;
        self.len = len;
        &mut self.short
    }

    /// Begins a patch, which belongs at `offset` in the value. [`Self::extend`] appends to it.
    pub(super) fn start_patch(&mut self, offset: usize) {
        let start = self.as_slice().len();
        self.patches.get_or_insert_default().0.push((offset, start));
    }

    /// The patches of [`Change::Patch`]: where each belongs in the value, and its bytes. Offsets ascend, and patches do not overlap.
    pub fn patches(&self) -> impl Iterator<Item = (usize, &[u8])> + Clone {
        let patches = self.patches.as_ref().map_or(&[][..], |patches| &patches.0);
        let ends = patches.iter().skip(1).map(|&(_, start)| start).chain([self.as_slice().len()]);
        patches.iter().zip(ends).map(|(&(offset, start), end)| (offset, &self.as_slice()[start..end]))
    }

    /// Inserts `front` before the bytes.
    pub(super) fn prepend(&mut self, front: &[u8]) {
        let mut all = Self::with_capacity(front.len() + self.as_slice().len());
        all.extend(front);
        all.extend(self.as_slice());
        all.patches = self.patches.take();
        all.patches.iter_mut().flat_map(|patches| &mut patches.0).for_each(|(_, start)| *start += front.len());
        *self = all;
    }

    /// Moves all patches towards the end of the value, by `by` bytes. If `first` is not empty, it becomes a patch at the beginning.
    pub(super) fn move_patches(&mut self, by: usize, first: &[u8]) {
        self.patches.iter_mut().flat_map(|patches| &mut patches.0).for_each(|(offset, _)| *offset += by);
        if !first.is_empty() {
            self.prepend(first);
            self.patches.get_or_insert_default().0.insert(0, (0, 0));
        }
    }

    /// Appends zeros up to a length of `len`.
    pub(super) fn fill(&mut self, len: usize) {
        while self.as_slice().len() < len {
            let missing = len - self.as_slice().len();
            self.extend(&[0; 64][..missing.min(64)]);
        }
    }

    /// Appends `more`.
    pub(super) fn extend(&mut self, more: &[u8]) {
        match (&mut self.long, self.short.get_mut(self.len..self.len + more.len())) {
            (Some(bytes), _) => bytes.extend_from_slice(more),
            (None, Some(room)) => {
                room.copy_from_slice(more);
                self.len += more.len();
            }
            (None, None) => self.long = Some([&self.short[..self.len], more].concat()),
        }
    }

    /// The bytes, to be changed in place.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.long {
            Some(bytes) => bytes,
            None => &mut self.short[..self.len],
        }
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.long {
            Some(bytes) => bytes,
            None => &self.short[..self.len],
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patches: Vec<_> = self.patches().collect();
        f.debug_struct("Bytes").field("all", &self.as_slice()).field("patches", &patches).finish()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(long: Vec<u8>) -> Self {
        Self { long: Some(long), ..Self::default() }
    }
}

/// No bytes.
impl Default for Bytes {
    #[inline]
    fn default() -> Self {
        Self { short: [0; Self::SHORT], len: 0, long: None, patches: None }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, Change, Instant, Span};

    #[test]
    fn a_change_is_carried_out_on_a_value() {
        let (expires, slack) = (Instant::from_us(7), Span::ZERO);
        let with = |parts: &[&[u8]]| {
            let mut bytes = Bytes::default();
            parts.iter().for_each(|part| bytes.extend(part));
            bytes
        };
        let write = |offset, head| Change::Write { offset, head, expires, slack };
        let mut patches = Bytes::default();
        for (offset, patch) in [(1, &b"P"[..]), (6, b"QR")] {
            patches.start_patch(offset);
            patches.extend(patch);
        }
        let mut value = None;
        for (change, bytes, expected) in [
            (Change::Keep, with(&[b"unused"]), None),
            (write(0, 0), with(&[b"abcdef"]), Some(&b"abcdef"[..])),
            (Change::Keep, Bytes::default(), Some(b"abcdef")),
            // Appends, then appends after a truncation, and then changes the front, too.
            (write(6, 0), with(&[b"gh"]), Some(b"abcdefgh")),
            (write(4, 0), with(&[b"x"]), Some(b"abcdx")),
            (write(5, 2), with(&[b"AB", b"yz"]), Some(b"ABcdxyz")),
            (Change::Patch { len: 9, expires, slack }, patches, Some(b"APcdxyQR\0")),
            (write(3, 0), Bytes::default(), Some(b"APc")),
            (write(0, 0), with(&[b"new"]), Some(b"new")),
            (Change::Remove, Bytes::default(), None),
            (Change::Remove, Bytes::default(), None),
        ] {
            change.apply(&bytes, &mut value);
            assert_eq!(value.as_deref(), expected, "{change:?} {bytes:?}");
            let writes = matches!(change, Change::Write { .. } | Change::Patch { .. });
            assert_eq!(change.expires(), writes.then_some(expires));
        }
    }

    #[test]
    fn bytes_that_outgrow_their_place_stay_in_order() {
        for room in [0, Bytes::SHORT, Bytes::SHORT + 1, 1_000] {
            let (mut bytes, mut expected) = (Bytes::with_capacity(room), Vec::new());
            for part in 0..40_u8 {
                bytes.extend(&[part; 5]);
                expected.extend([part; 5]);
                assert_eq!(bytes.as_slice(), expected);
                assert_eq!(bytes.as_mut_slice(), expected);
            }
        }
    }
}
