//! Batches: lists of descriptors for a stream, compiled into memory operations.
//!
//! There are three levels, each compiled into the next: *descriptors* (the user's batch), *peer operations* (the
//! card's protocol) and *memory operations* (the stream's abilities). The planner (`merge`) decides which
//! descriptors share operations and how many fit one submission; the lowering (`lower`) makes the operations.

mod bytes;
mod lower;
mod merge;
#[doc(hidden)]
pub mod outline;
#[cfg(any(test, fuzzing))]
pub(crate) mod proof;
mod shape;

pub(crate) use bytes::{Bytes, Word, Words};
pub use bytes::{MemoryWrite, WriteError};
pub(crate) use lower::{Driver, Lowering, Points};
pub(crate) use merge::{Chunk, Collecting, Fate, Keyed, LastPoint, Planner, SendKey, WaitKey};
pub use shape::BatchShape;

use crate::memop::{Condition, Location, MemOpCaps, StreamWord, WaitCause};
use crate::qp::{CheckedWait, PreparedReceives, PreparedSend, PreparedTicket, PreparedWait, QueuePairInner};
use std::fmt;
use std::sync::Arc;

/// A list of work for a stream, its *descriptors*. [`crate::Stream::post`] posts all, and the stream performs them in
/// order. Dropping a batch drops its descriptors: sends leave their queues, and waits give their completions back.
///
/// ```
/// use gdsync::{Access, Batch, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, WorkRequest};
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// let stream = Stream::new(SoftStream::new()?)?;
/// right.post_recv(&[region.slice(..8)?], 0)?;
/// let send = left.prepare(WorkRequest::send(&[region.slice(8..16)?]))?;
/// let (sent, arrived) = (left.send_cq().prepare_wait()?, right.recv_cq().prepare_wait()?);
/// let flag = region.word32(60)?;
/// let batch = Batch::new().send(send).wait(sent).wait(arrived).write_value32(&flag, 1);
/// assert_eq!(batch.len(), 4);
/// println!("{batch}"); // each descriptor, and which of them share operations
/// stream.post(batch)?;
/// stream.synchronize()?;
/// assert_eq!(flag.load(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "a batch does nothing until it is posted"]
pub struct Batch {
    pub(crate) descriptors: Vec<Descriptor>,
    /// True if descriptors share no operations.
    pub(crate) unmerged: bool,
}

/// A descriptor that a stream can post.
pub(crate) type Descriptor =
    shape::Descriptor<PreparedSend, PreparedWait, Location, Bytes, PreparedReceives, PreparedTicket>;

impl Batch {
    /// Makes an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an empty batch with room for `descriptors` descriptors.
    pub fn with_capacity(descriptors: usize) -> Self {
        Batch { descriptors: Vec::with_capacity(descriptors), unmerged: false }
    }

    /// Sets whether descriptors share memory operations where no observer can tell the difference: sends of one queue
    /// pair share a doorbell, waits for completions of one queue a wait, and runs of waits a write of the timeline's
    /// word. True by default. If false, each descriptor has separate operations, as batches in graphs always do.
    ///
    /// [docs/merging.md](https://github.com/gdsync/gdsync/blob/main/docs/merging.md) argues for each merge, and
    /// lists what a merged run of waits keeps longer.
    pub fn merged(mut self, merged: bool) -> Self {
        self.unmerged = !merged;
        self
    }

    /// Adds a prepared send, for which the stream rings the card.
    pub fn send(mut self, send: PreparedSend) -> Self {
        self.push(Descriptor::Send(send));
        self
    }

    /// Adds a wait for a completion.
    ///
    /// A failed work request ends the wait, too: a failed send never hangs a stream. To learn of the failure, poll
    /// the completion queue or call [`crate::QueuePair::failure`].
    pub fn wait(mut self, wait: PreparedWait) -> Self {
        self.push(Descriptor::WaitCq(wait));
        self
    }

    /// Adds a wait for a completion, whose [`CheckedWait::status`] tells whether the work request succeeded.
    pub fn wait_checked(mut self, wait: CheckedWait) -> Self {
        self.push(Descriptor::WaitCq(wait.into_wait()));
        self
    }

    /// Adds a wait until a 32-bit word meets a condition. If it never does, the stream hangs.
    pub fn wait_value32(mut self, word: &impl StreamWord<u32>, condition: Condition, value: u32) -> Self {
        self.push(Descriptor::Wait32(word.location(), condition, value));
        self
    }

    /// Adds a wait until a 64-bit word meets a condition. If it never does, the stream hangs.
    pub fn wait_value64(mut self, word: &impl StreamWord<u64>, condition: Condition, value: u64) -> Self {
        self.push(Descriptor::Wait64(word.location(), condition, value));
        self
    }

    /// Adds a write of a 32-bit word. An observer that sees the value sees everything before.
    pub fn write_value32(mut self, word: &impl StreamWord<u32>, value: u32) -> Self {
        self.push(Descriptor::Write32(word.location(), value));
        self
    }

    /// Adds a write of a 64-bit word. An observer that sees the value sees everything before.
    pub fn write_value64(mut self, word: &impl StreamWord<u64>, value: u64) -> Self {
        self.push(Descriptor::Write64(word.location(), value));
        self
    }

    /// Adds a write of bytes. It happens after everything before and before everything after. Meanwhile, an observer
    /// may see some of the bytes and not the rest, in any order.
    ///
    /// Streams have no such operation. Up to eight aligned 32-bit and 64-bit words are written as words, in the
    /// same submission as the descriptors around them. Longer content, or content with single bytes at its ends, is
    /// copied in a separate submission. A CUDA stream copies into GPU memory from pinned memory, and into host
    /// memory from GPU memory, into which the CPU puts the bytes first (some 40 µs of the CPU's time), as a copy
    /// from host to host would block the caller. Each page of host memory counts as a descriptor. Batches for
    /// graphs cannot contain it: a graph has nodes for copies.
    pub fn write_memory(mut self, write: MemoryWrite) -> Self {
        write.pieces().for_each(|piece| self.push(Descriptor::Bytes(piece)));
        self
    }

    /// Adds a barrier: everything before is visible to every observer before anything after. Waits and writes keep
    /// their order without it, and every write becomes visible after everything before it. It is for the program's
    /// other work on the stream, such as a kernel that polls memory.
    ///
    /// On a CUDA stream, it is `CU_STREAM_MEM_OP_BARRIER` for the system; on others, a fence of the CPU.
    pub fn barrier(mut self) -> Self {
        self.push(Descriptor::Barrier);
        self
    }

    /// Adds a flush: everything that cards wrote before the last wait was satisfied is visible to everything after.
    /// Waits for completions and words include it where needed. It is for words that the program writes after it has
    /// seen a card's write.
    ///
    /// On a CUDA stream, it is `CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES`, or the flag of the wait directly before it;
    /// it is refused ([`crate::memop::StreamError::Unsupported`]) if the GPU has neither. On others, it is a fence
    /// of the CPU, which sees a card's writes in order.
    pub fn flush(mut self) -> Self {
        self.push(Descriptor::Flush);
        self
    }

    /// Returns the number of descriptors.
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Returns true if there are none.
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

impl Keyed<SendKey> for PreparedSend {
    #[inline]
    fn key(&self, _caps: &MemOpCaps) -> SendKey {
        match self.trigger() {
            None if self.receives.is_some() => SendKey::Announcing(Arc::as_ptr(&self.queue_pair) as u64),
            None => SendKey::Doorbell(Arc::as_ptr(&self.queue_pair) as u64),
            Some(trigger) => SendKey::Trigger(std::ptr::from_ref(trigger) as u64),
        }
    }
}

impl Keyed<Option<WaitKey>> for PreparedWait {
    #[inline]
    fn key(&self, _caps: &MemOpCaps) -> Option<WaitKey> {
        let (queue, index, _) = self.entry();
        let device = Arc::as_ptr(&queue.device) as u64;
        self.checked.is_none().then_some(WaitKey { queue: Arc::as_ptr(queue) as u64, index, device })
    }
}

impl Descriptor {
    /// Undoes the commit, as the stream was not given the descriptor.
    pub(crate) fn undo(&mut self) {
        match self {
            Descriptor::Send(send) => send.undo(),
            Descriptor::WaitCq(wait) => wait.undo(),
            Descriptor::Receives(receives) => receives.undo(),
            Descriptor::Ticket(ticket) => ticket.undo(),
            _ => {}
        }
    }

    /// Returns what writes the awaited word, if the program or the library has said it.
    pub(crate) fn word_cause(&self) -> Option<&Arc<dyn WaitCause>> {
        match self {
            Descriptor::Wait32(word, ..) | Descriptor::Wait64(word, ..) => word.cause(),
            _ => None,
        }
    }

    /// Returns the queue pairs on which its end depends.
    pub(crate) fn queue_pairs(&self) -> &[Arc<QueuePairInner>] {
        match self {
            Descriptor::Send(send) => std::slice::from_ref(&send.queue_pair),
            Descriptor::WaitCq(wait) => &wait.queue_pairs,
            Descriptor::Receives(receives) => std::slice::from_ref(&receives.queue_pair),
            Descriptor::Ticket(ticket) => &ticket.queue_pairs,
            _ => &[],
        }
    }
}

/// One descriptor a line, with marks for those without their own operations on a stream that has every capability.
impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut planner, mut first, caps) = (Planner::default(), 0, MemOpCaps::FULL);
        while first < self.len() {
            let rest = &self.descriptors[first..];
            let plan = planner.plan(rest, &caps, !self.unmerged);
            writeln!(f, "submission of {} memory operations:", plan.operations)?;
            for (descriptor, fate) in rest.iter().zip(&planner.fates) {
                let note = match fate {
                    Fate::Kept => "",
                    Fate::Covered => " (covered)",
                    Fate::Collected => " (collected)",
                };
                writeln!(f, "  {descriptor}{note}")?;
            }
            first += plan.count;
        }
        Ok(())
    }
}

/// How the description of a wait for a word begins.
pub(crate) const WORD: &str = "wait until ";

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Descriptor::Send(send) => {
                write!(f, "send on queue pair {:#x}", send.qp_num())?;
                send.ticket().map_or(Ok(()), |ticket| write!(f, " by ticket {ticket}"))
            }
            Descriptor::WaitCq(wait) => write!(f, "{wait}"),
            Descriptor::Receives(receives) => write!(f, "{receives}"),
            Descriptor::Ticket(ticket) => write!(f, "{ticket}"),
            Descriptor::Wait32(word, condition, value) => {
                write!(f, "{WORD}{word} {condition} {value:#x}")
            }
            Descriptor::Wait64(word, condition, value) => {
                write!(f, "{WORD}{word} {condition} {value:#x}")
            }
            Descriptor::Write32(word, value) => write!(f, "write {value:#x} to {word}"),
            Descriptor::Write64(word, value) => write!(f, "write {value:#x} to {word}"),
            Descriptor::Bytes(bytes) => {
                write!(f, "write {} bytes to {}", bytes.content.len(), bytes.location)
            }
            Descriptor::Barrier => f.write_str("barrier"),
            Descriptor::Flush => f.write_str("flush"),
        }
    }
}
