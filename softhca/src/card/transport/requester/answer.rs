//! Answers of the responder, their absence, and the completion of work requests.

use super::state::{PeerState, Request, Requester};
use super::wait::Waits;
use crate::card::config::{QpState, rnr_timer};
use crate::card::memory::copy::collect;
use crate::card::memory::ring::Entry;
use crate::card::queue::wqe::Payload;
use crate::card::transport::endpoint::Step;
use crate::packet::{NakCode, PSN_MASK, Packet, psn_distance};
use gdsync_sys::prm::cqe::{Cqe64, Syndrome};
use std::time::Duration;

/// RNR retry count that means "without limit".
const UNLIMITED: u8 = 7;

/// A time-out under check is checked again after its duration divided by this.
const CHECKS: u32 = 16;
/// Less than the time to the next step, in which this card handles more packets of an ended peer.
const NEXT_STEP: Duration = Duration::from_nanos(1);

impl Requester {
    /// Returns whether a packet of this number has left and may be outstanding, or was acknowledged. Others come from a
    /// former connection, and count as lost (IB specification, 9.7.5.1: acknowledge messages of invalid PSN).
    pub(crate) fn may_be_answered(&self, psn: u32) -> bool {
        let newest = self.requests.iter().rev().find(|request| request.left > 0);
        newest.is_some_and(|request| psn_distance(psn, request.first_psn) < request.left as i32)
    }

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
            // One that has failed since it left fails when it is the oldest.
            request.done = request.acked == request.packets && request.work.is_ok();
        }
        if advanced {
            self.rnr_until = None;
            self.progressed(step);
        }
        self.complete_done(step);
    }

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
            step.endpoint.deferred.write_ordered();
        }
        let mtu = step.context.port.mtu;
        let offset = part * mtu;
        let length = (work.length - offset).min(mtu);
        if packet.payload_len() != length as usize {
            return self.fail_at(position, Syndrome::BadResponse, step);
        }
        let config = &step.endpoint.config;
        let inside = (config.scatter.requests && request.signaled)
            .then(|| step.context.stride_for(config.send_cq, work.length as usize));
        // SAFETY: the parts are the packet's payload, readable while it is handled.
        let result =
            inside.flatten().and_then(|stride| Some((unsafe { collect(packet.payload) }.ok()?, stride)));
        let scattered = match &work.payload {
            _ if result.is_some() => Ok(()),
            Payload::Segments(segments) => {
                let work = step.endpoint.work.of_request(request.number, part);
                let (deferred, pdn) = (&mut step.endpoint.deferred, step.endpoint.pdn);
                step.context.scatter((deferred, work), pdn, segments, offset, packet.payload)
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

    /// Handles a NAK of packet `psn`; everything before it has arrived.
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
        self.is_refused = true;
        self.rnr_until = Some(step.context.now + step.context.speed.of(rnr_timer(timer)));
        self.set_timer(None);
        self.rewind();
    }

    /// Handles an expired retransmission timer, or the end of the peer's process.
    ///
    /// Hardware acknowledges without its host's CPU. A software card stops with its process, so a time-out counts only
    /// if the peer's card has run since it took the packets. Until then nothing is lost, and nothing has to be sent
    /// again.
    pub(crate) fn retry(&mut self, peer: PeerState, step: &mut Step<'_, '_>) {
        if step.endpoint.state() != QpState::Rts {
            return self.set_timer(None);
        }
        match peer {
            PeerState::Busy => return self.wait_again(step),
            PeerState::Responding => return self.check_again(step),
            PeerState::Ending => {
                self.deadline = Some(step.context.now + NEXT_STEP);
                return;
            }
            PeerState::Ended { since } if step.context.now < since + Self::grace(step) => {
                self.deadline = Some(since + Self::grace(step));
                return;
            }
            PeerState::Silent if self.retries_left > 0 => {}
            PeerState::Silent | PeerState::Ended { .. } if self.waits_for_program(step) => return,
            PeerState::Silent | PeerState::Ended { .. } => {
                self.set_timer(None);
                let position = self.requests.iter().position(|request| !request.done && request.packets > 0);
                if let Some(position) = position {
                    self.fail_at(position, Syndrome::RetryExceeded, step);
                }
                return;
            }
        }
        self.retries_left -= 1;
        tracing::debug!(
            qpn = step.endpoint.qpn,
            left = self.retries_left,
            "nothing was acknowledged in time"
        );
        self.rewind();
        self.wait_again(step);
    }

    /// Returns whether the failure waits for the program, which has not consumed all its completions yet. The program
    /// may end with them, and must not find a failure after the last one only because it did not run for a while: on
    /// hardware the retries take half a second and more, and the card does not compete with the program for a
    /// processor.
    ///
    /// The failure waits for as many checks of the program as take the time of all retries once more (the specification
    /// lets a time-out last four times its configured value). Counting checks instead of time also gives the program
    /// its turn after the whole process was stopped.
    fn waits_for_program(&mut self, step: &Step<'_, '_>) -> bool {
        let Some(timeout) = step.ack_timeout() else { return false };
        let checks = CHECKS * Self::transmissions(step);
        let waits = self.program_checks < checks && step.has_unconsumed();
        if waits {
            self.program_checks += 1;
            self.deadline = Some(step.context.now + timeout / CHECKS);
        }
        waits
    }

    fn transmissions(step: &Step<'_, '_>) -> u32 {
        u32::from(step.endpoint.attributes.retry_cnt) + 1
    }

    /// Returns how long the requests of an ended peer are kept: as long as all transmissions take, as on hardware, whose
    /// card does not know that a process has ended. Zero without a time-out: hardware would wait forever, and only the
    /// peer's end fails the queue pair.
    fn grace(step: &Step<'_, '_>) -> Duration {
        step.ack_timeout().map_or(Duration::ZERO, |timeout| timeout * Self::transmissions(step))
    }

    fn wait_again(&mut self, step: &Step<'_, '_>) {
        self.set_timer(step.ack_timeout().map(|timeout| step.context.now + timeout));
    }

    /// Checks the peer again soon, and continues the check of the time-out.
    fn check_again(&mut self, step: &Step<'_, '_>) {
        self.deadline = step.ack_timeout().map(|timeout| step.context.now + timeout / CHECKS);
    }

    pub(super) fn complete_done(&mut self, step: &mut Step<'_, '_>) {
        while self.requests.front().is_some_and(|request| request.done) {
            let Some(mut request) = self.requests.pop_front() else { return };
            request.watched.clear();
            self.cursor = self.cursor.saturating_sub(1);
            self.check_owned(&request, step);
            self.queue.complete_until(request.end());
            if let Ok(work) = &request.work
                && request.signaled
            {
                let count = if request.awaits_result() { request.length() } else { 0 };
                let cqe = Cqe64::requester(work.opcode, step.endpoint.qpn, request.first as u16, count);
                step.complete_send(match &request.result {
                    Some((data, stride)) => Entry::with_data(cqe, data, *stride),
                    None => cqe.into(),
                });
            }
        }
    }

    pub(super) fn fail_at(&mut self, position: usize, syndrome: Syndrome, step: &mut Step<'_, '_>) {
        // Either the requests before it have arrived, or the transport is broken: both end them.
        for request in self.requests.iter_mut().take(position) {
            request.done = request.work.is_ok() && !request.awaits_result();
        }
        self.complete_done(step);
        self.fail_front(syndrome, step);
    }

    /// Fails the oldest request, and with it the queue pair.
    pub(super) fn fail_front(&mut self, syndrome: Syndrome, step: &mut Step<'_, '_>) {
        if let Some(request) = self.requests.pop_front() {
            // A malformed request has its own syndrome.
            let syndrome = request.work.as_ref().err().copied().unwrap_or(syndrome);
            self.complete_with_error(&request, syndrome, step);
        }
        step.endpoint.fail();
    }

    fn complete_with_error(&mut self, request: &Request, syndrome: Syndrome, step: &mut Step<'_, '_>) {
        self.queue.complete_until(request.end());
        step.send_error(request.first as u16, request.opcode_byte, syndrome);
    }

    /// Fails the request under the cursor, once it is the oldest. The rest of it is not sent.
    pub(crate) fn fail_current(&mut self, syndrome: Syndrome, step: &mut Step<'_, '_>) {
        step.context.payload.clear();
        let Some(request) = self.requests.get_mut(self.cursor) else { return };
        request.work = Err(syndrome);
        if self.cursor == 0 {
            self.fail_front(syndrome, step);
        }
    }

    /// Fails the request under the cursor because its local memory cannot be used.
    pub(crate) fn refuse_locally(&mut self, field: &'static str, message: String, step: &mut Step<'_, '_>) {
        let Some(request) = self.requests.get(self.cursor) else { return };
        step.report(Some(request.first as u16), field, message);
        self.fail_current(Syndrome::LocalProtection, step);
    }

    /// Completes all announced work requests as flushed, in ERR.
    pub(crate) fn flush(&mut self, step: &mut Step<'_, '_>) {
        self.set_timer(None);
        self.rnr_until = None;
        loop {
            let next = self.requests.pop_front();
            let Some(request) = next.or_else(|| self.fetch_to_flush(step.context.port)) else { break };
            self.complete_with_error(&request, Syndrome::WrFlush, step);
        }
        self.cursor = 0;
        self.waits = Waits::default();
    }
}
