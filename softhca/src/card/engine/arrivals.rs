//! The packets that arrive in one step, and the faults that they meet.
//!
//! A client of peer memory may copy the payload of several packets at once, straight from the fabric. This applies to
//! all packets but the last of a message: nothing shows a program that they have arrived, and their acknowledgements
//! leave after this step. All copies end before another packet is handled, and before the fabric takes the payload
//! back.

use super::state::Engine;
use crate::card::config::Transport;
use crate::card::context::{Context, Resources};
use crate::card::counters;
use crate::card::delayed::{DelayedPacket, DelayedPackets};
use crate::card::diagnostic::{Diagnostic, Verdict};
use crate::card::memory::copy::collect;
use crate::card::memory::peer_copies::PacketName;
use crate::card::transport::deliver::deliver;
use crate::card::transport::qp::Qp;
use crate::fabric::{Node, Part, Sink, Use};
use crate::faults::{Crossing, Direction, Fate};
use crate::packet::{Header, LAST, PacketKind};
use crate::speed::SPEED_VARIABLE;
use std::collections::HashMap;
use std::time::Instant;
use zerocopy::FromBytes;

/// Maximum number of packets that one step takes from the fabric.
const RECEIVE_BUDGET: usize = 32;

/// The parts of the engine that handle a packet: all but the fabric, which delivers it.
struct Arrivals<'a> {
    now: Instant,
    qps: &'a mut HashMap<u32, Qp>,
    resources: &'a mut Resources,
    delayed: &'a mut DelayedPackets,
    counters: &'a mut counters::Port,
    /// Queue pairs that packets were delivered to.
    touched: Vec<u32>,
}

impl Engine {
    /// Takes packets from the fabric. Returns whether there were any.
    pub(crate) fn take_packets(&mut self, now: Instant) -> bool {
        if self.delayed.is_congested() {
            return false;
        }
        let Engine { fabric, qps, resources, delayed, counters, .. } = self;
        let mut touched = Vec::new();
        let mut arrivals = Arrivals { now, qps, resources, delayed, counters, touched: Vec::new() };
        let taken = fabric.poll(RECEIVE_BUDGET, &mut arrivals);
        touched.append(&mut arrivals.touched);
        for refused in fabric.take_refused() {
            let (verdict, message) = (Verdict::Refused, refused.to_string());
            let field = SPEED_VARIABLE;
            resources.diagnostics.report(Diagnostic { verdict, qpn: None, index: None, field, message });
        }
        for qpn in touched {
            self.touched(qpn);
        }
        taken > 0
    }
}

impl Arrivals<'_> {
    /// Returns the name of a packet whose copies may end later.
    fn ends_later(&self, header: &Header) -> Option<PacketName> {
        let qpn = header.dest_qpn.get();
        let is_part = matches!(PacketKind::try_from(header.kind), Ok(PacketKind::Send | PacketKind::Write))
            && !header.has(LAST);
        let may = is_part
            && header.is_reliable()
            && !self.resources.faults.is_on()
            && self.delayed.is_empty()
            && !self.resources.dice.is_on()
            && self.qps.get(&qpn).is_some_and(|qp| qp.endpoint.config.transport == Transport::Rc);
        may.then(|| (qpn, header.psn.get()))
    }
}

impl Sink for Arrivals<'_> {
    fn take(&mut self, source: Node, header: &[u8], payload: [Part; 2]) -> Use {
        let parsed = Header::read_from_bytes(header).ok();
        if let Some(header) = &parsed {
            self.counters.received(header, payload.iter().map(|(_, len)| *len as u64).sum());
        }
        let later = parsed.and_then(|header| self.ends_later(&header));
        if later.is_none() {
            self.settle();
        }
        self.resources.peers.end_later(later);
        let Arrivals { now, qps, resources, delayed, touched, .. } = self;
        arrive(delayed, qps, source, header, &payload, &mut resources.context(*now), touched);
        self.resources.peers.end_later(None);
        if self.resources.peers.is_full() {
            self.settle();
        }
        if self.resources.peers.is_under_way() { Use::GoesOn } else { Use::Over }
    }

    fn settle(&mut self) {
        if !self.resources.peers.is_under_way() {
            return;
        }
        for ((qpn, psn), failure) in self.resources.peers.finish() {
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.copy_failed(psn, &failure, &mut self.resources.context(self.now));
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

/// Returns a copy of a packet, delayed according to its fate.
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

/// Returns the description of a packet by which faults decide.
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
