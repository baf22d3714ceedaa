//! Requests of unreliable connections: not acknowledged, and dropped if they cannot be executed.

use super::state::{Failure, Responder, Stop};
use crate::card::context::Context;
use crate::card::transport::endpoint::Endpoint;
use crate::fabric::Part;
use crate::packet::{FIRST, Header, PSN_MASK, PacketKind};

impl Responder {
    /// Handles a request. The rest of a message is dropped if one of its packets is missing, if it
    /// finds no receive, or if it may not write to its target. A receive that it had begun to fill
    /// is used for the next message (IB specification, 9.8.2).
    pub(crate) fn unreliable_request(
        &mut self,
        kind: PacketKind,
        header: &Header,
        payload: &[Part],
        endpoint: &mut Endpoint,
        context: &mut Context<'_>,
    ) {
        let psn = header.psn.get();
        let in_order = psn == self.expected_psn;
        self.expected_psn = psn.wrapping_add(1) & PSN_MASK;
        if header.has(FIRST) {
            self.dropping = false;
        } else if !in_order {
            self.dropping = true;
        }
        if self.dropping {
            tracing::debug!(qpn = endpoint.qpn, psn, "a packet of a message that is dropped");
            return;
        }
        let result = match kind {
            PacketKind::Send => self.take_send(header, payload, endpoint, context),
            PacketKind::Write => self.take_write(header, payload, endpoint, context),
            _ => return,
        };
        match result {
            Ok(_) => {}
            // The receive is wrong or too short. Without NAKs, only this side learns of it.
            Err(Stop::Fatal(_, Failure::Completion(index, syndrome))) => {
                endpoint.receive_error(index, syndrome, context);
                self.queue.current = None;
                endpoint.fail();
            }
            Err(Stop::Nak(_) | Stop::Fatal(_, Failure::Event(_))) => self.dropping = true,
        }
    }
}
