//! Arrival of packets, and what faults do to them.

use crate::card::context::Context;
use crate::card::delayed::{DelayedPacket, DelayedPackets};
use crate::card::memory::copy::collect;
use crate::card::transport::deliver::deliver;
use crate::card::transport::qp::Qp;
use crate::fabric::{Node, Part};
use crate::faults::{Crossing, Direction, Fate};
use crate::packet::{Header, PacketKind};
use std::collections::HashMap;
use std::time::Instant;
use zerocopy::FromBytes;

/// Handles a packet from the fabric, or from the card itself. Adds the queue pairs that it concerned to
/// `touched`.
pub(super) fn arrive(
    delayed: &mut DelayedPackets,
    qps: &mut HashMap<u32, Qp>,
    source: Node,
    header: &[u8],
    payload: &[Part],
    context: &mut Context<'_>,
    touched: &mut Vec<u32>,
) {
    let Ok(header) = Header::read_from_bytes(header) else { return };
    if !context.faults.is_on() && delayed.is_empty() {
        return deliver(qps, source, &header, payload, context, touched);
    }
    let flow = (Direction::In, header.dest_qpn.get());
    let fate = context.faults.crosses(&crossing(flow.0, flow.1, &header));
    let passes = !delayed.holds(flow) && matches!(fate, Fate::Passes | Fate::Duplicated);
    let copies = match fate {
        Fate::Lost => return,
        Fate::Duplicated => 2,
        _ => 1,
    };
    // SAFETY: the payload is readable while this packet is handled.
    let copy = || unsafe { delay(&header, source, payload, fate, context.now) };
    (usize::from(passes)..copies).for_each(|_| delayed.push(flow, copy()));
    if !passes {
        return;
    }
    delayed.count_passed(flow);
    deliver(qps, source, &header, payload, context, touched);
}

/// A copy of a packet, delayed as its fate says.
///
/// # Safety
/// The parts are readable.
pub(super) unsafe fn delay(
    header: &Header,
    node: Node,
    parts: &[Part],
    fate: Fate,
    now: Instant,
) -> DelayedPacket {
    // SAFETY: the caller's.
    let payload = unsafe { collect(parts) };
    let (due, others) = match fate {
        Fate::Delayed { at_most, others } => (now + at_most, others),
        _ => (now, None),
    };
    DelayedPacket { header: *header, node, payload, due, others, had_no_room: false }
}

/// The description of a packet that faults decide by.
pub(super) fn crossing(direction: Direction, qpn: u32, header: &Header) -> Crossing {
    let kind = PacketKind::try_from(header.kind).ok();
    Crossing {
        direction,
        qpn,
        kind,
        is_reliable: header.is_reliable(),
        is_request: kind.is_some_and(PacketKind::is_request),
    }
}
