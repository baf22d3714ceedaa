//! The bytes of netlink messages (`linux/netlink.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `NLMSG_ERROR`, `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_MULTI`: one of several messages that answer a request.
const MULTI: u16 = 2;
/// `NLM_F_ACK`: the sender asks for an acknowledgement.
const ACK: u16 = 4;
/// `NLM_F_DUMP`: the sender asks for all objects.
const DUMP: u16 = 0x300;
/// Messages and attributes are aligned to this many bytes.
const ALIGNMENT: usize = 4;

/// `struct nlmsghdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Header {
    pub(super) len: u32,
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) port: u32,
}

impl Header {
    pub(super) fn wants_all(&self) -> bool {
        self.flags & DUMP == DUMP
    }

    pub(super) fn wants_acknowledgement(&self) -> bool {
        self.flags & ACK != 0
    }
}

/// A request: its header, and its attributes by type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) header: Header,
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    /// Splits off the first request of a message; `None` if none is complete.
    pub(super) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (header, _) = Header::read_from_prefix(bytes).ok()?;
        let len = usize::try_from(header.len).ok().filter(|len| *len >= size_of::<Header>())?;
        let attributes = bytes.get(size_of::<Header>()..len)?;
        let rest = bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((Request { header, attributes }, rest))
    }

    /// Returns the value of the first attribute of a type.
    pub(super) fn attribute(&self, kind: u16) -> Option<&'a [u8]> {
        let mut rest = self.attributes;
        while let ([len_low, len_high, kind_low, kind_high, ..], whole) = (rest, rest) {
            let len = usize::from(u16::from_ne_bytes([*len_low, *len_high]));
            let value = whole.get(ALIGNMENT..len)?;
            if u16::from_ne_bytes([*kind_low, *kind_high]) == kind {
                return Some(value);
            }
            rest = whole.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        None
    }

    /// Returns the value of a 32-bit attribute.
    pub(super) fn number(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.attribute(kind)?.try_into().ok()?))
    }
}

pub(super) struct Answer(Vec<u8>);

impl Answer {
    /// Makes an answer for a port. `of_several`: more messages follow, and then [`done`].
    pub(super) fn new(request: &Header, port: u32, of_several: bool) -> Self {
        Answer::of_kind(request.kind, if of_several { MULTI } else { 0 }, request, port)
    }

    fn of_kind(kind: u16, flags: u16, request: &Header, port: u32) -> Self {
        let header = Header { len: 0, kind, flags, sequence: request.sequence, port };
        Answer(header.as_bytes().to_vec())
    }

    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        // Names and numbers are far below the field's 64 KiB.
        let len = (ALIGNMENT + value.len()) as u16;
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.padded(value)
    }

    pub(super) fn number<T: IntoBytes + Immutable>(self, kind: u16, value: T) -> Self {
        self.attribute(kind, value.as_bytes())
    }

    /// Text ends with a zero.
    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    fn padded(mut self, value: &[u8]) -> Self {
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
        self
    }

    pub(super) fn bytes(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// The end of an answer of several messages.
pub(super) fn done(request: &Header, port: u32) -> Vec<u8> {
    Answer::of_kind(DONE, MULTI, request, port).padded(&0i32.to_ne_bytes()).bytes()
}

/// A failure, by its errno, or an acknowledgement, which is 0.
pub(super) fn error(request: &Header, port: u32, errno: i32) -> Vec<u8> {
    let answer = Answer::of_kind(ERROR, 0, request, port).padded(&(-errno).to_ne_bytes());
    answer.padded(request.as_bytes()).bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { len: 0, kind: 0x1401, flags: 0, sequence: 7, port: 0 };

    #[test]
    fn what_is_written_is_read() {
        let bytes = Answer::new(&HEADER, 9, true).number(1, 5u32).text(2, "ab").number(3, 6u8).bytes();
        assert_eq!(bytes.len(), 16 + 8 + 8 + 8);
        let (read, rest) = Request::split(&bytes).unwrap();
        assert_eq!((read.header.kind, read.header.flags, read.header.port), (0x1401, MULTI, 9));
        assert_eq!(
            (read.number(1), read.attribute(2), read.attribute(3)),
            (Some(5), Some(&b"ab\0"[..]), Some(&[6][..]))
        );
        assert_eq!((read.attribute(4), read.number(3)), (None, None));
        assert!(rest.is_empty());
    }

    #[test]
    fn bytes_that_are_no_message_are_none() {
        assert!(Request::split(&[]).is_none());
        let header = |len| Header { len, ..HEADER }.as_bytes().to_vec();
        for len in [0, 15, 17, u32::MAX] {
            assert!(Request::split(&header(len)).is_none(), "{len}");
        }
        let mut cut = header(24);
        cut.extend([9, 0, 1, 0, 0, 0, 0, 0]);
        let (request, _) = Request::split(&cut).unwrap();
        assert_eq!(request.attribute(1), None, "longer than the message");
        cut[16] = 0;
        let (request, _) = Request::split(&cut).unwrap();
        assert_eq!(request.attribute(1), None, "shorter than its header");
    }
}
