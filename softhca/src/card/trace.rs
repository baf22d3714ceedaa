//! Timeline events of a card ([`gdsync_trace`]): doorbells, messages, completions.

use super::port::Port;
use crate::fabric::{Node, address_of};
use crate::packet::{Header, LAST, Packet, PacketKind};
use gdsync_sys::prm::cqe::Cqe64;
use gdsync_sys::prm::doorbell::Doorbell;
use gdsync_trace::{EventKind, Span, event, span, span_since};

/// Returns a queue pair as timeline records identify it.
fn queue(port: Port, qpn: u32) -> u64 {
    let card = port.ipv4.map_or(port.lid.into(), u32::from);
    u64::from(card) << 32 | u64::from(qpn)
}

/// Returns a node as timeline records have it beside the number of a queue pair, which tells the cards of an address
/// apart: the address or, on the fabric of one host, the card's number.
fn place(node: Node) -> u64 {
    address_of(node).map_or(node, |address| u32::from(address).into()) << 32
}

/// Returns whether a packet is the last of a message: a send, a write, a read, an atomic, a datagram.
fn ends_message(kind: PacketKind, header: &Header) -> bool {
    let has_parts = matches!(kind, PacketKind::Send | PacketKind::Write | PacketKind::Datagram);
    kind.is_request() && (header.has(LAST) || !has_parts)
}

/// Returns PSN and message length.
fn size(header: &Header) -> u64 {
    u64::from(header.psn.get()) << 32 | u64::from(header.length.get())
}

#[inline(always)]
pub(crate) fn rung(port: Port, bell: Doorbell) {
    event(EventKind::DoorbellSeen, || [queue(port, bell.qpn()), bell.index().into(), 0]);
}

/// Records that a request packet made at `since` has left; `index` and `opcode` are its WQE's.
#[inline(always)]
pub(crate) fn sent(since: u64, port: Port, header: &Header, to: Node, (index, opcode): (u32, u8)) {
    if since != 0 && PacketKind::try_from(header.kind).is_ok_and(|kind| ends_message(kind, header)) {
        let place = u64::from(opcode) << 16 | u64::from(index as u16);
        let words = [queue(port, header.source_qpn.get()), size(header), self::place(to) | place];
        span_since(since, EventKind::Sent, || words);
    }
}

/// Starts the span of a packet's delivery to a queue pair.
#[inline(always)]
pub(crate) fn arriving(port: Port, qpn: u32, packet: Packet<'_>) -> Span {
    let Packet { source, kind, header, .. } = packet;
    if !gdsync_trace::enabled() || !ends_message(kind, header) {
        return Span::none();
    }
    let source = place(source) | u64::from(header.source_qpn.get());
    span(EventKind::Arrived, || [queue(port, qpn), size(header), source])
}

#[inline(always)]
pub(crate) fn completed(port: Port, cqn: u32, cqe: &Cqe64) {
    event(EventKind::Completed, || {
        let opcode = cqe.opcode().map_or(u8::MAX, |opcode| opcode as u8);
        [queue(port, cqe.qpn()), cqn.into(), u64::from(opcode) << 16 | u64::from(cqe.wqe_counter())]
    });
}
