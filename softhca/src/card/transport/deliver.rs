//! Delivery of a packet to its queue pair, or to the members of a multicast group.

use super::qp::Qp;
use crate::card::config::{QpState, Transport};
use crate::card::context::Context;
use crate::card::event::Event;
use crate::card::port::Port;
use crate::card::trace;
use crate::fabric::{Node, Part};
use crate::packet::{GLOBAL, Header, MULTICAST_QPN, Packet, PacketKind};
use std::collections::HashMap;

/// Handles a packet. Adds the queue pairs that it was delivered to to `touched`.
pub(crate) fn deliver(
    qps: &mut HashMap<u32, Qp>,
    source: Node,
    header: &Header,
    payload: &[Part],
    context: &mut Context<'_>,
    touched: &mut Vec<u32>,
) {
    let Ok(kind) = PacketKind::try_from(header.kind) else {
        tracing::debug!(source, kind = header.kind, "a packet of an unknown kind");
        return;
    };
    if kind == PacketKind::Management {
        // SAFETY: the payload is readable while this packet is handled.
        if unsafe { context.inbox.push(source, payload) } {
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
    let _arriving = trace::arriving(context.port, qpn, packet);
    qp.deliver(packet, context);
    Some(qpn)
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
