//! Status words, by which streams wait for outcomes; and claims, the completions of persistent requests, which the
//! program's polls do not return.

use crate::memop::{Named, WaitCause, Word32, explain};
use crate::memory::PinnedMemory;
use crate::queue::{Completion, PeerOp, WorkError, WorkKind};
use crate::verbs::Error;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of the pinned memory for status words, and the distance between words.
const CHUNK: usize = 64 << 10;
const STRIDE: usize = 16;

/// The outcome of work that a stream waits for: a 32-bit word of pinned memory, written once.
///
/// | value | meaning |
/// |---|---|
/// | 0 ([`Self::PENDING`]) | not completed |
/// | 1 ([`Self::OK`]) | completed |
/// | [`Self::FAILED`] + syndrome + (vendor syndrome << 16) | failed |
///
/// Failures have their own bit, as syndrome 1 is an error (local length). Syndrome 0 is not a card's: the library
/// could not give the work to the card.
#[derive(Clone, Debug)]
pub struct Status {
    word: Word32,
    /// The failure, with more than the word has room for. It is set before the word.
    failure: Arc<OnceLock<WorkError>>,
    /// Writes the word; none if the word needs no query.
    writer: Option<Arc<dyn Writer>>,
}

/// Writes a status when it is queried.
pub(crate) trait Writer: Debug + Send + Sync {
    /// Checks whether the work has completed, and writes its outcome if it has.
    fn look(&self);

    /// Makes a thread check until the work has completed.
    fn watch(self: Arc<Self>);
}

thread_local! {
    /// Memory for words, and the offset of the next one. Threads that start requests at the same time share no lock and
    /// no count of references.
    static CURRENT: Cell<Option<(PinnedMemory, usize)>> = const { Cell::new(None) };
}

/// Takes the memory with the thread's next word, or new memory if that is used up.
fn take() -> Result<(PinnedMemory, usize), Error> {
    match CURRENT.try_with(Cell::take) {
        Ok(Some((memory, next))) if next + STRIDE <= CHUNK => Ok((memory, next)),
        _ => {
            let memory = PinnedMemory::allocate_whole(CHUNK);
            Ok((memory.map_err(|source| Error::Memory { len: CHUNK, source })?, 0))
        }
    }
}

/// Keeps the memory with the thread's next word, unless the thread is ending.
fn put_back(memory: PinnedMemory, next: usize) {
    let _ = CURRENT.try_with(|current| current.set(Some((memory, next))));
}

impl Status {
    /// Not completed.
    pub const PENDING: u32 = 0;
    /// Completed.
    pub const OK: u32 = 1;
    /// The bit of every failure; the lowest 8 bits are the card's syndrome.
    pub const FAILED: u32 = 0x100;

    pub(crate) fn new() -> Result<Self, Error> {
        let (memory, offset) = take()?;
        let word = Word32::new(&memory, offset)
            .map_err(|error| Error::Memory { len: CHUNK, source: std::io::Error::other(error) })?;
        put_back(memory, offset + STRIDE);
        Ok(Status { word, failure: Arc::default(), writer: None })
    }

    /// Returns the same status, which says by `cause` why the work takes long.
    pub(crate) fn written_after(self, cause: Arc<dyn WaitCause>) -> Self {
        Status { word: self.word.written_by(cause), ..self }
    }

    /// Says why the work has not completed, with what is known of its queue pair and of the peer, as `gdsync top` does;
    /// `None` if nothing is known, or if it has completed. It asks the processes of this host, which takes up to 250 ms if one of
    /// them does not answer.
    pub fn explain(&self) -> Option<String> {
        let word = self.word.location();
        word.cause().filter(|_| self.get().is_none()).and_then(|cause| explain(&**cause))
    }

    /// Returns the same status for queries, written by `writer`.
    pub(crate) fn written_by(&self, writer: Arc<dyn Writer>) -> Self {
        Status { writer: Some(writer), ..self.clone() }
    }

    /// Returns the word, for descriptors of later batches; [`Self::address_on`] is for kernels. From now on, a
    /// library thread checks the work, and writes the word at the latest when it finds it completed.
    pub fn word(&self) -> &Word32 {
        if let Some(writer) = self.open() {
            writer.clone().watch();
        }
        &self.word
    }

    fn open(&self) -> Option<&Arc<dyn Writer>> {
        let writer = self.writer.as_ref().filter(|_| self.word.load() == Self::PENDING)?;
        writer.look();
        (self.word.load() == Self::PENDING).then_some(writer)
    }

    /// Returns the outcome; `None` while the work has not completed. A flush names the failure that it follows, if it is
    /// known ([`WorkError::flushed_after`]).
    pub fn get(&self) -> Option<Result<(), WorkError>> {
        self.open();
        match self.word.load() {
            Self::PENDING => None,
            Self::OK => Some(Ok(())),
            value => {
                let told = || WorkError::new(value as u8, (value >> 16) as u8);
                Some(Err(self.failure.get().copied().unwrap_or_else(told)))
            }
        }
    }

    /// Writes the outcome. Streams that wait for the word continue.
    pub(crate) fn set(&self, outcome: Result<(), WorkError>) {
        self.word.store(match outcome {
            Ok(()) => Self::OK,
            Err(error) => {
                // The word is written once.
                let _ = self.failure.set(error);
                Self::FAILED | u32::from(error.syndrome) | u32::from(error.vendor) << 16
            }
        });
    }

    /// Returns the operation by which a stream waits for the word.
    pub(crate) fn wait_op(&self) -> PeerOp {
        PeerOp::PollAnd { addr: self.word.addr(), value: Self::OK | Self::FAILED }
    }
}

/// Receives the completion of one start.
#[derive(Debug)]
pub(crate) struct Claim {
    status: Status,
    /// True once something may wait for the status, or hold it.
    is_shown: AtomicBool,
    /// The completion queue's entry in which the work completes, if nothing but this kind of work of one queue pair
    /// completes there.
    pub(crate) entry: OnceLock<u32>,
    /// True once a library thread checks for the completion.
    is_watched: AtomicBool,
    completion: Mutex<Option<Completion>>,
}

impl Claim {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let status = Status::new()?;
        let (entry, completion) = (OnceLock::new(), Mutex::new(None));
        let (is_shown, is_watched) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(Claim { status, is_shown, entry, is_watched, completion }))
    }

    /// Returns a claim for another start: the given one, if nothing else holds it or its status.
    pub(crate) fn again(mut used: Arc<Self>) -> Result<Arc<Self>, Error> {
        let unused = Arc::get_mut(&mut used).filter(|claim| !claim.is_shown.load(Ordering::Relaxed));
        let Some(Claim { status, entry, is_watched, completion, .. }) = unused else { return Self::new() };
        status.word.store(Status::PENDING);
        if status.failure.get().is_some() {
            status.failure = Arc::default();
        }
        (*entry, *is_watched, *completion.get_mut()) = (OnceLock::new(), AtomicBool::new(false), None);
        Ok(used)
    }

    pub(crate) fn status(&self) -> &Status {
        self.is_shown.store(true, Ordering::Relaxed);
        &self.status
    }

    /// Sets the outcome, unless there is one.
    pub(crate) fn finish(&self, completion: Completion) {
        let mut place = self.completion.lock();
        if place.is_none() {
            *place = Some(completion);
            drop(place);
            self.status.set(completion.status);
        }
    }

    /// Completes work that never reached the card. The syndrome is 0 if the card has none for the reason.
    pub(crate) fn finish_unposted(&self, qp_num: u32, kind: WorkKind, error: WorkError) {
        self.finish(Completion {
            wr_id: 0,
            index: None,
            qp_num,
            kind,
            byte_len: 0,
            immediate: None,
            invalidated: None,
            source: None,
            was_posted: false,
            status: Err(error),
        });
    }

    /// Registers a thread that checks for the completion. Returns false if there is one.
    pub(crate) fn watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn completion(&self) -> Option<Completion> {
        *self.completion.lock()
    }
}

/// The claims on the work requests of one queue, oldest first, by serial number.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    claims: VecDeque<(u64, Arc<Claim>)>,
}

impl Claims {
    pub(crate) fn add(&mut self, serial: u64, claim: Arc<Claim>) {
        self.claims.push_back((serial, claim));
    }

    /// Removes the claim on a withdrawn work request, which does not complete.
    pub(crate) fn forget(&mut self, serial: u64) {
        self.claims.retain(|(known, _)| *known != serial);
    }

    /// Returns the claims on work requests that have not retired, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Arc<Claim>)> {
        self.claims.iter().map(|(serial, claim)| (*serial, claim))
    }

    /// Returns whether all entries `from..to` of the completion queue are those of claimed work.
    pub(crate) fn cover(&self, from: u32, to: u32) -> bool {
        let is_between = |entry: &u32| entry.wrapping_sub(from) < to.wrapping_sub(from);
        let claimed = self.claims.iter().filter(|(_, claim)| claim.entry.get().is_some_and(is_between));
        claimed.count() as u32 == to.wrapping_sub(from)
    }

    pub(crate) fn take(&mut self, serial: u64) -> Option<Arc<Claim>> {
        let (first, _) = self.claims.front()?;
        if *first == serial { self.claims.pop_front().map(|(_, claim)| claim) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_each_outcome() {
        for outcome in [Ok(()), Err(WorkError::new(1, 0)), Err(WorkError::new(0x13, 0x88))] {
            let status = Status::new().unwrap();
            assert_eq!(status.get(), None);
            status.set(outcome);
            assert_eq!(status.get(), Some(outcome));
            let PeerOp::PollAnd { value, .. } = status.wait_op() else { panic!("another condition") };
            assert_ne!(status.word().load() & value, 0, "a stream goes on");
            assert_eq!(status.word().load() & Status::FAILED != 0, outcome.is_err());
        }
    }

    #[test]
    fn a_claim_is_used_again_unless_something_knows_it_or_its_status() {
        let error = WorkError::new(0x13, 0x88);
        let used = || {
            let claim = Claim::new().unwrap();
            claim.entry.set(7).unwrap();
            assert!(claim.watch());
            claim.finish_unposted(1, WorkKind::Send, error);
            claim
        };
        let claim = used();
        let word = claim.status.word.addr();
        let again = Claim::again(claim).unwrap();
        assert_eq!(again.status.word.addr(), word);
        assert!(again.entry.get().is_none() && again.completion().is_none() && again.watch());
        assert_eq!(again.status().get(), None);
        again.finish_unposted(1, WorkKind::Send, WorkError::new(5, 0));
        assert_eq!(again.status().get(), Some(Err(WorkError::new(5, 0))));
        let (shown, held) = (used(), used());
        let (status, kept) = (shown.status().clone(), held.clone());
        for (old, known) in [(shown, status), (held, kept.status.clone())] {
            let new = Claim::again(old).unwrap();
            assert_ne!(new.status.word.addr(), known.word.addr());
            assert_eq!((new.status.get(), known.get()), (None, Some(Err(error))));
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
