//! Atomic operations: compare-and-swap and fetch-and-add of 8 bytes.
//!
//! The card executes them as atomic operations of the CPU, so they are atomic for the threads of
//! programs, too. Operands and results are in host order: mlx5 reports this as `IBV_ATOMIC_HCA`
//! with host endianness.

use super::remote::remote_access;
use super::response::Response;
use super::state::{Responder, Stop};
use crate::card::config::Access;
use crate::card::context::PEER_MEMORY;
use crate::card::memory::copy::{self, AtomicOperation, Place};
use crate::card::queue::wqe::ATOMIC_BYTES;
use crate::card::transport::step::Step;
use crate::packet::{Header, PacketKind};

impl Responder {
    /// Executes an atomic operation that is no duplicate. Returns the packet numbers that it
    /// covers.
    pub(super) fn take_atomic(
        &mut self,
        kind: PacketKind,
        header: &Header,
        step: &mut Step<'_, '_>,
    ) -> Result<u32, Stop> {
        self.check_responses_in_flight(step)?;
        let addr = header.addr.get();
        if !addr.is_multiple_of(ATOMIC_BYTES.into()) {
            return Err(misaligned(addr, step));
        }
        let length = ATOMIC_BYTES.into();
        let at = match remote_access(header, length, Access::REMOTE_ATOMIC, step)? {
            Some(Place::Host(at)) if (at as usize).is_multiple_of(ATOMIC_BYTES as usize) => at,
            // The region's `iova` and its address differ modulo 8.
            Some(Place::Host(at)) => return Err(misaligned(at as u64, step)),
            _ => {
                let message =
                    format!("{addr:#x} is memory of a peer-memory client, where the CPU has no atomics");
                step.report(None, PEER_MEMORY, message);
                return Err(Stop::no_access(step));
            }
        };
        let [first, second] = header.operands.map(|operand| operand.get());
        let operation = match kind {
            PacketKind::CompareSwap => AtomicOperation::CompareSwap { swap: first, compare: second },
            _ => AtomicOperation::FetchAdd { add: first },
        };
        // SAFETY: aligned, as checked above, and resolved just now to registered memory with remote
        // atomic (so local write) access; no region is removed while the engine is locked.
        let original = unsafe { copy::atomic(at, operation) };
        let psn = header.psn.get();
        self.results.remember(psn, original);
        self.responses.push_back(Response::Atomic { psn, original, again: false });
        Ok(1)
    }
}

fn misaligned(addr: u64, step: &mut Step<'_, '_>) -> Stop {
    let message = format!("{addr:#x} is not a multiple of {ATOMIC_BYTES}");
    step.report(None, "atomic address", message);
    Stop::invalid_request(step)
}
