//! The memory of queues, written and read as a driver does.

use gdsync::PinnedMemory;
use gdsync_cli::failure::Failure;
use gdsync_sys::prm::cqe::{CQE_SIZE, Cqe64, CqeOpcode, OP_OWN_INVALID};
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::recv;
use gdsync_sys::prm::wqe::{BASIC_BLOCK, DataSeg};
use gdsync_sys::shared::SharedU64;
use softhca::card::{Card, CqConfig, QpConfig, SrqConfig};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes in front of a ring, with its doorbell record.
const RECORD: usize = 64;
/// The doorbell register of a page that is rung.
const REGISTER: usize = 0x800;

fn pointer(memory: &PinnedMemory, at: usize) -> *mut u8 {
    (memory.addr().get() as usize + at) as *mut u8
}

/// A completion queue, and the memory of its ring.
pub(super) struct CompletionQueue {
    pub(super) cqn: u32,
    memory: PinnedMemory,
    entries: u32,
    consumed: u32,
}

impl CompletionQueue {
    pub(super) fn new(card: &Card, entries: u32) -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(RECORD + entries as usize * CQE_SIZE)?;
        for entry in 0..entries as usize {
            memory.write(RECORD + entry * CQE_SIZE + CQE_SIZE - 1, &[OP_OWN_INVALID]);
        }
        let (ring, dbrec) = (pointer(&memory, RECORD), pointer(&memory, 0).cast());
        let config = CqConfig { ring, entries, stride: 64, dbrec, ignore_overrun: false, collapsed: false };
        // SAFETY: the owner of this queue drops the card first.
        let cqn = unsafe { card.create_cq(&config) }?;
        Ok(CompletionQueue { cqn, memory, entries, consumed: 0 })
    }

    /// Takes the next entry.
    pub(super) fn poll(&mut self) -> Option<Cqe64> {
        let at = RECORD + (self.consumed & (self.entries - 1)) as usize * CQE_SIZE;
        let mut bytes = [0; CQE_SIZE];
        self.memory.read(at, &mut bytes);
        let cqe = Cqe64::read_from_bytes(&bytes).ok()?;
        let turn = (self.consumed >> self.entries.trailing_zeros()) & 1 == 1;
        if cqe.owner() != turn || cqe.opcode() == Ok(CqeOpcode::Invalid) {
            return None;
        }
        self.consumed += 1;
        self.memory.words32()[0].store(doorbell::ci_record(self.consumed), Ordering::Release);
        Some(cqe)
    }
}

/// The send queue of a queue pair.
pub(super) struct SendQueue {
    memory: PinnedMemory,
    page: *mut u8,
    blocks: u32,
    head: u32,
    /// The first bytes of the last work request, if it has not been rung.
    last: Option<u64>,
}

impl SendQueue {
    /// Makes a ring, and adds it to the configuration of a queue pair.
    pub(super) fn new(card: &Card, blocks: u32, config: &mut QpConfig) -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(RECORD + blocks as usize * BASIC_BLOCK)?;
        let uar = card.alloc_uar(&[REGISTER])?;
        (config.uar, config.sq, config.sq_blocks) = (Some(uar.id), pointer(&memory, RECORD), blocks);
        config.dbrec = pointer(&memory, 0).cast();
        Ok(SendQueue { memory, page: uar.page, blocks, head: 0, last: None })
    }

    pub(super) fn reset(&mut self) {
        (self.head, self.last) = (0, None);
    }

    /// Returns the index of the next work request.
    pub(super) fn index(&self) -> u16 {
        self.head as u16
    }

    pub(super) fn post(&mut self, wqe: &[u8]) {
        for block in wqe.chunks(BASIC_BLOCK) {
            let at = (self.head & (self.blocks - 1)) as usize * BASIC_BLOCK;
            self.memory.write(RECORD + at, block);
            self.head += 1;
        }
        self.last = wqe.first_chunk().map(|first| u64::from_ne_bytes(*first));
    }

    /// Rings for everything that is posted and not rung.
    pub(super) fn ring(&mut self) {
        let Some(last) = self.last.take() else { return };
        self.memory.words32()[doorbell::DBR_SEND].store(doorbell::record(self.head), Ordering::Release);
        // SAFETY: the page is mapped until its UAR is freed, which only the end of the card does; with the card, its links
        // give up their queues.
        unsafe { SharedU64::from_ptr(self.page.add(REGISTER).cast()) }.store(last, Ordering::Release);
    }
}

/// The receive queue of a queue pair.
pub(super) struct ReceiveQueue {
    memory: PinnedMemory,
    /// The memory that begins with its doorbell record: that of the send queue.
    record: PinnedMemory,
    entries: u32,
    stride: usize,
    posted: u32,
}

impl ReceiveQueue {
    /// Makes a ring, and adds it to the configuration of a queue pair.
    pub(super) fn new(entries: u32, send: &SendQueue, config: &mut QpConfig) -> Result<Self, Failure> {
        let stride = recv::stride(2);
        let memory = PinnedMemory::allocate(RECORD + (entries * stride) as usize)?;
        (config.rq, config.rq_entries, config.rq_stride) = (pointer(&memory, RECORD), entries, stride);
        let record = send.memory.clone();
        Ok(ReceiveQueue { memory, record, entries, stride: stride as usize, posted: 0 })
    }

    /// Empties the queue of a queue pair that is reset.
    pub(super) fn reset(&mut self) {
        self.posted = 0;
        self.record.words32()[doorbell::DBR_RECV].store(0, Ordering::Release);
    }

    /// Posts a receive. Returns its index, as its completion has it.
    pub(super) fn post(&mut self, segment: DataSeg) -> u16 {
        let at = RECORD + (self.posted & (self.entries - 1)) as usize * self.stride;
        self.memory.write(at, [segment, DataSeg::terminator()].as_bytes());
        let index = self.posted as u16;
        self.posted += 1;
        self.record.words32()[doorbell::DBR_RECV].store(doorbell::record(self.posted), Ordering::Release);
        index
    }
}

/// A shared receive queue, used as libmlx5 uses it: entries return to the end of the list as they complete.
pub(super) struct SharedQueue {
    memory: PinnedMemory,
    stride: usize,
    /// The entry that the next receive takes, and those after it.
    head: u16,
    free: VecDeque<u16>,
    posted: u32,
}

impl SharedQueue {
    pub(super) fn new(entries: u16, pdn: u32) -> Result<(Self, SrqConfig), Failure> {
        let stride = recv::linked_stride(2);
        let memory = PinnedMemory::allocate(RECORD + usize::from(entries) * stride as usize)?;
        let (ring, dbrec) = (pointer(&memory, RECORD), pointer(&memory, 0).cast());
        let config =
            SrqConfig { pdn, ring, entries: entries.into(), stride, dbrec, cyclic: false, xrc: None };
        let free = (1..entries).collect();
        Ok((SharedQueue { memory, stride: stride as usize, head: 0, free, posted: 0 }, config))
    }

    /// Posts a receive into the place that `segment` gives for an entry. Returns the entry; `None` if all are posted.
    pub(super) fn post(&mut self, segment: impl FnOnce(u16) -> DataSeg) -> Option<u16> {
        let next = self.free.pop_front()?;
        let index = std::mem::replace(&mut self.head, next);
        let mut entry = recv::link(next).to_vec();
        entry.extend_from_slice([segment(index), DataSeg::terminator()].as_bytes());
        self.memory.write(RECORD + usize::from(index) * self.stride, &entry);
        self.posted += 1;
        self.memory.words32()[0].store(doorbell::record(self.posted), Ordering::Release);
        Some(index)
    }

    pub(super) fn release(&mut self, index: u16) {
        self.free.push_back(index);
    }
}
