//! The packets of remote work requests, and the execution of local ones.
//!
//! An initiator of dynamically connected transport (DC) is connected to one target at a time. It connects to the target
//! of its next request when all requests for the previous target have completed. Connections are numbered, and the PSNs
//! of each start at 0; so a target, which may learn of a connection by any of its packets, distinguishes a new
//! connection from an old one.

use super::state::{DcTarget, Requester};
use crate::card::config::{Access, QpState, Transport};
use crate::card::memory::copy::Location;
use crate::card::memory::translation::Refusal;
use crate::card::port::Port;
use crate::card::queue::wqe::{Payload, Work, each_piece};
use crate::card::transport::endpoint::{Endpoint, Step};
use crate::card::transport::route;
use crate::fabric::Node;
use crate::packet::{
    FIRST, Header, IMMEDIATE, INVALIDATE, LAST, PSN_MASK, PacketKind, SOLICITED, UNRELIABLE,
};
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::{DataSeg, Opcode};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Maximum number of work requests that are fetched and not completed.
const WINDOW: usize = 64;

impl Requester {
    fn next_target(&self, step: &Step<'_, '_>) -> Option<DcTarget> {
        if step.endpoint.config.transport != Transport::DcInitiator {
            return None;
        }
        let work = self.requests.get(self.cursor)?.work.as_ref().ok()?;
        let vector = work.to.as_deref()?;
        let node = route::destination(vector, step.context.port);
        Some(DcTarget { node, number: vector.fields().qpn, key: vector.dc_key() })
    }

    /// Returns whether the request under the cursor can be sent on the current connection.
    pub(super) fn is_connected(&self, step: &Step<'_, '_>) -> bool {
        self.next_target(step).is_none_or(|target| self.target == Some(target))
    }

    /// Connects to the target of the oldest request, of which nothing was sent.
    pub(super) fn connect(&mut self, step: &mut Step<'_, '_>) {
        let Some(target) = self.next_target(step) else { return };
        self.target = Some(target);
        self.connection += 1;
        step.endpoint.set_peer(target.node, target.number, self.connection);
        self.reached = None;
        self.next_psn = 0;
        for request in &mut self.requests {
            request.first_psn = self.next_psn;
            self.next_psn = self.next_psn.wrapping_add(request.packets) & PSN_MASK;
        }
    }

    /// Forgets the target: nothing is in flight to it, and the next request may have a different target.
    pub(super) fn disconnect(&mut self) {
        self.target = None;
    }

    /// Returns whether a request follows the one that is being sent.
    pub(crate) fn sends_more(&self) -> bool {
        self.cursor + 1 < self.requests.len() || self.queue.has_announced()
    }

    /// Returns the next request packet, if one can be sent now. Its payload is in the context.
    pub(crate) fn next_request(&mut self, step: &mut Step<'_, '_>) -> Option<Header> {
        self.waits.unmet = false;
        let is_paused =
            self.rnr_until.is_some() || self.paused_until.is_some_and(|until| step.context.now < until);
        if step.endpoint.state() != QpState::Rts || is_paused {
            return None;
        }
        loop {
            if self.cursor == self.requests.len() {
                if self.requests.len() >= WINDOW {
                    return None;
                }
                if self.requests.is_empty() {
                    self.disconnect();
                }
                if !self.may_fetch(step) {
                    return None;
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
                    // The field is a logarithm (`log_sra_max`), so one may be in flight at least.
                    if reads() >= usize::from(step.endpoint.attributes.max_rd_atomic.max(1)) {
                        return None;
                    }
                    if request.fenced {
                        // Results before it are in memory, also those without a completion entry.
                        step.endpoint.deferred.write_all();
                    }
                    return self.result_packet(step);
                }
                Ok(_) => return self.data_packet(step),
            }
        }
    }

    /// Executes the WAIT or SEND_EN under the cursor. Returns whether the next request may follow.
    fn pass_wait(&mut self, step: &mut Step<'_, '_>) -> bool {
        let Some(request) = self.requests.get(self.cursor) else { return false };
        let Some(wait) = request.work.as_ref().ok().and_then(|work| work.wait) else { return false };
        let block = request.first;
        match self.waits.execute(wait, block, step) {
            Ok(is_met) => is_met && self.pass(step),
            Err(error) => {
                step.report(Some(block as u16), error.field, error.message);
                self.fail_current(error.syndrome, step);
                false
            }
        }
    }

    /// Executes the request under the cursor, which has no packets, and moves past it. Returns false if it fails, or if
    /// the queue pair can send no more.
    fn pass_local(&mut self, step: &mut Step<'_, '_>) -> bool {
        let request = &self.requests[self.cursor];
        let Ok(work) = &request.work else { return false };
        let (pdn, qpn) = (step.endpoint.pdn, step.endpoint.qpn);
        let failure = match (&work.change, &work.payload) {
            (Some(change), _) => match step.context.regions.change(change, (pdn, qpn)) {
                Ok(()) => None,
                Err(error) => Some((Syndrome::MwBind, "mkey", error.to_string())),
            },
            // DUMP reads its bytes and drops them.
            (None, Payload::Segments(segments) | Payload::Mixed(_, segments)) => {
                let regions = step.context.regions;
                let read = each_piece(segments, 0, work.length, |range| {
                    regions.resolve(range, pdn, Access::empty()).map(drop)
                });
                let refused = read.err();
                refused.map(|refusal| (Syndrome::LocalProtection, "lkey", refusal.to_string()))
            }
            (None, Payload::Inline(_)) => None,
        };
        if let Some((syndrome, field, message)) = failure {
            step.report(Some(request.first as u16), field, message);
            self.fail_current(syndrome, step);
            return false;
        }
        self.pass(step)
    }

    /// Moves past the request under the cursor, which is done. Returns whether the queue pair can send more.
    fn pass(&mut self, step: &mut Step<'_, '_>) -> bool {
        self.requests[self.cursor].done = true;
        self.cursor += 1;
        self.complete_done(step);
        step.endpoint.state() == QpState::Rts
    }

    /// Returns the next packet of the send or write under the cursor.
    fn data_packet(&mut self, step: &mut Step<'_, '_>) -> Option<Header> {
        if !self.may_transmit(step) {
            return None;
        }
        step.endpoint.deferred.write_all();
        self.own_sources(step);
        let request = &self.requests[self.cursor];
        let work = request.work.as_ref().ok()?;
        let mtu = step.context.port.mtu;
        let offset = request.sent * mtu;
        let length = (work.length - offset).min(mtu);
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
            gather.push(Location::Host(inline.as_ptr().cast_mut()), inline.len());
        }
        let gathered = each_piece(segments, before, length - inline.len() as u32, |range| {
            let pieces = regions.resolve(range, step.endpoint.pdn, Access::empty())?;
            pieces.for_each(|(location, len)| gather.push(location, len));
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
        header.srqn_or_level = U32::new(work.srqn);
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
        if step.context.watches.is_on() {
            self.watch_result(step);
        }
        let request = &self.requests[self.cursor];
        let work = request.work.as_ref().ok()?;
        let offset = request.acked * step.context.port.mtu;
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

    /// Handles the departure of the packet made by [`Self::next_request`].
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
        } else if std::mem::take(&mut self.waits_for_room) || self.deadline.is_none() {
            self.arm(step);
        }
    }
}
