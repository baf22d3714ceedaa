//! Fingerprints of a program's memory: they tell later whether, and where, the program has changed it.

use super::copy::Location;
use crate::os::host;
use std::ops::Range;

/// Bytes that have a hash of their own, if there are not too many of them.
const SMALLEST: usize = 64;
/// Maximum number of hashes of a range.
const MOST: usize = 1 << 16;

/// The hashes of the blocks of a range of host memory. Its blocks begin at multiples of their size.
#[derive(Debug)]
pub(crate) struct Fingerprint {
    at: u64,
    len: usize,
    hashes: Vec<u64>,
}

impl Fingerprint {
    /// Takes the fingerprint of a range. `None` for peer memory, and for memory that is gone.
    ///
    /// # Safety
    /// Host memory was readable when it was registered.
    pub(crate) unsafe fn of(location: Location<'_>, len: usize) -> Option<Self> {
        let Location::Host(at) = location else { return None };
        let at = at as u64;
        // SAFETY: the caller guarantees this.
        let hashes = blocks(at, len).map(|block| unsafe { hash(block) });
        Some(Fingerprint { at, len, hashes: hashes.collect::<Option<_>>()? })
    }

    /// Returns the range from the first block that has changed to the last. `None` if none has, or if the memory is gone.
    ///
    /// # Safety
    /// The memory was readable when it was registered.
    pub(crate) unsafe fn changed(&self) -> Option<Range<u64>> {
        let is_other = |block: &Range<u64>, old: u64| {
            // SAFETY: the caller guarantees this.
            unsafe { hash(block.clone()) }.is_some_and(|new| new != old)
        };
        let pairs = blocks(self.at, self.len).zip(&self.hashes);
        let changed = pairs.filter(|(block, old)| is_other(block, **old)).map(|(block, _)| block);
        changed.reduce(|all, block| all.start..block.end)
    }

    /// The range.
    pub(crate) fn range(&self) -> Range<u64> {
        self.at..self.at + self.len as u64
    }
}

/// Cuts a range into blocks.
fn blocks(at: u64, len: usize) -> impl Iterator<Item = Range<u64>> {
    let size = (len / MOST).next_power_of_two().max(SMALLEST) as u64;
    let end = at + len as u64;
    let mut next = at;
    std::iter::from_fn(move || {
        let start = next;
        next = end.min((start / size + 1) * size);
        (start < end).then_some(start..next)
    })
}

/// Hashes some bytes. `None` if they are gone.
///
/// # Safety
/// They were readable when they were registered.
unsafe fn hash(block: Range<u64>) -> Option<u64> {
    const CHUNK: usize = 256;
    let mut bytes = [0; CHUNK];
    let (mut at, mut hash) = (block.start, 0u64);
    while at < block.end {
        let count = CHUNK.min((block.end - at) as usize);
        // SAFETY: the caller guarantees this.
        unsafe { host::read(at as *const u8, &mut bytes[..count]) }.ok()?;
        bytes[count..].fill(0);
        for word in bytes.as_chunks::<8>().0 {
            // As FNV-1a, with words instead of bytes.
            hash = (hash ^ u64::from_ne_bytes(*word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
        at += count as u64;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_found_where_it_is() {
        for len in [1, 64, 200, 5000, MOST * SMALLEST + 100] {
            let mut bytes = vec![7u8; len + 3];
            let at = bytes.as_mut_ptr().wrapping_add(3);
            // SAFETY: inside the vector.
            let print = unsafe { Fingerprint::of(Location::Host(at), len) }.unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { print.changed() }, None, "{len}");
            for place in [0, len / 2, len - 1] {
                bytes[3 + place] ^= 1;
                // SAFETY: as above.
                let found = unsafe { print.changed() }.unwrap();
                let changed = at as u64 + place as u64;
                assert!(
                    found.contains(&changed) && found.end - found.start <= 128,
                    "{len} {place} {found:x?}"
                );
                assert!(print.range().start <= found.start && found.end <= print.range().end);
                bytes[3 + place] ^= 1;
            }
        }
    }

    #[test]
    fn changes_far_apart_make_one_range() {
        let mut bytes = vec![0u8; 1024];
        // SAFETY: the vector.
        let print = unsafe { Fingerprint::of(Location::Host(bytes.as_mut_ptr()), 1024) }.unwrap();
        (bytes[100], bytes[900]) = (1, 1);
        // SAFETY: as above.
        let found = unsafe { print.changed() }.unwrap();
        let start = bytes.as_ptr() as u64;
        assert!(found.contains(&(start + 100)) && found.contains(&(start + 900)));
    }
}
