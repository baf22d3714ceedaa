//! The pieces of memory that a key and an address name, and the reasons to refuse an access by key.

use super::copy::{Place, Target};
use crate::card::config::Access;
use std::vec;

/// A range of memory as requests name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) key: u32,
    /// First address, in the key's address space.
    pub(crate) addr: u64,
    /// Length in bytes.
    pub(crate) len: u64,
}

/// Pieces of memory, in order. A region is one piece; an indirect key may have many.
#[derive(Debug)]
pub(crate) enum Pieces<'a> {
    One(Option<Target<'a>>),
    Many(vec::IntoIter<Target<'a>>),
}

impl<'a> Pieces<'a> {
    pub(crate) fn one(place: Place<'a>, len: u64) -> Self {
        Pieces::One(Some((place, len as usize)))
    }

    /// Returns the place, if there is exactly one piece.
    pub(crate) fn single(mut self) -> Option<Place<'a>> {
        let (place, _) = self.next()?;
        self.next().is_none().then_some(place)
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

/// The reason why an access by key is refused.
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
