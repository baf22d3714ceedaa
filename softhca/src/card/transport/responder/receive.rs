//! Messages that fill receives.

use super::state::{Failure, Responder, Response, Stop};
use crate::card::memory::copy::collect;
use crate::card::memory::ring::Entry;
use crate::card::queue::receive::{Home, Receive, Slot};
use crate::card::transport::endpoint::Step;
use crate::fabric::Part;
use crate::liberties::LibertyKinds;
use crate::packet::{FIRST, Header, IMMEDIATE, INVALIDATE, LAST, NakCode, Packet, SOLICITED};
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, PathFields, Syndrome};

/// Number of packets after which one is acknowledged although its message continues.
const ACK_EVERY: u32 = 16;

/// A receive names memory that cannot be written. A diagnostic tells which.
pub(super) struct NoAccess;

/// Copies the next part of a message into a receive.
pub(super) fn scatter(
    receive: &mut Receive,
    payload: &[Part],
    step: &mut Step<'_, '_>,
) -> Result<(), NoAccess> {
    if let Err(error) = step.context.scatter(
        &mut step.endpoint.parked,
        receive.slot.home.pdn,
        &receive.segments,
        receive.offset,
        payload,
    ) {
        let field = error.field("receive lkey");
        step.report(Some(receive.slot.index), field, error.to_string());
        return Err(NoAccess);
    }
    let length: usize = payload.iter().map(|part| part.1).sum();
    receive.offset = receive.offset.saturating_add(length as u32);
    Ok(())
}

/// A whole message of one packet that goes into the completion entry instead of the receive's memory.
pub(super) struct InEntry {
    data: Vec<u8>,
    /// Stride of the completion queue.
    stride: u32,
}

impl InEntry {
    fn of(packet: Packet<'_>, home: Home, step: &Step<'_, '_>) -> Option<Self> {
        let is_whole = packet.header.has(FIRST) && packet.header.has(LAST);
        if !step.endpoint.config.scatter.receives || !is_whole {
            return None;
        }
        let stride = step.context.stride_for(Some(home.cqn), packet.payload_len())?;
        // SAFETY: the parts are the packet's payload, readable while it is handled.
        Some(InEntry { data: unsafe { collect(packet.payload) }, stride })
    }
}

/// Returns the opcode of the completion of a send or a datagram.
pub(super) fn send_opcode(header: &Header) -> CqeOpcode {
    if header.has(IMMEDIATE) {
        CqeOpcode::RespSendImm
    } else if header.has(INVALIDATE) {
        CqeOpcode::RespSendInval
    } else {
        CqeOpcode::RespSend
    }
}

/// Returns the completion of receive `index`, of `length` bytes from queue pair `remote`.
pub(super) fn completion(
    opcode: CqeOpcode,
    index: u16,
    remote: u32,
    length: u32,
    header: &Header,
    step: &Step<'_, '_>,
) -> Cqe64 {
    Cqe64::responder(opcode, step.endpoint.qpn, remote, index, length, header.imm, header.has(SOLICITED))
}

/// Invalidates the key that a send names.
fn invalidate(slot: Slot, header: &Header, step: &mut Step<'_, '_>) -> Result<(), Stop> {
    let owner = (step.endpoint.pdn, step.endpoint.qpn);
    step.context.regions.invalidate(u32::from_be_bytes(header.imm), owner).map_err(|error| {
        step.report(Some(slot.index), "invalidate", error.to_string());
        Stop::Fatal(NakCode::RemoteOperation, Failure::Completion(slot, Syndrome::MwBind))
    })
}

impl Responder {
    /// Handles a packet of a send. Returns the number of PSNs that it covers.
    pub(super) fn take_send(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) -> Result<u32, Stop> {
        let header = packet.header;
        if header.has(FIRST) {
            step.endpoint.parked.write_ordered();
            let receive = self.take_receive(step)?.ok_or(Stop::Nak(NakCode::ReceiverNotReady))?;
            let room = receive.room();
            if u64::from(header.length.get()) > room {
                let message = format!("{} bytes come into a receive of {room}", header.length.get());
                step.report(Some(receive.slot.index), "receive length", message);
                let failure = Failure::Completion(receive.slot, Syndrome::LocalLength);
                return Err(Stop::Fatal(NakCode::InvalidRequest, failure));
            }
            self.queue.current = Some(receive);
        }
        let Some(mut receive) = self.queue.current.take() else {
            let message = "the message has no first packet".to_owned();
            step.report(None, "packet", message);
            return Err(Stop::invalid_request(step));
        };
        let slot = receive.slot;
        let data = InEntry::of(packet, slot.home, step);
        if data.is_none() && scatter(&mut receive, packet.payload, step).is_err() {
            let failure = Failure::Completion(slot, Syndrome::LocalProtection);
            return Err(Stop::Fatal(NakCode::RemoteOperation, failure));
        }
        if header.has(LAST) {
            if header.has(INVALIDATE) {
                invalidate(slot, header, step)?;
            }
            self.complete_receive(send_opcode(header), slot, header, data, step);
        } else {
            self.queue.current = Some(receive);
            self.taken(header, None, step);
        }
        Ok(1)
    }

    /// Completes a receive with the last packet of a message, with `data` inside the entry.
    pub(super) fn complete_receive(
        &mut self,
        opcode: CqeOpcode,
        slot: Slot,
        header: &Header,
        data: Option<InEntry>,
        step: &mut Step<'_, '_>,
    ) {
        let remote = step.endpoint.attributes.dest_qpn;
        let cqe = completion(opcode, slot.index, remote, header.length.get(), header, step);
        let port = step.context.port;
        let slid = port.source_lid(step.endpoint.node(port));
        let cqe = cqe.with_path(PathFields { slid, ..PathFields::default() });
        let entry = data.map_or(cqe.into(), |inside| Entry::with_data(cqe, &inside.data, inside.stride));
        self.taken(header, Some((slot.home, entry)), step);
    }

    /// Acknowledges a packet of a reliable connection; its completion becomes visible after that.
    pub(super) fn taken(
        &mut self,
        header: &Header,
        completion: Option<(Home, Entry)>,
        step: &mut Step<'_, '_>,
    ) {
        if step.endpoint.config.transport.is_reliable() {
            self.acknowledge_later(header, completion, step);
        } else if let Some((home, entry)) = completion {
            step.complete_receive(home, entry);
        }
    }

    fn acknowledge_later(
        &mut self,
        header: &Header,
        completion: Option<(Home, Entry)>,
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

    /// Ends a DC connection whose initiator is gone or is refused. A receive that its message had begun to fill
    /// completes with an error, so that the program gets it back.
    pub(crate) fn abandon(&mut self, step: &mut Step<'_, '_>) {
        self.release_completions(step);
        if let Some(receive) = self.queue.current.take() {
            step.receive_error(receive.slot, Syndrome::RemoteAborted);
        }
    }

    /// Completes all posted receives as flushed, in ERR. Returns whether there was one.
    pub(crate) fn flush(&mut self, step: &mut Step<'_, '_>) -> bool {
        let mut flushed = false;
        for slot in self.queue.take_all() {
            step.receive_error(slot, Syndrome::WrFlush);
            flushed = true;
        }
        flushed
    }
}
