//! A queue pair: its memory, its attributes, and the two halves that work for it.

pub(super) use super::config::QpState;
use super::config::{QpAttributes, QpConfig, Transport};
use super::context::Context;
use super::dma::{self, ReadRing, Record};
use super::error::Event;
use super::link::Port;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::fabric::Node;
use gdsync_sys::prm::cqe::Cqe64;
use gdsync_sys::prm::doorbell::{self, Doorbell};

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) qpn: u32,
    pub(super) transport: Transport,
    pub(super) pdn: u32,
    pub(super) uar: u32,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) signal_all: bool,
    user_index: u32,
    pub(super) send_ring: ReadRing,
    pub(super) recv_ring: ReadRing,
    pub(super) send_record: Record,
    pub(super) recv_record: Record,
    pub(super) attributes: QpAttributes,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// It is on the list of those with work.
    pub(super) scheduled: bool,
    /// When it is on the list of those with a timer.
    pub(super) timer: Option<std::time::Instant>,
    /// The first packet has come.
    pub(super) established: bool,
    /// A completion found no place: the queue pair is useless.
    overrun: bool,
}

impl Qp {
    /// # Safety
    /// The addresses of `config` stay valid until the queue pair is destroyed.
    pub(super) unsafe fn new(qpn: u32, config: &QpConfig) -> Self {
        // SAFETY: the caller's; counts are powers of two, checked by the card.
        unsafe {
            Qp {
                qpn,
                transport: config.transport,
                pdn: config.pdn,
                uar: config.uar,
                send_cq: config.send_cq,
                recv_cq: config.recv_cq,
                signal_all: config.signal_all,
                user_index: config.user_index.unwrap_or(0),
                send_ring: dma::send_ring(config.sq, config.sq_blocks),
                recv_ring: ReadRing::new(config.rq, config.rq_entries, config.rq_stride as usize),
                send_record: Record::new(config.dbrec.add(doorbell::DBR_SEND)),
                recv_record: Record::new(config.dbrec.add(doorbell::DBR_RECV)),
                attributes: QpAttributes::default(),
                sender: Sender::default(),
                receiver: Receiver::default(),
                scheduled: false,
                timer: None,
                established: false,
                overrun: false,
            }
        }
    }

    /// Back to the beginning. The rings are empty: the front zeroes the doorbell records.
    pub(super) fn reset(&mut self) {
        self.attributes = QpAttributes::default();
        self.sender = Sender::default();
        self.receiver = Receiver::default();
        self.overrun = false;
        self.established = false;
    }

    /// Where its packets go.
    pub(super) fn node(&self, port: Port) -> Node {
        let address = &self.attributes.address;
        address.gid.map_or(address.dlid.into(), |gid| port.node_of(&gid))
    }

    /// The doorbell is the start of the last WQE's control segment, so the record must be past it.
    pub(super) fn check_doorbell(&self, bell: Doorbell, context: &mut Context<'_>) {
        let record = doorbell::record_value(self.send_record.load());
        let ahead = record.wrapping_sub(bell.index());
        if ahead == 0 || u32::from(ahead) > self.send_ring.entries() {
            let message = format!("WQE {} is rung, but the record says {record}: it is behind", bell.index());
            context.report(self.qpn, Some(bell.index()), "send doorbell record", message);
        }
    }

    pub(super) fn complete(&mut self, cqn: u32, cqe: Cqe64, context: &mut Context<'_>) {
        if !context.complete(cqn, cqe.with_user_index(self.user_index)) {
            self.completion_lost(context);
        }
    }

    /// A completion queue had no place for an entry.
    pub(super) fn completion_lost(&mut self, context: &mut Context<'_>) {
        if !self.overrun {
            self.overrun = true;
            context.emit(Event::QpFatal { qpn: self.qpn });
            // Nothing can be reported any more; what is left is dropped.
            self.attributes.state = QpState::Err;
        }
    }

    /// Receives that were posted after the queue pair failed. Returns whether there were any.
    pub(super) fn flush_receives_of_failed(&mut self, context: &mut Context<'_>) -> bool {
        self.attributes.state == QpState::Err && self.flush_receives(context)
    }

    /// Fails the queue pair: everything outstanding completes as flushed.
    pub(super) fn go_to_error(&mut self, context: &mut Context<'_>) {
        self.attributes.state = QpState::Err;
        self.release_completions(context);
        self.flush_sends(context);
        self.flush_receives(context);
    }

    /// A doorbell of its UAR rang: looks how far the send queue is filled.
    pub(super) fn ring(&mut self, context: &mut Context<'_>) {
        let record = doorbell::record_value(self.send_record.load());
        match self.attributes.state {
            QpState::Rts => {
                self.announce(record);
                if self.send_backlog() > self.send_ring.entries() {
                    let backlog = self.send_backlog();
                    let message =
                        format!("{backlog} blocks are outstanding in a ring of {}", self.send_ring.entries());
                    context.report(self.qpn, None, "send doorbell record", message);
                    context.emit(Event::QpFatal { qpn: self.qpn });
                    self.limit_backlog();
                    self.go_to_error(context);
                }
            }
            QpState::Err => {
                self.announce(record);
                if self.send_backlog() > self.send_ring.entries() {
                    self.limit_backlog();
                }
                self.flush_sends(context);
            }
            state => {
                if self.sender.announced as u16 != record {
                    let message = format!("rung in state {state:?}: nothing is sent before RTS");
                    context.report(self.qpn, None, "doorbell", message);
                }
            }
        }
    }

    /// What a broken record announces beyond the ring does not exist.
    fn limit_backlog(&mut self) {
        let excess = self.send_backlog() - self.send_ring.entries();
        self.sender.announced = self.sender.announced.wrapping_sub(excess);
    }
}
