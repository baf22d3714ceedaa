//! An answer as bytes: little-endian numbers, lists and texts behind their lengths.
//!
//! A reader trusts nothing: an answer is refused that is longer than [`LONGEST`], ends too early or too late, or has
//! more of anything than the limits of [`crate::status`] allow. Characters that would steer a terminal are replaced.

use crate::status::{
    Card, MOST_CARDS, MOST_NAMED, MOST_QUEUE_PAIRS, MOST_STREAMS, Peer, QueuePair, Status, Stream, Traffic,
    Wait,
};
use std::time::Duration;

/// Bytes of an answer at most.
pub const LONGEST: usize = 8 << 20;
/// Bytes of a text at most.
pub(crate) const LONGEST_TEXT: usize = 400;

const MAGIC: [u8; 8] = *b"gdstatus";
/// Changes with every change of the format.
const VERSION: u32 = 1;

/// Why bytes are no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// They do not begin as an answer does.
    #[error("it answers with something else than the status of gdsync")]
    Other,
    /// Another version of the library has made it.
    #[error(
        "it answers in version {found}, and this is version {VERSION}: use the `gdsync top` of its own version"
    )]
    Version {
        /// The version.
        found: u32,
    },
    /// A field is missing, too long, or has a value that it cannot have.
    #[error("its answer is broken: {what}")]
    Broken {
        /// What is wrong.
        what: &'static str,
    },
}

/// The character, or a mark in its place if it would steer a terminal: controls, and what is not seen and turns the
/// direction of the text around it.
pub fn printable(character: char) -> char {
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

/// An answer as bytes. What is over a limit is left out.
pub fn encode(status: &Status) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    VERSION.write(&mut out);
    status.write(&mut out);
    out
}

/// The answer that bytes are.
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

/// What an answer is made of.
trait Wire: Sized {
    fn write(&self, out: &mut Vec<u8>);

    /// Takes it from the front of the bytes.
    fn read(from: &mut &[u8]) -> Result<Self, WireError>;
}

/// What stands in lists, and how often at most.
trait Listed: Wire {
    const MOST: usize;
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

/// Structures whose fields follow each other.
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
    Status { at_ns cards card_count streams stream_count }
    Card {
        lid node is_ethernet gid is_busy sent received not_ready out_of_sequence faults findings queue_pairs
        queue_pair_count
    }
    Traffic { packets bytes }
    QueuePair { number transport state peer outstanding blocks resends wait }
    Peer { node queue_pair }
    Stream { number waits wait }
    Wait { what mark time queue_pairs }
}

impl Listed for Card {
    const MOST: usize = MOST_CARDS;
}

impl Listed for Stream {
    const MOST: usize = MOST_STREAMS;
}

impl Listed for QueuePair {
    const MOST: usize = MOST_QUEUE_PAIRS;
}

/// Of a queue pair.
impl Listed for u32 {
    const MOST: usize = MOST_NAMED;
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

/// Cut at the limit, between characters.
impl Wire for String {
    fn write(&self, out: &mut Vec<u8>) {
        let end = (0..=self.len().min(LONGEST_TEXT)).rev().find(|end| self.is_char_boundary(*end));
        let text = &self[..end.unwrap_or(0)];
        (text.len() as u16).write(out);
        out.extend(text.as_bytes());
    }

    fn read(from: &mut &[u8]) -> Result<Self, WireError> {
        let length = usize::from(u16::read(from)?);
        if length > LONGEST_TEXT {
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

impl<T: Listed> Wire for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        let kept = &self[..self.len().min(T::MOST)];
        (kept.len() as u32).write(out);
        kept.iter().for_each(|item| item.write(out));
    }

    /// Reserves nothing for what the bytes may not have.
    fn read(from: &mut &[u8]) -> Result<Self, WireError> {
        let length = u32::read(from)? as usize;
        if length > T::MOST {
            return Err(WireError::Broken { what: "a list is longer than it may be" });
        }
        (0..length).map(|_| T::read(from)).collect()
    }
}
