//! Batches of packets whose payload clients of peer memory copy straight to the fabric, several packets at once. The
//! packets leave together, when the card has waited for the copies.
//!
//! A batch belongs to one queue pair, and leaves before the card does anything else: for the rest of the card, and for
//! programs, its packets leave one by one, like others.

use super::state::Engine;
use crate::card::config::Transport;
use crate::card::memory::peer_copies::{LEAST, MOST_UNDER_WAY};
use crate::card::transport::qp::Outgoing;
use crate::fabric::{Hole, SendOutcome};
use crate::peer_memory::{PeerFailure, PeerMapping};
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

/// Packets that have a place in the fabric and whose payload is still being copied there.
#[derive(Default)]
pub(super) struct Ahead {
    /// The packets, each with its bytes of payload.
    pub(super) packets: Vec<(Outgoing, usize)>,
    /// The memory that is being read.
    pub(super) reading: Vec<Arc<PeerMapping>>,
    /// The first failed copy.
    pub(super) failure: Option<PeerFailure>,
    pub(super) places: Vec<Hole>,
    pub(super) bytes: usize,
}

// SAFETY: the places are used only while a batch is open, by the thread that holds the engine's lock.
unsafe impl Send for Ahead {}

impl Ahead {
    /// Returns whether the batch is large enough to leave.
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

/// Result of adding a packet to a batch.
pub(super) enum Made {
    Yes,
    /// The packet leaves like others.
    No,
    /// The payload cannot be read, and the request or response is refused.
    Refused,
    /// The fabric has no room.
    NoRoom,
}

impl Engine {
    /// Places a packet in the fabric, and starts copying its payload there. Clears the gathered payload, unless the
    /// packet leaves like others.
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
        // SAFETY: the parts were resolved just now, to registered memory or to inline bytes that the request owns. The
        // batch is finished before another packet is sent.
        match unsafe { fabric.place(packet.to, header, payload.parts(), &mut ahead.places) } {
            SendOutcome::Sent => {}
            SendOutcome::Full => return Made::NoRoom,
            SendOutcome::Unreachable => return Made::No,
        }
        // SAFETY: the fabric has reserved the places for this packet, and does not pass them to its consumer before the
        // copies were waited for, here or in `finish_batch`.
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
            // Only this packet had copies. Its failure shows below, or when it is sent like others.
            ahead.failure = None;
        }
        let Err(failure) = begun else { return Made::No };
        // Packets added before this one leave before it fails.
        if self.settle(now) {
            self.with_qp(packet.qpn, now, |qp, context| qp.payload_failed(packet, &failure, context));
        }
        Made::Refused
    }

    /// Returns whether a packet may join a batch: a long one of a reliable connection, whose requests complete by an
    /// answer only, to another card of this host, without delays.
    fn goes_ahead(&self, packet: &Outgoing) -> bool {
        let qp = self.qps.get(&packet.qpn);
        self.resources.payload.len() >= LEAST
            && packet.to != self.resources.port.node()
            && self.fabric.is_of_one_host()
            && !self.resources.faults.is_on()
            && self.delayed.is_empty()
            && qp.is_some_and(|qp| qp.endpoint.config.transport == Transport::Rc)
    }

    /// Waits for the copies of the batch and lets its packets leave. False if a copy has failed: then no packet leaves,
    /// and the request or response of the first one is refused.
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
        // Reuses the allocation.
        packets.clear();
        self.ahead.packets = packets;
        failure.is_none()
    }

    /// Waits for all copies in progress. After a panic the step that started them no longer does; then their source and
    /// target may be freed.
    pub(crate) fn end_copies(&mut self) {
        self.ahead.wait();
        self.resources.peers.finish();
    }
}
