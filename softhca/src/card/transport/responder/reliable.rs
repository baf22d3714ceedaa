//! Requests of reliable connections: in order, acknowledged, refused with a NAK.

use super::response::Response;
use super::state::{Failure, Responder, Stop};
use crate::card::config::Transport;
use crate::card::context::PEER_MEMORY;
use crate::card::event::Event;
use crate::card::transport::step::Step;
use crate::faults::Refused;
use crate::packet::{NakCode, PSN_MASK, Packet, PacketKind, psn_distance};
use crate::peer_memory::PeerFailure;
use gdsync_sys::prm::cqe::Syndrome;

/// A refusal that faults inject.
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
    /// Handles a request.
    pub(crate) fn request(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let Packet { kind, header, .. } = packet;
        let psn = header.psn.get();
        let names_queue =
            step.endpoint.config.transport != Transport::XrcTarget || step.use_shared(header.srqn.get());
        let ahead = psn_distance(psn, self.expected_psn);
        if ahead > 0 {
            if !self.nak_sent {
                self.nak_sent = true;
                let psn = self.expected_psn;
                self.responses.push_back(Response::Nak { psn, code: NakCode::Sequence });
            }
            return;
        }
        if ahead < 0 {
            return self.duplicate(kind, header, step);
        }
        self.nak_sent = false;
        let result = match (step.context.faults.refuses(step.endpoint.qpn, kind), kind) {
            (Some(refused), _) => Err(injected(refused, step)),
            (None, _) if !names_queue => {
                let message = format!("{:#x} is none of the queue pair's XRC domain", header.srqn.get());
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
                self.expected_psn = psn.wrapping_add(packets) & PSN_MASK;
            }
            Err(Stop::Nak(code)) => {
                // Later packets are dropped without an answer until this one arrives again.
                self.nak_sent = true;
                self.responses.push_back(Response::Nak { psn, code });
            }
            Err(Stop::Fatal(code, failure)) => self.refuse(psn, (code, failure), step),
        }
    }

    /// Refuses packet `psn`, and fails.
    fn refuse(&mut self, psn: u32, (code, failure): (NakCode, Failure), step: &mut Step<'_, '_>) {
        self.release_completions(step);
        self.responses.push_back(Response::Nak { psn, code });
        match failure {
            Failure::Event(event) => step.responder_failed(event),
            Failure::Completion(slot, syndrome) => step.receive_error(slot, syndrome),
        }
        // The flush includes a receive that a message has begun to fill, unless it is the
        // one that failed.
        step.endpoint.fail();
    }

    /// The payload of packet `psn`, and perhaps of packets after it, was taken and could not be written to
    /// peer memory. None of them was the last of its message, and no acknowledgement of them has left.
    pub(crate) fn copy_failed(&mut self, psn: u32, failure: &PeerFailure, step: &mut Step<'_, '_>) {
        step.report(None, PEER_MEMORY, failure.to_string());
        let is_earlier = |last: u32| psn_distance(last, psn) < 0;
        self.responses.retain(|response| !matches!(response, Response::Ack { psn, .. } if !is_earlier(*psn)));
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
}
