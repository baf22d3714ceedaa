//! What the responder half of a reliable connection sends back.

use super::config::Access;
use super::context::{Context, MTU};
use super::error::Event;
use super::fetch::packets_of;
use super::packet::{Header, Kind, NakCode, PSN_MASK};
use super::qp::Qp;
use super::sender::PEER_MEMORY;
use crate::peer_memory::PeerFailure;
use gdsync_sys::prm::cqe::Cqe64;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Responses that may wait for room in the fabric; more are not needed for requests that come for the first time.
const MAX_RESPONSES: usize = 256;

/// Something to send back.
#[derive(Debug)]
pub(super) enum Response {
    /// Everything up to this packet has arrived. The completion of a receive becomes visible when this is on its way: a
    /// peer that ends on that completion must not leave the sender without its acknowledgement.
    Ack {
        psn: u32,
        completion: Option<Cqe64>,
    },
    Nak {
        psn: u32,
        code: NakCode,
    },
    /// Data of an RDMA read, of which `sent` packets are on their way.
    Read {
        psn: u32,
        addr: u64,
        rkey: u32,
        length: u32,
        sent: u32,
        /// It was asked for before.
        again: bool,
    },
    /// The original value that an atomic operation has found.
    Atomic {
        psn: u32,
        original: u64,
        /// As of a read.
        again: bool,
    },
}

impl Response {
    /// Of a read or an atomic that came for the first time: there may be only so many at once. Those that come again do not
    /// count: a requester that lost its patience has the same number in flight as before.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Response::Read { again: false, .. } | Response::Atomic { again: false, .. })
    }
}

impl Qp {
    /// A request that arrived before: acknowledged again, or, a read or an atomic, answered again.
    pub(super) fn duplicate(&mut self, kind: Kind, header: &Header) {
        if self.receiver.responses.len() >= MAX_RESPONSES {
            // A peer that asks faster than it listens asks again later.
            return;
        }
        match kind {
            // The rights may have changed since.
            Kind::ReadRequest if self.attributes.access.contains(Access::REMOTE_READ) => {
                self.push_read(header, true)
            }
            Kind::ReadRequest => {}
            Kind::CompareSwap | Kind::FetchAdd => {
                let psn = header.psn.get();
                match self.receiver.results.find(psn) {
                    Some(original) => {
                        self.receiver.responses.push_back(Response::Atomic { psn, original, again: true })
                    }
                    None => tracing::debug!(qpn = self.qpn, psn, "an atomic of long ago comes again"),
                }
            }
            _ => {
                let psn = self.receiver.expected_psn.wrapping_sub(1) & PSN_MASK;
                self.receiver.responses.push_back(Response::Ack { psn, completion: None });
            }
        }
    }

    pub(super) fn push_read(&mut self, header: &Header, again: bool) {
        self.receiver.responses.push_back(Response::Read {
            psn: header.psn.get(),
            addr: header.addr.get(),
            rkey: header.rkey.get(),
            length: header.length.get(),
            sent: 0,
            again,
        });
    }

    /// The payload of the response that [`Self::next_response`] made, packet `psn` of a read, cannot be had.
    pub(super) fn refuse_read(&mut self, psn: u32, failure: &PeerFailure, context: &mut Context<'_>) {
        context.report(self.qpn, None, PEER_MEMORY, failure.to_string());
        self.release_completions(context);
        // It ends the conversation: whatever would come behind it is not heard.
        self.receiver.responses.clear();
        self.receiver.responses.push_back(Response::Nak { psn, code: NakCode::RemoteAccess });
        context.emit(Event::QpAccessError { qpn: self.qpn });
        self.go_to_error(context);
    }

    /// The next response packet, if there is one. Its payload's places go to `context.payload`.
    pub(super) fn next_response(&mut self, context: &mut Context<'_>) -> Option<Header> {
        let dest = self.attributes.dest_qpn;
        match self.receiver.responses.front()? {
            Response::Ack { psn, .. } => Some(Header::new(Kind::Ack, self.qpn, dest, *psn)),
            Response::Nak { psn, code } => {
                let mut header = Header::new(Kind::Nak, self.qpn, dest, *psn);
                header.nak = *code as u8;
                header.timer_or_level = self.attributes.min_rnr_timer;
                Some(header)
            }
            Response::Atomic { psn, original, .. } => {
                let mut header = Header::new(Kind::AtomicResponse, self.qpn, dest, *psn);
                header.operands[0] = U64::new(*original);
                Some(header)
            }
            Response::Read { psn, addr, rkey, length, sent, .. } => {
                let offset = sent * MTU;
                let count = (length - offset).min(MTU);
                let psn = psn.wrapping_add(*sent);
                if count > 0 {
                    let (addr, count) = (addr.wrapping_add(offset.into()), u64::from(count));
                    match context.regions.resolve(*rkey, self.pdn, addr, count, Access::REMOTE_READ) {
                        Ok(place) => context.payload.push(place, count as usize),
                        // The region went while the read was under way.
                        Err(refusal) => {
                            context.report(self.qpn, None, "rkey", refusal.to_string());
                            let mut header = Header::new(Kind::Nak, self.qpn, dest, psn);
                            header.nak = NakCode::RemoteAccess as u8;
                            return Some(header);
                        }
                    }
                }
                let mut header = Header::new(Kind::ReadResponse, self.qpn, dest, psn);
                header.length = U32::new(*length);
                Some(header)
            }
        }
    }

    /// The packet that [`Self::next_response`] made is on its way (or its receiver is gone).
    pub(super) fn response_sent(&mut self, header: &Header, context: &mut Context<'_>) {
        let refused = header.kind == Kind::Nak as u8;
        match self.receiver.responses.front_mut() {
            Some(Response::Read { length, sent, .. }) if !refused && *sent + 1 < packets_of(*length) => {
                *sent += 1
            }
            Some(Response::Ack { completion, .. }) => {
                let completion = completion.take();
                self.receiver.responses.pop_front();
                if let Some(cqe) = completion {
                    self.complete(self.recv_cq, cqe, context);
                }
            }
            _ => drop(self.receiver.responses.pop_front()),
        }
    }

    /// Makes completions visible that wait for their acknowledgement to leave.
    pub(super) fn release_completions(&mut self, context: &mut Context<'_>) {
        let waiting = self.receiver.responses.iter_mut().filter_map(|response| match response {
            Response::Ack { completion, .. } => completion.take(),
            _ => None,
        });
        let waiting: Vec<Cqe64> = waiting.collect();
        for cqe in waiting {
            self.complete(self.recv_cq, cqe, context);
        }
    }
}
