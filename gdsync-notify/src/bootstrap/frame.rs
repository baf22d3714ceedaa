//! Messages between a job's processes, parsed strictly. Over TCP they follow the exchange of keys ([`gdsync_auth`]).
//!
//! A frame is a header of 24 bytes (magic 8, kind 1, zero 3, rank 4, number 4, payload's length 4; big endian) and a
//! payload.

/// The first bytes of every frame; the last one is the version.
const MAGIC: [u8; 8] = *b"gdsboot\x02";
pub(super) const HEADER: usize = 24;
/// Size of a hello's payload: the hash of the job's name.
pub(super) const HELLO_BYTES: usize = 8;
/// Most bytes of one rank's contribution.
pub(super) const MAX_PART: usize = 1 << 20;
/// Most bytes of an exchange.
pub(super) const MAX_ALL: usize = 1 << 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// A rank joins: `number` is the job's size, the payload the hash of its name.
    Hello = 1,
    /// All ranks have joined.
    Welcome = 2,
    /// A rank's contribution to the exchange `number`.
    Part = 3,
    /// All contributions, or all that are for the rank, as a list.
    All = 4,
    /// The job cannot go on: a [`Stop`].
    Stop = 5,
    /// A rank's contributions to the exchange `number`, one for each rank, as a list.
    Parts = 6,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::{All, Hello, Part, Parts, Stop, Welcome};
        [Hello, Welcome, Part, All, Stop, Parts].into_iter().find(|kind| *kind as u8 == byte)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: FrameKind,
    pub(super) rank: u32,
    pub(super) number: u32,
    pub(super) payload: Vec<u8>,
}

/// The reason why bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl Frame {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        bytes.extend(MAGIC);
        bytes.extend([self.kind as u8, 0, 0, 0]);
        bytes.extend(self.rank.to_be_bytes());
        bytes.extend(self.number.to_be_bytes());
        // The caller keeps payloads within their limits.
        bytes.extend((self.payload.len() as u32).to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Vec<u8>,
    /// Longest payload.
    limit: usize,
}

impl Reader {
    pub(super) fn new(limit: usize) -> Self {
        Reader { buffer: Vec::new(), limit }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame; `None` if it is incomplete. Malformed bytes are refused as early as possible, so the
    /// reader keeps at most a header and the limit.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let bytes = &self.buffer;
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Err(Malformed("its messages are not those of this version of gdsync".to_owned()));
        }
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let kind = FrameKind::from_byte(header[8]).filter(|_| header[9..12] == [0; 3]);
        let kind =
            kind.ok_or_else(|| Malformed(format!("there is no frame of kind {:02x?}", &header[8..12])))?;
        let (rank, number, len) = (word(header, 12), word(header, 16), word(header, 20) as usize);
        if len > self.limit {
            return Err(Malformed(format!("a payload of {len} bytes is longer than {}", self.limit)));
        }
        let Some(payload) = bytes.get(HEADER..HEADER + len) else { return Ok(None) };
        let payload = payload.to_vec();
        self.buffer.drain(..HEADER + len);
        Ok(Some(Frame { kind, rank, number, payload }))
    }
}

fn word(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Encodes a list as lengths and bytes.
pub(super) fn encode_list(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 4).sum());
    for part in parts {
        bytes.extend((part.len() as u32).to_be_bytes());
        bytes.extend(part);
    }
    bytes
}

/// Decodes a list of exactly `count` parts.
pub(super) fn decode_list(mut bytes: &[u8], count: u32) -> Result<Vec<Vec<u8>>, Malformed> {
    let short = || Malformed(format!("a list of {count} parts ends before them"));
    let mut parts = Vec::new();
    for _ in 0..count {
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        let length = u32::from_be_bytes(*length) as usize;
        let part = rest.get(..length).ok_or_else(short)?;
        parts.push(part.to_vec());
        bytes = &rest[length..];
    }
    if bytes.is_empty() { Ok(parts) } else { Err(Malformed(format!("{} bytes behind a list", bytes.len()))) }
}

/// The reason why a job stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// These ranks have ended.
    Gone(Vec<u32>),
    /// These ranks did not arrive in time.
    Late(Vec<u32>),
    /// Anything else.
    Refused(String),
}

impl Stop {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (code, ranks, text) = match self {
            Stop::Gone(ranks) => (1, &ranks[..], ""),
            Stop::Late(ranks) => (2, &ranks[..], ""),
            Stop::Refused(text) => (3, &[][..], &text[..]),
        };
        let mut bytes = vec![code];
        bytes.extend(ranks.iter().flat_map(|rank| rank.to_be_bytes()));
        bytes.extend(text.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Stop, Malformed> {
        let bad = || Malformed("an end without a reason".to_owned());
        let (code, rest) = bytes.split_first().ok_or_else(bad)?;
        let ranks = || match rest.as_chunks::<4>() {
            (ranks, []) if !ranks.is_empty() => Ok(ranks.iter().copied().map(u32::from_be_bytes).collect()),
            _ => Err(bad()),
        };
        Ok(match code {
            1 => Stop::Gone(ranks()?),
            2 => Stop::Late(ranks()?),
            3 => Stop::Refused(std::str::from_utf8(rest).map_err(|_| bad())?.to_owned()),
            _ => return Err(bad()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let kinds = [
            FrameKind::Hello,
            FrameKind::Welcome,
            FrameKind::Part,
            FrameKind::All,
            FrameKind::Stop,
            FrameKind::Parts,
        ];
        let kinds = prop::sample::select(kinds.to_vec());
        (kinds, any::<u32>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..100))
            .prop_map(|(kind, rank, number, payload)| Frame { kind, rank, number, payload })
    }

    /// Returns all frames of bytes that arrive in such pieces, and the end.
    fn read(bytes: &[u8], pieces: &[usize], limit: usize) -> (Vec<Frame>, Result<(), Malformed>) {
        let (mut reader, mut frames, mut rest) = (Reader::new(limit), Vec::new(), bytes);
        let mut pieces = pieces.iter().copied().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(pieces.next().unwrap_or(1).max(1)));
            reader.feed(now);
            rest = later;
            loop {
                match reader.next() {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(malformed) => return (frames, Err(malformed)),
                }
            }
        }
        (frames, Ok(()))
    }

    proptest! {
        #[test]
        fn frames_come_out_however_the_bytes_are_cut(
            frames in prop::collection::vec(frame(), 0..6), pieces in prop::collection::vec(1usize..70, 1..8)
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
            prop_assert_eq!(read(&bytes, &pieces, 100), (frames, Ok(())));
        }

        #[test]
        fn garbage_is_refused_or_waited_for_and_means_the_same_however_it_is_cut(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200), magic in 0usize..10, limit in 0usize..50,
            pieces in prop::collection::vec(1usize..70, 1..8)
        ) {
            for (to, from) in bytes.iter_mut().zip(MAGIC).take(magic) {
                *to = from;
            }
            let whole = read(&bytes, &[bytes.len().max(1)], limit);
            prop_assert_eq!(&whole, &read(&bytes, &pieces, limit));
            prop_assert!(whole.0.iter().all(|frame| frame.payload.len() <= limit));
            if bytes.first().is_some_and(|byte| *byte != MAGIC[0]) {
                prop_assert!(whole.1.is_err());
            }
        }

        #[test]
        fn a_changed_header_is_another_frame_or_an_error(frame in frame(), at in 0usize..HEADER, bit in 0u32..8) {
            let mut bytes = frame.encode();
            bytes[at] ^= 1 << bit;
            let (frames, _) = read(&bytes, &[bytes.len()], 100);
            prop_assert!(frames.first() != Some(&frame));
        }

        #[test]
        fn lists_round_trip_and_nothing_else_is_one(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6), cut in 1usize..40,
            garbage in prop::collection::vec(any::<u8>(), 0..60), count: u32
        ) {
            let bytes = encode_list(&parts);
            prop_assert_eq!(decode_list(&bytes, parts.len() as u32), Ok(parts.clone()));
            prop_assert!(decode_list(&bytes, parts.len() as u32 + 1).is_err());
            if cut <= bytes.len() {
                prop_assert!(decode_list(&bytes[..bytes.len() - cut], parts.len() as u32).is_err());
            }
            if let Ok(parts) = decode_list(&garbage, count) {
                prop_assert_eq!(encode_list(&parts), garbage);
            }
        }

        #[test]
        fn ends_round_trip_and_garbage_is_none(ranks in prop::collection::vec(any::<u32>(), 1..5), text: String, garbage: Vec<u8>) {
            for stop in [Stop::Gone(ranks.clone()), Stop::Late(ranks), Stop::Refused(text)] {
                prop_assert_eq!(Stop::decode(&stop.encode()), Ok(stop));
            }
            if let Ok(stop) = Stop::decode(&garbage) {
                prop_assert_eq!(stop.encode(), garbage);
            }
        }
    }
}
