//! Requests of reliable connections, which are executed in order, acknowledged, or refused with a NAK; requests of
//! unreliable ones, which are not acknowledged, and dropped if they cannot be executed; and datagrams.

use super::execute::{completion, scatter, send_opcode};
use super::state::{Failure, Responder, Stop};
use crate::card::config::{LIMITS, QpState, Transport};
use crate::card::memory::copy::MemoryFailure;
use crate::card::reports::Event;
use crate::card::transport::endpoint::Step;
use crate::card::transport::route::GRH_BYTES;
use crate::faults::Refused;
use crate::packet::{FIRST, GLOBAL, NakCode, PSN_MASK, Packet, PacketKind, psn_distance};
use gdsync_sys::prm::cqe::{PathFields, Syndrome};

/// Returns a refusal that faults inject.
fn injected(refused: Refused, step: &Step<'_, '_>) -> Stop {
    match refused {
        Refused::NotReady => Stop::Nak(NakCode::ReceiverNotReady),
        Refused::With(Syndrome::RemoteAccess) => Stop::no_access(step),
        Refused::With(Syndrome::RemoteInvalidRequest) => Stop::invalid_request(step),
        Refused::With(_) => {
            let event = Event::QpFatal { qpn: step.endpoint.qpn };
            Stop::Fatal(NakCode::RemoteOperation, Failure::Event(event))
        }
    }
}

impl Responder {
    pub(crate) fn request(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let Packet { kind, header, .. } = packet;
        let psn = header.psn.get();
        let names_queue = step.endpoint.config.transport != Transport::XrcTarget
            || step.select_srq(header.srqn_or_level.get());
        let ahead = psn_distance(psn, self.expected_psn);
        if ahead > 0 {
            if !self.nak_sent {
                self.nak_sent = true;
                self.answers.refuse(self.expected_psn, NakCode::Sequence);
            }
            return;
        }
        if ahead < 0 {
            return self.answers.duplicate(packet, self.expected_psn, step);
        }
        self.nak_sent = false;
        self.begin(packet, step);
        let Step { endpoint, context } = step;
        let refused = context.faults.refuses(endpoint.qpn, kind, endpoint.work, context.decisions);
        let result = match (refused, kind) {
            (Some(refused), _) => Err(injected(refused, step)),
            (None, _) if !names_queue => {
                let message =
                    format!("{:#x} is none of the queue pair's XRC domain", header.srqn_or_level.get());
                step.report(None, "shared receive queue", message);
                Err(Stop::invalid_request(step))
            }
            (None, PacketKind::Send) => self.take_send(packet, step),
            (None, PacketKind::Write) => self.take_write(packet, step),
            (None, PacketKind::CompareSwap | PacketKind::FetchAdd) => self.take_atomic(packet, step),
            (None, _) => self.take_read(header, step),
        };
        match result {
            Ok(packets) => {
                self.count(packet, step);
                self.expected_psn = psn.wrapping_add(packets) & PSN_MASK;
            }
            Err(Stop::Nak(code)) => {
                // Later packets are dropped without an answer until this one arrives again.
                self.nak_sent = true;
                self.answers.refuse(psn, code);
            }
            Err(Stop::Fatal(code, failure)) => self.refuse(psn, (code, failure), step),
        }
    }

    /// Refuses packet `psn`, and fails.
    fn refuse(&mut self, psn: u32, (code, failure): (NakCode, Failure), step: &mut Step<'_, '_>) {
        self.answers.release_completions(step);
        self.answers.refuse(psn, code);
        match failure {
            Failure::Event(event) => step.responder_failed(event),
            Failure::Completion(slot, syndrome) => step.receive_error(slot, syndrome),
        }
        // The flush includes a receive that a message has begun to fill, unless it is the one that failed.
        step.endpoint.fail();
    }

    /// Refuses packet `psn`: its payload, and perhaps that of later packets, was taken and could not be written to
    /// peer memory. None of them was the last of its message, and no answer to them has left. Without effect if a later
    /// packet was refused and the queue pair has failed.
    pub(crate) fn copy_failed(&mut self, psn: u32, failure: &MemoryFailure, step: &mut Step<'_, '_>) {
        if step.endpoint.state() == QpState::Err {
            return;
        }
        step.report(None, failure.field(), step.context.regions.describe(failure));
        self.answers.withdraw_acknowledgements(psn);
        let refusal = match self.queue.current.take() {
            Some(receive) => {
                let failure = Failure::Completion(receive.slot, Syndrome::LocalProtection);
                (NakCode::RemoteOperation, failure)
            }
            None => {
                let event = Event::QpAccessError { qpn: step.endpoint.qpn };
                (NakCode::RemoteAccess, Failure::Event(event))
            }
        };
        self.refuse(psn, refusal, step);
    }

    /// Handles a request of an unreliable connection. The rest of a message is dropped if one of its packets is
    /// missing, if it finds no receive, or if it may not write to its target. A receive that it had begun to fill is
    /// used for the next message (IB specification, 9.8.2), whose bytes come after those of the lost one.
    pub(crate) fn unreliable_request(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let Packet { kind, header, .. } = packet;
        let psn = header.psn.get();
        let in_order = psn == self.expected_psn;
        self.expected_psn = psn.wrapping_add(1) & PSN_MASK;
        if header.has(FIRST) {
            self.dropping = false;
            if self.queue.current.is_some() {
                step.endpoint.deferred.write_all();
            }
        } else if !in_order {
            self.dropping = true;
        }
        if self.dropping {
            tracing::debug!(qpn = step.endpoint.qpn, psn, "a packet of a message that is dropped");
            return;
        }
        self.begin(packet, step);
        let result = match kind {
            PacketKind::Send => self.take_send(packet, step),
            PacketKind::Write => self.take_write(packet, step),
            _ => return,
        };
        match result {
            Ok(_) => self.count(packet, step),
            // The receive is wrong or too short. Without NAKs, only this side learns of it.
            Err(Stop::Fatal(_, Failure::Completion(slot, syndrome))) => {
                step.receive_error(slot, syndrome);
                self.queue.current = None;
                step.endpoint.fail();
            }
            Err(Stop::Nak(_) | Stop::Fatal(_, Failure::Event(_))) => self.dropping = true,
        }
    }

    /// Handles a datagram. It is dropped if its Q_Key is not the queue pair's, or if no receive is posted.
    pub(crate) fn datagram(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let Packet { source, header, payload, .. } = packet;
        let (qkey, own) = (header.rkey.get(), step.endpoint.attributes.qkey);
        if qkey != own {
            let message = format!(
                "a datagram from queue pair {:#x} of node {source:#x} has {qkey:#x}, not {own:#x}: dropped",
                header.source_qpn.get(),
            );
            return step.report(None, "Q_Key", message);
        }
        let has_grh = header.has(GLOBAL);
        let length = header.length.get();
        let sent = packet.payload_len();
        let expected = if has_grh { length.saturating_add(GRH_BYTES) } else { length };
        if length > LIMITS.max_datagram || sent != expected as usize {
            tracing::debug!(source, length, sent, "the length of a datagram differs from its header");
            return;
        }
        let mut receive = match self.take_receive(step) {
            Ok(Some(receive)) => receive,
            Ok(None) => {
                tracing::debug!(
                    qpn = step.endpoint.qpn,
                    source,
                    "a datagram finds no receive and is dropped"
                );
                return;
            }
            Err(stop) => {
                if let Stop::Fatal(_, Failure::Event(event)) = stop {
                    step.context.emit(event);
                }
                return step.endpoint.fail();
            }
        };
        let (slot, total) = (receive.slot, length + GRH_BYTES);
        if u64::from(total) > receive.room() {
            let message =
                format!("{length} bytes and {GRH_BYTES} of header come into a receive of {}", receive.room());
            step.report(Some(slot.index), "receive length", message);
            step.receive_error(slot, Syndrome::LocalLength);
            return step.endpoint.fail();
        }
        if !has_grh {
            // Without a network header, its bytes in the receive are left unchanged.
            receive.filled = GRH_BYTES;
        }
        self.begin(packet, step);
        self.count(packet, step);
        if scatter(&mut receive, payload, step).is_err() {
            step.receive_error(slot, Syndrome::LocalProtection);
            return step.endpoint.fail();
        }
        let remote = header.source_qpn.get();
        let cqe = completion(send_opcode(header), slot.index, remote, total, header, step);
        let slid = step.context.port.reported(header.addr.get() as u16);
        let cqe =
            cqe.with_path(PathFields { slid, level_or_l3_type: header.srqn_or_level.get() as u8, has_grh });
        step.complete_receive(slot.owner, cqe);
    }
}
