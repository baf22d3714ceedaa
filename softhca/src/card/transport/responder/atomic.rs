//! Atomic operations: compare-and-swap and fetch-and-add of 4 and 8 bytes, also masked.
//!
//! In memory of the host the card executes them as atomic operations of the CPU, so they are atomic
//! for the threads of programs, too. Operands are in host order.

use super::remote::{check_access, remote_memory};
use super::response::{Original, Response};
use super::state::{Responder, Stop};
use crate::card::config::Access;
use crate::card::context::PEER_MEMORY;
use crate::card::memory::copy::{self, AtomicOperation};
use crate::card::transport::step::Step;
use crate::fabric::Part;
use crate::liberties::LibertyKinds;
use crate::packet::{Header, Packet, PacketKind};

impl Responder {
    /// Executes an atomic operation that is no duplicate. Returns the packet numbers that it
    /// covers.
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
        // SAFETY: aligned, as checked above, and resolved just now to registered memory with remote
        // atomic (so local write) access; no region is removed while the engine is locked.
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

/// The operation of a request; its masks are its payload. `None` if the payload is something else.
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
