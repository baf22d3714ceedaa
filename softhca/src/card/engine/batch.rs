//! Batches of packets whose payload is in peer memory: clients copy several payloads at once, and the packets leave
//! together, when the card has waited for the copies. They leave before the card does anything else: for the rest of
//! the card, and for programs, they leave one by one, like others.
//!
//! Payloads for another card are copied straight to the fabric, and those for queue pairs of this card to memory of its
//! own, in sections: while one is being read, the card delivers the one before it, whose copies to peer memory go on while
//! the next one is read. All are for one queue pair. If a copy to its memory fails, it fails, and takes none of the packets
//! that are being read; if a read fails, the message that is being written has not ended, and does not.

use super::arrivals::Arrivals;
use super::peer_batch::OWN_BYTES;
use super::state::Engine;
use crate::card::config::Transport;
use crate::card::memory::copy::MemoryFailure;
use crate::card::memory::peer_copies::MIN_DIRECT;
use crate::card::transport::qp::Outgoing;
use crate::fabric::{SendOutcome, Sink};
use std::time::Instant;
use zerocopy::IntoBytes;

/// Minimum number of bytes of a payload that is copied together with those of other packets. The CPU reads fewer by a
/// mapping as fast: on two H200 a write of 1 KiB takes 2.4 µs so, and one of 4 KiB 8.0 µs so and 4.6 µs in a batch
/// (`gdsync lab bench card --gpu 0,1`).
const MIN_AMONG_OTHERS: usize = 4 << 10;

/// What has become of a packet whose payload is in peer memory.
pub(super) enum PeerPayload {
    /// It is in the batch.
    Batched,
    /// The packet leaves like others.
    LeavesAlone,
    /// The payload cannot be read, and the request or response is refused.
    Refused,
    NoRoom,
}

impl Engine {
    /// Places a packet, and starts copying its payload. Clears the gathered payload, unless the packet leaves like
    /// others.
    pub(super) fn add_to_batch(&mut self, packet: &Outgoing, now: Instant) -> PeerPayload {
        let made = match self.may_batch(packet) {
            true => self.place_in_batch(packet, now),
            false => PeerPayload::LeavesAlone,
        };
        if !matches!(made, PeerPayload::LeavesAlone) {
            self.resources.payload.clear();
        }
        if self.batch.is_full() {
            if self.batch.is_own() {
                self.pass_section(now)
            } else {
                self.finish_batch(now)
            };
        }
        made
    }

    fn place_in_batch(&mut self, packet: &Outgoing, now: Instant) -> PeerPayload {
        let is_own = packet.to == self.resources.port.node();
        match if is_own { self.place_for_this_card() } else { self.place_in_fabric(packet) } {
            SendOutcome::Sent => {}
            SendOutcome::Full => return PeerPayload::NoRoom,
            SendOutcome::Unreachable | SendOutcome::Unreadable(_) => return PeerPayload::LeavesAlone,
        }
        let Engine { fabric, resources, batch, .. } = self;
        // SAFETY: the places are reserved for this packet, and nothing reads them before the copies were waited for, here
        // or in `finish_batch`.
        let begun = unsafe { resources.payload.begin(&batch.places, &mut batch.reading) };
        if matches!(begun, Ok(true)) {
            let (bytes, left_at) = (resources.payload.len(), (!is_own).then(|| fabric.position()));
            batch.packets.push((*packet, bytes));
            batch.bytes += bytes;
            if is_own {
                batch.used += bytes;
            }
            self.with_qp(packet.qpn, now, |qp, context| {
                qp.packet_sent(packet, context);
                qp.note_position(&packet.header, left_at);
            });
            return PeerPayload::Batched;
        }
        batch.wait(&mut resources.peers);
        if !is_own {
            fabric.take_back(packet.to);
        }
        if batch.is_empty() {
            // Only this packet had copies. Its failure shows below, or when it is sent like others.
            batch.failure = None;
        }
        let Err(failure) = begun else { return PeerPayload::LeavesAlone };
        // Packets added before this one leave before it fails.
        if self.finish_batch(now) {
            self.payload_failed(packet, &failure.into(), now);
        }
        PeerPayload::Refused
    }

    fn place_in_fabric(&mut self, packet: &Outgoing) -> SendOutcome {
        let Engine { fabric, resources, batch, .. } = self;
        batch.places.clear();
        // SAFETY: the parts were resolved just now, to registered memory or to inline bytes that the request owns. The
        // batch is finished before another packet is sent.
        unsafe {
            fabric.place(packet.to, packet.header.as_bytes(), resources.payload.parts(), &mut batch.places)
        }
    }

    /// Makes the places of a payload for this card, all of which is in peer memory.
    fn place_for_this_card(&mut self) -> SendOutcome {
        let Engine { resources, batch, .. } = self;
        let Some(mut at) = batch.own_place(resources.payload.len()) else { return SendOutcome::Unreachable };
        batch.places.clear();
        for (_, len) in resources.payload.parts() {
            batch.places.push([(at, *len), (std::ptr::null_mut(), 0)]);
            at = at.wrapping_add(*len);
        }
        SendOutcome::Sent
    }

    /// Returns whether a packet may join a batch: a long one of a reliable connection, whose requests complete by an
    /// answer only, to a card of this host, without delays.
    fn may_batch(&self, packet: &Outgoing) -> bool {
        let Some(qp) = self.qps.get(&packet.qpn) else { return false };
        let payload = &self.resources.payload;
        let is_among_others = || !packet.is_response && (!self.batch.is_empty() || qp.sends_more());
        let is_long = payload.len() >= MIN_DIRECT || payload.len() >= MIN_AMONG_OTHERS && is_among_others();
        is_long
            && (packet.to != self.resources.port.node() || payload.is_in_peer_memory())
            && self.fabric.is_of_one_host()
            && !self.resources.faults.is_on()
            && self.delayed.is_empty()
            && qp.endpoint.config.transport == Transport::Rc
    }

    /// Waits for the copies of the batch and lets its packets leave. Returns false if a copy has failed: then no packet
    /// leaves whose copies had not ended, and the request or response of the first of these is refused.
    pub(super) fn finish_batch(&mut self, now: Instant) -> bool {
        if self.batch.is_own() {
            let have_left = self.pass_section(now) && self.pass_section(now);
            (self.batch.used, self.batch.delivered) = (0, 0);
            self.arrive(now, |arrivals| arrivals.settle());
            return have_left;
        }
        self.batch.wait(&mut self.resources.peers);
        let failure = self.batch.failure.take();
        self.batch.bytes = 0;
        let mut packets = std::mem::take(&mut self.batch.packets);
        let Some((first, _)) = packets.first() else { return failure.is_none() };
        match &failure {
            None => {
                for (packet, bytes) in &packets {
                    self.resources.counters.sent(&packet.header, *bytes as u64);
                }
                self.fabric.publish(first.to);
            }
            Some(failure) => {
                self.fabric.withdraw(first.to);
                self.payload_failed(first, failure, now);
            }
        }
        // Reuses the allocation.
        packets.clear();
        self.batch.packets = packets;
        failure.is_none()
    }

    /// Waits for the payloads for this card that are being read, has those of the packets that were added since read, and
    /// delivers the former. Returns false if a copy has failed: then the request or response of the first packet is
    /// refused, and none of either is delivered.
    fn pass_section(&mut self, now: Instant) -> bool {
        let Engine { resources, batch, .. } = self;
        let mut arrived = std::mem::take(&mut batch.ahead);
        if let Err(failure) = resources.peers.end_reads(!batch.reading.is_empty()) {
            batch.failure.get_or_insert(failure.into());
        }
        let has_failed = batch.failure.is_some();
        if has_failed {
            arrived.append(&mut batch.packets);
            batch.wait(&mut resources.peers);
            batch.delivered = batch.used;
        } else {
            // What is waited for next need not start before.
            let starts = batch.is_full() || !arrived.is_empty();
            batch.reading.drain(..).for_each(|memory| resources.peers.read(memory, starts));
            batch.ahead = std::mem::take(&mut batch.packets);
        }
        batch.bytes = 0;
        match self.batch.failure.take() {
            None => self.deliver(&arrived, now),
            Some(failure) => {
                if let Some((first, _)) = arrived.first() {
                    self.payload_failed(first, &failure, now);
                }
            }
        }
        // Reuses the allocation.
        arrived.clear();
        self.batch.packets = arrived;
        !has_failed
    }

    /// Delivers packets to queue pairs of this card.
    fn deliver(&mut self, packets: &[(Outgoing, usize)], now: Instant) {
        let Some(first) = self.batch.own_payloads() else { return };
        let node = self.resources.port.node();
        let mut at = first;
        self.arrive(now, |arrivals| {
            for (packet, bytes) in packets {
                arrivals.resources.counters.sent(&packet.header, *bytes as u64);
                arrivals.take(node, packet.header.as_bytes(), [(at, *bytes), (std::ptr::null(), 0)]);
                at = at.wrapping_add(*bytes);
            }
        });
        self.batch.delivered += at.addr() - first.addr();
        if !self.batch.ahead.is_empty() {
            self.resources.peers.start();
        }
    }

    /// Handles packets for queue pairs of this card.
    fn arrive(&mut self, now: Instant, work: impl FnOnce(&mut Arrivals<'_>)) {
        let Engine { qps, resources, delayed, .. } = self;
        let mut arrivals = Arrivals { now, qps, resources, delayed, most: OWN_BYTES, touched: Vec::new() };
        work(&mut arrivals);
        for qpn in arrivals.touched {
            self.reschedule(qpn);
        }
    }

    pub(super) fn payload_failed(&mut self, packet: &Outgoing, failure: &MemoryFailure, now: Instant) {
        self.with_qp(packet.qpn, now, |qp, context| qp.payload_failed(packet, failure, context));
    }
}
