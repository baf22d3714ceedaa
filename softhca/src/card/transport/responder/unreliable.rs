//! Requests of unreliable connections: not acknowledged, and dropped if they cannot be executed.

use super::state::{Failure, Responder, Stop};
use crate::card::transport::step::Step;
use crate::packet::{FIRST, PSN_MASK, Packet, PacketKind};

impl Responder {
    /// Handles a request. The rest of a message is dropped if one of its packets is missing, if it
    /// finds no receive, or if it may not write to its target. A receive that it had begun to fill
    /// is used for the next message (IB specification, 9.8.2).
    pub(crate) fn unreliable_request(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let Packet { kind, header, .. } = packet;
        let psn = header.psn.get();
        let in_order = psn == self.expected_psn;
        self.expected_psn = psn.wrapping_add(1) & PSN_MASK;
        if header.has(FIRST) {
            self.dropping = false;
        } else if !in_order {
            self.dropping = true;
        }
        if self.dropping {
            tracing::debug!(qpn = step.endpoint.qpn, psn, "a packet of a message that is dropped");
            return;
        }
        let result = match kind {
            PacketKind::Send => self.take_send(packet, step),
            PacketKind::Write => self.take_write(packet, step),
            _ => return,
        };
        match result {
            Ok(_) => {}
            // The receive is wrong or too short. Without NAKs, only this side learns of it.
            Err(Stop::Fatal(_, Failure::Completion(slot, syndrome))) => {
                step.receive_error(slot, syndrome);
                self.queue.current = None;
                step.endpoint.fail();
            }
            Err(Stop::Nak(_) | Stop::Fatal(_, Failure::Event(_))) => self.dropping = true,
        }
    }
}
