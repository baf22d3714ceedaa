//! Translation of keys and addresses to pieces of memory and to ranges of other keys, and the reasons to refuse an
//! access by key.

use super::copy::{Location, Target};
use crate::card::config::Access;
use gdsync_sys::prm::umr::{StridedEntry, StridedHeader};
use gdsync_sys::prm::wqe::{DataSeg, SEGMENT};
use std::vec;
use zerocopy::FromBytes;

/// A range of memory as requests name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) key: u32,
    /// First address, in the key's address space.
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// Pieces of memory, in order. A region is one piece; an indirect key may have many.
#[derive(Debug)]
pub(crate) enum Pieces<'a> {
    One(Option<Target<'a>>),
    Many(vec::IntoIter<Target<'a>>),
}

impl<'a> Pieces<'a> {
    pub(crate) fn one(location: Location<'a>, len: u64) -> Self {
        Pieces::One(Some((location, len as usize)))
    }

    /// Returns the location, if there is exactly one piece.
    pub(crate) fn single(mut self) -> Option<Location<'a>> {
        let (location, _) = self.next()?;
        self.next().is_none().then_some(location)
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Target<'a>;

    fn next(&mut self) -> Option<Target<'a>> {
        match self {
            Pieces::One(piece) => piece.take(),
            Pieces::Many(pieces) => pieces.next(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("key {key:#x} names no memory region")]
    Key { key: u32 },
    #[error("the memory region belongs to another protection domain ({region:#x}, not {wanted:#x})")]
    Domain { region: u32, wanted: u32 },
    #[error("{len} bytes at {addr:#x} leave the memory region of {region_len} bytes at {region_addr:#x}")]
    Bounds { addr: u64, len: u64, region_addr: u64, region_len: u64 },
    #[error("the memory region allows {allowed:?}, not {wanted:?}")]
    Access { allowed: Access, wanted: Access },
    #[error("{len} bytes at {addr:#x} of an on-demand region are not mapped with the access asked for")]
    Unmapped { addr: u64, len: u64 },
    #[error("key {key:#x} is closed: it was invalidated, or never bound")]
    Closed { key: u32 },
    #[error("memory window {key:#x} is bound to queue pair {owner:#x}")]
    Owner { key: u32, owner: u32 },
    #[error("key {key:#x} refers to other keys, more than {limit} deep")]
    Depth { key: u32, limit: usize },
    #[error("the translation of key {key:#x} ends {missing} bytes early")]
    Translation { key: u32, missing: u64 },
}

/// The memory of a key, as ranges of other keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// Consecutive ranges (KLM). Empty ones pad a request.
    List(Vec<DataSeg>),
    /// Ranges of `2^log_size` bytes each (KSM): key and first address.
    Fixed { log_size: u32, entries: Vec<(u32, u64)> },
    /// `repeat` rounds of one block of each entry.
    Strided { repeat: u32, entries: Vec<StridedEntry> },
}

impl Default for Translation {
    fn default() -> Self {
        Translation::List(Vec::new())
    }
}

impl Translation {
    /// Parses the translation of a work request: entries of 16 bytes.
    ///
    /// # Errors
    /// A message.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        match StridedHeader::read_from_prefix(bytes) {
            Ok((header, rest)) if header.is_header() => Self::parse_strided(&header, rest),
            _ => Ok(Translation::list(bytes)),
        }
    }

    /// Ranges of any length, as data segments.
    pub(crate) fn list(bytes: &[u8]) -> Self {
        Translation::List(data_segments(bytes))
    }

    /// Returns the number of entries that a request needs for it, without padding.
    pub(crate) fn entries(&self) -> usize {
        match self {
            Translation::List(entries) => entries.iter().filter(|entry| entry.byte_count() > 0).count(),
            Translation::Fixed { entries, .. } => entries.len(),
            Translation::Strided { entries, .. } => 1 + entries.len(),
        }
    }

    fn parse_strided(header: &StridedHeader, rest: &[u8]) -> Result<Self, String> {
        let count = usize::from(header.entries());
        let entries: Vec<StridedEntry> = rest
            .chunks_exact(SEGMENT)
            .take(count)
            .filter_map(|bytes| StridedEntry::read_from_bytes(bytes).ok())
            .collect();
        if entries.len() < count {
            return Err(format!("{count} interleaved entries, of which the request has {}", entries.len()));
        }
        let round: u32 = entries.iter().map(|entry| u32::from(entry.byte_count())).sum();
        if round != header.byte_count() {
            return Err(format!("a round has {round} bytes, the header says {}", header.byte_count()));
        }
        Ok(Translation::Strided { repeat: header.repeat(), entries })
    }

    /// Returns the ranges of command `CREATE_MKEY`, of `2^log_size` bytes each.
    pub(crate) fn fixed(log_size: u32, bytes: &[u8]) -> Self {
        let entries = data_segments(bytes).iter().map(|entry| (entry.lkey(), entry.addr())).collect();
        Translation::Fixed { log_size, entries }
    }

    /// Calls `piece` with each range that holds a part of `offset..offset + len`. Returns how many bytes at the end
    /// have no range.
    pub(crate) fn each<E>(
        &self,
        offset: u64,
        len: u64,
        mut piece: impl FnMut(KeyRange) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut walk = Walk { skip: offset, left: len };
        match self {
            Translation::List(entries) => {
                for entry in entries {
                    walk.take(entry.byte_count().into(), entry.lkey(), entry.addr(), &mut piece)?;
                }
            }
            Translation::Fixed { log_size, entries } => {
                let size = 1u64 << log_size;
                let first = usize::try_from(offset >> log_size).unwrap_or(usize::MAX);
                walk.skip = offset & (size - 1);
                for (key, addr) in entries.iter().skip(first) {
                    walk.take(size, *key, *addr, &mut piece)?;
                }
            }
            Translation::Strided { repeat, entries } => {
                let round: u64 = entries.iter().map(|entry| u64::from(entry.byte_count())).sum();
                if round == 0 {
                    return Ok(len);
                }
                walk.skip = offset % round;
                for index in offset / round..u64::from(*repeat) {
                    if walk.left == 0 {
                        break;
                    }
                    for entry in entries {
                        let addr = entry.addr().wrapping_add(index * u64::from(entry.stride()));
                        walk.take(entry.byte_count().into(), entry.key(), addr, &mut piece)?;
                    }
                }
            }
        }
        Ok(walk.left)
    }
}

fn data_segments(bytes: &[u8]) -> Vec<DataSeg> {
    bytes.chunks_exact(SEGMENT).filter_map(|bytes| DataSeg::read_from_bytes(bytes).ok()).collect()
}

/// A part of consecutive ranges: bytes to skip, then bytes that are left.
pub(crate) struct Walk {
    pub(crate) skip: u64,
    pub(crate) left: u64,
}

impl Walk {
    /// Calls `piece` with the part's share of the next range.
    pub(crate) fn take<E>(
        &mut self,
        size: u64,
        key: u32,
        addr: u64,
        piece: &mut impl FnMut(KeyRange) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.skip >= size {
            self.skip -= size;
            return Ok(());
        }
        let len = (size - self.skip).min(self.left);
        if len > 0 {
            piece(KeyRange { key, addr: addr.wrapping_add(self.skip), len })?;
        }
        (self.skip, self.left) = (0, self.left - len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn pieces(translation: &Translation, offset: u64, len: u64) -> (Vec<(u32, u64, u64)>, u64) {
        let mut found = Vec::new();
        let left = translation.each(offset, len, |KeyRange { key, addr, len }| {
            found.push((key, addr, len));
            Ok::<_, ()>(())
        });
        (found, left.unwrap())
    }

    #[test]
    fn ranges_follow_each_other() {
        let entries = [DataSeg::new(4, 1, 0x10), DataSeg::new(0, 0, 0), DataSeg::new(8, 2, 0x20)];
        let list = Translation::parse(entries.as_bytes()).unwrap();
        assert_eq!(pieces(&list, 0, 12), (vec![(1, 0x10, 4), (2, 0x20, 8)], 0));
        assert_eq!(pieces(&list, 3, 2), (vec![(1, 0x13, 1), (2, 0x20, 1)], 0));
        assert_eq!(pieces(&list, 11, 3), (vec![(2, 0x27, 1)], 2), "two bytes have no range");
        let fixed = Translation::fixed(3, [DataSeg::new(8, 1, 0x10), DataSeg::new(8, 2, 0x40)].as_bytes());
        assert_eq!(pieces(&fixed, 6, 4), (vec![(1, 0x16, 2), (2, 0x40, 2)], 0));
        assert_eq!(pieces(&fixed, u64::MAX - 1, 1), (vec![], 1));
    }

    #[test]
    fn interleaved_blocks_repeat() {
        let header = StridedHeader::new(3, 2, 2);
        let entries = [StridedEntry::new(16, 2, 7, 0x100), StridedEntry::new(4, 1, 8, 0x200)];
        let bytes = [header.as_bytes(), entries.as_bytes()].concat();
        let strided = Translation::parse(&bytes).unwrap();
        let all = vec![(7, 0x100, 2), (8, 0x200, 1), (7, 0x110, 2), (8, 0x204, 1)];
        assert_eq!(pieces(&strided, 0, 6), (all, 0));
        assert_eq!(pieces(&strided, 4, 9), (vec![(7, 0x111, 1), (8, 0x204, 1)], 7));
        assert!(Translation::parse(&bytes[..32]).unwrap_err().contains("2 interleaved entries"));
        let wrong = [StridedHeader::new(4, 2, 2).as_bytes(), entries.as_bytes()].concat();
        assert!(Translation::parse(&wrong).unwrap_err().contains("a round has 3 bytes"));
        let empty = Translation::parse(StridedHeader::new(0, 9, 0).as_bytes()).unwrap();
        assert_eq!(pieces(&empty, 0, 5), (vec![], 5));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), strided: bool,
                                  offset: u64, len in 0u64..100_000, log_size in 0u32..64) {
            let mut bytes = bytes;
            if strided && bytes.len() >= 16 {
                bytes[4..8].copy_from_slice(&StridedHeader::OPERATION.to_be_bytes());
            }
            for translation in [Translation::parse(&bytes), Ok(Translation::fixed(log_size, &bytes))].into_iter().flatten() {
                let (found, left) = pieces(&translation, offset % 200_000, len);
                prop_assert_eq!(found.iter().map(|piece| piece.2).sum::<u64>() + left, len);
            }
        }
    }
}
