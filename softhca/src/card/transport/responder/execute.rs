//! Execution of requests: sends into receives, RDMA writes and reads, and atomic operations (compare-and-swap and
//! fetch-and-add of 4 and 8 bytes, also masked).
//!
//! In host memory the card executes atomic operations as the CPU's, so they are atomic for threads of programs, too.
//! Operands are in host order.

use super::answer::Original;
use super::state::{Failure, Responder, Stop};
use crate::card::config::Access;
use crate::card::memory::copy::{self, AtomicOperation, collect};
use crate::card::memory::ring::Entry;
use crate::card::memory::translation::{KeyRange, Pieces, Refusal};
use crate::card::queue::receive::{Receive, ReceiveOwner, Slot};
use crate::card::transport::endpoint::Step;
use crate::fabric::PayloadPart;
use crate::liberties::LibertyKinds;
use crate::packet::{FIRST, Header, IMMEDIATE, INVALIDATE, LAST, NakCode, Packet, PacketKind, SOLICITED};
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, PathFields, Syndrome};

/// A receive names memory that cannot be written. A diagnostic tells which.
pub(super) struct NoAccess;

/// Copies the next part of a message into a receive.
pub(super) fn scatter(
    receive: &mut Receive,
    payload: &[PayloadPart],
    step: &mut Step<'_, '_>,
) -> Result<(), NoAccess> {
    let work = step.endpoint.work;
    if let Err(error) = step.context.scatter(
        (&mut step.endpoint.deferred, work),
        receive.slot.owner.pdn,
        &receive.segments,
        receive.filled,
        payload,
    ) {
        let field = error.field("receive lkey");
        step.report(Some(receive.slot.index), field, error.to_string());
        return Err(NoAccess);
    }
    let length: usize = payload.iter().map(|part| part.1).sum();
    receive.filled = receive.filled.saturating_add(length as u32);
    Ok(())
}

/// A whole message of one packet that goes into the completion entry instead of the receive's memory.
pub(super) struct InEntry {
    data: Vec<u8>,
    /// Stride of the completion queue.
    stride: u32,
}

impl InEntry {
    fn of(packet: Packet<'_>, owner: ReceiveOwner, step: &Step<'_, '_>) -> Option<Self> {
        let is_whole = packet.header.has(FIRST) && packet.header.has(LAST);
        if !step.endpoint.config.scatter.receives || !is_whole {
            return None;
        }
        let stride = step.context.stride_for(Some(owner.cqn), packet.payload_len())?;
        // SAFETY: the parts are the packet's payload, readable while it is handled.
        Some(InEntry { data: unsafe { collect(packet.payload) }.ok()?, stride })
    }
}

/// Returns the opcode of the completion of a send or a datagram.
pub(super) fn send_opcode(header: &Header) -> CqeOpcode {
    if header.has(IMMEDIATE) {
        CqeOpcode::RespSendImm
    } else if header.has(INVALIDATE) {
        CqeOpcode::RespSendInval
    } else {
        CqeOpcode::RespSend
    }
}

/// Returns the completion of receive `index`, of `length` bytes from queue pair `remote`.
pub(super) fn completion(
    opcode: CqeOpcode,
    index: u16,
    remote: u32,
    length: u32,
    header: &Header,
    step: &Step<'_, '_>,
) -> Cqe64 {
    Cqe64::responder(opcode, step.endpoint.qpn, remote, index, length, header.imm, header.has(SOLICITED))
}

/// Invalidates the key that a send names.
fn invalidate(slot: Slot, header: &Header, step: &mut Step<'_, '_>) -> Result<(), Stop> {
    let owner = (step.endpoint.pdn, step.endpoint.qpn);
    step.context.regions.invalidate(u32::from_be_bytes(header.imm), owner).map_err(|error| {
        step.report(Some(slot.index), "invalidate", error.to_string());
        Stop::Fatal(NakCode::RemoteOperation, Failure::Completion(slot, Syndrome::MwBind))
    })
}

/// Checks that queue pair and key allow a request to access `length` bytes.
fn check_access(header: &Header, length: u64, wanted: Access, step: &mut Step<'_, '_>) -> Result<(), Stop> {
    let allowed = step.endpoint.attributes.access;
    if !allowed.contains(wanted) {
        let message = format!("the queue pair allows {allowed:?}, not {wanted:?}");
        step.report(None, "qp_access_flags", message);
        return Err(Stop::invalid_request(step));
    }
    if length == 0 {
        return Ok(());
    }
    let (range, regions) = (range_of(header, length), step.context.regions);
    let owner = (step.endpoint.pdn, step.endpoint.qpn);
    let checked = regions.check_faults(range.key, wanted);
    checked
        .and_then(|()| regions.check_remote(range, owner, wanted))
        .map_err(|refusal| no_access(&refusal, step))
}

fn range_of(header: &Header, len: u64) -> KeyRange {
    KeyRange { key: header.rkey.get(), addr: header.addr.get(), len }
}

/// Returns the memory that a request names, after [`check_access`]; none for an empty request.
fn remote_memory<'a>(
    header: &Header,
    length: u64,
    wanted: Access,
    step: &mut Step<'_, 'a>,
) -> Result<Pieces<'a>, Stop> {
    if length == 0 {
        return Ok(Pieces::One(None));
    }
    let pieces = step.context.regions.pieces(range_of(header, length), step.endpoint.pdn, wanted);
    pieces.map_err(|refusal| no_access(&refusal, step))
}

fn no_access(refusal: &Refusal, step: &mut Step<'_, '_>) -> Stop {
    step.report(None, "rkey", refusal.to_string());
    Stop::no_access(step)
}

impl Responder {
    /// Handles a packet of a send. Returns the number of PSNs that it covers.
    pub(super) fn take_send(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        let header = packet.header;
        if header.has(FIRST) {
            step.endpoint.deferred.write_ordered();
            let receive = self.take_receive(step)?.ok_or(Stop::Nak(NakCode::ReceiverNotReady))?;
            let room = receive.room();
            if u64::from(header.length.get()) > room {
                let message = format!("{} bytes come into a receive of {room}", header.length.get());
                step.report(Some(receive.slot.index), "receive length", message);
                let failure = Failure::Completion(receive.slot, Syndrome::LocalLength);
                return Err(Stop::Fatal(NakCode::InvalidRequest, failure));
            }
            self.queue.current = Some(receive);
        }
        let Some(mut receive) = self.queue.current.take() else {
            let message = "the message has no first packet".to_owned();
            step.report(None, "packet", message);
            return Err(Stop::invalid_request(step));
        };
        let slot = receive.slot;
        let data = InEntry::of(packet, slot.owner, step);
        if data.is_none() && scatter(&mut receive, packet.payload, step).is_err() {
            let failure = Failure::Completion(slot, Syndrome::LocalProtection);
            return Err(Stop::Fatal(NakCode::RemoteOperation, failure));
        }
        if header.has(LAST) {
            if header.has(INVALIDATE) {
                invalidate(slot, header, step)?;
            }
            self.complete_receive(send_opcode(header), slot, header, data, step);
        } else {
            self.queue.current = Some(receive);
            self.answers.taken(header, None, step);
        }
        Ok(1)
    }

    /// Completes a receive with the last packet of a message, with `data` inside the entry.
    pub(super) fn complete_receive(
        &mut self,
        opcode: CqeOpcode,
        slot: Slot,
        header: &Header,
        data: Option<InEntry>,
        step: &mut Step<'_, '_>,
    ) {
        let remote = step.endpoint.attributes.dest_qpn;
        let cqe = completion(opcode, slot.index, remote, header.length.get(), header, step);
        let port = step.context.port;
        let slid = port.reported(step.endpoint.peer_lid(port));
        let cqe = cqe.with_path(PathFields { slid, ..PathFields::default() });
        let entry = data.map_or(cqe.into(), |inside| Entry::with_data(cqe, &inside.data, inside.stride));
        self.answers.taken(header, Some((slot.owner, entry)), step);
    }

    /// Ends a DC connection whose initiator is gone or is refused. A receive that its message had begun to fill
    /// completes with an error, so that the program gets it back.
    pub(crate) fn abandon(&mut self, step: &mut Step<'_, '_>) {
        self.answers.release_completions(step);
        if let Some(receive) = self.queue.current.take() {
            step.receive_error(receive.slot, Syndrome::RemoteAborted);
        }
    }

    /// Completes all posted receives as flushed, in ERR. Returns whether there was one.
    pub(crate) fn flush(&mut self, step: &mut Step<'_, '_>) -> bool {
        let mut flushed = false;
        for slot in self.queue.take_all() {
            step.receive_error(slot, Syndrome::WrFlush);
            flushed = true;
        }
        flushed
    }

    /// Handles a packet of an RDMA write. Returns the number of PSNs that it covers.
    pub(super) fn take_write(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        let (header, length) = (packet.header, packet.payload_len());
        let total = if header.has(FIRST) { header.length.get() as usize } else { length };
        // The first packet checks the whole message; later ones check their own part.
        check_access(header, total.max(length) as u64, Access::REMOTE_WRITE, step)?;
        let pieces = remote_memory(header, length as u64, Access::REMOTE_WRITE, step)?;
        let completes = header.has(LAST) && header.has(IMMEDIATE);
        if completes && !self.has_receive(step) {
            return Err(Stop::Nak(NakCode::ReceiverNotReady));
        }
        if header.has(FIRST) {
            step.endpoint.deferred.write_ordered();
        }
        let copy = |targets: &[_], step: &mut Step<'_, '_>| {
            let work = step.endpoint.work;
            let (deferred, rkey) = ((&mut step.endpoint.deferred, work), header.rkey.get());
            // SAFETY: the packet's payload; the pieces were resolved just now with remote write access.
            unsafe { step.context.write(deferred, packet.payload, targets, [rkey]) }
        };
        let copied = match pieces {
            Pieces::One(piece) => copy(piece.as_slice(), step),
            Pieces::Many(pieces) => copy(pieces.as_slice(), step),
        };
        if let Err(failure) = copied {
            step.report(None, failure.field(), step.context.regions.describe(&failure));
            return Err(Stop::no_access(step));
        }
        if completes {
            let receive = self.take_receive(step)?.ok_or(Stop::Nak(NakCode::ReceiverNotReady))?;
            self.complete_receive(CqeOpcode::RespWriteImm, receive.slot, header, None, step);
        } else {
            self.answers.taken(header, None, step);
        }
        Ok(1)
    }

    /// Handles an RDMA read request. Returns the number of PSNs that its answer covers.
    pub(super) fn take_read(&mut self, header: &Header, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        self.check_responses_in_flight(step)?;
        let length = header.length.get();
        check_access(header, length.into(), Access::REMOTE_READ, step)?;
        self.answers.push_read(header, false, step);
        Ok(step.context.port.packets_of(length))
    }

    /// Executes an atomic operation that is no duplicate. Returns the number of PSNs that it covers.
    pub(super) fn take_atomic(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        self.check_responses_in_flight(step)?;
        let header = packet.header;
        let (addr, bytes) = (header.addr.get(), header.length.get());
        let Some(operation) =
            operation(packet.kind, header, packet.payload).filter(|_| matches!(bytes, 4 | 8))
        else {
            step.report(None, "atomic", format!("{bytes} bytes, or masks that are not two words"));
            return Err(Stop::invalid_request(step));
        };
        if !addr.is_multiple_of(bytes.into()) {
            return Err(misaligned(addr, bytes, step));
        }
        check_access(header, bytes.into(), Access::REMOTE_ATOMIC, step)?;
        let place = remote_memory(header, bytes.into(), Access::REMOTE_ATOMIC, step)?.single();
        // The region's `iova` and its address differ modulo the size, or the word is in two pieces.
        let Some(place) = place.filter(|place| copy::is_aligned(*place, bytes)) else {
            return Err(misaligned(addr, bytes, step));
        };
        step.endpoint.deferred.write_all();
        // SAFETY: aligned, as checked above, and resolved just now to registered memory with remote atomic (so local
        // write) access; no region is removed while the engine is locked.
        let value = match unsafe { copy::atomic(place, bytes, operation) } {
            Ok(value) => value,
            Err(failure) => {
                step.report(None, failure.field(), step.context.regions.describe(&failure));
                return Err(Stop::no_access(step));
            }
        };
        self.answers.push_atomic(header.psn.get(), Original { value, bytes });
        self.answers.hold(LibertyKinds::ATOMICS, step);
        Ok(1)
    }
}

/// Returns the operation of a request, whose masks are its payload. Returns `None` if the payload is something else.
fn operation(kind: PacketKind, header: &Header, payload: &[PayloadPart]) -> Option<AtomicOperation> {
    let [first, second] = header.operands.map(|operand| operand.get());
    // SAFETY: the parts are the packet's payload, readable while it is handled.
    let masks = unsafe { copy::collect(payload) }.ok()?;
    let word = |bytes: &[u8]| bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    let masks = match (masks.len(), kind) {
        (0, PacketKind::CompareSwap) => [u64::MAX; 2],
        (0, _) => [0; 2],
        (16, _) => [word(&masks[..8]), word(&masks[8..])],
        _ => return None,
    };
    Some(match kind {
        PacketKind::CompareSwap => AtomicOperation::CompareSwap {
            swap: first,
            compare: second,
            swap_mask: masks[0],
            compare_mask: masks[1],
        },
        _ => AtomicOperation::FetchAdd { add: first, boundaries: masks[0] },
    })
}

fn misaligned(addr: u64, bytes: u32, step: &mut Step<'_, '_>) -> Stop {
    let message = format!("{addr:#x} is not a multiple of {bytes}, in the key's memory or in the program's");
    step.report(None, "atomic address", message);
    Stop::invalid_request(step)
}
