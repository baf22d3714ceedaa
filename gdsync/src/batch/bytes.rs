//! Writes of bytes in stream order: cut into pieces, each of which is copied or cut into words.

use crate::batch::Keyed;
use crate::memop::{Location, MemOpCaps, MemoryKind, Staged, StreamError, StreamMemory};
use crate::memory::OutOfBounds;

/// A piece in host memory stays within a page: devices map pages one by one.
const PAGE: u64 = 4096;
/// Most words of a piece that is not copied. On an H200, a word takes 0.63 µs and a copy of 8 bytes to 4 KiB about
/// 2.5 µs; a copy is also a separate submission.
const MOST_WORDS: usize = 8;

/// Why a write of bytes is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// It is too long.
    #[error("a write of {given} bytes is longer than the {limit} that one takes: split it")]
    TooLong {
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// It exceeds its memory.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
}

/// Bytes to write into memory, in stream order: [`crate::Batch::write_memory`]. It holds a copy of the bytes, and
/// can be added to any number of batches.
#[derive(Clone, Debug)]
pub struct MemoryWrite {
    location: Location,
    bytes: Vec<u8>,
}

impl MemoryWrite {
    /// Most bytes of one write: 4 KiB.
    pub const MAX: usize = 4096;

    /// Makes a write of bytes to an offset of pinned memory or GPU memory. Neither the offset nor the length needs
    /// any alignment. The pages of pinned memory are registered with the GPUs that have streams now, which takes
    /// most of a millisecond for the first write there, so that the first post does not.
    ///
    /// # Errors
    /// [`WriteError::TooLong`](crate::batch::WriteError::TooLong); [`OutOfBounds`](crate::memory::OutOfBounds).
    pub fn new(memory: &impl StreamMemory, offset: usize, bytes: &[u8]) -> Result<Self, WriteError> {
        let (location, given) = (memory.location(), bytes.len());
        if given > Self::MAX {
            return Err(WriteError::TooLong { given, limit: Self::MAX });
        }
        let end = offset.saturating_add(given);
        if end > location.len() {
            let (start, end, len) = (offset as u64, end as u64, location.len() as u64);
            return Err(OutOfBounds { start, end, len }.into());
        }
        let location = location.at(offset);
        location.expose(given);
        Ok(MemoryWrite { location, bytes: bytes.to_vec() })
    }

    pub(super) fn pieces(self) -> impl Iterator<Item = Bytes> {
        let MemoryWrite { location, bytes } = self;
        let first = match location.kind() {
            MemoryKind::Host => (PAGE - location.address() % PAGE) as usize,
            MemoryKind::Gpu => Self::MAX,
        };
        let cut = first.min(bytes.len());
        [0..cut, cut..bytes.len()].into_iter().filter(|range| !range.is_empty()).map(move |range| Bytes {
            location: location.at(range.start),
            content: bytes[range].into(),
            staged: None,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Bytes {
    pub(crate) location: Location,
    pub(crate) content: Box<[u8]>,
    /// The backend's copy of the content, once the piece is submitted.
    staged: Staged,
}

/// A word of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Short(u32),
    Long(u64),
}

impl Word {
    pub(crate) fn len(self) -> usize {
        match self {
            Word::Short(_) => 4,
            Word::Long(_) => 8,
        }
    }
}

/// The words of a piece, in order: 64-bit ones wherever they are aligned.
#[derive(Debug)]
pub(crate) struct Words<'a> {
    address: u64,
    rest: &'a [u8],
}

impl Iterator for Words<'_> {
    type Item = Word;

    fn next(&mut self) -> Option<Word> {
        let word = match self.rest.first_chunk() {
            Some(long) if self.address.is_multiple_of(8) => Word::Long(u64::from_ne_bytes(*long)),
            _ => Word::Short(u32::from_ne_bytes(*self.rest.first_chunk()?)),
        };
        self.address += word.len() as u64;
        self.rest = &self.rest[word.len()..];
        Some(word)
    }
}

impl Bytes {
    /// Keeps the backend's copy alive as long as the piece.
    pub(crate) fn keep(&mut self, staged: Staged) {
        self.staged = staged;
    }

    /// Returns the number of its words; `None` if the stream copies it. No stream writes less than 32 bits at a
    /// time, so a piece that does not consist of whole words is copied, too.
    #[inline]
    pub(crate) fn word_count(&self, caps: &MemOpCaps) -> Option<usize> {
        let (address, len) = (self.location.address(), self.content.len());
        let count = words(address, len);
        let aligned = address.is_multiple_of(4) && len.is_multiple_of(4);
        (caps.ops_64_bit && aligned && count <= MOST_WORDS).then_some(count)
    }

    /// Returns its words in order.
    ///
    /// # Errors
    /// [`StreamError::Unsupported`] if it is copied: a copy cannot be part of another submission.
    pub(crate) fn words(&self, caps: &MemOpCaps) -> Result<Words<'_>, StreamError> {
        match self.word_count(caps) {
            Some(_) => Ok(Words { address: self.location.address(), rest: &self.content }),
            None => Err(StreamError::Unsupported { what: "copies among other operations" }),
        }
    }
}

impl Keyed<Option<usize>> for Bytes {
    #[inline]
    fn key(&self, caps: &MemOpCaps) -> Option<usize> {
        self.word_count(caps)
    }
}

/// Returns the number of words of an aligned range: 32-bit ones at the ends, and 64-bit ones between.
fn words(address: u64, len: usize) -> usize {
    let head = ((address % 8) as usize).min(len);
    head.div_ceil(4) + (len - head) / 8 + ((len - head) % 8).div_ceil(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PinnedMemory;
    use proptest::prelude::*;

    fn piece(offset: usize, bytes: &[u8]) -> Bytes {
        let memory = PinnedMemory::allocate(PAGE as usize).unwrap();
        MemoryWrite::new(&memory, offset, bytes).unwrap().pieces().next().unwrap()
    }

    #[test]
    fn short_aligned_writes_are_words() {
        let caps = MemOpCaps::FULL;
        let bytes: Vec<u8> = (1..=16).collect();
        let (low, high) = (u32::from_ne_bytes([1, 2, 3, 4]), u32::from_ne_bytes([13, 14, 15, 16]));
        let middle = u64::from_ne_bytes([5, 6, 7, 8, 9, 10, 11, 12]);
        let found: Vec<Word> = piece(12, &bytes).words(&caps).unwrap().collect();
        assert_eq!(found, [Word::Short(low), Word::Long(middle), Word::Short(high)]);
        assert_eq!(piece(8, &[0; 64]).words(&caps).unwrap().count(), MOST_WORDS);
        assert_eq!(piece(4, &[0; 4]).words(&caps).unwrap().count(), 1);
        let copied = [piece(1, &[0; 4]), piece(0, &[0; 3]), piece(4, &[0; 64])];
        assert!(copied.iter().all(|piece| piece.word_count(&caps).is_none() && piece.words(&caps).is_err()));
        assert_eq!(piece(8, &[0; 8]).word_count(&MemOpCaps { ops_64_bit: false, ..caps }), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let memory = PinnedMemory::allocate(5000).unwrap();
        let error = MemoryWrite::new(&memory, 0, &[0; 4097]).unwrap_err().to_string();
        assert!(error.contains("4097") && error.contains("4096"), "{error}");
        for offset in [4999, 5001, usize::MAX] {
            let error = MemoryWrite::new(&memory, offset, &[1, 2]).unwrap_err();
            assert!(matches!(error, WriteError::Bounds(OutOfBounds { len: 5000, .. })), "{error}");
        }
        assert_eq!(MemoryWrite::new(&memory, 5000, &[]).unwrap().pieces().count(), 0);
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_within_pages_and_words_are_the_pieces(
            offset in 0usize..5000,
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
        ) {
            let memory = PinnedMemory::allocate(8192).unwrap();
            let base = memory.addr().get() + offset as u64;
            let mut at = 0;
            for piece in MemoryWrite::new(&memory, offset, &bytes).unwrap().pieces() {
                let first = base + at as u64;
                let len = piece.content.len();
                prop_assert_eq!(piece.location.address(), first);
                prop_assert_eq!(first / PAGE, (first + len as u64 - 1) / PAGE);
                prop_assert_eq!(&*piece.content, &bytes[at..at + len]);
                if let Some(count) = piece.word_count(&MemOpCaps::FULL) {
                    let mut address = first;
                    let mut out = Vec::new();
                    for word in piece.words(&MemOpCaps::FULL).unwrap() {
                        prop_assert_eq!(address % word.len() as u64, 0);
                        address += word.len() as u64;
                        match word {
                            Word::Short(value) => out.extend(value.to_ne_bytes()),
                            Word::Long(value) => out.extend(value.to_ne_bytes()),
                        }
                    }
                    prop_assert_eq!(&out[..], &*piece.content);
                    prop_assert!(count <= MOST_WORDS);
                }
                at += len;
            }
            prop_assert_eq!(at, bytes.len());
        }

        #[test]
        fn the_cost_is_the_number_of_words(word in 0usize..32, count in 1usize..=8) {
            let piece = piece(word * 4, &vec![7; count * 4]);
            let counted = piece.words(&MemOpCaps::FULL).unwrap().count();
            prop_assert_eq!(piece.word_count(&MemOpCaps::FULL), Some(counted));
        }
    }
}
