//! Which requests a queue pair refuses.

use super::{ATOMIC_BYTES, Limits, Payload, Rules, WorkRequest};
use crate::queue::{QueueError, RequestError};
use crate::verbs::{Slice, Transport};
use gdsync_sys::prm::wqe::Opcode;

/// Queue pair numbers have 24 bits.
const MAX_QPN: u32 = (1 << 24) - 1;

impl WorkRequest<'_> {
    /// Refuses what the queue pair or its device cannot do. Most requests are none of that.
    #[inline(always)]
    pub(crate) fn check(&self, rules: &impl Rules) -> Result<(), QueueError> {
        let plain = self.operands.is_none() && self.opcode != Opcode::SendInval;
        if rules.limits().transport == Transport::Rc && plain && self.to.is_none() {
            return Ok(());
        }
        self.check_special(rules)?;
        self.to.map_or(Ok(()), |to| rules.check_address(to.handle))
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
        let goes_somewhere = transport == Transport::Ud && self.opcode != Opcode::Nop;
        match &self.to {
            None if goes_somewhere => return Err(RequestError::NoDestination),
            Some(_) if !goes_somewhere => {
                return Err(RequestError::NotOnTransport { operation: "an address of its own", transport });
            }
            Some(to) if to.qpn > MAX_QPN => return Err(RequestError::BadDestination { qpn: to.qpn }),
            _ => {}
        }
        if self.opcode == Opcode::SendInval && !limits.invalidation {
            return Err(RequestError::NotOnDevice { operation: "sends that invalidate a remote key" });
        }
        if self.operands.is_some() { self.check_atomic(limits) } else { Ok(()) }
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
