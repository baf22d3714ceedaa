//! Arriving packets: the faults that they meet, and their delivery to a queue pair or to the members of a multicast
//! group.
//!
//! A client of peer memory may copy the payload of several packets at once, straight from the fabric. Nothing shows a
//! program that they have arrived, except for the last one of a message, and their acknowledgements leave after this step.
//! A long last packet of the same queue pair joins them: the card waits once, before that packet takes effect, and a copy
//! that has failed refuses it. Programs poll the last byte of a message: where nothing orders the copies, the end of that
//! packet follows them. All copies end before another packet is handled, and before the fabric takes the payload
//! back.

use crate::card::config::{QpState, Transport, are_partners};
use crate::card::context::{Context, Resources};
use crate::card::delayed::{DelayedPacket, DelayedPackets, Flow};
use crate::card::memory::copy::collect;
use crate::card::memory::peer_copies::{MIN_DIRECT, PacketName};
use crate::card::port::Port;
use crate::card::reports::Event;
use crate::card::trace;
use crate::card::transport::qp::Qp;
use crate::fabric::{Node, PayloadPart, Sink, Use};
use crate::faults::{Crossing, Fate};
use crate::os::host::Gone;
use crate::packet::{GLOBAL, Header, LAST, MULTICAST_QPN, Packet, PacketKind};
use std::collections::HashMap;
use std::time::Instant;
use zerocopy::FromBytes;

/// The parts of the engine that handle a packet: all but the fabric, which delivers it.
pub(super) struct Arrivals<'a> {
    pub(super) now: Instant,
    pub(super) qps: &'a mut HashMap<u32, Qp>,
    pub(super) resources: &'a mut Resources,
    pub(super) delayed: &'a mut DelayedPackets,
    /// Number of bytes whose copies are in progress at which they are waited for.
    pub(super) most: usize,
    /// Queue pairs that packets were delivered to.
    pub(super) touched: Vec<u32>,
}

impl Arrivals<'_> {
    /// Returns the name of a packet whose copies overlap with those of others; with the last of a message, they end.
    fn overlaps(&self, header: &Header) -> Option<PacketName> {
        let qpn = header.dest_qpn.get();
        let may = matches!(PacketKind::try_from(header.kind), Ok(PacketKind::Send | PacketKind::Write))
            && header.is_reliable()
            && !self.resources.faults.is_on()
            && self.delayed.is_empty()
            && !self.resources.decisions.is_on()
            && self.qps.get(&qpn).is_some_and(|qp| qp.endpoint.config.transport == Transport::Rc);
        may.then(|| (qpn, header.psn.get()))
    }
}

impl Sink for Arrivals<'_> {
    fn take(&mut self, source: Node, header: &[u8], payload: [PayloadPart; 2]) -> Use {
        let parsed = Header::read_from_bytes(header).ok();
        let len: usize = payload.iter().map(|(_, len)| *len).sum();
        if let Some(header) = &parsed {
            self.resources.counters.received(header, len as u64);
        }
        let name = parsed.and_then(|header| self.overlaps(&header));
        let later = name.filter(|_| parsed.is_some_and(|header| !header.has(LAST)));
        // Other queue pairs learn of their failures before this packet takes effect.
        let joins = name.is_some_and(|(qpn, _)| len >= MIN_DIRECT && self.resources.peers.are_all_of(qpn));
        if later.is_none() && !joins {
            self.settle();
        }
        self.resources.peers.end_later(later);
        let Arrivals { now, qps, resources, delayed, touched, .. } = self;
        arrive(delayed, qps, source, header, &payload, &mut resources.context(*now), touched);
        self.resources.peers.end_later(None);
        // The packet may have ended without a copy.
        if later.is_none() || self.resources.peers.under_way() >= self.most {
            self.settle();
        }
        if self.resources.peers.is_pending() { Use::GoesOn } else { Use::Over }
    }

    fn settle(&mut self) {
        if !self.resources.peers.is_pending() {
            return;
        }
        for ((qpn, psn), failure) in self.resources.peers.finish() {
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.copy_failed(psn, &failure.into(), &mut self.resources.context(self.now));
                self.touched.push(qpn);
            }
        }
    }
}

/// Handles a packet from the fabric or from the card itself. Adds the queue pairs that it was delivered to to
/// `touched`.
pub(super) fn arrive(
    delayed: &mut DelayedPackets,
    qps: &mut HashMap<u32, Qp>,
    source: Node,
    header: &[u8],
    payload: &[PayloadPart],
    context: &mut Context<'_>,
    touched: &mut Vec<u32>,
) {
    let Ok(header) = Header::read_from_bytes(header) else { return };
    if !context.faults.is_on() && delayed.is_empty() {
        return deliver(qps, source, &header, payload, context, touched);
    }
    let flow = Flow::incoming(header.dest_qpn.get(), source);
    let fate = context.faults.crosses(&crossing(flow, &header), None, context.decisions);
    let passes = !delayed.holds(flow) && matches!(fate, Fate::Passes | Fate::Duplicated);
    let copies = match fate {
        Fate::Lost => return,
        Fate::Duplicated => 2,
        _ => 1,
    };
    // SAFETY: the payload is readable while this packet is handled.
    let Ok(copy) = (unsafe { delay(&header, payload, fate, context.now) }) else { return };
    (usize::from(passes)..copies).for_each(|_| delayed.push(flow, copy.clone()));
    if !passes {
        return;
    }
    delayed.count_passed(flow);
    deliver(qps, source, &header, payload, context, touched);
}

/// Returns a copy of a packet, delayed according to its fate.
///
/// # Errors
/// A part is gone.
///
/// # Safety
/// As [`collect`].
pub(super) unsafe fn delay(
    header: &Header,
    parts: &[PayloadPart],
    fate: Fate,
    now: Instant,
) -> Result<DelayedPacket, Gone> {
    // SAFETY: the caller guarantees this.
    let payload = unsafe { collect(parts) }?;
    let (due, others) = match fate {
        Fate::Delayed { at_most, others } => (now + at_most, others),
        _ => (now, None),
    };
    Ok(DelayedPacket { header: *header, payload, due, others, had_no_room: false })
}

/// Returns the description of a packet by which faults decide.
pub(super) fn crossing(Flow { direction, qpn, .. }: Flow, header: &Header) -> Crossing {
    let kind = PacketKind::try_from(header.kind).ok();
    Crossing {
        direction,
        qpn,
        kind,
        is_reliable: header.is_reliable(),
        is_request: kind.is_some_and(PacketKind::is_request),
        psn: header.psn.get(),
    }
}

/// Handles a packet. Adds the queue pairs that it was delivered to to `touched`.
pub(crate) fn deliver(
    qps: &mut HashMap<u32, Qp>,
    source: Node,
    header: &Header,
    payload: &[PayloadPart],
    context: &mut Context<'_>,
    touched: &mut Vec<u32>,
) {
    let Ok(kind) = PacketKind::try_from(header.kind) else {
        tracing::debug!(source, kind = header.kind, "a packet of an unknown kind");
        return;
    };
    if kind == PacketKind::Management {
        // As on queue pair 1 of a card: any key of the table counts (IB specification, 10.9.3).
        let Some(pkey_index) = context.pkeys.partner_of(header.pkey.get()) else {
            return drop_for_key(source, header, context);
        };
        // SAFETY: the payload is readable while this packet is handled.
        if unsafe { context.inbox.push(source, pkey_index, payload) } {
            context.emit(Event::Management);
        } else {
            tracing::debug!(source, "a management datagram is lost");
        }
        return;
    }
    let packet = Packet { source, kind, header, payload };
    let qpn = header.dest_qpn.get();
    if kind != PacketKind::Datagram || qpn != MULTICAST_QPN {
        touched.extend(deliver_to(qps, qpn, packet, context));
        return;
    }
    // A datagram without a network header names no group.
    if header.has(GLOBAL) {
        let groups = context.groups;
        touched.extend(groups.of(&header.group()).filter_map(|qpn| deliver_to(qps, qpn, packet, context)));
    }
}

/// Handles a packet for a queue pair. Returns its number if it accepts packets of the sender.
fn deliver_to(
    qps: &mut HashMap<u32, Qp>,
    qpn: u32,
    packet: Packet<'_>,
    context: &mut Context<'_>,
) -> Option<u32> {
    let qp = qps.get_mut(&qpn)?;
    if !listens_to(qp, context.port, packet) {
        let Packet { source, kind, .. } = packet;
        tracing::debug!(source, qpn, ?kind, "a packet for a queue pair that does not listen to its sender");
        return None;
    }
    if !are_partners(packet.header.pkey.get(), qp.endpoint.pkey) {
        drop_for_key(packet.source, packet.header, context);
        return None;
    }
    let _arriving = trace::arriving(context.port, qpn, packet);
    qp.deliver(packet, context);
    Some(qpn)
}

/// Drops a packet for its partition key. Nothing tells the sender (IB specification, 10.9.3).
#[cold]
fn drop_for_key(source: Node, header: &Header, context: &mut Context<'_>) {
    let (pkey, qpn) = (header.pkey.get(), header.dest_qpn.get());
    tracing::debug!(source, qpn, pkey, "a packet of a partition that the receiver is not in");
    context.counters.bad_pkey();
}

/// Returns whether a queue pair accepts a packet in its state. Connections accept only packets of their peer, and every
/// transport only its own packets.
fn listens_to(qp: &Qp, port: Port, packet: Packet<'_>) -> bool {
    let (endpoint, Packet { source, kind, header, .. }) = (&qp.endpoint, packet);
    let is_peer = || (endpoint.node(port), endpoint.attributes.dest_qpn) == (source, header.source_qpn.get());
    let is_of_its_transport = match endpoint.config.transport {
        Transport::Ud => {
            let is_own = || (source, header.source_qpn.get()) == (port.node(), endpoint.qpn);
            let is_blocked =
                endpoint.config.block_own_multicast && header.dest_qpn.get() == MULTICAST_QPN && is_own();
            kind == PacketKind::Datagram && !is_blocked
        }
        Transport::Uc => {
            matches!(kind, PacketKind::Send | PacketKind::Write) && !header.is_reliable() && is_peer()
        }
        Transport::Rc => header.is_reliable() && is_peer(),
        Transport::DcInitiator => {
            let is_current = header.connection.get() == endpoint.connection();
            header.is_reliable() && !kind.is_request() && is_peer() && is_current
        }
        Transport::DcTarget => header.is_reliable() && kind.is_request(),
        Transport::XrcInitiator => header.is_reliable() && !kind.is_request() && is_peer(),
        Transport::XrcTarget => header.is_reliable() && kind.is_request() && is_peer(),
    };
    matches!(endpoint.state(), QpState::Rtr | QpState::Rts) && is_of_its_transport
}
