//! Bringing a packet to the queue pair that it is for.

use super::config::{QpState, Transport};
use super::context::Context;
use super::dma::Part;
use super::error::Event;
use super::link::Port;
use super::packet::{Header, Kind, NakCode};
use super::qp::Qp;
use crate::fabric::Node;
use std::collections::HashMap;
use zerocopy::FromBytes;

/// Handles a packet. Returns the queue pair that it concerned.
pub(super) fn receive(
    qps: &mut HashMap<u32, Qp>,
    source: Node,
    header: &[u8],
    payload: &[Part],
    context: &mut Context<'_>,
) -> Option<u32> {
    let header = Header::read_from_bytes(header).ok()?;
    let Ok(kind) = Kind::try_from(header.kind) else {
        tracing::debug!(source, kind = header.kind, "a packet of an unknown kind");
        return None;
    };
    let qpn = header.dest_qpn.get();
    let qp = qps.get_mut(&qpn)?;
    if !listens_to(qp, context.port, source, kind, &header) {
        tracing::debug!(source, qpn, ?kind, "a packet for a queue pair that does not listen to its sender");
        return None;
    }
    let is_request = kind.is_request() && kind != Kind::Datagram;
    if is_request && qp.attributes.state == QpState::Rtr && !std::mem::replace(&mut qp.established, true) {
        context.emit(Event::CommunicationEstablished { qpn });
    }
    match kind {
        Kind::Datagram => qp.take_datagram(source, &header, payload, context),
        _ if qp.transport == Transport::Uc => qp.request_unreliable(kind, &header, payload, context),
        _ if is_request => qp.request(kind, &header, payload, context),
        Kind::ReadResponse => qp.read_response(&header, payload, context),
        Kind::AtomicResponse => qp.atomic_response(&header, context),
        Kind::Ack => qp.acknowledge(header.psn.get(), context),
        _ => match NakCode::try_from(header.nak) {
            Ok(code) => qp.refused(header.psn.get(), code, header.timer_or_level, context),
            Err(error) => tracing::debug!(source, qpn, %error, "a packet makes no sense"),
        },
    }
    Some(qpn)
}

/// Connections hear their peer only, and every transport its own packets only.
fn listens_to(qp: &Qp, port: Port, source: Node, kind: Kind, header: &Header) -> bool {
    let is_peer = || (qp.node(port), qp.attributes.dest_qpn) == (source, header.source_qpn.get());
    let is_of_its_transport = match qp.transport {
        Transport::Ud => kind == Kind::Datagram,
        Transport::Uc => matches!(kind, Kind::Send | Kind::Write) && !header.is_reliable() && is_peer(),
        Transport::Rc => header.is_reliable() && is_peer(),
    };
    qp.listens() && is_of_its_transport
}
