//! Unreliable connections, the responder's side: nothing is acknowledged, and what cannot be taken is dropped.

use super::context::Context;
use super::dma::Part;
use super::packet::{FIRST, Header, Kind, PSN_MASK};
use super::qp::Qp;
use super::receiver::{Failure, Stop};

impl Qp {
    /// A packet of an unreliable connection. A message of which a packet is missing, that finds no receive, or that may not
    /// write where it wants to, is dropped to its end; a receive that it had begun to fill serves the next (IB specification,
    /// 9.8.2).
    pub(super) fn request_unreliable(
        &mut self,
        kind: Kind,
        header: &Header,
        payload: &[Part],
        context: &mut Context<'_>,
    ) {
        let psn = header.psn.get();
        let in_order = psn == self.receiver.expected_psn;
        self.receiver.expected_psn = psn.wrapping_add(1) & PSN_MASK;
        if header.has(FIRST) {
            self.receiver.dropping = false;
        } else if !in_order {
            self.receiver.dropping = true;
        }
        if self.receiver.dropping {
            tracing::debug!(qpn = self.qpn, psn, "a packet of a message that is dropped");
            return;
        }
        let result = match kind {
            Kind::Send => self.take_send(header, payload, context),
            Kind::Write => self.take_write(header, payload, context),
            _ => return,
        };
        match result {
            Ok(_) => {}
            // The receive itself is wrong or too short: nobody but this side can be told.
            Err(Stop::Fatal(_, Failure::Completion(index, syndrome))) => {
                self.receive_error(index, syndrome, context);
                self.receiver.current = None;
                self.go_to_error(context);
            }
            Err(Stop::Nak(_) | Stop::Fatal(_, Failure::Event(_))) => self.receiver.dropping = true,
        }
    }
}
