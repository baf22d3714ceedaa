//! Work requests that the card has fetched.

use crate::card::queue::wqe::Work;
use crate::packet::psn_distance;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::Opcode;

/// A work request that the card has fetched.
#[derive(Debug)]
pub(super) struct Request {
    /// Index of its first basic block, not reduced modulo the ring's size.
    pub(super) first: u32,
    pub(super) blocks: u32,
    pub(super) opcode_byte: u8,
    pub(super) signaled: bool,
    pub(super) fenced: bool,
    pub(super) solicited: bool,
    pub(super) imm: [u8; 4],
    pub(super) work: Result<Work, Syndrome>,
    pub(super) first_psn: u32,
    pub(super) packets: u32,
    /// Packets of this round: fewer again where some are to be sent again.
    pub(super) sent: u32,
    /// Packets that have left, in whichever round: the peer may acknowledge them.
    pub(super) left: u32,
    /// Packets acknowledged, or responses received.
    pub(super) acked: u32,
    pub(super) done: bool,
    /// The result, if it goes into the completion entry in place of the memory that the request names, and the
    /// bytes between two entries of the completion queue.
    pub(super) result: Option<(Vec<u8>, u32)>,
}

impl Request {
    /// Whether it is a read or an atomic: its result completes it, not an acknowledgement.
    pub(super) fn awaits_result(&self) -> bool {
        matches!(&self.work, Ok(work) if work.opcode == Opcode::RdmaRead || work.operands.is_some())
    }

    pub(super) fn contains(&self, psn: u32) -> bool {
        let distance = psn_distance(psn, self.first_psn);
        distance >= 0 && (distance as u32) < self.packets
    }

    pub(super) fn length(&self) -> u32 {
        self.work.as_ref().map_or(0, |work| work.length)
    }

    /// Index of the block after its last one.
    pub(super) fn end(&self) -> u32 {
        self.first.wrapping_add(self.blocks)
    }
}
