//! RDMA writes and reads.

use super::state::{Responder, Stop};
use crate::card::config::{Access, packets_of};
use crate::card::context::{Context, PEER_MEMORY};
use crate::card::memory::copy::{self, Place};
use crate::card::transport::endpoint::Endpoint;
use crate::fabric::Part;
use crate::packet::{FIRST, Header, IMMEDIATE, LAST, NakCode};
use gdsync_sys::prm::cqe::CqeOpcode;

/// The memory that a request names, if queue pair and key allow the access. `None` for an empty
/// request.
pub(super) fn remote_access<'a>(
    header: &Header,
    length: u64,
    wanted: Access,
    endpoint: &Endpoint,
    context: &mut Context<'a>,
) -> Result<Option<Place<'a>>, Stop> {
    let allowed = endpoint.attributes.access;
    if !allowed.contains(wanted) {
        let message = format!("the queue pair allows {allowed:?}, not {wanted:?}");
        context.report(endpoint.qpn, None, "qp_access_flags", message);
        return Err(Stop::no_access(endpoint));
    }
    if length == 0 {
        return Ok(None);
    }
    let (addr, rkey, regions) = (header.addr.get(), header.rkey.get(), context.regions);
    regions.resolve(rkey, endpoint.pdn, addr, length, wanted).map(Some).map_err(|refusal| {
        context.report(endpoint.qpn, None, "rkey", refusal.to_string());
        Stop::no_access(endpoint)
    })
}

impl Responder {
    /// Takes a packet of an RDMA write. Returns the packet numbers that it covers.
    pub(super) fn take_write(
        &mut self,
        header: &Header,
        payload: &[Part],
        endpoint: &mut Endpoint,
        context: &mut Context<'_>,
    ) -> Result<u32, Stop> {
        let length: u64 = payload.iter().map(|part| part.1 as u64).sum();
        let total = if header.has(FIRST) { header.length.get().into() } else { length };
        let place = remote_access(header, total.max(length), Access::REMOTE_WRITE, endpoint, context)?;
        let completes = header.has(LAST) && header.has(IMMEDIATE);
        if completes && !self.queue.has_receive() {
            return Err(Stop::Nak(NakCode::ReceiverNotReady));
        }
        if let Some(place) = place {
            // SAFETY: the parts are the packet's payload, readable while it is handled; the place
            // was resolved just now to registered memory with remote write access, and no region is
            // removed while the engine is locked. Only `copy` uses the bounce buffer.
            let copied = unsafe { copy::copy(payload, &[(place, length as usize)], context.bounce) };
            if let Err(failure) = copied {
                context.report(endpoint.qpn, None, PEER_MEMORY, failure.to_string());
                return Err(Stop::no_access(endpoint));
            }
        }
        if completes {
            let receive = self.queue.take().ok_or(Stop::Nak(NakCode::ReceiverNotReady))?;
            self.complete_receive(CqeOpcode::RespWriteImm, receive.index, header, endpoint, context);
        } else {
            self.taken(header, None, endpoint, context);
        }
        Ok(1)
    }

    /// Takes an RDMA read request. Returns the packet numbers that its answer covers.
    pub(super) fn take_read(
        &mut self,
        header: &Header,
        endpoint: &Endpoint,
        context: &mut Context<'_>,
    ) -> Result<u32, Stop> {
        self.check_responses_in_flight(endpoint, context)?;
        let length = header.length.get();
        remote_access(header, length.into(), Access::REMOTE_READ, endpoint, context)?;
        self.push_read(header, false);
        Ok(packets_of(length))
    }
}
