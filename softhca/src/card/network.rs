//! Where packets leave the card and come to it, and what faults do to them there.

use super::context::Context;
use super::deliver::receive;
use super::dma::{self, Part, Place};
use super::engine::{Engine, context};
use super::held::{Held, HeldPacket, Lane};
use super::packet::{Header, Kind};
use super::qp::Qp;
use crate::fabric::{Node, SendOutcome};
use crate::faults::{Crossing, Direction, Fate, Faults, PacketKind};
use gdsync_sys::prm::cqe::Cqe64;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// When a held packet that finds no room in the fabric is tried again.
const TRY_AGAIN: Duration = Duration::from_micros(100);
/// Held packets of one queue pair that go on in one step.
const RELEASE_BUDGET: usize = 32;

/// A packet that is about to leave.
#[derive(Clone, Copy)]
pub(super) struct Leaving {
    pub(super) qpn: u32,
    pub(super) header: Header,
    pub(super) is_response: bool,
    pub(super) to: Node,
}

/// Whether a packet has left, as far as its queue pair knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    Gone,
    /// There is no room: it is made again later.
    NoRoom,
}

impl Engine {
    /// Sends the packet whose payload was gathered.
    pub(super) fn depart(&mut self, leaving: &Leaving, now: Instant) -> Departure {
        let parts = self.payload.take();
        let departure = if self.faults.is_on() || !self.held.is_empty() {
            self.depart_disturbed(leaving, &parts, now)
        } else {
            self.depart_plainly(leaving, &parts, now)
        };
        self.payload.give_back(parts);
        departure
    }

    fn depart_plainly(&mut self, leaving: &Leaving, parts: &[Part], now: Instant) -> Departure {
        // Loopback: first the sender moves on, then the receiver is told; they may be the same queue pair. Not so where sending
        // completes the request, which may hold the data.
        let moves_on_first = leaving.to == self.port.node() && leaving.header.is_reliable();
        if moves_on_first {
            self.sent(leaving, now);
        }
        let outcome = self.transmit(&leaving.header, leaving.to, parts, now);
        if outcome == SendOutcome::Full {
            return Departure::NoRoom;
        }
        if !moves_on_first {
            self.sent(leaving, now);
        }
        self.note_unreachable(leaving.qpn, &leaving.header, outcome, now);
        Departure::Gone
    }

    /// With faults on: what they do to the packet, which is made and counted once.
    fn depart_disturbed(&mut self, leaving: &Leaving, parts: &[Part], now: Instant) -> Departure {
        let lane = (Direction::Out, leaving.qpn);
        if self.held.is_full(lane) {
            return Departure::NoRoom;
        }
        let fate = self.faults.crosses(&crossing(Direction::Out, leaving.qpn, &leaving.header));
        let copies = match fate {
            Fate::Fails(syndrome) => {
                self.with_qp(leaving.qpn, now, |qp, context| qp.fail_current(syndrome, context));
                return Departure::Gone;
            }
            Fate::Lost => 0,
            Fate::Passes | Fate::Held { .. } => 1,
            Fate::Doubled => 2,
        };
        let packet = self.copy(&leaving.header, leaving.to, parts, fate, now);
        self.sent(leaving, now);
        (0..copies).for_each(|_| self.held.push(lane, packet.clone()));
        // Undisturbed ones leave now, unless others of the queue pair wait before them.
        self.release(lane, now);
        Departure::Gone
    }

    /// A copy of a packet, to be held back as its fate says.
    fn copy(&mut self, header: &Header, node: Node, parts: &[Part], fate: Fate, now: Instant) -> HeldPacket {
        // SAFETY: the parts are the packet's payload, readable while it is handled.
        unsafe { held_packet(header, node, parts, fate, now, &mut self.bounce) }
    }

    /// Gives a packet to the fabric, or to the card itself.
    fn transmit(&mut self, header: &Header, to: Node, parts: &[Part], now: Instant) -> SendOutcome {
        if to != self.port.node() {
            // SAFETY: the parts were resolved just now to registered memory, or to inline bytes that the request holds, or
            // were fetched or copied into the card's own buffers; none goes while the engine is locked.
            return unsafe { self.fabric.try_send(to, header.as_bytes(), parts) };
        }
        let mut context = context!(self, now);
        let touched = arrive(&mut self.held, &mut self.qps, to, header.as_bytes(), parts, &mut context);
        if let Some(touched) = touched {
            self.after(touched);
            self.schedule(touched);
        }
        SendOutcome::Sent
    }

    /// The peer's process is gone or was never there: no time-out will bring it back.
    fn note_unreachable(&mut self, qpn: u32, header: &Header, outcome: SendOutcome, now: Instant) {
        let is_request = Kind::try_from(header.kind).is_ok_and(Kind::is_request);
        if outcome == SendOutcome::Unreachable && is_request && header.is_reliable() {
            self.with_qp(qpn, now, |qp, context| qp.retry(false, context));
        }
    }

    /// Lets go on what has been held back for long enough. False where there was nothing.
    pub(super) fn release_held(&mut self, now: Instant) -> bool {
        if self.held.is_empty() {
            return false;
        }
        if !self.faults.is_on() {
            self.held.hurry(now);
        }
        let mut released = false;
        for lane in self.held.ready(now) {
            released |= self.release(lane, now);
        }
        released
    }

    fn release(&mut self, lane: Lane, now: Instant) -> bool {
        for count in 0..RELEASE_BUDGET {
            let Some(packet) = self.held.pop(lane, now) else { return count > 0 };
            let parts = [(packet.payload.as_ptr(), packet.payload.len())];
            let outcome = match lane {
                (Direction::Out, _) => self.transmit(&packet.header, packet.node, &parts, now),
                (Direction::In, _) => {
                    let mut context = context!(self, now);
                    let header = packet.header.as_bytes();
                    let touched = receive(&mut self.qps, packet.node, header, &parts, &mut context);
                    if let Some(touched) = touched {
                        self.after(touched);
                        self.schedule(touched);
                    }
                    SendOutcome::Sent
                }
            };
            if outcome == SendOutcome::Full {
                self.held.push_front(lane, HeldPacket { due: now + TRY_AGAIN, ..packet });
                return count > 0;
            }
            self.held.passed(lane);
            if lane.0 == Direction::Out {
                self.note_unreachable(lane.1, &packet.header, outcome, now);
            }
        }
        true
    }

    /// Before the card ends: what was held back is in the network, as far as programs know, so it goes there.
    pub(super) fn flush_held(&mut self, now: Instant) {
        self.held.hurry(now);
        while self.release_held(now) {}
    }

    /// A queue pair is reset or destroyed: whatever it has completed is visible before that.
    pub(super) fn settle_late(&mut self, qpn: u32, now: Instant) {
        for (cqn, cqe) in self.late.take_of(qpn) {
            self.show(cqn, cqe, now);
        }
    }

    fn show(&mut self, cqn: u32, cqe: Cqe64, now: Instant) {
        if !context!(self, now).write_completion(cqn, cqe) {
            self.with_qp(cqe.qpn(), now, Qp::completion_lost);
        }
    }

    /// Makes completions visible whose time has come. False where there were none.
    pub(super) fn release_late(&mut self, now: Instant) -> bool {
        if self.late.is_empty() {
            return false;
        }
        let at = if self.faults.is_on() { Some(now) } else { None };
        let mut released = false;
        while let Some((cqn, cqe)) = self.late.pop(at) {
            released = true;
            self.show(cqn, cqe, now);
        }
        released
    }
}

/// A packet has come, from the fabric or from the card itself. Returns the queue pair that it concerned.
pub(super) fn arrive(
    held: &mut Held,
    qps: &mut HashMap<u32, Qp>,
    source: Node,
    header: &[u8],
    payload: &[Part],
    context: &mut Context<'_>,
) -> Option<u32> {
    if !context.faults.is_on() && held.is_empty() {
        return receive(qps, source, header, payload, context);
    }
    let parsed = Header::read_from_bytes(header).ok()?;
    let lane = (Direction::In, parsed.dest_qpn.get());
    let fate = context.faults.crosses(&crossing(lane.0, lane.1, &parsed));
    if fate == Fate::Lost {
        return None;
    }
    if !held.holds(lane) && matches!(fate, Fate::Passes | Fate::Doubled) {
        if fate == Fate::Doubled {
            // SAFETY: the payload is readable while this packet is handled.
            let copy = unsafe { held_packet(&parsed, source, payload, fate, context.now, context.bounce) };
            held.push(lane, copy);
        }
        held.passed(lane);
        return receive(qps, source, header, payload, context);
    }
    // SAFETY: as above.
    let copy = unsafe { held_packet(&parsed, source, payload, fate, context.now, context.bounce) };
    if fate == Fate::Doubled {
        held.push(lane, copy.clone());
    }
    held.push(lane, copy);
    None
}

/// # Safety
/// The parts are readable, and none is `bounce`.
unsafe fn held_packet(
    header: &Header,
    node: Node,
    parts: &[Part],
    fate: Fate,
    now: Instant,
    bounce: &mut Vec<u8>,
) -> HeldPacket {
    let length = parts.iter().map(|part| part.1).sum();
    let mut payload = vec![0; length];
    // SAFETY: the caller's; the target is a buffer of that length. It is no peer memory, so that this cannot fail.
    let copied = unsafe { dma::copy(parts, &[(Place::Host(payload.as_mut_ptr()), length)], bounce) };
    debug_assert!(copied.is_ok());
    let (due, others) = match fate {
        Fate::Held { at_most, others } => (now + at_most, others),
        _ => (now, None),
    };
    HeldPacket { header: *header, node, payload, due, others }
}

/// What faults are told of a packet.
fn crossing(direction: Direction, qpn: u32, header: &Header) -> Crossing {
    let kind = Kind::try_from(header.kind).ok();
    Crossing {
        direction,
        qpn,
        kind: kind.map(fault_kind),
        is_reliable: header.is_reliable(),
        is_request: kind.is_some_and(Kind::is_request),
    }
}

/// The kind of a packet, as faults call it.
pub(super) fn fault_kind(kind: Kind) -> PacketKind {
    match kind {
        Kind::Send => PacketKind::Send,
        Kind::Write => PacketKind::Write,
        Kind::ReadRequest => PacketKind::Read,
        Kind::ReadResponse => PacketKind::ReadResponse,
        Kind::Ack => PacketKind::Ack,
        Kind::Nak => PacketKind::Nak,
        Kind::CompareSwap => PacketKind::CompareSwap,
        Kind::FetchAdd => PacketKind::FetchAdd,
        Kind::AtomicResponse => PacketKind::AtomicResponse,
        Kind::Datagram => PacketKind::Datagram,
    }
}

impl Faults {
    /// How a responder refuses a request that has come in its turn, if it does.
    pub(super) fn refuse(&self, qpn: u32, kind: Kind) -> Option<crate::faults::Refused> {
        if self.is_on() { self.refuses(qpn, Some(fault_kind(kind))) } else { None }
    }
}
