//! Atomic operations, the responder's side: compare-and-swap and fetch-and-add of 8 bytes.
//!
//! They are performed by the CPU's own atomic operations, so that threads of programs see them as atomic, too. Operands and
//! results are in host order: what mlx5 reports as `IBV_ATOMIC_HCA` with host endianness.

use super::config::{Access, LIMITS};
use super::context::Context;
use super::dma::{self, AtomicOperation, Place};
use super::error::Event;
use super::packet::{Header, Kind, NakCode};
use super::qp::Qp;
use super::receiver::{Failure, Stop};
use super::responses::Response;
use super::sender::PEER_MEMORY;
use super::wqe::ATOMIC_BYTES;
use std::collections::VecDeque;

/// Results of the last atomic operations, by packet number: a request that comes again is answered, not executed, again.
#[derive(Debug, Default)]
pub(super) struct Results {
    kept: VecDeque<(u32, u64)>,
}

impl Results {
    /// As many are kept as a requester may have in flight.
    fn remember(&mut self, psn: u32, original: u64) {
        if self.kept.len() >= usize::from(LIMITS.max_rd_atomic) {
            self.kept.pop_front();
        }
        self.kept.push_back((psn, original));
    }

    /// The newest result of that number: numbers repeat after 2^24 packets.
    pub(super) fn find(&self, psn: u32) -> Option<u64> {
        self.kept.iter().rev().find(|(known, _)| *known == psn).map(|(_, original)| *original)
    }
}

impl Qp {
    /// Performs an atomic operation that came for the first time.
    pub(super) fn take_atomic(
        &mut self,
        kind: Kind,
        header: &Header,
        context: &mut Context<'_>,
    ) -> Result<u32, Stop> {
        self.check_responses_in_flight(context)?;
        let addr = header.addr.get();
        if !addr.is_multiple_of(ATOMIC_BYTES.into()) {
            return Err(self.misaligned(addr, context));
        }
        let place = self.remote_access(header, ATOMIC_BYTES.into(), Access::REMOTE_ATOMIC, context)?;
        let at = match place {
            Some(Place::Host(at)) if (at as usize).is_multiple_of(ATOMIC_BYTES as usize) => at,
            // Registered at an address that is congruent to nothing.
            Some(Place::Host(at)) => return Err(self.misaligned(at as u64, context)),
            _ => {
                let message =
                    format!("{addr:#x} is memory of a peer-memory client, where the CPU has no atomics");
                context.report(self.qpn, None, PEER_MEMORY, message);
                return Err(self.no_access());
            }
        };
        let [first, second] = header.operands.map(|operand| operand.get());
        let operation = match kind {
            Kind::CompareSwap => AtomicOperation::CompareSwap { swap: first, compare: second },
            _ => AtomicOperation::FetchAdd { add: first },
        };
        // SAFETY: aligned, as was checked above, and resolved just now to registered memory with remote atomic (and so local
        // write) access; regions do not go while the engine is locked.
        let original = unsafe { dma::atomic(at, operation) };
        let psn = header.psn.get();
        self.receiver.results.remember(psn, original);
        self.receiver.responses.push_back(Response::Atomic { psn, original, again: false });
        Ok(1)
    }

    fn misaligned(&self, addr: u64, context: &mut Context<'_>) -> Stop {
        let message = format!("{addr:#x} is not a multiple of {ATOMIC_BYTES}");
        context.report(self.qpn, None, "atomic address", message);
        Stop::Fatal(NakCode::InvalidRequest, Failure::Event(Event::QpRequestError { qpn: self.qpn }))
    }

    /// Refuses a read or an atomic beyond those that the queue pair has said it serves at once.
    pub(super) fn check_responses_in_flight(&self, context: &mut Context<'_>) -> Result<(), Stop> {
        let in_flight = self.receiver.responses.iter().filter(|response| response.has_new_result()).count();
        if in_flight < usize::from(self.attributes.max_dest_rd_atomic) {
            return Ok(());
        }
        let message = format!("{in_flight} reads and atomics are in flight, which is the limit");
        context.report(self.qpn, None, "max_dest_rd_atomic", message);
        Err(Stop::Fatal(NakCode::InvalidRequest, Failure::Event(Event::QpRequestError { qpn: self.qpn })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_results_are_kept() {
        let mut results = Results::default();
        (0..20u32).for_each(|psn| results.remember(psn, u64::from(psn) + 100));
        assert_eq!((results.find(3), results.find(4), results.find(19)), (None, Some(104), Some(119)));
        results.remember(5, 7);
        assert_eq!(results.find(5), Some(7), "the newest of that number");
    }
}
