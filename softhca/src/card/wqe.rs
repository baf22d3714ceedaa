//! Reading send work-queue entries, strictly.

use super::config::LIMITS;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::{CtrlSeg, DataSeg, InlineSeg, Opcode, RemoteAddrSeg, SEGMENT};
use zerocopy::FromBytes;

/// What a work request moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    Inline(Vec<u8>),
    Segments(Vec<DataSeg>),
}

/// A work request, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) opcode: Opcode,
    pub(super) remote: Option<(u64, u32)>,
    pub(super) payload: Payload,
    pub(super) length: u32,
}

/// What is wrong with a work request: how the card completes it, and the words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) syndrome: Syndrome,
    pub(super) field: &'static str,
    pub(super) message: String,
}

fn fault(syndrome: Syndrome, field: &'static str, message: String) -> Fault {
    Fault { syndrome, field, message }
}

/// Reads the segments after the control segment. `body` is as long as `ds` says.
pub(super) fn parse(ctrl: &CtrlSeg, body: &[u8]) -> Result<Work, Fault> {
    let malformed = |field, message| fault(Syndrome::LocalQpOperation, field, message);
    let opcode = ctrl.opcode().map_err(|unknown| malformed("opcode", unknown.to_string()))?;
    let nothing = Payload::Segments(Vec::new());
    let (has_remote, may_be_inline) = match opcode {
        Opcode::Nop => return Ok(Work { opcode, remote: None, payload: nothing, length: 0 }),
        Opcode::Send | Opcode::SendImm => (false, true),
        Opcode::RdmaWrite | Opcode::RdmaWriteImm => (true, true),
        Opcode::RdmaRead => (true, false),
        other => {
            return Err(malformed(
                "opcode",
                format!("{other:?} is not supported on an RC queue pair of this card"),
            ));
        }
    };
    let (remote, rest) = if has_remote {
        let (segment, rest) = RemoteAddrSeg::read_from_prefix(body).map_err(|_| {
            malformed("ds", format!("{opcode:?} with ds {} has no remote address segment", ctrl.ds()))
        })?;
        (Some((segment.addr(), segment.rkey())), rest)
    } else {
        (None, body)
    };
    let is_inline = rest.first_chunk().is_some_and(|first| InlineSeg::is_inline(*first));
    let payload = match (is_inline, may_be_inline) {
        (true, true) => Payload::Inline(parse_inline(rest)?),
        (true, false) => return Err(malformed("data segment", format!("{opcode:?} cannot be inline"))),
        (false, _) => Payload::Segments(parse_segments(rest)?),
    };
    let length: u64 = match &payload {
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Segments(segments) => segments.iter().map(|segment| u64::from(segment.byte_count())).sum(),
    };
    match u32::try_from(length) {
        Ok(length) if length <= LIMITS.max_message => Ok(Work { opcode, remote, payload, length }),
        _ => {
            let message = format!("the message has {length} bytes, the port allows {}", LIMITS.max_message);
            Err(fault(Syndrome::LocalLength, "byte_count", message))
        }
    }
}

/// Inline segments, each padded to 16 bytes.
fn parse_inline(mut rest: &[u8]) -> Result<Vec<u8>, Fault> {
    let malformed = |message| fault(Syndrome::LocalQpOperation, "inline segment", message);
    let mut bytes = Vec::new();
    while let Some(first) = rest.first_chunk() {
        if !InlineSeg::is_inline(*first) {
            return Err(malformed("an inline segment is followed by one that is not".to_owned()));
        }
        let count = (u32::from_be_bytes(*first) & !gdsync_sys::prm::wqe::INLINE_FLAG) as usize;
        let header = size_of::<InlineSeg>();
        let Some(data) = rest.get(header..).and_then(|data| data.get(..count)) else {
            return Err(malformed(format!("{count} bytes do not fit the {} that ds leaves", rest.len())));
        };
        bytes.extend_from_slice(data);
        let whole = (header + count).next_multiple_of(SEGMENT);
        rest = rest.get(whole..).unwrap_or(&[]);
    }
    Ok(bytes)
}

fn parse_segments(rest: &[u8]) -> Result<Vec<DataSeg>, Fault> {
    let mut segments = Vec::with_capacity(rest.len() / SEGMENT);
    for bytes in rest.chunks_exact(SEGMENT) {
        // 16 bytes for a type of 16 bytes without alignment: always read.
        let Ok(segment) = DataSeg::read_from_bytes(bytes) else { continue };
        if segment.byte_count() == 0 {
            let message =
                format!("element {} has byte_count 0, which means 2^31: leave it out", segments.len());
            return Err(fault(Syndrome::LocalLength, "byte_count", message));
        }
        if segment.byte_count() & gdsync_sys::prm::wqe::INLINE_FLAG != 0 {
            let message = format!("element {} is inline after one that is not", segments.len());
            return Err(fault(Syndrome::LocalQpOperation, "data segment", message));
        }
        segments.push(segment);
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_sys::prm::wqe::CtrlFlags;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn ctrl(opcode: Opcode, body: &[u8]) -> CtrlSeg {
        let ds = (16 + body.len()).div_ceil(16) as u8;
        CtrlSeg::new(opcode, 0, 1, ds, CtrlFlags::empty(), [0; 4])
    }

    fn body(segments: &[&[u8]]) -> Vec<u8> {
        let mut bytes = segments.concat();
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        bytes
    }

    fn refused(opcode: Opcode, segments: &[&[u8]]) -> Fault {
        let body = body(segments);
        parse(&ctrl(opcode, &body), &body).unwrap_err()
    }

    #[test]
    fn each_opcode_has_its_segments() {
        let raddr = RemoteAddrSeg::new(0x1000, 7);
        let data = [DataSeg::new(5, 1, 0x10), DataSeg::new(6, 2, 0x20)];
        let bytes = body(&[raddr.as_bytes(), data.as_bytes()]);
        let work = parse(&ctrl(Opcode::RdmaRead, &bytes), &bytes).unwrap();
        assert_eq!((work.remote, work.length), (Some((0x1000, 7)), 11));
        assert_eq!(work.payload, Payload::Segments(data.to_vec()));
        let work = parse(&ctrl(Opcode::Send, &[]), &[]).unwrap();
        assert_eq!((work.remote, work.length), (None, 0));
        let junk = [0xff; 48];
        assert_eq!(parse(&ctrl(Opcode::Nop, &junk), &junk).unwrap().length, 0, "a NOP may be of any size");
    }

    #[test]
    fn inline_segments_are_joined() {
        let (one, two) = (InlineSeg::new(13), InlineSeg::new(3));
        let first = body(&[one.as_bytes(), b"thirteen byte"]);
        let bytes = body(&[&first, two.as_bytes(), b"end"]);
        let work = parse(&ctrl(Opcode::Send, &bytes), &bytes).unwrap();
        assert_eq!(work.payload, Payload::Inline(b"thirteen byteend".to_vec()));
    }

    #[test]
    fn malformed_entries_are_named() {
        let data = DataSeg::new(5, 1, 0x10);
        let raddr = RemoteAddrSeg::new(0, 0);
        let inline = InlineSeg::new(4);
        assert_eq!(refused(Opcode::RdmaWrite, &[]).field, "ds");
        assert_eq!(refused(Opcode::AtomicFa, &[]).field, "opcode");
        assert_eq!(
            refused(Opcode::RdmaRead, &[raddr.as_bytes(), inline.as_bytes(), b"abcd"]).field,
            "data segment"
        );
        assert_eq!(refused(Opcode::Send, &[InlineSeg::new(13).as_bytes(), b"abcd"]).field, "inline segment");
        assert_eq!(
            refused(Opcode::Send, &[&body(&[inline.as_bytes(), b"abcd"]), data.as_bytes()]).field,
            "inline segment"
        );
        assert_eq!(refused(Opcode::Send, &[data.as_bytes(), inline.as_bytes()]).field, "data segment");
        let empty = refused(Opcode::Send, &[DataSeg::new(0, 1, 2).as_bytes()]);
        assert_eq!((empty.field, empty.syndrome), ("byte_count", Syndrome::LocalLength));
        let long = DataSeg::new(1 << 30, 1, 0);
        let fault = refused(Opcode::Send, &[long.as_bytes(), data.as_bytes()]);
        assert_eq!(fault.syndrome, Syndrome::LocalLength);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(first: [u8; 16], body in proptest::collection::vec(any::<u8>(), 0..1000)) {
            let ctrl = CtrlSeg::read_from_bytes(&first).unwrap();
            if let Ok(work) = parse(&ctrl, &body) {
                prop_assert!(work.length <= LIMITS.max_message);
            }
        }
    }
}
