//! The packets of requests.

use super::state::Requester;
use crate::card::config::{Access, MTU, QpState, Transport};
use crate::card::memory::copy::Place;
use crate::card::memory::pieces::Refusal;
use crate::card::port::Port;
use crate::card::queue::wqe::{Payload, Work, each_piece};
use crate::card::transport::endpoint::{Endpoint, Step};
use crate::card::transport::route;
use crate::fabric::Node;
use crate::packet::{FIRST, Header, IMMEDIATE, INVALIDATE, LAST, PacketKind, SOLICITED, UNRELIABLE};
use gdsync_sys::prm::wqe::{DataSeg, Opcode};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Maximum number of work requests that are fetched and not completed.
const WINDOW: usize = 64;

impl Requester {
    /// Returns the next request packet, if one can be sent now. Its payload is in the context.
    pub(crate) fn next_request(&mut self, step: &mut Step<'_, '_>) -> Option<Header> {
        self.waits.held = false;
        if step.endpoint.state() != QpState::Rts || self.rnr_until.is_some() {
            return None;
        }
        loop {
            if self.cursor == self.requests.len() {
                let is_early = self.fetch_at.is_some_and(|at| step.context.now < at);
                if self.requests.len() >= WINDOW || is_early {
                    return None;
                }
                if self.requests.is_empty() {
                    self.disconnect();
                }
                let request = self.fetch(step)?;
                self.requests.push_back(request);
            }
            if !self.is_connected(step) {
                if self.cursor > 0 {
                    // The previous target has not answered yet.
                    return None;
                }
                self.connect(step);
            }
            let cursor = self.cursor;
            let request = &self.requests[cursor];
            if request.done {
                // It has arrived, and is not sent again. It completes after an earlier request.
                self.cursor += 1;
                continue;
            }
            let reads = || self.requests.iter().take(cursor).filter(|r| r.awaits_result() && !r.done).count();
            match &request.work {
                // A request fails only when it is the oldest.
                Err(syndrome) if cursor == 0 => {
                    let syndrome = *syndrome;
                    self.fail_front(syndrome, step);
                    return None;
                }
                Err(_) => return None,
                Ok(_) if request.fenced && request.sent == 0 && reads() > 0 => return None,
                Ok(work) if work.wait.is_some() => {
                    if !self.pass_wait(step) {
                        return None;
                    }
                }
                Ok(work) if work.is_local() => {
                    if !self.pass_local(step) {
                        return None;
                    }
                }
                Ok(_) if request.awaits_result() => {
                    if reads() >= usize::from(step.endpoint.attributes.max_rd_atomic) {
                        return None;
                    }
                    return self.result_packet(step);
                }
                Ok(_) => return self.data_packet(step),
            }
        }
    }

    /// Returns the next packet of the send or write under the cursor.
    fn data_packet(&mut self, step: &mut Step<'_, '_>) -> Option<Header> {
        step.endpoint.parked.write_all();
        let request = &self.requests[self.cursor];
        let work = request.work.as_ref().ok()?;
        let offset = request.sent * MTU;
        let length = (work.length - offset).min(MTU);
        let is_datagram = step.endpoint.config.transport == Transport::Ud;
        let kind = match work.remote {
            _ if is_datagram => PacketKind::Datagram,
            Some(_) => PacketKind::Write,
            None => PacketKind::Send,
        };
        let psn = request.first_psn.wrapping_add(request.sent);
        let mut header = Header::new(kind, step.endpoint.qpn, step.endpoint.attributes.dest_qpn, psn);
        self.name_target(work, &mut header);
        header.length = U32::new(work.length);
        if let Some(vector) = work.to.as_deref().filter(|_| is_datagram) {
            route::address(vector, &mut header, step.endpoint.attributes.qkey, step.context);
        }
        let (inline, segments): (&[u8], &[DataSeg]) = match &work.payload {
            Payload::Inline(bytes) => (bytes, &[]),
            Payload::Segments(segments) => (&[], segments),
            Payload::Mixed(bytes, segments) => (bytes, segments),
        };
        let (gather, regions) = (&mut *step.context.payload, step.context.regions);
        // The inline bytes of this packet, and then its segments.
        let before = offset.saturating_sub(inline.len() as u32);
        let inline = inline.get(offset as usize..).unwrap_or_default();
        let inline = &inline[..inline.len().min(length as usize)];
        if !inline.is_empty() {
            gather.push(Place::Host(inline.as_ptr().cast_mut()), inline.len());
        }
        let gathered = each_piece(segments, before, length - inline.len() as u32, |range| {
            let pieces = regions.resolve(range, step.endpoint.pdn, Access::empty())?;
            pieces.for_each(|(place, len)| gather.push(place, len));
            Ok::<_, Refusal>(())
        });
        if let Err(refusal) = gathered {
            self.refuse_locally("lkey", refusal.to_string(), step);
            return None;
        }
        if step.endpoint.config.transport == Transport::Uc {
            header.flags |= UNRELIABLE;
        }
        if let Some((addr, rkey)) = work.remote {
            header.addr = U64::new(addr.wrapping_add(offset.into()));
            header.rkey = U32::new(rkey);
        }
        if request.sent == 0 {
            header.flags |= FIRST;
        }
        if request.sent + 1 == request.packets {
            header.flags |= LAST;
            header.flags |= if request.solicited { SOLICITED } else { 0 };
            if matches!(work.opcode, Opcode::SendImm | Opcode::RdmaWriteImm) {
                header.flags |= IMMEDIATE;
                header.imm = request.imm;
            }
            if work.opcode == Opcode::SendInval {
                header.flags |= INVALIDATE;
                header.imm = request.imm;
            }
        }
        Some(header)
    }

    /// Sets the fields that only XRC and DC requests have.
    fn name_target(&self, work: &Work, header: &mut Header) {
        header.srqn = U32::new(work.srqn);
        if let Some(target) = self.target {
            header.connection = U64::new(self.connection);
            header.dc_key = U64::new(target.key);
        }
    }

    /// Returns the destination of the packet that [`Self::next_request`] made.
    pub(crate) fn node(&self, endpoint: &Endpoint, port: Port) -> Node {
        let request = self.requests.get(self.cursor);
        let work = request.and_then(|request| request.work.as_ref().ok());
        match work.and_then(|work| work.to.as_deref()) {
            Some(vector) => route::destination(vector, port),
            None => endpoint.node(port),
        }
    }

    /// Returns the packet of the read or atomic under the cursor. It asks for the part that has not arrived yet.
    fn result_packet(&mut self, step: &mut Step<'_, '_>) -> Option<Header> {
        let request = &self.requests[self.cursor];
        let work = request.work.as_ref().ok()?;
        if let Payload::Segments(segments) = &work.payload {
            // All places must be writable before the remote side executes the request.
            let checked = each_piece(segments, 0, work.length, |range| {
                step.context.regions.resolve(range, step.endpoint.pdn, Access::LOCAL_WRITE).map(drop)
            });
            if let Err(refusal) = checked {
                self.refuse_locally("lkey", refusal.to_string(), step);
                return None;
            }
        }
        let (addr, rkey) = work.remote?;
        let offset = request.acked * MTU;
        let psn = request.first_psn.wrapping_add(request.acked);
        let kind = match work.opcode {
            Opcode::AtomicCs | Opcode::AtomicMaskedCs => PacketKind::CompareSwap,
            Opcode::AtomicFa | Opcode::AtomicMaskedFa => PacketKind::FetchAdd,
            _ => PacketKind::Read,
        };
        let mut header = Header::new(kind, step.endpoint.qpn, step.endpoint.attributes.dest_qpn, psn);
        self.name_target(work, &mut header);
        if let Some(operands) = work.operands {
            header.operands = [operands.swap_add, operands.compare].map(U64::new);
            if let Some(masks) = operands.masks {
                step.context.payload.push_prefix(masks.map(U64::new).as_bytes());
            }
        }
        header.addr = U64::new(addr.wrapping_add(offset.into()));
        header.rkey = U32::new(rkey);
        header.length = U32::new(work.length - offset);
        Some(header)
    }

    /// Returns the index and the opcode of the request that is being sent.
    pub(crate) fn place(&self) -> (u32, u8) {
        self.requests.get(self.cursor).map_or((0, 0), |request| (request.first, request.opcode_byte))
    }

    /// Handles that the packet made by [`Self::next_request`] has left.
    pub(crate) fn request_sent(&mut self, step: &mut Step<'_, '_>) {
        let Some(request) = self.requests.get_mut(self.cursor) else { return };
        if request.awaits_result() {
            request.sent = request.packets;
        } else {
            request.sent += 1;
        }
        request.left = request.left.max(request.sent);
        let is_whole = request.sent == request.packets;
        if is_whole {
            self.cursor += 1;
        }
        if !step.endpoint.config.transport.is_reliable() {
            // No acknowledgement follows.
            if is_whole {
                request.done = true;
                self.complete_done(step);
            }
        } else if self.deadline.is_none() {
            self.arm(step);
        }
    }
}
