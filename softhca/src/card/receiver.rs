//! The responder half of a queue pair: taking requests, receives and responses.

use super::atomics::Results;
use super::config::{Access, Transport};
use super::context::Context;
use super::dma::{self, Part, Place};
use super::error::Event;
use super::fetch::packets_of;
use super::packet::{FIRST, Header, IMMEDIATE, Kind, LAST, NakCode, PSN_MASK, SOLICITED, psn_distance};
use super::qp::{Qp, QpState};
use super::responses::Response;
use super::sender::{PEER_MEMORY, VENDOR_SYNDROME, each_piece};
use crate::faults::Refused;
use gdsync_sys::barrier;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, Syndrome};
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::DataSeg;
use std::collections::VecDeque;

/// Packets after which one is acknowledged although its message goes on.
const ACK_EVERY: u32 = 16;

/// A receive that a message is filling.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) index: u16,
    segments: Vec<DataSeg>,
    pub(super) offset: u32,
}

impl Receive {
    /// Bytes that it holds.
    pub(super) fn room(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.byte_count())).sum()
    }
}

/// The state of the responder.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The packet that is expected next.
    pub(super) expected_psn: u32,
    nak_sent: bool,
    unacknowledged: u32,
    /// Next receive to use, counted for ever.
    next: u32,
    announced: u32,
    pub(super) current: Option<Receive>,
    pub(super) responses: VecDeque<Response>,
    pub(super) results: Results,
    /// The rest of an unreliable connection's message is dropped.
    pub(super) dropping: bool,
}

impl Receiver {
    pub(super) fn start(psn: u32) -> Self {
        Receiver { expected_psn: psn, ..Receiver::default() }
    }
}

/// A receive names memory that cannot be written to; which, is reported.
pub(super) struct NoAccess;

/// How handling a request ends when it does not go on.
pub(super) enum Stop {
    /// Refused; the queue pair goes on.
    Nak(NakCode),
    /// Refused, and the queue pair fails: with a completion of the receive in use, or an event.
    Fatal(NakCode, Failure),
}

pub(super) enum Failure {
    Completion(u16, Syndrome),
    Event(Event),
}

impl Qp {
    fn has_receive(&mut self) -> bool {
        self.look_at_receives();
        self.receiver.current.is_some() || self.receiver.next != self.receiver.announced
    }

    /// Takes the next posted receive; on an unreliable connection first that of a message which broke off.
    pub(super) fn take_receive(&mut self) -> Option<Receive> {
        if !self.has_receive() {
            return None;
        }
        if let Some(receive) = self.receiver.current.take() {
            return Some(Receive { offset: 0, ..receive });
        }
        let index = self.receiver.next;
        self.receiver.next = index.wrapping_add(1);
        let mut bytes = Vec::with_capacity(64);
        self.recv_ring.read(index, &mut bytes);
        Some(Receive { index: index as u16, segments: recv::segments(&bytes).collect(), offset: 0 })
    }

    fn look_at_receives(&mut self) {
        if self.recv_ring.entries() == 0 {
            return;
        }
        let record = doorbell::record_value(self.recv_record.load());
        let new = record.wrapping_sub(self.receiver.announced as u16);
        self.receiver.announced = self.receiver.announced.wrapping_add(new.into());
        if new != 0 {
            // Record and ring may lie in a GPU's memory, whose loads the CPU is free to perform early.
            barrier::from_device();
        }
    }

    /// A request of the remote side.
    pub(super) fn request(
        &mut self,
        kind: Kind,
        header: &Header,
        payload: &[Part],
        context: &mut Context<'_>,
    ) {
        let psn = header.psn.get();
        let ahead = psn_distance(psn, self.receiver.expected_psn);
        if ahead > 0 {
            if !self.receiver.nak_sent {
                self.receiver.nak_sent = true;
                let psn = self.receiver.expected_psn;
                self.receiver.responses.push_back(Response::Nak { psn, code: NakCode::Sequence });
            }
            return;
        }
        if ahead < 0 {
            return self.duplicate(kind, header);
        }
        self.receiver.nak_sent = false;
        let result = match (context.faults.refuse(self.qpn, kind), kind) {
            (Some(refused), _) => Err(self.injected(refused)),
            (None, Kind::Send) => self.take_send(header, payload, context),
            (None, Kind::Write) => self.take_write(header, payload, context),
            (None, Kind::CompareSwap | Kind::FetchAdd) => self.take_atomic(kind, header, context),
            (None, _) => self.take_read(header, context),
        };
        match result {
            Ok(packets) => {
                self.receiver.expected_psn = psn.wrapping_add(packets) & PSN_MASK;
            }
            Err(Stop::Nak(code)) => {
                // What comes behind this packet is dropped in silence until it comes again.
                self.receiver.nak_sent = true;
                self.receiver.responses.push_back(Response::Nak { psn, code });
            }
            Err(Stop::Fatal(code, failure)) => {
                self.release_completions(context);
                self.receiver.responses.push_back(Response::Nak { psn, code });
                match failure {
                    Failure::Event(event) => context.emit(event),
                    Failure::Completion(index, syndrome) => self.receive_error(index, syndrome, context),
                }
                // A receive that a message has begun to fill is flushed with the others, unless it has just failed itself.
                self.go_to_error(context);
            }
        }
    }

    /// A refusal that faults ask for.
    fn injected(&self, refused: Refused) -> Stop {
        let qpn = self.qpn;
        let (code, event) = match refused {
            Refused::NotReady => return Stop::Nak(NakCode::ReceiverNotReady),
            Refused::With(Syndrome::RemoteAccess) => return self.no_access(),
            Refused::With(Syndrome::RemoteInvalidRequest) => {
                (NakCode::InvalidRequest, Event::QpRequestError { qpn })
            }
            Refused::With(_) => (NakCode::RemoteOperation, Event::QpFatal { qpn }),
        };
        Stop::Fatal(code, Failure::Event(event))
    }

    pub(super) fn take_send(
        &mut self,
        header: &Header,
        payload: &[Part],
        context: &mut Context<'_>,
    ) -> Result<u32, Stop> {
        if header.has(FIRST) {
            let receive = self.take_receive().ok_or(Stop::Nak(NakCode::ReceiverNotReady))?;
            let room = receive.room();
            if u64::from(header.length.get()) > room {
                let message = format!("{} bytes come into a receive of {room}", header.length.get());
                context.report(self.qpn, Some(receive.index), "receive length", message);
                let failure = Failure::Completion(receive.index, Syndrome::LocalLength);
                return Err(Stop::Fatal(NakCode::InvalidRequest, failure));
            }
            self.receiver.current = Some(receive);
        }
        let Some(mut receive) = self.receiver.current.take() else {
            context.report(self.qpn, None, "packet", "a message goes on that has not begun".to_owned());
            return Err(Stop::Fatal(
                NakCode::InvalidRequest,
                Failure::Event(Event::QpRequestError { qpn: self.qpn }),
            ));
        };
        let index = receive.index;
        if self.scatter(&mut receive, payload, context).is_err() {
            let failure = Failure::Completion(index, Syndrome::LocalProtection);
            return Err(Stop::Fatal(NakCode::RemoteOperation, failure));
        }
        let mut completion = None;
        if header.has(LAST) {
            let opcode = if header.has(IMMEDIATE) { CqeOpcode::RespSendImm } else { CqeOpcode::RespSend };
            completion = Some(self.receive_completion(opcode, index, header));
        } else {
            self.receiver.current = Some(receive);
        }
        self.taken(header, completion, context);
        Ok(1)
    }

    /// Copies what comes next into a receive.
    pub(super) fn scatter(
        &self,
        receive: &mut Receive,
        payload: &[Part],
        context: &mut Context<'_>,
    ) -> Result<(), NoAccess> {
        let length: usize = payload.iter().map(|part| part.1).sum();
        let mut places = Vec::new();
        let (pdn, regions) = (self.pdn, context.regions);
        let scattered =
            each_piece(&receive.segments, receive.offset, length as u32, |segment, addr, count| {
                let place = regions.resolve(segment.lkey(), pdn, addr, count, Access::LOCAL_WRITE)?;
                places.push((place, count as usize));
                Ok::<(), super::region::Refusal>(())
            });
        if let Err(refusal) = scattered {
            context.report(self.qpn, Some(receive.index), "receive lkey", refusal.to_string());
            return Err(NoAccess);
        }
        // SAFETY: the parts are the sender's payload, readable while this packet is handled; the places were resolved just
        // now to registered memory with local write access, and regions do not go while the engine is locked. Only `copy`
        // itself uses the bounce buffer.
        let copied = unsafe { dma::copy(payload, &places, context.bounce) };
        if let Err(failure) = copied {
            context.report(self.qpn, Some(receive.index), PEER_MEMORY, failure.to_string());
            return Err(NoAccess);
        }
        receive.offset = receive.offset.saturating_add(length as u32);
        Ok(())
    }

    pub(super) fn take_write(
        &mut self,
        header: &Header,
        payload: &[Part],
        context: &mut Context<'_>,
    ) -> Result<u32, Stop> {
        let length: u64 = payload.iter().map(|part| part.1 as u64).sum();
        let total = if header.has(FIRST) { header.length.get().into() } else { length };
        let place = self.remote_access(header, total.max(length), Access::REMOTE_WRITE, context)?;
        let completes = header.has(LAST) && header.has(IMMEDIATE);
        if completes && !self.has_receive() {
            return Err(Stop::Nak(NakCode::ReceiverNotReady));
        }
        if let Some(place) = place {
            // SAFETY: as in `take_send`; the place has remote write access.
            let copied = unsafe { dma::copy(payload, &[(place, length as usize)], context.bounce) };
            if let Err(failure) = copied {
                context.report(self.qpn, None, PEER_MEMORY, failure.to_string());
                return Err(self.no_access());
            }
        }
        let mut completion = None;
        if completes {
            let receive = self.take_receive().ok_or(Stop::Nak(NakCode::ReceiverNotReady))?;
            completion = Some(self.receive_completion(CqeOpcode::RespWriteImm, receive.index, header));
        }
        self.taken(header, completion, context);
        Ok(1)
    }

    fn take_read(&mut self, header: &Header, context: &mut Context<'_>) -> Result<u32, Stop> {
        self.check_responses_in_flight(context)?;
        self.remote_access(header, header.length.get().into(), Access::REMOTE_READ, context)?;
        self.push_read(header, false);
        Ok(packets_of(header.length.get()))
    }

    /// The memory that a remote request names, if queue pair and key allow the access. An empty request names none.
    pub(super) fn remote_access<'a>(
        &self,
        header: &Header,
        length: u64,
        wanted: Access,
        context: &mut Context<'a>,
    ) -> Result<Option<Place<'a>>, Stop> {
        if !self.attributes.access.contains(wanted) {
            let message = format!("the queue pair allows {:?}, not {wanted:?}", self.attributes.access);
            context.report(self.qpn, None, "qp_access_flags", message);
            return Err(self.no_access());
        }
        if length == 0 {
            return Ok(None);
        }
        let (addr, rkey, regions) = (header.addr.get(), header.rkey.get(), context.regions);
        regions.resolve(rkey, self.pdn, addr, length, wanted).map(Some).map_err(|refusal| {
            context.report(self.qpn, None, "rkey", refusal.to_string());
            self.no_access()
        })
    }

    /// A remote request does not get at the memory that it names.
    pub(super) fn no_access(&self) -> Stop {
        Stop::Fatal(NakCode::RemoteAccess, Failure::Event(Event::QpAccessError { qpn: self.qpn }))
    }

    fn receive_completion(&self, opcode: CqeOpcode, index: u16, header: &Header) -> Cqe64 {
        let (remote, length) = (self.attributes.dest_qpn, header.length.get());
        Cqe64::responder(opcode, self.qpn, remote, index, length, header.imm, header.has(SOLICITED))
    }

    /// A packet was taken: on a reliable connection it is acknowledged, and what it completes waits for that.
    fn taken(&mut self, header: &Header, completion: Option<Cqe64>, context: &mut Context<'_>) {
        if self.transport == Transport::Rc {
            self.acknowledge_later(header, completion);
        } else if let Some(cqe) = completion {
            self.complete(self.recv_cq, cqe, context);
        }
    }

    fn acknowledge_later(&mut self, header: &Header, completion: Option<Cqe64>) {
        self.receiver.unacknowledged += 1;
        if header.has(LAST) || self.receiver.unacknowledged >= ACK_EVERY {
            self.receiver.unacknowledged = 0;
            let psn = header.psn.get();
            match self.receiver.responses.back_mut() {
                // One acknowledgement covers all before it.
                Some(Response::Ack { psn: last, completion: None }) if completion.is_none() => *last = psn,
                _ => self.receiver.responses.push_back(Response::Ack { psn, completion }),
            }
        }
    }

    pub(super) fn receive_error(&mut self, index: u16, syndrome: Syndrome, context: &mut Context<'_>) {
        let cqe = Cqe64::error(CqeOpcode::ResponderError, 0, self.qpn, index, syndrome, VENDOR_SYNDROME);
        self.complete(self.recv_cq, cqe, context);
    }

    /// In the error state: every receive that is posted completes as flushed. Returns whether there was one.
    pub(super) fn flush_receives(&mut self, context: &mut Context<'_>) -> bool {
        let mut flushed = false;
        if let Some(receive) = self.receiver.current.take() {
            self.receive_error(receive.index, Syndrome::WrFlush, context);
            flushed = true;
        }
        self.look_at_receives();
        // What a broken record announces beyond the ring does not exist.
        let posted = self.receiver.announced.wrapping_sub(self.receiver.next).min(self.recv_ring.entries());
        for _ in 0..posted {
            let index = self.receiver.next as u16;
            self.receiver.next = self.receiver.next.wrapping_add(1);
            self.receive_error(index, Syndrome::WrFlush, context);
            flushed = true;
        }
        self.receiver.next = self.receiver.announced;
        flushed
    }

    /// Whether a packet may be taken at all in this state.
    pub(super) fn listens(&self) -> bool {
        matches!(self.attributes.state, QpState::Rtr | QpState::Rts)
    }
}
