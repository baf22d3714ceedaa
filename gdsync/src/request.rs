//! Work requests: what a user asks a queue pair to do, and its encoding.

use crate::error::QueueError;
use crate::mr::{RemoteMemory, Slice};
use crate::queue::Segments;
use crate::queue::regions::Regions;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, InlineSeg, MAX_DS, Opcode, RemoteAddrSeg, SEGMENT};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A send, an RDMA write or an RDMA read, for [`crate::QueuePair::prepare`].
///
/// Requests are signaled (their completion can be polled and waited for) unless [`WorkRequest::unsignaled`] says otherwise.
#[derive(Clone, Debug)]
#[must_use = "a work request does nothing until it is prepared"]
pub struct WorkRequest<'a> {
    opcode: Opcode,
    payload: Payload<'a>,
    remote: Option<RemoteMemory>,
    immediate: u32,
    flags: CtrlFlags,
    wr_id: u64,
}

#[derive(Clone, Debug)]
enum Payload<'a> {
    Slices(&'a [Slice]),
    Inline(&'a [u8]),
}

/// Limits that a request is encoded within.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) segments: u32,
    pub(crate) inline: u32,
    pub(crate) message: u64,
}

impl<'a> WorkRequest<'a> {
    #[inline]
    fn new(opcode: Opcode, payload: Payload<'a>, remote: Option<RemoteMemory>) -> Self {
        WorkRequest { opcode, payload, remote, immediate: 0, flags: CtrlFlags::CQ_UPDATE, wr_id: 0 }
    }

    /// Sends the slices, one after the other, into a receive of the remote side. No slice: an empty message.
    #[inline]
    pub fn send(slices: &'a [Slice]) -> Self {
        Self::new(Opcode::Send, Payload::Slices(slices), None)
    }

    /// Sends bytes that are copied into the work request now.
    #[inline]
    pub fn send_inline(bytes: &'a [u8]) -> Self {
        Self::new(Opcode::Send, Payload::Inline(bytes), None)
    }

    /// Writes the slices to remote memory, from its first address on. The remote CPU is not told.
    #[inline]
    pub fn write(slices: &'a [Slice], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaWrite, Payload::Slices(slices), Some(remote))
    }

    /// Writes bytes that are copied into the work request now.
    #[inline]
    pub fn write_inline(bytes: &'a [u8], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaWrite, Payload::Inline(bytes), Some(remote))
    }

    /// Reads remote memory into the slices.
    #[inline]
    pub fn read(slices: &'a [Slice], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaRead, Payload::Slices(slices), Some(remote))
    }

    /// Adds immediate data, which the receiver finds in its completion. A write with immediate consumes a receive of the
    /// remote side. Ignored for reads, which carry none.
    #[inline]
    pub fn immediate(mut self, value: u32) -> Self {
        self.opcode = match self.opcode {
            Opcode::Send => Opcode::SendImm,
            Opcode::RdmaWrite => Opcode::RdmaWriteImm,
            other => other,
        };
        self.immediate = value;
        self
    }

    /// The number that the completion will carry.
    #[inline]
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// No completion on success. Its place in the send queue is freed by the next signaled request's completion, so
    /// every queue needs a signaled request now and then.
    #[inline]
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(CtrlFlags::CQ_UPDATE);
        self
    }

    /// Asks the receiver's card to raise an event, where the receiver asked for solicited ones.
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags.insert(CtrlFlags::SOLICITED);
        self
    }

    /// Starts only after every RDMA read posted before has finished.
    #[inline]
    pub fn fence(mut self) -> Self {
        self.flags.insert(CtrlFlags::FENCE);
        self
    }

    /// The number that the completion will carry.
    pub(crate) fn number(&self) -> u64 {
        self.wr_id
    }

    pub(crate) fn is_signaled(&self) -> bool {
        self.flags.contains(CtrlFlags::CQ_UPDATE)
    }

    /// The control segment, for block `index` of a queue pair's send queue, of a request of so many segments.
    #[inline(always)]
    pub(crate) fn control(&self, index: u16, qpn: u32, units: u8) -> CtrlSeg {
        CtrlSeg::new(self.opcode, index, qpn, units, self.flags, self.immediate.to_be_bytes())
    }

    /// Segments that it takes at most, with the control segment; fewer where slices are empty.
    #[inline(always)]
    pub(crate) fn most_units(&self, limits: Limits) -> Result<u32, QueueError> {
        let fixed = 1 + usize::from(self.remote.is_some());
        let data = match self.payload {
            Payload::Slices(slices) if slices.len() <= limits.segments as usize => slices.len(),
            Payload::Slices(slices) => count_segments(slices, limits.segments)?,
            Payload::Inline(bytes) if bytes.len() > limits.inline as usize => {
                return Err(QueueError::InlineTooLong { given: bytes.len(), limit: limits.inline });
            }
            Payload::Inline(bytes) => (size_of::<InlineSeg>() + bytes.len()).div_ceil(SEGMENT),
        };
        if fixed + data > usize::from(MAX_DS) { Err(self.too_long(fixed)) } else { Ok((fixed + data) as u32) }
    }

    /// It takes more segments than a WQE can have, of which `fixed` are not the payload's.
    #[cold]
    fn too_long(&self, fixed: usize) -> QueueError {
        let room = usize::from(MAX_DS) - fixed;
        match self.payload {
            Payload::Slices(slices) => {
                QueueError::TooManySegments { given: slices.len(), limit: room as u32 }
            }
            Payload::Inline(bytes) => {
                QueueError::InlineTooLong { given: bytes.len(), limit: (room * SEGMENT) as u32 }
            }
        }
    }

    /// The regions that the card will reach; `several`, as [`Self::encode`] says.
    #[inline(always)]
    pub(crate) fn regions(&self, several: bool) -> Regions {
        match self.payload {
            Payload::Slices(slices) => Regions::of(slices, several),
            Payload::Inline(_) => Regions::None,
        }
    }

    /// Gives out the segments after the control segment, no more than [`Self::most_units`] says. Where it fails, some were given
    /// out.
    ///
    /// Returns whether the slices are of several regions.
    #[inline(always)]
    pub(crate) fn encode(&self, rules: &impl Rules, out: &mut impl Segments) -> Result<bool, QueueError> {
        if let Some(remote) = &self.remote {
            out.put(zerocopy::transmute!(RemoteAddrSeg::new(remote.addr, remote.rkey)));
        }
        let (length, several) = match self.payload {
            Payload::Inline(bytes) => {
                encode_inline(bytes, out);
                (bytes.len() as u64, false)
            }
            Payload::Slices(slices) => self.encode_slices(slices, rules, out)?,
        };
        let limit = rules.limits().message;
        if length > limit {
            return Err(QueueError::MessageTooLong { given: length, limit });
        }
        match &self.remote {
            Some(remote) if length > remote.len => {
                Err(QueueError::OutOfBounds { start: 0, end: length, len: remote.len })
            }
            _ => Ok(several),
        }
    }

    /// The data segments. Slices in a row are mostly of one region: what concerns that is looked at once.
    #[inline(always)]
    fn encode_slices(
        &self,
        slices: &[Slice],
        rules: &impl Rules,
        out: &mut impl Segments,
    ) -> Result<(u64, bool), QueueError> {
        let Some(first) = slices.first() else { return Ok((0, false)) };
        let mut region = first.region();
        rules.check(first, self.opcode == Opcode::RdmaRead)?;
        let (mut length, mut all, mut several) = (0u64, 0, false);
        for slice in slices {
            if !Arc::ptr_eq(region, slice.region()) {
                rules.check(slice, self.opcode == Opcode::RdmaRead)?;
                region = slice.region();
                several = true;
            }
            let len = slice.len() as u64;
            length += len;
            all |= len;
            if len != 0 {
                out.put(zerocopy::transmute!(DataSeg::new(len as u32, region.lkey(), slice.addr())));
            }
        }
        if all > u64::from(MAX_COUNT) {
            return Err(QueueError::MessageTooLong { given: length, limit: MAX_COUNT.into() });
        }
        Ok((length, several))
    }
}

/// Most bytes of one data segment: 31 bits.
const MAX_COUNT: u32 = (1 << 31) - 1;

/// What a queue pair asks of the requests that it takes.
pub(crate) trait Rules {
    fn limits(&self) -> Limits;
    /// Whether the card may use the slice; `card_writes` to it.
    fn check(&self, slice: &Slice, card_writes: bool) -> Result<(), QueueError>;
}

/// Bytes behind a count of them, in as many segments as that takes.
#[inline(always)]
fn encode_inline(bytes: &[u8], out: &mut impl Segments) {
    let mut segment = [0; SEGMENT];
    let (header, rest) = segment.split_at_mut(size_of::<InlineSeg>());
    header.copy_from_slice(InlineSeg::new(bytes.len() as u32).as_bytes());
    let (first, bytes) = bytes.split_at(bytes.len().min(rest.len()));
    rest[..first.len()].copy_from_slice(first);
    out.put(segment);
    for chunk in bytes.chunks(SEGMENT) {
        let mut segment = [0; SEGMENT];
        segment[..chunk.len()].copy_from_slice(chunk);
        out.put(segment);
    }
}

/// The slices that need a segment. A byte count of 0 means 2^31 to the card (PRM, data segment), so empty ones are left out, as
/// libmlx5 does.
fn count_segments(slices: &[Slice], limit: u32) -> Result<usize, QueueError> {
    let given = slices.iter().filter(|slice| !slice.is_empty()).count();
    if given > limit as usize { Err(QueueError::TooManySegments { given, limit }) } else { Ok(given) }
}

/// The data segment of a slice that is not empty.
fn data_segment(slice: &Slice) -> Result<DataSeg, QueueError> {
    match u32::try_from(slice.len()) {
        Ok(count) if count <= MAX_COUNT => Ok(DataSeg::new(count, slice.region().lkey(), slice.addr())),
        _ => Err(QueueError::MessageTooLong { given: slice.len() as u64, limit: MAX_COUNT.into() }),
    }
}

/// Data segments of the non-empty slices, for a receive.
pub(crate) fn data_segments(slices: &[Slice], limit: u32) -> Result<Vec<DataSeg>, QueueError> {
    count_segments(slices, limit)?;
    slices.iter().filter(|slice| !slice.is_empty()).map(data_segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { segments: 4, inline: 44, message: 1 << 30 };
    const REMOTE: RemoteMemory = RemoteMemory { addr: 0x1000, len: 64, rkey: 9 };

    impl Rules for Limits {
        fn limits(&self) -> Limits {
            *self
        }

        fn check(&self, _: &Slice, _: bool) -> Result<(), QueueError> {
            Ok(())
        }
    }

    /// The whole request as the card reads it.
    fn encode(request: WorkRequest<'_>, limits: Limits) -> Result<(CtrlSeg, Vec<u8>), QueueError> {
        let units = request.most_units(limits)?;
        let mut body = Vec::new();
        request.encode(&limits, &mut body)?;
        assert_eq!(body.len(), (units as usize - 1) * SEGMENT, "as many segments as were announced");
        Ok((request.control(0, 0, units as u8), body))
    }

    #[test]
    fn an_inline_write_has_address_length_and_bytes() {
        let (ctrl, body) = encode(WorkRequest::write_inline(b"abc", REMOTE), LIMITS).unwrap();
        let mut expected = Vec::new();
        expected.extend_from_slice(&0x1000u64.to_be_bytes());
        expected.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 0]);
        expected.extend_from_slice(&[0x80, 0, 0, 3, b'a', b'b', b'c', 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((body, ctrl.opcode(), ctrl.ds()), (expected, Ok(Opcode::RdmaWrite), 3));
    }

    #[test]
    fn inline_bytes_follow_their_count_at_every_length() {
        for len in 0..=44usize {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            let (_, body) = encode(WorkRequest::send_inline(&bytes), LIMITS).unwrap();
            assert_eq!(body[..4], (0x8000_0000 | len as u32).to_be_bytes());
            assert_eq!((&body[4..4 + len], body.len()), (&bytes[..], (4 + len).div_ceil(16) * 16));
            assert!(body[4 + len..].iter().all(|byte| *byte == 0), "padding is zeroed");
        }
    }

    #[test]
    fn an_immediate_changes_the_opcode_but_not_of_a_read() {
        let opcode = |request: WorkRequest<'_>| encode(request.immediate(1), LIMITS).unwrap().0.opcode();
        assert_eq!(opcode(WorkRequest::send(&[])), Ok(Opcode::SendImm));
        assert_eq!(opcode(WorkRequest::write(&[], REMOTE)), Ok(Opcode::RdmaWriteImm));
        assert_eq!(opcode(WorkRequest::read(&[], REMOTE)), Ok(Opcode::RdmaRead));
    }

    #[test]
    fn limits_are_named() {
        let long = [0; 45];
        let error = encode(WorkRequest::send_inline(&long), LIMITS).unwrap_err();
        assert!(matches!(error, QueueError::InlineTooLong { given: 45, limit: 44 }));
        let cut = REMOTE.slice(..43).unwrap();
        let error = encode(WorkRequest::write_inline(&[0; 44], cut), LIMITS).unwrap_err();
        assert!(matches!(error, QueueError::OutOfBounds { end: 44, len: 43, .. }));
        let error = encode(WorkRequest::send_inline(&long), Limits { message: 40, inline: 64, ..LIMITS })
            .unwrap_err();
        assert!(matches!(error, QueueError::MessageTooLong { given: 45, limit: 40 }));
        let huge = vec![0; 2000];
        let error = encode(WorkRequest::send_inline(&huge), Limits { inline: 4000, ..LIMITS }).unwrap_err();
        assert!(matches!(error, QueueError::InlineTooLong { limit: 992, .. }));
    }

    #[test]
    fn flags_are_those_asked_for() {
        let flags = |request| encode(request, LIMITS).unwrap().0.flags();
        let request = WorkRequest::send(&[]).unsignaled().solicited().fence();
        assert_eq!(flags(request), CtrlFlags::SOLICITED | CtrlFlags::FENCE);
        assert_eq!(flags(WorkRequest::send(&[])), CtrlFlags::CQ_UPDATE);
    }
}
