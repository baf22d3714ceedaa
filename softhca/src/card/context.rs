//! What a queue pair needs of the card while it works.

use super::cq::{Cq, Fires};
use super::error::{Diagnostic, Diagnostics, Event};
use super::gather::Gather;
use super::held::Late;
use super::link::Port;
use super::region::Regions;
use crate::fabric::MAX_PAYLOAD;
use crate::faults::{Direction, Faults, PacketKind};
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode};
use gdsync_sys::prm::wqe::Opcode;
use std::collections::HashMap;
use std::time::{Duration, Instant};

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
    pub(super) faults: &'a Faults,
    /// Completion entries that faults hold back.
    pub(super) late: &'a mut Late,
}

impl Context<'_> {
    pub(super) fn report(&mut self, qpn: u32, index: Option<u16>, field: &'static str, message: String) {
        self.diagnostics.report(Diagnostic { qpn: Some(qpn), index, field, message });
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Writes a completion entry, now or, with faults, later. False where the queue has overrun.
    pub(super) fn complete(&mut self, cqn: u32, cqe: Cqe64) -> bool {
        let is_late = self.late.holds(cqn);
        let delay = if self.faults.is_on() { self.lateness(&cqe) } else { None };
        if !self.cqs.contains_key(&cqn) || delay.is_none() && !is_late {
            return self.write_completion(cqn, cqe);
        }
        self.late.push(cqn, self.now + delay.unwrap_or_default(), cqe);
        true
    }

    fn lateness(&self, cqe: &Cqe64) -> Option<Duration> {
        let opcode = cqe.opcode().ok()?;
        let direction = match opcode {
            CqeOpcode::Requester | CqeOpcode::RequesterError => Direction::Out,
            _ => Direction::In,
        };
        let kind = match opcode {
            CqeOpcode::Requester | CqeOpcode::RequesterError => requested(cqe.wqe_opcode()),
            CqeOpcode::RespWriteImm => Some(PacketKind::Write),
            CqeOpcode::ResponderError => None,
            _ => Some(PacketKind::Send),
        };
        self.faults.completes_late(direction, cqe.qpn(), kind)
    }

    /// Writes a completion entry. False where the queue has overrun.
    pub(super) fn write_completion(&mut self, cqn: u32, cqe: Cqe64) -> bool {
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

/// The kind of packets that a work request leads to, where it leads to any.
fn requested(wqe_opcode: u8) -> Option<PacketKind> {
    Some(match Opcode::try_from(wqe_opcode).ok()? {
        Opcode::Send | Opcode::SendImm | Opcode::SendInval => PacketKind::Send,
        Opcode::RdmaWrite | Opcode::RdmaWriteImm => PacketKind::Write,
        Opcode::RdmaRead => PacketKind::Read,
        Opcode::AtomicCs => PacketKind::CompareSwap,
        Opcode::AtomicFa => PacketKind::FetchAdd,
        _ => return None,
    })
}
