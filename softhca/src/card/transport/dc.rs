//! Targets of dynamically connected transport (DC): a responder for each initiator.
//!
//! A target serves requests with its access key. A refused request ends the connection of its initiator; the target
//! keeps serving the others, and that initiator after it has reconnected.

use super::endpoint::{Endpoint, Step};
use super::responder::Responder;
use crate::card::config::QpConfig;
use crate::card::context::Context;
use crate::card::memory::copy::MemoryFailure;
use crate::fabric::Node;
use crate::packet::{Header, Packet};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use zerocopy::byteorder::big_endian::U64;

/// An initiator: its node and QPN.
type Address = (Node, u32);

/// The state that a target keeps for an initiator.
#[derive(Debug)]
struct Initiator {
    responder: Responder,
    connection: u64,
    /// True after a refused request: the rest of this connection is dropped.
    refused: bool,
}

#[derive(Debug, Default)]
pub(super) struct Initiators {
    known: BTreeMap<Address, Initiator>,
    /// Initiators with pending answers.
    waiting: BTreeSet<Address>,
    /// Initiators with pending answers whose cards had no room in this turn of the target.
    blocked: BTreeSet<Address>,
    /// Initiators whose answers are held back for a while.
    held: BTreeSet<Address>,
    /// The initiator that was answered last: others come first.
    last: Option<Address>,
}

impl Initiators {
    pub(super) fn owe_answers(&self) -> bool {
        !(self.waiting.is_empty() && self.blocked.is_empty())
    }

    pub(super) fn request(&mut self, endpoint: &mut Endpoint, packet: Packet<'_>, context: &mut Context<'_>) {
        let header = packet.header;
        let (address, connection) = ((packet.source, header.source_qpn.get()), header.connection.get());
        let config = endpoint.config;
        let initiator = self.known.entry(address).or_insert_with(|| Initiator::new(&config, connection));
        if connection < initiator.connection {
            tracing::debug!(qpn = endpoint.qpn, initiator = address.1, "a packet of a former connection");
            return;
        }
        endpoint.set_peer(address.0, address.1, connection);
        let step = &mut Step { endpoint, context };
        if initiator.connection != connection {
            initiator.responder.abandon(step);
            initiator.responder.restart(0);
            (initiator.connection, initiator.refused) = (connection, false);
        }
        if initiator.refused {
            return;
        }
        if header.dc_key.get() == config.dc_key {
            initiator.responder.request(packet, step);
        } else {
            let message = format!("{:#x} is not the target's: queue pair {:#x}", header.dc_key, address.1);
            step.report(None, "DC access key", message);
            initiator.responder.answers.refuse_key(header.psn.get(), step);
        }
        initiator.end_if_failed(step);
        self.waiting.insert(address);
    }

    /// Returns the next answer. Its payload is in the context.
    pub(super) fn next_response(
        &mut self,
        endpoint: &mut Endpoint,
        context: &mut Context<'_>,
    ) -> Option<Header> {
        loop {
            let after = self.last.map(|(node, qpn)| (node, qpn.wrapping_add(1))).unwrap_or_default();
            let address = *self.waiting.range(after..).next().or_else(|| self.waiting.first())?;
            let header = self.with(address, endpoint, context, |initiator, step| {
                let header = initiator.responder.answers.next_response(step)?;
                Some(Header { connection: U64::new(initiator.connection), ..header })
            });
            match header.flatten() {
                Some(header) => {
                    self.last = Some(address);
                    return Some(header);
                }
                None => {
                    self.waiting.remove(&address);
                    if self.held_until(address).is_some() {
                        self.held.insert(address);
                    }
                }
            }
        }
    }

    fn held_until(&self, address: Address) -> Option<Instant> {
        self.known.get(&address)?.responder.answers.next_wake()
    }

    /// Returns when answers that are held back continue.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.held.iter().filter_map(|address| self.held_until(*address)).min()
    }

    /// Releases the answers whose time has come. Returns whether there were any.
    pub(super) fn end_hold(&mut self, now: Instant) -> bool {
        let Initiators { known, waiting, held, .. } = self;
        let before = held.len();
        held.retain(|address| {
            let Some(initiator) = known.get_mut(address) else { return false };
            if initiator.responder.answers.end_hold(now) {
                waiting.insert(*address);
            }
            initiator.responder.answers.next_wake().is_some()
        });
        held.len() < before
    }

    /// Passes over an initiator, whose card has no room for its answer, until [`Self::end_blocked`].
    pub(super) fn pass_over(&mut self, to: Node, header: &Header) {
        let address = (to, header.dest_qpn.get());
        self.waiting.remove(&address);
        self.blocked.insert(address);
    }

    /// Returns whether there are initiators that were passed over. Their answers may be next.
    pub(super) fn end_blocked(&mut self) -> bool {
        let is_blocked = !self.blocked.is_empty();
        self.waiting.append(&mut self.blocked);
        is_blocked
    }

    /// Returns the number of initiators with pending answers.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Handles the departure of an answer.
    pub(super) fn response_sent(
        &mut self,
        to: Node,
        header: &Header,
        endpoint: &mut Endpoint,
        context: &mut Context<'_>,
    ) {
        self.with((to, header.dest_qpn.get()), endpoint, context, |initiator, step| {
            initiator.responder.answers.response_sent(header, step);
        });
    }

    /// Refuses a read whose payload cannot be read from peer memory.
    pub(super) fn refuse_read(
        &mut self,
        to: Node,
        header: &Header,
        failure: &MemoryFailure,
        endpoint: &mut Endpoint,
        context: &mut Context<'_>,
    ) {
        self.with((to, header.dest_qpn.get()), endpoint, context, |initiator, step| {
            initiator.responder.answers.refuse_read(header.psn.get(), failure, step);
            initiator.end_if_failed(step);
        });
    }

    fn with<R>(
        &mut self,
        address: Address,
        endpoint: &mut Endpoint,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut Initiator, &mut Step<'_, '_>) -> R,
    ) -> Option<R> {
        let initiator = self.known.get_mut(&address)?;
        endpoint.set_peer(address.0, address.1, initiator.connection);
        Some(work(initiator, &mut Step { endpoint, context }))
    }
}

impl Initiator {
    fn new(config: &QpConfig, connection: u64) -> Self {
        // SAFETY: the caller of `Qp::new` keeps the addresses of the configuration valid as long as the queue pair,
        // which owns this; a target has no ring of receives.
        let responder = unsafe { Responder::new(config) };
        Initiator { responder, connection, refused: false }
    }

    /// Ends the connection if a request on it was refused.
    fn end_if_failed(&mut self, step: &mut Step<'_, '_>) {
        if step.endpoint.take_failure() {
            self.refused = true;
            self.responder.abandon(step);
        }
    }
}
