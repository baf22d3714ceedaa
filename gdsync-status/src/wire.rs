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
    let mut out = Writer(MAGIC.to_vec());
    out.u32(VERSION);
    out.u64(status.at_ns);
    out.list(&status.cards, MOST_CARDS, Writer::card);
    out.u32(status.card_count);
    out.list(&status.streams, MOST_STREAMS, Writer::stream);
    out.u32(status.stream_count);
    out.0
}

/// The answer that bytes are.
///
/// # Errors
/// [`WireError`].
pub fn decode(bytes: &[u8]) -> Result<Status, WireError> {
    if bytes.len() > LONGEST {
        return Err(WireError::Broken { what: "it is longer than 8 MiB" });
    }
    let mut from = Reader(bytes.strip_prefix(&MAGIC).ok_or(WireError::Other)?);
    match from.u32()? {
        VERSION => {}
        found => return Err(WireError::Version { found }),
    }
    let status = Status {
        at_ns: from.u64()?,
        cards: from.list(MOST_CARDS, Reader::card)?,
        card_count: from.u32()?,
        streams: from.list(MOST_STREAMS, Reader::stream)?,
        stream_count: from.u32()?,
    };
    if from.0.is_empty() { Ok(status) } else { Err(WireError::Broken { what: "more follows its end" }) }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Cut at the limit, between characters.
    fn text(&mut self, text: &str) {
        let end = (0..=text.len().min(LONGEST_TEXT)).rev().find(|end| text.is_char_boundary(*end));
        let text = &text[..end.unwrap_or(0)];
        self.u16(text.len() as u16);
        self.0.extend(text.as_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn list<T>(&mut self, items: &[T], most: usize, write: impl Fn(&mut Self, &T)) {
        let kept = &items[..items.len().min(most)];
        self.u32(kept.len() as u32);
        kept.iter().for_each(|item| write(self, item));
    }

    fn traffic(&mut self, traffic: Traffic) {
        self.u64(traffic.packets);
        self.u64(traffic.bytes);
    }

    fn card(&mut self, card: &Card) {
        self.u16(card.lid);
        self.u32(card.node);
        self.flag(card.is_ethernet);
        self.0.extend(card.gid);
        self.flag(card.is_busy);
        self.traffic(card.sent);
        self.traffic(card.received);
        self.u64(card.not_ready);
        self.u64(card.out_of_sequence);
        self.u64(card.faults);
        self.u32(card.findings);
        self.list(&card.queue_pairs, MOST_QUEUE_PAIRS, Self::queue_pair);
        self.u32(card.queue_pair_count);
    }

    fn queue_pair(&mut self, pair: &QueuePair) {
        self.u32(pair.number);
        self.text(&pair.transport);
        self.text(&pair.state);
        self.option(pair.peer, |out, peer| {
            out.u32(peer.node);
            out.u32(peer.queue_pair);
        });
        self.u32(pair.outstanding);
        self.u32(pair.blocks);
        self.u64(pair.resends);
        self.option(pair.wait.as_ref(), Self::wait);
    }

    fn stream(&mut self, stream: &Stream) {
        self.u64(stream.number);
        self.u32(stream.waits);
        self.wait(&stream.wait);
    }

    fn wait(&mut self, wait: &Wait) {
        self.text(&wait.what);
        self.u64(wait.mark);
        self.option(wait.time, |out, time| out.u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
        self.list(&wait.queue_pairs, MOST_NAMED, |out, number| out.u32(*number));
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (bytes, rest) =
            self.0.split_first_chunk().ok_or(WireError::Broken { what: "it ends too early" })?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn flag(&mut self) -> Result<bool, WireError> {
        match self.bytes()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(WireError::Broken { what: "a flag is neither 0 nor 1" }),
        }
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, WireError> {
        let length = usize::from(self.u16()?);
        if length > LONGEST_TEXT {
            return Err(WireError::Broken { what: "a text is longer than 400 bytes" });
        }
        let (text, rest) =
            self.0.split_at_checked(length).ok_or(WireError::Broken { what: "it ends within a text" })?;
        self.0 = rest;
        let text =
            std::str::from_utf8(text).map_err(|_| WireError::Broken { what: "a text is not UTF-8" })?;
        Ok(text.chars().map(printable).collect())
    }

    fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reserves nothing for what the bytes may not have.
    fn list<T>(
        &mut self,
        most: usize,
        read: impl Fn(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let length = self.u32()? as usize;
        if length > most {
            return Err(WireError::Broken { what: "a list is longer than it may be" });
        }
        (0..length).map(|_| read(self)).collect()
    }

    fn traffic(&mut self) -> Result<Traffic, WireError> {
        Ok(Traffic { packets: self.u64()?, bytes: self.u64()? })
    }

    fn card(&mut self) -> Result<Card, WireError> {
        Ok(Card {
            lid: self.u16()?,
            node: self.u32()?,
            is_ethernet: self.flag()?,
            gid: self.bytes()?,
            is_busy: self.flag()?,
            sent: self.traffic()?,
            received: self.traffic()?,
            not_ready: self.u64()?,
            out_of_sequence: self.u64()?,
            faults: self.u64()?,
            findings: self.u32()?,
            queue_pairs: self.list(MOST_QUEUE_PAIRS, Self::queue_pair)?,
            queue_pair_count: self.u32()?,
        })
    }

    fn queue_pair(&mut self) -> Result<QueuePair, WireError> {
        Ok(QueuePair {
            number: self.u32()?,
            transport: self.text()?,
            state: self.text()?,
            peer: self.option(|from| Ok(Peer { node: from.u32()?, queue_pair: from.u32()? }))?,
            outstanding: self.u32()?,
            blocks: self.u32()?,
            resends: self.u64()?,
            wait: self.option(Self::wait)?,
        })
    }

    fn stream(&mut self) -> Result<Stream, WireError> {
        Ok(Stream { number: self.u64()?, waits: self.u32()?, wait: self.wait()? })
    }

    fn wait(&mut self) -> Result<Wait, WireError> {
        Ok(Wait {
            what: self.text()?,
            mark: self.u64()?,
            time: self.option(|from| from.u64().map(Duration::from_nanos))?,
            queue_pairs: self.list(MOST_NAMED, Self::u32)?,
        })
    }
}
