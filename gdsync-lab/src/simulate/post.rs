//! Posting: the work requests of a link, and their expected effects.

use super::cards::{CardBed, SLOT};
use super::link::{
    DC_KEY, Effect, End, IN, LANDING, Link, Message, OUT, Posted, QKEY, WINDOW, WINDOWS, WORD,
};
use super::program::{DEPTH, INLINE, Kind, What, Work};
use crate::soak::plan::Random;
use gdsync_sys::prm::wqe::{
    AddressFields, AddressVector, AtomicSeg, CtrlFlags, CtrlSeg, InlineSeg, Opcode, RemoteAddrSeg, SEGMENT,
    XrcSeg,
};
use zerocopy::IntoBytes;

/// How many writes ago a place was written that is read.
const READABLE: u64 = DEPTH as u64 - 1;

/// Returns the content of a message.
pub(super) fn content(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// Returns the immediate of a message.
pub(super) fn immediate(number: u32) -> [u8; 4] {
    (number ^ 0x5a5a_0000).to_be_bytes()
}

/// The parts of a work request.
struct Parts {
    opcode: Opcode,
    remote: Option<usize>,
    operands: Option<AtomicSeg>,
    /// Bytes sent, from `out`.
    bytes: Option<Vec<u8>>,
    /// Where a result comes to, and its bytes.
    landing: Option<(usize, usize)>,
    immediate: [u8; 4],
    effect: Effect,
}

impl Parts {
    fn new(opcode: Opcode) -> Self {
        Parts {
            opcode,
            remote: None,
            operands: None,
            bytes: None,
            landing: None,
            immediate: [0; 4],
            effect: Effect::Nothing,
        }
    }
}

impl Link {
    /// Posts a work request. Returns false if the end cannot take it.
    pub(super) fn post(&mut self, side: usize, work: &Work, cards: &[CardBed]) -> bool {
        let [one, other] = &mut self.ends;
        let (end, peer) = if side == 0 { (one, other) } else { (other, one) };
        if end.qpn == 0 || end.failed || end.ledger.len() >= DEPTH || end.queues.send.is_none() {
            return false;
        }
        let random = &mut Random::new(work.seed);
        let Some(parts) = plan(self.plan.kind, work, end, peer, random) else { return false };
        // A request in a row of silent ones must report them before the queue is full.
        let signaled = work.signaled || end.ledger.len() + 1 == DEPTH;
        let mut body = Vec::new();
        if parts.opcode != Opcode::Nop {
            let fields = AddressFields {
                qkey: QKEY,
                qpn: peer.qpn,
                dlid: cards[peer.card].card.lid(),
                ..AddressFields::default()
            };
            match self.plan.kind {
                Kind::Ud => body.extend_from_slice(AddressVector::new(&fields).as_bytes()),
                Kind::Dc => {
                    body.extend_from_slice(AddressVector::new(&fields).with_dc_key(DC_KEY).as_bytes());
                }
                Kind::Xrc => {
                    let srqn = cards[peer.card].pools[1].srqn;
                    body.extend_from_slice(XrcSeg::new(srqn).as_bytes());
                }
                Kind::Rc | Kind::Uc => {}
            }
        }
        if let Some(at) = parts.remote {
            let remote = RemoteAddrSeg::new(peer.region.address(at), peer.region.key);
            body.extend_from_slice(remote.as_bytes());
        }
        body.extend_from_slice(parts.operands.as_ref().map_or(&[], |operands| operands.as_bytes()));
        let place = OUT + end.ledger.next() as usize % DEPTH * SLOT;
        let mut out = (place, 0);
        if let Some(bytes) = &parts.bytes {
            if !bytes.is_empty() && bytes.len() <= INLINE && random.below(2) == 0 {
                body.extend_from_slice(InlineSeg::new(bytes.len() as u32).as_bytes());
                body.extend_from_slice(bytes);
                body.resize(body.len().next_multiple_of(SEGMENT), 0);
            } else {
                end.region.fill(place, bytes);
                out.1 = bytes.len();
                let first = random.below(bytes.len() as u64 + 1) as usize;
                for (at, len) in
                    [(0, first), (first, bytes.len() - first)].into_iter().filter(|(_, len)| *len > 0)
                {
                    body.extend_from_slice(end.region.data(place + at, len).as_bytes());
                }
            }
        }
        if let Some((at, len)) = parts.landing.filter(|(_, len)| *len > 0) {
            body.extend_from_slice(end.region.data(at, len).as_bytes());
        }
        let Some(send) = &mut end.queues.send else { return false };
        let mut flags = CtrlFlags::empty();
        flags.set(CtrlFlags::CQ_UPDATE, signaled);
        flags.set(CtrlFlags::FENCE, work.fenced);
        let ds = ((SEGMENT + body.len()) / SEGMENT) as u8;
        let control = CtrlSeg::new(parts.opcode, send.index(), end.qpn, ds, flags, parts.immediate);
        end.indices.push_back(send.index());
        send.post(&[control.as_bytes(), &body].concat());
        let result = parts.landing.map(|(_, len)| len as u32);
        end.ledger.post(Posted { opcode: parts.opcode, result, effect: parts.effect, out }, signaled);
        if work.rung {
            send.ring();
        }
        true
    }

    /// Posts receives as far as there is room.
    pub(super) fn post_receives(&mut self, side: usize, count: usize, cards: &mut [CardBed]) {
        let end = &mut self.ends[side];
        if end.qpn == 0 || end.failed {
            return;
        }
        if self.plan.shared {
            let pool = &mut cards[end.card].pools[self.plan.pool()];
            return (0..count).for_each(|_| pool.post());
        }
        let Some(queue) = &mut end.queues.receive else { return };
        for _ in 0..count.min(DEPTH - end.posted.len()) {
            let place = IN + end.receives % DEPTH * SLOT;
            let index = queue.post(end.region.data(place, SLOT));
            end.posted.push_back((index, place));
            end.receives += 1;
        }
    }
}

/// Plans a work request, and notes what it is expected to do.
fn plan(kind: Kind, work: &Work, end: &mut End, peer: &mut End, random: &mut Random) -> Option<Parts> {
    let landing = LANDING + end.ledger.next() as usize % DEPTH * SLOT;
    Some(match work.what {
        What::Nop => Parts::new(Opcode::Nop),
        What::Send | What::SendImm => {
            let opcode = if work.what == What::Send { Opcode::Send } else { Opcode::SendImm };
            let bytes = content(random, work.length);
            let number = message(peer, opcode, &bytes, None);
            Parts {
                bytes: Some(bytes),
                immediate: immediate(number),
                effect: Effect::Message(number),
                ..Parts::new(opcode)
            }
        }
        What::Write | What::WriteImm => {
            let bytes = content(random, work.length);
            let place = peer.writes % WINDOWS * SLOT + work.offset;
            peer.writes += 1;
            peer.future[place..place + bytes.len()].copy_from_slice(&bytes);
            let at = WINDOW + place;
            let is_message = work.what == What::WriteImm;
            let opcode = if is_message { Opcode::RdmaWriteImm } else { Opcode::RdmaWrite };
            let message = is_message.then(|| message(peer, opcode, &bytes, Some(at)));
            let effect = match kind.is_reliable() {
                true => Effect::Write { at, bytes: bytes.clone(), message },
                false => Effect::Message(message?),
            };
            Parts {
                remote: Some(at),
                immediate: message.map_or([0; 4], immediate),
                bytes: Some(bytes),
                effect,
                ..Parts::new(opcode)
            }
        }
        What::Read => {
            // A place that no write changes before this read is done.
            let back = 1 + random.below(READABLE.min(peer.writes.max(1) as u64)) as usize;
            let place = (peer.writes + WINDOWS - back) % WINDOWS * SLOT + work.offset;
            let bytes = peer.future[place..place + work.length].to_vec();
            Parts {
                remote: Some(WINDOW + place),
                landing: Some((landing, work.length)),
                effect: Effect::Read { at: landing, bytes },
                ..Parts::new(Opcode::RdmaRead)
            }
        }
        What::Add | What::Swap => {
            let former = peer.word.coming.back().copied().unwrap_or(peer.word.certain);
            let operand = random.next();
            let (opcode, operands, after) = match work.what {
                What::Add => (Opcode::AtomicFa, AtomicSeg::new(operand, 0), former.wrapping_add(operand)),
                _ if random.below(2) == 0 => (Opcode::AtomicCs, AtomicSeg::new(operand, former), operand),
                _ => (Opcode::AtomicCs, AtomicSeg::new(operand, !former), former),
            };
            peer.word.coming.push_back(after);
            Parts {
                remote: Some(WORD),
                operands: Some(operands),
                landing: Some((landing, 8)),
                effect: Effect::Atomic { at: landing, former },
                ..Parts::new(opcode)
            }
        }
    })
}

/// Notes a message to an end. Returns its number.
fn message(to: &mut End, opcode: Opcode, bytes: &[u8], at: Option<usize>) -> u32 {
    let number = to.sent;
    to.sent += 1;
    let writes = to.writes;
    to.coming.push_back(Message { number, opcode, bytes: bytes.to_vec(), at, writes });
    number
}
