//! Operations of MPI that streams and graphs trigger and wait for, and the words of pinned memory by which streams and the
//! thread that calls MPI signal each other.

use crate::error::{Class, Failure};
use gdsync::PinnedMemory;
use gdsync::memop::{Condition, Word32};
use gdsync_sys::pause::Pause;
use gdsync_sys::wake;
use libc::{c_int, c_void};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The C part's functions that call MPI: `struct gdsync_mpi_calls` of `c/engine.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Starts an operation that a stream has triggered, or gives it up if `is_given_up` is not 0.
    pub start: unsafe extern "C" fn(operation: *mut c_void, is_given_up: c_int),
    /// Ends an operation that no graph triggers any more.
    pub retire: unsafe extern "C" fn(operation: *mut c_void),
    /// Progresses MPI. Returns the number of outstanding operations.
    pub progress: unsafe extern "C" fn() -> c_int,
}

#[derive(Debug)]
pub(crate) struct Operation {
    /// The address of the C part's `struct mpix_operation`.
    pub(crate) operation: usize,
    /// Signals the operation's completion to streams.
    pub(crate) signal: Signal,
}

#[derive(Debug)]
pub(crate) enum Signal {
    Flag(Flag),
    Launch(LaunchWord),
}

impl Signal {
    pub(crate) fn condition(&self) -> (&Word32, Condition, u32) {
        match self {
            Signal::Flag(flag) => (&flag.word, Condition::Geq, flag.value),
            Signal::Launch(launch) => (&launch.word, Condition::Eq, DONE),
        }
    }

    pub(crate) fn set(&self) {
        match self {
            Signal::Flag(flag) => flag.set(),
            Signal::Launch(launch) => launch.set_done(),
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        match self {
            Signal::Flag(flag) => flag.is_set(),
            Signal::Launch(launch) => launch.is_done(),
        }
    }
}

impl Operation {
    /// An operation that a stream triggers, or one in a graph.
    ///
    /// # Safety
    /// `operation` is valid for [`Calls::start`] until that was called with it; in a graph, until [`Calls::retire`] was.
    pub(crate) unsafe fn new(operation: *mut c_void, is_in_graph: bool) -> Result<Self, Failure> {
        let signal =
            if is_in_graph { Signal::Launch(LaunchWord::new()?) } else { Signal::Flag(Flag::new()?) };
        Ok(Operation { operation: operation.expose_provenance(), signal })
    }

    /// # Errors
    /// [`Class::Request`] if the operation is not in a graph.
    pub(crate) fn launch_word(&self) -> Result<&LaunchWord, Failure> {
        let text = "the request was enqueued on a stream, and is triggered once: a graph, which is launched any number of times, does not wait for it. Wait for it on a stream";
        match &self.signal {
            Signal::Launch(launch) => Ok(launch),
            Signal::Flag(_) => Err(Failure::new(Class::Request, text)),
        }
    }

    pub(crate) fn wait(&self) {
        let mut pause = Pause::new();
        while !self.signal.is_set() {
            pause.pause();
        }
    }

    pub(crate) fn start(&self, calls: Calls, is_given_up: bool) {
        let operation = std::ptr::with_exposed_provenance_mut(self.operation);
        // SAFETY: `operation` is valid (`new`): the thread starts an operation of a stream once, and one in a graph before it
        // retires it.
        unsafe { (calls.start)(operation, is_given_up.into()) }
    }

    pub(crate) fn retire(&self, calls: Calls) {
        let operation = std::ptr::with_exposed_provenance_mut(self.operation);
        // SAFETY: `operation` is valid (`new`): the thread retires it once.
        unsafe { (calls.retire)(operation) }
    }
}

/// Allocates pinned memory for one word.
///
/// # Errors
/// [`Class::Memory`], with the word's purpose.
fn allocate_word(purpose: &str) -> Result<(PinnedMemory, Word32), Failure> {
    let failed = |error: String| Failure::new(Class::Memory, format!("{purpose}: {error}"));
    let memory = PinnedMemory::allocate(size_of::<u32>()).map_err(|error| failed(error.to_string()))?;
    let word = Word32::new(&memory, 0).map_err(|error| failed(error.to_string()))?;
    Ok((memory, word))
}

const PAGE: usize = 4096;

/// Words whose flags are set. A word counts up and streams compare cyclically, so a stream that still waits for an earlier flag
/// of a word passes, whatever the next flag is.
static FREE: Mutex<Vec<Word32>> = Mutex::new(Vec::new());

/// A flag that is set once, for which streams wait. Its word is reused.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) word: Word32,
    /// The flag is set from this value of the word on, compared cyclically.
    pub(crate) value: u32,
}

impl Flag {
    /// A flag that is not set.
    ///
    /// # Errors
    /// [`Class::Memory`].
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut free = FREE.lock();
        if free.is_empty() {
            *free = allocate_flags()?;
        }
        let none = || Failure::new(Class::Memory, "there is no memory for a flag");
        let word = free.pop().ok_or_else(none)?;
        drop(free);
        Ok(Flag { value: word.load().wrapping_add(1), word })
    }

    /// Earlier writes are visible to every stream and thread that sees the flag.
    pub(crate) fn set(&self) {
        if !self.is_set() {
            self.word.store(self.value);
            wake::report_write(self.word.addr().get() as usize, size_of::<u32>());
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.word.load().wrapping_sub(self.value) as i32 >= 0
    }
}

impl Drop for Flag {
    /// Frees the word for another flag.
    fn drop(&mut self) {
        self.set();
        FREE.lock().push(self.word.clone());
    }
}

fn allocate_flags() -> Result<Vec<Word32>, Failure> {
    let failed = |error: String| Failure::new(Class::Memory, format!("{PAGE} bytes of flags: {error}"));
    let memory = PinnedMemory::allocate(PAGE).map_err(|error| failed(error.to_string()))?;
    let offsets = (0..PAGE).step_by(size_of::<u32>());
    offsets.map(|at| Word32::new(&memory, at).map_err(|error| failed(error.to_string()))).collect()
}

/// A position in the order of a stream, which stores its number in the word when it reaches it.
#[derive(Clone, Debug)]
pub(crate) struct SequenceNumber {
    pub(crate) word: Word32,
    pub(crate) number: u32,
}

impl SequenceNumber {
    /// Returns whether a stream whose word has this value has reached the position.
    pub(crate) fn is_reached_at(&self, word: u32) -> bool {
        word.wrapping_sub(self.number) as i32 >= 0
    }
}

/// The sequence numbers of a stream.
#[derive(Debug)]
pub(crate) struct Sequence {
    last: SequenceNumber,
}

impl Sequence {
    /// # Errors
    /// [`Class::Memory`].
    pub(crate) fn new() -> Result<Self, Failure> {
        let (_, word) = allocate_word("a stream's turns")?;
        Ok(Sequence { last: SequenceNumber { word, number: 0 } })
    }

    /// The number after the last one that was [used](Self::advance).
    pub(crate) fn next(&self) -> SequenceNumber {
        SequenceNumber { word: self.last.word.clone(), number: self.last.number.wrapping_add(1) }
    }

    /// Uses the next number, whose store the stream was given.
    pub(crate) fn advance(&mut self) {
        self.last.number = self.last.number.wrapping_add(1);
    }
}

pub(crate) const TRIGGERED: u32 = 1;
/// A launch waits for this value before it goes on, so the thread sees launches in their order.
pub(crate) const STARTED: u32 = 2;
pub(crate) const DONE: u32 = 3;

/// The word of an operation in graphs.
///
/// Its values repeat with every launch: a launch stores [`TRIGGERED`], the thread that calls MPI [`STARTED`] and, once MPI has
/// completed the operation, [`DONE`], for which the launch waits.
#[derive(Debug)]
pub(crate) struct LaunchWord {
    pub(crate) word: Word32,
    pub(crate) memory: PinnedMemory,
    /// The number of graphs that use the word, plus one during the call that puts it into the first.
    holders: AtomicUsize,
}

impl LaunchWord {
    /// # Errors
    /// [`Class::Memory`].
    pub(crate) fn new() -> Result<Self, Failure> {
        let (memory, word) = allocate_word("the word of an operation")?;
        Ok(LaunchWord { word, memory, holders: AtomicUsize::new(1) })
    }

    /// Returns whether a launch has triggered the operation, and the thread has not seen it.
    pub(crate) fn is_triggered(&self) -> bool {
        self.word.load() == TRIGGERED
    }

    pub(crate) fn set_started(&self) {
        self.store(STARTED);
    }

    /// Earlier writes are visible to every stream and thread that sees the value.
    fn set_done(&self) {
        self.store(DONE);
    }

    fn store(&self, value: u32) {
        self.word.store(value);
        wake::report_write(self.word.addr().get() as usize, size_of::<u32>());
    }

    fn is_done(&self) -> bool {
        self.word.load() == DONE
    }

    /// Counts a graph that uses the word.
    pub(crate) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts down: a graph that used the word is destroyed.
    pub(crate) fn release(&self) {
        // Release: the thread that finds no holder sees the stores of that graph's launches.
        self.holders.fetch_sub(1, Ordering::Release);
    }

    /// Returns whether no launch can follow and none is in progress.
    pub(crate) fn is_retired(&self) -> bool {
        self.holders.load(Ordering::Acquire) == 0 && !matches!(self.word.load(), TRIGGERED | STARTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_serves_one_flag_after_another() {
        let first = Flag::new().unwrap();
        assert!(!first.is_set());
        first.set();
        assert!(first.is_set());
        let (word, value) = (first.word.clone(), first.value);
        drop(first);
        // Threads of other tests may have taken the word.
        let flags: Vec<_> = (0..PAGE).map(|_| Flag::new().unwrap()).collect();
        assert!(flags.iter().all(|flag| !flag.is_set()));
        assert!(word.load().wrapping_sub(value) as i32 >= 0, "a stream that waits for the first flag passes");
    }

    #[test]
    fn the_numbers_of_a_word_may_wrap() {
        let flag = Flag::new().unwrap();
        flag.word.store(u32::MAX);
        let wrapped = Flag { word: flag.word.clone(), value: flag.word.load().wrapping_add(1) };
        assert!(!wrapped.is_set());
        wrapped.set();
        assert!(wrapped.is_set() && wrapped.word.load() == 0);
        std::mem::forget(wrapped);
    }
}
