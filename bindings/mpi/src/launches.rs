//! Operations in graphs: each launch triggers such an operation by a store, and waits for its end.
//!
//! The operation's word goes round: a launch stores [`TRIGGERED`], the thread that calls MPI [`STARTED`], and, once MPI
//! has completed the operation, [`DONE`]. So a graph's operations have the same values at each launch.

use crate::error::Failure;
use crate::flag::word;
use gdsync::PinnedMemory;
use gdsync::memop::Word32;
use gdsync_sys::wake;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const TRIGGERED: u32 = 1;
/// A launch waits until the word has reached it before it goes on: so the thread sees launches in their order.
pub(crate) const STARTED: u32 = 2;
pub(crate) const DONE: u32 = 3;

/// The launches of an operation.
#[derive(Debug)]
pub(crate) struct Launches {
    pub(crate) word: Word32,
    pub(crate) memory: PinnedMemory,
    /// Graphs that name the word, and at first the call that puts it into one.
    holders: AtomicUsize,
}

impl Launches {
    /// # Errors
    /// [`word`]'s.
    pub(crate) fn new() -> Result<Self, Failure> {
        let (memory, word) = word("the word of an operation")?;
        Ok(Launches { word, memory, holders: AtomicUsize::new(1) })
    }

    /// A launch has stored its trigger, and the thread has not taken it.
    pub(crate) fn is_triggered(&self) -> bool {
        self.word.load() == TRIGGERED
    }

    /// The thread has seen a launch.
    pub(crate) fn take(&self) {
        self.store(STARTED);
    }

    /// What was written before is visible to every stream and thread that sees it.
    pub(crate) fn set_done(&self) {
        self.store(DONE);
    }

    fn store(&self, value: u32) {
        self.word.store(value);
        wake::wrote(self.word.addr().get() as usize, size_of::<u32>());
    }

    pub(crate) fn is_done(&self) -> bool {
        self.word.load() == DONE
    }

    /// One more graph names the word.
    pub(crate) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// One fewer does.
    pub(crate) fn release(&self) {
        // Release: the thread that finds none sees what the launches of that graph have stored.
        self.holders.fetch_sub(1, Ordering::Release);
    }

    /// No launch is to come, and none goes on.
    pub(crate) fn are_over(&self) -> bool {
        self.holders.load(Ordering::Acquire) == 0 && !matches!(self.word.load(), TRIGGERED | STARTED)
    }
}
