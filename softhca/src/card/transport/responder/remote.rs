//! RDMA writes and reads, and atomic operations: compare-and-swap and fetch-and-add of 4 and 8 bytes, also masked.
//!
//! In host memory the card executes atomic operations as the CPU's, so they are atomic for threads of programs, too.
//! Operands are in host order.

use super::state::{Original, Responder, Response, Stop};
use crate::card::config::{Access, packets_of};
use crate::card::context::PEER_MEMORY;
use crate::card::memory::copy::{self, AtomicOperation};
use crate::card::memory::pieces::{KeyRange, Pieces, Refusal};
use crate::card::transport::endpoint::Step;
use crate::fabric::Part;
use crate::liberties::LibertyKinds;
use crate::packet::{FIRST, Header, IMMEDIATE, LAST, NakCode, Packet, PacketKind};
use gdsync_sys::prm::cqe::CqeOpcode;

/// Checks that queue pair and key allow a request to access `length` bytes.
pub(super) fn check_access(
    header: &Header,
    length: u64,
    wanted: Access,
    step: &mut Step<'_, '_>,
) -> Result<(), Stop> {
    let allowed = step.endpoint.attributes.access;
    if !allowed.contains(wanted) {
        let message = format!("the queue pair allows {allowed:?}, not {wanted:?}");
        step.report(None, "qp_access_flags", message);
        return Err(Stop::no_access(step));
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
pub(super) fn remote_memory<'a>(
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
            step.endpoint.parked.write_ordered();
        }
        let copy = |targets: &[_], step: &mut Step<'_, '_>| {
            let (parked, rkey) = (&mut step.endpoint.parked, header.rkey.get());
            // SAFETY: the packet's payload; the pieces were resolved just now with remote write access.
            unsafe { step.context.write(parked, packet.payload, targets, [rkey]) }
        };
        let copied = match pieces {
            Pieces::One(piece) => copy(piece.as_slice(), step),
            Pieces::Many(pieces) => copy(pieces.as_slice(), step),
        };
        if let Err(failure) = copied {
            step.report(None, PEER_MEMORY, failure.to_string());
            return Err(Stop::no_access(step));
        }
        if completes {
            let receive = self.take_receive(step)?.ok_or(Stop::Nak(NakCode::ReceiverNotReady))?;
            self.complete_receive(CqeOpcode::RespWriteImm, receive.slot, header, None, step);
        } else {
            self.taken(header, None, step);
        }
        Ok(1)
    }

    /// Handles an RDMA read request. Returns the number of PSNs that its answer covers.
    pub(super) fn take_read(&mut self, header: &Header, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        self.check_responses_in_flight(step)?;
        let length = header.length.get();
        check_access(header, length.into(), Access::REMOTE_READ, step)?;
        self.push_read(header, false, step);
        Ok(packets_of(length))
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
        step.endpoint.parked.write_all();
        // SAFETY: aligned, as checked above, and resolved just now to registered memory with remote atomic (so local
        // write) access; no region is removed while the engine is locked.
        let value = match unsafe { copy::atomic(place, bytes, operation) } {
            Ok(value) => value,
            Err(failure) => {
                step.report(None, PEER_MEMORY, failure.to_string());
                return Err(Stop::no_access(step));
            }
        };
        let (psn, original) = (header.psn.get(), Original { value, bytes });
        self.results.remember(psn, original);
        self.responses.push_back(Response::Atomic { psn, original, again: false });
        self.hold(LibertyKinds::ATOMICS, step);
        Ok(1)
    }
}

/// Returns the operation of a request, whose masks are its payload. `None` if the payload is something else.
fn operation(kind: PacketKind, header: &Header, payload: &[Part]) -> Option<AtomicOperation> {
    let [first, second] = header.operands.map(|operand| operand.get());
    // SAFETY: the parts are the packet's payload, readable while it is handled.
    let masks = unsafe { copy::collect(payload) };
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
