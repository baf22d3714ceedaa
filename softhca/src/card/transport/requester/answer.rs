//! Answers of the responder: acknowledgements, results, refusals.

use super::state::Requester;
use crate::card::config::{MTU, rnr_timer};
use crate::card::memory::copy::collect;
use crate::card::queue::wqe::Payload;
use crate::card::transport::endpoint::Step;
use crate::packet::{NakCode, PSN_MASK, Packet, psn_distance};
use gdsync_sys::prm::cqe::Syndrome;

/// RNR retry count that means "without limit".
const UNLIMITED: u8 = 7;

impl Requester {
    /// Handles an acknowledgement of everything up to packet `psn`. It may cover packets that are about to be sent
    /// again: because the peer was not ready for a packet and has taken its duplicate, or because the acknowledgement
    /// comes after the time-out. If the peer's process then ends, it is the last acknowledgement.
    pub(crate) fn acknowledge(&mut self, psn: u32, step: &mut Step<'_, '_>) {
        let mut advanced = false;
        for request in &mut self.requests {
            if request.packets == 0 || request.awaits_result() {
                continue;
            }
            let covered = psn_distance(psn, request.first_psn) + 1;
            if covered <= 0 {
                break;
            }
            let covered = (covered as u32).min(request.left);
            advanced |= covered > request.acked;
            request.acked = request.acked.max(covered);
            request.sent = request.sent.max(request.acked);
            request.done = request.acked == request.packets;
        }
        if advanced {
            self.rnr_until = None;
            self.progressed(step);
        }
        self.complete_done(step);
    }

    /// Handles the original value of an atomic operation.
    pub(crate) fn atomic_response(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let original = packet.header.operands[0].get();
        // The capability `atomic_req_8B_endianness_mode` is 1: results of 8 bytes are in host order, shorter ones are
        // big endian.
        let (word, half) = (original.to_ne_bytes(), (original as u32).to_be_bytes());
        let payload = match packet.header.length.get() as usize {
            4 => [(half.as_ptr(), half.len())],
            _ => [(word.as_ptr(), word.len())],
        };
        self.read_response(Packet { payload: &payload, ..packet }, step);
    }

    /// Handles a part of an RDMA read, or the result of an atomic.
    pub(crate) fn read_response(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let psn = packet.header.psn.get();
        let Some(position) = self.requests.iter().position(|r| r.awaits_result() && r.contains(psn)) else {
            return;
        };
        let request = &self.requests[position];
        let part = psn_distance(psn, request.first_psn) as u32;
        if request.done || part < request.acked {
            // A duplicate, or an answer to a read that was sent again since.
            return;
        }
        let misses_earlier = self.requests.iter().take(position).any(|r| r.awaits_result() && !r.done);
        if part > request.acked || misses_earlier {
            return self.answer_lost();
        }
        self.answer_is_lost = false;
        let Ok(work) = &request.work else { return };
        if part == 0 {
            // Deferred writes of earlier answers are performed first: both may be for the same place, and the
            // completions between them may be late.
            step.endpoint.parked.write_ordered();
        }
        let offset = part * MTU;
        let length = (work.length - offset).min(MTU);
        if packet.payload_len() != length as usize {
            return self.fail_at(position, Syndrome::BadResponse, step);
        }
        let config = &step.endpoint.config;
        let inside = (config.scatter.requests && request.signaled)
            .then(|| step.context.stride_for(config.send_cq, work.length as usize));
        // SAFETY: the parts are the packet's payload, readable while it is handled.
        let result = inside.flatten().map(|stride| (unsafe { collect(packet.payload) }, stride));
        let scattered = match &work.payload {
            _ if result.is_some() => Ok(()),
            Payload::Segments(segments) => {
                let (parked, pdn) = (&mut step.endpoint.parked, step.endpoint.pdn);
                step.context.scatter(parked, pdn, segments, offset, packet.payload)
            }
            Payload::Inline(_) | Payload::Mixed(..) => Ok(()),
        };
        if let Err(error) = scattered {
            step.report(Some(request.first as u16), error.field("lkey"), error.to_string());
            return self.fail_at(position, Syndrome::LocalProtection, step);
        }
        let first_psn = request.first_psn;
        let request = &mut self.requests[position];
        request.result = result;
        request.acked += 1;
        request.done = request.acked == request.packets;
        self.progressed(step);
        // Responses arrive in order, so all requests sent before the read have arrived.
        self.acknowledge(first_psn.wrapping_sub(1) & PSN_MASK, step);
    }

    /// Handles an answer that arrives while an earlier one is missing: the requests are sent again from the missing one
    /// on, and this answer is dropped (IB specification, 9.9.2: an implied NAK). The peer keeps the results of only as
    /// many atomic operations as may be in flight; if later ones continued, it would have forgotten the missing one.
    fn answer_lost(&mut self) {
        // Further answers to requests that left before the rewind will arrive, too.
        if !std::mem::replace(&mut self.answer_is_lost, true) {
            self.rewind();
        }
    }

    /// Handles that the remote side refused packet `psn`; everything before it has arrived.
    pub(crate) fn refused(&mut self, psn: u32, code: NakCode, timer: u8, step: &mut Step<'_, '_>) {
        self.acknowledge(psn.wrapping_sub(1) & PSN_MASK, step);
        let syndrome = match code {
            NakCode::Sequence => return self.rewind(),
            NakCode::ReceiverNotReady => return self.receiver_not_ready(timer, step),
            NakCode::InvalidRequest => Syndrome::RemoteInvalidRequest,
            NakCode::RemoteAccess => Syndrome::RemoteAccess,
            NakCode::RemoteOperation => Syndrome::RemoteOperation,
        };
        match self.requests.iter().position(|request| request.contains(psn)) {
            Some(position) => self.fail_at(position, syndrome, step),
            None => tracing::debug!(qpn = step.endpoint.qpn, psn, "a NAK for no outstanding request"),
        }
    }

    fn receiver_not_ready(&mut self, timer: u8, step: &mut Step<'_, '_>) {
        if self.requests.front().is_none_or(|request| request.sent == 0) {
            return;
        }
        if self.rnr_left == 0 {
            return self.fail_front(Syndrome::RnrRetryExceeded, step);
        }
        if step.endpoint.attributes.rnr_retry != UNLIMITED {
            self.rnr_left -= 1;
        }
        self.rnr_until = Some(step.context.now + step.context.speed.of(rnr_timer(timer)));
        self.set_timer(None);
        self.rewind();
    }
}
