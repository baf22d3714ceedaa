//! The encoding of a status: little-endian numbers; lists and texts with a length prefix.
//!
//! The decoder trusts nothing: it rejects input that is longer than [`LONGEST`], ends too early or too late, or
//! exceeds a limit of [`crate::status`]. It replaces characters that would control a terminal.

use crate::status::{
    Card, MOST_CARDS, MOST_NAMED, MOST_QUEUE_PAIRS, MOST_STREAMS, Peer, QueuePair, Status, Stream, Traffic,
    Wait,
};
use std::time::Duration;

/// Most bytes of an answer.
pub const LONGEST: usize = 8 << 20;
pub(crate) const MAX_TEXT: usize = 400;

const MAGIC: [u8; 8] = *b"gdstatus";
const VERSION: u32 = 3;

/// Reasons why bytes are not an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// They do not begin like an answer.
    #[error("it answers with something else than the status of gdsync")]
    Other,
    /// Another version of the library encoded it.
    #[error(
        "it answers in version {found}, and this is version {VERSION}: use the `gdsync top` of its own version"
    )]
    Version {
        /// The version.
        found: u32,
    },
    /// A field is missing, too long, or has an invalid value.
    #[error("its answer is broken: {what}")]
    Broken {
        /// The problem.
        what: &'static str,
    },
}

/// Returns the character, or a replacement if it would control a terminal: control characters, and invisible ones
/// that change the direction of surrounding text.
pub(crate) fn printable(character: char) -> char {
    match character {
        '\u{ad}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => char::REPLACEMENT_CHARACTER,
        character if character.is_control() => char::REPLACEMENT_CHARACTER,
        character => character,
    }
}

/// Encodes a status. Omits everything over a limit.
pub fn encode(status: &Status) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    VERSION.write(&mut out);
    status.write(&mut out);
    out
}

/// Decodes a status.
///
/// # Errors
/// [`WireError`].
pub fn decode(bytes: &[u8]) -> Result<Status, WireError> {
    if bytes.len() > LONGEST {
        return Err(WireError::Broken { what: "it is longer than 8 MiB" });
    }
    let from = &mut bytes.strip_prefix(&MAGIC).ok_or(WireError::Other)?;
    match u32::read(from)? {
        VERSION => {}
        found => return Err(WireError::Version { found }),
    }
    let status = Status::read(from)?;
    if from.is_empty() { Ok(status) } else { Err(WireError::Broken { what: "more follows its end" }) }
}

/// A part of an answer.
trait Wire: Sized {
    fn write(&self, out: &mut Vec<u8>);

    /// Decodes it from the front of the bytes.
    fn read(from: &mut &[u8]) -> Result<Self, WireError>;
}

/// List elements, and the longest list of them.
trait ListItem: Wire {
    const MAX_ITEMS: usize;
}

macro_rules! numbers {
    ($($number:ty)*) => { $(
        impl Wire for $number {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn read(from: &mut &[u8]) -> Result<Self, WireError> {
                Wire::read(from).map(<$number>::from_le_bytes)
            }
        }
    )* };
}

numbers!(u16 u32 u64);

/// Implements the encoding of structures: field after field.
macro_rules! structures {
    ($($structure:ident { $($field:ident)* })*) => { $(
        impl Wire for $structure {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$field.write(out);)*
            }

            fn read(from: &mut &[u8]) -> Result<Self, WireError> {
                Ok($structure { $($field: Wire::read(from)?,)* })
            }
        }
    )* };
}

structures! {
    Status { at_ns rank cards card_count streams stream_count }
    Card {
        lid node is_ethernet gid is_busy sent received not_ready out_of_sequence faults findings queue_pairs
        queue_pair_count
    }
    Traffic { packets bytes }
    QueuePair { number transport state peer outstanding blocks resends wait }
    Peer { node queue_pair pid }
    Stream { number waits wait }
    Wait { what mark time queue_pairs }
}

impl ListItem for Card {
    const MAX_ITEMS: usize = MOST_CARDS;
}

impl ListItem for Stream {
    const MAX_ITEMS: usize = MOST_STREAMS;
}

impl ListItem for QueuePair {
    const MAX_ITEMS: usize = MOST_QUEUE_PAIRS;
}

/// Queue pair numbers.
impl ListItem for u32 {
    const MAX_ITEMS: usize = MOST_NAMED;
}

impl<const N: usize> Wire for [u8; N] {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn read(from: &mut &[u8]) -> Result<Self, WireError> {
        let (bytes, rest) =
            from.split_first_chunk().ok_or(WireError::Broken { what: "it ends too early" })?;
        *from = rest;
        Ok(*bytes)
    }
}

impl Wire for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn read(from: &mut &[u8]) -> Result<Self, WireError> {
        match <[u8; 1]>::read(from)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(WireError::Broken { what: "a flag is neither 0 nor 1" }),
        }
    }
}

impl Wire for Duration {
    fn write(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).write(out);
    }

    fn read(from: &mut &[u8]) -> Result<Self, WireError> {
        u64::read(from).map(Duration::from_nanos)
    }
}

/// Cut at the limit, at a character boundary.
impl Wire for String {
    fn write(&self, out: &mut Vec<u8>) {
        let end = (0..=self.len().min(MAX_TEXT)).rev().find(|end| self.is_char_boundary(*end));
        let text = &self[..end.unwrap_or(0)];
        (text.len() as u16).write(out);
        out.extend(text.as_bytes());
    }

    fn read(from: &mut &[u8]) -> Result<Self, WireError> {
        let length = usize::from(u16::read(from)?);
        if length > MAX_TEXT {
            return Err(WireError::Broken { what: "a text is longer than 400 bytes" });
        }
        let (text, rest) =
            from.split_at_checked(length).ok_or(WireError::Broken { what: "it ends within a text" })?;
        *from = rest;
        let text =
            std::str::from_utf8(text).map_err(|_| WireError::Broken { what: "a text is not UTF-8" })?;
        Ok(text.chars().map(printable).collect())
    }
}

impl<T: Wire> Wire for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        self.iter().for_each(|value| value.write(out));
    }

    fn read(from: &mut &[u8]) -> Result<Self, WireError> {
        if bool::read(from)? { T::read(from).map(Some) } else { Ok(None) }
    }
}

impl<T: ListItem> Wire for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        let kept = &self[..self.len().min(T::MAX_ITEMS)];
        (kept.len() as u32).write(out);
        kept.iter().for_each(|item| item.write(out));
    }

    /// Does not reserve memory for elements that the bytes may lack.
    fn read(from: &mut &[u8]) -> Result<Self, WireError> {
        let length = u32::read(from)? as usize;
        if length > T::MAX_ITEMS {
            return Err(WireError::Broken { what: "a list is longer than it may be" });
        }
        (0..length).map(|_| T::read(from)).collect()
    }
}
