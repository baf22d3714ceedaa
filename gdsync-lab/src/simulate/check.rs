//! Checks: each completion, and each byte, against what was posted.

use super::cards::{CardBed, SLOT};
use super::link::{
    Effect, End, IN, KEPT_IN, KEPT_WINDOW, LENGTH, Link, Message, Posted, WINDOW, WINDOWS, WORD,
};
use super::program::{DEPTH, Kind};
use crate::soak::ledger::Ended;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, Syndrome};
use gdsync_sys::prm::wqe::Opcode;
use std::fmt;

/// Bytes of room for a network header in front of a datagram.
const HEADER: usize = 40;
/// Where a network header has the GID of the destination.
const GID: usize = 24;

pub(super) type Checked = Result<(), String>;

/// Returns an error with text, unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}
pub(super) use ensure;

/// A completion, as the card or the library tells it.
pub(super) struct Told<'a> {
    /// Serial number of a send, index of a receive.
    pub(super) index: u64,
    /// Of an error.
    pub(super) syndrome: Option<u8>,
    /// Unknown for starts of persistent requests, as the next one.
    pub(super) bytes: Option<u32>,
    pub(super) immediate: Option<[u8; 4]>,
    /// Compares its kind with the opcode of a request, or of a message.
    pub(super) is_of: &'a dyn Fn(Opcode) -> bool,
    pub(super) text: &'a dyn fmt::Display,
}

impl Link {
    /// Handles an entry of a send queue's completion queue.
    pub(super) fn sent_by_card(&mut self, side: usize, cqe: &Cqe64) -> Checked {
        let end = &mut self.ends[side];
        let position = end.indices.iter().position(|index| *index == cqe.wqe_counter());
        let (Some(position), Some(oldest)) = (position, end.ledger.oldest()) else {
            return Err(format!("a completion of nothing that is outstanding: {cqe}"));
        };
        end.indices.drain(..=position);
        let is_of =
            |opcode: Opcode| cqe.opcode() == Ok(CqeOpcode::Requester) && cqe.wqe_opcode() == opcode as u8;
        self.sent(side, &Told { index: oldest + position as u64, ..told(cqe, &is_of) })
    }

    /// Handles an entry of a receive.
    pub(super) fn received_by_card(&mut self, side: usize, cqe: &Cqe64, cards: &mut [CardBed]) -> Checked {
        let is_of = |opcode| {
            let expected = match opcode {
                Opcode::Send => CqeOpcode::RespSend,
                Opcode::SendImm => CqeOpcode::RespSendImm,
                _ => CqeOpcode::RespWriteImm,
            };
            cqe.opcode() == Ok(expected)
        };
        self.received(side, &told(cqe, &is_of), cards)
    }

    /// Handles a completion of a send.
    pub(super) fn sent(&mut self, side: usize, told: &Told<'_>) -> Checked {
        let Told { text, .. } = told;
        let [one, other] = &mut self.ends;
        let (end, peer) = if side == 0 { (one, other) } else { (other, one) };
        if let Some(syndrome) = told.syndrome {
            let is_flush = syndrome == Syndrome::WrFlush as u8;
            self.may_fail |= self.uses_up_retries && syndrome == Syndrome::RetryExceeded as u8;
            ensure!(is_flush || !end.flushes, "an error after the first is no flush: {text}");
            ensure!(self.may_fail, "a failure without a reason: {text}");
            (end.failed, end.flushes) = (true, true);
        } else {
            ensure!(!end.flushes, "a success after a failure: {text}");
        }
        let ended = end.ledger.complete(told.index, told.syndrome.is_none())?;
        for Ended { work, is_good, is_own } in ended {
            let Posted { opcode, result, effect, out } = work;
            if is_own && is_good {
                ensure!((told.is_of)(opcode), "{opcode:?} completes as another: {text}");
                let is_other = result.zip(told.bytes).is_some_and(|(expected, is)| is != expected);
                ensure!(!is_other, "{opcode:?} with a result of {result:?} bytes: {text}");
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
    pub(super) fn received(&mut self, side: usize, told: &Told<'_>, cards: &mut [CardBed]) -> Checked {
        let (plan, group) = (self.plan, self.group());
        let Told { index, text, .. } = *told;
        let end = &mut self.ends[side];
        let pool = plan.shared.then(|| &mut cards[end.card].pools[plan.pool()]);
        let (region, place) = match pool {
            Some(pool) => {
                let place = pool.take(index as u16)?;
                (Some(&mut pool.region), place)
            }
            None => {
                let Some((next, place)) = end.posted.pop_front() else {
                    return Err(format!("a completion of a receive that is not posted: {text}"));
                };
                ensure!(next == index as u16, "receive {next} is next, and another completes: {text}");
                (None, place)
            }
        };
        // Of the same persistent request.
        let has_later = region.is_none() && end.posted.iter().any(|(_, later)| *later == place);
        if told.syndrome.is_some() {
            ensure!(self.may_fail, "a receive fails without a reason: {text}");
            end.failed |= !plan.kind.has_target();
            let region = region.unwrap_or(&mut end.region);
            let is = region.bytes(place, SLOT);
            region.expect(place, &is);
            return Ok(());
        }
        let message = next_message(end, plan.kind, told)?;
        let Message { number, opcode, bytes, immediate, at, writes } = message;
        ensure!((told.is_of)(opcode), "message {number} completes as another: {text}");
        ensure!(
            opcode == Opcode::Send || told.immediate.is_none_or(|is| is == immediate),
            "message {number} has another immediate"
        );
        let lead = if plan.kind.is_of_datagrams() { HEADER } else { 0 };
        ensure!(
            told.bytes.is_none_or(|is| is as usize == bytes.len() + lead),
            "message {number} of {} bytes: {text}",
            bytes.len()
        );
        end.received = number + 1;
        // Later writes may be for the same place.
        if let Some(at) = at.filter(|_| end.writes.wrapping_sub(writes) < WINDOWS) {
            let is_there = end.region.bytes(at, bytes.len()) == bytes;
            ensure!(
                is_there,
                "message {number}, a write of {} bytes, completes before its data",
                bytes.len()
            );
        }
        let region = region.unwrap_or(&mut end.region);
        if has_later {
            // The next message may be there already, and is checked.
            let is = region.bytes(place, SLOT);
            region.expect(place, &is);
            return Ok(());
        }
        if plan.kind == Kind::Group {
            let header = region.bytes(place, lead);
            ensure!(header[GID..] == group, "message {number} is of another group: {header:02x?}");
            region.expect(place, &header);
        }
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
        let is = end.region.bytes(KEPT_IN, KEPT_WINDOW - KEPT_IN);
        end.region.expect(KEPT_IN, &is);
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
fn next_message(end: &mut End, kind: Kind, told: &Told<'_>) -> Result<Message, String> {
    while let Some(message) = end.coming.pop_front() {
        if kind.is_reliable() || told.immediate == Some(message.immediate) {
            return Ok(message);
        }
    }
    Err(format!("a message has come that was not sent, or twice, or out of order: {}", told.text))
}

/// Returns what an entry tells. The index is that of a receive.
fn told<'a>(cqe: &'a Cqe64, is_of: &'a dyn Fn(Opcode) -> bool) -> Told<'a> {
    Told {
        index: cqe.wqe_counter().into(),
        syndrome: cqe.is_error().then(|| cqe.syndrome().map_or(u8::MAX, |syndrome| syndrome as u8)),
        bytes: Some(cqe.byte_count()),
        immediate: Some(cqe.imm()),
        is_of,
        text: cqe,
    }
}
