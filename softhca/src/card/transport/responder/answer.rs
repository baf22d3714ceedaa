//! Answers: their packets, those to duplicate requests, and the liberty to hold them back for a while.

use crate::card::config::{Access, LIMITS};
use crate::card::memory::copy::MemoryFailure;
use crate::card::memory::ring::Entry;
use crate::card::memory::translation::KeyRange;
use crate::card::queue::receive::ReceiveOwner;
use crate::card::reports::Event;
use crate::card::transport::endpoint::Step;
use crate::liberties::LibertyKinds;
use crate::packet::{Header, LAST, NakCode, PSN_MASK, Packet, PacketKind, psn_distance};
use std::collections::VecDeque;
use std::time::Instant;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Maximum number of answers that wait for room in the fabric. Requests that are no duplicates need fewer.
const MAX_RESPONSES: usize = 256;

/// Number of packets after which one is acknowledged although its message continues.
const ACK_EVERY: u32 = 16;

/// Answers to send, and results kept for duplicates.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    responses: VecDeque<Response>,
    results: Results,
    /// Number of packets that arrived since the last acknowledgement.
    unacknowledged: u32,
    held: Hold,
}

/// Times of answers that are held back.
#[derive(Debug, Default)]
struct Hold {
    until: Option<Instant>,
    /// When the first of them was held back.
    since: Option<Instant>,
}

type Completion = (ReceiveOwner, Entry);

#[derive(Debug)]
enum Response {
    /// Acknowledges everything up to this packet. The completion of a receive becomes visible when the acknowledgement
    /// has left: a peer that exits after that completion must not leave the requester without its acknowledgement.
    Ack {
        psn: u32,
        completion: Option<Completion>,
    },
    Nak {
        psn: u32,
        code: NakCode,
    },
    /// Data of an RDMA read, of which `sent` packets have left.
    Read {
        psn: u32,
        pdn: u32,
        addr: u64,
        rkey: u32,
        length: u32,
        sent: u32,
        /// True if the request is a duplicate.
        again: bool,
    },
    Atomic {
        psn: u32,
        original: Original,
        /// True if the request is a duplicate.
        again: bool,
    },
}

impl Response {
    /// Returns whether it counts against `max_dest_rd_atomic`. Answers to duplicates do not: a requester that repeats
    /// its requests has no more of them in flight.
    fn is_counted(&self) -> bool {
        matches!(self, Response::Read { again: false, .. } | Response::Atomic { again: false, .. })
    }
}

/// The original value that an atomic operation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Original {
    pub(super) value: u64,
    /// Bytes that the operation changed.
    pub(super) bytes: u32,
}

/// Results of the last atomic operations, by PSN. A duplicate request is answered from them and not executed again.
#[derive(Debug, Default)]
struct Results {
    kept: VecDeque<(u32, Original)>,
}

impl Results {
    /// Keeps a result, up to as many as a requester may have in flight.
    fn remember(&mut self, psn: u32, original: Original) {
        if self.kept.len() >= usize::from(LIMITS.max_rd_atomic) {
            self.kept.pop_front();
        }
        self.kept.push_back((psn, original));
    }

    /// Returns the newest result with that PSN; PSNs repeat after 2^24 packets.
    fn find(&self, psn: u32) -> Option<Original> {
        self.kept.iter().rev().find(|(known, _)| *known == psn).map(|(_, original)| *original)
    }
}

impl Answers {
    /// Drops all answers and results.
    pub(super) fn clear(&mut self) {
        self.responses.clear();
        (self.unacknowledged, self.results, self.held) = (0, Results::default(), Hold::default());
    }

    pub(super) fn refuse(&mut self, psn: u32, code: NakCode) {
        self.responses.push_back(Response::Nak { psn, code });
    }

    /// Keeps the result of an atomic operation, and answers with it.
    pub(super) fn push_atomic(&mut self, psn: u32, original: Original) {
        self.results.remember(psn, original);
        self.responses.push_back(Response::Atomic { psn, original, again: false });
    }

    /// Drops the acknowledgements of packet `from` and of later ones.
    pub(super) fn withdraw_acknowledgements(&mut self, from: u32) {
        let is_earlier = |last: u32| psn_distance(last, from) < 0;
        self.responses.retain(|response| !matches!(response, Response::Ack { psn, .. } if !is_earlier(*psn)));
    }

    /// Handles a duplicate request: acknowledges it again, or answers a read or an atomic again.
    pub(super) fn duplicate(&mut self, packet: Packet<'_>, expected_psn: u32, step: &Step<'_, '_>) {
        let Packet { kind, header, .. } = packet;
        if self.responses.len() >= MAX_RESPONSES {
            // The peer does not take its answers; it will send the request again.
            return;
        }
        match kind {
            // The rights may have changed since the first request.
            PacketKind::Read if step.endpoint.attributes.access.contains(Access::REMOTE_READ) => {
                self.push_read(header, true, step)
            }
            PacketKind::Read => {}
            PacketKind::CompareSwap | PacketKind::FetchAdd => {
                let (psn, qpn) = (header.psn.get(), step.endpoint.qpn);
                match self.results.find(psn) {
                    Some(original) => {
                        self.responses.push_back(Response::Atomic { psn, original, again: true })
                    }
                    None => tracing::debug!(qpn, psn, "a duplicate of an atomic whose result is not kept"),
                }
            }
            _ => {
                let psn = expected_psn.wrapping_sub(1) & PSN_MASK;
                self.responses.push_back(Response::Ack { psn, completion: None });
            }
        }
    }

    pub(super) fn push_read(&mut self, header: &Header, again: bool, step: &Step<'_, '_>) {
        self.responses.push_back(Response::Read {
            psn: header.psn.get(),
            pdn: step.endpoint.pdn,
            addr: header.addr.get(),
            rkey: header.rkey.get(),
            length: header.length.get(),
            sent: 0,
            again,
        });
    }

    /// Refuses a request without the access key of a DC target.
    pub(crate) fn refuse_key(&mut self, psn: u32, step: &mut Step<'_, '_>) {
        self.refuse(psn, NakCode::RemoteAccess);
        step.endpoint.fail();
    }

    /// Refuses the read of packet `psn`, made by [`Self::next_response`], as its payload cannot be read.
    pub(crate) fn refuse_read(&mut self, psn: u32, failure: &MemoryFailure, step: &mut Step<'_, '_>) {
        step.report(None, failure.field(), step.context.regions.describe(failure));
        self.release_completions(step);
        // The NAK fails the requester, which then ignores all further answers.
        self.responses.clear();
        self.refuse(psn, NakCode::RemoteAccess);
        step.responder_failed(Event::QpAccessError { qpn: step.endpoint.qpn });
        step.endpoint.fail();
    }

    pub(crate) fn owes_answers(&self) -> bool {
        !self.responses.is_empty()
    }

    /// Returns the next response packet, if there is one. Its payload is in the context.
    pub(crate) fn next_response(&mut self, step: &mut Step<'_, '_>) -> Option<Header> {
        if self.responses.is_empty() || self.is_held(step) {
            return None;
        }
        let (qpn, dest) = (step.endpoint.qpn, step.endpoint.attributes.dest_qpn);
        match self.responses.front()? {
            Response::Ack { psn, .. } => {
                let psn = self.acknowledged_at_once(*psn, step);
                Some(Header::new(PacketKind::Ack, qpn, dest, psn))
            }
            Response::Nak { psn, code } => {
                Some(Header::nak((qpn, dest, *psn), *code, step.endpoint.attributes.min_rnr_timer))
            }
            Response::Atomic { psn, original, .. } => {
                let mut header = Header::new(PacketKind::AtomicResponse, qpn, dest, *psn);
                header.operands[0] = U64::new(original.value);
                header.length = U32::new(original.bytes);
                Some(header)
            }
            Response::Read { psn, pdn, addr, rkey, length, sent, .. } => {
                let offset = sent * step.context.port.mtu;
                let count = (length - offset).min(step.context.port.mtu);
                let psn = psn.wrapping_add(*sent);
                if count > 0 {
                    let addr = addr.wrapping_add(offset.into());
                    let range = KeyRange { key: *rkey, addr, len: count.into() };
                    match step.context.regions.resolve(range, *pdn, Access::REMOTE_READ) {
                        Ok(pieces) => {
                            pieces.for_each(|(place, len)| step.context.payload.push(place, len));
                        }
                        // The region was deregistered during the read.
                        Err(refusal) => {
                            step.report(None, "rkey", refusal.to_string());
                            return Some(Header::nak((qpn, dest, psn), NakCode::RemoteAccess, 0));
                        }
                    }
                }
                let mut header = Header::new(PacketKind::ReadResponse, qpn, dest, psn);
                header.length = U32::new(*length);
                Some(header)
            }
        }
    }

    /// Handles the departure of the packet made by [`Self::next_response`] (or the end of its destination).
    pub(crate) fn response_sent(&mut self, header: &Header, step: &mut Step<'_, '_>) {
        let refused = header.kind == PacketKind::Nak as u8;
        match self.responses.front_mut() {
            Some(Response::Read { length, sent, .. })
                if !refused && *sent + 1 < step.context.port.packets_of(*length) =>
            {
                *sent += 1
            }
            Some(Response::Ack { .. }) => self.acknowledged(header.psn.get(), step),
            _ => drop(self.responses.pop_front()),
        }
    }

    /// Makes completions visible after the acknowledgement of everything up to packet `last` has left.
    fn acknowledged(&mut self, last: u32, step: &mut Step<'_, '_>) {
        while let Some(Response::Ack { psn, completion }) = self.responses.front_mut()
            && psn_distance(*psn, last) <= 0
        {
            let completion = completion.take();
            self.responses.pop_front();
            if let Some((owner, entry)) = completion {
                step.complete_receive(owner, entry);
            }
        }
    }

    /// Writes the completions that wait until their acknowledgement has left.
    pub(crate) fn release_completions(&mut self, step: &mut Step<'_, '_>) {
        let waiting = self.responses.iter_mut().filter_map(|response| match response {
            Response::Ack { completion, .. } => completion.take(),
            _ => None,
        });
        for (owner, entry) in waiting.collect::<Vec<_>>() {
            step.complete_receive(owner, entry);
        }
    }

    /// Holds all answers back for a while, if the card takes that liberty now.
    pub(super) fn hold(&mut self, kind: LibertyKinds, step: &mut Step<'_, '_>) {
        if let Some(pause) = step.context.decisions.pause(kind, step.endpoint.work) {
            self.held.until = self.held.until.max(Some(step.context.now + pause));
        }
    }

    /// Returns whether answers are held back, by a liberty or because of deferred writes. If not, all deferred writes
    /// are performed: an answer says that the payload before it is written.
    fn is_held(&mut self, step: &mut Step<'_, '_>) -> bool {
        let now = step.context.now;
        if let Some(until) = self.held.until.max(step.endpoint.deferred.due()) {
            let since = *self.held.since.get_or_insert(now);
            let until = until.min(since + step.context.decisions.longest_hold());
            if now < until {
                // Deferred writes may be performed earlier.
                self.held.until = Some(until);
                return true;
            }
            self.held = Hold::default();
        }
        step.endpoint.deferred.write_all();
        false
    }

    /// Returns when answers that are held back continue.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.held.until
    }

    /// Returns whether that time has come. Clears it.
    pub(crate) fn end_hold(&mut self, now: Instant) -> bool {
        self.held.until.take_if(|until| *until <= now).is_some()
    }

    /// Returns the PSN of an acknowledgement for `psn`: with that liberty, one acknowledgement covers all adjacent
    /// ones.
    fn acknowledged_at_once(&self, psn: u32, step: &Step<'_, '_>) -> u32 {
        if !step.context.decisions.has(LibertyKinds::ACKNOWLEDGEMENTS) {
            return psn;
        }
        let numbers = self.responses.iter().map_while(|response| match response {
            Response::Ack { psn, .. } => Some(*psn),
            _ => None,
        });
        numbers.fold(psn, |last, psn| if psn_distance(psn, last) > 0 { psn } else { last })
    }

    /// Returns the number of reads and atomics in flight, which `max_dest_rd_atomic` limits.
    pub(super) fn in_flight(&self) -> usize {
        self.responses.iter().filter(|response| response.is_counted()).count()
    }

    /// Acknowledges a packet of a reliable connection; its completion becomes visible after that.
    pub(super) fn taken(&mut self, header: &Header, completion: Option<Completion>, step: &mut Step<'_, '_>) {
        if step.endpoint.config.transport.is_reliable() {
            self.acknowledge_later(header, completion, step);
        } else if let Some((owner, entry)) = completion {
            step.complete_receive(owner, entry);
        }
    }

    fn acknowledge_later(
        &mut self,
        header: &Header,
        completion: Option<Completion>,
        step: &mut Step<'_, '_>,
    ) {
        self.unacknowledged += 1;
        if header.has(LAST) || self.unacknowledged >= ACK_EVERY {
            self.unacknowledged = 0;
            self.hold(LibertyKinds::ACKNOWLEDGEMENTS, step);
            let psn = header.psn.get();
            match self.responses.back_mut() {
                // One acknowledgement covers all packets before it.
                Some(Response::Ack { psn: last, completion: None }) if completion.is_none() => *last = psn,
                _ => self.responses.push_back(Response::Ack { psn, completion }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_results_are_kept() {
        let mut results = Results::default();
        let of = |value| Original { value, bytes: 8 };
        (0..20u32).for_each(|psn| results.remember(psn, of(u64::from(psn) + 100)));
        let found = (results.find(3), results.find(4), results.find(19));
        assert_eq!(found, (None, Some(of(104)), Some(of(119))));
        results.remember(5, of(7));
        assert_eq!(results.find(5), Some(of(7)), "the newest of that number");
    }
}
