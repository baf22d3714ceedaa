//! RDMA writes and reads.

use super::state::{Responder, Stop};
use crate::card::config::{Access, packets_of};
use crate::card::context::PEER_MEMORY;
use crate::card::memory::pieces::{KeyRange, Pieces};
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
    let pieces = step.context.regions.pieces(range_of(header, length), step.endpoint.pdn, wanted);
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

    /// Takes an RDMA read request. Returns the packet numbers that its answer covers.
    pub(super) fn take_read(&mut self, header: &Header, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        self.check_responses_in_flight(step)?;
        let length = header.length.get();
        check_access(header, length.into(), Access::REMOTE_READ, step)?;
        self.push_read(header, false, step);
        Ok(packets_of(length))
    }
}
