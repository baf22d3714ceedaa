//! RDMA writes and reads.

use super::state::{Responder, Stop};
use crate::card::config::{Access, packets_of};
use crate::card::context::PEER_MEMORY;
use crate::card::memory::copy::{self, Place};
use crate::card::transport::step::Step;
use crate::packet::{FIRST, Header, IMMEDIATE, LAST, NakCode, Packet};
use gdsync_sys::prm::cqe::CqeOpcode;

/// The memory that a request names, if queue pair and key allow the access. `None` for an empty
/// request.
pub(super) fn remote_access<'a>(
    header: &Header,
    length: u64,
    wanted: Access,
    step: &mut Step<'_, 'a>,
) -> Result<Option<Place<'a>>, Stop> {
    let allowed = step.endpoint.attributes.access;
    if !allowed.contains(wanted) {
        let message = format!("the queue pair allows {allowed:?}, not {wanted:?}");
        step.report(None, "qp_access_flags", message);
        return Err(Stop::no_access(step));
    }
    if length == 0 {
        return Ok(None);
    }
    let (addr, rkey, regions) = (header.addr.get(), header.rkey.get(), step.context.regions);
    regions.resolve(rkey, step.endpoint.pdn, addr, length, wanted).map(Some).map_err(|refusal| {
        step.report(None, "rkey", refusal.to_string());
        Stop::no_access(step)
    })
}

impl Responder {
    /// Takes a packet of an RDMA write. Returns the packet numbers that it covers.
    pub(super) fn take_write(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        let (header, length) = (packet.header, packet.payload_len());
        let total = if header.has(FIRST) { header.length.get() as usize } else { length };
        let place = remote_access(header, total.max(length) as u64, Access::REMOTE_WRITE, step)?;
        let completes = header.has(LAST) && header.has(IMMEDIATE);
        if completes && !self.has_receive(step) {
            return Err(Stop::Nak(NakCode::ReceiverNotReady));
        }
        if let Some(place) = place {
            // SAFETY: the parts are the packet's payload, readable while it is handled; the place
            // was resolved just now to registered memory with remote write access, and no region is
            // removed while the engine is locked. Only `copy` uses the bounce buffer.
            let copied = unsafe { copy::copy(packet.payload, &[(place, length)], step.context.bounce) };
            if let Err(failure) = copied {
                step.report(None, PEER_MEMORY, failure.to_string());
                return Err(Stop::no_access(step));
            }
        }
        if completes {
            let receive = self.take_receive(step)?.ok_or(Stop::Nak(NakCode::ReceiverNotReady))?;
            self.complete_receive(CqeOpcode::RespWriteImm, receive.slot, header, step);
        } else {
            self.taken(header, None, step);
        }
        Ok(1)
    }

    /// Takes an RDMA read request. Returns the packet numbers that its answer covers.
    pub(super) fn take_read(&mut self, header: &Header, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        self.check_responses_in_flight(step)?;
        let length = header.length.get();
        remote_access(header, length.into(), Access::REMOTE_READ, step)?;
        self.push_read(header, false, step);
        Ok(packets_of(length))
    }
}
