//! What a decision does to the stored value.

use super::{Instant, Span};

/// What a decision does to the stored value. The bytes of a write are kept apart, in a [`Bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key stays as it is.
    Keep,
    /// The value becomes its own first `offset` bytes, followed by the new bytes. Except: the first `head` of the new bytes
    /// replace the beginning of the value.
    Write {
        /// How many bytes of the old value stay; 0 if there was none.
        offset: usize,
        /// How many of the new bytes replace the beginning of what stays; at most `offset`, and usually 0.
        head: usize,
        /// From this moment on the value means nothing.
        expires: Instant,
        /// How much longer the key may live, if that saves moving its deadline.
        slack: Span,
    },
    /// The key goes, since its value means nothing any more.
    Remove,
}

/// Bytes to be stored. Short ones, which are the usual case, need no allocation.
#[derive(Clone)]
pub struct Bytes {
    short: [u8; Bytes::SHORT],
    /// How many bytes of `short` are in use.
    len: usize,
    /// All the bytes, if `short` can't hold them.
    long: Option<Vec<u8>>,
}

impl Bytes {
    /// Up to this length the bytes are kept in place. No record of fixed length is longer.
    pub const SHORT: usize = 64;

    /// No bytes.
    pub const fn new() -> Self {
        Self { short: [0; Self::SHORT], len: 0, long: None }
    }

    /// No bytes, with room for so many.
    pub(super) fn with_capacity(len: usize) -> Self {
        Self { long: (len > Self::SHORT).then(|| Vec::with_capacity(len)), ..Self::new() }
    }

    /// Drops the bytes and makes room for `len` others, at most [`Self::SHORT`].
    #[inline(always)]
    pub(super) fn room(&mut self, len: usize) -> &mut [u8; Self::SHORT] {
        self.long = None;
        self.len = len;
        &mut self.short
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

impl Default for Bytes {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({:02x?})", self.as_slice())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Bytes {}

#[cfg(test)]
mod tests {
    use super::Bytes;

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
