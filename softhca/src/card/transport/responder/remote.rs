//! RDMA writes and reads.

use super::state::{Responder, Stop};
use crate::card::config::{Access, packets_of};
use crate::card::context::PEER_MEMORY;
use crate::card::memory::copy;
use crate::card::memory::pieces::Pieces;
use crate::card::memory::refusal::Refusal;
use crate::card::transport::step::Step;
use crate::packet::{FIRST, Header, IMMEDIATE, LAST, NakCode, Packet};
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
    let (addr, rkey, regions) = (header.addr.get(), header.rkey.get(), step.context.regions);
    let owner = (step.endpoint.pdn, step.endpoint.qpn);
    let checked = regions.check_faults(rkey, wanted);
    checked
        .and_then(|()| regions.check_remote(rkey, owner, addr, length, wanted))
        .map_err(|refusal| no_access(&refusal, step))
}

/// The memory that a request names, after [`check_access`]; none for an empty request.
pub(super) fn remote_memory<'a>(
    header: &Header,
    length: u64,
    wanted: Access,
    step: &mut Step<'_, 'a>,
) -> Result<Pieces<'a>, Stop> {
    if length == 0 {
        return Ok(Pieces::One(None));
    }
    let (addr, rkey, regions) = (header.addr.get(), header.rkey.get(), step.context.regions);
    let pieces = regions.pieces(rkey, step.endpoint.pdn, addr, length, wanted);
    pieces.map_err(|refusal| no_access(&refusal, step))
}

fn no_access(refusal: &Refusal, step: &mut Step<'_, '_>) -> Stop {
    step.report(None, "rkey", refusal.to_string());
    Stop::no_access(step)
}

impl Responder {
    /// Takes a packet of an RDMA write. Returns the packet numbers that it covers.
    pub(super) fn take_write(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        let (header, length) = (packet.header, packet.payload_len());
        let total = if header.has(FIRST) { header.length.get() as usize } else { length };
        // The whole message, with its first packet: then this packet's part.
        check_access(header, total.max(length) as u64, Access::REMOTE_WRITE, step)?;
        let pieces = remote_memory(header, length as u64, Access::REMOTE_WRITE, step)?;
        let completes = header.has(LAST) && header.has(IMMEDIATE);
        if completes && !self.has_receive(step) {
            return Err(Stop::Nak(NakCode::ReceiverNotReady));
        }
        let copy = |targets: &[_], step: &mut Step<'_, '_>| {
            // SAFETY: the parts are the packet's payload, readable while it is handled; the pieces
            // were resolved just now to registered memory with remote write access, and no region is
            // removed while the engine is locked. Only `copy` uses the bounce buffer.
            unsafe { copy::copy(packet.payload, targets, step.context.bounce) }
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
        check_access(header, length.into(), Access::REMOTE_READ, step)?;
        self.push_read(header, false, step);
        Ok(packets_of(length))
    }
}
