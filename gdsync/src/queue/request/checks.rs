//! Which requests a queue pair refuses.

use super::{ATOMIC_BYTES, Destination, Limits, Payload, Rules, WorkRequest};
use crate::queue::{QueueError, RequestError};
use crate::verbs::{Slice, Transport};
use gdsync_sys::prm::wqe::Opcode;

/// Queue pair numbers have 24 bits.
const MAX_QPN: u32 = (1 << 24) - 1;

impl WorkRequest<'_> {
    /// A request that takes no look at what its queue pair can do, on a reliable connection.
    #[inline(always)]
    pub(crate) fn is_plain(&self, transport: Transport) -> bool {
        transport == Transport::Rc && self.operands.is_none() && self.to.is_none()
    }

    /// Refuses what the queue pair or its device cannot do. Most requests are none of that.
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

    /// A request has the kind of destination that its transport has, and no other.
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
