//! The strict parser of send WQEs, and its errors.

use super::WqeError;
use super::segments::{Operands, is_atomic, parse_key_change, parse_operands};
use super::wait::{self, Wait};
use crate::card::config::{LIMITS, Transport};
use crate::card::memory::indirect::KeyChange;
use crate::card::memory::translation::{KeyRange, Walk};
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::{
    AddressVector, CtrlSeg, DataSeg, InlineSeg, Opcode, RemoteAddrSeg, SEGMENT, XrcSeg,
};
use zerocopy::FromBytes;

/// The data of a work request, or the memory for its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Inline(Vec<u8>),
    Segments(Vec<DataSeg>),
    /// Inline bytes, and the segments after them.
    Mixed(Vec<u8>, Vec<DataSeg>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) opcode: Opcode,
    pub(crate) remote: Option<(u64, u32)>,
    pub(crate) operands: Option<Operands>,
    pub(crate) change: Option<Box<KeyChange>>,
    /// Destination of a datagram or a DC request.
    pub(crate) to: Option<Box<AddressVector>>,
    pub(crate) wait: Option<Wait>,
    /// The remote shared receive queue of an XRC request; otherwise 0.
    pub(crate) srqn: u32,
    pub(crate) payload: Payload,
    pub(crate) length: u32,
}

fn error(syndrome: Syndrome, field: &'static str, message: String) -> WqeError {
    WqeError { syndrome, field, message }
}

impl Work {
    /// Returns whether it has no packets and does not wait.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.opcode, Opcode::Nop | Opcode::Umr | Opcode::Dump)
    }
}

/// Parses the segments after the control segment. `body` has the length that `ds` says.
pub(crate) fn parse(ctrl: &CtrlSeg, body: &[u8], transport: Transport) -> Result<Work, WqeError> {
    let malformed = |field, message| error(Syndrome::LocalQpOperation, field, message);
    let opcode = ctrl.opcode().map_err(|unknown| malformed("opcode", unknown.to_string()))?;
    let mut work = Work {
        opcode,
        remote: None,
        operands: None,
        change: None,
        to: None,
        wait: wait::parse(ctrl, body)?,
        srqn: 0,
        payload: Payload::Segments(Vec::new()),
        length: 0,
    };
    if work.wait.is_some() {
        return Ok(work);
    }
    use Transport::{DcInitiator, Rc, Uc, Ud, XrcInitiator};
    let (has_remote, may_be_inline) = match (opcode, transport) {
        (Opcode::Nop, _) => return Ok(work),
        (Opcode::Umr, Rc | Uc | XrcInitiator | DcInitiator) => {
            return Ok(Work { change: Some(Box::new(parse_key_change(ctrl, body)?)), ..work });
        }
        (Opcode::Dump, Rc | Uc | XrcInitiator | DcInitiator) => (false, false),
        (Opcode::Send | Opcode::SendImm, Rc | Uc | Ud | XrcInitiator | DcInitiator) => (false, true),
        (Opcode::SendInval, Rc | XrcInitiator | DcInitiator) => (false, true),
        (Opcode::RdmaWrite | Opcode::RdmaWriteImm, Rc | Uc | XrcInitiator | DcInitiator) => (true, true),
        (Opcode::RdmaRead, Rc | XrcInitiator | DcInitiator) => (true, false),
        (opcode, Rc | XrcInitiator | DcInitiator) if is_atomic(opcode) => (true, false),
        (other, transport) => {
            let message = format!("{other:?} is not supported on a {transport} queue pair of this card");
            return Err(malformed("opcode", message));
        }
    };
    let missing = |segment| malformed("ds", format!("{opcode:?} with ds {} has no {segment}", ctrl.ds()));
    let mut rest = body;
    // A request without packets has no destination.
    let is_local = work.is_local();
    if matches!(transport, Ud | DcInitiator) && !is_local {
        let (vector, behind) =
            AddressVector::read_from_prefix(rest).map_err(|_| missing("datagram segment of 48 bytes"))?;
        if !vector.is_extended() {
            let message = "the address vector lacks the bit that says it has 48 bytes".to_owned();
            return Err(malformed("dqp_dct", message));
        }
        (work.to, rest) = (Some(Box::new(vector)), behind);
    }
    if transport == XrcInitiator && !is_local {
        let (segment, behind) = XrcSeg::read_from_prefix(rest).map_err(|_| missing("XRC segment"))?;
        (work.srqn, rest) = (segment.srqn(), behind);
    }
    if has_remote {
        let (segment, behind) =
            RemoteAddrSeg::read_from_prefix(rest).map_err(|_| missing("remote address segment"))?;
        (work.remote, rest) = (Some((segment.addr(), segment.rkey())), behind);
    }
    if is_atomic(opcode) {
        let (operands, behind) = parse_operands(ctrl, opcode, rest)?;
        (work.operands, rest) = (Some(operands), behind);
    }
    let is_inline = rest.first_chunk().is_some_and(|first| InlineSeg::is_inline(*first));
    work.payload = match (is_inline, may_be_inline) {
        (true, true) => parse_inline(rest)?,
        (true, false) => return Err(malformed("data segment", format!("{opcode:?} cannot be inline"))),
        (false, _) => Payload::Segments(parse_segments(rest)?),
    };
    let length: u64 = match &work.payload {
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Segments(segments) => total(segments),
        Payload::Mixed(bytes, segments) => bytes.len() as u64 + total(segments),
    };
    if let Some(Operands { bytes, .. }) = work.operands
        && length != u64::from(bytes)
    {
        let message = format!("{opcode:?} needs a place of {bytes} bytes for its result, not {length}");
        return Err(error(Syndrome::LocalLength, "byte_count", message));
    }
    let limit = if transport == Ud { LIMITS.max_datagram } else { LIMITS.max_message };
    match u32::try_from(length) {
        Ok(length) if length <= limit => Ok(Work { length, ..work }),
        _ => {
            let message = format!("the message has {length} bytes, the port allows {limit} on {transport}");
            Err(error(Syndrome::LocalLength, "byte_count", message))
        }
    }
}

impl Work {
    /// Checks the message against the longest that the queue pair sends, 2^`log`; 0 for the port's longest.
    pub(crate) fn within(self, log: u8) -> Result<Work, WqeError> {
        if log == 0 || self.length <= 1 << log {
            return Ok(self);
        }
        let message =
            format!("the message has {} bytes, the queue pair allows 2^{log} (log_msg_max)", self.length);
        Err(error(Syndrome::LocalLength, "byte_count", message))
    }
}

fn total(segments: &[DataSeg]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.byte_count())).sum()
}

/// Parses inline segments, each padded to 16 bytes, and the data segments after them.
fn parse_inline(mut rest: &[u8]) -> Result<Payload, WqeError> {
    let malformed = |message| error(Syndrome::LocalQpOperation, "inline segment", message);
    let mut bytes = Vec::new();
    while let Some(first) = rest.first_chunk() {
        if !InlineSeg::is_inline(*first) {
            return Ok(Payload::Mixed(bytes, parse_segments(rest)?));
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
    Ok(Payload::Inline(bytes))
}

fn parse_segments(rest: &[u8]) -> Result<Vec<DataSeg>, WqeError> {
    let mut segments = Vec::with_capacity(rest.len() / SEGMENT);
    for bytes in rest.chunks_exact(SEGMENT) {
        // 16 bytes for a type of 16 bytes without alignment: this cannot fail.
        let Ok(segment) = DataSeg::read_from_bytes(bytes) else { continue };
        if segment.byte_count() == 0 {
            let message =
                format!("element {} has byte_count 0, which means 2^31: leave it out", segments.len());
            return Err(error(Syndrome::LocalLength, "byte_count", message));
        }
        if segment.byte_count() & gdsync_sys::prm::wqe::INLINE_FLAG != 0 {
            let message = format!("element {} is inline after one that is not", segments.len());
            return Err(error(Syndrome::LocalQpOperation, "data segment", message));
        }
        segments.push(segment);
    }
    Ok(segments)
}

/// Calls `piece` for each part of the segments that is in `offset..offset + length` of the message.
pub(crate) fn each_piece<E>(
    segments: &[DataSeg],
    offset: u32,
    length: u32,
    mut piece: impl FnMut(KeyRange) -> Result<(), E>,
) -> Result<(), E> {
    let mut walk = Walk { skip: offset.into(), left: length.into() };
    segments.iter().try_for_each(|segment| {
        walk.take(segment.byte_count().into(), segment.lkey(), segment.addr(), &mut piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_sys::prm::wqe::{AddressFields, AtomicSeg, CtrlFlags};
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

    fn refused_on(transport: Transport, opcode: Opcode, segments: &[&[u8]]) -> WqeError {
        let body = body(segments);
        parse(&ctrl(opcode, &body), &body, transport).unwrap_err()
    }

    fn refused(opcode: Opcode, segments: &[&[u8]]) -> WqeError {
        refused_on(Transport::Rc, opcode, segments)
    }

    fn vector() -> AddressVector {
        AddressVector::new(&AddressFields { qkey: 0x11, qpn: 0x22, dlid: 3, ..AddressFields::default() })
    }

    #[test]
    fn each_opcode_has_its_segments() {
        let raddr = RemoteAddrSeg::new(0x1000, 7);
        let data = [DataSeg::new(5, 1, 0x10), DataSeg::new(6, 2, 0x20)];
        let bytes = body(&[raddr.as_bytes(), data.as_bytes()]);
        let work = parse(&ctrl(Opcode::RdmaRead, &bytes), &bytes, Transport::Rc).unwrap();
        assert_eq!((work.remote, work.length), (Some((0x1000, 7)), 11));
        assert_eq!(work.payload, Payload::Segments(data.to_vec()));
        let work = parse(&ctrl(Opcode::Send, &[]), &[], Transport::Rc).unwrap();
        assert_eq!((work.remote, work.length), (None, 0));
        let junk = [0xff; 48];
        assert_eq!(
            parse(&ctrl(Opcode::Nop, &junk), &junk, Transport::Rc).unwrap().length,
            0,
            "a NOP may be of any size"
        );
    }

    #[test]
    fn inline_segments_are_joined() {
        let (one, two) = (InlineSeg::new(13), InlineSeg::new(3));
        let first = body(&[one.as_bytes(), b"thirteen byte"]);
        let bytes = body(&[&first, two.as_bytes(), b"end"]);
        let work = parse(&ctrl(Opcode::Send, &bytes), &bytes, Transport::Rc).unwrap();
        assert_eq!(work.payload, Payload::Inline(b"thirteen byteend".to_vec()));
        let data = DataSeg::new(5, 1, 0x10);
        let bytes = body(&[&bytes, data.as_bytes()]);
        let work = parse(&ctrl(Opcode::Send, &bytes), &bytes, Transport::Rc).unwrap();
        assert_eq!(work.payload, Payload::Mixed(b"thirteen byteend".to_vec(), vec![data]));
        assert_eq!(work.length, 21);
    }

    #[test]
    fn malformed_entries_are_named() {
        let data = DataSeg::new(5, 1, 0x10);
        let raddr = RemoteAddrSeg::new(0, 0);
        let inline = InlineSeg::new(4);
        assert_eq!(refused(Opcode::RdmaWrite, &[]).field, "ds");
        assert_eq!(refused(Opcode::AtomicFa, &[]).field, "ds");
        assert_eq!(refused(Opcode::Umr, &[]).field, "ds");
        assert_eq!(refused(Opcode::Tso, &[]).field, "opcode");
        assert_eq!(
            refused(Opcode::RdmaRead, &[raddr.as_bytes(), inline.as_bytes(), b"abcd"]).field,
            "data segment"
        );
        assert_eq!(refused(Opcode::Send, &[InlineSeg::new(13).as_bytes(), b"abcd"]).field, "inline segment");
        assert_eq!(refused(Opcode::Send, &[data.as_bytes(), inline.as_bytes()]).field, "data segment");
        let empty = refused(Opcode::Send, &[DataSeg::new(0, 1, 2).as_bytes()]);
        assert_eq!((empty.field, empty.syndrome), ("byte_count", Syndrome::LocalLength));
        let long = DataSeg::new(1 << 30, 1, 0);
        let too_long = refused(Opcode::Send, &[long.as_bytes(), data.as_bytes()]);
        assert_eq!(too_long.syndrome, Syndrome::LocalLength);
    }

    #[test]
    fn atomics_have_operands_and_a_place_of_8_bytes() {
        let (raddr, operands) = (RemoteAddrSeg::new(0x1000, 7), AtomicSeg::new(1, 2));
        let result = DataSeg::new(8, 1, 0x10);
        let bytes = body(&[raddr.as_bytes(), operands.as_bytes(), result.as_bytes()]);
        let work = parse(&ctrl(Opcode::AtomicCs, &bytes), &bytes, Transport::Rc).unwrap();
        let parsed = Operands { bytes: 8, swap_add: 1, compare: 2, masks: None };
        assert_eq!((work.remote, work.operands, work.length), (Some((0x1000, 7)), Some(parsed), 8));
        let with =
            |result: &[u8]| refused(Opcode::AtomicFa, &[raddr.as_bytes(), operands.as_bytes(), result]);
        for wrong in [DataSeg::new(7, 1, 0x10), DataSeg::new(16, 1, 0x10)] {
            assert_eq!(with(wrong.as_bytes()).syndrome, Syndrome::LocalLength);
        }
        assert_eq!(with(&[]).syndrome, Syndrome::LocalLength);
        assert_eq!(with(InlineSeg::new(8).as_bytes()).field, "data segment");
        assert_eq!(refused(Opcode::AtomicCs, &[raddr.as_bytes()]).field, "ds");
        let mut first = ctrl(Opcode::AtomicCs, &bytes).as_bytes().to_vec();
        first[0] = 8;
        let masked = CtrlSeg::read_from_bytes(&first).unwrap();
        assert_eq!(parse(&masked, &bytes, Transport::Rc).unwrap_err().field, "opmod");
    }

    #[test]
    fn masked_atomics_have_4_or_8_bytes_and_masks() {
        let raddr = RemoteAddrSeg::new(0x1000, 7);
        let parsed = |opcode, modifier, operands: &[u8], result: u32| {
            let result = DataSeg::new(result, 1, 0x10);
            let bytes = body(&[raddr.as_bytes(), operands, result.as_bytes()]);
            parse(&ctrl(opcode, &bytes).with_opmod(modifier), &bytes, Transport::Rc)
        };
        let words = [1u32, 2, 3, 4].map(u32::to_be_bytes).concat();
        let of = |bytes, swap_add, compare, masks| Operands { bytes, swap_add, compare, masks: Some(masks) };
        let (cs, fa) = (Opcode::AtomicMaskedCs, Opcode::AtomicMaskedFa);
        let operands = |work: Result<Work, WqeError>| work.unwrap().operands.unwrap();
        assert_eq!(operands(parsed(cs, 8, &words, 4)), of(4, 1, 2, [3, 4]));
        assert_eq!(operands(parsed(fa, 8, &words, 4)), of(4, 1, 0, [2, 0]));
        let (first, second) = (AtomicSeg::new(1, 2), AtomicSeg::new(3, 4));
        let both = [first.as_bytes(), second.as_bytes()].concat();
        assert_eq!(operands(parsed(cs, 9, &both, 8)), of(8, 1, 2, [3, 4]));
        assert_eq!(operands(parsed(fa, 9, first.as_bytes(), 8)), of(8, 1, 0, [2, 0]));
        for modifier in [0, 7, 10] {
            assert_eq!(parsed(fa, modifier, first.as_bytes(), 8).unwrap_err().field, "opmod");
        }
        assert_eq!(parsed(cs, 8, &words, 8).unwrap_err().syndrome, Syndrome::LocalLength);
        assert_eq!(refused(Opcode::AtomicMaskedCs, &[raddr.as_bytes()]).field, "opmod");
    }

    #[test]
    fn datagrams_have_an_address_and_at_most_the_mtu() {
        let data = DataSeg::new(4096, 1, 0x10);
        let bytes = body(&[vector().as_bytes(), data.as_bytes()]);
        let work = parse(&ctrl(Opcode::SendImm, &bytes), &bytes, Transport::Ud).unwrap();
        assert_eq!((work.to.as_deref(), work.length), (Some(&vector()), 4096));
        let refused = |segments: &[&[u8]]| refused_on(Transport::Ud, Opcode::Send, segments);
        let long = refused(&[vector().as_bytes(), DataSeg::new(4097, 1, 0x10).as_bytes()]);
        assert_eq!((long.syndrome, long.field), (Syndrome::LocalLength, "byte_count"));
        assert_eq!(refused(&[&vector().as_bytes()[..32]]).field, "ds");
        let mut short = vector().as_bytes().to_vec();
        short[8] = 0;
        assert_eq!(refused(&[&short, data.as_bytes()]).field, "dqp_dct");
    }

    #[test]
    fn every_transport_has_its_opcodes() {
        use Opcode::{
            AtomicCs, AtomicFa, AtomicMaskedCs, AtomicMaskedFa, Dump, Nop, RdmaRead, RdmaWrite, RdmaWriteImm,
            Send, SendImm, SendInval, Umr,
        };
        const ALL: [Opcode; 13] = [
            Nop,
            Umr,
            Dump,
            Send,
            SendImm,
            SendInval,
            RdmaWrite,
            RdmaWriteImm,
            RdmaRead,
            AtomicCs,
            AtomicFa,
            AtomicMaskedCs,
            AtomicMaskedFa,
        ];
        let allowed: [(Transport, &[Opcode]); 7] = [
            (Transport::Rc, &ALL),
            (Transport::Uc, &[Nop, Umr, Dump, Send, SendImm, RdmaWrite, RdmaWriteImm]),
            (Transport::Ud, &[Nop, Send, SendImm]),
            (Transport::XrcInitiator, &ALL),
            (Transport::XrcTarget, &[Nop]),
            (Transport::DcInitiator, &ALL),
            (Transport::DcTarget, &[Nop]),
        ];
        // Without their segments they are refused for that.
        let waits = [Opcode::Wait, Opcode::SendEnable];
        for (transport, allowed) in allowed {
            for &opcode in Opcode::ALL {
                let parsed = parse(&ctrl(opcode, &[]), &[], transport);
                let is_refused = parsed.is_err_and(|error| error.field == "opcode");
                let is_allowed = allowed.contains(&opcode) || waits.contains(&opcode);
                assert_eq!(is_refused, !is_allowed, "{opcode:?} on {transport}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(first: [u8; 16], opcode in proptest::sample::select(Opcode::ALL),
                                  body in proptest::collection::vec(any::<u8>(), 0..1000)) {
            let known = CtrlSeg::new(opcode, 0, 1, 1, CtrlFlags::empty(), [0; 4]);
            for ctrl in [CtrlSeg::read_from_bytes(&first).unwrap(), known] {
                for transport in [Transport::Rc, Transport::Uc, Transport::Ud, Transport::XrcInitiator] {
                    if let Ok(work) = parse(&ctrl, &body, transport) {
                        prop_assert!(work.length <= LIMITS.max_message);
                        prop_assert_eq!(work.to.is_some(), transport == Transport::Ud && !work.is_local() && work.wait.is_none());
                    }
                }
            }
        }
    }
}
