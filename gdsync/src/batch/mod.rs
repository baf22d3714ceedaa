//! Batches: what a user enqueues on a stream in one go, and how it becomes memory operations.
//!
//! Three languages meet here, each compiled into the next: *descriptors* (what the user batches), *peer operations*
//! (what the card's protocol needs) and *memory operations* (what a stream can do).

mod bytes;
mod merge;
mod order;
pub mod outline;
mod plan;
#[cfg(any(test, fuzzing))]
pub(crate) mod proof;
mod shape;
mod stream_wait;
mod table;

use crate::memop::WordError;
pub(crate) use bytes::Bytes;
pub use bytes::{MemoryWrite, WriteError};
pub(crate) use merge::{Chunk, Fate, Item, Planner};
pub(crate) use order::Cursor;
pub(crate) use plan::{Lowering, Owner, Step};
pub use shape::BatchShape;
pub(crate) use shape::Kind;
pub use stream_wait::StreamWait;

use crate::memop::{Condition, MemOpCaps, Place, StreamWord};
use crate::qp::QueuePairInner;
use crate::qp::checked::CheckedWait;
use crate::qp::prepared::PreparedSend;
use crate::qp::wait::PreparedWait;
use std::fmt;
use std::sync::Arc;

/// A list of descriptors, posted on a stream in one go by [`crate::Stream::post`].
///
/// The stream performs them in order. Dropping a batch drops what is in it: sends are taken back, waits given back.
#[derive(Debug, Default)]
#[must_use = "a batch does nothing until it is posted"]
pub struct Batch {
    pub(crate) descriptors: Vec<Descriptor>,
    /// Each descriptor has operations of its own.
    pub(crate) plain: bool,
}

/// One thing to do, as the user says it.
#[derive(Debug)]
pub(crate) enum Descriptor {
    Send(PreparedSend),
    WaitCq(PreparedWait),
    Wait32(Place, Condition, u32),
    Wait64(Place, Condition, u64),
    Write32(Place, u32),
    Write64(Place, u64),
    Bytes(Bytes),
    Barrier,
    Flush,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with room for so many descriptors.
    pub fn with_capacity(descriptors: usize) -> Self {
        Batch { descriptors: Vec::with_capacity(descriptors), plain: false }
    }

    /// Whether descriptors share memory operations where that changes nothing that anybody can tell: sends of one queue pair a
    /// doorbell, waits for completions of one queue a wait, and runs of waits the word that says how far the stream has come. True
    /// at first. Without it each descriptor has operations of its own, as batches in graphs always do.
    ///
    /// `docs/merging.md` argues for each merge, and says what a merged run of waits holds longer.
    pub fn merged(mut self, merged: bool) -> Self {
        self.plain = !merged;
        self
    }

    /// Adds: ring the card for a prepared send.
    pub fn send(mut self, send: PreparedSend) -> Self {
        self.push(Descriptor::Send(send));
        self
    }

    /// Adds: wait for a completion.
    ///
    /// A failed work request wakes the stream, too: it must never hang because a send failed. Whoever needs to know polls
    /// the completion queue, or asks [`crate::QueuePair::failure`].
    pub fn wait(mut self, wait: PreparedWait) -> Self {
        self.push(Descriptor::WaitCq(wait));
        self
    }

    /// Adds: wait for a completion, and know whether it is a good one.
    pub fn wait_checked(mut self, wait: CheckedWait) -> Self {
        self.push(Descriptor::WaitCq(wait.into_wait()));
        self
    }

    /// Adds: wait until a 32-bit word meets a condition. If it never does, the stream never goes on.
    pub fn wait_value32(mut self, word: &impl StreamWord<u32>, condition: Condition, value: u32) -> Self {
        self.push(Descriptor::Wait32(word.place(), condition, value));
        self
    }

    /// Adds: wait until a 64-bit word meets a condition. If it never does, the stream never goes on.
    pub fn wait_value64(mut self, word: &impl StreamWord<u64>, condition: Condition, value: u64) -> Self {
        self.push(Descriptor::Wait64(word.place(), condition, value));
        self
    }

    /// Adds: wait for a word, in a way that can be called off.
    pub fn wait_for(mut self, wait: &StreamWait) -> Self {
        self.push(wait.descriptor());
        self
    }

    /// Adds: write a 32-bit word. Everything before is visible to whoever sees the value.
    pub fn write_value32(mut self, word: &impl StreamWord<u32>, value: u32) -> Self {
        self.push(Descriptor::Write32(word.place(), value));
        self
    }

    /// Adds: write a 64-bit word. Everything before is visible to whoever sees the value.
    pub fn write_value64(mut self, word: &impl StreamWord<u64>, value: u64) -> Self {
        self.push(Descriptor::Write64(word.place(), value));
        self
    }

    /// Adds: write bytes. Everything before happens before it, and everything after sees it; while it happens, others may see some
    /// of the bytes and not the rest, in any order.
    ///
    /// A stream has no operation for that. Up to eight aligned 32-bit and 64-bit words are written as such, in the same
    /// submission as what stands around them. Whatever is longer, or has single bytes at its ends, is a copy, and a submission of
    /// its own. A CUDA stream copies into GPU memory from pinned memory, and into host memory from GPU memory, which the bytes are
    /// put into first (some 40 µs of the CPU's time): a copy from host to host would block the caller. Each page of host memory
    /// that it touches counts as a descriptor. Batches for graphs cannot hold it: a graph has nodes for copies.
    pub fn write_memory(mut self, write: MemoryWrite) -> Self {
        write.pieces().for_each(|piece| self.push(Descriptor::Bytes(piece)));
        self
    }

    /// Adds: everything before is visible to everybody before anything after. Waits and writes keep their order without it, and every
    /// write is visible no earlier than everything before it: this is for what else the program has on the stream, such as
    /// a kernel that polls memory.
    ///
    /// On a CUDA stream `CU_STREAM_MEM_OP_BARRIER`, for the system; on others a fence of the CPU.
    pub fn barrier(mut self) -> Self {
        self.push(Descriptor::Barrier);
        self
    }

    /// Adds: what cards wrote before the last wait was satisfied is visible to whatever comes after. Waits do that of their own
    /// accord where it is needed; this is for words that something else than a card writes, after it has seen what a card wrote.
    ///
    /// On a CUDA stream `CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES`, or the flag of the wait right before it; refused
    /// ([`crate::memop::StreamError::Unsupported`]) where the GPU has none. On others a fence of the CPU, which sees a card's writes in order.
    pub fn flush(mut self) -> Self {
        self.push(Descriptor::Flush);
        self
    }

    /// Number of descriptors.
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// True where there are none.
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    pub(crate) fn push(&mut self, descriptor: Descriptor) {
        if self.descriptors.capacity() == 0 {
            // Most batches are short.
            self.descriptors.reserve_exact(1);
        }
        self.descriptors.push(descriptor);
    }
}

impl Descriptor {
    /// What the planner has to know.
    #[inline]
    pub(crate) fn item(&self, caps: &MemOpCaps) -> Item {
        match self {
            Descriptor::Send(send) => Item::Send(Arc::as_ptr(send.queue_pair()) as u64),
            Descriptor::WaitCq(wait) if wait.checked.is_some() => Item::WaitChecked,
            Descriptor::WaitCq(wait) => Item::WaitCq(wait.queue_id(), wait.index()),
            Descriptor::Wait32(..) | Descriptor::Wait64(..) => Item::WaitWord,
            Descriptor::Write32(..) | Descriptor::Write64(..) => Item::Writes(1),
            Descriptor::Bytes(bytes) if bytes.is_copied(caps) => Item::Copy,
            Descriptor::Bytes(bytes) => Item::Writes(bytes.cost()),
            Descriptor::Barrier | Descriptor::Flush => Item::Fence,
        }
    }
}

impl Descriptor {
    /// Counterpart of commit: the stream did not take it.
    pub(crate) fn undo(&mut self) {
        match self {
            Descriptor::Send(send) => send.undo(),
            Descriptor::WaitCq(wait) => wait.undo(),
            _ => {}
        }
    }

    /// The queue pairs without which it never comes to its end.
    pub(crate) fn queue_pairs(&self) -> &[Arc<QueuePairInner>] {
        match self {
            Descriptor::Send(send) => std::slice::from_ref(send.queue_pair()),
            Descriptor::WaitCq(wait) => wait.queue_pairs(),
            _ => &[],
        }
    }

    pub(crate) fn is_wait(&self) -> bool {
        matches!(self, Descriptor::WaitCq(_) | Descriptor::Wait32(..) | Descriptor::Wait64(..))
    }

    /// Refuses waits that no value of the word satisfies.
    #[inline]
    pub(crate) fn check_satisfiable(&self) -> Result<(), WordError> {
        let (satisfier, condition, value) = match *self {
            Descriptor::Wait32(_, condition, value) => {
                (condition.satisfier32(value).map(u64::from), condition, value.into())
            }
            Descriptor::Wait64(_, condition, value) => (condition.satisfier64(value), condition, value),
            _ => return Ok(()),
        };
        if satisfier.is_none() { Err(WordError::NeverSatisfied { condition, value }) } else { Ok(()) }
    }
}

/// What it does, a descriptor to a line, and which of them need no operations of their own on a stream that has every capability.
impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut planner, mut first, caps) = (Planner::default(), 0, MemOpCaps::FULL);
        while first < self.len() {
            let rest = &self.descriptors[first..];
            let plan = planner.plan(rest.iter().map(|one| one.item(&caps)), &caps, !self.plain);
            writeln!(f, "submission of {} memory operations:", plan.operations)?;
            for (descriptor, fate) in rest.iter().zip(planner.fates()) {
                let note = if *fate == Fate::Covered { " (covered)" } else { "" };
                writeln!(f, "  {descriptor}{note}")?;
            }
            first += plan.count;
        }
        Ok(())
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Descriptor::Send(send) => write!(f, "send on queue pair {:#x}", send.qp_num()),
            Descriptor::WaitCq(wait) => write!(f, "{wait}"),
            Descriptor::Wait32(word, condition, value) => {
                write!(f, "wait until {word} {condition:?} {value:#x}")
            }
            Descriptor::Wait64(word, condition, value) => {
                write!(f, "wait until {word} {condition:?} {value:#x}")
            }
            Descriptor::Write32(word, value) => write!(f, "write {value:#x} to {word}"),
            Descriptor::Write64(word, value) => write!(f, "write {value:#x} to {word}"),
            Descriptor::Bytes(bytes) => {
                write!(f, "write {} bytes to {}", bytes.content().len(), bytes.place())
            }
            Descriptor::Barrier => f.write_str("barrier"),
            Descriptor::Flush => f.write_str("flush"),
        }
    }
}
