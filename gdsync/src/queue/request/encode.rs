//! Encoding of work requests and of receives.

use crate::memory::OutOfBounds;
use crate::queue::regions::Regions;
use crate::queue::request::{ADDRESS_SEGMENTS, ATOMIC_BYTES, Destination, Limits, MAX_COUNT, Payload, Rules};
use crate::queue::{QueueError, RequestError, Segments, WorkRequest};
use crate::verbs::{Slice, Transport};
use gdsync_sys::prm::wqe::{DataSeg, InlineSeg, MAX_DS, Opcode, RemoteAddrSeg, SEGMENT};
use std::sync::Arc;
use zerocopy::IntoBytes;

impl WorkRequest<'_> {
    /// Returns the most segments that it takes, with the control segment; fewer if slices are empty.
    #[inline(always)]
    pub(crate) fn most_units(&self, limits: Limits) -> Result<u32, QueueError> {
        let address = if self.to.is_some() { ADDRESS_SEGMENTS } else { 0 };
        let fixed = 1 + address + usize::from(self.remote.is_some()) + usize::from(self.operands.is_some());
        let data = match self.payload {
            Payload::Slices(slices) if slices.len() <= limits.segments as usize => slices.len(),
            Payload::Slices(slices) => count_segments(slices, limits.segments)?,
            Payload::Inline(bytes) if bytes.len() > limits.inline as usize => {
                return Err(QueueError::Request(RequestError::InlineTooLong {
                    given: bytes.len(),
                    limit: limits.inline,
                }));
            }
            Payload::Inline(bytes) => (size_of::<InlineSeg>() + bytes.len()).div_ceil(SEGMENT),
        };
        if fixed + data > usize::from(MAX_DS) { Err(self.too_long(fixed)) } else { Ok((fixed + data) as u32) }
    }

    #[cold]
    fn too_long(&self, fixed: usize) -> QueueError {
        let room = usize::from(MAX_DS) - fixed;
        match self.payload {
            Payload::Slices(slices) => {
                QueueError::Request(RequestError::TooManySegments { given: slices.len(), limit: room as u32 })
            }
            Payload::Inline(bytes) => QueueError::Request(RequestError::InlineTooLong {
                given: bytes.len(),
                limit: (room * SEGMENT) as u32,
            }),
        }
    }

    #[inline(always)]
    pub(crate) fn has_regions_only(&self) -> bool {
        matches!(self.payload, Payload::Slices(_)) && self.to.is_none()
    }

    /// Returns the regions that the card will access, and the address. `several` is the result of [`Self::encode`].
    #[inline(always)]
    pub(crate) fn regions(&self, several: bool) -> Regions {
        let regions = match self.payload {
            Payload::Slices(slices) => Regions::of(slices, several),
            Payload::Inline(_) => Regions::None,
        };
        match self.to {
            None => regions,
            Some(to) => regions.with_address(to.handle().clone()),
        }
    }

    /// Puts out the segments after the control segment, at most [`Self::most_units`]. On an error, some were put
    /// out. Returns whether the slices are of several regions.
    #[inline(always)]
    pub(crate) fn encode(&self, rules: &impl Rules, out: &mut impl Segments) -> Result<bool, QueueError> {
        if let Some(to) = self.to {
            let segments: [[u8; SEGMENT]; ADDRESS_SEGMENTS] = zerocopy::transmute!(to.vector());
            segments.into_iter().for_each(|segment| out.put(segment));
        }
        if let Some(remote) = &self.remote {
            out.put(zerocopy::transmute!(RemoteAddrSeg::new(remote.addr, remote.rkey)));
        }
        if let Some(operands) = self.operands {
            out.put(zerocopy::transmute!(operands));
        }
        let (length, several) = match self.payload {
            Payload::Inline(bytes) => {
                encode_inline(bytes, out);
                (bytes.len() as u64, false)
            }
            Payload::Slices(slices) => self.encode_slices(slices, rules, out)?,
        };
        let remote = self.remote.as_ref().map_or(u64::MAX, |remote| remote.len);
        let limit = rules.limits().message;
        if length > limit || length > remote {
            return Err(Self::length_refused(length, limit, remote));
        }
        Ok(several)
    }

    /// Returns the error for a message longer than the limit, or than the remote memory.
    #[cold]
    #[inline(never)]
    fn length_refused(length: u64, limit: u64, remote: u64) -> QueueError {
        if length > limit {
            return QueueError::Request(RequestError::MessageTooLong { given: length, limit });
        }
        QueueError::Bounds(OutOfBounds { start: 0, end: length, len: remote })
    }

    /// Checks a slice of another region than the first slice's. Out of line, so that the loop over the slices keeps
    /// its registers.
    #[cold]
    #[inline(never)]
    fn check_other_region(&self, slice: &Slice, rules: &impl Rules) -> Result<(), QueueError> {
        rules.check(slice, self.card_writes())
    }

    /// Encodes the data segments. Consecutive slices are mostly of one region, which is checked once.
    #[inline(always)]
    fn encode_slices(
        &self,
        slices: &[Slice],
        rules: &impl Rules,
        out: &mut impl Segments,
    ) -> Result<(u64, bool), QueueError> {
        let Some(first) = slices.first() else { return Ok((0, false)) };
        let mut region = first.region();
        rules.check(first, self.card_writes())?;
        let (mut length, mut several) = (0u64, false);
        for slice in slices {
            if !Arc::ptr_eq(region, slice.region()) {
                self.check_other_region(slice, rules)?;
                region = slice.region();
                several = true;
            }
            let len = slice.len() as u64;
            length += len;
            if len != 0 {
                out.put(zerocopy::transmute!(DataSeg::new(len as u32, slice.lkey(), slice.addr())));
            }
        }
        Ok((length, several))
    }

    /// Returns true for a request on a reliable connection that needs no check of the queue pair's abilities.
    #[inline(always)]
    pub(crate) fn is_plain(&self, transport: Transport) -> bool {
        transport == Transport::Rc && self.operands.is_none() && self.to.is_none()
    }

    /// Refuses operations that the queue pair or its device does not have. Most requests need no check.
    #[inline(always)]
    pub(crate) fn check(&self, rules: &impl Rules) -> Result<(), QueueError> {
        if self.is_plain(rules.limits().transport) {
            return Ok(());
        }
        self.check_special(rules)?;
        self.to.map_or(Ok(()), |to| rules.check_address(to.handle()))
    }

    // Takes no copy of the limits, which every post would make.
    #[cold]
    #[inline(never)]
    fn check_special(&self, rules: &impl Rules) -> Result<(), RequestError> {
        let limits = rules.limits();
        let transport = limits.transport;
        transport
            .check(self.opcode)
            .map_err(|operation| RequestError::NotOnTransport { operation, transport })?;
        self.check_destination(transport)?;
        if self.operands.is_some() { self.check_atomic(limits) } else { Ok(()) }
    }

    fn check_destination(&self, transport: Transport) -> Result<(), RequestError> {
        let needed = if self.opcode == Opcode::Nop { None } else { Some(transport) };
        let operation = match (self.to, needed) {
            (None, Some(Transport::Ud)) => return Err(RequestError::NoDestination),
            (None, Some(Transport::Dc)) => return Err(RequestError::NoTarget),
            (Some(Destination::Datagram { qpn, .. }), Some(Transport::Ud)) if qpn > MAX_QPN => {
                return Err(RequestError::BadDestination { qpn });
            }
            (None, _)
            | (Some(Destination::Datagram { .. }), Some(Transport::Ud))
            | (Some(Destination::Target(_)), Some(Transport::Dc)) => return Ok(()),
            (Some(Destination::Datagram { .. }), _) => "an address of its own",
            (Some(Destination::Target(_)), _) => "a DC target",
        };
        Err(RequestError::NotOnTransport { operation, transport })
    }

    fn check_atomic(&self, limits: Limits) -> Result<(), RequestError> {
        if !limits.atomics {
            return Err(RequestError::NotOnDevice { operation: "atomic operations" });
        }
        let given = match &self.payload {
            Payload::Slices([result]) if result.len() == ATOMIC_BYTES => None,
            Payload::Slices(slices) => Some(slices.iter().map(Slice::len).sum()),
            Payload::Inline(bytes) => Some(bytes.len()),
        };
        if let Some(given) = given {
            return Err(RequestError::AtomicResult { given });
        }
        match &self.remote {
            Some(remote) if !remote.addr.is_multiple_of(ATOMIC_BYTES as u64) => {
                Err(RequestError::AtomicTarget { addr: remote.addr })
            }
            _ => Ok(()),
        }
    }
}

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

/// Returns the number of slices that need a segment. A byte count of 0 means 2^31 to the card (PRM, data segment),
/// so empty ones are left out, as in libmlx5.
fn count_segments(slices: &[Slice], limit: u32) -> Result<usize, QueueError> {
    let given = slices.iter().filter(|slice| !slice.is_empty()).count();
    if given > limit as usize {
        Err(QueueError::Request(RequestError::TooManySegments { given, limit }))
    } else {
        Ok(given)
    }
}

fn data_segment(slice: &Slice) -> Result<DataSeg, QueueError> {
    match u32::try_from(slice.len()) {
        Ok(count) if count <= MAX_COUNT => Ok(DataSeg::new(count, slice.lkey(), slice.addr())),
        _ => Err(QueueError::Request(RequestError::MessageTooLong {
            given: slice.len() as u64,
            limit: MAX_COUNT.into(),
        })),
    }
}

/// Returns the data segments of a receive's non-empty slices.
pub(crate) fn data_segments(slices: &[Slice], limit: u32) -> Result<Vec<DataSeg>, QueueError> {
    count_segments(slices, limit)?;
    slices.iter().filter(|slice| !slice.is_empty()).map(data_segment).collect()
}

/// Queue pair numbers have 24 bits.
const MAX_QPN: u32 = (1 << 24) - 1;
