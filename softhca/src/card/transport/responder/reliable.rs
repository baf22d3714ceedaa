//! Requests of reliable connections: in order, acknowledged, refused with a NAK.

use super::response::Response;
use super::state::{Failure, Responder, Stop};
use crate::card::context::Context;
use crate::card::event::Event;
use crate::card::transport::endpoint::Endpoint;
use crate::fabric::Part;
use crate::faults::Refused;
use crate::packet::{Header, NakCode, PSN_MASK, PacketKind, psn_distance};
use gdsync_sys::prm::cqe::Syndrome;

/// A refusal that faults inject.
fn injected(refused: Refused, endpoint: &Endpoint) -> Stop {
    match refused {
        Refused::NotReady => Stop::Nak(NakCode::ReceiverNotReady),
        Refused::With(Syndrome::RemoteAccess) => Stop::no_access(endpoint),
        Refused::With(Syndrome::RemoteInvalidRequest) => Stop::invalid_request(endpoint),
        Refused::With(_) => {
            let event = Event::QpFatal { qpn: endpoint.qpn };
            Stop::Fatal(NakCode::RemoteOperation, Failure::Event(event))
        }
    }
}

impl Responder {
    /// Handles a request.
    pub(crate) fn request(
        &mut self,
        kind: PacketKind,
        header: &Header,
        payload: &[Part],
        endpoint: &mut Endpoint,
        context: &mut Context<'_>,
    ) {
        let psn = header.psn.get();
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
            return self.duplicate(kind, header, endpoint);
        }
        self.nak_sent = false;
        let result = match (context.faults.refuses(endpoint.qpn, kind), kind) {
            (Some(refused), _) => Err(injected(refused, endpoint)),
            (None, PacketKind::Send) => self.take_send(header, payload, endpoint, context),
            (None, PacketKind::Write) => self.take_write(header, payload, endpoint, context),
            (None, PacketKind::CompareSwap | PacketKind::FetchAdd) => {
                self.take_atomic(kind, header, endpoint, context)
            }
            (None, _) => self.take_read(header, endpoint, context),
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
            Err(Stop::Fatal(code, failure)) => {
                self.release_completions(endpoint, context);
                self.responses.push_back(Response::Nak { psn, code });
                match failure {
                    Failure::Event(event) => context.emit(event),
                    Failure::Completion(index, syndrome) => {
                        endpoint.receive_error(index, syndrome, context);
                    }
                }
                // The flush includes a receive that a message has begun to fill, unless it is the
                // one that failed.
                endpoint.fail();
            }
        }
    }
}
