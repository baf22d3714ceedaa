//! What a queue pair needs of the card while it works.

use super::cq::{Cq, Fires};
use super::error::{Diagnostic, Diagnostics, Event};
use super::gather::Gather;
use super::link::Port;
use super::region::Regions;
use crate::fabric::MAX_PAYLOAD;
use gdsync_sys::prm::cqe::Cqe64;
use std::collections::HashMap;
use std::time::Instant;

/// Bytes of a packet's payload. A software card's packets are larger than any path MTU; nobody sees them.
pub(super) const MTU: u32 = MAX_PAYLOAD as u32;

/// The rest of the card, borrowed for one step.
pub(super) struct Context<'a> {
    pub(super) now: Instant,
    pub(super) port: Port,
    pub(super) regions: &'a Regions,
    pub(super) cqs: &'a mut HashMap<u32, Cq>,
    pub(super) events: &'a mut Vec<Event>,
    pub(super) diagnostics: &'a mut Diagnostics,
    /// Payload of the packet being made.
    pub(super) payload: &'a mut Gather,
    /// Where payload is collected on its way to peer memory.
    pub(super) bounce: &'a mut Vec<u8>,
}

impl Context<'_> {
    pub(super) fn report(&mut self, qpn: u32, index: Option<u16>, field: &'static str, message: String) {
        self.diagnostics.report(Diagnostic { qpn: Some(qpn), index, field, message });
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Writes a completion entry. False where the queue has overrun.
    pub(super) fn complete(&mut self, cqn: u32, cqe: Cqe64) -> bool {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return false };
        match cq.write(cqe) {
            Ok(Fires(fires)) => {
                if fires {
                    self.emit(Event::Completion { cqn });
                }
                true
            }
            Err(overrun) => {
                if overrun.first {
                    self.report(
                        cqe.qpn(),
                        None,
                        "completion queue",
                        format!("{cqn:#x} overran: {cqe} has no place"),
                    );
                    self.emit(Event::CqError { cqn });
                }
                false
            }
        }
    }
}
