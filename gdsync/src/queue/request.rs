//! Work requests and their encoding.

mod encode;

pub(crate) use self::encode::data_segments;

use crate::queue::QueueError;
use crate::verbs::{AddressHandle, DcAddress, RemoteMemory, Slice, Transport};
use gdsync_sys::prm::wqe::{AddressVector, AtomicSeg, CtrlFlags, CtrlSeg, Opcode, SEGMENT};

/// The description of a send, a write, a read, an atomic operation or a NOP, for [`crate::QueuePair::prepare`].
///
/// Requests are signaled (their completion can be polled and waited for) unless
/// [`WorkRequest::unsignaled`] says otherwise.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, WorkRequest};
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// let (source, target) = (region.slice(..16)?, region.remote().slice(32..48)?);
/// let slices = [source];
/// left.post_send(WorkRequest::write(&slices, target).unsignaled())?; // no completion of its own
/// left.post_send(WorkRequest::read(&slices, target).wr_id(5))?;
/// let done = loop {
///     if let Some(completion) = left.send_cq().poll()? {
///         break completion;
///     }
/// };
/// assert_eq!((done.wr_id, done.byte_len, done.status), (5, 16, Ok(())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a work request does nothing until it is prepared"]
pub struct WorkRequest<'a> {
    opcode: Opcode,
    payload: Payload<'a>,
    remote: Option<RemoteMemory>,
    /// Operands of an atomic operation: swapped in or added, and compared.
    operands: Option<AtomicSeg>,
    to: Option<Destination<'a>>,
    immediate: u32,
    flags: CtrlFlags,
    pub(crate) wr_id: u64,
}

#[derive(Clone, Copy, Debug)]
enum Destination<'a> {
    Datagram { handle: &'a AddressHandle, qpn: u32, qkey: u32 },
    Target(&'a DcAddress),
}

impl<'a> Destination<'a> {
    fn handle(self) -> &'a AddressHandle {
        match self {
            Destination::Datagram { handle, .. } => handle,
            Destination::Target(target) => &target.handle,
        }
    }

    fn vector(self) -> AddressVector {
        match self {
            Destination::Datagram { handle, qpn, qkey } => handle.inner.vector.with_destination(qpn, qkey),
            Destination::Target(target) => target.vector,
        }
    }
}

#[derive(Clone, Debug)]
enum Payload<'a> {
    Slices(&'a [Slice]),
    Inline(&'a [u8]),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) segments: u32,
    pub(crate) inline: u32,
    /// At most [`MAX_COUNT`], so that no data segment of a message is longer.
    pub(crate) message: u64,
    pub(crate) transport: Transport,
    /// True if the device has atomic operations.
    pub(crate) atomics: bool,
}

const ADDRESS_SEGMENTS: usize = size_of::<AddressVector>() / SEGMENT;
const ATOMIC_BYTES: usize = 8;

impl<'a> WorkRequest<'a> {
    #[inline]
    fn new(opcode: Opcode, payload: Payload<'a>, remote: Option<RemoteMemory>) -> Self {
        let flags = CtrlFlags::CQ_UPDATE;
        WorkRequest { opcode, payload, remote, operands: None, to: None, immediate: 0, flags, wr_id: 0 }
    }

    /// Sends the slices, in order, into a receive of the remote side. Without slices, the message is empty.
    #[inline]
    pub fn send(slices: &'a [Slice]) -> Self {
        Self::new(Opcode::Send, Payload::Slices(slices), None)
    }

    /// Sends bytes, which are copied into the work request now.
    #[inline]
    pub fn send_inline(bytes: &'a [u8]) -> Self {
        Self::new(Opcode::Send, Payload::Inline(bytes), None)
    }

    /// Writes the slices to remote memory, from its first address on. The remote CPU gets no notification.
    #[inline]
    pub fn write(slices: &'a [Slice], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaWrite, Payload::Slices(slices), Some(remote))
    }

    /// Writes bytes, which are copied into the work request now.
    #[inline]
    pub fn write_inline(bytes: &'a [u8], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaWrite, Payload::Inline(bytes), Some(remote))
    }

    /// Reads remote memory into the slices.
    #[inline]
    pub fn read(slices: &'a [Slice], remote: RemoteMemory) -> Self {
        Self::new(Opcode::RdmaRead, Payload::Slices(slices), Some(remote))
    }

    /// Compares 8 remote bytes with `compare`, and replaces them by `swap` if they are equal, atomically. The old
    /// value is stored in `result`, 8 bytes of a region with [`crate::Access::LOCAL_WRITE`]. All are numbers in the
    /// hosts' order.
    ///
    /// The remote address is a multiple of 8, in a region with [`crate::Access::REMOTE_ATOMIC`], which the remote
    /// queue pair must allow, too. The operation is atomic among that card's operations; whether also for its CPU
    /// is not guaranteed.
    #[inline]
    pub fn compare_swap(result: &'a Slice, remote: RemoteMemory, compare: u64, swap: u64) -> Self {
        Self::atomic(Opcode::AtomicCs, result, remote, AtomicSeg::new(swap, compare))
    }

    /// Adds to the 8 remote bytes, modulo 2^64, atomically. The old value is stored in `result`. All else is as for
    /// [`Self::compare_swap`].
    #[inline]
    pub fn fetch_add(result: &'a Slice, remote: RemoteMemory, add: u64) -> Self {
        Self::atomic(Opcode::AtomicFa, result, remote, AtomicSeg::new(add, 0))
    }

    #[inline]
    fn atomic(opcode: Opcode, result: &'a Slice, remote: RemoteMemory, operands: AtomicSeg) -> Self {
        let payload = Payload::Slices(std::slice::from_ref(result));
        WorkRequest { operands: Some(operands), ..Self::new(opcode, payload, Some(remote)) }
    }

    /// Does nothing, and completes after everything before it; with [`Self::fence`], also after reads and atomics.
    #[inline]
    pub fn nop() -> Self {
        Self::new(Opcode::Nop, Payload::Slices(&[]), None)
    }

    /// Sets the destination of a datagram: the address of a port, a queue pair there, and its Q_Key. UD queue pairs
    /// require it, and others refuse it. A receiver with another Q_Key drops the datagram without an error.
    ///
    /// If the Q_Key has the top bit set, the sending queue pair's own is used instead (IB specification, 10.2.5).
    #[inline]
    pub fn to(mut self, handle: &'a AddressHandle, remote_qpn: u32, remote_qkey: u32) -> Self {
        self.to = Some(Destination::Datagram { handle, qpn: remote_qpn, qkey: remote_qkey });
        self
    }

    /// Sets the DC target. DC queue pairs require it, and others refuse it. A target with another key refuses the
    /// request: it fails with a remote access error, and so does the queue pair.
    #[inline]
    pub fn to_target(mut self, target: &'a DcAddress) -> Self {
        self.to = Some(Destination::Target(target));
        self
    }

    /// Adds immediate data, which is in the receiver's completion. A write with immediate consumes a receive of the
    /// remote side. Ignored for other kinds of requests.
    #[inline]
    pub fn immediate(mut self, value: u32) -> Self {
        self.opcode = match self.opcode {
            Opcode::Send | Opcode::SendImm => Opcode::SendImm,
            Opcode::RdmaWrite | Opcode::RdmaWriteImm => Opcode::RdmaWriteImm,
            _ => return self,
        };
        self.immediate = value;
        self
    }

    /// Sets the number that the completion carries.
    #[inline]
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Suppresses the completion on success. The next signaled request's completion frees its place in the send
    /// queue, so every queue needs a signaled request now and then.
    #[inline]
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(CtrlFlags::CQ_UPDATE);
        self
    }

    /// Makes the receiver's card raise an event, if the receiver's queue is armed for solicited ones.
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags.insert(CtrlFlags::SOLICITED);
        self
    }

    /// Delays the request until every earlier RDMA read and atomic operation has finished.
    #[inline]
    pub fn fence(mut self) -> Self {
        self.flags.insert(CtrlFlags::FENCE);
        self
    }

    pub(crate) fn is_signaled(&self) -> bool {
        self.flags.contains(CtrlFlags::CQ_UPDATE)
    }

    /// Returns the control segment of a request of `units` segments, at block `index` of a queue pair's send queue.
    #[inline(always)]
    pub(crate) fn control(&self, index: u16, qpn: u32, units: u8) -> CtrlSeg {
        CtrlSeg::new(self.opcode, index, qpn, units, self.flags, self.immediate.to_be_bytes())
    }

    #[inline(always)]
    fn card_writes(&self) -> bool {
        self.opcode == Opcode::RdmaRead || self.operands.is_some()
    }
}

/// Most bytes of one data segment: 31 bits.
pub(crate) const MAX_COUNT: u32 = (1 << 31) - 1;
pub(crate) trait Rules {
    /// True if checked regions learn of the queue, whose keeper then keeps them.
    const KEEPS: bool = false;

    fn limits(&self) -> Limits;
    /// Checks that the card may use the slice; with `card_writes`, write to it.
    fn check(&self, slice: &Slice, card_writes: bool) -> Result<(), QueueError>;
    /// Checks that a request may go to that address.
    fn check_address(&self, handle: &AddressHandle) -> Result<(), QueueError>;
}

#[cfg(test)]
pub(crate) mod tests;
