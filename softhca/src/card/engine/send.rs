//! Sending: the packets of queue pairs, management datagrams, and the faults that they meet.
//!
//! Packets whose payload is in peer memory may leave together ([`super::batch`]).

use super::arrivals::{arrive, crossing, delay};
use super::batch::PeerPayload;
use super::state::Engine;
use super::timeouts::state_of_ended;
use crate::card::context::Resources;
use crate::card::delayed::Flow;
use crate::card::management::MANAGEMENT_QPN;
use crate::card::transport::qp::{Outgoing, Qp};
use crate::fabric::{MULTICAST, Node, PayloadPart, SendOutcome};
use crate::faults::Fate;
use crate::os::host::{self, Gone};
use crate::packet::{GLOBAL, Header, MULTICAST_QPN, PacketKind, UNRELIABLE};
use std::time::Instant;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

/// Result of a departure for the packet's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    Gone,
    /// There is no room. The queue pair builds the packet again later.
    NoRoom,
}

/// A departure, if the program's payload is still there.
type Departed = Result<Departure, Gone>;

fn length_of(parts: &[PayloadPart]) -> usize {
    parts.iter().map(|(_, len)| *len).sum()
}

/// Maximum number of packets that one step sends for a queue pair, before it serves others and commands. More of those
/// overlap whose payload is copied between peer memory on both sides ([`super::peer_batch`]).
const SEND_BUDGET: usize = 16;

/// Maximum number of rounds of sending for a queue pair that is about to be destroyed.
const LAST_ROUNDS: usize = 64;

pub(crate) enum Served {
    /// Nothing more to send now.
    All,
    /// More to send.
    Part,
    Blocked,
}

impl Engine {
    pub(crate) fn serve(&mut self, qpn: u32, now: Instant) -> Served {
        let served = self.serve_up_to_budget(qpn, now);
        match (self.finish_batch(now), served) {
            // A response may have failed: its refusal has not been sent yet.
            (false, Served::All) => Served::Part,
            (_, served) => served,
        }
    }

    fn serve_up_to_budget(&mut self, qpn: u32, now: Instant) -> Served {
        let (mut budget, mut served) = (SEND_BUDGET, 0);
        while served < budget || self.batch.goes_on(served) {
            served += 1;
            self.resources.payload.clear();
            let made = self.with_qp(qpn, now, |qp, context| {
                // Each initiator of a DC target gets a packet in a round: peers count rounds (`timeouts.rs`).
                budget = budget.max(qp.waiting_initiators());
                qp.next_packet(context).ok_or_else(|| qp.end_blocked())
            });
            self.pass_on_enables(now);
            let packet = match made {
                Some(Ok(packet)) => packet,
                Some(Err(true)) => return Served::Blocked,
                Some(Err(false)) | None => return Served::All,
            };
            if self.resources.payload.is_waiting() {
                match self.add_to_batch(&packet, now) {
                    PeerPayload::LeavesAlone => {}
                    PeerPayload::Batched | PeerPayload::Refused => continue,
                    PeerPayload::NoRoom if self.others_come_first(&packet, now) => continue,
                    PeerPayload::NoRoom => return Served::Blocked,
                }
            }
            if !self.finish_batch(now) {
                // The queue pair has failed, or will when its turn comes: the packet is no longer valid.
                continue;
            }
            if self.resources.payload.is_waiting() {
                match self.fetch_payload(&packet, now) {
                    PeerPayload::LeavesAlone => {}
                    PeerPayload::Batched | PeerPayload::Refused => continue,
                    PeerPayload::NoRoom if self.others_come_first(&packet, now) => continue,
                    PeerPayload::NoRoom => return Served::Blocked,
                }
            }
            if self.depart(&packet, now) == Departure::NoRoom && !self.others_come_first(&packet, now) {
                return Served::Blocked;
            }
        }
        Served::Part
    }

    /// Returns whether the queue pair may have packets for other cards, as the fabric has no room for this one.
    fn others_come_first(&mut self, packet: &Outgoing, now: Instant) -> bool {
        self.with_qp(packet.qpn, now, |qp, context| qp.pass_over(packet, context)).unwrap_or(false)
    }

    /// Sends the posted requests of an unreliable queue pair, and the outstanding answers of any queue pair, before it
    /// is destroyed, within a limit. On hardware they have left by then: a command takes longer than a doorbell, and an
    /// acknowledgement precedes its completion. Programs rely on that (`mckey`, `ibv_srq_pingpong`).
    pub(crate) fn send_remaining(&mut self, qpn: u32) {
        let now = self.now();
        self.take_doorbells_of(qpn, now);
        let goes_on = |qp: &Qp| !qp.endpoint.config.transport.is_reliable() || qp.owes_answers();
        for _ in 0..LAST_ROUNDS {
            if !self.qps.get(&qpn).is_some_and(goes_on) || !matches!(self.serve(qpn, now), Served::Part) {
                break;
            }
        }
    }

    /// Reads the pieces of a packet's payload that are in peer memory, so that it leaves like others. On failure the request
    /// or response is refused.
    fn fetch_payload(&mut self, packet: &Outgoing, now: Instant) -> PeerPayload {
        let payload = &mut self.resources.payload;
        // Clients are slow: a packet without room must not make them read repeatedly.
        if packet.to != self.resources.port.node()
            && self.fabric.is_full(packet.to, size_of::<Header>(), payload.len())
        {
            payload.clear();
            return PeerPayload::NoRoom;
        }
        let Err(failure) = payload.fetch() else { return PeerPayload::LeavesAlone };
        self.payload_failed(packet, &failure.into(), now);
        PeerPayload::Refused
    }

    /// Sends the packet whose payload was gathered.
    fn depart(&mut self, packet: &Outgoing, now: Instant) -> Departure {
        let parts = self.resources.payload.take();
        let departure = if self.resources.faults.is_on() || !self.delayed.is_empty() {
            self.depart_with_faults(packet, &parts, now)
        } else {
            self.depart_without_faults(packet, &parts, now)
        };
        self.resources.payload.give_back(parts);
        departure.unwrap_or_else(|gone| {
            self.payload_failed(packet, &gone.into(), now);
            Departure::Gone
        })
    }

    fn depart_without_faults(&mut self, packet: &Outgoing, parts: &[PayloadPart], now: Instant) -> Departed {
        // This card, and those of a group, take the payload from where it is.
        if [self.resources.port.node(), MULTICAST].contains(&packet.to) {
            for (from, count) in parts {
                // SAFETY: the parts were registered when they were gathered, just now, or are the card's.
                unsafe { host::probe(*from, *count) }?;
            }
        }
        // Loopback: the sending queue pair moves on before the packet is delivered, as both may be the same queue pair.
        // Unreliable packets are delivered first: sending them completes the request, which may own the data.
        let moves_on_first = packet.to == self.resources.port.node() && packet.header.is_reliable();
        if moves_on_first {
            self.sent(packet, now);
        }
        let outcome = self.transmit(&packet.header, packet.to, parts, now);
        match outcome {
            SendOutcome::Full => return Ok(Departure::NoRoom),
            SendOutcome::Unreadable(gone) => return Err(gone),
            SendOutcome::Sent | SendOutcome::Unreachable => {}
        }
        if !moves_on_first {
            let left_at = (outcome == SendOutcome::Sent).then(|| self.fabric.position());
            self.with_qp(packet.qpn, now, |qp, context| {
                qp.note_position(&packet.header, left_at);
                qp.packet_sent(packet, context);
            });
        }
        self.note_unreachable(packet.qpn, packet.to, &packet.header, outcome, now);
        Ok(Departure::Gone)
    }

    /// Sends a packet while faults are on. They decide about it once.
    fn depart_with_faults(&mut self, packet: &Outgoing, parts: &[PayloadPart], now: Instant) -> Departed {
        let flow = Flow::outgoing(packet.qpn, packet.to);
        if self.delayed.is_full(flow) {
            return Ok(Departure::NoRoom);
        }
        let name = self.qps.get(&packet.qpn).and_then(|qp| qp.name_of(packet));
        let Resources { faults, decisions, .. } = &mut self.resources;
        let fate = faults.crosses(&crossing(flow, &packet.header), name, decisions);
        let copies = match fate {
            Fate::Fails(syndrome) => {
                self.with_qp(packet.qpn, now, |qp, context| qp.fail_current(syndrome, context));
                return Ok(Departure::Gone);
            }
            Fate::Lost => 0,
            Fate::Passes | Fate::Delayed { .. } => 1,
            Fate::Duplicated => 2,
        };
        // SAFETY: the parts are the packet's payload, readable while it is handled.
        let copy = unsafe { delay(&packet.header, parts, fate, now) }?;
        self.sent(packet, now);
        (0..copies).for_each(|_| self.delayed.push(flow, copy.clone()));
        // A packet without delay leaves now, unless earlier ones of its queue pair wait.
        self.release(flow, now);
        Ok(Departure::Gone)
    }

    fn sent(&mut self, packet: &Outgoing, now: Instant) {
        self.with_qp(packet.qpn, now, |qp, context| qp.packet_sent(packet, context));
    }

    /// Passes a packet to the fabric, or to the card itself.
    pub(super) fn transmit(
        &mut self,
        header: &Header,
        to: Node,
        parts: &[PayloadPart],
        now: Instant,
    ) -> SendOutcome {
        let outcome = match to {
            MULTICAST => self.transmit_to_group(header, parts, now),
            to => self.transmit_to(header, to, parts, now),
        };
        if outcome == SendOutcome::Sent {
            self.resources.counters.sent(header, length_of(parts) as u64);
        }
        outcome
    }

    /// Passes a datagram to all cards with members of its group. If one has no room, all wait; one that can no longer
    /// be reached misses it.
    fn transmit_to_group(&mut self, header: &Header, parts: &[PayloadPart], now: Instant) -> SendOutcome {
        // No queue pair accepts a packet for a group that has another destination number.
        let is_for_group = header.dest_qpn.get() == MULTICAST_QPN && header.has(GLOBAL);
        let members = if is_for_group { self.fabric.members(&header.group()) } else { Vec::new() };
        let (own, length) = (self.resources.port.node(), length_of(parts));
        let is_full = |node: Node| node != own && self.fabric.is_full(node, size_of::<Header>(), length);
        if members.iter().any(|node| is_full(*node)) {
            return SendOutcome::Full;
        }
        for node in members {
            if self.transmit_to(header, node, parts, now) != SendOutcome::Sent {
                tracing::debug!(node, "a datagram misses a member of its group");
            }
        }
        SendOutcome::Sent
    }

    fn transmit_to(&mut self, header: &Header, to: Node, parts: &[PayloadPart], now: Instant) -> SendOutcome {
        if to != self.resources.port.node() {
            // SAFETY: the parts were resolved just now to registered memory or to inline bytes that the request owns,
            // or were read or copied into buffers of the card. None is freed while the engine is locked.
            return unsafe { self.fabric.try_send(to, header.as_bytes(), parts) };
        }
        self.resources.counters.received(header, length_of(parts) as u64);
        let (mut context, mut touched) = (self.resources.context(now), Vec::new());
        let bytes = header.as_bytes();
        arrive(&mut self.delayed, &mut self.qps, to, bytes, parts, &mut context, &mut touched);
        touched.into_iter().for_each(|qpn| self.reschedule(qpn));
        SendOutcome::Sent
    }

    /// Fails a reliable connection whose peer's process has ended or never existed: no retry would reach it.
    pub(super) fn note_unreachable(
        &mut self,
        qpn: u32,
        to: Node,
        header: &Header,
        outcome: SendOutcome,
        now: Instant,
    ) {
        let is_request = PacketKind::try_from(header.kind).is_ok_and(PacketKind::is_request);
        if outcome == SendOutcome::Unreachable && is_request && header.is_reliable() {
            let Some(qp) = self.qps.get_mut(&qpn) else { return };
            let peer = state_of_ended(&mut self.fabric, to, (self.schedule.rounds, now), &mut qp.requester);
            self.with_qp(qpn, now, |qp, context| qp.retry(peer, context));
        }
    }

    /// Sends a management datagram. It is lost if there is no card at the node, if faults lose it, or if too many wait
    /// for room in the fabric.
    pub(crate) fn send_management(&mut self, to: Node, pkey_index: u16, bytes: &[u8], now: Instant) {
        let mut header = Header::new(PacketKind::Management, MANAGEMENT_QPN, MANAGEMENT_QPN, 0);
        header.flags |= UNRELIABLE;
        header.pkey = U16::new(self.resources.pkeys.key(pkey_index));
        let flow = Flow::outgoing(MANAGEMENT_QPN, to);
        let Resources { faults, decisions, .. } = &mut self.resources;
        let fate = match faults.is_on() {
            true => faults.crosses(&crossing(flow, &header), None, decisions),
            false => Fate::Passes,
        };
        if fate == Fate::Lost || self.delayed.is_full(flow) {
            tracing::debug!(to, "a management datagram is lost");
            return;
        }
        // SAFETY: the part is the slice.
        let delayed = unsafe { delay(&header, &[(bytes.as_ptr(), bytes.len())], fate, now) };
        let Ok(packet) = delayed else { return };
        // It leaves now, unless it is delayed or earlier ones wait.
        self.delayed.push(flow, packet);
        self.release(flow, now);
    }
}
