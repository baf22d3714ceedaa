//! Fetching work requests from a send queue.

use super::context::{Context, MTU};
use super::packet::{PSN_MASK, psn_distance};
use super::qp::Qp;
use super::ud;
use super::wqe::{self, Work};
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode, SEGMENT};
use zerocopy::FromBytes;

/// A work request that the card has fetched.
#[derive(Debug)]
pub(super) struct Request {
    /// Its first basic block, counted for ever.
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
    pub(super) sent: u32,
    /// Packets acknowledged, or responses received.
    pub(super) acked: u32,
    pub(super) done: bool,
}

impl Request {
    /// A read or an atomic: it is done when its result has come, not when it is acknowledged.
    pub(super) fn awaits_result(&self) -> bool {
        let has_result = |opcode| matches!(opcode, Opcode::RdmaRead | Opcode::AtomicCs | Opcode::AtomicFa);
        matches!(&self.work, Ok(work) if has_result(work.opcode))
    }

    pub(super) fn contains(&self, psn: u32) -> bool {
        let distance = psn_distance(psn, self.first_psn);
        distance >= 0 && (distance as u32) < self.packets
    }

    pub(super) fn length(&self) -> u32 {
        self.work.as_ref().map_or(0, |work| work.length)
    }
}

/// Packets that a message of so many bytes takes; an empty one takes one.
pub(super) fn packets_of(length: u32) -> u32 {
    length.div_ceil(MTU).max(1)
}

impl Qp {
    /// The first block of the next announced work request, its control segment, and how many blocks are announced from
    /// it on. `None` where there is none.
    fn next_entry(&self) -> Option<(Vec<u8>, CtrlSeg, u32)> {
        let left = self.sender.announced.wrapping_sub(self.sender.fetched);
        if left == 0 {
            return None;
        }
        let mut bytes = Vec::with_capacity(64);
        self.send_ring.read(self.sender.fetched, &mut bytes);
        // A block has 64 bytes, a control segment 16: always read.
        let ctrl = CtrlSeg::read_from_prefix(&bytes).ok()?.0;
        Some((bytes, ctrl, left))
    }

    /// Moves past `blocks` blocks.
    fn fetched(&mut self, ctrl: &CtrlSeg, blocks: u32, work: Result<Work, Syndrome>) -> Request {
        let packets = match &work {
            Ok(work) if work.opcode != Opcode::Nop => packets_of(work.length),
            _ => 0,
        };
        let (first, first_psn) = (self.sender.fetched, self.sender.next_psn);
        self.sender.next_psn = first_psn.wrapping_add(packets) & PSN_MASK;
        self.sender.fetched = first.wrapping_add(blocks);
        Request {
            first,
            blocks,
            opcode_byte: ctrl.raw_opcode(),
            signaled: self.signal_all || ctrl.completion_mode() >= 2,
            fenced: ctrl.fence_mode() != 0,
            solicited: ctrl.flags().contains(CtrlFlags::SOLICITED),
            imm: ctrl.imm(),
            work,
            first_psn,
            packets,
            sent: 0,
            acked: 0,
            done: false,
        }
    }

    /// Reads the next work request from the ring, strictly. `None` where there is none.
    pub(super) fn fetch(&mut self, context: &mut Context<'_>) -> Option<Request> {
        let (mut bytes, ctrl, left) = self.next_entry()?;
        let first = self.sender.fetched;
        let index = first as u16;
        let blocks = u32::from(ctrl.ds()).div_ceil(4);
        let mut broken = |field, message| {
            context.report(self.qpn, Some(index), field, message);
            Err(Syndrome::LocalQpOperation)
        };
        let size_is_right = blocks > 0 && blocks <= left;
        let work = if !size_is_right {
            broken(
                "ds",
                format!("{} segments, but {left} blocks are announced and a WQE has at least one", ctrl.ds()),
            )
        } else if ctrl.index() != index {
            broken(
                "index",
                format!("the control segment says {}, its place in the ring is {index}", ctrl.index()),
            )
        } else if ctrl.qpn() != self.qpn {
            broken("qpn", format!("the control segment says {:#x}", ctrl.qpn()))
        } else {
            (1..blocks).for_each(|block| self.send_ring.read(first.wrapping_add(block), &mut bytes));
            let body = &bytes[size_of::<CtrlSeg>()..usize::from(ctrl.ds()) * SEGMENT];
            let parsed = wqe::parse(&ctrl, body, self.transport);
            parsed.and_then(|work| ud::check(work, context.port)).map_err(|fault| {
                context.report(self.qpn, Some(index), fault.field, fault.message);
                fault.syndrome
            })
        };
        // What has no size is stepped over block by block.
        Some(self.fetched(&ctrl, if size_is_right { blocks } else { 1 }, work))
    }

    /// The next announced work request, for flushing: only its place and opcode matter.
    pub(super) fn fetch_to_flush(&mut self) -> Option<Request> {
        let (_, ctrl, left) = self.next_entry()?;
        let blocks = u32::from(ctrl.ds()).div_ceil(4).clamp(1, left);
        Some(self.fetched(&ctrl, blocks, Err(Syndrome::WrFlush)))
    }
}
