//! Departure of management datagrams.

use super::arrive::{crossing, delay};
use super::state::Engine;
use crate::card::management::MANAGEMENT_QPN;
use crate::fabric::Node;
use crate::faults::{Direction, Fate};
use crate::packet::{Header, PacketKind, UNRELIABLE};
use std::time::Instant;

impl Engine {
    /// Sends a management datagram. It is lost where no card is at the node, where faults lose it, or
    /// where too many wait for room in the fabric.
    pub(crate) fn send_management(&mut self, to: Node, bytes: &[u8], now: Instant) {
        let mut header = Header::new(PacketKind::Management, MANAGEMENT_QPN, MANAGEMENT_QPN, 0);
        header.flags |= UNRELIABLE;
        let flow = (Direction::Out, MANAGEMENT_QPN);
        let fate = match self.resources.faults.is_on() {
            true => self.resources.faults.crosses(&crossing(flow.0, flow.1, &header)),
            false => Fate::Passes,
        };
        if fate == Fate::Lost || self.delayed.is_full(flow) {
            tracing::debug!(to, "a management datagram is lost");
            return;
        }
        // SAFETY: the part is the slice.
        let packet = unsafe { delay(&header, to, &[(bytes.as_ptr(), bytes.len())], fate, now) };
        // It leaves now, unless it is delayed, or earlier ones wait.
        self.delayed.push(flow, packet);
        self.release(flow, now);
    }
}
