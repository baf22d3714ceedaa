//! The requester half of a queue pair: sending work requests, retrying, completing.

use super::config::{Access, Transport, ack_timeout, rnr_timer};
use super::context::{Context, MTU};
use super::dma::{self, Part, Place};
use super::fetch::Request;
use super::link::Port;
use super::packet::{
    FIRST, Header, IMMEDIATE, Kind, LAST, NakCode, PSN_MASK, SOLICITED, UNRELIABLE, psn_distance,
};
use super::qp::{Qp, QpState};
use super::region::Refusal;
use super::ud;
use super::wqe::Payload;
use crate::fabric::Node;
use gdsync_sys::barrier;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::{DataSeg, Opcode};
use std::collections::VecDeque;
use std::time::Instant;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Work requests that are fetched ahead of their completion.
const WINDOW: usize = 64;
/// RNR retry count that means "for ever".
const FOR_EVER: u8 = 7;

/// The state of the requester.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// Producer index, as the last doorbell said; counted for ever.
    pub(super) announced: u32,
    /// Next block to fetch.
    pub(super) fetched: u32,
    /// Blocks before this one are completed.
    pub(super) completed: u32,
    pub(super) requests: VecDeque<Request>,
    /// The request that is being sent.
    pub(super) cursor: usize,
    pub(super) next_psn: u32,
    retries_left: u8,
    rnr_left: u8,
    /// When to send again unless something is acknowledged.
    pub(super) deadline: Option<Instant>,
    /// Nothing is sent before.
    pub(super) rnr_until: Option<Instant>,
}

impl Sender {
    pub(super) fn start(psn: u32) -> Self {
        Sender { next_psn: psn, ..Sender::default() }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.rnr_until.or(self.deadline)
    }
}

impl Qp {
    /// Takes over what the doorbell record announces.
    pub(super) fn announce(&mut self, record: u16) {
        let new = record.wrapping_sub(self.sender.announced as u16);
        self.sender.announced = self.sender.announced.wrapping_add(new.into());
        if new != 0 {
            // Record and ring may lie in a GPU's memory, whose loads the CPU is free to perform early.
            barrier::from_device();
        }
    }

    /// Blocks between what is completed and what is announced: more than the ring holds is an overrun.
    pub(super) fn send_backlog(&self) -> u32 {
        self.sender.announced.wrapping_sub(self.sender.completed)
    }

    /// The next request packet, if one can be sent now. Its payload's places go to `context.payload`.
    pub(super) fn next_request(&mut self, context: &mut Context<'_>) -> Option<Header> {
        if self.attributes.state != QpState::Rts || self.sender.rnr_until.is_some() {
            return None;
        }
        loop {
            if self.sender.cursor == self.sender.requests.len() {
                if self.sender.requests.len() >= WINDOW {
                    return None;
                }
                let request = self.fetch(context)?;
                self.sender.requests.push_back(request);
            }
            let cursor = self.sender.cursor;
            let request = &self.sender.requests[cursor];
            if request.done {
                // Sent again is only what has not arrived, and this has: it waits for one before it to complete.
                self.sender.cursor += 1;
                continue;
            }
            let reads =
                || self.sender.requests.iter().take(cursor).filter(|r| r.awaits_result() && !r.done).count();
            match &request.work {
                // It fails when its turn to complete has come, not before.
                Err(syndrome) if cursor == 0 => {
                    let syndrome = *syndrome;
                    self.fail_front(syndrome, context);
                    return None;
                }
                Err(_) => return None,
                Ok(_) if request.fenced && request.sent == 0 && reads() > 0 => return None,
                Ok(work) if work.opcode == Opcode::Nop => {
                    self.sender.requests[cursor].done = true;
                    self.sender.cursor += 1;
                    self.complete_done(context);
                    if self.attributes.state != QpState::Rts {
                        return None;
                    }
                }
                Ok(_) if request.awaits_result() => {
                    if reads() >= usize::from(self.attributes.max_rd_atomic) {
                        return None;
                    }
                    return self.result_packet(context);
                }
                Ok(_) => return self.data_packet(context),
            }
        }
    }

    /// The packet of the request under the cursor that comes next: part of a send or write.
    fn data_packet(&mut self, context: &mut Context<'_>) -> Option<Header> {
        let request = &self.sender.requests[self.sender.cursor];
        let work = request.work.as_ref().ok()?;
        let offset = request.sent * MTU;
        let length = (work.length - offset).min(MTU);
        let kind = match (&work.to, work.remote) {
            (Some(_), _) => Kind::Datagram,
            (None, Some(_)) => Kind::Write,
            (None, None) => Kind::Send,
        };
        let psn = request.first_psn.wrapping_add(request.sent);
        let mut header = Header::new(kind, self.qpn, self.attributes.dest_qpn, psn);
        header.length = U32::new(work.length);
        if let Some(vector) = &work.to {
            ud::address(vector, &mut header, self.attributes.qkey, context);
        }
        let gathered: Result<(), Refusal> = match &work.payload {
            Payload::Inline(bytes) => {
                let at = bytes[offset as usize..].as_ptr();
                context.payload.push(Place::Host(at.cast_mut()), length as usize);
                Ok(())
            }
            Payload::Segments(segments) => {
                let gather = &mut *context.payload;
                each_piece(segments, offset, length, |segment, addr, count| {
                    let place =
                        context.regions.resolve(segment.lkey(), self.pdn, addr, count, Access::empty())?;
                    gather.push(place, count as usize);
                    Ok(())
                })
            }
        };
        if let Err(refusal) = gathered {
            self.refuse_locally("lkey", refusal.to_string(), context);
            return None;
        }
        if self.transport == Transport::Uc {
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
        }
        Some(header)
    }

    /// Where the packet which [`Self::next_request`] made goes.
    pub(super) fn request_node(&self, port: Port) -> Node {
        let request = self.sender.requests.get(self.sender.cursor);
        let work = request.and_then(|request| request.work.as_ref().ok());
        match work.and_then(|work| work.to.as_deref()) {
            Some(vector) => ud::destination(vector, port),
            None => self.node(port),
        }
    }

    /// The request packet of the read or atomic under the cursor, for what has not come yet.
    fn result_packet(&mut self, context: &mut Context<'_>) -> Option<Header> {
        let request = &self.sender.requests[self.sender.cursor];
        let work = request.work.as_ref().ok()?;
        if let Payload::Segments(segments) = &work.payload {
            // All of it must be writable before the remote side is asked.
            let checked = each_piece(segments, 0, work.length, |segment, addr, count| {
                context.regions.resolve(segment.lkey(), self.pdn, addr, count, Access::LOCAL_WRITE).map(drop)
            });
            if let Err(refusal) = checked {
                self.refuse_locally("lkey", refusal.to_string(), context);
                return None;
            }
        }
        let (addr, rkey) = work.remote?;
        let offset = request.acked * MTU;
        let psn = request.first_psn.wrapping_add(request.acked);
        let kind = match work.opcode {
            Opcode::AtomicCs => Kind::CompareSwap,
            Opcode::AtomicFa => Kind::FetchAdd,
            _ => Kind::ReadRequest,
        };
        let mut header = Header::new(kind, self.qpn, self.attributes.dest_qpn, psn);
        if let Some(operands) = work.operands {
            header.operands = [operands.swap_add(), operands.compare()].map(U64::new);
        }
        header.addr = U64::new(addr.wrapping_add(offset.into()));
        header.rkey = U32::new(rkey);
        header.length = U32::new(work.length - offset);
        Some(header)
    }

    /// The local memory of the request under the cursor cannot be used.
    pub(super) fn refuse_locally(&mut self, field: &'static str, message: String, context: &mut Context<'_>) {
        let Some(request) = self.sender.requests.get(self.sender.cursor) else { return };
        context.report(self.qpn, Some(request.first as u16), field, message);
        self.fail_current(Syndrome::LocalProtection, context);
    }

    /// The request under the cursor fails, when its turn to complete has come. What is left of it is not sent.
    pub(super) fn fail_current(&mut self, syndrome: Syndrome, context: &mut Context<'_>) {
        let cursor = self.sender.cursor;
        context.payload.clear();
        let Some(request) = self.sender.requests.get_mut(cursor) else { return };
        request.work = Err(syndrome);
        if cursor == 0 {
            self.fail_front(syndrome, context);
        }
    }

    /// The packet that [`Self::next_request`] made is on its way.
    pub(super) fn request_sent(&mut self, context: &mut Context<'_>) {
        let Some(request) = self.sender.requests.get_mut(self.sender.cursor) else { return };
        if request.awaits_result() {
            request.sent = request.packets;
        } else {
            request.sent += 1;
        }
        let is_whole = request.sent == request.packets;
        if is_whole {
            self.sender.cursor += 1;
        }
        if self.transport != Transport::Rc {
            // Nobody will acknowledge it.
            if is_whole {
                request.done = true;
                self.complete_done(context);
            }
        } else if self.sender.deadline.is_none() {
            self.arm(context.now);
        }
    }

    /// Starts, or starts again, the time within which something has to be acknowledged.
    fn arm(&mut self, now: Instant) {
        let outstanding =
            self.sender.requests.iter().any(|request| request.sent > request.acked && !request.done);
        let timeout = ack_timeout(self.attributes.timeout).filter(|_| outstanding);
        self.sender.deadline = timeout.map(|timeout| now + timeout);
    }

    /// Something was acknowledged: the peer lives.
    fn progressed(&mut self, now: Instant) {
        self.sender.retries_left = self.attributes.retry_cnt;
        self.sender.rnr_left = self.attributes.rnr_retry;
        self.arm(now);
    }

    /// Fresh counters, when the queue pair becomes ready to send.
    pub(super) fn refill_retries(&mut self) {
        self.sender.retries_left = self.attributes.retry_cnt;
        self.sender.rnr_left = self.attributes.rnr_retry;
    }

    /// Everything up to packet `psn` has arrived.
    pub(super) fn acknowledge(&mut self, psn: u32, context: &mut Context<'_>) {
        let mut advanced = false;
        for request in &mut self.sender.requests {
            if request.packets == 0 || request.awaits_result() {
                continue;
            }
            let covered = psn_distance(psn, request.first_psn) + 1;
            if covered <= 0 {
                break;
            }
            let covered = (covered as u32).min(request.sent);
            advanced |= covered > request.acked;
            request.acked = request.acked.max(covered);
            request.done = request.acked == request.packets;
        }
        if advanced {
            self.progressed(context.now);
        }
        self.complete_done(context);
    }

    /// The original value of an atomic operation has come.
    pub(super) fn atomic_response(&mut self, header: &Header, context: &mut Context<'_>) {
        // Operands and results are in host order.
        let original = header.operands[0].get().to_ne_bytes();
        self.read_response(header, &[(original.as_ptr(), original.len())], context);
    }

    /// A part of an RDMA read has come, or the result of an atomic.
    pub(super) fn read_response(&mut self, header: &Header, payload: &[Part], context: &mut Context<'_>) {
        let psn = header.psn.get();
        let Some(position) = self.sender.requests.iter().position(|r| r.awaits_result() && r.contains(psn))
        else {
            return;
        };
        let request = &self.sender.requests[position];
        let part = psn_distance(psn, request.first_psn) as u32;
        if request.done || part != request.acked {
            // A duplicate, or one from before the read was asked for again.
            return;
        }
        let Ok(work) = &request.work else { return };
        let offset = part * MTU;
        let length = (work.length - offset).min(MTU);
        let received: usize = payload.iter().map(|part| part.1).sum();
        let regions = context.regions;
        let mut places = Vec::new();
        let scattered: Result<(), Refusal> = match &work.payload {
            Payload::Segments(segments) => each_piece(segments, offset, length, |segment, addr, count| {
                let place = regions.resolve(segment.lkey(), self.pdn, addr, count, Access::LOCAL_WRITE)?;
                places.push((place, count as usize));
                Ok(())
            }),
            Payload::Inline(_) => Ok(()),
        };
        if received != length as usize {
            self.fail_at(position, Syndrome::BadResponse, context);
            return;
        }
        if let Err(refusal) = scattered {
            context.report(self.qpn, Some(request.first as u16), "lkey", refusal.to_string());
            self.fail_at(position, Syndrome::LocalProtection, context);
            return;
        }
        // SAFETY: the parts are the sender's payload, readable while this packet is handled; the places were resolved just
        // now to registered memory with local write access, and regions do not go while the engine is locked. Only `copy`
        // itself uses the bounce buffer.
        let copied = unsafe { dma::copy(payload, &places, context.bounce) };
        if let Err(failure) = copied {
            context.report(self.qpn, Some(request.first as u16), PEER_MEMORY, failure.to_string());
            self.fail_at(position, Syndrome::LocalProtection, context);
            return;
        }
        let first_psn = self.sender.requests[position].first_psn;
        let request = &mut self.sender.requests[position];
        request.acked += 1;
        request.done = request.acked == request.packets;
        self.progressed(context.now);
        // Responses come in order: whatever was sent before the read has arrived.
        self.acknowledge(first_psn.wrapping_sub(1) & PSN_MASK, context);
    }

    /// The remote side refused packet `psn`; everything before it has arrived.
    pub(super) fn refused(&mut self, psn: u32, code: NakCode, timer: u8, context: &mut Context<'_>) {
        self.acknowledge(psn.wrapping_sub(1) & PSN_MASK, context);
        let syndrome = match code {
            NakCode::Sequence => return self.rewind(),
            NakCode::ReceiverNotReady => return self.receiver_not_ready(timer, context),
            NakCode::InvalidRequest => Syndrome::RemoteInvalidRequest,
            NakCode::RemoteAccess => Syndrome::RemoteAccess,
            NakCode::RemoteOperation => Syndrome::RemoteOperation,
        };
        match self.sender.requests.iter().position(|request| request.contains(psn)) {
            Some(position) => self.fail_at(position, syndrome, context),
            None => tracing::debug!(qpn = self.qpn, psn, "a NAK for nothing"),
        }
    }

    fn receiver_not_ready(&mut self, timer: u8, context: &mut Context<'_>) {
        if self.sender.requests.front().is_none_or(|request| request.sent == 0) {
            return;
        }
        if self.sender.rnr_left == 0 {
            return self.fail_front(Syndrome::RnrRetryExceeded, context);
        }
        if self.attributes.rnr_retry != FOR_EVER {
            self.sender.rnr_left -= 1;
        }
        self.sender.rnr_until = Some(context.now + rnr_timer(timer));
        self.sender.deadline = None;
        self.rewind();
    }

    /// Sends again what is not acknowledged, from the oldest on.
    fn rewind(&mut self) {
        let oldest = self.sender.requests.iter().position(|request| !request.done);
        self.sender.cursor = oldest.unwrap_or(self.sender.requests.len());
        for request in self.sender.requests.iter_mut().skip(self.sender.cursor) {
            request.sent = if request.done { request.packets } else { request.acked };
        }
    }

    /// The time for an acknowledgement is over, or the peer is known to be gone.
    pub(super) fn retry(&mut self, peer_is_alive: bool, context: &mut Context<'_>) {
        self.sender.deadline = None;
        if self.attributes.state != QpState::Rts {
            return;
        }
        if !peer_is_alive || self.sender.retries_left == 0 {
            let position =
                self.sender.requests.iter().position(|request| !request.done && request.packets > 0);
            if let Some(position) = position {
                self.fail_at(position, Syndrome::RetryExceeded, context);
            }
            return;
        }
        self.sender.retries_left -= 1;
        tracing::debug!(qpn = self.qpn, left = self.sender.retries_left, "nothing was acknowledged in time");
        self.rewind();
        self.sender.deadline = ack_timeout(self.attributes.timeout).map(|timeout| context.now + timeout);
    }

    /// Whether the pause that the peer asked for is over; then it is forgotten.
    pub(super) fn take_rnr_over(&mut self, now: Instant) -> bool {
        self.sender.rnr_until.take_if(|until| *until <= now).is_some()
    }
}

/// The vendor syndrome of every error entry: a software card has nothing to add.
pub(super) const VENDOR_SYNDROME: u8 = 0;

/// What a failure of a peer-memory client is reported as.
pub(super) const PEER_MEMORY: &str = "peer memory";

/// Calls `piece` for each part of the elements that lies in `offset..offset + length` of the message: the element, the
/// address and the number of bytes.
pub(super) fn each_piece<E>(
    segments: &[DataSeg],
    offset: u32,
    length: u32,
    mut piece: impl FnMut(&DataSeg, u64, u64) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut left) = (u64::from(offset), u64::from(length));
    for segment in segments {
        if left == 0 {
            break;
        }
        let size = u64::from(segment.byte_count());
        if skip >= size {
            skip -= size;
            continue;
        }
        let count = (size - skip).min(left);
        piece(segment, segment.addr().wrapping_add(skip), count)?;
        (skip, left) = (0, left - count);
    }
    Ok(())
}
