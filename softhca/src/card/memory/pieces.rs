//! The pieces of memory that a key and an address name.

use super::copy::{Place, Target};
use std::vec;

/// A range of memory as requests name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) key: u32,
    /// First address, by the key's own addresses.
    pub(crate) addr: u64,
    /// Length in bytes.
    pub(crate) len: u64,
}

/// Pieces of memory, in order. A region is one piece; a key that refers to others may be many.
#[derive(Debug)]
pub(crate) enum Pieces<'a> {
    One(Option<Target<'a>>),
    Many(vec::IntoIter<Target<'a>>),
}

impl<'a> Pieces<'a> {
    pub(crate) fn one(place: Place<'a>, len: u64) -> Self {
        Pieces::One(Some((place, len as usize)))
    }

    /// The place, if there is one only.
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
