//! Delivery of a packet to its queue pair.

use super::qp::Qp;
use crate::card::config::{QpState, Transport};
use crate::card::context::Context;
use crate::card::port::Port;
use crate::fabric::{Node, Part};
use crate::packet::{Header, Packet, PacketKind};
use std::collections::HashMap;

/// Handles a packet. Returns the queue pair that it concerned.
pub(crate) fn deliver(
    qps: &mut HashMap<u32, Qp>,
    source: Node,
    header: &Header,
    payload: &[Part],
    context: &mut Context<'_>,
) -> Option<u32> {
    let Ok(kind) = PacketKind::try_from(header.kind) else {
        tracing::debug!(source, kind = header.kind, "a packet of an unknown kind");
        return None;
    };
    let qpn = header.dest_qpn.get();
    let qp = qps.get_mut(&qpn)?;
    let packet = Packet { source, kind, header, payload };
    if !listens_to(qp, context.port, packet) {
        tracing::debug!(source, qpn, ?kind, "a packet for a queue pair that does not listen to its sender");
        return None;
    }
    qp.deliver(packet, context);
    Some(qpn)
}

/// Whether a queue pair accepts a packet in its state. Connections accept packets of their peer
/// only, and every transport accepts its own packets only.
fn listens_to(qp: &Qp, port: Port, packet: Packet<'_>) -> bool {
    let (endpoint, Packet { source, kind, header, .. }) = (&qp.endpoint, packet);
    let is_peer = || (endpoint.node(port), endpoint.attributes.dest_qpn) == (source, header.source_qpn.get());
    let is_of_its_transport = match endpoint.config.transport {
        Transport::Ud => kind == PacketKind::Datagram,
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
