//! Posting: the work requests of a link, and their expected effects.

use super::cards::{CardBed, SLOT};
use super::link::{DC_KEY, Effect, End, IN, LANDING, Link, Message, OUT, Posted, WINDOW, WINDOWS, WORD};
use super::program::{DEPTH, INLINE, Kind, What, Work};
use crate::soak::plan::Random;
use gdsync::{RemoteMemory, Slice, WorkRequest};
use gdsync_sys::prm::wqe::{
    AddressFields, AddressVector, AtomicSeg, CtrlFlags, CtrlSeg, GrhFields, InlineSeg, Opcode, RemoteAddrSeg,
    SEGMENT, XrcSeg,
};
use softhca::card::{MULTICAST_LIDS, MULTICAST_QPN};
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
fn immediate(number: u32) -> [u8; 4] {
    (number ^ 0x5a5a_0000).to_be_bytes()
}

/// The parts of a work request.
struct Parts {
    opcode: Opcode,
    remote: Option<usize>,
    /// The operands of an atomic: the addend, or the new value and the one compared with.
    operands: Option<(u64, u64)>,
    /// Bytes sent, from `out`.
    bytes: Option<Vec<u8>>,
    /// Where a result comes to, and its bytes.
    landing: Option<(usize, usize)>,
    immediate: [u8; 4],
    /// The former future of the place in the peer's window that it writes.
    former: Option<(usize, Vec<u8>)>,
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
            former: None,
            effect: Effect::Nothing,
        }
    }

    /// Returns it as a request of the library.
    fn request<'a>(
        &'a self,
        work: &Work,
        inline: Option<&'a [u8]>,
        slices: &'a [Slice],
        memory: RemoteMemory,
    ) -> Result<WorkRequest<'a>, String> {
        let len = self.bytes.as_ref().map_or(0, Vec::len) + self.landing.map_or(0, |(_, len)| len);
        let remote = memory.slice(self.remote.map_or(0..0, |at| at..at + len));
        let remote = remote.map_err(|error| error.to_string())?;
        let request = match (self.opcode, inline, self.operands) {
            (Opcode::Nop, ..) => WorkRequest::nop(),
            (Opcode::Send | Opcode::SendImm, None, _) => WorkRequest::send(slices),
            (Opcode::Send | Opcode::SendImm, Some(bytes), _) => WorkRequest::send_inline(bytes),
            (Opcode::RdmaRead, ..) => WorkRequest::read(slices, remote),
            (Opcode::AtomicFa, _, Some((add, _))) => WorkRequest::fetch_add(&slices[0], remote, add),
            (Opcode::AtomicCs, _, Some((swap, compare))) => {
                WorkRequest::compare_swap(&slices[0], remote, compare, swap)
            }
            (_, None, _) => WorkRequest::write(slices, remote),
            (_, Some(bytes), _) => WorkRequest::write_inline(bytes, remote),
        };
        let request = if work.fenced { request.fence() } else { request };
        let has_immediate = matches!(self.opcode, Opcode::SendImm | Opcode::RdmaWriteImm);
        Ok(if has_immediate { request.immediate(u32::from_be_bytes(self.immediate)) } else { request })
    }
}

impl Link {
    /// Posts a work request. Returns false if the end cannot take it.
    pub(super) fn post(&mut self, side: usize, work: &Work, cards: &[CardBed]) -> Result<bool, String> {
        let (group, qkey) = (self.group(), self.qkey());
        let [one, other] = &mut self.ends;
        let (end, peer) = if side == 0 { (one, other) } else { (other, one) };
        if end.qpn == 0 || end.failed || end.ledger.len() >= DEPTH || !end.queues.can_send() {
            return Ok(false);
        }
        let random = &mut Random::new(work.seed);
        let before = (peer.sent, peer.coming.len(), peer.writes, peer.word.coming.len());
        let Some(parts) = plan(self.plan.kind, work, end, peer, random) else { return Ok(false) };
        // A request in a row of silent ones must report them before the queue is full.
        let signaled = work.signaled || end.ledger.len() + 1 == DEPTH;
        let place = OUT + end.ledger.next() as usize % DEPTH * SLOT;
        let (mut inline, mut parts_of) = (None, [(0, 0); 3]);
        let mut out = (place, 0);
        if let Some(bytes) = &parts.bytes {
            if !bytes.is_empty() && bytes.len() <= INLINE && random.below(2) == 0 {
                inline = Some(&bytes[..]);
            } else {
                end.region.fill(place, bytes);
                out.1 = bytes.len();
                let first = random.below(bytes.len() as u64 + 1) as usize;
                (parts_of[0], parts_of[1]) = ((place, first), (place + first, bytes.len() - first));
            }
        }
        parts_of[2] = parts.landing.unwrap_or_default();
        let memory = parts_of.iter().filter(|(_, len)| *len > 0);
        if let (Some(driven), Some(bench)) = (&mut end.queues.library, &cards[end.card].bench) {
            let slices = memory.map(|(at, len)| driven.region.slice(*at..at + len));
            let slices = slices.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
            let len = peer.region.memory.len() as u64;
            let remote = RemoteMemory { addr: peer.region.address(0), len, rkey: peer.region.key };
            let request = parts.request(work, inline, &slices, remote)?;
            let request = if signaled { request } else { request.unsignaled() };
            let is_message = peer.coming.len() > before.1;
            if !driven.post(request, end.ledger.next(), is_message, work.rung, bench)? {
                (peer.sent, peer.writes) = (before.0, before.2);
                peer.coming.truncate(before.1);
                peer.word.coming.truncate(before.3);
                if let Some((at, former)) = parts.former {
                    peer.future[at..at + former.len()].copy_from_slice(&former);
                }
                return Ok(false);
            }
        } else {
            let mut body = Vec::new();
            if parts.opcode != Opcode::Nop {
                let mut fields = AddressFields {
                    qkey,
                    qpn: peer.qpn,
                    dlid: cards[peer.card].card.lid(),
                    ..AddressFields::default()
                };
                if self.plan.kind == Kind::Group {
                    let grh = GrhFields { gid: group, hop_limit: 1, ..GrhFields::default() };
                    (fields.qpn, fields.dlid, fields.grh) =
                        (MULTICAST_QPN, *MULTICAST_LIDS.start(), Some(grh));
                }
                match self.plan.kind {
                    Kind::Ud | Kind::Group => body.extend_from_slice(AddressVector::new(&fields).as_bytes()),
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
            if let Some((one, other)) = parts.operands {
                body.extend_from_slice(AtomicSeg::new(one, other).as_bytes());
            }
            if let Some(bytes) = inline {
                body.extend_from_slice(InlineSeg::new(bytes.len() as u32).as_bytes());
                body.extend_from_slice(bytes);
                body.resize(body.len().next_multiple_of(SEGMENT), 0);
            }
            memory.for_each(|(at, len)| body.extend_from_slice(end.region.data(*at, *len).as_bytes()));
            let Some(send) = &mut end.queues.send else { return Ok(false) };
            let mut flags = CtrlFlags::empty();
            flags.set(CtrlFlags::CQ_UPDATE, signaled);
            flags.set(CtrlFlags::FENCE, work.fenced);
            let ds = ((SEGMENT + body.len()) / SEGMENT) as u8;
            let control = CtrlSeg::new(parts.opcode, send.index(), end.qpn, ds, flags, parts.immediate);
            end.indices.push_back(send.index());
            send.post(&[control.as_bytes(), &body].concat());
            if work.rung {
                send.ring();
            }
        }
        let result = parts.landing.map(|(_, len)| len as u32);
        end.ledger.post(Posted { opcode: parts.opcode, result, effect: parts.effect, out }, signaled);
        Ok(true)
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
        if let Some(driven) = &end.queues.library {
            for _ in 0..count.min(DEPTH - end.posted.len()) {
                let place = IN + end.receives % DEPTH * SLOT;
                let Ok(slice) = driven.region.slice(place..place + SLOT) else { return };
                // It has failed, or streams have not passed waits for entries that it would need.
                if driven.queue_pair.post_recv(&[slice], (end.receives as u16).into()).is_err() {
                    return;
                }
                end.posted.push_back((end.receives as u16, place));
                end.receives += 1;
            }
            return;
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
            if kind == Kind::Group {
                // Both ends are members. They have got the same messages, so their numbers are equal.
                message(end, opcode, &bytes, None);
            }
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
            let keeps = end.queues.library.is_some();
            let former = keeps.then(|| (place, peer.future[place..place + bytes.len()].to_vec()));
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
                former,
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
                What::Add => (Opcode::AtomicFa, (operand, 0), former.wrapping_add(operand)),
                _ if random.below(2) == 0 => (Opcode::AtomicCs, (operand, former), operand),
                _ => (Opcode::AtomicCs, (operand, !former), former),
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
    let (bytes, immediate) = (bytes.to_vec(), immediate(number));
    to.coming.push_back(Message { number, opcode, bytes, immediate, at, writes });
    number
}
