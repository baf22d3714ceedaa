//! Waits that tell success from failure.
//!
//! A stream can wait for the owner bit of a completion entry, which flips with any completion, good or bad: no condition on that
//! word tells the two apart. So a thread of the library looks at the entry in the stream's place and writes a *status word*,
//! which the stream waits for instead, and which kernels and later descriptors can read.

use crate::batch::{Batch, Descriptor};
use crate::checked_watcher::{self, Watched};
use crate::cq::CompletionQueueInner;
use crate::error::Error;
use crate::lane::{Lane, Ticket};
use crate::memory::{PinnedMemory, StreamAddr, Word32};
use crate::peer::PeerOp;
use crate::qp::QueuePairInner;
use crate::queue::completion::WorkError;
use crate::queue::wait::PreparedWait;
use crate::stream::{MemOpStream, Stream, StreamError};
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of pinned memory that status words are taken from, and from one word to the next.
const CHUNK: usize = 64 << 10;
const STRIDE: usize = 16;

/// What became of the work that a stream waits for: a 32-bit word of pinned memory, written once.
///
/// | value | meaning |
/// |---|---|
/// | 0 ([`Self::PENDING`]) | not completed |
/// | 1 ([`Self::OK`]) | completed |
/// | [`Self::FAILED`] + syndrome + (vendor syndrome << 16) | failed |
///
/// Syndrome 1 is an error (local length), so failures carry a bit of their own. Syndrome 0 is none of the card's: the library
/// could not hand the work to the card.
#[derive(Clone, Debug)]
pub struct Status {
    word: Word32,
}

impl Status {
    /// Not completed.
    pub const PENDING: u32 = 0;
    /// Completed.
    pub const OK: u32 = 1;
    /// The bit of every failure; the lowest 8 bits are the card's syndrome.
    pub const FAILED: u32 = 0x100;

    /// A new word, which says [`Self::PENDING`].
    pub(crate) fn new() -> Result<Self, Error> {
        static CURRENT: Mutex<Option<(PinnedMemory, usize)>> = Mutex::new(None);
        let mut current = CURRENT.lock();
        let (memory, offset) = match current.take() {
            Some((memory, next)) if next + STRIDE <= CHUNK => (memory, next),
            _ => {
                let memory =
                    PinnedMemory::allocate(CHUNK).map_err(|source| Error::Memory { len: CHUNK, source })?;
                (memory, 0)
            }
        };
        let word = Word32::new(&memory, offset)
            .map_err(|error| Error::Memory { len: CHUNK, source: std::io::Error::other(error) })?;
        *current = Some((memory, offset + STRIDE));
        Ok(Status { word })
    }

    /// The word itself, for descriptors of later batches; [`Self::address_on`] is for kernels.
    pub fn word(&self) -> &Word32 {
        &self.word
    }

    /// The address of the word, 4 bytes, for kernels on a stream: on a GPU's, in the GPU's address space, of which the word's page
    /// becomes part now if it is not yet. What was waited for has completed when a kernel behind the wait reads the word;
    /// it is for reading only.
    ///
    /// The address holds as long as this status or a clone of it lives, and on a GPU's stream until the kernels that were
    /// enqueued before are through.
    ///
    /// # Errors
    /// [`StreamError`] where the stream cannot reach the word.
    pub fn address_on<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<StreamAddr, StreamError> {
        stream.backend.translate(self.word.addr(), size_of::<u32>())
    }

    /// What it says now: `None` while the work has not completed.
    pub fn get(&self) -> Option<Result<(), WorkError>> {
        match self.word.load() {
            Self::PENDING => None,
            Self::OK => Some(Ok(())),
            value => Some(Err(WorkError { syndrome: value as u8, vendor: (value >> 16) as u8 })),
        }
    }

    /// Says what became of the work. Whoever waits for the word goes on.
    pub(crate) fn set(&self, outcome: Result<(), WorkError>) {
        self.word.store(match outcome {
            Ok(()) => Self::OK,
            Err(error) => Self::FAILED | u32::from(error.syndrome) | u32::from(error.vendor) << 16,
        });
    }

    /// What a stream waits for.
    pub(crate) fn wait_op(&self) -> PeerOp {
        PeerOp::PollAnd { addr: self.word.addr(), value: Self::OK | Self::FAILED }
    }
}

/// A prepared wait that will say how the work that it waits for ended; see [`PreparedWait::checked`].
#[derive(Debug)]
#[must_use = "a prepared wait does nothing until it is posted in a batch"]
pub struct CheckedWait {
    wait: PreparedWait,
    status: Status,
}

impl CheckedWait {
    /// What became of the work. Stays readable after the wait was posted.
    pub fn status(&self) -> Status {
        self.status.clone()
    }
}

impl PreparedWait {
    /// The same wait, with a [`Status`] that says how it ended: by the time the stream goes on, it is there for whatever comes
    /// next on the stream. A queue pair whose work failed has failed by then, too, though nobody has polled.
    ///
    /// It takes a thread of the library, which sleeps while no checked wait is outstanding, and the time until that has looked;
    /// `gdsync bench checked` measures it.
    ///
    /// # Errors
    /// [`Error::Thread`], [`Error::Memory`]. The wait is given back then, as when it is dropped.
    pub fn checked(mut self) -> Result<CheckedWait, Error> {
        checked_watcher::start()?;
        let status = Status::new()?;
        self.checked = Some(Checked { status: status.clone(), called_off: Arc::default() });
        Ok(CheckedWait { wait: self, status })
    }
}

impl Batch {
    /// Adds: wait for a completion, and know whether it is a good one.
    pub fn wait_checked(mut self, wait: CheckedWait) -> Self {
        self.push(Descriptor::WaitCq(wait.wait));
        self
    }
}

/// What a checked wait has more than others.
#[derive(Debug)]
pub(crate) struct Checked {
    status: Status,
    /// The post that the thread was told of did not happen.
    called_off: Arc<AtomicBool>,
}

impl Checked {
    /// Has the thread look at a completion entry, which the stream's ticket holds until the status was written.
    ///
    /// Returns what the stream waits for.
    pub(crate) fn commit(
        &mut self,
        cq: &Arc<CompletionQueueInner>,
        index: u32,
        queue_pairs: &[Arc<QueuePairInner>],
        lane: &Arc<Lane>,
        ticket: Ticket,
    ) -> PeerOp {
        self.called_off = Arc::default();
        checked_watcher::watch(Box::new(Check {
            cq: cq.clone(),
            index,
            status: self.status.clone(),
            queue_pairs: queue_pairs.to_vec(),
            lane: lane.clone(),
            ticket,
            called_off: self.called_off.clone(),
        }));
        self.status.wait_op()
    }

    pub(crate) fn undo(&self) {
        self.called_off.store(true, Ordering::Release);
    }

    pub(crate) fn is_satisfied(&self) -> bool {
        self.status.get().is_some()
    }
}

/// An entry to look at.
struct Check {
    cq: Arc<CompletionQueueInner>,
    index: u32,
    status: Status,
    queue_pairs: Vec<Arc<QueuePairInner>>,
    lane: Arc<Lane>,
    ticket: Ticket,
    called_off: Arc<AtomicBool>,
}

/// How the work of a completion entry ended.
pub(crate) fn outcome(cqe: &Cqe64) -> Result<(), WorkError> {
    match cqe.opcode() {
        Ok(CqeOpcode::RequesterError | CqeOpcode::ResponderError) | Err(_) => {
            Err(WorkError { syndrome: cqe.raw_syndrome(), vendor: cqe.vendor_syndrome() })
        }
        Ok(_) => Ok(()),
    }
}

impl Watched for Check {
    fn look(&mut self) -> bool {
        // The lane passes only after the status was written, unless its stream has failed: then the entry may be the card's again.
        if self.called_off.load(Ordering::Acquire) || self.lane.has_passed(self.ticket) {
            return true;
        }
        let state = self.cq.lock();
        // Polling fails the queue pair, too; it may have begun anew after that.
        let is_history = state.is_history(self.index);
        let Some(entry) = state.read(self.index) else {
            drop(state);
            for queue_pair in self.queue_pairs.iter().filter(|queue_pair| queue_pair.failure().is_some()) {
                queue_pair.flush_unposted();
            }
            return false;
        };
        let owner = self.queue_pairs.iter().find(|one| one.number() == entry.cqe.qpn());
        let psn = owner.map(|owner| owner.psn.load(Ordering::Relaxed));
        drop(state);
        let outcome = outcome(&entry.cqe);
        if let (Err(error), Some(failed), Some(psn)) = (outcome, owner, psn)
            && !is_history
        {
            failed.fail_with_work(psn, error);
            failed.flush_unposted();
        }
        self.status.set(outcome);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_each_outcome() {
        let status = Status::new().unwrap();
        assert_eq!(status.get(), None);
        for outcome in [
            Ok(()),
            Err(WorkError { syndrome: 1, vendor: 0 }),
            Err(WorkError { syndrome: 0x13, vendor: 0x88 }),
        ] {
            status.set(outcome);
            assert_eq!(status.get(), Some(outcome));
            let PeerOp::PollAnd { value, .. } = status.wait_op() else { panic!("another condition") };
            assert_ne!(status.word().load() & value, 0, "a stream goes on");
            assert_eq!(status.word().load() & Status::FAILED != 0, outcome.is_err());
        }
    }

    #[test]
    fn every_status_has_a_word_of_its_own() {
        let mut words: Vec<_> = (0..CHUNK / STRIDE * 2 + 1).map(|_| Status::new().unwrap()).collect();
        assert!(words.iter().all(|status| status.get().is_none()));
        words.sort_by_key(|status| status.word().addr());
        words.dedup_by_key(|status| status.word().addr());
        assert_eq!(words.len(), CHUNK / STRIDE * 2 + 1);
    }
}
