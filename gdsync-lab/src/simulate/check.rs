//! Checks: each completion, and each byte, against what was posted.

use super::cards::{CardBed, SLOT};
use super::link::{Effect, End, IN, LENGTH, Link, Message, Posted, WINDOW, WINDOWS, WORD};
use super::post::immediate;
use super::program::{DEPTH, Kind};
use crate::soak::ledger::Ended;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, Syndrome};
use gdsync_sys::prm::wqe::Opcode;

/// Bytes of room for a network header in front of a datagram.
const HEADER: usize = 40;

pub(super) type Checked = Result<(), String>;

/// Returns an error with text, unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}

impl Link {
    /// Handles a completion of a send queue.
    pub(super) fn sent(&mut self, side: usize, cqe: &Cqe64) -> Checked {
        let is_good = !cqe.is_error();
        let [one, other] = &mut self.ends;
        let (end, peer) = if side == 0 { (one, other) } else { (other, one) };
        let position = end.indices.iter().position(|index| *index == cqe.wqe_counter());
        let (Some(position), Some(oldest)) = (position, end.ledger.oldest()) else {
            return Err(format!("a completion of nothing that is outstanding: {cqe}"));
        };
        if is_good {
            ensure!(cqe.opcode() == Ok(CqeOpcode::Requester), "a wrong entry for a send: {cqe}");
            ensure!(!end.flushes, "a success after a failure: {cqe}");
        } else {
            let is_flush = cqe.syndrome() == Ok(Syndrome::WrFlush);
            ensure!(is_flush || !end.flushes, "an error after the first is no flush: {cqe}");
            ensure!(self.may_fail, "a failure without a reason: {cqe}");
            (end.failed, end.flushes) = (true, true);
        }
        let ended = end.ledger.complete(oldest + position as u64, is_good)?;
        end.indices.drain(..ended.len());
        for Ended { work, is_good, is_own } in ended {
            let Posted { opcode, result, effect, out } = work;
            if is_own && is_good {
                ensure!(cqe.wqe_opcode() == opcode as u8, "{opcode:?} completes with another opcode: {cqe}");
                let expected = result.unwrap_or(cqe.byte_count());
                ensure!(cqe.byte_count() == expected, "{opcode:?} of {expected} bytes: {cqe}");
            }
            if is_good {
                done(&effect, end, peer).map_err(|error| format!("{opcode:?} completes, and {error}"))?;
                // The program may use the memory again.
                end.region.fill(out.0, &vec![0xee; out.1]);
            } else {
                end.uncertain.push(effect);
            }
        }
        Ok(())
    }

    /// Handles a completion of a receive.
    pub(super) fn received(&mut self, side: usize, cqe: &Cqe64, cards: &mut [CardBed]) -> Checked {
        let plan = self.plan;
        let end = &mut self.ends[side];
        let is_good = !cqe.is_error();
        let pool = plan.shared.then(|| &mut cards[end.card].pools[plan.pool()]);
        let (region, place) = match pool {
            Some(pool) => {
                let place = pool.take(cqe.wqe_counter())?;
                (Some(&mut pool.region), place)
            }
            None => {
                let Some((index, place)) = end.posted.pop_front() else {
                    return Err(format!("a completion of a receive that is not posted: {cqe}"));
                };
                ensure!(index == cqe.wqe_counter(), "receive {index} is next, and another completes: {cqe}");
                (None, place)
            }
        };
        if !is_good {
            ensure!(self.may_fail, "a receive fails without a reason: {cqe}");
            end.failed |= !plan.kind.is_one_way();
            let region = region.unwrap_or(&mut end.region);
            let is = region.bytes(place, SLOT);
            region.expect(place, &is);
            return Ok(());
        }
        let message = next_message(end, plan.kind, cqe)?;
        let Message { number, opcode, bytes, at, writes } = message;
        let expected = match opcode {
            Opcode::Send => CqeOpcode::RespSend,
            Opcode::SendImm => CqeOpcode::RespSendImm,
            _ => CqeOpcode::RespWriteImm,
        };
        ensure!(cqe.opcode() == Ok(expected), "message {number} completes as another: {cqe}");
        ensure!(
            opcode == Opcode::Send || cqe.imm() == immediate(number),
            "message {number} has another immediate"
        );
        let lead = if plan.kind == Kind::Ud { HEADER } else { 0 };
        ensure!(
            cqe.byte_count() as usize == bytes.len() + lead,
            "message {number} of {} bytes: {cqe}",
            bytes.len()
        );
        end.received = number + 1;
        // Later writes may be for the same place.
        if let Some(at) = at.filter(|_| end.writes - writes < WINDOWS) {
            let is_there = end.region.bytes(at, bytes.len()) == bytes;
            ensure!(
                is_there,
                "message {number}, a write of {} bytes, completes before its data",
                bytes.len()
            );
        }
        let region = region.unwrap_or(&mut end.region);
        if at.is_none() {
            region.expect(place + lead, &bytes);
        }
        if !plan.kind.is_reliable() {
            // A message that was lost may have begun to fill the receive.
            let from = place + lead + if at.is_none() { bytes.len() } else { 0 };
            let rest = region.bytes(from, place + SLOT - from);
            region.expect(from, &rest);
        }
        region.check(place, SLOT, &format!("message {number} of {} bytes", bytes.len()))
    }

    /// Accepts what failed and unfinished requests have done, after their queue pairs are gone.
    pub(super) fn adopt(&mut self, side: usize) -> Checked {
        let [one, other] = &mut self.ends;
        let (end, peer) = if side == 0 { (one, other) } else { (other, one) };
        end.uncertain.extend(end.ledger.forget().map(|posted| posted.effect));
        for effect in end.uncertain.drain(..) {
            match effect {
                Effect::Nothing | Effect::Message(_) => {}
                Effect::Write { at, bytes, .. } => peer.region.adopt(at, &bytes, "a write that failed")?,
                Effect::Read { at, bytes } => end.region.adopt(at, &bytes, "a read that failed")?,
                Effect::Atomic { at, former } => {
                    end.region.adopt(at, &former.to_ne_bytes(), "an atomic that failed")?;
                }
            }
        }
        let word = peer.region.memory.words64()[WORD / 8].load(std::sync::atomic::Ordering::Acquire);
        let is_known = word == peer.word.certain || peer.word.coming.contains(&word);
        ensure!(is_known, "atomics that failed have left {word:#x}, which none of them makes");
        (peer.word.certain, end.failed, end.flushes) = (word, false, false);
        peer.word.coming.clear();
        peer.region.expect(WORD, &word.to_ne_bytes());
        if self.plan.kind.is_reliable() && !self.is_dead {
            let (acknowledged, received) = (peer.acknowledged, peer.received);
            ensure!(
                acknowledged <= received,
                "{acknowledged} messages are acknowledged, {received} have come"
            );
        }
        peer.coming.clear();
        (peer.received, peer.acknowledged) = (peer.sent, peer.sent);
        end.indices.clear();
        // Receives that no message has filled, or one in part.
        end.posted.clear();
        let is = end.region.bytes(IN, DEPTH * SLOT);
        end.region.expect(IN, &is);
        if !self.plan.kind.is_reliable() {
            let is = peer.region.bytes(WINDOW, WORD - WINDOW);
            peer.region.expect(WINDOW, &is);
        }
        peer.future.copy_from_slice(&peer.region.shadow[WINDOW..WORD]);
        Ok(())
    }

    /// Checks that a link at rest has lost nothing, and all its memory.
    pub(super) fn check(&mut self) -> Checked {
        for side in 0..2 {
            let end = &mut self.ends[side];
            if self.plan.kind.is_reliable() {
                ensure!(end.acknowledged <= end.received, "end {side} has not got what was acknowledged");
            } else {
                // Messages that were lost may have left a part.
                let posted: Vec<usize> = end.posted.iter().map(|(_, place)| *place).collect();
                let parts = posted.into_iter().map(|place| (place, SLOT)).chain([(WINDOW, WORD - WINDOW)]);
                for (at, len) in parts {
                    let is = end.region.bytes(at, len);
                    end.region.expect(at, &is);
                }
            }
            end.region.check(0, LENGTH, &format!("all memory of end {side}"))?;
        }
        Ok(())
    }
}

/// Checks what a request has done that succeeded.
fn done(effect: &Effect, end: &mut End, peer: &mut End) -> Checked {
    match effect {
        Effect::Nothing => Ok(()),
        Effect::Message(number) => {
            peer.acknowledged = number + 1;
            Ok(())
        }
        Effect::Write { at, bytes, message } => {
            if let Some(number) = message {
                peer.acknowledged = number + 1;
            }
            peer.region.expect(*at, bytes);
            peer.region.check(*at, bytes.len(), "the peer's memory differs")
        }
        Effect::Read { at, bytes } => {
            end.region.expect(*at, bytes);
            end.region.check(*at, bytes.len(), "the result differs")
        }
        Effect::Atomic { at, former } => {
            end.region.expect(*at, &former.to_ne_bytes());
            peer.word.certain = peer.word.coming.pop_front().ok_or("no atomic is outstanding")?;
            peer.region.expect(WORD, &peer.word.certain.to_ne_bytes());
            end.region.check(*at, 8, "the former value differs")
        }
    }
}

/// Returns the message that a receive completes. Messages of unreliable transports may be missing before it.
fn next_message(end: &mut End, kind: Kind, cqe: &Cqe64) -> Result<Message, String> {
    while let Some(message) = end.coming.pop_front() {
        if kind.is_reliable() || cqe.imm() == immediate(message.number) {
            return Ok(message);
        }
    }
    Err(format!("a message has come that was not sent, or twice, or out of order: {cqe}"))
}
