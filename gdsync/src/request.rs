//! Work requests: what a user asks a queue pair to do, and its encoding.

use crate::error::QueueError;
use crate::mr::{RemoteMemory, Slice};
use crate::queue::send::Encoded;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, InlineSeg, MAX_DS, Opcode, RemoteAddrSeg, SEGMENT};
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
    fn new(opcode: Opcode, payload: Payload<'a>, remote: Option<RemoteMemory>) -> Self {
        WorkRequest { opcode, payload, remote, immediate: 0, flags: CtrlFlags::CQ_UPDATE, wr_id: 0 }
    }

    /// Sends the slices, one after the other, into a receive of the remote side. No slice: an empty message.
    pub fn send(slices: &'a [Slice]) -> Self {
        Self::new(Opcode::Send, Payload::Slices(slices), None)
    }

    /// Sends bytes that are copied into the work request now.
    pub fn send_inline(bytes: &'a [u8]) -> Self {
        Self::new(Opcode::Send, Payload::Inline(bytes), None)
    }

    /// Writes the slices to remote memory, from its first address on. The remote CPU is not told.
    pub fn write(slices: &'a [Slice], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaWrite, Payload::Slices(slices), Some(remote))
    }

    /// Writes bytes that are copied into the work request now.
    pub fn write_inline(bytes: &'a [u8], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaWrite, Payload::Inline(bytes), Some(remote))
    }

    /// Reads remote memory into the slices.
    pub fn read(slices: &'a [Slice], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaRead, Payload::Slices(slices), Some(remote))
    }

    /// Adds immediate data, which the receiver finds in its completion. A write with immediate consumes a receive of the
    /// remote side. Ignored for reads, which carry none.
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
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// No completion on success. Its place in the send queue is freed by the next signaled request's completion, so
    /// every queue needs a signaled request now and then.
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(CtrlFlags::CQ_UPDATE);
        self
    }

    /// Asks the receiver's card to raise an event, where the receiver asked for solicited ones.
    pub fn solicited(mut self) -> Self {
        self.flags.insert(CtrlFlags::SOLICITED);
        self
    }

    /// Starts only after every RDMA read posted before has finished.
    pub fn fence(mut self) -> Self {
        self.flags.insert(CtrlFlags::FENCE);
        self
    }

    pub(crate) fn slices(&self) -> &[Slice] {
        match self.payload {
            Payload::Slices(slices) => slices,
            Payload::Inline(_) => &[],
        }
    }

    /// True where the card writes to the local slices.
    pub(crate) fn writes_locally(&self) -> bool {
        self.opcode == Opcode::RdmaRead
    }

    pub(crate) fn encode(self, limits: Limits) -> Result<Encoded, QueueError> {
        let mut body = Vec::with_capacity(3 * SEGMENT);
        let length = match self.payload {
            Payload::Slices(slices) => slices.iter().map(|slice| slice.len() as u64).sum(),
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        if length > limits.message {
            return Err(QueueError::MessageTooLong { given: length, limit: limits.message });
        }
        if let Some(remote) = self.remote {
            if length > remote.len {
                return Err(QueueError::OutOfBounds { start: 0, end: length, len: remote.len });
            }
            body.extend_from_slice(RemoteAddrSeg::new(remote.addr, remote.rkey).as_bytes());
        }
        match self.payload {
            Payload::Slices(slices) => encode_slices(slices, &mut body, limits)?,
            Payload::Inline(bytes) if bytes.len() > limits.inline as usize => {
                return Err(QueueError::InlineTooLong { given: bytes.len(), limit: limits.inline });
            }
            Payload::Inline(bytes) => {
                body.extend_from_slice(InlineSeg::new(bytes.len() as u32).as_bytes());
                body.extend_from_slice(bytes);
            }
        }
        let room = (usize::from(MAX_DS) * SEGMENT) - size_of::<CtrlSeg>();
        if body.len() > room {
            return Err(QueueError::InlineTooLong { given: body.len(), limit: room as u32 });
        }
        let regions = self.slices().iter().map(|slice| slice.region().clone()).collect();
        let WorkRequest { opcode, flags, immediate, wr_id, .. } = self;
        Ok(Encoded { body, opcode, flags, immediate, wr_id, regions })
    }
}

/// Data segments of the non-empty slices: a byte count of 0 means 2^31 to the card (PRM, data segment), so empty ones are
/// left out, as libmlx5 does.
pub(crate) fn data_segments(slices: &[Slice], limit: u32) -> Result<Vec<DataSeg>, QueueError> {
    let given = slices.iter().filter(|slice| !slice.is_empty()).count();
    if given > limit as usize {
        return Err(QueueError::TooManySegments { given, limit });
    }
    let used = slices.iter().filter(|slice| !slice.is_empty());
    used.map(|slice| {
        let count = u32::try_from(slice.len()).ok().filter(|count| *count < 1 << 31);
        let count =
            count.ok_or(QueueError::MessageTooLong { given: slice.len() as u64, limit: (1 << 31) - 1 })?;
        Ok(DataSeg::new(count, slice.region().lkey(), slice.addr()))
    })
    .collect()
}

fn encode_slices(slices: &[Slice], body: &mut Vec<u8>, limits: Limits) -> Result<(), QueueError> {
    for segment in data_segments(slices, limits.segments)? {
        body.extend_from_slice(segment.as_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { segments: 4, inline: 44, message: 1 << 30 };
    const REMOTE: RemoteMemory = RemoteMemory { addr: 0x1000, len: 64, rkey: 9 };

    #[test]
    fn an_inline_write_has_address_length_and_bytes() {
        let encoded = WorkRequest::write_inline(b"abc", REMOTE).wr_id(5).encode(LIMITS).unwrap();
        let mut expected = Vec::new();
        expected.extend_from_slice(&0x1000u64.to_be_bytes());
        expected.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 0]);
        expected.extend_from_slice(&[0x80, 0, 0, 3, b'a', b'b', b'c']);
        assert_eq!((encoded.body, encoded.opcode, encoded.wr_id), (expected, Opcode::RdmaWrite, 5));
    }

    #[test]
    fn an_immediate_changes_the_opcode_but_not_of_a_read() {
        let opcode = |request: WorkRequest<'_>| request.immediate(1).encode(LIMITS).unwrap().opcode;
        assert_eq!(opcode(WorkRequest::send(&[])), Opcode::SendImm);
        assert_eq!(opcode(WorkRequest::write(&[], REMOTE)), Opcode::RdmaWriteImm);
        assert_eq!(opcode(WorkRequest::read(&[], REMOTE)), Opcode::RdmaRead);
    }

    #[test]
    fn limits_are_named() {
        let long = [0; 45];
        let error = WorkRequest::send_inline(&long).encode(LIMITS).unwrap_err();
        assert!(matches!(error, QueueError::InlineTooLong { given: 45, limit: 44 }));
        let error =
            WorkRequest::write_inline(&[0; 44], REMOTE.slice(..43).unwrap()).encode(LIMITS).unwrap_err();
        assert!(matches!(error, QueueError::OutOfBounds { end: 44, len: 43, .. }));
        let error = WorkRequest::send_inline(&long).encode(Limits { message: 40, ..LIMITS }).unwrap_err();
        assert!(matches!(error, QueueError::MessageTooLong { given: 45, limit: 40 }));
        let huge = vec![0; 2000];
        let error = WorkRequest::send_inline(&huge).encode(Limits { inline: 4000, ..LIMITS }).unwrap_err();
        assert!(matches!(error, QueueError::InlineTooLong { limit: 992, .. }));
    }

    #[test]
    fn flags_are_those_asked_for() {
        let flags = WorkRequest::send(&[]).unsignaled().solicited().fence().encode(LIMITS).unwrap().flags;
        assert_eq!(flags, CtrlFlags::SOLICITED | CtrlFlags::FENCE);
        assert_eq!(WorkRequest::send(&[]).encode(LIMITS).unwrap().flags, CtrlFlags::CQ_UPDATE);
    }
}
