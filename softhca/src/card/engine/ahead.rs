//! Packets that are made ahead of their payload: clients of peer memory copy it straight to the fabric, for
//! several packets at once. They leave together, when the card has waited for the copies.
//!
//! All of them are of one queue pair, and leave before the card does anything else: to the rest of the card,
//! and to programs, they leave one by one, as others do.

use super::state::Engine;
use crate::card::config::Transport;
use crate::card::memory::peer_copies::{LEAST, MOST_UNDER_WAY};
use crate::card::transport::qp::Outgoing;
use crate::fabric::{Hole, SendOutcome};
use crate::peer_memory::{PeerFailure, PeerMapping};
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

/// Packets that have a place in the fabric, and whose payload is being copied there.
#[derive(Default)]
pub(super) struct Ahead {
    /// Each with its bytes of payload.
    pub(super) packets: Vec<(Outgoing, usize)>,
    /// The memory that is being read.
    pub(super) reading: Vec<Arc<PeerMapping>>,
    /// The first failure of a copy.
    pub(super) failure: Option<PeerFailure>,
    pub(super) places: Vec<Hole>,
    pub(super) bytes: usize,
}

// SAFETY: the places are used only while packets are made ahead, by the thread that holds the engine's
// lock.
unsafe impl Send for Ahead {}

impl Ahead {
    /// Whether so much is under way that it should leave.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MOST_UNDER_WAY
    }

    /// Waits for all copies.
    pub(super) fn wait(&mut self) {
        for memory in self.reading.drain(..) {
            if let Err(failure) = memory.finish() {
                self.failure.get_or_insert(failure);
            }
        }
    }
}

/// Whether a packet was made ahead of its payload.
pub(super) enum Made {
    Yes,
    /// It leaves as others do.
    No,
    /// Its payload cannot be read, and its request or response is refused.
    Refused,
    /// The fabric has no room.
    NoRoom,
}

impl Engine {
    /// Places a packet in the fabric, and has its payload copied there. The payload is cleared, unless the
    /// packet leaves as others do.
    pub(super) fn make_ahead(&mut self, packet: &Outgoing, now: Instant) -> Made {
        let made = self.place_ahead(packet, now);
        if !matches!(made, Made::No) {
            self.resources.payload.clear();
        }
        made
    }

    fn place_ahead(&mut self, packet: &Outgoing, now: Instant) -> Made {
        if !self.goes_ahead(packet) {
            return Made::No;
        }
        let Engine { fabric, resources, ahead, .. } = self;
        let (payload, header) = (&resources.payload, packet.header.as_bytes());
        ahead.places.clear();
        // SAFETY: the parts were resolved just now to registered memory, or to inline bytes that the request
        // owns. Everything is settled before another packet is sent.
        match unsafe { fabric.place(packet.to, header, payload.parts(), &mut ahead.places) } {
            SendOutcome::Sent => {}
            SendOutcome::Full => return Made::NoRoom,
            SendOutcome::Unreachable => return Made::No,
        }
        // SAFETY: the places lie in what the fabric has reserved for this packet, and not given to its
        // consumer. They stay so until the copies were waited for, here or in `settle`.
        let begun = unsafe { payload.begin(&ahead.places, &mut ahead.reading) };
        if matches!(begun, Ok(true)) {
            let (bytes, left_at) = (payload.len(), fabric.position());
            ahead.packets.push((*packet, bytes));
            ahead.bytes += bytes;
            self.with_qp(packet.qpn, now, |qp, context| {
                qp.packet_sent(packet, context);
                qp.note_position(&packet.header, Some(left_at));
            });
            return Made::Yes;
        }
        ahead.wait();
        fabric.take_back(packet.to);
        if ahead.packets.is_empty() {
            // The copies were this packet's only. What is wrong shows below, or when it is made as others are.
            ahead.failure = None;
        }
        let Err(failure) = begun else { return Made::No };
        // What was made before it leaves before it fails.
        if self.settle(now) {
            self.with_qp(packet.qpn, now, |qp, context| qp.payload_failed(packet, &failure, context));
        }
        Made::Refused
    }

    /// Whether a packet may be made ahead of its payload: a long one to another card of this host that nothing
    /// delays, of a connection, whose requests complete by an answer only.
    fn goes_ahead(&self, packet: &Outgoing) -> bool {
        let qp = self.qps.get(&packet.qpn);
        self.resources.payload.len() >= LEAST
            && packet.to != self.resources.port.node()
            && self.fabric.is_of_one_host()
            && !self.resources.faults.is_on()
            && self.delayed.is_empty()
            && qp.is_some_and(|qp| qp.endpoint.config.transport == Transport::Rc)
    }

    /// Lets the packets leave that were made ahead, when their payload is there. False if a copy has failed:
    /// then none of them leaves, and the request or the response of the first is refused.
    pub(super) fn settle(&mut self, now: Instant) -> bool {
        self.ahead.wait();
        let failure = self.ahead.failure.take();
        self.ahead.bytes = 0;
        let mut packets = std::mem::take(&mut self.ahead.packets);
        let Some((first, _)) = packets.first() else { return failure.is_none() };
        match &failure {
            None => {
                self.fabric.publish(first.to);
                for (packet, bytes) in &packets {
                    self.counters.sent(&packet.header, *bytes as u64);
                }
            }
            Some(failure) => {
                self.fabric.withdraw(first.to);
                self.with_qp(first.qpn, now, |qp, context| qp.payload_failed(first, failure, context));
            }
        }
        // Its allocation is used again.
        packets.clear();
        self.ahead.packets = packets;
        failure.is_none()
    }

    /// Waits for every copy that is under way: after a panic, the step that began them does not do that any more.
    /// Then what is copied from and to may go.
    pub(crate) fn end_copies(&mut self) {
        self.ahead.wait();
        self.resources.peers.finish();
    }
}
