//! Packets in a stream of bytes. The parser has no side effects and checks everything, as it reads another
//! host's bytes.
//!
//! A stream begins with a greeting, which has the protocol's version, the sending node, and the speed of its
//! timers. A frame is 8 bytes (header length, zero, payload length; big endian, 2 + 2 + 4), then header and
//! payload, without padding.

use super::packet::{MAX_HEADER, MAX_PAYLOAD, Node};
use crate::speed::Speed;

/// First bytes of a stream.
const MAGIC: [u8; 8] = *b"gdstcp\x00\x05";
/// Bytes of the greeting: the magic, the node in big endian, and the speed.
pub(super) const GREETING_BYTES: usize = MAGIC.len() + size_of::<Node>() + 1;
/// Bytes before a packet's header.
pub(super) const LENGTHS: usize = 8;
/// Bytes of the longest frame.
pub(super) const MAX_FRAME: usize = LENGTHS + MAX_HEADER + MAX_PAYLOAD;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) node: Node,
    pub(super) speed: Speed,
}

impl Greeting {
    /// The first bytes of a stream.
    pub(super) fn bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [self.speed.times(); GREETING_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()..GREETING_BYTES - 1].copy_from_slice(&self.node.to_be_bytes());
        bytes
    }
}

/// A violation of the format, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// Parses the greeting; `None` while it is incomplete.
pub(super) fn parse_greeting(bytes: &[u8]) -> Result<Option<Greeting>, Malformed> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes[..magic] != MAGIC[..magic] {
        return Err(Malformed("a stranger connected, or a card of another version"));
    }
    let Some((node, [times, ..])) = bytes.get(MAGIC.len()..).and_then(<[u8]>::split_first_chunk) else {
        return Ok(None);
    };
    let speed = Speed::new(*times).ok_or(Malformed("a card's speed is none"))?;
    Ok(Some(Greeting { node: Node::from_be_bytes(*node), speed }))
}

/// The 8 bytes before a header; `None` if the packet is too long for a frame.
pub(super) fn lengths(header: usize, payload: usize) -> Option<[u8; LENGTHS]> {
    if header > MAX_HEADER || payload > MAX_PAYLOAD {
        return None;
    }
    let mut bytes = [0; LENGTHS];
    bytes[..2].copy_from_slice(&(header as u16).to_be_bytes());
    bytes[4..].copy_from_slice(&(payload as u32).to_be_bytes());
    Some(bytes)
}

/// A packet in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) header: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl Frame<'_> {
    pub(super) fn len(&self) -> usize {
        LENGTHS + self.header.len() + self.payload.len()
    }
}

/// Parses the first packet; `None` while it is incomplete.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Frame<'_>>, Malformed> {
    let Some((lengths, rest)) = bytes.split_first_chunk::<LENGTHS>() else { return Ok(None) };
    let [h0, h1, z0, z1, p0, p1, p2, p3] = *lengths;
    let header = usize::from(u16::from_be_bytes([h0, h1]));
    let payload = u32::from_be_bytes([p0, p1, p2, p3]) as usize;
    if [z0, z1] != [0, 0] {
        return Err(Malformed("a frame's reserved bytes are not zero"));
    }
    if header > MAX_HEADER || payload > MAX_PAYLOAD {
        return Err(Malformed("a packet is too long"));
    }
    let Some((header, rest)) = rest.split_at_checked(header) else { return Ok(None) };
    Ok(rest.get(..payload).map(|payload| Frame { header, payload }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(header: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = lengths(header.len(), payload.len()).unwrap().to_vec();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn what_is_too_long_has_no_frame_and_is_refused() {
        assert!(lengths(MAX_HEADER + 1, 0).is_none() && lengths(0, MAX_PAYLOAD + 1).is_none());
        assert!(lengths(MAX_HEADER, MAX_PAYLOAD).is_some());
        let long = |header: u16, payload: u32| {
            let mut bytes = [0u8; LENGTHS];
            bytes[..2].copy_from_slice(&header.to_be_bytes());
            bytes[4..].copy_from_slice(&payload.to_be_bytes());
            parse(&bytes).map(|_| ())
        };
        assert!(long(MAX_HEADER as u16 + 1, 0).is_err() && long(0, MAX_PAYLOAD as u32 + 1).is_err());
        assert!(long(u16::MAX, u32::MAX).is_err() && long(MAX_HEADER as u16, MAX_PAYLOAD as u32).is_ok());
        assert!(parse(&[0, 0, 1, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn a_greeting_names_its_sender_and_strangers_are_refused_at_their_first_wrong_byte() {
        let greeting = Greeting { node: 0x7f00_0001_0005, speed: Speed::new(20).unwrap() };
        let bytes = greeting.bytes();
        assert_eq!(parse_greeting(&bytes), Ok(Some(greeting)));
        (0..GREETING_BYTES).for_each(|n| assert_eq!(parse_greeting(&bytes[..n]), Ok(None)));
        assert!(parse_greeting(b"G").is_err());
        assert!(parse_greeting(b"gdstcp\x00\x04").is_err());
        for times in [0, Speed::MAX + 1] {
            let mut bytes = bytes;
            bytes[GREETING_BYTES - 1] = times;
            assert!(parse_greeting(&bytes).is_err(), "{times} is no speed");
        }
    }

    proptest! {
        #[test]
        fn frames_come_back_however_they_are_cut(
            packets in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..=MAX_HEADER),
                                              prop::collection::vec(any::<u8>(), 0..300)), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let stream: Vec<u8> = packets.iter().flat_map(|(header, payload)| frame(header, payload)).collect();
            let (mut rest, mut seen) = (&stream[..], Vec::new());
            while let Some(found) = parse(rest).unwrap() {
                seen.push((found.header.to_vec(), found.payload.to_vec()));
                rest = &rest[found.len()..];
            }
            prop_assert_eq!(&seen, &packets);
            // A prefix of a stream is never an error, and the frames found are inside it.
            let mut part = &stream[..cut.index(stream.len())];
            while let Some(found) = parse(part).unwrap() {
                part = &part[found.len()..];
            }
        }

        #[test]
        fn no_bytes_make_the_parser_panic_or_reach_beyond_them(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(Some(found)) = parse(&bytes) {
                prop_assert!(found.len() <= bytes.len());
            }
            let _ = parse_greeting(&bytes);
        }
    }
}
